"""Evaluation: mean actions of a policy, and its returns in whole episodes."""

from typing import NamedTuple

import torch
from torch import Tensor

from finpod.errors import InputError
from finpod.rl.policy import Policy
from finpod.rl.rollout import encode_rows, of_groups
from finpod.rl.task import Environment, Observation, Table

LONGEST = 100_000
"""Largest number of steps of an episode."""


@torch.no_grad()
def mean_action(policy: Policy, obs: Observation, table: Table | None = None, groups: int | None = None) -> Tensor:
    """Return the policy's mean actions [E, A] for E observations. `groups` is the number of groups of environments; the
    environments of a group share a table row. None: each environment is a group of its own."""
    count = len(obs.state) if table is None or groups is None else groups
    code = encode_rows(policy, table, of_groups(obs.row, count))
    mean, _ = policy(code, obs.state.float().unflatten(0, (count, -1)))
    return mean.flatten(0, 1)


class Episodes(NamedTuple):
    """Returns and lengths of one episode of each of E environments."""

    returns: Tensor  # [E] float64 sums of the rewards
    lengths: Tensor  # [E] int64 numbers of steps


def episodes(env: Environment, policy: Policy, table: Table | None = None) -> Episodes:
    """Return the sum of rewards and the number of steps of one episode of each environment.

    Episodes begin in the current states. The actions are the policy's mean actions. Raises InputError for an action
    that is not finite, and for an episode of more than `LONGEST` steps.
    """
    obs = env.observe()
    running = torch.ones(env.num_envs, dtype=torch.bool, device=obs.state.device)
    total, length = torch.zeros_like(running, dtype=torch.float64), torch.zeros_like(running, dtype=torch.int64)
    for _ in range(LONGEST):
        step = env.step(mean_action(policy, obs, table, env.groups))
        total += torch.where(running, step.reward.double(), 0.0)
        length += running
        running = running & ~(step.terminated | step.truncated)
        if not running.any():
            env.check()
            return Episodes(total, length)
        obs = step.obs
    raise InputError(f"an episode has not ended after {LONGEST:,} steps; let the environment end episodes earlier")
