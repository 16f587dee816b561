"""The tables of a market that a copy is told by, and what scalers are made of over their rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from finpod.market.data import MarketData
from finpod.measures import Array

QUANTILES = {"lower quartile": 0.25, "median": 0.5, "upper quartile": 0.75} | {
    f"{100 * share:g} % quantile": share for share in (0.005, 0.01, 0.025, 0.05, 0.1, 0.9, 0.95, 0.975, 0.99, 0.995)
}
"""What scalers scale by, and where values are commonly clipped."""


class Table(NamedTuple):
    """What a copy of prices is told by."""

    name: str
    """'close', 'return', ..."""
    values: Array
    """[T, N] float64, or [T, 1] for the benchmark; NaN where there is none."""
    single: Array
    """The same as float32."""
    quantiles: bool
    """Whether its quantiles are looked for, which costs a sort."""

    def over(self, rows: int | None = None) -> tuple[dict[str, Array], dict[str, float]]:
        """What scalers are made of over the first rows, or all: of each name, NaN for one without any; and of all together."""
        return _statistics(self.values[:rows], quantiles=self.quantiles)


def tables_of(market: MarketData) -> tuple[Table, ...]:
    """Prices, volumes, returns and extra columns of the market, as far as it has them."""
    tables = [
        ("close", market.close, True),
        ("open", market.open, True),
        ("high", market.high, False),
        ("low", market.low, False),
        ("volume", market.volume, False),
    ]
    index = market.benchmark_close[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        tables += [
            ("return", _after_first(market.close[1:] / market.close[:-1] - 1), True),
            ("logarithmic return", _after_first(np.diff(np.log(market.close), axis=0)), True),
            ("benchmark", index, False),
            ("benchmark's return", _after_first(index[1:] / index[:-1] - 1), False),
        ]
    tables += [
        (f"extra:{name}", table if table.ndim == 2 else table[:, None], False)
        for name, table in market.extra.tables.items()
        if np.isfinite(table).any()
    ]
    return tuple(
        Table(name, values, values.astype(np.float32), quantiles)
        for name, values, quantiles in tables
        if values is not None
    )


def _after_first(table: Array) -> Array:
    return np.concatenate([np.full_like(table[:1], np.nan), table])


def _statistics(table: Array, *, quantiles: bool) -> tuple[dict[str, Array], dict[str, float]]:
    """Statistics of each column [N] and of all values of a table [R, N]; NaN where there are too few."""
    there = np.isfinite(table)
    count = there.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(there, table, 0.0).sum(axis=0) / count
        squares = (np.where(there, table - mean, 0.0) ** 2).sum(axis=0)
        some = count > 0
        total = np.float64(count.sum())
        pooled = mean[some] @ count[some] / total
        pooled_squares = squares[some].sum() + (mean[some] - pooled) ** 2 @ count[some]
        least, largest = (
            np.where(some, function(np.where(there, table, worst), axis=0), np.nan)
            for function, worst in ((np.min, np.inf), (np.max, -np.inf))
        )
        each = {"mean": mean, "least": least, "largest": largest} | _spread(squares, count)
        together = {"mean": pooled} | _spread(pooled_squares, total)
    if quantiles:
        each |= _quantiles(table, there, count)
    if some.any():
        together |= {"least": least[some].min(), "largest": largest[some].max()}
        if quantiles:
            together |= {name: float(of[0]) for name, of in _quantiles(table[there][:, None], None, total).items()}
    return each, together


def _spread(squares: Any, count: Any) -> dict[str, Any]:
    variances = {ddof: squares / np.where(count > ddof, count - ddof, np.nan) for ddof in (0, 1)}
    deviations = {f"deviation (ddof {ddof})": np.sqrt(variance) for ddof, variance in variances.items()}
    return deviations | {f"variance (ddof {ddof})": variance for ddof, variance in variances.items()}


def _quantiles(table: Array, there: Array | None, count: Any) -> dict[str, Array]:
    """`QUANTILES` of each column [N], and the range of the quartiles, which is RobustScaler's scale."""
    ordered = np.sort(np.where(there, table, np.nan).T if there is not None else table.T, axis=1)  # NaN comes last
    found = {}
    for name, share in QUANTILES.items():
        place = share * np.maximum(np.broadcast_to(count, len(ordered)) - 1, 0)
        below, above = (
            np.take_along_axis(ordered, end(place).astype(int)[:, None], axis=1)[:, 0] for end in (np.floor, np.ceil)
        )
        found[name] = below + (above - below) * (place - np.floor(place))
    return found | {"interquartile range": found["upper quartile"] - found["lower quartile"]}
