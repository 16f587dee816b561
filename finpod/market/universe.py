"""Point-in-time membership: the periods (spells) in which assets are members. Indexes with known historical members."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError, did_you_mean
from finpod.market.parsing import normal_ticker, parse_stamps, parse_tickers
from finpod.market.readers import read_columns
from finpod.market.renames import Rename, bundled_renames
from finpod.measures import Array

Members = str | PathLike[str] | Sequence[str] | None

AUTO = "auto"
"""Value of `benchmark` and `calendar`: use those of the members' index, or those of `DEFAULT` if there is no index."""
DEFAULT = "nasdaq100"


class Index(NamedTuple):
    """An index with known historical members, its benchmark and its calendar."""

    name: str
    """Name that the arguments `members` and `universe` accept."""
    title: str
    """Official name."""
    benchmark: str
    """Yahoo's ticker of the fund that tracks the index."""
    calendar: str
    """Exchange of the index, by its name in exchange_calendars."""
    size: int
    """Number of companies that the rules of the index prescribe. Companies with two share classes are two members."""


INDEXES = {
    index.name: index
    for index in (
        Index("nasdaq100", "NASDAQ-100", "QQQ", "XNYS", 100),
        Index("sp500", "S&P 500", "SPY", "XNYS", 500),
        Index("dow30", "Dow 30", "DIA", "XNYS", 30),
        Index("csi300", "CSI 300", "510300.SS", "XSHG", 300),
        Index("csi500", "CSI 500", "510500.SS", "XSHG", 500),
    )
}
"""Indexes by name. Shanghai and Shenzhen have the same sessions, those of the calendar XSHG."""

_CORRECTED = {
    "nasdaq100": {
        ("NDOI", "2006-01-01"): [("ENDP", "2006-01-01", "2015-01-01")],  # Endo never had the symbol NDOI
        ("MNST", "2006-01-01"): [("MWW", "2006-01-01", "2008-11-10")],  # MNST is Monster Beverage today
        ("TCOM", "2006-01-01"): [("TCOM", "2006-01-01", "2015-01-01"), ("TCOM", "2015-12-21", "2021-12-20")],
        ("WTW", "2006-01-01"): [("WTW", "2006-01-01", "2015-01-01"), ("WTW", "2018-12-24", "2020-04-30")],
    },
    "dow30": {("PM", "1985-10-30"): [("MO", "1985-10-30", "2003-01-27")]},  # MO spun off PM in 2008
}
"""Corrections of the package index-constitution: index -> (symbol, first day) of a wrong spell -> right spells, as
(symbol, first day, first day after the spell)."""
COLUMNS = ("ticker", "from", "to_exclusive")
"""Columns of a membership CSV, one row per spell. If to_exclusive is empty, the spell is still open."""

_START, _OPEN = np.datetime64("1900-01-01", "ns"), np.datetime64("2200-01-01", "ns")


