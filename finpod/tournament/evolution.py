"""`Evolver`: population based training (Jaderberg et al. 2017). It chooses which agents train, and their settings."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from finpod.rl import LEARNERS
from finpod.rl.task import Space
from finpod.tournament.leaderboard import LEARNER, Leaderboard, Settings, Trial, ranked

PERTURB = (0.8, 1.25)
"""Factors of mutation. Each setting that a mutated copy changes is multiplied by a random one of these factors."""
FEWEST = 3
"""Smallest size of a subset (of features, for example) that an agent with new settings draws."""
HORIZONS = ("gamma", "gae_lambda")
"""Names of discount settings. For such a setting x, 1 - x (not x) is drawn log-uniformly and multiplied by factors."""


@dataclass(frozen=True, kw_only=True)
class Evolver:
    """Draws the next trials. A draw depends only on settings and earlier trials, so a log is enough to repeat it."""

    seed: int
    config: Any
    """Learner settings of the first agent. Other agents differ only in settings that the learner's `bounds` name."""
    space: Space
    """Settings of the task that vary."""
    restart_rate: float
    """Probability that a new agent gets new settings, instead of changed settings of an earlier agent."""
    learner: str = LEARNER

    def round(self, level: int, board: Leaderboard, agents: int) -> list[Trial]:
        """Return the trials of the round `level`. In the first round, all agents are untrained.

        In later rounds, the better half continues. Each other agent is replaced by a mutated copy of a better agent, or
        by an untrained agent with new settings. The untrained agent trains for the steps of all rounds so far.
        """
        random = np.random.default_rng([self.seed, level - 1])
        if level == 1:
            return [self._trial(i, 1, self.begin(i, random).to_dict()) for i in range(agents)]
        last = ranked(trial for trial in board.log if trial.level == level - 1)
        ended = [trial for trial in last if trial.state == "ended"]
        alive = [trial for trial in ended if not math.isnan(trial.score)] or ended or last[:1]
        strong = alive[: math.ceil(len(last) / 2)][:agents]
        number, index = len(board.trials), len(board.agents)
        trials = [self._trial(number + i, level, trial.agent_settings, trial) for i, trial in enumerate(strong)]
        for i in range(agents - len(strong)):
            parent = strong[i % len(strong)]
            if parent.state == "failed" or random.random() < self.restart_rate:
                trials.append(self._trial(number + len(trials), level, self.fresh(index + i, random).to_dict()))
            else:
                child = self.copy(parent, index + i, random).to_dict()
                trials.append(self._trial(number + len(trials), level, child, parent, copied=True))
        return trials

    def draw(self, board: Leaderboard, agents: int, levels: int) -> Trial:
        """Return the next trial of an asynchronous tournament, which never waits for a slow agent.

        First, `agents` agents begin, with settings from `begin`. Then the ended and failed trials of each level (round)
        below `levels` are ranked. Each trial in the better half (rounded down) is due to continue to the next level,
        and to be copied once. Trials of the highest level come first. If no trial is due, a new agent begins. With
        probability `restart_rate`, the new agent gets fresh settings. Otherwise, one of the n ended trials is drawn,
        with weights n (best) to 1 (worst), and the new agent gets mutated settings of this trial.
        """
        number, index = len(board.trials), len(board.agents)
        random = np.random.default_rng([self.seed, number, 1])
        if index >= agents:
            for parent, copied in _waiting(board, levels):
                settings = self.copy(parent, index, random).to_dict() if copied else parent.agent_settings
                return self._trial(number, parent.level + 1, settings, parent, copied=copied)
        order = [trial for trial in ranked(board.trials) if trial.state == "ended"]
        if index < agents or not order:
            return self._trial(number, 1, self.begin(index, random).to_dict())
        if random.random() < self.restart_rate:
            return self._trial(number, 1, self.fresh(index, random).to_dict())
        weights = np.arange(len(order), 0, -1, dtype=np.float64)
        like = order[int(random.choice(len(order), p=weights / weights.sum()))]
        return self._trial(number, 1, self.copy(like, index, random).to_dict())

    def begin(self, index: int, random: np.random.Generator) -> Settings:
        """Return the settings of an untrained agent. The first agent (`index` 0) gets `config`. Other agents get fresh
        settings with probability `restart_rate`, or else `config` changed by `vary`."""
        if index and random.random() < self.restart_rate:
            return self.fresh(index, random)
        config = vary(self.config, self._bounds(), random) if index else self.config
        return self._agent(index, config, self.space.start)

    def fresh(self, index: int, random: np.random.Generator) -> Settings:
        """Return new random settings. Those with bounds are drawn log-uniformly, subsets and choices uniformly."""
        space = self.space
        drawn = {name: _between(name, *bounds, random) for name, bounds in self._bounds().items()}
        task = dict(space.start)
        task |= {name: float(np.exp(random.uniform(*np.log(bounds)))) for name, bounds in space.ranges.items()}
        for name, names in space.subsets.items():
            count = int(random.integers(min(FEWEST, len(names)), len(names) + 1))
            task[name] = tuple(names[i] for i in sorted(random.choice(len(names), count, replace=False).tolist()))
        task |= {name: options[int(random.choice(len(options)))] for name, options in space.choices.items()}
        return self._agent(index, replace(self.config, **drawn), task)

    def copy(self, trial: Trial, index: int, random: np.random.Generator) -> Settings:
        """Return the settings of a mutated copy of an agent. Settings with bounds change by factors in `PERTURB`."""
        parent = Settings.from_dict(trial.agent_settings)
        moved = {
            name: float(np.clip(parent.task.get(name, self.space.start[name]) * random.choice(PERTURB), *bounds))
            for name, bounds in self.space.ranges.items()
        }
        return self._agent(index, vary(parent.config, self._bounds(), random), {**parent.task, **moved})

    def _agent(self, index: int, config: Any, task: Mapping[str, Any]) -> Settings:
        seed = int(np.random.SeedSequence([self.seed, index + 1]).generate_state(1)[0])
        return Settings(agent_id=f"{self.seed}-{index}", seed=seed, config=config, learner=self.learner, task=task)

    def _bounds(self) -> dict[str, tuple[float, float]]:
        return {name: self.space.learner.get(name, bounds) for name, bounds in LEARNERS[self.learner].bounds.items()}

    def _trial(
        self, number: int, level: int, settings: Mapping[str, Any], parent: Trial | None = None, copied: bool = False
    ) -> Trial:
        """Return a trial that continues `parent`, or if `copied`, continues a copy of `parent`. If `parent` is None or
        has failed, the trial starts untrained."""
        source = parent if parent is not None and parent.state == "ended" else None
        ancestor = None if parent is None else parent.agent if copied else parent.parent
        return Trial(
            run=self.seed,
            number=number,
            level=level,
            agent_settings=settings,
            parent=ancestor,
            source=None if source is None else source.number,
            copied=copied,
            start=0 if source is None else source.steps,
        )


