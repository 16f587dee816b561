from datetime import date, datetime

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from finpod.errors import DataError, InputError
from finpod.market.data import MarketData, as_date

DATES = np.array(["2024-01-02", "2024-01-03", "2024-01-05", "2024-01-08"], dtype="datetime64[ns]")
CLOSE = np.array([[10.0, 20.0], [11.0, 21.0], [np.nan, 22.0], [np.nan, 23.0]])


def market(**changes):
    return MarketData(
        **{
            "dates": DATES,
            "tickers": ("A", "B"),
            "close": CLOSE,
            "benchmark_close": np.array([400.0, np.nan, 402.0, 404.0]),
            **changes,
        }
    )


def test_b08_the_last_bar_is_that_of_the_snapshot_and_survives_slicing():
    whole = market()
    assert_array_equal(whole.last_bar, DATES[[1, 3]])
    assert_array_equal(whole.rows(0, 1).last_bar, DATES[[1, 3]])
    assert_array_equal(whole.select(["B", "A"]).last_bar, DATES[[3, 1]])
    gap = market(close=np.array([[1.0, np.nan], [np.nan, np.nan], [3.0, np.nan], [4.0, np.nan]]))
    assert gap.last_bar[0] == DATES[3]  # a missing bar before the last is no delisting
    assert np.isnat(gap.last_bar[1])


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"dates": DATES[[0, 1, 1, 2]]}, "2024-01-03 .*2024-01-03"),
        ({"dates": DATES[::-1]}, "2024-01-08 .*2024-01-05"),
        ({"tickers": ("A", "A")}, "A appears twice"),
        ({"close": CLOSE[:, :1]}, r"close .*\(4, 1\).*\(4, 2\)"),
        ({"close": np.where(CLOSE == 21, 0.0, CLOSE)}, "close of B on 2024-01-03 is 0"),
        ({"low": np.where(CLOSE == 21, np.inf, CLOSE)}, "low of B on 2024-01-03 is inf"),
        ({"benchmark_close": np.ones(3)}, r"benchmark_close .*\(3,\)"),
        ({"dates": DATES[:0], "close": CLOSE[:0]}, "0 sessions"),
        ({"close": np.full((4, 2), np.nan)}, "all closes of 2 assets"),
    ],
)
def test_impossible_markets(changes, value):
    with pytest.raises(DataError, match=value):
        market(**changes)


def test_everything_is_read_only():
    for table in (market().close, market().member, market().dates, market().has_bar):
        with pytest.raises(ValueError, match="read-only"):
            table[0] = table[1]
    with pytest.raises(AttributeError):
        market().tickers = ("X", "Y")


def test_rows_and_windows_by_date():
    m = market()
    assert m.row_of("2024-01-04") == 2
    assert m.row_of("2024-01-04", side="right") == 1
    assert m.window("2024-01-03", "2024-01-06") == (1, 2)
    assert m.window(None, None) == (0, 3)
    for window, argument in (
        (("2024-01-06", "2024-01-07"), None),
        (("2024-01-08", "2024-01-02"), "end"),
        (("2024-01-09", None), "date"),
        (("2023-01-09", None), "start"),
        ((None, "2025-01-09"), "end"),
    ):
        with pytest.raises(InputError, match=next(filter(None, window))) as caught:
            m.window(*window)
        assert caught.value.argument == argument


def test_slices_and_columns():
    m = market(open=CLOSE * 0.9)
    part = m.rows(1, 3)
    assert_array_equal(part.open, CLOSE[1:3] * 0.9)
    assert_array_equal(part.benchmark_close, [np.nan, 402.0])
    assert_array_equal(m.select(["B"]).close, CLOSE[:, 1:])
    with pytest.raises(InputError, match="C;"):
        m.select(["A", "C"])
    with pytest.raises(InputError, match="0:4"):
        m.rows(2, 5)


def test_the_benchmark_as_a_market_leaves_its_gaps_out():
    own = market().benchmark_market()
    assert own.tickers == ("QQQ",)
    assert_array_equal(own.dates, DATES[[0, 2, 3]])
    assert_array_equal(own.close[:, 0], [400.0, 402.0, 404.0])
    assert own.member.all()
    with pytest.raises(DataError, match="QQQ"):
        market(benchmark_close=np.full(4, np.nan)).benchmark_market()


def test_the_hash_is_one_of_content():
    assert market().content_hash == market(manifest={"source": "elsewhere"}).content_hash
    assert market(close=np.where(np.isnan(CLOSE), -np.nan, CLOSE)).content_hash == market().content_hash
    different = [
        {"close": CLOSE * (1 + 1e-15)},
        {"benchmark": "SPY"},
        {"tickers": ("A", "C")},
        {"open": CLOSE},
        {"member": np.zeros((4, 2), dtype=bool)},
        {"dates": DATES + np.timedelta64(1, "D")},
    ]
    assert len({market(**changes).content_hash for changes in (*different, {})}) == 7


@pytest.mark.parametrize(
    "text",
    ["soon", None, "20200102", "2020-07", 20200102, True, "2020-13-01", "9999-01-01"],
)
def test_only_whole_days_are_dates(text):
    """numpy takes 20200102 for a year, and counts it past what nanoseconds hold."""
    with pytest.raises(InputError, match=repr(text)) as caught:
        as_date(text, "start")
    assert caught.value.argument == "start"


@pytest.mark.parametrize("day", ["2020-01-02", " 2020-01-02 ", "2020-01-02T15:59", "2020-01-02 10:00:00+00:00",
                                 np.datetime64("2020-01-02T23:59"), date(2020, 1, 2), datetime(2020, 1, 2, 9)])  # fmt: skip
def test_days_are_read_in_every_usual_form(day):
    assert as_date(day) == np.datetime64("2020-01-02", "ns")
