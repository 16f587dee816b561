"""Tournaments for tests of the driver, resuming and failures: with made-up pods, and small real ones.

Workers of Ray import this module, so that it loads nothing heavy by itself.
"""

import gc
import hashlib
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from finpod.workers.executor import Completed, Failed, Placement

HERE = Path(__file__).parent
QUIET = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
FEATURES = ("return_5", "return_63", "volatility_21", "beta_252", "turbulence_63")
UPDATE = 32
"""Environment steps of an update of a made-up agent."""


@cache
def agent_file() -> bytes:
    """A tiny real agent that has learnt a little."""
    from made_agents import STEPS_AN_UPDATE, make_setup, settings, train_slice
    from made_markets import random_market

    setup = make_setup(random_market(110, 4, seed=1))
    return train_slice(setup, settings(), None, STEPS_AN_UPDATE, STEPS_AN_UPDATE).to_bytes()


class Piece(NamedTuple):
    """What a worker needs of a slice: plain values, which it unpickles without torch."""

    seed: int
    until: int
    seconds: float


def nap(context: Any, piece: Piece) -> tuple[int, int]:
    """The work of a made-up pod: it sleeps, and says which agent it has trained to where."""
    time.sleep(piece.seconds)
    return piece.seed, piece.until


def noted(folder: str, piece: Piece) -> tuple[int, int]:
    """The same; its process is noted in a folder, in a file named after the agent."""
    note = Path(folder) / f".{piece.seed}"
    note.write_text(str(os.getpid()))
    note.replace(Path(folder) / str(piece.seed))
    return nap(None, piece)


def made_up(piece: Any, agent: bytes | None = None, days: int = 20) -> Any:
    """What a slice leaves: a score that depends on the agent and its experience alone."""
    from dataclasses import asdict

    import numpy as np

    from finpod.measures import metrics
    from finpod.rl.task import Score
    from finpod.tournament.pod import Trained

    trained = Trained(agent or agent_file(), piece.until, {"value_loss": 1.0})
    if not piece.last:
        return trained
    returns = np.random.default_rng([piece.settings.seed, piece.until]).normal(0.001, 0.01, days)
    figures = asdict(metrics(returns=returns))
    return trained._replace(score=Score(figures, returns))


class Made:
    """An engine of `slots` made-up pods. They end in the order that `pick` chooses among those that run, one at a time.

    `fate` may say what becomes of a piece, or return something else than `made_up` does, or raise.
    """

    def __init__(
        self,
        slots: int = 1,
        pick: Callable[[int], int] = lambda running: 0,
        fate: Callable[[str, Any], Any] = lambda key, piece: None,
    ) -> None:
        self.slots, self.pick, self.fate = slots, pick, fate
        self.running: list[tuple[str, Any]] = []
        self.started: list[str] = []
        """Keys of all pieces that were begun, in order."""
        self.pieces: list[Any] = []

    def capacity(self) -> int:
        return self.slots

    def start(self, key: str, piece: Any) -> None:
        assert len(self.running) < self.slots
        self.started.append(key)
        self.pieces.append(piece)
        self.running.append((key, piece))

    def wait(self, timeout: float) -> list[Completed | Failed]:
        if not self.running:
            return []
        key, piece = self.running.pop(self.pick(len(self.running)))
        told = self.fate(key, piece)
        if isinstance(told, Completed | Failed):
            return [told]
        return [Completed(key, told or made_up(piece), Placement("here", 1, 0.0, 1.0))]

    def describe(self) -> str:
        return f"{self.slots} made-up pods"

    def close(self) -> None:
        self.running.clear()


def shuffled(slots: int, **changes: Any) -> Made:
    """An engine whose pods end in any order."""
    import numpy as np

    random = np.random.default_rng(slots)
    return Made(slots, lambda running: int(random.integers(running)), **changes)


class Light:
    """Another engine, whose pieces are naps: the slices stay here, and the agents are made up from what comes back."""

    def __init__(self, inner: Any, seconds: float = 0.0) -> None:
        self.inner, self.seconds = inner, seconds
        self.pieces: dict[str, Any] = {}
        self.places: list[Placement] = []
        """Where pieces ran that came to their end."""

    def capacity(self) -> int:
        return self.inner.capacity()

    def start(self, key: str, piece: Any) -> None:
        self.pieces[key] = piece
        self.inner.start(key, Piece(piece.settings.seed, piece.until, self.seconds))

    def wait(self, timeout: float) -> list[Completed | Failed]:
        return [self._made(one) if isinstance(one, Completed) else one for one in self.inner.wait(timeout)]

    def _made(self, done: Completed) -> Completed:
        piece = self.pieces.pop(done.key)
        self.places.append(done.place)
        assert done.result == (piece.settings.seed, piece.until)
        return done._replace(result=made_up(piece))

    def describe(self) -> str:
        return self.inner.describe()

    def close(self) -> None:
        self.inner.close()


