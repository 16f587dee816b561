"""`finpod walkforward`: would retraining year after year have paid?"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from finpod import runs
from finpod.cli import console, options
from finpod.trading.ledger import Costs

OF_TRAINING = ("learner", "agents", "rounds", "keep", "steps", "action", "anchor", "max_weight", "max_turnover", "seed",
               "seeds", "device")  # fmt: skip
"""Options that are arguments of `finpod.train`."""


def walkforward(
    context: typer.Context,
    task: Annotated[Literal["stocks"], typer.Argument(help="What to learn.")],
    start: Annotated[str, typer.Option(help="First session of the first test, YYYY-MM-DD.")],
    out: Annotated[Path, typer.Option(help="Folder of the agents, such as strategies/wf.")],
    end: Annotated[str | None, typer.Option(help="Last session, YYYY-MM-DD; the data's own if left out.")] = None,
    train: Annotated[str, typer.Option(help="Length of each training: 4y, 6m or a number of sessions.")] = "4y",
    validation: Annotated[str, typer.Option(help="Length of each validation, on which agents are chosen.")] = "1y",
    test: Annotated[str, typer.Option(help="Length of each test, after which the next agents take over.")] = "1y",
    expanding: Annotated[
        bool, typer.Option("--expanding", help="Begin every training on the first day of the first.")
    ] = False,
    purge: Annotated[
        int | None, typer.Option(help="Sessions left out between training and validation; --hold if left out.")
    ] = None,
    embargo: Annotated[
        int | None, typer.Option(help="Sessions left out between validation and test; --hold if left out.")
    ] = None,
    market: options.Market = "sample",
    members: options.Members = None,
    ticker_column: options.TickerColumn = None,
    renames: options.Renames = None,
    extra: options.Extra = None,
    benchmark: options.Benchmark = "auto",
    calendar: options.Calendar = "auto",
    periods_per_year: options.PeriodsPerYear = None,
    learner: Annotated[str, typer.Option(help="Learning algorithm.")] = "ppo",
    features: Annotated[str, typer.Option(help="'default', 'published', or names separated by commas.")] = "default",
    fee_bps: options.Fee = Costs.fee_bps,
    slippage_bps: options.Slippage = Costs.slippage_bps,
    impact: options.Impact = Costs.impact,
    fill: options.FillPrice = None,
    agents: Annotated[int, typer.Option(help="Agents trained side by side.")] = 4,
    rounds: Annotated[int, typer.Option(help="Rounds, after each of which the weaker follow the stronger.")] = 2,
    keep: Annotated[int, typer.Option(help="Agents kept in each ensemble.")] = 3,
    steps: Annotated[
        int | None, typer.Option(help="Environment steps an agent over all rounds; 600,000 if left out.")
    ] = None,
    hold: Annotated[int, typer.Option(help="Sessions between decisions.")] = 5,
    action: Annotated[Literal["tilt", "softmax", "shares"], typer.Option(help="What an action means.")] = "tilt",
    anchor: options.Anchor = "equal-weight",
    max_weight: options.MaxWeight = None,
    max_turnover: options.MaxTurnover = None,
    seed: Annotated[int, typer.Option(help="The one seed that all randomness comes from.")] = 0,
    seeds: Annotated[int, typer.Option(help="Runs of each tournament, from seed, seed + 1, ...; all are kept.")] = 1,
    ray: Annotated[bool, typer.Option("--ray", help="Train on Ray, on all cores of this machine.")] = False,
    device: options.Device = "auto",
    name: Annotated[str | None, typer.Option(help="Name of the run; that of the folder if left out.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the segments that an earlier run finished.")
    ] = False,
    overwrite: options.Overwrite = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no HTML report.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Train on rolling windows, each agent trading the days after its own; write OUT, backtests/NAME/ and reports/NAME.html."""
    started = datetime.now(UTC)
    outputs = runs.plan_outputs(runs.name_of(out) if name is None else name, report=not no_report, overwrite=overwrite)
    runs.plain_word(out.resolve().name)
    options.check_dates(start, end)
    training = {name: context.params[name] for name in OF_TRAINING} | {
        "features": None if features == "default" else options.words(features),
        "costs": Costs(fee_bps=fee_bps, slippage_bps=slippage_bps, impact=impact),
    }
    _check(out, {"train": train, "validation": validation, "test": test}, device, overwrite=overwrite, resume=resume)
    from finpod.tournament.training import Pods
    from finpod.walkforward.retraining import walk_forward

    prices = options.load(market, members, benchmark, calendar, periods_per_year, extra, renames, ticker_column)
    with console.progress("training", log=True) as progress:
        result = walk_forward(
            task,
            market=prices,
            start=start,
            end=end,
            out=out,
            train=train,
            validation=validation,
            test=test,
            expanding=expanding,
            purge=purge,
            embargo=embargo,
            hold=hold,
            fill=fill,
            overwrite=overwrite,
            resume=resume,
            progress=progress,
            pods=Pods(ray=ray),
            **training,
        )
        written = runs.write_outputs(result, outputs, runs.describe_run(context.obj, started), overwrite=overwrite)
    if as_json:
        print(result.to_json(), end="")
    else:
        console.show_table([_row(line) for line in result.agent["segments"]])
        print(f"\n{result}\n")
    console.show_written(written, as_json, out)


def _check(out: Path, lengths: Mapping[str, str], device: str, *, overwrite: bool, resume: bool) -> None:
    """Raise InputError for what can be known to be wrong before any data are read."""
    from finpod.walkforward.retraining import require_free_for
    from finpod.walkforward.schedule import as_span

    for what, length in lengths.items():
        as_span(length, what)
    require_free_for(out, overwrite=overwrite, resume=resume)
    console.say_device(device)


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
