"""The page that sets several runs side by side: the look of a report, one file, no script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from finpod.backtesting.comparison import Comparison
from finpod.backtesting.comparison_figures import LEVEL, RESAMPLES
from finpod.backtesting.comparison_text import (
    contrasts,
    figure_rows,
    headings,
    note_sentence,
    pairs_note,
    rank_rows,
    selection,
    unfair_sentence,
    warning_lines,
)
from finpod.backtesting.text import TURNOVER, short_note
from finpod.figures import percent, ratio
from finpod.files import refuse_existing, write_text
from finpod.measures import drawdowns
from finpod.periods import session_dates, yearly_note
from finpod.report.pages import Draft, Picture, Section
from finpod.report.provenance import Table, provenance

if TYPE_CHECKING:
    from finpod.report.svg import Chart

COLOURS = {
    "run-1": ("#0b57d3", "#76a9fe"),
    "run-2": ("#c2185b", "#ff8ab8"),
    "run-3": ("#12774f", "#5fcc9b"),
    "run-4": ("#7b3fb5", "#c7a2f2"),
    "run-5": ("#0a7589", "#5dc9dd"),
    "run-6": ("#6b6b00", "#c9c95a"),
}
"""Lines of the runs, on light paper and on dark."""
DASHES = ("solid", (0, (5, 2)), (0, (2, 1.5)))
"""When there are more runs than colours, these come round again, broken."""
RIVALS = {"benchmark": (0, (7, 2)), "equal-weight": (0, (1.5, 1.5))}
"""Keys of `PALETTE` for what runs are set against, and how the lines are broken."""
DATA_LINES = 2
"""First lines of the provenance of the data, title and content hash, that are shown for each run."""
_WIDEST = 7
"""Columns that fit on A4 in the report's type."""


def write_comparison(comparison: Comparison, path: str | Path, *, overwrite: bool = True, title: str = "") -> Path:
    """Write the page of `comparison` to `path`, whole or not at all, and return the path.

    Equal comparisons give equal bytes. A chart or a section that raises an error is left out, with one line in its place and
    a ReportWarning. Raises InputError if the file exists and `overwrite` is false, or cannot be written.
    """
    target = Path(path)
    refuse_existing(target, overwrite)
    write_text(target, render_comparison(comparison, title))
    return target


def render_comparison(comparison: Comparison, title: str = "") -> str:
    """The page as HTML; `title` stands at its head. Warns of each part that was left out."""
    heading = title or f"{len(comparison.runs)} runs compared"
    days = " to ".join(f"{comparison.equity.index[row]:%Y-%m-%d}" for row in (0, -1))
    draft, template = Draft(heading), "_compare.html.j2"
    legend = dict(zip(_keys(comparison), comparison.runs, strict=True)) | _rival_legend(comparison)
    shared = {"charts": draft.charts(CHARTS, comparison), "legend": legend}
    return draft.page(
        "compare.html.j2",
        title=heading,
        days=days,
        colours=COLOURS,
        broken=_keys(comparison)[len(COLOURS) :],
        head={part.name: part.html for part in draft.sections(template, HEAD, comparison, **shared)},
        lead=draft.sections(template, LEAD, comparison, **shared),
        sections=draft.sections(template, SECTIONS, comparison, **shared),
    )


def summary(comparison: Comparison) -> str:
    """The comparison in two sentences."""
    totals = {name: own["total_return"] for name, own in comparison.figures.items()}
    least, most = min(totals, key=totals.__getitem__), max(totals, key=totals.__getitem__)
    rivals = [f"{name} {percent(own['total_return'])}" for name, own in comparison.rival_figures.items()]
    judged = [pair.cagr for pair in comparison.pairs if pair.cagr is not None]
    apart = sum(not found.covers_zero for found in judged)
    pairs, differ = f"{len(judged)} pair{'s' * (len(judged) != 1)}", f"differ{'s' * (apart < 2)}"
    alone = ", each taken alone" if len(judged) > 1 else ""
    said = f" Of {pairs}{alone}, {apart or 'none'} {differ} in growth by more than luck explains." if judged else ""
    return (
        f"The total returns run from {percent(totals[least])} ({least}) to {percent(totals[most])} ({most}), after costs; "
        f"over the same days: {', '.join(rivals)}.{said}"
    )


