"""`MarketData`: the bars of N assets in T rows (sessions, or intraday bars), validated and immutable."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import cached_property
from typing import Any

import numpy as np

from finpod.errors import DataError, InputError
from finpod.market.extra import ExtraData, read_only
from finpod.measures import Array
from finpod.periods import check_periods, contradiction, measure, plain

DateLike = str | np.datetime64 | Any

_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")
_FIRST_DAY, _LAST_DAY = np.datetime64("1700-01-01"), np.datetime64("2200-01-01")
"""Dates must be on or after `_FIRST_DAY` and before `_LAST_DAY`. datetime64[ns] can hold the years 1678 to 2261."""
HOLIDAYS = np.timedelta64(10, "D")
"""A window may start or end outside the data by at most this time, or by at most one bar if a bar is longer."""

PRICES = ("open", "high", "low", "close")
TABLES = (*PRICES, "volume", "factor", "member")
"""Fields of `MarketData` that are tables [T, N], in the order in which the content hash covers them."""
SERIES = ("benchmark_close", "benchmark_open")
"""Fields of `MarketData` that are series [T]: one value per row."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MarketData:
    """Bars on a grid of T rows (sessions, or intraday bars) and N assets. Arrays are read-only.

    Prices and volume are adjusted for splits and dividends so that `close * volume` is the traded dollar volume. NaN is
    a missing value. Where an asset has no close, it has no bar. A table that the source lacks is None, such as `open`
    for a file of closes. Raises DataError if shapes differ, dates do not increase, tickers repeat, a price is infinite
    or not positive, or every close is missing. Raises InputError if `periods_per_year` is not finite and positive.
    """

    dates: Array
    """[T] datetime64[ns], naive, strictly increasing: session dates, or intraday times in the exchange's time zone."""
    tickers: tuple[str, ...]
    """[N] symbols of the assets, in column order."""
    close: Array
    """[T, N] float64, adjusted close."""
    open: Array | None = None
    """[T, N] float64, adjusted open."""
    high: Array | None = None
    """[T, N] float64, adjusted high."""
    low: Array | None = None
    """[T, N] float64, adjusted low."""
    volume: Array | None = None
    """[T, N] float64, traded shares, adjusted inversely to the prices: for half the price, twice the shares."""
    factor: Array | None = None
    """[T, N] float64, adjusted price / traded price. None means 1 everywhere."""
    member: Array = None  # type: ignore[assignment]
    """[T, N] bool mask of the members of the universe in each row; all True by default."""
    last_bar: Array = None  # type: ignore[assignment]
    """[N] datetime64[ns], date of each asset's last bar, which may be later than the last row; NaT without a bar."""
    benchmark: str = "QQQ"
    """Name of the benchmark in outputs."""
    benchmark_close: Array
    """[T] float64, adjusted close of the benchmark; NaN where missing."""
    benchmark_open: Array | None = None
    """[T] float64, adjusted open of the benchmark."""
    extra: ExtraData = field(default_factory=ExtraData)
    """The user's columns, such as `extra["pe"]` [T, N]. Row t has the values known at row t."""
    periods_per_year: float = None  # type: ignore[assignment]
    """Bars per year, used to annualise figures. By default measured from the dates (see `finpod.periods`)."""
    sessions_per_year: float = None  # type: ignore[assignment]
    """Sessions per year, or bars per year if bars are longer. Default: from `periods_per_year`, if given, or dates."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Provenance as JSON values: source, title, membership, survivorship, missing, notes, ... (see data/README.md)."""
    origin: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Arguments of the call of `load_market` that this market comes from; empty if unknown. Not saved in snapshots."""

    def __post_init__(self) -> None:
        arrays = vars(self)  # a frozen dataclass has no other way to set its fields
        arrays["dates"] = read_only(np.asarray(self.dates).astype("datetime64[ns]"))
        days, assets = self.shape
        if days == 0 or assets == 0:
            raise DataError(f"the market has {days} rows and {assets} assets; it needs at least one of each")
        if len(set(self.tickers)) != assets:
            repeated = next(t for t in self.tickers if self.tickers.count(t) > 1)
            raise DataError(f"ticker {repeated} appears twice among the columns; keep one of them")
        if len(back := np.flatnonzero(np.diff(self.dates) <= np.timedelta64(0))):
            one, following = (f"{day!s:.16}".removesuffix("T00:00") for day in self.dates[back[0] : back[0] + 2])
            raise DataError(f"dates do not increase: {one} is followed by {following}; sort them, and drop repeats")
        if self.member is None:
            arrays["member"] = np.ones((days, assets), dtype=bool)
        for name, table in self.tables.items():
            # Tables must be in C order: numpy adds the values of a Fortran array in another order, so last bits differ.
            table = np.ascontiguousarray(table, dtype=bool if name == "member" else np.float64)
            shape = (days,) if name in SERIES else (days, assets)
            if table.shape != shape:
                raise DataError(f"{name} has shape {table.shape}; for these dates and tickers, give {shape}")
            if name in (*PRICES, *SERIES, "factor") and (wrong := (table <= 0) | np.isinf(table)).any():
                at = tuple(np.argwhere(wrong)[0])
                price = f"{name}{' of ' + self.tickers[at[1]] if len(at) > 1 else ''} on {self.dates[at[0]]!s:.10}"
                raise DataError(f"{price} is {table[at]:g}; give a finite number above 0, or NaN for no bar")
            arrays[name] = read_only(table)
        if not self.has_bar.any():
            raise DataError(f"all closes of {assets} assets in {days} rows are missing; give at least one price")
        self.extra.check_shape(days, assets)
        row = days - 1 - self.has_bar[::-1].argmax(axis=0)
        last = np.where(self.has_bar.any(axis=0), self.dates[row], np.datetime64("NaT", "ns"))
        last = np.asarray(last if self.last_bar is None else self.last_bar)
        arrays["last_bar"] = read_only(last.astype("datetime64[ns]"))
        self._set_periods()

    def _set_periods(self) -> None:
        """Measure the bars per year, or check the given number. The manifest's `periods_note` explains any doubt."""
        periods, sessions = self.periods_per_year, self.sessions_per_year
        before = note = self.manifest.get("periods_note", "")
        if periods is None:
            measured = measure(self.dates)
            periods, sessions, note = measured.per_year, measured.sessions_per_year, measured.note
        else:
            periods = check_periods(periods)
            if sessions is None:
                sessions, note = plain(periods / self.bars_per_session), contradiction(periods, self.dates)
            sessions = check_periods(sessions)  # given if this market is a part of another market
        if note != before:
            kept = {name: value for name, value in self.manifest.items() if name != "periods_note"}
            vars(self)["manifest"] = kept | ({"periods_note": note} if note else {})
        vars(self).update(periods_per_year=periods, sessions_per_year=sessions)

    @property
    def tables(self) -> dict[str, Array]:
        """Dict of the tables [T, N] and series [T] that are not None, by name."""
        tables = {name: getattr(self, name) for name in (*TABLES, *SERIES)}
        return {name: table for name, table in tables.items() if table is not None}

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and number of assets, (T, N)."""
        return len(self.dates), len(self.tickers)

    @cached_property
    def has_bar(self) -> Array:
        """[T, N] bool mask, True where there is a close."""
        return read_only(np.isfinite(self.close))

    @cached_property
    def sessions(self) -> Array:
        """[T] datetime64[D], day of the session of each row."""
        return self.dates.astype("datetime64[D]")

    @cached_property
    def begins_session(self) -> Array:
        """[T] bool mask, True at the first bar of each session; all True for daily data."""
        return np.r_[True, self.sessions[1:] != self.sessions[:-1]]

    @cached_property
    def bars_per_session(self) -> float:
        """Median number of bars per session: 1 for daily data, about 390 for minute bars."""
        return float(np.median(np.unique(self.sessions, return_counts=True)[1]))

    @property
    def frequency(self) -> dict[str, float]:
        """Dict of `periods_per_year` and `sessions_per_year`."""
        return {"periods_per_year": self.periods_per_year, "sessions_per_year": self.sessions_per_year}

    @property
    def title(self) -> str:
        """One line that describes the market: `title` in the manifest, or else `source`."""
        return str(self.manifest.get("title", self.manifest.get("source", "unnamed market")))

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of tickers, benchmark, dates, values and extra columns, but not of the periods and the manifest."""
        digest = hashlib.sha256(json.dumps([self.tickers, self.benchmark]).encode())
        tables = {name: getattr(self, name) for name in ("dates", *TABLES, "last_bar", *SERIES)}
        tables |= {json.dumps([name, table.ndim]): table for name, table in sorted(self.extra.tables.items())}
        for name, value in tables.items():
            digest.update(name.encode())
            if value is not None:
                is_float = value.dtype.kind == "f"  # for floats, all NaN get the same bit pattern
                digest.update((np.where(np.isnan(value), np.nan, value) if is_float else value).tobytes())
        return digest.hexdigest()

    def row_of(self, date: DateLike, *, side: str = "left") -> int:
        """Return the first row on or after `date` (side 'left'), or the last row on or before it ('right').

        Raises InputError for a value that is not a date, and if there is no such row.
        """
        day = as_date(date)
        row = int(np.searchsorted(self.dates, day))
        if side == "right":
            row = int(np.searchsorted(self.dates, day + np.timedelta64(1, "D"))) - 1
        if not 0 <= row < len(self.dates):
            raise self._outside(day)
        return row

    def _outside(self, day: np.datetime64, argument: str = "date") -> InputError:
        span = f"from {self.dates[0]!s:.10} to {self.dates[-1]!s:.10}"
        return InputError(f"{day!s:.10} is outside the data ({span}); choose a date in this range", argument=argument)

    def window(self, start: DateLike | None, end: DateLike | None) -> tuple[int, int]:
        """Return the first and last row (both included) within [start, end]; None means no limit.

        Raises InputError if the window is empty, reversed, or outside the data by more than max(10 days, one bar).
        """
        begin, stop = (None if day is None else as_date(day, name) for day, name in ((start, "start"), (end, "end")))
        if begin is not None and stop is not None and stop < begin:
            raise InputError(f"the end {stop!s:.10} is before the start {begin!s:.10}; swap them", argument="end")
        slack = max(HOLIDAYS, np.timedelta64(round(366 / self.sessions_per_year), "D"))
        for day, argument in ((begin, "start"), (stop, "end")):
            if day is not None and not self.dates[0] - slack <= day <= self.dates[-1] + slack:
                raise self._outside(day, argument)
        first = 0 if begin is None else self.row_of(begin)
        last = len(self.dates) - 1 if stop is None else self.row_of(stop, side="right")
        if last < first:
            raise InputError(f"there is no session between {begin!s:.10} and {stop!s:.10}; take a longer window")
        return first, last

    def rows(self, first: int, stop: int) -> "MarketData":
        """Return the rows [first, stop) as a market. `last_bar` stays the same, even if it is after these rows."""
        if not 0 <= first < stop <= len(self.dates):
            raise InputError(f"rows {first}:{stop} are empty or not within 0:{len(self.dates)}; choose other rows")
        kept = slice(first, stop)
        tables: dict[str, Any] = {name: table[kept] for name, table in self.tables.items()}
        return replace(self, dates=self.dates[kept], extra=self.extra.rows(kept), **tables)

    def select(self, tickers: Sequence[str]) -> "MarketData":
        """Return a market of these tickers, in this order. Raises InputError for unknown tickers."""
        if unknown := [ticker for ticker in tickers if ticker not in self.tickers]:
            known = f"its {len(self.tickers)} tickers, such as {', '.join(self.tickers[:3])}"
            raise InputError(f"the market has no ticker {', '.join(unknown)}; choose from {known}", argument="tickers")
        columns = [self.tickers.index(t) for t in tickers]
        cut: dict[str, Any] = {name: table[:, columns] for name, table in self.tables.items() if name not in SERIES}
        extra = self.extra.select(columns)
        return replace(self, tickers=tuple(tickers), last_bar=self.last_bar[columns], extra=extra, **cut)

    def benchmark_market(self) -> "MarketData":
        """Return a market whose only asset is the benchmark, a member in all rows. Rows without a close are dropped."""
        kept = np.isfinite(self.benchmark_close)
        if not kept.any():
            raise DataError(f"the benchmark {self.benchmark} has no bar in these data; choose another benchmark")
        fields: dict[str, Any] = {name: self.tables[name][kept] for name in SERIES if name in self.tables}
        fields |= {name.removeprefix("benchmark_"): table[:, None] for name, table in fields.items()}
        return MarketData(
            dates=self.dates[kept],
            tickers=(self.benchmark,),
            benchmark=self.benchmark,
            extra=self.extra.rows(kept).shared_only(),
            manifest={**self.manifest, "of_hash": self.content_hash},
            **(fields | self.frequency),
        )


