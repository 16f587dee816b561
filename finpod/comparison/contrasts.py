"""Figures of several runs on the sessions they have in common: each alone, every two, and what they are set against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finpod.measures import DUST, metrics, relative, simple_returns
from finpod.periods import session_dates
from finpod.result import SHORT_HISTORY, UNDEFINED, BacktestResult
from finpod.significance import Interval, intervals

LEVEL, RESAMPLES = 0.95, 5000
"""Of the intervals of the differences; the seed is fixed, so that they are the same in every run."""
EQUAL_WEIGHT = "equal weight"
"""What readers call it, and its column in the curves of a run; the others are 'own' and 'benchmark'."""


class Rival(NamedTuple):
    """What runs are set against."""

    kind: str
    """'benchmark' or 'equal weight'."""
    runs: tuple[str, ...]
    """Names of the runs that have it."""
    curve: pd.Series
    """[n + 1] its value over that at its first common close; NaN where it has none."""


class Pair(NamedTuple):
    """How far the first of two runs is ahead of the second, with intervals; the same days are drawn for both."""

    first: str
    """Name of a run."""
    second: str
    """Name of another."""
    cagr: Interval | None
    """CAGR less that of the second; None for the same account, a lost one, and a short history."""
    sharpe: Interval | None
    """Sharpe ratio less that of the second; None likewise."""
    reason: str = ""
    """Why there are no intervals: "short", "ruined" or "same"."""

    def described(self) -> dict[str, Any]:
        """The pair in plain values, for JSON."""
        ends = {key: found and found._asdict() for key, found in (("cagr", self.cagr), ("sharpe", self.sharpe))}
        return self._asdict() | ends


def curves_of(run: BacktestResult) -> pd.DataFrame:
    """[n + 1, 3] the account, its benchmark and its equal weight, by session."""
    curves = {"own": run.equity, "benchmark": run.benchmark_equity, EQUAL_WEIGHT: run.equal_weight_equity}
    days = pd.DatetimeIndex(session_dates(run.equity.index))
    return pd.DataFrame({name: curve.to_numpy() for name, curve in curves.items()}, days)


def metrics_of(curve: pd.Series, terms: Mapping[str, Any]) -> dict[str, float]:
    """`Metrics` of a curve over its own values, NaN for fewer than two; `terms` are the settings of `metrics`."""
    bars = curve.dropna()
    return asdict(metrics(bars.to_numpy(), **terms) if len(bars) > 1 and bars.iloc[0] > 0 else UNDEFINED)


def figures_of(run: BacktestResult, cut: pd.DataFrame, whole: pd.Index, terms: Mapping[str, Any]) -> dict[str, float]:
    """Figures of one run on the common window; `whole` are the sessions of the run itself."""
    own, year = cut["own"].to_numpy(), {"periods_per_year": terms["periods_per_year"]}
    against = relative(own, cut[EQUAL_WEIGHT].to_numpy(), **year)
    turnover = float(run.turnover[_within(run, run.turnover.index, cut.index, whole)].sum())
    costs = float(run.trades["cost"][_within(run, run.trades["date"], cut.index, whole)].sum())
    return metrics_of(cut["own"], terms) | {
        "excess": relative(own, cut["benchmark"].to_numpy(), **year).excess,
        "excess_over_equal_weight": against.excess,
        "information_ratio": against.information_ratio,
        "turnover": turnover,
        "yearly_turnover": turnover / (len(own) - 1) * terms["periods_per_year"],
        "costs": costs / own[0],
    }


def rivals_of(runs: Mapping[str, BacktestResult], cut: Mapping[str, pd.DataFrame]) -> dict[str, Rival]:
    """Benchmarks, then equal weights, each once by its name; where there are several, the names of their runs are added.

    A benchmark without any value is none."""
    found: dict[str, Rival] = {}
    for kind in ("benchmark", EQUAL_WEIGHT):
        groups: list[tuple[str, pd.Series, list[str]]] = []
        for name, run in runs.items():
            title = run.benchmark if kind == "benchmark" else kind
            bars = cut[name][kind].dropna()
            if not run.has_benchmark and kind == "benchmark":
                continue
            curve = cut[name][kind] / (bars.iloc[0] if len(bars) else 1.0)
            alike = (group for group in groups if group[0] == title and _same(group[1], curve))
            if (group := next(alike, None)) is None:
                groups.append(group := (title, curve, []))
            group[2].append(name)
        for title, curve, names in groups:
            label = title if len(groups) == 1 else f"{title} ({', '.join(names)})"
            found[label] = Rival(kind, tuple(names), curve)
    return found


def correlation_of(cut: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """[R, R] correlation of the returns less those of each run's equal weight; NaN for one that never strays from it."""
    active = pd.DataFrame(
        {name: simple_returns(table["own"]) - simple_returns(table[EQUAL_WEIGHT]) for name, table in cut.items()}
    )
    strays = active.dropna().loc[:, active.std() >= DUST]
    return strays.corr().reindex(index=list(cut), columns=list(cut))


def pairs_of(cut: Mapping[str, pd.DataFrame], terms: Mapping[str, Any]) -> Iterator[Pair]:
    """Every two runs with the intervals of their differences, or why there are none."""
    alive = {name: bool((table["own"].iloc[:-1] > 0).all()) for name, table in cut.items()}
    for place, (first, own) in enumerate(cut.items()):
        others = {name: cut[name] for name in list(cut)[place + 1 :]}
        reasons = {
            name: "short"
            if len(own) <= SHORT_HISTORY
            else "ruined"
            if not (alive[first] and alive[name])
            else "same"
            if _same(own["own"] / own["own"].iloc[0], other["own"] / other["own"].iloc[0])
            else ""
            for name, other in others.items()
        }
        sound = {
            str(i): simple_returns(others[name]["own"]).to_numpy()
            for i, (name, reason) in enumerate(reasons.items())
            if not reason
        }
        steps = simple_returns(own["own"]).to_numpy()
        found = intervals(steps, sound, level=LEVEL, resamples=RESAMPLES, **terms) if sound else {}
        for i, (name, reason) in enumerate(reasons.items()):
            lead = found.get(str(i), {})
            yield Pair(first, name, lead.get("cagr"), lead.get("sharpe"), reason)


def _within(run: BacktestResult, dates: Any, common: pd.Index, whole: pd.Index) -> Any:
    """Which fills fall into the returns between the first and the last common close.

    A fill at the close comes after that day's value is struck. Nothing is cut where the run itself begins or ends.
    """
    days = session_dates(pd.DatetimeIndex(dates))
    first, last = session_dates(common[[0, -1]])
    later = days >= first if run.fill == "close" else days > first
    sooner = days < last if run.fill == "close" else days <= last
    return (later | (common[0] == whole[0])) & (sooner | (common[-1] == whole[-1]))


def _same(one: pd.Series, other: pd.Series) -> bool:
    """Whether two curves from 1 are one but for rounding, which differs with the size of the account."""
    return bool(np.allclose(one, other, rtol=1e-9, atol=0, equal_nan=True))
