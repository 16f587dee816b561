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
from finpod.market.columns import NUMBERS, field_of, is_unnamed, word
from finpod.market.data import MarketData
from finpod.market.dates import holds_dates, parse_stamps
from finpod.market.extra import ExtraData
from finpod.market.parsing import decimal_mark, is_text, is_ticker, normal_ticker, parse_numbers, parse_tickers
from finpod.market.readers import read_table
from finpod.measures import Array

Table: TypeAlias = pd.DataFrame | pd.Series | str | PathLike[str]
Extra: TypeAlias = Table | Mapping[str, Table] | Sequence[Table | Mapping[str, Table]] | None
"""A table, tables by the name of their variable, or several of either; None for none."""

KEYS = ("date", "ticker", "known_at")
"""Columns for the day that a value is about, for its ticker, and for the time at which it became known."""
_SPELLINGS = {
    **dict.fromkeys(("date", "datetime", "timestamp"), "date"),
    **dict.fromkeys(("ticker", "symbol", "tic", "tickersymbol", "permno"), "ticker"),
    "knownat": "known_at",
}
RESERVED = {*KEYS, *NUMBERS, "factor", "member", "benchmark"}
"""Names of finpod's own tables, which extra columns cannot have."""
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

    A table is a frame, a Series, or a parquet or CSV file. A long table has the columns `date`, `ticker` (without it: one
    value for all tickers), columns of numbers, and perhaps `known_at`. A wide table has the dates and a column for each
    ticker; its variable is named by the file (`pe.csv`) or by the key in `{"pe": frame}`. A single column of numbers that
    is given by a key is called by the key.

    A value is shown from the first row whose session closes at or after its `known_at`, or its `date` where that is blank.
    A time of day is compared with the close of the session in `calendar` (None: with the end of the day), in an intraday
    market with the time of the bar; see `Timeline.first_rows`. Of the values known at a row the one with the latest date
    is shown, of several with that date the one known last, until a newer one is known. Nothing is filled backwards.

    Raises InputError for a table that does not exist and for a column whose name has another meaning; DataError for
    content that cannot be used: no value, text, an infinite value, two values for one ticker, date and `known_at`, or no
    ticker of the market.
    """
    tables, facts = dict(market.extra.tables), dict(market.manifest.get("extra", {}))
    notes = list(market.manifest.get("notes", ()))
    timeline = None
    for label, frame in _tables(extra, market.tickers, decimal):
        timeline = timeline or timeline_of(market.dates, calendar)
        when, values, unknown = _known(frame, label, market, timeline, day_first, decimal)
        for name, column in values.items():
            if name in tables:
                text = f"two extra tables have the column {name}; rename one, or put both into one table"
                raise InputError(text, argument="extra")
            tables[name], facts[name] = _point_in_time(when.assign(value=column), name, label, market)
            if unknown:
                facts[name]["unknown_tickers"] = {"count": len(unknown), "first": unknown[:LISTED]}
            if facts[name]["never_shown"] == facts[name]["values"]:
                notes.append(f"the extra column {name} shows no value: all were known after the last session")
    if timeline is None:
        return market
    manifest = {**market.manifest, "extra": facts, "notes": notes}
    return replace(market, extra=ExtraData(tables, len(market.tickers)), manifest=manifest)


def _tables(
    extra: Any, tickers: Sequence[str], decimal: str | None, key: str | None = None
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield every table of `extra` in long form, with its name in messages. Raises InputError for anything else."""
    if extra is None:
        return
    if isinstance(extra, Mapping) and key is None:
        for name, table in extra.items():
            yield from _tables(table, tickers, decimal, str(name))
    elif isinstance(extra, (list, tuple)) and key is None:
        for table in extra:
            yield from _tables(table, tickers, decimal)
    elif isinstance(extra, (pd.DataFrame, pd.Series)):
        label = "the extra table" if key is None else f"the extra table {key}"
        frame = extra.to_frame(key or extra.name or "value") if isinstance(extra, pd.Series) else extra
        yield label, _long(_flat(frame, label, tickers), label, tickers, key, key)
    elif isinstance(extra, (str, PathLike)):
        path = Path(extra)
        if not path.is_file():
            raise InputError(f"there is no extra table {path}; give a parquet or CSV file", argument="extra")
        frame = _flat(read_table(path), path.name, tickers)
        if _mark(frame, decimal, path.name) == ",":  # what was read with a decimal point has another meaning
            frame = _flat(read_table(path, decimal=","), path.name, tickers)
        yield path.name, _long(frame, path.name, tickers, key, key or path.stem)
    else:
        raise InputError(
            f"extra is {extra!r:.60}; give a frame, a parquet or CSV file, tables by name as in "
            '{"pe": frame}, or a list of these',
            argument="extra",
        )


