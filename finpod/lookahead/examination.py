"""What a strategy, or features, give on a row of a market, and what becomes of it when the rows after it change."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from finpod.errors import FinpodError, StrategyError
from finpod.files import Progress
from finpod.lookahead.carrying import Copies, Copy
from finpod.lookahead.future import with_noise_after
from finpod.lookahead.reach import Kept
from finpod.lookahead.watching import Sight, Watch
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.strategy import FeatureLike, FeatureTable, MarketView, Strategy, equal_parts
from finpod.weights import decide_once

CUT, NOISE = "cut", "noise"
KINDS = CUT, NOISE
"""Kinds of markets without a future: later rows are left out, or replaced by noise."""
HISTORY, AFTER = 400, 130
"""Rows up to a day and after it that a piece of the market has: a year to warm up, and half a year to look ahead."""
Result = Callable[[MarketData, FeatureTable, int], Array]
"""(market, its features, row) -> what is compared, [N] or [N, F]."""


class Change(NamedTuple):
    """Results [N, ...] of one row on the market, and without its future."""

    row: int
    whole: Array
    other: Array


class Stage(NamedTuple):
    """A piece of the market, and the rows (of the whole) that are looked at on it."""

    market: MarketData
    offset: int
    """Row of the whole that is its first."""
    rows: Sequence[int]


class Deciding:
    """What fresh copies of a strategy decide, NaN for nothing.

    If `invested`, in an account that holds the day's members in equal parts, `every` sessions after a first decision in
    cash, but no earlier than row `first`; else in all cash, as the first of a run.
    """

    def __init__(self, strategy: Strategy, first: int, invested: bool) -> None:
        self.strategy, self.first, self.invested = strategy, first, invested
        self.every = strategy.every if isinstance(strategy.every, int) and strategy.every >= 1 else 1
        self.decided = strategy
        """The copy that decided last."""
        self.beyond = False
        """Whether one asked for rows before the first of its market."""

    def __call__(self, market: MarketData, table: FeatureTable, row: int, offset: int = 0) -> Array:
        self.decided = copied = copy_of(self.strategy)
        view = AskedView(market, row, table=table)
        if self.invested:
            before = AskedView(market, max(row - self.every, self.first - offset, 0), table=table)
            self._decide(copied, before)
            held = equal_parts(view.member & view.tradable)
            cash = max(1 - held.sum(), 0.0)
            view = AskedView(market, row, step=self.every, cash=cash, held=held, table=table)
        weights = self._decide(copied, view)
        return np.full(len(market.tickers), np.nan) if weights is None else weights

    def _decide(self, copied: Strategy, view: AskedView) -> Array | None:
        weights = decide_once(copied, view, self.strategy.name)
        self.beyond |= view.beyond
        return weights


class AskedView(MarketView):
    """A view that notes whether it was asked for more rows than there are."""

    beyond = False

    def _last(self, table: Array | None, what: str, k: int) -> Array:
        rows = super()._last(table, what, k)
        self.beyond |= k > self._row + 1
        return rows


class AskedTable(FeatureTable):
    """Features that are noted as they are asked for."""

    def __init__(self, market: MarketData) -> None:
        super().__init__(market)
        self.asked: dict[int, Array] = {}

    def get(self, names: FeatureLike | Sequence[FeatureLike] | None) -> tuple[tuple[str, ...], Array]:
        """Names [F] and values [T, N, F], as `FeatureTable.get`."""
        found = super().get(names)
        self.asked[id(found[1])] = found[1]
        return found

    def lacks(self, row: int) -> bool:
        """Whether a feature that was asked for has no value at all on a row."""
        return any(np.isnan(values[row]).all(axis=0).any() for values in self.asked.values())


class Examination:
    """Runs results on pieces of the market, and collects what it finds."""

    def __init__(
        self,
        root: Any,
        results: Sequence[Result],
        market: MarketData,
        copies: Copies,
        kept: Kept,
        homes: tuple[str, ...] = (),
        seed: int = 0,
    ) -> None:
        self.root, self.results, self.market, self.copies = root, results, market, copies
        self._watch = Watch(homes)
        self.kept, self.seed = kept, seed
        self.changes: dict[tuple[int, str], list[Change]] = {(i, k): [] for i in range(len(results)) for k in KINDS}
        """For each result, by its number, and each kind of market without a future: what became of every row."""
        self.restless: set[int] = set()
        """Rows on which two decisions on the same data differ."""
        self.sights: dict[Sight, int] = {}
        """What was read besides the view, and the first row on which it was."""
        self.held: dict[str, tuple[int, Copy]] = {}
        """By its path, what is held of later rows, and the first row on which it was."""
        self.pieces = False
        """Whether a row was looked at on a piece of the market only."""
        self._seen: list[tuple[Stage, int, list[Array]]] = []

    def whole(self, rows: Array, progress: Progress) -> None:
        """Compare on the whole market; one table of features serves all rows."""
        stage = Stage(self.market, 0, [int(row) for row in rows])
        progress(self._title(rows, 0), 0.0)
        for done, (row, found) in enumerate(self._on_whole(stage)):
            if done:
                progress(self._title(rows, done), done / len(rows))
            self._compare(stage, row, found)
        progress("audited", 1.0)

    def near(self, rows: Array) -> None:
        """Compare on a piece of the market around each row, or on the whole where a piece does not do."""
        far = []
        for row in map(int, rows):
            first, stop = max(row + 1 - HISTORY, 0), min(row + 1 + AFTER, len(self.market.dates))
            stage = Stage(self.market.rows(first, stop), first, [row])
            try:
                ((_, found),) = self._on_whole(stage)
            except FinpodError:
                far.append(row)
                continue
            if self._reaches(stage):
                self.pieces |= len(stage.market.dates) < len(self.market.dates)
                self._compare(stage, row, found)
            else:
                far.append(row)
        if far:
            self.whole(np.array(far), silent)
        for changes in self.changes.values():
            changes.sort(key=lambda change: change.row)

    @property
    def leaks(self) -> bool:
        """Whether a result changed at all when the rows after its own did."""
        return any(not same(whole, other) for changes in self.changes.values() for _, whole, other in changes)

    def decided_rows(self, deciders: int) -> Array:
        """Sorted rows on which one of the first `deciders` results is not all NaN."""
        found = {row for i in range(deciders) for row, whole, _ in self.changes[i, CUT] if not np.isnan(whole).all()}
        return np.array(sorted(found), dtype=int)

    def check_repeats(self) -> None:
        """See whether results differ on the same market when its features are computed anew."""
        for stage, row, found in self._seen:
            self.kept.put_back()
            fresh = FeatureTable(stage.market)
            again = [self._on(result, stage.market, fresh, row - stage.offset, stage.offset) for result in self.results]
            if not all(map(same, found, again)):
                self.restless.add(row)

    def _title(self, rows: Array, done: int) -> str:
        return f"auditing {self.market.dates[rows[done]]!s:.10}, day {done + 1} of {len(rows)}"

    def _on_whole(self, stage: Stage) -> list[tuple[int, list[Array]]]:
        """What each result is on each row, watched; and what the strategy holds after it."""
        self.kept.put_back()
        self._table = table = AskedTable(stage.market)
        deciders = [result for result in self.results if isinstance(result, Deciding)]
        for decider in deciders:
            decider.beyond = False
        given = []
        for row in stage.rows:
            with self._watch:
                found = [
                    self._on(result, stage.market, table, row - stage.offset, stage.offset) for result in self.results
                ]
            for sight in self._watch.sights:
                self.sights.setdefault(sight, row)
            for root in [decider.decided for decider in deciders] or [self.root]:
                for held in self.copies.held_by(root, row):
                    self.held.setdefault(held.path, (row, held))
            again = [self._on(decider, stage.market, table, row - stage.offset, stage.offset) for decider in deciders]
            if not all(map(same, found, again)):
                self.restless.add(row)
            given.append((row, found))
        return given

    def _reaches(self, stage: Stage) -> bool:
        """Whether a piece holds all that was asked of it."""
        beyond = any(result.beyond for result in self.results if isinstance(result, Deciding))
        return stage.offset == 0 or not (beyond or self._table.lacks(stage.rows[0] - stage.offset))

    def _compare(self, stage: Stage, row: int, found: list[Array]) -> None:
        self._seen.append((stage, row, found))
        at = row - stage.offset
        for kind in KINDS:
            self.kept.put_back()
            other = stage.market.rows(0, at + 1) if kind == CUT else with_noise_after(stage.market, at, self.seed)
            table = FeatureTable(other)  # one for all that is read on this market
            for i, (result, whole) in enumerate(zip(self.results, found, strict=True)):
                try:
                    changed = self._on(result, other, table, at, stage.offset)
                except FinpodError:  # it worked on the whole market, so what it missed lies in the future
                    changed = np.full_like(whole, np.inf)
                self.changes[i, kind].append(Change(row, whole, changed))

    def _on(self, result: Result, market: MarketData, table: FeatureTable, row: int, offset: int) -> Array:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a decision in a market that is not so; those of its own run tell
            return result(market, table, row, offset) if isinstance(result, Deciding) else result(market, table, row)


def silent(doing: str, share: float) -> None:
    """Tells nobody of progress."""


def same(one: Array, other: Array) -> bool:
    """Whether two results agree to the last bit; NaN equals NaN."""
    return np.array_equal(one, other, equal_nan=True)


def copy_of(strategy: Strategy) -> Strategy:
    """A deep copy; StrategyError for one that cannot be copied."""
    try:
        return copy.deepcopy(strategy)
    except Exception as error:
        raise StrategyError(
            f"strategy {strategy.name} cannot be audited, for it cannot be copied ({type(error).__name__}: {error}); keep "
            "open files and locks out of it"
        ) from error
