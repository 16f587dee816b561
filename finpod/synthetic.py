"""Synthetic markets: simulated markets with a planted signal, and resampled real days without a signal.

The model of the return of asset i in session t is r[t, i] = mu[i] + beta[i] * f[t] + e[t, i]. The market factor f has
mean zero and a standard deviation of 1 % per day. Betas are around 1. The idiosyncratic return is
e[t, i] = 1.5 % * (s * z[t-1, i] + sqrt(1 - s^2) * noise), where z[t-1] is the return of the past `lookback` sessions,
z-scored across the assets. Thus s is the correlation of z with the next day's idiosyncratic return: s > 0 is momentum,
s < 0 reversal. The drift mu[i] is 0.03 % per day * (1 + p * (beta[i] - 1)), where p is the beta premium. Each open
equals the close before it. Overnight returns are thus zero, and a decision after a close earns the return of the whole
next day.

If p and s are zero, all assets have the same expected simple return, and no rule is expected to earn more than equal
weight before costs. The growth rate of a portfolio is below its expected return, by about half its variance.
"""

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from finpod.errors import InputError, require_number, require_seed
from finpod.market.cleaning import package_versions
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.periods import CONTRADICTION, DEFAULT
from finpod.rules import WEEK, SignalOracle, z_scored
from finpod.strategy import Strategy

MARKET_SD, MARKET_DRIFT, IDIOSYNCRATIC_SD = 0.01, 0.0003, 0.015
"""Standard deviation of the market factor, drift, standard deviation of idiosyncratic returns; all per session."""
SIGNAL = 0.1
"""Default signal. A rule that knows the signal then has a yearly information ratio of about 4 after costs."""
BENCHMARK = "simulated equal-weight index"
START = np.datetime64("2010-01-04")
LARGEST = 60_000
"""Largest number of assets, and largest number of days. 60,000 weekdays from 2010 end in the year 2239."""
HOLD, NAMES = WEEK, 20
"""`CALIBRATED` holds for `HOLD` sessions between decisions, `NAMES` assets, and costs of 10 bps per side."""
RATIOS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Yearly information ratios, after costs, that `SignalOracle` reaches with the signals in `CALIBRATED`."""
CALIBRATED: dict[tuple[int, int], tuple[tuple[float, ...], tuple[float, ...]]] = {
    (5, 1): ((0.02028, 0.02886, 0.04055, 0.05132, 0.06188, 0.08244), (0.9, 0.5, 0.3, 0.3, 0.3, 0.3)),
    (5, -1): ((0.02806, 0.03525, 0.04883, 0.06258, 0.07662, 0.10507), (0.5, 0.5, 0.3, 0.3, 0.3, 0)),
    (21, 1): ((0.00897, 0.01374, 0.02189, 0.02974, 0.03754, 0.05298), (0.9, 0.5, 0.3, 0.3, 0.3, 0.3)),
    (21, -1): ((0.00963, 0.01417, 0.0229, 0.03151, 0.04018, 0.05781), (0.5, 0.5, 0.3, 0.3, 0.3, 0.3)),
    (63, 1): ((0.00506, 0.00909, 0.01686, 0.02438, 0.03187, 0.04677), (0.8, 0.7, 0.5, 0.5, 0.5, 0.5)),
    (63, -1): ((0.00617, 0.01034, 0.01841, 0.02651, 0.03451, 0.05054), (0.7, 0.5, 0.5, 0.5, 0.3, 0.3)),
}
"""(lookback, sign) -> (signals, keeps). Each has one value per ratio in `RATIOS`. `SignalOracle` reaches the ratio at
this absolute signal with this `keep`, the best among 0, 0.3, 0.5, 0.7, 0.8, 0.9 and 0.95. The values were computed by
`finpod/bench/calibrate.py` of commit 1d3cf8c. As a check, the mean ratio on 1,000 new markets of 2,600 sessions is
within 0.04 of each of `RATIOS`."""


def random_returns(
    random: np.random.Generator,
    names: int,
    days: int,
    signal: float,
    lookback: int,
    beta_premium: float = 0.0,
    markets: tuple[int, ...] = (),
) -> Array:
    """Return simple returns [T, *markets, N] of the model that the module describes, for several markets at once.

    T is `days`, and N is `names`. `markets` is a shape, such as (100,). The returns of the first day are zero.
    """
    beta = np.clip(random.normal(1.0, 0.2, (*markets, names)), 0.2, None)
    factor = random.normal(0.0, MARKET_SD, (days, *markets))
    noise = random.normal(0.0, 1.0, (days, *markets, names))
    common = MARKET_DRIFT * (1 + beta_premium * (beta - 1)) + beta * factor[..., None]
    returns, wealth = np.zeros_like(noise), np.zeros_like(noise)
    rest = np.sqrt(1 - signal**2) * noise
    for day in range(1, len(returns)):
        shock = noise[day]
        if day > lookback:
            shock = signal * z_scored(np.exp(wealth[day - 1] - wealth[day - 1 - lookback])) + rest[day]
        returns[day] = np.clip(common[day] + IDIOSYNCRATIC_SD * shock, -0.5, None)
        wealth[day] = wealth[day - 1] + np.log1p(returns[day])
    return returns


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedMarket(MarketData):
    """A market made by `simulate_market`, with the rule that knows its signal."""

    signal: float = 0.0
    """Correlation of the past return, z-scored across assets, with the next day's idiosyncratic return."""
    lookback: int = HOLD
    """Number of sessions over which the past return is measured."""

    @property
    def oracle(self) -> Strategy:
        """The rule that knows the signal of this market."""
        signals, keeps = CALIBRATED[self.lookback, -1 if self.signal < 0 else 1]
        return SignalOracle(self.signal, self.lookback, float(np.interp(abs(self.signal), signals, keeps)))


