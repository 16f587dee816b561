"""Awkward tables are read or refused in one line: tickers, layouts, dates and numbers."""

import io
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from made_bars import DAYS, frame
from numpy.testing import assert_array_equal

from finpod.errors import DataError, FinpodError, InputError
from finpod.market.load import load_market
from finpod.market.long_bars import RepairLog
from finpod.market.readers import read_bars
from finpod.market.tidy import tidy_bars
from finpod.market.universe import read_members

HEADER = "Date,Open,High,Low,Close,Volume\n"
ROWS = "2024-01-02,10,11,9,10.5,100\n2024-01-03,10.5,12,10,11.5,200\n2024-01-04,11,12,10,11,300\n"
LONG = pd.DataFrame(
    {"close": [1.0, 10, 2, 20, 3, 30], "open": [1.0, 11, 2, 22, 3, 33]},
    index=pd.MultiIndex.from_product([DAYS[:3], ["AAA", "BBB"]], names=["date", "ticker"]),
)
"""Three days of AAA and of BBB, which is ten times as dear."""


@pytest.fixture
def read(tmp_path):
    """Reads the text of a CSV as the bars of a file of the given name."""

    def bars(text, name="AAA.csv", **options):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return read_bars(tmp_path / name, **options)

    return bars


def closes(bars):
    """Ticker -> closes in order of date."""
    return {ticker: part["close"].tolist() for ticker, part in bars.groupby("ticker", observed=True)}


