"""`provenance` of the agents of a run; `TrainedRun`: a folder of agents, for a task without a market."""

from collections.abc import Iterable, Sequence
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


class Run(NamedTuple):
    """One finished tournament: setup, leaderboard, and the selected trials with their checkpoints, best first."""

    setup: TournamentSetup
    board: Leaderboard
    chosen: list[tuple[Trial, Checkpoint]]


def provenance(runs: Sequence[Run], device: str, members: Iterable[Trial]) -> dict[str, Any]:
    """Return task, plan, selected agents and leaderboard of the tournaments, without times, which differ between runs.

    `device` is the device on which the agents were trained. `members` are the selected trials, in the order of saving.
    """
    setup = runs[0].setup
    spec = setup.task.spec()
    of_plan = ("agents", "rounds", "keep", "steps", "mode", "alike")
    return {
        "task": setup.task.name,
        **({"title": spec["title"], "definition": spec} if "title" in spec else {}),
        "learner": setup.learner,
        "device": device,
        "threads": setup.threads,
        "seeds": [run.setup.plan.seed for run in runs],
        "plan": {name: getattr(setup.plan, name) for name in of_plan},
        "score": setup.task.measure,
        "members": [row_of(trial, setup) for trial in members],
        "board": [row_of(trial, setup) for run in runs for trial in ranked(run.board.trials)],
        "failed": sum(trial.state == "failed" for run in runs for trial in run.board.log),
        "versions": versions(),
    }


def row_of(trial: Trial, setup: TournamentSetup) -> dict[str, Any]:
    """Return a trial as a table row with the settings that may vary. A subset is shown as its size, or as 'all'."""
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
        **{name: "default" if value is None else value for name, value in values.items() if name not in space.subsets},
        **{
            "inputs" if name == "features" else name: "all" if values[name] is None else len(values[name])
            for name in space.subsets
        },
    }


class TrainedRun:
    """A finished run of `finpod.train` on a task without a market.

    `folder` has the file `trained.json`, one file for each agent, and one log for each tournament. If the task has its
    own class of policies, `load` needs the `task`.
    """

    def __init__(self, folder: str | Path, task: Task | None = None) -> None:
        """Read a finished run. Raises CheckpointError, which names the file, if the folder is not a finished run."""
        self.folder, self.task = Path(folder), task
        content = read_marker(self.folder, TRAINED, FORMAT)
        try:
            self.provenance: dict[str, Any] = dict(content["provenance"])
            self.files, self.trials = tuple(map(str, content["members"])), int(content["trials"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self.folder / TRAINED} is damaged or incomplete: {error}; train again") from error

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    @property
    def leaderboard(self) -> list[Trial]:
        """Trials that ended or failed. The best come first, trials without a score last."""
        return ranked(read_history(self.folder).trials)

    def __len__(self) -> int:
        return len(self.files)

    def checkpoint(self, n: int = 0) -> Checkpoint:
        """Return the checkpoint of the n-th best agent, from 0. Raises InputError if there are fewer agents."""
        if not 0 <= n < len(self):
            raise InputError(
                f"{self.name} has no agent {n}; pass a number from 0 (the best) to {len(self) - 1}", argument="n"
            )
        return Checkpoint.load(self.folder / Path(self.files[n]).name)

    def load(self, n: int = 0) -> Policy:
        """Return the policy of the n-th best agent. `finpod.rl.evaluate.mean_action` returns its actions."""
        checkpoint = self.checkpoint(n)
        if self.task is None:
            return checkpoint.policy()
        settings = {name: value for name, value in checkpoint.policy_spec.items() if name != "kind"}
        return checkpoint.policy(untrained=self.task.policy(settings))
