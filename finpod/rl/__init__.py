"""Reinforcement learning: policies, rollouts and learners, for any task."""

from typing import Any, ClassVar, Protocol

from torch import Tensor

from finpod.rl.apg import APG
from finpod.rl.policy import Policy
from finpod.rl.ppo import PPO
from finpod.rl.task import Table


class Learner(Protocol):
    """Algorithm that trains a policy. `groups` is the number of groups of environments. Environments of a group share a
    row of `table`. If the task has no table, `table` is None and `groups` is the number of environments."""

    Config: Any
    """Frozen dataclass with the learner's settings. The field `num_steps` is the number of steps that each environment
    takes between two updates. The value of a field `network`, if there is one, is a setting for `Task.policy`."""
    bounds: ClassVar[Any]
    """Settings that the tournament may vary: name -> (lowest value, highest value)."""
    needs_gradient: bool
    """True if environments must be differentiable. By default, each stock account then starts on its own day."""
    updates: int
    """Number of updates so far."""

    def __init__(self, policy: Policy, table: Table | None, groups: int, config: Any, generator: Any) -> None: ...

    def collect(self, env: Any) -> Any:
        """Step the environments, and return the batch for the next `update`."""

    def update(self, batch: Any, /, progress: float = 0.0) -> dict[str, Tensor]:
        """Update the policy on a batch, and return statistics as tensors on the device. `progress` is the finished
        fraction of the training."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint."""


LEARNERS: dict[str, type[Learner]] = {"ppo": PPO, "apg": APG}
"""Name -> class of the learner."""