def refuses(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("word", ["null", "None", "NaN", "nan", "inf", "N/A", "#N/A", "-", "--", ""])
def test_g01_a_first_row_without_values_is_no_header(read, word):
    bars = read(HEADER + f"2023-12-29,{word},{word},{word},{word},{word}\n" + ROWS)
    assert bars["ticker"].cat.categories.tolist() == ["AAA"]
    assert len(bars) == 4
    assert_array_equal(bars["close"][1:], [10.5, 11.5, 11])
    assert not np.isfinite(bars["close"][0])


def test_g01_two_such_files_in_a_folder_are_two_names(tmp_path):
    for name, times in (("AAA", 1), ("BBB", 7)):
        bars = frame(tickers=("X",), close=100.0 * times).drop(columns=["ticker", "open", "high", "low"])
        bars.astype(object).mask(bars["date"] == DAYS[0], "null").assign(date=bars["date"]).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    market = load_market(tmp_path, benchmark=None)
    assert market.tickers == ("AAA", "BBB")
    assert_array_equal(market.close, np.vstack([[np.nan, np.nan], np.tile([100.0, 700.0], (4, 1))]))


@pytest.mark.parametrize(
    ("lines", "close"),
    [
        (["1.0e+01", "1.05E1"], [10, 10.5]),
        (["€10.5", "€1,010.5"], [10.5, 1010.5]),
        (["$ 10.5", "10.5 $"], [10.5, 10.5]),
        (["1 234,56", "10,5"], [1234.56, 10.5]),
        (["1\u00a0234,56", "1\u202f000,5"], [1234.56, 1000.5]),
        (["1'234.5", "10.5"], [1234.5, 10.5]),
        (["", "10.5"], [np.nan, 10.5]),
    ],
)
def test_g02_styles_of_numbers_in_each_layout(read, lines, close):
    other = lines[::-1]
    days = ("2024-01-02", "2024-01-03")
    one = read("Date;Close\n" + "".join(f"{d};{v}\n" for d, v in zip(days, lines, strict=True)))
    assert_array_equal(one["close"], close)
    wide = read("Date;AAA;BBB\n" + "".join(f"{d};{v};{w}\n" for d, v, w in zip(days, lines, other, strict=True)))
    both = np.array([close, close[::-1]]).T
    assert_array_equal(wide["close"].to_numpy().reshape(2, 2), both)
    rows = "".join(f"{d};AAA;{v}\n{d};BBB;{w}\n" for d, v, w in zip(days, lines, other, strict=True))
    assert_array_equal(read("date;ticker;close\n" + rows)["close"].to_numpy().reshape(2, 2), both)


@pytest.mark.parametrize("levels", [["date", "ticker"], [None, None], ["dt", "firm_id"], ["Date", None]])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("kind", ["text", "numbers"])
def test_g03_dates_and_names_in_the_row_index(tmp_path, levels, swapped, kind):
    table = LONG if kind == "text" else LONG.rename({"AAA": 10107, "BBB": 14593}, level=1)
    table = table.rename_axis(levels)
    table = table.swaplevel().sort_index() if swapped else table
    table.to_parquet(tmp_path / "bars.parquet")
    names = ("AAA", "BBB") if kind == "text" else ("10107", "14593")
    for bars in (tidy_bars(table), read_bars(tmp_path / "bars.parquet")):
        assert closes(bars) == {names[0]: [1, 2, 3], names[1]: [10, 20, 30]}
        assert_array_equal(bars["open"], LONG["open"])


@pytest.mark.parametrize("label", ["ticker", "Symbol", None, "level_1"])
def test_g03_an_index_of_tickers_alone(tmp_path, label):
    table = LONG.reset_index("date").rename_axis(label)
    table.to_parquet(tmp_path / "bars.parquet")
    table.to_csv(tmp_path / "bars.csv")
    for bars in (tidy_bars(table), read_bars(tmp_path / "bars.parquet"), read_bars(tmp_path / "bars.csv")):
        assert closes(bars) == {"AAA": [1, 2, 3], "BBB": [10, 20, 30]}


WIDE = LONG["close"].unstack()
STACKED = {
    "stack": WIDE.stack(),
    "stack, no names": WIDE.rename_axis(None).rename_axis(None, axis=1).stack().to_frame(),
    "stack, index reset": WIDE.rename_axis(None).rename_axis(None, axis=1).stack().reset_index(),
    "unstack": LONG.unstack(),
    "unstack, other order": LONG.unstack().swaplevel(axis=1).sort_index(axis=1),
    "unstack, index reset": LONG.unstack().reset_index(),
    "concat of names": pd.concat({name: LONG.xs(name, level=1) for name in ("AAA", "BBB")}),
    "concat of names by column": pd.concat({name: LONG.xs(name, level=1) for name in ("AAA", "BBB")}, axis=1),
    "concat of names, dates a column": pd.concat(
        {name: LONG.xs(name, level=1).reset_index() for name in ("AAA", "BBB")}
    ),
    "rows picked": LONG.reset_index().iloc[[5, 1, 0, 2, 4, 3]],
    "columns called Ticker": WIDE.rename_axis("Ticker", axis=1),
    "categories in the header": WIDE.set_axis(pd.CategoricalIndex(["AAA", "BBB"], name="ticker"), axis=1),
    "categories in the index": LONG.set_index(LONG.index.set_levels(pd.CategoricalIndex(["AAA", "BBB"]), level=1)),
    "index set and kept": LONG.reset_index().set_index("date", drop=False),
}


@pytest.mark.filterwarnings("ignore:.*column names of mixed type:UserWarning")
@pytest.mark.parametrize("table", STACKED)
def test_g03_what_pandas_makes_of_a_table(tmp_path, table):
    made = STACKED[table]
    made = made.to_frame() if isinstance(made, pd.Series) else made
    made.to_parquet(tmp_path / "bars.parquet")
    for bars in (tidy_bars(made), read_bars(tmp_path / "bars.parquet")):
        assert closes(bars) == {"AAA": [1, 2, 3], "BBB": [10, 20, 30]}
    assert load_market(STACKED[table], benchmark="BBB").tickers == ("AAA",)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (WIDE.T, r"has dates in its header; turn it \(frame\.T\)"),
        (LONG.unstack().stack([0, 1]).to_frame(), "one value a row, with its field in the column"),
        (LONG.reset_index().melt(["date", "ticker"]), "one value a row, with its field in the column 'variable'"),
        (LONG.unstack().stack(0), "one value a row, with its field in the column ''"),
        (LONG.xs("AAA", level=1).stack().to_frame(), "one value a row, with its field in the column ''"),
        (LONG.xs("AAA", level=1).melt(ignore_index=False), "one value a row, with its field in the column 'variable'"),
        (pd.concat({day: LONG.xs("AAA", level=1).reset_index(drop=True) for day in DAYS}), "which may hold tickers"),
        (
            LONG.rename({"AAA": 9, "BBB": 10}, level=1).rename_axis(["date", "hour"]),
            "no column ticker. Its columns are date, hour",
        ),
        (LONG.xs("AAA", level=1).rename_axis("ticker", axis=1), "by its columns open, close, and as closes by ticker"),
        (pd.concat({"x": LONG.unstack()}, axis=1), "a header of 3 levels; keep two"),
        (pd.DataFrame(), "no column date"),
        (LONG.reset_index().assign(Date=DAYS[0]), "two columns for date, date and Date, which differ"),
        (LONG.reset_index().assign(timestamp=DAYS[0]).set_index("timestamp"), "two columns for date"),
        (LONG.unstack().set_axis(["AAA", "AAA", "BBB", "BBB"], axis=1), "two columns for AAA"),
    ],
)
def test_g03_what_pandas_makes_and_finpod_refuses(table, message):
    refuses(lambda: tidy_bars(table), DataError, message)


