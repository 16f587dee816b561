"""Markets with a known answer: a planted signal of stated strength, and the rule that knows it.

Model, for session t and name i: r[t, i] = mu[i] + beta[i] * f[t] + e[t, i], with a market factor f of mean zero and 1 % a day,
betas around 1, and e[t, i] = 1.5 % * (s * z[t-1, i] + sqrt(1 - s^2) * noise), where z[t-1] is the return of the past
`lookback` sessions, z-scored across the names. So s is the correlation of z with the next day's idiosyncratic return: above
zero is momentum, below zero reversal. The drift mu[i] is 0.03 % a day times 1 + p * (beta[i] - 1), with p the beta premium.
Every open equals the close before it: overnight returns are zero, and a decision after a close earns the whole next day.

Where p and s are zero all names have the same expected simple return, and no rule is expected to earn more than equal weight
before costs. The growth of a volatile portfolio is still lower, by half its variance.
"""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from finpod.errors import InputError
from finpod.market.cleaning import package_versions
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.seeds import require_seed
from finpod.strategy import Decision, MarketView, Strategy, equal_parts

MARKET_SD, MARKET_DRIFT, IDIOSYNCRATIC_SD = 0.01, 0.0003, 0.015
"""Standard deviation of the market factor, drift, and standard deviation of the idiosyncratic return, a session."""
SIGNAL = 0.1
"""Signal of a market for which nothing is asked; the net ratio of the informed rule is about 4."""
BENCHMARK = "simulated equal-weight index"
START = np.datetime64("2010-01-04")
LARGEST = 60_000
"""Most names, and most days: those end in the year 2239."""
HOLD, FEE_BPS, NAMES = 5, 10.0, 20
"""Sessions between decisions of the informed rule, its costs, and number of names: the terms of `CALIBRATED`."""
RATIOS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Net information ratios a year of the informed rule for which signals are known."""


class Calibration(NamedTuple):
    """Signals of one lookback and sign that give each of `RATIOS`; the tuples follow these."""

    signals: tuple[float, ...]
    """Without the sign."""
    keeps: tuple[float, ...]
    """Share of its holding that the informed rule keeps at each decision: the best of 0, 0.3, 0.5, 0.7, 0.8, 0.9 and 0.95."""
    measured: tuple[float, ...]
    """Mean ratio on 1,000 markets of 2,600 sessions that were not used to find the signal and the share; all are within 0.04."""
    errors: tuple[float, ...]
    """Standard errors of these means."""


CALIBRATED: dict[tuple[int, int], Calibration] = {
    (5, 1): Calibration(
        signals=(0.02028, 0.02886, 0.04055, 0.05132, 0.06188, 0.08244),
        keeps=(0.9, 0.5, 0.3, 0.3, 0.3, 0.3),
        measured=(0.258, 0.494, 0.988, 1.486, 1.984, 2.98),
        errors=(0.01, 0.01, 0.011, 0.011, 0.011, 0.011),
    ),
    (5, -1): Calibration(
        signals=(0.02806, 0.03525, 0.04883, 0.06258, 0.07662, 0.10507),
        keeps=(0.5, 0.5, 0.3, 0.3, 0.3, 0),
        measured=(0.264, 0.512, 1.029, 1.528, 2.022, 3.025),
        errors=(0.01, 0.009, 0.009, 0.009, 0.009, 0.009),
    ),
    (21, 1): Calibration(
        signals=(0.00897, 0.01374, 0.02189, 0.02974, 0.03754, 0.05298),
        keeps=(0.9, 0.5, 0.3, 0.3, 0.3, 0.3),
        measured=(0.259, 0.531, 1.027, 1.527, 2.026, 3.024),
        errors=(0.01, 0.01, 0.01, 0.01, 0.01, 0.01),
    ),
    (21, -1): Calibration(
        signals=(0.00963, 0.01417, 0.0229, 0.03151, 0.04018, 0.05781),
        keeps=(0.5, 0.5, 0.3, 0.3, 0.3, 0.3),
        measured=(0.216, 0.467, 0.973, 1.474, 1.974, 2.976),
        errors=(0.009, 0.009, 0.009, 0.009, 0.009, 0.009),
    ),
    (63, 1): Calibration(
        signals=(0.00506, 0.00909, 0.01686, 0.02438, 0.03187, 0.04677),
        keeps=(0.8, 0.7, 0.5, 0.5, 0.5, 0.5),
        measured=(0.235, 0.484, 0.985, 1.484, 1.984, 2.984),
        errors=(0.01, 0.01, 0.01, 0.01, 0.01, 0.01),
    ),
    (63, -1): Calibration(
        signals=(0.00617, 0.01034, 0.01841, 0.02651, 0.03451, 0.05054),
        keeps=(0.7, 0.5, 0.5, 0.5, 0.3, 0.3),
        measured=(0.261, 0.503, 1, 1.496, 1.991, 2.986),
        errors=(0.01, 0.01, 0.01, 0.01, 0.01, 0.01),
    ),
}
"""(lookback, sign) -> its signals, made by `python -m finpod.bench.calibrate`."""


class Draws(NamedTuple):
    """What is random in the returns of markets; leading dimensions are free."""

    beta: Array
    """[..., N]"""
    factor: Array
    """[T, ...]"""
    noise: Array
    """[T, ..., N], standard normal."""


def draw(random: np.random.Generator, names: int, days: int, markets: tuple[int, ...] = ()) -> Draws:
    """Draw what is random in markets of shape `markets`."""
    beta = np.clip(random.normal(1.0, 0.2, (*markets, names)), 0.2, None)
    factor = random.normal(0.0, MARKET_SD, (days, *markets))
    return Draws(beta, factor, random.normal(0.0, 1.0, (days, *markets, names)))


def returns_of(draws: Draws, signal: float, lookback: int, beta_premium: float = 0.0) -> Array:
    """Return the simple returns [T, ..., N] of the model; those of the first day are zero."""
    common = MARKET_DRIFT * (1 + beta_premium * (draws.beta - 1)) + draws.beta * draws.factor[..., None]
    returns = np.zeros_like(draws.noise)
    wealth = np.zeros_like(draws.noise)
    noise = np.sqrt(1 - signal**2) * draws.noise
    for day in range(1, len(returns)):
        shock = draws.noise[day]
        if day > lookback:
            past = np.exp(wealth[day - 1] - wealth[day - 1 - lookback])
            shock = signal * z_scored(past) + noise[day]
        returns[day] = np.clip(common[day] + IDIOSYNCRATIC_SD * shock, -0.5, None)
        wealth[day] = wealth[day - 1] + np.log1p(returns[day])
    return returns


def z_scored(values: Array) -> Array:
    """Return values [..., N] less their mean, over their standard deviation; zero where all are equal."""
    centred = values - values.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True))
    return centred / np.where(spread > 0, spread, 1.0)


def forecast(closes: Array, lookback: int) -> Array:
    """Return scores [..., N] of the signal over the next `HOLD` sessions, of closes [lookback + 1, ..., N].

    On day h of them the past return will be that of the last lookback - h sessions and of h sessions not known yet. The
    score is the mean over h, z-scored across names.
    """
    return z_scored(np.mean([closes[-1] / closes[h] for h in range(min(HOLD, lookback))], axis=0))


def tilted(score: Array) -> Array:
    """Return weights [..., N] proportional to exp(tanh score), the strongest tilt that agents have by default.

    Weaker tilts have higher net ratios, but not by skill: they save a part of what equal weight pays to stay equal.
    """
    parts = np.exp(np.tanh(score))
    return parts / parts.sum(axis=-1, keepdims=True)


def partly(held: Array, wanted: Array, keep: Array | float) -> Array:
    """Return weights [..., N] between those held, which need no sum of one, and those wanted; the latter while all is cash."""
    total = held.sum(axis=-1, keepdims=True)
    before = np.where(total > 0, held / np.where(total > 0, total, 1.0), wanted)
    return keep * before + (1 - keep) * wanted


class Oracle(Strategy):
    """The informed rule: it knows the planted signal, decides each fifth session and minds its costs.

    It tilts equal weight by the `forecast` and moves only a part of the way there; see `CALIBRATED`.
    """

    name = "oracle"
    every = HOLD

    def __init__(self, signal: float, lookback: int = HOLD) -> None:
        self.signal, self.lookback = signal, lookback
        known = CALIBRATED[lookback, -1 if signal < 0 else 1]
        self.keep = float(np.interp(abs(signal), known.signals, known.keeps))

    def decide(self, view: MarketView) -> Decision:
        """Return the weights; equal ones while there are too few sessions, and for a signal of zero."""
        among = view.tradable & view.member
        closes = view.closes(self.lookback + 1)
        known = among & np.isfinite(closes).all(axis=0)
        if self.signal == 0 or not known.any():
            return equal_parts(among)
        weights = np.zeros(len(among))
        score = np.sign(self.signal) * forecast(closes[:, known], self.lookback)
        weights[known] = partly(view.held[known], tilted(score), self.keep)
        return weights


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedMarket(MarketData):
    """A market made by `simulate_market`."""

    signal: float = 0.0
    """Correlation of the cross-sectional past return with the next day's idiosyncratic return."""
    lookback: int = HOLD
    """Sessions over which that past return is taken."""

    @property
    def oracle(self) -> Strategy:
        """The informed rule, which knows the signal."""
        return Oracle(self.signal, self.lookback)


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
    """Return a market of `names` stocks over `days` weekdays from 2010-01-04, the same for the same arguments.

    `signal` is the correlation of the past return over `lookback` (5, 21 or 63) sessions, z-scored across names, with the
    next day's idiosyncratic return; `reversal` turns its sign. `net_ratio`, in place of it, is the yearly information ratio
    of the informed rule (`oracle`) over equal weight, decisions each fifth session, 10 bps a side, fills at the open: from 0
    (no signal) to 3 for 20 names, and times sqrt(names / 20) for others, which holds to 3 % from 20 to 50 names. Between
    `RATIOS` it is interpolated. Without either the signal is 0.1. `beta_premium` is the share of the drift
    that is paid for beta: at 1 a name of beta 2 drifts twice as fast as one of beta 1.

    Raises InputError for arguments out of range.
    """
    require_number("names", names, 2, LARGEST, Integral)
    require_number("days", days, 2, LARGEST, Integral)
    known = sorted({key[0] for key in CALIBRATED})
    if not isinstance(lookback, Integral) or lookback not in known:
        raise InputError(f"lookback is {lookback!r}; choose one of {', '.join(map(str, known))}", argument="lookback")
    if signal is not None and net_ratio is not None:
        raise InputError(f"signal {signal} and net_ratio {net_ratio} are both given; give one", argument="net_ratio")
    if not isinstance(reversal, bool | np.bool_):
        raise InputError(f"reversal is {reversal!r}; give True or False", argument="reversal")
    require_number("beta_premium", beta_premium, -10, 10)
    strength = SIGNAL if signal is None else signal
    require_number("signal", strength, -1, 1)
    if net_ratio is not None:
        strength = _signal_for(net_ratio, names, lookback, reversal)
    strength = float(-strength if reversal and strength else strength)
    random = np.random.default_rng(require_seed(seed))
    returns = returns_of(draw(random, names, days), strength, lookback, beta_premium)
    close = random.lognormal(4.0, 0.5, names) * np.cumprod(1 + returns, axis=0)
    opens = opens_of(close)
    reach = np.abs(random.normal(0, 0.004, (2, days, names)))
    benchmark_close = 100 * np.cumprod(1 + returns.mean(axis=1))
    planted = f"a planted signal of {strength:g}" + (f" over {lookback} days" if lookback != HOLD else "")
    title = f"simulated market: {names} names, {days} days, {planted if strength else 'no signal'}, seed {seed}"
    return SimulatedMarket(
        dates=np.busday_offset([START], np.arange(days)),
        tickers=tuple(f"S{n:0{len(str(names))}d}" for n in range(1, names + 1)),
        open=opens,
        high=np.maximum(opens, close) * np.exp(reach[0]),
        low=np.minimum(opens, close) * np.exp(-reach[1]),
        close=close,
        volume=np.round(random.lognormal(13.0, 0.5, (days, names))),
        benchmark=BENCHMARK,
        benchmark_close=benchmark_close,
        benchmark_open=opens_of(benchmark_close),
        signal=strength,
        lookback=lookback,
        manifest=manifest_of(title, f"all {names} simulated names on every day"),
    )


