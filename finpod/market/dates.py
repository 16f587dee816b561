"""Dates, times and time zones from text and numbers. All values of a column decide how it is read."""

from __future__ import annotations

import re
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from finpod.errors import DataError
from finpod.market.calendar import NEW_YORK, offset_text
from finpod.market.parsing import BLANK, plain
from finpod.measures import Array

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_FORMS = (
    r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})",
    r"(?P<one>\d{1,2})[-/.](?P<two>\d{1,2})[-/.](?P<year>\d{4}|\d{2})",
    r"(?P<day>\d{1,2})[- ](?P<word>[A-Za-z]{3})[a-z]*[- ,]+(?P<year>\d{4}|\d{2})",
    r"(?P<word>[A-Za-z]{3})[a-z]*[- ](?P<day>\d{1,2}),? (?P<year>\d{4}|\d{2})",
    r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})",
)
"""Year first, two numbers before the year, the two with the month in letters, and YYYYMMDD."""
_TIME = (
    r"(?:[T ,]\s*(?P<time>\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)\s*(?P<half>[AaPp][Mm])?"
    r"\s*(?P<offset>Z|UTC|GMT|(?:UTC|GMT)?[+-]\d{2}(?::?\d{2})?)?)?$"
)
"""The time of day after a date, and its UTC offset; both may be missing."""
_UNITS = {"s": ("seconds", 1), "ms": ("milliseconds", 1e3), "us": ("microseconds", 1e6), "ns": ("nanoseconds", 1e9)}
_FIRST_SECOND, _LAST_SECOND = 315_532_800, 4_102_444_800
"""1980-01-01 and 2100-01-01 in seconds since 1970."""
_YEARS = np.array(["1700", "2201"], dtype="datetime64[ns]")
"""Valid years: from the first to before the second."""

INTRADAY = 3
"""Average distinct stamps a day from which bars are intraday."""
_INTRADAY_READING = "intraday bars, their times as in New York"


class Stamps(NamedTuple):
    """A column of dates and times."""

    clock: Array
    """[rows] datetime64[ns] as written, on the stamp's own clock; NaT for blank cells."""
    utc: Array
    """[rows] datetime64[ns] in UTC; NaT for stamps without a UTC offset."""
    reading: str
    """Description of how the stamps were read, if there was a choice; else empty."""

    def on_clock(self, zone: ZoneInfo | None) -> Array:
        """Return the stamps [rows] as datetime64[ns] on the clock of `zone`. Without a zone or an offset they stay as written."""
        if zone is None:
            return self.clock
        local = pd.DatetimeIndex(self.utc).tz_localize("UTC").tz_convert(zone).tz_localize(None)
        return np.where(np.isnat(self.utc), self.clock, local.to_numpy())


def holds_dates(column: pd.Series, digits: bool = False) -> bool:
    """Return True if the dtype or the first value is a date; with `digits` also for YYYYMMDD and seconds since 1970."""
    if column.dtype.kind == "M" or isinstance(column.dtype, pd.PeriodDtype):
        return True
    first = column.dropna().iloc[:1]
    if first.empty or (column.dtype.kind in "iufb" and not digits):
        return False
    text = str(first.iloc[0]).strip()
    if column.dtype.kind in "iuf" or (digits and text.isdecimal()):
        return _unit(first.astype(float)) is not None
    forms = _FORMS if digits else _FORMS[:-1]
    return any(re.match(f"{form}(?=$|[T ,])", text) for form in forms)


def parse_dates(
    column: pd.Series, name: str = "the frame", day_first: bool | None = None
) -> tuple[Array, set[str], str]:
    """Return the day of each bar [rows], or its time in New York if bars are intraday; the UTC offsets of the stamps; and how
    they were read, if there was a choice (see `parse_stamps`). Blank cells are an error.
    """
    stamps = parse_stamps(column, name, day_first)
    if (blank := np.isnat(stamps.clock)).any():
        raise DataError(f"{name}: row {int(blank.argmax()) + 1} has no date; every bar must have its date")
    if is_intraday(stamps.clock):
        return stamps.on_clock(NEW_YORK), set(), _INTRADAY_READING
    offsets = np.unique((stamps.clock - stamps.utc)[~np.isnat(stamps.utc)])
    days = stamps.clock.astype("datetime64[D]").astype("datetime64[ns]")
    return days, {offset_text(offset) for offset in offsets}, stamps.reading


def parse_stamps(column: pd.Series, name: str = "the frame", day_first: bool | None = None) -> Stamps:
    """Return the dates and times of a column in any unit, spelling or time zone.

    Whole numbers are YYYYMMDD, or seconds (or thousandths, ...) since 1970 in UTC. All values of the column decide whether
    03/04/2024 is in March or April; if none is above 12, `day_first` must say so. Raises DataError for the first value
    that is not a date of the years 1700 to 2200.
    """
    column = plain(column)
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    if column.dtype.kind == "f" and (column.dropna() % 1 == 0).all():
        column = column.astype("Int64")  # whole numbers beside blank cells
    codes, values = pd.factorize(column)
    stamps, reading = pd.Series(values), ""
    if stamps.dtype.kind != "M":
        text = pd.Series([str(value).strip() for value in values], dtype=object)
        text = text.mask(text.str.lower().isin(BLANK))
        if len(text.dropna()) and text.dropna().str.fullmatch(r"\d+(\.\d+)?").all():
            stamps, reading = _from_numbers(text, name)
        else:
            stamps = text
    if isinstance(stamps.dtype, pd.DatetimeTZDtype):
        clock, utc = stamps.dt.tz_localize(None), stamps.dt.tz_convert(None)
    elif stamps.dtype.kind == "M":
        clock, utc = stamps, pd.Series(np.full(len(stamps), "NaT", dtype="datetime64[ns]"))
    else:
        clock, utc, reading = _from_text(stamps, name, day_first)
    wrong = ~clock.between(*_YEARS, inclusive="left") & stamps.notna()
    if wrong.any():
        raise DataError(
            f"{name}: {str(stamps[wrong].iloc[0])!r} is not a date from 1700 to 2200; write YYYY-MM-DD or YYYY-MM-DD HH:MM:SS. "
            "Times of another zone than the exchange's need their UTC offset, as +HH:MM"
        )
    clock, utc = (np.append(part.to_numpy().astype("datetime64[ns]"), np.datetime64("NaT")) for part in (clock, utc))
    return Stamps(clock[codes], utc[codes], reading)  # the code of a blank cell is -1


