"""Reinforcement learning: policies, rollouts and learners, for any task."""

from typing import Any, Protocol

from torch import Tensor

from finpod.rl.apg import APG
from finpod.rl.policy import Policy
from finpod.rl.ppo import PPO
from finpod.rl.task import Table


class Learner(Protocol):
    """Updates a policy. It is made from a policy, a table or None, the number of groups of environments, a config and a
    generator."""

    Config: Any
    """Frozen dataclass of its settings, with `num_steps`, the steps of each environment between two updates. A field `network`
    is passed on to the task, which builds the policy."""
    bounds: Any
    """Settings that a search may vary: name -> lowest and highest value."""
    needs_gradient: bool
    """Whether it needs differentiable environments. If so, it has no use for environments that share rows."""
    updates: int
    """Updates so far."""

    def __init__(self, policy: Policy, table: Table | None, groups: int, config: Any, generator: Any) -> None: ...

    def collect(self, env: Any) -> Any:
        """Return the batch for the next update."""

    def update(self, batch: Any, /, progress: float = 0.0) -> dict[str, Tensor]:
        """Update the policy; return figures as device tensors."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""


LEARNERS: dict[str, type[Learner]] = {"ppo": PPO, "apg": APG}
"""Name -> learner."""
