"""Metrics of return and risk of an equity curve [T] with T values, or of a batch of E curves [T, E].

    V         equity V_0..V_n; V_0 is the cash before the first order, so a curve of n returns has n + 1 points
    r         r_t = V_t / V_{t-1} - 1, simple returns
    total     V_n / V_0 - 1
    CAGR      (V_n / V_0)^(P / n) - 1 with P periods per year (see `finpod.periods`)
    volatility std(r, ddof=1) sqrt(P)
    Sharpe    mean(r - f) / std(r - f, ddof=1) sqrt(P) with f = (1 + yearly risk-free rate)^(1 / P) - 1
    Sortino   mean(r) / sqrt(mean(min(r, 0)^2)) sqrt(P); both means are over all n returns
    drawdown  V_t / max(V_0..V_t) - 1, never above zero; the maximum drawdown is its minimum
    Calmar    CAGR / |maximum drawdown|, with the sign of CAGR

Returns, volatility and drawdowns are fractions, not percentages. Ratios are NaN for a divisor below 1e-12 per period.
If a curve reaches zero or less, it is set to zero from there on, and all later returns are zero. Leading NaN are
skipped: the curve has not begun. Any other NaN in the input of `metrics` is an error. Inputs may be numpy arrays,
lists, pandas Series or frames, or torch tensors. For inputs [T, E], results are arrays [E].
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from finpod.errors import InputError, require_number
from finpod.periods import Array, dates_of, periods_of, session_dates

DUST = 1e-12
"""A ratio is NaN if its divisor per period is below this value, because the divisor is then only a rounding error."""
RATES = (-0.99, 1)
"""Smallest and largest yearly risk-free rate that is allowed, as fractions."""


@dataclass(frozen=True)
class Metrics:
    """Return and risk of a curve, as `finpod.measures` defines them; floats for a curve [T], arrays [E] for a batch."""

    total_return: float
    cagr: float
    volatility: float  # NaN for a single return
    sharpe: float
    sortino: float
    max_drawdown: float  # zero or negative; the peak may be the first value
    calmar: float
    days: int  # number of returns


@dataclass(frozen=True)
class Relative:
    """Metrics of a curve (returns r) relative to a benchmark (returns b) on common dates, with P periods per year."""

    excess: float  # total return of the curve minus that of the benchmark
    beta: float  # cov(r, b) / var(b)
    alpha: float  # (mean(r) - beta mean(b)) P, without a risk-free rate
    information_ratio: float  # mean(r - b) / std(r - b, ddof=1) sqrt(P)
    tracking_error: float  # std(r - b, ddof=1) sqrt(P)


@dataclass(frozen=True)
class Drawdown:
    """One drop below a peak, and its recovery."""

    peak: np.datetime64  # last date at the peak
    valley: np.datetime64  # date of the lowest value
    recovery: np.datetime64 | None  # first later date at or above the peak; None if there is none
    depth: float  # lowest value / value at the peak - 1
    sessions: int  # number of values (sessions of a daily curve) after the peak, up to the recovery or the end


def metrics(
    equity: Any = None, *, returns: Any = None, risk_free: float = 0.0, periods_per_year: float | None = None
) -> Metrics:
    """Return the metrics of an equity curve [n + 1] or [n + 1, E], initial cash first, or of `returns` [n] or [n, E].

    `risk_free` is a yearly rate. By default, `periods_per_year` is measured from the dates of a Series or frame;
    without dates it is 252. Issues a PeriodsWarning if the dates contradict the given number, are too few, or give an
    unusual number. Raises InputError unless exactly one of `equity` and `returns` is given. Raises InputError also for
    values with gaps or infinities, too few values, a curve that does not start above zero, and dates out of order.
    """
    if (equity is None) == (returns is None):
        raise InputError("metrics() takes either an equity curve or returns=...; pass exactly one of them")
    require_number("risk_free", risk_free, *RATES)
    if returns is None:
        dates, curve = dates_of(equity, "the equity curve"), _curve(equity)
        steps = _steps(curve)
    else:
        dates, (curve, steps) = dates_of(returns, "the series of returns"), _compounded(returns)
    periods_per_year = periods_of(periods_per_year, dates)
    days = np.isfinite(steps).sum(axis=0)
    growth = curve[-1] / _first(curve)
    mean, deviation = np.nanmean(steps, axis=0), _deviation(steps)
    downside = np.sqrt(np.nanmean(np.minimum(steps, 0) ** 2, axis=0))
    daily_rate = (1 + risk_free) ** (1 / periods_per_year) - 1
    with np.errstate(over="ignore"):
        yearly = growth ** (periods_per_year / days) - 1
    cagr = np.where(np.isfinite(yearly), yearly, np.nan)
    deepest = np.nanmin(drawdowns(curve), axis=0)
    year = np.sqrt(periods_per_year)
    sharpe, sortino = _ratio(mean - daily_rate, deviation) * year, _ratio(mean, downside) * year
    figures = (growth - 1, cagr, deviation * year, sharpe, sortino, deepest, _ratio(cagr, -deepest), days)
    return Metrics(*map(_plain, figures))


def relative(equity: Any, benchmark: Any, *, periods_per_year: float | None = None) -> Relative:
    """Return the metrics of a curve [T] or [T, E] relative to a benchmark [T]. NaN marks a date without a value.

    Dates on which any curve or the benchmark has no value are skipped, so a return may span a gap. Two dated pandas
    objects are joined on local dates; if intraday, on times. Other inputs must have equal lengths. Undefined metrics
    are NaN. Raises InputError for unequal lengths, a series that does not start above zero, and dates out of order.
    """
    curve, other, dates = _joined(equity, benchmark)
    common = np.isfinite(other) & (np.isfinite(curve) if curve.ndim == 1 else np.isfinite(curve).all(axis=1))
    periods_per_year = periods_of(periods_per_year, None if dates is None else dates[common])
    if common.sum() < 2:
        return Relative(*[_plain(np.full(curve.shape[1:], np.nan))] * 5)
    curve, other = _curve(curve[common]), _curve(other[common])
    other = other if curve.ndim == 1 else other[:, None]
    steps, benchmark_steps = _steps(curve), _steps(other)
    spread = benchmark_steps - benchmark_steps.mean(axis=0)
    variance = (spread * spread).sum(axis=0)
    sound = _deviation(benchmark_steps) >= DUST
    covariance = ((steps - steps.mean(axis=0)) * spread).sum(axis=0)
    beta = np.where(sound, covariance / np.where(sound, variance, 1.0), np.nan)
    active = steps - benchmark_steps
    deviation, year = _deviation(active), np.sqrt(periods_per_year)
    figures = (
        (curve[-1] / curve[0] - 1) - (other[-1] / other[0] - 1),
        beta,
        (steps.mean(axis=0) - beta * benchmark_steps.mean(axis=0)) * periods_per_year,
        _ratio(active.mean(axis=0), deviation) * year,
        deviation * year,
    )
    return Relative(*map(_plain, figures))


def simple_returns(equity: Any) -> Any:
    """Return the returns [n] or [n, E] of a curve [n + 1] or [n + 1, E]; zero after a value at or below zero.

    Other returns from or to a missing value are NaN. Series and frames keep their type; a return is dated at its end.
    """
    steps = _steps(_ruined(_array(equity)))
    named = equity.iloc[1:].astype(float) if hasattr(equity, "iloc") else steps
    named[:] = steps
    return named


def returns_per_year(known: Any, periods_per_year: float) -> float:
    """Return the number of returns per year of a curve with gaps. `known` [T] is True where the curve has values."""
    rows = np.flatnonzero(known)
    return periods_per_year * ((len(rows) - 1) / float(rows[-1] - rows[0]) if len(rows) > 1 else 1.0)


def drawdowns(equity: Any) -> Array:
    """Return the drawdowns (value / highest value so far - 1) of a curve [T] or [T, E]; NaN where the curve is NaN."""
    curve = _ruined(_array(equity))
    peak = np.fmax.accumulate(curve, axis=0)
    return np.where(peak > 0, curve / np.where(peak > 0, peak, 1.0) - 1, np.nan)


def drawdown_table(equity: Any, dates: Any, top: int = 5) -> list[Drawdown]:
    """Return the `top` largest drawdowns of a curve [T] at `dates` [T], largest first. Missing values are skipped."""
    curve, days = _array(equity), session_dates(dates)
    if curve.ndim != 1 or curve.shape != days.shape:
        raise InputError(f"the curve has shape {curve.shape}, the dates {days.shape}; pass series [T] of equal length")
    known = np.isfinite(curve)
    curve, days = curve[known], days[known]
    depth = drawdowns(curve)
    edges = np.flatnonzero(np.diff(depth < -DUST, prepend=False, append=False))
    spells = []
    for first, stop in edges.reshape(-1, 2).tolist():
        valley = first + int(depth[first:stop].argmin())
        recovery = days[stop] if stop < len(curve) else None
        sessions = min(stop, len(curve) - 1) - (first - 1)
        spells.append(Drawdown(days[first - 1], days[valley], recovery, float(depth[valley]), sessions))
    return sorted(spells, key=lambda spell: spell.depth)[:top]


def rolling_sharpe(
    returns: Any, window: int, *, risk_free: float = 0.0, periods_per_year: float | None = None
) -> Array:
    """Return yearly Sharpe ratios [n] or [n, E] of the last `window` returns at each date, NaN if there are fewer."""
    periods_per_year = periods_of(periods_per_year, dates_of(returns, "the series of returns"))
    require_number("risk_free", risk_free, *RATES)
    mean, deviation = _rolling(returns, window)
    return _ratio(mean - ((1 + risk_free) ** (1 / periods_per_year) - 1), deviation) * np.sqrt(periods_per_year)


def rolling_volatility(returns: Any, window: int, *, periods_per_year: float | None = None) -> Array:
    """Return the yearly volatility [n] or [n, E] of the last `window` returns at each date, NaN if there are fewer."""
    periods_per_year = periods_of(periods_per_year, dates_of(returns, "the series of returns"))
    return _rolling(returns, window)[1] * np.sqrt(periods_per_year)


def period_returns(equity: Any, dates: Any, period: Literal["month", "year"]) -> tuple[Array, Array]:
    """Return (periods [K], returns [K]) of a curve [T] by calendar 'month' or 'year'. Periods are datetime64[M] or [Y].

    The first return starts from the first value. Any other starts from the last value before its period. Missing values
    are skipped. A period with only missing values has no return and, inside the curve, makes the next return NaN.
    """
    curve, days = _ruined(_array(equity)), session_dates(dates)
    known, by = np.isfinite(curve), {"month": "datetime64[M]", "year": "datetime64[Y]"}[period]
    number = np.unique(days.astype(by), return_inverse=True)[1][known]
    curve, periods = curve[known], days[known][1:].astype(by)
    if not len(periods):
        return periods, np.empty(0)
    at = np.append(0, np.append(np.flatnonzero(periods[1:] != periods[:-1]), len(periods) - 1) + 1)
    return periods[at[1:] - 1], np.where(np.diff(number[at]) > 1, np.nan, _steps(curve[at]))


def _array(values: Any) -> Array:
    """Convert a list, Series, frame or tensor to a float64 array [T] or [T, E]."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"cannot read a {type(values).__name__} as numbers ({error}); pass numbers") from error
    if array.ndim not in (1, 2):
        raise InputError(f"the values have shape {array.shape}; pass a series [T] or a batch [T, E]")
    return array


