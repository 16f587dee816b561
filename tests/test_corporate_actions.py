import numpy as np
import pandas as pd
import pytest
from made_bars import alone, one_name, places, repairs, suspicions
from numpy.testing import assert_allclose, assert_array_equal

from finpod.market.load import load_market

LACKING = "splits applied to prices as traded"
RAW_DIVIDENDS = "dividends applied to prices as traded"
PUT_IN = "dividends put into the adjusted close"
HALF = "bars brought to the scale of a split that was applied to a part"
RETURNS = np.array([0.01, -0.02, 0.015, 0.0, -0.01, 0.02, 0.005, -0.015, 0.01, 0.01])


def closes(first=100.0, returns=RETURNS):
    """Closes in whole cents."""
    return np.round(first * np.cumprod(np.r_[1.0, 1 + returns]), 2)


def returns(market):
    return market.close[1:, 0] / market.close[:-1, 0] - 1


def test_b18_a_split_is_applied_to_prices_and_volumes():
    bars = one_name([400, 404, 101, 102], volume=[1000.0, 1100, 4400, 4000], split=[1.0, 1, 4, 1])
    market = alone(bars)
    assert_array_equal(market.close[:, 0], [100, 101, 101, 102])
    assert_array_equal(market.volume[:, 0], [4000, 4400, 4400, 4000])
    assert returns(market)[1] == 0
    assert places(market, LACKING) == [("AAA", "2024-01-04", "split", 4.0, "in adj_close once")]
    assert any("lists splits but no dividends" in note for note in market.manifest["notes"])


@pytest.mark.parametrize("split", [2.0, 7.0, 0.1, 1.5])
@pytest.mark.parametrize(
    ("prices", "adjusted"),
    [
        ("as traded", "none"),
        ("as traded", "once"),
        ("as traded", "lacking"),
        ("adjusted", "none"),
        ("adjusted", "once"),
        ("adjusted", "twice"),
    ],
)
def test_a_split_counts_once_whatever_the_file_has_done_with_it(split, adjusted, prices):
    """Closes as traded or adjusted, beside an adjusted close that holds the split not, once or once too often."""
    right = np.cumprod(np.r_[100.0, 1 + RETURNS])
    past = np.arange(11) < 6
    close = np.where(past & (prices == "as traded"), right * split, right)
    bars = one_name(close, volume=1000.0, split=np.where(np.arange(11) == 6, split, 1.0))
    if adjusted != "none":
        bars["adj_close"] = {"once": right, "lacking": close, "twice": np.where(past, right / split, right)}[adjusted]
    market = alone(bars)
    assert_allclose(market.close[:, 0], right, rtol=1e-12)
    assert_allclose(market.close * market.volume, close[:, None] * 1000.0, rtol=1e-12)
    changed = repairs(market)
    assert (LACKING in changed) == (prices == "as traded" and adjusted in ("none", "lacking"))
    assert ("splits taken back, applied twice" in changed) == (adjusted == "twice")


def test_the_factor_knows_the_price_as_traded():
    """Closes adjusted for a split of 4 that the file lists: a share of 25 was one of 100, whatever its dividends."""
    right = np.cumprod(np.r_[25.0, 1 + RETURNS])
    event = np.where(np.arange(11) == 6, 4.0, 0.0)
    past = np.arange(11) < 6
    for adjusted in (right, right * 0.9):
        market = alone(one_name(right, adj_close=adjusted, volume=400.0, split=event))
        traded = market.close[:, 0] / market.factor[:, 0]
        assert_allclose(traded, np.where(past, right * 4, right), rtol=1e-12)
        assert_allclose(market.volume[:, 0] * market.factor[:, 0], np.where(past, 100, 400), rtol=1e-12)
    market = alone(one_name(right, split=event))
    assert_array_equal(market.factor[:, 0], np.where(past, 0.25, 1.0))
    raw = alone(one_name(np.where(past, right * 4, right), split=event))
    assert_allclose(raw.close[:, 0] / raw.factor[:, 0], np.where(past, right * 4, right), rtol=1e-12)


