"""File formats, each with the same bars."""

import numpy as np
import pandas as pd
import pytest
from made_bars import DAYS, frame
from numpy.testing import assert_array_equal

from finpod.errors import DataError, InputError
from finpod.market.load import load_market
from finpod.market.readers import read_bars, read_table, ticker_of

FIELDS = ["open", "high", "low", "close", "volume"]
AAA = frame(tickers=("AAA",))


def rows(text):
    """`text` filled in for each of the five bars of AAA."""
    lines = [
        text.format(**bar, day=f"{bar['date']:%d}", month=f"{bar['date']:%m}", iso=f"{bar['date']:%Y-%m-%d}")
        for bar in AAA.to_dict("records")
    ]
    return "\n".join(lines) + "\n"


FORMATS = {
    "Yahoo export": "Date,Open,High,Low,Close,Adj Close,Volume\n"
    + rows("{iso},{open:.6f},{high:.6f},{low:.6f},{close:.6f},{close:.6f},{volume:.0f}"),
    "yfinance history": "Date,Open,High,Low,Close,Volume,Dividends,Stock Splits\n"
    + rows("{iso} 00:00:00-05:00,{open},{high},{low},{close},{volume:.0f},0.0,0.0"),
    "Nasdaq.com": "Date,Close/Last,Volume,Open,High,Low\n"
    + rows('{month}/{day}/2024,${close},"{volume:,.0f}",${open},${high},${low}'),
    "Alpha Vantage": "timestamp,open,high,low,close,adjusted_close,volume,dividend_amount,split_coefficient\n"
    + rows("{iso},{open},{high},{low},{close},{close},{volume:.0f},0.0000,1.0"),
    "Google": "\ufeffDate,Open,High,Low,Close,Volume\n" + rows("{day}-Jan-24,{open},{high},{low},{close},{volume:.0f}"),
    "Google sheet": "Date,Open,High,Low,Close,Volume\n"
    + rows("{month}/{day}/2024 16:00:00,{open},{high},{low},{close},{volume:.0f}"),
    "semicolons": "DATE;OPEN;HIGH;LOW;CLOSE;VOLUME\n"
    + rows("{day}.{month}.2024;{open:.2f};{high:.2f};{low:.2f};{close:.2f}")
    .replace(".5", ",5")
    .replace(".00", ",00")
    .replace("\n", ";1.000\n"),
    "tabs, no name for the date": "\tOpen\thIgH\tLow\tClose\tVolume\n"
    + rows("{iso} 16:00:00-05:00\t{open}\t{high}\t{low}\t{close}\t{volume:.0f}"),
}
MONTH_FIRST = ("Nasdaq.com", "Google sheet", "semicolons")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("newest_first", [False, True])
def test_files_of_one_name(tmp_path, name, newest_first):
    head, *lines = FORMATS[name].splitlines()
    path = tmp_path / "AAA.csv"
    path.write_text("\n".join([head, *(lines[::-1] if newest_first else lines)]), encoding="utf-8")
    day_first = {"semicolons": True}.get(name, False) if name in MONTH_FIRST else None
    bars = read_bars(path, day_first=day_first)
    assert_array_equal(bars["date"].to_numpy(), DAYS.to_numpy())
    assert list(bars["ticker"]) == ["AAA"] * 5
    assert_array_equal(bars[FIELDS].to_numpy(), AAA[FIELDS].to_numpy())
    assert read_bars(path, ticker="ZZZ", day_first=day_first)["ticker"].cat.categories.tolist() == ["ZZZ"]
    if name in MONTH_FIRST:
        with pytest.raises(DataError, match="may be day first or month first; say which with day_first="):
            read_bars(path)


def test_a_folder_of_files_of_one_name_each(tmp_path):
    for ticker, text in {
        "AAA": FORMATS["Yahoo export"],
        "BBB": FORMATS["Google"],
        "QQQ": FORMATS["Yahoo export"],
    }.items():
        (tmp_path / f"{ticker}.csv").write_text(text, encoding="utf-8")
    frame(tickers=("CCC",)).drop(columns="ticker").to_parquet(tmp_path / "CCC.parquet")
    (tmp_path / "README.txt").write_text("not a price")
    (tmp_path / ".hidden.csv").write_text("not a price")
    market = load_market(tmp_path)
    assert market.tickers == ("AAA", "BBB", "CCC")
    assert_array_equal(market.close, np.repeat(AAA[["close"]].to_numpy(), 3, axis=1))
    assert_array_equal(market.benchmark_close, AAA["close"])
    assert market.title == tmp_path.name
    with pytest.raises(InputError, match="ticker=AAA names one file"):
        load_market(tmp_path, ticker="AAA")
    (tmp_path / "DDD.csv").write_text("")
    with pytest.raises(DataError, match=r"DDD\.csv cannot be read"):
        load_market(tmp_path)


def test_wide_and_two_level_files_are_the_same_closes(tmp_path):
    long = frame()
    closes = long.pivot(index="date", columns="ticker", values="close").rename_axis(columns=None, index="Date")
    both = long.pivot(index="date", columns="ticker", values=["close", "open"]).rename_axis(index="Date")
    closes.to_csv(tmp_path / "wide.csv")
    closes.to_parquet(tmp_path / "wide.parquet")
    both.to_csv(tmp_path / "fields.csv")
    both.swaplevel(axis=1).sort_index(axis=1).to_csv(tmp_path / "names.csv")
    both.to_parquet(tmp_path / "fields.parquet")
    long.to_parquet(tmp_path / "long.parquet")
    for path in sorted(tmp_path.iterdir()):
        market = load_market(path)
        assert market.tickers == ("AAA", "BBB"), path
        assert_array_equal(market.close, 100.0 + np.arange(15).reshape(5, 3)[:, :2])
        assert (market.open is None) == ("wide" in path.name)


