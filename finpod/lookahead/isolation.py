"""The parent's side of `finpod.lookahead.child`: processes that decide, or compute features, on the rows that they are sent."""

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
from finpod.lookahead.guards import Sight
from finpod.market.data import SERIES, TABLES, MarketData
from finpod.measures import Array
from finpod.strategy import FeatureTable, MarketView, Strategy

LIMIT = 60
"""Seconds that one decision, or the values of one feature, may take."""
ROWS = ("dates", "has_bar", "sessions", "begins_session")
"""Names of the fields of a market with one row a bar, besides its tables."""
FIXED = ("tickers", "benchmark", "periods_per_year", "sessions_per_year", "bars_per_session")
"""Names of the fields of a market that no row changes."""


class ChildError(FinpodError):
    """Error: a process of the audit ended or took too long."""


class Isolated:
    """A strategy, given as its pickle, and feature functions in processes of their own. `close` ends the processes."""

    def __init__(self, market: MarketData, content: bytes) -> None:
        self.market, self._content = market, content
        self.table = FeatureTable(market)
        """Features of the whole market."""
        self.functions: dict[bytes, Callable[[MarketData], Array]] = {}
        """User's functions among the requested features, by their pickles."""
        self.rows = {**market.tables, **{name: getattr(market, name) for name in ROWS}}
        """All fields of the market with one row a bar."""
        self._started: list[Child] = []

    @cached_property
    def child(self) -> Child:
        """Process that is given rows in order of time."""
        return self.start()

    @cached_property
    def _other(self) -> Child:
        """The process that computes functions on the whole market."""
        return self.start(whole=True)

    def start(self, *, whole: bool = False) -> Child:
        """Return a new process with the strategy. With `whole` it has the whole market, as the run had."""
        child = Child(self, whole=whole)
        self._started.append(child)
        fixed = {name: getattr(self.market, name) for name in FIXED} | {"manifest": {}, "origin": {}}
        fixed |= dict.fromkeys({*TABLES, *SERIES} - set(self.rows))
        child.call("load", sys.path, fixed, self._content)
        return child

    def function(self, name: str, content: bytes) -> Callable[[MarketData], Array]:
        """Return a feature function from its pickle. One process computes it on the whole market, another one on parts."""

        def compute(market: MarketData) -> Array:
            values: Array = (self._other if market is self.market else self.child).call("values", content, market)
            return values

        compute.__name__ = name
        return self.functions.setdefault(content, compute)

    def close(self) -> None:
        """End the processes."""
        for child in self._started:
            child.close()


class Child(Strategy):
    """A strategy in another process. Raises ChildError if it ends or takes too long, and FinpodError for the user's errors."""

    def __init__(self, isolated: Isolated, *, whole: bool) -> None:
        self._isolated, self._market, self.whole, self._sent = isolated, isolated.market, whole, 0
        self.at = "decisions", 0
        """Part that is computed, "decisions" or "features", and the row for which it is computed."""
        self.sights: dict[Sight, tuple[str, int]] = {}
        """What was read from elsewhere -> `at` when it was first read."""
        search = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "finpod.lookahead.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": search},
            start_new_session=True,
        )
        self._requests: Any = self._process.stdin
        self._replies: Any = self._process.stdout

    def decide(self, view: MarketView) -> Any:
        """Return the decision, not checked yet. Rows must be asked for in order of time."""
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
        """Return the result of a method of `child.Child`. Meanwhile its requests for features are answered."""
        begun = time.monotonic()
        try:
            kind, *reply = self._ask(LIMIT, name, arguments)
            while kind == "features":
                kind, *reply = self._ask(*self._features(*reply))
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            day = f"{self._market.dates[self.at[1]]!s:.10}"
            if time.monotonic() - begun >= LIMIT:
                raise ChildError(f"the strategy took more than {LIMIT} seconds on {day}; make it faster") from error
            how = f"ended on {day} (exit code {self._process.wait()})"
            raise ChildError(f"the strategy's process {how}; it must not exit or be killed") from error
        succeeded, value, sights = reply
        for sight in sights:
            self.sights.setdefault(sight, self.at)
        if not succeeded:
            raise FinpodError(value)
        return value

    def _ask(self, *request: Any) -> Any:
        pickle.dump(request, self._requests)
        self._requests.flush()
        return pickle.load(self._replies)

    def _features(self, asked: Sequence[str | tuple[str, bytes]], known: int) -> tuple[tuple[str, ...], Array | str]:
        """Features by name, or name and pickle of a function, on the rows from `known` on; or why there are none."""
        function = self._isolated.function
        try:
            names, values = self._isolated.table.get([one if isinstance(one, str) else function(*one) for one in asked])
        except FinpodError as error:
            return (), str(error)
        return names, values[known : self._sent]

    def close(self) -> None:
        """End the process and those that it started."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL) if hasattr(os, "killpg") else self._process.kill()
        for pipe in (self._requests, self._replies):
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.wait()
