"""`fan`: random portfolios that trade as much as a strategy does, on the days it does, with bets of the same size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from finpod.errors import InputError
from finpod.measures import Array
from finpod.seeds import require_seed
from finpod.trading.execution import Account
from finpod.trading.ledger import value
from finpod.trading.simulate import Path, Terms, Window, simulate

COUNT = 200
"""Portfolios in a fan."""
HELD_AT_ONCE = 2**21
"""Shares held in memory in one table of a path: portfolios are run a few at a time."""
HALVINGS = 8
"""Of the interval in which the turn of a portfolio is sought."""
LEAN = 0.5, 1.5
"""Bounds of the correction of the effective number that is aimed at."""
_SPREADS = np.r_[0.0, np.geomspace(0.05, 100, 60)]
"""Standard deviations of log weights, from equal parts to one name."""


class Fan(NamedTuple):
    """What R random portfolios made of the same days."""

    equity: pd.DataFrame
    """[n + 1, R] at each close; without rows if there is no fan."""
    turnover: Array
    """[R] mean of traded notional / equity over the sessions; the strategy's own, but for what cannot be matched."""
    effective_names: Array
    """[R] mean of 1 / sum of squared shares of what is invested, over the closes at which something is."""
    reason: str
    """Why there is no fan: "intraday", "never_traded" or "one_asset"; empty if there is one."""


class Habits(NamedTuple):
    """How an account traded, step by step."""

    turnover: Array
    """[n] traded notional / equity at the fill."""
    invested: Array
    """[n] share of the account in names at the close after it."""
    effective: Array
    """[n] effective number of names then; NaN without any."""


