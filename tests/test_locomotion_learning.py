"""Learning of locomotion: a short check; full runs, marked `slow`, take hours."""

import statistics

import pytest

import finpod
from finpod.bench import learning
from finpod.bench.learning import GOALS, SEEDS, gymnasium_returns
from finpod.locomotion import LocomotionTask

pytest.importorskip("mujoco")
LEARNT = 700
"""Mean return that a hundred thousand steps reach: seeds 0 to 4 reached 1,232 to 2,007, and a random policy has about -300."""


@pytest.mark.journey
def test_half_cheetah_runs_after_a_hundred_thousand_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = finpod.train("halfcheetah", out="c", agents=1, rounds=1, keep=1, steps=100_000, seed=0, device="cpu")
    returns, lengths = gymnasium_returns(LocomotionTask(name="halfcheetah").definition, run.load(0))
    assert lengths == [1000] * 20
    assert statistics.mean(returns) > LEARNT


@pytest.mark.slow
@pytest.mark.parametrize("name", list(GOALS))
def test_the_median_of_five_seeds_reaches_the_goal(name, tmp_path):
    rows = learning.run([name], SEEDS, tmp_path)
    assert statistics.median(statistics.mean(row["returns"]) for row in rows) >= GOALS[name]


@pytest.fixture
def short(monkeypatch):
    """Runs of two updates and episodes of 50 steps."""
    import dataclasses

    from finpod.envs.locomotion.specs import SPECS

    for name in ("swimmer", "hopper"):
        monkeypatch.setitem(SPECS, name, dataclasses.replace(SPECS[name], steps=4096))
    monkeypatch.setattr("finpod.envs.locomotion.environment.TIME_LIMIT", 50)
    monkeypatch.setattr(learning, "POINTS", 2)


def test_rows_are_trained_once_and_make_a_table_and_curves(short, tmp_path, monkeypatch):
    rows = learning.run(["swimmer", "hopper"], [1, 2], tmp_path)
    assert [(row["task"]["task"], row["seed"]) for row in rows] == [
        ("swimmer", 1),
        ("swimmer", 2),
        ("hopper", 1),
        ("hopper", 2),
    ]
    assert all(len(row["returns"]) == len(row["lengths"]) == 20 for row in rows)
    assert rows[0]["lengths"] == [1000] * 20  # in Gymnasium's own environment
    assert [steps for steps, _ in rows[0]["curve"]] == [2048, 4096]
    assert rows[0]["returns"] != rows[1]["returns"]
    monkeypatch.setattr(learning, "learn", lambda *given: pytest.fail("made again"))
    assert learning.run(["swimmer", "hopper"], [1, 2], tmp_path) == rows
    head, line, *lines = learning.table(rows).splitlines()
    assert len(lines) == 2
    assert {text.count("|") for text in (head, line, *lines)} == {7}
    assert "Hopper-v5, standard variant: 11 inputs, 3 actions | 4,096" in lines[1]
    assert "3000" in lines[1]
    learning.draw(rows, tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").read_text().count("<path") > 4


def test_our_figures_are_those_of_gymnasium():
    """The same policy in both: an untrained one falls soon."""
    task = LocomotionTask(name="hopper")
    policy = task.policy({"hidden": 64}, __import__("torch").Generator().manual_seed(0))
    returns, lengths = gymnasium_returns(task.definition, policy)
    metrics = task.score(policy).metrics
    assert statistics.mean(returns) == pytest.approx(metrics["mean_return"], rel=0.2)
    assert statistics.mean(lengths) == pytest.approx(metrics["mean_length"], rel=0.2)
