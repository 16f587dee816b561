"""Decisions of strategies, checked and converted to weights for the ledger."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from finpod.errors import CheckpointError, InputError, StrategyError, first_line, with_kind
from finpod.measures import Array
from finpod.strategy import Decision, FeatureTable, MarketView, Strategy
from finpod.trading.anchors import in_market_order
from finpod.trading.execution import Account
from finpod.trading.ledger import value
from finpod.trading.simulate import Decide, Window

LAST_BITS = 1e-12
"""Weights are not scaled down if their sum exceeds one by at most this rounding error."""
TOLERANCE = 1e-6
"""Tolerance for weights below zero and for sums above one."""
READ_AT_ONCE = 2**19
"""Number of precomputed weights that are checked at a time."""


class Decided(NamedTuple):
    """One decision of a run: last visible row, bars since the first decision, account, weights [N] before caps."""

    row: int
    step: int
    cash: float
    equity: float
    held: Array
    weights: Array | None


def decide_once(strategy: Strategy, view: MarketView, label: str) -> Array | None:
    """Return a strategy's checked weights [N]; None: no trade. Errors become StrategyError, except CheckpointError."""
    try:
        decision = strategy.decide(view)
    except (StrategyError, CheckpointError):
        raise
    except (Exception, SystemExit) as error:
        raise StrategyError(f"strategy {label} failed on {view.date!s:.10}: {with_kind(error)}") from error
    return None if decision is None else clean_weights(decision, view.tickers, label, view.date)


def decisions_of(
    strategy: Strategy, label: str, window: Window, table: FeatureTable | None = None, log: list[Decided] | None = None
) -> Decide:
    """Return the function that `simulate` calls to ask a strategy for decisions. Each decision is appended to `log`."""
    for name, number in (("every", strategy.every), ("trials", strategy.trials)):
        if not (isinstance(number, (int, np.integer)) and number >= 1):
            raise StrategyError(f"strategy {label} has {name}={number!r}; it must be a whole number of 1 or more")
    market, marks = window.market, window.execution.mark
    table = table or FeatureTable(market)

    def decide(step: int, row: int, seen: Account) -> Tensor | None:
        if step % strategy.every:
            return None
        equity = float(value(seen.cash, seen.shares, marks[row]))
        held = (seen.shares * marks[row]).numpy() / (equity or 1.0)
        cash = float(seen.cash)
        view = MarketView(market, row, step=step, cash=cash, equity=equity, held=held, table=table)
        weights = decide_once(strategy, view, label)
        if log is not None:
            log.append(Decided(row, step, cash, equity, held, weights))
        return None if weights is None else torch.from_numpy(weights)

    return decide


