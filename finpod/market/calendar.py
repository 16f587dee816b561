"""The sessions of an exchange, from exchange_calendars: which dates are sessions, and when each is over."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from finpod.errors import InputError, first_line
from finpod.measures import Array

NEW_YORK = ZoneInfo("America/New_York")
GRACE = np.timedelta64(15, "m")
"""Time after the close from which a session's bar counts as finished."""


class Sessions(NamedTuple):
    """Sessions of an exchange over some years."""

    dates: Array
    """[S] datetime64[ns], naive, increasing."""
    closes: Array
    """[S] datetime64[ns], UTC, half days included."""
    hours: Array
    """[S, 2] datetime64[ns], open and close on the exchange's own clock."""
    offsets: frozenset[str]
    """Distances to UTC that the exchange's clock had in these years, such as -05:00."""
    zone: ZoneInfo
    """Time zone of the exchange."""


def sessions_of(calendar: str, first: np.datetime64, last: np.datetime64) -> Sessions:
    """The sessions of the exchange `calendar` within [first, last]. Raises InputError for a name that is none."""
    years = _sessions(calendar, *(str(day.astype("datetime64[Y]")) for day in (first, last)))
    within = (years.dates >= first.astype("datetime64[D]")) & (years.dates <= last)
    return years._replace(dates=years.dates[within], closes=years.closes[within], hours=years.hours[within])


@lru_cache(maxsize=16)
def _sessions(calendar: str, first: str, last: str) -> Sessions:
    import exchange_calendars

    try:
        found = exchange_calendars.get_calendar(calendar, start=f"{first}-01-01", end=f"{last}-12-31")
    except exchange_calendars.errors.InvalidCalendarName as error:
        raise InputError(
            f"unknown calendar {calendar!r}; give a name of exchange_calendars such as XNYS, XTKS or XLON, or None",
            argument="calendar",
        ) from error
    except (ValueError, exchange_calendars.errors.CalendarError) as error:
        raise InputError(
            f"the calendar {calendar} does not cover {first} to {last} ({first_line(error)})", argument="calendar"
        ) from error
    closes = found.closes
    local = pd.DatetimeIndex(closes).tz_convert(found.tz)
    distances = np.unique(local.tz_localize(None).to_numpy() - pd.DatetimeIndex(closes).tz_localize(None).to_numpy())
    return Sessions(
        found.sessions.to_numpy().astype("datetime64[ns]"),
        pd.DatetimeIndex(closes).tz_localize(None).to_numpy().astype("datetime64[ns]"),
        np.stack([_clock(found.opens, found.tz), _clock(found.closes, found.tz)], axis=1),
        frozenset(offset_text(distance) for distance in distances),
        ZoneInfo(str(found.tz)),
    )


def _clock(moments: Any, zone: Any) -> Array:
    return pd.DatetimeIndex(moments).tz_convert(zone).tz_localize(None).to_numpy().astype("datetime64[ns]")


def offset_text(distance: np.timedelta64) -> str:
    """A distance to UTC as +HH:MM."""
    minutes = int(distance.astype("timedelta64[m]").astype(int))
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
