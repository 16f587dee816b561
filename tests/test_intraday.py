"""Several bars per session: annualisation, departures by session, windows, and charts with one point a session."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_bars import repairs, suspicions
from made_errors import refused
from made_markets import intraday_market
from made_strategies import constant

from finpod import DataError, load_market
from finpod.backtesting.engine import backtest
from finpod.features.panel import build_panel, compute
from finpod.lookahead.perturbation import with_noise_after
from finpod.rules import EqualWeight
from finpod.trading.execution import build_execution
from finpod.training import train

BARS = 6


def test_a_gap_late_in_a_day_is_not_the_end_of_a_name():
    market = intraday_market(30, BARS)
    close = market.close.copy()
    close[-2:, 1] = np.nan  # its last two bars of the last session are missing
    assert not build_execution(replace(market, close=close, last_bar=None)).delisted.any()
    close[-BARS:, 1] = np.nan  # a whole session is missing
    assert build_execution(replace(market, close=close, last_bar=None)).delisted.nonzero().tolist() == [[29 * BARS, 1]]


def test_a_window_on_the_last_day_of_training_is_refused():
    market, trained = intraday_market(30, BARS), constant(1, 0, 0, trained_until="2024-01-10")
    refused("trained or selected on days up to 2024-01-10", backtest, trained, market, start="2024-01-10")
    assert backtest(trained, market, start="2024-01-11").equity.index[0] == pd.Timestamp("2024-01-11 09:30")


def test_sessions_begin_at_the_first_bar():
    """V_0 is the first bar of the first session, dated the weekday before it: Friday, for a Monday."""
    result = backtest(EqualWeight(), intraday_market(30, BARS), start="2024-01-08")
    curves = {"variants": {"seed 1": result.equity}, "agents": {"a": result.equity}, "baselines": {"b": result.equity}}
    result = replace(result, fan=result.equity.to_frame("random 1"), **curves)
    drawn = result.by_session()
    assert drawn.equity.index[0] == pd.Timestamp("2024-01-05")
    assert drawn.equity.index.is_unique
    assert drawn.equity.index.is_monotonic_increasing
    for name in ("metrics", "benchmark_metrics", "equal_weight_metrics"):
        assert getattr(drawn, name).total_return == pytest.approx(getattr(result, name).total_return, rel=1e-12)
        assert getattr(drawn, name).days == 25
    assert drawn.weights.iloc[0].sum() == 0
    for one in (drawn.weights, drawn.fan, *(getattr(drawn, name)[label] for name in curves for label in curves[name])):
        assert list(one.index) == list(drawn.equity.index)


def test_a_benchmark_that_comes_late_in_the_first_session_counts_from_its_first_bar():
    market = intraday_market(30, BARS)
    late = np.where(np.arange(30 * BARS) < 2, np.nan, market.benchmark_close)
    result = backtest(EqualWeight(), replace(market, benchmark_close=late))
    drawn = result.by_session()
    assert drawn.benchmark_equity.iloc[0] == result.benchmark_equity.iloc[2]
    assert drawn.benchmark_metrics.total_return == pytest.approx(result.benchmark_metrics.total_return, rel=1e-12)


def test_intraday_files_keep_their_times(tmp_path):
    market = intraday_market(12, BARS)
    table = {"timestamp": market.dates, "ticker": "A", "open": market.open[:, 0], "close": market.close[:, 0]}
    pd.DataFrame(table).to_csv(tmp_path / "bars.csv", index=False)
    loaded = load_market(tmp_path / "bars.csv", benchmark=None)
    kept = ~np.isin(market.sessions, pd.to_datetime(["2024-01-01", "2024-01-15"]).to_numpy().astype("datetime64[D]"))
    np.testing.assert_array_equal(loaded.dates, market.dates[kept])
    np.testing.assert_allclose(loaded.close, market.close[kept, :1])
    assert loaded.manifest["reading"] == ["intraday bars with New York times"]
    assert repairs(loaded) == {"rows dropped, not a session": 2 * BARS}


@pytest.mark.parametrize(("calendar", "zone"), [
    ("XTKS", "Asia/Tokyo"), ("XHKG", "Asia/Hong_Kong"), (None, "Etc/UTC"),
])  # fmt: skip
def test_times_with_an_offset_become_those_of_the_exchange(calendar, zone):
    local = pd.DatetimeIndex([f"2024-01-{day}T{hour}:30" for day in ("09", "10") for hour in (10, 11, 13, 14)])
    aware = local.tz_localize(zone)
    bars = pd.DataFrame({"date": aware.tz_convert("UTC").map(str), "ticker": "A", "close": np.arange(1.0, 9.0)})
    market = load_market(bars, benchmark=None, calendar=calendar)
    np.testing.assert_array_equal(market.dates, local)
    assert market.manifest["reading"] == [f"intraday bars with {zone.split('/')[1].replace('_', ' ')} times"]
    result = backtest(pd.DataFrame(1.0, aware, ["A"]), market)
    assert result.equity.equals(backtest(np.ones(market.shape), market).equity)


def test_an_event_that_each_bar_of_its_session_repeats_counts_once():
    """Daily dividends and splits that were joined to intraday bars by their day."""
    whole = intraday_market(12, BARS)
    bars = pd.DataFrame({"date": whole.dates, "ticker": "A", "close": np.linspace(100, 101, len(whole.dates)).round(2)})
    on_day = whole.sessions == whole.sessions[BARS * 6]
    first = on_day & (np.arange(len(bars)) == BARS * 6)
    for event, size in (("dividend", 2.0), ("split", 0.5)):
        once, often = (
            load_market(bars.assign(**{event: np.where(rows, size, 0.0)}), benchmark=None) for rows in (first, on_day)
        )
        np.testing.assert_array_equal(often.close, once.close)
    assert load_market(bars.assign(dividend=first * 2.0), benchmark=None).close[0, 0] == pytest.approx(98, abs=0.2)


def test_bars_outside_the_hours_of_a_session_are_dropped_and_counted():
    """The day after Thanksgiving 2018 closed at 13:00."""
    times = ("09:00", "09:30", "12:59", "13:00", "13:01", "15:59")
    stamps = [f"2018-11-{day}T{time}" for day in (21, 23) for time in times]
    frame = pd.DataFrame({"date": pd.DatetimeIndex(stamps), "ticker": "A", "close": np.arange(1.0, 13.0)})
    market = load_market(frame, benchmark=None)
    assert [f"{day!s:.16}" for day in market.dates] == stamps[1:6] + stamps[7:10]
    assert repairs(market) == {"rows dropped, outside the hours of their session": 4}


def test_intraday_times_of_another_clock_are_refused():
    frame = pd.DataFrame({"date": intraday_market(8, 7).dates, "ticker": "A", "close": 5.0})  # from 09:30 to 15:30
    assert len(load_market(frame, benchmark=None).dates) > 0
    for hours, first in ((5, "2024-01-02T16:30"), (-1, "2024-01-02T08:30")):  # of London and of Chicago
        moved = frame.assign(date=frame["date"] + pd.Timedelta(hours=hours))
        refused(first, load_market, moved, benchmark=None, error=DataError)


def test_a_late_gap_or_a_missing_session_is_told_by_sessions():
    dates = np.repeat(intraday_market(5, BARS).dates[BARS:], 2)
    frame = pd.DataFrame({"date": dates, "ticker": ["A", "B"] * (4 * BARS), "close": 5.0})
    missing = (frame["date"].dt.normalize() == "2024-01-03") | (frame["date"] >= "2024-01-05 14:00")
    market = load_market(frame[~missing | (frame["ticker"] == "A")], benchmark=None)
    assert suspicions(market) == {"sessions without a bar": [("B", "2024-01-03")]}


def test_minute_bars_run_from_the_file_to_the_backtest(shared, tmp_path):
    data = shared / "data"
    market = load_market(data / "nasdaq100_minute_2018.parquet", benchmark=None, members=data / "nasdaq100_members.csv")
    assert market.shape == (44 * 391, 56)
    assert (market.bars_per_session, market.periods_per_year) == (391, 252 * 391)
    nights = np.flatnonzero(np.diff(market.sessions) > np.timedelta64(0))
    assert np.nanstd(market.open[nights + 1, 0] / market.close[nights, 0] - 1) > 0.002  # more than minutes move prices
    few = market.select(market.tickers[:8]).rows(0, 391 * 8)
    small = {"agents": 1, "rounds": 1, "keep": 1, "steps": 1, "num_envs": 32, "hold": 30, "device": "cpu"}
    windows = {"train": ("2018-02-20", "2018-02-23"), "validation": ("2018-02-26", "2018-02-26")}
    features = ["return_5", "volatility_21"]
    ensemble = train("stocks", market=few, out=tmp_path / "minute", features=features, **windows, **small)
    result = backtest(ensemble, few, start="2018-02-27", end="2018-02-28")
    assert len(result.returns) == 2 * 391 - 1
    assert result.equity.notna().all()
    assert result.turnover[result.turnover > 0].size <= 2 * 391 / 30 + 1
    assert any(warning.code == "no_benchmark" for warning in result.warnings)


def test_equal_weight_is_restored_once_a_session_and_not_at_every_bar():
    result = backtest(EqualWeight(), intraday_market(12, BARS))
    assert (result.turnover > 0).sum() == 12
    np.testing.assert_array_equal(result.equity.to_numpy(), result.equal_weight_equity.to_numpy())


@settings(max_examples=8, deadline=None)
@given(row=st.integers(BARS * 45, BARS * 59), seed=st.integers(0, 99))
def test_rows_after_a_bar_change_nothing_up_to_it(row, seed):
    """Every feature of both sets, and the panel scaled on earlier rows, to the last bit, on bars within the day."""
    market = intraday_market(60, BARS)
    later = with_noise_after(market, row, seed)
    assert not np.array_equal(later.close[row + 1 :], market.close[row + 1 :])
    for features in ("default", "published"):
        whole, other = (compute(one, features) for one in (market, later))
        assert torch.equal(whole[: row + 1].nan_to_num(7.0), other[: row + 1].nan_to_num(7.0))
        assert whole[row].isfinite().any()
    whole, other = (build_panel(one, fit=(252, BARS * 45)).features for one in (market, later))
    assert torch.equal(whole[: row + 1], other[: row + 1])
