"""Applies each listed split and dividend exactly once, after checking whether the prices already contain it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from finpod.market.long_bars import LongBars, RepairLog
from finpod.measures import Array

SPECIAL = 0.1
"""Dividends above this fraction of the price are reinvested at the ex-day's close (the second formula of `adjust`)."""
WHOLE, TICKS = 0.9, (1.0, 0.5, 100 / 64)
"""Closes count as unadjusted for dividends if at least the fraction `WHOLE` of them are multiples of one of `TICKS` (in
cents). `TICKS` has the tick sizes of most exchanges, and 1/64 dollar for US prices until 2001."""
LARGE = np.log(1.9)
"""A split that was applied to only a part of the history is repaired if its absolute log ratio is at least this."""
NEAR, SAME = 5, 0.12
"""A jump of the closes is attributed to a split if it is within `NEAR` bars of the split's day, and if its log return
differs by less than `SAME` from -log(split ratio). Other jumps count as real moves."""
USUAL = (0.02, 0.1)
"""Bounds of the scale of an asset's log returns, which is estimated from the median of their absolute values."""
DECIDES, CONTRADICTS = np.log(100), np.log(1000)
"""Thresholds for the log odds that the closes are unadjusted, summed over the splits of an asset. If the vendor gives
adj_close, `DECIDES` is added to the sum if adj_close / close has the step of a split, and subtracted otherwise. The
closes count as unadjusted if the sum is then at least `DECIDES`, and as adjusted if it is at most -`DECIDES`. A split
contradicts the sum if its own log odds have the other sign and at least the size `CONTRADICTS`."""


class Splits(NamedTuple):
    """Log ratios [R] of the listed splits, 0 on other bars. Each split is in either `as_traded` or `in_closes`."""

    missing: Array
    """Log ratio of a split that adj_close lacks, or minus the log ratio of a split that was applied once too often."""
    as_traded: Array
    """Log ratio of splits for which the closes are unadjusted, so that the closes jump on the day of the split."""
    in_closes: Array
    """Log ratio of a split for which the closes are already adjusted."""


def adjust(bars: LongBars, log: RepairLog, name: str) -> tuple[LongBars, list[str], Array]:
    """Return (bars, notes, listed): bars in which each listed split and dividend is applied exactly once.

    In these bars, an `adj_close` that agrees with `split` and `dividend` replaces both columns. It is left out if the
    vendor gives none and nothing needs adjustment. If the closes are adjusted for splits, the column `traded` has the
    unadjusted closes. `notes` are sentences for the user. `listed` [R] is True on bars with a split or dividend.

    A split that adj_close lacks is applied. A split that was applied twice is taken out once. A split that was applied
    to a part of the history is applied to the rest. `_as_traded` decides which closes are unadjusted.

    A dividend d with ex-day t must multiply adj_close / close before t by 1 - d / c(t-1), which vendors use, or by
    c(t) / (c(t) + d), which reinvests d at the close c(t). Only the second factor is right for a special dividend,
    which is one of more than a tenth of the price. A missing dividend is applied, a double one is taken out once, and
    the first factor of a special dividend is replaced. If d is at most 0.1 % of the price, however, the vendor's
    adj_close is kept. Repairs use the second factor for special dividends and for assets without a vendor's adj_close,
    and the first factor otherwise. Other wrong steps of adj_close / close are reported.
    """
    values = dict(bars.values)
    split, dividend = (values.pop(event, np.zeros(len(bars))) for event in ("split", "dividend"))
    vendor = values.get("adj_close", np.full(len(bars), np.nan))
    has_adjusted = ~np.isnan(vendor)
    values["adj_close"] = np.where(has_adjusted, vendor, values["close"])
    bars, splits = _fit_splits(replace(bars, values=values), split, has_adjusted, log)
    steps = splits.missing + _fit_dividends(bars, dividend, splits, has_adjusted, log)
    listed = (splits.as_traded + splits.in_closes != 0) | (dividend > 0)
    values = {**bars.values, "adj_close": bars.values["adj_close"] * np.exp(-bars.sum_after(steps))}
    if not has_adjusted.any() and not steps.any():
        del values["adj_close"]
    if splits.in_closes.any():
        values["traded"] = bars.values["close"] * np.exp(bars.sum_after(splits.in_closes))
    notes = []
    if not has_adjusted.all():
        some = f" for {len(np.unique(bars.code[~has_adjusted]))} of its assets" if has_adjusted.any() else ""
        action = "these prices are assumed to be adjusted for splits and dividends"
        if steps[~has_adjusted].any():
            dividends = " and dividends" if (dividend > 0).any() else "; no dividends are listed"
            action = f"finpod adjusted these prices for the listed splits{dividends}"
        notes.append(f"{name} has no adjusted close{some}; {action}")
    return replace(bars, values=values), notes, listed


