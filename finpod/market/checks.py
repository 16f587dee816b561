"""Checks bars: masks or repairs impossible values, lists anomalies for the user, and finds back-filled prices."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import numpy as np
import pandas as pd

from finpod.market.calendar import sessions_of
from finpod.market.data import PRICES, MarketData
from finpod.market.long_bars import LongBars, RepairLog
from finpod.measures import Array
from finpod.periods import is_weekly_or_longer

CENT, PART = 0.006, 0.02
"""Vendors round prices, so an open or a close may be above high or below low. The tolerance is
min(`CENT`, `PART` * close) plus 0.01 % of high or low. `CENT` is in the unit of the prices."""

CALM, CERTAIN = 0.05, 5
"""A jump in volume is a change of unit only if the absolute return is below `CALM` and each side has `CERTAIN` bars."""
STALE = 5
"""Stale bars at the end of a history (see `mask_stale_tails`) are masked if they span at least this many sessions."""
EQUAL_CLOSES = 10
"""Fewest sessions of equal closes, with missing, zero or equal volumes, that are reported at the end of a history."""

LARGE_STEP, UNUSUAL, ALWAYS_LARGE = 0.03, 5.0, 0.08
"""A distribution is reported as large if the relative increase of adj_close / close is at least `ALWAYS_LARGE`. From
`LARGE_STEP` on, it is also reported if the asset has no other increase above 0.001, or if the increase is at least
`UNUSUAL` times the median of the asset's increases above 0.001."""
SPLIT_SIZES = np.array([2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 30, 50, 100, 1000])
"""Ratios of price jumps that suggest an unlisted split; 100 and 1000 may also be a change of the price's unit."""
EXACT = 0.015
"""A jump has the size of a split if its absolute log return is closer than this to the log of one of `SPLIT_SIZES`."""
LONG_GAP, LEVEL = 5, np.log(2)
"""A gap of at least `LONG_GAP` sessions is reported if the absolute log return across it is at least `LEVEL`."""
SAME_LEVEL, SAME_PRICE = 0.1, 0.005
"""Two assets may be one renamed listing if the last close of one is near the first close of the other. The absolute log
return between them is at most `SAME_LEVEL` on consecutive sessions, or at most `SAME_PRICE` on the same session."""
STILL, STILL_WITHOUT_VOLUME = 5, 20
"""Fewest sessions of an unchanged first close that suggest back-filled prices, in markets with and without volumes."""


def mask_impossible(bars: LongBars, log: RepairLog) -> LongBars:
    """Return the bars without impossible ones. Each removed bar is logged once, under the first check that it fails.

    A bar is impossible if a price is zero, negative or infinite, if high is below low, if close is outside [low, high],
    or if adj_close is missing although other bars of the asset have one. An open outside [low, high], and a volume,
    split or dividend that is negative or infinite, become NaN; the rest of the bar is kept. `CENT` and `PART` give the
    tolerance of comparisons with high and low.
    """
    values, prices = dict(bars.values), (*PRICES, "adj_close")
    columns = {name: values.get(name, np.full(len(bars), np.nan)) for name in (*prices, "volume", "split", "dividend")}
    opened, high, low, close, adjusted, *amounts = columns.values()
    slack = np.minimum(CENT, PART * np.abs(close))
    above, below = high * (1 + 1e-4) + slack, low * (1 - 1e-4) - slack
    has_adjusted = (bars.per_asset(~np.isnan(adjusted)) > 0)[bars.code]
    impossible = {name: (columns[name] <= 0) | np.isinf(columns[name]) for name in prices}
    volume, split, dividend = ((column < 0) | np.isinf(column) for column in amounts)
    checks = [
        ("splits masked, negative or infinite", "split", split, False),
        ("dividends masked, negative or infinite", "dividend", dividend, False),
        *(("bars masked, a price was impossible", name, fails, True) for name, fails in impossible.items()),
        ("bars masked, no adjusted close", "adj_close", np.isnan(adjusted) & has_adjusted, True),
        ("bars masked, high below low", "high", above < below, True),
        ("bars masked, close outside high and low", "close", (close < below) | (close > above), True),
        ("opens masked, outside high and low", "open", (opened < below) | (opened > above), False),
        ("volumes masked, negative or infinite", "volume", volume, False),
    ]
    masked = np.zeros(len(bars), dtype=bool)
    for kind, name, fails, whole_bar in checks:
        if (failed := fails & ~masked).any():
            log.repair(kind, *bars.places(failed), name, bars.values[name][failed])
            if whole_bar:
                masked |= failed
            else:
                values[name] = np.where(failed, np.nan, values[name])
    return bars.with_values(**values).without(masked)


