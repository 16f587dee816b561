import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from finpod.errors import DataError, InputError
from finpod.market.clean import build_market, session_dates, tidy_bars

DAYS = pd.bdate_range("2024-01-02", periods=5)


def frame(tickers=("AAA", "BBB", "QQQ"), days=DAYS, **columns):
    """Tidy bars with a different close for every row: 100, 101, ... going through the names, then the days."""
    rows = pd.MultiIndex.from_product([days, tickers], names=["date", "ticker"]).to_frame(index=False)
    close = 100.0 + np.arange(len(rows))
    return rows.assign(open=close - 0.5, high=close + 1, low=close - 1, close=close, volume=1000.0).assign(**columns)


def built(bars, **options):
    defaults = {"membership": None, "benchmark": "QQQ", "manifest": {"source": "file"}}
    return build_market(tidy_bars(bars), **{**defaults, **options})


def test_bars_land_in_their_row_and_column():
    market = built(frame())
    assert market.tickers == ("AAA", "BBB")
    assert_array_equal(market.dates, DAYS.to_numpy().astype("datetime64[ns]"))
    assert_array_equal(market.close, 100.0 + np.arange(15).reshape(5, 3)[:, :2])
    assert_array_equal(market.open, market.close - 0.5)
    assert_array_equal(market.benchmark_close, 102.0 + 3 * np.arange(5))
    assert_array_equal(market.benchmark_open, market.benchmark_close - 0.5)
    assert market.factor is None


def test_b10_ragged_panel():
    bars = frame(tickers=("AAA", "QQQ"))
    bars = pd.concat([bars, frame(tickers=("BBB",), days=DAYS[-2:])])
    market = built(bars)
    assert market.shape == (5, 2)
    assert_array_equal(market.has_bar[:, market.tickers.index("BBB")], [False, False, False, True, True])
    assert market.has_bar[:, market.tickers.index("AAA")].all()
    assert np.isnan(market.open[:3, 1]).all()


FLAT = pd.DataFrame(
    {
        "Open": [1.0, 2, 3, 4],
        "High": [2.0, 3, 4, 5],
        "Low": [0.5, 1, 2, 3],
        "Close": [1.5, 2.5, 3.5, 4.5],
        "Volume": [10.0, 20, 30, 40],
    },
    index=pd.DatetimeIndex(DAYS[:4], name="Date"),
)


@pytest.mark.parametrize(
    "order", [["Open", "High", "Low", "Close", "Volume"], ["Close", "High", "Low", "Open", "Volume"]]
)
@pytest.mark.parametrize("shape", ["flat", "field first", "ticker first"])
def test_b15_layout_of_columns_changes_nothing(order, shape):
    given_frame, ticker = FLAT[order], None
    if shape == "flat":
        ticker = "AAA"
    else:
        pairs = [(field, "AAA") if shape == "field first" else ("AAA", field) for field in order]
        given_frame = given_frame.set_axis(pd.MultiIndex.from_tuples(pairs), axis=1)
    bars = tidy_bars(given_frame, ticker=ticker)
    assert list(bars.columns) == ["date", "ticker", "open", "high", "low", "close", "volume"]
    assert_array_equal(
        bars[["open", "high", "low", "close", "volume"]].to_numpy(),
        FLAT[["Open", "High", "Low", "Close", "Volume"]].to_numpy(),
    )
    assert set(bars["ticker"]) == {"AAA"}
    assert_array_equal(bars["date"].to_numpy(), DAYS[:4].to_numpy())


def test_two_names_in_a_wide_frame():
    wide = pd.concat({"AAA": FLAT, "BBB": FLAT * 2}, axis=1)
    bars = tidy_bars(wide)
    assert_array_equal(bars["close"].to_numpy(), [1.5, 3, 2.5, 5, 3.5, 7, 4.5, 9])
    assert list(bars["ticker"][:2]) == ["AAA", "BBB"]


def test_b17_adjusted_close_adjusts_every_price():
    market = built(frame(open=99.0, close=100.0, high=101.0, low=98.0, volume=49.0).assign(**{"Adj Close": 98.0}))
    assert_allclose(market.open, 97.02, rtol=1e-14)
    assert_array_equal(market.close, np.full((5, 2), 98.0))
    assert_allclose(market.high, 101 * 0.98, rtol=1e-14)
    assert_allclose(market.low, 98 * 0.98, rtol=1e-14)
    assert_allclose(market.factor, 0.98, rtol=1e-14)
    assert_allclose(market.close * market.volume, 100.0 * 49.0, rtol=1e-14)
    assert_array_equal(market.benchmark_close, np.full(5, 98.0))
    assert_allclose(market.benchmark_open, 97.02, rtol=1e-14)


def test_b17_without_adjusted_close_prices_are_left_alone_and_the_reader_told():
    market = built(frame(open=99.0, close=100.0))
    assert (market.open == 99).all()
    assert (market.close == 100).all()
    assert market.factor is None
    assert any("no adjusted close" in note for note in market.manifest["notes"])


def test_b21_equal_rows_are_dropped_by_date_not_by_value():
    days = pd.to_datetime(["2023-06-28", "2023-06-29", "2023-06-30", "2023-06-30"])
    bars = tidy_bars(pd.DataFrame({"date": days, "ticker": "AAA", "close": [60.52, 60.52, 60.19, 60.19]}))
    assert list(bars["close"]) == [60.52, 60.52, 60.19]
    with_benchmark = pd.concat([bars, bars.assign(ticker="QQQ"), bars.tail(1)])
    assert built(with_benchmark).manifest["repairs"] == {"duplicate rows dropped": 1}


