"""Reads parquet and CSV files as frames. Recognises separators, titles and headers of one or two levels."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from finpod.errors import DataError, InputError, first_line
from finpod.market.columns import DATES, DESCRIPTIONS, TICKERS, field_of, is_unnamed, word
from finpod.market.parsing import BLANK, is_date, is_ticker, normal_ticker

KINDS = (".parquet", ".csv")
_SEPARATORS = ",;\t|"
_BLANK = sorted({form for text in BLANK for form in (text, text.upper(), text.title(), "NaN")})


def read_table(source: Path, *, decimal: str | None = None, ticker_column: str | None = None) -> pd.DataFrame:
    """Return one parquet or CSV file as a frame. A parquet file keeps its row index. Tickers in a CSV stay text.

    A CSV may be separated by commas, semicolons, tabs or vertical bars. It may begin with a byte-order mark or titles.
    Its header may have two levels: fields and tickers, in any order. `ticker_column` is the label of the column of
    tickers, if it is known. `decimal` is the decimal mark. If `decimal` is None, numbers with a comma stay text, and so
    do numbers with a dot unless commas separate the columns. Raises InputError for other kinds of files, and DataError
    for unreadable files.
    """
    kind = source.suffix.lower()
    if kind not in KINDS:
        raise InputError(f"{source.name} is neither .parquet nor .csv; convert it to one of them, with one row per bar")
    try:
        if kind == ".csv":
            return _read_csv(source, decimal, ticker_column)
        try:
            return pd.read_parquet(source)
        except TypeError:  # pandas cannot read some dtypes that it writes, such as Arrow dtypes and categorical labels
            return pq.read_table(source).to_pandas(ignore_metadata=True, date_as_object=False)
    except (OSError, TypeError, ValueError, pa.ArrowException) as error:
        notes = "delete titles above its header and notes below its bars, and save it as UTF-8"
        is_text = kind == ".csv" and isinstance(error, (pa.ArrowInvalid, UnicodeError))
        way_out = notes if is_text else "fetch or export it again"
        raise DataError(f"{source.name} cannot be read ({first_line(error)}); {way_out}") from error


def read_columns(source: Path, columns: Sequence[str], kind: str, *, argument: str) -> pd.DataFrame:
    """Return a parquet or CSV file as a frame with labels in lower case. The file must have all of `columns`.

    `argument` is the name of the user's argument that gives the file, and `kind` is what error messages call the file.
    Raises InputError for a missing file, DataError for a file that lacks one of the columns or has no row.
    """
    needed = f"give a CSV with the columns {', '.join(columns)}"
    if not source.is_file():
        raise InputError(f"there is no {kind} {source}; {needed}", argument=argument)
    table = read_table(source)
    table.columns = table.columns.map(lambda label: str(label).strip().lower())
    missing = [label for label in columns if label not in table]
    if missing or table.empty:
        fault = f"column {missing[0]!r}" if missing else "row below its header"
        raise DataError(f"{source.name} has no {fault}; {needed}")
    return table


def _read_csv(source: Path, decimal: str | None, ticker_column: str | None) -> pd.DataFrame:
    """Return a CSV as a frame. Columns of numbers (and words for missing values) become numeric. Tickers stay text."""
    encoding, lines = _first_lines(source)
    separator = next((max(_SEPARATORS, key=line.count) for _, line in lines if set(line) & set(_SEPARATORS)), ",")
    rows = [[cell.strip() for cell in next(csv.reader([line], delimiter=separator))] for _, line in lines]
    labels, levels, end = _header_of(rows)
    first = lines[end][0] if end < len(lines) else lines[-1][0] + 1
    names = [str(at) for at in range(len(labels))]
    # columns that stay text: dates, and possible tickers, which may have leading zeros
    texts = (*TICKERS, *DESCRIPTIONS, "old", "new", "date", "datetime", "timestamp", word(ticker_column))
    stay_text = [levels is None and (is_unnamed(label) or word(label) in texts) for label in labels]
    table = arrow_csv.read_csv(
        source,
        read_options=arrow_csv.ReadOptions(column_names=names, skip_rows=first, encoding=encoding),
        parse_options=arrow_csv.ParseOptions(delimiter=separator),
        convert_options=arrow_csv.ConvertOptions(
            null_values=_BLANK,
            true_values=[],
            false_values=[],
            timestamp_parsers=["none"],  # to keep the UTC offset
            decimal_point=decimal if decimal in (".", ",") else "." if separator == "," else "_",
            column_types=dict.fromkeys(compress(names, stay_text), pa.dictionary(pa.int32(), pa.string())),
        ),
    )
    header = labels if levels is None else pd.MultiIndex.from_tuples(labels, names=levels)
    frame = table.to_pandas(date_as_object=False)
    while len(frame) and (frame.iloc[-1].isna() | frame.iloc[-1].eq("")).all():  # last rows that have only separators
        frame = frame.iloc[:-1]
    return frame.set_axis(header, axis=1)


def _header_of(rows: list[list[str]]) -> tuple[list[Any], tuple[str | None, str | None] | None, int]:
    """Return (labels, levels, end): labels of the columns, names of the header's levels, and index of the first bar.

    `rows` are the cells of the first lines, and `end` is an index into them. In a header of one level, labels are text
    and `levels` is None. In a header of two levels, a label is (upper label, lower label). A second line belongs to the
    header if it has fields below tickers, or tickers below fields. Fields are recognised by their names. Tickers below
    fields are recognised in three cases: their line begins with a word for tickers; a third line has only the name of
    the dates; or their line begins with an empty cell and each ticker has a close.

    Raises ValueError for a file without a header.
    """
    start = next((at for at, cells in enumerate(rows) if sum(map(bool, cells)) > 1), 0)
    start = next((at for at, cells in enumerate(rows[:start]) if not cells[0]), start)  # an upper level with one label
    upper, lower, third = [*rows[start:], [""], [""]][:3]
    if sum(map(is_date, upper)) == 1 or re.fullmatch(r"[\d.]+", upper[0]):
        raise ValueError("its first line looks like values; delete it if it is a title, or add column names above it")
    labels: list[Any] = list(upper)
    levels, end = None, start + 1
    followed = word(third[0]) in DATES and not any(third[1:])  # pandas writes the index name below two levels
    if len(upper) == len(lower) > 1 and _is_second_line(upper, lower, followed):
        if word(lower[0]) in TICKERS:
            upper = [_without_number(label) for label in upper]
        for at in range(2, len(upper)):  # a label may be written once, for the cells to its right
            upper[at] = upper[at] or upper[at - 1]
        dates = third[0] if followed else next((label for label in (lower[0], upper[0]) if word(label) in DATES), "")
        labels = [(dates, ""), *zip(upper[1:], lower[1:], strict=True)]
        levels, end = (upper[0] or None, lower[0] or None), start + 2 + followed
    elif word(lower[0]) in DATES and (not any(lower[1:]) or "close" in map(field_of, lower)):
        # the second line is the name of the index, or it is the header, and the first line is a title with commas
        labels, end = (lower if any(lower[1:]) else [lower[0], *upper[1:]]), start + 2
    if end < len(rows) and len(rows[end]) == len(labels) + 1 and not rows[end][-1]:  # bars end with a separator
        labels.append(("", "") if levels else "")
    return labels, levels, end


def _is_second_line(upper: list[str], lower: list[str], followed: bool) -> bool:
    """Return True if the second line of a CSV belongs to its header (see `_header_of`)."""
    called = word(lower[0]) in TICKERS and word(upper[0]) not in (*TICKERS, *DESCRIPTIONS, *DATES)
    pairs = list(zip(upper[1:], lower[1:], strict=True))
    closes = {below for label, below in pairs if field_of(_without_number(label) if called else label) == "close"}
    dated, numbers = any(map(is_date, lower)), any(re.fullmatch(r"[-+]?[\d.,]+", label) for label in lower)
    below = {label for label in lower[1:] if label}
    spelled = not {label.lower() for label in below} <= set(BLANK) and not numbers
    tickers = spelled and all(is_ticker(normal_ticker(label)) for label in below)
    if closes and not dated and (called or followed or (tickers and not lower[0] and below <= closes)):
        return True
    fields_below = any(field_of(label) == "close" for label in below) and not (dated or numbers)
    level = followed or is_unnamed(upper[0]) or word(upper[0]) in (*TICKERS, *DESCRIPTIONS, *DATES)  # not a title
    return fields_below and level and (not closes or word(upper[0]) in TICKERS)


def _without_number(label: str) -> str:
    """Return a field's label without the number that pandas adds to repeats (Close for Close.1); others unchanged."""
    bare = re.sub(r"\.\d+$", "", label)
    return bare if field_of(bare) else label


def _first_lines(source: Path) -> tuple[str, list[tuple[int, str]]]:
    """Return the encoding of a file, and its first 40 non-blank lines with their numbers, which begin at 0.

    The encoding is UTF-8, UTF-16 or Windows-1252. Raises ValueError for a file that is empty, HTML, JSON or no text.
    """
    with source.open("rb") as stream:
        head = stream.read(1 << 16)
    encoding = "utf-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    if b"\0" in head and encoding == "utf-8":
        raise ValueError("it is not text in UTF-8")
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head).removeprefix("\ufeff")  # last letter may be cut
    except UnicodeDecodeError:
        text, encoding = head.decode("cp1252", errors="replace"), "cp1252"
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = [(at, line) for at, line in enumerate(text.split("\n")) if line.strip()]
    if not lines:
        raise ValueError("it is empty")
    if lines[0][1].lstrip().lower().startswith(("<!doctype", "<html", "<?xml", "{", "[{")):
        raise ValueError("it is HTML or JSON, not a table")
    return encoding, lines[:40]
