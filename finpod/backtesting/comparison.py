"""`compare`: figures of several runs on their common sessions, and intervals of the difference of each pair."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from finpod.backtesting import comparison_figures as window
from finpod.backtesting.comparison_figures import LEVEL, RESAMPLES, Pair, Rival
from finpod.errors import InputError
from finpod.files import to_json
from finpod.periods import describe
from finpod.records import ResultWarning, records
from finpod.result import SHORT_HISTORY, BacktestResult
from finpod.significance import expected_best

RANKED = {"sharpe": "Sharpe", "cagr": "CAGR", "max_drawdown": "drawdown", "information_ratio": "information ratio"}
"""Figures by which runs are ranked, of which higher is better, and their labels."""
SETTINGS: dict[str, Callable[[BacktestResult], Hashable]] = {
    "data": lambda run: (str(run.manifest.get("title", "no title")), run.data_hash[:12]),
    "terms": lambda run: (run.costs, run.fill, run.whole_shares),
    "cash": lambda run: round(float(run.equity.iloc[0])),
    "risk_free": lambda run: run.risk_free,
}
"""Settings that must be equal for a fair comparison, and how they are read from a result."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Comparison of R runs on their n + 1 common sessions; `print` shows it as a table."""

    runs: Mapping[str, BacktestResult]
    """The results by name; intraday results are reduced to one value a session."""
    equity: pd.DataFrame
    """[n + 1, R] value of each account over its value at the first common close."""
    rivals: Mapping[str, Rival]
    """Benchmarks and equal weights by name. If the runs differ in one, its name includes those of its runs."""
    figures: Mapping[str, Mapping[str, float]]
    """Run -> figure -> value: the figures of `Metrics`, excess over benchmark and equal weight, information ratio over equal
    weight, turnover, and costs as a share of the account at the first common close."""
    rival_figures: Mapping[str, Mapping[str, float]]
    """Figures of the rivals by name, as far as they are defined."""
    correlation: pd.DataFrame
    """[R, R] correlation of the returns less those of each run's equal weight; NaN for a run that always equals it."""
    pairs: tuple[Pair, ...]
    """All pairs of runs, in order."""
    risk_free: float
    """Risk-free rate a year, used in all Sharpe ratios here."""
    unfair: Mapping[str, Mapping[Any, Sequence[str]]]
    """Key of `SETTINGS` -> value -> runs that have it, for the settings that differ and make the comparison unfair."""
    notes: tuple[ResultWarning, ...]
    """Remarks on the window and the rivals: "shortened", "several_rivals" and "intraday"."""

    @property
    def ranks(self) -> dict[str, dict[str, float]]:
        """Rank by run and figure of `RANKED`, 1 being the best. Equal figures share a rank; that of an undefined figure is NaN."""
        figures = pd.DataFrame(self.figures).loc[list(RANKED)].astype(float).round(12)
        return figures.rank(axis=1, method="min", ascending=False).to_dict()

    @property
    def warnings(self) -> list[tuple[ResultWarning, tuple[str, ...]]]:
        """Warnings, each with the names of its runs. Warnings that invalidate the figures come first."""
        runs: dict[ResultWarning, list[str]] = {}
        for name, run in self.runs.items():
            for warning in run.warnings:
                runs.setdefault(warning, []).append(name)
        ordered = sorted(runs.items(), key=lambda item: (not item[0].grave, item[0].code != "look_ahead"))
        return [(warning, tuple(names)) for warning, names in ordered]

    @property
    def candidates(self) -> int:
        """Number of candidates behind all runs. Candidates of one search count once. See `BacktestResult.candidates`."""
        searches = {to_json(run.agent) if run.agent else name: run.candidates for name, run in self.runs.items()}
        return max(sum(searches.values()), len(self.runs))

    @property
    def periods_per_year(self) -> float:
        """Returns a year, the same for all runs; intraday runs are compared session by session."""
        return next(iter(self.runs.values())).periods_per_year

    @property
    def is_short(self) -> bool:
        """True if there are too few returns for meaningful yearly figures."""
        return len(self.equity) - 1 < SHORT_HISTORY

    @property
    def chance(self) -> dict[int, float]:
        """Number of candidates -> information ratio expected of the best if none has skill, for the runs and for `candidates`.

        It is the `expected_best` of independent candidates whose ratios have the sampling deviation 1 / sqrt(years).
        """
        sd = math.sqrt(self.periods_per_year / (len(self.equity) - 1))
        return {count: expected_best(count, sd) for count in sorted({len(self.runs), self.candidates})}

    def to_json(self) -> str:
        """Return everything but the curves as deterministic JSON. Undefined figures are null."""
        days, ranks = self.equity.index, self.ranks
        content = {
            "start": f"{days[0]:%Y-%m-%d}",
            "end": f"{days[-1]:%Y-%m-%d}",
            "returns": len(days) - 1,
            "risk_free": self.risk_free,
            "periods_per_year": self.periods_per_year,
            "runs": {
                name: _described(run) | {"figures": self.figures[name], "ranks": ranks[name]}
                for name, run in self.runs.items()
            },
            "rivals": self.rival_figures,
            "pairs": [
                pair._asdict() | {key: span._asdict() for key in ("cagr", "sharpe") if (span := getattr(pair, key))}
                for pair in self.pairs
            ],
            "level": LEVEL,
            "resamples": RESAMPLES,
            "correlation": self.correlation.to_dict(),
            "unfair": [{"what": what, "runs": [*groups.values()]} for what, groups in self.unfair.items()],
            "notes": records(self.notes),
            "warnings": [asdict(warning) | {"runs": names} for warning, names in self.warnings],
            "candidates": self.candidates,
            "chance": self.chance,
        }
        return to_json(content)

    def report(self, path: str | Path, *, overwrite: bool = True, title: str = "") -> Path:
        """Write the self-contained HTML page and return its path, as `BacktestResult.report` does."""
        from finpod.report.compare import render_comparison
        from finpod.report.pages import write_page

        return write_page(lambda: render_comparison(self, title), path, overwrite=overwrite)

    def __str__(self) -> str:
        from finpod.backtesting.comparison_text import format_comparison

        return format_comparison(self)


