"""`RayEngine`: pieces of work as Ray tasks, on this machine or on a cluster that grows and shrinks while they run.

Only the driver keeps state. A task is a function of values, so that a process, a node or a whole rack that dies costs the
pieces it was working on and nothing else; the driver starts them again. The context is put into the object store once,
and every process of a node reads the same copy of it.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from finpod.errors import InputError
from finpod.workers.engine import Done, Lost, Place, Work, first_line, timed

AHEAD = 0.1
"""Share of the slots that is queued beyond them, so that no slot waits for the driver; an autoscaler sees it as demand."""
POLL = 1.0
"""Seconds between two looks at the size of the cluster."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Environment of a Ray that finpod starts on this machine, unless the user has set it otherwise."""
ALONE = {"RAY_AUTH_MODE": "disabled"}
"""The same for a Ray that listens to this machine alone."""

_CONTEXTS: dict[str, Any] = {}
"""In a worker: the context it was last given, by its key."""


class RayEngine:
    """Runs `work` on Ray; `address` is that of a running cluster, None starts one on this machine.

    `pods` is the number of pieces that run at a time, or 'auto' for as many as the cluster has room for at the moment.
    Each takes `cpus` and `gpus` (which may be fractions: 0.25 puts four pods on a GPU). A piece that has not ended after
    `timeout` seconds is given up as lost. `prepare` turns the context into something that pickles without copies, and
    `restore` turns it back in the worker; there the threads of torch are none of this engine's business.
    """

    name = "ray"

    def __init__(
        self,
        work: Work,
        context: Any,
        *,
        pods: int | str = "auto",
        cpus: float = 1.0,
        gpus: float = 0.0,
        timeout: float = 3600.0,
        address: str | None = None,
        restore: Callable[[Any], Any] | None = None,
    ) -> None:
        check_pods(pods, cpus, gpus)
        self._alone = address is None and "RAY_ADDRESS" not in os.environ
        for name, value in {**QUIET, **(ALONE if self._alone else {})}.items():
            os.environ.setdefault(name, value)  # read when Ray is imported
        self._ray = _ray()
        self._pods, self._cpus, self._gpus, self._timeout = pods, cpus, gpus, timeout
        self._own = not self._ray.is_initialized()
        self._alone &= self._own
        if self._own:
            self._begin(address)
        try:
            self._context = self._ray.put(context)
            key = self._context.hex()
            remote = self._ray.remote(_run)
            self._task = remote.options(
                num_cpus=cpus, num_gpus=gpus, max_retries=0, name="finpod-pod", runtime_env=_environment()
            )
            self._arguments = (work, restore, key, timeout)
            self._running: dict[Any, tuple[str, float]] = {}
            self._looked, self._slots = -math.inf, 1
            self._require_room()
        except BaseException:
            self.close()
            raise

    def _begin(self, address: str | None) -> None:
        local = {"include_dashboard": False} if self._alone else {}
        try:
            self._ray.init(address=address, log_to_driver=False, configure_logging=False, **local)
        except Exception as error:  # Ray raises many kinds
            raise InputError(
                f"cannot reach Ray at {address or 'this machine'}: {str(error).strip().splitlines()[0]}"
            ) from error

    def _require_room(self) -> None:
        """Raise InputError if this machine could never hold one pod; a cluster may still bring a node that does."""
        if not self._alone:
            return
        held = self._ray.cluster_resources()
        for name, need in (("CPU", self._cpus), ("GPU", self._gpus)):
            if need > held.get(name, 0.0):
                raise InputError(
                    f"a pod needs {need:g} {name} and this machine has {held.get(name, 0.0):g}; ask for less, or name a cluster "
                    "with --address"
                )

    def slots(self) -> int:
        """Pods the cluster has room for, as of the last look."""
        if time.monotonic() - self._looked >= POLL:
            self._looked = time.monotonic()
            rooms = [
                min(
                    math.floor(node["Resources"].get(name, 0.0) / need + 1e-9)
                    for name, need in (("CPU", self._cpus), ("GPU", self._gpus))
                    if need
                )
                for node in self._ray.nodes()
                if node["Alive"]
            ]
            self._slots = max(sum(rooms), 1)
        return self._slots

    def capacity(self) -> int:
        """The pods asked for; or the slots of the cluster and a few more that wait for one."""
        if self._pods != "auto":
            return int(self._pods)
        return self.slots() + max(1, math.ceil(AHEAD * self.slots()))

    def start(self, key: str, piece: Any) -> None:
        """Hand it to Ray."""
        reference = self._task.remote([self._context], *self._arguments, piece)
        self._running[reference] = (key, time.monotonic())

    def wait(self, timeout: float) -> list[Done | Lost]:
        """Those that ended, and those that have taken too long."""
        if not self._running:
            return []
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout)
        if ready and len(self._running) > 1:
            ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        ended = [self._collect(reference) for reference in ready]
        return ended + self._overdue()

    def _collect(self, reference: Any) -> Done | Lost:
        key, _ = self._running.pop(reference)
        errors = self._ray.exceptions
        try:
            result, place = self._ray.get(reference)
            return Done(key, result, Place(*place))
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, BaseException) else error
            return Lost(key, first_line(cause), fatal=True, error=cause)
        except errors.RayError as error:  # a process or a node died, or an object went with it
            return Lost(key, f"{type(error).__name__}: {first_line(error)}", fatal=False)

    def _overdue(self) -> list[Done | Lost]:
        """Pieces whose process does not even answer its own clock: it gives up after `timeout`, this after twice that."""
        late = [
            reference
            for reference, (_, since) in self._running.items()
            if time.monotonic() - since > 2 * self._timeout + 30
        ]
        lost: list[Done | Lost] = []
        for reference in late:
            self._ray.cancel(reference, force=True)
            lost.append(
                Lost(self._running.pop(reference)[0], f"no answer after {2 * self._timeout:.0f} s", fatal=False)
            )
        return lost

    def describe(self) -> str:
        """Nodes and slots."""
        alive = sum(node["Alive"] for node in self._ray.nodes())
        return f"Ray, {alive} node{'s' if alive > 1 else ''}, room for {self.slots()} pods"

    def close(self) -> None:
        """Cancel what runs; shut Ray down if this engine started it."""
        if not self._ray.is_initialized():
            return
        for reference in getattr(self, "_running", {}):
            self._ray.cancel(reference, force=True)
        if self._own:
            self._ray.shutdown()


