"""Costs and settlement: how one fill changes cash and shares. No other code in finpod moves money.

Tensors are float64. The leading dimensions `...` are free: [] for one account, [E] for E environments, [S] for S
strategies. Shares and prices are adjusted for splits and dividends. shares * `factor` is the number of shares before
adjustment; `factor` is adjusted price / traded price. Accounts are long only: a target below zero counts as zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from finpod.errors import InputError, require_number

if TYPE_CHECKING:
    from torch import Tensor

DUST = 1e-12
"""Weights up to this value, and orders up to this fraction of the target position, count as zero (rounding errors)."""

NEWTON = 6
"""Number of Newton steps in `_share_with_impact`. Four suffice: the first guess is at most a third too large."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of trading. Every buy and every sale is charged, and its cost is paid from cash at the fill."""

    fee_bps: float = 10.0
    """Commission in basis points (1/10,000) of the traded notional."""
    slippage_bps: float = 0.0
    """Half-spread and slippage in basis points of the traded notional, charged like the fee."""
    per_share: float = 0.0
    """Commission per share, in currency. Shares are counted before adjustment for splits."""
    impact: float = 0.0
    """Coefficient of the square-root market impact, about 1 in practice. 0: no impact. Other values need volumes."""

    def __post_init__(self) -> None:
        for name in ("fee_bps", "slippage_bps", "per_share", "impact"):
            value = getattr(self, name)
            require_number(name, value, 0, 9_999)
            if not isinstance(value, int):
                object.__setattr__(self, name, float(value))  # JSON cannot encode numpy scalars
        if self.rate >= 1:
            text = f"fee_bps {self.fee_bps} and slippage_bps {self.slippage_bps} cost {self.rate:.0%} of each trade"
            raise InputError(f"{text}; together they must stay below 10000")

    @property
    def rate(self) -> float:
        """Cost as a fraction of the traded notional, without the commission per share and the impact."""
        return (self.fee_bps + self.slippage_bps) / 10_000

    def rates(self, price: Tensor, factor: Tensor | None) -> Tensor | float:
        """Return the cost of trades at `price` [..., N], as a fraction of their notional, without market impact.

        The fraction is self.rate + per_share * factor / price, but at most 1. It is a float if `per_share` is zero.
        `factor` [..., N] is adjusted price / traded price; None means 1.
        """
        if self.per_share == 0:
            return self.rate
        return (self.rate + self.per_share * (1.0 if factor is None else factor) / price).clamp(max=1)

    def at_size(self, rate: Tensor | float, notional: Tensor, impact: Tensor | None) -> Tensor | float:
        """Return the cost of trading `notional` [..., N] at once, as a fraction of it: `rate` plus impact, at most 1.

        The square-root law adds self.impact * sigma * sqrt(notional / V), where sigma is the daily volatility and V the
        daily dollar volume. The argument `impact` [..., N] is sigma / sqrt(V), see `Execution.impact`. The impact is
        paid once and does not change later prices (Toth et al. 2011; Almgren et al. 2005 measure an exponent of 3/5).
        """
        if self.impact == 0:
            return rate
        assert impact is not None, "costs with impact need the argument impact"
        return (rate + notional.sqrt().mul_(self.impact * impact)).clamp(max=1)


class Fill(NamedTuple):
    """Cash and shares after one settlement, and what was traded."""

    cash: Tensor
    """[...] cash after the fill, never below zero."""
    shares: Tensor
    """[..., N] shares after the fill, never below zero."""
    traded: Tensor
    """[..., N] shares bought (positive) or sold (negative) by the fill."""
    notional: Tensor
    """[...] traded notional of the fill, buys plus sells, in currency."""
    cost: Tensor
    """[...] cost of the fill in currency, summed over assets. `cost_of` returns the cost of each asset."""


def value(cash: Tensor, shares: Tensor, mark: Tensor) -> Tensor:
    """Return the equity [...]: cash + sum of shares [..., N] * mark [..., N]. Marks must be finite."""
    return cash + (shares * mark).sum(-1)


def orders_for(weights: Tensor, equity: Tensor, shares: Tensor, mark: Tensor) -> Tensor:
    """Return the orders [..., N] in shares that bring an account worth `equity` [...] to `weights` [..., N].

    order = target - shares, where target = weight * equity / mark is the position to reach. An order of at most `DUST`
    times the target is a rounding error and becomes zero. A weight of zero sells the whole position, to the last bit.
    """
    target = (weights.hardshrink(DUST) * equity.unsqueeze(-1)).clamp_(min=0).mul_(1 / mark)
    orders = target - shares
    return orders.masked_fill_(orders.abs() <= target.mul_(DUST), 0.0)


