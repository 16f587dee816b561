"""Is the excess more than luck? Intervals and deflated Sharpe ratios of a result, and plain sentences on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

from finpod.bootstrap import Array, Interval, intervals
from finpod.lookahead.words import heading, only_held
from finpod.measures import metrics
from finpod.significance import deflated_sharpe, expected_best, minimum_length, probabilistic_sharpe

if TYPE_CHECKING:
    from finpod.result import BacktestResult

LEVEL = 0.95
"""Probability that an interval covers the truth, and that a deflated Sharpe ratio must pass."""
RESAMPLES = 10_000
"""Bootstrap samples of the intervals; the seed is fixed, so that they are the same in every run."""
EQUAL_WEIGHT, BENCHMARK = "equal weight", "benchmark"
"""What a strategy is set against, as `evidence` calls it."""

MEASURED, SAMPLING = "measured in the search", "sampling deviation of a ratio of zero, 1 / sqrt(years)"
"""Where the deviation of the trials comes from."""

Found = dict[str, dict[str, Interval]]
_FOUND: WeakKeyDictionary[BacktestResult, Found] = WeakKeyDictionary()
"""Intervals of each result in use: table, JSON, report and `evidence` all ask for them."""


def excess_over(result: BacktestResult, other: pd.Series) -> Interval | None:
    """95 % interval of the yearly growth in excess of another curve, on common days; None for a short or equal history."""
    return _lead(_against(result, {"other": result.sessions_of(other)}), "other")


def sentence(result: BacktestResult, other: pd.Series, name: str, reserve: str = "") -> str:
    """What the interval says in words, and the audit; empty where there is none. `reserve` is added to praise."""
    said = _said(excess_over(result, other), name, result.trials, reserve)
    return said and said + doubt(result)


def doubt(result: BacktestResult) -> str:
    """What the look-ahead audit takes away from any sentence on skill; empty if it passed, or was never asked for."""
    passed = audit_passed(result.audit)
    if not result.audit or passed:
        return ""
    if passed is None:
        return ", and it was not audited"
    findings = result.audit.get("findings", ())
    does = "holds later rows" if only_held(findings) else heading(findings).lower()
    return f", but it {does}: this says nothing of skill"


def audit_passed(audit: Mapping[str, Any]) -> bool | None:
    """Whether the look-ahead audit found nothing; None if there was none, or if it saw no day."""
    passed = audit.get("passed")
    return None if passed and not audit.get("days") else passed


def verdicts(result: BacktestResult) -> list[str]:
    """The sentences on equal weight and on the benchmark."""
    hindsight = ", but names chosen with hindsight explain it as well" if result.manifest.get("survivorship") else ""
    found = _found(result)
    said = [
        _said(_lead(found, EQUAL_WEIGHT), EQUAL_WEIGHT, result.trials),
        _said(_lead(found, BENCHMARK), result.benchmark, result.trials, hindsight),
    ]
    return [one + doubt(result) for one in said if one]


def evidence(result: BacktestResult) -> dict[str, Any]:
    """What is known of whether the result is luck, in plain values; undefined ones are NaN.

    'intervals'               'strategy', 'minus equal weight', 'minus benchmark' -> 'sharpe', 'cagr', 'max_drawdown'
                              -> 'low', 'estimate', 'high', at 'level', from 'resamples'; without what is undefined
    'probabilistic_sharpe'    probability that the true Sharpe ratio is above 0
    'deflated_sharpe'         that it is above 'expected_best': what the best of 'trials' without skill would show
    'deflated_active_sharpe'  the same of the returns less equal weight's
    'trial_sd'                deviation of the trials' Sharpe ratios, and 'trial_sd_source', where that comes from
    'minimum_years'           history after which such a Sharpe ratio would pass the level; infinite if none would do
    'minimum_active_years'    the same of the returns less equal weight's
    'overfitting'             probability of backtest overfitting, as the search found it
    'fan_beaten'              share of the 'fan_size' random portfolios whose Sharpe ratio is lower
    'sentence'                the lead over equal weight in one sentence; empty if there is none

    Where prices rise, luck alone has a Sharpe ratio above zero: the active ratio is the one that tells of skill. It is
    held against trials of the sampling deviation, as a search measures none of active ratios. Intraday results are
    judged session by session; a short history has neither intervals nor probabilities.
    """
    found, ratios = _found(result), _ratios(result)
    spans = {
        key: {metric: {"low": at.low, "estimate": at.estimate, "high": at.high} for metric, at in figures.items()}
        for key, figures in found.items()
    }
    said = _summary(_lead(found, EQUAL_WEIGHT), ratios["deflated_active_sharpe"], result.trials)
    return ratios | {
        "level": LEVEL,
        "resamples": RESAMPLES,
        "intervals": spans,
        "trials": result.trials,
        "overfitting": _number(result.search, "overfitting"),
        "fan_beaten": _fan_beaten(result),
        "fan_size": result.fan.shape[1],
        "sentence": said and said + doubt(result),
    }


def _found(result: BacktestResult) -> Found:
    """The intervals of a result, worked out once."""
    if result not in _FOUND:
        sessions = result.by_session()
        rivals = {EQUAL_WEIGHT: sessions.equal_weight_equity, BENCHMARK: sessions.benchmark_equity}
        _FOUND[result] = _against(result, rivals)
    return _FOUND[result]


def _against(result: BacktestResult, others: Mapping[str, pd.Series]) -> Found:
    """Intervals of a result and of its lead over daily curves, each on common days; without those equal to its own."""
    found: Found = {}
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
            name: _steps(curve)
            for name, curve in curves.items()
            if (curve[:-1] > 0).all() and not np.allclose(own, curve, rtol=1e-12)
        }
        figures = intervals(
            _steps(own),
            steps,
            periods_per_year=sessions.periods_per_year,
            risk_free=result.risk_free,
            level=LEVEL,
            resamples=RESAMPLES,
        )
        found |= {key: figure for key, figure in figures.items() if key not in found}
    return found


def _lead(found: Found, name: str) -> Interval | None:
    """The interval of the growth in excess of a rival."""
    return found.get(f"minus {name}", {}).get("cagr")


def _ratios(result: BacktestResult) -> dict[str, Any]:
    """Sharpe ratios of the returns and of those less equal weight's, deflated by the trials."""
    sessions = result.by_session()
    periods = sessions.periods_per_year
    own = sessions.returns.to_numpy() - ((1 + result.risk_free) ** (1 / periods) - 1)
    active = sessions.returns.to_numpy() - _steps(sessions.equal_weight_equity.to_numpy())
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


