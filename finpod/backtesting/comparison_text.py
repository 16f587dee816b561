"""A comparison of runs as text; its rows and sentences are also used by the HTML page."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from finpod.backtesting.comparison import Comparison, Note, Unfair
from finpod.backtesting.comparison_figures import Pair
from finpod.backtesting.sentences import SEVERITIES, warning_sentence
from finpod.backtesting.text import TURNOVER, describe_terms, short_note
from finpod.figures import COMMON, Row, count, figure, percent, plain, ratio, text_table
from finpod.periods import yearly_note
from finpod.significance import Interval

ROWS = (
    *COMMON,
    Row("information_ratio", "Information ratio over equal weight", "ratio", yearly=True),
    Row("turnover", "Turnover", "times"),
    Row("yearly_turnover", "Turnover a year", "times", yearly=True),
    Row("costs", "Costs, of the first value", "percent"),
)
"""Figures in the order of display."""
RANKED = {"sharpe": "Sharpe", "cagr": "CAGR", "max_drawdown": "drawdown", "information_ratio": "information ratio"}
"""Figures whose ranks are shown; JSON has those of all."""
FLAWS: dict[str, str] = {severity.value: text for severity, text in SEVERITIES.items()} | {"in_sample": "in-sample"}
"""Mark at the name of a run whose figures mean nothing."""
NO_INTERVAL = {
    "short": "the history is too short",
    "ruined": "one of them was ruined",
    "same": "they are the same account",
}
"""Reason -> why a pair has no interval."""
UNFAIR: dict[str, tuple[str, Callable[[Any], str]]] = {
    "data": ("data differ", lambda value: f"{value[0]}, {value[1] or 'no hash'}"),
    "terms": ("terms differ", lambda value: describe_terms(*value)),
    "cash": ("starting cash differs", lambda value: f"{value:,}"),
    "risk_free": ("risk-free rates differ", percent),
}
"""Setting -> its name, and the format of its values."""
_HEADING = 18
"""Characters in a line of a column's heading."""


def format_comparison(comparison: Comparison) -> str:
    """The table with its notes and warnings, as plain text without a newline at the end."""
    start, end = (f"{comparison.equity.index[place]:%Y-%m-%d}" for place in (0, -1))
    returns, table = len(comparison.equity) - 1, comparison.correlation
    lines = [f"{len(comparison.runs)} runs, {start} .. {end}, {returns:,} returns", ""]
    rows = [*figure_rows(comparison), *rank_rows(comparison)]
    lines += text_table([*headings(comparison), *comparison.rivals], rows, _HEADING)
    lines += [short_note(returns)] if comparison.is_short else []
    lines += [TURNOVER, yearly_note(comparison.periods_per_year, comparison.periods_per_year), ""]
    for label, cagr, cagr_span, sharpe, sharpe_span, verdict in contrasts(comparison):
        shown = f"CAGR {cagr} points ({cagr_span}), Sharpe {sharpe} ({sharpe_span}): " if cagr else ""
        lines.append(f"{label}: {shown}{verdict}")
    shared = [f"{one.first}/{one.second} {ratio(table.loc[one.first, one.second])}" for one in comparison.pairs]
    lines += filter(None, [pairs_note(comparison)])
    lines += [f"correlation of returns in excess of equal weight: {', '.join(shared)}", "", selection(comparison)]
    if comparison.unfair or comparison.notes or comparison.warnings:
        lines.append("")
    warnings = [
        (f"warning{f' ({names})' if names else ''}: {text}", grave) for names, text, grave in warning_lines(comparison)
    ]
    lines += [text for text, grave in warnings if grave]
    lines += [*map(unfair_sentence, comparison.unfair), *map(note_sentence, comparison.notes)]
    lines += [text for text, grave in warnings if not grave]
    return "\n".join(map(plain, lines))


def figure_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Label and cells: first the runs, then the rivals. A cell is empty if a rival has no such figure."""
    columns, star = [*comparison.figures.values(), *comparison.rival_figures.values()], " *" * comparison.is_short
    return [
        (row.label + star * row.yearly, [figure(own[row.key], row.kind) if row.key in own else "" for own in columns])
        for row in ROWS
    ]


def rank_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Label and ranks of the runs by the main figures, 1 being the best."""
    ranks = comparison.ranks.values()
    return [(f"Rank by {label}", [count(places[key]) for places in ranks]) for key, label in RANKED.items()]


