"""Overhead of a tournament: Ray, the scheduler, the log. Run by hand: `python tests/bench_tournament.py`.

Most of it is measured on pods that sleep, in workers that import no torch, so that a hundred of them fit on a small machine.
The scheduler, the log and the engine are those of a real tournament; only the work is replaced.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from finpod.devices import usable_cores
from finpod.errors import InputError
from finpod.storage import Store
from finpod.workers.executor import Completed, Executor, Failed, InlineExecutor, Placement, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from finpod.tournament.pod import Slice, Trained
    from finpod.tournament.scheduler import Scheduler
    from finpod.tournament.setup import Plan, TournamentSetup

RETURNS, AGENT = 250, 2048
"""Validation days and bytes of the checkpoint that a pod that sleeps makes up."""
FILL = 300.0
"""Seconds after which workers that have not started will not."""
WORKER, NODE, SPARE = 70, 170, 1024
"""MiB that a worker without torch, a simulated node, and all else take."""


class Nap(NamedTuple):
    """A piece of work that is none."""

    seconds: float
    """How long to sleep."""


def nap(context: None, piece: Nap) -> bool:
    """Sleep; whether this process has loaded torch."""
    time.sleep(piece.seconds)
    return "torch" in sys.modules


class Noted:
    """An engine that notes where pieces ran and when the last was handed out."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.places: list[Placement] = []
        self.handed = 0.0

    def capacity(self) -> int:
        """The engine's own."""
        return self.inner.capacity()

    def start(self, key: str, piece: Any) -> None:
        """Hand it on."""
        self.handed = time.time()
        self.inner.start(key, piece)

    def wait(self, timeout: float) -> list[Completed | Failed]:
        """What the engine says."""
        ended = self.inner.wait(timeout)
        self.places += [one.place for one in ended if isinstance(one, Completed)]
        return ended

    def describe(self) -> str:
        """The engine's own words."""
        return self.inner.describe()

    def close(self) -> None:
        """Close the engine."""
        self.inner.close()


class Sleepers(Noted):
    """Turns slices into naps of `seconds` (of an agent's own if `spread`), and what comes back into made-up agents."""

    def __init__(self, inner: Executor, seconds: float, spread: bool = False) -> None:
        super().__init__(inner)
        self.seconds, self.spread = seconds, spread
        self.torch = False
        """Whether a worker had loaded it."""
        self._pieces: dict[str, Slice] = {}

    def start(self, key: str, piece: Slice) -> None:
        """Keep the slice here and hand out a nap."""
        self._pieces[key] = piece
        share = 0.5 + np.random.default_rng([piece.settings.seed, piece.until]).random() if self.spread else 1.0
        super().start(key, Nap(self.seconds * share))

    def wait(self, timeout: float) -> list[Completed | Failed]:
        """Agents whose scores are luck."""
        pieces = [(one, self._pieces.pop(one.key)) for one in super().wait(timeout)]
        return [
            one._replace(result=self._trained(one, piece)) if isinstance(one, Completed) else one
            for one, piece in pieces
        ]

    def _trained(self, done: Completed, piece: Slice) -> Any:
        from finpod.measures import metrics
        from finpod.tournament.pod import Trained

        self.torch |= done.result
        returns = np.random.default_rng([piece.settings.seed, piece.until]).normal(0.0005, 0.01, RETURNS)
        figures = vars(metrics(returns=returns, periods_per_year=252))
        return Trained(bytes(AGENT), piece.until, {"loss": 0.0}, figures["sharpe"], figures, returns)


class Instant:
    """An engine with room for `pods`, all of which have ended whenever it is asked: what is left is the driver."""

    def __init__(self, pods: int) -> None:
        self._pods, self._started = pods, list[tuple[str, Nap]]()

    def capacity(self) -> int:
        """All of them."""
        return self._pods

    def start(self, key: str, piece: Nap) -> None:
        """Note it."""
        self._started.append((key, piece))

    def wait(self, timeout: float) -> list[Completed | Failed]:
        """All that was started."""
        started, self._started = self._started, []
        return [Completed(key, *timed(nap, None, piece)) for key, piece in started]

    def describe(self) -> str:
        """Nothing runs."""
        return "no pods"

    def close(self) -> None:
        """Nothing to free."""


class Unforced(Store):
    """A folder whose log is left to the system to write, for a log that is only made to be read."""

    def append(self, name: str, content: bytes) -> None:
        """At the end of the file, on the disk whenever it suits the system."""
        path = Path(self.where) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(content)


