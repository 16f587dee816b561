"""`Task`: the only interface through which learners and tournaments use a task, so that they work for any task."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from finpod.envs.step import Observation, Step
from finpod.errors import InputError
from finpod.measures import Array
from finpod.pickling import dumps_by_value
from finpod.rl.policy import DensePolicy, DenseSpec, Policy

NEEDED = ("name", "num_inputs", "num_actions", "env", "score")
"""Members that a task must define."""


class Table(NamedTuple):
    """Table that all environments of a task share. An observation holds the number of the row that the policy reads."""

    values: Tensor
    """[T, N, F] float32: F features of N entries (such as stocks) in T rows (such as days)."""
    among: Tensor
    """[T, N] bool mask of the entries that a decision on each row may use."""
    anchor: Tensor | None = None
    """[T, N] float32 weights that actions change, zero outside `among`. If the anchor is None, actions change equal
    weights, and `Policy.encode` is called without an anchor."""


class Score(NamedTuple):
    """Result of the evaluation of a policy."""

    metrics: Mapping[str, float]
    """Name -> metric, NaN if undefined. Agents are ranked by the metric that `Task.measure` names."""
    returns: Array | None = None
    """[n] returns, one per period, or None. With a `Task.baseline`, selection avoids agents with similar returns."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """Settings of an agent that the tournament varies in addition to learner settings, such as the network's width.

    If an agent gets new settings, all are drawn. A mutated copy changes only settings in `ranges` and of the learner.
    """

    start: Mapping[str, Any] = field(default_factory=dict)
    """Value of every setting for the first agent."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Name -> (low, high) of a positive number, drawn log-uniformly. A mutated copy multiplies it by a factor."""
    subsets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Name -> items. The setting is a random subset of these items. None in `start` stands for all items."""
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Name -> values. The setting is one of these values, drawn at random."""
    learner: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Name of a setting of the learner -> bounds that replace those in `Learner.bounds`."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values from which `Space(**values)` builds an equal space."""
        return {name: part for name, part in vars(self).items() if part or name != "learner"}


class Environment(Protocol):
    """E environments that are stepped together. When an episode ends, the next one begins in the same step."""

    num_envs: int
    """Number of environments E."""
    groups: int = 1
    """Number of groups; each group has E / `groups` environments. The environments of a group always observe the same
    row of the table. Without a table, the number is not used."""
    differentiable: bool = False
    """True if `step(action, grad=True, smooth=...)` returns a step and its `Returns`. `detach()` must then stop
    gradients at the current step. `smooth` is the width over which kinks of the return are smoothed."""

    def reset(self, seed: int | None = None) -> Observation:
        """Begin all episodes and return their observations. A seed makes these and all later episodes reproducible."""

    def observe(self) -> Observation:
        """Return the current observations."""

    def step(self, action: Tensor) -> Step:
        """Apply actions [E, A] and return the step."""

    def check(self) -> None:
        """Raise an InputError that names the first invalid action since the last check. Called once per rollout."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values from which `load_state_dict` continues exactly."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of an environment with the same configuration."""


class Task:
    """Base class of tasks. A subclass defines the members in `NEEDED`. The defaults are for tasks without a table."""

    name: str
    """Name in one word, used in logs and folders."""
    num_inputs: int
    """Size S of an observation's state."""
    num_actions: int
    """Size A of an action."""
    num_envs: int = 64
    """Default number of environments that an agent trains in."""
    steps: int = 600_000
    """Default number of environment steps that an agent trains for."""
    undifferentiable: str | None = "the reward"
    """Name of the part of the task that blocks the gradient of 'apg'. None if environments are differentiable."""
    measure: str = "score"
    """Name of the metric in `Score.metrics` by which agents are ranked. A higher value is better."""

    def env(self, num_envs: int, seed: int, device: torch.device) -> Environment:
        """Return `num_envs` environments to train in."""
        raise NotImplementedError

    def score(self, policy: Policy) -> Score:
        """Return the score of a policy that takes its mean actions, on data that training does not see."""
        raise NotImplementedError

    def table(self, device: torch.device) -> Table | None:
        """Return the table that the environments share, or None."""
        return None

    def policy(self, settings: Mapping[str, Any], generator: torch.Generator | None = None) -> Policy:
        """Return an untrained policy for an agent of these `settings`, with weights drawn from the generator."""
        sizes = {name: settings[name] for name in ("hidden", "log_std_init") if name in settings}
        return DensePolicy(DenseSpec(inputs=self.num_inputs, actions=self.num_actions, **sizes), generator)

    def for_agent(self, settings: Mapping[str, Any]) -> Task:
        """Return the task on which an agent with these settings trains. The scores of all agents must be comparable."""
        return self

    def space(self) -> Space:
        """Return the settings that the tournament may vary."""
        return Space(start={"hidden": 64}, choices={"hidden": (32, 64, 128)})

    def defaults(self, learner: str) -> dict[str, Any]:
        """Return settings of a learner for this task that differ from the learner's defaults."""
        return {}

    def baseline(self) -> Array | None:
        """Return the returns [n] of a policy without skill, or None. Selection subtracts these returns from the returns
        of agents before it compares the agents."""
        return None

    def spec(self) -> dict[str, Any]:
        """Return plain values that are stored with an agent, besides the name of the task."""
        return {}

    def header(self) -> dict[str, Any]:
        """Return entries for the header of the log. A run can be resumed only with equal entries, except those in
        `tournament.setup.FREE`."""
        return {"task": {"task": self.name, **self.spec()}}

    def to_shared(self) -> Any:
        """Return the task in a form to send to other machines. Large arrays should stay NumPy arrays, not pickles."""
        return dumps_by_value(self)

    @classmethod
    def from_shared(cls, shared: Any, device: torch.device) -> Task:
        """Return the task from the result of `to_shared`."""
        return pickle.loads(shared)


def require_task(task: Any) -> Any:
    """Return `task`. Raises InputError if it is not an instance of `Task`, or lacks a member in `NEEDED`."""
    if not isinstance(task, Task):
        raise InputError(f"{task!r:.60} is not a task; pass an instance of finpod.rl.task.Task", argument="task")
    kind = type(task)
    for name in NEEDED:
        if not hasattr(task, name) or getattr(kind, name, None) is getattr(Task, name, object()):
            text = f"{kind.__name__} is not a task: it lacks {name}; define this member, see finpod.rl.task.Task"
            raise InputError(text, argument="task")
    return task
