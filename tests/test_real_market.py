"""Real data: ten awkward files of vendors, and the NASDAQ-100 of 2008 to 2021 with its gaps, members and leavers."""

import numpy as np
import pandas as pd
import pytest
from made_bars import places, refuses, repairs, suspicions
from made_strategies import does
from numpy.testing import assert_allclose, assert_array_equal

from finpod import Costs, MarketData, backtest, load_market
from finpod.market.coverage import missing_during
from finpod.market.universe import read_members

pytestmark = pytest.mark.shared


@pytest.fixture
def dirty(shared):
    return shared / "data" / "dirty"


@pytest.fixture
def read(dirty):
    """Reads one of the files as a market."""
    return lambda name, **options: load_market(dirty / name, benchmark=None, **options)


@pytest.mark.parametrize(("name", "date", "expected"), [
    ("AAPL", "2020-08-31", pytest.approx(0.0339, abs=5e-5)),
    ("KDP", "2018-07-10", pytest.approx((22.19 + 103.75) / 123.66 - 1)),
])  # fmt: skip
def test_raw_prices_with_splits_and_dividends(dirty, read, tmp_path, name, date, expected):
    """Without its adjusted close, the file still says all: the series finpod makes is the vendor's."""
    table = pd.read_csv(dirty / f"vendor_raw_with_actions_{name}.csv")[::-1]
    market = read(f"vendor_raw_with_actions_{name}.csv")
    assert market.tickers == (name,)
    row = market.row_of(date)
    assert market.close[row, 0] / market.close[row - 1, 0] - 1 == expected
    assert_allclose(market.close[:, 0], table["adjusted_close"], rtol=1e-12)
    assert repairs(market) == {}
    silent = {"bars without volume": [("KDP", "2009-12-16"), ("KDP", "2010-03-17"), ("KDP", "2010-12-15")]}
    assert suspicions(market) == (silent if name == "KDP" else {})
    if name == "AAPL":
        assert market.volume[row, 0] / np.median(market.volume[row - 20 : row, 0]) < 3  # no jump in the volume
    table.drop(columns="adjusted_close").to_csv(tmp_path / f"{name}.csv", index=False)
    market = load_market(tmp_path / f"{name}.csv", benchmark=None)
    assert_allclose(market.close[:, 0], table["adjusted_close"], rtol=1e-9)
    assert_allclose(market.close[:, 0] * market.volume[:, 0], table["close"] * table["volume"], rtol=1e-12)
    assert repairs(market)["dividends applied to prices as traded"] == (table["dividend_amount"] > 0).sum()


def test_dollar_signs_thousands_commas_and_month_first_dates(read):
    market = read("dollar_signs_ZM.csv")
    assert (market.tickers, market.shape) == (("ZM",), (1226, 1))
    assert market.manifest["reading"] == ["dates read month first, such as 03/01/2024"]
    assert repairs(market) == {}
    last = [float(getattr(market, name)[-1, 0]) for name in ("open", "high", "low", "close", "volume")]
    assert last == [70.98, 71.20, 70.125, 70.91, 4272703]


def test_offsets_that_change_with_the_season(read):
    market = read("mixed_offsets_FB.csv")
    assert (market.tickers, market.shape) == (("FB",), (1401, 1))
    assert_array_equal(np.flatnonzero(~market.has_bar[:, 0]), [0])  # the day before it traded
    assert places(market, "bars masked, a price was impossible") == [("FB", "2012-05-17", "open", 0.0, "masked")]
    row = market.row_of("2012-05-18")
    assert (market.open[row, 0], market.close[row, 0], market.volume[row, 0]) == (42.05, 38.2318, 580587742)


def test_2416_volumes_of_zero(dirty, read):
    market = read("zero_open_zero_volume_GOOG.csv")
    assert market.has_bar.all()
    assert np.isnan(market.volume).sum() == 2416
    kinds = {"opens masked, outside high and low": 2, "volumes masked, zero although the price moved": 2416}
    assert repairs(market) == kinds
    assert suspicions(market) == {"sessions without a bar": [("GOOG", "2010-04-01")]}
    assert_array_equal(market.close[:, 0], pd.read_csv(dirty / "zero_open_zero_volume_GOOG.csv")["Close"])


