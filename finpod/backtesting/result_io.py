"""A result as JSON and as a folder: written whole, read back and checked against itself."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
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
"""File of a saved run that tells whether the others are as they were written."""
SUMMED = ("fan.parquet", RESULT, "returns.csv", "trades.csv", "weights.parquet")
"""Files it is of; run.json differs from run to run."""
PLAIN: dict[str, tuple[type, ...]] = {
    "strategy": (str,),
    "benchmark": (str,),
    "anchor": (str,),
    "anchor_every": (int,),
    "fill": (str,),
    "whole_shares": (bool,),
    "risk_free": (int, float),
    "periods_per_year": (int, float),
    "sessions_per_year": (int, float),
    "trained_until": (str, type(None)),
    "trials": (int,),
    "opened": (int,),
    "agent": (dict,),
    "in_sample": (bool,),
    "variant_kind": (str,),
    "search": (dict,),
    "data_hash": (str,),
    "manifest": (dict,),
}
"""Fields that result.json holds as they are, and of what type."""
ADDED: dict[str, Any] = {"anchor": "equal-weight", "anchor_every": 1, "opened": 1}
"""Fields of it that results written earlier lack, whose anchor is the equal weight restored every session."""
AGENT = "agent: "
"""Begins the columns of returns.csv that hold the equity of a single agent."""
VARIANT = "variant: "
"""Begins the columns of returns.csv that hold the equity of a variant."""
BASELINE = "baseline: "
"""Begins those that hold the equity of a baseline."""


def to_json(result: BacktestResult) -> str:
    """Everything but the series, as deterministic JSON; undefined figures are null."""
    content = {
        "format": FORMAT,
        "start": f"{result.equity.index[0]:%Y-%m-%d}",
        "end": f"{result.equity.index[-1]:%Y-%m-%d}",
        "metrics": asdict(result.metrics),
        "benchmark_metrics": asdict(result.benchmark_metrics),
        "equal_weight_metrics": asdict(result.equal_weight_metrics),
        "relative": asdict(result.relative),
        "relative_to_equal_weight": asdict(result.relative_to_equal_weight),
        "relative_to_anchor": asdict(result.relative_to_anchor),
        "table": result.table,
        "costs": asdict(result.costs),
        "cash": float(result.equity.iloc[0]),
        "windows": result.windows,
        "cost_sweep": result.cost_sweep,
        "capacity": result.capacity,
        "audit": None if result.audit is None else result.audit.to_record(),
        "warnings": records(result.warnings),
        "events": records(result.events),
        "spread": result.spread,
        "agent_spread": result.agent_spread,
        "significance": evidence(result),
        "attribution": attribute(result).to_dict(),
        "baselines": {name: asdict(result.metrics_of(equity)) for name, equity in result.baselines.items()},
    } | {name: getattr(result, name) for name in PLAIN}
    return files.to_json(content)


def save(
    result: BacktestResult, folder: Path, *, overwrite: bool = False, run: Mapping[str, Any] | None = None
) -> Path:
    """Write result.json, returns.csv, trades.csv and weights.parquet, and run.json for clock times; all or nothing.

    SHA256SUMS holds the hashes of all but run.json, as `sha256sum --check` reads it. Raises InputError if the folder exists
    (unless `overwrite`) or cannot be written.
    """
    with new_folder(folder, overwrite=overwrite) as fresh:
        write_text(fresh / RESULT, to_json(result))
        write_text(fresh / "run.json", files.to_json(run or {}))
        curves = pd.DataFrame(
            {
                "equity": result.equity,
                "benchmark": result.benchmark_equity,
                "equal_weight": result.equal_weight_equity,
                "anchor": result.anchor_equity,
                "return": result.returns,
                "turnover": result.turnover,
            }
            | {f"{VARIANT}{name}": equity for name, equity in result.variants.items()}
            | {f"{AGENT}{name}": equity for name, equity in result.agents.items()}
            | {f"{BASELINE}{name}": equity for name, equity in result.baselines.items()}
        )
        write_text(fresh / "returns.csv", curves.to_csv(index_label="date"))
        write_text(fresh / "trades.csv", result.trades.to_csv(index=False))
        result.weights.to_parquet(fresh / "weights.parquet")
        if len(result.fan):
            result.fan.to_parquet(fresh / "fan.parquet")
        write_text(fresh / SUMS, checksums(fresh))
    return folder


def checksums(folder: Path) -> str:
    """A line for each of the `SUMMED` files that are there: its SHA-256 and its name, as `sha256sum` writes them."""
    there = [name for name in SUMMED if (folder / name).exists()]
    return "".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in there)


def run_folder(run: str | PathLike[str]) -> Path:
    """The folder of a run: the path itself, or backtests/NAME for a bare name that is no path here or is a run there."""
    path, kept = Path(run), BACKTESTS / run
    return kept if path.name == str(run) and (kept.exists() or not path.exists()) else path


def names_of(folders: Sequence[Path]) -> list[str]:
    """What runs are called: their folders, with as much of the path as tells those of equal names apart."""
    short = [folder.resolve().name for folder in folders]
    return [str(folder) if short.count(name) > 1 else name for folder, name in zip(folders, short, strict=True)]


def load_result(run: str | PathLike[str]) -> BacktestResult:
    """Read back what `BacktestResult.save` wrote, and check that nothing in it was changed or is missing.

    `run` is its folder, or its name under backtests/. The curves and trades must be those of result.json, and every file
    must hash to what `SUMS` says. Raises InputError for a folder that holds no result, one of another format, or a damaged
    one, and says what is wrong.
    """
    source = run_folder(run)
    try:
        content = json.loads((source / RESULT).read_text())
        found = content["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        runs = [path.parent.name for path in sorted(BACKTESTS.glob(f"*/{RESULT}")) if path.parent != source]
        fix = did_you_mean(source.name, runs, f"give a run: its folder, or its name under {BACKTESTS}/")
        raise InputError(f"{source} holds no backtest result ({_reason(error)}); {fix}", argument="run") from error
    if found != FORMAT:
        raise InputError(
            f"{source} has result format {found}, this finpod reads {FORMAT}; run it again", argument="run"
        )
    try:
        result = _assembled(source, content)
        wrong = next(chain(_differences(result, content), _changes(source)), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"{source} is damaged ({_reason(error)}); run the backtest again", argument="run") from error
    if wrong is not None:
        raise InputError(f"{source} is damaged: {wrong}; run the backtest again", argument="run")
    return result


def _reason(error: Exception) -> str:
    text = first_line(error)
    return f"it lacks {text}" if isinstance(error, KeyError) else text


def _assembled(source: Path, content: dict[str, Any]) -> BacktestResult:
    content = ADDED | content
    for name, kinds in PLAIN.items():
        if not isinstance(content[name], kinds) or (isinstance(content[name], bool) and bool not in kinds):
            raise ValueError(f"{RESULT}: {name} is {content[name]!r:.60}")
    csv: dict[str, Any] = {"parse_dates": ["date"], "float_precision": "round_trip"}
    curves = _numeric(pd.read_csv(source / "returns.csv", index_col="date", **csv), "returns.csv")
    curves.index = pd.DatetimeIndex(curves.index).as_unit("ns")
    text = {"ticker": str, "kind": str}
    trades = pd.read_csv(source / "trades.csv", dtype=text, keep_default_na=False, **csv)
    trades["date"] = trades["date"].astype("datetime64[ns]")
    if len(trades):
        _numeric(trades.drop(columns=["date", *text]), "trades.csv")
    return BacktestResult(
        equity=curves["equity"],
        benchmark_equity=curves["benchmark"],
        equal_weight_equity=curves["equal_weight"],
        anchor_equity=curves["anchor" if "anchor" in curves else "equal_weight"],
        weights=_numeric(_frame(source / "weights.parquet"), "weights.parquet"),
        trades=trades,
        turnover=curves["turnover"].dropna(),
        costs=Costs(**content["costs"]),
        variants=_named(curves, VARIANT),
        agents=_named(curves, AGENT),
        baselines=_named(curves, BASELINE),
        fan=_numeric(_frame(source / "fan.parquet"), "fan.parquet")
        if (source / "fan.parquet").exists()
        else pd.DataFrame(),
        windows={name: (first, last) for name, (first, last) in content["windows"].items()},
        warnings=tuple(ResultWarning(**record) for record in content["warnings"]),
        events=tuple(Event(**record) for record in content["events"]),
        audit=None if content["audit"] is None else Audit.from_record(content["audit"]),
        cost_sweep=_by_number(content["cost_sweep"]),
        capacity=_by_number(content["capacity"]),
        **{name: content[name] for name in PLAIN},
    )


def _by_number(sweep: Mapping[str, Any]) -> dict[float, Any]:
    """A sweep with its settings as numbers, in increasing order."""
    return dict(sorted((float(setting), figures) for setting, figures in sweep.items()))


def _named(curves: pd.DataFrame, prefix: str) -> dict[str, pd.Series]:
    """The columns whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): curves[name].dropna() for name in curves if name.startswith(prefix)}


