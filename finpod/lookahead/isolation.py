"""Starts and calls the child processes of an audit, which run `finpod.lookahead.child`."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from finpod.errors import FinpodError
from finpod.lookahead.guards import Access
from finpod.market.data import SERIES, TABLES, MarketData
from finpod.measures import Array
from finpod.strategy import FeatureTable, MarketView, Strategy

LIMIT = 60
"""Largest number of seconds for loading the strategy, for one decision, and for the values of one feature."""
ROWS = ("dates", "has_bar", "sessions", "begins_session")
"""Fields of a market with one value or row per date, in addition to its tables."""
FIXED = ("tickers", "benchmark", "periods_per_year", "sessions_per_year", "bars_per_session")
"""Fields of a market that do not depend on its rows."""


class ChildError(FinpodError):
    """Raised if a child process of the audit ended or took too long."""


class Isolated:
    """Runs a pickled strategy and its feature functions in child processes. `close` ends the processes."""

    def __init__(self, market: MarketData, content: bytes) -> None:
        self.market, self._content = market, content
        self.table = FeatureTable(market)
        """Features of the whole market."""
        self.functions: dict[bytes, Callable[[MarketData], Array]] = {}
        """Pickle of a requested feature function -> function that computes the feature in a child process."""
        self.rows = {**market.tables, **{name: getattr(market, name) for name in ROWS}}
        """All fields of the market with one value or row per date."""
        self._started: list[Child] = []

    @cached_property
    def child(self) -> Child:
        """Process that receives rows in order of time."""
        return self.start()

    @cached_property
    def _other(self) -> Child:
        """Process that computes feature functions on the whole market."""
        return self.start(whole=True)

    def start(self, *, whole: bool = False) -> Child:
        """Start a process with the strategy, and return it. With `whole`, it has the whole market, as in a run."""
        child = Child(self, whole=whole)
        self._started.append(child)
        fixed = {name: getattr(self.market, name) for name in FIXED} | {"manifest": {}, "origin": {}}
        fixed |= dict.fromkeys({*TABLES, *SERIES} - set(self.rows))
        child.call("load", sys.path, fixed, self._content)
        return child

    def function(self, name: str, content: bytes) -> Callable[[MarketData], Array]:
        """Return a function that takes a market and returns the values of the feature pickled in `content`.
        The process `_other` computes the values on the whole market, and `child` those on any other market."""

        def compute(market: MarketData) -> Array:
            return np.asarray((self._other if market is self.market else self.child).call("values", content, market))

        compute.__name__ = name
        return self.functions.setdefault(content, compute)

    def close(self) -> None:
        """End the processes."""
        for child in self._started:
            child.close()


class Child(Strategy):
    """A strategy in a child process. Its errors are raised as FinpodError; if the process ends, as ChildError."""

    def __init__(self, isolated: Isolated, *, whole: bool) -> None:
        self._isolated, self._market, self.whole, self._sent = isolated, isolated.market, whole, 0
        self.at = "decisions", 0
        """The current computation: its kind, "decisions" or "features", and its row of the market."""
        self.accesses: dict[Access, tuple[str, int]] = {}
        """Access -> value of `at` when the access was first recorded."""
        search = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        options: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": search}, "start_new_session": True, **pipes}
        self._process = subprocess.Popen([sys.executable, "-P", "-m", "finpod.lookahead.child"], **options)
        self._requests: Any = self._process.stdin
        self._replies: Any = self._process.stdout

    def decide(self, view: MarketView) -> Any:
        """Return the decision, which is not validated yet. Calls must be in order of the rows of their views."""
        market, row, new = self._market, view._row, None
        stop = len(market.dates) if self.whole else row + 1
        if stop > self._sent:
            part, self._sent = slice(self._sent, stop), stop
            tables = {name: table[part] for name, table in self._isolated.rows.items()}
            extra = {name: table[part] for name, table in market.extra.tables.items()}
            new = tables, extra, np.minimum(market.last_bar, market.dates[stop - 1])
        self.at = "decisions", row
        return self.call("decide", new, row, view.step, view.cash, view.equity, view.held)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of `child.Child` in the process, answer its requests for features, and return its result."""
        begun = time.monotonic()
        try:
            kind, *reply = self._ask(LIMIT, name, arguments)
            while kind == "features":
                kind, *reply = self._ask(*self._features(*reply))
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            day = f"{self._market.dates[self.at[1]]!s:.10}"
            if time.monotonic() - begun >= LIMIT:
                text = f"the strategy or a feature exceeded the limit of {LIMIT} seconds on {day}; make it faster"
            else:
                text = f"the strategy's process ended on {day} (exit code {self._process.wait()}); it must keep running"
            raise ChildError(text) from error
        succeeded, value, accesses = reply
        for access in accesses:
            self.accesses.setdefault(access, self.at)
        if not succeeded:
            raise FinpodError(value)
        return value

    def _ask(self, *request: Any) -> Any:
        pickle.dump(request, self._requests)
        self._requests.flush()
        return pickle.load(self._replies)

    def _features(self, asked: Sequence[str | tuple[str, bytes]], known: int) -> tuple[tuple[str, ...], Array | str]:
        """Return (names, values) of features on the rows sent from row `known` on, or ((), error text) on failure."""
        function = self._isolated.function
        try:
            names, values = self._isolated.table.get([one if isinstance(one, str) else function(*one) for one in asked])
        except FinpodError as error:
            return (), str(error)
        return names, values[known : self._sent]

    def close(self) -> None:
        """End the process, and the processes that it started."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL) if hasattr(os, "killpg") else self._process.kill()
        for pipe in (self._requests, self._replies):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.wait()
