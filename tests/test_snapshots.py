import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow.parquet as pq
import pytest
from made_markets import NAN, random_market
from numpy.testing import assert_array_equal

from finpod.errors import DataError
from finpod.market.load import load_snapshot, save_snapshot


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
