"""MuJoCo Warp: one step against MuJoCo, resets by mask, worlds that fail alone.

On its CPU device it compiles for a minute, so that these tests are slow; on a GPU they run with `-m gpu`. Nobody has run them on
a GPU yet: there was none when they were written.
"""

import sys
from importlib.util import find_spec

import pytest
import torch
from made_agents import actions, train_slice
from torch.utils._python_dispatch import TorchDispatchMode

from finpod.envs.locomotion import NAMES, environment
from finpod.envs.locomotion.environment import LocomotionEnv
from finpod.envs.locomotion.mujoco import BatchPhysics
from finpod.envs.locomotion.specs import FULL, spec_of
from finpod.envs.locomotion.warp import WarpPhysics, load_for_warp
from finpod.errors import InputError
from finpod.locomotion import LocomotionTask
from finpod.rl.checkpoint import Checkpoint
from finpod.rl.ppo import PPOConfig
from finpod.tournament.leaderboard import Settings
from finpod.tournament.pod import judge
from finpod.tournament.setup import TournamentSetup

pytest.importorskip("mujoco")
pytestmark = pytest.mark.usefixtures("apart")
installed = pytest.mark.skipif(not find_spec("mujoco_warp"), reason="mujoco-warp, the extra gpu, is not installed")
ALL = [(name, "standard") for name in NAMES] + [(name, "full") for name in FULL]


def on_devices(test):
    devices = [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]
    return pytest.mark.parametrize("device", devices)(installed(test))


def make(name, device="cpu", count=8, seed=0):
    spec = spec_of(name)
    return LocomotionEnv(spec, WarpPhysics(spec, count, device), seed)


def both(name, variant, count, device="cpu"):
    """The same worlds on MuJoCo and on Warp, with equal solvers, and for Ant with an elliptic cone (see warp.py)."""
    import mujoco

    spec = spec_of(name, variant)
    model = load_for_warp(spec)
    if name == "ant":
        model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    here = LocomotionEnv(spec, BatchPhysics(spec, count, 1, model=model))
    return here, LocomotionEnv(spec, WarpPhysics(spec, count, device, model=model))


def require_equal_steps(here, there, steps=30):
    """Play `steps` steps on MuJoCo, take its states over to Warp, and assert that one more step is the same.

    External forces, which are up to thousands of newtons, agree to 5e-3 of their size.
    """
    *first, last = actions(here, steps + 1)
    for action in first:
        here.step(action)
    there.physics.load(here.physics.save())
    there._place, there._time = (x.to(there.device) for x in (here._place, here._time))
    one, other = here.step(last), there.step(last.to(there.device))
    other = type(other)(*(type(x)(x.state.cpu()) if hasattr(x, "state") else x.cpu() for x in other))
    gap = (here.physics.state["qpos"] - there.physics.state["qpos"].cpu()).abs().amax(-1)
    assert (gap.masked_fill(one.terminated | one.truncated, 0.0) < 1e-4).all()
    theirs, ours = other.final_obs.state, one.final_obs.state
    forces = 6 * 13 if ours.shape[1] in (105, 348) else 0
    inner = ours.shape[1] - forces
    torch.testing.assert_close(theirs[:, :inner], ours[:, :inner], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(theirs[:, inner:], ours[:, inner:], rtol=5e-3, atol=5e-3)
    torch.testing.assert_close(other.reward, one.reward, rtol=1e-4, atol=1e-4)
    assert torch.equal(other.terminated, one.terminated)


class Waits(TorchDispatchMode):
    """Counts the operations that would wait for a GPU."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal")
        return func(*args, **(kwargs or {}))


def test_without_the_package_one_line_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco_warp", None)
    for begin in (lambda: LocomotionTask(name="ant", device="cuda").header(), lambda: make("ant")):
        with pytest.raises(InputError, match=r"pip install 'finpod\[gpu\]'"):
            begin()


@on_devices
@pytest.mark.parametrize(("name", "variant"), ALL)
def test_one_step_is_that_of_mujoco(name, variant, device):
    require_equal_steps(*both(name, variant, 32, device))


@on_devices
@pytest.mark.parametrize("variant", ["standard", "full"])
def test_a_reset_begins_the_masked_worlds_and_leaves_the_others_as_they_are(variant, device):
    here, there = both("humanoid", variant, 4, device)
    for action in actions(there, 2):
        there.step(action)
    mask, state = torch.tensor([False, True, False, True]), there.physics.state
    before = {name: value.clone() for name, value in state.items() if name != "body_mass"}
    qpos, qvel = here.physics.initial_qpos.expand(4, -1) + 0.01, torch.full_like(here.physics.state["qvel"], 0.3)
    addresses = {name: value.data_ptr() for name, value in state.items()}
    here.physics.reset(mask, qpos, qvel)
    there.physics.reset(mask.to(device), qpos.float().to(device), qvel.float().to(device))
    assert addresses == {name: value.data_ptr() for name, value in state.items()}
    for name, value in before.items():
        assert torch.equal(state[name][~mask], value[~mask]), name
        if name not in ("time", "ctrl"):
            theirs, ours = state[name][mask].double().cpu(), here.physics.state[name][mask]
            torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4, msg=name)
    assert not state["ctrl"][mask].any()
    assert not state["time"][mask].any()


@on_devices
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e12])
def test_a_world_that_fails_is_begun_anew_and_counted_and_no_step_waits_for_the_device(value, device):
    env, twin = (make("hopper", device, seed=2) for _ in range(2))
    before, others = env.observe().state.clone(), torch.arange(8) != 1
    drawn = actions(env, 4)
    env.physics.state["qvel"][1, 0] = value
    with Waits() as waits:
        steps = [(env.step(action), twin.step(action)) for action in drawn]
    assert waits.count == 0
    first = steps[0][0]
    assert (first.terminated[1], first.reward[1]) == (True, 0)
    assert torch.equal(first.final_obs.state[1], before[1])
    for step, alone in steps:
        assert step.obs.state.isfinite().all()
        for one, other in zip((step.obs.state, *step[1:4]), (alone.obs.state, *alone[1:4]), strict=True):
            torch.testing.assert_close(one[others], other[others], rtol=1e-4, atol=1e-4)  # equal on the CPU
    assert (int(env.failures), int(twin.failures)) == (1, 0)
    with Waits() as waits:
        env.check()
    assert waits.count > 0


@on_devices
def test_agents_train_on_it_resume_and_are_judged(monkeypatch, device):
    monkeypatch.setattr(environment, "BatchPhysics", lambda spec, count, _: WarpPhysics(spec, count, "cpu"))
    monkeypatch.setattr(environment, "TIME_LIMIT", 6)
    task, config = LocomotionTask(name="swimmer", device=device), PPOConfig(num_steps=4, update_epochs=1)
    setup = TournamentSetup(task=task, num_envs=4, config=config, device=device)
    settings = Settings(agent_id="0-0", seed=5, config=config, task=dict(task.space().start))
    whole, half = (train_slice(setup, settings, None, steps, 32) for steps in (32, 16))
    on = train_slice(setup, settings, Checkpoint.from_bytes(half.to_bytes()), 32, 32)
    assert whole.steps == on.steps == 32
    assert whole.env["physics"]["qpos"].dtype == torch.float32
    if device == "cpu":
        assert all(torch.equal(on.weights[name], value) for name, value in whole.weights.items())
    else:
        assert whole.task_spec["engine"].startswith("MuJoCo Warp")
    assert judge(setup, settings, on).metrics["mean_length"] == 6
