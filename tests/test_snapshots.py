import json
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import numpy as np
import pyarrow.parquet as pq
import pytest
from made_markets import random_market
from numpy.testing import assert_array_equal

from finpod.errors import DataError
from finpod.market.data import MarketData
from finpod.market.load import load_snapshot, save_snapshot


@pytest.fixture
def market():
    """Awkward on purpose: gaps, an odd NaN, columns out of order, a name without any bar, a benchmark with a hole."""
    dates = np.array(["2024-01-02", "2024-01-03", "2024-01-04"], dtype="datetime64[ns]")
    close = np.array([[10.0, 0.1 + 0.2, np.nan], [11.0, np.nan, np.nan], [np.pi, 7.0, np.nan]])
    close[1, 1] = -np.nan
    return MarketData(
        dates=dates,
        tickers=("ZZ", "NA", "NEVER"),
        close=close,
        open=close * 0.99,
        volume=close * 1e5,
        factor=np.where(np.isnan(close), np.nan, 0.98),
        member=np.array([[1, 0, 1]] * 3, dtype=bool),
        benchmark="QQQ",
        benchmark_close=np.array([400.0, np.nan, 410.0]),
        benchmark_open=np.array([399.0, np.nan, 409.5]),
        manifest={"source": "file", "notes": ["a note"]},
    )


def test_b29_a_snapshot_comes_back_to_the_last_bit(market, tmp_path):
    part = market.rows(0, 2)
    again = load_snapshot(save_snapshot(part, tmp_path / "data" / "three"))
    assert again.content_hash == part.content_hash
    assert (again.tickers, again.manifest) == (part.tickers, part.manifest)
    assert again.tables.keys() == part.tables.keys()
    for name, table in {"dates": part.dates, "last_bar": part.last_bar, **part.tables}.items():
        assert_array_equal(getattr(again, name), table)
    assert str(again.last_bar[0])[:10] == "2024-01-04"  # that of the whole snapshot, not of the slice
    assert np.isnat(again.last_bar[2])


def test_b29_the_manifest_records_source_time_and_hash(market, tmp_path):
    folder = save_snapshot(market, tmp_path / "three")
    content = json.loads((folder / "manifest.json").read_text())
    assert (content["hash"], content["source"]) == (market.content_hash, "file")
    created = datetime.strptime(content["created"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - created).total_seconds()) < 60
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