def check_pods(pods: int | str, cpus: float, gpus: float) -> None:
    """Raise InputError for a number of pods, or a share of a machine, that cannot be."""
    if pods != "auto" and not (isinstance(pods, int) and pods >= 1):
        raise InputError(f"pods is {pods!r}; it must be 'auto' or a whole number from 1 on")
    if not cpus > 0 or not gpus >= 0:
        raise InputError(
            f"a pod with {cpus} CPUs and {gpus} GPUs cannot be; give it some of a CPU, and 0 or more of a GPU"
        )


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise InputError("Ray is not installed here; pip install ray, or train without it in this process") from error
    return ray


def _environment() -> dict[str, Any]:
    """What a worker needs to find this package, where it is not installed but read from a folder."""
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {"env_vars": {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "OMP_NUM_THREADS": "1"}}


def _run(
    held: list[Any], work: Work, restore: Callable[[Any], Any] | None, key: str, timeout: float, piece: Any
) -> tuple[Any, tuple[Any, ...]]:
    """In the worker: fetch the context unless it is here already, work, and give up the process if that takes too long."""
    import ray

    if key not in _CONTEXTS:
        _CONTEXTS.clear()
        shared = ray.get(held[0])
        _CONTEXTS[key] = restore(shared) if restore else shared
    watch = threading.Timer(timeout, os._exit, [1])
    watch.daemon = True
    watch.start()
    try:
        result, place = timed(work, _CONTEXTS[key], piece)
    finally:
        watch.cancel()
    return result, tuple(place._replace(node=ray.get_runtime_context().get_node_id()[:8]))
