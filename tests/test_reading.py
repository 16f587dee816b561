"""Awkward tables, files and folders are read or refused in one line."""

import resource
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_bars import DAYS, alone, closes, frame, places, refuses, repairs
from numpy.testing import assert_array_equal

from finpod import InputError, load_market
from finpod.market.calendar import sessions_of
from finpod.market.long_bars import RepairLog
from finpod.market.readers import read_table
from finpod.market.tidy import read_bars, ticker_of

HEADER = "Date,Open,High,Low,Close,Volume\n"
ROWS = "2024-01-02,10,11,9,10.5,100\n2024-01-03,10.5,12,10,11.5,200\n2024-01-04,11,12,10,11,300\n"


@pytest.fixture
def read(tmp_path):
    """Reads the text of a CSV as the bars of a file of the given name."""

    def bars(text, name="AAA.csv", **options):
        (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogateescape")
        return read_bars(tmp_path / name, **options)

    return bars


@pytest.mark.parametrize("word", ["null", "None", "NaN", "nan", "inf", "N/A", "#N/A", "-", "--", ""])
def test_g01_a_first_row_without_values_is_no_header(tmp_path, word):
    for name in ("AAA", "BBB"):
        (tmp_path / f"{name}.csv").write_text(HEADER + f"2023-12-29,{word},{word},{word},{word},{word}\n" + ROWS)
    bars = closes(read_bars(tmp_path))
    assert {ticker: values[1:] for ticker, values in bars.items()} == {
        name: [10.5, 11.5, 11] for name in ("AAA", "BBB")
    }
    assert not np.isfinite(bars["AAA"][0])


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_files_that_excel_writes_keep_their_opens(tmp_path, encoding):
    (tmp_path / "A.csv").write_text("Datum;Eröffnung;Schlusskurs\n2024-01-02;10;10,5\n;;\n;;\n", encoding=encoding)
    assert read_bars(tmp_path / "A.csv")[["open", "close"]].to_numpy().tolist() == [[10, 10.5]]


def test_times_may_have_their_own_column_and_files_a_month_in_their_name(read):
    for date in ("2024-01-02", "2024-01-02 {}:30"):  # the date may have the time as well
        lines = "".join(f"{date.format(hour)},{hour}:30,1\n" for hour in (10, 11, 12))
        bars = read("Date,Time,Close\n" + lines, "AAA-1h-2024-01.csv")
        assert [f"{day:%H:%M}" for day in bars["date"]] == ["10:30", "11:30", "12:30"]
        assert set(bars["ticker"]) == {"AAA"}


@pytest.mark.parametrize(("lines", "close"), [
    (["1.0e+01", "1.05E1"], [10, 10.5]), (["€10.5", "€1,010.5"], [10.5, 1010.5]), (["$ 10.5", "10.5 $"], [10.5, 10.5]),
    (["1 234,56", "10,5"], [1234.56, 10.5]), (["1.234,56", "-0,5"], [1234.56, -0.5]),
    (["1\u00a0234,56", "1\u202f000,5"], [1234.56, 1000.5]), (["1'234.5", "10.5"], [1234.5, 10.5]),
    (["", "10.5"], [np.nan, 10.5]),
])  # fmt: skip
def test_g02_styles_of_numbers_in_each_layout(read, lines, close):
    rows = list(zip(("2024-01-02", "2024-01-03"), lines, lines[::-1], strict=True))
    assert_array_equal(read("Date;Close\n" + "".join(f"{day};{value}\n" for day, value, _ in rows))["close"], close)
    both = np.array([close, close[::-1]]).T
    wide = read("Date;AAA;BBB\n" + "".join(f"{day};{value};{other}\n" for day, value, other in rows))
    long = read("date;ticker;close\n" + "".join(f"{day};AAA;{v}\n{day};BBB;{w}\n" for day, v, w in rows))
    for bars in (wide, long):
        assert_array_equal(bars["close"].to_numpy().reshape(2, 2), both)


@pytest.mark.parametrize("title", ["Apple", "Apple, Inc.", "Apple, Inc., daily bars, in dollars, adjusted, 2024"])
def test_a_title_above_the_header_is_skipped(read, title):
    assert closes(read(title + "\n" + HEADER + ROWS)) == closes(read(HEADER + ROWS))


LABELS = "tic Symbols Instrument Name code asset security sid permno underlying ticker_symbol stock_code <TICKER> isin"
NAMED = "date,{},close\n2024-01-02,AAA,1\n2024-01-02,BBB,10\n2024-01-03,AAA,2\n2024-01-03,BBB,20\n"


@pytest.mark.parametrize("label", LABELS.split())
def test_g04_spellings_of_the_column_of_tickers(read, label):
    for one, other in (("AAA", "BBB"), ("000001", "600000")):
        text = NAMED.format(label).replace("AAA", one).replace("BBB", other)
        assert closes(read(text)) == {one: [1, 2], other: [10, 20]}


@pytest.mark.parametrize("label", ["firm", "firm_id"])
def test_g04_a_column_of_unknown_meaning_is_asked_about(read, label):
    text = NAMED.format(label)
    text = text.replace("AAA", "1").replace("BBB", "2") if label == "firm_id" else text
    refuses(lambda: read(text), f"date, {label}, close", argument="ticker_column")
    log = RepairLog()
    assert len(closes(read(text, ticker_column=label.upper(), log=log))) == 2
    assert log.reading == [f"tickers read from {label}"]
    refuses(lambda: read(text, ticker_column="frim"), "'frim'", error=InputError, argument="ticker_column")


MOOD = "Date,Close,Mood\n2024-01-02,1,good\n2024-01-03,2,bad\n"
FORTH = "Date,Close\n2024-01-05,1\n2024-01-04,2\n2024-01-08,3\n2024-01-03,4\n"
TWO = "PERMNO,date,TICKER,PRC\n1,20240102,X,10\n1,20240103,X,11\n2,20240104,X,50\n2,20240105,X,51\n"
CHAIN = "date,ticker,close\n2024-01-02,A,1\n2024-01-03,A,2\n2024-01-04,B,10\n"


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (MOOD, {"ticker": "zzz"}, {"ZZZ": [1, 2]}),
        (MOOD.replace("Mood", "Change %"), {}, {"AAA": [1, 2]}),
        (FORTH, {"ticker": "AAA"}, {"AAA": [4, 2, 1, 3]}),
        (TWO, {"ticker_column": "permno"}, {"1": [10, 11], "2": [50, 51]}),
        (TWO, {"ticker_column": "TICKER"}, {"X": [10, 11, 50, 51]}),
        (CHAIN.replace("B", "a"), {"ticker": "ZZZ"}, {"ZZZ": [1, 2, 10]}),
        ("Date,Price\n2024-01-02,1\n2024-01-03,2\n", {}, {"AAA": [1, 2]}),
        ("Date,Close,\n2024-01-02,1,\n2024-01-03,2,\n", {}, {"AAA": [1, 2]}),
        ("Date,Close\n2024-01-02,1,\n2024-01-03,2,\n", {}, {"AAA": [1, 2]}),
        (",Date,AAA,BBB\n0,2024-01-02,1,3\n1,2024-01-03,2,4\n", {}, {"AAA": [1, 2], "BBB": [3, 4]}),
        ("ticker,date,close\nCOIN,2024-01-02,1\nCOIN,2024-01-03,2\n", {}, {"COIN": [1, 2]}),
        ("date,ticker,close\n2024-01-02,TRUE,1\n2024-01-03,TRUE,2\n", {}, {"TRUE": [1, 2]}),
        ("Date,OPEN,T,A\n2024-01-02,1,3,5\n2024-01-03,2,4,6\n", {}, {"A": [5, 6], "OPEN": [1, 2], "T": [3, 4]}),
        ("date,close,adjusted\n2024-01-02,1,True\n2024-01-03,2,True\n", {}, {"AAA": [1, 2]}),
    ],
)
def test_g04_g23_what_is_read(read, text, options, expected):
    bars = read(text, **options)
    assert closes(bars) == expected
    assert "adj_close" not in bars


