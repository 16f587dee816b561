"""`backtest`: run strategies through the ledger, and set them beside the benchmark and the equal weight."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypedDict, Unpack, overload

import numpy as np
import pandas as pd
import torch

from finpod.backtesting.batch import Backtests, path_of, run_together
from finpod.backtesting.outcome import outcome
from finpod.errors import InputError, StrategyError
from finpod.evidence.dossier import as_it_is, with_audit, with_evidence
from finpod.files import Progress
from finpod.market.data import DateLike, MarketData, as_date
from finpod.measures import Array, check_rates
from finpod.result import BacktestResult
from finpod.strategy import FeatureTable, Strategy
from finpod.trading.anchors import EQUAL
from finpod.trading.execution import build_execution
from finpod.trading.ledger import Costs
from finpod.trading.relaxation import relax
from finpod.trading.simulate import Path, Terms, Window, anchor_decisions, simulate
from finpod.weights import ReadyWeights, clean_weights, decisions_of

__all__ = ["Path", "Terms", "anchor_equity", "backtest", "clean_weights", "simulate"]


class Options(TypedDict, total=False):
    """The keyword arguments of `backtest`."""

    start: DateLike | None
    end: DateLike | None
    costs: Costs | None
    fill: str | None
    cash: float
    whole_shares: bool
    risk_free: float
    delisting_return: float
    max_weight: float | None
    max_turnover: float | None
    opened: int
    allow_in_sample: bool
    name: str | None
    examine: bool | None
    fast: bool
    progress: Progress | None


@overload
def backtest(strategy: Strategy, market: MarketData, **options: Unpack[Options]) -> BacktestResult: ...
@overload
def backtest(
    strategy: Array | pd.DataFrame, market: MarketData, **options: Unpack[Options]
) -> BacktestResult | Backtests: ...
def backtest(
    strategy: Strategy | Array | pd.DataFrame,
    market: MarketData,
    *,
    start: DateLike | None = None,
    end: DateLike | None = None,
    costs: Costs | None = None,
    fill: str | None = None,
    cash: float = 1_000_000.0,
    whole_shares: bool = False,
    risk_free: float = 0.0,
    delisting_return: float = 0.0,
    max_weight: float | None = None,
    max_turnover: float | None = None,
    opened: int = 1,
    allow_in_sample: bool = False,
    name: str | None = None,
    examine: bool | None = None,
    fast: bool = False,
    progress: Progress | None = None,
) -> BacktestResult | Backtests:
    """Run a strategy, or ready weights, over the sessions of [start, end] and return a `BacktestResult`.

    `finpod.backtest` also takes the name of a built-in strategy, a .py file or a trained folder, as `load_strategy` does.

    V_0 is the cash at the close of the first session. With fill='open' a decision sees all rows up to a close and is
    filled at the next open; with 'close', at the next close (the default where the data have no opens). Cash earns
    nothing, accounts are long only, shares are fractional unless `whole_shares`. Positions in names that leave the
    exchange become cash at their last price times (1 + delisting_return). `risk_free` is a yearly rate.

    No weight is above `max_weight` and no decision trades more than `max_turnover` of the account, both sides, at the
    fill; `finpod.trading.caps.within_caps` says what becomes of the rest. None leaves a cap as the strategy has it, which
    is as an agent was trained. Equal weight and the rules beside a strategy are not capped.

    Ready weights have shape [T, N], row t being a decision that has seen the rows up to t (a row of NaN trades
    nothing), or [S, T, N] for S strategies at once, which gives their `Backtests`. They are not copied. With `fast` many
    sessions of one strategy are settled at once: in a tenth of the time, and the same to 1e-9 instead of the last bit, so
    that trades of next to nothing may be counted otherwise.

    Two days of every strategy are audited for look-ahead. With `examine`, which is what trained agents get unless told
    otherwise, it is also set beside simple baselines and random portfolios, and its decisions are replayed at other costs
    and sizes (`finpod.evidence`). The verdict is over the strategy's `anchor`, equal weight unless it says otherwise,
    restored as often as the strategy decides (`every`), and widened for `opened`, the number of results of this window
    that were looked at. `progress` is called with what is being done and the share that is done.

    Raises InputError for a window without two sessions, for one that starts on or before `trained_until` (unless
    `allow_in_sample`), and for `fast` with a Strategy, which decides one day after the other; StrategyError, naming
    strategy and day, for weights that cannot be.
    """
    if not isinstance(market, MarketData):
        raise InputError(
            f"market is a {type(market).__name__}; give what load_market(...) or sample_market() returns",
            argument="market",
        )
    check_rates(risk_free)
    if not isinstance(name, (str, type(None))):
        raise InputError(f"name is {name!r:.60}; give a text", argument="name")
    require_opened(opened)
    if fast and isinstance(strategy, Strategy):
        raise InputError("fast=True is for ready weights; a strategy decides one day after the other", argument="fast")
    who = strategy if isinstance(strategy, Strategy) else Strategy()
    account = {"cash": cash, "whole_shares": whole_shares, "delisting_return": delisting_return}
    terms = _terms(who, costs, account, {"max_weight": max_weight, "max_turnover": max_turnover})
    label = name or (who.name if who is strategy else "weights")
    window = _window(who, market, start, end, fill)
    in_sample = _in_sample(who, label, window.dates[0], allow_in_sample)
    variants: dict[str, Path] = {}
    agents: dict[str, Path] = {}

    @cache
    def held(anchor: str, every: int) -> pd.Series:
        first, last = window.dates[[0, -1]]
        return anchor_equity(market, first, last, terms.uncapped, fill, anchor=anchor, every=every, fast=fast)

    def dressed(path: Path, title: str) -> BacktestResult:
        return outcome(
            path,
            window,
            terms,
            label=title,
            strategy=who,
            reference=market,
            equal_weight=held(EQUAL, 1),
            anchor=held(who.anchor, who.every),
            opened=opened,
            risk_free=risk_free,
            in_sample=in_sample,
            variants=variants,
            agents=agents,
        )

    before = as_it_is(strategy)
    if isinstance(strategy, Strategy):
        table = FeatureTable(window.market)
        path = _run(strategy, label, window, terms, table)
        variants, agents = (
            {one.name: _run(one, one.name, window, terms, table) for one in parts}
            for parts in (strategy.variants, strategy.alone)
        )
    else:
        ready = ReadyWeights(strategy, label, window)
        if ready.many:
            who.trials = len(ready.labels)

            def alone(s: int) -> BacktestResult:
                path = path_of(ready, s, window, terms, fast=fast)
                return with_audit(dressed(path, ready.labels[s]), strategy, window, path)

            return run_together(ready, window, terms, alone, risk_free)
        path = path_of(ready, 0, window, terms, fast=fast)
    result = dressed(path, label)
    if not who.trades_benchmark and (examine or (examine is None and who.trained_until is not None)):
        result = with_evidence(result, who, path, window, terms, progress=progress or (lambda doing, share: None))
    return with_audit(result, strategy, window, path, before)


def _terms(who: Strategy, costs: Costs | None, account: Mapping[str, Any], caps: Mapping[str, float | None]) -> Terms:
    """The terms of a backtest; a cap of None is the strategy's own."""
    if not isinstance(costs, (Costs, type(None))):
        raise InputError(f"costs is {costs!r:.60}; give finpod.Costs(fee_bps=...)", argument="costs")
    kept: dict[str, Any] = {name: getattr(who, name) if cap is None else cap for name, cap in caps.items()}
    return Terms(costs=costs or Costs(), **account, **kept)


