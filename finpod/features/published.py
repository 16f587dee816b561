"""The published indicators: the state of the FinRL papers and tutorials, as stockstats defines them.

They are taken on adjusted prices, levels included, which carry splits and dividends that came later: use them to repeat
published work, not to judge it. Windows count sessions; a change over a gap is taken from the last bar before it. Their
scaling is an affine map of the raw figure (mean and deviation of the training rows), as the raw figure was published.
"""

from __future__ import annotations

from torch import Tensor

from finpod.features.bars import Bars, Definition
from finpod.features.rolling import (
    DUST,
    delay,
    exponential_mean,
    forward_fill,
    ratio,
    rolling_absolute_deviation,
    rolling_mean,
    rolling_moments,
)
from finpod.features.turbulence import turbulence


def _change(table: Tensor) -> Tensor:
    """From each name's bar before."""
    return table - delay(forward_fill(table), 1)


def macd(bars: Bars) -> Tensor:
    """Moving average convergence divergence, without the signal line; the rounding of a constant price is zero."""
    apart = exponential_mean(bars.close, 2 / 13) - exponential_mean(bars.close, 2 / 27)
    return apart.masked_fill(apart.abs() <= DUST * bars.close, 0.0)


def bollinger(bars: Bars, widths: float, window: int = 20) -> Tensor:
    """Mean of the closes plus `widths` of their standard deviations (ddof 1)."""
    rows, mean, deviation = rolling_moments(bars.close.unsqueeze(0), window)
    return mean[0] + widths * (deviation[0, 0] / (rows - 1).clamp(min=1)).sqrt()


def relative_strength(bars: Bars, window: int) -> Tensor:
    """Relative strength index with Wilder's smoothing; 100 without a down move, NaN without any."""
    change = _change(bars.close)
    up = exponential_mean(change.clamp(min=0), 1 / window)
    down = exponential_mean((-change).clamp(min=0), 1 / window)
    return 100 * ratio(up, up + down, bars.close)


def commodity_channel(bars: Bars, window: int) -> Tensor:
    """Commodity channel index; NaN without any move."""
    typical = (bars.table("high") + bars.table("low") + bars.close) / 3
    away = typical - rolling_mean(typical, window)
    return ratio(away, 0.015 * rolling_absolute_deviation(typical, window), bars.close)


def directional_movement(bars: Bars, window: int) -> Tensor:
    """Directional movement index; the average true range of +DI and -DI cancels. NaN without directional move."""
    up = _change(bars.table("high")).clamp(min=0)
    down = (-_change(bars.table("low"))).clamp(min=0)
    plus = exponential_mean(up * (up > down), 2 / (window + 1))
    minus = exponential_mean(down * (down > up), 2 / (window + 1))
    return 100 * ratio((plus - minus).abs(), plus + minus, bars.close)


PUBLISHED: dict[str, Definition] = {
    "macd": Definition(macd, 25, "EMA_12(c) - EMA_26(c), EMA_n adjusted, rate 2 / (n + 1)", "pooled"),
    "boll_ub": Definition(lambda bars: bollinger(bars, 2), 19, "mean_20(c) + 2 sd_20(c)", "pooled"),
    "boll_lb": Definition(lambda bars: bollinger(bars, -2), 19, "mean_20(c) - 2 sd_20(c)", "pooled"),
    "rsi_30": Definition(
        lambda bars: relative_strength(bars, 30),
        30,
        "100 U / (U + D), U and D exponential means (rate 1/30) of up and down moves of c",
        "pooled",
    ),
    "cci_30": Definition(
        lambda bars: commodity_channel(bars, 30),
        29,
        "(p - mean_30(p)) / (0.015 mean absolute deviation_30(p)), p = (h + l + c) / 3",
        "pooled",
        ("high", "low"),
    ),
    "dx_30": Definition(
        lambda bars: directional_movement(bars, 30),
        30,
        "100 |P - M| / (P + M), P and M EMA_30 of the up moves of h and down moves of l that exceed the other",
        "pooled",
        ("high", "low"),
    ),
    "close_30_sma": Definition(lambda bars: rolling_mean(bars.close, 30), 29, "mean_30(c)", "pooled"),
    "close_60_sma": Definition(lambda bars: rolling_mean(bars.close, 60), 59, "mean_60(c)", "pooled"),
    "turbulence": Definition(
        lambda bars: turbulence(bars, 252),
        253,
        "squared Mahalanobis distance of the members' returns from the 252 sessions before",
        "pooled",
        market_wide=True,
    ),
}
"""The published set by name, in its published order."""
