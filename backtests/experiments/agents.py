"""Performance of agents on real prices: `python backtests/experiments/agents.py PRICES MEMBERS [LEARNER ...]`.

Trains agents of each learner, selects the best of four checkpoints of each agent on validation, and tests it on later
days: on one window with five seeds, and in a yearly walk-forward with three seeds. Each agent has a file of results.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import typer
from torch import Tensor

from finpod.active import ACTIVE
from finpod.envs.actions import target_weights
from finpod.errors import require_choice
from finpod.evidence.skill import verdict_of
from finpod.market.data import MarketData
from finpod.market.load import load_market
from finpod.measures import Array, Metrics, metrics, simple_returns
from finpod.rl.policy import Policy
from finpod.tasks import StockTask, make_stock_task, trading_of
from finpod.trading.anchors import ANCHORS
from finpod.trading.ledger import Costs
from finpod.trading.simulate import Terms, simulate_totals
from rows import Folder, checkpoints, keep_rows, markdown, run_command

FOLDER = Path("backtests") / "agents"
"""Folder of the files of results, one for each row, relative to the current folder."""
KINDS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "apg-linear": ("apg", {"network": "linear"}, 64, 100_000),
    "apg-mlp": ("apg", {"network": "mlp"}, 64, 75_000),
    "ppo": ("ppo", {}, 512, 600_000),
}
"""Kind of agent -> (learner, settings that differ from its defaults, number of environments, environment steps)."""
YEAR = 252
CHECKPOINTS = 4
"""Number of checkpoints of each training, at equal intervals. The best on validation is the agent."""
TILTS = ("log_dollar_volume_63", "residual_momentum_12_1", "beta_252", "volatility_63")
"""Features by which equal weight is tilted to represent known factors: size, residual momentum, beta, volatility."""
KNOWN = ("market-free", *(f"{name}-free" for name in TILTS))
"""Names of the cost-free portfolios. The alpha of an agent is the intercept of a regression on their returns."""


class Period(NamedTuple):
    """Days of training, validation and test."""

    name: str
    train: tuple[str, str]
    validation: tuple[str, str]
    test: tuple[str, str]
    seeds: range


FIXED = Period(
    "2020", ("2009-01-02", "2018-12-31"), ("2019-01-02", "2019-12-31"), ("2020-01-02", "2021-05-28"), range(5)
)
YEARS = [
    Period(
        f"walk-{year}",
        (f"{year - 5}-01-01", f"{year - 2}-12-31"),
        (f"{year - 1}-01-01", f"{year - 1}-12-31"),
        (f"{year}-01-01", min(f"{year}-12-31", FIXED.test[1])),
        range(3),
    )
    for year in range(2014, 2022)
]


class Days:
    """Two tasks of a period and an anchor: one has data to the end of validation, one to the end of the test."""

    def __init__(self, market: MarketData, period: Period, anchor: str) -> None:
        trading = trading_of(anchor=anchor)
        self.task = make_stock_task(market, period.train, period.validation, trading)
        self.test = make_stock_task(market, period.train, period.test, trading)

    def figures(self, policy: Policy) -> dict[str, Any]:
        """Return metrics in training, validation and test, and the test returns [n] of the agent and of its anchor."""
        task, test = self.task, self.test
        windows = {
            "training": (task, task.train),
            "validation": (task, task.validation),
            "test": (test, test.validation),
        }
        scores = {name: one.score_of(one.play(policy, rows), rows) for name, (one, rows) in windows.items()}
        shown = {name: {key: score.metrics[key] for key in ACTIVE} for name, score in scores.items()}
        return {**shown, "returns": scores["test"].returns, "anchor_returns": test.baseline()}


def learn(days: Days, kind: str, seed: int) -> dict[str, Any]:
    """Train one agent, select its checkpoint on validation, and return its row of results."""
    learner, settings, envs, steps = KINDS[kind]
    task = days.task
    own_days = {"start_groups": None} if learner == "apg" else {}
    shared = replace(task, trading=trading_of(anchor=task.trading.anchor, num_envs=envs, **own_days))
    vars(shared).update({name: vars(task)[name] for name in ("execution", "panel", "_baselines") if name in vars(task)})
    tried = []
    for point in checkpoints(shared, learner, seed, CHECKPOINTS, steps, name=kind, **settings):
        tried.append((point.metrics[task.measure], point.steps, copy.deepcopy(point.policy)))
    _, chosen, policy = max(tried, key=lambda one: one[0])
    return {"steps": point.steps, "chosen": chosen, "cpu_seconds": point.cpu_seconds, **days.figures(policy)}


def rules(task: StockTask) -> dict[str, Any]:
    """Return name -> returns [n] on the test days, for the benchmark and the portfolios `KNOWN`.

    `KNOWN` are equal weight and its tilts. They have no costs, and are rebalanced on the decision days of the agents.
    """
    first, last = task.validation
    execution, panel, hold = task.execution, task.panel, task.trading.hold
    among = panel.among
    columns = [panel.names.index(name) for name in TILTS]
    values = panel.features[..., columns].movedim(-1, 0)  # [tilts, T, N]
    mean = (values * among).sum(-1, keepdim=True) / among.sum(-1, keepdim=True).clamp(min=1)
    weights = target_weights(torch.cat([torch.zeros_like(values[:1]), values - mean]), among, "tilt")

    def decide(step: int, row: int, _seen: Any) -> Tensor | None:
        return None if step % hold else weights[:, row]

    free = Terms(costs=Costs(fee_bps=0))
    equity = simulate_totals(execution, first, last, decide, free, (len(weights),)).equity.numpy()
    known = dict(zip(KNOWN, map(simple_returns, equity.T), strict=True))
    closes = task.market.benchmark_close[first : last + 1]
    return {"benchmark": simple_returns(closes), **known}


def alpha(returns: Array, known: Array, periods_per_year: float) -> tuple[float, float]:
    """Return (alpha, t): yearly intercept of the OLS regression of `returns` [n] on `known` [n, k], and its t value.

    The standard error is robust to heteroscedasticity and to autocorrelation up to lag 5 (Newey and West 1987).
    """
    design = np.column_stack([np.ones(len(returns)), known])
    inverse = np.linalg.pinv(design.T @ design)
    beta = inverse @ design.T @ returns
    moved = design * (returns - design @ beta)[:, None]
    spread = moved.T @ moved
    for lag in range(1, 6):
        cross = moved[lag:].T @ moved[:-lag]
        spread += (1 - lag / 6) * (cross + cross.T)
    error = float(np.sqrt((inverse @ spread @ inverse)[0, 0]))
    return float(beta[0]) * periods_per_year, float(beta[0]) / error


def run(market: MarketData, kinds: Sequence[str], folder: Path, periods: Sequence[Period]) -> list[dict[str, Any]]:
    """Compute the rows of results that have no file. Return all rows of the rules and of the `kinds` of agents.

    Raises InputError for an unknown kind.
    """
    for kind in kinds:
        require_choice("learner", kind, tuple(KINDS))
    rows = []
    for period in periods:
        days = cache(partial(Days, market, period))
        makers: dict[str, Callable[[], dict[str, Any]]] = {f"{period.name}-rules": partial(_rules_row, days)}
        for key in product(kinds, ANCHORS, period.seeds):
            name = "-".join(map(str, (period.name, *key)))
            makers[name] = partial(_agent_row, days, period.name, *key)
        rows += keep_rows(folder, makers)
    return rows


def _rules_row(days: Callable[[str], Days]) -> dict[str, Any]:
    anchors = {f"{anchor}, weekly": days(anchor).test.baseline() for anchor in ANCHORS}
    return _short(anchors | rules(days(ANCHORS[0]).test))


def _agent_row(days: Callable[[str], Days], period: str, kind: str, anchor: str, seed: int) -> dict[str, Any]:
    row = learn(days(anchor), kind, seed)
    cost = f"{row['cpu_seconds']:.0f} s, validation {row['validation']['excess']:+.2%}"
    print(f"{period}-{kind}-{anchor}-{seed}: {cost}", flush=True)
    return _short({"learner": kind, "anchor": anchor, "seed": seed, "period": period, **row})


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: np.round(value, 8).tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()
    }


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield the lines of a table over some periods: one for each learner and anchor, then one for each rule."""
    known = [row for row in rows if "learner" not in row]
    rule = {name: np.concatenate([row[name] for row in known]) for name in known[0] if isinstance(known[0][name], list)}
    factors = np.column_stack([rule[name] for name in KNOWN])
    agents = pd.json_normalize([dict(row) for row in rows if "learner" in row])
    for (learner, anchor), group in agents.groupby(["learner", "anchor"], sort=False):
        yield {"learner": learner, "anchor": anchor, **_of_agents(group, factors)}
    for name in (*(f"{anchor}, weekly" for anchor in ANCHORS), "benchmark"):
        cells = _of_rule(rule[name], rule[f"{ANCHORS[0]}, weekly"], factors)
        yield {"learner": name, "anchor": "equal-weight", **cells}


