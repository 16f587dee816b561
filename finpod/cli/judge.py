"""`finpod backtest | report | audit`: is a strategy any good?"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from finpod import runs
from finpod.cli import console, options
from finpod.errors import InputError
from finpod.files import require_free_file
from finpod.trading.ledger import Costs

Strategy = Annotated[str, typer.Argument(help="A built-in name, a .py file with a Strategy, or a trained folder.")]
Start = Annotated[str | None, typer.Option(help="First session, YYYY-MM-DD; the data's own if left out.")]
Features = Annotated[
    Path | None,
    typer.Option("--features-from", metavar="FILE.py", help="The user's own feature functions that it was trained on."),
]
End = Annotated[str | None, typer.Option(help="Last session, YYYY-MM-DD; the data's own if left out.")]


def backtest(
    context: typer.Context,
    strategy: Strategy,
    market: options.Market = "sample",
    members: options.Members = None,
    ticker_column: options.TickerColumn = None,
    renames: options.Renames = None,
    extra: options.Extra = None,
    benchmark: options.Benchmark = "auto",
    calendar: options.Calendar = "auto",
    periods_per_year: options.PeriodsPerYear = None,
    start: Start = None,
    end: End = None,
    fee_bps: options.Fee = Costs.fee_bps,
    slippage_bps: options.Slippage = Costs.slippage_bps,
    impact: options.Impact = Costs.impact,
    fill: options.FillPrice = None,
    cash: Annotated[float, typer.Option(help="Cash before the first order.")] = 1_000_000.0,
    whole_shares: Annotated[bool, typer.Option("--whole-shares", help="Deal in whole shares only.")] = False,
    max_weight: options.MaxWeight = None,
    max_turnover: options.MaxTurnover = None,
    risk_free: Annotated[float, typer.Option(help="Yearly rate for the Sharpe ratio, as a fraction.")] = 0.0,
    features_from: Features = None,
    opened: Annotated[
        int, typer.Option(help="Times that results of this window were looked at, with this one; widens the verdict.")
    ] = 1,
    allow_in_sample: Annotated[
        bool, typer.Option("--allow-in-sample", help="Allow days the strategy was trained on; the report says so.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name of the run; the strategy's own if left out.")] = None,
    overwrite: options.Overwrite = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out baselines, random portfolios, the cost sweep and capacity.")
    ] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no HTML report.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Run a strategy through the ledger; write backtests/NAME/ and reports/NAME.html and print the table."""
    import finpod
    from finpod.backtesting.engine import require_opened

    started = datetime.now(UTC)
    costs = Costs(fee_bps=fee_bps, slippage_bps=slippage_bps, impact=impact)
    options.check_account(cash, start, end, risk_free, max_weight=max_weight, max_turnover=max_turnover)
    require_opened(opened)
    options.check_market(market, members, renames, extra)
    with console.progress("loading", log=True) as report:
        decides = finpod.load_strategy(strategy, options.features(strategy, features_from))
        wanted = runs.name_of(strategy) if name is None else name
        outputs = runs.plan_outputs(wanted, report=not no_report, overwrite=overwrite)
        prices = options.load(market, members, benchmark, calendar, periods_per_year, extra, renames, ticker_column)
        prices.window(start, end)  # what cannot be is told before the first line of progress
        report(f"backtest of {decides.name}", 0.1)
        result = finpod.backtest(
            decides,
            prices,
            start=start,
            end=end,
            costs=costs,
            fill=fill,
            cash=cash,
            whole_shares=whole_shares,
            max_weight=max_weight,
            max_turnover=max_turnover,
            risk_free=risk_free,
            opened=opened,
            allow_in_sample=allow_in_sample,
            examine=not quick,
            progress=lambda doing, share: report(doing, 0.3 + share / 2),
        )
        report("writing", 0.9)
        written = runs.write_outputs(result, outputs, runs.describe_run(context.obj, started), overwrite=overwrite)
    print(result.to_json(), end="") if as_json else print(f"{result}\n")
    console.show_written(written, as_json)


def report(
    folder: Annotated[str, typer.Argument(metavar="RUN", help="A run: its folder, or its name under backtests/.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file; reports/NAME.html if left out.")] = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Write the HTML report of a saved run again, in the place of an earlier one."""
    import finpod
    from finpod.backtesting.result_io import run_folder

    place = run_folder(folder)
    target = out or runs.REPORTS / f"{runs.plain_word(runs.name_of(place))}.html"
    with console.progress("drawing", log=True) as progress:
        result = finpod.load_result(place)
        if target.is_file() and not (overwrite or runs.is_report_of(result, target)):
            raise InputError(f"{target} exists already and is no report of {place}; name another file with --out")
        require_free_file(target, overwrite=True)
        progress("drawing", 0.1)
        written = result.report(target)
    if as_json:
        console.show_json({"report": str(written), "result": json.loads(result.to_json())})
    else:
        print(written)


def audit(
    strategy: Strategy,
    market: options.Market = "sample",
    members: options.Members = None,
    ticker_column: options.TickerColumn = None,
    renames: options.Renames = None,
    extra: options.Extra = None,
    benchmark: options.Benchmark = "auto",
    calendar: options.Calendar = "auto",
    periods_per_year: options.PeriodsPerYear = None,
    start: Start = None,
    end: End = None,
    features_from: Features = None,
    days: Annotated[int, typer.Option(help="Sessions to check.")] = 12,
    seed: Annotated[int, typer.Option(help="Seed of the sampled days and the noise.")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Find out whether a strategy looks ahead; exit code 1 if it does, 2 if that could not be told."""
    import finpod

    options.check_dates(start, end)
    with console.progress("loading", log=True) as report:
        decides = finpod.load_strategy(strategy, options.features(strategy, features_from))
        prices = options.load(market, members, benchmark, calendar, periods_per_year, extra, renames, ticker_column)
        verdict = finpod.audit(decides, prices, days=days, seed=seed, start=start, end=end, progress=report)
    if as_json:
        console.show_json(verdict.to_record())
    else:
        print(verdict)
    if not verdict.passed:
        raise typer.Exit(2 if verdict.passed is None else 1)
