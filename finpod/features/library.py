"""The default features: scale-free, from open, close and volume, with a year of warm-up.

None holds a price level, which would carry the splits and dividends of later years: multiplying all prices of a name by
a constant (and dividing its volume by it) changes nothing. Regressions are on the equal-weight return m of the day's
members.
"""

from __future__ import annotations

import torch
from torch import Tensor

from finpod.features.bars import Bars, Definition
from finpod.features.rolling import DUST, Moments, delay, log, ratio, rolling_max, rolling_mean, rolling_moments
from finpod.features.turbulence import turbulence


def log_return(bars: Bars, sessions: int, skip: int = 0) -> Tensor:
    """ln(c_{t-skip} / c_{t-sessions}), each the last close at or before its row."""
    return delay(bars.log_last_close, skip) - delay(bars.log_last_close, sessions)


def market_beta(moments: Moments) -> Tensor:
    """cov(r, m) / var(m); NaN where the market does not move."""
    return ratio(moments.deviation[0, 1], moments.deviation[1, 1], DUST * moments.rows)


def residual_deviation(moments: Moments) -> Tensor:
    """Standard deviation (ddof 2) of what the regression of r on m leaves."""
    left = moments.deviation[0, 0] - market_beta(moments) * moments.deviation[0, 1]
    return (left.clamp(min=0) / (moments.rows - 2).clamp(min=1)).sqrt()


def residual_momentum(bars: Bars) -> Tensor:
    """Momentum of the part of a return that is not the market's, per unit of its own noise, after Blitz, Huij and
    Martens, "Residual momentum" (2011); one regression serves for beta and residuals."""
    moments = Moments(*(delay(part, 21) for part in bars.moments(231)))
    alpha = moments.mean[0] - market_beta(moments) * moments.mean[1]
    return ratio(alpha, residual_deviation(moments)) * moments.rows.sqrt()


def smooth_momentum(bars: Bars, window: int) -> Tensor:
    """Slope of the log price over time, times how straight the line is (Clenow, "Stocks on the Move", 2015)."""
    price = bars.close.log()
    time = bars.row.to(price).expand_as(price)
    spread = rolling_moments(torch.stack([time, price]), window).deviation
    slope = spread[0, 1] / spread[0, 0]
    return 252 * slope * ratio(slope * spread[0, 1], spread[1, 1], DUST)


def volatility(bars: Bars, window: int) -> Tensor:
    """Standard deviation (ddof 1) of the one-session returns."""
    moments = bars.moments(window)
    return (moments.deviation[0, 0] / (moments.rows - 1).clamp(min=1)).sqrt()


def residual_return(bars: Bars, window: int) -> Tensor:
    """Sum of the returns beyond beta times the market's, beta from the last 252 sessions."""
    moments = bars.moments(window)
    return (moments.mean[0] - market_beta(bars.moments(252)) * moments.mean[1]) * moments.rows


def illiquidity(bars: Bars, window: int) -> Tensor:
    """Price move per currency traded, after Amihud, "Illiquidity and stock returns" (2002), in logarithm."""
    return log(rolling_mean(ratio(bars.returns.abs(), bars.dollar_volume), window))


def intraday_return(bars: Bars, window: int) -> Tensor:
    """Mean log return from open to close."""
    return rolling_mean((bars.close / bars.table("open")).log(), window)


def volume_shock(bars: Bars, short: int, long: int) -> Tensor:
    """Recent against usual dollar volume, in logarithm."""
    return log(rolling_mean(bars.dollar_volume, short)) - log(rolling_mean(bars.dollar_volume, long))


SCALE_FREE: dict[str, Definition] = {
    "residual_momentum_12_1": Definition(
        residual_momentum, 252, "a sqrt(n) / s of r = a + b m + e over the sessions t-251..t-21, s = sd(e)"
    ),
    "momentum_12_1": Definition(lambda bars: log_return(bars, 252, skip=21), 252, "ln(c_{t-21} / c_{t-252})"),
    "return_63": Definition(lambda bars: log_return(bars, 63), 63, "ln(c_t / c_{t-63})"),
    "return_126": Definition(lambda bars: log_return(bars, 126), 126, "ln(c_t / c_{t-126})"),
    "return_252": Definition(lambda bars: log_return(bars, 252), 252, "ln(c_t / c_{t-252})"),
    "smooth_momentum_126": Definition(
        lambda bars: smooth_momentum(bars, 126), 125, "252 slope R2 of the regression of ln c on time over 126 sessions"
    ),
    "high_252_distance": Definition(
        lambda bars: (bars.close / rolling_max(bars.close, 252)).log(), 251, "ln(c_t / max_252(c))"
    ),
    "beta_252": Definition(lambda bars: market_beta(bars.moments(252)), 252, "cov_252(r, m) / var_252(m)"),
    "idiosyncratic_volatility_63": Definition(
        lambda bars: residual_deviation(bars.moments(63)), 63, "sd(e) of r = a + b m + e over 63 sessions"
    ),
    "volatility_21": Definition(lambda bars: volatility(bars, 21), 21, "sd_21(r)"),
    "volatility_63": Definition(lambda bars: volatility(bars, 63), 63, "sd_63(r)"),
    "log_dollar_volume_63": Definition(
        lambda bars: log(rolling_mean(bars.dollar_volume, 63)), 62, "ln mean_63(c volume)", tables=("volume",)
    ),
    "amihud_63": Definition(lambda bars: illiquidity(bars, 63), 63, "ln mean_63(|r| / (c volume))", tables=("volume",)),
    "turbulence_63": Definition(
        lambda bars: turbulence(bars, 63, per_name=True),
        64,
        "squared Mahalanobis distance of the members' returns from the 63 sessions before, per name",
        "pooled",
        market_wide=True,
    ),
    "residual_return_21": Definition(lambda bars: residual_return(bars, 21), 252, "sum_21(r - beta_252 m)"),
    "return_5": Definition(lambda bars: log_return(bars, 5), 5, "ln(c_t / c_{t-5})"),
    "intraday_return_21": Definition(
        lambda bars: intraday_return(bars, 21), 20, "mean_21(ln(c / o))", tables=("open",)
    ),
    "volume_shock_5": Definition(
        lambda bars: volume_shock(bars, 5, 63), 62, "ln(mean_5(c volume) / mean_63(c volume))", tables=("volume",)
    ),
}
"""The default set by name: slow features first, then context."""
