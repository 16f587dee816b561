"""Applies each listed split and dividend exactly once, after checking whether the prices already contain it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from finpod.market.long_bars import LongBars, RepairLog
from finpod.measures import Array

SPECIAL = 0.1
"""Dividends above this share of the price are reinvested at the ex-day's close, because the usual formula fails there."""
WHOLE_CENTS = 0.9
"""Closes count as unadjusted if at least this share of them is in whole cents."""
LARGE = np.log(1.9)
"""Splits of at least this absolute log ratio are repaired if they were applied to a part of the history."""
NEAR, SAME = 5, 0.12
"""A jump is attributed to a split if it is within `NEAR` bars of the split's day and their log returns differ by at most
`SAME`. Other jumps count as real moves."""
USUAL = (0.02, 0.1)
"""Bounds of an asset's usual log return, which is estimated from the median of its absolute returns."""
DECIDES, CONTRADICTS = np.log(100), np.log(1000)
"""Log odds that are enough to decide whether closes are unadjusted (a vendor's adjusted close adds as much), and log odds at
which one split contradicts the other splits of its asset."""


class Splits(NamedTuple):
    """Log ratios [R] of the listed splits, by what the prices already contain; 0 on rows without a split."""

    missing: Array
    """Log step to add to the adjusted close (+), or to take out of it (-)."""
    as_traded: Array
    """Log ratio of splits for which the closes are unadjusted, so that they jump on the day of the split."""
    in_closes: Array
    """Log ratio of splits for which the closes are already adjusted."""


def adjust(bars: LongBars, log: RepairLog, name: str) -> tuple[LongBars, list[str], Array]:
    """Return the bars with an `adj_close` that agrees with their `split` and `dividend` columns, without these columns.

    Also returns notes for the user, and a mask [R] of the rows on which an action is listed. If closes are adjusted for splits,
    the column `traded` holds the unadjusted closes.

    A split that is missing from the adjusted close is applied. A split that was applied twice is taken out once. A split that
    was applied to a part of the history is applied to the rest. See `_are_as_traded`.

    A dividend d on day t must change adj_close / close by the factor 1 - d / c(t-1), the vendors' formula, or by
    c(t) / (c(t) + d), its reinvestment at the ex-day's close. A missing dividend is applied by the first formula, or by the
    second if d is above a tenth of the price. Other steps are reported as suspicions.
    """
    values = dict(bars.values)
    split, dividend = values.pop("split", np.ones(len(bars))), values.pop("dividend", None)
    vendor = values.get("adj_close", np.full(len(bars), np.nan))
    has_adjusted = ~np.isnan(vendor)
    values["adj_close"] = np.where(has_adjusted, vendor, values["close"])
    bars, splits = _fit_splits(replace(bars, values=values), split, has_adjusted, log)
    steps, listed = splits.missing, splits.as_traded + splits.in_closes != 0
    if dividend is not None:
        steps = steps + _fit_dividends(bars, dividend, splits, has_adjusted, log)
        listed |= dividend > 0
    values = {**bars.values, "adj_close": bars.values["adj_close"] * np.exp(-bars.sum_after(steps))}
    if not has_adjusted.any() and not steps.any():
        del values["adj_close"]
    if splits.in_closes.any():
        values["traded"] = bars.values["close"] * np.exp(bars.sum_after(splits.in_closes))
    return replace(bars, values=values), _notes(bars, has_adjusted, steps, name, dividend is not None), listed


def _notes(bars: LongBars, has_adjusted: Array, steps: Array, name: str, dividends: bool) -> list[str]:
    """Return notes on assets without an adjusted close in the file; `steps` [R] were added to the adjusted close."""
    lacking = np.unique(bars.code[~has_adjusted])
    if not len(lacking):
        return []
    subject = f"{name} has no adjusted close" + (f" for {len(lacking)} of its assets" if has_adjusted.any() else "")
    if not steps[~has_adjusted].any():
        return [f"{subject}; its prices are assumed to be adjusted for splits and dividends"]
    actions = "splits and dividends that it lists" if dividends else "splits that it lists; it lists no dividends"
    return [f"{subject}; finpod adjusted its prices for the {actions}"]


