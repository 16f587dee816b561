"""Extra tables as columns of a market: each value is shown from the first row at which it was known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.market.calendar import Timeline, timeline_of
from finpod.market.columns import NUMBERS, canonical, canonical_columns
from finpod.market.data import MarketData
from finpod.market.dates import parse_stamps
from finpod.market.extra import ExtraData
from finpod.market.parsing import decimal_mark, is_text, is_ticker, normal_ticker, parse_numbers, parse_tickers
from finpod.market.readers import read_table
from finpod.measures import Array

Table: TypeAlias = pd.DataFrame | pd.Series | str | PathLike[str]
Extra: TypeAlias = Table | Mapping[str, Table] | Sequence[Table | Mapping[str, Table]] | None
"""A table, tables by the name of their variable, or several of either; None for none."""

KEYS = ("date", "ticker", "known_at")
"""Columns with the day a value is about, its ticker, and when it became known."""
TABLES = {*KEYS, *NUMBERS, "factor", "member", "benchmark"}
"""Names of finpod's tables, which extra columns cannot have."""
FEATURES = {
    *("residual_momentum_12_1", "momentum_12_1", "return_63", "return_126", "return_252", "smooth_momentum_126"),
    *("high_252_distance", "beta_252", "idiosyncratic_volatility_63", "volatility_21", "volatility_63"),
    *("log_dollar_volume_63", "amihud_63", "turbulence_63", "residual_return_21", "return_5", "intraday_return_21"),
    *("volume_shock_5", "macd", "boll_ub", "boll_lb", "rsi_30", "cci_30", "dx_30", "close_30_sma", "close_60_sma"),
    *("turbulence", "default", "published"),
}
"""Names of finpod's features and of their sets, which a column cannot have either (`finpod.features.panel`)."""
_TIMES = {"datetime64", "datetime", "date", "timedelta64", "timedelta", "period"}
"""What pandas calls columns of dates and times."""
NAMED = 5
"""Most unknown tickers that the manifest lists."""


class Source(NamedTuple):
    """One extra table."""

    label: str
    """Its name in messages and the manifest: the file's name, or "the extra table pe"."""
    variable: str | None
    """Variable of a wide table: its key, or the file's stem; None for a frame without a key."""
    has_key: bool
    """Whether it was given by a key."""
    frame: pd.DataFrame
    """Its columns, with `date`, `ticker` and `known_at` under these names."""


class Known(NamedTuple):
    """The rows of a table in long form, R in all."""

    when: pd.DataFrame
    """[R] `date`, the time that each value is about; `known_at`, when it was known; `row`, the first row of the market that may
    show it (T for none); `ticker`, its column in the market (-1 for a ticker that it does not have, 0 for all tickers)."""
    values: Mapping[str, Array]
    """Column -> [R] float64, NaN where there is no value."""
    shared: bool
    """Whether each value is one for all tickers."""
    unknown: tuple[str, ...]
    """Tickers that the market does not have."""


