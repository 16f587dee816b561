"""`train`: train agents on a task and save the best, as an `Ensemble` (stocks) or a `TrainedRun` (other tasks)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from finpod.active import ACTIVE
from finpod.devices import pick_device
from finpod.ensemble import Ensemble
from finpod.environments import STOCKS, TASKS, require_settings
from finpod.errors import InputError, require_choice, require_number
from finpod.features.panel import Features, Kind, Scaling, compute, name_of
from finpod.files import ENSEMBLE, TRAINED, Progress, require_free
from finpod.locomotion import LocomotionTask
from finpod.market.data import DateLike, MarketData
from finpod.rl import LEARNERS
from finpod.rl.checkpoint import save_agents
from finpod.rl.task import Task, require_task
from finpod.tasks import StockTask, make_stock_task, trading_of
from finpod.tournament.analysis import SCORES
from finpod.tournament.leaderboard import Settings
from finpod.tournament.run_folder import RunFolder, find
from finpod.tournament.scheduler import Watch, open_executor, run
from finpod.tournament.setup import Plan, Stop, TournamentSetup
from finpod.tournament.trained_run import FORMAT, Run, TrainedRun, provenance, row_of
from finpod.trading.anchors import EQUAL, with_anchor
from finpod.trading.execution import build_execution
from finpod.trading.ledger import Costs
from finpod.trading.simulate import Window, simulate
from finpod.weights import decisions_of
from finpod.workers.executor import Pods

__all__ = ["Plan", "Pods", "Stop", "TrainedRun", "train"]
EXACT_ENVS = 64
"""Default number of accounts for a learner that uses the exact gradient."""
HOLD, ACTION = 5, "tilt"
"""Default number of bars from one decision to the next, and default kind of action."""


def train(
    task: str | Task = "stocks",
    *,
    market: MarketData | None = None,
    train: tuple[DateLike, DateLike] | None = None,
    validation: tuple[DateLike, DateLike] | None = None,
    out: str | Path,
    learner: str = "ppo",
    features: Features = None,
    costs: Costs | None = None,
    agents: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    seeds: int = 1,
    rounds: int | None = None,
    keep: int | None = None,
    hold: int = HOLD,
    action: str = ACTION,
    fill: str | None = None,
    device: str = "auto",
    threads: int = 1,
    overwrite: bool = False,
    progress: Progress | None = None,
    config: Any = None,
    plan: Plan | None = None,
    pods: Pods | None = None,
    resume: bool = False,
    fork: str | Path | None = None,
    storage: str | None = None,
    watch: Watch | None = None,
    metadata: Mapping[str, Any] = MappingProxyType({}),
    check: bool = False,
    **settings: Any,
) -> Ensemble | TrainedRun | None:
    """Train agents on a task in a tournament and save the best in the folder `out`.

    The task "stocks" trades `market`. Agents train on the days of `train` and are selected on those of `validation`; no
    later row is read. `features`, `costs`, `hold` (bars from one decision to the next), `action`, `fill` and
    further keywords (the fields of `TradingConfig`) define the task. The keyword `anchor` may also be weights [T, N] of
    N assets in T bars. These become the column `extra:anchor` of the market. Features that are undefined on more than
    half of the members' training bars are dropped. The call returns the selected agents as an `Ensemble`.

    "hopper", "halfcheetah", "walker2d", "swimmer", "ant" and "humanoid" are the locomotion tasks of Gymnasium v5, in
    the `variant` "standard", "full" or "fast". Any other task is an instance of `finpod.rl.task.Task`. For all these
    tasks, `train` returns a `TrainedRun`. They accept `num_envs`, but no other argument that defines "stocks".

    `learner` is a name in `finpod.rl.LEARNERS`. `config` holds the settings of the first agent. `steps` is the number
    of environment steps of an agent (default: that of the task), rounded to whole rollouts. The tournament trains
    `agents` agents in `rounds` rounds, and selects `keep` of them. After each round, changed copies of strong agents
    replace weak ones. With `seeds` > 1, that many tournaments are run, with the seeds `seed`, `seed` + 1, ... The
    selected agents of all tournaments are kept. `plan` has further settings, such as mode and stop rules. If
    `steps`, `agents`, `rounds`, `keep` or `seed` is not given, `plan` supplies the value. `pods` says whether
    agents train in this process or on Ray, and with how many CPUs and GPUs.

    During the run, the log and the checkpoints are in `OUT.unfinished`, or in the folder or URL `storage`. `resume`
    continues this run with the same settings. `fork` starts from a copy of another unfinished run. The fork must keep
    its task, learner, threads, seeds and steps per round; other settings may change. The log records the settings, the
    arguments of `load_market` and the values `metadata`, so a run can be resumed by name.

    `progress` is called with the name of the current step and the fraction done, and `watch` is called with the
    `Scheduler`. The names of dropped features go to `watch`. Without `watch`, these names go to `progress`.
    Without both, the names are issued as a warning.

    With `check`, nothing is trained or written. The call computes the features, and connects to Ray or starts it, if
    `pods` uses Ray. It raises the errors that would prevent training, and returns None.

    Raises InputError for windows that overlap or lie outside the data, unknown tasks, learners and settings, a task
    object that lacks a member, a `market` for a task without a market, an `out` that exists (unless `overwrite`), an
    unfinished run of this name without `resume` or `overwrite`, a resumed run with other settings, and a run in use.
    """
    require_number("seeds", seeds, 1, 1000, whole=True)
    require_number("threads", threads, 1, whole=True)
    for name, value, kind in (("pods", pods, Pods), ("plan", plan, Plan), ("costs", costs, Costs)):
        if not isinstance(value, kind | None):
            raise InputError(f"{name} is {value!r:.60}; pass an instance of {kind.__name__}", argument=name)
    sizes: Any = {"agents": agents, "rounds": rounds, "keep": keep, "steps": steps, "seed": seed}
    pods, plan = pods or Pods(), replace(plan or Plan(), **{k: size for k, size in sizes.items() if size is not None})
    features = list(features) if isinstance(features, Iterator) else features
    if isinstance(task, str) and task != STOCKS:
        require_choice("task", task, TASKS, ", or give a task of your own")
        task = LocomotionTask(name=task, variant=settings.pop("variant", "standard"))
    out, folder = Path(out), RunFolder.of(Path(out), storage)
    require_free(out, overwrite, ENSEMBLE if isinstance(task, str) else TRAINED)
    here = "cpu" if pods.gpus else str(pick_device(device))  # agents may train on GPUs of other machines
    used = "cuda" if pods.gpus else here
    of_market = {"market": market, "train": train, "validation": validation, "features": features, "costs": costs,
                 "hold": hold, "action": action, "fill": fill}  # fmt: skip
    learning = _learning_task(task, here, of_market, settings, learner, config)
    if isinstance(learning, LocomotionTask):
        learning = replace(learning, device=used)
    if steps is None and plan.steps == Plan.steps:
        plan = replace(plan, steps=learning.steps)
    shared: dict[str, Any] = {"task": learning, "learner": learner, "device": here, "threads": threads}
    shared["num_envs"] = settings.get("num_envs", learning.num_envs)
    shared["config"] = config or LEARNERS[learner].Config(**learning.defaults(learner))
    setups = [TournamentSetup(plan=replace(plan, seed=plan.seed + s), **shared) for s in range(seeds)]
    how: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "fork": None if fork is None else find(fork)}
    folder.require(**how, setups=setups)  # before the features are computed
    remarks = _prepare(setups[0], progress, watch)
    if resume or fork is not None:
        (how["fork"] or folder).require_setups(setups, forked=fork is not None)
    if check:
        open_executor(setups[0], pods).close()
        return None
    beside = {"market": {} if market is None else market.origin, "metadata": metadata}
    entry = _entry(out, storage, learning, features, seeds=[one.plan.seed for one in setups], **beside)
    make = partial(_ensemble, features) if isinstance(learning, StockTask) else _trained_run
    finish: Any = partial(make, out, overwrite, used)
    tell = progress or (lambda doing, share: None)
    return run(setups, folder, pods, entry, finish, how=how, progress=tell, watch=watch, remarks=remarks)


def _learning_task(
    task: Any, device: str, of_market: Mapping[str, Any], settings: Mapping[str, Any], learner: str, config: Any
) -> Task:
    """Return the task for the arguments of `train`.

    Raises InputError for an unknown learner, a `config` of another learner, and a task without the gradient that the
    learner needs.
    """
    require_choice("learner", learner, tuple(LEARNERS))
    kind, needs = LEARNERS[learner].Config, LEARNERS[learner].needs_gradient
    if config is not None and not isinstance(config, kind):
        text = f"config is a {type(config).__name__}, which learner {learner!r} cannot use; pass a {kind.__name__}"
        raise InputError(text, argument="config")
    if not isinstance(task, str):
        learning = _task_without_market(task, of_market, settings)
    else:
        # Accounts on the same days would be copies of each other, so each starts on a day of its own. Few accounts with
        # frequent updates learn faster on the CPU.
        own_days = {"start_groups": None, "num_envs": EXACT_ENVS} if needs else {}
        learning = _stock_task(device, **of_market, **(own_days | dict(settings)))
    if needs and (what := learning.undifferentiable):
        text = f"learner {learner!r} needs a gradient, but {what} of task {learning.name!r} has none; choose 'ppo'"
        raise InputError(text, argument="learner")
    return learning


def _stock_task(
    device: str, market: Any, train: Any, validation: Any, features: Any, fill: str | None, **settings: Any
) -> StockTask:
    market, settings["anchor"] = with_anchor(market, settings.get("anchor", EQUAL))
    settings["costs"] = settings["costs"] or Costs()
    return make_stock_task(market, train, validation, trading_of(**settings), fill, features, device)


def _task_without_market(task: Any, of_market: Mapping[str, Any], settings: Mapping[str, Any]) -> Task:
    """Return the task object `task` after checks. Raises InputError for arguments that only the task "stocks" takes."""
    learning = require_task(task)
    plain = {"hold": HOLD, "action": ACTION}
    for name, value in of_market.items():
        if value is not None and value != plain.get(name):
            raise InputError(f"task {learning.name!r} does not trade a market; omit the argument {name}", name)
    require_settings(learning.name, settings, ("num_envs",))
    require_number("num_envs", settings.get("num_envs", learning.num_envs), 1, whole=True)
    return learning


def _prepare(setup: TournamentSetup, progress: Progress | None, watch: Watch | None) -> list[str]:
    """Compute the features. Return remarks on dropped features, and on a `max_weight` that leaves some cash idle.

    Without `progress` and `watch`, the remarks are issued as warnings. Raises InputError if a learner that needs the
    gradient has rollouts longer than the training window.
    """
    task = setup.task
    if not isinstance(task, StockTask):
        return []
    steps, hold, sessions = setup.config.num_steps, task.trading.hold, task.train[1] - task.train[0]
    if LEARNERS[setup.learner].needs_gradient and steps * hold > sessions:
        raise InputError(
            f"num_steps {steps} needs {steps * hold:,} bars at hold={hold}, but the training window has {sessions:,}; "
            "choose a longer window, decide more often, or lower num_steps in config",
            argument="num_steps",
        )
    if progress is not None:
        progress("features", 0.0)
    remarks = []
    if dropped := ", ".join(f"{name} {share:.1%}" for name, share in task.panel.dropped.items()):
        remarks.append(f"features dropped because they are undefined on most of the members' training bars: {dropped}")
    cap, members = task.trading.max_weight or 1.0, task.execution.among
    fewest, needed = int(members[task.train[0] : task.validation[1]].sum(-1).min()), math.ceil(1 / cap - 1e-6)
    if cap < 1 and fewest < needed:
        remarks.append(
            f"max_weight {cap:g} needs {needed:,} assets to invest all cash; some bars have {fewest}, so cash remains"
        )
    if progress is None and watch is None:
        for remark in remarks:
            warnings.warn(remark, stacklevel=3)
    return remarks


def own_functions(features: Features) -> list[Any]:
    """Return the features that are functions."""
    return [one for one in ([features] if callable(features) else features or ()) if callable(one)]


def statistics_of(features: Features, market: MarketData) -> dict[str, str]:
    """Return name -> mean and standard deviation of each feature that is a function, over all bars of the members.

    If these statistics have changed, a run is not resumed: the name then belongs to another function.
    """
    if not (own := own_functions(features)):
        return {}
    among, names = torch.tensor(market.member & market.has_bar), [name_of(one) for one in own]
    kinds: list[Kind] = ["pooled"] * len(own)
    scaling = Scaling.fit(compute(market, own), among, 0, len(market.dates), names=names, kinds=kinds)
    return {
        name: f"mean {mean:.6g}, sd {sd:.6g}" for name, mean, sd in zip(names, scaling.mean, scaling.sd, strict=True)
    }


def _entry(out: Path, storage: str | None, task: Task, features: Any, **others: Any) -> dict[str, Any]:
    """Return the entry 'run' of a log. The entry has the data to resume the run. `Recorded` describes the fields."""
    place = storage if storage is None or "://" in storage else str(Path(storage).absolute())
    functions = statistics_of(features, task.market) if isinstance(task, StockTask) else {}
    if features is not None and not isinstance(features, str):
        features = [name_of(one) for one in ([features] if callable(features) else features)]
    return {"out": str(out.absolute()), "storage": place, "features": features, "functions": functions, **others}


def _ensemble(
    features: Features, out: Path, overwrite: bool, device: str, runs: Sequence[Run], logs: Mapping[str, bytes]
) -> Ensemble:
    task = runs[0].setup.task
    assert isinstance(task, StockTask)
    spec, panel, chosen = task.spec(), task.panel, [(one, *pair) for one in runs for pair in one.chosen]
    ensemble = Ensemble(
        [agent for _, _, agent in chosen],
        runs=[one.setup.plan.seed for one, _, _ in chosen],
        name=out.resolve().name,
        trials=sum(len(one.board.log) for one in runs),
        provenance={
            **provenance(runs, device, [trial for _, trial, _ in chosen]),
            "score": SCORES[task.measure],
            **{name: spec[name] for name in ("features", "left_out", "trading", "fill", "training_data_hash")},
            **task.market.frequency,
            "dropped": dict(panel.dropped),
            "undefined": dict(panel.undefined),
        },
        log=[
            row_of(trial, one.setup) | {"run": trial.run, "returns": trial.returns.tolist()}
            for one in runs
            for trial in one.board.log
        ],
        own_features=own_functions(features),
        scores=[trial.score for _, trial, _ in chosen],
        baseline=task.baseline().tolist(),
    )
    ensemble.provenance = {**ensemble.provenance, "figures": _agent_figures(task, runs, ensemble)}
    ensemble.save(out, overwrite=overwrite, beside=logs)
    return ensemble


def _agent_figures(task: StockTask, runs: Sequence[Run], ensemble: Ensemble) -> list[dict[str, Any]]:
    """Return one row per window for the ensemble and each agent, with 'agent', 'window' and the metrics `ACTIVE`."""
    execution, lines = build_execution(task.market, task.fill), []
    for window, rows in (("training", task.train), ("validation", task.validation)):
        seen = Window(market=task.market, execution=execution, first=rows[0], last=rows[1])
        decide = decisions_of(ensemble, ensemble.name, seen)
        paths = {"ensemble": simulate(execution, *rows, decide, task.trading)}
        for trial, agent in [pair for one in runs for pair in one.chosen]:
            own = task.for_agent(Settings.from_dict(trial.agent_settings).task)
            name = f"{trial.run}: " * (len(runs) > 1) + trial.agent
            paths[name] = own.play(agent.policy(task.device), rows)
        for name, path in paths.items():
            figures = task.score_of(path, rows).metrics
            lines.append({"agent": name, "window": window, **{key: figures[key] for key in ACTIVE}})
    return lines


def _trained_run(out: Path, overwrite: bool, device: str, runs: Sequence[Run], logs: Mapping[str, bytes]) -> TrainedRun:
    """Save the selected agents of all tournaments, the best first, in the folder `out`. Return them as a TrainedRun."""
    chosen = sorted((pair for one in runs for pair in one.chosen), key=lambda pair: -pair[0].score)
    content = {
        "format": FORMAT,
        "trials": sum(len(one.board.log) for one in runs),
        "provenance": provenance(runs, device, [trial for trial, _ in chosen]),
    }
    save_agents(out, TRAINED, [agent for _, agent in chosen], content, logs, overwrite=overwrite)
    return TrainedRun(out, runs[0].setup.task)
