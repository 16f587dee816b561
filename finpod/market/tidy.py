"""Tidy bars: one row a name and session, whatever table they come in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from finpod.errors import DataError
from finpod.market.columns import canonical, canonical_columns
from finpod.market.history import ACTIONS
from finpod.market.parsing import Tickers, decimal_mark, is_text, one_spelling, parse_numbers, parse_tickers
from finpod.market.repairs import PLACES
from finpod.market.stamps import parse_dates
from finpod.measures import Array

FIELDS = ("open", "high", "low", "close", "adj_close", "volume")
"""Columns of numbers that a table of bars may have; only `close` is required."""
_NUMBERS = (*FIELDS, *ACTIONS)
_LISTED = 5
"""Spellings that `reading` lists."""


def tidy_bars(
    frame: pd.DataFrame,
    *,
    ticker: str | None = None,
    name: str = "the frame",
    day_first: bool | None = None,
    decimal: str | None = None,
) -> pd.DataFrame:
    """One row a bar: `date` datetime64[ns], `ticker` categorical, float64 numbers, sorted by date and ticker.

    Takes flat tables with a `date` and a `ticker` column (or `ticker=` for one name, the dates perhaps as index), wide
    ones with a column of closes for each name, and tables with columns (field, ticker) or (ticker, field), in any order
    and spelling. Rows given twice are dropped; two different rows for one name and day are an error. What was decided or
    changed stands in `attrs` (`reading`, `offsets`, `repairs`). Raises DataError for what cannot be used.
    """
    flat = _flat(frame, ticker, name)
    missing = [c for c in ("date", "ticker", "close") if c not in flat.columns]
    if missing:
        way_out = " (give ticker= for the bars of one name)" if missing == ["ticker"] else ""
        raise DataError(
            f"{name} has no column {missing[0]}{way_out}; bars need date, ticker and close (open, high, low, "
            "adj_close and volume where known)"
        )
    if flat.columns.has_duplicates:
        raise DataError(f"{name} has two columns for {flat.columns[flat.columns.duplicated()][0]}; keep one")
    if flat.empty:
        raise DataError(f"{name} holds no bar; check the dates and the names that were asked for")
    dates = parse_dates(flat["date"], name, day_first)
    mark = mark_of(flat, decimal, name)
    tickers = parse_tickers(flat["ticker"], name)
    spelled_alike = _spellings(tickers, dates.days, name)
    tidy = pd.DataFrame({"date": dates.days, "ticker": tickers.names})
    for column in flat.columns[2:]:
        tidy[column] = parse_numbers(flat[column], column, name, mark)
    tidy, repairs = _in_order(tidy, name)
    spelled = "numbers read with a decimal comma" if mark == "," else ""
    tidy.attrs = {
        "reading": [sentence for sentence in (dates.reading, spelled, spelled_alike) if sentence],
        "offsets": list(dates.offsets),
        "repairs": repairs,
    }
    return tidy


def _spellings(tickers: Tickers, days: Array, name: str) -> str:
    """What was respelled, for `reading`. Raises DataError if two spellings of one name have a bar on the same day."""
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


def join_bars(parts: Sequence[pd.DataFrame], name: str) -> pd.DataFrame:
    """Several tables of tidy bars as one; what they say in `attrs` goes along."""
    categories = sorted({label for part in parts for label in part["ticker"].cat.categories})
    joined = pd.concat(
        [part.assign(ticker=part["ticker"].cat.set_categories(categories)) for part in parts], ignore_index=True
    )
    columns = ["date", "ticker", *(c for c in _NUMBERS if c in joined)]
    tidy, again = _in_order(joined[columns], name)
    attrs: dict[str, list[Any]] = {key: [] for key in ("reading", "offsets", "repairs")}
    for part in parts:
        for key, found in attrs.items():
            found += [item for item in part.attrs.get(key, ()) if key == "repairs" or item not in found]
    attrs["repairs"] += [entry for entry in again if entry["kind"] != UNSORTED]
    tidy.attrs = attrs
    return tidy


def mark_of(frame: pd.DataFrame, said: str | None, name: str) -> str:
    """The decimal mark of a table's numbers (see `decimal_mark`)."""
    names = canonical_columns(frame.columns) if frame.columns.nlevels == 1 else []
    found = [(field, frame.iloc[:, at]) for at, field in enumerate(names) if field in _NUMBERS]
    text = [(field, column) for field, column in found if is_text(column)]
    return decimal_mark([column for _, column in text], [field == "volume" for field, _ in text], said, name)


def _flat(frame: pd.DataFrame, ticker: str | None, name: str) -> pd.DataFrame:
    """The known columns under their names, date and ticker first."""
    if frame.columns.nlevels == 2:
        frame = _from_two_levels(frame, name)
    elif frame.index.names != [None] or isinstance(frame.index, pd.DatetimeIndex):
        frame = frame.rename_axis(index=lambda label: label or "date").reset_index()
    names = canonical_columns(frame.columns)
    if _is_wide(names):
        return _from_wide(frame, names.index("date"))
    frame = frame.set_axis(names, axis=1)
    if ticker is not None:
        frame = frame.assign(ticker=ticker)
    return frame.loc[:, [c for c in ("date", "ticker", *_NUMBERS) if c in frame.columns]]


