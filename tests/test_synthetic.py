"""Simulated and resampled markets: the strength of the signal, the informed rule, and markets without skill."""

import numpy as np
import pytest
import torch
from made_errors import refused
from numpy.testing import assert_allclose, assert_array_equal

from finpod.market.data import MarketData
from finpod.rules import SignalOracle, forecast, partly, tilted
from finpod.strategy import MarketView
from finpod.synthetic import CALIBRATED, HOLD, random_returns, resampled, simulate_market
from finpod.trading.ledger import Costs, orders_for, settle, value


def measured_signal(market, lookback=5):
    """Correlation of the z-scored past return with the next day's residual of a market regression."""
    returns = market.close[1:] / market.close[:-1] - 1
    index = returns.mean(axis=1)
    centred = index - index.mean()
    beta = centred @ returns / (centred @ centred)
    residual = returns - returns.mean(axis=0) - np.outer(centred, beta)
    past = market.close[lookback:-1] / market.close[: -lookback - 1]
    z = (past - past.mean(axis=1, keepdims=True)) / past.std(axis=1, keepdims=True)
    return float(np.corrcoef(z.ravel(), residual[lookback:].ravel())[0, 1])


@pytest.mark.parametrize(
    ("signal", "lookback", "reversal"), [(0.0, 5, False), (0.3, 5, False), (0.1, 21, False), (0.1, 63, True)]
)
def test_the_signal_is_as_strong_as_asked_for(signal, lookback, reversal):
    market = simulate_market(names=100, days=1500, signal=signal, lookback=lookback, reversal=reversal, seed=1)
    # 150,000 pairs: the sampling error is 0.0026; the residual of 100 names inflates a correlation by half a percent
    assert measured_signal(market, lookback) == pytest.approx(-signal if reversal else signal, abs=0.01)


def test_bars_are_whole_and_opens_equal_the_close_before():
    market = simulate_market(names=10, days=400, seed=2)
    assert simulate_market(names=10, days=400, seed=2).content_hash == market.content_hash
    assert_array_equal(market.dates[[0, 4, 5]], np.array(["2010-01-04", "2010-01-08", "2010-01-11"], "datetime64[ns]"))
    assert_array_equal(market.open[1:], market.close[:-1])
    assert_array_equal(market.benchmark_open[1:], market.benchmark_close[:-1])
    assert (market.high >= np.maximum(market.open, market.close)).all()
    assert (market.low <= np.minimum(market.open, market.close)).all()
    returns = market.close[1:] / market.close[:-1] - 1
    assert_allclose(market.benchmark_close[1:] / market.benchmark_close[:-1] - 1, returns.mean(axis=1), atol=1e-12)
    assert 0.009 < returns.mean(axis=1).std() < 0.012
    assert 0.015 < returns.std() < 0.021


def test_it_is_labelled_as_simulated():
    market = simulate_market(names=4, days=30, signal=0.1, seed=7)
    assert market.title == "simulated market: 4 names, 30 days, a planted signal of 0.1, seed 7"
    assert market.manifest["source"] == "simulated"
    assert "no signal" in simulate_market(names=4, days=30, net_ratio=0).title
    slow = simulate_market(names=4, days=30, lookback=21, reversal=True)
    assert "-0.1 over 21 days" in slow.title
    oracle = slow.rows(10, 30).oracle
    assert (oracle.signal, oracle.lookback) == (-0.1, 21)


def net_ratios(returns, lookback, sign, keep):
    """Yearly ratios [M] of the informed rule over equal weight, net of 10 bps, on M markets: `returns` [T, M, N]."""
    closes = np.cumprod(1 + returns, axis=0)
    prices, (markets, names) = torch.from_numpy(closes), returns.shape[1:]
    always, kept = torch.ones(names, dtype=torch.bool), np.array([[keep], [0.0]])
    cash = torch.ones(markets, 2, dtype=torch.float64)
    shares, equity = torch.zeros(markets, 2, names, dtype=torch.float64), [cash[None]]
    for row in range(lookback, len(returns) - HOLD, HOLD):
        informed = tilted(sign * forecast(closes[row - lookback : row + 1], lookback))
        wanted, price = np.stack([informed, np.full_like(informed, 1 / names)], axis=1), prices[row].unsqueeze(1)
        weights = torch.from_numpy(partly((shares * price).numpy(), wanted, kept))
        orders = orders_for(weights, value(cash, shares, price), shares, price)
        fill = settle(cash, shares, orders, price, always, always, Costs(fee_bps=10))
        cash, shares = fill.cash, fill.shares
        equity.append(cash + torch.einsum("tmn,msn->tms", prices[row + 1 : row + 1 + HOLD], shares))
    curve = torch.cat(equity)
    earned = curve[1:] / curve[:-1] - 1
    active = earned[..., 0] - earned[..., 1]
    return (active.mean(0) / active.std(0) * 252**0.5).numpy()


