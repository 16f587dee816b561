"""Attribution of a result to market exposure, active positions, assets and months; warnings of degenerate policies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from finpod.active import SMALL
from finpod.market.data import forward_fill
from finpod.measures import DUST, Array, period_returns, simple_returns
from finpod.records import ResultWarning, records
from finpod.result import BacktestResult
from finpod.rules import EqualWeight

WORST = 5
"""Largest number of months in the entry 'worst_months' of `attribute`."""
ALMOST_ALL = 0.95
"""Mean fraction above which an account counts as all in cash, as fully invested, or as invested in a single asset."""
UNTOUCHED = 0.02
"""Largest deviation from the first positions, as a fraction of the account, that still counts as buy and hold."""
SAME_CASH = 0.02
"""Largest standard deviation of the invested fraction at which this fraction counts as constant."""
SAME_BETA, SAME_BENCHMARK = 0.05, 0.01
"""Limits of |beta - 1| and of the yearly tracking error. A policy below both limits counts as a closet benchmark."""
TOO_GOOD, TOO_FAST, ENOUGH = 3.0, 10.0, 0.5
"""A Sharpe ratio above `TOO_GOOD` or a CAGR above `TOO_FAST` gives the warning "too_good", if the history has at least
`ENOUGH` years."""


def attribute(result: BacktestResult) -> dict[str, Any]:
    """Return the sources of the return of a backtest as plain values. Undefined values are NaN.

    'beta'                    beta to the benchmark: cov(r, b) / var(b) for the returns r of the account and the returns
                              b of the benchmark on common dates
    'explained'               fraction of the variance of r that b explains: corr(r, b)^2; NaN for constant returns or
                              fewer than three common returns
    'equal_weight_beta', 'equal_weight_explained'   the same two figures, with the returns of the point-in-time
                              equal-weight portfolio as b
    'invested'                mean fraction of the account that is invested
    'names'                   mean number of assets held, over the days with positions
    'effective_names'         mean of 1 / sum(w^2) over the days with positions; w = position / invested amount
    'largest', 'largest_name' largest weight of any asset on any day, and its ticker; empty if no asset was held
    'yearly_turnover'         traded notional / equity at the fill, both sides counted, per year
    'holding_days'            mean holding period in days: (sum of the invested fraction over the closes) / (sum of the
                              fraction bought over the fills). For a buy and hold, which never sells, this is the whole
                              window
    'rising_days', 'rising_months'     fraction of the days or months with a nonzero return that have a gain
    'winning_days', 'winning_months'   the same for the return of the account minus that of equal weight
    'gaining_names'           fraction of the assets with a nonzero gain that have a positive gain
    'contributions'           ticker -> gain, from the function `contributions`
    'contribution_shares'     ticker -> gain / initial cash. These fractions sum to the total return
    'worst_months'            the `WORST` months with the lowest returns of the benchmark, the worst first. Each has
                              'month' (YYYY-MM) and the returns of 'benchmark', 'strategy' and 'equal_weight' on the
                              dates on which the benchmark has a value. Equal weight replaces a benchmark without
                              returns. A month may be partial
    'alarms'                  the warnings of `flags` as plain values

    Days are sessions, also for intraday data. Months are calendar months.
    """
    daily, gains = result.by_session(), contributions(result)
    steps, equal_steps = (simple_returns(curve.to_numpy()) for curve in (daily.equity, daily.equal_weight_equity))
    equal = result.equal_weight_equity
    curves = {"strategy": result.equity, "benchmark": result.benchmark_equity, "equal_weight": equal}

    def by_month(curve: pd.Series) -> pd.Series:
        at, values = period_returns(curve.to_numpy(), curve.index, "month")
        return pd.Series(values, at.astype(str))

    months = pd.DataFrame({name: by_month(curve) for name, curve in curves.items()}).sort_index()
    by = "benchmark" if months["benchmark"].notna().any() else "equal_weight"
    known = curves[by].notna()
    shown = pd.DataFrame({name: by_month(curve.where(known)) for name, curve in curves.items()}).sort_index()
    worst = shown.dropna(subset=[by]).sort_values(by, kind="stable").head(WORST)
    return _bets(result) | {
        "beta": daily.relative.beta,
        "explained": _explained(daily.equity, daily.benchmark_equity),
        "equal_weight_beta": daily.relative_to_equal_weight.beta,
        "equal_weight_explained": _explained(daily.equity, daily.equal_weight_equity),
        "yearly_turnover": result.table["strategy"]["yearly_turnover"],
        "holding_days": _holding_days(result),
        "rising_days": _share_above(steps),
        "winning_days": _share_above(steps - equal_steps),
        "rising_months": _share_above(months["strategy"]),
        "winning_months": _share_above(months["strategy"] - months["equal_weight"]),
        "gaining_names": _share_above(gains / result.equity.iloc[0]),
        "contributions": gains.to_dict(),
        "contribution_shares": (gains / result.equity.iloc[0]).to_dict(),
        "worst_months": worst.rename_axis("month").reset_index().to_dict("records"),
        "alarms": records(flags(result)),
    }


def contributions(result: BacktestResult) -> pd.Series:
    """Return the gain of each asset that was traded or held, in currency, net of its costs, in descending order.

    The gain is final value - initial value - purchases + sales - costs. The gains sum to the gain of the account.
    """
    worth = result.weights.mul(result.equity, axis=0)
    flows = result.trades.groupby("ticker")[["notional", "cost"]].sum().sum(axis=1).reindex(worth.columns)
    gain = worth.iloc[-1] - worth.iloc[0] - flows.fillna(0.0)
    touched = flows.notna() | (worth > 0).any()
    return gain[touched].astype(float).sort_values(ascending=False, kind="stable").rename("contribution")


def flags(result: BacktestResult) -> tuple[ResultWarning, ...]:
    """Return warnings about a degenerate policy, and about a result that is too good to be true.

    A policy is degenerate if it never trades, holds almost only cash or one asset, buys and holds, keeps constant cash,
    or copies the benchmark or equal weight. A strategy that trades only the benchmark has no such warnings.
    """
    return tuple(_flags(result))


def _flags(result: BacktestResult) -> Iterator[ResultWarning]:
    weights = result.weights.to_numpy()[1:][result.equity.to_numpy()[1:] > 0]
    trades_benchmark = list(result.weights.columns) == [result.benchmark]
    if trades_benchmark or not len(weights):  # ruin on the first day has its own warning
        return
    daily, invested, days = result.by_session(), weights.sum(axis=1), int((result.turnover > 0).sum())
    some = invested > DUST
    if len(result.returns) >= ENOUGH * result.periods_per_year:
        for figure, limit in (("sharpe", TOO_GOOD), ("cagr", TOO_FAST)):
            if getattr(daily.metrics, figure) > limit:
                yield ResultWarning("too_good", {figure: getattr(daily.metrics, figure)})
                break
    if not days:
        yield ResultWarning("never_traded")
    elif (cash := float(1 - invested.mean())) > ALMOST_ALL:
        yield ResultWarning("all_cash", {"cash": cash})
    if weights.shape[1] > 1 and invested.mean() > 1 - ALMOST_ALL:
        share = float((weights[some].max(axis=1) / invested[some]).mean())
        if share > ALMOST_ALL:
            yield ResultWarning("one_asset", {"share": share})
    if days == 1 and len(result.returns) > 1:
        yield ResultWarning("one_trading_day")
    if days > 1 and not result.is_short:
        yield from _untouched(result)
        since = invested[int(some.argmax()) :]
        if 1 - ALMOST_ALL < since.mean() < ALMOST_ALL and since.std() <= SAME_CASH:
            yield ResultWarning("constant_cash", {"cash": float(1 - since.mean())})
    if days and not result.is_short:
        yield from _closet(daily)


def _untouched(result: BacktestResult) -> Iterator[ResultWarning]:
    """Yield a warning if the account always stays within `UNTOUCHED` of its first positions, as a buy and hold does."""
    equity = result.equity.to_numpy()
    worth, fills = result.weights.to_numpy() * equity[:, None], _shares_added(result, "fill")
    shares = np.cumsum(fills + _shares_added(result, "delisted"), axis=0)
    invested_in = (worth > 0) & (shares > 1e-12 * shares.max(axis=0))  # smaller positions are rounding errors
    if not invested_in.any():
        return
    first = int(invested_in.any(axis=1).argmax())
    mark = forward_fill(np.divide(worth, shares, out=np.full_like(worth, np.nan), where=invested_in), before=0.0)
    moved = np.cumsum(fills[first + 1 :], axis=0) * mark[first + 1 :]
    alive = equity[first + 1 :] > 0
    away = np.maximum(moved.clip(min=0).sum(axis=1), -moved.clip(max=0).sum(axis=1))[alive] / equity[first + 1 :][alive]
    if len(away) and away.max() <= UNTOUCHED:
        yield ResultWarning("untouched", {"share": float(away.max()), "day": f"{result.equity.index[first]:%Y-%m-%d}"})


def _shares_added(result: BacktestResult, kind: str) -> Array:
    """Return the shares [n + 1, N] that the trades of a kind ("fill" or "delisted") added since the previous close.

    The running sum over both kinds is the position at each close. A fill at a close is added at the next close.
    """
    trades, added = result.trades[result.trades["kind"] == kind], np.zeros(result.weights.shape)
    late = result.fill == "close" and kind == "fill"
    row = result.equity.index.get_indexer(pd.DatetimeIndex(trades["date"])) + late
    column = result.weights.columns.get_indexer(trades["ticker"])
    inside = (row >= 0) & (row < len(added))
    np.add.at(added, (row[inside], column[inside]), trades["shares"].to_numpy()[inside])
    return added


def _closet(daily: BacktestResult) -> Iterator[ResultWarning]:
    market, equal = daily.relative, daily.relative_to_equal_weight
    if abs(market.beta - 1) < SAME_BETA and market.tracking_error < SAME_BENCHMARK:
        yield ResultWarning("closet_benchmark", {"beta": market.beta, "tracking_error": market.tracking_error})
    moved = daily.equal_weight_metrics.volatility > DUST
    if moved and equal.tracking_error < SMALL and daily.strategy != EqualWeight.name:
        yield ResultWarning("closet_equal_weight", {"tracking_error": equal.tracking_error})


def _bets(result: BacktestResult) -> dict[str, Any]:
    """Return the entries of `attribute` on positions. They are measured at the closes of sessions with positive equity,
    without the first close."""
    closes = result.weights.iloc[1:][result.equity.to_numpy()[1:] > 0]
    if result.is_intraday:
        closes = closes.groupby(closes.index.normalize()).last()
    weights = closes.to_numpy()
    is_held, invested = weights > DUST, weights.sum(axis=1)
    some = is_held.any(axis=1)
    if not some.any():
        return {"invested": 0.0, "names": math.nan, "effective_names": math.nan, "largest": 0.0, "largest_name": ""}
    share = weights[some] / invested[some, None]
    return {
        "invested": float(invested.mean()),
        "names": float(is_held[some].sum(axis=1).mean()),
        "effective_names": float((1 / (share**2).sum(axis=1)).mean()),
        "largest": float(weights.max()),
        "largest_name": str(closes.columns[weights.max(axis=0).argmax()]),
    }


def _holding_days(result: BacktestResult) -> float:
    fills = result.trades[result.trades["kind"] == "fill"]
    sizes = (fills["notional"].clip(lower=0), fills["notional"].abs())
    buys, all_trades = (amounts.groupby(fills["date"]).sum() for amounts in sizes)
    bought = float((result.turnover * buys / all_trades).sum())  # turnover is relative to the equity at the fill
    bars = result.periods_per_year / result.sessions_per_year
    return float(result.weights.iloc[1:].to_numpy().sum() / bars / bought) if bought > DUST else math.nan


def _explained(curve: pd.Series, other: pd.Series) -> float:
    """Return the squared correlation of the returns of two curves on their common dates. It is NaN if the returns of a
    curve are constant, or if there are fewer than three returns."""
    common = pd.DataFrame({"curve": curve, "other": other}).dropna().to_numpy()
    steps = np.column_stack([simple_returns(column) for column in common.T])
    if len(steps) < 3 or (steps.std(axis=0) < DUST).any():
        return math.nan
    return float(np.corrcoef(steps.T)[0, 1] ** 2)


def _share_above(values: Any) -> float:
    """Return the fraction of positive values among the finite nonzero values; NaN if there are no such values."""
    moved = np.asarray(values, dtype=np.float64)
    moved = moved[np.isfinite(moved) & (np.abs(moved) > DUST)]
    return float((moved > 0).mean()) if len(moved) else math.nan
