"""Bars become a market: sessions of the exchange, no bar without a price, adjusted prices, order, and errors."""

from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_bars import DAYS, alone, built, frame, places, refuses, repairs, stamps
from numpy.testing import assert_allclose, assert_array_equal

from finpod import InputError, load_market
from finpod.market.calendar import NEW_YORK, sessions_of
from finpod.trading.execution import build_execution


def test_b01_a_series_is_never_filled_from_its_future():
    """NaN, NaN, 10, 11, NaN, 12: no bar before the listing; the mark carries the 11 on, and only bars can be traded."""
    bars = frame(tickers=("AAA", "QQQ"), days=pd.bdate_range("2024-01-02", periods=6))[["date", "ticker", "close"]]
    bars.loc[bars["ticker"] == "AAA", "close"] = [np.nan, np.nan, 10, 11, np.nan, 12]
    market = built(bars)
    assert_array_equal(market.close[:, 0], [np.nan, np.nan, 10, 11, np.nan, 12])
    execution = build_execution(market, "close")
    assert_array_equal(execution.tradable[:, 0], [False, False, True, True, False, True])
    assert_array_equal(execution.mark[2:, 0], [10, 11, 11, 12])
    assert not (execution.mark[:2, 0] == 10).any()
    assert not (execution.price[:2, 0] == 10).any()


def test_b10_ragged_panel():
    market = built(pd.concat([frame(tickers=("AAA", "QQQ")), frame(tickers=("BBB",), days=DAYS[-2:])]))
    assert market.tickers == ("AAA", "BBB")
    assert_array_equal(market.has_bar, [[True, False]] * 3 + [[True, True]] * 2)
    assert np.isnan(market.open[:3, 1]).all()


def test_b17_adjusted_close_adjusts_every_price():
    bars = frame(open=99.0, close=100.0, high=101.0, low=98.0, volume=49.0)
    market = built(bars.assign(**{"Adj Close": 98.0}))
    for name, value in {"open": 97.02, "close": 98.0, "high": 98.98, "low": 96.04, "factor": 0.98}.items():
        assert_allclose(getattr(market, name), value, rtol=1e-14)
    assert_allclose(market.close * market.volume, 100.0 * 49.0, rtol=1e-14)
    assert_array_equal(market.benchmark_close, np.full(5, 98.0))
    assert_allclose(market.benchmark_open, 97.02, rtol=1e-14)
    market = built(bars)  # left alone, with a note
    assert ((market.open == 99) & (market.close == 100)).all()
    assert market.factor is None
    assert len(market.manifest["notes"]) == 1


def test_b23_newest_first_is_sorted():
    bars = frame(tickers=("AAA", "QQQ"), days=DAYS[:3])[["date", "ticker", "close"]]
    bars["close"] = [80.0, 80.0, 88.0, 88.0, 96.8, 96.8]
    market = built(bars[::-1])
    assert market.close[-1, 0] / market.close[0, 0] - 1 == pytest.approx(0.21, rel=1e-12)
    assert repairs(market) == {}


def test_b24_missing_price_is_no_bar():
    bars = frame(tickers=("AAA", "QQQ"), days=DAYS[:3])
    market = built(bars.assign(close=[100.0, 100, np.nan, 100, 110, 100], open=np.nan, high=np.nan, low=np.nan))
    assert_array_equal(market.has_bar[:, 0], [True, False, True])
    assert np.isnan([market.open[1, 0], market.close[1, 0], market.volume[1, 0]]).all()
    assert repairs(market) == {}
    mark = build_execution(market, "close").mark[:, 0].numpy()
    assert_array_equal(mark, [100, 100, 110])
    assert mark[2] / mark[1] - 1 == pytest.approx(0.1)


def test_a_benchmark_must_exist_and_not_be_alone_or_may_be_none():
    refuses(lambda: built(frame(), benchmark="SPY"), "SPY", error=InputError, argument="benchmark")
    refuses(lambda: built(frame(tickers=("QQQ",))), "QQQ")
    market = built(frame(), benchmark=None)
    assert market.tickers == ("AAA", "BBB", "QQQ")
    assert market.benchmark == market.manifest["benchmark_kind"] == "none"
    assert np.isnan(market.benchmark_close).all()


@settings(max_examples=10, deadline=None)
@given(
    rows=st.permutations(range(15)),
    columns=st.permutations(["date", "ticker", "open", "high", "low", "close", "volume"]),
)
def test_order_of_rows_and_columns_changes_nothing(rows, columns):
    assert built(frame().iloc[rows][columns]).content_hash == built(frame()).content_hash


@settings(max_examples=15, deadline=None)
@given(day=st.integers(5, 58), seed=st.integers(0, 99))
def test_later_bars_never_change_an_earlier_return(day, seed):
    """Repairs of single bars look at that bar and at those before it; only listed actions rescale the past."""
    random = np.random.default_rng(seed)
    bars = frame(days=pd.bdate_range("2024-01-02", periods=60), adj_close=lambda bars: bars["close"] * 0.9)
    later = bars["date"] > bars["date"].unique()[day]
    changed = bars.copy()
    numbers = ["open", "high", "low", "close", "adj_close"]
    changed.loc[later, numbers] = bars.loc[later, numbers].mul(random.lognormal(0, 0.3, later.sum()), axis=0)
    one, other = built(bars).tables, built(changed[~later | (random.random(len(bars)) > 0.1)]).tables
    assert one.keys() == other.keys()
    for name, table in one.items():
        assert_array_equal(table[: day + 1], other[name][: day + 1])


