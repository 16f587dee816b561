"""Protocols of a task: what learners and tournaments see of it, so that they need not know which one it is.

A class of its own may subclass `Task` and `Environment` for their defaults, or have all their members.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from finpod.envs.step import GradientStep, Observation, Step
from finpod.errors import InputError
from finpod.measures import Array
from finpod.pickling import dumps_by_value
from finpod.rl.policy import DensePolicy, DenseSpec, Policy

__all__ = [
    "DifferentiableEnvironment",
    "Environment",
    "GradientStep",
    "Observation",
    "Score",
    "Space",
    "Step",
    "Table",
    "Task",
    "require_task",
]

NEEDED = ("name", "num_inputs", "num_actions", "env", "score")
"""What a task must have of its own."""


class Table(NamedTuple):
    """Rows that all environments of a task share. An observation names the row that it may read."""

    values: Tensor
    """[T, N, F] float32: F features of N entries, such as stocks, on T rows, such as days."""
    among: Tensor
    """[T, N] bool: entries that a decision on this row may use."""
    anchor: Tensor | None = None
    """[T, N] float32 what actions are taken around, zero outside `among`; None if that is the same for all entries. A policy's
    `encode` is given its rows as a third argument where it is not None."""


class Score(NamedTuple):
    """How well a policy does what the task asks for."""

    metrics: Mapping[str, float]
    """Figures by name; `Task.measure` names the one that agents are ranked by. NaN where undefined."""
    returns: Array | None = None
    """[n] returns by period, where there are some: agents whose returns move together are not kept side by side."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """What the search may vary of an agent beside the settings of its learner, such as the width of its network.

    A fresh agent draws all of it, in this order; a varied copy of another agent moves the `ranges` alone.
    """

    start: Mapping[str, Any] = field(default_factory=dict)
    """Every setting with the value that the first agent has."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Positive numbers with their bounds; drawn log-uniformly, moved by factors."""
    subsets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Sets of names, of which some are drawn; None stands for all."""
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values of which one is drawn."""
    learner: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Bounds of settings of the learner that take the place of the learner's own."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values from which `Space(**values)` is made again."""
        parts = {name: part for name, part in vars(self).items() if part or name != "learner"}
        return {name: {key: _plain(value) for key, value in part.items()} for name, part in parts.items()}


class Environment(Protocol):
    """E environments stepped together. Episodes that end begin again within the same step."""

    num_envs: int
    """E."""
    groups: int = 1
    """Groups of E / groups environments each that share their row. Read only if the task has a table."""
    differentiable: bool = False
    """Whether it is a `DifferentiableEnvironment`."""

    def reset(self, seed: int | None = None) -> Observation:
        """Begin all episodes. A seed makes these and all later episodes repeatable."""
        raise NotImplementedError

    def observe(self) -> Observation:
        """Return the observations as they are now."""
        raise NotImplementedError

    def step(self, action: Tensor) -> Step:
        """Apply actions [E, A]."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise InputError that names the first bad action since the last check. Called once a rollout."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values from which `load_state_dict` continues exactly."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of the same configuration."""
        raise NotImplementedError


class DifferentiableEnvironment(Protocol):
    """An environment with `differentiable = True`: what it needs beside or in place of the members of `Environment`."""

    differentiable: bool

    def observe(self) -> Observation:
        """Return the observations as they are now, with the gradient of what led to them since `detach`."""
        raise NotImplementedError

    def step(self, action: Tensor, *, grad: Literal[True], smooth: float = 0.0) -> GradientStep:
        """Apply actions [E, A] and keep the graph. `smooth` > 0 rounds kinks of that size off, where there are some."""
        raise NotImplementedError

    def detach(self) -> None:
        """Let no gradient of later steps reach the steps before."""
        raise NotImplementedError

    def check(self) -> None:
        """As in `Environment`."""
        raise NotImplementedError


class Task(Protocol):
    """A thing to learn. A subclass gives the first five members; the others have defaults, of a task without a table."""

    name: str
    """One word, by which logs and folders call it."""
    num_inputs: int
    """S, numbers of an observation's state."""
    num_actions: int
    """A, numbers of an action."""
    num_envs: int = 64
    """Environments that an agent trains in, if not told otherwise."""
    steps: int = 600_000
    """Environment steps that an agent trains for, if not told otherwise."""
    measure: str = "score"
    """Metric of a `Score` that agents are ranked by; more is better."""

    def env(self, num_envs: int, seed: int, device: torch.device) -> Environment:
        """Return environments to train in."""
        raise NotImplementedError

    def score(self, policy: Policy) -> Score:
        """Judge a policy; the same policy must get the same score every time. Training must not see what is judged on."""
        raise NotImplementedError

    def table(self, device: torch.device) -> Table | None:
        """Return the rows that environments share; None if there are none."""
        return None

    def policy(self, settings: Mapping[str, Any], generator: torch.Generator | None = None) -> Policy:
        """Return an untrained policy for an agent of these `settings`, with weights drawn from the generator."""
        sizes = {name: settings[name] for name in ("hidden", "log_std_init") if name in settings}
        return DensePolicy(DenseSpec(inputs=self.num_inputs, actions=self.num_actions, **sizes), generator)

    def for_agent(self, settings: Mapping[str, Any]) -> Task:
        """Return the task as an agent of these settings sees it in training. It is judged alike for all."""
        return self

    def space(self) -> Space:
        """Return what the search may vary."""
        return Space(start={"hidden": 64}, choices={"hidden": (32, 64, 128)})

    def defaults(self, learner: str) -> dict[str, Any]:
        """Return settings of a learner that suit the task, where they differ from the learner's own."""
        return {}

    def baseline(self) -> Array | None:
        """Return [n] returns of a policy without skill. Agents are compared by what their returns add to it."""
        return None

    def spec(self) -> dict[str, Any]:
        """Return plain values that travel with an agent, beside the name of the task."""
        return {}

    def header(self) -> dict[str, Any]:
        """Return entries of the log. A run is resumed only if its entry 'task' is equal; others are for the reader."""
        return {"task": {"task": self.name, **self.spec()}}

    def to_shared(self) -> Any:
        """Return what processes on other machines need, with its arrays outside of any pickle so that they are not copied."""
        return dumps_by_value(self)

    @classmethod
    def from_shared(cls, shared: Any, device: torch.device) -> Task:
        """Return the task that `to_shared` took apart."""
        task: Task = pickle.loads(shared)
        return task


def require_task(task: Any) -> Any:
    """Return a task. Raises InputError that names what it lacks."""
    if isinstance(task, type):
        raise InputError(
            f"{task.__name__} is a class; give an instance of it, such as {task.__name__}()", argument="task"
        )
    kind = type(task).__name__
    for name in NEEDED:
        if not hasattr(task, name) or getattr(type(task), name, None) is getattr(Task, name, object()):
            raise InputError(
                f"{kind} is no task that can be trained: it lacks {name}; see finpod.rl.task.Task", argument="task"
            )
    if missing := [name for name in vars(Task) if not (name.startswith("_") or hasattr(task, name))]:
        raise InputError(
            f"{kind} is no task that can be trained: it lacks {missing[0]}; subclass finpod.rl.task.Task",
            argument="task",
        )
    return task


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value
