"""The audit: does a strategy, or a feature, use what could not be known on the day?

The decisions of a run are taken again in a process that is given rows in order of time and has never seen a later one. They
must come out the same. Meanwhile the process records what is read from elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from finpod.errors import FinpodError, InputError, StrategyError, first_line
from finpod.features.panel import name_of, resolve
from finpod.files import Progress
from finpod.lookahead.extra_columns import early_columns
from finpod.lookahead.guards import Sight
from finpod.lookahead.isolation import Child, ChildError, Features
from finpod.lookahead.packing import Packed, pack
from finpod.lookahead.perturbation import (
    CUT,
    Change,
    NotRepeatable,
    auditable_rows,
    back_fill_findings,
    change_findings,
    fill_findings,
    recompute,
    sample_rows,
    size_of,
    with_noise_after,
)
from finpod.market.data import DateLike, MarketData
from finpod.measures import Array
from finpod.records import Audit, Finding, Severity
from finpod.strategy import FeatureLike, FeatureTable, MarketView, Strategy
from finpod.trading.execution import Account, build_execution
from finpod.trading.simulate import Terms, Window, simulate
from finpod.weights import Decided, clean_weights, decisions_of

__all__ = ["Audit", "audit", "audit_features", "quick_audit", "with_noise_after"]

OF_FEATURES = ("other_days", "undated", "native", "system")
UNCHECKED = ("later_decisions", "other_accounts", *OF_FEATURES)
"""Codes of what an audit of decisions does not cover; `backtesting.sentences.UNCHECKED` words them."""
FEW = "few_values"
"""The code for extra columns with too few tickers or sessions to be compared with the next returns."""


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
    """Check the decisions of a run over [start, end], and the feature functions that the strategy uses.

    `finpod.audit` also takes the name of a built-in strategy, a .py file or a trained folder, as `load_strategy` does.

    The strategy is run once in a process of its own that has the whole market. Another process, which is given rows in
    order of time, then takes every decision again, in the accounts of the run, up to the last of `days` sampled sessions;
    they must agree to 1e-5 in every weight. Features that are functions are computed again on the sampled sessions, on the
    market cut off after the session (equal to 1e-5) and on the market with noise after it (equal to the last bit). Half of
    the sampled sessions lie, where there are such, before listings, gaps and changes of membership.

    From the moment it is loaded, files, network, processes, the clock and the environment that the strategy reads are
    recorded. What it holds of days after the first decision, or after `trained_until`, is reported when it is sent, and so
    are fitted models without `trained_until`. The market's fills, first prices and extra columns are audited too. `unchecked`
    names what is not covered. `passed` is None where nothing can be told.

    `progress` is called with what is being done and the share that is done. Raises InputError for what is not a market and
    for a window with nothing after it; StrategyError where the strategy itself fails or cannot be pickled.
    """
    if not isinstance(market, MarketData):
        raise InputError(
            f"market is a {type(market).__name__}; give what load_market(...) or sample_market() returns",
            argument="market",
        )
    market = market.benchmark_market() if strategy.trades_benchmark else market
    first, last = market.window(start, end)
    rows = sample_rows(market, days, seed, first, last)
    packed = pack(strategy, market, first)
    if packed.error:
        raise StrategyError(f"strategy {strategy.name} cannot be audited: {packed.error}")
    with closing(_Audited(strategy, packed, market, progress or (lambda doing, share: None))) as audited:
        run = audited.play(first, last)
        if len(real := np.intersect1d(_deciding(run), auditable_rows(market, first, last))):
            chosen = sample_rows(market, -(-days // 2), seed, first, last, among=real)
            others = np.setdiff1d(auditable_rows(market, first, last), chosen)
            left = min(days - len(chosen), len(others))
            more = sample_rows(market, left, seed, first, last, among=others) if left else others[:0]
            rows = np.union1d(chosen, more)
        verdict = audited.verdict(run, rows, (first, last), seed)
    findings = (*verdict.findings, *fill_findings(market, rows, seed))
    return replace(verdict, findings=findings, passed=False if findings else verdict.passed)


def quick_audit(
    strategy: Strategy,
    market: MarketData,
    packed: Packed,
    run: Sequence[Decided],
    window: tuple[int, int],
    *,
    days: int = 2,
    seed: int = 0,
) -> Audit:
    """The audit of a backtest: of the decisions `run` that it logged in the rows `window` (first, last), up to a sampled one.

    `market` is what the strategy trades, `packed` the strategy as it was before the backtest. Fills are left out. It never
    raises because of the strategy: where it fails, cannot be pickled or decides nothing, `reason` says why.
    """
    try:
        with closing(_Audited(strategy, packed, market)) as audited:
            if packed.error:
                return audited.outcome(packed.findings, "failed", f"it cannot be audited: {packed.error}")
            among = np.intersect1d(_deciding(run), auditable_rows(market, min(window[0], run[0].row), window[1] - 1))
            if not len(among):
                return audited.outcome(packed.findings, "no_decision")
            rows = sample_rows(market, days, seed, int(among[0]), int(among[-1]), among)
            return audited.verdict(run, rows, window, seed)
    except Exception as error:  # whatever a strategy does; the backtest itself will say so too
        kind = "" if isinstance(error, FinpodError) else f"{type(error).__name__}: "
        return audited.outcome(packed.findings, "failed", f"{kind}{first_line(error)}")


def audit_features(
    market: MarketData,
    features: FeatureLike | Sequence[FeatureLike] | None = None,
    *,
    days: int = 12,
    seed: int = 0,
    start: DateLike | None = None,
    end: DateLike | None = None,
) -> Audit:
    """The audit of features, each by name: names or functions `MarketData -> [T, N]`, None for the default set.

    A value may change by 1e-5 of itself (or of 1) on the market cut off after the day, and by nothing under noise.
    """
    first, last = market.window(start, end)
    rows = sample_rows(market, days, seed, first, last)
    single: list[Any] = list(resolve(market, features)[0])
    packs: list[Packed] = []
    with closing(Features(market)) as computed, Child(market, None, computed) as child:
        for i, one in enumerate(single):
            if not isinstance(one, str):
                packs.append(pack(one, market, first, "features"))
                if error := packs[-1].error:
                    raise InputError(f"feature {name_of(one)} cannot be audited: {error}", argument="features")
                single[i] = computed.function(name_of(one), packs[-1].content)
        found = _of_features(child, market, computed.table, single, rows, seed)
    of_data, gaps = _of_data(child, market, first, last)
    findings = (*found.findings, *(finding for packed in packs for finding in packed.findings), *of_data)
    passed = False if findings else None if found.reason else True
    shown = tuple(f"{day!s:.10}" for day in market.dates[rows])
    return Audit(passed, findings, shown, "features", (*OF_FEATURES, *gaps), found.reason, found.note)


class _Found(NamedTuple):
    """A part of an audit."""

    findings: list[Finding]
    reason: str = ""
    note: str = ""


class _Audited:
    """A strategy that is audited on a market."""

    def __init__(
        self, strategy: Strategy, packed: Packed, market: MarketData, tell: Progress = lambda doing, share: None
    ) -> None:
        self._strategy, self._packed, self._market, self._tell = strategy, packed, market, tell
        self._features = Features(market)

    def close(self) -> None:
        """End the process that computes features."""
        self._features.close()

    def _child(self, *, whole: bool = False) -> Child:
        return Child(self._market, self._packed.content, self._features, whole=whole)

    def play(self, first: int, last: int) -> list[Decided]:
        """The decisions of a run in a process that has the whole market; where it fails it decides nothing any more."""
        log: list[Decided] = []
        execution = build_execution(self._market)
        window, failed = Window(market=self._market, execution=execution, first=first, last=last), False
        self._tell("running it once", 0.0)
        with self._child(whole=True) as child:
            decide = decisions_of(_Proxy(child, self._strategy), self._strategy.name, window, log=log)

            def until_it_fails(step: int, row: int, seen: Account) -> Tensor | None:
                nonlocal failed
                try:
                    return None if failed else decide(step, row, seen)
                except FinpodError as error:
                    failed = True
                    if isinstance(error.__cause__, ChildError) or not len(_deciding(log)):
                        raise
                    return None

            if last > first:
                simulate(execution, first, last, until_it_fails, Terms())
        return log

    def verdict(self, run: Sequence[Decided], rows: Array, window: tuple[int, int], seed: int) -> Audit:
        """Compare the decisions of a run up to the last of some rows, and the features of these rows."""
        market, deciding = self._market, _deciding(run)
        last = int(np.intersect1d(deciding, rows).max(initial=-1))
        compared = [entry for entry in run if entry.row <= last]
        with self._child() as child:
            decisions = self._decisions(child, compared)
            functions = list(dict.fromkeys((*child.declared(), *self._features.functions.values())))
            others = _of_features(child, market, self._features.table, functions, rows, seed)
        of_data, gaps = _of_data(child, market, *window)
        findings = [*decisions.findings, *others.findings, *self._packed.findings, *of_data]
        findings.sort(key=lambda finding: finding.severity is not Severity.LOOKS_AHEAD)
        reason, note = decisions[1:] if decisions.reason else others[1:]
        verdict = self.outcome(tuple(findings), reason or ("" if len(deciding) else "no_decision"), note)
        days = tuple(f"{market.dates[row]!s:.10}" for row in rows if row <= last or functions)
        unchecked = (*UNCHECKED, *gaps)
        return replace(verdict, days=days, unchecked=unchecked, decisions=len(deciding), compared=len(compared))

    def outcome(self, findings: tuple[Finding, ...], reason: str, note: str = "") -> Audit:
        """The audit with these findings, or why nothing could be told."""
        passed = False if findings else None if reason else True
        return Audit(passed, findings, subject=f"strategy {self._strategy.name}", reason=reason, note=note)

    def _decisions(self, child: Child, run: Sequence[Decided]) -> _Found:
        """Compare decisions with those of the child; where one differs, one that has the whole market tells what repeats."""
        changes, _ = self._again(child, run)
        sights = _sights(child, self._market, "decisions")
        leaking = {change.row for change in changes if size_of(change, CUT)}
        if not leaking:
            return _Found(sights)
        with self._child(whole=True) as control:
            again, failure = self._again(control, [entry for entry in run if entry.row <= max(leaking)])
        differing = {change.row for change in again if size_of(change, CUT)}
        if leaking - differing:
            kept = [change for change in changes if change.row not in differing]
            return _Found([*change_findings(self._market, "decisions", CUT, kept), *sights])
        if failure:
            return _Found(sights, "failed", f"in a process of its own, {self._strategy.name} failed: {failure}")
        return _Found(sights, "not_repeatable", f"{self._market.dates[min(leaking)]!s:.10}")

    def _again(self, child: Child, run: Sequence[Decided]) -> tuple[list[Change], str]:
        """What each decision was and is in the child, NaN for none; and how the child's failed first."""
        tickers, changes, failure = self._market.tickers, [], ""
        nothing = np.full(len(tickers), np.nan)
        for i, entry in enumerate(run):
            day = self._market.dates[entry.row]
            self._tell(f"auditing {day!s:.10}, decision {i + 1} of {len(run)}", i / len(run))
            try:
                decision = child.decide(*entry[:5])
                weights = nothing if decision is None else clean_weights(decision, tickers, self._strategy.name, day)
            except ChildError:
                raise
            except FinpodError as error:
                failure, weights = failure or str(error), np.full(len(tickers), np.inf)
            changes.append(Change(entry.row, nothing if entry.weights is None else entry.weights, weights))
        return changes, failure


