"""`Scheduler`: the driver. It alone keeps state; pods are pieces of work that any executor may run, lose and run again.

    generator -> pods (engine) -> evaluator -> updater -> leaderboard -> generator ...

In rounds the generator waits for all agents of a round; asynchronously it never waits. Every decision is in the log before
it is acted on, so that a tournament whose driver was killed goes on from the log and the last checkpoints.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from finpod.errors import CheckpointError, DataError, InputError
from finpod.measures import Array
from finpod.storage import Store
from finpod.tournament.checkpoints import Checkpoints, agent_file, inside_file
from finpod.tournament.evolution import Drawn, Evolver, Job
from finpod.tournament.leaderboard import BOARD, Entry, Leaderboard
from finpod.tournament.log import TrialLog
from finpod.tournament.pod import Slice, Trained
from finpod.tournament.setup import Plan
from finpod.workers.executor import Completed, Executor, Failed

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


class Scheduler:
    """One tournament on one store; `update` are the environment steps of one update of an agent."""

    def __init__(
        self,
        plan: Plan,
        generator: Evolver,
        store: Store,
        journal: TrialLog,
        engine: Executor,
        *,
        update: int,
        watch: Watch = lambda status: None,
    ) -> None:
        self.plan, self.generator, self.journal, self.engine = plan, generator, journal, engine
        self.files, self.update, self.watch = Checkpoints(store), update, watch
        self.board = Leaderboard()
        self.drawn = Drawn()
        self._next: deque[Job] = deque()  # drawn and in the log, but not begun
        self.running: dict[int, tuple[Job, float]] = {}
        self._done: set[int] = set()
        self._attempts: dict[int, int] = {}
        self._steps: dict[int, int] = {}  # experience of the agents in training, at their last checkpoint
        self._inside: set[int] = set()  # trials with a checkpoint inside the round
        self._before = [0]  # steps of the trials drawn before each
        self._filed: set[int] = set()  # trials whose agents have a file
        self._prune_at = 2 * BOARD  # files at which to look for those that nobody needs
        self.status = Status(self.board, plan, self.running, engine.describe(), time.time())
        self._replay()

    def run(self) -> Leaderboard:
        """To the end, or to the rule that stops it."""
        if self.status.remark:
            self._look()  # before the next takes its place
        if self.plan.mode == "rounds":
            self._rounds()
        else:
            unfinished = iter([job for job in self.drawn if job.trial not in self._done])
            self._pump(lambda: next(unfinished, None) or self._draw())
        reason = self.stopped(len(self.board.log)) or "all trials done"
        self.journal.append("end", reason=reason, trials=len(self.board.log))
        self.status.remark = self.files.flush() or self.status.remark
        self._look()
        return self.board

    def choose(self, base: Array | None) -> list[Entry]:
        """Return the agents to be kept, best first; those that cannot be read are told to whoever watches, and passed over.

        `base` [n] are the returns of `Task.baseline`; without them rank alone decides. Raises FinpodError if none is left.
        """

        def say(remark: str) -> None:
            self.status.remark = remark
            self._look()

        return self.board.choose(self.plan.keep, base, self.plan.alike, say)

    def _rounds(self) -> None:
        for generation in range(self.plan.rounds):
            jobs = [job for job in self.drawn if job.generation == generation]
            if not jobs:
                if self.stopped(len(self.drawn)):
                    return
                jobs = self.generator.round(generation, self.board, self.drawn, self.plan.agents)
                self.drawn.add(jobs)
                self._log_draws(jobs)
                self._prune()
            self._pump(partial(self._unless_stopped, iter([job for job in jobs if job.trial not in self._done])))
            if not {job.trial for job in jobs} <= self._done:
                return

    def _unless_stopped(self, jobs: Iterator[Job]) -> Job | None:
        """The next job of a round; within it the scores do not count, for they come in another order on every engine."""
        job = next(jobs, None)
        return None if job is None or self._out_of_bounds(job.trial) else job

    def _draw(self) -> Job | None:
        """The next job of an asynchronous tournament, in the log before it begins.

        One is drawn for each free place, and they reach the log together: forcing a line to the disk takes longer than
        all else the driver does for a trial.
        """
        room = self.engine.capacity() - len(self.running)
        begun = len(self.drawn)
        most = min(begun + room, self.plan.most_trials)
        while not self._next and len(self.drawn) < most and not self.stopped(len(self.drawn)):
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
                onward = self._finish(job, ended) if isinstance(ended, Completed) else self._lose(job, ended)
                if onward is not None:
                    again.append(onward)

    def _start(self, job: Job) -> None:
        """Hand the next slice of a job to the engine."""
        inside = job.trial in self._inside
        if not inside:
            self._steps[job.trial] = self._start_of(job)
        name = inside_file(job.trial) if inside else None if job.source is None else agent_file(job.source)
        try:
            start = None if name is None else self.files.fetch(name)
        except CheckpointError as error:
            if inside:
                self._begin_again(job, str(error))
                self._start(job)
            elif self.files.none_left():
                raise  # not one agent is gone but the place they were kept in: restored, the run can go on
            else:
                self._fail(job, f"the agent it begins with cannot be read: {error}")
            return
        goal = until = self.plan.goal(job.generation, self.update)
        if self.plan.checkpoint_steps is not None:
            updates = math.ceil(self.plan.checkpoint_steps / self.update)
            until = min(self._steps[job.trial] + updates * self.update, goal)
        total = self.plan.updates(self.update) * self.update
        piece = Slice(job.settings, start, job.copied and not inside, until, total, until >= goal)
        self.running[job.trial] = (job, time.time())
        self.engine.start(f"{job.trial}/{until}/{self._attempts.get(job.trial, 0)}", piece)

    def _start_of(self, job: Job) -> int:
        """Steps of experience at the beginning of a trial."""
        return 0 if job.source is None else self.plan.goal(job.generation - 1, self.update)

    def _finish(self, job: Job, ended: Completed) -> Job | None:
        """The updater: a trial is admitted as soon as it ends, whoever else is still at work."""
        trained: Trained = ended.result
        self.status.steps += trained.steps - self._steps[job.trial]
        self._steps[job.trial] = trained.steps
        if trained.metrics is None:  # the trial goes on
            if self._keep(inside_file(job.trial), trained.checkpoint):
                self.journal.append("checkpoint", trial=job.trial, steps=trained.steps, place=ended.place._asdict())
            self._inside.add(job.trial)
            self._attempts.pop(job.trial, None)
            return job
        written = self._keep(agent_file(job.trial), trained.checkpoint)
        self.journal.append(
            "submit",
            trial=job.trial,
            score=trained.score,
            metrics=trained.metrics,
            returns=[] if trained.returns is None else trained.returns.tolist(),
            steps=trained.steps,
            place=ended.place._asdict(),
            **({} if written else {"written": False}),  # a later driver may look for it in vain
        )
        self._drop_inside(job.trial)
        self._admit(job, trained.score, trained.metrics, trained.returns, trained.steps)
        self.status.losses = trained.losses
        if self.plan.mode == "async" and len(self._filed) > self._prune_at:
            self._prune()
            self._prune_at = len(self._filed) + BOARD
        return None

    def _admit(self, job: Job, score: float | None, metrics: Mapping[str, Any], returns: Any, steps: int) -> None:
        returns = [] if returns is None else returns
        entry = job.entry(score, metrics, returns, steps, partial(self.files.checkpoint, job.trial))
        self.board.submit(entry)
        self._done.add(job.trial)
        self._filed.add(job.trial)
        self._steps.pop(job.trial, None)
        self.status.latest = entry

    def _lose(self, job: Job, lost: Failed) -> Job | None:
        """A pod that died starts again from its last checkpoint; an agent that fails by itself is out."""
        if lost.fatal:
            if isinstance(lost.error, (InputError, DataError)):
                raise lost.error  # the task itself is wrong, and wrong for every agent
            if isinstance(lost.error, CheckpointError) and job.trial in self._inside:
                self._begin_again(job, lost.reason)
                return job
            self._fail(job, lost.reason)
            return None
        tried = self._attempts[job.trial] = self._attempts.get(job.trial, 0) + 1
        self.journal.append("lost", trial=job.trial, reason=lost.reason, attempt=tried, at=time.time())
        if tried > self.plan.retries:
            self._fail(job, f"its pod was lost {tried} times, last: {lost.reason}")
            return None
        self.status.remark = f"the pod of agent {job.settings.agent_id} was lost ({lost.reason}); it starts again"
        return job

    def _begin_again(self, job: Job, reason: str) -> None:
        """Forget a checkpoint inside a trial that cannot be read."""
        self.status.remark = f"agent {job.settings.agent_id} begins its round again: {reason}"
        self._drop_inside(job.trial)

    def _fail(self, job: Job, reason: str) -> None:
        """An agent that is out: it keeps its place in the log, and ranks last."""
        self.journal.append("failed", trial=job.trial, reason=reason)
        self.board.submit(job.failed())
        self._drop_inside(job.trial)
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
                if not record.get("written", True):
                    self.files.unwritten.add(agent_file(trial))
                self._admit(self.drawn[trial], record["score"], record["metrics"], record["returns"], record["steps"])
            elif record["kind"] == "failed":
                self._inside.discard(trial)
                self._done.add(trial)
                self.board.submit(self.drawn[trial].failed())
        self.journal.records.clear()
        self.status.latest = None
        self._note_unwritten()

    def _note_unwritten(self) -> None:
        """Find out which agents were never written: they count as trials, and nothing can go on from them."""
        if self.files.unwritten:
            self.files.unwritten.difference_update(self.files.store.names("agents"))
        lost = [entry.agent_id for entry in self.board.log if agent_file(entry.trial) in self.files.unwritten]
        if lost:
            self.status.remark = f"in memory only when the last driver ended, and gone: agent {', '.join(lost)}"

    def stopped(self, trial: int) -> str | None:
        """The rule that says that the trial of this number, the next to be drawn, is one too many."""
        return self._out_of_bounds(trial) or self.plan.stop.enough(self.board)

    def _out_of_bounds(self, trial: int) -> str | None:
        while len(self._before) <= trial:
            job = self.drawn[len(self._before) - 1]
            steps = self.plan.goal(job.generation, self.update) - self._start_of(job)
            self._before.append(self._before[-1] + steps)
        return self.plan.stop.before(trial, self._before[trial], time.time() - self.status.began)

    def _keep(self, name: str, content: bytes) -> bool:
        """Write a checkpoint; a disk that is full is told, and the tournament goes on with what is in memory."""
        if failure := self.files.keep(name, content):
            self.status.remark = failure
        return name not in self.files.held

    def _drop_inside(self, trial: int) -> None:
        if trial in self._inside:
            self._inside.discard(trial)
            self.files.remove(inside_file(trial))

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
                self.files.remove(agent_file(trial))
                self._filed.discard(trial)

    def _look(self) -> None:
        """Let those who watch see how it stands."""
        self.status.where = self.engine.describe()
        self.watch(self.status)
        self.status.latest, self.status.remark = None, ""