def _curve(equity: Any) -> Array:
    """Check a curve. Return it, set to zero from the first value at or below zero on. Leading NaN are kept."""
    curve = _array(equity)
    _check_gaps(curve, "the equity curve", least=2)
    if (start := _first(curve).min()) <= 0:
        raise InputError(f"a curve starts at {start:g}; it must start above zero", argument="equity")
    return _ruined(curve)


def _compounded(returns: Any) -> tuple[Array, Array]:
    """Return (curve, returns). The curve starts at 1, and leading NaN leave it at 1. After ruin, returns are 0."""
    steps = _array(returns)
    _check_gaps(steps, "the series of returns", least=1)
    waiting = np.isnan(steps)
    growth = np.concatenate([np.ones_like(steps[:1]), np.where(waiting, 0.0, steps) + 1])
    curve = _ruined(np.cumprod(growth, axis=0))
    return curve, np.where(curve[:-1] > 0, np.maximum(steps, -1.0), np.where(waiting, np.nan, 0.0))


def _check_gaps(values: Array, what: str, least: int) -> None:
    """Raise InputError for too few values, infinities, and NaN after the first value."""
    known = ~np.isnan(values)
    fewest = known.sum(axis=0).min() if known.size else 0
    if fewest < least:
        raise InputError(f"{what} is too short (values: {fewest}); pass more values")
    wrong = np.isinf(values) | (~known & np.logical_or.accumulate(known, axis=0))
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        raise InputError(f"{what} has {values[place]} at position {place[0]}; drop or replace NaN and infinities")


