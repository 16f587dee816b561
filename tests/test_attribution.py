"""Attribution by hand: who earned what, how large the bets were, how often it won, and the worst months."""

import json
import math
from dataclasses import asdict, fields, replace

import numpy as np
import pandas as pd
import pytest
from made_markets import NAN, make_market, random_market
from made_results import make_result, trained

from finpod.backtesting.engine import backtest
from finpod.backtesting.result_io import load_result
from finpod.evidence.attribution import Attribution, Month, attribute, contributions
from finpod.files import to_json
from finpod.market.data import MarketData
from finpod.records import ResultWarning
from finpod.strategy import BUILT_IN, BenchmarkHold, BuyAndHold, EqualWeight, Strategy
from finpod.trading.ledger import Costs

FREE = Costs(fee_bps=0)


class Plan(Strategy):
    """The weights of a table, one row a decision; None trades nothing."""

    def __init__(self, *rows):
        self.rows = rows

    def decide(self, view):
        row = self.rows[view.step] if view.step < len(self.rows) else None
        return None if row is None else np.array(row, dtype=float)


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
    assert contributions(result).sum() == pytest.approx(result.equity.iloc[-1] - 1000, rel=1e-12)


def test_what_was_sold_keeps_its_gain():
    """A bought at 10 and sold at 12, B bought then at 9: the hundred per half stay A's."""
    result = backtest(Plan([0.5, 0], None, [0, 0.5]), two_names(), costs=FREE, cash=1000)
    assert contributions(result).to_dict() == pytest.approx({"A": 100, "B": 0}, abs=1e-9)
    assert math.isclose(attribute(result).gaining_names, 1.0)  # B neither gained nor lost


@pytest.mark.parametrize(("lost", "worth"), [(0.0, 900), (-1.0, 500)])
def test_b08_a_name_that_leaves_contributes_what_was_left_of_it(lost, worth):
    """Cash 500 and 10 shares at 50, 45, 40, then no more: -100, or -500 if the rest is lost."""
    close = np.array([[50.0, 7], [50, 7], [45, 7], [40, 7], [NAN, 7], [NAN, 7]])
    market = make_market(close, open=close)
    result = backtest(Plan([0.5, 0]), market, costs=FREE, cash=1000, delisting_return=lost)
    assert result.equity.iloc[-1] == pytest.approx(worth)
    assert contributions(result).to_dict() == pytest.approx({"A": worth - 1000})


@pytest.mark.parametrize("fill", ["open", "close"])
@pytest.mark.parametrize("name", ["equal-weight", "buy-and-hold", "benchmark-hold"])
def test_contributions_sum_to_the_gain_of_the_account(name, fill):
    """On ragged data with a name that leaves, with costs of all kinds."""
    market = random_market(80, 8, gaps=0.1)
    costs = Costs(fee_bps=15, slippage_bps=5, per_share=0.01)
    result = backtest(BUILT_IN[name](), market, costs=costs, fill=fill, delisting_return=-0.5)
    found = attribute(result)
    gain = result.equity.iloc[-1] - result.equity.iloc[0]
    assert found.contributions.sum() == pytest.approx(gain, rel=1e-9)
    assert found.contribution_shares.sum() == pytest.approx(result.metrics.total_return, rel=1e-9)
    assert set(found.contributions.index) == set(result.trades["ticker"])
    assert found.contributions.is_monotonic_decreasing


@pytest.mark.shared
def test_contributions_sum_on_the_nasdaq_100(shared):
    """2016 to 2020, with eight names that left the exchange while they were held."""
    from finpod import load_market

    folder = shared / "data"
    market = load_market(folder / "nasdaq100_daily.parquet", members=folder / "nasdaq100_members.csv")
    result = backtest(BuyAndHold(), market, start="2016-01-04", end="2020-05-22")
    found = attribute(result)
    assert (result.trades["kind"] == "delisted").sum() > 5
    assert found.contributions.sum() == pytest.approx(result.equity.iloc[-1] - 1e6, rel=1e-9)
    assert found.contributions.index[0] == "NVDA"
    assert found.worst_months[0].month == "2018-12"
    assert found.explained > 0.85
    assert 60 < found.effective_names < 101


# --- the market ---------------------------------------------------------------------------------------------------


def test_exposure_to_the_market_by_hand():
    """Half the account in a name that is the benchmark: beta near a half, and all of the variance explained."""
    price = 100 * np.cumprod(1 + np.random.default_rng(0).normal(0, 0.01, 60))
    market = make_market(np.column_stack([price, np.full(60, 10.0)]), benchmark=price)

    class Half(Strategy):
        def decide(self, view):
            return np.array([0.5, 0.0])

    found = attribute(backtest(Half(), market, costs=FREE))
    assert found.beta == pytest.approx(0.5, abs=0.01)
    assert found.explained == pytest.approx(1, abs=0.05)
    assert found.equal_weight_beta == pytest.approx(1, abs=0.02)
    assert found.invested == pytest.approx(0.5, abs=0.02)


