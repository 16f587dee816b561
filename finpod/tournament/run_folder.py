"""`RunFolder`: where a run lies while it is unfinished: begun, resumed, forked and finished, by one driver at a time."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from finpod.errors import EngineError, FinpodError, InputError
from finpod.files import UNFINISHED, locked, parents_of, to_json_line
from finpod.storage import Store
from finpod.tournament.log import NAME, TrialLog, begun_logs, differences
from finpod.tournament.setup import LEVELS, completed, on_resume

LEASE = 120.0
"""Seconds after which the mark of a driver at a URL counts as left behind."""
SETTLE = 0.2
"""Seconds after which a driver at a URL looks whether another has left its mark at the same moment."""
FREQUENCY = ("task.periods_per_year", "task.sessions_per_year")
"""In the header: bars and sessions a year that scores count. Logs of earlier versions lack them."""
DATA, WINDOWS = "task.training_data_hash", "task.windows."
"""In the header: hash of the bars up to the end of validation, and the windows, on which it depends."""


class RunFolder:
    """The place of an unfinished run, a folder or a URL: a log, agents and checkpoints for each of its tournaments."""

    kind = "run"
    """What messages call it."""

    def __init__(self, place: str | Path) -> None:
        self.store = Store(place)
        self.where = self.store.where

    @classmethod
    def of(cls, out: Path, storage: str | None = None) -> RunFolder:
        """Return the place of the run whose output is the folder `out`: beside it, or at `storage`."""
        return cls(storage if storage else out.parent / f"{out.name or out.resolve().name}{UNFINISHED}")

    def begun(self) -> bool:
        """Whether something lies there that can be gone on with."""
        return bool(begun_logs(self.store))

    def require(self, *, resume: bool, overwrite: bool, fork: RunFolder | None = None) -> None:
        """Raise InputError for a run that is neither resumed nor overwritten, and for one to be resumed that is not there."""
        begun = self.begun()
        if fork is not None:
            if fork.where == self.where:
                raise InputError(f"{self.where} cannot be forked onto itself; give another out= and storage=", "fork")
            if begun and not overwrite:
                raise InputError(f"{self.where} exists already; fork under another name, or pass overwrite=True")
        elif begun and not resume and not overwrite:
            way_out = "go on with it with resume=True, or begin anew with overwrite=True"
            raise InputError(f"{self.where} is an unfinished {self.kind}; {way_out}")
        elif resume and not begun:
            way_out = "begin one without resume=True"
            raise InputError(f"there is no unfinished {self.kind} at {self.where}; {way_out}", argument="resume")

    @contextmanager
    def drive(
        self, *, resume: bool, overwrite: bool, fork: RunFolder | None = None, seeds: Collection[int] = ()
    ) -> Iterator[None]:
        """Hold the place for this process alone while the block runs, and `finish` it at the end.

        What lies there is removed unless it is resumed; with `fork` that run is copied first. After an error the place
        stays if `keeps` says so. Raises InputError as `require` does, for a run that has tournaments of other `seeds`, and
        for one that another process drives.
        """
        self.require(resume=resume, overwrite=overwrite, fork=fork)
        folder = self.store.folder
        with parents_of(folder) if folder else nullcontext(), lock(self.store):
            if not resume and self.begun():
                self.clear()
            if fork is not None:
                self._copy(fork)
            before = self._contents()
            try:
                other = [seed for seed in begun_logs(self.store).values() if seed not in seeds]
                if seeds and other:  # it would be left lying
                    raise InputError(
                        f"{self.where} has a tournament of seed {other[0]}, and seed {', '.join(map(str, seeds))} is asked "
                        "for; give the same seeds, or begin under another name"
                    )
                yield
            except BaseException as error:
                if not (resume or self.keeps(error, before)):
                    self.clear()
                raise
            self.finish()

    def keeps(self, error: BaseException, before: list[bytes]) -> bool:
        """Whether an error leaves something to go on with.

        Not a FinpodError before any agent has a score or a checkpoint, nor one after which the logs are as they were
        `before`; but a lost engine always.
        """
        if isinstance(error, EngineError) or not isinstance(error, FinpodError):
            return True
        trials = [trial for name in begun_logs(self.store) for trial in TrialLog(self.store, name).board.trials]
        worth = any(trial.score == trial.score or len(trial.places) > (trial.state == "ended") for trial in trials)
        return worth and self._contents() != before

    def _contents(self) -> list[bytes]:
        return [self.store.read(name) for name in begun_logs(self.store)]

    def log(self, seed: int) -> bytes:
        """The log of one tournament."""
        return self.store.read(f"seed-{seed}/{NAME}")

    def clear(self) -> None:
        """Remove what a run left, and nothing else."""
        for name in begun_logs(self.store):
            self.store.remove_folder(name.removesuffix(f"/{NAME}"))
        self.store.remove("asked.json")  # of runs of earlier versions

    def finish(self) -> None:
        """Remove it, for its output is written."""
        self.clear()

    def _copy(self, fork: RunFolder) -> None:
        """Copy another run: first the logs, so that they know of no agent that is not copied, then all that they need."""
        for name in begun_logs(fork.store):
            self.store.write(name, fork.store.read(name))
            for folder in ("agents", "checkpoints"):
                for file in fork.store.names(f"{name.removesuffix(f'/{NAME}')}/{folder}"):
                    with suppress(FileNotFoundError):  # its driver has just removed it, for nobody needs it
                        self.store.write(file, fork.store.read(file))


def open_log(
    store: Store,
    header: dict[str, Any],
    say: Callable[[str], None],
    *,
    forked: bool = False,
    origin: Mapping[str, Any] = MappingProxyType({}),
) -> TrialLog:
    """Return the log of a tournament with `header` and the entry `run` (`origin`, see `RunEntry`) as those of its last driver.

    Raises InputError naming the first setting that differs from the log's header and may not, see `setup.on_resume`.
    """
    log = TrialLog(store, run=header["plan"]["seed"])
    entry: dict[str, Any] = _plain(dict(origin))
    if log.torn:
        say(f"the last line of {log.where} was cut short by a crash and is dropped")
    if log.header:
        changed = differences(completed(log.header), completed(_plain(header)))
        refuse_changes(changed, store.where, forked)
        kept = ("market", "asked")  # what a driver that does not say leaves as it was
        entry |= {name: log.origin[name] for name in kept if log.origin.get(name) and not entry.get(name)}
        if not changed and _lasting(entry) == _lasting(log.origin):
            return log
        if changed:
            say("settings changed: " + "; ".join(f"{name} {old!r} -> {new!r}" for name, old, new in changed[:5]))
    log.append("begin", header=header, run=entry)
    return log


def _plain(value: Any) -> Any:
    """The value as it comes back from a log."""
    return json.loads(to_json_line(value))


def _lasting(origin: Mapping[str, Any]) -> dict[str, Any]:
    """The entry without the output, if the folder of the run tells it: such a run may have been moved."""
    return dict(origin) if origin.get("storage") else {name: value for name, value in origin.items() if name != "out"}


def refuse_changes(changed: Sequence[tuple[str, Any, Any]], where: str, forked: bool) -> None:
    """Raise InputError for the first of the changes (setting, old value, new value) that may not be made.

    A change of the data comes first, then changes that no fork may make.
    """
    for name, old, new in sorted(changed, key=lambda change: (change[0] != DATA, on_resume(change[0]) != "never")):
        if on_resume(name) == "free" or (name in FREQUENCY and old is None):
            continue
        if name == DATA and not any(other.startswith(WINDOWS) for other, _, _ in changed):
            raise InputError(
                f"{where} was begun with other data: {name} was {old!r} and is {new!r}; give the market it was begun with"
            )
        change = f"{name} was {old!r:.200} and is {new!r:.200}"
        if on_resume(name) == "never":
            raise InputError(
                f"{where} is a tournament of another task: {change}; train under another name, its scores would not compare"
            )
        if name == LEVELS:
            if forked and old and new and old[: len(new)] != new[: len(old)]:
                even = old == [old[0] * (level + 1) for level in range(len(old))]
                fit = f"{len(new)} rounds that share them take steps={old[0] * len(new)}"
                raise InputError(
                    f"{where} has its levels of experience at {old!r:.200} steps and the fork at {new!r:.200}; "
                    + (fit if even else "keep its rounds and steps, for no others share them")
                )
            continue
        if not forked:
            way_out = "resume with the same, or fork it under another name with fork="
            raise InputError(f"{where} was begun with other settings: {change}; {way_out}", argument="resume")


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
    except InputError:
        raise
    except (FileNotFoundError, ValueError):
        return  # no mark, or none of this version
    if fresh and not _is_dead(who):
        raise InputError(f"{place.where} is being driven by {who}; wait for it, or end it and {LEASE:.0f} s more")


def _myself() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _is_dead(mark: str) -> bool:
    """Whether a mark is that of a process of this machine that is no more."""
    process, _, host = mark.removeprefix("process ").partition(" on ")
    if host != socket.gethostname() or not process.isdecimal():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False
