"""Where a tournament lives while it is unfinished, who drives it, and whether it may be gone on with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from finpod.errors import EngineError, FinpodError, InputError
from finpod.files import UNFINISHED
from finpod.storage import Store
from finpod.tournament.history import FINISHED
from finpod.tournament.lock import lock
from finpod.tournament.log import NAME, TrialLog
from finpod.tournament.recorded import ASKED, Recorded, differences, plain, read_recorded
from finpod.tournament.setup import LEVELS, completed, on_resume

FREQUENCY = ("task.periods_per_year", "task.sessions_per_year")
"""In the header: bars and sessions a year that scores count. Logs of earlier versions lack them."""
DATA, WINDOWS = "task.training_data_hash", "task.windows."
"""In the header: hash of the bars up to the end of validation, and the windows, on which it depends."""


def open_journal(
    store: Store,
    wanted: dict[str, Any],
    say: Callable[[str], None],
    forked: bool = False,
    run: Mapping[str, Any] = MappingProxyType({}),
) -> TrialLog:
    """The log of a store, with the header `wanted` and the entry `run` (see `recorded`) as those of its last driver.

    Raises InputError naming the first setting that differs from the log's header and may not. Settings on which no agent
    depends may change; in a `forked` copy those of the search may, too.
    """
    journal, entry = TrialLog(store, say), dict(plain(dict(run)))
    begun = journal.of("begin")
    if begun:
        changed = differences(completed(begun[-1]["header"]), completed(plain(wanted)))
        refuse_changes(changed, store.where, forked)
        before = begun[-1].get("run", {})
        entry |= {name: before[name] for name in ("market", "asked") if before.get(name) and not entry.get(name)}
        if not changed and _lasting(entry) == _lasting(before):
            return journal
        if changed:
            say("settings changed: " + "; ".join(f"{name} {old!r} -> {new!r}" for name, old, new in changed[:5]))
    journal.append("begin", header=wanted, run=entry)
    return journal


def _lasting(run: Mapping[str, Any]) -> dict[str, Any]:
    """The entry without the output, if the folder of the run tells it: such a run may have been moved."""
    return dict(run) if run.get("storage") else {name: value for name, value in run.items() if name != "out"}


def refuse_changes(changed: list[tuple[str, Any, Any]], where: str, forked: bool) -> None:
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
        said = f"{name} was {old!r:.200} and is {new!r:.200}"
        if on_resume(name) == "never":
            raise InputError(
                f"{where} is a tournament of another task: {said}; train under another name, its scores would not compare"
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
            raise InputError(f"{where} was begun with other settings: {said}; {way_out}", argument="resume")


def require_place(
    out: Path, storage: str | None, *, resume: bool, fork: str | Path | None, overwrite: bool
) -> tuple[Store, bool]:
    """The place of log and checkpoints, and whether a run lies there; see `unfinished` for what is refused."""
    place = Store(storage if storage else out.with_name(out.name + UNFINISHED))
    there = bool(_logs(place))
    if fork is not None:
        if _place_of(fork).where == place.where:
            raise InputError(
                f"{place.where} cannot be forked onto itself; give another out= and storage=", argument="fork"
            )
        if there and not overwrite:
            raise InputError(f"{place.where} exists already; fork under another name, or pass overwrite=True")
    elif there and not resume and not overwrite:
        way_out = "go on with it with resume=True, or begin anew with overwrite=True"
        raise InputError(f"{place.where} is an unfinished run; {way_out}")
    elif not there and resume:
        way_out = "train without resume=True to begin one"
        raise InputError(f"there is no unfinished run at {place.where}; {way_out}", argument="resume")
    return place, there


@contextmanager
def unfinished(
    out: Path,
    storage: str | None,
    *,
    resume: bool,
    fork: str | Path | None,
    overwrite: bool,
    seeds: Collection[int] = (),
) -> Iterator[Store]:
    """The place of log and checkpoints, for this process alone; removed when the block ends without an error.

    An error keeps it, so that the run can be resumed, except for a FinpodError (but EngineError) before any agent has a
    score or a checkpoint. Raises InputError for a run that is unfinished (unless `resume` or `overwrite`), one to be
    resumed that does not exist or has other `seeds`, and one that another process drives.
    """
    place, there = require_place(out, storage, resume=resume, fork=fork, overwrite=overwrite)
    with lock(place):
        if there and not resume:
            _clear(place)
        if fork is not None:
            _copy(fork, place)
        copied = [place.read(f"{log}/{NAME}") for log in _logs(place)]
        try:
            if resume or fork is not None:
                _require_seeds(place, seeds)
            yield place
        except EngineError:
            raise
        except FinpodError:
            logs = [place.read(f"{log}/{NAME}") for log in _logs(place)]
            if not resume and (logs == copied or not any(map(_worth_keeping, logs))):
                _clear(place)
            raise
        _clear(place)


def _require_seeds(place: Store, seeds: Collection[int]) -> None:
    """Raise InputError if a tournament that has begun there is of none of the seeds asked for: it would be left lying."""
    begun = [log.removeprefix("seed-") for log in _logs(place)]
    if seeds and (other := [seed for seed in begun if seed not in map(str, seeds)]):
        raise InputError(
            f"{place.where} has a tournament of seed {other[0]}, and seed {', '.join(map(str, seeds))} is asked for; "
            "give the same seeds, or begin under another name"
        )


def held(place: Store, seed: int) -> bytes:
    """The log of one tournament."""
    return place.read(f"seed-{seed}/{NAME}")


def _worth_keeping(log: bytes) -> bool:
    """Whether an agent has reached a score, or a checkpoint."""
    return any(
        b'"kind":"checkpoint"' in line or (b'"kind":"submit"' in line and b'"score":null' not in line)
        for line in log.splitlines()
    )


def recorded_of(run: str, storage: str | None) -> tuple[str, Recorded | None]:
    """Where an unfinished run lies, and its recorded settings; None if it ended before its log had a header.

    Raises InputError where there is no unfinished run.
    """
    place = Store(storage) if storage else _place_of(run)
    logs = _logs(place)
    if not logs:
        _refuse_done(run)
        raise InputError(f"there is no unfinished run at {place.where}; begin one with its windows and an output")
    return place.where, read_recorded(place, logs)


def is_unfinished(run: str, storage: str | None) -> bool:
    """Whether there is a run to go on with."""
    if storage:
        return bool(_logs(Store(storage)))
    try:
        return bool(_logs(_place_of(run)))
    except InputError:
        return False


def driven(run: str, recorded: str | None, out: str | Path | None) -> dict[str, Any]:
    """`out` and `storage` to continue a run in the place that its name tells.

    The ensemble goes to `out`. Without it, it goes beside the folder of the run, or, if that folder is the storage that the
    log `recorded`, to the output that it recorded; then `out` is not returned. Raises InputError for a folder whose name
    does not tell the output, and for one that holds the current folder.
    """
    if "://" in run:
        return {"storage": run} | ({} if out is None else {"out": out})
    folder, here = folder_of(run), Path.cwd()
    if folder.resolve() in (here, *here.parents):
        raise InputError(
            f"{folder} is the current folder or one above it, and goes away at the end; resume from another"
        )
    if out is None and recorded and "://" not in recorded and _same(Path(recorded), folder):
        return {"storage": str(folder)}
    beside = _output_of(folder)
    goal = beside if out is None else Path(out)
    if goal is None:
        raise InputError(
            f"{folder} does not end in {UNFINISHED}, so its name does not tell where the ensemble goes; give out="
        )
    return {"out": goal, "storage": None if beside is not None and _same(goal, beside) else str(folder)}


def _output_of(folder: Path) -> Path | None:
    """The output beside the folder of an unfinished run; None if it is not named after one."""
    word = folder.name.removesuffix(UNFINISHED)
    return folder.with_name(word) if word and word != folder.name else None


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def refuse_finished(out: Path, storage: str | None) -> None:
    """Raise InputError if the output of a run is there, so that what still lies unfinished is left over, or another run."""
    if not is_finished(out):
        return
    place = Store(storage if storage else out.parent / (out.name + UNFINISHED))
    logs = _logs(place)
    if not logs:
        _refuse_done(out)
    kept = {log: out / f"{log.replace('seed-', 'log-')}.jsonl" for log in logs}
    if all(file.is_file() and file.read_bytes() == place.read(f"{log}/{NAME}") for log, file in kept.items()):
        raise InputError(f"{out} is finished; {place.where} is a leftover of it, and may be removed")
    raise InputError(
        f"{out} is finished, and {place.where} is another run; give that another out=, or let it replace {out} "
        "with overwrite=True"
    )


def _refuse_done(run: str | Path) -> None:
    """Raise InputError if a run of that name has come to its end."""
    if done := next((named for named in _named(run) if is_finished(named)), None):
        raise InputError(f"{done} is finished: there is nothing to go on with")


def is_finished(out: Path) -> bool:
    """Whether a folder is the output of a run that came to its end."""
    return any((out / name).is_file() for name in FINISHED)


def _place_of(run: str | Path) -> Store:
    """The place of an unfinished run by its name, its folder, that of its output, or its URL. Raises InputError if none is."""
    return Store(run if "://" in str(run) else folder_of(run))


def folder_of(run: str | Path) -> Path:
    """The folder of an unfinished run, by its own name or by that of its output; a bare word may be one in strategies/.

    Raises InputError if there is none.
    """
    for named in _named(run):
        for folder in (named, named.parent / (named.name + UNFINISHED)):
            if folder.is_dir() and _logs(Store(folder)):
                return folder
    _refuse_done(run)
    path = Path(run)
    tried = path.parent / (path.name.removesuffix(UNFINISHED) + UNFINISHED)
    raise InputError(
        f"there is no unfinished run at {tried}; name the folder it was to go to, and its storage= if it had one"
    )


def _named(run: str | Path) -> list[Path]:
    """The folders that a run may mean."""
    path = Path(run)
    return [path, *([Path("strategies") / path] if path.name == str(run) else [])]


def _logs(place: Store) -> list[str]:
    """The tournaments that have begun there."""
    return [name for name in place.folders("seed-") if name.removeprefix("seed-").isdecimal() and _has_log(place, name)]


def _has_log(place: Store, name: str) -> bool:
    return f"{name}/{NAME}" in place.names(name) or bool(place.names(f"{name}/{NAME}.parts"))


def _copy(source: str | Path, place: Store) -> None:
    """Copy an unfinished run: first the logs, so that they know of no agent that is not copied, then all that they need."""
    origin = _place_of(source)
    logs = _logs(origin)
    if not logs:
        raise InputError(f"there is no unfinished run at {origin.where}; name the place it was to go to")
    for log in logs:
        place.write(f"{log}/{NAME}", origin.read(f"{log}/{NAME}"))
        for folder in ("agents", "checkpoints"):
            for name in origin.names(f"{log}/{folder}"):
                with suppress(FileNotFoundError):  # its driver has just removed it, for nobody needs it
                    place.write(name, origin.read(name))


def _clear(place: Store) -> None:
    """Remove what a run left, and nothing else."""
    for log in _logs(place):
        place.remove_folder(log)
    place.remove(ASKED)
