"""The public functions `backtest`, `audit` and `train`. They also accept names and files for strategies and tasks."""

from __future__ import annotations

from functools import wraps
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, overload

from finpod import training
from finpod.backtesting import engine
from finpod.loading import StrategyLike, file_and_class, load_strategy, load_task
from finpod.lookahead import audit as lookahead
from finpod.records import Audit

if TYPE_CHECKING:
    import pandas as pd

    from finpod.backtesting.batch import Backtests
    from finpod.ensemble import Ensemble
    from finpod.market.data import MarketData
    from finpod.measures import Array
    from finpod.result import BacktestResult
    from finpod.rl.task import Task

_COPIED = ("__name__", "__qualname__", "__doc__")
"""Attributes that `wraps` copies from the internal functions. `inspect.signature` finds signatures by `__wrapped__`."""


@overload
def backtest(strategy: StrategyLike, market: MarketData, **options: Any) -> BacktestResult: ...
@overload
def backtest(strategy: Array | pd.DataFrame, market: MarketData, **options: Any) -> BacktestResult | Backtests: ...
@wraps(engine.backtest, assigned=_COPIED)
def backtest(strategy: Any, market: MarketData, **options: Any) -> Any:
    loaded = load_strategy(strategy) if isinstance(strategy, (str, PathLike)) else strategy
    return engine.backtest(loaded, market, **options)


@wraps(lookahead.audit, assigned=_COPIED)
def audit(strategy: StrategyLike, market: MarketData, **options: Any) -> Audit:
    return lookahead.audit(load_strategy(strategy), market, **options)


@overload
def train(task: Task, **options: Any) -> training.TrainedRun: ...
@overload
def train(task: Literal["stocks"] = "stocks", **options: Any) -> Ensemble: ...
@overload
def train(task: str | PathLike[str], **options: Any) -> Ensemble | training.TrainedRun: ...
@wraps(training.train, assigned=_COPIED)
def train(task: Any = "stocks", **options: Any) -> Any:
    if isinstance(task, (str, PathLike)) and ".py" in str(task):
        file, kind = file_and_class(task)
        place = f"{file.absolute()}:{kind}" if kind else str(file.absolute())
        options["metadata"] = {**options.get("metadata", {}), "task": place}
        task = load_task(task)
    return training.train(task, **options)