@dataclass(frozen=True, kw_only=True, eq=False)
class Membership:
    """Members of a universe, as S spells: periods in which an asset is a member. An asset may have several spells."""

    tickers: Array
    """[S] str objects, the symbol of each spell's asset."""
    start: Array
    """[S] datetime64[ns], first day of each spell."""
    stop: Array
    """[S] datetime64[ns], first day after each spell; the year 2200 for a spell that is still open."""
    sentence: str
    """Kind and source of the membership, such as "static list of 20 tickers ...", for manifests and reports."""
    survivorship: bool = False
    """True if the members were chosen with hindsight, so that backtests have survivorship bias."""
    index: Index | None = None
    """Index that has these members; None for other universes."""

    def during(self, first: np.datetime64, last: np.datetime64) -> tuple[str, ...]:
        """Return the tickers that were members on some day of [first, last], sorted."""
        return tuple(np.unique(self.tickers[(self.start <= last) & (self.stop > first)]))

    def grid(self, dates: Array, tickers: Sequence[str]) -> Array:
        """Return a mask [T, N], True where an asset of `tickers` [N] is a member on a day of `dates` [T]."""
        column = pd.Index(tickers).get_indexer(pd.Index(self.tickers))
        known = column >= 0
        change = np.zeros((len(dates) + 1, len(tickers)), dtype=np.int64)
        for days, step in ((self.start, 1), (self.stop, -1)):
            np.add.at(change, (np.searchsorted(dates, days[known]), column[known]), step)
        return change[:-1].cumsum(axis=0) > 0

    def spelled_as(self, available: Sequence[str]) -> Membership:
        """Return the spells with the symbol of each renamed listing replaced by the one that is in `available`.

        `available` are the symbols of the prices. A spell of an old symbol that begins on or after the day of the
        rename belongs to another company and keeps its symbol.
        """
        symbols = set(available)
        renamed = {
            old: new for names in families() for old in names if old not in symbols for new in names if new in symbols
        }
        last_days = {rename.old: rename.day for rename in bundled_renames() if rename.day is not None}
        tickers = [
            renamed.get(ticker, ticker) if start < last_days.get(ticker, _OPEN) else ticker
            for ticker, start in zip(self.tickers, self.start, strict=True)
        ]
        return replace(self, tickers=np.array(tickers, dtype=object))

    def renamed_to_newest(self) -> Membership:
        """Return the spells under the newest symbol of each listing, which vendors use for its whole history."""
        return self.spelled_as([names[-1] for names in families()])

    def renamed(self, rename: Rename) -> Membership:
        """Return the spells with `rename` applied. If it has a day, only spells that began before it are renamed."""
        moves = (self.tickers == rename.old) & (True if rename.day is None else self.start < rename.day)
        return replace(self, tickers=np.where(moves, rename.new, self.tickers))


@cache
def families() -> list[tuple[str, ...]]:
    """Return one tuple per listing with bundled renames: all its symbols, oldest first."""
    chains: dict[str, tuple[str, ...]] = {}
    for rename in bundled_renames():
        chains[rename.new] = (*chains.pop(rename.old, (rename.old,)), rename.new)
    return list(chains.values())


def resolve_members(members: Members, origin: str, day_first: bool | None = None) -> Membership | None:
    """Return the membership that `members` describes.

    `members` is the name of an index, the path of a CSV (see `read_members`), a list of tickers, or None for no
    membership. Text that is no known index is a path if it contains a dot or exists. `origin` is the end of the
    sentence on a list, such as "chosen from prices.csv". Raises InputError for an unknown index, and for values of
    other types, such as a frame.
    """
    if members is None:
        return None
    if isinstance(members, str) and (find_index(members) or ("." not in members and not Path(members).exists())):
        return index_members(members)
    if isinstance(members, (str, PathLike)):
        return read_members(members, day_first)
    if not np.iterable(members) or isinstance(members, pd.DataFrame):
        text = f"members is of type {type(members).__name__}; give an index, a CSV or a list of tickers"
        raise InputError(text, argument="members")
    return static_members(members, sentence=f"static list of {len(set(map(normal_ticker, members)))} tickers {origin}")


def read_members(path: str | PathLike[str], day_first: bool | None = None) -> Membership:
    """Return the membership of a CSV or parquet file with the columns ticker, from and to_exclusive.

    Tickers and dates may have any spelling. Raises InputError for a missing file and DataError for invalid content.
    """
    name = Path(path).name
    table = read_columns(Path(path), COLUMNS, "membership file", argument="members")
    days = parse_stamps(pd.concat([table["from"], table["to_exclusive"]]), name, day_first)  # both have one format
    start, stop = np.split(days.clock, 2)
    stop = np.where(np.isnat(stop), _OPEN, stop)
    if (wrong := ~(start < stop)).any():
        ticker, first, end = (column[wrong][0] for column in (table["ticker"].to_numpy(), start, stop))
        raise DataError(
            f"{name}: 'from' of {ticker} is {first!s:.10}, which is not before 'to_exclusive' ({end!s:.10}); give the "
            "first day of each spell, and as 'to_exclusive' a later day, or nothing if the spell is still open"
        )
    spells = pd.DataFrame({"ticker": table["ticker"], "from": start, "to_exclusive": stop})
    reading = f" ({days.reading})" if days.reading else ""
    return _membership(spells, name, f"point-in-time membership from {name}{reading}")