NAMED = "date,{},close\n2024-01-02,AAA,1\n2024-01-02,BBB,10\n2024-01-03,AAA,2\n2024-01-03,BBB,20\n"


LABELS = """tic symbol Symbols instrument Name code asset security sid permno underlying ticker_symbol TickerSymbol ts_code
stock_code Stock asset_id <TICKER> RIC isin Company"""


@pytest.mark.parametrize(
    "label",
    LABELS.split(),
)
@pytest.mark.parametrize("numbers", [False, True])
def test_g04_spellings_of_the_column_of_tickers(read, label, numbers):
    text = NAMED.format(label)
    names = ("000001", "600000") if numbers else ("AAA", "BBB")
    bars = read(text.replace("AAA", names[0]).replace("BBB", names[1]))
    assert closes(bars) == {names[0]: [1, 2], names[1]: [10, 20]}


@pytest.mark.parametrize("label", ["firm", "Emittent", "what", "firm_id"])
def test_g04_a_column_of_unknown_meaning_is_asked_about(read, label):
    text = NAMED.format(label)
    text = text.replace("AAA", "1").replace("BBB", "2") if label == "firm_id" else text
    asks = (
        f"a column {label} of unknown meaning, which may hold tickers. Its columns are date, {label}, close; name the"
    )
    refuses(lambda: read(text), DataError, asks)
    assert len(closes(read(text, ticker_column=label))) == 2
    log = RepairLog()
    read(text, ticker_column=label.upper(), log=log)
    assert log.reading == [f"tickers read from {label}"]
    refuses(
        lambda: read(text, ticker_column="frim"), InputError, f"ticker_column is 'frim'.*choose one of {label}, close"
    )
    table = pd.read_csv(io.StringIO(text))
    assert load_market(table, ticker_column=label, benchmark=None).shape[1] == 2


def test_g04_text_of_unknown_meaning_needs_ticker(read):
    text = "Date,Close,Mood\n2024-01-02,1,good\n2024-01-03,2,bad\n"
    refuses(lambda: read(text), DataError, "a column Mood of unknown meaning")
    assert closes(read(text, ticker="zzz")) == {"ZZZ": [1, 2]}
    for known in ("Currency", "Exchange", "Period", "notes", "Change %"):
        assert closes(read(text.replace("Mood", known))) == {"AAA": [1, 2]}


@pytest.mark.parametrize(
    ("days", "message"),
    [
        (("02", "02", "03", "03"), "dates that repeat, such as 2024-01-02"),
        (("02", "03", "02", "03"), "dates that repeat, such as 2024-01-02"),
        (("02", "03", "04", "04"), "dates that repeat, such as 2024-01-04"),
        (("04", "05", "02", "03"), "dates that run back and forth, such as at 2024-01-02"),
        (("05", "04", "08", "03"), "dates that run back and forth, such as at 2024-01-08"),
    ],
)
def test_g04_dates_that_repeat_or_run_back_and_forth_are_several_names(read, days, message):
    text = "Date,Close\n" + "".join(f"2024-01-{day},{number}\n" for number, day in enumerate(days))
    refuses(
        lambda: read(text), DataError, f"{message}, so it may hold several names. Its columns are Date, Close; name"
    )
    if len(set(days)) == 4:
        assert len(read(text, ticker="AAA")) == 4


def test_g04_a_ticker_of_two_securities_is_asked_about(read):
    text = "PERMNO,date,TICKER,PRC\n1,20240102,X,10\n1,20240103,X,11\n2,20240104,X,50\n2,20240105,X,51\n"
    refuses(
        lambda: read(text), DataError, "by TICKER and by PERMNO, and TICKER X has two of the latter, 1 and 2; say with"
    )
    assert closes(read(text, ticker_column="permno")) == {"1": [10, 11], "2": [50, 51]}
    assert closes(read(text, ticker_column="TICKER")) == {"X": [10, 11, 50, 51]}


def test_g04_ticker_is_for_one_name(read):
    for text in (NAMED.format("ticker"), "Date,AAA,BBB\n2024-01-02,1,2\n"):
        refuses(lambda text=text: read(text, ticker="ZZZ"), InputError, "ticker is 'ZZZ', and AAA.csv holds 2 names")
    assert closes(read("Date,AAA\n2024-01-02,1\n", ticker="zzz")) == {"ZZZ": [1]}
    assert closes(
        read(
            NAMED.format("ticker").replace("BBB", "aaa").replace("02,aaa", "04,aaa").replace("03,aaa", "05,aaa"),
            ticker="ZZZ",
        )
    ) == {"ZZZ": [1, 2, 10, 20]}
    assert closes(tidy_bars(LONG.xs("AAA", level=1, drop_level=False), ticker="zzz")) == {"ZZZ": [1, 2, 3]}


