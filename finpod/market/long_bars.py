"""`LongBars`: the bars of all names one name after the other, as the checks and repairs read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from finpod.measures import Array

ACTIONS = ("dividend", "split")
"""Columns of events: cash a share, and new shares for one old; 0 or 1 where there is none."""


@dataclass(frozen=True, eq=False)
class LongBars:
    """R bars sorted by name and date, each with a close; a name's bars are adjacent rows, whatever sessions it lacks."""

    tickers: tuple[str, ...]
    """[N] symbols."""
    code: Array
    """[R] int, position of the row's name among `tickers`, never decreasing."""
    date: Array
    """[R] datetime64[ns]."""
    values: dict[str, Array]
    """Column -> [R] float64. A repair puts a new array in the place of the old."""

    @cached_property
    def first(self) -> Array:
        """[R] bool: the first bar of its name."""
        return np.r_[True, self.code[1:] != self.code[:-1]][: len(self.code)]

    @cached_property
    def stop(self) -> Array:
        """[R] int: the row after the last one of the same name."""
        return np.searchsorted(self.code, np.arange(len(self.tickers)), side="right")[self.code]

    @cached_property
    def start(self) -> Array:
        """[R] int: the first row of the same name."""
        return np.searchsorted(self.code, np.arange(len(self.tickers)), side="left")[self.code]

    def __len__(self) -> int:
        return len(self.code)

    def previous(self, column: Array) -> Array:
        """[R] the column at the name's bar before; NaN at its first."""
        before = np.empty_like(column, dtype=np.float64)
        before[1:] = column[:-1]
        before[self.first] = np.nan
        return before

    def log_steps(self, column: Array) -> Array:
        """[R] log ratio of a positive column to its value at the name's bar before; 0 where one of the two is missing."""
        return np.nan_to_num(np.log(column / self.previous(column)))

    def sum_after(self, steps: Array) -> Array:
        """[R] sum of the steps [R] at the later bars of the same name; exactly 0 where there are none."""
        total = np.cumsum(steps)
        return total[self.stop - 1] - total

    def names(self, rows: Array | slice) -> Array:
        """[n] symbols of the rows, as str objects."""
        return np.array(self.tickers, dtype=object)[self.code[rows]]

    def without(self, masked: Array) -> LongBars:
        """The rows that are not masked; a split or dividend on a row that goes falls on the name's next row."""
        if not masked.any():
            return self
        kept = ~masked
        code, date = self.code[kept], self.date[kept]
        values = {name: column[kept] for name, column in self.values.items()}
        into = np.cumsum(kept)  # position among the kept rows of the first kept row after a masked one
        for name in ACTIONS:
            if name not in values:
                continue
            column, none = self.values[name], float(name == "split")
            events = np.flatnonzero(masked & (np.nan_to_num(column) > 0) & (column != none))
            for row in events[into[events] < len(code)]:
                at = into[row]
                if code[at] == self.code[row]:
                    there = values[name][at] if values[name][at] > 0 else none
                    values[name][at] = there * column[row] if name == "split" else there + column[row]
        return LongBars(self.tickers, code, date, values)


def long_bars(bars: pd.DataFrame, dropped: Array) -> LongBars:
    """The rows of tidy bars (see `finpod.market.tidy.tidy_bars`) that have a close and are not `dropped` [rows]."""
    code = bars["ticker"].cat.codes.to_numpy()
    order = np.argsort(code, kind="stable")  # tidy bars are sorted by date, which a stable sort keeps
    history = LongBars(
        tickers=tuple(bars["ticker"].cat.categories),
        code=code[order].astype(np.int64),
        date=bars["date"].to_numpy()[order],
        values={str(name): bars[name].to_numpy()[order] for name in bars.columns[2:]},
    )
    return history.without(np.isnan(history.values["close"]) | dropped[order])
