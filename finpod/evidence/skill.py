"""Is the excess more than luck? Intervals, verdicts and deflated Sharpe ratios of a result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

from finpod.measures import metrics, simple_returns
from finpod.result import BacktestResult
from finpod.significance import (
    Interval,
    deflated_sharpe,
    expected_best,
    intervals,
    minimum_length,
    probabilistic_sharpe,
)

LEVEL = 0.95
"""Probability that an interval covers the truth, and that a deflated Sharpe ratio must pass."""
RESAMPLES = 10_000
"""Bootstrap samples of the intervals; the seed is fixed, so that they are the same in every run."""
EQUAL_WEIGHT, BENCHMARK = "equal_weight", "benchmark"
"""What a strategy is compared with."""
MEASURED, SAMPLING = "measured", "sampling"
"""Where the deviation of the trials comes from: their validation Sharpe ratios, or 1 / sqrt(years), that of a ratio of zero."""

Intervals = dict[str, dict[str, Interval]]
_CACHE: WeakKeyDictionary[BacktestResult, Intervals] = WeakKeyDictionary()
"""Intervals of each result in use. They take about a second, and only the table, JSON and the report need them."""


class Code(StrEnum):
    """What an interval of an excess return says."""

    MORE = "more_than_luck"
    """It lies above zero."""
    NOT_DISTINGUISHABLE = "not_distinguishable"
    """It contains zero."""
    WORSE = "worse"
    """It lies below zero."""


class Verdict(NamedTuple):
    """The yearly growth of a strategy in excess of another curve, and what its interval says."""

    over: str
    """`EQUAL_WEIGHT` or `BENCHMARK`."""
    interval: Interval
    """Of the difference of the CAGRs, a fraction a year."""
    code: Code
    """What the interval says, as if nothing else had been tried."""


def verdicts(result: BacktestResult) -> tuple[Verdict, ...]:
    """Those over equal weight and over the benchmark, as far as there are any."""
    intervals = intervals_of(result)
    return tuple(one for name in (EQUAL_WEIGHT, BENCHMARK) if (one := _verdict(intervals, name)) is not None)


def evidence(result: BacktestResult) -> dict[str, Any]:
    """What is known of whether the result is luck, in plain values; undefined ones are NaN.

    'intervals'               'strategy', 'equal_weight', 'benchmark' -> 'sharpe', 'cagr', 'max_drawdown'
                              -> 'low', 'estimate', 'high', at 'level', from 'resamples'; the latter two are of the strategy
                              less the other; undefined ones are left out
    'verdicts'                'equal_weight', 'benchmark' -> what the interval of the excess growth says, a `Code`
    'probabilistic_sharpe'    probability that the true Sharpe ratio is above 0
    'deflated_sharpe'         that it is above 'expected_best': what the best of 'trials' without skill would show
    'deflated_active_sharpe'  the same of the returns less equal weight's
    'trial_sd'                deviation of the trials' Sharpe ratios; 'trial_sd_source' is `MEASURED` or `SAMPLING`
    'minimum_years'           history after which such a Sharpe ratio would pass the level; infinite if none would do
    'minimum_active_years'    the same of the returns less equal weight's
    'overfitting'             probability of backtest overfitting, as the search found it
    'fan_beaten'              share of the 'fan_size' random portfolios whose Sharpe ratio is lower

    Where prices rise, luck alone has a Sharpe ratio above zero: the active ratio is the one that tells of skill. It is
    held against trials of the sampling deviation, as a search measures none of active ratios. Intraday results are
    judged session by session; a short history has neither intervals nor probabilities.
    """
    spans = {
        key: {metric: {"low": at.low, "estimate": at.estimate, "high": at.high} for metric, at in figures.items()}
        for key, figures in intervals_of(result).items()
    }
    return _ratios(result) | {
        "level": LEVEL,
        "resamples": RESAMPLES,
        "intervals": spans,
        "verdicts": {one.over: one.code.value for one in verdicts(result)},
        "trials": result.trials,
        "overfitting": _number(result.search, "overfitting"),
        "fan_beaten": _fan_beaten(result),
        "fan_size": result.fan.shape[1],
    }


def intervals_of(result: BacktestResult) -> Intervals:
    """Intervals of a result and of its lead over equal weight and benchmark, computed once for each result."""
    if result not in _CACHE:
        sessions = result.by_session()
        others = {EQUAL_WEIGHT: sessions.equal_weight_equity, BENCHMARK: sessions.benchmark_equity}
        _CACHE[result] = _against(result, others)
    return _CACHE[result]


def _against(result: BacktestResult, others: Mapping[str, pd.Series]) -> Intervals:
    """Intervals of a result and of its lead over daily curves, each on common days; without those equal to its own."""
    found: Intervals = {}
    if result.is_short:
        return found
    sessions = result.by_session()
    whole = {name: curve for name, curve in others.items() if curve.reindex(sessions.equity.index).notna().all()}
    for group in (whole, *({name: curve} for name, curve in others.items() if name not in whole)):
        common = pd.DataFrame({"own": sessions.equity, **group}).dropna()
        own = common["own"].to_numpy()
        if len(own) < 3 or not (own[:-1] > 0).all():
            continue
        curves = {name: common[name].to_numpy() for name in group}
        steps = {
            name: simple_returns(curve)
            for name, curve in curves.items()
            if (curve[:-1] > 0).all() and not np.allclose(own, curve, rtol=1e-12)
        }
        figures = intervals(
            simple_returns(own),
            steps,
            periods_per_year=sessions.periods_per_year,
            risk_free=result.risk_free,
            level=LEVEL,
            resamples=RESAMPLES,
        )
        found |= {key: figure for key, figure in figures.items() if key not in found}
    return found


def _verdict(intervals: Intervals, name: str) -> Verdict | None:
    """What the interval of the growth in excess of another curve says; None without one."""
    interval = intervals.get(name, {}).get("cagr")
    if interval is None:
        return None
    code = Code.WORSE if interval.high < 0 else Code.MORE if interval.low > 0 else Code.NOT_DISTINGUISHABLE
    return Verdict(name, interval, code)


def _ratios(result: BacktestResult) -> dict[str, Any]:
    """Sharpe ratios of the returns and of those less equal weight's, deflated by the trials."""
    sessions = result.by_session()
    periods = sessions.periods_per_year
    own = sessions.returns.to_numpy() - ((1 + result.risk_free) ** (1 / periods) - 1)
    active = sessions.returns.to_numpy() - simple_returns(sessions.equal_weight_equity.to_numpy())
    sampling = math.sqrt(periods / len(own))
    measured = _number(result.search, "sharpe_sd")
    deviation = sampling if math.isnan(measured) else measured
    best, active_best = (expected_best(result.trials, sd) for sd in (deviation, sampling))
    if result.is_short:
        own = active = np.empty(0)
    return {
        "probabilistic_sharpe": probabilistic_sharpe(own, periods_per_year=periods),
        "deflated_sharpe": deflated_sharpe(own, result.trials, deviation, periods_per_year=periods),
        "deflated_active_sharpe": deflated_sharpe(active, result.trials, sampling, periods_per_year=periods),
        "expected_best": best,
        "trial_sd": deviation,
        "trial_sd_source": SAMPLING if math.isnan(measured) else MEASURED,
        "minimum_years": minimum_length(own, best, level=LEVEL, periods_per_year=periods) / periods,
        "minimum_active_years": minimum_length(active, active_best, level=LEVEL, periods_per_year=periods) / periods,
    }


def _fan_beaten(result: BacktestResult) -> float:
    """Share of the random portfolios that have a Sharpe ratio, and a lower one; NaN without any."""
    if result.is_short or result.fan.empty:
        return math.nan
    sessions = result.by_session()
    drawn: Any = metrics(
        sessions.fan.to_numpy(), risk_free=result.risk_free, periods_per_year=sessions.periods_per_year
    ).sharpe
    own, known = sessions.metrics.sharpe, drawn[np.isfinite(drawn)]
    if not len(known) or not math.isfinite(own):
        return math.nan
    equal = np.isclose(known, own, rtol=1e-9)  # but for rounding; such ones count half
    return float((np.where(equal, 0.5, known < own)).mean())


def _number(values: Mapping[str, Any], key: str) -> float:
    """A number, or NaN where there is none."""
    value = values.get(key)
    return float(value) if isinstance(value, (int, float)) else math.nan
