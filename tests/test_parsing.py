import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal

from finpod.errors import DataError, InputError
from finpod.market.dates import parse_dates
from finpod.market.parsing import decimal_mark, normal_ticker, one_spelling, parse_numbers, parse_tickers
from finpod.market.universe import static_members

JULY = np.array(["2024-01-02", "2024-07-02"], dtype="datetime64[ns]")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_b32_unit_of_dates(unit):
    days = parse_dates(pd.Series(pd.DatetimeIndex(["2024-01-02"]).as_unit(unit))).days
    assert days.dtype == "datetime64[ns]"
    assert days.astype("datetime64[D]").astype(int)[0] == 19724
    assert days.astype("datetime64[s]").astype(int)[0] == 1704153600


@pytest.mark.parametrize(
    ("stamps", "offsets"),
    [
        (pd.Series(pd.DatetimeIndex(JULY).tz_localize("America/New_York")), ("-04:00", "-05:00")),
        (pd.Series(pd.DatetimeIndex(["2024-01-02 16:00", "2024-07-02 16:00"])), ()),
        (pd.Series(["2024-01-02 00:00:00-05:00", "2024-07-02 00:00:00-04:00"]), ("-04:00", "-05:00")),
        (pd.Series(["2024-01-02T23:30:00+09:00", "2024-07-02T00:00:00+0900"]), ("+09:00",)),
        (pd.Series([pd.Timestamp("2024-01-02").date(), pd.Timestamp("2024-07-02").date()]), ()),
        (pd.Series(["2024/01/02", "2024/7/2"]), ()),
        (pd.Series(["2-Jan-24", "2-Jul-24"]), ()),
        (pd.Series(["Jan 02, 2024", "July 2, 2024"]), ()),
        (pd.Series(["2 Jan 2024", "02 July 2024"]), ()),
        (pd.Series(["2024-01-02", "2024-07-02"], dtype="category"), ()),
        (pd.Series(["20240102", "20240702"]), ()),
        (pd.Series([20240102, 20240702]), ()),
        (pd.Series(["Jan 02, 24", "Jul 2, 24"]), ()),
        (pd.Series(pd.PeriodIndex(["2024-01-02", "2024-07-02"], freq="D")), ()),
        (pd.Series(["2024-01-02", "2024-07-02"], dtype=pd.ArrowDtype(pa.string())), ()),
        (pd.Series(JULY).astype(pd.ArrowDtype(pa.date32())), ()),
        (pd.Series(JULY).astype(pd.ArrowDtype(pa.timestamp("us"))), ()),
        (
            pd.Series(pd.DatetimeIndex(JULY).tz_localize("America/New_York")).astype(
                pd.ArrowDtype(pa.timestamp("us", tz="America/New_York"))
            ),
            ("-04:00", "-05:00"),
        ),
    ],
)
def test_stamps_become_the_day_of_their_own_clock(stamps, offsets):
    found = parse_dates(stamps)
    assert_array_equal(found.days, JULY)
    assert (found.offsets, found.reading) == (offsets, "")


@pytest.mark.parametrize(("unit", "scale"), [("seconds", 1), ("milliseconds", 10**3), ("nanoseconds", 10**9)])
@pytest.mark.parametrize("kind", [int, str])
def test_numbers_since_1970_are_stamps_in_utc(unit, scale, kind):
    dates = parse_dates(pd.Series([kind(day * scale) for day in JULY.astype("datetime64[s]").astype(int).tolist()]))
    assert_array_equal(dates.days, JULY)
    assert (dates.offsets, dates.reading) == (("+00:00",), f"dates read as {unit} since 1970, UTC")


def test_times_of_twelve_hours():
    text = [f"2024-01-02 {time}" for time in ("9:30 AM", "12:00 PM", "1:15 PM", "3:59:30 pm")]
    expected = [f"2024-01-02 {time}" for time in ("09:30", "12:00", "13:15", "15:59:30")]
    assert_array_equal(parse_dates(pd.Series(text)).days, np.array(expected, dtype="datetime64[ns]"))


