"""MuJoCo Warp on its CPU device: one step against MuJoCo, resets by mask, worlds that fail alone. It compiles for a minute."""

import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from made_agents import train_slice
from made_physics import actions, both, require_close, step_both
from torch.utils._python_dispatch import TorchDispatchMode

from finpod.envs.locomotion import NAMES, environment
from finpod.envs.locomotion.environment import LocomotionEnv, describe
from finpod.envs.locomotion.specs import FULL, spec_of
from finpod.envs.locomotion.warp import WarpPhysics
from finpod.errors import InputError
from finpod.locomotion import LocomotionTask
from finpod.rl.checkpoint import Checkpoint
from finpod.rl.ppo import PPOConfig
from finpod.tournament.leaderboard import Settings
from finpod.tournament.pod import judge
from finpod.tournament.setup import TournamentSetup

pytest.importorskip("mujoco")
installed = pytest.mark.skipif(not find_spec("mujoco_warp"), reason="mujoco-warp, the extra gpu, is not installed")
ALL = [(name, "standard") for name in NAMES] + [(name, "full") for name in FULL]


def compiles(test):
    return pytest.mark.slow(installed(test))


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make(name, count=4, seed=0, **changes):
    spec = replace(spec_of(name), **changes)
    return LocomotionEnv(spec, WarpPhysics(spec, count, "cpu"), seed)


def test_without_the_package_one_line_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco_warp", None)
    for begin in (lambda: LocomotionTask(name="ant", device="cuda").header(), lambda: make("ant")):
        with pytest.raises(InputError, match=r"^Ant-v5 on a GPU needs MuJoCo Warp, .* pip install 'finpod\[gpu\]'$"):
            begin()


@installed
def test_the_engine_that_is_used_is_named():
    here, there = (describe(spec_of("humanoid"), device) for device in ("cpu", "cuda:1"))
    assert (here["solver"], there["solver"]) == ("PGS", "NEWTON")
    assert there["engine"].startswith("MuJoCo Warp ")
    assert here["engine"].startswith("MuJoCo ")
    assert here["integrator"] == there["integrator"] == "RK4"
    assert LocomotionTask(name="humanoid", device="cuda").spec()["engine"] == there["engine"]
    assert LocomotionTask(name="humanoid").spec()["engine"] == here["engine"]


@compiles
@pytest.mark.parametrize(("name", "variant"), ALL)
def test_one_step_is_that_of_mujoco(name, variant):
    require_close(*step_both(*both(name, variant, 32)))


@compiles
def test_ant_with_its_pyramidal_cone_differs_in_some_worlds():
    """If this fails, Warp's tangent axes have become MuJoCo's: mend the docstring of `warp.py`, and test the standard cone."""
    _, _, gap = step_both(*both("ant", "standard", 64, elliptic=False))
    assert gap.median() < 1e-6
    assert 1e-4 < gap.max() < 0.1


@compiles
@pytest.mark.parametrize("variant", ["standard", "full"])
def test_a_reset_begins_the_masked_worlds_and_leaves_the_others_as_they_are(variant):
    here, there = both("humanoid", variant, 4)
    for action in actions(there, 2):
        there.step(action)
    mask, state = torch.tensor([False, True, False, True]), there.physics.state
    before = {name: value.clone() for name, value in state.items() if name != "body_mass"}
    qpos, qvel = here.physics.initial_qpos.expand(4, -1) + 0.01, torch.full_like(here.physics.state["qvel"], 0.3)
    addresses = {name: value.data_ptr() for name, value in state.items()}
    for physics in (here.physics, there.physics):
        physics.reset(mask, qpos.to(physics.state["qpos"].dtype), qvel.to(physics.state["qvel"].dtype))
    assert addresses == {name: value.data_ptr() for name, value in state.items()}
    for name, value in before.items():
        assert torch.equal(state[name][~mask], value[~mask]), name
        if name not in ("time", "ctrl"):
            torch.testing.assert_close(
                state[name][mask].double(), here.physics.state[name][mask], rtol=1e-4, atol=1e-4, msg=name
            )
    assert not state["ctrl"][mask].any()


@compiles
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e12])
def test_a_world_that_fails_is_begun_anew_and_counted_and_the_others_are_unchanged(value):
    env, twin = (make("hopper", seed=2) for _ in range(2))
    before, others = env.observe().state.clone(), torch.arange(4) != 1
    env.physics.state["qvel"][1, 0] = value
    for number, action in enumerate(actions(env, 4)):
        step, alone = env.step(action), twin.step(action)
        assert torch.equal(step.obs.state[others], alone.obs.state[others])
        for one, other in zip(step[1:4], alone[1:4], strict=True):
            assert torch.equal(one[others], other[others])
        assert step.obs.state.isfinite().all()
        if number == 0:
            assert (bool(step.terminated[1]), float(step.reward[1])) == (True, 0.0)
            assert torch.equal(step.final_obs.state[1], before[1])
    assert (int(env.failures), int(twin.failures)) == (1, 0)
    env.check()


class Waits(TorchDispatchMode):
    """Counts the operations that would wait for a GPU."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal")
        return func(*args, **(kwargs or {}))


@compiles
def test_a_step_waits_for_nothing():
    env, action = make("hopper"), torch.zeros(4, 3)
    env.step(action)
    with Waits() as waits:
        env.step(action)
    assert waits.count == 0
    with Waits() as waits:
        env.check()
    assert waits.count > 0


@compiles
def test_a_saved_state_continues_exactly():
    env, again = make("walker2d", seed=1), make("walker2d", seed=7)
    for action in actions(env, 3):
        env.step(action)
    again.load_state_dict(env.state_dict())
    for action in actions(env, 3, seed=1):
        one, other = env.step(action), again.step(action)
        for part, same in zip(one[1:4], other[1:4], strict=True):
            assert torch.equal(part, same)
        assert torch.equal(one.obs.state, other.obs.state)


@compiles
def test_agents_train_on_it_resume_and_are_judged(monkeypatch):
    monkeypatch.setattr(
        "finpod.envs.locomotion.mujoco.BatchPhysics", lambda spec, count, _: WarpPhysics(spec, count, "cpu")
    )
    monkeypatch.setattr(environment, "TIME_LIMIT", 6)
    task, config = LocomotionTask(name="swimmer"), PPOConfig(num_steps=4, update_epochs=1)
    setup = TournamentSetup(task=task, num_envs=4, config=config)
    settings = Settings(agent_id="0-0", seed=5, config=config, task=dict(task.space().start))
    whole, half = (train_slice(setup, settings, None, steps, 32) for steps in (32, 16))
    on = train_slice(setup, settings, Checkpoint.from_bytes(half.to_bytes()), 32, 32)
    assert whole.steps == on.steps == 32
    assert whole.env["physics"]["qpos"].dtype == torch.float32
    assert all(torch.equal(on.weights[name], value) for name, value in whole.weights.items())
    assert judge(setup, settings, on).metrics["mean_length"] == 6
