"""Strategies by name: hand-worked weights, eligible assets, and failures of a solver or a package."""

import sys

import numpy as np
import pytest
from made_errors import refused
from made_markets import NAN, intraday_market, make_market, random_market

from finpod import MarketView, StrategyError, load_strategy
from finpod.backtesting.engine import backtest
from finpod.rules import BASELINES, LEAST, MONTH, RULES, YEAR, Momentum, RiskWeighted, baselines_for, common_span

RISK = ("inverse-volatility", "minimum-variance", "hierarchical-risk-parity")
DAILY = np.tile([1.0, -1.0], YEAR // 2)
"""A return that changes its sign each day."""
PAIRS = np.tile([1.0, 1.0, -1.0, -1.0], YEAR // 4)
"""One that changes its sign every other day; over a year it has no correlation with the first."""
VOLUME = np.random.default_rng(6).lognormal(10, 1, (300, 12))


def decided(rule, market):
    """Weights of the last row."""
    rule = RULES[rule]() if isinstance(rule, str) else rule
    return rule.decide(MarketView(market, len(market.dates) - 1))


def pair():
    """Two uncorrelated names, one of twice the deviation of the other."""
    steps = np.vstack([np.zeros(2), np.column_stack([0.01 * DAILY, 0.02 * PAIRS])])
    return make_market(100 * np.cumprod(steps + 1, axis=0))


@pytest.fixture(scope="module")
def noise():
    """Two years of eight names with a common factor, all members, without gaps."""
    random = np.random.default_rng(5)
    steps = random.normal(0, 0.01, (500, 1)) + random.normal(0, 1, (500, 8)) * np.linspace(0.005, 0.03, 8)
    close = 50 * np.cumprod(1 + steps, axis=0)
    opened = close * np.exp(random.normal(0, 0.002, close.shape))
    return make_market(close, open=opened, volume=random.lognormal(10, 1, close.shape))


def test_equal_weight_and_momentum_by_hand():
    market = make_market([[10, NAN, 10, 10]], member=np.array([[True, True, False, True]]))
    assert decided("equal-weight", market).tolist() == [0.5, 0, 0, 0.5]
    assert decided("equal-weight", make_market([[10, 10]], member=np.zeros((1, 2), dtype=bool))).tolist() == [0, 0]
    close = np.full((6, 4), 10.0)
    close[-1] = [11, 14, 12, 9]
    market = make_market(close, member=np.tile([True, False, True, True], (6, 1)))
    assert decided(Momentum(lookback=6, k=2), market).tolist() == [0.5, 0, 0.5, 0]
    assert decided(Momentum(lookback=9, k=2), market).tolist() == [0, 0, 0, 0]


def test_momentum_12_1_takes_the_strongest_tenth_of_the_year_without_its_last_month():
    """20 names with a year: two are held. The price of 252 sessions ago is row 0 of 253, that of 21 sessions ago row 231."""
    close = np.full((YEAR + 1, 21), 100.0)
    close[YEAR - MONTH, [3, 7, 11]] = [150, 140, 130]
    close[-1, 5] = 900  # this month does not count
    close[0, 9] = NAN  # not there a year ago
    assert decided("momentum-12-1", make_market(close)).nonzero()[0].tolist() == [3, 7]
    member = np.ones(close.shape, dtype=bool)
    member[-1, 3] = False  # 19 are left
    assert decided("momentum-12-1", make_market(close, member=member)).nonzero()[0].tolist() == [7]
    gap = np.full((YEAR + 3, 20), 100.0)
    gap[-1 - MONTH, 4], gap[-2 - MONTH, 4] = NAN, 200  # a missing bar is priced at the last one before it
    assert decided("momentum-12-1", make_market(gap)).nonzero()[0].tolist() == [0, 4]  # a tie goes by column


@pytest.mark.parametrize(("name", "weights"), [
    ("inverse-volatility", [2 / 3, 1 / 3]),  # deviations of 1 and 2 percent
    ("hierarchical-risk-parity", [0.8, 0.2]),  # two clusters of one name share by variance, 1 to 4
    ("minimum-variance", None),  # by one over the variance, which shrinkage draws toward the mean variance
])  # fmt: skip
def test_weights_of_two_names_by_hand(name, weights):
    from sklearn.covariance import ledoit_wolf

    if weights is None:
        shrunk, amount = ledoit_wolf(np.column_stack([0.01 * DAILY, 0.02 * PAIRS]))
        weights = 1 / np.diag(shrunk) / (1 / np.diag(shrunk)).sum()
        assert 0 < amount < 0.1
    np.testing.assert_allclose(decided(name, pair()), weights, atol=1e-5)


def test_b24_returns_span_gaps_and_begin_after_the_first_bar():
    """100, nothing, 110 is no return, then ten percent."""
    close = np.full((YEAR + 1, 2), 100.0)
    close[:10, 1], close[20, 1], close[21:, 1] = NAN, NAN, 110
    close[:, 0] = pair().close[:, 0]
    seen = []
    decided(RiskWeighted("spy", lambda returns: seen.append(returns) or np.ones(returns.shape[1])), make_market(close))
    assert np.isnan(seen[0][:10, 1]).all()
    assert seen[0][10:22, 1] == pytest.approx([0] * 10 + [0.1, 0])
    assert common_span(seen[0]).shape == (YEAR - 10, 2)


@pytest.mark.parametrize("name", RISK)
def test_names_that_are_new_flat_missing_or_no_members_get_nothing(noise, name):
    close, member = np.array(noise.close), np.ones(noise.shape, dtype=bool)
    close[: -LEAST - 1, 0] = NAN  # 126 returns: enough
    close[:-LEAST, 1] = NAN  # 125: one too few
    close[:, 2] = 7.0  # never moved
    close[-1, 3] = NAN  # no bar today
    member[-1, 4] = False
    close[-YEAR:-1, 5][np.arange(YEAR - 1) % 2 == 0], close[-3, 5] = NAN, NAN  # 125 bars over the whole year
    weights = decided(name, make_market(close, member=member))
    assert (weights > 0).tolist() == [True, False, False, False, False, False, True, True]
    assert weights.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("name", BASELINES[:-1])
def test_with_fewer_than_two_names_that_qualify_the_members_are_held_in_equal_parts(noise, name):
    early, close = noise.rows(0, 100), np.array(noise.close)
    close[:-50, 1:] = NAN
    nobody = make_market(early.close, member=np.zeros(early.shape, dtype=bool))
    for market, part in ((early, 1 / 8), (make_market(close), 1 / 8), (nobody, 0)):
        np.testing.assert_array_equal(decided(name, market), np.full(8, part))


@pytest.mark.parametrize("name", RULES)
def test_every_rule_decides_on_its_days_on_ragged_data_and_passes_the_audit(name):
    market = random_market(days=300, names=12, gaps=0.02, volume=VOLUME)
    result = backtest(load_strategy(name), market, start=market.dates[255])
    assert np.isfinite(result.equity).all()
    assert result.audit.passed
    often = {"benchmark-hold": 1, "buy-and-hold": 1}.get(name, 45 // RULES[name]().every)
    assert often - 1 <= (result.turnover > 0).sum() <= often + 1


@pytest.mark.parametrize("weights", [None, np.inf, -1.0])
def test_a_failed_solver_is_counted_and_inverse_volatility_held(noise, weights):
    def weigh(returns):
        if weights is None:
            raise ArithmeticError("no solution")
        return np.broadcast_to(weights, returns.shape[1:])

    broken = RiskWeighted("broken", weigh)
    for step, failures in ((21, 1), (42, 2), (0, 1)):
        held = broken.decide(MarketView(noise, 499, step=step))
        np.testing.assert_array_equal(held, decided("inverse-volatility", noise))
        assert broken.failures == failures


def test_weights_are_made_to_sum_to_one_without_negative_dust(noise):
    solved = RiskWeighted("dusty", lambda returns: np.array([-1e-9, 2, 1, 1, 0, 0, 0, 0]))
    assert decided(solved, noise).tolist() == [0, 0.5, 0.25, 0.25, 0, 0, 0, 0]


def without_package(noise, monkeypatch):
    for name in ["skfolio", *(name for name in sys.modules if name.startswith("skfolio."))]:
        monkeypatch.setitem(sys.modules, name, None)
    return noise


CASES = {
    "all": (lambda noise, monkeypatch: noise, (), "", ""),
    "d22": (without_package, RISK[1:], "rules_missing", "needs the package skfolio"),
    "volumes": (lambda noise, _: make_market(noise.close), BASELINES[-1:], "rules_without_volumes", "needs volumes"),
    "intraday": (lambda *_: intraday_market(60), BASELINES, "rules_daily_only", "(needs daily bars|needs volumes)"),
}


@pytest.mark.parametrize("case", CASES)
def test_d22_rules_that_cannot_be_run_are_left_out_with_a_warning(noise, monkeypatch, case):
    make, left_out, code, told = CASES[case]
    market = make(noise, monkeypatch)
    strategies, warnings = baselines_for(market)
    assert [one.name for one in strategies] == [name for name in BASELINES if name not in left_out]
    assert [(one.code, one.data["rules"]) for one in warnings] == ([(code, list(left_out))] if code else [])
    for name in left_out:
        refused(f"{name} .*{told}", backtest, RULES[name](), market, start=market.dates[-30], error=StrategyError)
