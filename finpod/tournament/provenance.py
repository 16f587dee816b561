"""How a run came to its agents, as plain values without clock times, so that two runs are identical."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from finpod.rl import LEARNERS
from finpod.rl.checkpoint import versions
from finpod.tournament.leaderboard import Entry, Leaderboard, Settings
from finpod.tournament.setup import TournamentSetup

PLAN = ("agents", "rounds", "keep", "steps", "mode", "choice", "alike")
"""Entries of the plan that are shown."""


class Run(NamedTuple):
    """One tournament that came to its end."""

    setup: TournamentSetup
    """What it was."""
    board: Leaderboard
    """All its trials."""
    chosen: list[Entry]
    """Those whose agents are kept, best first."""


def provenance(runs: Sequence[Run], device: str) -> dict[str, Any]:
    """Return task, plan, members and the whole board of each run; `device` is that of the pods."""
    setup = runs[0].setup
    return {
        "task": setup.task.name,
        **_definition(setup),
        "learner": setup.learner,
        "device": device,
        "threads": setup.threads,
        "seeds": [run.setup.plan.seed for run in runs],
        "plan": {name: getattr(setup.plan, name) for name in PLAN},
        "score": setup.task.measure,
        "members": [_line(entry, run.setup) for run in runs for entry in run.chosen],
        "board": [_line(entry, run.setup) for run in runs for entry in run.board.ranked()],
        "failed": sum(
            entry.stored is None and entry.trial not in run.board.unread for run in runs for entry in run.board.log
        ),
        "unread": [
            {"agent": entry.agent_id, "generation": entry.generation, "reason": run.board.unread[entry.trial]}
            for run in runs
            for entry in run.board.log
            if entry.trial in run.board.unread
        ],
        "versions": versions(),
    }


def _definition(setup: TournamentSetup) -> dict[str, Any]:
    """What the scores depend on, of a task that has a title: the title, and all else that the task says of itself."""
    spec = setup.task.spec()
    return {"title": spec["title"], "definition": spec} if "title" in spec else {}


def _line(entry: Entry, setup: TournamentSetup) -> dict[str, Any]:
    own = entry.settings
    return {
        "agent": entry.agent_id,
        "parent": entry.parent_id or "-",
        "generation": entry.generation,
        "score": entry.score,
        "steps": entry.steps,
        "seed": own.seed,
        **{name: getattr(own.config, name) for name in LEARNERS[own.learner].bounds},
        **_of_task(own, setup),
    }


def _of_task(own: Settings, setup: TournamentSetup) -> dict[str, Any]:
    """The values of the task's space in its order; of a set of features, how many there are."""
    space = setup.task.space()
    values = {name: own.task.get(name, start) for name, start in space.start.items()}
    return {
        "inputs" if name == "features" else name: _shown(value, name in space.subsets) for name, value in values.items()
    }


def _shown(value: Any, is_subset: bool) -> Any:
    if is_subset:
        return "all" if value is None else len(value)
    return "as asked" if value is None else value
