"""What luck alone would show, against worked values and simulations."""

import math
from itertools import combinations, pairwise
from statistics import NormalDist

import numpy as np
import pytest

from finpod.errors import InputError
from finpod.overfitting import Overfitting, overfitting
from finpod.significance import (
    deflated_sharpe,
    expected_best,
    minimum_length,
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


@pytest.mark.slow
def test_the_figures_are_those_of_skfolio():
    """Marked slow for its import."""
    measures = pytest.importorskip("skfolio.measures")
    steps = np.random.default_rng(4).standard_t(4, 300) * 0.01 + 0.001
    assert probabilistic_sharpe(steps, 0.3) == pytest.approx(
        measures.probabilistic_sharpe_ratio(steps, 0.3 / math.sqrt(252)), abs=2e-4
    )  # whose skewness and kurtosis are corrected for the sample
    assert expected_best(37, 0.4) == pytest.approx(measures.expected_max_sharpe_ratio(37, 0.4))


TWO_VALUES = np.array([0.03, -0.01, 0.03, -0.01])
"""Mean .01, deviations of .02: skewness 0 and kurtosis 1, so that 1 - g3 s + (g4 - 1) / 4 s^2 = 1.

s = .01 / (.02 sqrt(4/3)) = sqrt(3) / 4, and s^2 = 3/16."""


def test_two_values_worked_by_hand():
    """Phi(s sqrt(3)) = Phi(3/4), and 1 + (1.6448536 / s)^2 = 1 + 2.7055435 * 16/3."""
    assert probabilistic_sharpe(TWO_VALUES) == pytest.approx(0.7733726, abs=1e-7)
    assert minimum_length(TWO_VALUES) == pytest.approx(15.4295651, abs=1e-6)
    half = math.sqrt(252 * 3) / 8  # a yearly benchmark of s / 2 doubles the root
    assert minimum_length(TWO_VALUES, half) == pytest.approx(1 + 4 * 14.4295651, abs=1e-5)
    assert minimum_length(TWO_VALUES, level=0.5) == 1


def test_no_length_shows_what_is_not_there():
    assert minimum_length(TWO_VALUES, 10.0) == math.inf
    assert minimum_length(-TWO_VALUES) == math.inf
    assert math.isnan(minimum_length(np.full(10, 0.01)))
    assert math.isnan(minimum_length(np.zeros(0)))
    for level in (0.4, 1.0, math.nan):
        with pytest.raises(InputError, match="level is"):
            minimum_length(TWO_VALUES, level=level)


@pytest.mark.parametrize("benchmark", [0.0, 0.4])
def test_after_the_minimum_length_the_probability_is_the_level(benchmark):
    """The root of n - 1 is what a longer record of the same kind adds."""
    steps = np.random.default_rng(5).standard_t(4, 900) * 0.01 + 0.001
    needed = minimum_length(steps, benchmark, level=0.9)
    normal = NormalDist()
    reached = normal.inv_cdf(probabilistic_sharpe(steps, benchmark)) * math.sqrt((needed - 1) / (len(steps) - 1))
    assert normal.cdf(reached) == pytest.approx(0.9)


def test_overfitting_of_two_columns_worked_by_hand():
    """Two blocks of two rows. A pair p, q has mean (p + q) / 2 and deviation |p - q| / sqrt(2), so a Sharpe ratio of
    (p + q) / (2 |p - q|) in units of sqrt(2):

          first block         second block
    A     .04 / .04 = 1       -.04 / .04 = -1       best in the first, below B in the second
    B     .01 / .06 = 1/6      .03 / .02 = 3/2      best in the second, below A in the first

    Chosen: in sample (1, 3/2), out of sample (-1, 1/6): slope (1/6 + 1) / (3/2 - 1) = 7/3, means 5/4 and -5/12; with two
    periods a year the unit is 2.
    """
    table = np.array([[0.03, 0.02], [0.01, -0.01], [-0.01, 0.02], [-0.03, 0.01]])
    found = overfitting(table, splits=2, periods_per_year=2)
    assert (found.probability, found.loss_probability) == (1.0, 0.5)
    assert found.slope == pytest.approx(7 / 3)
    assert (found.in_sample, found.out_of_sample) == pytest.approx((2 * 1.25, 2 * -5 / 12))
    assert (found.combinations, found.trials) == (2, 2)


def by_loops(table, splits):
    """Probability and loss probability, combination by combination."""
    edges = [block * len(table) // splits for block in range(splits + 1)]
    blocks = [table[first:stop] for first, stop in pairwise(edges)]
    below, lost = [], []
    for inside in combinations(range(splits), splits // 2):
        halves = [
            np.concatenate([blocks[block] for block in range(splits) if (block in inside) == kept])
            for kept in (True, False)
        ]
        first, then = (
            [column.mean() / column.std(ddof=1) if np.ptp(column) else -math.inf for column in half.T]
            for half in halves
        )
        chosen = then[int(np.argmax(first))]
        if max(first) == -math.inf:
            continue
        rank = sum(value < chosen for value in then) + (sum(value == chosen for value in then) + 1) / 2
        logit = math.log(rank / (len(then) + 1 - rank))
        below.append(1.0 if logit < 0 else 0.5 if logit == 0 else 0.0)
        lost += [chosen < 0] if math.isfinite(chosen) else []
    return np.mean(below), np.mean(lost)


@pytest.mark.parametrize("seed", range(4))
def test_all_combinations_at_once_are_those_one_by_one(seed):
    """Rows that do not divide by the blocks, an account that never moves and one that stops moving."""
    table = np.random.default_rng(seed).normal(0.0002, 0.01, (83, 7))
    table[:, 2], table[40:, 4] = 0.001, 0.0
    found = overfitting(table, splits=6)
    assert found[:2] == pytest.approx(by_loops(table, 6))
    assert found.combinations == 20


def test_choosing_among_noise_is_overfitting_half_of_the_time():
    for trials in (5, 6):  # with an odd number one is at the median
        found = [
            overfitting(np.random.default_rng(seed).normal(0, 0.01, (240, trials)), splits=8) for seed in range(200)
        ]
        assert np.mean([one.probability for one in found]) == pytest.approx(0.5, abs=0.05)
        assert np.mean([one.loss_probability for one in found]) == pytest.approx(0.5, abs=0.05)
        assert np.mean([one.in_sample for one in found]) > 1
        assert abs(np.mean([one.out_of_sample for one in found])) < 0.2


def test_choosing_the_one_that_is_better_is_no_overfitting():
    table = np.random.default_rng(6).normal(0, 0.01, (1000, 20))
    table[:, 3] += 0.002
    found = overfitting(table)
    assert found.probability < 0.01
    assert found.loss_probability < 0.01
    assert found.out_of_sample > 2
    assert (found.combinations, found.trials) == (12_870, 20)


def test_columns_that_never_move_rank_last():
    table = np.full((64, 4), 0.001)
    assert np.isnan(overfitting(table, splits=4)[:5]).all()
    table[:, 1] = np.random.default_rng(7).normal(-0.01, 0.001, 64)
    found = overfitting(table, splits=4)
    assert (found.probability, found.loss_probability) == (0.0, 1.0)


def test_too_little_to_choose_from_is_undefined():
    noise = np.random.default_rng(8).normal(0, 0.01, (64, 3))
    for table in (noise[:, :1], noise[:31], noise[:, :0], noise[:0]):
        found = overfitting(table)
        assert np.isnan(found[:5]).all()
        assert found[5:] == (12_870, table.shape[1])
    assert isinstance(overfitting(noise[:32]), Overfitting)
    assert math.isfinite(overfitting(noise[:32]).probability)


def test_tables_and_splits_that_cannot_be():
    noise = np.random.default_rng(9).normal(0, 0.01, (64, 3))
    for table in (noise[:, 0], np.where(noise > 0.02, np.nan, noise)):
        with pytest.raises(InputError, match="one column a trial"):
            overfitting(table)
    for splits in (0, 7, 22):
        with pytest.raises(InputError, match=f"splits is {splits}"):
            overfitting(noise, splits=splits)
