"""`schedule`: training, validation and test windows of each agent of a walk-forward.

The windows of one segment, oldest session first:

    | train | purge | validation | embargo | test |

The tests of all segments cover the evaluated dates without gaps. Features look backward only, and an environment ends
with its window. So even without a purge, no training reward would depend on a session of validation. The purge is an
additional gap of at least `hold` rows, because a decision is held for `hold` rows. The embargo is the gap between
validation and test. By default, both are as many sessions as `hold` rows span.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from finpod.errors import InputError, require_number
from finpod.market.data import HOLIDAYS, DateLike, MarketData
from finpod.measures import Array
from finpod.trading.execution import build_execution


class Span(NamedTuple):
    """A length of time."""

    length: int
    """Number of units."""
    unit: str
    """'y' for years, 'm' for months, '' for sessions."""

    def move(self, sessions: Array, index: int, times: int) -> int:
        """Return the index of the first session at or after the date that lies `times` spans after sessions[index].

        Return len(sessions) if that date is after the data, and -1 if it is before the data. For years and months, a
        date up to `HOLIDAYS` before the data gives 0. Negative `times` move back.
        """
        if not self.unit:
            return min(max(index + times * self.length, -1), len(sessions))
        offset = pd.DateOffset(months=times * self.length * (12 if self.unit == "y" else 1))
        day = np.datetime64(pd.Timestamp(sessions[index]) + offset, "D")
        return -1 if day < sessions[0] - HOLIDAYS else int(np.searchsorted(sessions, day))


def as_span(length: str | int, what: str) -> Span:
    """Return the `Span` of a `length` such as '4y' (calendar years), '6m' (calendar months), 126 or '126' (sessions).
    Raises InputError, which names the argument `what`, for another form."""
    parts = re.fullmatch(r"([1-9]\d{0,5})\s*([ym]?)", str(length).strip())
    if parts is None or isinstance(length, float):
        raise InputError(f"{what} is {length!r}; write a length such as 4y, 6m or 126 (sessions)", argument=what)
    return Span(int(parts[1]), parts[2])


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Windows of one agent, each with its first and last session as text. With intraday bars, `test` has times as well.

    The returns of a test go from its first close to the first close of the next test. `decides_from` is the date of the
    last row that the first decision sees. This is the first row of the test, or with close fills, the row before it.
    """

    train: tuple[str, str]
    validation: tuple[str, str]
    test: tuple[str, str]
    decides_from: str

    @property
    def folder(self) -> str:
        """Name of the segment's folder."""
        return f"segment-{self.test[0]:.10}"


def schedule(
    market: MarketData,
    *,
    start: DateLike,
    end: DateLike | None = None,
    train: str | int = "4y",
    validation: str | int = "1y",
    test: str | int = "1y",
    hold: int = 5,
    fill: str | None = None,
    expanding: bool = False,
    purge: int | None = None,
    embargo: int | None = None,
) -> list[Segment]:
    """Return segments, oldest first. Their tests cover the sessions of [start, end] without gaps.

    `train`, `validation` and `test` are lengths; see `as_span`. With `expanding`, every training begins on the same
    day. `purge` and `embargo` are the numbers of sessions left out at the end of `train` and of `validation`. None
    stands for the sessions that `hold` rows span. Decisions are `hold` rows apart, from `start` on. Each test begins at
    a decision. If at most `hold` rows are left after a test, these rows become part of the test. Raises InputError for
    invalid lengths, a purge shorter than `hold` rows, a window with too few bars, and data that begin too late.
    """
    windows = {"train": train, "validation": validation, "test": test}
    lengths = {what: as_span(length, what) for what, length in windows.items()}
    require_number("hold", hold, 1, whole=True)
    purge, embargo = gaps(market, hold, purge, embargo)
    sessions, opening = np.unique(market.sessions, return_index=True)
    lag, (first, last) = build_execution(market, fill).lag, market.window(start, end)
    tests = _test_rows(sessions, opening, first, last, lengths["test"], hold)
    segments: list[Segment] = []
    for row, stop in zip(tests, [*tests[1:], last + 1], strict=True):
        day = int(np.searchsorted(sessions, market.sessions[row]))
        learnt, chosen = _windows(sessions, day, lengths, purge, embargo)
        for what, (begin, close) in (("training", learnt), ("validation", chosen)):
            rows = np.r_[opening, len(market.dates)][close + 1] - opening[begin] if close >= begin else 0
            if rows <= hold:
                raise InputError(
                    f"the {what} window before {sessions[day]} has {max(rows - 1, 0)} bars to trade, fewer than "
                    f"hold={hold}; choose a longer window, or a smaller hold, purge or embargo"
                )
        first_day = segments[0].train[0] if expanding and segments else str(sessions[learnt[0]])
        segment = Segment(
            train=(first_day, str(sessions[learnt[1]])),
            validation=(str(sessions[chosen[0]]), str(sessions[chosen[1]])),
            test=(_text(market.dates[row]), _text(market.dates[stop - 1])),
            decides_from=_text(market.dates[row - lag]),
        )
        segments.append(segment)
    return segments


def gaps(market: MarketData, hold: int, purge: int | None, embargo: int | None) -> tuple[int, int]:
    """Return (purge, embargo) in sessions. None is replaced by the number of sessions that `hold` rows span. Raises
    InputError for a purge shorter than this number."""
    least = math.ceil(hold / market.bars_per_session)
    purge, embargo = (least if gap is None else gap for gap in (purge, embargo))
    require_number("purge", purge, 0, whole=True)
    require_number("embargo", embargo, 0, whole=True)
    if purge < least:
        raise InputError(f"purge is {purge} sessions; hold={hold} needs at least {least} sessions", argument="purge")
    return purge, embargo


def _test_rows(sessions: Array, opening: Array, first: int, last: int, test: Span, hold: int) -> list[int]:
    """Return the first row of each test: `first` plus a multiple of `hold`. Each test has at least `hold` rows."""
    begin = int(np.searchsorted(opening, first))
    if last - first < hold:
        text = f"the sessions from {sessions[begin]} on have {last - first} bars to trade, fewer than hold={hold}"
        raise InputError(f"{text}; choose a later end, or a smaller hold")
    rows = [first]
    while (day := test.move(sessions, begin, len(rows))) < len(sessions):
        row = first + math.ceil((int(opening[day]) - first) / hold) * hold
        if last - row < hold:
            break
        if row == rows[-1]:
            text = f"test={test.length}{test.unit} has fewer bars than hold={hold}; lengthen test, or reduce hold"
            raise InputError(text, argument="test")
        rows.append(row)
    return rows


def _windows(
    sessions: Array, day: int, lengths: Mapping[str, Span], purge: int, embargo: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (first, last) session of training and (first, last) of validation, for the test that begins on `day`. The
    returned values and `day` are indices of `sessions`."""
    chosen = lengths["validation"].move(sessions, day, -1)
    learnt = lengths["train"].move(sessions, chosen, -1) if chosen >= 0 else -1
    if learnt < 0:
        train, validation = (f"{what}={lengths[what].length}{lengths[what].unit}" for what in ("train", "validation"))
        raise InputError(
            f"the data begin on {sessions[0]}, which leaves too few days for {train} and {validation} before the start "
            f"on {sessions[day]}; choose a later start or shorter windows",
            argument="start",
        )
    return (learnt, chosen - 1 - purge), (chosen, day - 1 - embargo)


def _text(date: np.datetime64) -> str:
    return str(np.datetime_as_string(date, unit="auto"))
