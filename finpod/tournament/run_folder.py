"""`RunFolder`: the place of an unfinished run: begun, resumed, forked and finished, by one driver at a time.

The log of a run records its settings, so that it can be resumed by its name alone: a header, which decides if agents are
comparable, and the entry `run` with further settings of the driver.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from finpod.errors import EngineError, FinpodError, InputError
from finpod.files import UNFINISHED, locked, parents_of, to_json_line
from finpod.rl import LEARNERS
from finpod.storage import Store
from finpod.tournament.history import FINISHED
from finpod.tournament.log import NAME, TrialLog, begun_logs, differences, places_of, unfinished
from finpod.tournament.setup import FIXED, FREE, LEVELS, Plan, completed

LEASE = 120.0
"""Seconds after which the mark of a driver at a URL is stale."""
DATA, WINDOWS = "task.training_data_hash", "task.windows."
"""Entries of a header: hash of the bars up to the end of validation, and the windows, on which it depends."""


class RunFolder:
    """The place of an unfinished run, a folder or a URL: a log, agents and checkpoints for each of its tournaments."""

    def __init__(self, place: str | Path) -> None:
        self.store = Store(place)
        self.where = self.store.where

    @classmethod
    def of(cls, out: Path, storage: str | None = None) -> RunFolder:
        """Return the place of the run whose output is the folder `out`: beside it, or at `storage`."""
        return cls(storage or unfinished(out))

    def begun(self) -> bool:
        """Return True if there is something to resume."""
        return bool(begun_logs(self.store))

    def require(
        self, *, resume: bool, overwrite: bool, fork: RunFolder | None = None, plans: Sequence[Plan] = ()
    ) -> None:
        """Raise InputError for a run that is neither resumed nor overwritten, and for a missing one that is resumed.

        A resumed or forked run must have the seeds of the `plans`, one a tournament, and their settings (see `refuse_changes`).
        """
        begun = self.begun()
        if fork is not None:
            if fork.where == self.where:
                raise InputError(f"{self.where} cannot be forked onto itself; give another out= and storage=", "fork")
            if begun and not overwrite:
                raise InputError(f"{self.where} exists already; fork under another name, or pass overwrite=True")
        elif begun and not resume and not overwrite:
            raise InputError(f"{self.where} is unfinished; pass resume=True, or overwrite=True to start anew")
        elif resume and not begun:
            raise InputError(f"there is no unfinished run at {self.where}; leave out resume=True", argument="resume")
        source = self if resume and fork is None else fork
        if source is not None and plans:
            source._require_plans({plan.seed: plan for plan in plans}, forked=fork is not None)

    def _require_plans(self, plans: Mapping[int, Plan], *, forked: bool) -> None:
        for name, seed in begun_logs(self.store).items():
            if seed not in plans:  # its tournament would never be finished
                raise InputError(
                    f"{self.where} has a tournament of seed {seed}, and seed {', '.join(map(str, plans))} is asked "
                    "for; give the same seeds, or begin under another name"
                )
            if header := TrialLog(self.store, name).header:
                changed = differences(header["plan"], _plain(asdict(plans[seed])), "plan.")
                refuse_changes(changed, self.where, forked)

    @contextmanager
    def drive(self, *, resume: bool, overwrite: bool, fork: RunFolder | None = None) -> Iterator[None]:
        """Hold the place for this process alone while the block runs, and `finish` it at the end.

        Its content is removed unless it is resumed; with `fork` that run is copied first. After a FinpodError the place is
        kept only if there is more to resume than before; after a lost executor and other errors always. Raises InputError in
        the cases of `require`, and if another process drives the run.
        """
        self.require(resume=resume, overwrite=overwrite, fork=fork)
        folder = self.store.folder
        with parents_of(folder) if folder else nullcontext(), lock(self.store):
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
        """Return the number of slices of training that can be resumed from: those of open trials and trials with a score."""
        trials = [trial for name in begun_logs(self.store) for trial in TrialLog(self.store, name).board.trials]
        return sum(len(trial.places) for trial in trials if trial.state == "open" or not math.isnan(trial.score))

    def clear(self) -> None:
        """Remove the content of a run, and nothing else."""
        for name in begun_logs(self.store):
            self.store.remove_folder(name.removesuffix(f"/{NAME}"))

    def finish(self) -> None:
        """Remove the run, whose output is written."""
        self.clear()

    def _copy(self, fork: RunFolder) -> None:
        """Copy another run: the logs first, so that they name no agent that is not copied, then the agents."""
        for name in begun_logs(fork.store):
            self.store.write(name, fork.store.read(name))
            for folder in ("agents", "checkpoints"):
                for file in fork.store.names(f"{name.removesuffix(f'/{NAME}')}/{folder}"):
                    with suppress(FileNotFoundError):  # a running driver has just removed it as unneeded
                        self.store.write(file, fork.store.read(file))


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """The entry `run`.

    The output folder `out` and the `storage` (None: the folder beside `out`) are absolute, so that they hold in every folder.
    `seeds` are those of the tournaments, `device` is that of the driver. `features` were requested by name (None: the default
    ones, or a task without a market); `functions` names those that are functions, which a log cannot hold. `market` has the
    arguments with which the market was loaded, empty for a market from memory; `asked` further values for the next driver.
    """

    out: str
    storage: str | None
    seeds: Sequence[int]
    features: str | Sequence[str] | None
    functions: Sequence[str]
    device: str | None = None
    market: Mapping[str, Any]
    asked: Mapping[str, Any]


class Recorded(NamedTuple):
    """Settings of an unfinished run, as its last driver had them.

    `where` is the folder or URL of its logs, `header` that of the first log, `plan` that of the first tournament, `config` the
    settings of the learner of the first agent, and `run` the entry `run`.
    """

    where: str
    header: Mapping[str, Any]
    plan: Plan
    config: Any
    run: RunEntry


def recorded_of(run: str, storage: str | None) -> tuple[str, Recorded | None]:
    """Return the place of an unfinished run, and its recorded settings; None if it ended before a header was logged.

    Raises InputError for a run that is missing or of an earlier version, CheckpointError for a damaged log.
    """
    place = find(run, storage).store
    logs = [TrialLog(place, name, seed) for name, seed in begun_logs(place).items()]
    first = next((log for log in logs if log.header), None)
    if first is None:
        return place.where, None
    if not first.origin:
        raise InputError(
            f"{place.where} was begun by an earlier version of finpod, whose scores do not compare; train again"
        )
    header, entry = completed(first.header), RunEntry(**first.origin)
    plan = Plan.from_dict(header["plan"] | {"seed": entry.seeds[0]})
    config = LEARNERS[header["learner"]].Config(**header["config"])
    return place.where, Recorded(place.where, header, plan, config, entry)


def find(run: str | Path, storage: str | None = None) -> RunFolder:
    """Return the unfinished run at `storage`, at a URL, or by the name of its folder or of its output, also in strategies/.

    Raises InputError if there is none.
    """
    places = places_of(run, storage)
    if place := next((place for place in places if begun_logs(place)), None):
        return RunFolder(place.where)
    if done := next((one.where for one in places_of(run) if not {*FINISHED}.isdisjoint(one.names())), None):
        raise InputError(f"{done} is finished; there is nothing to resume")
    where = [place.where for place in places if place.folder is None or place.where.endswith(UNFINISHED) or storage]
    raise InputError(
        f"there is no unfinished run at {' or '.join(dict.fromkeys(where))}; give the folder of its output, or its storage="
    )


def may_begin(run: str, out: Path, storage: str | None) -> bool:
    """Return True if no run of this name is unfinished, and it is the name of the output `out` or of the `storage`."""
    if any(begun_logs(place) for place in places_of(run, storage)):
        return False
    return run == storage or any(Path(one.where).absolute() == unfinished(out.absolute()) for one in places_of(run))


def driven(run: str, recorded: str | None, out: Path | None) -> dict[str, Any]:
    """Return the arguments of `train` with which a run is resumed where it lies now: `storage`, and `out` if it was moved.

    A folder other than the storage that the log `recorded` was moved. Unless `out` is given, its output goes beside it, and
    InputError is raised if the name of the folder does not end in '.unfinished'.
    """
    if "://" in run:
        return {"storage": run}
    folder = Path(find(run).where)
    if out is not None or (recorded and Path(recorded).resolve() == folder.resolve()):
        return {"storage": str(folder)}
    if folder.suffix != UNFINISHED:
        raise InputError(
            f"{folder} does not end in {UNFINISHED}, so its name does not tell where the ensemble goes; give out="
        )
    return {"storage": None, "out": folder.with_suffix("")}


def open_log(
    store: Store, header: Mapping[str, Any], origin: Mapping[str, Any], *, forked: bool = False
) -> tuple[TrialLog, list[str]]:
    """Return the log of a tournament, and the settings that have changed since it was last open, as sentences.

    Its last record 'begin' has `header` and `origin`, the entry `run` (see `RunEntry`). Raises InputError for a setting that
    differs from the log's header and may not, see `refuse_changes`.
    """
    log = TrialLog(store, run=header["plan"]["seed"])
    known, header, entry = len(log.notes), _plain(header), _plain(origin)
    if log.header:
        changed = differences(completed(log.header), completed(header))
        refuse_changes(changed, store.where, forked)
        kept = ("market", "asked")  # entries that a driver may leave as they were
        entry |= {name: log.origin[name] for name in kept if log.origin.get(name) and not entry.get(name)}
        if not changed and entry == log.origin:
            return log, []
    log.append("begin", header=header, run=entry)
    return log, log.notes[known:]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as a log returns them."""
    plain: dict[str, Any] = json.loads(to_json_line(dict(values)))
    return plain


