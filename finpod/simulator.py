"""A simulated market with a planted signal of chosen strength, the strategy that knows it, and its shuffled twin.

Model, for session t and name i: r[t, i] = beta[i] * m[t] + e[t, i], with a market factor m of 1 % a day and a small drift,
betas around 1, and e[t, i] = 1.5 % * (s * z[t-1, i] + sqrt(1 - s^2) * noise), where z[t-1] is the return of the past five
sessions, z-scored across the names. So s is the correlation of z with the next day's idiosyncratic return. Every open
equals the close before it: overnight returns are zero, and a decision after a close earns the whole next day.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from finpod.errors import InputError
from finpod.market.clean import package_versions
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.seeds import require_seed
from finpod.strategy import Decision, MarketView, Strategy, equal_parts

LOOKBACK = 5
"""Sessions over which the past return is taken."""
MARKET_SD, MARKET_DRIFT, IDIOSYNCRATIC_SD = 0.01, 0.0003, 0.015
"""Standard deviation and mean of the market factor, and standard deviation of the idiosyncratic return, a session."""
BENCHMARK = "simulated equal-weight index"
START = "2010-01-04"


class Oracle(Strategy):
    """Knows the planted signal and bets as strongly on it as weights proportional to exp(k tanh z), k = 1, allow.

    Names above the day's median five-day return get e^+1 parts, the others e^-1; the reverse for a negative signal.
    """

    name = "oracle"

    def __init__(self, signal: float) -> None:
        self.signal = signal

    def decide(self, view: MarketView) -> Decision:
        """Rank by the past five sessions; equal weight while there are not that many, and for a signal of zero."""
        closes = view.closes(LOOKBACK + 1)
        among = view.tradable & view.member
        score = np.where(among, np.sign(self.signal) * (closes[-1] / closes[0] - 1), np.nan)
        if not np.isfinite(score).any():
            return equal_parts(among)
        parts = np.exp(np.where(score > np.nanmedian(score), 1.0, -1.0)) * among
        return parts / parts.sum()


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedMarket(MarketData):
    """A market made by `simulate_market`, or its `shuffled` twin."""

    signal: float = 0.0
    """Correlation of the cross-sectional five-day past return with the next day's idiosyncratic return."""

    @property
    def oracle(self) -> Strategy:
        """The strategy that knows the signal."""
        return Oracle(self.signal)


def simulate_market(*, names: int = 20, days: int = 2500, signal: float = 0.1, seed: int = 0) -> SimulatedMarket:
    """A market of `names` stocks over `days` weekdays from 2010-01-04, the same for the same arguments.

    `signal` is the correlation of the five-day past return (z-scored across names) with the next day's idiosyncratic
    return; 0 plants none. Raises InputError for arguments out of range.
    """
    if names < 2 or days < 2 or not -1 <= signal <= 1:
        raise InputError(
            f"names {names}, days {days}, signal {signal}: a simulated market needs two names and two days or more, and a "
            "signal within [-1, 1]"
        )
    random = np.random.default_rng(require_seed(seed))
    returns = _returns(random, names, days, signal)
    start = random.lognormal(4.0, 0.5, names)
    close = start * np.cumprod(1 + returns, axis=0)
    opens = np.vstack([close[:1], close[:-1]])
    reach = np.abs(random.normal(0, 0.004, (2, days, names)))
    benchmark_close = 100 * np.cumprod(1 + returns.mean(axis=1))
    return SimulatedMarket(
        dates=np.busday_offset([np.datetime64(START)], np.arange(days)),
        tickers=tuple(f"S{n:0{len(str(names))}d}" for n in range(1, names + 1)),
        open=opens,
        high=np.maximum(opens, close) * np.exp(reach[0]),
        low=np.minimum(opens, close) * np.exp(-reach[1]),
        close=close,
        volume=np.round(random.lognormal(13.0, 0.5, (days, names))),
        benchmark=BENCHMARK,
        benchmark_close=benchmark_close,
        benchmark_open=np.concatenate([benchmark_close[:1], benchmark_close[:-1]]),
        signal=float(signal),
        manifest=_manifest(names, days, signal, seed),
    )


def shuffled(market: MarketData, *, seed: int) -> MarketData:
    """The same market with its sessions in random order: what each day did stays, what a day tells of the next is gone.

    Whole days are permuted, all names and the benchmark together, so each name keeps its returns, its correlations and
    the shape of its bars. Raises InputError for a market with missing bars, whose days cannot change places.
    """
    if not (market.has_bar.all() and np.isfinite(market.benchmark_close).all()):
        raise InputError("a market with missing bars cannot be shuffled; select names and dates without any")
    order = np.concatenate([[0], 1 + np.random.default_rng(require_seed(seed)).permutation(len(market.dates) - 1)])
    close, benchmark_close = _reordered(market.close, order), _reordered(market.benchmark_close, order)
    moved: dict[str, Any] = {
        name: None if (table := getattr(market, name)) is None else close * (table / market.close)[order]
        for name in ("open", "high", "low")
    }
    if market.benchmark_open is not None:
        moved["benchmark_open"] = benchmark_close * (market.benchmark_open / market.benchmark_close)[order]
    sentence = f"the sessions are shuffled (seed {seed}): these are not real prices, and no signal is left in them"
    manifest = {
        **market.manifest,
        "source": "simulated",
        "title": f"{market.title}, sessions shuffled (seed {seed})",
        "notes": [*market.manifest.get("notes", ()), sentence],
    }
    if isinstance(market, SimulatedMarket):
        market = replace(market, signal=0.0)
    return replace(
        market,
        close=close,
        benchmark_close=benchmark_close,
        manifest=manifest,
        **moved,
        volume=None if market.volume is None else market.volume[order],
    )


def _reordered(close: Array, order: Array) -> Array:
    """[T, ...] closes whose day-to-day ratios come in the given order; the first close stays."""
    ratios = np.concatenate([close[:1], close[1:] / close[:-1]])
    return np.cumprod(ratios[order], axis=0)


def _returns(random: np.random.Generator, names: int, days: int, signal: float) -> Array:
    """[T, N] simple returns of the model; those of the first day are zero."""
    beta = np.clip(random.normal(1.0, 0.2, names), 0.2, None)
    market = random.normal(MARKET_DRIFT, MARKET_SD, days)
    noise = random.normal(0.0, 1.0, (days, names))
    returns = np.zeros((days, names))
    wealth = np.zeros((days, names))
    for day in range(1, days):
        past = np.exp(wealth[day - 1] - wealth[day - 1 - LOOKBACK]) if day > LOOKBACK else np.zeros(names)
        spread = past.std()
        shock = noise[day]
        if spread > 0:
            shock = signal * (past - past.mean()) / spread + np.sqrt(1 - signal**2) * shock
        returns[day] = np.clip(beta * market[day] + IDIOSYNCRATIC_SD * shock, -0.5, None)
        wealth[day] = wealth[day - 1] + np.log1p(returns[day])
    return returns


def _manifest(names: int, days: int, signal: float, seed: int) -> dict[str, object]:
    planted = f"a planted signal of {signal:g}" if signal else "no signal"
    return {
        "source": "simulated",
        "title": f"simulated market: {names} names, {days} days, {planted}, seed {seed}",
        "path": "simulated",
        "benchmark_kind": "total return",
        "membership": f"all {names} simulated names on every day",
        "survivorship": False,
        "missing": [],
        "coverage": {},
        "repairs": [],
        "notes": [],
        "versions": package_versions(),
    }
