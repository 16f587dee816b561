"""Signal strength needed for a given net information ratio: `python -m finpod.bench.calibrate`.

Backtests the informed rule on many simulated markets at once. Prints the rows of `finpod.synthetic.CALIBRATED`: for each
lookback, sign and ratio, the signal and the fraction of the position that each trade keeps. A comment has the ratio measured
on markets of other seeds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from finpod.bench.rows import run_command
from finpod.measures import Array
from finpod.rules import forecast, partly, tilted
from finpod.synthetic import CALIBRATED, FEE_BPS, HOLD, NAMES, RATIOS, Calibration, random_returns
from finpod.trading.ledger import Costs, orders_for, settle, value

SIGNALS = (0.004, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.065, 0.08, 0.1, 0.13)
"""Signal strengths at which the ratio is measured."""
KEEPS = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
"""Fractions of the position to keep at each trade, from which the best for the informed rule is selected."""
DAYS, MARKETS, TOGETHER = 2600, 1000, 50
"""Sessions of a market; markets on which a ratio is measured (a quarter of them for calibration); markets run at once."""
YEAR = 252


def net_ratios(returns: Array, lookback: int, sign: int, keeps: Sequence[float], fee_bps: float = FEE_BPS) -> Array:
    """Return the yearly net information ratios [M, S] of informed rules on M markets of N assets, `returns` [T, M, N].

    Rule s keeps `keeps[s]` of its position at each decision. The ratios are over equal weight with the same days and costs.
    """
    closes = np.cumprod(1 + returns, axis=0)
    prices = torch.from_numpy(closes)
    markets, names = returns.shape[1:]
    shares_kept, costs, always = (
        np.array([*keeps, 0.0])[:, None],
        Costs(fee_bps=fee_bps),
        torch.ones(names, dtype=torch.bool),
    )
    cash = torch.ones(markets, len(shares_kept), dtype=torch.float64)
    shares, equity = torch.zeros(*cash.shape, names, dtype=torch.float64), [cash[None]]
    for row in range(lookback, len(returns) - HOLD, HOLD):
        wanted = tilted(sign * forecast(closes[row - lookback : row + 1], lookback))[:, None]
        wanted = np.concatenate([wanted.repeat(len(keeps), axis=1), np.full_like(wanted, 1 / names)], axis=1)
        price = prices[row].unsqueeze(1)
        worth = value(cash, shares, price)
        weights = torch.from_numpy(partly((shares * price).numpy(), wanted, shares_kept))
        fill = settle(cash, shares, orders_for(weights, worth, shares, price), price, always, always, costs)
        cash, shares = fill.cash, fill.shares
        equity.append(cash + torch.einsum("tmn,msn->tms", prices[row + 1 : row + 1 + HOLD], shares))
    curve = torch.cat(equity)
    earned = curve[1:] / curve[:-1] - 1
    active = earned[..., :-1] - earned[..., -1:]
    ratios: Array = (active.mean(0) / active.std(0) * YEAR**0.5).numpy()
    return ratios


def played(signal: float, lookback: int, keeps: Sequence[float], seed: int, markets: int, names: int = NAMES) -> Array:
    """Return yearly information ratios [M, S] of S `keeps` on M markets. Random draws depend on the seed only."""
    random = np.random.default_rng(seed)
    parts = []
    for _ in range(markets // TOGETHER):
        returns = random_returns(random, names, DAYS, signal, lookback, markets=(TOGETHER,))
        parts.append(net_ratios(returns, lookback, int(np.sign(signal)), keeps))
    return np.concatenate(parts)


def calibrated(lookback: int, sign: int) -> tuple[Calibration, list[str]]:
    """Return the signals at which the informed rule has each of `RATIOS`, and texts on its mean ratios on other markets."""
    curve = [played(sign * signal, lookback, KEEPS, 0, MARKETS // 4).mean(0).max() for signal in SIGNALS]
    rows, measured = [], []
    for ratio in RATIOS:
        signal = round(float(np.interp(ratio, curve, SIGNALS)), 5)
        best = int(played(sign * signal, lookback, KEEPS, 0, MARKETS // 4).mean(0).argmax())
        ratios = played(sign * signal, lookback, KEEPS[best : best + 1], 1, MARKETS)
        rows.append((signal, KEEPS[best]))
        measured.append(f"{ratios.mean():.3f} ({ratios.std() / MARKETS**0.5:.3f})")
    return Calibration(*zip(*rows, strict=True)), measured


def main() -> None:
    """Print the rows of `CALIBRATED` for each lookback and sign."""
    torch.set_num_threads(1)
    for key in CALIBRATED:
        calibration, measured = calibrated(*key)
        print(f"    {key}: {calibration},  # {', '.join(measured)}", flush=True)


if __name__ == "__main__":
    run_command(main)
