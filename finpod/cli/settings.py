"""Options of a training, and the values of these options that are recorded in the log of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from finpod.cli import options
from finpod.environments import STOCKS
from finpod.envs.locomotion import NAMES
from finpod.errors import InputError, require_number
from finpod.trading.ledger import Costs

if TYPE_CHECKING:
    from finpod.tournament.run_folder import Recorded


@dataclass(frozen=True)
class Run:
    """Options of a training that are not fields of another dataclass."""

    train: str | None = None
    """Training days, FIRST:LAST."""
    validation: str | None = None
    """Validation days as FIRST:LAST. Agents are selected on these days."""
    out: Path | None = None
    """Output folder for the best agents, such as strategies/first."""
    learner: str = "ppo"
    """Learning algorithm."""
    features: str = "default"
    """Features: 'default', 'published', or names separated by commas."""
    seeds: int = 1
    """Number of tournaments (searches), with seed, seed + 1, ...; the best agents of all tournaments are kept."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to compute on; auto uses a GPU if there is one."""
    envs: int | None = None
    """Number of parallel environments of an agent; by default that of the task, 512 for stocks (64 for learner apg)."""
    variant: Literal["standard", "full", "fast"] = "standard"
    """Variant of a locomotion task: 'full' observes contact forces, 'fast' has a cheaper integrator."""
    stop_minutes: float | None = None
    """Stop each tournament after this many minutes; --resume starts a new count."""
    storage: str | None = None
    """URL of the log and the checkpoints, such as s3://bucket/run; by default a folder next to --out."""
    resume: str | None = None
    """Continue the unfinished run NAME with its recorded settings. If it does not exist and --out is NAME, start it."""
    fork: str | None = None
    """Start from a copy of the unfinished run NAME, with the same task, costs, learner, seeds and steps per round."""
    tensorboard: Path | None = None
    """Folder for TensorBoard event files."""


RUN = options.fields_of("cli.settings", "Run")
PLAN = options.fields_of(
    "tournament.setup",
    "Plan",
    "agents rounds keep steps seed mode max_correlation=alike checkpoint_steps restart_rate",
    max_correlation={"default": 0.95},
    steps={
        "kind": "int | None",
        "default": None,
        "help": "Environment steps of an agent over all rounds; by default that of the task, 600,000 for stocks.",
    },
)
STOP = options.fields_of("tournament.setup", "Stop", "stop_trials=trials stop_steps=steps")
TRADING = options.fields_of(
    "envs.actions",
    "TradingConfig",
    "rebalance_every=hold action anchor",
    rebalance_every={"help": "Bars (sessions, if bars are daily) from one decision to the next."},
    action={
        "kind": "Literal['tilt', 'softmax', 'shares']",
        "help": "'tilt' changes the anchor's weights, 'softmax' sets weights and cash, 'shares' buys and sells.",
    },
    anchor={
        "default": "equal-weight",
        "help": "Portfolio that agents tilt and have to beat: equal-weight, dollar-volume or extra:COLUMN.",
    },
)
CAPS = options.only(options.TERMS, "max_weight", "max_turnover")
PODS = options.fields_of(
    "workers.executor", "Pods", "ray address pods=count pod_cpus=cpus pod_gpus=gpus timeout", pods={"kind": "str"}
)
FIRST = (
    *("end", "train", "validation", "test", "out", "market", "members", "learner", "agents", "rounds", "keep", "steps"),
    *("seed", "rebalance_every", "fee_bps", "ray", "device", "resume"),
)
"""Options that --help lists, in this order. --help-advanced lists all options."""
STOCKS_ONLY = options.MARKET | options.COSTS | options.FILL | TRADING | CAPS
ALL = STOCKS_ONLY | RUN | PLAN | STOP | PODS
"""Options of `finpod train`."""
OF_STOCKS = [*STOCKS_ONLY, "train", "validation", "features"]
"""Options that only stocks have."""
NEEDED = ("train", "validation", "out")
"""Options that a new run on stocks requires. Other tasks require only `out`."""
PASSED = ("learner", "agents", "rounds", "keep", "steps", "seed", "seeds", "device", "overwrite", "storage", "fork")
"""Options that every task has, and that are passed to `finpod.train` unchanged."""
OF_PLACE = ("out", "storage", "tensorboard")
"""Options that a fork does not copy, because the fork writes to other folders."""


def spelled(*names: str) -> str:
    """Return the names of options as text, such as '--a, --b and --c'."""
    *others, last = (f"--{name.replace('_', '-')}" for name in names)
    return f"{', '.join(others)} and {last}" if others else last


