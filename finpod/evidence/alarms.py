"""Warnings of degenerate policies (all cash, one asset, buy and hold, closet indexing) and of results that are too good."""

from __future__ import annotations

import numpy as np
import pandas as pd

from finpod.active import SMALL
from finpod.market.data import forward_fill
from finpod.measures import DUST, Array
from finpod.records import ResultWarning
from finpod.result import BacktestResult
from finpod.strategy import EqualWeight

ALMOST_ALL = 0.95
"""Share of the account above which a policy counts as all cash, as one name, or as all invested."""
UNTOUCHED = 0.02
"""Share of the account that may stand otherwise than if it had never been touched again, in a buy and hold."""
SAME_CASH = 0.02
"""Standard deviation of the invested share below which it never changes."""
SAME_BETA, SAME_BENCHMARK = 0.05, 0.01
"""Distance of beta from 1, and yearly tracking error, below which a policy is the benchmark."""
SAME_WEIGHT = SMALL
"""Yearly tracking error against equal weight below which a policy is equal weight."""
TOO_GOOD, TOO_FAST, ENOUGH = 3.0, 10.0, 0.5
"""Sharpe ratio, and yearly growth, above which over so many years a result is not believed."""


def alarms(result: BacktestResult) -> tuple[ResultWarning, ...]:
    """Warnings of policies that are no strategy and of results that are too good; none for the benchmark held on purpose."""
    if list(result.weights.columns) == [result.benchmark]:
        return ()
    alive, days = result.equity.to_numpy()[1:] > 0, int((result.turnover > 0).sum())
    weights = result.weights.to_numpy()[1:][alive]
    if not len(weights):  # ruined on the first day, which the figures show
        return ()
    warnings = [_too_good(result), _hardly_invested(weights, days), _one_asset(weights)]
    if days == 1 and len(alive) > 1:
        warnings.append(ResultWarning("one_trading_day"))
    if days > 1 and not result.is_short:
        warnings += [_untouched(result), _constant_cash(weights)]
    if days and not result.is_short:
        warnings += _closet(result.by_session())
    return tuple(warning for warning in warnings if warning is not None)


def _too_good(result: BacktestResult) -> ResultWarning | None:
    """A figure that no strategy with orders once a day is known to have earned."""
    if len(result.returns) < ENOUGH * result.periods_per_year:
        return None
    daily = result.by_session().metrics
    if daily.sharpe > TOO_GOOD:
        return ResultWarning("too_good", {"sharpe": daily.sharpe})
    return ResultWarning("too_good", {"cagr": daily.cagr}) if daily.cagr > TOO_FAST else None


def _hardly_invested(weights: Array, days: int) -> ResultWarning | None:
    cash = float(1 - weights.sum(axis=1).mean())
    if not days:
        return ResultWarning("never_traded")
    return ResultWarning("all_cash", {"cash": cash}) if cash > ALMOST_ALL else None


def _one_asset(weights: Array) -> ResultWarning | None:
    invested = weights.sum(axis=1)
    some = invested > DUST
    if weights.shape[1] == 1 or invested.mean() <= 1 - ALMOST_ALL:
        return None
    largest = float((weights[some].max(axis=1) / invested[some]).mean())
    return ResultWarning("one_asset", {"share": largest}) if largest > ALMOST_ALL else None


def _untouched(result: BacktestResult) -> ResultWarning | None:
    """A buy and hold that trades: at no close does the account differ much from positions left alone."""
    worth = result.weights.to_numpy() * result.equity.to_numpy()[:, None]
    traded = _traded(result)
    shares = np.cumsum(traded[0] + traded[1], axis=0)
    held = (worth > 0) & (shares > 1e-12 * shares.max(axis=0))  # less is rounding
    if not held.any():
        return None
    first = int(held.any(axis=1).argmax())
    mark = forward_fill(np.divide(worth, shares, out=np.full_like(worth, np.nan), where=held), before=0.0)
    moved = np.cumsum(traded[0][first + 1 :], axis=0) * mark[first + 1 :]
    equity = result.equity.to_numpy()[first + 1 :]
    away = np.maximum(moved.clip(min=0).sum(axis=1), -moved.clip(max=0).sum(axis=1))[equity > 0] / equity[equity > 0]
    if not len(away) or away.max() > UNTOUCHED:
        return None
    return ResultWarning("untouched", {"share": float(away.max()), "day": f"{result.equity.index[first]:%Y-%m-%d}"})


def _traded(result: BacktestResult) -> tuple[Array, Array]:
    """Shares [n + 1, N] that fills, and departures, added since the close before; a close fill comes after its close."""
    log, columns = result.trades, pd.Index(result.weights.columns)
    found = np.zeros((2, *result.weights.shape))
    departed = (log["kind"] == "delisted").to_numpy()
    row = result.equity.index.get_indexer(pd.DatetimeIndex(log["date"])) + ((result.fill == "close") & ~departed)
    inside = (row >= 0) & (row < len(result.equity))
    place = departed.astype(int), row, columns.get_indexer(log["ticker"])
    np.add.at(found, tuple(part[inside] for part in place), log["shares"].to_numpy()[inside])
    return found[0], found[1]


def _constant_cash(weights: Array) -> ResultWarning | None:
    invested = weights.sum(axis=1)
    since = invested[int((invested > DUST).argmax()) :]
    if not 1 - ALMOST_ALL < since.mean() < ALMOST_ALL or since.std() > SAME_CASH:
        return None
    return ResultWarning("constant_cash", {"cash": float(1 - since.mean())})


def _closet(daily: BacktestResult) -> list[ResultWarning]:
    """The benchmark, or equal weight, under another name."""
    market, equal, warnings = daily.relative, daily.relative_to_equal_weight, []
    if abs(market.beta - 1) < SAME_BETA and market.tracking_error < SAME_BENCHMARK:
        data = {"beta": market.beta, "tracking_error": market.tracking_error}
        warnings.append(ResultWarning("closet_benchmark", data))
    moved = daily.equal_weight_metrics.volatility > DUST
    if moved and equal.tracking_error < SAME_WEIGHT and daily.strategy != EqualWeight.name:
        warnings.append(ResultWarning("closet_equal_weight", {"tracking_error": equal.tracking_error}))
    return warnings
