"""Policies that are none, named in one sentence each, and those that are left in peace."""

import numpy as np
import pandas as pd
import pytest
from made_markets import make_market, random_market
from made_results import make_result

import finpod.evidence.alarms as module
from finpod.backtesting.engine import backtest
from finpod.evidence.alarms import alarms
from finpod.records import ResultWarning
from finpod.strategy import BenchmarkHold, BuyAndHold, EqualWeight, Momentum, Strategy, equal_parts
from finpod.trading.ledger import Costs

FREE = Costs(fee_bps=0)


class Constant(Strategy):
    """The same weights every session."""

    def __init__(self, *weights):
        self.weights = np.array(weights, dtype=float)

    def decide(self, view):
        return self.weights


class Fidgeting(Strategy):
    """Buys equal parts, then trades a little to and fro every session, around what it holds."""

    def __init__(self, part=0.004):
        self.part = part

    def decide(self, view):
        if view.step == 0:
            return np.full(len(view.tickers), 0.8 / len(view.tickers))
        nudge = np.zeros(len(view.tickers))
        nudge[:2] = self.part * (-1) ** view.step * np.array([1, -1])
        return (view.held + nudge).clip(min=0)


@pytest.fixture(scope="module")
def market():
    """120 sessions of six names that drift apart; each opens where it closed."""
    random = np.random.default_rng(4)
    close = 50 * np.cumprod(1 + random.normal(0, 0.02, (120, 6)), axis=0)
    return make_market(close, open=np.vstack([close[:1], close[:-1]]), benchmark=close[:, 0])


def said(strategy, market, **options):
    return alarms(backtest(strategy, market, **options))


@pytest.mark.parametrize(
    ("weights", "code", "data"),
    [
        ((0, 0, 0, 0, 0, 0), "never_traded", {}),
        ((0.01, 0.01, 0.01, 0, 0, 0), "all_cash", {"cash": 0.97}),
        ((0.97, 0, 0, 0, 0, 0.01), "one_asset", {"share": 0.99}),
    ],
)
def test_degenerate_policies_are_named_first(market, weights, code, data):
    first = said(Constant(*weights), market, costs=FREE)[0]
    assert first.code == code
    assert first.data == pytest.approx(data, abs=5e-4)


def test_one_name_at_a_time_is_one_name_too(market):
    class Hopping(Strategy):
        def decide(self, view):
            return np.eye(6)[view.step % 6]

    assert said(Hopping(), market) == (ResultWarning("one_asset", {"share": pytest.approx(1.0)}),)


@pytest.mark.parametrize("kind", [EqualWeight, Momentum, lambda: Constant(0.4, 0.1, 0.2, 0.1, 0.1, 0.1)])
def test_strategies_that_choose_are_left_in_peace(market, kind):
    strategy = kind() if kind is not Momentum else Momentum(lookback=10, k=3)
    assert said(strategy, market, start=market.dates[12]) == ()


# --- buy and hold -------------------------------------------------------------------------------------------------


def test_buying_once_is_buy_and_hold(market):
    assert said(BuyAndHold(), market) == (ResultWarning("one_trading_day"),)
    assert said(EqualWeight(), market.rows(0, 2)) == ()  # one day has no second


@pytest.mark.parametrize("fill", ["open", "close"])
def test_fidgeting_around_what_is_held_is_buy_and_hold_in_disguise(market, fill):
    """Opens are where it closed, so that with open fills only the nudges are traded; 0.4 % at most stands otherwise."""
    result = backtest(Fidgeting(), market, costs=FREE, fill=fill)
    assert (result.turnover > 0).sum() > 100
    found = [
        alarm for alarm in alarms(result) if alarm.code in {"untouched", "closet_benchmark", "closet_equal_weight"}
    ]
    if fill == "open":
        assert found[0].code == "untouched"
        assert found[0].data["share"] < 0.01
        assert found[0].data["day"] == "2024-01-02"
    else:  # holding the weights of the session before is a bet against the last move, and adds up
        assert found == []


def test_it_does_so_with_departures_as_well():
    random = np.random.default_rng(4)
    close = 50 * np.cumprod(1 + random.normal(0, 0.02, (120, 6)), axis=0)
    close[60:, 5] = np.nan
    market = make_market(close, open=np.vstack([close[:1], close[:-1]]), benchmark=close[:, 0])
    result = backtest(Fidgeting(), market, costs=FREE)
    assert (result.trades["kind"] == "delisted").sum() == 1
    assert any(alarm.code == "untouched" for alarm in alarms(result))


def test_how_far_it_stood_apart_by_hand(monkeypatch):
    """20 % sold on day 31 and bought back on day 41 at flat prices: a fifth of the account stood otherwise."""
    prices = np.full((60, 2), 10.0)

    class Pausing(Strategy):
        def decide(self, view):
            return {0: np.array([0.5, 0.5]), 30: np.array([0.3, 0.5]), 40: np.array([0.5, 0.5])}.get(view.step)

    result = backtest(Pausing(), make_market(prices, open=prices), costs=FREE)
    assert alarms(result) == ()
    monkeypatch.setattr(module, "UNTOUCHED", 0.21)
    assert alarms(result)[0] == ResultWarning("untouched", {"share": pytest.approx(0.2), "day": "2024-01-02"})