def notes(comparison: Comparison) -> list[tuple[str, bool]]:
    """What must be known before believing the table, each with whether it is grave."""
    sentences = [
        (f"{names}: {text}" if names else _sentence(text), grave) for names, text, grave in warning_lines(comparison)
    ]
    sentences += [(_sentence(unfair_sentence(unfair)), True) for unfair in comparison.unfair]
    sentences += [(_sentence(note_sentence(note)), False) for note in comparison.notes]
    return sorted(sentences, key=lambda sentence: not sentence[1])


def figures(comparison: Comparison) -> Table:
    """Figures of the runs and of what they are set against, closed by the ranks of the runs."""
    empty = [""] * len(comparison.rivals)
    return Table(
        ("", *headings(comparison), *comparison.rivals),
        [(label, *cells) for label, cells in figure_rows(comparison)],
        [(label, *cells, *empty) for label, cells in rank_rows(comparison)],
    )


def pairs(comparison: Comparison) -> Table:
    """Differences of every two runs."""
    interval = f"{100 * LEVEL:.0f} % interval"
    head = ("", "CAGR, points a year", interval, "Sharpe", interval, "In words")
    return Table(head, contrasts(comparison))


def correlation(comparison: Comparison) -> Table:
    """Correlation matrix of the returns in excess of equal weight."""
    table = comparison.correlation
    return Table(
        ("", *comparison.runs),
        [(name, *(ratio(table.loc[name, other]) for other in comparison.runs)) for name in comparison.runs],
    )


def growth_chart(comparison: Comparison) -> Chart:
    """Value of all accounts on a log scale, from 1."""
    return _chart(
        comparison,
        "growth",
        "Value of 1 at the first common close (log scale)",
        "Lines of the value of each account and of what all are set against; the total returns are in the table of figures.",
        height=3.4,
    )


def fall_chart(comparison: Comparison) -> Chart:
    """Fall of all accounts below their running peaks."""
    deepest = min(comparison.figures, key=lambda name: comparison.figures[name]["max_drawdown"])
    depth = percent(comparison.figures[deepest]["max_drawdown"])
    return _chart(
        comparison,
        "drawdown",
        "Drawdown",
        f"Fall below the running peak; the deepest is {depth}, of {deepest}.",
        height=2.2,
    )


