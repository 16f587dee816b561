"""The audit: does a strategy, or a feature, use what could not be known on the day?

On sampled days everything after the day is taken away, and then replaced by noise: what was decided must not change. And
meanwhile it is watched for what it reads elsewhere, and searched for what it holds of later days.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from finpod.errors import FinpodError, InputError
from finpod.lookahead.carrying import Copies
from finpod.lookahead.examination import (
    AFTER,
    HISTORY,
    KINDS,
    WITHOUT,
    Change,
    Deciding,
    Examination,
    Progress,
    Result,
    silent,
)
from finpod.lookahead.fitted import undated
from finpod.lookahead.future import auditable_rows, back_filled, fill_findings, sample_rows, with_noise_after
from finpod.lookahead.playing import MEMORY, Played, Replaying, play
from finpod.lookahead.reach import Kept
from finpod.lookahead.watching import homes_of
from finpod.lookahead.words import heading
from finpod.market.data import Array, DateLike, MarketData
from finpod.market.features import name_of, resolve
from finpod.strategy import FeatureLike, Strategy

__all__ = ["Audit", "audit", "audit_features", "quick_audit", "with_noise_after"]

CUT_TOLERANCE = 1e-5
"""Largest change of a weight, or relative change of a feature, that a shorter market may cause through rounding."""
MADE_UP = "decisions", "decisions once invested"
"""In the accounts each day is decided in: all cash as the first of a run, and all invested in equal parts later on."""
IN_A_RUN = "decisions in a run"
"""In the accounts of a run."""
RESTLESS = "NOT REPEATABLE"
"""How the reason begins where two decisions on the same data differ: chance is no look-ahead, but hides it."""
UNSEEN_DECISIONS = "no decision was seen"
INSTEAD = "; pass what it needs, such as market.tickers, instead"
"""The way out for a strategy that holds a market."""
OTHER_DAYS = "days that were not sampled"
ELSEWHERE = "data of later days in a form of one's own, such as predictions made elsewhere, signs or whole numbers"
DERIVED = (
    "other statistics over all rows, such as covariances, yearly means or a scaler fitted on features of one's own"
)
UNSEEN = "files and clocks that native code or another thread reads"
SYSTEMS = "files of the system and of packages, as under /etc and /proc"
BESIDES = (ELSEWHERE, DERIVED, UNSEEN, SYSTEMS)
UNCHECKED = (
    OTHER_DAYS,
    "accounts other than a run's own, all cash and all in equal parts",
    f"what a strategy remembers over more than {MEMORY + 1} decisions",
    *BESIDES,
)
FAR = f"what lies more than {HISTORY} rows before a day, or {AFTER} after it"


@dataclass(frozen=True)
class Audit:
    """The verdict; prints itself."""

    passed: bool | None
    """Whether nothing was found on the days checked; None if nothing could be told."""
    findings: tuple[str, ...]
    """What was found, one sentence each."""
    days: tuple[np.datetime64, ...]
    """The days checked; none if nothing could be."""
    subject: str
    """What was audited."""
    unchecked: tuple[str, ...] = ()
    """What the verdict does not cover."""
    reason: str = ""
    """Why nothing could be told; empty if it could."""
    undated: tuple[str, ...] = ()
    """Models that may have been fitted on the days checked, one sentence each; they are in `unchecked` too."""

    def __str__(self) -> str:
        count = f"{len(self.days)} days" if len(self.days) > 1 else "1 day"
        span = f"{count} from {self.days[0]!s:.10} to {self.days[-1]!s:.10}" if self.days else "no day"
        if self.passed is None:
            verdict = self.reason if self.reason.startswith(RESTLESS) else f"not audited: {self.reason}"
        else:
            verdict = (
                f"no look-ahead found on {span}" if self.passed else f"{heading(self.findings)}, checked on {span}"
            )
        lines = [f"{self.subject}: {verdict}", *(f"  {line}" for line in self.findings)]
        if self.unchecked:
            lines.append(f"  not checked: {'; '.join(self.unchecked)}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """As plain values: 'passed' (None if not audited, and then a 'reason'), 'findings', 'days' as YYYY-MM-DD, 'unchecked'."""
        return {
            "passed": self.passed,
            "findings": list(self.findings),
            "days": [f"{day!s:.10}" for day in self.days],
            "unchecked": list(self.unchecked),
            **({"reason": self.reason} if self.reason else {}),
        }


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
    progress: Progress | None = None,
) -> Audit:
    """Check decisions on `days` sampled sessions of [start, end], and the `features` a strategy declares, a name or a list.

    `finpod.audit` also takes the name of a built-in strategy, a .py file or a trained folder, as `load_strategy` does.

    For each day the decisions on the whole market are compared with those on the market cut off after the day (equal to
    1e-5 in every weight) and on the market with all later rows replaced by noise: prices, volumes, the benchmark, which
    bars are missing, membership and last bars (equal to the last bit). The strategy is run once to learn when it decides:
    half of the days are such days, on which fresh copies take that decision, and those before it, again in the accounts
    of the run. On every day one decides in an account that is all cash, as the first of a run (step 0), and another,
    after a first decision `every` sessions before, in one that holds the day's members in equal parts. So it covers what
    is read through the view, feature functions included. Where no decision is seen, nothing is said (`passed` is None).

    While it decides, files, folders, processes, the network and the clock are watched (`finpod/watching.py`), and what the
    strategy can get at is searched for copies of later rows (`finpod/carrying.py`), which those up to `trained_until` are
    not. The market's fills and prices are audited too: none at a price that the decision has seen, none filled backwards.
    What is not covered is in `unchecked`; so are fitted models where `trained_until` is not set. Globals, closures and
    class attributes are put back as they were.

    Half of the days lie, where there are such, before listings, gaps and changes of membership. Features are computed once
    for the whole market and once for each market without its future, two a day, over its whole history: a noise copy of
    one day has noise in the past of every later day, so that days cannot share one, and a feature may reach far back.
    `progress` is called with what is being done and the share that is done. Raises InputError for what is not a market, and
    for a window with nothing after it; StrategyError where the strategy itself fails or cannot be copied.
    """
    if not isinstance(market, MarketData):
        raise InputError(f"market is {market!r:.60}; give what load_market(...) or sample_market() returns")
    market = market.benchmark_market() if strategy.trades_benchmark else market
    first, last = market.window(start, end)
    rows, progress = sample_rows(market, days, seed, first, last), progress or silent
    kept = Kept(strategy, homes_of(strategy), logs=True)
    progress(f"running it once, then auditing day 1 of {len(rows)}", 0.0)
    try:
        run = play(strategy, market, first, last)
    finally:
        kept.put_back()
    if run is not None and len(real := np.intersect1d(run.deciding_rows, auditable_rows(market, first, last))):
        chosen = sample_rows(market, -(-days // 2), seed, first, last, among=real)
        others = np.setdiff1d(auditable_rows(market, first, last), chosen)
        left = min(days - len(chosen), len(others))
        more = sample_rows(market, left, seed, first, last, among=others) if left else others[:0]
        rows = np.union1d(chosen, more)
    return _audit(strategy, market, rows, (first, last), seed, run, progress)


def quick_audit(
    strategy: Strategy,
    market: MarketData,
    first_row: int,
    last_row: int,
    *,
    run: Played | None = None,
    days: int = 2,
    seed: int = 0,
) -> Audit:
    """The same on a few sampled decisions of a backtest from row `first_row` to row `last_row`, for a fraction of the time.

    `run` holds the decisions of that backtest: only they are looked at. Without it days are sampled as they come, and
    decisions on them taken in the two made-up accounts.

    `market` is what the strategy trades. Each day is looked at on a piece of it, `HISTORY` rows up to the day and `AFTER`
    rows after it; where the strategy asks for more, lacks a feature or fails there, on the whole. It never raises because
    of the strategy: where it fails, cannot be copied, decides nothing, or no session follows, `passed` is None and
    `reason` says why.
    """
    try:
        among = None
        if run is not None:
            first_row = min(first_row, int(run.rows[0]))
            among = np.intersect1d(run.deciding_rows, auditable_rows(market, first_row, last_row - 1))
            if not len(among):
                return _untold(strategy, UNSEEN_DECISIONS)
        rows = sample_rows(market, days, seed, first_row, last_row - 1, among)
        return _audit(strategy, market, rows, (first_row, last_row), seed, run)
    except Exception as error:  # whatever a strategy does; the backtest itself will say so too
        reason = "" if isinstance(error, FinpodError) else f"{type(error).__name__}: "
        return _untold(strategy, f"{reason}{error}")


def _untold(strategy: Strategy, reason: str) -> Audit:
    try:
        models = undated(strategy, homes_of(strategy))
    except Exception:  # a strategy that fails even here has its reason already
        models = ()
    return Audit(None, (), (), f"strategy {strategy.name}", models, reason, models)


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
    first, last = market.window(start, end)
    rows, names = sample_rows(market, days, seed, first, last), tuple(map(name_of, resolve(market, features)[0]))
    results: list[Result] = [lambda on, table, row: table.get(features)[1][row]]
    kept = Kept(features, logs=True)
    seen = Examination(features, results, market, Copies(market), kept, seed=seed)
    try:
        seen.whole(rows, progress or silent)
    finally:
        kept.put_back()
    findings = _feature_findings(market, names, {kind: seen.changes[0, kind] for kind in KINDS})
    findings += _elsewhere("features", seen) + back_filled(market, first, last)
    return Audit(not findings, tuple(findings), tuple(market.dates[rows]), "features", (OTHER_DAYS, *BESIDES))


def _audit(
    strategy: Strategy,
    market: MarketData,
    rows: Array,
    window: tuple[int, int],
    seed: int,
    run: Played | None = None,
    progress: Progress | None = None,
) -> Audit:
    """With `progress` on the whole market, without on pieces of it."""
    models = undated(strategy, homes_of(strategy))
    deciders: dict[str, Deciding] = {}
    if progress or run is None:
        deciders = dict(
            zip(MADE_UP, (Deciding(strategy, window[0], invested) for invested in (False, True)), strict=True)
        )
    if run is not None and run.decided.any():
        deciders[IN_A_RUN if progress else MADE_UP[0]] = Replaying(strategy, run)
    seen = _examined(strategy, market, list(deciders.values()), rows, seed, progress)
    if not len(days := seen.decided_rows(len(deciders))) and run is not None and run.decided.any():
        rows, deciders = _one_that_decides(run, market), {IN_A_RUN: Replaying(strategy, run, from_start=True)}
        seen = _examined(strategy, market, list(deciders.values()), rows, seed, progress or silent)
        days = seen.decided_rows(1)
    findings: list[str] = []
    for i, what in enumerate(deciders):
        if what != IN_A_RUN or not findings:
            findings += _compare(what, "the weight of", market, {kind: seen.changes[i, kind] for kind in KINDS})
    reason = "" if len(days) else UNSEEN_DECISIONS
    if seen.restless:
        findings, reason = [], _unrepeatable(market.dates[min(seen.restless)])
    names = _declared(strategy, market)
    changes = {kind: seen.changes.get((len(deciders), kind), []) for kind in KINDS}
    findings += _feature_findings(market, names, changes)
    findings += _elsewhere("decisions", seen) + fill_findings(market, rows, seed) + back_filled(market, *window)
    unchecked = (*models, *UNCHECKED, *((FAR,) if seen.pieces else ()))
    passed = False if findings else None if reason else True
    shown = rows if names or findings else days
    checked = tuple(market.dates[shown])
    return Audit(passed, tuple(findings), checked, f"strategy {strategy.name}", unchecked, reason, models)


def _examined(
    strategy: Strategy,
    market: MarketData,
    deciders: list[Deciding],
    rows: Array,
    seed: int,
    progress: Progress | None,
) -> Examination:
    """Run the deciders, and what computes the declared features, on rows; all is put back as it was."""
    results: list[Result] = [*deciders]
    if _declared(strategy, market):
        results.append(lambda on, table, row: table.get(strategy.features)[1][row])  # type: ignore[attr-defined]
    homes = homes_of(strategy)
    kept, copies = Kept(strategy, homes, logs=progress is not None), Copies(market, strategy.trained_until, homes)
    seen = Examination(strategy, results, market, copies, kept, homes, seed)
    try:
        seen.near(rows) if progress is None else seen.whole(rows, progress)
        if seen.leaks and not seen.restless:  # own functions of a table that is computed once may be restless too
            seen.check_repeats()
    finally:
        kept.put_back()
    return seen


def _one_that_decides(run: Played, market: MarketData) -> Array:
    """[1] an early decision, not the very first, of a run: to get there all decisions before are taken again."""
    rows = np.intersect1d(run.deciding_rows, auditable_rows(market, int(run.rows[0]), int(run.rows[-1])))
    return rows[: MEMORY + 1][-1:]


def _declared(strategy: Strategy, market: MarketData) -> tuple[str, ...]:
    """Names of the features that a strategy declares, a name or a list."""
    declared = getattr(strategy, "features", None)
    if not isinstance(declared, (str, list, tuple)) or not declared:
        return ()
    return tuple(map(name_of, resolve(market, declared)[0]))


def _elsewhere(what: str, seen: Examination) -> list[str]:
    """What is held of later rows, and what was read besides the market."""
    dates, doing = seen.market.dates, "deciding on" if what == "decisions" else "computing the values of"
    held = [
        f"{what}: on {dates[row]!s:.10} {path} holds {content}{INSTEAD if content.startswith('a market') else ''}"
        for path, (row, content) in seen.held.items()
    ]
    return held + [
        f"{what}: {where} {deed} while {doing} {dates[row]!s:.10}" for (deed, where), row in seen.sights.items()
    ]


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
        f"{RESTLESS}: on {day!s:.10} two decisions on the same data differ, so that look-ahead cannot be told from "
        "chance (draw random numbers from a generator of the strategy's own)"
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