@pytest.mark.parametrize(("lookback", "sign"), CALIBRATED)
def test_the_informed_rule_earns_its_net_ratio_on_markets_of_other_seeds(lookback, sign):
    ratio = 0.5 if sign < 0 else 2.0
    market = simulate_market(days=30, net_ratio=ratio, lookback=lookback, reversal=sign < 0)
    returns = random_returns(np.random.default_rng(1000), 20, 2600, market.signal, lookback, markets=(50,))
    found = net_ratios(returns, lookback, sign, market.oracle.keep)
    assert found.mean() == pytest.approx(ratio, abs=4 * 0.32 / 50**0.5)
    assert found.std() == pytest.approx(0.32, abs=0.15)  # 1 / sqrt(10 years)


def test_the_oracle_tilts_and_keeps_a_part():
    market = simulate_market(names=6, days=30, signal=0.05)
    oracle, held = market.oracle, np.array([0.5, 0.5, 0, 0, 0, 0])
    wanted, moved = oracle.decide(MarketView(market, 20)), oracle.decide(MarketView(market, 20, held=held))
    assert wanted.sum() == pytest.approx(1.0)
    assert 0 < oracle.keep < 1
    assert_allclose(moved, oracle.keep * held + (1 - oracle.keep) * wanted)
    assert_allclose(oracle.decide(MarketView(market, 3)), 1 / 6)
    strength = market.close[20] / market.close[15:20].mean(axis=0)
    assert np.corrcoef(wanted, strength)[0, 1] > 0.5
    assert np.corrcoef(SignalOracle(-0.05, 5, 0.0).decide(MarketView(market, 20)), strength)[0, 1] < -0.5
    assert_allclose(SignalOracle(0.0, 5, 0.0).decide(MarketView(market, 20)), 1 / 6)


REAL = simulate_market(names=30, days=900, signal=0.2, beta_premium=3.0, seed=5)
"""Stands for real days: names have means and volatilities of their own, and what a day did tells of the next."""


def test_resampled_days_are_real_ones_shifted_by_a_constant():
    mixed = resampled(REAL, days=700, seed=1)
    assert mixed.shape == (700, 30)
    before, after = (m.close[1:] / m.close[:-1] - 1 for m in (REAL, mixed))
    equal = before.mean(axis=1, keepdims=True)
    centred = before - ((before - equal) / (1 + equal)).mean(axis=0) / (1 / (1 + equal)).mean()
    assert_allclose(((centred - equal) / (1 + equal)).mean(axis=0), 0, atol=1e-15)  # so that no tilt grows faster
    nearest = np.abs(after[:, None, 0] - centred[None, :, 0]).argmin(axis=1)
    assert len(set(nearest)) < 600  # with replacement
    assert_allclose(after, centred[nearest], atol=1e-12)
    assert_allclose(mixed.open[1:], mixed.close[:-1])
    assert_allclose((mixed.close * mixed.volume)[1:], (REAL.close * REAL.volume)[1:][nearest], rtol=1e-9)
    assert mixed.title == "700 days drawn with replacement from simulated market: 30 names, seed 1"


def test_only_a_daily_market_without_gaps_can_be_resampled():
    weekly = MarketData(dates=REAL.dates[::5], tickers=("A",), close=np.ones((180, 1)), benchmark_close=np.ones(180))
    holed = np.where(np.arange(180) == 9, np.nan, 1.0)[:, None]
    gap = MarketData(dates=REAL.dates[:180], tickers=("A",), close=holed, benchmark_close=np.ones(180))
    for market, message in ((weekly, "52 per year"), (REAL.rows(0, 1), "1 bars"), (gap, "missing")):
        refused(message, resampled, market, seed=0)
    refused("days is 1;", resampled, REAL, days=1, seed=0)


@pytest.mark.parametrize("arguments", [
    {"lookback": 10}, {"lookback": 5.0, "net_ratio": 1.0}, {"net_ratio": float("nan")}, {"net_ratio": 1.6, "names": 5},
    {"net_ratio": 1.0, "signal": 0.1}, {"beta_premium": 1e9}, {"signal": True}, {"names": 2.5}, {"days": 1},
    {"reversal": "no"},
])  # fmt: skip
def test_arguments_that_are_refused_by_name(arguments):
    refused("", simulate_market, about=next(iter(arguments)), **arguments)
