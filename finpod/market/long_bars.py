"""`LongBars`: the bars of all assets, one asset after the other; `RepairLog`: what was changed in them, and what looks wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from finpod.measures import Array

ACTIONS = ("dividend", "split")
"""Columns of events: cash a share, and new shares for one old; 0 or 1 where there is none."""
PLACES = 20
"""Places listed for each kind of repair; all are counted."""
SUSPICIONS = 200
"""Suspicions listed for each kind; all are counted."""


@dataclass(frozen=True, eq=False)
class LongBars:
    """R bars sorted by asset and date, each with a close. The bars of an asset are adjacent rows, whatever sessions it lacks."""

    tickers: tuple[str, ...]
    """[N] symbols."""
    code: Array
    """[R] int, position of the row's asset among `tickers`, never decreasing."""
    date: Array
    """[R] datetime64[ns]."""
    values: Mapping[str, Array]
    """Column -> [R] float64."""

    @cached_property
    def first(self) -> Array:
        """[R] bool: the first bar of its asset."""
        return np.r_[True, self.code[1:] != self.code[:-1]][: len(self.code)]

    @cached_property
    def stop(self) -> Array:
        """[R] int: the row after the last one of the same asset."""
        return np.searchsorted(self.code, np.arange(len(self.tickers)), side="right")[self.code]

    @cached_property
    def start(self) -> Array:
        """[R] int: the first row of the same asset."""
        return np.searchsorted(self.code, np.arange(len(self.tickers)), side="left")[self.code]

    def __len__(self) -> int:
        return len(self.code)

    def previous(self, column: Array) -> Array:
        """[R] the column at the asset's bar before; NaN at its first."""
        before = np.empty_like(column, dtype=np.float64)
        before[1:] = column[:-1]
        before[self.first] = np.nan
        return before

    def log_steps(self, column: Array) -> Array:
        """[R] log ratio of a positive column to its value at the asset's bar before; 0 where one of the two is missing."""
        return np.nan_to_num(np.log(column / self.previous(column)))

    def sum_after(self, steps: Array) -> Array:
        """[R] sum of the steps [R] at the later bars of the same asset; exactly 0 where there are none."""
        total = np.cumsum(steps)
        return total[self.stop - 1] - total

    def per_asset(self, rows: Array | slice) -> Array:
        """[N] number of the rows of each asset; `rows` is a mask [R]."""
        return np.bincount(self.code[rows], minlength=len(self.tickers))

    def names(self, rows: Array | slice) -> Array:
        """[n] symbols of the rows, as str objects."""
        return np.array(self.tickers, dtype=object)[self.code[rows]]

    def with_values(self, **columns: Array) -> LongBars:
        """The same bars with some columns replaced or added."""
        return replace(self, values={**self.values, **columns})

    def without(self, masked: Array) -> LongBars:
        """The rows that are not masked. A split or dividend on a row that goes falls on the asset's next row."""
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
    sorted_bars = LongBars(
        tickers=tuple(bars["ticker"].cat.categories),
        code=code[order].astype(np.int64),
        date=bars["date"].to_numpy()[order],
        values={str(name): bars[name].to_numpy()[order] for name in bars.columns[2:]},
    )
    return sorted_bars.without(np.isnan(sorted_bars.values["close"]) | dropped[order])


@dataclass
class RepairLog:
    """Log of decisions of the reader, of repairs, and of suspicions that were not changed.

    All repairs and suspicions are counted, and the first of each kind listed.
    """

    reading: list[str] = field(default_factory=list)
    """How the tables were read, one sentence a decision."""
    offsets: set[str] = field(default_factory=set)
    """Distances to UTC that the stamps of the bars carried."""
    _repairs: dict[str, dict[str, Any]] = field(default_factory=dict)
    _suspicions: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def read(self, sentences: Iterable[str]) -> None:
        """Note decisions of the reader, each once; empty ones are left out."""
        self.reading += [sentence for sentence in dict.fromkeys(sentences) if sentence and sentence not in self.reading]

    def repair(
        self, kind: str, tickers: Sequence[str] | Array, dates: Array, column: str, was: Any, became: Any = "masked"
    ) -> None:
        """Note that `column` of these n bars was changed; `was` and `became` are a value for each or one for all."""
        if len(dates) == 0:
            return
        entry = self._repairs.setdefault(kind, {"kind": kind, "count": 0, "places": []})
        entry["count"] += len(dates)
        first = slice(0, PLACES - len(entry["places"]))
        rows = (np.broadcast_to(part, len(dates))[first] for part in (tickers, dates, was, became))
        for ticker, day, *values in zip(*rows, strict=True):
            old, new = (value.item() if isinstance(value, np.generic) else value for value in values)
            entry["places"].append(
                {"ticker": str(ticker), "date": f"{day!s:.10}", "column": column, "was": old, "became": new}
            )

    def mask(self, kind: str, bars: LongBars, where: Array, column: str) -> None:
        """Note that `column` of the bars `where` [R] bool was masked."""
        rows = np.flatnonzero(where)
        self.repair(kind, bars.names(rows), bars.date[rows], column, bars.values[column][rows])

    def suspect(self, kind: str, tickers: Sequence[str] | Array, dates: Array, sentences: Iterable[str]) -> None:
        """Note n suspicions; `sentences` may be lazy, as only the first of a kind are written out."""
        listed = self._suspicions.setdefault(kind, [])
        self._counts[kind] += len(dates)
        for ticker, day, sentence in zip(tickers, dates, sentences, strict=False):
            if len(listed) == SUSPICIONS:
                break
            listed.append({"kind": kind, "ticker": str(ticker), "date": f"{day!s:.10}", "sentence": sentence})

    def content(self) -> dict[str, Any]:
        """`repairs`, `suspicions` and `suspicion_counts` as plain values, in the order in which the kinds came up."""
        return {
            "repairs": list(self._repairs.values()),
            "suspicions": [entry for listed in self._suspicions.values() for entry in listed],
            "suspicion_counts": {kind: count for kind, count in self._counts.items() if count},
        }


def repair_lines(manifest: Mapping[str, Any], places: int = 5) -> list[str]:
    """The repairs of a manifest for people: a line a kind with its count, then a line for each of its first places."""
    lines = []
    for entry in manifest.get("repairs") or ():
        lines.append(f"{entry['kind']}: {entry['count']:,}")
        lines += [
            f"  {place['ticker']} {place['date']} {place['column']} {_text(place['was'])} -> {_text(place['became'])}"
            for place in entry["places"][:places]
        ]
        if entry["count"] > places:
            lines.append(f"  and {entry['count'] - places:,} more")
    return lines


def suspicion_lines(manifest: Mapping[str, Any]) -> list[str]:
    """The suspicions of a manifest for people: a line a kind with its count, then a line each."""
    lines = []
    for kind, count in (manifest.get("suspicion_counts") or {}).items():
        listed = [entry for entry in manifest["suspicions"] if entry["kind"] == kind]
        lines.append(f"{kind}: {count:,}")
        lines += [f"  {entry['ticker']} {entry['date']} {entry['sentence']}" for entry in listed]
        if count > len(listed):
            lines.append(f"  and {count - len(listed):,} more")
    return lines


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) >= 1000 else f"{value:g}"
    return str(value)
