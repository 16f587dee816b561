"""Statistical significance: bootstrap intervals, the expected best of N trials, deflated Sharpe ratios, overfitting.

The intervals come from a stationary block bootstrap (Politis and Romano 1994). It draws days with replacement in blocks
of random length, which keeps the dependence of neighbouring days. For a difference, both series use the same days.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain, combinations
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from finpod.errors import InputError, require_number
from finpod.measures import DUST, Array

METRICS = ("sharpe", "cagr", "max_drawdown")
"""Names of the metrics that have intervals, defined as in `measures.Metrics`."""
STRATEGY = "strategy"
"""Key in the result of `intervals` for the metrics of the strategy itself, not for a difference."""
_CHUNK = 2**18
"""Number of resampled days of a series that are in memory at a time. This number fits into the processor's cache."""
MOST_SPLITS = 20
"""Largest number of blocks of `overfitting`: 20 blocks have 184,756 combinations."""


class Interval(NamedTuple):
    """An estimate and an interval that covers the true value with probability `level`."""

    low: float
    estimate: float
    high: float
    level: float


def intervals(
    returns: Array,
    others: Mapping[str, Array],
    *,
    periods_per_year: float = 252,
    risk_free: float = 0.0,
    level: float = 0.95,
    resamples: int = 10_000,
) -> dict[str, dict[str, Interval]]:
    """Return a dict of percentile intervals: name -> 'sharpe', 'cagr' or 'max_drawdown' -> Interval.

    The intervals under 'strategy' are for the metrics of `returns` [n]. The intervals under a name in `others` are for
    differences: a metric of `returns` minus the same metric of the series [n] with this name. All series cover the same
    days. `risk_free` is a yearly rate. The mean length of blocks is the `block_length` of `returns`. For a name in
    `others`, it is that of `returns` minus the series. Therefore, an added series does not change the other intervals.
    Resamples with an undefined metric are skipped. If all are skipped, the bounds are NaN. The estimate of the maximum
    drawdown may lie outside its interval, because resamples have other peaks.

    Raises InputError for unequal lengths, fewer than two days, NaN, infinities, and settings out of range.
    """
    require_number("level", level, 0.01, 0.99)
    require_number("resamples", resamples, 1, whole=True)
    days, rate = len(returns), (1 + risk_free) ** (1 / periods_per_year) - 1
    table = {name: _checked(series, days) for name, series in {STRATEGY: returns, **others}.items()}
    own = table[STRATEGY]
    lengths = {name: block_length(own - table[name] if name in others else own) for name in table}
    figures: dict[str, Array] = {}
    for length in set(lengths.values()):
        names = [STRATEGY, *(name for name in others if lengths[name] == length)]
        series = np.stack([table[name] for name in names])
        chunks = chain([np.arange(days)[None]], _stationary(days, resamples, length))
        parts = [_figures(series.take(rows, axis=1), periods_per_year, rate) for rows in chunks]
        drawn = np.concatenate(parts, axis=-1)  # [metric, series, 1 + resamples]; [..., 0] is for the original days
        figures |= {STRATEGY: drawn[:, 0]} if lengths[STRATEGY] == length else {}
        figures |= {name: drawn[:, 0] - drawn[:, place] for place, name in enumerate(names) if place}
    return {
        name: {metric: _interval(values, level) for metric, values in zip(METRICS, figures[name], strict=True)}
        for name in table
    }


def block_length(values: Array) -> float:
    """Return the mean block length with which to resample a series [n], from its autocorrelations.

    The length is (G / g)^(2/3) n^(1/3), with G = sum |k| h(k/m) R(k) and g = sum h(k/m) R(k) over the lags |k| <= m.
    R(k) is the autocovariance at lag k, and h(x) = min(1, 2 - 2 |x|). The largest lag m is twice the lag after which
    max(5, log10 n) successive autocorrelations are below 2 sqrt(log10(n) / n) in size. The length is at most 3 sqrt(n)
    and n / 3 (Politis and White 2004, corrected by Patton, Politis and White 2009). Finally, it is raised to n^(1/3) if
    it is smaller, because autocorrelations miss dependence in volatility.
    """
    days = len(values)
    floor, cap = days ** (1 / 3), min(3 * math.sqrt(days), days / 3)
    in_a_row = max(5, int(math.log10(days)))
    most = min(math.ceil(math.sqrt(days)) + in_a_row, days - 1)
    power = np.abs(np.fft.rfft(values - values.mean(), 2 * days)) ** 2  # padded, so that no lag wraps around
    covariance = np.fft.irfft(power, 2 * days)[: most + 1] / days
    if most < in_a_row or covariance[0] < DUST**2:
        return floor
    small = np.abs(covariance[1:]) < 2 * math.sqrt(math.log10(days) / days) * covariance[0]
    quiet = sliding_window_view(small, in_a_row).all(axis=1)
    widest = min(2 * max(int(quiet.argmax()), 1), most) if quiet.any() else most
    lags = np.arange(1, widest + 1)
    weighted = np.minimum(1, 2 - 2 * lags / widest) * covariance[lags]
    slope, spectrum = abs(2 * (lags * weighted).sum()), abs(covariance[0] + 2 * weighted.sum())
    optimal = (slope / spectrum) ** (2 / 3) * floor if spectrum > DUST * covariance[0] else cap
    return float(max(floor, min(optimal, cap)))


