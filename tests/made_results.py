"""Backtest results made by hand for the tests of the table and the report."""

from typing import Any

import numpy as np
import pandas as pd

from finpod.market.ledger import Costs
from finpod.result import BacktestResult


def make_result(equity=None, *, days=1008, names=20, start="2017-01-03", seed=0, **changes: Any) -> BacktestResult:
    """A result with the given equity, or a random one of `days` returns over `names` names."""
    generator = np.random.default_rng(seed)
    if equity is None:
        market = generator.normal(0.0005, 0.011, days)
        equity = 1e6 * np.cumprod(np.append(1, 1 + market + generator.normal(0.0001, 0.004, days)))
    else:
        equity = np.asarray(equity, dtype=float)
        market = generator.normal(0.0005, 0.011, len(equity) - 1)
    index = pd.bdate_range(start, periods=len(equity), name="date").as_unit("ns")
    cash = equity[0]
    tickers = [f"N{column:02}" for column in range(names)]
    raw = np.exp(np.cumsum(generator.normal(0, 0.04, (len(index), names)), axis=0))
    weights = 0.95 * raw / raw.sum(axis=1, keepdims=True)
    weights[0] = 0
    weights[equity <= 0] = 0
    fills = index[1::5]
    trades = pd.DataFrame(
        {
            "date": np.repeat(fills, 2),
            "ticker": np.tile(tickers[:2], len(fills)),
            "shares": np.tile([10.0, -4.0], len(fills)),
            "price": 100.0,
            "notional": np.tile([1000.0, -400.0], len(fills)),
            "cost": np.tile([1.0, 0.4], len(fills)),
            "kind": "fill",
        }
    )
    content: dict[str, Any] = {
        "strategy": "Momentum",
        "equity": pd.Series(equity, index, name="equity"),
        "benchmark": "QQQ",
        "benchmark_equity": pd.Series(cash * np.cumprod(np.append(1, 1 + market)), index),
        "equal_weight_equity": pd.Series(
            cash * np.cumprod(np.append(1, 1 + market + generator.normal(0, 0.003, len(market)))), index
        ),
        "weights": pd.DataFrame(weights, index, tickers),
        "trades": trades,
        "turnover": pd.Series(np.where(np.arange(len(market)) % 5 == 0, 0.14, 0.0), index[1:]),
        "costs": Costs(),
        "fill": "open",
        "data_hash": "3f" * 32,
        "manifest": {"title": "a made market", "source": "made", "members": {"count": names}},
    }
    return BacktestResult(**{**content, **changes})


def trained(days=1008, **changes: Any) -> BacktestResult:
    """A result of a trained ensemble, with its windows and the scores of its members."""
    agent = {
        "learner": "ppo",
        "device": "cpu",
        "versions": {"torch": "2.13.0", "python": "3.11"},
        "members": [{"agent_id": f"a{i}", "seed": i, "validation_score": 0.9 + 0.1 * i} for i in range(4)],
        "settings": {"gamma": 0.99, "num_envs": 4096, "features": ["momentum_12_1", "volatility_63"]},
    }
    content: dict[str, Any] = {
        "strategy": "first",
        "trained_until": "2016-12-30",
        "trials": 16,
        "agent": agent,
        "windows": {"train": ("2009-01-02", "2015-12-31"), "validation": ("2016-01-04", "2016-12-30")},
        "warnings": ("chosen among 16 trials on validation days; the best of many looks better than it is",),
        "events": ("2018-03-02: N03 left the exchange; 10 shares turned to cash at 14.2",),
    }
    return make_result(days=days, **{**content, **changes})
