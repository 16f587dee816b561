"""Extra columns that correlate with the next session's returns, as those of a table do that is dated a session early."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from finpod.active import rank_correlations
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.records import Finding, Severity

MOST = 0.3
"""Largest mean rank correlation with the next returns that a column may have."""
SKILL, ERRORS = 0.05, 4.0
"""With few tickers or sessions a column may have more: this rank correlation, a good forecast's, and so many standard errors."""
ROWS = 1000
"""Sessions that are compared, evenly spaced where there are more."""


def early_columns(market: MarketData, first: int, last: int) -> tuple[list[Finding], bool]:
    """A finding for each column that correlates with the next session's returns, and whether one had too little to be compared.

    The rows `first` to `last` are compared. Of a column with a value per ticker the mean over sessions of the rank
    correlation across tickers counts, of a column with one value for all the rank correlation over time with the mean
    return of the tickers or with the benchmark's; each over all values, and over those that are new.
    """
    findings, few = [], False
    now, following = _sessions(market, first, last)
    returns = market.close[following] / market.close[now] - 1
    index = market.benchmark_close[following] / market.benchmark_close[now] - 1
    counts = np.isfinite(returns).sum(axis=1)
    mean = np.where(counts > 0, np.nansum(returns, axis=1) / np.maximum(counts, 1), np.nan)
    for name in market.extra.names:
        values, compared = market.extra[name], []
        if not np.isfinite(values[first : last + 1]).any():
            continue
        shared = market.extra.is_shared(name) or values.shape[1] == 1
        for column in _all_and_new(values):
            if shared:
                compared += [_correlation(column[now, :1].T, one[None], over=1) for one in (mean, index)]
            else:
                compared.append(_correlation(column[now], returns, over=0))
        size, most, sessions, row = max(compared, key=lambda one: abs(one[0]) - one[1] if one[2] else -np.inf)
        if sessions and abs(size) > most:
            data = {"sessions": sessions, "most": most, "shared": shared}
            day = f"{market.dates[now[row]]!s:.10}"
            findings.append(Finding("extra", Severity.CAN_LOOK_AHEAD, "data", day, name, size=size, data=data))
        few |= not compared[0][2] or (compared[0][1] > MOST and not (sessions and abs(size) > most))
    return findings, few


def _sessions(market: MarketData, first: int, last: int) -> Array:
    """[2, R] the last rows of sessions, and those of the sessions after them."""
    ends = np.flatnonzero(np.r_[market.begins_session[1:], True])
    pairs = np.stack([ends[:-1], ends[1:]])
    pairs = pairs[:, (pairs[0] >= first) & (pairs[0] <= last)]
    count = pairs.shape[1]
    return pairs[:, np.unique(np.linspace(0, count - 1, min(count, ROWS)).astype(int))] if count else pairs


def _all_and_new(column: Array) -> Iterator[Array]:
    """The column [T, N], and the column with NaN where the value is that of the row before."""
    yield column
    new = np.isfinite(column)
    new[1:] &= column[1:] != column[:-1]
    if new.sum() < np.isfinite(column).sum():
        yield np.where(new, column, np.nan)


def _correlation(one: Array, other: Array, over: int) -> tuple[float, float, int, int]:
    """The mean rank correlation of the rows of two tables, the most that it may be, the number of sessions and the first of them.

    Sessions are the rows that have one, or the columns if `over` is 1.
    """
    each, counts = rank_correlations(one, other)
    counted = np.flatnonzero(np.isfinite(each))
    if not len(counted):
        return np.nan, np.inf, 0, 0
    error = 1 / np.sqrt((counts[counted] - 1).sum())
    if over == 0:
        error = max(error, each[counted].std() / np.sqrt(len(counted)))
    known = np.flatnonzero((np.isfinite(one) & np.isfinite(other)).any(axis=0)) if over else counted
    sessions = len(known) if over else len(counted)
    return float(each[counted].mean()), float(max(MOST, SKILL + ERRORS * error)), sessions, int(known[0])
