"""Overhead of a tournament: Ray, the scheduler, the log. Run by hand: `python tests/bench_tournament.py`.

Pods sleep, in workers that import no torch, so that a hundred of them fit on a small machine. Scheduler, log and executor are
those of a real tournament; only the work is replaced.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from finpod.devices import usable_cores
from finpod.errors import InputError
from finpod.storage import Store
from finpod.workers.executor import Completed, Executor, Failed, InlineExecutor, Placement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from finpod.tournament.pod import Slice
    from finpod.tournament.scheduler import Scheduler
    from finpod.tournament.setup import Plan, TournamentSetup

RETURNS, AGENT = 250, 2048
"""Validation days, and bytes of the checkpoint of a made-up agent."""
FILL = 300.0
"""Seconds after which workers that have not started will not."""
NAP, ROUNDS = 4.0, 4
"""Mean seconds of a nap, and levels of experience."""
NAMES, DAYS, ENVS = 20, 700, 1024
"""Size of the simulated market, and accounts, of the slices that really train."""


def nap(context: None, seconds: float) -> bool:
    """Sleep; return True if this process has loaded torch."""
    time.sleep(seconds)
    return "torch" in sys.modules


class Sleepers:
    """Turns slices into naps of `seconds` (half to one and a half times that if `spread`), and results into made-up agents."""

    def __init__(self, inner: Executor, seconds: float, spread: bool = False) -> None:
        self.inner, self.seconds, self.spread = inner, seconds, spread
        self.capacity, self.describe, self.close = inner.capacity, inner.describe, inner.close
        self.places: list[Placement] = []
        self.handed, self.torch = 0.0, False
        self._pieces: dict[str, Slice] = {}

    def start(self, key: str, piece: Slice) -> None:
        """Keep the slice here and hand out a nap."""
        self._pieces[key], self.handed = piece, time.time()
        share = 0.5 + np.random.default_rng([piece.settings.seed, piece.until]).random() if self.spread else 1.0
        self.inner.start(key, self.seconds * share)

    def wait(self, timeout: float) -> list[Completed | Failed]:
        """Return agents with random scores."""
        ended = self.inner.wait(timeout)
        return [self._trained(one) if isinstance(one, Completed) else one for one in ended]

    def _trained(self, done: Completed) -> Completed:
        from finpod.measures import metrics
        from finpod.tournament.pod import Trained

        self.places.append(done.place)
        self.torch |= done.result
        piece = self._pieces.pop(done.key)
        returns = np.random.default_rng([piece.settings.seed, piece.until]).normal(0.0005, 0.01, RETURNS)
        figures = vars(metrics(returns=returns, periods_per_year=252))
        trained = Trained(bytes(AGENT), piece.until, {"loss": 0.0}, figures["sharpe"], figures, returns)
        return done._replace(result=trained)


class Instant:
    """An executor with room for `pods`, all of which have ended whenever it is asked: the driver alone is left."""

    def __init__(self, pods: int) -> None:
        self._pods, self._keys = pods, list[str]()

    def capacity(self) -> int:
        """All of them."""
        return self._pods

    def start(self, key: str, piece: float) -> None:
        """Note it."""
        self._keys.append(key)

    def wait(self, timeout: float) -> list[Completed | Failed]:
        """All that was started."""
        keys, self._keys = self._keys, []
        return [Completed(key, False, Placement("here", os.getpid(), time.time(), time.time())) for key in keys]

    def describe(self) -> str:
        """Nothing runs."""
        return "no pods"

    def close(self) -> None:
        """Nothing to free."""


@contextmanager
def simulated_nodes(nodes: int, cpus: int) -> Iterator[None]:
    """A Ray cluster whose nodes are processes of this machine; this process is its driver. Raises InputError without Ray."""
    from finpod.workers.ray_executor import ALONE, QUIET, _ray

    for name, value in {**QUIET, **ALONE}.items():
        os.environ.setdefault(name, value)
    ray = _ray()
    from ray.cluster_utils import Cluster

    size = {"num_cpus": cpus, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(wait=False, **size)
        cluster.wait_for_nodes(timeout=FILL)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def busy_share(places: list[Placement], pods: int, until: float) -> float:
    """Share of the time of `pods` pods that they worked, from the first moment all of them did until `until`."""
    started, ended = (np.array([getattr(place, end) for place in places]) for end in ("started", "ended"))
    moments, changes = np.r_[ended, started], np.repeat([-1, 1], len(places))
    order = np.argsort(moments, kind="stable")  # an end before a start at the same moment
    full = moments[order][np.cumsum(changes[order]) >= pods]
    if not full.size or full[0] >= until:
        return float("nan")
    worked = np.clip(np.minimum(ended, until) - np.maximum(started, full[0]), 0, None).sum()
    return float(worked / (pods * (until - full[0])))


def fill(engine: Executor, pods: int) -> float:
    """Seconds until every pod has a process; gives up after `FILL`."""
    begun, processes, running = time.perf_counter(), set[tuple[str, int]](), 0
    while len(processes) < pods and time.perf_counter() - begun < FILL:
        while running < pods:
            engine.start(f"fill/{time.perf_counter_ns()}", 1.0)
            running += 1
        ended = engine.wait(1.0)
        running -= len(ended)
        processes |= {(one.place.node, one.place.pid) for one in ended if isinstance(one, Completed)}
    while running:
        running -= len(engine.wait(1.0))
    return time.perf_counter() - begun


def overhead_lines(seconds: float, repeats: int = 3) -> dict[str, Any]:
    """Time of one slice as a tournament on Ray against in this process: the shortest of several, taken in turns."""
    from finpod.tournament.pod import run_slice
    from finpod.tournament.setup import from_shared
    from finpod.workers import ray_executor

    os.environ.setdefault("RAY_worker_niceness", "0")  # read when Ray starts
    setup, began = _setup(), time.time()
    here, took = InlineExecutor(run_slice, setup), {"here": list[float](), "ray": list[float]()}
    each = min(_one_agent(here, setup.update, 1) for _ in range(3))
    updates = max(round(seconds / each), 1)
    with closing(ray_executor.RayExecutor(run_slice, setup.to_shared(), pods=1, restore=from_shared)) as there:
        _one_agent(there, setup.update, 1, first := [])
        for _ in range(repeats):
            for name, engine in (("here", here), ("ray", there)):
                took[name].append(_one_agent(engine, setup.update, updates))
    ray, inline = min(took["ray"]), min(took["here"])
    return {
        "tournament first pod on Ray seconds": first[0] - began,
        "tournament Ray overhead": ray / inline - 1,
        "tournament Ray overhead batch": f"a slice of {updates} updates, {setup.update:,} steps each, in {ray:.2f} s on Ray and "
        f"{inline:.2f} s in this process; shortest of {repeats}",
    }


def cluster_lines(nodes: int, cpus: int, slices: int = 6) -> dict[str, Any]:
    """Pods that sleep on simulated nodes, `slices` each: how busy they are kept, and how fast trials are admitted."""
    import finpod.tournament.training  # noqa: F401  # loading torch is not the work of the driver
    from finpod.workers.ray_executor import RayExecutor

    pods, trials = nodes * cpus, nodes * cpus * slices
    with simulated_nodes(nodes, cpus), closing(RayExecutor(nap, None)) as engine:
        filled, busy, quick = fill(engine, pods), Sleepers(engine, NAP, spread=True), Sleepers(engine, 0.0)
        before = time.process_time()
        _sleep(busy, trials, pods)
        driver = (time.process_time() - before) / trials
        admitted = trials / _sleep(quick, trials, pods)
        one, eight = (_throughput(count, slices) for count in (1, min(8, pods)))
    return {
        "tournament busy share": busy_share(busy.places, pods, busy.handed),
        "tournament busy batch": f"{pods} pods on {nodes} simulated nodes, started in {filled:.0f} s, {trials} slices of "
        f"{NAP / 2:g} to {1.5 * NAP:g} s, {'torch' if busy.torch or quick.torch else 'no torch'} in the workers; "
        f"{1000 * driver:.1f} ms of the driver's CPU a trial",
        "tournament submissions/s": admitted,
        f"tournament pods worth of {min(8, pods)}": eight / one,
    }


def driver_lines(entries: int) -> dict[str, Any]:
    """How long the log of `entries` trials takes to resume, and how many trials a second are admitted after it."""
    from finpod.tournament.log import TrialLog

    more = max(entries // 20, 10)
    with tempfile.TemporaryDirectory(prefix="finpod-bench-") as folder:
        store = Store(folder)
        _asleep(store, Sleepers(Instant(100), 0.0), entries, 100).run()
        wall = time.perf_counter()
        resumed = _asleep(store, Sleepers(Instant(100), 0.0), entries + more, 100)
        wall = time.perf_counter() - wall
        assert len(TrialLog(store).board.log) == entries, "the log does not replay to the board"
        begun = time.perf_counter()
        resumed.run()
        rate = more / (time.perf_counter() - begun)
        size = len(store.read("log.jsonl")) / 2**20
    return {
        "tournament driver submissions/s": rate,
        "tournament driver batch": f"{more:,} trials after {entries:,}",
        "tournament resume seconds": wall,
        "tournament resume batch": f"{entries:,} entries of {RETURNS} returns, {size:.0f} MiB",
    }


def _throughput(pods: int, slices: int) -> float:
    """Slices a second of `pods` pods that do `slices` each, from the first begun to the last ended."""
    from finpod.workers.ray_executor import RayExecutor

    with closing(Sleepers(RayExecutor(nap, None, pods=pods), NAP / 2)) as engine:
        _sleep(engine, pods * slices, pods)
        ended = max(place.ended for place in engine.places)
        return len(engine.places) / (ended - min(place.started for place in engine.places))


def _sleep(engine: Sleepers, trials: int, agents: int) -> float:
    """Seconds of an asynchronous tournament of pods that sleep."""
    with tempfile.TemporaryDirectory(prefix="finpod-bench-") as folder:
        driver, begun = _asleep(Store(folder), engine, trials, agents), time.perf_counter()
        driver.run()
        return time.perf_counter() - begun


def _asleep(store: Store, engine: Executor, trials: int, agents: int) -> Scheduler:
    from finpod.tournament.setup import Plan, Stop

    plan = Plan(agents=agents, rounds=ROUNDS, mode="async", stop=Stop(trials=trials))
    return _driver(store, engine, plan, 1)


def _one_agent(engine: Executor, update: int, updates: int, starts: list[float] | None = None) -> float:
    """Seconds of a tournament of one agent and one slice, whose start in Unix time is added to `starts`."""
    from finpod.tournament.setup import Plan

    with tempfile.TemporaryDirectory(prefix="finpod-bench-") as folder:
        driver = _driver(Store(folder), engine, Plan(agents=1, rounds=1, steps=update * updates), update)
        begun = time.perf_counter()
        board = driver.run()
    if board.log[0].state == "failed":
        raise InputError(f"the agent that was to be measured failed: {board.log[0].reason}")
    if starts is not None:
        starts.append(board.log[0].places[0].started)
    return time.perf_counter() - begun


def _driver(store: Store, engine: Executor, plan: Plan, update: int) -> Scheduler:
    from finpod.rl.ppo import PPOConfig
    from finpod.rl.task import Space
    from finpod.tournament.evolution import Evolver
    from finpod.tournament.log import TrialLog
    from finpod.tournament.scheduler import Scheduler

    evolver = Evolver(seed=plan.seed, config=PPOConfig(), space=Space(), search=plan.search)
    return Scheduler(plan, evolver, TrialLog(store), engine, update=update)


def _setup() -> TournamentSetup:
    """A task on a simulated market, on the CPU and one thread."""
    from finpod.rl.ppo import PPOConfig
    from finpod.synthetic import simulate_market
    from finpod.tasks import make_stock_task, trading_of
    from finpod.tournament.setup import TournamentSetup

    market = simulate_market(names=NAMES, days=DAYS)
    first, middle, last = market.dates[[100, int(0.7 * DAYS), DAYS - 1]]
    trading = trading_of(num_envs=ENVS, start_groups=min(64, ENVS))
    task = make_stock_task(market, (first, middle), (middle + np.timedelta64(1, "D"), last), trading)
    return TournamentSetup(task=task, num_envs=ENVS, config=PPOConfig())


def main(seconds: float = 10.0, nodes: int = 10, cpus: int = 10, entries: int = 10_000) -> None:
    """Print the lines as JSON, with the hardware; about four minutes on two idle cores.

    Slices that train take about `seconds`; those that sleep run on `nodes` simulated nodes of `cpus` pods each; the log that
    is resumed has `entries`.
    """
    from finpod.bench.machine import processor

    load = os.getloadavg()[0]
    lines = driver_lines(entries)
    try:
        lines |= overhead_lines(seconds) | cluster_lines(nodes, cpus)
    except InputError as error:  # there is no Ray, or no room
        lines["tournament on Ray"] = f"n/a: {error}"
    facts = {"hardware": f"{processor()}, {usable_cores()} cores", "python": platform.python_version(), "load": load}
    print(json.dumps(lines | facts, indent=1))


if __name__ == "__main__":
    main()
