"""The look-ahead audit: does a strategy, or a feature, use data that was not known at the time of a decision?

A child process repeats the decisions of a run. It receives the rows of the market (one per session, or per bar if
intraday) in order of time, so it has no later rows at a decision. The repeated decisions must equal those of the run.
The child process also records uses of files, network, processes and clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from finpod.errors import StrategyError, with_kind
from finpod.files import Progress
from finpod.lookahead import perturbation
from finpod.lookahead.extra_columns import early_columns
from finpod.lookahead.isolation import Child, ChildError, Isolated
from finpod.lookahead.packing import Packed, pack
from finpod.lookahead.perturbation import CUT, NotRepeatable, differences
from finpod.market.data import DateLike, MarketData
from finpod.measures import Array
from finpod.records import Audit, Finding, Severity
from finpod.strategy import MarketView, Strategy
from finpod.trading.execution import build_execution, require_market
from finpod.trading.simulate import Terms, Window, simulate
from finpod.weights import Decided, decide_once, decisions_of

CAN = Severity.CAN_LOOK_AHEAD
UNCHECKED = ("later_decisions", "other_accounts", "other_days", "undated", "native", "system")
"""Codes of what an audit does not test. `backtesting.sentences.UNCHECKED` has the text of each."""


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
    """Return the audit of a strategy's decisions in a run over [start, end], and of the feature functions that it uses.

    The strategy first runs in a child process that has the whole market. A second child process receives rows in order
    of time. It repeats every decision up to the last of `days` sampled rows, with the cash and positions of the run.
    Weights must agree to 1e-5. The user's feature functions are computed again for each sampled row: on the market
    without later rows (values must agree to 1e-5), and with noise in later rows (values must be identical).

    The audit also reports:
    - files, network, processes and clocks that the strategy uses
    - data in the strategy that are later than both the first day of the run and the strategy's `trained_until`
    - fitted models in a strategy that has no `trained_until`
    - back-filled prices, and fills at a price that was known at the decision
    - extra columns that correlate with the next return

    The field `unchecked` lists what is not tested. `finpod.audit` also takes a name, file or folder. `progress` is
    called with a description of the current step, and the finished fraction of this step. Raises InputError for an
    argument out of range or if no row can be audited, StrategyError if the strategy fails in the run or cannot be
    pickled, and FinpodError if a child process cannot load the strategy, ends or takes too long.
    """
    require_market(market)
    market = market.benchmark_market() if strategy.trades_benchmark else market
    window = market.window(start, end)
    sample = perturbation.auditable_rows(market, *window)
    perturbation.sample_rows(market, days, seed, sample)  # raises InputError before the strategy runs
    packed = pack(strategy, market, window[0])
    if packed.error:
        raise StrategyError(f"strategy {strategy.name} cannot be audited: {packed.error}")
    with closing(_Audited(strategy, market, packed, window)) as audited:
        audited.tell = progress or audited.tell
        return audited.verdict(audited.play(), days, seed, fills=True)


def quick_audit(
    strategy: Strategy, market: MarketData, packed: Packed, run: Sequence[Decided], window: tuple[int, int]
) -> Audit:
    """Return a quick audit of a backtest: it repeats the decisions `run` up to the later of two sampled rows.

    The backtest covers the rows `window` (first, last) of the traded `market`. `packed` is the strategy as pickled
    before the backtest. Fills are not audited. Errors are not raised. After one, the audit has the `reason` "failed".
    """
    with closing(_Audited(strategy, market, packed, window)) as audited:
        try:
            if packed.error:
                raise StrategyError(f"the strategy cannot be audited: {packed.error}")
            return audited.verdict(run, days=2, seed=0)
        except Exception as error:  # a strategy may raise anything; the backtest reports it too
            return audited.outcome(packed.findings, "failed", with_kind(error))


class _Audited(Isolated):
    """A strategy that is audited on the rows `window` (first, last) of a market."""

    def __init__(self, strategy: Strategy, market: MarketData, packed: Packed, window: tuple[int, int]) -> None:
        super().__init__(market, packed.content)
        self._strategy, self._held, self._window = strategy, packed.findings, window
        self.tell: Progress = lambda doing, share: None

    def play(self) -> list[Decided]:
        """Run the strategy in a child process that has the whole market, and return its decisions."""
        self.tell("running the strategy once", 0.0)
        log: list[Decided] = []
        (first, last), execution = self._window, build_execution(self.market)
        window = Window(market=self.market, execution=execution, first=first, last=last)
        child = self.start(whole=True)
        child.every = self._strategy.every
        if last > first:
            simulate(execution, first, last, decisions_of(child, self._strategy.name, window, log=log), Terms())
        return log

    def verdict(self, run: Sequence[Decided], days: int, seed: int, *, fills: bool = False) -> Audit:
        """Return the audit of features on `days` sampled rows, and of decisions in `run` up to the last sampled row.
        With `fills`, the prices at which decisions on the sampled rows are filled are audited too."""
        market, window, note = self.market, self._window, ""
        deciding = np.array([entry.row for entry in run if entry.weights is not None], dtype=int)
        rows = np.intersect1d(deciding, perturbation.auditable_rows(market, 0, window[1]))
        if not len(rows):
            return self.outcome(self._held, "no_decision")
        rows = perturbation.sample_rows(market, days, seed, rows)
        run, compared = [entry for entry in run if entry.row <= rows[-1]], int((deciding <= rows[-1]).sum())
        findings = [*self._held, *perturbation.back_fill_findings(market, *window), *early_columns(market, *window)]
        try:
            findings += self._decisions(run)
            findings += perturbation.feature_findings(self, rows, seed)
        except NotRepeatable as error:
            note = str(error)
        findings += perturbation.fill_findings(market, rows, seed) if fills else ()
        for (kind, action, place), (where, row) in self.child.accesses.items():
            findings.append(Finding(kind, CAN, where, f"{market.dates[row]!s:.10}", place, note=action))
        verdict = self.outcome(findings, "not_repeatable" if note else "", note)
        dates = tuple(f"{day!s:.10}" for day in market.dates[rows])
        return replace(verdict, days=dates, unchecked=UNCHECKED, decisions=len(deciding), compared=compared)

    def outcome(self, findings: Sequence[Finding], reason: str = "", note: str = "") -> Audit:
        """Return an audit, the most severe findings first. `passed` is None if there is a `reason` and no finding."""
        passed = False if findings else None if reason else True
        found = tuple(sorted(findings, key=lambda finding: finding.severity is CAN))
        return Audit(passed, found, subject=f"strategy {self._strategy.name}", reason=reason, note=note)

    def _decisions(self, run: Sequence[Decided]) -> list[Finding]:
        """Return a finding if decisions change when they are repeated without later rows. Raises NotRepeatable if they
        also change when they are repeated with all rows."""
        rows, nothing = np.array([entry.row for entry in run]), np.full(len(self.market.tickers), np.nan)
        logged = np.array([nothing if entry.weights is None else entry.weights for entry in run])
        sizes = differences(logged, self._again(self.child, run), CUT)
        if sizes.any():  # also repeat the decisions on the whole market
            repeated = differences(logged, self._again(self.start(whole=True), run), CUT).any(axis=1)
            if repeated.any():
                raise NotRepeatable(f"{self.market.dates[rows[repeated.argmax()]]!s:.10}")
        return perturbation.change_findings(self.market, "decisions", CUT, rows, sizes)

    def _again(self, child: Child, run: Sequence[Decided]) -> Array:
        """Repeat the decisions of `run` in `child`. Return weights [n, N]: NaN for no decision, infinite for an error.
        An error that ended the process is raised instead. If `child` has the whole market, every error is raised."""
        weights = np.full((len(run), len(self.market.tickers)), np.nan)
        for i, (row, step, cash, equity, held, _) in enumerate(run):
            self.tell(f"auditing {self.market.dates[row]!s:.10}, decision {i + 1} of {len(run)}", i / len(run))
            view = MarketView(self.market, row, step=step, cash=cash, equity=equity, held=held)
            try:
                weights[i] = decide_once(child, view, self._strategy.name)
            except StrategyError as error:
                if child.whole or isinstance(error.__cause__, ChildError):
                    raise
                weights[i] = np.inf
        return weights
