"""`backtest` against contracts 1 to 4: time, money, membership, delisting, and the windows."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_markets import NAN, make_market, random_market

from finpod.backtesting.engine import backtest
from finpod.backtesting.run import anchor_equity
from finpod.envs.market_env import MarketEnv, TradingConfig
from finpod.errors import InputError, StrategyError
from finpod.market.load import load_market
from finpod.rules import RULES, BenchmarkHold, BuyAndHold, EqualWeight, Momentum
from finpod.strategy import MarketView, Strategy, equal_parts
from finpod.synthetic import simulate_market
from finpod.trading.execution import build_execution
from finpod.trading.ledger import Costs
from finpod.trading.simulate import Terms, simulate

FREE = Costs(fee_bps=0)
BOTH = pytest.mark.parametrize("fill", ["open", "close"])


class Does(Strategy):
    """Decides what a function of the view says."""

    name = "does"

    def __init__(self, rule, **attributes) -> None:
        self.rule = rule
        for name, value in attributes.items():
            setattr(self, name, value)

    def decide(self, view: MarketView):
        return self.rule(view)


def scheduled(weights) -> Does:
    """The k-th decision is weights[k], or nothing."""
    return Does(lambda view: weights[view.step] if view.step < len(weights) else None)


def random_weights(market, seed=0):
    random = np.random.default_rng(seed)
    raw = random.random(market.shape) * (random.random(market.shape) < 0.7)
    return raw / np.maximum(raw.sum(axis=1, keepdims=True), 1e-9) * random.uniform(0.3, 1, (len(raw), 1))


def strategy_of(weights, market) -> Does:
    row_of = {day: row for row, day in enumerate(market.dates)}
    return Does(lambda view: weights[row_of[view.date]])


# --- time ---------------------------------------------------------------------------------------------------------


def test_b04_a_decision_never_earns_the_move_it_has_seen():
    market = make_market([10, 10, 20, 20], open=[10, 10, 10, 20])
    after_up_close = Does(lambda view: np.array([float(np.nan_to_num(np.diff(view.closes(2)[:, 0]))[0] > 0)]))
    result = backtest(after_up_close, market, costs=FREE, fill="open", cash=1000)
    assert result.equity.tolist() == [1000, 1000, 1000, 1000]


def test_c09_four_rows_are_three_steps():
    market = make_market([10, 11, 12.1, 10.89], open=[10, 10, 11, 12.1])
    result = backtest(Does(lambda view: np.ones(1)), market, costs=FREE, fill="open", cash=1000)
    assert result.returns.tolist() == pytest.approx([0.1, 0.1, -0.1], rel=1e-9)
    assert result.equity.tolist() == pytest.approx([1000, 1100, 1210, 1089], rel=1e-12)
    assert result.metrics.days == 3


@BOTH
def test_decision_k_sees_the_rows_of_the_contract(fill):
    market, seen = random_market(days=12, gaps=0), []
    backtest(Does(lambda view: seen.append(view.date)), market, start=market.dates[3], end=market.dates[7], fill=fill)
    lag = 0 if fill == "open" else 1
    assert seen == list(market.dates[3 - lag : 7 - lag])


@BOTH
def test_fills_stand_on_the_day_and_at_the_price_of_the_contract(fill):
    market = random_market(days=12, gaps=0, member=None)
    result = backtest(BuyAndHold(), market, start=market.dates[3], fill=fill)
    row = 4 if fill == "open" else 3
    prices = market.open if fill == "open" else market.close
    assert set(result.trades["date"]) == {pd.Timestamp(market.dates[row])}
    assert result.trades["price"].tolist() == prices[row].tolist()
    assert result.turnover.index[0] == pd.Timestamp(market.dates[row])
    assert len(result.turnover) == len(result.returns)


def test_close_fills_come_after_the_mark_and_their_fee_falls_in_the_next_return():
    market = make_market([10, 10, 10])
    result = backtest(Does(lambda view: np.ones(1)), market, start=market.dates[1], costs=Costs(fee_bps=100), cash=1010)
    assert result.equity.tolist() == pytest.approx([1010, 1000])
    assert result.trades["date"].tolist() == [pd.Timestamp(market.dates[1])]


@BOTH
def test_without_a_row_before_the_start_close_fills_skip_a_decision_and_say_so(fill):
    market = make_market([10, 11, 12, 13], open=[10, 10, 11, 12])
    result = backtest(BuyAndHold(), market, fill=fill, costs=FREE)
    skipped = [event for event in result.events if event.code == "skipped"]
    assert len(skipped) == (fill == "close")
    assert result.metrics.total_return == pytest.approx(13 / 10 - 1 if fill == "open" else 13 / 11 - 1)


def test_a28_nothing_before_the_start_enters_a_figure():
    market = make_market([5, 5, 5, 5, 5, 5], benchmark=[380, 390, 400, 410, 405, 420])
    result = backtest(EqualWeight(), market, start=market.dates[2])
    assert result.benchmark_metrics.total_return == pytest.approx(0.05)
    assert result.equity.index[0] == pd.Timestamp(market.dates[2])
    assert len(result.equity) == 4
    assert result.trades["date"].min() >= pd.Timestamp(market.dates[2])


def test_every_n_sessions_counted_from_the_first_decision():
    steps = []
    market = make_market(np.arange(10.0, 22.0))
    backtest(Does(lambda view: steps.append(view.step), every=4), market, fill="close")
    assert steps == [0, 4, 8]
    with pytest.raises(StrategyError, match="every must be 1 or more"):
        backtest(Does(lambda view: None, every=0), market)


@BOTH
def test_the_view_shows_the_account_at_the_last_mark_seen(fill):
    market, accounts = random_market(days=10, gaps=0, member=None), []

    def rule(view):
        accounts.append((view.cash, view.equity, view.held.copy()))
        return np.full(5, 0.15)

    result = backtest(Does(rule), market, start=market.dates[2], fill=fill, costs=FREE)
    assert accounts[0][:2] == (1e6, 1e6)
    assert not accounts[0][2].any()
    if fill == "open":
        shown = result.weights.to_numpy()[1:-1]
        assert [equity for _, equity, _ in accounts[1:]] == pytest.approx(result.equity.tolist()[1:-1])
        np.testing.assert_allclose([held for *_, held in accounts[1:]], shown, atol=1e-12)
    else:  # just after the fill at the close that is the last one seen, the weights are the target
        np.testing.assert_allclose([held for *_, held in accounts[1:]], 0.15, atol=1e-12)


# --- money --------------------------------------------------------------------------------------------------------


def test_c06_costs_and_turnover_of_three_changes():
    market = make_market([[20, 50]] * 5, open=[[20, 50]] * 5)
    result = backtest(scheduled([[1, 0], [0.5, 0.5], [0, 1]]), market, fill="open", cash=1000, costs=Costs(fee_bps=10))
    assert result.equity.tolist()[1:4] == pytest.approx([999.000999, 998.002996, 997.004993], rel=1e-9)
    assert result.turnover.sum() == pytest.approx(2.998002, abs=1e-6)
    assert result.fees == pytest.approx(1000 - result.equity.iloc[-1], rel=1e-9)


def test_c08_the_fee_of_the_first_day_counts():
    market = make_market([100, 100], open=[100, 100])
    result = backtest(BuyAndHold(), market, cash=1000, costs=Costs(fee_bps=10))
    assert result.equity.tolist() == pytest.approx([1000, 1000 / 1.001])
    sized = 999 / 1000  # an order that leaves the fee in cash loses exactly a tenth of a percent of what it buys
    result = backtest(scheduled([[sized]]), market, cash=1000, costs=Costs(fee_bps=1e4 / 999))
    assert result.metrics.total_return == pytest.approx(-0.001, rel=1e-9)


def test_c26_whole_shares_out_of_reach_give_no_trade_and_one_warning():
    market = make_market([3000] * 6, open=[3000] * 6)
    parts = backtest(EqualWeight(), market, cash=1000, costs=FREE)
    assert parts.trades["shares"].iloc[0] == pytest.approx(1 / 3)
    whole = backtest(EqualWeight(), market, cash=1000, costs=FREE, whole_shares=True)
    assert whole.trades.empty
    assert whole.equity.tolist() == [1000] * 6
    (unfilled,) = [warning for warning in whole.warnings if warning.code == "unfilled"]
    assert {key: unfilled.data[key] for key in ("day", "code", "ticker", "count")} == {
        "day": "2024-01-02",
        "code": "no_whole_share",
        "ticker": "A",
        "count": 5,
    }


@BOTH
@pytest.mark.parametrize("whole", [False, True])
def test_c22_the_trade_log_rebuilds_holdings_and_cash(fill, whole):
    market = random_market(days=40, seed=2)
    result = backtest(
        strategy_of(random_weights(market), market),
        market,
        start=market.dates[2],
        fill=fill,
        cash=50_000,
        costs=Costs(fee_bps=20, per_share=0.01),
        whole_shares=whole,
        delisting_return=-0.4,
    )
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


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), fee=st.floats(0, 300), fill=st.sampled_from(["open", "close"]), whole=st.booleans())
def test_cash_never_falls_below_zero(seed, fee, fill, whole):
    market = random_market(days=16, seed=seed)
    execution = build_execution(market, fill)
    weights = torch.from_numpy(random_weights(market, seed))
    terms = Terms(costs=Costs(fee_bps=fee), cash=10_000, whole_shares=whole)

    def decide(_step, row, seen):
        assert seen.cash >= 0
        assert (seen.shares >= 0).all()
        return weights[row]

    path = simulate(execution, 0, 15, decide, terms)
    worth = (path.shares * execution.mark).sum(-1)
    assert (path.equity - worth >= -1e-9).all()
    assert torch.isfinite(path.equity).all()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), fill=st.sampled_from(["open", "close"]))
def test_the_order_of_the_tickers_changes_nothing(seed, fill):
    market = random_market(days=16, seed=seed)
    weights, order = random_weights(market, seed), np.random.default_rng(seed).permutation(5)
    turned = market.select([market.tickers[column] for column in order])
    one = backtest(weights, market, fill=fill)
    other = backtest(weights[:, order], turned, fill=fill)
    np.testing.assert_allclose(other.equity, one.equity, rtol=1e-12)
    np.testing.assert_allclose(other.weights[list(market.tickers)], one.weights, atol=1e-12)


# --- membership, missing bars, delisting --------------------------------------------------------------------------


def membership_change():
    """X is a member up to 2020-06-30, Y from 2020-07-01; both have prices all along."""
    dates = np.busday_offset("2020-06-26", np.arange(6))
    member = np.stack([dates <= np.datetime64("2020-06-30"), dates >= np.datetime64("2020-07-01")], axis=1)
    return make_market(
        np.full((6, 2), 10.0), open=np.full((6, 2), 10.0), member=member, start="2020-06-26", tickers=("X", "Y")
    )


def test_b06_membership_is_that_of_the_decision_day():
    result = backtest(EqualWeight(), membership_change(), start="2020-06-29", costs=FREE, fill="open")
    held = {f"{day:%m-%d}": (row > 0).to_dict() for day, row in result.weights.iterrows()}
    assert held["06-30"] == {"X": True, "Y": False}
    assert held["07-01"] == {"X": True, "Y": False}  # decided on 06-30
    assert held["07-02"] == {"X": False, "Y": True}  # decided on 07-01
    sold = result.trades[result.trades["shares"] < 0]
    assert [(f"{t.date:%m-%d}", t.ticker) for t in sold.itertuples()] == [("07-02", "X")]


@BOTH
def test_b06_the_ledger_buys_no_former_member_and_forces_none_out(fill):
    market = membership_change()
    only_x = Does(lambda view: np.array([0.5 if view.date <= np.datetime64("2020-06-30") else 0.9, 0.0]))
    result = backtest(only_x, market, start="2020-06-29", costs=FREE, fill=fill)
    assert result.weights["X"].iloc[-1] == pytest.approx(0.5)
    assert len(result.trades) == 1
    late = backtest(Does(lambda view: np.array([1.0, 0.0])), market, start="2020-07-02", fill=fill)
    assert late.trades.empty
    (unfilled,) = [warning for warning in late.warnings if warning.code == "unfilled"]
    assert (unfilled.data["code"], unfilled.data["ticker"]) == ("not_member", "X")


@BOTH
@pytest.mark.parametrize(("delisting_return", "last"), [(0.0, 900), (-1.0, 500)])
def test_b08_a_delisted_position_becomes_cash(fill, delisting_return, last):
    market = make_market([50, 50, 45, 40, NAN, NAN], open=[50, 50, 50, 44, NAN, NAN])
    result = backtest(
        scheduled([[0.5]]),
        market,
        start=market.dates[1],
        end=market.dates[4],
        fill=fill,
        costs=FREE,
        cash=1000,
        delisting_return=delisting_return,
    )
    assert result.equity.tolist() == pytest.approx([1000, 950, 900, last])
    left = result.trades[result.trades["kind"] == "delisted"]
    assert left["date"].tolist() == [pd.Timestamp(market.dates[4])]
    assert left["shares"].tolist() == [-10]
    (event,) = [event for event in result.events if event.code == "delisted"]
    assert (event.day, event.ticker, event.shares) == ("2024-01-05", "A", pytest.approx(10))
    assert result.weights["A"].iloc[-1] == 0


@pytest.mark.parametrize(("fill", "bought"), [("open", 5), ("close", 4)])
def test_b08_the_cash_of_a_delisting_comes_after_the_open_and_before_the_close(fill, bought):
    """A has left on row 4. For its cash B can be bought at the close of that row, but only at the open of the next."""
    close = np.full((7, 2), 10.0)
    close[4:, 0] = NAN
    market = make_market(close, open=close)
    swap = Does(
        lambda view: (
            np.array([1.0, 0.0]) if view.step == 0 else np.array([0.0, 1.0]) if view.date >= market.dates[3] else None
        )
    )
    result = backtest(swap, market, start=market.dates[1], fill=fill, costs=FREE)
    rows = [(trade.date, trade.ticker, trade.kind) for trade in result.trades.itertuples()]
    assert rows[1:] == [
        (pd.Timestamp(market.dates[4]), "A", "delisted"),
        (pd.Timestamp(market.dates[bought]), "B", "fill"),
    ]
    assert result.trades["shares"].iloc[-1] == pytest.approx(1e6 / 10)
    assert any(event.code == "no_cash" for event in result.events) == (fill == "open")


@BOTH
def test_a_missing_bar_means_no_fill_and_the_last_mark(fill):
    market = make_market([[10, 10], [10, 10], [11, NAN], [12, 15]], open=[[10, 10], [10, 10], [10, NAN], [11, 12]])
    result = backtest(
        Does(lambda view: np.array([0.5, 0.5]) if view.step == 0 else np.zeros(2)),
        market,
        start=market.dates[1],
        fill=fill,
        costs=FREE,
        cash=1000,
    )
    held = result.weights["B"] * result.equity
    row = 2 if fill == "close" else 1
    assert np.isfinite(result.equity).all()
    if fill == "close":
        assert held.iloc[1] == pytest.approx(500)  # bought on row 1, no bar on row 2: the last price stands
        assert held.iloc[row] == pytest.approx(750)  # not sold on row 2, sold at the close of the end only
    else:
        assert held.tolist() == [0, 0, 0]  # the fill would have been at the missing open
        assert any((event.code, event.ticker) == ("no_price", "B") for event in result.events)


# --- the benchmark and the equal weight ---------------------------------------------------------------------------


def test_a22_the_benchmark_against_itself():
    market = random_market(days=60, gaps=0)
    result = backtest(BenchmarkHold(), market, start=market.dates[1], fill="close", costs=FREE)
    for name, figure in vars(result.benchmark_metrics).items():
        assert getattr(result.metrics, name) == pytest.approx(figure, rel=1e-12, abs=1e-12), name
    assert result.relative.excess == pytest.approx(0, abs=1e-12)
    assert result.relative.beta == pytest.approx(1, abs=1e-12)
    assert result.relative.alpha == pytest.approx(0, abs=1e-12)
    assert np.isnan(result.relative.information_ratio)


def test_a27_the_benchmark_earns_its_dividends():
    days = ["2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05"]
    close, factor = np.array([400, 402, 399, 404.0]), np.array([1 - 2 / 402, 1 - 2 / 402, 1, 1])
    bars = pd.concat(
        [
            pd.DataFrame({"date": days, "ticker": "QQQ", "close": close, "adj_close": close * factor}),
            pd.DataFrame({"date": days, "ticker": "A", "close": 10.0, "adj_close": 10.0}),
        ]
    )
    result = backtest(EqualWeight(), load_market(bars))
    assert result.benchmark_metrics.total_return == pytest.approx(404 * 402 / 400**2 - 1, rel=1e-9)
    assert result.benchmark_metrics.total_return == pytest.approx(0.01505, abs=1e-6)
    assert result.manifest["benchmark_kind"] == "total return"


def test_the_equal_weight_column_is_the_strategy_of_that_name():
    market = random_market(days=40)
    for fill in ("open", "close"):
        result = backtest(EqualWeight(), market, start=market.dates[1], fill=fill)
        assert result.equal_weight_equity.tolist() == result.equity.tolist()
    alone = anchor_equity(market, market.dates[1], market.dates[-1], Terms(), "close")
    assert alone.tolist() == result.equity.tolist()


class Cadenced(Strategy):
    """Equal parts at each n-th decision, like the anchor of a strategy of this `every`."""

    def __init__(self, every):
        self.every = every

    def decide(self, view):
        return equal_parts(view.member & view.tradable)


@pytest.mark.parametrize("fill", ["open", "close"])
@pytest.mark.parametrize("first", [0, 3])
def test_the_anchor_decides_on_the_days_of_the_strategy(fill, first):
    market = random_market(days=60)
    for every in (2, 5, 21):
        result = backtest(Cadenced(every), market, start=market.dates[first], fill=fill)
        assert (result.anchor_every, result.has_own_anchor) == (every, True)
        assert result.anchor_equity.tolist() == result.equity.tolist()
    daily = backtest(Cadenced(1), market, start=market.dates[first], fill=fill)
    assert not daily.has_own_anchor


def test_the_anchor_is_the_one_that_the_strategy_names():
    strategy, market = RULES["dollar-volume"](), simulate_market(names=6, days=120, seed=1)
    strategy.anchor = "dollar-volume"
    result = backtest(strategy, market, start=market.dates[70])
    assert (result.anchor, result.anchor_every) == ("dollar-volume", 5)
    np.testing.assert_allclose(result.anchor_equity, result.equity, rtol=1e-12)
    assert result.relative_to_equal_weight.tracking_error > 0


# --- ready weights and what decide may return ---------------------------------------------------------------------


@BOTH
def test_ready_weights_are_the_strategy_that_returns_them(fill):
    market = random_market(days=30)
    weights = random_weights(market)
    ready = backtest(weights, market, start=market.dates[3], fill=fill)
    decided = backtest(strategy_of(weights, market), market, start=market.dates[3], fill=fill)
    assert ready.equity.tolist() == decided.equity.tolist()
    assert ready.weights.equals(decided.weights)
    assert ready.trades.equals(decided.trades)
    assert ready.turnover.equals(decided.turnover)
    assert ready.strategy == "weights"
    assert backtest(weights, market, name="mine").strategy == "mine"


def test_a_decision_may_be_an_array_a_series_a_dict_or_nothing():
    market = make_market(np.full((4, 3), 10.0), open=np.full((4, 3), 10.0))
    for decision in (np.array([0.5, 0, 0.25]), [0.5, 0, 0.25], pd.Series({"C": 0.25, "A": 0.5}), {"A": 0.5, "C": 0.25}):
        result = backtest(Does(lambda view, d=decision: d), market, costs=FREE)
        assert result.weights.iloc[-1].tolist() == pytest.approx([0.5, 0, 0.25])
    assert backtest(Does(lambda view: None), market).trades.empty


@pytest.mark.parametrize("zone", ["America/New_York", "UTC"])
def test_a25_ready_weights_may_have_a_clock(zone):
    market = random_market(days=20)
    table = pd.DataFrame(np.full(market.shape, 1 / market.shape[1]), market.dates, list(market.tickers))
    plain = backtest(table, market)
    for moved in (table.index.tz_localize(zone), (table.index + pd.Timedelta("16h")).tz_localize(zone)):
        assert backtest(table.set_axis(moved), market).equity.equals(plain.equity)


@pytest.mark.parametrize(("rule", "rows"), [(EqualWeight(), 0), (Momentum(lookback=5, k=2), 1)])
def test_equal_weight_is_swept_once(rule, rows):
    swept = backtest(rule, random_market(days=40), examine=True).cost_sweep[10.0]
    assert [name for name in swept if "equal" in name] == (["equal weight"] if rows else ["equal-weight"])


@pytest.mark.parametrize("name", ["minimum-variance", "equal weight"])
def test_a_strategy_with_the_name_of_a_rule_does_not_take_its_place(name):
    class First(Strategy):
        def decide(self, view):
            return np.eye(len(view.tickers))[0]

    result = backtest(First(), random_market(days=300), name=name, examine=True)
    assert set(result.cost_sweep[10.0]) >= {name, f"{name} (the rule)"}
    assert len(result.baselines) == 4
    itself = backtest(RULES["minimum-variance"](), random_market(days=300), examine=True)
    assert len(itself.baselines) == 3


# --- windows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("until", "refused"), [("2024-01-03", True), ("2024-01-08", True), ("2024-01-02", False)])
def test_a_window_within_training_is_refused_or_marked(until, refused):
    trained = Does(lambda view: np.ones(1), trained_until=until, trials=12)
    market = make_market([10] * 10)
    if refused:
        with pytest.raises(
            InputError,
            match=f"starts on 2024-01-03, but does was trained or chosen on days up to {until}; "
            "start later, or pass allow_in_sample=True",
        ):
            backtest(trained, market, start="2024-01-03")
    result = backtest(trained, market, start="2024-01-03", allow_in_sample=True)
    assert result.in_sample == refused
    assert (result.warnings[0].code == "in_sample") == refused
    assert any(warning.code == "many_trials" and warning.data["trials"] == 12 for warning in result.warnings)


def test_the_environment_and_the_public_backtest_agree_to_the_last_bit():
    """Weights as the environment makes them, whose sums are 1 but for the last bits, given to `backtest` as they are."""
    market = simulate_market(names=20, days=120, seed=3)
    env = MarketEnv(
        build_execution(market), 0, 119, TradingConfig(num_envs=2, hold=1, horizon=None, random_start=False)
    )
    generator = torch.Generator().manual_seed(0)
    weights, equity = np.full((2, *market.shape), np.nan), [env.equity[:, 0].numpy()]
    for row in range(119):
        action = torch.randn(2, 20, generator=generator)
        weights[:, row] = env.weights(action).numpy()
        ended = env.step(action).truncated
        equity.append(np.zeros(2) if ended.all() else env.equity[:, 0].numpy())
    assert (weights[:, :119].sum(-1) > 1).any()
    results = backtest(weights, market)
    for s in range(2):
        np.testing.assert_array_equal(results[s].equity.to_numpy()[:119], np.array(equity)[:119, s])


# --- what is refused, in one line ------------------------------------------------------------------------------------


TWICE = Does(lambda view: pd.Series([0.1, 0.2], index=[view.tickers[0]] * 2))


def raises(error):
    def rule(view):
        raise error

    return Does(rule)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        *(
            (Does(lambda view, d=decision: d), f"strategy does on 2024-01-01 {message}")
            for decision, message in (
                ([NAN, 0.5], "decided nan for A"),
                ([0.5, np.inf], "decided inf for B"),
                ([0.5, 0.6], "decided weights that sum to 1.100000"),
                ([0.5], r"decided weights of shape \(1,\)"),
                ({"A": 0.5, "ZZZ": 0.1}, "names ZZZ"),
                ("all of it", "decided str"),
                ({"A": "half"}, "decided dict"),
            )
        ),
        (TWICE, "gives A twice"),
        (raises(KeyError("A\nB")), r"strategy does failed on 2024-01-01: KeyError: 'A\\nB'$"),
        (raises(SystemExit(0)), "strategy does failed on 2024-01-01: SystemExit"),
        (Does(lambda view: view.volumes(3)), r"strategy does failed on 2024-01-01: volumes\(3\)"),
        (Strategy(), "failed on 2024-01-01: NotImplementedError"),
        *((Does(None, trained_until=day), f"its trained_until .*{day}") for day in ("20181231", "2018", 2018, "soon")),
        (Does(None, every=0), "every 0 sessions"),
    ],
)
def test_a_decision_that_cannot_be_names_strategy_and_day(strategy, message):
    market = make_market(np.full((4, 2), 10.0), open=np.full((4, 2), 10.0))
    with pytest.raises(StrategyError, match=message) as raised:
        backtest(strategy, market)
    assert "\n" not in str(raised.value)


def test_c20_a_short_position_is_refused_as_long_only():
    market = make_market(np.full((4, 2), 10.0), open=np.full((4, 2), 10.0))
    for strategy in (Does(lambda view: np.array([-0.5, 0.5])), np.tile([-0.5, 0.5], (4, 1))):
        with pytest.raises(StrategyError, match=r"on 2024-01-01 decided -0.5 for A.*long only"):
            backtest(strategy, market)


HALVES = np.ones((4, 2)) / 2


@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        (HALVES[:3], r"\(3, 2\)"),
        (np.ones((0, 4, 2)), r"\(0, 4, 2\)"),
        (np.ones((1, 2, 4, 2)), r"\(1, 2, 4, 2\)"),
        (HALVES[0], r"\(2,\)"),
        (pd.DataFrame(HALVES, columns=["B", "A"]), "columns"),
        *(
            (pd.DataFrame(HALVES, index, ["A", "B"]), "index")
            for index in (pd.date_range("2024-01-03", periods=4), pd.RangeIndex(4), ["a", "b", "c", "d"])
        ),
        (EqualWeight, "EqualWeight"),
        ("momentum", "'momentum'"),
    ],
)
def test_what_is_no_strategy_is_refused(wrong, value):
    with pytest.raises(InputError, match=value) as raised:
        backtest(wrong, make_market(np.full((4, 2), 10.0)))
    assert raised.value.argument == "strategy"


@pytest.mark.parametrize(
    ("options", "argument", "value"),
    [
        ({"start": "2024-01-03", "end": "2024-01-03"}, "end", "2024-01-03"),
        ({"start": "2024-01-04", "end": "2024-01-02"}, "end", "2024-01-02"),
        ({"start": "2030-01-01"}, "date", "2030-01-01"),
        ({"start": "soon"}, "start", "soon"),
        ({"cash": 0}, "cash", "0"),
        ({"cash": NAN}, "cash", "nan"),
        ({"cash": "1e6"}, "cash", "1e6"),
        ({"delisting_return": -1.5}, "delisting_return", "-1.5"),
        ({"delisting_return": "x"}, "delisting_return", "x"),
        ({"fill": "noon"}, "fill", "noon"),
        ({"risk_free": 5}, "risk_free", "5"),
        ({"costs": 10}, "costs", "10"),
        ({"name": 5}, "name", "5"),
        ({"opened": 0}, "opened", "0"),
        ({"market": "sample"}, "market", "str"),
    ],
)
def test_arguments_that_cannot_be_are_named_before_anything_is_run(options, argument, value):
    never = Does(lambda view: pytest.fail("it was asked"))
    with pytest.raises(InputError, match=value) as raised:
        backtest(never, **{"market": make_market([10] * 6), **options})
    assert raised.value.argument == argument


def test_b27_both_ends_are_included():
    result = backtest(EqualWeight(), make_market([10] * 10), start="2024-01-06", end="2024-01-10")
    assert [f"{day:%d}" for day in result.equity.index] == ["08", "09", "10"]
