"""`compare`: several runs on the sessions that all of them have, and whether they differ by more than luck."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from finpod.comparison.contrasts import (
    LEVEL,
    RESAMPLES,
    Pair,
    Rival,
    correlation_of,
    curves_of,
    figures_of,
    metrics_of,
    pairs_of,
    rivals_of,
)
from finpod.errors import InputError
from finpod.jsonable import to_json
from finpod.lookahead.words import CAN, LOOKS, heading
from finpod.result import SHORT_HISTORY, BacktestResult
from finpod.significance import expected_best
from finpod.table import describe_terms, percent, ratio

RETURNS = ("total_return", "cagr", "excess", "excess_over_equal_weight")
MORE = (*RETURNS, "sharpe", "sortino", "max_drawdown", "calmar", "information_ratio")
LESS = ("volatility", "turnover", "yearly_turnover", "costs")
"""Figures that are ranked: more is better, or less is."""
GRAVE = (LOOKS, CAN, "in-sample")
"""How the warnings begin that say the figures mean nothing, the gravest first."""


class Warned(NamedTuple):
    """A warning of one or more runs."""

    text: str
    """What the run says."""
    runs: tuple[str, ...]
    """Names of the runs that say it."""
    grave: bool
    """Whether the figures say nothing about the future: the run is in-sample, or looks ahead."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """R runs side by side on their n + 1 common sessions; prints itself as a table."""

    runs: Mapping[str, BacktestResult]
    """The results by the names they go by here, intraday ones session by session."""
    equity: pd.DataFrame
    """[n + 1, R] value of each account over its value at the first common close."""
    rivals: Mapping[str, Rival]
    """Benchmarks and equal weights by name: one of each where the runs agree on it, else named after their runs too."""
    figures: Mapping[str, Mapping[str, float]]
    """Run -> figure -> value: those of `Metrics`, excess over benchmark and equal weight, the information ratio over equal
    weight, turnover, and costs as a share of the account at the first common close."""
    rival_figures: Mapping[str, Mapping[str, float]]
    """The same of the rivals, as far as they have them."""
    correlation: pd.DataFrame
    """[R, R] correlation of the returns less those of each run's equal weight; NaN for one that never strays from it."""
    pairs: tuple[Pair, ...]
    """Every two runs, in order."""
    risk_free: float
    """Yearly rate that all Sharpe ratios here are measured against."""
    unfair: tuple[str, ...] = ()
    """Why the runs cannot be compared fairly."""
    notes: tuple[str, ...] = ()
    """What a reader must know about the comparison."""

    @property
    def ranks(self) -> dict[str, dict[str, float]]:
        """Run -> figure -> place, 1 being the best; equal figures share one, undefined ones have none (NaN)."""
        table = pd.DataFrame(self.figures).astype(float).round(12)
        more = table.loc[list(MORE)].rank(axis=1, method="min", ascending=False)
        places = pd.concat([more, table.loc[list(LESS)].rank(axis=1, method="min")])
        return {name: dict(places[name]) for name in self.runs}

    @property
    def flaws(self) -> dict[str, str]:
        """Run -> the graver of what makes its figures mean nothing, of `GRAVE`; empty for a sound run."""
        said = {name: (*run.warnings, *_unsaid(run)) for name, run in self.runs.items()}
        return {
            name: next((flaw for flaw in GRAVE if any(text.startswith(flaw) for text in texts)), "")
            for name, texts in said.items()
        }

    @property
    def headings(self) -> list[str]:
        """What stands above the column of each run: its name, and its flaw."""
        return [f"{name} ({flaw})" if flaw else name for name, flaw in self.flaws.items()]

    @property
    def warnings(self) -> tuple[Warned, ...]:
        """The warnings of the runs, those first that say the figures mean nothing."""
        said: dict[str, list[str]] = {}
        for name, run in self.runs.items():
            for text in (*_unsaid(run), *run.warnings):
                said.setdefault(text, []).append(name)
        warned = [Warned(text, tuple(names), text.startswith(GRAVE)) for text, names in said.items()]
        return tuple(sorted(warned, key=lambda one: (not one.grave, not one.text.startswith((LOOKS, CAN)))))

    @property
    def trials(self) -> int:
        """Trials behind all the runs; those of one search count once."""
        searches = {to_json(run.agent) if run.agent else name: run.trials for name, run in self.runs.items()}
        return sum(searches.values())

    @property
    def is_short(self) -> bool:
        """Whether there are too few returns for yearly figures to mean anything."""
        return len(self.equity) - 1 < SHORT_HISTORY

    @property
    def chance(self) -> dict[int, float]:
        """Number of skill-less candidates -> information ratio their best would show: the runs, and the trials behind them.

        `expected_best` of independent ones with the sampling deviation of a ratio of zero, 1 / sqrt(years).
        """
        sd = math.sqrt(_periods(self.runs) / (len(self.equity) - 1))
        return {count: expected_best(count, sd) for count in sorted({len(self.runs), self.trials})}

    @property
    def selection(self) -> str:
        """What choosing among these runs amounts to, in one sentence."""
        said = "Choosing the best of several runs on the window they are judged on is selection, and flatters the chosen one"
        if self.is_short:
            return f"{said}."
        shown = [f"{ratio(best)} for the best of {count:,}" for count, best in self.chance.items()]
        behind = f", all the trials behind these {len(self.runs)} runs" if len(shown) > 1 else ""
        return (
            f"{said}: without any skill, luck alone is expected to show an information ratio over equal weight of "
            f"{' and of '.join(shown)}{behind}."
        )

    def to_json(self) -> str:
        """All of it but the curves, as deterministic JSON; undefined figures are null."""
        days, ranks = self.equity.index, self.ranks
        content = {
            "start": f"{days[0]:%Y-%m-%d}",
            "end": f"{days[-1]:%Y-%m-%d}",
            "returns": len(days) - 1,
            "risk_free": self.risk_free,
            "runs": {
                name: _described(run) | {"figures": self.figures[name], "ranks": ranks[name]}
                for name, run in self.runs.items()
            },
            "rivals": self.rival_figures,
            "pairs": [pair.described() for pair in self.pairs],
            "level": LEVEL,
            "resamples": RESAMPLES,
            "correlation": {name: dict(self.correlation[name]) for name in self.runs},
            "unfair": self.unfair,
            "notes": self.notes,
            "warnings": [warned._asdict() for warned in self.warnings],
            "trials": self.trials,
            "chance": self.chance,
            "selection": self.selection,
        }
        return to_json(content)

    def report(self, path: str | Path, *, overwrite: bool = True, title: str = "") -> Path:
        """Write the self-contained HTML page and return its path."""
        from finpod.report.compare import write_comparison

        return write_comparison(self, Path(path), overwrite=overwrite, title=title)

    def __str__(self) -> str:
        from finpod.comparison.side_by_side import format_comparison

        return format_comparison(self)


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
    terms = {"risk_free": rates.pop() if len(rates) == 1 else 0.0, "periods_per_year": _periods(runs)}
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
        raise InputError(f"{strangers[0]!r:.60} is no result; give what backtest() or load_result() returned")
    if len(given) < 2:
        raise InputError(f"{'one run' if given else 'no run'} cannot be compared; give two or more")
    if names is not None and len(names) != len(given):
        raise InputError(f"there are {len(names)} names for {len(given)} runs; give one for each")
    labels = _told_apart([run.strategy for run in given], names or [])
    labels = _told_apart(labels, [f"{label} ({place})" for place, label in enumerate(labels, start=1)])
    if len(set(labels)) < len(labels):
        labels = [f"{label} ({place})" for place, label in enumerate(labels, start=1)]
    return dict(zip(labels, given, strict=True))