def _run(strategy: Strategy, label: str, window: Window, terms: Terms, table: FeatureTable) -> Path:
    return simulate(window.execution, window.first, window.last, decisions_of(strategy, label, window, table), terms)


def anchor_equity(
    market: MarketData,
    start: DateLike,
    end: DateLike,
    terms: Terms,
    fill: str | None = None,
    *,
    anchor: str = EQUAL,
    every: int = 1,
    fast: bool = False,
) -> pd.Series:
    """Equity [n + 1] of an anchor from `start` to `end`, by default the point-in-time equal weight of every session.

    It is restored as `anchor_decisions` has it. `fill` is 'open', 'close', or None for open where the data have opens.
    """
    first, last = market.window(start, end)
    execution = build_execution(market, fill)
    weights, due = anchor_decisions(market, execution, first, last, anchor=anchor, every=every)
    if fast:
        rows = np.arange(first, last) - execution.lag
        steps = weights[torch.from_numpy(rows)].where(torch.from_numpy(due[rows] & (rows >= 0))[:, None], torch.nan)
        path = relax(execution, first, last, steps, terms)
    else:
        path = simulate(execution, first, last, lambda _step, row, _seen: weights[row] if due[row] else None, terms)
    dates = pd.DatetimeIndex(market.dates[first : last + 1], name="date")
    return pd.Series(path.equity.numpy(), index=dates, name="anchor")


def require_opened(opened: int) -> None:
    """Raise InputError for a number of results looked at that is not a whole number from 1 on."""
    if type(opened) is not int or opened < 1:
        raise InputError(
            f"opened is {opened!r:.60}; give how often results of this window were looked at, 1 or more with this one",
            argument="opened",
        )


def _window(strategy: Strategy, market: MarketData, start: DateLike, end: DateLike, fill: str | None) -> Window:
    traded = market.benchmark_market() if strategy.trades_benchmark else market
    first, last = traded.window(start, end)
    if last == first:
        raise InputError(
            f"the window {traded.dates[first]!s:.10} .. {traded.dates[last]!s:.10} has one session and no return; choose "
            "an end at least one session after the start",
            argument="end",
        )
    return Window(market=traded, execution=build_execution(traded, fill), first=first, last=last)


def _in_sample(strategy: Strategy, label: str, first_day: np.datetime64, allowed: bool) -> bool:
    until = strategy.trained_until
    try:
        until = None if until is None else f"{as_date(until)!s:.10}"
    except InputError as error:
        raise StrategyError(f"strategy {label}: its trained_until {error}") from error
    if until is None or as_date(first_day) > as_date(until):
        return False
    if not allowed:
        raise InputError(
            f"the window starts on {first_day!s:.10}, but {label} was trained or chosen on days up to {until}; "
            "start later, or pass allow_in_sample=True",
            argument="start",
        )
    return True
