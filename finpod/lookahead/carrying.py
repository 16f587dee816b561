"""Copies of the market's later rows among what a strategy holds: prices, returns, or statistics over all rows."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from finpod.lookahead.dated import by_date, said_of_later
from finpod.lookahead.matching import FEWEST, first_copied, is_among, is_copied
from finpod.lookahead.reach import is_numeric, reachable
from finpod.lookahead.tables import Table, tables_of
from finpod.market.data import MarketData, as_date
from finpod.market.extra import column_of
from finpod.measures import Array
from finpod.strategy import FeatureTable, MarketView

FEW = 8
"""Numbers, at most, of an attribute that may hold statistics over all names: one number of each."""
SAMPLE, SHARE = 512, 0.1
"""Of so many values of an array, this share must be the market's before it is looked at closely."""
ROUND = 3
"""Numbers of so many digits tell nothing: they are anybody's."""
MOVES = {1: 60, 5: 300}
"""Sessions that a figure may look ahead, and how many figures it takes to tell that from chance."""
TIED = 0.6
"""Correlation with coming moves that no honest figure has; the sign of a coming return has 0.8."""


class Copy(NamedTuple):
    """Something that holds what is known only later."""

    path: str
    """Where the strategy has it."""
    what: str
    """What it is, with its shape."""
    is_market: bool = False
    """Whether it is a whole market."""