def mask_volumes(bars: LongBars, log: RepairLog) -> LongBars:
    """Return the bars with wrong zero volumes masked, and with volumes in another unit (such as lots) rescaled.

    A zero volume is kept if the price did not move, because there may have been no trade. The unit changes at a bar if
    volumes jump by a factor of about 10^k with k >= 2, and the price does not jump. In addition, all volumes on the
    larger side must end in z >= 3 zeros, and those on the smaller side in only z - k zeros. The volumes on the larger
    side are then divided by 10^k.
    """
    values = bars.values
    if "volume" not in values:
        return bars
    prices = [values[column] for column in PRICES if column in values]
    if len(prices) == 1:
        prices.append(bars.previous(values["close"]))
    moved = np.fmax.reduce(prices) > np.fmin.reduce(prices)
    silent = (values["volume"] == 0) & moved
    log.repair("volumes masked, zero although the price moved", *bars.places(silent), "volume", 0.0)
    volume = np.where(silent, np.nan, values["volume"])
    bars = bars.with_values(volume=volume)
    for rows, scale in list(_changes_of_unit(bars)):
        was = volume[rows].copy()
        volume[rows] = was / scale
        log.repair(f"volumes divided by {scale:g}, in another unit", *bars.places(rows), "volume", was, volume[rows])
    return bars


def _changes_of_unit(bars: LongBars) -> Iterator[tuple[slice, float]]:
    """Yield (rows, factor): rows with volumes in another unit, and the factor by which these volumes are too large."""

    def zeros(part: slice) -> int:
        """Return the number of trailing zeros that all positive volumes of the rows have in common."""
        volume = bars.values["volume"][part]
        return sum(bool((volume[volume > 0] % 10.0**power == 0).all()) for power in range(1, 10))

    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.log10(bars.values["volume"])
        level[np.isinf(level)] = np.nan
        close = bars.values.get("adj_close", bars.values["close"])
        calm = np.abs(close / bars.previous(close) - 1) < CALM
    rows = np.flatnonzero((np.abs(level - bars.previous(level)) > 1.3) & calm)
    for row in rows[np.fmin(rows - bars.start[rows], bars.stop[rows] - rows) >= CERTAIN]:
        before, after = slice(bars.start[row], row), slice(row, bars.stop[row])
        jump = np.median(level[row : row + CERTAIN]) - np.median(level[row - CERTAIN : row])
        larger, smaller = (after, before) if jump > 0 else (before, after)
        if abs(jump) >= 1.5 and zeros(larger) >= 3 and zeros(larger) - zeros(smaller) == round(abs(jump)):
            yield larger, 10.0 ** round(abs(jump))


def mask_stale_tails(bars: LongBars, log: RepairLog) -> LongBars:
    """Return the bars without the stale bars at the end of an asset's history, which only repeat the last price.

    A bar is stale if its volume is zero or missing, and its close equals the previous close. Each of open, high and low
    must be missing, equal to the close, or unchanged since the previous bar. Stale bars are masked if they span at
    least `STALE` sessions, if one of them has a volume of zero, and if an earlier bar of the asset has a positive
    volume. Other equal closes at the end are reported (see `EQUAL_CLOSES`).
    """
    close = bars.values["close"]
    volume = bars.values.get("volume", np.full(len(bars), np.nan))
    session = np.unique(bars.date.astype("datetime64[D]"), return_inverse=True)[1]
    same = close == bars.previous(close)
    stale = same & ~(volume > 0) & (bars.per_asset(volume > 0) > 0)[bars.code]
    for price in (bars.values[column] for column in PRICES if column in bars.values):
        stale &= np.isnan(price) | (price == close) | (price == bars.previous(price))
    tail, length = _tails(bars, stale, session)
    masked = tail & (length >= STALE) & (bars.per_asset(tail & (volume == 0)) > 0)[bars.code]
    log.repair("bars masked, the last price carried forward", *bars.places(masked), "close", close[masked])
    uncertain = (same & ~((volume > 0) & (volume != bars.previous(volume))))[~masked]
    bars = bars.without(masked)
    tail, length = _tails(bars, uncertain, session[~masked])
    close, begins = bars.values["close"], tail & ~np.r_[False, tail[:-1]]
    suspicious = begins & (length + 1 >= EQUAL_CLOSES)
    text = "from here to the end; perhaps the vendor repeats the price of the last trade"
    log.report(
        "closes that stay the same to the end", bars, suspicious, lambda row: f"the close is {close[row]:g} {text}"
    )
    return bars


