"""Names of columns in tables of prices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_ALIASES = {
    "adjclose": "adj_close",
    "adj._close": "adj_close",
    "adjusted_close": "adj_close",
    "close/last": "close",
    "symbol": "ticker",
    "timestamp": "date",
    "datetime": "date",
    "dividends": "dividend",
    "dividend_amount": "dividend",
    "stock_splits": "split",
    "split_coefficient": "split",
    "splits": "split",
    "vol.": "volume",
}
_UNNAMED = ("", "unnamed:_0", "index")


def canonical(label: Any) -> str:
    """The name under which finpod knows a column: "Adj Close", "5. adjusted close" and "Adjclose" are adj_close."""
    spelled = re.sub(r"^\d+\.\s*", "", str(label).replace("\ufeff", "").strip().strip("*<>").strip().lower())
    spelled = re.sub(r"[\s_]+", "_", spelled)
    return _ALIASES.get(spelled, spelled)


def canonical_columns(labels: Sequence[Any]) -> list[str]:
    """The columns' names; a first column without a name holds the dates, where no other does."""
    names = [canonical(label) for label in labels]
    if names and names[0] in _UNNAMED and "date" not in names:
        names[0] = "date"
    return names
