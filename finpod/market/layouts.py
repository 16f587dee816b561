"""Layouts of price tables: long, wide, one asset, or a header of two levels. Ambiguous tables are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.market.columns import (
    ANY_PRICE,
    DATES,
    DESCRIPTIONS,
    TICKERS,
    Column,
    ambiguous,
    field_of,
    fields_of,
    is_unnamed,
    is_word,
    listed,
    spelled_out,
    word,
)
from finpod.market.dates import holds_dates
from finpod.market.headers import Numbers, Pairs, by_ticker, split_label, split_labels
from finpod.market.parsing import is_ticker, normal_ticker, plain

_TICKERS_A_WORD = 3
"""Fewest columns of a wide table for each one whose ticker is a known word, such as OPEN."""


class Layout(NamedTuple):
    """The columns of a table of T rows by their meaning, values as in the table."""

    dates: pd.Series
    """[T]"""
    tickers: pd.Series | None
    """[T] tickers of a long table; None for other layouts."""
    numbers: Numbers
    columns: tuple[Column, ...]
    """All columns of the table, for messages."""
    reading: tuple[str, ...] = ()
    """Decisions, as sentences for the manifest."""

    @property
    def one_name(self) -> bool:
        """Whether the table names no ticker."""
        return self.tickers is None and all(ticker is None for _, ticker in self.numbers)


def recognise(frame: pd.DataFrame, name: str, *, ticker: str | None = None, ticker_column: str | None = None) -> Layout:
    """The layout of a table, by the names and values of its columns.

    Levels of the row index count as columns, with or without names. Columns without a name that hold whole numbers are row
    numbers and left out. In a table without tickers they must not repeat.

    - **dates**: the column called `date` or another word for it, or the only one that holds dates.
    - **two levels**: the level of the header with a close holds fields, the other tickers. Labels such as AAPL.Close,
      Close_AAPL or "('Close', 'AAPL')" are read alike.
    - **long**: a close, and a column of tickers: `ticker_column`, or one with a word for tickers that holds text or whole
      numbers, or the other level of a row index with dates.
    - **one asset**: a close and no tickers. Text columns of unknown meaning are refused unless `ticker` names the asset.
    - **wide**: no close and no tickers. Each column holds the closes of the ticker in its label. At most one label in three
      may be a known word such as OPEN, unless the index of the columns is called ticker.

    Raises DataError for a table that fits none of these, or two, naming both; InputError for a `ticker_column` that the
    table does not have.
    """
    columns, pairs = _columns(frame, name)
    dates = _dates(columns, name)
    rest = [column for column in columns if column is not dates]
    tickers = _tickers(rest, dates, name, ticker_column)
    if pairs and tickers is not None:
        raise DataError(f"{name} has tickers both in its header and in the column {tickers.label!r}; keep one of them")
    named = [c for c in rest if not (c is tickers or c.unnamed or c.level)]
    if any(c.unnamed and c.kind == "number" and not c.is_whole and not c.level for c in rest):
        raise DataError(f"{name} has a column of numbers without a name; its columns are {listed(columns)}")
    _check_one_value_a_row(rest, tickers, name)
    called = frame.columns.nlevels == 1 and is_word(_text(frame.columns.name), TICKERS)
    if pairs:
        numbers, reading = by_ticker(frame.columns.names, pairs, name), _left_out(named)
    elif tickers is not None:
        numbers, reading = _long(named, tickers, name)
    else:
        may_name = [c for c in rest if not c.known and _may_name(c)]
        if may_name and (ticker is None or called):
            shown = listed(may_name, "a column", "columns")
            text = f"{name} has {shown} of unknown meaning, which may hold tickers. {ask_for_tickers(columns)}"
            raise DataError(text, argument="ticker_column")
        numbers, reading = (_called_wide(named, name), ()) if called else _without_tickers(named, ticker, name)
    return Layout(dates.values, None if tickers is None else tickers.values, numbers, tuple(columns), reading)


def ask_for_tickers(columns: Sequence[Column]) -> str:
    """End of a message about a table that may hold several assets: its columns, and how to name that of the tickers."""
    return (
        f"Its columns are {listed(columns)}; name the one that holds the tickers with ticker_column=, or give ticker= if "
        "all rows are bars of one name"
    )


def _columns(frame: pd.DataFrame, name: str) -> tuple[list[Column], Pairs]:
    """The levels of the row index and the columns, and the columns of a header of two levels."""
    if frame.columns.nlevels > 2:
        raise DataError(f"{name} has a header of {frame.columns.nlevels} levels; keep two, field and ticker")
    columns = []
    if not isinstance(frame.index, pd.RangeIndex):
        for number, label in enumerate(frame.index.names):
            columns.append(Column(_text(label), plain(pd.Series(frame.index.get_level_values(number))), level=True))
    pairs = []
    body = frame.reset_index(drop=True)
    headers = [
        [_text(label) for label in frame.columns.get_level_values(level)] for level in range(frame.columns.nlevels)
    ]
    headers = headers if len(headers) == 2 else [spelled_out(headers[0])]
    for position, texts in enumerate(zip(*headers, strict=True)):
        values = plain(body.iloc[:, position])
        named = [text for text in texts if not is_unnamed(text)]
        if len(named) == 2:
            pairs.append((named[0], named[1], values))
        else:
            columns.append(Column((named or texts)[0], values))
    return [column for column in columns if not (column.unnamed and column.is_empty)], pairs


def _text(label: object) -> str:
    return "" if label is None or label != label else str(label).replace("\ufeff", "").strip()


def _dates(columns: Sequence[Column], name: str) -> Column:
    """The column of dates. Raises DataError for none, and for two that differ."""
    ranks: dict[int, list[Column]] = {}
    for column in columns:
        if column.word == DATES[0] or (column.word in DATES and holds_dates(column.values, digits=True)):
            ranks.setdefault(DATES.index(column.word), []).append(column)
        elif (column.level or column.unnamed) and column.kind == "dates":
            ranks.setdefault(len(DATES), []).append(column)
    if not ranks:
        ranks[0] = [column for column in columns if not column.known and column.kind == "dates"]
    if not ranks[min(ranks)]:
        if sum(holds_dates(pd.Series([column.label])) for column in columns) > 1:
            raise DataError(f"{name} has dates in its header; turn it (frame.T), one row a date")
        shown = listed(columns, "its column is", "its columns are") if columns else "it has no column"
        raise DataError(f"{name} has no column date, and no other that holds dates; {shown}")
    best, *others = ranks[min(ranks)]
    rivals = [c for c in (*others, *(c for rank in ranks.values() for c in rank if c.level)) if c is not best]
    rivals = [c for c in rivals if not c.values.reset_index(drop=True).equals(best.values)]
    if rivals:
        one, other = best.label or "its index", rivals[0].label or "its index"
        raise DataError(f"{name} has two columns for date, {one} and {other}, which differ; keep one")
    return best


def _tickers(columns: Sequence[Column], dates: Column, name: str, ticker_column: str | None) -> Column | None:
    """The column of tickers, or None. Raises DataError if two identifiers contradict each other."""
    if ticker_column is not None:
        for column in columns:
            if ticker_column == column.label or word(ticker_column) == column.word:
                return column
        text = f"ticker_column is {ticker_column!r}, which {name} does not have; choose one of {listed(columns)}"
        raise InputError(text, argument="ticker_column")
    order = (*TICKERS, *DESCRIPTIONS)
    named = sorted((c for c in columns if c.word in order and c.identifies), key=lambda c: order.index(c.word))
    named.sort(key=lambda c: c.kind == "blank")
    if named:
        if len(named) > 1 and named[1].word == named[0].word:
            raise DataError(f"{name} has two columns for {named[0].label}; keep one")
        _check_identifiers([c for c in named if c.word in TICKERS and c.kind != "blank"], name)
        return named[0]
    unnamed = [c for c in columns if c.unnamed and c.kind == "text"]
    levels = [c for c in columns if c.level]
    if dates.level and len(levels) == 1 and levels[0] not in unnamed:  # by elimination
        unnamed += [level for level in levels if not level.known and _tells_apart(level)]
    if len(unnamed) > 1:
        raise DataError(
            f"{name} has {len(unnamed)} columns without a name that hold text; call that of the tickers ticker"
        )
    return unnamed[0] if unnamed else None


def _check_identifiers(columns: Sequence[Column], name: str) -> None:
    """Raise DataError if one ticker has two values of another identifier: two securities would be joined."""
    for other in columns[1:]:
        both = pd.DataFrame({"ticker": columns[0].values, "other": other.values}).drop_duplicates().dropna()
        again = both["ticker"].duplicated()
        if again.any():
            ticker = both["ticker"][again].iloc[0]
            values = both["other"][both["ticker"] == ticker].iloc[:2].tolist()
            raise DataError(
                f"{name} can be read by {columns[0].label} and by {other.label}, and {columns[0].label} {ticker} has two of "
                f"the latter, {values[0]} and {values[1]}; say with ticker_column= which of them tells the names apart",
                argument="ticker_column",
            )


def _tells_apart(level: Column) -> bool:
    """Whether a level of the row index may hold tickers: text, or numbers other than 0, 1, 2, ... ."""
    if level.kind != "whole" or not (level.unnamed or level.word.endswith(("id", "code"))):
        return level.kind == "text"
    numbers = {int(number) for number in level.values.unique()}
    return numbers != set(range(len(numbers))) and len(numbers) < len(level.values)


def _may_name(column: Column) -> bool:
    """Whether a column of unknown meaning may hold tickers: text, identifiers, or repeated row numbers."""
    if column.kind != "whole":
        return column.kind == "text" or (column.unnamed and column.kind == "blank")
    return column.values.nunique() < len(column.values) if column.unnamed else column.word.endswith(("id", "code"))


def _long(columns: Sequence[Column], tickers: Column, name: str) -> tuple[Numbers, tuple[str, ...]]:
    """The fields of a long table, and decisions."""
    fields = _fields(columns, name)
    if "close" not in fields:
        raise _no_close(columns, name)
    told = () if tickers.word in ("ticker", "symbol") or tickers.unnamed else (f"tickers read from {tickers.label}",)
    return {(field, None): column.values for field, column in fields.items()}, (*told, *_told(fields, columns))


def _without_tickers(columns: Sequence[Column], ticker: str | None, name: str) -> tuple[Numbers, tuple[str, ...]]:
    """The fields of one asset, of labels that hold field and ticker, or the closes of a wide table; and decisions."""
    fields = _fields(columns, name)
    if "close" not in fields:
        if pairs := split_labels(columns, name):
            return by_ticker((None, None), pairs, name), ()
        _check_wide(columns, name)
        return _wide(columns, name), ()
    others = [c for c in columns if not c.known and _is_close_of_a_ticker(c, fields)]
    if others and ticker is None:
        one, other = (
            f"bars of one name, by its column {fields['close'].label}",
            f"closes by ticker, by {listed(others)}",
        )
        way_out = "give ticker= if all rows are bars of one name, or call the index of the columns ticker"
        raise ambiguous(name, one, other, way_out)
    return {(field, None): column.values for field, column in fields.items()}, _told(fields, columns)


def _is_close_of_a_ticker(column: Column, fields: Mapping[str, Column]) -> bool:
    """Whether an unknown column beside a close may be another ticker's close: a label such as Close_AAPL, or a ticker if the
    close is called LAST or the like and there is no open, high and low."""
    parts = split_label(column.label)
    if parts is not None and field_of(parts[0]) == "close" and not is_word(parts[0], ANY_PRICE):
        return True
    only_price = fields["close"].word in ANY_PRICE and not {"open", "high", "low"} <= set(fields)
    return only_price and is_ticker(normal_ticker(column.label))


def _fields(columns: Sequence[Column], name: str) -> dict[str, Column]:
    """Field -> its column. Raises DataError for two columns of one spelling."""
    usable = [column for column in columns if not (column.word in ("adjusted", "adj") and column.is_flag)]
    fields = {}
    for spelled, field in fields_of(column.label for column in usable).items():
        fields[field], *more = (column for column in usable if column.word == spelled)
        if more:
            raise DataError(f"{name} has two columns for {field}; keep one")
    if not fields and len(columns) == 1 and columns[0].label == "0":  # a series that pandas made a table of
        fields["close"] = columns[0]
    return fields


def _told(fields: Mapping[str, Column], columns: Sequence[Column]) -> tuple[str, ...]:
    """Sentences on the source of the closes, if its label is ambiguous, and on columns that are not read."""
    close = fields["close"]
    closes = () if field_of(close.label) and close.word not in ANY_PRICE else (f"closes read from {close.label}",)
    return (*closes, *_left_out([column for column in columns if column is not close]))


def _left_out(columns: Sequence[Column]) -> tuple[str, ...]:
    """A sentence on columns of unknown meaning."""
    unknown = [column for column in columns if not column.known and column.kind != "blank"]
    return (listed(unknown, "left out the column", "left out the columns"),) if unknown else ()


def _check_one_value_a_row(columns: Sequence[Column], tickers: Column | None, name: str) -> None:
    """Raise DataError for a table with a column of field names."""
    for column in columns:
        if (column.unnamed or not column.known) and column.kind == "text":
            fields = {field_of(text) for text in column.texts}
            if None not in fields and (column is not tickers or "close" in fields):
                raise DataError(
                    f"{name} has one value a row, with its field in the column {column.label!r}; make a column of each field "
                    "(frame.pivot)"
                )


def _called_wide(columns: Sequence[Column], name: str) -> Numbers:
    """(close, ticker) -> values of a table whose index of columns is called ticker. Raises DataError for bars of one asset."""
    fields = _fields(columns, name)
    if len(fields) > 1 and "close" in fields and fields["close"].word not in ANY_PRICE:
        one = f"bars of one name, by its columns {listed([*fields.values()])}"
        raise ambiguous(name, one, "closes by ticker, by the name of the index of its columns", "take that name away")
    return _wide(columns, name)


def _wide(columns: Sequence[Column], name: str) -> Numbers:
    """(close, ticker) -> values of a wide table."""
    numbers: Numbers = {}
    for column in columns:
        if ("close", column.label) in numbers:
            raise DataError(f"{name} has two columns for {column.label}; keep one")
        numbers["close", column.label] = column.values
    return numbers


def _counts_rows(values: pd.Series) -> bool:
    """Whether the values are 0, 1, 2, ... or 1, 2, 3, ..."""
    counts = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    return len(counts) > 3 and counts[0] in (0, 1) and bool((np.diff(counts) == 1).all())


def _check_wide(columns: Sequence[Column], name: str) -> None:
    """Raise DataError for a table without a close that is not clearly wide."""
    for column in columns:
        if column.is_whole and _counts_rows(column.values):
            raise DataError(
                f"{name} has a column {column.label} that counts rows, and no column close; take it out if it is no ticker"
            )
    words = [column for column in columns if column.known]
    if len(words) == len(columns):
        raise _no_close(columns, name)
    if len(words) * _TICKERS_A_WORD > len(columns):
        tickers = listed([column for column in columns if not column.known])
        one = f"bars without a column close, by {listed(words)}"
        way_out = "call the closes close, or the index of the columns ticker"
        raise ambiguous(name, one, f"closes by ticker, by {tickers}", way_out)


def _no_close(columns: Sequence[Column], name: str) -> DataError:
    return DataError(
        f"{name} has no column close; besides dates it has {listed(columns) or 'no column'}. Bars need date, ticker and close "
        "(open, high, low, adj_close and volume where known), or a column of closes for each ticker"
    )
