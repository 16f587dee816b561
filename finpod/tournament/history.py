"""`read_history`: the trials of a run, finished or not, from its logs. Reading changes nothing, not even while it runs."""

from __future__ import annotations

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
from finpod.tournament.log import NAME, TrialLog, begun_logs

FINISHED = (ENSEMBLE, TRAINED)
"""Files that mark the output of a finished run: of stocks, and of other tasks."""


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """All tournaments of a run."""

    name: str
    """Name of the run."""
    where: str
    """Where its logs lie."""
    finished: bool
    """Whether its output was written."""
    logs: tuple[TrialLog, ...]
    """One a seed; the returns of their trials are over the baseline where agents are ranked so."""
    notes: tuple[str, ...] = ()
    """What a reader should know."""
    figures: tuple[Mapping[str, Any], ...] = ()
    """'agent', 'window' and figures of the ensemble and its members in training and validation, of a finished run."""

    @property
    def trials(self) -> list[Trial]:
        """Those of all tournaments."""
        return [trial for log in self.logs for trial in log.board.trials]

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
        chosen = tuple(log for log in self.logs if log.board.run == seed)
        if not chosen:
            known = ", ".join(str(log.board.run) for log in self.logs)
            raise InputError(f"{self.where} has no tournament of seed {seed}; it has {known}", argument="seed")
        return replace(self, logs=chosen)


def read_history(run: str | Path) -> History:
    """The run in a trained folder, in its `OUT.unfinished`, or at the URL of its storage.

    Raises InputError where there is no run, CheckpointError, naming the line, for a log that is damaged or foreign.
    """
    place, logs = _find(str(run))
    finished = all(not name.endswith(NAME) for name in logs)
    notes: list[str] = []
    provenance = _provenance(place, notes) if finished else {}
    kept = frozenset((member["agent"], member["generation"] + 1) for member in provenance.get("members", ()))
    read = [_read(place, name, seed, kept) for name, seed in logs.items()]
    if not any(log.board.trials for log in read):
        raise InputError(f"{place.where} has just begun, and no agent is drawn yet; look again in a moment")
    name = place.where.rstrip("/").rsplit("/", 1)[-1].removesuffix(UNFINISHED)
    if finished and begun_logs(Store(Path(place.where + UNFINISHED))):
        notes.append(f"an unfinished run of the same name lies in {place.where}{UNFINISHED}")
    figures = tuple(provenance.get("figures", ()))
    return History(
        name=name, where=place.where, finished=finished, logs=tuple(read), notes=tuple(notes), figures=figures
    )


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
    """Name -> seed of each log in a place, of an unfinished run or else of a finished one, by seed."""
    seeds = {
        name: name.removeprefix("log-").removesuffix(".jsonl") for name in place.names() if name.endswith(".jsonl")
    }
    kept = {name: int(seed) for name, seed in seeds.items() if seed.isdecimal()}
    return begun_logs(place) or dict(sorted(kept.items(), key=lambda item: item[1]))


def _provenance(place: Store, notes: list[str]) -> dict[str, Any]:
    """The provenance of a finished run; a note where it cannot be read, and of each agent that could not be kept."""
    names = place.names()
    manifest = next((name for name in FINISHED if name in names), FINISHED[0])
    try:
        provenance: dict[str, Any] = json.loads(place.read(manifest))["provenance"]
        notes += [
            f"agent {one['agent']} was to be kept at level {one['generation'] + 1}, and could not be read: {one['reason']}"
            for one in provenance.get("unread", [])
        ]
        _ = [(member["agent"], member["generation"] + 1) for member in provenance["members"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        notes.append(f"{place.where}/{manifest} cannot be read, so that the agents that were kept are not known")
        return {}
    return provenance


def _read(place: Store, name: str, seed: int, kept: Collection[tuple[str, int]]) -> TrialLog:
    """One tournament."""
    log = TrialLog(place, name, seed)
    baseline = np.array(log.header.get("baseline", 0.0))
    log.board.trials = [
        replace(trial, returns=trial.returns - baseline, kept=(trial.agent, trial.level) in kept)
        if trial.state == "ended"
        else trial
        for trial in log.board.trials
    ]
    return log
