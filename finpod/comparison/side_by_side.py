"""A comparison of runs as text: rows of figures and ranks, what sets every two apart, and the whole as a table."""

from __future__ import annotations

import math
import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from finpod.table import COMMON, TURNOVER, Row, count, figure, ratio

if TYPE_CHECKING:
    from finpod.bootstrap import Interval
    from finpod.comparison.contrasts import Pair
    from finpod.comparison.runs import Comparison

ROWS = (
    *COMMON,
    Row("information_ratio", "Information ratio over equal weight", "ratio", yearly=True),
    Row("turnover", "Turnover", "times"),
    Row("yearly_turnover", "Turnover a year", "times", yearly=True),
    Row("costs", "Costs, of the first value", "percent"),
)
"""Figures in the order they are shown."""
RANKED = {"sharpe": "Sharpe", "cagr": "CAGR", "max_drawdown": "drawdown", "information_ratio": "information ratio"}
"""Figures whose ranks are shown; JSON has those of all."""
_WIDTH = 18
"""Letters in a line of a column's heading."""


class Contrast(NamedTuple):
    """One pair of runs in words."""

    label: str
    """Who is set against whom."""
    cagr: str
    """Difference in percentage points a year."""
    cagr_span: str
    """Its interval."""
    sharpe: str
    """Difference of the Sharpe ratios."""
    sharpe_span: str
    """Its interval."""
    said: str
    """What they say."""


def figure_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Label and cells, the runs first and the rivals after them; an empty cell where a rival has no such figure."""
    columns, star = [*comparison.figures.values(), *comparison.rival_figures.values()], " *" * comparison.is_short
    return [
        (row.label + star * row.yearly, [figure(own[row.key], row.kind) if row.key in own else "" for own in columns])
        for row in ROWS
    ]


def rank_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Label and places of the runs by the figures that matter most, 1 being the best."""
    ranks = comparison.ranks.values()
    return [(f"Rank by {label}", [count(places[key]) for places in ranks]) for key, label in RANKED.items()]


def contrasts(comparison: Comparison) -> list[Contrast]:
    """Every two runs in words."""
    return [_contrast(pair) for pair in comparison.pairs]


def pairs_note(comparison: Comparison) -> str:
    """How many of the intervals luck would part from zero; empty for a single pair."""
    judged = sum(pair.cagr is not None for pair in comparison.pairs)
    return f"of {judged} pairs without any difference, one in twenty would seem to differ" if judged > 1 else ""


def short_note(comparison: Comparison) -> str:
    """What the star of a short history stands for; empty without one."""
    days = len(comparison.equity) - 1
    returns = "1 return" if days == 1 else f"{days} returns"
    return f"* scaled up to a year from only {returns}: not to be relied on" if comparison.is_short else ""


def format_comparison(comparison: Comparison) -> str:
    """The table with what must be known to read it, as plain text without a newline at the end."""
    columns = [*comparison.headings, *comparison.rivals]
    start, end = (f"{comparison.equity.index[place]:%Y-%m-%d}" for place in (0, -1))
    rows = [*figure_rows(comparison), *((label, cells) for label, cells in rank_rows(comparison))]
    lines = [f"{len(comparison.runs)} runs, {start} .. {end}, {len(comparison.equity) - 1:,} returns", ""]
    lines += [*_laid_out(columns, rows), *filter(None, [short_note(comparison)]), TURNOVER, ""]
    for pair in contrasts(comparison):
        figures = f"CAGR {pair.cagr} points ({pair.cagr_span}), Sharpe {pair.sharpe} ({pair.sharpe_span}): " * bool(
            pair.cagr
        )
        lines.append(f"{pair.label}: {figures}{pair.said}")
    lines += [*filter(None, [pairs_note(comparison)]), _correlations(comparison), "", comparison.selection]
    if comparison.unfair or comparison.notes or comparison.warnings:
        lines.append("")
    everyone, said = tuple(comparison.runs), []
    for warned in comparison.warnings:
        who = "" if warned.runs == everyone else f" ({', '.join(warned.runs)})"
        said.append(f"warning{who}: {warned.text}")
    grave = sum(warned.grave for warned in comparison.warnings)
    lines += [*said[:grave], *comparison.unfair, *comparison.notes, *said[grave:]]
    return "\n".join(map(_plain, lines))


def _laid_out(names: list[str], rows: list[tuple[str, list[str]]]) -> list[str]:
    """Columns of equal width under headings that end beside the figures."""
    heads = [textwrap.wrap(_plain(name), _WIDTH) or [""] for name in names]
    table = [cells + [""] * (len(names) - len(cells)) for _, cells in rows]
    widths = [max(map(len, [*head, *(cells[place] for cells in table)])) for place, head in enumerate(heads)]
    upside_down = zip_longest(*(reversed(head) for head in heads), fillvalue="")
    lines = [("", list(line)) for line in upside_down][::-1]
    lines += [(label, cells) for (label, _), cells in zip(rows, table, strict=True)]
    longest = max(len(label) for label, _ in rows)
    return ["  ".join([label.ljust(longest), *map(str.rjust, cells, widths)]).rstrip() for label, cells in lines]


def _contrast(pair: Pair) -> Contrast:
    label = f"{pair.first} over {pair.second}"
    if pair.cagr is None or pair.sharpe is None:
        return Contrast(label, "", "", "", "", f"no interval, for {pair.reason}")
    growth, quality = _judged(pair.cagr), _judged(pair.sharpe)
    said = growth if quality in (growth, "") else f"growth {growth}, Sharpe {quality}"
    cagr, sharpe = (
        [_signed(scale * end, digits) for end in span[:3]]
        for span, scale, digits in ((pair.cagr, 100, 1), (pair.sharpe, 1, 2))
    )
    return Contrast(label, cagr[1], f"{cagr[0]} to {cagr[2]}", sharpe[1], f"{sharpe[0]} to {sharpe[2]}", said)


def _signed(value: float, digits: int) -> str:
    """A difference with its sign; what rounds to zero has none, and what is undefined is n/a."""
    rounded = round(value, digits)
    return f"{rounded:+.{digits}f}" if math.isfinite(value) and rounded else ratio(value, digits)


def _judged(found: Interval) -> str:
    if not math.isfinite(found.low):
        return ""
    if found.covers_zero:
        return "not distinguishable from luck"
    return "better than luck explains" if found.low > 0 else "worse than luck explains"


def _correlations(comparison: Comparison) -> str:
    table = comparison.correlation
    said = [f"{pair.first}/{pair.second} {ratio(table.loc[pair.first, pair.second])}" for pair in comparison.pairs]
    return f"correlation of returns in excess of equal weight: {', '.join(said)}"


def _plain(text: str) -> str:
    """Text without line breaks and control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
