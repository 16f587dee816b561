"""The ledger agrees with an account in plain Python, which shares no code with it: loops over days and assets."""

from math import isfinite

import numpy as np
import pytest
from made_markets import random_market

from finpod import Costs, backtest, simulate_market
from finpod.rules import RULES, Momentum


def account(prices, first, last, decide, *, fill, fee_bps=0.0, cash=1e6):
    """(equity at the closes of rows `first` to `last`, fees paid) of a long-only account with fractional shares.

    `prices` has `close`, `open`, `member` (T rows of N) and `last_bar` (N row numbers). `decide(step, row)` gives N
    weights, or None to trade nothing, and may look at rows up to `row` only.
    """
    fee, fees, step, names = fee_bps / 10_000, 0.0, 0, range(len(prices["close"][0]))
    shares, marks, equity = [0.0 for _ in names], [1.0 for _ in names], [cash]
    for row in range(first + 1):
        marks = marked(prices, row, marks)
    for row in range(first, last):
        seen, at = (row, row + 1) if fill == "open" else (row - 1, row)  # last row seen, row of the fill
        weights = decide(step, seen) if seen >= 0 else None
        step += seen >= 0
        if weights is not None:
            tradable = [isfinite(prices[fill][at][i]) and isfinite(prices["close"][at][i]) for i in names]
            price = [prices[fill][at][i] if tradable[i] else marks[i] for i in names]
            worth = cash + sum(shares[i] * price[i] for i in names)
            orders = [weights[i] * worth / price[i] - shares[i] for i in names]
            for i in names:  # sells first, so that their proceeds pay for the buys
                if orders[i] < 0 and tradable[i]:
                    cash += min(-orders[i], shares[i]) * price[i] * (1 - fee)
                    fees += min(-orders[i], shares[i]) * price[i] * fee
                    shares[i] -= min(-orders[i], shares[i])
            bought = [i for i in names if orders[i] > 0 and tradable[i] and prices["member"][seen][i]]
            bill = sum(orders[i] * price[i] for i in bought) * (1 + fee)
            part = min(1.0, cash / bill) if bill > 0 else 0.0  # every buy gets the same part of what it asks for
            for i in bought:
                shares[i] += part * orders[i]
                fees += part * orders[i] * price[i] * fee
            cash = max(cash - part * bill, 0.0)
        for i in names:
            if row == prices["last_bar"][i]:  # the next session is the first without it: cash at the last price
                cash, shares[i] = cash + shares[i] * marks[i], 0.0
        marks = marked(prices, row + 1, marks)
        equity.append(cash + sum(shares[i] * marks[i] for i in names))
    return equity, fees


def marked(prices, row, marks):
    return [price if isfinite(price) else marks[i] for i, price in enumerate(prices["close"][row])]


def equal_parts(among):
    return [float(one) / max(sum(among), 1) for one in among]


def members(prices, row):
    return [inside and isfinite(p) for inside, p in zip(prices["member"][row], prices["close"][row], strict=True)]


def equal_weight(prices):
    return lambda step, row: equal_parts(members(prices, row))


def hold(prices):
    return lambda step, row: equal_parts(members(prices, row)) if step == 0 else None


def momentum(prices, lookback=252, k=10, every=21):
    def decide(step, row):
        if step % every:
            return None
        now, then = prices["close"][row], prices["close"][row - lookback + 1] if row + 1 >= lookback else None
        among = [i for i, there in enumerate(members(prices, row)) if there and then and isfinite(then[i])]
        best = sorted(among, key=lambda i: -now[i] / then[i])[:k]
        return equal_parts([i in best for i in range(len(now))])

    return decide


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
