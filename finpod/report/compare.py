"""The HTML page that compares several runs, in the style of a backtest's report."""

from __future__ import annotations

from typing import Any

import pandas as pd

from finpod.backtesting.comparison import LEVEL, RESAMPLES, Comparison
from finpod.backtesting.comparison_text import contrast, figure_rows, headings, notes_of, pairs_note, selection
from finpod.evidence.skill import Code, code_of
from finpod.figures import percent
from finpod.measures import drawdowns
from finpod.periods import session_dates
from finpod.report.pages import Layout, Section, render_page, sentence
from finpod.report.svg import Line, Shown, Spec

COLOURS, DASHES = 6, ("solid", (0, (5, 2)), (0, (2, 1.5)))
"""Number of colours of runs in `PALETTE`, and line styles. After the last colour, the next line style begins."""
RIVALS = {"benchmark": (0, (7, 2)), "equal-weight": (0, (1.5, 1.5))}
"""Key in `PALETTE` of benchmark and equal weight -> line style."""
WIDEST = 7
"""Largest number of columns that fit on A4 at the usual type size."""


def render_comparison(comparison: Comparison, title: str = "") -> str:
    """Return the page as HTML, with `title` as heading. Issues a ReportWarning for each part that failed."""
    heading, days = title or f"{len(comparison.runs)} runs compared", comparison.equity.index
    start, end = (f"{day:%Y-%m-%d}" for day in (days[0], days[-1]))
    legend = legend_of(comparison)
    broken = [(key, place % COLOURS + 1) for place, key in enumerate(legend) if COLOURS <= place < len(comparison.runs)]
    shared = {"comparison": comparison, "legend": legend, "start": start, "end": end, "returns": len(days) - 1}
    is_wide = len(comparison.runs) + len(comparison.rivals) > WIDEST
    return render_page(LAYOUT, comparison, heading, title=heading, is_wide=is_wide, broken=broken, **shared)


def legend_of(comparison: Comparison) -> dict[str, str]:
    """Return the legend: key of a colour -> name. Different benchmarks share the name 'benchmark of each run'."""
    legend = {f"run-{place}": name for place, name in enumerate(comparison.runs, start=1)}
    for key in RIVALS:
        kind = key.replace("-", " ")
        names = [name for name, curve in comparison.rivals.items() if curve.name == kind]
        legend |= {key: names[0] if len(names) == 1 else f"{kind} of each run"} if names else {}
    return legend


def _growth(comparison: Comparison) -> Shown:
    """Return a chart of the values of runs, benchmarks and equal weight, scaled to 1 at the first common close."""
    lines = []
    for curve in comparison.rivals.values():
        key = str(curve.name).replace(" ", "-")
        lines.append(Line(key, curve.to_numpy(), RIVALS[key]))
    for place, run in enumerate(comparison.runs):
        dash = DASHES[place // COLOURS % len(DASHES)]
        lines.append(Line(f"run-{place % COLOURS + 1}", comparison.equity[run].to_numpy(), dash))
    alt = "Value of each account, its benchmark and equal weight. The table of figures has the total returns."
    return Shown(alt, session_dates(comparison.equity.index), lines, legend=list(legend_of(comparison)))


def _falls(comparison: Comparison) -> Shown:
    falls = {name: figures["max_drawdown"] for name, figures in comparison.figures.items()}
    deepest, growth = min(falls, key=falls.__getitem__), _growth(comparison)
    alt = f"Drawdown from the running peak. The maximum is {percent(falls[deepest])}, of {deepest}."
    lines = [line._replace(values=drawdowns(line.values)) for line in growth.lines]
    return growth._replace(alt=alt, lines=lines)


def _summary(comparison: Comparison) -> dict[str, Any]:
    """Return a dict: total returns; number of pairs with an interval; number of pairs that differ significantly."""
    totals = pd.Series({name: figures["total_return"] for name, figures in comparison.figures.items()})
    codes = [code_of(pair.cagr) for pair in comparison.pairs if pair.cagr is not None]
    return {"totals": totals, "judged": len(codes), "apart": len(codes) - codes.count(Code.NOT_DISTINGUISHABLE)}


def _warnings(comparison: Comparison) -> dict[str, Any]:
    """Return a dict with (sentence, True if severe) for each warning. Severe warnings come first."""
    notes = notes_of(comparison)
    return {"lines": [(f"{names}: {text}" if names else sentence(text), grave) for names, text, grave in notes]}


def _pairs(comparison: Comparison) -> dict[str, Any]:
    return {
        "contrasts": [contrast(pair) for pair in comparison.pairs],
        "pairs_note": pairs_note(comparison),
        "level": LEVEL,
        "resamples": RESAMPLES,
    }


LAYOUT = Layout(
    "compare",
    (
        Spec("growth", "Growth of 1 since the first common close (log scale)", _growth, "log", wide=True, height=3.4),
        Spec("drawdown", "Drawdown", _falls, wide=True, height=2.2, limits=(None, 0)),
    ),
    head=(Section("span", "Common days"),),
    lead=(
        Section("summary", "Summary", _summary),
        Section("selection", "Selection", lambda comparison: {"sentence": selection(comparison)}),
        Section("warnings", "Warnings", _warnings),
    ),
    sections=(
        Section("performance", "Performance"),
        Section("figures", "Figures", lambda it: {"headings": headings(it), "rows": figure_rows(it)}),
        Section("pairs", "Pairwise differences", _pairs),
        Section("provenance", "Provenance"),
        Section("definitions", "How the figures are defined"),
    ),
)
"""The parts of the page, in order."""
