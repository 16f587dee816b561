"""The values of the sections of a backtest's report. The text of the sections is in the templates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from finpod.backtesting.sentences import anchor_name, hurdle, lead, verdict_lines, warning_sentence
from finpod.backtesting.text import columns, headline, spread_note
from finpod.evidence.attribution import attribute, contributions
from finpod.evidence.skill import ANCHOR, BENCHMARK, EQUAL_WEIGHT, MEASURED, ONE_SIDED, evidence
from finpod.measures import drawdown_table, period_returns, relative
from finpod.periods import session_dates
from finpod.report.charts import CHARTS
from finpod.report.pages import Layout, Section, render_page, sentence
from finpod.report.provenance import members, provenance
from finpod.result import BacktestResult, Sweep

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
TOP_HOLDINGS, GAIN_ENDS = 10, 5
"""Number of assets in the table of holdings, and at each end of the table of contributions."""
PROBABILITIES = ("probabilistic_sharpe", "deflated_active_sharpe", "minimum_years", "minimum_active_years",
                 "overfitting", "fan_beaten")  # fmt: skip
"""Keys of `evidence` that the card of probabilities shows. If all their values are undefined, the card is left out."""


def render(result: BacktestResult) -> str:
    """Return the report as HTML. Issues a ReportWarning for each part that failed."""
    names = columns(result)
    legend = {key.replace("_", "-"): name for key, name in names.items()} | {"random": "random portfolios"}
    start, end = (f"{result.equity.index[row]:%Y-%m-%d}" for row in (0, -1))
    shared = {"result": result, "names": list(names.values()), "legend": legend, "start": start, "end": end}
    shared["bars"] = "Bars" if result.is_intraday else "Sessions"
    return render_page(LAYOUT, result, f"report of {result.strategy}", drawn=result.by_session(), **shared)


def _warnings(result: BacktestResult) -> dict[str, Any]:
    return {"notes_of_result": [(sentence(warning_sentence(each)), each.grave) for each in result.warnings]}


def _significance(result: BacktestResult) -> dict[str, Any] | None:
    """Return a dict with intervals of Sharpe ratio, CAGR and drawdown, and probabilities; None if all are undefined."""
    odds = evidence(result)
    over = {ANCHOR: anchor_name(result), EQUAL_WEIGHT: "equal weight", BENCHMARK: short_benchmark(result)}
    spans = {}
    for measure in ("sharpe", "cagr", "max_drawdown"):
        intervals = {over.get(name, ""): at[measure] for name, at in odds["intervals"].items() if measure in at}
        frame = pd.DataFrame(intervals, ["low", "estimate", "high"], dtype=float).T
        spans[measure] = list(zip(frame.index, frame.itertuples(), places(frame).itertuples(), strict=True))
    has_answers = any(odds[key] is not None and not math.isnan(odds[key]) for key in PROBABILITIES)
    if not any(spans.values()) and not has_answers:
        return None
    return {
        "spans": spans,
        "has_answers": has_answers,
        "odds": odds,
        "is_measured": odds["trial_sd_source"] == MEASURED,
        "anchor": anchor_name(result),
        "hurdle": hurdle(result.candidates),
        "lead": lead(result.candidates),
        "pass_level": ONE_SIDED,
    }


def places(spans: pd.DataFrame) -> pd.DataFrame:
    """Return the positions, in percent, of values [N, K] and of zero on a line that covers all of these values."""
    known = spans.where(np.isfinite(spans)).assign(zero=0.0)
    low, high = known.min().min(), known.max().max()
    room = 0.06 * ((high - low) or 1.0)  # margin at both ends
    return (100 * (known - low + room) / (high - low + 2 * room)).round(1)


def short_benchmark(result: BacktestResult) -> str:
    """Return the name of the benchmark, or "benchmark" if the name is too long for a label."""
    return result.benchmark if len(result.benchmark) <= 12 else "benchmark"


def _baselines(result: BacktestResult) -> dict[str, Any] | None:
    many = result.fan.shape[1]
    return {"ranked": ranked(result), "randoms": many} if result.baselines or many else None


def ranked(result: BacktestResult) -> list[dict[str, Any]]:
    """Return strategy, benchmark, equal weight and baselines, sorted by falling Sharpe ratio; [] without baselines."""
    if not result.baselines:
        return []
    strategy, bench, equal = columns(result).values()
    curves = [(strategy, result.equity), (bench, result.benchmark_equity)]
    if not np.allclose(result.equity, result.equal_weight_equity, rtol=1e-12):
        curves.append((equal, result.equal_weight_equity))
    names, rows = {name for name, _ in curves}, []
    for name, curve in [*curves, *((name, curve) for name, curve in result.baselines.items() if name not in names)]:
        whole = curve.reindex(result.equity.index)
        excess = relative(whole.to_numpy(), result.benchmark_equity.to_numpy(), periods_per_year=1.0).excess
        own = curve is result.equity
        rows.append({"name": name, "is_own": own, "metrics": result.metrics_of(whole), "excess": excess})
    return sorted(rows, key=lambda row: _last(-row["metrics"].sharpe))


def _costs(result: BacktestResult) -> dict[str, Any] | None:
    fees, sizes = ((sweep, order(sweep)) for sweep in (result.cost_sweep, result.capacity))
    return {"fees": fees, "sizes": sizes, "impact": result.costs.impact or 1} if fees[0] or sizes[0] else None


def order(sweep: Sweep) -> list[str]:
    """Return the strategies of a sweep over fees or account sizes, sorted by rank at the first fee or size."""
    names = sorted({name for at in sweep.values() for name in at})
    first = next(iter(sweep.values()), {})
    return sorted(names, key=lambda name: _last(first.get(name, {}).get("rank")))


def _attribution(result: BacktestResult) -> dict[str, Any]:
    """Return a dict: attribution, assets with the largest gains and losses, number and total gain of other assets."""
    gains = contributions(result)
    ends = gains if len(gains) <= 2 * GAIN_ENDS else pd.concat([gains.iloc[:GAIN_ENDS], gains.iloc[-GAIN_ENDS:]])
    bars = places(pd.DataFrame({"low": ends.clip(upper=0), "high": ends.clip(lower=0)}))
    return {
        "parts": attribute(result),
        "whole": gains.sum(),
        "short_benchmark": short_benchmark(result),
        "gains": list(zip(ends.index, ends, bars.itertuples(), strict=True)),
        "others": len(gains) - len(ends),
        "rest": gains.sum() - ends.sum(),
    }


def calendar_returns(result: BacktestResult) -> dict[str, Any]:
    """Return the returns by month [Y, 12] and by year; NaN where there are none."""
    dates = session_dates(result.equity.index)
    periods, values = period_returns(result.equity, dates, "month")
    months = pd.Series(values, [periods.astype("datetime64[Y]").astype(str), periods.astype(int) % 12]).unstack()
    curves = {"strategy": result.equity, "benchmark": result.benchmark_equity, "equal": result.equal_weight_equity}

    def by_year(curve: pd.Series) -> pd.Series:
        at, returns = period_returns(curve, dates, "year")
        return pd.Series(returns, at.astype(str))

    years = pd.DataFrame({name: by_year(curve) for name, curve in curves.items()})
    for name in ("benchmark", "equal"):  # difference on the dates on which both curves have a value
        years[f"over_{name}"] = by_year(result.equity.where(curves[name].notna())) - years[name]
    return {"month_names": MONTHS, "months": months.reindex(columns=range(12)), "years": years}


def _trading(result: BacktestResult) -> dict[str, Any]:
    weights = result.weights.iloc[1:]
    averages = {"average": weights.mean(), "final": weights.iloc[-1], "largest": weights.max()}
    holdings = pd.DataFrame(averages | {"held": (weights > 0).sum()})
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


def _last(value: float | None) -> float:
    """Return a sort key that puts undefined values last."""
    return math.inf if value is None or math.isnan(value) else float(value)


LAYOUT = Layout(
    "backtest",
    CHARTS,
    head=(Section("badges", "Badges"), Section("setup", "Window and data")),
    lead=(
        Section("summary", "Summary"),
        Section("verdict", "Verdict", lambda result: {"verdicts": verdict_lines(result)}),
        Section("warnings", "Warnings", _warnings),
        Section("audit", "Look-ahead audit"),
        Section("tiles", "Key figures"),
    ),
    sections=(
        Section("performance", "Performance", style="second"),
        Section("figures", "Headline figures", lambda result: {"headline": headline(result)}, "first"),
        Section("significance", "Statistical significance", _significance),
        Section("baselines", "Baseline strategies", _baselines),
        Section("costs", "Costs and capacity", _costs),
        Section("attribution", "Attribution", _attribution),
        Section("returns", "Returns", calendar_returns),
        Section("risk", "Risk", lambda result: {"drawdowns": drawdown_table(result.equity, result.equity.index)}),
        Section("trading", "Holdings and trading", _trading),
        Section("spread", "Spread over seeds and agents", _spread),
        Section("events", "Events"),
        Section("provenance", "Provenance", lambda result: {"origin": provenance(result)}),
        Section("definitions", "How the figures are defined"),
    ),
)
"""The parts of the page, in order."""
