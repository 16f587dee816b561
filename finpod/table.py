"""The headline table as plain text, and how figures are written in text and HTML alike."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from finpod.evidence.verdict import audit_passed, hurdle, verdicts
from finpod.lookahead.words import heading

if TYPE_CHECKING:
    from finpod.market.ledger import Costs
    from finpod.result import BacktestResult

Kind = Literal["percent", "ratio", "times", "money", "count"]

TURNOVER = "turnover: traded notional / equity at the fill, both sides"
"""What turnover means, printed beside it."""

_SHOWN_EVENTS = 5
_NAME_WIDTH = 20
"""Letters in a line of a column's heading."""


class Row(NamedTuple):
    """One line of the headline table."""

    key: str
    """Name of the figure in `BacktestResult.table`."""
    label: str
    """What a reader sees."""
    kind: Kind
    """How the figure is written."""
    yearly: bool = False
    """Whether the figure is scaled up to a year, and so means little for a short history."""


COMMON = (
    Row("total_return", "Total return", "percent"),
    Row("cagr", "CAGR", "percent", yearly=True),
    Row("volatility", "Volatility", "percent", yearly=True),
    Row("sharpe", "Sharpe", "ratio", yearly=True),
    Row("sortino", "Sortino", "ratio", yearly=True),
    Row("max_drawdown", "Max drawdown", "percent"),
    Row("calmar", "Calmar", "ratio", yearly=True),
    Row("excess", "Excess over benchmark", "percent"),
    Row("excess_over_equal_weight", "Excess over equal weight", "percent"),
)
"""What a result and a comparison begin with."""
ROWS = (
    *COMMON,
    Row("beta", "Beta", "ratio"),
    Row("alpha", "Alpha", "percent", yearly=True),
    Row("information_ratio", "Information ratio", "ratio", yearly=True),
    Row("tracking_error", "Tracking error", "percent", yearly=True),
    Row("turnover", "Turnover", "times"),
    Row("yearly_turnover", "Turnover a year", "times", yearly=True),
    Row("costs", "Costs paid", "money"),
    Row("cash", "Time in cash", "percent"),
    Row("buys", "Buys", "count"),
    Row("sells", "Sells", "count"),
    Row("days", "Returns", "count"),
)


def percent(value: float | None, digits: int = 2) -> str:
    """A fraction as a percentage: 0.123 is 12.30%; undefined is n/a, and what rounds to zero has no sign."""
    return _number(value, digits, 100, "%")


def ratio(value: float | None, digits: int = 2) -> str:
    """A plain number: 1.234 is 1.23."""
    return _number(value, digits, 1, "")


def times(value: float | None) -> str:
    """A multiple: 2.998 is 3.00x."""
    return _number(value, 2, 1, "x")


def money(value: float | None) -> str:
    """An amount in the currency of the cash, to the unit; to the hundredth below 100."""
    small = value is not None and abs(value) < 99.995
    return _number(value, 2 if small and value else 0, 1, "")


def count(value: float | None) -> str:
    """A whole number."""
    return _number(value, 0, 1, "")


def figure(value: float | None, kind: Kind) -> str:
    """A figure of the headline table, written as its row asks."""
    return {"percent": percent, "ratio": ratio, "times": times, "money": money, "count": count}[kind](value)


def columns(result: BacktestResult) -> dict[str, str]:
    """Columns of the headline table: key in `BacktestResult.table` -> name a reader sees."""
    benchmark = result.benchmark if result.has_benchmark else "no benchmark"
    return {"strategy": result.strategy, "benchmark": benchmark, "equal_weight": "equal weight"}


def headline(result: BacktestResult) -> list[tuple[str, list[str]]]:
    """Label and cells of every row; an empty cell where a column has no such figure. Short histories are starred."""
    table, star = result.table, " *" if result.is_short else ""
    return [
        (
            row.label + star * row.yearly,
            [
                figure(table[column][row.key], row.kind) if row.key in table[column] else ""
                for column in columns(result)
            ],
        )
        for row in ROWS
    ]


