"""The same code on CUDA: environments, decisions and a training slice. Run with `pytest -m gpu` where there is a GPU.

Nobody has run the tests of locomotion at the end yet: there was no GPU when they were written.
"""

import pytest
import torch
from made_agents import train_slice
from made_physics import actions, both, require_close, step_both

from finpod.envs.locomotion import NAMES
from finpod.envs.locomotion.environment import make_locomotion
from finpod.envs.locomotion.specs import FULL
from finpod.envs.market_env import MarketEnv, TradingConfig
from finpod.features.panel import build_panel
from finpod.locomotion import LocomotionTask
from finpod.rl.checkpoint import Checkpoint
from finpod.rl.policy import MarketPolicy, PolicySpec
from finpod.rl.ppo import PPO, PPOConfig
from finpod.rl.task import Table
from finpod.synthetic import simulate_market
from finpod.tasks import StockTask
from finpod.tournament.leaderboard import Settings
from finpod.tournament.pod import judge
from finpod.tournament.setup import TournamentSetup
from finpod.trading.execution import build_execution
from finpod.trading.ledger import Costs

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
    for _ in range(25):
        action = torch.randn(64, 12)
        here, there = (env.step(action.to(env.device)) for env in envs)
        assert torch.equal(here.obs.row, there.obs.row.cpu())
        torch.testing.assert_close(there.reward.cpu(), here.reward, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(there.obs.state.cpu(), here.obs.state, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(envs[1].equity.cpu(), envs[0].equity, rtol=1e-9, atol=1e-3)


def test_step_and_update_do_not_wait_for_the_device(market):
    panel = build_panel(market, fit=(252, 400), device="cuda")
    env = MarketEnv(build_execution(market, device="cuda"), 0, 399, CONFIG)
    policy = MarketPolicy(PolicySpec(features=len(panel.names))).cuda()
    table = Table(panel.features, panel.member & panel.tradable)
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


def test_a_slice_trains_resumes_and_is_validated(market, tmp_path):
    task = StockTask(
        market=market,
        trading=TradingConfig(num_envs=64, start_groups=8, costs=Costs(fee_bps=0)),
        fill=None,
        features=None,
        train=(252, 340),
        validation=(341, 399),
        device="cuda",
    )
    settings = Settings(agent_id="a", seed=1, config=PPOConfig(num_steps=4))
    setup = TournamentSetup(task=task, num_envs=64, config=settings.config, device="cuda")
    first = train_slice(setup, settings, None, 512, 1024)
    first.save(tmp_path / "first.pt")
    second = train_slice(setup, settings, Checkpoint.load(tmp_path / "first.pt"), 1024, 1024)
    assert second.steps == 1024
    score = judge(setup, settings, second)
    assert len(score.returns) == 58
    assert score.metrics["days"] == 58


# --- locomotion on MuJoCo Warp ----------------------------------------------------------------------------------------------


@pytest.fixture
def warp():
    pytest.importorskip("mujoco")
    return pytest.importorskip("mujoco_warp", reason="mujoco-warp, the extra gpu, is not installed")


@pytest.mark.parametrize(
    ("name", "variant"), [(name, "standard") for name in NAMES] + [(name, "full") for name in FULL]
)
def test_physics_on_the_gpu_is_that_of_mujoco(warp, name, variant):
    require_close(*step_both(*both(name, variant, 32, "cuda")))


def test_a_reset_on_the_gpu_leaves_the_other_worlds_as_they_are(warp):
    env = make_locomotion("humanoid", 64, device="cuda")
    for action in actions(env, 5):
        env.step(action)
    physics = env.physics
    before = {name: value.clone() for name, value in physics.state.items() if name != "body_mass"}
    mask = torch.arange(64, device="cuda") % 3 == 0
    qpos, qvel = physics.initial_qpos.expand(64, -1) + 0.01, torch.full_like(physics.state["qvel"], 0.3)
    physics.reset(mask, qpos, qvel)
    assert all(torch.equal(physics.state[name][~mask], value[~mask]) for name, value in before.items())
    assert torch.equal(physics.state["qpos"][mask], qpos[mask])
    assert not physics.state["time"][mask].any()


def test_worlds_on_the_gpu_fail_alone_and_no_step_waits_for_the_device(warp):
    env = make_locomotion("ant", 64, device="cuda", seed=2)
    twin = make_locomotion("ant", 64, device="cuda", seed=2)
    drawn = actions(env, 4)
    env.physics.state["qvel"][5, 0] = float("nan")
    others = torch.arange(64, device="cuda") != 5
    torch.cuda.set_sync_debug_mode("error")
    try:
        (step, alone), *_ = [(env.step(action), twin.step(action)) for action in drawn]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert step.terminated[5]
    assert step.obs.state.isfinite().all()
    torch.testing.assert_close(step.obs.state[others], alone.obs.state[others], rtol=1e-4, atol=1e-4)
    assert (int(env.failures), int(twin.failures)) == (1, 0)


def test_agents_of_locomotion_train_and_are_judged(warp, monkeypatch):
    monkeypatch.setattr("finpod.envs.locomotion.environment.TIME_LIMIT", 20)
    task, config = LocomotionTask(name="halfcheetah", device="cuda"), PPOConfig(num_steps=4)
    settings = Settings(agent_id="a", seed=1, config=config, task=dict(task.space().start))
    setup = TournamentSetup(task=task, num_envs=64, config=config, device="cuda")
    half = train_slice(setup, settings, None, 512, 1024)
    whole = train_slice(setup, settings, Checkpoint.from_bytes(half.to_bytes()), 1024, 1024)
    assert whole.steps == 1024
    assert whole.task_spec["engine"].startswith("MuJoCo Warp")
    assert judge(setup, settings, whole).metrics["mean_length"] == 20
