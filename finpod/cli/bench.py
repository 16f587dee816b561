"""`finpod bench`, which measures speed, and `finpod demo`, which trains and tests agents on the bundled sample."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from finpod.cli import console, options, outputs
from finpod.envs.locomotion import NAMES
from finpod.errors import InputError
from finpod.files import ENSEMBLE, require_free
from finpod.trading.ledger import Costs

NAME = "demo"
STRATEGY = Path("strategies") / NAME
TRAIN, VALIDATION, TEST = ("1991-01-02", "2010-12-31"), ("2011-01-03", "2014-12-31"), ("2015-01-02", "2022-12-28")
"""Training, validation and test window. The sample begins in 1990, so the first features have enough history."""
COSTS = Costs(fee_bps=10)
EFFORT: dict[str, Any] = {"agents": 4, "rounds": 2, "keep": 3, "steps": 150_000, "seed": 0}
"""Size of the training, which takes half a minute on two cores."""


def bench(
    what: Annotated[
        str | None,
        Argument(help="Word in the names of the measurements to run, such as backtest; or a locomotion task."),
    ] = None,
    device: options.Device = "auto",
    envs: Annotated[int | None, Option(help="Parallel environments; by default 4096, or 512 for locomotion.")] = None,
    names: Annotated[int | None, Option(help="Stocks in the market; by default 100.")] = None,
    variant: Annotated[Literal["standard", "full", "fast"] | None, Option(help="Variant of a locomotion task.")] = None,
    seconds: Annotated[float | None, Option(help="Seconds to spend on each figure; by default 3.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure the speed of training, backtests and reports on this machine, and of installed vectorbt and Gymnasium."""
    from finpod.bench import locomotion, machine

    settings = {"envs": envs, "names": names, "variant": variant, "seconds": seconds}
    sizes: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    run: Any = locomotion.run if what in NAMES else machine.run
    idle = "names" if what in NAMES else "variant"
    if idle in sizes:
        raise InputError(f"{idle} has no effect on {what or 'stocks'}; omit this option", argument=idle)
    console.say_device(device)
    with console.progress("measuring"):
        lines = run(what=what, device=device, **sizes)
    console.show(lines, as_json)


def demo(overwrite: options.Overwrite = False) -> None:
    """Train and test agents on the bundled sample of 20 stocks, and write a report. Needs no network."""
    import finpod

    started = datetime.now(UTC)
    places = outputs.plan_outputs(NAME, overwrite=overwrite)
    require_free(STRATEGY, overwrite, ENSEMBLE)
    with console.progress("starting") as progress:
        market = finpod.sample_market()
        ensemble = finpod.train(
            "stocks",
            market=market,
            train=TRAIN,
            validation=VALIDATION,
            out=STRATEGY,
            costs=COSTS,
            overwrite=overwrite,
            progress=lambda doing, share: progress(doing, 0.9 * share),
            **EFFORT,
        )
        progress("backtest", 0.9)
        result = finpod.backtest(ensemble, market, start=TEST[0], end=TEST[1], costs=COSTS)
        progress("report", 0.93)
        written = outputs.write_outputs(result, places, "finpod demo", started, overwrite=overwrite)
    print(f"Data: {market.title}; {market.manifest['membership']}; benchmark: {market.benchmark}")
    print(f"Device: {result.agent['device']}\n\n{result}\n\n{written[-1].resolve()}")