def test_a22_the_benchmark_held_has_a_beta_of_one():
    market = random_market(40, gaps=0)
    found = attribute(backtest(BenchmarkHold(), market, start=market.dates[1], fill="close", costs=FREE))
    assert found.beta == pytest.approx(1, abs=1e-12)
    assert found.explained == pytest.approx(1, abs=1e-12)


def test_explained_is_the_squared_correlation():
    result = make_result(days=300)
    own, other = (curve.pct_change().dropna() for curve in (result.equity, result.benchmark_equity))
    assert attribute(result).explained == pytest.approx(own.corr(other) ** 2)
    own, other = (curve.pct_change().dropna() for curve in (result.equity, result.equal_weight_equity))
    assert attribute(result).equal_weight_explained == pytest.approx(own.corr(other) ** 2)


# --- size of the bets ---------------------------------------------------------------------------------------------


def weighed(*rows, names=4, **changes):
    """A result whose closes after the first have these weights."""
    result = make_result(np.linspace(100, 110, len(rows) + 1), names=names)
    table = pd.DataFrame([[0.0] * names, *rows], index=result.equity.index, columns=result.weights.columns)
    return make_result(np.linspace(100, 110, len(rows) + 1), names=names, weights=table, **changes)


def test_size_of_bets_by_hand():
    """Two equal halves, then 0.6, 0.2 and 0.2 in cash: 2 names and 1 / (0.75^2 + 0.25^2) = 1.6; then nothing."""
    found = attribute(weighed([0.5, 0.5, 0, 0], [0.6, 0, 0.2, 0], [0, 0, 0, 0]))
    assert found.effective_names == pytest.approx(1.8)
    assert found.least_effective_names == pytest.approx(1.6)
    assert found.names == 2
    assert found.invested == pytest.approx((1 + 0.8 + 0) / 3)
    assert found.usual_largest == pytest.approx(0.55)
    assert (found.largest, found.largest_name) == (0.6, "N00")
    assert found.unevenness == pytest.approx((0 + 0.25) / 2)


def test_holding_days_by_hand():
    """All bought once and held through three closes; then a name a day; then half of it kept."""
    market = make_market(np.full((4, 2), 10.0), open=np.full((4, 2), 10.0))

    def days(*rows):
        return attribute(backtest(Plan(*rows), market, costs=FREE)).holding_days

    assert days([1, 0]) == pytest.approx(3)
    assert days([1, 0], [0, 1], [1, 0]) == pytest.approx(1)
    assert days([0.5, 0.5], None, [0, 0.5]) == pytest.approx(2.5)  # 0.5 for two closes, 0.5 for three
    assert days([0.5, 0.5], [0.5, 0], [0.5, 0.5]) == pytest.approx((3 * 0.5 + 2 * 0.5) / 1.5)


def test_turnover_is_that_of_the_table():
    result = make_result(days=252)
    assert attribute(result).yearly_turnover == result.table["strategy"]["yearly_turnover"]


# --- how often it won ---------------------------------------------------------------------------------------------


def test_hit_rates_leave_days_out_on_which_nothing_moved():
    """Up, nothing, down, up, up: three of four. Against a flat equal weight the same."""
    result = make_result([100, 101, 101, 100, 102, 103])
    flat = pd.Series(100.0, result.equity.index)
    found = attribute(make_result([100, 101, 101, 100, 102, 103], equal_weight_equity=flat))
    assert (found.rising_days, found.winning_days) == (0.75, 0.75)
    assert math.isnan(
        attribute(make_result([100, 101, 102], equal_weight_equity=flat[:3] * [1, 1.01, 1.02])).winning_days
    )


def test_months_and_the_worst_of_them():
    """January -10 % and +5 %, February +10 % and -20 %, March 0: the worst of the benchmark is February."""
    index = pd.DatetimeIndex(["2024-01-02", "2024-01-31", "2024-02-29", "2024-03-15"])
    curves = {
        "equity": pd.Series([100, 90, 99, 99.0], index),
        "benchmark_equity": pd.Series([100, 105, 84, 84.0], index),
        "equal_weight_equity": pd.Series([100, 95, 95, 104.5], index),
    }
    base = make_result([100, 90, 99, 99])
    weights = base.weights.set_axis(index, axis=0)
    turnover = base.turnover.set_axis(index[1:])
    found = attribute(replace(base, weights=weights, turnover=turnover, **curves))
    assert found.worst_months == (
        Month("2024-02", pytest.approx(-0.2), pytest.approx(0.1), pytest.approx(0)),
        Month("2024-03", pytest.approx(0), pytest.approx(0), pytest.approx(0.1)),
        Month("2024-01", pytest.approx(0.05), pytest.approx(-0.1), pytest.approx(-0.05)),
    )
    assert found.rising_months == 0.5
    assert found.winning_months == pytest.approx(1 / 3)


