"""The same decisions at other costs and with more money: at which fee, and at which size, is nothing left of a strategy?

What was decided is replayed and not decided anew. A strategy that heeds its account (a hand-written rule that looks at its
cash, an agent that sees what it holds) would decide a little otherwise with another one; what is shown is what its trades
would have cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from finpod.errors import InputError
from finpod.measures import Array, metrics
from finpod.trading.execution import Account
from finpod.trading.simulate import Path, Terms, Window, simulate

FEES = (0.0, 5.0, 10.0, 20.0, 50.0)
"""Commissions a side of the cost sweep, in basis points."""
SIZES = (1e6, 1e7, 1e8, 1e9)
"""Cash at the start of the capacity line, in currency."""

Figures = dict[str, dict[str, float]]
"""Strategy -> figure -> value; NaN is undefined."""


def cost_sweep(
    targets: Mapping[str, Tensor],
    window: Window,
    terms: Terms,
    *,
    fees: Sequence[float] | None = None,
    risk_free: float = 0.0,
) -> dict[float, Figures]:
    """Fee in bps -> strategy -> 'total_return', 'cagr', 'sharpe' and 'rank' (from 1, by Sharpe) at each commission a side;
    `fees` left out are `FEES` and the one of the terms.

    `targets` are the weights [n, N] that each strategy decided in the window (`Path.targets`); slippage, commission per
    share, impact and all other terms are those given. Raises InputError for shapes that are not the window's.
    """
    found = {}
    for fee in sorted({*FEES, float(terms.costs.fee_bps)}) if fees is None else fees:
        at_fee = replace(terms, costs=replace(terms.costs, fee_bps=fee))
        found[float(fee)] = _figures(list(targets), replay(targets, window, at_fee), window, risk_free)
    return found


def capacity(
    targets: Mapping[str, Tensor],
    window: Window,
    terms: Terms,
    *,
    sizes: Sequence[float] = SIZES,
    impact: float = 1.0,
    risk_free: float = 0.0,
) -> dict[float, Figures]:
    """Cash at the start -> strategy -> the figures of `cost_sweep` and 'costs' for accounts that start with each size.

    'costs' are those of a year as a fraction of the account. Square-root market impact is that of the terms, and `impact`
    where they have none (`Costs.at_size`). Empty where the data have no volumes. Raises InputError like `cost_sweep`.
    """
    if window.execution.impact is None:
        return {}
    costs = terms.costs if terms.costs.impact else replace(terms.costs, impact=impact)
    found = {}
    for size in sizes:
        path = replay(targets, window, replace(terms, cash=size, costs=costs))
        own = _figures(list(targets), path, window, risk_free)
        paid = _yearly_costs(path, window.market.periods_per_year)
        found[float(size)] = {
            name: figures | {"costs": float(share)} for (name, figures), share in zip(own.items(), paid, strict=True)
        }
    return found


def replay(targets: Mapping[str, Tensor], window: Window, terms: Terms) -> Path:
    """Live through the window again with S accounts that decide `targets` [n, N], whatever becomes of them.

    A row of NaN trades nothing. On the terms on which the targets were decided the path is the one they were taken from.
    Raises InputError for no targets, and for shapes that are not the window's.
    """
    if not targets:
        raise InputError("there are no decisions to replay; give the targets of one strategy or more")
    steps = window.last - window.first, len(window.market.tickers)
    for name, weights in targets.items():
        if tuple(weights.shape) != steps:
            raise InputError(
                f"the weights of {name} have shape {tuple(weights.shape)}; they must be [n, N] = {steps}, a row for each "
                "step of the window"
            )
    ready = torch.stack([*targets.values()], 1).to(window.execution.mark)
    idle = ready.isnan().all(-1).all(-1).tolist()

    def decide(_step: int, row: int, _seen: Account) -> Tensor | None:
        step = row + window.execution.lag - window.first
        return None if idle[step] else ready[step]

    return simulate(window.execution, window.first, window.last, decide, terms, (len(targets),))


def ranks(sharpe: Array) -> Array:
    """[S] places from 1 on, the greatest first; equal ones share a place, and NaN comes last."""
    worth = np.where(np.isnan(sharpe), -np.inf, sharpe)
    return 1 + (worth[None, :] > worth[:, None]).sum(axis=1)


def _figures(names: list[str], path: Path, window: Window, risk_free: float) -> Figures:
    """Return, Sharpe and rank of the S accounts of a path, by name."""
    own = metrics(path.equity.cpu().numpy(), risk_free=risk_free, periods_per_year=window.market.periods_per_year)
    columns = {"total_return": own.total_return, "cagr": own.cagr, "sharpe": own.sharpe}
    table = {key: np.asarray(column).tolist() for key, column in columns.items()}
    table["rank"] = ranks(np.asarray(own.sharpe)).tolist()
    return {name: {key: column[s] for key, column in table.items()} for s, name in enumerate(names)}


def _yearly_costs(path: Path, periods_per_year: float) -> Array:
    """[S] sum of cost / value at the close before, a year."""
    paid = path.cost.sum(-1) / path.equity[:-1].clamp(min=1e-300)
    share: Array = (paid.sum(0) * (periods_per_year / len(paid))).cpu().numpy()
    return share
