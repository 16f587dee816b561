"""`walk_forward`: train an ensemble for each segment, and backtest all ensembles as one strategy. Resumes runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from finpod.backtesting.engine import backtest
from finpod.devices import pick_device
from finpod.errors import InputError
from finpod.features.panel import name_of
from finpod.files import ENSEMBLE, UNFINISHED, WALK_FORWARD, Progress, replace_folder, require_free, to_json, versions
from finpod.market.data import DateLike, MarketData
from finpod.result import BacktestResult
from finpod.tournament.log import differences, unfinished
from finpod.tournament.run_folder import RunFolder
from finpod.tournament.scheduler import part_of
from finpod.trading.anchors import with_anchor
from finpod.trading.simulate import Terms
from finpod.training import own_functions, statistics_of
from finpod.training import train as train_ensemble
from finpod.walkforward.schedule import Segment, gaps, schedule
from finpod.walkforward.strategy import load_walkforward, read_manifest, with_segments, write_manifest

WITHOUT_EFFECT = ("progress", "overwrite", "resume", "watch", "pods", "storage")
"""Arguments of `train` that do not affect the agents."""


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
    """Train an ensemble for each segment of `schedule`, and backtest the ensembles as one strategy over [start, end].

    `training` are keywords of `finpod.train`, except `check` and `fork`. The account has the costs, cash and rules of
    training. Finished segments are kept in the folder `out` + '.unfinished' until all segments are done. `resume`
    continues an unfinished run with the same settings. If `out` is finished, `resume` only repeats the backtest. The
    result has the performance of each segment; see `with_segments`. Raises InputError in the cases of `schedule` and
    `train`. Raises InputError also if `out` exists (unless `overwrite` or `resume`), if an unfinished run is neither
    resumed nor overwritten, and if the run to resume is missing or has other settings.
    """
    out = Path(out)
    if not isinstance(task, str):
        text = f"task is {task!r:.60}; it must be 'stocks', because a walk-forward needs a market"
        raise InputError(text, argument="task")
    if name := next((name for name in ("check", "fork") if training.get(name)), None):
        raise InputError(f"{name} is an argument of finpod.train, but not of walk_forward; omit {name}", argument=name)
    require_free_for(out, overwrite=overwrite, resume=resume)
    if "anchor" in training:
        market, training["anchor"] = with_anchor(market, training["anchor"])
    windows: dict[str, Any] = {"train": train, "validation": validation, "test": test, "start": start, "end": end}
    between = dict(zip(("purge", "embargo"), gaps(market, hold, purge, embargo), strict=True))
    segments = schedule(market, **windows, hold=hold, fill=fill, expanding=expanding, **between)
    training = {"task": task, "hold": hold, "fill": fill, "resume": resume, "overwrite": overwrite, **training}
    settings = settings_of(market, segments, training, expanding=expanding, **between)
    folder = SegmentsFolder(out)
    if resume:
        folder.require_same(settings)
    if not resume or folder.begun():
        with folder.drive(resume=resume, overwrite=overwrite):
            write_manifest(folder.path, segments, settings)
            _train(market, segments, training, folder.path, progress)
    strategy = load_walkforward(out, own_functions(training.get("features")))
    trading = strategy.agents[0].trading  # type: ignore[attr-defined]
    terms: dict[str, Any] = {one.name: getattr(trading, one.name) for one in fields(Terms)}
    terms |= {"fill": strategy.provenance["fill"], "start": segments[0].test[0], "end": segments[-1].test[1]}
    result = backtest(strategy, market, **terms)
    assert isinstance(result, BacktestResult)
    return with_segments(result, strategy)


class SegmentsFolder(RunFolder):
    """Folder of the unfinished walk-forward whose output is `out`. It holds a folder for each segment."""

    def __init__(self, out: Path) -> None:
        self.out, self.path = out, unfinished(out)
        super().__init__(self.path)

    def begun(self) -> bool:
        """Return True if a segment has begun or is finished."""
        return self.progress() > 0

    def require_same(self, settings: Mapping[str, Any]) -> None:
        """Raise InputError, with the differences, if the unfinished run has other settings. If there is no unfinished
        run, the settings of the finished walk-forward in `out` are compared."""
        where = self.path if self.begun() else self.out
        old, new = (
            {**run, "segments": dict(enumerate(run["segments"]))} for run in (read_manifest(where)[1], settings)
        )
        if changed := differences(old, new)[:3]:
            changes = ", ".join(f"{name} was {before!r:.100} and is {now!r:.100}" for name, before, now in changed)
            raise InputError(
                f"{where} was begun with other settings: {changes}; pass the same settings, or overwrite=True instead of "
                "resume=True to start again"
            )

    def progress(self) -> int:
        """Return the number of finished segments plus the number of files in segments that have begun."""
        return len([*self.path.glob(f"segment-*/{ENSEMBLE}"), *self.path.glob(f"segment-*{UNFINISHED}/seed-*/*")])

    def clear(self) -> None:
        """Remove the segments, the file that lists them, and files that were being written."""
        self._remove("segment-*", ".*", WALK_FORWARD)

    def finish(self) -> None:
        """Rename the folder to `out`. An earlier output is replaced."""
        self._remove(".*", "lock")  # files that a killed process was writing
        replace_folder(self.out, self.path)

    def _remove(self, *patterns: str) -> None:
        for rest in [path for pattern in patterns for path in self.path.glob(pattern)]:
            shutil.rmtree(rest) if rest.is_dir() else rest.unlink(missing_ok=True)


def _train(
    market: MarketData, segments: Sequence[Segment], training: Mapping[str, Any], folder: Path, tell: Progress | None
) -> None:
    for i, segment in enumerate(segments):
        out = folder / segment.folder
        begun = RunFolder.of(out, training.get("storage")).begun()
        if not (out / ENSEMBLE).is_file():
            train_ensemble(
                market=market,
                train=segment.train,
                validation=segment.validation,
                out=out,
                progress=tell and part_of(tell, i, len(segments), f"segment {i + 1} of {len(segments)}, "),
                **{**training, "resume": training["resume"] and begun},
            )
    if tell is not None:
        tell("trained", 1.0)


def settings_of(
    market: MarketData, segments: Sequence[Segment], training: Mapping[str, Any], **schedule: Any
) -> dict[str, Any]:
    """Return all settings on which the agents of a walk-forward depend, as plain values for a JSON file."""
    content = {
        **{name: _plain(value) for name, value in training.items() if name not in WITHOUT_EFFECT},
        **schedule,
        "device": str(pick_device(training.get("device", "auto"))),
        "segments": [asdict(segment) for segment in segments],
        "data": market.content_hash,
        "functions": statistics_of(training.get("features"), market),
        **versions("finpod"),
    }
    return json.loads(to_json(content))


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return name_of(value) if callable(value) else value


def require_free_for(out: Path, *, overwrite: bool, resume: bool) -> None:
    """Raise InputError unless a walk-forward may be written to `out`, or resumed there. Call this before long work.

    With `overwrite`, the walk-forward may replace an empty folder, an earlier walk-forward and an unfinished one.
    """
    if resume and (out / WALK_FORWARD).is_file():
        return
    SegmentsFolder(out).require(resume=resume, overwrite=overwrite)
    if not resume:
        require_free(out, overwrite, WALK_FORWARD)