class Copies:
    """Looks for the values of one market in what a strategy holds, to the seven digits of float32.

    A copy is `RUN` sessions of a name, or `FEWEST` names of a session, that lie side by side in an array, Series, frame,
    tensor, list or dict as they do in the prices, volumes, simple or logarithmic returns, or in their means, deviations,
    extremes and quantiles over all rows; such a statistic over all names and rows, alone; an array with one row for each
    session, whatever it holds; what is said of names by later dates (`finpod/lookahead/dated.py`); figures that go with
    coming moves of the market; or a market, or a view, that goes on beyond the day. What lies at or before
    `trained_until` a strategy may hold.
    """

    def __init__(self, market: MarketData, trained_until: str | None = None, homes: tuple[str, ...] = ()) -> None:
        self._market, self._homes = market, homes
        until = None if trained_until is None else as_date(trained_until) + np.timedelta64(1, "D")
        self._trained = -1 if until is None else int(np.searchsorted(market.dates, until)) - 1

    def held_by(self, root: Any, row: int) -> Iterator[Copy]:
        """What of the market after `row` a strategy, or functions, can get at; of each attribute the first."""
        known = max(row, self._trained)
        if known >= len(self._market.dates) - 1:
            return
        found: set[str] = set()
        for path, value in reachable(root, self._homes, numbers=True):
            if path.partition("[")[0] not in found and (what := self._told(value, known)):
                found.add(path.partition("[")[0])
                yield Copy(path, what, isinstance(value, (MarketData, FeatureTable)))

    def _told(self, value: Any, known: int) -> str | None:
        if isinstance(value, (float, np.floating)):
            found = self._by_single(np.array([value]), known)
            return found and f"{type(value).__name__} with {found}"
        day = self._market.dates[known]
        if isinstance(value, MarketView):
            return f"a view of {value.date!s:.10}" if value.date > day else None
        market = value._market if isinstance(value, FeatureTable) else value
        if isinstance(market, MarketData):
            until = market.dates[-1]
            return f"a market {list(market.shape)} up to {until!s:.10}" if until > day else None
        array = _numbers(value)
        dated = (
            None if isinstance(value, (np.ndarray, torch.Tensor)) else said_of_later(value, day, self._market.tickers)
        )
        if array is None:
            return dated and f"{type(value).__name__} with {dated}"
        if array.size < FEWEST:
            found = dated or self._by_single(array, known)
            return found and f"{type(value).__name__} {list(array.shape)} with {found}"
        with np.errstate(over="ignore"):
            found = (
                self._by_dates(value, day)
                or (None if isinstance(value, torch.nn.Parameter) else self._by_shape(array, known))
                or self._by_value(array.astype(np.float32), known)
                or dated
                or self._by_single(array, known)
                or self._by_move(value, array, known)
            )
        return found and f"{type(value).__name__} {list(array.shape)} with {found}"

    def _by_dates(self, value: Any, day: np.datetime64) -> str | None:
        """A frame with columns by ticker and rows of later dates, with something in them."""
        if not hasattr(value, "select_dtypes") or type(value.index).__name__ != "DatetimeIndex":
            return None
        own = [column for column in value.columns if column in self._market.tickers]
        later = value.loc[value.index.tz_localize(None) > day, own]
        if len(own) < max(2, len(value.columns) / 2) or not _tells(_numbers(later)):
            return None
        return f"rows of its names up to {value.index.max():%Y-%m-%d}"

    def _by_shape(self, array: Array, known: int) -> str | None:
        """One row for each session of this market, with something in the later ones."""
        days, names = self._market.shape
        if min(days, names) < 2 or days == names or not {days, names} <= set(array.shape):
            return None
        if not _tells(np.take(array, range(known + 1, days), axis=array.shape.index(days))):
            return None
        return f"a row for each session up to {self._market.dates[-1]!s:.10}"

    def _by_move(self, value: Any, array: Array, known: int) -> str | None:
        """Figures of later sessions that go with what the market does after each of them."""
        dates = self._market.dates
        for days, numbers in by_date(value):
            rows = np.searchsorted(dates, days).clip(max=len(dates) - 1)
            there = (dates[rows] == days) & (rows > known)
            if said := self._goes_with(numbers[there], rows[there]):
                return said
        if array.ndim == 1 and len(dates) - 1 <= len(array) <= len(dates) and not isinstance(value, Mapping):
            return self._goes_with(array[known + 1 :].astype(np.float64), np.arange(known + 1, len(array)))
        return None

    def _goes_with(self, numbers: Array, rows: Array) -> str | None:
        for ahead, least in MOVES.items():
            fits = rows + ahead < len(self._market.dates)
            for moves in self._moves(ahead):
                own, coming = numbers[fits], moves[rows[fits]]
                both = np.isfinite(own) & np.isfinite(coming)
                if both.sum() < least or min(np.ptp(own[both]), np.ptp(coming[both])) == 0:
                    continue
                if abs(np.corrcoef(own[both], coming[both])[0, 1]) > TIED:
                    return f"what goes with the market's move over the next {ahead} sessions"
        return None

    def _moves(self, ahead: int) -> list[Array]:
        """[T - ahead] returns of the benchmark, and of names on average, over the sessions after each."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a session without any name
            names = np.nanmean(self._market.close[ahead:] / self._market.close[:-ahead] - 1, axis=1)
        index = self._market.benchmark_close
        return [index[ahead:] / index[:-ahead] - 1, names]

    def _by_value(self, array: Array, known: int) -> str | None:
        """Prices, returns or statistics of later rows in an array of float32."""
        values = np.unique(array[np.isfinite(array) & (array != 0)])
        sample = values[np.linspace(0, len(values) - 1, min(len(values), SAMPLE)).astype(int)]
        if (self._known_from(sample) >= 0).sum() < max(FEWEST, SHARE * len(sample)):
            return None
        fresh = (self._known_from(values) > known).sum() >= FEWEST
        for table in self._tables if fresh else ():
            if (row := first_copied(array, values, table.single, known)) is not None:
                return f"the {table.name} of {self._market.dates[row]!s:.10}"
        side_by_side = FEWEST if fresh else 2 * FEWEST  # a quantile may be a price of the past
        for table, (each, _) in zip(self._tables, self._statistics, strict=True):
            for name, whole in each.items():
                if is_copied(array, values, whole, partial(_statistic, table, name, known + 1), side_by_side):
                    return f"the {name} of each name's {table.name} over all rows, up to {self._market.dates[-1]!s:.10}"
        return None

    def _by_single(self, array: Array, known: int) -> str | None:
        """One number that is a statistic over all rows of all names, of another value until the day."""
        if array.size > FEW or array.dtype.kind != "f":
            return None
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float32)
        for number in numbers[np.isfinite(numbers) & (numbers != 0)]:
            near = [found for found in self._pooled if not _is_round(number) and _is_nearly(number, found[-1])]
            if near and any((table.single[: known + 1] == number).any() for table in self._tables):
                continue
            for table, name, _ in near:
                if not _is_nearly(number, table.over(known + 1)[1].get(name, np.nan)):
                    whose = "" if table.values.shape[1] == 1 else "all names' "
                    return f"the {name} of {whose}{table.name} over all rows, up to {self._market.dates[-1]!s:.10}"
        return None

    @cached_property
    def _statistics(self) -> tuple[tuple[dict[str, Array], dict[str, float]], ...]:
        """Of each table, over all rows: those of each name, and those of all together."""
        return tuple(table.over() for table in self._tables)

    @cached_property
    def _pooled(self) -> list[tuple[Table, str, float]]:
        """Statistics over all names, with what they are of."""
        return [
            (table, name, number)
            for table, (_, together) in zip(self._tables, self._statistics, strict=True)
            # Volumes are whole numbers; columns of the user's own are often scaled, and their statistics alike on any rows.
            if table.name != "volume" and column_of(table.name) is None
            for name, number in together.items()
        ]

    @cached_property
    def _tables(self) -> tuple[Table, ...]:
        return tables_of(self._market)

    def _known_from(self, values: Array) -> Array:
        """[V] the first row with each of these numbers, -1 for one that the market does not have, or that is round."""
        numbers, first = self._sorted
        rows = first[np.searchsorted(numbers, values).clip(max=len(numbers) - 1)]
        return np.where(is_among(values, numbers) & ~_is_round(values), rows, -1)

    @cached_property
    def _sorted(self) -> tuple[Array, Array]:
        """Every number that may be copied [V], float32, sorted and distinct, and the first row that has it [V]."""
        last = len(self._market.dates) - 1
        numbers, rows = [], []
        for table, (each, _) in zip(self._tables, self._statistics, strict=True):
            names = table.values.shape[1]
            numbers += [table.single.ravel(), *each.values()]
            rows += [np.repeat(np.arange(last + 1), names), np.full(len(each) * names, last)]
        together, row = np.concatenate(numbers).astype(np.float32), np.concatenate(rows)
        there = np.isfinite(together) & (together != 0)
        bits = together[there].view(np.uint32).astype(np.uint64)
        ordered = np.where(bits >> 31, bits ^ 0xFFFFFFFF, bits | 0x80000000)  # in the order of the numbers
        pairs = np.sort(ordered << np.uint64(32) | row[there].astype(np.uint64))  # several times as fast as argsort
        ordered = pairs >> np.uint64(32)
        pairs = pairs[np.r_[True, ordered[1:] != ordered[:-1]]]
        ordered = (pairs >> np.uint64(32)).astype(np.uint32)
        bits = np.where(ordered >> 31, ordered & 0x7FFFFFFF, ~ordered).astype(np.uint32)
        return bits.view(np.float32), (pairs & np.uint64(0xFFFFFFFF)).astype(int)


def _tells(array: Array | None) -> bool:
    """Whether there are two different numbers in it."""
    finite = np.array([]) if array is None else array[np.isfinite(array)]
    return bool(finite.size) and bool(finite.min() != finite.max())


def _statistic(table: Table, name: str, rows: int) -> Array:
    return table.over(rows)[0][name]


def _is_nearly(number: Any, other: float) -> bool:
    """Whether it is the other one, but for what adding up in single precision loses."""
    return bool(abs(number - other) <= 1e-6 * abs(other))


def _is_round(values: Any) -> Any:
    """Whether numbers, none of them zero, have few digits."""
    digits = np.abs(values) / 10 ** (np.floor(np.log10(np.abs(values))) - ROUND + 1)
    return np.abs(digits - digits.round()) <= 1e-3


def _numbers(value: Any) -> Array | None:
    """[...] what numbers a thing holds, None if it is no array of numbers."""
    try:
        if isinstance(value, torch.Tensor):
            return value.detach().to("cpu", torch.float64).numpy()
        if hasattr(value, "select_dtypes"):
            return value.select_dtypes("number").to_numpy(np.float64, na_value=np.nan)
        if type(value).__module__.startswith("pandas"):
            value = value.to_numpy()
        if isinstance(value, np.ndarray):
            return value if value.dtype.kind in "fiub" else None
        if isinstance(value, (Mapping, list, tuple, set, frozenset, deque)) and is_numeric(value):
            return np.array(list(value.values() if isinstance(value, Mapping) else value), dtype=np.float64)
    except (TypeError, ValueError, AttributeError, RuntimeError):  # of another kind after all
        return None
    return None
