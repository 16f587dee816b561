"""Training on locomotion: tournament, checkpoints, resuming and command line; the gymnasium environment."""

import numpy as np
import pytest
import torch
from made_agents import train_slice
from typer.testing import CliRunner

import finpod
from finpod.cli import app, main
from finpod.errors import InputError
from finpod.locomotion import BOUNDS, LocomotionTask, task_of
from finpod.rl.evaluate import mean_action
from finpod.rl.ppo import PPOConfig
from finpod.rl.task import Observation
from finpod.tournament.history import read_history
from finpod.tournament.leaderboard import Settings
from finpod.tournament.setup import TournamentSetup
from finpod.tournament.trained_run import TrainedRun
from finpod.tournament.verify import verify_log

pytest.importorskip("mujoco")
SMALL = {"agents": 1, "rounds": 1, "keep": 1, "steps": 4096, "device": "cpu"}


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _short_episodes(monkeypatch):
    """Evaluations of 50 steps, so that a test takes a second."""
    monkeypatch.setattr("finpod.envs.locomotion.environment.TIME_LIMIT", 50)


def weights_of(run):
    return run.checkpoint(0).weights


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


# --- training -------------------------------------------------------------------------------------------------------------


def test_an_agent_is_trained_scored_and_read_back(tmp_path):
    run = finpod.train("swimmer", out=tmp_path / "s", **SMALL)
    metrics = run.leaderboard[0].metrics
    assert set(metrics) == {"mean_return", "sd_return", "worst_return", "mean_length"}
    assert metrics["mean_length"] == 50
    assert metrics["worst_return"] <= metrics["mean_return"] == run.leaderboard[0].score
    assert run.provenance["title"] == "Swimmer-v5, standard variant: 8 inputs, 2 actions"
    assert run.provenance["definition"]["engine"].startswith("MuJoCo ")
    header = read_history(tmp_path / "s").logs[0].header
    assert (header["task"]["integrator"], header["task"]["solver"]) == ("RK4", "NEWTON")
    assert header["versions"]["engine"] == run.provenance["definition"]["engine"]
    again = TrainedRun(tmp_path / "s")
    assert mean_action(again.load(0), Observation(torch.randn(3, 8))).shape == (3, 2)
    spec = again.checkpoint(0).task_spec
    assert (spec["variant"], spec["integrator"]) == ("standard", "RK4")
    task = task_of(spec)
    assert task.score(again.load(0)).metrics == metrics  # C25, F06: the same figure every time
    assert verify_log(tmp_path / "s" / "log-0.jsonl").log[0].score == run.leaderboard[0].score
    assert same(weights_of(finpod.train("swimmer", out=tmp_path / "t", **SMALL)), weights_of(run))


def test_d06_two_slices_are_one(tmp_path):
    task = LocomotionTask(name="hopper", threads=1)
    config = PPOConfig(**task.defaults("ppo"))
    setup = TournamentSetup(task=task, num_envs=16, config=config)
    settings = Settings(agent_id="0-0", seed=5, config=config, task=dict(task.space().start))
    whole = train_slice(setup, settings, None, 2048, 4096)
    half = train_slice(setup, settings, None, 1024, 4096)
    on = train_slice(setup, settings, type(half).from_bytes(half.to_bytes()), 2048, 4096)
    assert whole.steps == on.steps == 2048
    assert same(whole.weights, on.weights)
    assert whole.weights["log_std"].tolist() != [-0.5] * 3


def test_settings_of_a_task_suit_it():
    for name in ("hopper", "ant", "humanoid"):
        task = LocomotionTask(name=name)
        config = PPOConfig(**task.defaults("ppo"))
        assert config.scale_reward
        assert not config.factored
        for setting, (low, high) in BOUNDS.items():
            assert low <= getattr(config, setting) <= high
    assert (LocomotionTask(name="ant").steps, LocomotionTask(name="hopper").steps) == (3_000_000, 1_000_000)
    assert LocomotionTask(name="ant").defaults("sac") == {}


def test_a_tournament_stops_and_goes_on_by_its_name():
    line = "train hopper --variant fast --envs 8 --agents 2 --rounds 2 --steps 512 --device cpu"
    runner = CliRunner()
    whole = runner.invoke(app, [*f"{line} --out strategies/whole".split()])
    assert whole.exit_code == 0, whole.output
    assert "Hopper-v5, fast variant: 11 inputs, 3 actions" in whole.output

    def interrupt(status):
        if len(status.board.log) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finpod.train("hopper", variant="fast", num_envs=8, agents=2, rounds=2, steps=512, device="cpu",
                     out="strategies/part", watch=interrupt)  # fmt: skip
    ended = runner.invoke(app, ["train", "--resume", "part", "--variant", "fast"])  # the log says of which task
    assert ended.exit_code == 0, ended.output
    runs = [TrainedRun(f"strategies/{name}") for name in ("whole", "part")]
    assert [trial.score for trial in runs[0].leaderboard] == [trial.score for trial in runs[1].leaderboard]
    assert same(*map(weights_of, runs))
    assert runs[1].provenance["title"].startswith("Hopper-v5, fast variant")


