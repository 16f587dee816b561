"""Dates, times and time zones from text and numbers. All values of a column decide how it is read."""

from __future__ import annotations

import re
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from finpod.errors import DataError
from finpod.market.calendar import offset_text
from finpod.market.parsing import BLANK, is_text, plain
from finpod.measures import Array

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_FORMS = (
    r"^(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})(?=$|[T ])",
    r"^(?P<one>\d{1,2})[-/.](?P<two>\d{1,2})[-/.](?P<year>\d{4}|\d{2})(?=$|[T ,])",
    r"^(?P<day>\d{1,2})[- ](?P<word>[A-Za-z]{3})[a-z]*[- ,]+(?P<year>\d{4}|\d{2})(?=$|[T ,])",
    r"^(?P<word>[A-Za-z]{3})[a-z]*[- ](?P<day>\d{1,2}),? (?P<year>\d{4}|\d{2})(?=$|[T ,])",
    r"^(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})(?=$|[T ])",
)
"""Year first, two numbers before the year, the two with the month in letters, and YYYYMMDD."""
_TIME = r"(\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?) *([AaPp][Mm])?"
_OFFSET = r"\d{2}:\d{2}.*?([+-]\d{2}:?\d{2})$"
_EPOCHS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_FIRST_SECOND, _LAST_SECOND = 315_532_800, 4_102_444_800
"""1980-01-01 and 2100-01-01 in seconds since 1970."""

FIRST_YEAR, LAST_YEAR = 1700, 2200
"""Valid years."""
_CLOCK = r"[T ,]\s*(\d{1,2}:.*)$"
"""The time of day after a date."""
_ZONE = r"\s*(?:Z|UTC|[+-]\d{2}(?::?\d{2})?)$"
"""A UTC offset after a time of day."""
_CLOCK_TIME = rf"\d{{1,2}}:\d{{2}}(:\d{{2}}(\.\d+)?)?(\s*[AaPp][Mm])?({_ZONE.removesuffix('$')})?"
"""A valid time of day."""
_REST = r"^\d+[-/.]\d+[-/.]\d+[T ,]+\S|[^\d]$"
"""Text after a date that is not a time of day."""

INTRADAY = 3
"""Average distinct stamps a day from which bars are intraday."""
_INTRADAY_READING = "intraday bars, their times as in New York"


class Dates(NamedTuple):
    """A column of stamps."""

    days: Array
    """[rows] datetime64[ns], the day of each stamp on its own clock; the stamp itself for intraday bars."""
    offsets: tuple[str, ...]
    """UTC offsets of the stamps, sorted; empty if they have none."""
    reading: str
    """How they were read, if that was a decision; else empty."""


def holds_dates(column: pd.Series, digits: bool = False) -> bool:
    """Whether the column holds dates, by its dtype or first value; with `digits` also YYYYMMDD and seconds since 1970."""
    if column.dtype.kind == "M" or isinstance(column.dtype, pd.PeriodDtype):
        return True
    if column.dtype.kind in "iufb" and not digits:
        return False
    present = column.dropna()
    if present.empty:
        return False
    if column.dtype.kind in "iuf":
        return _unit(present.iloc[:1].astype(float)) is not None
    first = str(present.iloc[0]).strip()
    if digits and first.isdecimal():
        return _unit(pd.Series([float(first)])) is not None
    return any(re.match(form, first) for form in _FORMS[:-1]) or (digits and re.match(_FORMS[-1], first) is not None)


def parse_dates(dates: pd.Series, name: str = "the frame", day_first: bool | None = None) -> Dates:
    """The day of each stamp in any unit, spelling or time zone; for intraday bars the stamp itself, in New York.

    Whole numbers are YYYYMMDD, or seconds (or thousandths, ...) since 1970 in UTC. All values of the column decide whether
    03/04/2024 is in March or April; if none is above 12, `day_first` must say so. Raises DataError for the first value
    that is not a date.
    """
    dates = plain(dates)
    if isinstance(dates.dtype, pd.PeriodDtype):
        dates = dates.dt.to_timestamp()
    reading = ""
    if dates.dtype.kind in "iuf" or _all_digits(dates):
        dates, reading = _from_numbers(dates, name)
    if isinstance(dates.dtype, pd.DatetimeTZDtype):
        stamps = pd.DatetimeIndex(dates.dropna().unique())
        local, utc = (stamps.tz_convert(zone).tz_localize(None).to_numpy() for zone in (stamps.tz, "UTC"))
        offsets = tuple(sorted(offset_text(distance) for distance in np.unique(local - utc)))
        if is_intraday(local):
            return Dates(_new_york(dates), (), _INTRADAY_READING)
        dates = dates.dt.tz_localize(None)
    else:
        offsets = ()
    if dates.dtype.kind == "M":
        parsed = dates.to_numpy()
        if is_intraday(parsed):
            return Dates(parsed.astype("datetime64[ns]"), offsets, _INTRADAY_READING)
    else:
        codes, unique = pd.factorize(dates, use_na_sentinel=False)
        text = pd.Series(pd.Index(unique).astype(object)).astype(str).str.strip()
        days, form = _days(text, name, day_first)
        reading = form or reading
        signs = text.str.extract(_OFFSET)[0].dropna().unique()
        offsets = tuple(sorted({f"{sign[:3]}:{sign[-2:]}" for sign in signs}))
        parsed = days[codes]
        if len(unique) >= INTRADAY * len(np.unique(days)) and not np.isnat(days).any():
            return Dates(_stamps(text, days, bool(offsets))[codes], (), _INTRADAY_READING)
    if np.isnat(parsed).any():
        wrong = dates.iloc[int(np.argmax(np.isnat(parsed)))]
        raise DataError(f"{name}: {str(wrong)!r} is not a date; write dates as YYYY-MM-DD")
    return Dates(parsed.astype("datetime64[D]").astype("datetime64[ns]"), offsets, reading)


