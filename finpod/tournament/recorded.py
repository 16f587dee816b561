"""Unfinished runs by name: where one lies, and what its logs say of its settings, so that its name is enough to go on.

The first line of a log holds a header, which decides whether agents compare, and beside it the entry `run`: what else the
next driver needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from finpod.errors import InputError
from finpod.files import UNFINISHED
from finpod.rl import LEARNERS
from finpod.tournament.history import FINISHED
from finpod.tournament.log import TrialLog, begun_logs
from finpod.tournament.run_folder import RunFolder
from finpod.tournament.setup import Plan, TournamentSetup, completed


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """The entry `run`. Paths are absolute, so that they hold in every folder."""

    out: str
    """Folder of the ensemble."""
    storage: str | None
    """Folder or URL for log and checkpoints, if it is not beside `out`."""
    seeds: Sequence[int]
    """Of its tournaments."""
    features: str | Sequence[str] | None
    """Features that were asked for by name; None for the default ones, and for a task without a market."""
    functions: Sequence[str]
    """Names of the features that are functions, which no log can hold."""
    device: str | None = None
    """What the driver computes on."""
    market: Mapping[str, Any]
    """Arguments with which the market was loaded; empty for a market from memory."""
    asked: Mapping[str, Any]
    """Further values that a driver has left for the next."""

    @classmethod
    def of(cls, out: Path, storage: str | None, setups: Sequence[TournamentSetup], **rest: Any) -> RunEntry:
        """Return the entry of a run of so many tournaments."""
        place = storage if storage is None or "://" in storage else str(Path(storage).absolute())
        seeds = [setup.plan.seed for setup in setups]
        return cls(out=str(out.absolute()), storage=place, seeds=seeds, **rest)


class Recorded(NamedTuple):
    """Settings of an unfinished run, as its last driver had them."""

    where: str
    """Folder or URL of its logs."""
    header: Mapping[str, Any]
    """That of its first log."""
    plan: Plan
    """Of its first tournament."""
    config: Any
    """Settings of the learner of the first agent."""
    run: RunEntry
    """What stands beside the header."""


def recorded_of(run: str, storage: str | None) -> tuple[str, Recorded | None]:
    """Where an unfinished run lies, and its recorded settings; None if it ended before its log had a header.

    Raises InputError where there is no unfinished run, and for one of an earlier version, CheckpointError for a damaged log.
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
    """The unfinished run at `storage`, at a URL, or by the name of its folder or of its output, also in strategies/.

    Raises InputError if there is none.
    """
    if place := next((place for place in _places(run, storage) if place.begun()), None):
        return place
    _refuse_done(run)
    path = Path(run)
    beside = path.parent / (path.name.removesuffix(UNFINISHED) + UNFINISHED)
    where = RunFolder(storage or run).where if storage or "://" in str(run) else beside
    raise InputError(
        f"there is no unfinished run at {where}; name the folder it was to go to, and its storage= if it had one"
    )


def _places(run: str | Path, storage: str | None) -> list[RunFolder]:
    """Where a run may lie."""
    if storage or "://" in str(run):
        return [RunFolder(storage or run)]
    return [
        place for path in _named(run) for place in (RunFolder(path), RunFolder.of(path)) if Path(place.where).is_dir()
    ]


def is_unfinished(run: str, storage: str | None) -> bool:
    """Whether there is a run to go on with."""
    return any(place.begun() for place in _places(run, storage))


def driven(run: str, recorded: str | None, out: str | Path | None) -> dict[str, Any]:
    """`out` and `storage` to continue a run in the place that its name tells.

    The ensemble goes to `out`. Without it, it goes beside the folder of the run, or, if that folder is the storage that the
    log `recorded`, to the output that it recorded; then `out` is not returned. Raises InputError for a folder whose name
    does not tell the output, and for one that holds the current folder.
    """
    if "://" in run:
        return {"storage": run} | ({} if out is None else {"out": out})
    folder, here = Path(find(run).where), Path.cwd()
    if folder.resolve() in (here, *here.parents):
        raise InputError(
            f"{folder} is the current folder or one above it, and goes away at the end; resume from another"
        )
    if out is None and recorded and "://" not in recorded and Path(recorded).resolve() == folder.resolve():
        return {"storage": str(folder)}
    word = folder.name.removesuffix(UNFINISHED)
    beside = folder.with_name(word) if word and word != folder.name else None
    goal = beside if out is None else Path(out)
    if goal is None:
        raise InputError(
            f"{folder} does not end in {UNFINISHED}, so its name does not tell where the ensemble goes; give out="
        )
    return {"out": goal, "storage": None if beside and goal.resolve() == beside.resolve() else str(folder)}


def refuse_finished(out: Path, storage: str | None) -> None:
    """Raise InputError if the output of a run is there, so that what still lies unfinished is left over, or another run."""
    if not _is_finished(out):
        return
    place = RunFolder.of(out, storage)
    logs = begun_logs(place.store)
    if not logs:
        _refuse_done(out)
    kept = {name: out / f"log-{seed}.jsonl" for name, seed in logs.items()}
    if all(file.is_file() and file.read_bytes() == place.store.read(name) for name, file in kept.items()):
        raise InputError(f"{out} is finished; {place.where} is a leftover of it, and may be removed")
    raise InputError(
        f"{out} is finished, and {place.where} is another run; give that another out=, or let it replace {out} "
        "with overwrite=True"
    )


def _refuse_done(run: str | Path) -> None:
    """Raise InputError if a run of that name has come to its end."""
    if done := next((name for name in _named(run) if _is_finished(name)), None):
        raise InputError(f"{done} is finished: there is nothing to go on with")


def _is_finished(out: Path) -> bool:
    return any((out / name).is_file() for name in FINISHED)


def _named(run: str | Path) -> list[Path]:
    """The folders that a run may mean."""
    path = Path(run)
    return [path, *([Path("strategies") / path] if path.name == str(run) else [])]
