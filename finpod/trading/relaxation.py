"""`relax`: simulate one account on precomputed weights, many sessions at once (`fast=True` of a backtest)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from finpod.trading.execution import Account, Execution
from finpod.trading.ledger import value
from finpod.trading.simulate import Path, Terms, opening, path_from, trade

BLOCK = 2**15
"""Number of rows times number of assets of a block. Its tables fit the cache, and torch uses one thread for them."""
CLOSE = 1e-12
"""Sweeps (see `relax`) have converged if the last sweep changed no account by more than this fraction of its equity."""
SWEEPS = 24
"""Number of sweeps after which a block that has not converged is simulated session by session."""


def relax(execution: Execution, first: int, last: int, weights: Tensor, terms: Terms) -> Path:
    """Return the path of one account that trades on target `weights` [n, N] of N assets in each of n steps.

    This is about 10 times faster than `simulate`, and equity agrees to 1e-9. Rows of NaN trade nothing. A sweep settles
    all sessions of a block in parallel, as if they were separate accounts. Each session starts from the account at the
    end of the session before, as computed by the previous sweep. Sweeps are repeated until nothing changes (Picard
    iteration parallel in time; waveform relaxation, Lelarasmee, Ruehli and Sangiovanni-Vincentelli 1982). Sweeps
    converge fast because a rebalanced account depends on its past only through its size, and the ledger is independent
    of scale. Whole shares and market impact depend on scale, and a cap on turnover depends on past weights. In these
    cases, and in blocks that do not converge, sessions are simulated one by one.
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
    """Trade `account` on `weights` [B, N] in a block of B sessions, and return (path, account after the block).

    The block begins at the close of row `first`. Return None if the sweeps do not converge. In the code, `starts` and
    `ends` are the accounts [B] at the closes before and after each session.
    """
    execution, row = _side_by_side(execution, first, len(weights)), execution.lag
    before, after, gone = execution.mark[row], execution.mark[row + 1], execution.delisted[row + 1]
    size = value(account.cash, account.shares, before[0])
    decided = ~weights[:, 0].isnan()
    ends = Account((1 - weights.sum(-1)) * size, weights * size / execution.price[execution.fill_row(row)])
    starts = _shifted(account, _filled_forward(account, ends, decided.unsqueeze(-1)))
    for _ in range(SWEEPS):
        session = trade(execution, row, starts, weights, terms)
        ends = execution.carry(session.filled, row, terms.delisting_return)
        worth = value(starts.cash, starts.shares, before)
        equity = size * (value(ends.cash, ends.shares, after) / worth).cumprod(0)
        scale = torch.cat([size[None], equity[:-1]]) / worth
        ends = Account(ends.cash * scale, ends.shares * scale.unsqueeze(-1))
        ends = _filled_forward(account, ends, (session.fill.traded != 0) | gone)
        new = _shifted(account, ends)
        moved = (new.cash - starts.cash).abs_() + (new.shares - starts.shares).abs_().mul_(before).sum(-1)
        if bool((moved <= CLOSE * worth).all()):
            assert session.target is not None, "precomputed weights have a decision every session"
            equity = torch.cat([size[None], value(ends.cash, ends.shares, after)])
            shares = torch.cat([account.shares[None], ends.shares])
            left = session.filled.shares * gone
            cost = execution.cost(session.fill.traded, row, terms.costs)
            columns = (session.fill.traded, cost, session.turnover, left, session.unfilled, session.target)
            return Path(equity, shares, *columns), Account(ends.cash[-1], ends.shares[-1])
        starts = new
    return None


def _side_by_side(execution: Execution, first: int, count: int) -> Execution:
    """Return an `Execution` that treats B = `count` sessions as B accounts. Tables are [lag + 2, B, N] for N assets.

    Entry [lag, b] of each table is row first + b of the market.
    """

    def sides(table: Tensor | None) -> Tensor | None:
        if table is None:
            return None
        return table.unfold(0, execution.lag + 2, 1).permute(2, 0, 1)[:, first - execution.lag :][:, :count]

    names = ("price", "tradable", "mark", "has_bar", "member", "among", "delisted", "factor")
    tables: dict[str, Any] = {name: sides(getattr(execution, name)) for name in names}
    return replace(execution, volume=None, **tables)


def _shifted(account: Account, ends: Account) -> Account:
    """Return the accounts [B] at the start of each session: `account`, then the ends of all sessions but the last."""
    return Account(*(torch.cat([start[None], end[:-1]]) for start, end in zip(account, ends, strict=True)))


def _filled_forward(account: Account, ends: Account, touched: Tensor) -> Account:
    """Return `ends` [B], but keep the shares of an asset until its next trade, and cash until the next trade of any
    asset. `touched` [B, N] or [B, 1] marks trades. Before the first trade, `account` is used."""
    count = torch.arange(1, len(touched) + 1, device=touched.device).unsqueeze(-1)
    last = torch.where(touched, count, 0).cummax(0).values
    shares = torch.cat([account.shares[None], ends.shares]).gather(0, last.expand_as(ends.shares))
    return Account(torch.cat([account.cash[None], ends.cash])[last.amax(-1)], shares)
