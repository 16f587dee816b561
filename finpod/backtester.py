"""`backtest`: run strategies through the ledger, one session at a time, and set them beside the benchmark and equal weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from finpod.caveats import caveats
from finpod.errors import InputError, StrategyError
from finpod.market.data import Array, DateLike, MarketData
from finpod.market.ledger import Costs, value
from finpod.market.tape import Account, Tape, build_tape
from finpod.result import BacktestResult
from finpod.strategy import FeatureTable, MarketView, Strategy

if TYPE_CHECKING:
    from finpod.strategy import Decision

TOLERANCE = 1e-6
"""Weights may lie this far below zero, and their sum this far above one, before it is an error."""

Decide = Callable[[int, int, Account], Tensor | None]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """On what terms accounts trade."""

    costs: Costs = field(default_factory=Costs)
    """What each side of a trade costs."""
    fill: str | None = None
    """'open', 'close', or None for open where the data have opens."""
    cash: float = 1_000_000.0
    """V_0, in currency."""
    whole_shares: bool = False
    """Deal in whole shares as traded only."""
    delisting_return: float = 0.0
    """What a position earns, once, when its name leaves the exchange; -1 loses it."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.cash) and self.cash > 0):
            raise InputError(f"cash is {self.cash}; start with a positive amount")
        if not -1 <= self.delisting_return < np.inf:
            raise InputError(f"delisting_return is {self.delisting_return}; it must be -1 (all is lost) or more")


class Path(NamedTuple):
    """What happened to accounts [...] over n steps."""

    equity: Tensor
    """[n + 1, ...] at each close."""
    shares: Tensor
    """[n + 1, ..., N] held at each close."""
    traded: Tensor
    """[n, ..., N] shares bought or sold by the fill of step k."""
    cost: Tensor
    """[n, ..., N] paid for it."""
    turnover: Tensor
    """[n, ...] traded notional / equity at the fill."""
    delisted: Tensor
    """[n, ..., N] shares turned to cash because the name left the exchange."""
    unfilled: Tensor
    """[n, ..., N] bool: an order of one share or more's worth that whole shares rounded to nothing."""


def simulate(tape: Tape, first: int, last: int, decide: Decide, terms: Terms, accounts: tuple[int, ...] = ()) -> Path:
    """Take accounts of shape `accounts` from the close of row `first` to that of row `last`; contract 1 of the design.

    `decide(k, row, account)` gives the weights [..., N] of step k seen at `row`, or None to trade nothing.
    """
    cash = torch.full(accounts, terms.cash, dtype=torch.float64)
    account = seen = Account(cash, cash.new_zeros((*accounts, tape.mark.shape[1])))
    nothing, still = account.shares, torch.zeros_like(cash)
    equity, held, records = [cash], [account.shares], []
    for k, row in enumerate(range(first, last)):
        weights = decide(k, tape.decision_row(row), seen) if tape.decision_row(row) >= 0 else None
        traded, cost, turnover, unfilled = nothing, nothing, still, nothing > 0
        if weights is not None:
            price = tape.price[tape.fill_row(row)]
            before = value(account.cash, account.shares, price)
            orders = tape.orders(account, row, weights)
            fill = tape.trade(account, row, orders, terms.costs, whole_shares=terms.whole_shares)
            account, traded, cost = Account(fill.cash, fill.shares), fill.traded, fill.cost
            turnover = (traded * price).abs().sum(-1) / before.clamp(min=1e-300)
            unfilled = (orders > 0) & (traded == 0) & tape.tradable[tape.fill_row(row)]
        carried = tape.carry(account, row, terms.delisting_return)
        records.append((traded, cost, turnover, account.shares - carried.shares, unfilled))
        seen = account if tape.lag else carried
        account = carried
        equity.append(value(account.cash, account.shares, tape.mark[row + 1]))
        held.append(account.shares)
    return Path(torch.stack(equity), torch.stack(held), *(torch.stack(column) for column in zip(*records, strict=True)))