ARROW = {
    "date32": pa.date32(),
    "naive": pa.timestamp("us"),
    "New York": pa.timestamp("us", tz="America/New_York"),
    "UTC": pa.timestamp("ns", tz="UTC"),
    "text": pa.string(),
}


@pytest.mark.parametrize("dates", ARROW)
@pytest.mark.parametrize("index", [False, True])
def test_g08_arrow_dtypes(tmp_path, dates, index):
    table = LONG.reset_index()
    kind = ARROW[dates]
    stamps = table["date"].dt.tz_localize(kind.tz) if pa.types.is_timestamp(kind) and kind.tz else table["date"]
    table["date"] = pd.Series(pd.array(pa.array(stamps).cast(kind), dtype=pd.ArrowDtype(kind)))
    table["ticker"] = table["ticker"].astype(pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string())))
    table["close"] = table["close"].astype("double[pyarrow]")
    table["open"] = table["open"].astype("int64[pyarrow]")
    table = table.set_index(["date", "ticker"]) if index else table
    table.to_parquet(tmp_path / "bars.parquet")
    for bars in (tidy_bars(table), read_bars(tmp_path / "bars.parquet")):
        assert closes(bars) == {"AAA": [1, 2, 3], "BBB": [10, 20, 30]}
        assert_array_equal(bars["date"].to_numpy(), np.repeat(DAYS[:3].to_numpy(), 2))
        assert bars["open"].dtype == "float64"
    assert load_market(table, benchmark=None).tickers == ("AAA", "BBB")


def test_g08_other_dtypes_of_numbers():
    table = LONG.reset_index()
    for values in (table["close"].astype("Float64"), table["close"].astype("Int64"), table["close"].map(Decimal)):
        assert closes(tidy_bars(table.assign(close=values)))["BBB"] == [10, 20, 30]
    decimals = pd.Series(pa.array([Decimal("1.5")] * 6, pa.decimal128(10, 2)).to_pandas(types_mapper=pd.ArrowDtype))
    assert closes(tidy_bars(table.assign(close=decimals)))["BBB"] == [1.5] * 3


def spelled(**names):
    """Bars of AAA, ... under the given spellings, in turn by session."""
    parts = []
    for ticker, spellings in names.items():
        bars = frame(tickers=(ticker,))
        parts.append(bars.assign(ticker=[spellings[i % len(spellings)] for i in range(len(bars))]))
    return pd.concat(parts, ignore_index=True)


def test_g09_spellings_of_one_name_are_one_name():
    log = RepairLog()
    bars = tidy_bars(spelled(AAPL=["aapl", "Aapl", "AAPL"], BRKB=["BRK.B", "BRK-B", "brk/b"], VOD=["VOD.L"]), log=log)
    assert list(bars["ticker"].cat.categories) == ["AAPL", "BRK-B", "VOD.L"]
    assert_array_equal(bars["close"][bars["ticker"] == "BRK-B"], [100, 101, 102, 103, 104])
    assert log.reading == ["names in one spelling: Aapl as AAPL, BRK.B as BRK-B, aapl as AAPL, brk/b as BRK-B"]


@pytest.mark.parametrize("equal", [True, False])
def test_g09_two_spellings_with_a_bar_on_one_day_are_refused(equal):
    bars = pd.concat([frame(tickers=("AAA", "BRK.B")), frame(tickers=("BRK-B", "AAA"))], ignore_index=True)
    if equal:
        bars["close"] = 100.0
    with pytest.raises(DataError, match=r"BRK-B and BRK\.B are one name, BRK-B, and both have a bar on 2024-01-02"):
        tidy_bars(bars[bars["ticker"].str.startswith("BRK")])


def test_g09_members_and_benchmark_are_found_under_any_spelling(tmp_path):
    bars = frame(tickers=("BRK.B", "aapl", "MKC.V", "qqq"))
    path = tmp_path / "members.csv"
    path.write_text("ticker,from,to_exclusive\nbrk-b,2020-01-01,\nAAPL,2020-01-01,2024-01-04\nMKC-V,2020-01-01,\n")
    assert list(read_members(path).tickers) == ["BRK-B", "AAPL", "MKC-V"]
    market = load_market(bars, members=path, benchmark="Qqq")
    assert market.tickers == ("AAPL", "BRK-B", "MKC.V")
    assert market.manifest["missing"] == []
    assert_array_equal(market.member[:, 0], [True, True, False, False, False])
    assert market.member[:, 1:].all()
    listed = load_market(bars, members=["BRK/B", "mkc-v", "BRK.B"], benchmark="QQQ")
    assert listed.tickers == ("BRK-B", "MKC.V")
    assert listed.manifest["membership"].startswith("static list of 2 names")
    assert listed.benchmark == "QQQ"
    assert np.isfinite(listed.benchmark_close).all()
    assert DAYS[0] == pd.Timestamp(listed.dates[0])


