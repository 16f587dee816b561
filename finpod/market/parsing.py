"""Parses dates, numbers and tickers. All values of a column decide its format. Ambiguous columns raise DataError."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.market.calendar import UTC, offset_text, sessions_of
from finpod.measures import Array

_NO_TICKER = ("", "nan", "NaN", "None", "none", "null", "NULL", "N/A", "n/a", "#N/A", "<NA>", "NaT")
BLANK = ("", "nan", "null", "n/a", "na", "none", "-", "--", "–", "—", ".", "<na>", "nat", "#n/a", "#n/a n/a", "n.a.")
"""Words for a missing number or date, in lower case."""
_CURRENCY = "$€£¥₹₩₽₺₪"
_SPACES = "[ \t\u00a0\u2007\u2009\u202f]"
_NUMBERS = "iufb"
"""Values of `dtype.kind` for numbers. Columns of other dtypes are read as text."""
_SCALES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_FORMS = (
    r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})",
    r"(?P<one>\d{1,2})[-/.](?P<two>\d{1,2})[-/.](?P<year>\d{4}|\d{2})",
    r"(?P<day>\d{1,2})[- ](?P<word>[A-Za-z]{3})[a-z]*[- ,]+(?P<year>\d{4}|\d{2})",
    r"(?P<word>[A-Za-z]{3})[a-z]*[- ](?P<day>\d{1,2}),? (?P<year>\d{4}|\d{2})",
    r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})",
)
"""Patterns of dates such as 2024-01-31, 31/01/2024 or 01/31/2024, 31 Jan 2024, Jan 31 2024, and 20240131."""
_TIME = (
    r"(?:[T ,]\s*(?P<time>\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)\s*(?P<half>[AaPp][Mm])?"
    r"\s*(?P<offset>Z|UTC|GMT|(?:UTC|GMT)?[+-]\d{2}(?::?\d{2})?)?)?$"
)
"""Pattern of what may follow a date: nothing, a time of day, or a time of day and its UTC offset."""
_UNITS = {"s": ("seconds", 1), "ms": ("milliseconds", 1e3), "us": ("microseconds", 1e6), "ns": ("nanoseconds", 1e9)}


class Stamps(NamedTuple):
    """Dates and times of a column, as written and in UTC."""

    clock: Array
    """[rows] datetime64[ns] as written, without the UTC offset; NaT for blank cells."""
    utc: Array
    """[rows] datetime64[ns] in UTC; NaT for blank cells, and for stamps without a UTC offset."""
    reading: str
    """Sentence such as "dates read day first, ..."; empty if the form of the stamps has only one meaning."""

    def on_clock(self, zone: ZoneInfo) -> Array:
        """Return the stamps [rows] as datetime64[ns] in `zone`. Stamps without a UTC offset stay as written."""
        local = pd.DatetimeIndex(self.utc).tz_localize("UTC").tz_convert(zone).tz_localize(None)
        return np.where(np.isnat(self.utc), self.clock, local.to_numpy())


def normal_ticker(label: Any) -> str:
    """Return a ticker in finpod's spelling: BRK-B for "brk.b", "BRK/B" and "BRK-B".

    Letters become capitals. A single slash between two words becomes a dash, and so does the dot before a share class.
    A share class is A, B or C at the end of the ticker (no exchange has these suffixes), or one letter before the
    suffix of an exchange, as in RCI.B.TO. Other dots stay, as in VOD.L, 7203.T and 600000.SS, because an exchange may
    follow them.
    """
    spelled = re.sub(r"^(?!N/A$)([A-Z0-9]+)/([A-Z0-9]+)(?=$|\.)", r"\1-\2", str(label).strip().upper())
    return re.sub(r"^([A-Z]{1,5})\.(?=[ABC]$|[A-Z]\.[A-Z]{1,3}$)", r"\1-", spelled)


def is_ticker(label: str) -> bool:
    """Return True for a valid ticker: at most 32 letters, digits and . - ^ = _, beginning with a letter, digit or ^."""
    return re.fullmatch(r"[A-Za-z0-9^][A-Za-z0-9.^=_-]{0,31}", label) is not None


def parse_tickers(column: pd.Series, name: str) -> tuple[pd.Categorical, dict[str, str]]:
    """Return (tickers, changed): the normalised tickers [rows], and label -> ticker for labels whose spelling changed.

    The categories of `tickers` are sorted. Whole numbers are valid. Raises DataError for a missing or invalid ticker.
    """
    codes, values = _distinct(column)
    labels = [str(value).strip() for value in values]
    missing = np.array([*(label in _NO_TICKER for label in labels), True])[codes]  # code -1 is a missing value
    if missing.any():
        raise DataError(f"{name}: row {int(np.argmax(missing)) + 1} has no ticker; every row needs a ticker")
    spelling = {label: normal_ticker(label) for label in labels}
    if wrong := [label for label, spelled in spelling.items() if not is_ticker(spelled)]:
        raise DataError(f"{name}: {wrong[0]!r} cannot be a ticker; use at most 32 letters, digits and . - ^ = _")
    order, position = np.unique(np.array([spelling[label] for label in labels], dtype=object), return_inverse=True)
    tickers = pd.Categorical.from_codes(position[codes], pd.Index(order, dtype=object))
    return tickers, {label: spelled for label, spelled in sorted(spelling.items()) if label != spelled}


def decimal_mark(columns: Sequence[tuple[str, pd.Series]], decimal: str | None, name: str) -> str:
    """Return the decimal mark, '.' or ',', of the numbers in `columns`, which are pairs (field, values).

    If `decimal` is given, it is returned. Otherwise, the numbers that are text decide. A mark that occurs twice in a
    number, or precedes the other mark, separates thousands. A mark is the decimal mark if no digit, 0 or at least four
    digits precede it, or if one, two or at least four digits follow it. It is also the decimal mark if K, M, B, T or an
    exponent ends the number. In volumes, any other mark separates thousands. Without any mark, '.' is returned.

    Raises DataError if the texts do not decide (1,234 may be 1234 or 1.234), InputError for an invalid `decimal`.
    """
    if decimal not in (None, ".", ","):
        raise InputError(f"decimal is {decimal!r}; choose '.' or ','", argument="decimal")
    unsure = None
    for field, column in columns if decimal is None else ():
        if column.dtype.kind in _NUMBERS:
            continue
        text = column[column.map(lambda value: isinstance(value, str))].astype(str)
        text = text.str.replace(f"[{_CURRENCY}]|{_SPACES}", "", regex=True)
        text = text[text.str.contains(r"\d.*[.,]|[.,]\d", regex=True)]
        for mark, other in (",.", ".,"):
            shows = rf"[{other}].*[.,]|[{mark}](?:\d{{1,2}}$|\d{{4,}}$|\d*[eEKMBT])|^[-+]?(?:0?|\d{{4,}})[{mark}]"
            if text.str.contains(shows).any():
                return mark
        if field == "volume" and len(text):
            return "." if "," in text.iloc[0] else ","
        unsure = unsure or next(iter(text), None)
    if unsure is not None:
        raise DataError(
            f"{name}: the mark in {unsure!r} may be for decimals or thousands; give decimal='.' or ','", "decimal"
        )
    return decimal or "."


def parse_numbers(column: pd.Series, field: str, name: str, decimal: str = ".") -> Array:
    """Return the numbers [rows] float64 of a column; NaN for blank cells. Raises DataError for text that is no number.

    A number may have a currency sign before or after it, and an exponent. Thousands may be separated by spaces,
    apostrophes or "," (by "." if `decimal` is ","). If `field` is volume, numbers may end in K, M, B or T. If it is
    split, they may be written as 4:1.
    """
    if column.dtype.kind in _NUMBERS:
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    codes, distinct = _distinct(column)
    text = pd.Series(distinct).astype(str).str.strip()
    blank = text.str.lower().isin(BLANK)
    bare = text.str.replace(_SPACES, " ", regex=True).str.replace("’", "'", regex=False)
    bare = bare.str.replace(rf"^([-+]?) ?[{_CURRENCY}] ?| ?[{_CURRENCY}]$", r"\1", regex=True)
    scale: Array | float = 1.0
    if field == "split":
        ratio = bare.str.extract(r"^(\d+)[:/]([1-9]\d*)$").astype(float)
        bare = bare.mask(ratio[0].notna(), (ratio[0] / ratio[1]).astype(str).str.replace(".", decimal))
    if field == "volume":
        scale = bare.str[-1:].str.upper().map(_SCALES).fillna(1.0).to_numpy(dtype=np.float64)
        bare = bare.str.replace(r" ?[KMBTkmbt]$", "", regex=True)
    mark, thousands = (",", ".") if decimal == "," else (".", ",")
    groups = "|".join(rf"\d{{1,3}}([{separator}]\d{{3}})+" for separator in (thousands, " ", "'"))
    well_formed = bare.str.fullmatch(rf"[-+]?(\d+|{groups})?([{mark}]\d*)?([eE][-+]?\d+)?|[-+]?inf")
    digits = bare.str.replace(f"[{thousands} ']", "", regex=True).str.replace(mark, ".", regex=False)
    values = pd.to_numeric(digits, errors="coerce") * scale
    wrong = (~well_formed | values.isna()) & ~blank
    if wrong.any():
        raise DataError(f"{name}: {field} {text[wrong].iloc[0]!r} is no number; correct it, or give decimal='.' or ','")
    return np.append(values.where(~blank).to_numpy(dtype=np.float64, na_value=np.nan), np.nan)[codes]


def holds_dates(column: pd.Series, digits: bool = False) -> bool:
    """Return True if a column's dtype or first value is a date. With `digits`, YYYYMMDD and Unix times count, too."""
    if column.dtype.kind == "M" or isinstance(column.dtype, pd.PeriodDtype):
        return True
    first = column.dropna().iloc[:1]
    if first.empty:
        return False
    text = str(first.iloc[0]).strip()
    if column.dtype.kind in "iuf" or text.isdecimal():
        return digits and _unit(first.astype(float)) is not None
    return is_date(text, digits)


