"""Prices carried forward to the end of a series: masked where the volumes prove it, listed as a suspicion where they do not."""

from __future__ import annotations

import numpy as np

from finpod.market.long_bars import LongBars
from finpod.market.repairs import RepairLog
from finpod.measures import Array

STALE = 5
"""Sessions at the end of a name, without volume and at the last price, from which its bars are taken as carried forward."""
RARELY = 2
"""A name that went without trades before must do so for more than this many times its longest such spell."""
EQUAL_CLOSES = 10
"""Equal closes at the end of a name that are a suspicion where no volume proves a trade."""
WHOLE_MARKET = 3
"""Names from which a session that only repeats the one before is taken as carried forward as a whole."""


def mask_stale_tails(history: LongBars, dates: Array, ledger: RepairLog) -> tuple[LongBars, Array]:
    """The history without the bars at the end of a name that carry its last price forward, and the dates [T] that are left.

    Such a bar has no volume and the prices of the bar before it (open, high and low may also be missing or equal to the
    close). The tail of a name is masked from its first such bar if it lasts `STALE` sessions, and more than `RARELY` times as
    long as any such spell before it: some names trade rarely. Sessions at the end on which every bar of the market is such a
    bar are masked whatever their number, and their dates are dropped. Names without any positive volume are left alone, as
    their volumes say nothing. Equal closes to the end that no volume proves or disproves are suspicions.
    """
    close, names = history.values["close"], len(history.tickers)
    volume = history.values.get("volume", np.full(len(history), np.nan))
    session = np.unique(history.date.astype("datetime64[D]"), return_inverse=True)[1]
    trades = (np.bincount(history.code, volume > 0, minlength=names) > 0)[history.code]
    same = close == history.previous(close)
    idle = same & _without_new_price(history) & ~(volume > 0)
    tail, length, earlier = _tails(history, idle & trades, session)
    empty = np.bincount(history.code, tail & (volume == 0), minlength=names) > 0
    masked = tail & (empty & (length >= STALE) & (length > RARELY * earlier))[history.code]
    proven = idle & (volume == 0) & trades & (earlier == 0)[history.code]
    if (last := _last_live_session(history, idle, proven, session)) is not None:
        masked |= session > last
        dates = dates[dates <= history.date[session == last].max()]
    rows = np.flatnonzero(masked)
    kind = "bars masked, the last price carried forward"
    ledger.repair(kind, history.names(rows), history.date[rows], "close", close[rows])
    unproven = same & ~((volume > 0) & (volume != history.previous(volume)))
    _suspect(history.without(masked), unproven[~masked], session[~masked], ledger)
    return history.without(masked), dates


def _without_new_price(history: LongBars) -> Array:
    """[R] bool: open, high and low are missing, equal to the close or equal to those of the bar before."""
    close, same = history.values["close"], np.ones(len(history), dtype=bool)
    for column in ("open", "high", "low"):
        if column in history.values:
            price = history.values[column]
            same &= np.isnan(price) | (price == close) | (price == history.previous(price))
    return same


def _tails(history: LongBars, idle: Array, session: Array) -> tuple[Array, Array, Array]:
    """The idle rows [R] bool at the end of each name, the sessions [N] that they fill, and those of the longest spell before.

    `session` [R] numbers the sessions; the first bar of a name must not be idle.
    """
    last_live = np.maximum.accumulate(np.where(idle, 0, np.arange(len(history))))
    spell = session - session[last_live]
    tail = idle & (last_live == last_live[history.stop - 1])
    length, earlier = np.zeros((2, len(history.tickers)), dtype=int)
    np.maximum.at(length, history.code[tail], spell[tail])
    np.maximum.at(earlier, history.code[~tail], spell[~tail])
    return tail, length, earlier


def _last_live_session(history: LongBars, idle: Array, proven: Array, session: Array) -> int | None:
    """The last session with a bar that is not idle; None if no session follows, or no `WHOLE_MARKET` names prove it.

    A name proves it by the rows `proven`, if its first bar is before that session: prices that never moved prove nothing.
    """
    last = int(session[~idle].max())
    names = np.unique(history.code[proven & (session > last) & (session[history.start] < last)])
    return last if len(names) >= WHOLE_MARKET else None


def _suspect(history: LongBars, unproven: Array, session: Array, ledger: RepairLog) -> None:
    """List the tails of equal closes of which no volume proves a trade."""
    tail, length, _ = _tails(history, unproven, session)
    last = _last_live_session(history, unproven, unproven, session)
    long = length + 1 >= EQUAL_CLOSES
    if last is not None:
        long[history.code[session > last]] = True
    rows = np.flatnonzero(tail & ~np.r_[False, tail[:-1]] & long[history.code])
    close = history.values["close"]
    ledger.suspect(
        "closes that stay the same to the end",
        history.names(rows),
        history.date[rows],
        (f"the close stays at {close[row]:g} to the end; perhaps carried forward after the last trade" for row in rows),
    )