def test_a_split_applied_to_a_part_of_the_history_is_applied_to_the_rest():
    right = np.cumprod(np.r_[50.0, 1 + RETURNS])
    wrong = np.where(np.arange(11) < 5, right * 5, right)
    event = np.where(np.arange(11) == 6, 5.0, 0.0)
    volume = np.where(np.arange(11) < 5, 200.0, 1000.0)
    market = alone(one_name(wrong, adj_close=wrong, volume=volume, open=wrong, split=event))
    assert_allclose(market.close[:, 0], right, rtol=1e-12)
    assert_allclose(market.open[:, 0], right, rtol=1e-12)
    assert_allclose(market.volume[:, 0], 1000.0, rtol=1e-12)
    assert repairs(market) == {HALF: 5}
    block = np.where((np.arange(11) >= 2) & (np.arange(11) < 5), right * 5, right)
    market = alone(one_name(block, adj_close=block, split=event))
    assert_allclose(market.close[:, 0], right, rtol=1e-12)
    assert repairs(market) == {HALF: 3}


def test_a_crash_is_no_split():
    """Down 60 %, and the same with a split years later that the prices contain: left alone."""
    crash = np.r_[closes(), closes(40.0)]
    market = alone(one_name(crash))
    assert_array_equal(market.close[:, 0], crash)
    assert market.manifest["repairs"] == []
    assert market.manifest["suspicions"] == []
    long = np.r_[np.full(50, 100.0), 50 + np.arange(200) % 2 / 100]
    market = alone(one_name(long, split=np.where(np.arange(250) == 200, 2.0, 0.0)))
    assert_array_equal(market.close[:, 0], long)
    assert market.manifest["repairs"] == []
    assert suspicions(market) == {"jumps of the size of a split": [("AAA", "2024-03-12")]}


UNDECIDED = "splits that may be in the prices already"
CONTRADICTING = "splits that contradict each other"
DAYS = ["2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05", "2024-01-08", "2024-01-09", "2024-01-10"]
AFTER_FOUR = [400.0, 400, 100, 100, 100]
"""Closes as traded around a split of 4 on the third day."""


def with_splits(close, splits, **columns):
    """Bars of AAA with splits {position: ratio}."""
    events = np.zeros(len(close))
    events[list(splits)] = list(splits.values())
    return one_name(close, split=events, **columns)


def test_g06_a_split_is_read_as_its_sibling_shows():
    """Down by 8 % on the day of a split of 1.25, in a file whose split of 4 shows prices as traded: up by 15 %."""
    market = alone(with_splits([*AFTER_FOUR, 92, 92], {2: 4.0, 5: 1.25}, volume=100.0))
    assert returns(market)[4] == pytest.approx(92 * 1.25 / 100 - 1, rel=1e-12)
    assert_allclose(market.close[:, 0], [80, 80, 80, 80, 80, 92, 92], rtol=1e-12)
    assert_allclose(market.volume[:, 0], [500, 500, 125, 125, 125, 100, 100], rtol=1e-12)
    assert [place[1] for place in places(market, LACKING)] == [DAYS[2], DAYS[5]]
    assert market.manifest["suspicions"] == []


MOVES = [(1.25, 100, 92, 0.15), (1.2, 120, 115, 0.15), (1.2, 120, 119, 0.19), (2.0, 100, 80, 0.6), (0.5, 20, 26, -0.35)]


@pytest.mark.parametrize(("split", "before", "after", "right"), MOVES)
@pytest.mark.parametrize("sibling", ["before", "after"])
def test_g06_ambiguous_splits_follow_a_sibling_before_or_after(split, before, after, right, sibling):
    if sibling == "before":
        close, splits = np.r_[np.array([4.0, 4, 1, 1, 1]) * before, after, after], {2: 4.0, 5: split}
    else:
        close, splits = np.r_[before, before, after, after, after, after / 4, after / 4], {2: split, 5: 4.0}
    market = alone(with_splits(close, splits))
    row = 4 if sibling == "before" else 1
    assert returns(market)[row] == pytest.approx(right, rel=1e-9)
    assert np.delete(returns(market), row) == pytest.approx(0, abs=1e-12)
    assert repairs(market) == {LACKING: 2}
    assert market.manifest["suspicions"] == []


