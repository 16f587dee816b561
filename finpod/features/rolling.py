"""Causal statistics over the last rows of a table, for all assets at once.

Tables are float64 [..., T, N] with T rows in order of time and N assets; NaN means that there is no value. Row t of
every result is computed from rows <= t only, by operations whose order does not depend on later rows. Later rows
therefore do not change a single bit of row t. A window is a number of rows that ends with row t. A statistic is NaN if
the fraction of the window's rows that have a value is below `COVERAGE`.

Sums over a window are merged from blocks of 1, 2, 4, ... rows: if S_k[t] is the sum of the k rows up to t, then S_2k[t]
= S_k[t] + S_k[t-k]. This takes about log2(window) passes. Differences of running sums would lose digits and spread NaN.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

COVERAGE = 0.8
"""Least fraction of a window's rows that must have a value."""
DUST = 1e-12
"""A divisor of at most this times its unit (see `ratio`) is taken for a rounding error, and counts as zero."""

State: TypeAlias = tuple[Tensor, ...]


class Moments(NamedTuple):
    """Joint moments of K variables in a window."""

    rows: Tensor
    """[T, N] number of rows in the window that have a value of every variable."""
    mean: Tensor
    """[K, T, N] means of the variables."""
    deviation: Tensor
    """[K, K, T, N]: for each pair of variables, the sum of the products of their deviations from the means."""


def delay(table: Tensor, rows: int, fill: float = math.nan) -> Tensor:
    """Return the table shifted down by `rows`. Row t of the result is row t - rows of `table`; `fill` if t < rows."""
    rows = min(rows, table.shape[-2])
    head = table.new_full((*table.shape[:-2], rows, table.shape[-1]), fill)
    return torch.cat([head, table[..., : table.shape[-2] - rows, :]], dim=-2)


def ratio(numerator: Tensor, divisor: Tensor, unit: Tensor | float = 1.0) -> Tensor:
    """Return numerator / divisor; NaN where the divisor is at most `DUST` times `unit`, its scale."""
    defined = divisor > DUST * unit
    return numerator / divisor.where(defined, math.nan)


def log(table: Tensor) -> Tensor:
    """Return the natural logarithm; NaN where the value is not positive."""
    return table.where(table > 0, math.nan).log()


def enough(count: Tensor, window: int) -> Tensor:
    """Return a bool mask, True where `count` is at least the fraction `COVERAGE` of `window` rows."""
    return count >= math.ceil(COVERAGE * window)


def rolling_mean(table: Tensor, window: int) -> Tensor:
    """Return the mean [T, N] of the last `window` rows; NaN where too few have a value (see `enough`)."""
    exists = table.isfinite()
    level = exists.double(), table.where(exists, 0.0)
    count, total = _over_window(level, window, lambda *states: tuple(map(torch.add, *states)))
    return (total / count.clamp(min=1)).where(enough(count, window), math.nan)


def rolling_max(table: Tensor, window: int) -> Tensor:
    """Return the maximum [T, N] of the last `window` rows; NaN where too few have a value (see `enough`)."""
    values = (table.where(table.isfinite(), -math.inf),)
    (greatest,) = _over_window(values, window, lambda *states: tuple(map(torch.maximum, *states)), fill=-math.inf)
    return greatest.where(~rolling_mean(table, window).isnan(), math.nan)


def rolling_moments(variables: Tensor, window: int) -> Moments:
    """Return the moments of K variables [K, T, N] over the last `window` rows; NaN where too few rows have a value.

    Blocks are merged as by Chan, Golub and LeVeque (1979). So a constant series has a deviation of exactly zero.
    """
    exists = variables.isfinite().all(dim=0)
    values = variables.where(exists, 0.0)
    nothing = values.new_zeros((len(values), *values.shape))
    rows, mean, deviation = _over_window((exists.double(), values, nothing), window, _merge)
    defined = enough(rows, window)
    return Moments(rows, mean.where(defined, math.nan), deviation.where(defined, math.nan))


def rolling_absolute_deviation(table: Tensor, window: int) -> Tensor:
    """Return the mean absolute deviation [T, N] of the last `window` rows from their mean; NaN as in `rolling_mean`."""
    mean = rolling_mean(table, window)
    count, total = torch.zeros_like(table), torch.zeros_like(table)
    for lag in range(window):
        distance = (delay(table, lag) - mean).abs()
        exists = distance.isfinite()
        count, total = count + exists, total + distance.where(exists, 0.0)
    return (total / count.clamp(min=1)).where(enough(count, window), math.nan)


def exponential_mean(table: Tensor, rate: float) -> Tensor:
    """Return the exponentially weighted mean [T, N] of each asset's values so far; NaN where the row has no value.

    It is sum_j (1 - rate)^j x_(j) / sum_j (1 - rate)^j, as in pandas' `ewm(alpha=rate, adjust=True, ignore_na=True)`.
    x_(0), x_(1), ... are the asset's values, counted back from the row. Each sum follows a linear recursion over
    the rows, which prefix doubling solves for all rows at once (Hillis and Steele 1986).
    """
    exists = table.isfinite()
    decay = torch.full_like(table, 1 - rate).where(exists, 1.0)
    sums, reach = torch.stack([table.where(exists, 0.0), exists.double()]), 1
    while reach < len(table):
        sums = sums + decay * delay(sums, reach, 0.0)
        decay = decay * delay(decay, reach, 0.0)
        reach *= 2
    return (sums[0] / sums[1]).where(exists, math.nan)


def _over_window(level: State, window: int, merge: Callable[[State, State], State], fill: float = 0.0) -> State:
    """Return statistics of `window` rows, merged by `merge` from those of one row, `level`; `fill` before row 0."""
    done: State = ()
    covered, span = 0, 1
    while True:
        if window & span:
            done = merge(done, tuple(delay(part, covered, fill) for part in level)) if done else level
            covered += span
        if covered == window:
            return done
        level = merge(level, tuple(delay(part, span, fill) for part in level))
        span *= 2


def _merge(later: State, earlier: State) -> State:
    count = later[0] + earlier[0]
    share = earlier[0] / count.clamp(min=1)
    gap = earlier[1] - later[1]
    spread = gap.unsqueeze(0) * (gap * (later[0] * share)).unsqueeze(1)
    return count, later[1] + gap * share, later[2] + earlier[2] + spread
