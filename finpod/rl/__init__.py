"""Learning: policies, rollouts and learners, for any task."""

from typing import Any, Protocol

from torch import Tensor

from finpod.rl.apg import APG
from finpod.rl.policy import Policy
from finpod.rl.ppo import PPO
from finpod.rl.task import Table


class Learner(Protocol):
    """What changes a policy. It is made of a policy, a table or None, the groups of environments that share its rows, a
    config and a generator."""

    Config: Any
    """A frozen dataclass of its settings, with `num_steps`, the steps of each environment between two updates. If it has
    `network`, this names the network of the policy to tasks that know it."""
    bounds: Any
    """How far a search may move these settings: name -> lowest and highest."""
    needs_gradient: bool
    """Whether it learns from environments with a gradient alone. If so, it has no use for environments that share rows."""
    updates: int
    """Number of updates so far."""

    def __init__(self, policy: Policy, table: Table | None, groups: int, config: Any, generator: Any) -> None: ...

    def collect(self, env: Any) -> Any:
        """Return what the next update learns from."""

    def update(self, batch: Any, /, progress: float = 0.0) -> dict[str, Tensor]:
        """Update the policy; return figures that are not read yet."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` goes on from."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""


LEARNERS: dict[str, type[Learner]] = {"ppo": PPO, "apg": APG}
"""Name -> learner."""
