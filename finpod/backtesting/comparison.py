"""`compare`: figures of several runs on their common sessions, and intervals of the difference of each pair."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from finpod.backtesting.comparison_figures import (
    LEVEL,
    RESAMPLES,
    Pair,
    Rival,
    common_sessions,
    correlation_of,
    curves_of,
    figures_of,
    metrics_of,
    pairs_of,
    rivals_of,
)
from finpod.errors import InputError
from finpod.files import to_json
from finpod.periods import describe
from finpod.records import ResultWarning, Severity, records
from finpod.result import SHORT_HISTORY, BacktestResult
from finpod.significance import expected_best

MORE = (
    "total_return",
    "cagr",
    "excess",
    "excess_over_equal_weight",
    "sharpe",
    "sortino",
    "max_drawdown",
    "calmar",
    "information_ratio",
)
"""Ranked figures of which higher is better."""
LESS = ("volatility", "turnover", "yearly_turnover", "costs")
"""Ranked figures of which lower is better."""
SETTINGS: dict[str, Callable[[BacktestResult], Hashable]] = {
    "data": lambda run: (str(run.manifest.get("title", "no title")), run.data_hash[:12]),
    "terms": lambda run: (run.costs, run.fill, run.whole_shares),
    "cash": lambda run: round(float(run.equity.iloc[0])),
    "risk_free": lambda run: run.risk_free,
}
"""Settings that must be equal for a fair comparison."""
DESCRIBED = (
    "strategy",
    "trained_until",
    "benchmark",
    "fill",
    "whole_shares",
    "risk_free",
    "trials",
    "opened",
    "in_sample",
)
"""Fields of a run that are copied into the JSON of a comparison."""


class Unfair(NamedTuple):
    """A setting that differs between the runs but should be equal."""

    what: str
    """Key of `SETTINGS`."""
    groups: tuple[tuple[Any, tuple[str, ...]], ...]
    """Each value of the setting, with the runs that have it."""


@dataclass(frozen=True)
class Note:
    """A remark on a comparison."""

    code: str
    """"shortened" (the window), "several_rivals" or "intraday"."""
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """JSON values for its sentence."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """R runs on their n + 1 common sessions; prints itself as a table."""

    runs: Mapping[str, BacktestResult]
    """The results by name; intraday results are reduced to one value a session."""
    equity: pd.DataFrame
    """[n + 1, R] value of each account over its value at the first common close."""
    rivals: Mapping[str, Rival]
    """Benchmarks and equal weights by name. Where the runs differ in one, the name includes those of the runs."""
    figures: Mapping[str, Mapping[str, float]]
    """Run -> figure -> value: those of `Metrics`, excess over benchmark and equal weight, the information ratio over equal
    weight, turnover, and costs as a share of the account at the first common close."""
    rival_figures: Mapping[str, Mapping[str, float]]
    """The same figures of the rivals, as far as they are defined."""
    correlation: pd.DataFrame
    """[R, R] correlation of the returns less those of each run's equal weight; NaN for one that never strays from it."""
    pairs: tuple[Pair, ...]
    """All pairs of runs, in order."""
    risk_free: float
    """Risk-free rate a year, used in all Sharpe ratios here."""
    unfair: tuple[Unfair, ...] = ()
    """Settings that make the comparison unfair."""
    notes: tuple[Note, ...] = ()
    """Remarks on the window and the rivals."""

    @property
    def ranks(self) -> dict[str, dict[str, float]]:
        """Run -> figure -> rank, 1 being the best. Equal figures share a rank; undefined ones have NaN."""
        table = pd.DataFrame(self.figures).astype(float).round(12)
        more = table.loc[list(MORE)].rank(axis=1, method="min", ascending=False)
        places = pd.concat([more, table.loc[list(LESS)].rank(axis=1, method="min")])
        return {name: dict(places[name]) for name in self.runs}

    @property
    def flaws(self) -> dict[str, str]:
        """Run -> why its figures mean nothing: a `Severity` or "in_sample"; empty for a valid run."""
        audits = {name: run.audit for name, run in self.runs.items()}
        failed = {name: audit.severity for name, audit in audits.items() if audit and audit.passed is False}
        return {
            name: failed[name] or Severity.LOOKS_AHEAD if name in failed else "in_sample" * run.in_sample
            for name, run in self.runs.items()
        }

    @property
    def warnings(self) -> list[tuple[ResultWarning, tuple[str, ...]]]:
        """The warnings, each with the names of its runs; those that invalidate the figures come first."""
        runs: dict[ResultWarning, list[str]] = {}
        for name, run in self.runs.items():
            for warning in run.warnings:
                runs.setdefault(warning, []).append(name)
        ordered = sorted(runs.items(), key=lambda item: (not item[0].grave, item[0].code != "look_ahead"))
        return [(warning, tuple(names)) for warning, names in ordered]

    @property
    def candidates(self) -> int:
        """Number of candidates behind all runs; those of one search count once. See `BacktestResult.candidates`."""
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

        `expected_best` of independent candidates whose ratios have the sampling deviation 1 / sqrt(years).
        """
        sd = math.sqrt(self.periods_per_year / (len(self.equity) - 1))
        return {count: expected_best(count, sd) for count in sorted({len(self.runs), self.candidates})}

    def to_json(self) -> str:
        """Everything but the curves, as deterministic JSON; undefined figures are null."""
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
            "correlation": {name: dict(self.correlation[name]) for name in self.runs},
            "unfair": [{"what": one.what, "runs": [names for _, names in one.groups]} for one in self.unfair],
            "notes": [asdict(note) for note in self.notes],
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
    _require_alike(original)
    runs = {name: run.by_session() for name, run in original.items()}
    whole = {name: curves_of(run) for name, run in runs.items()}
    common = common_sessions(original, whole)
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
        "periods_per_year": next(iter(runs.values())).periods_per_year,
    }
    rivals = rivals_of(runs, cut)
    return Comparison(
        runs=runs,
        equity=pd.DataFrame({name: table["own"] / table["own"].iloc[0] for name, table in cut.items()}),
        rivals=rivals,
        figures={name: figures_of(run, cut[name], whole[name].index, terms) for name, run in runs.items()},
        rival_figures={name: metrics_of(rival.curve, terms) for name, rival in rivals.items()},
        correlation=correlation_of(cut),
        pairs=tuple(pairs_of({name: table["own"] for name, table in cut.items()}, terms)),
        risk_free=terms["risk_free"],
        unfair=tuple(_unfair(runs)),
        notes=tuple(_notes(original, {name: table.index for name, table in whole.items()}, common, rivals)),
    )


def _named(results: Sequence[BacktestResult], names: Sequence[str] | None) -> dict[str, BacktestResult]:
    """The results in their order, by unique names."""
    for result in results:
        if not isinstance(result, BacktestResult):
            raise InputError(
                f"{result!r:.60} is no result; give one that backtest() or load_result() returned", argument="results"
            )
    if len(results) < 2:
        raise InputError(
            f"{'one run' if results else 'no run'} cannot be compared; give two or more", argument="results"
        )
    if names is not None and len(names) != len(results):
        raise InputError(f"there are {len(names)} names for {len(results)} runs; give one for each", argument="names")
    labels = [run.strategy for run in results]
    if names is not None:
        labels = [name if labels.count(label) > 1 else label for label, name in zip(labels, names, strict=True)]
    while len(set(labels)) < len(labels):
        numbered = enumerate(labels, start=1)
        labels = [f"{label} ({place})" if labels.count(label) > 1 else label for place, label in numbered]
    return dict(zip(labels, results, strict=True))


def _require_alike(runs: Mapping[str, BacktestResult]) -> None:
    """Raise InputError if sessions a year differ, or if some runs are intraday and others are not."""
    first, *others = runs
    kinds = {
        name: (run.is_intraday, run.sessions_per_year if run.is_intraday else run.periods_per_year)
        for name, run in runs.items()
    }
    for other in others:
        if kinds[other] != kinds[first]:
            one, two = (describe(runs[n].periods_per_year, runs[n].sessions_per_year) for n in (first, other))
            raise InputError(f"{first} has {one} and {other} {two}; compare daily runs with daily ones")


def _unfair(runs: Mapping[str, BacktestResult]) -> Iterator[Unfair]:
    for what, setting in SETTINGS.items():
        groups: dict[Hashable, list[str]] = {}
        for name, run in runs.items():
            groups.setdefault(setting(run), []).append(name)
        if len(groups) > 1:
            yield Unfair(what, tuple((value, tuple(names)) for value, names in groups.items()))


def _notes(
    original: Mapping[str, BacktestResult],
    days: Mapping[str, pd.Index],
    common: pd.DatetimeIndex,
    rivals: Mapping[str, Rival],
) -> Iterator[Note]:
    if longer := {name: closes for name, closes in days.items() if len(closes) > len(common)}:
        data = {
            "closes": len(common),
            "span": _span(common),
            "runs": {name: [len(closes), _span(closes)] for name, closes in longer.items()},
            "invested": [name for name, closes in longer.items() if closes[0] < common[0]],
        }
        yield Note("shortened", data)
    if len(rivals) > 2:
        yield Note("several_rivals")
    if any(run.is_intraday for run in original.values()):
        opens = all(common[0] < run.equity.index[0] for run in original.values())
        yield Note("intraday", {"from": "open" if opens else "close"})


def _span(days: pd.Index) -> str:
    return f"{days[0]:%Y-%m-%d} to {days[-1]:%Y-%m-%d}"


def _described(run: BacktestResult) -> dict[str, Any]:
    """Settings of a run, for the JSON."""
    return {name: getattr(run, name) for name in (*DESCRIBED, "data_hash")} | {
        "window": [f"{run.equity.index[place]:%Y-%m-%d}" for place in (0, -1)],
        "cash": float(run.equity.iloc[0]),
        "costs": asdict(run.costs),
        "warnings": records(run.warnings),
    }
