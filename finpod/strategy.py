"""`Strategy`, its view of the market (`MarketView`, `FeatureTable`) and `top_k`. The module does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from finpod.errors import InputError, require_number
from finpod.market.data import MarketData
from finpod.measures import Array

if TYPE_CHECKING:
    import pandas as pd

Decision: TypeAlias = "Array | pd.Series | Mapping[str, float] | None"
"""Types that `decide` may return. The alias is a string so that pandas need not be imported."""
FeatureLike = str | Callable[[MarketData], Array]


class FeatureTable:
    """Unscaled features of a market. Each set of features is computed once for all rows, when it is first requested.

    Row t of a feature depends only on rows up to t.
    """

    def __init__(self, market: MarketData) -> None:
        self.market = market
        self._tables: dict[Any, tuple[tuple[str, ...], Array]] = {}

    def get(self, names: FeatureLike | Sequence[FeatureLike] | None) -> tuple[tuple[str, ...], Array]:
        """Return (names [F], values [T, N, F] float32) of features, NaN where undefined. None: default features."""
        from finpod.features.panel import compute, name_of, resolve

        features, _ = resolve(self.market, names)
        if features not in self._tables:
            values = compute(self.market, features).numpy()
            values.flags.writeable = False
            self._tables[features] = tuple(map(name_of, features)), values
        return self._tables[features]


class MarketView:
    """Information for a decision: the market up to and including the decision row, and the account.

    Methods such as `closes(k)` return the last k rows, oldest first. Prices and volumes are adjusted. A value is NaN
    for a missing bar and before the data begin. Arrays are read-only or copies. Orders fill at the next open or close.
    """

    def __init__(
        self,
        market: MarketData,
        row: int,
        *,
        step: int = 0,
        cash: float = 1.0,
        equity: float = 1.0,
        held: Array | None = None,
        table: FeatureTable | None = None,
    ) -> None:
        self._market = market
        self._row = row
        self._table = table or FeatureTable(market)
        self.step = step
        """Number of bars since the first decision of the run; 0 at the first decision."""
        self.cash = cash
        """Cash of the account, in currency."""
        self.equity = equity
        """Value of the account at the last visible close."""
        self.held = np.zeros(len(market.tickers)) if held is None else held.view()
        """[N] weights of the positions at the last visible close."""
        self.held.flags.writeable = False

    @property
    def date(self) -> np.datetime64:
        """Date of the decision row: its session, or its time in the exchange's zone if bars are intraday."""
        return self._market.dates[self._row]

    @property
    def begins_session(self) -> bool:
        """True if the decision row is the first bar of its session; always True for daily data."""
        return bool(self._market.begins_session[self._row])

    def rows_of(self, sessions: int) -> int:
        """Return the number of rows in `sessions` sessions. Daily data have one row per session."""
        return max(round(sessions * self._market.bars_per_session), 1)

    @property
    def tickers(self) -> tuple[str, ...]:
        """[N] symbols of the assets, in column order."""
        return self._market.tickers

    @property
    def tradable(self) -> Array:
        """[N] bool mask of the assets that have a bar in the decision row."""
        return self._market.has_bar[self._row]

    @property
    def member(self) -> Array:
        """[N] bool mask of the assets that are members of the universe in the decision row."""
        return self._market.member[self._row]

    @property
    def factor(self) -> Array:
        """[N] adjusted price / price before adjustment, in the decision row; NaN where an asset has no bar."""
        factor = self._market.factor
        return np.where(self.tradable, 1.0, np.nan) if factor is None else factor[self._row]

    def closes(self, k: int) -> Array:
        """Return the last k closes [k, N]."""
        return self._last(self._market.close, "closes", k)

    def opens(self, k: int) -> Array:
        """Return the last k opens [k, N]. Raises InputError if the data have no opens."""
        return self._last(self._market.open, "opens", k)

    def highs(self, k: int) -> Array:
        """Return the last k highs [k, N]. Raises InputError if the data have no highs."""
        return self._last(self._market.high, "highs", k)

    def lows(self, k: int) -> Array:
        """Return the last k lows [k, N]. Raises InputError if the data have no lows."""
        return self._last(self._market.low, "lows", k)

    @property
    def has_volumes(self) -> bool:
        """True if the data have volumes."""
        return self._market.volume is not None

    def volumes(self, k: int) -> Array:
        """Return the last k volumes [k, N]. Raises InputError if the data have no volumes."""
        return self._last(self._market.volume, "volumes", k)

    def benchmark(self, k: int) -> Array:
        """Return the last k closes [k] of the benchmark."""
        return self._last(self._market.benchmark_close, "benchmark", k)

    def extra(self, column: str, k: int) -> Array:
        """Return the values [k, N] of a user's column, as known at each of the last k rows; NaN before the first value.

        Raises InputError for a column that the market does not have.
        """
        return self._last(self._market.extra[column], f"extra {column}", k)

    @property
    def extra_names(self) -> tuple[str, ...]:
        """Names of the user's columns, from `load_market(..., extra=...)`."""
        return self._market.extra.names

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the default features for which the market has the data."""
        from finpod.features.panel import name_of, resolve

        return tuple(map(name_of, resolve(self._market, None)[0]))

    def left_out(self, names: FeatureLike | Sequence[FeatureLike] | None = None) -> tuple[str, ...]:
        """Return the names of requested features for which the market lacks data. `features(names)` leaves them out."""
        from finpod.features.panel import resolve

        return resolve(self._market, names)[1]

    def features(self, names: FeatureLike | Sequence[FeatureLike] | None = None) -> Array:
        """Return unscaled features [N, F] float32 of the decision row, NaN where undefined. None: default features."""
        return self._table.get(names)[1][self._row]

    def window(self, k: int, names: FeatureLike | Sequence[FeatureLike] | None = None) -> Array:
        """Return the unscaled features [k, N, F] float32 of the last k rows."""
        return self._last(self._table.get(names)[1], "window", k)

    def _last(self, table: Array | None, what: str, k: int) -> Array:
        if table is None:
            raise InputError(f"{what}({k}): the data have no {what}; load data with {what}, or use only closes")
        if k < 1:
            raise InputError(f"{what}({k}): k must be 1 or more")
        first = self._row + 1 - k
        rows = table[max(first, 0) : self._row + 1]
        if first < 0:
            rows = np.concatenate([np.full((-first, *table.shape[1:]), np.nan, dtype=table.dtype), rows])
            rows.flags.writeable = False
        return rows


class Strategy:
    """Base class of strategies. A subclass defines `decide`.

    An object may be run several times, so a strategy with state must reset its state when `view.step` is 0. Create a
    new object for each run: an earlier run may leave later data in it. The audit reports such data if they have dates.
    """

    name: str = "Strategy"
    """Name of the strategy in tables and reports; the class name by default."""
    trained_until: str | None = None
    """Last day of training and selection. By default, a backtest refuses windows that start on or before it."""
    trials: int = 1
    """Number of candidates tried before the strategy was selected, such as agents after each round of training."""
    every: int = 1
    """Number of bars (sessions, if bars are daily) from one decision to the next. There are no trades in between."""
    max_weight: float | None = None
    max_turnover: float | None = None
    """Default caps on an asset's weight and a decision's turnover, as fractions of the account. None: no cap."""
    anchor: str = "equal-weight"
    """Portfolio to beat (`finpod.trading.anchors`), rebalanced every session or, if `every` > 1, every `every` bars."""
    trades_benchmark: bool = False
    """True if the strategy trades a market that consists of the benchmark only."""

    windows: Mapping[str, tuple[str, str]] = MappingProxyType({})
    """'train' and 'validation' ('train 1', ... in a walk-forward) -> first and last day. Reports mark these windows."""
    provenance: Mapping[str, Any] = MappingProxyType({})
    """Origin of a trained strategy: learner, seeds, settings, scores, device, versions."""

    tried: Sequence[Array] = ()
    """For each selection of agents, a table [n, candidates] with the n validation returns of each candidate."""
    tried_over: Sequence[Array] = ()
    """For each table in `tried`, the returns [n] of the portfolio to beat; empty if the ranking did not use them."""
    variants: Sequence[Strategy] = ()
    """One strategy for each seed or agent of the training. A backtest runs them too, to show the effect of chance."""
    variant_kind: str = ""
    """Kind of the variants: "seed" (all agents of one seed) or, after training with one seed, "member" (one agent)."""
    alone: Sequence[Strategy] = ()
    """One strategy for each agent, the best on validation first. A backtest runs them too."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def decide(self, view: MarketView) -> Decision:
        """Return target weights: an array [N], a Series or dict by ticker (missing: 0), or None for no trade.

        Weights are fractions of the account. They must not be negative, and must sum to at most one; the rest is cash.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define decide(view)")


def top_k(strength: Array, k: int, among: Array | None = None) -> Array:
    """Return equal weights [N] for the k assets with the largest `strength` [N]. The mask `among` limits the choice.

    NaN is never selected. Ties go to the earlier column. Raises InputError unless k is a positive whole number.
    """
    require_number("k", k, 1, whole=True)
    ranked = np.where(np.isnan(strength) | (False if among is None else ~np.asarray(among)), -np.inf, strength)
    order = np.argsort(-ranked, kind="stable")[:k]
    chosen = np.zeros(len(ranked), dtype=bool)
    chosen[order] = ranked[order] > -np.inf
    return equal_parts(chosen)


def equal_parts(among: Array) -> Array:
    """Return equal weights [N] over the True entries of a mask [N]; all zero if no entry is True."""
    return among / max(int(among.sum()), 1)