def test_g09_two_columns_that_become_one_name_are_refused(read):
    text = "Date,{},{}\n2024-01-02,1,\n2024-01-03,,2\n"
    both = "has the columns {} and {}, which are one name"
    for pair in (("BRK.B", "BRK-B"), ("aaa", "AAA")):
        refuses(lambda pair=pair: read(text.format(*pair)), DataError, both.format(*pair))
    table = pd.concat({name: LONG.xs("AAA", level=1) for name in ("aaa", "AAA")}, axis=1)
    refuses(lambda: tidy_bars(table), DataError, both.format("aaa", "AAA"))


def test_g09_two_files_of_one_name_are_one_series_or_refused(tmp_path):
    for name, days in (("aaa", DAYS[:2]), ("AAA", DAYS[2:])):
        frame(tickers=("X",), days=days).drop(columns="ticker").to_csv(tmp_path / f"{name}.csv", index=False)
    log = RepairLog()
    bars = read_bars(tmp_path, log=log)
    assert closes(bars) == {"AAA": [100, 101, 100, 101, 102]}
    assert log.reading == ["names in one spelling: aaa as AAA", "AAA joined from AAA.csv and aaa.csv"]
    frame(tickers=("X",), close=7.0).drop(columns="ticker").to_csv(tmp_path / "aaa.csv", index=False)
    refuses(
        lambda: read_bars(tmp_path),
        DataError,
        r"two different bars for AAA on 2024-01-04 in its files AAA\.csv and aaa\.csv",
    )


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("Date,Price\n2024-01-02,1\n2024-01-03,2\n", {"ticker": "ZZZ"}, {"ZZZ": [1, 2]}),
        ("Date,Price\n2024-01-02,1\n2024-01-03,2\n", {}, {"AAA": [1, 2]}),
        ("Date,MSFT\n2024-01-02,1\n2024-01-03,2\n", {}, {"MSFT": [1, 2]}),
        ("Date,AAA,BBB\n2024-01-02,,\n2024-01-03,10,20\n", {}, {"AAA": None, "BBB": None}),
        ("Date,Close,\n2024-01-02,1,\n2024-01-03,2,\n", {}, {"AAA": [1, 2]}),
        ("Date,Close\n2024-01-02,1,\n2024-01-03,2,\n", {}, {"AAA": [1, 2]}),
        ("Date,Close,\n2024-01-02,1\n2024-01-03,2\n", {}, {"AAA": [1, 2]}),
        (",Date,Close\n0,2024-01-02,1\n1,2024-01-03,2\n", {}, {"AAA": [1, 2]}),
        ("Unnamed: 0,date,ticker,close\n7,2024-01-02,BBB,1\n9,2024-01-03,BBB,2\n", {}, {"BBB": [1, 2]}),
        (",Date,AAA,BBB\n0,2024-01-02,1,3\n1,2024-01-03,2,4\n", {}, {"AAA": [1, 2], "BBB": [3, 4]}),
        ("date,ticker,close\n1,2024-01-02,BBB,1\n2,2024-01-03,BBB,2\n", {}, {"BBB": [1, 2]}),
        ("ticker,date,close\nCOIN,2024-01-02,1\nCOIN,2024-01-03,2\n", {}, {"COIN": [1, 2]}),
        ("date,ticker,close\n2024-01-02,TRUE,1\n2024-01-03,TRUE,2\n", {}, {"TRUE": [1, 2]}),
        (
            "Date,OPEN,T,COIN\n2024-01-02,1.5,3,\n2024-01-03,2.5,4,\n",
            {},
            {"OPEN": [1.5, 2.5], "T": [3, 4], "COIN": None},
        ),
    ],
)
def test_g23_small_gaps(read, text, options, expected):
    found = closes(read(text, **options))
    assert list(found) == sorted(expected)
    assert all(values is None or found[name] == values for name, values in expected.items())


