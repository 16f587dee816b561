"""Financial turbulence: how unlike the recent past a day's returns are, names and their correlations taken together.

Kritzman and Li, "Skulls, Financial Turbulence, and Risk Management", Financial Analysts Journal 66 (2010).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from finpod.features.bars import Bars
from finpod.features.rolling import DUST, delay, rolling_mean

_CHUNK = 64
"""Days worked on at once; bounds the memory at _CHUNK * window * N floats."""
_LEAST_SHRINKAGE = 1e-6
"""Keeps the matrix invertible where the estimated intensity is zero."""


def turbulence(bars: Bars, window: int, *, per_name: bool = False) -> Tensor:
    """[T, 1] squared Mahalanobis distance of the day's returns from those of the `window` sessions before it.

    d_t = z' R^-1 z over the day's members that have a return on every one of those sessions and today; z are today's
    returns, standardised by mean and deviation of the window, and R their correlations in it, shrunk towards no
    correlation by the intensity of Ledoit and Wolf (2004). `per_name` divides by the number of names. NaN where there is
    no such name. Members alone count, for the columns of a point-in-time market include names that join later.
    """
    returns = bars.returns
    known = returns.isfinite()
    full = delay(rolling_mean(known.double(), window), 1, 0.0) == 1
    usable = full & known & bars.member
    values = returns.where(known, 0.0)
    parts = [returns.new_full((min(window, len(returns)), 1), math.nan)]
    for first in range(window, len(returns), _CHUNK):
        days = slice(first, min(first + _CHUNK, len(returns)))
        history = values[days.start - window : days.stop - 1].unfold(0, window, 1)
        distance, names = _distance(history, values[days], usable[days])
        parts.append(distance / names if per_name else distance)
    return torch.cat(parts)


def _distance(history: Tensor, today: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
    """Distances [B, 1] and numbers of names [B, 1] from history [B, N, W], today [B, N] and the names to use [B, N].

    Names not used are left in place as zeros: the shapes, and with them the order of every sum, do not depend on who
    is a member, and a row stays the same to the last bit whatever comes after it.
    """
    window = history.shape[-1]
    mean = history.mean(dim=-1, keepdim=True)
    centred = history - mean
    deviation = centred.square().mean(dim=-1, keepdim=True).sqrt()
    used = usable.unsqueeze(-1) & (deviation > DUST)
    scale = used / deviation.where(used, 1.0)
    centred = centred * scale
    correlation = centred @ centred.mT / window
    names = used.sum(dim=1)
    intensity = _shrinkage(centred, correlation, names)
    shrunk = correlation * (1 - intensity)
    shrunk.diagonal(dim1=-2, dim2=-1).add_(intensity.squeeze(-1))
    factor, failed = torch.linalg.cholesky_ex(shrunk)
    whitened = torch.linalg.solve_triangular(factor, (today.unsqueeze(-1) - mean) * scale, upper=False)
    distance = whitened.square().sum(dim=1)
    return distance.where((names > 0) & (failed == 0).unsqueeze(-1), math.nan), names


def _shrinkage(standardised: Tensor, correlation: Tensor, names: Tensor) -> Tensor:
    """[B, 1, 1] intensity b2 / d2 of Ledoit and Wolf (2004), "A well-conditioned estimator for large-dimensional
    covariance matrices", for standardised returns [B, N, W], whose target is the identity."""
    window = standardised.shape[-1]
    size = correlation.square().sum(dim=(-2, -1))
    fourth = standardised.square().sum(dim=1).square().mean(dim=-1)
    error = (fourth - size) / window
    apart = size - names.squeeze(-1)
    intensity = (error / apart.where(apart > DUST, 1.0)).where(apart > DUST, 1.0)
    return intensity.clamp(_LEAST_SHRINKAGE, 1.0)[:, None, None]
