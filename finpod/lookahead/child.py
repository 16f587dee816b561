"""The process in which decisions are taken again: it is given rows in order of time and never holds a later one.

Started by `finpod.lookahead.isolation` as `python -m finpod.lookahead.child`. Requests and replies are pickles over pipes.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Mapping
from typing import Any, BinaryIO, NoReturn

import numpy as np

from finpod.errors import FinpodError, first_line
from finpod.lookahead import guards
from finpod.market.data import MarketData
from finpod.market.extra import ExtraData
from finpod.measures import Array
from finpod.pickling import dumps_by_value, is_installed
from finpod.strategy import FeatureTable, MarketView

LIMIT = 60
"""Seconds that one decision may take; the parent ends the process after them."""


class Rows:
    """Tables [T, ...] that grow by rows."""

    def __init__(self) -> None:
        self.count = 0
        self._tables: dict[str, Array] = {}

    def append(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Append rows to every table, and return all rows so far as read-only views."""
        added = len(next(iter(rows.values())))
        for name, new in rows.items():
            table = self._tables.get(name)
            if table is None or len(table) < self.count + added:
                larger = np.empty((2 * (self.count + added), *new.shape[1:]), new.dtype)
                if table is not None:
                    larger[: self.count] = table[: self.count]
                self._tables[name] = table = larger
            table[self.count : self.count + added] = new
        self.count += added
        views = {name: table[: self.count] for name, table in self._tables.items()}
        for view in views.values():
            view.flags.writeable = False
        return views


class Child:
    """The state of the process: the strategy and the market so far."""

    def __init__(self, requests: BinaryIO, replies: BinaryIO) -> None:
        self._requests, self._replies = requests, replies
        self._process = os.getpid()
        self.market, self.extra = object.__new__(MarketData), object.__new__(ExtraData)
        self._rows, self._extra_rows = Rows(), Rows()
        self._features: dict[Any, tuple[tuple[str, ...], Rows, dict[str, Array]]] = {}
        self._strategy: Any = None

    def serve(self) -> None:
        """Answer requests until the parent closes the pipe."""
        while True:
            try:
                name, arguments = pickle.load(self._requests)
            except EOFError:
                return
            if hasattr(signal, "alarm"):
                signal.alarm(2 * LIMIT)  # if the parent was killed, nobody else ends a decision that hangs
            try:
                answer = True, getattr(self, name)(*arguments)
            except BaseException as error:  # whatever the user's code raises, SystemExit included
                reason = "" if isinstance(error, FinpodError) else f"{type(error).__name__}: "
                answer = False, reason + first_line(error)
            self._send("done", *answer, guards.take(), guards.lacking)

    def _send(self, *reply: Any) -> None:
        if os.getpid() != self._process:  # the copy that a fork of the user's left
            os._exit(0)
        pickle.dump(reply, self._replies)
        self._replies.flush()

    def load(self, path: list[str], fixed: dict[str, Any], width: int, payload: bytes | None) -> None:
        """Set the guards and load the strategy; `fixed` are the fields of the market that no row changes."""
        sys.path[:] = path
        vars(self.market).update(fixed, extra=self.extra)
        vars(self.extra).update(tables={}, width=width)
        guards.install()
        if payload is not None:
            self._strategy = loads(payload, self.market)
            for kind in type(self._strategy).__mro__:
                file = getattr(sys.modules.get(kind.__module__.partition(".")[0]), "__file__", None)
                if kind.__module__.partition(".")[0] not in ("builtins", "finpod") and file and is_installed(file):
                    guards.add_home(file)

    def _append(self, tables: Mapping[str, Array], extra: Mapping[str, Array], last_bar: Array) -> None:
        """Append rows to the market, which all views share."""
        for name in ("sessions", "begins_session", "content_hash"):
            vars(self.market).pop(name, None)
        vars(self.market).update(self._rows.append(tables), last_bar=last_bar)
        if extra:
            vars(self.extra)["tables"] = self._extra_rows.append(extra)

    def decide(self, new: tuple[Any, ...] | None, row: int, step: int, cash: float, equity: float, held: Array) -> Any:
        """The decision at a row, after the `new` rows, in plain values: None, an array [N] or a dict by ticker."""
        if new is not None:
            self._append(*new)
        table: Any = _RemoteTable(self)
        view = MarketView(self.market, row, step=step, cash=cash, equity=equity, held=held, table=table)
        decision = self._strategy.decide(view)
        if decision is None:
            return None
        if hasattr(decision, "keys"):
            return {str(ticker): float(weight) for ticker, weight in decision.items()}
        return np.array(decision, dtype=np.float64)

    def declared(self) -> list[tuple[str, bytes]]:
        """The functions among the features that the strategy declares, by name, as pickles."""
        features = getattr(self._strategy, "features", None)
        sent = _sent(features) if isinstance(features, (list, tuple)) or callable(features) else []
        return [one for one in sent if isinstance(one, tuple)]

    def values(self, function: bytes, market: MarketData) -> Array:
        """Values [T, N] of a feature function on a market."""
        values = loads(function, market)(market)
        return np.array(values if not hasattr(values, "numpy") else values.numpy(), dtype=np.float64)

    def features(self, names: Any) -> tuple[tuple[str, ...], Array]:
        """Names [F] and values [T, N, F] of features on the rows so far, which the parent computes."""
        key = tuple(names) if isinstance(names, (list, tuple)) else names
        names, rows, values = self._features.get(key, ((), Rows(), {}))
        if rows.count < self._rows.count:
            self._send("features", _sent(key), rows.count)
            names, new = pickle.load(self._requests)
            if isinstance(new, str):
                raise FinpodError(new)
            values = rows.append({"values": new})
            self._features[key] = names, rows, values
        return names, values["values"]


class _RemoteTable(FeatureTable):
    """Features that are computed by the parent and sent up to the row of the decision."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def get(self, names: Any) -> tuple[tuple[str, ...], Array]:
        """Names [F] and values [T, N, F] float32."""
        return self._child.features(names)

    def __deepcopy__(self, memo: Any) -> _RemoteTable:
        return self


def _sent(features: Any) -> list[str | tuple[str, bytes]]:
    """Names of features, and functions as their names and pickles."""
    single = features if isinstance(features, (list, tuple)) else ["default" if features is None else features]
    return [
        one if isinstance(one, str) else (getattr(one, "__name__", type(one).__name__), dumps_by_value(one))
        for one in single
    ]


def loads(payload: bytes, market: MarketData) -> Any:
    """Unpickle what `isolation.pack` wrote; the market that was left out is replaced by `market`."""
    unpickler = pickle.Unpickler(io.BytesIO(payload))
    unpickler.persistent_load = lambda key: market  # type: ignore[method-assign]
    return unpickler.load()


def main() -> NoReturn:
    """Serve on pipes of its own: what a strategy prints goes nowhere, and it has no input."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    warnings.simplefilter("ignore")
    with contextlib.suppress(BrokenPipeError):
        Child(requests, replies).serve()
    os._exit(0)  # without waiting for the threads of a strategy


if __name__ == "__main__":
    sys.modules["finpod.lookahead.child"] = sys.modules["__main__"]
    main()
