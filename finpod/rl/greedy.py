"""The deterministic decision of a trained policy: the mean action, never a sample."""

from __future__ import annotations

import torch
from torch import Tensor

from finpod.envs.market import TradingConfig, target_weights
from finpod.rl.policy import MarketPolicy


@torch.no_grad()
def greedy_weights(
    policy: MarketPolicy,
    trading: TradingConfig,
    features: Tensor,
    among: Tensor,
    state: Tensor,
    price: Tensor,
    equity: float,
) -> Tensor:
    """Target weights [N] float64 of one account on one day.

    features [N, F] scaled; among [N] names that may be held; state [N + 1] weights held and cash; price [N] as traded, 0
    where there is no bar and so no order, read by the 'shares' action only, as is the account's equity. A strategy decides
    weights, so share orders become the weights they would lead to at the decision's prices; where the fill price has
    moved since, trades differ a little from those orders, on validation as in a backtest.
    """
    mean, _ = policy(policy.encode(features[None], among[None]), state[None, None])
    action = mean[0, 0]
    if trading.action == "shares":
        return _after_orders(action, among, state, price, equity, trading.hmax)
    return target_weights(action, among, trading.action, trading.tilt)


def _after_orders(action: Tensor, among: Tensor, state: Tensor, price: Tensor, equity: float, hmax: int) -> Tensor:
    """Weights that share orders lead to: sells first, buys sharing what cash there is then."""
    held, cash = state[:-1].double(), state[-1].double()
    change = action.double().clamp(-1, 1) * hmax * price / max(equity, 1e-9)
    sold = (-change).clamp(min=0).minimum(held)
    bought = change.clamp(min=0) * among
    wallet = cash + sold.sum()
    return held - sold + bought * (wallet / bought.sum().clamp(min=1e-300)).clamp(max=1)
