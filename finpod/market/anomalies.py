"""Anomalies: bars that look wrong but are not changed, listed for the user to check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from finpod.market.calendar import sessions_of
from finpod.market.data import MarketData
from finpod.market.long_bars import LongBars, RepairLog
from finpod.measures import Array
from finpod.periods import is_weekly_or_longer

LARGE_STEP, UNUSUAL, ALWAYS_LARGE = 0.03, 5.0, 0.08
"""A step of adj_close against close is a large distribution above `ALWAYS_LARGE`, and above `LARGE_STEP` if it is also `UNUSUAL`
times the median step of the asset, or its only one."""
SPLIT_SIZES = np.array([2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 30, 50, 100, 1000])
"""Ratios of a jump that may be an unlisted split, or another unit of the price (100, 1000)."""
EXACT = 0.015
"""Largest difference in log return between a jump and one of `SPLIT_SIZES`."""
LONG_GAP, LEVEL = 5, np.log(2)
"""Fewest sessions without a bar, and smallest log return across them, from which the price level counts as another one."""
SAME_LEVEL, SAME_PRICE = 0.1, 0.005
"""Largest log return from the last bar of an asset to the first bar of another that may be the same listing: if that bar is a
session later, and if it is on the same session."""
STILL, STILL_WITHOUT_VOLUME = 5, 20
"""Fewest sessions without a move at the start of an asset that looks back-filled: with volumes that confirm it, and without."""


Suspects = tuple[Array, Iterable[str]]
"""Rows [n] of suspicious bars, and a sentence for each."""


def report_anomalies(bars: LongBars, dates: Array, listed: Array, log: RepairLog, calendar: str | None) -> None:
    """Report missing sessions and volumes, large distributions, jumps, series that end early and likely renames.

    Sessions are those of `calendar`, or the dates of the file if it is None or the bars are weekly or rarer. Distributions
    and jumps on the rows `listed` [R] are explained by a split or dividend of the file. A crash is no anomaly.
    """
    by_dates = calendar is None or is_weekly_or_longer(dates)
    sessions = dates if by_dates else sessions_of(str(calendar), dates[0], dates[-1]).dates
    sessions = np.unique(sessions.astype("datetime64[D]"))
    at = np.searchsorted(sessions, bars.date.astype("datetime64[D]"))
    gap = np.where(bars.first, 1, np.diff(at, prepend=0)) - 1
    after_gap = np.repeat(np.arange(len(bars)), np.maximum(gap, 0))
    nth = np.arange(len(after_gap)) - np.searchsorted(after_gap, after_gap)  # missing session of its gap
    missing = sessions[at[after_gap] - gap[after_gap] + nth]
    log.suspect("sessions without a bar", bars.places(after_gap)[0], missing, ("no bar on a session" for _ in missing))
    for kind, rows, sentences in _anomalies(bars, at, gap, listed, dates[-1].astype("datetime64[D]")):
        log.suspect(kind, *bars.places(rows), sentences)


def _anomalies(
    bars: LongBars, at: Array, gap: Array, listed: Array, end: np.datetime64
) -> Iterator[tuple[str, Array, Iterable[str]]]:
    """Yield kind, rows [n] and sentences of each anomaly, in the order in which they are listed.

    `at` [R] is the session of each bar, and `gap` [R] the number of sessions without a bar before it. `end` is the last day.
    """
    close, days = bars.values["close"], bars.date.astype("datetime64[D]")
    adjusted = bars.values.get("adj_close", close)
    move, last = bars.log_steps(adjusted), np.flatnonzero(np.r_[bars.first[1:], True])

    rows = np.flatnonzero(bars.values.get("volume", np.ones(len(bars))) == 0)
    span = "bar" if (bars.date != days).any() else "day"
    yield "bars without volume", rows, (f"volume 0, one price of {price:g} all {span}" for price in close[rows])

    yield "days on which close and adj_close diverge", *_large_distributions(bars, adjusted, listed)

    yield "jumps of the size of a split", *_jumps(move, listed)

    rows = np.flatnonzero((gap >= LONG_GAP) & (np.abs(move) >= LEVEL))  # the symbol may belong to another company
    text = "{:g} before {} sessions without a bar, {:g} after; perhaps another company, or a split that is not listed"
    yield "price levels that change across a gap", rows, map(text.format, adjusted[rows - 1], gap[rows], adjusted[rows])

    yield "tickers that may have been renamed", *_likely_renames(bars, at, last)

    rows = last[days[last] < end]
    yield "series that end early", rows, (f"the last bar; the data go on to {end}" for _ in rows)


def _large_distributions(bars: LongBars, adjusted: Array, listed: Array) -> Suspects:
    """Return the days on which close and adj_close diverge by far more than the asset's dividends explain."""
    close = bars.values["close"]
    factor = adjusted / close
    step = np.nan_to_num(factor / bars.previous(factor) - 1)
    steps = pd.Series(step).where(step > 1e-3).groupby(bars.code)
    usual, count = steps.transform("median"), steps.transform("count")
    unusual = (step >= ALWAYS_LARGE) | (step >= UNUSUAL * usual) | (count == 1)
    rows = np.flatnonzero((step >= LARGE_STEP) & unusual & ~listed)

    def sentence(row: int) -> str:
        before = close[row - 1]
        cash = before * (1 - 1 / (1 + step[row]))
        return (
            f"close {close[row] / before - 1:+.2%}, adj_close {adjusted[row] / adjusted[row - 1] - 1:+.2%}: a spin-off or "
            f"special dividend of {cash:.2f} on {before:.2f}; reinvested at the day's close {(close[row] + cash) / before - 1:+.2%}"
        )

    return rows, (sentence(row) for row in rows.tolist())


