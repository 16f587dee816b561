"""Files and folders: formats, file names, unreadable content, and many rows."""

import resource
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_bars import frame, refuses
from numpy.testing import assert_array_equal

from finpod.errors import InputError
from finpod.market.calendar import sessions_of
from finpod.market.load import load_market
from finpod.market.long_bars import RepairLog
from finpod.market.readers import read_table
from finpod.market.tidy import read_bars, ticker_of

ONE = frame(tickers=("AAA",)).drop(columns="ticker")


def test_a_folder_of_files_of_one_asset_each(tmp_path):
    for ticker in ("AAA", "BBB", "QQQ"):
        ONE.to_csv(tmp_path / f"{ticker}.csv", index=False)
    ONE.to_parquet(tmp_path / "CCC.parquet")
    (tmp_path / "README.txt").write_text("not a price")
    (tmp_path / ".hidden.csv").write_text("not a price")
    market = load_market(tmp_path)
    assert market.tickers == ("AAA", "BBB", "CCC")
    assert_array_equal(market.close, np.repeat(ONE[["close"]].to_numpy(), 3, axis=1))
    assert_array_equal(market.benchmark_close, ONE["close"])
    assert market.title == tmp_path.name
    refuses(lambda: load_market(tmp_path, ticker="AAA"), error=InputError, argument="ticker")
    (tmp_path / "DDD.csv").write_text("")
    refuses(lambda: load_market(tmp_path), "DDD.csv")


def test_joined_files_are_in_order_and_repairs_are_added_up(tmp_path):
    log = RepairLog()
    for ticker in ("ZZZ", "AAA"):
        pd.concat([frame(tickers=(ticker,))] * 2).to_csv(tmp_path / f"{ticker}.csv", index=False)
    bars = read_bars(tmp_path, log=log)
    assert list(bars["ticker"][:2]) == ["AAA", "ZZZ"]
    assert bars["date"].is_monotonic_increasing
    assert [entry["count"] for entry in log.content()["repairs"]] == [10]


def test_no_market_and_an_empty_folder(tmp_path):
    refuses(lambda: read_bars(tmp_path / "nowhere.csv"), "nowhere.csv", error=InputError, argument="market")
    refuses(lambda: read_bars(tmp_path), "no parquet or CSV", error=InputError, argument="path")
    (tmp_path / "bars.xls").write_text("x")
    refuses(lambda: read_bars(tmp_path / "bars.xls"), "bars.xls", error=InputError)


@pytest.mark.parametrize("name", ["AAPL.csv", "daily_AAPL.csv", "AAPL_1d_2020.csv"])
def test_the_ticker_in_the_name_of_a_file(name):
    assert ticker_of(Path(name)) == "AAPL"
    for whole in ("BRK_B.csv", "^GSPC.csv", "aapl.csv", "0700.HK.csv"):
        assert ticker_of(Path(whole)) == whole.removesuffix(".csv")


@pytest.mark.parametrize("name", ["$HOME.csv", "a" * 40 + ".csv"])
def test_a_file_name_that_is_no_ticker(tmp_path, name):
    ONE.to_csv(tmp_path / name, index=False)
    refuses(lambda: load_market(tmp_path / name, benchmark=None), argument="ticker")
    assert load_market(tmp_path / name, benchmark=None, ticker="AAA").tickers == ("AAA",)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"\x00\x01\x02", "UTF-8"),
        (b"date,ticker,close\n2024-01-02,AAA,1,7\n", "3 columns"),
        (b"date,ticker,close\n2024-01-02,\xe9,1\n", "UTF"),
    ],
)
def test_files_that_are_no_table_end_in_one_line(tmp_path, content, reason):
    (tmp_path / "bars.csv").write_bytes(content)
    refuses(lambda: read_table(tmp_path / "bars.csv"), "bars.csv", reason)


def test_a_truncated_parquet_file(tmp_path):
    frame().to_parquet(tmp_path / "bars.parquet")
    whole = (tmp_path / "bars.parquet").read_bytes()
    for length in (0, len(whole) // 2):
        (tmp_path / "bars.parquet").write_bytes(whole[:length])
        refuses(lambda: load_market(tmp_path / "bars.parquet"), "bars.parquet")


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