def _flat(frame: pd.DataFrame, name: str, tickers: Sequence[str]) -> pd.DataFrame:
    """Return a table with the dates and tickers of its index, and the second level of its header, turned into columns."""
    if frame.columns.nlevels == 2:
        known = [sum(_is_among(label, tickers) for label in frame.columns.levels[level]) for level in (0, 1)]
        of_tickers = int(known[1] >= known[0])
        frame = frame.rename_axis(columns=["ticker" if level == of_tickers else None for level in (0, 1)])
        frame = frame.stack(of_tickers, future_stack=True)
    texts = [str(label).replace("\ufeff", "").strip() for label in frame.columns]
    labels = [_SPELLINGS.get(word(text), text) for text in texts]
    keys: dict[str, pd.Series] = {}
    for i in range(frame.index.nlevels):
        level = pd.Series(frame.index.get_level_values(i))
        key = _SPELLINGS.get(word(frame.index.names[i]))
        if key is None and (frame.index.nlevels > 1 or not pd.api.types.is_numeric_dtype(level)):
            key = "date" if holds_dates(level) else "ticker"
        if key is not None and key not in labels:
            keys.setdefault(key, level)
    if labels and is_unnamed(labels[0]) and "date" not in (*labels, *keys):
        labels[0] = "date"
    named = [bool(label) and not label.lower().startswith("unnamed:") for label in labels]
    flat = pd.concat([pd.DataFrame(keys), frame.set_axis(labels, axis=1).loc[:, named].reset_index(drop=True)], axis=1)
    if "date" not in flat.columns:
        raise DataError(f"{name} has no column date; name the column of dates so, or put them into the index")
    if flat.columns.has_duplicates:
        raise DataError(f"{name} has two columns {flat.columns[flat.columns.duplicated()][0]}; keep one")
    if flat.empty:
        raise DataError(f"{name} holds no row; check how it was made")
    return flat


def _long(
    frame: pd.DataFrame, name: str, tickers: Sequence[str], key: str | None, variable: str | None
) -> pd.DataFrame:
    """Return a table with one column a variable. A wide table, with one column a ticker, is melted into a column `variable`.

    `key` is the user's name of the variable. Raises DataError for a table that fits both layouts, and for a wide one
    without a name.
    """
    labels = [label for label in frame.columns if label not in KEYS]
    if not labels:
        raise DataError(f"{name} has no column of values beside {', '.join(frame.columns)}; add one")
    one_variable = key is not None and len(labels) > 1
    members = [label for label in labels if _is_among(label, tickers)]
    if "ticker" not in frame.columns and (members or one_variable):
        tickerlike = {label for label in labels if label in tickers or (is_ticker(label) and label == label.upper())}
        others = [label for label in labels if label not in tickerlike and not (one_variable and label in members)]
        if members and others:
            raise DataError(
                f"{name} has a column {members[0]}, a ticker of the market, and a column {others[0]}, which may be a variable; "
                f"add a column ticker, or rename {members[0]} if it is a variable"
            )
        if variable is None:
            raise DataError(f'{name} has one column a ticker; give its name, {{"name": frame}}, or a column ticker')
        keys = [label for label in KEYS if label in frame.columns]
        return frame.melt(id_vars=keys, value_vars=labels, var_name="ticker", value_name=variable)
    return frame.rename(columns={labels[0]: key}) if key is not None and len(labels) == 1 else frame


def _is_among(label: object, tickers: Sequence[str]) -> bool:
    """Return True for a ticker of the market in any spelling."""
    return label in tickers or normal_ticker(label, tickers) in tickers


