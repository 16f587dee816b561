"""`Settings`, `Trial` and `Leaderboard`: an agent, one step of its training, and all of these ranked on validation."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from finpod.errors import FinpodError
from finpod.measures import Array
from finpod.workers.executor import Placement

BOARD = 64
"""Best trials whose checkpoints are kept however a tournament goes on; of the others the log alone is kept."""
ALIKE = 0.95
"""Agents whose active returns correlate more than this are one bet, not two."""
LEARNER = "ppo"
"""Learner of an agent whose settings name none; logs name only others."""
CONSTANT = ("agent_id", "seed", "config")
"""Entries of an agent's settings that are no setting by themselves."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What makes an agent itself before it has learnt anything."""

    agent_id: str
    """Its name in the tournament."""
    seed: int
    """Seed of its weights, its environments and its exploration."""
    config: Any
    """Settings of its learner, an instance of the learner's `Config`."""
    learner: str = LEARNER
    """Name of its learner in `LEARNERS`."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """Values of the task's `Space`: network, and what else of the task varies from agent to agent."""

    @property
    def of_policy(self) -> Mapping[str, Any]:
        """What the task builds the policy from: `task`, and the `network` that the learner's settings name, if they do."""
        network = getattr(self.config, "network", None)
        return self.task if network is None else {**self.task, "network": network}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, those of `task` beside the others."""
        named = {} if self.learner == LEARNER else {"learner": self.learner}
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in self.task.items()}
        return {"agent_id": self.agent_id, "seed": self.seed, "config": asdict(self.config), **named, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Return the settings that `to_dict` wrote."""
        from finpod.rl import LEARNERS  # loads torch, which readers of a log do without

        rest = dict(values)
        agent_id, seed, config = (rest.pop(name) for name in ("agent_id", "seed", "config"))
        learner = rest.pop("learner", LEARNER)
        task = {name: tuple(value) if isinstance(value, list) else value for name, value in rest.items()}
        return cls(agent_id=agent_id, seed=seed, config=LEARNERS[learner].Config(**config), learner=learner, task=task)


class Loss(NamedTuple):
    """A pod that was lost while it worked at a trial."""

    reason: str
    """Why, in one line."""
    at: float
    """When the scheduler knew, Unix time; NaN where the log does not say."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """One agent trained to one level of experience and validated there.

    Drawn by the `Evolver` or read from a `draw` record; `after` adds what later records of the log say of it.
    """

    run: int = 0
    """Seed of its tournament."""
    number: int
    """Its number there, from 0; breaks ties."""
    level: int
    """Level of experience it is trained to, from 1; only trials of one level are compared by the search."""
    agent_settings: Mapping[str, Any]
    """What `Settings.to_dict` returned."""
    parent: str | None = None
    """The agent it was copied from; None for one that began untrained."""
    source: int | None = None
    """Number of the trial whose checkpoint it begins with; None for an untrained one."""
    copied: bool = False
    """True for a mutated copy of the parent, False if the agent continues itself."""
    start: int = 0
    """Environment steps of experience at its beginning."""
    state: str = "open"
    """'ended', 'failed', or 'open': drawn, and neither yet."""
    score: float = math.nan
    """Validation score; NaN if undefined, failed or open."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Validation metrics."""
    returns: Array = field(default_factory=lambda: np.empty(0))
    """[n] validation returns, net of costs; empty unless it ended."""
    steps: int = 0
    """Environment steps of experience at its last checkpoint or its end, its ancestors' included; 0 before."""
    places: tuple[Placement, ...] = ()
    """Where and when its slices ran; those that were lost left none."""
    lost: tuple[Loss, ...] = ()
    """Pods that were lost while they worked at it."""
    reason: str = ""
    """Why it failed."""
    written: bool = True
    """False if its checkpoint could not be written at its end."""
    kept: bool = False
    """Whether its agent was selected at the end of the run."""

    @property
    def agent(self) -> str:
        """Name of the agent; it stays the same as the agent goes on, and a mutated copy has its own."""
        return str(self.agent_settings["agent_id"])

    @property
    def settings(self) -> dict[str, Any]:
        """All that is varied, by name; 'features' is None for all there are."""
        values = {name: value for name, value in self.agent_settings.items() if name not in CONSTANT}
        return {**self.agent_settings["config"], **values}

    @property
    def spent(self) -> int:
        """Environment steps of this trial alone."""
        return self.steps - self.start if self.steps else 0

    def to_record(self) -> dict[str, Any]:
        """Return it as drawn, as an entry of a `draw` record."""
        return {
            "trial": self.number,
            "generation": self.level - 1,
            "settings": self.agent_settings,
            "parent_id": self.parent,
            "source": self.source,
            "copied": self.copied,
        }

    @classmethod
    def from_record(cls, values: Mapping[str, Any], run: int = 0, start: int = 0) -> Trial:
        """Return the trial that `to_record` wrote."""
        return cls(
            run=run,
            number=values["trial"],
            level=values["generation"] + 1,
            agent_settings=values["settings"],
            parent=values["parent_id"],
            source=values["source"],
            copied=values["copied"],
            start=start,
        )

    def after(self, record: Mapping[str, Any]) -> Trial:
        """Return the trial after one more record: 'lost', 'failed', 'checkpoint' or 'submit'; null is NaN."""
        kind = record["kind"]
        if kind == "lost":
            return replace(self, lost=(*self.lost, Loss(record["reason"], _number(record.get("at")))))
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
            score=_number(record["score"]),
            metrics={name: _number(value) for name, value in record["metrics"].items()},
            returns=np.asarray(record["returns"], dtype=np.float64),
            written=record.get("written", True),
        )


