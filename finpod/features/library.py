"""Built-in features: the default set, which is scale-free, and the published set, which is that of the FinRL papers.

Prices are adjusted. Returns are those of one row: a session, or a bar of intraday data.

The default set has no price levels, because adjusted price levels reveal later splits and dividends. If all prices of
an asset are multiplied by a constant and its volume is divided by it, no default feature changes. The published set has
price levels: the `stockstats` indicators and the turbulence of these papers. Use it only to reproduce their results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from finpod.features.rolling import (
    DUST,
    Moments,
    delay,
    exponential_mean,
    log,
    ratio,
    rolling_absolute_deviation,
    rolling_max,
    rolling_mean,
    rolling_moments,
)
from finpod.market.data import MarketData, forward_fill

Kind = Literal["cross", "pooled"]
_CHUNK = 64
"""Number of rows that `turbulence` computes at once. For N assets, memory grows with _CHUNK * N * (N + window)."""
_LEAST_SHRINKAGE = 1e-6
"""Least shrinkage intensity in `turbulence`. It keeps the correlation matrix invertible."""


@dataclass(frozen=True)
class Definition:
    """Definition of a feature: how it is computed and scaled, and what it needs."""

    function: Callable[[Bars], Tensor]
    """Function from `Bars` to float64 values [T, N], or [T, 1] for a market-wide feature; NaN where undefined."""
    warm_up: int
    """Number of rows from an asset's first bar (from row 0 for a market-wide feature) to the feature's first value."""
    kind: Kind = "cross"
    """Kind of scaling: "cross", by statistics of the day's members, or "pooled", by those of all training rows."""
    tables: tuple[str, ...] = ()
    """Names of the tables of `MarketData` that the feature needs besides the closes."""
    market_wide: bool = False
    """True for a feature with one value per row, the same for every asset."""


class Bars:
    """The tables of one market as float64 tensors [T rows, N assets] on a device; NaN where there is no bar."""

    def __init__(self, market: MarketData, device: str | torch.device = "cpu") -> None:
        self._market = market
        self._moments: dict[int, Moments] = {}
        self.device = torch.device(device)
        self.close = self.table("close")
        """[T, N] adjusted close."""
        self.has_bar = self.close.isfinite()
        """[T, N] bool mask, True where there is a close."""
        self.member = torch.tensor(np.array(market.member), device=self.device)
        """[T, N] bool mask of the members of the universe in each row."""
        self.row = torch.arange(len(self.close), device=self.device).unsqueeze(-1)
        """[T, 1] row numbers."""

    def table(self, name: str) -> Tensor:
        """Return one of the market's tables [T, N] by its name; the table must exist."""
        return torch.tensor(np.array(getattr(self._market, name)), dtype=torch.float64, device=self.device)

    def last(self, name: str) -> Tensor:
        """Return the last value of a table at or before each row [T, N]; NaN before the asset's first value."""
        return torch.tensor(forward_fill(getattr(self._market, name)), dtype=torch.float64, device=self.device)

    def change(self, name: str) -> Tensor:
        """Return the change of a table [T, N] since the asset's previous bar."""
        return self.table(name) - delay(self.last(name), 1)

    @cached_property
    def age(self) -> Tensor:
        """[T, N] number of rows since the asset's first bar; negative before this bar."""
        return self.row - self.has_bar.int().argmax(dim=0)

    @cached_property
    def returns(self) -> Tensor:
        """[T, N] returns close_t / close_{t-1} - 1; NaN unless rows t-1 and t have a bar, so no return spans a gap."""
        return self.close / delay(self.close, 1) - 1

    @cached_property
    def market_return(self) -> Tensor:
        """[T, 1] market return: equal-weight mean return of the day's members; NaN where no member has a return."""
        counted = self.member & self.returns.isfinite()
        total = self.returns.where(counted, 0.0).sum(dim=1, keepdim=True)
        return total / counted.sum(dim=1, keepdim=True)  # 0 / 0 is NaN

    @property
    def dollar_volume(self) -> Tensor:
        """[T, N] close times volume, in currency."""
        return self.close * self.table("volume")

    def moments(self, window: int) -> Moments:
        """Return the joint moments of asset returns (first) and market returns (second) over the last `window` rows."""
        if window not in self._moments:
            pair = torch.stack([self.returns, self.market_return.expand_as(self.returns)])
            self._moments[window] = rolling_moments(pair, window)
        return self._moments[window]