def is_date(text: str, digits: bool = False) -> bool:
    """Return True if a text begins with a date; with `digits`, YYYYMMDD is a date as well."""
    return any(re.match(f"{form}(?=$|[T ,])", text) for form in (_FORMS if digits else _FORMS[:-1]))


def parse_dates(
    column: pd.Series, name: str, day_first: bool | None = None, calendar: str | None = None, one: Array | None = None
) -> tuple[Array, set[str], str]:
    """Return (dates, offsets, reading): dates [rows] of bars, their UTC offsets, and a sentence on how they were read.

    Whether bars are intraday is decided by the stamps of one asset, in the mask `one` [rows] (None: by all stamps).
    Stamps of several assets could mislead, because their closing times may differ.

    - Intraday bars: a stamp with a UTC offset becomes a local time of the exchange `calendar` (None: a time in UTC).
      A stamp without an offset stays as written. `offsets` is empty.
    - Other bars get the day as written. If a time is in UTC and not midnight, the bar gets the exchange's local day.

    Raises DataError for blank cells, InputError for a wrong calendar.
    """
    stamps = parse_stamps(column, name, day_first)
    if (blank := np.isnat(stamps.clock)).any():
        raise DataError(f"{name}: row {int(blank.argmax()) + 1} has no date; every bar must have its date")
    local, in_utc = stamps.clock, (stamps.clock == stamps.utc) & (stamps.clock != stamps.clock.astype("datetime64[D]"))
    if (intraday := is_intraday(stamps.clock if one is None else stamps.clock[one])) or in_utc.any():
        zone = UTC if calendar is None else sessions_of(calendar, stamps.clock[0], stamps.clock[0]).zone
        local = stamps.on_clock(zone)
    if intraday:
        return local, set(), f"intraday bars with {zone.key.split('/')[-1].replace('_', ' ')} times"
    offsets = np.unique((stamps.clock - stamps.utc)[~np.isnat(stamps.utc)])
    days = np.where(in_utc, local, stamps.clock).astype("datetime64[D]").astype("datetime64[ns]")
    return days, {offset_text(offset) for offset in offsets}, stamps.reading