def test_a_file_without_a_usable_bar_is_refused_with_every_reason():
    bars = pd.DataFrame({"date": pd.bdate_range("2024-01-12", periods=3), "ticker": "A", "close": -1.0})
    refuses(lambda: load_market(bars, benchmark=None), "not a session: 1", "impossible: 2")
    returns = frame(tickers=("AAA",)).assign(close=[0.01, -0.02, -0.01, 0.0, -0.01])
    refuses(lambda: load_market(returns, benchmark=None), "3 of 5 closes are negative", "give prices")
    refuses(lambda: load_market(bars[::2].assign(close=np.nan), benchmark=None), "close is missing")
    refuses(lambda: built(frame(), calendar="XNYS", now=datetime(2023, 1, 3, tzinfo=NEW_YORK)), "XNYS")


@pytest.mark.parametrize("allow_missing", [True, False])
def test_a_list_of_members_without_any_price_is_refused(allow_missing):
    options = {"benchmark": None, "calendar": None, "allow_missing": allow_missing}
    refuses(lambda: load_market(frame(), members=["X", "Y"], **options), "X, Y", error=InputError, argument="members")


def test_tickers_without_a_bar_are_left_out():
    bars = frame(tickers=("A", "B"))[["date", "ticker", "close"]]
    market = alone(bars.assign(close=bars["close"].where(bars["ticker"] == "A")))
    assert market.tickers == ("A",)
    assert market.manifest["missing"] == ["B"]


def test_sessions_know_holidays_half_days_and_the_clock():
    sessions = sessions_of("XNYS", *stamps("2023-11-20", "2023-11-27"))
    assert_array_equal(sessions.dates, stamps("2023-11-20", "2023-11-21", "2023-11-22", "2023-11-24", "2023-11-27"))
    assert [str(close)[11:16] for close in sessions.closes] == ["21:00", "21:00", "21:00", "18:00", "21:00"]
    assert [str(close)[11:16] for close in sessions.hours[:, 1]] == ["16:00", "16:00", "16:00", "13:00", "16:00"]
    assert sessions.offsets == {"-04:00", "-05:00"}
    early = stamps("1990-01-02", "1990-05-28")
    refuses(lambda: sessions_of("XTKS", *early), "XTKS", "1990", error=InputError, argument="calendar")


def test_a_row_on_a_holiday_is_dropped_and_its_split_falls_on_the_next_session():
    bars = frame(tickers=("AAA",), days=pd.bdate_range("2024-01-10", "2024-01-18"))  # the 15th was a holiday
    bars["close"] = [400.0, 404, 400, 101, 102, 101, 100]
    bars = bars.assign(split=[0, 0, 0, 4, 0, 0, 0.0]).drop(columns=["open", "high", "low"])
    market = alone(bars, calendar="XNYS")
    assert_array_equal(market.close[:, 0], [100, 101, 100, 102, 101, 100])
    assert places(market, "rows dropped, not a session") == [("AAA", "2024-01-15", "bar", "a bar", "dropped")]
    assert len(alone(bars).dates) == 7


@pytest.mark.parametrize(("date", "hour", "calendar", "kept"), [
    ("2024-03-28", 11, "XNYS", 0),
    ("2024-03-28", 17, "XNYS", 1),
    ("2023-11-24", 12, "XNYS", 0),  # a half day
    ("2023-11-24", 14, "XNYS", 1),
    ("2023-11-25", 23, None, 0),
])  # fmt: skip
def test_b26_the_bar_of_an_unfinished_session_is_left_out(date, hour, calendar, kept):
    bars = frame(days=[pd.Timestamp("2023-11-22"), pd.Timestamp(date)])
    now = pd.Timestamp(date).to_pydatetime().replace(hour=hour, tzinfo=NEW_YORK)
    for moment in (now, now.astimezone(UTC)):
        market = built(bars, calendar=calendar, now=moment)
        assert len(market.dates) == 1 + kept
        assert repairs(market) == ({} if kept else {"rows dropped, session not over": 3})


def test_dates_of_another_exchange_are_refused():
    every_day = frame(days=pd.date_range("2024-01-01", periods=30))
    refuses(lambda: built(every_day, calendar="XNYS"), "10 of its 30 dates", "2024-01-01", "XNYS", argument="calendar")
    tokyo = frame(days=pd.bdate_range("2024-01-09", periods=5).tz_localize("Asia/Tokyo"))
    refuses(lambda: built(tokyo, calendar="XNYS"), "UTC+09:00", "XNYS")
    assert len(built(tokyo, calendar="XTKS").dates) == 5
    utc = frame(days=pd.bdate_range("2024-01-09", periods=4).tz_localize("UTC"))
    assert len(built(utc, calendar="XNYS").dates) == 4
