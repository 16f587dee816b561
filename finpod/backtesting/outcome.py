"""From the path of one account to a `BacktestResult`: dates and names, the trade log, what was out of the ordinary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from types import MappingProxyType

import numpy as np
import pandas as pd

from finpod.evidence.dossier import search_of
from finpod.evidence.warnings import warnings_of
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.records import Event, ResultWarning
from finpod.result import BacktestResult
from finpod.strategy import Strategy
from finpod.trading.simulate import Path, Terms, Window

DUST = 1e-9
"""What a capped weight may be off by."""


def outcome(
    path: Path,
    window: Window,
    terms: Terms,
    *,
    label: str,
    strategy: Strategy,
    reference: MarketData,
    equal_weight: pd.Series,
    anchor: pd.Series,
    opened: int,
    risk_free: float,
    in_sample: bool,
    variants: Mapping[str, Path] = MappingProxyType({}),
    agents: Mapping[str, Path] = MappingProxyType({}),
) -> BacktestResult:
    """Dress the path of one account; `reference` is the market with the benchmark, from which the window may be cut."""
    execution, dates = window.execution, pd.DatetimeIndex(window.dates, name="date")
    equity = path.equity.numpy()[:, None]
    worth = path.shares.numpy() * execution.mark[window.first : window.last + 1].numpy()
    weights = np.divide(worth, equity, out=np.zeros_like(worth), where=equity > 0)
    trades, unfilled = trade_log(path, window, terms), tuple(_unfilled(path, window, terms))
    result = BacktestResult(
        strategy=label,
        equity=pd.Series(equity[:, 0], index=dates, name="equity"),
        benchmark=reference.benchmark,
        benchmark_equity=_held(reference, dates, terms.cash),
        equal_weight_equity=equal_weight.reindex(dates),
        anchor_equity=anchor.reindex(dates),
        anchor=strategy.anchor,
        anchor_every=strategy.every,
        weights=pd.DataFrame(weights, index=dates, columns=list(window.market.tickers)),
        trades=trades,
        turnover=pd.Series(path.turnover.numpy(), index=_dates(window, window.fill_rows), name="turnover"),
        costs=terms.costs,
        fill=execution.fill,
        whole_shares=terms.whole_shares,
        risk_free=risk_free,
        periods_per_year=window.market.periods_per_year,
        sessions_per_year=window.market.sessions_per_year,
        trained_until=strategy.trained_until,
        trials=strategy.trials,
        opened=opened,
        windows=dict(strategy.windows),
        agent=dict(strategy.provenance),
        in_sample=in_sample,
        variant_kind=strategy.variant_kind,
        variants={name: pd.Series(one.equity.numpy(), index=dates) for name, one in variants.items()},
        agents={name: pd.Series(one.equity.numpy(), index=dates) for name, one in agents.items()},
        search=search_of(strategy, window.market.periods_per_year),
        events=tuple(sorted((*_skipped(window), *_departures(trades), *unfilled), key=lambda event: event.day)),
        data_hash=reference.content_hash,
        manifest=reference.manifest,
    )
    # A missing price is nobody's fault: an event, and no reason to doubt the result.
    doubtful = [ResultWarning("unfilled", asdict(event)) for event in unfilled if event.code != "no_price"]
    return replace(result, warnings=(*warnings_of(result), *_caps(path, terms), *doubtful))


def _caps(path: Path, terms: Terms) -> Iterator[ResultWarning]:
    """The caps that can bind, if there are some, and how many decisions had too few assets to invest the account."""
    weight, turnover = terms.max_weight or 1.0, terms.max_turnover or 2.0
    short = (path.targets.amax(-1) >= weight - DUST) & ((path.targets > 0).sum(-1) * weight < 1 - DUST)
    caps = {"max_weight": weight if weight < 1 else None, "max_turnover": turnover if turnover < 2 else None}
    if weight < 1 or turnover < 2:
        yield ResultWarning("capped", {**caps, "in_cash": int(short.sum())})


def trade_log(path: Path, window: Window, terms: Terms) -> pd.DataFrame:
    """One row for every fill and every position that a delisting turned to cash; see `BacktestResult.trades`.

    Rows go by session, then in column order, a fill before a delisting. The running sum of the shares is what is held;
    V_0 less the running sums of notional and cost is the cash.
    """
    execution, columns = window.execution, ["row", "column", "shares", "price", "cost", "kind"]
    steps, names = np.nonzero(path.traded.numpy())
    rows = window.fill_rows[steps]
    fills = (
        rows,
        names,
        path.traded.numpy()[steps, names],
        execution.price.numpy()[rows, names],
        path.cost.numpy()[steps, names],
        np.full(len(rows), "fill", dtype=object),
    )
    steps, names = np.nonzero(path.delisted.numpy())
    rows = window.first + steps + 1
    last_price = execution.mark.numpy()[rows - 1, names] * (1 + terms.delisting_return)
    departures = (
        rows,
        names,
        -path.delisted.numpy()[steps, names],
        last_price,
        np.zeros(len(rows)),
        np.full(len(rows), "delisted", dtype=object),
    )
    both = dict(zip(columns, map(np.concatenate, zip(fills, departures, strict=True)), strict=True))
    order = np.lexsort((both["column"], both["row"]))
    row, name, shares, price, cost, kind = (both[column][order] for column in columns)
    return pd.DataFrame(
        {
            "date": window.market.dates[row],
            "ticker": np.array(window.market.tickers, dtype=object)[name],
            "shares": shares,
            "price": price,
            "notional": shares * price,
            "cost": cost,
            "kind": kind,
        }
    )


def _dates(window: Window, rows: Array) -> pd.DatetimeIndex:
    return pd.DatetimeIndex(window.market.dates[rows], name="date")


def _held(market: MarketData, dates: pd.DatetimeIndex, cash: float) -> pd.Series:
    """[n + 1] the benchmark bought at its first close in the window, without cost; NaN where it has no bar."""
    closes = pd.Series(market.benchmark_close, index=pd.DatetimeIndex(market.dates), name="benchmark").reindex(dates)
    bars = closes.dropna()
    return closes if bars.empty else closes / bars.iloc[0] * cash


def _skipped(window: Window) -> Iterator[Event]:
    if window.decision_rows[0] < 0:
        yield Event(f"{window.dates[0]!s:.10}", "skipped")


def _departures(trades: pd.DataFrame) -> Iterator[Event]:
    for trade in trades[trades["kind"] == "delisted"].itertuples():
        yield Event(f"{trade.date:%Y-%m-%d}", "delisted", trade.ticker, -float(trade.shares), float(trade.price))


def _unfilled(path: Path, window: Window, terms: Terms) -> Iterator[Event]:
    """One event for each reason why an asset that was to be bought was not: the first case, and their number."""
    wanted = path.unfilled.numpy()
    member = window.execution.member.numpy()[window.decision_rows]
    tradable = window.execution.tradable.numpy()[window.fill_rows]
    reasons = {
        "not_member": wanted & ~member,
        "no_price": wanted & member & ~tradable,
        "no_whole_share" if terms.whole_shares else "no_cash": wanted & member & tradable,
    }
    for code, cases in reasons.items():
        if cases.any():
            step, column = np.argwhere(cases)[0]
            day, ticker = window.market.dates[window.fill_rows[step]], window.market.tickers[column]
            yield Event(f"{day!s:.10}", code, ticker, count=int(cases.sum()))