def with_extra(
    market: MarketData,
    extra: Extra,
    *,
    calendar: str | None = "XNYS",
    day_first: bool | None = None,
    decimal: str | None = None,
) -> MarketData:
    """The market with the columns of the user's tables beside those it has; `manifest["extra"]` describes each column.

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
    for source in _sources(extra, market.tickers, decimal):
        timeline = timeline or timeline_of(market.dates, calendar)
        known = _known(source, market, timeline, day_first, decimal)
        for name in known.values:
            if name in tables:
                text = f"two extra tables have the column {name}; rename one, or put both into one table"
                raise InputError(text, argument="extra")
            tables[name], facts[name] = _point_in_time(known, name, source.label, market)
            if facts[name]["never_shown"] == facts[name]["values"]:
                notes.append(f"the extra column {name} shows no value: all were known after the last session")
    if timeline is None:
        return market
    manifest = {**market.manifest, "extra": facts, "notes": notes}
    return replace(market, extra=ExtraData(tables, len(market.tickers)), manifest=manifest)


def _sources(extra: Any, tickers: Sequence[str], decimal: str | None, key: str | None = None) -> Iterator[Source]:
    """Every table of `extra`. Raises InputError for anything else."""
    if extra is None:
        return
    if isinstance(extra, Mapping) and key is None:
        for name, table in extra.items():
            yield from _sources(table, tickers, decimal, str(name))
    elif isinstance(extra, (list, tuple)) and key is None:
        for table in extra:
            yield from _sources(table, tickers, decimal)
    elif isinstance(extra, (pd.DataFrame, pd.Series)):
        label = "the extra table" if key is None else f"the extra table {key}"
        frame = extra.to_frame(key or extra.name or "value") if isinstance(extra, pd.Series) else extra
        yield Source(label, key, key is not None, _flat(frame, tickers))
    elif isinstance(extra, (str, PathLike)):
        path = Path(extra)
        if not path.is_file():
            raise InputError(f"there is no extra table {path}; give a parquet or CSV file", argument="extra")
        frame = _flat(read_table(path), tickers)
        if _mark(frame, decimal, path.name) == ",":  # what was read with a decimal point has another meaning
            frame = _flat(read_table(path, decimal=","), tickers)
        yield Source(path.name, key or path.stem, key is not None, frame)
    else:
        raise InputError(
            f"extra is {extra!r:.60}; give a frame, a parquet or CSV file, tables by name as in "
            '{"pe": frame}, or a list of these',
            argument="extra",
        )


def _flat(frame: pd.DataFrame, tickers: Sequence[str]) -> pd.DataFrame:
    """A table with dates and tickers of the index, and the second level of its header, turned into columns."""
    if frame.columns.nlevels == 2:
        known = [sum(_is_among(label, tickers) for label in frame.columns.levels[level]) for level in (0, 1)]
        of_tickers = int(known[1] >= known[0])
        frame = frame.rename_axis(columns=["ticker" if level == of_tickers else None for level in (0, 1)])
        frame = frame.stack(of_tickers, future_stack=True)
    keys: dict[str, Any] = {}
    names = canonical_columns(list(frame.columns))
    for i in range(frame.index.nlevels):
        level = frame.index.get_level_values(i)
        name = canonical("" if level.name is None else level.name)
        if name not in KEYS and not pd.api.types.is_numeric_dtype(level):
            name = "date" if _are_dates(level) else "ticker"
        if name in KEYS and name not in (*names, *keys):
            keys[name] = level
    labels = [name if name in KEYS else str(label).strip() for name, label in zip(names, frame.columns, strict=True)]
    kept = [bool(label) and not label.lower().startswith("unnamed:") and label not in keys for label in labels]
    flat = frame.set_axis(labels, axis=1).loc[:, kept].reset_index(drop=True)
    return pd.concat([pd.DataFrame({name: pd.Series(values) for name, values in keys.items()}), flat], axis=1)


def _is_among(label: object, tickers: Sequence[str]) -> bool:
    """Whether a label is a ticker of the market in any spelling."""
    return label in tickers or normal_ticker(label, tickers) in tickers


def _are_dates(level: pd.Index) -> bool:
    """Whether a level of an index holds dates, or dates as text."""
    return level.dtype.kind == "M" or bool(re.match(r"\d{1,4}[-/.]\d", str(level[0]) if len(level) else ""))


def _mark(frame: pd.DataFrame, decimal: str | None, label: str) -> str:
    """The decimal mark of a table's numbers (see `decimal_mark`)."""
    text = [frame.iloc[:, i] for i, name in enumerate(frame.columns) if name not in KEYS and is_text(frame.iloc[:, i])]
    return decimal_mark(text, [False] * len(text), decimal, label)