def _checked(series: Array, days: int) -> Array:
    """Return the series as float64 [n]. Raises InputError for another length, NaN and infinities."""
    steps = np.asarray(series, dtype=np.float64)
    if steps.ndim != 1 or len(steps) != days or days < 2:
        raise InputError(
            f"a series has shape {steps.shape}, not ({max(days, 2)},); pass all series for the same two or more days"
        )
    if not np.isfinite(steps).all():
        raise InputError("a series contains NaN or infinity; drop the days without a finite value")
    return steps


def _stationary(days: int, resamples: int, block: float) -> Iterator[Array]:
    """Yield row numbers [resamples, days] in chunks. A day begins a block with probability 1 / `block`. Seed 0."""
    random = np.random.default_rng(0)
    size = max(_CHUNK // days, 1)
    for first in range(0, resamples, size):
        anew = random.random((min(size, resamples - first), days), dtype=np.float32) < 1 / block
        anew[:, 0] = True
        begun = np.flatnonzero(anew)
        shift = random.integers(days, size=len(begun)) - begun
        rows = np.arange(anew.size) + np.repeat(shift, np.diff(begun, append=anew.size))
        rows -= days * (rows >= days)  # a block wraps around at the end
        yield rows.reshape(-1, days)


def _figures(steps: Array, periods_per_year: float, rate: float) -> Array:
    """Return Sharpe ratio, CAGR and maximum drawdown [3, ...] of the returns `steps` [..., n]. Overwrites `steps`."""
    days = steps.shape[-1]
    wealth = np.cumprod(np.maximum(steps, -1.0) + 1, axis=-1)
    if (wealth[..., -1] == 0).any():  # returns after ruin count as zero
        steps[..., 1:][wealth[..., :-1] == 0] = 0.0
        np.maximum(steps, -1.0, out=steps)
    mean = steps.mean(axis=-1)
    steps -= mean[..., None]
    deviation = np.sqrt(np.einsum("...t,...t->...", steps, steps) / (days - 1))
    sharpe = np.divide(mean - rate, deviation, out=np.full(mean.shape, np.nan), where=deviation >= DUST)
    with np.errstate(over="ignore"):
        growth = wealth[..., -1] ** (periods_per_year / days) - 1
    peak = np.maximum.accumulate(wealth, axis=-1)
    wealth /= np.maximum(peak, 1.0, out=peak)
    figures = [sharpe * math.sqrt(periods_per_year), growth, wealth.min(axis=-1) - 1]
    return np.where(np.isfinite(figures), figures, np.nan)


def _interval(values: Array, level: float) -> Interval:
    """Return the percentile interval. `values` [1 + resamples] has the estimate, then the figure of each resample."""
    drawn = values[1:][np.isfinite(values[1:])]
    if not len(drawn):
        return Interval(math.nan, float(values[0]), math.nan, level)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(values[0]), float(high), level)


def expected_best(trials: int, sd: float) -> float:
    """Return the expected maximum of `trials` random scores without skill, with mean 0 and standard deviation `sd`.

    It is sd ((1 - g) z(1 - 1/N) + g z(1 - 1/(N e))) for N trials, with Euler's constant g and the normal quantile z
    (Bailey and Lopez de Prado 2014). For one trial it is 0. Raises InputError for no trial or a negative `sd`.
    """
    if trials < 1 or not sd >= 0:
        raise InputError(f"trials is {trials} and sd is {sd}; trials must be at least 1 and sd at least 0")
    if trials == 1:
        return 0.0
    quantile = NormalDist().inv_cdf
    return sd * ((1 - np.euler_gamma) * quantile(1 - 1 / trials) + np.euler_gamma * quantile(1 - 1 / (trials * math.e)))


def probabilistic_sharpe(returns: Array, benchmark: float = 0.0, *, periods_per_year: float = 252) -> float:
    """Return the probability that the true yearly Sharpe ratio of `returns` [n] is above `benchmark`.

    It is Phi((s - s*) sqrt(n - 1) / sqrt(1 - g3 s + (g4 - 1) / 4 s^2)) (Bailey and Lopez de Prado 2012). Phi is the
    normal distribution function, s the Sharpe ratio and s* the benchmark per period, g3 the skewness and g4 the
    kurtosis of the returns. NaN for constant returns or fewer than three returns.
    """
    sharpe, spread = _sharpe_and_spread(returns)
    above = (sharpe - benchmark / math.sqrt(periods_per_year)) * math.sqrt(max(len(returns) - 1, 0)) / spread
    return math.nan if math.isnan(above) else NormalDist().cdf(above)


