"""Significance against worked values, the measures and simulations."""

import math
import re
from itertools import combinations, pairwise

import numpy as np
import pytest
from made_errors import refused

from finpod import significance
from finpod.measures import metrics
from finpod.significance import (
    METRICS,
    _figures,
    _stationary,
    block_length,
    expected_best,
    intervals,
    minimum_length,
    overfitting,
    probabilistic_sharpe,
)


def test_d12_the_expected_best_of_n():
    assert expected_best(10, 0.5) == pytest.approx(0.787299, rel=1e-6)
    assert expected_best(1000, 1.0) == pytest.approx(3.26, abs=0.005)
    drawn = np.random.default_rng(0).normal(0, 0.3, (20_000, 50)).max(axis=1).mean()
    assert expected_best(50, 0.3) == pytest.approx(drawn, rel=0.02)
    assert expected_best(1, 0.3) == 0
    for wrong in ((0, 1.0), (5, -1.0), (5, math.nan)):
        refused(f"trials is {wrong[0]}", expected_best, *wrong)


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
    assert minimum_length(TWO_VALUES, 10.0) == minimum_length(-TWO_VALUES) == math.inf
    assert math.isnan(minimum_length(np.full(10, 0.01)))
    assert math.isnan(minimum_length(np.zeros(0)))
    for level in (0.4, 1.0, math.nan):
        refused(f"level is {level}", minimum_length, TWO_VALUES, level=level)


def test_overfitting_of_two_columns_worked_by_hand():
    """Sharpe ratios but for a factor: A 1 and -1, B 1/6 and 3/2; the best of each half is below the other in the next."""
    assert overfitting(np.array([[0.03, 0.02], [0.01, -0.01], [-0.01, 0.02], [-0.03, 0.01]]), splits=2) == 1.0