def simulate_market(
    *,
    names: int = NAMES,
    days: int = 2500,
    signal: float | None = None,
    net_ratio: float | None = None,
    lookback: int = 5,
    reversal: bool = False,
    beta_premium: float = 0.0,
    seed: int = 0,
) -> SimulatedMarket:
    """Return a market of `names` stocks over `days` weekdays from 2010-01-04. Equal arguments give equal markets.

    `signal` (default 0.1) is the correlation of the past return over `lookback` (5, 21 or 63) sessions, z-scored across
    stocks, with the next day's idiosyncratic return. `reversal` changes the sign of the signal. `net_ratio` sets the
    signal by its effect: the yearly information ratio, over equal weight, that the rule `oracle` reaches. This rule
    knows the signal, decides every fifth session, pays 10 bps per side and fills at the open. `net_ratio` is from 0 (no
    signal) to 3 for 20 stocks. For N stocks, ratios scale with sqrt(N / 20), which is accurate to 3 % from 20 to 50
    stocks. For a ratio between two of `RATIOS`, the signal is interpolated. `beta_premium` is the fraction of the drift
    that is proportional to beta. Raises InputError for arguments out of range.
    """
    require_number("names", names, 2, LARGEST, whole=True)
    require_number("days", days, 2, LARGEST, whole=True)
    if not isinstance(lookback, Integral) or (lookback, 1) not in CALIBRATED:
        raise InputError(f"lookback is {lookback!r}; choose one of 5, 21 and 63", argument="lookback")
    if signal is not None and net_ratio is not None:
        raise InputError(f"signal {signal} and net_ratio {net_ratio} are both given; pass one", argument="net_ratio")
    if not isinstance(reversal, bool | np.bool_):
        raise InputError(f"reversal is {reversal!r}; pass True or False", argument="reversal")
    require_number("beta_premium", beta_premium, -10, 10)
    strength = SIGNAL if signal is None else signal
    require_number("signal", strength, -1, 1)
    if net_ratio is not None:
        breadth = (names / NAMES) ** 0.5
        require_number("net_ratio", net_ratio, 0, RATIOS[-1] * breadth)
        signals, _ = CALIBRATED[lookback, -1 if reversal else 1]
        strength = np.interp(net_ratio / breadth, [0, *RATIOS], [0, *signals])
    strength = float(-strength if reversal and strength else strength)
    random = np.random.default_rng(require_seed(seed))
    returns = random_returns(random, names, days, strength, lookback, beta_premium)
    close = random.lognormal(4.0, 0.5, names) * np.cumprod(1 + returns, axis=0)
    reach = np.abs(random.normal(0, 0.004, (2, days, names)))
    planted = f"a planted signal of {strength:g}" + (f" over {lookback} days" if lookback != HOLD else "")
    title = f"simulated market: {names} names, {days} days, {planted if strength else 'no signal'}, seed {seed}"
    index = 100 * np.cumprod(1 + returns.mean(axis=1))
    fields = _fields(close, index, title, f"all {names} simulated names on every day")
    return SimulatedMarket(
        **fields,
        tickers=tuple(f"S{n:0{len(str(names))}d}" for n in range(1, names + 1)),
        high=np.maximum(fields["open"], close) * np.exp(reach[0]),
        low=np.minimum(fields["open"], close) * np.exp(-reach[1]),
        volume=np.round(random.lognormal(13.0, 0.5, (days, names))),
        benchmark=BENCHMARK,
        signal=strength,
        lookback=lookback,
    )


