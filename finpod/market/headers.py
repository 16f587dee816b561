"""Headers of tables: the first lines of a CSV, and the two levels of a header of fields and tickers."""

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
"""(field, ticker) -> [T] values. The ticker is None in long tables and in tables of one asset."""
Pairs = Sequence[tuple[str, str, pd.Series]]
"""Columns of a header of two levels: upper label, lower label, values."""


class Header(NamedTuple):
    """The lines before the first row of a CSV."""

    labels: list[Any]
    """One label a column: text, or (upper label, lower label) in a header of two levels."""
    levels: tuple[str | None, str | None] | None
    """Names of the two levels of the header; None for one level."""
    lines: int
    """Lines of the file before the first row."""


def header_of(rows: Sequence[tuple[int, list[str]]]) -> Header:
    """The header of a CSV, from its first lines (number, cells). Raises ValueError for a file without one."""
    start = next((at for at, (_, cells) in enumerate(rows) if sum(map(bool, cells)) > 1), 0)
    if any(not cells[0] for _, cells in rows[:start]):  # no title, but an upper level with one label
        start = next(at for at, (_, cells) in enumerate(rows) if not cells[0])
    cells = [cells for _, cells in rows[start:]]
    labels: list[Any] = list(cells[0])
    dated = [label for label in labels if _is_date(label)]
    if len(dated) == 1 or re.fullmatch(r"[\d.]+", labels[0]):
        raise ValueError("its first line is a row of values; write the names of the columns above it")
    levels = _two_lines(cells)
    count = 1
    if levels is not None:
        labels, names, count = levels
    elif len(cells) > 1 and _names_the_index(cells[1]):
        labels[0], count = cells[1][0], 2
    values = cells[count] if len(cells) > count else [""] * len(labels)
    blank = "" if levels is None else ("", "")
    if len(values) == len(labels) + 1 and not values[-1]:  # commas at the ends of the rows
        labels = [*labels, blank]
    elif len(values) == len(labels) - 1 and labels[-1] == blank:
        labels = labels[:-1]
    elif len(values) == len(labels) + 1 and _names_a_row(values[0], labels):
        labels = [blank, *labels]
    number = rows[start + count][0] if len(rows) > start + count else rows[-1][0] + 1
    return Header(labels, None if levels is None else names, number)


def _two_lines(cells: Sequence[list[str]]) -> tuple[list[tuple[str, str]], tuple[str | None, str | None], int] | None:
    """Labels, level names and number of lines of a header of two levels; None for a header of one level.

    Tickers below fields are recognised by the name of their level, by a following line with the name of the index, or if
    each has a close and the first column has no value. Fields below tickers are recognised by their names.
    """
    if len(cells) < 2 or len(cells[0]) != len(cells[1]) or len(cells[0]) < 2:
        return None
    lower = cells[1]
    followed = len(cells) > 2 and _names_the_index(cells[2])
    called = word(lower[0]) in TICKERS and not is_word(cells[0][0], TICKERS, DESCRIPTIONS, DATES)
    upper = [_without_number(label) for label in cells[0]] if called else list(cells[0])
    closes = {below for label, below in zip(upper[1:], lower[1:], strict=True) if field_of(label) == "close"}
    dated, numbers = any(map(_is_date, lower)), any(re.fullmatch(r"[-+]?[\d.,]+", label) for label in lower)
    below = {label for label in lower[1:] if label}
    spelled = not {label.lower() for label in below} <= set(BLANK) and not numbers
    tickers = spelled and all(is_ticker(normal_ticker(label)) for label in below)
    above = bool(closes) and not dated and (called or followed or (tickers and not lower[0] and below <= closes))
    fields_below = any(field_of(label) == "close" for label in below) and not (dated or numbers)
    if not above and not (fields_below and (not closes or word(upper[0]) in TICKERS)):
        return None
    for at in range(2, len(upper)):  # a label of a spreadsheet's merged cells
        upper[at] = upper[at] or upper[at - 1]
    dates = cells[2][0] if followed else next((label for label in (lower[0], upper[0]) if word(label) in DATES), "")
    labels = [(dates, ""), *zip(upper[1:], lower[1:], strict=True)]
    return labels, (upper[0] or None, lower[0] or None), 3 if followed else 2


def _without_number(label: str) -> str:
    """The label without the number that pandas adds to repeated labels: Close.1 is Close."""
    bare = re.sub(r"\.\d+$", "", label)
    return bare if field_of(bare) else label


