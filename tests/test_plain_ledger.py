"""The ledger agrees with an account in plain Python, which shares no code with it: loops over days and assets."""

from math import isfinite

import numpy as np
import pytest
from made_markets import random_market

from finpod import Costs, backtest


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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("first", [0, 3])
def test_the_ledger_agrees_on_a_market_with_gaps_delistings_and_changing_members(fill, first, seed):
    """Of assets that are no members only what is held is sold. On a third of the days nothing is decided."""
    market, random = random_market(60, 6, seed=seed), np.random.default_rng(seed)
    weights = random.dirichlet(np.ones(6), 60) * random.choice([np.nan, 0.5, 1.0], (60, 1))
    start, last_bar = market.dates[first], np.searchsorted(market.dates, market.last_bar)
    result = backtest(weights, market, start=start, costs=Costs(fee_bps=30), fill=fill, cash=1e6)
    tables = {name: getattr(market, name).tolist() for name in ("open", "close", "member")} | {"last_bar": last_bar}
    decided = [None if np.isnan(row).all() else row.tolist() for row in weights]
    equity, fees = account(tables, first, 59, lambda step, row: decided[row], fill=fill, fee_bps=30)
    np.testing.assert_allclose(result.equity.to_numpy(), equity, rtol=1e-9, atol=0)
    assert result.fees == pytest.approx(fees, rel=1e-9)
    assert result.metrics.total_return == pytest.approx(equity[-1] / equity[0] - 1, rel=1e-9)
