"""`Rollout`: what E accounts did over H steps, time-major, and how it is collected."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from finpod.envs.market import MarketEnv, Observation
from finpod.market.features import Panel
from finpod.rl.policy import Code, MarketPolicy, log_prob


class Rollout(NamedTuple):
    """Time-major; the accounts e of a group e // M share their rows."""

    row: Tensor
    """[H, E] int64, table row of each observation."""
    state: Tensor
    """[H, E, S] float32."""
    action: Tensor
    """[H, E, A] float32."""
    log_prob: Tensor
    """[H, E, A] of each dimension; dimensions do not depend on each other, the whole is the sum over those that act."""
    value: Tensor
    """[H, E]."""
    reward: Tensor
    """[H, E]."""
    next_value: Tensor
    """[H, E] value of the state the step led to, before any new beginning."""
    terminated: Tensor
    """[H, E] bool."""
    truncated: Tensor
    """[H, E] bool."""
    policy_version: int
    """Number of updates the acting policy had seen."""


def encode_rows(policy: MarketPolicy, panel: Panel, row: Tensor) -> Code:
    """Code of the days `row` [...]."""
    return policy.encode(panel.features[row], panel.member[row] & panel.tradable[row])


@torch.no_grad()
def collect(
    env: MarketEnv, policy: MarketPolicy, panel: Panel, steps: int, generator: torch.Generator, version: int = 0
) -> Rollout:
    """Act for `steps` steps from where the environment stands; the encoder reads each group's day once.

    Raises InputError if an action was not finite.
    """
    shape = (env.config.groups, -1)
    obs, records, finals = env.observe(), [], []
    for _ in range(steps):
        code = encode_rows(policy, panel, obs.row.view(shape)[:, 0])
        mean, value = policy(code, obs.state.unflatten(0, shape))
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        action = mean + policy.log_std.exp() * noise
        chance = log_prob(action, mean, policy.log_std)
        step = env.step(action.flatten(0, 1))
        records.append(
            (
                obs.row,
                obs.state,
                action.flatten(0, 1),
                chance.flatten(0, 1),
                value.flatten(),
                step.reward,
                step.terminated,
                step.truncated,
            )
        )
        finals.append(step.final_obs)
        obs = step.obs
    env.check()
    row, state, action, chance, value, reward, terminated, truncated = (
        torch.stack(x) for x in zip(*records, strict=True)
    )
    next_value = _values(
        policy, panel, Observation(*(torch.stack(x) for x in zip(*finals, strict=True))), env.config.groups
    )
    return Rollout(row, state, action, chance, value, reward, next_value, terminated, truncated, version)


def _values(policy: MarketPolicy, panel: Panel, obs: Observation, groups: int) -> Tensor:
    """[H, E] values of observations [H, E]."""
    code = encode_rows(policy, panel, obs.row.unflatten(1, (groups, -1))[:, :, 0])
    return policy(code, obs.state.unflatten(1, (groups, -1)))[1].flatten(1)