def _unsaid(run: BacktestResult) -> Iterator[str]:
    """Grave warnings that a run deserves and does not have."""
    deserved = {
        heading(run.audit.get("findings", ())): (run.audit.get("passed") is False, "the audit of its decisions failed"),
        "in-sample": (run.in_sample, "it was trained or chosen on days of its window"),
    }
    for flaw, (holds, why) in deserved.items():
        if holds and not any(text.startswith(flaw) for text in run.warnings):
            yield f"{flaw}: {why}"


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
    return bool(run.by_session().equity.index[0] != run.equity.index[0].normalize()) and run.periods_per_year > 252


def _require_alike(runs: Mapping[str, BacktestResult]) -> None:
    """Raise InputError unless all runs have as many returns a year, or all are intraday ones."""
    first, *others = runs
    for other in others:
        one, two = runs[first].periods_per_year, runs[other].periods_per_year
        if one != two and min(one, two) <= 252:
            raise InputError(
                f"{first} has {one:,} returns a year and {other} {two:,}; compare daily runs with daily ones, and intraday "
                "ones with intraday ones"
            )


def _periods(runs: Mapping[str, BacktestResult]) -> int:
    return next(iter(runs.values())).periods_per_year


def _unfair(runs: Mapping[str, BacktestResult]) -> Iterator[str]:
    """What differs between the runs that should not, a sentence each."""
    facts: dict[str, Callable[[BacktestResult], str]] = {
        "data differ": lambda run: f"{run.manifest.get('title', 'no title')}, {run.data_hash[:12] or 'no hash'}",
        "terms differ": lambda run: describe_terms(run.costs, run.fill, run.whole_shares),
        "starting cash differs": lambda run: f"{run.equity.iloc[0]:,.0f}",
        "risk-free rates differ": lambda run: percent(run.risk_free),
    }
    for what, fact in facts.items():
        groups: dict[str, list[str]] = {}
        for name, run in runs.items():
            groups.setdefault(fact(run), []).append(name)
        if len(groups) > 1:
            said = "; ".join(f"{text} ({', '.join(names)})" for text, names in groups.items())
            end = ", so Sharpe ratios here are against 0 %" if what.startswith("risk-free") else ""
            yield f"no fair comparison: the {what}: {said}{end}"