def test_g23_what_is_left_out_is_told(read):
    log = RepairLog()
    read("Date,Close,Foo,Bar,VWAP\n2024-01-02,1,5,6,1\n2024-01-03,2,6,7,2\n", log=log)
    read("Date,Last\n2024-01-02,1\n", log=log)
    assert log.reading == ["left out the columns Foo, Bar", "closes read from Last"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Date,AAA,AAA\n2024-01-02,1,2\n", "two columns for AAA; keep one"),
        ("date,close,Close\n2024-01-02,1,2\n", "two columns for close; keep one"),
        ("2024-01-02,10,11,9,10.5,100\n2024-01-03,10.5,12,10,11.5,200\n", "first line is a row of values"),
        ("1704067200000,10,11,9,10.5,1.5\n", "first line is a row of values"),
        (HEADER, "holds no bar"),
        ("Date\n2024-01-02\n", "has no column close; besides dates it has no column"),
        ("Open,Close\n1,2\n", "has no column date, and no other that holds dates; its columns are Open, Close"),
        ("Date,Open,Volume,VWAP\n2024-01-02,1,2,3\n", "no column close; besides dates it has Open, Volume, VWAP"),
        (
            "Date,OPEN,LOW,AAPL\n2024-01-02,1,2,3\n",
            "as bars without a column close, by OPEN, LOW, and as closes by ticker, by AAPL",
        ),
        (
            "Date,AAPL,LAST\n2024-01-02,1,2\n",
            "as bars of one name, by its column LAST, and as closes by ticker, by AAPL",
        ),
        (
            "Date,Close_AAPL,MSFT\n2024-01-02,1,2\n",
            "as fields by ticker, by its column Close_AAPL, and as closes by ticker, by MSFT",
        ),
        ("ticker,2024-01-02,2024-01-03\nAAA,1,2\n", "has dates in its header"),
        ("date,ticker,close\n2024-01-02,AAA,2\n2024-01-03,nan,2\n", "row 2 has no ticker"),
        ("Price,Close\nTicker,AAPL US Equity\n2024-01-02,1\n", "'AAPL US Equity' cannot be a ticker"),
        (",Open,Close,Volume\n,USD,USD,shares\n2024-01-02,1,2,3\n", "'' is not a date|nan' is not a date"),
    ],
)
def test_g23_what_cannot_be_read_ends_in_one_line(read, text, message):
    refuses(lambda: read(text), FinpodError, message)


def test_a_header_with_a_close_in_both_levels_is_refused():
    table = pd.DataFrame([[1.0, 2.0]], index=DAYS[:1])
    table.columns = pd.MultiIndex.from_tuples([("close", "CLOSE"), ("close", "AAA")])
    refuses(lambda: tidy_bars(table), DataError, r"\(field, ticker\), and as \(ticker, field\)")
    assert closes(tidy_bars(table.rename_axis(["field", "ticker"], axis=1))) == {"AAA": [2], "CLOSE": [1]}
    assert closes(tidy_bars(table.rename(columns={"CLOSE": "LAST"}))) == {"AAA": [2], "LAST": [1]}


