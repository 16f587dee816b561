"""Rules that anyone could have followed, to set beside an agent: weights by risk or size, plain momentum. Loads no torch."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np

from finpod.errors import StrategyError
from finpod.market.data import MarketData, forward_fill
from finpod.measures import Array
from finpod.records import ResultWarning
from finpod.strategy import Decision, MarketView, Strategy, equal_parts, top_k

YEAR, MONTH = 252, 21
"""Sessions that a baseline looks back over, and between its decisions."""
WEEK = 5
"""Sessions between decisions by size."""
LEAST = 126
"""Returns within the year that a name needs before its risk is measured."""
DUST = 1e-12
"""A daily deviation below this is a price that did not move."""
LEAST_WEIGHT = 1e-6
"""Weights below this are what a solver leaves of zero."""
PACKAGE = "skfolio"
"""What solves minimum variance and hierarchical risk parity."""


class Baseline(Strategy):
    """Weights from the returns of the last `YEAR` sessions, anew every `MONTH` sessions, always all invested.

    Among the members with a bar on the decision day and at least `LEAST` returns in the year, whose price moved. The
    others get nothing; where fewer than two are left, the members are held in equal parts. For daily bars only.
    """

    every = MONTH
    needs_package = False
    """Whether it cannot do without `PACKAGE`."""

    def __init__(self) -> None:
        self.failures = 0
        """Decisions of the last run for which no weights were found, so that inverse volatility was held instead."""

    def decide(self, view: MarketView) -> Decision:
        """Weights by `weigh` over the names that qualify."""
        _require_daily(self.name, view)
        self.failures = 0 if view.step == 0 else self.failures
        steps, bars = returns_of(view), np.isfinite(view.closes(YEAR))
        among = view.member & view.tradable
        kept = among & ((np.isfinite(steps) & bars).sum(axis=0) >= LEAST)
        kept[kept] = np.nanstd(steps[:, kept], axis=0, ddof=1) > DUST
        if kept.sum() < 2:
            return equal_parts(among)
        weights = np.zeros(len(kept))
        weights[kept] = self._found(steps[:, kept])
        return weights

    def weigh(self, steps: Array) -> Array:
        """Weights [n], zero or more, for returns [t, n] with NaN at the start of columns only; may raise anything."""
        raise NotImplementedError(f"{type(self).__name__} has no weigh(steps)")

    def _found(self, steps: Array) -> Array:
        """What `weigh` finds, with a sum of one; inverse volatility if it fails, since a baseline outlives its solver."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                weights = np.asarray(self.weigh(steps), dtype=np.float64)
        except ImportError as error:
            raise StrategyError(
                f"{self.name} needs the package {PACKAGE}, which cannot be imported ({error}); pip install {PACKAGE}"
            ) from error
        except Exception:  # a solver may raise anything
            weights = np.full(steps.shape[1], np.nan)
        kept = np.where(weights > LEAST_WEIGHT, weights, 0.0)
        if np.isfinite(weights).all() and kept.any():
            return kept / kept.sum()
        self.failures += 1
        return inverse_volatility(steps)


class InverseVolatility(Baseline):
    """Weights in proportion to 1 / volatility, each name over its own returns of the year."""

    name = "inverse-volatility"

    def weigh(self, steps: Array) -> Array:
        """One over the standard deviation."""
        return inverse_volatility(steps)


class MinimumVariance(Baseline):
    """The long-only portfolio of least variance.

    min w' S w with w >= 0 and sum w = 1 (Markowitz 1952); S the covariance shrunk toward a multiple of the identity
    (Ledoit and Wolf 2004) over the longest span of the year that all names have returns for.
    """

    name = "minimum-variance"
    needs_package = True

    def weigh(self, steps: Array) -> Array:
        """Solved by skfolio."""
        from skfolio.moments import LedoitWolf
        from skfolio.optimization import MeanRisk
        from skfolio.prior import EmpiricalPrior

        model: Any = MeanRisk(prior_estimator=EmpiricalPrior(covariance_estimator=LedoitWolf()))
        # In percent, for the solver stops at absolute tolerances; the weights do not depend on the unit.
        return model.fit(100 * common_span(steps)).weights_


