"""Listed splits, each applied exactly once: whether the prices already contain them, judged by the moves on their days."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from finpod.market.long_bars import LongBars
from finpod.market.repairs import RepairLog
from finpod.measures import Array

LARGE = np.log(1.9)
"""Absolute log ratio from which a split that was applied to a part of the history is repaired: a crash of that size is rare."""
NEAR = 5
"""Bars before and after the day of a split within which a jump of its size is taken for the split applied to a part of the
history. Further away a jump is taken for a real move: prices do fall by half, and split later."""
SAME = 0.12
"""Largest difference in log return between a jump and the split it is taken for."""
USUAL = (0.02, 0.1)
"""Smallest and largest value of a name's usual log return, which is estimated from the median of its absolute returns."""
DECIDES = np.log(100)
"""Log odds from which the move on the day of a split tells whether the closes are as traded. The vendor's adjusted close, where
there is one, counts as much."""
CONTRADICTS = np.log(1000)
"""Log odds from which a split contradicts the other splits of its name."""


class Splits(NamedTuple):
    """What became of the listed splits, as log ratios [R]; 0 on all other rows."""

    missing: Array
    """Log step that the adjusted close lacks (+) or has too much (-)."""
    as_traded: Array
    """ln of the split where the closes of the file are as traded and jump by it; else 0."""
    in_closes: Array
    """ln of the split where the closes of the file are adjusted for it; else 0."""


class _Verdicts(NamedTuple):
    """How the n listed splits are read, each [n] bool."""

    as_traded: Array
    """The closes are as traded; else they are adjusted for the split."""
    contradicted: Array
    """The splits of the name contradict each other, and each is judged alone."""
    undecided: Array
    """Neither the splits of the name nor a vendor's adjusted close tell; the prices are left as they are."""


def fit_splits(history: LongBars, split: Array, has_adjusted: Array, ledger: RepairLog) -> Splits:
    """What became of each entry of `split` [R]; repairs and suspicions are noted in the ledger.

    A split that the adjusted close lacks is applied, one that it has twice is taken back, and one that was applied to a part
    of the history is applied to the rest. `has_adjusted` [R] marks the rows with an adjusted close of the vendor. Splits on
    the first bar of a name have no effect.
    """
    ratio = np.log(np.where(np.nan_to_num(split) > 0, split, 1.0))
    ratio[history.first] = 0.0  # there is nothing before it to adjust
    rows = np.flatnonzero(ratio)
    large = np.abs(ratio[rows]) >= LARGE
    mended = np.zeros(len(rows), dtype=bool)
    mended[large] = [_mend_half_applied(history, int(row), ratio, ledger) for row in rows[large]]
    size, close = ratio[rows], history.values["close"]
    factor = history.values.get("adj_close", close) / close
    in_factor = np.abs(history.log_steps(factor)[rows] - size) < np.abs(size) / 2
    verdicts = _judge(history, rows, size, has_adjusted[rows], in_factor, mended)
    lacking, twice = verdicts.as_traded & ~in_factor, ~verdicts.as_traded & in_factor
    for kind, which in (("splits applied to prices as traded", lacking), ("splits taken back, applied twice", twice)):
        at = rows[which]
        ledger.repair(kind, history.names(at), history.date[at], "split", split[at], "in adj_close once")
    for kind, which in (
        ("splits that contradict each other", verdicts.contradicted),
        ("splits that may be in the prices already", verdicts.undecided),
    ):
        at = rows[which]
        ledger.suspect(
            kind, history.names(at), history.date[at], _sentences(history, at, split, verdicts.as_traded[which])
        )
    fitted = Splits(*np.zeros((3, len(history))))
    fitted.missing[rows] = np.where(lacking, size, np.where(twice, -size, 0.0))
    fitted.as_traded[rows] = np.where(verdicts.as_traded, size, 0.0)
    fitted.in_closes[rows] = np.where(verdicts.as_traded, 0.0, size)
    return fitted


