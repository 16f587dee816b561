"""Observation and step: the types that every environment returns, whatever its task.

They have a module of their own because a task that has no market must not import one.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Observation(NamedTuple):
    """Observations of E environments."""

    state: Tensor
    """[E, S] float32: what belongs to one environment alone, such as the weights that an account holds."""
    row: Tensor | None = None
    """[E] int64: the last row of the task's shared table that may be read. None for a task without a table."""


class Step(NamedTuple):
    """One step of E environments. Episodes that ended have begun again in `obs`."""

    obs: Observation
    """Observations after the step, and after the reset of the episodes that ended."""
    reward: Tensor
    """[E] float32."""
    terminated: Tensor
    """[E] bool: the episode ended in a state that has no future, such as ruin or a fall."""
    truncated: Tensor
    """[E] bool: the episode was cut off, by a time limit or the end of the data, in a state that has a future."""
    final_obs: Observation
    """Observations after the step and before any reset."""


class GradientStep(NamedTuple):
    """A step through which gradients pass, and what it earned. Step and account carry the gradient on."""

    step: Step
    """The step."""
    net: Tensor
    """[E] float64: the simple return of the sessions held, net of costs."""
    baseline: Tensor
    """[E] float64: that of the policy without skill that the task compares with; no gradient passes through it."""
    turnover: Tensor
    """[E] float64: what was traded, as a share of the account before."""