def refuse_changes(changed: Sequence[tuple[str, Any, Any]], where: str, forked: bool) -> None:
    """Raise InputError for the first change (setting, old value, new value) that is not allowed.

    Entries in `FREE` may change always, those in `FIXED` never, and others only in a fork, which must keep the levels of
    experience. A change of the data is reported first, then those in `FIXED`.
    """
    refused = [change for change in changed if not _among(change[0], FREE)]
    for name, old, new in sorted(refused, key=lambda change: (change[0] != DATA, not _among(change[0], FIXED))):
        change = f"{name} was {old!r:.200} and is {new!r:.200}"
        if name == DATA and not any(other.startswith(WINDOWS) for other, _, _ in refused):
            raise InputError(f"{where} was begun with other data: {change}; give the market it was begun with")
        if _among(name, FIXED):
            raise InputError(
                f"{where} is a tournament of another task: {change}; train under another name, its scores would not compare"
            )
        if name == LEVELS:
            if forked and old and new and old[: len(new)] != new[: len(old)]:
                raise InputError(
                    f"{where} has its levels of experience at {old!r:.200} steps and the fork at {new!r:.200}; "
                    "keep the number of steps a round"
                )
        elif not forked:
            way_out = "resume with the same, or fork it under another name with fork="
            raise InputError(f"{where} was begun with other settings: {change}; {way_out}", argument="resume")


def _among(name: str, entries: Sequence[str]) -> bool:
    """True if the entry of this name, with dots between its parts, is one of the entries or part of one."""
    return any(f"{name}.".startswith(f"{entry}.") for entry in entries)


@contextmanager
def lock(place: Store) -> Iterator[None]:
    """Keep other drivers out while the block runs: by a file lock, which ends with the process, or by a mark.

    A mark is used at a URL, and in a folder whose file system has no locks. Raises InputError if another process drives the
    run.
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
                raise InputError(f"{place.where} is in use by {who}; wait for it, or end it first") from error
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
    """Write a mark with the time, and renew it while the block runs. Raises InputError for a recent mark of another driver."""
    text = b""
    with suppress(FileNotFoundError):
        text = place.read("lock")
    who, _, stamp = text.decode().rpartition("|")
    if who and time.time() - float(stamp) < LEASE:
        raise InputError(f"{place.where} is in use by {who}; wait for it, or end it and {LEASE:.0f} s more")
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
