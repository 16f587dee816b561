"""Where a tournament lives while it is unfinished, who drives it, and whether it may be gone on with."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finpod.errors import FinpodError, InputError
from finpod.jsonable import to_json, to_json_line
from finpod.rl.ppo import PPOConfig
from finpod.storage import LocalStore, Store, open_store
from finpod.tournament.arena import Arena
from finpod.tournament.journal import NAME, Journal
from finpod.tournament.plan import Plan
from finpod.tournament.provenance import versions

FORMAT = "finpod tournament 1"
ASKED = "asked.json"
"""What the run was asked with, on the command line."""
SUFFIX = ".unfinished"
"""Of the folder beside the output, in which log and checkpoints lie until the end."""
FREE = ("plan.stop.", "plan.keep", "plan.alike", "plan.choice", "plan.retries", "plan.checkpoint_steps", "versions.")
"""Settings that may change from one driver to the next, for no agent depends on them."""
FIXED = ("task.", "format")
"""Settings that may never change, for the scores would not compare."""
LEASE = 120.0
"""Seconds after which the mark of a driver at a URL counts as left behind."""


def header(arena: Arena, plan: Plan, config: PPOConfig) -> dict[str, Any]:
    """What a tournament is, as the first line of its log."""
    task = arena.task_spec()
    names = ("features", "trading", "fill", "windows", "training_data_hash")
    return {
        "format": FORMAT,
        "plan": plan.to_dict(),
        "config": asdict(config),
        "task": {name: task[name] for name in names} | {"threads": arena.threads},
        "data_title": task["data_title"],
        "versions": versions(),
    }


def open_journal(store: Store, wanted: dict[str, Any], say: Callable[[str], None], forked: bool = False) -> Journal:
    """The log of a store, begun with `wanted` or held against it.

    Raises InputError that names what differs, unless no agent depends on it or, of a `forked` copy, only the settings of
    the search do.
    """
    journal = Journal(store, say)
    begun = [record for record in journal.records if record["kind"] == "begin"]
    if begun:
        changed = _differences(_flat(begun[-1]["header"]), _flat(_plain(wanted)))
        refuse_changes(changed, store.where, forked)
        if not changed:
            return journal
        say("settings changed: " + "; ".join(f"{name} {old!r} -> {new!r}" for name, old, new in changed[:5]))
    journal.append("begin", header=wanted)
    return journal


def refuse_changes(changed: list[tuple[str, Any, Any]], where: str, forked: bool) -> None:
    """Raise InputError where one of the changes may not be made."""
    for name, old, new in changed:
        if name.startswith(FREE) or name == "data_title":
            continue
        said = f"{name} was {old!r:.200} and is {new!r:.200}"
        if name.startswith(FIXED):
            raise InputError(
                f"{where} is a tournament of another task: {said}; train under another name, its scores would not compare"
            )
        if not forked:
            raise InputError(
                f"{where} was begun with other settings: {said}; resume with the same, or fork it under another name (--fork)"
            )


@contextmanager
def unfinished(
    out: Path, storage: str | None, *, resume: bool, fork: str | Path | None, overwrite: bool
) -> Iterator[Store]:
    """The place of log and checkpoints, for this process alone; gone when the block ends well.

    It stays when the block does not, so that the run can be resumed, unless no agent has a score yet. Raises InputError for a
    run that is unfinished (unless `resume` or `overwrite`), one that is to be resumed and is not there, and one that
    another process drives.
    """
    place = open_store(storage if storage else out.with_name(out.name + SUFFIX))
    there = bool(_logs(place))
    if fork is not None:
        if there and not overwrite:
            raise InputError(f"{place.where} exists already; fork under another name or allow --overwrite")
    elif there and not resume and not overwrite:
        raise InputError(f"{place.where} is an unfinished run; go on with --resume, or begin anew with --overwrite")
    elif not there and resume:
        raise InputError(f"there is no unfinished run at {place.where}; train without --resume to begin one")
    with _driver(place):
        if there and not resume:
            _clear(place)
        if fork is not None:
            _copy(fork, place)
        try:
            yield place
        except FinpodError:
            if not any(_worth_keeping(open_store(f"{place.where}/{log}").read(NAME)) for log in _logs(place)):
                _clear(place)
            raise
        _clear(place)


def held(place: Store, seed: int) -> bytes:
    """The log of one tournament."""
    return open_store(f"{place.where}/seed-{seed}").read(NAME)


def _worth_keeping(log: bytes) -> bool:
    """Whether an agent has reached a score."""
    return any(b'"kind":"submit"' in line and b'"score":null' not in line for line in log.splitlines())


def note_asked(place: Store, asked: Mapping[str, Any]) -> None:
    """Keep what a run was asked with beside its log, so that it can be gone on with by its name alone."""
    if asked and not _exists(place, ASKED):
        place.write(ASKED, to_json(asked).encode())


def asked_of(run: str, storage: str | None) -> dict[str, Any]:
    """What an unfinished run was asked with. Raises InputError where there is none."""
    place = open_store(storage or folder_of(run))
    try:
        return dict(json.loads(place.read(ASKED)))
    except (FileNotFoundError, ValueError) as error:
        raise InputError(f"{place.where} does not hold what it was asked with; give all options again") from error


def is_unfinished(run: str, storage: str | None) -> bool:
    """Whether there is a run to go on with."""
    if storage:
        return bool(_logs(open_store(storage)))
    try:
        return bool(folder_of(run))
    except InputError:
        return False


def _exists(place: Store, name: str) -> bool:
    return name in place.names()


def folder_of(run: str | Path) -> Path:
    """The folder of an unfinished run, by its own name or by that of its output. Raises InputError if there is none."""
    path = Path(run)
    for folder in (path, path.with_name(path.name + SUFFIX)):
        if folder.is_dir() and _logs(LocalStore(folder)):
            return folder
    raise InputError(f"there is no unfinished run at {path}{SUFFIX}; name the folder it was to go to")


def _logs(place: Store) -> list[str]:
    """The tournaments that have begun there."""
    if isinstance(place, LocalStore):
        return sorted(path.parent.name for path in place.folder.glob(f"seed-*/{NAME}"))
    from finpod.storage import RemoteStore

    assert isinstance(place, RemoteStore)
    return place.folders("seed-")


def _copy(source: str | Path, place: Store) -> None:
    """Copy an unfinished run: logs, agents and checkpoints."""
    origin = LocalStore(folder_of(source))
    for path in sorted(origin.folder.rglob("*")):
        if path.is_file() and path.name != "lock":
            place.write(path.relative_to(origin.folder).as_posix(), path.read_bytes())


def _clear(place: Store) -> None:
    """Remove what a run left."""
    if isinstance(place, LocalStore):
        for log in place.folder.glob("seed-*"):
            shutil.rmtree(log)
        place.remove(ASKED)
    else:
        from finpod.storage import RemoteStore

        assert isinstance(place, RemoteStore)
        place.clear("seed-")
        place.remove(ASKED)


@contextmanager
def _driver(place: Store) -> Iterator[None]:
    """Keep a second driver out: by a lock of the file system, which dies with the process, or by a mark at a URL."""
    if not isinstance(place, LocalStore):
        with _lease(place):
            yield
        return
    path = place.folder / "lock"
    made = not place.folder.exists()
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
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        made = True
        yield
    finally:
        os.close(handle)
        if made and not _logs(place):
            shutil.rmtree(place.folder, ignore_errors=True)


@contextmanager
def _lease(place: Store) -> Iterator[None]:
    """A mark with a time at a URL."""
    name = "lock"
    try:
        said, stamp = place.read(name).decode().rsplit("|", 1)
        if time.time() - float(stamp) < LEASE:
            raise InputError(f"{place.where} is being driven by {said}; wait for it, or end it and {LEASE:.0f} s more")
    except (FileNotFoundError, ValueError) as error:
        if isinstance(error, InputError):
            raise
    renew(place)
    try:
        yield
    finally:
        place.remove(name)


def renew(place: Store) -> None:
    """Say that this process still drives it."""
    place.write("lock", f"process {os.getpid()} on {socket.gethostname()}|{time.time()}".encode())


def _plain(value: Any) -> Any:
    return json.loads(to_json_line(value))


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names."""
    if not isinstance(value, dict):
        return {prefix: value}
    found: dict[str, Any] = {}
    for name, item in value.items():
        found |= _flat(item, f"{prefix}.{name}" if prefix else str(name))
    return found


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(name, old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
