"""Build a `BacktestResult` from the path of an account: curves, trade log, events and caps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch

from finpod.evidence.assemble import warnings_of
from finpod.evidence.skill import search_of
from finpod.files import json_values
from finpod.market.data import MarketData
from finpod.measures import Array, returns_per_year
from finpod.periods import plain
from finpod.records import Event, ResultWarning
from finpod.result import BacktestResult
from finpod.strategy import FeatureTable, Strategy
from finpod.trading.anchors import EQUAL
from finpod.trading.execution import build_execution
from finpod.trading.relaxation import relax
from finpod.trading.simulate import Path, Terms, Window, anchor_decisions, simulate
from finpod.weights import Decided, decisions_of

DUST = 1e-9
"""Tolerance for comparing a weight with its cap."""
UNUSUAL = 0.1
"""Agents cause a warning if a feature lacks this fraction of values more often at their decisions than in training."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Settings that all results of a backtest share. See `backtest` and `BacktestResult` for fields without text."""

    strategy: Strategy
    """Strategy to run; a plain `Strategy` if weights are given."""
    market: MarketData
    """Market as given. `window.market` differs from it if the strategy trades only the benchmark."""
    window: Window
    terms: Terms
    opened: int
    risk_free: float
    in_sample: bool
    fast: bool

    def decided_by(self, strategy: Strategy, label: str, table: FeatureTable, log: list[Decided] | None = None) -> Path:
        """Return the history of an account that follows a strategy; decisions are appended to `log`."""
        decide, window = decisions_of(strategy, label, self.window, table, log), self.window
        return simulate(window.execution, window.first, window.last, decide, self.terms)

    @cached_property
    def table(self) -> FeatureTable:
        """The features of the window's market."""
        return FeatureTable(self.window.market)

    @cached_property
    def equal_weight(self) -> pd.Series:
        """[n + 1] equity of the point-in-time equal-weight portfolio, rebalanced every session."""
        return self._equity_of(EQUAL, 1)

    @cached_property
    def anchor(self) -> pd.Series:
        """[n + 1] equity of the anchor, rebalanced every session, or every k bars if `strategy.every` is k > 1."""
        anchor, every = self.strategy.anchor, self.strategy.every
        return self.equal_weight if (anchor, every) == (EQUAL, 1) else self._equity_of(anchor, every)

    def _equity_of(self, anchor: str, every: int) -> pd.Series:
        market, terms = self.market, self.terms.uncapped
        first, last = market.window(*self.window.dates[[0, -1]])
        execution = build_execution(market, self.window.execution.fill)
        weights, due = anchor_decisions(market, execution, first, last, anchor=anchor, every=every)
        if self.fast:
            rows = np.arange(first, last) - execution.lag
            steps = weights[torch.from_numpy(rows)].where(torch.from_numpy(due[rows] & (rows >= 0))[:, None], torch.nan)
            path = relax(execution, first, last, steps, terms)
        else:
            path = simulate(execution, first, last, lambda _step, row, _seen: weights[row] if due[row] else None, terms)
        dates = pd.DatetimeIndex(market.dates[first : last + 1], name="date")
        return pd.Series(path.equity.numpy(), dates, name="anchor")

    def result(self, path: Path, label: str, **beside: Any) -> BacktestResult:
        """Return the result of the account with history `path`. `beside` has the fields `variants` and `agents`."""
        window, terms, market = self.window, self.terms, self.market
        dates = dates_of(window)
        equity, trades, missed = path.equity.numpy(), _trade_log(path, window, terms), [*_unfilled(path, window, terms)]
        worth = path.shares.numpy() * window.execution.mark[window.first : window.last + 1].numpy()
        weights = np.divide(worth, equity[:, None], out=np.zeros_like(worth), where=equity[:, None] > 0)
        skipped = [Event(f"{window.dates[0]!s:.10}", "skipped")] if window.decision_rows[0] < 0 else []
        departures = [
            Event(f"{trade.date:%Y-%m-%d}", "delisted", trade.ticker, -float(trade.shares), float(trade.price))
            for trade in trades[trades["kind"] == "delisted"].itertuples()
        ]
        events = sorted((*skipped, *departures, *missed), key=lambda event: event.day)
        result = BacktestResult(
            **self._settings,
            strategy=label,
            equity=pd.Series(equity, index=dates, name="equity"),
            benchmark_equity=_benchmark_equity(market, dates, terms.cash),
            equal_weight_equity=self.equal_weight.reindex(dates),
            anchor_equity=self.anchor.reindex(dates),
            weights=pd.DataFrame(weights, index=dates, columns=list(window.market.tickers)),
            trades=trades,
            turnover=pd.Series(path.turnover.numpy(), dates_of(window, window.fill_rows), name="turnover"),
            events=tuple(events),
            **beside,
        )
        # Orders without a price are events only. Other unfilled orders are also warnings.
        doubtful = [ResultWarning("unfilled", asdict(event)) for event in missed if event.code != "no_price"]
        return replace(result, warnings=(*warnings_of(result), *self._undefined(), *_capped(path, terms), *doubtful))

    def _undefined(self) -> Iterator[ResultWarning]:
        """Yield a warning if features of agents are undefined more often at their decisions than in training."""
        who, market, rows = self.strategy, self.window.market, self.window.decision_rows[:: self.strategy.every]
        rows = rows[rows >= 0]
        among, features = (market.member & market.has_bar)[rows], getattr(who, "features", None)
        if "task" not in who.provenance or not features or not among.any():  # no agent, or nothing to observe
            return
        names, values = self.table.get(features)
        shares = {name: float(np.isnan(values[rows, :, f][among]).mean()) for f, name in enumerate(names)}
        usual = who.provenance.get("undefined", {})
        if more := {name: share for name, share in shares.items() if share > usual.get(name, 0) + UNUSUAL}:
            worst = max(more, key=more.__getitem__)
            yield ResultWarning("undefined_features", {"count": len(more), "worst": worst, "share": more[worst]})

    @property
    def _settings(self) -> dict[str, Any]:
        """Fields of a result that do not depend on the path of the account."""
        window, terms, who, market = self.window, self.terms, self.strategy, self.market
        frequency = {}
        for name, unit in (("periods_per_year", "ns"), ("sessions_per_year", "D")):  # `window.market` may lack rows
            rows, kept = (dates.astype(f"datetime64[{unit}]") for dates in (market.dates, window.dates))
            frequency[name] = plain(returns_per_year(np.isin(np.unique(rows), kept), market.frequency[name]))
        return {
            **{name: getattr(who, name) for name in ("anchor", "trained_until", "variant_kind")},
            **{"anchor_every": int(who.every), "trials": int(who.trials)},
            **{name: getattr(self, name) for name in ("risk_free", "opened", "in_sample")},
            **frequency,
            "benchmark": market.benchmark,
            "costs": terms.costs,
            "fill": window.execution.fill,
            "whole_shares": terms.whole_shares,
            "delisting_return": terms.delisting_return,
            "windows": dict(who.windows),
            "agent": json_values(dict(who.provenance)),
            "search": search_of(who, who.provenance.get("periods_per_year", window.market.periods_per_year)),
            "data_hash": market.content_hash,
            "manifest": market.manifest,
        }