class HierarchicalRiskParity(Baseline):
    """Variance split down a tree of clusters of correlated names (Lopez de Prado 2016), on the same span."""

    name = "hierarchical-risk-parity"
    needs_package = True

    def weigh(self, steps: Array) -> Array:
        """Built by skfolio: single numbers of names by variance, clusters by Ward linkage of the correlation distance."""
        from skfolio.optimization import HierarchicalRiskParity as Model

        model: Any = Model()
        return model.fit(common_span(steps)).weights_


class TwelveOneMomentum(Strategy):
    """Equal parts in the strongest tenth of the members by their return from 252 to 21 sessions ago, anew each month.

    close(t - 21) / close(t - 252) - 1 (Jegadeesh and Titman 1993), a missing bar priced at the last one before it. A
    tenth of the names that have such a return, rounded down, at least one; with fewer than two of them, all the members
    in equal parts. For daily bars only.
    """

    name = "momentum-12-1"
    every = MONTH

    def decide(self, view: MarketView) -> Decision:
        """Rank, and take the top tenth."""
        _require_daily(self.name, view)
        closes = forward_fill(view.closes(YEAR + 1))
        strength = closes[-1 - MONTH] / closes[0] - 1
        among = view.member & view.tradable
        ranked = int((among & np.isfinite(strength)).sum())
        return top_k(strength, max(ranked // 10, 1), among=among) if ranked > 1 else equal_parts(among)


class DollarVolume(Strategy):
    """Weights in proportion to the square root of dollar volume, anew every `WEEK` sessions, always all invested.

    The mean of close * volume over 63 sessions, among the members with a bar (`finpod.trading.anchors.dollar_volume`): the
    anchor of the same name as a strategy. For daily bars with volumes only.
    """

    name = "dollar-volume"
    every = WEEK
    needs_volumes = True
    """Whether it cannot do without volumes."""

    def decide(self, view: MarketView) -> Decision:
        """The anchor's weights of the decision day."""
        from finpod.trading.anchors import anchor_of_view

        _require_daily(self.name, view)
        return anchor_of_view(view, self.name).numpy()


BASELINES: dict[str, type[Strategy]] = {
    kind.name: kind
    for kind in (InverseVolatility, MinimumVariance, HierarchicalRiskParity, TwelveOneMomentum, DollarVolume)
}
"""The baselines by name."""


def available() -> tuple[str, ...]:
    """Names of the baselines that can be run here; all of them with skfolio installed."""
    return tuple(name for name, kind in BASELINES.items() if _installed() or not getattr(kind, "needs_package", False))


def baselines_for(market: MarketData) -> tuple[list[Strategy], list[ResultWarning]]:
    """The baselines to run beside a strategy on these data, and a warning where some are left out."""
    if market.bars_per_session > 1:
        return [], [ResultWarning("rules_daily_only", {"rules": list(BASELINES)})]
    names = available()
    absent = [name for name in BASELINES if name not in names]
    missing = [ResultWarning("rules_missing", {"rules": absent, "package": PACKAGE})] if absent else []
    if market.volume is None or not (np.nan_to_num(market.volume) > 0).any():
        sized = [name for name in names if getattr(BASELINES[name], "needs_volumes", False)]
        names = tuple(name for name in names if name not in sized)
        missing.append(ResultWarning("rules_without_volumes", {"rules": sized}))
    return [BASELINES[name]() for name in names], missing


def inverse_volatility(steps: Array) -> Array:
    """Weights [n] in proportion to 1 / std(column, ddof=1) for returns [t, n]; NaN are left out."""
    weights = 1 / np.nanstd(steps, axis=0, ddof=1)
    return weights / weights.sum()


def returns_of(view: MarketView) -> Array:
    """Simple returns [252, N] of the last `YEAR` sessions; NaN up to and with the first bar of the window.

    A missing bar is priced at the last one before it, so that the next return spans the gap.
    """
    closes = forward_fill(view.closes(YEAR + 1))
    return closes[1:] / closes[:-1] - 1


def common_span(steps: Array) -> Array:
    """The last rows of [t, n], those in which no column has NaN; NaN stand only at the start of columns."""
    return steps[int(np.isnan(steps).sum(axis=0).max()) :]


def _require_daily(name: str, view: MarketView) -> None:
    if not view.begins_session:
        raise StrategyError(f"{name} is a rule for daily bars, and these are intraday; resample them to one a session")


def _installed() -> bool:
    return find_spec(PACKAGE) is not None
