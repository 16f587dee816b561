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
    assert sorted(path.name for path in folder.iterdir()) == ["bars.parquet", "manifest.json"]
    assert pq.read_table(folder / "bars.parquet").column_names[:2] == ["date", "ticker"]


def test_only_a_snapshot_is_replaced(market, tmp_path):
    folder = save_snapshot(market, tmp_path / "three")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("precious")
    with pytest.raises(InputError, match=r"photos.*a\.jpg"):
        save_snapshot(market, tmp_path / "photos", overwrite=True)
    with pytest.raises(InputError, match="three"):
        save_snapshot(market.rows(0, 2), folder)
    assert load_snapshot(folder).content_hash == market.content_hash
    save_snapshot(market.rows(0, 2), folder, overwrite=True)
    assert load_snapshot(folder).shape == (2, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "three"]


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
    {
        "cut bars": lambda: bars.write_bytes(bars.read_bytes()[:500]),
        "no bars": bars.unlink,
        "cut manifest": lambda: manifest.write_text(manifest.read_text()[:100]),
        "missing key": lambda: manifest.write_text(json.dumps({**content, "tickers": None})),
        "other format": lambda: manifest.write_text(json.dumps(content | {"format": 99})),
    }[fault]()
    with pytest.raises(DataError, match="format 99" if fault == "other format" else "damaged") as caught:
        load_snapshot(folder)
    assert "\n" not in str(caught.value)
    assert ("is damaged" in str(caught.value)) == (fault != "other format")


def writes(folder, days, start, results):
    """Write a snapshot again and again, reading it each time; report the hashes that were read."""
    market = sample_market().rows(0, days)
    start.wait()
    hashes = set()
    try:
        for _ in range(6):
            save_snapshot(market, folder, overwrite=True)
            hashes.add(load_snapshot(folder).content_hash)
        results.put(hashes)
    except Exception as error:  # told to the parent, which fails
        results.put(f"{type(error).__name__}: {error}")


def test_several_processes_write_the_same_snapshot_at_once(tmp_path):
    """Of two contents: each reader finds a whole snapshot of one of the writers."""
    days = (250, 250, 251)
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    folder = tmp_path / "data" / "same"
    workers = [context.Process(target=writes, args=(folder, count, start, results)) for count in days]
    for worker in workers:
        worker.start()
    start.set()
    read = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(timeout=60)
    expected = {sample_market().rows(0, count).content_hash for count in days}
    assert all(isinstance(hashes, set) and hashes <= expected for hashes in read), read
    assert load_snapshot(folder).content_hash in expected
    assert [path.name for path in folder.parent.iterdir()] == ["same"]
    assert sorted(path.name for path in folder.iterdir()) == ["bars.parquet", "manifest.json"]


def test_without_locks_writing_is_still_all_or_nothing(market, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    folder = save_snapshot(market, tmp_path / "three")
    assert load_snapshot(folder).content_hash == market.content_hash
