"""How much choosing the best of several trials overfits: combinatorially symmetric cross-validation."""

from __future__ import annotations

import math
from itertools import combinations
from typing import NamedTuple

import numpy as np

from finpod.errors import InputError
from finpod.measures import DUST, Array

MOST_SPLITS = 20
"""More would make over 184,756 combinations."""


class Overfitting(NamedTuple):
    """What choosing the best of `trials` in one half of the days was worth in the other half, over all such halves."""

    probability: float
    """How often the best of one half was below the median of the other; exactly at the median counts half."""
    loss_probability: float
    """How often its Sharpe ratio was negative in the other half."""
    slope: float
    """Of its Sharpe ratio in the other half on that in the half where it was best (least squares)."""
    in_sample: float
    """Its yearly Sharpe ratio where it was best, on average."""
    out_of_sample: float
    """Its yearly Sharpe ratio in the other half, on average."""
    combinations: int
    """Number of ways to choose the half."""
    trials: int
    """Number of columns that were chosen from."""


def overfitting(returns: Array, *, splits: int = 16, periods_per_year: float = 252) -> Overfitting:
    """What choosing the highest Sharpe ratio among the columns of `returns` [T, M] is worth on days it was not chosen on.

    Combinatorially symmetric cross-validation (Bailey, Borwein, Lopez de Prado and Zhu 2017): the rows are cut into
    `splits` blocks, in order, whose lengths differ by one at most; each half of the blocks is once in sample and the rest
    out of sample. A column without a Sharpe ratio (a constant one) ranks last, equal ones share a rank, and halves in which
    no column has one are left out. NaN for fewer than two columns or two rows a block. Raises InputError for another shape,
    NaN, and a number of splits that is odd or not within 2..20. Takes about 50 bytes a combination and column.
    """
    table = np.asarray(returns, dtype=np.float64)
    if table.ndim != 2 or not np.isfinite(table).all():
        raise InputError(
            f"returns have shape {table.shape}; give [T, M], one column a trial, without NaN", argument="returns"
        )
    if splits % 2 or not 2 <= splits <= MOST_SPLITS:
        raise InputError(
            f"splits is {splits}; give an even number from 2 to {MOST_SPLITS}, such as 16", argument="splits"
        )
    rows, trials = table.shape
    if trials < 2 or rows < 2 * splits:
        return Overfitting(math.nan, *_degraded(table[:0], periods_per_year), math.comb(splits, splits // 2), trials)
    inside = _half_sharpes(table, splits)
    outside = inside[::-1]  # combinations come in order, so the rest of the first is the last, and so on
    best = inside.argmax(axis=1)[:, None]
    first, then = (np.take_along_axis(side, best, axis=1) for side in (inside, outside))
    rank = (outside < then).sum(axis=1) + ((outside == then).sum(axis=1) + 1) / 2
    judged = np.isfinite(first[:, 0])
    below = (np.sign((trials + 1) / 2 - rank[judged]) + 1) / 2
    chosen = np.stack([first[:, 0], then[:, 0]])[:, judged & np.isfinite(then[:, 0])]
    return Overfitting(
        float(below.mean()) if len(below) else math.nan, *_degraded(chosen, periods_per_year), len(inside), trials
    )


def _degraded(chosen: Array, periods_per_year: float) -> tuple[float, float, float, float]:
    """Of the Sharpe ratios [2, C] in and out of sample: share of losses, slope and both yearly means; NaN without any."""
    if not chosen.size:
        return (math.nan,) * 4
    (mean_in, mean_out), year = chosen.mean(axis=1), math.sqrt(periods_per_year)
    across = chosen[0] - mean_in
    spread = float(across @ across)
    slope = float(across @ chosen[1]) / spread if spread > DUST**2 else math.nan
    return float((chosen[1] < 0).mean()), slope, float(mean_in) * year, float(mean_out) * year


def _half_sharpes(table: Array, splits: int) -> Array:
    """[C, M] Sharpe ratios a period over each half of the blocks, in lexicographic order; -inf where undefined."""
    rows = len(table)
    edges = np.arange(splits) * rows // splits
    halves = np.array(list(combinations(range(splits), splits // 2)))
    taken = np.zeros((len(halves), splits))
    np.put_along_axis(taken, halves, 1.0, axis=1)
    count = (taken @ np.diff(edges, append=rows))[:, None]
    mean = table.mean(axis=0)
    centred = table - mean  # of which sums of squares lose no digits
    total, squares = (taken @ np.add.reduceat(values, edges) for values in (centred, centred**2))
    variance = (squares - total**2 / count) / (count - 1)
    # a half in which a column stands still leaves only rounding of its distance from the mean
    known = variance > np.maximum(DUST**2, 1e-12 * squares / count)
    sharpe = (total / count + mean) / np.sqrt(np.where(known, variance, 1.0))
    return np.where(known, sharpe, -np.inf)
