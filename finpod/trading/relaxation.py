"""`relax`: the path of one account on ready weights, many of its sessions at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from finpod.trading.execution import Account, Execution
from finpod.trading.ledger import value
from finpod.trading.simulate import Path, Terms, opening, path_from, trade

BLOCK = 2**15
"""Sessions times names that are settled at once: so few that they stay in the cache, and torch takes one thread."""
CLOSE = 1e-12
"""Share of its equity that may still move in an account at the last sweep."""
EASY = 4
"""Sweeps that settle a block in which every order is filled."""
SWEEPS = 24
"""Sweeps after which a block that does not settle is taken session by session."""


def relax(execution: Execution, first: int, last: int, weights: Tensor, terms: Terms) -> Path:
    """As `simulate`, for one account on ready `weights` [n, N] (NaN trades nothing), to 1e-9 and in a tenth of the time.

    A sweep settles all sessions of a block side by side, as if they were accounts of their own, each starting where the
    sweep before saw the session before it end; sweeps are repeated until nothing moves (Picard iteration in parallel in
    time; waveform relaxation, Lelarasmee, Ruehli and Sangiovanni-Vincentelli 1982). An account that is brought to its
    weights forgets its past but for its size and a fee's share of the rest, and the sizes follow from the growth of each
    session, for the ledger knows no scale. Whole shares and market impact do, and a cap on turnover keeps what is
    held: with them, and where sweeps do not settle, the sessions are taken one by one.
    """

    def decide(_step: int, row: int, _seen: Account) -> Tensor:
        return weights[row + execution.lag - first]

    account, start, pieces = opening(execution, terms, ()), first, list[Path]()
    size = max(BLOCK // weights.shape[1], 1)
    while start < last:
        end, ended = (min(start + size, last) if start >= execution.lag else execution.lag), None
        if start >= execution.lag and not (terms.whole_shares or terms.costs.impact or terms.max_turnover):
            ended = _settled(account, execution, start, weights[start - first : end - first], terms)
        piece, account = ended or path_from(account, execution, start, end, decide, terms)
        pieces.append(piece if not pieces else piece._replace(equity=piece.equity[1:], shares=piece.shares[1:]))
        start = end
    return Path(*map(torch.cat, zip(*pieces, strict=True)))


def _settled(
    account: Account, execution: Execution, first: int, weights: Tensor, terms: Terms
) -> tuple[Path, Account] | None:
    """The path of `account` from the close of row `first` on weights [B, N], and how it ends; None if it does not settle.

    `starts` and `ends` are accounts [B] at the closes before and after each session.
    """
    execution, row = _side_by_side(execution, first, len(weights)), execution.lag
    before, after, gone = execution.mark[row], execution.mark[row + 1], execution.delisted[row + 1]
    size = value(account.cash, account.shares, before[0])
    decided = ~weights[:, 0].isnan()
    ends = Account((1 - weights.sum(-1)) * size, weights * size / execution.price[execution.fill_row(row)])
    starts = _shifted(account, _carried_on(account, ends, decided.unsqueeze(-1)))
    touched = (decided | gone.any(-1)).unsqueeze(-1)
    for sweep in range(SWEEPS):
        session = trade(execution, row, starts, weights, terms)
        ends = execution.carry(session.filled, row, terms.delisting_return)
        worth = value(starts.cash, starts.shares, before)
        equity = size * (value(ends.cash, ends.shares, after) / worth).cumprod(0)
        scale = torch.cat([size[None], equity[:-1]]) / worth
        ends = Account(ends.cash * scale, ends.shares * scale.unsqueeze(-1))
        ends = _carried_on(account, ends, (session.fill.traded != 0) | gone if sweep >= EASY else touched)
        new = _shifted(account, ends)
        moved = (new.cash - starts.cash).abs_() + (new.shares - starts.shares).abs_().mul_(before).sum(-1)
        if bool((moved <= CLOSE * worth).all()):
            assert session.target is not None, "ready weights are decided every session"
            equity = torch.cat([size[None], value(ends.cash, ends.shares, after)])
            shares = torch.cat([account.shares[None], ends.shares])
            left = session.filled.shares * gone
            cost = execution.cost(session.fill.traded, row, terms.costs)
            own = (session.fill.traded, cost, session.turnover, left, session.unfilled, session.target)
            return Path(equity, shares, *own), Account(ends.cash[-1], ends.shares[-1])
        starts = new
    return None


def _side_by_side(execution: Execution, first: int, count: int) -> Execution:
    """A execution of [lag + 2] rows with `count` sessions side by side in each, that of row `first` being in row `lag`."""

    def sides(table: Tensor | None) -> Tensor | None:
        if table is None:
            return None
        return table.unfold(0, execution.lag + 2, 1).permute(2, 0, 1)[:, first - execution.lag :][:, :count]

    names = ("price", "tradable", "mark", "has_bar", "member", "delisted", "factor")
    tables: dict[str, Any] = {name: sides(getattr(execution, name)) for name in names}
    return replace(execution, volume=None, **tables)


def _shifted(account: Account, ends: Account) -> Account:
    """[B] where the sessions start: the first from `account`, each other one where the one before it ends."""
    return Account(*(torch.cat([own[None], end[:-1]]) for own, end in zip(account, ends, strict=True)))


def _carried_on(account: Account, ends: Account, touched: Tensor) -> Account:
    """`ends` [B], with what a session has not `touched` [B, N] or [B, 1] as it was at the end of the last one that did."""
    if touched.all():
        return ends
    count = torch.arange(1, len(touched) + 1, device=touched.device).unsqueeze(-1)
    last = torch.where(touched, count, 0).cummax(0).values
    shares = torch.cat([account.shares[None], ends.shares]).gather(0, last.expand_as(ends.shares))
    return Account(torch.cat([account.cash[None], ends.cash])[last.amax(-1)], shares)
