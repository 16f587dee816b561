"""`TournamentSetup`: what all agents of a tournament share; `Plan`, its size and mode; `Stop`, when it ends early."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral
from typing import Any, Literal, get_args, get_type_hints

import torch

from finpod.errors import InputError
from finpod.pickling import dumps_by_value
from finpod.rl import LEARNERS
from finpod.rl.checkpoint import versions
from finpod.rl.task import Space, Task
from finpod.seeds import require_seed
from finpod.tournament.evolution import EvolutionConfig, Evolver
from finpod.tournament.leaderboard import ALIKE, BOARD, LEARNER, Leaderboard

FORMAT = "finpod tournament 1"
"""Of a log."""
LEVELS = "levels"
"""In the header of a log: steps of experience at each level."""
FREE = {"on_resume": "free"}
"""Metadata of a field of the plan that may change when a run is resumed: no agent depends on it."""
ON_RESUME = {
    **dict.fromkeys(("versions", "undefined", "baseline", "data_title"), "free"),
    **dict.fromkeys(("task", "format", "measure"), "never"),
}
"""The same of other entries of a header."""
STEPS = 600_000
"""Environment steps an agent trains for, if not told otherwise."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Rules that end a tournament early; None for a rule that is not asked for. What runs is finished, nothing begins.

    Each counts for one tournament: with several seeds each has its own. In rounds, rules on scores are checked after each
    round.
    """

    trials: int | None = field(default=None, metadata={"help": "Stop after so many trials, of each seed."})
    steps: int | None = field(
        default=None, metadata={"help": "Stop after so many environment steps of all agents, of each seed."}
    )
    seconds: float | None = field(
        default=None, metadata={"help": "Stop after so many seconds, of each seed; counted anew when a run is resumed."}
    )
    score: float | None = field(default=None, metadata={"help": "Stop at such a validation score, of each seed."})
    patience: int | None = field(
        default=None, metadata={"help": "Stop after so many trials without a better score, of each seed."}
    )

    def __post_init__(self) -> None:
        for rule in fields(self):
            value, low = getattr(self, rule.name), -math.inf if rule.name == "score" else 0
            if value is None:
                continue
            name = f"stop.{rule.name}"
            if rule.name in ("trials", "steps", "patience"):
                require_count(name, value)
            elif not (isinstance(value, (int, float)) and low < value < math.inf):
                fit = "a number" if rule.name == "score" else "a positive number"
                raise InputError(f"{name} is {value!r}; give {fit}, or leave it out", argument=name)

    def before(self, trial: int, steps: int, seconds: float) -> str | None:
        """The rule that keeps a trial from beginning, of this number, with so many steps begun before it, so late.

        But for the time it depends on the draws alone, so that it stops at the same trial wherever the pods run.
        """
        if self.trials is not None and trial >= self.trials:
            return f"{self.trials} trials"
        if self.steps is not None and steps >= self.steps:
            return f"{self.steps:,} environment steps"
        if self.seconds is not None and seconds >= self.seconds:
            return f"{self.seconds:g} seconds"
        return None

    def enough(self, board: Leaderboard) -> str | None:
        """The rule on scores that says that enough has been found."""
        best = max((trial.score for trial in board.top(1) if not math.isnan(trial.score)), default=-math.inf)
        if self.score is not None and best >= self.score:
            return f"a score of {self.score:g}"
        before = [] if self.patience is None else board.log[: -self.patience]
        if before and best <= max((trial.score for trial in before if not math.isnan(trial.score)), default=-math.inf):
            return f"no better score in {self.patience} trials"
        return None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Size of a tournament; the metadata of a field says what it is, and whether it may change when a run is resumed.

    In an asynchronous tournament rounds are levels of experience. Steps are those of an agent and its ancestors.
    """

    agents: int = field(default=4, metadata={"help": "Agents trained side by side."})
    rounds: int = field(default=2, metadata={"help": "Rounds, after each of which the weaker follow the stronger."})
    keep: int = field(default=3, metadata={"help": "Agents kept in the ensemble.", **FREE})
    steps: int = field(default=STEPS, metadata={"help": "Environment steps an agent over all rounds."})
    seed: int = field(default=0, metadata={"help": "The one seed that all randomness comes from."})
    mode: Literal["rounds", "async"] = field(
        default="rounds", metadata={"help": "Meet after each round, or never wait for a slow pod."}
    )
    checkpoint_steps: int | None = field(
        default=None, metadata={"help": "Steps between checkpoints inside a round; none if left out.", **FREE}
    )
    retries: int = field(
        default=3,
        metadata={"help": "Times a slice is started again whose pod was lost, before its agent fails.", **FREE},
    )
    alike: float = field(
        default=ALIKE,
        metadata={"help": "Largest correlation of active validation returns between two agents kept.", **FREE},
    )
    choice: Literal["mean", "score", "recent"] = field(
        default="mean", metadata={"help": "How the kept agents decide together.", **FREE}
    )
    search: EvolutionConfig = field(default_factory=EvolutionConfig, metadata={"help": "How agents are varied."})
    stop: Stop = field(default_factory=Stop, metadata={"help": "When to stop early.", **FREE})

    def __post_init__(self) -> None:
        for name in ("agents", "rounds", "keep", "steps"):
            require_count(name, getattr(self, name))
        if self.checkpoint_steps is not None:
            require_count("checkpoint_steps", self.checkpoint_steps)
        if self.keep > BOARD:
            raise InputError(f"keep is {self.keep}; no more than {BOARD} agents are kept", argument="keep")
        require_seed(self.seed)
        hints = get_type_hints(type(self))
        for name in ("mode", "choice"):
            if getattr(self, name) not in (choices := get_args(hints[name])):
                raise InputError(
                    f"{name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}", argument=name
                )
        if not 0 <= self.alike <= 1:
            raise InputError(f"alike is {self.alike}; it is a correlation, from 0 to 1", argument="alike")
        if self.retries < 0:
            raise InputError(f"retries is {self.retries}; it must be 0 or more", argument="retries")

    @property
    def most_trials(self) -> int:
        """Trials after which it ends if nothing stops it before; rounds are never more than asked for."""
        planned = self.agents * self.rounds
        most = planned if self.stop.trials is None else self.stop.trials
        return min(most, planned) if self.mode == "rounds" else most

    def goal(self, level: int, update: int) -> int:
        """Steps of experience at the end of a level, from 1, in whole updates of so many steps; every level learns."""
        return math.ceil(self.updates(update) * level / self.rounds) * update

    def updates(self, update: int) -> int:
        """Updates of an agent over all rounds."""
        return max(round(self.steps / update), self.rounds)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Return the plan of a header."""
        return cls(**{**values, "search": EvolutionConfig(**values["search"]), "stop": Stop(**values["stop"])})


def on_resume(name: str) -> str:
    """Return whether an entry of a header may change when a run is resumed, by its name with dots between the parts.

    'free': always. 'fork': in a fork alone. 'never': not even there, for the scores would not compare.
    """
    entry, _, rest = name.partition(".")
    if entry != "plan":
        return ON_RESUME.get(entry, "fork")
    rules = {one.name: one.metadata.get("on_resume", "fork") for one in fields(Plan)}
    return rules.get(rest.partition(".")[0], "fork")


def require_count(name: str, value: Any) -> None:
    """Raise InputError unless `value` is a whole number from 1 on."""
    if not (isinstance(value, Integral) and int(value) >= 1):
        raise InputError(f"{name} is {value!r}; it must be a whole number from 1 on", argument=name)


@dataclass(frozen=True, kw_only=True, eq=False)
class TournamentSetup:
    """What all agents of a tournament share."""

    task: Task
    """What they learn."""
    num_envs: int
    """Environments of each agent."""
    config: Any
    """Settings of the learner of the first agent."""
    learner: str = LEARNER
    """Name of the learner in `LEARNERS`."""
    plan: Plan = field(default_factory=Plan)
    """How many agents train how long, and how they are varied."""
    device: str = "cpu"
    """Where tensors live."""
    threads: int = 1
    """CPU threads of a slice; sums differ between thread counts, so it is part of the result."""

    @property
    def update(self) -> int:
        """Environment steps of one update of an agent."""
        return self.num_envs * self.config.num_steps

    def evolver(self) -> Evolver:
        """Return what draws the agents."""
        return Evolver(
            seed=self.plan.seed,
            config=self.config,
            space=self.task.space(),
            search=self.plan.search,
            learner=self.learner,
        )

    def header(self) -> dict[str, Any]:
        """Return what a tournament is, as the first line of its log. Entries that equal `LACKING` are left out."""
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
        """Return what pods on other machines need."""
        kind, alone = dumps_by_value(type(self.task)), replace(self, task=None)  # type: ignore[arg-type]
        return {"setup": alone, "kind": kind, "task": self.task.to_shared()}


def from_shared(shared: Mapping[str, Any], device: str = "cpu") -> TournamentSetup:
    """Return the setup that `to_shared` took apart, on a device."""
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
"""What a header means that lacks these entries. Logs of stock agents were written without them."""
LACKING_TERMS: dict[str, Any] = {"anchor": "equal-weight", "max_weight": None, "max_turnover": None}
"""The same of the entry `trading` of a task."""


def completed(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the header of a log with the entries that it lacks, and with settings of the learner that are newer than it."""
    space = {**LACKING["space"], "subsets": {"features": header.get("task", {}).get("features", [])}}
    whole = {**LACKING, "space": space, **header}
    kind = LEARNERS[whole["learner"]].Config
    if "trading" in whole.get("task", {}):
        trading = {**LACKING_TERMS, **whole["task"]["trading"]}
        whole["task"] = {**whole["task"], "trading": trading}
    return whole | {"config": asdict(kind(**whole["config"]))}


def space_of(header: Mapping[str, Any]) -> Space:
    """Return the space of a header."""
    return Space(**completed(header)["space"])