def _tails(bars: LongBars, stale: Array, session: Array) -> tuple[Array, Array]:
    """Return two arrays [R]: a mask of the `stale` bars that end an asset's history, and how many sessions they span.

    `session` [R] is the session number of each bar. In the mask `stale` [R], the first bar of an asset is never True.
    """
    last_live = np.maximum.accumulate(np.where(stale, 0, np.arange(len(bars))))
    end = bars.stop - 1
    return stale & (last_live == last_live[end]), session[end] - session[last_live[end]]


def report_anomalies(bars: LongBars, dates: Array, listed: Array, log: RepairLog, calendar: str | None) -> None:
    """Report missing sessions, zero volumes, large distributions, jumps, series that end early and likely renames.

    If `calendar` is None, or if bars are weekly or longer, the `dates` [T] are the sessions. On bars with a split or
    dividend in the file (mask `listed` [R]), no distribution and no jump of the size of a split is reported.
    """
    days = bars.date.astype("datetime64[D]")
    by_dates = calendar is None or is_weekly_or_longer(dates)
    sessions = dates if by_dates else sessions_of(str(calendar), dates[0], dates[-1]).dates
    sessions = np.unique(sessions.astype("datetime64[D]"))
    at = np.searchsorted(sessions, days)
    gap = np.where(bars.first, 1, np.diff(at, prepend=0)) - 1
    after_gap = np.repeat(np.arange(len(bars)), np.maximum(gap, 0))
    nth = np.arange(len(after_gap)) - np.searchsorted(after_gap, after_gap)  # position in the gap
    missing = sessions[at[after_gap] - gap[after_gap] + nth]
    log.suspect("sessions without a bar", bars.places(after_gap)[0], missing, repeat("there is no bar on this session"))
    close, volume = bars.values["close"], bars.values.get("volume", np.ones(len(bars)))
    log.report("bars without volume", bars, volume == 0, lambda row: f"the volume is 0, the close is {close[row]:g}")
    _report_moves(bars, gap, listed, log)
    last = np.r_[bars.first[1:], True]
    _report_renames(bars, at, np.flatnonzero(last), log)
    end = dates[-1].astype("datetime64[D]")
    text = f"the bars end here; the data continue to {end}"
    log.report("series that end early", bars, last & (days < end), lambda _: text)


