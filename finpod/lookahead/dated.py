"""Tables and mappings by date among what a strategy holds, and whether they say anything of later days."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import torch

from finpod.lookahead.reach import is_numeric
from finpod.measures import Array

FEWEST = 3
"""Different numbers that tell something."""
ROUND = 3
"""Numbers of so many digits, and whole ones, tell nothing: they may be days of the week, or numbers of rows."""
LOOKED_AT = 64
"""Entries of a mapping that are looked into."""
_WRITTEN = re.compile(r"\d{4}-\d{2}-\d{2}")


def said_of_later(value: Any, day: np.datetime64, tickers: Sequence[str]) -> str | None:
    """What a frame, Series or mapping says by date of the market's names on days after `day`; None if nothing that tells.

    That is `FEWEST` different numbers beside names, or as many as there are names at once; or two names. The dates are the
    index, a level of it, a column, or the keys: as timestamps, days, or text like 2024-01-31. Figures by date that are of
    no name, as a rate of interest, say nothing here.
    """
    if isinstance(value, Mapping):
        if (days := _days(list(value))) is None:
            return None
        later = np.flatnonzero(days > day)
        entries = list(value.values())
        some = later[np.unique(np.linspace(0, len(later) - 1, min(len(later), LOOKED_AT)).astype(int))]
        parts = [part for i in some for part in _parts(entries[i])]
    elif isinstance(value, (pd.DataFrame, pd.Series)):
        frame = _frame(value)
        if (days := _days_of(frame)) is None:
            return None
        columns = [str(column) for column in frame.columns if column in tickers]
        parts = [*columns, *_parts(frame.loc[days > day])] if (days > day).any() else []
    else:
        return None
    told = _tells(parts, tickers)
    return f"{told} of days up to {days.max()!s:.10}" if told else None


def by_date(value: Any) -> Iterator[tuple[Array, Array]]:
    """Each column of numbers [R] in a Series, frame or mapping by date, and their days [R]."""
    if isinstance(value, Mapping):
        if is_numeric(value) and (days := _days(list(value))) is not None:
            with suppress(TypeError, ValueError):
                yield days, np.array(list(value.values()), dtype=np.float64)
    elif isinstance(value, (pd.DataFrame, pd.Series)) and (days := _days_of(frame := _frame(value))) is not None:
        numbers = frame.select_dtypes("number").to_numpy(np.float64, na_value=np.nan)
        yield from ((days, column) for column in numbers.T)


def _frame(value: Any) -> pd.DataFrame:
    return value.to_frame("value") if isinstance(value, pd.Series) else value


def _days_of(frame: pd.DataFrame) -> Array | None:
    """[R] the first of the index, its levels and the columns that holds dates."""
    return next((days for days in map(_days, _columns_of_dates(frame)) if days is not None), None)


def _columns_of_dates(frame: pd.DataFrame) -> Iterator[Any]:
    index = frame.index
    yield from (index.get_level_values(level) for level in range(index.nlevels))
    yield from (frame.iloc[:, i] for i in range(frame.shape[1]))


def _days(values: Any) -> Array | None:
    """[R] datetime64 of a column or of keys; None if they are no dates, NaT for a single one that is none."""
    kind = getattr(values, "dtype", None)
    if isinstance(kind, pd.PeriodDtype):
        values, kind = pd.PeriodIndex(values).to_timestamp(), None
    elif isinstance(kind, pd.DatetimeTZDtype) or getattr(kind, "kind", "") == "M":
        index = pd.DatetimeIndex(values)
        return index.tz_localize(None).to_numpy() if len(index) else None
    elif kind is not None and (kind.kind in "fiub" or isinstance(kind, pd.CategoricalDtype)):
        return None
    entries = [values[0], values[-1]] if isinstance(values, list) and values else []
    if len(values) and not isinstance(values, list):
        column = pd.Series(values)
        entries = [column.iloc[0], column.iloc[-1]]
    if not entries or not all(map(_is_date, entries)):
        return None
    try:
        index = pd.DatetimeIndex(pd.to_datetime(pd.Series(list(values)), errors="coerce", utc=True, format="ISO8601"))
    except (ValueError, TypeError, OverflowError):
        return None
    return index.tz_localize(None).to_numpy()


def _is_date(entry: Any) -> bool:
    return isinstance(entry, (date, np.datetime64)) or (isinstance(entry, str) and bool(_WRITTEN.match(entry)))


def _parts(entry: Any) -> Iterator[Any]:
    """Numbers [k] and texts in an entry."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, torch.Tensor):
        yield entry.detach().to("cpu", torch.float64).numpy().ravel()
    elif isinstance(entry, pd.DataFrame):
        yield entry.select_dtypes("number").to_numpy(np.float64, na_value=np.nan).ravel()
        for level in range(entry.index.nlevels):
            yield from entry.index.get_level_values(level).unique()[:LOOKED_AT]
        for _, column in entry.select_dtypes(exclude=["number", "datetime", "datetimetz"]).items():
            yield from column.unique()[:LOOKED_AT]
    elif isinstance(entry, (pd.Series, np.ndarray)):
        values = np.asarray(entry)
        yield from [values.ravel()] if values.dtype.kind in "fiub" else values.ravel()[:LOOKED_AT]
    elif isinstance(entry, Mapping):
        yield from (part for key in list(entry)[:LOOKED_AT] for part in (key, *_parts(entry[key])))
    elif isinstance(entry, (list, tuple)) and is_numeric(entry):
        with suppress(TypeError, ValueError):  # of another kind further on
            yield np.array(entry, dtype=np.float64)
    elif isinstance(entry, (list, tuple, set, frozenset)):
        yield from (part for one in list(entry)[:LOOKED_AT] for part in _parts(one))
    elif isinstance(entry, (int, float, np.number)):
        yield np.array([entry], dtype=np.float64)


def _tells(parts: Iterable[Any], tickers: Sequence[str]) -> str | None:
    """Whether there are numbers of names among the parts, or names alone."""
    numbers, names, many = [], set(), False
    for part in parts:
        if isinstance(part, np.ndarray):
            numbers.append(part.astype(np.float64))
            many |= len(part) == len(tickers) > 1
        elif isinstance(part, str) and part in tickers:
            names.add(part)
    values = np.unique(np.concatenate([*numbers, np.empty(0)]))
    values = np.abs(values[np.isfinite(values) & (values != np.round(values))])
    digits = values / 10 ** (np.floor(np.log10(values)) - ROUND + 1)
    if (names or many) and (np.abs(digits - digits.round()) > 1e-3).sum() >= FEWEST:
        return "numbers"
    return "names" if len(names) > 1 and not numbers else None
