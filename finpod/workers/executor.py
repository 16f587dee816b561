"""`Pods`: where agents train. `Executor`: interface to run work. `InlineExecutor`: runs work in this process."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from finpod.errors import InputError, require_number, with_kind

Work = Callable[[Any, Any], Any]
"""Function (context, piece) -> result. `piece` describes a piece of work. All pieces get the same `context`."""


@dataclass(frozen=True, kw_only=True)
class Pods:
    """Where agents train: in this process, or on Ray. A pod is the training of one agent as a Ray task."""

    ray: bool = False
    """Train on Ray, with all cores of this machine or with a cluster."""
    count: int | str = "auto"
    """Number of pods (trainings of one agent) at a time; 'auto' follows the size of the cluster."""
    cpus: float = 1.0
    """CPUs per pod."""
    gpus: float = 0.0
    """GPUs per pod; with 0.25, four pods share a GPU."""
    timeout: float = 3600.0
    """Seconds after which a pod without a result counts as lost. 30 s are added for the start of its process."""
    address: str | None = None
    """Address of a Ray cluster, or 'auto' on its nodes. None: RAY_ADDRESS. If both are unset, Ray starts here."""

    def __post_init__(self) -> None:
        if self.count != "auto":
            require_number("pods.count", self.count, 1, whole=True)
        require_number("pods.cpus", self.cpus, 0.001)
        require_number("pods.gpus", self.gpus, 0)
        require_number("pods.timeout", self.timeout, 0.001, threading.TIMEOUT_MAX)
        if self.gpus > 1 and self.gpus % 1:
            text = f"pods.gpus is {self.gpus!r}; it must be a fraction of one GPU, or a whole number of GPUs"
            raise InputError(text, argument="pods.gpus")
        if self.gpus and not self.ray:
            raise InputError(
                f"pods.gpus is {self.gpus:g}, but pods with GPUs need Ray; pass ray=True, or set pods.gpus to 0",
                argument="pods.gpus",
            )


class Placement(NamedTuple):
    """Where and when a piece of work ran: its host or node, its process, and the Unix times of its start and end."""

    node: str
    pid: int
    started: float
    ended: float


class Completed(NamedTuple):
    """A piece of work that succeeded: its key, the value that it returned, and where and when it ran."""

    key: str
    result: Any
    place: Placement


class Failed(NamedTuple):
    """A piece of work that failed or was lost: its key, and the reason in one line."""

    key: str
    reason: str
    fatal: bool
    """True if the work raised an error and would fail again. False if its process or node was lost, or time ran out."""
    error: BaseException | None = None
    """Exception that the work raised, if any."""


class Executor(Protocol):
    """Interface that runs pieces of work, each identified by a unique key."""

    def capacity(self) -> int:
        """Return the number of pieces of work to keep running or queued. The number may change at any time."""

    def start(self, key: str, piece: Any) -> None:
        """Run a piece of work, or queue it. `wait` returns the result with the unique `key`."""

    def wait(self, timeout: float) -> list[Completed | Failed]:
        """Wait up to `timeout` seconds until a piece of work ends. Return all pieces that ended since the last call."""

    def describe(self) -> str:
        """Return a short description of the process or cluster that runs the pieces."""

    def close(self) -> None:
        """Cancel running pieces and free all resources."""


def timed(work: Work, context: Any, piece: Any) -> tuple[Any, Placement]:
    """Run a piece of work in this process; return (result, placement)."""
    started = time.time()
    result = work(context, piece)
    return result, Placement(socket.gethostname(), os.getpid(), started, time.time())


class InlineExecutor:
    """Executor that runs one piece at a time in this process, during `wait`."""

    def __init__(self, work: Work, context: Any) -> None:
        self._work, self._context = work, context
        self._queue: deque[tuple[str, Any]] = deque()

    def capacity(self) -> int:
        """Return 1: starting more pieces gains nothing."""
        return 1

    def start(self, key: str, piece: Any) -> None:
        """Queue a piece of work."""
        self._queue.append((key, piece))

    def wait(self, timeout: float) -> list[Completed | Failed]:
        """Run the first piece in the queue to its end, and return its outcome. `timeout` is ignored."""
        if not self._queue:
            return []
        key, piece = self._queue.popleft()
        try:
            return [Completed(key, *timed(self._work, self._context, piece))]
        except Exception as error:
            return [Failed(key, with_kind(error), fatal=True, error=error)]

    def describe(self) -> str:
        """Return the description 'this process'."""
        return "this process"

    def close(self) -> None:
        """Forget the pieces in the queue."""
        self._queue.clear()