def _mark(frame: pd.DataFrame, decimal: str | None, label: str) -> str:
    """Return the decimal mark of a table's numbers (see `decimal_mark`)."""
    columns = [(name, frame.iloc[:, i]) for i, name in enumerate(frame.columns) if name not in KEYS]
    return decimal_mark([("", values) for _, values in columns if is_text(values)], decimal, label)


def _known(
    frame: pd.DataFrame,
    label: str,
    market: MarketData,
    timeline: Timeline,
    day_first: bool | None,
    decimal: str | None,
) -> tuple[pd.DataFrame, dict[str, Array], list[str]]:
    """Return when the values of a long table of R rows are known, name -> values [R], and unknown tickers.

    The frame has `date`, the time that a value is about; `known_at`, when it was known; `row`, the first row of the market
    that may show it (T for none); and, unless a value counts for all tickers, `ticker`, its column in the market (-1 for
    unknown tickers). Raises DataError for invalid content.
    """
    names = [name for name in frame.columns if name not in KEYS]
    for name in names:
        if (field_of(name) or name.lower()) in RESERVED:
            text = f"{label} has a column {name}, which is the name of a table of finpod; rename it, such as own_{name}"
            raise InputError(text)
        if "," in name:
            raise InputError(f"{label} has a column {name!r}; take the comma out of its name")
    date = _stamps(frame["date"], label, timeline, day_first)
    if np.isnat(date).any():
        raise DataError(f"{label}: row {int(np.isnat(date).argmax()) + 1} has no date; give each value its date")
    known_at = date
    if "known_at" in frame.columns:
        stated = _stamps(frame["known_at"], label, timeline, day_first)
        known_at = np.where(np.isnat(stated), date, stated)
    when = pd.DataFrame({"date": date, "known_at": known_at, "row": timeline.first_rows(known_at)})
    unknown: list[str] = []
    if "ticker" in frame.columns:
        when["ticker"], unknown = _tickers(frame["ticker"], market, label)
    mark = _mark(frame, decimal, label)
    return when, {name: _numbers(frame, name, label, mark) for name in names}, unknown


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


def _numbers(frame: pd.DataFrame, name: str, label: str, mark: str) -> Array:
    """Return numbers [R] float64. Raises DataError for text, dates, an infinite value, and a column without any number."""
    values = parse_numbers(frame[name], name, label, mark)
    if np.isinf(values).any():
        row = int(np.isinf(values).argmax())
        whose = f" of {frame['ticker'].iloc[row]}" if "ticker" in frame.columns else ""
        where = f"{name}{whose} dated {frame['date'].iloc[row]!s:.10}"
        raise DataError(f"{label}: {where} is {values[row]}; give a number, or leave the cell empty")
    if np.isnan(values).all():
        raise DataError(f"{label}: the column {name} holds no number; fill it, or take it out")
    return values


def _point_in_time(cells: pd.DataFrame, name: str, label: str, market: MarketData) -> tuple[Array, dict[str, Any]]:
    """Return a column [T, N], or [T] for one value for all tickers, and its entry for the manifest."""
    shared = "ticker" not in cells
    days, width = len(market.dates), 1 if shared else len(market.tickers)
    cells = cells.assign(ticker=0) if shared else cells[cells["ticker"] >= 0]
    keys = ["ticker", "date", "known_at"]
    cells = cells[cells["value"].notna()].drop_duplicates([*keys, "value"])
    cells = cells.sort_values(["date", "known_at"], kind="stable")
    twice = cells[cells.duplicated(keys, keep=False)].sort_values(keys, kind="stable")
    if len(twice):
        first, second = twice.iloc[0], twice.iloc[1]
        whose = "" if shared else f" of {market.tickers[first['ticker']]}"
        dated, known = (f"{first[key]}".removesuffix(" 00:00:00") for key in ("date", "known_at"))
        raise DataError(
            f"{label} has two values of {name}{whose} dated {dated} and known at {known}: {first['value']:g} and "
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
        "known_before_the_first_session": int((cells["known_at"] < market.sessions[0]).sum()),
        "known_after_the_last_session": int((~shown).sum()),
    }
    return (table[:, 0] if shared else table), facts