def by_loops(table, splits):
    """The probability, combination by combination."""
    edges = [block * len(table) // splits for block in range(splits + 1)]
    blocks, below = [table[first:stop] for first, stop in pairwise(edges)], []
    for inside in combinations(range(splits), splits // 2):
        halves = [np.concatenate([blocks[b] for b in range(splits) if (b in inside) == kept]) for kept in (True, False)]
        first, then = (
            [column.mean() / column.std(ddof=1) if np.ptp(column) else -math.inf for column in half.T]
            for half in halves
        )
        if max(first) > -math.inf:
            chosen = then[int(np.argmax(first))]
            rank = sum(value < chosen for value in then) + (sum(value == chosen for value in then) + 1) / 2
            below.append((np.sign((len(then) + 1) / 2 - rank) + 1) / 2)
    return np.mean(below)


def test_all_combinations_at_once_are_those_one_by_one():
    """Rows that do not divide by the blocks, an account that never moves and one that stops moving."""
    table = np.random.default_rng(0).normal(0.0002, 0.01, (83, 7))
    table[:, 2], table[40:, 4] = 0.001, 0.0
    assert overfitting(table, splits=6) == pytest.approx(by_loops(table, 6))


def test_choosing_among_noise_is_overfitting_half_of_the_time_and_choosing_the_better_one_is_none():
    for trials in (5, 6):  # with an odd number one is at the median
        draws = (np.random.default_rng(seed).normal(0, 0.01, (240, trials)) for seed in range(200))
        assert np.mean([overfitting(table, splits=8) for table in draws]) == pytest.approx(0.5, abs=0.05)
    table = np.random.default_rng(6).normal(0, 0.01, (1000, 20))
    table[:, 3] += 0.002
    assert overfitting(table) < 0.01


def test_too_little_to_choose_from_is_undefined_and_what_cannot_be_is_refused():
    noise = np.random.default_rng(8).normal(0, 0.01, (64, 3))
    for table in (noise[:, :1], noise[:31], noise[:, :0], noise[:0], np.full((64, 3), 0.001)):
        assert math.isnan(overfitting(table))
    assert math.isfinite(overfitting(noise[:32]))
    for table in (noise[:, 0], np.where(noise > 0.02, np.nan, noise)):
        refused("shape", overfitting, table)
    for splits in (0, 7, 22):
        refused(f"splits is {splits}", overfitting, noise, splits=splits)


def noise(seed, days=252, mean=0.0003, sd=0.01):
    return np.random.default_rng(seed).normal(mean, sd, days)


def autoregressive(seed, days, phi, sd=0.01):
    """[days] of x[t] = phi x[t-1] + shock."""
    shocks = noise(seed, days, 0.0, sd)
    for day in range(1, days):
        shocks[day] += phi * shocks[day - 1]
    return shocks


def test_two_days_drawn_singly_have_four_outcomes(monkeypatch):
    """Returns .1 and -.1, two a year: the pairs that can be drawn, all as likely, worked by hand.

    pair       growth of the year     deepest fall          Sharpe
    .1  .1     1.1 * 1.1 - 1 = .21     0                     no deviation, undefined
    .1 -.1     1.1 * .9 - 1 = -.01     .99 / 1.1 - 1 = -.1   0
    -.1 .1     -.01                    .9 / 1 - 1 = -.1      0
    -.1 -.1    .9 * .9 - 1 = -.19      .81 - 1 = -.19        undefined

    2.5 % of the resamples lie below the lowest value only if it is rarer than that, and it is not.
    """
    monkeypatch.setattr(significance, "block_length", lambda series: 1.0)
    found = intervals(np.array([0.1, -0.1]), {}, periods_per_year=2, resamples=1000)["strategy"]
    expected = {"sharpe": (0, 0, 0), "cagr": (-0.19, -0.01, 0.21), "max_drawdown": (-0.19, -0.1, 0)}
    for metric, values in expected.items():
        assert found[metric][:3] == pytest.approx(values, abs=1e-12), metric
        assert found[metric].level == 0.95


@pytest.mark.parametrize(("risk_free", "periods"), [(0.0, 252), (0.05, 252), (0.02, 52)])
def test_estimates_are_the_measures(risk_free, periods):
    own, a, b = (noise(seed, 700) for seed in range(3))
    settings = {"risk_free": risk_free, "periods_per_year": periods}
    found = intervals(own, {"a": a, "b": b}, resamples=10, **settings)
    measured = {name: metrics(returns=series, **settings) for name, series in {"own": own, "a": a, "b": b}.items()}
    assert list(found) == ["strategy", "a", "b"]
    for metric in METRICS:
        value = getattr(measured["own"], metric)
        assert found["strategy"][metric].estimate == pytest.approx(value, abs=1e-12)
        for name in ("a", "b"):
            lead = value - getattr(measured[name], metric)
            assert found[name][metric].estimate == pytest.approx(lead, abs=1e-12)


def test_every_resample_is_measured_as_the_measures_do_it():
    """Ruin, a loss of more than everything, an account that never moves and one that moves once are among them."""
    returns = np.random.default_rng(1).normal(0.001, 0.02, (8, 40))
    returns[1, 7], returns[2, 0], returns[3], returns[4] = -1.0, -1.3, 0.0, 0.001
    returns[5] = np.where(np.arange(40) == 20, 0.05, 0.0)
    returns[6, -1] = -1.0
    expected = metrics(returns=returns.T, risk_free=0.03)
    found = _figures(returns.copy(), 252, 1.03 ** (1 / 252) - 1)
    for row, metric in enumerate(METRICS):
        np.testing.assert_allclose(found[row], getattr(expected, metric), rtol=1e-12, atol=1e-12, err_msg=metric)
    assert np.isnan(found[0]).tolist() == [False, False, False, True, True, False, False, False]


def test_an_interval_does_not_depend_on_what_else_is_asked_for():
    own, base = noise(2, 400), noise(3, 400)
    slow = own - autoregressive(4, 400, 0.95)  # whose difference asks for longer blocks
    together = intervals(own, {"base": base, "slow": slow}, resamples=200)
    assert together["base"] == intervals(own, {"base": base}, resamples=200)["base"]
    assert together["slow"] == intervals(own, {"slow": slow}, resamples=200)["slow"]
    assert together["strategy"] == intervals(own, {}, resamples=200)["strategy"]
    assert block_length(own - slow) > block_length(own) == block_length(own - base)


def test_blocks_have_the_mean_length_asked_for_and_all_days_are_drawn_alike():
    rows = np.concatenate(list(_stationary(50, 20_000, 5.0)))
    assert rows.shape == (20_000, 50)
    follows = (rows[:, 1:] == (rows[:, :-1] + 1) % 50).mean()
    assert follows == pytest.approx(0.8 + 0.2 / 50, abs=0.002)  # a new block may begin where the old one would go on
    assert np.bincount(rows.ravel(), minlength=50) / rows.size == pytest.approx(1 / 50, rel=0.03)


def test_the_block_length_of_an_autoregression():
    """R(k) = R(0) phi^k: G = 2 R(0) phi / (1 - phi)^2, g = R(0) (1 + phi) / (1 - phi), G / g = 2 phi / (1 - phi^2)."""
    days, phi = 100_000, 0.8
    expected = (2 * phi / (1 - phi**2)) ** (2 / 3) * days ** (1 / 3)
    assert expected == pytest.approx(125.4, abs=0.1)
    found = [block_length(autoregressive(seed, days, phi)) for seed in range(4)]
    assert np.mean(found) == pytest.approx(expected, rel=0.1)


def test_block_lengths_have_a_floor_and_a_cap():
    assert block_length(noise(9, 1000)) == pytest.approx(10)
    assert block_length(np.sin(np.arange(400) / 5)) == 3 * 20  # 3 sqrt(n): a wave never forgets
    for short in (np.array([0.01, -0.02]), np.full(500, 0.001), np.zeros(5)):
        assert block_length(short) == pytest.approx(len(short) ** (1 / 3))


def test_what_is_undefined_is_left_out_or_nan():
    """An account that moved once: in some resamples it never does, and has no Sharpe ratio there."""
    once = np.where(np.arange(30) == 10, 0.05, 0.0)
    found = intervals(once, {"flat": np.zeros(30)}, resamples=500)
    assert 0 < found["strategy"]["sharpe"].low <= found["strategy"]["sharpe"].high < math.inf
    assert np.isnan(found["flat"]["sharpe"][:3]).all()
    assert found["flat"]["cagr"] == found["strategy"]["cagr"]


def test_ruin_and_bad_series():
    ruined = np.array([0.01, -1.0, 0.0, 0.02])
    assert intervals(ruined, {"other": np.zeros(4)}, resamples=100)["other"]["cagr"].estimate == -1
    for own, base in ((np.zeros(3), np.zeros(4)), (np.zeros(1), np.zeros(1)), (np.zeros((2, 2)), np.zeros((2, 2)))):
        refused(re.escape(str(base.shape)), intervals, own, {"other": base})
    refused("NaN", intervals, np.array([0.1, np.nan]), {})
    for wrong in ({"level": 1.0}, {"level": 0.0}, {"resamples": 0}):
        refused(f"{next(iter(wrong))} is {next(iter(wrong.values()))}", intervals, np.zeros(5), {}, **wrong)
