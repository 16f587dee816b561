"""Markets whose future is cut off or made noise, the days on which that shows most, and features computed again on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from finpod.errors import FinpodError, InputError
from finpod.features.panel import name_of
from finpod.lookahead.isolation import Child, ChildError, Function
from finpod.market.anomalies import back_filled
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.records import Finding, Severity
from finpod.seeds import require_seed
from finpod.strategy import FeatureLike, FeatureTable, equal_parts
from finpod.trading.execution import Account, build_execution
from finpod.trading.ledger import Costs
from finpod.trading.simulate import Terms, simulate

CUT, NOISE = "cut", "noise"
TOLERANCE = 1e-5
"""Largest change of a weight, or relative change of a feature, that a shorter market may cause through rounding."""


class Change(NamedTuple):
    """Results [N] of one row on the market, and without its future."""

    row: int
    whole: Array
    other: Array


class NotRepeatable(Exception):
    """Two results on the same data differ; the text is the day."""


def sample_rows(market: MarketData, days: int, seed: int, first: int, last: int, among: Array | None = None) -> Array:
    """Sorted rows of up to `days` sessions from row `first` to row `last`, if given `among` these; each has a row after it.

    Half of them, where there are such, lie just before the first bar of an asset, a bar after a gap, a change of membership
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
    """The market with every row after `row` replaced by noise, extra columns too; rows up to it, tickers and dates stay."""
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


def recompute(
    child: Child, market: MarketData, table: FeatureTable, features: Sequence[FeatureLike], rows: Array, seed: int
) -> Iterator[tuple[str, str, list[Change]]]:
    """Name, kind of market and changes on `rows` of each feature, computed on the market without the future of the row.

    Functions are computed in the child; `table` has the features of the whole market. Raises NotRepeatable for a function
    of which two computations on the whole market differ.
    """
    own = {one: one.by(child) if isinstance(one, Function) else one for one in features}
    changes: dict[tuple[FeatureLike, str], list[Change]] = {
        (one, kind): [] for one in features for kind in (CUT, NOISE)
    }
    for row in map(int, rows if features else ()):
        child.row = row
        for kind in (CUT, NOISE):
            other = FeatureTable(market.rows(0, row + 1) if kind == CUT else with_noise_after(market, row, seed))
            for one in features:
                changes[one, kind].append(Change(row, _value(table, one, row), _value(other, own[one], row)))
    for (one, kind), pairs in changes.items():
        leaking = next((change for change in pairs if size_of(change, kind)), None)
        if leaking is not None and isinstance(one, Function):
            again = _value(FeatureTable(market), own[one], leaking.row)
            if size_of(leaking._replace(other=again), NOISE):
                raise NotRepeatable(f"{market.dates[leaking.row]!s:.10}")
        yield name_of(one), kind, pairs


def _value(table: FeatureTable, feature: FeatureLike, row: int) -> Array:
    """[N] of a feature; infinite where it fails."""
    try:
        return table.get([feature])[1][row, :, 0]
    except FinpodError as error:
        if isinstance(error.__cause__, ChildError):
            raise error.__cause__ from error
        return np.full(len(table.market.tickers), np.inf)


def change_findings(market: MarketData, where: str, kind: str, pairs: Sequence[Change]) -> list[Finding]:
    """One finding if a result changed with its future, for the largest change."""
    leaks = [(change, size) for change in pairs if (size := size_of(change, kind))]
    if not leaks:
        return []
    largest, size = max(leaks, key=lambda leak: leak[1])
    ticker = market.tickers[int(_differences(largest, kind).argmax())]
    data = {"largest_on": f"{market.dates[largest.row]!s:.10}", "days": len(leaks), "checked": len(pairs)}
    day = f"{market.dates[leaks[0][0].row]!s:.10}"
    return [Finding(kind, Severity.LOOKS_AHEAD, where, day, ticker, size=size, data=data)]


def size_of(change: Change, kind: str) -> float:
    """The largest change of an asset if it is more than rounding, else 0; infinite where a value appears or vanishes."""
    return float(_differences(change, kind).max())


def _differences(change: Change, kind: str) -> Array:
    _, whole, other = change
    same = (whole == other) | (np.isnan(whole) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        size = np.where(same, 0.0, np.nan_to_num(np.abs(other.astype(np.float64) - whole), nan=np.inf, posinf=np.inf))
    allowed = TOLERANCE * np.maximum(1.0, np.abs(np.nan_to_num(whole))) if kind == CUT else 0.0
    return np.where(size > allowed, size, 0.0)


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


def back_fill_findings(market: MarketData, first: int, last: int) -> list[Finding]:
    """One finding if assets look back-filled before their first real bar, and that bar lies in the rows [first, last]."""
    columns, starts, ends = back_filled(market)
    seen = np.flatnonzero((first <= ends) & (starts <= last))
    if not len(seen):
        return []
    day, until = (f"{market.dates[rows[seen[0]]]!s:.10}" for rows in (starts, ends))
    data, ticker = {"until": until, "count": len(seen)}, market.tickers[columns[seen[0]]]
    return [Finding("backfilled", Severity.LOOKS_AHEAD, "data", day, ticker, data=data)]
