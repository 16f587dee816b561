"""Learning of locomotion: a short check; full runs, marked `slow`, take hours."""

import statistics
from dataclasses import replace
from itertools import product

import pytest
import torch

import finpod
import learning
from finpod.envs.locomotion.specs import SPECS
from finpod.locomotion import LocomotionTask
from learning import GOALS, SEEDS, gymnasium_returns

pytest.importorskip("mujoco")
LEARNT = 700
"""Mean return that a hundred thousand steps reach: seeds 0 to 4 reached 1,232 to 2,007, and a random policy has about -300."""


@pytest.mark.journey
@pytest.mark.usefixtures("apart")
def test_half_cheetah_runs_after_a_hundred_thousand_steps():
    run = finpod.train("halfcheetah", out="c", agents=1, rounds=1, keep=1, steps=100_000, seed=0, device="cpu")
    returns, lengths = gymnasium_returns(LocomotionTask(name="halfcheetah").definition, run.load(0))
    assert lengths == [1000] * 20
    assert statistics.mean(returns) > LEARNT


@pytest.mark.slow
@pytest.mark.parametrize("name", list(GOALS))
def test_the_median_of_five_seeds_reaches_the_goal(name, tmp_path):
    rows = learning.run([name], SEEDS, tmp_path)
    assert statistics.median(statistics.mean(row["returns"]) for row in rows) >= GOALS[name]


def test_rows_make_a_table_and_curves(tmp_path, monkeypatch):
    """Runs of two updates, evaluations of 50 steps, and two episodes in Gymnasium."""
    for name in ("swimmer", "hopper"):
        monkeypatch.setitem(SPECS, name, replace(SPECS[name], steps=4096))
    monkeypatch.setattr("finpod.envs.locomotion.environment.TIME_LIMIT", 50)
    monkeypatch.setattr(learning, "POINTS", 2)
    monkeypatch.setattr(learning, "EPISODES", 2)
    rows = learning.run(["swimmer", "hopper"], [1, 2], tmp_path)
    assert [(row["task"]["task"], row["seed"]) for row in rows] == list(product(("swimmer", "hopper"), (1, 2)))
    assert rows[0]["lengths"] == [1000] * 2  # in Gymnasium's own environment
    assert [steps for steps, _ in rows[0]["curve"]] == [2048, 4096]
    assert rows[0]["returns"] != rows[1]["returns"]
    assert "Hopper-v5, standard variant: 11 inputs, 3 actions | 4,096" in learning.table(rows).splitlines()[-1]
    learning.draw(rows, tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").read_text().count("<path") > 4


def test_our_figures_are_those_of_gymnasium():
    """The same policy in both: an untrained one falls soon."""
    task = LocomotionTask(name="hopper")
    policy = task.policy({"hidden": 64}, torch.Generator().manual_seed(0))
    returns, lengths = gymnasium_returns(task.definition, policy)
    metrics = task.score(policy).metrics
    assert statistics.mean(returns) == pytest.approx(metrics["mean_return"], rel=0.2)
    assert statistics.mean(lengths) == pytest.approx(metrics["mean_length"], rel=0.2)
