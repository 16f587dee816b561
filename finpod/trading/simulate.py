"""`simulate`: accounts through the ledger, one session at a time; what they trade on, and the path they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from finpod.errors import InputError
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.trading.anchors import EQUAL, anchor_weights
from finpod.trading.caps import require_caps
from finpod.trading.execution import Account, Execution, Row
from finpod.trading.ledger import Costs, Fill, orders_for, value

Decide = Callable[[int, int, Account], Tensor | None]
"""(step, row, account) -> target weights [..., N], NaN for an account that trades nothing, or None if none does."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The costs, the cash and the rules of accounts; the `Execution` says when orders are filled."""

    costs: Costs = field(default_factory=Costs)
    """What each side of a trade costs."""
    cash: float = 1_000_000.0
    """V_0, in currency."""
    whole_shares: bool = False
    """Deal in whole shares as traded only."""
    delisting_return: float = 0.0
    """What a position earns, once, when its name leaves the exchange; -1 loses it."""
    max_weight: float | None = None
    """Largest weight of a single name at a fill, as a share of the account; None for no cap. See `within_caps`."""
    max_turnover: float | None = None
    """Most that one decision may trade, both sides, as a share of the account at the fill; None for no cap."""

    def __post_init__(self) -> None:
        require_caps(self.max_weight, self.max_turnover)
        if not (isinstance(self.cash, Real) and np.isfinite(self.cash) and self.cash > 0):
            raise InputError(f"cash is {self.cash!r}; start with a positive amount", argument="cash")
        if not (isinstance(self.delisting_return, Real) and -1 <= self.delisting_return < np.inf):
            raise InputError(
                f"delisting_return is {self.delisting_return!r}; it must be -1 (all is lost) or more",
                argument="delisting_return",
            )

    @property
    def uncapped(self) -> Self:
        """The same terms without caps, on which the rules beside a strategy trade."""
        return replace(self, max_weight=None, max_turnover=None)


@dataclass(frozen=True, kw_only=True)
class Window:
    """The sessions of one market that accounts live through: from the close of row `first` to that of row `last`."""

    market: MarketData
    """What is traded."""
    execution: Execution
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
        return np.arange(self.first, self.last) - self.execution.lag

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
    """[n, ..., N] float64: the weights decided at step k, within the caps; NaN where nothing was."""


class Session(NamedTuple):
    """What one session did to accounts [...], from one close to the next."""

    target: Tensor | None
    """[..., N] the weights decided, within the caps; None where nothing was, and then the next three stand for nothing."""
    orders: Tensor
    """[..., N] in shares."""
    fill: Fill
    """What became of them."""
    turnover: Tensor
    """[...] traded notional / equity at the fill."""
    filled: Account
    """After the fill."""
    account: Account
    """At the next close."""

    @property
    def unfilled(self) -> Tensor:
        """[..., N] bool: the name was to be bought, and after the fill there is still none of it."""
        return (self.orders > 0) & (self.fill.shares == 0)


class Totals(NamedTuple):
    """What happened to accounts [...] over n steps, summed over names."""

    equity: Tensor
    """[n + 1, ...] at each close."""
    turnover: Tensor
    """[n, ...] traded notional / equity at the fill."""
    cost: Tensor
    """[n, ...] paid in currency."""
    unfilled: Tensor
    """[...] int64: orders to buy after whose fill there was still none of the name."""
    delisted: Tensor
    """[...] int64: positions turned to cash because the name left the exchange."""


def simulate(
    execution: Execution, first: int, last: int, decide: Decide, terms: Terms, accounts: tuple[int, ...] = ()
) -> Path:
    """Take accounts of shape `accounts` from the close of row `first` to that of row `last`; contract 1 of the design.

    `decide(step, row, account)` gives the weights of the decision that sees `row` as its last; steps count the sessions
    from the first decision. A decision that would have to see a row before the data is not taken.
    """
    return path_from(opening(execution, terms, accounts), execution, first, last, decide, terms)[0]


def path_from(
    account: Account, execution: Execution, first: int, last: int, decide: Decide, terms: Terms
) -> tuple[Path, Account]:
    """As `simulate`, for accounts [...] as they stand at the close of row `first`; also how they stand at the last."""
    nothing, still = torch.zeros_like(account.shares), torch.zeros_like(account.cash)
    nowhere, undecided = nothing > 0, torch.full_like(nothing, torch.nan)
    equity, held, records = [value(account.cash, account.shares, execution.mark[first])], [account.shares], []
    for row, session in enumerate(sessions(execution, first, last, decide, terms, account), start=first):
        account, filled = session.account, session.filled
        gone = nothing if account is filled else filled.shares - account.shares
        if session.target is None:
            records.append((nothing, still, gone, nowhere, undecided))
        else:
            target = session.target.double().expand_as(nothing)
            records.append((session.fill.traded, session.turnover, gone, session.unfilled, target))
        equity.append(value(account.cash, account.shares, execution.mark[row + 1]))
        held.append(account.shares)
    traded, *columns = (torch.stack(column) for column in zip(*records, strict=True))
    rows = torch.arange(first, last, device=traded.device).view(-1, *[1] * account.cash.ndim)
    cost = execution.cost(traded, rows, terms.costs)
    return Path(torch.stack(equity), torch.stack(held), traded, cost, *columns), account


