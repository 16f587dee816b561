"""Built-in strategies, and `SignalOracle` for simulated markets. The module does not import torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from finpod.errors import StrategyError
from finpod.market.data import MarketData, forward_fill
from finpod.measures import DUST, Array
from finpod.periods import is_weekly_or_longer
from finpod.records import ResultWarning
from finpod.strategy import Decision, MarketView, Strategy, equal_parts, top_k

YEAR, MONTH, WEEK = 252, 21, 5
"""Number of sessions in a year, a month and a week."""
LEAST = 126
"""Number of returns in the past year that `RiskWeighted` needs to include an asset."""
LEAST_WEIGHT = 1e-6
"""Weights up to this value count as zero, because solvers return small positive weights."""
PACKAGE = "skfolio"
"""Package that computes the weights of minimum variance and of hierarchical risk parity."""


class EqualWeight(Strategy):
    """Holds the members of the universe that have a bar at the decision, in equal weights. Rebalances every session."""

    name = "equal-weight"

    def decide(self, view: MarketView) -> Decision:
        return equal_parts(view.member & view.tradable) if view.begins_session or view.step == 0 else None


class BuyAndHold(Strategy):
    """Buys equal weights of the members that have a bar at the first decision, and never rebalances."""

    name = "buy-and-hold"

    def decide(self, view: MarketView) -> Decision:
        return equal_parts(view.member & view.tradable) if view.step == 0 else None


class BenchmarkHold(BuyAndHold):
    """Buys the benchmark at the first fill and holds it."""

    name = "benchmark-hold"
    trades_benchmark = True


class Momentum(Strategy):
    """Holds the k members of the universe with the highest past return in equal weights. Chooses them every 21 bars.

    The past return is measured over the last `lookback` rows, without the `skip` latest rows. A missing bar is replaced
    by the bar before it. If `k` is None, a tenth of the members with a past return is selected, but at least one. If
    `k` is None and fewer than two members have a past return, all members with a bar get equal weights. A `skip` above
    0 needs daily bars.
    """

    name = "momentum"
    every = MONTH

    def __init__(self, lookback: int = YEAR, k: int | None = 10, skip: int = 0, name: str = "") -> None:
        self.lookback, self.k, self.skip = lookback, k, skip
        if name:
            self.name = name

    def decide(self, view: MarketView) -> Decision:
        if self.skip:
            _require_daily(self.name, view)
        closes = forward_fill(view.closes(self.lookback))
        strength, among = closes[-1 - self.skip] / closes[0] - 1, view.member & view.tradable
        ranked = int((among & np.isfinite(strength)).sum())
        if self.k is None and ranked < 2:
            return equal_parts(among)
        return top_k(strength, self.k or max(ranked // 10, 1), among=among)


class RiskWeighted(Strategy):
    """Computes weights with the function `weigh` every 21 sessions, from the daily returns of the last 252 sessions.

    The weights sum to one. A member of the universe is included if it has a bar on the decision day, at least 126
    returns among the 252, and returns that are not all equal. If fewer than two members are included, all members with
    a bar get equal weights.
    """

    every = MONTH

    def __init__(self, name: str, weigh: Callable[[Array], Array]) -> None:
        self.name = name
        self.weigh = weigh
        """Function from returns [t, n] of n assets to weights [n] >= 0. Columns may start with NaN. Calls may fail."""
        self.failures = 0
        """Number of decisions in the last run for which `weigh` failed and inverse volatility was used instead."""

    def decide(self, view: MarketView) -> Decision:
        _require_daily(self.name, view)
        self.failures = 0 if view.step == 0 else self.failures
        closes = view.closes(YEAR + 1)
        priced = forward_fill(closes)
        returns, among = priced[1:] / priced[:-1] - 1, view.member & view.tradable
        eligible = among & ((np.isfinite(returns) & np.isfinite(closes[1:])).sum(axis=0) >= LEAST)
        eligible[eligible] = np.nanstd(returns[:, eligible], axis=0, ddof=1) > DUST
        if eligible.sum() < 2:
            return equal_parts(among)
        weights = np.zeros(len(eligible))
        weights[eligible] = self._solved(returns[:, eligible])
        return weights

    def _solved(self, returns: Array) -> Array:
        """Return the weights of `weigh`, scaled to a sum of one. If `weigh` fails, use `inverse_volatility`."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                weights = np.asarray(self.weigh(returns), dtype=np.float64)
        except ImportError as error:
            text = f"{self.name} needs the package {PACKAGE}, which cannot be imported ({error}); pip install {PACKAGE}"
            raise StrategyError(text) from error
        except Exception:  # a solver may raise anything
            weights = np.full(returns.shape[1], np.nan)
        positive = np.where(weights > LEAST_WEIGHT, weights, 0.0)
        if np.isfinite(weights).all() and positive.any():
            return positive / positive.sum()
        self.failures += 1
        return inverse_volatility(returns)


def inverse_volatility(returns: Array) -> Array:
    """Return weights [n] proportional to 1 / std(ddof=1) of each column of `returns` [t, n]. NaN are skipped."""
    weights = 1 / np.nanstd(returns, axis=0, ddof=1)
    return weights / weights.sum()


