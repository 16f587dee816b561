"""`finpod train | bench | demo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from finpod.atomic import require_free
from finpod.cli import console, options
from finpod.errors import InputError
from finpod.market.ledger import Costs
from finpod.runs import plain_word


def train(
    task: Annotated[Literal["stocks"], typer.Argument(help="What to learn.")],
    train: Annotated[str, typer.Option(help="Training days, FIRST:LAST.")],
    validation: Annotated[str, typer.Option(help="Days on which agents are chosen, FIRST:LAST.")],
    out: Annotated[Path, typer.Option(help="Folder of the ensemble, such as strategies/first.")],
    market: options.Market = "sample",
    members: options.Members = None,
    benchmark: options.Benchmark = "QQQ",
    learner: Annotated[str, typer.Option(help="Learning algorithm.")] = "ppo",
    features: Annotated[str, typer.Option(help="'default', 'published', or names separated by commas.")] = "default",
    fee_bps: options.Fee = Costs.fee_bps,
    slippage_bps: options.Slippage = Costs.slippage_bps,
    impact: options.Impact = Costs.impact,
    fill: options.FillPrice = None,
    agents: Annotated[int, typer.Option(help="Agents trained side by side.")] = 4,
    rounds: Annotated[int, typer.Option(help="Rounds, after each of which the weaker follow the stronger.")] = 2,
    keep: Annotated[int, typer.Option(help="Agents kept in the ensemble.")] = 3,
    steps: Annotated[
        int | None, typer.Option(help="Environment steps an agent over all rounds; 600,000 if left out.")
    ] = None,
    hold: Annotated[int, typer.Option(help="Sessions between decisions.")] = 5,
    action: Annotated[Literal["tilt", "softmax", "shares"], typer.Option(help="What an action means.")] = "tilt",
    seed: Annotated[int, typer.Option(help="The one seed that all randomness comes from.")] = 0,
    seeds: Annotated[
        int, typer.Option(help="Runs of the whole tournament, from seed, seed + 1, ...; all are kept.")
    ] = 1,
    device: options.Device = "auto",
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Train agents, choose the best on validation days and keep them as an ensemble that `finpod backtest` takes."""
    import finpod
    from finpod.tournament.arena import trading_of
    from finpod.tournament.plan import Plan

    windows = options.window(train, "--train"), options.window(validation, "--validation")
    for text in (*windows[0], *windows[1]):
        options.check_dates(text, None)
    require_free(out, overwrite, "ensemble.json")
    plain_word(out.resolve().name)
    costs = Costs(fee_bps=fee_bps, slippage_bps=slippage_bps, impact=impact)
    if seeds < 1:
        raise InputError(f"seeds is {seeds}; it must be a whole number from 1 on")
    Plan(agents=agents, rounds=rounds, keep=keep, steps=Plan.steps if steps is None else steps, seed=seed)
    trading_of(hold=hold, action=action, costs=costs)
    _say_device(device)
    prices = options.load(market, members, benchmark)
    with console.progress("training", log=True) as progress:
        ensemble = finpod.train(
            task,
            market=prices,
            train=windows[0],
            validation=windows[1],
            out=out,
            learner=learner,
            features=None if features == "default" else options.words(features),
            costs=costs,
            agents=agents,
            rounds=rounds,
            keep=keep,
            steps=steps,
            seed=seed,
            seeds=seeds,
            hold=hold,
            action=action,
            fill=fill,
            device=device,
            overwrite=overwrite,
            progress=progress,
        )
    if as_json:
        console.show_json({**ensemble.provenance, "path": str(out)})
        return
    print(f"{ensemble.name}: chosen among {ensemble.trials} trials on {validation}")
    console.show_table(ensemble.provenance["board"])
    print(f"\n{out}")


def bench(
    what: Annotated[str | None, typer.Argument(help="Only the lines with this word, such as env or train.")] = None,
    device: options.Device = "auto",
    envs: Annotated[int, typer.Option(help="Parallel environments.")] = 4096,
    names: Annotated[int, typer.Option(help="Stocks in the market.")] = 100,
    seconds: Annotated[float, typer.Option(help="How long to measure each line.")] = 3.0,
    as_json: options.AsJson = False,
) -> None:
    """Measure environment and training speed, with hardware and versions."""
    from finpod import bench

    _say_device(device)
    with console.progress("measuring"):
        lines = bench.run(device=device, envs=envs, names=names, seconds=seconds)
    wanted = {name: line for name, line in lines.items() if what is None or what in name}
    if not wanted:
        raise InputError(f"no line has {what!r} in its name; there are {', '.join(lines)}")
    console.show_json(wanted) if as_json else console.show_facts(wanted)


def demo(overwrite: options.Overwrite = False, as_json: options.AsJson = False) -> None:
    """Train and judge an agent on the bundled sample of 20 stocks: the whole way to a report, without a network."""
    from finpod import demo

    with console.progress("starting", log=True) as progress:
        outcome = demo.run_demo(overwrite=overwrite, progress=progress)
    if as_json:
        console.show_json({"report": str(outcome.report), "result": json.loads(outcome.result.to_json())})
        return
    print(f"Data: {outcome.data}")
    print(f"Device: {outcome.result.agent['device']}")
    print()
    print(outcome.result)
    print()
    print(outcome.report.resolve())


def _say_device(asked: str) -> None:
    """One line where 'auto' means the CPU. Raises InputError for a GPU that is not there."""
    from finpod.devices import pick_device

    if pick_device(asked).type == "cpu" and asked == "auto":
        console.remark("no GPU found: computing on the CPU")
