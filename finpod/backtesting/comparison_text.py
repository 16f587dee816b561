"""A comparison of runs as text and as JSON. The HTML page uses the same rows and sentences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict

from finpod import files
from finpod.backtesting.comparison import LEVEL, RESAMPLES, Comparison, Pair
from finpod.backtesting.sentences import LUCK, severity_of, warning_sentence
from finpod.backtesting.text import TURNOVER, cells, describe_terms, short_note
from finpod.evidence.skill import code_of
from finpod.figures import COMMON, Row, plain, plural, ratio, text_table
from finpod.periods import yearly_note
from finpod.records import records
from finpod.result import BacktestResult

ROWS = (
    *COMMON,
    Row("information_ratio", "Information ratio over equal weight", "ratio", yearly=True),
    Row("turnover", "Turnover", "times"),
    Row("yearly_turnover", "Turnover per year", "times", yearly=True),
    Row("costs", "Costs, % of initial value", "percent"),
)
"""Figures in the order of display."""
NO_INTERVAL = {
    "short": "the history is too short",
    "ruined": "one of the two accounts was ruined",
    "same": "the two accounts are the same",
}
"""`Pair.reason` -> text on why the pair has no interval."""
UNFAIR: dict[str, tuple[str, Callable[[BacktestResult], str]]] = {
    "data": ("data", lambda run: f"{run.manifest.get('title', 'no title')}, {run.data_hash[:12] or 'no hash'}"),
    "terms": (
        "costs, fills or delisting returns",
        lambda run: describe_terms(run.costs, run.fill, run.whole_shares, run.delisting_return),
    ),
    "cash": ("amounts of starting cash", lambda run: f"{run.equity.iloc[0]:,.0f}"),
    "risk_free": ("risk-free rates (so all Sharpe ratios use 0 %)", lambda run: f"{100 * run.risk_free:g} %"),
}
"""Setting that must be equal for a fair comparison -> (its name in texts, function that returns its value as text)."""
_HEADING = 18
"""Width in characters at which the heading of a column is wrapped."""


def format_comparison(comparison: Comparison) -> str:
    """Return a comparison as plain text: its table, notes and warnings. There is no newline at the end."""
    start, end = (f"{comparison.equity.index[place]:%Y-%m-%d}" for place in (0, -1))
    returns, table = len(comparison.equity) - 1, comparison.correlation
    lines = [f"{len(comparison.runs)} runs, {start} .. {end}, {plural(returns, 'return')}", ""]
    lines += text_table([*headings(comparison), *comparison.rivals], figure_rows(comparison), _HEADING)
    lines += [short_note(returns)] if comparison.is_short else []
    lines += [TURNOVER, yearly_note(comparison.periods_per_year, comparison.periods_per_year), ""]
    for label, cagr, cagr_span, sharpe, sharpe_span, verdict in map(contrast, comparison.pairs):
        shown = f"CAGR {cagr} points ({cagr_span}), Sharpe {sharpe} ({sharpe_span}); " if cagr else ""
        lines.append(f"{label}: {shown}{verdict}")
    shared = [f"{one.first}/{one.second} {ratio(table.loc[one.first, one.second])}" for one in comparison.pairs]
    lines += filter(None, [pairs_note(comparison)])
    lines += [f"correlation of returns in excess of equal weight: {', '.join(shared)}", "", selection(comparison)]
    notes = notes_of(comparison)
    lines += ["", *(f"warning{f' ({names})' if names else ''}: {text}" for names, text, _ in notes)] if notes else []
    return "\n".join(map(plain, lines))


def notes_of(comparison: Comparison) -> list[tuple[str, str, bool]]:
    """Return (names of the runs, sentence, True if severe) for each warning, severe first; "" stands for all runs."""
    notes = [
        ("" if len(names) == len(comparison.runs) else ", ".join(names), warning_sentence(warning), warning.grave)
        for warning, names in comparison.warnings
    ]
    for what, groups in unfair_settings(comparison).items():
        values = "; ".join(f"{value} ({', '.join(names)})" for value, names in groups.items())
        notes.append(("", f"unfair comparison: the runs have different {UNFAIR[what][0]}: {values}", True))
    notes += [("", warning_sentence(note), False) for note in comparison.notes]
    return sorted(notes, key=lambda note: not note[2])


def unfair_settings(comparison: Comparison) -> dict[str, dict[str, list[str]]]:
    """Return setting -> value -> names of the runs with this value, for the settings in `UNFAIR` that differ."""
    settings: dict[str, dict[str, list[str]]] = {what: {} for what in UNFAIR}
    for what, groups in settings.items():
        for name, run in comparison.runs.items():
            groups.setdefault(UNFAIR[what][1](run), []).append(name)
    return {what: groups for what, groups in settings.items() if len(groups) > 1}


def figure_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Return (label, cells) for each row of the table: one cell per run, then one per rival. Cells may be empty."""
    return cells(ROWS, [*comparison.figures.values(), *comparison.rival_figures.values()], comparison.is_short)