OF_TRIAL = ("checkpoint", "lost", "submit", "failed")
"""Kinds of records that are of one trial."""


def _number(value: float | None) -> float:
    return math.nan if value is None else value


class Leaderboard:
    """All trials of a tournament as the log tells them, and those that are over in the order of their scores."""

    def __init__(self, run: int = 0) -> None:
        self.run = run
        """Seed of the tournament."""
        self.trials: list[Trial] = []
        """All that were drawn, by number."""
        self.log: list[Trial] = []
        """Those that ended or failed, by number: nothing that was tried is forgotten."""
        self.names: set[str] = set()
        """Agents that exist."""
        self.taken: set[tuple[int, bool]] = set()
        """(number, whether copied) of all that a trial begins with."""
        self.unread: dict[int, str] = {}
        """Number -> why its agent, which was to be selected, could not be read."""
        self._order: list[Trial] = []
        self._levels: dict[int, list[Trial]] = {}

    def draw(self, trials: Iterable[Trial]) -> None:
        """Take in the next trials."""
        for trial in trials:
            self.trials.append(trial)
            self.names.add(trial.agent)
            if trial.source is not None:
                self.taken.add((trial.source, trial.copied))

    def take(self, record: Mapping[str, Any]) -> None:
        """Take in one record of the log. Raises FinpodError for a trial that is over already: no agent counts twice."""
        if record["kind"] == "draw":
            for values in record["jobs"]:
                start = 0 if values["source"] is None else self.trials[values["source"]].steps
                self.draw([Trial.from_record(values, self.run, start)])
        elif record["kind"] in OF_TRIAL:
            number = record["trial"]
            if self.trials[number].state != "open":
                raise FinpodError(f"trial {number} is on the board already")
            self.trials[number] = self.trials[number].after(record)
            if self.trials[number].state != "open":
                self._submit(self.trials[number])

    def _submit(self, trial: Trial) -> None:
        """Put a trial that is over where it belongs; nothing is sorted again, so that a large board is as fast as a small."""
        insort(self.log, trial, key=lambda one: one.number)
        insort(self._order, trial, key=_standing)
        insort(self._levels.setdefault(trial.level, []), trial, key=_standing)

    def ranked(self) -> list[Trial]:
        """Those that are over, as `ranked` orders them."""
        return list(self._order)

    def top(self, count: int) -> list[Trial]:
        """The first `count` of the ranking."""
        return self._order[:count]

    def better_half(self, level: int) -> list[Trial]:
        """The better half of those of one level of experience, rounded down; best first."""
        order = self._levels.get(level, [])
        return order[: len(order) // 2]

    def best(self, count: int, base: Array | None = None, alike: float = ALIKE) -> list[Trial]:
        """The best trial of each agent among the first `BOARD`, the best `count` of these that are not alike.

        `base` [n] are the validation returns of equal weight: an agent whose returns above it correlate with those of one
        chosen before by more than `alike` waits until nobody else is left. Without `base` rank alone decides. Trials that
        are `unread` are passed over. Raises FinpodError if no agent has a score, or none of those can be read.
        """
        agents: dict[str, Trial] = {}
        for trial in self.top(BOARD):
            if not math.isnan(trial.score) and trial.number not in self.unread:
                agents.setdefault(trial.agent, trial)
        if not agents and all(math.isnan(trial.score) for trial in self.log):
            raise FinpodError("no agent has a validation score: all are undefined; train longer, or look at the data")
        if not agents:
            raise FinpodError(
                "no agent that has a validation score can be read any more; restore their files and resume, or train again"
            )
        candidates = list(agents.values())
        if base is None:
            return candidates[:count]
        chosen: list[Trial] = []
        for trial in candidates:
            if len(chosen) < count and all(
                correlation(trial.returns - base, other.returns - base) <= alike for other in chosen
            ):
                chosen.append(trial)
        rest = [trial for trial in candidates if trial not in chosen]
        return ranked([*chosen, *rest[: count - len(chosen)]])


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """Return those that ended or failed, best first; NaN and minus infinity last, ties in the order given."""
    return sorted((trial for trial in trials if trial.state != "open"), key=lambda trial: _standing(trial)[0])


def _standing(trial: Trial) -> tuple[float, int]:
    return (math.inf if math.isnan(trial.score) else -trial.score, trial.number)


def correlation(first: Array, second: Array) -> float:
    """Of two series [n]; 1 where one does not vary at all, for such an agent adds nothing."""
    first, second = first - first.mean(), second - second.mean()
    scale = math.sqrt(float((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / scale if scale > 1e-24 else 1.0
