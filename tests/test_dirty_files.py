"""Ten awkward files from real vendors: each is read correctly or refused with the reason."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_bars import places, repairs, suspicions
from numpy.testing import assert_allclose, assert_array_equal

from finpod.errors import DataError
from finpod.market.data import MarketData
from finpod.market.load import load_market

pytestmark = pytest.mark.shared


@pytest.fixture
def dirty(shared: Path) -> Path:
    return shared / "data" / "dirty"


def read(path, **options) -> MarketData:
    return load_market(path, benchmark=None, **options)


def day_return(market: MarketData, date: str) -> float:
    row = market.row_of(date)
    return float(market.close[row, 0] / market.close[row - 1, 0] - 1)


def column(path: Path, name: str) -> np.ndarray:
    return pd.read_csv(path)[name].to_numpy()


def test_raw_prices_with_splits(dirty):
    path = dirty / "vendor_raw_with_actions_AAPL.csv"
    market = read(path)
    assert market.tickers == ("AAPL",)
    assert market.shape == (5314, 1)
    assert (repairs(market), market.manifest["suspicions"]) == ({}, [])
    assert day_return(market, "2020-08-31") == pytest.approx(0.0339, abs=5e-5)
    row = market.row_of("2020-08-31")
    assert market.volume[row, 0] / np.median(market.volume[row - 20 : row, 0]) < 3  # no jump in the volume
    assert_allclose(market.close[::-1, 0], column(path, "adjusted_close"), rtol=1e-12)


def test_special_dividend(dirty):
    path = dirty / "vendor_raw_with_actions_KDP.csv"
    market = read(path)
    assert day_return(market, "2018-07-10") == pytest.approx((22.19 + 103.75) / 123.66 - 1, abs=1e-9)
    assert repairs(market) == {}
    assert suspicions(market) == {
        "bars without volume": [("KDP", "2009-12-16"), ("KDP", "2010-03-17"), ("KDP", "2010-12-15")]
    }
    assert_allclose(market.close[::-1, 0], column(path, "adjusted_close"), rtol=1e-12)


@pytest.mark.parametrize("name", ["AAPL", "KDP"])
def test_the_actions_alone_give_the_vendors_adjusted_close(dirty, tmp_path, name):
    """Without its adjusted close, the file still says all: the series finpod makes is the vendor's."""
    bars = pd.read_csv(dirty / f"vendor_raw_with_actions_{name}.csv")
    bars.drop(columns="adjusted_close").to_csv(tmp_path / f"{name}.csv", index=False)
    market = read(tmp_path / f"{name}.csv")
    assert_allclose(market.close[::-1, 0], bars["adjusted_close"].to_numpy(), rtol=1e-9)
    assert_allclose(market.close * market.volume, (bars["close"] * bars["volume"]).to_numpy()[::-1, None], rtol=1e-12)
    done = repairs(market)
    assert done["dividends applied to prices as traded"] == (bars["dividend_amount"] > 0).sum()


def test_dollar_signs_thousands_commas_and_month_first_dates(dirty):
    market = read(dirty / "dollar_signs_ZM.csv")
    assert market.tickers == ("ZM",)
    assert market.shape == (1226, 1)
    assert market.manifest["reading"] == ["dates read month first, such as 03/01/2024"]
    assert repairs(market) == {}
    last = [float(getattr(market, name)[-1, 0]) for name in ("open", "high", "low", "close", "volume")]
    assert last == [70.98, 71.20, 70.125, 70.91, 4272703]


def test_offsets_that_change_with_the_season(dirty):
    market = read(dirty / "mixed_offsets_FB.csv")
    assert market.tickers == ("FB",)
    assert len(market.dates) == 1401
    assert_array_equal(np.flatnonzero(~market.has_bar[:, 0]), [0])  # the day before it traded
    assert places(market, "bars masked, a price was not positive") == [("FB", "2012-05-17", "open", 0.0, "masked")]
    assert repairs(market) == {"bars masked, a price was not positive": 1}
    row = market.row_of("2012-05-18")
    assert (market.open[row, 0], market.close[row, 0], market.volume[row, 0]) == (42.05, 38.2318, 580587742)


