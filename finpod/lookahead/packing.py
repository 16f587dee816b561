"""A strategy as it is sent to another process, and what it holds of later days."""

from __future__ import annotations

import contextlib
import io
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finpod.errors import first_line
from finpod.market.data import MarketData, as_date
from finpod.pickling import ByValue, is_installed
from finpod.records import Finding, Severity

SHORTEST = 20
"""Sessions from which on an array of as many rows is taken to have one row a session."""
MOST_NAMES = 5_000
"""Objects whose names are looked for."""


class Packed(NamedTuple):
    """A strategy, or a feature function, as a pickle."""

    content: bytes
    findings: tuple[Finding, ...] = ()
    """Later data and undated models that it holds."""
    error: str = ""
    """Why it cannot be pickled; then there is no content."""


def pack(root: Any, market: MarketData, first: int, where: str = "decisions") -> Packed:
    """Pickle a strategy, or a feature function, as it is before it decides on row `first`; the user's modules by value.

    The market is left out, and reported if it has later rows. Reported too are pandas objects with rows after the day,
    arrays with one row a session, and fitted models where the strategy does not say until when it was trained.
    """
    packer = _Packer(buffer := io.BytesIO(), root, market, first, where)
    try:
        packer.dump(root)
    except Exception as error:  # whatever an object of the user's raises when it is pickled
        reason = f"it cannot be pickled ({type(error).__name__}: {first_line(error)})"
        return Packed(
            b"", tuple(packer.findings.values()), f"{reason}; keep open files, locks and connections out of it"
        )
    return Packed(buffer.getvalue(), tuple(packer.findings.values()))


class _Packer(ByValue):
    """Looks at every object that it writes."""

    def __init__(self, buffer: io.BytesIO, root: Any, market: MarketData, first: int, where: str) -> None:
        super().__init__(buffer)
        until, day = getattr(root, "trained_until", None), market.dates[first]
        self._until = day if until is None else max(day, as_date(until) + np.timedelta64(86_399, "s"))
        self._trained, self._trusted = until is not None, type(root).__module__.partition(".")[0] == "finpod"
        self._market, self._where, self._day = market, where, f"{day!s:.10}"
        self._names, self._passed = _names(root)
        self.findings: dict[str, Finding] = {}

    def persistent_id(self, value: Any) -> str | None:
        """ "market" for the market that is traded, which the reader has; None for all else."""
        if isinstance(value, MarketData):
            if value.dates[-1] > self._until:
                size = f"a market [{value.shape[0]}, {value.shape[1]}] up to {value.dates[-1]!s:.10}"
                self._report("held", value, size, market=True)
            same = value.tickers == self._market.tickers and np.array_equal(value.dates, self._market.dates)
            return "market" if same else None
        if not self._trusted:
            self._look_at(value)
        return None

    def _look_at(self, value: Any) -> None:
        torch = sys.modules.get("torch")
        if isinstance(value, (pd.DataFrame, pd.Series)):
            self._passed.update(id(block.values) for block in value._mgr.blocks)
            last = _last_day(value)
            if last is not None and last > self._until:
                self._report("held", value, f"{_kind(value)} with rows up to {last!s:.10}")
            elif last is None and self._is_late(value.to_numpy()):
                self._report("held", value, f"{_kind(value)} with one row a session")
        elif isinstance(value, np.ndarray):
            if self._is_late(value):
                self._report("held", value, f"{_kind(value)} with one row a session")
        elif torch is not None and isinstance(value, torch.Tensor):
            if isinstance(value, torch.nn.Parameter):  # it is written by way of a tensor of the same data
                self._passed.add(value.data_ptr())
            elif value.data_ptr() not in self._passed and self._market.shape[1] in value.shape and self._is_late(value):
                self._report("held", value, f"{_kind(value)} with one row a session")
        elif not self._trained and (model := _model(value)):
            self._report("model", value, model)
            if torch is not None and isinstance(value, torch.nn.Module):
                self._passed.update(map(id, value.modules()))

    def _is_late(self, table: Any) -> bool:
        """Whether an array has as many rows or columns as the market has sessions, and not all values are one."""
        sessions, array = self._market.shape[0], np.asarray(table.detach().cpu() if hasattr(table, "detach") else table)
        if sessions < SHORTEST or array.dtype.kind not in "fiub" or not {sessions, sessions - 1} & set(array.shape):
            return False
        known = array[np.isfinite(array)]
        return bool(len(known) and (known != known[0]).any())

    def _report(self, kind: str, value: Any, note: str, *, market: bool = False) -> None:
        if id(value) not in self._passed:
            name = self._names.get(id(value), "the strategy" if self._where == "decisions" else "the function")
            data = {"market": True} if market else {}
            finding = Finding(kind, Severity.CAN_LOOK_AHEAD, self._where, self._day, name, note=note, data=data)
            self.findings.setdefault(name, finding)