def fan(path: Path, window: Window, terms: Terms, *, count: int = COUNT, seed: int = 0) -> Fan:
    """Run `count` long-only portfolios of random weights beside one account, with its turnover on each day it traded.

    The weights over the members with a bar on the decision day are logistic-normal (Aitchison and Shen 1980): in
    proportion to exp(s z), with s such that the effective number of names is the account's, and z [N] standard normal.
    Each portfolio turns its z by the angle that makes the trade as large as the account's on that day, and has the
    account's share invested. Where less than the return to its own weights would take is to be traded, it goes a part of
    the way. What a fill makes of the trade is made good by the next ones. Raises InputError for a count below one.
    """
    require_seed(seed)
    if count < 1:
        raise InputError(f"count is {count}; it must be a whole number from 1 on", argument="count")
    if window.market.bars_per_session > 1:
        return _none("intraday")
    habits = habits_of(path, window)
    among = (window.execution.member & window.execution.has_bar).numpy()
    eligible = among[window.decision_rows[habits.turnover > 0]].sum(axis=1)
    if not len(eligible):
        return _none("never_traded")
    if eligible.max() < 2:
        return _none("one_asset")
    spreads = _spread_table(int(np.median(eligible[eligible > 1])), seed)
    size = max(HELD_AT_ONCE // path.shares.numel(), 1)
    parts = []
    for first in range(0, count, size):
        accounts = min(size, count - first)
        random = np.random.default_rng([seed, first])
        decide = _Portfolios(habits, spreads, window, accounts, random)
        own = simulate(window.execution, window.first, window.last, decide, terms, (accounts,))
        parts.append((own.equity.numpy(), own.turnover.numpy().mean(axis=0), _mean_effective(own, window)))
    equity, turnover, effective = (np.concatenate(columns, axis=-1) for columns in zip(*parts, strict=True))
    names = [f"random {r + 1}" for r in range(count)]
    dates = pd.DatetimeIndex(window.dates, name="date")
    return Fan(pd.DataFrame(equity, dates, names), turnover, effective, "")


def habits_of(path: Path, window: Window) -> Habits:
    """The habits of one account, from its path."""
    invested, effective = _concentration(path, window)
    return Habits(path.turnover.numpy(), invested[1:], effective[1:])


def turned(
    latent: Array, noise: Array, held: Array, beside: Array, budget: Array, invested: float, spread: float
) -> tuple[Array, Array, Array]:
    """Weights [R, n] to trade toward, the part [R] of the way to go, and the z [R, n] they come from.

    The weights lie `budget` [R] away from those `held` [R, n], as sums of absolute differences, the `beside` [R] held in
    other names being sold. `latent` is z, `noise` an independent one; z turns to cos(a) z + sin(a) noise, with the angle
    a in [0, pi] found by halving. If z as it is lies farther away than `budget`, it stays, and a part of the way is gone.
    """

    def weights(angle: Array) -> Array:
        raw = np.exp((spread * np.cos(angle))[:, None] * latent + (spread * np.sin(angle))[:, None] * noise)
        raw *= invested / raw.sum(axis=1, keepdims=True)
        return raw

    def distance(target: Array) -> Array:
        return np.abs(target - held).sum(axis=1) + beside

    low, high = np.zeros(len(held)), np.full(len(held), np.pi)
    target = weights(low)
    part = np.minimum(budget / np.maximum(distance(target), 1e-300), 1.0)
    still = part < 1
    if still.all():
        return target, part, latent
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        near = distance(weights(middle)) <= budget
        low, high = np.where(near, middle, low), np.where(near, high, middle)
    low[still] = 0.0
    return weights(low), part, np.cos(low)[:, None] * latent + np.sin(low)[:, None] * noise


class _Portfolios:
    """The decisions of R random portfolios, as `simulate` asks for them."""

    def __init__(
        self, habits: Habits, spreads: Array, window: Window, accounts: int, random: np.random.Generator
    ) -> None:
        self.habits, self.spreads, self.window, self.random = habits, spreads, window, random
        self.latent = random.standard_normal((accounts, window.market.shape[1]))
        self.budget = np.zeros(accounts)
        """[R] what the account has traded until now and they have not."""
        self.lean = 1.0
        """Factor on the effective number that is aimed at, since turns of a given size end at wider weights."""
        self.last: tuple[int, Account] | None = None
        """Row of the last decision, and what stood before it."""

    def __call__(self, _step: int, row: int, seen: Account) -> Tensor | None:
        execution, step = self.window.execution, row + self.window.execution.lag - self.window.first
        names = np.flatnonzero((execution.member[row] & execution.has_bar[row]).numpy())
        if not (self.habits.turnover[step] > 0 and len(names)):
            return None
        self.budget += self.habits.turnover[step] - self._spent(row, seen)
        self.last = row, seen
        equity = value(seen.cash, seen.shares, execution.mark[row]).numpy()[:, None]
        held = (seen.shares * execution.mark[row]).numpy() / np.where(equity > 0, equity, 1.0)
        aim = float(np.nan_to_num(self.habits.effective[step], nan=1.0))
        inside = held[:, names]
        target, part, latent = turned(
            self.latent[:, names],
            self.random.standard_normal(inside.shape),
            inside,
            held.sum(axis=1) - inside.sum(axis=1),
            self.budget.clip(min=0),
            min(self.habits.invested[step], 1.0),
            float(np.interp(self.lean * aim / len(names), self.spreads[::-1], _SPREADS[::-1])),
        )
        self.latent[:, names] = latent
        weights = held * (1 - part)[:, None]
        weights[:, names] += part[:, None] * target
        if self.habits.invested[step] > 0:
            self._correct(aim, weights)
        weights[self.budget <= 0] = np.nan
        return torch.from_numpy(weights)

    def _correct(self, aim: float, weights: Array) -> None:
        """Lean toward fewer names if the weights came out wider than they should be, and the other way."""
        found = weights.sum(axis=1) ** 2 / np.maximum((weights**2).sum(axis=1), 1e-300)
        self.lean = float(np.clip(self.lean * (aim / max(found.mean(), 1.0)) ** 0.3, *LEAN))

    def _spent(self, row: int, seen: Account) -> Array:
        """[R] turnover of the last decision's fill, which is how far the shares have moved, delistings apart."""
        if self.last is None:
            return np.zeros(len(self.budget))
        execution, (decided, before) = self.window.execution, self.last
        price = execution.price[decided + 1]
        moved = (seen.shares - before.shares).abs() * price * ~execution.delisted[decided + 1 : row + 1].any(0)
        return (moved.sum(-1) / value(before.cash, before.shares, price).clamp(min=1e-300)).numpy()


def _spread_table(names: int, seed: int) -> Array:
    """[S] effective number of `names` log-normal weights as a share of them, for each of the S `_SPREADS`; decreasing."""
    drawn = np.random.default_rng([seed, names]).standard_normal((128, names))
    raw = np.exp(_SPREADS[:, None, None] * (drawn - drawn.max(axis=-1, keepdims=True)))
    return (raw.sum(axis=-1) ** 2 / (raw**2).sum(axis=-1)).mean(axis=-1) / names


def _concentration(path: Path, window: Window) -> tuple[Array, Array]:
    """Share invested and effective number of names [n + 1, ...] at each close; the latter NaN where nothing is held."""
    mark = window.execution.mark[window.first : window.last + 1]
    worth = path.shares * mark.reshape(len(mark), *(1,) * (path.shares.ndim - 2), -1)
    total, squares = worth.sum(-1), worth.square_().sum(-1)
    invested = (total / path.equity).where(path.equity > 0, 0.0)
    return invested.numpy(), (total.square() / squares).where(total > 0, torch.nan).numpy()


def _mean_effective(path: Path, window: Window) -> Array:
    """[R] mean of the effective number of names over the closes at which something is held; NaN if there is none."""
    effective = _concentration(path, window)[1]
    held = np.isfinite(effective)
    count = held.sum(axis=0)
    return np.where(count > 0, np.where(held, effective, 0).sum(axis=0) / count.clip(min=1), np.nan)


def _none(why: str) -> Fan:
    return Fan(pd.DataFrame(), np.empty(0), np.empty(0), why)
