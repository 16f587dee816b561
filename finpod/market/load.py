"""Loads markets from files, folders, frames and the bundled sample. Saves and loads snapshots of a market."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from finpod.errors import DataError, InputError, first_line
from finpod.files import SNAPSHOT, locked, new_folder, to_json, write_text
from finpod.market.cleaning import NO_BENCHMARK, NO_CALENDAR, build_market, package_versions
from finpod.market.data import SERIES, MarketData
from finpod.market.extra import PREFIX, ExtraData
from finpod.market.extra_tables import Extra, with_extra
from finpod.market.long_bars import RepairLog
from finpod.market.parsing import normal_ticker
from finpod.market.renames import Renames, join_renamed
from finpod.market.tidy import Source, read_bars
from finpod.market.universe import AUTO, Members, benchmark_and_calendar, find_index, resolve_members
from finpod.periods import DEFAULT, check_periods

SAMPLE = "sample"
"""`load_market` returns `sample_market()` for this name."""
FORMAT = 1
BARS = "bars.parquet"
SHARED = "extra_shared"
"""Key of a snapshot's manifest: names of the extra columns that have one value per date, the same for all tickers."""


def load_market(
    path: Source,
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
    """Return a market from a parquet or CSV file, a frame, a folder of files, a snapshot folder, or "sample".

    A table may have any layout that `finpod.market.layouts.recognise` reads. `ticker` is the ticker of a table without
    tickers. `ticker_column` is the label of the column of tickers. `day_first` and `decimal` decide how ambiguous dates
    and numbers are read. Tickers are normalised (see `normal_ticker`). Prices are adjusted for splits and dividends.
    Impossible values are masked or repaired (see `finpod.market.cleaning.build_market`).

    members : name of an index (`finpod.market.universe.INDEXES`: nasdaq100, sp500, dow30, csi300, csi500), CSV with the
        columns 'ticker', 'from' and 'to_exclusive', list of tickers, or None. None makes every asset a member at all
        times (survivorship bias). `manifest["missing"]` lists the members without prices. If `members` is a list,
        members without prices raise InputError unless `allow_missing` is True.
    benchmark : ticker of the benchmark, or None. "auto" takes the benchmark of the index, or QQQ without an index.
    calendar : name in exchange_calendars, or None to keep every date. "auto" takes the calendar of the index, or XNYS
        without an index. Bars on days without a session, and intraday bars outside the hours of their session, are
        dropped. `manifest["repairs"]` counts dropped bars. Weekly and longer bars may have any date.
    now : time, with a time zone. Bars of a session that is not over at this time are dropped. None means the present.
    renames : mapping such as {"FB": "META"}, or CSV with the columns old, new and optionally date. The bars of a
        renamed listing are joined under its newest symbol, by these and by bundled renames (see `join_renamed`).
    extra : the user's tables, which become columns of the market. A value is used from the first row at which it was
        known (see `finpod.market.extra_tables.with_extra`).
    periods_per_year : bars per year, by default measured from the dates (see `finpod.periods`).

    Raises InputError for missing files and wrong arguments, DataError for unusable content.
    """
    check_periods(DEFAULT if periods_per_year is None else periods_per_year)
    arguments = dict(locals())
    reading: dict[str, Any] = {"day_first": day_first, "decimal": decimal}
    name = Path(path).name if isinstance(path, (str, PathLike)) else "the frame"
    membership = resolve_members(members, f"chosen from {name}", day_first)
    benchmark, calendar = benchmark_and_calendar(benchmark, calendar, membership)
    if isinstance(path, (str, PathLike)) and (str(path) == SAMPLE or (Path(path) / SNAPSHOT).is_file()):
        market = _whole(arguments)
    else:
        log = RepairLog()
        bars = read_bars(path, log=log, ticker=ticker, ticker_column=ticker_column, calendar=calendar, **reading)
        bars, joins = join_renamed(bars, renames, name, log, day_first)
        benchmark = None if benchmark is None else normal_ticker(benchmark)
        for rename in joins:
            benchmark = rename.new if benchmark == rename.old else benchmark
            membership = membership and membership.renamed(rename)
        is_list = not isinstance(members, (str, PathLike))
        if is_list and membership is not None:
            bars = bars[bars["ticker"].isin([benchmark, *membership.spelled_as(bars["ticker"].cat.categories).tickers])]
            bars = bars.assign(ticker=bars["ticker"].cat.remove_unused_categories())
        market = build_market(
            bars,
            membership=membership,
            benchmark=benchmark,
            manifest={"source": "file", "title": name, "path": name}
            | ({"renamed": {rename.old: rename.new for rename in joins}} if joins else {})
            | {"renamed_until": {one.old: f"{one.day!s:.10}" for one in joins if one.day}},
            log=log,
            name=name,
            allow_missing=allow_missing or not is_list or members is None,
            calendar=calendar,
            periods_per_year=periods_per_year,
            now=now,
        )
    calendar = market.manifest.get("calendar", calendar)
    calendar = None if calendar == NO_CALENDAR else calendar
    return replace(with_extra(market, extra, calendar=calendar, **reading), origin=_origin(arguments))


def _origin(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the non-default arguments of `load_market` with absolute paths; {} if one is not JSON, such as a frame."""
    defaults = inspect.signature(load_market).parameters
    origin = {name: value for name, value in arguments.items() if value is not defaults[name].default}
    for name in origin.keys() & {"path", "members", "renames", "extra"}:
        value = origin[name]
        if name == "extra" and isinstance(value, (list, tuple)):
            origin[name] = [_absolute(part) for part in value]
        elif not (name == "members" and find_index(str(value))):
            origin[name] = _absolute(value)
    try:
        json.dumps(origin)
    except TypeError:  # an argument is a frame or a time
        return {}
    return origin


def _absolute(value: Any) -> Any:
    """Return the path of an existing file or folder as an absolute path, and other values unchanged."""
    is_path = isinstance(value, (str, PathLike)) and str(value) != SAMPLE and Path(value).exists()
    return str(Path(value).absolute()) if is_path else value


def _whole(arguments: Mapping[str, Any]) -> MarketData:
    """Return the sample or a snapshot. Raises InputError for arguments of `load_market` that its content rules out."""
    path, extra, periods = (arguments[name] for name in ("path", "extra", "periods_per_year"))
    parsing = ("day_first", "decimal") if extra is None else ()
    for argument in ("members", "renames", "ticker", "ticker_column", *parsing):
        if arguments[argument] is not None:
            raise InputError(f"{path} has fixed members, tickers and values; omit the argument {argument}=", argument)
    market = sample_market() if str(path) == SAMPLE else load_snapshot(path)
    benchmark, calendar = arguments["benchmark"] or NO_BENCHMARK, arguments["calendar"] or NO_CALENDAR
    own = market.manifest.get("calendar", NO_CALENDAR if extra is None else calendar)
    for argument, given, has in (("benchmark", benchmark, market.benchmark), ("calendar", calendar, own)):
        if given != AUTO and has not in (given, normal_ticker(given)):
            raise InputError(f"{path} has {argument} {has!r}, not {given!r}; omit the argument {argument}=", argument)
    return market if periods is None else replace(market, periods_per_year=periods, sessions_per_year=None)  # type: ignore[arg-type]


def sample_market() -> MarketData:
    """Return adjusted daily closes of twenty large US stocks, 1990-01-02 to 2022-12-28, from the data of skfolio.

    The benchmark is the S&P 500 price index, which leaves out dividends. All companies still existed in 2022
    (survivorship bias). The manifest states both facts. They make every strategy look better than it is.
    """
    from skfolio.datasets import load_sp500_dataset, load_sp500_index

    prices = load_sp500_dataset()
    first, last = (f"{prices.index[row]:%Y-%m-%d}" for row in (0, -1))
    stocks = f"{prices.shape[1]} large US stocks"
    return MarketData(
        dates=prices.index.to_numpy(),
        tickers=tuple(map(str, prices.columns)),
        close=prices.to_numpy(dtype=float),
        benchmark="S&P 500 price index (dividends left out)",
        benchmark_close=load_sp500_index()["SP500"].reindex(prices.index).to_numpy(dtype=float),
        manifest={
            "source": "sample",
            "title": f"bundled sample: {stocks}, {first} to {last}, adjusted daily closes (skfolio)",
            "path": "sample",
            "benchmark_kind": "price return",
            "membership": f"static list of {stocks}, all of them survivors to {last}",
            "survivorship": True,
            "missing": [],
            "coverage": {str(year): 1.0 for year in sorted(set(prices.index.year))},
            "repairs": [],
            "suspicions": [],
            "notes": [],
            "versions": package_versions("skfolio"),
        },
        origin={"path": "sample"},
    )


def save_snapshot(market: MarketData, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Write the market to `folder` atomically and return the folder.

    `bars.parquet` has one row per date and ticker, date by date, with NaN where there is no bar. Prices of the
    benchmark, and extra columns with one value for all tickers, are repeated on every row of a date. Concurrent writers
    wait for each other. Raises InputError if the folder cannot be written, or if it exists. With `overwrite`, an
    existing snapshot is replaced.
    """
    days, assets = market.shape
    tickers = np.tile(np.arange(assets, dtype=np.int32), days)
    columns: dict[str, Any] = {
        "date": np.repeat(market.dates, assets),
        "ticker": pa.DictionaryArray.from_arrays(tickers, list(market.tickers)),
    }
    tables = market.tables | {f"{PREFIX}{name}": table for name, table in market.extra.tables.items()}
    columns |= {name: np.repeat(table, assets) if table.ndim == 1 else table.ravel() for name, table in tables.items()}
    shared = [name for name in market.extra.names if market.extra.is_shared(name)]
    content = {
        "format": FORMAT,
        "hash": market.content_hash,
        "created": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "source": market.manifest.get("source", ""),
        "sessions": days,
        "tickers": list(market.tickers),
        "last_bar": [str(day) for day in market.last_bar],
        "benchmark": market.benchmark,
        **({SHARED: shared} if shared else {}),
        **market.frequency,
        "market": dict(market.manifest),
        "versions": package_versions(),
    }
    target = Path(folder)
    with suppress(OSError):  # if this fails, the write below fails as well and names the path
        target.parent.mkdir(parents=True, exist_ok=True)
    # The lock keeps other processes from reading or replacing the folder meanwhile.
    with locked(target.parent), new_folder(target, overwrite=overwrite) as fresh:
        pq.write_table(pa.table(columns), fresh / BARS, compression="zstd")
        write_text(fresh / SNAPSHOT, to_json(content))
    return target


def load_snapshot(folder: str | Path) -> MarketData:
    """Return the market of a snapshot folder. Wait while another process is writing the snapshot.

    Raises InputError for a folder without a snapshot. Raises DataError for a snapshot that is damaged, does not match
    the hash in its manifest, or has another format.
    """
    source = Path(folder)
    with locked(source.parent, shared=True):
        if not (source / SNAPSHOT).is_file():
            raise InputError(
                f"{source} is not a snapshot (no {SNAPSHOT}); give a snapshot folder, or read a file with load_market"
            )
        try:
            content = json.loads((source / SNAPSHOT).read_text())
            if content["format"] != FORMAT:
                raise ValueError(f"it is in format {content['format']}, not {FORMAT}")
            market = _assemble(content, pq.read_table(source / BARS))
            if market.content_hash != content["hash"]:
                raise ValueError(f"its content does not match the hash {content['hash']:.12} in its manifest")
        except (OSError, ValueError, KeyError, TypeError) as error:
            text = f"snapshot {source} is damaged or of another version ({first_line(error)})"
            raise DataError(f"{text}; fetch or import the data again") from error
    return market


def _assemble(content: dict[str, Any], table: pa.Table) -> MarketData:
    """Return the market of a snapshot: `content` is its manifest, and `table` has its bars."""
    shape = content["sessions"], len(content["tickers"])
    series = {"date", *SERIES, *(f"{PREFIX}{name}" for name in content.get(SHARED, ()))}
    tables: dict[str, Any] = {name: content.get(name) for name in ("periods_per_year", "sessions_per_year")}
    for name in table.drop_columns("ticker").column_names:
        values = table[name].to_numpy().reshape(shape)
        tables[name] = values[:, 0] if name in series else values
    extra = {name.removeprefix(PREFIX): tables.pop(name) for name in list(tables) if name.startswith(PREFIX)}
    return MarketData(
        dates=tables.pop("date"),
        tickers=tuple(content["tickers"]),
        benchmark=content["benchmark"],
        last_bar=np.array(content["last_bar"], dtype="datetime64[ns]"),
        manifest=content["market"],
        extra=ExtraData(extra, shape[1]),
        **tables,
    )
