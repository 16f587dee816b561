"""`LongBars`: the bars of all assets, asset by asset. `RepairLog`: the log of changed bars and bars that look wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from finpod.measures import Array

PLACES, SUSPICIONS = 20, 200
"""Largest numbers of repairs and of suspicions that `RepairLog` lists for each kind. It counts all of them."""


@dataclass(frozen=True, eq=False)
class LongBars:
    """R bars with a close, one per row, sorted by asset and date. A session without a bar has no row."""

    tickers: tuple[str, ...]
    """[N] symbols of the assets."""
    code: Array
    """[R] int, index in `tickers` of each row's asset. It never decreases from row to row."""
    date: Array
    """[R] datetime64[ns], dates of the bars."""
    values: Mapping[str, Array]
    """Name of a column, such as close -> its values [R] float64."""

    @cached_property
    def first(self) -> Array:
        """[R] bool mask, True at the first bar of each asset."""
        return np.diff(self.code, prepend=-1) != 0

    @cached_property
    def stop(self) -> Array:
        """[R] int: for each row, the number of the first row after the bars of the same asset."""
        return np.searchsorted(self.code, self.code, side="right")

    @cached_property
    def start(self) -> Array:
        """[R] int: for each row, the number of the first row of the same asset."""
        return np.searchsorted(self.code, self.code)

    def __len__(self) -> int:
        return len(self.code)

    def previous(self, column: Array) -> Array:
        """Return for each row the value of `column` [R] at the asset's previous bar; NaN at the asset's first bar."""
        before = np.roll(column.astype(np.float64), 1)
        before[self.first] = np.nan
        return before

    def log_steps(self, column: Array) -> Array:
        """Return ln(value / value at the asset's previous bar) for `column` [R]; 0 where either value is missing."""
        return np.nan_to_num(np.log(column / self.previous(column)))

    def sum_after(self, steps: Array) -> Array:
        """Return for each row the sum of `steps` [R] over the asset's later bars; exactly 0 at the asset's last bar."""
        total = np.cumsum(steps)
        return total[self.stop - 1] - total

    def per_asset(self, rows: Array | slice) -> Array:
        """Return the number of selected rows of each asset [N]. `rows` is a mask [R] or a slice."""
        return np.bincount(self.code[rows], minlength=len(self.tickers))

    def places(self, rows: Array | slice) -> tuple[Array, Array]:
        """Return the tickers [n], as str objects, and the dates [n] of the n bars that `rows` selects."""
        return np.array(self.tickers, dtype=object)[self.code[rows]], self.date[rows]

    def with_values(self, **columns: Array) -> LongBars:
        """Return the same bars with the given columns replaced or added."""
        return replace(self, values={**self.values, **columns})

    def without(self, masked: Array) -> LongBars:
        """Return the bars not in `masked` [R]. A removed bar's split or dividend moves to the asset's next kept bar."""
        if not masked.any():
            return self
        kept = ~masked
        code = self.code[kept]
        values = {name: column[kept] for name, column in self.values.items()}
        for name, combine, none in (("split", np.multiply, 1.0), ("dividend", np.add, 0.0)):
            if name in values:
                event = np.where(self.values[name] > 0, self.values[name], none)
                lost = np.flatnonzero(masked & (event != none))
                following = np.cumsum(kept)[lost]  # index of the next kept row among the kept rows
                same_asset = np.append(code, -1)[following] == self.code[lost]
                values[name] = event[kept]
                combine.at(values[name], following[same_asset], event[lost][same_asset])
        return replace(self, code=code, date=self.date[kept], values=values)


def long_bars(bars: pd.DataFrame, dropped: Array) -> LongBars:
    """Return tidy bars (see `read_bars`) as `LongBars`, without those that lack a close or are in `dropped` [rows]."""
    code = bars["ticker"].cat.codes.to_numpy()
    order = np.argsort(code, kind="stable")  # keeps the order by date of each asset's tidy bars
    tickers = tuple(bars["ticker"].cat.categories)
    values = {str(name): bars[name].to_numpy()[order] for name in bars.columns[2:]}
    code, date = code[order].astype(np.int64), bars["date"].to_numpy()[order]
    day = date.astype("datetime64[D]")
    again = np.r_[False, (code[1:] == code[:-1]) & (day[1:] == day[:-1])]
    for event in {"split", "dividend"} & {*values}:  # intraday bars may repeat the event of their session
        repeated = again & (values[event] == np.roll(values[event], 1))
        values[event] = np.where(repeated, np.nan, values[event])
    sorted_bars = LongBars(tickers, code, date, values)
    return sorted_bars.without(np.isnan(sorted_bars.values["close"]) | dropped[order])


