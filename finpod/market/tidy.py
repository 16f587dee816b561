"""Reads frames, files and folders of any layout as tidy bars: one row per bar of an asset."""

from __future__ import annotations

import re
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.files import SNAPSHOT
from finpod.market.columns import NUMBERS
from finpod.market.layouts import Layout, ask_for_tickers, recognise
from finpod.market.long_bars import RepairLog
from finpod.market.parsing import decimal_mark, is_ticker, normal_ticker, parse_dates, parse_numbers, parse_tickers
from finpod.market.readers import KINDS, read_table

Source: TypeAlias = str | PathLike[str] | pd.DataFrame | pd.Series
"""Source of a market: a frame, or the path of a file or of a folder of files."""


def read_bars(
    source: Source,
    *,
    log: RepairLog | None = None,
    ticker: str | None = None,
    ticker_column: str | None = None,
    day_first: bool | None = None,
    decimal: str | None = None,
    calendar: str | None = None,
    name: str = "the frame",
) -> pd.DataFrame:
    """Return the bars of a frame, a file or a folder of files: one row per bar, sorted by date and ticker.

    The columns are `date` datetime64[ns], `ticker` categorical, and float64 fields of `NUMBERS`. A table may have any
    layout that `finpod.market.layouts.recognise` reads. The ticker of a table without tickers is `ticker`, or comes
    from the name of the file. In the second case, dates that repeat or change direction are an error, because the file
    may have several assets. Repeated rows are dropped. Different rows for one ticker and time are an error.

    `log` records how the source was read and which rows were dropped. Error messages call a frame `name`. The other
    arguments are those of `load_market`. Raises InputError for a source that does not exist, DataError for invalid
    content.
    """
    log = RepairLog() if log is None else log
    tidy = partial(_tidy, ticker_column=ticker_column, day_first=day_first, decimal=decimal, calendar=calendar)
    if isinstance(source, (pd.DataFrame, pd.Series)):
        return tidy(pd.DataFrame(source), name, log, ticker)
    if not isinstance(source, (str, PathLike)):
        raise InputError(f"path is of type {type(source).__name__}; give a file, a folder or a frame", argument="path")
    path = Path(source)
    if path.is_file():
        return tidy(path, path.name, log, ticker)
    if not path.is_dir():
        raise InputError(f"there is no market {path}; give a file, a snapshot folder or 'sample'", argument="market")
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in KINDS and not file.name.startswith("."))
    if not files:
        raise InputError(f"{path} has no {SNAPSHOT} and no parquet or CSV file; give another folder", argument="path")
    if ticker is not None:
        raise InputError(f"ticker={ticker} is for one file, and {path} is a folder; omit ticker=", argument="ticker")
    parts = {file.name: tidy(file, file.name, log, None) for file in files}
    sources: dict[str, list[str]] = {}
    for file, part in parts.items():
        if len(part["ticker"].cat.categories) == 1:
            sources.setdefault(part["ticker"].cat.categories[0], []).append(file)
    log.read(f"{ticker} joined from {' and '.join(of)}" for ticker, of in sources.items() if len(of) > 1)
    bars = pd.concat(parts.values(), ignore_index=True).astype({"ticker": object}).astype({"ticker": "category"})
    return _in_order(bars[["date", "ticker", *(field for field in NUMBERS if field in bars)]], log, path.name, parts)


def _tidy(
    source: pd.DataFrame | Path,
    name: str,
    log: RepairLog,
    ticker: str | None,
    ticker_column: str | None,
    day_first: bool | None,
    decimal: str | None,
    calendar: str | None,
) -> pd.DataFrame:
    """Return the tidy bars of one frame or file. The arguments are those of `read_bars`."""
    is_frame = isinstance(source, pd.DataFrame)
    frame = source if is_frame else read_table(source, decimal=decimal, ticker_column=ticker_column)
    layout = recognise(frame, name, ticker=ticker, ticker_column=ticker_column)
    mark = decimal_mark([(field, values) for (field, _), values in layout.numbers.items()], decimal, name)
    unnamed = ticker is None and layout.tickers is None and ("close", None) in layout.numbers
    if unnamed and is_frame:
        raise DataError(f"{name} has no column 'ticker'. {ask_for_tickers(layout.columns)}", argument="ticker")
    own_ticker = ticker_of(Path(name)) if unnamed else ticker
    dates = layout.dates
    if dates.empty:
        raise DataError(f"{name} has no bar, only column names; check how it was made")
    for times in (c.values.astype(str) for c in layout.columns if c.word == "time" and c.values is not layout.dates):
        text = dates.astype(str)
        if times.str.fullmatch(r"\d{1,2}:\d\d(:\d\d)?").all() and not text.str.contains(":").any():
            dates = text + " " + times
    one = None if layout.tickers is None else (codes := pd.factorize(layout.tickers)[0]) == pd.Series(codes).mode()[0]
    days, offsets, reading = parse_dates(dates, name, day_first, calendar, one)
    steps = np.diff(days).astype(np.int64)
    turns = (steps == 0) | ((steps < 0) != (steps[:1] < 0))
    if unnamed and turns.any():
        text = f"{name} has no tickers, and its dates repeat or change direction at {days[1:][turns][0]!s:.10}"
        raise DataError(f"{text}. {ask_for_tickers(layout.columns)}", argument="ticker_column")
    numbers = {(field, label or own_ticker): values for (field, label), values in layout.numbers.items()}
    labels = list(dict.fromkeys(label for _, label in numbers))
    tickers, respelled = _tickers_of(layout, labels, ticker, name)
    bars = pd.DataFrame({"date": np.repeat(days, len(labels)), "ticker": tickers})
    for field in sorted({field for field, _ in numbers}, key=NUMBERS.index):
        table = np.full((len(days), len(labels)), np.nan)  # [dates, tickers], which ravel() flattens date by date
        for at, label in enumerate(labels):
            if (field, label) in numbers:
                table[:, at] = parse_numbers(numbers[field, label], field, name, mark)
        bars[field] = table.ravel()
    log.offsets |= offsets
    log.read([reading, "numbers read with a decimal comma" if mark == "," else "", *layout.reading, respelled])
    return _in_order(bars, log, name, {})


