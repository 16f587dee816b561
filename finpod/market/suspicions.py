"""What looks wrong in the bars and is left alone: listed for whoever decides whether to trust them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from finpod.market.calendar import sessions_of
from finpod.market.long_bars import LongBars
from finpod.market.repairs import RepairLog
from finpod.measures import Array
from finpod.periods import is_weekly_or_longer

LARGE_STEP = 0.03
"""Step of adj_close against close from which a distribution is large, if it is also `UNUSUAL` times the name's usual one."""
UNUSUAL = 5.0
ALWAYS_LARGE = 0.08
"""Step from which it is large whatever is usual."""
USUAL_DAYS = np.timedelta64(731, "D")
"""Time around a distribution whose other distributions are the usual ones."""
SPLIT_SIZES = np.array([2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 30, 50, 100, 1000])
"""Whole ratios for which a jump may be a split that is not listed, or another unit of the price (100, 1000)."""
EXACT = 0.015
"""How near, in log return, a jump must come to a ratio."""
LONG_GAP = 5
"""Sessions in a row without a bar from which a change of the price level across them is suspicious."""
LEVEL = np.log(2)
"""Log return across a long gap from which the price level has changed."""
SAME_LEVEL = 0.1
"""Log return from the last bar of a name to the first of another, a session later, up to which they may be one listing."""
SAME_PRICE = 0.005
"""Difference of their log prices up to which they may be, if both have a bar on that session."""


def look_for_suspicions(
    history: LongBars, dates: Array, listed: Array, ledger: RepairLog, calendar: str | None
) -> None:
    """List sessions and volumes that are missing, large distributions, jumps, series that end early and likely renames.

    Sessions are those of `calendar`, or the dates of the file if it is None or the bars are weekly or rarer. Distributions
    and jumps on the rows `listed` [R] are explained by a split or dividend of the file. A crash is no suspicion.
    """
    own = calendar is None or is_weekly_or_longer(dates)
    sessions = dates if own else sessions_of(str(calendar), dates[0], dates[-1]).dates
    sessions = np.unique(sessions.astype("datetime64[D]").astype("datetime64[ns]"))
    days = history.date.astype("datetime64[D]").astype("datetime64[ns]")
    intraday = bool((days != history.date).any())
    at = np.searchsorted(sessions, days)
    gap = np.where(history.first, 1, np.diff(at, prepend=0)) - 1
    _missing_sessions(history, at, gap, sessions, ledger)
    _zero_volumes(history, intraday, ledger)
    _large_distributions(history, listed, ledger)
    _jumps(history, listed, ledger)
    _new_levels(history, gap, ledger)
    _likely_renames(history, at, ledger)
    last = np.flatnonzero(np.r_[history.first[1:], True])
    early = last[days[last] < dates[-1].astype("datetime64[D]")]
    ledger.suspect(
        "series that end early",
        history.names(early),
        history.date[early],
        (f"the last bar; the data go on to {dates[-1]!s:.10}" for _ in early),
    )


def _missing_sessions(history: LongBars, at: Array, gap: Array, sessions: Array, ledger: RepairLog) -> None:
    """Sessions between a name's first and last bar on which it has none.

    `at` [R] is the position of each bar among the `sessions`, `gap` [R] the number of sessions skipped before it.
    """
    rows = np.flatnonzero(gap > 0)
    gone = np.repeat(rows, gap[rows])
    nth = np.arange(len(gone)) - np.repeat(np.cumsum(gap[rows]) - gap[rows], gap[rows])
    missing = sessions[at[gone] - gap[gone] + nth]
    ledger.suspect("sessions without a bar", history.names(gone), missing, ("no bar on a session" for _ in gone))


def _zero_volumes(history: LongBars, intraday: bool, ledger: RepairLog) -> None:
    if "volume" not in history.values:
        return
    rows = np.flatnonzero(history.values["volume"] == 0)
    close = history.values["close"][rows]
    ledger.suspect(
        "bars without volume",
        history.names(rows),
        history.date[rows],
        (f"volume 0, one price of {price:g} all {'bar' if intraday else 'day'}" for price in close),
    )