def _fit_splits(bars: LongBars, split: Array, has_adjusted: Array, log: RepairLog) -> tuple[LongBars, Splits]:
    """Return (bars, splits): the bars after repair of partly applied splits, and the log ratios of all splits by case.

    `split` [R] has the listed ratios, such as 2 for 2:1. The mask `has_adjusted` [R] is True on bars with a vendor's
    adjusted close. Splits on the first bar of an asset have no effect.
    """
    split = np.where(split > 0, split, 1.0)
    ratio = np.where(bars.first, 0.0, np.log(split))
    repaired = np.zeros(len(bars), dtype=bool)
    for row in np.flatnonzero(np.abs(ratio) >= LARGE).tolist():
        before, bars = bars, _applied_to_rest(bars, row, ratio, log)
        repaired[row] = bars is not before
    factor = bars.values["adj_close"] / bars.values["close"]
    step, move = bars.log_steps(factor), bars.log_steps(bars.values["close"])
    once, double = (np.abs(step - times * ratio) < np.abs(ratio) / 2 for times in (1, 2))
    double &= np.abs(ratio) > 2 * SPECIAL  # the step of a smaller split may include a dividend
    as_traded, doubtful = _as_traded(bars, ratio, move, has_adjusted, once | double, repaired)
    lacking, twice = as_traded & ~(once | double), np.where(as_traded, double, once)
    kinds = {"splits applied to prices as traded": lacking, "splits applied twice, taken out once": twice}
    for kind, chosen in kinds.items():
        log.repair(kind, *bars.places(chosen), "split", split[chosen], "in adj_close once")

    def two_readings(row: int) -> str:
        adjusted, unadjusted = (f"{np.exp(move[row]) * size - 1:+.2%}" for size in (1, split[row]))
        return (
            f"a split of {split[row]:g} is listed; the return is {adjusted} if the closes are adjusted, {unadjusted} if "
            f"they are unadjusted; they are assumed to be {'unadjusted' if as_traded[row] else 'adjusted'}"
        )

    log.report("splits that may be in the prices already", bars, doubtful, two_readings)
    for row in np.flatnonzero((np.abs(ratio) > 2 * SAME) & ~as_traded & ~repaired).tolist():
        near = move[max(row - NEAR, bars.start[row] + 1) : min(row + NEAR + 1, bars.stop[row])]
        if (np.abs(near + ratio[row]) < SAME).any():
            text = f"a split of {split[row]:g} is listed; the closes jump by about its size on a day within {NEAR} bars"
            log.suspect("splits that may be listed on the wrong day", *bars.places(slice(row, row + 1)), [text])
    return bars, Splits(ratio * lacking - ratio * twice, ratio * as_traded, ratio * ~as_traded)


