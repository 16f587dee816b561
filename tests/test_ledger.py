"""The ledger: cases C, conservation of money, and invariance to shapes and order."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_markets import t

from finpod.trading.ledger import Costs, Fill, cost_of, orders_for, settle, value

FREE, WHOLE = Costs(fee_bps=0), {"whole_shares": True}
STEEP = Costs(fee_bps=0, impact=1.0)
DEEP = 0.02 / 1e8**0.5
"""sigma / sqrt(V) of an asset that moves by 2% per day, with a daily volume of 100 million: 1 million costs 20 bps."""


def fill(cash, shares, orders, price, costs=FREE, *, tradable=None, may_buy=None, **options) -> Fill:
    """`settle` of plain numbers; everything may be traded unless said otherwise."""
    all_of_them = torch.ones(len(price), dtype=torch.bool)
    masks = (all_of_them if mask is None else torch.tensor(mask) for mask in (tradable, may_buy))
    return settle(t(cash)[0], t(*shares), t(*orders), t(*price), *masks, costs, **options)


def random_orders(seed: int, accounts: tuple[int, ...], names: int):
    """Cash, shares, orders, price, tradable, may_buy of a random moment."""
    g = torch.Generator().manual_seed(seed)
    held = torch.rand(*accounts, names, generator=g, dtype=torch.float64) * 20
    orders = torch.randn(*accounts, names, generator=g, dtype=torch.float64) * 30
    price = torch.rand(names, generator=g, dtype=torch.float64) * 100 + 0.01
    cash = torch.rand(accounts, generator=g, dtype=torch.float64) * 1000
    return cash, held, orders, price, torch.rand(names, generator=g) < 0.8, torch.rand(names, generator=g) < 0.8


AT, CENTS = {"impact": t(DEEP)}, Costs(fee_bps=0, per_share=0.02)
BARRED = {"tradable": [False, True, True], "may_buy": [True, False, False]}
FILLS = {
    "c01: the fee counts in what can be bought": (1000, [0], [10], [100], Costs(fee_bps=100), WHOLE, 91, [9], 9),
    "c01: fractions": (1000, [0], [10], [100], Costs(fee_bps=100), {}, 0, [1000 / 101], 1000 / 101),
    "c03, c22: sells what it holds": (0, [3], [-5], [10], FREE, {}, 30, [0], 0),
    "c22: buys what the cash allows": (90, [0], [10], [10], FREE, {}, 0, [9], 0),
    "c04: a buy pays its fee": (2000, [0], [10], [100], Costs(), {}, 999, [10], 1),
    "c04: a sell pays its own": (999, [10], [-10], [110], Costs(), {}, 2097.90, [0], 1.1),
    "c18: huge orders": (1001, [0, 0], [1e9, 1e9], [20, 20], Costs(), {}, 0, [25, 25], 1),
    "c26: a third of a share": (1000, [0], [1 / 3], [3000], FREE, {}, 0, [1 / 3], 0),
    "c26: less than a whole share": (1000, [0], [1 / 3], [3000], FREE, WHOLE, 1000, [0], 0),
    "c26: 10 shares as traded": (1075, [0], [21.5], [50], FREE, {"factor": t(0.5), **WHOLE}, 75, [20], 0),
    "c26: a fraction is sold with the whole": (0, [7.5], [-7.5], [10], FREE, WHOLE, 75, [0], 0),
    "c26: but not alone": (0, [7.5], [-3.9], [10], FREE, WHOLE, 30, [4.5], 0),
    "25 shares as traded, at 0.02 each": (10_000, [0], [100], [30], CENTS, {"factor": t(0.25)}, 6999.5, [100], 0.5),
    "0.02 a share and 10 bps": (1e4, [0], [100], [30], replace(CENTS, fee_bps=5, slippage_bps=5), {}, 6995, [100], 5),
    "a sale below its commission": (0, [5], [-5], [0.5], Costs(fee_bps=0, per_share=2.0), {}, 0, [0], 2.5),
    "20 bps impact and a fee of 10": (2e6, [0], [1e4], [100], Costs(impact=1.0), AT, 997_000, [1e4], 3000),
    "also for a sale": (0, [1e4], [-1e4], [100], Costs(impact=1.0), AT, 997_000, [0], 3000),
    "half the impact": (2e6, [0], [1e4], [100], Costs(fee_bps=0, impact=0.5), AT, 999_000, [1e4], 1000),
    "no impact": (2e6, [0], [1e4], [100], Costs(), AT, 999_000, [1e4], 1000),
    "a sale costs at most its worth": (0, [5], [-5], [10], STEEP, {"impact": t(1e6)}, 0, [0], 50),
    "and so does a buy": (100, [0], [5], [10], STEEP, {"impact": t(1e6)}, 0, [5], 50),
    "buys share the cash pro rata": (300, [0, 0], [10, 20], [20, 20], FREE, {}, 0, [5, 10], 0),
    "sells pay for buys": (0, [10, 0], [-10, 20], [10, 5], FREE, {}, 0, [0, 20], 0),
    "no price, no member": (1000, [5, 5, 0], [-5, -5, 5], [10, 10, 10], FREE, BARRED, 1050, [5, 0, 0], 0),
}


@pytest.mark.parametrize("case", FILLS)
def test_a_fill_by_hand(case):
    cash, shares, orders, price, costs, options, *expected = FILLS[case]
    settled = fill(cash, shares, orders, price, costs, **options)
    actual = [settled.cash.item(), settled.shares.tolist(), settled.cost.item()]
    assert actual == [pytest.approx(value, rel=1e-12, abs=1e-9) for value in expected]
    assert settled.traded.tolist() == pytest.approx([b - a for a, b in zip(shares, expected[1], strict=True)])


def test_c06_the_wallet_pays_for_each_change():
    cash, shares, price, costs = t(1000)[0], t(0, 0), t(20, 50), Costs(fee_bps=10)
    may = torch.ones(2, dtype=torch.bool)
    values, turnover = [], 0.0
    for weights in (t(1, 0), t(0.5, 0.5), t(0, 1)):
        before = value(cash, shares, price)
        orders = orders_for(weights, before, shares, price)
        cash, shares, traded, *_ = settle(cash, shares, orders, price, may, may, costs)
        values.append(value(cash, shares, price).item())
        turnover += ((traded * price).abs().sum() / before).item()
    assert values == pytest.approx([999.000999, 998.002996, 997.004993], rel=1e-9)
    assert turnover == pytest.approx(2.998002, abs=1e-6)


def test_c20_a_negative_target_is_a_target_of_zero():
    assert orders_for(t(-0.5, 0.5), t(140)[0], t(4, 0), t(10, 10)).tolist() == [-4.0, 7.0]


def test_orders_reach_the_weights_and_ignore_dust():
    assert orders_for(t(0.25, 0.5), t(100)[0], t(5, 0), t(10, 20)).tolist() == pytest.approx([-2.5, 2.5])
    held = t(1 / 3, 1 / 3)
    assert orders_for(t(0.5, 0.5) * (1 + 1e-15), t(2)[0], held, t(3, 3)).tolist() == [0.0, 0.0]
    assert (held + orders_for(t(0, 0), t(2)[0], held, t(3, 3))).tolist() == [0.0, 0.0]
    assert orders_for(t(0, 1e-9), t(1e9)[0], t(1e-9, 1), t(1, 1)).tolist() == [-1e-9, 0.0]
    assert orders_for(t(0.5), t(2)[0], t(1.1), t(1)).item() < 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 30), st.floats(0, 500), st.floats(0, 5), st.floats(0, 100), st.booleans())
def test_c03_money_is_neither_made_nor_lost_and_holdings_stay_long(seed, names, fee_bps, per_share, impact, whole):
    cash, held, orders, price, tradable, may_buy = random_orders(seed, (4,), names)
    costs = Costs(fee_bps=fee_bps, per_share=per_share, impact=impact)
    depth = torch.rand(names, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / 1000
    settled = settle(cash, held, orders, price, tradable, may_buy, costs, impact=depth, whole_shares=whole)
    free = settle(cash, held, orders, price, tradable, may_buy, FREE, whole_shares=whole)
    assert (settled.traded.abs() <= free.traded.abs() * (1 + 1e-12)).all()
    assert (settled.cash >= 0).all()
    assert (settled.shares >= 0).all()
    assert (settled.traded[:, ~tradable] == 0).all()
    assert (settled.traded[:, ~may_buy] <= 0).all()
    before, after = value(cash, held, price), value(settled.cash, settled.shares, price)
    torch.testing.assert_close(after + settled.cost, before, rtol=1e-11, atol=1e-6 if whole else 1e-9)
    each = cost_of(settled.traded, price, costs, impact=depth)
    torch.testing.assert_close(each.sum(-1), settled.cost, rtol=1e-11, atol=1e-9)
    torch.testing.assert_close((settled.traded * price).abs().sum(-1), settled.notional, rtol=1e-11, atol=1e-9)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.01, 50), st.floats(1e3, 1e12))
def test_the_wallet_pays_for_buys_with_impact_to_the_last_cent(seed, impact, cash):
    """Against bisection: of orders beyond the wallet, however deep the market."""
    g = torch.Generator().manual_seed(seed)
    wanted = torch.rand(20, generator=g, dtype=torch.float64) * cash
    depth, costs = torch.rand(20, generator=g, dtype=torch.float64) * 1e-6, Costs(impact=impact)
    everything, price = torch.ones(20, dtype=torch.bool), torch.full((20,), 10.0, dtype=torch.float64)
    filled = settle(t(cash)[0], t(*[0] * 20), wanted / 10, price, everything, everything, costs, impact=depth)

    def bill(share):
        return float((share * wanted * (1 + costs.at_size(costs.rate, share * wanted, depth))).sum())

    low, high = 0.0, 1.0
    for _ in range(200):
        low, high = ((low + high) / 2, high) if bill((low + high) / 2) <= cash else (low, (low + high) / 2)
    capped = bool((costs.at_size(costs.rate, wanted, depth) == 1).any())
    bought = float((filled.shares * 10).sum() / wanted.sum())
    assert bought <= low * (1 + 1e-11)
    assert capped or bought == pytest.approx(low, rel=1e-10)
