"""`walk_forward`: an ensemble for each segment, one after the other, resumable; then the one backtest of them all."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from finpod.backtesting.engine import backtest
from finpod.devices import pick_device
from finpod.ensemble import load_ensemble
from finpod.errors import InputError
from finpod.features.panel import name_of
from finpod.files import ENSEMBLE, UNFINISHED, WALK_FORWARD, Progress, parents_of, require_free, to_json, versions
from finpod.market.data import DateLike, MarketData
from finpod.result import BacktestResult
from finpod.strategy import Strategy
from finpod.trading.ledger import Costs
from finpod.training import train as train_ensemble
from finpod.walkforward.schedule import Segment, gaps, schedule
from finpod.walkforward.strategy import (
    WalkForward,
    load_walkforward,
    read_manifest,
    with_segments,
    write_manifest,
)

OF_SEGMENTS = ("market", "train", "validation")
"""Arguments of `train` that each segment has of its own."""
WITHOUT_EFFECT = ("progress", "overwrite", "resume", "watch", "pods", "storage")
"""Arguments of `train` that change no agent."""


def walk_forward(
    task: str = "stocks",
    *,
    market: MarketData,
    start: DateLike,
    end: DateLike | None = None,
    out: str | Path,
    train: str | int = "4y",
    validation: str | int = "1y",
    test: str | int = "1y",
    expanding: bool = False,
    purge: int | None = None,
    embargo: int | None = None,
    hold: int = 5,
    fill: str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: Progress | None = None,
    **training: Any,
) -> BacktestResult:
    """Train an ensemble for each segment of `schedule`, and run them as one strategy over [start, end].

    Further keywords are those of `finpod.train`; the account runs on the terms they trained on. Finished segments are
    kept in `OUT.unfinished` until all are done: `resume` goes on from there, or from what `out` holds, if the settings are
    the same. The result tells in `agent` what `with_segments` says. Raises InputError for what `schedule` and `train` refuse,
    for an `out` that exists (unless `overwrite`), for unfinished work that is neither resumed nor overwritten, and for
    work to be resumed that is not there or had other settings.
    """
    out = Path(out)
    if not isinstance(task, str):
        raise InputError(
            f"task is {task!r:.60}; a walk-forward retrains on a market, so it must be 'stocks'", argument="task"
        )
    require_free_for(out, overwrite=overwrite, resume=resume)
    segments = schedule(
        market,
        start=start,
        end=end,
        train=train,
        validation=validation,
        test=test,
        hold=hold,
        fill=fill,
        expanding=expanding,
        purge=purge,
        embargo=embargo,
    )
    training = {"task": task, "hold": hold, "fill": fill, **training}
    between = dict(zip(("purge", "embargo"), gaps(market, hold, purge, embargo), strict=True))
    settings = _settings(market, segments, training, expanding=expanding, **between)
    if resume and not _unfinished(out) and (out / WALK_FORWARD).is_file():
        _require_same(out, settings)
        strategy = load_walkforward(out, _own_features(training))
    else:
        strategy = _trained(market, segments, training, settings, out, resume, progress or (lambda doing, share: None))
    return _judged(strategy, market)


def _trained(
    market: MarketData,
    segments: Sequence[Segment],
    training: Mapping[str, Any],
    settings: Mapping[str, Any],
    out: Path,
    resume: bool,
    progress: Progress,
) -> WalkForward:
    """Train what is not there yet; the folder `out` appears when all is."""
    partial, agents = _partial(out), list[Strategy]()
    if resume and _unfinished(out):
        _require_same(partial, settings)
    else:
        shutil.rmtree(partial, ignore_errors=True)
    with parents_of(partial):
        try:
            write_manifest(partial, segments, settings)
            for i, segment in enumerate(segments):
                folder = partial / segment.folder
                if not (folder / ENSEMBLE).is_file():
                    begun = {"resume": True} if _has(partial, f"{folder.name}{UNFINISHED}/seed-*/*") else {}
                    train_ensemble(
                        market=market,
                        train=segment.train,
                        validation=segment.validation,
                        out=folder,
                        progress=_part(progress, i, len(segments)),
                        **{**training, **begun},
                    )
                agents.append(load_ensemble(folder, _own_features(training)))
            strategy = WalkForward(segments, agents, name=out.resolve().name, settings=settings)
            _put(partial, out)
        except BaseException:
            if not _unfinished(out):  # nothing worth keeping
                shutil.rmtree(partial, ignore_errors=True)
            raise
    progress("trained", 1.0)
    return strategy


def _judged(strategy: WalkForward, market: MarketData) -> BacktestResult:
    """The one backtest over all tests, on the terms of training."""
    trading, segments = strategy.agents[0].trading, strategy.segments  # type: ignore[attr-defined]
    result = backtest(
        strategy,
        market,
        start=segments[0].test[0],
        end=segments[-1].test[1],
        costs=trading.costs,
        fill=strategy.provenance["fill"],
        cash=trading.cash,
        whole_shares=trading.whole_shares,
        delisting_return=trading.delisting_return,
        max_weight=trading.max_weight,
        max_turnover=trading.max_turnover,
    )
    return with_segments(result, strategy)


def _part(progress: Progress, i: int, count: int) -> Progress:
    return lambda doing, share: progress(f"segment {i + 1} of {count}, {doing}", (i + share) / count)


def _own_features(training: Mapping[str, Any]) -> list[Any]:
    given = training.get("features")
    return [one for one in (given if isinstance(given, (list, tuple)) else [given]) if callable(one)]


def _settings(
    market: MarketData, segments: Sequence[Segment], training: Mapping[str, Any], **schedule: Any
) -> dict[str, Any]:
    """All that the agents depend on, as plain values; equal settings give equal agents."""
    arguments = inspect.signature(train_ensemble).parameters.items()
    given = {name: one.default for name, one in arguments if one.default is not one.empty and name not in OF_SEGMENTS}
    given |= training
    given |= {"costs": given["costs"] or Costs(), "device": str(pick_device(given["device"]))}
    content = {
        **{name: _plain(value) for name, value in given.items() if name not in WITHOUT_EFFECT},
        **schedule,
        "segments": [asdict(segment) for segment in segments],
        "data": market.content_hash,
        **versions("finpod"),
    }
    plain: dict[str, Any] = json.loads(to_json(content))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return name_of(value) if callable(value) else value


def _require_same(where: Path, settings: Mapping[str, Any]) -> None:
    """Raise InputError, naming what differs, if the work kept in `where` was begun with other settings."""
    before = read_manifest(where)[1]
    other = [name for name in sorted({*before, *settings}) if before.get(name) != settings.get(name)]
    if other:
        simple = [name for name in other if not isinstance(settings.get(name), (list, dict)) and name != "data"]
        told = [f"{name} = {before.get(name)}, not {settings.get(name)}" for name in simple[:3]]
        told += [f"other {name}" for name in other if name not in simple][: 3 - len(told)]
        raise InputError(
            f"{where} was begun with {', '.join(told)}; give the same settings, or start anew with overwrite=True instead of "
            "resume=True"
        )


def require_free_for(out: Path, *, overwrite: bool, resume: bool) -> None:
    """Raise InputError unless a walk-forward may be written to `out`, or resumed; to be asked before anything is computed.

    With `overwrite` it may replace an empty folder or an earlier walk-forward, and unfinished work.
    """
    if _unfinished(out) and not (resume or overwrite):
        raise InputError(
            f"{_partial(out)} holds an unfinished walk-forward; go on with it with resume=True, or start "
            "anew with overwrite=True",
            argument="out",
        )
    if resume and not _unfinished(out):
        if not (out / WALK_FORWARD).is_file():
            raise InputError(
                f"there is no walk-forward to go on with at {_partial(out)}; begin one without resume=True",
                argument="out",
            )
        return
    if not (overwrite and out.is_dir()) or out.resolve() in (here := Path.cwd(), *here.parents):
        require_free(out, overwrite)
        return
    for held in sorted(entry.name for entry in out.iterdir()):
        if held == WALK_FORWARD:
            continue
        if not (out / WALK_FORWARD).is_file() or not re.fullmatch(r"segment-[\d-]+", held):
            raise InputError(
                f"{out} holds {held!r}, no part of a walk-forward, so overwrite=True does not replace it; move it away",
                argument="out",
            )
        require_free(out / held, overwrite=True, marker=ENSEMBLE)


def _partial(out: Path) -> Path:
    """Where finished segments wait for the others."""
    return out.parent / f"{out.resolve().name}{UNFINISHED}"


def _unfinished(out: Path) -> bool:
    """Whether work worth keeping lies there: a finished segment, or one that has begun."""
    return _has(_partial(out), f"segment-*/{ENSEMBLE}") or _has(_partial(out), f"segment-*{UNFINISHED}/seed-*/*")


def _has(folder: Path, pattern: str) -> bool:
    return next(folder.glob(pattern), None) is not None


def _put(partial: Path, out: Path) -> None:
    """Give the finished folder its name; what stood there is gone only when that is done."""
    for rest in partial.glob(".*"):  # what a killed run was writing
        shutil.rmtree(rest) if rest.is_dir() else rest.unlink()
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{partial.name}.") as aside:
        if out.exists():
            out.replace(Path(aside) / "old")
        try:
            partial.replace(out)
        except BaseException:
            if (Path(aside) / "old").exists():
                (Path(aside) / "old").replace(out)
            raise
