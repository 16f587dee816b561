"""Attribution against hand-worked values (contributions, size of bets, hit rates), and flags of degenerate policies."""

import json
import math
from dataclasses import asdict, fields, replace

import numpy as np
import pandas as pd
import pytest
from made_markets import NAN, make_market, random_market
from made_results import make_result, trained

import finpod.evidence.attribution as module
from finpod.backtesting.engine import backtest
from finpod.backtesting.result_io import load_result
from finpod.evidence.attribution import Attribution, Month, attribute, contributions, flags, shares_added
from finpod.files import to_json
from finpod.loading import load_strategy
from finpod.market.data import MarketData
from finpod.records import ResultWarning
from finpod.strategy import Strategy, equal_parts
from finpod.trading.ledger import Costs

FREE = Costs(fee_bps=0)


class Plan(Strategy):
    """The weights of a table, one row a decision; None, and every decision after the last row, trades nothing."""

    def __init__(self, *rows):
        self.rows = rows

    def decide(self, view):
        row = self.rows[view.step] if view.step < len(self.rows) else None
        return None if row is None else np.array(row, dtype=float)


class Rule(Strategy):
    """The weights that a function of the view gives."""

    def __init__(self, rule):
        self.decide = rule


def constant(*weights):
    return Rule(lambda view: np.array(weights, dtype=float))


def flat(days, names=2):
    return make_market(np.full((days, names), 10.0), open=np.full((days, names), 10.0))


def two_names(**changes):
    """A rises from 10 to 12 and B falls from 10 to 9, on the third of four sessions; fills at the opens before that."""
    close = np.array([[10.0, 10], [10, 10], [12, 9], [12, 9]])
    return make_market(close, open=np.vstack([close[:1], close[:-1]]), **changes)


# --- contributions ------------------------------------------------------------------------------------------------


def test_contributions_by_hand():
    """50 shares of each at 10: A gains 100 and B loses 50 of a thousand."""
    found = attribute(backtest(Plan([0.5, 0.5]), two_names(), costs=FREE, cash=1000))
    assert found.contributions.to_dict() == pytest.approx({"A": 100, "B": -50})
    assert found.contribution_shares.to_dict() == pytest.approx({"A": 0.1, "B": -0.05})
    assert list(found.contributions.index) == ["A", "B"]
    assert found.gaining_names == 0.5


def test_contributions_are_net_of_each_names_own_costs():
    """1 % a side: 1000 / 1.01 buys 495.0495 of each, for 4.950495; A gains a fifth of it less that, B loses a tenth and that."""
    result = backtest(Plan([0.5, 0.5]), two_names(), costs=Costs(fee_bps=100), cash=1000)
    part = 500 / 1.01
    assert contributions(result).to_dict() == pytest.approx({"A": 0.2 * part - 0.01 * part, "B": -0.11 * part})


def test_what_was_sold_keeps_its_gain():
    """A bought at 10 and sold at 12, B bought then at 9: the hundred per half stay A's."""
    result = backtest(Plan([0.5, 0], None, [0, 0.5]), two_names(), costs=FREE, cash=1000)
    assert contributions(result).to_dict() == pytest.approx({"A": 100, "B": 0}, abs=1e-9)
    assert attribute(result).gaining_names == 1.0  # B neither gained nor lost


@pytest.mark.parametrize(("lost", "worth"), [(0.0, 900), (-1.0, 500)])
def test_b08_a_name_that_leaves_contributes_what_was_left_of_it(lost, worth):
    """Cash 500 and 10 shares at 50, 45, 40, then no more: -100, or -500 if the rest is lost."""
    close = np.array([[50.0, 7], [50, 7], [45, 7], [40, 7], [NAN, 7], [NAN, 7]])
    result = backtest(Plan([0.5, 0]), make_market(close, open=close), costs=FREE, cash=1000, delisting_return=lost)
    assert result.equity.iloc[-1] == pytest.approx(worth)
    assert contributions(result).to_dict() == pytest.approx({"A": worth - 1000})


