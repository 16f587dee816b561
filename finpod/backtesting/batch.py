"""`Backtests`: many strategies, given as weights and run together. The full result of each is computed on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import torch

from finpod.backtesting.run import dates_of
from finpod.backtesting.sentences import reason
from finpod.backtesting.text import describe_terms
from finpod.figures import plural, ratio
from finpod.measures import Metrics, metrics
from finpod.periods import yearly_note
from finpod.result import BacktestResult
from finpod.significance import expected_best
from finpod.trading.relaxation import relax
from finpod.trading.simulate import Path, Terms, Totals, Window, simulate, simulate_totals
from finpod.weights import PrecomputedWeights

TOGETHER = 2**17
"""Largest number of accounts x assets settled at once, chosen to fit the processor's cache."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Backtests:
    """Results of S strategies over one window; `print` compares the best Sharpe ratio with the best expected by luck.

    `backtests[s]` runs strategy s again and returns its `BacktestResult`, which also has trades and events. Iteration
    does the same for each strategy. To save memory, only sums over assets are stored. n is the number of returns.
    """

    equity: pd.DataFrame
    """[n + 1, S] value of each account at each close."""
    turnover: pd.DataFrame
    """[n, S] notional bought and sold by the fills of each date / equity at the fill."""
    costs_paid: pd.DataFrame
    """[n, S] costs of the fills of each date, in currency."""
    terms: str
    """Costs and fills, as one line of text."""
    risk_free: float
    """Risk-free rate per year, used in the Sharpe ratio."""
    periods_per_year: float
    """Number of returns per year."""
    sessions_per_year: float
    run: Callable[[int], BacktestResult]
    """Function of s that runs strategy s alone and returns its result."""

    @cached_property
    def metrics(self) -> Metrics:
        """Metrics of all strategies, as arrays [S]."""
        return metrics(self.equity.to_numpy(), risk_free=self.risk_free, periods_per_year=self.periods_per_year)

    def __len__(self) -> int:
        return self.equity.shape[1]

    def __getitem__(self, s: int) -> BacktestResult:
        return self.run(range(len(self))[s])

    def __iter__(self) -> Iterator[BacktestResult]:
        return map(self.run, range(len(self)))

    def __str__(self) -> str:
        start, end = (f"{self.equity.index[i]:%Y-%m-%d}" for i in (0, -1))
        lines = [f"{plural(len(self), 'backtest')}, {start} .. {end}", self.terms]
        ratios = pd.Series(self.metrics.sharpe, self.equity.columns).dropna()
        if len(ratios) > 1:  # compare the best ratio with the best expected among this many strategies by luck alone
            mean, sd, best = ratios.mean(), ratios.std(), ratios.max()
            luck = ratio(mean + expected_best(len(ratios), sd))
            lines += [
                f"Sharpe ratios from {ratio(ratios.min())} to {ratio(best)}, mean {ratio(mean)}, standard deviation "
                f"{ratio(sd)}",
                f"{ratios.idxmax()} has the highest Sharpe ratio, {ratio(best)}. If the strategies differed by luck "
                f"alone, the best of {len(ratios):,} would be expected to have {luck}.",
                yearly_note(self.periods_per_year, self.sessions_per_year),
            ]
        return "\n".join([*lines, f"warning: {reason('ready_weights')}"])


def path_of(ready: PrecomputedWeights, s: int, window: Window, terms: Terms, *, fast: bool = False) -> Path:
    """Return the account history of strategy `s`. `fast` uses `relax`: equity is that of `simulate` to 9 digits."""
    if fast:
        return relax(window.execution, window.first, window.last, ready.steps(s), terms)
    decide = ready.decisions(slice(s, s + 1))
    return Path(*(part[:, 0] for part in simulate(window.execution, window.first, window.last, decide, terms, (1,))))


def run_together(
    ready: PrecomputedWeights, window: Window, terms: Terms, run: Callable[[int], BacktestResult], risk_free: float
) -> Backtests:
    """Return the `Backtests` of all strategies, run together; `run(s)` returns the result of strategy s."""
    count, size = len(ready.labels), max(TOGETHER // window.execution.mark.shape[1], 1)
    parts = []
    for first in range(0, count, size):
        part = slice(first, min(first + size, count))
        decide, accounts = ready.decisions(part), (part.stop - part.start,)
        parts.append(simulate_totals(window.execution, window.first, window.last, decide, terms, accounts))
    totals = Totals(*(torch.cat(columns, -1) for columns in zip(*parts, strict=True)))
    dates, fills = dates_of(window), dates_of(window, window.fill_rows)
    return Backtests(
        equity=pd.DataFrame(totals.equity.numpy(), dates, ready.labels, copy=False),
        turnover=pd.DataFrame(totals.turnover.numpy(), fills, ready.labels, copy=False),
        costs_paid=pd.DataFrame(totals.cost.numpy(), fills, ready.labels, copy=False),
        terms=describe_terms(terms.costs, window.execution.fill, terms.whole_shares, terms.delisting_return),
        risk_free=risk_free,
        run=run,
        **window.market.frequency,
    )