@pytest.mark.parametrize(("text", "argument", "words"), [
    (MOOD, "ticker_column", ["Mood"]), (FORTH, "ticker_column", ["2024-01-08", "Date, Close"]),
    (FORTH.replace("08,3", "05,3"), "ticker_column", ["2024-01-05"]), (TWO, "ticker_column", ["TICKER", "PERMNO", "X"]),
    ("Date,AAA,AAA\n2024-01-02,1,2\n", None, ["AAA"]),
    ("Date,BRK.B,BRK-B\n2024-01-02,1,\n2024-01-03,,2\n", None, ["BRK.B", "BRK-B"]),
    ("date,close,Close\n2024-01-02,1,2\n", None, ["close"]), (HEADER, None, ["no bar"]), (ROWS, None, ["looks like values"]),
    ("Open,Close\n1,2\n", None, ["Open, Close"]),
    ("Date,Open,Volume,VWAP\n2024-01-02,1,2,3\n", None, ["Open, Volume, VWAP"]),
    ("Date,OPEN,LOW,AAPL\n2024-01-02,1,2,3\n", None, ["see OPEN, LOW", "see AAPL"]),
    ("Date,AAPL,LAST\n2024-01-02,1,2\n", None, ["see LAST", "see AAPL"]),
    ("Date,AAPL,AAPL_vol\n2024-01-02,1,2\n", None, ["see AAPL_vol", "see AAPL"]),
    ("Date,,AAA\n2024-01-02,1.5,2\n", None, ["unnamed column"]),
    ("Price,Close\nTicker,AAPL US Equity\n2024-01-02,1\n", None, ["'AAPL US Equity'"]),
    (",Open,Close,Volume\n,USD,USD,shares\n2024-01-02,1,2,3\n", None, ["no date"]),
    ("<!DOCTYPE html><p>429</p>\n", None, ["HTML or JSON"]), ("", None, ["it is empty"]), ("\0\1\2", None, ["UTF-8"]),
    ("date,ticker,close\n2024-01-02,AAA,1,7\n", None, ["3 columns", "2024-01-02,AAA,1,7"]),
    ("Apple, Inc.\nDay,Close\n2024-01-02,1,1\n", None, ["Expected 2 columns", "delete titles above its header"]),
    (HEADER + ROWS + "Source: Yahoo\n", None, ["Source: Yahoo", "notes below its bars"]),
    (HEADER + ROWS + "Total,1,1,1,1,1\n", None, ["'Total'", "delete the row"]),
    ("date,name,close\n2024-01-02,Nestl\udc81,1\n", None, ["save it as UTF-8"]),
    ("Date,Time,Close\n2024-01-02,1030,1\n2024-01-02,1130,2\n", "ticker_column", ["Date, Time, Close"]),
])  # fmt: skip
def test_g04_g09_g23_what_cannot_be_read_ends_in_one_line(read, text, argument, words):
    refuses(lambda: read(text), *words, argument=argument)


