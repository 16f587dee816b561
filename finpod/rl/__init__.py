"""Reinforcement learning: policies, rollouts and learners, for any task."""

from finpod.rl.apg import APG
from finpod.rl.ppo import PPO

LEARNERS: dict[str, type[PPO] | type[APG]] = {"ppo": PPO, "apg": APG}
"""Name -> class of a learner, an algorithm that trains a policy. A learner has the members that `PPO` and `APG` share.

`Config` is the class of its settings, a frozen dataclass. `num_steps` is the number of steps of each environment between two
updates. The task, which builds the policy, receives `network` if the class has this field. `bounds` maps the settings that a
search may vary to their lowest and highest value. `needs_gradient` is True if the learner needs differentiable environments;
each of them then has its own row of the table. `update(collect(env), progress)` trains the policy and returns statistics as
device tensors; `updates` counts them. `state_dict` and `load_state_dict` store and restore the state for a checkpoint.
"""