def test_no_more_than_five_months():
    found = attribute(make_result(days=504))
    lowest = [month.benchmark for month in found.worst_months]
    assert len(lowest) == 5
    assert lowest == sorted(lowest)


# --- whatever the result ------------------------------------------------------------------------------------------


def undefined(found):
    return {name for name, value in asdict(found).items() if isinstance(value, float) and math.isnan(value)}


def test_without_a_benchmark_the_worst_months_are_those_of_equal_weight():
    market = random_market(60, gaps=0, benchmark=np.full(60, NAN))
    found = attribute(backtest(EqualWeight(), market))
    assert undefined(found) == {"beta", "explained", "winning_days", "winning_months"}
    assert all(math.isnan(month.benchmark) for month in found.worst_months)
    lowest = [month.equal_weight for month in found.worst_months]
    assert lowest == sorted(lowest)
    assert len(lowest) == 3


def test_e05_one_day():
    found = attribute(backtest(EqualWeight(), random_market(2, gaps=0)))
    assert undefined(found) == {"beta", "explained", "equal_weight_beta", "equal_weight_explained", "winning_days",
                                "winning_months"}  # fmt: skip
    assert len(found.worst_months) == 1
    assert json.loads(to_json(found.to_dict()))["beta"] is None


def test_e05_six_flat_days():
    flat = np.full((7, 2), 10.0)
    found = attribute(backtest(EqualWeight(), make_market(flat, open=flat), costs=FREE))
    assert math.isnan(found.rising_days)
    assert math.isnan(found.gaining_names)
    assert math.isnan(found.explained)
    assert found.contributions.to_dict() == {"A": 0, "B": 0}
    assert found.effective_names == pytest.approx(2)


def test_an_account_that_never_traded():
    found = attribute(backtest(Plan(), two_names()))
    assert found.contributions.empty
    assert (found.invested, found.largest, found.largest_name, found.yearly_turnover) == (0, 0, "", 0)
    assert {"names", "effective_names", "usual_largest", "unevenness", "holding_days", "gaining_names"} <= undefined(
        found
    )
    assert found.alarms == (ResultWarning("never_traded"),)


def test_a14_ruin():
    """All is lost with the delisting: the name takes the whole account with it, and days after that count for nothing."""
    close = np.array([[10.0, 5], [10, 5], [10, 5], [NAN, 5], [NAN, 5], [NAN, 5]])
    market = make_market(close, open=close)
    found = attribute(backtest(Plan([1, 0]), market, costs=FREE, cash=1000, delisting_return=-1.0))
    assert found.contributions.to_dict() == {"A": -1000}
    assert (found.invested, found.effective_names, found.rising_days) == (1, 1, 0)
    assert attribute(make_result([100, 110, 0, 0, 0])).rising_days == 0.5


def test_intraday_counts_days_and_keeps_every_trade():
    days = pd.bdate_range("2024-01-01", periods=30)
    dates = np.concatenate([day + pd.timedelta_range("9h30min", periods=6, freq="10min") for day in days])
    close = 50 * np.cumprod(1 + np.random.default_rng(0).normal(0, 0.002, (len(dates), 3)), axis=0)
    market = MarketData(dates=dates, tickers=("A", "B", "C"), close=close, open=np.vstack([close[:1], close[:-1]]),
                        benchmark_close=close.mean(axis=1))  # fmt: skip
    result = backtest(BuyAndHold(), market)
    found = attribute(result)
    assert found.contributions.sum() == pytest.approx(result.equity.iloc[-1] - result.equity.iloc[0], rel=1e-9)
    assert found.holding_days == pytest.approx(179 / 6, rel=0.01)
    assert found.beta == pytest.approx(1, abs=0.05)
    assert [month.month for month in found.worst_months] == sorted(
        ["2024-01", "2024-02"], key=lambda name: {m.month: m.benchmark for m in found.worst_months}[name]
    )


def test_a_saved_result_is_attributed_alike(tmp_path):
    result = backtest(EqualWeight(), random_market(80, 5))
    again = load_result(result.save(tmp_path / "run"))
    assert to_json(attribute(again).to_dict()) == to_json(attribute(result).to_dict())


def test_it_goes_to_json_whole():
    found = attribute(trained(252))
    content = json.loads(to_json(found.to_dict()))
    assert set(content) == {field.name for field in fields(Attribution)}
    assert content["contributions"] == pytest.approx(found.contributions.to_dict())
    assert set(content["worst_months"][0]) == {"month", "benchmark", "strategy", "equal_weight"}


def test_every_field_says_what_it_is():
    import inspect

    source = inspect.getsource(Attribution)
    for field in fields(Attribution):
        after = source.split(f"    {field.name}: ", 1)[1].splitlines()[1]
        assert after.strip().startswith('"""'), field.name
