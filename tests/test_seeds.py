"""Seeds: every function with a seed uses all its bits, and refuses invalid seeds in one line."""

import numpy as np
import pytest
from made_errors import refused

import finpod
from finpod import simulate_market
from finpod.devices import torch_seed
from finpod.envs.gym import DenseTradingEnv
from finpod.envs.market_env import TradingConfig
from finpod.rules import EqualWeight
from finpod.synthetic import resampled
from finpod.tournament.setup import Plan

MARKET = simulate_market(names=4, days=400, seed=1)
DAYS = ("2010-01-04", "2010-06-30"), ("2010-07-01", "2010-12-31")
RESETS = ("reset", "single environment")
"""Functions for which None means to go on with the present stream."""
REFUSED = [-3, 2**64, 7.0, "7", True, None]


def envs(**options):
    return finpod.make_env("stocks", market=MARKET, num_envs=8, **options)


def day_of_one(seed):
    """Start days of 8 episodes of the single environment."""
    env = DenseTradingEnv(MARKET, config=TradingConfig(horizon=1))
    days = []
    for number in range(8):
        env.reset(seed=None if number else seed)
        days.append(env.many.env.observe().row.item())
    return days


DRAWS = {
    "make_env": lambda seed: envs(seed=seed).env.observe().row.tolist(),
    "reset": lambda seed: envs().reset(seed=seed)[0]["row"].tolist(),
    "single environment": day_of_one,
    "simulate_market": lambda seed: simulate_market(names=3, days=30, seed=seed).close.tolist(),
    "resampled": lambda seed: resampled(MARKET, seed=seed).close.tolist(),
    "audit": lambda seed: finpod.audit(EqualWeight(), MARKET, days=3, seed=seed).days,
}
"""What each function draws from a seed."""

CHECKED = {
    **DRAWS,
    "dense environment": lambda seed: DenseTradingEnv(MARKET, seed=seed),
    "plan": lambda seed: Plan(seed=seed),
    "train": lambda seed: finpod.train(market=MARKET, train=DAYS[0], validation=DAYS[1], out="x", seed=seed),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_g16_the_whole_seed_counts(draw):
    draws = [draw(seed) for seed in (7, 7 + 2**32, 7 + 2**63, 2**64 - 1)]
    assert all(draws[i] != draws[k] for i in range(4) for k in range(i))
    assert draw(7 + 2**32) == draws[1]
    assert draw(np.int64(7)) == draws[0]


@pytest.mark.parametrize("seed", REFUSED)
@pytest.mark.parametrize("name", CHECKED)
def test_g16_other_seeds_are_refused_in_one_line(name, seed, apart):
    if seed is None and name in (*RESETS, "train"):
        return
    assert str(seed) in str(refused("", CHECKED[name], seed, about="seed"))
    assert not list(apart.iterdir())


def test_seeds_of_32_bits_stay_for_torch():
    assert [torch_seed(seed) for seed in (0, 7, 2**32 - 1)] == [0, 7, 2**32 - 1]
    assert len({torch_seed(7 + 2**shift) for shift in range(32, 64)} | {7}) == 33
