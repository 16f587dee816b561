"""The interface of tasks: agents train on any object with the members of a `Task`, also without a market."""

import json
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from made_agents import alike, make_setup
from made_commands import run as command
from made_errors import refused
from made_markets import random_market
from made_tournaments import leaving
from made_toy import CONFIG, SMALL, TOY

import finpod
from finpod.cli.settings import recorded_options
from finpod.envs.step import Returns
from finpod.errors import CheckpointError, FinpodError, InputError, StrategyError
from finpod.loading import load_task
from finpod.rl.evaluate import episodes, mean_action
from finpod.rl.policy import DensePolicy, DenseSpec
from finpod.rl.ppo import PPO
from finpod.rl.task import Observation, Score, Space, Task, require_task
from finpod.tournament.run_folder import recorded_of
from finpod.tournament.setup import Plan, TournamentSetup
from finpod.tournament.trained_run import TrainedRun


@pytest.fixture(scope="module")
def run(task, tmp_path_factory):
    """Two agents in two rounds."""
    return finpod.train(task, out=tmp_path_factory.mktemp("runs") / "small", **SMALL)


def same_agents(one, other):
    states = [[run.checkpoint(n).weights for n in range(len(run))] for run in (one, other)]
    return len(one) == len(other) and all(map(alike, *states))


# --- the toy task -------------------------------------------------------------------------------------------------------


def test_the_task_of_the_readme_is_short_and_learns(task, tmp_path):
    assert len([line for line in TOY.splitlines() if line.strip()]) <= 45
    run = finpod.train(task, out=tmp_path / "toy", agents=1, rounds=1, keep=1, steps=15_000, config=CONFIG)
    assert isinstance(run, TrainedRun)
    assert task.score(task.policy({"hidden": 64}, torch.Generator().manual_seed(0))).metrics["mean_return"] < -10
    assert run.leaderboard[0].score > -5
    policy = run.load(0)
    assert task.score(policy).metrics["mean_return"] == run.leaderboard[0].score
    action = mean_action(policy, Observation(torch.tensor([[3.0], [-3.0]])))
    assert action[0] < -0.5 < 0.5 < action[1]


def test_a_differentiable_task_is_trained_with_its_gradient_whatever_its_units(task, tmp_path):
    """The return is -|number after the step| / 1000. Numbers are up to 4,000, so they must be normalised."""

    class Exact(type(task.env(1, 0, "cpu"))):
        differentiable = True

        def observe(self):
            return Observation(1000 * self.place)

        def step(self, action, *, grad=False, smooth=0.0):
            net = -(self.place + action).abs()[:, 0].double() / 1000
            with torch.no_grad():
                step = super().step(action)
            return (step, Returns(net, 0 * net, 0 * net)) if grad else step

        def detach(self):
            pass

    class Thousands(type(task)):
        undifferentiable = None

        def env(self, num_envs, seed, device):
            return Exact(num_envs, seed, device)

    options = {**SMALL, "config": None, "agents": 1, "rounds": 1, "keep": 1, "steps": 15_000}
    refused("the reward of task 'reach' has none", finpod.train, task, out=tmp_path / "x", learner="apg", **options)
    policy = finpod.train(Thousands(), out=tmp_path / "apg", learner="apg", **options).load(0)
    action = mean_action(policy, Observation(torch.tensor([[3000.0], [-3000.0]])))
    assert action[0] < -0.5 < 0.5 < action[1]


def test_a_run_has_its_leaderboard_and_its_agents(run, task):
    board = run.leaderboard
    assert len(board) == run.trials == 4
    scores = [trial.score for trial in board]
    assert scores == sorted(scores, reverse=True)
    assert set(board[0].metrics) == {"mean_return", "sd_return"}
    kept = [member["score"] for member in run.provenance["members"]]
    assert [task.score(run.load(n)).metrics["mean_return"] for n in range(2)] == kept
    assert (run.provenance["task"], run.provenance["score"]) == ("reach", "mean_return")
    assert [line["score"] for line in run.provenance["board"]] == scores
    refused("", run.load, 2, about="n")


