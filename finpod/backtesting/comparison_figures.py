"""Figures of several runs on their common sessions: of each run, each pair, and their benchmarks and equal weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finpod.measures import DUST, metrics, relative, simple_returns
from finpod.periods import session_dates
from finpod.result import SHORT_HISTORY, UNDEFINED, BacktestResult
from finpod.significance import Interval, intervals

LEVEL, RESAMPLES = 0.95, 5000
"""Level and resamples of the intervals of the differences. The seed is fixed, so results repeat."""
EQUAL_WEIGHT = "equal weight"
"""Kind of a rival, and name of its column in the curves of a run. The other columns are 'own' and 'benchmark'."""


class Rival(NamedTuple):
    """Benchmark or equal weight that runs are compared with."""

    kind: str
    """'benchmark' or 'equal weight'."""
    curve: pd.Series
    """[n + 1] value of the rival divided by that at its first common close; NaN where it has none."""


class Pair(NamedTuple):
    """Lead of the first of two runs over the second, with intervals from a paired bootstrap."""

    first: str
    """Name of a run."""
    second: str
    """Name of the other run."""
    cagr: Interval | None
    """Difference of the CAGRs; None for equal accounts, a ruined one, and a short history."""
    sharpe: Interval | None
    """Difference of the Sharpe ratios; None in the same cases."""
    reason: str = ""
    """Reason for missing intervals: "short", "ruined" or "same"; empty if there are some."""


def curves_of(run: BacktestResult) -> pd.DataFrame:
    """Return the account, its benchmark and its equal weight by session, [n + 1, 3]."""
    curves = {"own": run.equity, "benchmark": run.benchmark_equity, EQUAL_WEIGHT: run.equal_weight_equity}
    days = pd.DatetimeIndex(session_dates(run.equity.index))
    return pd.DataFrame({name: curve.to_numpy() for name, curve in curves.items()}, days)


def common_sessions(original: Mapping[str, BacktestResult], whole: Mapping[str, pd.DataFrame]) -> pd.DatetimeIndex:
    """Return the closes common to all runs. V_0 of intraday runs counts only if all begin with it: others may close on its date."""
    common = reduce(pd.Index.intersection, [table.index for table in whole.values()])
    opened = [
        whole[name].index[0]
        for name, run in original.items()
        if run.is_intraday and run.by_session().equity.index[0] != run.equity.index[0].normalize()
    ]
    alike = len(opened) == len(original) and len(set(opened)) == 1
    return common if alike else common.difference(opened)


def metrics_of(curve: pd.Series, terms: Mapping[str, Any]) -> dict[str, float]:
    """Return the `Metrics` of a curve over its defined values; NaN for fewer than two."""
    bars = curve.dropna()
    return asdict(metrics(bars.to_numpy(), **terms) if len(bars) > 1 and bars.iloc[0] > 0 else UNDEFINED)


def figures_of(run: BacktestResult, cut: pd.DataFrame, whole: pd.Index, terms: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of one run on the common window; `whole` has all sessions of the run."""
    values, year = cut["own"].to_numpy(), {"periods_per_year": terms["periods_per_year"]}
    against = relative(values, cut[EQUAL_WEIGHT].to_numpy(), **year)
    turnover = float(run.turnover[_within(run, run.turnover.index, cut.index, whole)].sum())
    costs = float(run.trades["cost"][_within(run, run.trades["date"], cut.index, whole)].sum())
    return metrics_of(cut["own"], terms) | {
        "excess": relative(values, cut["benchmark"].to_numpy(), **year).excess,
        "excess_over_equal_weight": against.excess,
        "information_ratio": against.information_ratio,
        "turnover": turnover,
        "yearly_turnover": turnover / (len(values) - 1) * terms["periods_per_year"],
        "costs": costs / values[0],
    }


def _within(run: BacktestResult, dates: Any, common: pd.Index, whole: pd.Index) -> Any:
    """Return a mask of the fills between the first and the last common close.

    A fill at the close comes after that day's valuation. No fill is dropped at an end that is the run's own.
    """
    days = session_dates(pd.DatetimeIndex(dates))
    first, last = session_dates(common[[0, -1]])
    later = days >= first if run.fill == "close" else days > first
    sooner = days < last if run.fill == "close" else days <= last
    return (later | (common[0] == whole[0])) & (sooner | (common[-1] == whole[-1]))


def rivals_of(runs: Mapping[str, BacktestResult], cut: Mapping[str, pd.DataFrame]) -> dict[str, Rival]:
    """Return benchmarks, then equal weights, each once. If several differ, their names include those of their runs.

    A benchmark without any value is left out."""
    rivals: dict[str, Rival] = {}
    for kind in ("benchmark", EQUAL_WEIGHT):
        groups: list[tuple[str, pd.Series, list[str]]] = []
        for name, run in runs.items():
            if kind == "benchmark" and not run.has_benchmark:
                continue
            title, bars = run.benchmark if kind == "benchmark" else kind, cut[name][kind].dropna()
            curve = cut[name][kind] / (bars.iloc[0] if len(bars) else 1.0)
            alike = [members for other, shown, members in groups if other == title and _same(shown, curve)]
            if alike:
                alike[0].append(name)
            else:
                groups.append((title, curve, [name]))
        for title, curve, names in groups:
            label = title if len(groups) == 1 else f"{title} ({', '.join(names)})"
            rivals[label] = Rival(kind, curve)
    return rivals


def correlation_of(cut: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the correlation [R, R] of the returns less those of each run's equal weight; NaN for a run that always equals it."""
    active = pd.DataFrame(
        {name: simple_returns(table["own"]) - simple_returns(table[EQUAL_WEIGHT]) for name, table in cut.items()}
    )
    strays = active.dropna().loc[:, active.std() >= DUST]
    return strays.corr().reindex(index=list(cut), columns=list(cut))


def pairs_of(curves: Mapping[str, pd.Series], terms: Mapping[str, Any]) -> Iterator[Pair]:
    """Yield all pairs of accounts, with the intervals of their differences or the reason why there are none."""
    names, returns = list(curves), {name: simple_returns(curve).to_numpy() for name, curve in curves.items()}
    for place, first in enumerate(names):
        reasons = {name: _no_interval(curves[first], curves[name]) for name in names[place + 1 :]}
        # The prefix keeps a run called "strategy" apart from the key of the returns themselves.
        sound = {f"over {name}": returns[name] for name, reason in reasons.items() if not reason}
        leads = intervals(returns[first], sound, level=LEVEL, resamples=RESAMPLES, **terms) if sound else {}
        for name, reason in reasons.items():
            lead = leads.get(f"over {name}", {})
            yield Pair(first, name, lead.get("cagr"), lead.get("sharpe"), reason)


def _no_interval(one: pd.Series, two: pd.Series) -> str:
    """Return why there is no interval of the difference of two accounts; empty if there is one."""
    if len(one) <= SHORT_HISTORY:
        return "short"
    if not all((curve.iloc[:-1] > 0).all() for curve in (one, two)):
        return "ruined"
    return "same" if _same(one / one.iloc[0], two / two.iloc[0]) else ""


def _same(one: pd.Series, other: pd.Series) -> bool:
    """Return True if two curves that start at 1 are equal up to rounding."""
    return bool(np.allclose(one, other, rtol=1e-9, atol=0, equal_nan=True))