@pytest.mark.parametrize(("split", "before", "after", "right"), MOVES)
def test_g06_ambiguous_splits_stay_where_a_sibling_shows_adjusted_prices(split, before, after, right):
    """Closes that are adjusted for the split of 4 do not move on its day."""
    close = np.r_[np.full(5, float(before)), after, after]
    market = alone(with_splits(close, {2: 4.0, 5: split}))
    assert_array_equal(market.close[:, 0], close)
    assert market.manifest["repairs"] == []
    assert market.manifest["suspicions"] == []


@pytest.mark.parametrize(("split", "before", "after"), [m[:3] for m in MOVES if m[1:3] != (120, 119)])
def test_g06_a_lone_ambiguous_split_is_kept_and_flagged(split, before, after):
    close = np.r_[np.full(5, float(before)), after, after]
    market = alone(with_splits(close, {5: split}))
    assert_array_equal(market.close[:, 0], close)
    assert market.manifest["repairs"] == []
    assert suspicions(market) == {UNDECIDED: [("AAA", DAYS[5])]}
    sentence = market.manifest["suspicions"][0]["sentence"]
    assert f"split of {split:g}" in sentence
    assert f"{after / before - 1:+.2%}" in sentence
    assert f"{after * split / before - 1:+.2%}" in sentence


def test_g06_siblings_that_contradict_each_other_are_judged_alone_and_flagged():
    """A split of 4 that the closes lack, one of 3 that they contain, and one of 1.25 that tells nothing."""
    close = [400.0, 400, 100, 100, 100, 100, 100, 100, 92]
    market = alone(with_splits(close, {2: 4.0, 5: 3.0, 8: 1.25}))
    assert_allclose(market.close[:, 0], [100, 100, 100, 100, 100, 100, 100, 100, 92], rtol=1e-12)
    assert repairs(market) == {LACKING: 1}
    assert suspicions(market) == {CONTRADICTING: [("AAA", DAYS[2]), ("AAA", DAYS[5]), ("AAA", "2024-01-12")]}


@pytest.mark.parametrize("vendor", ["both", "the first", "none"])
def test_g06_with_an_adjusted_close_siblings_count_too(vendor):
    """Closes as traded beside an adjusted close that contains both splits, only the clear one, or none."""
    close = np.array([*AFTER_FOUR, 92, 92])
    right = np.array([80.0, 80, 80, 80, 80, 92, 92])
    adjusted = {"both": right, "the first": np.array([100.0, 100, 100, 100, 100, 92, 92]), "none": close}[vendor]
    market = alone(with_splits(close, {2: 4.0, 5: 1.25}, adj_close=adjusted))
    assert_allclose(market.close[:, 0], right, rtol=1e-12)
    expected = {"both": {}, "the first": {LACKING: 1}, "none": {LACKING: 2}}[vendor]
    assert repairs(market) == expected
    assert market.manifest["suspicions"] == []


@pytest.mark.parametrize("contained", [True, False])
def test_g06_the_adjusted_close_decides_on_a_lone_ambiguous_split(contained):
    close = np.array([100.0, 100, 100, 100, 100, 92, 92])
    adjusted = np.where(np.arange(7) < 5, close / 1.25, close) if contained else close
    market = alone(with_splits(close, {5: 1.25}, adj_close=adjusted))
    assert_array_equal(market.close[:, 0], adjusted)
    assert market.manifest["repairs"] == []
    assert market.manifest["suspicions"] == []


