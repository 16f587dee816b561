"""Who was in the universe on a date: spells of membership and the grid they make over sessions and names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.market.data import DateLike, as_date
from finpod.market.parsing import check_tickers, normal_ticker
from finpod.market.readers import read_text_table
from finpod.market.renames import Rename, families, last_days
from finpod.measures import Array

COLUMNS = ("ticker", "from", "to_exclusive")
"""Columns of a membership CSV: one row a spell; an empty end means that the spell is still open."""

RENAMED = (
    *families(),
    ("NDOI", "ENDP"),  # never its symbol: a known error of lists of the index
    ("ALD", "HON"),
    ("DWDP", "DD"),
    ("HWP", "HPQ"),
    ("JOYG", "JOY"),
    ("SBC", "T"),
    ("XON", "XOM"),
)
"""Symbols one listing went by, oldest first: a member is found under whichever of them the prices use."""

GAP = 5
"""Sessions in a row without a bar from which a member counts as one without prices."""

_START, _OPEN = np.datetime64("1900-01-01", "ns"), np.datetime64("2200-01-01", "ns")


@dataclass(frozen=True, kw_only=True, eq=False)
class Membership:
    """Spells of membership [S]; a name may have several."""

    tickers: Array
    """[S] symbols, as str objects."""
    start: Array
    """[S] datetime64[ns], first day of the spell."""
    stop: Array
    """[S] datetime64[ns], first day after the spell; the year 2200 for one that is still open."""
    sentence: str
    """What the list is and where it comes from, for manifests and reports."""
    survivorship: bool = False
    """Whether the list is one of a later date, which flatters every back-test on it."""
    index: str = ""
    """Title of the index whose members these are; empty for other lists."""
    size: int | None = None
    """Number of members that the index has by its rules, where it is known."""

    def during(self, first: np.datetime64, last: np.datetime64) -> tuple[str, ...]:
        """Names that were members on some day of [first, last], sorted."""
        return tuple(np.unique(self.tickers[(self.start <= last) & (self.stop > first)]))

    def count(self, dates: Array) -> Array:
        """[T] int: number of spells on each session. Companies of which one took the symbol of the other count as two."""
        return ((self.start <= dates[:, None]) & (self.stop > dates[:, None])).sum(axis=1)

    def grid(self, dates: Array, tickers: Sequence[str]) -> Array:
        """[T, N] bool: is the name a member on the session? Names without a spell are never members."""
        column = pd.Index(tickers).get_indexer(pd.Index(self.tickers))
        known = column >= 0
        entered, left = (np.searchsorted(dates, days[known]) for days in (self.start, self.stop))
        change = np.zeros((len(dates) + 1, len(tickers)), dtype=np.int64)
        np.add.at(change, (entered, column[known]), 1)
        np.add.at(change, (left, column[known]), -1)
        return change[:-1].cumsum(axis=0) > 0

    def spelled_as(self, available: Sequence[str]) -> "Membership":
        """The same spells under the symbols of the prices: spelled as there, and the new symbol of a renamed listing.

        A spell of an old symbol that began after the rename, where its day is known, is that of another company and stays.
        """
        symbols = set(available)
        spelled = [normal_ticker(ticker, symbols) for ticker in self.tickers]
        renamed = {
            old: new for names in RENAMED for old in names if old not in symbols for new in names if new in symbols
        }
        lost = last_days()
        tickers = [
            renamed.get(ticker, ticker) if start < lost.get(ticker, _OPEN) else ticker
            for ticker, start in zip(spelled, self.start, strict=True)
        ]
        return replace(self, tickers=np.array(tickers, dtype=object))

    def renamed_to_newest(self) -> "Membership":
        """The same spells under the newest symbol of every renamed listing, as vendors file its whole history."""
        newest = [family[-1] for family in RENAMED]
        return self.spelled_as([*newest, *set(self.tickers) - {old for family in RENAMED for old in family[:-1]}])

    def renamed(self, rename: Rename) -> "Membership":
        """The spells of the old symbol under the new one; with a day, those that began before it."""
        moves = (self.tickers == rename.old) & (True if rename.day is None else self.start < rename.day)
        return replace(self, tickers=np.where(moves, rename.new, self.tickers))


def read_members(path: str | PathLike[str]) -> Membership:
    """Membership from a CSV with the columns ticker, from, to_exclusive, in any case, separated by commas or semicolons.

    Tickers may have any spelling (see `finpod.market.parsing.normal_ticker`).
    Raises InputError for a missing file and DataError, naming the row, for one that cannot be used.
    """
    source = Path(path)
    table = read_text_table(source, COLUMNS, "membership file", "member", argument="members")
    return membership_of(table, source.name, f"point-in-time membership from {source.name}")


def static_members(tickers: Sequence[str], *, sentence: str) -> Membership:
    """Membership for all time, and therefore with survivorship bias, from a list in any spelling (see `normal_ticker`).

    Raises InputError for an empty list.
    """
    if len(tickers) == 0:
        raise InputError(
            "the list of tickers is empty; name at least one, or leave members out to take every name",
            argument="members",
        )
    spelled = list(dict.fromkeys(normal_ticker(ticker) for ticker in tickers))
    check_tickers(spelled, "the list of tickers")
    names = np.array(spelled, dtype=object)
    return Membership(
        tickers=names,
        start=np.full(len(names), _START),
        stop=np.full(len(names), _OPEN),
        sentence=sentence,
        survivorship=True,
    )


def membership_facts(
    membership: Membership | None, dates: Array, names: Sequence[str], has_bar: Array
) -> tuple[Array, dict[str, Any]]:
    """[T, N] membership, and what the manifest says of it; None takes every name for all time.

    Raises DataError if no name with prices is ever a member.
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
    """The members of a market that have no prices on some sessions of [first, last], by its manifest; sorted."""
    begin, end = f"{as_date(first)!s:.10}", f"{as_date(last)!s:.10}"
    spells = manifest.get("without_prices", {})
    return sorted(name for name, days in spells.items() if any(a <= end and b >= begin for a, b in days))


