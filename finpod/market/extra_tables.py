"""Adds the user's tables to a market as columns. Each value appears from the first row at which it was known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.market.calendar import UTC, Timeline
from finpod.market.columns import NUMBERS, columns_of, field_of, find_dates, find_tickers, listed
from finpod.market.data import MarketData
from finpod.market.extra import ExtraData
from finpod.market.parsing import decimal_mark, normal_ticker, parse_numbers, parse_stamps, parse_tickers
from finpod.market.readers import read_table
from finpod.market.universe import Membership
from finpod.measures import Array

Table: TypeAlias = pd.DataFrame | str | PathLike[str]
Extra: TypeAlias = Table | Sequence[Table] | None
"""A table, a list of tables, or None."""

KEYS = ("date", "ticker", "known_at")
"""Columns of a table: the day that a value is about, its ticker, and the time at which it became known."""
RESERVED = {*KEYS, *NUMBERS, "factor", "member", "benchmark"}
"""Names that finpod's own tables use. Extra columns must have other names."""
_DATES = ("date", "datetime", "timestamp")
_TICKERS = ("ticker", "symbol", "tic", "tickersymbol", "permno")
"""Names accepted for the columns of dates and tickers. Columns with other names, such as code, are values."""


def with_extra(
    market: MarketData,
    extra: Extra,
    *,
    calendar: str | None = "XNYS",
    day_first: bool | None = None,
    decimal: str | None = None,
) -> MarketData:
    """Return the market with the columns of the user's tables added. `manifest["extra"]` describes each column.

    A table is a frame, or a parquet or CSV file, in one of the forms of data/README.md. A value becomes known at its
    `known_at`, or at its `date` if `known_at` is blank. It is used from the first row whose session closes at or after
    that time. In an intraday market, it is used from the first bar that begins at or after that time (see
    `Timeline.first_rows`). If `calendar` is None, sessions end with the day.

    If several values are known at a row, the one with the latest `date` is used. Among values with the same `date`, the
    one that became known last is used. Values are never filled backwards.

    Raises InputError for a missing file, a reserved name, and a name that the market has already. Raises DataError for
    text and infinity in place of numbers, a repeated name, two values for one ticker, `date` and `known_at`, a column
    without values, and a table without a ticker of the market.
    """
    tables, facts = dict(market.extra.tables), dict(market.manifest.get("extra", {}))
    notes = list(market.manifest.get("notes", ()))
    frames = list(_frames(extra, decimal))
    if not frames:
        return market
    timeline = Timeline(market.dates, calendar)
    for frame, label in frames:
        table = _parsed(frame, label, market.tickers, decimal)
        when, unknown = _known(table, label, market, timeline, day_first)
        for name in table.columns.drop(list(KEYS), errors="ignore"):
            if "," in name or name in tables or (field_of(name) or name.lower()) in RESERVED:
                text = f"{label} has a column {name!r}; rename it, for example to own_{name.replace(',', '_')}, because"
                raise InputError(f"{text} it has a comma, or is used by finpod or another table", argument="extra")
            tables[name], facts[name] = _point_in_time(when.assign(value=table[name]), name, label, market)
            if unknown:
                facts[name]["unknown_tickers"] = {"count": len(unknown), "first": unknown[:5]}
            if facts[name]["never_shown"] == facts[name]["values"]:
                notes.append(f"no value of the extra column {name} was known at the last bar")
    manifest = {**market.manifest, "extra": facts, "notes": notes}
    return replace(market, extra=ExtraData(tables, len(market.tickers)), manifest=manifest)


def _frames(extra: Any, decimal: str | None) -> Iterator[tuple[pd.DataFrame, str]]:
    """Yield (frame, name in errors) for each table. Raises InputError for other types and for missing files."""
    for table in extra if isinstance(extra, (list, tuple)) else [] if extra is None else [extra]:
        if isinstance(table, pd.DataFrame):
            yield table, "the extra table"
        elif not isinstance(table, (str, PathLike)):
            remedy = "give a frame (for a series: series.to_frame('NAME')), a parquet or CSV file, or a list of these"
            raise InputError(f"extra is of type {type(table).__name__}; {remedy}", argument="extra")
        elif (path := Path(table)).is_file():
            yield read_table(path, decimal=decimal), path.name
        else:
            raise InputError(f"there is no extra table {path}; give a parquet or CSV file", argument="extra")


def _parsed(frame: pd.DataFrame, label: str, tickers: Sequence[str], decimal: str | None) -> pd.DataFrame:
    """Return a frame with the columns `date`, `ticker` and `known_at` (the last two if given) and float64 values."""
    columns, pairs = columns_of(frame, label)
    way_out = "give one row per date and ticker, with a column 'ticker'"
    if pairs:
        raise DataError(f"{label} has a header of two levels; {way_out}")
    known_at = [column for column in columns if column.word == "knownat"]
    if len(known_at) > 1:
        raise DataError(f"{label} has two columns 'known_at'; keep one")
    others = [column for column in columns if column not in known_at]
    dates = find_dates(others, label)
    if not (dates.level or dates.unnamed or dates.word in _DATES):
        raise DataError(f"{label} has no column 'date'; rename the column of dates, such as {dates.label!r}, to 'date'")
    ticker = find_tickers([c for c in others if c.level or c.unnamed or c.word in _TICKERS], dates, label)
    values = [c for c in others if not (c is dates or c is ticker or c.unnamed or c.level)]
    names = [column.label for column in values]
    if dates.values.empty or not values:
        raise DataError(f"{label} has no row or no column of values (columns: {listed(columns)}); add what is missing")
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{label} has two columns {twice[0]!r}; keep one")
    if ticker is None and (wide := [name for name in names if normal_ticker(name) in tickers]):
        raise DataError(f"{label} has no column 'ticker', but one for the market's ticker {wide[0]!r}; {way_out}")
    mark = decimal_mark([("", column.values) for column in values], decimal, label)
    numbers = {column.label: parse_numbers(column.values, column.label, label, mark) for column in values}
    keys = {"date": [dates], "ticker": [ticker] if ticker else [], "known_at": known_at}
    return pd.DataFrame({name: column.values for name, found in keys.items() for column in found} | numbers)


