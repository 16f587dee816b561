"""`load_result`: a saved backtest, found by its folder or name, read back and checked against itself."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finpod.atomic import BACKTESTS
from finpod.errors import InputError, did_you_mean
from finpod.market.ledger import Costs
from finpod.result import AGENT, BASELINE, FORMAT, PLAIN, SUMMED, SUMS, VARIANT, BacktestResult, checksums


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
        content = json.loads((source / "result.json").read_text())
        found = content["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        runs = [path.parent.name for path in sorted(BACKTESTS.glob("*/result.json")) if path.parent != source]
        fix = did_you_mean(source.name, runs, f"give a run: its folder, or its name under {BACKTESTS}/")
        raise InputError(f"{source} holds no backtest result ({_reason(error)}); {fix}") from error
    if found != FORMAT:
        raise InputError(f"{source} has result format {found}, this finpod reads {FORMAT}; run it again")
    try:
        result = _assembled(source, content)
        wrong = next(chain(_differences(result, content), _changes(source)), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"{source} is damaged ({_reason(error)}); run the backtest again") from error
    if wrong is not None:
        raise InputError(f"{source} is damaged: {wrong}; run the backtest again")
    return result


def _reason(error: Exception) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"it lacks {text}" if isinstance(error, KeyError) else text


def _assembled(source: Path, content: dict[str, Any]) -> BacktestResult:
    for name, kinds in PLAIN.items():
        if not isinstance(content[name], kinds) or (isinstance(content[name], bool) and bool not in kinds):
            raise ValueError(f"result.json: {name} is {content[name]!r:.60}")
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
        warnings=tuple(content["warnings"]),
        events=tuple(content["events"]),
        **{name: content[name] for name in PLAIN},
    )


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
        ("number of returns", len(result.returns), content["metrics"]["days"]),
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
            yield f"{name} is {said} in result.json, but {found} in the files beside it"


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
