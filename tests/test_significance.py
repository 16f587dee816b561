"""What luck alone would show, against worked values and simulations."""

import math

import numpy as np
import pytest

from finpod.errors import InputError
from finpod.significance import (
    deflated_sharpe,
    excess_interval,
    expected_best,
    probabilistic_sharpe,
)


def test_d12_the_expected_best_of_ten():
    assert expected_best(10, 0.5) == pytest.approx(0.787299, rel=1e-6)


@pytest.mark.parametrize(("trials", "best"), [(10, 1.57), (100, 2.53), (1000, 3.26)])
def test_chance_alone_shows_these_yearly_sharpe_ratios(trials, best):
    assert expected_best(trials, 1.0) == pytest.approx(best, abs=0.005)


def test_the_expected_best_is_that_of_a_simulation():
    drawn = np.random.default_rng(0).normal(0, 0.3, (20_000, 50)).max(axis=1).mean()
    assert expected_best(50, 0.3) == pytest.approx(drawn, rel=0.02)
    assert expected_best(1, 0.3) == 0
    for wrong in ((0, 1.0), (5, -1.0), (5, math.nan)):
        with pytest.raises(InputError, match="the best of N"):
            expected_best(*wrong)


def test_the_probabilistic_sharpe_of_normal_returns():
    steps = np.random.default_rng(1).normal(0.0005, 0.01, 2000)
    sharpe = steps.mean() / steps.std(ddof=1)
    assert probabilistic_sharpe(steps, sharpe * math.sqrt(252)) == pytest.approx(0.5)
    assert probabilistic_sharpe(steps) > 0.9
    assert probabilistic_sharpe(steps, 5.0) < 1e-6
    assert math.isnan(probabilistic_sharpe(np.full(10, 0.01)))
    assert math.isnan(probabilistic_sharpe(np.array([0.01, 0.02])))


def test_a_fat_left_tail_lowers_the_probability():
    steps = np.random.default_rng(2).normal(0.001, 0.01, 500)
    crash = np.append(steps, -0.12)
    mirrored = np.append(steps, steps.mean() * 2 + 0.12)
    assert probabilistic_sharpe(crash) < probabilistic_sharpe(mirrored)


def test_more_trials_deflate_the_sharpe_ratio():
    steps = np.random.default_rng(3).normal(0.001, 0.01, 750)
    values = [deflated_sharpe(steps, trials, 0.5) for trials in (1, 10, 100, 1000)]
    assert values == sorted(values, reverse=True)
    assert values[0] == probabilistic_sharpe(steps)


def test_the_interval_is_about_the_difference_of_the_growth_rates():
    random = np.random.default_rng(4)
    base = random.normal(0.0004, 0.01, 504)
    own = base + random.normal(0.0002, 0.003, 504)
    found = excess_interval(own, base, resamples=2000)
    growth = [np.prod(1 + series) ** 0.5 - 1 for series in (own, base)]
    assert found.estimate == pytest.approx(growth[0] - growth[1])
    assert found.low < found.estimate < found.high
    assert found == excess_interval(own, base, resamples=2000)
    assert found != excess_interval(own, base, resamples=2000, seed=1)
    same = excess_interval(base, base)
    assert (same.low, same.estimate, same.high) == (0, 0, 0)
    assert same.covers_zero


def test_intervals_of_pure_noise_cover_zero_about_as_often_as_they_say():
    random = np.random.default_rng(5)
    covered = 0
    for seed in range(100):
        base = random.normal(0.0003, 0.01, 252)
        own = base + random.normal(0, 0.004, 252)
        covered += excess_interval(own, base, resamples=500, seed=seed).covers_zero
    assert 88 <= covered <= 99


def test_an_edge_that_is_there_is_seen():
    random = np.random.default_rng(6)
    base = random.normal(0.0003, 0.01, 1000)
    assert excess_interval(base + random.normal(0.0006, 0.003, 1000), base).low > 0


def test_blocks_keep_what_follows_what():
    """Returns that alternate cancel within a block; drawn singly they do not, and the interval widens."""
    steps = np.tile([0.02, -0.0196], 200)
    single, blocks = (excess_interval(steps, np.zeros(400), block=block, resamples=2000) for block in (1.0, 50.0))
    assert blocks.high - blocks.low < 0.5 * (single.high - single.low)


def test_ruin_and_bad_series():
    ruined = np.array([0.01, -1.0, 0.0, 0.02])
    assert excess_interval(ruined, np.zeros(4)).estimate == -1
    for own, base in ((np.zeros(3), np.zeros(4)), (np.zeros(1), np.zeros(1)), (np.zeros((2, 2)), np.zeros((2, 2)))):
        with pytest.raises(InputError, match="two of the same days"):
            excess_interval(own, base)
    with pytest.raises(InputError, match="hold NaN"):
        excess_interval(np.array([0.1, np.nan]), np.zeros(2))