def _names_a_row(value: str, labels: Sequence[Any]) -> bool:
    """Whether the first cell of a row with one cell more than the header is its number or date, as R writes it."""
    return value.isdecimal() or (_is_date(value) and not any(is_word(label, DATES) for label in labels))


def _names_the_index(cells: Sequence[str]) -> bool:
    """Whether a line has only the name of the first column, as pandas writes below headers of two levels."""
    return word(cells[0]) in DATES and not any(cells[1:])


def _is_date(label: str) -> bool:
    return holds_dates(pd.Series([label], dtype=object))


def by_ticker(names: Sequence[object], pairs: Pairs, name: str) -> Numbers:
    """(field, ticker) -> values, of columns with two labels."""
    field = _level_of_fields(names, [[pair[level] for pair in pairs] for level in (0, 1)], name)
    read = fields_of(pair[field] for pair in pairs)
    numbers: Numbers = {}
    for upper, lower, values in pairs:
        label, ticker = (upper, lower) if field == 0 else (lower, upper)
        if (known := read.get(word(label))) is not None:
            if (known, ticker) in numbers:
                raise DataError(f"{name} has two columns for {known} of {ticker}; keep one")
            numbers[known, ticker] = values
    return numbers


def _level_of_fields(names: Sequence[object], levels: Sequence[Sequence[str]], name: str) -> int:
    """The level of the header that holds the fields, 0 or 1. Raises DataError if neither or both could."""
    closes = [[label for label in labels if field_of(label) == "close"] for labels in levels]
    with_close = [level for level in (0, 1) if closes[level]]
    if len(with_close) == 2:
        called = [level for level, label in enumerate(names) if label is not None and word(label) in TICKERS]
        sure = [level for level in (0, 1) if not set(map(word, closes[level])) <= ANY_PRICE]
        with_close = [1 - called[0]] if len(called) == 1 else sure if len(sure) == 1 else with_close
    if not with_close:
        raise DataError(f"{name} has no column close in its header of two levels; bars need a close for each ticker")
    if len(with_close) == 2:
        way_out = "call the level of the tickers ticker, as both levels of the header have a close"
        raise ambiguous(name, "(field, ticker)", "(ticker, field)", way_out)
    return with_close[0]


def split_labels(columns: Sequence[Column], name: str) -> Pairs:
    """Columns such as AAPL.Close as (field, ticker, values); empty if no label holds both a close and a ticker.

    Raises DataError if only some labels hold both, and for labels such as close_OPEN, in which either may be the field.
    """
    for column in columns:
        fields = [field_of(part) for part in re.split(r"[_. |:-]", column.label, maxsplit=1)]
        if not column.known and len(fields) == 2 and None not in fields and "close" in fields:
            one, other = re.split(r"[_. |:-]", column.label, maxsplit=1)
            way_out = "give the table two columns, ticker and close"
            raise ambiguous(
                f"{name}: its column {column.label}", f"the {one} of {other}", f"the {other} of {one}", way_out
            )
    parts = [split_label(column.label) for column in columns]
    closes = [c.label for c, part in zip(columns, parts, strict=True) if part and field_of(part[0]) == "close"]
    if closes and None in parts:
        fields_by, closes_by = f"its column {closes[0]}", columns[parts.index(None)].label
        way_out = "write all labels of columns one way"
        raise ambiguous(name, f"fields by ticker, by {fields_by}", f"closes by ticker, by {closes_by}", way_out)
    return [(*part, c.values) for c, part in zip(columns, parts, strict=True) if part] if closes else []


def split_label(label: str) -> tuple[str, str] | None:
    """(field, ticker) of a label that holds both, in either order; None for other labels."""
    if match := re.fullmatch(r"\('(.*)', '(.*)'\)", label):
        one, two = match.groups()
        return (one, two) if field_of(one) else (two, one) if field_of(two) else None
    marks = [match.start() for match in re.finditer(r"[_. |:-]", label)]
    for at in reversed(marks):  # the longest field before a ticker
        if field_of(label[:at]) and not field_of(label[at + 1 :]) and is_ticker(normal_ticker(label[at + 1 :])):
            return label[:at], label[at + 1 :]
    for at in marks:
        if field_of(label[at + 1 :]) and not field_of(label[:at]) and is_ticker(normal_ticker(label[:at])):
            return label[at + 1 :], label[:at]
    return None
