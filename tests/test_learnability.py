"""Agents learn a planted signal, and nothing without one."""

import time

import numpy as np
import pytest
from made_markets import last_move, make_market

import finpod
from finpod import Costs, simulate_market
from finpod.rl.ppo import PPOConfig

pytestmark = pytest.mark.usefixtures("unaudited")
BUDGET = 120.0
"""Seconds of one CPU core that an agent may take to learn."""
FREE = Costs(fee_bps=0)
WARM_UP = 260
"""Sessions before the training window, so that features of a year are defined in it."""


DAYS = 2500


def train_on(market, updates, seed, out):
    """One agent on the first four fifths, the last year of them for validation; and the unseen last fifth."""
    days, unseen = market.dates, len(market.dates) * 4 // 5
    began = time.process_time()
    agent = finpod.train(
        market=market, train=(days[WARM_UP], days[unseen - 201]), validation=(days[unseen - 200], days[unseen - 1]),
        out=out, agents=1, rounds=1, keep=1, hold=1, seed=seed, num_envs=128, start_groups=32, steps=updates * 128 * 16,
        config=PPOConfig(num_steps=16, learning_rate=1e-3, gamma=0.9),
    )  # fmt: skip
    assert time.process_time() - began < BUDGET
    return agent, {"start": days[unseen], "end": days[-1]}


def excess_returns(result):
    """[n] daily log returns over those of equal weight."""
    return np.diff(np.log(result.equity)) - np.diff(np.log(result.equal_weight_equity))


def bootstrap_interval(values, *, block=10, draws=4000, seed=0):
    """95 % interval of the mean of a series whose neighbours depend on each other (moving blocks, Kuensch 1989)."""
    starts = np.random.default_rng(seed).integers(0, len(values) - block + 1, (draws, -(-len(values) // block)))
    rows = (starts[..., None] + np.arange(block)).reshape(draws, -1)[:, : len(values)]
    low, high = np.quantile(values[rows].mean(1), [0.025, 0.975])
    return low, high


def alternating(days, *, beside_another):
    """One name at 100, 110, 100, ... whose opens are the closes before; beside it, if asked for, one that never moves."""
    close = np.where(np.arange(days) % 2, 110.0, 100.0)[:, None]
    if beside_another:
        close = np.hstack([close, np.full_like(close, 100.0)])
    return make_market(close, open=np.vstack([close[:1], close[:-1]]))


@pytest.mark.parametrize(("fill", "beside_another"), [("open", False), ("close", True)])
def test_d23_a_move_that_can_be_seen_coming_is_taken(tmp_path, fill, beside_another):
    """Best play makes 1.1^5 = 1.61 in ten sessions, buy and hold nothing."""
    market = alternating(400, beside_another=beside_another)
    days, began = market.dates, time.process_time()
    # a name that is alone has nothing to be compared with on its day, so there it is a feature scaled over time
    feature = last_move if beside_another else "macd"
    agent = finpod.train(
        market=market, train=(days[60], days[300]), validation=(days[301], days[340]), out=tmp_path / "agent",
        features=[feature], agents=1, rounds=1, keep=1, hold=1, action="softmax", fill=fill, costs=FREE, seed=0,
        num_envs=128, start_groups=16, steps=40_960, config=PPOConfig(learning_rate=1e-2),
    )  # fmt: skip
    assert time.process_time() - began < BUDGET
    result = finpod.backtest(agent, market, start=days[350], end=days[360], costs=FREE, fill=fill)
    assert 1.4 < result.equity.iloc[-1] / result.equity.iloc[0] < 1.1**5
    assert market.close[360, 0] == market.close[350, 0]


def share_of_the_oracle(seed, out):
    """Information ratio over equal weight on unseen days, as a share of the oracle's, and the cost-free interval of the excess."""
    market = simulate_market(names=20, days=DAYS, signal=0.1, seed=seed)
    agent, unseen = train_on(market, 60, seed, out)
    own, oracle = (finpod.backtest(strategy, market, **unseen) for strategy in (agent, market.oracle))
    ratios = [excess.mean() / excess.std() * 252**0.5 for excess in map(excess_returns, (own, oracle))]
    assert ratios[1] > 1.5
    free = finpod.backtest(agent, market, costs=FREE, **unseen)
    return ratios[0] / ratios[1], bootstrap_interval(excess_returns(free))


@pytest.mark.journey
def test_a_planted_signal_is_learnt(tmp_path):
    shares, intervals = zip(*(share_of_the_oracle(seed, tmp_path / str(seed)) for seed in range(3)), strict=True)
    assert np.median(shares) >= 0.5, shares
    assert sum(low > 0 for low, _ in intervals) >= 2, intervals  # the yardstick of the negative control does see skill


@pytest.mark.journey
def test_nothing_is_learnt_where_there_is_nothing(tmp_path):
    covered = []
    for seed in range(5):
        market = simulate_market(names=20, days=DAYS, signal=0.0, seed=seed)
        agent, unseen = train_on(market, 20, seed, tmp_path / str(seed))
        values = excess_returns(finpod.backtest(agent, market, costs=FREE, **unseen))
        assert values.std() > 1e-6  # it does differ from equal weight
        low, high = bootstrap_interval(values)
        covered.append(low <= 0 <= high)
    assert sum(covered) >= 4, covered