def test_g04_ticker_is_for_one_asset(read):
    for text in (CHAIN, "Date,AAA,BBB\n2024-01-02,1,2\n"):
        refuses(lambda text=text: read(text, ticker="ZZZ"), "'ZZZ'", error=InputError, argument="ticker")


def test_g09_spellings_of_one_ticker_are_one_asset():
    log = RepairLog()
    spellings = {"AAPL": ["aapl", "Aapl", "AAPL"], "BRKB": ["BRK.B", "BRK-B", "brk/b"], "VOD": ["VOD.L"]}
    parts = [frame(tickers=(t,)).assign(ticker=[s[i % len(s)] for i in range(5)]) for t, s in spellings.items()]
    bars = read_bars(pd.concat(parts, ignore_index=True), log=log)
    assert closes(bars) == {ticker: [100, 101, 102, 103, 104] for ticker in ("AAPL", "BRK-B", "VOD.L")}
    assert log.reading == ["tickers in one spelling: Aapl as AAPL, BRK.B as BRK-B, aapl as AAPL, brk/b as BRK-B"]


def test_g09_members_and_benchmark_are_found_under_any_spelling(tmp_path):
    bars = frame(tickers=("BRK.B", "aapl", "VOD.L", "qqq"))
    path = tmp_path / "members.csv"
    path.write_text("ticker,from,to_exclusive\nbrk-b,2020-01-01,\nAAPL,2020-01-01,2024-01-04\nvod.l,2020-01-01,\n")
    market = load_market(bars, members=path, benchmark="Qqq")
    assert market.tickers == ("AAPL", "BRK-B", "VOD.L")
    assert market.manifest["missing"] == []
    assert_array_equal(market.member[:, 0], [True, True, False, False, False])
    assert market.member[:, 1:].all()
    listed = load_market(bars, members=["BRK/B", "vod.l", "BRK.B"], benchmark="QQQ")
    assert (listed.tickers, listed.benchmark) == (("BRK-B", "VOD.L"), "QQQ")


def test_g09_two_files_of_one_ticker_are_one_series_or_refused(tmp_path):
    for name, days in (("aaa", DAYS[:2]), ("AAA", DAYS[2:])):
        frame(tickers=("X",), days=days).drop(columns="ticker").to_csv(tmp_path / f"{name}.csv", index=False)
    log = RepairLog()
    assert closes(read_bars(tmp_path, log=log)) == {"AAA": [100, 101, 100, 101, 102]}
    assert log.reading == ["tickers in one spelling: aaa as AAA", "AAA joined from AAA.csv and aaa.csv"]
    frame(tickers=("X",), close=7.0).drop(columns="ticker").to_csv(tmp_path / "aaa.csv", index=False)
    refuses(lambda: read_bars(tmp_path), "AAA on 2024-01-04, in its files AAA.csv and aaa.csv")


def test_g23_what_is_left_out_is_told(read):
    log = RepairLog()
    read("Date,Close,Foo,Bar,VWAP\n2024-01-02,1,5,6,1\n2024-01-03,2,6,7,2\n", log=log)
    read("Date,Last\n2024-01-02,1\n", log=log)
    assert log.reading == ["columns left out: Foo, Bar", "closes read from Last"]


