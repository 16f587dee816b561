"""From the path of one account to a `BacktestResult`: dates and names, the trade log, what was out of the ordinary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pandas as pd

from finpod.caveats import caveats
from finpod.evidence.dossier import search_of
from finpod.market.data import Array, MarketData
from finpod.result import BacktestResult
from finpod.simulation import Path, Terms, Window
from finpod.strategy import Strategy

UNPRICED = "there was no price to fill at"
"""Why an order failed through nobody's fault: an event, and no reason to doubt the result."""


def outcome(
    path: Path,
    window: Window,
    terms: Terms,
    *,
    label: str,
    strategy: Strategy,
    reference: MarketData,
    equal_weight: pd.Series,
    risk_free: float,
    in_sample: bool,
    variants: Mapping[str, Path] = MappingProxyType({}),
    agents: Mapping[str, Path] = MappingProxyType({}),
) -> BacktestResult:
    """Dress the path of one account; `reference` is the market with the benchmark, from which the window may be cut."""
    tape, dates = window.tape, pd.DatetimeIndex(window.dates, name="date")
    equity = path.equity.numpy()[:, None]
    worth = path.shares.numpy() * tape.mark[window.first : window.last + 1].numpy()
    weights = np.divide(worth, equity, out=np.zeros_like(worth), where=equity > 0)
    trades = trade_log(path, window, terms)
    unfilled = tuple(_unfilled(path, window, terms))
    result = BacktestResult(
        strategy=label,
        equity=pd.Series(equity[:, 0], index=dates, name="equity"),
        benchmark=reference.benchmark,
        benchmark_equity=_held(reference, dates, terms.cash),
        equal_weight_equity=equal_weight.reindex(dates),
        weights=pd.DataFrame(weights, index=dates, columns=list(window.market.tickers)),
        trades=trades,
        turnover=pd.Series(path.turnover.numpy(), index=_dates(window, window.fill_rows), name="turnover"),
        costs=terms.costs,
        fill=tape.fill,
        whole_shares=terms.whole_shares,
        risk_free=risk_free,
        periods_per_year=window.market.periods_per_year,
        trained_until=strategy.trained_until,
        trials=strategy.trials,
        windows=dict(strategy.windows),
        agent=dict(strategy.provenance),
        in_sample=in_sample,
        variants={name: pd.Series(one.equity.numpy(), index=dates) for name, one in variants.items()},
        agents={name: pd.Series(one.equity.numpy(), index=dates) for name, one in agents.items()},
        search=search_of(strategy, window.market.periods_per_year),
        events=tuple(sorted((*_skipped(window), *_departures(trades), *unfilled))),
        data_hash=reference.content_hash,
        manifest=reference.manifest,
    )
    return replace(result, warnings=(*caveats(result), *(w for w in unfilled if UNPRICED not in w)))


def trade_log(path: Path, window: Window, terms: Terms) -> pd.DataFrame:
    """One row for every fill and every position that a delisting turned to cash; see `BacktestResult.trades`.

    Rows go by session, then in column order, a fill before a delisting. The running sum of the shares is what is held;
    V_0 less the running sums of notional and cost is the cash.
    """
    tape, columns = window.tape, ["row", "column", "shares", "price", "cost", "kind"]
    steps, names = np.nonzero(path.traded.numpy())
    rows = window.fill_rows[steps]
    fills = (
        rows,
        names,
        path.traded.numpy()[steps, names],
        tape.price.numpy()[rows, names],
        path.cost.numpy()[steps, names],
        np.full(len(rows), "fill", dtype=object),
    )
    steps, names = np.nonzero(path.delisted.numpy())
    rows = window.first + steps + 1
    last_price = tape.mark.numpy()[rows - 1, names] * (1 + terms.delisting_return)
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


def _skipped(window: Window) -> Iterator[str]:
    if window.decision_rows[0] < 0:
        yield f"{window.dates[0]!s:.10}: no row before the start to decide on; the first decision was skipped"


def _departures(trades: pd.DataFrame) -> Iterator[str]:
    for trade in trades[trades["kind"] == "delisted"].itertuples():
        yield (
            f"{trade.date:%Y-%m-%d}: {trade.ticker} has no more bars (it left the exchange, or its source ended); "
            f"{-trade.shares:.6g} shares turned to cash at {trade.price:.6g}"
        )


def _unfilled(path: Path, window: Window, terms: Terms) -> Iterator[str]:
    """One sentence for each reason why a name that was to be bought was not, with the first case and their number."""
    wanted = path.unfilled.numpy()
    member = window.tape.member.numpy()[window.decision_rows]
    tradable = window.tape.tradable.numpy()[window.fill_rows]
    poor = "the money did not reach for one whole share" if terms.whole_shares else "there was no cash left"
    reasons = {
        "it was not a member on the day of the decision": wanted & ~member,
        UNPRICED: wanted & member & ~tradable,
        poor: wanted & member & tradable,
    }
    for reason, cases in reasons.items():
        if cases.any():
            step, column = np.argwhere(cases)[0]
            yield (
                f"{window.market.dates[window.fill_rows[step]]!s:.10}: {window.market.tickers[column]} was wanted, but "
                f"{reason} ({int(cases.sum())} such order{'s' if cases.sum() > 1 else ''} in all)"
            )
