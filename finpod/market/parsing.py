"""What the text of a price file means: names of columns, tickers, dates and numbers; decided by evidence, or refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.market.data import Array
from finpod.market.sessions import offset_text

_ALIASES = {
    "adjclose": "adj_close",
    "adj._close": "adj_close",
    "adjusted_close": "adj_close",
    "close/last": "close",
    "symbol": "ticker",
    "timestamp": "date",
    "datetime": "date",
    "dividends": "dividend",
    "dividend_amount": "dividend",
    "stock_splits": "split",
    "split_coefficient": "split",
    "splits": "split",
    "vol.": "volume",
}
_UNNAMED = ("", "unnamed:_0", "index")
_TICKER = re.compile(r"[A-Za-z0-9^][A-Za-z0-9.^=_-]{0,31}")
_BLANK = ("", "nan", "null", "n/a", "na", "none", "-", "<na>", "nat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_FORMS = (
    r"^(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})(?=$|[T ])",
    r"^(?P<one>\d{1,2})[-/.](?P<two>\d{1,2})[-/.](?P<year>\d{4}|\d{2})(?=$|[T ,])",
    r"^(?P<day>\d{1,2})[- ](?P<word>[A-Za-z]{3})[a-z]*[- ,]+(?P<year>\d{4}|\d{2})(?=$|[T ,])",
    r"^(?P<word>[A-Za-z]{3})[a-z]*[- ](?P<day>\d{1,2}),? (?P<year>\d{4})(?=$|[T ,])",
)
"""Year first, two numbers before the year, and the two with the month in letters."""
_TIME = r"(\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)"
_OFFSET = r"\d{2}:\d{2}.*?([+-]\d{2}:?\d{2})$"


INTRADAY = 3
"""Different stamps a day, on average, from which bars are taken to be intraday."""
_INTRADAY_READING = "intraday bars, their times as in New York"


class Dates(NamedTuple):
    """What a column of stamps says."""

    days: Array
    """[rows] datetime64[ns], midnight of the day that each stamp shows on its own clock; with its time, if intraday."""
    offsets: tuple[str, ...]
    """Distances to UTC that the stamps carry, sorted; empty where they carry none."""
    reading: str
    """How they were read, where that was a decision; empty otherwise."""


def canonical(label: Any) -> str:
    """The name under which finpod knows a column: "Adj Close", "5. adjusted close" and "Adjclose" are adj_close."""
    spelled = re.sub(r"^\d+\.\s*", "", str(label).replace("\ufeff", "").strip().strip("*<>").strip().lower())
    spelled = re.sub(r"[\s_]+", "_", spelled)
    return _ALIASES.get(spelled, spelled)


def canonical_columns(labels: Sequence[Any]) -> list[str]:
    """The columns' names; a first column without a name holds the dates, where no other does."""
    names = [canonical(label) for label in labels]
    if names and names[0] in _UNNAMED and "date" not in names:
        names[0] = "date"
    return names


def is_ticker(label: str) -> bool:
    """Whether the text could be a ticker: it has no slash, no space and no character with a meaning to a shell."""
    return _TICKER.fullmatch(label) is not None


def check_tickers(labels: Iterable[str], name: str) -> None:
    """Raise DataError for the first label that could not be a ticker, such as one with a slash or a shell character."""
    for label in labels:
        if not is_ticker(label):
            raise DataError(
                f"{name}: {label!r} cannot be a ticker; write it with letters, digits and . - ^ = _ only, as in BRK-B"
            )


def parse_tickers(column: pd.Series, name: str) -> pd.Categorical:
    """[rows] the stripped symbols, categories sorted. Raises DataError for a row without one and for foreign characters."""
    values = pd.Categorical(column).remove_unused_categories()
    labels = np.array([*(str(label).strip() for label in values.categories), ""], dtype=object)
    order, position = np.unique(labels, return_inverse=True)  # the empty label stands first
    codes = position[values.codes] - 1  # and a missing value has the code -1, which is the last label
    if (codes < 0).any():
        raise DataError(f"{name}: row {int(np.argmax(codes < 0)) + 1} has no ticker; every bar must name its ticker")
    check_tickers(order[1:], name)
    return pd.Categorical.from_codes(codes, categories=pd.Index(order[1:], dtype=object))


def parse_dates(dates: pd.Series, name: str = "the frame", day_first: bool | None = None) -> Dates:
    """The day of each stamp, whatever its unit, spelling or time zone; of intraday bars the stamp itself, in New York.

    Whether 03/04/2024 is in March or April is decided by all values of the column; where none of them is above 12 it must
    be said with `day_first`. Raises DataError naming the first value that is no date.
    """
    if isinstance(dates.dtype, pd.DatetimeTZDtype):
        stamps = pd.DatetimeIndex(dates.dropna().unique())
        local, utc = (stamps.tz_convert(zone).tz_localize(None).to_numpy() for zone in (stamps.tz, "UTC"))
        offsets = tuple(sorted(offset_text(distance) for distance in np.unique(local - utc)))
        if is_intraday(local):
            return Dates(_new_york(dates), (), _INTRADAY_READING)
        dates = dates.dt.tz_localize(None)
    else:
        offsets = ()
    reading = ""
    if dates.dtype.kind == "M":
        parsed = dates.to_numpy()
        if is_intraday(parsed):
            return Dates(parsed.astype("datetime64[ns]"), offsets, _INTRADAY_READING)
    elif dates.dtype.kind in "iuf":
        raise DataError(f"{name}: the date {dates.iloc[0]} is a number; write dates as YYYY-MM-DD")
    else:
        codes, unique = pd.factorize(dates, use_na_sentinel=False)
        text = pd.Series(pd.Index(unique).astype(object)).astype(str).str.strip()
        days, reading = _days(text, name, day_first)
        signs = text.str.extract(_OFFSET)[0].dropna().unique()
        offsets = tuple(sorted({f"{sign[:3]}:{sign[-2:]}" for sign in signs}))
        parsed = days[codes]
        if len(unique) >= INTRADAY * len(np.unique(days)) and not np.isnat(days).any():
            return Dates(_stamps(text, days, bool(offsets))[codes], (), _INTRADAY_READING)
    if np.isnat(parsed).any():
        wrong = dates.iloc[int(np.argmax(np.isnat(parsed)))]
        raise DataError(f"{name}: {str(wrong)!r} is not a date; write dates as YYYY-MM-DD")
    return Dates(parsed.astype("datetime64[D]").astype("datetime64[ns]"), offsets, reading)


