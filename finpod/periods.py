"""Measures the number of bars per year from dates, compares it with the user's number, and writes it as text.

    sessions per year   (S - 1) / (days from the first to the last of S session dates / 365.25). If the result is
                        within 6 % of a usual number, such as 252, that number replaces it. Otherwise it is rounded
    bars per session    median number of bars that share a date: 1 for daily, weekly and monthly bars
    bars per year       sessions per year times bars per session

With few dates, regular gaps between the dates (weekly to yearly) give the sessions per year. With irregular gaps, the
number is 252. data/README.md has the rule.
"""

from __future__ import annotations

import math
import warnings
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finpod.errors import InputError, require_number

Array = NDArray[Any]

USUAL = np.array([365, 252, 126, 52, 26, 12, 4, 1])
"""Usual numbers of sessions per year: 365 in 24/7 markets, 252 on exchanges, 126 for every second session, ..."""
DEFAULT = 252
"""Periods per year of values without dates, or with too few dates."""
TOLERANCE = 0.06
"""Relative distance within which a measured number is replaced by a usual one."""
FEWEST_DATES, FEWEST_DAYS = 20, 28
"""A measurement needs at least this many session dates, and this many days from the first to the last."""
YEAR, SLACK = 366, 4
"""If dates span fewer than `YEAR` days, holidays and weekends may change the span by up to `SLACK` days."""
REGULAR = ((6, 8, 52), (13, 15, 26), (27, 33, 12), (85, 95, 4), (360, 370, 1))
"""Regular gaps as (shortest and longest gap in days, bars per year). Ends of months are up to 33 days apart."""
_WAY_OUT = "pass periods_per_year if another number is right"
_FIRST_DATE = 17000101
"""Integers of at least this value in an index may be dates (YYYYMMDD or seconds). Such an index is refused."""
LONG_GAP = 10
"""A gap longer than this multiple of the median gap counts as missing data."""
CONTRADICTION = 1.1
"""The user's number and the measured number contradict each other if they differ by more than this factor."""


class PeriodsWarning(UserWarning):
    """Warning that the dates do not determine the periods per year, or that they contradict the user's number."""


class Periods(NamedTuple):
    """Bars and sessions per year, measured from dates."""

    sessions_per_year: float  # bars per year, if bars are longer than a session
    bars_per_session: float  # median number of bars on one date; 1 for daily and longer bars
    rate: float  # sessions per year, measured without long gaps and not rounded; NaN for fewer than two dates
    is_measured: bool  # whether there were enough dates for a measurement
    note: str  # warning that the number of sessions may be wrong; empty if there is no doubt

    @property
    def per_year(self) -> float:
        """Bars per year: `sessions_per_year` times `bars_per_session`."""
        return plain(self.sessions_per_year * self.bars_per_session)


def measure(dates: Array) -> Periods:
    """Return bars and sessions per year, measured from datetime64 `dates` [T] in any order. A session is one day."""
    sessions, counts = np.unique(np.asarray(dates).astype("datetime64[D]"), return_counts=True)
    bars = float(np.median(counts)) if len(counts) else 1.0
    gaps = np.diff(sessions).astype(np.int64)
    span = int(gaps.sum())
    rate = len(gaps) * 365.25 / span if span else math.nan
    short = gaps[gaps <= LONG_GAP * np.median(gaps)] if span else gaps
    dense = len(short) * 365.25 / short.sum() if span else math.nan
    if len(sessions) < FEWEST_DATES or span < FEWEST_DAYS:
        for least, most, yearly in REGULAR:
            fitting = int(((gaps >= least) & (gaps <= most)).sum())
            if fitting >= 3 and 2 * fitting > len(gaps):
                return Periods(yearly, bars, dense, True, "")
        few = f"{len(sessions)} dates over {span} days are too few to measure the sessions per year"
        return Periods(DEFAULT, bars, dense, False, f"{few}; {DEFAULT} are assumed; {_WAY_OUT}")
    tolerance = TOLERANCE + (SLACK / span if span < YEAR else 0.0)
    nearest = int(USUAL[np.abs(np.log(rate / USUAL)).argmin()])
    is_usual = abs(rate / nearest - 1) <= tolerance
    number = nearest if is_usual else round(rate) if rate >= 1 else rate
    doubt = "" if is_usual else ", which is an unusual number"
    if abs(dense / number - 1) > tolerance:
        doubt = f", or {dense:.0f} without the long gaps (up to {gaps.max()} days)"
    note = f"the dates have {number:g} sessions per year{doubt}; yearly figures use {number:g}; {_WAY_OUT}"
    return Periods(number, bars, dense, True, note if doubt else "")


