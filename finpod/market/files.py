"""Price files as they come: long, wide or one name each, as parquet or CSV, alone or in a folder; read, not yet judged."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa

from finpod.errors import DataError, InputError, first_line
from finpod.market.columns import canonical_columns
from finpod.market.parsing import is_ticker

KINDS = (".parquet", ".csv")
_HEAD = 1 << 16
"""Bytes from which a CSV's separator and header are read."""
_SEPARATORS = ",;\t|"
_BLANK = ["", "NaN", "nan", "null", "NULL", "N/A", "n/a", "#N/A"]


class _Header(NamedTuple):
    """The first two lines of a CSV."""

    separator: str
    columns: list[str]
    two_levels: bool
    """Whether the second line belongs to the header, as in the tables that yfinance gives."""


def read_table(source: Path, *, decimal: str = ".") -> pd.DataFrame:
    """One parquet or CSV file as it is; dates and tickers of a CSV stay text.

    A CSV may be separated by commas, semicolons, tabs or bars, start with a byte-order mark, and have a header of two
    lines (field and ticker). Raises InputError for another kind of file and DataError for one that cannot be read.
    """
    kind = source.suffix.lower()
    if kind not in KINDS:
        raise InputError(f"{source.name} is neither .parquet nor .csv; convert it to one of them, one row a bar")
    try:
        return pd.read_parquet(source) if kind == ".parquet" else _read_csv(source, decimal)
    except (OSError, ValueError, UnicodeDecodeError, pa.ArrowException, pd.errors.ParserError) as error:
        reason = first_line(error)
        raise DataError(f"{source.name} cannot be read ({reason}); fetch or export it again") from error


def read_text_table(source: Path, columns: Sequence[str], kind: str, entry: str, *, argument: str) -> pd.DataFrame:
    """A small CSV, separated by commas or semicolons, as stripped text ("" where a cell is empty), with lower-case labels.

    `columns` must be there; `kind` names the file in errors, `entry` one of its rows, and `argument` the argument it was given
    as. Raises InputError for a missing file and DataError for one that is no CSV, lacks a column or has no row.
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


def files_of(folder: Path) -> list[Path]:
    """The parquet and CSV files of a folder, sorted by name; hidden ones are left out."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in KINDS and not p.name.startswith("."))


def ticker_of(source: Path) -> str:
    """The ticker that a file is named for: AAPL.csv, daily_AAPL.csv and AAPL_1d.csv hold AAPL.

    The one part in capitals among those that _ or a space separate, else the whole name. Raises DataError if that could
    not be a ticker.
    """
    parts = re.split(r"[_ ]", source.stem)
    capitals = [part for part in parts if re.fullmatch(r"\^?[A-Z][A-Z0-9.=^-]*", part)]
    ticker = capitals[0] if len(capitals) == 1 else source.stem
    if not is_ticker(ticker):
        raise DataError(
            f"{source.name} has no column of tickers, and {ticker!r} cannot be one; give ticker=", argument="ticker"
        )
    return ticker


def _read_csv(source: Path, decimal: str) -> pd.DataFrame:
    header = _header(source)
    if header.two_levels:
        return pd.read_csv(
            source, sep=header.separator, header=[0, 1], index_col=0, encoding="utf-8-sig", decimal=decimal
        )
    from pyarrow import csv as arrow_csv

    text = pa.dictionary(pa.int32(), pa.string())
    names = canonical_columns(header.columns)
    table = arrow_csv.read_csv(
        source,
        parse_options=arrow_csv.ParseOptions(delimiter=header.separator),
        convert_options=arrow_csv.ConvertOptions(
            null_values=_BLANK,
            decimal_point=decimal,
            column_types={
                label: text for label, name in zip(header.columns, names, strict=True) if name in ("date", "ticker")
            },
        ),
    )
    return table.to_pandas()


def _header(source: Path) -> _Header:
    with source.open("rb") as stream:
        head = stream.read(_HEAD)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("it is in UTF-16; save it as UTF-8")
    if b"\0" in head:
        raise ValueError("it is not text")
    lines = head.decode("utf-8-sig", errors="replace").splitlines()[:2]
    if not any(lines):
        raise ValueError("it is empty")
    separator = max(_SEPARATORS, key=lines[0].count)
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=separator)]
    below = rows[1][1:] if len(rows) == 2 else []
    two_levels = len(below) > 0 and all(cell and not re.fullmatch(r"[\d.,$+-]+", cell) for cell in below)
    return _Header(separator, next(csv.reader(lines[:1], delimiter=separator)), two_levels)
