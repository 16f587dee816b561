"""Price files: parquet or CSV of any layout, alone or in a folder, as tidy bars."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from finpod.errors import DataError, InputError, first_line
from finpod.files import SNAPSHOT
from finpod.market.columns import DESCRIPTIONS, TICKERS, is_unnamed, is_word, word
from finpod.market.headers import header_of
from finpod.market.long_bars import RepairLog
from finpod.market.parsing import BLANK, is_ticker, normal_ticker
from finpod.market.tidy import join_bars, tidy_bars

KINDS = (".parquet", ".csv")
_HEAD = 1 << 16
"""Bytes in which the separator and header of a CSV are looked for."""
_LINES = 40
"""Lines in which the header is looked for."""
_SEPARATORS = ",;\t|"
_TEXT = pa.dictionary(pa.int32(), pa.string())
_BLANK = sorted({form for text in BLANK for form in (text, text.upper(), text.title(), "NaN")})


def read_bars(
    path: str | PathLike[str],
    *,
    log: RepairLog | None = None,
    ticker: str | None = None,
    ticker_column: str | None = None,
    day_first: bool | None = None,
    decimal: str | None = None,
) -> pd.DataFrame:
    """Return the tidy bars of a parquet or CSV file, or of all such files of a folder (see `finpod.market.tidy.tidy_bars`).

    The bars of a file without tickers are those of `ticker`, or of the ticker in its name. `ticker_column` is the label of
    the column of tickers, if it is not a usual one. `day_first` and `decimal` decide what the dates and numbers leave
    open. Raises InputError for what cannot be found and DataError for what cannot be used.
    """
    source, log = Path(path), RepairLog() if log is None else log
    options: dict[str, Any] = {"ticker_column": ticker_column, "day_first": day_first, "decimal": decimal}
    if source.is_dir():
        files = sorted(p for p in source.iterdir() if p.suffix.lower() in KINDS and not p.name.startswith("."))
        if not files:
            text = f"{source} holds no snapshot (no {SNAPSHOT}) and no parquet or CSV file; give a folder that has one"
            raise InputError(text, argument="path")
        if ticker is not None:
            text = f"ticker={ticker} is for one file, and {source} is a folder; name each file after its ticker"
            raise InputError(text, argument="ticker")
        parts = [read_bars(file, log=log, **options) for file in files]
        return join_bars(parts, source.name, [file.name for file in files], log)
    if not source.is_file():
        text = f"there is no market {source}; give a parquet or CSV file, a snapshot folder or 'sample'"
        raise InputError(text, argument="market")
    return tidy_bars(
        read_table(source, ticker_column=ticker_column),
        log=log,
        ticker=ticker,
        name=source.name,
        reread=lambda: read_table(source, decimal=",", ticker_column=ticker_column),
        file_ticker=lambda: ticker_of(source),
        **options,
    )


def read_table(source: Path, *, decimal: str = ".", ticker_column: str | None = None) -> pd.DataFrame:
    """Return one parquet or CSV file as a frame. Parquet keeps pandas' index; tickers in a CSV stay text.

    A CSV may be separated by commas, semicolons, tabs or bars, begin with a byte-order mark or titles, and have a header of
    two levels: a line with a close above a line of tickers, or a line of fields below one of tickers. Raises InputError for
    other kinds of files and DataError for unreadable ones.
    """
    kind = source.suffix.lower()
    if kind not in KINDS:
        raise InputError(f"{source.name} is neither .parquet nor .csv; convert it to one of them, one row a bar")
    try:
        return _read_parquet(source) if kind == ".parquet" else _read_csv(source, decimal, ticker_column)
    except (OSError, TypeError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{source.name} cannot be read ({first_line(error)}); fetch or export it again") from error


def read_text_table(source: Path, columns: Sequence[str], kind: str, entry: str, *, argument: str) -> pd.DataFrame:
    """Return a small CSV, separated by commas or semicolons, as stripped text ("" for empty cells) with lower-case labels.

    Errors call the file `kind`, one of its rows `entry`, and are about `argument`. Raises InputError for a missing file and
    DataError for a file that is no CSV, lacks one of `columns` or has no row.
    """
    needed = ", ".join(columns)
    if not source.is_file():
        raise InputError(f"there is no {kind} {source}; give a CSV with the columns {needed}", argument=argument)
    try:
        text = source.read_text(encoding="utf-8-sig")
        head = text.partition("\n")[0]
        separator = ";" if head.count(";") > head.count(",") else ","
        table = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False, sep=separator)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        reason = first_line(error)
        raise DataError(f"{source.name} is not a CSV ({reason}); it needs the columns {needed}") from error
    table = table.rename(columns=lambda label: str(label).strip().lower()).apply(
        lambda column: column.fillna("").str.strip()
    )
    missing = [label for label in columns if label not in table]
    if missing or table.empty:
        fault = f"has no column {missing[0]}" if missing else f"holds no {entry}"
        raise DataError(f"{source.name} {fault}; a {kind} has the columns {needed}")
    return table


def ticker_of(source: Path) -> str:
    """Return the ticker in the name of a file: AAPL for AAPL.csv, daily_AAPL.csv and AAPL_1d.csv.

    It is the only part in capitals, of those separated by _, a space or a comma, or else the whole name. Raises DataError if
    that is not a valid ticker.
    """
    parts = re.split(r"[_ ,]", source.stem)
    capitals = [part for part in parts if re.fullmatch(r"\^?[A-Z][A-Z0-9.=^-]*", part)]
    ticker = capitals[0] if len(capitals) == 1 else source.stem
    if not is_ticker(normal_ticker(ticker)):
        raise DataError(
            f"{source.name} has no column of tickers, and {ticker!r} cannot be one; give ticker=, or name the file for it",
            argument="ticker",
        )
    return ticker


def _read_parquet(source: Path) -> pd.DataFrame:
    """Return a parquet file as a frame with its index."""
    try:
        return pd.read_parquet(source)
    except TypeError:  # pandas wrote the names of dtypes that it cannot read: of Arrow, and categorical labels
        table = pq.read_table(source)
        metadata = table.schema.pandas_metadata
        for entry in (*metadata["columns"], *metadata["column_indexes"]):
            if entry["numpy_type"].endswith("[pyarrow]") or entry["pandas_type"] == "categorical":
                entry |= {"pandas_type": "unicode", "numpy_type": "object"}
        return table.replace_schema_metadata({"pandas": json.dumps(metadata)}).to_pandas()


def _read_csv(source: Path, decimal: str, ticker_column: str | None) -> pd.DataFrame:
    """Return a CSV as a frame. Columns of numbers and words for missing values are numeric, others text."""
    from pyarrow import csv as arrow_csv

    lines = _first_lines(source)
    separator = next((max(_SEPARATORS, key=line.count) for _, line in lines if set(line) & set(_SEPARATORS)), ",")
    header = header_of(
        [(at, [cell.strip() for cell in next(csv.reader([line], delimiter=separator))]) for at, line in lines]
    )
    names = [str(at) for at in range(len(header.labels))]
    options = arrow_csv.ConvertOptions(
        null_values=_BLANK,
        true_values=[],
        false_values=[],
        timestamp_parsers=["none"],  # a stamp keeps its offset as text
        decimal_point=decimal,
        column_types={
            name: _TEXT
            for name, label in zip(names, header.labels, strict=True)
            if header.levels is None and (_stays_text(label) or word(label) == word(ticker_column))
        },
    )
    table = arrow_csv.read_csv(
        source,
        read_options=arrow_csv.ReadOptions(column_names=names, skip_rows=header.lines),
        parse_options=arrow_csv.ParseOptions(delimiter=separator),
        convert_options=options,
    )
    frame = table.to_pandas(date_as_object=False)
    if header.levels is None:
        return frame.set_axis(header.labels, axis=1)
    return frame.set_axis(pd.MultiIndex.from_tuples(header.labels, names=header.levels), axis=1)


def _stays_text(label: str) -> bool:
    """Return True for a column of a CSV to read as text: dates, and possible tickers, which may have leading zeros."""
    return is_unnamed(label) or is_word(label, TICKERS, DESCRIPTIONS, ("date", "datetime", "timestamp"))


def _first_lines(source: Path) -> list[tuple[int, str]]:
    """Return the first lines that are not blank, with their numbers. Raises ValueError for files that are not text."""
    with source.open("rb") as stream:
        head = stream.read(_HEAD)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("it is in UTF-16; save it as UTF-8")
    if b"\0" in head:
        raise ValueError("it is not text")
    text = head.decode("utf-8-sig", errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    lines = [(at, line) for at, line in enumerate(text.split("\n")) if line.strip()]
    if not lines:
        raise ValueError("it is empty")
    if lines[0][1].lstrip().lower().startswith(("<!doctype", "<html", "<?xml", "{", "[{")):
        raise ValueError("it holds HTML or JSON and no table")
    return lines[:_LINES]
