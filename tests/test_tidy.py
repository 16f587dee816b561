import numpy as np
import pandas as pd
import pytest
from made_bars import DAYS, built, frame, places, repairs
from numpy.testing import assert_array_equal

from finpod.errors import DataError
from finpod.market.long_bars import RepairLog
from finpod.market.tidy import join_bars, tidy_bars

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
    assert set(bars.columns) == {"date", "ticker", "open", "high", "low", "close", "volume"}
    fields = ["open", "high", "low", "close", "volume"]
    assert_array_equal(bars[fields].to_numpy(), FLAT[["Open", "High", "Low", "Close", "Volume"]].to_numpy())
    assert set(bars["ticker"]) == {"AAA"}
    assert_array_equal(bars["date"].to_numpy(), DAYS[:4].to_numpy())


def test_names_of_a_table_of_two_levels_may_lack_fields():
    ragged = pd.concat({"AAA": FLAT[["Close", "Volume"]], "BBB": FLAT[["Close"]] * 2}, axis=1)
    bars = tidy_bars(ragged)
    assert_array_equal(bars["volume"].to_numpy(), [10, np.nan, 20, np.nan, 30, np.nan, 40, np.nan])


@pytest.mark.parametrize("index", [True, False])
def test_a_wide_table_is_one_of_closes(index):
    """Its columns are names, and OPEN is one of them."""
    wide = pd.DataFrame({"OPEN": [1.0, 2], "BRK-B": [3.0, np.nan], "QQQ": [5.0, 6]}, index=DAYS[:2].rename("Date"))
    bars = tidy_bars(wide if index else wide.reset_index())
    assert list(bars.columns) == ["date", "ticker", "close"]
    assert list(bars["ticker"]) == ["BRK-B", "OPEN", "QQQ"] * 2
    assert_array_equal(bars["close"].to_numpy(), [3, 1, 5, np.nan, 2, 6])


@pytest.mark.parametrize(
    ("spelled", "column"),
    [
        ("5. adjusted close", "adj_close"),
        ("Adj Close**", "adj_close"),
        ("ADJCLOSE", "adj_close"),
        ("6. volume", "volume"),
        (" High ", "high"),
    ],
)
def test_spellings_of_columns(spelled, column):
    assert column in tidy_bars(frame().drop(columns=["high", "volume"]).assign(**{spelled: 200.0})).columns


def test_b21_equal_rows_are_dropped_by_date_not_by_value():
    days = pd.to_datetime(["2023-06-28", "2023-06-29", "2023-06-30", "2023-06-30"])
    bars = pd.DataFrame({"date": days, "ticker": "AAA", "close": [60.52, 60.52, 60.19, 60.19]})
    assert list(tidy_bars(bars)["close"]) == [60.52, 60.52, 60.19]
    market = built(pd.concat([bars, bars.assign(ticker="QQQ")]))
    assert repairs(market) == {"duplicate rows dropped": 2}
    assert places(market, "duplicate rows dropped")[0] == ("AAA", "2023-06-30", "bar", "given twice", "once")


def test_b21_two_different_bars_for_a_day_are_an_error():
    bars = pd.concat([frame(), frame().tail(1).assign(close=1.0)])
    with pytest.raises(DataError, match=r"two different bars for QQQ on 2024-01-08"):
        tidy_bars(bars)


def test_joined_tables_keep_what_was_said_of_each():
    log = RepairLog()
    parts = [tidy_bars(frame(tickers=(name,))[::-1], log=log) for name in ("ZZZ", "AAA")]
    parts.append(tidy_bars(frame(tickers=("MMM",))[["date", "ticker", "close"]], log=log))
    bars = join_bars(parts, "folder", list("zam"), log)
    assert list(bars["ticker"][:3]) == ["AAA", "MMM", "ZZZ"]
    assert bars["date"].is_monotonic_increasing
    assert np.isnan(bars["open"][bars["ticker"] == "MMM"]).all()
    assert [entry["count"] for entry in log.content()["repairs"]] == [8]
    with pytest.raises(DataError, match="two different bars for ZZZ on 2024-01-02"):
        join_bars([parts[0], tidy_bars(frame(tickers=("ZZZ",), close=7.0))], "folder", list("zz"), log)


@pytest.mark.parametrize(
    ("bars", "message"),
    [
        (frame().drop(columns="ticker"), "has no column ticker. Its columns are .* or give ticker="),
        (frame().drop(columns="close"), "has no column close"),
        (frame().drop(columns="date"), "has no column date"),
        (frame().head(0), "holds no bar"),
        (frame().assign(Close=1.0), "two columns for close"),
        (frame().assign(close="12 apples"), r"close '12 apples' is not a number"),
        (frame().assign(ticker=None), "row 1 has no ticker"),
        (frame().assign(ticker=["AAA"] * 14 + [" "]), "row 15 has no ticker"),
        (pd.concat({"AAA": FLAT, "BBB": FLAT}, axis=1).set_axis([("AAA", "Close")] * 10, axis=1), "two columns for"),
    ],
)
def test_unusable_tables(bars, message):
    if not isinstance(bars.columns[0], str):
        bars.columns = pd.MultiIndex.from_tuples(bars.columns)
    with pytest.raises(DataError, match=message) as caught:
        tidy_bars(bars)
    assert "\n" not in str(caught.value)
