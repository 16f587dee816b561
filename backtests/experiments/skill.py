"""Error rates of the verdict on skill: `python backtests/experiments/skill.py [apg | ppo | informed ...]`.

False positives: agents are trained, selected and tested on markets without a signal and without costs. Half of the
markets are simulated, and half are resampled from real days (`-r FILE`). Power: agents and the informed rule, which
knows the signal, are tested on markets in which the informed rule has a given information ratio after costs of 10 bps.
Each row, the result of a rule on a market, has its own file. Existing rows are kept, so the command can be stopped and
repeated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from joblib import cpu_count
from scipy.stats import binomtest

from finpod.errors import InputError, require_choice, require_number
from finpod.evidence.skill import Code, verdict_of
from finpod.market.data import MarketData
from finpod.market.load import load_market
from finpod.measures import Array, simple_returns
from finpod.rl import LEARNERS
from finpod.synthetic import CALIBRATED, HOLD, NAMES, SimulatedMarket, resampled, simulate_market
from finpod.tasks import StockTask, make_stock_task, trading_of
from finpod.trading.ledger import Costs
from finpod.trading.simulate import Window, simulate
from finpod.weights import decisions_of
from rows import Folder, checkpoints, keep_rows, markdown, run_command

FOLDER = Path("backtests") / "skill"
"""Folder of the files of results, one for each row, relative to the current folder."""
INFORMED = "informed"
RULES = ("apg", "ppo", INFORMED)
FAMILIES = SIMULATED, RESAMPLED = "simulated", "resampled"
RATIOS = (0.5, 1.0, 1.5, 2.0)
MARKETS = {**dict.fromkeys(FAMILIES, 200), **dict.fromkeys(map(str, RATIOS), 100)}
"""Number of markets per family (without a signal) and per information ratio after costs (with a signal)."""
YEAR = 252
ROWS = {
    "train": (64, 64 + 8 * YEAR),
    "validation": (65 + 8 * YEAR, 65 + 10 * YEAR),
    "test": (66 + 10 * YEAR, 66 + 18 * YEAR),
}
"""First and last row of the training, validation and test windows: 8, 2 and 8 years."""
FEATURES = ("return_5", "intraday_return_21", "return_63", "volatility_21", "volume_shock_5")
UPDATES = {"apg": 80, "ppo": 60}
"""Learner -> number of updates of an agent. An update uses 64 accounts x num_steps decisions."""
AGENTS, CHECKPOINTS = 2, 2
"""Number of agents per market, and of checkpoints per agent. The checkpoint that is best on validation is tested."""
RESAMPLES = 2000
FEWEST = 30
"""Smallest number of markets for which a measured rate is compared with the expected rate."""


class Cell(NamedTuple):
    """A row to compute: a market and a rule."""

    world: str
    """Family of a market without a signal, or information ratio after costs of a market with a signal."""
    rule: str
    """Name of a learner, or 'informed' for the rule that knows the signal."""
    seed: int
    """Seed of the market."""

    @property
    def name(self) -> str:
        return f"{self.world}-{self.rule}-{self.seed}"


@cache
def complete(real: str) -> MarketData:
    """Return the market of a file, with only the assets that have no missing bars."""
    market = load_market(real)
    bars = [market.has_bar, *(np.isfinite(table) for table in (market.open, market.volume) if table is not None)]
    whole = np.all(bars, axis=(0, 1))
    if whole.sum() < NAMES:
        raise InputError(
            f"{real} has {whole.sum()} assets without missing bars; give a file with {NAMES} or more", argument="real"
        )
    return market.select([name for name, keep in zip(market.tickers, whole, strict=True) if keep])


def market_of(cell: Cell, real: str | None) -> MarketData:
    """Return the market of a cell. The lookback and the sign of the signal, if there is one, depend on the seed."""
    days = ROWS["test"][1] + 1
    if cell.world == RESAMPLED:
        if real is None:
            raise InputError("resampled markets need a file of real bars; give -r FILE", argument="real")
        source = complete(real)
        chosen = np.random.default_rng(cell.seed).choice(len(source.tickers), NAMES, replace=False)
        return resampled(source.select([source.tickers[i] for i in sorted(chosen)]), days=days, seed=cell.seed)
    if cell.world == SIMULATED:
        return simulate_market(days=days, net_ratio=0.0, seed=cell.seed)
    lookback, sign = list(CALIBRATED)[cell.seed % len(CALIBRATED)]
    return simulate_market(
        days=days, net_ratio=float(cell.world), lookback=lookback, reversal=sign < 0, seed=10_000 + cell.seed
    )


def task_of(market: MarketData, free: bool) -> StockTask:
    """Return the task, with data to the end of the test window; features are scaled on the training window."""
    train, _, test = ((market.dates[first], market.dates[last]) for first, last in ROWS.values())
    costs = Costs(fee_bps=0.0) if free else Costs()
    trading = trading_of(num_envs=64, start_groups=None, hold=HOLD, costs=costs)
    return replace(make_stock_task(market, train, test, trading, "open", FEATURES), validation=ROWS["validation"])


def trained(task: StockTask, learner: str, seed: int) -> tuple[Array, float]:
    """Train agents. Return (test returns [n], validation score) of the checkpoint that is best on validation."""
    steps = UPDATES[learner] * task.num_envs * LEARNERS[learner].Config(**task.defaults(learner)).num_steps
    best, returns = -math.inf, np.empty(0)
    for agent in range(AGENTS):
        for point in checkpoints(task, learner, AGENTS * seed + agent, CHECKPOINTS, steps, name=f"{agent}-0"):
            score = point.metrics[task.measure]
            if score > best or not len(returns):
                best, returns = score, simple_returns(task.play(point.policy, ROWS["test"]).equity.numpy())
    return returns, best


def informed(market: SimulatedMarket, task: StockTask) -> Array:
    """Return the returns [n], in the test window, of the rule that knows the signal."""
    first, last = ROWS["test"]
    window = Window(market=market, execution=task.execution, first=first, last=last)
    path = simulate(task.execution, first, last, decisions_of(market.oracle, "oracle", window), task.trading)
    return simple_returns(path.equity.numpy())


def ratio_of(active: Array) -> float:
    """Return the yearly information ratio of active returns [n]; 0 for an agent that holds equal weight."""
    spread = float(active.std(ddof=1))
    return float(active.mean()) / spread * YEAR**0.5 if spread > 0 else 0.0


def play(cell: Cell, real: str | None = None) -> dict[str, Any]:
    """Return the row of a cell: the verdict on the rule's growth in excess of equal weight in the test window.

    Equal weight is rebalanced on the decision days of the agents, at the same costs.
    """
    began = time.process_time()
    market = market_of(cell, real)
    task = task_of(market, free=cell.world in FAMILIES)
    score = None
    if cell.rule == INFORMED:
        returns = informed(market, task)  # type: ignore[arg-type]
    else:
        returns, score = trained(task, cell.rule, cell.seed)
    equal = simple_returns(task.baseline_path(ROWS["test"]).equity.numpy())
    code, interval = verdict_of(returns, equal, resamples=RESAMPLES)
    active = returns - equal
    return {
        **cell._asdict(), "market": market.title, "code": code.value, "interval": interval[:3],
        "ratio": ratio_of(active), "tracking_error": float(active.std(ddof=1)) * YEAR**0.5,
        "validation": score, "seconds": time.process_time() - began,
    }  # fmt: skip


def cells(
    rules: Sequence[str], real: str | None, markets: int | None = None, worlds: Sequence[str] | None = None
) -> list[Cell]:
    """Return the cells to compute, by seed. Raises InputError for an unknown rule or world, and `markets` below 1."""
    require_number("markets", 1 if markets is None else markets, 1, whole=True)
    for rule in rules:
        require_choice("rule", rule, RULES)
    for world in worlds or ():
        require_choice("world", world, tuple(MARKETS))
    wanted = [
        Cell(world, rule, seed)
        for world in worlds or MARKETS
        for rule in rules
        for seed in range(MARKETS[world] if markets is None else markets)
        if not (world in FAMILIES and rule == INFORMED) and (worlds or real or world != RESAMPLED)
    ]
    return sorted(wanted, key=lambda cell: cell.seed)


def tally(group: Sequence[dict[str, Any]], level: float) -> tuple[float, float, dict[str, str]]:
    """Return (low, high, cells): Wilson interval of the fraction of markets called skilled, and table cells."""
    hits = sum(row["code"] == Code.MORE for row in group)
    low, high = binomtest(hits, len(group)).proportion_ci(level, "wilson")
    interval = {f"{100 * level:.0f} % interval": f"{low:.1%} to {high:.1%}"}
    return low, high, {"markets": str(len(group)), "called skilled": f"{hits / len(group):.1%}", **interval}


def compared(markets: int, fits: bool) -> str:
    """Return 'yes' if `fits` (the interval contains the expected rate), else 'no'; empty for too few markets."""
    return "" if markets < FEWEST else "yes" if fits else "no"


def false_skill(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield the lines of the table of false positives, on markets without a signal."""
    for (world, rule), group in by_cell(rows, FAMILIES).items():
        low, high, cells = tally(group, 0.99)
        yield {
            "without signal": world,
            "learner": rule,
            **cells,
            "contains 2.5 %": compared(len(group), 0 < low <= 0.025 <= high),
            "called worse": f"{sum(row['code'] == Code.WORSE for row in group) / len(group):.1%}",
            "median tracking error": f"{np.median([row['tracking_error'] for row in group]):.2%}",
            "CPU s a market": f"{np.mean([row['seconds'] for row in group]):.1f}",
        }