def minimum_variance(returns: Array) -> Array:
    """Return the long-only weights [n] of minimum variance, solved by skfolio.

    The weights w minimise w' S w with w >= 0 and sum w = 1 (Markowitz 1952). S is the covariance of the returns [t, n],
    shrunk toward a multiple of the identity (Ledoit and Wolf 2004). Days on which an asset has no return are left out.
    """
    from skfolio.moments import LedoitWolf
    from skfolio.optimization import MeanRisk
    from skfolio.prior import EmpiricalPrior

    model: Any = MeanRisk(prior_estimator=EmpiricalPrior(covariance_estimator=LedoitWolf()))
    # in percent, because the solver has absolute tolerances; the unit does not change the weights
    return model.fit(100 * common_span(returns)).weights_


def hierarchical_risk_parity(returns: Array) -> Array:
    """Return the weights [n] of hierarchical risk parity (Lopez de Prado 2016), by skfolio.

    Risk is the variance of the returns [t, n]. Days on which an asset has no return are left out. Clusters use Ward
    linkage of the correlation distance.
    """
    from skfolio.optimization import HierarchicalRiskParity

    model: Any = HierarchicalRiskParity()
    return model.fit(common_span(returns)).weights_


def common_span(returns: Array) -> Array:
    """Return the rows of `returns` [t, n] after the last NaN. A column may have NaN only before its first return."""
    return returns[int(np.isnan(returns).sum(axis=0).max()) :]


class DollarVolume(Strategy):
    """Holds weights proportional to the square root of dollar volume. Rebalances every 5 sessions.

    Dollar volume is the mean of close * volume over 63 sessions. Needs daily bars with volumes.
    """

    name = "dollar-volume"
    every = WEEK

    def decide(self, view: MarketView) -> Decision:
        from finpod.trading.anchors import anchor_of_view

        _require_daily(self.name, view)
        return anchor_of_view(view, self.name).numpy()


def _require_daily(name: str, view: MarketView) -> None:
    if not view.begins_session or is_weekly_or_longer(view._market.dates):
        raise StrategyError(f"{name} needs daily bars, but the bars are shorter or longer; give one bar per session")


class SignalOracle(Strategy):
    """Rule that knows the signal planted in a simulated market. It decides every fifth session.

    The rule tilts equal weights by the `forecast`. To save costs, it makes only the part 1 - `keep` of each trade: it
    keeps the fraction `keep` of the present weights (see `partly`).
    """

    name = "oracle"
    every = WEEK

    def __init__(self, signal: float, lookback: int, keep: float) -> None:
        self.signal, self.lookback, self.keep = signal, lookback, keep

    def decide(self, view: MarketView) -> Decision:
        """Return weights [N] tilted by the forecast, or equal weights without a signal or without enough closes."""
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
    """Return scores [..., N] of the signal over the next five sessions, from closes [lookback + 1, ..., N].

    The signal of session h (0 to 4) is the return over the `lookback` sessions before it. At the decision, lookback - h
    of these sessions are known. The score is the return over the known sessions, averaged over h, then z-scored.
    """
    return z_scored(np.mean([closes[-1] / closes[h] for h in range(min(WEEK, lookback))], axis=0))


def tilted(score: Array) -> Array:
    """Return weights [..., N] proportional to exp(tanh(score)), the default tilt of agents. exp(tanh) is from 1/e to e.

    A weaker tilt has a higher information ratio after costs only because it trades less. It does not predict better.
    """
    parts = np.exp(np.tanh(score))
    return parts / parts.sum(axis=-1, keepdims=True)


def partly(present: Array, wanted: Array, keep: Array | float) -> Array:
    """Return weights [..., N] between the present and the wanted ones: keep * present + (1 - keep) * wanted.

    The present weights are first scaled to a sum of 1. If they are all zero, the wanted weights are returned.
    """
    total = present.sum(axis=-1, keepdims=True)
    before = np.where(total > 0, present / np.where(total > 0, total, 1.0), wanted)
    return keep * before + (1 - keep) * wanted


def z_scored(values: Array) -> Array:
    """Return (values - mean) / standard deviation over the last axis [..., N]; zero where all values are equal."""
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
"""Name of a built-in strategy -> function without arguments that returns a new strategy."""
BASELINES = tuple(RULES)[4:]
"""Names of the baselines. A backtest compares its strategy with these baselines."""


def baselines_for(market: MarketData) -> tuple[list[Strategy], list[ResultWarning]]:
    """Return (baselines, warnings) for a backtest on this market. The warnings name the baselines that are omitted."""
    if market.bars_per_session > 1 or is_weekly_or_longer(market.dates):
        return [], [ResultWarning("rules_daily_only", {"rules": list(BASELINES)})]
    warnings = []
    if find_spec(PACKAGE) is None:
        solved = ["minimum-variance", "hierarchical-risk-parity"]
        warnings.append(ResultWarning("rules_missing", {"rules": solved, "package": PACKAGE}))
    if market.volume is None or not (np.nan_to_num(market.volume) > 0).any():
        warnings.append(ResultWarning("rules_without_volumes", {"rules": ["dollar-volume"]}))
    left_out = {name for warning in warnings for name in warning.data["rules"]}
    return [RULES[name]() for name in BASELINES if name not in left_out], warnings
