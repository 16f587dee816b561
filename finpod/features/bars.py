"""`Bars`: a market as float64 tensors on a device, with what several features share; `Definition` of a feature."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from finpod.features.rolling import Moments, delay, forward_fill, rolling_moments
from finpod.market.data import MarketData

Kind = Literal["cross", "pooled"]


@dataclass(frozen=True)
class Definition:
    """What one built-in feature is."""

    function: Callable[[Bars], Tensor]
    """Bars -> [T, N] float64, or [T, 1] for a feature of the whole market; NaN where undefined, never infinite."""
    warm_up: int
    """Sessions that must lie between a name's first bar (the first row, for a whole market) and the first value."""
    formula: str
    """One line; c, o, h, l are adjusted close, open, high and low, r the one-session return, m the market's."""
    kind: Kind = "cross"
    """Scaled across the day's members, or by mean and deviation of the training rows."""
    tables: tuple[str, ...] = ()
    """What it needs of `MarketData` besides the closes."""
    market_wide: bool = False
    """One value a day, the same for every name."""


class Bars:
    """The tables of one market as float64 tensors [T, N]; NaN where there is no bar."""

    def __init__(self, market: MarketData, device: str | torch.device = "cpu") -> None:
        self._market = market
        self._moments: dict[int, Moments] = {}
        self.device = torch.device(device)
        self.close = self.table("close")
        """[T, N] adjusted close."""
        self.has_bar = self.close.isfinite()
        """[T, N] bool, there is a close."""
        self.member = torch.tensor(np.array(market.member), device=self.device)
        """[T, N] bool, in the universe on that day."""
        self.row = torch.arange(len(self.close), device=self.device).unsqueeze(-1)
        """[T, 1] row numbers."""

    def table(self, name: str) -> Tensor:
        """[T, N] one of the market's tables, which must be there."""
        return torch.tensor(np.array(getattr(self._market, name)), dtype=torch.float64, device=self.device)

    @cached_property
    def age(self) -> Tensor:
        """[T, N] sessions since the name's first bar; meaningless before it."""
        return self.row - self.has_bar.int().argmax(dim=0)

    @cached_property
    def log_last_close(self) -> Tensor:
        """[T, N] logarithm of the last close at or before the row."""
        return forward_fill(self.close).log()

    @cached_property
    def returns(self) -> Tensor:
        """[T, N] c_t / c_{t-1} - 1 where both sessions have a bar: a return over a gap is no one-session return."""
        return self.close / delay(self.close, 1) - 1

    @cached_property
    def market_return(self) -> Tensor:
        """[T, 1] equal-weight mean of the returns of the day's members; NaN where none has one."""
        counted = self.member & self.returns.isfinite()
        total = self.returns.where(counted, 0.0).sum(dim=1, keepdim=True)
        count = counted.sum(dim=1, keepdim=True)
        return (total / count).where(count > 0, math.nan)

    @cached_property
    def dollar_volume(self) -> Tensor:
        """[T, N] close times volume, in currency as traded."""
        return self.close * self.table("volume")

    def moments(self, window: int) -> Moments:
        """Joint moments of (r, m), a name's return and the market's, over the last `window` rows."""
        if window not in self._moments:
            pair = torch.stack([self.returns, self.market_return.expand_as(self.returns)])
            self._moments[window] = rolling_moments(pair, window)
        return self._moments[window]