def needed(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options that a new run requires."""
    return NEEDED if values["task"] == STOCKS else NEEDED[-1:]


def refuse_others(task: str, typed: Collection[str]) -> None:
    """Raise InputError for a stock option with another task, and for --variant with a task without variants."""
    if "variant" in typed and task not in NAMES:
        raise InputError(f"--variant is for locomotion, but the task {task} has no variants; omit this option")
    if task != STOCKS and (idle := [name for name in OF_STOCKS if name in typed]):
        raise InputError(f"{spelled(idle[0])} is for stocks, but the task {task} has no market; omit this option")


def arguments(values: Mapping[str, Any], recorded: Recorded | None = None) -> dict[str, Any]:
    """Return the arguments of `finpod.train` except the market. Raises InputError for invalid options. Reads no file.

    A setting that has no option gets its recorded value, or its default if no value is recorded.
    """
    from finpod.tournament.setup import Plan, Stop
    from finpod.workers.executor import Pods

    seconds = None
    if (minutes := values["stop_minutes"]) is not None:
        require_number("stop_minutes", minutes, 1e-12)
        seconds = 60 * minutes
    sizes = options.values_of(PLAN, values) | ({"steps": Plan.steps} if values["steps"] is None else {})
    stop = Stop(**options.values_of(STOP, values), seconds=seconds)
    pods, count = options.values_of(PODS, values), values["pods"]
    pods |= {"ray": pods["ray"] or pods["address"] is not None, "count": int(count) if count.isdecimal() else count}
    given = {name: values[name] for name in PASSED} | {"out": Path(values["out"]), "pods": Pods(**pods)}
    given["plan"] = replace(recorded.plan if recorded else Plan(), stop=stop, **sizes)
    task = recorded.header["task"] if recorded else {}
    trading = dict(task.get("trading", {}))
    costs = replace(Costs(**trading.pop("costs", {})), **options.values_of(options.COSTS, values))
    if recorded:
        same = values["learner"] == recorded.header.get("learner")  # otherwise the run is refused
        given |= trading | {"config": recorded.config if same else None, "threads": task["threads"]}
    if values["envs"] is not None:
        given["num_envs"] = values["envs"]
        if recorded and values["envs"] != recorded.header["num_envs"]:
            given.pop("start_groups", None)
    if values["task"] in NAMES:
        given["variant"] = values["variant"]
    if values["task"] == STOCKS:
        given |= {name: options.window(values[name], name) for name in ("train", "validation")}
        given |= of_stocks(values, costs)
    return given


def of_stocks(values: Mapping[str, Any], costs: Costs) -> dict[str, Any]:
    """Return the arguments of `finpod.train` for stocks, except the market and the windows."""
    return {
        "features": None if values["features"] == "default" else options.words(values["features"]),
        "costs": costs,
        "fill": values["fill"],
        **options.values_of(TRADING, values),
        **options.values_of(CAPS, values),
    }


def recorded_options(recorded: Recorded, typed: Collection[str], *, fork: bool) -> dict[str, Any]:
    """Return option -> value recorded in the log of a run, for the options that were not `typed`.

    Raises InputError for a market or task made in memory and for feature functions, which a log cannot store.
    """
    stop = recorded.plan.stop
    if recorded.functions and "features" not in typed:
        raise InputError(
            f"{recorded.where} uses the feature function {next(iter(recorded.functions))}, which a log cannot store; continue "
            "in Python with finpod.train(..., features=[...], resume=True)"
        )
    values = {
        **_of_task(recorded),
        "learner": recorded.header["learner"],
        "envs": recorded.header["num_envs"],
        **options.options_of(PLAN, vars(recorded.plan)),
        **options.options_of(STOP, vars(stop)),
        "seeds": len(recorded.seeds),
        "stop_minutes": None if stop.seconds is None else stop.seconds / 60,
        "out": Path(recorded.out),
        "storage": recorded.storage,
        "tensorboard": Path(text) if (text := recorded.metadata.get("tensorboard")) else None,
    }
    kept = {name: value for name, value in values.items() if name not in typed and not (fork and name in OF_PLACE)}
    return kept | (_market(recorded, typed) if "trading" in recorded.header["task"] else {})


def _of_task(recorded: Recorded) -> dict[str, Any]:
    """Return the recorded options of the task. Raises InputError if the log cannot store the task."""
    task, features = recorded.header["task"], recorded.features
    if "variant" in task:
        return {name: task[name] for name in ("task", "variant")}
    if "trading" not in task:
        if "task" not in recorded.metadata:
            raise InputError(
                f"the run {recorded.where} has the task {task.get('task')}, a Python object, which its log cannot "
                "store; resume the run in Python with finpod.train(task, ..., resume=True)"
            )
        return {"task": recorded.metadata["task"]}
    trading = task["trading"]
    return {
        "train": ":".join(task["windows"]["train"]),
        "validation": ":".join(task["windows"]["validation"]),
        "features": "default" if features is None else features if isinstance(features, str) else ",".join(features),
        **options.options_of(options.COSTS, trading["costs"]),
        **options.options_of(TRADING, trading),
        **options.options_of(CAPS, trading),
        "fill": task["fill"],
    }


def _market(recorded: Recorded, typed: Collection[str]) -> dict[str, Any]:
    """Return the recorded options of the market that were not `typed`. 'load' has the arguments without an option.

    Raises InputError for a market that was made in memory, unless the option market was typed.
    """
    market = dict(recorded.market)
    if not market and "market" not in typed:
        raise InputError(
            f"{recorded.where} needs a market made in memory ({recorded.header.get('data_title')}); save it "
            "as a snapshot, and pass the snapshot as --market"
        )
    known = {name: market.pop("path" if name == "market" else name, ...) for name in options.MARKET}
    for name in ("benchmark", "calendar"):
        known[name] = "none" if known[name] is None else known[name]
    if isinstance(known["extra"], str):
        known["extra"] = [known["extra"]]
    return {name: value for name, value in known.items() if name not in typed and value not in (None, ...)} | {
        "load": market
    }
