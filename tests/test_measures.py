"""Metrics against values worked by hand."""

import dataclasses
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_errors import refused

from finpod.measures import (
    Drawdown,
    drawdown_table,
    drawdowns,
    metrics,
    period_returns,
    relative,
    rolling_sharpe,
    rolling_volatility,
    simple_returns,
)

A05 = [0.01, -0.005, 0.015, 0, -0.01, 0.02]


def near(value):
    return pytest.approx(value, rel=1e-6)


UNDEFINED = dict.fromkeys(("sharpe", "sortino", "calmar"), math.nan)
BY_HAND = {
    "a01": ({"equity": [1000, 900, 950, 855, 1010]}, {"max_drawdown": -0.145, "total_return": 0.01}),
    "a03": ({"equity": [52, 55, 50.6, 57.2, 54.34]}, {"max_drawdown": -0.08, "total_return": 0.045}),
    "a05": ({"returns": A05}, {"sharpe": 6.708203932, "volatility": 0.187829710, "days": 6}),
    "a07": ({"equity": np.linspace(100, 144, 505)}, {"cagr": 0.20}),
    "a08 returns": (
        {"returns": [math.nan, 0.01, -0.02, 0.03]},
        {"total_return": 0.019494, "days": 3, "cagr": 4.061889},
    ),
    "a08 equity": ({"equity": [math.nan, 1.0, 1.01, 1.01 * 0.98, 1.01 * 0.98 * 1.03]}, {"days": 3, "cagr": 4.061889}),
    "a10": ({"returns": A05, "risk_free": 0.05}, {"sharpe": 6.448421}),
    "a11 flat": ({"equity": [1000.0] * 6}, {"total_return": 0, "volatility": 0, "max_drawdown": 0, **UNDEFINED}),
    "a11 dust": ({"returns": [0.001] * 250}, {"sharpe": math.nan}),
    "a11 dust of a curve": ({"equity": np.cumprod([1.0] + [1.001] * 250)}, {"sharpe": math.nan}),
    "a13 one": (
        {"equity": [100, 101]},
        {"total_return": 0.01, "max_drawdown": 0, "days": 1, "volatility": math.nan, **UNDEFINED},
    ),
    "a13 two": ({"equity": [100, 101, 100.5]}, {"sharpe": 3.791216, "max_drawdown": -0.004950495}),
    "a16": ({"equity": [100, 101, 103]}, {"max_drawdown": 0, "calmar": math.nan, "sharpe": 34.128451}),
    "a17": (
        {"returns": [-0.01, 0.005, -0.01]},
        {"total_return": -0.0149995, "sharpe": -9.165151390, "cagr": -0.719028752, "calmar": -47.936848},
    ),
    "a19": ({"returns": [0.03, -0.01, 0.02, -0.02]}, {"sortino": 7.099295740}),
    "a32": ({"returns": [0.5, -0.5]}, {"total_return": -0.25}),
    "a33 curve": (
        {"equity": np.linspace(1, 1.24, 127) / 2 + np.linspace(1, 1.12, 127) / 2},
        {"total_return": 0.18, "cagr": 0.3924},
    ),
    "a33 blend": ({"returns": [0.005, 0.005, 0.01]}, {"sharpe": 36.660606}),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_figures_by_hand(case):
    arguments, expected = BY_HAND[case]
    found = metrics(**arguments)
    assert {key: getattr(found, key) for key in expected} == pytest.approx(expected, rel=1e-6, abs=1e-12, nan_ok=True)


def test_a01_drawdown_starts_at_v0():
    np.testing.assert_allclose(drawdowns([1000, 900, 950, 855, 1010]), [0, -0.10, -0.05, -0.145, 0], atol=1e-12)


@pytest.mark.parametrize("empty", [{"equity": [100.0]}, {"equity": []}, {"returns": []}, {"returns": [math.nan]}])
def test_a13_no_returns_is_an_error(empty):
    refused("is too short", metrics, **empty)


@pytest.mark.parametrize("tail", [[], [0.0], [0.0, 0.0, 0.0], [5.0, -1.0]])
def test_a14_ruin(tail):
    found = metrics([100, 110, 0.0, *tail])
    assert (found.total_return, found.cagr, found.max_drawdown, found.calmar) == (-1, -1, -1, -1)
    assert math.isfinite(found.sharpe)
    by_returns = metrics(returns=[0.1, -1.0, *([0.5] * len(tail))])
    assert dataclasses.astuple(by_returns) == pytest.approx(dataclasses.astuple(found), rel=1e-12)


def test_a21_drawdown_dates():
    days = np.array([f"2024-01-{day:02}" for day in (2, 3, 4, 5, 8, 9, 10)], dtype="datetime64[D]")
    first, second = drawdown_table([100, 110, 99, 104.5, 110, 121, 115], days)
    assert first == Drawdown(days[1], days[2], days[4], near(-0.10), 3)
    assert second == Drawdown(days[5], days[6], None, near(-0.04958678), 1)
    assert drawdown_table([100, 101, 103], days[:3]) == []
    table = drawdown_table([100, 90, 100, 95, 100, 80], days[:6], top=2)  # from the first day on
    assert [(spell.depth, spell.peak) for spell in table] == [(near(-0.2), days[4]), (near(-0.1), days[0])]
    refused(r"shape \(2,\)", drawdown_table, [100, 90], days)


def test_a23_relative_figures_use_common_dates():
    equity = [100, 101, 102.01, 103.0301]
    found = relative(equity, [400, 404, math.nan, 412.08])
    assert (found.beta, found.excess) == (near(1.01), pytest.approx(0.000101, rel=1e-6))
    assert metrics(equity).days == 3
    times = pd.DatetimeIndex(["2024-01-02 10:00", "2024-01-02 15:00", "2024-01-03 10:00", "2024-01-03 15:00"])
    own, other = pd.Series(equity, times), pd.Series([400, 404, 408, 412.08], times)
    found, expected = ((own, other.drop(times[1])), (equity, [400, math.nan, 408, 412.08]))
    assert relative(*found, periods_per_year=252) == relative(*expected, periods_per_year=252)


@pytest.mark.parametrize(
    ("own_zone", "other_zone"), [(None, "America/New_York"), ("America/New_York", None), ("UTC", "America/New_York")]
)
def test_a25_time_zones_become_session_dates(own_zone, other_zone):
    days = pd.bdate_range("2024-01-02", periods=5)
    own, other = pd.Series([1, 1.1, 1.0, 1.2, 1.1], days), pd.Series([5, 5.1, 5.3, 5.0, 5.2], days)
    daily = partial(relative, periods_per_year=252)
    naive = daily(own, other)
    moved = daily(own.tz_localize(own_zone), other.tz_localize(other_zone))
    assert moved == naive
    late = daily(own.tz_localize(own_zone), other.tz_localize(other_zone).drop(days[2].tz_localize(other_zone)))
    assert late == daily(own, other.where(other.index != days[2]))


def test_a30_excess_is_the_difference_of_totals():
    equity, benchmark = [100, 104, 99.3, 101.7], [50, 50.7, 51.1, 49.9]
    assert relative(equity, benchmark).excess == metrics(equity).total_return - metrics(benchmark).total_return


def test_a_batch_equals_its_columns():
    generator = np.random.default_rng(1)
    equity = 100 * np.cumprod(1 + generator.normal(0, 0.02, (60, 4)), axis=0)
    equity[:7, 1] = np.nan
    equity[30:, 2] = 0
    benchmark = np.linspace(50, 60, 60) + generator.normal(0, 1, 60)
    whole = metrics(equity, risk_free=0.02)
    for column in range(4):
        single = metrics(equity[:, column], risk_free=0.02)
        picked = [float(np.asarray(figure)[column]) for figure in dataclasses.astuple(whole)]
        np.testing.assert_allclose(picked, dataclasses.astuple(single), rtol=1e-12)
    batch = relative(equity[:, [0, 3]], benchmark)
    alone = relative(equity[:, 3], benchmark)
    np.testing.assert_allclose([figure[1] for figure in dataclasses.astuple(batch)], dataclasses.astuple(alone))


def test_tensors_and_series_are_taken():
    torch = pytest.importorskip("torch")
    values = [100.0, 101.0, 99.0, 104.0]
    assert metrics(torch.tensor(values, dtype=torch.float64, requires_grad=True)) == metrics(values)
    series = pd.Series(values, pd.bdate_range("2024-01-02", periods=4))
    assert metrics(series, periods_per_year=252) == metrics(values)


@pytest.mark.parametrize(("arguments", "text"), [
    ({}, "either"), ({"equity": [1, 2], "returns": [0.1]}, "either"), ({"equity": [1, math.nan, 2]}, "position 1"),
    ({"returns": [0.1, math.inf]}, "position 1"), ({"equity": [0, 1, 2]}, "start above zero"),
    ({"equity": ["a", "b"]}, "a list"), ({"equity": 3.0}, "shape"),
    ({"equity": [1, 2], "risk_free": -1}, "risk_free"), ({"equity": [1, 2], "risk_free": "5%"}, "risk_free is '5%'"),
])  # fmt: skip
def test_bad_input_is_named(arguments, text):
    refused(text, metrics, **arguments)


def test_relative_refuses_unequal_lengths_and_survives_missing_benchmarks():
    refused(r"shape \(2,\).* 3 benchmark values", relative, [1, 2, 3], [1, 2])
    missing = relative([1, 2, 3], [math.nan] * 3)
    assert all(math.isnan(figure) for figure in dataclasses.astuple(missing))
    single = relative([1, 2, 3], [math.nan, 5, 6])
    assert single.excess == near(0.5 - 0.2)
    assert math.isnan(single.beta)


def test_rolling_figures_are_the_metrics_of_the_window():
    returns = np.random.default_rng(2).normal(0.001, 0.01, 40)
    sharpe, volatility = rolling_sharpe(returns, 10, risk_free=0.03), rolling_volatility(returns, 10)
    assert np.isnan(sharpe[:9]).all()
    last = metrics(returns=returns[-10:], risk_free=0.03)
    assert (sharpe[-1], volatility[-1]) == (near(last.sharpe), near(last.volatility))
    assert np.isnan(rolling_sharpe([0.001] * 20, 10)).all()
    assert np.isnan(rolling_sharpe(returns, 50)).all()


def test_period_returns_compound_to_the_total():
    days = pd.bdate_range("2019-12-31", "2021-02-10")
    equity = 100 * np.cumprod(1 + np.random.default_rng(3).normal(0, 0.01, len(days)))
    months, monthly = period_returns(equity, days, "month")
    years, yearly = period_returns(equity, days, "year")
    assert (str(months[0]), str(months[-1]), len(months)) == ("2020-01", "2021-02", 14)
    assert [str(year) for year in years] == ["2020", "2021"]
    total = metrics(equity).total_return
    assert (np.prod(1 + monthly) - 1, np.prod(1 + yearly) - 1) == (near(total), near(total))
    gap = np.where((days > "2020-03-10") & (days < "2020-05-20"), np.nan, equity)  # April has no value
    months, returns = period_returns(gap, days, "month")
    assert [str(month)[5:] for month in months[:5]] == ["01", "02", "03", "05", "06"]
    np.testing.assert_allclose(returns[3:5], [np.nan, monthly[5]])


@given(st.lists(st.floats(-0.9, 3), min_size=1, max_size=60), st.floats(0.01, 1e9))
def test_scale_changes_nothing_and_nothing_is_infinite(returns, scale):
    equity = scale * np.cumprod(np.concatenate([[1], 1 + np.array(returns)]))
    found, unscaled = metrics(equity), metrics(returns=returns)
    assert not any(math.isinf(figure) for figure in dataclasses.astuple(found))
    assert found.max_drawdown == pytest.approx(unscaled.max_drawdown, abs=1e-9)
    assert -1 <= found.max_drawdown <= 0
    assert found.total_return == pytest.approx(unscaled.total_return, rel=1e-6, abs=1e-9)


def test_b23_a_curve_with_falling_dates_is_refused():
    newest_first = pd.Series([96.8, 88.0, 80.0], index=pd.date_range("2024-01-04", periods=3, freq="-1D"))
    refused("2024-01-04 is followed by 2024-01-03", metrics, newest_first)


@pytest.mark.parametrize(("equity", "returns"), [
    ([100, 110, 99], [0.1, -0.1]), ([100, 0, 50], [-1, 0]), ([100, -20, 50, 60], [-1, 0, 0]),
    ([np.nan, 100, 110], [np.nan, 0.1]), ([100, np.nan, 110], [np.nan, np.nan]),
    ([[100, 50], [110, 0], [99, 10]], [[0.1, -1], [-0.1, 0]]), ([100], []),
])  # fmt: skip
def test_simple_returns(equity, returns):
    np.testing.assert_allclose(simple_returns(equity), returns, rtol=1e-15, atol=1e-15)


def test_simple_returns_of_a_series_or_frame_are_dated_by_their_second_value():
    curve = pd.Series([100, 110, 99], pd.bdate_range("2024-01-02", periods=3), name="equity")
    pd.testing.assert_series_equal(simple_returns(curve), pd.Series([0.1, -0.1], curve.index[1:], name="equity"))
    frame = pd.DataFrame({"a": curve, "b": curve[::-1].to_numpy()})
    expected = pd.DataFrame({"a": [0.1, -0.1], "b": [1 / 9, -1 / 11]}, curve.index[1:])
    pd.testing.assert_frame_equal(simple_returns(frame), expected)
