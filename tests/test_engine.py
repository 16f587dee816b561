"""`backtest` against contracts 1 to 4: time, money, membership, delisting, and the windows."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_markets import NAN, flat_market, make_market, random_market, random_weights
from made_strategies import does, plan, strategy_of

from finpod import Costs, load_market
from finpod.backtesting.engine import backtest
from finpod.rules import BenchmarkHold, BuyAndHold, EqualWeight
from finpod.strategy import equal_parts
from finpod.trading.execution import build_execution

pytestmark = pytest.mark.usefixtures("unaudited")
FREE = Costs(fee_bps=0)


def warning_of(result, code):
    (found,) = [warning for warning in result.warnings if warning.code == code]
    return found.data


def test_b04_a_decision_never_earns_the_move_it_has_seen():
    market = make_market([10, 10, 20, 20], open=[10, 10, 10, 20])
    after_up_close = does(lambda view: np.array([float(np.nan_to_num(np.diff(view.closes(2)[:, 0]))[0] > 0)]))
    result = backtest(after_up_close, market, costs=FREE, fill="open", cash=1000)
    assert result.equity.tolist() == [1000, 1000, 1000, 1000]


def test_without_a_row_before_the_start_close_fills_skip_a_decision_and_say_so(fill):
    result = backtest(BuyAndHold(), make_market([10, 11, 12, 13], open=[10, 10, 11, 12]), fill=fill, costs=FREE)
    assert len([event for event in result.events if event.code == "skipped"]) == (fill == "close")
    assert result.metrics.total_return == pytest.approx(13 / 10 - 1 if fill == "open" else 13 / 11 - 1)


def test_a28_nothing_before_the_start_enters_a_figure():
    market = make_market([5, 5, 5, 5, 5, 5], benchmark=[380, 390, 400, 410, 405, 420])
    result = backtest(EqualWeight(), market, start=market.dates[2])
    assert result.benchmark_metrics.total_return == pytest.approx(0.05)
    assert (result.equity.index[0], len(result.equity)) == (pd.Timestamp(market.dates[2]), 4)
    assert result.trades["date"].min() >= pd.Timestamp(market.dates[2])


def test_the_view_shows_the_account_at_the_last_mark_seen(fill):
    market, accounts = random_market(days=10, gaps=0, member=None), []

    def rule(view):
        accounts.append((view.cash, view.equity, view.held.copy()))
        return np.full(5, 0.15)

    result = backtest(does(rule), market, start=market.dates[2], fill=fill, costs=FREE)
    assert accounts[0][:2] == (1e6, 1e6)
    assert not accounts[0][2].any()
    if fill == "open":
        shown = result.weights.to_numpy()[1:-1]
        assert [equity for _, equity, _ in accounts[1:]] == pytest.approx(result.equity.tolist()[1:-1])
        np.testing.assert_allclose([held for *_, held in accounts[1:]], shown, atol=1e-12)
    else:  # just after the fill at the close that is the last one seen, the weights are the target
        np.testing.assert_allclose([held for *_, held in accounts[1:]], 0.15, atol=1e-12)


def test_c08_the_fee_of_the_first_day_counts():
    result = backtest(BuyAndHold(), flat_market(100, days=2), cash=1000, costs=Costs(fee_bps=10))
    assert result.equity.tolist() == pytest.approx([1000, 1000 / 1.001])


def test_c26_whole_shares_out_of_reach_give_no_trade_and_one_warning():
    market = flat_market(3000, days=6)
    assert backtest(EqualWeight(), market, cash=1000, costs=FREE).trades["shares"].iloc[0] == pytest.approx(1 / 3)
    whole = backtest(EqualWeight(), market, cash=1000, costs=FREE, whole_shares=True)
    assert whole.trades.empty
    assert whole.equity.tolist() == [1000] * 6
    expected = {"day": "2024-01-02", "code": "no_whole_share", "ticker": "A", "count": 5}
    assert warning_of(whole, "unfilled").items() >= expected.items()


def test_a_buy_of_unknown_impact_is_reported_as_such():
    volume = np.where(np.arange(6) < 3, np.nan, 1e9)[:, None]
    late = backtest(BuyAndHold(), flat_market(10, days=6, volume=volume), costs=Costs(impact=0.1), fill="close")
    assert late.trades.empty
    assert warning_of(late, "unfilled").items() >= {"code": "no_volume", "ticker": "A", "count": 1}.items()


@pytest.mark.parametrize("whole", [False, True])
def test_c22_the_trade_log_rebuilds_holdings_and_cash(fill, whole):
    market = random_market(days=40, seed=2)
    strategy, terms = strategy_of(random_weights(market), market), {"fill": fill, "cash": 50_000, "whole_shares": whole}
    costs = Costs(fee_bps=20, per_share=0.01)
    result = backtest(strategy, market, start=market.dates[2], costs=costs, delisting_return=-0.4, **terms)
    assert (result.trades["kind"] == "delisted").sum() == 1
    before_the_mark = (result.trades["kind"] == "delisted") | (fill == "open")
    marks = build_execution(market).mark.numpy()
    for row in range(2, 40):
        day = pd.Timestamp(market.dates[row])
        done = result.trades[(result.trades["date"] < day) | (before_the_mark & (result.trades["date"] == day))]
        held = done.groupby("ticker")["shares"].sum().reindex(list(market.tickers), fill_value=0.0)
        cash = 50_000 - done["notional"].sum() - done["cost"].sum()
        worth = held.to_numpy() * marks[row]
        equity = result.equity.loc[day]
        assert cash + worth.sum() == pytest.approx(equity, rel=1e-9)
        np.testing.assert_allclose(worth / equity, result.weights.loc[day], atol=1e-9)
        assert result.cash_weight.loc[day] == pytest.approx(cash / equity, abs=1e-9)
    assert (result.trades["shares"] < 0).any()


def test_b06_the_ledger_buys_no_former_member_and_forces_none_out(fill):
    """X is a member up to 2020-06-30, Y from 2020-07-01; both have prices all along."""
    member = np.arange(6)[:, None] // 3 == [0, 1]
    market = flat_market(10, 10, days=6, member=member, start="2020-06-26", tickers=("X", "Y"))
    only_x = does(lambda view: np.array([0.5 if view.date <= np.datetime64("2020-06-30") else 0.9, 0.0]))
    result = backtest(only_x, market, start="2020-06-29", costs=FREE, fill=fill)
    assert result.weights["X"].iloc[-1] == pytest.approx(0.5)
    assert len(result.trades) == 1
    late = backtest(does(lambda view: np.array([1.0, 0.0])), market, start="2020-07-02", fill=fill)
    assert late.trades.empty
    assert warning_of(late, "unfilled").items() >= {"code": "not_member", "ticker": "X"}.items()


@pytest.mark.parametrize(("delisting_return", "last"), [(0.0, 900), (-1.0, 500)])
def test_b08_a_delisted_position_becomes_cash(fill, delisting_return, last):
    market = make_market([50, 50, 45, 40, NAN, NAN], open=[50, 50, 50, 44, NAN, NAN])
    window = {"start": market.dates[1], "end": market.dates[4]}
    terms = {"fill": fill, "costs": FREE, "cash": 1000, "delisting_return": delisting_return}
    result = backtest(plan([0.5]), market, **window, **terms)
    assert result.equity.tolist() == pytest.approx([1000, 950, 900, last])
    left = result.trades[result.trades["kind"] == "delisted"]
    assert left["date"].tolist() == [pd.Timestamp(market.dates[4])]
    assert left["shares"].tolist() == [-10]
    (event,) = [event for event in result.events if event.code == "delisted"]
    assert (event.day, event.ticker, event.shares) == ("2024-01-05", "A", pytest.approx(10))
    assert result.weights["A"].iloc[-1] == 0


def test_a22_the_benchmark_against_itself():
    market = random_market(days=60, gaps=0)
    result = backtest(BenchmarkHold(), market, start=market.dates[1], fill="close", costs=FREE)
    assert vars(result.metrics) == pytest.approx(vars(result.benchmark_metrics), rel=1e-12, abs=1e-12)
    expected = {"excess": 0, "beta": 1, "alpha": 0, "tracking_error": 0, "information_ratio": NAN}
    assert vars(result.relative) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_a27_the_benchmark_earns_its_dividends():
    days = ["2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05"]
    close, factor = np.array([400, 402, 399, 404.0]), np.array([1 - 2 / 402, 1 - 2 / 402, 1, 1])
    qqq = pd.DataFrame({"date": days, "ticker": "QQQ", "close": close, "adj_close": close * factor})
    result = backtest(EqualWeight(), load_market(pd.concat([qqq, qqq.assign(ticker="A", close=10.0, adj_close=10.0)])))
    assert result.benchmark_metrics.total_return == pytest.approx(404 * 402 / 400**2 - 1, rel=1e-9)
    assert result.benchmark_metrics.total_return == pytest.approx(0.01505, abs=1e-6)
    assert result.manifest["benchmark_kind"] == "total return"


@pytest.mark.parametrize("first", [0, 3])
def test_the_anchor_decides_on_the_days_of_the_strategy(fill, first):
    market = random_market(days=60)
    for every in (1, 2, 5, 21):
        equal = does(lambda view: equal_parts(view.member & view.tradable), every=every)
        result = backtest(equal, market, start=market.dates[first], fill=fill)
        assert (result.anchor_every, result.has_own_anchor) == (every, every > 1)
        assert result.anchor_equity.tolist() == result.equity.tolist()
    daily = backtest(EqualWeight(), market, start=market.dates[first], fill=fill)
    assert result.equal_weight_equity.tolist() == daily.equity.tolist()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), fee=st.floats(0, 300), fill=st.sampled_from(["open", "close"]), whole=st.booleans())
def test_cash_stays_positive_and_the_order_of_the_tickers_changes_nothing(seed, fee, fill, whole):
    market = random_market(days=16, seed=seed)
    weights, order = random_weights(market, seed), np.random.default_rng(seed).permutation(5)
    turned = market.select([market.tickers[column] for column in order])
    options = {"fill": fill, "costs": Costs(fee_bps=fee), "cash": 10_000, "whole_shares": whole}
    one, other = backtest(weights, market, **options), backtest(weights[:, order], turned, **options)
    assert (one.cash_weight >= -1e-9).all()
    assert (one.weights >= 0).all(axis=None)
    np.testing.assert_allclose(other.equity, one.equity, rtol=1e-12)
    np.testing.assert_allclose(other.weights[list(market.tickers)], one.weights, atol=1e-12)
