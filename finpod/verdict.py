"""One plain sentence: is the excess more than luck?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from finpod.significance import Interval, excess_interval

if TYPE_CHECKING:
    from finpod.result import BacktestResult

RESAMPLES = 5000
"""Bootstrap samples of the interval; the seed is fixed, so that the sentence is the same in every run."""


def excess_over(result: BacktestResult, other: pd.Series) -> Interval | None:
    """95 % interval of the yearly growth in excess of another curve, on common days; None for a short or equal history."""
    if result.is_short:
        return None
    common = pd.DataFrame({"own": result.equity, "other": other}).dropna()
    if result.periods_per_year > 252:  # intraday: session by session
        common = common.groupby(common.index.normalize()).last()
    own, base = common["own"].to_numpy(), common["other"].to_numpy()
    alive = (own[:-1] > 0) & (base[:-1] > 0)
    if len(own) < 3 or not alive.all() or np.allclose(own, base, rtol=1e-12):
        return None
    steps = (curve[1:] / curve[:-1] - 1 for curve in (own, base))
    return excess_interval(*steps, periods_per_year=min(result.periods_per_year, 252), resamples=RESAMPLES)


def sentence(result: BacktestResult, other: pd.Series, name: str, reserve: str = "") -> str:
    """What the interval says in words; empty where there is none. `reserve` is added where it speaks for the strategy."""
    found = excess_over(result, other)
    if found is None:
        return ""
    points = [f"{100 * value:+.1f}" for value in (found.estimate, found.low, found.high)]
    said = "not distinguishable from luck" if found.covers_zero else "more than luck explains"
    if found.high < 0:
        said = "worse than luck explains"
    return (
        f"Excess over {name}: {points[0]} points a year, {100 * found.level:.0f} % interval {points[1]} to {points[2]}: {said}"
        + (" if this were the only trial" if result.trials > 1 and found.low > 0 else "")
        + (reserve if found.low > 0 else "")
    )


def verdicts(result: BacktestResult) -> list[str]:
    """The sentences on equal weight and on the benchmark."""
    hindsight = ", but names chosen with hindsight explain it as well" if result.manifest.get("survivorship") else ""
    said = [
        sentence(result, result.equal_weight_equity, "equal weight"),
        sentence(result, result.benchmark_equity, result.benchmark, hindsight),
    ]
    return [one for one in said if one]
