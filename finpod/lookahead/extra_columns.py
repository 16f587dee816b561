"""Extra columns that correlate with the next session's returns, as those of a table do that is dated a session early."""

from __future__ import annotations

import numpy as np
import pandas as pd

from finpod.active import rank_correlations
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.records import Finding, Severity

MOST = 0.3
"""Largest mean rank correlation with the next returns that a column may have."""
SKILL, ERRORS = 0.05, 4.0
"""With few tickers or sessions a column may have more: this rank correlation, a good forecast's, and so many standard errors."""
ROWS = 1000
"""From twice as many sessions on, only each second, third, ... is compared."""


def early_columns(market: MarketData, first: int, last: int) -> list[Finding]:
    """A finding for each column that correlates with the next session's returns.

    The rows `first` to `last` are compared. Of a column with a value per ticker the mean over sessions of the rank
    correlation across tickers counts, of a column with one value for all the rank correlation over time with the mean
    return of the tickers or with the benchmark's; each over all values, and over those that are new.
    """
    findings = []
    ends = np.flatnonzero(np.r_[market.begins_session[1:], True])  # the last rows of sessions
    pairs = np.stack([ends[:-1], ends[1:]])[:, (first <= ends[:-1]) & (ends[:-1] <= last)]
    now, following = pairs[:, :: max(pairs.shape[1] // ROWS, 1)]
    returns = market.close[following] / market.close[now] - 1
    index = market.benchmark_close[following] / market.benchmark_close[now] - 1
    mean = pd.DataFrame(returns).mean(axis=1).to_numpy()
    for name in market.extra.names:
        values, compared = market.extra[name], []
        if not np.isfinite(values[first : last + 1]).any():
            continue
        shared = market.extra.is_shared(name) or values.shape[1] == 1
        new = np.isfinite(values)
        new[1:] &= values[1:] != values[:-1]
        for column in (values, np.where(new, values, np.nan)):
            if shared:
                compared += [_correlation(column[now, :1].T, one[None], over=1) for one in (mean, index)]
            else:
                compared.append(_correlation(column[now], returns, over=0))
        size, most, sessions, row = max(compared, key=lambda one: abs(one[0]) - one[1] if one[2] else -np.inf)
        if sessions and abs(size) > most:
            data = {"sessions": sessions, "most": most, "shared": shared}
            day = f"{market.dates[now[row]]!s:.10}"
            findings.append(Finding("extra", Severity.CAN_LOOK_AHEAD, "data", day, name, size=size, data=data))
    return findings


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
    return float(each[counted].mean()), float(max(MOST, SKILL + ERRORS * error)), len(known), int(known[0])
