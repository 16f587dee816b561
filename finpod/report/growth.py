"""Charts of the account over time: its value, its falls, and where it stands against the equal weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from finpod.figures import percent
from finpod.measures import Array, drawdowns
from finpod.periods import session_dates
from finpod.report.svg import (
    CURVES,
    PALETTE,
    PERCENT,
    WIDE_TEXT,
    Chart,
    curves_of,
    date_axis,
    log_axis,
    new_figure,
    to_svg,
)

if TYPE_CHECKING:
    from finpod.result import BacktestResult


def equity_chart(result: BacktestResult) -> Chart:
    """Value of the account on a log scale, with the training, validation and test days inside the window shaded."""
    figure, axes = new_figure(wide=True, height=3.2)
    dates = session_dates(result.equity.index)
    for name, curve in curves_of(result).items():
        axes.plot(
            dates,
            np.where(curve > 0, curve, np.nan),
            color=PALETTE[name],
            zorder=4 if name == "strategy" else 3,
            linewidth=1.7 if name == "strategy" else 1.1,
            marker="o" if len(dates) < 30 else None,
            markersize=2.5,
        )
    log_axis(axes)
    date_axis(axes, dates)
    _shade_windows(axes, result, dates)
    if (result.equity <= 0).any():
        axes.axvline(dates[int((result.equity <= 0).to_numpy().argmax())], color=PALETTE["danger"], linewidth=1.5)
    return Chart(
        "Value of the account (log scale)",
        "Lines of the value of the account, the benchmark and equal weight; all start from the same cash.",
        to_svg(figure, "equity"),
        CURVES,
        wide=True,
    )


def drawdown_chart(result: BacktestResult) -> Chart:
    """Fall below the running peak."""
    figure, axes = new_figure(wide=True, height=1.9)
    dates = session_dates(result.equity.index)
    for name, curve in curves_of(result).items():
        axes.plot(dates, drawdowns(curve), color=PALETTE[name], linewidth=0.8, zorder=4 if name == "strategy" else 3)
    axes.fill_between(dates, drawdowns(result.equity), color=PALETTE["strategy"], alpha=0.15, linewidth=0)
    axes.set_ylim(top=0)
    axes.yaxis.set_major_formatter(PERCENT)
    date_axis(axes, dates)
    return Chart(
        "Drawdown",
        f"Fall below the running peak; the deepest is {percent(result.metrics.max_drawdown)}.",
        to_svg(figure, "drawdown"),
        CURVES,
        wide=True,
    )


def relative_chart(result: BacktestResult) -> Chart:
    """Strategy and benchmark over the equal weight, less 1, each from its first date; shows what lies close together."""
    title, curves = "Relative to equal weight", curves_of(result)
    equal = curves.pop("equal-weight")
    lines = {name: _over(curve, equal) for name, curve in curves.items()}
    known = lines["strategy"][np.isfinite(lines["strategy"])]
    if len(known) < 2:
        return Chart(title, "There is no equal weight to set it against.", "", wide=True)
    figure, axes = new_figure(wide=True, height=1.9)
    dates = session_dates(result.equity.index)
    for name, line in lines.items():
        axes.plot(dates, line, color=PALETTE[name], linewidth=1.1, zorder=4 if name == "strategy" else 3)
    axes.axhline(0, color=PALETTE["equal-weight"], linewidth=1)
    axes.yaxis.set_major_formatter(PERCENT)
    date_axis(axes, dates)
    return Chart(
        title,
        f"Value of the account over that of equal weight, less 1; at the end {percent(float(known[-1]))}, between "
        f"{percent(float(known.min()))} and {percent(float(known.max()))} on the way.",
        to_svg(figure, "relative"),
        ("strategy", "benchmark"),
        wide=True,
    )


def _over(curve: Array, other: Array) -> Array:
    """[T] curve / other, less 1, from the first date on which both have a value; NaN beside a missing or lost one."""
    ratio = np.divide(curve, other, out=np.full(len(curve), np.nan), where=other > 0)
    known = ratio[np.isfinite(ratio)]
    return ratio / known[0] - 1 if known.size and known[0] > 0 else ratio * np.nan


def _shade_windows(axes: Axes, result: BacktestResult, dates: Array) -> None:
    """Shade and bound the days inside the backtest on which the strategy was made (red) or which it had not seen (blue)."""
    spans: list[tuple[str, Any, Any, str]] = [
        (name, np.datetime64(first), np.datetime64(last), "danger")
        for name, (first, last) in result.windows.items()
        if name in ("train", "validation")
    ]
    if result.trained_until is not None:
        spans.append(("test", np.datetime64(result.trained_until) + 1, dates[-1], "test"))
    inside = [(name, max(first, dates[0]), min(last, dates[-1]), colour) for name, first, last, colour in spans]
    inside = [span for span in inside if span[1] < span[2]]
    if inside:  # room for the names above the curves
        low, high = axes.get_ylim()
        room = 0.04 + 0.08 * len(inside)
        axes.set_ylim(top=high * (high / low) ** (room / (1 - room)))
    for line, (name, first, last, colour) in enumerate(sorted(inside, key=lambda span: span[1])):
        axes.axvspan(
            first, last, color=PALETTE[colour], alpha=0.1 if name == "validation" else 0.06, linewidth=0, zorder=0
        )
        for edge in sorted({first, last} - {dates[0], dates[-1]}):
            axes.axvline(edge, color=PALETTE[colour], linewidth=0.9, linestyle=(0, (4, 3)), zorder=2)
        axes.text(
            first,
            0.97 - 0.08 * line,
            f" {name} window",
            transform=axes.get_xaxis_transform(),
            va="top",
            color=PALETTE[colour],
            fontsize=WIDE_TEXT,
        )
