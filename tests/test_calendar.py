from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
from made_bars import alone, built, frame, places, repairs
from numpy.testing import assert_array_equal

from finpod.errors import DataError, InputError
from finpod.market.calendar import NEW_YORK, sessions_of


def days(*dates):
    return np.array(dates, dtype="datetime64[ns]")


def test_sessions_know_holidays_half_days_and_the_clock():
    sessions = sessions_of("XNYS", *days("2023-11-20", "2023-11-27"))
    assert_array_equal(sessions.dates, days("2023-11-20", "2023-11-21", "2023-11-22", "2023-11-24", "2023-11-27"))
    assert [str(close)[11:16] for close in sessions.closes] == ["21:00", "21:00", "21:00", "18:00", "21:00"]
    assert [str(close)[11:16] for close in sessions.hours[:, 1]] == ["16:00", "16:00", "16:00", "13:00", "16:00"]
    assert sessions.offsets == {"-04:00", "-05:00"}
    assert len(sessions_of("XNYS", *days("2008-01-02", "2021-05-28")).dates) == 3376
    with pytest.raises(InputError, match=r"XTKS.*1990") as caught:
        sessions_of("XTKS", *days("1990-01-02", "1990-05-28"))
    assert caught.value.argument == "calendar"


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
    assert_array_equal(alone(bars, calendar="XNYS").close[:, 0], [100, 101, 100, 102, 101, 100])


@pytest.mark.parametrize(
    ("date", "hour", "calendar", "kept"),
    [
        ("2024-03-28", 11, "XNYS", 0),
        ("2024-03-28", 17, "XNYS", 1),
        ("2023-11-24", 12, "XNYS", 0),  # a half day
        ("2023-11-24", 14, "XNYS", 1),
        ("2023-11-25", 23, None, 0),
    ],
)
def test_b26_the_bar_of_an_unfinished_session_is_left_out(date, hour, calendar, kept):
    bars = frame(days=[pd.Timestamp("2023-11-22"), pd.Timestamp(date)])
    now = pd.Timestamp(date).to_pydatetime().replace(hour=hour, tzinfo=NEW_YORK)
    for moment in (now, now.astimezone(UTC)):
        market = built(bars, calendar=calendar, now=moment)
        assert len(market.dates) == 1 + kept
        kind = "rows dropped, session not over"
        assert repairs(market) == ({} if kept else {kind: 3})
        assert places(market, kind)[:1] == ([] if kept else [("AAA", date, "bar", "a bar", "dropped")])


def test_dates_of_another_exchange_are_refused():
    every_day = frame(days=pd.date_range("2024-01-01", periods=30))
    with pytest.raises(DataError, match=r"10 of its 30 dates, such as 2024-01-01.* XNYS") as caught:
        built(every_day, calendar="XNYS")
    assert caught.value.argument == "calendar"
    tokyo = frame(days=pd.bdate_range("2024-01-09", periods=5).tz_localize("Asia/Tokyo"))
    with pytest.raises(DataError, match=r"UTC\+09:00.* XNYS"):
        built(tokyo, calendar="XNYS")
    assert len(built(tokyo, calendar="XTKS").dates) == 5
    utc = frame(days=pd.bdate_range("2024-01-09", periods=4).tz_localize("UTC"))
    assert len(built(utc, calendar="XNYS").dates) == 4


def test_nothing_left_is_one_line():
    with pytest.raises(DataError, match="XNYS"):
        built(frame(), calendar="XNYS", now=datetime(2023, 1, 3, tzinfo=NEW_YORK))
