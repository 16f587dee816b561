"""`Execution`: prices as orders meet them, and the step from one close to the next that backtest and environment share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from finpod.errors import InputError
from finpod.features.rolling import delay, rolling_mean
from finpod.market.data import MarketData, forward_fill
from finpod.measures import Array
from finpod.trading.caps import within_caps
from finpod.trading.ledger import Costs, Fill, cash_out, cost_of, orders_for, settle, value

Row = int | Tensor
"""A row for all accounts, or rows [E], one for each."""

MONTH = 21
"""Sessions over which volatility and dollar volume are measured for the market impact."""
UNSEEN = 0.03
"""Daily return that a session without one counts as: what is not known of a name is taken to be wild."""


class Account(NamedTuple):
    """Cash [...] and shares [..., N] in adjusted units, float64."""

    cash: Tensor
    shares: Tensor


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Tensors on one device; row t belongs to session t."""

    fill: str
    """'open': decisions seen at a close are filled at the next open; 'close': at the next close."""
    price: Tensor
    """[T, N] float64 fill price; the last known price where nothing can be traded, 1 before a name's first bar."""
    tradable: Tensor
    """[T, N] bool: there is a bar with a price to fill at."""
    mark: Tensor
    """[T, N] float64 close, carried forward over missing bars; 1 before a name's first bar."""
    has_bar: Tensor
    """[T, N] bool: there is a close; what a decision of that day may ask for."""
    member: Tensor
    """[T, N] bool."""
    delisted: Tensor
    """[T, N] bool: the first session after a name's last bar."""
    factor: Tensor | None
    """[T, N] float64 adjusted / as traded, carried forward; None stands for 1."""
    volume: Tensor | None = None
    """[T, N] float64 adjusted shares dealt in, NaN where not known; None where the data have no volumes."""
    month: int = MONTH
    """Rows in `MONTH` sessions."""

    @property
    def lag(self) -> int:
        """Rows between the mark V_k and the last row that decision k sees: 0 with open fills, 1 with close fills."""
        return 0 if self.fill == "open" else 1

    def decision_row(self, row: Row) -> Row:
        """The last row seen by the decision taken when the account stands at the close of `row`."""
        return row - self.lag

    def fill_row(self, row: Row) -> Row:
        """The row of the fill of that decision."""
        return row + 1 - self.lag

    @cached_property
    def impact(self) -> Tensor | None:
        """[T, N] sigma / sqrt(V), the market impact of trading one unit of currency; None where there are no volumes.

        Over the rows of the last month, up to and with the row: sigma is the root mean square of the returns, V the mean
        of close * volume over the bars that have one. Both are those of a row; per square root of time they are the same
        as those of a day. A name that nobody dealt in counts as the worst of the day's members; NaN where all are such.
        """
        if self.volume is None:
            return None
        month, close = self.month, self.mark.where(self.has_bar, math.nan)
        unseen = UNSEEN**2 * MONTH / month
        squares = (close / delay(close, 1) - 1).square().nan_to_num(nan=unseen)
        dollars = close * self.volume
        dealt = over_rows(dollars.nan_to_num(nan=0.0), month, 0.0)
        days = over_rows(dollars.isfinite().double(), month, 0.0)
        impact = (over_rows(squares, month, unseen) * days / dealt).sqrt()
        known = dealt > 0
        worst = impact.where(known & self.member, -math.inf).amax(-1, keepdim=True)
        return impact.where(known, worst.where(worst >= 0, math.nan))

    def impact_for(self, costs: Costs) -> Tensor | None:
        """The table `impact` where the costs have any. Raises InputError for such costs where there are no volumes."""
        if costs.impact == 0:
            return None
        if self.impact is None:
            raise InputError(
                f"impact is {costs.impact:g}, and these data have no volumes to measure it by; leave it at 0",
                argument="impact",
            )
        return self.impact

    def within(
        self, weights: Tensor, account: Account, row: Row, max_weight: float | None, max_turnover: float | None
    ) -> Tensor:
        """Target weights [..., N] brought within caps (`within_caps`) for the account, valued at the fill prices."""
        if max_weight is None and max_turnover is None:
            return weights
        worth = account.shares * self.price[self.fill_row(row)]
        held = worth / (account.cash + worth.sum(-1)).clamp(min=1e-300).unsqueeze(-1)
        return within_caps(weights.double(), held, max_weight, max_turnover)

    def orders(self, account: Account, row: Row, weights: Tensor) -> Tensor:
        """Orders [..., N] in shares that bring the account to `weights` at the fill prices."""
        price = self.price[self.fill_row(row)]
        return orders_for(weights, value(*account, price), account.shares, price)

    def trade(
        self,
        account: Account,
        row: Row,
        orders: Tensor,
        costs: Costs,
        *,
        whole_shares: bool = False,
        smooth: float = 0.0,
    ) -> Fill:
        """Fill the orders of the decision taken at `row`; members of the decision day may be bought, others only sold.

        With market impact nothing trades while not one member's volume is known. `smooth` is that of `settle`.
        """
        at, seen = self.fill_row(row), self.decision_row(row)
        tradable, impact = self.tradable[at], self.impact_for(costs)
        if impact is not None:
            impact = impact[seen]
            tradable, impact = tradable & impact.isfinite(), impact.nan_to_num(nan=0.0)
        return settle(
            account.cash,
            account.shares,
            orders,
            self.price[at],
            tradable,
            self.member[seen],
            costs,
            factor=None if self.factor is None else self.factor[at],
            impact=impact,
            whole_shares=whole_shares,
            smooth=smooth,
        )

    def cost(self, traded: Tensor, row: Row, costs: Costs) -> Tensor:
        """[..., N] what each of the trades cost that filled the decision taken at `row`, in currency."""
        at, impact = self.fill_row(row), self.impact_for(costs)
        return cost_of(
            traded,
            self.price[at],
            costs,
            factor=None if self.factor is None else self.factor[at],
            impact=None if impact is None else impact[self.decision_row(row)].nan_to_num(nan=0.0),
        )

    def carry(self, account: Account, row: Row, delisting_return: float = 0.0) -> Account:
        """On to the close of `row + 1`: positions that have left the exchange become cash at their last price."""
        return Account(
            *cash_out(account.cash, account.shares, self.mark[row], self.delisted[row + 1], delisting_return)
        )


