"""Masks impossible bars and volumes, and prices carried forward to the end; repairs errors that are certain."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from finpod.market.long_bars import LongBars, RepairLog
from finpod.measures import Array

_PRICES = ("open", "high", "low", "close", "adj_close")
CENT = 0.006
"""Largest distance by which a price may lie outside high and low: a cent, rounded."""

CALM, CERTAIN = 0.05, 5
"""Change of unit in the volume: largest return on its day, and fewest bars on each side."""
STALE, RARELY = 5, 2
"""Fewest stale sessions at the end of an asset that are masked, and how many times the longest earlier stale spell they must
exceed, since some assets trade rarely."""
EQUAL_CLOSES = 10
"""Fewest equal closes at the end that are suspicious if no volume proves a trade."""


def mask_impossible(bars: LongBars, log: RepairLog) -> LongBars:
    """Return the bars without those that are impossible; a bar is logged under the first check that it fails.

    A missing adj_close is an error only if its asset has some. An open outside high and low, and an impossible volume, are
    masked alone.
    """
    values = dict(bars.values)
    masked = np.zeros(len(bars), dtype=bool)
    for kind, column, fails, whole_bar in _impossible(bars):
        fails &= ~masked
        log.mask(kind, bars, fails, column)
        if whole_bar:
            masked |= fails
        else:
            values[column] = np.where(fails, np.nan, values[column])
    return bars.with_values(**values).without(masked)


def _impossible(bars: LongBars) -> Iterator[tuple[str, str, Array, bool]]:
    """Yield the kind, the column, the bars [R] that fail, and True if the whole bar is masked, of each check."""
    values = bars.values
    high, low = (values.get(column, np.full(len(bars), np.nan)) for column in ("high", "low"))
    above, below = high * (1 + 1e-4) + CENT, low * (1 - 1e-4) - CENT
    for column in (column for column in _PRICES if column in values):
        yield "bars masked, a price was not positive", column, (values[column] <= 0) | np.isinf(values[column]), True
    if "adj_close" in values:
        missing = np.isnan(values["adj_close"])
        has_some = (bars.per_asset(~missing) > 0)[bars.code]
        yield "bars masked, no adjusted close", "adj_close", missing & has_some, True
    if "high" in values:
        yield "bars masked, high below low", "high", above < below, True
    yield "bars masked, close outside high and low", "close", _outside(values["close"], below, above), True
    if "open" in values:
        yield "opens masked, outside high and low", "open", _outside(values["open"], below, above), False
    if "volume" in values:
        volume = values["volume"]
        yield "volumes masked, negative or infinite", "volume", (volume < 0) | np.isinf(volume), False


def _outside(prices: Array, below: Array, above: Array) -> Array:
    return (prices < below) | (prices > above)


def mask_volumes(bars: LongBars, log: RepairLog) -> LongBars:
    """Mask volumes of zero on bars whose price moved, and repair those whose unit changes midway.

    A jump to a hundred times the volume (or another power of ten, or down) without a move of the price is a change of unit
    if every volume on one side ends in that many more zeros than on the other: that side is divided. A volume of zero on a
    bar with a single price is kept: perhaps nobody traded.
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
    volume = np.where(silent, np.nan, values["volume"])
    bars = bars.with_values(volume=volume)
    for rows, scale in list(_changes_of_unit(bars)):
        was = volume[rows].copy()
        volume[rows] = was / scale
        log.repair(f"volumes divided by {scale:g}, in another unit", *bars.places(rows), "volume", was, volume[rows])
    return bars


def _changes_of_unit(bars: LongBars) -> Iterator[tuple[slice, float]]:
    """Yield rows whose volume is `scale` times too large."""
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
        zeros = _zeros(bars, larger)
        if abs(jump) >= 1.5 and zeros >= 3 and zeros - _zeros(bars, smaller) == round(abs(jump)):
            yield larger, 10.0 ** round(abs(jump))


def _zeros(bars: LongBars, part: slice) -> int:
    """Return the number of zeros at the end of every volume of some bars."""
    volume = bars.values["volume"][part]
    volume = volume[volume > 0]
    if not len(volume) or (volume != np.round(volume)).any():
        return 0
    common = str(int(np.gcd.reduce(volume.astype(np.int64))))
    return len(common) - len(common.rstrip("0"))


def mask_stale_tails(bars: LongBars, log: RepairLog) -> LongBars:
    """Return the bars without those that carry the last price forward to the end.

    A stale bar has no volume and the prices of the previous bar (open, high and low may also be missing or equal to the
    close). The stale bars at the end of an asset are masked if they fill `STALE` sessions, and more than `RARELY` times as
    many as any such spell before. Assets without any positive volume are kept. Equal closes to the end whose volumes are
    missing, zero or equal are suspicions.
    """
    close = bars.values["close"]
    volume = bars.values.get("volume", np.full(len(bars), np.nan))
    session = np.unique(bars.date.astype("datetime64[D]"), return_inverse=True)[1]
    same = close == bars.previous(close)
    stale = same & ~(volume > 0) & (bars.per_asset(volume > 0) > 0)[bars.code]
    for price in (bars.values[column] for column in ("open", "high", "low") if column in bars.values):
        stale &= np.isnan(price) | (price == close) | (price == bars.previous(price))
    tail, length, earlier = _tails(bars, stale, session)
    silent = bars.per_asset(tail & (volume == 0)) > 0
    masked = tail & (silent & (length >= STALE) & (length > RARELY * earlier))[bars.code]
    log.mask("bars masked, the last price carried forward", bars, masked, "close")
    uncertain = (same & ~((volume > 0) & (volume != bars.previous(volume))))[~masked]
    bars, session = bars.without(masked), session[~masked]
    tail, length, _ = _tails(bars, uncertain, session)
    rows = np.flatnonzero(tail & ~np.r_[False, tail[:-1]] & (length + 1 >= EQUAL_CLOSES)[bars.code])
    sentence = "the close stays at {:g} to the end; perhaps carried forward after the last trade"
    sentences = (sentence.format(price) for price in bars.values["close"][rows])
    log.suspect("closes that stay the same to the end", *bars.places(rows), sentences)
    return bars


def _tails(bars: LongBars, stale: Array, session: Array) -> tuple[Array, Array, Array]:
    """Return the stale rows [R] at the end of each asset, their number of sessions [N], and that of the longest spell before.

    `session` [R] numbers the sessions. The first bar of an asset is not stale.
    """
    last_live = np.maximum.accumulate(np.where(stale, 0, np.arange(len(bars))))
    spell = session - session[last_live]
    tail = stale & (last_live == last_live[bars.stop - 1])
    length, earlier = np.zeros((2, len(bars.tickers)), dtype=int)
    np.maximum.at(length, bars.code[tail], spell[tail])
    np.maximum.at(earlier, bars.code[~tail], spell[~tail])
    return tail, length, earlier
