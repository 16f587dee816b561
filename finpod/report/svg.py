"""How the report draws: figures without pyplot, colours that follow the page, SVG that is part of it.

Every colour of `PALETTE` becomes `var(--name)`, so that one drawing follows light, dark and print. Figures never touch
pyplot, so no display is needed and nothing stays open.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from finpod.measures import Array

if TYPE_CHECKING:
    from finpod.result import BacktestResult

PALETTE = {
    "strategy": "#0b57d1",
    "benchmark": "#c76a02",
    "equal-weight": "#5f7a76",
    "ink": "#1c2431",
    "muted": "#5b6573",
    "rule": "#dfe3e8",
    "danger": "#b3261f",
    "test": "#0b57d2",
    "random": "#8a6fb0",
}
CURVES = ("strategy", "benchmark", "equal-weight")
"""The three curves of a result, as keys of `PALETTE`."""
WIDE_TEXT = 7
"""Size of the text in wide charts, in points; they are scaled up more than the others."""

_DIGITS = re.compile(r"(?<=\.\d)\d+")
"""Decimals of a path beyond the first, a seventh of a millimetre on paper."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "finpod",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "text.color": PALETTE["ink"],
    "axes.edgecolor": PALETTE["rule"],
    "axes.labelcolor": PALETTE["muted"],
    "xtick.color": PALETTE["rule"],
    "ytick.color": PALETTE["rule"],
    "xtick.labelcolor": PALETTE["muted"],
    "ytick.labelcolor": PALETTE["muted"],
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": PALETTE["rule"],
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "lines.linewidth": 1.1,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "ytick.major.size": 0,
    "axes.unicode_minus": False,
    "text.parse_math": False,
    "path.simplify_threshold": 0.4,
}


def _in_percent(value: float, _place: float) -> str:
    return f"{round(100 * value, 4) + 0.0:g}%"


PERCENT = _in_percent
"""Labels of an axis of fractions. A function: a Formatter that is shared would hold on to the last figure."""


class Chart(NamedTuple):
    """One picture of the report."""

    title: str
    """Heading above it."""
    alt: str
    """What a reader who cannot see it should know."""
    svg: str
    """Inline SVG; empty if there are too few data."""
    curves: tuple[str, ...] = ()
    """Keys of `PALETTE` that the legend explains."""
    wide: bool = False
    """Whether it takes the whole width."""


def curves_of(result: BacktestResult) -> dict[str, Array]:
    """The three curves, drawn last first so that the strategy lies on top."""
    return {
        "strategy": result.equity.to_numpy(),
        "benchmark": result.benchmark_equity.to_numpy(),
        "equal-weight": result.equal_weight_equity.to_numpy(),
    }


@contextmanager
def report_style() -> Iterator[None]:
    """The report's style, and matplotlib's search for fonts kept off the terminal: no Arial is no problem of the user's."""
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with matplotlib.rc_context(_STYLE):
            yield
    finally:
        logger.setLevel(level)


def new_figure(*, wide: bool = False, height: float = 2.5) -> tuple[Figure, Axes]:
    """A figure of half the page's width, or all of it, with one pair of axes; `height` in inches."""
    width = 8.0 if wide else 5.0
    figure = Figure(figsize=(width, height))
    left, bottom = 0.58 / width, 0.26 / height
    axes = figure.add_axes((left, bottom, 1 - left - 0.12 / width, 1 - bottom - 0.1 / height))
    axes.tick_params(labelsize=WIDE_TEXT if wide else None)
    return figure, axes


def date_axis(axes: Axes, dates: Array) -> None:
    """Years, months or days along the x axis, with a little room on both sides; dates are [T] datetime64[D]."""
    locator = AutoDateLocator(minticks=2, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    days = ["%d %b"] * 4
    axes.xaxis.set_major_formatter(
        ConciseDateFormatter(locator, show_offset=False, formats=["%Y", "%b", *days], zero_formats=["", "%Y", *days])
    )
    margin = max(np.timedelta64(1, "D"), (dates[-1] - dates[0]) // 100)
    axes.set_xlim(dates[0] - margin, dates[-1] + margin)


def log_axis(axes: Axes) -> None:
    """Amounts on a log scale along the y axis, with round figures however narrow the range; call it after drawing."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(
        MaxNLocator(6) if high < 4 * low else LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if high < 30 * low else (1, 2, 5))
    )
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if high < 1.1 * low else short_amount(value))
    )


def bars(axes: Axes, left: Array, heights: Array, width: float, colour: str, *, alpha: float = 1.0) -> None:
    """Bars from zero, drawn as one path; left [B] as floats of the x axis, heights [B]; NaN draws none."""
    known = np.isfinite(heights)
    x, y = np.asarray(left, dtype=float)[known], np.asarray(heights, dtype=float)[known]
    corners = np.stack([x, x, x + width, x + width], axis=1), np.stack([y * 0, y, y, y * 0], axis=1)
    shapes = PolyCollection(list(np.stack(corners, axis=2)), facecolor=colour, alpha=alpha, linewidth=0)
    axes.add_collection(shapes, autolim=False)
    if len(x):
        axes.update_datalim(np.column_stack([[x.min(), x.max() + width], [min(y.min(), 0), max(y.max(), 0)]]))
        axes.autoscale_view()


def recolour(axes: Axes, mean: str) -> None:
    """Put pyfolio's own colours, title and legend into the report's style."""
    axes.set_title("")
    axes.set_xlabel("")
    if (legend := axes.get_legend()) is not None:
        legend.remove()
    for patch in axes.patches:
        patch.set_facecolor(PALETTE["strategy"])
        patch.set_edgecolor(PALETTE["ink"])
        patch.set_linewidth(0.5)
        patch.set_alpha(0.55)
    for line in axes.lines:
        line.set_color(PALETTE[mean])
        line.set_markeredgecolor(PALETTE["muted"])
        line.set_linewidth(0.9)


def to_svg(figure: Figure, name: str) -> str:
    """The figure as an SVG element for HTML: ids made unique by `name`, colours by variable, short paths."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", r"<svg \1 aria-hidden='true'>", svg, count=1)
    svg = re.sub(r"\s*<style type=\"text/css\">.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' d="[^"]*"', lambda path: _DIGITS.sub("", path[0]).replace(" \n", " "), svg)
    svg = svg.replace('id="', f'id="{name}-').replace('"#', f'"#{name}-').replace("url(#", f"url(#{name}-")
    for key, colour in PALETTE.items():
        svg = svg.replace(colour, f"var(--{key})")
    return svg


def short_amount(value: float) -> str:
    """1,250,000 as 1.25M."""
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"
