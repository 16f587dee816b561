"""The generator and the selector: which agent is trained next, and how it differs from its parent.

Nothing here is random by itself: every choice is a function of the board and of a generator that the caller seeds with
the number of the round or of the draw, so that a log of them replays to the same choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from finpod.errors import InputError
from finpod.rl import LEARNERS
from finpod.rl.checkpoint import Checkpoint
from finpod.rl.task import Space
from finpod.tournament.leaderboard import LEARNER, Entry, Leaderboard, Settings, rank

PERTURB = (0.8, 1.25)
"""Factors by which a setting of a varied copy moves."""
FEWEST = 3
"""Names that a fresh agent draws of a set at least, such as features, if there are so many."""
HORIZONS = ("gamma", "gae_lambda")
"""Settings that are drawn and moved by their distance from 1."""


@dataclass(frozen=True, kw_only=True)
class EvolutionConfig:
    """How agents are varied."""

    fresh: float = field(
        default=0.25, metadata={"help": "Share of new agents that begin untrained, all settings drawn anew."}
    )
    structure: bool = field(
        default=True,
        metadata={"help": "Let fresh agents also draw what shapes a network: features, width and others of the task."},
    )

    def __post_init__(self) -> None:
        if not 0 <= self.fresh <= 1:
            raise InputError(f"fresh is {self.fresh}; it is a share, from 0 to 1", argument="fresh")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One agent to be trained to a level of experience and validated there: one trial."""

    trial: int
    """Its number, from 0; breaks ties."""
    generation: int
    """Level of experience it is trained to, from 0: the number of slices it and its ancestors have had before."""
    settings: Settings
    """The agent."""
    parent_id: str | None
    """The agent it was copied from; None for one that began untrained."""
    source: int | None
    """Trial whose checkpoint it begins with; None for an untrained one."""
    copied: bool
    """Whether it begins as a varied copy of another agent rather than going on as itself."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**vars(self), "settings": self.settings.to_dict()}

    def entry(
        self,
        score: float | None,
        metrics: Mapping[str, Any],
        returns: Any,
        steps: int,
        stored: Callable[[], Checkpoint] | None,
    ) -> Entry:
        """Return its line on the board; a score or metric that is None is undefined."""
        return Entry(
            trial=self.trial,
            settings=self.settings,
            parent_id=self.parent_id,
            generation=self.generation,
            score=math.nan if score is None else float(score),
            metrics={name: math.nan if value is None else value for name, value in metrics.items()},
            returns=np.asarray(returns, dtype=np.float64),
            steps=steps,
            stored=stored,
        )

    def failed(self) -> Entry:
        """Return its line if it was lost: it keeps its place, and ranks last."""
        return self.entry(None, {}, [], 0, None)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Job:
        """What `to_dict` wrote."""
        return cls(**{**values, "settings": Settings.from_dict(values["settings"])})


class Drawn(Sequence[Job]):
    """All jobs that were drawn, in order, and what the next draw must know of them."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self._jobs: list[Job] = []
        self.made = 0
        """Agents that exist."""
        self.taken: set[tuple[int, bool]] = set()
        """(trial, whether copied) of all that a job begins with."""
        self.add(jobs)

    def add(self, jobs: Iterable[Job]) -> None:
        """Take in the next ones."""
        for job in jobs:
            self._jobs.append(job)
            self.made += job.source is None or job.copied
            if job.source is not None:
                self.taken.add((job.source, job.copied))

    def __getitem__(self, index: Any) -> Any:
        return self._jobs[index]

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)


def bounds_of(learner: str, space: Space) -> dict[str, tuple[float, float]]:
    """Return how far the settings of a learner may move on a task."""
    return {name: space.learner.get(name, bounds) for name, bounds in LEARNERS[learner].bounds.items()}


def vary(config: Any, bounds: Mapping[str, tuple[float, float]], random: np.random.Generator) -> Any:
    """Return the settings of a learner with those in `bounds` moved by one of the factors and kept within them.

    A setting that the user put beyond a bound moves that bound.
    """
    changes: dict[str, Any] = {}
    for name, (low, high) in bounds.items():
        value = getattr(config, name)
        factor = float(random.choice(PERTURB))
        moved = 1 - (1 - value) * factor if name in HORIZONS else value * factor
        changes[name] = min(max(moved, min(low, value)), max(high, value))
    return replace(config, **changes)


