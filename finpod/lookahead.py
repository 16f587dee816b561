"""The audit: does a strategy, or a feature, use what could not be known on the day?

On sampled days everything after the day is taken away, and then replaced by noise. What was decided must not change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from finpod.decisions import decide_once
from finpod.errors import FinpodError, InputError, StrategyError
from finpod.market.data import Array, DateLike, MarketData
from finpod.strategy import FeatureLike, FeatureTable, MarketView, Strategy, equal_parts

CUT_TOLERANCE = 1e-5
"""Largest change of a weight, or relative change of a feature, that a shorter market may cause through rounding."""
WITHOUT, WITH_NOISE = "are left out", "are replaced by noise"
KINDS = WITHOUT, WITH_NOISE
ACCOUNTS = "decisions", "decisions once invested"
"""The two accounts each day is decided in: all cash as the first of a run, and all invested in equal parts later on."""
OTHER_DAYS = "days that were not sampled"
UNCHECKED = (
    OTHER_DAYS,
    "accounts other than all cash and all in equal parts",
    "what a strategy remembers over more than two decisions",
    "a copy of the data that a strategy carries itself",
)
Progress = Callable[[str, float], None]
Result = Callable[[MarketData, FeatureTable, int], Array]
"""(market, its features, row) -> what is compared, [N] or [N, F]."""


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
    unchecked: tuple[str, ...] = ()
    """What the verdict does not cover."""

    def __str__(self) -> str:
        span = f"{len(self.days)} days from {self.days[0]!s:.10} to {self.days[-1]!s:.10}"
        verdict = f"no look-ahead found on {span}" if self.passed else f"LOOKS AHEAD, checked on {span}"
        lines = [f"{self.subject}: {verdict}", *(f"  {line}" for line in self.findings)]
        if self.unchecked:
            lines.append(f"  not checked: {'; '.join(self.unchecked)}")
        return "\n".join(lines)


class Leak(NamedTuple):
    """One value that changed with its future."""

    row: int
    size: float
    ticker: str


class Change(NamedTuple):
    """Results [N, ...] of one row on the whole market, and without its future."""

    row: int
    whole: Array
    other: Array


def audit(
    strategy: Strategy,
    market: MarketData,
    *,
    days: int = 12,
    seed: int = 0,
    start: DateLike | None = None,
    end: DateLike | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Check decisions on `days` sampled sessions of [start, end], and the `features` a strategy declares, a name or a list.

    For each day the decisions on the whole market are compared with those on the market cut off after the day (equal to
    1e-5 in every weight) and on the market with all later rows replaced by noise: prices, volumes, the benchmark, which
    bars are missing, membership and last bars (equal to the last bit). A fresh copy of the strategy decides in an account
    that is all cash, as the first of a run (step 0), and another, after a first decision `every` sessions before, in one
    that holds the day's members in equal parts. So it covers what is read through the view, feature functions included;
    what it does not cover is in `unchecked`.

    Features are computed once for the whole market and once for each market without its future, two a day: a noise copy
    of one day has noise in the past of every later day, so that days cannot share one. `progress` is called with what is
    being done and the share that is done. Raises InputError for a window with nothing after it and StrategyError where
    the strategy itself fails.
    """
    label = strategy.name
    market = market.benchmark_market() if strategy.trades_benchmark else market
    rows, first = _sample(market, days, seed, start, end), market.window(start, end)[0]
    declared = getattr(strategy, "features", None)
    results: list[Result] = [_decisions(strategy, first, invested) for invested in (False, True)]
    table = FeatureTable(market)
    restless = [
        row
        for row in rows
        if any(not _same(decide(market, table, row), decide(market, table, row)) for decide in results)
    ]
    names: tuple[str, ...] = ()
    if isinstance(declared, (str, list, tuple)):
        names = table.get(declared)[0]
        results.append(lambda on, table, row: table.get(declared)[1][row])
    changes = _changes(results, market, table, rows, seed, progress or (lambda doing, share: None))
    findings: list[str] = []
    for i, what in enumerate(ACCOUNTS):
        findings += _compare(what, "the weight of", market, {kind: changes[i, kind] for kind in KINDS})
    if findings and not restless:  # own functions of a table that is computed once may be restless too
        fresh = FeatureTable(market)
        restless = [
            row for row in rows if any(not _same(d(market, table, row), d(market, fresh, row)) for d in results)
        ]
    if restless:
        findings = [_unrepeatable(market.dates[restless[0]])]
    findings += _feature_findings(market, names, {kind: changes.get((len(ACCOUNTS), kind), []) for kind in KINDS})
    return Audit(not findings, tuple(findings), tuple(market.dates[rows]), f"strategy {label}", UNCHECKED)


