"""Pickles a strategy for another process. Reports the strategy's fitted models, and data of days after the run began."""

from __future__ import annotations

import contextlib
import io
import sys
from datetime import date
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finpod.errors import with_kind
from finpod.market.data import MarketData, as_date
from finpod.market.parsing import parse_stamps
from finpod.measures import Array
from finpod.pickling import ByValue
from finpod.records import Finding, Severity

SHORTEST = 20
"""Lists of fewer records are not reported. Nor are arrays with one row per date, if the market has fewer dates."""


class Packed(NamedTuple):
    """Pickle of a strategy, and the findings on its content."""

    content: bytes
    findings: tuple[Finding, ...] = ()
    """Findings on later data in the strategy, and on fitted models if it has no `trained_until`."""
    error: str = ""
    """Reason why the strategy could not be pickled, so that `content` is empty; "" if the strategy was pickled."""


def pack(root: Any, market: MarketData, first: int) -> Packed:
    """Return the pickle of a strategy for a run that starts on row `first`, and the findings on its content.

    User modules are pickled by value. The market is not pickled. The findings report markets and tables with rows later
    than the row `first` and than `trained_until`, arrays with one row per date of the market, and fitted models if the
    strategy has no `trained_until`. In strategies of finpod itself, only markets are reported.
    """
    packer, error = _Packer(buffer := io.BytesIO(), root, market, first), ""
    try:
        packer.dump(root)
    except Exception as raised:  # the user's objects may raise anything when they are pickled
        error = f"it cannot be pickled ({with_kind(raised)}); store no open files, generators or connections in it"
    return Packed(b"" if error else buffer.getvalue(), tuple(packer.findings.values()), error)


class _Packer(ByValue):
    """Pickles a strategy, and inspects every object that it pickles."""

    def __init__(self, buffer: io.BytesIO, root: Any, market: MarketData, first: int) -> None:
        super().__init__(buffer)
        until, day = getattr(root, "trained_until", None), market.dates[first]
        self._until = day if until is None else max(day, as_date(until) + np.timedelta64(86_399, "s"))
        self._trained, self._trusted = until is not None, type(root).__module__.partition(".")[0] == "finpod"
        self._market, self._day = market, f"{day!s:.10}"
        self._names: dict[int, str] = {}
        self._passed = set[int]()  # ids of parts that are not reported, because the object around them is inspected
        self.findings: dict[int, Finding] = {}

    def persistent_id(self, value: Any) -> str | None:
        """Return "market" for the traded market, so that it is not pickled; None for any other object."""
        if isinstance(value, MarketData):
            if value.dates[-1] > self._until:
                self._report("held", value, f"a market {list(value.shape)} up to {value.dates[-1]!s:.10}", market=True)
            same = value.tickers == self._market.tickers and np.array_equal(value.dates, self._market.dates)
            return "market" if same else None
        if isinstance(value, dict):  # attributes, globals and class members are pickled as dicts
            self._names.update((id(part), f"{key!s:.40}") for key, part in value.items())
        elif isinstance(value, (list, tuple)) and (name := self._names.get(id(value))):
            self._names.update((id(part), name) for part in value)
        elif isinstance(value, FunctionType):
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                with contextlib.suppress(ValueError):  # the cell is still empty
                    self._names[id(cell.cell_contents)] = name
        if not self._trusted and (note := self._later_data(value)):
            self._report("held", value, note)
        elif not self._trusted and not self._trained and (note := _model(value)):
            self._report("model", value, note)
            self._passed.update(map(id, value.modules() if hasattr(value, "modules") else ()))
        return None

    def _later_data(self, value: Any) -> str:
        """Return a description of a table with later rows or an array with one row per date; "" for other objects."""
        table, last = _as_table(value), None
        if isinstance(table, (pd.DataFrame, pd.Series)):
            self._passed.update(id(block.values) for block in table._mgr.blocks)
            last = _last_day(table)
        elif not isinstance(table, np.ndarray) or (table is not value and self._market.shape[1] not in table.shape):
            return ""  # other tensors are probably parts of a network
        what = f"{type(value).__name__} {[*filter(None, table.shape)]}"
        if last is None and self._has_a_row_a_session(np.asarray(table)):
            return f"{what} with one row per date"
        return f"{what} with rows up to {last!s:.10}" if last is not None and last > self._until else ""

    def _has_a_row_a_session(self, table: Array) -> bool:
        """Return True if an axis of a table is as long as the market has dates, or one shorter (like returns).
        Tables of equal values, and strictly monotone vectors such as row numbers, do not count."""
        sessions = self._market.shape[0]
        if sessions < SHORTEST or table.dtype.kind not in "fiub" or not {sessions, sessions - 1} & set(table.shape):
            return False
        steps = np.diff(table[np.isfinite(table)].astype(float))
        return bool(steps.any()) and not (table.ndim == 1 and ((steps > 0).all() or (steps < 0).all()))

    def _report(self, kind: str, value: Any, note: str, **data: Any) -> None:
        if id(value) not in self._passed:
            name, can = self._names.get(id(value), "a part"), Severity.CAN_LOOK_AHEAD
            self.findings[id(value)] = Finding(kind, can, "decisions", self._day, name, note=note, data=data)


