"""How a run came to its agents, and `TrainedRun`: those of a task without a market, with their leaderboard, as a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from finpod.errors import CheckpointError, InputError
from finpod.files import TRAINED
from finpod.rl import LEARNERS
from finpod.rl.checkpoint import Checkpoint, read_marker, versions
from finpod.rl.policy import Policy
from finpod.rl.task import Task
from finpod.tournament.history import read_history
from finpod.tournament.leaderboard import Leaderboard, Settings, Trial, ranked
from finpod.tournament.setup import TournamentSetup

FORMAT = "finpod trained run 1"
PLAN = ("agents", "rounds", "keep", "steps", "mode", "choice", "alike")
"""Entries of the plan that a run shows."""


class Run(NamedTuple):
    """One tournament that came to its end."""

    setup: TournamentSetup
    """What it was."""
    board: Leaderboard
    """All its trials."""
    chosen: list[tuple[Trial, Checkpoint]]
    """Those that are kept and their agents, best first."""


def provenance(runs: Sequence[Run], device: str) -> dict[str, Any]:
    """Return task, plan, members and the whole board of each run, without clock times, so that two runs are identical.

    `device` is that of the pods.
    """
    setup = runs[0].setup
    spec = setup.task.spec()
    unread = [(trial, run.board.unread) for run in runs for trial in run.board.log if trial.number in run.board.unread]
    return {
        "task": setup.task.name,
        **({"title": spec["title"], "definition": spec} if "title" in spec else {}),
        "learner": setup.learner,
        "device": device,
        "threads": setup.threads,
        "seeds": [run.setup.plan.seed for run in runs],
        "plan": {name: getattr(setup.plan, name) for name in PLAN},
        "score": setup.task.measure,
        "members": [_line(trial, setup) for run in runs for trial, _ in run.chosen],
        "board": [_line(trial, setup) for run in runs for trial in run.board.ranked()],
        "failed": sum(trial.state == "failed" for run in runs for trial in run.board.log),
        "unread": [
            {"agent": trial.agent, "generation": trial.level - 1, "reason": reasons[trial.number]}
            for trial, reasons in unread
        ],
        "versions": versions(),
    }


def _line(trial: Trial, setup: TournamentSetup) -> dict[str, Any]:
    """A trial with the settings that the search may vary; of a set of features, how many there are."""
    agent, space = Settings.from_dict(trial.agent_settings), setup.task.space()
    values = {name: agent.task.get(name, start) for name, start in space.start.items()}
    return {
        "agent": trial.agent,
        "parent": trial.parent or "-",
        "generation": trial.level - 1,
        "score": trial.score,
        "steps": trial.steps if trial.state == "ended" else 0,
        "seed": agent.seed,
        **{name: getattr(agent.config, name) for name in LEARNERS[agent.learner].bounds},
        **{
            "inputs" if name == "features" else name: _shown(value, name in space.subsets)
            for name, value in values.items()
        },
    }


def _shown(value: Any, is_subset: bool) -> Any:
    if is_subset:
        return "all" if value is None else len(value)
    return "as asked" if value is None else value


def logged(trial: Trial) -> dict[str, Any]:
    """Return a trial as an ensemble keeps it."""
    settings = Settings.from_dict(trial.agent_settings).to_dict()
    return {
        "trial": trial.number,
        "agent": settings.pop("agent_id"),
        "parent": trial.parent,
        "generation": trial.level - 1,
        "seed": settings.pop("seed"),
        "score": trial.score,
        "steps": trial.steps if trial.state == "ended" else 0,
        "metrics": trial.metrics,
        "config": settings.pop("config"),
        "settings": settings,
        "returns": trial.returns.tolist(),
    }


class TrainedRun:
    """A finished run of `finpod.train` on a task without a market.

    `folder` holds `trained.json`, an agent a file, the best first, and the log of each tournament. A task whose policy is
    of its own must be given for `load`.
    """

    def __init__(self, folder: str | Path, task: Task | None = None) -> None:
        """Read a finished run. Raises CheckpointError, naming the file, for a folder that is not one."""
        self.folder, self.task = Path(folder), task
        content = read_marker(self.folder, TRAINED, FORMAT)
        try:
            self.provenance: dict[str, Any] = dict(content["provenance"])
            self.files, self.trials = tuple(map(str, content["members"])), int(content["trials"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self.folder / TRAINED} lacks {error}; it is not whole, train again") from error

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    @property
    def leaderboard(self) -> list[Trial]:
        """All trials, the best first; those without a score last."""
        return ranked(read_history(self.folder).trials)

    def __len__(self) -> int:
        return len(self.files)

    def checkpoint(self, n: int = 0) -> Checkpoint:
        """Return the n-th best agent as it was stored. Raises InputError for one that was not kept."""
        if not 0 <= n < len(self):
            raise InputError(
                f"agent {n} was not kept; {self.name} has {len(self)}, numbered from 0, the best first", argument="n"
            )
        return Checkpoint.load(self.folder / Path(self.files[n]).name)

    def load(self, n: int = 0) -> Policy:
        """Return the policy of the n-th best agent, ready to act: see `finpod.rl.evaluate.mean_action`."""
        checkpoint = self.checkpoint(n)
        if self.task is None:
            return checkpoint.policy()
        settings = {name: value for name, value in checkpoint.policy_spec.items() if name != "kind"}
        return checkpoint.restore(self.task.policy(settings))

    def __repr__(self) -> str:
        best = self.provenance["members"][0]
        return (
            f"TrainedRun({self.name!r}: {self.provenance['task']}, {len(self)} of {self.trials} trials kept, "
            f"best {self.provenance['score']} {best['score']:.4g} by agent {best['agent']})"
        )
