"""Tidy bars: one row an asset and session, whatever table they come in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.market.columns import NUMBERS
from finpod.market.dates import parse_dates
from finpod.market.layouts import Layout, ask_for_tickers, recognise
from finpod.market.long_bars import RepairLog
from finpod.market.parsing import (
    Tickers,
    decimal_mark,
    is_text,
    normal_ticker,
    one_spelling,
    parse_numbers,
    parse_tickers,
)
from finpod.measures import Array

_LISTED = 5
"""Spellings that `RepairLog.reading` lists."""


def tidy_bars(
    frame: pd.DataFrame,
    *,
    log: RepairLog | None = None,
    ticker: str | None = None,
    ticker_column: str | None = None,
    name: str = "the frame",
    day_first: bool | None = None,
    decimal: str | None = None,
) -> pd.DataFrame:
    """One row a bar: `date` datetime64[ns], `ticker` categorical, float64 numbers, sorted by date and ticker.

    Takes every layout that `finpod.market.layouts.recognise` knows. `ticker` says whose bars a table without tickers
    holds, `ticker_column` which column holds the tickers. Rows given twice are dropped; two different rows for one name
    and day are an error. The `log` notes what was decided or changed. Raises DataError for what cannot be used.
    """
    layout = recognise(frame, name, ticker=ticker, ticker_column=ticker_column)
    if layout.one_name and ticker is None:
        raise DataError(f"{name} has no column ticker. {ask_for_tickers(layout.columns)}", argument="ticker")
    mark = mark_of(layout, decimal, name)
    return tidy_layout(layout, mark, RepairLog() if log is None else log, name, ticker=ticker, day_first=day_first)


def tidy_layout(
    layout: Layout,
    mark: str,
    log: RepairLog,
    name: str,
    *,
    ticker: str | None = None,
    file_ticker: str | None = None,
    day_first: bool | None = None,
) -> pd.DataFrame:
    """The tidy bars of a table whose layout is known (see `tidy_bars`); `mark` is the decimal mark.

    Bars of one name are those of `ticker`, or else of `file_ticker`. Without `ticker` their dates must neither repeat
    nor run back and forth, which several names in one table would.
    """
    if layout.dates.empty or not layout.numbers:
        raise DataError(f"{name} holds no bar; check the dates and the names that were asked for")
    dates = parse_dates(layout.dates, name, day_first)
    if layout.one_name and ticker is None:
        _check_order(dates.days, layout, name)
    tickers = _tickers_of(layout, ticker, file_ticker, name)
    tidy = pd.DataFrame({"date": np.repeat(dates.days, len(tickers.names) // len(dates.days)), "ticker": tickers.names})
    labels = list(dict.fromkeys(label for _, label in layout.numbers))
    for field in NUMBERS:
        if any(field == known for known, _ in layout.numbers):
            tables = np.full((len(dates.days), len(labels)), np.nan)  # date by date, where columns are tickers
            for at, label in enumerate(labels):
                if (field, label) in layout.numbers:
                    tables[:, at] = parse_numbers(layout.numbers[field, label], field, name, mark)
            tidy[field] = tables.ravel()
    log.offsets |= set(dates.offsets)
    log.read([dates.reading, "numbers read with a decimal comma" if mark == "," else "", *layout.reading])
    if ticker is None:
        log.read([_spellings(tickers, tidy["date"].to_numpy(), name)])
    return _in_order(tidy, log, name)


def mark_of(layout: Layout, decimal: str | None, name: str) -> str:
    """The decimal mark of a table's numbers (see `decimal_mark`)."""
    text = [(field, values) for (field, _), values in layout.numbers.items() if is_text(values)]
    return decimal_mark([values for _, values in text], [field == "volume" for field, _ in text], decimal, name)


def _check_order(days: Array, layout: Layout, name: str) -> None:
    """Raise DataError if the dates of a table without tickers repeat, or run back and forth."""
    steps = np.diff(days).astype(np.int64)
    backward = steps < 0
    if (steps != 0).all() and (backward.all() or not backward.any()):
        return
    again = pd.Series(days).duplicated().to_numpy()
    turn = int(np.argmax(backward != backward[0])) + 1
    fault = (
        f"repeat, such as {days[again][0]!s:.10}"
        if again.any()
        else f"run back and forth, such as at {days[turn]!s:.10}"
    )
    raise DataError(
        f"{name} has no column of tickers and dates that {fault}, so it may hold several names. "
        f"{ask_for_tickers(layout.columns)}",
        argument="ticker_column",
    )


def _tickers_of(layout: Layout, ticker: str | None, file_ticker: str | None, name: str) -> Tickers:
    """The tickers of all bars, [T] or [T * N]: those of the table, one name being called `ticker` where that is given."""
    if layout.tickers is not None:
        tickers = parse_tickers(layout.tickers, name)
    else:
        labels = list(dict.fromkeys(label or ticker or file_ticker for _, label in layout.numbers))
        columns = parse_tickers(pd.Series(labels, dtype=object), name)
        if len(columns.names.categories) < len(labels):
            twice = pd.Series(columns.names).duplicated(keep=False)
            one, other, *_ = (label for label, again in zip(labels, twice, strict=True) if again)
            raise DataError(f"{name} has the columns {one} and {other}, which are one name; keep one of them")
        order = np.tile(np.arange(len(labels)), len(layout.dates))
        tickers = Tickers(*(column.take(order) for column in columns))
    if ticker is None or layout.one_name:
        return tickers
    if len(tickers.names.categories) > 1:
        raise InputError(
            f"ticker is {ticker!r}, and {name} holds {len(tickers.names.categories)} names, such as "
            f"{' and '.join(tickers.names.categories[:2])}; leave ticker out",
            argument="ticker",
        )
    return Tickers(tickers.names.rename_categories([normal_ticker(ticker)]), tickers.written)


