"""The audit: does a strategy, or a feature, use what could not be known on the day?

On sampled days everything after the day is taken away, and then replaced by noise. What was decided must not change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from finpod.decisions import decide_once
from finpod.errors import FinpodError, InputError, StrategyError
from finpod.market.data import Array, DateLike, MarketData
from finpod.strategy import FeatureLike, MarketView, Strategy

CUT_TOLERANCE = 1e-5
"""Largest change of a weight, or relative change of a feature, that a shorter market may cause through rounding."""
WITHOUT, WITH_NOISE = "are left out", "are replaced by noise"


@dataclass(frozen=True)
class Audit:
    """The verdict; prints itself."""

    passed: bool
    """Whether nothing was found on the days checked."""
    findings: tuple[str, ...]
    """What was found, one sentence each."""
    days: tuple[np.datetime64, ...]
    """The days checked."""
    subject: str
    """What was audited."""

    def __str__(self) -> str:
        span = f"{len(self.days)} days from {self.days[0]!s:.10} to {self.days[-1]!s:.10}"
        if self.passed:
            return f"{self.subject}: no look-ahead found on {span}"
        return "\n".join([f"{self.subject}: LOOKS AHEAD, checked on {span}", *(f"  {line}" for line in self.findings)])


class Leak(NamedTuple):
    """One value that changed with its future."""

    row: int
    size: float
    ticker: str


def audit(
    strategy: Strategy,
    market: MarketData,
    *,
    days: int = 12,
    seed: int = 0,
    start: DateLike | None = None,
    end: DateLike | None = None,
) -> Audit:
    """Check decisions on `days` sampled sessions of [start, end], and the `features` a strategy declares, a name or a list.

    For each day the decision on the whole market is compared with that on the market cut off after the day (equal to
    1e-5 in every weight) and on the market with all later rows replaced by noise: prices, volumes, the benchmark, which
    bars are missing, membership and last bars (equal to the last bit). Every decision is taken by a fresh copy of the
    strategy in an account that is all cash, as the first of a run (step 0). So it covers what is read through the view,
    feature functions included; it does not cover rules that act only once something is held or at a later step, and it
    cannot catch a strategy that carries its own copy of the data. Only days that were sampled count.

    Raises InputError for a window with nothing after it and StrategyError where the strategy itself fails.
    """
    label = strategy.name
    market = market.benchmark_market() if strategy.trades_benchmark else market
    rows = _sample(market, days, seed, start, end)

    def decide(on: MarketData, row: int) -> Array:
        weights = decide_once(_copy_of(strategy), MarketView(on, row), label)
        return np.full(len(on.tickers), np.nan) if weights is None else weights

    restless = [row for row in rows if not _same(decide(market, row), decide(market, row))]
    if restless:
        day = market.dates[restless[0]]
        findings = [
            f"decisions: not repeatable; on {day!s:.10} two decisions on the same data differ, so that look-ahead cannot "
            "be told from chance (draw random numbers from a generator of the strategy's own)"
        ]
    else:
        findings = _compare("decisions", decide, market, rows, seed)
    declared = getattr(strategy, "features", None)
    if isinstance(declared, (str, list, tuple)):
        findings += audit_features(market, declared, days=days, seed=seed, start=start, end=end).findings
    return Audit(not findings, tuple(findings), tuple(market.dates[rows]), f"strategy {label}")


def audit_features(
    market: MarketData,
    features: FeatureLike | Sequence[FeatureLike] | None = None,
    *,
    days: int = 12,
    seed: int = 0,
    start: DateLike | None = None,
    end: DateLike | None = None,
) -> Audit:
    """The same for features, each by name: names or functions `MarketData -> [T, N]`, None for the default set.

    A value may change by 1e-5 of itself (or of 1) on the market cut off after the day, and by nothing under noise.
    """
    from finpod.market.features import compute, name_of, resolve

    kept, _ = resolve(market, features)
    rows = _sample(market, days, seed, start, end)
    whole = compute(market, kept).numpy()
    findings = []

    def values(on: MarketData, row: int) -> Array:
        return whole[row] if on is market else compute(on, kept).numpy()[row]

    changed = {kind: list(_changes(values, market, rows, seed, kind)) for kind in (WITHOUT, WITH_NOISE)}
    for column, feature in enumerate(kept):
        for kind, pairs in changed.items():
            leaks = [_leak(market, row, a[:, column], b[:, column], kind) for row, a, b in pairs]
            findings += _sentence(f"feature {name_of(feature)}", "the value for", market, leaks, kind, len(rows))
    return Audit(not findings, tuple(findings), tuple(market.dates[rows]), "features")


def with_noise_after(market: MarketData, row: int, seed: int = 0) -> MarketData:
    """The market with every row after `row` replaced by noise; rows up to it, names and dates stay."""
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
    return replace(market, last_bar=np.where(ends_later, other_ends, market.last_bar), **tables)


def _sample(market: MarketData, days: int, seed: int, start: DateLike | None, end: DateLike | None) -> Array:
    """Sorted rows of the sampled days; each has a row after it."""
    first, last = market.window(start, end)
    stop = min(last, len(market.dates) - 2)
    if days < 1 or seed < 0:
        raise InputError(f"days is {days} and seed {seed}; an audit needs at least one day and a seed of zero or more")
    if stop < first:
        raise InputError(f"no session follows {market.dates[first]!s:.10}; audit an earlier window")
    return np.sort(np.random.default_rng(seed).choice(np.arange(first, stop + 1), min(days, stop + 1 - first), False))


def _changes(
    result: Callable[[MarketData, int], Array], market: MarketData, rows: Array, seed: int, kind: str
) -> Iterable[tuple[int, Array, Array]]:
    """(row, result on the whole market, result without its future) for each row."""
    for row in rows:
        other = market.rows(0, row + 1) if kind == WITHOUT else with_noise_after(market, row, seed)
        whole = result(market, row)
        try:
            yield row, whole, result(other, row)
        except FinpodError:  # it worked on the whole market, so what it missed lies in the future
            yield row, whole, np.full_like(whole, np.inf)


def _compare(
    what: str, decide: Callable[[MarketData, int], Array], market: MarketData, rows: Array, seed: int
) -> list[str]:
    findings = []
    for kind in (WITHOUT, WITH_NOISE):
        leaks = [_leak(market, row, a, b, kind) for row, a, b in _changes(decide, market, rows, seed, kind)]
        findings += _sentence(what, "the weight of", market, leaks, kind, len(rows))
    return findings


def _leak(market: MarketData, row: int, whole: Array, other: Array, kind: str) -> Leak | None:
    """The largest change between two rows [N], if it is more than rounding; NaN equals NaN only."""
    same = (whole == other) | (np.isnan(whole) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        change = np.where(same, 0.0, np.nan_to_num(np.abs(other.astype(np.float64) - whole), nan=np.inf, posinf=np.inf))
    allowed = CUT_TOLERANCE * np.maximum(1.0, np.abs(np.nan_to_num(whole))) if kind == WITHOUT else 0.0
    excess = np.where(change > allowed, change, 0.0)
    column = int(excess.argmax())
    return Leak(row, float(excess[column]), market.tickers[column]) if excess[column] > 0 else None


def _sentence(
    what: str, value_of: str, market: MarketData, leaks: Sequence[Leak | None], kind: str, checked: int
) -> list[str]:
    found = [leak for leak in leaks if leak is not None]
    if not found:
        return []
    largest = max(found, key=lambda leak: leak.size)
    by = f"changes by {largest.size:.3g}" if np.isfinite(largest.size) else "appears, vanishes or cannot be had"
    return [
        f"{what}: first leak on {market.dates[found[0].row]!s:.10}; {value_of} {largest.ticker} on "
        f"{market.dates[largest.row]!s:.10} {by} when later rows {kind} ({len(found)} of {checked} days)"
    ]


def _same(one: Array, other: Array) -> bool:
    return np.array_equal(one, other, equal_nan=True)


def _copy_of(strategy: Strategy) -> Strategy:
    try:
        return copy.deepcopy(strategy)
    except Exception as error:
        raise StrategyError(
            f"strategy {strategy.name} cannot be audited, for it cannot be copied ({type(error).__name__}: {error}); keep "
            "open files and locks out of it"
        ) from error
