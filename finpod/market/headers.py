"""Headers of tables: the first lines of a CSV, and two levels of fields and tickers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from finpod.errors import DataError
from finpod.market.columns import (
    ANY_PRICE,
    DATES,
    DESCRIPTIONS,
    TICKERS,
    Column,
    ambiguous,
    field_of,
    fields_of,
    is_word,
    word,
)
from finpod.market.dates import holds_dates
from finpod.market.parsing import BLANK, is_ticker, normal_ticker

Numbers = dict[tuple[str, str | None], pd.Series]
"""(field, ticker) -> values [T]. The ticker is None in long tables and in tables of one asset."""
Pairs = Sequence[tuple[str, str, pd.Series]]
"""Columns of a header of two levels: upper label, lower label, values."""
_MARKS = r"[_. |:-]"
"""Characters between field and ticker in one label."""


class Header(NamedTuple):
    """The lines before the first row of a CSV."""

    labels: list[Any]
    """One label per column: text, or (upper label, lower label) in a header of two levels."""
    levels: tuple[str | None, str | None] | None
    """Names of the two levels of the header; None for one level."""
    lines: int
    """Number of lines of the file before the first row."""


def header_of(rows: Sequence[tuple[int, list[str]]]) -> Header:
    """Return the header of a CSV, from its first lines as (number, cells). Raises ValueError for a file without one.

    A second line belongs to the header if it has the tickers below fields, or the fields below tickers. Tickers are
    recognised by the name of their level, by a following line with the name of the index, or if each has a close and the
    first column has no value. Fields are recognised by their names.
    """
    start = next((at for at, (_, cells) in enumerate(rows) if sum(map(bool, cells)) > 1), 0)
    if any(not cells[0] for _, cells in rows[:start]):  # no title, but an upper level with one label
        start = next(at for at, (_, cells) in enumerate(rows) if not cells[0])
    upper, lower, third = [*(cells for _, cells in rows[start:]), [""], [""]][:3]
    if sum(map(_is_date, upper)) == 1 or re.fullmatch(r"[\d.]+", upper[0]):
        raise ValueError("its first line is a row of values; write the names of the columns above it")
    followed = _names_the_index(third)
    labels: list[Any] = list(upper)
    levels, count, blank = None, 1, ("", "")
    if len(upper) == len(lower) > 1 and _is_second_line(upper, lower, followed):
        if word(lower[0]) in TICKERS:
            upper = [_without_number(label) for label in upper]
        for at in range(2, len(upper)):  # a label of a spreadsheet's merged cells
            upper[at] = upper[at] or upper[at - 1]
        dates = third[0] if followed else next((label for label in (lower[0], upper[0]) if word(label) in DATES), "")
        labels = [(dates, ""), *zip(upper[1:], lower[1:], strict=True)]
        levels, count = (upper[0] or None, lower[0] or None), 3 if followed else 2
    elif _names_the_index(lower):
        labels[0], count = lower[0], 2
    if len(rows) > start + count:
        number, values = rows[start + count]
        if len(values) == len(labels) + 1 and not values[-1]:  # commas at the ends of the rows
            labels.append(blank if levels else "")
        return Header(labels, levels, number)
    return Header(labels, levels, rows[-1][0] + 1)


def _is_second_line(upper: list[str], lower: list[str], followed: bool) -> bool:
    """Return True if the second line of a CSV belongs to its header (see `header_of`)."""
    called = word(lower[0]) in TICKERS and not is_word(upper[0], TICKERS, DESCRIPTIONS, DATES)
    pairs = list(zip(upper[1:], lower[1:], strict=True))
    closes = {below for label, below in pairs if field_of(_without_number(label) if called else label) == "close"}
    dated, numbers = any(map(_is_date, lower)), any(re.fullmatch(r"[-+]?[\d.,]+", label) for label in lower)
    below = {label for label in lower[1:] if label}
    spelled = not {label.lower() for label in below} <= set(BLANK) and not numbers
    tickers = spelled and all(is_ticker(normal_ticker(label)) for label in below)
    if closes and not dated and (called or followed or (tickers and not lower[0] and below <= closes)):
        return True
    fields_below = any(field_of(label) == "close" for label in below) and not (dated or numbers)
    return fields_below and (not closes or word(upper[0]) in TICKERS)


def _without_number(label: str) -> str:
    """Return the label without the number that pandas adds to repeated labels: Close for Close.1."""
    bare = re.sub(r"\.\d+$", "", label)
    return bare if field_of(bare) else label


def _names_the_index(cells: Sequence[str]) -> bool:
    """Return True for a line with only the name of the first column, as pandas writes below headers of two levels."""
    return word(cells[0]) in DATES and not any(cells[1:])


def _is_date(label: str) -> bool:
    return holds_dates(pd.Series([label], dtype=object))


def by_ticker(names: Sequence[object], pairs: Pairs, name: str) -> Numbers:
    """Return (field, ticker) -> values for columns with two labels; `names` are the names of the header's levels."""
    level = _level_of_fields(names, pairs, name)
    read = fields_of(pair[level] for pair in pairs)
    numbers: Numbers = {}
    for *labels, values in pairs:
        field, ticker = read.get(word(labels[level])), str(labels[1 - level])
        if field is not None:
            if (field, ticker) in numbers:
                raise DataError(f"{name} has two columns for {field} of {ticker}; keep one")
            numbers[field, ticker] = values
    return numbers


