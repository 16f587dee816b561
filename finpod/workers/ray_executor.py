"""`RayExecutor`: runs pieces of work as Ray tasks, on this machine or on a cluster, which may grow and shrink.

The driver is the process with the `RayExecutor`. Only the driver has state, because a Ray task is a pure function. If a
process or node dies, only the pieces that ran there are lost, and the driver can start them again. The context, which
all pieces need, is put into Ray's object store once. All processes of a node read the same copy.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from joblib import cpu_count

from finpod.errors import EngineError, InputError
from finpod.workers.executor import Completed, Failed, Placement, Pods, Work, timed, with_kind

AHEAD = 0.1
"""Queued pieces per slot; a slot is room for one pod. The queue keeps slots busy, and shows autoscalers the demand."""
POLL = 1.0
"""Smallest number of seconds between two queries of the cluster's size."""
SILENCE = 45.0
"""Seconds in which a cluster must answer a query for its size. Ray would end this process after 60 s of silence."""
KNOCK = 5.0
"""Seconds in which the address of a cluster must accept a connection. Ray itself would try for minutes."""
GRACE = 30.0
"""Seconds added to the time limit of a piece, because a new process needs time to start."""
LOOK = 0.5
"""Largest number of seconds between two checks of Ray's processes. If they ended, Ray would end this one 15 s later."""
VITAL = ("raylet", "gcs_server")
"""Names of the processes that Ray cannot run without."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}  # cancelled pieces leave errors
"""Environment variables that are set in the driver, unless the user has set them."""
ALONE = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Environment variables that are also set if finpod starts Ray. Ray then accepts connections only from this machine."""

_CONTEXTS: dict[str, Any] = {}
"""Key -> context, in a worker process. Only the context that the worker received last is kept."""