def dates_of(window: Window, rows: Array | None = None) -> pd.DatetimeIndex:
    """Return the dates of `rows` in the window's market; by default the dates of the window's closes."""
    return pd.DatetimeIndex(window.dates if rows is None else window.market.dates[rows], name="date")


def _benchmark_equity(market: MarketData, dates: pd.DatetimeIndex, cash: float) -> pd.Series:
    """Return the equity [n + 1] of the benchmark, bought at its first close without cost; NaN where it has no bar."""
    closes = pd.Series(market.benchmark_close, index=pd.DatetimeIndex(market.dates), name="benchmark").reindex(dates)
    bars = closes.dropna()
    return closes if bars.empty else closes / bars.iloc[0] * cash


def _trade_log(path: Path, window: Window, terms: Terms) -> pd.DataFrame:
    """Return `BacktestResult.trades`: a row for each fill, and for each position that a delisting turned into cash.

    Rows are sorted by bar, then by asset; a fill comes before a delisting. The position in an asset is the running sum
    of its shares. The cash is the initial cash minus the running sums of notional and cost.
    """
    execution, closes = window.execution, np.arange(window.first, window.last)
    last_worth = execution.mark[closes] * (1 + terms.delisting_return)
    moves = {
        "fill": (window.fill_rows, path.traded, execution.price[window.fill_rows], path.cost),
        "delisted": (closes + 1, -path.delisted, last_worth, torch.zeros_like(path.cost)),
    }
    parts = []
    for kind, (rows, *tables) in moves.items():
        steps, columns = np.nonzero(tables[0].numpy())
        shares, price, cost = (table.numpy()[steps, columns] for table in tables)
        fields = {"row": rows[steps], "column": columns, "shares": shares, "price": price, "cost": cost, "kind": kind}
        parts.append(pd.DataFrame(fields))
    log = pd.concat(parts, ignore_index=True).sort_values(["row", "column"], kind="stable", ignore_index=True)
    log["date"] = window.market.dates[log["row"].to_numpy(dtype=int)]
    log["ticker"] = np.array(window.market.tickers, dtype=object)[log["column"].to_numpy(dtype=int)]
    log["notional"] = log["shares"] * log["price"]
    return log[["date", "ticker", "shares", "price", "notional", "cost", "kind"]]


def _capped(path: Path, terms: Terms) -> Iterator[ResultWarning]:
    """Yield a warning if caps apply, with the number of decisions that had too few assets to invest all of the cash."""
    weight, turnover = terms.max_weight or 1.0, terms.max_turnover or 2.0
    short = (path.targets.amax(-1) >= weight - DUST) & ((path.targets > 0).sum(-1) * weight < 1 - DUST)
    caps = {"max_weight": weight if weight < 1 else None, "max_turnover": turnover if turnover < 2 else None}
    if weight < 1 or turnover < 2:
        yield ResultWarning("capped", {**caps, "in_cash": int(short.sum())})


def _unfilled(path: Path, window: Window, terms: Terms) -> Iterator[Event]:
    """Yield an event for each reason why assets not yet held were not bought. The event describes the first order
    that was not filled for this reason, and has the number of such orders."""
    wanted = path.unfilled.numpy()
    member = window.execution.member.numpy()[window.decision_rows]
    tradable = window.execution.tradable.numpy()[window.fill_rows]
    impact = window.execution.impact_for(terms.costs)
    costed = np.full_like(wanted, True) if impact is None else impact.isfinite().numpy()[window.decision_rows]
    reasons = {
        "not_member": wanted & ~member,
        "no_price": wanted & member & ~tradable,
        "no_volume": wanted & member & tradable & ~costed,
        "no_whole_share" if terms.whole_shares else "no_cash": wanted & member & tradable & costed,
    }
    for code, cases in reasons.items():
        if cases.any():
            step, column = np.argwhere(cases)[0]
            day, ticker = window.market.dates[window.fill_rows[step]], window.market.tickers[column]
            yield Event(f"{day!s:.10}", code, ticker, count=int(cases.sum()))
