"""The charts of a backtest, and the table of their specifications.

The drawings contain no text from users, such as the names of strategies. The legends of the page show such text.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import datestr2num
from matplotlib.ticker import FuncFormatter, MaxNLocator

from finpod.figures import percent, ratio
from finpod.measures import Array, drawdowns, period_returns, rolling_sharpe, rolling_volatility, simple_returns
from finpod.periods import session_dates
from finpod.report.svg import EXPLAINED, PALETTE, WIDE_TEXT, Line, Shown, Spec
from finpod.result import BacktestResult

HALF_YEAR = 126
"""Number of returns in a rolling window; half as many if the history has fewer than two full windows."""
BANDS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the random portfolios' values: the edges of the 90 % and 50 % bands, and the median."""
FEWEST_MONTHS = 3
"""Smallest number of months for which a distribution is drawn."""


def _lines(result: BacktestResult, of: Callable[[Array], Array]) -> list[Line]:
    """Return lines for strategy, benchmark and equal weight. `of` computes the values from an equity curve [n + 1]."""
    curves = (result.equity, result.benchmark_equity, result.equal_weight_equity)
    return [Line(key, of(curve.to_numpy())) for key, curve in zip(EXPLAINED, curves, strict=False)]


def _equity(result: BacktestResult) -> Shown:
    alt = "Value of the account, the benchmark and equal weight. All start with the same cash."
    dates = session_dates(result.equity.index)
    return Shown(alt, dates, _lines(result, np.asarray), paint=partial(_mark_windows, result, dates))


def _mark_windows(result: BacktestResult, dates: Array, axes: Axes) -> None:
    """Shade training and validation windows in red and the test window in blue. A line marks the day of ruin."""
    spans = [(name, *result.windows[name], "danger") for name in ("train", "validation") if name in result.windows]
    if result.trained_until is not None:
        spans.append(("test", str(np.datetime64(result.trained_until) + 1), str(dates[-1]), "test"))
    first, last = str(dates[0]), str(dates[-1])
    inside = [(max(begin, first), min(end, last), name, key) for name, begin, end, key in spans]
    inside = sorted(span for span in inside if span[0] < span[1])
    if inside:  # leave room for the names above the curves
        low, high = axes.get_ylim()
        room = 0.04 + 0.08 * len(inside)
        axes.set_ylim(top=high * (high / low) ** (room / (1 - room)))
    for row, (begin, end, name, key) in enumerate(inside):
        colour, shade = PALETTE[key], 0.1 if name == "validation" else 0.06
        axes.axvspan(datestr2num(begin), datestr2num(end), color=colour, alpha=shade, linewidth=0, zorder=0)
        for edge in sorted({begin, end} - {first, last}):
            axes.axvline(datestr2num(edge), color=colour, linewidth=0.9, linestyle=(0, (4, 3)), zorder=2)
        style: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "va": "top", "fontsize": WIDE_TEXT}
        axes.text(datestr2num(begin), 0.97 - 0.08 * row, f" {name} window", color=colour, **style)
    if result.ruined_on:
        axes.axvline(datestr2num(result.ruined_on), color=PALETTE["danger"], linewidth=1.5)


def _drawdown(result: BacktestResult) -> Shown:
    alt = f"Drawdown from the running peak. The maximum is {percent(result.metrics.max_drawdown)}."
    return Shown(alt, session_dates(result.equity.index), _lines(result, drawdowns))


def _relative(result: BacktestResult) -> Shown | str:
    """Return a chart of strategy / equal weight - 1 and benchmark / equal weight - 1. It shows small differences."""
    equal = result.equal_weight_equity.where(result.equal_weight_equity > 0)
    quotients = [curve / equal for curve in (result.equity, result.benchmark_equity)]
    strategy, benchmark = (quotient.to_numpy() / quotient.bfill().iloc[0] - 1 for quotient in quotients)
    known = strategy[np.isfinite(strategy)]
    if len(known) < 2:
        return "There is no equal-weight portfolio to compare with."
    end, low, high = (percent(float(value)) for value in (known[-1], known.min(), known.max()))
    alt = f"Value of the account divided by equal weight, minus 1: {end} at the end, from {low} to {high} on all days."
    return Shown(alt, session_dates(result.equity.index), [Line("strategy", strategy), Line("benchmark", benchmark)])


def _random(result: BacktestResult) -> Shown | str | None:
    """Return a chart of the strategy and of bands of random portfolios, all relative to the median random portfolio.

    The portfolios hold similar assets, so their values in currency would look alike.
    """
    if not len(result.fan):
        return None
    drawn = result.fan.to_numpy(dtype=np.float64)
    drawn = drawn[:, (np.isfinite(drawn) & (drawn > 0)).all(axis=0)]
    if not drawn.shape[1]:
        return "All random portfolios fell to zero."
    low, lower, middle, upper, high = np.quantile(drawn, BANDS, axis=1)
    equity, dates = result.equity.to_numpy(), session_dates(result.fan.index)

    def paint(axes: Axes) -> None:
        for under, over, alpha in ((low, high, 0.18), (lower, upper, 0.3)):
            band = (under / middle - 1, over / middle - 1)
            axes.fill_between(dates, *band, color=PALETTE["random"], alpha=alpha, linewidth=0)

    total, *ends = (percent(curve[-1] / equity[0] - 1) for curve in (equity, lower, upper, low, high))
    alt = (
        f"The strategy ends at {total}. Of {drawn.shape[1]:,} random portfolios, 50 % end between {ends[0]} and "
        f"{ends[1]}, and 90 % between {ends[2]} and {ends[3]}."
    )
    line = Line("strategy", np.where(equity > 0, equity, np.nan) / middle - 1)
    return Shown(alt, dates, [line], paint=paint, legend=("strategy", "random"))


