"""Protocols through which learners and tournaments see a task, so that they need not know which one it is."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from finpod.envs.step import Observation, Step

__all__ = ["Environment", "Observation", "Step", "Table"]


class Table(NamedTuple):
    """Rows that all environments of a task share. An observation names the row that it may read."""

    values: Tensor
    """[T, N, F] float32: F features of N entries, such as stocks, on T rows, such as days."""
    among: Tensor
    """[T, N] bool: entries that a decision on this row may use."""


class Environment(Protocol):
    """E environments stepped together. Episodes that end begin again within the same step."""

    num_envs: int
    """E."""
    groups: int
    """Groups of E / groups environments each that share their row. Read only if the task has a table."""
    device: torch.device
    """Where its tensors are."""
    differentiable: bool
    """Whether `step(action, grad=True)` returns rewards with a gradient."""

    def reset(self, seed: int | None = None) -> Observation:
        """Begin all episodes. A seed makes these and all later episodes repeatable."""

    def observe(self) -> Observation:
        """Return the observations as they are now."""

    def step(self, action: Tensor) -> Step:
        """Apply actions [E, A]."""

    def check(self) -> None:
        """Raise InputError that names the first bad action since the last check. Called once a rollout."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values from which `load_state_dict` continues exactly."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of the same configuration."""