def test_variants_are_not_mixed(tmp_path):
    def interrupt(status):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finpod.train("hopper", out=tmp_path / "h", **SMALL, watch=interrupt)
    with pytest.raises(InputError, match=r"task\.integrator was 'RK4' and is 'IMPLICITFAST'"):
        finpod.train("hopper", variant="fast", out=tmp_path / "h", **SMALL, resume=True)


@pytest.mark.parametrize(("line", "told"), [
    ("train hoper", "unknown task 'hoper'; did you mean hopper?"),
    ("train ant --market sample", "--market is for stocks, and the task ant has no market"),
    ("train ant --validation 2019-01-02:2019-12-31", "--validation is for stocks"),
    ("train hopper --variant full", "hopper has no variant 'full'; choose one of standard, fast"),
    ("train hopper --envs 0", "--envs is 0;"),
    ("train stocks --variant fast --train 2010-01-04:2010-06-30 --validation 2011-01-03:2011-06-30",
     "--variant is for locomotion"),
])  # fmt: skip
def test_what_cannot_be_ends_in_one_line(line, told, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*line.split(), "--out", "strategies/x"])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err.splitlines()[-1]
    assert not any(tmp_path.iterdir())


def test_without_mujoco_one_line_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "mujoco", None)
    with pytest.raises(SystemExit) as ended:
        main(["train", "ant", "--out", "strategies/x"])
    assert ended.value.code == 2
    assert "pip install 'finpod[locomotion]'" in capsys.readouterr().err


def test_a_policy_that_becomes_nan_is_named(tmp_path):
    task = LocomotionTask(name="swimmer", threads=1)
    policy = task.policy({"hidden": 64}, torch.Generator())
    with torch.no_grad():
        policy.mean[0].weight.fill_(float("nan"))
    with pytest.raises(InputError, match="action of environment 0 at step 0 is not a finite number below 1e\\+18"):
        task.score(policy)


# --- the gymnasium face ---------------------------------------------------------------------------------------------------


def test_an_environment_is_a_gymnasium_vector_environment():
    env = finpod.make_env("hopper", num_envs=4, seed=3)
    obs, info = env.reset(seed=7)
    assert (obs.shape, env.observation_space.shape, env.action_space.shape, info) == ((4, 11), (4, 11), (4, 3), {})
    assert torch.equal(obs, env.reset(seed=7)[0])
    for _ in range(60):
        obs, reward, terminated, truncated, info = env.step(torch.zeros(4, 3))
    assert isinstance(reward, torch.Tensor)
    ended = terminated | truncated
    assert torch.equal(info["_final_obs"], ended)
    assert torch.equal(obs[~ended], info["final_obs"][~ended])
    limit = finpod.make_env("humanoid", num_envs=1).single_action_space.high
    np.testing.assert_allclose(limit, 0.4)


@pytest.mark.parametrize(("arguments", "argument"), [
    ({"task": "hopperr"}, "task"),
    ({"task": "hopper", "start": "2020-01-02"}, "start"),
    ({"task": "hopper", "costs": finpod.Costs()}, "costs"),
    ({"task": "hopper", "hold": 3}, "hold"),
    ({"task": "hopper", "variant": "ful"}, "variant"),
    ({"task": "hopper", "num_envs": 0}, "num_envs"),
    ({"task": "hopper", "device": "tpu"}, "device"),
])  # fmt: skip
def test_arguments_that_mean_nothing_are_refused(arguments, argument):
    with pytest.raises(InputError) as caught:
        finpod.make_env(**arguments)
    assert caught.value.argument == argument


def test_a_bad_action_is_refused_before_anything_moves():
    env = finpod.make_env("hopper", num_envs=2, threads=1)
    obs, _ = env.reset(seed=1)
    action = torch.zeros(2, 3)
    with pytest.raises(InputError, match=r"actions have shape \(2, 2\); this environment takes \(2, 3\)"):
        env.step(action[:, :2])
    action[1, 2] = float("inf")
    with pytest.raises(InputError, match="the action of environment 1 is inf for column 2"):
        env.step(action)
    assert torch.equal(env.env.observe().state, obs)
    with pytest.raises(InputError, match="reset_mask"):
        env.reset(options={"reset_mask": [True, False]})