def _kind(value: Any) -> str:
    return f"{type(value).__name__} [{', '.join(map(str, value.shape))}]"


def _last_day(table: pd.DataFrame | pd.Series[Any]) -> np.datetime64 | None:
    """The last day that an index, or a column, of dates names; None if there is none."""
    axes = [axis.get_level_values(level) for axis in table.axes for level in range(axis.nlevels)]
    if isinstance(table, pd.DataFrame):
        axes += [pd.Index(table.iloc[:, column]) for column in range(table.shape[1])]
    days = []
    for axis in axes:
        if axis.dtype.kind in "MO" and len(axis):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                stamps = pd.to_datetime(axis, format="ISO8601", utc=True).tz_localize(None)
                days.append(stamps.max().to_datetime64().astype("datetime64[ns]"))
    return max(days, default=None)


def _model(value: Any) -> str | None:
    """The kind of a fitted estimator, or of a network; None for all else."""
    kind, torch = type(value).__name__, sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        return f"a network, {kind}" if next(value.parameters(), None) is not None else None
    if isinstance(value, type) or not all(callable(getattr(type(value), name, None)) for name in ("get_params", "fit")):
        return None
    attributes = getattr(value, "__dict__", {})
    fitted = any(name.endswith("_") and not name.startswith("__") for name in attributes) or "_Booster" in attributes
    return f"a fitted {kind}" if fitted else None


def _names(root: Any) -> tuple[dict[int, str], set[int]]:
    """How the user's code calls what a strategy holds, by identity: 'self.panel', 'global PANEL'; and what only `__init__` uses."""
    pending, names, only_init = deque([("self", root)]), dict[int, str](), set[int]()
    while pending and len(names) < MOST_NAMES:
        path, value = pending.popleft()
        if id(value) not in names and not isinstance(value, (str, bytes, int, float)):
            names[id(value)] = path
            with contextlib.suppress(Exception):  # an object of the user's that does not like to be looked into
                for part_path, part in _parts(path, value):
                    if part_path.endswith(".__init__"):
                        only_init.update(id(used) for _, used in _parts(part_path, part))
                    else:
                        pending.append((part_path, part))
    return names, only_init - names.keys()


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, FunctionType):
        if not is_installed(value.__code__.co_filename):
            used, name = value.__globals__, value.__qualname__.rpartition("<locals>.")[2]
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            yield from ((f"{closed} of {name}", cell.cell_contents) for closed, cell in cells)
            yield from ((f"global {one}", used[one]) for one in value.__code__.co_names if one in used)
    elif isinstance(value, (type, ModuleType)):
        module = value if isinstance(value, ModuleType) else sys.modules.get(value.__module__)
        if not is_installed(getattr(module, "__file__", None) or __file__):
            yield from ((f"{value.__name__}.{name}", part) for name, part in vars(value).items())
    elif isinstance(value, Mapping):
        yield from ((f"{path}[{key!r:.40}]", part) for key, part in value.items())
    elif isinstance(value, (list, tuple, set, deque)):
        yield from ((f"{path}[{i}]", part) for i, part in enumerate(value))
    elif not isinstance(value, (np.ndarray, pd.DataFrame, pd.Series, MarketData)):
        yield from ((f"{path}.{name}", part) for name, part in getattr(value, "__dict__", {}).items())
        yield from ((kind.__name__, kind) for kind in type(value).__mro__)
