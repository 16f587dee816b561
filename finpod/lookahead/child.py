"""The child process of an audit. It repeats decisions on the rows that it has received so far, in order of time.

`finpod.lookahead.isolation` runs `python -m finpod.lookahead.child`. Requests and replies are pickles over pipes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import pickle
import sys
import warnings
from typing import Any, BinaryIO, NoReturn

import numpy as np

from finpod.errors import FinpodError, with_kind
from finpod.lookahead import guards
from finpod.market.data import MarketData
from finpod.market.extra import ExtraData
from finpod.measures import Array
from finpod.pickling import dumps_by_value
from finpod.strategy import FeatureTable, MarketView


class Rows:
    """Read-only tables [T, ...] to which rows can be appended."""

    def __init__(self) -> None:
        self.count = 0
        self.tables: dict[str, Array] = {}
        self._buffers: dict[str, Array] = {}

    def append(self, rows: dict[str, Array]) -> None:
        """Append rows to every table."""
        start, self.count = self.count, self.count + len(next(iter(rows.values()), ()))
        for name, new in rows.items():
            if self.count > len(self._buffers.get(name, ())):
                larger = np.empty((2 * self.count, *new.shape[1:]), new.dtype)
                larger[:start] = self._buffers.get(name, new)[:start]
                self._buffers[name] = larger
            self._buffers[name][start : self.count] = new
            self.tables[name] = self._buffers[name][: self.count]
            self.tables[name].flags.writeable = False


class Child(FeatureTable):
    """State of the process: strategy, market up to the last row received, and features that the parent computed."""

    def __init__(self, requests: BinaryIO, replies: BinaryIO) -> None:
        self._requests, self._replies = requests, replies
        self.market = object.__new__(MarketData)
        self._rows, self._extra = Rows(), Rows()
        self._features: dict[Any, tuple[tuple[str, ...], Rows]] = {}
        self._strategy: Any = None

    def __deepcopy__(self, memo: Any) -> Child:
        return self

    def serve(self) -> None:
        """Answer requests until the parent closes the pipe."""
        while True:
            try:
                limit, name, arguments = pickle.load(self._requests)
            except EOFError:
                return
            faulthandler.dump_traceback_later(limit, exit=True, file=2)  # also ends native code that hangs
            try:
                answer = True, getattr(self, name)(*arguments)
            except BaseException as error:  # the user's code may raise anything, even SystemExit
                answer = False, with_kind(error)
            faulthandler.cancel_dump_traceback_later()
            self._send("done", *answer, list(guards.accesses.values()))

    def _send(self, *reply: Any) -> None:
        pickle.dump(reply, self._replies)
        self._replies.flush()

    def load(self, path: list[str], fixed: dict[str, Any], payload: bytes) -> None:
        """Install the guards and load the strategy. `fixed` holds the market's fields that do not depend on rows."""
        sys.path[:] = path
        vars(self.market).update(fixed)
        guards.install()
        self._strategy = loads(payload, self.market)

    def decide(self, new: tuple[Any, ...] | None, row: int, step: int, cash: float, equity: float, held: Array) -> Any:
        """Append the `new` rows, and return the decision at `row`: None, an array [N] or a dict ticker -> weight."""
        if new is not None:
            tables, extra, last_bar = new
            self._rows.append(tables)
            self._extra.append(extra)
            extra = ExtraData(self._extra.tables, len(self.market.tickers))
            vars(self.market).update(self._rows.tables, last_bar=last_bar, extra=extra)
            vars(self.market).pop("content_hash", None)  # the cached hash does not include the new rows
        view = MarketView(self.market, row, step=step, cash=cash, equity=equity, held=held, table=self)
        decision = self._strategy.decide(view)
        if hasattr(decision, "keys"):
            return {str(ticker): float(weight) for ticker, weight in decision.items()}
        return None if decision is None else np.array(decision, dtype=np.float64)

    def values(self, function: bytes, market: MarketData) -> Array:
        """Return the values [T, N] of a feature function on a market."""
        return np.array(loads(function, market)(market), dtype=np.float64)

    def get(self, names: Any) -> tuple[tuple[str, ...], Array]:
        """Return the names [F] and values [T, N, F] float32 of features on the rows received so far."""
        key = tuple(names) if isinstance(names, (list, tuple)) else ("default" if names is None else names,)
        found, rows = self._features.get(key, ((), Rows()))
        if rows.count < self._rows.count:
            called = {one: getattr(one, "__name__", type(one).__name__) for one in key if not isinstance(one, str)}
            asked = [(called[one], dumps_by_value(one)) if one in called else one for one in key]
            self._send("features", asked, rows.count)
            found, new = pickle.load(self._requests)
            if isinstance(new, str):
                raise FinpodError(new)
            rows.append({"values": new})
            self._features[key] = found, rows
        return found, rows.tables["values"]


def loads(payload: bytes, market: MarketData) -> Any:
    """Return the strategy or feature function pickled in `payload`. `market` takes the place of the omitted market."""
    unpickler = pickle.Unpickler(io.BytesIO(payload))
    unpickler.persistent_load = lambda key: market  # type: ignore[method-assign]
    return unpickler.load()


def main() -> NoReturn:
    """Answer requests over pipes. The strategy gets an empty standard input, and its output is discarded."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    warnings.simplefilter("ignore")
    with contextlib.suppress(BrokenPipeError):
        Child(requests, replies).serve()
    os._exit(0)  # does not wait for threads of the strategy


if __name__ == "__main__":
    sys.modules["finpod.lookahead.child"] = sys.modules["__main__"]
    main()