def parse_stamps(column: pd.Series, name: str, day_first: bool | None = None) -> Stamps:
    """Return the dates and times of a column in any unit, spelling or time zone.

    Numbers are YYYYMMDD, or seconds (or ms, us, ns) since 1970 in UTC. All values together decide whether 03/04/2024 is
    in March or April. If they do not decide, or if all may be YY/MM/DD, `day_first` must be given. A pandas Period
    becomes its last day, or its start if it is shorter than a day. Raises DataError if the order of day and month is
    unclear, or if a value is not a date from 1700 to 2200.
    """
    if isinstance(column.dtype, pd.PeriodDtype):  # the last day, or the start within a day
        column = np.maximum(column.dt.start_time, column.dt.end_time.dt.normalize())
    codes, values = _distinct(column)
    stamps, reading = pd.Series(values), ""
    if stamps.dtype.kind != "M":
        stamps = pd.Series([str(value).strip() for value in values], dtype=object)
        stamps = stamps.mask(stamps.str.lower().isin(BLANK))
        given = stamps.dropna()
        unit = _unit(pd.to_numeric(given)) if given.str.fullmatch(r"\d+(\.\d+)?").all() else None
        if unit in _UNITS:
            stamps = pd.to_datetime(pd.to_numeric(stamps), unit=unit, utc=True)
            reading = f"dates read as {_UNITS[unit][0]} since 1970, UTC"
    if isinstance(stamps.dtype, pd.DatetimeTZDtype):
        clock, utc = stamps.dt.tz_localize(None), stamps.dt.tz_convert(None)
    elif stamps.dtype.kind == "M":
        clock, utc = stamps, stamps.mask(stamps.notna())
    else:
        clock, utc, reading = _from_text(stamps, name, day_first)
    wrong = ~clock.between("1700", "2201", inclusive="left") & stamps.notna()
    if wrong.any():
        text = f"{str(stamps[wrong].iloc[0])!r} is not a date from 1700 to 2200"
        raise DataError(f"{name}: {text}; write YYYY-MM-DD[ HH:MM:SS[+HH:MM]], or delete the row")
    clock, utc = (np.append(part.to_numpy().astype("datetime64[ns]"), np.datetime64("NaT")) for part in (clock, utc))
    return Stamps(clock[codes], utc[codes], reading)  # code -1, a blank cell, selects NaT


