"""Performance of agents on real prices: `python -m finpod.bench.agents PRICES MEMBERS [LEARNER ...]`.

Trains agents of each learner, selects the best of `CHECKPOINTS` checkpoints on validation, and tests it on later days: on one
window with five seeds, and in a yearly walk-forward with three. Each agent is a row; see `finpod.bench.rows`.
"""

from __future__ import annotations

import copy
import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from finpod.active import ACTIVE
from finpod.bench.rows import Parser, checkpoints, keep_rows
from finpod.envs.actions import target_weights
from finpod.errors import InputError
from finpod.evidence.skill import verdict_of
from finpod.market.data import MarketData
from finpod.market.load import load_market
from finpod.measures import Array, metrics, simple_returns
from finpod.rl.policy import Policy
from finpod.tasks import StockTask, make_stock_task, trading_of
from finpod.trading.anchors import ANCHORS
from finpod.trading.ledger import Costs
from finpod.trading.simulate import Terms, simulate_totals

FOLDER = Path("backtests") / "agents"
"""Folder of rows, relative to the current folder."""
KINDS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "apg-linear": ("apg", {"network": "linear"}, 64, 200_000),
    "apg-mlp": ("apg", {"network": "mlp"}, 64, 150_000),
    "ppo": ("ppo", {}, 512, 600_000),
}
"""Name -> learner, settings that differ from its defaults, number of environments, and environment steps."""
CHECKPOINTS = 4
"""Number of checkpoints from which an agent is selected, evenly spaced over its training."""
TILTS = ("log_dollar_volume_63", "residual_momentum_12_1", "beta_252", "volatility_63")
"""Features whose tilts represent known factors: size, residual momentum, beta, volatility."""
KNOWN = ("market-free", *(f"{name}-free" for name in TILTS))
"""Names of the return series in the regression for alpha."""
ANCHORED = tuple(ANCHORS)
"""Anchors of the agents."""


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
        (f"{year}-01-01", "2021-05-28" if year == 2021 else f"{year}-12-31"),
        range(3),
    )
    for year in range(2014, 2022)
]


class Days:
    """The tasks of one period and anchor: one for training, whose data end with validation, and one that includes the test."""

    def __init__(self, market: MarketData, period: Period, anchor: str) -> None:
        trading = trading_of(anchor=anchor)
        self.task = make_stock_task(market, period.train, period.validation, trading)
        self.test = make_stock_task(market, period.train, period.test, trading)

    def figures(self, policy: Policy) -> dict[str, Any]:
        """Return the figures of training, validation and test, and the returns [n] of the test and of its anchor."""
        path = self.test.play(policy, self.test.validation)
        windows = {"training": self.task.train, "validation": self.task.validation}
        figures_of = {
            name: self.task.score_of(self.task.play(policy, rows), rows).metrics for name, rows in windows.items()
        }
        score = self.test.score_of(path)
        shown = {
            name: {key: figures[key] for key in ACTIVE}
            for name, figures in (figures_of | {"test": score.metrics}).items()
        }
        return {**shown, "returns": score.returns, "anchor_returns": self.test.baseline()}


def learn(days: Days, kind: str, seed: int) -> dict[str, Any]:
    """Train one agent, select its checkpoint on validation, and return its row."""
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
    """Return returns [n] on the test days by name: of each anchor at the task's costs, of equal weight and each tilt without
    costs, each rebalanced when agents decide; and of the benchmark."""
    first, last = task.validation
    execution, panel, hold = task.execution, task.panel, task.trading.hold
    among = panel.member & panel.tradable
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
    """Return the yearly constant of a regression of `returns` [n] on `known` [n, k], and its t statistic.

    Ordinary least squares; the error is robust to unequal variances and to five lags of correlation (Newey and West 1987).
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


def run(market: MarketData, kinds: Sequence[str], folder: Path, periods: Sequence[Period]) -> None:
    """Compute the missing rows. Raises InputError for an unknown learner."""
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"unknown learner {kind!r}; choose from {', '.join(KINDS)}", argument="learner")
    for period in periods:
        days = cache(partial(Days, market, period))
        makers: dict[str, Callable[[], dict[str, Any]]] = {f"{period.name}-rules": partial(_rules_row, days)}
        for kind, anchor, seed in product(kinds, ANCHORED, period.seeds):
            key = {"learner": kind, "anchor": anchor, "seed": seed, "period": period.name}
            makers[_name(period, kind, anchor, seed)] = partial(_agent_row, days, **key)
        keep_rows(folder, makers)


def _name(period: Period, kind: str, anchor: str, seed: int) -> str:
    return f"{period.name}-{kind}-{anchor}-{seed}"


def _rules_row(days: Callable[[str], Days]) -> dict[str, Any]:
    anchors = {f"{anchor}, weekly": days(anchor).test.baseline() for anchor in ANCHORED}
    return _short(anchors | rules(days(ANCHORED[0]).test))


def _agent_row(days: Callable[[str], Days], **key: Any) -> dict[str, Any]:
    row = learn(days(key["anchor"]), key["learner"], key["seed"])
    name = "-".join(str(key[part]) for part in ("period", "learner", "anchor", "seed"))
    print(f"{name}: {row['cpu_seconds']:.0f} s, validation {row['validation']['excess']:+.2%}", flush=True)
    return _short(key | row)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its returns rounded to eight digits."""
    return {
        name: np.round(value, 8).tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()
    }