def compare(results: Sequence[BacktestResult], *, names: Sequence[str] | None = None) -> Comparison:
    """Compare runs on the sessions that all of them have; every curve is rescaled to 1 at the first of these.

    `finpod.compare` also takes the folders of saved runs, or their names under backtests/, as `load_result` does.
    Runs are named after their strategies. Where two names are equal, `names` (such as folder names) are used, then
    numbers. Metrics, turnover and costs are those of the common window. Intraday runs are compared session by session.

    Raises InputError for fewer than two runs, a run that is no result, too few or too many names, daily runs mixed with
    intraday ones, fewer than two common sessions, and an account ruined before the second of them.
    """
    original = _named(results, names)
    runs = {name: run.by_session() for name, run in original.items()}
    kinds = {name: (original[name].is_intraday, run.periods_per_year) for name, run in runs.items()}
    first, *others = runs
    if unlike := [name for name in others if kinds[name] != kinds[first]]:
        one, two = (describe(original[n].periods_per_year, original[n].sessions_per_year) for n in (first, unlike[0]))
        raise InputError(f"{first} has {one} and {unlike[0]} {two}; compare daily runs with daily ones")
    whole = {name: window.curves_of(run) for name, run in runs.items()}
    common = window.common_sessions(original, whole)
    if len(common) < 2:
        spans = ", ".join(f"{name} {_span(table.index)}" for name, table in whole.items())
        raise InputError(f"the runs have no two sessions in common ({spans}); run them over the same dates")
    cut = {name: table.loc[common] for name, table in whole.items()}
    for name, table in cut.items():
        if not table["own"].iloc[0] > 0:
            raise InputError(f"{name} was ruined before {common[0]:%Y-%m-%d}, the first common session; leave it out")
    rates = {run.risk_free for run in runs.values()}
    terms = {
        "risk_free": rates.pop() if len(rates) == 1 else 0.0,
        "periods_per_year": runs[first].periods_per_year,
    }
    rivals = window.rivals_of(runs, cut)
    return Comparison(
        runs=runs,
        equity=pd.DataFrame({name: table["own"] / table["own"].iloc[0] for name, table in cut.items()}),
        rivals=rivals,
        figures={name: window.figures_of(run, cut[name], whole[name].index, terms) for name, run in runs.items()},
        rival_figures={name: window.metrics_of(rival.curve, terms) for name, rival in rivals.items()},
        correlation=window.correlation_of(cut),
        pairs=tuple(window.pairs_of({name: table["own"] for name, table in cut.items()}, terms)),
        risk_free=terms["risk_free"],
        unfair=_unfair(runs),
        notes=tuple(_notes(original, {name: table.index for name, table in whole.items()}, common, rivals)),
    )


