"""`TournamentSetup`: settings shared by all agents of a tournament; `Plan`: size and mode; `Stop`: stop rules."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch

from finpod.errors import require_choice, require_number, require_seed
from finpod.pickling import dumps_by_value
from finpod.rl.checkpoint import versions
from finpod.rl.task import Task
from finpod.tournament.evolution import Evolver
from finpod.tournament.leaderboard import ALIKE, BOARD, LEARNER

FORMAT = "finpod tournament 2"
"""Format of a log."""
LEVELS = "levels"
"""Name of the header entry with the environment steps at the end of each round."""
FREE = ("versions", "undefined", "baseline", "data_title", "plan.keep", "plan.checkpoint_steps", "plan.retries",
        "plan.alike", "plan.stop")  # fmt: skip
"""Entries of a header that may change when a run is resumed, because agents stay comparable."""
FIXED = ("task", "format", "measure", "learner")
"""Entries that must not change, even in a fork, because agents would not be comparable."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Rules that end a tournament: no new trial begins, and running trials complete. A rule that is None is off."""

    trials: int | None = None
    """Stop each tournament after this many trials."""
    steps: int | None = None
    """Stop each tournament after this many environment steps of all agents."""
    seconds: float | None = None
    """Stop each tournament after this many seconds; `resume` starts a new count."""

    def __post_init__(self) -> None:
        for name, least in (("trials", 1), ("steps", 1), ("seconds", 0.001)):
            if (value := getattr(self, name)) is not None:
                require_number(f"stop.{name}", value, least, whole=name != "seconds")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Size and mode of a tournament. In an asynchronous tournament, agents go through the rounds without waiting.

    The steps of an agent include the steps of its ancestors.
    """

    agents: int = 4
    """Population size."""
    rounds: int = 2
    """Number of rounds; between rounds, mutated copies of strong agents replace weak ones."""
    keep: int = 3
    """Number of agents selected at the end."""
    steps: int = 600_000
    """Environment steps of an agent over all rounds."""
    seed: int = 0
    """Seed of all random numbers."""
    mode: Literal["rounds", "async"] = "rounds"
    """'rounds' waits for all agents after each round; 'async' never waits."""
    checkpoint_steps: int | None = None
    """Environment steps between checkpoints inside a round; by default, there are checkpoints only between rounds."""
    retries: int = 3
    """Number of times that a slice is repeated because its pod was lost. If the pod is lost again, the trial fails."""
    alike: float = ALIKE
    """Largest correlation between the excess returns (validation returns minus the baseline's) of two selected agents
    of one tournament. More similar agents are selected only if too few others are left."""
    restart_rate: float = 0.25
    """Probability that a new agent gets new settings, instead of changed settings of an earlier agent."""
    stop: Stop = field(default_factory=Stop)
    """Stop rules."""

    def __post_init__(self) -> None:
        for name in ("agents", "rounds", "keep", "steps", "checkpoint_steps"):
            if (value := getattr(self, name)) is not None or name != "checkpoint_steps":
                require_number(name, value, 1, BOARD if name == "keep" else math.inf, whole=True)
        for name in ("alike", "restart_rate"):
            require_number(name, getattr(self, name), 0, 1)
        require_number("retries", self.retries, 0, whole=True)
        require_seed(self.seed)
        require_choice("mode", self.mode, ("rounds", "async"))

    @property
    def most_trials(self) -> int:
        """Largest number of trials of a tournament."""
        planned = self.agents * self.rounds
        most = planned if self.stop.trials is None else self.stop.trials
        return min(most, planned) if self.mode == "rounds" else most

    def goal(self, level: int, update: int) -> int:
        """Return the total environment steps of an agent at the end of round `level` (from 1). The number is a multiple
        of `update`, the steps for one update, and increases from round to round."""
        updates = max(round(self.steps / update), self.rounds)
        return math.ceil(updates * level / self.rounds) * update

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Return the plan from its values in the header of a log."""
        return cls(**{**values, "stop": Stop(**values["stop"])})


@dataclass(frozen=True, kw_only=True, eq=False)
class TournamentSetup:
    """Settings shared by all agents of a tournament."""

    task: Task
    num_envs: int
    """Environments of each agent."""
    config: Any
    """Settings of the learner of the first agent."""
    learner: str = LEARNER
    """Name of the learner in `LEARNERS`."""
    plan: Plan = field(default_factory=Plan)
    device: str = "cpu"
    threads: int = 1
    """CPU threads for the training of an agent. Results depend on this number, because it changes the order of sums."""

    @property
    def update(self) -> int:
        """Number of environment steps for one update of an agent."""
        return self.num_envs * self.config.num_steps

    def evolver(self) -> Evolver:
        """Return the `Evolver` that draws the agents."""
        space, rate = self.task.space(), self.plan.restart_rate
        return Evolver(seed=self.plan.seed, config=self.config, space=space, restart_rate=rate, learner=self.learner)

    def header(self) -> dict[str, Any]:
        """Return the header of the log: the settings that make agents comparable, as plain values."""
        of_task = self.task.header()
        return {
            "format": FORMAT,
            "plan": asdict(self.plan),
            "learner": self.learner,
            "config": asdict(self.config),
            "measure": self.task.measure,
            "num_envs": self.num_envs,
            LEVELS: [self.plan.goal(level, self.update) for level in range(1, self.plan.rounds + 1)],
            "space": self.task.space().to_dict(),
            **of_task,
            "versions": {**versions(), **of_task.get("versions", {})},
            "task": {**of_task["task"], "threads": self.threads},
        }

    def to_shared(self) -> dict[str, Any]:
        """Return the setup in a form to send to pods on other machines; see `from_shared`."""
        kind, alone = dumps_by_value(type(self.task)), replace(self, task=None)  # type: ignore[arg-type]
        return {"setup": alone, "kind": kind, "task": self.task.to_shared()}


def from_shared(shared: Mapping[str, Any], device: str = "cpu") -> TournamentSetup:
    """Return the setup from the result of `to_shared`, with the task on `device`."""
    task = pickle.loads(shared["kind"]).from_shared(shared["task"], torch.device(device))
    return replace(shared["setup"], task=task, device=device)