def test_2416_volumes_of_zero(dirty):
    market = read(dirty / "zero_open_zero_volume_GOOG.csv")
    assert market.shape == (3351, 1)
    assert market.has_bar.all()
    assert np.isnan(market.volume).sum() == 2416
    assert repairs(market) == {
        "opens masked, outside high and low": 2,
        "volumes masked, zero although the price moved": 2416,
    }
    assert suspicions(market) == {"sessions without a bar": [("GOOG", "2010-04-01")]}
    assert_array_equal(market.close[:, 0], column(dirty / "zero_open_zero_volume_GOOG.csv", "Close"))


def test_volume_a_hundred_times_too_large(dirty):
    """Eleven volumes have two zeros more than all others: certain, and divided; the prices already hold the dividends."""
    path = dirty / "volume_jump_CTXS.csv"
    market = read(path)
    given = column(path, "Volume").astype(float)
    start = market.row_of("2021-08-04")
    assert_array_equal(market.volume[:start, 0], given[:start])
    assert_array_equal(market.volume[start:, 0], given[start:] / 100)
    assert repairs(market) == {"volumes divided by 100, in another unit": 11}
    assert_array_equal(market.close[:, 0], column(path, "Close"))
    assert suspicions(market) == {"sessions without a bar": [("CTXS", "2021-08-02")]}


def test_a_split_applied_to_half_of_the_history(dirty):
    repaired = read(dirty / "yahoo_bad_split.csv", calendar="XTKS", ticker="X")
    right = read(dirty / "yahoo_bad_split_fixed.csv", calendar="XTKS", ticker="X")
    for name in ("open", "high", "low", "close", "volume", "factor"):
        assert_allclose(getattr(repaired, name), getattr(right, name), rtol=1e-12)
    assert repairs(right) == {}
    kind = "bars brought to the scale of a split that was applied to a part"
    assert repairs(repaired) == {kind: 9}
    assert places(repaired, kind)[-1] == ("X", "2023-03-28", "close", 20710.0, 4142.0)
    assert right.manifest["suspicions"] == repaired.manifest["suspicions"] == []


def test_a_dividend_missing_from_the_adjusted_close(dirty):
    repaired = read(dirty / "yahoo_missing_dividend.csv", calendar="XPAR", ticker="X")
    right = read(dirty / "yahoo_missing_dividend_fixed.csv", calendar="XPAR", ticker="X")
    for name in ("open", "high", "low", "close", "volume"):
        assert_allclose(getattr(repaired, name), getattr(right, name), rtol=1e-12)
    assert places(repaired, "dividends put into the adjusted close") == [
        ("X", "2023-06-02", "dividend", 0.7, "in adj_close once")
    ]
    assert repairs(right) == {}


@pytest.mark.parametrize("name", ["yahoo_bad_split", "yahoo_missing_dividend"])
def test_stamps_of_another_exchange_ask_for_its_calendar(dirty, name):
    with pytest.raises(DataError, match=r"times are at UTC\+0[92]:00, which XNYS does not use; give the exchange"):
        read(dirty / f"{name}.csv")


def test_a_folder_of_vendors(dirty, tmp_path):
    """The six American files in one folder, as one market: some with adjusted closes, some without."""
    for path in dirty.glob("[!y]*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    market = load_market(tmp_path, benchmark="GOOG")
    assert market.tickers == ("AAPL", "CTXS", "FB", "KDP", "ZM")
    one = read(dirty / "vendor_raw_with_actions_AAPL.csv")
    there = market.has_bar[:, 0]
    assert_array_equal(market.close[there, 0], one.close[:, 0])
    assert (market.factor[market.has_bar[:, 4], 4] == 1).all()
