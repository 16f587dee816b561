"""Splits and dividends, applied exactly once: what a file lists is held against what its prices already contain."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from finpod.market.data import Array
from finpod.market.history import History
from finpod.market.repairs import RepairLedger

VISIBLE = np.log(1.15)
"""Log ratio from which a split shows in the prices of its day."""
LARGE = np.log(1.9)
"""Log ratio from which a split that was applied to a part of the history is repaired: a crash of that size is rare."""
NEAR = 5
"""Bars before and after its day within which a split applied to a part of the history is looked for. Further away a move of
that size is taken for what it says: names do fall by half, and split later."""
SAME = 0.12
"""Log return that may lie between the size of a jump and that of the split it is taken for."""
SPECIAL = 0.1
"""Share of the price from which a dividend is taken as reinvested at the ex-day's close: the usual formula fails there."""

WHOLE_CENTS = 0.9
"""Share of closes in whole cents from which prices count as traded."""


class _Steps(NamedTuple):
    """Log steps from one bar of a name to the next [R], 0 at its first."""

    close: Array
    """Of the close as it stands in the file."""
    vendor: Array
    """Of the vendor's factor adj_close / close; 0 where there is no adj_close."""


class _Splits(NamedTuple):
    """What a file's splits came to [R]."""

    missing: Array
    """Log step that the adjusted close lacks (+) or has too much (-)."""
    as_traded: Array
    """ln of the split where the closes of the file jump by it, being as traded; else 0."""
    in_closes: Array
    """ln of the split where the closes of the file are adjusted for it; else 0."""


def adjust(history: History, ledger: RepairLedger, name: str) -> tuple[list[str], Array]:
    """Make `adj_close` agree with the `split` and `dividend` columns, which are used up.

    Returns notes for the reader, and the rows [R] bool for which an action is listed. Where the closes are adjusted for
    splits, a column `traded` has them as traded.

    A split counts as applied if the return of its day, adjusted, is near 0 and not near the split's size. A split that
    was applied to a part of the history is applied to the rest. The dividend d of a day t must part the adjusted close from
    the close by 1 - d / c(t-1), the vendors' formula, or c(t) / (c(t) + d), the reinvestment at the ex-day's close; where
    it is missing from the adjusted close the first is put in, and for d above a tenth of the price the second, whose
    return is (c(t) + d) / c(t-1) - 1. Anything else is left alone, and suspected.
    """
    split, dividend = (history.values.pop(column, None) for column in ("split", "dividend"))
    close, vendors = history.values["close"], history.values.get("adj_close")
    given = np.zeros(len(history), dtype=bool) if vendors is None else ~np.isnan(vendors)
    if vendors is not None:
        history.values["adj_close"] = np.where(given, vendors, close)
    found = _fit_splits(history, np.ones(len(history)) if split is None else split, given, ledger)
    steps = found.missing
    if dividend is not None:
        dividend = np.nan_to_num(dividend)
        steps = steps + _fit_dividends(history, dividend, found, given, ledger)
    if vendors is not None or steps.any():
        adjusted = history.values.get("adj_close", history.values["close"])
        history.values["adj_close"] = adjusted * np.exp(-_later(history, steps))
    if found.in_closes.any():
        history.values["traded"] = history.values["close"] * np.exp(_later(history, found.in_closes))
    listed = (found.as_traded + found.in_closes != 0) | (False if dividend is None else dividend > 0)
    return _notes(history, given, steps, name, dividend is not None), listed


def _notes(history: History, given: Array, steps: Array, name: str, dividends: bool) -> list[str]:
    """What the reader must know of names whose file has no adjusted close."""
    lacking = np.unique(history.code[~given])
    if not len(lacking):
        return []
    who = f"{name} has no adjusted close" + (f" for {len(lacking)} of its names" if given.any() else "")
    if not steps[~given].any():
        return [f"{who}; its prices are taken as adjusted for splits and dividends"]
    if not dividends:
        return [f"{who} and lists splits but no dividends; its returns leave dividends out"]
    return [f"{who}; its prices are adjusted here for the splits and dividends it lists"]


