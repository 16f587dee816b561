"""When something was known: the times of stamps, and the first row of a market at which a stamp lies in the past."""

from __future__ import annotations

from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from finpod.errors import DataError
from finpod.market.calendar import NEW_YORK, sessions_of
from finpod.market.data import MarketData
from finpod.market.dates import parse_dates
from finpod.market.parsing import BLANK, plain
from finpod.measures import Array

FIRST_YEAR, LAST_YEAR = 1700, 2200
"""Years in which a stamp may lie."""
DAY = np.timedelta64(1, "D")
_CLOCK = r"[T ,]\s*(\d{1,2}:.*)$"
"""The time of day behind a date."""
_OFFSET = r"\s*(?:Z|UTC|[+-]\d{2}(?::?\d{2})?)$"
"""A distance to UTC behind a time of day."""
_TIME = rf"\d{{1,2}}:\d{{2}}(:\d{{2}}(\.\d+)?)?(\s*[AaPp][Mm])?({_OFFSET.removesuffix('$')})?"
"""A time of day that can be read."""
_REST = r"^\d+[-/.]\d+[-/.]\d+[T ,]+\S|[^\d]$"
"""What stands behind a date, where its time of day is taken away, and is none."""


class Timeline(NamedTuple):
    """The rows of a market in time."""

    sessions: Array
    """[T] datetime64[D], the session of each row."""
    ends: Array
    """[T] datetime64[ns] on the clock of `zone`: the close of the row's session, or the end of its day."""
    bars: Array | None
    """[T] datetime64[ns] of intraday bars; None for one row per session."""
    zone: ZoneInfo | None
    """The clock of the rows; None: times of day count as they are written."""

    def first_rows(self, stamps: Array) -> Array:
        """[R] the first row at which each of the stamps [R] lies in the past; T where there is none, or for NaT.

        A stamp at midnight is a day without a time. It counts for the session of that day, or the next one; in an intraday
        market, whose sessions have many rows, from the close of that session on. A time counts from the first row that ends,
        or the first intraday bar that begins, at or after it.
        """
        days = stamps.astype("datetime64[D]")
        is_day = (stamps == days) & ~np.isnat(stamps)
        sessions = np.searchsorted(self.sessions, days)
        if self.bars is None:
            return np.where(is_day, sessions, np.searchsorted(self.ends, stamps))
        closes = np.append(self.ends, np.datetime64("NaT"))[sessions]
        return np.searchsorted(self.bars, np.where(is_day, closes, stamps))


def timeline_of(market: MarketData, calendar: str | None) -> Timeline:
    """The rows of a market with the closes of the exchange `calendar`; None: a session ends with its day.

    A row that is no session of the exchange ends with its day as well.
    """
    intraday = bool((market.dates != market.sessions).any())
    ends = (market.sessions + DAY).astype("datetime64[ns]") - np.timedelta64(1, "ns")
    zone = NEW_YORK if intraday else None
    if calendar is not None:
        exchange = sessions_of(calendar, market.dates[0], market.dates[-1])
        zone = exchange.zone
        if len(exchange.dates):
            at = np.searchsorted(exchange.dates, market.sessions).clip(max=len(exchange.dates) - 1)
            ends = np.where(exchange.dates[at] == market.sessions, exchange.hours[at, 1], ends)
    return Timeline(market.sessions, ends, market.dates if intraday else None, zone)


def parse_stamps(stamps: pd.Series, name: str, zone: ZoneInfo | None, day_first: bool | None = None) -> Array:
    """[R] datetime64[ns] with their times, NaT where blank, on the clock of `zone`; None: on the clock they are written on.

    Stamps without a distance to UTC are taken to be on that clock already. A stamp at midnight on its own clock is a day,
    which no zone moves. Raises DataError naming the first value that is no date or time.
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
    """Raise DataError, naming the first, for stamps that nanoseconds cannot count."""
    outside = (years < FIRST_YEAR) | (years > LAST_YEAR)
    if outside.any():
        wrong = str(stamps[outside].iloc[0])
        raise DataError(f"{name}: {wrong!r} is no date from {FIRST_YEAR} to {LAST_YEAR}; correct it, or leave it blank")


def _on_clock(shown: pd.Series, moments: pd.Series, zone: ZoneInfo | None) -> Array:
    """[R] datetime64[ns]: the aware `moments` on the clock of `zone`, but as `shown` at midnight and without a zone."""
    if zone is not None:
        shown = moments.dt.tz_convert(zone).dt.tz_localize(None).where(shown != shown.dt.normalize(), shown)
    return shown.to_numpy().astype("datetime64[ns]")


def _from_text(text: pd.Series, name: str, zone: ZoneInfo | None, day_first: bool | None) -> Array:
    """[V] datetime64[ns] of different texts."""
    text = text.str.replace(r"^(\d{4})(\d{2})(\d{2})(?=$|[T ])", r"\1-\2-\3", regex=True)
    if (numbers := text.str.fullmatch(r"\d+\.?\d*")).any():
        raise DataError(f"{name}: the date {text[numbers].iloc[0]} is a number; write dates as YYYY-MM-DD")
    _check_years(text.str.extract(r"(?<!\d)(\d{4})(?!\d)")[0].astype(float), text, name)
    clock = text.str.extract(_CLOCK)[0].fillna("")
    dates = text.str.replace(_CLOCK, "", regex=True)
    unread = (clock != "") & ~clock.str.fullmatch(_TIME) | dates.str.contains(_REST, regex=True)
    days = parse_dates(dates, name, day_first).days
    written = pd.Series(np.datetime_as_string(days, unit="D"), dtype=object) + " " + clock
    plain = written.str.replace(_OFFSET, "", regex=True)
    shown = pd.to_datetime(plain.mask(unread, ""), format="mixed", errors="coerce")
    if shown.isna().any():
        raise DataError(
            f"{name}: {text[shown.isna()].iloc[0]!r} has a time that cannot be read; write it as YYYY-MM-DD HH:MM:SS, with its "
            "distance to UTC as +HH:MM if it is not on the exchange's clock"
        )
    parsed = shown.to_numpy().astype("datetime64[ns]")
    far = clock.str.contains(_OFFSET, regex=True)
    if far.any():
        parsed[far] = _on_clock(shown[far], pd.to_datetime(written[far], format="mixed", utc=True), zone)
    return parsed
