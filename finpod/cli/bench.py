"""`finpod bench | demo`."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from finpod.cli import console, options
from finpod.envs.locomotion import NAMES
from finpod.errors import InputError


def bench(
    what: Annotated[
        str | None,
        typer.Argument(help="Only the lines with this word, such as env, backtest or report; or a locomotion task."),
    ] = None,
    device: options.Device = "auto",
    envs: Annotated[int | None, typer.Option(help="Parallel environments; 4096, and 512 of a locomotion task.")] = None,
    names: Annotated[int | None, typer.Option(help="Stocks in the market; 100.")] = None,
    variant: Annotated[
        Literal["standard", "full", "fast"] | None, typer.Option(help="Variant of a locomotion task; standard.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="How long to measure each line; 3.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure how fast this machine trains, backtests and reports, beside peers that are installed, with versions."""
    from finpod.bench import locomotion, machine

    of_task = what in NAMES
    given = {"envs": envs, "names": names, "variant": variant, "seconds": seconds}
    sizes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    idle = "names" if of_task else "variant"
    if idle in sizes:
        raise InputError(f"{idle} has no effect on {what or 'stocks'}; leave it out", argument=idle)
    console.say_device(device)
    with console.progress("measuring"):
        if of_task:
            lines = locomotion.run(str(what), device=device, **sizes)
        else:
            lines = machine.run(what=what, device=device, **sizes)
    console.show_json(lines) if as_json else console.show_facts(lines)


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
