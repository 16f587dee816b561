"""The main job on the bundled sample: train on 1991-2010, choose on 2011-2014, judge once on 2015-2022, write the report."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from finpod import runs
from finpod.files import ENSEMBLE, Progress, require_free
from finpod.trading.ledger import Costs

if TYPE_CHECKING:
    from finpod.result import BacktestResult

NAME = "demo"
COMMAND = "finpod demo"
STRATEGY = Path("strategies") / NAME
TRAIN, VALIDATION, TEST = ("1991-01-02", "2010-12-31"), ("2011-01-03", "2014-12-31"), ("2015-01-02", "2022-12-28")
"""The three windows; the sample begins in 1990, whose sessions warm up the features."""
COSTS = Costs(fee_bps=10)
EFFORT: dict[str, Any] = {"agents": 4, "rounds": 2, "keep": 3, "steps": 150_000, "seed": 0}
"""How much is trained: sized for a few minutes on two cores."""


class Demo(NamedTuple):
    """What the demo made."""

    data: str
    """What the prices are, in one line."""
    result: BacktestResult
    """The backtest of the trained ensemble."""
    written: runs.Written
    """The saved run and its report."""


def run_demo(*, overwrite: bool = False, progress: Progress | None = None) -> Demo:
    """Write strategies/demo, backtests/demo and reports/demo.html under the current folder.

    An earlier demo's outputs are replaced; anything else of these names is refused unless `overwrite`. `progress` is
    called with what is being done and the share that is done. Raises InputError for outputs that cannot be written.
    """
    import finpod

    started = datetime.now(UTC)
    say = progress or (lambda doing, share: None)
    overwrite = overwrite or _is_own(runs.BACKTESTS / NAME)
    outputs = runs.plan_outputs(NAME, overwrite=overwrite)
    require_free(STRATEGY, overwrite, ENSEMBLE)
    market = finpod.sample_market()
    ensemble = finpod.train(
        "stocks",
        market=market,
        train=TRAIN,
        validation=VALIDATION,
        out=STRATEGY,
        costs=COSTS,
        overwrite=overwrite,
        progress=lambda doing, share: say(doing, 0.9 * share),
        **EFFORT,
    )
    say("backtest", 0.9)
    result = finpod.backtest(ensemble, market, start=TEST[0], end=TEST[1], costs=COSTS)
    say("report", 0.93)
    written = runs.write_outputs(result, outputs, runs.describe_run(COMMAND, started), overwrite=overwrite)
    say("done", 1.0)
    data = f"{market.title}; {market.manifest['membership']}; benchmark: {market.benchmark}"
    return Demo(data, result, written)


def _is_own(folder: Path) -> bool:
    """Whether a run was written by an earlier demo."""
    try:
        return bool(json.loads((folder / "run.json").read_text())["command"] == COMMAND)
    except (OSError, ValueError, KeyError, TypeError):
        return False
