"""The public `backtest`, `audit`, `compare` and `train`.

They load strategies, runs and tasks given by name, file or folder, and pass all other arguments on.
"""

from __future__ import annotations

from functools import WRAPPER_ASSIGNMENTS, wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from finpod import training
from finpod.backtesting import comparison, engine
from finpod.backtesting.result_io import load_result, names_of, run_folder
from finpod.loading import StrategyLike, load_strategy, load_task
from finpod.lookahead import audit as lookahead
from finpod.records import Audit

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from finpod.backtesting.batch import Backtests
    from finpod.ensemble import Ensemble
    from finpod.files import Progress
    from finpod.market.data import DateLike, MarketData
    from finpod.measures import Array
    from finpod.result import BacktestResult
    from finpod.rl.task import Task
    from finpod.tournament.trained_run import TrainedRun

_COPIED = tuple(name for name in WRAPPER_ASSIGNMENTS if name not in ("__module__", "__annotations__"))
"""Attributes copied from the wrapped functions; `inspect.signature` follows `__wrapped__` for the rest."""


class AuditOptions(TypedDict, total=False):
    """The keyword arguments of `audit`."""

    days: int
    seed: int
    start: DateLike | None
    end: DateLike | None
    progress: Progress | None


@overload
def backtest(strategy: StrategyLike, market: MarketData, **options: Unpack[engine.Options]) -> BacktestResult: ...
@overload
def backtest(
    strategy: Array | pd.DataFrame, market: MarketData, **options: Unpack[engine.Options]
) -> BacktestResult | Backtests: ...
@wraps(engine.backtest, assigned=_COPIED)
def backtest(strategy: Any, market: MarketData, **options: Any) -> Any:
    loaded = load_strategy(strategy) if isinstance(strategy, (str, PathLike)) else strategy
    return engine.backtest(loaded, market, **options)


@wraps(lookahead.audit, assigned=_COPIED)
def audit(strategy: StrategyLike, market: MarketData, **options: Unpack[AuditOptions]) -> Audit:
    return lookahead.audit(load_strategy(strategy), market, **options)


@wraps(comparison.compare, assigned=_COPIED)
def compare(
    results: Sequence[BacktestResult | str | PathLike[str]], *, names: Sequence[str] | None = None
) -> comparison.Comparison:
    runs: list[Any] = [results] if isinstance(results, str) or not hasattr(results, "__iter__") else list(results)
    places = [run_folder(run) for run in runs if isinstance(run, (str, PathLike))]
    if names is None and len(places) == len(runs):
        names = names_of(places)
    loaded = [load_result(run) if isinstance(run, (str, PathLike)) else run for run in runs]
    return comparison.compare(loaded, names=names)


@overload
def train(task: Task, *, out: str | PathLike[str], **options: Any) -> TrainedRun: ...
@overload
def train(task: str = "stocks", *, out: str | PathLike[str], **options: Any) -> Any: ...
@wraps(training.train, assigned=_COPIED)
def train(task: Any = "stocks", **options: Any) -> Ensemble | TrainedRun:
    if isinstance(task, (str, PathLike)) and ".py" in str(task):
        file, colon, kind = str(task).rpartition(":")
        place = f"{Path(file).absolute()}:{kind}" if colon and file.endswith(".py") else str(Path(task).absolute())
        options["metadata"] = {**options.get("metadata", {}), "task": place}
        task = load_task(task)
    trained: Ensemble | TrainedRun = training.train(task, **options)
    return trained
