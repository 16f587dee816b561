"""`Scheduler`: it alone keeps state; pods are pieces of work that any executor may run, lose and run again.

    Evolver -> pods (executor) -> scores -> log -> Leaderboard -> Evolver ...

In rounds the next draw waits for all agents of a round; asynchronously it never waits. Every decision is in the log before
it is acted on, so that a tournament whose scheduler was killed goes on from the log and the last checkpoints.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile

from finpod.errors import CheckpointError, DataError, FinpodError, InputError
from finpod.measures import Array
from finpod.rl.checkpoint import Checkpoint
from finpod.tournament.evolution import Evolver
from finpod.tournament.leaderboard import BOARD, Leaderboard, Settings, Trial
from finpod.tournament.log import Checkpoints, TrialLog, agent_file, inside_file
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
    running: dict[int, tuple[Trial, float]]
    """Number -> the trial and when it was started, Unix time."""
    where: str
    """What it runs on."""
    began: float
    """When this scheduler began, Unix time."""
    steps: int = 0
    """Environment steps of all agents since then."""
    losses: dict[str, float] = field(default_factory=dict)
    """Of the last update of the trial that ended last."""
    latest: Trial | None = None
    """The trial that ended last; None if nothing has since the last look."""
    remark: str = ""
    """Something that went wrong and was mended; empty if nothing has since the last look."""


Watch = Callable[[Status], None]


class Scheduler:
    """One tournament from where its log stands; `update` are the environment steps of one update of an agent."""

    def __init__(
        self,
        plan: Plan,
        evolver: Evolver,
        log: TrialLog,
        executor: Executor,
        *,
        update: int,
        watch: Watch = lambda status: None,
    ) -> None:
        self.plan, self.evolver, self.log, self.executor = plan, evolver, log, executor
        self.update, self.watch, self.board = update, watch, log.board
        self.status = Status(self.board, plan, {}, executor.describe(), time.time())
        self.running, self.files = self.status.running, Checkpoints(log.store, self._say)
        self._next: deque[Trial] = deque()  # drawn and in the log, but not begun
        self._attempts: dict[int, int] = {}
        # steps of experience of the trials that have a checkpoint inside, at that
        self._inside = {
            trial.number: trial.steps for trial in self.board.trials if trial.state == "open" and trial.steps
        }
        self._before = [0]  # steps of the trials drawn before each
        self._filed = {trial.number for trial in self.board.log if trial.state == "ended"}  # those with a file
        self._prune_at = 2 * BOARD  # files at which to look for those that nobody needs
        self._note_unwritten()

    def run(self) -> Leaderboard:
        """To the end, or to the rule that stops it."""
        if self.status.remark:
            self._look()  # before the next takes its place
        if self.plan.mode == "rounds":
            self._rounds()
        else:
            unfinished = iter([trial for trial in self.board.trials if trial.state == "open"])
            self._pump(lambda: next(unfinished, None) or self._draw())
        reason = self.stopped(len(self.board.log)) or "all trials done"
        self.log.append("end", reason=reason, trials=len(self.board.log))
        self.files.flush()
        self._look()
        return self.board

    def choose(self, base: Array | None) -> list[tuple[Trial, Checkpoint]]:
        """Return the agents to be kept, without environments, best first; one that cannot be read is told and passed over.

        `base` [n] are the returns of `Task.baseline`; without them rank alone decides. Raises FinpodError if none is left.
        """
        while True:
            chosen: list[tuple[Trial, Checkpoint]] = []
            best = self.board.best(self.plan.keep, base, self.plan.alike)
            for trial in best:
                name = agent_file(trial.number)
                try:
                    agent = Checkpoint.from_bytes(self.files.fetch(name), f"{self.log.store.where}/{name}")
                    chosen.append((trial, replace(agent, env={})))
                except FinpodError as error:
                    self.board.unread[trial.number] = str(error)
                    self._say(f"agent {trial.agent} cannot be kept: {error}")
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
                self.board.draw(trials)
                self._log_draws(trials)
                self._prune()
            # within a round scores do not count, for they come in another order on every executor
            left = takewhile(
                lambda one: not self._out_of_bounds(one.number), [one for one in trials if one.state == "open"]
            )
            self._pump(partial(next, left, None))
            if any(self.board.trials[trial.number].state == "open" for trial in trials):
                return

    def _draw(self) -> Trial | None:
        """The next trial of an asynchronous tournament, in the log before it begins.

        One is drawn for each free place, and they reach the log together: forcing a line to the disk takes longer than
        all else the scheduler does for a trial.
        """
        begun = len(self.board.trials)
        most = min(begun + self.executor.capacity() - len(self.running), self.plan.most_trials)
        while not self._next and len(self.board.trials) < most and not self.stopped(len(self.board.trials)):
            self.board.draw([self.evolver.draw(self.board, self.plan.agents, self.plan.rounds)])
        if drawn := self.board.trials[begun:]:
            self._next.extend(drawn)
            self._log_draws(drawn)
        return self._next.popleft() if self._next else None

    def _log_draws(self, trials: list[Trial]) -> None:
        self.log.append("draw", jobs=[trial.to_record() for trial in trials], seen=len(self.board.log))

    def _pump(self, source: Callable[[], Trial | None]) -> None:
        """Keep the executor busy with what the source gives until it gives nothing more and all has ended."""
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
                goes_on = self._finish(trial, ended) if isinstance(ended, Completed) else self._lose(trial, ended)
                if goes_on:
                    again.append(trial)

    def _start(self, trial: Trial) -> None:
        """Hand the next slice of a trial to the executor."""
        number, inside = trial.number, trial.number in self._inside
        name = inside_file(number) if inside else None if trial.source is None else agent_file(trial.source)
        try:
            start = None if name is None else self.files.fetch(name)
        except CheckpointError as error:
            if inside:
                self._begin_again(trial, str(error))
                self._start(trial)
            elif self.files.none_left():
                raise  # not one agent is gone but the place they were kept in: restored, the run can go on
            else:
                self._fail(trial, f"the agent it begins with cannot be read: {error}")
            return
        goal = until = self.plan.goal(trial.level, self.update)
        if self.plan.checkpoint_steps is not None:
            updates = math.ceil(self.plan.checkpoint_steps / self.update)
            until = min(self._inside.get(number, trial.start) + updates * self.update, goal)
        total, settings = self.plan.updates(self.update) * self.update, Settings.from_dict(trial.agent_settings)
        piece = Slice(settings, start, trial.copied and not inside, until, total, until >= goal)
        self.running[number] = (trial, time.time())
        self.executor.start(f"{number}/{until}/{self._attempts.get(number, 0)}", piece)

    def _finish(self, trial: Trial, ended: Completed) -> bool:
        """Take in what a slice has left, whoever else is still at work; whether the trial goes on."""
        trained: Trained = ended.result
        number, place = trial.number, ended.place._asdict()
        self.status.steps += trained.steps - self._inside.get(number, trial.start)
        if trained.metrics is None:  # the trial goes on
            if self.files.keep(inside_file(number), trained.checkpoint):
                self._log(trial, "checkpoint", steps=trained.steps, place=place)
            self._inside[number] = trained.steps
            self._attempts.pop(number, None)
            return True
        written = self.files.keep(agent_file(number), trained.checkpoint)
        returns = [] if trained.returns is None else trained.returns.tolist()
        lacking = {} if written else {"written": False}  # a later scheduler may look for it in vain
        self._log(trial, "submit", score=trained.score, metrics=trained.metrics, returns=returns, steps=trained.steps,
                  place=place, **lacking)  # fmt: skip
        self._drop_inside(number)
        self._filed.add(number)
        self.status.latest, self.status.losses = self.board.trials[number], trained.losses
        if self.plan.mode == "async" and len(self._filed) > self._prune_at:
            self._prune()
            self._prune_at = len(self._filed) + BOARD
        return False

    def _lose(self, trial: Trial, lost: Failed) -> bool:
        """A pod that died starts again from its last checkpoint; an agent that fails by itself is out."""
        number = trial.number
        if lost.fatal:
            if isinstance(lost.error, (InputError, DataError)):
                raise lost.error  # the task itself is wrong, and wrong for every agent
            if isinstance(lost.error, CheckpointError) and number in self._inside:
                self._begin_again(trial, lost.reason)
                return True
            self._fail(trial, lost.reason)
            return False
        tried = self._attempts[number] = self._attempts.get(number, 0) + 1
        self._log(trial, "lost", reason=lost.reason, attempt=tried, at=time.time())
        if tried > self.plan.retries:
            self._fail(trial, f"its pod was lost {tried} times, last: {lost.reason}")
            return False
        self._say(f"the pod of agent {trial.agent} was lost ({lost.reason}); it starts again")
        return True

    def _begin_again(self, trial: Trial, reason: str) -> None:
        """Forget a checkpoint inside a trial that cannot be read."""
        self._say(f"agent {trial.agent} begins its round again: {reason}")
        self._drop_inside(trial.number)

    def _fail(self, trial: Trial, reason: str) -> None:
        """An agent that is out: it keeps its place in the log, and ranks last."""
        self._log(trial, "failed", reason=reason)
        self._drop_inside(trial.number)
        self._say(f"agent {trial.agent} is out: {reason}")

    def _log(self, trial: Trial, kind: str, **values: object) -> None:
        """Write a record of a trial, and take it in once it is on the disk."""
        self.board.take(self.log.append(kind, trial=trial.number, **values))

    def _note_unwritten(self) -> None:
        """Find out which agents were never written: they count as trials, and nothing can go on from them."""
        gone = [trial for trial in self.board.log if not trial.written]
        if gone:
            names = set(self.log.store.names("agents"))
            gone = [trial for trial in gone if agent_file(trial.number) not in names]
            self.files.unwritten = {agent_file(trial.number) for trial in gone}
        if gone:
            lost = ", ".join(trial.agent for trial in gone)
            self._say(f"in memory only when the last driver ended, and gone: agent {lost}")

    def stopped(self, number: int) -> str | None:
        """The rule that says that the trial of this number, the next to be drawn, is one too many."""
        return self._out_of_bounds(number) or self.plan.stop.enough(self.board)

    def _out_of_bounds(self, number: int) -> str | None:
        for trial in self.board.trials[len(self._before) - 1 : number]:
            self._before.append(self._before[-1] + self.plan.goal(trial.level, self.update) - trial.start)
        return self.plan.stop.before(number, self._before[number], time.time() - self.status.began)

    def _drop_inside(self, number: int) -> None:
        if self._inside.pop(number, None) is not None:
            self.files.remove(inside_file(number))

    def _prune(self) -> None:
        """Remove the files of agents that nothing will begin with and that are not on the board."""
        trials = self.board.trials
        needed = {trial.source for trial in trials if trial.state == "open"}
        top = {trial.number for trial in self.board.top(BOARD)}
        latest = max(trial.level for trial in trials)
        for number in sorted(self._filed - needed - top):
            level = trials[number].level
            taken = {(number, False), (number, True)} <= self.board.taken
            if (level < latest if self.plan.mode == "rounds" else taken) or level == self.plan.rounds:
                self.files.remove(agent_file(number))
                self._filed.discard(number)

    def _say(self, remark: str) -> None:
        self.status.remark = remark

    def _look(self) -> None:
        """Let those who watch see how it stands."""
        self.status.where = self.executor.describe()
        self.watch(self.status)
        self.status.latest, self.status.remark = None, ""