def settle(
    cash: Tensor,
    shares: Tensor,
    orders: Tensor,
    price: Tensor,
    tradable: Tensor,
    may_buy: Tensor,
    costs: Costs,
    *,
    factor: Tensor | None = None,
    impact: Tensor | None = None,
    whole_shares: bool = False,
    smooth: float = 0.0,
) -> Fill:
    """Return the `Fill` of `orders` [..., N], in shares (negative for sells), at `price` [..., N].

    Sells settle first and are limited to the position. If the cash does not cover all buys and their costs, all buys
    are reduced by the same factor, so that cash never falls below zero. Assets that are not `tradable` [..., N] are not
    filled; assets with `may_buy` [..., N] False can only be sold. `price` must be finite and positive everywhere, also
    where nothing is tradable. With `whole_shares`, trades are whole numbers of shares, counted before adjustment,
    except when a whole position is sold. Costs with impact need the table `impact` [..., N] of `Costs.at_size`.

    Gradients pass, except through whole shares and market impact. The cost of a trade of notional x has a kink at
    x = 0. In training, `smooth` > 0 charges costs on sqrt(x^2 + w^2) - w instead of |x|, with w = `smooth` * equity.
    """
    rate = costs.rates(price, factor)
    width = (smooth * value(cash, shares, price)).clamp(min=1e-100).unsqueeze(-1) if smooth else None
    sold = times((-orders).clamp_(min=0).minimum(shares), tradable)
    if whole_shares:
        sold = _whole(sold, factor).where(sold < shares, sold)
    sold_notional, sold_cost = _sums(sold * price, rate, costs, impact, width)
    cash = cash + (sold_notional - sold_cost)
    bought = times(orders.clamp(min=0), tradable & may_buy)
    ordered = bought * price
    spent, cost = _sums(ordered, rate, costs, None, width)
    share = (cash / (spent + cost).clamp(min=1e-300)).clamp(max=1)
    if costs.impact:
        share = share * _share_with_impact(cash, ordered * share.unsqueeze(-1), rate, costs, impact)
    bought = times(bought, share.unsqueeze(-1))
    if whole_shares:
        bought = _whole(bought, factor)
    if whole_shares or costs.impact:
        spent, cost = _sums(bought * price, rate, costs, impact)
    else:
        spent, cost = spent * share, cost * share
    cash = (cash - (spent + cost)).clamp(min=0)
    traded = bought - sold if bought.requires_grad else bought.sub_(sold)
    return Fill(cash, shares + traded, traded, sold_notional + spent, sold_cost + cost)


def cost_of(
    traded: Tensor, price: Tensor, costs: Costs, *, factor: Tensor | None = None, impact: Tensor | None = None
) -> Tensor:
    """Return the cost of each trade [..., N] of a fill, in currency. The sum is `Fill.cost` up to rounding."""
    notional = (traded * price).abs_()
    return notional * costs.at_size(costs.rates(price, factor), notional, impact)


def cash_out(
    cash: Tensor, shares: Tensor, mark: Tensor, delisted: Tensor, delisting_return: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return cash and shares after positions in `delisted` assets [N] are paid out at mark * (1 + delisting_return)."""
    gone = shares * delisted
    return cash + (gone * mark).sum(-1) * (1 + delisting_return), shares * ~delisted


def times(values: Tensor, factor: Tensor | float) -> Tensor:
    """Return values * factor. The caller must not use `values` again: without a gradient, they are overwritten."""
    return values * factor if values.requires_grad else values.mul_(factor)


def _sums(
    notional: Tensor, rate: Tensor | float, costs: Costs, impact: Tensor | None, width: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return (notional [...], cost [...]) of trades of `notional` [..., N], summed over assets. If `impact` is None,
    trades have no market impact. `width` [..., 1] is the w of `settle`; None means no smoothing."""
    total = notional.sum(-1)
    if width is not None:
        notional = (notional.square() + width.square()).sqrt() - width
        return total, (notional * rate).sum(-1)
    rate = rate if impact is None else costs.at_size(rate, notional, impact)
    return total, total * rate if isinstance(rate, float) else (notional * rate).sum(-1)


def _share_with_impact(
    cash: Tensor, notional: Tensor, rate: Tensor | float, costs: Costs, impact: Tensor | None
) -> Tensor:
    """Return the largest fraction s [...] of the buys `notional` [..., N] that `cash` can pay, with market impact.

    s solves A s + B s^1.5 = cash, where A is notional and cost without impact, and B the impact at s = 1. Newton's
    method for sqrt(s) converges from above. A last step s <- cash / (A + B sqrt(s)) ends just below the solution. If a
    rate is capped at 1, this s may be too large. Then s = cash / (A + B) is used, which is always affordable.
    """
    plain = (notional * (1 + rate)).sum(-1).clamp(min=1e-300)
    added = (notional * (1 + costs.at_size(rate, notional, impact))).sum(-1).sub_(plain).clamp(min=1e-300)
    root = (cash / plain).sqrt().minimum((cash / added).pow(1 / 3)).clamp(max=1)
    for _ in range(NEWTON):
        slope = (2 * plain + 3 * added * root) * root
        root = root - ((plain + added * root) * root.square() - cash) / slope.clamp(min=1e-300)
    share = (cash / (plain + added * root)).clamp(max=1)
    bought = share.unsqueeze(-1) * notional
    fits = (bought * (1 + costs.at_size(rate, bought, impact))).sum(-1) <= cash * (1 + DUST)
    return share.where(fits, (cash / (plain + added)).clamp(max=1))


def _whole(shares: Tensor, factor: Tensor | None) -> Tensor:
    """Return `shares` rounded down so that shares * factor is a whole number, with a tolerance of 1e-9."""
    if factor is None:
        return (shares + 1e-9).floor()
    return (shares * factor + 1e-9).floor() / factor