def contradiction(periods_per_year: float, dates: Array) -> str:
    """Return a warning if `dates` [T] contradict `periods_per_year`; empty if they agree or the dates are too few."""
    measured = measure(dates)
    numbers = (measured.per_year, measured.rate * measured.bars_per_session)
    agrees = any(max(periods_per_year / each, each / periods_per_year) <= CONTRADICTION for each in numbers)
    if agrees or not measured.is_measured:
        return ""
    return (
        f"periods_per_year is {periods_per_year:g}, but the dates have about {numbers[0]:,.0f} bars per year; "
        f"yearly figures use {periods_per_year:g}; omit periods_per_year to use the measured number"
    )


def is_weekly_or_longer(dates: Array) -> bool:
    """Return True if the median gap between distinct days of `dates` [T] is six days or more."""
    gaps = np.diff(np.unique(np.asarray(dates).astype("datetime64[D]"))).astype(np.int64)
    return bool(len(gaps) and np.median(gaps) >= REGULAR[0][0])


def check_periods(value: Any) -> float:
    """Return the periods per year, as an int if whole. Raises InputError unless `value` is positive and finite."""
    require_number("periods_per_year", value, 1e-12)
    return plain(float(value))


def plain(value: float) -> float:
    """Return a whole number as an int, so that JSON and text show no decimals. Return other numbers unchanged."""
    return int(value) if float(value).is_integer() else float(value)


def yearly_note(periods_per_year: float, sessions_per_year: float) -> str:
    """Return a line that states the bars per year, to print with annualised metrics."""
    return f"yearly figures: {describe(periods_per_year, sessions_per_year)}"


def describe(periods_per_year: float, sessions_per_year: float) -> str:
    """Return a text such as '252 sessions per year', '52 bars per year' or '98,280 bars per year (252 sessions)'."""
    number = f"{round(periods_per_year, 2):,.10g}"
    if periods_per_year > sessions_per_year:
        return f"{number} bars per year ({sessions_per_year:,.6g} sessions)"
    if periods_per_year > 1.5 * USUAL[2]:
        return f"{number} sessions per year"
    return f"{number} bar{'' if number == '1' else 's'} per year"


def periods_of(periods_per_year: float | None, dates: Array | None) -> float:
    """Return `periods_per_year` or, if it is None, the number measured from `dates` [T]. Without dates, it is 252.

    Issues a `PeriodsWarning`, attributed to the caller's caller, if the dates contradict the given number, are too few
    for a measurement, or give an unusual number. Raises InputError for a number that is not positive and finite.
    """
    if periods_per_year is not None:
        number = check_periods(periods_per_year)
        note = "" if dates is None else contradiction(number, dates)
    elif dates is None:
        return DEFAULT
    else:
        measured = measure(dates)
        number, note = measured.per_year, measured.note
    if note:
        warnings.warn(note, PeriodsWarning, stacklevel=3)
    return number


def session_dates(dates: Any) -> Array:
    """Return dates [T] as datetime64[D]. A time-zone-aware date becomes its local day."""
    if getattr(dates, "tz", None) is not None:
        dates = dates.tz_localize(None)
    return np.asarray(dates).astype("datetime64[D]")


def dates_of(values: Any, what: str) -> Array | None:
    """Return the dates [T] of the index of a Series or frame as datetime64[ns] in local time.

    Reads a DatetimeIndex or PeriodIndex, `date` objects and ISO text. Returns None without an index and for
    an index without dates. Raises InputError for unreadable dates, and for missing, repeated or unordered labels.
    """
    index: Any = getattr(values, "index", None)
    if not hasattr(index, "is_monotonic_increasing"):  # the `index` of a list is a method
        return None
    stamps = _stamps(index)
    labels: Any = index if stamps is None else stamps
    if index.nlevels == 1 and labels.hasnans:
        raise InputError(f"{what} has no date at position {int(labels.isna().argmax())}; drop the row or set a date")
    if labels.has_duplicates or not labels.is_monotonic_increasing:
        pairs = (labels[row - 1 : row + 1] for row in range(1, len(labels)))
        pair = next(pair for pair in pairs if pair.has_duplicates or not pair.is_monotonic_increasing)
        one, other = (str(label).removesuffix(" 00:00:00") for label in pair)
        raise InputError(f"{what} is not in order: {one} is followed by {other}; sort it, and keep one value per date")
    return None if stamps is None else stamps.tz_localize(None).to_numpy().astype("datetime64[ns]")


def _stamps(index: Any) -> Any:
    """Return the dates of a pandas index, or None if the index has no dates. Raises InputError for unreadable dates."""
    import pandas as pd

    if isinstance(index, pd.PeriodIndex):
        return index.to_timestamp()
    kind = index.inferred_type
    is_text = kind == "string" and index.str.contains(r"\d").any()
    if is_text or kind in ("datetime64", "datetime", "date"):
        with suppress(ValueError):  # for text in another format, and for time zones that differ
            return pd.DatetimeIndex(pd.to_datetime(index, format="ISO8601" if is_text else None))
    elif kind != "integer" or not len(index) or index.max() < _FIRST_DATE:
        return None
    raise InputError(
        f"the index, which holds {index[0]!r}, must hold dates as YYYY-MM-DD; convert it with pandas.to_datetime"
    )
