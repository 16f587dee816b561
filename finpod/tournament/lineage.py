"""`lineage`: the agents of a run by descent; `differing`: the settings in which trials differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from finpod.tournament.leaderboard import Trial


class Branch(NamedTuple):
    """One agent in the lineage: the copies between it and an untrained agent, its name, and its trials by level."""

    depth: int
    agent: str
    trials: tuple[Trial, ...]


def differing(trials: Sequence[Trial]) -> list[str]:
    """Return the names of settings in which trials differ, in the order of the log."""
    settings = [trial.settings for trial in trials]
    names = dict.fromkeys(name for one in settings for name in one)
    return [name for name in names if any(one.get(name) != settings[0].get(name) for one in settings)]


def lineage(trials: Sequence[Trial], *, highest_first: bool = False) -> list[Branch]:
    """Return every agent after the one it was copied from, or as untrained if that is not among the trials.

    Copies are in order of creation, or with `highest_first` by level, so that lines from parents to copies do not cross.
    """
    agents: dict[tuple[int, str], list[Trial]] = {}
    for trial in trials:
        agents.setdefault((trial.run, trial.agent), []).append(trial)
    children: dict[tuple[int, str | None], list[str]] = {}
    for (run, agent), own in agents.items():
        parent = own[0].parent if (run, own[0].parent) in agents else None
        children.setdefault((run, parent), []).append(agent)
    if highest_first:
        for (run, parent), copies in children.items():
            if parent is not None:
                copies.sort(key=lambda agent, run=run: -agents[run, agent][0].level)  # type: ignore[misc]
    branches: list[Branch] = []
    for run in dict.fromkeys(trial.run for trial in trials):
        pending = [(0, agent) for agent in reversed(children.get((run, None), []))]
        while pending:
            depth, agent = pending.pop()
            branches.append(Branch(depth, agent, tuple(sorted(agents[run, agent], key=lambda trial: trial.level))))
            pending += [(depth + 1, child) for child in reversed(children.get((run, agent), []))]
    return branches