def log_return(bars: Bars, sessions: int, skip: int = 0) -> Tensor:
    """Return ln(c_{t-skip} / c_{t-sessions}) [T, N] for each row t. c_s is the last close at or before row s."""
    price = bars.last("close").log()
    return delay(price, skip) - delay(price, sessions)


def market_beta(moments: Moments) -> Tensor:
    """Return beta cov(r, m) / var(m) [T, N] of asset returns r and market returns m; NaN where m is constant."""
    return ratio(moments.deviation[0, 1], moments.deviation[1, 1], DUST * moments.rows)


def residual_deviation(moments: Moments) -> Tensor:
    """Return the standard deviation (ddof 2) [T, N] of residuals of asset returns regressed on market returns."""
    squares = moments.deviation[0, 0] - market_beta(moments) * moments.deviation[0, 1]
    return (squares.clamp(min=0) / (moments.rows - 2).clamp(min=1)).sqrt()


def residual_momentum(bars: Bars) -> Tensor:
    """Return sqrt(n) * a / sd(e) [T, N] of the regression r = a + b m + e over the n returns in rows t-251 to t-21.

    r is an asset's return, and m the market's. See Blitz, Huij and Martens, "Residual momentum" (2011).
    """
    moments = Moments(*(delay(part, 21) for part in bars.moments(231)))
    alpha = moments.mean[0] - market_beta(moments) * moments.mean[1]
    return ratio(alpha, residual_deviation(moments)) * moments.rows.sqrt()


def smooth_momentum(bars: Bars, window: int) -> Tensor:
    """Return 252 * slope * R^2 [T, N] of log closes regressed on row numbers (Clenow, "Stocks on the Move", 2015)."""
    price = bars.close.log()
    time = bars.row.to(price).expand_as(price)
    deviation = rolling_moments(torch.stack([time, price]), window).deviation
    slope = deviation[0, 1] / deviation[0, 0]
    return 252 * slope * ratio(slope * deviation[0, 1], deviation[1, 1], DUST)


def standard_deviation(moments: Moments) -> Tensor:
    """Return the standard deviation (ddof 1) [T, N] of the first variable in `moments`, such as an asset's returns."""
    return (moments.deviation[0, 0] / (moments.rows - 1).clamp(min=1)).sqrt()


def residual_return(bars: Bars, window: int) -> Tensor:
    """Return the sum [T, N] of return - beta * market return over `window` rows. The last 252 rows determine beta."""
    moments = bars.moments(window)
    return (moments.mean[0] - market_beta(bars.moments(252)) * moments.mean[1]) * moments.rows


def illiquidity(bars: Bars, window: int) -> Tensor:
    """Return the log of the mean [T, N] of |return| / dollar volume over the last `window` rows (Amihud, 2002)."""
    return log(rolling_mean(ratio(bars.returns.abs(), bars.dollar_volume), window))


def log_mean_volume(bars: Bars, window: int) -> Tensor:
    """Return the logarithm [T, N] of the mean dollar volume of the last `window` rows."""
    return log(rolling_mean(bars.dollar_volume, window))