def build_execution(market: MarketData, fill: str | None = None, device: str | torch.device = "cpu") -> Execution:
    """Lay out `market` for settlement. `fill` None is 'open' where the data have opens, else 'close'.

    Raises InputError for an unknown fill, and for 'open' where there are no opens.
    """
    if fill is None:
        fill = "close" if market.open is None else "open"
    if fill not in ("open", "close"):
        raise InputError(f"fill is {fill!r}; choose 'open' or 'close'", argument="fill")
    if fill == "open" and market.open is None:
        raise InputError("fill='open' needs opens, and these data are close only; choose fill='close'", argument="fill")
    mark = forward_fill(market.close, before=1.0)
    price, tradable = mark, market.has_bar
    if fill == "open" and market.open is not None:
        before = np.vstack([np.ones_like(mark[:1]), mark[:-1]])
        tradable = market.has_bar & np.isfinite(market.open)
        price = np.where(tradable, market.open, before)
    after = market.sessions[:, None] > market.last_bar.astype("datetime64[D]")  # a gap late in a day is not the end
    delisted = after & ~np.vstack([after[:1], after[:-1]])
    delisted[0] = False

    def tensor(table: Array) -> Tensor:
        return torch.tensor(table, device=device)

    return Execution(
        fill=fill,
        price=tensor(price),
        tradable=tensor(tradable),
        mark=tensor(mark),
        has_bar=tensor(market.has_bar),
        member=tensor(market.member),
        delisted=tensor(delisted),
        factor=None if market.factor is None else tensor(forward_fill(market.factor, before=1.0)),
        volume=None if market.volume is None else tensor(market.volume),
        month=max(round(MONTH * market.bars_per_session), 1),
    )


def over_rows(table: Tensor, rows: int, before: float) -> Tensor:
    """[T, N] mean of the last `rows` rows; those before the first count as `before`."""
    return rolling_mean(torch.cat([table.new_full((rows, table.shape[1]), before), table]), rows)[rows:]
