"""Turns tidy bars (a row per date and ticker) into `MarketData`: drops and repairs bars, logs this, adjusts prices."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.files import versions
from finpod.market.calendar import GRACE, NEW_YORK, Sessions, sessions_of
from finpod.market.checks import mask_impossible, mask_stale_tails, mask_volumes, report_anomalies
from finpod.market.corporate_actions import adjust
from finpod.market.coverage import membership_facts
from finpod.market.data import MarketData
from finpod.market.long_bars import LongBars, RepairLog, long_bars
from finpod.market.parsing import is_intraday
from finpod.market.universe import Membership
from finpod.measures import Array
from finpod.periods import is_weekly_or_longer

NO_BENCHMARK = "none"
"""Value of `MarketData.benchmark` for a market without a benchmark."""
NO_CALENDAR = "the dates of the file"
"""Value of `calendar` in the manifest if every date counts as a session."""
UNCOVERED = np.timedelta64(1, "h")
"""A session without bars within this time of its open, or of its close, is a sign of times in another time zone."""
ODD_DATES = 0.05
"""A file is refused if at least three of its dates, and more than this fraction of them, are not sessions. If more than
this fraction of its intraday bars is outside the hours of sessions, their time zone is checked."""
NEGATIVE = 0.2
"""A file is refused if at least three closes, and at least this fraction of them, are negative: it may hold returns."""
GAPS = 0.005
"""If more than this fraction of the members' bars is missing, the manifest has a note."""


def build_market(
    bars: pd.DataFrame,
    *,
    membership: Membership | None,
    benchmark: str | None,
    manifest: Mapping[str, Any],
    log: RepairLog,
    name: str = "the frame",
    allow_missing: bool = True,
    calendar: str | None = "XNYS",
    periods_per_year: float | None = None,
    now: datetime | None = None,
) -> MarketData:
    """Return a validated market from tidy bars (see `finpod.market.tidy.read_bars`), adjusted for splits and dividends.

    Adjusted prices are price * adj_close / close. If the bars have no splits, no dividends and no `adj_close`, prices
    are assumed to be adjusted. Impossible bars are masked. The manifest lists changes (`repairs`) and values that look
    wrong but were not changed (`suspicions`). Both lists include the entries that `read_bars` added to `log`.

    If `membership` is None, all assets are members. `name` is what errors call the bars. See `finpod.load_market` for
    `calendar`, `now` and `periods_per_year`.

    Raises InputError for a benchmark that has no rows or is a member, for members without rows (allowed if
    `allow_missing`), and for an invalid `calendar` or `periods_per_year`. Raises DataError for unusable content.
    """
    membership = _check_tickers(bars, membership, benchmark, name, allow_missing)
    dropped = _rows_to_drop(bars, calendar, log, name, now)
    dates = np.unique(bars["date"].to_numpy()[~dropped])
    kept = long_bars(bars, dropped)
    if (negative := int((kept.values["close"] < 0).sum())) >= max(3, NEGATIVE * len(kept)):
        raise DataError(f"{name}: {negative:,} of {len(kept):,} closes are negative; give prices, if these are returns")
    kept = mask_impossible(kept, log)
    if not len(kept):
        kinds = ", ".join(f"{entry['kind']}: {entry['count']}" for entry in log.content()["repairs"])
        raise DataError(f"{name} has no valid bar ({kinds or 'each close is missing'}); check its prices and dates")
    kept = mask_stale_tails(kept, log)
    dates = dates[dates <= kept.date.max()]
    kept, notes, listed = adjust(kept, log, name)
    kept = kept if is_intraday(dates) else mask_volumes(kept, log)  # intraday volumes vary too much for this check
    report_anomalies(kept, dates, listed, log, calendar)
    fields, facts = _grid(kept, dates, membership, benchmark, name)
    return MarketData(
        **fields,
        periods_per_year=periods_per_year,  # type: ignore[arg-type]
        manifest={
            "benchmark_kind": "none" if benchmark is None else "total return",
            "versions": package_versions(),
            **({"reading": list(log.reading)} if log.reading else {}),
            **manifest,
            **facts,
            **log.content(),
            "calendar": calendar or NO_CALENDAR,
            "notes": notes + _note_on_gaps(fields["member"], np.isfinite(fields["close"])),
        },
    )


