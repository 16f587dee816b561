"""`compare`: figures of several runs on their common sessions, and confidence intervals of their differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import combinations
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finpod.backtesting.result_io import load_result, names_of, run_folder
from finpod.errors import InputError
from finpod.files import to_json
from finpod.measures import DUST, metrics, relative, returns_per_year, simple_returns
from finpod.periods import plain, session_dates
from finpod.records import ResultWarning
from finpod.result import SHORT_HISTORY, UNDEFINED, BacktestResult
from finpod.significance import Interval, expected_best, intervals

LEVEL, RESAMPLES = 0.95, 5000
"""Confidence level and number of bootstrap samples of the intervals of differences. The seed is fixed."""
EQUAL_WEIGHT = "equal weight"
"""A kind of rival, a portfolio to compare runs with. The other kind is 'benchmark'. `_curves` has columns for both."""


class Pair(NamedTuple):
    """Difference between two runs, first minus second, with confidence intervals from a paired bootstrap."""

    first: str
    second: str
    cagr: Interval | None
    """Difference of the CAGRs. None for a short history, equal accounts, or an account at 0 before the end."""
    sharpe: Interval | None
    """Difference of the Sharpe ratios. None if `cagr` is None."""
    reason: str = ""
    """Reason why there are no intervals: "short", "ruined" or "same". Empty if there are intervals."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Comparison of R runs on their n + 1 common sessions; `print` shows it as a table."""

    runs: Mapping[str, BacktestResult]
    """The results by name."""
    equity: pd.DataFrame
    """[n + 1, R] value of each account, rescaled to 1 at the first common close."""
    rivals: Mapping[str, pd.Series]
    """Title -> [n + 1] values of a benchmark or equal-weight portfolio, 1 at its first common bar; NaN without a bar.

    The `name` of a series is 'benchmark' or 'equal weight'. If series share a `name`, their titles list the runs."""
    figures: Mapping[str, Mapping[str, float]]
    """Run -> figure -> value: the figures of `Metrics`, excess over benchmark and equal weight, information ratio over
    equal weight, turnover, and costs as a fraction of the account at the first common close."""
    rival_figures: Mapping[str, Mapping[str, float]]
    """Title in `rivals` -> figure -> value. Figures that are not defined for rivals are left out."""
    correlation: pd.DataFrame
    """[R, R] correlation of the returns in excess of equal weight; NaN for a run that always equals equal weight."""
    pairs: tuple[Pair, ...]
    """All pairs of runs, in the order of the runs."""
    risk_free: float
    """Yearly risk-free rate of all Sharpe ratios."""
    periods_per_year: float
    """Number of returns per year, if each return goes from a common session to the next; the median over the runs."""
    notes: tuple[ResultWarning, ...]
    """Remarks on the window (code "shortened"), and on different benchmarks or equal weights ("several_rivals")."""

    @property
    def warnings(self) -> list[tuple[ResultWarning, tuple[str, ...]]]:
        """Warnings, each with the names of the runs that have it. Those that invalidate the figures come first."""
        runs: dict[ResultWarning, list[str]] = {}
        for name, run in self.runs.items():
            for warning in run.warnings:
                runs.setdefault(warning, []).append(name)
        ordered = sorted(runs.items(), key=lambda item: (not item[0].grave, item[0].code != "look_ahead"))
        return [(warning, tuple(names)) for warning, names in ordered]

    @property
    def candidates(self) -> int:
        """Sum of the runs' `candidates`, but at least the number of runs. Of runs of one `agent`, the largest counts."""
        agents = sorted((run.candidates, to_json(run.agent) if run.agent else name) for name, run in self.runs.items())
        return max(sum({agent: count for count, agent in agents}.values()), len(self.runs))

    @property
    def is_short(self) -> bool:
        """True if there are too few returns for meaningful yearly figures."""
        return len(self.equity) - 1 < SHORT_HISTORY

    @property
    def chance(self) -> dict[int, float]:
        """Number of candidates -> expected information ratio of the best candidate if none has skill.

        The keys are the number of runs and `candidates`. The ratio is the `expected_best` of independent candidates
        whose information ratios have the standard deviation 1 / sqrt(years).
        """
        sd = math.sqrt(self.periods_per_year / (len(self.equity) - 1))
        return {count: expected_best(count, sd) for count in sorted({len(self.runs), self.candidates})}

    def to_json(self) -> str:
        """Return the comparison without its curves as deterministic JSON. Undefined figures are null."""
        from finpod.backtesting.comparison_text import to_json

        return to_json(self)

    def report(self, path: str | Path, *, overwrite: bool = True, title: str = "") -> Path:
        """Write a self-contained HTML page with the heading `title`. Return its path. See `BacktestResult.report`."""
        from finpod.report.compare import render_comparison
        from finpod.report.pages import write_page

        return write_page(lambda: render_comparison(self, title), path, overwrite=overwrite)

    def __str__(self) -> str:
        from finpod.backtesting.comparison_text import format_comparison

        return format_comparison(self)


