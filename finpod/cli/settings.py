"""Settings of a training as options of the command line, and the options that the log of a run stands for."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from finpod.cli import options
from finpod.environments import STOCKS
from finpod.envs.locomotion import NAMES
from finpod.errors import InputError
from finpod.trading.ledger import Costs

if TYPE_CHECKING:
    from finpod.tournament.recorded import Recorded
    from finpod.tournament.setup import Plan
    from finpod.tournament.training import Pods


@dataclass(frozen=True)
class Run:
    """Options of a training that are fields of no settings."""

    train: str | None = None
    """Training days, FIRST:LAST."""
    validation: str | None = None
    """Days on which agents are chosen, FIRST:LAST."""
    out: Path | None = None
    """Folder of the best agents, such as strategies/first."""
    learner: str = "ppo"
    """Learning algorithm."""
    features: str = "default"
    """'default', 'published', or names separated by commas."""
    seeds: int = 1
    """Runs of the whole tournament, from seed, seed + 1, ...; all are kept."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""
    envs: int | None = None
    """Environments of each agent; if left out those of the task, 512 of stocks."""
    variant: Literal["standard", "full", "fast"] = "standard"
    """Of a locomotion task: with contact forces (full), or a cheaper integrator (fast)."""
    stop_minutes: float | None = None
    """Stop after so many minutes, of each seed; counted anew by --resume."""
    storage: str | None = None
    """URL for log and checkpoints, such as s3://bucket/run; beside --out if left out."""
    resume: str | None = None
    """Continue an unfinished run, by its name, under the settings of its log; begin it if all is given."""
    fork: str | None = None
    """Begin with a copy of an unfinished run, by its name; settings may change."""
    tensorboard: Path | None = None
    """Folder for TensorBoard event files."""


ACTIONS = Literal["tilt", "softmax", "shares"]
RUN = options.Settings("cli.settings", "Run", " ".join(Run.__annotations__))
PLAN = options.Settings(
    "tournament.setup",
    "Plan",
    "agents rounds keep steps seed mode choice max_correlation=alike checkpoint_steps",
    steps={
        "kind": int | None,
        "default": None,
        "help": "Environment steps an agent over all rounds; if left out those of the task, 600,000 of stocks.",
    },
)
EVOLUTION = options.Settings("tournament.evolution", "EvolutionConfig", "restart_rate=fresh")
STOP = options.Settings("tournament.setup", "Stop", "stop_trials=trials stop_steps=steps stop_score=score patience")
TRADING = options.Settings(
    "envs.actions",
    "TradingConfig",
    "rebalance_every=hold action anchor",
    rebalance_every={"help": "Sessions between decisions."},
    action={
        "kind": ACTIONS,
        "help": "'tilt' around the anchor, 'softmax' over names and cash, 'shares' to buy and sell.",
    },
    anchor={"help": "Portfolio to tilt around and to beat: equal-weight, dollar-volume or extra:COLUMN."},
)
CAPS = options.TERMS.only("max_weight", "max_turnover")
PODS = options.Settings(
    "tournament.training",
    "Pods",
    "ray address pods=count pod_cpus=cpus pod_gpus=gpus timeout",
    pods={"kind": str},
)
COMMON = (
    options.MARKET.only("market", "members"),
    RUN.only("learner"),
    PLAN.only("agents", "rounds", "keep", "steps", "seed"),
    TRADING.only("rebalance_every"),
    options.COSTS.only("fee_bps"),
    PODS.only("ray"),
    RUN.only("device"),
)
"""Options that `finpod train --help` and `finpod walkforward --help` list."""
RARE = (
    options.MARKET.only("ticker_column", "renames", "extra", "benchmark", "calendar", "periods_per_year"),
    RUN.only("features"),
    options.COSTS.only("slippage_bps", "impact"),
    options.FILL,
    TRADING.only("action", "anchor"),
    CAPS,
    RUN.only("seeds"),
)
"""Options that both have under --help-advanced."""
FIRST = (RUN.only("train", "validation", "out"), *COMMON, RUN.only("resume"))
ADVANCED = (
    *RARE,
    RUN.only("envs", "variant"),
    PLAN.only("mode", "choice", "max_correlation", "checkpoint_steps"),
    EVOLUTION,
    STOP,
    RUN.only("stop_minutes"),
    PODS.only("address", "pods", "pod_cpus", "pod_gpus", "timeout"),
    RUN.only("storage", "fork", "tensorboard"),
)
"""Options of `finpod train`."""
OF_STOCKS = [
    *options.MARKET.names,
    *options.COSTS.names,
    *options.FILL.names,
    *TRADING.names,
    *CAPS.names,
    *("train", "validation", "features"),
]
"""Options that mean something to stocks alone."""


NEEDED = ("train", "validation", "out")
"""Options that a new run on stocks must be given; one on another task needs the last alone."""
OF_PLACE = ("out", "storage", "tensorboard")
"""Options that a fork does not take over, because it lies elsewhere."""


def spelled(*names: str) -> str:
    """Options as a list in words."""
    *others, last = (f"--{name.replace('_', '-')}" for name in names)
    return f"{', '.join(others)} and {last}" if others else last