def _notes(
    given: Mapping[str, BacktestResult],
    curves: Mapping[str, pd.DataFrame],
    common: pd.DatetimeIndex,
    rivals: Mapping[str, Rival],
) -> Iterator[str]:
    cut = {name: table.index for name, table in curves.items() if len(table) > len(common)}
    if cut:
        said = "; ".join(f"{name} has {len(days):,} from {_span(days)}" for name, days in cut.items())
        invested = [name for name, days in cut.items() if days[0] < common[0]]
        yield (
            f"the window is shortened to the {len(common):,} closes that all runs have, {_span(common)}: {said}"
            + (
                f". What began earlier, {', '.join(invested)}, enters as it stood, not anew from cash"
                if invested
                else ""
            )
        )
    if len(rivals) > 2:
        yield "the runs have not all the same benchmark or equal weight (data, costs, fills or start differ): each is shown"
    if any(run.periods_per_year > 252 for run in given.values()):
        start = (
            "first bar on"
            if all(common[0] < run.equity.index[0] for run in given.values())
            else "close of the first one"
        )
        yield f"intraday runs are compared session by session, from the {start}"


def _span(days: pd.Index) -> str:
    return f"{days[0]:%Y-%m-%d} to {days[-1]:%Y-%m-%d}"


def _described(run: BacktestResult) -> dict[str, Any]:
    """What a run is, for JSON."""
    return {
        "strategy": run.strategy,
        "window": [f"{run.equity.index[place]:%Y-%m-%d}" for place in (0, -1)],
        "cash": float(run.equity.iloc[0]),
        "costs": asdict(run.costs),
        "trained_until": run.trained_until,
        "warnings": run.warnings,
    } | {
        key: getattr(run, key)
        for key in ("benchmark", "fill", "whole_shares", "risk_free", "trials", "in_sample", "data_hash")
    }
