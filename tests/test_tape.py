"""The tape: which price, which row, who may be bought, and who has left."""

import numpy as np
import pytest
import torch
from made_markets import NAN, make_market, random_market

from finpod.errors import InputError
from finpod.market.ledger import Costs
from finpod.market.tape import Account, build_tape, carried_forward


def account(cash: float, *shares: float) -> Account:
    return Account(torch.tensor(cash, dtype=torch.float64), torch.tensor(shares, dtype=torch.float64))


def test_fill_follows_the_data_unless_told():
    with_opens, without = make_market([10, 11], open=[10, 10]), make_market([10, 11])
    assert build_tape(with_opens).fill == "open"
    assert build_tape(with_opens, "close").fill == "close"
    assert build_tape(without).fill == "close"
    with pytest.raises(InputError, match="fill='open' needs opens"):
        build_tape(without, "open")
    with pytest.raises(InputError, match="fill is 'noon'; choose 'open' or 'close'"):
        build_tape(with_opens, "noon")


@pytest.mark.parametrize(("fill", "seen", "filled"), [("open", 5, 6), ("close", 4, 5)])
def test_a_decision_is_filled_in_the_row_after_the_last_it_saw(fill, seen, filled):
    tape = build_tape(make_market([10] * 8, open=[10] * 8), fill)
    assert (tape.decision_row(5), tape.fill_row(5)) == (seen, filled)
    rows = torch.tensor([2, 5])
    assert tape.decision_row(rows)[1] == seen
    assert tape.fill_row(rows)[1] == filled


def test_marks_are_carried_forward_and_never_back():
    tape = build_tape(make_market([NAN, 10, NAN, 12]))
    assert tape.mark[:, 0].tolist() == [1, 10, 10, 12]
    assert tape.has_bar[:, 0].tolist() == [False, True, False, True]
    assert carried_forward(np.array([[NAN, 2], [3, NAN]]), before=0.0).tolist() == [[0, 2], [3, 2]]


def test_without_a_price_at_the_fill_nothing_is_tradable_and_the_last_price_stands():
    market = make_market([10, 11, NAN, 13], open=[9, NAN, NAN, 12])
    opens = build_tape(market, "open")
    assert opens.tradable[:, 0].tolist() == [True, False, False, True]
    assert opens.price[:, 0].tolist() == [9, 10, 11, 12]
    closes = build_tape(market, "close")
    assert closes.tradable[:, 0].tolist() == [True, True, False, True]
    assert closes.price[:, 0].tolist() == [10, 11, 11, 13]
    held = account(100.0, 5.0)
    assert opens.trade(held, 0, torch.tensor([-5.0], dtype=torch.float64), Costs()).traded.item() == 0


def test_a_name_leaves_on_the_first_session_after_its_last_bar():
    market = make_market([[50, 7], [45, NAN], [40, 8], [NAN, 9], [NAN, 9]])
    tape = build_tape(market)
    assert tape.delisted[:, 0].tolist() == [False, False, False, True, False]
    assert not tape.delisted[:, 1].any()  # a missing bar is no delisting
    before = account(500.0, 10.0, 1.0)
    same = tape.carry(before, 1)
    assert torch.equal(same.shares, before.shares)
    after = tape.carry(before, 2)
    assert (after.cash.item(), after.shares.tolist()) == (900.0, [0.0, 1.0])
    assert tape.carry(before, 2, -1.0).cash.item() == 500.0


def test_the_last_bar_survives_slicing():
    market = make_market([[50, 7], [45, 7], [40, 8], [NAN, 9], [NAN, 9]])
    assert not build_tape(market.rows(0, 3)).delisted.any()
    assert build_tape(market.rows(1, 5)).delisted[:, 0].tolist() == [False, False, True, False]
    assert not build_tape(market.rows(3, 5)).delisted.any()


@pytest.mark.parametrize("fill", ["open", "close"])
def test_membership_is_that_of_the_decision_day(fill):
    member = np.array([True, True, False, False, True])
    tape = build_tape(make_market([10] * 5, open=[10] * 5, member=member), fill)
    want, sell = torch.tensor([4.0], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)
    for row in range(tape.lag, 4):
        bought = tape.trade(account(100.0, 1.0), row, want, Costs(fee_bps=0)).traded.item()
        assert bought == (4.0 if member[tape.decision_row(row)] else 0.0)
        assert tape.trade(account(100.0, 1.0), row, sell, Costs(fee_bps=0)).traded.item() == -1.0


@pytest.mark.parametrize("fill", ["open", "close"])
def test_a_row_for_each_account_is_the_same_as_one_row_for_all(fill):
    tape = build_tape(random_market(seed=4), fill)
    g = torch.Generator().manual_seed(0)
    cash = torch.rand(6, generator=g, dtype=torch.float64) * 100
    shares = torch.rand(6, 5, generator=g, dtype=torch.float64)
    weights = torch.rand(6, 5, generator=g, dtype=torch.float64) / 5
    rows = torch.tensor([1, 14, 7, 20, 3, 13])
    together = Account(cash, shares)
    orders = tape.orders(together, rows, weights)
    fill_of = tape.trade(together, rows, orders, Costs(per_share=0.01), whole_shares=False)
    carried = tape.carry(Account(fill_of.cash, fill_of.shares), rows)
    for e, row in enumerate(rows.tolist()):
        alone = Account(cash[e], shares[e])
        own = tape.trade(alone, row, tape.orders(alone, row, weights[e]), Costs(per_share=0.01), whole_shares=False)
        assert torch.equal(own.shares, fill_of.shares[e])
        end = tape.carry(Account(own.cash, own.shares), row)
        assert torch.equal(end.cash, carried.cash[e])
        assert torch.equal(end.shares, carried.shares[e])


def test_the_factor_is_carried_forward():
    tape = build_tape(make_market([10, NAN, 10], factor=np.array([0.5, NAN, 1.0])))
    assert tape.factor is not None
    assert tape.factor[:, 0].tolist() == [0.5, 0.5, 1.0]
    assert build_tape(make_market([10, 10])).factor is None