def turbulence(returns: Tensor, member: Tensor, window: int, *, per_asset: bool = False) -> Tensor:
    """Return squared Mahalanobis distances [T, 1] of daily returns [T, N] from the previous `window` rows.

    A distance tells how unusual returns are (Kritzman and Li, "Skulls, Financial Turbulence, and Risk Management",
    2010). It is z' R^-1 z. z are the day's returns, standardised by their mean and standard deviation in the window. R
    is the correlation matrix of the window, shrunk towards the identity by the intensity b2 / d2 of Ledoit and Wolf, "A
    well-conditioned estimator for large-dimensional covariance matrices" (2004). The assets are the day's members
    (`member` [T, N]) that have a return on the day and on every row of the window, and whose returns in the window are
    not all equal. Without such assets, the distance is NaN. `per_asset` divides the distance by their number.
    """
    known = returns.isfinite()
    full = delay(rolling_mean(known.double(), window), 1, 0.0) == 1
    usable = full & known & member
    values = returns.where(known, 0.0)
    parts = [returns.new_full((min(window, len(returns)), 1), math.nan)]
    for first in range(window, len(returns), _CHUNK):
        days = slice(first, min(first + _CHUNK, len(returns)))
        history = values[days.start - window : days.stop - 1].unfold(0, window, 1)
        distance, count = _distance(history, values[days], usable[days])
        parts.append(distance / count if per_asset else distance)
    return torch.cat(parts)


