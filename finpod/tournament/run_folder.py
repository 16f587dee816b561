"""`RunFolder`: the folder or URL of an unfinished run. One driver at a time begins, resumes, forks and finishes a run.

A driver is a process that trains the agents of a run. The log records all settings, so a run can be resumed by its name
alone. Agents are comparable if the settings in the header of the log are equal. Other settings are in the entry 'run'.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from finpod.errors import EngineError, FinpodError, InputError
from finpod.files import UNFINISHED, locked, require_free_file, to_json_line
from finpod.rl import LEARNERS
from finpod.storage import Store
from finpod.tournament.history import FINISHED
from finpod.tournament.log import NAME, TrialLog, begun_logs, differences, places_of, unfinished
from finpod.tournament.setup import FIXED, FORMAT, FREE, LEVELS, Plan, TournamentSetup

LEASE = 120.0
"""Age in seconds from which a lock file with a time stamp is ignored; see `lock`."""
DATA, WINDOWS = "task.training_data_hash", "task.windows."
"""Name of the header entry with the hash of the bars up to the end of validation; prefix of entries with windows."""


class RunFolder:
    """Folder or URL of an unfinished run, with a log, agents and checkpoints for each tournament."""

    def __init__(self, place: str | Path) -> None:
        self.store = Store(place)
        self.where = self.store.where

    @classmethod
    def of(cls, out: Path, storage: str | None = None) -> RunFolder:
        """Return the `RunFolder` of the run whose output folder is `out`: at `storage`, or else in OUT.unfinished."""
        return cls(storage or unfinished(out))

    def begun(self) -> bool:
        """Return True if there is a run to resume."""
        return bool(begun_logs(self.store))

    def require(
        self, *, resume: bool, overwrite: bool, fork: RunFolder | None = None, setups: Sequence[TournamentSetup] = ()
    ) -> None:
        """Raise InputError if an unfinished run is neither resumed nor overwritten, if there is no run to resume, or if
        the run is in a folder on this machine that cannot be written.

        `setups` has the setup of each tournament. Their seeds must include all seeds of the run that is resumed or
        forked. Their plans and learners may differ from those of that run only as `refuse_changes` allows.
        """
        begun = self.begun()
        if fork is not None:
            if fork.where == self.where:
                raise InputError(f"{self.where} cannot be forked onto itself; pass another out= or storage=", "fork")
            if begun and not overwrite:
                raise InputError(f"{self.where} exists already; fork to another name, or pass overwrite=True")
        elif begun and not resume and not overwrite:
            raise InputError(f"{self.where} is unfinished; pass resume=True, or overwrite=True to start anew")
        elif resume and not begun:
            raise InputError(f"there is no unfinished run at {self.where}; leave out resume=True", argument="resume")
        if self.store.folder is not None:
            require_free_file(self.store.folder / "log", overwrite=True)
        source = self if resume and fork is None else fork
        if source is not None and setups:
            source.require_setups(setups, forked=fork is not None, complete=False)

    def require_setups(self, many: Sequence[TournamentSetup], *, forked: bool, complete: bool = True) -> None:
        """Raise InputError if the run cannot be resumed or forked with the setups `many`. `complete`: compare tasks."""
        setups = {one.plan.seed: one for one in many}
        for name, seed in begun_logs(self.store).items():
            if seed not in setups:  # its tournament would never be finished
                text = f"{self.where} has a tournament of seed {seed}, but the seeds are {', '.join(map(str, setups))}"
                raise InputError(f"{text}; pass the same seeds, or begin a new run under another name")
            if header := TrialLog(self.store, name).header:
                setup = setups[seed]
                early = {"format": FORMAT, "plan": asdict(setup.plan), "learner": setup.learner}
                given = _plain(setup.header() if complete else early)
                refuse_changes(differences({entry: header.get(entry) for entry in given}, given), self.where, forked)

    @contextmanager
    def drive(self, *, resume: bool, overwrite: bool, fork: RunFolder | None = None) -> Iterator[None]:
        """Lock the run for this process while the block runs, and `finish` it at the end.

        An earlier run is removed unless it is resumed. With `fork`, the run `fork` is copied first. After an error, the
        run is kept, except in one case: a FinpodError other than EngineError removes a new or forked run without
        progress. Raises InputError in the cases of `require`, and if another process drives the run.
        """
        self.require(resume=resume, overwrite=overwrite, fork=fork)
        with lock(self.store):
            if not resume and self.begun():
                self.clear()
            if fork is not None:
                self._copy(fork)
            before = 0 if fork is None else self.progress()
            try:
                yield
            except BaseException as error:
                ends = isinstance(error, FinpodError) and not isinstance(error, EngineError)
                if not resume and (not self.begun() or (ends and self.progress() <= before)):
                    self.clear()
                raise
            self.finish()

    def progress(self) -> int:
        """Return the number of finished slices of training in trials that are open or have a score."""
        trials = [trial for name in begun_logs(self.store) for trial in TrialLog(self.store, name).board.trials]
        return sum(len(trial.places) for trial in trials if trial.state == "open" or not math.isnan(trial.score))

    def clear(self) -> None:
        """Remove the files of the run, and no other files."""
        for name in begun_logs(self.store):
            self.store.remove_folder(name.removesuffix(f"/{NAME}"))

    def finish(self) -> None:
        """Remove the run after its output was written."""
        self.clear()

    def _copy(self, fork: RunFolder) -> None:
        """Copy the run `fork`. Each log is copied before its agents, so that all agents in its copy are copied."""
        for name in begun_logs(fork.store):
            self.store.write(name, fork.store.read(name))
            for folder in ("agents", "checkpoints"):
                for file in fork.store.names(f"{name.removesuffix(f'/{NAME}')}/{folder}"):
                    with suppress(FileNotFoundError):  # a running driver has removed it meanwhile
                        self.store.write(file, fork.store.read(file))


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Settings of an unfinished run, recorded by the driver (the process that trains agents) that ran last.

    `where` is the folder or URL of the logs, `header` the header of the first log, `plan` the plan of the first
    tournament, and `config` the settings of the learner of the first agent. The other fields are read from the log's
    entry 'run'. `out` is the absolute path of the output folder. `storage` is a URL, an absolute path, or None for
    OUT.unfinished. `seeds` has the tournaments' seeds. `features` are the names of the requested features (None: the
    default features, or a task without a market). A log cannot store functions. So `functions` maps the name of each
    feature that is a function to statistics of its values. `market` has the arguments of `load_market`; empty if
    `load_market` was not called. `metadata` has further values for the next driver.
    """

    where: str
    header: Mapping[str, Any]
    plan: Plan
    config: Any
    out: str
    storage: str | None
    seeds: Sequence[int]
    features: str | Sequence[str] | None
    functions: Mapping[str, str]
    market: Mapping[str, Any]
    metadata: Mapping[str, Any]