def test_g06_a_split_on_the_first_bar_is_no_evidence():
    close = [100.0, 100, 100, 100, 100, 92, 92]
    market = alone(with_splits(close, {0: 4.0, 5: 1.25}))
    assert_array_equal(market.close[:, 0], close)
    assert suspicions(market) == {UNDECIDED: [("AAA", DAYS[5])]}


def test_g06_other_names_do_not_count():
    """The names of a table may come from different vendors."""
    clear = with_splits([*AFTER_FOUR, 100, 100], {2: 4.0}).assign(ticker="BBB")
    unclear = with_splits([100.0, 100, 100, 100, 100, 92, 92], {5: 1.25})
    market = alone(pd.concat([unclear, clear]))
    assert_array_equal(market.close[:, 0], [100, 100, 100, 100, 100, 92, 92])
    assert_array_equal(market.close[:, 1], np.full(7, 100.0))
    assert suspicions(market) == {UNDECIDED: [("AAA", DAYS[5])]}


@pytest.mark.parametrize("prices", ["as traded", "adjusted"])
@pytest.mark.parametrize("seed", range(20))
def test_g06_random_histories_of_several_splits(prices, seed):
    """Whatever the days of the splits bring, closes as traded and closes adjusted for all splits are told apart."""
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


def test_two_equal_splits_within_a_week_of_prices_as_traded():
    """The jump of the first is not taken for the second, applied to a part of the history."""
    market = alone(with_splits([400.0, 200, 200, 160, 160], {1: 2.0, 3: 2.0}))
    assert_allclose(market.close[:, 0], [100, 100, 100, 160, 160], rtol=1e-12)
    assert repairs(market) == {LACKING: 2}


def traded(dividend, at=5, first=100.0):
    """(closes as traded in cents, the total-return prices that end at the same close)."""
    close = np.cumprod(np.r_[first, 1 + RETURNS])
    close[at:] *= 1 - dividend / close[at - 1]
    close = np.round(close, 2)
    factor = np.where(np.arange(11) < at, close[at] / (close[at] + dividend), 1.0)
    return close, close * factor


def paid(dividend, at=5):
    return np.where(np.arange(11) == at, dividend, 0.0)


@pytest.mark.parametrize("dividend", [0.35, 2.0, 60.0])
def test_dividends_of_prices_as_traded_are_reinvested_at_the_close_of_their_day(dividend):
    close, total = traded(dividend)
    market = alone(one_name(close, dividend=paid(dividend)))
    assert_allclose(market.close[:, 0], total, rtol=1e-12)
    assert returns(market)[4] == pytest.approx((close[5] + dividend) / close[4] - 1, rel=1e-12)
    assert places(market, RAW_DIVIDENDS) == [("AAA", "2024-01-09", "dividend", dividend, "in adj_close once")]
    assert any("adjusted here" in note for note in market.manifest["notes"])


def test_a_split_and_a_dividend_on_one_day():
    close, total = traded(0.35)
    past = np.arange(11) < 5
    bars = one_name(np.where(past, close * 4, close), dividend=paid(0.35), split=np.where(np.arange(11) == 5, 4.0, 0.0))
    assert_allclose(alone(bars).close[:, 0], total, rtol=1e-12)
    vendor = bars.assign(adj_close=total)
    assert_allclose(alone(vendor).close[:, 0], total, rtol=1e-12)
    assert alone(vendor).manifest["repairs"] == []


def test_prices_without_whole_cents_have_their_dividends_already():
    close, total = traded(0.35)
    market = alone(one_name(total, dividend=paid(0.35)))
    assert_array_equal(market.close[:, 0], total)
    assert market.manifest["repairs"] == []
    assert any("taken as adjusted" in note for note in market.manifest["notes"])
    split = np.where(np.arange(11) == 8, 4.0, 0.0)
    scaled = np.where(np.arange(11) < 8, close / 4, close / 4)
    market = alone(
        one_name(scaled, dividend=paid(0.35 / 4), split=split)
    )  # adjusted for the split, not for the dividend
    assert_allclose(market.close[:, 0], total / 4, rtol=1e-12)