def _of_agents(rows: pd.DataFrame, factors: Array) -> dict[str, str]:
    """Return the cells of a learner: means over the seeds (lowest to highest), and an interval for averaged returns."""
    returns = np.array([np.concatenate(list(seed["returns"])) for _, seed in rows.groupby("seed")])
    base = np.concatenate(list(rows.loc[rows["seed"] == rows["seed"].iloc[0], "anchor_returns"]))
    over = [_yearly(one).cagr - _yearly(base).cagr for one in returns]
    ratios = [_yearly(one - base).sharpe for one in returns]
    alphas = np.array([alpha(one, factors, YEAR) for one in returns])
    mean = rows.filter(regex=r"^(training|validation|test)\.|^cpu_seconds$").astype(float).mean()
    return {
        "test: excess over the anchor": f"{np.mean(over):+.1%} ({min(over):+.1%} to {max(over):+.1%}); seeds averaged "
        + _interval(returns.mean(0), base),
        "information ratio": f"{np.mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        "Sharpe": f"{np.mean([_yearly(one).sharpe for one in returns]):.2f}",
        "alpha (t)": f"{alphas[:, 0].mean():+.1%} ({alphas[:, 1].mean():.1f})",
        "turnover": f"{mean['test.turnover']:.1f}",
        "names": f"{mean['test.effective_names']:.0f}",
        "training: excess, ratio": f"{mean['training.excess']:+.1%}, {mean['training.information_ratio']:.2f}",
        "validation: excess, ratio, rank correlation": f"{mean['validation.excess']:+.1%}, "
        f"{mean['validation.information_ratio']:.2f}, {mean['validation.rank_correlation']:.3f}",
        "test: rank correlation": f"{mean['test.rank_correlation']:.3f}",
        "CPU s": f"{mean['cpu_seconds']:.0f}",
    }


