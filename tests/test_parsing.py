"""Dates, numbers and tickers from text."""

import numpy as np
import pandas as pd
import pytest
from made_bars import refuses
from numpy.testing import assert_array_equal

from finpod.market.parsing import decimal_mark, normal_ticker, parse_dates, parse_numbers, parse_tickers
from finpod.market.universe import static_members

JULY = np.array(["2024-01-02", "2024-07-02"], dtype="datetime64[ns]")
NEW_YORK = pd.Series(pd.DatetimeIndex(JULY).tz_localize("America/New_York"))
SEASONS = ("-04:00", "-05:00")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_b32_unit_of_dates(unit):
    days, *_ = parse_dates(pd.Series(pd.DatetimeIndex(["2024-01-02"]).as_unit(unit)), "a file")
    assert days.dtype == "datetime64[ns]"
    assert days.astype("datetime64[D]").astype(int)[0] == 19724
    assert days.astype("datetime64[s]").astype(int)[0] == 1704153600


@pytest.mark.parametrize(("stamps", "offsets"), [
    (NEW_YORK, SEASONS), (["2024-01-02T23:30:00+09:00", "2024-07-02T00:00:00+0900"], ("+09:00",)),
    (["2024-01-02T23:30:00.000Z", "2024-07-02 00:00 UTC"], ("+00:00",)),
    (pd.DatetimeIndex(["2024-01-02 16:00", "2024-07-02 16:00"]), ()),
    ([pd.Timestamp("2024-01-02").date(), pd.Timestamp("2024-07-02").date()], ()),
    (pd.PeriodIndex(["2024-01-02", "2024-07-02"], freq="D"), ()), (["2-Jan-24", "2-Jul-24"], ()),
    (["Jan 02, 2024", "July 2, 2024"], ()), (["20240102", "20240702"], ()),
    (["2024-01-02 12:30:30.5", "2024-07-02 4:30 PM"], ()),
])  # fmt: skip
def test_stamps_become_the_day_of_their_own_clock(stamps, offsets):
    days, *others = parse_dates(pd.Series(stamps), "a file")
    assert_array_equal(days, JULY)
    assert others == [set(offsets), ""]


@pytest.mark.parametrize("text", ["9:30 AM,12:00 PM,1:15 PM,3:59:30 pm", "14:30Z,17:00Z,18:15Z,20:59:30Z"])
def test_times_of_intraday_bars_are_those_of_new_york(text):
    days, *_ = parse_dates(pd.Series([f"2024-01-02 {time}" for time in text.split(",")]), "a file", calendar="XNYS")
    expected = [f"2024-01-02 {time}" for time in ("09:30", "12:00", "13:15", "15:59:30")]
    assert_array_equal(days, np.array(expected, dtype="datetime64[ns]"))


def test_a_day_that_begins_in_utc_is_the_day_of_the_exchange():
    stamps = pd.Series(pd.DatetimeIndex(JULY).tz_localize("Asia/Tokyo").tz_convert("UTC"))
    assert_array_equal(parse_dates(stamps, "a file", calendar="XTKS")[0], JULY)


def test_closes_of_three_exchanges_are_daily_bars():
    stamps = pd.Series(["2024-01-02 15:00+09:00", "2024-01-02 16:30Z", "2024-01-02 16:00-05:00"])
    days, offsets, _ = parse_dates(stamps, "a file", one=np.array([True, False, False]))
    assert (days[2], *days[:2]) == (np.datetime64("2024-01-02"),) * 3
    assert offsets == {"+09:00", "+00:00", "-05:00"}


@pytest.mark.parametrize(("text", "day_first", "expected"), [
    (["03/04/2024", "03/13/2024"], None, ["2024-03-04", "2024-03-13"]),
    (["03/04/2024", "13/04/2024"], None, ["2024-04-03", "2024-04-13"]),
    (["03/04/24", "30/04/68"], None, ["2024-04-03", "2068-04-30"]),
    (["12/8/2017 16:00:00", "12/11/2017 16:00:00"], False, ["2017-12-08", "2017-12-11"]),
])  # fmt: skip
def test_day_or_month_first_is_decided_by_the_whole_column(text, day_first, expected):
    days, _, reading = parse_dates(pd.Series(text), "a file", day_first=day_first)
    assert_array_equal(days, np.array(expected, dtype="datetime64[ns]"))
    assert reading == f"dates read {'day' if expected[0] == '2024-04-03' else 'month'} first, such as {text[0]}"