def _few(names: Sequence[str]) -> str:
    """The first three names, such as an error shows."""
    return ", ".join(names[:3]) or "not at all"


class Listed(NamedTuple):
    """How complete a list of members is on a day."""

    title: str
    """That of the index."""
    day: str
    """YYYY-MM-DD."""
    members: int
    """Number of members on the list."""
    size: int
    """Number of members that the index has by its rules."""


def listed_during(manifest: Mapping[str, Any], first: DateLike, last: DateLike) -> Listed | None:
    """The day within [first, last] on which the list of a market's index is furthest from its size; None without an index.

    The manifest has the first session of each year: the last of them before `first` counts for the days up to the next.
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
    """Name -> [first, last session] of each spell as a member without a bar; short gaps in a series are left out."""
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


def membership_of(table: pd.DataFrame, name: str, sentence: str) -> Membership:
    """Membership from a table of text with the columns of `COLUMNS`; `name` is what errors call it.

    Raises DataError, naming the row, for what is no date, for what cannot be a ticker, and for a spell that ends before it
    begins.
    """
    days = {}
    for column in COLUMNS[1:]:
        text = table[column].str.strip()
        parsed = pd.to_datetime(text.where(text != ""), format="%Y-%m-%d", errors="coerce")
        unreadable = parsed.isna() & ((text != "") | (column == "from"))
        if unreadable.any():
            row = int(np.argmax(unreadable))
            raise DataError(
                f"{name}: {column} of {table['ticker'].iloc[row]} is {text.iloc[row]!r}; write dates as YYYY-MM-DD"
            )
        days[column] = parsed.to_numpy().astype("datetime64[ns]")
    tickers = [normal_ticker(label) for label in table["ticker"]]
    check_tickers(tickers, name)
    stop = np.where(np.isnat(days["to_exclusive"]), _OPEN, days["to_exclusive"])
    if (backward := stop <= days["from"]).any():
        row = int(np.argmax(backward))
        raise DataError(
            f"{name}: the spell of {table['ticker'].iloc[row]} ends on {stop[row]!s:.10}, not after its "
            f"start on {days['from'][row]!s:.10}"
        )
    return Membership(tickers=np.array(tickers, dtype=object), start=days["from"], stop=stop, sentence=sentence)
