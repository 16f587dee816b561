"""The decisions of a run, so that they can be taken again: a strategy that waits does nothing in a made-up account."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from torch import Tensor

from finpod.errors import FinpodError
from finpod.lookahead.examination import AskedView, Deciding, copy_of
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.strategy import FeatureTable, Strategy
from finpod.trading.execution import Account, build_execution
from finpod.trading.simulate import Path, Terms, Window, simulate
from finpod.weights import decisions_of

MEMORY = 2
"""Decisions before one that are taken again with it, besides a first one."""


class Played(NamedTuple):
    """Every time that a run asked a strategy, in order."""

    rows: Array
    """[A] last row that it saw."""
    steps: Array
    """[A] its step in the run."""
    decided: Array
    """[A] bool: whether it decided anything."""
    equity: Array
    """[A] of the account that it saw."""
    cash: Array
    """[A] of that account."""
    held: Array
    """[A, N] weights in it."""

    @property
    def deciding_rows(self) -> Array:
        """Those on which it decided something."""
        return self.rows[self.decided]

    def view(self, at: int, market: MarketData, table: FeatureTable, offset: int) -> AskedView:
        """What it was shown at one of the times, on a piece of the market whose first row is row `offset`."""
        return AskedView(
            market,
            int(self.rows[at]) - offset,
            step=int(self.steps[at]),
            cash=float(self.cash[at]),
            equity=float(self.equity[at]),
            held=self.held[at].copy(),
            table=table,
        )


def played(path: Path, window: Window, every: int) -> Played:
    """Read off the account of a strategy that decides every `every` sessions."""
    lag = window.execution.lag
    first = max(lag - window.first, 0)  # a decision that would have to see a row before the data is not taken
    closes = np.arange(first, window.last - window.first, every)
    rows = window.decision_rows[closes]
    marks, shares = window.execution.mark.numpy(), path.shares.numpy()[closes]
    worth = path.equity.numpy()[closes]
    cash = worth - (shares * marks[window.first + closes]).sum(axis=1)
    positions = shares * marks[rows]
    equity = cash + positions.sum(axis=1)
    held = positions / np.where(equity == 0, 1.0, equity)[:, None]
    decided = ~np.isnan(path.targets.numpy()[closes]).all(axis=1)
    return Played(rows, closes - first, decided, equity, cash, held)


def play(strategy: Strategy, market: MarketData, first: int, last: int) -> Played | None:
    """Run a copy of a strategy from row `first` to row `last` to learn when it decides; None where no run is possible.

    Where it fails it decides nothing any more: what it did before counts.
    """
    if last <= first:
        return None
    execution = build_execution(market, "close" if market.open is None else "open")
    window = Window(market=market, execution=execution, first=first, last=last)
    decide, failed = decisions_of(copy_of(strategy), strategy.name, window), False

    def until_it_fails(step: int, row: int, seen: Account) -> Tensor | None:
        nonlocal failed
        try:
            return None if failed else decide(step, row, seen)
        except FinpodError:
            failed = True
            return None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a run that nobody asked for
        path = simulate(execution, first, last, until_it_fails, Terms())
    return played(path, window, strategy.every)


class Replaying(Deciding):
    """What fresh copies of a strategy decide in the accounts of a run; NaN for rows on which the run decided nothing.

    Before it a copy takes the `MEMORY` decisions before, and before those one more as the first of a run; if
    `from_start`, all decisions since the first.
    """

    def __init__(self, strategy: Strategy, run: Played, *, from_start: bool = False) -> None:
        super().__init__(strategy, int(run.rows[0]), invested=True)
        self.run, self.from_start = run, from_start

    def __call__(self, market: MarketData, table: FeatureTable, row: int, offset: int = 0) -> Array:
        at = int(np.searchsorted(self.run.rows, row + offset))
        nothing = np.full(len(market.tickers), np.nan)
        if at == len(self.run.rows) or self.run.rows[at] != row + offset or not self.run.decided[at]:
            return nothing
        self.decided = copied = copy_of(self.strategy)
        start = 0 if self.from_start else max(at - MEMORY - 1, 0)
        start += int(np.searchsorted(self.run.rows[start:at], offset))
        for before in range(start, at):
            if before == start and not self.from_start:
                self._decide(copied, AskedView(market, int(self.run.rows[before]) - offset, table=table))
            else:
                self._decide(copied, self.run.view(before, market, table, offset))
        weights = self._decide(copied, self.run.view(at, market, table, offset))
        return nothing if weights is None else weights