@pytest.mark.parametrize(
    ("name", "ticker"),
    [
        ("AAPL.csv", "AAPL"),
        ("daily_AAPL.csv", "AAPL"),
        ("AAPL_1d_2020.csv", "AAPL"),
        ("BRK-B.parquet", "BRK-B"),
        ("BRK_B.csv", "BRK_B"),
        ("^GSPC.csv", "^GSPC"),
        ("aapl.csv", "aapl"),
        ("0700.HK.csv", "0700.HK"),
    ],
)
def test_the_ticker_is_what_the_file_is_named_for(tmp_path, name, ticker):
    assert ticker_of(tmp_path / name) == ticker


@pytest.mark.parametrize("name", ["A;reboot.csv", "$HOME.csv", "two words.csv", "a" * 40 + ".csv"])
def test_a_file_name_that_is_no_ticker(tmp_path, name):
    (tmp_path / name).write_text(FORMATS["Yahoo export"])
    with pytest.raises(DataError, match=r"cannot be one; give ticker="):
        load_market(tmp_path / name, benchmark=None)
    assert load_market(tmp_path / name, benchmark=None, ticker="AAA").tickers == ("AAA",)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"\n\n", "it is empty"),
        (b"\xff\xfed\x00a\x00", "UTF-16"),
        (b"\x00\x01\x02", "it is not text"),
        (b"date,ticker,close\n2024-01-02,AAA,1,7\n", "3 columns"),
        (b"date,ticker,close\n2024-01-02,\xe9,1\n", "UTF-?8|utf-?8"),
    ],
)
def test_files_that_are_no_table_end_in_one_line(tmp_path, content, reason):
    (tmp_path / "bars.csv").write_bytes(content)
    with pytest.raises(DataError, match=rf"bars\.csv cannot be read \(.*{reason}") as caught:
        read_table(tmp_path / "bars.csv")
    assert "\n" not in str(caught.value)


def test_a_truncated_parquet_file(tmp_path):
    frame().to_parquet(tmp_path / "bars.parquet")
    whole = (tmp_path / "bars.parquet").read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "bars.parquet").write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"bars\.parquet cannot be read"):
            load_market(tmp_path / "bars.parquet")


def test_semicolons_with_a_decimal_comma_are_read_as_such(tmp_path):
    (tmp_path / "AAA.csv").write_text("Date;Close;Volume\n2024-01-02;1.234,5;12.345\n2024-01-03;0,25;1.234.567\n")
    bars = read_bars(tmp_path / "AAA.csv")
    assert_array_equal(bars["close"], [1234.5, 0.25])
    assert_array_equal(bars["volume"], [12345, 1234567])
    market = load_market(tmp_path / "AAA.csv", benchmark=None)
    assert market.manifest["reading"] == ["numbers read with a decimal comma"]


def test_what_stays_open_is_an_option(tmp_path):
    (tmp_path / "AAA.csv").write_text("Date;Close\n03/04/2024;1,234\n05/06/2024;2,345\n")
    with pytest.raises(DataError, match="'1,234' may be a thousand"):
        read_bars(tmp_path / "AAA.csv")
    bars = read_bars(tmp_path / "AAA.csv", day_first=True, decimal=",")
    assert_array_equal(bars["close"], [1.234, 2.345])
    assert_array_equal(bars["date"].to_numpy(), np.array(["2024-04-03", "2024-06-05"], dtype="datetime64[ns]"))
    assert_array_equal(read_bars(tmp_path / "AAA.csv", day_first=False, decimal=".")["close"], [1234, 2345])


def many_rows(names, days, path):
    """Write names x days bars of random prices to a parquet file, newest name first."""
    random = np.random.default_rng(0)
    from finpod.market.calendar import sessions_of

    dates = sessions_of("XNYS", np.datetime64("2000-01-01", "ns"), np.datetime64("2020-12-31", "ns")).dates[:days]
    close = np.exp(random.normal(0, 0.02, (names, days)).cumsum(axis=1)) * 50
    columns = {"open": 1.0, "high": 1.01, "low": 0.99, "close": 1.0, "adj_close": 0.9}
    pd.DataFrame(
        {
            "date": np.tile(dates, names),
            "ticker": pd.Categorical.from_codes(
                np.repeat(np.arange(names)[::-1], days), [f"N{i}" for i in range(names)]
            ),
            **{name: (close * times).ravel() for name, times in columns.items()},
            "volume": random.integers(1, 10**6, names * days),
        }
    ).to_parquet(path)


@pytest.mark.parametrize(
    ("names", "days", "seconds"), [(100, 1000, 10), pytest.param(2500, 4000, 120, marks=pytest.mark.slow)]
)
def test_many_rows_in_reasonable_time_and_memory(tmp_path, names, days, seconds):
    """Ten million rows of seven numbers are 0.56 GB; reading and cleaning them takes under eight times that."""
    import resource
    import time

    many_rows(names, days, tmp_path / "bars.parquet")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    market = load_market(tmp_path / "bars.parquet", benchmark="N0")
    assert time.perf_counter() - begin < seconds
    assert market.shape == (days, names - 1)
    assert market.has_bar.all()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < max(8 * names * days * 7 * 8, 200e6)
