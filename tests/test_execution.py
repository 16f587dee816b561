"""Execution: fill prices and rows, tradability and delistings."""

import numpy as np
import pytest
import torch
from made_errors import refused
from made_markets import NAN, make_market, random_market, t

from finpod.trading.execution import Account, build_execution
from finpod.trading.ledger import Costs

FREE = Costs(fee_bps=0)


def account(cash, *shares):
    return Account(t(cash)[0], t(*shares))


def volumes(days, names, *, seed=0):
    return np.random.default_rng(seed).lognormal(5, 1, (days, names))


def test_fill_follows_the_data_unless_told():
    with_opens, without = make_market([10, 11], open=[10, 10]), make_market([10, 11])
    assert build_execution(with_opens).fill == "open"
    assert build_execution(with_opens, "close").fill == "close"
    assert build_execution(without).fill == "close"
    for market, fill in ((without, "open"), (with_opens, "noon")):
        refused(f"'{fill}'", build_execution, market, fill, about="fill")


def test_without_a_price_at_the_fill_nothing_is_tradable_and_the_last_price_stands():
    """Marks are carried forward and never back; a position without a price is not sold."""
    market = make_market([NAN, 10, 11, NAN, 13], open=[NAN, 9, NAN, NAN, 12])
    opens, closes = build_execution(market, "open"), build_execution(market, "close")
    assert opens.mark[:, 0].tolist() == closes.price[:, 0].tolist() == [1, 10, 11, 11, 13]
    assert closes.tradable[:, 0].tolist() == closes.has_bar[:, 0].tolist() == [False, True, True, False, True]
    assert opens.tradable[:, 0].tolist() == [False, True, False, False, True]
    assert opens.price[:, 0].tolist() == [1, 9, 10, 11, 12]
    assert opens.trade(account(100, 5), 1, t(-5), Costs()).traded.item() == 0


def test_a_name_leaves_on_the_first_session_after_its_last_bar():
    market = make_market([[50, 7], [45, NAN], [40, 8], [NAN, 9], [NAN, 9]])
    execution = build_execution(market)
    assert execution.delisted[:, 0].tolist() == [False, False, False, True, False]
    assert not execution.delisted[:, 1].any()  # a missing bar is no delisting
    before = account(500, 10, 1)
    assert torch.equal(execution.carry(before, 1).shares, before.shares)
    after = execution.carry(before, 2)
    assert (after.cash.item(), after.shares.tolist()) == (900.0, [0.0, 1.0])
    assert [execution.carry(before, 2, loss).cash.item() for loss in (-1.0, -0.25)] == [500.0, 800.0]
    slices = [build_execution(market.rows(*rows)).delisted[:, 0].tolist() for rows in ((0, 3), (1, 5), (3, 5))]
    assert slices == [[False] * 3, [False, False, True, False], [False] * 2]


def test_membership_is_that_of_the_decision_day(fill):
    member = np.array([True, True, False, False, True])
    execution = build_execution(make_market([10] * 5, open=[10] * 5, member=member), fill)
    for row in range(execution.lag, 4):
        bought, sold = (execution.trade(account(100, 1), row, t(order), FREE).traded.item() for order in (4, -1))
        assert (bought, sold) == (4.0 if member[row - execution.lag] else 0.0, -1.0)


def test_impact_is_worked_by_hand():
    """Returns that are not there yet count as 3%; the volume is the mean of what there is."""
    execution = build_execution(make_market([100, 102, 102], volume=np.array([[1000], [2000], [np.nan]])))
    first, second, third = execution.impact[:, 0].tolist()
    assert first == pytest.approx(0.03 / 100_000**0.5, rel=1e-12)
    assert second == pytest.approx(((20 * 0.03**2 + 0.02**2) / 21 / 152_000) ** 0.5, rel=1e-12)
    assert third == pytest.approx(((19 * 0.03**2 + 0.02**2) / 21 / 152_000) ** 0.5, rel=1e-12)


def test_a_fill_is_charged_by_what_its_decision_saw(fill):
    """Another volume in row 30 first shows in the fills of row 31, not in those of row 30 itself."""
    volume = volumes(40, 1)
    other = volume.copy()
    other[30] *= 3
    markets = (random_market(40, 1, gaps=0, member=None, volume=each) for each in (volume, other))
    one, two = (build_execution(market, fill) for market in markets)

    def cost(execution, row):
        return execution.trade(account(1e5, 0), row, t(1), Costs(fee_bps=0, impact=1.0)).cost.item()

    assert [one.fill_row(row) for row in range(1, 39) if cost(one, row) != cost(two, row)][0] == 31  # noqa: RUF015


def test_a_name_nobody_dealt_in_counts_as_the_worst_member():
    volume = volumes(30, 4)
    volume[:, 1], volume[:, 2] = 0, np.nan
    volume[:, 3] = 1e-3  # the worst of all, and no member
    market = random_market(30, 4, gaps=0, volume=volume, member=np.arange(4) < np.full((30, 1), 3))
    table = build_execution(market).impact
    assert torch.equal(table[:, 1], table[:, 0])
    assert torch.equal(table[:, 2], table[:, 0])
    assert (table[:, 3] > table[:, 0]).all()


def test_without_any_volume_nothing_trades_until_there_is_one():
    volume = np.full((30, 1), np.nan)
    volume[10:] = 1e6
    execution = build_execution(make_market([10.0] * 30, volume=volume), "close")
    costly = [execution.trade(account(100, 1), row, t(3), Costs(impact=1.0)) for row in (5, 10, 11)]
    assert [fill.traded.item() for fill in costly] == [0.0, 0.0, 3.0]
    assert (costly[0].cash.item(), costly[0].cost.item()) == (100.0, 0.0)
    assert execution.trade(account(100, 1), 5, t(3), Costs()).traded.item() == 3.0
    bare = build_execution(make_market([10, 11]), "close")
    assert bare.impact is bare.impact_for(Costs()) is None
    refused("impact is 2", bare.impact_for, Costs(impact=2))