def needed(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Options without which a new run cannot begin."""
    return NEEDED if given["task"] == STOCKS else NEEDED[-1:]


def refuse_others(task: str, typed: Collection[str]) -> None:
    """Raise InputError for an option of stocks with another task, and for a variant of what has none."""
    if "variant" in typed and task not in NAMES:
        raise InputError(f"--variant is for locomotion, and the task {task} has none; leave it out")
    if task != STOCKS and (idle := [name for name in OF_STOCKS if name in typed]):
        raise InputError(f"{spelled(idle[0])} is for stocks, and the task {task} has no market; leave it out")


def checked(given: Mapping[str, Any], recorded: Recorded | None = None) -> tuple[Plan, Costs, Pods]:
    """The tournament, the costs and where pods run; what has no option is as `recorded`, or the default.

    Raises InputError for options with which no run could begin, whatever lies on the disks.
    """
    from finpod.tasks import trading_of
    from finpod.tournament.setup import Plan, Stop, require_count
    from finpod.tournament.training import Pods
    from finpod.workers.ray_executor import check_pods

    for name in ("train", "validation"):
        if given[name] is not None:
            options.check_dates(*options.window(given[name], name))
    require_count("seeds", given["seeds"])
    minutes = given["stop_minutes"]
    if minutes is not None and not 0 < minutes < math.inf:
        raise InputError(f"stop_minutes is {minutes}; give a positive number, or leave it out", argument="stop_minutes")
    stop = Stop(**STOP.values(given), seconds=None if minutes is None else 60 * minutes)
    base = recorded.plan if recorded else Plan()
    sizes = PLAN.values(given) | ({"steps": Plan.steps} if given["steps"] is None else {})
    plan = replace(base, search=replace(base.search, **EVOLUTION.values(given)), stop=stop, **sizes)
    known = recorded.task.get("trading", {}).get("costs", {}) if recorded else {}
    costs = replace(Costs(**known), **options.COSTS.values(given))
    trading_of(costs=costs, **TRADING.values(given), **CAPS.values(given))
    where = PODS.values(given)
    if where["count"] != "auto":
        where["count"] = _whole(where["count"])
    check_pods(*(where[name] for name in ("count", "cpus", "gpus", "timeout")))
    return plan, costs, Pods(**where | {"ray": where["ray"] or where["address"] is not None})


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InputError(f"pods is {text!r}; it must be 'auto' or a whole number from 1 on", argument="pods") from error


def recorded_options(recorded: Recorded, typed: Collection[str], *, fork: bool) -> dict[str, Any]:
    """Values of all options that the run has recorded and that are not among those `typed`.

    Raises InputError for what a log cannot hold and nobody has typed: a market from memory, feature functions, files that
    no longer exist.
    """
    if recorded.functions and "features" not in typed:
        raise InputError(
            f"{recorded.where} uses the feature function {recorded.functions[0]}, which a log cannot hold; continue from Python "
            "with finpod.train(..., features=[...], resume=True)"
        )
    stop = recorded.plan.stop
    values = {
        **_of_task(recorded),
        "learner": recorded.learner,
        "envs": recorded.num_envs,
        **PLAN.options(vars(recorded.plan)),
        **EVOLUTION.options(vars(recorded.plan.search)),
        **STOP.options(vars(stop)),
        "seeds": recorded.seeds,
        "stop_minutes": None if stop.seconds is None else stop.seconds / 60,
        "out": None if recorded.out is None else Path(recorded.out),
        "storage": recorded.storage,
        "tensorboard": Path(text) if (text := recorded.asked.get("tensorboard")) else None,
    }
    kept = {name: value for name, value in values.items() if name not in typed and not (fork and name in OF_PLACE)}
    return kept | (_market(recorded, typed) if "trading" in recorded.task else {})


def _of_task(recorded: Recorded) -> dict[str, Any]:
    """Options of the task. Raises InputError for a task that was an object in memory."""
    task, features = recorded.task, recorded.features
    if "variant" in task:
        return {name: task[name] for name in ("task", "variant")}
    if "trading" not in task:
        if "task" not in recorded.asked:
            raise InputError(
                f"{recorded.where} trains the task {task.get('task')}, an object that a log cannot hold; continue from Python "
                "with finpod.train(task, ..., resume=True)"
            )
        return {"task": recorded.asked["task"]}
    trading = task["trading"]
    return {
        "train": ":".join(task["windows"]["train"]),
        "validation": ":".join(task["windows"]["validation"]),
        "features": "default" if features is None else features if isinstance(features, str) else ",".join(features),
        **options.COSTS.options(trading["costs"]),
        **TRADING.options(trading),
        **CAPS.options(trading),
        "fill": task["fill"],
    }


def _market(recorded: Recorded, typed: Collection[str]) -> dict[str, Any]:
    """The options of the market, and `load` with further arguments of `load_market`.

    Raises InputError for a market from memory, and for a file that has gone.
    """
    market = dict(recorded.market)
    if not market and "market" not in typed:
        raise InputError(
            f"{recorded.where} was begun with a market from memory ({recorded.data_title}); give it with --market"
        )
    known = {name: market.pop("path" if name == "market" else name, ...) for name in options.MARKET.names}
    for name in ("benchmark", "calendar"):
        known[name] = "none" if known[name] is None else known[name]
    if isinstance(known["extra"], str):
        known["extra"] = [known["extra"]]
    kept = {name: value for name, value in known.items() if name not in typed and value not in (None, ...)}
    try:
        options.check_market({"market": "sample", "members": None, "renames": None, "extra": None} | kept)
    except InputError as error:
        raise InputError(f"{error}; {recorded.where} was begun with it", argument=error.argument) from error
    return kept | {"load": market}
