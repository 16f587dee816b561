"""`finpod train | bench | demo`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from finpod.cli import console, options
from finpod.errors import InputError


def bench(
    what: Annotated[
        str | None,
        typer.Argument(help="Only the lines with this word, such as env, backtest or report; or tournament."),
    ] = None,
    device: options.Device = "auto",
    envs: Annotated[int, typer.Option(help="Parallel environments.")] = 4096,
    names: Annotated[int, typer.Option(help="Stocks in the market.")] = 100,
    seconds: Annotated[
        float | None, typer.Option(help="How long to measure each line; 3, and 10 a slice of a tournament.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure how fast this machine trains, backtests and reports, beside peers that are installed, with versions."""
    from finpod.bench import machine, tournaments

    if what == "tournament":
        with console.progress("measuring", log=True) as report:
            lines = tournaments.run(seconds=10.0 if seconds is None else seconds, progress=report)
        console.show_json(lines) if as_json else console.show_facts(lines)
        return
    _say_device(device)
    with console.progress("measuring"):
        lines = machine.run(
            device=device, envs=envs, names=names, seconds=3.0 if seconds is None else seconds, what=what
        )
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
        report = next((str(path) for path in outcome.written.paths if path.suffix == ".html"), None)
        console.show_json({"report": report, "result": json.loads(outcome.result.to_json())})
    else:
        print(f"Data: {outcome.data}\nDevice: {outcome.result.agent['device']}\n\n{outcome.result}\n")
        print(outcome.written.paths[-1].resolve())
    if outcome.written.failure is not None:
        raise outcome.written.failure


def _say_device(asked: str) -> None:
    """One line where 'auto' means the CPU. Raises InputError for a GPU that is not there."""
    from finpod.devices import pick_device

    if pick_device(asked).type == "cpu" and asked == "auto":
        console.remark("no GPU found: computing on the CPU")
