"""Population-based training: the next agent, its mutations, and ranking and selection of trials."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from made_agents import CONFIG, space_of
from made_errors import refused
from made_logs import trial
from made_tournaments import FEATURES

from finpod.errors import FinpodError
from finpod.rl.ppo import PPO, PPOConfig
from finpod.tasks import COST_FACTOR, HIDDEN
from finpod.tournament.evolution import FEWEST, Evolver, vary
from finpod.tournament.leaderboard import Leaderboard, Settings, Trial, correlation, ranked

NAN = float("nan")
SPACE, FIRST = space_of(FEATURES), PPOConfig()


def evolver(fresh=0.25, seed=3, config=FIRST, space=SPACE):
    return Evolver(seed=seed, config=config, space=space, restart_rate=fresh)


def end(board, one, score, **values):
    """Let a trial of a board end with a score, or fail for None."""
    record = {"kind": "failed", "trial": one.number, "reason": "made up"}
    if score is not None:
        record = {"kind": "submit", "trial": one.number, "score": score, "metrics": {"sharpe": score}, "returns": [0.0],
                  "steps": 64 * one.level, **values}  # fmt: skip
    board.take(record)


def drawn(made, *scores, agents=4, levels=3):
    """A board after as many asynchronous draws with these scores."""
    board = Leaderboard(made.seed)
    for score in scores:
        draw(made, board, score, agents=agents, levels=levels)
    return board


def draw(made, board, *scores, agents=4, levels=3):
    trial = made.draw(board, agents, levels)
    board.trials.append(trial)
    for score in scores:
        end(board, trial, score)
    return trial


def round_of(scores, made=None):
    """A board after a first round with these scores, None for one that was lost."""
    made, board = made or evolver(), Leaderboard(3)
    board.trials.extend(made.round(1, board, len(scores)))
    for number, score in enumerate(scores):
        end(board, board.trials[number], score)
    return board


def board_of(*trials):
    board = Leaderboard()
    board.trials.extend(replace(trial, state="open") for trial in sorted(trials, key=lambda one: one.number))
    for one in trials:
        end(board, one, one.score, returns=one.returns)
    return board


# --- rounds


def test_the_first_agent_is_as_asked_for_and_the_others_are_varied_or_fresh():
    trials = evolver(fresh=0).round(1, Leaderboard(), 6)
    rates = [one.settings["learning_rate"] / PPOConfig().learning_rate for one in trials]
    assert [one.number for one in trials] == list(range(6))
    assert Settings.from_dict(trials[0].agent_settings).config == PPOConfig()
    assert len({one.agent for one in trials}) == len({one.agent_settings["seed"] for one in trials}) == 6
    assert {round(rate, 9) for rate in rates[1:]} <= {0.8, 1.25}
    assert {(one.source, one.parent, one.copied, one.level) for one in trials} == {(None, None, False, 1)}
    anew = evolver(fresh=1).round(1, Leaderboard(), 20)[1:]
    assert not {round(one.settings["learning_rate"] / PPOConfig().learning_rate, 9) for one in anew} & {0.8, 1.25}


def test_the_stronger_half_goes_on_and_each_has_a_copy():
    board = round_of([1.0, 4.0, 2.0, 3.0])
    trials = evolver(fresh=0).round(2, board, 4)
    order = [(4, 1, False, 2), (5, 3, False, 2), (6, 1, True, 2), (7, 3, True, 2)]
    assert [(one.number, one.source, one.copied, one.level) for one in trials] == order
    assert [one.agent_settings for one in trials[:2]] == [board.trials[i].agent_settings for i in (1, 3)]
    assert [one.parent for one in trials] == [None, None, "3-1", "3-3"]
    assert [one.agent for one in trials[2:]] == ["3-4", "3-5"]
    assert {one.start for one in trials} == {64}


@pytest.mark.parametrize(("scores", "sources"), [
    ([2.0, 2.0, 2.0, 1.0, 2.0], [0, 1, 2, 0, 1]),  # an odd field keeps the larger half; ties go to the earlier trial
    ([1.0], [0]),
    ([NAN, None, 1.0, NAN], [2, 2, 2, 2]),  # without a score, an agent is a parent only if no other has one
    ([NAN, None, NAN, None], [0, 2, 0, 2]),
])  # fmt: skip
def test_d10_the_better_half_has_copies(scores, sources):
    trials = evolver(fresh=0).round(2, round_of(scores), len(scores))
    assert [one.source for one in trials] == sources
    assert [one.copied for one in trials] == [i >= len({*sources}) for i in range(len(scores))]


def test_where_all_were_lost_the_next_round_begins_afresh():
    trials = evolver(fresh=0).round(2, round_of([None, None, None]), 3)
    assert len(trials) == 3
    assert all(one.source is None and one.parent is None and one.start == 0 for one in trials)
    assert trials[1].settings["features"] is not None  # drawn anew


def test_a_share_of_the_copies_gives_way_to_fresh_agents():
    board = round_of(np.arange(400.0).tolist())
    for share in (0.0, 0.25, 1.0):
        trials = evolver(fresh=share).round(2, board, 400)
        begun = [one for one in trials if one.source is None]
        assert len(trials) == len({one.agent for one in trials}) == 400
        assert abs(len(begun) - 200 * share) <= 25 * (0 < share < 1)
        assert {one.level for one in begun} <= {2}  # trained to the experience of the others before it is compared


# --- settings


def test_fresh_agents_draw_every_setting_within_its_bounds():
    made = evolver(config=CONFIG)
    fresh = [made.fresh(i, np.random.default_rng(i)) for i in range(400)]
    for name, (low, high) in PPO.bounds.items():
        values = np.array([getattr(one.config, name) for one in fresh])
        assert low <= values.min() < values.max() <= high
        middle = 1 - math.sqrt((1 - low) * (1 - high)) if name in ("gamma", "gae_lambda") else math.sqrt(low * high)
        assert 0.4 < np.mean(values < middle) < 0.6  # log-uniform: half lie below the geometric middle
    assert {one.task["hidden"] for one in fresh} == set(HIDDEN)
    assert {one.task["reward"] for one in fresh} == {"log", "value"}
    factors = np.array([one.task["cost_factor"] for one in fresh])
    assert COST_FACTOR[0] <= factors.min() < 0.6
    assert 1.8 < factors.max() <= COST_FACTOR[1]
    assert {len(one.task["features"]) for one in fresh} == set(range(FEWEST, len(FEATURES) + 1))
    for one in fresh:
        chosen = one.task["features"]
        assert list(chosen) == [name for name in FEATURES if name in chosen]  # in the panel's order, once
        rest = replace(one.config, **{name: getattr(CONFIG, name) for name in PPO.bounds})
        assert rest == CONFIG  # as in the configuration
    few = evolver(space=replace(SPACE, subsets={"features": FEATURES[:2]}))
    assert few.fresh(1, np.random.default_rng(0)).task["features"] == FEATURES[:2]


def test_a_copy_keeps_what_would_change_its_network():
    own = {"hidden": 16, "features": FEATURES[1:4], "reward": "value", "cost_factor": 1.9}
    settings = Settings(agent_id="p", seed=1, config=PPOConfig(), task=own)
    parent = Trial(number=0, level=1, agent_settings=settings.to_dict())
    random = np.random.default_rng(0)
    copies = [evolver().copy(parent, i, random) for i in range(40)]
    kept = {tuple(one.task[name] for name in ("hidden", "features", "reward")) for one in copies}
    assert kept == {(16, FEATURES[1:4], "value")}
    assert {one.task["cost_factor"] for one in copies} == {1.9 * 0.8, COST_FACTOR[1]}  # 1.9 x 1.25 would be too much
    assert len({one.seed for one in copies}) == 40


def test_a_variation_changes_every_bounded_setting_by_a_factor_within_its_bounds():
    random, config, seen = np.random.default_rng(0), PPOConfig(), set()
    for _ in range(100):
        moved = vary(config, PPO.bounds, random)
        seen.add(round(moved.learning_rate / config.learning_rate, 6))
        assert moved.gamma in (pytest.approx(1 - 0.1 * 0.8), pytest.approx(1 - 0.1 * 1.25))  # its distance from 1
        assert replace(moved, **{name: getattr(config, name) for name in PPO.bounds}) == config
    assert seen == {0.8, 1.25}
    for _ in range(40):
        config = vary(config, PPO.bounds, random)
        assert all(low <= getattr(config, name) <= high for name, (low, high) in PPO.bounds.items())


# --- without rounds


def test_asynchronously_an_agent_goes_on_once_and_has_one_copy():
    made = evolver(fresh=0)
    board = drawn(made, 1.0, 4.0, 2.0, 3.0)
    four = [draw(made, board) for _ in range(4)]
    order = [(1, False, 2), (3, False, 2), (1, True, 2), (3, True, 2)]
    assert [(one.source, one.copied, one.level) for one in four] == order
    nobody_waits = draw(made, board)
    assert (nobody_waits.source, nobody_waits.level) == (None, 1)
    end(board, four[0], 1.0)
    assert draw(made, board).level == 1  # one alone at its level is better than nobody
    end(board, four[2], 2.0)
    highest = draw(made, board)
    assert (highest.source, highest.level, highest.copied) == (four[2].number, 3, False)
    assert highest.parent == four[2].parent


def test_asynchronously_the_last_level_is_the_end_and_nobody_descends_from_an_undefined_score():
    assert {one.level for one in drawn(evolver(fresh=0), *map(float, range(12)), agents=2, levels=2).trials} == {1, 2}
    made = evolver(fresh=0)
    board = drawn(made, NAN, None, NAN, 1.0)
    assert [draw(made, board).source for _ in range(4)] == [3, 3, None, None]


def test_later_beginners_are_like_the_better_ones():
    made = evolver(fresh=0)
    board = drawn(made, 1.0, 2.0, 3.0, agents=3, levels=1)
    known = np.array([one.settings["learning_rate"] for one in board.log])
    likeness = Counter()
    for _ in range(300):
        trial = draw(made, board, agents=3, levels=1)
        assert (trial.source, trial.parent, trial.level) == (None, None, 1)
        moved = trial.settings["learning_rate"] / known
        likeness.update(np.flatnonzero(np.isclose(moved, 0.8) | np.isclose(moved, 1.25)).tolist())
    assert likeness[2] > likeness[0] > 0
    assert len(board.agents) == 303


def test_a_share_of_the_later_beginners_is_fresh():
    made = evolver(fresh=0.25)
    board = drawn(made, 1.0, 2.0, 3.0, agents=3, levels=1)
    rates = np.array([draw(made, board, agents=3, levels=1).settings["learning_rate"] for _ in range(400)])
    ratios = rates[:, None] / [one.settings["learning_rate"] for one in board.log]
    assert 0.2 < 1 - np.isclose(ratios[..., None], (0.8, 1.25)).any(axis=(1, 2)).mean() < 0.3


# --- the board


def test_d10_scores_that_are_not_numbers_are_last():
    board = board_of(*(trial(i, score) for i, score in enumerate([NAN, 1.0, 3.0, 2.0])))
    assert [one.number for one in ranked(board.trials)] == [2, 3, 1, 0]
    assert [one.number for one in board.best(1)] == [2]
    assert [one.number for one in board.best(10)] == [2, 3, 1]  # one without a score is never chosen
    assert [one.number for one in ranked(map(trial, range(6), [1.0, 2.0, 2.0, 1.0, NAN, NAN]))] == [1, 2, 0, 3, 4, 5]


def test_d10_no_score_at_all_is_an_error():
    for board in (board_of(trial(0, NAN), trial(1, NAN)), Leaderboard()):
        refused("no agent has a validation score", board.best, 1, error=FinpodError)


def test_each_agent_is_chosen_once_by_its_best_trial_that_can_be_read():
    bests = [("a", 2.0, 1), ("b", 1.0, 1), ("a", 1.5, 2), ("c", 1.8, 2)]
    board = board_of(*(trial(i, score, agent=name, level=level) for i, (name, score, level) in enumerate(bests)))
    assert [(one.agent, one.number) for one in board.best(3)] == [("a", 0), ("c", 3), ("b", 1)]
    assert [(one.agent, one.number) for one in board.best(3, without={0})] == [("c", 3), ("a", 2), ("b", 1)]
    told = r"readable checkpoint \(trials 0, 1, 2, 3\); restore"
    refused(told, board.best, 3, without=range(4), error=FinpodError)
    refused("trial 0 has ended", end, board, board.trials[0], 2.0, error=FinpodError)


def test_an_agent_that_is_the_same_bet_waits_until_nobody_else_is_left():
    random = np.random.default_rng(0)
    base = random.normal(0, 0.01, 250)
    one, two, three = (base + random.normal(0, 0.005, 250) for _ in range(3))
    twin = base + 1.3 * (one - base) + 1e-4  # the same bet, only larger
    assert correlation(one, two) > 0.7
    assert abs(correlation(one - base, two - base)) < 0.2
    pairs = {"one": one, "twin": twin, "two": two, "three": three}
    board = board_of(*(trial(i, 4.0 - i, agent=name, returns=one) for i, (name, one) in enumerate(pairs.items())))
    agents = {count: [trial.agent for trial in board.best(count, base)] for count in (2, 3, 4)}
    assert agents == {2: ["one", "two"], 3: ["one", "two", "three"], 4: ["one", "twin", "two", "three"]}
    for arguments in ((base, 1.0), ()):
        assert [trial.agent for trial in board.best(2, *arguments)] == ["one", "twin"]
