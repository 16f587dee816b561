"""Counts the members of a market, and finds members without prices, for the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from finpod.errors import DataError
from finpod.market.data import DateLike, as_date
from finpod.market.universe import Membership
from finpod.measures import Array

GAP = 5
"""A member without a bar in this many consecutive rows counts as a member without prices."""


class Listed(NamedTuple):
    """Number of listed members of an index on a day (YYYY-MM-DD), and the number that the index rules prescribe."""

    title: str
    day: str
    members: int
    size: int


def membership_facts(
    membership: Membership | None, dates: Array, tickers: Sequence[str], has_bar: Array
) -> tuple[Array, dict[str, Any]]:
    """Return (member, facts): a mask [T, N] of the members, and manifest entries on them.

    If `membership` is None, all assets are members. Raises DataError if no asset with prices is ever a member.
    """
    if membership is None:
        member = np.ones(has_bar.shape, dtype=bool)
        return member, {
            "membership": f"static list of the {len(tickers)} assets with prices up to {dates[-1]!s:.10}",
            "survivorship": True,
            "missing": [],
            "without_prices": {},
            "coverage": _coverage(dates, member, has_bar),
        }
    missing = [ticker for ticker in membership.during(dates[0], dates[-1]) if ticker not in set(tickers)]
    labels = [*tickers, *missing]
    listed = membership.grid(dates, labels)
    member = listed[:, : len(tickers)]
    if not member.any():
        raise DataError(
            f"no member between {dates[0]!s:.10} and {dates[-1]!s:.10} has prices; members are, for example, "
            f"{', '.join(missing[:3]) or 'none'} ({membership.sentence}), and prices are of {', '.join(tickers[:3])}; "
            "use the same symbols for members and prices, and a list of members that covers these dates"
        )
    priced = np.pad(has_bar, ((0, 0), (0, len(missing))))
    edges = np.diff(np.pad((listed & ~priced).astype(np.int8), ((1, 1), (0, 0))), axis=0).T
    without_prices: dict[str, list[list[str]]] = {}
    for column, first, stop in zip(*np.nonzero(edges > 0), np.nonzero(edges < 0)[1], strict=True):
        if column >= len(tickers) or stop - first >= GAP:
            days = [f"{dates[first]!s:.10}", f"{dates[stop - 1]!s:.10}"]
            without_prices.setdefault(labels[column], []).append(days)
    facts = {
        "membership": membership.sentence,
        "survivorship": membership.survivorship,
        "missing": missing,
        "without_prices": dict(sorted(without_prices.items())),
        "coverage": _coverage(dates, listed, listed & priced),
    }
    if membership.index is not None:
        starts = dates[np.unique(dates.astype("datetime64[Y]"), return_index=True)[1]]
        counts = membership.grid(starts, np.unique(membership.tickers).tolist()).sum(axis=1).tolist()
        members = dict(zip((f"{day!s:.10}" for day in starts), counts, strict=True))
        facts["listed"] = {"index": membership.index.title, "size": membership.index.size, "members": members}
    return member, facts


def _coverage(dates: Array, member: Array, covered: Array) -> dict[str, float]:
    """Return year -> fraction of the True entries of `member` [T, N] that are also True in `covered` [T, N]."""
    years, index = np.unique(dates.astype("datetime64[Y]"), return_inverse=True)
    days, have = (np.bincount(index, table.sum(axis=1)) for table in (member, covered))
    return {
        str(year): round(float(part / whole), 6) for year, whole, part in zip(years, days, have, strict=True) if whole
    }


def missing_during(manifest: Mapping[str, Any], first: DateLike, last: DateLike) -> list[str]:
    """Return the sorted tickers that the manifest lists as members without prices on some day of [first, last]."""
    begin, end = f"{as_date(first)!s:.10}", f"{as_date(last)!s:.10}"
    spells = manifest.get("without_prices", {})
    return sorted(ticker for ticker, days in spells.items() if any(a <= end and b >= begin for a, b in days))


def listed_during(manifest: Mapping[str, Any], first: DateLike, last: DateLike) -> Listed | None:
    """Return the member count in [first, last] that differs most from the prescribed size of the index.

    If the members are those of an index, the manifest has a count for the first row of each year. Each count applies
    until the next one. Returns None if the manifest has no counts.
    """
    listed = manifest.get("listed")
    if not listed:
        return None
    begin, end = f"{as_date(first)!s:.10}", f"{as_date(last)!s:.10}"
    counts = listed["members"]
    earlier = [day for day in counts if day <= begin][-1:]
    days = earlier + [day for day in counts if begin < day <= end] or list(counts)[:1]
    day = max(days, key=lambda day: abs(counts[day] - listed["size"]))
    return Listed(listed["index"], day, counts[day], listed["size"])