def _all_digits(dates: pd.Series) -> bool:
    """Whether a column of text holds only whole numbers."""
    if dates.dtype.kind == "M" or len(dates) == 0 or not str(dates.iloc[0]).strip().isdecimal():
        return False
    return all(str(value).strip().isdecimal() for value in pd.unique(dates))


def _unit(numbers: pd.Series) -> str | None:
    """The unit in which all numbers are dates from 1980 to 2100: "YYYYMMDD", s, ms, us or ns; None for none."""
    if (numbers % 1 == 0).all() and numbers.between(19000101, 21001231).all():
        return "YYYYMMDD"
    scales = zip(_EPOCHS, (1, 1e3, 1e6, 1e9), strict=True)
    return next((u for u, scale in scales if numbers.between(_FIRST_SECOND * scale, _LAST_SECOND * scale).all()), None)


def _from_numbers(dates: pd.Series, name: str) -> tuple[pd.Series, str]:
    """Numbers as text YYYYMMDD or as aware stamps, and how they were read."""
    numbers = pd.to_numeric(dates.astype(str) if is_text(dates) else dates)
    unit = _unit(numbers)
    if unit is None:
        wrong = next((value for value in numbers if _unit(pd.Series([value])) is None), numbers.iloc[0])
        raise DataError(f"{name}: the date {wrong} is a number; write dates as YYYY-MM-DD")
    if unit == "YYYYMMDD":
        return numbers.astype("int64").astype(str), ""
    return pd.to_datetime(numbers, unit=unit, utc=True), f"dates read as {_EPOCHS[unit]} since 1970, UTC"


def _stamps(text: pd.Series, days: Array, aware: bool) -> Array:
    """[values] the days with the times in the text, midnight without one; in New York."""
    if aware:
        return _new_york(pd.to_datetime(text, utc=True, format="ISO8601"))
    parts = text.str.extract(_TIME)
    times = parts[0].fillna("0:00")
    hours = pd.to_timedelta(times.where(times.str.count(":") == 2, times + ":00"))
    half = parts[1].str.lower()
    noon = pd.Timedelta("12h")
    hours = hours.where(half.isna(), hours % noon + noon * (half == "pm").astype(int))
    return days + hours.to_numpy().astype("timedelta64[ns]")


def is_intraday(stamps: Array) -> bool:
    """Whether there are several distinct stamps a day."""
    stamps = np.unique(stamps[~np.isnat(stamps)])
    return len(stamps) >= INTRADAY * max(len(np.unique(stamps.astype("datetime64[D]"))), 1)


def _new_york(stamps: pd.Series) -> Array:
    return stamps.dt.tz_convert("America/New_York").dt.tz_localize(None).to_numpy().astype("datetime64[ns]")


def _days(text: pd.Series, name: str, day_first: bool | None) -> tuple[Array, str]:
    """[values] days, NaT for text that is not a date; and how they were read, if that was a decision."""
    for form in _FORMS:
        parts = text.str.extract(form)
        if parts["year"].iloc[:1].notna().all():  # the form of the first value is that of all
            break
    else:
        return np.full(len(text), "NaT", dtype="datetime64[ns]"), ""
    reading = ""
    if "one" in parts:
        one, two = (pd.to_numeric(parts[part]) for part in ("one", "two"))
        day_first = _day_first(text, one, two, name, day_first)
        parts["day"], parts["month"] = (one, two) if day_first else (two, one)
        reading = f"dates read {'day' if day_first else 'month'} first, such as {text.iloc[0]}"
    elif "word" in parts:
        order = dict(zip(_MONTHS, range(1, 13), strict=True))
        parts["month"] = parts["word"].str.lower().map(order)
    fields = parts[["year", "month", "day"]].apply(pd.to_numeric)
    short = parts["year"].str.len() == 2
    fields["year"] += np.where(short, np.where(fields["year"] < 69, 2000, 1900), 0)
    return pd.to_datetime(fields, errors="coerce").to_numpy().astype("datetime64[ns]"), reading