def vary(config: Any, bounds: Mapping[str, tuple[float, float]], random: np.random.Generator) -> Any:
    """Return `config` with each setting in `bounds` changed by a random factor in `PERTURB`, and kept in its bounds.
    Bounds that exclude the value in `config` are extended to this value."""
    changes: dict[str, Any] = {}
    for name, (low, high) in bounds.items():
        value = getattr(config, name)
        factor = float(random.choice(PERTURB))
        moved = 1 - (1 - value) * factor if name in HORIZONS else value * factor
        changes[name] = min(max(moved, min(low, value)), max(high, value))
    return replace(config, **changes)


def _between(name: str, low: float, high: float, random: np.random.Generator) -> float:
    if name in HORIZONS:
        return 1 - float(np.exp(random.uniform(math.log(1 - high), math.log(1 - low))))
    return float(np.exp(random.uniform(math.log(low), math.log(high))))


def _waiting(board: Leaderboard, levels: int) -> Iterator[tuple[Trial, bool]]:
    """Yield the trials that are due, from the highest level to the lowest. At each level, first yield (trial, False)
    for each trial to be continued, then (trial, True) for each trial to be copied."""
    order, taken = ranked(board.trials), board.taken
    for level in sorted({trial.level for trial in order if trial.level < levels}, reverse=True):
        reached = [trial for trial in order if trial.level == level]
        strong = [trial for trial in reached[: len(reached) // 2] if not math.isnan(trial.score)]
        yield from ((one, copied) for copied in (False, True) for one in strong if (one.number, copied) not in taken)