def audit_features(
    market: MarketData,
    features: FeatureLike | Sequence[FeatureLike] | None = None,
    *,
    days: int = 12,
    seed: int = 0,
    start: DateLike | None = None,
    end: DateLike | None = None,
    progress: Progress | None = None,
) -> Audit:
    """The same for features, each by name: names or functions `MarketData -> [T, N]`, None for the default set.

    A value may change by 1e-5 of itself (or of 1) on the market cut off after the day, and by nothing under noise.
    """
    rows, table = _sample(market, days, seed, start, end), FeatureTable(market)
    names = table.get(features)[0]
    results: list[Result] = [lambda on, table, row: table.get(features)[1][row]]
    changes = _changes(results, market, table, rows, seed, progress or (lambda doing, share: None))
    findings = _feature_findings(market, names, {kind: changes[0, kind] for kind in KINDS})
    return Audit(not findings, tuple(findings), tuple(market.dates[rows]), "features", (OTHER_DAYS,))


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


def _decisions(strategy: Strategy, first: int, invested: bool) -> Result:
    """What a fresh copy decides, NaN for nothing; `invested`, after a first decision in cash, but not before row `first`."""
    every = strategy.every if isinstance(strategy.every, int) and strategy.every >= 1 else 1

    def decide(market: MarketData, table: FeatureTable, row: int) -> Array:
        copied = _copy_of(strategy)
        view = MarketView(market, row, table=table)
        if invested:
            before = MarketView(market, max(row - every, first), table=table)
            decide_once(copied, before, strategy.name)
            held = equal_parts(view.member & view.tradable)
            view = MarketView(market, row, step=every, cash=max(1 - held.sum(), 0.0), held=held, table=table)
        weights = decide_once(copied, view, strategy.name)
        return np.full(len(market.tickers), np.nan) if weights is None else weights

    return decide


def _changes(
    results: Sequence[Result], market: MarketData, table: FeatureTable, rows: Array, seed: int, progress: Progress
) -> dict[tuple[int, str], list[Change]]:
    """For each result, by its number, and each kind of market without a future: what became of every row."""
    changes: dict[tuple[int, str], list[Change]] = {(i, kind): [] for i in range(len(results)) for kind in KINDS}
    for done, row in enumerate(rows):
        progress(f"auditing {market.dates[row]!s:.10}, day {done + 1} of {len(rows)}", done / len(rows))
        on_all = [result(market, table, row) for result in results]
        for kind in KINDS:
            other = market.rows(0, row + 1) if kind == WITHOUT else with_noise_after(market, row, seed)
            other_table = FeatureTable(other)  # one for all that is read on this market
            for i, (result, whole) in enumerate(zip(results, on_all, strict=True)):
                try:
                    found = result(other, other_table, row)
                except FinpodError:  # it worked on the whole market, so what it missed lies in the future
                    found = np.full_like(whole, np.inf)
                changes[i, kind].append(Change(row, whole, found))
    progress("audited", 1.0)
    return changes


def _compare(what: str, value_of: str, market: MarketData, changes: dict[str, list[Change]]) -> list[str]:
    findings = []
    for kind, pairs in changes.items():
        leaks = [_leak(market, *pair, kind) for pair in pairs]
        findings += _sentence(what, value_of, market, leaks, kind, len(pairs))
    return findings


def _feature_findings(market: MarketData, names: Sequence[str], changes: dict[str, list[Change]]) -> list[str]:
    """Those of each feature [N, F], by its name."""
    findings = []
    for column, name in enumerate(names):
        own = {k: [Change(row, a[:, column], b[:, column]) for row, a, b in pairs] for k, pairs in changes.items()}
        findings += _compare(f"feature {name}", "the value for", market, own)
    return findings


def _unrepeatable(day: np.datetime64) -> str:
    return (
        f"decisions: not repeatable; on {day!s:.10} two decisions on the same data differ, so that look-ahead cannot "
        "be told from chance (draw random numbers from a generator of the strategy's own)"
    )


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
