"""`TradingConfig`, and the conversions of actions to target weights and of accounts to observed states."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from finpod.errors import InputError, require_choice, require_number
from finpod.trading.anchors import EQUAL, require_anchor
from finpod.trading.execution import Account
from finpod.trading.ledger import times
from finpod.trading.simulate import Terms

CHOICES = {"action": ("tilt", "softmax", "shares"), "reward": ("log", "value")}


@dataclass(frozen=True, kw_only=True)
class TradingConfig(Terms):
    """Settings of the trading task: accounts, actions and rewards. They are stored with a trained agent."""

    num_envs: int = 1024
    """Number E of accounts that are stepped in parallel."""
    start_groups: int | None = None
    """Number G of groups, a divisor of num_envs. Accounts of a group trade at the same bars. None: G = num_envs."""
    action: str = "tilt"
    """'tilt' changes the anchor's weights. 'softmax' sets weights and cash. 'shares' gives orders (FinRL papers)."""
    tilt: float = 1.0
    """Factor k: weights are proportional to anchor * exp(k tanh(action)). At k = 1, exp(...) is from 0.37 to 2.7."""
    anchor: str = EQUAL
    """Portfolio that agents tilt and must beat: a name in `finpod.trading.anchors.ANCHORS`, or `extra:COLUMN`."""
    hmax: int = 100
    """Largest order of the action 'shares' per asset and step, in shares before adjustment for splits."""
    hold: int = 5
    """Number of bars (sessions, if bars are daily) from one decision to the next."""
    horizon: int | None = 20
    """Number of decisions after which an episode is truncated. None: episodes last until the end of the window."""
    random_start: bool = True
    """True to begin episodes at random bars, False to begin them at the first bar of the window."""
    reward: str = "log"
    """'log': change of the log of equity in the step. 'value': change of equity in the step. Both are net of costs."""
    reward_scale: float = 1.0
    """Factor on the reward. The FinRL papers scale the change of equity by about 2^-11."""

    def __post_init__(self) -> None:
        super().__post_init__()
        optional = [name for name in ("start_groups", "horizon") if getattr(self, name) is not None]
        for name in ("num_envs", "hold", "hmax", *optional):
            require_number(name, getattr(self, name), 1, whole=True)
        if self.num_envs % self.groups:
            text = f"start_groups is {self.start_groups}; it must divide num_envs, {self.num_envs}"
            raise InputError(text, argument="start_groups")
        require_anchor(self.anchor)
        for name, choices in CHOICES.items():
            require_choice(name, getattr(self, name), choices)
        if self.action == "shares" and (self.max_weight or self.max_turnover):
            text = "max_weight and max_turnover do not apply to action 'shares'; omit them, or choose another action"
            raise InputError(text, argument="action")
        require_number("tilt", self.tilt, 1e-12, 20)
        require_number("reward_scale", self.reward_scale, 1e-12)

    @property
    def groups(self) -> int:
        """Number of groups G."""
        return self.start_groups or self.num_envs

    @property
    def around(self) -> bool:
        """True if actions tilt an anchor other than equal weight."""
        return self.action == "tilt" and self.anchor != EQUAL

    @property
    def undifferentiable(self) -> str | None:
        """Name of the setting that blocks the gradient. None if no setting blocks it."""
        if self.action == "shares":
            return "action 'shares'"
        return "whole_shares" if self.whole_shares else "market impact" if self.costs.impact else None


SETTINGS = tuple(field.name for field in fields(TradingConfig))


def target_weights(action: Tensor, among: Tensor, kind: str, tilt: float = 1.0, anchor: Tensor | None = None) -> Tensor:
    """Return the target weights w [..., N] float64 that an `action` z gives to N assets.

    'tilt': z is [..., N], and w is proportional to a * exp(k * tanh(z)). a [..., N] is `anchor` (None: equal weight),
    and k is `tilt`. w has the same sum as a, and z = 0 gives w = a. 'softmax': z is [..., N + 1] for the assets and
    cash, and w = exp(z) / sum exp(z). Assets outside the mask `among` [..., N] may not be held and get weight zero. If
    z is float64 and requires grad, exponentials are computed in float64, otherwise in float32.
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
    """Return the observed state [..., N + 1] float32: the weights of N assets at prices `mark` [..., N], then the
    weight of cash. If equity is zero, all weights are zero."""
    worth = account.shares * mark
    equity = (account.cash + worth.sum(-1)).clamp(min=1e-9).unsqueeze(-1)
    return torch.cat([(worth / equity).float(), (account.cash.unsqueeze(-1) / equity).float()], -1)


@torch.no_grad()
def greedy_weights(
    policy: Any, trading: TradingConfig, features: Tensor, among: Tensor, state: Tensor, price: Tensor, equity: float,
    anchor: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the target weights [N] float64 of a policy's mean action for one account at one decision.

    `features` [N, F] are the scaled features of N assets. The mask `among` [N] marks the assets that may be held.
    `state` [N + 1] is the `account_state`. `anchor` [N] float64 has the anchor's weights (None: equal weight). Only the
    action 'shares' uses `equity` and `price` [N], to turn orders into weights. These weights are exact if the orders
    fill at `price`. `price` is before adjustment for splits, and 0 for an asset without a bar.
    """
    code = policy.encode(features[None], among[None], *(() if anchor is None else (anchor[None].float(),)))
    mean, _ = policy(code, state[None, None])
    action = mean[0, 0]
    if trading.action != "shares":
        return target_weights(action, among, trading.action, trading.tilt, anchor)
    weights, cash = state[:-1].double(), state[-1].double()
    change = action.double().clamp(-1, 1) * trading.hmax * price / max(equity, 1e-9)
    sold = (-change).clamp(min=0).minimum(weights)
    bought = change.clamp(min=0) * among
    available = cash + sold.sum()
    return weights - sold + bought * (available / bought.sum().clamp(min=1e-300)).clamp(max=1)
