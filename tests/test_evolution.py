"""The generator and the selector: who is trained next, compared with whom, and how it differs."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from made_agents import CONFIG, space_of
from made_tournaments import FEATURES, UPDATE, Made, driver_of, lines, made_up, plan_of, play

from finpod.errors import InputError
from finpod.rl.ppo import BOUNDS, PPOConfig
from finpod.storage import Store
from finpod.tasks import COST_FACTOR, HIDDEN
from finpod.tournament.evolution import (
    FEWEST,
    Drawn,
    EvolutionConfig,
    Evolver,
    Job,
    fresh,
    varied,
)
from finpod.tournament.leaderboard import Entry, Leaderboard, Settings
from finpod.workers.executor import Failed

NAN = float("nan")
SPACE = space_of(FEATURES)


def generator(fresh=0.25, structure=True, seed=3):
    return Evolver(seed=seed, config=PPOConfig(), space=SPACE, search=EvolutionConfig(fresh=fresh, structure=structure))


def entry_of(job, score, *, lost=False):
    """How a job did."""
    if lost:
        return job.failed()
    return job.entry(score, {"sharpe": score}, [0.0], 64 * (job.generation + 1), lambda: None)


def round_of(scores, **search):
    """A first round with these scores, None for one that was lost; its entries."""
    jobs = generator(**search).first_round(len(scores))
    return [entry_of(job, score, lost=score is None) for job, score in zip(jobs, scores, strict=True)]


def played(tmp_path, slots=1, pick=lambda running: 0, **plan):
    """The board and the draws of a made-up tournament."""
    store = Store(tmp_path / f"{slots}-{len(list(tmp_path.iterdir()))}")
    driver = driver_of(store, plan_of(**plan), Made(slots, pick))
    return driver.run(), list(driver.drawn)


def test_the_first_agent_is_as_asked_for_and_the_others_are_varied_or_fresh():
    jobs = generator(fresh=0).first_round(6)
    assert [job.trial for job in jobs] == list(range(6))
    assert jobs[0].settings.config == PPOConfig()
    assert len({job.settings.seed for job in jobs}) == len({job.settings.agent_id for job in jobs}) == 6
    for job in jobs[1:]:
        assert job.settings.config.learning_rate / PPOConfig().learning_rate in (
            pytest.approx(0.8),
            pytest.approx(1.25),
        )
        assert job.settings.task["features"] is None
    for job in jobs:
        assert (job.source, job.parent_id, job.copied, job.generation) == (None, None, False, 0)
    assert {job.settings.config.learning_rate for job in generator(fresh=1).first_round(20)[1:]}.isdisjoint(
        {PPOConfig().learning_rate * 0.8, PPOConfig().learning_rate * 1.25}
    )


def test_fresh_agents_draw_every_setting_within_its_bounds():
    drawn = [fresh(CONFIG, SPACE, EvolutionConfig(), str(i), i, np.random.default_rng(i)) for i in range(400)]
    for name, (low, high) in BOUNDS.items():
        values = np.array([getattr(one.config, name) for one in drawn])
        assert low <= values.min() < values.max() <= high
        middle = 1 - math.sqrt((1 - low) * (1 - high)) if name in ("gamma", "gae_lambda") else math.sqrt(low * high)
        assert 0.4 < np.mean(values < middle) < 0.6  # log-uniform: half lie below the geometric middle
    assert {one.task["hidden"] for one in drawn} == set(HIDDEN)
    assert {one.task["reward"] for one in drawn} == {"log", "value"}
    factors = np.array([one.task["cost_factor"] for one in drawn])
    assert COST_FACTOR[0] <= factors.min() < 0.6
    assert 1.8 < factors.max() <= COST_FACTOR[1]
    sizes = Counter(len(one.task["features"]) for one in drawn)
    assert set(sizes) == set(range(FEWEST, len(FEATURES) + 1))
    for one in drawn:
        chosen = one.task["features"]
        assert list(chosen) == [name for name in FEATURES if name in chosen]  # in the panel's order, once
        assert replace(one.config, **{name: getattr(CONFIG, name) for name in BOUNDS}) == CONFIG  # the rest is as asked
    assert {name for one in drawn for name in one.task["features"]} == set(FEATURES)


def test_with_few_features_all_of_them_are_observed():
    drawn = fresh(
        CONFIG, replace(SPACE, subsets={"features": FEATURES[:2]}), EvolutionConfig(), "a", 1, np.random.default_rng(0)
    )
    assert drawn.task["features"] == FEATURES[:2]


def test_without_structure_fresh_agents_keep_features_reward_and_width():
    drawn = [
        fresh(CONFIG, SPACE, EvolutionConfig(structure=False), str(i), i, np.random.default_rng(i)) for i in range(20)
    ]
    assert {(one.task["features"], one.task["reward"], one.task["hidden"]) for one in drawn} == {(None, None, 32)}
    assert len({one.config.learning_rate for one in drawn}) == len({one.task["cost_factor"] for one in drawn}) == 20


def test_a_copy_keeps_what_would_change_its_network():
    own = {"hidden": 16, "features": FEATURES[1:4], "reward": "value", "cost_factor": 1.9}
    parent = Settings(agent_id="p", seed=1, config=PPOConfig(), task=own)
    random = np.random.default_rng(0)
    copies = [varied(parent, SPACE, f"c{i}", i, random) for i in range(40)]
    assert {(one.task["hidden"], one.task["features"], one.task["reward"]) for one in copies} == {
        (16, FEATURES[1:4], "value")
    }
    assert {one.task["cost_factor"] for one in copies} == {1.9 * 0.8, COST_FACTOR[1]}  # 1.9 x 1.25 would be too much
    assert {one.seed for one in copies} == set(range(40))


def test_the_stronger_half_goes_on_and_each_has_a_copy():
    entries = round_of([1.0, 4.0, 2.0, 3.0])
    jobs = generator(fresh=0).next_round(entries, 4, 4, 4)
    assert [(job.trial, job.source, job.copied, job.generation) for job in jobs] == [
        (4, 1, False, 1),
        (5, 3, False, 1),
        (6, 1, True, 1),
        (7, 3, True, 1),
    ]
    assert [job.settings for job in jobs[:2]] == [entries[1].settings, entries[3].settings]
    assert [job.parent_id for job in jobs] == [None, None, entries[1].agent_id, entries[3].agent_id]
    assert [job.settings.agent_id for job in jobs[2:]] == ["3-4", "3-5"]


def test_an_odd_field_keeps_the_larger_half_and_ties_go_to_the_earlier_trial():
    jobs = generator(fresh=0).next_round(round_of([2.0, 2.0, 2.0, 1.0, 2.0]), 5, 5, 5)
    assert [job.source for job in jobs] == [0, 1, 2, 0, 1]
    assert [job.source for job in generator(fresh=0).next_round(round_of([1.0]), 1, 1, 1)] == [0]


def test_d10_those_without_a_score_and_those_that_were_lost_are_no_parents_while_others_have_one():
    jobs = generator(fresh=0).next_round(round_of([NAN, None, 1.0, NAN]), 4, 4, 4)
    assert [(job.source, job.copied) for job in jobs] == [(2, False), (2, True), (2, True), (2, True)]
    undefined = generator(fresh=0).next_round(round_of([NAN, None, NAN, None]), 4, 4, 4)
    assert {job.source for job in undefined} == {0, 2}


def test_where_all_were_lost_the_next_round_begins_afresh():
    jobs = generator(fresh=0).next_round(round_of([None, None, None]), 3, 3, 3)
    assert len(jobs) == 3
    assert all(job.source is None and job.parent_id is None for job in jobs)
    assert jobs[1].settings.task["features"] is not None  # drawn anew


def test_a_share_of_the_copies_gives_way_to_fresh_agents():
    entries = round_of(np.arange(400.0).tolist())
    for share in (0.0, 0.25, 1.0):
        jobs = generator(fresh=share).next_round(entries, 400, 400, 400)
        begun = [job for job in jobs if job.source is None]
        assert len(jobs) == 400
        assert abs(len(begun) - 200 * share) <= 25 * (0 < share < 1)
        assert {job.generation for job in begun} <= {1}  # trained to the experience of the others before it is compared
        assert len({job.settings.agent_id for job in jobs}) == 400


def test_a_round_is_a_function_of_the_seed_and_the_board():
    entries = round_of([1.0, 4.0, 2.0, 3.0])
    first, again = (generator().next_round(entries, 4, 4, 4) for _ in range(2))
    assert first == again
    assert generator(seed=4).next_round(entries, 4, 4, 4) != first
    shuffled = [entries[i] for i in (2, 0, 3, 1)]
    assert generator().next_round(shuffled, 4, 4, 4) == first  # the order in which they ended does not count


def test_a_job_travels_as_plain_values():
    jobs = generator(fresh=0.5).first_round(12)
    assert [Job.from_dict(job.to_dict()) for job in jobs] == jobs
    line = jobs[3].entry(None, {"sharpe": None, "days": 20}, [0.1], 64, None)
    assert isinstance(line, Entry)
    assert math.isnan(line.score)
    assert math.isnan(line.metrics["sharpe"])
    assert line.metrics["days"] == 20
    assert jobs[3].failed().returns.size == 0


@pytest.mark.parametrize("share", [-0.1, 1.1, NAN])
def test_a_share_that_cannot_be_is_refused(share):
    with pytest.raises(InputError, match="from 0 to 1"):
        EvolutionConfig(fresh=share)


@pytest.mark.parametrize("mode", ["rounds", "async"])
@pytest.mark.parametrize("slots", [1, 3, 7])
def test_agents_are_compared_at_equal_experience_only(tmp_path, mode, slots):
    random = np.random.default_rng(slots)
    board, drawn = played(tmp_path, slots, lambda running: int(random.integers(running)), mode=mode, agents=6, rounds=4,
                          steps=8 * UPDATE)  # fmt: skip
    assert len(board.log) == 24
    for entry in board.log:
        assert entry.steps == (entry.generation + 1) * 2 * UPDATE
    for job in drawn:
        if job.source is not None:
            source = board.log[job.source]
            assert source.generation == job.generation - 1
            peers = [entry for entry in board.log if entry.generation == source.generation]
            assert len(peers) >= 2
            if job.copied:
                assert job.parent_id == source.agent_id != job.settings.agent_id
                assert (job.settings.task["hidden"], job.settings.task["features"]) == (
                    source.settings.task["hidden"],
                    source.settings.task["features"],
                )
            else:
                assert job.settings == source.settings
    assert {entry.generation for entry in board.log} >= {0, 1, 2}


def test_asynchronously_an_agent_goes_on_once_and_has_one_copy():
    made, board, drawn = generator(fresh=0), Leaderboard(), Drawn()

    def draw(score=None):
        job = made.draw(board, drawn, 4, 3)
        drawn.add([job])
        if score is not None:
            board.submit(entry_of(job, score))
        return job

    assert [draw(score).source for score in (1.0, 4.0, 2.0, 3.0)] == [None] * 4
    assert [job.settings for job in drawn] == [made.begin(i, np.random.default_rng([3, i, 1])) for i in range(4)]
    first, second = draw(), draw()
    assert [(job.source, job.copied, job.generation) for job in (first, second)] == [(1, False, 1), (3, False, 1)]
    third, fourth = draw(), draw()
    assert [(job.source, job.copied, job.generation) for job in (third, fourth)] == [(1, True, 1), (3, True, 1)]
    nobody_waits = draw()
    assert (nobody_waits.source, nobody_waits.generation) == (None, 0)
    board.submit(entry_of(first, 1.0))
    assert draw().generation == 0  # one alone at its level is better than nobody
    board.submit(entry_of(third, 2.0))
    highest = draw()
    assert (highest.source, highest.generation, highest.copied) == (third.trial, 2, False)
    assert highest.parent_id == third.parent_id


def test_asynchronously_the_last_level_is_the_end_of_an_agent():
    made, board, drawn = generator(fresh=0), Leaderboard(), Drawn()
    for trial in range(12):
        job = made.draw(board, drawn, 2, 2)
        drawn.add([job])
        board.submit(entry_of(job, float(trial)))
    assert {job.generation for job in drawn} == {0, 1}


def test_asynchronously_those_without_a_score_are_nobodys_parents():
    made, board, drawn = generator(fresh=0), Leaderboard(), Drawn()
    for score in (NAN, None, NAN, 1.0):
        job = made.draw(board, drawn, 4, 3)
        drawn.add([job])
        board.submit(entry_of(job, score, lost=score is None))
    sources = []
    for _ in range(4):
        drawn.add([made.draw(board, drawn, 4, 3)])
        sources.append(drawn[-1].source)
    assert sources[:2] == [3, 3]
    assert sources[2:] == [None, None]


def test_later_beginners_are_like_the_better_ones():
    made, board, drawn = generator(fresh=0), Leaderboard(), Drawn()
    for score in (1.0, 2.0, 3.0):
        job = made.draw(board, drawn, 3, 1)
        drawn.add([job])
        board.submit(entry_of(job, score))
    known = np.array([entry.settings.config.learning_rate for entry in board.log])
    likeness = Counter()
    for _ in range(300):
        job = made.draw(board, drawn, 3, 1)
        drawn.add([job])
        assert (job.source, job.parent_id, job.generation) == (None, None, 0)
        moved = job.settings.config.learning_rate / known
        likeness.update(np.flatnonzero(np.isclose(moved, 0.8) | np.isclose(moved, 1.25)).tolist())
    assert likeness[2] > likeness[0] > 0
    assert len({job.settings.agent_id for job in drawn}) == 303


def test_rounds_are_the_same_whatever_ends_first(tmp_path):
    plan = {"agents": 6, "rounds": 3, "checkpoint_steps": UPDATE}
    expected, _ = played(tmp_path, **plan)
    for slots in (2, 4, 9):
        random = np.random.default_rng(slots)
        board, _ = played(tmp_path, slots, lambda running: int(random.integers(running)), **plan)  # noqa: B023
        assert lines(board) == lines(expected)


def test_a_slow_pod_holds_nobody_up_without_rounds(tmp_path):
    waiting = []

    def last_but_the_first(running):
        waiting.append(running)
        return 1 if running > 1 else 0  # what began first ends last

    board, drawn = played(tmp_path, 2, last_but_the_first, mode="async", agents=3, rounds=3)
    assert len(board.log) == len(drawn) == 9
    assert waiting == [2] * 8 + [1]
    assert max(job.generation for job in drawn) == 2


def test_a_lost_agent_is_on_the_board_last_and_its_place_goes_to_another(tmp_path):
    def fate(key, piece):
        return Failed(key, "it fails", True, ValueError("it fails")) if key.startswith("1/") else made_up(piece)

    board = play(Store(tmp_path), plan_of(), Made(2, fate=fate))
    assert board.ranked()[-1].trial == 1
    assert math.isnan(board.log[1].score)
    assert board.log[1].stored is None
    lost = board.log[1].agent_id
    assert lost not in {entry.agent_id for entry in board.log[4:]}
    assert lost not in {entry.parent_id for entry in board.log[4:]}
    assert lost not in {entry.agent_id for entry in board.best(20)}
    assert len(board.log) == 12
