"""`Tape`: market data as the ledger reads it, and the one step from a close to the next that backtest and environment share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from finpod.errors import InputError
from finpod.market.data import Array, MarketData
from finpod.market.ledger import Costs, Fill, cash_out, orders_for, settle

Row = int | Tensor
"""A row for all accounts, or rows [E], one for each."""


class Account(NamedTuple):
    """Cash [...] and shares [..., N] in adjusted units, float64."""

    cash: Tensor
    shares: Tensor


@dataclass(frozen=True, kw_only=True)
class Tape:
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

    def orders(self, account: Account, row: Row, weights: Tensor) -> Tensor:
        """Orders [..., N] in shares that bring the account to `weights` at the fill prices."""
        return orders_for(weights, account.cash, account.shares, self.price[self.fill_row(row)])

    def trade(self, account: Account, row: Row, orders: Tensor, costs: Costs, *, whole_shares: bool = False) -> Fill:
        """Fill the orders of the decision taken at `row`; members of the decision day may be bought, others only sold."""
        at = self.fill_row(row)
        return settle(
            account.cash,
            account.shares,
            orders,
            self.price[at],
            self.tradable[at],
            self.member[self.decision_row(row)],
            costs,
            factor=None if self.factor is None else self.factor[at],
            whole_shares=whole_shares,
        )

    def carry(self, account: Account, row: Row, delisting_return: float = 0.0) -> Account:
        """On to the close of `row + 1`: positions that have left the exchange become cash at their last price."""
        return Account(
            *cash_out(account.cash, account.shares, self.mark[row], self.delisted[row + 1], delisting_return)
        )


def build_tape(market: MarketData, fill: str | None = None, device: str | torch.device = "cpu") -> Tape:
    """Lay out `market` for settlement. `fill` None is 'open' where the data have opens, else 'close'.

    Raises InputError for an unknown fill, and for 'open' where there are no opens.
    """
    if fill is None:
        fill = "close" if market.open is None else "open"
    if fill not in ("open", "close"):
        raise InputError(f"fill is {fill!r}; choose 'open' or 'close'")
    if fill == "open" and market.open is None:
        raise InputError("fill='open' needs opens, and these data are close only; choose fill='close'")
    mark = carried_forward(market.close)
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

    return Tape(
        fill=fill,
        price=tensor(price),
        tradable=tensor(tradable),
        mark=tensor(mark),
        has_bar=tensor(market.has_bar),
        member=tensor(market.member),
        delisted=tensor(delisted),
        factor=None if market.factor is None else tensor(carried_forward(market.factor)),
    )


def carried_forward(table: Array, before: float = 1.0) -> Array:
    """[T, N] with each NaN replaced by the last value above it, never by a later one; `before` stands before the first."""
    rows = np.where(np.isfinite(table), np.arange(len(table))[:, None], -1)
    last = np.maximum.accumulate(rows, axis=0)
    return np.where(last >= 0, np.take_along_axis(table, np.maximum(last, 0), axis=0), before)
