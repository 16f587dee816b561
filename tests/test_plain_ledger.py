"""The ledger agrees with a plain-Python account on data that every clone has: the bundled sample and simulated markets."""

import numpy as np
import pytest
from made_markets import random_market
from plain_ledger import account, equal_weight, hold, momentum

from finpod import Costs, backtest, sample_market, simulate_market
from finpod.rules import RULES, Momentum

FEES = (0, 30)
BOTH = pytest.mark.parametrize("fill", ["open", "close"])
PLAIN = {"benchmark-hold": hold, "equal-weight": equal_weight, "buy-and-hold": hold, "momentum": momentum}


def lists(market):
    """The tables of a market as lists, with the row of each name's last bar."""
    return {
        "open": None if market.open is None else market.open.tolist(),
        "close": market.close.tolist(),
        "member": market.member.tolist(),
        "last_bar": np.searchsorted(market.dates, market.last_bar).tolist(),
    }


def assert_agree(market, strategy, plain, first, last, fill, fee):
    dates = market.dates
    result = backtest(
        strategy, market, start=dates[first], end=dates[last], costs=Costs(fee_bps=fee), fill=fill, cash=1e6
    )
    prices = lists(market.benchmark_market() if strategy.trades_benchmark else market)
    equity, fees = account(prices, first, last, plain(prices), fill=fill, fee_bps=fee)
    np.testing.assert_allclose(result.equity.to_numpy(), equity, rtol=1e-9, atol=0)
    assert result.fees == pytest.approx(fees, rel=1e-9, abs=1e-9)
    assert result.metrics.total_return == pytest.approx(equity[-1] / equity[0] - 1, rel=1e-9)
    assert fee == 0 or fees > 0
    assert equity[-1] != equity[0]


@pytest.fixture(scope="module")
def simulated():
    return simulate_market(names=12, days=460, signal=0.1, seed=3)


@pytest.mark.parametrize("fee", FEES)
@pytest.mark.parametrize("name", PLAIN)
def test_the_bundled_sample(name, fee):
    sample = sample_market()
    assert_agree(sample, RULES[name](), PLAIN[name], *sample.window("2020-01-02", "2021-12-31"), "close", fee)


@BOTH
@pytest.mark.parametrize(("first", "last", "fee"), [(260, 459, 0), (260, 459, 30), (0, 300, 10)])
@pytest.mark.parametrize("name", PLAIN)
def test_a_simulated_market(simulated, name, first, last, fee, fill):
    """A close fill on the first row would need a decision on the row before: it is skipped."""
    assert_agree(simulated, RULES[name](), PLAIN[name], first, last, fill, fee)


@pytest.mark.parametrize("seed", range(3))
@BOTH
@pytest.mark.parametrize(
    ("strategy", "plain"),
    [
        (RULES["equal-weight"], equal_weight),
        (RULES["buy-and-hold"], hold),
        (lambda: Momentum(lookback=4, k=2), lambda prices: momentum(prices, lookback=4, k=2)),
    ],
)
def test_missing_bars_delistings_and_changing_members(strategy, plain, fill, seed):
    market = random_market(60, 6, seed=seed)
    assert not market.has_bar.all()
    assert (market.last_bar < market.dates[-1]).any()
    assert_agree(market, strategy(), plain, 3, 59, fill, 10)


@BOTH
def test_weights_for_names_that_are_no_members(fill):
    """Of these only what is held is sold."""
    market = random_market(60, 6, seed=7)
    weights = np.random.default_rng(7).dirichlet(np.ones(6), 60)
    result = backtest(weights, market, costs=Costs(fee_bps=30), fill=fill, cash=1e6)
    equity, fees = account(lists(market), 0, 59, lambda step, row: weights[row].tolist(), fill=fill, fee_bps=30)
    np.testing.assert_allclose(result.equity.to_numpy(), equity, rtol=1e-9, atol=0)
    assert result.fees == pytest.approx(fees, rel=1e-9)


def one_name(close, opens=()):
    """Prices of one name that stays listed while it has a bar."""
    last = max(row for row, price in enumerate(close) if price == price)
    rows = {"open": [[float(price)] for price in opens], "close": [[float(price)] for price in close]}
    return rows | {"member": [[True]] * len(close), "last_bar": [last]}


def test_the_plain_ledger_by_hand():
    """Figures worked on paper: fees from the wallet (C06, C08), open fills (C09), a delisting (B08)."""
    targets = [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    flat = {"close": [[10.0, 20.0]] * 4, "open": [[10.0, 20.0]] * 4, "member": [[True, True]] * 4, "last_bar": [3, 3]}
    equity, fees = account(flat, 0, 3, lambda step, row: targets[step], fill="open", fee_bps=10, cash=1000.0)
    assert equity == pytest.approx([1000, 999.000999, 998.002996, 997.004993], abs=1e-6)
    assert fees == pytest.approx(1000 - equity[-1], rel=1e-12)
    rising = one_name([10, 11, 12.1, 10.89], [10, 10, 11, 12.1])
    equity, _ = account(rising, 0, 3, lambda step, row: [1.0], fill="open", cash=1000.0)
    assert equity == pytest.approx([1000, 1100, 1210, 1089], rel=1e-12)
    leaves = one_name([50, 50, 45, 40, float("nan"), float("nan")])
    equity, _ = account(leaves, 1, 5, lambda step, row: [0.5] if step == 0 else None, fill="close", cash=1000.0)
    assert equity == pytest.approx([1000, 950, 900, 900, 900], rel=1e-12)