def headings(comparison: Comparison) -> list[str]:
    """Heading of the column of each run: its name, marked if its figures mean nothing."""
    return [f"{name} ({FLAWS[flaw]})" if flaw else name for name, flaw in comparison.flaws.items()]


def contrasts(comparison: Comparison) -> list[tuple[str, str, str, str, str, str]]:
    """For each pair: label, difference of CAGR (points) and its interval, of Sharpe ratio and its interval, and verdict."""
    return [_contrast(pair) for pair in comparison.pairs]


def _contrast(pair: Pair) -> tuple[str, str, str, str, str, str]:
    label = f"{pair.first} over {pair.second}"
    if pair.cagr is None or pair.sharpe is None:
        return label, "", "", "", "", f"no interval: {NO_INTERVAL[pair.reason]}"
    cagr, sharpe = ([_signed(100 * end, 1) for end in pair.cagr[:3]], [_signed(end, 2) for end in pair.sharpe[:3]])
    growth, quality = _verdict(pair.cagr), _verdict(pair.sharpe)
    verdict = growth if quality in (growth, "") else f"growth {growth}, Sharpe {quality}"
    return label, cagr[1], f"{cagr[0]} to {cagr[2]}", sharpe[1], f"{sharpe[0]} to {sharpe[2]}", verdict


def _signed(value: float, digits: int) -> str:
    """A difference with its sign; without one if it rounds to zero, n/a if undefined."""
    rounded = round(value, digits)
    return f"{rounded:+.{digits}f}" if math.isfinite(value) and rounded else ratio(value, digits)


def _verdict(interval: Interval) -> str:
    if not math.isfinite(interval.low):
        return ""
    if interval.covers_zero:
        return "not distinguishable from luck"
    return "better than luck explains" if interval.low > 0 else "worse than luck explains"


def pairs_note(comparison: Comparison) -> str:
    """Note on how many intervals exclude zero by luck; empty for a single pair."""
    judged = sum(pair.cagr is not None for pair in comparison.pairs)
    return f"of {judged} pairs without any difference, one in twenty would seem to differ" if judged > 1 else ""


def selection(comparison: Comparison) -> str:
    """Selection bias of choosing among these runs, in one sentence."""
    bias = "Choosing the best of several runs on the window they are compared on is selection bias, and flatters the chosen one"
    if comparison.is_short:
        return f"{bias}."
    shown = [f"{ratio(best)} for the best of {number:,}" for number, best in comparison.chance.items()]
    behind = f", all the candidates behind these {len(comparison.runs)} runs" if len(shown) > 1 else ""
    return (
        f"{bias}: without any skill, luck alone is expected to show an information ratio over equal weight of "
        f"{' and of '.join(shown)}{behind}."
    )


def warning_lines(comparison: Comparison) -> list[tuple[str, str, bool]]:
    """For each warning: names of its runs (empty for all), its sentence, and True if the figures mean nothing."""
    return [
        ("" if len(names) == len(comparison.runs) else ", ".join(names), warning_sentence(warning), warning.grave)
        for warning, names in comparison.warnings
    ]


def unfair_sentence(unfair: Unfair) -> str:
    """One sentence on a setting that makes the comparison unfair."""
    differs, write = UNFAIR[unfair.what]
    groups = "; ".join(f"{write(value)} ({', '.join(names)})" for value, names in unfair.groups)
    end = ", so Sharpe ratios here are against 0 %" if unfair.what == "risk_free" else ""
    return f"no fair comparison: the {differs}: {groups}{end}"


def note_sentence(note: Note) -> str:
    """A note as one sentence."""
    data = note.data
    if note.code == "several_rivals":
        return "the runs do not share one benchmark and one equal weight (data, costs, fills or start differ): each is shown"
    if note.code == "intraday":
        start = "first bar on" if data["from"] == "open" else "close of the first one"
        return f"intraday runs are compared session by session, from the {start}"
    lengths = "; ".join(f"{name} has {closes:,} from {span}" for name, (closes, span) in data["runs"].items())
    early = f". Runs that began earlier, {', '.join(data['invested'])}, enter with the positions they held"
    return (
        f"the window is shortened to the {data['closes']:,} closes that all runs have, {data['span']}: {lengths}"
        + early * bool(data["invested"])
    )
