"""Bars and volumes that cannot be: masked, or repaired where it is certain what they were."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from finpod.market.long_bars import LongBars
from finpod.market.repairs import RepairLog
from finpod.measures import Array

_PRICES = ("open", "high", "low", "close", "adj_close")
CENT = 0.006
"""What a price may lie outside high and low: a cent, rounded."""
UNIT_JUMP = 100.0
"""Smallest power of ten that is taken for a change of unit in the volume."""
CALM = 0.05
"""Return on the day of a change of unit; a day with a larger one may have had the volume."""
WINDOW = 20
"""Bars on each side over which the level of the volume must differ."""
CERTAIN = 5
"""Bars on each side from which the digits of the volume prove its unit."""


def mask_impossible(history: LongBars, ledger: RepairLog) -> LongBars:
    """The history without the bars that cannot be: a price that is not positive, high below low, a close outside both.

    An open outside high and low is masked alone, as is a volume that is negative or infinite.
    """
    values = history.values
    prices = [column for column in _PRICES if column in values]
    wrong = {column: (values[column] <= 0) | np.isinf(values[column]) for column in prices}
    gone = np.zeros(len(history), dtype=bool)
    for column, where in wrong.items():
        gone |= _note(ledger, history, "bars masked, a price was not positive", where & ~gone, column)
    if "adj_close" in values:  # some names may have none at all, which is no fault of a bar
        some = np.bincount(history.code, ~np.isnan(values["adj_close"]), minlength=len(history.tickers)) > 0
        lacking = np.isnan(values["adj_close"]) & some[history.code]
        gone |= _note(ledger, history, "bars masked, no adjusted close", lacking & ~gone, "adj_close")
    if "high" in values and "low" in values:
        high, low = values["high"] * (1 + 1e-4) + CENT, values["low"] * (1 - 1e-4) - CENT
        gone |= _note(ledger, history, "bars masked, high below low", (high < low) & ~gone, "high")
        outside = (values["close"] > high) | (values["close"] < low)
        gone |= _note(ledger, history, "bars masked, close outside high and low", outside & ~gone, "close")
        if "open" in values:
            outside = (values["open"] > high) | (values["open"] < low)
            _mask(ledger, history, "opens masked, outside high and low", outside & ~gone, "open")
    if "volume" in values:
        impossible = (values["volume"] < 0) | np.isinf(values["volume"])
        _mask(ledger, history, "volumes masked, negative or infinite", impossible & ~gone, "volume")
    return history.without(gone)


def mask_volumes(history: LongBars, ledger: RepairLog) -> None:
    """Mask volumes of zero on bars whose price moved, and mend or mask those whose unit changes midway.

    A jump to a hundred times the volume (or another power of ten, or down) without a move of the price, that lasts, is a
    change of unit. If every volume on one side has so many zeros more than on the other, that side is divided; if not,
    the shorter side is masked. A volume of zero on a bar with one price only is left: nobody may have traded.
    """
    if "volume" not in history.values:
        return
    values = history.values
    prices = [values[column] for column in ("open", "high", "low", "close") if column in values]
    if len(prices) > 1:
        moved = np.fmax.reduce(prices) > np.fmin.reduce(prices)
    else:
        moved = ~history.first & (values["close"] != history.previous(values["close"]))
    _mask(ledger, history, "volumes masked, zero although the price moved", (values["volume"] == 0) & moved, "volume")
    for rows, scale in _changes_of_unit(history):
        was = history.values["volume"]
        history.values["volume"] = was.copy()
        history.values["volume"][rows] = was[rows] / scale
        factor = f"divided by {scale:g}" if scale > 1 else f"multiplied by {1 / scale:g}"
        certain = np.isfinite(scale)
        ledger.repair(
            f"volumes {factor}, in another unit" if certain else "volumes masked, perhaps in another unit",
            history.names(rows),
            history.date[rows],
            "volume",
            was[rows],
            history.values["volume"][rows] if certain else "masked",
        )


def _changes_of_unit(history: LongBars) -> Iterator[tuple[slice, float]]:
    """Rows whose volume is `scale` times too large; NaN where that is likely but not certain."""
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.log10(history.values["volume"])
        level[np.isinf(level)] = np.nan
        leap = level - history.previous(level)
        close = history.values.get("adj_close", history.values["close"])
        calm = np.abs(close / history.previous(close) - 1) < CALM
    rows = np.flatnonzero((np.abs(leap) > 1.3) & calm)
    rows = rows[np.fmin(rows - history.start[rows], history.stop[rows] - rows) >= CERTAIN]
    steps = np.arange(CERTAIN)
    near = _median(level[rows[:, None] + steps]) - _median(level[rows[:, None] - 1 - steps])
    powers = np.round(near)
    likely = (np.abs(powers) >= np.log10(UNIT_JUMP)) & (np.abs(near - powers) <= 0.4)
    for row, power in zip(rows[likely], powers[likely], strict=True):
        start, stop = int(history.start[row]), int(history.stop[row])
        wide = np.nanmedian(level[row : min(row + WINDOW, stop)]) - np.nanmedian(level[max(row - WINDOW, start) : row])
        if not abs(wide - power) <= 0.6:
            continue
        before, after = slice(start, int(row)), slice(int(row), stop)
        larger, smaller = (after, before) if power > 0 else (before, after)
        proven = _zeros(history, larger) >= 3 and _zeros(history, larger) - _zeros(history, smaller) == abs(power)
        shorter = min(before, after, key=lambda part: part.stop - part.start)
        yield (larger, 10.0 ** abs(power)) if proven else (shorter, np.nan)


def _median(level: Array) -> Array:
    """[n] medians of the rows of [n, k], k odd; NaN for a row that holds one."""
    return np.sort(level, axis=1)[:, level.shape[1] // 2] + 0.0 * level.sum(axis=1)


def _zeros(history: LongBars, part: slice) -> int:
    """Zeros at the end of every volume of some bars."""
    volume = history.values["volume"][part]
    volume = volume[volume > 0]
    if not len(volume) or (volume != np.round(volume)).any():
        return 0
    common = int(np.gcd.reduce(volume.astype(np.int64)))
    return len(str(common)) - len(str(common).rstrip("0"))


def _note(ledger: RepairLog, history: LongBars, kind: str, where: Array, column: str) -> Array:
    rows = np.flatnonzero(where)
    ledger.repair(kind, history.names(rows), history.date[rows], column, history.values[column][rows])
    return where


def _mask(ledger: RepairLog, history: LongBars, kind: str, where: Array, column: str) -> None:
    if _note(ledger, history, kind, where, column).any():
        history.values[column] = np.where(where, np.nan, history.values[column])