def _chart(comparison: Comparison, name: str, title: str, alt: str, *, height: float) -> Chart:
    """Lines of all runs and shared rivals; names stand in the legend alone."""
    from matplotlib.ticker import MaxNLocator

    from finpod.report.svg import PALETTE, PERCENT, Chart, date_axis, log_axis, new_figure, to_svg

    figure, axes = new_figure(wide=True, height=height)
    dates, growth = session_dates(comparison.equity.index), name == "growth"
    marker = "o" if len(dates) < 30 else None

    def line(curve: pd.Series, **style: Any) -> None:
        values = curve.to_numpy()
        axes.plot(
            dates,
            np.where(values > 0, values, np.nan) if growth else drawdowns(values),
            marker=marker,
            markersize=2.5,
            **style,
        )

    for rival in comparison.rivals.values():
        key = rival.kind.replace(" ", "-")
        line(rival.curve, color=PALETTE[key], linewidth=1.1, linestyle=RIVALS[key], zorder=3)
    for place, run in enumerate(comparison.runs):
        colour, _ = COLOURS[f"run-{place % len(COLOURS) + 1}"]
        dash = DASHES[place // len(COLOURS) % len(DASHES)]
        line(comparison.equity[run], color=colour, linewidth=1.5 if growth else 1.0, linestyle=dash, zorder=4)
    if growth:
        log_axis(axes)
    else:
        axes.set_ylim(top=0)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(PERCENT)
    date_axis(axes, dates)
    svg = to_svg(figure, name)
    for key, (light, _) in COLOURS.items():
        svg = svg.replace(light, f"var(--{key})")
    return Chart(title, alt, svg, (*_keys(comparison), *_rival_legend(comparison)), wide=True)


def _keys(comparison: Comparison) -> list[str]:
    """The colour variable of each run in legends."""
    return [f"run-{place}" for place in range(1, len(comparison.runs) + 1)]


def _rival_legend(comparison: Comparison) -> dict[str, str]:
    """Key of `PALETTE` -> the name of the rival of that kind, or that each run has its own."""
    said = {}
    for key in RIVALS:
        kind = key.replace("-", " ")
        names = [name for name, rival in comparison.rivals.items() if rival.kind == kind]
        if not names:
            continue
        said[key] = names[0] if len(names) == 1 else f"{kind} of each run"
    return said


def _origin(run: Any) -> list[tuple[str, str]]:
    """Settings of a run and what its data are."""
    groups = dict(provenance(run))
    return [
        *groups["Run"],
        *((f"Data: {label[0].lower()}{label[1:]}", text) for label, text in groups["Data"][:DATA_LINES]),
    ]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _span(comparison: Comparison) -> dict[str, Any]:
    days = comparison.equity.index
    returns = f"{len(days) - 1:,} return{'s' if len(days) > 2 else ''}"
    return {"start": f"{days[0]:%Y-%m-%d}", "end": f"{days[-1]:%Y-%m-%d}", "returns": returns}


def _is_wide(comparison: Comparison) -> bool:
    return len(comparison.runs) + len(comparison.rivals) > _WIDEST


def _figures(comparison: Comparison) -> dict[str, Any]:
    table = figures(comparison)
    note = short_note(len(comparison.equity) - 1) if comparison.is_short else ""
    yearly = yearly_note(comparison.periods_per_year, comparison.periods_per_year)
    shown = {"figures": table, "many": _is_wide(comparison)}
    return shown | {"yearly_note": yearly, "turnover_note": TURNOVER, "short_note": note}


def _pairs(comparison: Comparison) -> dict[str, Any]:
    return {
        "pairs": pairs(comparison),
        "pairs_note": pairs_note(comparison),
        "level": f"{100 * LEVEL:.0f} %",
        "resamples": f"{RESAMPLES:,}",
        "correlation": correlation(comparison),
        "many": _is_wide(comparison),
    }


def _provenance(comparison: Comparison) -> dict[str, Any]:
    groups = [(name, _origin(run)) for name, run in comparison.runs.items()]
    versions = dict(provenance(next(iter(comparison.runs.values()))))["This report was made with"]
    return {"groups": [*groups, ("This page was made with", versions)]}


CHARTS = (
    Picture("growth", "Value of 1 at the first common close", growth_chart, wide=True),
    Picture("drawdown", "Drawdown", fall_chart, wide=True),
)
HEAD = (Section("span", "Common days", _span),)
LEAD = (
    Section("summary", "Summary", lambda comparison: {"summary": summary(comparison)}),
    Section("selection", "Selection", lambda comparison: {"selection": selection(comparison)}),
    Section("warnings", "Warnings", lambda comparison: {"notes": said} if (said := notes(comparison)) else None),
)
SECTIONS = (
    Section("performance", "Performance", lambda comparison: {}),
    Section("figures", "Figures", _figures),
    Section("pairs", "Every two runs", _pairs),
    Section("provenance", "Provenance", _provenance),
    Section(
        "definitions",
        "How the figures are defined",
        lambda comparison: {"risk_free": percent(comparison.risk_free)},
    ),
)
"""The parts of the page, in their order."""
