"""`MarketEnv`: parity with the backtest, and the cases of the trading environment."""

import math

import numpy as np
import pytest
import torch
from made_errors import refused
from made_markets import flat_market, make_market, random_market

from finpod import CheckpointError, Costs, simulate_market
from finpod.envs.actions import CHOICES, TradingConfig, account_state, target_weights
from finpod.envs.market_env import MarketEnv
from finpod.trading.execution import build_execution
from finpod.trading.simulate import simulate

FREE = Costs(fee_bps=0)
DAYS, NAMES = 90, 7


pytestmark = pytest.mark.usefixtures("one_thread")


def make_env(market, *, fill="open", first=0, last=None, seed=0, costs=FREE, **settings) -> MarketEnv:
    settings = {"num_envs": 1, "hold": 1, "horizon": None, "random_start": False, "costs": costs, **settings}
    last = len(market.dates) - 1 if last is None else last
    return MarketEnv(build_execution(market, fill), first, last, TradingConfig(**settings), seed)


def account_path(env: MarketEnv, start: int, actions: torch.Tensor):
    """What `simulate` makes of one account's actions [K, A] from row `start`, and what it saw [K, N + 1] at each."""
    config, execution, sights = env.config, env.execution, []

    def decide(step, row, seen):
        if step % config.hold or step // config.hold >= len(actions):
            return None
        sights.append(account_state(seen, execution.mark[row]))
        return target_weights(actions[step // config.hold], env.execution.among[row], config.action, config.tilt)

    return simulate(execution, start, start + config.hold * len(actions), decide, config), torch.stack(sights)


def assert_same_path(env: MarketEnv, generator: torch.Generator) -> None:
    """Play episodes to the end of the data, and each account again through `simulate`: equal to the last bit."""
    accounts, hold, lag = env.num_envs, env.config.hold, env.execution.lag
    obs = env.observe()
    start = obs.row + lag
    alive = torch.ones(accounts, dtype=torch.bool)
    equity, shares, states, rewards, actions, steps = [], [], [], [], [], torch.zeros(accounts, dtype=torch.int64)
    while alive.any():
        action = torch.randn(accounts, env.num_actions, generator=generator)
        states.append(obs.state)
        obs, reward, terminated, truncated, _ = env.step(action)
        assert not terminated.any()
        assert torch.equal(env.observe().state, obs.state)
        steps += alive
        alive = alive & ~truncated
        equity.append(env.equity.flatten())
        shares.append(env.account.shares.flatten(0, 1))
        rewards.append(reward)
        actions.append(action)
    assert steps.min() > 1
    equity, shares, states, rewards, actions = (torch.stack(x, 1) for x in (equity, shares, states, rewards, actions))
    for e, count in enumerate(steps.tolist()):
        path, sights = account_path(env, int(start[e]), actions[e, :count])
        marks = path.equity[::hold]
        assert torch.equal(states[e, :count], sights)
        assert torch.equal(equity[e, : count - 1], marks[1:-1])
        assert torch.equal(shares[e, : count - 1], path.shares[::hold][1:-1])
        assert torch.equal(rewards[e, :count], (marks[1:] / marks[:-1]).log().float())


@pytest.mark.parametrize("terms", [
    {},
    {"whole_shares": True, "costs": Costs(fee_bps=5, slippage_bps=7, per_share=0.01), "delisting_return": -0.4},
    {"action": "softmax", "costs": Costs(fee_bps=20), "delisting_return": -1.0},
], ids=["free", "whole", "softmax"])  # fmt: skip
@pytest.mark.parametrize("groups", [None, 3])
@pytest.mark.parametrize("hold", [1, 5])
def test_environment_and_backtest_agree_to_the_last_bit(fill, hold, groups, terms):
    settings = {"num_envs": 6, "start_groups": groups, "hold": hold, "random_start": True, "horizon": None} | terms
    env = make_env(random_market(DAYS, NAMES), fill=fill, last=DAYS - 3, seed=3, **settings)
    env._days = env._days.clamp(max=40)  # all live through the delisting of row 45
    env.load_state_dict(env.state_dict())
    assert_same_path(env, torch.Generator().manual_seed(1))


def test_c09_four_rows_are_three_steps():
    env = make_env(make_market([10, 11, 12.1, 10.89], open=[10, 10, 11, 12.1]), cash=1000.0)
    assert env.observe().row.item() == 0
    steps = [env.step(torch.zeros(1, 1)) for _ in range(3)]
    rewards = torch.cat([step.reward for step in steps])
    assert rewards.tolist() == pytest.approx([math.log(1.1), math.log(1.1), math.log(0.9)], rel=1e-6)
    assert 1000 * rewards.sum().exp().item() == pytest.approx(1089, rel=1e-6)
    assert [step.truncated.item() for step in steps] == [False, False, True]
    assert [step.obs.row.item() for step in steps] == [1, 2, 0]
    assert steps[-1].final_obs.row.item() == 3


def test_c10_ruin_terminates_also_at_the_end_of_data_and_begins_again(fill):
    """All of A's holders lose everything when it leaves the exchange; those in cash or in B live on."""
    close, opens = ([[10, 10], [10, 10], [np.nan, b], [np.nan, b + 1]] for b in (11, 10))
    settings = {"num_envs": 3, "start_groups": 1, "action": "softmax", "delisting_return": -1.0}
    actions = 100 * torch.eye(3) - 50  # all in A, all in B, all in cash

    def last_step(**changes):
        env = make_env(make_market(close, open=opens), fill=fill, **settings, **changes)
        if fill == "open":
            env.step(actions)
        return env, env.step(actions)

    env, step = last_step(horizon=9)
    assert step.terminated.tolist() == [True, False, False]
    assert not step.truncated.any()
    assert step.reward.tolist() == pytest.approx([math.log(1e-12), math.log(1.1), 0], rel=1e-6)
    assert env.equity.tolist() == [[1e6, 1.1e6, 1e6]]
    assert env.account.shares[0, 0].tolist() == [0, 0]
    assert step.obs.state[0].tolist() == [0, 0, 1]
    assert torch.equal(step.obs.row, step.final_obs.row), "the group's day goes on"
    assert torch.equal(env.observe().state, step.obs.state)
    _, step = last_step(last=2)
    assert step.terminated.tolist() == [True, False, False]
    assert step.truncated.tolist() == [False, True, True]


def test_c14_start_days_come_from_the_seed_and_groups_share_them():
    market = simulate_market(names=2, days=500)

    def rows(seed):
        """Rows [6, groups] at the starts of six episodes of two steps."""
        env = make_env(market, num_envs=12, start_groups=3, horizon=2, random_start=True)
        seen = [env.reset(seed).row, *(env.step(torch.zeros(12, 2)).obs.row for _ in range(10))]
        starts = torch.stack(seen)[::2].view(6, 3, 4)
        assert (starts == starts[..., :1]).all()
        return starts[..., 0]

    first = rows(7)
    assert torch.equal(first, rows(7))
    assert not torch.equal(first, rows(8))
    assert len(set(first[0].tolist())) == 3
    assert len({tuple(row) for row in first.tolist()}) == 6, "a new episode begins on other days"


def test_softmax_holds_cash_too():
    among = torch.tensor([True, False, True])
    assert target_weights(torch.zeros(4), among, "softmax").tolist() == pytest.approx([1 / 3, 0, 1 / 3])
    assert target_weights(torch.tensor([0.0, 0, 0, 1e9]), among, "softmax").tolist() == [0, 0, 0]
    assert target_weights(torch.tensor([1e30, 0, 0, -1e30]), among, "softmax").tolist() == [1, 0, 0]
    assert target_weights(torch.zeros(4), ~among & among, "softmax").sum() == 0
    env = make_env(flat_market(1, 1, 1), action="softmax")
    assert env.num_actions == 4
    assert env.step(torch.zeros(1, 4)).obs.state.tolist() == [[0.25] * 4]


def test_orders_need_a_bar_at_the_decision_as_in_scoring():
    prices = np.array([[10, np.nan], [10, 10], [10, 10], [10, 10]])
    env = make_env(make_market(close=prices, open=prices), action="shares")
    for held in ([100, 0], [200, 100]):
        env.step(torch.ones(1, 2))
        assert env.account.shares.tolist() == [[held]]


def test_hmax_counts_shares_as_traded():
    """At a quarter of the traded price, an order of 8 shares as traded is one of 32 adjusted."""
    market = flat_market(25, 25, days=3, factor=[[1, 0.5], [1, 0.25], [1, 0.125]])
    env = make_env(market, action="shares", hmax=8)
    env.step(torch.tensor([[0.5, 2.0]]))
    assert env.account.shares.tolist() == [[[4, 32]]]
    whole = make_env(market, action="shares", hmax=8, whole_shares=True)
    whole.step(torch.tensor([[0.2, 0.2]]))
    assert whole.account.shares.tolist() == [[[1, 4]]]


def test_c18_huge_actions_are_bounded():
    market = simulate_market(names=101, days=40)
    for action in CHOICES["action"]:
        env = make_env(market, action=action, num_envs=2, costs=Costs())
        for size in (1e9, -1e9, 3e38):
            step = env.step(torch.full((2, env.num_actions), size))
            assert step.reward.isfinite().all()
            assert step.obs.state.sum(-1).tolist() == pytest.approx([1, 1], rel=1e-6)
            assert step.obs.state.min() >= 0
        env.check()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_c18_a_bad_action_trades_nothing_and_is_named(bad):
    market = simulate_market(names=3, days=40)
    env = make_env(market, num_envs=6, start_groups=2, costs=Costs())
    env.step(torch.zeros(6, 3))
    before, action = env.account.shares, torch.ones(6, 3)
    action[4, 1] = bad
    step = env.step(action)
    assert torch.equal(env.account.shares[1, 1], before[1, 1])
    assert step.reward.isfinite().all()
    env.step(torch.full((6, 3), math.nan))
    refused(r"environment 4 at step 1 .*column 1", env.check)
    env.check()


@pytest.mark.parametrize(("settings", "rewards"), [
    ({}, [0.0953102, -0.1053605]), ({"reward_scale": 10.0}, [0.953102, -1.053605]),
    ({"reward": "value", "reward_scale": 0.5}, [50, -55]),
])  # fmt: skip
def test_c19_rewards_are_log_returns_or_changes_of_value_times_their_scale(settings, rewards):
    env = make_env(make_market([10, 11, 9.9], open=[10, 10, 11]), cash=1000.0, **settings)
    paid = [env.step(torch.zeros(1, 1)).reward.item() for _ in range(2)]
    assert paid == pytest.approx(rewards, rel=1e-6)
    assert settings or sum(paid) == pytest.approx(math.log(0.99), rel=1e-5)


def test_a_stored_state_goes_on_as_if_nothing_had_happened(fill, tmp_path):
    settings = {"num_envs": 6, "start_groups": 3, "hold": 2, "horizon": 4, "random_start": True, "costs": Costs()}
    env = make_env(random_market(DAYS, NAMES), fill=fill, seed=1, **settings)
    actions = torch.randn(20, 6, NAMES, generator=torch.Generator().manual_seed(2))
    for action in actions[:7]:
        env.step(action)
    torch.save(env.state_dict(), tmp_path / "env.pt")
    other = make_env(random_market(DAYS, NAMES), fill=fill, seed=9, **settings)
    other.load_state_dict(torch.load(tmp_path / "env.pt", weights_only=True))
    assert torch.equal(other.observe().state, env.observe().state)
    for action in actions[7:]:
        for a, b in zip(env.step(action), other.step(action), strict=True):
            assert all(map(torch.equal, a, b)) if isinstance(a, tuple) else torch.equal(a, b)
    alone = make_env(random_market(DAYS, NAMES))
    refused(r"shape \(3, 2, 7\)", alone.load_state_dict, env.state_dict(), error=CheckpointError)


@pytest.mark.slow
def test_compiled_steps_agree_to_a_millionth():
    execution = build_execution(random_market(DAYS, NAMES))
    config = TradingConfig(num_envs=8, start_groups=4, hold=2, horizon=10)
    eager, compiled = (MarketEnv(execution, 0, DAYS - 1, config, compile=c) for c in (False, True))
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        action = torch.randn(8, NAMES, generator=generator)
        ours, theirs = eager.step(action), compiled.step(action)
        torch.testing.assert_close(theirs.obs.state, ours.obs.state, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(theirs.reward, ours.reward, rtol=1e-6, atol=1e-6)
        assert torch.equal(theirs.obs.row, ours.obs.row)


def test_a_window_must_hold_one_step():
    refused("2 bars to trade, fewer than hold=3", make_env, make_market([1, 2, 3], open=[1, 2, 3]), hold=3)
    refused("0 bars", make_env, make_market([1, 2]), fill="close")
