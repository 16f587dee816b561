"""`simulate`: accounts through the ledger, one session at a time; what they trade on, and the path they leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from finpod.errors import InputError
from finpod.market.data import Array, MarketData
from finpod.market.ledger import Costs, value
from finpod.market.tape import Account, Tape

Decide = Callable[[int, int, Account], Tensor | None]
"""(step, row, account) -> target weights [..., N], NaN for an account that trades nothing, or None if none does."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """On what terms accounts trade."""

    costs: Costs = field(default_factory=Costs)
    """What each side of a trade costs."""
    fill: str | None = None
    """'open', 'close', or None for open where the data have opens."""
    cash: float = 1_000_000.0
    """V_0, in currency."""
    whole_shares: bool = False
    """Deal in whole shares as traded only."""
    delisting_return: float = 0.0
    """What a position earns, once, when its name leaves the exchange; -1 loses it."""

    def __post_init__(self) -> None:
        if not (isinstance(self.cash, Real) and np.isfinite(self.cash) and self.cash > 0):
            raise InputError(f"cash is {self.cash!r}; start with a positive amount")
        if not -1 <= self.delisting_return < np.inf:
            raise InputError(f"delisting_return is {self.delisting_return}; it must be -1 (all is lost) or more")


@dataclass(frozen=True, kw_only=True)
class Window:
    """The sessions of one market that accounts live through: from the close of row `first` to that of row `last`."""

    market: MarketData
    """What is traded."""
    tape: Tape
    """The same, laid out for settlement."""
    first: int
    """Row whose close V_0 is dated."""
    last: int
    """Row of the last close."""

    @property
    def dates(self) -> Array:
        """[n + 1] sessions of the closes."""
        return self.market.dates[self.first : self.last + 1]

    @property
    def decision_rows(self) -> Array:
        """[n] last row that each decision sees; -1 for one that would have to see a row before the data."""
        return np.arange(self.first, self.last) - self.tape.lag

    @property
    def fill_rows(self) -> Array:
        """[n] row of each decision's fill."""
        return self.decision_rows + 1


class Path(NamedTuple):
    """What happened to accounts [...] over n steps."""

    equity: Tensor
    """[n + 1, ...] at each close."""
    shares: Tensor
    """[n + 1, ..., N] held at each close, before the fills at it."""
    traded: Tensor
    """[n, ..., N] shares bought or sold by the fill of step k."""
    cost: Tensor
    """[n, ..., N] paid for it."""
    turnover: Tensor
    """[n, ...] traded notional / equity at the fill."""
    delisted: Tensor
    """[n, ..., N] shares turned to cash because the name left the exchange."""
    unfilled: Tensor
    """[n, ..., N] bool: the name was to be bought, and after the fill there is still none of it."""
    targets: Tensor
    """[n, ..., N] float64: the weights decided at step k; NaN where nothing was."""


def simulate(tape: Tape, first: int, last: int, decide: Decide, terms: Terms, accounts: tuple[int, ...] = ()) -> Path:
    """Take accounts of shape `accounts` from the close of row `first` to that of row `last`; contract 1 of the design.

    `decide(step, row, account)` gives the weights of the decision that sees `row` as its last; steps count the sessions
    from the first decision. A decision that would have to see a row before the data is not taken.
    """
    cash = torch.full(accounts, terms.cash, dtype=torch.float64, device=tape.mark.device)
    account = seen = Account(cash, cash.new_zeros((*accounts, tape.mark.shape[1])))
    nothing, still = account.shares, torch.zeros_like(cash)
    undecided = torch.full_like(nothing, torch.nan)
    equity, held, records = [cash], [account.shares], []
    earliest = max(first, tape.lag)
    for row in range(first, last):
        weights = decide(row - earliest, row - tape.lag, seen) if row >= earliest else None
        traded, cost, turnover, unfilled = nothing, nothing, still, nothing > 0
        if weights is not None:
            price = tape.price[tape.fill_row(row)]
            before = value(account.cash, account.shares, price)
            orders = tape.orders(account, row, weights).where(~weights.isnan(), 0.0)
            fill = tape.trade(account, row, orders, terms.costs, whole_shares=terms.whole_shares)
            account, traded, cost = Account(fill.cash, fill.shares), fill.traded, fill.cost
            turnover = (traded * price).abs().sum(-1) / before.clamp(min=1e-300)
            unfilled = (orders > 0) & (account.shares == 0)
        carried = tape.carry(account, row, terms.delisting_return)
        target = undecided if weights is None else weights.double().expand_as(nothing)
        records.append((traded, cost, turnover, account.shares - carried.shares, unfilled, target))
        # A decision for the next close fill stands between the two closes: it has not lived through the delistings of
        # the session it fills in.
        seen = account if tape.lag else carried
        account = carried
        equity.append(value(account.cash, account.shares, tape.mark[row + 1]))
        held.append(account.shares)
    return Path(torch.stack(equity), torch.stack(held), *(torch.stack(column) for column in zip(*records, strict=True)))