def _distance(history: Tensor, today: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distances and the numbers of used assets, both [B, 1], on B days (see `turbulence`).

    `history` [B, N, W] has the returns of the W rows before each day, and `today` [B, N] those of the day. Assets that
    are not `usable` [B, N] count as zeros but keep their columns. So the order of sums is the same for any members, and
    later rows do not change a single bit of an earlier row.
    """
    window = history.shape[-1]
    mean = history.mean(dim=-1, keepdim=True)
    centred = history - mean
    deviation = centred.square().mean(dim=-1, keepdim=True).sqrt()
    used = usable.unsqueeze(-1) & (deviation > DUST)
    scale = used / deviation.where(used, 1.0)
    centred = centred * scale
    correlation = centred @ centred.mT / window
    count = used.sum(dim=1)
    size = correlation.square().sum(dim=(-2, -1))
    error = (centred.square().sum(dim=1).square().mean(dim=-1) - size) / window  # b2 of Ledoit and Wolf
    spread = size - count.squeeze(-1)  # their d2
    intensity = (error / spread.where(spread > DUST, 1.0)).where(spread > DUST, 1.0)
    intensity = intensity.clamp(_LEAST_SHRINKAGE, 1.0)[:, None, None]
    shrunk = correlation * (1 - intensity)
    shrunk.diagonal(dim1=-2, dim2=-1).add_(intensity.squeeze(-1))
    factor, failed = torch.linalg.cholesky_ex(shrunk)
    whitened = torch.linalg.solve_triangular(factor, (today.unsqueeze(-1) - mean) * scale, upper=False)
    distance = whitened.square().sum(dim=1)
    return distance.where((count > 0) & (failed == 0).unsqueeze(-1), math.nan), count


SCALE_FREE: dict[str, Definition] = {
    "residual_momentum_12_1": Definition(residual_momentum, 252),
    "momentum_12_1": Definition(partial(log_return, sessions=252, skip=21), 252),
    "return_63": Definition(partial(log_return, sessions=63), 63),
    "return_126": Definition(partial(log_return, sessions=126), 126),
    "return_252": Definition(partial(log_return, sessions=252), 252),
    "smooth_momentum_126": Definition(partial(smooth_momentum, window=126), 125),
    "high_252_distance": Definition(lambda bars: (bars.close / rolling_max(bars.close, 252)).log(), 251),
    "beta_252": Definition(lambda bars: market_beta(bars.moments(252)), 252),
    "idiosyncratic_volatility_63": Definition(lambda bars: residual_deviation(bars.moments(63)), 63),
    "volatility_21": Definition(lambda bars: standard_deviation(bars.moments(21)), 21),
    "volatility_63": Definition(lambda bars: standard_deviation(bars.moments(63)), 63),
    "log_dollar_volume_63": Definition(partial(log_mean_volume, window=63), 62, tables=("volume",)),
    "amihud_63": Definition(partial(illiquidity, window=63), 63, tables=("volume",)),
    "turbulence_63": Definition(
        lambda bars: turbulence(bars.returns, bars.member, 63, per_asset=True), 64, "pooled", market_wide=True
    ),
    "residual_return_21": Definition(partial(residual_return, window=21), 252),
    "return_5": Definition(partial(log_return, sessions=5), 5),
    "intraday_return_21": Definition(
        lambda bars: rolling_mean((bars.close / bars.table("open")).log(), 21), 20, tables=("open",)
    ),
    "volume_shock_5": Definition(
        lambda bars: log_mean_volume(bars, 5) - log_mean_volume(bars, 63), 62, tables=("volume",)
    ),
}
"""Features of the default set, by name."""


def macd(bars: Bars) -> Tensor:
    """Return EMA_12 - EMA_26 [T, N] of closes; 0 if all are equal. EMA_n is `exponential_mean` at rate 2 / (n + 1)."""
    difference = exponential_mean(bars.close, 2 / 13) - exponential_mean(bars.close, 2 / 27)
    return difference.masked_fill(difference.abs() <= DUST * bars.close, 0.0)


def bollinger(bars: Bars, width: float, window: int = 20) -> Tensor:
    """Return the mean of the last `window` closes plus `width` times their standard deviation (ddof 1) [T, N]."""
    moments = rolling_moments(bars.close.unsqueeze(0), window)
    return moments.mean[0] + width * standard_deviation(moments)


def relative_strength(bars: Bars, window: int) -> Tensor:
    """Return 100 U / (U + D) [T, N]; NaN until a close moves. U, D: exponential means of rises and falls of closes."""
    change = bars.change("close")
    up = exponential_mean(change.clamp(min=0), 1 / window)
    down = exponential_mean((-change).clamp(min=0), 1 / window)
    return 100 * ratio(up, up + down, bars.close)


def commodity_channel(bars: Bars, window: int) -> Tensor:
    """Return (p - mean) / (0.015 * mean absolute deviation) [T, N]; p = (high + low + close) / 3; NaN if p is flat."""
    typical = (bars.table("high") + bars.table("low") + bars.close) / 3
    distance = typical - rolling_mean(typical, window)
    return ratio(distance, 0.015 * rolling_absolute_deviation(typical, window), bars.close)


def directional_movement(bars: Bars, window: int) -> Tensor:
    """Return the directional movement index, 100 |P - M| / (P + M) [T, N]; NaN if P + M is zero.

    P is the exponential mean of rises of the high that exceed the fall of the low. M is that of falls of the low that
    exceed the rise of the high. Other moves are 0. Usually, P and M are divided by the true range, which cancels here.
    """
    up, down = bars.change("high").clamp(min=0), (-bars.change("low")).clamp(min=0)
    plus = exponential_mean(up * (up > down), 2 / (window + 1))
    minus = exponential_mean(down * (down > up), 2 / (window + 1))
    return 100 * ratio((plus - minus).abs(), plus + minus, bars.close)


PUBLISHED: dict[str, Definition] = {
    "macd": Definition(macd, 25, "pooled"),
    "boll_ub": Definition(partial(bollinger, width=2), 19, "pooled"),
    "boll_lb": Definition(partial(bollinger, width=-2), 19, "pooled"),
    "rsi_30": Definition(partial(relative_strength, window=30), 30, "pooled"),
    "cci_30": Definition(partial(commodity_channel, window=30), 29, "pooled", ("high", "low")),
    "dx_30": Definition(partial(directional_movement, window=30), 30, "pooled", ("high", "low")),
    "close_30_sma": Definition(lambda bars: rolling_mean(bars.close, 30), 29, "pooled"),
    "close_60_sma": Definition(lambda bars: rolling_mean(bars.close, 60), 59, "pooled"),
    "turbulence": Definition(lambda bars: turbulence(bars.returns, bars.member, 252), 253, "pooled", market_wide=True),
}
"""Features of the published set by name, in their published order."""

FEATURES: dict[str, Definition] = {**SCALE_FREE, **PUBLISHED}
"""All built-in features by name."""
SETS: dict[str, tuple[str, ...]] = {"default": tuple(SCALE_FREE), "published": tuple(PUBLISHED)}
"""Name of a set -> names of its features."""
