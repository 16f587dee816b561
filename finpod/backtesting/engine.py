"""`backtest`: run strategies on a simulated account, and compare them with the benchmark and equal weight."""

import numpy as np
import pandas as pd

from finpod.backtesting.batch import Backtests, path_of, run_together
from finpod.backtesting.run import Run
from finpod.errors import InputError, StrategyError, require_number
from finpod.evidence.assemble import equity_of, with_audit, with_evidence
from finpod.files import Progress
from finpod.lookahead.audit import quick_audit
from finpod.lookahead.packing import pack
from finpod.market.data import DateLike, MarketData, as_date
from finpod.measures import RATES, Array
from finpod.records import Audit
from finpod.result import BacktestResult
from finpod.strategy import Strategy
from finpod.trading.execution import build_execution, require_market
from finpod.trading.ledger import Costs
from finpod.trading.simulate import Path, Terms, Window
from finpod.weights import Decided, PrecomputedWeights


def backtest(
    strategy: Strategy | Array | pd.DataFrame,
    market: MarketData,
    *,
    start: DateLike | None = None,
    end: DateLike | None = None,
    costs: Costs | None = None,
    fill: str | None = None,
    cash: float = 1_000_000.0,
    whole_shares: bool = False,
    risk_free: float = 0.0,
    delisting_return: float = 0.0,
    max_weight: float | None = None,
    max_turnover: float | None = None,
    opened: int = 1,
    allow_in_sample: bool = False,
    name: str | None = None,
    examine: bool | None = None,
    fast: bool = False,
    progress: Progress | None = None,
) -> BacktestResult | Backtests:
    """Run a strategy, or precomputed weights, over the sessions of [start, end] and return a `BacktestResult`.

    `finpod.backtest` also takes a name, file or folder of a strategy, as `load_strategy` does. The account starts with
    `cash` at the close of the first bar. A decision sees all rows up to a close. It is filled at the next open with
    fill='open', and at the next close with fill='close'. The default is 'open' if the data have opens. Cash earns
    nothing. Accounts are long only. Shares are fractional unless `whole_shares` is True. A position in an asset that
    leaves the exchange becomes cash at the last price times (1 + delisting_return). `risk_free` is a yearly rate.

    At the fill, no weight exceeds `max_weight`, and no decision trades more than `max_turnover` of the account (buys
    plus sells), except to meet `max_weight`; see `finpod.trading.caps.within_caps`. None means the cap of the
    strategy. A trained agent has the caps of its training. Equal weight and the baselines have no caps.

    Precomputed weights have shape [T, N]. Row t is a decision based on the rows up to t. A row of NaN trades nothing.
    Weights [S, T, N] are S strategies, run together and returned as `Backtests`. Weights are not copied. With
    `fast=True`, many sessions of given weights are simulated at once, which is several times faster. Equity agrees with
    fast=False to 9 digits.

    A Strategy is audited for look-ahead bias: its decisions up to a sampled day are repeated without later data. With
    `examine=True`, the result of a Strategy or of weights [T, N] also has baselines, random portfolios, and figures at
    other fees and account sizes. By default, only trained agents do. `progress` is called with (task, fraction
    done). The verdict judges growth in excess of `strategy.anchor` (default: equal weight), which is rebalanced every
    session, or every k bars if `strategy.every` is k > 1. `opened` is the number of results of this window that you
    have seen, including this one. It widens the interval of the verdict.

    Raises InputError for arguments out of range, a window of one bar, a start on or before `trained_until` (unless
    `allow_in_sample`), and `fast` with a Strategy. Raises StrategyError if a decision fails or is invalid.
    """
    require_market(market)
    if fast and isinstance(strategy, Strategy):
        raise InputError("fast is True, but a Strategy decides bar by bar; omit the argument fast", argument="fast")
    require_number("risk_free", risk_free, *RATES)
    require_number("opened", opened, 1, whole=True)
    who = strategy if isinstance(strategy, Strategy) else Strategy()
    label = name if name is not None else who.name if who is strategy else "weights"
    if not (isinstance(label, str) and label):
        raise InputError(f"the name of the strategy is {label!r:.60}; it must be a non-empty string", argument="name")
    terms = Terms(
        costs=Costs() if costs is None else costs,
        cash=cash,
        whole_shares=whole_shares,
        delisting_return=delisting_return,
        max_weight=who.max_weight if max_weight is None else max_weight,
        max_turnover=who.max_turnover if max_turnover is None else max_turnover,
    )
    window = _window(who, market, start, end, fill)
    run = Run(
        strategy=who,
        market=market,
        window=window,
        terms=terms,
        opened=opened,
        risk_free=risk_free,
        in_sample=_in_sample(who, label, window.dates[0], allow_in_sample),
        fast=fast,
    )
    if isinstance(strategy, Strategy):
        return _of_strategy(strategy, label, run, examine, progress)
    return _of_weights(PrecomputedWeights(strategy, label, window), run, examine, progress)


