"""Bootstrap intervals against worked values, the measures they are of, and simulations."""

import math

import numpy as np
import pytest

from finpod.errors import InputError
from finpod.measures import metrics
from finpod.significance import METRICS, Interval, _figures, _stationary, block_length, growth_interval, intervals


def excess_interval(returns, other, **settings):
    """The interval of CAGR(returns) - CAGR(other)."""
    return intervals(returns, {"other": other}, **settings)["other"]["cagr"]


def noise(seed, days=252, mean=0.0003, sd=0.01):
    return np.random.default_rng(seed).normal(mean, sd, days)


def autoregressive(seed, days, phi, sd=0.01):
    """[days] of x[t] = phi x[t-1] + shock."""
    shocks = noise(seed, days, 0.0, sd)
    for day in range(1, days):
        shocks[day] += phi * shocks[day - 1]
    return shocks


def test_two_days_drawn_singly_have_four_outcomes():
    """Returns .1 and -.1, two a year: the pairs that can be drawn, all as likely, worked by hand.

    pair       growth of the year     deepest fall          Sharpe
    .1  .1     1.1 * 1.1 - 1 = .21     0                     no deviation, undefined
    .1 -.1     1.1 * .9 - 1 = -.01     .99 / 1.1 - 1 = -.1   0
    -.1 .1     -.01                    .9 / 1 - 1 = -.1      0
    -.1 -.1    .9 * .9 - 1 = -.19      .81 - 1 = -.19        undefined

    2.5 % of the resamples lie below the lowest value only if it is rarer than that, and it is not.
    """
    found = intervals(np.array([0.1, -0.1]), {}, periods_per_year=2, block=1, resamples=1000)["strategy"]
    expected = {"sharpe": (0, 0, 0), "cagr": (-0.19, -0.01, 0.21), "max_drawdown": (-0.19, -0.1, 0)}
    for metric, values in expected.items():
        assert found[metric][:3] == pytest.approx(values, abs=1e-12), metric
        assert found[metric].level == 0.95


def test_one_block_as_long_as_the_series_only_turns_it_round():
    """The days come in the same circle, so what does not depend on where it begins cannot vary."""
    found = intervals(noise(0), {"flat": np.zeros(252)}, block=1e9, resamples=50)
    for figures in found.values():
        for metric in ("sharpe", "cagr"):
            low, estimate, high, _ = figures[metric]
            if not math.isnan(estimate):
                assert (low, high) == pytest.approx((estimate, estimate), abs=1e-12)
        assert figures["max_drawdown"].high > figures["max_drawdown"].low


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
    assert together["base"]["cagr"] == excess_interval(own, base, resamples=200)
    assert block_length(own - slow) > block_length(own) == block_length(own - base)


def test_the_same_seed_draws_the_same_days_however_many_fit_into_memory(monkeypatch):
    own = noise(5)
    found = intervals(own, {}, resamples=300)
    assert found == intervals(own, {}, resamples=300)
    assert found != intervals(own, {}, resamples=300, seed=1)
    wide = intervals(own, {}, resamples=300, level=0.99)["strategy"]["cagr"]
    assert wide.low < found["strategy"]["cagr"].low < found["strategy"]["cagr"].high < wide.high
    monkeypatch.setattr("finpod.significance._CHUNK", 1)  # a resample at a time
    assert [rows.shape for rows in _stationary(10, 3, 2, 0)] == [(1, 10)] * 3


def test_blocks_have_the_mean_length_asked_for_and_all_days_are_drawn_alike():
    rows = np.concatenate(list(_stationary(50, 20_000, 5.0, 0)))
    assert rows.shape == (20_000, 50)
    follows = (rows[:, 1:] == (rows[:, :-1] + 1) % 50).mean()
    assert follows == pytest.approx(0.8 + 0.2 / 50, abs=0.002)  # a new block may begin where the old one would go on
    drawn = np.bincount(rows.ravel(), minlength=50) / rows.size
    assert drawn == pytest.approx(1 / 50, rel=0.03)
    assert len(np.unique(np.concatenate(list(_stationary(50, 200, 1.0, 0)))[:, 0])) > 40


def test_intervals_of_a_sharpe_ratio_cover_the_truth_about_as_often_as_they_say():
    truth = 0.05 * math.sqrt(252)
    covered = 0
    for seed in range(100):
        found = intervals(noise(seed, 252, 0.0005), {}, resamples=400, seed=seed)["strategy"]["sharpe"]
        covered += found.low <= truth <= found.high
    assert 86 <= covered <= 99


def test_intervals_of_pure_noise_cover_zero_about_as_often_as_they_say():
    random = np.random.default_rng(5)
    covered = 0
    for seed in range(100):
        base = random.normal(0.0003, 0.01, 252)
        own = base + random.normal(0, 0.004, 252)
        covered += excess_interval(own, base, resamples=400, seed=seed).covers_zero
    assert 88 <= covered <= 99