@overload
def backtest(
    strategy: Strategy,
    market: MarketData,
    *,
    start: DateLike | None = ...,
    end: DateLike | None = ...,
    costs: Costs | None = ...,
    fill: str | None = ...,
    cash: float = ...,
    whole_shares: bool = ...,
    risk_free: float = ...,
    delisting_return: float = ...,
    allow_in_sample: bool = ...,
    name: str | None = ...,
) -> BacktestResult: ...
@overload
def backtest(
    strategy: Array,
    market: MarketData,
    *,
    start: DateLike | None = ...,
    end: DateLike | None = ...,
    costs: Costs | None = ...,
    fill: str | None = ...,
    cash: float = ...,
    whole_shares: bool = ...,
    risk_free: float = ...,
    delisting_return: float = ...,
    allow_in_sample: bool = ...,
    name: str | None = ...,
) -> BacktestResult | list[BacktestResult]: ...
def backtest(
    strategy: Strategy | Array,
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
    allow_in_sample: bool = False,
    name: str | None = None,
) -> BacktestResult | list[BacktestResult]:
    """Run a strategy, or ready weights, over the sessions of [start, end] and return a `BacktestResult`.

    V_0 is the cash at the close of the first session. With fill='open' a decision sees all rows up to a close and is
    filled at the next open; with 'close', at the next close (the default where the data have no opens). Cash earns
    nothing, accounts are long only, shares are fractional unless `whole_shares`. Positions in names that leave the
    exchange become cash at their last price times (1 + delisting_return).

    Ready weights have shape [T, N], row t being a decision that has seen the rows up to t (a row of NaN trades
    nothing), or [S, T, N] for S strategies, which gives a list of S results.

    Raises InputError for a window without two sessions, or one that starts on or before `trained_until` (unless
    `allow_in_sample`), and StrategyError, naming strategy and day, for weights that cannot be.
    """
    terms = Terms(
        costs=costs or Costs(), fill=fill, cash=cash, whole_shares=whole_shares, delisting_return=delisting_return
    )
    whole, who = market, strategy if isinstance(strategy, Strategy) else Strategy()
    label = name or (who.name if who is strategy else "weights")
    if who.trades_benchmark:
        market = market.benchmark_market()
    first, last = market.window(start, end)
    if last == first:
        raise InputError(
            f"the window {market.dates[first]!s:.10} .. {market.dates[last]!s:.10} has one session and no "
            "return; choose an end at least one session after the start"
        )
    in_sample = _in_sample(who, label, market.dates[first], allow_in_sample)
    tape = build_tape(market, fill)
    if isinstance(strategy, Strategy):
        labels, path = [label], simulate(tape, first, last, _decisions(strategy, label, market), terms)
        path = Path(*(part.unsqueeze(1) for part in path))
    else:
        labels, path = _simulate_weights(np.array(strategy, dtype=np.float64), label, market, tape, first, last, terms)
    equal = equal_weight_equity(whole, market.dates[first], market.dates[last], terms)
    results = [
        _result(
            who,
            labels[s],
            market,
            whole,
            tape,
            Path(*(part[:, s] for part in path)),
            equal,
            first,
            terms,
            risk_free,
            in_sample,
        )
        for s in range(len(labels))
    ]
    return results if np.ndim(strategy) == 3 else results[0]


def equal_weight_equity(market: MarketData, start: DateLike, end: DateLike, terms: Terms) -> pd.Series:
    """Equity [n + 1] of the point-in-time equal weight, restored at every session from `start` to `end`."""
    first, last = market.window(start, end)
    tape = build_tape(market, terms.fill)
    among = tape.member & tape.has_bar
    weights = among / among.sum(-1, keepdim=True).clamp(min=1).double()
    path = simulate(tape, first, last, lambda _k, row, _seen: weights[row], terms)
    return pd.Series(path.equity.numpy(), index=pd.DatetimeIndex(market.dates[first : last + 1], name="date"))


