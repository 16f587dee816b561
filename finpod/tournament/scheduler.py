"""`run`: tournaments of agents on any task, with selection of the best; `Scheduler`: runs one tournament.

    Evolver -> pods (executor) -> scores -> log -> Leaderboard -> Evolver ...

A slice is the training of one agent, in a pod, up to its next checkpoint. If a pod is lost, its slice starts again.
Decisions are logged before they take effect, so a killed tournament continues from its log and the last checkpoints.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

from finpod.errors import CheckpointError, DataError, FinpodError, InputError
from finpod.files import Progress
from finpod.measures import Array
from finpod.rl.checkpoint import Checkpoint
from finpod.storage import Store
from finpod.tournament.leaderboard import BOARD, Leaderboard, Settings, Trial, ranked
from finpod.tournament.log import AGENT_FILE, INSIDE_FILE, TrialLog, begun_logs, fetch
from finpod.tournament.pod import Slice, Trained, run_slice
from finpod.tournament.run_folder import RunFolder, open_log
from finpod.tournament.setup import TournamentSetup, from_shared
from finpod.tournament.trained_run import Run
from finpod.workers.executor import Completed, Executor, Failed, InlineExecutor, Pods
from finpod.workers.ray_executor import RayExecutor

T = TypeVar("T")

WAIT = 0.5
"""Largest number of seconds between calls of `watch` on Ray. Without Ray, `watch` is called after each slice."""


class Scheduler:
    """Runs one tournament, or continues it from its log. It calls `watch` with itself as the argument.

    Attributes for `watch`: `running` maps the number of each trial in training to (trial, start time of its slice).
    `where` describes the executor. `steps` counts environment steps of all agents since `began`. Times are Unix times.
    `latest` is the last trial that ended since the previous call, or None. `losses` has the training losses of the
    last trial that ended. `remark` is a message to show, or empty. In the first call, it is the argument `remark`.
    """

    def __init__(
        self, setup: TournamentSetup, log: TrialLog, executor: Executor, progress: Progress, watch: Watch | None,
        remark: str,
    ) -> None:  # fmt: skip
        self.plan, self.update, self.evolver = setup.plan, setup.update, setup.evolver()
        self.measure = setup.task.measure
        self.log, self.executor, self.progress, self.watch = log, executor, progress, watch
        self.store, self.board = log.store, log.board
        self.running: dict[int, tuple[Trial, float]] = {}
        self.where, self.began, self.steps = executor.describe(), time.time(), 0
        self.latest: Trial | None = None
        self.losses, self.remark = dict[str, float](), remark
        self._attempts: dict[int, int] = {}

    def run(self) -> Leaderboard:
        """Run the tournament to its end, or until a stop rule applies, and return the leaderboard."""
        if self.remark:
            self._look()  # before the next remark replaces it
        if self.plan.mode == "rounds":
            self._rounds()
        else:
            unfinished = iter([trial for trial in self.board.trials if trial.state == "open"])
            self._pump(lambda: next(unfinished, None) or self._draw())
        reason = self.stopped(len(self.board.log)) or "all trials done"
        self.log.append("end", reason=reason, trials=len(self.board.log))
        self._look()
        return self.board

    def choose(self, base: Array | None) -> list[tuple[Trial, Checkpoint]]:
        """Return (trial, checkpoint without `env`) of the selected agents, best first. Report unreadable checkpoints.

        `base` [n] are the returns of `Task.baseline`; see `Leaderboard.best`. Raises FinpodError if no agent is left.
        """
        ended = self.board.log
        if ended and all(trial.state == "failed" for trial in ended):
            raise FinpodError(f"every agent failed; correct the cause of the last failure: {ended[-1].reason}")
        self.progress("choosing", 1.0)
        unread: set[int] = set()
        while True:
            chosen: list[tuple[Trial, Checkpoint]] = []
            best = self.board.best(self.plan.keep, base, self.plan.alike, unread)
            for trial in best:
                name = AGENT_FILE.format(trial.number)
                try:
                    agent = Checkpoint.from_bytes(fetch(self.store, name), f"{self.store.where}/{name}")
                    chosen.append((trial, replace(agent, env={})))
                except CheckpointError as error:
                    unread.add(trial.number)
                    self.remark = f"agent {trial.agent} cannot be selected: {error}"
                    self._look()
            if len(chosen) == len(best):
                return chosen

    def _rounds(self) -> None:
        for level in range(1, self.plan.rounds + 1):
            trials = [trial for trial in self.board.trials if trial.level == level]
            if not trials:
                if self.stopped(len(self.board.trials)):
                    return
                trials = self.evolver.round(level, self.board, self.plan.agents)
                self._log_draws(trials)
                self._prune()
            unfinished = (trial for trial in trials if trial.state == "open")
            left = takewhile(lambda trial: not self.stopped(trial.number), unfinished)
            self._pump(lambda: next(left, None))  # noqa: B023
            if any(self.board.trials[trial.number].state == "open" for trial in trials):
                return

    def _draw(self) -> Trial | None:
        """Draw, log and return the next trial of an asynchronous tournament. Return None if no trial may begin."""
        number = len(self.board.trials)
        if number >= self.plan.most_trials or self.stopped(number):
            return None
        self._log_draws([self.evolver.draw(self.board, self.plan.agents, self.plan.rounds)])
        return self.board.trials[-1]

    def _log_draws(self, trials: list[Trial]) -> None:
        self.log.append("draw", jobs=[trial.to_record() for trial in trials], seen=len(self.board.log))

    def _pump(self, source: Callable[[], Trial | None]) -> None:
        """Run the trials that `source` returns, until `source` returns None and all started trials have ended."""
        again: deque[Trial] = deque()
        while True:
            while len(self.running) < self.executor.capacity():
                trial = again.popleft() if again else source()
                if trial is None:
                    break
                self._start(trial)
            self._look()
            if not self.running:
                return
            for ended in self.executor.wait(WAIT):
                trial, _ = self.running.pop(int(ended.key.split("/")[0]))
                if self._finish(trial, ended) if isinstance(ended, Completed) else self._lose(trial, ended):
                    again.append(self.board.trials[trial.number])

    def _start(self, trial: Trial) -> None:
        """Start the next slice of a trial, from its last checkpoint if it has one."""
        number, inside = trial.number, trial.steps > 0
        name = INSIDE_FILE.format(number) if inside else AGENT_FILE.format(trial.source)
        try:
            start = fetch(self.store, name) if inside or trial.source is not None else None
        except CheckpointError as error:
            if inside:
                self.remark = f"agent {trial.agent} starts its round again: {error}"
                self._start(replace(trial, steps=0))
            elif not self.store.names("agents"):
                raise  # the whole folder is missing; the run can be resumed once it is restored
            else:
                self._fail(trial, f"the checkpoint from which it starts cannot be read: {error}")
            return
        goal = until = self.plan.goal(trial.level, self.update)
        if self.plan.checkpoint_steps is not None:
            updates = math.ceil(self.plan.checkpoint_steps / self.update)
            until = min((trial.steps or trial.start) + updates * self.update, goal)
        settings = Settings.from_dict(trial.agent_settings)
        piece = Slice(settings, start, trial.copied and not inside, until, until >= goal)
        self.running[number] = (trial, time.time())
        self.executor.start(f"{number}/{until}/{self._attempts.get(number, 0)}", piece)

    def _finish(self, trial: Trial, ended: Completed) -> bool:
        """Store the result of a slice. Return True if the trial has another slice."""
        trained: Trained = ended.result
        number = trial.number
        record = {"trial": number, "steps": trained.steps, "place": ended.place._asdict()}
        self.steps += trained.steps - (trial.steps or trial.start)
        if trained.score is None:
            self.store.write(INSIDE_FILE.format(number), trained.checkpoint)
            self.log.append("checkpoint", **record)
            self._attempts.pop(number, None)
            return True
        self.store.write(AGENT_FILE.format(number), trained.checkpoint)
        metrics, returns = trained.score
        results = {"metrics": metrics, "returns": [] if returns is None else returns.tolist()}
        self.log.append("submit", score=metrics[self.measure], **results, **record)
        if trial.steps:
            self._remove(INSIDE_FILE.format(number))
        self.latest, self.losses = self.board.trials[number], trained.losses
        if self.plan.mode == "async" and len(self.board.log) % BOARD == 0:
            self._prune()
        return False

    def _lose(self, trial: Trial, lost: Failed) -> bool:
        """Handle a lost pod, or an error in the training of an agent. Return True if the slice starts again."""
        number = trial.number
        if lost.fatal:
            if isinstance(lost.error, (InputError, DataError)):
                raise lost.error  # the task has an error for every agent
            self._fail(trial, lost.reason)
            return False
        tried = self._attempts[number] = self._attempts.get(number, 0) + 1
        self.log.append("lost", trial=number, reason=lost.reason, attempt=tried, at=time.time())
        if tried > self.plan.retries:
            self._fail(trial, f"its pod was lost {tried} times, the last time: {lost.reason}")
            return False
        self.remark = f"the pod of agent {trial.agent} was lost ({lost.reason}); the lost training is repeated"
        return True

    def _fail(self, trial: Trial, reason: str) -> None:
        """Log that a trial has failed. A failed trial ranks last."""
        self.log.append("failed", trial=trial.number, reason=reason)
        if trial.steps:
            self._remove(INSIDE_FILE.format(trial.number))
        self.remark = f"agent {trial.agent} has failed: {reason}"

    def stopped(self, number: int) -> str | None:
        """Return the text of the stop rule that keeps trial `number` from starting; None if no rule applies.

        Except for `seconds`, a rule depends only on trials with lower numbers, not on the speed of the executor.
        """
        stop, plan, drawn = self.plan.stop, self.plan, self.board.trials[:number]
        if stop.trials is not None and number >= stop.trials:
            return f"{stop.trials} trials"
        if stop.steps and sum(plan.goal(trial.level, self.update) - trial.start for trial in drawn) >= stop.steps:
            return f"{stop.steps:,} environment steps"
        if stop.seconds is not None and time.time() - self.began >= stop.seconds:
            return f"{stop.seconds:g} seconds"
        return None

    def _remove(self, name: str) -> None:
        with suppress(InputError):  # a file that is not needed may stay
            self.store.remove(name)

    def _prune(self) -> None:
        """Remove the checkpoints of finished trials that cannot be selected and from which no trial will start."""
        board, files = self.board, {*self.store.names("agents")}
        needed = {trial.source for trial in board.trials if trial.state == "open"}
        needed |= {trial.number for trial in ranked(board.trials)[:BOARD]}
        taken, last = board.taken, self.plan.rounds
        for number, trial in enumerate(board.trials):
            # with rounds, the new round is drawn already, and `needed` has its checkpoints
            over = self.plan.mode == "rounds" or {(number, False), (number, True)} <= taken
            if (over or trial.level == last) and number not in needed and AGENT_FILE.format(number) in files:
                self._remove(AGENT_FILE.format(number))

    def _look(self) -> None:
        """Call `progress`, and `watch` if there is one. Without `watch`, the remark is reported through `progress`."""
        done, most = len(self.board.log), self.plan.most_trials
        self.where, share = self.executor.describe(), min(done / most, 1.0)
        if self.remark and self.watch is None:
            self.progress(self.remark, share)
        if self.running:
            self.progress(f"trial {done + 1} of {most}", share)
        if self.watch is not None:
            self.watch(self)
        self.latest, self.remark = None, ""


Watch = Callable[[Scheduler], None]


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
    """Run the tournaments of `setups`, one after the other, and return `finish(runs, contents of the logs by name)`.

    `how` has the arguments of `RunFolder.drive`. Each log records its setup and `origin` (see `Recorded`), so that the
    task can be built again. The first call of `watch` gets `remarks`. Logs and checkpoints are removed at the end.
    Raises InputError for an unfinished run that is in use, has other settings, or is neither resumed nor overwritten.
    """
    # the executor is opened first, so that an earlier run is not removed if Ray cannot be used
    with closing(open_executor(setups[0], pods)) as executor, folder.drive(**how):
        baseline, runs = setups[0].task.baseline(), list[Run]()
        for number, setup in enumerate(setups):
            store = Store(f"{folder.where}/seed-{setup.plan.seed}")
            log, changes = open_log(store, setup.header(), origin, forked=how["fork"] is not None)
            prefix = f"seed {setup.plan.seed}, " if len(setups) > 1 else ""
            part = part_of(progress, number, len(setups), prefix)
            remark = "; ".join([*([] if number else remarks), *changes])
            scheduler = Scheduler(setup, log, executor, part, watch, remark)
            runs.append(Run(setup, scheduler.run(), scheduler.choose(baseline)))
        executor.close()  # before `finish`, because Ray ends this process if Ray itself ends
        logs = {f"log-{seed}.jsonl": folder.store.read(name) for name, seed in begun_logs(folder.store).items()}
        return finish(runs, logs)


def open_executor(setup: TournamentSetup, pods: Pods) -> Executor:
    """Return an executor, in this process or on Ray. Raises InputError if Ray cannot be used; see `RayExecutor`."""
    if not pods.ray:
        return InlineExecutor(run_slice, setup)
    restore = partial(from_shared, device="cuda" if pods.gpus else setup.device)
    return RayExecutor(run_slice, setup.to_shared(), pods, restore)


def part_of(progress: Progress, number: int, count: int, prefix: str) -> Progress:
    """Return a progress function for part `number` (from 0) of `count` equal parts. Its texts begin with `prefix`."""
    return lambda doing, share: progress(prefix + doing, (number + share) / count)