def short_note(result: BacktestResult) -> str:
    """What the star of a short history stands for."""
    returns = "1 return" if result.metrics.days == 1 else f"{result.metrics.days} returns"
    return f"* scaled up to a year from only {returns}: not to be relied on"


def ruin_date(result: BacktestResult) -> str | None:
    """The day on which the account fell to zero, if it did."""
    gone = result.equity.to_numpy() <= 0
    return f"{result.equity.index[int(gone.argmax())]:%Y-%m-%d}" if gone.any() else None


def describe_terms(costs: Costs, fill: str, whole_shares: bool) -> str:
    """One line on what trading cost and how orders were filled."""
    parts = [f"{costs.fee_bps:g} bps fee a side"]
    parts += [f"{costs.slippage_bps:g} bps slippage a side"] if costs.slippage_bps else []
    parts += [f"{costs.per_share:g} a share"] if costs.per_share else []
    parts += [f"impact {costs.impact:g} x daily volatility x sqrt(share of daily volume)"] if costs.impact else []
    return f"{', '.join(parts)}; filled at the {fill}; {'whole' if whole_shares else 'fractional'} shares"


def benchmark_cover(result: BacktestResult) -> str:
    """Which part of the window the benchmark covers and what follows; empty if all of it, or too little for a figure."""
    bars = result.benchmark_equity.dropna()
    if not 1 < len(bars) < len(result.benchmark_equity):
        return ""
    first, last = (f"{bars.index[i]:%Y-%m-%d}" for i in (0, -1))
    whole = result.benchmark_equity.index[[0, -1]].equals(bars.index[[0, -1]])
    return (
        f"the benchmark {result.benchmark} has {len(bars):,} of the window's {len(result.benchmark_equity):,} bars, from "
        f"{first} to {last}; excess, beta and the other relative figures are on the days the benchmark has"
        + ("" if whole else ", so the excess is not the difference of the two total returns")
    )


def who_varies(result: BacktestResult) -> str:
    """What the variants are: 'each of 3 seeds', of members of one seed, or of variants; empty without variants."""
    names = list(result.variants)
    if not names:
        return ""
    kinds = {"seed ": "seeds", "member ": "members of one seed"}
    kind = next((kind for start, kind in kinds.items() if all(name.startswith(start) for name in names)), "variants")
    return f"each of {len(names)} {kind}"


def spread_note(result: BacktestResult) -> str:
    """Why the members of one tournament say too little about luck; empty for other variants."""
    if not who_varies(result).endswith("of one seed"):
        return ""
    return "members of one tournament are alike: their deviation understates luck, which only more seeds show"


def spread_line(result: BacktestResult) -> str:
    """Mean and standard deviation over the variants in one line; empty without variants."""
    if not result.spread:
        return ""
    mean, sd = result.spread["mean"], result.spread["sd"]
    figures = [
        f"{label} {show(mean[key])} ({show(sd[key])})"
        for label, key, show in (
            ("total return", "total_return", percent),
            ("Sharpe", "sharpe", ratio),
            ("max drawdown", "max_drawdown", percent),
            ("excess over equal weight", "excess_over_equal_weight", percent),
        )
    ]
    note = f" ({note})" if (note := spread_note(result)) else ""
    return f"{who_varies(result)} on its own, mean (standard deviation): {'; '.join(figures)}{note}"


def agents_line(result: BacktestResult) -> str:
    """The agent that was the best on validation, and the mean over all kept where `spread_line` tells of seeds instead."""
    spread = result.agent_spread
    if not spread:
        return ""
    best, mean, sd = next(iter(spread.values())), spread["mean"], spread["sd"]
    said = (
        "the agent that was the best on validation, on its own: "
        f"Sharpe {ratio(best['sharpe'])}, total return {percent(best['total_return'])}"
    )
    if len(result.variants) == len(result.agents):
        return said
    return (
        f"{said}; all {len(result.agents)}, mean (standard deviation): Sharpe {ratio(mean['sharpe'])} "
        f"({ratio(sd['sharpe'])}), total return {percent(mean['total_return'])} ({percent(sd['total_return'])})"
    )