def recorded_of(run: str, storage: str | None) -> tuple[str, Recorded | None]:
    """Return (place, recorded settings) of an unfinished run. The settings are None if no header was logged.

    Raises InputError for a missing run and a run of another format, and CheckpointError for a damaged log.
    """
    place = find(run, storage).store
    logs = [TrialLog(place, name, seed) for name, seed in begun_logs(place).items()]
    first = next((log for log in logs if log.header), None)
    if first is None:
        return place.where, None
    header, entry = first.header, first.origin
    if header["format"] != FORMAT:
        raise InputError(
            f"{place.where} has the format {header['format']!r}, and this version of finpod continues only {FORMAT!r}; "
            "use the version of finpod that began the run, or train again"
        )
    plan = Plan.from_dict({**header["plan"], "seed": entry["seeds"][0]})
    config = LEARNERS[header["learner"]].Config(**header["config"])
    return place.where, Recorded(where=place.where, header=header, plan=plan, config=config, **entry)


def find(run: str | Path, storage: str | None = None) -> RunFolder:
    """Return the unfinished run at `storage`, or without `storage`, the run that `run` stands for.

    `run` is a URL, a run's folder or its output folder; see `places_of`. Raises InputError if there is no such run.
    """
    places = places_of(run, storage)
    if place := next((place for place in places if begun_logs(place)), None):
        return RunFolder(place.where)
    if done := next((one.where for one in places_of(run) if not {*FINISHED}.isdisjoint(one.names())), None):
        raise InputError(f"{done} is finished; only an unfinished run can be resumed or forked")
    where = [place.where for place in places if place.folder is None or place.where.endswith(UNFINISHED) or storage]
    raise InputError(
        f"there is no unfinished run at {' or '.join(dict.fromkeys(where))}; pass the run's output folder or storage="
    )


def may_begin(run: str, out: Path, storage: str | None) -> bool:
    """Return True if `--resume run` may start a new run in the folder `out`, because there is none to resume.

    `run` must be the `storage`, or stand for `out` or OUT.unfinished. There must be no unfinished run.
    """
    if any(begun_logs(place) for place in places_of(run, storage)):
        return False
    return run == storage or any(Path(one.where).absolute() == unfinished(out.absolute()) for one in places_of(run))


def driven(run: str, recorded: str | None, out: Path | None) -> dict[str, Any]:
    """Return the arguments with which `train` resumes a run: `storage` (place of the run), or `out` (output folder).

    `storage` is returned if the place is a URL or the storage `recorded` in the log, or if `out` is given. Otherwise,
    the run must be in a folder OUT.unfinished, and OUT is returned as `out`. Raises InputError for another folder.
    """
    if "://" in run:
        return {"storage": run}
    folder = Path(find(run).where)
    if out is not None or (recorded and Path(recorded).resolve() == folder.resolve()):
        return {"storage": str(folder)}
    if folder.suffix != UNFINISHED:
        raise InputError(f"{folder} does not end in {UNFINISHED}, so the output folder is unknown; pass out=")
    return {"storage": None, "out": folder.with_suffix("")}