@pytest.mark.parametrize("fill", ["open", "close"])
@pytest.mark.parametrize("name", ["equal-weight", "buy-and-hold", "benchmark-hold"])
def test_contributions_sum_to_the_gain_and_the_log_to_what_is_held(name, fill):
    """On ragged data with a name that leaves, with costs of all kinds."""
    market = random_market(80, 8, gaps=0.1)
    costs = Costs(fee_bps=15, slippage_bps=5, per_share=0.01)
    result = backtest(load_strategy(name), market, costs=costs, fill=fill, delisting_return=-0.5)
    found = attribute(result)
    assert found.contributions.sum() == pytest.approx(result.equity.iloc[-1] - result.equity.iloc[0], rel=1e-9)
    assert found.contribution_shares.sum() == pytest.approx(result.metrics.total_return, rel=1e-9)
    assert set(found.contributions.index) == set(result.trades["ticker"])
    assert found.contributions.is_monotonic_decreasing
    if name != "benchmark-hold":
        shares = np.cumsum(shares_added(result, "fill") + shares_added(result, "delisted"), axis=0)
        worth = result.weights.to_numpy() * result.equity.to_numpy()[:, None]
        priced = market.has_bar & (worth > 0)
        np.testing.assert_allclose((shares * market.close)[priced], worth[priced], rtol=1e-9)


@pytest.mark.shared
def test_contributions_sum_on_the_nasdaq_100(shared):
    """2016 to 2020, with eight names that left the exchange while they were held."""
    from finpod import load_market

    folder = shared / "data"
    market = load_market(folder / "nasdaq100_daily.parquet", members=folder / "nasdaq100_members.csv")
    result = backtest(load_strategy("buy-and-hold"), market, start="2016-01-04", end="2020-05-22")
    found = attribute(result)
    assert (result.trades["kind"] == "delisted").sum() > 5
    assert found.contributions.sum() == pytest.approx(result.equity.iloc[-1] - 1e6, rel=1e-9)
    assert found.contributions.index[0] == "NVDA"
    assert found.worst_months[0].month == "2018-12"
    assert found.explained > 0.85
    assert 60 < found.effective_names < 101


# --- the market, and the size of the bets ---------------------------------------------------------------------------


def test_a22_the_benchmark_held_has_a_beta_of_one():
    market = random_market(40, gaps=0)
    benchmark = load_strategy("benchmark-hold")
    found = attribute(backtest(benchmark, market, start=market.dates[1], fill="close", costs=FREE))
    assert (found.beta, found.explained) == (pytest.approx(1, abs=1e-12), pytest.approx(1, abs=1e-12))


def test_explained_is_the_squared_correlation():
    result = make_result(days=300)
    for explained, curve in (
        (attribute(result).explained, result.benchmark_equity),
        (attribute(result).equal_weight_explained, result.equal_weight_equity),
    ):
        assert explained == pytest.approx(result.equity.pct_change().corr(curve.pct_change()) ** 2)


def test_size_of_bets_by_hand():
    """Two equal halves, then 0.6, 0.2 and 0.2 in cash: 2 names and 1 / (0.75^2 + 0.25^2) = 1.6; then nothing."""
    rows, base = [[0.5, 0.5, 0, 0], [0.6, 0, 0.2, 0], [0, 0, 0, 0]], make_result([100, 103, 106, 110], names=4)
    weights = pd.DataFrame([[0.0] * 4, *rows], index=base.equity.index, columns=base.weights.columns)
    found = attribute(make_result([100, 103, 106, 110], names=4, weights=weights))
    assert found.effective_names == pytest.approx(1.8)
    assert found.least_effective_names == pytest.approx(1.6)
    assert (found.names, found.largest, found.largest_name) == (2, 0.6, "N00")
    assert found.invested == pytest.approx((1 + 0.8 + 0) / 3)
    assert found.usual_largest == pytest.approx(0.55)
    assert found.unevenness == pytest.approx((0 + 0.25) / 2)


@pytest.mark.parametrize(
    ("rows", "days"),
    [
        ([[1, 0]], 3),
        ([[1, 0], [0, 1], [1, 0]], 1),
        ([[0.5, 0.5], None, [0, 0.5]], 2.5),  # 0.5 for two closes, 0.5 for three
        ([[0.5, 0.5], [0.5, 0], [0.5, 0.5]], (3 * 0.5 + 2 * 0.5) / 1.5),
    ],
)
def test_holding_days_by_hand(rows, days):
    assert attribute(backtest(Plan(*rows), flat(4), costs=FREE)).holding_days == pytest.approx(days)


