"""Impossible bars and volumes, prices carried forward to the end, and anomalies: masked, repaired or reported."""

import numpy as np
import pandas as pd
import pytest
from made_bars import alone, built, frame, one_name, places, repairs, suspicions
from numpy.testing import assert_array_equal

from finpod.market.long_bars import SUSPICIONS, RepairLog, check_lines

CARRIED = "bars masked, the last price carried forward"
DAYS = pd.bdate_range("2024-01-02", periods=100)
rows = np.arange(100)
THREE = ("AAA", "BBB", "CCC")


def moving(ticker, days=100, **columns):
    """Bars of an asset that trades every day, its closes in whole cents."""
    random = np.random.default_rng([0, *map(ord, ticker)])
    close = np.round(50 * np.cumprod(1 + random.choice([-0.01, 0.01], days)), 2)
    return one_name(close, volume=random.integers(1000, 2000, days).astype(float)).assign(ticker=ticker, **columns)


def carried(bars, tail, **columns):
    """The same bars; the last `tail` repeat the close before them, without volume unless `columns` say otherwise."""
    bars = bars.copy()
    stop = len(bars) - tail
    for name, values in ({"close": bars["close"].iloc[stop - 1], "volume": 0.0} | columns).items():
        bars.loc[stop:, name] = values
    return bars


def with_others(bars):
    """These bars and those of two assets that go on."""
    return pd.concat([bars, moving("BBB"), moving("CCC")])


@pytest.mark.parametrize("tail", [4, 5, 60])
def test_g10_a_price_carried_forward_without_volume_is_masked(tail):
    market = alone(with_others(carried(moving("AAA"), tail)))
    masked = tail if tail >= 5 else 0  # a few days without a trade stay
    stop = 100 - masked
    assert_array_equal(market.has_bar[:, 0], rows < stop)
    assert market.has_bar[:, 1:].all()
    assert market.last_bar[0] == DAYS[stop - 1]
    assert repairs(market) == ({CARRIED: tail} if masked else {})
    if masked:
        assert places(market, CARRIED)[0][:3] == ("AAA", f"{DAYS[stop]:%Y-%m-%d}", "close")
        assert suspicions(market) == {"series that end early": [("AAA", f"{DAYS[stop - 1]:%Y-%m-%d}")]}


@pytest.mark.parametrize("tail", [9, 8])
@pytest.mark.parametrize("volume", ["none", "missing", "never", "carried forward too", "traded"])
def test_g10_equal_closes_to_the_end_are_flagged_where_volumes_show_nothing(tail, volume):
    """Ten equal closes are nine that repeat the one before. The target of a takeover is traded at the price of the offer."""
    bars, live = carried(moving("AAA"), tail), rows < 100 - tail
    traded = moving("AAA")["volume"]
    bars["volume"] = {
        "missing": np.where(live, traded, np.nan),
        "never": np.where(live, np.nan, 0.0),
        "carried forward too": np.where(live, traded, traded.iloc[99 - tail]),
        "traded": traded,
    }.get(volume, np.nan)
    market = alone(bars.drop(columns="volume") if volume == "none" else with_others(bars))
    assert market.has_bar.all()
    assert repairs(market) == {}
    flagged = [("AAA", f"{DAYS[100 - tail]:%Y-%m-%d}")] if tail >= 9 and volume != "traded" else []
    assert suspicions(market).get("closes that stay the same to the end", []) == flagged


@pytest.mark.parametrize("prices", ["those of the last bar", "missing", "new highs"])
def test_g10_open_high_and_low_may_be_carried_forward_too(prices):
    bars = moving("AAA")
    bars = bars.assign(open=bars["close"] - 0.1, high=bars["close"] + 0.2, low=bars["close"] - 0.2)
    columns = {name: np.nan if prices == "missing" else bars[name][79] for name in ("open", "high", "low")}
    columns |= {"high": 90.0 + rows[:20] / 10} if prices == "new highs" else {}
    market = alone(with_others(carried(bars, 20, **columns)))
    kind = "volumes masked, zero although the price moved" if prices == "new highs" else CARRIED
    assert_array_equal(market.has_bar[:, 0], (rows < 80) | (prices == "new highs"))
    assert repairs(market) == {kind: 20}


def test_g10_missing_volumes_among_the_zeros_and_actions_after_the_last_trade():
    bars = carried(moving("AAA"), 20).assign(split=1.0 + (rows == 90), dividend=5.0 * (rows == 90))
    bars.loc[[80, 85, 99], "volume"] = np.nan
    market = alone(bars)
    assert_array_equal(market.close[:80, 0], bars["close"].iloc[:80])
    assert repairs(market) == {CARRIED: 20}


