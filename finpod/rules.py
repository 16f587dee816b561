"""Strategies by name: the built-in ones, baselines to set beside an agent, and the oracle of a simulated market. Loads no torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from finpod.errors import StrategyError
from finpod.market.data import MarketData, forward_fill
from finpod.measures import DUST, Array
from finpod.records import ResultWarning
from finpod.strategy import Decision, MarketView, Strategy, equal_parts, top_k

YEAR, MONTH, WEEK = 252, 21, 5
"""Sessions."""
LEAST = 126
"""Returns within the year that an asset needs before its risk is measured."""
LEAST_WEIGHT = 1e-6
"""Weights below this are what a solver leaves of zero."""
PACKAGE = "skfolio"
"""Solves minimum variance and hierarchical risk parity."""


class BenchmarkHold(Strategy):
    """The benchmark, bought with the first fill and held."""

    name = "benchmark-hold"
    trades_benchmark = True

    def decide(self, view: MarketView) -> Decision:
        """Everything in the one asset, once."""
        return np.ones(1) if view.step == 0 else None


class EqualWeight(Strategy):
    """Equal parts in the members with a bar on the decision day, restored at every session."""

    name = "equal-weight"

    def decide(self, view: MarketView) -> Decision:
        """One n-th in each of today's n members."""
        return equal_parts(view.member & view.tradable) if view.begins_session or view.step == 0 else None


class BuyAndHold(Strategy):
    """Equal parts in the members of the first day, never touched again."""

    name = "buy-and-hold"

    def decide(self, view: MarketView) -> Decision:
        """One n-th in each of the first day's n members, once."""
        return equal_parts(view.member & view.tradable) if view.step == 0 else None