def _first(values: Array) -> Array:
    """Return the first value of each curve that is not NaN, as an array [] or [E]."""
    row = (~np.isnan(values)).argmax(axis=0)
    return np.take_along_axis(values, np.expand_dims(row, 0), axis=0)[0]


def _ruined(curve: Array) -> Array:
    """Return the curve, set to zero from the first value at or below zero."""
    return np.where(np.logical_or.accumulate(curve <= 0, axis=0) & ~np.isnan(curve), 0.0, curve)


def _steps(curve: Array) -> Array:
    """Return the simple returns [n] or [n, E] of a curve; zero after a value of zero, NaN before the curve begins."""
    before = curve[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(before == 0, 0.0, curve[1:] / before - 1)


def _deviation(steps: Array) -> Array:
    """Return the sample standard deviation (ddof=1) of the values that are not NaN. It is NaN for a single value."""
    spread = np.where(np.isfinite(steps), steps - np.nanmean(steps, axis=0), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((spread**2).sum(axis=0) / (np.isfinite(steps).sum(axis=0) - 1))


def _ratio(value: Array, divisor: Array) -> Array:
    """Return value / divisor; NaN where the divisor is NaN or below `DUST`."""
    sound = np.asarray(divisor) >= DUST
    return np.where(sound, value / np.where(sound, divisor, 1.0), np.nan)


def _plain(figure: Array) -> Any:
    """Return a 0-d array as a Python number, other arrays unchanged."""
    return figure if np.ndim(figure) else np.asarray(figure).item()


def _rolling(returns: Any, window: int) -> tuple[Array, Array]:
    require_number("window", window, 1, whole=True)
    steps = _array(returns)
    mean, deviation = np.full_like(steps, np.nan), np.full_like(steps, np.nan)
    if len(steps) >= window:
        views = sliding_window_view(steps, window, axis=0)
        mean[window - 1 :], deviation[window - 1 :] = views.mean(axis=-1), views.std(axis=-1, ddof=1)
    return mean, deviation


def _joined(equity: Any, benchmark: Any) -> tuple[Array, Array, Array | None]:
    """Return (curve, benchmark, dates) of equal length. Of two dated pandas objects, only common dates are kept."""
    curve, other = _array(equity), _array(benchmark)
    dates, benchmark_dates = dates_of(equity, "the equity curve"), dates_of(benchmark, "the benchmark")
    if dates is not None and benchmark_dates is not None:
        keys = [key.astype("datetime64[D]") for key in (dates, benchmark_dates)]
        if any((key[1:] == key[:-1]).any() for key in keys):  # intraday: a date is repeated
            keys = [dates, benchmark_dates]
        _, rows, benchmark_rows = np.intersect1d(keys[0], keys[1], return_indices=True)
        return curve[rows], other[benchmark_rows], dates[rows]
    if other.ndim != 1 or len(curve) != len(other):
        raise InputError(
            f"the benchmark has shape {other.shape}, and the curve {curve.shape}; pass {len(curve)} benchmark values",
            argument="benchmark",
        )
    return curve, other, benchmark_dates if dates is None else dates
