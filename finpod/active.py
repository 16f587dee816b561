"""Metrics of a stock agent relative to its baseline: an account that holds the anchor, the portfolio to beat."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from finpod.measures import DUST, Array, metrics, simple_returns
from finpod.significance import sharpe_error

if TYPE_CHECKING:
    from finpod.trading.execution import Execution
    from finpod.trading.simulate import Path

BOUND = "ratio_less_error"
"""Metric by which stock agents are ranked: the information ratio minus its standard error."""
SMALL = 0.01
"""Yearly tracking error below which an agent counts as almost equal to its baseline."""
ACTIVE = ("excess", "information_ratio", "tracking_error", "effective_names", "rank_correlation", "turnover")
"""Names of the metrics that the training report shows for each agent. `BOUND` is not among them."""


def active_figures(
    path: Path, baseline: Path, execution: Execution, first: int, periods_per_year: float
) -> dict[str, float]:
    """Return metrics of an account relative to its baseline. Undefined metrics are NaN.

    `path` and `baseline` are the simulated accounts, which both begin at market row `first`. The active return of a bar
    is the account's return minus the baseline's. Active weights are the account's target weights minus the baseline's.

    'excess'             CAGR of the account minus CAGR of the baseline
    'information_ratio'  mean / standard deviation of the active returns, annualised; 0 if all active returns are equal
    'ratio_less_error'   information ratio minus its standard error (Lo 2002, Mertens 2002)
    'tracking_error'     standard deviation of the active returns, annualised
    'effective_names'    1 / sum of w^2 (Herfindahl 1950) for weights w scaled to a sum of 1; the mean over closes
    'rank_correlation'   Spearman's correlation of active weights with returns up to the next fill; mean over decisions
    'turnover'           (buys + sells) / equity, per year
    """
    curves = path.equity.numpy(), baseline.equity.numpy()
    active = simple_returns(curves[0]) - simple_returns(curves[1])
    ratio, error = ratio_and_error(active, periods_per_year)
    growth = [metrics(curve, periods_per_year=periods_per_year).cagr for curve in curves]
    return {
        BOUND: ratio - error,
        "information_ratio": ratio,
        "excess": growth[0] - growth[1],
        "tracking_error": float(active.std(ddof=1)) * math.sqrt(periods_per_year) if len(active) > 1 else math.nan,
        "effective_names": _effective_names(path, execution, first),
        "rank_correlation": _rank_correlation(path, baseline, execution, first),
        "turnover": float(path.turnover.mean()) * periods_per_year,
    }


def ratio_and_error(active: Array, periods_per_year: float) -> tuple[float, float]:
    """Return (yearly information ratio, its standard error) of active returns [n]; the ratio is 0 for equal returns."""
    deviation = float(active.std(ddof=1)) if len(active) > 1 else math.nan
    ratio = float(active.mean()) / deviation * math.sqrt(periods_per_year) if deviation >= DUST else 0.0
    return ratio, sharpe_error(active, periods_per_year=periods_per_year)


def _effective_names(path: Path, execution: Execution, first: int) -> float:
    worth = path.shares.numpy() * execution.mark[first : first + len(path.equity)].cpu().numpy()
    invested = worth.sum(-1)
    some = invested > 0
    return float((invested[some] ** 2 / (worth[some] ** 2).sum(-1)).mean()) if some.any() else math.nan


def _rank_correlation(path: Path, baseline: Path, execution: Execution, first: int) -> float:
    """Return the mean over decisions of Spearman's correlation of active weights with returns up to the next fill.

    An asset counts only if its target weight is above zero in the account or in the baseline.
    """
    bets = (path.targets - baseline.targets).numpy()
    decided = np.flatnonzero(~np.isnan(bets).all(-1))
    if len(decided) < 2:
        return math.nan
    in_either = ((path.targets > 0) | (baseline.targets > 0)).numpy()
    bets = np.where(in_either, np.where(np.abs(bets) < DUST, 0.0, bets), np.nan)[decided[:-1]]
    rows = first + decided + 1 - execution.lag
    price = np.where(execution.tradable.cpu().numpy()[rows], execution.price.cpu().numpy()[rows], np.nan)
    each, _ = rank_correlations(bets, price[1:] / price[:-1] - 1)
    return float(np.nanmean(each)) if np.isfinite(each).any() else math.nan


def rank_correlations(one: Array, other: Array) -> tuple[Array, Array]:
    """Return (Spearman's correlations [R], numbers of pairs [R]) between the rows of two arrays.

    Row r of `one` [R, N] is paired with row r of `other` [R, N]. Pairs with a value that is not finite are left out. A
    correlation is NaN for fewer than two pairs, and if the paired values of one array are all equal.
    """
    both = np.isfinite(one) & np.isfinite(other)
    ranks = [pd.DataFrame(np.where(both, values, np.nan)).rank(axis=1).to_numpy() for values in (one, other)]
    count = both.sum(axis=1)
    middle = (count[:, None] + 1) / 2  # mean of the ranks 1 to n, with or without ties
    left, right = (np.where(both, rank - middle, 0.0) for rank in ranks)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (left * right).sum(axis=1) / np.sqrt((left**2).sum(axis=1) * (right**2).sum(axis=1)), count


def near_baseline(figures: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the agents with a tracking error below `SMALL` in validation. `figures` has a row per agent and window."""
    return [e["agent"] for e in figures if e["window"] == "validation" and (e["tracking_error"] or 0.0) < SMALL]
