"""Splits and dividends, applied exactly once: listed actions are compared with what the prices already contain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from finpod.market.long_bars import LongBars, RepairLog
from finpod.measures import Array

SPECIAL = 0.1
"""Dividend / price from which a dividend counts as reinvested at the ex-day's close, because the usual formula fails there."""
WHOLE_CENTS = 0.9
"""Share of closes in whole cents from which closes count as prices as traded."""
LARGE = np.log(1.9)
"""Smallest absolute log ratio of a split that is repaired if it was applied to a part of the history. Such crashes are rare."""
NEAR, SAME = 5, 0.12
"""A jump counts as a split applied to a part of the history within `NEAR` bars of the split's day, and up to `SAME` apart in
log return. Further away it counts as a real move: prices do fall by half, and split later."""
USUAL = (0.02, 0.1)
"""Bounds of an asset's usual log return, which is estimated from the median of its absolute returns."""
DECIDES, CONTRADICTS = np.log(100), np.log(1000)
"""Log odds at which a split decides if the closes are as traded (a vendor's adjusted close has the same weight); and at which it
contradicts the other splits of its asset."""


class Splits(NamedTuple):
    """Log ratios [R] of the listed splits, by how they were read; 0 on all other rows."""

    missing: Array
    """Log step that the adjusted close lacks (+) or has too much (-)."""
    as_traded: Array
    """Log ratio of splits by which the closes jump, because they are as traded."""
    in_closes: Array
    """Log ratio of splits for which the closes are adjusted."""


def adjust(bars: LongBars, log: RepairLog, name: str) -> tuple[LongBars, list[str], Array]:
    """Return the bars with an `adj_close` that agrees with their `split` and `dividend` columns, without these columns.

    Also returns notes for the user, and the rows [R] bool on which an action is listed. Where the closes are adjusted for
    splits, a column `traded` holds the closes as traded.

    A split that the adjusted close lacks is applied, one that it has twice is taken back, and one that was applied to a part
    of the history is applied to the rest (see `_are_as_traded`). The dividend d of day t must separate adjusted close and close
    by 1 - d / c(t-1), the vendors' formula, or c(t) / (c(t) + d), the reinvestment at the ex-day's close. A missing dividend is
    applied by the first formula, and for d above a tenth of the price by the second. Anything else is a suspicion.
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
    """Return notes on assets whose file has no adjusted close; `steps` [R] were added to the adjusted close."""
    lacking = np.unique(bars.code[~has_adjusted])
    if not len(lacking):
        return []
    subject = f"{name} has no adjusted close" + (f" for {len(lacking)} of its assets" if has_adjusted.any() else "")
    if not steps[~has_adjusted].any():
        return [f"{subject}; its prices are taken as adjusted for splits and dividends"]
    actions = "splits and dividends that it lists" if dividends else "splits that it lists; it lists no dividends"
    return [f"{subject}; its prices are adjusted here for the {actions}"]


def _fit_splits(bars: LongBars, split: Array, has_adjusted: Array, log: RepairLog) -> tuple[LongBars, Splits]:
    """Return the bars, with half-applied splits repaired, and how each entry of `split` [R] was read.

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
    """Return True [n] for splits at which the closes are as traded, and True [n] for those in doubt.

    `rows` and `size` [n] are the rows and log ratios of the splits. The closes of an asset follow one convention: as traded, or
    adjusted for all its splits. So the sum of the evidence of all its splits decides for each of them. If one split
    contradicts this sum, or the sum is too small, each is judged alone. Splits of other assets do not count, because the
    assets of a table may come from different vendors. `has_adjusted`, `in_factor` and `repaired` [n] are True if there is a
    vendor's adjusted close, if it contains the split, and if the split was repaired already.
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
    """Return log odds [n] that closes which moved by `move` on the day of a split are as traded, not adjusted for it.

    As traded, the return of the day is move + size; adjusted, it is move. Both are assumed to follow Student's t with 3
    degrees of freedom and scale `usual`, whose tails are as heavy as those of daily returns.
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
    """Return the bars before a jump near the split on `row`, which lack the split; None if there is no such jump.

    `ratios` [R] are the log ratios of all splits. A jump on the day of another split belongs to that split.
    """
    start, stop = bars.start[row], bars.stop[row]
    step, ratio = np.r_[0.0, np.diff(np.log(bars.values["close"][start:stop]))], ratios[row]
    at = row - start
    if abs(step[at] + ratio) < abs(step[at]):
        return None  # the jump is on the day of the split: prices as traded
    near = np.arange(max(at - NEAR, 1), min(at + NEAR + 1, len(step)))
    jumps = near[(np.abs(step[near] + ratio) < SAME) & (ratios[start:stop][near] == 0)]
    if len(jumps) != 1:
        return None
    back = np.flatnonzero(np.abs(step[: jumps[0]] - ratio) < SAME)  # an opposite jump begins the part
    return slice(start + (back[-1] if len(back) else 0), start + jumps[0])


def _scaled(bars: LongBars, part: slice, ratio: float, log: RepairLog) -> LongBars:
    """Return the bars with the prices of a part divided by a split, and its volumes multiplied."""
    split = np.round(np.exp(ratio), 9)
    columns = {column: values.copy() for column, values in bars.values.items()}
    for column, values in columns.items():
        values[part] = values[part] * split if column == "volume" else values[part] / split
    kind, was = "bars brought to the scale of a split that was applied to a part", bars.values["close"]
    log.repair(kind, *bars.places(part), "close", was[part], columns["close"][part])
    return bars.with_values(**columns)


def _fit_dividends(bars: LongBars, dividend: Array, splits: Splits, has_adjusted: Array, log: RepairLog) -> Array:
    """Return the log steps [R] that the adjusted close lacks (+) or has too much (-) at each dividend.

    Of steps of a vendor's adjusted close that fit neither formula, those that are certainly wrong are repaired; the others
    are suspicions.
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
    """Return True [N] for assets whose closes before their last dividend, of those on `rows`, are adjusted for dividends.

    Prices as traded are in whole cents (times the later splits, if the closes are adjusted for these); prices adjusted for
    dividends are not.
    """
    last = np.full(len(bars.tickers), -1)
    np.maximum.at(last, bars.code[rows], rows)
    before = np.arange(len(bars)) < last[bars.code]
    cents = bars.values["close"] * np.exp(bars.sum_after(splits.in_closes)) * 100
    whole = np.abs(cents - np.round(cents)) <= 0.02 + 1e-6 * cents
    as_traded = bars.per_asset(splits.as_traded != 0) > 0
    return (bars.per_asset(before & whole) < WHOLE_CENTS * bars.per_asset(before)) & ~as_traded
