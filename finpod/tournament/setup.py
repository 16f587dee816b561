"""`TournamentSetup`: settings shared by all agents of a tournament; `Plan`: its size and mode; `Stop`: its stop rules."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch

from finpod.errors import require_choice, require_number
from finpod.pickling import dumps_by_value
from finpod.rl import LEARNERS
from finpod.rl.checkpoint import versions
from finpod.rl.task import Task
from finpod.seeds import require_seed
from finpod.tournament.evolution import EvolutionConfig, Evolver
from finpod.tournament.leaderboard import ALIKE, BOARD, LEARNER

FORMAT = "finpod tournament 1"
"""Format of a log."""
LEVELS = "levels"
"""Entry of a header: environment steps at the end of each round."""
FREE = ("versions", "undefined", "baseline", "data_title", "plan.choice", "plan.keep", "plan.checkpoint_steps",
        "plan.retries", "plan.alike", "plan.stop")  # fmt: skip
"""Entries of a header that may change when a run is resumed, because they do not affect agents."""
FIXED = ("task", "format", "measure")
"""Entries that may not change even in a fork, because scores would not be comparable."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Rules that end a tournament early; None for no rule. Running trials are finished, and no new trial begins."""

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
    """Size and mode of a tournament.

    In an asynchronous tournament, rounds are levels of experience. The steps of an agent include those of its ancestors.
    """

    agents: int = 4
    """Population size."""
    rounds: int = 2
    """Rounds; after each, mutated copies of strong agents replace weak ones."""
    keep: int = 3
    """Agents selected for the ensemble."""
    steps: int = 600_000
    """Environment steps of an agent over all rounds."""
    seed: int = 0
    """Seed of all random numbers."""
    mode: Literal["rounds", "async"] = "rounds"
    """'rounds' waits for all agents after each round; 'async' never waits."""
    checkpoint_steps: int | None = None
    """Environment steps between checkpoints inside a round; by default none."""
    retries: int = 3
    """Number of times that a lost slice is started again before its trial fails."""
    alike: float = ALIKE
    """Largest correlation of active validation returns between two selected agents."""
    search: EvolutionConfig = field(default_factory=EvolutionConfig)
    """Rules of variation."""
    stop: Stop = field(default_factory=Stop)
    """Stop rules."""

    def __post_init__(self) -> None:
        require_number("agents", self.agents, 1, whole=True)
        require_number("rounds", self.rounds, 1, whole=True)
        require_number("keep", self.keep, 1, BOARD, whole=True)
        require_number("steps", self.steps, 1, whole=True)
        require_seed(self.seed)
        require_choice("mode", self.mode, ("rounds", "async"))
        if self.checkpoint_steps is not None:
            require_number("checkpoint_steps", self.checkpoint_steps, 1, whole=True)
        require_number("retries", self.retries, 0, whole=True)
        require_number("alike", self.alike, 0, 1)

    @property
    def most_trials(self) -> int:
        """Largest number of trials of a tournament."""
        planned = self.agents * self.rounds
        most = planned if self.stop.trials is None else self.stop.trials
        return min(most, planned) if self.mode == "rounds" else most

    def goal(self, level: int, update: int) -> int:
        """Return the environment steps at the end of a round (1, 2, ...), rounded to whole updates of `update` steps."""
        return math.ceil(self.updates(update) * level / self.rounds) * update

    def updates(self, update: int) -> int:
        """Return the number of updates, of `update` steps each, of an agent over all rounds; at least one per round."""
        return max(round(self.steps / update), self.rounds)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Return the plan of a header. Headers of earlier versions also have a `choice` and two more stop rules."""
        stop = Stop(**{name: values["stop"][name] for name in ("trials", "steps", "seconds")})
        values = {name: value for name, value in values.items() if name != "choice"}
        return cls(**{**values, "search": EvolutionConfig(**values["search"]), "stop": stop})


@dataclass(frozen=True, kw_only=True, eq=False)
class TournamentSetup:
    """Settings shared by all agents of a tournament."""

    task: Task
    """Task to learn."""
    num_envs: int
    """Environments of each agent."""
    config: Any
    """Settings of the learner of the first agent."""
    learner: str = LEARNER
    """Name of the learner in `LEARNERS`."""
    plan: Plan = field(default_factory=Plan)
    """Size and mode."""
    device: str = "cpu"
    """Device of the tensors."""
    threads: int = 1
    """CPU threads of a slice. Results depend on this number, because it changes the order of sums."""

    @property
    def update(self) -> int:
        """Environment steps of one update of an agent."""
        return self.num_envs * self.config.num_steps

    def evolver(self) -> Evolver:
        """Return the `Evolver` that draws the agents."""
        search, space = self.plan.search, self.task.space()
        return Evolver(seed=self.plan.seed, config=self.config, space=space, search=search, learner=self.learner)

    def header(self) -> dict[str, Any]:
        """Return the header of the log as plain values. Entries equal to those of `LACKING` are left out."""
        of_task = self.task.header()
        envs = None if self.num_envs == self.task.num_envs else self.num_envs
        named = {"learner": self.learner, "measure": self.task.measure, "num_envs": envs}
        return {
            "format": FORMAT,
            "plan": asdict(self.plan),
            "config": asdict(self.config),
            LEVELS: [self.plan.goal(level, self.update) for level in range(1, self.plan.rounds + 1)],
            "space": self.task.space().to_dict(),
            **of_task,
            "versions": {**versions(), **of_task.get("versions", {})},
            "task": {**of_task["task"], "threads": self.threads},
            **{name: value for name, value in named.items() if value != LACKING[name]},
        }

    def to_shared(self) -> dict[str, Any]:
        """Return the setup for pods on other machines."""
        kind, alone = dumps_by_value(type(self.task)), replace(self, task=None)  # type: ignore[arg-type]
        return {"setup": alone, "kind": kind, "task": self.task.to_shared()}


def from_shared(shared: Mapping[str, Any], device: str = "cpu") -> TournamentSetup:
    """Return the setup of `to_shared`, on a device."""
    task = pickle.loads(shared["kind"]).from_shared(shared["task"], torch.device(device))
    setup: TournamentSetup = replace(shared["setup"], task=task, device=device)
    return setup


LACKING: dict[str, Any] = {
    "learner": LEARNER,
    "measure": "sharpe",
    "num_envs": None,
    "space": {
        "start": {"hidden": 32, "features": None, "reward": None, "cost_factor": 1.0},
        "ranges": {"cost_factor": [0.5, 2.0]},
        "choices": {"hidden": [16, 32, 64], "reward": ["log", "value"]},
    },
}
"""Values of entries that are missing in a header. Early logs of stock agents have none of them."""
LACKING_TERMS: dict[str, Any] = {"anchor": "equal-weight", "max_weight": None, "max_turnover": None}
"""Values of entries that are missing in the entry 'trading' of a task."""


def completed(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return a header with its missing entries, and with settings of the learner that are newer than the log."""
    space = {**LACKING["space"], "subsets": {"features": header.get("task", {}).get("features", [])}}
    whole = {**LACKING, "space": space, **header}
    if "trading" in whole.get("task", {}):
        whole["task"] = {**whole["task"], "trading": {**LACKING_TERMS, **whole["task"]["trading"]}}
    return whole | {"config": asdict(LEARNERS[whole["learner"]].Config(**whole["config"]))}
