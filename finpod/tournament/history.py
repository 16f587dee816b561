"""`read_history`: what the logs of a run tell, finished or not; reading changes nothing, not even while it runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from finpod.errors import CheckpointError, InputError
from finpod.files import ENSEMBLE, TRAINED, UNFINISHED
from finpod.measures import Array
from finpod.storage import Store
from finpod.tournament.log import NAME, parse_log
from finpod.workers.executor import Placement

FINISHED = (ENSEMBLE, TRAINED)
"""Files that mark the output of a finished run: of stocks, and of other tasks."""
CONSTANT = ("agent_id", "seed", "config")
"""What a trial's settings hold that is not a setting by itself."""


class Loss(NamedTuple):
    """A pod that was lost while it worked at a trial."""

    reason: str
    """Why, in one line."""
    at: float
    """When the driver knew, Unix time; NaN where the log does not say."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """One agent trained to one level of experience."""

    run: int
    """Seed of its tournament."""
    number: int
    """Its number there, from 0."""
    agent: str
    """The agent; it keeps its name as it goes on, a varied copy has its own."""
    parent: str | None
    """The agent it was copied from; None for one that began untrained."""
    source: int | None
    """Number of the trial it began with; None for an untrained one."""
    copied: bool
    """Whether it began as a varied copy of another agent."""
    level: int
    """Level of experience, from 1."""
    settings: Mapping[str, Any]
    """All that was varied, by name; 'features' is None for all there are."""
    state: str = "open"
    """'ended', 'failed', or 'open': drawn, and not ended when the log was read."""
    score: float = math.nan
    """Validation score; NaN if undefined, failed or open."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Validation metrics."""
    returns: Array = field(default_factory=lambda: np.empty(0))
    """[n] validation returns, net of costs, over the baseline where agents are ranked so; empty unless it ended."""
    steps: int = 0
    """Environment steps of experience, its ancestors' included, as far as the log knows."""
    spent: int = 0
    """Environment steps of this trial alone."""
    places: tuple[Placement, ...] = ()
    """Where and when its slices ran; those that were lost left none."""
    lost: tuple[Loss, ...] = ()
    """Pods that were lost while they worked at it."""
    reason: str = ""
    """Why it failed."""
    kept: bool = False
    """Whether its agent was kept."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Log:
    """One tournament."""

    seed: int
    """Its seed."""
    header: Mapping[str, Any]
    """Plan, settings, task and versions, as its last driver had them."""
    trials: tuple[Trial, ...]
    """In the order of their numbers."""
    end: str
    """The rule that ended it; empty while it is unfinished."""
    notes: tuple[str, ...]
    """What changed or was found amiss, in words."""
    where: str = ""
    """Path or URL of the file."""

    @property
    def plan(self) -> Mapping[str, Any]:
        """The plan as plain values."""
        return self.header["plan"]


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """All tournaments of a run."""

    name: str
    """Name of the run."""
    where: str
    """Where its logs lie."""
    finished: bool
    """Whether its output was written."""
    logs: tuple[Log, ...]
    """One a seed."""
    notes: tuple[str, ...] = ()
    """What a reader should know."""
    figures: tuple[Mapping[str, Any], ...] = ()
    """'agent', 'window' and figures of the ensemble and its members in training and validation, of a finished run."""

    @property
    def trials(self) -> list[Trial]:
        """Those of all tournaments."""
        return [trial for log in self.logs for trial in log.trials]

    @property
    def title(self) -> str:
        """What the scores are of, such as "Ant-v5, standard variant: 27 inputs, 8 actions"; empty for a task without a title."""
        return str(self.logs[-1].header.get("task", {}).get("title", "")) if self.logs else ""

    @property
    def frequency(self) -> dict[str, float]:
        """Bars and sessions a year that the scores count, by name; empty for other tasks and logs of earlier versions."""
        task = self.logs[-1].header.get("task", {})
        return {name: task[name] for name in ("periods_per_year", "sessions_per_year") if name in task}

    @property
    def measure(self) -> str:
        """The metric that agents are ranked by."""
        return str(self.logs[-1].header.get("measure", "sharpe"))

    @property
    def is_of_stocks(self) -> bool:
        """Whether agents trade, and become an ensemble."""
        return "trading" in self.logs[-1].header.get("task", {})

    def of(self, seed: int | None) -> History:
        """The tournament of one seed alone; all for None. Raises InputError for a seed that has none."""
        if seed is None:
            return self
        chosen = tuple(log for log in self.logs if log.seed == seed)
        if not chosen:
            known = ", ".join(str(log.seed) for log in self.logs)
            raise InputError(f"{self.where} has no tournament of seed {seed}; it has {known}", argument="seed")
        return replace(self, logs=chosen)


def read_history(run: str | Path) -> History:
    """The run in a trained folder, in its `OUT.unfinished`, or at the URL of its storage.

    Raises InputError where there is no run, CheckpointError, naming the line, for a log that is damaged or foreign.
    """
    place, logs = _find(str(run))
    finished = all(not name.endswith(NAME) for name in logs)
    notes: list[str] = []
    told = _provenance(place, notes) if finished else {}
    kept = frozenset((member["agent"], member["generation"] + 1) for member in told.get("members", ()))
    read = [_read(place, name, seed, kept) for name, seed in logs.items()]
    if not any(log.trials for log in read):
        raise InputError(f"{place.where} has just begun, and no agent is drawn yet; look again in a moment")
    name = place.where.rstrip("/").rsplit("/", 1)[-1].removesuffix(UNFINISHED)
    if finished and _logs(Store(Path(place.where + UNFINISHED))):
        notes.append(f"an unfinished run of the same name lies in {place.where}{UNFINISHED}")
    return History(name=name, where=place.where, finished=finished, logs=tuple(read), notes=tuple(notes),
                   figures=tuple(told.get("figures", ())))  # fmt: skip


def _find(run: str) -> tuple[Store, dict[str, int]]:
    """The place of a run, and the names of its logs with their seeds."""
    if "://" in run:
        place = Store(run)
        if logs := _logs(place):
            return place, logs
        raise InputError(
            f"there is no run at {run}; once it is finished, its log lies with its ensemble", argument="run"
        )
    for path in (Path(run), Path(run.rstrip("/") + UNFINISHED)):
        place = Store(path)
        if logs := _logs(place):
            return place, logs
    lacks = "holds no log of a tournament" if Path(run).exists() else "does not exist"
    raise InputError(f"{run} {lacks}; give a folder that finpod train wrote, or is writing", argument="run")


def _logs(place: Store) -> dict[str, int]:
    """Name of each log in a place -> seed of its tournament, by seed."""
    if place.folder is None:
        folders = place.folders("seed-")
    else:
        folders = [path.parent.name for path in place.folder.glob(f"seed-*/{NAME}")]
    found = {f"{folder}/{NAME}": folder.removeprefix("seed-") for folder in folders}
    if not found:
        files = [name for name in place.names() if name.startswith("log-") and name.endswith(".jsonl")]
        found = {name: name.removeprefix("log-").removesuffix(".jsonl") for name in files}
    seeds = {name: int(seed) for name, seed in found.items() if seed.isdecimal()}
    return dict(sorted(seeds.items(), key=lambda item: item[1]))


def _provenance(place: Store, notes: list[str]) -> dict[str, Any]:
    """What a finished run says of itself; a note where that cannot be read, or an agent could not be kept."""
    names = place.names()
    manifest = next((name for name in FINISHED if name in names), FINISHED[0])
    try:
        told: dict[str, Any] = json.loads(place.read(manifest))["provenance"]
        notes += [
            f"agent {one['agent']} was to be kept at level {one['generation'] + 1}, and could not be read: {one['reason']}"
            for one in told.get("unread", [])
        ]
        _ = [(member["agent"], member["generation"] + 1) for member in told["members"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        notes.append(f"{place.where}/{manifest} cannot be read, so that the agents that were kept are not known")
        return {}
    return told


def _read(place: Store, name: str, seed: int, kept: frozenset[tuple[str, int]]) -> Log:
    """One tournament. A last line that is cut short is one that is being written, or was when the driver died."""
    where = f"{place.where}/{name}"
    records, _ = parse_log(place.read(name), where)
    try:
        return replace(_told(records, seed, kept), where=where)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{where} is not a log of this version of finpod: {error!r}; train again") from error


def _told(records: list[dict[str, Any]], seed: int, kept: frozenset[tuple[str, int]]) -> Log:
    """What the records of one tournament tell."""
    header: dict[str, Any] = {}  # a log that has just been made may lack it
    trials: list[Trial] = []
    notes: list[str] = []
    end = ""
    for record in records:
        kind = record["kind"]
        if kind == "begin":
            changed = _changes(header, record["header"]) if header else []
            notes += [f"after {len(trials)} trials were drawn, {change}" for change in changed]
            header = record["header"]
        elif kind == "draw":
            trials += [_drawn(seed, job) for job in record["jobs"]]
        elif kind == "end":
            end = record["reason"]
        elif kind in ("submit", "failed", "lost", "checkpoint"):
            number = record["trial"]
            trials[number] = _onward(trials[number], kind, record, trials, kept)
            if kind == "submit" and "baseline" in header:
                trials[number] = replace(trials[number], returns=trials[number].returns - np.array(header["baseline"]))
    if records and not str(header["format"]).startswith("finpod tournament "):
        raise ValueError(header["format"])
    return Log(seed=seed, header=header, trials=tuple(trials), end=end, notes=tuple(notes))


def _drawn(seed: int, job: Mapping[str, Any]) -> Trial:
    own = job["settings"]
    settings = {**own["config"], **{name: value for name, value in own.items() if name not in CONSTANT}}
    return Trial(
        run=seed,
        number=job["trial"],
        agent=own["agent_id"],
        parent=job["parent_id"],
        source=job["source"],
        copied=job["copied"],
        level=job["generation"] + 1,
        settings=settings,
    )


def _onward(
    trial: Trial, kind: str, record: Mapping[str, Any], trials: Sequence[Trial], kept: frozenset[tuple[str, int]]
) -> Trial:
    """A trial after one more record."""
    if kind == "lost":
        return replace(trial, lost=(*trial.lost, Loss(record["reason"], _number(record.get("at")))))
    if kind == "failed":
        return replace(trial, state="failed", reason=record["reason"])
    before = 0 if trial.source is None else trials[trial.source].steps
    place = record.get("place")
    places = trial.places if place is None else (*trial.places, Placement(**place))
    trial = replace(trial, steps=record["steps"], spent=record["steps"] - before, places=places)
    if kind == "checkpoint":
        return trial
    metrics = {name: _number(value) for name, value in record["metrics"].items()}
    return replace(
        trial,
        state="ended",
        score=_number(record["score"]),
        metrics=metrics,
        returns=np.array(record["returns"], dtype=np.float64),
        kept=(trial.agent, trial.level) in kept,
    )


def _changes(old: Any, new: Any, name: str = "") -> list[str]:
    """What differs between two headers, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        both = sorted({*old, *new})
        return [said for key in both for said in _changes(old.get(key), new.get(key), f"{name}.{key}".lstrip("."))]
    return [] if old == new else [f"{name} became {new!r} (it was {old!r})"]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
