"""`finpod walkforward`: would retraining year after year have paid?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from finpod.cli import console, options, outputs
from finpod.cli.settings import CAPS, COMMON, PLAN, RARE, TRADING
from finpod.trading.ledger import Costs


@dataclass(frozen=True)
class Windows:
    """The windows of a walk-forward."""

    end: str | None = None
    """Last session, YYYY-MM-DD; the data's own if left out."""
    train: str = "4y"
    """Length of each training: 4y, 6m or a number of sessions."""
    validation: str = "1y"
    """Length of each validation, on which agents are chosen."""
    test: str = "1y"
    """Length of each test, after which the next agents take over."""
    expanding: bool = False
    """Begin every training on the first day of the first."""
    purge: int | None = None
    """Sessions left out between training and validation; --rebalance-every if left out."""
    embargo: int | None = None
    """Sessions left out between validation and test; --rebalance-every if left out."""


WINDOWS = options.Settings("cli.walkforward", "Windows", " ".join(Windows.__annotations__))
SIZE = PLAN.only("agents", "rounds", "keep", "steps", "seed")


@options.with_options(
    WINDOWS.only("end", "train", "validation", "test"),
    *COMMON,
    advanced=(WINDOWS.only("expanding", "purge", "embargo"), *RARE),
)
def walkforward(
    context: typer.Context,
    task: Annotated[Literal["stocks"], typer.Argument(help="What to learn.")],
    start: Annotated[str, typer.Option(help="First session of the first test, YYYY-MM-DD.")],
    out: Annotated[Path, typer.Option(help="Folder of the agents, such as strategies/wf.")],
    name: Annotated[str | None, typer.Option(help="Name of the run; that of the folder if left out.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue with the segments that are not finished.")] = False,
    no_report: options.NoReport = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    **given: Any,
) -> None:
    """Train on rolling windows, each agent trading the days after its own; write OUT, backtests/NAME/ and reports/NAME.html."""
    started = datetime.now(UTC)
    places = outputs.plan_outputs(
        outputs.name_of(out) if name is None else name, report=not no_report, overwrite=overwrite
    )
    outputs.plain_word(out.resolve().name)
    options.check_dates(start, given["end"])
    costs = Costs(**options.COSTS.values(given))
    _check(out, given, overwrite=overwrite, resume=resume)
    from finpod.tournament.training import Pods
    from finpod.walkforward.retraining import walk_forward

    market = options.load(given)
    with console.progress("training", log=True) as progress:
        result = walk_forward(
            task,
            market=market,
            start=start,
            out=out,
            overwrite=overwrite,
            resume=resume,
            progress=progress,
            pods=Pods(ray=given["ray"]),
            costs=costs,
            features=None if given["features"] == "default" else options.words(given["features"]),
            **{option: given[option] for option in ("learner", "seeds", "device", "fill")},
            **WINDOWS.values(given),
            **SIZE.values(given),
            **TRADING.values(given),
            **CAPS.values(given),
        )
        written = outputs.write_outputs(result, places, outputs.describe_run(context.obj, started), overwrite=overwrite)
    if as_json:
        print(result.to_json(), end="")
    else:
        console.show_table([_row(line) for line in result.agent["segments"]])
        print(f"\n{result}\n")
    console.show_written(written, as_json, out)


def _check(out: Path, given: Mapping[str, Any], *, overwrite: bool, resume: bool) -> None:
    """Raise InputError for what can be known to be wrong before any data are read."""
    from finpod.walkforward.retraining import require_free_for
    from finpod.walkforward.schedule import as_span

    for window in ("train", "validation", "test"):
        as_span(given[window], window)
    require_free_for(out, overwrite=overwrite, resume=resume)
    console.say_device(given["device"])


def _row(line: Mapping[str, Any]) -> dict[str, str]:
    """One segment as the table of the terminal has it."""
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
