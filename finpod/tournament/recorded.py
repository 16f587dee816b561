"""Unfinished runs by name, and their settings as recorded in their logs, so that a run can be resumed by its name alone.

The first line of a log holds a header, which decides if agents are comparable, and the entry `run`: further settings of the
driver.
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
from finpod.tournament.log import TrialLog, begun_logs, places_of, unfinished
from finpod.tournament.run_folder import RunFolder
from finpod.tournament.setup import Plan, completed


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
        raise InputError(f"{done} is finished: there is nothing to go on with")
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
    """Return the `storage` to resume a run in the place that its name tells, and `out` if its output goes beside that place.

    The output goes beside a folder that is not the storage which the log `recorded`, unless `out` is given. Raises InputError
    for such a folder whose name does not tell the output.
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