def _jumps(move: Array, listed: Array) -> Suspects:
    """Return the bars whose log return `move` [R] equals a split that is not in the prices."""
    rows = np.flatnonzero((np.abs(move) > np.log(SPLIT_SIZES[0]) - EXACT) & ~listed)
    off = np.abs(np.abs(move[rows, None]) - np.log(SPLIT_SIZES))
    near = off.min(axis=1) < EXACT
    rows, sizes = rows[near], SPLIT_SIZES[off.argmin(axis=1)][near]
    return rows, (
        f"a return of {np.expm1(move[row]):+.2%} is near a split of {f'{n}:1' if move[row] < 0 else f'1:{n}'} "
        f"{'or another unit ' if n >= 100 else ''}that is not in the prices; left unchanged, as the return may be real"
        for row, n in zip(rows, sizes, strict=True)
    )


def _likely_renames(bars: LongBars, at: Array, last: Array) -> Suspects:
    """Return the last bars of assets that end where another begins, on that session or the next, at about the same price."""
    close, first = bars.values["close"], np.flatnonzero(bars.first)
    begins, ends = first[at[first] > at.min()], last[at[last] < at.max()]
    after = at[begins][None, :] - at[ends][:, None]
    step = np.abs(np.log(close[begins][None, :] / close[ends][:, None]))
    pairs = np.argwhere(((after == 1) & (step <= SAME_LEVEL)) | ((after == 0) & (step <= SAME_PRICE)))
    old, new = ends[pairs[:, 0]], begins[pairs[:, 1]]
    return old, (
        f"ends at {close[one]:g}; {bars.tickers[bars.code[other]]} begins on {bars.date[other]!s:.10} at "
        f"{close[other]:g}; if the two are one listing, join them with renames="
        for one, other in zip(old, new, strict=True)
    )


def back_filled(market: MarketData) -> tuple[Array, Array, Array]:
    """Return columns [n], first rows [n] and rows of the first real bar [n] of the assets that look back-filled.

    With volumes, the close does not move for `STILL` sessions without volume, up to the first bar with volume, which has the
    same price. Without volumes, it does not move for `STILL_WITHOUT_VOLUME` sessions, then moves in nine sessions of ten.
    """
    days, assets = market.shape
    columns, start = np.arange(assets), market.has_bar.argmax(axis=0)
    begun = np.arange(days)[:, None] >= start
    price = market.close[start, columns]
    still = np.logical_and.accumulate(~begun | (market.close == price), axis=0).sum(axis=0)
    if market.volume is None:
        real, least = still - 1, STILL_WITHOUT_VOLUME
        moves = np.abs(np.diff(market.close, axis=0, prepend=market.close[:1])) > 0
        rows = np.arange(days)[:, None]
        moved = np.sum(moves & (rows > still) & (rows <= still + least), axis=0)
        suspicious = (still + least < days) & (moved >= 0.9 * least)
    else:
        silent = np.logical_and.accumulate(~begun | ~(market.volume > 0), axis=0).sum(axis=0)
        real, least = silent.clip(max=days - 1), STILL
        first_prices = [table[real, columns] for table in (market.close, market.open) if table is not None]
        suspicious = (silent < days) & (still >= silent) & np.any([one == price for one in first_prices], axis=0)
    chosen = np.flatnonzero(suspicious & (real - start >= least * market.bars_per_session))
    return chosen, start[chosen], real[chosen]
