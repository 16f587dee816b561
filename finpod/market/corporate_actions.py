"""Splits and dividends, applied exactly once: listed actions are compared with what the prices already contain."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from finpod.market.long_bars import LongBars
from finpod.market.repairs import RepairLog
from finpod.market.splits import Splits, fit_splits
from finpod.measures import Array

SPECIAL = 0.1
"""Share of the price from which a dividend is taken as reinvested at the ex-day's close: the usual formula fails there."""
WHOLE_CENTS = 0.9
"""Share of closes in whole cents from which prices count as traded."""


def adjust(history: LongBars, ledger: RepairLog, name: str) -> tuple[list[str], Array]:
    """Make `adj_close` agree with the `split` and `dividend` columns, and remove these columns.

    Returns notes for the reader, and the rows [R] bool for which an action is listed. Where the closes are adjusted for
    splits, a column `traded` holds the closes as traded.

    All splits of a name together decide whether its closes are as traded or adjusted (see `fit_splits`); a split that
    the adjusted close lacks is applied, one that it has twice is taken back, and one that was applied to a part of the
    history is applied to the rest. The dividend d of a day t must part the adjusted close from the close by
    1 - d / c(t-1), the vendors' formula, or c(t) / (c(t) + d), the reinvestment at the ex-day's close. A missing dividend
    is applied by the first formula, and for d above a tenth of the price by the second, whose return is
    (c(t) + d) / c(t-1) - 1. Anything else is left alone and listed as a suspicion.
    """
    split, dividend = (history.values.pop(column, None) for column in ("split", "dividend"))
    close, vendors = history.values["close"], history.values.get("adj_close")
    given = np.zeros(len(history), dtype=bool) if vendors is None else ~np.isnan(vendors)
    if vendors is not None:
        history.values["adj_close"] = np.where(given, vendors, close)
    splits = fit_splits(history, np.ones(len(history)) if split is None else split, given, ledger)
    steps = splits.missing
    if dividend is not None:
        dividend = np.nan_to_num(dividend)
        steps = steps + _fit_dividends(history, dividend, splits, given, ledger)
    if vendors is not None or steps.any():
        adjusted = history.values.get("adj_close", history.values["close"])
        history.values["adj_close"] = adjusted * np.exp(-history.sum_after(steps))
    if splits.in_closes.any():
        history.values["traded"] = history.values["close"] * np.exp(history.sum_after(splits.in_closes))
    listed = (splits.as_traded + splits.in_closes != 0) | (False if dividend is None else dividend > 0)
    return _notes(history, given, steps, name, dividend is not None), listed


def _notes(history: LongBars, given: Array, steps: Array, name: str, dividends: bool) -> list[str]:
    """Notes on names whose file has no adjusted close; `steps` [R] are what was added to the adjusted close."""
    lacking = np.unique(history.code[~given])
    if not len(lacking):
        return []
    who = f"{name} has no adjusted close" + (f" for {len(lacking)} of its names" if given.any() else "")
    if not steps[~given].any():
        return [f"{who}; its prices are taken as adjusted for splits and dividends"]
    if not dividends:
        return [f"{who} and lists splits but no dividends; its returns leave dividends out"]
    return [f"{who}; its prices are adjusted here for the splits and dividends it lists"]


def _fit_dividends(history: LongBars, dividend: Array, splits: Splits, given: Array, ledger: RepairLog) -> Array:
    """[R] log steps that the adjusted close lacks (+) or has too much (-) at each dividend."""
    rows = np.flatnonzero((dividend > 0) & ~history.first)
    rows = rows[given[rows] | ~_left_out(history, rows, splits)[history.code[rows]]]
    close, cash = history.values["close"], dividend[rows]
    before = close[rows - 1] * np.exp(-splits.as_traded[rows])
    with np.errstate(invalid="ignore", divide="ignore"):
        usual = -np.log(1 - cash / before)  # NaN or infinite for a dividend of the whole price
    reinvested = np.log1p(cash / close[rows])
    large = cash > SPECIAL * before
    factor = history.values.get("adj_close", close) / close
    in_file = history.log_steps(factor)[rows] + splits.missing[rows] - splits.as_traded[rows]
    vendors = given[rows]
    events = _Events(*(part[vendors] for part in (rows, cash, large, in_file, usual, reinvested)))
    right = reinvested.copy()
    right[vendors] = np.where(
        _judge(events, history, ledger), np.where(events.large, events.reinvested, events.usual), events.in_file
    )
    at = rows[~vendors]
    kind = "dividends applied to prices as traded"
    ledger.repair(kind, history.names(at), history.date[at], "dividend", cash[~vendors], "in adj_close once")
    steps = np.zeros(len(history))
    steps[rows] = right - in_file
    return steps


def _left_out(history: LongBars, rows: Array, splits: Splits) -> Array:
    """[N] True where the closes of a name before its last dividend are adjusted for its dividends already.

    Prices as traded are in whole cents (times the later splits, where the closes are adjusted for these); prices adjusted for
    dividends are not.
    """
    names = len(history.tickers)
    last = np.full(names, -1)
    np.maximum.at(last, history.code[rows], rows)
    before = np.arange(len(history)) < last[history.code]
    cents = history.values["close"] * np.exp(history.sum_after(splits.in_closes)) * 100
    whole = np.abs(cents - np.round(cents)) <= 0.02 + 1e-6 * cents
    bars, in_cents = (np.bincount(history.code[rows], minlength=names) for rows in (before, before & whole))
    as_traded = np.bincount(history.code, splits.as_traded != 0, minlength=names) > 0
    return (in_cents < WHOLE_CENTS * bars) & ~as_traded


class _Events(NamedTuple):
    """The dividends of a file with an adjusted close [events]."""

    rows: Array
    """Their rows."""
    cash: Array
    """Their amounts a share."""
    large: Array
    """Above `SPECIAL` of the price: the two formulas differ, and the reinvestment is right."""
    in_file: Array
    """The log step of adj_close / close on the day."""
    usual: Array
    """The step by the vendors' formula."""
    reinvested: Array
    """The step of a reinvestment at the ex-day's close."""


def _judge(events: _Events, history: LongBars, ledger: RepairLog) -> Array:
    """[events] True where the step in the file is certainly wrong; other odd steps are listed as suspicions."""
    rows, cash, large, in_file, usual, reinvested = events
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
        ledger.repair(kind, history.names(at), history.date[at], "dividend", cash[which], "in adj_close once")
    unclear = tells & ~lacking & ~twice & ~special
    ledger.suspect(
        "adj_close and the listed dividend part",
        history.names(rows[unclear]),
        history.date[rows[unclear]],
        (
            f"a dividend of {paid:g} is {np.expm1(should):.2%} of the price, adj_close moves by {np.expm1(does):.2%}"
            for paid, should, does in zip(cash[unclear], reinvested[unclear], in_file[unclear], strict=True)
        ),
    )
    return lacking | twice | special
