"""Tasks that lack a member, or return what they must not: errors of one line."""

import numpy as np
import pytest
import torch
from made_markets import random_market
from made_toy import SMALL, TOY

import finpod
from finpod.errors import CheckpointError, FinpodError, InputError, StrategyError
from finpod.loading import load_task
from finpod.rl.evaluate import episodes
from finpod.rl.policy import DensePolicy, DenseSpec
from finpod.rl.task import Observation, Score, Space, Task
from finpod.tournament.trained_run import TrainedRun


def refused(task, tmp_path, kind=InputError, **changes):
    """The one line that training on a task ends in; nothing is left behind."""
    with pytest.raises(kind) as raised:
        finpod.train(task, out=tmp_path / "refused", **{**SMALL, **changes})
    assert "\n" not in str(raised.value)
    assert not any(tmp_path.iterdir())
    return str(raised.value)


@pytest.mark.parametrize("name", ["name", "num_inputs", "num_actions", "env", "score"])
def test_a_member_that_a_task_lacks_is_named(task, tmp_path, name):
    rest = {key: value for key, value in vars(type(task)).items() if not key.startswith("_") and key != name}
    lacking = type("Lacking", (Task,), rest)()
    assert f"Lacking is not a task: it lacks {name}" in refused(lacking, tmp_path)


def test_only_an_instance_of_a_subclass_of_task_is_trained(task, tmp_path):
    assert "3 is not a task" in refused(3, tmp_path)
    assert "Toy'> is not a task" in refused(type(task), tmp_path)


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
    (None, {"score": lambda self, policy: Score({"other": 1.0})}, "no metric 'mean_return'"),
    (None, {"score": lambda self, policy: 0.5}, "no metric 'mean_return'"),
    (None, {"score": lambda self, policy: Score({"mean_return": float("nan")})}, "no agent has a validation score"),
])  # fmt: skip
def test_what_a_task_must_not_return_ends_in_one_line(task, tmp_path, step, members, told):
    assert told in refused(changed(task, step, **members), tmp_path, FinpodError)


def test_a_state_that_cannot_be_stored_is_named(task, tmp_path):
    class Odd(type(task.env(1, 0, torch.device("cpu")))):
        def state_dict(self):
            return {"place": np.zeros(3)}

    other = changed(task, env=lambda self, num_envs, seed, device: Odd(num_envs, seed, device))
    assert "ndarray" in refused(other, tmp_path)


@pytest.mark.parametrize(("argument", "value"), [("market", "sample"), ("hold", 3)])
def test_arguments_of_a_market_are_refused(task, tmp_path, argument, value):
    assert f"so {argument} " in refused(task, tmp_path, **{argument: value})


@pytest.mark.parametrize("argument", ["market", "train", "validation"])
def test_stocks_need_a_market_and_windows(tmp_path, argument):
    options = {"market": random_market(130, 4), "train": ("2024-02-01", "2024-03-01"),
               "validation": ("2024-03-04", "2024-04-01"), argument: None}  # fmt: skip
    assert f"needs {argument}" in refused("stocks", tmp_path, **options)
    assert "needs market" in refused("stocks", tmp_path, **(options | {"market": "sample"}))


def test_an_episode_that_never_ends_is_named(task, monkeypatch):
    monkeypatch.setattr("finpod.rl.evaluate.LONGEST", 20)
    endless = changed(task, lambda taken: taken._replace(truncated=torch.zeros_like(taken.truncated)))
    env = endless.env(2, 0, torch.device("cpu"))
    with pytest.raises(InputError, match="20 steps"):
        episodes(env, task.policy({}))


def test_a_file_that_fails_is_named_by_its_line(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(TOY.replace('measure = "reach", 1, 1, 32,', 'measure = "reach", 1, 1 / 0, 32,'))
    with pytest.raises(StrategyError, match=r"wrong\.py cannot be run: line \d+: ZeroDivisionError"):
        load_task(file)
    for text, told in ((f"{TOY}\n\nclass Second(Toy):\n    name = 'second'\n", "Toy, Second"), ("x = 1\n", "no task")):
        file.write_text(text)
        with pytest.raises(StrategyError, match=told):
            load_task(file)


@pytest.mark.parametrize("content", ["", "[]", *(f'{{"format": "finpod trained run {n}"}}' for n in (1, 9))])
def test_a_folder_that_is_no_run_is_named(tmp_path, content):
    (tmp_path / "trained.json").write_text(content)
    with pytest.raises(CheckpointError) as raised:
        TrainedRun(tmp_path)
    assert "\n" not in str(raised.value)
    assert str(tmp_path) in str(raised.value)


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
    with pytest.raises(CheckpointError, match="load the agent with its task"):
        TrainedRun(run.folder).load(0)
    assert isinstance(TrainedRun(run.folder, Own()).load(0), Odd)
