"""Whether an array has numbers of a table side by side, as only a copy of it has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from finpod.measures import Array

FEWEST = 3
"""Names of one session, in a row, that make a copy."""
RUN = 5
"""Sessions of one name, in a row, that make a copy."""
TRIES = 8
"""Places at which a copy is looked for in the array itself."""


def is_among(wanted: Array, values: Array) -> Array:
    """Whether each of `wanted` is one of the sorted `values`."""
    return values[np.searchsorted(values, wanted).clip(max=len(values) - 1)] == wanted


def first_copied(array: Array, values: Array, table: Array, known: int) -> int | None:
    """Row of entries of a table that an array has side by side and that did not occur until row `known`."""
    fresh = values[~np.isin(values, table[: known + 1])]
    later = table[known + 1 :]
    if len(fresh) < FEWEST:
        return None
    hit = is_among(later, fresh)
    found = next((row for row, line in _lines(later, hit) if _has(array, line)), None)
    return None if found is None else known + 1 + int(found)


def _lines(table: Array, hit: Array) -> Iterator[tuple[int, Array]]:
    """Rows, and `FEWEST` neighbours of a row or `RUN` of a column that are all hits, at a few places."""
    for row in _a_few(np.flatnonzero(hit.sum(axis=1) >= FEWEST)):
        there = np.flatnonzero(np.isfinite(table[row]))
        starts = np.flatnonzero(_runs(hit[row, there], FEWEST))
        yield from ((row, table[row, there[start : start + FEWEST]]) for start in _a_few(starts))
    for row, column in _a_few(np.argwhere(_runs(hit, RUN))):
        yield row, table[row : row + RUN, column]


def _a_few(places: Array) -> Array:
    return places[np.unique(np.linspace(0, max(len(places) - 1, 0), min(len(places), TRIES)).astype(int))]


def _runs(hit: Array, length: int) -> Array:
    """[R - length + 1, ...] whether a run of hits along the first axis begins here."""
    count = max(len(hit) - length + 1, 0)
    return np.logical_and.reduce([hit[start : start + count] for start in range(length)])


def _has(array: Array, line: Array) -> bool:
    """Whether an array has the values of a line side by side along one of its axes, in this order or the reverse."""
    if len(np.unique(line)) < FEWEST:
        return False
    return any(
        _is_in(np.moveaxis(array, axis, -1), order)
        for axis in range(array.ndim)
        if array.shape[axis] >= len(line)
        for order in (line, line[::-1])
    )


def _is_in(lines: Array, order: Array) -> bool:
    at = np.nonzero(lines[..., : lines.shape[-1] - len(order) + 1] == order[0])
    for step in range(1, len(order)):
        same = lines[(*at[:-1], at[-1] + step)] == order[step]
        at = tuple(place[same] for place in at)
    return bool(at[0].size)


def is_copied(array: Array, values: Array, statistic: Array, until: Callable[[], Array], length: int) -> bool:
    """Whether an array has a statistic [N] over all rows of names side by side, and it is another `until` the day."""
    whole, length = statistic.astype(np.float32), max(min(length, len(statistic)), FEWEST)
    hit = is_among(whole, values)
    if not _runs(hit, length).any():
        return False
    hit &= whole != until().astype(np.float32)
    starts = _a_few(np.flatnonzero(_runs(hit, length)))
    return any(_has(array, whole[start : start + length]) for start in starts)