@pytest.mark.parametrize(
    ("text", "day_first", "expected"),
    [
        (["03/04/2024", "03/13/2024"], None, ["2024-03-04", "2024-03-13"]),
        (["03/04/2024", "13/04/2024"], None, ["2024-04-03", "2024-04-13"]),
        (["03.04.24", "13.04.24"], None, ["2024-04-03", "2024-04-13"]),
        (["12/8/2017 16:00:00", "12/11/2017 16:00:00"], False, ["2017-12-08", "2017-12-11"]),
        (["03/04/2024"], True, ["2024-04-03"]),
        (["03/04/1999", "13/04/1999"], True, ["1999-04-03", "1999-04-13"]),
    ],
)
def test_day_or_month_first_is_decided_by_the_whole_column(text, day_first, expected):
    found = parse_dates(pd.Series(text), day_first=day_first)
    assert_array_equal(found.days, np.array(expected, dtype="datetime64[ns]"))
    day = "day" if found.days[0].astype("datetime64[D]").item().day == int(text[0].replace(".", "/")[:2]) else "month"
    assert found.reading == f"dates read {day} first, such as {text[0]}"


@pytest.mark.parametrize(
    ("dates", "day_first", "message"),
    [
        (pd.Series([45293]), None, "the date 45293 is a number"),
        (pd.Series([20240102, 45293]), None, "the date 45293 is a number"),
        (pd.Series([20240230]), None, "'20240230' is not a date"),
        (pd.Series(["2024-01-02", "01/03/2024"]), None, "'01/03/2024' is not a date"),
        (pd.Series(["2024-01-02", "2024-02-30"]), None, "'2024-02-30' is not a date"),
        (pd.Series(["2024-01-02", None]), None, "is not a date"),
        (pd.Series(pd.DatetimeIndex(["2024-01-02", None])), None, "'NaT' is not a date"),
        (pd.Series(["soon"]), None, "'soon' is not a date"),
        (
            pd.Series(["03/04/2024", "05/06/2024"]),
            None,
            "'03/04/2024' and all its other dates may be day first or month",
        ),
        (pd.Series(["13/04/2024", "05/16/2024"]), None, "'05/16/2024' cannot be read day first like '13/04/2024'"),
        (
            pd.Series(["03/04/2024", "03/13/2024"]),
            True,
            "'03/13/2024' cannot be read day first as day_first=(True|False) says",
        ),
        (
            pd.Series(["03/04/2024", "13/03/2024"]),
            False,
            "'13/03/2024' cannot be read month first as day_first=(True|False) says",
        ),
    ],
)
def test_unreadable_dates_end_in_one_line(dates, day_first, message):
    with pytest.raises(DataError, match=message) as caught:
        parse_dates(dates, day_first=day_first)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "decimal", "expected"),
    [
        (["$70.91", "$1,070.125", "-$3"], ".", [70.91, 1070.125, -3]),
        (["4,272,703", "12"], ".", [4272703, 12]),
        (["1.234,56", "0,5", "1.234.567"], ",", [1234.56, 0.5, 1234567]),
        (["1 234.5", "N/A", "", "-", "null"], ".", [1234.5, np.nan, np.nan, np.nan, np.nan]),
        (["1.5e-3", "+2"], ".", [0.0015, 2]),
        (["1", None], ".", [1, np.nan]),
        (["1.0e+01", "2.5E-1", "1e2"], ".", [10, 0.25, 100]),
        (["1,0e+01", "5"], ",", [10, 5]),
        (["€10.5", "$ 10.5", "10.5 €", "-£3", "¥1,000"], ".", [10.5, 10.5, 10.5, -3, 1000]),
        (["1 234,56", "1\u00a0234,56", "1\u202f234\u202f567,5"], ",", [1234.56, 1234.56, 1234567.5]),
        (["1'234.50", "1’234.50"], ".", [1234.5, 1234.5]),
        (["1.5", "#N/A", "None", "--", "."], ".", [1.5, np.nan, np.nan, np.nan, np.nan]),
    ],
)
def test_numbers_as_people_write_them(text, decimal, expected):
    assert_array_equal(parse_numbers(pd.Series(text), "close", "a file", decimal), expected)


@pytest.mark.parametrize(
    "text", ["1,23", "12,34,567", "1.2.3", "$", "abc", "1,234.5.6", "1 2", "1 23.5", "1.5M", "1,234 567", "--1", "0x1F"]
)
def test_what_is_no_number_is_named(text):
    with pytest.raises(DataError, match=r"is not a number; write it as 1234\.56"):
        parse_numbers(pd.Series(["1.5", text]), "close", "a file")


def test_volumes_in_thousands_and_millions():
    text = pd.Series(["1.5M", "12K", "1,234", "-", "2.25B"])
    assert_array_equal(parse_numbers(text, "volume", "a file"), [1.5e6, 12e3, 1234, np.nan, 2.25e9])