def minimum_length(
    returns: Array, benchmark: float = 0.0, *, level: float = 0.95, periods_per_year: float = 252
) -> float:
    """Return the minimum track record length: the number of returns that raises `probabilistic_sharpe` to `level`.

    It is 1 + (1 - g3 s + (g4 - 1) / 4 s^2) (z(level) / (s - s*))^2 (Bailey and Lopez de Prado 2012). z is the normal
    quantile, s the Sharpe ratio and s* the benchmark per period, g3 the skewness and g4 the kurtosis of the returns.
    Infinite if s is not above s*; NaN for constant returns or fewer than three returns.
    """
    if not 0.5 <= level < 1:
        raise InputError(f"level is {level}; it must be at least 0.5 and below 1, such as 0.95", argument="level")
    sharpe, spread = _sharpe_and_spread(returns)
    lead = sharpe - benchmark / math.sqrt(periods_per_year)
    if not lead > 0:
        return math.nan if math.isnan(lead) else math.inf
    return 1 + (spread * NormalDist().inv_cdf(level) / lead) ** 2


def sharpe_error(returns: Array, *, periods_per_year: float = 252) -> float:
    """Return the standard error of the yearly Sharpe ratio of `returns` [n].

    It is sqrt((1 - g3 s + (g4 - 1) / 4 s^2) P / (n - 1)) for P periods per year (Lo 2002, Mertens 2002), with the
    Sharpe ratio s per period, the skewness g3 and the kurtosis g4. For two returns or equal returns, it is
    sqrt(P / (n - 1)). NaN for n < 2.
    """
    if len(returns) < 2:
        return math.nan
    spread = _sharpe_and_spread(returns)[1]
    return (1.0 if math.isnan(spread) else spread) * math.sqrt(periods_per_year / (len(returns) - 1))


def _sharpe_and_spread(returns: Array) -> tuple[float, float]:
    """Return (s, spread): the Sharpe ratio per period, and its standard error times sqrt(n - 1); NaN if undefined."""
    steps = np.asarray(returns, dtype=np.float64)
    if len(steps) < 3 or steps.std(ddof=1) < DUST:
        return math.nan, math.nan
    sharpe = float(steps.mean() / steps.std(ddof=1))
    centred = (steps - steps.mean()) / steps.std()
    skewness, kurtosis = (centred**3).mean(), (centred**4).mean()
    return sharpe, math.sqrt(max(1 - skewness * sharpe + (kurtosis - 1) / 4 * sharpe**2, 1e-12))


def overfitting(returns: Array, *, splits: int = 16) -> float:
    """Return the probability of backtest overfitting (PBO) of the returns [T, M] of M trials on T days.

    PBO is the probability that the column with the highest Sharpe ratio in sample is below the median out of sample. It
    is computed by combinatorially symmetric cross-validation (Bailey, Borwein, Lopez de Prado and Zhu 2017). The rows
    are cut in order into `splits` blocks whose lengths differ by at most one. Each choice of half of the blocks is in
    sample once, while the other half is out of sample. A rank exactly at the median counts half. A constant column has
    no Sharpe ratio and ranks last. Equal columns have the same rank. Halves in which no column has a Sharpe ratio are
    skipped. NaN for fewer than two columns, or fewer than two rows per block. Raises InputError for another shape, NaN,
    infinities, and if `splits` is odd or not from 2 to 20. Needs about 50 bytes of memory per choice and column.
    """
    table = np.asarray(returns, dtype=np.float64)
    if table.ndim != 2 or not np.isfinite(table).all():
        raise InputError(
            f"returns have shape {table.shape}; pass finite numbers [T, M], one column per trial", argument="returns"
        )
    if splits % 2 or not 2 <= splits <= MOST_SPLITS:
        raise InputError(f"splits is {splits}; pass an even number from 2 to {MOST_SPLITS}", argument="splits")
    rows, trials = table.shape
    if trials < 2 or rows < 2 * splits:
        return math.nan
    inside = _half_sharpes(table, splits)
    outside = inside[::-1]  # choices are in order, so the complement of the first is the last
    best = inside.argmax(axis=1)[:, None]
    first, then = (np.take_along_axis(side, best, axis=1) for side in (inside, outside))
    rank = (outside < then).sum(axis=1) + ((outside == then).sum(axis=1) + 1) / 2
    below = (np.sign((trials + 1) / 2 - rank[np.isfinite(first[:, 0])]) + 1) / 2
    return float(below.mean()) if len(below) else math.nan


def _half_sharpes(table: Array, splits: int) -> Array:
    """Return Sharpe ratios per period [C, M], -inf if undefined. Row c is for the c-th choice of half of the blocks."""
    rows = len(table)
    edges = np.arange(splits) * rows // splits
    halves = np.array(list(combinations(range(splits), splits // 2)))
    taken = np.zeros((len(halves), splits))
    np.put_along_axis(taken, halves, 1.0, axis=1)
    count = (taken @ np.diff(edges, append=rows))[:, None]
    mean = table.mean(axis=0)
    centred = table - mean  # keeps the precision of sums of squares
    total, squares = (taken @ np.add.reduceat(values, edges) for values in (centred, centred**2))
    variance = (squares - total**2 / count) / (count - 1)
    # the deviations of a column that is constant in a half are only rounding errors
    known = variance > np.maximum(DUST**2, 1e-12 * squares / count)
    return np.where(known, (total / count + mean) / np.sqrt(np.where(known, variance, 1.0)), -np.inf)