def opens_of(close: Array) -> Array:
    """The close before each; the first close on the first day."""
    return np.concatenate([close[:1], close[:-1]])


def _signal_for(net_ratio: float, names: int, lookback: int, reversal: bool) -> float:
    """The signal that has a net ratio, without its sign. Raises InputError for a ratio that was not calibrated."""
    breadth = (names / NAMES) ** 0.5
    require_number("net_ratio", net_ratio, 0, RATIOS[-1] * breadth, of=f" for {names} names")
    signals = CALIBRATED[lookback, -1 if reversal else 1].signals
    return float(np.interp(net_ratio / breadth, [0, *RATIOS], [0, *signals]))


def require_number(name: str, value: Any, least: int, most: float, kind: Any = Real, of: str = "") -> None:
    """Raise InputError for a value that is no number of this kind within [least, most]."""
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
        number, bound = "whole number" if kind is Integral else "number", np.floor(100 * most) / 100
        raise InputError(f"{name} is {value!r}; give a {number} from {least} to {bound:g}{of}", argument=name)


def manifest_of(title: str, membership: str) -> dict[str, object]:
    """Return the manifest of a market that was made."""
    return {
        "source": "simulated",
        "title": title,
        "path": "simulated",
        "benchmark_kind": "total return",
        "membership": membership,
        "survivorship": False,
        "missing": [],
        "coverage": {},
        "repairs": [],
        "notes": [],
        "versions": package_versions(),
    }
