"""`Tournament`: the driver. It alone keeps state; pods are pieces of work that any engine may run, lose and run again.

    generator -> pods (engine) -> evaluator -> updater -> leaderboard -> generator ...

In rounds the generator waits for all agents of a round; asynchronously it never waits. Every decision is in the log before
it is acted on, so that a tournament whose driver was killed goes on from the log and the last checkpoints.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from finpod.errors import CheckpointError, DataError, FinpodError, InputError
from finpod.rl.snapshot import Snapshot
from finpod.storage import Store
from finpod.tournament.journal import Journal
from finpod.tournament.leaderboard import Entry, Leaderboard
from finpod.tournament.plan import Plan
from finpod.tournament.pod import Slice, Trained, without_accounts
from finpod.tournament.search import Drawn, Generator, Job
from finpod.workers.engine import Done, Engine, Lost

BOARD = 64
"""Agents whose files are kept however the tournament goes on; the log keeps every trial."""
WAIT = 0.5
"""Seconds to wait for a pod before looking around."""


@dataclass
class Status:
    """How a tournament stands, for those who watch it."""

    board: Leaderboard
    """Trials so far."""
    plan: Plan
    """What is to be done."""
    running: dict[int, tuple[Job, float]]
    """Trial -> the job and when it was started, Unix time."""
    where: str
    """What it runs on."""
    began: float
    """When this driver began, Unix time."""
    steps: int = 0
    """Environment steps of all agents since then."""
    losses: dict[str, float] = field(default_factory=dict)
    """Of the last update of the trial that ended last."""
    latest: Entry | None = None
    """The trial that ended last; None if nothing has since the last look."""
    remark: str = ""
    """Something that went wrong and was mended; empty if nothing has since the last look."""


Watch = Callable[[Status], None]


class Tournament:
    """One tournament on one store. `total` are the steps of an agent over all rounds, `update` those of one update."""

    def __init__(
        self,
        plan: Plan,
        generator: Generator,
        store: Store,
        journal: Journal,
        engine: Engine,
        *,
        update: int,
        watch: Watch = lambda status: None,
    ) -> None:
        self.plan, self.generator, self.store, self.journal, self.engine = plan, generator, store, journal, engine
        self.update = update
        self.updates = max(round(plan.steps / update), plan.rounds)  # every slice learns, or its trial would be a copy
        self.watch = watch
        self.board = Leaderboard()
        self.drawn = Drawn()
        self._next: deque[Job] = deque()  # drawn and in the log, but not begun
        self.running: dict[int, tuple[Job, float]] = {}
        self._done: set[int] = set()
        self._attempts: dict[int, int] = {}
        self._steps: dict[int, int] = {}  # experience of the agents in training, at their last checkpoint
        self._inside: set[int] = set()  # trials with a checkpoint inside the round
        self._held: dict[str, bytes] = {}  # what could not be written
        self._filed: set[int] = set()  # trials whose agents have a file
        self._prune_at = 2 * BOARD  # files at which to look for those that nobody needs
        self.status = Status(self.board, plan, self.running, engine.describe(), time.time())
        self._replay()

    def run(self) -> Leaderboard:
        """To the end, or to the rule that stops it."""
        if self.plan.mode == "rounds":
            self._rounds()
        else:
            unfinished = iter([job for job in self.drawn if job.trial not in self._done])
            self._pump(lambda: next(unfinished, None) or self._draw())
        self.journal.append("end", reason=self.stopped() or "all trials done", trials=len(self.board.log))
        return self.board

    def _rounds(self) -> None:
        for generation in range(self.plan.rounds):
            jobs = [job for job in self.drawn if job.generation == generation]
            if not jobs:
                if self.stopped():
                    return
                jobs = self._next_round(generation)
                self.drawn.add(jobs)
                self._log_draws(jobs)
                self._prune()
            self._pump(partial(self._unless_stopped, iter([job for job in jobs if job.trial not in self._done])))
            if not {job.trial for job in jobs} <= self._done:
                return

    def _next_round(self, generation: int) -> list[Job]:
        if generation == 0:
            return self.generator.first_round(self.plan.agents)
        last = [entry for entry in self.board.log if entry.generation == generation - 1]
        made = len({job.settings.agent_id for job in self.drawn})
        return self.generator.next_round(last, self.plan.agents, made, len(self.drawn))

    def _unless_stopped(self, jobs: Iterator[Job]) -> Job | None:
        return None if self.stopped() else next(jobs, None)

    def _draw(self) -> Job | None:
        """The next job of an asynchronous tournament, in the log before it begins.

        One is drawn for each free place, and they reach the log together: forcing a line to the disk takes longer than
        all else the driver does for a trial.
        """
        room = self.engine.capacity() - len(self.running)
        begun = len(self.drawn)
        while not self._next and len(self.drawn) < min(begun + room, self.plan.most_trials) and not self.stopped():
            self.drawn.add([self.generator.draw(self.board, self.drawn, self.plan.agents, self.plan.rounds)])
        if len(self.drawn) > begun:
            self._next.extend(self.drawn[begun:])
            self._log_draws(self.drawn[begun:])
        return self._next.popleft() if self._next else None

    def _log_draws(self, jobs: list[Job]) -> None:
        self.journal.append("draw", jobs=[job.to_dict() for job in jobs], seen=len(self.board.log))

    def _pump(self, source: Callable[[], Job | None]) -> None:
        """Keep the engine busy with what the source gives until it gives nothing more and all has ended."""
        again: deque[Job] = deque()
        while True:
            while len(self.running) < self.engine.capacity():
                job = again.popleft() if again else source()
                if job is None:
                    break
                self._start(job)
            self._look()
            if not self.running:
                return
            for ended in self.engine.wait(WAIT):
                job, _ = self.running.pop(int(ended.key.split("/")[0]))
                onward = self._finish(job, ended) if isinstance(ended, Done) else self._lose(job, ended)
                if onward is not None:
                    again.append(onward)

    def _start(self, job: Job) -> None:
        """Hand the next slice of a job to the engine."""
        inside = job.trial in self._inside
        if not inside:
            self._steps[job.trial] = 0 if job.source is None else self._goal(job.generation - 1)
        try:
            name = _inside(job.trial) if inside else None if job.source is None else _agent(job.source)
            start = None if name is None else self._fetch(name)
        except (FileNotFoundError, FinpodError) as error:
            self._fail(job, f"the checkpoint it begins with cannot be read: {error}")
            return
        goal, until = self._goal(job.generation), self._goal(job.generation)
        if self.plan.checkpoint_steps is not None:
            updates = math.ceil(self.plan.checkpoint_steps / self.update)
            until = min(self._steps[job.trial] + updates * self.update, goal)
        total = self.updates * self.update
        piece = Slice(job.settings, start, job.copied and not inside, until, total, until >= goal)
        self.running[job.trial] = (job, time.time())
        self.engine.start(f"{job.trial}/{until}/{self._attempts.get(job.trial, 0)}", piece)

    def _goal(self, generation: int) -> int:
        """Steps of experience at the end of a level."""
        return math.ceil(self.updates * (generation + 1) / self.plan.rounds) * self.update

    def _finish(self, job: Job, ended: Done) -> Job | None:
        """The updater: a trial is admitted as soon as it ends, whoever else is still at work."""
        trained: Trained = ended.result
        self.status.steps += trained.steps - self._steps[job.trial]
        self._steps[job.trial] = trained.steps
        if trained.metrics is None:
            if self._keep(_inside(job.trial), trained.snapshot):
                self.journal.append("checkpoint", trial=job.trial, steps=trained.steps)
            self._inside.add(job.trial)
            return job
        self._keep(_agent(job.trial), trained.snapshot)
        self.journal.append(
            "submit",
            trial=job.trial,
            score=trained.metrics["sharpe"],
            metrics=trained.metrics,
            returns=[] if trained.returns is None else trained.returns.tolist(),
            steps=trained.steps,
            place=ended.place._asdict(),
        )
        self._drop_inside(job.trial)
        self._admit(job, trained.metrics, trained.returns, trained.steps)
        self.status.losses = trained.losses
        if self.plan.mode == "async" and len(self._filed) > self._prune_at:
            self._prune()
            self._prune_at = len(self._filed) + BOARD
        return None

    def _admit(self, job: Job, metrics: dict[str, Any], returns: Any, steps: int) -> None:
        known = {name: math.nan if value is None else value for name, value in metrics.items()}
        entry = Entry(
            trial=job.trial,
            settings=job.settings,
            parent_id=job.parent_id,
            generation=job.generation,
            score=float(known["sharpe"]),
            metrics=known,
            returns=np.asarray(returns, dtype=np.float64),
            steps=steps,
            stored=partial(self._snapshot, job.trial),
        )
        self.board.submit(entry)
        self._done.add(job.trial)
        self._filed.add(job.trial)
        self._steps.pop(job.trial, None)
        self.status.latest = entry

    def _snapshot(self, trial: int) -> Snapshot:
        """The agent of a trial as a board keeps it, without its accounts."""
        name = _agent(trial)
        try:
            return without_accounts(Snapshot.from_bytes(self._fetch(name), f"{self.store.where}/{name}"))
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{self.store.where}/{name} is missing; resume from a copy, or train again"
            ) from error

    def _lose(self, job: Job, lost: Lost) -> Job | None:
        """A pod that died starts again from its last checkpoint; an agent that fails by itself is out."""
        if lost.fatal:
            if isinstance(lost.error, (InputError, DataError)):
                raise lost.error  # the task itself is wrong, and wrong for every agent
            if isinstance(lost.error, CheckpointError) and job.trial in self._inside:
                self.status.remark = f"agent {job.settings.agent_id} begins its round again: {lost.reason}"
                self._drop_inside(job.trial)
                return job
            self._fail(job, lost.reason)
            return None
        tried = self._attempts[job.trial] = self._attempts.get(job.trial, 0) + 1
        self.journal.append("lost", trial=job.trial, reason=lost.reason, attempt=tried)
        if tried > self.plan.retries:
            self._fail(job, f"its pod was lost {tried} times, last: {lost.reason}")
            return None
        self.status.remark = f"the pod of agent {job.settings.agent_id} was lost ({lost.reason}); it starts again"
        return job

    def _fail(self, job: Job, reason: str) -> None:
        """An agent that is out: it keeps its place in the log, and ranks last."""
        self.journal.append("failed", trial=job.trial, reason=reason)
        self.board.submit(_failed(job))
        self._done.add(job.trial)
        self.status.remark = f"agent {job.settings.agent_id} is out: {reason}"

    def _replay(self) -> None:
        """The board and the draws as the log has them."""
        for record in self.journal.records:
            trial: int = record.get("trial", -1)
            if record["kind"] == "draw":
                self.drawn.add(Job.from_dict(values) for values in record["jobs"])
            elif record["kind"] == "checkpoint":
                self._inside.add(trial)
                self._steps[trial] = record["steps"]
            elif record["kind"] == "submit":
                self._inside.discard(trial)
                self._admit(self.drawn[trial], record["metrics"], record["returns"], record["steps"])
            elif record["kind"] == "failed":
                self._inside.discard(trial)
                self._done.add(trial)
                self.board.submit(_failed(self.drawn[trial]))
        self.journal.records.clear()
        self.status.latest = None

    def stopped(self) -> str | None:
        """The rule that says that enough has been done."""
        stop, log = self.plan.stop, self.board.log
        best = max((entry.score for entry in self.board.top(1) if not math.isnan(entry.score)), default=-math.inf)
        if stop.trials is not None and len(self.drawn) >= stop.trials:
            return f"{stop.trials} trials"
        if stop.steps is not None and self.status.steps >= stop.steps:
            return f"{stop.steps:,} environment steps"
        if stop.seconds is not None and time.time() - self.status.began >= stop.seconds:
            return f"{stop.seconds:g} seconds"
        if stop.score is not None and best >= stop.score:
            return f"a score of {stop.score:g}"
        if stop.patience is not None and len(log) > stop.patience:
            before = max((entry.score for entry in log[: -stop.patience] if not math.isnan(entry.score)), default=best)
            if best <= before:
                return f"no better score in {stop.patience} trials"
        return None

    def _keep(self, name: str, content: bytes) -> bool:
        """Write a checkpoint; a disk that is full is told, and the tournament goes on with what is in memory."""
        try:
            self.store.write(name, content)
        except InputError as error:
            self.status.remark = f"a checkpoint is kept in memory only: {error}"
            self._held[name] = content
            return False
        self._held.pop(name, None)
        return True

    def _fetch(self, name: str) -> bytes:
        return self._held[name] if name in self._held else self.store.read(name)

    def _remove(self, name: str) -> None:
        self._held.pop(name, None)
        self.store.remove(name)

    def _drop_inside(self, trial: int) -> None:
        if trial in self._inside:
            self._inside.discard(trial)
            self._remove(_inside(trial))

    def _prune(self) -> None:
        """Remove the files of agents that nothing will begin with and that are not on the board."""
        needed = {job.source for job in self.drawn if job.trial not in self._done}
        top = {entry.trial for entry in self.board.top(BOARD)}
        latest = max(job.generation for job in self.drawn)
        for trial in sorted(self._filed - needed - top):
            level = self.drawn[trial].generation
            onward = (
                level < latest if self.plan.mode == "rounds" else {(trial, False), (trial, True)} <= self.drawn.taken
            )
            if onward or level == self.plan.rounds - 1:
                self._remove(_agent(trial))
                self._filed.discard(trial)

    def _look(self) -> None:
        """Let those who watch see how it stands."""
        self.status.where = self.engine.describe()
        self.watch(self.status)
        self.status.latest, self.status.remark = None, ""


def _failed(job: Job) -> Entry:
    return Entry(
        trial=job.trial,
        settings=job.settings,
        parent_id=job.parent_id,
        generation=job.generation,
        score=math.nan,
        metrics={},
        returns=np.empty(0),
        steps=0,
        stored=None,
    )


def _agent(trial: int) -> str:
    """The file of an agent at the end of a trial, with its accounts."""
    return f"agents/{trial}.pt"


def _inside(trial: int) -> str:
    """The file of an agent inside a trial."""
    return f"checkpoints/{trial}.pt"