TWO = {"AAPL": [10.0, 11.0], "MSFT": [20.0, 21.0]}
VENDORS = {
    "yfinance": (
        "Price,Close,Close,High,High\nTicker,AAPL,MSFT,AAPL,MSFT\nDate,,,,\n2024-01-02,10,20,11,21\n2024-01-03,11,21,12,22\n",
        TWO,
    ),
    "yfinance, one name": (
        "Price,Close,High\nTicker,AAPL,AAPL\nDate,,\n2024-01-02,10,11\n2024-01-03,11,12\n",
        {"AAPL": [10, 11]},
    ),
    "yfinance by ticker": (
        "Ticker,AAPL,AAPL,MSFT,MSFT\nPrice,Open,Close,Open,Close\nDate,,,,\n2024-01-02,9,10,19,20\n2024-01-03,9,11,19,21\n",
        TWO,
    ),
    "yfinance, no names of levels": (
        ",Adj Close,Adj Close,Close,Close\n,AAPL,MSFT,AAPL,MSFT\nDate,,,,\n2024-01-02,5,6,10,20\n2024-01-03,5,6,11,21\n",
        TWO,
    ),
    "yfinance, read and written again": (
        "Price,Close,Close.1,High,High.1\nTicker,AAPL,MSFT,AAPL,MSFT\nDate,,,,\n2024-01-02,10,20,1,2\n2024-01-03,11,21,1,2\n",
        TWO,
    ),
    "yfinance, line of tickers cut": (
        "Price,Close,High\nDate,,\n2024-01-02,10,11\n2024-01-03,11,12\n",
        {"AAA": [10, 11]},
    ),
    "two levels, nothing named": (",close,close\n,AAPL,MSFT\n2024-01-02,10,20\n2024-01-03,11,21\n", TWO),
    "two levels, one name": (",Close\n,AAPL\nDate,\n2024-01-02,10\n2024-01-03,11\n", {"AAPL": [10, 11]}),
    "two levels, permnos": (
        "Price,Close,Close\nTicker,1,2\nDate,,\n2024-01-02,10,20\n2024-01-03,11,21\n",
        {"1": [10, 11], "2": [20, 21]},
    ),
    "Bloomberg in a spreadsheet": (
        ",AAPL,,MSFT,\nDates,PX_LAST,PX_VOLUME,PX_LAST,PX_VOLUME\n2024-01-02,10,1,20,2\n2024-01-03,11,1,21,2\n",
        TWO,
    ),
    "quantmod": (
        '"","AAPL.Open","AAPL.Close","AAPL.Adjusted"\n"2024-01-02",9,10,8\n"2024-01-03",9,11,8\n',
        {"AAPL": [10, 11]},
    ),
    "fields before names": ("Date,Close_AAPL,Close_MSFT,Adj Close_AAPL\n2024-01-02,10,20,1\n2024-01-03,11,21,1\n", TWO),
    "tuples": ("Date,\"('Close', 'AAPL')\",\"('Close', 'MSFT')\"\n2024-01-02,10,20\n2024-01-03,11,21\n", TWO),
    "Stooq": (
        "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>\n"
        "AAPL.US,D,20240102,000000,9,11,8,10,5,0\nAAPL.US,D,20240103,000000,9,12,8,11,5,0\n",
        {"AAPL.US": [10, 11]},
    ),
    "WSJ": (
        "Date, Open, High, Low, Close, Volume\n01/16/24, 9, 11, 8, 11, 5\n01/12/24, 9, 11, 8, 10, 5\n",
        {"AAA": [10, 11]},
    ),
    "Investing.com": (
        '\ufeff"Date","Price","Open","High","Low","Vol.","Change %"\n"01/16/2024","11","9","11","9","1.23M","-0.52%"\n'
        '"01/12/2024","10","9","11","9","850.2K","0.52%"\n',
        {"AAA": [10, 11]},
    ),
    "Investing.com in German": (
        '"Datum","Zuletzt","Eröffn.","Hoch","Tief","Vol.","+/- %"\n"16.01.2024","11,0","9,0","11,0","9,0","1,23M","-0,52%"\n'
        '"12.01.2024","10,0","9,0","11,0","9,0","850,2K","0,52%"\n',
        {"AAA": [10, 11]},
    ),
    "CRSP": (
        "PERMNO,date,TICKER,COMNAM,BIDLO,ASKHI,PRC,VOL,RET,OPENPRC\n1,20240102,AAPL,APPLE INC,9,11,10,5,C,9\n"
        "1,20240103,AAPL,APPLE INC,9,12,11,5,0.1,9\n2,20240102,MSFT,MS,9,31,20,5,C,9\n2,20240103,MSFT,MS,9,31,21,5,0,9\n",
        TWO,
    ),
    "Compustat": (
        "gvkey,iid,datadate,tic,prccd\n001690,01,2024-01-02,AAPL,10\n001690,01,2024-01-03,AAPL,11\n",
        {"AAPL": [10, 11]},
    ),
    "Quandl WIKI": (
        "ticker,date,open,close,ex-dividend,split_ratio,adj_open,adj_close\nAAPL,2024-01-02,9,10,0.0,1.0,9,10\nAAPL,2024-01-03,9,11,0.0,1.0,9,11\n",
        {"AAPL": [10, 11]},
    ),
    "Alpaca": (
        "symbol,timestamp,open,close,vwap\nAAPL,2024-01-02 05:00:00+00:00,9,10,9\nAAPL,2024-01-03 05:00:00+00:00,9,11,9\n",
        {"AAPL": [10, 11]},
    ),
    "Polygon": (
        "ticker,close,window_start,transactions\nAAPL,10,1704171600000000000,5\nAAPL,11,1704258000000000000,5\n",
        {"AAPL": [10, 11]},
    ),
    "Polygon, single letters": (
        "v,vw,o,c,h,l,t,n\n5,9,9,10,11,8,1704171600000,5\n5,9,9,11,12,8,1704258000000,5\n",
        {"AAA": [10, 11]},
    ),
    "ccxt": (
        "timestamp,open,high,low,close,volume\n1704153600000,9,11,8,10,1.5\n1704240000000,9,12,8,11,1.5\n",
        {"AAA": [10, 11]},
    ),
    "CryptoDataDownload": (
        "https://www.example.com\nunix,date,symbol,open,close,Volume BTC\n1704153600,2024-01-02 00:00:00,BTC/USD,9,10,1\n"
        "1704240000,2024-01-03 00:00:00,BTC/USD,9,11,1\n",
        {"BTC-USD": [10, 11]},
    ),
    "Kaggle, names last": (
        "date,open,close,Name\n2024-01-02,9,10,AAPL\n2024-01-03,9,11,AAPL\n2024-01-02,9,20,MSFT\n2024-01-03,9,21,MSFT\n",
        TWO,
    ),
    "Kaggle, brands": (
        "Date,Close,Brand_Name,Ticker,Country\n2024-01-02,10,apple,AAPL,usa\n2024-01-03,11,apple,AAPL,usa\n",
        {"AAPL": [10, 11]},
    ),
    "Kaggle, indices": ("Index,Date,Close\nNYA,2024-01-02,10\nNYA,2024-01-03,11\n", {"NYA": [10, 11]}),
    "FRED": ("observation_date,SP500\n2024-01-02,10\n2024-01-03,11\n2024-01-04,.\n", {"SP500": [10, 11]}),
    "Tiingo": (
        "date,close,adjClose,divCash,splitFactor\n2024-01-02T00:00:00.000Z,10,10,0.0,1.0\n2024-01-03T00:00:00.000Z,11,11,0.0,1.0\n",
        {"AAA": [10, 11]},
    ),
    "Tushare": (
        ",ts_code,trade_date,close,vol\n0,000001.SZ,20240103,11,5\n1,000001.SZ,20240102,10,5\n",
        {"000001.SZ": [10, 11]},
    ),
    "MetaTrader": (
        "<DATE>\t<OPEN>\t<CLOSE>\t<TICKVOL>\t<VOL>\n2024.01.02\t9\t10\t5\t0\n2024.01.03\t9\t11\t5\t0\n",
        {"AAA": [10, 11]},
    ),
    "Bitstamp": (
        "Timestamp,Open,High,Low,Close,Volume_(BTC),Weighted_Price\n1704153600,9,11,8,10,5,5\n1704240000,9,11,8,11,5,5\n",
        {"AAA": [10, 11]},
    ),
    "Binance": (
        "Open time,Open,High,Low,Close,Volume,Close time,Ignore\n1704153600000,9,11,8,10,5,1704239999999,0\n"
        "1704240000000,9,11,8,11,5,1704326399999,0\n",
        {"AAA": [10, 11]},
    ),
    "Barchart": ("Symbol,Time,Open,Last,%Chg\nAAPL,01/16/2024,9,11,1%\nAAPL,01/12/2024,9,10,1%\n", {"AAPL": [10, 11]}),
    "Refinitiv": ("Exchange Date,Close,Net,%Chg\n16-Jan-2024,11,1,0.1%\n12-Jan-2024,10,1,0.1%\n", {"AAA": [10, 11]}),
    "SimFin": (
        "Ticker;SimFinId;Date;Close;Adj. Close;Dividend\nA;45846;2024-01-02;10;10;\nA;45846;2024-01-03;11;11;\n",
        {"A": [10, 11]},
    ),
    "NSE": (
        "SYMBOL,SERIES,OPEN,CLOSE,LAST,TIMESTAMP,ISIN,\nTCS,EQ,9,10,8,02-JAN-2024,INE1,\nTCS,EQ,9,11,8,03-JAN-2024,INE1,\n",
        {"TCS": [10, 11]},
    ),
}