def _named(results: Sequence[BacktestResult], names: Sequence[str] | None) -> dict[str, BacktestResult]:
    """Return the results in their order, by unique names."""
    for result in results:
        if not isinstance(result, BacktestResult):
            raise InputError(
                f"{result!r:.60} is no result; give one that backtest() or load_result() returned", argument="results"
            )
    if len(results) < 2:
        number = "one run" if results else "no run"
        raise InputError(f"{number} cannot be compared; give two or more", argument="results")
    if names is not None and len(names) != len(results):
        raise InputError(f"there are {len(names)} names for {len(results)} runs; give one for each", argument="names")
    labels = [run.strategy for run in results]
    if names is not None:
        labels = [name if labels.count(label) > 1 else label for label, name in zip(labels, names, strict=True)]
    while len(set(labels)) < len(labels):
        numbered = enumerate(labels, start=1)
        labels = [f"{label} ({place})" if labels.count(label) > 1 else label for place, label in numbered]
    return dict(zip(labels, results, strict=True))


def _unfair(runs: Mapping[str, BacktestResult]) -> dict[str, dict[Any, list[str]]]:
    found: dict[str, dict[Any, list[str]]] = {what: {} for what in SETTINGS}
    for what, groups in found.items():
        for name, run in runs.items():
            groups.setdefault(SETTINGS[what](run), []).append(name)
    return {what: groups for what, groups in found.items() if len(groups) > 1}


def _notes(
    original: Mapping[str, BacktestResult],
    days: Mapping[str, pd.Index],
    common: pd.DatetimeIndex,
    rivals: Mapping[str, Rival],
) -> Iterator[ResultWarning]:
    if longer := {name: closes for name, closes in days.items() if len(closes) > len(common)}:
        data = {
            "closes": len(common),
            "span": _span(common),
            "runs": {name: [len(closes), _span(closes)] for name, closes in longer.items()},
            "invested": [name for name, closes in longer.items() if closes[0] < common[0]],
        }
        yield ResultWarning("shortened", data)
    if len(rivals) > 2:
        yield ResultWarning("several_rivals")
    if any(run.is_intraday for run in original.values()):
        opens = all(common[0] < run.equity.index[0] for run in original.values())
        yield ResultWarning("intraday", {"from": "open" if opens else "close"})


def _span(days: pd.Index) -> str:
    return f"{days[0]:%Y-%m-%d} to {days[-1]:%Y-%m-%d}"


def _described(run: BacktestResult) -> dict[str, Any]:
    """Return the settings of a run, for the JSON."""
    fields = ("strategy", "trained_until", "benchmark", "fill", "whole_shares", "risk_free", "trials", "opened")
    return {name: getattr(run, name) for name in (*fields, "in_sample", "data_hash")} | {
        "window": [f"{run.equity.index[place]:%Y-%m-%d}" for place in (0, -1)],
        "cash": float(run.equity.iloc[0]),
        "costs": asdict(run.costs),
        "warnings": records(run.warnings),
    }
