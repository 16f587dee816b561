"""Several bars a session: annualisation, departures by session, windows, and charts with one point a session."""

import numpy as np
import pandas as pd
import pytest

from finpod.backtester import backtest
from finpod.errors import InputError
from finpod.market.data import MarketData
from finpod.market.tape import build_tape
from finpod.report import render
from finpod.strategy import EqualWeight

BARS = 6


def minutes(sessions=30, names=3, seed=0, **changes):
    """`BARS` bars of ten minutes a session from 09:30, without overnight jumps of their own."""
    days = pd.bdate_range("2024-01-01", periods=sessions)
    dates = np.concatenate(
        [(day + pd.Timedelta("9h30min") + pd.timedelta_range("0min", periods=BARS, freq="10min")) for day in days]
    )
    close = 50 * np.cumprod(1 + np.random.default_rng(seed).normal(0, 0.002, (len(dates), names)), axis=0)
    content = {
        "dates": dates,
        "tickers": tuple("ABC"[:names]),
        "close": close,
        "open": np.vstack([close[:1], close[:-1]]),
        "benchmark_close": close.mean(axis=1),
        "manifest": {"membership": "made"},
    }
    return MarketData(**{**content, **changes})


def test_a_year_has_252_sessions_of_bars():
    market = minutes()
    assert market.bars_per_session == BARS
    assert market.periods_per_year == 252 * BARS
    assert market.rows(0, BARS * 3).periods_per_year == 252 * BARS
    daily = minutes().rows(0, 1)
    assert daily.periods_per_year == 252


def test_yearly_figures_follow_the_bars():
    result = backtest(EqualWeight(), minutes())
    steps = result.returns.to_numpy()
    assert result.periods_per_year == 252 * BARS
    assert result.metrics.volatility == pytest.approx(steps.std(ddof=1) * np.sqrt(252 * BARS), rel=1e-12)
    assert not result.is_short
    assert backtest(EqualWeight(), minutes(sessions=5)).is_short


def test_a_gap_late_in_a_day_is_not_the_end_of_a_name():
    market = minutes()
    close = market.close.copy()
    close[-2:, 1] = np.nan  # its last two bars of the last session are missing
    assert not build_tape(minutes(close=close)).delisted.any()
    close[-BARS:, 1] = np.nan  # a whole session is missing
    gone = build_tape(minutes(close=close)).delisted
    assert gone.sum() == 1
    assert gone[-BARS, 1]


def test_a_window_on_the_last_day_of_training_is_refused():
    class Trained(EqualWeight):
        trained_until = "2024-01-10"

    with pytest.raises(InputError, match="trained or chosen on days up to 2024-01-10"):
        backtest(Trained(), minutes(), start="2024-01-10")
    assert backtest(Trained(), minutes(), start="2024-01-11").equity.index[0] == pd.Timestamp("2024-01-11 09:30")


def test_a_window_takes_whole_sessions():
    market = minutes()
    first, last = market.window("2024-01-03", "2024-01-04")
    assert (first, last) == (2 * BARS, 4 * BARS - 1)


def test_the_report_draws_one_point_a_session():
    result = backtest(EqualWeight(), minutes(sessions=60))
    drawn = result.by_session()
    assert len(drawn.equity) == 60
    assert drawn.equity.iloc[-1] == result.equity.iloc[-1]
    assert drawn.turnover.sum() == pytest.approx(result.turnover.sum())
    assert drawn.periods_per_year == 252
    assert backtest(EqualWeight(), minutes(sessions=60).rows(0, 1 + BARS)).by_session() is not None
    assert len(render(result)) < 1_000_000
