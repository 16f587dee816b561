"""`ExtraData`: the user's own columns of a market. Each value appears from the first row at which it was known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from finpod.errors import DataError, InputError, did_you_mean
from finpod.measures import Array

PREFIX = "extra:"
"""Prefix of features that are extra columns: `extra:pe` is the column `pe`."""


def column_of(feature: object) -> str | None:
    """Return the extra column that a feature names, `pe` for `extra:pe`; None for other features."""
    return feature.removeprefix(PREFIX) if isinstance(feature, str) and feature.startswith(PREFIX) else None


def read_only(table: Array) -> Array:
    """Return a view of the array that cannot be written to."""
    view = table.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, eq=False)
class ExtraData:
    """The user's columns of a market of T rows and N tickers. Row t contains only what was known at row t.

    A column has one value per ticker ([T, N]) or one value for all tickers ([T], such as an interest rate). NaN means
    that nothing was known yet. Arrays are read-only. `finpod.market.extra_tables` reads tables as an `ExtraData`.
    """

    tables: Mapping[str, Array] = field(default_factory=dict)
    """Column name -> values, [T, N] or [T] float64."""
    width: int = 0
    """N, the number of tickers."""

    def __post_init__(self) -> None:
        tables = {name: np.ascontiguousarray(table, dtype=np.float64) for name, table in self.tables.items()}
        object.__setattr__(self, "tables", {name: read_only(table) for name, table in tables.items()})

    def __getitem__(self, name: str) -> Array:
        """Return the values [T, N] of a column, NaN if nothing was known. Raises InputError for an unknown column."""
        table = self._table(name)
        return table if table.ndim == 2 else np.broadcast_to(table[:, None], (len(table), self.width))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.tables)

    def is_shared(self, name: str) -> bool:
        """Return True for a column with one value for all tickers. Raises InputError for an unknown column."""
        return self._table(name).ndim == 1

    def rows(self, rows: slice | Array) -> ExtraData:
        """Return the data of some rows, given as a slice or a mask [T]."""
        return ExtraData({name: table[rows] for name, table in self.tables.items()}, self.width)

    def select(self, columns: Sequence[int]) -> ExtraData:
        """Return the data of the tickers at the given positions, in that order."""
        cut = {name: table if table.ndim == 1 else table[:, list(columns)] for name, table in self.tables.items()}
        return ExtraData(cut, len(columns))

    def shared_only(self) -> ExtraData:
        """Return the columns for a market of one ticker not among these. Columns with a value per ticker become NaN."""
        cut = {n: table if table.ndim == 1 else np.full((len(table), 1), np.nan) for n, table in self.tables.items()}
        return ExtraData(cut, 1)

    def check_shape(self, days: int, tickers: int) -> None:
        """Raise DataError, naming the column, unless each column fits a market of `days` rows and `tickers` columns."""
        for name, table in self.tables.items():
            if table.shape not in ((days,), (days, tickers)) or self.width != tickers:
                text = f"extra:{name} has shape {table.shape} for {self.width} tickers; the market has {days} rows"
                raise DataError(f"{text} and {tickers} tickers; build the market with load_market(..., extra=...)")

    def _table(self, name: str) -> Array:
        if name in self.tables:
            return self.tables[name]
        text = f"there is no extra column {name!r}"
        if not self.tables:
            raise InputError(f"{text}: the market has no extra columns; give a table with extra=", argument="extra")
        choices = f"the market has {', '.join(self.names)}"
        raise InputError(f"{text}; {did_you_mean(column_of(name) or str(name), self.names, choices)}")