def table(folder: Path, periods: Sequence[Period]) -> str:
    """Return the rows of the periods as a Markdown table: one line for each learner and anchor, then the rules."""
    known = _rows(folder, [f"{period.name}-rules" for period in periods])
    factors = np.column_stack([_joined(known, name) for name in KNOWN])
    lines = [
        "| learner | anchor | test: excess over the anchor | information ratio | Sharpe | alpha (t) | turnover | names | training: "
        "excess, ratio | validation: excess, ratio, rank correlation | test: rank correlation | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, anchor in product(KINDS, ANCHORED):
        rows = [_rows(folder, [_name(period, kind, anchor, seed) for period in periods]) for seed in periods[0].seeds]
        if whole := [seeds for seeds in rows if len(seeds) == len(periods)]:
            lines.append(_line(kind, anchor, whole, factors))
    for name in (*(f"{anchor}, weekly" for anchor in ANCHORED), "benchmark"):
        lines.append(_rule_line(name, _joined(known, name), _joined(known, f"{ANCHORED[0]}, weekly"), factors))
    return "\n".join(lines)


def _rows(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """The existing rows of these names."""
    files = [folder / f"{name}.json" for name in names]
    return [json.loads(file.read_text()) for file in files if file.exists()]


def _joined(rows: Sequence[dict[str, Any]], name: str) -> Array:
    return np.concatenate([np.array(row[name]) for row in rows])


def _line(kind: str, anchor: str, seeds: Sequence[Sequence[dict[str, Any]]], factors: Array) -> str:
    """Line of a learner: means over the seeds (lowest to highest), and the interval for the mean of their returns."""
    returns = np.array([_joined(rows, "returns") for rows in seeds])
    base = _joined(seeds[0], "anchor_returns")
    _, interval = verdict_of(returns.mean(0), base)
    over = [_growth(one) - _growth(base) for one in returns]
    alphas = np.array([alpha(one, factors, 252) for one in returns])

    def mean(window: str, name: str) -> float:
        return float(np.nanmean([[row[window][name] or np.nan for row in rows] for rows in seeds]))

    ratios = [metrics(returns=one - base, periods_per_year=252).sharpe for one in returns]
    sharpes = [metrics(returns=one, periods_per_year=252).sharpe for one in returns]
    return (
        f"| {kind} | {anchor} | {np.mean(over):+.1%} ({min(over):+.1%} to {max(over):+.1%}); seeds averaged "
        f"{interval.estimate:+.1%} [{interval.low:+.1%}, {interval.high:+.1%}] | {np.mean(ratios):.2f} ({min(ratios):.2f} to "
        f"{max(ratios):.2f}) | {np.mean(sharpes):.2f} | {alphas[:, 0].mean():+.1%} ({alphas[:, 1].mean():.1f}) | "
        f"{mean('test', 'turnover'):.1f} | {mean('test', 'effective_names'):.0f} | {mean('training', 'excess'):+.1%}, "
        f"{mean('training', 'information_ratio'):.2f} | {mean('validation', 'excess'):+.1%}, "
        f"{mean('validation', 'information_ratio'):.2f}, {mean('validation', 'rank_correlation'):.3f} | "
        f"{mean('test', 'rank_correlation'):.3f} | {np.mean([row['cpu_seconds'] for rows in seeds for row in rows]):.0f} |"
    )


def _rule_line(name: str, returns: Array, base: Array, factors: Array) -> str:
    """Line of a rule: its excess over equal weight, and alpha after regression on known factors."""
    whole = metrics(returns=returns, periods_per_year=252)
    over = returns - base
    still = not over.any()
    interval = None if still else verdict_of(returns, base)[1]
    excess = "0" if interval is None else f"{interval.estimate:+.1%} [{interval.low:+.1%}, {interval.high:+.1%}]"
    ratio = "" if still else f"{metrics(returns=over, periods_per_year=252).sharpe:.2f}"
    constant, t = alpha(returns, factors, 252)
    return f"| {name} | over equal weight | {excess} | {ratio} | {whole.sharpe:.2f} | {constant:+.1%} ({t:.1f}) | | | | | | |"


def _growth(returns: Array) -> float:
    return float(metrics(returns=returns, periods_per_year=252).cagr)


def main() -> None:
    """Parse the arguments, compute missing rows, and print a table of the fixed window and one of the walk-forward."""
    parser = Parser(prog="python -m finpod.bench.agents", description=__doc__)
    parser.add_argument(
        "prices", type=Path, help="file of daily bars, such as $FINPOD_SHARED/data/nasdaq100_daily.parquet"
    )
    parser.add_argument("members", type=Path, help="file of the index members, such as nasdaq100_members.csv beside it")
    parser.add_argument(
        "learners", nargs="*", default=list(KINDS), help=f"learners to train (default: {' '.join(KINDS)})"
    )
    parser.add_folder(FOLDER)
    parser.run(print_tables)


def print_tables(arguments: Namespace) -> None:
    """Compute missing rows and print both tables."""
    market = load_market(arguments.prices, members=arguments.members)
    for periods in ([FIXED], YEARS):
        run(market, arguments.learners, arguments.folder, periods)
        print(f"\n{table(arguments.folder, periods)}\n", flush=True)


if __name__ == "__main__":
    main()