def _frame(path: Path) -> pd.DataFrame:
    stored = path.read_bytes()
    try:
        return pd.read_parquet(io.BytesIO(stored))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path.name} cannot be read: {_reason(error)}") from error


def _numeric(table: pd.DataFrame, file: str) -> pd.DataFrame:
    """The table. Raises ValueError if a column does not hold numbers."""
    for name, column in table.items():
        if not pd.api.types.is_numeric_dtype(column):
            words = column[pd.to_numeric(column, errors="coerce").isna() & column.notna()]
            raise ValueError(f"{file}: {name} holds {words.iloc[0] if len(words) else 'no numbers'!r}, not a number")
    return table


def _differences(result: BacktestResult, content: Mapping[str, Any]) -> Iterator[str]:
    """What the series say otherwise than result.json, one clause each."""
    equity, stated = result.equity, content["table"]
    if len(result.weights) != len(equity) or not (result.weights.index == equity.index).all():
        yield "returns.csv and weights.parquet are not of the same days"
    if len(equity) < 2 or not np.isfinite(equity.to_numpy()).all():
        yield "returns.csv has no whole equity curve"
        return
    own = result.table
    facts: list[tuple[str, Any, Any]] = [
        ("start", f"{equity.index[0]:%Y-%m-%d}", content["start"]),
        ("end", f"{equity.index[-1]:%Y-%m-%d}", content["end"]),
        ("returns", len(result.returns), content["metrics"]["days"]),
        ("cash", float(equity.iloc[0]), content["cash"]),
        *((f"total return of {row}", own[row]["total_return"], stated[row]["total_return"]) for row in own),
        *((name, own["strategy"][name], stated["strategy"][name]) for name in ("turnover", "costs", "buys", "sells")),
        ("variants", sorted(result.spread), sorted(content["spread"])),
    ]
    facts += [
        (f"total return of {name}", row["total_return"], content["spread"][name]["total_return"])
        for name, row in result.spread.items()
        if name in content["spread"]
    ]
    for name, found, said in facts:
        if not _agrees(found, said):
            yield f"{name} is {said} in {RESULT}, but {found} in the files beside it"


def _changes(source: Path) -> Iterator[str]:
    """Which files of the folder are not those that were written, one clause each."""
    for name in (SUMS, "run.json"):
        if not (source / name).exists():
            yield f"{name} is missing"
            return
    written, found = (
        {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}
        for text in ((source / SUMS).read_text(), checksums(source))
    )
    if not set(written) <= set(SUMMED):
        yield f"{SUMS} is not what was written"
    for name in sorted({*written, *found}):
        if name not in found:
            yield f"{name} is missing"
        elif written.get(name) != found[name]:
            yield f"{name} is not what was written"


def _agrees(found: Any, said: Any) -> bool:
    """Whether two facts are equal, numbers but for rounding; null stands for NaN."""
    if not isinstance(found, (int, float)):
        return bool(found == said)
    if said is None or math.isnan(found):
        return said is None and math.isnan(found)
    return math.isclose(found, said, rel_tol=1e-9, abs_tol=1e-9)
