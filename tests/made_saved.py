"""The market of the saved files in `golden/saved`, which were written at commit 4182994: a run, an ensemble and a result."""

from pathlib import Path

import numpy as np
from made_markets import make_market

from finpod.market.data import MarketData

SAVED = Path(__file__).parent / "golden" / "saved"
VALIDATED = 101
"""First row of the market after the validation window of the saved agents."""


def saved_market() -> MarketData:
    """Five names over 140 days, with opens. Prices are whole cents, so that the content hash is the same on every machine."""
    random = np.random.default_rng(7)

    def walk(start: int, names: int) -> np.ndarray:
        return (start + np.cumsum(random.integers(-60, 64, (140, names)), axis=0)) / 100

    closes = walk(6000, 5)
    opens = closes + random.integers(-20, 21, closes.shape) / 100
    return make_market(closes, open=np.round(opens, 2), benchmark=walk(30000, 1)[:, 0])
