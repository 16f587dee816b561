"""`Executor`: what a tournament asks of the place its work runs in, and the executor that runs it here, one piece at a time."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from finpod.errors import FinpodError, first_line

Work = Callable[[Any, Any], Any]
"""(context, piece) -> result; the context is the same for all pieces."""


class Placement(NamedTuple):
    """Where and when a piece of work ran."""

    node: str
    """Host or node."""
    pid: int
    """Process."""
    started: float
    """Unix time."""
    ended: float
    """Unix time."""


class Completed(NamedTuple):
    """A piece of work that came to its end."""

    key: str
    """The piece."""
    result: Any
    """What the work returned."""
    place: Placement
    """Where it ran."""


class Failed(NamedTuple):
    """A piece of work that did not."""

    key: str
    """The piece."""
    reason: str
    """Why, in one line."""
    fatal: bool
    """Whether the work itself failed, so that it would fail again; otherwise its process or its node was lost."""
    error: BaseException | None = None
    """What the work raised."""


class Executor(Protocol):
    """Runs pieces of work, each known by a key of its own."""

    def capacity(self) -> int:
        """How many pieces it makes sense to have started and not finished, as of now; it may change at any time."""

    def start(self, key: str, piece: Any) -> None:
        """Begin a piece, or queue it."""

    def wait(self, timeout: float) -> list[Completed | Failed]:
        """What has come to an end; waits up to `timeout` seconds for the first."""

    def describe(self) -> str:
        """In a few words, what it runs on."""

    def close(self) -> None:
        """Give up what still runs and free everything."""


def timed(work: Work, context: Any, piece: Any) -> tuple[Any, Placement]:
    """Do a piece of work here and note where and when."""
    started = time.time()
    result = work(context, piece)
    return result, Placement(socket.gethostname(), os.getpid(), started, time.time())


class InlineExecutor:
    """One piece at a time, in this process, when it is waited for."""

    def __init__(self, work: Work, context: Any) -> None:
        self._work, self._context = work, context
        self._queue: deque[tuple[str, Any]] = deque()

    def capacity(self) -> int:
        """One: nothing is gained by starting more before the first is done."""
        return 1

    def start(self, key: str, piece: Any) -> None:
        """Queue it."""
        self._queue.append((key, piece))

    def wait(self, timeout: float) -> list[Completed | Failed]:
        """Do the first piece in the queue."""
        if not self._queue:
            return []
        key, piece = self._queue.popleft()
        try:
            return [Completed(key, *timed(self._work, self._context, piece))]
        except Exception as error:
            return [Failed(key, with_kind(error), fatal=True, error=error)]

    def describe(self) -> str:
        """This process."""
        return "this process"

    def close(self) -> None:
        """Forget the queue."""
        self._queue.clear()


def with_kind(error: BaseException) -> str:
    """First line of the text of an error, after the name of its class unless it is finpod's own."""
    line, kind = first_line(error), type(error).__name__
    return line if isinstance(error, FinpodError) or line == kind else f"{kind}: {line}"