def _of_rule(returns: Array, base: Array, factors: Array) -> dict[str, str]:
    """Return the cells of a rule: excess over equal weight, ratios, and alpha from a regression on known factors."""
    over = returns - base
    constant, t = alpha(returns, factors, YEAR)
    return {
        "test: excess over the anchor": _interval(returns, base) if over.any() else "0",
        "information ratio": f"{_yearly(over).sharpe:.2f}" if over.any() else "",
        "Sharpe": f"{_yearly(returns).sharpe:.2f}",
        "alpha (t)": f"{constant:+.1%} ({t:.1f})",
    }


def _interval(returns: Array, base: Array) -> str:
    interval = verdict_of(returns, base)[1]
    return f"{interval.estimate:+.1%} [{interval.low:+.1%}, {interval.high:+.1%}]"


def _yearly(returns: Array) -> Metrics:
    return metrics(returns=returns, periods_per_year=YEAR)


def main(
    prices: Annotated[Path, typer.Argument(help="File of daily bars, such as nasdaq100_daily.parquet.")],
    members: Annotated[Path, typer.Argument(help="File of the index members, such as nasdaq100_members.csv.")],
    learners: Annotated[list[str] | None, typer.Argument(help=f"Learners; by default {', '.join(KINDS)}.")] = None,
    folder: Folder = FOLDER,
) -> None:
    """Compute the rows that are not yet in the folder. Print a table each for the fixed window and the walk-forward."""
    market = load_market(prices, members=members)
    for periods in ([FIXED], YEARS):
        rows = run(market, learners or list(KINDS), folder, periods)
        print(f"\n{markdown(list(table(rows)))}\n", flush=True)


if __name__ == "__main__":
    run_command(main)