def _as_traded(
    bars: LongBars, ratio: Array, move: Array, has_adjusted: Array, in_factor: Array, repaired: Array
) -> tuple[Array, Array]:
    """Return two masks [R]: splits for which the closes are unadjusted, and splits for which this is uncertain.

    `ratio` [R] are the log ratios of splits, 0 on other bars. `move` [R] are the log returns of the closes. The masks
    [R] are True on bars with a vendor's adj_close (`has_adjusted`), on splits that adj_close / close contains
    (`in_factor`), and on splits whose closes were `repaired` before.

    The real return is move + ratio if the closes are unadjusted, and move if they are adjusted. It is assumed to follow
    Student's t with 3 degrees of freedom, whose tails are as heavy as those of daily returns. The log odds of a split
    compare its densities at these two returns.

    Usually, the closes of an asset are unadjusted for all its splits, or adjusted for all. Therefore the sum of the log
    odds decides for all its splits. If a split contradicts the sum, or if the sum is too small (see `DECIDES`), each
    split is decided alone. Assets do not affect each other, because a table may combine vendors.
    """
    is_split = ratio != 0
    returns = pd.Series(np.where(bars.first | is_split, np.nan, np.abs(move)))
    median = returns.groupby(bars.code).transform("median").to_numpy()
    usual = np.nan_to_num(1.4826 * median).clip(*USUAL)  # sd / median |x| of a normal distribution
    as_traded, adjusted = (np.log1p(step**2 / (3 * usual**2)) for step in (move + ratio, move))
    odds = np.where(repaired, 0.0, 2 * (adjusted - as_traded))

    def sum_by_asset(values: Array) -> Array:
        return np.bincount(bars.code, values, minlength=len(bars.tickers))[bars.code]

    total = sum_by_asset(odds) + np.where(sum_by_asset(in_factor) > 0, DECIDES, -DECIDES) * has_adjusted
    contradicted = sum_by_asset(odds * np.sign(total) <= -CONTRADICTS) > 0
    together = (np.abs(total) >= DECIDES) & ~contradicted
    alone = np.where(has_adjusted, odds + np.where(in_factor, DECIDES, -DECIDES) >= 0, odds >= DECIDES)
    decided = is_split & ~repaired
    return decided & np.where(together, total > 0, alone), decided & ~together & (contradicted | ~has_adjusted)


def _applied_to_rest(bars: LongBars, row: int, ratios: Array, log: RepairLog) -> LongBars:
    """Return the bars with the split on `row` applied to the whole history, if the vendor applied it to only a part.

    In this case, the closes jump by the split on another day nearby (see `NEAR`) that has no split. Prices before this
    jump are divided by the split ratio, and volumes are multiplied. `ratios` [R] are the log ratios of all splits.
    """
    start, stop, split = bars.start[row], bars.stop[row], np.round(np.exp(ratios[row]), 9)
    step, at = np.r_[0.0, np.diff(np.log(bars.values["close"][start:stop]))], row - start
    if abs(step[at] + ratios[row]) < abs(step[at]):
        return bars  # the jump is on the day of the split: unadjusted prices
    near = np.arange(max(at - NEAR, 1), min(at + NEAR + 1, len(step)))
    jumps = near[(np.abs(step[near] + ratios[row]) < SAME) & (ratios[start:stop][near] == 0)]
    if len(jumps) != 1:
        return bars
    back = np.flatnonzero(np.abs(step[: jumps[0]] - ratios[row]) < SAME)  # `part` may begin at an opposite jump
    part = slice(start + (back[-1] if len(back) else 0), start + jumps[0])
    columns = {column: values.copy() for column, values in bars.values.items()}
    for column, values in columns.items():
        values[part] = values[part] * split if column == "volume" else values[part] / split
    kind, was = "bars rescaled, a split was applied to a part of the history", bars.values["close"]
    log.repair(kind, *bars.places(part), "close", was[part], columns["close"][part])
    return bars.with_values(**columns)