def headings(comparison: Comparison) -> list[str]:
    """Return the heading of each run's column: its name, with a mark if the audit failed or the run is in-sample."""

    def mark(run: BacktestResult) -> str:
        failed = run.audit is not None and run.audit.passed is False
        return f" ({severity_of(run.audit)})" if run.audit and failed else " (in-sample)" * run.in_sample

    return [name + mark(run) for name, run in comparison.runs.items()]


def contrast(pair: Pair) -> tuple[str, str, str, str, str, str]:
    """Return (label, CAGR difference in points, interval, Sharpe difference, interval, verdict) of a pair, as text.
    If the pair has no intervals, all except label and verdict are empty."""
    label = f"{pair.first} over {pair.second}"
    if pair.cagr is None or pair.sharpe is None:
        return label, "", "", "", "", f"no interval: {NO_INTERVAL[pair.reason]}"
    cagr, sharpe = ([_signed(100 * end, 1) for end in pair.cagr[:3]], [_signed(end, 2) for end in pair.sharpe[:3]])
    growth, quality = (LUCK[code_of(one)] if math.isfinite(one.low) else "" for one in (pair.cagr, pair.sharpe))
    verdict = growth if quality in (growth, "") else f"growth {growth}; Sharpe {quality}"
    return label, cagr[1], f"{cagr[0]} to {cagr[2]}", sharpe[1], f"{sharpe[0]} to {sharpe[2]}", verdict


def _signed(value: float, digits: int) -> str:
    """Return a difference as text with its sign. Zero has no sign; an undefined difference is n/a."""
    rounded = round(value, digits)
    return f"{rounded:+.{digits}f}" if math.isfinite(value) and rounded else ratio(value, digits)


def pairs_note(comparison: Comparison) -> str:
    """Return a note on multiple tests; empty if fewer than two pairs have intervals."""
    judged = sum(pair.cagr is not None for pair in comparison.pairs)
    return f"by chance alone, about one in twenty of {judged} pairs appears significant" if judged > 1 else ""


def selection(comparison: Comparison) -> str:
    """Return a text on the selection bias of choosing the best of the compared runs."""
    bias = "Choosing the best of several runs by this table is selection bias: the best run looks better than it is"
    if comparison.is_short:
        return f"{bias}."
    shown = [f"{ratio(best)} for the best of {number:,}" for number, best in comparison.chance.items()]
    behind = f" candidates, from which these {len(comparison.runs)} runs were chosen" if len(shown) > 1 else ""
    return f"{bias}. Without skill, the expected information ratio over equal weight is {' and '.join(shown)}{behind}."


def to_json(comparison: Comparison) -> str:
    """Return a comparison, except for its curves, as deterministic JSON. Undefined figures are null."""
    days = comparison.equity.index
    content = {
        "start": f"{days[0]:%Y-%m-%d}",
        "end": f"{days[-1]:%Y-%m-%d}",
        "returns": len(days) - 1,
        "risk_free": comparison.risk_free,
        "periods_per_year": comparison.periods_per_year,
        "runs": {
            name: {"strategy": run.strategy, "figures": comparison.figures[name]}
            for name, run in comparison.runs.items()
        },
        "rivals": comparison.rival_figures,
        "pairs": [
            pair._asdict() | {key: span._asdict() for key in ("cagr", "sharpe") if (span := getattr(pair, key))}
            for pair in comparison.pairs
        ],
        "level": LEVEL,
        "resamples": RESAMPLES,
        "correlation": comparison.correlation.to_dict(),
        "unfair": [{"what": what, "runs": [*groups.values()]} for what, groups in unfair_settings(comparison).items()],
        "notes": records(comparison.notes),
        "warnings": [asdict(warning) | {"runs": names} for warning, names in comparison.warnings],
        "candidates": comparison.candidates,
        "chance": comparison.chance,
    }
    return files.to_json(content)
