"""The account of a strategy in plain Python: the contracts of time, money and tradability as loops over days and names.

It shares no code with finpod and does no array arithmetic: an independent check of the ledger. Prices are T rows of N
floats, NaN where there is no price.
"""

from math import isfinite


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