def _later(history: History, steps: Array) -> Array:
    """[R] sum of the steps at the later bars of the same name; exactly 0 where there are none."""
    total = np.cumsum(steps)
    return total[history.stop - 1] - total


def _steps(history: History) -> _Steps:
    close = history.values["close"]
    factor = history.values.get("adj_close", close) / close
    return _Steps(*(np.nan_to_num(np.log(series / history.previous(series))) for series in (close, factor)))


def _fit_splits(history: History, split: Array, given: Array, ledger: RepairLedger) -> _Splits:
    ratio = np.log(np.where(np.nan_to_num(split) > 0, split, 1.0))
    ratio[history.first] = 0.0  # there is nothing before it to adjust
    rows = np.flatnonzero(ratio)
    for row in rows[np.abs(ratio[rows]) >= LARGE]:
        _mend_half_applied(history, int(row), float(ratio[row]), ledger)
    steps, size = _steps(history), ratio[rows]
    seen = np.abs(size) >= VISIBLE
    in_factor = np.abs(steps.vendor[rows] - size) < np.abs(size) / 2
    jumps = np.abs(steps.close[rows] + size) < np.abs(steps.close[rows])
    raw = np.bincount(history.code[rows[seen & jumps]], minlength=len(history.tickers)) > 0
    jumps = np.where(seen, jumps, in_factor | (raw[history.code[rows]] & ~given[rows]))
    lacking, twice = jumps & ~in_factor, seen & ~jumps & in_factor
    for kind, which in (("splits applied to prices as traded", lacking), ("splits taken back, applied twice", twice)):
        at = rows[which]
        ledger.repair(kind, history.names(at), history.date[at], "split", split[at], "in adj_close once")
    unsure = rows[~seen & ~jumps & ~given[rows]]
    ledger.suspect(
        "splits too small to see",
        history.names(unsure),
        history.date[unsure],
        (f"a split of {split[row]:g} is listed; the prices are taken as adjusted for it" for row in unsure),
    )
    found = _Splits(*(np.zeros(len(history)) for _ in _Splits._fields))
    found.missing[rows] = np.where(lacking, size, np.where(twice, -size, 0.0))
    found.as_traded[rows] = np.where(jumps, size, 0.0)
    found.in_closes[rows] = np.where(jumps, 0.0, size)
    return found


def _mend_half_applied(history: History, row: int, ratio: float, ledger: RepairLedger) -> None:
    """Bring the bars before a jump of the split's size near its day to the scale of those after it."""
    bars = slice(int(history.start[row]), int(history.stop[row]))
    step = np.r_[0.0, np.diff(np.log(history.values["close"][bars]))]
    at = row - bars.start
    if abs(step[at] + ratio) < abs(step[at]):
        return  # the jump is on the day of the split: prices as traded
    near = np.arange(max(at - NEAR, 1), min(at + NEAR + 1, len(step)))
    jumps = near[np.abs(step[near] + ratio) < SAME]
    if len(jumps) != 1:
        return
    back = np.flatnonzero(np.abs(step[: jumps[0]] - ratio) < SAME)  # a jump the other way begins the part
    begin = int(back[-1]) if len(back) else 0
    _scale(history, slice(bars.start + begin, bars.start + int(jumps[0])), ratio, ledger)


def _scale(history: History, part: slice, ratio: float, ledger: RepairLedger) -> None:
    """Divide the prices of some bars by the split and multiply the volumes by it."""
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


