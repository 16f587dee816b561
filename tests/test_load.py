"""Markets from files, the sample, and snapshots."""

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from made_bars import frame
from made_markets import NAN, random_market
from numpy.testing import assert_array_equal

from finpod.errors import DataError, InputError
from finpod.market.load import load_market, load_snapshot, sample_market, save_snapshot

BARS = frame(days=pd.bdate_range("2024-01-02", periods=6))
"""Bars of AAA, BBB and QQQ."""


def test_b11_members_without_prices_are_reported_and_of_a_list_refused(tmp_path):
    (tmp_path / "members.csv").write_text(
        "ticker,from,to_exclusive\nAAA,2020-01-01,\nBBB,2024-01-04,\nGONE,2023-01-01,2024-01-03\n"
    )
    market = load_market(BARS, members=tmp_path / "members.csv")
    assert market.manifest["missing"] == ["GONE"]
    # 6 sessions of AAA, 4 of BBB, 1 of GONE: 10 of 11 member-days have a bar
    assert market.manifest["coverage"] == {"2024": round(10 / 11, 6)}
    with pytest.raises(InputError, match=r"CCC \(1 of 3 ") as caught:
        load_market(BARS, members=["AAA", "BBB", "CCC"])
    assert caught.value.argument == "allow_missing"
    market = load_market(BARS, members=["AAA", "CCC"], allow_missing=True)
    assert market.tickers == ("AAA",)
    assert market.manifest["missing"] == ["CCC"]
    assert market.manifest["survivorship"] is True
    assert load_market(BARS, benchmark="BBB").tickers == ("AAA", "QQQ")


def test_missing_and_foreign_files(tmp_path):
    (tmp_path / "bars.xlsx").write_text("x")
    (tmp_path / "plain").mkdir()
    for name in ("bars.xlsx", "plain"):
        with pytest.raises(InputError, match=re.escape(name)):
            load_market(tmp_path / name)
    for options, value in (
        ({"benchmark": "SPY"}, "SPY"),
        ({"members": []}, "list"),
        ({"members": ["AAA", "QQQ"]}, "QQQ"),
    ):
        with pytest.raises(InputError, match=value):
            load_market(BARS, **options)
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


def test_sample_and_snapshots_have_their_own_members_and_benchmark(tmp_path):
    market = load_market(BARS)
    folder = save_snapshot(market, tmp_path / "snapshot")
    assert load_market(folder).content_hash == load_market(folder, benchmark="qqq").content_hash == market.content_hash
    for path in (folder, "sample"):
        for options in ({"members": "nasdaq100"}, {"benchmark": "SPY"}, {"renames": {"A": "B"}}):
            with pytest.raises(InputError) as caught:
                load_market(path, **options)
            assert caught.value.argument == next(iter(options))


def test_the_origin_of_a_market_repeats_its_loading(tmp_path):
    path = tmp_path / "bars.csv"
    BARS.rename(columns={"ticker": "firm"}).to_csv(path, index=False)
    market = load_market(path, ticker_column="firm", members=["AAA", "BBB"])
    assert market.manifest["path"] == "bars.csv"
    assert str(tmp_path) not in json.dumps(dict(market.manifest))
    assert market.origin == {"path": str(path), "ticker_column": "firm", "members": ["AAA", "BBB"]}
    assert load_market(**market.origin).content_hash == market.content_hash == load_market(BARS).content_hash
    pd.DataFrame({"date": ["2024-01-03"], "vix": [20.0]}).to_csv(tmp_path / "vix.csv", index=False)
    market = load_market(path, ticker_column="firm", extra=[tmp_path / "vix.csv"])
    assert market.origin["extra"] == [str(tmp_path / "vix.csv")]
    assert load_market(**market.origin).content_hash == market.content_hash
    assert load_market(BARS).origin == {}


# --- snapshots ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def market():
    """Awkward on purpose: gaps, an odd NaN, a name without any bar, a benchmark with a hole."""
    whole = random_market(3, gaps=0, manifest={"source": "file", "notes": ["a note"]}, benchmark=[400.0, NAN, 410.0])
    return replace(whole, close=np.c_[whole.close[:, :4], [-NAN] * 3], last_bar=None)


def test_b29_a_snapshot_comes_back_to_the_last_bit(market, tmp_path):
    part = market.rows(0, 2)
    again = load_snapshot(save_snapshot(part, tmp_path / "data" / "three"))
    assert again.content_hash == part.content_hash
    assert (again.tickers, again.manifest) == (part.tickers, part.manifest)
    assert again.tables.keys() == part.tables.keys()
    for name, table in {"dates": part.dates, "last_bar": part.last_bar, **part.tables}.items():
        assert_array_equal(getattr(again, name), table)
    assert again.last_bar[0] > again.dates[-1]  # that of the whole snapshot, not of the slice
    assert np.isnat(again.last_bar[4])
    content = json.loads((tmp_path / "data" / "three" / "manifest.json").read_text())
    assert (content["hash"], content["source"], content["created"][:2]) == (part.content_hash, "file", "20")
    assert set(content["versions"]) == {"finpod", "numpy", "pandas", "pyarrow"}


def change(bars):
    table = pq.read_table(bars)
    close = table["close"].to_numpy().copy()
    close[0] += 1e-12
    pq.write_table(table.set_column(table.column_names.index("close"), "close", [close]), bars)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda bars, manifest, content: bars.write_bytes(bars.read_bytes()[:500]), "is damaged"),
        (lambda bars, manifest, content: change(bars), "does not have the hash"),
        (lambda bars, manifest, content: manifest.write_text(manifest.read_text()[:100]), "is damaged"),
        (lambda bars, manifest, content: manifest.write_text(json.dumps(content | {"tickers": None})), "is damaged"),
        (lambda bars, manifest, content: manifest.write_text(json.dumps(content | {"format": 99})), "format 99"),
    ],
)
def test_damaged_snapshots_end_in_one_line(market, tmp_path, fault, message):
    folder = save_snapshot(market, tmp_path / "three")
    manifest = folder / "manifest.json"
    fault(folder / "bars.parquet", manifest, json.loads(manifest.read_text()))
    with pytest.raises(DataError, match=message) as caught:
        load_snapshot(folder)
    assert "\n" not in str(caught.value)


def test_several_writers_take_turns(tmp_path):
    """Of two contents: each reader finds a whole snapshot of one of the writers. Locks hold between threads as well."""
    folder = tmp_path / "data" / "same"
    markets = [random_market(250), random_market(250), random_market(251)]

    def write_and_read(market):
        return {load_snapshot(save_snapshot(market, folder, overwrite=True)).content_hash for _ in range(6)}

    with ThreadPoolExecutor(3) as pool:
        read = set().union(*pool.map(write_and_read, markets))
    assert read <= {market.content_hash for market in markets}
    assert sorted(path.name for path in folder.parent.rglob("*")) == ["bars.parquet", "manifest.json", "same"]


def test_without_locks_writing_is_still_all_or_nothing(market, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    folder = save_snapshot(market, tmp_path / "three")
    assert load_snapshot(folder).content_hash == market.content_hash