def _distinct(column: pd.Series) -> tuple[Array, Any]:
    """Return (codes, values): the distinct values, and the index [rows] of each row's value in them, -1 if missing."""
    if column.dtype.kind == "f" and (column.dropna() % 1 == 0).all():
        column = column.astype("Int64")  # a missing value turns whole numbers into floats
    return pd.factorize(column)


def is_intraday(stamps: Array) -> bool:
    """Return True if a day has on average at least three distinct times in `stamps` [rows]."""
    stamps = np.unique(stamps[~np.isnat(stamps)])
    return len(stamps) >= 3 * max(len(np.unique(stamps.astype("datetime64[D]"))), 1)


def _unit(numbers: pd.Series) -> str | None:
    """Return the unit in which all numbers are dates: YYYYMMDD (1900-2100), s, ms, us or ns (1980-2100); else None."""
    if (numbers % 1 == 0).all() and numbers.between(19000101, 21001231).all():
        return "YYYYMMDD"
    ranges = ((unit, 315_532_800 * n, 4_102_444_800 * n) for unit, (_, n) in _UNITS.items())
    return next((unit for unit, first, last in ranges if numbers.between(first, last).all()), None)


def _from_text(text: pd.Series, name: str, day_first: bool | None) -> tuple[pd.Series, pd.Series, str]:
    """Return the fields clock, utc and reading of `Stamps` for a column of text. Text that is no date becomes NaT."""
    first = text.dropna().iloc[:1]
    form = next((form for form in _FORMS if first.str.match(form + _TIME).all()), _FORMS[0])
    parts, reading = text.str.extract(f"^{form}{_TIME}"), ""
    if "one" in parts:
        one, two, last = (pd.to_numeric(parts[part]) for part in ("one", "two", "year"))
        years = one.le(pd.Timestamp.now().year % 100) | one.ge(69)
        year_first = (years & two.le(12) & last.le(31) | text.isna()).all()  # 24/01/31
        if day_first is None and (year_first or not (one.gt(12) | two.gt(12)).any()):
            text = f"{name}: {first.iloc[0]!r} and all other dates can be read in several orders"
            raise DataError(f"{text}; give day_first=True or day_first=False, or write YYYY-MM-DD", "day_first")
        day_first = bool(one.gt(12).any()) if day_first is None else day_first
        parts["day"], parts["month"] = (one, two) if day_first else (two, one)
        reading = f"dates read {'day' if day_first else 'month'} first, such as {first.iloc[0]}"
    elif "word" in parts:
        parts["month"] = parts["word"].str.lower().map({month: number for number, month in enumerate(_MONTHS, 1)})
    fields = parts[["year", "month", "day"]].apply(pd.to_numeric)
    fields["year"] += np.where(parts["year"].str.len() == 2, np.where(fields["year"] < 69, 2000, 1900), 0)
    fields["year"] = fields["year"].where(fields["year"].between(1700, 2200))
    time = parts["time"].fillna("0:00")
    hours = pd.to_timedelta(time.where(time.str.count(":") == 2, time + ":00"))
    noon, half = pd.Timedelta("12h"), parts["half"].str.lower()
    hours = hours.where(half.isna(), hours % noon + noon * (half == "pm").astype(int))
    clock = pd.to_datetime(fields, errors="coerce").astype("datetime64[ns]") + hours.where(hours < 2 * noon)
    offset = parts["offset"].str.extract(r"([+-]\d\d):?(\d\d)?").fillna("00")
    minutes = pd.to_timedelta(offset[0] + ":" + offset[1] + ":00")
    return clock, (clock - minutes).where(parts["offset"].notna()), reading
