"""Impossible bars and volumes, and prices carried forward to the end: masked, mended or listed."""

import numpy as np
import pandas as pd
import pytest
from made_bars import alone, built, frame, one_name, places, repairs, suspicions
from numpy.testing import assert_array_equal

CARRIED = "bars masked, the last price carried forward"
SAME = "closes that stay the same to the end"
DAYS = pd.bdate_range("2024-01-02", periods=100)


def moving(name, days=100, *, seed=0, **columns):
    """Bars of a name that trades every day, its closes in whole cents."""
    random = np.random.default_rng([seed, *map(ord, name)])
    close = np.round(50 * np.cumprod(1 + random.choice([-0.01, 0.01], days)), 2)
    return one_name(close, volume=random.integers(1000, 2000, days).astype(float)).assign(ticker=name, **columns)


def carried(bars, tail, **columns):
    """The same bars, the last `tail` of which carry the close before them forward, without volume or with what is given."""
    bars = bars.copy()
    stop = len(bars) - tail
    for name, values in ({"close": bars["close"].iloc[stop - 1], "volume": 0.0} | columns).items():
        bars.loc[stop:, name] = values
    return bars


def with_others(bars):
    """These bars beside those of two names that go on."""
    return pd.concat([bars, moving("BBB"), moving("CCC")])


@pytest.mark.parametrize("tail", [5, 10, 60])
def test_g10_a_price_carried_forward_without_volume_is_masked(tail):
    market = alone(with_others(carried(moving("AAA"), tail)))
    stop = 100 - tail
    assert_array_equal(market.has_bar[:, 0], np.arange(100) < stop)
    assert market.has_bar[:, 1:].all()
    assert market.last_bar[0] == DAYS[stop - 1]
    assert repairs(market) == {CARRIED: tail}
    assert places(market, CARRIED)[0][:3] == ("AAA", f"{DAYS[stop]:%Y-%m-%d}", "close")
    assert suspicions(market) == {"series that end early": [("AAA", f"{DAYS[stop - 1]:%Y-%m-%d}")]}


@pytest.mark.parametrize("tail", [1, 4])
def test_g10_a_few_days_without_a_trade_at_the_end_stay(tail):
    market = alone(with_others(carried(moving("AAA"), tail)))
    assert market.has_bar.all()
    assert repairs(market) == {}
    assert len(suspicions(market)["bars without volume"]) == tail


@pytest.mark.parametrize("tail", [59, 9, 8])
@pytest.mark.parametrize("volume", ["none", "missing", "never", "carried forward too"])
def test_g10_equal_closes_to_the_end_are_flagged_where_volumes_tell_nothing(tail, volume):
    """Ten equal closes are nine that repeat the one before."""
    bars = carried(moving("AAA"), tail)
    bars["volume"] = {
        "missing": np.where(np.arange(100) < 100 - tail, bars["volume"], np.nan),
        "never": np.where(np.arange(100) < 100 - tail, np.nan, 0.0),
        "carried forward too": np.where(np.arange(100) < 100 - tail, bars["volume"], bars["volume"].iloc[99 - tail]),
    }.get(volume, np.nan)
    if volume == "none":
        bars = bars.drop(columns="volume")
    market = alone(with_others(bars) if volume != "none" else bars)
    assert market.has_bar.all()
    assert repairs(market) == {}
    flagged = [("AAA", f"{DAYS[100 - tail]:%Y-%m-%d}")] if tail >= 9 else []
    assert suspicions(market).get(SAME, []) == flagged


def test_g10_equal_closes_with_trades_are_real():
    """The target of a takeover for cash stays at the price of the offer."""
    bars = moving("AAA")
    bars.loc[60:, "close"] = 54.0
    market = alone(with_others(bars))
    assert market.has_bar.all()
    assert market.manifest["repairs"] == market.manifest["suspicions"] == []


@pytest.mark.parametrize("fields", ["flat", "those of the last bar", "missing"])
def test_g10_open_high_and_low_may_be_carried_forward_too(fields):
    bars = moving("AAA")
    bars = bars.assign(open=bars["close"] - 0.1, high=bars["close"] + 0.2, low=bars["close"] - 0.2)
    last = bars.iloc[79]
    columns = {
        name: {"flat": last["close"], "missing": np.nan}.get(fields, last[name]) for name in ("open", "high", "low")
    }
    market = alone(with_others(carried(bars, 20, **columns)))
    assert_array_equal(market.has_bar[:, 0], np.arange(100) < 80)
    assert repairs(market) == {CARRIED: 20}


def test_g10_a_new_high_without_volume_is_no_carried_price():
    """The volume is wrong, not the price."""
    bars = moving("AAA")
    bars = carried(bars.assign(high=bars["close"]), 20, high=90.0 + np.arange(20) / 10)
    bars["low"] = 1.0
    market = alone(with_others(bars))
    assert market.has_bar.all()
    assert repairs(market) == {"volumes masked, zero although the price moved": 20}