# --- how often it won ---------------------------------------------------------------------------------------------


def test_hit_rates_leave_days_out_on_which_nothing_moved():
    """Up, nothing, down, up, up: three of four. Against a flat equal weight the same."""
    curve = [100, 101, 101, 100, 102, 103]
    still = pd.Series(100.0, make_result(curve).equity.index)
    found = attribute(make_result(curve, equal_weight_equity=still))
    assert (found.rising_days, found.winning_days) == (0.75, 0.75)
    same = attribute(make_result([100, 101, 102], equal_weight_equity=still[:3] * [1, 1.01, 1.02]))
    assert math.isnan(same.winning_days)


def test_months_and_the_worst_of_them():
    """January -10 % and +5 %, February +10 % and -20 %, March 0: the worst of the benchmark is February."""
    index = pd.DatetimeIndex(["2024-01-02", "2024-01-31", "2024-02-29", "2024-03-15"])
    curves = {
        "equity": [100, 90, 99, 99.0],
        "benchmark_equity": [100, 105, 84, 84.0],
        "equal_weight_equity": [100, 95, 95, 104.5],
    }
    base = make_result([100, 90, 99, 99])
    dated = {"weights": base.weights.set_axis(index, axis=0), "turnover": base.turnover.set_axis(index[1:])}
    found = attribute(replace(base, **dated, **{name: pd.Series(curve, index) for name, curve in curves.items()}))
    assert found.worst_months == (
        Month("2024-02", pytest.approx(-0.2), pytest.approx(0.1), pytest.approx(0)),
        Month("2024-03", pytest.approx(0), pytest.approx(0), pytest.approx(0.1)),
        Month("2024-01", pytest.approx(0.05), pytest.approx(-0.1), pytest.approx(-0.05)),
    )
    assert (found.rising_months, found.winning_months) == (0.5, pytest.approx(1 / 3))
    assert len(attribute(make_result(days=504)).worst_months) == 5


# --- whatever the result ------------------------------------------------------------------------------------------


def undefined(found):
    return {name for name, value in asdict(found).items() if isinstance(value, float) and math.isnan(value)}


def test_without_a_benchmark_the_worst_months_are_those_of_equal_weight():
    market = random_market(60, gaps=0, benchmark=np.full(60, NAN))
    found = attribute(backtest(load_strategy("equal-weight"), market))
    assert undefined(found) == {"beta", "explained", "winning_days", "winning_months"}
    lowest = [month.equal_weight for month in found.worst_months]
    assert (len(lowest), lowest) == (3, sorted(lowest))


def test_e05_one_day_and_six_flat_days():
    found = attribute(backtest(load_strategy("equal-weight"), random_market(2, gaps=0)))
    assert undefined(found) == {"beta", "explained", "equal_weight_beta", "equal_weight_explained", "winning_days",
                                "winning_months"}  # fmt: skip
    assert json.loads(to_json(found.to_dict()))["beta"] is None
    found = attribute(backtest(load_strategy("equal-weight"), flat(7), costs=FREE))
    assert {"rising_days", "gaining_names", "explained"} <= undefined(found)
    assert found.contributions.to_dict() == {"A": 0, "B": 0}
    assert found.effective_names == pytest.approx(2)


def test_an_account_that_never_traded():
    found = attribute(backtest(Plan(), two_names()))
    assert found.contributions.empty
    assert (found.invested, found.largest, found.largest_name, found.yearly_turnover) == (0, 0, "", 0)
    assert {"names", "effective_names", "usual_largest", "unevenness", "holding_days"} <= undefined(found)
    assert found.alarms == (ResultWarning("never_traded"),)


def test_a14_ruin():
    """All is lost with the delisting: the name takes the whole account with it, and days after that count for nothing."""
    close = np.array([[10.0, 5], [10, 5], [10, 5], [NAN, 5], [NAN, 5], [NAN, 5]])
    market = make_market(close, open=close)
    found = attribute(backtest(Plan([1, 0]), market, costs=FREE, cash=1000, delisting_return=-1.0))
    assert found.contributions.to_dict() == {"A": -1000}
    assert (found.invested, found.effective_names, found.rising_days) == (1, 1, 0)
    assert attribute(make_result([100, 110, 0, 0, 0])).rising_days == 0.5
    assert flags(make_result([100, 0, 0])) == ()


