"""The market of the saved files in `golden/saved`, and the code that made them at commit 4182994."""

from contextlib import suppress
from pathlib import Path

import numpy as np
from made_agents import STEPS_AN_UPDATE, tiny_train
from made_markets import make_market

import finpod
from finpod.market.data import MarketData
from finpod.tournament.scheduler import Status
from finpod.tournament.setup import EvolutionConfig, Plan

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


def write_saved(saved: Path) -> None:
    """Write an unfinished run, a trained ensemble and a result into a folder; done once, in a worktree of that commit."""
    market, plan = saved_market(), Plan(checkpoint_steps=STEPS_AN_UPDATE, search=EvolutionConfig(structure=False))

    def stop_inside_the_third_trial(status: Status) -> None:
        if len(status.board.log) == 2 and list(saved.glob("run.unfinished/*/checkpoints/*")):
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        tiny_train(market, saved / "run", seed=7, plan=plan, watch=stop_inside_the_third_trial)
    ensemble = tiny_train(market, saved / "ensemble", agents=2, seed=7, plan=plan)
    finpod.backtest(ensemble, market, start=market.dates[VALIDATED], examine=False).save(saved / "result")
