"""Train stock-trading agents with deep reinforcement learning, and test whether they are any good.

The module exports the public names. A name is imported on first use, so that `import finpod` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finpod.api import audit, backtest, train
    from finpod.backtesting.comparison import compare
    from finpod.backtesting.result_io import load_result
    from finpod.environments import make_env
    from finpod.errors import CheckpointError, DataError, FinpodError, InputError, StrategyError
    from finpod.loading import load_strategy
    from finpod.market.data import MarketData
    from finpod.market.load import load_market, sample_market
    from finpod.market.yahoo import fetch_market
    from finpod.measures import metrics
    from finpod.result import BacktestResult
    from finpod.strategy import MarketView, Strategy, top_k
    from finpod.synthetic import simulate_market
    from finpod.trading.ledger import Costs
    from finpod.walkforward.retraining import walk_forward

__version__ = "0.1.0"

_NAMES = {
    "api": "audit backtest train",
    "backtesting.comparison": "compare",
    "backtesting.result_io": "load_result",
    "environments": "make_env",
    "errors": "CheckpointError DataError FinpodError InputError StrategyError",
    "loading": "load_strategy",
    "market.data": "MarketData",
    "market.load": "load_market sample_market",
    "market.yahoo": "fetch_market",
    "measures": "metrics",
    "result": "BacktestResult",
    "strategy": "MarketView Strategy top_k",
    "synthetic": "simulate_market",
    "trading.ledger": "Costs",
    "walkforward.retraining": "walk_forward",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'finpod' has no attribute {name!r}")
    value = getattr(import_module(f"finpod.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
