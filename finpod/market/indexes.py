"""The indexes whose members are known point in time: their benchmarks, calendars and symbols, and who belonged to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from types import MappingProxyType

import pandas as pd

from finpod.errors import InputError, did_you_mean
from finpod.market.parsing import normal_ticker
from finpod.market.universe import Membership, membership_of

AUTO = "auto"
"""Asks for the benchmark, or the calendar, of the universe; without a universe, for those of `DEFAULT`."""
DEFAULT = "nasdaq100"
_NAME = re.compile(r"[a-z&]+\W?\d+")

_CORRECTED = (
    ("nasdaq100", "NDOI", "", "ENDP"),  # never its symbol
    ("nasdaq100", "MNST", "2008-11-10", "MWW"),  # Monster Worldwide; MNST is Monster Beverage today
    ("dow30", "PM", "2003-01-27", "MO"),  # Philip Morris Companies; PM is what it spun off in 2008
)
"""(index, symbol, last day of the spell, exclusive, or "" for all spells, symbol of the company today): known errors."""
_GAPS = (
    ("nasdaq100", "WTW", "2015-01-01", "2018-12-24"),
    ("nasdaq100", "ENDP", "2015-01-01", "2015-12-21"),
    ("nasdaq100", "TCOM", "2015-01-01", "2015-12-21"),
)
"""(index, ticker, from, to_exclusive) in which index-constitution lists a member that was out of the index."""


def _chinese(symbol: str) -> str:
    """SH600000 as 600000.SS, and SZ000001 as 000001.SZ."""
    return f"{symbol[2:]}.{'SS' if symbol.startswith('SH') else symbol[:2]}"


@dataclass(frozen=True, kw_only=True)
class Index:
    """An index whose members are known point in time, and what its markets are loaded with unless told otherwise."""

    name: str
    """As `members=` and the universe of `fetch_market` take it."""
    title: str
    """As its owner writes it."""
    benchmark: str
    """Yahoo's symbol of the fund that the index is usually compared with."""
    calendar: str
    """Its exchange in exchange_calendars."""
    size: int
    """Number of companies that it has by its rules; companies with two classes of shares make the list longer."""
    symbol: Callable[[str], str]
    """From a symbol of index-constitution to Yahoo's."""


INDEXES: Mapping[str, Index] = MappingProxyType(
    {
        index.name: index
        for index in (
            Index(
                name="nasdaq100", title="NASDAQ-100", benchmark="QQQ", calendar="XNYS", size=100, symbol=normal_ticker
            ),
            Index(name="sp500", title="S&P 500", benchmark="SPY", calendar="XNYS", size=500, symbol=normal_ticker),
            Index(name="dow30", title="Dow 30", benchmark="DIA", calendar="XNYS", size=30, symbol=normal_ticker),
            Index(name="csi300", title="CSI 300", benchmark="510300.SS", calendar="XSHG", size=300, symbol=_chinese),
            Index(name="csi500", title="CSI 500", benchmark="510500.SS", calendar="XSHG", size=500, symbol=_chinese),
        )
    }
)
"""The indexes by name. Shanghai and Shenzhen have the same sessions, those of XSHG."""


def is_index(name: str) -> bool:
    """Whether the text names an index, in any spelling: sp500, SP500, "S&P 500"."""
    return _key(name) in INDEXES


def is_universe(text: str) -> bool:
    """Whether the text is meant as the name of an index: it is one, or small letters and a number, which no ticker is."""
    return is_index(text) or _NAME.fullmatch(text) is not None


def index_named(name: str) -> Index:
    """The index of that name, in any spelling. Raises InputError for an unknown one."""
    if not is_index(name):
        hint = did_you_mean(_key(name), INDEXES.keys(), "")
        raise InputError(
            f"unknown universe {name!r}{f' ({hint})' if hint else ''}; choose from {', '.join(INDEXES)}, or give a list "
            "of tickers or a membership CSV"
        )
    return INDEXES[_key(name)]


def settled(benchmark: str | None, calendar: str | None, index: Index | None) -> tuple[str | None, str | None]:
    """Benchmark and calendar as they are, but those of the index (or of `DEFAULT`) in the place of "auto"."""
    own = index or INDEXES[DEFAULT]
    return own.benchmark if benchmark == AUTO else benchmark, own.calendar if calendar == AUTO else calendar


def index_members(name: str) -> Membership:
    """Point-in-time membership of an index from the package index-constitution, under Yahoo's symbols.

    Its known errors are corrected, and spells that end on the day on which they begin are left out (see data/README.md).
    Raises InputError for an unknown index.
    """
    index = index_named(name)
    import index_constitution

    history = index_constitution.history(index.name)
    table = pd.DataFrame({"ticker": history["symbol"].astype(str)})
    for column, source in (("from", "opt-in"), ("to_exclusive", "opt-out")):
        table[column] = history[source].dt.strftime("%Y-%m-%d").fillna("")
    table = _corrected(table[table["from"] != table["to_exclusive"]], index)
    table["ticker"] = table["ticker"].map(index.symbol)
    sentence = f"point-in-time {index.title} membership from index-constitution {version('index-constitution')}"
    return replace(membership_of(table, "index-constitution", sentence), index=index.title, size=index.size)


def _corrected(table: pd.DataFrame, index: Index) -> pd.DataFrame:
    """The spells without the errors that are known."""
    for name, symbol, end, company in _CORRECTED:
        if name == index.name:
            wrong = (table["ticker"] == symbol) & (table["to_exclusive"].eq(end) | (end == ""))
            table = table.assign(ticker=table["ticker"].mask(wrong, company))
    for name, ticker, left, again in _GAPS:
        if name == index.name:
            ends = table["to_exclusive"].where(table["to_exclusive"] != "", "9999")
            spans = (table["ticker"] == ticker) & (table["from"] < left) & (ends > again)
            before = table.assign(to_exclusive=table["to_exclusive"].mask(spans, left))
            table = pd.concat([before, table[spans].assign(**{"from": again})], ignore_index=True)
    return table


def _key(name: str) -> str:
    """The name in small letters, without the marks that titles have: "S&P 500" is sp500."""
    return re.sub(r"[ &_-]", "", name.lower())
