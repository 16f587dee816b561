"""Looks for results that change if later rows of the market are cut off or replaced by noise."""

from __future__ import annotations

from dataclasses import replace
from itertools import product, zip_longest
from typing import Any

import numpy as np

from finpod.errors import FinpodError, InputError, require_number, require_seed
from finpod.features.panel import name_of
from finpod.lookahead.isolation import ChildError, Isolated
from finpod.market.checks import back_filled
from finpod.market.data import PRICES, SERIES, MarketData
from finpod.measures import Array
from finpod.records import Finding, Severity
from finpod.strategy import FeatureLike, FeatureTable
from finpod.trading.execution import build_execution

CUT, NOISE = "cut", "noise"
TOLERANCE = 1e-5
"""Largest change, relative to max(1, |value|), that counts as rounding if later rows are cut off."""


class NotRepeatable(Exception):
    """Raised if two results on the same data differ. The message is the date on which they differ."""


def auditable_rows(market: MarketData, first: int, last: int) -> Array:
    """Return the rows in [first, last] that can be audited: from the first bar of the market on, without its last row.
    Raises InputError if there is no such row."""
    rows = np.arange(max(first, int(market.has_bar.any(axis=1).argmax())), min(last, len(market.dates) - 2) + 1)
    if not len(rows):
        begin, end = market.dates[[first, last]].astype("datetime64[D]")
        raise InputError(f"no bar from {begin} to {end} is followed by a later bar; choose another window")
    return rows