def package_versions(*more: str) -> dict[str, str]:
    """Return the versions of finpod, of the packages on which all data depend, and of the packages `more`."""
    return versions("finpod", "numpy", "pandas", "pyarrow", *more)


def _check_tickers(
    bars: pd.DataFrame, membership: Membership | None, benchmark: str | None, name: str, allow_missing: bool
) -> Membership | None:
    """Return `membership` with tickers as the bars spell them. Raises InputError for wrong members or benchmarks."""
    tickers = bars["ticker"].cat.categories
    if bars.empty and membership is not None:  # `load_market` leaves out the bars of tickers that are not members
        first = ", ".join(membership.tickers[:3])
        raise InputError(f"{name} has no prices for members, such as {first}; give a member that has prices", "members")
    if benchmark is not None and benchmark not in tickers:
        choice = f"choose one of its {len(tickers)} tickers ({', '.join(tickers[:3])} ...) that is not a member"
        raise InputError(f"{name} has no rows for benchmark {benchmark}; {choice}, or pass benchmark=None", "benchmark")
    if membership is None:
        return None
    membership = membership.spelled_as(tickers)
    members = membership.during(bars["date"].min().to_datetime64(), bars["date"].max().to_datetime64())
    if benchmark in members:
        text = f"{benchmark} cannot be both the benchmark and a member; choose another benchmark, or remove the member"
        raise InputError(text, argument="benchmark")
    missing = [ticker for ticker in members if ticker not in tickers]
    if missing and not allow_missing:
        text = f"{name} has no prices for {', '.join(missing)} ({len(missing)} of {len(members)} members)"
        raise InputError(f"{text}; remove these members, or pass allow_missing=True", argument="allow_missing")
    return membership


def _rows_to_drop(bars: pd.DataFrame, calendar: str | None, log: RepairLog, name: str, now: datetime | None) -> Array:
    """Return a mask [rows] of the bars to drop, and log these bars.

    A bar is dropped if its date is not a session, if its time is outside the hours of the session, or if the session is
    not over at `now`. Without a calendar, every date is a session, and it is over when the next day begins in New York.
    Weekly and longer bars may have any date, such as a holiday. They are over when the last session up to their date is
    over. Raises DataError if times are in another time zone, if too many dates are not sessions, or if no bar is left.
    """
    moment = datetime.now(NEW_YORK) if now is None else now
    stamps, tickers = bars["date"].to_numpy(), bars["ticker"].to_numpy()
    dates, row = np.unique(stamps.astype("datetime64[D]").astype("datetime64[ns]"), return_inverse=True)
    if calendar is None:
        is_session, over = np.full(len(dates), True), dates < np.datetime64(moment.astimezone(NEW_YORK).date(), "ns")
        outside = ~is_session[row]
    else:
        sessions = sessions_of(calendar, dates[0], dates[-1])
        is_session = np.isin(dates, sessions.dates) | is_weekly_or_longer(dates)
        _check_exchange(dates, is_session, sessions, log.offsets, calendar, name)
        outside = _outside_hours(stamps, dates[row], sessions, calendar, name)
        ended = np.r_[True, sessions.closes + GRACE <= np.datetime64(moment.astimezone(UTC).replace(tzinfo=None), "ns")]
        latest = np.searchsorted(sessions.dates, dates, side="right")  # number of sessions up to the date
        over = ~is_session | ended[latest]
    for kind, dropped, when in (
        ("rows dropped, not a session", ~is_session[row], dates[row]),
        ("rows dropped, session not over", ~over[row], dates[row]),
        ("rows dropped, outside the hours of their session", outside, stamps),
    ):
        log.repair(kind, tickers[dropped], when[dropped], "bar", "a bar", "dropped")
    dropped = ~(is_session & over)[row] | outside
    if dropped.all():
        raise DataError(f"{name} has no bar of a completed session (calendar {calendar}); check its dates")
    return dropped


