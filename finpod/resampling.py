"""Real days in a random order, drawn with replacement: a market on which no rule outgrows equal weight but by luck."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from finpod.errors import InputError
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.periods import CONTRADICTION, DEFAULT
from finpod.seeds import require_seed
from finpod.synthetic import LARGEST, START, manifest_of, opens_of, require_number


def resampled(market: MarketData, *, days: int | None = None, seed: int) -> MarketData:
    """Return a market of `days` weekdays (as many as there are by default) drawn with replacement from those of `market`.

    A day is drawn whole: all names and the benchmark together, with highs, lows and the dollar volume. Correlations and fat
    tails stay; changes of calm and stormy times do not. All names are members on every day, whatever they were in `market`.

    What a day did tells nothing of the next, and every open is the close before it, for real gaps close again in part, from
    which a rule that trades at the open would earn. A constant c[i] is taken from the returns r[t, i] of each name,

        c[i] = mean_t((r[t, i] - e[t]) / (1 + e[t])) / mean_t(1 / (1 + e[t])),    e[t] = mean_i r[t, i],

    which makes equal weight the numeraire portfolio of these days (Long 1990): before costs no rule is expected to grow
    faster. Equal means alone would not do. On 20 names of the NASDAQ-100, 2008 to 2021, a tilt to low volatility grows faster
    then, since it loses less to variance, and over 8 years its growth is called skill in 5.5 % of 3,000 markets; with c it is
    2.0 %. Blocks of days would not do either: buying the losers of five days earns from them.

    Raises InputError for a market with missing bars or of other than daily ones, and for fewer than two days.
    """
    if not isinstance(market, MarketData):
        raise InputError(f"market is of type {type(market).__name__}; give a MarketData", argument="market")
    length, per_year = len(market.dates), market.periods_per_year
    if length < 2 or not DEFAULT / CONTRADICTION <= per_year <= DEFAULT * CONTRADICTION:
        raise InputError(
            f"market has length {length} and {per_year:g} bars a year; give two daily bars or more, {DEFAULT} a year",
            argument="market",
        )
    if not (market.has_bar.all() and np.isfinite(market.benchmark_close).all()):
        raise InputError("a market with missing bars cannot be resampled; select names and dates without any")
    count = length if days is None else days
    require_number("days", count, 2, LARGEST, Integral)
    rows = np.random.default_rng(require_seed(seed)).integers(1, length, count)
    returns = market.close[1:] / market.close[:-1] - 1
    equal = returns.mean(axis=1, keepdims=True)
    returns -= ((returns - equal) / (1 + equal)).mean(axis=0) / (1 / (1 + equal)).mean()
    close = _wealth(market.close[0], returns[rows - 1])
    index = market.benchmark_close
    benchmark_close = _wealth(index[0], (index[1:] / index[:-1] - 1)[rows - 1])
    opens, reach = opens_of(close), market.close
    bars: dict[str, Any] = {
        name: None if (table := getattr(market, name)) is None else outer(close * (table / reach)[rows], opens)
        for name, outer in (("high", np.maximum), ("low", np.minimum))
    }
    volume = None if market.volume is None else (market.close * market.volume)[rows] / close
    title = f"{count} days drawn with replacement from {market.title.partition(',')[0]}, seed {seed}"
    return MarketData(
        dates=np.busday_offset([START], np.arange(count)),
        tickers=market.tickers,
        open=opens,
        close=close,
        **bars,
        volume=volume,
        benchmark=market.benchmark,
        benchmark_close=benchmark_close,
        benchmark_open=opens_of(benchmark_close),
        manifest=manifest_of(title, f"all {len(market.tickers)} names on every day"),
    )


def _wealth(start: Array, returns: Array) -> Array:
    """[T, ...] prices from `start` [...]; the return of the first day is not taken."""
    steps = 1 + returns
    steps[0] = start
    return np.cumprod(steps, axis=0)
