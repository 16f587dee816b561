"""`simulate`: trade accounts through the ledger, one session at a time. `Terms` are the rules, `Path` is the result."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from finpod.errors import InputError, require_number
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.trading.anchors import EQUAL, anchor_weights
from finpod.trading.caps import LOOSE
from finpod.trading.execution import Account, Execution, Row
from finpod.trading.ledger import Costs, Fill, orders_for, value

Decide = Callable[[int, int, Account], Tensor | None]
"""Function (step, row, account) -> target weights [..., N] of N assets; see `simulate`. An account with weights of NaN
does not trade. If the function returns None, no account trades."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Costs, initial cash and trading rules of an account. The `Execution` says when orders are filled."""

    costs: Costs = field(default_factory=Costs)
    """Costs of each buy and each sale."""
    cash: float = 1_000_000.0
    """Initial cash, in the currency of the prices."""
    whole_shares: bool = False
    """Trade only whole shares, counted before adjustment for splits."""
    delisting_return: float = 0.0
    """Return applied once to a position when its asset is delisted; -1 is a total loss."""
    max_weight: float | None = None
    """Largest weight of an asset at a fill, as a fraction of the account. None: no cap. See `within_caps`."""
    max_turnover: float | None = None
    """Largest turnover (buys plus sells) of a decision, as a fraction of equity at the fill. None: no cap."""

    def __post_init__(self) -> None:
        if not isinstance(self.costs, Costs):
            raise InputError(f"costs is {self.costs!r:.60}; pass finpod.Costs(fee_bps=...)", argument="costs")
        for setting in fields(self):
            if isinstance(setting.default, bool) and not isinstance(value := getattr(self, setting.name), bool):
                raise InputError(f"{setting.name} is {value!r:.60}; pass True or False", argument=setting.name)
        if self.max_weight is not None:
            require_number("max_weight", self.max_weight, LOOSE, 1)
        if self.max_turnover is not None:
            require_number("max_turnover", self.max_turnover, 1e-12)
        require_number("cash", self.cash, 1e-12)
        require_number("delisting_return", self.delisting_return, -1)  # -1 is a total loss

    @property
    def uncapped(self) -> Self:
        """These terms without caps, for the portfolios that a strategy is compared with."""
        return replace(self, max_weight=None, max_turnover=None)


@dataclass(frozen=True, kw_only=True)
class Window:
    """Sessions of a market in which accounts trade: from the close of row `first` to that of row `last`."""

    market: MarketData
    execution: Execution
    """Fill prices, marks and masks of the market."""
    first: int
    """Row of the first close, at which accounts hold only their initial cash."""
    last: int
    """Row of the last close."""

    @property
    def dates(self) -> Array:
        """[n + 1] dates of the closes before and after each of the n steps."""
        return self.market.dates[self.first : self.last + 1]

    @property
    def decision_rows(self) -> Array:
        """[n] number of the last row that the decision of each step sees; -1 if the data have no such row."""
        return np.arange(self.first, self.last) - self.execution.lag

    @property
    def fill_rows(self) -> Array:
        """[n] number of the row at which the orders of each step fill."""
        return self.decision_rows + 1


class Path(NamedTuple):
    """History of accounts [...] in N assets over n steps. A step goes from one close to the next."""

    equity: Tensor
    """[n + 1, ...] equity at each close."""
    shares: Tensor
    """[n + 1, ..., N] shares at each close, before the fills at that close."""
    traded: Tensor
    """[n, ..., N] shares bought (positive) or sold (negative) in each step."""
    cost: Tensor
    """[n, ..., N] cost of the trades of each step, in currency."""
    turnover: Tensor
    """[n, ...] traded notional of each step, divided by the equity at its fill."""
    delisted: Tensor
    """[n, ..., N] shares turned to cash because the asset was delisted."""
    unfilled: Tensor
    """[n, ..., N] bool mask of assets with an order to buy but without a position after the fill."""
    targets: Tensor
    """[n, ..., N] float64 weights decided in each step, after applying the caps; NaN in a step without a decision."""


class Session(NamedTuple):
    """One step of accounts [...], from one close to the next: a session, or a bar of an intraday market."""

    target: Tensor | None
    """[..., N] decided weights, after applying the caps. None: there was no decision, so nothing is traded."""
    orders: Tensor
    """[..., N] orders in shares."""
    fill: Fill
    """Settlement of the orders."""
    turnover: Tensor
    """[...] traded notional, divided by the equity at the fill."""
    filled: Account
    """Accounts after the fill."""
    account: Account
    """Accounts at the next close."""

    @property
    def unfilled(self) -> Tensor:
        """[..., N] bool mask of assets with an order to buy but without a position after the fill."""
        return (self.orders > 0) & (self.fill.shares == 0)


class Totals(NamedTuple):
    """History of accounts [...] over n steps, summed over assets. A step goes from one close to the next."""

    equity: Tensor
    """[n + 1, ...] equity at each close."""
    turnover: Tensor
    """[n, ...] traded notional of each step, divided by the equity at its fill."""
    cost: Tensor
    """[n, ...] cost of the trades of each step, in currency."""


