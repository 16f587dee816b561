"""Where markets come from: `load_market` for files, folders, snapshots and the sample, `sample_market`, `fetch_market`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from finpod.errors import InputError
from finpod.files import SNAPSHOT
from finpod.market.cleaning import NO_BENCHMARK, NO_CALENDAR, build_market
from finpod.market.data import MarketData
from finpod.market.extra_tables import Extra, with_extra
from finpod.market.indexes import AUTO, Index, index_members, index_named, is_index, settled
from finpod.market.joins import join_renamed, newest_symbol
from finpod.market.long_bars import RepairLog
from finpod.market.parsing import normal_ticker
from finpod.market.readers import read_bars
from finpod.market.renames import Rename, Renames
from finpod.market.sample import sample_market
from finpod.market.store import load_snapshot
from finpod.market.tidy import tidy_bars
from finpod.market.universe import Membership, read_members, static_members
from finpod.market.yahoo import fetch_market
from finpod.periods import DEFAULT, check_periods

__all__ = ["fetch_market", "load_market", "sample_market"]

Members = str | PathLike[str] | Sequence[str] | None

SAMPLE = "sample"
"""The name under which `load_market` returns `sample_market()`."""
PATHS = ("path", "members", "renames", "extra")
"""Arguments of `load_market` that may be paths."""


def load_market(
    path: str | PathLike[str] | pd.DataFrame | pd.Series,
    *,
    members: Members = None,
    benchmark: str | None = AUTO,
    allow_missing: bool = False,
    ticker: str | None = None,
    ticker_column: str | None = None,
    calendar: str | None = AUTO,
    periods_per_year: float | None = None,
    day_first: bool | None = None,
    decimal: str | None = None,
    renames: Renames = None,
    now: datetime | None = None,
    extra: Extra = None,
) -> MarketData:
    """Bars from a parquet or CSV file (or a frame), a folder of such files, a snapshot folder, or the word "sample".

    Tables may have any layout that `finpod.market.layouts.recognise` knows. `ticker` says whose bars a table without
    tickers holds, `ticker_column` which column holds the tickers. Tickers have one spelling (see
    `finpod.market.parsing.normal_ticker`) in the bars, the members and the benchmark. Prices are adjusted for splits and
    dividends once, and repaired or masked where they cannot be right (see `finpod.market.cleaning.build_market`). The rows
    of the ticker `benchmark` become the benchmark; None goes without one. `members` is a CSV with the columns ticker,
    from, to_exclusive; or the name of an index (`finpod.market.indexes.INDEXES`: nasdaq100, sp500, dow30, csi300, csi500);
    or a list of tickers; or None, which takes every name for all time (survivorship!). Members of an index without prices
    are left out and named in `manifest["missing"]`; a name of a list without prices is an error unless `allow_missing`.
    Rows that are no session of the exchange `calendar` (a name of exchange_calendars; None: every date counts), or whose
    session is not over at `now` (aware; None: this moment), are dropped and counted. "auto" takes the benchmark and the
    calendar of the index that `members` names, and QQQ and XNYS without one.
    The bars of a renamed listing become one series under its newest symbol, by a bundled table and by `renames`: a mapping
    such as {"FB": "META"}, or a CSV with the columns old, new and perhaps date (see `finpod.market.joins.join_renamed`).
    The columns of the tables `extra` become columns of the market, each value from the day on which it was known (see
    `finpod.market.extra_tables.with_extra`); `day_first` and `decimal` hold for these tables as well.
    Bars whose spacing is weekly or longer may have any date. `periods_per_year` is measured from the dates (see
    `finpod.periods`); a number given in its place is used, and a note tells where the dates contradict it.
    Raises InputError for what cannot be found and DataError for content that cannot be used.
    """
    check_periods(DEFAULT if periods_per_year is None else periods_per_year)
    origin = _origin(dict(locals()))
    index = _index_of(members)
    path = path.to_frame() if isinstance(path, pd.Series) else path
    if isinstance(path, (str, PathLike)) and (str(path) == SAMPLE or (Path(path) / SNAPSHOT).is_file()):
        market = _whole(str(path), members, benchmark, renames, periods_per_year)
        sessions = market.manifest.get("calendar", settled(benchmark, calendar, index)[1])
        calendar = None if sessions == NO_CALENDAR else sessions
        market = with_extra(market, extra, calendar=calendar, day_first=day_first, decimal=decimal)
        return replace(market, origin=origin)
    benchmark, calendar = settled(benchmark, calendar, index)
    reading = {"ticker": ticker, "ticker_column": ticker_column, "day_first": day_first, "decimal": decimal}
    log = RepairLog()
    name, bars = _named_bars(path, log=log, **reading)
    bars, joins = join_renamed(bars, renames, name, log)
    if benchmark is not None:
        benchmark = newest_symbol(normal_ticker(benchmark, bars["ticker"].cat.categories), joins)
    listed = members is not None and not isinstance(members, str) and isinstance(members, Sequence)
    membership = _membership(members, index, name, joins)
    if listed and membership is not None:
        wanted = {benchmark, *membership.spelled_as(bars["ticker"].cat.categories).tickers}
        bars = bars[bars["ticker"].isin(list(wanted))]
        bars = bars.assign(ticker=bars["ticker"].cat.remove_unused_categories())
    market = build_market(
        bars,
        membership=membership,
        benchmark=benchmark,
        manifest={"source": "file", "title": name, "path": name}
        | ({"renamed": {rename.old: rename.new for rename in joins}} if joins else {}),
        log=log,
        name=name,
        allow_missing=allow_missing or not listed,
        calendar=calendar,
        periods_per_year=periods_per_year,
        now=now,
    )
    market = with_extra(market, extra, calendar=calendar, day_first=day_first, decimal=decimal)
    return replace(market, origin=origin)


def _named_bars(path: str | PathLike[str] | pd.DataFrame, **reading: Any) -> tuple[str, pd.DataFrame]:
    """What messages call a frame, file or folder, and its tidy bars; `reading` are arguments of `read_bars`."""
    if isinstance(path, pd.DataFrame):
        return "the frame", tidy_bars(path, **reading)
    if not isinstance(path, (str, PathLike)):
        raise InputError(f"path is a {type(path).__name__}; give a file, a folder or a frame", argument="path")
    return Path(path).name, read_bars(path, **reading)


def _origin(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those arguments of `load_market` that are not its defaults, paths absolute; empty if one of them is not plain."""
    defaults = inspect.signature(load_market).parameters
    origin: dict[str, Any] = {}
    for argument, value in arguments.items():
        if value is defaults[argument].default:
            continue
        if argument == "renames" and isinstance(value, Mapping):
            origin[argument] = dict(value)
            continue
        if argument == "members" and isinstance(value, str) and is_index(value):  # whatever lies here under its name
            origin[argument] = value
            continue
        many = list(value) if isinstance(value, (list, tuple)) else [value]
        if not all(one is None or isinstance(one, (str, int, float, PathLike)) for one in many):
            return {}
        many = [_absolute(one) if argument in PATHS else one for one in many]
        origin[argument] = many if isinstance(value, (list, tuple)) else many[0]
    return origin