def evidence_lines(result: BacktestResult) -> list[str]:
    """Whether it is more than luck and more than anyone could have had, a line for each answer that is there."""
    found = result.significance
    lines = []
    if not math.isnan(found["deflated_active_sharpe"]):
        share = found["overfitting"]
        overfit = "" if math.isnan(share) else f"; probability that choosing on validation overfits {percent(share, 0)}"
        lines.append(
            f"Chance that the true Sharpe of the excess over equal weight is above {hurdle(found['trials'])}: "
            f"{percent(found['deflated_active_sharpe'], 0)}{overfit}"
        )
    if result.baselines:
        ratios = {name: result.metrics_of(curve).sharpe for name, curve in result.baselines.items()}
        lines.append("Sharpe of simple rules: " + ", ".join(f"{name} {ratio(value)}" for name, value in ratios.items()))
    if not math.isnan(found["fan_beaten"]):
        beaten, size = percent(found["fan_beaten"], 0), found["fan_size"]
        lines.append(f"Sharpe above that of {beaten} of {size} random portfolios with the same turnover")
    return [*lines, *filter(None, [audit_line(result.audit)])]


def audit_line(audit: Mapping[str, Any]) -> str:
    """What the look-ahead audit found, or why there was none; empty without a word on it."""
    if not audit:
        return ""
    passed, days = audit_passed(audit), audit.get("days", ())
    if passed is None:
        return f"Look-ahead audit: NOT AUDITED: {audit.get('reason', 'no day was looked at')}"
    verdict = "nothing found" if passed else heading(audit.get("findings", ()))
    named = " and ".join(days) if len(days) < 3 else f"{len(days)} days"
    if decisions := audit.get("decisions"):
        named = f"{len(days)} of {decisions:,} decisions" + (f" ({named})" if len(days) < 3 else "")
    return f"Look-ahead audit of {named}: {verdict}"


def format_result(result: BacktestResult) -> str:
    """The headline table with its warnings and events, as plain text without a newline at the end."""
    names = [textwrap.wrap(_plain(name), _NAME_WIDTH) or [""] for name in columns(result).values()]
    rows = headline(result)
    label_width = max(len(label) for label, _ in rows)
    widths = [max(map(len, [*name, *(cells[i] for _, cells in rows)])) for i, name in enumerate(names)]
    upside_down = zip_longest(*(reversed(name) for name in names), fillvalue="")  # headings end beside the figures
    head = [("", list(line)) for line in upside_down][::-1]
    start, end = (f"{result.equity.index[i]:%Y-%m-%d}" for i in (0, -1))
    title = f"{_plain(result.strategy)}, {start} .. {end}"
    lines = [title, describe_terms(result.costs, result.fill, result.whole_shares), ""]
    for label, cells in [*head, *rows]:
        lines.append("  ".join([label.ljust(label_width), *map(str.rjust, cells, widths)]).rstrip())
    if result.is_short:
        lines.append(short_note(result))
    lines.append(TURNOVER)
    if said := [*verdicts(result), *evidence_lines(result), *filter(None, [spread_line(result), agents_line(result)])]:
        lines += ["", *map(_plain, said)]
    if ruined := ruin_date(result):
        lines += ["", f"RUINED on {ruined}: the account fell to zero"]
    if result.warnings:
        lines += ["", *(f"warning: {_plain(warning)}" for warning in result.warnings)]
    if result.events:
        lines += ["", *(f"event: {_plain(event)}" for event in result.events[:_SHOWN_EVENTS])]
        hidden = len(result.events) - _SHOWN_EVENTS
        lines += [f"event: and {hidden} more, all in the report"] if hidden > 0 else []
    return "\n".join(lines)


def _number(value: float | None, digits: int, scale: float, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return "n/a"
    scaled = np.round(float(value) * scale, digits) + 0.0  # turns -0.0 into 0.0
    return f"{scaled:.3g}{unit}" if abs(scaled) >= 1e15 else f"{scaled:,.{digits}f}{unit}"


def _plain(text: str) -> str:
    """Text without line breaks and control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
