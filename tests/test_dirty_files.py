"""Ten awkward files from real vendors: each is read correctly or refused with the reason."""

import numpy as np
import pandas as pd
import pytest
from made_bars import places, refuses, repairs, suspicions
from numpy.testing import assert_allclose, assert_array_equal

from finpod.market.load import load_market

pytestmark = pytest.mark.shared


@pytest.fixture
def dirty(shared):
    return shared / "data" / "dirty"


@pytest.fixture
def read(dirty):
    """Reads one of the files as a market."""
    return lambda name, **options: load_market(dirty / name, benchmark=None, **options)


@pytest.mark.parametrize(
    ("name", "date", "expected"),
    [
        ("AAPL", "2020-08-31", pytest.approx(0.0339, abs=5e-5)),
        ("KDP", "2018-07-10", pytest.approx((22.19 + 103.75) / 123.66 - 1)),
    ],
)
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
    assert places(market, "bars masked, a price was not positive") == [("FB", "2012-05-17", "open", 0.0, "masked")]
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


HALF = "bars brought to the scale of a split that was applied to a part"
LACKING = "dividends put into the adjusted close"


@pytest.mark.parametrize(
    ("name", "calendar", "offset", "kind", "last"),
    [
        ("yahoo_bad_split", "XTKS", "UTC+09:00", HALF, ("X", "2023-03-28", "close", 20710.0, 4142.0)),
        (
            "yahoo_missing_dividend",
            "XPAR",
            "UTC+02:00",
            LACKING,
            ("X", "2023-06-02", "dividend", 0.7, "in adj_close once"),
        ),
    ],
)
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