def clean_weights(decision: Decision, tickers: tuple[str, ...], who: str, date: np.datetime64) -> Array:
    """A decision as weights [N]. Raises StrategyError naming strategy and day for NaN, negative or excessive weights."""
    where = f"strategy {who} on {date!s:.10}"
    if isinstance(decision, (Mapping, pd.Series)):
        unknown = [str(ticker) for ticker in decision.keys() if ticker not in tickers]  # noqa: SIM118 (a Series iterates values)
        if unknown:
            raise StrategyError(f"{where} names {', '.join(unknown[:3])}, which the market does not have")
        decision = np.array([decision.get(ticker, 0.0) for ticker in tickers], dtype=np.float64)
    weights = np.array(decision, dtype=np.float64)
    if weights.shape != (len(tickers),):
        raise StrategyError(
            f"{where} decided weights of shape {weights.shape}; give one for each of {len(tickers)} names"
        )
    if not np.isfinite(weights).all():
        raise StrategyError(
            f"{where} decided {weights[~np.isfinite(weights)][0]} for "
            f"{tickers[int(np.argmin(np.isfinite(weights)))]}; weights must be finite"
        )
    if weights.min() < -TOLERANCE:
        raise StrategyError(
            f"{where} decided {weights.min():g} for {tickers[int(weights.argmin())]}; weights must not be "
            "negative (finpod is long only)"
        )
    weights = weights.clip(min=0)
    total = weights.sum()
    if total > 1 + TOLERANCE:
        raise StrategyError(
            f"{where} decided weights that sum to {total:.6f}; the sum must not pass 1 (finpod does not borrow)"
        )
    return weights / total if total > 1 else weights


def _decisions(strategy: Strategy, label: str, market: MarketData) -> Decide:
    """`strategy.decide` as the simulation asks for it: a view in, weights out, errors in one line."""
    table = FeatureTable(market)
    marks = build_tape(market, "close").mark

    def decide(k: int, row: int, seen: Account) -> Tensor | None:
        if k % strategy.every:
            return None
        equity = float(value(seen.cash, seen.shares, marks[row]))
        held = (seen.shares * marks[row]).numpy() / (equity or 1.0)
        view = MarketView(market, row, step=k, cash=float(seen.cash), equity=equity, held=held, table=table)
        try:
            decision = strategy.decide(view)
        except (StrategyError, InputError):
            raise
        except Exception as error:
            raise StrategyError(
                f"strategy {label} failed on {view.date!s:.10}: {type(error).__name__}: {error}"
            ) from error
        if decision is None:
            return None
        return torch.from_numpy(clean_weights(decision, market.tickers, label, view.date))

    return decide


def _simulate_weights(
    weights: Array, label: str, market: MarketData, tape: Tape, first: int, last: int, terms: Terms
) -> tuple[list[str], Path]:
    """Ready weights [T, N] or [S, T, N]: names of the S strategies and their common path."""
    many = weights[None] if weights.ndim == 2 else weights
    if many.ndim != 3 or many.shape[1:] != market.shape:
        raise InputError(
            f"ready weights have shape {weights.shape}; they must be [T, N] = {market.shape}, or [S, T, N]"
        )
    labels = [label] if weights.ndim == 2 else [f"{label} {s}" for s in range(len(many))]
    rows = range(max(first - tape.lag, 0), last - tape.lag)
    silent = np.isnan(many[:, rows.start : rows.stop]).all(axis=-1)
    if (silent.any(axis=0) != silent.all(axis=0)).any():
        raise InputError("ready weights [S, T, N] must trade nothing (NaN) on the same days for every strategy")
    for s, k in zip(*np.nonzero(~silent), strict=True):
        many[s, rows[k]] = clean_weights(many[s, rows[k]], market.tickers, labels[s], market.dates[rows[k]])
    ready = torch.from_numpy(many)

    def decide(_k: int, row: int, _seen: Account) -> Tensor | None:
        return None if silent[0, row - rows.start] else ready[:, row]

    return labels, simulate(tape, first, last, decide, terms, (len(many),))


def _in_sample(strategy: Strategy, label: str, first_day: np.datetime64, allowed: bool) -> bool:
    until = strategy.trained_until
    if until is None or first_day > np.datetime64(until):
        return False
    if not allowed:
        raise InputError(
            f"the window starts on {first_day!s:.10}, but {label} was trained or chosen on days up to "
            f"{until}; start later, or allow it with --allow-in-sample"
        )
    return True