def test_b21_two_different_bars_for_a_day_are_an_error():
    bars = pd.concat([frame(), frame().tail(1).assign(close=1.0)])
    with pytest.raises(DataError, match=r"two different bars for QQQ on 2024-01-08"):
        tidy_bars(bars)


def test_b23_newest_first_is_sorted():
    bars = frame(tickers=("AAA", "QQQ"), days=DAYS[:3])
    bars["close"] = [80.0, 80.0, 88.0, 88.0, 96.8, 96.8]
    market = built(bars[::-1])
    assert market.close[-1, 0] / market.close[0, 0] - 1 == pytest.approx(0.21, rel=1e-12)


def test_b24_missing_price_is_no_bar():
    bars = frame(tickers=("AAA", "QQQ"), days=DAYS[:3])
    bars["close"] = [100.0, 100, np.nan, 100, 110, 100]
    market = built(bars)
    assert_array_equal(market.has_bar[:, 0], [True, False, True])
    for table in (market.open, market.high, market.low, market.close, market.volume):
        assert np.isnan(table[1, 0])
    assert market.manifest["repairs"] == {}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_b32_unit_of_dates(unit):
    days = session_dates(pd.Series(pd.DatetimeIndex(["2024-01-02"]).as_unit(unit)))
    assert days.dtype == "datetime64[ns]"
    assert days.astype("datetime64[D]").astype(int)[0] == 19724
    assert days.astype("datetime64[s]").astype(int)[0] == 1704153600


@pytest.mark.parametrize(
    "stamps",
    [
        pd.Series(pd.DatetimeIndex(["2024-01-02", "2024-07-02"]).tz_localize("America/New_York")),
        pd.Series(pd.DatetimeIndex(["2024-01-02 16:00", "2024-07-02 16:00"])),
        pd.Series(["2024-01-02 00:00:00-05:00", "2024-07-02 00:00:00-04:00"]),
        pd.Series([pd.Timestamp("2024-01-02").date(), pd.Timestamp("2024-07-02").date()]),
    ],
)
def test_stamps_become_session_dates(stamps):
    assert_array_equal(session_dates(stamps), np.array(["2024-01-02", "2024-07-02"], dtype="datetime64[ns]"))


@pytest.mark.parametrize(
    ("dates", "message"),
    [
        (pd.Series([20240102]), "20240102 is a number"),
        (pd.Series(["2024-01-02", "01/03/2024"]), "'01/03/2024' is not a date"),
        (pd.Series(["2024-01-02", None]), "is not a date"),
        (pd.Series(pd.DatetimeIndex(["2024-01-02", None])), "'NaT' is not a date"),
    ],
)
def test_unreadable_dates(dates, message):
    with pytest.raises(DataError, match=message):
        session_dates(dates)


@pytest.mark.parametrize(("column", "value"), [("open", 0.0), ("low", -1.0), ("close", 0.0), ("high", np.inf)])
def test_b33_impossible_price_masks_the_bar_and_is_counted(column, value):
    bars = frame()
    bars.loc[3, column] = value
    market = built(bars)
    assert not market.has_bar[1, 0]
    assert market.has_bar.sum() == 9
    assert np.isnan([market.open[1, 0], market.high[1, 0], market.low[1, 0], market.volume[1, 0]]).all()
    assert market.manifest["repairs"] == {"bars masked, a price was not positive": 1}


def test_missing_adjusted_close_and_negative_volume_are_counted():
    bars = frame(adj_close=50.0)
    bars.loc[0, "adj_close"] = np.nan
    bars.loc[4, "volume"] = -5.0
    market = built(bars)
    assert not market.has_bar[0, 0]
    assert market.has_bar[1, 1]
    assert np.isnan(market.volume[1, 1])
    assert market.manifest["repairs"] == {"bars masked, no adjusted close": 1, "volumes masked, negative": 1}


@pytest.mark.parametrize(
    ("bars", "message"),
    [
        (frame().drop(columns="ticker"), "has no column ticker"),
        (frame().drop(columns="close"), "has no column close"),
        (frame().drop(columns="date"), "has no column date"),
        (frame().head(0), "holds no bar"),
        (frame().assign(Close=1.0), "two columns for close"),
        (frame().astype({"close": object}).assign(close="$1,000"), r"close '\$1,000' is not a number"),
        (frame().assign(ticker=None), "row 1 has no ticker"),
        (frame().assign(ticker=["AAA"] * 14 + [" "]), "row 15 has no ticker"),
    ],
)
def test_unusable_frames(bars, message):
    with pytest.raises(DataError, match=message) as caught:
        tidy_bars(bars)
    assert "\n" not in str(caught.value)


def test_benchmark_must_be_there_and_not_alone():
    with pytest.raises(InputError, match="no rows for the benchmark SPY"):
        built(frame(), benchmark="SPY")
    with pytest.raises(DataError, match="no other name"):
        built(frame(tickers=("QQQ",)))


def test_static_list_is_said_to_be_one():
    market = built(frame())
    assert market.manifest["survivorship"] is True
    assert market.manifest["membership"] == "static list of the 2 names with prices on 2024-01-08"
    assert market.manifest["membership"].startswith("static list")
    assert market.manifest["coverage"] == {"2024": 1.0}


@settings(max_examples=25, deadline=None)
@given(
    rows=st.permutations(range(15)),
    columns=st.permutations(["date", "ticker", "open", "high", "low", "close", "volume"]),
)
def test_order_of_rows_and_columns_changes_nothing(rows, columns):
    assert built(frame().iloc[rows][columns]).content_hash == built(frame()).content_hash