@pytest.mark.parametrize(
    ("prices", "volumes", "mark"),
    [
        (["12,34", "1.234,50"], ["1.234.567"], ","),
        (["$1,234.50"], ["4,272,703"], "."),
        (["1.234"], ["12,345"], "."),
        (["1,5"], ["100"], ","),
        (["12.345", "13"], ["100"], "."),
        (["1 234,56"], ["1 000"], ","),
        (["1\u00a0234,567", "1\u00a0234,5"], [], ","),
        (["1,0e+01"], [], ","),
        (["1.0e+01"], ["1,234"], "."),
        (["€ 10.50"], [], "."),
        ([None, "null"], ["1,5M"], ","),
    ],
)
def test_the_decimal_mark_is_what_all_numbers_show(prices, volumes, mark):
    assert (
        decimal_mark([pd.Series(prices, dtype=object), pd.Series(volumes, dtype=object)], [False, True], None, "a file")
        == mark
    )


def test_a_decimal_mark_that_stays_open_must_be_said():
    columns = [pd.Series(["1,234", "2,345"])]
    with pytest.raises(DataError, match=r"'1,234' may be a thousand with a comma or .*decimal='\.'"):
        decimal_mark(columns, [False], None, "a file")
    assert decimal_mark(columns, [False], ",", "a file") == ","


@pytest.mark.parametrize(
    "label",
    ["../etc/passwd", "A/B/C", "N/A:N", "A\\B", "$(reboot)", "A;B", "A B", "A|B", "`A`", "A&B", "-A", ".A", "Ä"],
)
def test_a_ticker_with_a_path_separator_or_a_shell_character_is_refused(label):
    with pytest.raises(DataError, match="cannot be a ticker") as caught:
        parse_tickers(pd.Series(["AAA", label]), "a file")
    assert repr(label) in str(caught.value)
    with pytest.raises(DataError, match="cannot be a ticker"):
        static_members([label], sentence="a list")


def test_tickers_of_the_world():
    labels = ["BRK-B", "BF-B", "^GSPC", "GC=F", "005930.KS", "BTC-USD", "ES_F", "NA", "NAN", "A"]
    assert list(parse_tickers(pd.Series([f" {label} " for label in labels]), "a file").names) == labels


@pytest.mark.parametrize("label", ["nan", "None", "null", "N/A", "<NA>", ""])
def test_a_word_for_a_missing_value_is_no_ticker(label):
    with pytest.raises(DataError, match="row 2 has no ticker"):
        parse_tickers(pd.Series(["AAA", label]), "a file")


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("aapl", "AAPL"),
        (" Aapl ", "AAPL"),
        ("brk.b", "BRK-B"),
        ("BRK/B", "BRK-B"),
        ("BRK-B", "BRK-B"),
        ("RCI.B.TO", "RCI-B.TO"),
        ("rci/b.to", "RCI-B.TO"),
        ("BTC/usd", "BTC-USD"),
        ("VOD.L", "VOD.L"),
        ("SAN.F", "SAN.F"),
        ("7203.T", "7203.T"),
        ("600000.SS", "600000.SS"),
        ("0700.hk", "0700.HK"),
        ("^gspc", "^GSPC"),
        ("es=f", "ES=F"),
        ("BRK_B", "BRK_B"),
        (10107, "10107"),
    ],
)
def test_g09_the_one_spelling_of_a_ticker(label, name):
    assert normal_ticker(label) == name
    assert normal_ticker(name) == name


def test_g09_other_classes_are_told_by_the_names_of_the_market():
    """V may be the TSX Venture or the voting shares of McCormick: the market that has MKC-V says which."""
    assert one_spelling(["MKC.V", "mkc-v", "ABC.V"]) == {"MKC.V": "MKC-V", "mkc-v": "MKC-V", "ABC.V": "ABC.V"}
    assert one_spelling(["BRK_B", "BRK.B"]) == {"BRK_B": "BRK-B", "BRK.B": "BRK-B"}
    assert normal_ticker("MKC-V", {"MKC.V"}) == "MKC.V"
    assert normal_ticker("MKC.V", {"MKC-V"}) == "MKC-V"
    assert normal_ticker("brk.b", {"BRK_B"}) == "BRK_B"
    assert normal_ticker("MKC.V", {"MKC"}) == "MKC.V"


def test_numbers_can_be_names():
    tickers = parse_tickers(pd.Series([10107.0, 14593.0, 10107.0]), "a file")
    assert list(tickers.names) == ["10107", "14593", "10107"]
    assert list(parse_tickers(pd.Series(["000001", "600000"]), "a file").names) == ["000001", "600000"]


def test_an_unknown_calendar_is_named():
    from finpod.market.calendar import sessions_of

    with pytest.raises(InputError, match="unknown calendar 'MARS'"):
        sessions_of("MARS", *JULY)
