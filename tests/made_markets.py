"""Small markets for tests of trading."""

from typing import Any

import numpy as np
import pandas as pd
import torch

from finpod.market.data import MarketData

NAN = float("nan")


def t(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def make_market(close, *, start="2024-01-01", benchmark=None, **tables: Any) -> MarketData:
    """A market of the closes [T, N] (or [T] for one name A) on weekdays from `start`; the benchmark is flat if not given."""
    close = np.asarray(close, dtype=float)
    if close.ndim == 1:
        close = close[:, None]
        tables |= {name: np.asarray(tables[name])[:, None] for name in ("open", "member", "factor") if name in tables}
    return MarketData(
        dates=np.busday_offset(start, np.arange(len(close)), roll="forward").astype("datetime64[ns]"),
        close=close,
        benchmark_close=np.full(len(close), 100.0) if benchmark is None else np.asarray(benchmark, dtype=float),
        **{"tickers": tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: close.shape[1]]), **tables},
    )


def random_market(days=30, names=5, *, seed=0, gaps=0.1, **changes: Any) -> MarketData:
    """Random prices with members and factors that change and, with gaps, missing bars and a last name that leaves midway."""
    random = np.random.default_rng(seed)
    close = random.lognormal(3, 0.5, names) * np.cumprod(1 + random.normal(0, 0.03, (days, names)), axis=0)
    opened = close * np.exp(random.normal(0, 0.01, close.shape))
    gone = random.random(close.shape) < gaps
    gone[days // 2 :, -1] = gaps > 0
    close[gone], opened[gone | (random.random(close.shape) < gaps / 2)] = NAN, NAN
    tables = {
        "open": opened,
        "member": random.random(close.shape) < 0.8,
        "factor": np.where(gone, NAN, random.uniform(0.5, 1.0, names)),
        "benchmark": 300 * np.cumprod(1 + random.normal(0, 0.01, days)),
        "benchmark_open": 300 * np.cumprod(1 + random.normal(0, 0.01, days)),
    }
    return make_market(close, **{**tables, **changes})


def intraday_market(days=30, bars=4) -> MarketData:
    """Three names A, B and C over a few bars a day, each opening where it closed; B is the benchmark."""
    dates = [
        day + pd.Timedelta("9h30min") + pd.timedelta_range(0, periods=bars, freq="1h")
        for day in pd.bdate_range("2024-01-01", periods=days)
    ]
    close = 50 * np.cumprod(1 + np.random.default_rng(0).normal(0, 0.002, (days * bars, 3)), axis=0)
    return MarketData(
        dates=np.concatenate(dates),
        tickers=("A", "B", "C"),
        close=close,
        open=np.vstack([close[:1], close[:-1]]),
        benchmark="B",
        benchmark_close=close[:, 1],
        manifest={},
    )


def flat_market(*prices, days=4, **tables):
    """Constant prices, at the open and at the close."""
    return make_market(np.tile(np.array(prices, dtype=float), (days, 1)), open=np.tile(prices, (days, 1)), **tables)


def last_move(market):
    """The return of the last session, a feature."""
    return np.vstack([np.full((1, market.shape[1]), NAN), market.close[1:] / market.close[:-1] - 1])


def random_weights(market, seed=0):
    random = np.random.default_rng(seed)
    raw = random.random(market.shape) * (random.random(market.shape) < 0.7)
    return raw / np.maximum(raw.sum(axis=1, keepdims=True), 1e-9) * random.uniform(0.3, 1, (len(raw), 1))