@pytest.mark.parametrize("formula", ["vendors", "reinvested"])
def test_an_adjusted_close_by_either_formula_is_left_alone(formula):
    close, _ = traded(0.9)
    factor = 1 - 0.9 / close[4] if formula == "vendors" else close[5] / (close[5] + 0.9)
    adjusted = np.where(np.arange(11) < 5, close * factor, close)
    market = alone(one_name(close, adj_close=adjusted, dividend=paid(0.9)))
    assert_array_equal(market.close[:, 0], adjusted)
    assert market.manifest["repairs"] == []
    assert market.manifest["suspicions"] == []


def test_a_dividend_missing_from_the_adjusted_close_is_put_in():
    close, _ = traded(0.9)
    market = alone(one_name(close, adj_close=close, dividend=paid(0.9)))
    assert_allclose(market.close[:5, 0], close[:5] * (1 - 0.9 / close[4]), rtol=1e-12)
    assert_array_equal(market.close[5:, 0], close[5:])
    assert places(market, PUT_IN) == [("AAA", "2024-01-09", "dividend", 0.9, "in adj_close once")]


def test_a_dividend_applied_twice_is_taken_out_once():
    close, _ = traded(0.9)
    factor = 1 - 0.9 / close[4]
    market = alone(one_name(close, adj_close=np.where(np.arange(11) < 5, close * factor**2, close), dividend=paid(0.9)))
    assert_allclose(market.close[:5, 0], close[:5] * factor, rtol=1e-12)
    assert repairs(market) == {"dividends applied twice, taken out once": 1}


def test_the_vendors_formula_fails_for_a_special_dividend():
    close, total = traded(60.0)
    adjusted = np.where(np.arange(11) < 5, close * (1 - 60 / close[4]), close)
    market = alone(one_name(close, adj_close=adjusted, dividend=paid(60.0)))
    assert_allclose(market.close[:, 0], total, rtol=1e-12)
    assert repairs(market) == {"special dividends reinvested at the close of their day": 1}


def test_an_adjusted_close_that_disagrees_is_kept_and_suspected():
    close, _ = traded(2.0)
    adjusted = np.where(np.arange(11) < 5, close * (1 - 1.2 / close[4]), close)
    market = alone(one_name(close, adj_close=adjusted, dividend=paid(2.0)))
    assert_array_equal(market.close[:, 0], adjusted)
    assert market.manifest["repairs"] == []
    assert suspicions(market) == {"adj_close and the listed dividend part": [("AAA", "2024-01-09")]}


def test_actions_on_the_first_bar_or_a_masked_one():
    first = alone(one_name(closes(), split=np.where(np.arange(11) == 0, 4.0, 0.0), dividend=paid(1.0, at=0)))
    assert_array_equal(first.close[:, 0], closes())
    close, total = traded(0.9)
    bars = one_name(np.r_[close[:5], 0.0, close[5:]], dividend=np.r_[paid(0.9)[:5], 0.9, np.zeros(6)])
    market = alone(bars)  # the dividend is listed for a bar without a price
    assert_allclose(market.close[[0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11], 0], total, rtol=1e-12)


def test_a_crash_weeks_before_a_split_is_left_alone():
    """Closes adjusted for a split of 2 on the 31st day, and a real fall by half on the 11th."""
    close = np.r_[np.full(10, 100.0), np.full(40, 50.0)] * (1 + 0.001 * np.sin(np.arange(50)))
    frame = pd.DataFrame(
        {
            "date": pd.bdate_range("2024-01-02", periods=50),
            "ticker": "A",
            "close": close,
            "split": np.where(np.arange(50) == 30, 2.0, 0.0),
        }
    )
    market = load_market(frame, benchmark=None, calendar=None)
    returns = market.close[1:, 0] / market.close[:-1, 0] - 1
    assert returns.min() < -0.49
    assert not any("applied to a part" in entry["kind"] for entry in market.manifest["repairs"])
