"""`lock`: one driver at a time for the place of a tournament, in a folder or at a URL."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from finpod.errors import FinpodError, InputError
from finpod.files import locked
from finpod.storage import Store

LEASE = 120.0
"""Seconds after which the mark of a driver at a URL counts as left behind."""
SETTLE = 0.2
"""Seconds after which a driver at a URL looks whether another has left its mark at the same moment."""


@contextmanager
def lock(place: Store) -> Iterator[None]:
    """Keep other drivers out while the block runs: by a file lock, which ends with the process, or else by a mark.

    A mark is what there is at a URL, and in a folder whose file system has no locks. Raises InputError if another process
    drives the run.
    """
    if place.folder is None:
        with _lease(place):
            yield
        return
    path = place.folder / "lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose a folder you may write to") from error
    with ExitStack() as stack:
        try:
            held = stack.enter_context(locked(path, wait=False))
        except BlockingIOError as error:
            who = path.read_text(errors="replace").strip() or "another process"
            raise InputError(f"{place.where} is being driven by {who}; wait for it, or end it first") from error
        stack.callback(_remove_empty, place.folder)  # it may be a folder of the user's
        if held:
            path.write_text(f"{_myself()}\n")
            stack.callback(path.unlink, missing_ok=True)
        else:
            stack.enter_context(_lease(place))
        yield


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def _lease(place: Store) -> Iterator[None]:
    """Leave a mark with the time and renew it while the block runs.

    The mark of a dead process of this machine does not count. Raises InputError for a recent mark of another process.
    """
    mine, over = uuid4().hex, threading.Event()

    def mark() -> None:
        place.write("lock", f"{_myself()}|{mine}|{time.time()}".encode())

    def renew() -> None:
        while not over.wait(LEASE / 4):
            with suppress(FinpodError):  # tried again soon
                mark()

    _require_unmarked(place, mine)
    mark()
    time.sleep(SETTLE)
    _require_unmarked(place, mine)
    renewal = threading.Thread(target=renew, daemon=True)
    renewal.start()
    try:
        yield
    finally:
        over.set()
        renewal.join()
        place.remove("lock")


def _require_unmarked(place: Store, mine: str) -> None:
    """Raise InputError if another has left its mark a short while ago."""
    try:
        who, token, stamp = place.read("lock").decode().split("|")
        fresh = token != mine and time.time() - float(stamp) < LEASE
    except FileNotFoundError:
        return
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        return  # no mark of this version
    if fresh and not _is_dead(who):
        raise InputError(f"{place.where} is being driven by {who}; wait for it, or end it and {LEASE:.0f} s more")


def _myself() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _is_dead(said: str) -> bool:
    """Whether a mark is that of a process of this machine that is no more."""
    process, _, host = said.removeprefix("process ").partition(" on ")
    if host != socket.gethostname() or not process.isdecimal():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False
