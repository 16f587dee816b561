import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from finpod.errors import CheckpointError, FinpodError
from finpod.rl.ppo import PPOConfig
from finpod.tournament.evolution import Drawn, Job
from finpod.tournament.leaderboard import Entry, Leaderboard, Settings, rank

NAN = float("nan")


def entry(trial, score, agent=None, parent=None, generation=0):
    settings = Settings(
        agent_id=agent or f"agent {trial}",
        seed=100 + trial,
        config=PPOConfig(gamma=0.9),
        task={"hidden": 32, "features": None, "reward": None, "cost_factor": 1.0},
    )
    return Entry(trial=trial, settings=settings, parent_id=parent, generation=generation, score=score,
                 metrics={"sharpe": score}, returns=np.array([0.01, -0.01]), steps=64 * (generation + 1),
                 stored=lambda: SimpleNamespace(steps=64))  # fmt: skip


def board(*entries):
    made = Leaderboard()
    for one in entries:
        made.submit(one)
    return made


def scored(*scores):
    return board(*(entry(trial, score) for trial, score in enumerate(scores)))


def test_d10_scores_that_are_not_numbers_are_last():
    assert rank([NAN, 1.0, 3.0, 2.0]) == [2, 3, 1, 0]
    made = scored(NAN, 1.0, 3.0, 2.0)
    assert [one.trial for one in made.ranked()] == [2, 3, 1, 0]
    assert [one.trial for one in made.best(1)] == [2]
    assert [one.trial for one in made.best(10)] == [2, 3, 1]  # one without a score is never chosen


def test_d10_no_score_at_all_is_an_error():
    with pytest.raises(FinpodError, match="no agent has a validation score") as raised:
        scored(NAN, NAN).best(1)
    assert "\n" not in str(raised.value)
    with pytest.raises(FinpodError):
        Leaderboard().best(1)


def test_ties_go_to_the_earlier_trial():
    assert rank([1.0, 2.0, 2.0, 1.0, NAN, NAN]) == [1, 2, 0, 3, 4, 5]
    assert rank([0.0, -0.0]) == [0, 1]
    assert rank([]) == []


def test_ranking_is_a_permutation_from_best_to_worst():
    random = np.random.default_rng(0)
    for _ in range(50):
        scores = random.choice([NAN, -1.5, 0.0, 0.5, 2.0], 8).tolist()
        order = rank(scores)
        assert sorted(order) == list(range(8))
        ranked = [scores[i] for i in order]
        known = [score for score in ranked if not math.isnan(score)]
        assert known == sorted(known, reverse=True)
        assert all(math.isnan(score) for score in ranked[len(known) :])


def test_the_log_keeps_every_trial_in_order():
    made = scored(1.0, NAN, 3.0)
    made.ranked()
    made.best(1)
    assert [one.trial for one in made.log] == [0, 1, 2]


def test_each_agent_is_chosen_once_by_its_best_trial():
    made = board(
        entry(0, 2.0, "a"), entry(1, 1.0, "b"), entry(2, 1.5, "a", generation=1), entry(3, 1.8, "c", "a", generation=1)
    )
    assert [(one.agent_id, one.trial) for one in made.best(3)] == [("a", 0), ("c", 3), ("b", 1)]
    assert [one.trial for one in made.best(2)] == [0, 3]
    assert [one.trial for one in made.ranked(made.log[2:])] == [3, 2]


def unreadable():
    raise CheckpointError("agents/1.pt is missing")


def test_one_that_cannot_be_read_is_told_and_gives_way_to_the_next():
    gone = replace(entry(1, 3.0), stored=unreadable)
    made, said = board(entry(0, 1.0), gone, entry(2, 2.0), entry(3, 0.5, agent="agent 1")), []
    assert [one.trial for one in made.choose(2, None, 1.0, said.append)] == [2, 0]
    assert said == ["agent agent 1 cannot be kept: agents/1.pt is missing"]
    assert made.unread == {1: "agents/1.pt is missing"}
    assert [one.trial for one in made.ranked()] == [1, 2, 0, 3]
    assert [one.trial for one in made.choose(9, None, 1.0, said.append)] == [2, 0, 3]  # what it was later can be read
    assert len(said) == 1


def test_a_summary_is_plain_values():
    summary = entry(3, 0.5, "c", "a", 1).summary()
    assert summary.pop("config")["gamma"] == 0.9
    assert summary == {
        "trial": 3, "agent": "c", "parent": "a", "generation": 1, "seed": 103, "score": 0.5, "steps": 128,
        "metrics": {"sharpe": 0.5},
        "settings": {"hidden": 32, "features": None, "reward": None, "cost_factor": 1.0},
    }  # fmt: skip


def test_the_order_that_is_kept_is_the_order_that_sorting_gives():
    random = np.random.default_rng(1)
    for _ in range(20):
        count = int(random.integers(0, 30))
        scores = random.choice([NAN, -math.inf, -1.5, 0.0, -0.0, 0.5, math.inf], count)
        made = Leaderboard()
        for trial in random.permutation(count):
            made.submit(entry(int(trial), float(scores[trial]), generation=int(trial) % 3))
        order = rank([one.score for one in made.log])
        assert [one.trial for one in made.log] == list(range(count))
        assert [one.trial for one in made.ranked()] == order
        assert [one.trial for one in made.top(4)] == order[:4]
        assert made.ranked(made.log) == made.ranked() == Leaderboard(made.log).ranked()
        for level in range(4):
            at_level = [trial for trial in order if trial % 3 == level]
            assert [one.trial for one in made.better_half(level)] == at_level[: len(at_level) // 2]


def test_jobs_that_were_drawn_tell_who_exists_and_what_has_begun_from_whom():
    def job(trial, source=None, copied=False):
        settings = Settings(agent_id=str(trial), seed=trial, config=PPOConfig())
        return Job(trial=trial, generation=0, settings=settings, parent_id=None, source=source, copied=copied)

    jobs = [job(0), job(1), job(2, source=0), job(3, source=0, copied=True), job(4)]
    drawn = Drawn(jobs[:2])
    drawn.add(jobs[2:])
    assert (list(drawn), len(drawn), drawn[3], drawn[1:3]) == (jobs, 5, jobs[3], jobs[1:3])
    assert (drawn.made, drawn.taken) == (4, {(0, False), (0, True)})