def test_shares_rebuilt_from_the_log_are_those_held():
    for fill in ("open", "close"):
        market = random_market(60, 5)
        result = backtest(EqualWeight(), market, fill=fill)
        shares = np.cumsum(sum(module._traded(result)), axis=0)
        worth = result.weights.to_numpy() * result.equity.to_numpy()[:, None]
        priced = market.has_bar & (worth > 0)
        np.testing.assert_allclose((shares * market.close)[priced], worth[priced], rtol=1e-9)


# --- other people's portfolios ------------------------------------------------------------------------------------


def test_the_benchmark_held_on_purpose_is_no_alarm(market):
    assert said(BenchmarkHold(), market) == ()


def test_the_benchmark_in_disguise():
    base = make_result(days=252)
    noise = 1 + 1e-4 * np.random.default_rng(0).normal(size=253).cumsum()
    same = make_result(base.benchmark_equity.to_numpy() * noise, benchmark_equity=base.benchmark_equity)
    figures = {"beta": same.relative.beta, "tracking_error": same.relative.tracking_error}
    assert [alarm for alarm in alarms(same) if alarm.code == "closet_benchmark"] == [
        ResultWarning("closet_benchmark", figures)
    ]
    assert not any(alarm.code == "closet_benchmark" for alarm in alarms(base))


def test_equal_weight_in_disguise(market):
    class Untrained(Strategy):
        """What a tilt is before it has learned anything."""

        def decide(self, view):
            tilt = np.exp(0.01 * np.random.default_rng(view.step).normal(size=6))
            return equal_parts(view.member & view.tradable) * tilt / tilt.sum() * 6

    found = said(Untrained(), market)
    assert len(found) == 1
    assert found[0].code == "closet_equal_weight"
    assert 0 < found[0].data["tracking_error"] < 0.01
    assert said(EqualWeight(), market) == ()
    assert said(EqualWeight(), market, name="mine")[0] == ResultWarning("closet_equal_weight", {"tracking_error": 0.0})


def test_timing_that_never_switches(market):
    class Timing(Strategy):
        def decide(self, view):
            return np.full(6, 1 / 6) * (0.9 if view.step % 40 < 20 else 0.3)

    always = Constant(*[0.8 / 6] * 6)
    assert said(always, market) == (ResultWarning("constant_cash", {"cash": pytest.approx(0.2, abs=0.005)}),)
    assert said(Timing(), market) == ()


# --- whatever the result ------------------------------------------------------------------------------------------


def test_a_short_history_is_not_judged_by_its_returns(market):
    assert said(Constant(*[0.8 / 6] * 6), market.rows(0, 15)) == ()
    assert said(Constant(0, 0, 0, 0, 0, 0), market.rows(0, 2)) == (ResultWarning("never_traded"),)


def test_what_rounding_left_of_a_position_is_no_position():
    """Ground down to 1e-309 of what it was, an account holds shares of which each seems worth more than a number holds."""
    market, random = random_market(days=1500, names=6, seed=2), np.random.default_rng(0)
    weights = random.dirichlet(np.ones(6), 1500)
    weights[random.random(weights.shape) < 0.2] = 0
    weights[random.random(weights.shape) < 0.3] = 1e-11
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1)
    result = backtest(weights, market, costs=Costs(fee_bps=8000))
    assert 0 < result.equity.iloc[-1] < 1e-290
    assert alarms(result) == ()


def test_a14_ruin_is_not_all_cash():
    """Ruined in the middle: from then on there is no account that could be in cash."""
    close = np.full((60, 2), 10.0)
    close[3:, 0] = np.nan
    market = make_market(close, open=close)
    result = backtest(Constant(1, 0), market, delisting_return=-1.0, costs=FREE)
    assert result.equity.iloc[-1] == 0
    assert not any(alarm.code in {"all_cash", "constant_cash"} for alarm in alarms(result))
    assert alarms(make_result([100, 0, 0])) == ()


def test_without_a_benchmark_nothing_is_said_of_it(market):
    base = make_result(days=100)
    none = make_result(days=100, benchmark_equity=pd.Series(np.nan, base.equity.index))
    assert not any(alarm.code == "closet_benchmark" for alarm in alarms(none))


@pytest.mark.parametrize(
    ("drift", "days", "figures"),
    [
        (0.004, 400, [{"sharpe"}]),
        (0.0005, 400, []),
        (0.004, 100, []),  # too short to tell
    ],
)
def test_what_is_too_good_to_be_true_is_not_believed(drift, days, figures):
    assert [set(alarm.data) for alarm in too_good(drift, days)] == figures


def test_growth_alone_may_be_too_good(monkeypatch):
    monkeypatch.setattr(module, "TOO_GOOD", 1000.0)
    (alarm,) = too_good(0.02, 252)
    assert alarm.data["cagr"] > module.TOO_FAST


def too_good(drift, days):
    random = np.random.default_rng(1)
    close = 50 * np.cumprod(1 + random.normal(drift, 0.01, (days, 1)) + random.normal(0, 0.001, (days, 4)), axis=0)
    told = said(Fidgeting(), make_market(close, benchmark=10 + random.random(days)))
    return [one for one in told if one.code == "too_good"]
