"""The parent's side of `finpod.lookahead.child`: processes that decide, or compute features, on what they are sent."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from finpod.errors import FinpodError
from finpod.lookahead.child import LIMIT
from finpod.lookahead.guards import Sight
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.strategy import FeatureTable

ROWS = (
    "dates",
    "open",
    "high",
    "low",
    "close",
    "volume",
    "factor",
    "member",
    "has_bar",
    "benchmark_close",
    "benchmark_open",
)
FIXED = ("tickers", "benchmark", "periods_per_year", "sessions_per_year", "bars_per_session")


class ChildError(FinpodError):
    """A process of the audit ended or took too long."""


class Child:
    """A process that decides again; with `whole` it is shown the whole market, as the run was, to see what repeats.

    Raises ChildError where it ends by itself or takes too long, and FinpodError for what the user's code raises.
    """

    def __init__(self, market: MarketData, content: bytes | None, features: Features, *, whole: bool = False) -> None:
        self._market, self._features, self._whole = market, features, whole
        self._sent, self._late, self._deadline, self._closed = 0, False, math.inf, threading.Event()
        self.row = 0
        """The row that features are looked at for."""
        self.sights: dict[Sight, int] = {}
        """What was read from elsewhere, and the row on which it was first."""
        self.lacking: set[str] = set()
        """Guards that could not be set (`guards.lacking`)."""
        search = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "finpod.lookahead.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": search},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout
        threading.Thread(target=self._watch, daemon=True).start()
        fixed = {name: getattr(market, name) for name in FIXED} | {"manifest": {}, "origin": {}}
        fixed |= {name: None for name in ROWS if getattr(market, name) is None}
        try:
            self._call("load", sys.path, fixed, market.extra.width, content)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and those that it started."""
        self._closed.set()
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL) if hasattr(os, "killpg") else self._process.kill()
        for pipe in (self._requests, self._replies):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.wait()

    def decide(self, row: int, step: int, cash: float, equity: float, held: Array) -> Any:
        """The decision on a row, not checked yet; rows are asked for in order of time."""
        new = self._rows(len(self._market.dates) if self._whole else row + 1)
        return self._call("decide", new, row, step, cash, equity, held, row=row)

    def declared(self) -> list[Function]:
        """The functions among the features that the strategy declares."""
        return [self._features.function(*one) for one in self._call("declared")]

    def values(self, function: bytes, market: MarketData) -> Array:
        """Values [T, N] of a feature function on a market."""
        values: Array = self._call("values", function, market, row=self.row)
        return values

    def _rows(self, stop: int) -> tuple[Any, ...] | None:
        """The rows up to `stop` that the child lacks, their extra columns, and the last bars as far as they are known."""
        part, market = slice(self._sent, stop), self._market
        if self._sent >= stop:
            return None
        self._sent = stop
        tables = {name: getattr(market, name)[part] for name in ROWS if getattr(market, name) is not None}
        extra = {name: table[part] for name, table in market.extra.tables.items()}
        return tables, extra, np.minimum(market.last_bar, market.dates[stop - 1])

    def _call(self, name: str, *arguments: Any, row: int = 0) -> Any:
        self._deadline = time.monotonic() + LIMIT
        try:
            reply = self._ask(name, arguments)
            while reply[0] == "features":
                reply = self._answer(*reply[1:])
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise ChildError(self._why_ended(row)) from error
        finally:
            self._deadline = math.inf
        _, succeeded, value, sights, lacking = reply
        self.lacking |= lacking
        for sight in sights:
            self.sights.setdefault(sight, row)
        if not succeeded:
            raise FinpodError(value)
        return value

    def _ask(self, *request: Any) -> Any:
        pickle.dump(request, self._requests)
        self._requests.flush()
        return pickle.load(self._replies)

    def _answer(self, asked: Any, known: int) -> Any:
        """Answer a question for features, and wait for the next reply."""
        try:
            names, values = self._features.get(asked)
        except FinpodError as error:
            return self._ask((), str(error))
        return self._ask(names, values[known : self._sent])

    def _watch(self) -> None:
        """End the process when it takes too long."""
        while not self._closed.wait(0.5):
            if time.monotonic() > self._deadline:
                self._late = True
                self._process.kill()

    def _why_ended(self, row: int) -> str:
        day = f"{self._market.dates[row]!s:.10}"
        if self._late:
            return f"the strategy took more than {LIMIT} seconds on {day}; make its decisions faster"
        code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"the process of the strategy ended on {day} ({how}); it must neither exit nor be killed"


class Function:
    """A feature function of the user's, which is computed in a child."""

    def __init__(self, name: str, content: bytes, run: Callable[[bytes, MarketData], Array]) -> None:
        self.__name__, self.content, self._run = name, content, run

    def __call__(self, market: MarketData) -> Array:
        """Values [T, N] on a market."""
        return self._run(self.content, market)

    def by(self, child: Child) -> Function:
        """The same, computed by another child."""
        return Function(self.__name__, self.content, child.values)


class Features:
    """The features of the whole market; functions of the user's are computed in a process of their own."""

    def __init__(self, market: MarketData) -> None:
        self._market = market
        self._child: Child | None = None
        self.table = FeatureTable(market)
        self.functions: dict[bytes, Function] = {}
        """The functions that were asked for, by their pickles."""

    def get(self, sent: Sequence[str | tuple[str, bytes]]) -> tuple[tuple[str, ...], Array]:
        """Names [F] and values [T, N, F] of features, of which functions are sent as their names and pickles."""
        return self.table.get([one if isinstance(one, str) else self.function(*one) for one in sent])

    def function(self, name: str, content: bytes) -> Function:
        """A function from its pickle."""
        return self.functions.setdefault(content, Function(name, content, self._values))

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.close()

    def _values(self, content: bytes, market: MarketData) -> Array:
        self._child = self._child or Child(self._market, None, self)
        return self._child.values(content, market)
