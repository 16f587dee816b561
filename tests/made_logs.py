"""Tournaments without training: the real driver on an engine with made-up results."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from made_tournaments import FEATURES, Made, driver_of, made_up

from finpod.storage import Store
from finpod.tournament.leaderboard import Leaderboard, Trial
from finpod.tournament.log import NAME
from finpod.tournament.scheduler import Watch
from finpod.tournament.setup import Plan
from finpod.workers.executor import Completed, Failed, Placement

UPDATE = 100
"""Steps of one update."""
FIGURES = {"excess": 0.01, "information_ratio": 0.4, "tracking_error": 0.008, "effective_names": 61.2,
           "rank_correlation": 0.02, "turnover": 4.5}  # fmt: skip
"""Of the ensemble in training and validation."""
BEGAN = 1_700_000_000.0
"""When the first slice of every run begins, Unix time."""


class Invented(Made):
    """An engine of `pods` pods on a clock of its own: a slice takes 10 s and a little, by its trial."""

    def __init__(self, pods: int = 2, days: int = 60, lost: Any = (), failed: Any = (), die_after: int = 10**9) -> None:
        super().__init__(pods, fate=self.ended)
        self.free = [BEGAN] * pods
        self.days, self.lost, self.failed, self.left = days, set(lost), set(failed), die_after

    def now(self) -> float:
        return max(self.free)

    def ended(self, key: str, piece: Any) -> Completed | Failed:
        trial, _, attempt = map(int, key.split("/"))
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        pod = self.free.index(min(self.free))
        started = self.free[pod]
        self.free[pod] = started + 10 + trial % 3
        if trial in self.failed:
            return Failed(key, f"ValueError: trial {trial} made up a failure", True, ValueError("made up"))
        if trial in self.lost and not attempt:
            return Failed(key, "WorkerCrashedError: made up", False)
        place = Placement(f"node{pod % 2}", 100 + pod, started, self.free[pod])
        trained = made_up(piece, b"made up", self.days)
        return Completed(key, trained._replace(losses={"policy_loss": -0.01 * trial}), place)


def play(
    store: Store,
    plan: Plan,
    engine: Invented,
    watch: Watch = lambda status: None,
    now: Callable[[], float] | None = None,
    **header: Any,
) -> Leaderboard:
    """One tournament, begun or gone on with, whose driver looks at the engine's clock, or at `now`."""
    windows = {"train": ["2009-01-02", "2015-12-31"], "validation": ["2016-01-04", "2016-12-30"]}
    task = {"features": list(FEATURES), "fill": "close", "threads": 1, "trading": {"hold": 5},
            "training_data_hash": "0" * 64, "windows": windows}  # fmt: skip
    told = {"task": task, "data_title": "made-up prices", "versions": {"finpod": "0.1.0"}, **header}
    with patch("finpod.tournament.scheduler.time", SimpleNamespace(time=now or engine.now)):
        board: Leaderboard = driver_of(store, plan, engine, print, watch, UPDATE, **told).run()
    return board


def trial(
    number: int, score: float = 0.0, *, start: float = 0.0, pod: int = 1, level: int = 1, run: int = 0,
    settings: Any = None, agent: str | None = None, **values: Any,
) -> Trial:  # fmt: skip
    """A trial that took ten seconds of its pod, from `start` seconds after the beginning on."""
    made = {"agent_id": agent or f"{run}-{number}", "config": {}, **(settings or {})}
    plain = {"agent_settings": made, "state": "ended", "steps": 100 * level, "start": 100 * (level - 1),
             "places": (Placement("node", pod, BEGAN + start, BEGAN + start + 10),)}  # fmt: skip
    return Trial(run=run, number=number, level=level, score=score, **{**plain, **values})


def write_run(
    out: Path, *, seeds: int = 1, finished: bool = True, pods: int = 2, days: int = 60, lost: Any = (),
    failed: Any = (), die_after: int = 10**9, **plan: Any,
) -> Path:  # fmt: skip
    """A run as `train` leaves it: in `out`, or in `out.unfinished`. Returns the folder."""
    place = out.with_name(out.name + ".unfinished")
    members = []
    for seed in range(seeds):
        asked = Plan(**{"agents": 4, "rounds": 3, "steps": 900, "keep": 2, "seed": seed, **plan})
        board = play(Store(place / f"seed-{seed}"), asked, Invented(pods, days, lost, failed, die_after))
        members += [{"agent": one.agent, "generation": one.level - 1} for one in board.best(asked.keep)]
    if not finished:
        return place
    out.mkdir(parents=True)
    for seed in range(seeds):
        (place / f"seed-{seed}" / NAME).rename(out / f"log-{seed}.jsonl")
    figures = [{"agent": "ensemble", "window": window, **FIGURES} for window in ("training", "validation")]
    (out / "ensemble.json").write_text(json.dumps({"provenance": {"members": members, "figures": figures}}))
    for path in sorted(place.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    place.rmdir()
    return out
