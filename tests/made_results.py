"""Backtest results for tests of the table and the report."""

from typing import Any

import numpy as np
import pandas as pd

from finpod.evidence import skill
from finpod.records import Audit, Event, ResultWarning
from finpod.result import BacktestResult
from finpod.significance import Interval
from finpod.trading.ledger import Costs


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
    noise = generator.normal(0, 0.003, len(market))
    content: dict[str, Any] = {
        "strategy": "Momentum",
        "equity": pd.Series(equity, index, name="equity"),
        "benchmark": "QQQ",
        "benchmark_equity": pd.Series(cash * np.cumprod(np.append(1, 1 + market)), index),
        "equal_weight_equity": pd.Series(cash * np.cumprod(np.append(1, 1 + market + noise)), index),
        "weights": pd.DataFrame(weights, index, tickers),
        "trades": trades,
        "turnover": pd.Series(np.where(np.arange(len(market)) % 5 == 0, 0.14, 0.0), index[1:]),
        "costs": Costs(),
        "fill": "open",
        "data_hash": "3f" * 32,
        "manifest": {"title": "a made market", "source": "made", "members": {"count": names}},
    }
    content |= changes
    return BacktestResult(**{"anchor_equity": content["equal_weight_equity"], **content})


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
        "warnings": (ResultWarning("many_trials", {"trials": 16, "on": "validation"}),),
        "events": (Event("2018-03-02", "delisted", "N03", 10.0, 14.2),),
    }
    return make_result(days=days, **{**content, **changes})


def examined(days=1008, *, names=100, randoms=200, seed=0, **changes: Any) -> BacktestResult:
    """A trained result with all that can be asked of it: rules, random portfolios, costs, capacity, audit, luck and sources.

    Its intervals are made up, so that no test waits for them.
    """
    generator = np.random.default_rng(seed + 1)
    base = trained(days=days, names=names, seed=seed)
    market = base.equal_weight_equity.to_numpy()
    steps = market[1:] / market[:-1] - 1
    noise = generator.normal(0, 0.003, (days, randoms + 4))
    noise[:, randoms:] = 0.7 * noise[:, randoms:] + np.array([0.0002, 0.0001, -0.0001, 0.0003])
    curves = market[0] * np.cumprod(np.vstack([np.ones((1, randoms + 4)), 1 + steps[:, None] + noise]), axis=0)
    rules = ("inverse volatility", "minimum variance", "hierarchical risk parity", "momentum 12-1")
    content: dict[str, Any] = {
        "strategy": "first",
        "baselines": {name: pd.Series(curves[:, randoms + i], base.equity.index) for i, name in enumerate(rules)},
        "fan": pd.DataFrame(curves[:, :randoms], base.equity.index, [f"{i}" for i in range(randoms)]),
        "cost_sweep": _sweep((0.0, 5.0, 10.0, 20.0, 50.0), rules, 0.03),
        "capacity": _sweep((1e6, 1e7, 1e8, 1e9), rules, 0.05, costs=True),
        "audit": Audit(True, days=("2018-03-01", "2019-05-02"), unchecked=("other_days",)),
        "anchor_every": 21,
        "anchor_equity": base.equal_weight_equity * np.linspace(1, 0.99, days + 1),
        "search": {"trials": 16, "sharpe_sd": 0.21, "overfitting": 0.38},
        "variant_kind": "seed",
        "variants": {
            f"seed {i}": base.equity * np.linspace(1, 1 + 0.05 * generator.normal(), days + 1) for i in range(3)
        },
    }
    result = trained(days=days, names=names, seed=seed, **{**content, **changes})
    vars(result)["_intervals"] = made_intervals()
    return result


def made_intervals() -> skill.Intervals:
    """What `skill.intervals_of` gives for a result with a clear lead over the benchmark and none over anchor and equal weight."""
    spans = {
        "strategy": ((-0.13, 0.49, 1.1), (-0.036, 0.0768, 0.19), (-0.55, -0.3221, -0.2)),
        skill.ANCHOR: ((-0.06, 0.24, 0.55), (-0.009, 0.0451, 0.104), (-0.11, 0.0665, 0.19)),
        skill.EQUAL_WEIGHT: ((-0.08, 0.21, 0.52), (-0.011, 0.0425, 0.101), (-0.11, 0.0665, 0.19)),
        skill.BENCHMARK: ((0.03, 0.24, 0.47), (0.004, 0.0457, 0.091), (-0.12, 0.0293, 0.14)),
    }
    keys = ("sharpe", "cagr", "max_drawdown")
    return {
        name: {key: Interval(*span, level=0.95) for key, span in zip(keys, ends, strict=True)}
        for name, ends in spans.items()
    }


def _sweep(steps: tuple[float, ...], rules: tuple[str, ...], fall: float, *, costs: bool = False) -> dict[str, Any]:
    """Figures of the strategy, equal weight and the rules at each step, worse by `fall` times their turnover a step."""
    turnover = dict(zip(("equal weight", *rules, "first"), (0.1, 0.2, 0.3, 0.4, 0.8, 2.0), strict=True))
    found: dict[str, Any] = {}
    for place, step in enumerate(steps):
        sharpes = {name: 0.5 + 0.04 * i - fall * place * turnover[name] for i, name in enumerate(turnover)}
        order = sorted(sharpes, key=sharpes.__getitem__, reverse=True)
        found[step] = {
            name: {"total_return": sharpe, "cagr": 0.15 * sharpe, "sharpe": sharpe, "rank": order.index(name) + 1}
            | ({"costs": 0.004 * 2**place} if costs else {})
            for name, sharpe in sharpes.items()
        }
    return found
