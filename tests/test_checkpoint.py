"""Checkpoints: what they hold, files that are not theirs, and training that goes on from them."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_agents import FEATURES, STEPS_AN_UPDATE, alike, make_pod, make_setup
from made_errors import refused
from made_markets import random_market

import finpod
from finpod.errors import CheckpointError
from finpod.rl.apg import APGConfig
from finpod.rl.checkpoint import FORMAT, Checkpoint
from finpod.rl.ppo import PPOConfig
from finpod.tournament.leaderboard import Settings
from finpod.tournament.pod import Pod


@pytest.fixture(scope="module")
def checkpoint():
    pod = make_pod(random_market(120, 5, gaps=0), seed=7)
    list(pod.train(STEPS_AN_UPDATE, 2 * STEPS_AN_UPDATE))
    return pod.checkpoint()


@pytest.fixture
def saved(checkpoint, tmp_path):
    checkpoint.save(tmp_path / "agent.pt")
    return tmp_path / "agent.pt"


def refusal(path):
    """Assert that a file that is no checkpoint gives an error of one line that names it."""
    assert str(path) in str(refused("", Checkpoint.load, path, error=CheckpointError))


def test_d19_a_snapshot_is_read_without_running_code_and_holds_all_that_makes_an_agent(checkpoint, saved):
    content = torch.load(saved, weights_only=True)
    assert content.pop("format") == FORMAT
    assert (content["seed"], content["steps"]) == (7, STEPS_AN_UPDATE)
    assert content["versions"] == {"finpod": finpod.__version__, "torch": torch.__version__}
    task = content["task_spec"]
    assert task["features"] == task["scaling"]["names"] == list(FEATURES)
    assert task["windows"] == {"train": ["2024-02-05", "2024-04-22"], "validation": ["2024-04-23", "2024-05-20"]}
    assert (task["tickers"], task["trained_until"]) == (list("ABCDE"), "2024-05-20")
    assert {"optimizer", "generator"} <= set(content["learner"])
    loaded = Checkpoint.load(saved)
    assert (loaded.task_spec, loaded.policy_spec, loaded.config) == (task, checkpoint.policy_spec, checkpoint.config)
    assert alike(loaded.policy().state_dict(), checkpoint.weights)
    assert not any(parameter.requires_grad for parameter in loaded.policy().parameters())
    assert list(saved.parent.iterdir()) == [saved]
    assert type(Checkpoint.from_bytes(replace(checkpoint, steps=np.int64(5)).to_bytes()).steps) is int


def test_d19_a_foreign_a_missing_and_a_damaged_file_give_one_line_and_execute_nothing(saved):
    """Foreign content; then cut anywhere, or with some bytes changed, in places that may not matter."""
    whole, random = saved.read_bytes(), np.random.default_rng(0)
    refusal(saved.with_name("missing.pt"))
    refusal(saved.parent)
    foreign = [b"", b"not a checkpoint", b"\x80\x04" + bytes(range(200)), pickle.dumps({"weights": [1, 2]})]
    for content in foreign + [whole[:length] for length in np.linspace(1, len(whole) - 1, 40).astype(int)]:
        saved.write_bytes(content)
        refusal(saved)
    trace = saved.with_name("executed")
    bomb = {"format": FORMAT, "weights": type("Bomb", (), {"__reduce__": lambda self: (Path.touch, (trace,))})()}
    for content in (bomb, {"state_dict": {"w": torch.ones(2)}}, [1, 2, 3], {"format": FORMAT, "seed": 1}):
        torch.save(content, saved)
        refusal(saved)
    assert not trace.exists()
    pickle.loads(pickle.dumps(bomb))
    assert trace.exists()  # it would have gone off
    for _ in range(100):
        damaged = np.frombuffer(whole, np.uint8).copy()
        damaged[random.integers(0, len(whole), 3)] = random.integers(0, 256, 3)
        try:
            Checkpoint.from_bytes(damaged.tobytes()).policy()
        except CheckpointError as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_weights_of_another_size_give_one_line(checkpoint):
    for part, value in (
        ("policy_spec", {**checkpoint.policy_spec, "hidden": 16}),
        ("policy_spec", {"colour": "red"}),
        ("weights", {**checkpoint.weights, "more": torch.ones(1)}),
        ("weights", {"out.weight": "text"}),
    ):
        refused(r"^the weights, stored by [^\n]*$", replace(checkpoint, **{part: value}).policy, error=CheckpointError)


LEARNING = {
    "ppo": PPOConfig(num_steps=4, num_minibatches=2, update_epochs=2, ent_coef=0.01, weight_decay=0.01),
    "linear apg": APGConfig(num_steps=4, weight_decay=0.01),
    "mlp apg": APGConfig(num_steps=4, network="mlp", weight_decay=0.01),
}


def pod_of(setup, config, stored=None):
    learner = "ppo" if isinstance(config, PPOConfig) else "apg"
    settings = Settings(agent_id="a", seed=1, config=config, learner=learner)
    return Pod(replace(setup, config=config, learner=learner), settings, stored)


@pytest.mark.parametrize("config", LEARNING.values(), ids=LEARNING)
def test_d06_training_resumes_to_the_same_weights_bit_for_bit(config):
    setup = make_setup(random_market(120, 5, gaps=0), start_groups=8)
    whole, half = pod_of(setup, config), pod_of(setup, config)
    list(whole.train(4 * 32, 4 * 32))
    list(half.train(2 * 32, 4 * 32))
    file = half.checkpoint().to_bytes()
    list(half.train(4 * 32, 4 * 32))  # must not reach back into what was saved
    stored = Checkpoint.from_bytes(file)
    resumed = pod_of(setup, config, stored)
    assert resumed.steps == 64
    list(resumed.train(4 * 32, 4 * 32))
    assert resumed.learner.updates == 4
    assert not torch.equal(whole.policy.out.weight, stored.weights["out.weight"])
    for pod in (half, resumed):
        assert alike(whole.policy.state_dict(), pod.policy.state_dict())
        assert alike(whole.env.state_dict(), pod.env.state_dict())
    alone = Checkpoint.from_bytes(whole.checkpoint().to_bytes()).policy()  # built without the task
    assert alike(alone.state_dict(), whole.policy.state_dict())
    child = pod_of(setup, replace(config, weight_decay=0.5), replace(stored, env={}))
    assert child.learner.optimizer.param_groups[0]["weight_decay"] == 0.5
