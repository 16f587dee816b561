"""Extra columns that go with the next session's returns, as a table does that is dated a session early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from finpod.active import rank_correlations
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.records import Finding, Severity

MOST = 0.3
"""Largest mean rank correlation with the next returns that a column may have."""
SKILL, ERRORS = 0.05, 4.0
"""A column with this rank correlation, a good forecast, is passed: it takes so many standard errors more to be reported."""
ROWS = 1000
"""Rows that are compared, drawn at random where there are more."""


class Correlation(NamedTuple):
    """How a column goes with the next returns."""

    mean: float
    """Mean rank correlation over the sessions that count; NaN for none."""
    error: float
    """Its standard error."""
    sessions: int
    """Number of sessions that count."""
    first: int
    """Row of the first of them."""

    @property
    def most(self) -> float:
        """What it may be at most: with few tickers or sessions more than `MOST`, for chance alone gives more."""
        return max(MOST, SKILL + ERRORS * self.error)


def early_columns(market: MarketData, first: int, last: int) -> tuple[list[Finding], bool]:
    """A finding for each column that goes with the next session's returns, and whether one had too little to be compared.

    The rows `first` to `last` are compared. A column with a value per ticker has a rank correlation with the next returns on
    every session on which two tickers or more have a value and a return; their mean counts. A column with one value for
    all tickers has one rank correlation, over time, with the mean return of the tickers or with that of the benchmark. Each
    is taken over all values, and over those that are new. In an intraday market the next bar counts as well as the next
    session. A column is reported if the largest of these exceeds 0.3, and by 4 standard errors a rank correlation of 0.05.
    """
    findings, few = [], False
    for name in market.extra.names:
        values = market.extra[name]
        if not np.isfinite(values[first : last + 1]).any():
            continue
        one = market.extra.is_shared(name) or values.shape[1] == 1
        found = [
            _over_time(market, column[:, 0], rows) if one else _across_tickers(market, column, rows)
            for column in _all_and_new(values)
            for rows in _horizons(market, first, last)
        ]
        known = [each for each in found if each.sessions]
        largest = max(known, key=lambda each: abs(each.mean) - each.most, default=None)
        if largest is not None and abs(largest.mean) > largest.most:
            day = f"{market.dates[largest.first]!s:.10}"
            data = {"sessions": largest.sessions, "most": largest.most, "shared": one}
            possible = Severity.CAN_LOOK_AHEAD
            findings.append(Finding("extra", possible, "data", day, name, size=float(largest.mean), data=data))
        elif not found[0].sessions or found[0].most > MOST:
            few = True
    return findings, few


def _all_and_new(column: Array) -> Iterator[Array]:
    """The column [T, N], and the column with NaN where the value is that of the row before."""
    yield column
    new = np.isfinite(column)
    new[1:] &= column[1:] != column[:-1]
    if new.sum() < np.isfinite(column).sum():
        yield np.where(new, column, np.nan)


def _horizons(market: MarketData, first: int, last: int) -> Iterator[Array]:
    """[R, 2] rows and those to which the next return goes: the next session's last, and the next bar if that is another."""
    ends = np.flatnonzero(np.r_[market.begins_session[1:], True])
    every = np.arange(len(market.dates))
    for rows in [ends] if len(ends) == len(every) else [ends, every]:
        pairs = np.stack([rows[:-1], rows[1:]], axis=1)
        pairs = pairs[(pairs[:, 0] >= first) & (pairs[:, 0] <= last)]
        yield (
            pairs[np.unique(np.linspace(0, len(pairs) - 1, min(len(pairs), ROWS)).astype(int))] if len(pairs) else pairs
        )


def _across_tickers(market: MarketData, column: Array, rows: Array) -> Correlation:
    """The mean over sessions of the rank correlation across tickers."""
    now, following = rows.T
    coming = market.close[following] / market.close[now] - 1
    each, tickers = rank_correlations(column[now], coming)
    counted = np.flatnonzero(np.isfinite(each))
    if not len(counted):
        return Correlation(np.nan, np.inf, 0, 0)
    each = each[counted]
    by_chance = 1 / np.sqrt((tickers[counted] - 1).sum())
    spread = each.std() / np.sqrt(len(each))
    return Correlation(float(each.mean()), max(by_chance, spread), len(each), int(now[counted[0]]))


def _over_time(market: MarketData, column: Array, rows: Array) -> Correlation:
    """The larger of the rank correlations over time with the mean return of the tickers and with the benchmark's."""
    now, following = rows.T
    coming = market.close[following] / market.close[now] - 1
    counts = np.isfinite(coming).sum(axis=1)
    mean = np.where(counts > 0, np.nansum(coming, axis=1) / np.maximum(counts, 1), np.nan)
    index = market.benchmark_close[following] / market.benchmark_close[now] - 1
    found = [Correlation(np.nan, np.inf, 0, 0)]
    for returns in (mean, index):
        (each,), (sessions,) = rank_correlations(column[now][None], returns[None])
        if np.isfinite(each):
            first = int(now[np.argmax(np.isfinite(column[now]) & np.isfinite(returns))])
            found.append(Correlation(float(each), 1 / np.sqrt(sessions - 1), int(sessions), first))
    return max(found, key=lambda one: -1.0 if np.isnan(one.mean) else abs(one.mean))