def _fit_dividends(history: History, dividend: Array, splits: _Splits, given: Array, ledger: RepairLedger) -> Array:
    """[R] log steps that the adjusted close lacks (+) or has too much (-) at each dividend."""
    rows = np.flatnonzero((dividend > 0) & ~history.first)
    rows = rows[given[rows] | ~_left_out(history, rows, splits)[history.code[rows]]]
    close, cash = history.values["close"], dividend[rows]
    before = close[rows - 1] * np.exp(-splits.as_traded[rows])
    with np.errstate(invalid="ignore", divide="ignore"):
        usual = -np.log(1 - cash / before)  # NaN or infinite for a dividend of the whole price
    reinvested = np.log1p(cash / close[rows])
    large = cash > SPECIAL * before
    found = _steps(history).vendor[rows] + splits.missing[rows] - splits.as_traded[rows]
    vendors, own = given[rows], ~given[rows]
    events = _Events(*(part[vendors] for part in (rows, cash, large, found, usual, reinvested)))
    right = reinvested.copy()
    right[vendors] = np.where(
        _judge(events, history, ledger), np.where(events.large, events.reinvested, events.usual), events.found
    )
    at = rows[own]
    kind = "dividends applied to prices as traded"
    ledger.repair(kind, history.names(at), history.date[at], "dividend", cash[own], "in adj_close once")
    steps = np.zeros(len(history))
    steps[rows] = right - found
    return steps


def _left_out(history: History, rows: Array, splits: _Splits) -> Array:
    """[N] whether the closes of a name before its last dividend already leave its dividends out.

    Prices as traded are in whole cents (times the later splits, where those are in the prices); dividends taken out of
    them leave fractions.
    """
    names = len(history.tickers)
    last = np.full(names, -1)
    np.maximum.at(last, history.code[rows], rows)
    before = np.arange(len(history)) < last[history.code]
    cents = history.values["close"] * np.exp(_later(history, splits.in_closes)) * 100
    whole = np.abs(cents - np.round(cents)) <= 0.02 + 1e-6 * cents
    bars, in_cents = (np.bincount(history.code[rows], minlength=names) for rows in (before, before & whole))
    as_traded = np.bincount(history.code, splits.as_traded, minlength=names) != 0
    return (in_cents < WHOLE_CENTS * bars) & ~as_traded


class _Events(NamedTuple):
    """The dividends of a file with an adjusted close [events]."""

    rows: Array
    """Their rows."""
    cash: Array
    """Their amounts a share."""
    large: Array
    """Above `SPECIAL` of the price: the formulas part, and the reinvestment is right."""
    found: Array
    """The log step of the adjusted close against the close."""
    usual: Array
    """What that should be by the vendors' formula."""
    reinvested: Array
    """What it should be for a reinvestment at the ex-day's close."""


def _judge(events: _Events, history: History, ledger: RepairLedger) -> Array:
    """[events] whether the step is wrong for certain; what is only odd is suspected."""
    rows, cash, large, found, usual, reinvested = events
    slack = np.where(large, 2e-3, np.clip(0.1 * reinvested, 5e-4, 0.01))
    by_usual, by_reinvested = np.abs(found - usual) <= slack, np.abs(found - reinvested) <= slack
    fits = by_reinvested | (by_usual & ~large)
    tells = ~fits & (reinvested > 1e-3)
    lacking = tells & (np.abs(found) < 0.2 * reinvested)
    twice = tells & (np.fmin(np.abs(found - 2 * usual), np.abs(found - 2 * reinvested)) <= slack)
    special = ~fits & by_usual
    for kind, which in (
        ("dividends put into the adjusted close", lacking),
        ("dividends applied twice, taken out once", twice),
        ("special dividends reinvested at the close of their day", special),
    ):
        at = rows[which]
        ledger.repair(kind, history.names(at), history.date[at], "dividend", cash[which], "in adj_close once")
    unclear = tells & ~lacking & ~twice & ~special
    ledger.suspect(
        "adj_close and the listed dividend part",
        history.names(rows[unclear]),
        history.date[rows[unclear]],
        (
            f"a dividend of {paid:g} is {np.expm1(should):.2%} of the price, adj_close moves by {np.expm1(does):.2%}"
            for paid, should, does in zip(cash[unclear], reinvested[unclear], found[unclear], strict=True)
        ),
    )
    return lacking | twice | special