def _fit_dividends(bars: LongBars, dividend: Array, splits: Splits, has_adjusted: Array, log: RepairLog) -> Array:
    """Return what the steps of log(adj_close / close) lack at each dividend [R]; negative if a step is too large."""
    rows = np.flatnonzero((dividend > 0) & ~bars.first)
    rows = rows[has_adjusted[rows] | ~_contain_dividends(bars, rows, splits)[bars.code[rows]]]
    close, cash, vendor = bars.values["close"], dividend[rows], has_adjusted[rows]
    before = close[rows - 1] * np.exp(-splits.as_traded[rows])
    with np.errstate(invalid="ignore", divide="ignore"):
        usual = -np.log(1 - cash / before)  # infinite or NaN for a dividend of the whole price or more
    reinvested = np.log1p(cash / close[rows])
    large = cash > SPECIAL * before
    in_file = bars.log_steps(bars.values["adj_close"] / close)[rows] + splits.missing[rows] - splits.as_traded[rows]
    slack = np.where(large, 2e-3, np.clip(0.1 * reinvested, 5e-4, 0.01))
    by_usual, by_reinvested = np.abs(in_file - usual) <= slack, np.abs(in_file - reinvested) <= slack
    misfit = vendor & ~by_reinvested & ~(by_usual & ~large)
    special = misfit & by_usual
    unclear = misfit & (reinvested > 1e-3)
    lacking = unclear & (np.abs(in_file) < 0.2 * reinvested)
    twice = unclear & (np.fmin(np.abs(in_file - 2 * usual), np.abs(in_file - 2 * reinvested)) <= slack)
    for kind, chosen in (
        ("dividends added to the adjusted close", lacking),
        ("dividends applied twice, taken out once", twice),
        ("special dividends reinvested at the close of their day", special),
        ("dividends applied to prices as traded", ~vendor),
    ):
        log.repair(kind, *bars.places(rows[chosen]), "dividend", cash[chosen], "in adj_close once")
    wrong = lacking | twice | special
    odd, whole = np.flatnonzero(unclear & ~wrong), np.flatnonzero(cash >= before)
    sentences = (
        f"a dividend of {cash[at]:g} is {np.expm1(reinvested[at]):.2%} of the price, "
        f"but the step of adj_close / close is {np.expm1(in_file[at]):.2%}"
        for at in odd
    )
    log.suspect("adj_close and the listed dividend disagree", *bars.places(rows[odd]), sentences)
    sentences = (f"a dividend of {cash[at]:g} is listed; the price before it was {before[at]:g}" for at in whole)
    log.suspect("dividends of the whole price or more", *bars.places(rows[whole]), sentences)
    right = np.where(wrong & ~large, usual, np.where(wrong | ~vendor, reinvested, in_file))
    steps = np.zeros(len(bars))
    steps[rows] = right - in_file
    return steps


def _contain_dividends(bars: LongBars, rows: Array, splits: Splits) -> Array:
    """Return a mask [N] of the assets whose closes are adjusted for dividends.

    Closes that are unadjusted for a split are also unadjusted for dividends. Other closes are unadjusted for dividends
    if most of those before the asset's last dividend are multiples of a tick, after later splits are undone. `rows` [n]
    are the bars with dividends. Split-adjusted closes may be rounded to 4 decimals.
    """
    last = np.full(len(bars.tickers), -1)
    np.maximum.at(last, bars.code[rows], rows)
    before = np.arange(len(bars)) < last[bars.code]
    undone = np.exp(bars.sum_after(splits.in_closes))
    cents = bars.values["close"] * undone * 100
    error = 0.02 + 1e-6 * cents + 0.005 * np.fmax(undone - 1, 0)  # 0.005: half a unit of the fourth decimal
    contained = bars.per_asset(splits.as_traded != 0) == 0
    for tick in TICKS:
        whole = np.abs(cents - np.round(cents / tick) * tick) <= np.fmin(error, tick / 4)
        contained &= bars.per_asset(before & whole) < WHOLE * bars.per_asset(before)
    return contained
