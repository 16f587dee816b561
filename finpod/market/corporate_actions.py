"""Splits and dividends, applied exactly once: listed actions are compared with what the prices already contain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from finpod.market.long_bars import LongBars, RepairLog
from finpod.measures import Array

SPECIAL = 0.1
"""Dividend / price from which a dividend counts as reinvested at the ex-day's close, as the usual formula fails there."""
WHOLE_CENTS = 0.9
"""Share of closes in whole cents from which prices count as traded."""
LARGE = np.log(1.9)
"""Absolute log ratio from which a split that was applied to a part of the history is repaired: a crash of that size is rare."""
NEAR, SAME = 5, 0.12
"""A jump is taken for a split applied to a part of the history within so many bars of the split's day, and up to so large a
difference in log return. Further away a jump is taken for a real move: prices do fall by half, and split later."""
USUAL = (0.02, 0.1)
"""Smallest and largest value of an asset's usual log return, which is estimated from the median of its absolute returns."""
DECIDES, CONTRADICTS = np.log(100), np.log(1000)
"""Log odds from which the move on the day of a split tells whether the closes are as traded, for which the vendor's adjusted
close counts as much; and from which a split contradicts the other splits of its asset."""


class Splits(NamedTuple):
    """How the listed splits were read, as log ratios [R]; 0 on all other rows."""

    missing: Array
    """Log step that the adjusted close lacks (+) or has too much (-)."""
    as_traded: Array
    """ln of the split where the closes of the file are as traded and jump by it."""
    in_closes: Array
    """ln of the split where the closes of the file are adjusted for it."""


def adjust(bars: LongBars, log: RepairLog, name: str) -> tuple[LongBars, list[str], Array]:
    """The bars with an `adj_close` that agrees with their `split` and `dividend` columns, without these columns.

    Returns notes for the reader as well, and the rows [R] bool for which an action is listed. Where the closes are adjusted
    for splits, a column `traded` holds the closes as traded.

    All splits of an asset together decide whether its closes are as traded or adjusted (see `_read_splits`). A split that
    the adjusted close lacks is applied, one that it has twice is taken back, and one that was applied to a part of the
    history is applied to the rest. The dividend d of a day t must part the adjusted close from the close by
    1 - d / c(t-1), the vendors' formula, or c(t) / (c(t) + d), the reinvestment at the ex-day's close. A missing dividend
    is applied by the first formula, and for d above a tenth of the price by the second, whose return is
    (c(t) + d) / c(t-1) - 1. Anything else is left alone and listed as a suspicion.
    """
    values = dict(bars.values)
    split, dividend, vendors = (values.pop("split", None), values.pop("dividend", None), values.get("adj_close"))
    has_adjusted = np.zeros(len(bars), dtype=bool) if vendors is None else ~np.isnan(vendors)
    if vendors is not None:
        values["adj_close"] = np.where(has_adjusted, vendors, values["close"])
    bars = LongBars(bars.tickers, bars.code, bars.date, values)
    bars, splits = _fit_splits(bars, np.ones(len(bars)) if split is None else split, has_adjusted, log)
    steps = splits.missing
    if dividend is not None:
        dividend = np.nan_to_num(dividend)
        steps = steps + _fit_dividends(bars, dividend, splits, has_adjusted, log)
    if vendors is not None or steps.any():
        adjusted = bars.values.get("adj_close", bars.values["close"])
        bars = bars.with_values(adj_close=adjusted * np.exp(-bars.sum_after(steps)))
    if splits.in_closes.any():
        bars = bars.with_values(traded=bars.values["close"] * np.exp(bars.sum_after(splits.in_closes)))
    listed = (splits.as_traded + splits.in_closes != 0) | (False if dividend is None else dividend > 0)
    return bars, _notes(bars, has_adjusted, steps, name, dividend is not None), listed


