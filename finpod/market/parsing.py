"""Tickers and numbers from text. All values of a column decide how it is read; ambiguous columns are refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.measures import Array

_TICKER = re.compile(r"[A-Za-z0-9^][A-Za-z0-9.^=_-]{0,31}")
_NO_TICKER = ("", "nan", "NaN", "None", "none", "null", "NULL", "N/A", "n/a", "#N/A", "<NA>", "NaT")
BLANK = ("", "nan", "null", "n/a", "na", "none", "-", "--", "–", "—", ".", "<na>", "nat", "#n/a", "#n/a n/a", "n.a.")
"""Words for a missing number, in lower case."""
_CURRENCY = "$€£¥₹₩₽₺₪"
_SPACES = "[ \t\u00a0\u2007\u2009\u202f]"
_SCALES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def normal_ticker(label: Any, among: Collection[str] = ()) -> str:
    """Return the one spelling of a ticker: BRK-B for "brk.b", "BRK/B" and "BRK-B". VOD.L, 7203.T and 600000.SS stay.

    The letters become capitals and one slash between two words becomes a dash. A dot is a dash where a class of shares
    follows it: a last A, B or C after letters, which no exchange has as its suffix, or one letter before a suffix (RCI.B.TO).
    Any other letter after a last dot may be an exchange (L London, T Tokyo, F Frankfurt, V TSX Venture), so the dot
    stays. `among`, the tickers of a market, settles the rest: a label that is none of them is the one that differs from
    it only in the mark (- . _) before its last letter, if there is one.
    """
    spelled = re.sub(r"^(?!N/A$)([A-Z0-9]+)/([A-Z0-9]+)(?=$|\.)", r"\1-\2", str(label).strip().upper())
    spelled = re.sub(r"^([A-Z]{1,5})\.(?=[ABC]$|[A-Z]\.[A-Z]{1,3}$)", r"\1-", spelled)
    if spelled not in among and re.search(r"[A-Z0-9][-._][A-Z]$", spelled):
        others = (f"{spelled[:-2]}{mark}{spelled[-1]}" for mark in "-._")
        return next((other for other in others if other in among), spelled)
    return spelled


def one_spelling(labels: Iterable[Any]) -> dict[Any, str]:
    """Return label -> ticker in its one spelling (`normal_ticker`). X.V and X_V become X-V if X-V is a ticker as well."""
    tickers = {label: normal_ticker(label) for label in labels}
    dashed = {ticker for ticker in tickers.values() if ticker[-2:-1] == "-"}
    return {label: normal_ticker(ticker, dashed) for label, ticker in tickers.items()}


def is_ticker(label: str) -> bool:
    """Return True for a valid ticker: no slash, no space, no character with a meaning to a shell."""
    return _TICKER.fullmatch(label) is not None


def check_tickers(labels: Iterable[str], name: str) -> None:
    """Raise DataError for the first label that is not a valid ticker, such as one with a slash or a shell character."""
    for label in labels:
        if not is_ticker(label):
            raise DataError(
                f"{name}: {label!r} cannot be a ticker; write it with letters, digits and . - ^ = _ only, as in BRK-B"
            )


def parse_tickers(column: pd.Series, name: str) -> tuple[pd.Categorical, dict[str, str]]:
    """Return the tickers [rows] in their one spelling, with sorted categories; and label -> ticker for labels spelled otherwise.

    Whole numbers are tickers, too. Raises DataError for a missing ticker, for invalid characters, and for numbers with a
    fraction.
    """
    column = plain(column)
    if column.dtype.kind == "f" and (column.dropna() % 1 == 0).all():
        column = column.astype("Int64")  # identifiers that a missing value turned into floats
    codes, values = pd.factorize(column)
    labels = [str(value).strip() for value in values]
    missing = np.array([*(label in _NO_TICKER for label in labels), True])[codes]  # the code of a missing value is -1
    if missing.any():
        raise DataError(f"{name}: row {int(np.argmax(missing)) + 1} has no ticker; every bar must name its ticker")
    spelling = one_spelling(labels)
    check_tickers((label if not is_ticker(spelled) else spelled for label, spelled in spelling.items()), name)
    order, position = np.unique(np.array([spelling[label] for label in labels], dtype=object), return_inverse=True)
    tickers = pd.Categorical.from_codes(position[codes], pd.Index(order, dtype=object))
    return tickers, {label: spelled for label, spelled in sorted(spelling.items()) if label != spelled}


def plain(column: pd.Series) -> pd.Series:
    """Return the column with Arrow dtypes converted to those of numpy or pandas."""
    if not isinstance(column.dtype, pd.ArrowDtype):
        return column
    import pyarrow as pa

    values = pa.array(column)
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    return values.to_pandas(date_as_object=False).set_axis(column.index)


def is_text(column: pd.Series) -> bool:
    """Return True for a column of text, False for one of numbers."""
    return column.dtype.kind not in "iufb"


def decimal_mark(columns: Sequence[tuple[str, pd.Series]], decimal: str | None, name: str) -> str:
    """Return the decimal mark, '.' or ',', of columns (field, values): `decimal`, or what all columns of text show.

    A mark that occurs twice in a number, before the other mark, or in a volume separates thousands. Raises DataError
    if 1,234 may be a thousand or one, InputError for another mark.
    """
    if decimal not in (None, ".", ","):
        raise InputError(f"decimal is {decimal!r}; choose '.' or ','", argument="decimal")
    unsure = None
    for field, column in columns if decimal is None else ():
        text = column[column.map(lambda value: isinstance(value, str))].astype(str)
        text = text.str.replace(f"[{_CURRENCY}]|{_SPACES}", "", regex=True)
        text = text[text.str.contains(r"\d.*[.,]|[.,]\d", regex=True)]
        if text.str.contains(r"\..*,|\..*\.|,\d{1,2}$|,\d{4,}$|,\d*[eEKMBT]").any():
            return ","
        if text.str.contains(r",.*[.,]|\.\d{1,2}$|\.\d{4,}$|\.\d*[eEKMBT]").any() or (field == "volume" and len(text)):
            return "."
        unsure = unsure or next((value for value in text[:1] if "," in value), None)
    if unsure is not None:
        raise DataError(
            f"{name}: {unsure!r} may have a comma for thousands or a decimal comma; say which with "
            "decimal='.' or decimal=','",
            argument="decimal",
        )
    return decimal or "."


def parse_numbers(column: pd.Series, field: str, name: str, decimal: str = ".") -> Array:
    """Return the numbers [rows] float64, NaN where blank. Raises DataError for text that is not a number.

    Accepts currency signs before or after the number, thousands separated by the other mark, a space or an apostrophe, and
    exponents; in volumes also 1.5K, 1.5M, 1.5B and 1.5T.
    """
    column = plain(column)
    if not is_text(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    text = column.astype(str).str.strip()
    blank = column.isna() | text.str.lower().isin(BLANK)
    bare = text.str.replace(_SPACES, " ", regex=True).str.replace("’", "'", regex=False)
    bare = bare.str.replace(rf"^([-+]?) ?[{_CURRENCY}] ?| ?[{_CURRENCY}]$", r"\1", regex=True)
    scale: Array | float = 1.0
    if field == "volume":
        scale = bare.str[-1:].str.upper().map(_SCALES).fillna(1.0).to_numpy(dtype=np.float64)
        bare = bare.str.replace(r" ?[KMBTkmbt]$", "", regex=True)
    mark, thousands = (",", ".") if decimal == "," else (".", ",")
    groups = "|".join(rf"\d{{1,3}}([{separator}]\d{{3}})+" for separator in (thousands, " ", "'"))
    well_formed = bare.str.fullmatch(rf"[-+]?(\d+|{groups})?([{mark}]\d*)?([eE][-+]?\d+)?|[-+]?inf")
    digits = bare.str.replace(f"[{thousands} ']", "", regex=True).str.replace(mark, ".", regex=False)
    values = pd.to_numeric(digits, errors="coerce") * scale
    wrong = (~well_formed | values.isna()) & ~blank
    if wrong.any():
        raise DataError(f"{name}: {field} {text[wrong].iloc[0]!r} is not a number; write it as 1234.56")
    return values.where(~blank).to_numpy(dtype=np.float64, na_value=np.nan)
