"""Charts as inline SVG: style, axes, and `draw`, which makes a chart from its specification.

Each colour of `PALETTE` becomes the CSS variable `var(--name)`, so one drawing serves light mode, dark mode and print.
The figures of matplotlib are made without pyplot, so drawing needs no display and leaves no figure open.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from finpod.figures import short_amount
from finpod.measures import Array

PALETTE = {
    "strategy": "#0b57d1",
    "benchmark": "#c76a02",
    "equal-weight": "#5f7a76",
    "ink": "#1c2431",
    "muted": "#5b6573",
    "rule": "#dfe3e8",
    "danger": "#b3261f",
    "card": "#ffffff",
    "test": "#0b57d2",
    "random": "#8a6fb0",
    "run-1": "#0b57d3",
    "run-2": "#c2185b",
    "run-3": "#12774f",
    "run-4": "#7b3fb5",
    "run-5": "#0a7589",
    "run-6": "#6b6b00",
}
"""Colours in light mode, all different. `_style.css.j2` has these colours and those of dark mode."""
BACKGROUND = ("benchmark", "equal-weight", "random", "muted")
"""Keys of `PALETTE` whose lines are thin and behind the others."""
EXPLAINED = ("strategy", "benchmark", "equal-weight", "random")
"""Keys of `PALETTE` that a legend shows, in this order, unless the chart sets its own legend."""
WIDE_TEXT = 7
"""Text size in wide charts, in points. It is small because the page enlarges wide charts more than others."""

STYLE = Path(__file__).with_name("charts.mplstyle")


class Chart(NamedTuple):
    """A drawn chart."""

    title: str
    alt: str  # description for screen readers; shown if there is no drawing
    svg: Markup = Markup()  # inline SVG; empty if there is nothing to draw
    curves: tuple[str, ...] = ()  # keys of the legend, each the name of a CSS variable
    wide: bool = False  # True for the whole width of the page


class Line(NamedTuple):
    """A line, or a series of bars."""

    key: str  # key of the colour in `PALETTE`
    values: Array  # [X]; NaN where there is no value
    dash: Any = "solid"  # a line style of matplotlib


class Shown(NamedTuple):
    """The content of a chart."""

    alt: str  # description for screen readers, as in `Chart`
    x: Array | Sequence[str] = ()  # [X]: dates as datetime64[D], or equally spaced labels
    lines: Sequence[Line] = ()  # in drawing order
    bar: float = 0.0  # total width of the bars at one x, in days or labels; 0 for lines
    paint: Callable[[Axes], object] | None = None  # draws more, after the lines and axes
    legend: Sequence[str] | None = None  # keys of the legend; None: the keys of lines that `EXPLAINED` has, if several
    note: str = ""  # text at the end of the title


class Spec(NamedTuple):
    """The specification of a chart.

    `series` takes the subject of the page. It returns the content, a finished chart, a sentence on why there is nothing
    to draw, or None for no chart.
    """

    name: str  # name of the chart in templates
    title: str
    series: Callable[[Any], Shown | Chart | str | None]
    axis: Literal["percent", "times", "plain", "log"] = "percent"  # format of the values
    wide: bool = False  # True for the whole width of the page
    height: float = 2.5  # height of the drawing, in inches
    zero: str = ""  # key in `PALETTE` of the colour of a line at zero; empty for no line
    fill: bool = False  # True to fill the space between the strategy and zero
    limits: tuple[float | None, float | None] | None = None  # limits of the y axis


@style.context(STYLE)
def draw(spec: Spec, subject: Any) -> Chart | None:
    """Return the chart of the subject of a page, such as a result; None if the subject has no such chart."""
    shown = spec.series(subject)
    if shown is None or isinstance(shown, Chart):
        return shown
    if isinstance(shown, str):
        return Chart(spec.title, shown, wide=spec.wide)
    figure, axes = new_figure(wide=spec.wide, height=spec.height)
    _draw_lines(axes, shown)
    if spec.zero:
        axes.axhline(0, color=PALETTE[spec.zero], linewidth=0.9)
    if spec.fill:
        filled = next(line.values for line in shown.lines if line.key == "strategy")
        axes.fill_between(np.asarray(shown.x), filled, color=PALETTE["strategy"], alpha=0.2, linewidth=0)
    if spec.axis == "log":
        _log_axis(axes)
    elif spec.axis != "plain":  # a new function each time: a shared Formatter would keep the last figure in memory
        scale, unit = {"percent": (100, "%"), "times": (1, "x")}[spec.axis]
        axes.yaxis.set_major_formatter(lambda value, _place: f"{round(scale * value, 4) + 0.0:g}{unit}")
    if isinstance(shown.x, np.ndarray):
        _date_axis(axes, shown.x, shown.bar)
    elif shown.x:
        step = -(-len(shown.x) // 8)
        axes.set_xticks(np.arange(len(shown.x))[::step], shown.x[::step])
        margin = 0.7 + max(3 - len(shown.x), 0) / 2 if shown.bar else 0.3  # so that one or two bars are not too wide
        axes.set_xlim(-margin, len(shown.x) - 1 + margin)
    if spec.limits:
        axes.set_ylim(*spec.limits)
    if shown.paint is not None:
        shown.paint(axes)
    keys = [key for key in EXPLAINED if key in {line.key for line in shown.lines}]
    legend = shown.legend if shown.legend is not None else keys if len(keys) > 1 else ()
    return Chart(spec.title + shown.note, shown.alt, to_svg(figure, spec.name), tuple(legend), spec.wide)


def _draw_lines(axes: Axes, shown: Shown) -> None:
    x = date2num(shown.x) if isinstance(shown.x, np.ndarray) else np.arange(len(shown.x))
    width = shown.bar / max(len(shown.lines), 1)
    for place, (key, values, dash) in enumerate(shown.lines):
        if shown.bar:
            known, middle = np.isfinite(values), x + (place + 0.5 - len(shown.lines) / 2) * width
            axes.bar(middle[known], values[known], 0.94 * width, color=PALETTE[key], linewidth=0)
            continue
        wide, zorder = (0.9, 3) if key in BACKGROUND else (1.3, 4)
        dots = "o" if len(x) < 30 else None
        axes.plot(x, values, color=PALETTE[key], ls=dash, lw=wide, zorder=zorder, marker=dots, markersize=2.5)


def new_figure(*, wide: bool = False, height: float = 2.5) -> tuple[Figure, Axes]:
    """Return a figure and its axes. The width is half the page, or the whole page if `wide`. `height` is in inches."""
    width = 8.0 if wide else 5.0
    figure = Figure(figsize=(width, height))
    left, bottom = 0.58 / width, 0.26 / height
    axes = figure.add_axes((left, bottom, 1 - left - 0.12 / width, 1 - bottom - 0.1 / height))
    axes.tick_params(labelsize=WIDE_TEXT if wide else None)
    return figure, axes


def _date_axis(axes: Axes, dates: Array, bar: float) -> None:
    """Label the x axis with years, months or days. `dates` is [T]; for bars, `bar` is their width in days."""
    locator = AutoDateLocator(minticks=2, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    written = {"formats": ["%Y", "%b", *["%d %b"] * 4], "zero_formats": ["", "%Y", *["%d %b"] * 4]}
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False, **written))
    first, last = date2num(dates[[0, -1]])
    margin = max(1.0, (last - first) // 100, bar / 2 + 1)
    axes.set_xlim(first - margin, last + margin)


def _log_axis(axes: Axes) -> None:
    """Give the y axis a log scale, labelled with round amounts. Call this after drawing."""
    axes.set_yscale("log", nonpositive="mask")
    low, high = axes.get_ylim()
    steps = LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if high < 30 * low else (1, 2, 5))
    axes.yaxis.set_major_locator(MaxNLocator(6) if high < 4 * low else steps)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if high < 1.1 * low else short_amount(value))


def to_svg(figure: Figure, name: str) -> Markup:
    """Return the figure as an SVG element. Ids begin with `name`, colours are CSS variables, paths have one decimal."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", r"<svg \1 aria-hidden='true'>", svg, count=1)
    svg = re.sub(r"\s*<style type=\"text/css\">.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]).replace(" \n", " "), svg)
    svg = svg.replace('id="', f'id="{name}-').replace('"#', f'"#{name}-').replace("url(#", f"url(#{name}-")
    for key, colour in PALETTE.items():
        svg = svg.replace(colour, f"var(--{key})")
    return Markup(svg)  # safe: it contains no text that a user could choose
