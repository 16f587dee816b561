"""Markets without their future, the days on which that tells most, and what the market's own data and fills know of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from finpod.errors import InputError
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.records import Finding, Severity
from finpod.seeds import require_seed
from finpod.strategy import equal_parts
from finpod.trading.execution import Account, build_execution
from finpod.trading.ledger import Costs
from finpod.trading.simulate import Terms, simulate

STILL, STILL_WITHOUT_VOLUME = 5, 20
"""Sessions without a move at the start of a name that look back-filled, where volumes confirm it and where there are none."""


def sample_rows(market: MarketData, days: int, seed: int, first: int, last: int, among: Array | None = None) -> Array:
    """Sorted rows of up to `days` sessions from row `first` to row `last`, if given `among` these; each has a row after it.

    Half of them, where there are such, lie just before the first bar of a name, a bar after a gap, a change of membership
    or a missing bar: there the future shows. Raises InputError if there is none to sample.
    """
    require_seed(seed)
    if days < 1:
        raise InputError(f"days is {days}; it must be a whole number from 1 on", argument="days")
    rows = auditable_rows(market, first, last)
    rows = rows if among is None else np.intersect1d(rows, among)
    if not len(rows):
        raise InputError(f"no session follows {market.dates[first]!s:.10}; audit an earlier window")
    if days >= len(rows):
        return rows
    random = np.random.default_rng(seed)
    kinds = [random.permutation(rows[tells]).tolist() for tells in _telling(market, rows)]
    chosen: list[int] = []
    while len(chosen) < days // 2 and any(kinds):
        for kind in filter(None, kinds):
            row = kind.pop()
            if row not in chosen and len(chosen) < days // 2:
                chosen.append(row)
    others = random.choice(np.setdiff1d(rows, chosen), days - len(chosen), replace=False)
    return np.sort(np.concatenate([np.array(chosen, dtype=int), others]))


def auditable_rows(market: MarketData, first: int, last: int) -> Array:
    """Those from row `first` to row `last` that have prices before and a row after them."""
    priced = max(first, int(market.has_bar.any(axis=1).argmax()))
    return np.arange(priced, min(last, len(market.dates) - 2) + 1)


def _telling(market: MarketData, rows: Array) -> list[Array]:
    """For each kind of change from a row to the next, which of the rows [R] it follows."""
    bar, later = market.has_bar[rows], market.has_bar[rows + 1]
    ever = np.logical_or.accumulate(market.has_bar, axis=0)[rows]
    begins, returns, ends = later & ~ever, later & ~bar & ever, bar & ~later
    joins = market.member[rows] != market.member[rows + 1]
    return [changed.any(axis=1) for changed in (begins, returns, joins, ends)]


def with_noise_after(market: MarketData, row: int, seed: int = 0) -> MarketData:
    """The market with every row after `row` replaced by noise, extra columns too; rows up to it, names and dates stay."""
    random = np.random.default_rng([seed, row])
    later, names = len(market.dates) - row - 1, len(market.tickers)
    bar = random.random((later, names)) < 0.9
    close, opened = (np.where(bar, random.lognormal(3.0, 1.0, (later, names)), np.nan) for _ in range(2))
    noise: dict[str, Array] = {
        "close": close,
        "open": opened,
        "high": np.maximum(opened, close),
        "low": np.minimum(opened, close),
        "volume": np.where(bar, random.lognormal(12.0, 2.0, (later, names)), np.nan),
        "factor": np.where(bar, random.uniform(0.2, 1.0, (later, names)), np.nan),
        "member": random.random((later, names)) < 0.5,
        "benchmark_close": random.lognormal(5.0, 1.0, later),
        "benchmark_open": random.lognormal(5.0, 1.0, later),
    }
    tables: dict[str, Any] = {
        name: np.concatenate([table[: row + 1], rows])
        for name, rows in noise.items()
        if (table := getattr(market, name)) is not None
    }
    ends_later = market.last_bar > market.dates[row]
    other_ends = random.choice(market.dates[row + 1 :], names)
    extra = {name: _noisy(table, row, random) for name, table in market.extra.tables.items()}
    last_bar = np.where(ends_later, other_ends, market.last_bar)
    return replace(market, last_bar=last_bar, extra=replace(market.extra, tables=extra), **tables)


def _noisy(table: Array, row: int, random: np.random.Generator) -> Array:
    """[T, ...] a table with normal noise, and gaps, in the rows after `row`."""
    later = table[row + 1 :].shape
    noise = np.where(random.random(later) < 0.9, random.normal(size=later), np.nan)
    return np.concatenate([table[: row + 1], noise])


def fill_findings(market: MarketData, rows: Array, seed: int = 0) -> list[Finding]:
    """One finding for each kind of fill at whose prices a decision that saw the rows up to one of `rows` is not blind.

    The decision buys equal parts through `simulate`, on the market and on the one with noise after the day. What is
    filled at a price of a later row buys another number of shares there.
    """
    findings = []
    for fill in ("open", "close"):
        if fill == "open" and market.open is None:
            continue
        for row in rows:
            part, at = market.rows(max(row - 1, 0), min(row + 4, len(market.dates))), min(row, 1)
            bought, other = (_bought(on, at, fill) for on in (part, with_noise_after(part, at, seed)))
            same = (bought > 0) & np.isclose(bought, other, rtol=1e-9, atol=0)
            if same.any():
                column = int(same.argmax())
                day, ticker, price = f"{market.dates[row]!s:.10}", market.tickers[column], float(1 / bought[column])
                looks = Severity.LOOKS_AHEAD
                findings.append(Finding("fill", looks, "fills", day, ticker, size=price, data={"fill": fill}))
                break
    return findings


def _bought(market: MarketData, row: int, fill: str) -> Array:
    """[N] shares that a unit of currency, put into each name by the decision that sees up to `row`, buys; 0 for none."""
    among = market.member[row] & market.has_bar[row]
    weights = torch.from_numpy(0.5 * equal_parts(among))  # half the cash, so that no order is cut to what is left

    def decide(step: int, seen: int, account: Account) -> torch.Tensor | None:
        return weights if seen == row else None

    terms = Terms(costs=Costs(fee_bps=0.0))
    path = simulate(build_execution(market, fill), 0, len(market.dates) - 1, decide, terms)
    spent = torch.where(weights > 0, weights * terms.cash, 1.0)
    return (path.traded.clamp(min=0).sum(0) / spent).numpy()


def back_filled(market: MarketData, first: int, last: int) -> list[Finding]:
    """A finding if names look back-filled before their first real bar, and that bar lies in the rows [first, last].

    They do if the close stands still from the first bar on, for `STILL` sessions without any volume up to the first bar
    with one, which has that price too; or, in data without volumes, for `STILL_WITHOUT_VOLUME` sessions and then moves
    in nine sessions of ten.
    """
    days, names = market.shape
    columns, start = np.arange(names), market.has_bar.argmax(axis=0)
    begun = np.arange(days)[:, None] >= start
    price = market.close[start, columns]
    still = np.logical_and.accumulate(~begun | (market.close == price), axis=0).sum(axis=0)
    if market.volume is None:
        changes = np.abs(np.diff(market.close, axis=0)) > 0
        after = np.cumsum(np.vstack([changes[:1] & False, changes]), axis=0)
        until = (still + STILL_WITHOUT_VOLUME).clip(max=days - 1)
        moves = after[until, columns] - after[still.clip(max=days - 1), columns]
        real, least = still - 1, STILL_WITHOUT_VOLUME
        found = (until == still + STILL_WITHOUT_VOLUME) & (moves >= 0.9 * STILL_WITHOUT_VOLUME)
    else:
        quiet = np.logical_and.accumulate(~begun | ~(market.volume > 0), axis=0).sum(axis=0)
        real, least = quiet.clip(max=days - 1), STILL
        first_price = [table[real, columns] for table in (market.close, market.open) if table is not None]
        found = (quiet < days) & (still >= quiet) & np.any([one == price for one in first_price], axis=0)
    found &= (real - start >= least * market.bars_per_session) & (first <= real) & (start <= last)
    if not found.any():
        return []
    column = int(np.argmax(found))
    day, until = (f"{market.dates[row[column]]!s:.10}" for row in (start, real))
    data = {"until": until, "count": int(found.sum())}
    return [Finding("backfilled", Severity.LOOKS_AHEAD, "data", day, market.tickers[column], data=data)]