def anchor_decisions(
    market: MarketData, execution: Execution, first: int, last: int, *, anchor: str = EQUAL, every: int = 1
) -> tuple[Tensor, Array]:
    """Return the weights [T, N] of an anchor and the rows [T] that decide on them, for an account from row `first` to `last`.

    These are the first row of each session and the first that the account can see; with `every` above 1, each so many
    rows from that first on, those at which a Strategy of this `every` decides. Raises InputError as `anchor_weights` does.
    """
    due, begins = market.begins_session.copy(), max(first - execution.lag, 0)
    due[begins] = True
    if every > 1:
        due = (np.arange(len(due)) - begins) % every == 0
    return anchor_weights(execution, anchor, market, slice(begins, last)), due


def simulate_totals(
    execution: Execution, first: int, last: int, decide: Decide, terms: Terms, accounts: tuple[int, ...] = ()
) -> Totals:
    """As `simulate`, for very many accounts, to the last bit but for sums of costs: only sums over names are kept."""
    account = opening(execution, terms, accounts)
    steps = last - first
    equity, (turnover, cost) = (
        account.cash.new_empty((steps + 1, *accounts)),
        account.cash.new_zeros((2, steps, *accounts)),
    )
    unfilled, delisted = (torch.zeros_like(account.cash, dtype=torch.int64) for _ in range(2))
    equity[0] = account.cash
    free = _free_rows(execution, first, last, terms)
    for step, session in enumerate(sessions(execution, first, last, decide, terms, account)):
        account, filled = session.account, session.filled
        if session.target is not None:
            turnover[step], cost[step] = session.turnover, session.fill.paid
            if not free[step]:  # else there is nothing to count
                unfilled += session.unfilled.sum(-1)
        if account is not filled:
            delisted += (filled.shares != account.shares).sum(-1)
        equity[step + 1] = value(account.cash, account.shares, execution.mark[first + step + 1])
    return Totals(equity, turnover, cost, unfilled, delisted)


def phases(execution: Execution, weights: Tensor, first: int, last: int, hold: int, terms: Terms) -> Tensor:
    """Return the equity [n + 1, hold] of accounts that return to `weights` [T, N] every `hold` rows, the p-th from first + p."""
    places = torch.arange(hold, device=weights.device).unsqueeze(-1)

    def decide(step: int, row: int, _seen: Account) -> Tensor:
        return weights[row].where(places == step % hold, torch.nan)

    return simulate_totals(execution, first, last, decide, terms, (hold,)).equity


def opening(execution: Execution, terms: Terms, accounts: tuple[int, ...]) -> Account:
    """Accounts of shape `accounts` with V_0 in cash."""
    cash = torch.full(accounts, terms.cash, dtype=torch.float64, device=execution.mark.device)
    return Account(cash, cash.new_zeros((*accounts, execution.mark.shape[1])))


def sessions(
    execution: Execution, first: int, last: int, decide: Decide, terms: Terms, account: Account
) -> Iterator[Session]:
    """The sessions that take `account` from the close of row `first` to that of row `last`, one after the other."""
    nothing, still, seen = torch.zeros_like(account.shares), torch.zeros_like(account.cash), account
    leaves = execution.delisted[first : last + 1].any(-1).tolist()
    earliest = max(first, execution.lag)
    for row in range(first, last):
        weights = decide(row - earliest, row - execution.lag, seen) if row >= earliest else None
        if weights is None:
            session = Session(None, nothing, Fill(*account, nothing, still, still), still, account, account)
        else:
            session = trade(execution, row, account, weights, terms)
        if leaves[row + 1 - first]:
            session = session._replace(account=execution.carry(session.filled, row, terms.delisting_return))
        account = session.account
        # A decision for the next close fill stands between the two closes: it has not lived through the delistings of
        # the session it fills in.
        seen = session.filled if execution.lag else account
        yield session


def _free_rows(execution: Execution, first: int, last: int, terms: Terms) -> list[bool]:
    """[n] whether every order of that step is filled, if only in part: all names can be dealt in, so sales pay for buys."""
    if terms.whole_shares or terms.costs.impact:
        return [False] * (last - first)
    rows = torch.arange(first, last, device=execution.mark.device).clamp(min=execution.lag)
    return (
        (execution.tradable[execution.fill_row(rows)] & execution.member[execution.decision_row(rows)]).all(-1).tolist()
    )


def trade(execution: Execution, row: Row, account: Account, weights: Tensor, terms: Terms) -> Session:
    """The session in which the decision taken at `row` is filled, up to the delistings: `execution.carry` goes on from there."""
    price = execution.price[execution.fill_row(row)]
    before = value(*account, price)
    weights = execution.within(weights, account, row, terms.max_weight, terms.max_turnover)
    orders, decided = orders_for(weights, before, account.shares, price), weights[..., :1] == weights[..., :1]
    if not decided.all():
        orders = orders.where(decided, 0.0)
    fill = execution.trade(account, row, orders, terms.costs, whole_shares=terms.whole_shares)
    filled = Account(fill.cash, fill.shares)
    return Session(weights, orders, fill, fill.dealt / before.clamp(min=1e-300), filled, filled)