def power(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield the lines of the table of power, on markets with a signal."""
    years, groups = (ROWS["test"][1] - ROWS["test"][0]) / YEAR, by_cell(rows, map(str, RATIOS))
    mean = {cell: float(np.mean([row["ratio"] for row in group])) for cell, group in groups.items()}
    for (world, rule), group in groups.items():
        low, high, cells = tally(group, 0.95)
        theory = NormalDist().cdf(float(world) * math.sqrt(years) - 1.96)
        yield {
            "net ratio": world,
            "agent": rule,
            **cells,
            "expected": f"{theory:.1%}",
            "contains it": compared(len(group), low <= theory <= high),
            "mean ratio": f"{mean[world, rule]:.2f}",
            "share of informed": f"{mean[world, rule] / mean.get((world, INFORMED), math.nan):.2f}",
            "CPU s a market": f"{np.mean([row['seconds'] for row in group]):.1f}",
        }


def by_cell(rows: Sequence[dict[str, Any]], worlds: Iterable[str]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return (world, rule) -> rows, for the rows of some worlds (see `Cell`)."""
    groups = {place: [row for row in rows if (row["world"], row["rule"]) == place] for place in product(worlds, RULES)}
    return {place: group for place, group in groups.items() if group}


def main(
    rules: Annotated[list[str] | None, typer.Argument(help=f"Rules; by default {', '.join(RULES)}.")] = None,
    real: Annotated[str | None, typer.Option("-r", help="File of real daily bars, to be resampled.")] = None,
    worlds: Annotated[
        list[str] | None, typer.Option("-w", help="Kind of market, may be repeated; by default all.")
    ] = None,
    markets: Annotated[
        int | None, typer.Option("-n", help="Markets of each kind; by default 200 without and 100 with a signal.")
    ] = None,
    jobs: Annotated[int | None, typer.Option("-j", help="Processes; by default one for each core.")] = None,
    folder: Folder = FOLDER,
) -> None:
    """Compute the rows that are not yet in the folder, and print the tables of all rows asked for."""
    wanted = cells(rules or RULES, real, markets, worlds)
    if real is not None:
        complete(real)
    makers = {cell.name: partial(play, cell, real) for cell in wanted}
    rows = keep_rows(folder, makers, cpu_count() if jobs is None else jobs)
    print("\n\n".join(markdown(lines) for lines in (list(false_skill(rows)), list(power(rows))) if lines))


if __name__ == "__main__":
    run_command(main)