def _fit_splits(bars: LongBars, split: Array, has_adjusted: Array, log: RepairLog) -> tuple[LongBars, Splits]:
    """Return the bars, with half-applied splits repaired, and what the prices contain of each entry of `split` [R].

    `has_adjusted` [R] marks the rows with a vendor's adjusted close. Splits on the first bar of an asset have no effect.
    """
    split = np.where(split > 0, split, 1.0)
    ratio = np.where(bars.first, 0.0, np.log(split))
    rows = np.flatnonzero(ratio)
    repaired = np.zeros(len(rows), dtype=bool)
    for number in np.flatnonzero(np.abs(ratio[rows]) >= LARGE):
        part = _half_applied(bars, rows[number], ratio)
        if part is not None:
            bars, repaired[number] = _scaled(bars, part, ratio[rows[number]], log), True
    size = ratio[rows]
    in_factor = np.abs(_factor_steps(bars)[rows] - size) < np.abs(size) / 2
    as_traded, doubtful = _are_as_traded(bars, rows, size, has_adjusted[rows], in_factor, repaired)
    lacking, twice = as_traded & ~in_factor, ~as_traded & in_factor
    for kind, chosen in (("splits applied to prices as traded", lacking), ("splits taken back, applied twice", twice)):
        log.repair(kind, *bars.places(rows[chosen]), "split", split[rows[chosen]], "in adj_close once")
    at = rows[doubtful]
    kind = "splits that may be in the prices already"
    log.suspect(kind, *bars.places(at), _two_readings(bars, at, split[at], as_traded[doubtful]))
    columns = np.zeros((3, len(bars)))
    columns[:, rows] = [size * lacking - size * twice, size * as_traded, size * ~as_traded]
    return bars, Splits(*columns)


def _factor_steps(bars: LongBars) -> Array:
    """Return the log steps [R] of adj_close / close."""
    return bars.log_steps(bars.values["adj_close"] / bars.values["close"])


def _are_as_traded(
    bars: LongBars, rows: Array, size: Array, has_adjusted: Array, in_factor: Array, repaired: Array
) -> tuple[Array, Array]:
    """Return two masks [n]: splits for which the closes are unadjusted, and splits for which this is uncertain.

    `rows` and `size` [n] are the rows and log ratios of the splits. The closes of an asset are usually either unadjusted or
    adjusted for all its splits, so the log odds of its splits are added up and decide for all of them. If one split
    contradicts the sum, or the sum is too small, each split is decided alone. Assets are decided separately, because a table
    may combine several vendors. `has_adjusted`, `in_factor` and `repaired` [n] are True if there is a vendor's adjusted close,
    if it contains the split, and if the split was repaired already.
    """
    asset, moves = bars.code[rows], bars.log_steps(bars.values["close"])
    odds = _log_odds(moves[rows], size, _usual_return(bars, moves, rows)[asset])
    odds[repaired] = 0.0

    def sum_by_asset(values: Array) -> Array:
        return np.bincount(asset, values, minlength=len(bars.tickers))[asset]

    total = sum_by_asset(odds) + np.where(sum_by_asset(in_factor) > 0, DECIDES, -DECIDES) * has_adjusted
    contradicted = sum_by_asset(odds * np.sign(total) <= -CONTRADICTS) > 0
    together = (np.abs(total) >= DECIDES) & ~contradicted
    alone = np.where(has_adjusted, odds + np.where(in_factor, DECIDES, -DECIDES) >= 0, odds >= DECIDES)
    doubtful = ~together & ~repaired & (contradicted | ~has_adjusted)
    return np.where(together, total > 0, alone) & ~repaired, doubtful


def _usual_return(bars: LongBars, moves: Array, splits: Array) -> Array:
    """Return the usual absolute log return [N] of each asset, within `USUAL`, from `moves` [R] without the rows `splits`."""
    usual = np.where(bars.first, np.nan, np.abs(moves))
    usual[splits] = np.nan
    medians = pd.Series(usual).groupby(bars.code).median().reindex(np.arange(len(bars.tickers)))
    return np.nan_to_num(1.4826 * medians.to_numpy()).clip(*USUAL)  # sd / median |x| of a normal distribution


def _log_odds(move: Array, size: Array, usual: Array) -> Array:
    """Return the log odds [n] that the closes are unadjusted for a split, given their log return `move` [n] on its day.

    The day's real return is move + size if the closes are unadjusted, and move if they are adjusted. Both are assumed to follow
    Student's t with 3 degrees of freedom and scale `usual`, whose tails are as heavy as those of daily returns.
    """
    as_traded, adjusted = (np.log1p(step**2 / (3 * usual**2)) for step in (move + size, move))
    return 2 * (adjusted - as_traded)


def _two_readings(bars: LongBars, rows: Array, split: Array, as_traded: Array) -> Iterator[str]:
    moves = np.exp(bars.log_steps(bars.values["close"])[rows])
    for ratio, move, raw in zip(split, moves, as_traded, strict=True):
        adjusted, traded = f"{move - 1:+.2%}", f"{move * ratio - 1:+.2%}"
        yield (
            f"a split of {ratio:g} is listed; read as {'traded' if raw else 'adjusted for it'}, the prices return "
            f"{traded if raw else adjusted}; read the other way {adjusted if raw else traded}"
        )