def _rolling(result: BacktestResult, of: Callable[..., Array], write: Callable[[float], str]) -> Shown | str:
    window = HALF_YEAR if len(result.returns) >= 2 * HALF_YEAR else HALF_YEAR // 2
    options = {"periods_per_year": result.periods_per_year}
    options |= {"risk_free": result.risk_free} if of is rolling_sharpe else {}

    def rolling(curve: Array) -> Array:
        # fill a missing benchmark price with the last one, as in an account; else every window around it is undefined
        known = pd.Series(curve).ffill(limit_area="inside").to_numpy()
        return of(simple_returns(known), window, **options)

    lines = _lines(result, rolling)
    if not np.isfinite(lines[0].values).any():
        return "Undefined: there are too few returns, or all are equal."
    alt = f"Last value of the strategy: {write(lines[0].values[-1])}."
    return Shown(alt, session_dates(result.returns.index), lines, note=f", {window} returns")


def _years(result: BacktestResult) -> Shown:
    dates = session_dates(result.equity.index)
    years = period_returns(result.equity, dates, "year")[0]

    def by_year(curve: Array) -> Array:
        known, values = period_returns(curve, dates, "year")
        return pd.Series(values, known).reindex(years).to_numpy()

    alt = "Bars of the yearly returns. The table of calendar years has the same figures."
    return Shown(alt, [str(year) for year in years], _lines(result, by_year), bar=0.81)


def _exposure(result: BacktestResult) -> Shown:
    invested = 1 - result.cash_weight.to_numpy()
    alt = f"On average {percent(float(invested[1:].mean()))} of the account is invested."
    lines = [Line("muted", result.weights.max(axis=1).to_numpy()), Line("strategy", invested)]
    return Shown(alt, session_dates(result.weights.index), lines)


def _turnover(result: BacktestResult) -> Shown:
    """Return a bar chart of the turnover of each month, or of each day if there are at most three months."""
    turnover = pd.Series(result.turnover.to_numpy(), session_dates(result.turnover.index))
    by_month = turnover.groupby(turnover.index.to_numpy().astype("datetime64[M]")).sum()
    unit, sums, middle, width = ("month", by_month, 14, 27.0) if len(by_month) > 3 else ("day", turnover, 0, 0.8)
    alt = f"Turnover by {unit}, buys and sells: traded notional / equity. The sum is {turnover.sum():.2f}."
    days, bars = session_dates(sums.index) + middle, [Line("strategy", sums.to_numpy())]
    return Shown(alt, days, bars, width, note=f" by {unit}")


def _months(result: BacktestResult) -> Shown | str:
    """Return a histogram of monthly returns, drawn by pyfolio."""
    periods, values = period_returns(result.equity, result.equity.index, "month")
    if len(periods) < FEWEST_MONTHS:
        return f"There are fewer than {FEWEST_MONTHS} months of returns."

    def paint(axes: Axes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zipline is missing but not needed; pyfolio has deprecated pandas calls
            from pyfolio.plotting import plot_monthly_returns_dist

            days = pd.DatetimeIndex(periods.astype("datetime64[ns]")).tz_localize("UTC")
            plot_monthly_returns_dist(pd.Series(values, days), ax=axes)
        axes.set(title="", xlabel="", ylabel="")
        if (legend := axes.get_legend()) is not None:
            legend.remove()
        for patch in axes.patches:
            patch.set(facecolor=PALETTE["strategy"], edgecolor=PALETTE["ink"], linewidth=0.5, alpha=0.55)
        for line in axes.lines:  # the line at zero is solid, the one at the mean is dashed
            line.set(color=PALETTE["ink" if line.get_linestyle() == "-" else "danger"], linewidth=0.9)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{round(value, 4) + 0.0:g}%"))

    return Shown(
        f"Histogram of {len(values):,} monthly returns, with mean {percent(float(values.mean()))}. The table of "
        "monthly returns has the same figures.",
        paint=paint,
    )


CHARTS = (
    Spec("equity", "Value of the account (log scale)", _equity, "log", wide=True, height=3.2),
    Spec("drawdown", "Drawdown", _drawdown, wide=True, height=1.9, fill=True, limits=(None, 0)),
    Spec("relative", "Relative to equal weight", _relative, wide=True, height=1.9, zero="equal-weight"),
    Spec("sharpe", "Rolling Sharpe ratio", lambda it: _rolling(it, rolling_sharpe, ratio), "plain", zero="muted"),
    Spec("volatility", "Rolling volatility", lambda it: _rolling(it, rolling_volatility, percent), zero="muted"),
    Spec("years", "Return by calendar year", _years, zero="muted"),
    Spec("exposure", "Invested fraction (filled) and largest holding (line)", _exposure, fill=True, limits=(0, 1.02)),
    Spec("turnover", "Turnover", _turnover, "times", limits=(0, None)),
    Spec("months", "Distribution of monthly returns (dashed: mean)", _months, "plain"),
    Spec("fan", "Relative to the median random portfolio", _random, wide=True, height=2.6, zero="random"),
)
"""The charts of a backtest."""
