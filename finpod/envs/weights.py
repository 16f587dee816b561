"""From actions to target weights, and from an account to the state that is observed."""

from __future__ import annotations

import torch
from torch import Tensor

from finpod.trading.execution import Account
from finpod.trading.ledger import times


def target_weights(action: Tensor, among: Tensor, kind: str, tilt: float = 1.0, anchor: Tensor | None = None) -> Tensor:
    """Weights [..., N] float64 out of actions, zero outside `among` [..., N] (members with a bar).

    'tilt': w ~ a exp(k tanh z) for z [..., N], where a is the `anchor` [..., N], zero outside `among`, and w has its sum,
    so that z = 0 is the anchor itself; None is equal weight, fully invested. 'softmax': logits [..., N + 1], the last for
    cash; it has no anchor. All cash where `among` is empty. The exponentials are float32, their sum and quotient float64; of
    float64 actions that require a gradient all is float64.
    """
    action = action if action.requires_grad and action.dtype == torch.float64 else action.float()
    among = among.to(action.dtype)
    if kind == "softmax":
        logits = action.clamp(-1e6, 1e6)
        bets = (logits - logits.amax(-1, keepdim=True)).exp()
        bets, cash = (bets[..., :-1] * among).double(), bets[..., -1:].double()
    else:
        bets, cash = times(action.tanh(), tilt).exp_().mul(among).double(), among.new_zeros(())
        if anchor is not None:
            bets = bets * anchor
            return bets * (anchor.sum(-1, keepdim=True) / bets.sum(-1, keepdim=True).clamp(min=1e-300))
    total = bets.sum(-1, keepdim=True) + cash
    total = total + (total == 0)
    return bets / total if bets.requires_grad else bets.div_(total)


def account_state(account: Account, mark: Tensor) -> Tensor:
    """[..., N + 1] float32: weights at the marks, then cash; all zero for a ruined account."""
    worth = account.shares * mark
    return state_of(account.cash, worth, account.cash + worth.sum(-1))


def state_of(cash: Tensor, worth: Tensor, equity: Tensor) -> Tensor:
    """As `account_state`, of cash [...], the positions' worth [..., N] and their sum [...]."""
    equity = equity.clamp(min=1e-9).unsqueeze(-1)
    return torch.cat([(worth / equity).float(), (cash.unsqueeze(-1) / equity).float()], -1)
