"""Splits and dividends that a file lists, applied once whatever the prices already contain."""

import numpy as np
import pandas as pd
import pytest
from made_bars import alone, one_name, places, repairs, suspicions
from numpy.testing import assert_allclose, assert_array_equal

LACKING = "splits applied to prices as traded"
TWICE = "splits applied twice, taken out once"
HALF = "bars rescaled, a split was applied to a part of the history"
UNDECIDED = "splits that may be in the prices already"
RETURNS = np.array([0.01, -0.02, 0.015, 0.0, -0.01, 0.02, 0.005, -0.015, 0.01, 0.01])
rows = np.arange(11)


def walk(first):
    return np.cumprod(np.r_[first, 1 + RETURNS])


def returns(market):
    return market.close[1:, 0] / market.close[:-1, 0] - 1


def with_splits(close, splits, **columns):
    """Bars of AAA with splits {position: ratio}."""
    events = np.zeros(len(close))
    events[list(splits)] = list(splits.values())
    return one_name(close, split=events, **columns)


def test_b18_a_split_is_applied_to_prices_and_volumes():
    market = alone(with_splits([400, 404, 101, 102], {2: 4.0}, volume=[1000.0, 1100, 4400, 4000]))
    assert_array_equal(market.close[:, 0], [100, 101, 101, 102])
    assert_array_equal(market.volume[:, 0], [4000, 4400, 4400, 4000])
    assert returns(market)[1] == 0
    assert places(market, LACKING) == [("AAA", "2024-01-04", "split", 4.0, "in adj_close once")]


@pytest.mark.parametrize("split", [7.0, 0.1, 1.5])
@pytest.mark.parametrize(("prices", "adjusted", "repaired"), [
    ("as traded", "none", LACKING), ("as traded", "once", None), ("as traded", "lacking", LACKING),
    ("as traded", "twice", TWICE), ("adjusted", "none", None), ("adjusted", "once", None),
    ("adjusted", "twice", TWICE),
])  # fmt: skip
def test_a_split_counts_once_whatever_the_file_has_done_with_it(split, prices, adjusted, repaired):
    """Closes as traded or adjusted, and an adjusted close without the split, with it, or with it twice."""
    right, past = walk(100.0), rows < 6
    close = np.where(past & (prices == "as traded"), right * split, right)
    bars = with_splits(close, {6: split}, volume=1000.0)
    if adjusted != "none":
        bars["adj_close"] = {"once": right, "lacking": close, "twice": np.where(past, right / split, right)}[adjusted]
    market = alone(bars)
    assert_allclose(market.close[:, 0], right, rtol=1e-12)
    assert_allclose(market.close * market.volume, close[:, None] * 1000.0, rtol=1e-12)
    assert repairs(market) == ({repaired: 1} if repaired else {})


@pytest.mark.parametrize(("close", "columns"), [("adjusted", {"adj_close": 0.9}), ("adjusted", {}), ("traded", {})])
def test_the_factor_leads_to_the_price_as_traded(close, columns):
    """A share of 25, adjusted for a later split of 4, was one of 100, whatever its dividends."""
    right, past = walk(25.0), rows < 6
    traded = np.where(past, right * 4, right)
    columns = {name: share * right for name, share in columns.items()}
    market = alone(with_splits(right if close == "adjusted" else traded, {6: 4.0}, volume=400.0, **columns))
    assert_allclose(market.close[:, 0] / market.factor[:, 0], traded, rtol=1e-12)
    shares = np.where(past & (close == "adjusted"), 100, 400)
    assert_allclose(market.volume[:, 0] * market.factor[:, 0], shares, rtol=1e-12)


@pytest.mark.parametrize("begin", [0, 2])
def test_a_split_applied_to_a_part_of_the_history_is_applied_to_the_rest(begin):
    right, lacks = walk(50.0), (rows >= begin) & (rows < 5)
    wrong, volume = np.where(lacks, right * 5, right), np.where(lacks, 200.0, 1000.0)
    market = alone(with_splits(wrong, {6: 5.0}, adj_close=wrong, volume=volume, open=wrong))
    assert_allclose(market.close[:, 0], right, rtol=1e-12)
    assert_allclose(market.volume[:, 0], 1000.0, rtol=1e-12)
    assert repairs(market) == {HALF: 5 - begin}


def test_a_split_of_3_to_2_on_the_wrong_day_is_reported():
    right = walk(50.0)
    for day, kinds in ((5, []), (6, ["splits that may be listed on the wrong day"])):
        assert [*suspicions(alone(with_splits(np.where(rows < 5, right * 1.5, right), {day: 1.5})))] == kinds


def test_a_crash_is_not_a_split():
    """Down 60 %; and down by half, with a split weeks or months later that the prices contain."""
    crash = np.r_[np.full(50, 100.0), np.full(200, 40.0)] + np.arange(250) % 2 / 100
    assert alone(one_name(crash)).manifest["repairs"] == alone(one_name(crash)).manifest["suspicions"] == []
    for before, split in ((50, 200), (10, 30)):
        close = np.r_[np.full(before, 100.0), 50 + np.arange(250 - before) % 2 / 100]
        market = alone(with_splits(close, {split: 2.0}))
        assert_array_equal(market.close[:, 0], close)
        assert list(suspicions(market)) == ["jumps of the size of a split"]