def _half_applied(bars: LongBars, row: int, ratios: Array) -> slice | None:
    """Return the bars to which the split on `row` was not applied, up to a jump near its day; None without such a jump.

    `ratios` [R] are the log ratios of all splits. A jump on the day of another split belongs to that split.
    """
    start, stop = bars.start[row], bars.stop[row]
    step, ratio = np.r_[0.0, np.diff(np.log(bars.values["close"][start:stop]))], ratios[row]
    at = row - start
    if abs(step[at] + ratio) < abs(step[at]):
        return None  # the jump is on the day of the split: unadjusted prices
    near = np.arange(max(at - NEAR, 1), min(at + NEAR + 1, len(step)))
    jumps = near[(np.abs(step[near] + ratio) < SAME) & (ratios[start:stop][near] == 0)]
    if len(jumps) != 1:
        return None
    back = np.flatnonzero(np.abs(step[: jumps[0]] - ratio) < SAME)  # the bars may begin at an opposite jump
    return slice(start + (back[-1] if len(back) else 0), start + jumps[0])


def _scaled(bars: LongBars, part: slice, ratio: float, log: RepairLog) -> LongBars:
    """Return the bars with the prices of `part` divided by a split, and its volumes multiplied by it."""
    split = np.round(np.exp(ratio), 9)
    columns = {column: values.copy() for column, values in bars.values.items()}
    for column, values in columns.items():
        values[part] = values[part] * split if column == "volume" else values[part] / split
    kind, was = "bars brought to the scale of a split that was applied to a part", bars.values["close"]
    log.repair(kind, *bars.places(part), "close", was[part], columns["close"][part])
    return bars.with_values(**columns)


def _fit_dividends(bars: LongBars, dividend: Array, splits: Splits, has_adjusted: Array, log: RepairLog) -> Array:
    """Return the log steps [R] to add to the adjusted close (+), or to take out of it (-), at each dividend.

    Steps of a vendor's adjusted close that fit neither formula are repaired if they are certainly wrong, and otherwise reported
    as suspicions.
    """
    rows = np.flatnonzero((dividend > 0) & ~bars.first)
    rows = rows[has_adjusted[rows] | ~_contain_dividends(bars, rows, splits)[bars.code[rows]]]
    close, cash, vendor = bars.values["close"], dividend[rows], has_adjusted[rows]
    before = close[rows - 1] * np.exp(-splits.as_traded[rows])
    with np.errstate(invalid="ignore", divide="ignore"):
        usual = -np.log(1 - cash / before)  # NaN or infinite for a dividend of the whole price
    reinvested = np.log1p(cash / close[rows])
    large = cash > SPECIAL * before
    in_file = _factor_steps(bars)[rows] + splits.missing[rows] - splits.as_traded[rows]
    slack = np.where(large, 2e-3, np.clip(0.1 * reinvested, 5e-4, 0.01))
    by_usual, by_reinvested = np.abs(in_file - usual) <= slack, np.abs(in_file - reinvested) <= slack
    misfit = vendor & ~by_reinvested & ~(by_usual & ~large)
    special = misfit & by_usual
    unclear = misfit & (reinvested > 1e-3)
    lacking = unclear & (np.abs(in_file) < 0.2 * reinvested)
    twice = unclear & (np.fmin(np.abs(in_file - 2 * usual), np.abs(in_file - 2 * reinvested)) <= slack)
    for kind, chosen in (
        ("dividends put into the adjusted close", lacking),
        ("dividends applied twice, taken out once", twice),
        ("special dividends reinvested at the close of their day", special),
        ("dividends applied to prices as traded", ~vendor),
    ):
        log.repair(kind, *bars.places(rows[chosen]), "dividend", cash[chosen], "in adj_close once")
    wrong = lacking | twice | special
    odd = np.flatnonzero(unclear & ~wrong)
    sentences = (
        f"a dividend of {cash[at]:g} is {np.expm1(reinvested[at]):.2%} of the price, "
        f"adj_close moves by {np.expm1(in_file[at]):.2%}"
        for at in odd
    )
    log.suspect("adj_close and the listed dividend disagree", *bars.places(rows[odd]), sentences)
    right = np.where(wrong & ~large, usual, np.where(wrong | ~vendor, reinvested, in_file))
    steps = np.zeros(len(bars))
    steps[rows] = right - in_file
    return steps


def _contain_dividends(bars: LongBars, rows: Array, splits: Splits) -> Array:
    """Return True [N] for assets whose closes are adjusted for dividends, judged by the closes before the last dividend on `rows`.

    Unadjusted prices are in whole cents, once later splits are undone; prices adjusted for dividends are not.
    """
    last = np.full(len(bars.tickers), -1)
    np.maximum.at(last, bars.code[rows], rows)
    before = np.arange(len(bars)) < last[bars.code]
    cents = bars.values["close"] * np.exp(bars.sum_after(splits.in_closes)) * 100
    whole = np.abs(cents - np.round(cents)) <= 0.02 + 1e-6 * cents
    as_traded = bars.per_asset(splits.as_traded != 0) > 0
    return (bars.per_asset(before & whole) < WHOLE_CENTS * bars.per_asset(before)) & ~as_traded
