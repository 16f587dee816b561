import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_agents import FEATURES, STEPS_AN_UPDATE, make_pod, make_setup
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
    with pytest.raises(CheckpointError) as raised:
        Checkpoint.load(path)
    text = str(raised.value)
    assert "\n" not in text
    assert str(path) in text
    assert "train again" in text
    return text


def test_d19_a_snapshot_is_read_without_running_code_and_holds_all_that_makes_an_agent(checkpoint, saved):
    content = torch.load(saved, weights_only=True)
    assert content.pop("format") == FORMAT
    assert content["seed"] == 7
    assert content["steps"] == STEPS_AN_UPDATE
    assert content["versions"] == {"finpod": finpod.__version__, "torch": torch.__version__}
    task = content["task_spec"]
    assert task["features"] == list(FEATURES)
    assert task["tickers"] == list("ABCDE")
    assert task["scaling"]["names"] == list(FEATURES)
    assert all(np.isfinite(task["scaling"]["sd"]))
    assert task["trained_until"] == "2024-05-20"
    assert task["windows"] == {"train": ["2024-02-05", "2024-04-22"], "validation": ["2024-04-23", "2024-05-20"]}
    assert task["trading"]["costs"]["fee_bps"] == 10
    assert {"optimizer", "generator"} <= set(content["learner"])
    assert content["config"]["learning_rate"] == 1e-3


def test_a_snapshot_comes_back_as_it_was(checkpoint, saved):
    loaded = Checkpoint.load(saved)
    for name, tensor in checkpoint.weights.items():
        assert torch.equal(loaded.weights[name], tensor)
    assert loaded.task_spec == checkpoint.task_spec
    assert loaded.policy_spec == checkpoint.policy_spec
    assert loaded.config == checkpoint.config
    policy = loaded.policy()
    assert not any(parameter.requires_grad for parameter in policy.parameters())
    assert torch.equal(policy.out.weight, checkpoint.weights["out.weight"])
    assert list(saved.parent.iterdir()) == [saved]


def test_numbers_from_numpy_are_stored_as_plain_ones(checkpoint, tmp_path):
    config = {**checkpoint.config, "learning_rate": np.float64(2e-3), "nested": [(np.int64(3), np.bool_(True))]}
    replace(checkpoint, config=config, steps=np.int64(5)).save(tmp_path / "agent.pt")
    loaded = Checkpoint.load(tmp_path / "agent.pt")
    assert loaded.config["learning_rate"] == 2e-3
    assert loaded.config["nested"] == [(3, True)]
    assert type(loaded.steps) is int


def test_d19_a_foreign_file_gives_one_line(tmp_path):
    path = tmp_path / "agent.pt"
    for content in (b"", b"not a checkpoint", b"\x80\x04" + bytes(range(200)), pickle.dumps({"weights": [1, 2]})):
        path.write_bytes(content)
        assert "is not a finpod checkpoint, or it is damaged" in refusal(path)
    torch.save({"state_dict": {"w": torch.ones(2)}}, path)
    assert FORMAT in refusal(path)
    torch.save([1, 2, 3], path)
    assert FORMAT in refusal(path)


def test_d19_a_missing_file_and_a_folder_give_one_line(tmp_path):
    assert "is missing" in refusal(tmp_path / "agent.pt")
    assert "cannot be read" in refusal(tmp_path)


def test_d19_a_damaged_file_gives_one_line(saved):
    """Cut anywhere, or with some bytes changed: refused, or, where the bytes do not matter, read as it was."""
    whole, random = saved.read_bytes(), np.random.default_rng(0)
    for length in np.linspace(0, len(whole) - 1, 40).astype(int):
        saved.write_bytes(whole[:length])
        refusal(saved)
    for _ in range(150):
        damaged = np.frombuffer(whole, np.uint8).copy()
        damaged[random.integers(0, len(whole), 3)] = random.integers(0, 256, 3)
        saved.write_bytes(damaged.tobytes())
        try:
            Checkpoint.load(saved).policy()
        except CheckpointError as error:
            assert "\n" not in str(error)  # noqa: PT017


class Bomb:
    """What unpickles into a call."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


@pytest.mark.parametrize("archive", [True, False])
def test_d19_nothing_in_a_file_is_executed(tmp_path, archive):
    path, trace = tmp_path / "agent.pt", tmp_path / "executed"
    if archive:
        torch.save({"format": FORMAT, "weights": Bomb(trace)}, path)
    else:
        path.write_bytes(pickle.dumps({"format": FORMAT, "weights": Bomb(trace)}))
    refusal(path)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Bomb(trace)))
    assert trace.exists()  # it would have gone off


def test_weights_of_another_size_give_one_line(checkpoint):
    for change in ({"policy_spec": {**checkpoint.policy_spec, "hidden": 16}}, {"policy_spec": {"colour": "red"}},
                   {"weights": {**checkpoint.weights, "more": torch.ones(1)}}, {"weights": {"out.weight": "text"}}):  # fmt: skip
        with pytest.raises(CheckpointError, match="the weights, stored by ") as raised:
            replace(checkpoint, **change).policy()
        assert "\n" not in str(raised.value)


# --- going on -------------------------------------------------------------------------------------------------------------

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
def test_d06_training_resumes_to_the_same_weights_bit_for_bit(config, tmp_path):
    setup = make_setup(random_market(120, 5, gaps=0), start_groups=8)
    whole, half = pod_of(setup, config), pod_of(setup, config)
    list(whole.train(4 * 32, 4 * 32))
    list(half.train(2 * 32, 4 * 32))
    half.checkpoint().save(tmp_path / "half.pt")
    list(half.train(4 * 32, 4 * 32))  # must not reach back into what was saved
    stored = Checkpoint.load(tmp_path / "half.pt")
    resumed = pod_of(setup, config, stored)
    assert resumed.steps == 64
    list(resumed.train(4 * 32, 4 * 32))
    assert resumed.learner.updates == 4
    assert not torch.equal(whole.policy.out.weight, stored.weights["out.weight"])
    for name, tensor in whole.policy.state_dict().items():
        assert torch.equal(resumed.policy.state_dict()[name], tensor), name
        assert torch.equal(half.policy.state_dict()[name], tensor), name
    for (name, state), other in zip(whole.env.state_dict().items(), resumed.env.state_dict().values(), strict=True):
        assert torch.equal(torch.as_tensor(state), torch.as_tensor(other)), name
    alone = Checkpoint.from_bytes(whole.checkpoint().to_bytes()).policy()  # built without the task
    assert torch.equal(alone.out.weight, whole.policy.out.weight)
    child = pod_of(setup, replace(config, weight_decay=0.5), replace(stored, env={}))
    assert child.learner.optimizer.param_groups[0]["weight_decay"] == 0.5
