"""Snapshots: a market in a folder, as parquet and a manifest, addressed by the hash of its content."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from finpod.errors import DataError, InputError, first_line
from finpod.files import SNAPSHOT, locked, new_folder, to_json, write_bytes, write_text
from finpod.market.cleaning import package_versions
from finpod.market.data import MarketData
from finpod.market.extra import PREFIX, ExtraData

FORMAT = 1
BARS = "bars.parquet"
_TABLES = ("open", "high", "low", "close", "volume", "factor", "member")
_PERIODS = ("periods_per_year", "sessions_per_year")
_BENCHMARK = ("benchmark_close", "benchmark_open")
SHARED = "extra_shared"
"""In the manifest: names of the extra columns with one value for all tickers."""


def save_snapshot(
    market: MarketData, folder: str | Path, *, overwrite: bool = False, created: datetime | None = None
) -> Path:
    """Write the market to `folder`, all or nothing, and return the folder. `created` is the recorded time, by default now.

    `bars.parquet` has one row per session and ticker, sorted by both, NaN where there is no bar. The benchmark, and extra
    columns with one value for all tickers, are repeated on every row of their session. Concurrent writers take turns. A
    folder with the same content is left unchanged. Raises InputError if the folder holds anything else (unless `overwrite`)
    or cannot be written.
    """
    days, names = market.shape
    columns: dict[str, Any] = {
        "date": pa.array(np.repeat(market.dates, names)),
        "ticker": pa.DictionaryArray.from_arrays(np.tile(np.arange(names, dtype=np.int32), days), list(market.tickers)),
    }
    columns |= {name: table.ravel() for name in _TABLES if (table := getattr(market, name)) is not None}
    columns |= {name: np.repeat(series, names) for name in _BENCHMARK if (series := getattr(market, name)) is not None}
    shared = [name for name in market.extra.names if market.extra.is_shared(name)]
    for name, table in market.extra.tables.items():
        columns[f"{PREFIX}{name}"] = table.ravel() if table.ndim == 2 else np.repeat(table, names)
    content = {
        "format": FORMAT,
        "hash": market.content_hash,
        "created": f"{(created or datetime.now(UTC)).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "source": market.manifest.get("source", ""),
        "sessions": days,
        "tickers": list(market.tickers),
        "last_bar": [str(day) for day in market.last_bar],
        "benchmark": market.benchmark,
        **({SHARED: shared} if shared else {}),
        **market.frequency,
        "market": dict(market.manifest),
        "versions": package_versions(),
    }
    target = Path(folder)
    with suppress(OSError):  # if it fails, so does the write below, which names the path
        target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.parent):  # no process reads or replaces what another is replacing
        if not _holds(target, content):
            with new_folder(target, overwrite=overwrite) as fresh:
                buffer = io.BytesIO()
                pq.write_table(pa.table(columns), buffer, compression="zstd")
                write_bytes(fresh / BARS, buffer.getvalue())
                write_text(fresh / SNAPSHOT, to_json(content))
    return target


def _holds(target: Path, content: dict[str, Any]) -> bool:
    """Whether the folder has this content, undamaged, written at any time."""
    try:
        there = json.loads((target / SNAPSHOT).read_text())
        same = json.loads(to_json({**content, "created": there["created"]})) == there
        return same and _load(target).content_hash == content["hash"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def load_snapshot(folder: str | Path) -> MarketData:
    """Load a snapshot and check its hash, after any process that is writing it has finished.

    Raises InputError for a folder that holds no snapshot, DataError for one that is damaged or of another format.
    """
    source = Path(folder)
    with locked(source.parent, shared=True):
        return _load(source)


def _load(source: Path) -> MarketData:
    if not (source / SNAPSHOT).is_file():
        raise InputError(
            f"{source} holds no snapshot (no {SNAPSHOT}); give a folder under data/, or a parquet or CSV file"
        )
    try:
        content = json.loads((source / SNAPSHOT).read_text())
        if content["format"] != FORMAT:
            raise DataError(
                f"{source} has snapshot format {content['format']}, this finpod reads {FORMAT}; make it again"
            )
        market = _assemble(content, pq.read_table(source / BARS))
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = first_line(error)
        raise DataError(f"snapshot {source} is damaged ({reason}); fetch or import it again") from error
    if market.content_hash != content["hash"]:
        raise DataError(
            f"snapshot {source} is damaged: its content does not have the hash {content['hash'][:12]} of its "
            "manifest; fetch or import it again"
        )
    return market


def _assemble(content: dict[str, Any], table: pa.Table) -> MarketData:
    names, days = len(content["tickers"]), content["sessions"]
    grids: dict[str, Any] = {
        name: table[name].to_numpy().reshape(days, names) for name in table.column_names if name != "ticker"
    }
    extra = {name.removeprefix(PREFIX): grid for name, grid in grids.items() if name.startswith(PREFIX)}
    shared = {name: extra[name][:, 0] for name in content.get(SHARED, ())}
    tables: dict[str, Any] = {name: grids[name] for name in _TABLES if name in grids}
    tables |= {name: np.ascontiguousarray(grids[name][:, 0]) for name in _BENCHMARK if name in grids}
    return MarketData(
        dates=grids["date"][:, 0],
        tickers=tuple(content["tickers"]),
        benchmark=content["benchmark"],
        last_bar=np.array(content["last_bar"], dtype="datetime64[ns]"),
        **{name: content[name] for name in _PERIODS if name in content},  # a snapshot of before is measured
        manifest=content["market"],
        extra=ExtraData(extra | shared, names),
        **tables,
    )