def _day_first(text: pd.Series, one: pd.Series, two: pd.Series, name: str, day_first: bool | None) -> bool:
    """Whether `one`, not `two`, is the day, by values above 12 or `day_first`. Raises DataError for contradictions."""
    above = {True: one > 12, False: two > 12}
    shown = [choice for choice, where in above.items() if where.any()]
    if len(shown) == 2 or (shown and day_first is not None and shown != [day_first]):
        wrong = text[above[not day_first if day_first is not None else False]].iloc[0]
        reason = f"like {text[above[True]].iloc[0]!r}" if day_first is None else f"as day_first={day_first} says"
        raise DataError(
            f"{name}: {wrong!r} cannot be read {'month' if day_first is False else 'day'} first {reason}; "
            "write all dates one way, best as YYYY-MM-DD"
        )
    if not shown and day_first is None:
        raise DataError(
            f"{name}: {text.iloc[0]!r} and all its other dates may be day first or month first; say which with "
            "day_first=True or day_first=False",
            argument="day_first",
        )
    return bool(shown[0] if shown else day_first)


def parse_stamps(stamps: pd.Series, name: str, zone: ZoneInfo | None, day_first: bool | None = None) -> Array:
    """[R] datetime64[ns] with times, NaT where blank, on the clock of `zone` (None: on the clock that they show).

    Stamps without a UTC offset are on that clock already. A stamp at midnight on its own clock is a day, which no zone
    moves. Raises DataError for the first value that is not a date or time.
    """
    stamps = plain(stamps)
    if stamps.dtype.kind == "M":
        _check_years(stamps.dt.year, stamps, name)
    if isinstance(stamps.dtype, pd.DatetimeTZDtype):
        return _on_clock(stamps.dt.tz_localize(None), stamps, zone)
    if stamps.dtype.kind == "M":
        return stamps.to_numpy().astype("datetime64[ns]")
    if stamps.dtype.kind == "f" and (stamps.dropna() % 1 == 0).all():
        stamps = stamps.astype("Int64")  # whole numbers beside blank cells
    parsed = np.full(len(stamps), "NaT", dtype="datetime64[ns]")
    text = stamps.astype(str).str.strip()
    there = (~(stamps.isna() | text.str.lower().isin(BLANK))).to_numpy()
    if there.any():
        codes, unique = pd.factorize(text[there])
        parsed[there] = _from_text(pd.Series(unique, dtype=object), name, zone, day_first)[codes]
    return parsed


def _check_years(years: pd.Series, stamps: pd.Series, name: str) -> None:
    """Raise DataError for stamps out of the range of nanoseconds."""
    outside = (years < FIRST_YEAR) | (years > LAST_YEAR)
    if outside.any():
        wrong = str(stamps[outside].iloc[0])
        raise DataError(f"{name}: {wrong!r} is no date from {FIRST_YEAR} to {LAST_YEAR}; correct it, or leave it blank")


def _on_clock(shown: pd.Series, moments: pd.Series, zone: ZoneInfo | None) -> Array:
    """[R] datetime64[ns]: the aware `moments` on the clock of `zone`; as `shown` at midnight or without a zone."""
    if zone is not None:
        shown = moments.dt.tz_convert(zone).dt.tz_localize(None).where(shown != shown.dt.normalize(), shown)
    return shown.to_numpy().astype("datetime64[ns]")


def _from_text(text: pd.Series, name: str, zone: ZoneInfo | None, day_first: bool | None) -> Array:
    """[V] datetime64[ns] of distinct texts."""
    text = text.str.replace(r"^(\d{4})(\d{2})(\d{2})(?=$|[T ])", r"\1-\2-\3", regex=True)
    if (numbers := text.str.fullmatch(r"\d+\.?\d*")).any():
        raise DataError(f"{name}: the date {text[numbers].iloc[0]} is a number; write dates as YYYY-MM-DD")
    _check_years(text.str.extract(r"(?<!\d)(\d{4})(?!\d)")[0].astype(float), text, name)
    clock = text.str.extract(_CLOCK)[0].fillna("")
    dates = text.str.replace(_CLOCK, "", regex=True)
    unread = (clock != "") & ~clock.str.fullmatch(_CLOCK_TIME) | dates.str.contains(_REST, regex=True)
    days = parse_dates(dates, name, day_first).days
    written = pd.Series(np.datetime_as_string(days, unit="D"), dtype=object) + " " + clock
    bare = written.str.replace(_ZONE, "", regex=True)
    shown = pd.to_datetime(bare.mask(unread, ""), format="mixed", errors="coerce")
    if shown.isna().any():
        raise DataError(
            f"{name}: {text[shown.isna()].iloc[0]!r} has a time that cannot be read; write it as YYYY-MM-DD HH:MM:SS, with its "
            "distance to UTC as +HH:MM if it is not on the exchange's clock"
        )
    parsed = shown.to_numpy().astype("datetime64[ns]")
    far = clock.str.contains(_ZONE, regex=True)
    if far.any():
        parsed[far] = _on_clock(shown[far], pd.to_datetime(written[far], format="mixed", utc=True), zone)
    return parsed
