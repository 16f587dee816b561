"""`run`: tournaments of agents on any task, with selection of the best.

Agents train in slices and are scored on validation. Weak agents are replaced by mutated copies of strong ones, compared at
equal experience. The result is the same in this process and on Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

from finpod.errors import FinpodError
from finpod.files import Progress
from finpod.storage import Store
from finpod.tournament.log import TrialLog, begun_logs
from finpod.tournament.pod import run_slice
from finpod.tournament.run_folder import RunFolder, open_log
from finpod.tournament.scheduler import Scheduler, Status, Watch
from finpod.tournament.setup import TournamentSetup, from_shared
from finpod.tournament.trained_run import Run
from finpod.workers.executor import Executor, InlineExecutor, Pods

T = TypeVar("T")


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
    """Run a tournament for each seed, one after the other. Return `finish(runs, logs)`, with the contents of the logs by name.

    `how` has the arguments of `RunFolder.drive`. Each log records its setup and `origin` (see `Recorded`), from which the
    task can be built again. `watch` is first called with the `remarks`. Logs and checkpoints are removed after `finish` has
    returned. Raises InputError for an unfinished run that is neither resumed nor overwritten, that another process drives,
    or that has other settings.
    """
    # the executor is opened first: an earlier run is removed only when nothing else can fail
    with closing(open_executor(setups[0], pods)) as executor, folder.drive(**how):
        baseline, runs = setups[0].task.baseline(), list[Run]()
        for number, setup in enumerate(setups):
            store = Store(f"{folder.where}/seed-{setup.plan.seed}")
            log, changes = open_log(store, setup.header(), origin, forked=how["fork"] is not None)
            prefix = f"seed {setup.plan.seed}, " if len(setups) > 1 else ""
            part = part_of(progress, number, len(setups), prefix)
            remark = "; ".join([*([] if number else remarks), *changes])
            scheduler = tournament(setup, log, executor, part, watch, remark)
            runs.append(Run(setup, scheduler.board, scheduler.choose(baseline)))
        executor.close()  # before `finish`, because Ray ends this process if Ray itself ends
        logs = {f"log-{seed}.jsonl": folder.store.read(name) for name, seed in begun_logs(folder.store).items()}
        return finish(runs, logs)


def tournament(
    setup: TournamentSetup, log: TrialLog, executor: Executor, progress: Progress, watch: Watch | None, remark: str
) -> Scheduler:
    """Run one tournament, continued from its log, to its end. `watch` is first called with the `remark`.

    Raises FinpodError if all agents failed.
    """
    most = setup.plan.most_trials

    def look(status: Status) -> None:
        done = len(status.board.log)
        share = min(done / most, 1.0)
        if status.remark and watch is None:
            progress(status.remark, share)
        if status.running:
            progress(f"trial {done + 1} of {most}", share)
        if watch is not None:
            watch(status)

    scheduler = Scheduler(setup.plan, setup.evolver(), log, executor, update=setup.update, watch=look)
    scheduler.status.remark = remark
    board = scheduler.run()
    if board.log and all(trial.state == "failed" for trial in board.log):
        raise FinpodError(f"every agent failed; reason of the last failure: {board.log[-1].reason}")
    progress("choosing", 1.0)
    return scheduler


def open_executor(setup: TournamentSetup, pods: Pods) -> Executor:
    """Return an executor in this process or on Ray. Raises InputError if Ray is not installed or has no room for a pod."""
    if not pods.ray:
        return InlineExecutor(run_slice, setup)
    from finpod.workers.ray_executor import RayExecutor

    restore = partial(from_shared, device="cuda" if pods.gpus else setup.device)
    return RayExecutor(run_slice, setup.to_shared(), pods, restore)


def part_of(progress: Progress, number: int, count: int, prefix: str) -> Progress:
    """Return a progress function for one of `count` parts. It reports the share of all parts; texts start with `prefix`."""
    return lambda doing, share: progress(prefix + doing, (number + share) / count)
