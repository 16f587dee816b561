"""Statistical significance of a result: intervals, verdicts and deflated Sharpe ratios.

The verdict judges the growth in excess of the anchor, the portfolio that the strategy has to beat, by a two-sided 95 %
interval. The interval is widened if the result was chosen from N results of the same window. With the wider interval,
the best of N strategies without skill is called significantly better in 2.5 % of cases, as often as a single strategy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from finpod.errors import require_number
from finpod.measures import Array, metrics, returns_per_year, simple_returns
from finpod.result import BacktestResult
from finpod.significance import Interval, expected_best, intervals, minimum_length, overfitting, probabilistic_sharpe
from finpod.strategy import Strategy

LEVEL = 0.95
"""Probability that an interval covers the true value."""
ONE_SIDED = (1 + LEVEL) / 2
"""Probability that the lower end of an interval lies below the true value. Deflated Sharpe ratios should exceed it."""
RESAMPLES = 10_000
"""Default number of bootstrap samples. The seed is fixed, so results repeat."""
OVER = ANCHOR, EQUAL_WEIGHT, BENCHMARK = "anchor", "equal_weight", "benchmark"
"""Names of the curves that a strategy is compared with."""
MEASURED, SAMPLING = "measured", "sampling"
"""Values of 'trial_sd_source' in `evidence`. The standard deviation is measured on validation, or it is the standard
error of a Sharpe ratio of 0, which is 1 / sqrt(years)."""

Intervals = dict[str, dict[str, Interval]]
"""'strategy', or the name of a curve that the strategy is compared with -> figure -> interval."""


class Code(StrEnum):
    """Position of the interval of an excess return relative to zero."""

    MORE = "more_than_luck"
    """The interval lies above zero."""
    NOT_DISTINGUISHABLE = "not_distinguishable"
    """The interval contains zero."""
    WORSE = "worse"
    """The interval lies below zero."""


def verdict_of(
    returns: Array, anchor_returns: Array, *, opened: int = 1, resamples: int = RESAMPLES, periods_per_year: float = 252
) -> tuple[Code, Interval]:
    """Return (code, interval) of the excess growth: the CAGR of `returns` [n] minus the CAGR of `anchor_returns` [n].

    The interval is the two-sided 95 % percentile interval of a block bootstrap. Each resampled day keeps the returns of
    both series. The interval is `widened` if `returns` belong to the best of `opened` > 1 results on the same days. The
    code is `MORE` if the interval lies above zero, and `WORSE` if it lies below zero.

    Without skill, the probability of `MORE` is 2.5 %. With a true information ratio r over y years, the probability is
    Phi(r sqrt(y) - 1.96), where Phi is the normal distribution function. The variance of the active returns lowers
    growth by k standard errors, with k = sqrt(y) / 2 x tracking error. This lowers both probabilities. On 3,000 series
    of normal returns without skill, `MORE` had a frequency of 2.5 % over 8 years and 3.0 % over 3 years.

    Raises InputError for series of different lengths, fewer than two returns, NaN, and `opened` below 1.
    """
    how: dict[str, Any] = {"periods_per_year": periods_per_year, "level": LEVEL, "resamples": resamples}
    wide = widened(intervals(returns, {ANCHOR: anchor_returns}, **how)[ANCHOR]["cagr"], opened)
    return code_of(wide), wide


def widened(interval: Interval, candidates: int) -> Interval:
    """Return the interval widened for the best of N independent candidates (Sidak 1967); N is `candidates`.

    The lower end for the best of N candidates without skill lies above zero with probability 1 - p, as it does for a
    single candidate. Here, p is the probability that the lower end of `interval` lies below the true value: 0.975 at a
    level of 95 %. The distance of each end from the estimate is multiplied by z(p^(1/N)) / z(p), where z is the normal
    quantile. At a level of 95 %, the factor for N = 24 is 1.57. For correlated candidates, the interval is too wide.
    For N = 1, it is unchanged. Raises InputError for N below 1.
    """
    require_number("opened", candidates, 1, whole=True)
    if candidates == 1:
        return interval
    quantile, sure = NormalDist(), (1 + interval.level) / 2
    wide = quantile.inv_cdf(sure ** (1 / candidates))
    factor = wide / quantile.inv_cdf(sure)
    low, high = (interval.estimate + factor * (end - interval.estimate) for end in (interval.low, interval.high))
    return Interval(low, interval.estimate, high, 2 * quantile.cdf(wide) - 1)


def excess_growth(result: BacktestResult) -> dict[str, Interval]:
    """Return 'anchor', 'equal_weight' or 'benchmark' -> interval of the excess growth over this portfolio.

    The excess growth is the CAGR of the strategy minus the CAGR of the portfolio. Intervals are `widened` for
    `result.candidates`. Portfolios without an interval are left out.
    """
    figures = intervals_of(result)
    return {name: widened(figures[name]["cagr"], result.candidates) for name in OVER if name in figures}


def evidence(result: BacktestResult) -> dict[str, Any]:
    """Return the statistical significance of a result as plain values. Undefined values are NaN.

    'intervals'               'strategy', 'anchor', 'equal_weight', 'benchmark' -> 'sharpe', 'cagr', 'max_drawdown'
                              -> 'low', 'estimate', 'high'. All entries except 'strategy' are differences: strategy
                              minus portfolio. 'equal_weight' is omitted if it is the anchor
    'level', 'resamples'      confidence level of the intervals, and number of bootstrap samples
    'verdicts'                portfolio -> `Code` of the interval of the excess growth, `widened` for 'candidates'
    'candidates'              number of results from which this one may be chosen; see `BacktestResult.candidates`
    'probabilistic_sharpe'    probability that the true Sharpe ratio is above 0
    'deflated_sharpe'         probability that the true Sharpe ratio is above 'expected_best'
    'expected_best'           expected Sharpe ratio of the best of 'candidates' candidates without skill
    'deflated_active_sharpe'  probability that the best of N candidates without skill has a lower active Sharpe ratio
                              than this result: (`probabilistic_sharpe` of the active returns)^N, N = 'candidates'
    'trial_sd', 'trial_sd_source'   standard deviation of the candidates' Sharpe ratios, and `MEASURED` or `SAMPLING`
    'minimum_years'           length of history at which the deflated Sharpe ratio would reach 0.975; may be infinite
    'minimum_active_years'    length of history at which 'deflated_active_sharpe' would reach 0.975; may be infinite
    'trials'                  number of trials (such as agents after each round) before the choice of the strategy
    'validation_luck'         expected gap between best and mean active Sharpe ratio on validation, if the trials differ
                              only by luck
    'overfitting'             probability that the choice of the best trial is overfitted (see `search_of`)
    'fan_beaten'              fraction of the 'fan_size' random portfolios with a lower Sharpe ratio

    Active returns are returns minus those of the anchor. The active Sharpe ratio is their Sharpe ratio, and measures
    skill. When prices rise, the plain Sharpe ratio is above zero even without skill. If the verdict over the anchor is
    `MORE`, 'deflated_active_sharpe' is usually above 0.975. For intraday results, daily returns are used. If the
    history is short, there are no intervals, and 'overfitting' is the only probability that can be defined.
    """
    spans = {
        key: {metric: {"low": at.low, "estimate": at.estimate, "high": at.high} for metric, at in figures.items()}
        for key, figures in intervals_of(result).items()
    }
    measured = _number(result.search, "ranked_sd" if "ranked_sd" in result.search else "sharpe_sd")
    return _ratios(result) | {
        "level": LEVEL,
        "resamples": RESAMPLES,
        "intervals": spans,
        "verdicts": {over: code_of(span).value for over, span in excess_growth(result).items()},
        "candidates": result.candidates,
        "trials": result.trials,
        "validation_luck": math.nan if math.isnan(measured) else expected_best(result.trials, measured),
        "overfitting": _number(result.search, "overfitting"),
        "fan_beaten": _fan_beaten(result),
        "fan_size": result.fan.shape[1],
    }


def intervals_of(result: BacktestResult) -> Intervals:
    """Return the intervals of a result, and of its differences from anchor, equal weight and benchmark.

    If the anchor is equal weight rebalanced every session, 'equal_weight' has no entry. A curve equal to that of the
    strategy has no entry. Differences are measured on common days. The intervals are computed only once for a result.
    They are not `widened`.
    """
    attributes: dict[str, Any] = vars(result)  # where cached properties are stored too
    if "_intervals" not in attributes:
        attributes["_intervals"] = {} if result.is_short else _intervals(result)
    return attributes["_intervals"]


def _intervals(result: BacktestResult) -> Intervals:
    sessions, spans = result.by_session(), Intervals()
    names = OVER if result.has_own_anchor else (ANCHOR, BENCHMARK)
    others = {name: getattr(sessions, f"{name}_equity") for name in names}
    whole = {name: curve for name, curve in others.items() if curve.reindex(sessions.equity.index).notna().all()}
    for group in (whole, *({name: curve} for name, curve in others.items() if name not in whole)):
        both = pd.DataFrame({"own": sessions.equity, **group})
        common, periods = both.dropna(), returns_per_year(both.notna().all(axis=1), sessions.periods_per_year)
        equity = common["own"].to_numpy()
        if len(equity) < 3 or not (equity[:-1] > 0).all():
            continue
        curves = {name: common[name].to_numpy() for name in group}
        steps = {
            name: simple_returns(curve)
            for name, curve in curves.items()
            if (curve[:-1] > 0).all() and not np.allclose(equity, curve, rtol=1e-12)
        }
        how: dict[str, Any] = {"periods_per_year": periods, "risk_free": result.risk_free}
        figures = intervals(simple_returns(equity), steps, **how, level=LEVEL, resamples=RESAMPLES)
        spans |= {key: figure for key, figure in figures.items() if key not in spans}
    return spans


def code_of(interval: Interval) -> Code:
    """Return the `Code` that says whether the interval of an excess return lies above, around or below zero."""
    return Code.WORSE if interval.high < 0 else Code.MORE if interval.low > 0 else Code.NOT_DISTINGUISHABLE


def _ratios(result: BacktestResult) -> dict[str, Any]:
    """Return the entries of `evidence` on the Sharpe ratios of the returns and of the active returns."""
    sessions, candidates = result.by_session(), result.candidates
    periods = sessions.periods_per_year
    excess = sessions.returns.to_numpy() - ((1 + result.risk_free) ** (1 / periods) - 1)
    active = sessions.returns.to_numpy() - simple_returns(sessions.anchor_equity.to_numpy())
    measured = _number(result.search, "sharpe_sd") if candidates > result.opened else math.nan
    deviation = math.sqrt(periods / len(excess)) if math.isnan(measured) else measured
    best, sure = expected_best(candidates, deviation), ONE_SIDED ** (1 / candidates)
    if result.is_short:
        excess = active = np.empty(0)
    return {
        "probabilistic_sharpe": probabilistic_sharpe(excess, periods_per_year=periods),
        "deflated_sharpe": probabilistic_sharpe(excess, best, periods_per_year=periods),
        "deflated_active_sharpe": probabilistic_sharpe(active, periods_per_year=periods) ** candidates,
        "expected_best": best,
        "trial_sd": deviation,
        "trial_sd_source": SAMPLING if math.isnan(measured) else MEASURED,
        "minimum_years": minimum_length(excess, best, level=ONE_SIDED, periods_per_year=periods) / periods,
        "minimum_active_years": minimum_length(active, level=sure, periods_per_year=periods) / periods,
    }


def _fan_beaten(result: BacktestResult) -> float:
    """Return the fraction of random portfolios with a lower Sharpe ratio than the strategy; NaN if it is undefined."""
    if result.is_short or result.fan.empty:
        return math.nan
    sessions = result.by_session()
    terms = {"risk_free": result.risk_free, "periods_per_year": sessions.periods_per_year}
    drawn, sharpe = np.asarray(metrics(sessions.fan.to_numpy(), **terms).sharpe), sessions.metrics.sharpe
    known = drawn[np.isfinite(drawn)]
    if not len(known) or not math.isfinite(sharpe):
        return math.nan
    is_equal = np.isclose(known, sharpe, rtol=1e-9)  # a ratio that is equal up to rounding counts half
    return float(np.where(is_equal, 0.5, known < sharpe).mean())


def _number(values: Mapping[str, Any], key: str) -> float:
    """Return `values[key]` as a float; NaN if the value is missing or None."""
    value = values.get(key)
    return math.nan if value is None else float(value)


def search_of(strategy: Strategy, periods_per_year: float) -> dict[str, Any]:
    """Return the number of trials from which a strategy was selected, and figures of their validation returns.

    A trial is an agent after a round of training. 'trials' is the number of trials. 'sharpe_sd' is the standard
    deviation of their yearly Sharpe ratios. 'ranked_sd' is the standard deviation of their active Sharpe ratios: those
    of the returns minus the returns of the baseline, if these are recorded. 'overfitting' is the probability that
    choosing the highest active Sharpe ratio is overfitted. The last three are means over the tournaments.
    """
    over = strategy.tried_over or [np.zeros(len(table)) for table in strategy.tried]
    searches = [pair for pair in zip(strategy.tried, over, strict=True) if pair[0].size and pair[0].shape[1] > 1]
    if not searches:
        return {"trials": int(strategy.trials)}

    def spread(tables: Sequence[Array]) -> float:
        ratios = [np.asarray(metrics(returns=table, periods_per_year=periods_per_year).sharpe) for table in tables]
        known = [float(np.nanstd(ratio, ddof=1)) for ratio in ratios if np.isfinite(ratio).sum() > 1]
        return float(np.mean(known)) if known else math.nan

    active = [table - base[:, None] for table, base in searches]
    return {
        "trials": int(strategy.trials),
        "sharpe_sd": spread([table for table, _ in searches]),
        "ranked_sd": spread(active),
        "overfitting": float(np.mean([overfitting(table) for table in active])),
    }