@dataclass
class RepairLog:
    """Log of how tables were read, of repairs, and of suspicions: bars that look wrong but were not changed."""

    reading: list[str] = field(default_factory=list)
    """Sentences on how the tables were read, one per decision, such as "tickers read from permno"."""
    offsets: set[str] = field(default_factory=set)
    """UTC offsets of the bars' timestamps, such as -05:00."""
    _repairs: dict[str, dict[str, Any]] = field(default_factory=dict)
    _suspicions: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def read(self, sentences: Iterable[str]) -> None:
        """Add sentences on how the tables were read, except those that are empty or already in `reading`."""
        self.reading += [sentence for sentence in dict.fromkeys(sentences) if sentence and sentence not in self.reading]

    def repair(
        self, kind: str, tickers: Sequence[str] | Array, dates: Array, column: str, was: Any, became: Any = "masked"
    ) -> None:
        """Record that `column` changed in n bars. `was` and `became` are each an array [n], or one value for all n."""
        if len(dates) == 0:
            return
        entry = self._repairs.setdefault(kind, {"kind": kind, "count": 0, "places": []})
        entry["count"] += len(dates)
        first = slice(0, PLACES - len(entry["places"]))
        rows = (np.broadcast_to(part, len(dates))[first] for part in (tickers, dates, was, became))
        for ticker, day, *values in zip(*rows, strict=True):
            old, new = (value.item() if isinstance(value, np.generic) else value for value in values)
            place = {"ticker": str(ticker), "date": f"{day!s:.10}", "column": column, "was": old, "became": new}
            entry["places"].append(place)

    def suspect(self, kind: str, tickers: Sequence[str] | Array, dates: Array, sentences: Iterable[str]) -> None:
        """Record n suspicions of one kind, each with a sentence. Sentences are read only as far as they are listed."""
        listed = self._suspicions.setdefault(kind, [])
        self._counts[kind] += len(dates)
        for ticker, day, sentence in islice(zip(tickers, dates, sentences, strict=False), SUSPICIONS - len(listed)):
            listed.append({"kind": kind, "ticker": str(ticker), "date": f"{day!s:.10}", "sentence": sentence})

    def report(self, kind: str, bars: LongBars, suspicious: Array, sentence: Callable[[int], str]) -> None:
        """Record the bars of the mask `suspicious` [R] as suspicions. `sentence(row)` returns the text on a bar."""
        rows = np.flatnonzero(suspicious)
        self.suspect(kind, *bars.places(rows), map(sentence, rows.tolist()))

    def content(self) -> dict[str, Any]:
        """Return the manifest's entries on repairs and suspicions. Kinds are in the order of their first entries."""
        return {
            "repairs": list(self._repairs.values()),
            "suspicions": [entry for listed in self._suspicions.values() for entry in listed],
            "suspicion_counts": {kind: count for kind, count in self._counts.items() if count},
        }


def check_lines(manifest: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return (repairs, suspicions): lines of text on a manifest. A line with a kind and its count precedes its entries."""
    repairs, suspicions = [], []
    for entry in manifest.get("repairs") or ():
        listed = []
        for place in entry["places"][:5]:
            was, became = (f"{v:,.10g}" if isinstance(v, float) else v for v in (place["was"], place["became"]))
            listed.append(f"{place['ticker']} {place['date']} {place['column']} {was} -> {became}")
        repairs += _counted(entry["kind"], entry["count"], listed)
    for kind, count in sorted((manifest.get("suspicion_counts") or {}).items()):
        entries = [entry for entry in manifest["suspicions"] if entry["kind"] == kind]
        suspicions += _counted(kind, count, [f"{one['ticker']} {one['date']} {one['sentence']}" for one in entries])
    return repairs, suspicions


def _counted(kind: str, count: int, listed: Sequence[str]) -> list[str]:
    more = [f"  and {count - len(listed):,} more"] if count > len(listed) else []
    return [f"{kind}: {count:,}", *(f"  {line}" for line in listed), *more]
