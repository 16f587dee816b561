"""History of a run, finished or not, from its log."""

import math

import numpy as np
import pytest
from made_agents import tiny_train
from made_errors import refused
from made_logs import BEGAN, trial, write_run

from finpod.significance import expected_best, overfitting
from finpod.storage import Store
from finpod.tournament.analysis import lineage, luck
from finpod.tournament.history import read_history
from finpod.tournament.leaderboard import ranked


def of(history, number, seed=0):
    return history.logs[seed].board.trials[number]


def test_a_trial_is_told_whole(history):
    first = of(history, 0)
    assert (first.run, first.agent, first.parent, first.source, first.level) == (0, "0-0", None, None, 1)
    assert (first.steps, first.spent, first.state) == (300, 300, "ended")
    assert first.score == first.metrics["sharpe"]
    assert first.returns.shape == (60,)
    assert first.settings["learning_rate"] == 1e-3
    assert first.settings["features"] is None
    assert "seed" not in first.settings
    (place,) = first.places
    assert (place.node, place.pid, place.started, place.ended) == ("node0", 100, BEGAN, BEGAN + 10)
    assert of(history, 2).lost[0].reason == "WorkerCrashedError: made up"
    assert (of(history, 5).state, of(history, 5).reason) == ("failed", "ValueError: trial 5 made up a failure")
    copied = next(one for one in history.trials if one.copied)
    fresh = next(one for one in history.trials if one.source is None and one.level == 2)
    assert [(one.steps, one.spent) for one in (copied, fresh)] == [(300 * copied.level, 300), (600, 600)]
    assert copied.parent == of(history, copied.source, copied.run).agent


def test_what_train_leaves_is_read(market, tmp_path):
    ensemble = tiny_train(market, tmp_path / "tiny", agents=2, keep=1, seed=7)
    history = read_history(tmp_path / "tiny")
    assert [one.score for one in ranked(history.trials)] == [row["score"] for row in ensemble.provenance["board"]]
    assert sum(one.kept for one in history.trials) == 1
    assert np.array_equal(history.trials[0].returns, np.subtract(ensemble.log[0]["returns"], ensemble.baseline))
    assert all(one.places and one.places[-1].ended > one.places[0].started for one in history.trials)


def test_a_folder_without_its_manifest_is_read_with_a_note(tmp_path):
    folder = write_run(tmp_path / "bare", rounds=1, steps=300)
    (folder / "ensemble.json").write_text("{")
    history = read_history(folder)
    assert not any(one.kept for one in history.trials)
    assert "selected agents are unknown" in history.notes[0]


def test_what_is_no_run_is_named(tmp_path):
    refused("nowhere does not exist", read_history, tmp_path / "nowhere")
    refused("has no log of a tournament", read_history, tmp_path)
    Store(tmp_path / "young.unfinished").write("seed-0/log.jsonl", b"")
    refused("has just begun", read_history, tmp_path / "young")


def test_luck_is_that_of_as_many_draws():
    table = np.random.default_rng(1).normal(size=(64, 5))
    scores = [0.5, -0.1, 0.3, 0.2, 0.0]
    trials = [trial(i, score, returns=table[:, i]) for i, score in enumerate(scores)]
    found = luck([*trials, trial(5, math.nan, state="failed")])
    without = luck([trial(i, 100.0 * i) for i in range(3)])
    assert math.isnan(without.expected)  # no returns: 0 is not said to be no skill
    assert (found.trials, found.best) == (5, 0.5)
    assert found.mean == pytest.approx(np.mean(scores))
    assert found.sd == pytest.approx(np.std(scores, ddof=1))
    assert found.expected == pytest.approx(expected_best(5, found.sd))
    assert found.alike == pytest.approx(found.mean + found.expected)
    assert found.overfitting == overfitting(table, splits=16)


def test_luck_of_too_little_is_undefined():
    assert math.isnan(luck([]).best)
    alone = luck([trial(0, 1.0, returns=np.ones(60))])
    assert alone.best == alone.mean == 1.0
    assert all(math.isnan(value) for value in (alone.sd, alone.expected, alone.alike, alone.overfitting))
    for lengths in ([6] * 4, [60, 61, 62, 63], [60] * 3):
        trials = [trial(i, float(i), returns=np.arange(length) * 1.0) for i, length in enumerate(lengths)]
        assert math.isnan(luck(trials).overfitting)


def test_many_trials_are_judged_in_fewer_blocks(monkeypatch):
    asked = []

    def note(table, splits):
        asked.append((table.shape, splits))
        return 0.25

    monkeypatch.setattr("finpod.tournament.analysis.overfitting", note)
    for count in (10, 500, 20_000):
        assert luck([trial(i, float(i), returns=np.zeros(64)) for i in range(count)]).overfitting == 0.25
    assert asked == [((64, 10), 16), ((64, 500), 12), ((64, 20_000), 8)]


def test_the_tree_holds_every_agent_once_after_its_parent():
    trials = [
        trial(0),
        trial(1),
        trial(2, agent="0-0", source=0, level=2),
        trial(3, agent="0-2", parent="0-0", source=0, copied=True, level=2),
        trial(4, agent="0-3", parent="0-2", source=3, copied=True, level=3),
        trial(5, agent="0-4", parent="gone", source=9, copied=True, level=2),
        trial(0, run=1),
    ]
    tree = [(branch.depth, branch.agent, [one.number for one in branch.trials]) for branch in lineage(trials)]
    assert tree == [(0, "0-0", [0, 2]), (1, "0-2", [3]), (2, "0-3", [4]),
                    (0, "0-1", [1]), (0, "0-4", [5]), (0, "1-0", [0])]  # fmt: skip
