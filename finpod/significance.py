"""What luck alone would have shown: bootstrap intervals, the expected best of N trials, the deflated Sharpe ratio."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finpod.errors import InputError

Array = NDArray[Any]

EULER = 0.5772156649015329
_CHUNK = 2**22
"""Resampled returns held in memory at a time."""


class Interval(NamedTuple):
    """An estimate and the interval that covers the truth with the stated probability."""

    low: float
    estimate: float
    high: float
    level: float

    @property
    def covers_zero(self) -> bool:
        """Whether luck alone may explain the estimate."""
        return not (self.low > 0 or self.high < 0)


def expected_best(trials: int, sd: float) -> float:
    """Expected maximum of `trials` skill-less scores of mean 0 and standard deviation `sd`.

    sd ((1 - g) z(1 - 1/N) + g z(1 - 1/(N e))), g Euler's constant, z the normal quantile (Bailey and Lopez de Prado 2014);
    0 for one trial. Raises InputError for less than one trial or a negative deviation.
    """
    if trials < 1 or not sd >= 0:
        raise InputError(
            f"trials {trials} and sd {sd}: the best of N needs at least one trial and a deviation of 0 or more"
        )
    if trials == 1:
        return 0.0
    quantile = NormalDist().inv_cdf
    return sd * ((1 - EULER) * quantile(1 - 1 / trials) + EULER * quantile(1 - 1 / (trials * math.e)))


def probabilistic_sharpe(returns: Array, benchmark: float = 0.0, *, periods_per_year: float = 252) -> float:
    """Probability that the true yearly Sharpe ratio of `returns` [n] is above `benchmark`.

    Phi((s - s*) sqrt(n - 1) / sqrt(1 - g3 s + (g4 - 1) / 4 s^2)) with s and s* per period, g3 skewness and g4 kurtosis
    (Bailey and Lopez de Prado 2012). NaN for constant returns and for fewer than three.
    """
    steps = np.asarray(returns, dtype=np.float64)
    if len(steps) < 3 or steps.std(ddof=1) < 1e-12:
        return math.nan
    sharpe = steps.mean() / steps.std(ddof=1)
    centred = (steps - steps.mean()) / steps.std()
    skewness, kurtosis = (centred**3).mean(), (centred**4).mean()
    spread = math.sqrt(max(1 - skewness * sharpe + (kurtosis - 1) / 4 * sharpe**2, 1e-12))
    return NormalDist().cdf((sharpe - benchmark / math.sqrt(periods_per_year)) * math.sqrt(len(steps) - 1) / spread)


def deflated_sharpe(returns: Array, trials: int, sd: float, *, periods_per_year: float = 252) -> float:
    """`probabilistic_sharpe` against the best yearly Sharpe ratio that `trials` skill-less ones of deviation `sd` would show."""
    return probabilistic_sharpe(returns, expected_best(trials, sd), periods_per_year=periods_per_year)


def excess_interval(
    returns: Array,
    other: Array,
    *,
    periods_per_year: float = 252,
    level: float = 0.95,
    resamples: int = 10_000,
    block: float | None = None,
    seed: int = 0,
) -> Interval:
    """Interval of CAGR(returns) - CAGR(other) for two series [n] of the same days; days are drawn together.

    Percentile interval of the stationary block bootstrap (Politis and Romano 1994), mean block length n^(1/3) unless
    given. Raises InputError for series of different lengths, fewer than two days, and NaN.
    """
    own, base = (np.asarray(series, dtype=np.float64) for series in (returns, other))
    if own.shape != base.shape or own.ndim != 1 or len(own) < 2:
        raise InputError(
            f"the series have shapes {own.shape} and {base.shape}; give two of the same days, at least two"
        )
    if not (np.isfinite(own).all() and np.isfinite(base).all()):
        raise InputError("the series hold NaN; drop the days that one of them lacks")
    with np.errstate(divide="ignore"):
        growth = np.log1p(np.stack([own, base]))
    scale = periods_per_year / len(own)
    drawn = [
        np.exp(growth[:, rows].sum(axis=-1) * scale)
        for rows in _stationary(len(own), resamples, block or len(own) ** (1 / 3), seed)
    ]
    yearly = np.concatenate([first - second for first, second in drawn])
    tail = (1 - level) / 2
    low, high = np.quantile(yearly, [tail, 1 - tail])
    first, second = np.exp(growth.sum(axis=-1) * scale)
    return Interval(float(low), float(first - second), float(high), level)


def _stationary(days: int, resamples: int, block: float, seed: int) -> Iterator[Array]:
    """Rows [resamples, days] in chunks: each day follows the one before it, or with probability 1 / block begins anew."""
    random = np.random.default_rng(seed)
    size = max(_CHUNK // days, 1)
    for first in range(0, resamples, size):
        count = min(size, resamples - first)
        anew = random.random((count, days)) < 1 / block
        anew[:, 0] = True
        begun = np.maximum.accumulate(np.where(anew, np.arange(days), 0), axis=1)
        start = random.integers(days, size=(count, days))
        yield (np.take_along_axis(start, begun, axis=1) + np.arange(days) - begun) % days
