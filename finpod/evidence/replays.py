"""Replay decisions at other costs and account sizes, and run random portfolios on the same days.

A replay trades the recorded decisions; `decide` is not called again. Therefore, a replay does not show that a strategy
that reads its cash or positions might decide differently in another account.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from finpod.measures import Array, metrics
from finpod.trading.execution import Account
from finpod.trading.ledger import value
from finpod.trading.simulate import Path, Terms, Window, simulate

FEES = (0.0, 5.0, 10.0, 20.0, 50.0)
"""Fees of the cost sweep, in basis points per side."""
SIZES = (1e6, 1e7, 1e8, 1e9)
"""Account sizes of `capacity`: initial cash, in currency."""
IMPACT = 1.0
"""Coefficient of market impact in `capacity` if the costs of the run have no market impact."""
COUNT = 200
"""Number of random portfolios in a report."""
HELD_AT_ONCE = 2**21
"""Number of closes x portfolios x assets up to which random portfolios are simulated together, to limit memory."""
HALVINGS = 8
"""Number of bisection steps that `turned` takes to find its angle."""
LEAN = 0.5, 1.5
"""Bounds of `_Decisions.lean`, the factor on the target for the effective number of assets."""
_SPREADS = np.r_[0.0, np.geomspace(0.05, 100, 60)]
"""Standard deviations of log weights: 0 gives equal weights, and the largest puts almost all weight into one asset."""

Figures = dict[str, dict[str, float]]
"""Strategy -> figure -> value; NaN if undefined."""


def cost_sweep(
    targets: Mapping[str, Tensor], window: Window, terms: Terms, *, risk_free: float = 0.0
) -> dict[float, Figures]:
    """Replay decisions at several fees. Return fee in bps -> strategy -> 'total_return', 'cagr', 'sharpe' and 'rank'.

    The strategy with the highest Sharpe ratio has rank 1. The fees are `FEES` and the fee of the run. `terms` has the
    costs, cash and rounding of the run. `targets` has the weights [n, N] that each strategy decided for N assets at the
    n steps of the window (`Path.targets`).
    """
    swept = {}
    for fee in sorted({*FEES, float(terms.costs.fee_bps)}):
        swept[fee], _ = _replayed(targets, window, replace(terms, costs=replace(terms.costs, fee_bps=fee)), risk_free)
    return swept


def capacity(
    targets: Mapping[str, Tensor], window: Window, terms: Terms, *, risk_free: float = 0.0
) -> dict[float, Figures]:
    """Replay decisions at several account sizes. Return initial cash (from `SIZES`) -> strategy -> figures.

    The figures are those of `cost_sweep`, plus 'costs': yearly costs as a fraction of the account. The coefficient of
    market impact is that of the run, or `IMPACT` if the run has none. The result is empty if the data have no volumes.
    """
    if window.execution.impact is None:
        return {}
    costs, figures = terms.costs if terms.costs.impact else replace(terms.costs, impact=IMPACT), {}
    for size in SIZES:
        figures[size], path = _replayed(targets, window, replace(terms, cash=size, costs=costs), risk_free)
        paid = path.cost.sum(-1) / path.equity[:-1].clamp(min=1e-300)
        shares = paid.sum(0) * (window.market.periods_per_year / len(paid))
        for name, share in zip(targets, shares.tolist(), strict=True):
            figures[size][name]["costs"] = share
    return figures


def replay(targets: Mapping[str, Tensor], window: Window, terms: Terms) -> Path:
    """Return the history of S accounts in the window, one for each of the S strategies in `targets`.

    An account trades the recorded weights [n, N] of its strategy; a row of NaN is no trade. With the terms of the
    original run, the account has the same history as in that run.
    """
    ready = torch.stack([*targets.values()], 1).to(window.execution.mark)
    idle = ready.isnan().all(-1).all(-1).tolist()

    def decide(_step: int, row: int, _seen: Account) -> Tensor | None:
        step = row + window.execution.lag - window.first
        return None if idle[step] else ready[step]

    return simulate(window.execution, window.first, window.last, decide, terms, (len(targets),))


def _replayed(targets: Mapping[str, Tensor], window: Window, terms: Terms, risk_free: float) -> tuple[Figures, Path]:
    """Return (figures by name, path) of the replayed accounts. Equal Sharpe ratios share a rank; NaN ranks last."""
    path = replay(targets, window, terms)
    figures = metrics(path.equity.numpy(), risk_free=risk_free, periods_per_year=window.market.periods_per_year)
    table = pd.DataFrame({key: getattr(figures, key) for key in ("total_return", "cagr", "sharpe")}, list(targets))
    table["rank"] = table["sharpe"].rank(ascending=False, method="min", na_option="bottom").astype(int)
    return {name: row._asdict() for name, row in zip(targets, table.itertuples(index=False), strict=True)}, path


def random_portfolios(
    path: Path, window: Window, terms: Terms, *, count: int = COUNT
) -> tuple[pd.DataFrame, str, float]:
    """Return (equity [n + 1, `count`], reason, share) of random long-only portfolios with the turnover of an account.

    The reason is "" if portfolios were drawn. Otherwise, the frame is empty, and the reason is "intraday",
    "never_traded" or "one_asset". The share is the mean turnover of the portfolios as a fraction of that of the account
    `path`; it is below 1 if the account replaces all its assets at once, which random scores can hardly do.

    The weights of the members with a bar on the decision day are logistic-normal (Aitchison and Shen 1980):
    proportional to exp(s z), where z [N] is standard normal. The factor s is chosen so that the effective number of
    assets, 1 / sum(weights^2), is that of the account. At each trade, noise is mixed into z until the turnover equals
    that of the account (see `turned`). The portfolios invest the same fraction as the account. If a fill trades too
    little, later trades add the rest. The seed is fixed.
    """
    eligible = _eligible(path, window)
    for reason, holds in (
        ("intraday", window.market.bars_per_session > 1),
        ("never_traded", not len(eligible)),
        ("one_asset", eligible.max(initial=0) < 2),
    ):
        if holds:
            return pd.DataFrame(), reason, math.nan
    size = max(HELD_AT_ONCE // path.shares.numel(), 1)
    groups = [(first, min(size, count - first)) for first in range(0, count, size)]
    paths = [drawn(path, window, terms, accounts, first) for first, accounts in groups]
    dates, equity = pd.DatetimeIndex(window.dates, name="date"), np.hstack([one.equity.numpy() for one in paths])
    share = np.hstack([one.turnover.numpy() for one in paths]).mean() / float(path.turnover.mean())
    return pd.DataFrame(equity, dates, [f"random {r + 1}" for r in range(count)]), "", share


def drawn(path: Path, window: Window, terms: Terms, accounts: int, seed: int) -> Path:
    """Return the history of `accounts` random portfolios, which trade on the same days as the account `path`."""
    eligible = _eligible(path, window)
    spreads = _spread_table(int(np.median(eligible[eligible > 1])))
    decide = _Decisions(path, spreads, window, accounts, np.random.default_rng([0, seed]))
    return simulate(window.execution, window.first, window.last, decide, terms, (accounts,))


def _eligible(path: Path, window: Window) -> Array:
    """Return the number of members with a bar on the decision day, for each decision that led to a trade."""
    return window.execution.among.numpy()[window.decision_rows[path.turnover.numpy() > 0]].sum(axis=1)


def turned(
    latent: Array, noise: Array, current: Array, beside: Array, budget: Array, invested: float, spread: float
) -> tuple[Array, Array, Array]:
    """Rotate the scores `latent` [R, n] of R portfolios towards `noise` until the trade has the turnover `budget` [R].

    Return (target weights [R, n], fraction of the trade to make [R], new scores z [R, n]), where n is the number of
    assets to choose from. Weights are proportional to exp(`spread` z) and sum to `invested`. The scores are
    z = cos(a) `latent` + sin(a) `noise`, and bisection finds the angle a in [0, pi]. The turnover is the sum of
    |target - `current`|, plus the weight `beside` [R] of all other assets, which are sold. If the turnover exceeds
    `budget` even at a = 0, z is `latent`, and only a fraction of the trade is made.
    """

    def weights(angle: Array) -> Array:
        raw = np.exp((spread * np.cos(angle))[:, None] * latent + (spread * np.sin(angle))[:, None] * noise)
        raw *= invested / raw.sum(axis=1, keepdims=True)
        return raw

    def distance(target: Array) -> Array:
        return np.abs(target - current).sum(axis=1) + beside

    low, high = np.zeros(len(current)), np.full(len(current), np.pi)
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


class _Decisions:
    """Callable for `simulate` that returns the decisions of R random portfolios with the turnover of an account."""

    def __init__(self, path: Path, spreads: Array, window: Window, accounts: int, random: np.random.Generator) -> None:
        self.spreads, self.window, self.random = spreads, window, random
        self.turnover = path.turnover.numpy()
        self.invested, self.effective = (figures[1:] for figures in concentration(path, window))
        self.latent = random.standard_normal((accounts, window.market.shape[1]))
        self.budget = np.zeros(accounts)
        """[R] turnover that each random portfolio still has to trade, to reach that of the strategy's account so far."""
        self.lean = 1.0
        """Factor on the target for the effective number of assets. It falls while the portfolios hold too many."""
        self.last: tuple[int, Account] | None = None
        """Row of the last decision, and the accounts before that decision."""

    def __call__(self, _step: int, row: int, seen: Account) -> Tensor | None:
        execution, step = self.window.execution, row + self.window.execution.lag - self.window.first
        names = np.flatnonzero(execution.among[row].numpy())
        if not (self.turnover[step] > 0 and len(names)):
            return None
        self.budget += self.turnover[step] - self._spent(row, seen)
        self.last = row, seen
        equity = value(seen.cash, seen.shares, execution.mark[row]).numpy()[:, None]
        current = (seen.shares * execution.mark[row]).numpy() / np.where(equity > 0, equity, 1.0)
        aim = float(np.nan_to_num(self.effective[step], nan=1.0))
        inside = current[:, names]
        target, part, latent = turned(
            self.latent[:, names],
            self.random.standard_normal(inside.shape),
            inside,
            current.sum(axis=1) - inside.sum(axis=1),
            self.budget.clip(min=0),
            min(self.invested[step], 1.0),
            float(np.interp(self.lean * aim / len(names), self.spreads[::-1], _SPREADS[::-1])),
        )
        self.latent[:, names] = latent
        weights = current * (1 - part)[:, None]
        weights[:, names] += part[:, None] * target
        if self.invested[step] > 0:  # aim at fewer assets if the portfolios hold too many, and at more if too few
            effective = weights.sum(axis=1) ** 2 / np.maximum((weights**2).sum(axis=1), 1e-300)
            self.lean = float(np.clip(self.lean * (aim / max(effective.mean(), 1.0)) ** 0.3, *LEAN))
        weights[self.budget <= 0] = np.nan
        return torch.from_numpy(weights)

    def _spent(self, row: int, seen: Account) -> Array:
        """Return the turnover [R] of the last fill, from the change in shares of assets that are not delisted yet."""
        if self.last is None:
            return np.zeros(len(self.budget))
        execution, (decided, before) = self.window.execution, self.last
        price = execution.price[decided + 1]
        moved = (seen.shares - before.shares).abs() * price * ~execution.delisted[decided + 1 : row + 1].any(0)
        return (moved.sum(-1) / value(before.cash, before.shares, price).clamp(min=1e-300)).numpy()


@cache
def _spread_table(names: int) -> Array:
    """Return (mean effective number of assets) / `names` for each standard deviation in `_SPREADS`.
    The mean is over random draws of `names` log-normal weights."""
    drawn = np.random.default_rng([0, names]).standard_normal((128, names))
    raw = np.exp(_SPREADS[:, None, None] * (drawn - drawn.max(axis=-1, keepdims=True)))
    return (raw.sum(axis=-1) ** 2 / (raw**2).sum(axis=-1)).mean(axis=-1) / names


def concentration(path: Path, window: Window) -> tuple[Array, Array]:
    """Return (invested fraction, effective number of assets) at each close. The number is NaN without positions."""
    mark = window.execution.mark[window.first : window.last + 1]
    worth = path.shares * mark.reshape(len(mark), *(1,) * (path.shares.ndim - 2), -1)
    total, squares = worth.sum(-1), worth.square_().sum(-1)
    invested = (total / path.equity).where(path.equity > 0, 0.0)
    return invested.numpy(), (total.square() / squares).where(total > 0, torch.nan).numpy()
