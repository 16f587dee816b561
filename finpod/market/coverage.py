"""Completeness of a market's members and prices, as the manifest records it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from finpod.errors import DataError
from finpod.market.data import DateLike, as_date
from finpod.market.universe import Membership
from finpod.measures import Array

GAP = 5
"""Fewest sessions in a row without a bar that count as a member without prices."""


def membership_facts(
    membership: Membership | None, dates: Array, names: Sequence[str], has_bar: Array
) -> tuple[Array, dict[str, Any]]:
    """[T, N] membership and its entries for the manifest. None makes every asset a member for all time.

    Raises DataError if no asset with prices is ever a member.
    """
    if membership is None:
        member = np.ones((len(dates), len(names)), dtype=bool)
        return member, {
            "membership": f"static list of the {len(names)} names with prices on {dates[-1]!s:.10}",
            "survivorship": True,
            "missing": [],
            "without_prices": {},
            "coverage": _coverage(dates, member.sum(axis=1), has_bar.sum(axis=1)),
        }
    member = membership.grid(dates, names)
    missing = [t for t in membership.during(dates[0], dates[-1]) if t not in set(names)]
    members = member.sum(axis=1) + membership.grid(dates, missing).sum(axis=1)
    if not member.any():
        raise DataError(
            f"no name with prices is a member between {dates[0]!s:.10} and {dates[-1]!s:.10} ({membership.sentence}); its "
            f"members are written {_few(missing)}, the names with prices {_few(names)}: use the same symbols for both"
        )
    return member, {
        "membership": membership.sentence,
        "survivorship": membership.survivorship,
        "missing": missing,
        "without_prices": _without_prices(membership, dates, names, missing, has_bar),
        **({"listed": _listed(membership, dates)} if membership.size else {}),
        "coverage": _coverage(dates, members, (member & has_bar).sum(axis=1)),
    }


def missing_during(manifest: Mapping[str, Any], first: DateLike, last: DateLike) -> list[str]:
    """Members without prices on some sessions of [first, last], from the manifest; sorted."""
    begin, end = f"{as_date(first)!s:.10}", f"{as_date(last)!s:.10}"
    spells = manifest.get("without_prices", {})
    return sorted(name for name, days in spells.items() if any(a <= end and b >= begin for a, b in days))


def _few(names: Sequence[str]) -> str:
    """The first three tickers, for an error."""
    return ", ".join(names[:3]) or "not at all"


class Listed(NamedTuple):
    """Members on a list, and by the rules of the index of this title, on a day (YYYY-MM-DD)."""

    title: str
    day: str
    members: int
    size: int


def listed_during(manifest: Mapping[str, Any], first: DateLike, last: DateLike) -> Listed | None:
    """The day within [first, last] on which the list of members differs most from the index's size; None without an index.

    The manifest has the first session of each year, which counts until the next.
    """
    listed = manifest.get("listed")
    if not listed:
        return None
    begin, end = f"{as_date(first)!s:.10}", f"{as_date(last)!s:.10}"
    counts = dict(sorted(listed["members"].items()))
    earlier = [day for day in counts if day <= begin][-1:]
    days = earlier + [day for day in counts if begin < day <= end] or list(counts)[:1]
    day = max(days, key=lambda day: abs(counts[day] - listed["size"]))
    return Listed(listed["index"], day, counts[day], listed["size"])


def _listed(membership: Membership, dates: Array) -> dict[str, Any]:
    """Title and size of the index, and the number of members on the list at the first session of each year."""
    _, rows = np.unique(dates.astype("datetime64[Y]"), return_index=True)
    counts = membership.count(dates[rows]).tolist()
    members = {f"{day!s:.10}": count for day, count in zip(dates[rows], counts, strict=True)}
    return {"index": membership.index, "size": membership.size, "members": members}


def _without_prices(
    membership: Membership, dates: Array, names: Sequence[str], missing: Sequence[str], has_bar: Array
) -> dict[str, list[list[str]]]:
    """Ticker -> [first, last session] of each spell as a member without a bar; gaps shorter than `GAP` are left out."""
    lacking = np.hstack([membership.grid(dates, names) & ~has_bar, membership.grid(dates, missing)])
    padded = np.vstack([lacking[:1] & False, lacking, lacking[:1] & False]).astype(np.int8)
    column, begin = np.nonzero((np.diff(padded, axis=0) > 0).T)
    _, end = np.nonzero((np.diff(padded, axis=0) < 0).T)
    spells: dict[str, list[list[str]]] = {}
    for name, first, stop in zip(column, begin, end, strict=True):
        if name >= len(names) or stop - first >= GAP:
            label = (*names, *missing)[name]
            spells.setdefault(label, []).append([f"{dates[first]!s:.10}", f"{dates[stop - 1]!s:.10}"])
    return dict(sorted(spells.items()))


def _coverage(dates: Array, members: Array, covered: Array) -> dict[str, float]:
    """Year -> share of the member-days that have a bar."""
    years, index = np.unique(dates.astype("datetime64[Y]"), return_inverse=True)
    days, have = np.bincount(index, members), np.bincount(index, covered)
    return {
        str(year): round(float(part / whole), 6) for year, whole, part in zip(years, days, have, strict=True) if whole
    }
