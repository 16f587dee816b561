"""Locomotion: parity with Gymnasium, the contract of environments, and failures of single worlds."""

import warnings

import numpy as np
import pytest
import torch
from made_agents import actions
from made_errors import refused

from finpod.envs.locomotion import NAMES
from finpod.envs.locomotion.environment import make_locomotion
from finpod.envs.locomotion.specs import EULER, FULL, spec_of
from finpod.errors import CheckpointError, FinpodError
from finpod.locomotion import LocomotionTask, task_of

pytest.importorskip("mujoco")
pytestmark = pytest.mark.usefixtures("apart")

ALL = [(name, "standard") for name in NAMES] + [(name, "full") for name in FULL]
WORLDS = 3


def make(name, variant="standard", num_envs=WORLDS, **options):
    return make_locomotion(name, num_envs, variant=variant, **{"threads": 1, **options})


def played(env, seed=0):
    """All values of 20 steps, [20, ...]."""
    taken = [env.step(action) for action in actions(env, 20, seed)]
    every = [(step.obs.state, step.reward, step.terminated, step.final_obs.state) for step in taken]
    return torch.stack([torch.cat([values.flatten().double() for values in one]) for one in every])


def peer(spec):
    import gymnasium

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gymnasium.make(spec.gym_id, disable_env_checker=True, **spec.gym_options)


def begin_alike(other, env, world):
    """Put Gymnasium's environment into the state of one of our worlds; return its observation."""
    import mujoco

    inner = other.unwrapped
    other.reset()
    mujoco.mj_resetData(inner.model, inner.data)
    inner.set_state(env.physics.state["qpos"][world].numpy(), env.physics.state["qvel"][world].numpy())
    return inner._get_obs()


def close(ours, theirs):
    return (np.abs(ours.double().numpy() - theirs) <= 1e-6 * np.maximum(1, np.abs(theirs))).all()


@pytest.mark.parametrize(("name", "variant"), ALL)
def test_states_and_actions_give_the_observations_and_rewards_of_gymnasium(name, variant):
    env = make(name, variant, seed=3)
    others, ends = [peer(env.spec) for _ in range(WORLDS)], 0
    assert close(env.observe().state, np.array([begin_alike(other, env, w) for w, other in enumerate(others)]))
    for action in actions(env, 200):
        step = env.step(action)
        for world, other in enumerate(others):
            obs, reward, terminated, truncated, _ = other.step(action[world].double().numpy())
            assert close(step.final_obs.state[world], obs)
            assert close(step.reward[world], reward)
            assert (terminated, False) == (step.terminated[world].item(), truncated)
            if terminated:
                ends += 1
                assert close(step.obs.state[world], begin_alike(other, env, world))
    assert ends > 0 or name in ("halfcheetah", "swimmer")


def test_f01_the_bonus_of_a_step_is_not_paid_for_the_fall():
    spec = spec_of("hopper")
    action = torch.tensor([[10.0**0.5, 0, 0]] * 2)  # a control cost of 0.01
    reward = spec.reward({}, action, torch.tensor([0.8, 0.8]), torch.tensor([True, False]))
    torch.testing.assert_close(reward, torch.tensor([1.79, 0.79]))


def test_f02_the_title_names_variant_and_sizes():
    assert spec_of("ant").title == "Ant-v5, standard variant: 27 inputs, 8 actions"
    assert spec_of("humanoid", "full").title == "Humanoid-v5, full variant: 348 inputs, 17 actions"
    spec = LocomotionTask(name="humanoid").spec()
    assert (spec["integrator"], spec["solver"]) == ("RK4", "PGS")
    assert LocomotionTask(name="hopper", variant="fast").spec()["integrator"] == "IMPLICITFAST"
    assert task_of(spec).definition == spec_of("humanoid")


