"""Reads the sessions of an exchange from exchange_calendars, and finds the first row that may use a value."""

from __future__ import annotations

from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from finpod.errors import InputError, first_line
from finpod.measures import Array

NEW_YORK, UTC = ZoneInfo("America/New_York"), ZoneInfo("UTC")
GRACE = np.timedelta64(15, "m")
"""Time from the close of a session until its bar counts as finished."""


class Sessions(NamedTuple):
    """Sessions of an exchange within a range of dates."""

    dates: Array
    """[S] datetime64[ns], dates of the S sessions, without a time zone, increasing."""
    closes: Array
    """[S] datetime64[ns], close of each session in UTC; on half days, the early close."""
    hours: Array
    """[S, 2] datetime64[ns], open and close of each session in the exchange's time zone."""
    offsets: frozenset[str]
    """UTC offsets of the exchange in the years of the range, such as -05:00."""
    zone: ZoneInfo
    """Time zone of the exchange."""

    def hours_on(self, days: Array) -> Array:
        """Return the open and close [n, 2] of the session on each of `days` [n]; NaT on days without a session."""
        return pd.DataFrame(self.hours, index=self.dates).reindex(days).to_numpy()


def sessions_of(calendar: str, first: np.datetime64, last: np.datetime64) -> Sessions:
    """Return the sessions from `first` to `last`. Raises InputError if `calendar` is unknown or does not cover them."""
    import exchange_calendars

    start, stop = (str(day.astype("datetime64[Y]")) for day in (first, last))
    try:
        exchange = exchange_calendars.get_calendar(calendar, start=f"{start}-01-01", end=f"{stop}-12-31")
    except (ValueError, exchange_calendars.errors.CalendarError) as error:
        raise InputError(
            f"the calendar {calendar!r} does not exist or does not cover {start} to {stop} ({first_line(error)}); give a "
            "name in exchange_calendars, such as XNYS or XTKS, or calendar=None to keep all dates of a file",
            argument="calendar",
        ) from error
    dates = exchange.sessions.to_numpy().astype("datetime64[ns]")
    utc, opens, closes = (
        pd.DatetimeIndex(times).tz_convert(zone).tz_localize(None).to_numpy().astype("datetime64[ns]")
        for times, zone in ((exchange.closes, "UTC"), (exchange.opens, exchange.tz), (exchange.closes, exchange.tz))
    )
    within = (dates >= first.astype("datetime64[D]")) & (dates <= last)
    offsets = frozenset(map(offset_text, np.unique(closes - utc)))
    hours = np.stack([opens, closes], axis=1)
    return Sessions(dates[within], utc[within], hours[within], offsets, ZoneInfo(str(exchange.tz)))


def offset_text(distance: np.timedelta64) -> str:
    """Return a UTC offset as text: +HH:MM or -HH:MM."""
    minutes = int(distance.astype("timedelta64[m]").astype(int))
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


class Timeline:
    """Finds the first row of a market that may use a value, from the time at which the value became known.

    A session ends at the exchange's close, or at the end of the day if no close is known. `zone` is the time zone in
    which times are compared. It is None if a market is not intraday and has no calendar: then only the date matters.
    """

    def __init__(self, dates: Array, calendar: str | None) -> None:
        self._sessions = dates.astype("datetime64[D]")
        self._ends = (self._sessions + np.timedelta64(1, "D")).astype("datetime64[ns]") - np.timedelta64(1, "ns")
        self._bars = dates if (dates != self._sessions).any() else None  # None unless the market is intraday
        self.zone = None if self._bars is None else UTC
        if calendar is not None:
            exchange = sessions_of(calendar, dates[0], dates[-1])
            self.zone = exchange.zone
            closes = exchange.hours_on(self._sessions)[:, 1]
            self._ends = np.where(np.isnat(closes), self._ends, closes)

    def first_rows(self, stamps: Array) -> Array:
        """Return the first rows [R] that may use R values, which became known at the times `stamps` [R].

        For intraday bars, this is the first bar that begins at or after the time. For longer bars, it is the first row
        whose session ends at or after the time. Midnight stands for its whole day. For longer bars, its row is the
        first one on or after the day. For intraday bars, it is the first bar at or after the close of the first session
        on or after the day. The result is T, the number of rows, if there is no such row, and for NaT.
        """
        days = stamps.astype("datetime64[D]")
        is_day = (stamps == days) & ~np.isnat(stamps)
        sessions = np.searchsorted(self._sessions, days)
        if self._bars is None:
            return np.where(is_day, sessions, np.searchsorted(self._ends, stamps))
        closes = np.append(self._ends, np.datetime64("NaT"))[sessions]
        return np.searchsorted(self._bars, np.where(is_day, closes, stamps))
