"""Built-in features with formulas: the default set, which is scale-free, and the published set of the FinRL papers.

Formulas use c, o, h, l for adjusted close, open, high and low, r for the one-session return, m for the market return
(equal-weight mean of r over the day's members), mean_n for the mean of n sessions. In intraday data, session means bar.

The default set has no price levels, because adjusted price levels reveal later splits and dividends. If all prices of
an asset are multiplied by a constant and its volume is divided by it, no default feature changes. The published set has
price levels. It has the indicators (of `stockstats`) and turbulence of FinRL's papers. Use it only to reproduce them.
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
"""Number of rows that `turbulence` computes at once. The memory grows with _CHUNK * N * (N + window)."""
_LEAST_SHRINKAGE = 1e-6
"""Least shrinkage intensity of `turbulence`, which keeps the correlation matrix invertible."""


@dataclass(frozen=True)
class Definition:
    """One built-in feature."""

    function: Callable[[Bars], Tensor]
    """Function of `Bars` that returns [T, N] ([T, 1] if market-wide) float64, NaN where undefined, never infinite."""
    warm_up: int
    """Number of rows from an asset's first bar (if market-wide: from row 0) to the feature's first value."""
    kind: Kind = "cross"
    """Scaling: "cross" across the day's members, or "pooled" by mean and standard deviation of the training rows."""
    tables: tuple[str, ...] = ()
    """Names of the tables of `MarketData` that the feature needs besides the closes."""
    market_wide: bool = False
    """True for a feature with one value per row, the same for every asset."""


class Bars:
    """The tables of one market as float64 tensors [T, N] on a device; NaN where there is no bar."""

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
        """[T, N] r = c_t / c_{t-1} - 1; NaN unless rows t-1 and t have a bar, so that no return spans a gap."""
        return self.close / delay(self.close, 1) - 1

    @cached_property
    def market_return(self) -> Tensor:
        """[T, 1] m: equal-weight mean of the returns of the day's members; NaN where no member has a return."""
        counted = self.member & self.returns.isfinite()
        total = self.returns.where(counted, 0.0).sum(dim=1, keepdim=True)
        return total / counted.sum(dim=1, keepdim=True)  # 0 / 0 is NaN

    @property
    def dollar_volume(self) -> Tensor:
        """[T, N] close times volume, in currency."""
        return self.close * self.table("volume")

    def moments(self, window: int) -> Moments:
        """Return the joint moments of the returns r and m over the last `window` rows."""
        if window not in self._moments:
            pair = torch.stack([self.returns, self.market_return.expand_as(self.returns)])
            self._moments[window] = rolling_moments(pair, window)
        return self._moments[window]


def log_return(bars: Bars, sessions: int, skip: int = 0) -> Tensor:
    """Return ln(c_{t-skip} / c_{t-sessions}) [T, N], with the last close at or before each of the two rows."""
    price = bars.last("close").log()
    return delay(price, skip) - delay(price, sessions)


def market_beta(moments: Moments) -> Tensor:
    """Return the beta cov(r, m) / var(m) [T, N]; NaN where the market does not move."""
    return ratio(moments.deviation[0, 1], moments.deviation[1, 1], DUST * moments.rows)


def residual_deviation(moments: Moments) -> Tensor:
    """Return the standard deviation (ddof 2) [T, N] of the residuals of the regression of r on m."""
    squares = moments.deviation[0, 0] - market_beta(moments) * moments.deviation[0, 1]
    return (squares.clamp(min=0) / (moments.rows - 2).clamp(min=1)).sqrt()


def residual_momentum(bars: Bars) -> Tensor:
    """Return sqrt(n) * a / sd(e) [T, N], where r = a + b m + e is the regression over the n sessions t-251..t-21.

    See Blitz, Huij and Martens, "Residual momentum" (2011).
    """
    moments = Moments(*(delay(part, 21) for part in bars.moments(231)))
    alpha = moments.mean[0] - market_beta(moments) * moments.mean[1]
    return ratio(alpha, residual_deviation(moments)) * moments.rows.sqrt()


def smooth_momentum(bars: Bars, window: int) -> Tensor:
    """Return 252 * slope * R2 [T, N] of the regression of ln c on row numbers (Clenow, "Stocks on the Move", 2015)."""
    price = bars.close.log()
    time = bars.row.to(price).expand_as(price)
    deviation = rolling_moments(torch.stack([time, price]), window).deviation
    slope = deviation[0, 1] / deviation[0, 0]
    return 252 * slope * ratio(slope * deviation[0, 1], deviation[1, 1], DUST)


