"""The ledger of repairs: what was changed on the way in, and what looks wrong and was left alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from finpod.measures import Array

PLACES = 20
"""Places listed for each kind of repair; all are counted."""
SUSPICIONS = 200
"""Suspicions listed for each kind; all are counted."""


@dataclass
class RepairLog:
    """Collects repairs and suspicions, counts all and keeps the first of each kind; `content` is for the manifest."""

    _repairs: dict[str, dict[str, Any]] = field(default_factory=dict)
    _suspicions: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def repair(
        self, kind: str, tickers: Sequence[str] | Array, dates: Array, column: str, was: Any, became: Any = "masked"
    ) -> None:
        """Note that `column` of these n bars was changed; `was` and `became` are a value for each or one for all."""
        if len(dates) == 0:
            return
        first = slice(0, PLACES)
        rows = zip(*(np.broadcast_to(part, len(dates))[first] for part in (tickers, dates, was, became)), strict=True)
        self.add(kind, len(dates), [_place(ticker, day, column, old, new) for ticker, day, old, new in rows])

    def add(self, kind: str, count: int, places: Iterable[Mapping[str, Any]]) -> None:
        """Note `count` repairs of a kind, the first of which are `places`."""
        entry = self._repairs.setdefault(kind, {"kind": kind, "count": 0, "places": []})
        entry["count"] += int(count)
        entry["places"] = [*entry["places"], *map(dict, places)][:PLACES]

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


def _place(ticker: Any, day: Any, column: str, was: Any, became: Any) -> dict[str, Any]:
    plain = [value.item() if isinstance(value, np.generic) else value for value in (was, became)]
    return {"ticker": str(ticker), "date": f"{day!s:.10}", "column": column, "was": plain[0], "became": plain[1]}


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) >= 1000 else f"{value:g}"
    return str(value)