@contextmanager
def simulated_nodes(nodes: int, cpus: int) -> Iterator[None]:
    """A Ray cluster of nodes that are processes of this machine and listen to it alone; this process is its driver.

    Raises InputError where there is no Ray, or where this process has a Ray already.
    """
    from finpod.workers.ray_executor import ALONE, QUIET, _ray

    for name, value in {**QUIET, **ALONE}.items():
        os.environ.setdefault(name, value)
    ray = _ray()
    if ray.is_initialized():
        raise InputError("this process is connected to Ray already; measure in one of its own")
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
    """Share of the time of `pods` pods that they worked, from the first moment all of them did until `until`.

    NaN if they never all did before that.
    """
    started, ended = (
        np.array([getattr(place, end) for place in places], dtype=np.float64) for end in ("started", "ended")
    )
    moments, changes = np.r_[ended, started], np.repeat([-1, 1], len(places))
    order = np.argsort(moments, kind="stable")  # an end before a start at the same moment
    full = moments[order][np.cumsum(changes[order]) >= pods]
    if not full.size or full[0] >= until:
        return float("nan")
    worked = np.clip(np.minimum(ended, until) - np.maximum(started, full[0]), 0, None).sum()
    return float(worked / (pods * (until - full[0])))


def fill(engine: Executor, pods: int) -> float:
    """Seconds until every pod has a process, which takes turns on few cores; gives up after `FILL`."""
    begun, processes, number, running = time.perf_counter(), set[tuple[str, int]](), 0, 0
    while running or len(processes) < pods:
        if time.perf_counter() - begun < FILL:
            while running < pods and len(processes) < pods:
                engine.start(f"fill/{number}", Nap(1.0))
                number, running = number + 1, running + 1
        for ended in engine.wait(1.0):
            running -= 1
            if isinstance(ended, Completed):
                processes.add((ended.place.node, ended.place.pid))
        if not running and time.perf_counter() - begun >= FILL:
            break
    return time.perf_counter() - begun


