"""Extra tables as columns of a market: each value is shown from the first row at which it was known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.market.calendar import Timeline, timeline_of
from finpod.market.columns import NUMBERS, columns_of, field_of, find_dates, find_tickers
from finpod.market.data import MarketData
from finpod.market.dates import parse_stamps
from finpod.market.extra import ExtraData
from finpod.market.parsing import decimal_mark, is_text, is_ticker, normal_ticker, parse_numbers, parse_tickers
from finpod.market.readers import read_table
from finpod.measures import Array

Table: TypeAlias = pd.DataFrame | pd.Series | str | PathLike[str]
Extra: TypeAlias = Table | Mapping[str, Table] | Sequence[Table | Mapping[str, Table]] | None
"""A table, tables by the name of their variable, or several of either; None for none."""

Keys = Mapping[str, pd.Series]
"""The columns `date`, and perhaps `ticker` and `known_at`: the day that a value is about, and when it was known."""
Values = tuple[str, str | None, pd.Series]
"""Name of the variable, the ticker if the header names it, and the values [rows]."""
RESERVED = {"date", "ticker", "known_at", *NUMBERS, "factor", "member", "benchmark"}
"""Names of finpod's own tables, which extra columns cannot have."""
_DATES = ("date", "datetime", "timestamp")
"""Names of a column of dates. Others may be those of a day before the values were known."""
LISTED = 5
"""Most unknown tickers that the manifest lists."""


def with_extra(
    market: MarketData,
    extra: Extra,
    *,
    calendar: str | None = "XNYS",
    day_first: bool | None = None,
    decimal: str | None = None,
) -> MarketData:
    """Return the market with the columns of the user's tables added; `manifest["extra"]` describes each column.

    A table is a frame, a Series, or a parquet or CSV file, in one of the forms of data/README.md. A value is shown from the
    first row whose session closes at or after its `known_at`, or its `date` where that is blank (see `Timeline.first_rows`;
    `calendar` None: with the end of the day), until a newer one is known. Of the known values the one with the latest date is
    shown, of several with that date the one known last. Nothing is filled backwards.

    Raises InputError for a table that does not exist and for a column whose name has another meaning; DataError for
    content that cannot be used: no value, text, an infinite value, two values for one ticker, date and `known_at`, or no
    ticker of the market.
    """
    tables, facts = dict(market.extra.tables), dict(market.manifest.get("extra", {}))
    notes = list(market.manifest.get("notes", ()))
    timeline = None
    for source, label, key in _sources(extra):
        timeline = timeline or timeline_of(market.dates, calendar)
        keys, values, mark = _read(source, label, key, market.tickers, decimal)
        columns, unknown = _cells(keys, values, mark, label, market, _known(keys, label, timeline, day_first))
        for name, cells in columns.items():
            if name in tables:
                text = f"two extra tables have the column {name}; rename one, or put both into one table"
                raise InputError(text, argument="extra")
            tables[name], facts[name] = _point_in_time(cells, name, label, market)
            if unknown:
                facts[name]["unknown_tickers"] = {"count": len(unknown), "first": unknown[:LISTED]}
            if facts[name]["never_shown"] == facts[name]["values"]:
                notes.append(f"the extra column {name} shows no value: all were known after the last session")
    if timeline is None:
        return market
    manifest = {**market.manifest, "extra": facts, "notes": notes}
    return replace(market, extra=ExtraData(tables, len(market.tickers)), manifest=manifest)


def _sources(extra: Any, key: str | None = None) -> Iterator[tuple[pd.DataFrame | Path, str, str | None]]:
    """Yield each table as a frame or a path, its name in messages, and the name of its variable, if the user gives one.

    Raises InputError for what is no table, and for a file that does not exist.
    """
    if extra is None:
        return
    if isinstance(extra, Mapping) and key is None:
        for name, table in extra.items():
            yield from _sources(table, str(name))
    elif isinstance(extra, (list, tuple)) and key is None:
        for table in extra:
            yield from _sources(table)
    elif isinstance(extra, (pd.DataFrame, pd.Series)):
        label = "the extra table" if key is None else f"the extra table {key}"
        yield extra.to_frame(key or extra.name or "value") if isinstance(extra, pd.Series) else extra, label, key
    elif isinstance(extra, (str, PathLike)):
        path = Path(extra)
        if not path.is_file():
            raise InputError(f"there is no extra table {path}; give a parquet or CSV file", argument="extra")
        yield path, path.name, key
    else:
        raise InputError(
            f"extra is {extra!r:.60}; give a frame, a parquet or CSV file, tables by name as in "
            '{"pe": frame}, or a list of these',
            argument="extra",
        )


