"""`relax` against `simulate`: the same path."""

import numpy as np
import pytest
import torch
from made_markets import NAN, random_market

from finpod.trading import relaxation
from finpod.trading.execution import build_execution
from finpod.trading.ledger import Costs
from finpod.trading.relaxation import relax
from finpod.trading.simulate import Terms, simulate


@pytest.fixture
def one_by_one(monkeypatch):
    """The rows of the sessions that were taken one by one, as (first, last)."""
    rows = []
    slowly = relaxation.path_from
    monkeypatch.setattr(relaxation, "path_from", lambda *given: rows.append(given[2:4]) or slowly(*given))
    return rows


def random_steps(count, names, seed=0, idle=0.0, zeros=0.3):
    random = np.random.default_rng(seed)
    raw = random.random((count, names)) * (random.random((count, names)) >= zeros)
    weights = raw / np.maximum(raw.sum(axis=1, keepdims=True), 1e-9) * random.uniform(0.3, 1, (count, 1))
    weights[random.random(count) < idle] = NAN
    return torch.from_numpy(weights)


def both_ways(execution, weights, terms, first=1):
    last = first + len(weights)
    slow = simulate(execution, first, last, lambda _step, row, _seen: weights[row + execution.lag - first], terms)
    return slow, relax(execution, first, last, weights, terms)


def assert_alike(slow, quick):
    """Every field to 1e-11 of the equity, or of the largest holding."""
    shares, equity = float(slow.shares.abs().max()), float(slow.equity.max())
    sizes = {"equity": equity, "cost": equity, "turnover": 1.0, "targets": 1.0}
    for name, own, other in zip(slow._fields, slow, quick, strict=True):
        atol = 0 if own.dtype == torch.bool else 1e-11 * sizes.get(name, shares)
        torch.testing.assert_close(other, own, rtol=0, atol=atol, equal_nan=True)


def assert_equal(slow, quick):
    assert all(torch.equal(own.nan_to_num(), other.nan_to_num()) for own, other in zip(slow, quick, strict=True))


@pytest.mark.parametrize(("idle", "costs"), [(0.8, Costs()), (0.0, Costs(fee_bps=500, per_share=0.05))], ids=str)
def test_a_path_is_the_same_to_rounding(fill, idle, costs, one_by_one):
    """With gaps, members that change, a name that leaves, days without a decision and every kind of cost."""
    market = random_market(days=150, names=7)
    terms = Terms(costs=costs, delisting_return=-0.4)
    slow, quick = both_ways(build_execution(market, fill), random_steps(146, 7, idle=idle), terms)
    assert_alike(slow, quick)
    assert one_by_one == [], "every block settled"
    assert slow.delisted.any()
    assert slow.unfilled.any()


@pytest.mark.parametrize("terms", [Terms(whole_shares=True), Terms(costs=Costs(impact=1.0))], ids=["whole", "impact"])
def test_what_depends_on_size_is_taken_session_by_session(terms, one_by_one):
    market = random_market(days=40, volume=np.full((40, 5), 1e5))
    assert_equal(*both_ways(build_execution(market), random_steps(37, 5), terms))
    assert one_by_one == [(1, 38)]


def test_blocks_may_end_anywhere_and_one_that_does_not_settle_is_taken_session_by_session(monkeypatch, one_by_one):
    monkeypatch.setattr(relaxation, "BLOCK", 7 * 5)
    execution = build_execution(random_market(days=40, factor=None))
    assert_alike(*both_ways(execution, random_steps(37, 5, idle=0.3), Terms()))
    assert one_by_one == []
    monkeypatch.setattr(relaxation, "SWEEPS", 1)
    assert_equal(*both_ways(execution, random_steps(37, 5), Terms()))
    assert one_by_one == [(row, min(row + 7, 38)) for row in range(1, 38, 7)]
