"""How far luck could have moved a figure: stationary block bootstrap of Sharpe ratio, growth and drawdown.

Days are drawn with replacement in blocks of random length, so that what follows what is kept (Politis and Romano 1994),
and all series take the same days. The mean length of the blocks comes from the data: see `block_length`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from finpod.errors import InputError
from finpod.measures import DUST
from finpod.seeds import require_seed

Array = NDArray[Any]

METRICS = ("sharpe", "cagr", "max_drawdown")
"""What there are intervals of, under the names and by the definitions of `measures.Metrics`."""
STRATEGY = "strategy"
"""Key of the intervals of the returns themselves."""
_CHUNK = 2**18
"""Resampled days held in memory at a time, for each series; so few that they stay in the cache."""


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


def intervals(
    returns: Array,
    others: Mapping[str, Array],
    *,
    periods_per_year: float = 252,
    risk_free: float = 0.0,
    level: float = 0.95,
    resamples: int = 10_000,
    block: float | None = None,
    seed: int = 0,
) -> dict[str, dict[str, Interval]]:
    """Intervals of 'sharpe', 'cagr' and 'max_drawdown' of `returns` [n], and of those less the figures of each other [n].

    The former lie under 'strategy', the latter under the name of the other. Series are of the same days; `risk_free` is a yearly
    rate. Percentile intervals. The mean block length, unless given, is the `block_length` of the returns, or of their
    difference, so that an interval does not depend on what else is asked for. Figures undefined in a
    resample are left out of it; an interval without any is NaN. Resamples have other peaks than the series had: its
    drawdown may lie anywhere in the interval, or outside.

    Raises InputError for series of different lengths, fewer than two days, NaN, and settings out of range.
    """
    if not (0 < level < 1 and resamples >= 1 and (block is None or block >= 1)):
        raise InputError(
            f"level {level}, resamples {resamples}, block {block}: the level lies between 0 and 1, the others are 1 or more"
        )
    require_seed(seed)
    own = _checked(returns, len(returns))
    bases = {name: _checked(other, len(own)) for name, other in others.items()}
    lengths = {STRATEGY: block or block_length(own)}
    lengths |= {key: block or block_length(own - base) for key, base in bases.items()}
    rate = (1 + risk_free) ** (1 / periods_per_year) - 1
    figures: dict[str, Array] = {}
    for length in set(lengths.values()):
        keys = [key for key in bases if lengths[key] == length]
        series = np.stack([own, *(bases[key] for key in keys)])
        chunks = chain([np.arange(len(own))[None]], _stationary(len(own), resamples, length, seed))
        # [3, 1 + others, 1 + resamples], in the first column the days as they came
        drawn = np.concatenate(
            [_figures(series.take(rows, axis=1), periods_per_year, rate) for rows in chunks], axis=-1
        )
        figures |= {STRATEGY: drawn[:, 0]} if lengths[STRATEGY] == length else {}
        figures |= {key: drawn[:, 0] - drawn[:, place] for place, key in enumerate(keys, start=1)}
    return {
        key: {metric: _interval(values, level) for metric, values in zip(METRICS, figures[key], strict=True)}
        for key in lengths
    }


def excess_interval(returns: Array, other: Array, **settings: Any) -> Interval:
    """Interval of CAGR(returns) - CAGR(other) for two series [n] of the same days: that of `intervals`, same settings."""
    return intervals(returns, {"other": other}, **settings)["other"]["cagr"]


def block_length(values: Array) -> float:
    """Mean block length for a series [n]: as its autocorrelations ask, and n^(1/3) at least.

    (G / g)^(2/3) n^(1/3) with G = sum |k| h(k/m) R(k) and g = sum h(k/m) R(k) over |k| <= m, R the autocovariances and
    h(x) = min(1, 2 - 2 |x|); m is twice the last lag before max(5, log10 n) autocorrelations in a row lie within
    2 sqrt(log10(n) / n). At most 3 sqrt(n) and n / 3 (Politis and White 2004, corrected by Patton, Politis and White
    2009). The floor is there for what autocorrelations do not show, such as calm and stormy times.
    """
    days = len(values)
    floor, cap = days ** (1 / 3), min(3 * math.sqrt(days), days / 3)
    in_a_row = max(5, int(math.log10(days)))
    most = min(math.ceil(math.sqrt(days)) + in_a_row, days - 1)
    centred = values - values.mean()
    power = np.abs(np.fft.rfft(centred, 2 * days)) ** 2  # padded, so that no lag wraps around
    covariance = np.fft.irfft(power, 2 * days)[: most + 1] / days
    if most < in_a_row or covariance[0] < DUST**2:
        return floor
    small = np.abs(covariance[1:]) < 2 * math.sqrt(math.log10(days) / days) * covariance[0]
    quiet = sliding_window_view(small, in_a_row).all(axis=1)
    widest = min(2 * max(int(quiet.argmax()), 1), most) if quiet.any() else most
    lags = np.arange(1, widest + 1)
    weighted = np.minimum(1, 2 - 2 * lags / widest) * covariance[lags]
    slope, spectrum = abs(2 * (lags * weighted).sum()), abs(covariance[0] + 2 * weighted.sum())
    asked = (slope / spectrum) ** (2 / 3) * floor if spectrum > DUST * covariance[0] else cap
    return float(max(floor, min(asked, cap)))


def _checked(series: Array, days: int) -> Array:
    """The series as float64 [n]."""
    steps = np.asarray(series, dtype=np.float64)
    if steps.ndim != 1 or len(steps) != days or days < 2:
        raise InputError(
            f"a series has shape {steps.shape} and the returns are {days}; give series of the same days, at least two"
        )
    if not np.isfinite(steps).all():
        raise InputError("the series hold NaN; drop the days that one of them lacks")
    return steps


def _stationary(days: int, resamples: int, block: float, seed: int) -> Iterator[Array]:
    """Rows [resamples, days] in chunks: each day follows the one before it, or with probability 1 / block begins anew."""
    random = np.random.default_rng(seed)
    size = max(_CHUNK // days, 1)
    for first in range(0, resamples, size):
        shape = (min(size, resamples - first), days)
        anew = random.random(shape, dtype=np.float32) < 1 / block
        anew[:, 0] = True
        begun = np.flatnonzero(anew)
        shift = random.integers(days, size=len(begun)) - begun
        rows = np.arange(anew.size) + np.repeat(shift, np.diff(begun, append=anew.size))
        rows -= days * (rows >= days)  # a block that reaches the end goes on at the beginning
        yield rows.reshape(shape)


def _figures(steps: Array, periods_per_year: float, rate: float) -> Array:
    """[3, ...] Sharpe ratio, CAGR and maximum drawdown of returns [..., n], which are overwritten; as in `measures`."""
    days = steps.shape[-1]
    wealth = np.cumprod(np.maximum(steps, -1.0) + 1, axis=-1)
    ruined = wealth[..., -1] == 0
    if ruined.any():  # what comes after ruin counts as zero
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
    """Of an estimate and its resamples, [1 + resamples]."""
    drawn = values[1:][np.isfinite(values[1:])]
    if not len(drawn):
        return Interval(math.nan, float(values[0]), math.nan, level)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(values[0]), float(high), level)
