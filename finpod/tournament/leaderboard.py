"""`Leaderboard`: every trial of a tournament, ranked on validation."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from finpod.errors import FinpodError
from finpod.measures import Array
from finpod.rl import LEARNERS
from finpod.rl.checkpoint import Checkpoint

BOARD = 64
"""Entries that are on the board however a tournament goes on; of the others only what the log says is kept."""
ALIKE = 0.95
"""Agents whose active returns correlate more than this are one bet, not two."""


LEARNER = "ppo"
"""Learner of an agent whose settings name none; logs name only others."""


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
        rest = dict(values)
        agent_id, seed, config = (rest.pop(name) for name in ("agent_id", "seed", "config"))
        learner = rest.pop("learner", LEARNER)
        task = {name: tuple(value) if isinstance(value, list) else value for name, value in rest.items()}
        return cls(agent_id=agent_id, seed=seed, config=LEARNERS[learner].Config(**config), learner=learner, task=task)


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """One agent after one slice of training, as it did on the validation window."""

    trial: int
    """Number of the trial, from 0; breaks ties."""
    settings: Settings
    """The agent: name, seed, and all that was varied."""
    parent_id: str | None
    """The agent it was copied from; None for one that began untrained."""
    generation: int
    """Level of experience, from 0; only entries of one level are compared by the search."""
    score: float
    """Validation score, NaN if undefined or if its pod was lost for good."""
    metrics: Mapping[str, float]
    """Validation metrics."""
    returns: Array
    """[n] validation returns, net of costs; empty if it was lost."""
    steps: int
    """Environment steps of experience, its ancestors' included."""
    stored: Callable[[], Checkpoint] | None
    """Fetches the agent itself from where it is kept; None if it was lost."""

    @property
    def agent_id(self) -> str:
        """The agent; a varied copy is another agent."""
        return self.settings.agent_id

    @property
    def checkpoint(self) -> Checkpoint:
        """The agent itself. Raises FinpodError if it was lost."""
        if self.stored is None:
            raise FinpodError(f"agent {self.agent_id} was lost in training and has no checkpoint")
        return self.stored()

    def summary(self) -> dict[str, Any]:
        """One line of the board as plain values."""
        own = self.settings.to_dict()
        return {
            "trial": self.trial,
            "agent": self.agent_id,
            "parent": self.parent_id,
            "generation": self.generation,
            "seed": own.pop("seed"),
            "score": self.score,
            "steps": self.steps,
            "metrics": dict(self.metrics),
            "config": own.pop("config"),
            "settings": {name: value for name, value in own.items() if name != "agent_id"},
        }


@dataclass
class Leaderboard:
    """All entries in the order of their trials, so that nothing tried is forgotten, and in the order of their scores."""

    log: list[Entry] = field(default_factory=list)
    unread: dict[int, str] = field(default_factory=dict, init=False, compare=False)
    """Trial -> why its agent, which was to be kept, could not be read."""
    _order: list[Entry] = field(default_factory=list, init=False, repr=False, compare=False)
    _levels: dict[int, list[Entry]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given, self.log = self.log, []
        for entry in given:
            self.submit(entry)

    def submit(self, entry: Entry) -> None:
        """Take an entry in. Raises FinpodError for a trial that is on the board already: no agent counts twice.

        It is put where it belongs, and nothing is sorted again: a board of ten thousand takes one in as fast as a small one.
        """
        at = len(self.log)
        while at and self.log[at - 1].trial >= entry.trial:  # almost always the last
            at -= 1
        if at < len(self.log) and self.log[at].trial == entry.trial:
            raise FinpodError(f"trial {entry.trial} is on the board already")
        self.log.insert(at, entry)
        insort(self._order, entry, key=_standing)
        insort(self._levels.setdefault(entry.generation, []), entry, key=_standing)

    def ranked(self, entries: Sequence[Entry] | None = None) -> list[Entry]:
        """Best first; NaN last; ties to the earlier trial."""
        return list(self._order) if entries is None else [entries[i] for i in rank([one.score for one in entries])]

    def top(self, count: int) -> list[Entry]:
        """The first `count` of the ranking."""
        return self._order[:count]

    def better_half(self, level: int) -> list[Entry]:
        """The better half of those of one level of experience, rounded down; best first."""
        order = self._levels.get(level, [])
        return order[: len(order) // 2]

    def best(self, count: int, base: Array | None = None, alike: float = ALIKE) -> list[Entry]:
        """The best entry of each agent among the first `BOARD`, the best `count` of these that are not alike.

        `base` [n] are the validation returns of equal weight: an agent whose returns above it correlate with those of one
        chosen before by more than `alike` waits until nobody else is left. Without `base` rank alone decides. Raises
        FinpodError if no agent has a score.
        """
        agents: dict[str, Entry] = {}
        for entry in self.top(BOARD):
            if not math.isnan(entry.score) and entry.stored is not None:
                agents.setdefault(entry.agent_id, entry)
        if not agents and all(math.isnan(entry.score) for entry in self.log):
            raise FinpodError("no agent has a validation score: all are undefined; train longer, or look at the data")
        if not agents:
            raise FinpodError(
                "no agent that has a validation score can be read any more; restore their files and resume, or train again"
            )
        field = list(agents.values())
        if base is None:
            return field[:count]
        chosen: list[Entry] = []
        for entry in field:
            if len(chosen) < count and all(
                correlation(entry.returns - base, other.returns - base) <= alike for other in chosen
            ):
                chosen.append(entry)
        rest = [entry for entry in field if entry not in chosen]
        return self.ranked([*chosen, *rest[: count - len(chosen)]])

    def choose(self, count: int, base: Array | None, alike: float, say: Callable[[str], None]) -> list[Entry]:
        """`best` of those whose agents can be read; `say` is told of the others, which are then `unread`.

        Raises FinpodError if no agent has a score, or none of these can be read.
        """
        while True:
            chosen = self.best(count, base, alike)
            unread = [(entry, reason) for entry in chosen if (reason := _unreadable(entry))]
            for entry, reason in unread:
                say(f"agent {entry.agent_id} cannot be kept: {reason}")
                self._lose(entry, reason)
            if not unread:
                return chosen

    def _lose(self, old: Entry, reason: str) -> None:
        """Note that the agent of an entry is gone; its line stays, for it was tried."""
        lost = replace(old, stored=None)
        self.unread[old.trial] = reason
        for entries in (self.log, self._order, self._levels[old.generation]):
            entries[entries.index(old)] = lost


def _unreadable(entry: Entry) -> str:
    """Why the agent of an entry cannot be read; empty if it can."""
    try:
        _ = entry.checkpoint
    except FinpodError as error:
        return str(error)
    return ""


def _standing(entry: Entry) -> tuple[float, int]:
    """What entries are ranked by; NaN and minus infinity are equally bad."""
    return (math.inf if math.isnan(entry.score) else -entry.score, entry.trial)


def correlation(first: Array, second: Array) -> float:
    """Of two series [n]; 1 where one does not vary at all, for such an agent adds nothing."""
    first, second = first - first.mean(), second - second.mean()
    scale = math.sqrt(float((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / scale if scale > 1e-24 else 1.0


def rank(scores: Sequence[float]) -> list[int]:
    """Indices of scores, best first; NaN last; ties in order."""
    keys = np.array(scores, dtype=np.float64)
    return [int(i) for i in np.argsort(np.where(np.isnan(keys), np.inf, -keys), kind="stable")]
