"""`read_history`: the trials of a run, read from its logs. The run may be finished, unfinished or in progress."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from finpod.errors import InputError
from finpod.files import ENSEMBLE, TRAINED, UNFINISHED
from finpod.storage import Store
from finpod.tournament.leaderboard import Trial
from finpod.tournament.log import NAME, TrialLog, begun_logs, places_of

FINISHED = (ENSEMBLE, TRAINED)
"""Files that mark the output of a finished run."""


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """All tournaments of a run."""

    name: str
    where: str
    """Folder or URL of the logs."""
    finished: bool
    """True if the output of the run was written."""
    logs: tuple[TrialLog, ...]
    """One log for each seed. If the task has a baseline, its returns were subtracted from the returns of the trials."""
    notes: tuple[str, ...] = ()
    """Remarks on the run, as sentences."""
    figures: tuple[Mapping[str, Any], ...] = ()
    """Table rows with 'agent', 'window' and metrics, for the ensemble and its members; empty without an ensemble."""

    @property
    def trials(self) -> list[Trial]:
        """Trials of all tournaments."""
        return [trial for log in self.logs for trial in log.board.trials]

    @property
    def task(self) -> Mapping[str, Any]:
        """Name and settings of the task, from the last log; empty if they were not logged."""
        return self.logs[-1].header.get("task", {}) if self.logs else {}

    @property
    def frequency(self) -> dict[str, float]:
        """'periods_per_year' and 'sessions_per_year'; empty for tasks without a market and logs of earlier versions."""
        return {name: self.task[name] for name in ("periods_per_year", "sessions_per_year") if name in self.task}

    @property
    def measure(self) -> str:
        """Metric by which agents are ranked."""
        return str(self.logs[-1].header.get("measure", "sharpe"))

    @property
    def is_of_stocks(self) -> bool:
        """True for the task "stocks", whose agents become an ensemble."""
        return "trading" in self.task


def read_history(run: str | Path) -> History:
    """Return the history of a run. `run` is its output folder OUT, the folder OUT.unfinished or the URL of its storage.

    Raises InputError if there is no run or no trial yet, and CheckpointError if a log is damaged or of another format.
    """
    place, logs = next(((place, logs) for place in places_of(run) if (logs := _logs(place))), (None, {}))
    if place is None:
        lacks = "has no log of a tournament" if Path(run).exists() else "does not exist or has no log of a tournament"
        raise InputError(f"{run} {lacks}; pass the output folder or the storage of a run of finpod train", "run")
    finished = all(not name.endswith(NAME) for name in logs)
    notes, kept, figures = list[str](), set[tuple[str, int]](), tuple[Mapping[str, Any], ...]()
    if finished:
        manifest = next((name for name in FINISHED if name in place.names()), FINISHED[0])
        try:
            provenance = json.loads(place.read(manifest))["provenance"]
            kept = {(member["agent"], member["generation"] + 1) for member in provenance["members"]}
            figures = tuple(provenance.get("figures", ()))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            notes.append(f"{place.where}/{manifest} cannot be read, so the selected agents are unknown")
        if begun_logs(Store(Path(place.where + UNFINISHED))):
            notes.append(f"there is also an unfinished run of the same name in {place.where}{UNFINISHED}")
    read = [_read(place, name, seed, kept) for name, seed in logs.items()]
    if not any(log.board.trials for log in read):
        raise InputError(f"{place.where} has just begun and has no trial yet; try again in a moment")
    name = place.where.rstrip("/").rsplit("/", 1)[-1].removesuffix(UNFINISHED)
    told = tuple(notes + [note for log in read for note in log.notes])
    return History(name=name, where=place.where, finished=finished, logs=tuple(read), notes=told, figures=figures)


def _logs(place: Store) -> dict[str, int]:
    """Return the logs in a place as a dict, name -> seed, sorted by seed. If the place has logs of an unfinished
    run, return only these logs."""
    names = [name.removeprefix("log-").removesuffix(".jsonl") for name in place.names() if name.endswith(".jsonl")]
    seeds = sorted(int(name) for name in names if name.isdecimal())
    return begun_logs(place) or {f"log-{seed}.jsonl": seed for seed in seeds}


def _read(place: Store, name: str, seed: int, kept: Collection[tuple[str, int]]) -> TrialLog:
    """Return the log `name`. The returns of the baseline are subtracted from the returns of the trials. `kept` has
    (agent, level) of each selected trial."""
    log = TrialLog(place, name, seed)
    baseline = np.array(log.header.get("baseline", 0.0))
    log.board.trials = [
        replace(trial, returns=trial.returns - baseline, kept=(trial.agent, trial.level) in kept)
        if trial.state == "ended"
        else trial
        for trial in log.board.trials
    ]
    return log
