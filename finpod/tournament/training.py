"""`run`: tournaments of agents on any task, the best of which are chosen.

Every agent trains a slice, is scored and submitted to the board; the weaker give way to varied copies of the stronger, at
equal experience. Where the slices run, in this process or on Ray, changes nothing in what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from finpod.errors import FinpodError, InputError
from finpod.files import Progress
from finpod.storage import Store
from finpod.tournament.leaderboard import Trial
from finpod.tournament.log import TrialLog
from finpod.tournament.pod import run_slice
from finpod.tournament.run_folder import RunFolder, open_log
from finpod.tournament.scheduler import Scheduler, Status, Watch
from finpod.tournament.setup import Plan, TournamentSetup, from_shared
from finpod.tournament.trained_run import Run
from finpod.workers.executor import Executor, InlineExecutor

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Pods:
    """Where pods run."""

    ray: bool = field(default=False, metadata={"help": "Train on Ray: all cores of this machine, or a cluster."})
    count: int | str = field(default="auto", metadata={"help": "Pods at a time; 'auto' follows the cluster."})
    cpus: float = field(default=1.0, metadata={"help": "CPUs of a pod."})
    gpus: float = field(default=0.0, metadata={"help": "GPUs of a pod; 0.25 puts four on one."})
    timeout: float = field(default=3600.0, metadata={"help": "Seconds after which a slice of training counts as lost."})
    address: str | None = field(
        default=None, metadata={"help": "Of a running Ray cluster ('auto' inside one); without it Ray starts here."}
    )

    def __post_init__(self) -> None:
        if self.gpus and not self.ray:
            raise InputError(
                f"pods.gpus is {self.gpus:g}, and pods with GPUs need Ray; pass ray=True, or leave it out",
                argument="pods.gpus",
            )


def run(
    setups: Sequence[TournamentSetup],
    folder: RunFolder,
    pods: Pods,
    origin: Mapping[str, Any],
    finish: Callable[[list[Run], dict[str, bytes]], T],
    *,
    how: Mapping[str, Any],
    progress: Progress,
    watch: Watch | None = None,
    remarks: Sequence[str] = (),
) -> T:
    """Run one tournament after the other, one a seed, and return what `finish` makes of them and of their logs by name.

    `how` are the arguments of `RunFolder.drive`. Each log holds its setup, and `origin` (see `RunEntry`), from which the task
    can be made again. Whoever watches is told the `remarks` first. Log and checkpoints are removed once `finish` has
    returned. Raises InputError for a run that is unfinished (unless it is resumed or overwritten), that another process
    drives, or that has other settings.
    """
    seeds = [setup.plan.seed for setup in setups]
    # what can fail before the run begins has failed when an earlier run is removed
    with closing(open_executor(setups[0], pods)) as executor, folder.drive(**how, seeds=seeds):
        baseline, runs = setups[0].task.baseline(), list[Run]()
        for number, setup in enumerate(setups):
            store, first = Store(f"{folder.where}/seed-{setup.plan.seed}"), [] if number else [*remarks]
            log = open_log(store, setup.header(), first.append, forked=how["fork"] is not None, origin=origin)
            scheduler = tournament(setup, _part(progress, setup.plan, number, len(setups)), log, executor, watch, first)
            runs.append(Run(setup, scheduler.board, scheduler.choose(baseline)))
        executor.close()  # nothing more runs on it, and a Ray that ends takes its driver along
        return finish(runs, {f"log-{seed}.jsonl": folder.log(seed) for seed in seeds})


def tournament(
    setup: TournamentSetup,
    progress: Progress,
    log: TrialLog,
    executor: Executor,
    watch: Watch | None = None,
    remarks: Sequence[str] = (),
) -> Scheduler:
    """Hold one tournament, from where its log stands to its end; the same seed gives the same board.

    `remarks` are told to those who watch at the beginning. Raises FinpodError if no agent came to its end.
    """
    plan = setup.plan

    def look(status: Status) -> None:
        done = len(status.board.log)
        if status.remark and watch is None:
            progress(status.remark, done / plan.most_trials)
        if status.running:
            trial, _ = next(iter(status.running.values()))
            progress(_doing(trial, plan), min(done / plan.most_trials, 1.0))
        if watch is not None:
            watch(status)

    scheduler = Scheduler(plan, setup.evolver(), log, executor, update=setup.update, watch=look)
    scheduler.status.remark = "; ".join(filter(None, [*remarks, scheduler.status.remark]))
    board = scheduler.run()
    if board.log and all(trial.state == "failed" for trial in board.log):
        raise FinpodError(f"every agent failed, the last of them thus: {board.log[-1].reason}")
    if not board.log:
        raise InputError(
            f"no trial began: the rule to stop after {scheduler.stopped(0)} came before the first; "
            "raise stop.seconds, or leave it out",
            argument="stop.seconds",
        )
    progress("choosing", 1.0)
    return scheduler


def _doing(trial: Trial, plan: Plan) -> str:
    if plan.mode == "async":
        return f"trial {trial.number + 1} of {plan.most_trials}, level {trial.level}"
    return f"round {trial.level} of {plan.rounds}, agent {trial.number % plan.agents + 1} of {plan.agents}"


def open_executor(setup: TournamentSetup, pods: Pods) -> Executor:
    """Return this process, or Ray. Raises InputError where there is no Ray, or no room for a pod."""
    if not pods.ray:
        return InlineExecutor(run_slice, setup)
    from finpod.workers.ray_executor import RayExecutor

    return RayExecutor(
        run_slice,
        setup.to_shared(),
        pods=pods.count,
        cpus=pods.cpus,
        gpus=pods.gpus,
        timeout=pods.timeout,
        address=pods.address,
        restore=partial(from_shared, device="cuda" if pods.gpus else setup.device),
    )


def _part(progress: Progress, plan: Plan, s: int, seeds: int) -> Progress:
    """The progress of one of several tournaments as a part of the whole."""
    prefix = f"seed {plan.seed}, " if seeds > 1 else ""
    return lambda doing, share: progress(prefix + doing, (s + share) / seeds)
