"""A result as plain text: table of figures, evidence, warnings and events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from finpod.backtesting.sentences import (
    anchor_name,
    audit_outcome,
    event_sentence,
    lead,
    verdict_lines,
    warning_sentence,
)
from finpod.evidence.skill import evidence
from finpod.figures import COMMON, Row, figure, percent, plain, plural, ratio, text_table
from finpod.periods import yearly_note
from finpod.result import BacktestResult
from finpod.trading.ledger import Costs

TURNOVER = "turnover: traded notional / equity at the fill, both sides"
"""Definition of turnover, printed below the table."""

SPREAD = [row for row in COMMON if row.key in ("total_return", "sharpe", "max_drawdown", "excess_over_equal_weight")]
"""Figures that `spread_line` prints."""
_SHOWN_EVENTS = 5

ROWS = (
    *COMMON,
    Row("beta", "Beta", "ratio"),
    Row("alpha", "Alpha", "percent", yearly=True),
    Row("information_ratio", "Information ratio", "ratio", yearly=True),
    Row("tracking_error", "Tracking error", "percent", yearly=True),
    Row("turnover", "Turnover", "times"),
    Row("yearly_turnover", "Turnover per year", "times", yearly=True),
    Row("costs", "Costs paid", "money"),
    Row("cash", "Average cash", "percent"),
    Row("buys", "Buys", "count"),
    Row("sells", "Sells", "count"),
    Row("days", "Returns", "count"),
)


def columns(result: BacktestResult) -> dict[str, str]:
    """Return the columns of the table: key in `BacktestResult.table` -> heading."""
    benchmark = result.benchmark if result.has_benchmark else "no benchmark"
    return {"strategy": result.strategy, "benchmark": benchmark, "equal_weight": "equal weight"}


def headline(result: BacktestResult) -> list[tuple[str, list[str]]]:
    """Return (label, cells) of each row of the table. A cell is empty if the figure does not apply to its column."""
    return cells(ROWS, [result.table[column] for column in columns(result)], result.is_short)


def cells(rows: Sequence[Row], figures: Sequence[Mapping[str, float]], is_short: bool) -> list[tuple[str, list[str]]]:
    """Return (label, cells) for each row. Each of `figures` is a column. If `is_short`, a star marks yearly figures."""
    star = " *" * is_short
    return [
        (row.label + star * row.yearly, [figure(own[row.key], row.kind) if row.key in own else "" for own in figures])
        for row in rows
    ]


def short_note(returns: int) -> str:
    """Return the footnote for the star that marks yearly figures of a short history."""
    return f"* unreliable: scaled to a year from only {plural(returns, 'return')}"


def describe_terms(costs: Costs, fill: str, whole_shares: bool, delisting_return: float) -> str:
    """Return one line of text on the trading costs, the price of the fills, whole shares, and delistings."""
    parts = [f"{costs.fee_bps:g} bps fee per side"]
    parts += [f"{costs.slippage_bps:g} bps slippage per side"] if costs.slippage_bps else []
    parts += [f"{costs.per_share:g} a share"] if costs.per_share else []
    parts += [f"impact {costs.impact:g} x daily volatility x sqrt(fraction of daily volume)"] if costs.impact else []
    text = f"{', '.join(parts)}; filled at the {fill}; {'whole' if whole_shares else 'fractional'} shares"
    return f"{text}; a return of {delisting_return:+.0%} on delisting" if delisting_return else text


def who_varies(result: BacktestResult) -> str:
    """Return a description of the variants (strategies of the same training), such as 'each of 3 seeds'."""
    kind = {"seed": "seeds", "member": "members of one seed"}.get(result.variant_kind, "variants")
    return f"each of {len(result.variants)} {kind}"


def spread_note(result: BacktestResult) -> str:
    """Return a note that the spread over the agents of one seed understates luck; empty for other variants."""
    note = "members of one seed are similar, so their spread understates luck; train with more seeds to measure luck"
    return note if result.variants and result.variant_kind == "member" else ""


def spread_line(result: BacktestResult) -> str:
    """Return a line with the mean and standard deviation of figures over the variants; empty without variants."""
    if not result.spread:
        return ""
    mean, sd = result.spread["mean"], result.spread["sd"]
    figures = [f"{row.label} {figure(mean[row.key], row.kind)} ({figure(sd[row.key], row.kind)})" for row in SPREAD]
    note = f" ({note})" if (note := spread_note(result)) else ""
    return f"{who_varies(result)} on its own, mean (standard deviation): {'; '.join(figures)}{note}"


def agents_line(result: BacktestResult) -> str:
    """Return a line on the best agent on validation; empty if the strategy is not an ensemble."""
    if not result.agent_spread:
        return ""
    best = next(iter(result.agent_spread.values()))
    total = percent(best["total_return"])
    return f"the best agent on validation, on its own: Sharpe {ratio(best['sharpe'])}, total return {total}"


def evidence_lines(result: BacktestResult) -> list[str]:
    """Return a line for each kind of evidence: significance, overfitting, baselines, random portfolios, audit."""
    significance = evidence(result)
    lines = []
    if not math.isnan(chance := significance["deflated_active_sharpe"]):
        event = lead(significance["candidates"], f"the excess over {anchor_name(result)}")
        lines.append(f"Chance that {event}: {percent(chance, 0)}")
    if not math.isnan(share := significance["overfitting"]):
        lines.append(
            f"Chance that the choice among {significance['trials']:,} trials on validation is overfitted: "
            f"{percent(share, 0)}"
        )
    if result.baselines:
        ratios = {name: result.metrics_of(curve).sharpe for name, curve in result.baselines.items()}
        lines.append("Sharpe of baselines: " + ", ".join(f"{name} {ratio(value)}" for name, value in ratios.items()))
    if not math.isnan(beaten := significance["fan_beaten"]):
        which = f"{percent(beaten, 0)} of {significance['fan_size']} random portfolios with the same turnover"
        lines.append(f"The Sharpe ratio is higher than that of {which}")
    return lines + ([f"Look-ahead audit: {audit_outcome(result.audit)}"] if result.audit else [])


def format_result(result: BacktestResult) -> str:
    """Return a result as plain text: table, evidence, warnings and events. There is no newline at the end."""
    start, end = (f"{result.equity.index[i]:%Y-%m-%d}" for i in (0, -1))
    lines = [f"{plain(result.strategy)}, {start} .. {end}"]
    lines += [describe_terms(result.costs, result.fill, result.whole_shares, result.delisting_return), ""]
    lines += text_table(list(columns(result).values()), headline(result))
    if result.is_short:
        lines.append(short_note(result.metrics.days))
    lines += [TURNOVER, yearly_note(result.periods_per_year, result.sessions_per_year)]
    facts = [*verdict_lines(result), *evidence_lines(result), spread_line(result), agents_line(result)]
    if any(facts):
        lines += ["", *(plain(fact) for fact in facts if fact)]
    if result.warnings:
        lines += ["", *(f"warning: {plain(warning_sentence(warning))}" for warning in result.warnings)]
    if result.events:
        lines += ["", *(f"event: {plain(event_sentence(event))}" for event in result.events[:_SHOWN_EVENTS])]
        hidden = len(result.events) - _SHOWN_EVENTS
        lines += [f"event: {hidden} more are in the report"] if hidden > 0 else []
    return "\n".join(lines)