class _Proxy(Strategy):
    """A strategy that decides in a child."""

    def __init__(self, child: Child, strategy: Strategy) -> None:
        self._child, self.every = child, strategy.every

    def decide(self, view: MarketView) -> Any:
        """The decision of the child."""
        return self._child.decide(view._row, view.step, view.cash, view.equity, view.held)


def _deciding(run: Sequence[Decided]) -> Array:
    """The rows on which a run decided something."""
    return np.array([entry.row for entry in run if entry.weights is not None], dtype=int)


def _of_features(
    child: Child, market: MarketData, table: FeatureTable, single: Sequence[FeatureLike], rows: Array, seed: int
) -> _Found:
    before, findings = set(child.sights), []
    try:
        for name, kind, changes in recompute(child, market, table, single, rows, seed):
            findings += change_findings(market, name, kind, changes)
    except NotRepeatable as day:
        return _Found(_sights(child, market, "features", before), "not_repeatable", str(day))
    return _Found(findings + _sights(child, market, "features", before))


def _of_data(child: Child, market: MarketData, first: int, last: int) -> tuple[list[Finding], tuple[str, ...]]:
    """Findings in first prices and extra columns, and codes of what is unchecked on this market and this Python."""
    early, few = early_columns(market, first, last)
    return [*back_fill_findings(market, first, last), *early], (*((FEW,) if few else ()), *sorted(child.lacking))


def _sights(child: Child, market: MarketData, where: str, before: Collection[Sight] = ()) -> list[Finding]:
    """What was read from elsewhere, but for what was seen before."""
    possible = Severity.CAN_LOOK_AHEAD
    return [
        Finding(sight.kind, possible, where, f"{market.dates[row]!s:.10}", sight.where, note=sight.note)
        for sight, row in child.sights.items()
        if sight not in before
    ]
