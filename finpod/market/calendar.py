"""Sessions of an exchange, from exchange_calendars, and the times at which the rows of a market end."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from finpod.errors import InputError, first_line
from finpod.measures import Array

NEW_YORK = ZoneInfo("America/New_York")
GRACE = np.timedelta64(15, "m")
"""A session's bar counts as finished this long after the close."""


class Sessions(NamedTuple):
    """Sessions of an exchange within a range of dates."""

    dates: Array
    """[S] datetime64[ns], naive, increasing."""
    closes: Array
    """[S] datetime64[ns], UTC, half days included."""
    hours: Array
    """[S, 2] datetime64[ns], open and close in the exchange's time zone."""
    offsets: frozenset[str]
    """UTC offsets of the exchange in these years, such as -05:00."""
    zone: ZoneInfo
    """Time zone of the exchange."""


def sessions_of(calendar: str, first: np.datetime64, last: np.datetime64) -> Sessions:
    """Return the sessions of the exchange `calendar` within [first, last]. Raises InputError for an unknown name."""
    years = _sessions(calendar, *(str(day.astype("datetime64[Y]")) for day in (first, last)))
    within = (years.dates >= first.astype("datetime64[D]")) & (years.dates <= last)
    return years._replace(dates=years.dates[within], closes=years.closes[within], hours=years.hours[within])


@lru_cache(maxsize=16)
def _sessions(calendar: str, first: str, last: str) -> Sessions:
    import exchange_calendars

    try:
        exchange = exchange_calendars.get_calendar(calendar, start=f"{first}-01-01", end=f"{last}-12-31")
    except (ValueError, exchange_calendars.errors.CalendarError) as error:
        raise InputError(
            f"the calendar {calendar!r} has no sessions from {first} to {last} ({first_line(error)}); give a name of "
            "exchange_calendars such as XNYS, XTKS or XLON, or calendar=None",
            argument="calendar",
        ) from error
    utc, opens, closes = (
        pd.DatetimeIndex(times).tz_convert(zone).tz_localize(None).to_numpy().astype("datetime64[ns]")
        for times, zone in ((exchange.closes, "UTC"), (exchange.opens, exchange.tz), (exchange.closes, exchange.tz))
    )
    return Sessions(
        exchange.sessions.to_numpy().astype("datetime64[ns]"),
        utc,
        np.stack([opens, closes], axis=1),
        frozenset(map(offset_text, np.unique(closes - utc))),
        ZoneInfo(str(exchange.tz)),
    )


def offset_text(distance: np.timedelta64) -> str:
    """Return a UTC offset as +HH:MM."""
    minutes = int(distance.astype("timedelta64[m]").astype(int))
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


class Timeline(NamedTuple):
    """When the rows of a market end."""

    sessions: Array
    """[T] datetime64[D], the session of each row."""
    ends: Array
    """[T] datetime64[ns] in `zone`: the close of the row's session, or the end of its day."""
    bars: Array | None
    """[T] datetime64[ns] of intraday bars; None for one row per session."""
    zone: ZoneInfo | None
    """Time zone of the rows; None if times of day are kept as written."""

    def first_rows(self, stamps: Array) -> Array:
        """Return the first row [R] that may use the values of each stamp [R]; T if there is none, or for NaT.

        With one row per session, it is the first row that ends at or after the stamp; in an intraday market, the first bar that
        begins at or after it. A stamp at midnight is a day without a time: it means the row of that day's session or the next
        one, and in an intraday market the close of that session.
        """
        days = stamps.astype("datetime64[D]")
        is_day = (stamps == days) & ~np.isnat(stamps)
        sessions = np.searchsorted(self.sessions, days)
        if self.bars is None:
            return np.where(is_day, sessions, np.searchsorted(self.ends, stamps))
        closes = np.append(self.ends, np.datetime64("NaT"))[sessions]
        return np.searchsorted(self.bars, np.where(is_day, closes, stamps))


def timeline_of(dates: Array, calendar: str | None) -> Timeline:
    """Return the timeline of a market with these dates [T]. Rows end at the close of `calendar`; without one, with the day.

    A row that is not on a session of the exchange also ends with its day.
    """
    sessions = dates.astype("datetime64[D]")
    ends = (sessions + np.timedelta64(1, "D")).astype("datetime64[ns]") - np.timedelta64(1, "ns")
    intraday = bool((dates != sessions).any())
    zone = NEW_YORK if intraday else None
    if calendar is not None:
        exchange = sessions_of(calendar, dates[0], dates[-1])
        zone = exchange.zone
        if len(exchange.dates):
            at = np.searchsorted(exchange.dates, sessions).clip(max=len(exchange.dates) - 1)
            ends = np.where(exchange.dates[at] == sessions, exchange.hours[at, 1], ends)
    return Timeline(sessions, ends, dates if intraday else None, zone)
