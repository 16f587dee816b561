"""`compare`: several runs on the sessions that all of them have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import reduce

import pandas as pd

from finpod.comparison.comparison import Comparison
from finpod.comparison.contrasts import (
    Rival,
    correlation_of,
    curves_of,
    figures_of,
    metrics_of,
    pairs_of,
    rivals_of,
)
from finpod.comparison.notes import Note, Unfair
from finpod.errors import InputError
from finpod.periods import describe
from finpod.result import BacktestResult


def compare(results: Sequence[BacktestResult], *, names: Sequence[str] | None = None) -> Comparison:
    """Set runs side by side on the sessions that all of them have; every curve starts anew at the first of these.

    `finpod.compare` also takes the folders of saved runs, or their names under backtests/, as `load_result` does.
    Runs go by the names of their strategies; where two have the same, by `names`, such as those of their folders, then
    by number. Metrics, turnover and costs are those of the common window. Intraday runs are compared session by session.

    Raises InputError for fewer than two runs, what is no result, names that are not as many, daily runs among intraday
    ones, no two common sessions, and an account that was lost before the second of them.
    """
    given = _named(results, names)
    _require_alike(given)
    runs = {name: run.by_session() for name, run in given.items()}
    curves = {name: curves_of(run) for name, run in runs.items()}
    common = _common(given, curves)
    if len(common) < 2:
        spans = ", ".join(f"{name} {_span(table.index)}" for name, table in curves.items())
        raise InputError(f"the runs have no two sessions in common ({spans}); run them over the same dates")
    cut = {name: table.loc[common] for name, table in curves.items()}
    for name, table in cut.items():
        if not table["own"].iloc[0] > 0:
            raise InputError(f"{name} was ruined before {common[0]:%Y-%m-%d}, the first common session; leave it out")
    rates = {run.risk_free for run in runs.values()}
    terms = {
        "risk_free": rates.pop() if len(rates) == 1 else 0.0,
        "periods_per_year": next(iter(runs.values())).periods_per_year,
    }
    rivals = rivals_of(runs, cut)
    return Comparison(
        runs=runs,
        equity=pd.DataFrame({name: table["own"] / table["own"].iloc[0] for name, table in cut.items()}),
        rivals=rivals,
        figures={name: figures_of(run, cut[name], curves[name].index, terms) for name, run in runs.items()},
        rival_figures={name: metrics_of(rival.curve, terms) for name, rival in rivals.items()},
        correlation=correlation_of(cut),
        pairs=tuple(pairs_of(cut, terms)),
        risk_free=terms["risk_free"],
        unfair=tuple(_unfair(runs)),
        notes=tuple(_notes(given, curves, common, rivals)),
    )


def _named(results: Sequence[BacktestResult], names: Sequence[str] | None) -> dict[str, BacktestResult]:
    """The results by names of which no two are equal, in their order."""
    given = list(results)
    strangers = [one for one in given if not isinstance(one, BacktestResult)]
    if strangers:
        raise InputError(
            f"{strangers[0]!r:.60} is no result; give what backtest() or load_result() returned", argument="results"
        )
    if len(given) < 2:
        raise InputError(f"{'one run' if given else 'no run'} cannot be compared; give two or more", argument="results")
    if names is not None and len(names) != len(given):
        raise InputError(f"there are {len(names)} names for {len(given)} runs; give one for each", argument="names")
    labels = _told_apart([run.strategy for run in given], names or [])
    labels = _told_apart(labels, [f"{label} ({place})" for place, label in enumerate(labels, start=1)])
    if len(set(labels)) < len(labels):
        labels = [f"{label} ({place})" for place, label in enumerate(labels, start=1)]
    return dict(zip(labels, given, strict=True))


def _told_apart(labels: Sequence[str], others: Sequence[str]) -> list[str]:
    """The labels, with the other one in the place of each that is there twice."""
    often = Counter(labels)
    return [other if often[label] > 1 else label for label, other in zip(labels, others or labels, strict=True)]


def _common(given: Mapping[str, BacktestResult], curves: Mapping[str, pd.DataFrame]) -> pd.DatetimeIndex:
    """The closes that all runs have, and V_0 of intraday ones if all begin with it: it is dated where others may close."""
    common = reduce(pd.Index.intersection, [table.index for table in curves.values()])
    opened = [curves[name].index[0] for name, run in given.items() if _opens(run)]
    alike = len(opened) == len(given) and len(set(opened)) == 1
    return common if alike else common.difference(opened)


def _opens(run: BacktestResult) -> bool:
    """Whether V_0 of a run has a date of its own, before its first session."""
    return bool(run.by_session().equity.index[0] != run.equity.index[0].normalize()) and run.is_intraday


def _require_alike(runs: Mapping[str, BacktestResult]) -> None:
    """Raise InputError unless all runs have as many sessions a year, and all or none of them are intraday."""
    described = {name: describe(run.periods_per_year, run.sessions_per_year) for name, run in runs.items()}
    kinds = {
        name: (run.is_intraday, run.sessions_per_year if run.is_intraday else run.periods_per_year)
        for name, run in runs.items()
    }
    first, *others = runs
    for other in others:
        if kinds[other] != kinds[first]:
            raise InputError(
                f"{first} has {described[first]} and {other} {described[other]}; compare daily runs with daily ones"
            )


def _unfair(runs: Mapping[str, BacktestResult]) -> Iterator[Unfair]:
    """Settings that differ between the runs and should not."""
    settings: dict[str, Callable[[BacktestResult], Hashable]] = {
        "data": lambda run: (str(run.manifest.get("title", "no title")), run.data_hash[:12]),
        "terms": lambda run: (run.costs, run.fill, run.whole_shares),
        "cash": lambda run: round(float(run.equity.iloc[0])),
        "risk_free": lambda run: run.risk_free,
    }
    for what, setting in settings.items():
        groups: dict[Hashable, list[str]] = {}
        for name, run in runs.items():
            groups.setdefault(setting(run), []).append(name)
        if len(groups) > 1:
            yield Unfair(what, tuple((value, tuple(names)) for value, names in groups.items()))


def _notes(
    given: Mapping[str, BacktestResult],
    curves: Mapping[str, pd.DataFrame],
    common: pd.DatetimeIndex,
    rivals: Mapping[str, Rival],
) -> Iterator[Note]:
    cut = {name: table.index for name, table in curves.items() if len(table) > len(common)}
    if cut:
        yield Note(
            "shortened",
            {
                "closes": len(common),
                "span": _span(common),
                "runs": {name: [len(days), _span(days)] for name, days in cut.items()},
                "invested": [name for name, days in cut.items() if days[0] < common[0]],
            },
        )
    if len(rivals) > 2:
        yield Note("several_rivals")
    if any(run.is_intraday for run in given.values()):
        opens = all(common[0] < run.equity.index[0] for run in given.values())
        yield Note("intraday", {"from": "open" if opens else "close"})


def _span(days: pd.Index) -> str:
    return f"{days[0]:%Y-%m-%d} to {days[-1]:%Y-%m-%d}"
