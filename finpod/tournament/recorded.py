"""Unfinished runs by name: where one lies, and what its logs say of its settings, so that its name is enough to go on.

The first line of a log holds a header, which decides whether agents compare, and beside it the entry `run`: what else the
next driver needs. Runs of earlier versions have a file `asked.json` in place of that entry, or nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finpod.errors import InputError
from finpod.files import UNFINISHED
from finpod.rl import LEARNERS
from finpod.storage import Store
from finpod.tournament.history import FINISHED
from finpod.tournament.log import TrialLog, begun_logs
from finpod.tournament.run_folder import ASKED, RunFolder
from finpod.tournament.setup import Plan, completed


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Settings of an unfinished run, as its last driver had them."""

    where: str
    """Folder or URL of its logs."""
    plan: Plan
    """Of its first tournament."""
    seeds: int
    """Tournaments, of the plan's seed and those that follow it."""
    learner: str
    """Name of the learner."""
    config: Any
    """Settings of the learner of the first agent."""
    task: Mapping[str, Any]
    """What the task says of itself in the header, as plain values."""
    threads: int
    """CPU threads of a slice."""
    num_envs: int | None
    """Environments of each agent, if they are not as many as the task has by itself."""
    features: str | list[str] | None
    """Features that were asked for by name; None for the default ones."""
    functions: tuple[str, ...]
    """Names of the features that are functions, which no log can hold."""
    market: Mapping[str, Any]
    """Arguments with which the market was loaded; empty for a market from memory."""
    data_title: str
    """One line that says what the prices are."""
    out: str | None
    """Folder of the ensemble."""
    storage: str | None
    """Folder or URL for log and checkpoints, if it is not beside `out`."""
    asked: Mapping[str, Any]
    """Further values that a driver has left for the next."""


def run_entry(out: Path, storage: str | None, seeds: Sequence[int], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry `run` of a log: fields of `Recorded`, and the device that the driver computes on.

    `record` may hold features, functions, device, market and asked; a task without a market has no features and no
    market. Paths are absolute, so that they hold in every folder.
    """
    features = record.get("features")
    return {
        "out": str(out.absolute()),
        "storage": storage if storage is None or "://" in storage else str(Path(storage).absolute()),
        "seeds": list(seeds),
        "features": features if features is None or isinstance(features, str) else list(features),
        "functions": list(record.get("functions", ())),
        "device": record.get("device"),
        "market": dict(record.get("market", {})),
        "asked": dict(record.get("asked", {})),
    }


def recorded_of(run: str, storage: str | None) -> tuple[str, Recorded | None]:
    """Where an unfinished run lies, and its recorded settings; None if it ended before its log had a header.

    Raises InputError where there is no unfinished run, CheckpointError for a log that is damaged.
    """
    place = find(run, storage).store
    logs = [TrialLog(place, name, seed) for name, seed in begun_logs(place).items()]
    first = next((log for log in logs if log.header), None)
    if first is None:
        return place.where, None
    header, origin = completed(first.header), first.origin or _side_file(place)
    task = header["task"]
    seeds = origin.get("seeds") or [log.board.run for log in logs]
    recorded = Recorded(
        where=place.where,
        plan=Plan.from_dict(header["plan"] | {"seed": seeds[0]}),
        seeds=len(seeds),
        learner=header["learner"],
        config=LEARNERS[header["learner"]].Config(**header["config"]),
        task=task,
        threads=task["threads"],
        num_envs=header["num_envs"],
        features=origin["features"] if "features" in origin else task.get("features"),
        functions=tuple(origin.get("functions", ())),
        market=origin.get("market", {}),
        data_title=header.get("data_title", ""),
        out=origin.get("out"),
        storage=origin.get("storage"),
        asked=origin.get("asked", {}),
    )
    return place.where, recorded


def _side_file(place: Store) -> dict[str, Any]:
    """The entry `run` that the options in `asked.json` stand for; empty without that file."""
    try:
        asked = dict(json.loads(place.read(ASKED)))
    except (FileNotFoundError, ValueError):
        return {}
    market = {"path": asked["market"], "members": asked["members"]}
    if asked["members"] is not None or asked["benchmark"] != "QQQ":  # else the default of those versions
        market["benchmark"] = None if asked["benchmark"] == "none" else asked["benchmark"]
    if asked.get("extra"):
        market["extra"] = asked["extra"]
    words = [word.strip() for word in str(asked["features"]).split(",") if word.strip()]
    return {
        "out": asked["out"],
        "storage": asked["storage"],
        "seeds": list(range(asked["seed"], asked["seed"] + asked["seeds"])),
        "features": None if words == ["default"] else words,
        "market": market,
        "asked": {"tensorboard": asked.get("tensorboard")},
    }


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
