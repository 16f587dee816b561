"""`Settings` of an agent; `Trial`: its training for one round; `Leaderboard`: all trials, ranked on validation."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from finpod.errors import FinpodError
from finpod.measures import Array
from finpod.workers.executor import Placement

BOARD = 64
"""Number of best trials whose checkpoints are kept."""
ALIKE = 0.95
"""Default of `Plan.alike`: largest correlation between the excess returns of two selected agents."""
LEARNER = "ppo"
"""Default learner. `Settings.to_dict` omits this learner."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of an agent."""

    agent_id: str
    """Name of the agent."""
    seed: int
    """Seed of the weights, environments and exploration of the agent."""
    config: Any
    """Settings of the learner: an instance of the learner's class `Config`."""
    learner: str = LEARNER
    """Name of the learner in `LEARNERS`."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """Settings from the `Space` of the task, such as the width of the network."""

    @property
    def of_policy(self) -> Mapping[str, Any]:
        """Settings for `Task.policy`: `task`, and `config.network` if it exists."""
        network = getattr(self.config, "network", None)
        return self.task if network is None else {**self.task, "network": network}

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dict of plain values."""
        named = {} if self.learner == LEARNER else {"learner": self.learner}
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in self.task.items()}
        return {"agent_id": self.agent_id, "seed": self.seed, "config": asdict(self.config), **named, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Return the settings from the result of `to_dict`."""
        from finpod.rl import LEARNERS  # loads torch, which is not needed to read a log

        rest = dict(values)
        agent_id, seed, config = (rest.pop(name) for name in ("agent_id", "seed", "config"))
        learner = rest.pop("learner", LEARNER)
        task = {name: tuple(value) if isinstance(value, list) else value for name, value in rest.items()}
        return cls(agent_id=agent_id, seed=seed, config=LEARNERS[learner].Config(**config), learner=learner, task=task)


class Loss(NamedTuple):
    """Loss of the process that trained a trial: the reason in one line, and the Unix time."""

    reason: str
    at: float


ENTRIES = {
    "trial": "number",
    "settings": "agent_settings",
    "parent_id": "parent",
    "source": "source",
    "copied": "copied",
}
"""Name of an entry in a 'draw' record of the log -> name of the field of `Trial` with the same value."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """Training of one agent for one round, and the validation after it.

    The `Evolver` draws trials. The log records each draw, and then the progress of the trial; see `after`.
    """

    run: int = 0
    """Seed of the tournament."""
    number: int
    """Number of the trial, from 0. Of trials with equal scores, the lowest number ranks highest."""
    level: int
    """Round of the trial, from 1. Trials are ranked within a round, and the rank decides which agents continue."""
    agent_settings: Mapping[str, Any]
    """Settings of the agent, from `Settings.to_dict`."""
    parent: str | None = None
    """Name of the agent from which this agent was copied; None if it started untrained."""
    source: int | None = None
    """This trial starts from the last checkpoint of the trial with this number; None if it starts untrained."""
    copied: bool = False
    """True if the agent is a new mutated copy of its parent, False if it continues or starts untrained."""
    start: int = 0
    """Environment steps at the start of the trial, including those of the agent's ancestors."""
    state: str = "open"
    """'open', 'ended' or 'failed'."""
    score: float = math.nan
    """Validation score; NaN if it is undefined or the trial is 'open' or 'failed'."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Validation metrics."""
    returns: Array = field(default_factory=lambda: np.empty(0))
    """[n] validation returns, net of costs; empty if the trial has not ended or its `Score` has no returns."""
    steps: int = 0
    """Environment steps at the last checkpoint, including those of the agent's ancestors; 0 without a checkpoint."""
    places: tuple[Placement, ...] = ()
    """Process and time of each finished slice. A slice is the training from one checkpoint to the next."""
    lost: tuple[Loss, ...] = ()
    reason: str = ""
    """Reason of a failure; empty unless the trial has failed."""
    kept: bool = False
    """True if the agent was selected at the end of the run."""

    @property
    def agent(self) -> str:
        """Name of the agent. It is the same in all rounds; a mutated copy has its own name."""
        return str(self.agent_settings["agent_id"])

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of learner and task, without the agent's name and seed. None for 'features' means all features."""
        values = {**self.agent_settings["config"], **self.agent_settings}
        return {name: value for name, value in values.items() if name not in ("agent_id", "seed", "config")}

    @property
    def spent(self) -> int:
        """Environment steps of this trial alone."""
        return self.steps - self.start if self.steps else 0

    def to_record(self) -> dict[str, Any]:
        """Return the trial as plain values for a 'draw' record of the log."""
        return {"generation": self.level - 1, **{entry: getattr(self, name) for entry, name in ENTRIES.items()}}

    def after(self, record: Mapping[str, Any]) -> Trial:
        """Return the trial after the event in a log `record` about this trial. Null scores and metrics become NaN."""
        kind = record["kind"]
        if kind == "lost":
            return replace(self, lost=(*self.lost, Loss(record["reason"], record["at"])))
        if kind == "failed":
            return replace(self, state="failed", reason=record["reason"])
        place = record.get("place")
        places = self.places if place is None else (*self.places, Placement(**place))
        trial = replace(self, steps=record["steps"], places=places)
        if kind == "checkpoint":
            return trial
        return replace(
            trial,
            state="ended",
            score=math.nan if record["score"] is None else record["score"],
            metrics={name: math.nan if value is None else value for name, value in record["metrics"].items()},
            returns=np.asarray(record["returns"], dtype=np.float64),
        )


OF_TRIAL = ("checkpoint", "lost", "submit", "failed")
"""Kinds of log records about a single trial."""


@dataclass(eq=False)
class Leaderboard:
    """All trials of a tournament, ordered by number. `run` is the seed of the tournament."""

    run: int = 0
    trials: list[Trial] = field(default_factory=list)

    @property
    def log(self) -> list[Trial]:
        """Trials that ended or failed, ordered by number."""
        return [trial for trial in self.trials if trial.state != "open"]

    @property
    def agents(self) -> set[str]:
        """Names of all agents."""
        return {trial.agent for trial in self.trials}

    @property
    def taken(self) -> set[tuple[int | None, bool]]:
        """Pairs (source, copied) of all trials. They show which checkpoints were already continued or copied."""
        return {(trial.source, trial.copied) for trial in self.trials}

    def take(self, record: Mapping[str, Any]) -> None:
        """Apply a record of the log. Raises FinpodError if the record is about a trial that has ended or failed."""
        if record["kind"] == "draw":
            for values in record["jobs"]:
                start = 0 if values["source"] is None else self.trials[values["source"]].steps
                entries = {name: values[entry] for entry, name in ENTRIES.items()}
                self.trials.append(Trial(run=self.run, start=start, level=values["generation"] + 1, **entries))
        elif record["kind"] in OF_TRIAL:
            number = record["trial"]
            if self.trials[number].state != "open":
                raise FinpodError(f"trial {number} has ended, but the log has a later record of it; restore the log")
            self.trials[number] = self.trials[number].after(record)

    def best(
        self, count: int, base: Array | None = None, alike: float = ALIKE, without: Collection[int] = ()
    ) -> list[Trial]:
        """Return up to `count` of the best `BOARD` trials, at most one of each agent, best first.

        `base` [n] are the validation returns of the baseline. The excess returns of a trial are its returns minus
        `base`. If they correlate by more than `alike` with those of a better selected trial, the trial is selected only
        to fill up the `count`. Without `base`, only the rank counts. Trials with numbers in `without` are left out.
        Raises FinpodError if no trial with a score is left.
        """
        agents: dict[str, Trial] = {}
        for trial in ranked(self.trials)[:BOARD]:
            if not math.isnan(trial.score) and trial.number not in without:
                agents.setdefault(trial.agent, trial)
        if not agents:
            numbers = ", ".join(map(str, sorted(without)))
            unread = f"no agent with a score has a readable checkpoint (trials {numbers}); restore the files and resume"
            raise FinpodError(unread if without else "no agent has a validation score; train longer, or check the data")
        chosen, rest = list[Trial](), list[Trial]()
        for trial in agents.values():
            others = () if base is None else [(trial.returns - base, other.returns - base) for other in chosen]
            differs = all(correlation(*pair) <= alike for pair in others)
            (chosen if differs and len(chosen) < count else rest).append(trial)
        return ranked([*chosen, *rest[: count - len(chosen)]])


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials that ended or failed, best first. NaN and minus infinity are last; ties keep their order."""
    ended = (trial for trial in trials if trial.state != "open")
    return sorted(ended, key=lambda trial: math.inf if math.isnan(trial.score) else -trial.score)


def correlation(first: Array, second: Array) -> float:
    """Return the correlation of two series [n]. It is 1 if a series is constant: such returns do not diversify."""
    first, second = first - first.mean(), second - second.mean()
    scale = math.sqrt(float((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / scale if scale > 1e-24 else 1.0