AFTER_FOUR = [400.0, 400, 100, 100, 100]
"""Closes as traded around a split of 4 on the third day."""
MOVES = [(1.25, 100, 92, 0.15), (1.2, 120, 115, 0.15), (1.2, 120, 119, 0.19), (2.0, 100, 80, 0.6), (0.5, 20, 26, -0.35)]


@pytest.mark.parametrize(("split", "before", "after", "right"), MOVES)
@pytest.mark.parametrize("sibling", [True, False])
def test_g06_ambiguous_splits_follow_a_sibling(split, before, after, right, sibling):
    """A split of 4 before it shows prices as traded; without any, prices stay and are flagged.

    So 92 after 100 on the day of a split of 1.25 is up by 15 %.
    """
    close = np.array([4, 4, 1, 1, 1] if sibling else [1, 1, 1, 1, 1]) * float(before)
    market = alone(with_splits(np.r_[close, after, after], {2: 4.0, 5: split} if sibling else {5: split}))
    if sibling:
        assert returns(market)[4] == pytest.approx(right, rel=1e-9)
        assert np.delete(returns(market), 4) == pytest.approx(0, abs=1e-12)
        assert (repairs(market), suspicions(market)) == ({LACKING: 2}, {})
    elif (before, after) != (120, 119):  # this move is clear without a sibling
        assert_array_equal(market.close[:, 0], np.r_[close, after, after])
        assert (repairs(market), suspicions(market)) == ({}, {UNDECIDED: [("AAA", "2024-01-09")]})


@pytest.mark.parametrize(("close", "splits", "adjusted", "right", "repaired", "suspected"), [
    # the vendor's adjusted close has both splits, the clear one, or none
    ([*AFTER_FOUR, 92, 92], {2: 4.0, 5: 1.25}, [80] * 5 + [92, 92], [80] * 5 + [92, 92], {}, {}),
    ([*AFTER_FOUR, 92, 92], {2: 4.0, 5: 1.25}, [100] * 5 + [92, 92], [80] * 5 + [92, 92], {LACKING: 1}, {}),
    ([*AFTER_FOUR, 92, 92], {2: 4.0, 5: 1.25}, [*AFTER_FOUR, 92, 92], [80] * 5 + [92, 92], {LACKING: 2}, {}),
    # a split of 4 that the closes lack, one of 3 that they contain, and an ambiguous one: each is judged alone
    ([400, 400, 100, 100, 100, 100, 100, 100, 92], {2: 4.0, 5: 3.0, 8: 1.25}, None, [100] * 8 + [92], {LACKING: 1},
     {UNDECIDED: [("AAA", "2024-01-04"), ("AAA", "2024-01-09"), ("AAA", "2024-01-12")]}),
    # the jump of the first split is not taken for the second, applied to a part of the history
    ([400, 200, 200, 160, 160], {1: 2.0, 3: 2.0}, None, [100, 100, 100, 160, 160], {LACKING: 2}, {}),
])  # fmt: skip
def test_g06_several_splits_and_an_adjusted_close(close, splits, adjusted, right, repaired, suspected):
    bars = with_splits(close, splits)
    market = alone(bars if adjusted is None else bars.assign(adj_close=np.array(adjusted, dtype=float)))
    assert_allclose(market.close[:, 0], right, rtol=1e-12)
    assert repairs(market) == repaired
    assert suspicions(market) == suspected


def test_g06_splits_of_other_assets_do_not_count():
    """The assets of a table may come from different vendors."""
    clear, unclear = with_splits([*AFTER_FOUR, 100, 100], {2: 4.0}), with_splits([100.0] * 5 + [92, 92], {5: 1.25})
    market = alone(pd.concat([unclear, clear.assign(ticker="BBB")]))
    assert_array_equal(market.close.T, [unclear["close"], np.full(7, 100.0)])
    assert suspicions(market) == {UNDECIDED: [("AAA", "2024-01-09")]}


@pytest.mark.parametrize("prices", ["as traded", "adjusted"])
@pytest.mark.parametrize("seed", range(5))
def test_g06_random_histories_of_several_splits(prices, seed):
    """Whatever the returns on the days of the splits, closes as traded and closes adjusted for all splits are told apart."""
    random = np.random.default_rng(seed)
    moves = random.standard_t(4, 300) * 0.015
    days = np.sort(random.choice(np.arange(5, 295), 5, replace=False))
    ratios = dict(zip(days.tolist(), [4.0, 1.25, 1.5, 0.1, 1.1], strict=True))
    moves[[day for day, ratio in ratios.items() if ratio < 2]] += random.normal(0, 0.05)
    right = 100 * np.exp(np.cumsum(moves) - np.sum(moves))
    steps = np.zeros(300)
    steps[days] = np.log(list(ratios.values()))
    later = np.exp(np.sum(steps) - np.cumsum(steps))
    market = alone(with_splits(right * later if prices == "as traded" else right, ratios))
    assert_allclose(market.close[:, 0], right, rtol=1e-9)