def varied(parent: Settings, space: Space, agent_id: str, seed: int, random: np.random.Generator) -> Settings:
    """Return the settings of a copy: all that can change without touching the network is moved by one of the factors."""
    moved = {
        name: float(np.clip(parent.task.get(name, space.start[name]) * random.choice(PERTURB), *bounds))
        for name, bounds in space.ranges.items()
    }
    config = vary(parent.config, bounds_of(parent.learner, space), random)
    return replace(parent, agent_id=agent_id, seed=seed, config=config, task={**parent.task, **moved})


def fresh(
    like: Any,
    space: Space,
    search: EvolutionConfig,
    agent_id: str,
    seed: int,
    random: np.random.Generator,
    learner: str = LEARNER,
) -> Settings:
    """Return the settings of an untrained agent: those with bounds log-uniform, and with `structure` sets and choices too.

    Settings of the learner without bounds are those of `like`.
    """
    drawn = {name: _between(name, *bounds, random) for name, bounds in bounds_of(learner, space).items()}
    task = dict(space.start)
    task |= {name: float(np.exp(random.uniform(*np.log(bounds)))) for name, bounds in space.ranges.items()}
    if search.structure:
        task |= {name: _subset(names, random) for name, names in space.subsets.items()}
        task |= {name: options[int(random.choice(len(options)))] for name, options in space.choices.items()}
    return Settings(agent_id=agent_id, seed=seed, config=replace(like, **drawn), learner=learner, task=task)


def _subset(names: Sequence[str], random: np.random.Generator) -> tuple[str, ...]:
    count = int(random.integers(min(FEWEST, len(names)), len(names) + 1))
    return tuple(names[i] for i in sorted(random.choice(len(names), count, replace=False).tolist()))


def _between(name: str, low: float, high: float, random: np.random.Generator) -> float:
    if name in HORIZONS:
        return 1 - float(np.exp(random.uniform(math.log(1 - high), math.log(1 - low))))
    return float(np.exp(random.uniform(math.log(low), math.log(high))))


