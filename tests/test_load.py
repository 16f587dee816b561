import json
import re

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from finpod.errors import InputError
from finpod.market.load import load_market, sample_market, save_snapshot


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
    market = load_market(tmp_path / "bars.parquet")
    assert market.content_hash == load_market(bars).content_hash
    assert market.manifest["path"] == "bars.parquet"
    assert str(tmp_path) not in json.dumps(dict(market.manifest))


def test_b11_members_without_prices_are_reported_and_of_a_list_refused(bars, members):
    market = load_market(bars, members=members)
    assert market.manifest["missing"] == ["GONE"]
    assert market.manifest["without_prices"] == {"GONE": [["2024-01-02", "2024-01-02"]]}
    assert_array_equal(market.member[:, 1], [False, False, True, True, True, True])
    # 6 sessions of AAA, 4 of BBB, 1 of GONE: 10 of 11 member-days have a bar
    assert market.manifest["coverage"] == {"2024": round(10 / 11, 6)}
    with pytest.raises(InputError, match=r"CCC \(1 of 3 ") as caught:
        load_market(bars, members=["AAA", "BBB", "CCC"])
    assert caught.value.argument == "allow_missing"
    market = load_market(bars, members=["AAA", "BBB", "CCC"], allow_missing=True)
    assert market.tickers == ("AAA", "BBB")
    assert market.manifest["missing"] == ["CCC"]
    assert market.manifest["survivorship"] is True


def test_a_list_of_members_leaves_the_other_assets_out(bars):
    market = load_market(bars, members=["BBB"])
    assert market.tickers == ("BBB",)
    assert market.member.all()
    assert load_market(bars, benchmark="BBB").tickers == ("AAA", "QQQ")
    with pytest.raises(InputError, match="QQQ") as caught:
        load_market(bars, members=["AAA", "QQQ"])
    assert caught.value.argument == "benchmark"


def test_missing_and_foreign_files(bars, tmp_path):
    (tmp_path / "bars.xlsx").write_text("x")
    (tmp_path / "plain").mkdir()
    for name in ("nowhere.parquet", "bars.xlsx", "plain"):
        with pytest.raises(InputError, match=re.escape(name)):
            load_market(tmp_path / name)
    for options, value in (({"benchmark": "SPY"}, "SPY"), ({"members": []}, "list")):
        with pytest.raises(InputError, match=value):
            load_market(bars, **options)
    with pytest.raises(InputError, match="int"):
        load_market(3)


def test_the_sample_describes_itself():
    market = sample_market()
    assert market.shape == (8313, 20)
    assert [str(day)[:10] for day in market.dates[[0, -1]]] == ["1990-01-02", "2022-12-28"]
    assert market.open is market.volume is None
    assert market.benchmark == "S&P 500 price index (dividends left out)"
    assert (market.manifest["benchmark_kind"], market.manifest["survivorship"]) == ("price return", True)
    # the index closed at 359.69 on the first session and at 3783.22 on the last
    assert market.benchmark_close[-1] / market.benchmark_close[0] == pytest.approx(3783.22 / 359.69)
    assert load_market("sample").content_hash == market.content_hash


def test_sample_and_snapshots_have_their_own_members_and_benchmark(bars, tmp_path):
    market = load_market(bars)
    folder = save_snapshot(market, tmp_path / "snapshot")
    assert load_market(folder).content_hash == load_market(folder, benchmark="qqq").content_hash == market.content_hash
    for path in (folder, "sample"):
        for options in ({"members": "nasdaq100"}, {"benchmark": "SPY"}, {"renames": {"A": "B"}}):
            with pytest.raises(InputError) as caught:
                load_market(path, **options)
            assert caught.value.argument == next(iter(options))


def test_the_origin_of_a_market_repeats_its_loading(bars, tmp_path):
    path = tmp_path / "bars.csv"
    bars.rename(columns={"ticker": "firm"}).to_csv(path, index=False)
    market = load_market(path, ticker_column="firm", members=["AAA", "BBB"])
    assert market.origin == {"path": str(path), "ticker_column": "firm", "members": ["AAA", "BBB"]}
    assert load_market(**market.origin).content_hash == market.content_hash == load_market(bars).content_hash
    pd.DataFrame({"date": ["2024-01-03"], "vix": [20.0]}).to_csv(tmp_path / "vix.csv", index=False)
    market = load_market(path, ticker_column="firm", extra=[tmp_path / "vix.csv"])
    assert market.origin["extra"] == [str(tmp_path / "vix.csv")]
    assert load_market(**market.origin).content_hash == market.content_hash
    assert load_market(bars).origin == {}
