"""Finds extra columns (`extra=`) that correlate with the next return, perhaps because they are dated too early."""

from __future__ import annotations

import numpy as np
import pandas as pd

from finpod.active import rank_correlations
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.records import Finding, Severity

MOST = 0.3
"""A column is reported if |its mean rank correlation with the next return| is above a limit of at least this."""
SKILL, ERRORS = 0.05, 4.0
"""The limit is max(`MOST`, `SKILL` + `ERRORS` standard errors). A good forecast has the rank correlation `SKILL`."""
ROWS = 1000
"""Every k-th session is compared, with k = max(number of sessions // `ROWS`, 1)."""


def early_columns(market: MarketData, first: int, last: int) -> list[Finding]:
    """Return a finding for each extra column that correlates with the next session's return in rows `first` to `last`.

    For a column with one value per ticker, the rank correlation across tickers is averaged over sessions. A column with
    one value for all tickers is correlated over time with the mean return of the tickers and with the return of the
    benchmark. Each correlation is computed twice: over all values, and over only those that differ from the row before.
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
            over_time = [(column[now, :1].T, one[None], 1) for one in (mean, index)]
            compared += [_correlation(*pair) for pair in (over_time if shared else [(column[now], returns, 0)])]
        size, most, sessions, row = max(compared, key=lambda one: abs(one[0]) - one[1] if one[2] else -np.inf)
        if sessions and abs(size) > most:
            data = {"sessions": sessions, "most": most, "shared": shared}
            day = f"{market.dates[now[row]]!s:.10}"
            findings.append(Finding("extra", Severity.CAN_LOOK_AHEAD, "data", day, name, size=size, data=data))
    return findings


def _correlation(one: Array, other: Array, over: int) -> tuple[float, float, int, int]:
    """Return (mean rank correlation of the rows of two tables, its limit, number of sessions, first session). `over` is
    the axis of the sessions: 0 if rows are sessions, 1 if columns are. A row counts as a session if it has a
    correlation. A column counts if both tables have a value in it."""
    each, counts = rank_correlations(one, other)
    counted = np.flatnonzero(np.isfinite(each))
    if not len(counted):
        return np.nan, np.inf, 0, 0
    error = 1 / np.sqrt((counts[counted] - 1).sum())
    if over == 0:
        error = max(error, each[counted].std() / np.sqrt(len(counted)))
    known = np.flatnonzero((np.isfinite(one) & np.isfinite(other)).any(axis=0)) if over else counted
    return float(each[counted].mean()), float(max(MOST, SKILL + ERRORS * error)), len(known), int(known[0])