def _notes(bars: LongBars, has_adjusted: Array, steps: Array, name: str, dividends: bool) -> list[str]:
    """Notes on assets whose file has no adjusted close; `steps` [R] are what was added to the adjusted close."""
    lacking = np.unique(bars.code[~has_adjusted])
    if not len(lacking):
        return []
    who = f"{name} has no adjusted close" + (f" for {len(lacking)} of its names" if has_adjusted.any() else "")
    if not steps[~has_adjusted].any():
        return [f"{who}; its prices are taken as adjusted for splits and dividends"]
    if not dividends:
        return [f"{who} and lists splits but no dividends; its returns leave dividends out"]
    return [f"{who}; its prices are adjusted here for the splits and dividends it lists"]


def _fit_splits(bars: LongBars, split: Array, has_adjusted: Array, log: RepairLog) -> tuple[LongBars, Splits]:
    """The bars, those before a half-applied split brought to scale, and how each entry of `split` [R] was read.

    `has_adjusted` [R] marks the rows with an adjusted close of the vendor. Splits on the first bar of an asset have no effect.
    """
    ratio = np.log(np.where(np.nan_to_num(split) > 0, split, 1.0))
    ratio[bars.first] = 0.0  # there is nothing before it to adjust
    rows = np.flatnonzero(ratio)
    mended = np.zeros(len(rows), dtype=bool)
    for number in np.flatnonzero(np.abs(ratio[rows]) >= LARGE):
        part = _half_applied(bars, int(rows[number]), ratio)
        if part is not None:
            bars, mended[number] = _scaled(bars, part, float(ratio[rows[number]]), log), True
    size, close = ratio[rows], bars.values["close"]
    factor = bars.values.get("adj_close", close) / close
    in_factor = np.abs(bars.log_steps(factor)[rows] - size) < np.abs(size) / 2
    as_traded, doubts = _read_splits(bars, rows, size, has_adjusted[rows], in_factor, mended)
    lacking, twice = as_traded & ~in_factor, ~as_traded & in_factor
    for kind, which in (("splits applied to prices as traded", lacking), ("splits taken back, applied twice", twice)):
        at = rows[which]
        log.repair(kind, bars.names(at), bars.date[at], "split", split[at], "in adj_close once")
    for kind, which in doubts.items():
        at = rows[which]
        log.suspect(kind, bars.names(at), bars.date[at], _two_readings(bars, at, split, as_traded[which]))
    missing, jumps, contained = np.zeros((3, len(bars)))
    missing[rows] = np.where(lacking, size, np.where(twice, -size, 0.0))
    jumps[rows] = np.where(as_traded, size, 0.0)
    contained[rows] = np.where(as_traded, 0.0, size)
    return bars, Splits(missing, jumps, contained)


def _read_splits(
    bars: LongBars, rows: Array, size: Array, has_adjusted: Array, in_factor: Array, mended: Array
) -> tuple[Array, dict[str, Array]]:
    """Whether the closes are as traded at the splits on `rows` [n], whose log ratios are `size` [n]; and which are in doubt.

    The closes of an asset follow one convention: as traded, or adjusted for all its splits. Each split is evidence for one of
    the two, and the sum over the splits of an asset decides for all of them, also for those whose own day tells little. Where
    one split contradicts this sum, or the sum decides nothing, each split is judged alone. Splits of other assets do not
    count: the assets of a table may come from different vendors. `has_adjusted`, `in_factor` and `mended` [n] say whether
    there is a vendor's adjusted close, whether it contains the split, and whether the split was repaired already.
    """
    count, asset = len(bars.tickers), bars.code[rows]
    moves = bars.log_steps(bars.values["close"])
    odds = _log_odds(moves[rows], size, _usual_return(bars, moves, rows)[asset])
    odds[mended] = 0.0
    contains = np.bincount(asset, in_factor, minlength=count)[asset] > 0
    total = np.bincount(asset, odds, minlength=count)[asset] + np.where(contains, DECIDES, -DECIDES) * has_adjusted
    contradicts = odds * np.sign(total) <= -CONTRADICTS
    contradicted = np.bincount(asset, contradicts, minlength=count)[asset] > 0
    together = (np.abs(total) >= DECIDES) & ~contradicted
    alone = np.where(has_adjusted, odds + np.where(in_factor, DECIDES, -DECIDES) >= 0, odds >= DECIDES)
    return np.where(together, total > 0, alone) & ~mended, {
        "splits that contradict each other": contradicted & ~mended,
        "splits that may be in the prices already": ~together & ~contradicted & ~has_adjusted & ~mended,
    }


