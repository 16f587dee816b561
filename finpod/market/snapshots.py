"""Snapshots: a market saved in a folder as parquet and a manifest with the hash of its content."""

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
from finpod.market.data import SERIES, MarketData
from finpod.market.extra import PREFIX, ExtraData

FORMAT = 1
BARS = "bars.parquet"
SHARED = "extra_shared"
"""Manifest key for the extra columns that have one value for all tickers."""


def save_snapshot(market: MarketData, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Write the market to `folder` atomically and return the folder.

    `bars.parquet` has one row per session and ticker, sorted by both, NaN where there is no bar. The benchmark, and extra
    columns with one value for all tickers, are repeated on every row of a session. Concurrent writers wait for each other.
    Raises InputError if the folder exists (unless `overwrite`) or cannot be written.
    """
    days, assets = market.shape
    tickers = np.tile(np.arange(assets, dtype=np.int32), days)
    columns: dict[str, Any] = {
        "date": np.repeat(market.dates, assets),
        "ticker": pa.DictionaryArray.from_arrays(tickers, list(market.tickers)),
    }
    tables = market.tables | {f"{PREFIX}{name}": table for name, table in market.extra.tables.items()}
    columns |= {name: np.repeat(table, assets) if table.ndim == 1 else table.ravel() for name, table in tables.items()}
    shared = [name for name in market.extra.names if market.extra.is_shared(name)]
    content = {
        "format": FORMAT,
        "hash": market.content_hash,
        "created": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
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
    with suppress(OSError):  # if this fails, the write below fails as well and names the path
        target.parent.mkdir(parents=True, exist_ok=True)
    # The lock keeps other processes from reading or replacing the folder meanwhile.
    with locked(target.parent), new_folder(target, overwrite=overwrite) as fresh:
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer, compression="zstd")
        write_bytes(fresh / BARS, buffer.getvalue())
        write_text(fresh / SNAPSHOT, to_json(content))
    return target


def load_snapshot(folder: str | Path) -> MarketData:
    """Return a snapshot after checking its hash. Waits for a process that is writing it.

    Raises InputError for a folder without a snapshot, DataError for a snapshot that is damaged or has another format.
    """
    source = Path(folder)
    with locked(source.parent, shared=True):
        if not (source / SNAPSHOT).is_file():
            raise InputError(
                f"{source} holds no snapshot (no {SNAPSHOT}); give a folder under data/, or a parquet or CSV file"
            )
        try:
            content = json.loads((source / SNAPSHOT).read_text())
            if content["format"] != FORMAT:
                raise DataError(
                    f"{source} has snapshot format {content['format']}, and this finpod reads {FORMAT}; fetch or import it again"
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
    shape = content["sessions"], len(content["tickers"])
    grids: dict[str, Any] = {
        name: table[name].to_numpy().reshape(shape) for name in table.column_names if name != "ticker"
    }
    extra = {name.removeprefix(PREFIX): grids.pop(name) for name in list(grids) if name.startswith(PREFIX)}
    grids |= {name: content.get(name) for name in ("periods_per_year", "sessions_per_year")}
    grids |= {name: grids[name][:, 0] for name in SERIES if name in grids}
    return MarketData(
        dates=grids.pop("date")[:, 0],
        tickers=tuple(content["tickers"]),
        benchmark=content["benchmark"],
        last_bar=np.array(content["last_bar"], dtype="datetime64[ns]"),
        manifest=content["market"],
        extra=ExtraData(extra | {name: extra[name][:, 0] for name in content.get(SHARED, ())}, shape[1]),
        **grids,
    )
