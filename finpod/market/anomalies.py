"""Anomalies: bars that look wrong but are not changed, listed for the user to judge."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from finpod.market.calendar import sessions_of
from finpod.market.data import MarketData
from finpod.market.long_bars import LongBars, RepairLog
from finpod.measures import Array
from finpod.periods import is_weekly_or_longer

LARGE_STEP, UNUSUAL, ALWAYS_LARGE = 0.03, 5.0, 0.08
"""A distribution is large from this step of adj_close against close if it is also so many times the asset's usual one, or from
the last of these steps whatever is usual."""
USUAL_DAYS = np.timedelta64(731, "D")
"""Time around a distribution whose other distributions are the usual ones."""
SPLIT_SIZES = np.array([2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 30, 50, 100, 1000])
"""Ratios for which a jump may be a split that is not listed, or another unit of the price (100, 1000)."""
EXACT = 0.015
"""Distance in log return from a jump to such a ratio."""
LONG_GAP, LEVEL = 5, np.log(2)
"""Sessions without a bar, and log return across them, from which the price level has changed."""
SAME_LEVEL, SAME_PRICE = 0.1, 0.005
"""Log return from the last bar of an asset to the first of another up to which they may be one listing: a session later, and
on the same session."""

STILL, STILL_WITHOUT_VOLUME = 5, 20
"""Sessions without a move at the start of an asset that look back-filled, where volumes confirm it and where there are none."""


@dataclass(frozen=True)
class Placed:
    """Cleaned bars and the sessions that they lie in."""

    bars: LongBars
    sessions: Array
    """[S] datetime64[ns]"""
    at: Array
    """[R] position of each bar among the sessions."""
    gap: Array
    """[R] sessions without a bar before it, within the life of its asset."""
    listed: Array
    """[R] bool: the file lists a split or dividend."""
    end: np.datetime64
    """Last date of the market."""

    @property
    def adjusted(self) -> Array:
        """[R] adjusted closes."""
        return self.bars.values.get("adj_close", self.bars.values["close"])


Found = tuple[Array, Iterable[str]]
"""Rows [n], and a sentence for each."""


def report_anomalies(bars: LongBars, dates: Array, listed: Array, log: RepairLog, calendar: str | None) -> None:
    """List sessions and volumes that are missing, large distributions, jumps, series that end early and likely renames.

    Sessions are those of `calendar`, or the dates of the file if it is None or the bars are weekly or rarer. Distributions
    and jumps on the rows `listed` [R] are explained by a split or dividend of the file. A crash is no suspicion.
    """
    by_dates = calendar is None or is_weekly_or_longer(dates)
    sessions = dates if by_dates else sessions_of(str(calendar), dates[0], dates[-1]).dates
    sessions = np.unique(sessions.astype("datetime64[D]").astype("datetime64[ns]"))
    at = np.searchsorted(sessions, bars.date.astype("datetime64[D]").astype("datetime64[ns]"))
    gap = np.where(bars.first, 1, np.diff(at, prepend=0)) - 1
    placed = Placed(bars, sessions, at, gap, listed, dates[-1])
    after_gap = np.flatnonzero(gap > 0)
    lost = np.repeat(after_gap, gap[after_gap])
    nth = np.arange(len(lost)) - np.repeat(np.cumsum(gap[after_gap]) - gap[after_gap], gap[after_gap])
    missing = sessions[at[lost] - gap[lost] + nth]
    log.suspect("sessions without a bar", bars.names(lost), missing, ("no bar on a session" for _ in lost))
    for kind, look in ANOMALIES.items():
        rows, sentences = look(placed)
        log.suspect(kind, bars.names(rows), bars.date[rows], sentences)


def _zero_volumes(placed: Placed) -> Found:
    volume = placed.bars.values.get("volume")
    rows = np.flatnonzero(volume == 0) if volume is not None else np.array([], dtype=int)
    span = "bar" if (placed.bars.date != placed.bars.date.astype("datetime64[D]")).any() else "day"
    return rows, (f"volume 0, one price of {price:g} all {span}" for price in placed.bars.values["close"][rows])


def _large_distributions(placed: Placed) -> Found:
    """Days on which close and adj_close part by far more than the asset's dividends do."""
    bars, close, adjusted = placed.bars, placed.bars.values["close"], placed.adjusted
    factor = adjusted / close
    step = np.nan_to_num(factor / bars.previous(factor) - 1)
    paid = np.flatnonzero(step > 1e-3)

    def is_unusual(row: int) -> bool:
        others = paid[np.searchsorted(paid, bars.start[row]) : np.searchsorted(paid, bars.stop[row])]
        near = others[(others != row) & (np.abs(bars.date[others] - bars.date[row]) <= USUAL_DAYS)]
        return not len(near) or bool(step[row] >= min(ALWAYS_LARGE, UNUSUAL * np.median(step[near])))

    def sentence(row: int) -> str:
        before = close[row - 1]
        cash = before * (1 - 1 / (1 + step[row]))
        return (
            f"close {close[row] / before - 1:+.2%}, adj_close {adjusted[row] / adjusted[row - 1] - 1:+.2%}: a spin-off or "
            f"special dividend of {cash:.2f} on {before:.2f}; reinvested at the day's close {(close[row] + cash) / before - 1:+.2%}"
        )

    large = paid[(step[paid] >= LARGE_STEP) & ~placed.listed[paid]]
    rows = np.array([row for row in large if is_unusual(row)], dtype=int)
    return rows, map(sentence, rows)