class RayExecutor:
    """Executor that runs `work` on Ray. If this process has already initialised Ray, that connection is used.

    Otherwise, the executor joins the cluster at `pods.address` or, if this is None, at the address in RAY_ADDRESS.
    Without an address, it starts Ray on this machine. If `pods.count` is 'auto', the number of pieces follows the
    cluster's size. The processes of a node share NumPy arrays in `context`, so use arrays for large data. In a worker,
    `work` receives `restore(context)`, or `context` if `restore` is None. Raises InputError if Ray is not installed,
    if it cannot start or be reached, or if this machine is too small for a pod.
    """

    def __init__(self, work: Work, context: Any, pods: Pods, restore: Callable[[Any], Any] | None = None) -> None:
        address = pods.address or os.environ.get("RAY_ADDRESS") or None
        for name, value in {**QUIET, **({} if address else ALONE)}.items():
            os.environ.setdefault(name, value)  # read when Ray is imported
        self._ray = _ray()
        self._pods = pods
        self._running: dict[Any, str] = {}
        self._since: dict[Any, float] = {}  # piece -> time at which there was room to run it
        self._looked, self._nodes, self._gone = -math.inf, list[dict[str, Any]](), False
        self._own = not self._ray.is_initialized()
        self._alone = self._own and address is None
        if self._alone:  # not on a cluster, which may add a larger node
            _require_size(pods)
        # Ray warns of its future settings and of files that it leaves open
        with warnings.catch_warnings(action="ignore"):
            if self._own:
                self._begin(address)
            try:
                self._context = self._ray.put(context)
                remote = self._ray.remote(_run)
                self._task = remote.options(
                    num_cpus=pods.cpus, num_gpus=pods.gpus, max_retries=0, name="finpod-pod", runtime_env=_environment()
                )
                self._arguments = (work, restore, self._context.hex())
            except BaseException:
                self.close()
                raise

    def _begin(self, address: str | None) -> None:
        """Connect to the cluster at `address`. If `address` is None, start Ray on this machine, with the cores that
        this process may use. The address 'local' keeps Ray from joining another cluster on this machine."""
        local = {} if address else {"include_dashboard": False, "num_cpus": cpu_count()}
        at_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            if address:
                _knock(address)
            self._ray.init(address=address or "local", log_to_driver=False, configure_logging=False, **local)
        except SystemExit:  # Ray's handler of SIGTERM exits; leave the signal to the program's handler
            self._ray.shutdown()
            signal.signal(signal.SIGTERM, at_sigterm)
            signal.raise_signal(signal.SIGTERM)
            raise
        except Exception as error:  # Ray raises many kinds of errors
            self._ray.shutdown()  # end the processes that Ray had started
            what = f"reach Ray at {address}" if address else "start Ray on this machine"
            raise InputError(
                f"cannot {what}: {with_kind(error)}; check Ray, or train without Ray", "pods.address"
            ) from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, at_sigterm)  # Ray has replaced the program's handler
        if self._alone:  # this executor reports processes that died; Ray would print them again, to stdout
            self._ray._private.worker._worker_logs_enabled = False

    def _require_ray(self) -> None:
        """Raise EngineError if this executor started Ray and a vital process of Ray has ended."""
        node = self._ray._private.worker._global_node if self._alone else None
        for name, _ in node.dead_processes() if node is not None else ():
            if name in VITAL:
                raise EngineError(f"Ray on this machine has ended ({name} exited)")

    @contextmanager
    def _calls(self) -> Iterator[None]:
        """Context manager that turns errors of Ray, such as a lost connection, into EngineError."""
        try:
            self._require_ray()
            yield
        except self._ray.exceptions.RayError as error:
            self._require_ray()
            where = "Ray on this machine" if self._alone else "the Ray cluster"
            raise EngineError(f"{where} no longer works ({with_kind(error)})") from error

    def _alive(self) -> list[dict[str, Any]]:
        """Return the live nodes as of the last query. Raises EngineError if Ray has ended or no longer answers."""
        if time.monotonic() - self._looked < POLL:
            return self._nodes
        answers: list[Any] = []
        query = self._ray.nodes  # a hanging thread that refers to self would keep its context in memory

        def ask() -> None:
            try:
                answers.append(query())
            except Exception as error:
                answers.append(error)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        silent = time.monotonic() + SILENCE
        while not answers and time.monotonic() < silent:
            self._require_ray()
            thread.join(LOOK)
        if not answers:
            self._gone = True
            raise EngineError(
                f"the Ray cluster has not answered for {SILENCE:.0f} s", "restart it and continue with resume=True"
            )
        with self._calls():
            if isinstance(answers[0], Exception):
                raise answers[0]
        self._looked, self._nodes = time.monotonic(), [node for node in answers[0] if node["Alive"]]
        return self._nodes

    def slots(self) -> int:
        """Return the number of pods that the cluster had room for at the last query."""
        needs = [(name, need) for name, need in (("CPU", self._pods.cpus), ("GPU", self._pods.gpus)) if need]
        return sum(
            min(math.floor(node["Resources"].get(name, 0.0) / need + 1e-9) for name, need in needs)
            for node in self._alive()
        )

    def capacity(self) -> int:
        """Return the number `pods.count`. If it is 'auto', return the number of slots of the cluster, plus a few."""
        if self._pods.count != "auto":
            return int(self._pods.count)
        return self.slots() + max(1, math.ceil(AHEAD * self.slots()))

    def start(self, key: str, piece: Any) -> None:
        """Submit a piece of work to Ray."""
        with warnings.catch_warnings(action="ignore"), self._calls():
            self._running[self._task.remote([self._context], *self._arguments, piece)] = key
        self._mark()

    def wait(self, timeout: float) -> list[Completed | Failed]:
        """Wait until a piece of work ends, for at most `timeout` or `LOOK` seconds, whichever is less.

        Return all pieces that have ended or exceeded their time limit. Raises EngineError if Ray has ended.
        """
        if not self._running:
            return []
        with self._calls():
            ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=min(timeout, LOOK))
            if ready and len(self._running) > 1:
                ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        self._require_ray()  # pieces that end because Ray ended must not count as lost
        ended = [self._collect(reference) for reference in ready]
        return ended + self._overdue()

    def _collect(self, reference: Any) -> Completed | Failed:
        key = self._running.pop(reference)
        self._since.pop(reference, None)
        errors = self._ray.exceptions
        try:
            result, place = self._ray.get(reference)
            return Completed(key, result, Placement(*place))
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, BaseException) else error
            return Failed(key, with_kind(cause), fatal=True, error=cause)
        except errors.RayError as error:  # a process or node died, or an object on it was lost
            return Failed(key, with_kind(error), fatal=False)

    def _mark(self) -> None:
        """Begin to count the time of pieces that the cluster has room to run. Time in the queue does not count."""
        for reference in islice(self._running, max(self.slots(), len(self._since))):
            self._since.setdefault(reference, time.monotonic())

    def _overdue(self) -> list[Completed | Failed]:
        """Cancel and return the pieces that have exceeded their time limit. Ray ends their processes."""
        self._mark()
        now, lost = time.monotonic(), list[Completed | Failed]()
        for reference in [one for one, since in self._since.items() if now - since > self._pods.timeout + GRACE]:
            self._ray.cancel(reference, force=True)  # after some seconds, Ray kills even a suspended process
            lost.append(Failed(self._running.pop(reference), f"no result after {self._pods.timeout:g} s", fatal=False))
            del self._since[reference]
        return lost

    def describe(self) -> str:
        """Return a text with the number of nodes and the number of pods for which the nodes have room."""
        nodes, slots = len(self._alive()), self.slots()
        return f"Ray, {nodes} node{'s' * (nodes > 1)}, room for {slots} pod{'s' * (slots != 1)}"

    def close(self) -> None:
        """Cancel the running pieces. Shut Ray down if this executor started it; leave a cluster that it joined."""
        if self._gone or not self._ray.is_initialized():
            return
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        self._since.clear()
        if self._own:
            self._ray.shutdown()
            self._ray._private.worker._worker_logs_enabled = True


def _require_size(pods: Pods) -> None:
    """Raise InputError if this machine is too small for a pod."""
    import torch

    gpus = torch.cuda.device_count() if pods.gpus else 0
    for name, need, available in (("CPU", pods.cpus, cpu_count()), ("GPU", pods.gpus, gpus)):
        if need > available:
            text = f"a pod needs {need:g} {name}, but this machine has {available}; request less, or pass address="
            raise InputError(text, argument=f"pods.{name.lower()}s")


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise InputError("Ray is not installed; run pip install ray, or train without Ray") from error
    return ray


def _knock(address: str) -> None:
    """Raise OSError if nothing listens at `host:port`. Addresses without a port, such as 'auto', are not checked."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK).close()


def _environment() -> dict[str, Any]:
    """Return a runtime_env for Ray: workers use one thread, and can import finpod even if finpod is not installed."""
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {"env_vars": {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "OMP_NUM_THREADS": "1"}}


def _run(
    boxed: list[Any], work: Work, restore: Callable[[Any], Any] | None, key: str, piece: Any
) -> tuple[Any, tuple[Any, ...]]:
    """Run a piece of work in the worker process, and return (result, placement). `boxed` is [reference to the context].
    The context is fetched only if it is not cached under `key`."""
    import ray

    if key not in _CONTEXTS:
        _CONTEXTS.clear()
        shared = ray.get(boxed[0])
        _CONTEXTS[key] = restore(shared) if restore else shared
    result, place = timed(work, _CONTEXTS[key], piece)
    return result, tuple(place._replace(node=ray.get_runtime_context().get_node_id()[:8]))
