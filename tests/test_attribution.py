"""Attribution against hand-worked values (contributions, size of bets, hit rates), and flags of degenerate policies."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from made_markets import NAN, flat_market, intraday_market, make_market, random_market
from made_results import make_result
from made_strategies import constant, does, plan

import finpod.evidence.attribution as module
from finpod import Costs, load_strategy
from finpod.backtesting.engine import backtest
from finpod.evidence.attribution import contributions, flags
from finpod.files import to_json
from finpod.records import ResultWarning
from finpod.strategy import equal_parts

pytestmark = pytest.mark.usefixtures("unaudited")
FREE = Costs(fee_bps=0)


def attribute(result):
    """The attribution, with its figures as attributes."""
    return SimpleNamespace(**module.attribute(result))


def two_names():
    """A rises from 10 to 12 and B falls from 10 to 9, on the third of four sessions; fills at the opens before that."""
    close = np.array([[10.0, 10], [10, 10], [12, 9], [12, 9]])
    return make_market(close, open=np.vstack([close[:1], close[:-1]]))


@pytest.mark.parametrize(("rows", "fee", "gains", "gaining"), [
    ([[0.5, 0.5]], 0, {"A": 100, "B": -50}, 0.5),  # 50 shares of each at 10
    ([[0.5, 0.5]], 100, {"A": (0.2 - 0.01) * 500 / 1.01, "B": -0.11 * 500 / 1.01}, 0.5),  # 1 % of each purchase
    ([[0.5, 0], None, [0, 0.5]], 0, {"A": 100, "B": 0}, 1.0),  # A sold at 12 for B, which neither gains nor loses
])  # fmt: skip
def test_contributions_by_hand(rows, fee, gains, gaining):
    found = attribute(backtest(plan(*rows), two_names(), costs=Costs(fee_bps=fee), cash=1000))
    assert found.contributions == pytest.approx(gains, abs=1e-9)
    assert list(found.contributions) == ["A", "B"]
    assert found.gaining_names == gaining


def test_contributions_sum_to_the_gain(fill):
    terms = {"costs": Costs(fee_bps=15, slippage_bps=5, per_share=0.01), "fill": fill, "delisting_return": -0.5}
    result = backtest(load_strategy("equal-weight"), random_market(80, 8, gaps=0.1), **terms)
    found = contributions(result)
    assert found.sum() == pytest.approx(result.equity.iloc[-1] - result.equity.iloc[0], rel=1e-9)
    assert set(found.index) == set(result.trades["ticker"])
    assert found.is_monotonic_decreasing


def test_size_of_bets_by_hand():
    """Two equal halves, then 0.6, 0.2 and 0.2 in cash: 2 names and 1 / (0.75^2 + 0.25^2) = 1.6; then nothing."""
    rows, base = [[0.5, 0.5, 0, 0], [0.6, 0, 0.2, 0], [0, 0, 0, 0]], make_result([100, 103, 106, 110], names=4)
    weights = pd.DataFrame([[0.0] * 4, *rows], index=base.equity.index, columns=base.weights.columns)
    found = attribute(replace(base, weights=weights))
    assert found.effective_names == pytest.approx(1.8)
    assert (found.names, found.largest, found.largest_name) == (2, 0.6, "N00")
    assert found.invested == pytest.approx((1 + 0.8 + 0) / 3)


@pytest.mark.parametrize(("rows", "days"), [
    ([[1, 0], [0, 1], [1, 0]], 1),
    ([[0.5, 0.5], None, [0, 0.5]], 2.5),  # 0.5 for two closes, 0.5 for three
    ([[0.5, 0.5], [0.5, 0], [0.5, 0.5]], (3 * 0.5 + 2 * 0.5) / 1.5),
])  # fmt: skip
def test_holding_days_by_hand(rows, days):
    assert attribute(backtest(plan(*rows), flat_market(10, 10), costs=FREE)).holding_days == pytest.approx(days)


def test_holding_days_of_an_intraday_result_are_sessions():
    result = backtest(load_strategy("buy-and-hold"), intraday_market())
    assert attribute(result).holding_days == pytest.approx(119 / 4, rel=0.01)


def test_hit_rates_leave_days_out_on_which_nothing_moved():
    """Up, nothing, down, up, up: three of four. Against a flat equal weight the same."""
    curve = [100, 101, 101, 100, 102, 103]
    still = pd.Series(100.0, make_result(curve).equity.index)
    found = attribute(make_result(curve, equal_weight_equity=still))
    assert (found.rising_days, found.winning_days) == (0.75, 0.75)
    result = make_result(days=300)
    steps = result.benchmark_equity.pct_change()
    assert attribute(result).explained == pytest.approx(result.equity.pct_change().corr(steps) ** 2)


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
    months = pd.DataFrame(found.worst_months).set_index("month")[["benchmark", "strategy", "equal_weight"]]
    assert list(months.index) == ["2024-02", "2024-03", "2024-01"]
    np.testing.assert_allclose(months, [[-0.2, 0.1, 0], [0, 0, 0.1], [0.05, -0.1, -0.05]], atol=1e-12)
    assert (found.rising_months, found.winning_months) == (0.5, pytest.approx(1 / 3))
    curves["benchmark_equity"] = [100, 105, np.nan, 84.0]  # March starts from January's close
    found = attribute(replace(base, **dated, **{name: pd.Series(curve, index) for name, curve in curves.items()}))
    assert [month["month"] for month in found.worst_months] == ["2024-01"]
    assert len(attribute(make_result(days=504)).worst_months) == 5


def undefined(found):
    return {name for name, value in vars(found).items() if isinstance(value, float) and math.isnan(value)}


def test_e05_what_has_no_figure_is_undefined():
    """Two closes; six flat days; no benchmark, when the worst months are those of equal weight; and no trade."""
    found = attribute(backtest(load_strategy("equal-weight"), random_market(2, gaps=0)))
    betas = {"beta", "explained", "equal_weight_beta", "equal_weight_explained"}
    assert undefined(found) == {*betas, "winning_days", "winning_months"}
    assert json.loads(to_json(vars(found)))["beta"] is None
    found = attribute(backtest(load_strategy("equal-weight"), flat_market(10, 10, days=7), costs=FREE))
    assert {"rising_days", "gaining_names", "explained"} <= undefined(found)
    found = attribute(backtest(load_strategy("equal-weight"), random_market(60, gaps=0, benchmark=np.full(60, NAN))))
    assert undefined(found) == {"beta", "explained", "winning_days", "winning_months"}
    lowest = [month["equal_weight"] for month in found.worst_months]
    assert (len(lowest), lowest) == (3, sorted(lowest))
    found = attribute(backtest(plan(), two_names()))
    assert found.contributions == {}
    assert (found.invested, found.largest, found.largest_name, found.yearly_turnover) == (0, 0, "", 0)
    assert {"names", "effective_names", "holding_days"} <= undefined(found)


def test_a14_ruin():
    """All is lost with the delisting: the name takes the whole account with it, and days after that count for nothing."""
    close = np.full((60, 2), 10.0)
    close[3:, 0] = NAN
    market = make_market(close, open=close)
    found = attribute(backtest(plan([1, 0]), market, costs=FREE, cash=1000, delisting_return=-1.0))
    assert found.contributions == {"A": -1000}
    assert (found.invested, found.effective_names, found.rising_days) == (1, 1, 0)
    assert not {"all_cash", "constant_cash"} & {flag["code"] for flag in found.alarms}
    assert attribute(make_result([100, 110, 0, 0, 0])).rising_days == 0.5
    assert flags(make_result([100, 0, 0])) == ()


@does
def untrained(view):
    """What a tilt is before it has learned anything."""
    tilt = np.exp(0.01 * np.random.default_rng(view.step).normal(size=6))
    return equal_parts(view.member & view.tradable) * tilt / tilt.sum() * 6


@does
def timing(view):
    return np.full(6, 1 / 6) * (0.9 if view.step % 40 < 20 else 0.3)


@pytest.fixture(scope="module")
def market():
    """120 sessions of six names that drift apart; each opens where it closed."""
    close = 50 * np.cumprod(1 + np.random.default_rng(4).normal(0, 0.02, (120, 6)), axis=0)
    return make_market(close, open=np.vstack([close[:1], close[:-1]]), benchmark=close[:, 0])


@pytest.mark.parametrize(("strategy", "code", "data"), [
    (constant(0, 0, 0, 0, 0, 0), "never_traded", {}),
    (constant(0.01, 0.01, 0.01, 0, 0, 0), "all_cash", {"cash": 0.97}),
    (constant(0.97, 0, 0, 0, 0, 0.01), "one_asset", {"share": 0.99}),
    (load_strategy("buy-and-hold"), "one_trading_day", {}),
    (constant(*[0.8 / 6] * 6), "constant_cash", {"cash": 0.2}),
    (untrained, "closet_equal_weight", {"tracking_error": 0.003}),
])  # fmt: skip
def test_degenerate_policies_are_named_first(market, strategy, code, data):
    first = flags(backtest(strategy, market, costs=FREE))[0]
    assert (first.code, first.data) == (
        code,
        {key: value if isinstance(value, str) else pytest.approx(value, abs=5e-3) for key, value in data.items()},
    )


@pytest.mark.parametrize("strategy", ["equal-weight", "benchmark-hold", "momentum", timing])
def test_strategies_that_choose_are_left_in_peace(market, strategy):
    strategy = load_strategy(strategy)
    strategy.lookback, strategy.k = 10, 3  # of momentum
    assert flags(backtest(strategy, market, start=market.dates[12])) == ()


def test_how_far_it_stood_apart_by_hand(monkeypatch):
    """20 % sold on day 31 and bought back on day 41 at flat prices: a fifth of the account stood otherwise."""
    rows = {0: [0.5, 0.5], 30: [0.3, 0.5], 40: [0.5, 0.5]}
    result = backtest(plan(*map(rows.get, range(60))), flat_market(10, 10, days=60), costs=FREE)
    assert flags(result) == ()
    monkeypatch.setattr(module, "UNTOUCHED", 0.21)
    assert flags(result)[0] == ResultWarning("untouched", {"share": pytest.approx(0.2), "day": "2024-01-02"})


def test_a_short_history_is_not_judged_by_its_returns(market):
    assert flags(backtest(constant(*[0.8 / 6] * 6), market.rows(0, 15))) == ()
    assert flags(backtest(constant(0, 0, 0, 0, 0, 0), market.rows(0, 2))) == (ResultWarning("never_traded"),)
    base = make_result(days=252)
    noise = 1 + 1e-4 * np.random.default_rng(0).normal(size=253).cumsum()
    same = make_result(base.benchmark_equity.to_numpy() * noise, benchmark_equity=base.benchmark_equity)
    assert "closet_benchmark" in {flag.code for flag in flags(same)}
    assert "closet_benchmark" not in {flag.code for flag in flags(base)}


def test_what_is_too_good_to_be_true_is_not_believed(monkeypatch):
    random = np.random.default_rng(1)

    def codes(drift, days):
        close = 50 * np.cumprod(1 + random.normal(drift, 0.01, (days, 1)) + random.normal(0, 0.001, (days, 4)), axis=0)
        market = make_market(close, benchmark=10 + random.random(days))
        found = flags(backtest(constant(0.1, 0.2, 0.3, 0.4), market))
        return [[*flag.data] for flag in found if flag.code == "too_good"]

    assert (codes(0.004, 400), codes(0.004, 100)) == ([["sharpe"]], [])  # the second is too short to tell
    monkeypatch.setattr(module, "TOO_GOOD", 1000.0)
    assert codes(0.02, 252) == [["cagr"]]