def _known(
    table: pd.DataFrame, label: str, market: MarketData, timeline: Timeline, day_first: bool | None
) -> tuple[pd.DataFrame, list[str]]:
    """Return (when, unknown): a frame that tells when each row became known, and the tickers that the market lacks.

    The frame has the columns `date` (the day that the values are about), `known_at` and `row`. The latter is the first
    row of the market that may use the values, or T if there is none. If the table has tickers, the frame also has the
    column `ticker`: the position of the row's ticker in the market, -1 if the market lacks it.
    """
    date = _stamps(table["date"], label, timeline, day_first)
    if np.isnat(date).any():
        raise DataError(f"{label}: row {int(np.isnat(date).argmax()) + 1} has no date; give each value its date")
    stated = _stamps(table["known_at"], label, timeline, day_first) if "known_at" in table else date
    known_at = np.where(np.isnat(stated), date, stated)
    when = pd.DataFrame({"date": date, "known_at": known_at, "row": timeline.first_rows(known_at)})
    unknown: list[str] = []
    if "ticker" in table:
        when["ticker"], unknown = _tickers(table["ticker"], date, market, label)
    return when, unknown


def _stamps(column: pd.Series, label: str, timeline: Timeline, day_first: bool | None) -> Array:
    """Return the times [R] in a column, in the time zone `timeline.zone`; NaT for blank cells.

    If the zone is None, each time is the later of the time in UTC and the time as written, so that no value is used too
    early. Midnight stays as written, because it stands for a day.
    """
    stamps = parse_stamps(column, label, day_first)
    local = stamps.on_clock(timeline.zone) if timeline.zone else np.maximum(stamps.on_clock(UTC), stamps.clock)
    return np.where(stamps.clock == stamps.clock.astype("datetime64[D]"), stamps.clock, local)


def _tickers(column: pd.Series, date: Array, market: MarketData, label: str) -> tuple[Array, list[str]]:
    """Return (positions, unknown): each row's position among the market's tickers [R], and the tickers not among them.

    The position of an unknown ticker is -1. An old symbol of a renamed asset counts as its new one. If the day of the
    rename is known, this holds only for a `date` before it.
    """
    tickers, _ = parse_tickers(column, label)
    symbols, assets = np.array(tickers, dtype=object), pd.Index(market.tickers)
    until = market.manifest.get("renamed_until", {})
    for old, new in market.manifest.get("renamed", {}).items():
        symbols[(symbols == old) & (date < np.datetime64(until[old]) if old in until else old not in assets)] = new
    rest = assets.get_indexer(symbols) < 0
    spells = Membership(tickers=symbols[rest], start=date[rest], stop=date[rest], sentence="")
    symbols[rest] = spells.spelled_as(market.tickers).tickers
    positions = assets.get_indexer(symbols)
    unknown = list(tickers.categories.difference(tickers[positions >= 0].unique().to_numpy()))
    if (positions < 0).all():
        raise DataError(f"{label} has no ticker of the market, only {', '.join(unknown[:3])}; check the spelling")
    return positions, unknown


def _point_in_time(cells: pd.DataFrame, name: str, label: str, market: MarketData) -> tuple[Array, dict[str, Any]]:
    """Return (values, facts): a column [T, N], or [T] if its values apply to all tickers, and its manifest entry.

    `cells` is the frame that `_known` returns, with the numbers of the column as `value`.
    """
    if cells["value"].isna().all():
        raise DataError(f"{label}: the column {name!r} has no numbers; fill or remove the column")
    shared = "ticker" not in cells
    days, width = len(market.dates), 1 if shared else len(market.tickers)
    cells = cells.assign(ticker=0) if shared else cells[cells["ticker"] >= 0]

    keys = ["ticker", "date", "known_at"]
    cells = cells[cells["value"].notna()].drop_duplicates([*keys, "value"])
    cells = cells.sort_values(["date", "known_at"], kind="stable")
    infinite, again = np.isinf(cells["value"]), cells.duplicated(keys)
    if (infinite | again).any():
        cell = cells[infinite if infinite.any() else again].iloc[0]
        whose = "" if shared else f" of {market.tickers[cell['ticker']]}"
        called = f"{name}{whose} dated {cell['date']}".removesuffix(" 00:00:00") + f" is {cell['value']:g}"
        if infinite.any():
            raise DataError(f"{label}: {called}; give a finite number, or leave the cell empty")
        text = f"and another value has the same known_at, {cell['known_at']}; keep one, or give one a later known_at"
        raise DataError(f"{label}: {called}, {text}")
    values, row, ticker = (cells[column].to_numpy() for column in ("value", "row", "ticker"))
    shown = row < days
    newest = np.full((days, width), -1)
    np.maximum.at(newest, (row[shown], ticker[shown]), np.flatnonzero(shown))
    newest = np.maximum.accumulate(newest, axis=0)
    table = np.append(values, np.nan)[newest]  # where there is no value, position -1 selects the NaN
    per, never_shown = "all tickers" if shared else "ticker", len(values) - len(np.setdiff1d(newest, [-1]))
    facts = {"file": label, "per": per, "values": len(values), "never_shown": never_shown}
    return (table[:, 0] if shared else table), facts
