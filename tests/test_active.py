"""Figures of an account relative to its baseline, and selection by them."""

import math

import numpy as np
import pytest
import torch
from made_markets import make_market, random_market, t

import finpod
from finpod.active import active_figures, near_baseline, rank_correlations, ratio_and_error
from finpod.significance import sharpe_error
from finpod.tasks import make_stock_task, trading_of
from finpod.trading.execution import build_execution
from finpod.trading.simulate import Terms, simulate


@pytest.mark.parametrize("terms", [{}, {"whole_shares": True, "cash": 3000}], ids=["fractions", "whole"])
def test_an_untrained_agent_is_its_baseline(terms):
    market = random_market(names=6, days=400)
    days = market.dates
    task = make_stock_task(market, (days[260], days[320]), (days[330], days[399]), trading_of(num_envs=4, **terms))
    score = task.score(task.policy(task.space().start, torch.Generator().manual_seed(0)))
    figures, count = score.metrics, len(score.returns)
    np.testing.assert_array_equal(score.returns, task.baseline())
    assert (figures["excess"], figures["information_ratio"], figures["tracking_error"]) == (0, 0, 0)
    assert figures["ratio_less_error"] == pytest.approx(-math.sqrt(task.market.periods_per_year / (count - 1)))
    assert 3 < figures["effective_names"] <= 6
    assert math.isnan(figures["rank_correlation"])
    assert task.measure == "ratio_less_error"


def test_figures_by_hand():
    market = make_market(np.array([[10, 10], [10, 10], [11, 10], [12.1, 9], [12.1, 9]], dtype=float))
    execution = build_execution(market, "close")
    terms = Terms(costs=finpod.Costs(fee_bps=0))

    def hold(first):
        return simulate(execution, 0, 4, lambda k, row, seen: t(first, 1 - first), terms)

    own, other = hold(0.75), hold(0.5)
    figures = active_figures(own, other, execution, 0, 252)
    over = np.diff(own.equity) / own.equity[:-1].numpy() - np.diff(other.equity) / other.equity[:-1].numpy()
    ratio = over.mean() / over.std(ddof=1) * math.sqrt(252)
    assert figures["information_ratio"] == pytest.approx(ratio)
    assert figures["ratio_less_error"] == pytest.approx(ratio - sharpe_error(over))
    assert figures["effective_names"] < 2
    assert figures["rank_correlation"] == pytest.approx(1.0)
    assert figures["turnover"] == pytest.approx(float(own.turnover.mean()) * 252)


def test_an_asset_without_a_bar_at_a_fill_is_not_ranked():
    market = make_market(np.array([[10, 10, 10], [10, 10, 10], [11, 10, np.nan], [12, 10, 40], [13, 10, np.nan]]))
    execution, terms = build_execution(market, "close"), Terms(costs=finpod.Costs(fee_bps=0))
    own, other = (
        simulate(execution, 0, 4, lambda k, row, seen, held=held: t(*held), terms)
        for held in ((0.5, 0.3, 0.2), (1 / 3, 1 / 3, 1 / 3))
    )
    assert active_figures(own, other, execution, 0, 252)["rank_correlation"] == 1


def test_the_error_of_a_ratio_is_that_of_many_draws():
    draws = np.random.default_rng(0).standard_t(6, (4000, 250)) * 0.01 + 0.001
    ratios = [ratio_and_error(one, 252) for one in draws]
    spread = np.std([ratio for ratio, _ in ratios])
    assert spread == pytest.approx(np.mean([error for _, error in ratios]), rel=0.05)


def test_an_agent_that_does_nothing_ranks_between_one_that_earns_and_one_that_loses():
    year = np.random.default_rng(1).normal(0, 0.002, 252)
    year -= year.mean()
    pairs = [ratio_and_error(one, 252) for one in (year - 2e-4, 0 * year, year + 2e-4)]
    loses, still, earns = (ratio - error for ratio, error in pairs)
    assert earns > still > loses


def test_ranks_share_ties_and_leave_out_what_is_missing():
    one = np.array([[1.0, 2.0, 2.0, np.nan], [1.0, 1.0, 1.0, 1.0]])
    each, count = rank_correlations(one, np.array([[10.0, 30.0, 20.0, 5.0], [1.0, 2.0, 3.0, 4.0]]))
    assert each[0] == pytest.approx(math.sqrt(3) / 2)
    assert math.isnan(each[1])
    assert count.tolist() == [3, 4]


def test_agents_close_to_their_baseline_are_named():
    near = {"agent": "0-1", "window": "validation", "tracking_error": 0.0025}
    far = {"agent": "0-2", "window": "validation", "tracking_error": 0.03}
    assert near_baseline([near, far, {**far, "window": "training", "tracking_error": 0.001}]) == ["0-1"]
