"""The ledger: cases C, conservation of money, and invariance to shapes and order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finpod.trading.ledger import Costs, Fill, cash_out, cost_of, orders_for, settle, value

FREE = Costs(fee_bps=0)
DEEP = 0.02 / 1e8**0.5
"""sigma / sqrt(V) of a name that moves by 2% a day and of which 100 million are dealt in: 1 million costs 20 bps."""


def t(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def fill(cash, shares, orders, price, costs=FREE, *, tradable=None, may_buy=None, **options) -> Fill:
    """`settle` of plain numbers; everything may be traded unless said otherwise."""
    everything = torch.ones(len(price), dtype=torch.bool)
    return settle(
        torch.tensor(float(cash), dtype=torch.float64),
        t(*shares),
        t(*orders),
        t(*price),
        everything if tradable is None else torch.tensor(tradable),
        everything if may_buy is None else torch.tensor(may_buy),
        costs,
        **options,
    )


def random_orders(seed: int, accounts: tuple[int, ...], names: int):
    """Cash, shares, orders, price, tradable, may_buy of a random moment."""
    g = torch.Generator().manual_seed(seed)
    held = torch.rand(*accounts, names, generator=g, dtype=torch.float64) * 20
    orders = torch.randn(*accounts, names, generator=g, dtype=torch.float64) * 30
    price = torch.rand(names, generator=g, dtype=torch.float64) * 100 + 0.01
    cash = torch.rand(accounts, generator=g, dtype=torch.float64) * 1000
    return cash, held, orders, price, torch.rand(names, generator=g) < 0.8, torch.rand(names, generator=g) < 0.8


def test_c01_the_fee_counts_in_what_can_be_bought():
    whole = fill(1000, [0], [10], [100], Costs(fee_bps=100), whole_shares=True)
    assert whole.shares.tolist() == [9.0]
    assert whole.cash.item() == pytest.approx(91.0, rel=1e-12)
    parts = fill(1000, [0], [10], [100], Costs(fee_bps=100))
    assert parts.shares.item() == pytest.approx(1000 / 101, rel=1e-12)
    assert parts.cash.item() == pytest.approx(0, abs=1e-9)


def test_c03_c22_sells_no_more_than_it_holds_and_buys_no_more_than_the_cash_allows():
    sale = fill(0, [3], [-5], [10])
    assert (sale.traded.tolist(), sale.shares.tolist(), sale.cash.item()) == ([-3.0], [0.0], 30.0)
    assert fill(90, [0], [10], [10]).traded.tolist() == [9.0]


@pytest.mark.parametrize("whole", [False, True])
def test_c03_holdings_stay_long_over_10000_random_steps(whole):
    accounts, names, costs = 50, 7, Costs(fee_bps=30, per_share=0.01)
    g = torch.Generator().manual_seed(3)
    cash = torch.full((accounts,), 1000.0, dtype=torch.float64)
    shares = torch.zeros(accounts, names, dtype=torch.float64)
    everything = torch.ones(names, dtype=torch.bool)
    for _ in range(200):
        orders = torch.randn(accounts, names, generator=g, dtype=torch.float64) * 10
        price = torch.rand(names, generator=g, dtype=torch.float64) * 50 + 1
        cash, shares, traded, *_ = settle(
            cash, shares, orders, price, everything, everything, costs, whole_shares=whole
        )
        assert (shares >= 0).all()
        assert (cash >= 0).all()
        assert (traded.sign() * orders.sign() >= 0).all()
    assert (shares > 0).any()


def test_c04_each_side_pays_its_own_fee():
    bought = fill(2000, [0], [10], [100], Costs(fee_bps=10))
    assert bought.cash.item() == pytest.approx(999, rel=1e-12)
    assert value(bought.cash, bought.shares, t(100)).item() == pytest.approx(1999, rel=1e-12)
    sold = fill(bought.cash, bought.shares.tolist(), [-10], [110], Costs(fee_bps=10))
    assert sold.cash.item() == pytest.approx(2097.90, rel=1e-12)
    assert bought.cost.item() + sold.cost.item() == pytest.approx(2.10, rel=1e-12)


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


def test_c18_an_order_beyond_all_measure_buys_what_the_cash_allows():
    price = torch.linspace(1, 500, 101, dtype=torch.float64)
    settled = fill(1e6, [0] * 101, [1e9] * 101, price.tolist(), Costs(fee_bps=10))
    assert settled.cash.item() == pytest.approx(0, abs=1e-6)
    gross = (settled.shares * price).sum().item()
    assert gross == pytest.approx(1e6 / 1.001, rel=1e-12)


def test_c20_a_negative_target_is_a_target_of_zero():
    assert orders_for(t(-0.5, 0.5), t(140)[0], t(4, 0), t(10, 10)).tolist() == [-4.0, 7.0]


def test_c26_whole_shares_are_whole():
    assert fill(1000, [0], [1 / 3], [3000]).shares.item() == pytest.approx(1 / 3)
    none = fill(1000, [0], [1 / 3], [3000], whole_shares=True)
    assert (none.shares.item(), none.cash.item()) == (0.0, 1000.0)
    # adjusted price 50 at a factor of 1/2 is a share of 100 as traded: 1000 buys ten of those, 20 adjusted ones
    bought = fill(1075, [0], [21.5], [50], factor=t(0.5), whole_shares=True)
    assert (bought.shares.item(), bought.cash.item()) == (20.0, 75.0)
    # a fraction is sold only with the whole position
    assert fill(0, [7.5], [-7.5], [10], whole_shares=True).shares.item() == 0.0
    assert fill(0, [7.5], [-3.9], [10], whole_shares=True).shares.item() == 4.5


def test_commission_per_share_is_per_share_as_traded():
    """100 adjusted shares at a factor of 1/4 are 25 shares as traded, at 0.02 each."""
    bought = fill(10_000, [0], [100], [30], Costs(fee_bps=0, per_share=0.02), factor=t(0.25))
    assert bought.cost.item() == pytest.approx(25 * 0.02, rel=1e-12)
    plain = fill(10_000, [0], [100], [30], Costs(fee_bps=5, slippage_bps=5, per_share=0.02))
    assert plain.cost.item() == pytest.approx(100 * 0.02 + 3000 * 0.001, rel=1e-12)
    assert plain.cash.item() == pytest.approx(10_000 - 3000 - 5, rel=1e-12)


def test_selling_for_less_than_the_commission_takes_no_cash():
    sold = fill(0, [5], [-5], [0.5], Costs(fee_bps=0, per_share=2.0))
    assert (sold.cash.item(), sold.cost.item()) == (0.0, 2.5)


def test_impact_is_volatility_times_the_root_of_the_share_of_volume():
    """0.02 sqrt(1e6 / 1e8) = 20 bps of a million, beside a fee of 10 bps: 3,000 on either side."""
    costs = Costs(impact=1.0)
    bought = fill(2e6, [0], [10_000], [100], costs, impact=t(DEEP))
    assert bought.cost.item() == pytest.approx(3000, rel=1e-12)
    assert bought.cash.item() == pytest.approx(997_000, rel=1e-12)
    sold = fill(0, [10_000], [-10_000], [100], costs, impact=t(DEEP))
    assert (sold.cost.item(), sold.cash.item()) == pytest.approx((3000, 997_000), rel=1e-12)
    half = fill(2e6, [0], [10_000], [100], Costs(fee_bps=0, impact=0.5), impact=t(DEEP))
    assert half.cost.item() == pytest.approx(1000, rel=1e-12)
    assert fill(2e6, [0], [10_000], [100], Costs(), impact=t(DEEP)).cost.item() == pytest.approx(1000, rel=1e-12)


def test_no_trade_costs_more_than_it_is_worth():
    sold = fill(0, [5], [-5], [10], Costs(fee_bps=0, impact=1.0), impact=t(1e6))
    assert (sold.cash.item(), sold.cost.item()) == (0.0, 50.0)
    bought = fill(100, [0], [5], [10], Costs(fee_bps=0, impact=1.0), impact=t(1e6))
    assert (bought.shares.item(), bought.cash.item(), bought.cost.item()) == (5.0, 0.0, 50.0)


def test_buys_share_the_wallet_pro_rata_and_sells_pay_for_buys():
    assert fill(300, [0, 0], [10, 20], [20, 20]).shares.tolist() == pytest.approx([5, 10])
    assert fill(0, [10, 0], [-10, 20], [10, 5]).shares.tolist() == [0.0, 20.0]


def test_names_without_a_price_or_a_membership():
    settled = fill(
        1000, [5, 5, 0], [-5, -5, 5], [10, 10, 10], tradable=[False, True, True], may_buy=[True, False, False]
    )
    assert settled.traded.tolist() == [0.0, -5.0, 0.0]
    assert settled.shares.tolist() == [5.0, 0.0, 0.0]


def test_orders_reach_the_weights_and_ignore_dust():
    orders = orders_for(t(0.25, 0.5), t(100)[0], t(5, 0), t(10, 20))
    assert orders.tolist() == pytest.approx([-2.5, 2.5])
    held = t(1 / 3, 1 / 3)
    dust = orders_for(t(0.5, 0.5) * (1 + 1e-15), t(2)[0], held, t(3, 3))
    assert dust.tolist() == [0.0, 0.0]
    assert (held + orders_for(t(0, 0), t(2)[0], held, t(3, 3))).tolist() == [0.0, 0.0]
    assert orders_for(t(0, 1e-9), t(1e9)[0], t(1e-9, 1), t(1, 1)).tolist() == [-1e-9, 0.0]
    assert orders_for(t(0.5), t(2)[0], t(1.1), t(1)).item() < 0


def test_delisted_positions_turn_to_cash():
    gone = torch.tensor([True, False])
    cash, shares = cash_out(t(500)[0], t(10, 2), t(40, 7), gone)
    assert (cash.item(), shares.tolist()) == (900.0, [0.0, 2.0])
    assert cash_out(t(500)[0], t(10, 2), t(40, 7), gone, -1.0)[0].item() == 500.0
    assert cash_out(t(500)[0], t(10, 2), t(40, 7), gone, -0.25)[0].item() == 800.0


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("costs", [Costs(), Costs(fee_bps=7, per_share=0.03), Costs(per_share=0.03, impact=0.7)])
def test_leading_dimensions_change_no_bit(costs, whole):
    cash, held, orders, price, tradable, may_buy = random_orders(5, (64,), 101)
    factor, impact = torch.rand(2, 101, dtype=torch.float64) + 0.1
    market = {"factor": factor, "impact": impact / 1000}

    def run(cash, held, orders):
        return settle(cash, held, orders, price, tradable, may_buy, costs, whole_shares=whole, **market)

    batch = run(cash, held, orders)
    for e in range(0, 64, 9):
        singles = run(cash[e], held[e], orders[e]), run(*(part[e : e + 1] for part in (cash, held, orders)))
        for part, alone, one in zip(batch, *singles, strict=True):
            assert torch.equal(part[e], alone)
            assert torch.equal(one[0], alone)
    weights = torch.rand(64, 101, dtype=torch.float64) / 101
    worth = value(cash, held, price)
    batch = orders_for(weights, worth, held, price)
    assert all(torch.equal(batch[e], orders_for(weights[e], worth[e], held[e], price)) for e in range(64))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 30), st.floats(0, 500), st.floats(0, 5), st.floats(0, 100), st.booleans())
def test_money_is_neither_made_nor_lost(seed, names, fee_bps, per_share, impact, whole):
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


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 40), st.booleans())
def test_the_order_of_the_names_changes_nothing(seed, names, whole):
    cash, held, orders, price, tradable, may_buy = random_orders(seed, (), names)
    order = torch.randperm(names, generator=torch.Generator().manual_seed(seed))
    costs, impact = Costs(impact=1.0), price / 1e5
    one = settle(cash, held, orders, price, tradable, may_buy, costs, impact=impact, whole_shares=whole)
    mixed = (part[order] for part in (held, orders, price, tradable, may_buy))
    other = settle(cash, *mixed, costs, impact=impact[order], whole_shares=whole)
    torch.testing.assert_close(other.cash, one.cash, rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(other.shares, one.shares[order], rtol=1e-12, atol=1e-12)


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