def test_volume_a_hundred_times_too_large(dirty, read):
    """Eleven volumes have two zeros more than all others: certain, and divided; the prices already hold the dividends."""
    market, table = read("volume_jump_CTXS.csv"), pd.read_csv(dirty / "volume_jump_CTXS.csv")
    scale = np.where(np.arange(len(table)) < market.row_of("2021-08-04"), 1.0, 100.0)
    assert_array_equal(market.volume[:, 0], table["Volume"] / scale)
    assert repairs(market) == {"volumes divided by 100, in another unit": 11}
    assert_array_equal(market.close[:, 0], table["Close"])
    assert suspicions(market) == {"sessions without a bar": [("CTXS", "2021-08-02")]}


HALF = "bars rescaled, a split was applied to a part of the history"
LACKING, ONCE = "dividends added to the adjusted close", "in adj_close once"


@pytest.mark.parametrize(("name", "calendar", "offset", "kind", "last"), [
    ("yahoo_bad_split", "XTKS", "UTC+09:00", HALF, ("X", "2023-03-28", "close", 20710.0, 4142.0)),
    ("yahoo_missing_dividend", "XPAR", "UTC+02:00", LACKING, ("X", "2023-06-02", "dividend", 0.7, ONCE)),
])  # fmt: skip
def test_a_split_applied_to_half_of_the_history_and_a_missing_dividend(read, name, calendar, offset, kind, last):
    refuses(lambda: read(f"{name}.csv"), offset, "XNYS", argument="calendar")
    repaired, right = (read(f"{file}.csv", calendar=calendar, ticker="X") for file in (name, f"{name}_fixed"))
    assert repaired.tables.keys() == right.tables.keys()
    for table, values in right.tables.items():
        assert_allclose(repaired.tables[table], values, rtol=1e-12)
    assert list(repairs(repaired)) == [kind]
    assert places(repaired, kind)[-1] == last
    assert repairs(right) == {}
    assert repaired.manifest["suspicions"] == right.manifest["suspicions"]


