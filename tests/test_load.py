import json
import time

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from finpod.errors import InputError
from finpod.market.load import load_market, sample_market
from finpod.market.snapshots import save_snapshot


@pytest.fixture
def bars():
    dates = pd.bdate_range("2024-01-02", periods=6)
    rows = pd.MultiIndex.from_product([dates, ["AAA", "BBB", "QQQ"]], names=["date", "ticker"]).to_frame(index=False)
    close = 50.0 + np.arange(len(rows)) / 3
    return rows.assign(open=close - 0.1, high=close + 1, low=close - 1, close=close, adj_close=close * 0.9, volume=10.0)


@pytest.fixture
def members(tmp_path):
    path = tmp_path / "members.csv"
    path.write_text(
        "ticker,from,to_exclusive\nAAA,2020-01-01,\nBBB,2024-01-04,\nGONE,2023-01-01,2024-01-03\n"
        "OLD,2020-01-01,2021-01-01\n"
    )
    return path


def test_parquet_and_csv_are_the_same_market(bars, tmp_path):
    bars.to_parquet(tmp_path / "bars.parquet")
    bars.to_csv(tmp_path / "bars.csv", index=False)
    parquet, csv = load_market(tmp_path / "bars.parquet"), load_market(str(tmp_path / "bars.csv"))
    assert parquet.content_hash == csv.content_hash == load_market(bars).content_hash
    assert parquet.manifest["path"] == "bars.parquet"
    assert str(tmp_path) not in json.dumps(dict(parquet.manifest))


def test_members_without_prices_are_named(bars, members):
    market = load_market(bars, members=members)
    assert market.manifest["missing"] == ["GONE"]
    assert market.manifest["without_prices"] == {"GONE": [["2024-01-02", "2024-01-02"]]}
    assert_array_equal(market.member[:, 1], [False, False, True, True, True, True])
    # 6 sessions of AAA, 4 of BBB, 1 of GONE: 10 of 11 member-days have a bar
    assert market.manifest["coverage"] == {"2024": round(10 / 11, 6)}


def test_b11_a_name_without_data_stops_the_job(bars):
    with pytest.raises(InputError, match=r"no prices for CCC \(1 of 3 names\)"):
        load_market(bars, members=["AAA", "BBB", "CCC"])
    market = load_market(bars, members=["AAA", "BBB", "CCC"], allow_missing=True)
    assert market.tickers == ("AAA", "BBB")
    assert market.manifest["missing"] == ["CCC"]
    assert market.manifest["survivorship"] is True


def test_a_list_of_members_leaves_the_other_names_out(bars):
    market = load_market(bars, members=["BBB"])
    assert market.tickers == ("BBB",)
    assert market.member.all()


def test_the_benchmark_is_no_member(bars):
    assert load_market(bars, benchmark="BBB").tickers == ("AAA", "QQQ")
    with pytest.raises(InputError, match="QQQ cannot be the benchmark and a member"):
        load_market(bars, members=["AAA", "QQQ"])


def test_missing_and_foreign_files(bars, tmp_path):
    with pytest.raises(InputError, match=r"there is no market .*nowhere\.parquet"):
        load_market(tmp_path / "nowhere.parquet")
    (tmp_path / "bars.xlsx").write_text("x")
    with pytest.raises(InputError, match=r"neither \.parquet nor \.csv"):
        load_market(tmp_path / "bars.xlsx")
    with pytest.raises(InputError, match="no rows for the benchmark SPY"):
        load_market(bars, benchmark="SPY")
    with pytest.raises(InputError, match="unknown universe 'dax'"):
        load_market(bars, members="dax")


def test_sample_says_what_it_is():
    market = sample_market()
    assert market.shape == (8313, 20)
    assert str(market.dates[0])[:10] == "1990-01-02"
    assert str(market.dates[-1])[:10] == "2022-12-28"
    assert market.open is None
    assert market.volume is None
    assert market.benchmark == "S&P 500 price index (dividends left out)"
    assert market.manifest["benchmark_kind"] == "price return"
    assert market.manifest["survivorship"] is True
    assert "survivors" in market.manifest["membership"]
    assert market.has_bar.all()
    # the index closed at 359.69 on the first session and at 3783.22 on the last
    assert market.benchmark_close[-1] / market.benchmark_close[0] == pytest.approx(3783.22 / 359.69)
    assert load_market("sample").content_hash == market.content_hash


def test_sample_and_snapshots_carry_their_own_members_and_benchmark(bars, tmp_path):
    with pytest.raises(InputError, match="carries its own members"):
        load_market("sample", members="nasdaq100")
    with pytest.raises(InputError, match="has the benchmark S&P 500"):
        load_market("sample", benchmark="SPY")
    market = load_market(bars)
    save_snapshot(market, tmp_path / "snapshot")
    assert load_market(tmp_path / "snapshot").content_hash == market.content_hash
    (tmp_path / "plain").mkdir()
    with pytest.raises(InputError, match="holds no snapshot"):
        load_market(tmp_path / "plain")


@pytest.mark.shared
def test_real_bars_and_members(shared):
    begin = time.perf_counter()
    market = load_market(shared / "data" / "nasdaq100_daily.parquet", members=shared / "data" / "nasdaq100_members.csv")
    assert time.perf_counter() - begin < 10
    assert market.shape == (3376, 194)
    assert market.manifest["repairs"] == []
    members = {
        day: int((market.member & market.has_bar)[market.row_of(day)].sum())
        for day in ("2020-05-26", "2019-05-13", "2016-01-04")
    }
    assert members == {"2020-05-26": 103, "2019-05-13": 102, "2016-01-04": 101}
    first, last = market.window("2020-05-26", "2021-05-26")
    assert market.benchmark_close[last] / market.benchmark_close[first] - 1 == pytest.approx(0.465863, abs=1e-6)
    assert str(market.last_bar[market.tickers.index("YHOO")])[:10] == "2017-06-16"
    assert {"LVLT", "RIMM", "NIHD"} <= set(market.manifest["missing"])
    assert "META" not in market.manifest["missing"]


def test_the_origin_of_a_market_tells_its_column_of_tickers(bars, tmp_path):
    path = tmp_path / "bars.csv"
    bars.rename(columns={"ticker": "firm"}).to_csv(path, index=False)
    market = load_market(path, ticker_column="firm")
    assert market.origin == {"path": str(path), "ticker_column": "firm"}
    assert load_market(**market.origin).content_hash == market.content_hash == load_market(bars).content_hash