def standard_deviation(moments: Moments) -> Tensor:
    """Return the standard deviation (ddof 1) [T, N] of the first variable in `moments`."""
    return (moments.deviation[0, 0] / (moments.rows - 1).clamp(min=1)).sqrt()


def residual_return(bars: Bars, window: int) -> Tensor:
    """Return the sum of r - beta m over the last `window` sessions [T, N]. The last 252 sessions determine beta."""
    moments = bars.moments(window)
    return (moments.mean[0] - market_beta(bars.moments(252)) * moments.mean[1]) * moments.rows


def illiquidity(bars: Bars, window: int) -> Tensor:
    """Return ln mean_n(|r| / (c volume)) [T, N], n = `window` (Amihud, "Illiquidity and stock returns", 2002)."""
    return log(rolling_mean(ratio(bars.returns.abs(), bars.dollar_volume), window))


def log_mean_volume(bars: Bars, window: int) -> Tensor:
    """Return ln mean_n(c volume) [T, N], n = `window`."""
    return log(rolling_mean(bars.dollar_volume, window))


def turbulence(returns: Tensor, member: Tensor, window: int, *, per_asset: bool = False) -> Tensor:
    """Return squared Mahalanobis distances [T, 1] of daily returns [T, N] from the previous `window` sessions.

    A distance tells how unusual returns are (Kritzman and Li, "Skulls, Financial Turbulence, and Risk Management",
    2010). d_t = z' R^-1 z. z are today's returns, standardised by their mean and standard deviation in the window. R is
    the correlation matrix of the window, shrunk towards the identity by the intensity b2 / d2 of Ledoit and Wolf, "A
    well-conditioned estimator for large-dimensional covariance matrices" (2004). The assets are the day's members
    (`member` [T, N]) that have a return today and on every session of the window, and whose returns in the window are
    not all equal. Without such assets, the distance is NaN. `per_asset` divides it by the number of assets.
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
    """Return (distances, numbers of used assets), both [B, 1], from history [B, N, W], today and `usable` [B, N].

    Unused assets keep their place, with zeros. Shapes, and thus the order of every sum, do not depend on the members.
    Later rows therefore do not change a single bit of an earlier row.
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
    """Return EMA_12(c) - EMA_26(c) [T, N]; 0 if c is constant. EMA_n is an `exponential_mean` of rate 2 / (n + 1)."""
    difference = exponential_mean(bars.close, 2 / 13) - exponential_mean(bars.close, 2 / 27)
    return difference.masked_fill(difference.abs() <= DUST * bars.close, 0.0)


def bollinger(bars: Bars, width: float, window: int = 20) -> Tensor:
    """Return the mean of the last `window` closes plus `width` times their standard deviation (ddof 1) [T, N]."""
    moments = rolling_moments(bars.close.unsqueeze(0), window)
    return moments.mean[0] + width * standard_deviation(moments)


def relative_strength(bars: Bars, window: int) -> Tensor:
    """Return 100 U / (U + D) [T, N]. U and D are exponential means of the rises and falls of c. NaN until c moves."""
    change = bars.change("close")
    up = exponential_mean(change.clamp(min=0), 1 / window)
    down = exponential_mean((-change).clamp(min=0), 1 / window)
    return 100 * ratio(up, up + down, bars.close)


def commodity_channel(bars: Bars, window: int) -> Tensor:
    """Return (p - mean(p)) / (0.015 mean absolute deviation(p)) [T, N], p = (h + l + c) / 3; NaN if p did not move."""
    typical = (bars.table("high") + bars.table("low") + bars.close) / 3
    distance = typical - rolling_mean(typical, window)
    return ratio(distance, 0.015 * rolling_absolute_deviation(typical, window), bars.close)


def directional_movement(bars: Bars, window: int) -> Tensor:
    """Return the directional movement index, 100 |P - M| / (P + M) [T, N]; NaN if P + M is zero.

    P is the EMA of the rises of h that exceed the fall of l. M is the EMA of the falls of l that exceed the rise of h.
    Other moves count as zero. The usual definition divides P and M by the true range, which cancels.
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
"""Features of the published set, by name and in their published order."""

FEATURES: dict[str, Definition] = {**SCALE_FREE, **PUBLISHED}
"""All built-in features by name."""
SETS: dict[str, tuple[str, ...]] = {"default": tuple(SCALE_FREE), "published": tuple(PUBLISHED)}
"""Name of a set -> names of its features."""