def _said(found: Interval | None, name: str, trials: int, reserve: str = "") -> str:
    if found is None:
        return ""
    estimate, low, high = _points(found)
    said = "not distinguishable from luck" if found.covers_zero else "more than luck explains"
    if found.high < 0:
        said = "worse than luck explains"
    return (
        f"Excess over {name}: {estimate} points a year, {100 * found.level:.0f} % interval {low} to {high}: {said}"
        + (" if this were the only trial" if trials > 1 and found.low > 0 else "")
        + (reserve if found.low > 0 else "")
    )


def _summary(found: Interval | None, deflated: float, trials: int) -> str:
    if found is None or math.isnan(deflated):
        return ""
    estimate, low, high = _points(found)
    if found.high < 0:
        said = "worse than luck explains"
    elif found.low > 0 and deflated >= LEVEL:
        said = "more than luck explains"
    elif found.low > 0 and trials > 1:
        said = f"more than luck explains in one trial, but not in {trials:,}"
    else:
        said = "not distinguishable from luck"
    return (
        f"Growth in excess of equal weight is {estimate} points a year, with a {100 * LEVEL:.0f} % interval from {low} to "
        f"{high}, and the chance that its true Sharpe ratio is above {hurdle(trials)} is {100 * deflated:.0f} %: {said}"
    )


def hurdle(trials: int) -> str:
    """What a deflated Sharpe ratio is held against, in words."""
    return f"the best of {trials:,} without skill" if trials > 1 else "zero"


def _points(found: Interval) -> list[str]:
    """Estimate and both ends in percentage points."""
    return [f"{100 * value:+.1f}" for value in (found.estimate, found.low, found.high)]


def _steps(curve: Array) -> Array:
    """[n] simple returns of a curve [n + 1]; zero after ruin."""
    before = curve[:-1]
    return np.divide(curve[1:], before, out=np.ones_like(before), where=before != 0) - 1


def _number(values: Mapping[str, Any], key: str) -> float:
    """A number, or NaN where there is none."""
    value = values.get(key)
    return float(value) if isinstance(value, (int, float)) else math.nan