def _judge(
    history: LongBars, rows: Array, size: Array, has_adjusted: Array, in_factor: Array, mended: Array
) -> _Verdicts:
    """Whether the closes are as traded at the splits on `rows` [n], whose log ratios are `size` [n].

    The closes of a name follow one convention: as traded, or adjusted for all its splits. Each split is evidence for one of
    the two, and the sum over the splits of a name decides for all of them, also for those whose own day tells little. Where
    one split contradicts this sum, or the sum decides nothing, each split is judged alone. Splits of other names do not
    count: the names of a table may come from different vendors. `has_adjusted`, `in_factor` and `mended` [n] say whether
    there is a vendor's adjusted close, whether it contains the split, and whether the split was repaired already.
    """
    moves = history.log_steps(history.values["close"])
    names, name = len(history.tickers), history.code[rows]
    odds = _log_odds(moves[rows], size, _usual_return(history, moves, rows)[name])
    odds[mended] = 0.0
    contains = np.bincount(name, in_factor, minlength=names)[name] > 0
    total = np.bincount(name, odds, minlength=names)[name] + np.where(contains, DECIDES, -DECIDES) * has_adjusted
    contradicts = odds * np.sign(total) <= -CONTRADICTS
    contradicted = np.bincount(name, contradicts, minlength=names)[name] > 0
    together = (np.abs(total) >= DECIDES) & ~contradicted
    alone = np.where(has_adjusted, odds + np.where(in_factor, DECIDES, -DECIDES) >= 0, odds >= DECIDES)
    as_traded = np.where(together, total > 0, alone) & ~mended
    return _Verdicts(as_traded, contradicted & ~mended, ~together & ~contradicted & ~has_adjusted & ~mended)


def _usual_return(history: LongBars, moves: Array, splits: Array) -> Array:
    """[N] usual absolute log return from one bar of a name to the next, within `USUAL`.

    `moves` [R] are these returns; those on the rows `splits` do not count.
    """
    usual = np.where(history.first, np.nan, np.abs(moves))
    usual[splits] = np.nan
    medians = pd.Series(usual).groupby(history.code).median().reindex(np.arange(len(history.tickers)))
    return np.nan_to_num(1.4826 * medians.to_numpy()).clip(*USUAL)  # sd / median |x| of a normal distribution


def _log_odds(move: Array, size: Array, usual: Array) -> Array:
    """[n] log odds that closes which moved by `move` on the day of a split are as traded and not adjusted for it.

    As traded, the return of the day is move + size; adjusted, it is move. Either is taken to follow Student's t with 3
    degrees of freedom and scale `usual`, whose tails are as heavy as those of daily returns.
    """
    as_traded, adjusted = (np.log1p(step**2 / (3 * usual**2)) for step in (move + size, move))
    return 2 * (adjusted - as_traded)


def _sentences(history: LongBars, rows: Array, split: Array, as_traded: Array) -> Iterator[str]:
    """How each of these splits was read, and the return that the other reading would give."""
    moves = np.exp(history.log_steps(history.values["close"])[rows])
    for ratio, move, raw in zip(split[rows], moves, as_traded, strict=True):
        adjusted, traded = f"{move - 1:+.2%}", f"{move * ratio - 1:+.2%}"
        yield (
            f"a split of {ratio:g} is listed; read as {'traded' if raw else 'adjusted for it'}, the prices return "
            f"{traded if raw else adjusted}; read the other way {adjusted if raw else traded}"
        )


def _mend_half_applied(history: LongBars, row: int, ratios: Array, ledger: RepairLog) -> bool:
    """Bring the bars before a jump of a split's size near its day to the scale of those after it; True if this was done.

    The split is listed on `row`; `ratios` [R] are the log ratios of all splits. A jump on the day of another split belongs
    to that one.
    """
    bars = slice(int(history.start[row]), int(history.stop[row]))
    step, ratio = np.r_[0.0, np.diff(np.log(history.values["close"][bars]))], float(ratios[row])
    at = row - bars.start
    if abs(step[at] + ratio) < abs(step[at]):
        return False  # the jump is on the day of the split: prices as traded
    near = np.arange(max(at - NEAR, 1), min(at + NEAR + 1, len(step)))
    jumps = near[(np.abs(step[near] + ratio) < SAME) & (ratios[bars][near] == 0)]
    if len(jumps) != 1:
        return False
    back = np.flatnonzero(np.abs(step[: jumps[0]] - ratio) < SAME)  # a jump the other way begins the part
    begin = int(back[-1]) if len(back) else 0
    _scale(history, slice(bars.start + begin, bars.start + int(jumps[0])), ratio, ledger)
    return True


def _scale(history: LongBars, part: slice, ratio: float, ledger: RepairLog) -> None:
    """Divide the prices of some bars by the split and multiply their volumes by it."""
    split = float(np.round(np.exp(ratio), 9))
    was = history.values["close"]
    for column, values in history.values.items():
        history.values[column] = values.copy()
        history.values[column][part] = values[part] * split if column == "volume" else values[part] / split
    ledger.repair(
        "bars brought to the scale of a split that was applied to a part",
        history.names(part),
        history.date[part],
        "close",
        was[part],
        history.values["close"][part],
    )