@dataclass(frozen=True, kw_only=True)
class Evolver:
    """Draws the next agents; the seed of the tournament and the number of the draw decide all that is random."""

    seed: int
    """Seed of the tournament."""
    config: Any
    """Settings of the learner of the first agent; fresh ones take from it what has no bounds."""
    space: Space
    """What may vary of the task."""
    search: EvolutionConfig
    """How agents are varied."""
    learner: str = LEARNER
    """Name of the learner of all agents."""

    def _identity(self, made: int) -> tuple[str, int]:
        """Name and seed of the agent that is the `made`-th to be made."""
        return f"{self.seed}-{made}", int(np.random.SeedSequence([self.seed, made + 1]).generate_state(1)[0])

    def begin(self, made: int, random: np.random.Generator) -> Settings:
        """An untrained agent: the first as asked for, the others varied from it or, a share of them, drawn anew."""
        agent_id, seed = self._identity(made)
        if made and random.random() < self.search.fresh:
            return self.fresh(made, random)
        bounds = bounds_of(self.learner, self.space)
        config = vary(self.config, bounds, random) if made else self.config
        return Settings(agent_id=agent_id, seed=seed, config=config, learner=self.learner, task=dict(self.space.start))

    def fresh(self, made: int, random: np.random.Generator) -> Settings:
        """Return an untrained agent whose settings are drawn anew."""
        return fresh(self.config, self.space, self.search, *self._identity(made), random, self.learner)

    def copy(self, parent: Settings, made: int, random: np.random.Generator) -> Settings:
        """Return a varied copy of `parent`."""
        return varied(parent, self.space, *self._identity(made), random)

    def first_round(self, agents: int) -> list[Job]:
        """The field of the first round."""
        random = np.random.default_rng([self.seed, 0])
        return [_untrained(i, 0, self.begin(i, random)) for i in range(agents)]

    def round(self, generation: int, board: Leaderboard, drawn: Sequence[Job], agents: int) -> list[Job]:
        """The field of a round, from what the board says of the one before."""
        if generation == 0:
            return self.first_round(agents)
        last = [entry for entry in board.log if entry.generation == generation - 1]
        made = len({job.settings.agent_id for job in drawn})
        return self.next_round(last, agents, made, len(drawn))

    def next_round(self, entries: Sequence[Entry], agents: int, made: int, trial: int) -> list[Job]:
        """The stronger half of a round goes on; each of the others gives way to a copy of a stronger one, or to a fresh agent.

        `entries` are one round's, all of equal experience; `made` agents exist and `trial` is the next number. A fresh
        agent is trained to the experience of the others before it is compared with them.
        """
        generation = entries[0].generation + 1
        random = np.random.default_rng([self.seed, generation])
        ranked = [entries[i] for i in rank([entry.score for entry in entries])]
        stored = [entry for entry in ranked if entry.stored is not None]
        alive = [entry for entry in stored if not math.isnan(entry.score)] or stored or ranked[:1]
        strong = alive[: math.ceil(len(entries) / 2)][:agents]
        jobs = [_onward(trial + i, generation, entry) for i, entry in enumerate(strong)]
        for i in range(agents - len(strong)):
            parent = strong[i % len(strong)]
            if parent.stored is None or random.random() < self.search.fresh:
                settings = self.fresh(made, random)
                jobs.append(_untrained(trial + len(jobs), generation, settings))
            else:
                child = self.copy(parent.settings, made, random)
                jobs.append(_copied(trial + len(jobs), generation, child, parent))
            made += 1
        return jobs

    def draw(self, board: Leaderboard, drawn: Sequence[Job], agents: int, levels: int) -> Job:
        """The next agent of an asynchronous tournament, with no barrier: a slow one holds nobody up.

        An agent goes on, and has one varied copy, once it stands in the better half of at least two that have reached its
        level, so that only agents of equal experience are compared; the highest level is served first. Where nobody is
        waiting a new agent begins, at first as in rounds, later as a fresh one or with varied settings of an agent drawn
        by its rank (weights n, n - 1, ..., 1).
        """
        drawn = drawn if isinstance(drawn, Drawn) else Drawn(drawn)
        trial, made = len(drawn), drawn.made
        random = np.random.default_rng([self.seed, trial, 1])
        if made >= agents:
            for level in reversed(range(levels - 1)):
                if waiting := _waiting(board, drawn, level):
                    entry, goes_on = waiting
                    if goes_on:
                        return _onward(trial, level + 1, entry)
                    return _copied(trial, level + 1, self.copy(entry.settings, made, random), entry)
        ranked = [entry for entry in board.ranked() if entry.stored is not None]
        if made < agents or not ranked or random.random() < self.search.fresh:
            return _untrained(trial, 0, self.begin(made, random))
        weights = np.arange(len(ranked), 0, -1, dtype=np.float64)
        like = ranked[int(random.choice(len(ranked), p=weights / weights.sum()))]
        return _untrained(trial, 0, self.copy(like.settings, made, random))


def _waiting(board: Leaderboard, drawn: Drawn, level: int) -> tuple[Entry, bool] | None:
    """The best of the better half of a level that has not gone on yet (True), or else that has no copy yet (False)."""
    strong = board.better_half(level)
    for copied in (False, True):
        for entry in strong:
            if (entry.trial, copied) not in drawn.taken and entry.stored is not None and not math.isnan(entry.score):
                return entry, not copied
    return None


def _untrained(trial: int, generation: int, settings: Settings) -> Job:
    return Job(trial=trial, generation=generation, settings=settings, parent_id=None, source=None, copied=False)


def _onward(trial: int, generation: int, entry: Entry) -> Job:
    return Job(
        trial=trial,
        generation=generation,
        settings=entry.settings,
        parent_id=entry.parent_id,
        source=entry.trial if entry.stored is not None else None,
        copied=False,
    )


def _copied(trial: int, generation: int, child: Settings, parent: Entry) -> Job:
    return Job(
        trial=trial,
        generation=generation,
        settings=child,
        parent_id=parent.settings.agent_id,
        source=parent.trial,
        copied=True,
    )
