"""A result as JSON and as a folder with checksums, which are verified on loading."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, get_type_hints

import pandas as pd

from finpod import files
from finpod.errors import InputError, did_you_mean, first_line
from finpod.evidence.attribution import attribute
from finpod.evidence.skill import evidence
from finpod.files import BACKTESTS, RESULT, new_folder, write_text
from finpod.records import Audit, Event, ResultWarning, records
from finpod.result import BacktestResult
from finpod.trading.ledger import Costs

FORMAT = 3
SUMS = "SHA256SUMS"
"""File of a saved run that holds the checksums of its other files."""
SUMMED = ("fan.parquet", RESULT, "returns.csv", "trades.csv", "weights.parquet")
"""Files with a checksum in `SUMS`. run.json has none, as it differs from run to run."""
PLAIN = [
    name
    for name, kind in get_type_hints(BacktestResult).items()
    if kind in (str, str | None, bool, int, float, Mapping[str, Any])
]
"""Fields of a result that are stored unchanged in result.json."""
RECORDS = ("metrics", "benchmark_metrics", "equal_weight_metrics", "relative", "relative_to_equal_weight",
           "relative_to_anchor")  # fmt: skip
"""Dataclasses of a result that are written to result.json."""
DERIVED = ("table", "windows", "cost_sweep", "capacity", "spread", "agent_spread")
"""Mappings of a result that are written to result.json."""
_OTHERS = {name: f"{name}_equity" for name in ("benchmark", "equal_weight", "anchor")}
CURVES = {"equity": "equity", **_OTHERS, "return": "returns", "turnover": "turnover"}
"""Column of returns.csv -> field of a result."""
NAMED = {"variants": "variant: ", "agents": "agent: ", "baselines": "baseline: "}
"""Field with several named curves -> prefix of their columns in returns.csv."""


def to_json(result: BacktestResult) -> str:
    """Return the result without its series as deterministic JSON. Undefined figures are null."""
    content = {
        "format": FORMAT,
        "start": f"{result.equity.index[0]:%Y-%m-%d}",
        "end": f"{result.equity.index[-1]:%Y-%m-%d}",
        "costs": asdict(result.costs),
        "cash": float(result.equity.iloc[0]),
        "audit": None if result.audit is None else result.audit.to_record(),
        "warnings": records(result.warnings),
        "events": records(result.events),
        "significance": evidence(result),
        "attribution": attribute(result),
        "baselines": {name: asdict(result.metrics_of(equity)) for name, equity in result.baselines.items()},
    }
    content |= {name: asdict(getattr(result, name)) for name in RECORDS}
    content |= {name: getattr(result, name) for name in (*PLAIN, *DERIVED)}
    return files.to_json(content)


def save(
    result: BacktestResult, folder: Path, *, overwrite: bool = False, run: Mapping[str, Any] | None = None
) -> Path:
    """Write the result to the files `SUMMED`, and `run` (clock times, command) to run.json. Return the folder.

    Either all files are written, or none. SHA256SUMS has the checksums of all but run.json, in the format of
    `sha256sum`. Raises InputError if the folder cannot be written, or if it exists and `overwrite` is False.
    """
    curves = {column: getattr(result, field) for column, field in CURVES.items()}
    for field, prefix in NAMED.items():
        curves |= {f"{prefix}{name}": equity for name, equity in getattr(result, field).items()}
    with new_folder(folder, overwrite=overwrite) as fresh:
        write_text(fresh / RESULT, to_json(result))
        write_text(fresh / "run.json", files.to_json(run or {}))
        write_text(fresh / "returns.csv", pd.DataFrame(curves).to_csv(index_label="date"))
        write_text(fresh / "trades.csv", result.trades.to_csv(index=False))
        result.weights.to_parquet(fresh / "weights.parquet")
        if len(result.fan):
            result.fan.to_parquet(fresh / "fan.parquet")
        write_text(fresh / SUMS, checksums(fresh))
    return folder


def checksums(folder: Path) -> str:
    """Return the checksums of the existing files of `SUMMED`, one line per file, in the format of `sha256sum`."""
    there = [name for name in SUMMED if (folder / name).exists()]
    return "".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in there)


def run_folder(run: str | PathLike[str]) -> Path:
    """Return the folder of a run. A name without slashes means backtests/NAME, or ./NAME if only this folder exists.
    Any other path is returned unchanged."""
    if not isinstance(run, (str, PathLike)):
        raise InputError(f"run is {run!r:.60}; pass a folder, or a name under {BACKTESTS}/", argument="run")
    path, saved = Path(run), BACKTESTS / run
    return saved if path.name == str(run) and (saved.exists() or not path.exists()) else path


def names_of(folders: Sequence[Path]) -> list[str]:
    """Return names of runs: the name of each folder, or its whole path if two folders have the same name."""
    short = [folder.resolve().name for folder in folders]
    return [str(folder) if short.count(name) > 1 else name for folder, name in zip(folders, short, strict=True)]


def load_result(run: str | PathLike[str]) -> BacktestResult:
    """Load a result that `BacktestResult.save` wrote, and verify its files.

    `run` is a folder, or a name under backtests/. Raises InputError for a folder without a result, for a result of
    another format, for a missing file, and for a file (except run.json) that differs from its checksum.
    """
    source = run_folder(run)
    try:
        content = json.loads((source / RESULT).read_text())
        version = content["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        runs = [path.parent.name for path in sorted(BACKTESTS.glob(f"*/{RESULT}")) if path.parent != source]
        fix = did_you_mean(source.name, runs, f"pass the folder of a run, or its name under {BACKTESTS}/")
        problem = f"has no backtest result ({_reason(error)})" if source.is_dir() else "does not exist"
        raise InputError(f"{source} {problem}; {fix}", argument="run") from error
    if version != FORMAT:
        raise InputError(f"{source} has result format {version}, not {FORMAT}; run the backtest again", argument="run")
    if wrong := _damage(source):
        raise InputError(f"{source} is damaged: {wrong}; run the backtest again", argument="run")
    try:
        return _assembled(source, content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{source} is damaged ({_reason(error)}); run the backtest again", argument="run") from error


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{Path(error.filename).name} is missing"
    return f"{first_line(error)} is missing" if isinstance(error, KeyError) else first_line(error)


def _damage(source: Path) -> str:
    """Return a text on the first file that is missing or was changed; empty if all files are intact."""
    if gone := [name for name in (SUMS, "run.json") if not (source / name).is_file()]:
        return f"{gone[0]} is missing"
    written, present = (
        {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}
        for text in ((source / SUMS).read_text(errors="replace"), checksums(source))
    )
    if not set(written) <= set(SUMMED):
        return f"{SUMS} was changed"
    wrong = next((name for name in sorted({*written, *present}) if written.get(name) != present.get(name)), "")
    return wrong and f"{wrong} {'was changed' if wrong in present else 'is missing'}"


def _assembled(source: Path, content: dict[str, Any]) -> BacktestResult:
    csv: dict[str, Any] = {"parse_dates": ["date"], "float_precision": "round_trip"}
    curves = pd.read_csv(source / "returns.csv", index_col="date", **csv)
    curves.index = pd.DatetimeIndex(curves.index).as_unit("ns")
    trades = pd.read_csv(source / "trades.csv", dtype={"ticker": str, "kind": str}, keep_default_na=False, **csv)
    trades["date"] = trades["date"].astype("datetime64[ns]")
    named: dict[str, Any] = {
        field: {name.removeprefix(prefix): curves[name].dropna() for name in curves if name.startswith(prefix)}
        for field, prefix in NAMED.items()
    }
    fan = source / "fan.parquet"
    return BacktestResult(
        **{field: curves[column] for column, field in CURVES.items() if field.endswith("equity")},
        weights=pd.read_parquet(source / "weights.parquet"),
        trades=trades,
        turnover=curves["turnover"].dropna(),
        costs=Costs(**content["costs"]),
        fan=pd.read_parquet(fan) if fan.exists() else pd.DataFrame(),
        windows={name: (first, last) for name, (first, last) in content["windows"].items()},
        warnings=tuple(ResultWarning(**record) for record in content["warnings"]),
        events=tuple(Event(**record) for record in content["events"]),
        audit=None if content["audit"] is None else Audit.from_record(content["audit"]),
        cost_sweep=_by_number(content["cost_sweep"]),
        capacity=_by_number(content["capacity"]),
        **named,
        **{name: content[name] for name in PLAIN},
    )


def _by_number(sweep: Mapping[str, Any]) -> dict[float, Any]:
    return dict(sorted((float(setting), figures) for setting, figures in sweep.items()))
