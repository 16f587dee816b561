"""`finpod backtest | audit | report | compare | export`: evaluates strategies."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from finpod.cli import console, options, outputs
from finpod.errors import InputError
from finpod.files import EXPORT, require_free, require_free_file
from finpod.trading.ledger import Costs

Strategy = Annotated[str, Argument(help="Name of a built-in strategy, .py file, or folder of an ensemble.")]
Start = Annotated[str | None, Option(help="First session, YYYY-MM-DD; by default the first of the data.")]
End = Annotated[str | None, Option(help="Last session, YYYY-MM-DD; by default the last of the data.")]
Features = Annotated[
    Path | None, Option("--features-from", metavar="FILE.py", help="File with the feature functions of the ensemble.")
]
Run = Annotated[str, Argument(metavar="RUN", help="A run: its folder, or its name under backtests/.")]


@options.with_options(options.MARKET | options.COSTS | options.FILL | options.TERMS)
def backtest(
    context: typer.Context,
    strategy: Strategy,
    start: Start = None,
    end: End = None,
    features_from: Features = None,
    risk_free: Annotated[float, Option(help="Yearly risk-free rate for the Sharpe ratio, as a fraction.")] = 0.0,
    opened: Annotated[
        int,
        Option(
            help="Number of results of this window you have seen, counting this one; widens the verdict's interval."
        ),
    ] = 1,
    allow_in_sample: Annotated[bool, Option("--allow-in-sample", help="Allow days of training or validation.")] = False,
    name: Annotated[str | None, Option(help="Name of the run; by default the name of the strategy.")] = None,
    quick: Annotated[
        bool, Option("--quick", help="Skip baselines, random portfolios, the cost sweep and capacity.")
    ] = False,
    no_report: options.NoReport = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    **values: Any,
) -> None:
    """Backtest a strategy; write backtests/NAME/ and reports/NAME.html and print the figures."""
    import finpod

    started = datetime.now(UTC)
    costs, terms = Costs(**options.values_of(options.COSTS, values)), options.values_of(options.TERMS, values)
    wanted = outputs.name_of(strategy) if name is None else name
    places = outputs.plan_outputs(wanted, report=not no_report, overwrite=overwrite)
    with console.progress("loading") as report:
        decides = finpod.load_strategy(strategy, options.features(strategy, features_from))
        prices = options.load(values)
        report(f"backtest of {decides.name}", 0.1)
        result = finpod.backtest(
            decides,
            prices,
            start=start,
            end=end,
            costs=costs,
            fill=values["fill"],
            **terms,
            risk_free=risk_free,
            opened=opened,
            allow_in_sample=allow_in_sample,
            examine=not quick,
            progress=lambda doing, share: report(doing, 0.3 + share / 2),
        )
        report("writing", 0.9)
        written = outputs.write_outputs(result, places, context.obj, started, overwrite=overwrite)
    print(result.to_json(), end="") if as_json else print(f"{result}\n")
    console.show_paths(written, as_json)


@options.with_options(options.MARKET)
def audit(
    strategy: Strategy,
    start: Start = None,
    end: End = None,
    features_from: Features = None,
    days: Annotated[int, Option(help="Number of bars (sessions, if bars are daily) to check.")] = 12,
    seed: Annotated[int, Option(help="Seed for the choice of these bars and for the noise.")] = 0,
    as_json: options.AsJson = False,
    **values: Any,
) -> None:
    """Audit a strategy for look-ahead bias. Exit code 1: there are findings; 2: the audit could not decide."""
    import finpod

    with console.progress("loading") as report:
        decides = finpod.load_strategy(strategy, options.features(strategy, features_from))
        verdict = finpod.audit(
            decides, options.load(values), days=days, seed=seed, start=start, end=end, progress=report
        )
    console.show_json(verdict.to_record()) if as_json else print(verdict)
    if not verdict.passed:
        raise typer.Exit(2 if verdict.passed is None else 1)


def report(folder: Run, overwrite: options.Overwrite = False) -> None:
    """Write the HTML report of a saved run again, to reports/NAME.html."""
    import finpod
    from finpod.backtesting.result_io import run_folder

    place = run_folder(folder)
    target = outputs.REPORTS / f"{outputs.plain_word(outputs.name_of(place))}.html"
    with console.progress("drawing"):
        require_free_file(target, overwrite)
        written = finpod.load_result(place).report(target)
    print(written)


def compare(
    folders: Annotated[list[str], Argument(metavar="RUN...", help="Two or more runs: folders or names in backtests/.")],
    name: Annotated[str, Option(help="Name of the page reports/NAME.html; if given, also its heading.")] = "compare",
    overwrite: options.Overwrite = False,
    no_report: Annotated[bool, Option("--no-report", help="Write no HTML page.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare saved runs on their common days; write a report and print the figures."""
    import finpod
    from finpod.backtesting.result_io import run_folder

    places = [run_folder(folder).resolve() for folder in folders]
    if twice := next((place for place in places if places.count(place) > 1), None):
        raise InputError(f"{outputs.name_of(twice)} is given twice; give each run once")
    target = outputs.REPORTS / f"{outputs.plain_word(name)}.html"
    if not no_report:
        require_free_file(target, overwrite)
    with console.progress("comparing"):
        found = finpod.compare(folders)
        write = partial(found.report, title="" if name == "compare" else name)
        written = [] if no_report else outputs.write_page(target, write, overwrite=overwrite)
    print(found.to_json(), end="") if as_json else print(f"{found}\n")
    console.show_paths(written, as_json)


def export(
    folder: Run,
    out: Annotated[Path | None, Option(help="The new folder; by default backtests/NAME-export.")] = None,
    form: Annotated[Literal["csv", "parquet"], Option("--format", help="Format of the files.")] = "csv",
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Export a saved run for pyfolio, empyrical and quantstats: returns, positions, transactions, benchmark."""
    import finpod
    from finpod.backtesting.export import export as exported
    from finpod.backtesting.export import how_to_read
    from finpod.backtesting.result_io import run_folder

    place = run_folder(folder)
    target = out or outputs.BACKTESTS / f"{outputs.plain_word(outputs.name_of(place))}-export"
    require_free(target, overwrite, EXPORT)
    with console.progress("writing"):
        notes = exported(finpod.load_result(place), target, format=form, overwrite=overwrite)
    files = sorted(path.name for path in target.iterdir() if path.name != EXPORT)
    if as_json:
        console.show_json({"folder": target, "files": {file: how_to_read(file) for file in files}, "notes": notes})
        return
    console.show_facts({str(target / file): how_to_read(file) for file in files})
    for note in notes:
        print(f"note: {note}")