def plan_of(**changes: Any) -> Any:
    """Four agents, three rounds of two updates."""
    from finpod.tournament.setup import Plan

    return Plan(**{"agents": 4, "rounds": 3, "steps": 6 * UPDATE, "keep": 2, "seed": 5, **changes})


def driver_of(
    store: Any, plan: Any, engine: Any, say: Callable[[str], None] = print, watch: Any = None, update: int = UPDATE,
    **header: Any,
) -> Any:  # fmt: skip
    """A driver on a store, begun or gone on with; `say` is told its remarks, and `header` is added to that of the log."""
    from dataclasses import asdict

    from made_agents import space_of

    from finpod.rl.ppo import PPOConfig
    from finpod.tournament.evolution import Evolver
    from finpod.tournament.run_folder import open_log
    from finpod.tournament.scheduler import Scheduler
    from finpod.tournament.setup import FORMAT

    def look(status: Any) -> None:
        if status.remark:
            say(status.remark)
        if watch is not None:
            watch(status)

    space, config = space_of(FEATURES), PPOConfig()
    first = {
        "format": FORMAT, "learner": "ppo", "measure": "sharpe", "space": space.to_dict(), "plan": asdict(plan),
        "config": asdict(config), "levels": [plan.goal(level, UPDATE) for level in range(1, plan.rounds + 1)],
        "task": {"features": list(FEATURES), "training_data_hash": "0" * 64}, "data_title": "made up",
        "versions": {"finpod": "0"},
    }  # fmt: skip
    log, changes = open_log(store, {**first, **header}, {})
    for change in changes:
        say(change)
    evolver = Evolver(seed=plan.seed, config=config, space=space, restart_rate=plan.restart_rate)
    task = SimpleNamespace(measure="sharpe")
    setup: Any = SimpleNamespace(plan=plan, update=update, evolver=lambda: evolver, task=task)
    return Scheduler(setup, log, engine, lambda doing, share: None, look, "")


def play(store: Any, plan: Any, engine: Any, say: Callable[[str], None] = lambda text: None, watch: Any = None) -> Any:
    """A made-up tournament, to its end; the board."""
    return driver_of(store, plan, engine, say, watch).run()


def lines(board: Any) -> list[str]:
    """What a board says, trial by trial, to the last digit."""
    told = ([one.to_record(), one.state, one.score, one.steps, one.metrics, one.returns.tolist()] for one in board.log)
    return [json.dumps(trial, sort_keys=True) for trial in told]


def records_of(log: Any) -> list[dict[str, Any]]:
    """The records of a log, by its path or its store."""
    content = log.read_bytes() if isinstance(log, Path) else log.read("log.jsonl")
    return [json.loads(line.split(b" ", 1)[1]) for line in content.splitlines()]


def check_log(store: Any, board: Any) -> None:
    """The log replays to the board, each trial was drawn once, after its source had ended, and all have ended."""
    from finpod.tournament.verify import verify_log

    assert lines(verify_log(f"{store.where}/log.jsonl")) == lines(board)
    ended: set[int] = set()
    drawn: list[int] = []
    for record in records_of(store):
        assert {job["source"] for job in record.get("jobs", [])} <= {None, *ended}
        drawn += [job["trial"] for job in record.get("jobs", [])]
        if record["kind"] in ("submit", "failed"):
            ended.add(record["trial"])
    assert drawn == list(range(len(drawn))) == sorted(ended) == sorted(one.number for one in board.log)


def leaving(trials: int = 0) -> Callable[[Any], None]:
    """A watch that interrupts training, as Ctrl-C does, once so many trials have ended."""

    def watch(status: Any) -> None:
        if len(status.board.log) >= trials:
            raise KeyboardInterrupt

    return watch


def names(folder: Path) -> list[str]:
    """What lies in a folder, by name."""
    return sorted(path.name for path in folder.iterdir())


def content(folder: Path) -> dict[Path, bytes]:
    """The files in a folder and in the folders in it."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def hash_of(folder: Path) -> str:
    """Of all that an ensemble is, without its logs, which hold clock times."""
    files = sorted(path for path in folder.iterdir() if path.suffix != ".jsonl")
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()


@contextmanager
def process(code: str, *arguments: Any, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process of its own that runs `code`; killed at the end, if it still runs."""
    paths = os.pathsep.join([str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment},
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def wait_until(ready: Callable[[], Any], seconds: float = 60.0, pause: float = 0.05) -> Any:
    """What `ready` returns once that is true. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not (found := ready()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s")
        time.sleep(pause)
    return found


@contextmanager
def ray_of(cpus: int, **options: Any) -> Iterator[Any]:
    """Ray with so many CPUs, started by this process; skips where it is not installed."""
    import pytest

    ray = pytest.importorskip("ray")
    with patch.dict(os.environ, QUIET), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, configure_logging=False,
                 object_store_memory=400 * 2**20, **options)  # fmt: skip
        ray._private.worker._worker_logs_enabled = False
        yield ray
        ray.shutdown()
        ray._private.worker._worker_logs_enabled = True
        gc.collect()  # sockets that Ray leaves to the collector
