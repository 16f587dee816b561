"""`lock`: one driver at a time for the place of a tournament, in a folder or at a URL."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from finpod.errors import FinpodError, InputError
from finpod.storage import LocalStore, Store

LEASE = 120.0
"""Seconds after which the mark of a driver at a URL counts as left behind."""
SETTLE = 0.2
"""Seconds after which a driver at a URL looks whether another has left its mark at the same moment."""


@contextmanager
def lock(place: Store) -> Iterator[None]:
    """Keep a second driver out: by a lock of the file system, which dies with the process, or by a mark at a URL."""
    if not isinstance(place, LocalStore):
        with _lease(place):
            yield
        return
    path = place.folder / "lock"
    mine = not place.folder.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose a folder you may write to") from error
    try:
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows: nothing keeps a second driver out
            pass
        except OSError as error:
            who = os.read(handle, 200).decode(errors="replace").strip() or "another process"
            raise InputError(f"{place.where} is being driven by {who}; wait for it, or end it first") from error
        os.ftruncate(handle, 0)
        os.write(handle, f"{_myself()}\n".encode())
        mine = True
        yield
    finally:
        if mine:  # and nothing else: the folder may be a user's own
            with suppress(OSError):
                path.unlink()
                place.folder.rmdir()
        os.close(handle)


@contextmanager
def _lease(place: Store) -> Iterator[None]:
    """A mark with a time at a URL, renewed while the block runs; the mark of a process here that is dead does not count."""
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
