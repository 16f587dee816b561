"""`lineage`: the agents of a run by descent; `differing`: the settings in which trials differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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


def lineage(trials: Sequence[Trial]) -> list[Branch]:
    """Return all agents, each after its parent. Agents whose parent is not among `trials` have depth 0.

    Copies of an agent are sorted by round, the highest first, so that lines from parents to copies do not cross.
    """
    agents: dict[tuple[int, str | None], list[Trial]] = {}
    for trial in trials:
        agents.setdefault((trial.run, trial.agent), []).append(trial)
    children: dict[Any, list[Any]] = {}
    for key, own in agents.items():
        parent = (key[0], own[0].parent)
        children.setdefault(parent if parent in agents else None, []).append(key)
    branches, pending = list[Branch](), [(0, key) for key in reversed(children.get(None, []))]
    while pending:
        depth, key = pending.pop()
        branches.append(Branch(depth, key[1], tuple(sorted(agents[key], key=lambda trial: trial.level))))
        copies = sorted(children.get(key, []), key=lambda copy: -agents[copy][0].level)
        pending += [(depth + 1, copy) for copy in reversed(copies)]
    return branches