def open_log(
    store: Store, header: Mapping[str, Any], origin: Mapping[str, Any], *, forked: bool = False
) -> tuple[TrialLog, list[str]]:
    """Return (the log of a tournament, sentences on the settings that changed since the last driver).

    `header` and `origin` (see `Recorded`) are logged as a record 'begin' if the log is new, or if they have changed.
    Raises InputError for a change that is not allowed; see `refuse_changes`.
    """
    log = TrialLog(store, run=header["plan"]["seed"])
    known, header, entry = len(log.notes), _plain(header), _plain(origin)
    if log.header:
        old, new = ({"functions": one.get("functions") or {}} for one in (log.origin, entry))
        changed = differences(log.header, header) + differences(old, new, "task.")
        refuse_changes(changed, store.where, forked)
        kept = ("market", "metadata")  # entries that a driver may leave empty
        entry |= {name: log.origin[name] for name in kept if log.origin.get(name) and not entry.get(name)}
        if not changed and entry == log.origin:
            return log, []
    log.append("begin", header=header, run=entry)
    return log, log.notes[known:]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` converted to JSON and back, so that they can be compared with values from a log."""
    plain: dict[str, Any] = json.loads(to_json_line(dict(values)))
    return plain


def refuse_changes(changed: Sequence[tuple[str, Any, Any]], where: str, forked: bool) -> None:
    """Raise InputError for the first change (setting, old value, new value) that is not allowed.

    Entries in `FREE` may always change; entries in `FIXED` must not change. Other entries may change only in a fork. A
    fork must keep the steps of each round. Changed data are reported first, then entries in `FIXED`, then others.
    """
    refused = [change for change in changed if not _among(change[0], FREE)]
    for name, old, new in sorted(refused, key=lambda change: (change[0] != DATA, not _among(change[0], FIXED))):
        change = f"{name} was {old!r:.200} and is {new!r:.200}"
        if name == DATA and any(other.startswith(WINDOWS) for other, _, _ in refused):
            continue  # the windows changed too; report this cause of the changed data instead
        if name == DATA:
            raise InputError(f"{where} was begun with other data: {change}; pass the same market")
        if _among(name, FIXED):
            way_out = "leave out fork= to train anew" if forked else "train under another name"
            raise InputError(f"{change}, so agents would not be comparable with earlier agents; {way_out}", name)
        if name == LEVELS:
            if forked and old and new and old[: len(new)] != new[: len(old)]:
                text = f"the rounds of {where} end at {old!r:.200} steps, but those of the fork end at {new!r:.200}"
                raise InputError(f"{text}; use the same number of steps per round")
        elif not forked:
            way_out = "resume with the same settings, or fork it to another name with fork="
            raise InputError(f"{where} was begun with other settings: {change}; {way_out}", argument="resume")


def _among(name: str, entries: Sequence[str]) -> bool:
    """Return True if the entry `name`, such as 'plan.agents', is one of the `entries` or part of one."""
    return any(f"{name}.".startswith(f"{entry}.") for entry in entries)


@contextmanager
def lock(place: Store) -> Iterator[None]:
    """Keep other drivers from using a run while the block runs.

    In a folder, the lock is a file lock, which ends with the process. At a URL, and if the file system has no locks, a
    lock file with a time stamp is used. Raises InputError if another process drives the run, or if writing fails.
    """
    with ExitStack() as stack:
        held = False
        if place.folder is not None:
            path = place.folder / "lock"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                held = stack.enter_context(locked(path, wait=False))
            except BlockingIOError as error:
                who = path.read_text(errors="replace").strip() or "another process"
                raise InputError(f"{place.where} is in use by {who}; wait until it ends, or end it") from error
            except OSError as error:
                raise InputError(f"cannot write {path}: {error.strerror}; choose a folder you may write to") from error
            stack.callback(_remove_empty, place.folder)  # unless the user has other files in it
        if held:
            path.write_text(f"{_myself()}\n")
            stack.callback(path.unlink, missing_ok=True)
        else:
            stack.enter_context(_lease(place))
        yield


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _myself() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


@contextmanager
def _lease(place: Store) -> Iterator[None]:
    """Write a lock file, and renew it while the block runs. Raises InputError if another driver has a recent one."""
    text = b""
    with suppress(FileNotFoundError):
        text = place.read("lock")
    who, _, stamp = text.decode().rpartition("|")
    if who and time.time() - float(stamp) < LEASE:
        raise InputError(f"{place.where} is in use by {who}; wait until it ends, or end it and wait {LEASE:.0f} s")
    over = threading.Event()

    def mark() -> None:
        place.write("lock", f"{_myself()}|{time.time()}".encode())

    def renew() -> None:
        while not over.wait(LEASE / 4):
            with suppress(FinpodError):  # the next renewal may succeed
                mark()

    mark()
    renewal = threading.Thread(target=renew, daemon=True)
    renewal.start()
    try:
        yield
    finally:
        over.set()
        renewal.join()
        place.remove("lock")