def test_a_folder_is_the_run_again(run):
    again = TrainedRun(run.folder)  # the policy is one of finpod's, so that no task is needed
    assert again.provenance == json.loads(json.dumps(run.provenance))
    assert same_agents(again, run)
    state = Observation(torch.randn(5, 1, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(mean_action(run.load(1), state), mean_action(again.load(1), state))
    names = ["log-0.jsonl", "member-0.pt", "member-1.pt", "trained.json"]
    assert sorted(path.name for path in run.folder.iterdir()) == names
    assert not run.folder.with_name("small.unfinished").exists()


def test_it_is_resumed_to_the_run_that_was_never_interrupted(task, tmp_path):
    options = {"plan": Plan(mode="async", checkpoint_steps=256), **SMALL, "seeds": 2}
    whole = finpod.train(task, out=tmp_path / "whole" / "run", **options)
    with pytest.raises(KeyboardInterrupt):
        finpod.train(task, out=tmp_path / "run", **options, watch=leaving(3))
    refused("num_envs was 32 and is 16", finpod.train, task, out=tmp_path / "run", resume=True, num_envs=16, **options)
    resumed = finpod.train(task, out=tmp_path / "run", **options, resume=True)
    assert same_agents(resumed, whole)
    scores = [member["score"] for member in whole.provenance["members"]]  # of both seeds, the best first
    assert [task.score(whole.load(n)).metrics["mean_return"] for n in range(len(whole))] == scores
    assert [trial.score for trial in resumed.leaderboard] == [trial.score for trial in whole.leaderboard]


def test_a_run_is_no_strategy_and_no_walk_forward_is_made_of_it(run, task, tmp_path):
    refused("small has no agents trained on a market", finpod.load_strategy, run.folder, error=StrategyError)
    options = {"market": random_market(130, 4), "start": "2024-03-01", "out": tmp_path / "wf"}
    refused("", finpod.walk_forward, task, about="task", **options)


# --- the command line ---------------------------------------------------------------------------------------------------


def test_the_command_trains_reports_and_shows_the_board(apart, toy):
    line = f"train {toy}:Toy --out strategies/toy --steps 2048 --agents 2 --rounds 1 --keep 1 --device cpu"
    assert re.search(r"mean_return: -\d", command(line).out)
    assert (apart / "reports" / "toy-training.html").is_file()
    assert "2 trials of 2 agents; finished" in command("leaderboard toy").out
    facts = json.loads(command("leaderboard toy --json").out)
    assert [line["kept"] for line in facts["board"]] == [True, False]
    assert facts["board"][0]["metrics"].keys() == {"mean_return", "sd_return"}
    assert json.loads(command(f"{line} --overwrite --json").out)["task"] == "reach"


def test_an_unfinished_run_is_gone_on_with_by_its_name_alone(apart, toy, tmp_path, monkeypatch):
    monkeypatch.chdir(toy.parent)
    with pytest.raises(KeyboardInterrupt):
        finpod.train("toy.py:Toy", out=tmp_path / "strategies" / "toy", watch=leaving(), plan=Plan(alike=0.9), **SMALL)
    monkeypatch.chdir(tmp_path)  # where no file toy.py lies
    _, recorded = recorded_of("strategies/toy", None)
    assert (recorded.metadata["task"], recorded.plan.alike) == (f"{toy}:Toy", 0.9)
    assert command("train --resume strategies/toy --device cpu").code == 0
    assert TrainedRun("strategies/toy").trials == 4
    assert "is finished" in command("train --resume strategies/toy").error


def test_a_task_from_memory_is_gone_on_with_from_python_alone(task, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        finpod.train(task, out=tmp_path / "run", **SMALL, watch=leaving())
    _, recorded = recorded_of(str(tmp_path / "run"), None)
    refused("has the task reach, a Python object", recorded_options, recorded, (), fork=False)


@pytest.mark.parametrize(("words", "told"), [
    ("nothing.py:Toy", "'nothing.py:Toy'"), ("hopper9", "did you mean hopper?"), ("{toy}:Tou", "did you mean Toy?"),
    ("{toy}:Numbers", "Numbers"), ("{toy}:Toy --fee-bps 5", "--fee-bps"),
])  # fmt: skip
def test_a_task_that_does_not_exist_and_options_of_a_market_are_named(apart, toy, words, told):
    assert told in command(f"train {words.format(toy=toy)} --out strategies/x").error
    assert not any(apart.iterdir())


# --- Ray ----------------------------------------------------------------------------------------------------------------


def test_a_task_travels_with_its_code(task, tmp_path):
    """To a process that has no module of that name."""
    (tmp_path / "shared").write_bytes(pickle.dumps(TournamentSetup(task=task, num_envs=4, config=CONFIG).to_shared()))
    code = (
        "import pickle, sys, torch; from finpod.tournament.setup import from_shared; from pathlib import Path; "
        "task = from_shared(pickle.loads(Path(sys.argv[1]).read_bytes())).task; "
        "policy = task.policy({'hidden': 32}, torch.Generator().manual_seed(0)); print(task.score(policy).metrics)"
    )
    command = [sys.executable, "-c", code, tmp_path / "shared"]
    there = subprocess.run(command, capture_output=True, text=True, check=True)
    policy = task.policy({"hidden": 32}, torch.Generator().manual_seed(0))
    assert there.stdout.strip() == str(task.score(policy).metrics)


# --- a table, a task of its own kind ------------------------------------------------------------------------------------


def test_stocks_are_a_task_like_any_other():
    market, cpu = random_market(130, 5, gaps=0, seed=5), torch.device("cpu")
    task = make_setup(market, num_envs=8).task
    assert require_task(task).name == "stocks"
    own = task.for_agent({"features": ["return_5"], "reward": "value", "cost_factor": 0.5})
    assert own.table(cpu).values.shape[-1] == 1
    assert own.practice.costs.fee_bps == 0.5 * own.trading.costs.fee_bps
    assert own.spec()["trading"]["costs"]["fee_bps"] == own.trading.costs.fee_bps, "agents are judged at the true costs"
    env = own.env(12, 3, cpu)
    assert (env.num_envs, env.groups) == (12, 4)
    policy = own.policy({"hidden": 16}, torch.Generator().manual_seed(0))
    assert PPO(policy, own.table(cpu), 4, CONFIG, torch.Generator()).collect(env).row.shape == (8, 12)


# --- tasks that lack a member, or return what they must not


def untrainable(task, tmp_path, kind=InputError, **changes):
    """The one line that training on a task ends in; nothing is left behind."""
    raised = refused("", finpod.train, task, out=tmp_path / "refused", error=kind, **{**SMALL, **changes})
    assert not any(tmp_path.iterdir())
    return str(raised)


@pytest.mark.parametrize("name", ["name", "num_inputs", "num_actions", "env", "score"])
def test_a_member_that_a_task_lacks_is_named(task, tmp_path, name):
    rest = {key: value for key, value in vars(type(task)).items() if not key.startswith("_") and key != name}
    lacking = type("Lacking", (Task,), rest)()
    assert f"Lacking is not a task: it lacks {name}" in untrainable(lacking, tmp_path)


def test_only_an_instance_of_a_subclass_of_task_is_trained(task, tmp_path):
    assert "3 is not a task" in untrainable(3, tmp_path)
    assert "Toy'> is not a task" in untrainable(type(task), tmp_path)


def changed(task, step=None, **members):
    """A task whose steps are changed by `step`, and that has other `members`."""
    numbers = type(task.env(1, 0, torch.device("cpu")))

    class Changed(numbers):
        def step(self, action):
            taken = super().step(action)
            return taken if step is None else step(taken)

    def env(self, num_envs, seed, device):
        return Changed(num_envs, seed, device)

    return type("Other", (type(task),), {"env": env, **members})()


@pytest.mark.parametrize(("step", "members", "told"), [
    (lambda taken: taken._replace(obs=Observation(taken.obs.state.repeat(1, 2))), {}, "(32, 2)"),
    (lambda taken: taken._replace(reward=taken.reward * float("nan")), {}, "reward of environment 0"),
    (None, {"num_inputs": 3}, "num_inputs is 3"),
    (None, {"score": lambda self, policy: Score({"other": 1.0})}, "is 'mean_return', but"),
    (None, {"score": lambda self, policy: 0.5}, "is 'mean_return', but"),
    (None, {"score": lambda self, policy: Score({"mean_return": float("nan")})}, "no agent has a validation score"),
])  # fmt: skip
def test_what_a_task_must_not_return_ends_in_one_line(task, tmp_path, step, members, told):
    assert told in untrainable(changed(task, step, **members), tmp_path, FinpodError)


def test_a_state_that_cannot_be_stored_is_named(task, tmp_path):
    class Odd(type(task.env(1, 0, torch.device("cpu")))):
        def state_dict(self):
            return {"place": np.zeros(3)}

    other = changed(task, env=lambda self, num_envs, seed, device: Odd(num_envs, seed, device))
    assert "ndarray" in untrainable(other, tmp_path)


@pytest.mark.parametrize(("argument", "value"), [("market", "sample"), ("hold", 3)])
def test_arguments_of_a_market_are_refused(task, tmp_path, argument, value):
    assert f"omit the argument {argument}" in untrainable(task, tmp_path, **{argument: value})


@pytest.mark.parametrize("argument", ["market", "train", "validation"])
def test_stocks_need_a_market_and_windows(tmp_path, argument):
    options = {"market": random_market(130, 4), "train": ("2024-02-01", "2024-03-01"),
               "validation": ("2024-03-04", "2024-04-01"), argument: None}  # fmt: skip
    assert f"{argument} is None; pass" in untrainable("stocks", tmp_path, **options)
    assert "market is 'sample'; pass" in untrainable("stocks", tmp_path, **(options | {"market": "sample"}))


def test_an_episode_that_never_ends_is_named(task, monkeypatch):
    monkeypatch.setattr("finpod.rl.evaluate.LONGEST", 20)
    endless = changed(task, lambda taken: taken._replace(truncated=torch.zeros_like(taken.truncated)))
    refused("20 steps", episodes, endless.env(2, 0, torch.device("cpu")), task.policy({}))


def test_a_file_without_one_task_is_named(tmp_path):
    file = tmp_path / "wrong.py"
    for text, told in ((f"{TOY}\n\nclass Second(Toy):\n    name = 'second'\n", "Toy, Second"), ("x = 1\n", "no task")):
        file.write_text(text)
        refused(told, load_task, file, error=StrategyError)


@pytest.mark.parametrize("content", ["", "[]", *(f'{{"format": "finpod trained run {n}"}}' for n in (1, 9))])
def test_a_folder_that_is_no_run_is_named(tmp_path, content):
    (tmp_path / "trained.json").write_text(content)
    assert str(tmp_path) in str(refused("", TrainedRun, tmp_path, error=CheckpointError))


def test_a_policy_of_the_tasks_own_is_loaded_with_the_task(task, tmp_path):
    class Odd(DensePolicy):
        kind = "own"

    class Own(type(task)):
        def policy(self, settings, generator=None):
            return Odd(DenseSpec(inputs=1, actions=1, hidden=8), generator)

        def space(self):
            return Space()

    run = finpod.train(Own(), out=tmp_path / "own", **SMALL)
    assert isinstance(run.load(0), Odd)
    refused("pass the task", TrainedRun(run.folder).load, 0, error=CheckpointError)
    assert isinstance(TrainedRun(run.folder, Own()).load(0), Odd)