def test_a_folder_of_vendors(dirty, read, tmp_path):
    """The six American files in one folder, as one market: some with adjusted closes, some without."""
    for path in dirty.glob("[!y]*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    market = load_market(tmp_path, benchmark="GOOG")
    assert market.tickers == ("AAPL", "CTXS", "FB", "KDP", "ZM")
    assert_array_equal(market.close[market.has_bar[:, 0], 0], read("vendor_raw_with_actions_AAPL.csv").close[:, 0])
    assert (market.factor[market.has_bar[:, 4], 4] == 1).all()


DELISTED = {
    **{"DELL": "2013-10-28", "DTV": "2015-07-24", "KRFT": "2015-07-02", "SIAL": "2015-11-18", "ALTR": "2015-12-24"},
    **{"BRCM": "2016-01-29", "GMCR": "2016-03-02", "SNDK": "2016-05-11", "LLTC": "2017-03-10", "YHOO": "2017-06-16"},
    **{"WFM": "2017-08-28", "SPLS": "2017-09-12"},
}
ENDED_WITH_THEIR_SOURCE = {"APOL", "JOYG", "CELG", "VIAB", "ESRX", "CA", "SHLD", "SHPG", "TCFCA", "TCFCB", "FLIR"}
SPECIAL = {("EXPE", "2011-12-21"), ("ASML", "2012-11-29"), ("COST", "2015-02-05"), ("KDP", "2018-07-10")}
"""Spin-offs and special dividends of which the record is public."""


@pytest.fixture(scope="module")
def market(shared) -> MarketData:
    return load_market(shared / "data" / "nasdaq100_daily.parquet", members=shared / "data" / "nasdaq100_members.csv")


def test_nothing_needs_repair_and_every_anomaly_is_known(market):
    seen = suspicions(market)
    assert market.manifest["repairs"] == []
    assert seen["sessions without a bar"] == [("CELG", "2017-08-07"), ("CELG", "2017-11-08"), ("VIAB", "2017-11-08")]
    silent = pd.Series([name for name, _ in seen["bars without volume"]]).value_counts()
    assert silent.sum() == 35
    assert silent[silent > 1].to_dict() == {"CHTR": 18, "LILAK": 5, "BMRN": 2}
    ends = dict(seen["series that end early"])
    assert {name: day for name, day in ends.items() if name in DELISTED} == DELISTED
    assert set(ends) - set(DELISTED) == ENDED_WITH_THEIR_SOURCE
    parted = seen["days on which close and adj_close diverge"]
    assert set(parted) >= SPECIAL
    assert len(parted) == 32
    assert "VOD" not in {name for name, _ in parted}  # four percent twice a year is its usual dividend
    assert len(seen) == 4
    sentences = {(entry["ticker"], entry["date"]): entry["sentence"] for entry in market.manifest["suspicions"]}
    kdp = sentences["KDP", "2018-07-10"]
    assert all(value in kdp for value in ("-82.06%", "+11.45%", "103.75", "123.66", "+1.84%"))


def test_the_members_of_a_day_are_those_with_prices_and_the_rest_is_reported(shared, market):
    assert market.shape == (3376, 194)
    counts = (market.member & market.has_bar).sum(axis=1)
    days = {"2020-05-26": 103, "2019-05-13": 102, "2016-01-04": 101}
    assert {day: counts[market.row_of(day)] for day in days} == days
    row = market.row_of("2016-01-04")
    listed = read_members(shared / "data" / "nasdaq100_members.csv").during(market.dates[row], market.dates[row])
    without = missing_during(market.manifest, "2016-01-04", "2016-01-04")
    assert len(listed) == 105
    assert without == ["FOX", "FOXA", "LMCA", "LMCK"]
    held = set(np.array(market.tickers)[(market.member & market.has_bar)[row]])
    assert held == set(listed) - set(without)  # the equal weight of these has its figures in tests/test_golden.py


def test_members_of_a_window_without_prices(market):
    assert missing_during(market.manifest, "2020-01-02", "2021-05-28") == []
    assert missing_during(market.manifest, "2019-05-13", "2021-05-26") == ["CELG"]
    never = set(market.manifest["missing"]) & set(missing_during(market.manifest, "2009-01-01", "2016-12-31"))
    assert len(never) == 21  # of 2009 to 2016 without any price at all
    assert market.member[market.row_of("2012-01-03"), market.tickers.index("ENDP")]  # the list has NDOI for it
    assert market.manifest["coverage"]["2019"] == pytest.approx(0.9877, abs=1e-4)


@pytest.mark.parametrize(("name", "fill"), [("DELL", "open"), ("YHOO", "close")])
def test_b08_a_delisted_asset_becomes_cash_at_the_last_price(market, name, fill):
    column, last = market.tickers.index(name), market.row_of(DELISTED[name])
    members = np.flatnonzero(market.member[:, column])
    start, end = market.dates[[members[members <= last][-60], last + 20]]
    keep = does(lambda view: {name: 1.0} if view.step == 0 else None)
    result = backtest(keep, market, start=start, end=end, costs=Costs(fee_bps=0), fill=fill)
    assert result.equity.notna().all()
    gone = result.trades[result.trades["kind"] == "delisted"]
    assert list(gone["ticker"]) == [name]
    assert gone["date"].iloc[0] == pd.Timestamp(market.dates[last + 1])
    assert gone["price"].iloc[0] == market.close[last, column]
    assert result.equity.loc[market.dates[last] :].nunique() == 1
    assert any((event.code, event.ticker) == ("delisted", name) for event in result.events)
    assert result.weights.iloc[-1].sum() == 0