@pytest.mark.parametrize("vendor", VENDORS)
def test_files_as_vendors_write_them(read, vendor):
    text, expected = VENDORS[vendor]
    bars = read(text)
    assert {name: values[:2] for name, values in closes(bars).items()} == expected
    assert bars["close"].notna().sum() == 2 * len(expected)


def test_a_flag_called_adjusted_is_no_adjusted_close():
    table = pd.DataFrame(
        {"date": ["2024-01-02", "2024-01-03"], "ticker": "AAA", "close": [10.0, 11.0], "adjusted": True}
    )
    assert closes(tidy_bars(table)) == closes(tidy_bars(table.drop(columns="adjusted")))


@pytest.mark.parametrize("first", [0, 1])
def test_g23_a_named_column_of_row_numbers_is_no_ticker(first):
    table = pd.DataFrame({"No": range(first, first + 4), "Date": pd.bdate_range("2024-01-02", periods=4), "AAA": 10.0})
    refuses(lambda: tidy_bars(table), DataError, "No")


@pytest.mark.parametrize("content", ["<!DOCTYPE html><p>429</p>\n", '{"error": "rate limit"}\n'])
def test_a_page_of_html_or_json_is_said_to_be_one(tmp_path, content):
    (tmp_path / "AAA.csv").write_text(content)
    refuses(lambda: read_bars(tmp_path / "AAA.csv"), DataError, "HTML or JSON")


def test_a_mapping_is_no_market():
    refuses(lambda: load_market({"AAA": 1}), InputError, "dict")