class PrecomputedWeights:
    """Precomputed weights [T, N] of one strategy, or [S, T, N] of S (T bars, N assets). Reading checks the weights.

    An array of floats is not copied and must not be changed during use. Raises InputError for a shape that differs from
    the market's, and for a frame with other dates or tickers.
    """

    def __init__(self, weights: Any, label: str, window: Window) -> None:
        market = window.market
        if hasattr(weights, "columns"):
            weights = in_market_order(weights, market, "the table of weights", "strategy")
        table = _as_table(weights)
        self.many = table.ndim == 3
        """True for weights of S strategies [S, T, N]."""
        table = table if self.many else table[None]
        if table.ndim != 3 or table.shape[1:] != market.shape or not len(table):
            text = f"the weights have shape {np.shape(weights)}; pass [T, N] = {market.shape}, or [S, T, N] with S > 0"
            raise InputError(text, argument="strategy")
        self.labels = [f"{label} {s}" for s in range(len(table))] if self.many else [label]
        """Names of the strategies."""
        self._table, self._window = table, window

    def rows(self, first: int, last: int, strategies: slice = slice(None)) -> Tensor:
        """Return the weights [last - first, S, N] float64 of the rows [first, last); NaN for decisions not to trade.

        Raises StrategyError for invalid weights. The error names the strategy and the earliest day with such weights.
        """
        table = self._table[strategies, first:last].swapaxes(0, 1)
        weights = torch.from_numpy(np.array(table, dtype=np.float64, order="C"))
        plain = weights.sum(-1)
        total = weights.clamp_(min=0).sum(-1)
        # also False for NaN, and for small negative weights with a sum below -TOLERANCE. `clean_weights` checks these.
        sound = (total - plain <= TOLERANCE) & (total <= 1 + TOLERANCE)
        market = self._window.market
        for row, s in np.argwhere(~sound.numpy() & ~np.isnan(table).all(axis=-1)):
            clean_weights(table[row, s], market.tickers, self.labels[strategies][s], market.dates[first + row])
        return _scaled(weights, total.unsqueeze(-1))

    def steps(self, s: int) -> Tensor:
        """Return the decided weights [n, N] float64 of strategy `s` for the n steps of the window; NaN for no trade."""
        rows = self._window.decision_rows
        decided = self.rows(max(int(rows[0]), 0), int(rows[-1]) + 1, slice(s, s + 1))[:, 0]
        return decided if rows[0] >= 0 else torch.cat([torch.full_like(decided[:1], torch.nan), decided])

    def decisions(self, strategies: slice = slice(None)) -> Decide:
        """Return the function that `simulate` calls to get weights. The function reads weights in blocks of rows."""
        count, last = len(self.labels[strategies]), int(self._window.decision_rows[-1]) + 1
        size = max(READ_AT_ONCE // (count * self._table.shape[-1]), 1)
        start, block = 0, torch.empty(0)

        def decide(step: int, row: int, _seen: Account) -> Tensor | None:
            nonlocal start, block
            if not start <= row < start + len(block):
                start, block = row, self.rows(row, min(row + size, last), strategies)
            weights = block[row - start]
            return None if weights[..., 0].isnan().all() else weights

        return decide


def clean_weights(decision: Decision, tickers: tuple[str, ...], who: str, date: np.datetime64) -> Array:
    """Return a decision as nonnegative weights [N] that sum to at most one.

    Raises StrategyError for a wrong shape or ticker, a weight not finite or below -1e-6, and a sum above 1 + 1e-6.
    """
    where = f"strategy {who} on {date!s:.10}"
    weights = _as_array(decision, tickers, where)
    if weights.shape != (len(tickers),):
        text = f"weights of shape {weights.shape}; return one weight for each of the {len(tickers)} assets"
        raise StrategyError(f"{where} returned {text}")
    clean = torch.from_numpy(weights).clamp(min=0)
    total = clean.sum(-1, keepdim=True)
    worst = int(np.where(np.isfinite(weights), weights, -np.inf).argmin())
    if not np.isfinite(weights[worst]):
        fault = f"{weights[worst]:g} for {tickers[worst]}; weights must be finite"
    elif weights[worst] < -TOLERANCE:
        fault = f"{weights[worst]:g} for {tickers[worst]}; weights must not be negative (finpod is long only)"
    elif total > 1 + TOLERANCE:
        fault = f"weights that sum to {weights.sum():.6f}; the sum must be at most 1 (finpod does not borrow)"
    else:
        return _scaled(clean, total).numpy()
    raise StrategyError(f"{where} returned {fault}")


def _as_table(weights: Any) -> Array:
    """Return a float32 or float64 array unchanged, and anything else as a float64 copy."""
    try:
        table = np.asarray(np.ma.filled(weights, np.nan))
        return table if table.dtype in (np.float32, np.float64) else np.array(weights, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        text = f"{weights!r:.60} is neither a Strategy nor an array of weights"
        raise InputError(f"{text}; pass one of these, or load_strategy(...)", argument="strategy") from error


def _as_array(decision: Any, tickers: tuple[str, ...], where: str) -> Array:
    """Return a decision as an array. A Series or dict is put in the order of `tickers`, with 0 for missing tickers."""
    try:
        if hasattr(decision, "keys"):
            keys = list(decision.keys())
            if len(set(keys)) < len(keys):
                repeated = next(key for key in keys if keys.count(key) > 1)
                raise StrategyError(f"{where} returned a weight for {repeated} twice; return one weight per ticker")
            if unknown := [str(key) for key in keys if key not in tickers]:
                text = f"weights for {', '.join(unknown[:3])}, which the market does not have; use the market's tickers"
                raise StrategyError(f"{where} returned {text}")
            decision = np.array([decision.get(ticker, 0.0) for ticker in tickers], dtype=np.float64)
        return np.array(np.ma.filled(decision, np.nan), dtype=np.float64)  # masked weights become NaN
    except (TypeError, ValueError, RuntimeError) as error:
        text = f"a {type(decision).__name__} that has no weights ({first_line(error)})"
        raise StrategyError(f"{where} returned {text}; return numbers in an array, Series or dict, or None") from error


def _scaled(weights: Tensor, total: Tensor) -> Tensor:
    """Scale nonnegative weights [..., N] in place to a sum of 1 where their `total` [..., 1] exceeds 1.

    A sum that exceeds 1 by at most `LAST_BITS` is left unchanged, as in the training environment.
    """
    above = total > 1 + LAST_BITS
    return weights.div_(total.where(above, 1.0)) if above.any() else weights