def has_tickers(frame: pd.DataFrame) -> bool:
    """Whether a table says which names its bars belong to, in a column or by its columns."""
    names = canonical_columns(frame.columns) if frame.columns.nlevels == 1 else ["ticker"]
    known = frame.index.names != [None] or isinstance(frame.index, pd.DatetimeIndex)
    return "ticker" in names or _is_wide(["date", *names] if known else names)


def _is_wide(names: Sequence[str]) -> bool:
    """Whether the columns are dates and names: no close, no ticker, and hardly a field (OPEN is a ticker, too)."""
    fields = len(set(names) & set(_NUMBERS))
    return "date" in names and not {"close", "ticker"} & set(names) and len(names) - 1 > 2 * fields


def _from_wide(frame: pd.DataFrame, date: int) -> pd.DataFrame:
    """Flat closes from a column of dates and one of closes for each name."""
    closes = frame.drop(columns=frame.columns[date])
    columns = {
        "date": np.repeat(frame.iloc[:, date].to_numpy(), closes.shape[1]),
        "ticker": _tiled(closes.columns, len(frame)),
        "close": closes.to_numpy().ravel(),
    }
    return pd.DataFrame(columns)


def _from_two_levels(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Flat bars from columns (field, ticker) or (ticker, field), the dates as index."""
    levels = [frame.columns.get_level_values(level) for level in (0, 1)]
    spelled = [[canonical(label) for label in level] for level in levels]
    field = int("close" in spelled[1])
    fields, labels = np.array(spelled[field], dtype=object), levels[1 - field].to_numpy()
    tickers = pd.Index(labels).unique()
    columns = {
        "date": np.repeat(frame.index.to_numpy(), len(tickers)),
        "ticker": _tiled(tickers, len(frame)),
    }
    for known in dict.fromkeys(fields):
        part = frame.loc[:, fields == known].set_axis(labels[fields == known], axis=1)
        if part.columns.has_duplicates:
            raise DataError(
                f"{name} has two columns for {known} of {part.columns[part.columns.duplicated()][0]}; keep one"
            )
        columns[known] = part.reindex(columns=tickers).to_numpy().ravel()
    return pd.DataFrame(columns)


def _tiled(labels: pd.Index, times: int) -> pd.Categorical:
    return pd.Categorical.from_codes(np.tile(np.arange(len(labels)), times), labels.astype(str))


UNSORTED = "rows put in order of date"
_AGAIN = "duplicate rows dropped"


def _in_order(bars: pd.DataFrame, name: str) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """The bars sorted by date and ticker, rows given twice once, and the repairs that this was."""
    repairs = []
    day, code = bars["date"].to_numpy().astype(np.int64), bars["ticker"].cat.codes.to_numpy()
    by_name = np.argsort(code, kind="stable")
    back = np.flatnonzero((np.diff(day[by_name]) < 0) & (np.diff(code[by_name]) == 0)) + 1
    if len(back):
        repairs.append(_entry(UNSORTED, bars, by_name[back], "row", by_name[back] + 1, "in order"))
    order = np.lexsort((code, day))
    if (np.diff(order) < 0).any():
        bars = bars.take(order).reset_index(drop=True)
    date, code = bars["date"].to_numpy(), bars["ticker"].cat.codes.to_numpy()
    again = np.r_[False, (date[1:] == date[:-1]) & (code[1:] == code[:-1])]
    if again.any():
        rows = np.flatnonzero(again)
        _check_alike(bars, rows, name)
        repairs.append(_entry(_AGAIN, bars, rows, "bar", "given twice", "once"))
        bars = bars[~again].reset_index(drop=True)
    return bars, repairs


def _entry(kind: str, bars: pd.DataFrame, rows: Array, column: str, was: Any, became: str) -> dict[str, Any]:
    values = was[:PLACES].tolist() if isinstance(was, np.ndarray) else [was] * PLACES
    places = [
        {"ticker": str(ticker), "date": f"{day:%Y-%m-%d}", "column": column, "was": value, "became": became}
        for (day, ticker), value in zip(
            bars.iloc[rows[:PLACES], :2].itertuples(index=False, name=None), values, strict=False
        )
    ]
    return {"kind": kind, "count": len(rows), "places": places}


def _check_alike(bars: pd.DataFrame, rows: Array, name: str) -> None:
    """Raise DataError if a row differs from the row above it, which has the same name and day."""
    numbers = bars.columns[2:]
    one, other = bars[numbers].to_numpy()[rows], bars[numbers].to_numpy()[rows - 1]
    differs = ~((one == other) | (np.isnan(one) & np.isnan(other))).all(axis=1)
    if differs.any():
        row = rows[int(np.argmax(differs))]
        raise DataError(
            f"{name} has two different bars for {bars['ticker'].iloc[row]} on {bars['date'].iloc[row]:%Y-%m-%d}; "
            "finpod needs one bar a name and session"
        )
