"""Formats of figures (numbers such as a Sharpe ratio) in text and HTML, and the layout of text tables."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple

import numpy as np

Kind = Literal["percent", "ratio", "times", "money", "count"]


class Row(NamedTuple):
    """One row of a table of figures: the name of the figure, its label and its format."""

    key: str
    label: str
    kind: Kind
    yearly: bool = False
    """True for an annualised figure. Such a figure means little for a short history."""


COMMON = (
    Row("total_return", "Total return", "percent"),
    Row("cagr", "CAGR", "percent", yearly=True),
    Row("volatility", "Volatility", "percent", yearly=True),
    Row("sharpe", "Sharpe", "ratio", yearly=True),
    Row("sortino", "Sortino", "ratio", yearly=True),
    Row("max_drawdown", "Max drawdown", "percent"),
    Row("calmar", "Calmar", "ratio", yearly=True),
    Row("excess", "Excess over benchmark", "percent"),
    Row("excess_over_equal_weight", "Excess over equal weight", "percent"),
)
"""First rows of the table of a result and of the table of a comparison."""


def percent(value: float | None, digits: int = 2) -> str:
    """Return a fraction as a percentage: '12.30%' for 0.123, 'n/a' for NaN. A value that rounds to zero has no sign."""
    return _number(value, digits, 100, "%")


def ratio(value: float | None, digits: int = 2) -> str:
    """Return a plain number with `digits` decimals: 1.234 becomes '1.23'."""
    return _number(value, digits, 1, "")


def money(value: float | None) -> str:
    """Return an amount of money as text. Nonzero amounts between -100 and 100 have two decimals, others have none."""
    small = value is not None and abs(value) < 99.995
    return _number(value, 2 if small and value else 0, 1, "")


WRITE: dict[str, Callable[..., str]] = {
    "percent": percent,
    "ratio": ratio,
    "times": lambda value: _number(value, 2, 1, "x"),  # a multiple: 2.998 becomes 3.00x
    "money": money,
    "count": lambda value: _number(value, 0, 1, ""),
}
"""Format -> function that returns a value as text."""


def figure(value: float | None, kind: Kind) -> str:
    """Return a value as text in the format `kind`."""
    return WRITE[kind](value)


def short_amount(value: float) -> str:
    """Return an amount in short form with three digits: 1,250,000 becomes 1.25M, NaN becomes n/a."""
    units = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
    scale, unit = next((each for each in units if abs(value) >= 0.9995 * each[0]), (1.0, ""))
    return "n/a" if math.isnan(value) else f"{value / scale:.3g}{unit}"


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: '1 day', '2 days'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def text_table(head: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], width: int = 20) -> list[str]:
    """Return the lines of a text table with a column of labels and, under each heading in `head`, a column of cells.

    Each row is (label, cells). Cells are aligned right, and headings are wrapped to `width` characters. If a row has
    fewer cells than there are headings, the last columns are empty.
    """
    heads = [textwrap.wrap(plain(name), width) or [""] for name in head]
    upside_down = zip_longest(*(reversed(lines) for lines in heads), fillvalue="")  # align the bottom of the headings
    lines = [["", *line] for line in upside_down][::-1]
    lines += [[label, *row, *[""] * (len(heads) - len(row))] for label, row in rows]
    return in_columns(lines, [False] + [True] * len(heads))


def in_columns(lines: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Return rows of cells as lines of text with aligned columns. `right` has True for each column to align right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = ([c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)] for line in lines)
    return ["  ".join(cells).rstrip() for cells in aligned]


def plain(text: str) -> str:
    """Return the text with a space in place of each line break and control character."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _number(value: float | None, digits: int, scale: float, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return "n/a"
    scaled = np.round(float(value) * scale, digits) + 0.0  # changes -0.0 to 0.0
    return f"{scaled:.3g}{unit}" if abs(scaled) >= 1e15 else f"{scaled:,.{digits}f}{unit}"
