"""Recognises the layout of price tables: long, wide, one asset, or two-level header. Ambiguous tables are an error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from finpod.errors import DataError
from finpod.market.columns import (
    ANY_PRICE,
    TICKERS,
    Column,
    Pairs,
    columns_of,
    field_of,
    fields_of,
    find_dates,
    find_tickers,
    listed,
    word,
)
from finpod.market.parsing import is_ticker, normal_ticker

Numbers = dict[tuple[str, str | None], pd.Series]
"""(field, ticker) -> values [T]. The ticker is None in long tables and in tables of one asset."""


class Layout(NamedTuple):
    """Meaning and values of the columns of a table of T rows."""

    dates: pd.Series
    tickers: pd.Series | None
    """[T] tickers of a long table; None for other layouts."""
    numbers: Numbers
    columns: Sequence[Column]
    """All columns of the table, listed in messages."""
    reading: Sequence[str]
    """Sentences for the manifest on how the table was read."""


def recognise(frame: pd.DataFrame, name: str, *, ticker: str | None = None, ticker_column: str | None = None) -> Layout:
    """Return the layout of a table, recognised by the names and values of its columns.

    Levels of the row index count as columns. Unnamed columns of whole numbers are taken as row numbers and ignored. In
    a table without tickers, they must not repeat, because repeated numbers may be tickers.

    - **two levels**: the level of the header that contains a close has the fields. The other level has the tickers.
      Labels such as AAPL.Close, Close_AAPL or "('Close', 'AAPL')" are read in the same way.
    - **long**: a close and a column of tickers. The latter is `ticker_column`, if given. Otherwise it is a column of
      text or whole numbers whose name is a word for tickers. If there is none, it is the only column of text that has
      no name or is a level, beside the dates, of the row index.
    - **one asset**: a close and no tickers. Text columns of unknown meaning are an error unless `ticker` is given.
    - **wide**: no close and no tickers. Each column holds the closes of the ticker in its label. At most one label in
      three may be a known word such as OPEN.

    Raises DataError for a table that fits no layout or several; InputError for a `ticker_column` not in the table.
    """
    columns, pairs = columns_of(frame, name)
    dates = find_dates(columns, name)
    others = [column for column in columns if column is not dates]
    tickers = find_tickers(others, dates, name, ticker_column)
    labelled = [c for c in others if not (c is tickers or c.unnamed or c.level)]
    _check_columns(others, tickers, name)
    fields = _fields(labelled, name)
    if pairs and tickers is not None:
        raise DataError(f"{name} has tickers both in its header and in the column {tickers.label!r}; keep one of them")
    if not pairs and tickers is None:
        unknown = [c for c in others if not c.known and _may_be_tickers(c)]
        if unknown and ticker is None:
            text = f"{name} may have tickers in {listed(unknown)}, whose meaning is unknown. {ask_for_tickers(columns)}"
            raise DataError(text, argument="ticker_column")
        if "close" not in fields:
            pairs, labelled = _by_label(labelled, name), []
    close = fields.get("close")
    ignored = [c for c in labelled if not c.known and c.kind != "blank" and (pairs or c is not close)]
    reading = [f"columns left out: {listed(ignored)}"] if ignored else []
    if pairs:
        return Layout(dates.values, None, _by_ticker(frame.columns.names, pairs, name), columns, reading)
    if close is None:
        raise _no_close(labelled, name)
    if tickers is None and ticker is None:
        _check_one_asset(labelled, close, {"open", "high", "low"} <= set(fields), name)
    if close.word in ANY_PRICE or not field_of(close.label):
        reading = [f"closes read from {close.label}", *reading]
    if tickers is not None and not (tickers.word in ("ticker", "symbol") or tickers.unnamed):
        reading = [f"tickers read from {tickers.label}", *reading]
    numbers: Numbers = {(field, None): column.values for field, column in fields.items()}
    return Layout(dates.values, None if tickers is None else tickers.values, numbers, columns, reading)


def ask_for_tickers(columns: Sequence[Column]) -> str:
    """Return the end of a message on a table that may have several assets: its columns, and how to give tickers."""
    return f"Its columns are {listed(columns)}; give the column of tickers as ticker_column=, or one ticker as ticker="


def _may_be_tickers(column: Column) -> bool:
    """Return True if a column may contain tickers: text, numbers labelled id or code, unnamed numbers that repeat."""
    if column.kind != "whole":
        return column.kind == "text" or (column.unnamed and column.kind == "blank")
    return column.values.nunique() < len(column.values) if column.unnamed else column.word.endswith(("id", "code"))


def _check_columns(columns: Sequence[Column], tickers: Column | None, name: str) -> None:
    """Raise DataError for an unnamed column of fractional numbers, for a column of text with each row's field, and for
    several currencies."""
    for column in columns:
        if column.word in ("currency", "devise") and tickers is not None and len(column.texts) > 1:
            text = f"{name} has prices in several currencies ({', '.join(sorted(column.texts)[:3])})"
            raise DataError(f"{text}; convert them to one currency, and drop the column {column.label}")
        if column.unnamed and not column.level and column.kind == "number":
            raise DataError(f"{name} has an unnamed column of numbers; name or remove it (columns: {listed(columns)})")
        if (column.unnamed or not column.known) and column.kind == "text":
            fields = {field_of(text) for text in column.texts}
            if None not in fields and (column is not tickers or "close" in fields):
                text = f"{name} has one value per row, and the column {column.label!r} says what it is, such as a close"
                raise DataError(f"{text}; make a column of closes, one of volumes, and so on, with frame.pivot")


def _fields(columns: Sequence[Column], name: str) -> dict[str, Column]:
    """Return field -> its column. Raises DataError if two columns have the same normalised label (see `word`)."""
    flags = {"true", "false", "yes", "no", "y", "n", "0", "1", "0.0", "1.0"}
    usable = [c for c in columns if not (c.word in ("adjusted", "adj") and {text.lower() for text in c.texts} <= flags)]
    fields = {}
    for spelled, field in fields_of(column.label for column in usable).items():
        fields[field], *more = (column for column in usable if column.word == spelled)
        if more:
            raise DataError(f"{name} has two columns for {field}; keep one")
    if not fields and len(columns) == 1 and columns[0].label == "0":  # pandas made this table from a series
        fields["close"] = columns[0]
    return fields


def _by_ticker(names: Sequence[object], pairs: Pairs, name: str) -> Numbers:
    """Return (field, ticker) -> values for columns with two labels. `names` are the names of the header's levels.

    The level that contains a close has the fields. If both levels contain a close, and the name of exactly one means
    tickers, the other level has the fields. Otherwise, the fields are in the only level with a clear close, such as
    "Close" but not "Last". Raises DataError if this does not decide.
    """
    closes = [{word(pair[level]) for pair in pairs if field_of(pair[level]) == "close"} for level in (0, 1)]
    levels = [level for level in (0, 1) if closes[level]]
    if len(levels) == 2:
        tickers = [level for level, label in enumerate(names) if word(label) in TICKERS]
        certain = [level for level in (0, 1) if not closes[level] <= {*ANY_PRICE}]
        levels = [1 - tickers[0]] if len(tickers) == 1 else certain if len(certain) == 1 else levels
    if len(levels) != 1:
        text = f"{name} needs 'close' in one level of its header; the levels may be (field, ticker) or (ticker, field)"
        raise DataError(f"{text}; add it, or name the level of the tickers 'ticker'")
    read = fields_of(pair[levels[0]] for pair in pairs)
    numbers: Numbers = {}
    for *labels, values in pairs:
        field, ticker = read.get(word(labels[levels[0]])), labels[1 - levels[0]]
        if (field, ticker) in numbers:
            raise DataError(f"{name} has two columns for {field} of {ticker}; keep one")
        if field is not None:
            numbers[field, ticker] = values
    return numbers


def _by_label(columns: Sequence[Column], name: str) -> Pairs:
    """Return (field, ticker, values) of columns with labels such as AAPL.Close, or of the columns of a wide table.

    Raises DataError if only some labels have a field and a ticker, or if none has and the table is not clearly wide.
    """
    parts = {column: _split_label(column.label) for column in columns}
    pairs = [(*part, column.values) for column, part in parts.items() if part]
    labels = {column.label for column in columns}
    if any(field_of(field) == "close" or ticker in labels for field, ticker, _ in pairs):
        if whole := [column for column in columns if not parts[column]]:
            split = [column for column in columns if parts[column]]
            raise _ambiguous(name, "fields by ticker", split, whole, "write all labels in the same form")
        return pairs
    for column in columns:
        counts = pd.to_numeric(column.values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        if len(counts) > 3 and counts[0] in (0, 1) and (np.diff(counts) == 1).all():
            raise DataError(f"{name} has row numbers in {column.label} and no 'close'; add a close, or drop the column")
    words = [column for column in columns if column.known]
    if len(words) == len(columns):
        raise _no_close(columns, name)
    if len(words) * 3 > len(columns):
        tickers = [column for column in columns if not column.known]
        way_out = "rename the column of closes to 'close', or put the tickers into a column 'ticker' (frame.stack)"
        raise _ambiguous(name, "bars without a column 'close'", words, tickers, way_out)
    return [("close", column.label, column.values) for column in columns]


def _split_label(label: str) -> tuple[str, str] | None:
    """Return (field, ticker) for a label that contains both, in either order; None for other labels."""
    if match := re.fullmatch(r"\('(.*)', '(.*)'\)", label):
        one, two = match.groups()
        return (one, two) if field_of(one) else (two, one) if field_of(two) else None
    cuts = [(label[: match.start()], label[match.end() :]) for match in re.finditer(r"[_. |:-]", label)]
    for field, ticker in (*reversed(cuts), *((field, ticker) for ticker, field in cuts)):  # the longest field first
        if field_of(field) and not field_of(ticker) and is_ticker(normal_ticker(ticker)):
            return field, ticker
    return None


def _check_one_asset(columns: Sequence[Column], close: Column, is_bar: bool, name: str) -> None:
    """Raise DataError if an unknown column holds, or may hold, the closes of another ticker.

    A column with a label like Close_AAPL holds closes. Any column whose label can be a ticker may hold closes if the
    label of the column `close` is ambiguous, such as LAST, and the table lacks open, high or low (`is_bar` is False).
    """
    others = []
    for column in columns:
        field, _ = _split_label(column.label) or ("", "")
        certain = field_of(field) == "close" and word(field) not in ANY_PRICE
        possible = close.word in ANY_PRICE and not is_bar and is_ticker(normal_ticker(column.label))
        if (certain or possible) and not column.known:
            others.append(column)
    if others:
        way_out = "give ticker= if all rows are bars of one asset; otherwise put tickers into a column 'ticker'"
        raise _ambiguous(name, "bars of one asset", [close], others, way_out)


def _no_close(columns: Sequence[Column], name: str) -> DataError:
    text = f"{name} has no column 'close'; besides dates it has {listed(columns) or 'no column'}"
    return DataError(f"{text}. Give columns 'date', 'ticker' and 'close', or one column of closes per ticker")


def _ambiguous(name: str, one: str, like_one: Sequence[Column], closes: Sequence[Column], way_out: str) -> DataError:
    """Return the error for a table that can be read as `one` (see columns `like_one`), or as closes by ticker."""
    text = f"{one} (see {listed(like_one)}) or as closes by ticker (see {listed(closes)})"
    return DataError(f"{name} can be read as {text}; {way_out}")
