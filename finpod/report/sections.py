"""The sections of the report of a backtest: which there are, and the values that each prints. Wording is in the templates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finpod.backtesting.sentences import anchor_name, hurdle, lead, luck_sentence, verdict_lines, warning_sentence
from finpod.backtesting.text import TURNOVER, columns, describe_terms, headline, short_note, spread_note
from finpod.evidence.assemble import benchmark_cover
from finpod.evidence.attribution import attribute, flags
from finpod.evidence.skill import ANCHOR, BENCHMARK, EQUAL_WEIGHT, MEASURED, ONE_SIDED, evidence
from finpod.measures import drawdown_table, period_returns, relative
from finpod.periods import session_dates, yearly_note
from finpod.records import GRAVE, ResultWarning
from finpod.report.charts import CHARTS
from finpod.report.pages import Layout, Section, sentence
from finpod.report.provenance import made_with, members, provenance, run_of
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


def _badges(result: BacktestResult) -> dict[str, Any]:
    return {"simulated": result.manifest.get("source") == "simulated"}


def _setup(result: BacktestResult) -> dict[str, Any]:
    title = result.manifest.get("title", result.manifest.get("source", "unnamed market"))
    return {"data_title": title, "terms": describe_terms(result.costs, result.fill, result.whole_shares)}


def _summary(result: BacktestResult) -> dict[str, Any]:
    cash, value = float(result.equity.iloc[0]), float(result.equity.iloc[-1])
    return {"cash": cash, "value": value, "covered": benchmark_cover(result) is not None}


def _verdict(result: BacktestResult) -> dict[str, Any] | None:
    return {"verdicts": lines} if (lines := verdict_lines(result)) else None


def warnings_of(result: BacktestResult) -> list[ResultWarning]:
    """The warnings of a result with those of degenerate policies, an in-sample window and ruin, which are never left out."""
    warnings = [*result.warnings, *(alarm for alarm in flags(result) if alarm not in result.warnings)]
    if result.in_sample and not GRAVE & {warning.code for warning in warnings}:
        warnings.insert(0, ResultWarning("in_sample", {"trained_until": result.trained_until}))
    if result.ruined_on:
        warnings.insert(0, ResultWarning("ruined", {"day": result.ruined_on}))
    return warnings


def _warnings(result: BacktestResult) -> dict[str, Any] | None:
    notes = [(sentence(warning_sentence(warning)), warning.grave) for warning in warnings_of(result)]
    return {"notes_of_result": notes} if notes else None


def _tiles(result: BacktestResult) -> dict[str, Any]:
    parts = {
        "look-ahead audit": result.audit is not None and result.audit.passed is not None,
        "baseline strategies": len(result.baselines),
        "random portfolios": len(result.fan),
        "other fees": len(result.cost_sweep),
        "other sizes": len(result.capacity),
    }
    return {"missing": [name for name, there in parts.items() if not there], **_summary(result), **_notes(result)}


def _notes(result: BacktestResult) -> dict[str, Any]:
    """How figures were scaled to a year."""
    yearly = yearly_note(result.periods_per_year, result.sessions_per_year)
    return {"yearly_note": yearly, "short_note": short_note(result.metrics.days) if result.is_short else ""}


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
    rows, kinds = timeline(result), dict[str, list[dict[str, Any]]]()
    for bar in (bar for row in rows for bar in row):
        kinds.setdefault(bar["name"].split()[0], []).append(bar)
    ends = {kind: (min(bar["first"] for bar in bars), max(bar["last"] for bar in bars)) for kind, bars in kinds.items()}
    return {"timeline": rows, "kinds": [(kind, len(bars), *ends[kind]) for kind, bars in kinds.items()]}


def _figures(result: BacktestResult) -> dict[str, Any]:
    return {"headline": headline(result), "turnover_note": TURNOVER, **_notes(result)}


def significance(result: BacktestResult, odds: Mapping[str, Any]) -> dict[str, Any] | None:
    """Intervals by measure, and what the answers of `evidence` are worded with; None for a short history."""
    spans = {measure: _spans(result, odds, measure) for measure in ("sharpe", "cagr", "max_drawdown")}
    has_answers = any(not math.isnan(_number(odds[key])) for key in PROBABILITIES)
    if not any(spans.values()) and not has_answers:
        return None
    return {
        "sentence": luck_sentence(result),
        "level": odds["level"],
        "spans": spans,
        "has_spans": any(spans.values()),
        "has_answers": has_answers,
        "odds": odds,
        "is_measured": odds["trial_sd_source"] == MEASURED,
        "anchor": anchor_name(result),
        "hurdle": hurdle(result.candidates),
        "lead": lead(result.candidates),
        "pass_level": ONE_SIDED,
        "record": len(result.returns) / result.periods_per_year,
    }


def _spans(result: BacktestResult, odds: Mapping[str, Any], measure: str) -> list[dict[str, Any]]:
    """Rows of the table of intervals: what the strategy is compared with, low, estimate, high, and the drawing."""
    over = {ANCHOR: anchor_name(result), EQUAL_WEIGHT: "equal weight", BENCHMARK: short_benchmark(result)}
    intervals = {name: at[measure] for name, at in odds["intervals"].items() if measure in at}
    ends = {name: [_number(at.get(end)) for end in ("low", "estimate", "high")] for name, at in intervals.items()}
    scale = scale_of([value for three in ends.values() for value in three])
    return [
        {"over": over.get(name, ""), "low": low, "estimate": at, "high": high, "mark": mark(low, high, scale, at)}
        for name, (low, at, high) in ends.items()
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
    rows = [(name, name == strategy, [_ranked_figure(at.get(name, {})) for at in steps]) for name in names]
    costs = [_number(at.get(strategy, {}).get("costs")) for at in steps]
    return {"steps": list(sweep), "rows": rows, "costs": costs if np.isfinite(costs).any() else []}


def _ranked_figure(figures: Mapping[str, float]) -> tuple[float | None, float | None]:
    rank = _number(figures.get("rank"))
    return figures.get("sharpe"), rank if math.isfinite(rank) else None


def _attribution(result: BacktestResult) -> dict[str, Any]:
    parts, cash = attribute(result), float(result.equity.iloc[0])
    gains, others = ends_of(parts.contributions)
    rest = float(parts.contributions.sum()) - sum(gain for _, gain, _ in gains)
    strategy, bench, equal = columns(result).values()
    return {
        "parts": parts,
        "short_benchmark": short_benchmark(result),
        "gains": [(name, gain, gain / cash, drawn) for name, gain, drawn in gains],
        "others": (others, rest, rest / cash),
        "whole": (float(parts.contributions.sum()), float(parts.contributions.sum()) / cash),
        "month_names": [bench, strategy, equal],
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
    """The heat map as rows of year, twelve months (value and depth of the colour, or None) and total; and the table of years."""
    dates = session_dates(result.equity.index)
    periods, values = period_returns(result.equity.to_numpy(), dates, "month")
    deepest = max(float(np.abs(values).max()), 1e-9)
    depths = [round(0.08 + 0.62 * abs(value) / deepest, 2) for value in values]
    cells = dict(zip(map(str, periods), zip(values, depths, strict=True), strict=True))
    curves = (result.equity, result.benchmark_equity, result.equal_weight_equity)
    totals = [dict(zip(*period_returns(curve.to_numpy(), dates, "year"), strict=True)) for curve in curves]
    months, years = [], []
    for year, strategy in totals[0].items():
        bench, equal = (column.get(year, np.nan) for column in totals[1:])
        months.append((str(year), [cells.get(f"{year}-{month:02}") for month in range(1, 13)], strategy))
        years.append((str(year), [strategy, bench, equal, strategy - bench, strategy - equal]))
    return {"month_names": MONTHS, "months": months, "years": years}


def _trading(result: BacktestResult) -> dict[str, Any]:
    weights, cash = result.weights.iloc[1:], result.cash_weight.iloc[1:]
    average, final = weights.mean(), weights.iloc[-1]
    top = average[average > 0].nlargest(TOP_HOLDINGS).index
    fills = result.trades[result.trades["kind"] == "fill"]
    traded = float(fills["notional"].abs().sum())
    return {
        "top": [
            (str(name), average[name], final[name], weights[name].max(), (weights[name] > 0).sum()) for name in top
        ],
        "rest": (average.drop(top).sum(), final.drop(top).sum()),
        "cash": (cash.mean(), cash.iloc[-1]),
        "figures_of": result.table["strategy"],
        "delisted": len(result.trades) - len(fills),
        "sessions": fills["date"].nunique(),
        "assets": fills["ticker"].nunique(),
        "traded": traded,
        "average_fill": traded / len(fills) if len(fills) else math.nan,
        "cost_share": result.fees / result.equity.iloc[0],
    }


def _spread(result: BacktestResult) -> dict[str, Any] | None:
    tables = members(result)
    return {"members": tables, "spread_note": sentence(spread_note(result))} if tables else None


def _provenance(result: BacktestResult) -> dict[str, Any]:
    return {"run": run_of(result), "origin": provenance(result), "made_with": made_with()}


def _number(value: float | None) -> float:
    return math.nan if value is None else float(np.float64(value))


def _last(value: float | None) -> float:
    """A value to sort by: undefined ones come last."""
    known = _number(value)
    return math.inf if math.isnan(known) else known


LAYOUT = Layout(
    "backtest",
    CHARTS,
    head=(Section("badges", "Badges", _badges), Section("setup", "Window and data", _setup)),
    lead=(
        Section("summary", "Summary", _summary),
        Section("verdict", "Verdict", _verdict),
        Section("warnings", "Warnings", _warnings),
        Section("audit", "Look-ahead audit"),
        Section("tiles", "Key figures", _tiles),
    ),
    sections=(
        Section("performance", "Performance", _performance, "second"),
        Section("figures", "Headline figures", _figures, "first"),
        Section("significance", "Statistical significance", lambda result: significance(result, evidence(result))),
        Section("baselines", "Baseline strategies", _baselines),
        Section("costs", "Costs and capacity", _costs),
        Section("attribution", "Attribution", _attribution),
        Section("returns", "Returns", _returns),
        Section("risk", "Risk", lambda result: {"drawdowns": drawdown_table(result.equity, result.equity.index)}),
        Section("trading", "Holdings and trading", _trading),
        Section("spread", "Spread over seeds and agents", _spread),
        Section("events", "Events"),
        Section("provenance", "Provenance", _provenance),
        Section("definitions", "How the figures are defined"),
    ),
)
"""The parts of the page, in their order."""