@pytest.mark.parametrize(("name", "variant"), [*ALL, *((name, "fast") for name in NAMES if name not in EULER)])
def test_a_task_keeps_the_contract_and_a_saved_state_continues_exactly(name, variant):
    env, spec = make(name, variant, seed=1), spec_of(name, variant)
    obs = env.observe().state
    assert (obs.shape, obs.dtype) == ((WORLDS, spec.num_inputs), torch.float32)
    assert len(torch.unique(obs, dim=0)) == WORLDS  # C14: each world begins elsewhere
    step = env.step(actions(env, 1)[0])
    assert [x.dtype for x in (step.reward, step.terminated, step.truncated)] == [torch.float32, torch.bool, torch.bool]
    assert step.reward.shape == step.terminated.shape == step.truncated.shape == (WORLDS,)
    first, env = played(make(name, variant, seed=1)), make(name, variant, seed=2, threads=2)
    assert first.isfinite().all()
    assert not torch.equal(first, played(env))
    env.reset(seed=1)
    assert torch.equal(first, played(env))  # D01, whatever the number of threads
    state, expected = env.state_dict(), played(env, seed=1)
    other = make(name, variant, seed=9)
    other.load_state_dict(state)
    assert torch.equal(other.observe().state, state["obs"])
    assert torch.equal(played(other, seed=1), expected)
    two = make(name, variant, num_envs=2)
    refused(rf"\({WORLDS}, {spec.num_inputs}\)", two.load_state_dict, state, error=CheckpointError)


def test_an_episode_is_truncated_after_a_thousand_steps():
    env = make("swimmer")
    env.load_state_dict(env.state_dict() | {"time": torch.tensor([998, 999, 0])})
    step = env.step(actions(env, 1)[0])
    assert step.truncated.tolist() == [False, True, False]
    assert not step.terminated.any()
    assert [torch.equal(a, b) for a, b in zip(step.obs.state, step.final_obs.state, strict=True)] == [True, False, True]
    assert env.step(actions(env, 1)[0]).truncated.tolist() == [True, False, False]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e12])
@pytest.mark.parametrize(("name", "variant"), [("hopper", "standard"), ("ant", "full"), ("humanoid", "standard")])
def test_f04_a_world_that_fails_is_begun_anew_and_counted_and_the_others_are_unchanged(name, variant, value):
    count = 64 if name == "hopper" else 12
    env, twin = (make(name, variant, num_envs=count, seed=2, threads=2) for _ in range(2))
    before, others = env.observe().state.clone(), torch.arange(count) != 5
    env.physics.state["qvel"][5, 0] = value
    for number, action in enumerate(actions(env, 5)):
        step, alone = env.step(action), twin.step(action)
        for one, other in zip((step.obs.state, *step[1:4]), (alone.obs.state, *alone[1:4]), strict=True):
            assert torch.equal(one[others], other[others])
        assert torch.isfinite(step.obs.state).all()
        assert torch.isfinite(step.reward.mean())
        if number == 0:
            assert (step.terminated[5], step.reward[5]) == (True, 0)
            assert torch.equal(step.final_obs.state[5], before[5])  # the last that was sound
    assert (int(env.failures), int(twin.failures)) == (1, 0)
    env.check()


def test_f04_a_limit_on_the_failures_stops_the_run_with_the_name_of_the_task():
    env = make("ant", max_failures=2)
    for world in (0, 1, 0):
        env.check()
        env.physics.state["qpos"][world, 2] = float("nan")
        env.step(torch.zeros(WORLDS, 8))
    refused(r"Ant-v5: worlds became NaN or overflowed 3 times, .* = 2;", env.check, error=FinpodError)


def test_c18_an_action_that_is_no_number_is_named_and_moves_nothing_else():
    env, twin = (make("walker2d", seed=1) for _ in range(2))
    action = actions(env, 1)[0]
    bad = action.clone()
    bad[1, 4] = float("nan")
    step, alone = env.step(bad), twin.step(action)
    assert torch.equal(step.obs.state[[0, 2]], alone.obs.state[[0, 2]])
    assert torch.isfinite(step.obs.state).all()
    refused("environment 1 at step 0", env.check)
    env.check()  # told once
    for size in (1e9, 3e38):
        assert torch.isfinite(env.step(torch.full((WORLDS, 6), size)).reward).all()
    refused("environment 0 at step 2", env.check)