def resampled(market: MarketData, *, days: int | None = None, seed: int) -> MarketData:
    """Return a market of `days` days (default: the number in `market`), drawn with replacement from those of `market`.

    A drawn day has the returns of all assets and of the benchmark, and the dollar volumes. Correlations and fat tails
    are preserved, volatility clustering is not. All assets are members on every day, even if they were not in `market`.

    Successive days are independent. Each open is set to the previous close: real overnight gaps partly reverse, and a
    rule that trades at the open would profit from this. A constant c[i] is subtracted from the returns r[t, i],

        c[i] = mean_t((r[t, i] - e[t]) / (1 + e[t])) / mean_t(1 / (1 + e[t])),    e[t] = mean_i r[t, i].

    This makes equal weight the numeraire portfolio of these days (Long 1990): before costs, no rule is expected to
    grow faster. With equal mean returns instead, assets of low volatility would grow faster. Days are not drawn in
    blocks, because a rule that buys the losers of the past five days would profit from blocks.

    Raises InputError for missing bars, for a market without about 252 bars per year, and for fewer than two days.
    """
    length, per_year = len(market.dates), market.periods_per_year
    if length < 2 or not DEFAULT / CONTRADICTION <= per_year <= DEFAULT * CONTRADICTION:
        raise InputError(
            f"the market has {length} bars, {per_year:g} per year; pass two or more daily bars, about {DEFAULT} a year",
            argument="market",
        )
    if not (market.has_bar.all() and np.isfinite(market.benchmark_close).all()):
        raise InputError("the market or its benchmark has missing bars; select assets and dates without them")
    count = length if days is None else days
    require_number("days", count, 2, LARGEST, whole=True)
    rows = np.random.default_rng(require_seed(seed)).integers(1, length, count)
    returns = market.close[1:] / market.close[:-1] - 1
    equal = returns.mean(axis=1, keepdims=True)
    returns -= ((returns - equal) / (1 + equal)).mean(axis=0) / (1 / (1 + equal)).mean()
    close = _wealth(market.close[0], returns[rows - 1])
    index = market.benchmark_close
    drawn_index = _wealth(index[0], (index[1:] / index[:-1] - 1)[rows - 1])
    volume = None if market.volume is None else (market.close * market.volume)[rows] / close
    title = f"{count} days drawn with replacement from {market.title.partition(',')[0]}, seed {seed}"
    fields = _fields(close, drawn_index, title, f"all {len(market.tickers)} names on every day")
    return MarketData(**fields, tickers=market.tickers, volume=volume, benchmark=market.benchmark)


def _fields(close: Array, benchmark_close: Array, title: str, membership: str) -> dict[str, Any]:
    """Return dates, opens, closes and manifest of a synthetic market. Each open is the close before it."""
    open_, benchmark_open = (np.concatenate([closes[:1], closes[:-1]]) for closes in (close, benchmark_close))
    known = {"source": "simulated", "title": title, "path": "simulated", "benchmark_kind": "total return"}
    empty: dict[str, Any] = {"missing": [], "coverage": {}, "repairs": [], "notes": []}
    return {
        "dates": np.busday_offset([START], np.arange(len(close))),
        "open": open_,
        "close": close,
        "benchmark_open": benchmark_open,
        "benchmark_close": benchmark_close,
        "manifest": {**known, "membership": membership, "survivorship": False, **empty, "versions": package_versions()},
    }


def _wealth(start: Array, returns: Array) -> Array:
    """Return prices [T, ...] that start at `start` [...] and have the given returns; the first return is ignored."""
    return np.cumprod(np.concatenate([[start], 1 + returns[1:]]), axis=0)
