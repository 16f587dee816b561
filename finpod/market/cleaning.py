"""From tidy bars to `MarketData`: sessions, impossible bars, splits and dividends, volumes; every repair is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.files import versions
from finpod.market.calendar import rows_to_drop
from finpod.market.checks import mask_impossible, mask_volumes
from finpod.market.corporate_actions import adjust
from finpod.market.data import MarketData
from finpod.market.long_bars import LongBars, long_bars
from finpod.market.repairs import RepairLog
from finpod.market.stale import mask_stale_tails
from finpod.market.stamps import is_intraday
from finpod.market.suspicions import look_for_suspicions
from finpod.market.universe import Membership, membership_facts
from finpod.measures import Array

NO_BENCHMARK = "none"
"""What the benchmark is called where there is none."""
NO_CALENDAR = "the dates of the file"
"""What the manifest gives as the calendar where every date counts as a session."""
_PACKAGES = ("finpod", "numpy", "pandas", "pyarrow")


def build_market(
    bars: pd.DataFrame,
    *,
    membership: Membership | None,
    benchmark: str | None,
    manifest: Mapping[str, Any],
    name: str = "the frame",
    allow_missing: bool = True,
    calendar: str | None = "XNYS",
    periods_per_year: float | None = None,
    now: datetime | None = None,
) -> MarketData:
    """A validated market from tidy bars (see `finpod.market.tidy.tidy_bars`), adjusted for splits and dividends.

    adjusted price = price * adj_close / close, adjusted volume = volume / (adj_close / close), where `adj_close` is the
    vendor's, mended where it contradicts the splits and dividends listed, or is made from these; without either the
    prices are taken as already adjusted. What cannot be trusted is masked; the manifest lists it (`repairs`), and what
    looks wrong and was left alone (`suspicions`). Rows that are no sessions of `calendar`, or not over at `now`, are
    dropped; bars whose spacing is weekly or longer may have any date. `periods_per_year` None is measured. `membership` None
    takes every name as a member for all time; `benchmark` None goes without one. Raises
    InputError for a benchmark without rows, and for members without any unless `allow_missing`; DataError for content
    that cannot be used.
    """
    tickers = tuple(bars["ticker"].cat.categories)
    if benchmark is not None and benchmark not in tickers:
        shown = ", ".join(tickers[:3])
        way_out = f"choose one of its {len(tickers)} names with benchmark=, such as {shown}, or None to go without"
        raise InputError(f"{name} has no rows for the benchmark {benchmark}; {way_out}", argument="benchmark")
    if membership is not None:
        membership = membership.spelled_as(tickers)
        _check_members(membership, bars, benchmark, name, allow_missing)
    if tickers == (benchmark,):
        raise DataError(
            f"{name} holds the benchmark {benchmark} and no other name; a market needs at least one "
            "(or take that name itself, without a benchmark)"
        )
    ledger = _tidying(bars)
    history, dates, notes = _clean(bars, calendar, now, name, ledger)
    tables: dict[str, Any] = _pivot(history, dates)
    own = np.array([t == benchmark for t in tickers])
    empty = np.bincount(history.code, minlength=len(tickers)) == 0
    names, bare = (tuple(np.array(tickers, dtype=object)[which]) for which in (~own & ~empty, ~own & empty))
    if not names:
        raise DataError(f"{name} holds no bar that can be used of any name but the benchmark {benchmark}")
    series = {key: table[:, own].ravel() if own.any() else np.full(len(dates), np.nan) for key, table in tables.items()}
    tables = {key: table[:, ~own & ~empty] for key, table in tables.items()}
    member, facts = membership_facts(membership, dates, names, np.isfinite(tables["close"]))
    if membership is None:
        facts["missing"] = sorted({*facts["missing"], *bare})
    return MarketData(
        dates=dates,
        tickers=names,
        member=member,
        benchmark=benchmark or NO_BENCHMARK,
        benchmark_close=series["close"],
        benchmark_open=series.get("open"),
        periods_per_year=periods_per_year,  # type: ignore[arg-type]
        manifest={
            "benchmark_kind": "none" if benchmark is None else "total return",
            "versions": package_versions(),
            **({"reading": list(bars.attrs["reading"])} if bars.attrs.get("reading") else {}),
            **manifest,
            **facts,
            **ledger.content(),
            "calendar": calendar or NO_CALENDAR,
            "notes": [*manifest.get("notes", ()), *notes],
        },
        **tables,
    )


def _clean(
    bars: pd.DataFrame, calendar: str | None, now: datetime | None, name: str, ledger: RepairLog
) -> tuple[LongBars, Array, list[str]]:
    """The bars that can be used, adjusted; the dates [T] of the market; and notes for the reader."""
    dropped = rows_to_drop(bars, calendar, ledger, name, now)
    dates = np.unique(bars["date"].to_numpy()[~dropped])
    history = mask_impossible(long_bars(bars, dropped), ledger)
    if not len(history):
        raise DataError(
            f"{name} holds no bar that can be used; {ledger.content()['repairs'][0]['kind']}, and so on for all"
        )
    history, dates = mask_stale_tails(history, dates, ledger)
    notes, listed = adjust(history, ledger, name)
    if not is_intraday(dates):  # within a day volumes leap by themselves
        mask_volumes(history, ledger)
    look_for_suspicions(history, dates, listed, ledger, calendar)
    return history, dates, notes


def package_versions(*more: str) -> dict[str, str]:
    """Versions of finpod and of the packages that shaped the data."""
    return versions(*_PACKAGES, *more)


def _tidying(bars: pd.DataFrame) -> RepairLog:
    """A ledger that starts with what was done when the bars were made tidy."""
    ledger = RepairLog()
    for entry in bars.attrs.get("repairs", ()):
        ledger.add(entry["kind"], entry["count"], entry["places"])
    for entry in bars.attrs.get("suspicions", ()):
        ledger.suspect(entry["kind"], [entry["ticker"]], np.array([entry["date"]]), [entry["sentence"]])
    return ledger


def _pivot(history: LongBars, dates: Array) -> dict[str, Any]:
    """[T, N] adjusted tables, NaN where there is no bar."""
    values = dict(history.values)
    close = values["close"]
    adjusted, traded = values.pop("adj_close", None), values.pop("traded", close)
    if adjusted is not None:
        for field in ("open", "high", "low"):
            if field in values:
                values[field] = values[field] * adjusted / close
        values["close"] = adjusted
        if "volume" in values:
            values["volume"] = values["volume"] / (adjusted / close)
    if adjusted is not None or traded is not close:
        values["factor"] = values["close"] / traded
    row = np.searchsorted(dates, history.date)
    tables = {}
    for field, series in values.items():
        tables[field] = np.full((len(dates), len(history.tickers)), np.nan)
        tables[field][row, history.code] = series
    return tables


def _check_members(
    membership: Membership, bars: pd.DataFrame, benchmark: str | None, name: str, allow_missing: bool
) -> None:
    wanted: Sequence[str] = membership.during(bars["date"].min().to_datetime64(), bars["date"].max().to_datetime64())
    if benchmark in wanted:
        raise InputError(
            f"{benchmark} cannot be the benchmark and a member as well; choose another benchmark, or leave it "
            "out of the members",
            argument="benchmark",
        )
    missing = [t for t in wanted if t not in bars["ticker"].cat.categories]
    if missing and not allow_missing:
        raise InputError(
            f"{name} has no prices for {', '.join(missing)} ({len(missing)} of {len(wanted)} names); leave "
            "them out, or pass allow_missing=True",
            argument="allow_missing",
        )