def compare(
    results: Sequence[BacktestResult | str | PathLike[str]], *, names: Sequence[str] | None = None
) -> Comparison:
    """Return a comparison of runs on their common sessions. Every curve is rescaled to 1 at the first common close.

    A saved run may be given by its folder or name, as for `load_result`. A run is named after its strategy, or by its
    entry in `names` if several strategies have the same name. By default, `names` are the folders' names if all runs
    are given by folders. Names that are still equal are numbered. All figures are those of the common window.

    Raises InputError as `load_result` does. Also raises it for fewer than two runs, an intraday run, a wrong number of
    names, fewer than two common sessions, and an account that is zero at the first common session.
    """
    runs = _named(results, names)
    if intraday := [name for name, run in runs.items() if run.is_intraday]:
        raise InputError(f"{intraday[0]} has several returns per session; compare runs of daily or longer bars")
    whole = {name: _curves(run) for name, run in runs.items()}
    common = reduce(pd.Index.intersection, [table.index for table in whole.values()])
    if len(common) < 2:
        spans = ", ".join(f"{name} {_span(table.index)}" for name, table in whole.items())
        raise InputError(f"the runs have fewer than two sessions in common ({spans}); run them over the same dates")
    cut = {name: table.loc[common] for name, table in whole.items()}
    own = pd.DataFrame({name: table["own"] for name, table in cut.items()})
    if ruined := own.columns[~(own.iloc[0] > 0)].tolist():
        raise InputError(f"{ruined[0]} fell to 0 by {common[0]:%Y-%m-%d}, the first common session; omit this run")
    rates = {run.risk_free for run in runs.values()}
    yearly = [returns_per_year(whole[name].index.isin(common), run.periods_per_year) for name, run in runs.items()]
    terms = {"risk_free": max(rates) if len(rates) == 1 else 0.0, "periods_per_year": plain(np.median(yearly))}
    rivals = _rivals(runs, cut)
    return Comparison(
        runs=runs,
        equity=own / own.iloc[0],
        rivals=rivals,
        figures={name: _figures(run, cut[name], terms) for name, run in runs.items()},
        rival_figures={name: _metrics(curve, terms) for name, curve in rivals.items()},
        correlation=_correlation(cut),
        pairs=tuple(_pairs(own, terms)),
        **terms,
        notes=tuple(_notes(whole, common, rivals)),
    )


def _named(runs: Any, names: Sequence[str] | None) -> dict[str, BacktestResult]:
    """Return unique name -> result, in the order of `runs`. Saved runs are loaded."""
    runs = [runs] if isinstance(runs, str) or not isinstance(runs, Iterable) else list(runs)
    folders = [run_folder(run) for run in runs if isinstance(run, (str, PathLike))]
    if names is None and len(folders) == len(runs):
        names = names_of(folders)
    results = [load_result(run) if isinstance(run, (str, PathLike)) else run for run in runs]
    for result in results:
        if not isinstance(result, BacktestResult):
            text = f"{result!r:.60} is not a result; pass results of backtest() or load_result()"
            raise InputError(text, argument="results")
    if len(results) < 2:
        raise InputError(f"the number of runs is {len(results)}; pass two or more", argument="results")
    if names is not None and len(names) != len(results):
        text = f"there are {len(names)} names for {len(results)} runs; pass one name for each run"
        raise InputError(text, argument="names")
    labels = [run.strategy for run in results]
    if names is not None:
        labels = [name if labels.count(label) > 1 else label for label, name in zip(labels, names, strict=True)]
    while len(set(labels)) < len(labels):
        numbered = enumerate(labels, start=1)
        labels = [f"{label} ({place})" if labels.count(label) > 1 else label for place, label in numbered]
    return dict(zip(labels, results, strict=True))


def _curves(run: BacktestResult) -> pd.DataFrame:
    """Return a frame [n + 1, 3] by session: the account ('own'), its 'benchmark' and its 'equal weight'."""
    curves = {"own": run.equity, "benchmark": run.benchmark_equity, EQUAL_WEIGHT: run.equal_weight_equity}
    return pd.DataFrame(curves).set_axis(pd.DatetimeIndex(session_dates(run.equity.index)))