def sample_rows(market: MarketData, days: int, seed: int, rows: Array) -> Array:
    """Return a sorted sample of up to `days` of the rows. Up to half of the sample comes just before an asset's first
    bar, a bar after a gap, a change of membership or a missing bar. Use of later rows is easy to detect there."""
    require_seed(seed)
    require_number("days", days, 1, whole=True)
    if days >= len(rows):
        return rows
    random = np.random.default_rng(seed)
    bar, later = market.has_bar[rows], market.has_bar[rows + 1]
    ever = np.logical_or.accumulate(market.has_bar, axis=0)[rows]
    changes = (later & ~ever, later & ~bar & ever, market.member[rows] != market.member[rows + 1], bar & ~later)
    shuffled = (random.permutation(rows[changed.any(axis=1)]).tolist() for changed in changes)
    in_turn = (row for turn in zip_longest(*shuffled) for row in turn if row is not None)
    chosen = list(dict.fromkeys(in_turn))[: days // 2]
    others = random.choice(np.setdiff1d(rows, chosen), days - len(chosen), replace=False)
    return np.sort(np.concatenate([np.array(chosen, dtype=int), others]))


def with_noise_after(market: MarketData, row: int, seed: int = 0) -> MarketData:
    """Return the market with noise in the rows after `row`, extra columns included. Tickers and dates stay the same."""
    random = np.random.default_rng([seed, row])
    shape = len(later := market.dates[row + 1 :]), len(market.tickers)
    prices = np.where(random.random(shape) < 0.9, random.lognormal(3.0, 1.0, shape), np.nan)
    noise: dict[str, Array] = {
        **dict.fromkeys(PRICES, prices),
        "volume": random.lognormal(12.0, 2.0, shape),
        "factor": random.uniform(0.2, 1.0, shape),
        "member": random.random(shape) < 0.5,
        **dict.fromkeys(SERIES, random.lognormal(5.0, 1.0, len(later))),
    }
    tables: Any = {name: np.concatenate([table[: row + 1], noise[name]]) for name, table in market.tables.items()}
    extra = {
        name: np.concatenate([table[: row + 1], random.normal(size=table[row + 1 :].shape)])
        for name, table in market.extra.tables.items()
    }
    last_bar = np.where(market.last_bar > market.dates[row], random.choice(later, shape[1]), market.last_bar)
    return replace(market, last_bar=last_bar, extra=replace(market.extra, tables=extra), **tables)


def feature_findings(isolated: Isolated, rows: Array, seed: int) -> list[Finding]:
    """Return findings on user features whose values on `rows` change if later rows are cut off or replaced by noise.
    Raises NotRepeatable if two computations on the same data differ."""
    findings = []
    for feature, kind in product(list(isolated.functions.values()), (CUT, NOISE)):
        sizes = np.array([_difference(isolated, feature, row, kind, seed) for row in map(int, rows)])
        findings += change_findings(isolated.market, name_of(feature), kind, rows, sizes)
    return findings


def _difference(isolated: Isolated, feature: FeatureLike, row: int, kind: str, seed: int) -> Array:
    market, whole = isolated.market, _value(isolated.table, feature, row)
    isolated.child.at = "features", row
    other = market.rows(0, row + 1) if kind == CUT else with_noise_after(market, row, seed)
    size = differences(whole, _value(FeatureTable(other), feature, row), kind)
    if size.any():
        again = _value(FeatureTable(replace(market)), feature, row)  # a copy: computed again in `isolated.child`
        if differences(whole, again, NOISE).any():
            raise NotRepeatable(f"{market.dates[row]!s:.10}")
    return size


def _value(table: FeatureTable, feature: FeatureLike, row: int) -> Array:
    """Return the values [N] of a feature on a row; infinite if the feature fails."""
    try:
        return table.get([feature])[1][row, :, 0]
    except FinpodError as error:
        if isinstance(error.__cause__, ChildError):
            raise error.__cause__ from error
        return np.full(len(table.market.tickers), np.inf)


def differences(whole: Array, other: Array, kind: str) -> Array:
    """Return the absolute differences of two results [..., N]; infinite where only one of the results has a value. If
    `kind` is `CUT`, differences up to `TOLERANCE` are 0."""
    same = (whole == other) | (np.isnan(whole) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        size = np.where(same, 0.0, np.nan_to_num(np.abs(other.astype(np.float64) - whole), nan=np.inf, posinf=np.inf))
    allowed = TOLERANCE * np.maximum(1.0, np.abs(np.nan_to_num(whole))) if kind == CUT else 0.0
    return np.where(size > allowed, size, 0.0)


def change_findings(market: MarketData, where: str, kind: str, rows: Array, sizes: Array) -> list[Finding]:
    """Return a finding on the largest of the differences `sizes` [R, N] on the R `rows`; an empty list if all are 0."""
    leaking = np.flatnonzero(sizes.any(axis=1))
    if not len(leaking):
        return []
    largest, column = np.unravel_index(sizes.argmax(), sizes.shape)
    first, largest_on = (f"{market.dates[rows[i]]!s:.10}" for i in (leaking[0], largest))
    data = {"largest_on": largest_on, "days": len(leaking), "checked": len(rows)}
    size = float(sizes.max())
    return [Finding(kind, Severity.LOOKS_AHEAD, where, first, market.tickers[column], size=size, data=data)]


def fill_findings(market: MarketData, rows: Array, seed: int = 0) -> list[Finding]:
    """Return a finding for each fill (open, close) whose price was known: it stays the same if later rows are noise."""
    findings: dict[str, Finding] = {}
    for fill, row in product(("open", "close") if market.open is not None else ("close",), rows):
        part, at = market.rows(max(row - 1, 0), min(row + 4, len(market.dates))), min(row, 1)
        real, noisy = (build_execution(on, fill) for on in (part, with_noise_after(part, at, seed)))
        filled = real.fill_row(at + real.lag)
        same = real.tradable[filled] & noisy.tradable[filled] & (real.price[filled] == noisy.price[filled])
        if fill not in findings and same.any():
            column = int(same.int().argmax())
            where = "fills", f"{market.dates[row]!s:.10}", market.tickers[column]
            price, data = float(real.price[filled, column]), {"fill": fill}
            findings[fill] = Finding("fill", Severity.LOOKS_AHEAD, *where, size=price, data=data)
    return list(findings.values())


def back_fill_findings(market: MarketData, first: int, last: int) -> list[Finding]:
    """Return one finding if prices in the rows [first, last] look back-filled before an asset's first real bar."""
    columns, starts, ends = back_filled(market)
    seen = np.flatnonzero((first <= ends) & (starts <= last))
    if not len(seen):
        return []
    day, until = (f"{market.dates[rows[seen[0]]]!s:.10}" for rows in (starts, ends))
    data, ticker = {"until": until, "count": len(seen)}, market.tickers[columns[seen[0]]]
    return [Finding("backfilled", Severity.LOOKS_AHEAD, "data", day, ticker, data=data)]