def _report_moves(bars: LongBars, gap: Array, listed: Array, log: RepairLog) -> None:
    """Report large distributions, jumps of the size of a split, and jumps across gaps (`gap` [R] missing sessions)."""
    close = bars.values["close"]
    adjusted = bars.values.get("adj_close", close)
    factor, move = adjusted / close, bars.log_steps(adjusted)
    step = np.nan_to_num(factor / bars.previous(factor) - 1)
    steps = pd.Series(step).where(step > 1e-3).groupby(bars.code)
    unusual = (step >= UNUSUAL * steps.transform("median")) | (steps.transform("count") == 1)
    large = (step >= ALWAYS_LARGE) | ((step >= LARGE_STEP) & unusual)

    def distribution(row: int) -> str:
        before = close[row - 1]
        cash = before * (1 - 1 / (1 + step[row]))
        return (
            f"close moves {close[row] / before - 1:+.2%}, adj_close {adjusted[row] / adjusted[row - 1] - 1:+.2%}: "
            f"perhaps a spin-off or special dividend of {cash:.2f} at a price of {before:.2f}; if it is reinvested at "
            f"this close, the return is {(close[row] + cash) / before - 1:+.2%}"
        )

    size = SPLIT_SIZES[np.searchsorted(np.log(SPLIT_SIZES[:-1] * SPLIT_SIZES[1:]) / 2, np.abs(move))]  # nearest log

    def split(row: int) -> str:
        n, unit = size[row], "(or of a change of unit) " if size[row] >= 100 else ""
        return (
            f"a return of {np.expm1(move[row]):+.2%} has the size of a {f'{n}:1' if move[row] < 0 else f'1:{n}'} split "
            f"{unit}that is not listed; the prices stay unchanged, because the return may be real"
        )

    def gap_in_level(row: int) -> str:
        return (
            f"the price is {adjusted[row - 1]:g} before {gap[row]} sessions without a bar, and {adjusted[row]:g} after "
            "them; perhaps the symbol went to another company, or a split is not listed"
        )

    is_split = np.abs(np.abs(move) - np.log(size)) < EXACT
    across = (gap >= LONG_GAP) & (np.abs(move) >= LEVEL)  # the symbol may belong to another company
    log.report("days on which close and adj_close diverge", bars, large & ~listed, distribution)
    log.report("jumps of the size of a split", bars, is_split & ~listed, split)
    log.report("price levels that change across a gap", bars, across, gap_in_level)


def _report_renames(bars: LongBars, at: Array, last: Array, log: RepairLog) -> None:
    """Report pairs of assets that may be one listing: when one ends, the other begins at nearly the same close.

    `at` [R] is the session number of each bar. `last` has the row of each asset's last bar.
    """
    close, first = bars.values["close"], np.flatnonzero(bars.first)
    begins, ends = first[at[first] > at.min()], last[at[last] < at.max()]
    after = at[begins][None, :] - at[ends][:, None]
    step = np.abs(np.log(close[begins][None, :] / close[ends][:, None]))
    pairs = np.argwhere(((after == 1) & (step <= SAME_LEVEL)) | ((after == 0) & (step <= SAME_PRICE)))
    old, new = ends[pairs[:, 0]], begins[pairs[:, 1]]
    sentences = (
        f"the last close is {close[one]:g}; the first close of {bars.tickers[bars.code[other]]} is {close[other]:g} on "
        f"{bars.date[other]!s:.10}; if both tickers are one listing, join them with renames="
        for one, other in zip(old, new, strict=True)
    )
    log.suspect("tickers that may have been renamed", *bars.places(old), sentences)


def back_filled(market: MarketData) -> tuple[Array, Array, Array]:
    """Return three arrays [n] for the n assets that look back-filled: column, first row, and row of the first real bar.

    Back-filled bars repeat the first real price. In a market with volumes, an asset looks back-filled if its first bars
    have constant closes and no volume for at least `STILL` sessions, and the first bar with volume opens or closes at
    the same price. In a market without volumes, the first close must be repeated for at least `STILL_WITHOUT_VOLUME`
    further sessions, and the close must then change on at least nine of ten bars.
    """
    days, assets = market.shape
    columns, rows = np.arange(assets), np.arange(days)[:, None]
    start = market.has_bar.argmax(axis=0)
    before, price = rows < start, market.close[start, columns]
    still = np.logical_and.accumulate(before | (market.close == price), axis=0).sum(axis=0)
    if market.volume is None:
        real, least = still - 1, STILL_WITHOUT_VOLUME
        moves = np.abs(np.diff(market.close, axis=0, prepend=market.close[:1])) > 0
        moved = np.sum(moves & (rows > still) & (rows <= still + least), axis=0)
        suspicious = (still + least < days) & (moved >= 0.9 * least)
    else:
        silent = np.logical_and.accumulate(before | ~(market.volume > 0), axis=0).sum(axis=0)
        real, least = silent.clip(max=days - 1), STILL
        first_prices = [table[real, columns] for table in (market.close, market.open) if table is not None]
        suspicious = (silent < days) & (still >= silent) & np.any([one == price for one in first_prices], axis=0)
    chosen = np.flatnonzero(suspicious & (real - start >= least * market.bars_per_session))
    return chosen, start[chosen], real[chosen]
