"""`Backtests`: many strategies on ready weights, run together. Each one's full result is computed on demand."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

import numpy as np
import pandas as pd
import torch

from finpod.backtesting.sentences import reason
from finpod.backtesting.text import describe_terms
from finpod.errors import InputError
from finpod.figures import percent, ratio, text_table
from finpod.measures import Array, Metrics, metrics
from finpod.periods import yearly_note
from finpod.result import BacktestResult
from finpod.significance import expected_best
from finpod.trading.ledger import Costs
from finpod.trading.relaxation import relax
from finpod.trading.simulate import Path, Terms, Totals, Window, simulate, simulate_totals
from finpod.weights import PrecomputedWeights

TOGETHER = 2**17
"""Accounts times assets that are settled at once; sized for a processor's cache."""

FIGURES = (
    ("Total return", "total_return", percent),
    ("CAGR", "cagr", percent),
    ("Volatility", "volatility", percent),
    ("Sharpe", "sharpe", ratio),
    ("Max drawdown", "max_drawdown", percent),
)
HEAD = ("mean", "sd", "lowest", "median", "highest")


@dataclass(frozen=True, kw_only=True, eq=False)
class Backtests(Sequence[BacktestResult]):
    """S strategies over one window; prints statistics of the group.

    `[s]` and iteration run a strategy again and return its `BacktestResult`; a slice returns `Backtests`. Only sums over
    assets are stored, so thousands of strategies take less memory than their weights. n is the number of returns.
    """

    equity: pd.DataFrame
    """[n + 1, S] value of each account at each close."""
    turnover: pd.DataFrame
    """[n, S] traded notional / equity at the fill, both sides counted, on the day of the fill."""
    costs_paid: pd.DataFrame
    """[n, S] costs of the fills of that day, in currency."""
    unfilled: pd.Series
    """[S] buy orders that were not filled at all; the events of a result give the reasons."""
    delisted: pd.Series
    """[S] positions turned into cash because the asset left the exchange."""
    trials: int
    """Number of strategies run together, also for a slice of them."""
    costs: Costs
    """Costs that were charged."""
    fill: str
    """'open' or 'close': the price at which decisions are filled."""
    whole_shares: bool
    """True if only whole shares, as traded, were bought and sold."""
    risk_free: float
    """Risk-free rate a year, used in the Sharpe ratio."""
    periods_per_year: float
    """Returns in a year."""
    sessions_per_year: float
    """Sessions in a year."""
    run: Callable[[int], BacktestResult]
    """Runs strategy s alone."""

    @cached_property
    def metrics(self) -> Metrics:
        """Metrics of all strategies: arrays [S]."""
        return metrics(self.equity.to_numpy(), risk_free=self.risk_free, periods_per_year=self.periods_per_year)

    def __len__(self) -> int:
        return self.equity.shape[1]

    @overload
    def __getitem__(self, s: int) -> BacktestResult: ...
    @overload
    def __getitem__(self, s: slice) -> Backtests: ...
    def __getitem__(self, s: int | slice) -> BacktestResult | Backtests:
        places = range(len(self))
        if isinstance(s, slice):
            if not places[s]:
                raise InputError(f"{s} takes none of {len(self)} backtests")
            names = ("equity", "turnover", "costs_paid", "unfilled", "delisted")
            tables: dict[str, Any] = {name: getattr(self, name).T.iloc[s].T for name in names}
            return replace(self, **tables, run=lambda place: self.run(places[s][place]))
        try:
            return self.run(places[operator.index(s)])
        except TypeError:
            raise InputError(f"{s!r:.60} is no place among {len(self)} backtests; count them from 0 on") from None
        except IndexError:
            raise IndexError(f"there is no backtest {s}; there are {len(self)}, counted from 0 on") from None

    def __iter__(self) -> Iterator[BacktestResult]:
        return map(self.run, range(len(self)))

    def __str__(self) -> str:
        start, end = (f"{self.equity.index[i]:%Y-%m-%d}" for i in (0, -1))
        ratios = np.asarray(self.metrics.sharpe)
        rows = [
            (label, [show(figure) for figure in _spread(getattr(self.metrics, key))]) for label, key, show in FIGURES
        ]
        lines = [
            f"{len(self):,} {'strategy' if len(self) == 1 else 'strategies'}, {start} .. {end}",
            describe_terms(self.costs, self.fill, self.whole_shares),
            "",
            *text_table(HEAD, rows),
            yearly_note(self.periods_per_year, self.sessions_per_year),
        ]
        mean, sd, *_ = _spread(ratios)
        if np.isfinite(sd):  # compared with the expected best of as many strategies without skill
            best, luck = int(np.nanargmax(ratios)), ratio(mean + expected_best(self.trials, sd))
            lines += [
                "",
                f"{self.equity.columns[best]} has the highest Sharpe ratio, {ratio(ratios[best])}. "
                f"If the {self.trials:,} that were tried differed by luck alone, their best would be expected at {luck}.",
            ]
        return "\n".join([*lines, "", f"warning: {reason('ready_weights')}"])


def path_of(ready: PrecomputedWeights, s: int, window: Window, terms: Terms, *, fast: bool = False) -> Path:
    """The path of strategy `s`, session by session; with `fast`, many sessions at once, equal to 1e-9 (`relax`)."""
    if fast:
        return relax(window.execution, window.first, window.last, ready.steps(s), terms)
    decide = ready.decisions(slice(s, s + 1))
    path = simulate(window.execution, window.first, window.last, decide, terms, (1,))
    return Path(*(part[:, 0] for part in path))


def run_together(
    ready: PrecomputedWeights, window: Window, terms: Terms, run: Callable[[int], BacktestResult], risk_free: float
) -> Backtests:
    """Run all strategies together; `run` returns the result of one."""
    count, size = len(ready.labels), max(TOGETHER // window.execution.mark.shape[1], 1)
    parts = []
    for first in range(0, count, size):
        part = slice(first, min(first + size, count))
        decide, accounts = ready.decisions(part), (part.stop - part.start,)
        parts.append(simulate_totals(window.execution, window.first, window.last, decide, terms, accounts))
    totals = Totals(*(torch.cat(columns, -1) for columns in zip(*parts, strict=True)))
    dates, fills = (
        pd.DatetimeIndex(days, name="date") for days in (window.dates, window.market.dates[window.fill_rows])
    )
    tables = ((dates, totals.equity), (fills, totals.turnover), (fills, totals.cost))
    equity, turnover, cost = (pd.DataFrame(values.numpy(), days, ready.labels, copy=False) for days, values in tables)
    return Backtests(
        equity=equity,
        turnover=turnover,
        costs_paid=cost,
        unfilled=pd.Series(totals.unfilled.numpy(), ready.labels, name="unfilled"),
        delisted=pd.Series(totals.delisted.numpy(), ready.labels, name="delisted"),
        trials=count,
        costs=terms.costs,
        fill=window.execution.fill,
        whole_shares=terms.whole_shares,
        risk_free=risk_free,
        periods_per_year=window.market.periods_per_year,
        sessions_per_year=window.market.sessions_per_year,
        run=run,
    )


def _spread(figures: Array) -> tuple[float, ...]:
    """Mean, standard deviation, lowest, median and highest of the defined figures."""
    known = figures[np.isfinite(figures)]
    if not len(known):
        return (np.nan,) * 5
    sd = known.std(ddof=1) if len(known) > 1 else np.nan
    return (float(known.mean()), float(sd), *(float(cut) for cut in np.quantile(known, [0, 0.5, 1])))
