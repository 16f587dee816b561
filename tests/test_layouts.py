"""Every layout is read as the same bars: tables of pandas, files of vendors, and random markets; or refused."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from made_bars import DAYS, closes, frame, refuses
from numpy.testing import assert_array_equal

from finpod import DataError, load_market
from finpod.market.columns import field_of
from finpod.market.tidy import read_bars

LONG = pd.DataFrame(
    {"close": [1.0, 10, 2, 20, 3, 30], "open": [1.0, 11, 2, 22, 3, 33]},
    index=pd.MultiIndex.from_product([DAYS[:3], ["AAA", "BBB"]], names=["date", "ticker"]),
)
"""Three days of AAA and of BBB, which is ten times as dear."""
BOTH = {"AAA": [1, 2, 3], "BBB": [10, 20, 30]}
AAA = LONG.xs("AAA", level=1)
WIDE = LONG["close"].unstack()


def bare(table, levels=2):
    """The table without names of its levels."""
    return table.rename_axis([None] * levels if levels > 1 else None)


TABLES = {
    "rows by dt and firm": LONG.rename_axis(["dt", "firm"]),
    "rows by Symbol": LONG.reset_index("date").rename_axis("Symbol"),
    "stack": WIDE.stack(),
    "stack, index reset": bare(WIDE, 1).rename_axis(None, axis=1).stack().reset_index(),
    "concat": pd.concat({name: LONG.xs(name, level=1) for name in BOTH}),
    "concat, dates a column": pd.concat({name: LONG.xs(name, level=1).reset_index() for name in BOTH}),
    "columns called Ticker": WIDE.rename_axis("Ticker", axis=1),
    "categories in the header": WIDE.set_axis(pd.CategoricalIndex(["AAA", "BBB"], name="ticker"), axis=1),
    "categories in the index": LONG.set_index(LONG.index.set_levels(pd.CategoricalIndex(["AAA", "BBB"]), level=1)),
    "index set and kept": LONG.reset_index().set_index("date", drop=False),
}


@pytest.mark.filterwarnings("ignore:.*column names of mixed type:UserWarning")
@pytest.mark.parametrize("table", TABLES)
def test_g03_every_table_of_pandas(tmp_path, table):
    made = pd.DataFrame(TABLES[table])
    made.to_parquet(tmp_path / "bars.parquet")
    for bars in (read_bars(made), read_bars(tmp_path / "bars.parquet")):
        assert closes(bars) == BOTH
    assert load_market(TABLES[table], benchmark="BBB").tickers == ("AAA",)


@pytest.mark.parametrize("swapped", [False, True])
def test_g03_numbers_as_tickers_in_the_row_index(tmp_path, swapped):
    """A level called permno is read; one without a known name may hold row numbers, so it is asked about."""
    table = LONG.rename({"AAA": 10107, "BBB": 14593}, level=1).rename_axis(["date", "permno"])
    table = table.swaplevel().sort_index() if swapped else table
    table.to_parquet(tmp_path / "bars.parquet")
    for bars in (read_bars(table), read_bars(tmp_path / "bars.parquet")):
        assert closes(bars) == {"10107": [1, 2, 3], "14593": [10, 20, 30]}
    refuses(lambda: read_bars(bare(table)), argument="ticker_column")
    refuses(lambda: read_bars(table.rename_axis(index={"permno": "firm_id"})), "firm_id", argument="ticker_column")


@pytest.mark.parametrize(("table", "word"), [
    (WIDE.T, "frame.T"), (LONG.reset_index().melt(["date", "ticker"]), "pivot"),
    (LONG.unstack().stack(0), "one value per row"),
    (LONG.rename({"AAA": 9, "BBB": 10}, level=1).rename_axis(["date", "hour"]), "date, hour"),
    (pd.concat({"x": LONG.unstack()}, axis=1), "3 levels"), (pd.DataFrame(), "no column 'date'"),
    (LONG.reset_index().assign(Date=DAYS[0]), "date, Date"),
    (LONG.reset_index().assign(timestamp=DAYS[0]).set_index("timestamp"), "two columns of dates"),
    (LONG.unstack().set_axis(["AAA", "AAA", "BBB", "BBB"], axis=1), "AAA"),
    (bare(LONG.assign(share="A").set_index("share", append=True), 3), "2 unnamed columns of text"),
    (pd.DataFrame({"No": range(1, 5), "Date": DAYS[:4], "AAA": 10.0}), "No"),
    (frame(tickers=("AAA", "BBB")).assign(symbol="X", Symbol="X").drop(columns="ticker"), "symbol"),
    (LONG.unstack().reset_index().assign(ticker="X"), "in its header"),
    (LONG.unstack().rename(columns={"BBB": "AAA"}), "AAA"), (LONG[["open"]].unstack(), "close"),
    (LONG.assign(currency=["USD", "JPY"] * 3), "JPY, USD"),
])  # fmt: skip
def test_tables_that_cannot_be_used(table, word):
    refuses(lambda: read_bars(table), word)


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", tz="America/New_York"), pa.string()], ids=str)
@pytest.mark.parametrize("index", [False, True])
def test_g08_arrow_dtypes(tmp_path, kind, index):
    table = LONG.reset_index()
    stamps = table["date"].dt.tz_localize(kind.tz) if pa.types.is_timestamp(kind) and kind.tz else table["date"]
    table["date"] = pd.Series(pd.array(pa.array(stamps).cast(kind), dtype=pd.ArrowDtype(kind)))
    table["ticker"] = table["ticker"].astype(pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string())))
    table = table.astype({"close": "double[pyarrow]", "open": "int64[pyarrow]"})
    table = table.set_index(["date", "ticker"]) if index else table
    table.to_parquet(tmp_path / "bars.parquet")
    for bars in (read_bars(table), read_bars(tmp_path / "bars.parquet")):
        assert closes(bars) == BOTH
        assert_array_equal(bars["date"].to_numpy(), np.repeat(DAYS[:3].to_numpy(), 2))
        assert bars["open"].dtype == "float64"


def test_g08_other_dtypes_of_numbers():
    table = LONG.reset_index()
    decimals = pa.array(table["close"].map(Decimal), pa.decimal128(10, 2)).to_pandas(types_mapper=pd.ArrowDtype)
    for values in (table["close"].astype("Int64"), table["close"].map(Decimal), decimals):
        assert closes(read_bars(table.assign(close=values)))["BBB"] == [10, 20, 30]


@pytest.mark.parametrize("order", ["open high low close volume", "close high low open volume"])
def test_b15_layout_and_order_of_columns_change_nothing(order):
    flat = frame(tickers=("AAA",)).set_index("date").drop(columns="ticker")[order.split()].rename(columns=str.title)
    tables = [flat, *(pd.concat({"AAA": flat}, axis=1).swaplevel(*levels, axis=1) for levels in ((0, 1), (0, 0)))]
    for table in tables:
        pd.testing.assert_frame_equal(read_bars(table, ticker="AAA"), read_bars(frame(tickers=("AAA",))))


def test_assets_of_a_table_of_two_levels_may_lack_fields():
    bars = read_bars(pd.concat({"AAA": AAA, "BBB": AAA[["close"]] * 2}, axis=1))
    assert_array_equal(bars["open"], [1, np.nan, 2, np.nan, 3, np.nan])
    assert_array_equal(bars["close"], [1, 2, 2, 4, 3, 6])


@pytest.mark.parametrize("label", ["5. adjusted close", "Adj Close**", "ADJCLOSE", "adjClose", "Close (adj)"])
def test_spellings_of_the_adjusted_close(label):
    assert_array_equal(read_bars(frame().assign(**{label: 200.0}))["adj_close"], [200.0] * 15)


ROWS = {
    "16": {"iso": "2024-01-16", "num": "20240116", "s": 1705363200, "c": 10, "e": 20},
    "17": {"iso": "2024-01-17", "num": "20240117", "s": 1705449600, "c": 11, "e": 21},
}
"""Day of January 2024 -> what a row says of it: `c` is the close of AAPL, `e` that of MSFT."""
ONE = {
    "yfinance history": "Date,Open,Close,Dividends,Stock Splits\n{iso} 00:00:00-05:00,9.5,{c},0.0,0.0",
    "yfinance, line of tickers cut": "Price,Close,High\nDate,,\n{iso},{c},12",
    "Nasdaq.com": 'Date,Close/Last,Volume,Open,High,Low\n01/{d}/2024,${c},"4,272,703",$9,$12,$8',
    "Alpha Vantage": "timestamp,open,close,adjusted_close,dividend_amount,split_coefficient\n{iso},9,{c},{c},0.0000,1.0",
    "Google": "\ufeffDate,Open,High,Low,Close,Volume\n{d}-Jan-24,9,12,8,{c},1000",
    "Google sheet": "Date,Open,High,Low,Close,Volume\n01/{d}/2024 16:00:00,9,12,8,{c},1000",
    "semicolons": "DATE;OPEN;CLOSE;VOLUME\n{d}.01.2024;9,50;{c},00;1.000",
    "tabs, no name for the date": "\tOpen\thIgH\tLow\tClose\n{iso} 16:00:00-05:00\t9\t12\t8\t{c}",
    "WSJ": "Date, Open, High, Low, Close, Volume\n01/{d}/24, 9, 12, 8, {c}, 5",
    "Investing.com": '\ufeff"Date","Price","Open","Vol.","Change %"\n"01/{d}/2024","{c}","9","1.23M","-0.52%"',
    "Investing.com in German": '"Datum","Zuletzt","Eröffn.","Vol.","+/- %"\n"{d}.01.2024","{c},0","9,0","1,23M","-0,52%"',
    "Polygon, single letters": "v,vw,o,c,h,l,t,n\n5,9,9,{c},12,8,{s}000,5",
    "ccxt": "timestamp,open,high,low,close,volume\n{s}000,9,12,8,{c},1.5",
    "Tiingo": "date,close,adjClose,divCash,splitFactor\n{iso}T00:00:00.000Z,{c},{c},0.0,1.0",
    "MetaTrader": "<DATE>\t<OPEN>\t<CLOSE>\t<TICKVOL>\t<VOL>\n2024.01.{d}\t9\t{c}\t5\t0",
    "Binance": "Open time,Open,Close,Close time,Ignore\n{s}000,9,{c},1704239999999,0",
    "Stooq in Polish": "Data,Otwarcie,Najwyzszy,Najnizszy,Zamkniecie,Wolumen\n{iso},9,12,8,{c},5",
    "Refinitiv": "Exchange Date,Price Close,Price Open\n{d}-Jan-2024,{c},9",
    "Dukascopy": "Local time,Open,Close\n{d}.01.2024 00:00:00.000 GMT-0500,9,{c}",
}
"""Vendor -> header and row of a file of one asset."""
TWO = {
    "yfinance": "Price,Close,Close,High,High\nTicker,AAPL,MSFT,AAPL,MSFT\nDate,,,,\n{iso},{c},{e},11,21",
    "yfinance by ticker": "Ticker,AAPL,AAPL,MSFT,MSFT\nPrice,Open,Close,Open,Close\nDate,,,,\n{iso},9,{c},19,{e}",
    "yfinance, no names of levels": ",Adj Close,Close,Close\n,AAPL,AAPL,MSFT\nDate,,,\n{iso},5,{c},{e}",
    "two levels, nothing named": ",close,close\n,AAPL,MSFT\n{iso},{c},{e}",
    "Bloomberg in a spreadsheet": ",AAPL,,MSFT,\nDates,PX_LAST,PX_VOLUME,PX_LAST,PX_VOLUME\n{iso},{c},1,{e},2",
    "quantmod": '"","AAPL.Open","AAPL.Close","MSFT.Close"\n"{iso}",9,{c},{e}',
    "fields before tickers": "Date,Close_AAPL,Close_MSFT,Adj Close_AAPL\n{iso},{c},{e},1",
    "tuples": "Date,\"('Close', 'AAPL')\",\"('Close', 'MSFT')\"\n{iso},{c},{e}",
    "yfinance, read and written again": "Price,Close,Close.1,High\nTicker,AAPL,MSFT,AAPL\nDate,,,\n{iso},{c},{e},1",
    "wide": "Date,AAPL,MSFT\n{iso},{c},{e}",
    "CRSP": "PERMNO,date,TICKER,COMNAM,BIDLO,ASKHI,PRC,RET\n1,{num},AAPL,APPLE INC,9,12,{c},C\n2,{num},MSFT,MS,9,31,{e},C",
    "Compustat": "gvkey,iid,datadate,tic,prccd\n001690,01,{iso},AAPL,{c}\n012141,01,{iso},MSFT,{e}",
    "Alpaca": "symbol,timestamp,close,vwap\nAAPL,{iso} 05:00:00+00:00,{c},9\nMSFT,{iso} 05:00:00+00:00,{e},9",
    "Polygon": "ticker,close,window_start,transactions\nAAPL,{c},{s}000000000,5\nMSFT,{e},{s}000000000,5",
    "Kaggle, tickers last": "date,open,close,Name\n{iso},9,{c},AAPL\n{iso},9,{e},MSFT",
    "Kaggle, brands": "Date,Close,Brand_Name,Ticker,Country\n{iso},{c},apple,AAPL,usa\n{iso},{e},microsoft,MSFT,usa",
    "Tushare": ",ts_code,trade_date,close,vol\n0,AAPL,{num},{c},5\n1,MSFT,{num},{e},5",
    "NSE": "SYMBOL,SERIES,CLOSE,LAST,TIMESTAMP,ISIN,\nAAPL,EQ,{c},8,{d}-JAN-2024,INE1,\nMSFT,EQ,{e},8,{d}-JAN-2024,INE2,",
}
"""Vendor -> header and rows of a file of AAPL and MSFT."""
OTHER = {
    "Stooq": ("<TICKER>,<PER>,<DATE>,<TIME>,<CLOSE>,<OPENINT>\nAAPL.US,D,{num},000000,{c},0", "AAPL.US"),
    "yfinance, one ticker": ("Price,Close,High\nTicker,MSFT,MSFT\nDate,,\n{iso},{c},12", "MSFT"),
    "two levels, a permno": ("Price,Close\nTicker,10107\nDate,\n{iso},{c}", "10107"),
    "CryptoDataDownload": ("https://x.com\nunix,date,symbol,close\n{s},{iso} 00:00:00,BTC/USD,{c}", "BTC-USD"),
    "two levels of one label": (",Close\n,MSFT\nDate,\n{iso},{c}", "MSFT"),
    "akshare": ("日期,股票代码,开盘,收盘,成交量,涨跌幅\n{iso},000001,9,{c},5,1", "000001"),
    "FRED": ("observation_date,SP500\n{iso},{c}", "SP500"),
}


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("vendor", [*ONE, *TWO, *OTHER])
def test_files_as_vendors_write_them(tmp_path, vendor, newest_first):
    text, ticker = OTHER.get(vendor) or (ONE.get(vendor) or TWO[vendor], "AAA")
    lines = text.split("\n")
    first = next(number for number, line in enumerate(lines) if "{" in line)
    days = sorted(ROWS, reverse=newest_first)
    body = ["\n".join(lines[first:]).format(d=day, **ROWS[day]) for day in days]
    (tmp_path / "AAA.csv").write_text("\n".join([*lines[:first], *body]) + "\n", encoding="utf-8")
    expected = {"AAPL": [10, 11], "MSFT": [20, 21]} if vendor in TWO else {ticker: [10, 11]}
    bars = read_bars(tmp_path / "AAA.csv")
    assert closes(bars) == expected
    assert sorted({f"{day:%Y-%m-%d}" for day in bars["date"]}) == ["2024-01-16", "2024-01-17"]
    if vendor not in TWO:
        assert closes(read_bars(tmp_path / "AAA.csv", ticker="zzz")) == {"ZZZ": [10, 11]}


NAMES = ["AAA", "BRK-B", "VOD.L", "7203.T", "10107", "^GSPC", "COIN", "T", "TRUE", "NA", "NAN", "OPEN", "LOW", "LAST"]
UNCLEAR = {"10107", "NA", "NAN", "OPEN", "LOW", "LAST"}
"""Tickers that are also words or numbers, so that a table with them may have two readings."""
LAYOUTS = ["long", "wide", "field first", "ticker first", "index", "index of tickers", "folder"]


@st.composite
def markets(draw):
    """A table with rows (date, ticker) and a close, perhaps an open and a volume; some names begin late."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
    days = pd.bdate_range("2024-01-02", periods=draw(st.integers(3, 6)), name="date")
    size = len(days) * len(names)
    cents = np.array(draw(st.lists(st.integers(100, 3_000_000), min_size=size, max_size=size)))
    close = pd.DataFrame(cents.reshape(len(days), -1) // 2 * 2 + 1, index=days, columns=names) / 100
    late = draw(st.lists(st.integers(0, len(days) - 1), min_size=len(names), max_size=len(names)))
    close = close.where(np.arange(len(days))[:, None] >= np.array(late))
    table = close.rename_axis("ticker", axis=1).stack(future_stack=True).to_frame("close").sort_index()
    fields = ["close", "open", "volume"][: draw(st.integers(1, 3))]
    return table.assign(open=table["close"] + 0.25, volume=table["close"] * 100).loc[:, fields]


def laid_out(market, layout, named, swapped):
    """The market as a frame of the layout; levels and columns of the index lose their names unless `named`."""
    if layout == "long":
        table = market.reset_index()
        return table.sample(frac=1, random_state=0) if swapped else table
    if layout == "index":
        table = market.swaplevel() if swapped else market
        return table if named else table.rename_axis([None, None])
    if layout == "index of tickers":
        return market.reset_index("date").rename_axis("ticker" if named else None)
    table = market["close"].unstack() if layout == "wide" else market.unstack()
    table = table.swaplevel(axis=1).sort_index(axis=1) if layout == "ticker first" else table
    called = ["ticker" if label == "ticker" else "field" for label in table.columns.names]
    if named:
        return table.rename_axis(called if len(called) > 1 else called[0], axis=1)
    return table.rename_axis([None] * len(called) if len(called) > 1 else None, axis=1).rename_axis(None)


def write(table, path):
    (table.to_parquet if path.suffix == ".parquet" else table.to_csv)(path)


@given(
    market=markets(),
    layout=st.sampled_from(LAYOUTS),
    kind=st.sampled_from(["csv", "parquet"]),
    named=st.booleans(),
    swapped=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_every_layout_is_read_back_as_it_was(tmp_path_factory, market, layout, kind, named, swapped):
    names = list(market.index.unique("ticker"))
    assume(layout != "wide" or not all(map(field_of, names)))  # Date,LAST is of one asset
    path = tmp_path_factory.mktemp("market")
    if layout == "folder":
        for ticker, bars in market.groupby("ticker"):
            write(bars.droplevel("ticker"), path / f"{ticker}.{kind}")
    else:
        path /= f"bars.{kind}"
        write(laid_out(market, layout, named, swapped), path)
    try:
        bars = read_bars(path)
    except DataError:
        assert UNCLEAR & set(names) or (kind == "csv" and layout in ("field first", "ticker first") and not named)
        return
    fields = ["close"] if layout == "wide" else list(market)
    read = bars.astype({"ticker": "str"}).set_index(["date", "ticker"])[fields].dropna(how="all").sort_index()
    expected = market[fields].dropna(how="all").sort_index()
    pd.testing.assert_frame_equal(read, expected, check_exact=False, rtol=1e-12, check_index_type=False)
    assert set(bars["ticker"].cat.categories) == set(names)
