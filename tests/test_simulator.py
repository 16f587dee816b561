import json

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from finpod.errors import InputError
from finpod.market.data import MarketData
from finpod.simulator import LOOKBACK, shuffled, simulate_market
from finpod.strategy import MarketView


def measured_signal(market):
    """Correlation of the z-scored five-day past return with the next day's residual of a market regression."""
    returns = market.close[1:] / market.close[:-1] - 1
    index = returns.mean(axis=1)
    centred = index - index.mean()
    beta = centred @ returns / (centred @ centred)
    residual = returns - returns.mean(axis=0) - np.outer(centred, beta)
    past = market.close[LOOKBACK:-1] / market.close[: -LOOKBACK - 1]
    z = (past - past.mean(axis=1, keepdims=True)) / past.std(axis=1, keepdims=True)
    return float(np.corrcoef(z.ravel(), residual[LOOKBACK:].ravel())[0, 1])


@pytest.mark.parametrize("signal", [0.0, 0.1, 0.3, -0.2])
def test_the_signal_is_as_strong_as_asked_for(signal):
    market = simulate_market(names=100, days=1500, signal=signal, seed=1)
    # 150,000 pairs: the sampling error is 0.0026; the residual of 100 names inflates a correlation by half a percent
    assert measured_signal(market) == pytest.approx(signal, abs=0.01)


def test_the_market_is_the_same_for_the_same_seed_and_another_for_another():
    first, again, other = (simulate_market(names=5, days=50, seed=seed) for seed in (3, 3, 4))
    assert first.content_hash == again.content_hash
    assert first.content_hash != other.content_hash
    assert_array_equal(first.dates[[0, 4, 5]], np.array(["2010-01-04", "2010-01-08", "2010-01-11"], "datetime64[ns]"))


def test_bars_are_whole_and_opens_equal_the_close_before():
    market = simulate_market(names=10, days=400, seed=2)
    assert_array_equal(market.open[1:], market.close[:-1])
    assert_array_equal(market.benchmark_open[1:], market.benchmark_close[:-1])
    assert (market.high >= np.maximum(market.open, market.close)).all()
    assert (market.low <= np.minimum(market.open, market.close)).all()
    assert (market.low > 0).all()
    assert (market.volume > 0).all()
    returns = market.close[1:] / market.close[:-1] - 1
    assert_allclose(market.benchmark_close[1:] / market.benchmark_close[:-1] - 1, returns.mean(axis=1), atol=1e-12)
    assert 0.009 < returns.mean(axis=1).std() < 0.012
    assert 0.015 < returns.std() < 0.021


def test_it_is_labelled_as_simulated():
    market = simulate_market(names=4, days=30, signal=0.1, seed=7)
    assert market.is_simulated
    assert market.title == "simulated market: 4 names, 30 days, a planted signal of 0.1, seed 7"
    assert market.benchmark == "simulated equal-weight index"
    assert json.loads(json.dumps(dict(market.manifest))) == market.manifest
    assert "no signal" in simulate_market(names=4, days=30, signal=0).title


def next_day_returns(strategy, market):
    """Cost-free return of each decision over the next session, and that of equal weight."""
    returns = market.close[1:] / market.close[:-1] - 1
    weights = np.array([strategy.decide(MarketView(market, row)) for row in range(len(market.dates) - 1)])
    return (weights * returns).sum(axis=1), returns.mean(axis=1)


def test_the_oracle_earns_what_its_weights_imply():
    market = simulate_market(names=20, days=2500, signal=0.1, seed=0)
    own, equal = next_day_returns(market.oracle, market)
    excess = own - equal
    # half the names carry e^2 times the weight: the spread of z between the halves, about 1.6, times tanh(1) / 2
    expected = 0.1 * 0.015 * 1.6 * np.tanh(1.0) / 2
    assert excess.mean() == pytest.approx(expected, rel=0.4)
    assert excess.mean() / excess.std() * np.sqrt(len(excess)) > 4


def test_the_oracle_stays_within_the_action_family():
    market = simulate_market(names=6, days=30, signal=0.2)
    weights = market.oracle.decide(MarketView(market, 20))
    assert weights.sum() == pytest.approx(1.0)
    strength = market.close[20] / market.close[15]
    assert weights.max() / weights.min() == pytest.approx(np.exp(2))
    assert_array_equal(weights > 1 / 6, strength > np.median(strength))
    assert_allclose(market.oracle.decide(MarketView(market, 3)), 1 / 6)
    reverse = simulate_market(names=6, days=30, signal=-0.2)
    strength = reverse.close[20] / reverse.close[15]
    assert_array_equal(reverse.oracle.decide(MarketView(reverse, 20)) > 1 / 6, strength < np.median(strength))
    none = simulate_market(names=6, days=30, signal=0.0)
    assert_allclose(none.oracle.decide(MarketView(none, 20)), 1 / 6)


def test_slices_keep_the_oracle():
    market = simulate_market(names=4, days=60, signal=0.3)
    assert market.rows(30, 60).signal == 0.3
    assert isinstance(market.benchmark_market(), MarketData)


def test_shuffling_keeps_the_days_and_destroys_the_signal():
    market = simulate_market(names=50, days=1500, signal=0.3, seed=5)
    mixed = shuffled(market, seed=1)
    before, after = (m.close[1:] / m.close[:-1] - 1 for m in (market, mixed))
    order = np.argsort(before[:, 0]), np.argsort(after[:, 0])
    assert_allclose(after[order[1]], before[order[0]], atol=1e-12)  # whole days, all names together
    assert not np.allclose(after, before)
    benchmark = mixed.benchmark_close[1:] / mixed.benchmark_close[:-1] - 1
    assert_allclose(benchmark, after.mean(axis=1), atol=1e-12)
    assert_allclose(mixed.open[1:], mixed.close[:-1], rtol=1e-12)
    assert (mixed.high >= mixed.close * (1 - 1e-12)).all()
    assert_array_equal(np.sort(mixed.volume, axis=0), np.sort(market.volume, axis=0))
    assert measured_signal(market) > 0.25
    assert abs(measured_signal(mixed)) < 0.015
    assert mixed.signal == 0
    assert mixed.is_simulated
    assert any("shuffled" in note for note in mixed.manifest["notes"])
    assert shuffled(market, seed=1).content_hash == mixed.content_hash
    assert shuffled(market, seed=2).content_hash != mixed.content_hash


def test_a_market_with_gaps_cannot_be_shuffled():
    dates = np.array(["2024-01-02", "2024-01-03"], dtype="datetime64[ns]")
    market = MarketData(dates=dates, tickers=("A",), close=np.array([[1.0], [np.nan]]), benchmark_close=np.ones(2))
    with pytest.raises(InputError, match="missing bars cannot be shuffled"):
        shuffled(market, seed=0)


@pytest.mark.parametrize("arguments", [{"names": 1}, {"days": 1}, {"signal": 1.5}, {"signal": float("nan")}])
def test_arguments_out_of_range(arguments):
    with pytest.raises(InputError, match="a simulated market needs"):
        simulate_market(**arguments)
