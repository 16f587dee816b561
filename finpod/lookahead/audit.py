"""The audit: does a strategy, or a feature, use what could not be known on the day?

On sampled days everything after the day is taken away, and then replaced by noise: what was decided must not change. And
meanwhile it is watched for what it reads elsewhere, and searched for what it holds of later days.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from finpod.errors import FinpodError, InputError
from finpod.features.panel import name_of, resolve
from finpod.lookahead.carrying import Copies
from finpod.lookahead.examination import (
    CUT,
    KINDS,
    Change,
    Deciding,
    Examination,
    Progress,
    Result,
    silent,
)
from finpod.lookahead.extra_columns import early_columns
from finpod.lookahead.fitted import undated
from finpod.lookahead.future import auditable_rows, back_filled, fill_findings, sample_rows, with_noise_after
from finpod.lookahead.playing import MEMORY, Played, Replaying, play
from finpod.lookahead.reach import Kept
from finpod.lookahead.watching import homes_of
from finpod.market.data import DateLike, MarketData
from finpod.measures import Array
from finpod.records import Audit, Finding, Severity
from finpod.strategy import FeatureLike, Strategy

__all__ = ["Audit", "audit", "audit_features", "quick_audit", "with_noise_after"]

CUT_TOLERANCE = 1e-5
"""Largest change of a weight, or relative change of a feature, that a shorter market may cause through rounding."""
MADE_UP = "decisions", "invested"
"""In the accounts each day is decided in: all cash as the first of a run, and all invested in equal parts later on."""
IN_A_RUN = "run"
"""In the accounts of a run."""
BESIDES = ("own_form", "derived", "native", "system")
UNCHECKED = ("other_days", "other_accounts", "memory", *BESIDES)
"""Codes of what an audit of decisions does not cover; `backtesting.text.UNCHECKED` words them."""
FEW = "few_values"
"""The code for extra columns with too few tickers or sessions to be compared with the next returns."""


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
    So are its extra columns: none may go with the next session's returns (`finpod/lookahead/extra_columns.py`).
    What is not covered is in `unchecked`; so are fitted models where `trained_until` is not set. Globals, closures and
    class attributes are put back as they were.

    Half of the days lie, where there are such, before listings, gaps and changes of membership. Features are computed once
    for the whole market and once for each market without its future, two a day, over its whole history: a noise copy of
    one day has noise in the past of every later day, so that days cannot share one, and a feature may reach far back.
    `progress` is called with what is being done and the share that is done. Raises InputError for what is not a market, and
    for a window with nothing after it; StrategyError where the strategy itself fails or cannot be copied.
    """
    if not isinstance(market, MarketData):
        raise InputError(
            f"market is a {type(market).__name__}; give what load_market(...) or sample_market() returns",
            argument="market",
        )
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
                return _untold(strategy, "no_decision")
        rows = sample_rows(market, days, seed, first_row, last_row - 1, among)
        return _audit(strategy, market, rows, (first_row, last_row), seed, run)
    except Exception as error:  # whatever a strategy does; the backtest itself will say so too
        kind = "" if isinstance(error, FinpodError) else f"{type(error).__name__}: "
        return _untold(strategy, "failed", f"{kind}{error}")


def _untold(strategy: Strategy, reason: str, note: str = "") -> Audit:
    try:
        models = undated(strategy, homes_of(strategy))
    except Exception:  # a strategy that fails even here has its reason already
        models = ()
    return Audit(None, subject=f"strategy {strategy.name}", reason=reason, note=note, undated=models)


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
    early, few = early_columns(market, first, last)
    findings += _elsewhere("features", seen) + back_filled(market, first, last) + early
    days_checked = tuple(map(_iso, market.dates[rows]))
    unchecked = ("other_days", *BESIDES, *((FEW,) if few else ()))
    return Audit(not findings, tuple(findings), days_checked, "features", unchecked)


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
    findings: list[Finding] = []
    for i, where in enumerate(deciders):
        if where != IN_A_RUN or not findings:
            findings += _compare(where, market, {kind: seen.changes[i, kind] for kind in KINDS})
    reason, note = "" if len(days) else "no_decision", ""
    if seen.restless:
        findings, reason, note = [], "not_repeatable", _iso(market.dates[min(seen.restless)])
    names = _declared(strategy, market)
    changes = {kind: seen.changes.get((len(deciders), kind), []) for kind in KINDS}
    findings += _feature_findings(market, names, changes)
    early, few = early_columns(market, *window)
    findings += _elsewhere("decisions", seen) + fill_findings(market, rows, seed) + back_filled(market, *window) + early
    shown = rows if names or findings else days
    return Audit(
        passed=False if findings else None if reason else True,
        findings=tuple(findings),
        days=tuple(map(_iso, market.dates[shown])),
        subject=f"strategy {strategy.name}",
        unchecked=(*UNCHECKED, *(("far",) if seen.pieces else ()), *((FEW,) if few else ())),
        reason=reason,
        note=note,
        undated=models,
    )


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


def _elsewhere(where: str, seen: Examination) -> list[Finding]:
    """Later data that were within reach, and what was read besides the market."""
    days, possible = seen.market.dates, Severity.CAN_LOOK_AHEAD
    held = [
        Finding("held", possible, where, _iso(days[row]), copy.path, note=copy.what, data={"market": copy.is_market})
        for row, copy in seen.held.values()
    ]
    return held + [
        Finding(sight.kind, possible, where, _iso(days[row]), sight.where, note=sight.what)
        for sight, row in seen.sights.items()
    ]


def _compare(where: str, market: MarketData, changes: dict[str, list[Change]]) -> list[Finding]:
    """One finding for each kind of future, cut off or noise, that changed a result."""
    findings = []
    for kind, pairs in changes.items():
        leaks = [leak for pair in pairs if (leak := _leak(market, *pair, kind)) is not None]
        if leaks:
            largest = max(leaks, key=lambda leak: leak.size)
            data = {"largest_on": _iso(market.dates[largest.row]), "days": len(leaks), "checked": len(pairs)}
            day = _iso(market.dates[leaks[0].row])
            findings.append(
                Finding(kind, Severity.LOOKS_AHEAD, where, day, largest.ticker, size=largest.size, data=data)
            )
    return findings


def _feature_findings(market: MarketData, names: Sequence[str], changes: dict[str, list[Change]]) -> list[Finding]:
    """Those of each feature [N, F], by its name."""
    findings = []
    for column, name in enumerate(names):
        own = {k: [Change(row, a[:, column], b[:, column]) for row, a, b in pairs] for k, pairs in changes.items()}
        findings += _compare(name, market, own)
    return findings


def _iso(day: np.datetime64) -> str:
    return f"{day!s:.10}"


def _leak(market: MarketData, row: int, whole: Array, other: Array, kind: str) -> Leak | None:
    """The largest change between two rows [N], if it is more than rounding; NaN equals NaN only."""
    same = (whole == other) | (np.isnan(whole) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        change = np.where(same, 0.0, np.nan_to_num(np.abs(other.astype(np.float64) - whole), nan=np.inf, posinf=np.inf))
    allowed = CUT_TOLERANCE * np.maximum(1.0, np.abs(np.nan_to_num(whole))) if kind == CUT else 0.0
    excess = np.where(change > allowed, change, 0.0)
    column = int(excess.argmax())
    return Leak(row, float(excess[column]), market.tickers[column]) if excess[column] > 0 else None