def _level_of_fields(names: Sequence[object], pairs: Pairs, name: str) -> int:
    """Return the level of the header that holds the fields, 0 or 1. Raises DataError if neither or both could."""
    closes = [{word(pair[level]) for pair in pairs if field_of(pair[level]) == "close"} for level in (0, 1)]
    levels = [level for level in (0, 1) if closes[level]]
    if len(levels) == 2:
        tickers = [level for level, label in enumerate(names) if label is not None and word(label) in TICKERS]
        certain = [level for level in (0, 1) if not closes[level] <= ANY_PRICE]
        levels = [1 - tickers[0]] if len(tickers) == 1 else certain if len(certain) == 1 else levels
    if not levels:
        raise DataError(f"{name} has no column close in its header of two levels; bars need a close for each ticker")
    if len(levels) == 2:
        way_out = "name the level of the tickers 'ticker', as both levels of the header have a close"
        raise ambiguous(name, "(field, ticker)", "(ticker, field)", way_out)
    return levels[0]


def split_labels(columns: Sequence[Column], name: str) -> Pairs:
    """Return columns such as AAPL.Close as (field, ticker, values); empty if no label holds both a close and a ticker.

    Raises DataError if only some labels hold both, and for labels such as close_OPEN, in which either may be the field.
    """
    for column in columns:
        one, *rest = re.split(_MARKS, column.label, maxsplit=1)
        fields = [field_of(part) for part in (one, *rest)]
        if not column.known and rest and None not in fields and "close" in fields:
            way_out = "give the table two columns, ticker and close"
            label = f"{name}: its column {column.label}"
            raise ambiguous(label, f"the {one} of {rest[0]}", f"the {rest[0]} of {one}", way_out)
    parts = [split_label(column.label) for column in columns]
    closes = [c.label for c, part in zip(columns, parts, strict=True) if part and field_of(part[0]) == "close"]
    if closes and None in parts:
        fields_by, closes_by = f"its column {closes[0]}", columns[parts.index(None)].label
        way_out = "write all labels of columns one way"
        raise ambiguous(name, f"fields by ticker, by {fields_by}", f"closes by ticker, by {closes_by}", way_out)
    return [(*part, c.values) for c, part in zip(columns, parts, strict=True) if part] if closes else []


def split_label(label: str) -> tuple[str, str] | None:
    """Return (field, ticker) for a label that holds both, in either order; None for other labels."""
    if match := re.fullmatch(r"\('(.*)', '(.*)'\)", label):
        one, two = match.groups()
        return (one, two) if field_of(one) else (two, one) if field_of(two) else None
    cuts = [(label[: match.start()], label[match.end() :]) for match in re.finditer(_MARKS, label)]
    fields_first = [(field, ticker) for field, ticker in reversed(cuts)]  # the longest field before a ticker
    for field, ticker in (*fields_first, *((field, ticker) for ticker, field in cuts)):
        if field_of(field) and not field_of(ticker) and is_ticker(normal_ticker(ticker)):
            return field, ticker
    return None