def test_a_header_with_a_close_in_both_levels_is_refused():
    table = pd.DataFrame([[1.0, 2.0]], index=DAYS[:1])
    table.columns = pd.MultiIndex.from_tuples([("close", "CLOSE"), ("close", "AAA")])
    refuses(lambda: read_bars(table), "(field, ticker)", "(ticker, field)")
    assert closes(read_bars(table.rename_axis(["field", "ticker"], axis=1))) == {"AAA": [2], "CLOSE": [1]}


def test_b21_equal_rows_are_dropped_by_date_not_by_value():
    days = pd.to_datetime(["2023-06-28", "2023-06-29", "2023-06-30", "2023-06-30"])
    market = alone(pd.DataFrame({"date": days, "ticker": "AAA", "close": [60.52, 60.52, 60.19, 60.19]}))
    assert list(market.close[:, 0]) == [60.52, 60.52, 60.19]
    assert repairs(market) == {"duplicate rows dropped": 1}
    assert places(market, "duplicate rows dropped") == [("AAA", "2023-06-30", "bar", "given twice", "once")]
    refuses(lambda: read_bars(pd.concat([frame(), frame().tail(1).assign(close=1.0)])), "QQQ on 2024-01-08")


def test_a_folder_of_files_of_one_asset_each(tmp_path):
    pd.concat([frame(tickers=("AAA",))] * 2).to_csv(tmp_path / "AAA.csv", index=False)
    frame(tickers=("QQQ",)).drop(columns="ticker").to_parquet(tmp_path / "QQQ.parquet")
    (tmp_path / ".hidden.csv").write_text("not a price")
    refuses(lambda: load_market(tmp_path, ticker="AAA"), error=InputError, argument="ticker")
    market = load_market(tmp_path)
    assert (market.title, market.tickers, market.benchmark) == (tmp_path.name, ("AAA",), "QQQ")
    assert repairs(market) == {"duplicate rows dropped": 5}


def test_no_market_and_an_empty_folder(tmp_path):
    refuses(lambda: read_bars(tmp_path / "nowhere.csv"), "nowhere.csv", error=InputError, argument="market")
    refuses(lambda: read_bars(tmp_path), "no parquet or CSV", error=InputError, argument="path")
    refuses(lambda: read_table(tmp_path / "bars.xls"), "bars.xls", error=InputError)
    frame().to_parquet(tmp_path / "bars.parquet")
    whole = (tmp_path / "bars.parquet").read_bytes()
    for length in (0, len(whole) // 2):
        (tmp_path / "bars.parquet").write_bytes(whole[:length])
        refuses(lambda: load_market(tmp_path / "bars.parquet"), "bars.parquet")


@pytest.mark.parametrize("name", ["AAPL.csv", "daily_AAPL.csv", "AAPL_1d_2020.csv"])
def test_the_ticker_in_the_name_of_a_file(name):
    assert ticker_of(Path(name)) == "AAPL"
    for whole in ("BRK_B.csv", "^GSPC.csv", "aapl.csv", "0700.HK.csv"):
        assert ticker_of(Path(whole)) == whole.removesuffix(".csv")
    refuses(lambda: ticker_of(Path("$HOME.csv")), "$HOME", argument="ticker")


@pytest.mark.parametrize(
    ("names", "days", "seconds"), [(100, 1000, 10), pytest.param(2500, 4000, 120, marks=pytest.mark.slow)]
)
def test_many_rows_in_reasonable_time_and_memory(tmp_path, names, days, seconds):
    """Ten million rows of seven numbers are 0.56 GB; reading and cleaning them takes under eight times that."""
    random = np.random.default_rng(0)
    dates = sessions_of("XNYS", np.datetime64("2000-01-01", "ns"), np.datetime64("2020-12-31", "ns")).dates[:days]
    close = np.exp(random.normal(0, 0.02, (names, days)).cumsum(axis=1)) * 50
    columns = {"open": 1.0, "high": 1.01, "low": 0.99, "close": 1.0, "adj_close": 0.9}
    tickers = pd.Categorical.from_codes(np.repeat(np.arange(names)[::-1], days), [f"N{i}" for i in range(names)])
    numbers = {name: (close * times).ravel() for name, times in columns.items()}
    volume = random.integers(1, 10**6, names * days)
    bars = pd.DataFrame({"date": np.tile(dates, names), "ticker": tickers, **numbers, "volume": volume})
    bars.to_parquet(tmp_path / "bars.parquet")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    market = load_market(tmp_path / "bars.parquet", benchmark="N0")
    assert time.perf_counter() - begin < seconds
    assert market.shape == (days, names - 1)
    assert market.has_bar.all()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < max(8 * names * days * 7 * 8, 200e6)