def _metrics(curve: pd.Series, terms: Mapping[str, Any]) -> dict[str, float]:
    """Return the `Metrics` of the defined values of a curve; NaN for fewer than two values or a first value of zero."""
    year = returns_per_year(curve.notna(), terms["periods_per_year"])
    bars, terms = curve.dropna(), {**terms, "periods_per_year": year}
    return asdict(metrics(bars.to_numpy(), **terms) if len(bars) > 1 and bars.iloc[0] > 0 else UNDEFINED)


def _figures(run: BacktestResult, cut: pd.DataFrame, terms: Mapping[str, Any]) -> dict[str, float]:
    values, year = cut["own"].to_numpy(), {"periods_per_year": terms["periods_per_year"]}
    against = relative(values, cut[EQUAL_WEIGHT].to_numpy(), **year)
    turnover = float(run.turnover[_within(run, run.turnover.index, cut.index)].sum())
    costs = float(run.trades["cost"][_within(run, run.trades["date"], cut.index)].sum())
    return _metrics(cut["own"], terms) | {
        "excess": relative(values, cut["benchmark"].to_numpy(), **year).excess,
        "excess_over_equal_weight": against.excess,
        "information_ratio": against.information_ratio,
        "turnover": turnover,
        "yearly_turnover": turnover / (len(values) - 1) * terms["periods_per_year"],
        "costs": costs / values[0],
    }


def _within(run: BacktestResult, dates: Any, common: pd.Index) -> Any:
    """Return a mask of the fills at `dates` that lie between the first and the last close of `common`.

    With fills at the close, a fill comes after the valuation at the same close.
    """
    days = session_dates(pd.DatetimeIndex(dates))
    first, last = session_dates(common[[0, -1]])
    return (days >= first) & (days < last) if run.fill == "close" else (days > first) & (days <= last)


def _rivals(runs: Mapping[str, BacktestResult], cut: Mapping[str, pd.DataFrame]) -> dict[str, pd.Series]:
    """Return `Comparison.rivals`: benchmarks with a bar, then equal-weight portfolios, without duplicates."""
    rivals: dict[str, pd.Series] = {}
    for kind in ("benchmark", EQUAL_WEIGHT):
        groups: list[tuple[str, pd.Series, list[str]]] = []
        for name, run in runs.items():
            if kind == "benchmark" and not run.has_benchmark:
                continue
            title, curve = run.benchmark if kind == "benchmark" else kind, cut[name][kind]
            curve = curve / curve.bfill().iloc[0]
            alike = [members for other, shown, members in groups if other == title and _same(shown, curve)]
            if alike:
                alike[0].append(name)
            else:
                groups.append((title, curve, [name]))
        for title, curve, names in groups:
            rivals[title if len(groups) == 1 else f"{title} ({', '.join(names)})"] = curve
    return rivals


def _correlation(cut: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    returns = {name: simple_returns(table["own"]) - simple_returns(table[EQUAL_WEIGHT]) for name, table in cut.items()}
    active = pd.DataFrame(returns)
    differing = active.dropna().loc[:, active.std() >= DUST]
    return differing.corr().reindex(index=list(cut), columns=list(cut))


def _pairs(equity: pd.DataFrame, terms: Mapping[str, Any]) -> Iterator[Pair]:
    """Yield all pairs of accounts, with intervals of their differences or with the reason for missing intervals."""
    for first, second in combinations(equity, 2):
        curves = [equity[first], equity[second]]
        reason, leads = "", dict[str, Interval]()
        if len(equity) <= SHORT_HISTORY:
            reason = "short"
        elif not all((curve.iloc[:-1] > 0).all() for curve in curves):
            reason = "ruined"
        elif _same(*(curve / curve.iloc[0] for curve in curves)):
            reason = "same"
        else:
            own, other = (simple_returns(curve).to_numpy() for curve in curves)
            leads = intervals(own, {"other": other}, level=LEVEL, resamples=RESAMPLES, **terms)["other"]
        yield Pair(first, second, leads.get("cagr"), leads.get("sharpe"), reason)


def _same(one: pd.Series, other: pd.Series) -> bool:
    """Return True if two curves that start at 1 are equal up to rounding."""
    return bool(np.allclose(one, other, rtol=1e-9, atol=0, equal_nan=True))


def _notes(
    whole: Mapping[str, pd.DataFrame], common: pd.Index, rivals: Mapping[str, pd.Series]
) -> Iterator[ResultWarning]:
    longer = {name: [len(table), _span(table.index)] for name, table in whole.items() if len(table) > len(common)}
    if longer:
        yield ResultWarning("shortened", {"closes": len(common), "span": _span(common), "runs": longer})
    if len(rivals) > 2:
        yield ResultWarning("several_rivals")


def _span(days: pd.Index) -> str:
    return f"{days[0]:%Y-%m-%d} to {days[-1]:%Y-%m-%d}"