def _jumps(placed: Placed) -> Found:
    """Returns that equal a split which is not in the prices."""
    move = placed.bars.log_steps(placed.adjusted)
    rows = np.flatnonzero((np.abs(move) > np.log(SPLIT_SIZES[0]) - EXACT) & ~placed.listed)
    off = np.abs(np.abs(move[rows, None]) - np.log(SPLIT_SIZES))
    near = off.min(axis=1) < EXACT
    rows, sizes = rows[near], SPLIT_SIZES[off.argmin(axis=1)][near]
    return rows, (
        f"a return of {np.expm1(move[row]):+.2%} is near a split of {f'{n}:1' if move[row] < 0 else f'1:{n}'} "
        f"{'or another unit ' if n >= 100 else ''}that is not in the prices; left alone, as it may be real"
        for row, n in zip(rows, sizes, strict=True)
    )


def _new_levels(placed: Placed) -> Found:
    """Prices that are far from where they were before a long gap: the symbol may have gone to another company."""
    close, gap = placed.adjusted, placed.gap
    rows = np.flatnonzero((gap >= LONG_GAP) & (np.abs(placed.bars.log_steps(close)) >= LEVEL))
    return rows, (
        f"{close[row - 1]:g} before {gap[row]} sessions without a bar, {close[row]:g} after; perhaps another company, "
        "or a split that is not listed"
        for row in rows
    )


def _likely_renames(placed: Placed) -> Found:
    """Assets that end where another begins, on that session or the next, at about the same price."""
    bars, at, close = placed.bars, placed.at, placed.bars.values["close"]
    first, last = np.flatnonzero(bars.first), _last_bars(bars)
    begins, ends = first[at[first] > at.min()], last[at[last] < at.max()]
    after = at[begins][None, :] - at[ends][:, None]
    step = np.abs(np.log(close[begins][None, :] / close[ends][:, None]))
    pairs = np.argwhere(((after == 1) & (step <= SAME_LEVEL)) | ((after == 0) & (step <= SAME_PRICE)))
    old, new = ends[pairs[:, 0]], begins[pairs[:, 1]]
    return old, (
        f"ends at {close[one]:g}; {bars.tickers[bars.code[other]]} begins on {bars.date[other]!s:.10} at "
        f"{close[other]:g}; if they are one listing, join them with renames="
        for one, other in zip(old, new, strict=True)
    )


def _early_ends(placed: Placed) -> Found:
    last = _last_bars(placed.bars)
    rows = last[placed.bars.date[last].astype("datetime64[D]") < placed.end.astype("datetime64[D]")]
    return rows, (f"the last bar; the data go on to {placed.end!s:.10}" for _ in rows)


def _last_bars(bars: LongBars) -> Array:
    return np.flatnonzero(np.r_[bars.first[1:], True])


ANOMALIES: dict[str, Callable[[Placed], Found]] = {
    "bars without volume": _zero_volumes,
    "days on which close and adj_close part": _large_distributions,
    "jumps of the size of a split": _jumps,
    "price levels that change across a gap": _new_levels,
    "names that may have been renamed": _likely_renames,
    "series that end early": _early_ends,
}
"""The anomalies by kind, in the order in which they are listed."""


def back_filled(market: MarketData) -> tuple[Array, Array, Array]:
    """Columns [n], first rows [n] and rows of the first real bar [n] of the assets that look back-filled.

    They do if the close stands still from the first bar on, for `STILL` sessions without any volume up to the first bar
    with one, which has that price too; or, in data without volumes, for `STILL_WITHOUT_VOLUME` sessions and then moves
    in nine sessions of ten.
    """
    days, assets = market.shape
    columns, start = np.arange(assets), market.has_bar.argmax(axis=0)
    begun = np.arange(days)[:, None] >= start
    price = market.close[start, columns]
    still = np.logical_and.accumulate(~begun | (market.close == price), axis=0).sum(axis=0)
    if market.volume is None:
        changes = np.abs(np.diff(market.close, axis=0)) > 0
        after = np.cumsum(np.vstack([changes[:1] & False, changes]), axis=0)
        until = (still + STILL_WITHOUT_VOLUME).clip(max=days - 1)
        moves = after[until, columns] - after[still.clip(max=days - 1), columns]
        real, least = still - 1, STILL_WITHOUT_VOLUME
        found = (until == still + STILL_WITHOUT_VOLUME) & (moves >= 0.9 * STILL_WITHOUT_VOLUME)
    else:
        quiet = np.logical_and.accumulate(~begun | ~(market.volume > 0), axis=0).sum(axis=0)
        real, least = quiet.clip(max=days - 1), STILL
        first_price = [table[real, columns] for table in (market.close, market.open) if table is not None]
        found = (quiet < days) & (still >= quiet) & np.any([one == price for one in first_price], axis=0)
    found = np.flatnonzero(found & (real - start >= least * market.bars_per_session))
    return found, start[found], real[found]
