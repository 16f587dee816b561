"""`finpod walkforward`: trains on rolling windows and tests the agents on the days after each window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from finpod.cli import console, options, outputs
from finpod.cli.settings import FIRST, PLAN, PODS, RUN, STOCKS_ONLY, of_stocks
from finpod.environments import STOCKS
from finpod.trading.ledger import Costs

if TYPE_CHECKING:
    from finpod.market.data import MarketData
    from finpod.walkforward.schedule import Segment

FEW = 21
"""A length below this number and without a unit was probably meant in years or months, not in sessions."""


@dataclass(frozen=True)
class Windows:
    """The windows of a walk-forward."""

    end: str | None = None
    """Last session, YYYY-MM-DD; by default the last of the data."""
    train: str = "4y"
    """Length of each training window, including the purge: 4y, 6m or a number of sessions."""
    validation: str = "1y"
    """Length of each validation window, on which agents are selected, including the embargo."""
    test: str = "1y"
    """Length of each test window, in which newly trained agents trade."""
    expanding: bool = False
    """Begin all training windows on the first training day."""
    purge: int | None = None
    """Number of unused sessions between training and validation; by default the length of --rebalance-every."""
    embargo: int | None = None
    """Number of unused sessions between validation and test; by default the length of --rebalance-every."""


WINDOWS = options.fields_of("cli.walkforward", "Windows")
TRAINING = options.only(
    RUN | PLAN | PODS, "learner", "features", "agents", "rounds", "keep", "steps", "seed", "seeds", "device", "ray"
)


@options.with_options(WINDOWS | STOCKS_ONLY | TRAINING, first=FIRST)
def walkforward(
    context: typer.Context,
    task: Annotated[Literal["stocks"], Argument(help="Task.")],
    start: Annotated[str, Option(help="First session of the first test, YYYY-MM-DD.")],
    out: Annotated[Path, Option(help="Output folder for the agents, such as strategies/wf.")],
    resume: Annotated[bool, Option("--resume", help="Continue an interrupted walk-forward.")] = False,
    check: Annotated[bool, Option("--check", help="Check options, data and devices, and train nothing.")] = False,
    no_report: options.NoReport = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    **values: Any,
) -> None:
    """Train on rolling windows, and test on the days after each window. Also write a backtest with the name of --out."""
    from finpod.walkforward.retraining import require_free_for, walk_forward
    from finpod.workers.executor import Pods

    started = datetime.now(UTC)
    windows, training = options.values_of(WINDOWS, values), options.values_of(TRAINING, values)
    pods = Pods(ray=training.pop("ray"))
    places = outputs.plan_outputs(outputs.name_of(out), report=not no_report, overwrite=overwrite)
    _require_spans(windows)
    training |= of_stocks(values, Costs(**options.values_of(options.COSTS, values)))
    require_free_for(out, overwrite=overwrite, resume=resume)
    console.say_device(values["device"])
    market = options.load(values)
    if check:
        segments = _segments(market, start, windows, training, out, resume=resume)
        console.show({"segments": len(segments), "output": str(out), "check": "passed; nothing was trained"}, as_json)
        return
    with console.progress("training") as progress:
        result = walk_forward(
            task,
            market=market,
            start=start,
            out=out,
            overwrite=overwrite,
            resume=resume,
            progress=progress,
            pods=pods,
            **windows,
            **training,
        )
        written = outputs.write_outputs(result, places, context.obj, started, overwrite=overwrite)
    if as_json:
        print(result.to_json(), end="")
    else:
        console.show_table([_row(line) for line in result.agent["segments"]])
        print(f"\n{result}\n")
    console.show_paths([out, *written], as_json)


def _require_spans(windows: Mapping[str, Any]) -> None:
    """Raise InputError for an invalid length; print a remark on a number below `FEW` without a unit."""
    from finpod.walkforward.schedule import as_span

    for window in ("train", "validation", "test"):
        text, span = windows[window], as_span(windows[window], window)
        if not span.unit and span.length < FEW:
            console.remark(f"--{window} {text} is {text} sessions; write {text}y for years or {text}m for months")


def _segments(
    market: MarketData, start: str, windows: Mapping[str, Any], training: Mapping[str, Any], out: Path, *, resume: bool
) -> list[Segment]:
    """Return the segments. Raises InputError for windows outside the data, if the first segment cannot train, and if the
    run to `resume` has other settings."""
    import finpod
    from finpod.walkforward.retraining import SegmentsFolder, settings_of
    from finpod.walkforward.schedule import gaps, schedule

    hold, fill = training["hold"], training["fill"]
    purge, embargo = gaps(market, hold, windows["purge"], windows["embargo"])
    lengths = dict(windows) | {"purge": purge, "embargo": embargo}
    segments = schedule(market, start=start, **lengths, hold=hold, fill=fill)
    if resume:
        between = {name: lengths[name] for name in ("expanding", "purge", "embargo")}
        SegmentsFolder(out).require_same(settings_of(market, segments, {"task": STOCKS, **training}, **between))
    first = segments[0]
    days: dict[str, Any] = {"train": first.train, "validation": first.validation}
    finpod.train(STOCKS, market=market, out=out / first.folder, **training, **days, overwrite=True, check=True)
    return segments


def _row(line: Mapping[str, Any]) -> dict[str, str]:
    from finpod.figures import percent, ratio

    return {
        "test": line["test"],
        "train": line["train"],
        "validation": line["validation"],
        "validation score": ratio(line["validation_score"]),
        "score": ratio(line["out_of_sample_score"]),
        "return": percent(line["total_return"]),
        "benchmark": percent(line["benchmark"]),
        "equal weight": percent(line["equal_weight"]),
    }