def test_intraday_counts_days_and_keeps_every_trade():
    days = pd.bdate_range("2024-01-01", periods=30)
    dates = np.concatenate([day + pd.timedelta_range("9h30min", periods=6, freq="10min") for day in days])
    close = 50 * np.cumprod(1 + np.random.default_rng(0).normal(0, 0.002, (len(dates), 3)), axis=0)
    market = MarketData(dates=dates, tickers=("A", "B", "C"), close=close, open=np.vstack([close[:1], close[:-1]]),
                        benchmark_close=close.mean(axis=1))  # fmt: skip
    result = backtest(load_strategy("buy-and-hold"), market)
    found = attribute(result)
    assert found.contributions.sum() == pytest.approx(result.equity.iloc[-1] - result.equity.iloc[0], rel=1e-9)
    assert found.holding_days == pytest.approx(179 / 6, rel=0.01)
    assert found.beta == pytest.approx(1, abs=0.05)
    assert {month.month for month in found.worst_months} == {"2024-01", "2024-02"}


def test_a_saved_result_is_attributed_alike_and_goes_to_json_whole(tmp_path):
    result = backtest(load_strategy("equal-weight"), random_market(80, 5))
    again = load_result(result.save(tmp_path / "run"))
    assert to_json(attribute(again).to_dict()) == to_json(attribute(result).to_dict())
    content = json.loads(to_json(attribute(trained(252)).to_dict()))
    assert set(content) == {field.name for field in fields(Attribution)}
    assert set(content["worst_months"][0]) == {"month", "benchmark", "strategy", "equal_weight"}


# --- flags ----------------------------------------------------------------------------------------------------------


@Rule
def fidgeting(view):
    """Buys equal parts, then trades 0.4 % to and fro every session, around what it holds."""
    if view.step == 0:
        return np.full(len(view.tickers), 0.8 / len(view.tickers))
    nudge = np.zeros(len(view.tickers))
    nudge[:2] = 0.004 * (-1) ** view.step * np.array([1, -1])
    return (view.held + nudge).clip(min=0)


@Rule
def untrained(view):
    """What a tilt is before it has learned anything."""
    tilt = np.exp(0.01 * np.random.default_rng(view.step).normal(size=6))
    return equal_parts(view.member & view.tradable) * tilt / tilt.sum() * 6


@Rule
def timing(view):
    return np.full(6, 1 / 6) * (0.9 if view.step % 40 < 20 else 0.3)


def drifting(*, leaves=False):
    """120 sessions of six names that drift apart; each opens where it closed."""
    close = 50 * np.cumprod(1 + np.random.default_rng(4).normal(0, 0.02, (120, 6)), axis=0)
    close[60:, 5] = NAN if leaves else close[60:, 5]
    return make_market(close, open=np.vstack([close[:1], close[:-1]]), benchmark=close[:, 0])


@pytest.fixture(scope="module")
def market():
    return drifting()


@pytest.mark.parametrize(
    ("strategy", "code", "data"),
    [
        (constant(0, 0, 0, 0, 0, 0), "never_traded", {}),
        (constant(0.01, 0.01, 0.01, 0, 0, 0), "all_cash", {"cash": 0.97}),
        (constant(0.97, 0, 0, 0, 0, 0.01), "one_asset", {"share": 0.99}),
        (Rule(lambda view: np.eye(6)[view.step % 6]), "one_asset", {"share": 1.0}),
        (load_strategy("buy-and-hold"), "one_trading_day", {}),
        (fidgeting, "untouched", {"share": 0.008, "day": "2024-01-02"}),
        (constant(*[0.8 / 6] * 6), "constant_cash", {"cash": 0.2}),
        (untrained, "closet_equal_weight", {"tracking_error": 0.003}),
    ],
)
def test_degenerate_policies_are_named_first(market, strategy, code, data):
    first = flags(backtest(strategy, market, costs=FREE))[0]
    assert first.code == code
    assert {
        key: pytest.approx(value, abs=5e-3) if isinstance(value, float) else value for key, value in data.items()
    } == first.data