def _known(
    source: Source, market: MarketData, timeline: Timeline, day_first: bool | None, decimal: str | None
) -> Known:
    """A table in long form with parsed stamps, tickers and numbers. Raises DataError for invalid content."""
    label, frame = source.label, source.frame
    if "date" not in frame.columns:
        raise DataError(f"{label} has no column date; name the column of dates so, or put them into the index")
    if frame.columns.has_duplicates:
        raise DataError(f"{label} has two columns {frame.columns[frame.columns.duplicated()][0]}; keep one")
    if frame.empty:
        raise DataError(f"{label} holds no row; check how it was made")
    frame = _long(source, market.tickers)
    names = [name for name in frame.columns if name not in KEYS]
    for name in names:
        _check_name(name, label)
    date = parse_stamps(frame["date"], label, timeline.zone, day_first)
    if np.isnat(date).any():
        raise DataError(f"{label}: row {int(np.isnat(date).argmax()) + 1} has no date; give each value its date")
    known_at = date
    if "known_at" in frame.columns:
        known = parse_stamps(frame["known_at"], label, timeline.zone, day_first)
        known_at = np.where(np.isnat(known), date, known)
    ticker, unknown = _tickers(frame, market, label)
    mark = _mark(frame, decimal, label)
    values = {name: _numbers(frame, name, label, mark) for name in names}
    row = timeline.first_rows(known_at)
    when = pd.DataFrame({"date": date, "known_at": known_at, "row": row, "ticker": 0 if ticker is None else ticker})
    return Known(when, values, ticker is None, unknown)


def _long(source: Source, tickers: Sequence[str]) -> pd.DataFrame:
    """A table with one column a variable; a wide table, with one column a ticker, is melted.

    Raises DataError for a table that fits both layouts, and for a wide one without a name.
    """
    label, frame = source.label, source.frame
    names = [name for name in frame.columns if name not in KEYS]
    if not names:
        raise DataError(f"{label} has no column of values beside {', '.join(frame.columns)}; add one")
    if "ticker" not in frame.columns:
        members = [name for name in names if _is_among(name, tickers)]
        written_so = [name for name in members if name == name.upper() or name in tickers]
        others = [name for name in names if name not in members and not (is_ticker(name) and name == name.upper())]
        several = source.has_key and len(names) > 1
        if members and (others or not (written_so or several)):
            other = f"and a column {others[0]}, which is none" if others else "if its letters are made capitals"
            raise DataError(
                f"{label} has a column {members[0]}, a ticker of the market, {other}: it may be one variable by ticker, or hold "
                "one value for all tickers in each column; add a column ticker, or rename the column"
            )
        if written_so or several:
            if source.variable is None:
                raise DataError(
                    f'{label} has a column for each ticker and no name; give it as {{"name": frame}}, or add a column ticker'
                )
            keys = [name for name in KEYS if name in frame.columns]
            return frame.melt(id_vars=keys, value_vars=names, var_name="ticker", value_name=source.variable)
    if source.has_key and len(names) == 1:
        return frame.rename(columns={names[0]: source.variable})
    return frame


def _check_name(name: str, label: str) -> None:
    """Raise InputError for a column with the name of one of finpod's tables or features."""
    plain = canonical(name)
    if plain in TABLES | FEATURES:
        kind = "table" if plain in TABLES else "feature"
        raise InputError(
            f"{label} has a column {name}, which is the name of a {kind} of finpod; rename it, such as own_{plain}"
        )
    if "," in name:
        raise InputError(f"{label} has a column {name!r}; take the comma out of its name")