def static_members(tickers: Sequence[str], *, sentence: str) -> Membership:
    """Return a permanent membership (survivorship bias). Raises InputError without tickers, DataError for a bad one."""
    if len(tickers) == 0:
        raise InputError("the list of tickers is empty; give a ticker, or members=None for all tickers", "members")
    spells = pd.DataFrame({"ticker": pd.Series(list(tickers), dtype=object), "from": _START, "to_exclusive": _OPEN})
    return _membership(spells, "the list of tickers", sentence, survivorship=True)


def _membership(spells: pd.DataFrame, name: str, sentence: str, **facts: Any) -> Membership:
    """Return the membership of a table with `COLUMNS`, with tickers in any spelling. Repeated spells count once.

    `facts` are further fields of the membership. Errors about tickers call the table `name`.
    """
    tickers, _ = parse_tickers(spells["ticker"], name)
    spells = spells.assign(ticker=tickers.astype(object)).drop_duplicates()
    start, stop = (spells[day].to_numpy().astype("datetime64[ns]") for day in ("from", "to_exclusive"))
    return Membership(tickers=spells["ticker"].to_numpy(), start=start, stop=stop, sentence=sentence, **facts)


def find_index(name: str) -> Index | None:
    """Return the index with a name, which may be spelled sp500, SP500 or "S&P 500"; None if no index has the name."""
    return INDEXES.get(re.sub(r"[ &_-]", "", name.lower()))


def is_universe(text: str) -> bool:
    """Return True if the text may name an index: a known name, or lower-case letters, perhaps with a number."""
    return find_index(text) is not None or re.fullmatch(r"[a-z&]+(\W?\d+)?", text) is not None


def index_named(name: str) -> Index:
    """Return the index of a name in any spelling. Raises InputError for an unknown name."""
    index = find_index(name)
    if index is None:
        hint = did_you_mean(name.lower(), INDEXES.keys(), "")
        raise InputError(
            f"unknown universe {name!r}{f' ({hint})' if hint else ''}; choose from {', '.join(INDEXES)}, or give a "
            f"list of tickers in capitals, such as {name.upper() if name.isalpha() else 'AAPL'}, or a membership CSV"
        )
    return index


def benchmark_and_calendar(
    benchmark: str | None, calendar: str | None, membership: Membership | None
) -> tuple[str | None, str | None]:
    """Return (benchmark, calendar). "auto" is replaced by the value of the members' index (else of `DEFAULT`)."""
    index = (membership and membership.index) or INDEXES[DEFAULT]
    return index.benchmark if benchmark == AUTO else benchmark, index.calendar if calendar == AUTO else calendar


def index_members(name: str) -> Membership:
    """Return the point-in-time membership of an index from the package index-constitution, under Yahoo's symbols.

    Known errors are corrected, and spells of zero days are left out. Raises InputError for an unknown index.
    """
    index = index_named(name)
    import index_constitution

    history = index_constitution.history(index.name)
    spells = history[["symbol", "opt-in", "opt-out"]].set_axis(list(COLUMNS), axis=1).fillna({"to_exclusive": _OPEN})
    for (ticker, day), right in _CORRECTED.get(index.name, {}).items():
        wrong = (spells["ticker"] == ticker) & (spells["from"] == day)
        spells = pd.concat([spells[~wrong], pd.DataFrame(right, columns=COLUMNS).astype(spells.dtypes)])
    yahoo = {r"^SH(\d+)$": r"\1.SS", r"^SZ(\d+)$": r"\1.SZ"}  # Yahoo's spelling of Chinese symbols
    return _membership(
        spells[spells["from"] < spells["to_exclusive"]].replace({"ticker": yahoo}, regex=True),
        index.title,
        f"point-in-time {index.title} membership from index-constitution {version('index-constitution')}",
        index=index,
    )