def _read(
    source: pd.DataFrame | Path, label: str, key: str | None, tickers: Sequence[str], decimal: str | None
) -> tuple[Keys, list[Values], str]:
    """Return the keys and the values of a table, and the decimal mark of its numbers."""
    variable = key or (source.stem if isinstance(source, Path) else None)
    frame = read_table(source) if isinstance(source, Path) else source
    keys, values = _split(frame, label, key, variable, tickers)
    mark = decimal_mark([("", column) for *_, column in values if is_text(column)], decimal, label)
    if mark == "," and isinstance(source, Path):  # what was read with a decimal point has another meaning
        keys, values = _split(read_table(source, decimal=","), label, key, variable, tickers)
    if keys["date"].empty:
        raise DataError(f"{label} holds no row; check how it was made")
    return keys, values, mark


def _split(
    frame: pd.DataFrame, label: str, key: str | None, variable: str | None, tickers: Sequence[str]
) -> tuple[Keys, list[Values]]:
    """Return the columns of a table by their meaning. `variable` is the name of the variable of a wide table."""
    columns, pairs = columns_of(frame, label)
    known_at = [column for column in columns if column.word == "knownat"]
    others = [column for column in columns if column not in known_at]
    dates = find_dates(others, label)
    if not (dates.level or dates.unnamed or dates.word in _DATES):
        raise DataError(
            f"{label} has no column date, and {dates.label} may be another day; name the column of dates so"
        )
    others.remove(dates)
    ticker = find_tickers([column for column in others if not _is_among(column.label, tickers)], dates, label)
    keys = {"date": dates, "ticker": ticker, "known_at": known_at[0] if known_at else None}
    named: Keys = {name: column.values for name, column in keys.items() if column is not None}
    labels = [c.label for c in others if not (c is ticker or c.unnamed or c.level)]
    if pairs and (labels or ticker is not None):
        raise DataError(
            f"{label} has columns of one ticker and others, such as {[*labels, 'ticker'][0]}; make two tables"
        )
    if pairs:
        known = [sum(_is_among(pair[level], tickers) for pair in pairs) for level in (0, 1)]
        at = int(known[1] >= known[0])
        return named, [(pair[1 - at], pair[at], pair[2]) for pair in pairs]
    if not labels:
        raise DataError(f"{label} has no column of values beside {', '.join(c.label for c in columns)}; add one")
    values = [c.values for c in others if c.label in labels]
    if ticker is None and _is_wide(labels, label, key, tickers):
        if variable is None:
            raise DataError(f'{label} has one column a ticker; give its name, {{"name": frame}}, or a column ticker')
        return named, [(variable, name, column) for name, column in zip(labels, values, strict=True)]
    labels = [key] if key is not None and len(labels) == 1 else labels
    return named, [(name, None, column) for name, column in zip(labels, values, strict=True)]


def _is_wide(labels: list[str], label: str, key: str | None, tickers: Sequence[str]) -> bool:
    """Return True for a table with one column a ticker. Raises DataError if a column may be a ticker or a variable."""
    members = [name for name in labels if _is_among(name, tickers)]
    if not members or key is not None:
        return bool(members) or (key is not None and len(labels) > 1)
    others = [name for name in labels if name not in tickers and not (is_ticker(name) and name == name.upper())]
    if others:
        raise DataError(
            f"{label} has a column {members[0]}, a ticker of the market, and a column {others[0]}, which may be a variable; "
            f"add a column ticker, or rename {members[0]} if it is a variable"
        )
    return True


def _is_among(label: object, tickers: Sequence[str]) -> bool:
    """Return True for a ticker of the market in any spelling."""
    return label in tickers or normal_ticker(label, tickers) in tickers


