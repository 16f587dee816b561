import json
import multiprocessing
import sys
from datetime import UTC, datetime

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal

from finpod.errors import DataError, InputError
from finpod.market.data import MarketData
from finpod.market.load import sample_market
from finpod.market.snapshots import load_snapshot, save_snapshot


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
    folder = save_snapshot(market.rows(0, 2), tmp_path / "data" / "three")
    again = load_snapshot(folder)
    assert again.content_hash == market.rows(0, 2).content_hash
    assert again.tickers == market.tickers
    assert again.manifest == market.manifest
    assert again.high is None
    assert again.low is None
    for name in (
        "dates",
        "open",
        "close",
        "volume",
        "factor",
        "member",
        "last_bar",
        "benchmark_close",
        "benchmark_open",
    ):
        assert_array_equal(getattr(again, name), getattr(market.rows(0, 2), name))
    assert str(again.last_bar[0])[:10] == "2024-01-04"  # that of the whole snapshot, not of the slice
    assert np.isnat(again.last_bar[2])


def test_b29_the_manifest_records_source_time_and_hash(market, tmp_path):
    folder = save_snapshot(market, tmp_path / "three", created=datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC))
    content = json.loads((folder / "manifest.json").read_text())
    assert content["hash"] == market.content_hash
    assert content["source"] == "file"
    assert content["created"] == "2024-05-06T07:08:09Z"
    assert set(content["versions"]) == {"finpod", "numpy", "pandas", "pyarrow"}
    assert sorted(path.name for path in folder.iterdir()) == ["bars.parquet", "manifest.json"]
    assert pq.read_table(folder / "bars.parquet").column_names[:2] == ["date", "ticker"]


def test_an_existing_snapshot_is_refused(market, tmp_path):
    save_snapshot(market, tmp_path / "three")
    with pytest.raises(InputError, match="exists already"):
        save_snapshot(market.rows(0, 2), tmp_path / "three")
    save_snapshot(market.rows(0, 2), tmp_path / "three", overwrite=True)
    assert load_snapshot(tmp_path / "three").shape == (2, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["three"]


def test_only_a_snapshot_is_replaced(market, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("precious")
    with pytest.raises(InputError, match=r"it holds 'a.jpg'"):
        save_snapshot(market, tmp_path / "photos", overwrite=True)
    folder = save_snapshot(market, tmp_path / "three")
    (folder / "notes.txt").write_text("precious")
    with pytest.raises(InputError, match=r"three holds 'notes.txt', which is no part of a snapshot"):
        save_snapshot(market.rows(0, 2), folder, overwrite=True)
    assert load_snapshot(folder).content_hash == market.content_hash
    assert (folder / "notes.txt").read_text() == "precious"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text("{}")
    with pytest.raises(InputError, match="run is not a snapshot"):
        save_snapshot(market, tmp_path / "run", overwrite=True)


def test_a_failed_write_leaves_nothing(market, tmp_path, monkeypatch):
    def full(path, content):
        raise InputError(f"cannot write {path}: No space left on device; choose a folder you may write to")

    monkeypatch.setattr("finpod.market.snapshots.write_text", full)  # the manifest, once the bars are there
    with pytest.raises(InputError, match="No space left on device"):
        save_snapshot(market, tmp_path / "three")
    assert list(tmp_path.iterdir()) == []


def test_changed_bars_are_noticed(market, tmp_path):
    folder = save_snapshot(market, tmp_path / "three")
    table = pq.read_table(folder / "bars.parquet")
    close = table["close"].to_numpy().copy()
    close[0] += 1e-12
    pq.write_table(table.set_column(table.column_names.index("close"), "close", [close]), folder / "bars.parquet")
    with pytest.raises(DataError, match="does not have the hash"):
        load_snapshot(folder)


@pytest.mark.parametrize("fault", ["cut bars", "no bars", "cut manifest", "missing key", "other format"])
def test_damaged_snapshots_end_in_one_line(market, tmp_path, fault):
    folder = save_snapshot(market, tmp_path / "three")
    bars, manifest = folder / "bars.parquet", folder / "manifest.json"
    content = json.loads(manifest.read_text())
    if fault == "cut bars":
        bars.write_bytes(bars.read_bytes()[:500])
    elif fault == "no bars":
        bars.unlink()
    elif fault == "cut manifest":
        manifest.write_text(manifest.read_text()[:100])
    elif fault == "missing key":
        del content["tickers"]
        manifest.write_text(json.dumps(content))
    else:
        manifest.write_text(json.dumps(content | {"format": 99}))
    with pytest.raises(DataError, match="format 99" if fault == "other format" else "damaged") as caught:
        load_snapshot(folder)
    assert "\n" not in str(caught.value)
    assert ("is damaged" in str(caught.value)) == (fault != "other format")


def test_the_same_content_again_changes_nothing(market, tmp_path):
    folder = save_snapshot(market, tmp_path / "three", created=datetime(2024, 5, 6, tzinfo=UTC))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert save_snapshot(market, tmp_path / "three", overwrite=True) == folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (folder / "bars.parquet").write_bytes(b"damaged")
    with pytest.raises(InputError, match="exists already"):
        save_snapshot(market, tmp_path / "three")
    save_snapshot(market, tmp_path / "three", overwrite=True)
    assert load_snapshot(folder).content_hash == market.content_hash


def writes(folder, days, start, results):
    """Write a snapshot again and again, reading it each time; report the hashes that were found."""
    market = sample_market().rows(0, days)
    start.wait()
    found = set()
    try:
        for _ in range(6):
            save_snapshot(market, folder, overwrite=True)
            found.add(load_snapshot(folder).content_hash)
        results.put(found)
    except Exception as error:  # told to the parent, which fails
        results.put(f"{type(error).__name__}: {error}")


def test_four_processes_write_the_same_snapshot_at_once(tmp_path):
    """Two pairs of different content: each reader finds a whole snapshot of one of the writers."""
    days = (250, 250, 251, 251)
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    folder = tmp_path / "data" / "same"
    workers = [context.Process(target=writes, args=(folder, count, start, results)) for count in days]
    for worker in workers:
        worker.start()
    start.set()
    found = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(timeout=60)
    expected = {sample_market().rows(0, count).content_hash for count in days}
    assert all(isinstance(hashes, set) and hashes <= expected for hashes in found), found
    assert load_snapshot(folder).content_hash in expected
    assert [path.name for path in folder.parent.iterdir()] == ["same"]
    assert sorted(path.name for path in folder.iterdir()) == ["bars.parquet", "manifest.json"]


def test_without_locks_writing_is_still_all_or_nothing(market, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    folder = save_snapshot(market, tmp_path / "three")
    assert load_snapshot(folder).content_hash == market.content_hash