@pytest.mark.parametrize(("dates", "day_first", "wrong"), [
    ([45293], None, "45293"), ([20240102, 45293], None, "45293"),
    (["2024-01-02", "2024-02-30"], None, "'2024-02-30'"),
    (pd.Series(["2500-01-02"], dtype="datetime64[s]"), None, "2500-01-02"),
    (["2024-01-02 24:00"], None, "'2024-01-02 24:00'"), (["2024-01-02 16:00 EST"], None, "'2024-01-02 16:00 EST'"),
    (pd.DatetimeIndex(["2024-01-02", None]), None, "row 2"), (["03/04/2024", "05/06/2024"], None, "'03/04/2024'"),
    (["24/01/30", "24/01/31"], None, "'24/01/30'"), (["13/04/2024", "05/16/2024"], None, "'05/16/2024'"),
    (["03/04/2024", "03/13/2024"], True, "'03/13/2024'"),
])  # fmt: skip
def test_unreadable_dates_end_in_one_line(dates, day_first, wrong):
    refuses(lambda: parse_dates(pd.Series(dates), "a file", day_first=day_first), wrong)


def test_numbers_and_volumes_in_thousands_and_millions():
    for text in ("1,23", "1.2.3", "$", "abc", "1 23.5", "1.5M", "--1", "0x1F"):
        refuses(lambda text=text: parse_numbers(pd.Series(["1.5", text]), "close", "a file"), repr(text))
    text = pd.Series(["1.5M", "12K", "1,234", "-", "2.25B", "N/A", None])
    assert_array_equal(parse_numbers(text, "volume", "a file"), [1.5e6, 12e3, 1234, np.nan, 2.25e9, np.nan, np.nan])
    assert_array_equal(parse_numbers(pd.Series(["4:1", "1/2", "0,5"]), "split", "a file", ","), [4, 0.5, 0.5])


@pytest.mark.parametrize(("prices", "volumes", "mark"), [
    (["12,34", "1.234,50"], ["1.234.567"], ","), (["1.234"], ["12,345"], "."), (["0.345", "13"], ["100"], "."),
    (["999", "1.040"], ["12.345"], ","), (["1234,567"], [], ","), (["1\u00a0234,567", "1\u00a0234,5"], [], ","),
    (["1.0e+01"], ["1,234"], "."), ([None, "null"], ["1,5M"], ","),
])  # fmt: skip
def test_the_decimal_mark_is_what_all_numbers_show(prices, volumes, mark):
    columns = [(field, pd.Series(text, dtype=object)) for field, text in (("close", prices), ("volume", volumes))]
    assert decimal_mark(columns, None, "a file") == mark


def test_a_decimal_mark_that_stays_open_must_be_said():
    for text in ("1,234", "1.234"):
        columns = [("close", pd.Series(["999", text]))]
        refuses(lambda columns=columns: decimal_mark(columns, None, "a file"), repr(text), argument="decimal")
        assert decimal_mark(columns, ",", "a file") == ","


@pytest.mark.parametrize("label", ["../etc/passwd", "A/B/C", "$(reboot)", "A;B", "A B", "-A", "Ä"])
def test_a_ticker_with_a_path_separator_or_a_shell_character_is_refused(label):
    refuses(lambda: parse_tickers(pd.Series(["AAA", label]), "a file"), repr(label))
    refuses(lambda: static_members([label], sentence="a list"))


def test_words_for_a_missing_value_are_no_tickers_and_whole_numbers_are():
    for label in ("nan", "N/A", "", None):
        refuses(lambda label=label: parse_tickers(pd.Series(["AAA", label]), "a file"), "row 2")
    assert list(parse_tickers(pd.Series([10107.0, 14593.0]), "a file")[0]) == ["10107", "14593"]


@pytest.mark.parametrize(("label", "name"), [
    *(
        (" Aapl ", "AAPL"),
        ("brk.b", "BRK-B"),
        ("BRK/B", "BRK-B"),
        ("RCI.B.TO", "RCI-B.TO"),
        ("rci/b.to", "RCI-B.TO"),
    ),
    *(("BTC/usd", "BTC-USD"), ("0700.hk", "0700.HK"), (10107, "10107")),
    *((label, label) for label in ["VOD.L", "SAN.F", "7203.T", "600000.SS", "^GSPC", "ES=F", "BRK_B"]),
])  # fmt: skip
def test_g09_the_one_spelling_of_a_ticker(label, name):
    assert normal_ticker(label) == normal_ticker(name) == name
