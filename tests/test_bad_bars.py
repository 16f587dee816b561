import numpy as np
import pytest
from made_bars import alone, built, frame, one_name, places, repairs, suspicions
from numpy.testing import assert_array_equal

UNIT = "volumes masked, perhaps in another unit"


@pytest.mark.parametrize(("column", "value"), [("open", 0.0), ("low", -1.0), ("close", 0.0), ("high", np.inf)])
def test_b33_impossible_price_masks_the_bar_and_is_counted(column, value):
    bars = frame()
    bars.loc[3, column] = value
    market = built(bars)
    assert not market.has_bar[1, 0]
    assert market.has_bar.sum() == 9
    assert np.isnan([market.open[1, 0], market.high[1, 0], market.low[1, 0], market.volume[1, 0]]).all()
    assert repairs(market) == {"bars masked, a price was not positive": 1}
    assert places(market, "bars masked, a price was not positive") == [("AAA", "2024-01-03", column, value, "masked")]


def test_missing_adjusted_close_and_negative_volume_are_counted():
    bars = frame(adj_close=50.0)
    bars.loc[0, "adj_close"] = np.nan
    bars.loc[4, "volume"] = -5.0
    market = built(bars)
    assert not market.has_bar[0, 0]
    assert market.has_bar[1, 1]
    assert np.isnan(market.volume[1, 1])
    assert repairs(market) == {"bars masked, no adjusted close": 1, "volumes masked, negative or infinite": 1}


def test_prices_that_contradict_each_other_are_masked():
    bars = frame()
    bars.loc[0, ["high", "low"]] = [99.0, 101.0]  # AAA, first day
    bars.loc[4, "close"] = 106.0  # BBB, second day: the high is 105
    bars.loc[7, "open"] = 50.0  # BBB, third day
    market = built(bars)
    assert_array_equal(np.argwhere(~market.has_bar), [[0, 0], [1, 1]])
    assert_array_equal(np.argwhere(np.isnan(market.open)), [[0, 0], [1, 1], [2, 1]])
    assert market.close[2, 1] == 107
    assert repairs(market) == {
        "bars masked, high below low": 1,
        "bars masked, close outside high and low": 1,
        "opens masked, outside high and low": 1,
    }
    assert places(market, "opens masked, outside high and low") == [("BBB", "2024-01-04", "open", 50.0, "masked")]


def test_a_rounded_cent_is_no_contradiction():
    bars = frame()
    bars.loc[:, "high"] = bars["close"] - 0.005
    assert built(bars).manifest["repairs"] == []


def test_a_volume_of_zero_is_believed_only_where_the_price_stood_still():
    bars = frame(tickers=("AAA",), volume=0.0)
    bars.loc[2, ["open", "high", "low"]] = bars.loc[2, "close"]
    market = alone(bars)
    assert_array_equal(np.isnan(market.volume[:, 0]), [True, True, False, True, True])
    assert market.has_bar.all()
    assert repairs(market) == {"volumes masked, zero although the price moved": 4}
    assert suspicions(market) == {"bars without volume": [("AAA", "2024-01-04")]}
    closes_only = alone(one_name([10.0, 10, 11], volume=[5.0, 0, 0]))
    assert_array_equal(closes_only.volume[:, 0], [5, 0, np.nan])


def volumes(days=60, unit=100, seed=0):
    """Volumes around a million in lots of `unit`."""
    return np.round(1e6 * np.random.default_rng(seed).lognormal(0, 0.4, days) / unit) * unit


def with_volume(volume):
    calm = 50 * np.cumprod(1 + np.random.default_rng(1).normal(0, 0.01, len(volume)))
    return one_name(calm, volume=volume)


@pytest.mark.parametrize(("part", "label"), [(slice(45, None), "2024-03-05"), (slice(0, 8), "2024-01-02")])
@pytest.mark.parametrize("scale", [100.0, 1000.0])
def test_a_unit_that_the_digits_prove_is_mended(part, label, scale):
    right = volumes()
    wrong = right.copy()
    wrong[part] *= scale
    market = alone(with_volume(wrong))
    assert_array_equal(market.volume[:, 0], right)
    kind = f"volumes divided by {scale:g}, in another unit"
    assert repairs(market) == {kind: len(right[part])}
    first = places(market, kind)[0]
    assert (first[0], first[1], first[4]) == ("AAA", label, right[part][0])


@pytest.mark.parametrize("part", [slice(45, None), slice(0, 15)])
def test_a_unit_that_is_only_likely_is_masked_on_the_shorter_side(part):
    wrong = volumes(unit=1)
    wrong[part] = np.round(wrong[part] / 100)  # hundreds of shares
    market = alone(with_volume(wrong))
    gone = np.isnan(market.volume[:, 0])
    assert gone[part].all()
    assert gone.sum() == len(wrong[part])
    assert repairs(market) == {UNIT: len(wrong[part])}
    assert market.has_bar.all()


def test_real_changes_of_volume_are_left_alone():
    busy = volumes()
    busy[30:] *= 15  # an index adds the name
    one_day = volumes()
    one_day[40] *= 100
    for volume in (volumes(), busy, one_day):
        market = alone(with_volume(volume))
        assert_array_equal(market.volume[:, 0], volume)
        assert market.manifest["repairs"] == []
    merger = with_volume(np.r_[volumes(30), volumes(30) * 57])
    merger.loc[30:, "close"] *= 1.31  # and the price says why
    assert alone(merger).manifest["repairs"] == []
