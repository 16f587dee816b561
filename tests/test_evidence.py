"""Verdicts on simulated markets with a planted signal, and on the best of many strategies without skill."""

from dataclasses import replace

import numpy as np
import pytest

import finpod
from finpod.evidence.skill import ANCHOR, ONE_SIDED, Code, evidence
from finpod.trading.ledger import Costs

pytestmark = pytest.mark.slow

DAYS = 757
TRIALS = 100
HOLD = 21
"""Sessions for which a random tilt is held."""
FREE = Costs(fee_bps=0)


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch):
    monkeypatch.setattr("finpod.evidence.skill.RESAMPLES", 2000)


def random_tilts(market, count, seed):
    """[count, T, N] weights around equal weight, drawn anew every month without a look at the prices."""
    sessions, names = market.shape
    parts = np.exp(np.random.default_rng(seed).normal(0, 1, (count, -(-sessions // HOLD), names)))
    return np.repeat(parts / parts.sum(axis=-1, keepdims=True), HOLD, axis=1)[:, :sessions]


def test_a_planted_edge_is_believed():
    """After costs, and though a hundred were tried."""
    market = finpod.simulate_market(days=DAYS, signal=0.1, seed=0)
    found = evidence(replace(finpod.backtest(market.oracle, market), trials=TRIALS))
    assert (found["candidates"], found["verdicts"][ANCHOR]) == (TRIALS, Code.MORE)
    assert found["deflated_active_sharpe"] > ONE_SIDED
    assert found["minimum_active_years"] < (DAYS - 1) / 252


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_a_hundred_without_skill_is_not_believed(seed):
    """Chosen by its lead on the very days it is judged on. Were it the only trial it would pass 95 %."""
    market = finpod.simulate_market(days=DAYS, signal=0.0, seed=seed)
    results = finpod.backtest(random_tilts(market, TRIALS, seed), market, costs=FREE)
    best = max(results, key=lambda result: result.relative_to_equal_weight.information_ratio)
    assert best.trials == TRIALS  # the batch it was taken from is counted without being asked
    alone, chosen = evidence(replace(best, trials=1)), evidence(best)
    assert alone["deflated_active_sharpe"] > 0.95
    assert chosen["verdicts"][ANCHOR] == Code.NOT_DISTINGUISHABLE
    assert max(chosen["deflated_active_sharpe"], chosen["deflated_sharpe"]) < ONE_SIDED
    assert chosen["minimum_active_years"] > (DAYS - 1) / 252
    assert chosen["intervals"] == alone["intervals"]
