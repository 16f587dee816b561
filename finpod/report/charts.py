"""The report's charts as inline SVG, drawn by matplotlib and pyfolio.

Charts hold no names a user could choose: those stand in the page's legends.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.dates import date2num
from matplotlib.ticker import FuncFormatter, MaxNLocator

from finpod.figures import percent, ratio
from finpod.measures import Array, period_returns, rolling_sharpe, rolling_volatility, simple_returns
from finpod.periods import session_dates
from finpod.report.growth import drawdown_chart, equity_chart, relative_chart
from finpod.report.pages import Picture
from finpod.report.rivals import fan_chart, fees_chart, sizes_chart
from finpod.report.svg import (
    CURVES,
    PALETTE,
    PERCENT,
    Chart,
    bars,
    curves_of,
    date_axis,
    new_figure,
    recolour,
    to_svg,
)

if TYPE_CHECKING:
    from finpod.result import BacktestResult

HALF_YEAR = 126
"""Sessions in the rolling windows of the report; a quarter of a year for histories that are shorter than one year."""

_FEWEST_MONTHS = 3


def rolling_window(result: BacktestResult) -> int:
    """Returns in the rolling charts."""
    return HALF_YEAR if len(result.returns) >= 2 * HALF_YEAR else HALF_YEAR // 2


def sharpe_chart(result: BacktestResult) -> Chart:
    """Rolling Sharpe ratio."""
    window = rolling_window(result)
    lines = {
        name: rolling_sharpe(
            simple_returns(curve), window, risk_free=result.risk_free, periods_per_year=result.periods_per_year
        )
        for name, curve in curves_of(result).items()
    }
    return _rolling_chart(result, lines, f"Rolling Sharpe ratio, {window} returns", "sharpe")


def volatility_chart(result: BacktestResult) -> Chart:
    """Rolling volatility."""
    window = rolling_window(result)
    lines = {
        name: rolling_volatility(simple_returns(curve), window, periods_per_year=result.periods_per_year)
        for name, curve in curves_of(result).items()
    }
    return _rolling_chart(result, lines, f"Rolling volatility, {window} returns", "volatility", as_percent=True)


def years_chart(result: BacktestResult) -> Chart:
    """Return of each calendar year, side by side."""
    figure, axes = new_figure()
    dates = session_dates(result.equity.index)
    found = {name: period_returns(curve, dates, "year") for name, curve in curves_of(result).items()}
    first = found["strategy"][0][0].astype(int)
    for place, (name, (years, values)) in enumerate(found.items()):
        bars(axes, years.astype(int) - first + (place - 1) * 0.27 - 0.125, values, 0.25, PALETTE[name])
    labels = found["strategy"][0]
    step = -(-len(labels) // 8)
    axes.set_xticks(np.arange(len(labels))[::step], [str(year) for year in labels[::step]])
    axes.axhline(0, color=PALETTE["muted"], linewidth=0.8)
    margin = 0.7 + max(3 - len(labels), 0) / 2
    axes.set_xlim(-margin, len(labels) - 1 + margin)
    axes.yaxis.set_major_formatter(PERCENT)
    return Chart(
        "Return by calendar year",
        "Bars of the yearly returns; the same figures are in the table of years.",
        to_svg(figure, "years"),
        CURVES,
    )


def exposure_chart(result: BacktestResult) -> Chart:
    """Share of the account that is invested, and the largest single name."""
    figure, axes = new_figure()
    dates = session_dates(result.weights.index)
    invested = 1 - result.cash_weight.to_numpy()
    axes.fill_between(dates, invested, color=PALETTE["strategy"], alpha=0.22, linewidth=0)
    axes.plot(dates, invested, color=PALETTE["strategy"])
    axes.plot(dates, result.weights.max(axis=1), color=PALETTE["muted"], linewidth=1)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PERCENT)
    date_axis(axes, dates)
    return Chart(
        "Invested share (filled) and largest holding (line)",
        f"On average {percent(float(invested[1:].mean()))} of the account is invested.",
        to_svg(figure, "exposure"),
    )


def turnover_chart(result: BacktestResult) -> Chart:
    """Traded notional over equity, summed by month, or by day in a short history."""
    figure, axes = new_figure()
    dates = session_dates(result.turnover.index)
    unit = "month" if len(np.unique(dates.astype("datetime64[M]"))) > 3 else "day"
    if unit == "month":
        periods, inverse = np.unique(dates.astype("datetime64[M]"), return_inverse=True)
        sums = np.bincount(inverse, weights=result.turnover)
        bars(axes, date2num(periods), sums, 26, PALETTE["strategy"], alpha=0.8)
    else:
        bars(axes, date2num(dates) - 0.4, result.turnover.to_numpy(), 0.8, PALETTE["strategy"], alpha=0.8)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.set_ylim(bottom=0)
    date_axis(axes, session_dates(result.equity.index))
    return Chart(
        f"Turnover by {unit}",
        f"Traded notional over equity, both sides counted, by {unit}; "
        f"{float(result.turnover.sum()):.2f} times the account in all.",
        to_svg(figure, "turnover"),
    )


def months_chart(result: BacktestResult) -> Chart:
    """pyfolio's histogram of monthly returns."""
    title = "Distribution of monthly returns (dashed: mean)"
    periods, values = period_returns(result.equity, result.equity.index, "month")
    if len(periods) < _FEWEST_MONTHS:
        return Chart(title, f"Fewer than {_FEWEST_MONTHS} months.", "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipline is not needed; pandas deprecations inside pyfolio
        from pyfolio.plotting import plot_monthly_returns_dist

        figure, axes = new_figure()
        days = pd.DatetimeIndex(periods.astype("datetime64[ns]")).tz_localize("UTC")
        plot_monthly_returns_dist(pd.Series(values, days), ax=axes)
    recolour(axes, mean="danger")
    for line in axes.lines:
        if line.get_linestyle() == "-":  # pyfolio's line at zero
            line.set_color(PALETTE["ink"])
    axes.set_ylabel("")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{round(value, 4) + 0.0:g}%"))
    return Chart(
        title,
        f"Histogram of {len(values):,} monthly returns, counted upwards; their mean is {percent(float(values.mean()))}. The same "
        "figures are in the table of months.",
        to_svg(figure, "months"),
    )


def quantiles_chart(result: BacktestResult) -> Chart:
    """Box plots of daily, weekly (from Monday) and monthly returns.

    The same as pyfolio's, which takes longer for its weeks than all other charts together.
    """
    title = "Spread of daily, weekly and monthly returns"
    months = period_returns(result.equity, result.equity.index, "month")[1]
    if len(months) < _FEWEST_MONTHS:
        return Chart(title, f"Fewer than {_FEWEST_MONTHS} months.", "")
    daily = result.returns.to_numpy()
    week = (session_dates(result.returns.index).astype(np.int64) + 3) // 7
    weekly = np.multiply.reduceat(1 + daily, np.flatnonzero(np.diff(week, prepend=-1))) - 1
    figure, axes = new_figure()
    ink, fill = {"color": PALETTE["ink"], "linewidth": 0.9}, PALETTE["strategy"]
    parts = axes.boxplot(
        [daily, weekly, months],
        widths=0.6,
        patch_artist=True,
        boxprops={"facecolor": fill, "edgecolor": PALETTE["ink"], "alpha": 0.55, "linewidth": 0.6},
        medianprops=ink,
        whiskerprops=ink,
        capprops=ink,
        flierprops={"marker": "o", "markersize": 2.5, "markeredgecolor": PALETTE["muted"], "markeredgewidth": 0.6},
    )
    axes.set_xticks([1, 2, 3], ["Daily", "Weekly", "Monthly"])
    axes.yaxis.set_major_formatter(PERCENT)
    middles = ", ".join(percent(float(line.get_ydata()[0])) for line in parts["medians"])
    return Chart(
        title,
        f"Box plots: quartiles, whiskers at 1.5 times the quartile range, outliers beyond; the medians are {middles}.",
        to_svg(figure, "quantiles"),
    )


def _rolling_chart(
    result: BacktestResult, lines: dict[str, Array], title: str, name: str, *, as_percent: bool = False
) -> Chart:
    if not np.isfinite(lines["strategy"]).any():
        return Chart(title, "Too few returns, or returns that never vary.", "")
    figure, axes = new_figure()
    dates = session_dates(result.returns.index)
    for key, values in lines.items():
        axes.plot(dates, values, color=PALETTE[key], linewidth=0.9, zorder=4 if key == "strategy" else 3)
    axes.axhline(0, color=PALETTE["muted"], linewidth=0.8)
    if as_percent:
        axes.yaxis.set_major_formatter(PERCENT)
    date_axis(axes, dates)
    last = lines["strategy"][-1]
    return Chart(
        title,
        f"Last value of the strategy: {percent(last) if as_percent else ratio(last)}.",
        to_svg(figure, name),
        CURVES,
    )


CHARTS = (
    Picture("equity", "Value of the account", equity_chart, wide=True),
    Picture("drawdown", "Drawdown", drawdown_chart, wide=True),
    Picture("relative", "Relative to equal weight", relative_chart, wide=True),
    Picture("sharpe", "Rolling Sharpe ratio", sharpe_chart),
    Picture("volatility", "Rolling volatility", volatility_chart),
    Picture("years", "Return by calendar year", years_chart),
    Picture("exposure", "Invested share and largest holding", exposure_chart),
    Picture("turnover", "Turnover", turnover_chart),
    Picture("months", "Distribution of monthly returns", months_chart),
    Picture("quantiles", "Spread of daily, weekly and monthly returns", quantiles_chart),
    Picture(
        "fan",
        "Relative to the median random portfolio",
        fan_chart,
        wide=True,
        needed=lambda result: len(result.fan) > 0,
    ),
    Picture("fees", "CAGR by fee a side", fees_chart, needed=lambda result: bool(result.cost_sweep)),
    Picture("sizes", "CAGR by size of the account", sizes_chart, needed=lambda result: bool(result.capacity)),
)
"""The charts of a result, in the order in which they are drawn."""
