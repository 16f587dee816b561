"""Caps on weights and turnover: one projection for environment, backtest and ready weights."""

import numpy as np
import pytest
import torch
from made_agents import tiny_train, weights_of
from made_markets import random_market, t
from made_strategies import does
from torch.testing import assert_close

import finpod
from finpod.envs.market_env import MarketEnv, TradingConfig
from finpod.trading.caps import within_caps
from finpod.trading.execution import build_execution

pytestmark = pytest.mark.usefixtures("unaudited")
CLOSE = 1e-9
CAPS = {"max_weight": 0.3, "max_turnover": 0.25}


def random_weights(generator, rows, names, zeros=0.3):
    """Weights [rows, names] from nearly equal to one name, some of them zero, with sums of one or less."""
    spread = 6 * torch.rand(rows, 1, generator=generator, dtype=torch.float64)
    raw = (spread * torch.randn(rows, names, generator=generator, dtype=torch.float64)).exp()
    raw *= torch.rand(rows, names, generator=generator) > zeros
    invested = torch.rand(rows, 1, generator=generator, dtype=torch.float64).mul(1.5).clamp(max=1)
    return raw / raw.sum(-1, keepdim=True).clamp(min=1e-300) * invested


def test_both_caps_hold_on_random_targets():
    generator = torch.Generator().manual_seed(0)
    target, held = (random_weights(generator, 10**5, 6) for _ in range(2))
    weights = within_caps(target, held, **CAPS)
    sale = (held - 0.3).clamp(min=0).sum(-1)
    assert 0 <= weights.min() <= weights.max() <= 0.3 + CLOSE
    assert weights.sum(-1).max() <= 1 + CLOSE
    assert ((weights - held).abs().sum(-1) <= sale.clamp(min=0.25) + CLOSE).all()
    assert (sale > 0.25).any()
    only = within_caps(target, held, max_turnover=0.25)
    moved = (only - held).abs().sum(-1)
    assert (moved <= 0.25 + CLOSE).all()
    assert torch.equal(only[moved < 0.25 - CLOSE], target[moved < 0.25 - CLOSE])


