"""What makes a policy none, or a result too good: all cash, one name, a purchase never touched again, a known rule renamed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from finpod.market.data import Array
from finpod.measures import DUST
from finpod.result import BacktestResult
from finpod.strategy import EqualWeight
from finpod.table import percent, ratio

ALMOST_ALL = 0.95
"""Share of the account above which a policy counts as all cash, as one name, or as all invested."""
UNTOUCHED = 0.02
"""Share of the account that may stand otherwise than if it had never been touched again, in a buy and hold."""
SAME_CASH = 0.02
"""Standard deviation of the invested share below which it never changes."""
SAME_BETA, SAME_BENCHMARK = 0.05, 0.01
"""Distance of beta from 1, and yearly tracking error, below which a policy is the benchmark."""
SAME_WEIGHT = 0.005
"""Yearly tracking error against equal weight below which a policy is equal weight."""
TOO_GOOD, TOO_FAST, ENOUGH = 3.0, 10.0, 0.5
"""Sharpe ratio, and yearly growth, above which over so many years a result is not believed."""


def alarms(result: BacktestResult) -> tuple[str, ...]:
    """What makes a result that of no strategy, one sentence each; nothing is said of the benchmark held on purpose."""
    if list(result.weights.columns) == [result.benchmark]:
        return ()
    alive, days = result.equity.to_numpy()[1:] > 0, int((result.turnover > 0).sum())
    weights = result.weights.to_numpy()[1:][alive]
    if not len(weights):  # ruined at once, which the figures say well enough
        return ()
    said = [_too_good(result), _hardly_invested(weights, days), _one_name(weights)]
    if days == 1 and len(alive) > 1:
        said.append("buy and hold: it traded on one day only")
    if days > 1 and not result.is_short:
        said += [_untouched(result), _constant_cash(weights)]
    if days and not result.is_short:
        said += _disguises(result.by_session())
    return tuple(sentence for sentence in said if sentence)


def _too_good(result: BacktestResult) -> str:
    """What no strategy with orders once a day has earned, as far as is known."""
    if len(result.returns) < ENOUGH * result.periods_per_year:
        return ""
    daily = result.by_session().metrics
    if daily.sharpe > TOO_GOOD:
        what = f"a Sharpe ratio of {ratio(daily.sharpe)}"
    elif daily.cagr > TOO_FAST:
        what = f"growth of {percent(daily.cagr, 0)} a year"
    else:
        return ""
    return f"too good: {what} is more than any known daily strategy earns after costs; look for look-ahead first"


def _hardly_invested(weights: Array, days: int) -> str:
    cash = 1 - weights.sum(axis=1).mean()
    if not days:
        return "degenerate policy: it never traded"
    return f"degenerate policy: almost all cash, {percent(cash, 1)} of the account" if cash > ALMOST_ALL else ""


def _one_name(weights: Array) -> str:
    invested = weights.sum(axis=1)
    some = invested > DUST
    if weights.shape[1] == 1 or invested.mean() <= 1 - ALMOST_ALL:
        return ""
    largest = (weights[some].max(axis=1) / invested[some]).mean()
    said = f"degenerate policy: almost all in one name, {percent(largest, 1)} of what is invested"
    return said if largest > ALMOST_ALL else ""


def _untouched(result: BacktestResult) -> str:
    """A buy and hold that trades: at no close much of the account stands otherwise than if it had been left alone."""
    worth = result.weights.to_numpy() * result.equity.to_numpy()[:, None]
    traded = _traded(result)
    shares = np.cumsum(traded[0] + traded[1], axis=0)
    held = (worth > 0) & (shares > 1e-12 * shares.max(axis=0))  # less is what rounding left
    if not held.any():
        return ""
    first = int(held.any(axis=1).argmax())
    rows = np.maximum.accumulate(np.where(held, np.arange(len(held))[:, None], 0), axis=0)
    mark = np.take_along_axis(np.divide(worth, shares, out=np.zeros_like(worth), where=held), rows, axis=0)
    moved = np.cumsum(traded[0][first + 1 :], axis=0) * mark[first + 1 :]
    equity = result.equity.to_numpy()[first + 1 :]
    away = np.maximum(moved.clip(min=0).sum(axis=1), -moved.clip(max=0).sum(axis=1))[equity > 0] / equity[equity > 0]
    if not len(away) or away.max() > UNTOUCHED:
        return ""
    return (
        f"buy and hold in disguise: never more than {percent(away.max(), 1)} of the account stood otherwise than if it had "
        f"been left alone from {result.equity.index[first]:%Y-%m-%d} on"
    )


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


def _constant_cash(weights: Array) -> str:
    invested = weights.sum(axis=1)
    since = invested[int((invested > DUST).argmax()) :]
    if not 1 - ALMOST_ALL < since.mean() < ALMOST_ALL or since.std() > SAME_CASH:
        return ""
    return f"market timing that never switches: about {percent(1 - since.mean(), 0)} of the account is always in cash"


def _disguises(daily: BacktestResult) -> list[str]:
    """The benchmark, or equal weight, under another name."""
    market, equal, said = daily.relative, daily.relative_to_equal_weight, []
    if abs(market.beta - 1) < SAME_BETA and market.tracking_error < SAME_BENCHMARK:
        said.append(
            f"the benchmark in disguise: beta {market.beta:.2f}, and a tracking error of "
            f"{percent(market.tracking_error)} a year"
        )
    moved = daily.equal_weight_metrics.volatility > DUST
    if moved and equal.tracking_error < SAME_WEIGHT and daily.strategy != EqualWeight.name:
        said.append(f"equal weight in disguise: a tracking error of {percent(equal.tracking_error)} a year")
    return said