def traded(dividend, at=5, first=100.0):
    """(closes as traded in cents, the total-return prices that end at the same close)."""
    close = walk(first)
    close[at:] *= 1 - dividend / close[at - 1]
    close = np.round(close, 2)
    return close, close * np.where(rows < at, close[at] / (close[at] + dividend), 1.0)


def paid(dividend, at=5):
    return np.where(rows == at, dividend, 0.0)


@pytest.mark.parametrize("dividend", [0.35, 2.0, 60.0])
def test_dividends_of_prices_as_traded_are_reinvested_at_the_close_of_their_day(dividend):
    close, total = traded(dividend)
    market = alone(one_name(close, dividend=paid(dividend)))
    assert_allclose(market.close[:, 0], total, rtol=1e-12)
    assert returns(market)[4] == pytest.approx((close[5] + dividend) / close[4] - 1, rel=1e-12)
    kind = "dividends applied to prices as traded"
    assert places(market, kind) == [("AAA", "2024-01-09", "dividend", dividend, "in adj_close once")]


def test_a_split_and_a_dividend_on_one_day():
    close, total = traded(0.35)
    bars = with_splits(np.where(rows < 5, close * 4, close), {5: 4.0}, dividend=paid(0.35))
    assert_allclose(alone(bars).close[:, 0], total, rtol=1e-12)
    vendor = alone(bars.assign(adj_close=total))
    assert_allclose(vendor.close[:, 0], total, rtol=1e-12)
    assert repairs(vendor) == {}


def test_prices_without_whole_cents_have_their_dividends_already():
    close, total = traded(0.35)
    market = alone(one_name(total, dividend=paid(0.35)))
    assert_array_equal(market.close[:, 0], total)
    assert market.manifest["repairs"] == []
    for decimals, near in ((15, 1e-12), (4, 1e-4)):  # adjusted for the split only
        market = alone(with_splits(np.round(close / 40, decimals), {8: 40.0}, dividend=paid(0.35 / 40)))
        assert_allclose(market.close[:, 0], total / 40, rtol=near)


@pytest.mark.parametrize("tick", [0.005, 1 / 8, 1 / 64])
def test_prices_in_steps_below_a_cent_are_as_traded(tick):
    close = np.round(walk(90.0) / tick) * tick
    market = alone(one_name(close, dividend=paid(0.35)))
    assert returns(market)[4] == pytest.approx((close[5] + 0.35) / close[4] - 1, rel=1e-12)


CLOSE, SPECIAL = traded(0.9)[0], traded(60.0)[0]
USUAL = 1 - 0.9 / CLOSE[4]


@pytest.mark.parametrize(("close", "dividend", "factor", "right", "repaired"), [
    (CLOSE, 0.9, USUAL, USUAL, None),
    (CLOSE, 0.9, CLOSE[5] / (CLOSE[5] + 0.9), CLOSE[5] / (CLOSE[5] + 0.9), None),
    (CLOSE, 0.9, 1.0, USUAL, "dividends added to the adjusted close"),
    (CLOSE, 0.9, USUAL**2, USUAL, "dividends applied twice, taken out once"),
    (SPECIAL, 60.0, 1 - 60 / SPECIAL[4], SPECIAL[5] / (SPECIAL[5] + 60),
     "special dividends reinvested at the close of their day"),
    (CLOSE, 0.9, 1 - 0.5 / CLOSE[4], 1 - 0.5 / CLOSE[4], "adj_close and the listed dividend disagree"),
])  # fmt: skip
def test_an_adjusted_close_has_the_dividend_by_one_of_two_formulas(close, dividend, factor, right, repaired):
    """Another step is repaired where it is certainly wrong, otherwise kept and reported."""
    past = rows < 5
    market = alone(one_name(close, adj_close=np.where(past, close * factor, close), dividend=paid(dividend)))
    assert_allclose(market.close[:, 0], np.where(past, close * right, close), rtol=1e-12)
    assert {*repairs(market), *suspicions(market)} == ({repaired} if repaired else set())
    if repaired in repairs(market):
        assert places(market, repaired) == [("AAA", "2024-01-09", "dividend", dividend, "in adj_close once")]


def test_a_dividend_of_the_whole_price_is_reported():
    market = alone(one_name(CLOSE, dividend=paid(400.0)))
    assert suspicions(market) == {"dividends of the whole price or more": [("AAA", "2024-01-09")]}


def test_actions_on_the_first_bar_or_a_masked_one():
    close = np.round(walk(100.0), 2)
    assert_array_equal(alone(with_splits(close, {0: 4.0}, dividend=paid(1.0, at=0))).close[:, 0], close)
    close, total = traded(0.9)
    bars = one_name(np.r_[close[:5], 0.0, close[5:]], dividend=np.r_[paid(0.9)[:5], 0.9, np.zeros(6)])
    assert_allclose(np.delete(alone(bars).close[:, 0], 5), total, rtol=1e-12)  # listed for a bar without a price
