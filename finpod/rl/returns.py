"""Returns to go: generalised advantage estimation."""

from __future__ import annotations

import torch
from torch import Tensor


def one_step_target(reward: Tensor, next_value: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """r + gamma V(s'), without the future where the episode terminated; a truncated episode keeps it (Pardo et al. 2018)."""
    return reward + gamma * next_value * ~terminated


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Advantages [H, ...] (Schulman et al. 2016): A_t = delta_t + gamma lambda A_{t+1}, cut where an episode ends.

    delta_t = r_t + gamma V(s_{t+1}) - V(s_t), where s_{t+1} is the true next state, not the first of a new episode, and
    its value counts as 0 only if the episode terminated. All tensors are time-major [H, ...].
    """
    delta = one_step_target(reward, next_value, terminated, gamma) - value
    decay = gamma * gae_lambda * ~(terminated | truncated)
    advantages = torch.empty_like(delta)
    ahead = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        ahead = delta[t] + decay[t] * ahead
        advantages[t] = ahead
    return advantages