def _usual_return(bars: LongBars, moves: Array, splits: Array) -> Array:
    """[N] usual absolute log return from bar to bar, within `USUAL`; the `moves` [R] on the rows `splits` do not count."""
    usual = np.where(bars.first, np.nan, np.abs(moves))
    usual[splits] = np.nan
    medians = pd.Series(usual).groupby(bars.code).median().reindex(np.arange(len(bars.tickers)))
    return np.nan_to_num(1.4826 * medians.to_numpy()).clip(*USUAL)  # sd / median |x| of a normal distribution


def _log_odds(move: Array, size: Array, usual: Array) -> Array:
    """[n] log odds that closes which moved by `move` on the day of a split are as traded and not adjusted for it.

    As traded, the return of the day is move + size; adjusted, it is move. Either is taken to follow Student's t with 3
    degrees of freedom and scale `usual`, whose tails are as heavy as those of daily returns.
    """
    as_traded, adjusted = (np.log1p(step**2 / (3 * usual**2)) for step in (move + size, move))
    return 2 * (adjusted - as_traded)


def _two_readings(bars: LongBars, rows: Array, split: Array, as_traded: Array) -> Iterator[str]:
    moves = np.exp(bars.log_steps(bars.values["close"])[rows])
    for ratio, move, raw in zip(split[rows], moves, as_traded, strict=True):
        adjusted, traded = f"{move - 1:+.2%}", f"{move * ratio - 1:+.2%}"
        yield (
            f"a split of {ratio:g} is listed; read as {'traded' if raw else 'adjusted for it'}, the prices return "
            f"{traded if raw else adjusted}; read the other way {adjusted if raw else traded}"
        )


def _half_applied(bars: LongBars, row: int, ratios: Array) -> slice | None:
    """The bars before a jump of a split's size near its day, which lack the split that later bars have; None for none.

    The split is listed on `row`; `ratios` [R] are the log ratios of all splits. A jump on the day of another split belongs
    to that one.
    """
    start, stop = int(bars.start[row]), int(bars.stop[row])
    step, ratio = np.r_[0.0, np.diff(np.log(bars.values["close"][start:stop]))], float(ratios[row])
    at = row - start
    if abs(step[at] + ratio) < abs(step[at]):
        return None  # the jump is on the day of the split: prices as traded
    near = np.arange(max(at - NEAR, 1), min(at + NEAR + 1, len(step)))
    jumps = near[(np.abs(step[near] + ratio) < SAME) & (ratios[start:stop][near] == 0)]
    if len(jumps) != 1:
        return None
    back = np.flatnonzero(np.abs(step[: jumps[0]] - ratio) < SAME)  # a jump the other way begins the part
    return slice(start + (int(back[-1]) if len(back) else 0), start + int(jumps[0]))


def _scaled(bars: LongBars, part: slice, ratio: float, log: RepairLog) -> LongBars:
    """The bars with the prices of a part divided by a split, and its volumes multiplied."""
    split = float(np.round(np.exp(ratio), 9))
    columns = {column: values.copy() for column, values in bars.values.items()}
    for column, values in columns.items():
        values[part] = values[part] * split if column == "volume" else values[part] / split
    kind, was = "bars brought to the scale of a split that was applied to a part", bars.values["close"]
    log.repair(kind, bars.names(part), bars.date[part], "close", was[part], columns["close"][part])
    return bars.with_values(**columns)


