"""Pods that sleep: the engines and the cluster on which the running of a tournament is measured without its training.

What runs in a worker is in this module, which imports no torch and no Ray.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from finpod.errors import InputError
from finpod.storage import Store
from finpod.workers.executor import Completed, Executor, Failed, Placement, timed

if TYPE_CHECKING:
    from finpod.tournament.pod import Slice

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
        self.inner, self.name = inner, inner.name
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

    name = "instant"

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
