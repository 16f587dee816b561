"""`Observation`, `Step` and `Returns`: what the environments of all tasks return, with or without a market."""

from typing import NamedTuple

from torch import Tensor


class Observation(NamedTuple):
    """Observations of E environments."""

    state: Tensor
    """[E, S] float32: the state of each environment, such as the weights of an account."""
    row: Tensor | None = None
    """[E] int64: number of the row of the task's `Table` that the policy reads. None: the task has no table."""


class Step(NamedTuple):
    """One step of E environments. Where an episode ended, `obs` is the first observation of the next episode."""

    obs: Observation
    """Observations after the step."""
    reward: Tensor
    """[E] float32 rewards."""
    terminated: Tensor
    """[E] bool mask of episodes that ended in a final state (zero equity, a fall, ...). Such a state has value 0."""
    truncated: Tensor
    """[E] bool mask of episodes cut off by a time limit or the end of the window. A critic estimates the value of the
    last state."""
    final_obs: Observation
    """Observations after the step and before any reset."""


class Returns(NamedTuple):
    """Returns of one step [E], or of each of K steps [K, E], float64. Gradients pass through `net` and `turnover`."""

    net: Tensor
    """Simple returns of the accounts, net of costs."""
    baseline: Tensor
    """Simple returns of the task's baseline."""
    turnover: Tensor
    """Notional traded in the step, divided by the equity before the step."""
