"""Training on locomotion: tournament, checkpoints, resuming and command line; the gymnasium environment."""

import numpy as np
import pytest
import torch
from made_agents import alike
from made_commands import run
from made_errors import refused
from made_tournaments import leaving

import finpod
from finpod.locomotion import LocomotionTask, task_of
from finpod.rl.evaluate import mean_action
from finpod.rl.task import Observation
from finpod.tournament.history import read_history
from finpod.tournament.trained_run import TrainedRun
from finpod.tournament.verify import verify_log

pytest.importorskip("mujoco")
pytestmark = pytest.mark.usefixtures("apart")
SMALL = {"agents": 1, "rounds": 1, "keep": 1, "steps": 4096, "device": "cpu"}


@pytest.fixture(autouse=True)
def _short_episodes(monkeypatch):
    """Evaluations of 50 steps, so that a test takes a second."""
    monkeypatch.setattr("finpod.envs.locomotion.environment.TIME_LIMIT", 50)


def test_an_agent_is_trained_scored_and_read_back():
    made = finpod.train("swimmer", out="s", **SMALL)
    metrics = made.leaderboard[0].metrics
    assert set(metrics) == {"mean_return", "sd_return", "worst_return", "mean_length"}
    assert metrics["mean_length"] == 50
    assert metrics["worst_return"] <= metrics["mean_return"] == made.leaderboard[0].score
    assert made.provenance["title"] == "Swimmer-v5, standard variant: 8 inputs, 2 actions"
    assert made.provenance["definition"]["engine"].startswith("MuJoCo ")
    header = read_history("s").logs[0].header
    assert (header["task"]["integrator"], header["task"]["solver"]) == ("RK4", "NEWTON")
    assert header["versions"]["engine"] == made.provenance["definition"]["engine"]
    again = TrainedRun("s")
    assert mean_action(
        again.load(0), Observation(torch.randn(3, 8, generator=torch.Generator().manual_seed(0)))
    ).shape == (3, 2)
    spec = again.checkpoint(0).task_spec
    assert (spec["variant"], spec["integrator"]) == ("standard", "RK4")
    assert task_of(spec).score(again.load(0)).metrics == metrics  # C25, F06: the same figure every time
    assert verify_log("s/log-0.jsonl").log[0].score == made.leaderboard[0].score


def test_a_tournament_stops_and_goes_on_by_its_name_and_in_its_variant():
    size = {"num_envs": 8, "agents": 2, "rounds": 2, "steps": 512, "device": "cpu"}
    whole = finpod.train("hopper", variant="fast", out="strategies/whole", **size)
    with pytest.raises(KeyboardInterrupt):
        finpod.train("hopper", variant="fast", out="strategies/part", watch=leaving(2), **size)
    told = r"task\.integrator was 'IMPLICITFAST' and is 'RK4'"
    refused(told, finpod.train, "hopper", out="strategies/part", resume=True, **size)
    assert run("train --resume part --variant fast").code == 0  # the log says of which task
    part = TrainedRun("strategies/part")
    assert [trial.score for trial in whole.leaderboard] == [trial.score for trial in part.leaderboard]
    assert alike(whole.checkpoint(0).weights, part.checkpoint(0).weights)
    assert part.provenance["title"].startswith("Hopper-v5, fast variant")


def test_a_policy_that_becomes_nan_is_named():
    task = LocomotionTask(name="swimmer", threads=1)
    policy = task.policy({"hidden": 64}, torch.Generator())
    with torch.no_grad():
        policy.mean[0].weight.fill_(float("nan"))
    refused("environment 0 at step 0", task.score, policy)


def test_an_environment_is_a_gymnasium_vector_environment():
    env, arrays = (finpod.make_env("hopper", num_envs=4, seed=3, numpy=numpy) for numpy in (False, True))
    obs, info = env.reset(seed=7)
    assert (obs.shape, env.observation_space.shape, env.action_space.shape, info) == ((4, 11), (4, 11), (4, 3), {})
    assert torch.equal(obs, env.reset(seed=7)[0])
    np.testing.assert_array_equal(arrays.reset(seed=7)[0], obs)
    for _ in range(60):
        obs, *others, info = env.step(torch.zeros(4, 3))
        dense, *values, array_info = arrays.step(np.zeros((4, 3)))
        pairs = zip((dense, *values, array_info["final_obs"]), (obs, *others, info["final_obs"]), strict=True)
        for array, tensor in pairs:
            np.testing.assert_array_equal(array, tensor)
        ended = others[1] | others[2]
        assert torch.equal(info["_final_obs"], ended)
        assert torch.equal(obs[~ended], info["final_obs"][~ended])
    limit = finpod.make_env("humanoid", num_envs=1).single_action_space.high
    np.testing.assert_allclose(limit, 0.4)


@pytest.mark.parametrize(("arguments", "argument"), [
    ({"task": "hopperr"}, "task"), ({"task": "hopper", "start": "2020-01-02"}, "start"),
    ({"task": "hopper", "hold": 3}, "hold"), ({"task": "hopper", "device": "tpu"}, "device"),
])  # fmt: skip
def test_arguments_that_mean_nothing_are_refused(arguments, argument):
    refused("", finpod.make_env, about=argument, **arguments)


def test_a_bad_action_is_refused_before_anything_moves():
    env = finpod.make_env("hopper", num_envs=2, threads=1)
    obs, _ = env.reset(seed=1)
    action = torch.zeros(2, 3)
    refused(r"\(2, 2\).*\(2, 3\)", env.step, action[:, :2])
    action[1, 2] = float("inf")
    refused("environment 1 is inf in column 2", env.step, action)
    assert torch.equal(env.env.observe().state, obs)
    refused("reset_mask", env.reset, options={"reset_mask": [True, False]})
