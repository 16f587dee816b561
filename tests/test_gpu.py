"""The same code on CUDA: environments, updates and a training. Run with `pytest -m gpu` where there is a GPU."""

import pytest
import torch
from made_agents import tiny_train

from finpod.envs.market_env import MarketEnv, TradingConfig
from finpod.features.panel import build_panel
from finpod.rl.policy import MarketPolicy, PolicySpec
from finpod.rl.ppo import PPO, PPOConfig
from finpod.rl.task import Table
from finpod.synthetic import simulate_market
from finpod.trading.execution import build_execution

pytestmark = pytest.mark.gpu

CONFIG = TradingConfig(num_envs=64, start_groups=8, hold=2, horizon=10)


@pytest.fixture(scope="module")
def market():
    return simulate_market(names=12, days=400, signal=0.1, seed=0)


@pytest.fixture(autouse=True)
def _needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.fail("no CUDA device: these tests run with -m gpu on a machine that has one")


def test_accounts_fare_the_same_on_both_devices(market):
    envs = [MarketEnv(build_execution(market, device=device), 0, 399, CONFIG, seed=3) for device in ("cpu", "cuda")]
    for action in torch.randn(25, 64, 12, generator=torch.Generator().manual_seed(0)):
        here, there = (env.step(action.to(env.device)) for env in envs)
        assert torch.equal(here.obs.row, there.obs.row.cpu())
        torch.testing.assert_close(there.reward.cpu(), here.reward, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(there.obs.state.cpu(), here.obs.state, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(envs[1].equity.cpu(), envs[0].equity, rtol=1e-9, atol=1e-3)


def test_step_and_update_do_not_wait_for_the_device(market):
    panel = build_panel(market, fit=(252, 400), device="cuda")
    env = MarketEnv(build_execution(market, device="cuda"), 0, 399, CONFIG)
    policy = MarketPolicy(PolicySpec(features=len(panel.names))).cuda()
    table = Table(panel.features, panel.among)
    learner = PPO(policy, table, CONFIG.groups, PPOConfig(num_steps=4), torch.Generator("cuda").manual_seed(0))
    rollout = learner.collect(env)
    learner.update(rollout)  # the first call sets up the optimiser
    torch.cuda.set_sync_debug_mode("error")
    try:
        action = torch.zeros(64, 12, device="cuda")
        env.step(action)
        learner.update(rollout)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("unaudited")
@pytest.mark.parametrize("learner", ["ppo", "apg"])
def test_agents_are_trained_and_scored_on_the_device(market, tmp_path, learner):
    ensemble = tiny_train(market, tmp_path / learner, learner=learner, config=None, device="cuda")
    assert all(torch.isfinite(torch.tensor(ensemble.scores)))
