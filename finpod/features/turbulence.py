"""Financial turbulence: how unusual the returns of a day are, given the recent volatilities and correlations of the assets.

Kritzman and Li, "Skulls, Financial Turbulence, and Risk Management", Financial Analysts Journal 66 (2010).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from finpod.features.rolling import DUST, delay, rolling_mean

_CHUNK = 64
"""Number of days computed at once. It limits the memory to _CHUNK * window * N floats."""
_LEAST_SHRINKAGE = 1e-6
"""Least shrinkage intensity, which keeps the matrix invertible."""


def turbulence(returns: Tensor, member: Tensor, window: int, *, per_asset: bool = False) -> Tensor:
    """Return the squared Mahalanobis distance [T, 1] of each day's returns [T, N] from those of the previous `window` sessions.

    d_t = z' R^-1 z. z are today's returns, standardised by their mean and standard deviation in the window. R is the
    correlation matrix of the window, shrunk towards the identity by the intensity b2 / d2 of Ledoit and Wolf, "A
    well-conditioned estimator for large-dimensional covariance matrices" (2004). The assets are the day's members (`member`
    [T, N]) that have a return today and on every session of the window. `per_asset` divides by their number. NaN if there
    are none.
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
    """Return (distances, numbers of assets used), both [B, 1], from history [B, N, W], today [B, N] and `usable` [B, N].

    Assets that are not used stay in place as zeros. Shapes, and thus the order of every sum, do not depend on the members.
    Later rows therefore do not change a single bit of a row.
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
