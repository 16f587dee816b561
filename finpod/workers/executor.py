"""`Executor`, the interface through which a tournament runs its work, and `InlineExecutor`, which runs it in this process."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from finpod.errors import FinpodError, first_line

Work = Callable[[Any, Any], Any]
"""Function (context, piece) -> result; the context is the same for all pieces."""


class Placement(NamedTuple):
    """Process and time of a piece of work."""

    node: str
    """Name of the host or node."""
    pid: int
    """Id of the process."""
    started: float
    """Unix time at which the piece of work started."""
    ended: float
    """Unix time at which it ended."""


class Completed(NamedTuple):
    """A piece of work that succeeded."""

    key: str
    """Key of the piece."""
    result: Any
    """Value that the work returned."""
    place: Placement
    """Process and time of the work."""


class Failed(NamedTuple):
    """A piece of work that failed or was lost."""

    key: str
    """Key of the piece."""
    reason: str
    """Reason of the failure, in one line."""
    fatal: bool
    """True if the work raised an error and would fail again; False if its process or node was lost."""
    error: BaseException | None = None
    """Exception that the work raised, if any."""


class Executor(Protocol):
    """Interface that runs pieces of work, each identified by a unique key."""

    def capacity(self) -> int:
        """Return the useful number of started and unfinished pieces at this time. It may change at any time."""

    def start(self, key: str, piece: Any) -> None:
        """Begin a piece, or queue it."""

    def wait(self, timeout: float) -> list[Completed | Failed]:
        """Return the pieces that have ended, waiting up to `timeout` seconds for the first."""

    def describe(self) -> str:
        """Return a short description of the process or cluster it runs on."""

    def close(self) -> None:
        """Cancel running pieces and free all resources."""


def timed(work: Work, context: Any, piece: Any) -> tuple[Any, Placement]:
    """Run a piece of work in this process; return its result, process and time."""
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
        """Queue a piece."""
        self._queue.append((key, piece))

    def wait(self, timeout: float) -> list[Completed | Failed]:
        """Run the first piece in the queue and return its outcome."""
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


def with_kind(error: BaseException) -> str:
    """Return the first line of an error's text, preceded by the class name unless it is a FinpodError."""
    line, kind = first_line(error), type(error).__name__
    return line if isinstance(error, FinpodError) or line == kind else f"{kind}: {line}"