def _result(
    strategy: Strategy,
    label: str,
    market: MarketData,
    whole: MarketData,
    tape: Tape,
    path: Path,
    equal: pd.Series,
    first: int,
    terms: Terms,
    risk_free: float,
    in_sample: bool,
) -> BacktestResult:
    """Dress the path of one account in dates and names."""
    steps = len(path.traded)
    sessions = market.dates[first : first + steps + 1]
    dates = pd.DatetimeIndex(sessions, name="date")
    fills = np.arange(first, first + steps) + 1 - tape.lag
    equity = path.equity.numpy()
    worth = path.shares.numpy() * tape.mark[first : first + steps + 1].numpy()
    weights = np.divide(worth, equity[:, None], out=np.zeros_like(worth), where=equity[:, None] > 0)
    benchmark = pd.Series(whole.benchmark_close, index=pd.DatetimeIndex(whole.dates)).reindex(dates)
    trades = _trades(market, tape, path, fills, terms)
    result = BacktestResult(
        strategy=label,
        equity=pd.Series(equity, index=dates, name="equity"),
        benchmark=market.benchmark,
        benchmark_equity=benchmark / benchmark[benchmark.first_valid_index()] * terms.cash
        if benchmark.any()
        else benchmark,
        equal_weight_equity=equal.reindex(dates),
        weights=pd.DataFrame(weights, index=dates, columns=list(market.tickers)),
        trades=trades,
        turnover=pd.Series(path.turnover.numpy(), index=pd.DatetimeIndex(market.dates[fills], name="date")),
        costs=terms.costs,
        fill=tape.fill,
        whole_shares=terms.whole_shares,
        risk_free=risk_free,
        trained_until=strategy.trained_until,
        trials=strategy.trials,
        windows=strategy.windows,
        agent=strategy.provenance,
        in_sample=in_sample,
        events=_events(market, tape, path, trades, fills, first),
        data_hash=whole.content_hash,
        manifest=whole.manifest,
    )
    return replace(result, warnings=caveats(result, strategy))


def _trades(market: MarketData, tape: Tape, path: Path, fills: Array, terms: Terms) -> pd.DataFrame:
    """Every fill, and every position that a delisting turned to cash, in order of date and column."""
    steps, columns = np.nonzero(path.traded.numpy())
    shares, price = path.traded.numpy()[steps, columns], tape.price.numpy()[fills[steps], columns]
    bought = pd.DataFrame(
        {
            "row": fills[steps],
            "column": columns,
            "shares": shares,
            "price": price,
            "cost": path.cost.numpy()[steps, columns],
            "kind": "fill",
        }
    )
    steps, columns = np.nonzero(path.delisted.numpy())
    rows = fills[steps] + tape.lag
    last_price = tape.mark.numpy()[rows - 1, columns] * (1 + terms.delisting_return)
    gone = pd.DataFrame(
        {
            "row": rows,
            "column": columns,
            "shares": -path.delisted.numpy()[steps, columns],
            "price": last_price,
            "cost": 0.0,
            "kind": "delisted",
        }
    )
    both = bought if gone.empty else gone if bought.empty else pd.concat([bought, gone])
    both = both.sort_values(["row", "column"], kind="stable", ignore_index=True)
    return pd.DataFrame(
        {
            "date": market.dates[both["row"].to_numpy(dtype=np.int64)],
            "ticker": np.array(market.tickers, dtype=object)[both["column"].to_numpy(dtype=np.int64)],
            "shares": both["shares"],
            "price": both["price"],
            "notional": both["shares"] * both["price"],
            "cost": both["cost"],
            "kind": both["kind"],
        }
    )


def _events(
    market: MarketData, tape: Tape, path: Path, trades: pd.DataFrame, fills: Array, first: int
) -> tuple[str, ...]:
    """Sentences on what was not an ordinary fill."""
    events = []
    if tape.decision_row(first) < 0:
        events.append(
            f"{market.dates[first]!s:.10}: no row before the start to decide on; the first decision was skipped"
        )
    for _, row in trades[trades["kind"] == "delisted"].iterrows():
        events.append(
            f"{row['date']:%Y-%m-%d}: {row['ticker']} left the exchange; {-row['shares']:.6g} shares turned to cash "
            f"at {row['price']:.6g}"
        )
    unfilled = np.argwhere(path.unfilled.numpy())
    if len(unfilled):
        step, column = unfilled[0]
        events.append(
            f"{market.dates[fills[step]]!s:.10}: {market.tickers[column]} was wanted, but the money did not reach for "
            f"one whole share ({len(unfilled)} such orders in all)"
        )
    return tuple(events)