def test_the_interval_is_as_wide_as_the_deviation_of_the_mean():
    """Independent returns: a yearly Sharpe ratio near zero deviates by 1 / sqrt(years)."""
    found = intervals(noise(6, 2520, 0.0), {}, block=1, resamples=4000)["strategy"]["sharpe"]
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(1 / math.sqrt(10), rel=0.05)


def test_returns_that_follow_each_other_have_wider_intervals():
    """For an autoregression the mean deviates sqrt((1 + phi) / (1 - phi)) times as much as for independent returns."""
    steps = autoregressive(7, 4000, 0.5)
    blocks, single = (intervals(steps, {}, block=block, resamples=1000)["strategy"]["sharpe"] for block in (None, 1))
    assert (blocks.high - blocks.low) / (single.high - single.low) == pytest.approx(math.sqrt(3), rel=0.12)


def test_blocks_keep_what_follows_what():
    """Returns that alternate cancel within a block; drawn singly they do not, and the interval widens."""
    steps = np.tile([0.02, -0.0196], 200)
    single, blocks = (excess_interval(steps, np.zeros(400), block=block, resamples=1000) for block in (1.0, 50.0))
    assert blocks.high - blocks.low < 0.5 * (single.high - single.low)


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


def test_the_interval_is_about_the_difference_of_the_growth_rates():
    random = np.random.default_rng(4)
    base = random.normal(0.0004, 0.01, 504)
    own = base + random.normal(0.0002, 0.003, 504)
    found = excess_interval(own, base, resamples=1000)
    growth = [np.prod(1 + series) ** 0.5 - 1 for series in (own, base)]
    assert found.estimate == pytest.approx(growth[0] - growth[1])
    assert found.low < found.estimate < found.high
    same = excess_interval(base, base, resamples=100)
    assert (same.low, same.estimate, same.high) == (0, 0, 0)
    assert same.covers_zero


def test_an_edge_that_is_there_is_seen():
    random = np.random.default_rng(6)
    base = random.normal(0.0003, 0.01, 1000)
    found = intervals(base + random.normal(0.0006, 0.003, 1000), {"base": base}, resamples=1000)["base"]
    assert found["cagr"].low > 0
    assert found["sharpe"].low > 0
    assert not found["cagr"].covers_zero


def test_what_is_undefined_is_left_out_or_nan():
    """An account that moved once: in some resamples it never does, and has no Sharpe ratio there."""
    once = np.where(np.arange(30) == 10, 0.05, 0.0)
    found = intervals(once, {"flat": np.zeros(30)}, resamples=500)
    assert 0 < found["strategy"]["sharpe"].low <= found["strategy"]["sharpe"].high < math.inf
    assert np.isnan(found["flat"]["sharpe"][:3]).all()
    assert found["flat"]["cagr"] == found["strategy"]["cagr"]
    assert Interval(-0.1, math.nan, 0.1, 0.95).covers_zero


def test_ruin_and_bad_series():
    ruined = np.array([0.01, -1.0, 0.0, 0.02])
    assert excess_interval(ruined, np.zeros(4), resamples=100).estimate == -1
    for own, base in ((np.zeros(3), np.zeros(4)), (np.zeros(1), np.zeros(1)), (np.zeros((2, 2)), np.zeros((2, 2)))):
        with pytest.raises(InputError, match="of the same days, at least two"):
            excess_interval(own, base)
    with pytest.raises(InputError, match="hold NaN"):
        excess_interval(np.array([0.1, np.nan]), np.zeros(2))
    for wrong in ({"level": 1.0}, {"level": 0.0}, {"resamples": 0}, {"block": 0.5}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} {next(iter(wrong.values()))}"):
            intervals(np.zeros(5), {}, **wrong)


def test_the_quick_interval_of_growth_is_the_one_of_all_figures():
    random = np.random.default_rng(3)
    base = random.normal(0.0004, 0.01, 400)
    own = base + random.normal(0.0002, 0.004, 400) + np.repeat(random.normal(0, 0.003, 40), 10)
    assert block_length(own - base) > 400 ** (1 / 3)
    quick = growth_interval(own, base, level=0.9, resamples=900, periods_per_year=52)
    whole = intervals(own, {"base": base}, level=0.9, resamples=900, periods_per_year=52)["base"]["cagr"]
    assert quick == pytest.approx(whole, rel=1e-10, abs=1e-13)
    for wrong, message in ((own[1:], "give series of the same days"), (own - 2, "growth of a lost account")):
        with pytest.raises(InputError, match=message):
            growth_interval(base, wrong)