class Momentum(Strategy):
    """Equal parts in the strongest members, chosen anew every 21 sessions.

    Strength is the return from the first of the last `lookback` rows to the row `skip` before the last; a missing bar there
    is priced at the one before it. `k` None takes a tenth of the members that have one, rounded down, at least one; with
    fewer than two of them, all members in equal parts.
    """

    name = "momentum"
    every = MONTH

    def __init__(self, lookback: int = YEAR, k: int | None = 10, skip: int = 0, name: str = "") -> None:
        self.lookback, self.k, self.skip = lookback, k, skip
        if name:
            self.name = name

    def decide(self, view: MarketView) -> Decision:
        """Rank by the return over `lookback` rows less the last `skip`."""
        if self.skip:
            _require_daily(self.name, view)
        closes = forward_fill(view.closes(self.lookback))
        strength, among = closes[-1 - self.skip] / closes[0] - 1, view.member & view.tradable
        ranked = int((among & np.isfinite(strength)).sum())
        if self.k is None and ranked < 2:
            return equal_parts(among)
        return top_k(strength, self.k or max(ranked // 10, 1), among=among)


class RiskWeighted(Strategy):
    """Weights from the returns of the last 252 sessions, anew every 21 sessions, always all invested. For daily bars only.

    Among the members with a bar on the decision day and at least 126 returns in the year, whose price moved. The others get
    nothing; where fewer than two are left, the members are held in equal parts.
    """

    every = MONTH

    def __init__(self, name: str, weigh: Callable[[Array], Array]) -> None:
        self.name = name
        self.weigh = weigh
        """Weights [n], zero or more, for returns [t, n] with NaN at the start of columns only; may raise anything."""
        self.failures = 0
        """Decisions of the last run for which no weights were found, so that inverse volatility was held instead."""

    def decide(self, view: MarketView) -> Decision:
        """Weights by `weigh` over the assets that qualify."""
        _require_daily(self.name, view)
        self.failures = 0 if view.step == 0 else self.failures
        closes = view.closes(YEAR + 1)
        priced = forward_fill(closes)
        returns, among = priced[1:] / priced[:-1] - 1, view.member & view.tradable
        kept = among & ((np.isfinite(returns) & np.isfinite(closes[1:])).sum(axis=0) >= LEAST)
        kept[kept] = np.nanstd(returns[:, kept], axis=0, ddof=1) > DUST
        if kept.sum() < 2:
            return equal_parts(among)
        weights = np.zeros(len(kept))
        weights[kept] = self._solved(returns[:, kept])
        return weights

    def _solved(self, returns: Array) -> Array:
        """The weights of `weigh` with a sum of one; inverse volatility if it fails, since a baseline outlives its solver."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                weights = np.asarray(self.weigh(returns), dtype=np.float64)
        except ImportError as error:
            raise StrategyError(
                f"{self.name} needs the package {PACKAGE}, which cannot be imported ({error}); pip install {PACKAGE}"
            ) from error
        except Exception:  # a solver may raise anything
            weights = np.full(returns.shape[1], np.nan)
        kept = np.where(weights > LEAST_WEIGHT, weights, 0.0)
        if np.isfinite(weights).all() and kept.any():
            return kept / kept.sum()
        self.failures += 1
        return inverse_volatility(returns)


def inverse_volatility(returns: Array) -> Array:
    """Weights [n] in proportion to 1 / std(column, ddof=1) of returns [t, n], each column over its own; NaN are left out."""
    weights = 1 / np.nanstd(returns, axis=0, ddof=1)
    return weights / weights.sum()


def minimum_variance(returns: Array) -> Array:
    """Long-only weights [n] of least variance, solved by skfolio.

    min w' S w with w >= 0 and sum w = 1 (Markowitz 1952); S the covariance shrunk toward a multiple of the identity
    (Ledoit and Wolf 2004) over the longest span of returns [t, n] without NaN.
    """
    from skfolio.moments import LedoitWolf
    from skfolio.optimization import MeanRisk
    from skfolio.prior import EmpiricalPrior

    model: Any = MeanRisk(prior_estimator=EmpiricalPrior(covariance_estimator=LedoitWolf()))
    # In percent, for the solver stops at absolute tolerances; the weights do not depend on the unit.
    return model.fit(100 * common_span(returns)).weights_


def hierarchical_risk_parity(returns: Array) -> Array:
    """Weights [n]: variance split down a tree of clusters of correlated assets (Lopez de Prado 2016), by skfolio.

    Single assets by variance, clusters by Ward linkage of the correlation distance, on the longest span without NaN.
    """
    from skfolio.optimization import HierarchicalRiskParity

    model: Any = HierarchicalRiskParity()
    return model.fit(common_span(returns)).weights_


def common_span(returns: Array) -> Array:
    """The last rows of [t, n], those in which no column has NaN; NaN stand only at the start of columns."""
    return returns[int(np.isnan(returns).sum(axis=0).max()) :]


class DollarVolume(Strategy):
    """Weights in proportion to the square root of dollar volume, anew every 5 sessions, always all invested.

    The mean of close * volume over 63 sessions, among the members with a bar: the anchor of the same name as a strategy.
    For daily bars with volumes only.
    """

    name = "dollar-volume"
    every = WEEK

    def decide(self, view: MarketView) -> Decision:
        """The anchor's weights of the decision day."""
        from finpod.trading.anchors import anchor_of_view

        _require_daily(self.name, view)
        return anchor_of_view(view, self.name).numpy()


def _require_daily(name: str, view: MarketView) -> None:
    if not view.begins_session:
        raise StrategyError(f"{name} is a rule for daily bars, and these are intraday; resample them to one a session")


class SignalOracle(Strategy):
    """The informed rule of a simulated market: it knows the planted signal, decides each fifth session and minds its costs.

    It tilts equal weight by the `forecast` and moves only a part of the way there: it keeps the share `keep` of what it holds.
    """

    name = "oracle"
    every = WEEK

    def __init__(self, signal: float, lookback: int, keep: float) -> None:
        self.signal, self.lookback, self.keep = signal, lookback, keep

    def decide(self, view: MarketView) -> Decision:
        """The weights; equal ones while there are too few sessions, and for a signal of zero."""
        among = view.tradable & view.member
        closes = view.closes(self.lookback + 1)
        known = among & np.isfinite(closes).all(axis=0)
        if self.signal == 0 or not known.any():
            return equal_parts(among)
        weights = np.zeros(len(among))
        score = np.sign(self.signal) * forecast(closes[:, known], self.lookback)
        weights[known] = partly(view.held[known], tilted(score), self.keep)
        return weights


def forecast(closes: Array, lookback: int) -> Array:
    """Scores [..., N] of the signal over the next five sessions, of closes [lookback + 1, ..., N].

    On day h of them the past return will be that of the last lookback - h sessions and of h sessions not known yet. The
    score is the mean over h, z-scored across assets.
    """
    return z_scored(np.mean([closes[-1] / closes[h] for h in range(min(WEEK, lookback))], axis=0))


def tilted(score: Array) -> Array:
    """Weights [..., N] proportional to exp(tanh score), the strongest tilt that agents have by default.

    Weaker tilts have higher net ratios, but not by skill: they save a part of what equal weight pays to stay equal.
    """
    parts = np.exp(np.tanh(score))
    return parts / parts.sum(axis=-1, keepdims=True)


def partly(held: Array, wanted: Array, keep: Array | float) -> Array:
    """Weights [..., N] between those held, which need no sum of one, and those wanted; the latter while all is cash."""
    total = held.sum(axis=-1, keepdims=True)
    before = np.where(total > 0, held / np.where(total > 0, total, 1.0), wanted)
    return keep * before + (1 - keep) * wanted


def z_scored(values: Array) -> Array:
    """Values [..., N] less their mean, over their standard deviation; zero where all are equal."""
    centred = values - values.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True))
    return centred / np.where(spread > 0, spread, 1.0)