def _large_distributions(history: LongBars, listed: Array, ledger: RepairLog) -> None:
    """Days on which close and adj_close part by far more than the name's dividends do."""
    if "adj_close" not in history.values:
        return
    close, adjusted = history.values["close"], history.values["adj_close"]
    factor = adjusted / close
    step = np.nan_to_num(factor / history.previous(factor) - 1)
    paid = np.flatnonzero(step > 1e-3)
    large = paid[(step[paid] >= LARGE_STEP) & ~listed[paid]]
    rows = np.array([row for row in large if _is_unusual(history, row, paid, step)], dtype=int)
    ledger.suspect(
        "days on which close and adj_close part", history.names(rows), history.date[rows], _told(history, rows, step)
    )


def _is_unusual(history: LongBars, row: int, paid: Array, step: Array) -> bool:
    own = paid[np.searchsorted(paid, history.start[row]) : np.searchsorted(paid, history.stop[row])]
    near = own[(own != row) & (np.abs(history.date[own] - history.date[row]) <= USUAL_DAYS)]
    return not len(near) or bool(step[row] >= min(ALWAYS_LARGE, UNUSUAL * np.median(step[near])))


def _told(history: LongBars, rows: Array, step: Array) -> Iterator[str]:
    close, adjusted = history.values["close"], history.values["adj_close"]
    for row in rows:
        before = close[row - 1]
        cash = before * (1 - 1 / (1 + step[row]))
        yield (
            f"close {close[row] / before - 1:+.2%}, adj_close {adjusted[row] / adjusted[row - 1] - 1:+.2%}: a spin-off or "
            f"special dividend of {cash:.2f} on {before:.2f}; reinvested at the day's close {(close[row] + cash) / before - 1:+.2%}"
        )


def _jumps(history: LongBars, listed: Array, ledger: RepairLog) -> None:
    """Returns that equal a split which is not in the prices."""
    close = history.values.get("adj_close", history.values["close"])
    with np.errstate(invalid="ignore"):
        move = np.nan_to_num(np.log(close / history.previous(close)))
    rows = np.flatnonzero((np.abs(move) > np.log(SPLIT_SIZES[0]) - EXACT) & ~listed)
    off = np.abs(np.abs(move[rows, None]) - np.log(SPLIT_SIZES))
    size, near = SPLIT_SIZES[off.argmin(axis=1)], off.min(axis=1) < EXACT
    ledger.suspect(
        "jumps of the size of a split",
        history.names(rows[near]),
        history.date[rows[near]],
        (
            f"a return of {np.expm1(move[row]):+.2%} is near a split of {f'{n}:1' if move[row] < 0 else f'1:{n}'} "
            f"{'or another unit ' if n >= 100 else ''}that is not in the prices; left alone, as it may be real"
            for row, n in zip(rows[near], size[near], strict=True)
        ),
    )


def _new_levels(history: LongBars, gap: Array, ledger: RepairLog) -> None:
    """Prices that are far from where they were before a long gap: the symbol may have gone to another company."""
    close = history.values.get("adj_close", history.values["close"])
    before = history.previous(close)
    rows = np.flatnonzero((gap >= LONG_GAP) & (np.abs(history.log_steps(close)) >= LEVEL))
    ledger.suspect(
        "price levels that change across a gap",
        history.names(rows),
        history.date[rows],
        (
            f"{before[row]:g} before {gap[row]} sessions without a bar, {close[row]:g} after; perhaps another company, "
            "or a split that is not listed"
            for row in rows
        ),
    )


def _likely_renames(history: LongBars, at: Array, ledger: RepairLog) -> None:
    """Names that end where another begins, on that session or the next, at about the same price."""
    first = np.flatnonzero(history.first)
    last = np.r_[first[1:], len(history)] - 1
    close = history.values["close"]
    begins, ends = first[at[first] > at.min()], last[at[last] < at.max()]
    after = at[begins][None, :] - at[ends][:, None]
    step = np.abs(np.log(close[begins][None, :] / close[ends][:, None]))
    pairs = np.argwhere(((after == 1) & (step <= SAME_LEVEL)) | ((after == 0) & (step <= SAME_PRICE)))
    old, new = ends[pairs[:, 0]], begins[pairs[:, 1]]
    ledger.suspect(
        "names that may have been renamed",
        history.names(old),
        history.date[old],
        (
            f"ends at {close[one]:g}; {history.tickers[history.code[other]]} begins on {history.date[other]!s:.10} at "
            f"{close[other]:g}; if they are one listing, join them with renames="
            for one, other in zip(old, new, strict=True)
        ),
    )
