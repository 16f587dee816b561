"""Speed of backtests, bootstrap and reports, and of the backtests of vectorbt if it is installed."""

from __future__ import annotations

import importlib
import io
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finpod.backtesting.batch import path_of
from finpod.backtesting.engine import backtest
from finpod.errors import first_line
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.result import BacktestResult
from finpod.significance import intervals
from finpod.synthetic import simulate_market
from finpod.trading.execution import build_execution
from finpod.trading.ledger import Costs
from finpod.trading.simulate import Terms, Window
from finpod.weights import PrecomputedWeights

DAYS, STRATEGIES, RESAMPLES = 2500, 1000, 10_000
"""Number of returns (one less than the sessions of the market), of strategies run at once, and of resamples."""
FEE_BPS = 10.0
"""Fee of finpod and of vectorbt."""


def backtest_lines(names: int, seconds: float) -> dict[str, Any]:
    """Return lines (name -> value) on the speed of backtests with new weights every session, in bars per second.

    Each strategy has assets x returns bars. 'backtest' computes and stores every fill, as vectorbt's `from_orders`
    does. 'backtest exact' settles one session after the other. A 'whole result' has equity, weights and the trade log;
    finpod's result also has the benchmark and equal weight.
    """
    market = simulate_market(names=names, days=DAYS + 1)
    window = Window(market=market, execution=build_execution(market), first=0, last=DAYS)
    costs, many = Costs(fee_bps=FEE_BPS), made_weights(STRATEGIES, market)
    one, terms, bars = many[0].astype(np.float64), Terms(costs=costs), DAYS * names

    def path(fast: bool) -> object:
        return path_of(PrecomputedWeights(one, "weights", window), 0, window, terms, fast=fast)

    speeds = {
        "": bars / shortest(lambda: path(fast=True), seconds),
        " exact": bars / shortest(lambda: path(fast=False), seconds),
        " whole result": bars / shortest(lambda: backtest(one, market, costs=costs, fast=True), seconds),
        " strategies at once": STRATEGIES * bars / shortest(lambda: backtest(many, market, costs=costs), seconds),
    }
    peer = _vectorbt(market, one, seconds)
    lines: dict[str, Any] = {f"backtest{name} bars/s": rate for name, rate in speeds.items()}
    lines |= {f"backtest vectorbt{name} bars/s": rate for name, rate in peer.items()}
    for name, other in {"": "", " whole result": " whole result", " strategies at once": ""}.items():
        rate = peer[other]  # or the error as text
        lines[f"backtest{name} / vectorbt"] = speeds[name] / rate if isinstance(rate, float) else rate
    return lines | {
        "backtest batch": f"{names} assets x {DAYS:,} returns; {STRATEGIES:,} strategies at once; shortest of several"
    }


def bootstrap_lines(seconds: float) -> dict[str, Any]:
    """Return lines on the time to bootstrap Sharpe ratio, CAGR, drawdown, and their differences between two series."""
    returns, other = np.random.default_rng(0).normal(0.0004, 0.01, (2, DAYS))
    return {
        "bootstrap seconds": shortest(lambda: intervals(returns, {"other": other}, resamples=RESAMPLES), seconds),
        "bootstrap batch": f"{RESAMPLES:,} resamples of 2 series of {DAYS:,} returns; shortest of several",
    }


def report_lines(names: int, seconds: float) -> dict[str, Any]:
    """Return lines on the time to write the report of a result, without imports and bootstrap."""
    market = simulate_market(names=names, days=DAYS + 1)
    result = backtest(made_weights(1, market)[0], market, fast=True)
    assert isinstance(result, BacktestResult)
    with tempfile.TemporaryDirectory() as folder:
        return {
            "report seconds": shortest(lambda: result.report(Path(folder) / "report.html"), seconds),
            "report batch": f"{DAYS:,} returns, {len(result.trades):,} trades; shortest of several",
        }


def shortest(call: Callable[[], object], seconds: float) -> float:
    """Return the shortest time, in seconds, that one call of `call` took. Other processes can only add time.

    After a warm-up call, the function is called for about `seconds`, and at least twice.
    """
    call()
    taken: list[float] = []
    while len(taken) < 2 or sum(taken) < seconds:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def made_weights(count: int, market: MarketData) -> Array:
    """Return `count` random strategies as weights [`count`, T, N] float32 that sum to one."""
    weights = np.random.default_rng(0).random((count, *market.shape), dtype=np.float32)
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def beside(peer: str, measure: Callable[[Any], Any]) -> Any:
    """Import the package `peer` and return `measure(peer)`, or the error as text. Output is discarded."""
    noise = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(noise), redirect_stderr(noise):
            warnings.simplefilter("ignore")
            return measure(importlib.import_module(peer))
    except Exception as error:  # other packages may raise anything
        return f"n/a: {first_line(error)}"


def _vectorbt(market: MarketData, weights: Array, seconds: float) -> dict[str, float | str]:
    """Return two speeds of vectorbt in bars per second: for orders only, and for a whole result with its tables."""
    days, tickers = pd.DatetimeIndex(market.dates), list(market.tickers)
    close, size = (pd.DataFrame(table, index=days, columns=tickers) for table in (market.close, weights))
    deal = {"size_type": "targetpercent", "group_by": True, "cash_sharing": True, "call_seq": "auto"}
    deal |= {"fees": FEE_BPS / 10_000, "init_cash": 1e6, "freq": "1D"}

    def orders(vectorbt: Any) -> Any:
        return vectorbt.Portfolio.from_orders(close, size=size, **deal)

    def whole(vectorbt: Any) -> Any:
        portfolio = orders(vectorbt)
        return portfolio.value(), portfolio.asset_value(group_by=False), portfolio.orders.records_readable

    def rate(call: Callable[[Any], Any]) -> float | str:
        return beside("vectorbt", lambda peer: market.close[1:].size / shortest(lambda: call(peer), seconds))

    return {"": rate(orders), " whole result": rate(whole)}