def nodes_that_fit(nodes: int, cpus: int, free: float) -> int:
    """As many of the nodes as `free` MiB of memory have room for, at least one."""
    return int(max(min(nodes, (free - SPARE) // (NODE + cpus * WORKER)), 1))


def free_memory() -> float:
    """MiB that processes may still take; infinite where the system does not say."""
    about = Path("/proc/meminfo")
    if not about.exists():
        return math.inf
    facts = dict(line.split(":", 1) for line in about.read_text(encoding="utf-8").splitlines())
    return int(facts["MemAvailable"].split()[0]) / 1024


def held_memory() -> float:
    """MiB that this process holds now; NaN where the system does not tell."""
    about = Path("/proc/self/statm")
    return int(about.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20 if about.exists() else float("nan")


NAMES, DAYS, ENVS = 20, 700, 1024
"""Size of the simulated market, and accounts, of the slices that really train."""
NAP = 4.0
"""Mean seconds that a pod of a busy cluster sleeps; from half to one and a half times that, so that few end together."""
ROUNDS = 4
"""Levels of experience in the tournaments of pods that sleep."""


def main(seconds: float = 10.0, nodes: int = 10, cpus: int = 10, entries: int = 10_000) -> None:
    """Print the lines as JSON, with hardware and versions; about four minutes on two idle cores.

    Slices that train take about `seconds`; those that sleep run on `nodes` simulated nodes of `cpus` pods each; the log
    that is resumed has `entries`. Where there is no Ray a line says so.
    """
    busy = _load()
    lines = driver_lines(entries)
    try:
        lines |= overhead_lines(seconds) | cluster_lines(nodes, cpus)
    except InputError as error:  # there is no Ray, or no room
        lines["tournament on Ray"] = f"n/a: {error}"
    print(json.dumps(lines | _circumstances() | {"load": f"{busy} at the start, {_load()} at the end"}, indent=1))


def overhead_lines(seconds: float, repeats: int = 3) -> dict[str, Any]:
    """Time of one slice as a tournament of its own on Ray against in this process, and how long Ray takes to begin.

    They take turns, and the shortest of each is taken, for what else runs on a machine only ever adds to it. Ray's worker
    does not give way to that any more than this process, as it would by itself.
    """
    from finpod.tournament.setup import from_shared
    from finpod.workers import ray_executor

    os.environ.setdefault("RAY_worker_niceness", "0")  # read when Ray starts
    setup = _setup()
    update, each = _pace(setup)
    updates = max(round(seconds / each), 1)
    here, began = Noted(InlineExecutor(slice_with_cpu, setup)), time.time()
    took: dict[str, list[Took]] = {"here": [], "ray": []}
    on_ray = ray_executor.RayExecutor(slice_with_cpu, setup.to_shared(), pods=1, restore=from_shared)
    with closing(Noted(on_ray)) as there:
        _one_agent(there, update, 1)
        first = there.places[0].started - began
        for _ in range(repeats):
            for name, engine in (("here", here), ("ray", there)):
                took[name].append(_one_agent(engine, update, updates))
    ray, inline = (Took(*map(min, zip(*took[name], strict=True))) for name in ("ray", "here"))
    return {
        "tournament first pod on Ray seconds": first,
        "tournament Ray overhead": ray.whole / inline.whole - 1,
        "tournament Ray overhead in CPU time": (ray.cpu + ray.beside) / (inline.cpu + inline.beside) - 1,
        "tournament Ray overhead batch": f"a slice of {updates} updates, {update:,} steps each, in {ray.whole:.2f} s on Ray and "
        f"{inline.whole:.2f} s in this process; of CPU {ray.cpu:.2f} s and {inline.cpu:.2f} s; beside the work {ray.beside:.3f} s "
        f"and {inline.beside:.3f} s; shortest of {repeats}",
    }


class Took(NamedTuple):
    """How long a tournament of one slice took, in seconds."""

    whole: float
    """By the clock."""
    beside: float
    """Of that, what was not the slice itself."""
    cpu: float
    """CPU time of the slice."""


def slice_with_cpu(setup: TournamentSetup, piece: Slice) -> Trained:
    """The work of a pod, with the CPU time it took among its losses."""
    from finpod.tournament.pod import run_slice

    begun = time.process_time()
    trained = run_slice(setup, piece)
    return trained._replace(losses=trained.losses | {"cpu": time.process_time() - begun})


def cluster_lines(nodes: int, cpus: int, slices: int = 6, nap_seconds: float = NAP) -> dict[str, Any]:
    """Pods that sleep on simulated nodes: how busy they are kept, how fast trials are admitted, and what eight do.

    `slices` each; what does not fit into memory is left out, and the line says so.
    """
    import finpod.tournament.training  # noqa: F401  # loading torch is not the work of the driver
    from finpod.workers.ray_executor import RayExecutor

    room = nodes_that_fit(nodes, cpus, free_memory())
    pods = room * cpus
    left = "" if room == nodes else f"; memory for no more than {room} of {nodes} nodes"
    with simulated_nodes(room, cpus), closing(RayExecutor(nap, None)) as engine:
        filled = fill(engine, pods)
        busy = Sleepers(engine, nap_seconds, spread=True)
        before = time.process_time()
        _sleep(busy, pods * slices, pods)
        driver = (time.process_time() - before) / (pods * slices)
        quick = Sleepers(engine, 0.0)
        admitted = pods * slices / _sleep(quick, pods * slices, pods)
        one, eight = (_throughput(count, slices, 0.5 * nap_seconds) for count in (1, min(8, pods)))
        torch = "torch was loaded" if busy.torch or quick.torch else "no torch"
    return {
        "tournament busy share": busy_share(busy.places, pods, busy.handed),
        "tournament busy batch": f"{pods} pods on {room} simulated nodes, started in {filled:.0f} s, {pods * slices} slices of "
        f"{nap_seconds / 2:g} to {1.5 * nap_seconds:g} s, {torch} in the workers; {1000 * driver:.1f} ms of the driver's CPU "
        f"a trial{left}",
        "tournament submissions/s": admitted,
        "tournament submissions batch": f"{pods * slices} trials of no length on the same pods",
        f"tournament pods worth of {min(8, pods)}": eight / one,
        "tournament pods worth batch": f"slices of {0.5 * nap_seconds:g} s, {one:.3f} a second by one pod and {eight:.3f}",
    }


def driver_lines(entries: int) -> dict[str, Any]:
    """A board of `entries`: its memory, how long its log takes to resume, and the trials it still admits a second.

    Nothing runs: pods have ended when they have begun. The log is forced to the disk as ever once it is resumed.
    """
    from finpod.tournament.log import TrialLog

    more = max(entries // 20, 10)
    with tempfile.TemporaryDirectory(prefix="finpod-bench-") as folder:
        held: list[tuple[int, float]] = []
        made = _asleep(Unforced(Path(folder)), Sleepers(Instant(100), 0.0), entries, 100)
        made.watch = lambda status: held.append((len(status.board.log), held_memory()))
        made.run()
        (some, before), (all_of_them, after) = held[len(held) // 5], held[-1]
        del made
        store = Store(Path(folder))
        wall, cpu = time.perf_counter(), time.process_time()
        resumed = _asleep(store, Sleepers(Instant(100), 0.0), entries + more, 100, TrialLog(store))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        size = len(store.read("log.jsonl")) / 2**20
        assert len(resumed.board.log) == entries, "the log does not replay to the board"
        begun = time.perf_counter()
        resumed.run()
        rate = more / (time.perf_counter() - begun)
    return {
        "tournament driver submissions/s": rate,
        "tournament driver batch": f"{more:,} trials after {entries:,}, log forced to the disk",
        "tournament driver MiB per 1,000 trials": 1000 * (after - before) / max(all_of_them - some, 1),
        "tournament resume seconds": wall,
        "tournament resume batch": f"{entries:,} entries of {RETURNS} returns, {size:.0f} MiB; {cpu:.2f} s of CPU",
    }


def _throughput(pods: int, slices: int, seconds: float) -> float:
    """Slices a second of `pods` pods that do `slices` each, from the first begun to the last ended."""
    from finpod.workers.ray_executor import RayExecutor

    with closing(Sleepers(RayExecutor(nap, None, pods=pods), seconds)) as engine:
        _sleep(engine, pods * slices, pods)
        ended = max(place.ended for place in engine.places)
        return len(engine.places) / (ended - min(place.started for place in engine.places))


def _sleep(engine: Sleepers, trials: int, agents: int) -> float:
    """Seconds of an asynchronous tournament of pods that sleep."""
    with tempfile.TemporaryDirectory(prefix="finpod-bench-") as folder:
        driver = _asleep(Store(Path(folder)), engine, trials, agents)
        begun = time.perf_counter()
        driver.run()
        return time.perf_counter() - begun


def _asleep(store: Store, engine: Executor, trials: int, agents: int, journal: Any = None) -> Scheduler:
    """An asynchronous tournament; what its agents would learn is nobody's business."""
    from finpod.tournament.setup import Plan, Stop

    plan = Plan(agents=agents, rounds=ROUNDS, mode="async", stop=Stop(trials=trials))
    return _driver(store, engine, plan, 1, journal)


def _one_agent(engine: Noted, update: int, updates: int) -> Took:
    """A tournament of one agent and one slice."""
    from finpod.tournament.setup import Plan

    with tempfile.TemporaryDirectory(prefix="finpod-bench-") as folder:
        driver = _driver(Store(Path(folder)), engine, Plan(agents=1, rounds=1, steps=update * updates), update)
        begun = time.perf_counter()
        board = driver.run()
        whole = time.perf_counter() - begun
    if board.log[0].state == "failed":
        raise InputError(f"the agent that was to be measured failed: {board.log[0].reason}")
    place = engine.places[-1]
    return Took(whole, whole - (place.ended - place.started), driver.status.losses["cpu"])


def _driver(store: Store, engine: Executor, plan: Plan, update: int, journal: Any = None) -> Scheduler:
    from finpod.rl.ppo import PPOConfig
    from finpod.rl.task import Space
    from finpod.tournament.evolution import Evolver
    from finpod.tournament.log import TrialLog
    from finpod.tournament.scheduler import Scheduler

    generator = Evolver(seed=plan.seed, config=PPOConfig(), space=Space(), search=plan.search)
    return Scheduler(plan, generator, journal or TrialLog(store), engine, update=update)


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


def _pace(setup: TournamentSetup) -> tuple[int, float]:
    """Steps of one update of the learner, and the seconds it takes."""
    from finpod.tournament.leaderboard import Settings
    from finpod.tournament.pod import train_slice

    settings = Settings(agent_id="pace", seed=0, config=setup.config)
    took = []
    for _ in range(4):  # the first lays out memory
        begun = time.perf_counter()
        train_slice(setup, settings, None, setup.update, setup.update)
        took.append(time.perf_counter() - begun)
    return setup.update, min(took)


def _circumstances() -> dict[str, str]:
    """What it was measured on."""
    import torch

    import finpod
    from finpod.bench.machine import processor

    try:
        import ray

        versions = f", Ray {ray.__version__}"
    except ImportError:
        versions = ""
    return {
        "hardware": f"{processor()}, {usable_cores()} cores",
        "versions": f"finpod {finpod.__version__}, torch {torch.__version__}{versions}, Python {platform.python_version()}",
    }


def _load() -> str:
    """How many processes want a core, over the last minute."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "n/a"


if __name__ == "__main__":
    main()