def _tickers(frame: pd.DataFrame, market: MarketData, label: str) -> tuple[Array | None, tuple[str, ...]]:
    """[R] positions of the tickers in the market, -1 for others, and the others; None for a table without tickers.

    The old symbol of a renamed listing counts as the new one.
    """
    if "ticker" not in frame.columns:
        return None, ()
    parsed = parse_tickers(frame["ticker"], label).names
    place = {ticker: column for column, ticker in enumerate(market.tickers)}
    for old, new in reversed(market.manifest.get("renamed", {}).items()):
        if old not in place and new in place:
            place[old] = place[new]
    columns = np.array([place.get(normal_ticker(ticker, place), -1) for ticker in parsed.categories])
    unknown = tuple(parsed.categories[columns < 0])
    if len(unknown) == len(columns):
        raise DataError(
            f"{label}: none of its {len(unknown)} tickers, such as {', '.join(unknown[:3])}, is in the market, which has "
            f"{', '.join(market.tickers[:3])} and the like; check how they are spelled"
        )
    return columns[parsed.codes], unknown


def _numbers(frame: pd.DataFrame, name: str, label: str, mark: str) -> Array:
    """[R] float64. Raises DataError for text, an infinite value, and a column without any number."""
    if pd.api.types.infer_dtype(frame[name], skipna=True) in _TIMES:
        raise DataError(
            f"{label}: the column {name} holds dates, not numbers; call it known_at if values were known then, or take it out"
        )
    values = parse_numbers(frame[name], name, label, mark)
    if np.isinf(values).any():
        row = int(np.isinf(values).argmax())
        whose = f" of {frame['ticker'].iloc[row]}" if "ticker" in frame.columns else ""
        where = f"{name}{whose} dated {frame['date'].iloc[row]!s:.10}"
        raise DataError(f"{label}: {where} is {values[row]}; give a number, or leave the cell empty")
    if np.isnan(values).all():
        raise DataError(f"{label}: the column {name} holds no number; fill it, or take it out")
    return values


def _point_in_time(known: Known, name: str, label: str, market: MarketData) -> tuple[Array, dict[str, Any]]:
    """A column [T, N], or [T] for one value for all tickers, and its entry for the manifest."""
    days, width = len(market.dates), 1 if known.shared else len(market.tickers)
    there = np.isfinite(known.values[name]) & (known.when["ticker"] >= 0).to_numpy()
    cells = known.when[there].assign(value=known.values[name][there])
    cells = cells.sort_values(["date", "known_at"], kind="stable").drop_duplicates(
        ["ticker", "date", "known_at", "value"]
    )
    keys = ["ticker", "date", "known_at"]
    twice = cells[cells.duplicated(keys, keep=False)].sort_values(keys, kind="stable")
    if len(twice):
        first, second = twice.iloc[0], twice.iloc[1]
        whose = "" if known.shared else f" of {market.tickers[first['ticker']]}"
        raise DataError(
            f"{label} has two values of {name}{whose} dated {_text(first['date'])} and known at {_text(first['known_at'])}: "
            f"{first['value']:g} and {second['value']:g}; keep one, or say in known_at which is newer"
        )
    values, row, ticker = (cells[column].to_numpy() for column in ("value", "row", "ticker"))
    shown = row < days
    newest = np.full((days, width), -1)
    np.maximum.at(newest, (row[shown], ticker[shown]), np.flatnonzero(shown))
    newest = np.maximum.accumulate(newest, axis=0)
    table = np.where(newest >= 0, values[newest], np.nan) if len(values) else np.full((days, width), np.nan)
    facts: dict[str, Any] = {
        "file": label,
        "per": "all tickers" if known.shared else "ticker",
        "values": len(values),
        "never_shown": len(values) - len(np.setdiff1d(newest, [-1])),
        "known_before_the_first_session": int((cells["known_at"] < market.sessions[0]).sum()),
        "known_after_the_last_session": int((~shown).sum()),
    }
    if known.unknown:
        facts["unknown_tickers"] = {"count": len(known.unknown), "first": list(known.unknown[:NAMED])}
    return (table[:, 0] if known.shared else table), facts


def _text(stamp: np.datetime64) -> str:
    """A date, with its time unless that is midnight."""
    return f"{pd.Timestamp(stamp)}".removesuffix(" 00:00:00")