def _as_table(value: Any) -> Any:
    """Return a dict by day, a list of dated records or a table of another library as a frame, and a tensor as an array.
    Other values are returned unchanged."""
    with contextlib.suppress(Exception):  # the records of a list may differ, and not all tensors are readable
        if isinstance(value, dict) and _has_a_day([next(iter(value))]):
            return pd.DataFrame(index=pd.Index(list(value)))
        if isinstance(value, (list, tuple)) and len(value) >= SHORTEST and _has_a_day(value[0]):
            return pd.DataFrame(value)
        if isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ())):
            return np.asarray(value)
        return value.to_pandas() if hasattr(type(value), "to_pandas") and hasattr(value, "columns") else value
    return value


def _has_a_day(record: Any) -> bool:
    """Return True if a dict, list or tuple, or one nested in it, contains a date, which may be text or a number."""
    parts = record.values() if isinstance(record, dict) else record if isinstance(record, (list, tuple)) else ()
    texts = [f"{one}" for one in parts if isinstance(one, (str, int)) and f"{one}"[:1].isdigit() and len(f"{one}") >= 8]
    objects = (isinstance(part, (date, np.datetime64, pd.Period)) for part in parts)
    return any(objects) or bool(texts and _days(pd.Index(texts)).size) or any(map(_has_a_day, parts))


def _last_day(table: pd.DataFrame | pd.Series[Any]) -> np.datetime64 | None:
    """Return the last of all dates in the index, headings and columns of a table; None if there are no dates."""
    axes = [axis.get_level_values(level) for axis in table.axes for level in range(axis.nlevels)]
    if isinstance(table, pd.DataFrame):
        axes += [pd.Index(table.iloc[:, column]) for column in range(table.shape[1])]
    return max((found.max() for axis in axes if (found := _days(axis)).size), default=None)


def _days(axis: pd.Index) -> Array:
    """Return the labels of an axis as dates, read by `parse_stamps`; an empty array if they are not dates."""
    axis = pd.Index(axis.to_numpy()) if isinstance(axis.dtype, pd.ArrowDtype) else axis
    if axis.dtype.kind in "MO" or (axis.dtype.kind in "iu" and len(axis) and axis.min() > 17_000_100):
        with contextlib.suppress(TypeError, ValueError):  # also DataError
            clock = parse_stamps(axis.to_series(), "").clock
            return clock[~np.isnat(clock)]
    return np.array([], dtype="datetime64[ns]")


def _model(value: Any) -> str:
    """Return a description of a fitted estimator, or of a network with parameters; "" for other objects."""
    kind, torch = type(value).__name__, sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        return f"a network, {kind}" if next(value.parameters(), None) is not None else ""
    if isinstance(value, type) or not all(callable(getattr(type(value), name, None)) for name in ("get_params", "fit")):
        return ""
    attributes = getattr(value, "__dict__", {})
    fitted = any(name.endswith("_") and not name.startswith("__") for name in attributes) or "_Booster" in attributes
    return f"a fitted {kind}" if fitted else ""