def test_g10_sessions_on_which_the_whole_market_is_stale_are_dropped():
    market = alone(pd.concat([carried(moving(name), 8) for name in THREE]))
    assert market.shape == (92, 3)
    assert (market.last_bar == market.dates[-1]).all()
    assert repairs(market) == {CARRIED: 24}
    assert market.manifest["suspicions"] == []


def test_g10_intraday_whole_sessions_count():
    """Bars of two hours: the end of a day without trades is usual, days without any are not."""
    stamps = pd.DatetimeIndex([day + pd.Timedelta(hours=hour) for day in DAYS[:9] for hour in (10, 12, 14)])
    bars = moving("AAA", days=27).assign(date=stamps)
    for tail, masked in ((13, 0), (16, 16)):
        market = alone(pd.concat([carried(bars, tail), bars.assign(ticker="BBB")]), calendar="XNYS")
        assert market.has_bar[:, 0].sum() == 27 - masked


@pytest.mark.parametrize(("column", "value"), [("open", 0.0), ("low", -1.0), ("high", np.inf)])
def test_b33_impossible_price_masks_the_bar_and_is_counted(column, value):
    bars = frame()
    bars.loc[3, column] = value
    market = built(bars)
    assert_array_equal(np.argwhere(~market.has_bar), [[1, 0]])
    assert np.isnan([market.open[1, 0], market.high[1, 0], market.low[1, 0], market.volume[1, 0]]).all()
    assert repairs(market) == {"bars masked, a price was impossible": 1}
    assert places(market, "bars masked, a price was impossible") == [("AAA", "2024-01-03", column, value, "masked")]


def test_bars_that_contradict_themselves_are_masked():
    bars = frame(adj_close=lambda bars: bars["close"], dividend=0.0, split=1.0)
    bars.loc[0, ["high", "low"]] = [99.0, 101.0]  # AAA, first day
    bars.loc[4, ["close", "adj_close"]] = 106.0  # BBB, second day: the high is 105
    bars.loc[7, "open"] = 50.0  # BBB, third day
    bars.loc[9, "adj_close"] = np.nan  # AAA, fourth day
    bars.loc[12, ["volume", "dividend", "split"]] = [-5.0, np.inf, -2.0]  # AAA, fifth day
    bars.loc[13, "high"] = bars.loc[13, "close"] - 0.005  # BBB, fifth day: rounded
    market = built(bars)
    assert_array_equal(np.argwhere(~market.has_bar), [[0, 0], [1, 1], [3, 0]])
    assert_array_equal(np.argwhere(np.isnan(market.open) & market.has_bar), [[2, 1]])
    assert_array_equal(np.argwhere(np.isnan(market.volume) & market.has_bar), [[4, 0]])
    assert list(repairs(market)) == [
        *("splits masked, negative or infinite", "dividends masked, negative or infinite"),
        "bars masked, no adjusted close",
        "bars masked, high below low",
        "bars masked, close outside high and low",
        "opens masked, outside high and low",
        "volumes masked, negative or infinite",
    ]
    assert places(market, "opens masked, outside high and low") == [("BBB", "2024-01-04", "open", 50.0, "masked")]


def test_a_volume_of_zero_is_believed_only_where_the_price_stood_still():
    bars = frame(tickers=("AAA",), volume=0.0)
    bars.loc[2, ["open", "high", "low"]] = bars.loc[2, "close"]
    market = alone(bars)
    assert_array_equal(np.isnan(market.volume[:, 0]), [True, True, False, True, True])
    assert repairs(market) == {"volumes masked, zero although the price moved": 4}
    assert suspicions(market) == {"bars without volume": [("AAA", "2024-01-04")]}
    assert_array_equal(alone(one_name([10.0, 10, 11], volume=[5.0, 0, 0])).volume[:, 0], [5, 0, np.nan])


def volumes(days=60, unit=100):
    """Volumes around a million in lots of `unit`."""
    return np.round(1e6 * np.random.default_rng(0).lognormal(0, 0.4, days) / unit) * unit


def with_volume(volume):
    return one_name(50 * np.cumprod(1 + np.random.default_rng(1).normal(0, 0.01, len(volume))), volume=volume)