def is_intraday(stamps: Array) -> bool:
    """Return True if there are three or more distinct stamps a day."""
    stamps = np.unique(stamps[~np.isnat(stamps)])
    return len(stamps) >= INTRADAY * max(len(np.unique(stamps.astype("datetime64[D]"))), 1)


def _unit(numbers: pd.Series) -> str | None:
    """Return the unit in which all numbers are dates from 1980 to 2100: "YYYYMMDD", s, ms, us or ns; None if there is none."""
    if (numbers % 1 == 0).all() and numbers.between(19000101, 21001231).all():
        return "YYYYMMDD"
    scales = ((unit, scale) for unit, (_, scale) in _UNITS.items())
    return next((unit for unit, n in scales if numbers.between(_FIRST_SECOND * n, _LAST_SECOND * n).all()), None)


def _from_numbers(text: pd.Series, name: str) -> tuple[pd.Series, str]:
    """Return numbers as text YYYYMMDD or as aware stamps, and how they were read."""
    numbers = pd.to_numeric(text)
    unit = _unit(numbers.dropna())
    if unit is None:
        wrong = next((value for value in numbers.dropna() if _unit(pd.Series([value])) is None), numbers.iloc[0])
        raise DataError(f"{name}: the date {wrong:.15g} is a number; write dates as YYYY-MM-DD")
    if unit == "YYYYMMDD":
        return text, ""
    return pd.to_datetime(numbers, unit=unit, utc=True), f"dates read as {_UNITS[unit][0]} since 1970, UTC"


def _from_text(text: pd.Series, name: str, day_first: bool | None) -> tuple[pd.Series, pd.Series, str]:
    """Return stamps [values] as written and in UTC, NaT for text that is not a date; and how they were read."""
    first = text.dropna().iloc[:1]
    form = next((form for form in _FORMS if first.str.match(form + _TIME).all()), _FORMS[0])
    parts, reading = text.str.extract(f"^{form}{_TIME}"), ""
    if "one" in parts:
        one, two = (pd.to_numeric(parts[part]) for part in ("one", "two"))
        day_first = _day_first(text, one, two, name, day_first)
        parts["day"], parts["month"] = (one, two) if day_first else (two, one)
        reading = f"dates read {'day' if day_first else 'month'} first, such as {first.iloc[0]}"
    elif "word" in parts:
        parts["month"] = parts["word"].str.lower().map({month: number for number, month in enumerate(_MONTHS, 1)})
    fields = parts[["year", "month", "day"]].apply(pd.to_numeric)
    short = parts["year"].str.len() == 2
    fields["year"] += np.where(short, np.where(fields["year"] < 69, 2000, 1900), 0)
    fields["year"] = fields["year"].where(fields["year"].between(1700, 2200))
    time = parts["time"].fillna("0:00")
    hours = pd.to_timedelta(time.where(time.str.count(":") == 2, time + ":00"))
    noon, half = pd.Timedelta("12h"), parts["half"].str.lower()
    hours = hours.where(half.isna(), hours % noon + noon * (half == "pm").astype(int))
    clock = pd.to_datetime(fields, errors="coerce").astype("datetime64[ns]") + hours.where(hours < 2 * noon)
    offset = parts["offset"].str.extract(r"([+-]\d\d):?(\d\d)?").fillna("00")
    minutes = pd.to_timedelta(offset[0] + ":" + offset[1] + ":00")
    return clock, (clock - minutes).where(parts["offset"].notna()), reading


def _day_first(text: pd.Series, one: pd.Series, two: pd.Series, name: str, day_first: bool | None) -> bool:
    """Return True if `one`, not `two`, is the day, by values above 12 or `day_first`. Raises DataError for contradictions."""
    above = {True: text[one > 12], False: text[two > 12]}
    shown = [choice for choice, values in above.items() if len(values)]
    if not shown and day_first is None:
        raise DataError(
            f"{name}: every date, such as {text.iloc[0]!r}, may have the day first or the month first; say which with "
            "day_first=True or day_first=False",
            argument="day_first",
        )
    chosen = shown[0] if day_first is None else day_first
    if shown and shown != [chosen]:
        reason = f"like {above[chosen].iloc[0]!r}" if day_first is None else f"as day_first={day_first} says"
        raise DataError(
            f"{name}: {above[not chosen].iloc[0]!r} cannot be read {'day' if chosen else 'month'} first {reason}; write all "
            "dates one way, best as YYYY-MM-DD"
        )
    return chosen
