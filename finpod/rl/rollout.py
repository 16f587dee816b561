"""`Rollout`: H steps of E environments. `collect` records a rollout, and `gae` computes its advantages."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from finpod.errors import InputError
from finpod.rl.policy import Policy, log_prob
from finpod.rl.task import Environment, Step, Table


class Rollout(NamedTuple):
    """H steps of E environments; the first axis is time. Environment e is in group e // M. At each step, the M
    environments of a group observe the same table row."""

    row: Tensor | None
    """[H, E] int64 table row of each observation. None: the task has no table."""
    state: Tensor
    """[H, E, S] float32 observed states."""
    action: Tensor
    """[H, E, A] float32 actions."""
    log_prob: Tensor
    """[H, E, A] log density of each action dimension. The log density of an action is the sum over the dimensions that
    `Policy.acting` marks."""
    value: Tensor
    """[H, E] critic's value of the state before the step."""
    reward: Tensor
    """[H, E] rewards."""
    next_value: Tensor
    """[H, E] critic's value of the state after the step, before any reset."""
    terminated: Tensor
    """[H, E] bool mask of episodes that ended in a final state."""
    truncated: Tensor
    """[H, E] bool mask of episodes that were cut off."""


def encode_rows(policy: Policy, table: Table | None, row: Tensor | None) -> Any:
    """Return the policy's encoder output for the table rows with numbers `row` [...]; None without a table.

    Raises InputError if the task has a table and the observations have no row.
    """
    if table is None:
        return None
    if row is None:
        raise InputError("the task has a table, but an observation names no row of it; return Observation(state, row)")
    around = () if table.anchor is None else (table.anchor[row],)
    return policy.encode(table.values[row], table.among[row], *around)


def of_groups(row: Tensor | None, groups: int) -> Tensor | None:
    """Return the rows [..., G] of G groups, given the rows [..., E] of their environments; None without rows."""
    return None if row is None else row.unflatten(-1, (groups, -1))[..., 0]


@torch.no_grad()
def collect(env: Environment, policy: Policy, table: Table | None, steps: int, generator: torch.Generator) -> Rollout:
    """Return a rollout of `steps` steps from the current state of `env`. A table row is encoded once for a whole group.

    Raises InputError for an action, reward or observation that is not finite, and for wrong shapes.
    """
    groups = env.num_envs if table is None else env.groups
    obs = env.observe()
    shape, parts = obs.state.shape, list[Any]()
    for number in range(steps):
        state = obs.state.clone().float()  # an environment may write its next state into the same memory
        code = encode_rows(policy, table, of_groups(obs.row, groups))
        mean, value = policy(code, state.unflatten(0, (groups, -1)))
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        action = mean + policy.log_std.exp() * noise
        density = log_prob(action, mean, policy.log_std)
        step = env.step(action.flatten(0, 1))
        _require_shapes(step, shape, number)
        parts.append((
            obs.row, state, action.flatten(0, 1), density.flatten(0, 1), value.flatten(), step.reward.clone().float(),
            step.terminated.clone(), step.truncated.clone(), step.final_obs.row, step.final_obs.state.clone().float(),
        ))  # fmt: skip
        obs = step.obs
    env.check()
    columns: list[Any] = [None if part[0] is None else torch.stack(part) for part in zip(*parts, strict=True)]
    row, state, action, density, value, reward, terminated, truncated, final_row, final = columns
    _require_finite(reward, state, final)
    final_code = encode_rows(policy, table, of_groups(final_row, groups))
    next_value = policy(final_code, final.unflatten(1, (groups, -1)))[1].flatten(1)
    return Rollout(row, state, action, density, value, reward, next_value, terminated, truncated)


def gae(rollout: Rollout, gamma: float, gae_lambda: float) -> Tensor:
    """Return the generalised advantage estimates [H, E] (Schulman et al. 2016).

    A_t = delta_t + gamma lambda A_{t+1}, where the second term is 0 at the end of an episode, and
    delta_t = r_t + gamma V(s_{t+1}) - V(s_t). s_{t+1} is the state before any reset. Its value counts as 0 only if the
    episode terminated, not if it was truncated (Pardo et al. 2018).
    """
    delta = rollout.reward + gamma * rollout.next_value * ~rollout.terminated - rollout.value
    decay = gamma * gae_lambda * ~(rollout.terminated | rollout.truncated)
    advantages = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        following = delta[t] + decay[t] * following
        advantages[t] = following
    return advantages


def _require_shapes(step: Step, shape: torch.Size, number: int) -> None:
    """Raise InputError if observations do not have `shape` [E, S], or rewards and ends do not have shape [E]."""
    shapes = {"obs": step.obs.state.shape, "final_obs": step.final_obs.state.shape}
    shapes |= {name: getattr(step, name).shape for name in ("reward", "terminated", "truncated")}
    for name, actual in shapes.items():
        expected = shape if name.endswith("obs") else shape[:1]
        if actual != expected:
            raise InputError(f"{name} of step {number} has shape {tuple(actual)}; the shape must be {tuple(expected)}")


def _require_finite(reward: Tensor, state: Tensor, final: Tensor) -> None:
    """Raise InputError for a reward or state that is not finite. If all are finite, the device is read once."""
    if (reward.sum() + state.sum() + final.sum()).isfinite():
        return
    for name, values in (("reward", reward), ("observation", state.flatten(2)), ("final_obs", final.flatten(2))):
        bad = (~values.isfinite()).nonzero()
        if len(bad):
            place = tuple(bad[0].tolist())
            value = f"the {name} of environment {place[1]} at step {place[0]} of a rollout is {values[place].item()}"
            raise InputError(f"{value}; an environment must return finite numbers")