@pytest.mark.parametrize(("part", "day", "scale"), [(np.s_[45:], "2024-03-05", 100), (np.s_[:8], "2024-01-02", 1000)])
def test_a_unit_that_the_digits_prove_is_repaired(part, day, scale):
    right, wrong = volumes(), volumes()
    wrong[part] *= scale
    market = alone(with_volume(wrong))
    assert_array_equal(market.volume[:, 0], right)
    kind = f"volumes divided by {scale:g}, in another unit"
    assert repairs(market) == {kind: len(right[part])}
    assert places(market, kind)[0] == ("AAA", day, "volume", wrong[part][0], right[part][0])


@pytest.mark.parametrize("factor", [1.0, np.where(rows[:60] < 30, 1, 15), np.where(rows[:60] == 40, 100, 1)])
def test_real_changes_of_volume_are_left_alone(factor):
    """Usual volumes, a member of an index from one day on, one busy day, and volumes whose digits prove no unit."""
    for volume in (volumes() * factor, volumes(unit=1) / np.where(rows[:60] < 45, 1, 100)):
        market = alone(with_volume(np.round(volume)))
        assert_array_equal(market.volume[:, 0], np.round(volume))
        assert market.manifest["repairs"] == []
    merger = with_volume(volumes() * np.where(rows[:60] < 30, 1, 100))
    merger.loc[30:, "close"] *= 1.31  # the price shows why
    assert alone(merger).manifest["repairs"] == []


ROWS = np.arange(500)
NEAR_100 = 100.0 + ROWS % 2 / 100


def test_missing_sessions_are_those_within_the_life_of_an_asset():
    days = pd.bdate_range("2024-01-02", "2024-02-09")
    bars = frame(days=days[days != "2024-01-15"])  # not a session, so it is not missing
    gone = (bars["ticker"] == "AAA") & bars["date"].isin(pd.to_datetime(["2024-01-02", "2024-01-16", "2024-01-17"]))
    gone |= (bars["ticker"] == "BBB") & ((bars["date"] > "2024-02-07") | (bars["date"] < "2024-01-04"))
    market = built(bars[~gone], calendar="XNYS")
    assert suspicions(market) == {
        "sessions without a bar": [("AAA", "2024-01-16"), ("AAA", "2024-01-17")],
        "series that end early": [("BBB", "2024-02-07")],
    }


@pytest.mark.parametrize("usual", [0.005, 0.0])
def test_large_distributions_are_those_beyond_the_usual(usual):
    step = np.where(ROWS == 300, 0.04, np.where(ROWS % 60 == 30, usual, 0.0))
    bars = one_name(NEAR_100, adj_close=NEAR_100 * np.exp(np.cumsum(step) - step.sum()))
    assert suspicions(alone(bars)) == {"days on which close and adj_close diverge": [("AAA", "2025-02-25")]}
    listed = alone(bars.assign(dividend=np.where(step > 0, 100 * (1 - np.exp(-step)), 0.0)))
    assert listed.manifest["suspicions"] == listed.manifest["repairs"] == []


def test_jumps_of_the_size_of_a_split():
    market = alone(one_name([100.0, 101, 25.3, 25.2, 75.6, 76]))
    assert suspicions(market) == {"jumps of the size of a split": [("AAA", "2024-01-04"), ("AAA", "2024-01-08")]}
    assert ["4:1" in entry["sentence"] for entry in market.manifest["suspicions"]] == [True, False]


def test_all_are_counted_and_the_first_listed():
    log = RepairLog()
    dates = np.arange("2020-01-01", "2021-01-01", dtype="datetime64[D]").astype("datetime64[ns]")
    log.suspect("odd", ["AAA"] * 366, dates, ("why" for _ in dates))
    log.suspect("known", ["AAA"], dates[:1], ["why"])
    log.repair("mended", ["AAA"] * 366, dates, "close", np.arange(366.0), 1.0)
    log.repair("mended", ["BBB"], dates[:1], "close", np.array([5e6]), 1.0)
    log.repair("nothing", [], dates[:0], "close", np.array([]))
    content = log.content()
    assert content["suspicion_counts"] == {"odd": 366, "known": 1}
    assert len(content["suspicions"]) == SUSPICIONS + 1
    (mended,) = content["repairs"]
    assert (mended["kind"], mended["count"], len(mended["places"])) == ("mended", 367, 20)
    repairs, suspicions = check_lines(content)
    assert repairs[:2] == ["mended: 367", "  AAA 2020-01-01 close 0 -> 1"]
    assert repairs[-1] == "  and 362 more"
    assert (suspicions[0], suspicions[-1]) == ("known: 1", "  and 166 more")
    assert check_lines({"repairs": {}}) == ([], [])