@pytest.mark.parametrize(("target", "held", "max_weight", "max_turnover", "expected"), [
    ([0.7, 0.2, 0.1], [0, 0, 0], 0.5, None, [0.5, 1 / 3, 1 / 6]),
    ([0.7, 0.3, 0.0], [0, 0, 0], 0.25, None, [0.25, 0.25, 0.0]),
    ([0.6, 0.2, 0.1, 0.1], [0, 0, 0, 0], 0.3, None, [0.3, 0.3, 0.2, 0.2]),  # to the last digits of float64
    ([0.0, 1.0], [1.0, 0.0], None, 1.0, [0.5, 0.5]),  # the part of the way that is allowed
    ([0.5, 0.5], [0.4, 0.6], None, 0.2, [0.5, 0.5]),
    # A stands at 0.8 under a cap of 0.5: it is sold first, which leaves 0.1 of 0.4, and nothing of 0.2
    ([0.5, 0.0, 0.5], [0.8, 0.2, 0.0], 0.5, 0.4, [0.5, 0.2 - 0.2 / 7, 0.5 / 7]),
    ([0.5, 0.0, 0.5], [0.8, 0.2, 0.0], 0.5, 0.2, [0.5, 0.2, 0.0]),
    ([0.0, 0.0], [0.1, 0.1], 0.3, 0.25, [0.0, 0.0]),
    ([torch.nan] * 3, [0.9, 0, 0], 0.3, 0.25, [torch.nan] * 3),  # no decision
])  # fmt: skip
def test_what_the_caps_make_of_a_target(target, held, max_weight, max_turnover, expected):
    weights = within_caps(t(*target), t(*held), max_weight, max_turnover)
    assert_close(weights, t(*expected), rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("caps", [CAPS, {"max_weight": 0.3}, {"max_turnover": 0.25}], ids=str)
def test_the_gradient_of_the_projection_equals_central_differences(caps):
    generator = torch.Generator().manual_seed(2)
    target, held = (random_weights(generator, 20, 5, zeros=0).requires_grad_() for _ in range(2))
    assert torch.autograd.gradcheck(lambda *pair: within_caps(*pair, **caps), (target, held), eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("costs", [finpod.Costs(), finpod.Costs(impact=1.0)], ids=["fee", "impact"])
def test_environment_backtest_and_ready_weights_hold_the_same(fill, costs):
    market = random_market(40, volume=np.random.default_rng(7).lognormal(9, 1, (40, 5)))
    whole = {"num_envs": 2, "hold": 1, "horizon": None, "random_start": False, "tilt": 8.0, "costs": costs}
    execution = build_execution(market, fill)
    plain, capped = (MarketEnv(execution, 0, 39, TradingConfig(**whole, **caps)) for caps in ({}, CAPS))
    generator, lag = torch.Generator().manual_seed(4), plain.execution.lag
    wanted, equity = [], []
    for _ in range(39 - lag):
        action = 3 * torch.randn(2, 5, generator=generator)
        wanted.append(weights_of(plain, action))
        capped.step(action)
        plain.step(action)
        equity.append(capped.equity[:, 0])
    wanted, equity = torch.stack(wanted, 1).numpy(), torch.stack(equity[:-1], 1).numpy()
    table = np.full((2, 40, 5), np.nan)
    table[:, : 39 - lag] = wanted
    terms = {"fill": fill, "costs": costs, **CAPS}
    together = finpod.backtest(table, market, **terms)
    for e in range(2):
        ready = finpod.backtest(table[e], market, **terms)
        quick = finpod.backtest(table[e], market, fast=True, **terms)
        rule = finpod.backtest(does(lambda view, e=e: wanted[e][view.step]), market, **terms)
        np.testing.assert_array_equal(ready.equity.to_numpy()[1 + lag : -1], equity[e])
        np.testing.assert_array_equal(rule.equity, ready.equity)
        np.testing.assert_array_equal(together.equity.iloc[:, e], ready.equity)
        np.testing.assert_allclose(quick.equity, ready.equity, rtol=1e-9)
        assert ready.weights.to_numpy().max() < 0.35  # 0.3 at the fill
        assert ready.turnover.max() <= 0.3  # 0.25, and at times the sale of what has drifted above the cap
        assert ready.turnover.median() == pytest.approx(0.25)
        assert [warning.code for warning in ready.warnings].count("capped") == 1


def test_with_too_few_assets_the_rest_stays_in_cash_and_that_is_said_once(tmp_path):
    market = random_market(20, names=3, gaps=0, member=np.ones((20, 3), dtype=bool))

    def in_cash(**caps):
        result = finpod.backtest("equal-weight", market, **caps)
        assert result.equal_weight_metrics == finpod.backtest("equal-weight", market).metrics
        return [warning.data["in_cash"] for warning in result.warnings if warning.code == "capped"]

    assert in_cash(max_weight=0.2) == [19]
    assert in_cash(max_weight=0.2, max_turnover=0.5) == [18]  # the first decision may not trade as much yet
    assert in_cash(max_weight=0.9) == [0]
    assert in_cash(max_weight=1, max_turnover=2) == []
    said = set()
    long = random_market(110, gaps=0)
    tiny_train(long, tmp_path / "few", max_weight=0.15, watch=lambda state: said.add(state.remark))
    assert sum("max_weight 0.15 needs 7 assets" in remark for remark in said) == 1
    agent = finpod.load_strategy(tmp_path / "few")
    assert (agent.max_weight, agent.max_turnover) == (0.15, None)


def test_a_strategy_brings_its_caps_unless_told_others():
    market, bold = random_market(20, gaps=0), does(lambda view: np.eye(5)[0], max_weight=0.1)
    assert finpod.backtest(bold, market).weights.to_numpy().max() < 0.12
    assert finpod.backtest(bold, market, max_weight=1.0).weights.to_numpy().max() > 0.9
