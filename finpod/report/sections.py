"""The sections of the report of a backtest: which there are, and the values that each prints. Wording is in the templates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finpod.backtesting.sentences import anchor_name, hurdle, lead, luck_sentence, verdict_lines, warning_sentence
from finpod.backtesting.text import columns, headline, spread_note
from finpod.evidence.attribution import attribute, flags
from finpod.evidence.skill import ANCHOR, BENCHMARK, EQUAL_WEIGHT, MEASURED, ONE_SIDED, evidence
from finpod.measures import drawdown_table, period_returns, relative
from finpod.periods import session_dates
from finpod.records import GRAVE, ResultWarning
from finpod.report.charts import CHARTS
from finpod.report.pages import Layout, Section, sentence
from finpod.report.provenance import members, provenance
from finpod.result import UNDEFINED, BacktestResult, Sweep

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
TOP_HOLDINGS, GAIN_ENDS = 10, 5
"""Assets in the table of holdings, and at each end of the table of contributions."""
PROBABILITIES = ("probabilistic_sharpe", "deflated_active_sharpe", "minimum_years", "minimum_active_years", "overfitting",
                 "fan_beaten")  # fmt: skip
"""Answers of `evidence`; without any of them there is no card of them."""
_ROOM = 0.06
"""Share of a drawn scale that is left free at both ends."""


class Mark(NamedTuple):
    """A bar on a line beside its figures; places and width are percent of the line."""

    left: float
    width: float
    zero: float  # where zero lies
    dot: float | None = None  # where the estimate lies
    tone: str = ""  # "gain" or "loss" if the bar lies above or below zero, empty if it covers it


def mark(low: float, high: float, scale: tuple[float, float], dot: float | None = None) -> Mark | None:
    """The bar from `low` to `high` on a line that spans `scale`; None where an end is undefined."""
    if not all(math.isfinite(end) for end in (low, high, *scale)):
        return None
    start, length = scale[0], max(scale[1] - scale[0], 1e-12)
    left, right, zero = (round(100 * (value - start) / length, 1) for value in (low, high, 0.0))
    at = None if dot is None or not math.isfinite(dot) else round(100 * (dot - start) / length, 1)
    return Mark(left, round(right - left, 1), zero, at, "gain" if low > 0 else "loss" if high < 0 else "")


def scale_of(values: Sequence[float]) -> tuple[float, float]:
    """A scale that holds zero and every finite value, with a little room at both ends."""
    known = [0.0, *(value for value in values if math.isfinite(value))]
    room = _ROOM * (max(known) - min(known) or 1.0)
    return min(known) - room, max(known) + room


def warnings_of(result: BacktestResult) -> list[ResultWarning]:
    """The warnings of a result with those of degenerate policies, an in-sample window and ruin, which are never left out."""
    warnings = [*result.warnings, *(alarm for alarm in flags(result) if alarm not in result.warnings)]
    if result.in_sample and not GRAVE & {warning.code for warning in warnings}:
        warnings.insert(0, ResultWarning("in_sample", {"trained_until": result.trained_until}))
    if result.ruined_on:
        warnings.insert(0, ResultWarning("ruined", {"day": result.ruined_on}))
    return warnings


def _warnings(result: BacktestResult) -> dict[str, Any]:
    return {"notes_of_result": [(sentence(warning_sentence(each)), each.grave) for each in warnings_of(result)]}


def _tiles(result: BacktestResult) -> dict[str, Any]:
    parts = {
        "look-ahead audit": result.audit is not None and result.audit.passed is not None,
        "baseline strategies": len(result.baselines),
        "random portfolios": len(result.fan),
        "other fees": len(result.cost_sweep),
        "other sizes": len(result.capacity),
    }
    return {"missing": [name for name, there in parts.items() if not there]}


def timeline(result: BacktestResult) -> list[list[dict[str, Any]]]:
    """Training, validation and test windows as rows of bars: name, first and last day, left end and width in percent.

    Windows that share days stand on different rows, so that none hides another.
    """
    days = session_dates(result.equity.index)
    spans = sorted((np.datetime64(first), np.datetime64(last), name) for name, (first, last) in result.windows.items())
    spans.append((days[0], days[-1], "test" if result.trained_until and not result.in_sample else "backtest"))
    origin, end = min(first for first, *_ in spans), max(last for _, last, _ in spans)
    length = max(end - origin, np.timedelta64(1, "D"))
    rows: list[list[dict[str, Any]]] = []
    for first, last, name in spans:
        left, width = min(100 * float((first - origin) / length), 99.5), max(100 * float((last - first) / length), 0.5)
        bar = {"name": name, "first": str(first), "last": str(last), "left": left, "width": width}
        apart = (row for row in rows if all(it["last"] < bar["first"] or bar["last"] < it["first"] for it in row))
        row = next(apart, None)
        if row is None:
            rows.append(row := [])
        row.append(bar)
    return rows


def _performance(result: BacktestResult) -> dict[str, Any]:
    """Retraining makes many windows of a kind, which share a line of the legend."""
    rows = timeline(result)
    bars = pd.DataFrame([bar for row in rows for bar in row])
    kinds = bars.groupby(bars["name"].str.split().str[0], sort=False)
    return {"timeline": rows, "kinds": kinds.agg(number=("name", "size"), first=("first", "min"), last=("last", "max"))}


def significance(result: BacktestResult, odds: Mapping[str, Any]) -> dict[str, Any] | None:
    """Intervals by measure, and what the answers of `evidence` are worded with; None for a short history."""
    spans = {measure: _spans(result, odds, measure) for measure in ("sharpe", "cagr", "max_drawdown")}
    has_answers = any(not math.isnan(_number(odds[key])) for key in PROBABILITIES)
    if not any(spans.values()) and not has_answers:
        return None
    return {
        "sentence": luck_sentence(result),
        "spans": spans,
        "has_answers": has_answers,
        "odds": odds,
        "is_measured": odds["trial_sd_source"] == MEASURED,
        "anchor": anchor_name(result),
        "hurdle": hurdle(result.candidates),
        "lead": lead(result.candidates),
        "pass_level": ONE_SIDED,
    }


def _spans(result: BacktestResult, odds: Mapping[str, Any], measure: str) -> list[dict[str, Any]]:
    """Rows of the table of intervals: what the strategy is compared with, low, estimate, high, and the drawing."""
    over = {ANCHOR: anchor_name(result), EQUAL_WEIGHT: "equal weight", BENCHMARK: short_benchmark(result)}
    intervals = {name: at[measure] for name, at in odds["intervals"].items() if measure in at}
    frame = pd.DataFrame(intervals, ["low", "estimate", "high"], dtype=float).T
    scale = scale_of(frame.to_numpy().ravel())
    return [
        {"over": over.get(name, ""), **row, "mark": mark(row["low"], row["high"], scale, row["estimate"])}
        for name, row in frame.to_dict("index").items()
    ]


def short_benchmark(result: BacktestResult) -> str:
    """The name of the benchmark where it is short enough to stand beside figures."""
    return result.benchmark if len(result.benchmark) <= 12 else "benchmark"


def _baselines(result: BacktestResult) -> dict[str, Any] | None:
    many = result.fan.shape[1]
    return {"ranked": ranked(result), "randoms": many} if result.baselines or many else None


def ranked(result: BacktestResult) -> list[dict[str, Any]]:
    """Strategy, benchmark, equal weight and baselines, the highest Sharpe ratio first; empty if no baseline was run."""
    if not result.baselines:
        return []
    strategy, bench, equal = columns(result).values()
    curves = {strategy: result.equity, bench: result.benchmark_equity}
    if not np.allclose(result.equity, result.equal_weight_equity, rtol=1e-12):
        curves[equal] = result.equal_weight_equity
    rows = []
    for name, curve in (dict(result.baselines) | curves).items():
        whole, known = curve.reindex(result.equity.index), curve.dropna()
        against = relative(
            whole.to_numpy(), result.benchmark_equity.to_numpy(), periods_per_year=result.periods_per_year
        )
        figures = (result.metrics_of(known), against.excess) if len(known) > 1 else (UNDEFINED, math.nan)
        rows.append({"name": name, "is_own": name == strategy, "metrics": figures[0], "excess": figures[1]})
    return sorted(rows, key=lambda row: (_last(-row["metrics"].sharpe), row["name"] not in curves))


def _costs(result: BacktestResult) -> dict[str, Any] | None:
    impact = result.costs.impact or 1
    fees, sizes = swept(result, result.cost_sweep), swept(result, result.capacity)
    return {"fees": fees, "sizes": sizes, "impact": impact} if fees or sizes else None


def swept(result: BacktestResult, sweep: Sweep) -> dict[str, Any] | None:
    """Steps of a sweep, rows of (name, figures at each step), best of the first step first, and yearly costs, if known."""
    if not sweep:
        return None
    steps, strategy = list(sweep.values()), columns(result)["strategy"]
    names = sorted(
        {name for at in steps for name in at}, key=lambda name: (_last(steps[0].get(name, {}).get("rank")), name)
    )
    rows = [(name, name == strategy, [at.get(name, {}) for at in steps]) for name in names]
    costs = [_number(at.get(strategy, {}).get("costs")) for at in steps]
    return {"steps": list(sweep), "rows": rows, "costs": costs if np.isfinite(costs).any() else []}


def _attribution(result: BacktestResult) -> dict[str, Any]:
    parts = attribute(result)
    gains, others = ends_of(parts.contributions)
    return {
        "parts": parts,
        "short_benchmark": short_benchmark(result),
        "gains": gains,
        "others": others,
        "rest": float(parts.contributions.sum()) - sum(gain for _, gain, _ in gains),
    }


def ends_of(contributions: pd.Series) -> tuple[list[tuple[str, float, Mark | None]], int]:
    """The greatest gains and losses with their drawings, and how many assets lie between them.

    `contributions` [N] are in currency, the largest first.
    """
    others = max(len(contributions) - 2 * GAIN_ENDS, 0)
    ends = pd.concat([contributions.iloc[:GAIN_ENDS], contributions.iloc[-GAIN_ENDS:]]) if others else contributions
    scale = scale_of([float(gain) for gain in ends])
    rows = []
    for name, gain in ends.items():
        drawn = mark(min(float(gain), 0.0), max(float(gain), 0.0), scale)
        tone = "gain" if gain > 0 else "loss" if gain < 0 else ""
        rows.append((str(name), float(gain), drawn and drawn._replace(tone=tone)))
    return rows, others


def _returns(result: BacktestResult) -> dict[str, Any]:
    """Returns by year and month [Y, 12] and by year, NaN where there are none."""
    dates = session_dates(result.equity.index)
    periods, values = period_returns(result.equity.to_numpy(), dates, "month")
    months = pd.Series(values, [periods.astype("datetime64[Y]").astype(str), periods.astype(int) % 12]).unstack()
    curves = {"strategy": result.equity, "benchmark": result.benchmark_equity, "equal": result.equal_weight_equity}
    by_year = {name: period_returns(curve.to_numpy(), dates, "year") for name, curve in curves.items()}
    years = pd.DataFrame({name: pd.Series(returns, at.astype(str)) for name, (at, returns) in by_year.items()})
    over = years[["benchmark", "equal"]].rsub(years["strategy"], axis=0).add_prefix("over_")
    return {"month_names": MONTHS, "months": months.reindex(columns=range(12)), "years": years.join(over)}


def _trading(result: BacktestResult) -> dict[str, Any]:
    weights = result.weights.iloc[1:]
    columns = {
        "average": weights.mean(),
        "final": weights.iloc[-1],
        "largest": weights.max(),
        "held": (weights > 0).sum(),
    }
    holdings = pd.DataFrame(columns)
    top = holdings[holdings["average"] > 0].nlargest(TOP_HOLDINGS, "average")
    fills = result.trades[result.trades["kind"] == "fill"]
    return {
        "top": top,
        "rest": holdings.drop(top.index).sum(),
        "cash": result.cash_weight.iloc[1:],
        "figures_of": result.table["strategy"],
        "fills": fills,
        "traded": float(fills["notional"].abs().sum()),
        "cost_share": result.fees / result.equity.iloc[0],
    }


def _spread(result: BacktestResult) -> dict[str, Any] | None:
    tables = members(result)
    return {"members": tables, "spread_note": sentence(spread_note(result))} if tables else None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(np.float64(value))


def _last(value: float | None) -> float:
    """A value to sort by: undefined ones come last."""
    known = _number(value)
    return math.inf if math.isnan(known) else known


LAYOUT = Layout(
    "backtest",
    CHARTS,
    head=(Section("badges", "Badges"), Section("setup", "Window and data")),
    lead=(
        Section("summary", "Summary"),
        Section("verdict", "Verdict", lambda result: {"verdicts": verdict_lines(result)}),
        Section("warnings", "Warnings", _warnings),
        Section("audit", "Look-ahead audit"),
        Section("tiles", "Key figures", _tiles),
    ),
    sections=(
        Section("performance", "Performance", _performance, "second"),
        Section("figures", "Headline figures", lambda result: {"headline": headline(result)}, "first"),
        Section("significance", "Statistical significance", lambda result: significance(result, evidence(result))),
        Section("baselines", "Baseline strategies", _baselines),
        Section("costs", "Costs and capacity", _costs),
        Section("attribution", "Attribution", _attribution),
        Section("returns", "Returns", _returns),
        Section("risk", "Risk", lambda result: {"drawdowns": drawdown_table(result.equity, result.equity.index)}),
        Section("trading", "Holdings and trading", _trading),
        Section("spread", "Spread over seeds and agents", _spread),
        Section("events", "Events"),
        Section("provenance", "Provenance", lambda result: {"origin": provenance(result)}),
        Section("definitions", "How the figures are defined"),
    ),
)
"""The parts of the page, in their order."""