def _of_strategy(
    strategy: Strategy, label: str, run: Run, examine: bool | None, progress: Progress | None
) -> BacktestResult:
    window = run.window
    before, table = pack(strategy, window.market, window.first), run.table
    log: list[Decided] = []
    path = run.decided_by(strategy, label, table, log)
    beside = {
        kind: {one.name: equity_of(run.decided_by(one, one.name, table), window) for one in strategies}
        for kind, strategies in (("variants", strategy.variants), ("agents", strategy.alone))
    }
    result = _examined(run.result(path, label, **beside), path, run, examine, progress)
    return with_audit(result, quick_audit(strategy, window.market, before, log, (window.first, window.last)))


def _of_weights(
    ready: PrecomputedWeights, run: Run, examine: bool | None, progress: Progress | None
) -> BacktestResult | Backtests:
    def alone(s: int) -> BacktestResult:
        path = path_of(ready, s, run.window, run.terms, fast=run.fast)
        result = run.result(path, ready.labels[s])
        result = result if ready.many else _examined(result, path, run, examine, progress)
        return with_audit(result, Audit(None, subject="precomputed weights", reason="ready_weights"))

    if not ready.many:
        return alone(0)
    run.strategy.trials = len(ready.labels)
    return run_together(ready, run.window, run.terms, alone, run.risk_free)


def _examined(
    result: BacktestResult, path: Path, run: Run, examine: bool | None, progress: Progress | None
) -> BacktestResult:
    """Return the result with evidence if `examine` is True, or if it is None and the strategy is trained. The result of
    a strategy that trades only the benchmark is returned unchanged."""
    wanted = run.strategy.trained_until is not None if examine is None else examine
    if not wanted or run.strategy.trades_benchmark:
        return result
    return with_evidence(result, path, run.window, run.terms, progress or (lambda doing, share: None))


def _window(strategy: Strategy, market: MarketData, start: DateLike, end: DateLike, fill: str | None) -> Window:
    traded = market.benchmark_market() if strategy.trades_benchmark else market
    first, last = traded.window(start, end)
    if last == first:
        text = f"the window {traded.dates[first]!s:.10} .. {traded.dates[last]!s:.10} has only one bar"
        raise InputError(f"{text}; choose an earlier start or a later end", argument="end")
    return Window(market=traded, execution=build_execution(traded, fill), first=first, last=last)


def _in_sample(strategy: Strategy, label: str, first_day: np.datetime64, allowed: bool) -> bool:
    if strategy.trained_until is None:
        return False
    try:
        until = as_date(strategy.trained_until)
    except InputError as error:
        raise StrategyError(f"strategy {label}: its trained_until {error}") from error
    if not allowed and as_date(first_day) <= until:
        text = f"start is {first_day!s:.10}, but {label} was trained or selected on days up to {until!s:.10}"
        raise InputError(f"{text}; start later, or pass allow_in_sample=True", argument="start")
    return bool(as_date(first_day) <= until)