def simulate(
    execution: Execution, first: int, last: int, decide: Decide, terms: Terms, accounts: tuple[int, ...] = ()
) -> Path:
    """Return the path of accounts of shape `accounts` from the close of row `first` to the close of row `last`.

    `decide(step, row, account)` returns the target weights of the decision that sees rows up to `row`. `step` is 0 at
    the first decision. A decision that would see no row is skipped. finpod/README.md has the order of events.
    """
    return path_from(opening(execution, terms, accounts), execution, first, last, decide, terms)[0]


def path_from(
    account: Account, execution: Execution, first: int, last: int, decide: Decide, terms: Terms
) -> tuple[Path, Account]:
    """Simulate as `simulate` does, but begin with `account`. Return (path, accounts at the close of row `last`)."""
    zeros, undecided = torch.zeros_like(account.shares), torch.full_like(account.shares, torch.nan)
    equity, shares = [value(account.cash, account.shares, execution.mark[first])], [account.shares]
    records = []
    for row, session in enumerate(sessions(execution, first, last, decide, terms, account), start=first):
        account, filled = session.account, session.filled
        gone = zeros if account is filled else filled.shares - account.shares
        target = undecided if session.target is None else session.target.double().expand_as(zeros)
        records.append((session.fill.traded, session.turnover, gone, session.unfilled, target))
        equity.append(value(account.cash, account.shares, execution.mark[row + 1]))
        shares.append(account.shares)
    traded, *columns = (torch.stack(column) for column in zip(*records, strict=True))
    rows = torch.arange(first, last, device=traded.device).view(-1, *[1] * account.cash.ndim)
    cost = execution.cost(traded, rows, terms.costs)
    return Path(torch.stack(equity), torch.stack(shares), traded, cost, *columns), account


def simulate_totals(
    execution: Execution, first: int, last: int, decide: Decide, terms: Terms, accounts: tuple[int, ...] = ()
) -> Totals:
    """Simulate like `simulate`, but return totals over assets. Both give equal equity and turnover, to the last bit."""
    account, steps = opening(execution, terms, accounts), last - first
    equity = account.cash.new_empty((steps + 1, *accounts))
    turnover, cost = account.cash.new_zeros((2, steps, *accounts))
    equity[0] = account.cash
    for step, session in enumerate(sessions(execution, first, last, decide, terms, account)):
        account = session.account
        if session.target is not None:
            turnover[step], cost[step] = session.turnover, session.fill.cost
        equity[step + 1] = value(account.cash, account.shares, execution.mark[first + step + 1])
    return Totals(equity, turnover, cost)


def anchor_decisions(
    market: MarketData, execution: Execution, first: int, last: int, *, anchor: str = EQUAL, every: int = 1
) -> tuple[Tensor, Array]:
    """Return the weights [T, N] of an anchor for T rows and N assets, and a mask [T] of the rows to rebalance at.

    Row b is the first row that an account in the window from `first` to `last` can see. The anchor is rebalanced at row
    b and then at the first row of each session. If `every` > 1, the anchor is rebalanced at row b and then at every
    `every`-th row instead. Raises InputError in the cases of `anchor_weights`.
    """
    due, begins = market.begins_session.copy(), max(first - execution.lag, 0)
    due[begins] = True
    if every > 1:
        due = (np.arange(len(due)) - begins) % every == 0
    return anchor_weights(execution, anchor, market, slice(begins, last)), due


def opening(execution: Execution, terms: Terms, accounts: tuple[int, ...]) -> Account:
    """Return accounts of shape `accounts` that hold only the initial cash."""
    cash = torch.full(accounts, terms.cash, dtype=torch.float64, device=execution.mark.device)
    return Account(cash, cash.new_zeros((*accounts, execution.mark.shape[1])))


def sessions(
    execution: Execution, first: int, last: int, decide: Decide, terms: Terms, account: Account
) -> Iterator[Session]:
    """Yield each `Session` of `account` from the close of row `first` to the close of row `last`, in order of time."""
    zeros, no_cash, seen = torch.zeros_like(account.shares), torch.zeros_like(account.cash), account
    delists = execution.delisted[first : last + 1].any(-1).tolist()
    earliest = max(first, execution.lag)
    for row in range(first, last):
        weights = decide(row - earliest, row - execution.lag, seen) if row >= earliest else None
        if weights is None:
            session = Session(None, zeros, Fill(*account, zeros, no_cash, no_cash), no_cash, account, account)
        else:
            session = trade(execution, row, account, weights, terms)
        if delists[row + 1 - first]:
            session = session._replace(account=execution.carry(session.filled, row, terms.delisting_return))
        account = session.account
        # With close fills, the next decision is made after this fill and before the delistings at the next close.
        seen = session.filled if execution.lag else account
        yield session


def trade(execution: Execution, row: Row, account: Account, weights: Tensor, terms: Terms) -> Session:
    """Trade `account` on target `weights` [..., N] in the step from the close of `row`. Return the `Session` without
    delistings, which `Execution.carry` applies."""
    price = execution.price[execution.fill_row(row)]
    before = value(*account, price)
    weights = execution.within(weights, account, row, terms.max_weight, terms.max_turnover)
    orders, decided = orders_for(weights, before, account.shares, price), weights[..., :1] == weights[..., :1]
    if not decided.all():
        orders = orders.where(decided, 0.0)
    fill = execution.trade(account, row, orders, terms.costs, whole_shares=terms.whole_shares)
    filled = Account(fill.cash, fill.shares)
    return Session(weights, orders, fill, fill.notional / before.clamp(min=1e-300), filled, filled)