def _spellings(tickers: Tickers, days: Array, name: str) -> str:
    """What was respelled, as a sentence. Raises DataError if two spellings of one name have a bar on the same day."""
    spelling = one_spelling(tickers.written.categories)
    changed = [f"{label} as {ticker}" for label, ticker in spelling.items() if label != ticker]
    several = pd.Series(spelling).loc[lambda names: names.duplicated(keep=False)]
    rows = np.flatnonzero(np.isin(tickers.names.categories, several)[tickers.names.codes])
    bars = pd.DataFrame({"day": days[rows], "name": tickers.names[rows], "written": tickers.written[rows]})
    again = bars[bars.drop_duplicates().duplicated(["day", "name"]).reindex(bars.index, fill_value=False)]
    if len(again):
        day, ticker, _ = again.iloc[0]
        labels = " and ".join(several.index[several == ticker])
        raise DataError(
            f"{name}: {labels} are one name, {ticker}, and both have a bar on {day:%Y-%m-%d}; keep one of them"
        )
    more = f" and {len(changed) - _LISTED} more" if len(changed) > _LISTED else ""
    return f"names in one spelling: {', '.join(changed[:_LISTED])}{more}" if changed else ""


def join_bars(parts: Sequence[pd.DataFrame], name: str, files: Sequence[str], log: RepairLog) -> pd.DataFrame:
    """Several tables of tidy bars as one. `files` are the names of the parts.

    Raises DataError for two different bars of one name and day, naming the files.
    """
    spelling = one_spelling(label for part in parts for label in part["ticker"].cat.categories)
    categories = pd.Index(sorted(set(spelling.values())), dtype=object)
    respelled = []
    for part in parts:
        tickers = part["ticker"].cat
        codes = categories.get_indexer([spelling[label] for label in tickers.categories])[tickers.codes]
        respelled.append(part.assign(ticker=pd.Categorical.from_codes(codes, categories)))
    joined = pd.concat(respelled, ignore_index=True)
    part_of_row = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    holders: dict[str, list[str]] = {}
    for part, file in zip(parts, files, strict=True):
        if len(part["ticker"].cat.categories) == 1:
            holders.setdefault(part["ticker"].cat.categories[0], []).append(file)
    log.read(f"{ticker} joined from {' and '.join(of)}" for ticker, of in holders.items() if len(of) > 1)
    return _in_order(joined[["date", "ticker", *(c for c in NUMBERS if c in joined)]], log, name, part_of_row, files)


def _in_order(
    bars: pd.DataFrame, log: RepairLog, name: str, part_of_row: Array | None = None, files: Sequence[str] = ()
) -> pd.DataFrame:
    """The bars sorted by date and ticker, rows given twice once. Files of a folder have no order among each other."""
    day, code = bars["date"].to_numpy().astype(np.int64), bars["ticker"].cat.codes.to_numpy()
    if part_of_row is None:
        by_name = np.argsort(code, kind="stable")
        back = by_name[np.flatnonzero((np.diff(day[by_name]) < 0) & (np.diff(code[by_name]) == 0)) + 1]
        _repair(log, "rows put in order of date", bars, back, "row", back + 1, "in order")
        part_of_row = np.zeros(len(bars), dtype=np.int64)
    order = np.lexsort((code, day))
    if (np.diff(order) < 0).any():
        bars, part_of_row = bars.take(order).reset_index(drop=True), part_of_row[order]
    date, code = bars["date"].to_numpy(), bars["ticker"].cat.codes.to_numpy()
    again = np.r_[False, (date[1:] == date[:-1]) & (code[1:] == code[:-1])]
    if again.any():
        rows = np.flatnonzero(again)
        _check_alike(bars, rows, name, part_of_row, files)
        _repair(log, "duplicate rows dropped", bars, rows, "bar", "given twice", "once")
        bars = bars[~again].reset_index(drop=True)
    return bars


def _repair(
    log: RepairLog, kind: str, bars: pd.DataFrame, rows: Array, column: str, was: Array | str, became: str
) -> None:
    tickers = bars["ticker"].cat.categories.to_numpy()[bars["ticker"].cat.codes.to_numpy()[rows]]
    log.repair(kind, tickers, bars["date"].to_numpy()[rows], column, was, became)


def _check_alike(bars: pd.DataFrame, rows: Array, name: str, part: Array, files: Sequence[str]) -> None:
    """Raise DataError if a row differs from the row above it, which has the same name and day."""
    numbers = bars.columns[2:]
    one, other = bars[numbers].to_numpy()[rows], bars[numbers].to_numpy()[rows - 1]
    differs = ~((one == other) | (np.isnan(one) & np.isnan(other))).all(axis=1)
    if differs.any():
        row = rows[int(np.argmax(differs))]
        first, second = sorted(part[[row - 1, row]])
        where = f" in its files {files[first]} and {files[second]}" if files and first != second else ""
        raise DataError(
            f"{name} has two different bars for {bars['ticker'].iloc[row]} on {bars['date'].iloc[row]:%Y-%m-%d}{where}; "
            "finpod needs one bar a name and session"
        )