def _stamps(text: pd.Series, days: Array, aware: bool) -> Array:
    """[values] the days with the times that stand behind them, a time left out being midnight; in New York."""
    if aware:
        return _new_york(pd.to_datetime(text, utc=True, format="ISO8601"))
    times = text.str.extract(_TIME)[0].fillna("0:00")
    times = times.where(times.str.count(":") == 2, times + ":00")
    return days + pd.to_timedelta(times).to_numpy().astype("timedelta64[ns]")


def is_intraday(stamps: Array) -> bool:
    """Whether stamps are those of bars within the day: several different ones a day."""
    stamps = np.unique(stamps[~np.isnat(stamps)])
    return len(stamps) >= INTRADAY * max(len(np.unique(stamps.astype("datetime64[D]"))), 1)


def _new_york(stamps: pd.Series) -> Array:
    return stamps.dt.tz_convert("America/New_York").dt.tz_localize(None).to_numpy().astype("datetime64[ns]")


def _days(text: pd.Series, name: str, day_first: bool | None) -> tuple[Array, str]:
    """[values] days, NaT where there is none, and how they were read."""
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


def _day_first(text: pd.Series, one: pd.Series, two: pd.Series, name: str, said: bool | None) -> bool:
    shows = {True: one > 12, False: two > 12}
    seen = [choice for choice, where in shows.items() if where.any()]
    if len(seen) == 2 or (seen and said is not None and seen != [said]):
        wrong = text[shows[not said if said is not None else False]].iloc[0]
        other = f"like {text[shows[True]].iloc[0]!r}" if said is None else "as was asked for"
        raise DataError(
            f"{name}: {wrong!r} cannot be read {'month' if said is False else 'day'} first {other}; "
            "write all dates one way, best as YYYY-MM-DD"
        )
    if not seen and said is None:
        raise DataError(
            f"{name}: {text.iloc[0]!r} and all its other dates may be day first or month first; say which with "
            "day_first=True or False (--day-first or --month-first)"
        )
    return bool(seen[0] if seen else said)


def is_text(column: pd.Series) -> bool:
    """Whether the column holds text, as against numbers."""
    return column.dtype.kind not in "iufb"


def decimal_mark(columns: Sequence[pd.Series], whole: Sequence[bool], said: str | None, name: str) -> str:
    """'.' or ',': the decimal mark, by what all columns of text show, or as `said`; `whole` marks columns of whole numbers.

    A mark that stands twice in a number, before the other mark, or in a whole number parts thousands. Raises DataError
    where it remains open whether 1,234 is a thousand or one, InputError for another mark.
    """
    if said is not None:
        if said not in (".", ","):
            raise InputError(f"decimal is {said!r}; choose '.' or ','")
        return said
    unsure = None
    for column, integers in zip(columns, whole, strict=True):
        text = column[column.astype(str).str.contains("[.,]", regex=True)].astype(str)
        if text.empty:
            continue
        if text.str.contains(r"\..*,|\..*\.|,\d{1,2}$|,\d{4,}$").any():
            return ","
        if text.str.contains(r",.*[.,]|\.\d{1,2}$|\.\d{4,}$").any() or integers:
            return "."
        unsure = unsure or (text.iloc[0] if "," in text.iloc[0] else None)
    if unsure is not None:
        raise DataError(
            f"{name}: {unsure!r} may be a thousand with a comma or a number with a decimal comma; say which with "
            "decimal='.' or ',' (--decimal)"
        )
    return "."


def parse_numbers(column: pd.Series, field: str, name: str, decimal: str = ".") -> Array:
    """[rows] float64, NaN where blank; `$`, spaces and thousands marks are read over. Raises DataError for other text."""
    if not is_text(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    if (plain := pd.to_numeric(column, errors="coerce")).notna().all() and decimal == ".":
        return plain.to_numpy(dtype=np.float64)
    text = column.astype(str).str.strip()
    blank = column.isna() | text.str.lower().isin(_BLANK)
    bare = text.str.replace(r"^([-+]?)[$€£¥]\s*", r"\1", regex=True).str.replace(r"[\s\u00a0]", "", regex=True)
    mark, thousands = (",", ".") if decimal == "," else (".", ",")
    well_formed = bare.str.fullmatch(
        rf"[-+]?(\d+|\d{{1,3}}(\{thousands}\d{{3}})+)?(\{mark}\d*)?([eE][-+]?\d+)?|[-+]?inf"
    )
    values = pd.to_numeric(
        bare.str.replace(thousands, "", regex=False).str.replace(mark, ".", regex=False), errors="coerce"
    )
    wrong = (~well_formed | values.isna()) & ~blank
    if wrong.any():
        raise DataError(f"{name}: {field} {text[wrong].iloc[0]!r} is not a number; write it as 1234.56")
    return values.where(~blank).to_numpy(dtype=np.float64, na_value=np.nan)