def _check_exchange(
    dates: Array, is_session: Array, sessions: Sessions, offsets: set[str], calendar: str, name: str
) -> None:
    foreign, odd = sorted(offsets - sessions.offsets - {"+00:00"}), dates[~is_session]
    if foreign:
        fault = f"its times have the offset UTC{foreign[0]}, which {calendar} does not use"
    elif len(odd) >= 3 and len(odd) > ODD_DATES * len(dates):
        fault = f"{len(odd)} of its {len(dates)} dates, such as {odd[0]!s:.10}, are not sessions of calendar {calendar}"
    else:
        return
    way_out = "give the exchange as calendar=, such as XTKS or XLON, or keep all dates with calendar=None"
    raise DataError(f"{name}: {fault}; {way_out}", argument="calendar")


def _outside_hours(stamps: Array, days: Array, sessions: Sessions, calendar: str, name: str) -> Array:
    """Return a mask [rows] of the intraday bars that begin before the open or after the close of their session.

    Raises DataError if the times are probably in another time zone, because many bars are outside, and most sessions
    have no bar near their open or near their close.
    """
    opens, closes = sessions.hours_on(days).T
    outside = (stamps != days).any() & ((stamps < opens) | (stamps > closes))
    if outside.mean() > ODD_DATES:
        away = pd.DataFrame({"from open": stamps - opens, "to close": closes - stamps})[~outside]
        if outside.all() or (away.groupby(days[~outside]).min() > UNCOVERED).any(axis=1).mean() > 0.5:
            fault = f"{outside.sum():,} bars, such as {stamps[outside][0]!s:.16}, are outside the hours of {calendar}"
            way_out = "give times in the exchange's time zone or with UTC offsets, or give another calendar="
            raise DataError(f"{name}: {fault}; {way_out}")
    return outside


def _grid(
    bars: LongBars, dates: Array, membership: Membership | None, benchmark: str | None, name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (fields, facts): arguments of `MarketData`, for all assets with bars, and manifest entries on members."""
    tickers = np.array(bars.tickers, dtype=object)
    others, has_bars = tickers != benchmark, bars.per_asset(slice(None)) > 0
    kept = np.flatnonzero(others & has_bars)
    if not len(kept):
        text = f"{name} has no valid bar except those of the benchmark {benchmark}"
        raise DataError(f"{text}; give another asset, or pass benchmark=None to trade {benchmark}")
    row, own = np.searchsorted(dates, bars.date), -1 if benchmark is None else bars.tickers.index(benchmark)
    fields: dict[str, Any] = {"dates": dates, "tickers": tuple(tickers[kept]), "benchmark": benchmark or NO_BENCHMARK}
    for field, series in _adjusted(bars).items():
        table = np.full((len(dates), len(tickers) + 1), np.nan)  # the last column stays NaN, for benchmark=None
        table[row, bars.code] = series
        fields[field] = table[:, kept]
        if field in ("close", "open"):
            fields[f"benchmark_{field}"] = table[:, own]
    fields["member"], facts = membership_facts(membership, dates, fields["tickers"], np.isfinite(fields["close"]))
    if membership is None:
        facts["missing"] = sorted(tickers[others & ~has_bars])
    return fields, facts


def _note_on_gaps(member: Array, has_bar: Array) -> list[str]:
    """Return [note] if members lack many bars between their first and last bars (see `GAPS`); otherwise, return []."""
    expected = member & np.maximum.accumulate(has_bar) & np.maximum.accumulate(has_bar[::-1])[::-1]
    missing = (expected & ~has_bar).sum() / max(expected.sum(), 1)
    text = "of the bars are missing; if an asset has no bar at a decision, equal weight, most rules and agents sell it"
    return [f"{missing:.1%} {text} and buy it back later; use assets with the same sessions"] if missing > GAPS else []


def _adjusted(bars: LongBars) -> dict[str, Array]:
    """Return field -> adjusted values [R]. `factor` is one of the fields if the bars have `adj_close` or `traded`."""
    values = dict(bars.values)
    close = values["close"]
    adjusted, traded = values.pop("adj_close", None), values.pop("traded", close)
    if adjusted is not None:
        values |= {field: values[field] * adjusted / close for field in ("open", "high", "low") if field in values}
        values["close"] = adjusted
        if "volume" in values:
            values["volume"] = values["volume"] / (adjusted / close)
    if adjusted is not None or traded is not close:
        values["factor"] = values["close"] / traded
    return values