def _cells(
    keys: Keys, values: Sequence[Values], mark: str, label: str, market: MarketData, when: pd.DataFrame
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Return variable -> its cells, and unknown tickers.

    A cell has a `value`; its `ticker`, a column of the market (-1 for an unknown one), unless it counts for all tickers;
    and the columns of `when` (see `_known`). Raises DataError for text and dates.
    """
    in_header = [ticker for _, ticker, _ in values if ticker is not None]
    labels = pd.Series(in_header, dtype=object) if in_header else keys.get("ticker")
    places, unknown = (None, []) if labels is None else _tickers(labels, market, label)
    parts: dict[str, list[pd.DataFrame]] = {}
    for at, (name, _, column) in enumerate(values):
        if (field_of(name) or name.lower()) in RESERVED:
            text = f"{label} has a column {name}, which is the name of a table of finpod; rename it, such as own_{name}"
            raise InputError(text)
        if "," in name:
            raise InputError(f"{label} has a column {name!r}; take the comma out of its name")
        cells = when.assign(value=parse_numbers(column, name, label, mark))
        if places is not None:
            cells["ticker"] = places[at] if in_header else places
        parts.setdefault(name, []).append(cells)
    return {name: pd.concat(several, ignore_index=True) for name, several in parts.items()}, unknown


def _known(keys: Keys, label: str, timeline: Timeline, day_first: bool | None) -> pd.DataFrame:
    """Return for each row its `date`, the time that its values are about; `known_at`, when they were known; and `row`, the
    first row of the market that may show them (T for none).
    """
    date = _stamps(keys["date"], label, timeline, day_first)
    if np.isnat(date).any():
        raise DataError(f"{label}: row {int(np.isnat(date).argmax()) + 1} has no date; give each value its date")
    stated = _stamps(keys["known_at"], label, timeline, day_first) if "known_at" in keys else date
    known_at = np.where(np.isnat(stated), date, stated)
    return pd.DataFrame({"date": date, "known_at": known_at, "row": timeline.first_rows(known_at)})


def _stamps(column: pd.Series, label: str, timeline: Timeline, day_first: bool | None) -> Array:
    """Return stamps [R] datetime64[ns] on the clock of the market, NaT where blank. Midnight is a day, which no time zone moves."""
    stamps = parse_stamps(column, label, day_first)
    return np.where(stamps.clock == stamps.clock.astype("datetime64[D]"), stamps.clock, stamps.on_clock(timeline.zone))


def _tickers(column: pd.Series, market: MarketData, label: str) -> tuple[Array, list[str]]:
    """Return positions [R] of the tickers in the market, -1 for others, and these others. An old symbol counts as the new one."""
    tickers, _ = parse_tickers(column, label)
    place = {ticker: at for at, ticker in enumerate(market.tickers)}
    for old, new in reversed(market.manifest.get("renamed", {}).items()):
        if old not in place and new in place:
            place[old] = place[new]
    positions = np.array([place.get(normal_ticker(ticker, place), -1) for ticker in tickers.categories])
    unknown = list(tickers.categories[positions < 0])
    if len(unknown) == len(positions):
        raise DataError(
            f"{label}: none of its {len(unknown)} tickers, such as {', '.join(unknown[:3])}, is in the market, which has "
            f"{', '.join(market.tickers[:3])} and the like; check how they are spelled"
        )
    return positions[tickers.codes], unknown


def _point_in_time(cells: pd.DataFrame, name: str, label: str, market: MarketData) -> tuple[Array, dict[str, Any]]:
    """Return a column [T, N], or [T] for one value for all tickers, and its entry for the manifest."""
    if cells["value"].isna().all():
        raise DataError(f"{label}: the column {name} holds no number; fill it, or take it out")
    shared = "ticker" not in cells
    days, width = len(market.dates), 1 if shared else len(market.tickers)
    cells = cells.assign(ticker=0) if shared else cells[cells["ticker"] >= 0]

    def called(cell: pd.Series) -> str:
        whose = "" if shared else f" of {market.tickers[cell['ticker']]}"
        return f"{name}{whose} dated {_time(cell['date'])}"

    if len(infinite := cells[np.isinf(cells["value"])]):
        cell = infinite.iloc[0]
        raise DataError(f"{label}: {called(cell)} is {cell['value']}; give a number, or leave the cell empty")
    keys = ["ticker", "date", "known_at"]
    cells = cells[cells["value"].notna()].drop_duplicates([*keys, "value"])
    cells = cells.sort_values(["date", "known_at"], kind="stable")
    twice = cells[cells.duplicated(keys, keep=False)].sort_values(keys, kind="stable")
    if len(twice):
        first, second = twice.iloc[0], twice.iloc[1]
        raise DataError(
            f"{label} has two values of {called(first)} and known at {_time(first['known_at'])}: {first['value']:g} and "
            f"{second['value']:g}; keep one, or say in known_at which is newer"
        )
    values, row, ticker = (cells[column].to_numpy() for column in ("value", "row", "ticker"))
    shown = row < days
    newest = np.full((days, width), -1)
    np.maximum.at(newest, (row[shown], ticker[shown]), np.flatnonzero(shown))
    newest = np.maximum.accumulate(newest, axis=0)
    table = np.append(values, np.nan)[newest]  # the number of no value is -1
    facts: dict[str, Any] = {
        "file": label,
        "per": "all tickers" if shared else "ticker",
        "values": len(values),
        "never_shown": len(values) - len(np.setdiff1d(newest, [-1])),
    }
    return (table[:, 0] if shared else table), facts


def _time(stamp: object) -> str:
    """Return a time as text, without midnight."""
    return str(stamp).removesuffix(" 00:00:00")