@pytest.mark.parametrize(("tail", "masked"), [(8, False), (16, False), (17, True)])
def test_g10_names_that_trade_rarely_must_rest_longer_than_before(tail, masked):
    """A spell of eight days without a trade lies in the middle."""
    bars = moving("AAA")
    bars.loc[30:37, "volume"] = 0.0
    bars.loc[30:37, "close"] = bars["close"].iloc[29]
    market = alone(with_others(carried(bars, tail)))
    assert market.has_bar[:, 0].all() == (not masked)
    assert market.has_bar[30:38, 0].all()
    assert (SAME in suspicions(market)) == (not masked and tail >= 9)


def test_g10_missing_volumes_among_the_zeros():
    bars = carried(moving("AAA"), 20)
    bars.loc[[80, 85, 99], "volume"] = np.nan
    market = alone(with_others(bars))
    assert_array_equal(market.has_bar[:, 0], np.arange(100) < 80)


def test_g10_a_split_or_dividend_listed_after_the_last_trade_has_no_effect():
    bars = carried(moving("AAA"), 20).assign(split=1.0, dividend=0.0)
    bars.loc[90, ["split", "dividend"]] = [2.0, 5.0]
    market = alone(bars)
    assert_array_equal(market.close[:80, 0], bars["close"].iloc[:80])
    assert repairs(market) == {CARRIED: 20}


@pytest.mark.parametrize("tail", [1, 3])
def test_g10_sessions_that_only_repeat_the_one_before_are_dropped(tail):
    """Of the whole market: no name has left, the file has been filled up to a later day."""
    market = alone(pd.concat([carried(moving(name), tail) for name in ("AAA", "BBB", "CCC")]))
    assert market.shape == (100 - tail, 3)
    assert (market.last_bar == DAYS[99 - tail]).all()
    assert repairs(market) == {CARRIED: 3 * tail}
    assert market.manifest["suspicions"] == []
    index = carried(moving("III"), tail, volume=np.nan).assign(volume=np.nan)  # an index has no volume
    market = alone(pd.concat([index, *(carried(moving(name), tail) for name in ("AAA", "BBB", "CCC"))]))
    assert market.shape == (100 - tail, 4)


def test_g10_one_name_that_goes_on_keeps_the_session():
    bars = [carried(moving(name), 1) for name in ("AAA", "BBB", "CCC")]
    market = alone(pd.concat([*bars, moving("DDD")]))
    assert market.shape == (100, 4)
    assert market.has_bar.all()


def test_g10_a_whole_market_without_volumes_is_flagged():
    bars = pd.concat([carried(moving(name), 1) for name in ("AAA", "BBB", "CCC")]).drop(columns="volume")
    market = alone(bars)
    assert market.has_bar.all()
    assert suspicions(market) == {SAME: [(name, f"{DAYS[99]:%Y-%m-%d}") for name in ("AAA", "BBB", "CCC")]}


def test_prices_that_never_moved_are_no_sign():
    bars = pd.concat([moving(name, 5).assign(close=20.0, volume=100.0) for name in ("AAA", "BBB", "CCC")])
    assert alone(bars).manifest["suspicions"] == []
    assert alone(bars.assign(volume=np.where(bars["date"] == DAYS[0], 100.0, 0.0))).shape == (5, 3)


@pytest.mark.parametrize("sessions", [0, 4, 5])
def test_g10_intraday_whole_sessions_count(sessions):
    """Half-hour bars: the end of a day without trades is usual, days without any are not."""
    stamps = pd.DatetimeIndex(
        [
            day + pd.Timedelta(minutes=570 + 30 * bar)
            for day in pd.bdate_range("2024-01-02", periods=9)
            for bar in range(13)
        ]
    )
    random = np.random.default_rng(0)
    tail = 13 * sessions + 6
    bars = pd.DataFrame(
        {
            "date": stamps,
            "ticker": "AAA",
            "close": 50 + np.arange(117) / 100,
            "volume": random.integers(1, 99, 117) * 1.0,
        }
    )
    other = bars.assign(ticker="BBB")
    market = alone(pd.concat([carried(bars, tail), other]), calendar="XNYS")
    assert market.has_bar[:, 0].sum() == (117 - tail if sessions >= 5 else 117)


def test_g10_the_benchmark_is_a_name_like_others():
    bars = pd.concat([moving("AAA"), moving("BBB"), carried(moving("QQQ"), 30)])
    market = built(bars)
    assert np.isnan(market.benchmark_close[70:]).all()
    assert np.isfinite(market.benchmark_close[:70]).all()


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