def _fit_dividends(bars: LongBars, dividend: Array, splits: Splits, has_adjusted: Array, log: RepairLog) -> Array:
    """[R] log steps that the adjusted close lacks (+) or has too much (-) at each dividend."""
    rows = np.flatnonzero((dividend > 0) & ~bars.first)
    rows = rows[has_adjusted[rows] | ~_contain_dividends(bars, rows, splits)[bars.code[rows]]]
    close, cash = bars.values["close"], dividend[rows]
    before = close[rows - 1] * np.exp(-splits.as_traded[rows])
    with np.errstate(invalid="ignore", divide="ignore"):
        usual = -np.log(1 - cash / before)  # NaN or infinite for a dividend of the whole price
    reinvested = np.log1p(cash / close[rows])
    large = cash > SPECIAL * before
    factor = bars.values.get("adj_close", close) / close
    in_file = bars.log_steps(factor)[rows] + splits.missing[rows] - splits.as_traded[rows]
    vendors = has_adjusted[rows]
    wrong = np.zeros(len(rows), dtype=bool)
    wrong[vendors] = _wrong_steps(
        bars, *(part[vendors] for part in (rows, cash, large, in_file, usual, reinvested)), log=log
    )
    right = np.where(vendors, np.where(wrong, np.where(large, reinvested, usual), in_file), reinvested)
    at = rows[~vendors]
    kind = "dividends applied to prices as traded"
    log.repair(kind, bars.names(at), bars.date[at], "dividend", cash[~vendors], "in adj_close once")
    steps = np.zeros(len(bars))
    steps[rows] = right - in_file
    return steps


def _contain_dividends(bars: LongBars, rows: Array, splits: Splits) -> Array:
    """[N] True where the closes of an asset before its last dividend, of those on `rows`, are adjusted for its dividends.

    Prices as traded are in whole cents (times the later splits, where the closes are adjusted for these); prices adjusted for
    dividends are not.
    """
    last = np.full(len(bars.tickers), -1)
    np.maximum.at(last, bars.code[rows], rows)
    before = np.arange(len(bars)) < last[bars.code]
    cents = bars.values["close"] * np.exp(bars.sum_after(splits.in_closes)) * 100
    whole = np.abs(cents - np.round(cents)) <= 0.02 + 1e-6 * cents
    as_traded = bars.per_asset(splits.as_traded != 0) > 0
    return (bars.per_asset(before & whole) < WHOLE_CENTS * bars.per_asset(before)) & ~as_traded


def _wrong_steps(
    bars: LongBars,
    rows: Array,
    cash: Array,
    large: Array,
    in_file: Array,
    usual: Array,
    reinvested: Array,
    *,
    log: RepairLog,
) -> Array:
    """[events] True where the log step of adj_close / close in the file is certainly wrong; other odd steps are suspicions.

    `usual` is the step by the vendors' formula, `reinvested` that of a reinvestment at the ex-day's close, which alone is
    right for `large` dividends.
    """
    slack = np.where(large, 2e-3, np.clip(0.1 * reinvested, 5e-4, 0.01))
    by_usual, by_reinvested = np.abs(in_file - usual) <= slack, np.abs(in_file - reinvested) <= slack
    fits = by_reinvested | (by_usual & ~large)
    tells = ~fits & (reinvested > 1e-3)
    lacking = tells & (np.abs(in_file) < 0.2 * reinvested)
    twice = tells & (np.fmin(np.abs(in_file - 2 * usual), np.abs(in_file - 2 * reinvested)) <= slack)
    special = ~fits & by_usual
    for kind, which in (
        ("dividends put into the adjusted close", lacking),
        ("dividends applied twice, taken out once", twice),
        ("special dividends reinvested at the close of their day", special),
    ):
        at = rows[which]
        log.repair(kind, bars.names(at), bars.date[at], "dividend", cash[which], "in adj_close once")
    odd = np.flatnonzero(tells & ~lacking & ~twice & ~special)
    sentences = (
        f"a dividend of {cash[at]:g} is {np.expm1(reinvested[at]):.2%} of the price, "
        f"adj_close moves by {np.expm1(in_file[at]):.2%}"
        for at in odd
    )
    log.suspect("adj_close and the listed dividend part", bars.names(rows[odd]), bars.date[rows[odd]], sentences)
    return lacking | twice | special