@pytest.mark.parametrize(
    "strategy",
    ["equal-weight", "benchmark-hold", "momentum", constant(0.4, 0.1, 0.2, 0.1, 0.1, 0.1), timing],
)
def test_strategies_that_choose_are_left_in_peace(market, strategy):
    strategy = load_strategy(strategy)
    strategy.lookback, strategy.k = 10, 3  # of momentum
    assert flags(backtest(strategy, market, start=market.dates[12])) == ()


def test_a_buy_and_hold_is_seen_through_a_departure():
    result = backtest(fidgeting, drifting(leaves=True), costs=FREE)
    assert (result.trades["kind"] == "delisted").sum() == 1
    assert any(flag.code == "untouched" for flag in flags(result))


def test_how_far_it_stood_apart_by_hand(monkeypatch):
    """20 % sold on day 31 and bought back on day 41 at flat prices: a fifth of the account stood otherwise."""
    rows = {0: [0.5, 0.5], 30: [0.3, 0.5], 40: [0.5, 0.5]}
    result = backtest(Plan(*map(rows.get, range(60))), flat(60), costs=FREE)
    assert flags(result) == ()
    monkeypatch.setattr(module, "UNTOUCHED", 0.21)
    assert flags(result)[0] == ResultWarning("untouched", {"share": pytest.approx(0.2), "day": "2024-01-02"})


def test_the_benchmark_in_disguise():
    base = make_result(days=252)
    noise = 1 + 1e-4 * np.random.default_rng(0).normal(size=253).cumsum()
    same = make_result(base.benchmark_equity.to_numpy() * noise, benchmark_equity=base.benchmark_equity)
    figures = {"beta": same.relative.beta, "tracking_error": same.relative.tracking_error}
    assert ResultWarning("closet_benchmark", figures) in flags(same)
    none = make_result(days=100, benchmark_equity=base.benchmark_equity[:101] * NAN)
    for other in (base, none):
        assert not any(flag.code == "closet_benchmark" for flag in flags(other))


def test_a_short_history_is_not_judged_by_its_returns(market):
    assert flags(backtest(constant(*[0.8 / 6] * 6), market.rows(0, 15))) == ()
    assert flags(backtest(load_strategy("equal-weight"), market.rows(0, 2))) == ()
    assert flags(backtest(constant(0, 0, 0, 0, 0, 0), market.rows(0, 2))) == (ResultWarning("never_traded"),)


def test_what_rounding_left_of_a_position_is_no_position():
    """Ground down to 1e-309 of what it was, an account holds shares of which each seems worth more than a number holds."""
    market, random = random_market(days=1500, names=6, seed=2), np.random.default_rng(0)
    weights = random.dirichlet(np.ones(6), 1500)
    weights[random.random(weights.shape) < 0.2] = 0
    weights[random.random(weights.shape) < 0.3] = 1e-11
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1)
    result = backtest(weights, market, costs=Costs(fee_bps=8000))
    assert 0 < result.equity.iloc[-1] < 1e-290
    assert flags(result) == ()


def test_a14_ruin_is_not_all_cash():
    """Ruined in the middle: from then on there is no account that could be in cash."""
    close = np.full((60, 2), 10.0)
    close[3:, 0] = NAN
    result = backtest(constant(1, 0), make_market(close, open=close), delisting_return=-1.0, costs=FREE)
    assert result.equity.iloc[-1] == 0
    assert not any(flag.code in {"all_cash", "constant_cash"} for flag in flags(result))


@pytest.mark.parametrize(
    ("drift", "days", "limit", "figures"),
    [
        (0.004, 400, 3.0, [{"sharpe"}]),
        (0.0005, 400, 3.0, []),
        (0.004, 100, 3.0, []),  # too short to tell
        (0.02, 252, 1000.0, [{"cagr"}]),
    ],
)
def test_what_is_too_good_to_be_true_is_not_believed(monkeypatch, drift, days, limit, figures):
    monkeypatch.setattr(module, "TOO_GOOD", limit)
    random = np.random.default_rng(1)
    close = 50 * np.cumprod(1 + random.normal(drift, 0.01, (days, 1)) + random.normal(0, 0.001, (days, 4)), axis=0)
    found = flags(backtest(fidgeting, make_market(close, benchmark=10 + random.random(days))))
    assert [set(flag.data) for flag in found if flag.code == "too_good"] == figures
