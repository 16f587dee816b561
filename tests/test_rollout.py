"""Rollouts and their advantages."""

import pytest
import torch
from made_agents import Counter, noise, row_table
from made_markets import random_market

from finpod.envs.market_env import MarketEnv, TradingConfig
from finpod.rl.policy import PolicySpec
from finpod.rl.policy import log_prob as density
from finpod.rl.rollout import Rollout, collect, gae
from finpod.trading.execution import build_execution

HOLD = 2
MARKET = random_market(60, 4, gaps=0)


def made(*, kind=Counter, fill="open", horizon=5):
    """An environment of 12 accounts in 3 groups, a policy that values a state by its row, and the table."""
    config = TradingConfig(num_envs=12, start_groups=3, hold=HOLD, horizon=horizon)
    env = MarketEnv(build_execution(MARKET, fill), 10, 55, config)
    return env, kind(PolicySpec(features=1)), row_table(MARKET)


def test_a_rollout_is_time_major_and_identifiable():
    env, policy, table = made()
    first = env.observe()
    rollout = collect(env, policy, table, 7, noise())
    shapes = {name: tuple(getattr(rollout, name).shape) for name in rollout._fields}
    plain = dict.fromkeys(("row", "value", "reward", "next_value", "terminated", "truncated"), (7, 12))
    assert shapes == {**plain, "state": (7, 12, 5), "action": (7, 12, 4), "log_prob": (7, 12, 4)}
    assert torch.equal(rollout.row[0], first.row)
    assert torch.equal(rollout.state[0], first.state)
    torch.testing.assert_close(rollout.value, rollout.row.float())
    went_on = ~rollout.truncated[:-1]
    assert torch.equal(rollout.row[1:][went_on], rollout.row[:-1][went_on] + HOLD)
    torch.testing.assert_close(rollout.state.sum(-1), torch.ones(7, 12))
    assert not rollout.value.requires_grad


def test_c11_the_bootstrap_is_the_value_of_where_the_step_led_not_of_the_new_beginning(fill):
    """The policy values a state by its row. Episodes of three steps."""
    rollout = collect(*made(fill=fill, horizon=3), 9, noise())
    torch.testing.assert_close(rollout.next_value, rollout.row + float(HOLD))
    assert not rollout.terminated.any()
    assert torch.equal(rollout.truncated, (torch.arange(9) % 3 == 2)[:, None].expand(9, 12))
    assert (rollout.row[[3, 6]] != rollout.row[[2, 5]] + HOLD).any()  # they did begin anew


def test_actions_are_the_policys_and_so_is_their_density():
    env, policy, table = made()
    rollout = collect(env, policy, table, 2, noise(5))
    expected = torch.randn(3, 4, 4, generator=noise(5)) * policy.log_std.exp()  # the mean of an untrained policy is 0
    torch.testing.assert_close(rollout.action[0], expected.flatten(0, 1).detach())
    density_of = density(rollout.action, torch.zeros_like(rollout.action), policy.log_std)
    torch.testing.assert_close(rollout.log_prob, density_of.detach())


def steps(reward, value, next_value, terminated, truncated):
    """A rollout of these alone."""
    none = torch.empty(0)
    return Rollout(None, none, none, none, value, reward, next_value, terminated, truncated)


def test_gae_by_hand():
    """Values are 1, gamma and lambda 0.5; deltas are rewards - 0.5. The second environment is cut off after its first step."""
    ones, never = torch.ones(3, 2), torch.zeros(3, 2, dtype=torch.bool)
    cut = never.clone()
    cut[0, 1] = True
    reward = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    expected = [[0.5 + 0.25 * 2.375, 0.5], [1.5 + 0.25 * 3.5, 2.375], [3.5, 3.5]]
    assert gae(steps(reward, ones, ones, never, cut), 0.5, 0.5).tolist() == expected


@pytest.mark.parametrize(("terminated", "truncated", "target"), [(0, 1, 10.9), (1, 0, 1.0), (1, 1, 1.0), (0, 0, 10.9)])
def test_c10_the_future_counts_unless_the_episode_terminated(terminated, truncated, target):
    figures = (torch.tensor([[number]]) for number in (1.0, 3.0, 10.0, terminated == 1, truncated == 1))
    assert (gae(steps(*figures), 0.99, 0.9) + 3.0).item() == pytest.approx(target)
