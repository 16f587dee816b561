"""Reinforcement learning: policies, rollouts and learners, for any task."""

from typing import Any, ClassVar, Protocol

from torch import Tensor

from finpod.rl.apg import APG
from finpod.rl.policy import Policy
from finpod.rl.ppo import PPO
from finpod.rl.task import Table


class Learner(Protocol):
    """Algorithm that trains a policy. `table` is the shared table of the task, `groups` the number of groups of environments."""

    Config: Any
    """Frozen dataclass with the learner's settings. Its field `num_steps` is the number of steps of each environment between
    two updates. If it has a field `network`, the task builds the policy with that network."""
    bounds: ClassVar[Any]
    """Settings that a search may vary: name -> lowest and highest value."""
    needs_gradient: bool
    """True if the learner needs differentiable environments. By default, each environment then has its own table row."""
    updates: int
    """Number of updates so far."""

    def __init__(self, policy: Policy, table: Table | None, groups: int, config: Any, generator: Any) -> None: ...

    def collect(self, env: Any) -> Any:
        """Return the batch for the next update."""

    def update(self, batch: Any, /, progress: float = 0.0) -> dict[str, Tensor]:
        """Update the policy; return statistics of the update as device tensors."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint."""


LEARNERS: dict[str, type[Learner]] = {"ppo": PPO, "apg": APG}
"""Name -> class of the learner."""
