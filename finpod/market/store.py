"""Snapshots: a market in a folder, as parquet and a manifest, addressed by the hash of its content."""

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from finpod.atomic import new_folder, write_bytes, write_text
from finpod.errors import DataError, InputError
from finpod.jsonable import to_json
from finpod.market.clean import package_versions
from finpod.market.data import MarketData

FORMAT = 1
BARS, MANIFEST = "bars.parquet", "manifest.json"
_TABLES = ("open", "high", "low", "close", "volume", "factor", "member")
_BENCHMARK = ("benchmark_close", "benchmark_open")


def save_snapshot(
    market: MarketData, folder: str | Path, *, overwrite: bool = False, created: datetime | None = None
) -> Path:
    """Write the market to `folder` (all or nothing) and return it; `created` is the time to record, by default now.

    `bars.parquet` has one row a session and name, sorted by both, NaN where there is no bar; the benchmark stands beside
    every row of its session. Raises InputError if the folder exists (unless `overwrite`) or cannot be written.
    """
    days, names = market.shape
    columns: dict[str, Any] = {
        "date": pa.array(np.repeat(market.dates, names)),
        "ticker": pa.DictionaryArray.from_arrays(np.tile(np.arange(names, dtype=np.int32), days), list(market.tickers)),
    }
    columns |= {name: table.ravel() for name in _TABLES if (table := getattr(market, name)) is not None}
    columns |= {name: np.repeat(series, names) for name in _BENCHMARK if (series := getattr(market, name)) is not None}
    content = {
        "format": FORMAT,
        "hash": market.content_hash,
        "created": f"{(created or datetime.now(UTC)).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "source": market.manifest.get("source", ""),
        "sessions": days,
        "tickers": list(market.tickers),
        "last_bar": [str(day) for day in market.last_bar],
        "benchmark": market.benchmark,
        "market": dict(market.manifest),
        "versions": package_versions(),
    }
    target = Path(folder)
    with new_folder(target, overwrite=overwrite) as fresh:
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer, compression="zstd")
        write_bytes(fresh / BARS, buffer.getvalue())
        write_text(fresh / MANIFEST, to_json(content))
    return target


def load_snapshot(folder: str | Path) -> MarketData:
    """Read back what `save_snapshot` wrote, to the last bit, its hash checked.

    Raises InputError for a folder that holds no snapshot, DataError for one that is damaged or of another format.
    """
    source = Path(folder)
    if not (source / MANIFEST).is_file():
        raise InputError(
            f"{source} holds no snapshot (no {MANIFEST}); give a folder under data/, or a parquet or CSV file"
        )
    try:
        content = json.loads((source / MANIFEST).read_text())
        if content["format"] != FORMAT:
            raise DataError(
                f"{source} has snapshot format {content['format']}, this finpod reads {FORMAT}; make it again"
            )
        market = _assemble(content, pq.read_table(source / BARS))
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"snapshot {source} is damaged ({reason}); fetch or import it again") from error
    if market.content_hash != content["hash"]:
        raise DataError(
            f"snapshot {source} is damaged: its content does not have the hash {content['hash'][:12]} of its "
            "manifest; fetch or import it again"
        )
    return market


def _assemble(content: dict[str, Any], table: pa.Table) -> MarketData:
    names, days = len(content["tickers"]), content["sessions"]
    grids = {name: table[name].to_numpy().reshape(days, names) for name in table.column_names if name != "ticker"}
    return MarketData(
        dates=grids["date"][:, 0],
        tickers=tuple(content["tickers"]),
        benchmark=content["benchmark"],
        last_bar=np.array(content["last_bar"], dtype="datetime64[ns]"),
        manifest=content["market"],
        **{name: grids[name] for name in _TABLES if name in grids},
        **{name: np.ascontiguousarray(grids[name][:, 0]) for name in _BENCHMARK if name in grids},
    )