def as_date(value: DateLike, argument: str | None = None) -> np.datetime64:
    """Return a text YYYY-MM-DD[ time], date, datetime, datetime64 or Timestamp as a datetime64[ns] at midnight.

    A date with a time zone becomes its local day. Raises InputError about `argument` for a date outside 1700 to
    2199, and for other values such as 1.5 or "20200102".
    """
    day_like: Any = value.replace(tzinfo=None) if isinstance(value, datetime) else value
    if isinstance(day_like, str) and _ISO.fullmatch(day_like.strip()):
        day_like = day_like.strip()[:10]
    elif not isinstance(day_like, (date, np.datetime64)):
        day_like = "NaT"
    try:
        day: np.datetime64 = np.datetime64(day_like, "D")
    except (ValueError, TypeError):
        day = np.datetime64("NaT")
    if np.isnat(day) or not _FIRST_DAY <= day < _LAST_DAY:
        raise InputError(f"{value!r} is not a date from 1700 to 2199; write YYYY-MM-DD", argument=argument)
    return day.astype("datetime64[ns]")


def forward_fill(table: Array, before: float = np.nan) -> Array:
    """Return the table [T, N] with NaN and infinity replaced by a column's previous finite value, `before` if none."""
    last = np.maximum.accumulate(np.where(np.isfinite(table), np.arange(len(table))[:, None], -1), axis=0)
    return np.where(last >= 0, np.take_along_axis(table, np.maximum(last, 0), axis=0), before)
