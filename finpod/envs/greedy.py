"""The deterministic decision of a trained policy about one account: its mean action as target weights, never a sample.

It has a module of its own because the stock task and ensembles share it, and neither the environment nor the policy
knows the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from finpod.envs.market_env import TradingConfig
from finpod.envs.weights import target_weights


@torch.no_grad()
def greedy_weights(
    policy: Any,
    trading: TradingConfig,
    features: Tensor,
    among: Tensor,
    state: Tensor,
    price: Tensor,
    equity: float,
    anchor: Tensor | None = None,
) -> Tensor:
    """Return target weights [N] float64 of one account on one day.

    `policy` is a `MarketPolicy`; features [N, F] are scaled; among [N] are the names that may be held; state [N + 1] the
    weights held and cash; `anchor` [N] float64 is what a tilt is taken around, None for equal weight. Only the 'shares'
    action reads price [N], as traded and 0 where there is no bar, and equity. A strategy decides weights, so share orders
    become the weights that they would lead to at the decision's prices. Where the fill price has moved since, trades
    differ a little from those orders, on validation as in a backtest.
    """
    code = policy.encode(features[None], among[None], *(() if anchor is None else (anchor[None].float(),)))
    mean, _ = policy(code, state[None, None])
    action = mean[0, 0]
    if trading.action == "shares":
        return _after_orders(action, among, state, price, equity, trading.hmax)
    return target_weights(action, among, trading.action, trading.tilt, anchor)


def _after_orders(action: Tensor, among: Tensor, state: Tensor, price: Tensor, equity: float, hmax: int) -> Tensor:
    """Weights that share orders lead to: sells first, then buys that share the cash there is."""
    held, cash = state[:-1].double(), state[-1].double()
    change = action.double().clamp(-1, 1) * hmax * price / max(equity, 1e-9)
    sold = (-change).clamp(min=0).minimum(held)
    bought = change.clamp(min=0) * among
    wallet = cash + sold.sum()
    return held - sold + bought * (wallet / bought.sum().clamp(min=1e-300)).clamp(max=1)
