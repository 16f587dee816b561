from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
from made_bars import alone, built, frame, places, repairs
from numpy.testing import assert_array_equal

from finpod.errors import DataError
from finpod.market.calendar import NEW_YORK, sessions_of


def days(*dates):
    return np.array(dates, dtype="datetime64[ns]")


def test_sessions_know_holidays_half_days_and_the_clock():
    found = sessions_of("XNYS", *days("2023-11-20", "2023-11-27"))
    assert_array_equal(found.dates, days("2023-11-20", "2023-11-21", "2023-11-22", "2023-11-24", "2023-11-27"))
    assert [str(close)[11:16] for close in found.closes] == ["21:00", "21:00", "21:00", "18:00", "21:00"]
    assert found.offsets == {"-04:00", "-05:00"}


def test_3376_sessions_between_2008_and_2021():
    assert len(sessions_of("XNYS", *days("2008-01-02", "2021-05-28")).dates) == 3376


def test_a_row_on_a_holiday_is_dropped_and_counted():
    bars = frame(days=pd.bdate_range("2024-01-02", "2024-01-31"))  # the 15th was Martin Luther King day
    market = built(bars, calendar="XNYS")
    assert len(market.dates) == 21
    assert not (market.dates == days("2024-01-15")).any()
    assert repairs(market) == {"rows dropped, not a session": 3}
    assert places(market, "rows dropped, not a session")[0] == ("AAA", "2024-01-15", "bar", "a bar", "dropped")
    assert len(built(bars, calendar=None).dates) == 22


def test_a_split_listed_for_a_holiday_falls_on_the_next_session():
    bars = frame(tickers=("AAA",), days=pd.bdate_range("2024-01-10", "2024-01-18"))
    bars["close"] = [400.0, 404, 400, 101, 102, 101, 100]
    bars = bars.assign(split=[0, 0, 0, 4, 0, 0, 0.0]).drop(columns=["open", "high", "low"])
    market = alone(bars, calendar="XNYS")
    assert_array_equal(market.close[:, 0], [100, 101, 100, 102, 101, 100])


def test_the_bar_of_a_half_day_is_finished_after_its_own_close():
    bars = frame(days=pd.to_datetime(["2023-11-22", "2023-11-24"]))
    noon, two = (datetime(2023, 11, 24, hour, tzinfo=NEW_YORK) for hour in (12, 14))
    assert len(built(bars, calendar="XNYS", now=noon).dates) == 1
    assert len(built(bars, calendar="XNYS", now=two).dates) == 2
    assert len(built(bars, calendar="XNYS", now=two.astimezone(UTC)).dates) == 2


def test_without_a_calendar_today_is_not_over():
    bars = frame(days=pd.to_datetime(["2023-11-24", "2023-11-25"]))
    market = built(bars, calendar=None, now=datetime(2023, 11, 25, 23, tzinfo=NEW_YORK))
    assert_array_equal(market.dates, days("2023-11-24"))


def test_dates_of_another_exchange_are_refused():
    every_day = frame(days=pd.date_range("2024-01-01", periods=30))
    with pytest.raises(
        DataError, match=r"10 of its 30 dates, such as 2024-01-01, are no sessions of XNYS; .*calendar="
    ):
        built(every_day, calendar="XNYS")
    tokyo = frame(days=pd.bdate_range("2024-01-09", periods=5).tz_localize("Asia/Tokyo"))
    with pytest.raises(DataError, match=r"stamps are at UTC\+09:00, not on the clock of XNYS"):
        built(tokyo, calendar="XNYS")
    assert len(built(tokyo, calendar="XTKS").dates) == 5
    utc = frame(days=pd.bdate_range("2024-01-09", periods=4).tz_localize("UTC"))
    assert len(built(utc, calendar="XNYS").dates) == 4


def test_nothing_left_is_one_line():
    with pytest.raises(DataError, match="holds no bar of a session of XNYS that is over"):
        built(frame(), calendar="XNYS", now=datetime(2023, 1, 3, tzinfo=NEW_YORK))