RULES: dict[str, Callable[[], Strategy]] = {
    "benchmark-hold": BenchmarkHold,
    "equal-weight": EqualWeight,
    "buy-and-hold": BuyAndHold,
    "momentum": Momentum,
    "inverse-volatility": lambda: RiskWeighted("inverse-volatility", inverse_volatility),
    "minimum-variance": lambda: RiskWeighted("minimum-variance", minimum_variance),
    "hierarchical-risk-parity": lambda: RiskWeighted("hierarchical-risk-parity", hierarchical_risk_parity),
    # close(t - 21) / close(t - 252) - 1 (Jegadeesh and Titman 1993)
    "momentum-12-1": lambda: Momentum(YEAR + 1, k=None, skip=MONTH, name="momentum-12-1"),
    "dollar-volume": DollarVolume,
}
"""Name -> makes the strategy."""
BASELINES = tuple(RULES)[4:]
"""Those that are set beside an agent."""
SOLVED, SIZED = ("minimum-variance", "hierarchical-risk-parity"), ("dollar-volume",)
"""Those that cannot do without `PACKAGE`, and without volumes."""


def baselines_for(market: MarketData) -> tuple[list[Strategy], list[ResultWarning]]:
    """The baselines to run beside a strategy on these data, and a warning where some are left out."""
    if market.bars_per_session > 1:
        return [], [ResultWarning("rules_daily_only", {"rules": list(BASELINES)})]
    left_out: list[str] = []
    warnings = []
    if find_spec(PACKAGE) is None:
        left_out += SOLVED
        warnings.append(ResultWarning("rules_missing", {"rules": list(SOLVED), "package": PACKAGE}))
    if market.volume is None or not (np.nan_to_num(market.volume) > 0).any():
        left_out += SIZED
        warnings.append(ResultWarning("rules_without_volumes", {"rules": list(SIZED)}))
    return [RULES[name]() for name in BASELINES if name not in left_out], warnings
