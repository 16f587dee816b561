"""The sessions of an exchange, from exchange_calendars: which dates are sessions, and when each is over."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError, first_line
from finpod.market.repairs import RepairLog
from finpod.measures import Array
from finpod.periods import is_weekly_or_longer

NEW_YORK = ZoneInfo("America/New_York")
GRACE = np.timedelta64(15, "m")
"""Time after the close from which a session's bar counts as finished."""
LATE_START = np.timedelta64(12, "h")
"""Time of day of the first bar from which a day begins strangely late."""
ODD_DATES = 0.05
"""Share of dates that are no sessions, above which the file is taken to belong to another exchange."""


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


def rows_to_drop(
    bars: pd.DataFrame, calendar: str | None, ledger: RepairLog, name: str, now: datetime | None = None
) -> Array:
    """[rows] bool: the tidy bars of no session, or of one that is not over at `now` (aware; None: this moment); counted.

    Without a calendar every date before today in New York is a session. Bars whose spacing is weekly or longer stand for
    several sessions and may have any date, such as a Sunday or a holiday at the end of a month; they are over when the
    last session up to that date is. Raises DataError where the stamps show another clock than the exchange's, where more
    than a twentieth of the dates are no sessions, and where nothing is left.
    """
    moment = datetime.now(NEW_YORK) if now is None else now
    utc = np.datetime64(moment.astimezone(ZoneInfo("UTC")).replace(tzinfo=None), "ns")
    stamps = bars["date"].to_numpy()
    dates, row = np.unique(stamps.astype("datetime64[D]").astype("datetime64[ns]"), return_inverse=True)
    outside = np.zeros(len(bars), dtype=bool)
    if calendar is None:
        today = np.datetime64(moment.astimezone(NEW_YORK).date(), "ns")
        is_session, over = np.full(len(dates), True), dates < today
    else:
        found = sessions_of(calendar, dates[0], dates[-1])
        is_session = np.isin(dates, found.dates) | is_weekly_or_longer(dates)
        _check_exchange(dates, is_session, found, bars.attrs.get("offsets", ()), calendar, name)
        ended = np.r_[True, found.closes + GRACE <= utc]
        if (stamps != dates[row]).any():
            outside = _outside_hours(stamps, dates[row], found)
            _check_clock(stamps, row, outside, calendar, name)
        latest = np.searchsorted(found.dates, dates, side="right")  # 1 + the row of the last session up to the date
        over = ~is_session | ended[latest]  # of what is no session there is nothing to wait for
    for kind, gone in (("rows dropped, not a session", ~is_session), ("rows dropped, session not over", ~over)):
        rows = np.flatnonzero(gone[row])
        ledger.repair(kind, bars["ticker"].to_numpy()[rows], dates[row[rows]], "bar", "a bar", "dropped")
    rows = np.flatnonzero(outside)
    kind = "rows dropped, outside the hours of their session"
    ledger.repair(kind, bars["ticker"].to_numpy()[rows], stamps[rows], "bar", "a bar", "dropped")
    dropped = ~(is_session & over)[row] | outside
    if dropped.all():
        raise DataError(f"{name} holds no bar of a session of {calendar} that is over; check its dates")
    return dropped


def _outside_hours(stamps: Array, days: Array, found: Sessions) -> Array:
    """[rows] bool: intraday bars that begin before the open or after the close of their session; half days close early."""
    at = np.searchsorted(found.dates, days).clip(max=len(found.dates) - 1)
    begin, end = found.hours[at].T
    return (found.dates[at] == days) & ((stamps < begin) | (stamps > end))


def _check_clock(stamps: Array, row: Array, outside: Array, calendar: str, name: str) -> None:
    """Raise DataError where days begin long after the open and go on after the close: the clock of another place, or UTC."""
    first = stamps[np.searchsorted(row, np.unique(row))]  # bars are sorted by date
    late = first - first.astype("datetime64[D]") >= LATE_START
    if late.mean() > 0.5 and outside.mean() > ODD_DATES:
        raise DataError(
            f"{name}: its days begin at {first[late][0]!s:.16} and the like, and {outside.sum():,} of its bars lie outside the "
            f"hours of {calendar}; give intraday times as in New York, or with their offset"
        )


def _check_exchange(dates: Array, is_session: Array, found: Sessions, offsets: Any, calendar: str, name: str) -> None:
    way_out = "name the exchange with calendar=, such as XTKS or XLON (none: every date counts)"
    foreign = sorted(set(offsets) - found.offsets - {"+00:00"})
    if foreign:
        raise DataError(
            f"{name}: its stamps are at UTC{foreign[0]}, not on the clock of {calendar}; {way_out}", argument="calendar"
        )
    odd = dates[~is_session]
    if len(odd) >= 3 and len(odd) > ODD_DATES * len(dates):
        raise DataError(
            f"{name}: {len(odd)} of its {len(dates)} dates, such as {odd[0]!s:.10}, are no sessions of {calendar}; {way_out}",
            argument="calendar",
        )