def _absolute(value: Any) -> Any:
    """A path that exists as an absolute one; anything else as it is."""
    is_path = isinstance(value, (str, PathLike)) and str(value) != SAMPLE and Path(value).exists()
    return str(Path(value).absolute()) if is_path else value


def _index_of(members: Members) -> Index | None:
    """The index that `members` names; None if it is something else. Raises InputError for an unknown one."""
    if not isinstance(members, str):
        return None
    is_name = is_index(members) or ("." not in members and not Path(members).exists())
    return index_named(members) if is_name else None


def _membership(members: Members, index: Index | None, name: str, joins: Sequence[Rename]) -> Membership | None:
    """The membership that `members` describes, under the symbols of the bars after the `joins`."""
    if members is None:
        return None
    if index is not None:
        membership = index_members(index.name)
    elif isinstance(members, Sequence) and not isinstance(members, str):
        count = len({normal_ticker(ticker) for ticker in members})
        membership = static_members(members, sentence=f"static list of {count} names chosen from {name}")
    else:
        membership = read_members(members)
    for rename in joins:
        membership = membership.renamed(rename)
    return membership


def _whole(
    path: str, members: object, benchmark: str | None, renames: object, periods_per_year: float | None
) -> MarketData:
    """The sample or a snapshot: a market with its own members, names and benchmark."""
    for argument, value in (("members", members), ("renames", renames)):
        if value is not None:
            raise InputError(f"{path} carries its own members and names; leave {argument} out")
    market = sample_market() if path == SAMPLE else load_snapshot(path)
    benchmark = market.benchmark if benchmark == AUTO else benchmark or NO_BENCHMARK
    if market.benchmark not in (benchmark, normal_ticker(benchmark)):
        raise InputError(
            f"{path} has the benchmark {market.benchmark}, not {benchmark}; leave benchmark out", argument="benchmark"
        )
    return market if periods_per_year is None else market.with_periods(periods_per_year)
