"""Masks for impossible bars and volumes and for prices carried forward to the end; certain errors are repaired."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from finpod.market.long_bars import LongBars, RepairLog
from finpod.measures import Array

_PRICES = ("open", "high", "low", "close", "adj_close")
CENT = 0.006
"""Distance that a price may lie outside high and low: a cent, rounded."""

CALM, WINDOW, CERTAIN = 0.05, 20, 5
"""A change of unit in the volume: largest return on its day, bars on each side over which the level must differ, and bars on
each side from which the digits of the volume prove the unit."""

STALE, RARELY = 5, 2
"""Sessions without volume at the last price, to the end, that are a price carried forward; and how many times the longest
such spell before them they must last, as some assets trade rarely."""
EQUAL_CLOSES = 10
"""Equal closes to the end that are suspicious where no volume proves a trade."""
WHOLE_MARKET = 3
"""Assets from which a session that only repeats the one before is taken as carried forward as a whole."""


class Mask(NamedTuple):
    """A check that masks what it finds."""

    kind: str
    column: str
    """Column that is named in the log."""
    where: Callable[[dict[str, Array], str], Array]
    """(columns, column) -> [R] bool."""
    needs: tuple[str, ...] = ()
    """Columns besides this one without which there is no check."""
    whole_bar: bool = True
    """Whether the bar goes; else only this column becomes NaN."""


def _above(values: dict[str, Array]) -> Array:
    return values["high"] * (1 + 1e-4) + CENT


def _below(values: dict[str, Array]) -> Array:
    return values["low"] * (1 - 1e-4) - CENT


def _outside(values: dict[str, Array], column: str) -> Array:
    return (values[column] > _above(values)) | (values[column] < _below(values))


IMPOSSIBLE = (
    *(
        Mask("bars masked, a price was not positive", price, lambda values, c: (values[c] <= 0) | np.isinf(values[c]))
        for price in _PRICES
    ),
    Mask("bars masked, no adjusted close", "adj_close", lambda values, c: values["lacks_adj_close"]),
    Mask("bars masked, high below low", "high", lambda values, c: _above(values) < _below(values), needs=("low",)),
    Mask("bars masked, close outside high and low", "close", _outside, needs=("high", "low")),
    Mask("opens masked, outside high and low", "open", _outside, needs=("high", "low"), whole_bar=False),
    Mask(
        "volumes masked, negative or infinite",
        "volume",
        lambda values, c: (values[c] < 0) | np.isinf(values[c]),
        whole_bar=False,
    ),
)
"""The checks of single bars, in the order in which they are made; a bar that went is not checked again."""


def mask_impossible(bars: LongBars, log: RepairLog) -> LongBars:
    """The bars without those that cannot be (see `IMPOSSIBLE`).

    A missing adj_close is a fault of a bar only if its asset has some.
    """
    values = dict(bars.values)
    if "adj_close" in values:
        missing = np.isnan(values["adj_close"])
        values["lacks_adj_close"] = missing & (bars.per_asset(~missing) > 0)[bars.code]
    gone = np.zeros(len(bars), dtype=bool)
    for check in IMPOSSIBLE:
        if not {check.column, *check.needs} <= values.keys():
            continue
        where = check.where(values, check.column) & ~gone
        log.mask(check.kind, bars, where, check.column)
        if check.whole_bar:
            gone |= where
        elif where.any():
            bars = bars.with_values(**{check.column: np.where(where, np.nan, bars.values[check.column])})
    return bars.without(gone)


def mask_volumes(bars: LongBars, log: RepairLog) -> LongBars:
    """Mask volumes of zero on bars whose price moved, and mend or mask those whose unit changes midway.

    A jump to a hundred times the volume (or another power of ten, or down) without a move of the price, that lasts, is a
    change of unit. If every volume on one side has so many zeros more than on the other, that side is divided; if not,
    the shorter side is masked. A volume of zero on a bar with one price only is left: nobody may have traded.
    """
    values = bars.values
    if "volume" not in values:
        return bars
    prices = [values[column] for column in ("open", "high", "low", "close") if column in values]
    if len(prices) > 1:
        moved = np.fmax.reduce(prices) > np.fmin.reduce(prices)
    else:
        moved = ~bars.first & (values["close"] != bars.previous(values["close"]))
    silent = (values["volume"] == 0) & moved
    log.mask("volumes masked, zero although the price moved", bars, silent, "volume")
    bars = bars.with_values(volume=np.where(silent, np.nan, values["volume"]))
    for rows, scale in _changes_of_unit(bars):
        was = bars.values["volume"]
        volume = was.copy()
        volume[rows] = was[rows] / scale
        kind = "volumes masked, perhaps in another unit"
        if np.isfinite(scale):
            kind = f"volumes divided by {scale:g}, in another unit"
        became = volume[rows] if np.isfinite(scale) else "masked"
        log.repair(kind, bars.names(rows), bars.date[rows], "volume", was[rows], became)
        bars = bars.with_values(volume=volume)
    return bars


def _changes_of_unit(bars: LongBars) -> Iterator[tuple[slice, float]]:
    """Rows whose volume is `scale` times too large; NaN where that is likely but not certain."""
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.log10(bars.values["volume"])
        level[np.isinf(level)] = np.nan
        leap = level - bars.previous(level)
        close = bars.values.get("adj_close", bars.values["close"])
        calm = np.abs(close / bars.previous(close) - 1) < CALM
    rows = np.flatnonzero((np.abs(leap) > 1.3) & calm)
    rows = rows[np.fmin(rows - bars.start[rows], bars.stop[rows] - rows) >= CERTAIN]
    steps = np.arange(CERTAIN)
    near = np.median(level[rows[:, None] + steps], axis=1) - np.median(level[rows[:, None] - 1 - steps], axis=1)
    powers = np.round(near)
    likely = (np.abs(powers) >= 2) & (np.abs(near - powers) <= 0.4)
    for row, power in zip(rows[likely], powers[likely], strict=True):
        start, stop = int(bars.start[row]), int(bars.stop[row])
        wide = np.nanmedian(level[row : min(row + WINDOW, stop)]) - np.nanmedian(level[max(row - WINDOW, start) : row])
        if not abs(wide - power) <= 0.6:
            continue
        before, after = slice(start, int(row)), slice(int(row), stop)
        larger, smaller = (after, before) if power > 0 else (before, after)
        proven = _zeros(bars, larger) >= 3 and _zeros(bars, larger) - _zeros(bars, smaller) == abs(power)
        shorter = min(before, after, key=lambda part: part.stop - part.start)
        yield (larger, 10.0 ** abs(power)) if proven else (shorter, np.nan)


def _zeros(bars: LongBars, part: slice) -> int:
    """Zeros at the end of every volume of some bars."""
    volume = bars.values["volume"][part]
    volume = volume[volume > 0]
    if not len(volume) or (volume != np.round(volume)).any():
        return 0
    common = str(int(np.gcd.reduce(volume.astype(np.int64))))
    return len(common) - len(common.rstrip("0"))


def mask_stale_tails(bars: LongBars, dates: Array, log: RepairLog) -> tuple[LongBars, Array]:
    """The bars without those at the end of an asset that carry its last price forward, and the dates [T] that are left.

    Such a bar has no volume and the prices of the bar before it (open, high and low may also be missing or equal to the
    close). The tail of an asset is masked from its first such bar if it lasts `STALE` sessions, and more than `RARELY` times
    as long as any such spell before it. Sessions at the end on which every bar of the market is such a bar are masked
    whatever their number, and their dates are dropped. Assets without any positive volume are left alone, as
    their volumes say nothing. Equal closes to the end that no volume proves or disproves are suspicions.
    """
    close = bars.values["close"]
    volume = bars.values.get("volume", np.full(len(bars), np.nan))
    session = np.unique(bars.date.astype("datetime64[D]"), return_inverse=True)[1]
    trades = (bars.per_asset(volume > 0) > 0)[bars.code]
    same = close == bars.previous(close)
    idle = same & ~(volume > 0)
    for price in (bars.values[column] for column in ("open", "high", "low") if column in bars.values):
        idle &= np.isnan(price) | (price == close) | (price == bars.previous(price))
    tail, length, earlier = _tails(bars, idle & trades, session)
    empty = bars.per_asset(tail & (volume == 0)) > 0
    masked = tail & (empty & (length >= STALE) & (length > RARELY * earlier))[bars.code]
    proven = idle & (volume == 0) & trades & (earlier == 0)[bars.code]
    if (last := _last_live_session(bars, idle, proven, session)) is not None:
        masked |= session > last
        dates = dates[dates <= bars.date[session == last].max()]
    log.mask("bars masked, the last price carried forward", bars, masked, "close")
    unproven = (same & ~((volume > 0) & (volume != bars.previous(volume))))[~masked]
    bars, session = bars.without(masked), session[~masked]
    _suspect_equal_closes(bars, unproven, session, log)
    return bars, dates


def _tails(bars: LongBars, idle: Array, session: Array) -> tuple[Array, Array, Array]:
    """The idle rows [R] bool at the end of each asset, the sessions [N] that they fill, and those of the longest spell before.

    `session` [R] numbers the sessions. The first bar of an asset must not be idle.
    """
    last_live = np.maximum.accumulate(np.where(idle, 0, np.arange(len(bars))))
    spell = session - session[last_live]
    tail = idle & (last_live == last_live[bars.stop - 1])
    length, earlier = np.zeros((2, len(bars.tickers)), dtype=int)
    np.maximum.at(length, bars.code[tail], spell[tail])
    np.maximum.at(earlier, bars.code[~tail], spell[~tail])
    return tail, length, earlier


def _last_live_session(bars: LongBars, idle: Array, proven: Array, session: Array) -> int | None:
    """The last session with a bar that is not idle; None if no session follows, or fewer than `WHOLE_MARKET` assets prove it.

    An asset proves it by the rows `proven`, if its first bar is before that session: prices that never moved prove nothing.
    """
    last = int(session[~idle].max())
    assets = np.unique(bars.code[proven & (session > last) & (session[bars.start] < last)])
    return last if len(assets) >= WHOLE_MARKET else None


def _suspect_equal_closes(bars: LongBars, unproven: Array, session: Array, log: RepairLog) -> None:
    tail, length, _ = _tails(bars, unproven, session)
    last = _last_live_session(bars, unproven, unproven, session)
    long = length + 1 >= EQUAL_CLOSES
    if last is not None:
        long[bars.code[session > last]] = True
    rows = np.flatnonzero(tail & ~np.r_[False, tail[:-1]] & long[bars.code])
    sentence = "the close stays at {:g} to the end; perhaps carried forward after the last trade"
    sentences = (sentence.format(close) for close in bars.values["close"][rows])
    log.suspect("closes that stay the same to the end", bars.names(rows), bars.date[rows], sentences)