def ticker_of(source: Path) -> str:
    """Return the ticker in the name of a file: AAPL for AAPL.csv, daily_AAPL.csv and AAPL_1d.csv.

    The name is split at _, spaces and commas. If exactly one part is in capitals, this part is the ticker; otherwise,
    the ticker is the whole name. Raises DataError if the result is not a valid ticker.
    """
    stem = re.sub(r"-\d+(s|m|h|d|w|mo)(-[\d-]+)?$", "", source.stem)  # BTCUSDT-1d-2024-01
    capitals = [part for part in re.split(r"[_ ,]", stem) if re.fullmatch(r"\^?[A-Z][A-Z0-9.=^-]*", part)]
    ticker = capitals[0] if len(capitals) == 1 else stem
    if not is_ticker(normal_ticker(ticker)):
        raise DataError(f"{ticker!r} cannot be a ticker; rename {source.name}, or give ticker=", argument="ticker")
    return ticker


def _tickers_of(layout: Layout, labels: list[Any], ticker: str | None, name: str) -> tuple[pd.Categorical, str]:
    """Return (tickers, sentence): the tickers of all bars, and a sentence on how tickers were respelled.

    A long table has one bar in each of its T rows. In another table, each row has the bars of N tickers, whose `labels`
    [N] are given. The result then has T * N tickers, row by row. `ticker` is the ticker that the user gave, or None.
    """
    is_long = layout.tickers is not None
    tickers, respelled = parse_tickers(layout.tickers if is_long else pd.Series(labels, dtype=object), name)
    if not is_long:
        if (again := pd.Series(tickers).duplicated(keep=False)).any():
            repeated = ", ".join(np.array(labels, dtype=object)[again])
            raise DataError(f"{name} has several columns for one ticker: {repeated}; keep one")
        tickers = tickers.take(np.tile(np.arange(len(labels)), len(layout.dates)))
    if ticker is not None:
        if len(tickers.categories) > 1:
            text = f"ticker is {ticker!r}, and {name} has {len(tickers.categories)} tickers; omit ticker="
            raise InputError(text, argument="ticker")
        return tickers.rename_categories(pd.Index([normal_ticker(ticker)], dtype=object)), ""
    changed = [f"{label} as {spelled}" for label, spelled in respelled.items()]
    more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
    return tickers, f"tickers in one spelling: {', '.join(changed[:5])}{more}" if changed else ""


def _in_order(bars: pd.DataFrame, log: RepairLog, name: str, parts: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the bars sorted by date and ticker, without repeated rows.

    Raises DataError, with the names of files in `parts` (name -> bars), for different bars of one ticker and time.
    """
    bars = bars.sort_values(["date", "ticker"], kind="stable", ignore_index=True)
    again = bars.duplicated(["date", "ticker"])
    if not again.any():
        return bars
    if (differs := again & ~bars.duplicated()).any():
        day, ticker = bars.loc[differs.idxmax(), ["date", "ticker"]]
        of = [file for file, part in parts.items() if (part["ticker"][part["date"] == day] == ticker).any()]
        where = f", in its files {' and '.join(of)}" if of else ""
        when = str(day).removesuffix(" 00:00:00")
        raise DataError(f"{name} has two different bars for {ticker} on {when}{where}; keep one of the two")
    dropped = bars[again]
    log.repair("duplicate rows dropped", dropped["ticker"], dropped["date"].to_numpy(), "bar", "given twice", "once")
    return bars[~again].reset_index(drop=True)
