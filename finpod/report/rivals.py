"""Charts of what else could have been done: random portfolios, other fees, other sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from finpod.backtesting.text import columns
from finpod.figures import amount, percent
from finpod.measures import Array
from finpod.periods import session_dates
from finpod.report.svg import CURVES, PALETTE, PERCENT, Chart, date_axis, new_figure, to_svg

if TYPE_CHECKING:
    from finpod.result import BacktestResult

BANDS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the random portfolios that are drawn."""
_FEWEST = 3
"""Fees or sizes below which a line says no more than the table."""


def fan_chart(result: BacktestResult) -> Chart:
    """Bands of random portfolios day by day and the strategy over them, each relative to the median of the portfolios.

    They all hold much the same market: side by side on one scale they could not be told apart.
    """
    title, curves = "Relative to the median random portfolio", _positive(result.fan.to_numpy(dtype=np.float64))
    if not curves.shape[1]:
        return Chart(title, "No random portfolio kept a value.", "", wide=True)
    figure, axes = new_figure(wide=True, height=2.6)
    dates = session_dates(result.fan.index)
    low, lower, middle, upper, high = np.quantile(curves, BANDS, axis=1)
    for under, over, alpha in ((low, high, 0.18), (lower, upper, 0.3)):
        axes.fill_between(
            dates, under / middle - 1, over / middle - 1, color=PALETTE["random"], alpha=alpha, linewidth=0
        )
    axes.axhline(0, color=PALETTE["random"], linewidth=1)
    own = result.equity.to_numpy()
    line = np.where(own > 0, own, np.nan) / middle - 1
    axes.plot(session_dates(result.equity.index), line, color=PALETTE["strategy"], linewidth=1.5)
    axes.yaxis.set_major_formatter(PERCENT)
    date_axis(axes, dates)
    start = own[0]
    return Chart(
        title,
        f"At the end the strategy stands at {percent(own[-1] / start - 1)}; half of the {curves.shape[1]:,} random portfolios "
        f"stand between {percent(lower[-1] / start - 1)} and {percent(upper[-1] / start - 1)}, nine in ten between "
        f"{percent(low[-1] / start - 1)} and {percent(high[-1] / start - 1)}.",
        to_svg(figure, "fan"),
        ("strategy", "random"),
        wide=True,
    )


def fees_chart(result: BacktestResult) -> Chart:
    """CAGR at each fee."""
    fees = {f"{fee:g} bps": figures for fee, figures in result.cost_sweep.items()}
    return growth_chart(result, fees, "CAGR by fee a side", "fees")


def sizes_chart(result: BacktestResult) -> Chart:
    """CAGR at each size of the account."""
    sizes = {amount(size): figures for size, figures in result.capacity.items()}
    return growth_chart(result, sizes, "CAGR by size of the account", "sizes")


def growth_chart(
    result: BacktestResult, found: Mapping[str, Mapping[str, Mapping[str, float]]], title: str, name: str
) -> Chart:
    """CAGR of each strategy at each fee or size, one line a strategy; the steps stand at equal distances."""
    names = sorted({strategy for at in found.values() for strategy in at})
    values = {
        strategy: np.array([_number(at.get(strategy, {}).get("cagr")) for at in found.values()]) for strategy in names
    }
    own = columns(result)["strategy"]
    known = values.get(own, np.array([np.nan]))
    if len(found) < _FEWEST or not np.isfinite(np.concatenate([*values.values()])).any():
        return Chart(title, f"Fewer than {_FEWEST} steps: see the table.", "")
    figure, axes = new_figure()
    known_as = {label: key.replace("_", "-") for key, label in columns(result).items()}
    keys = {strategy: known_as.get(strategy.replace("-", " "), known_as.get(strategy, "random")) for strategy in names}
    for strategy, line in values.items():
        colour = PALETTE[keys[strategy]]
        axes.plot(
            line,
            color=colour,
            linewidth=1.8 if strategy == own else 1,
            marker="o",
            markersize=3 if strategy == own else 2,
            zorder=4 if strategy == own else 3,
        )
    low, high = axes.get_ylim()
    if low < 0 < high:
        axes.axhline(0, color=PALETTE["muted"], linewidth=0.8)
    axes.set_xticks(range(len(found)), [str(step) for step in found])
    axes.set_xlim(-0.3, len(found) - 0.7)
    axes.yaxis.set_major_formatter(PERCENT)
    ends = f"from {percent(known[0])} to {percent(known[-1])}" if np.isfinite(known).all() else "n/a"
    return Chart(
        title,
        f"CAGR of the strategy {ends} over the steps; the Sharpe ratios are in the table.",
        to_svg(figure, name),
        tuple(key for key in (*CURVES, "random") if key in keys.values()),
    )


def _positive(curves: Array) -> Array:
    """[T, R] the curves that were finite and above zero throughout: the others have no place on a log scale."""
    return (
        curves[:, (np.isfinite(curves) & (curves > 0)).all(axis=0)] if curves.size else curves.reshape(len(curves), -1)
    )


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)
