"""`TrainedRun`: the chosen agents of a task without a market, with their leaderboard, and as a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finpod.errors import CheckpointError, InputError
from finpod.files import TRAINED, new_folder, to_json, write_bytes, write_text
from finpod.rl.checkpoint import Checkpoint
from finpod.rl.policy import Policy
from finpod.rl.task import Task
from finpod.tournament.history import Trial, read_history
from finpod.tournament.ranking import ranked

FORMAT = "finpod trained run 1"


class TrainedRun:
    """A finished run of `finpod.train` on a task without a market.

    `folder` holds `trained.json`, an agent a file, the best first, and the log of each tournament. A task whose policy is
    of its own must be given for `load`.
    """

    def __init__(self, folder: str | Path, task: Task | None = None) -> None:
        """Read a finished run. Raises CheckpointError, naming the file, for a folder that is not one."""
        self.folder, self.task = Path(folder), task
        try:
            content = json.loads((self.folder / TRAINED).read_text())
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{self.folder} is not a trained run: cannot read {TRAINED}; give the folder that train wrote"
            ) from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise CheckpointError(f"{self.folder / TRAINED} is not of this version of finpod ({FORMAT}); train again")
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


def save_run(
    folder: Path,
    members: Sequence[Checkpoint],
    trials: int,
    provenance: Mapping[str, Any],
    logs: Mapping[str, bytes],
    *,
    overwrite: bool = False,
) -> Path:
    """Write the folder of a `TrainedRun`; all or nothing."""
    with new_folder(folder, overwrite=overwrite) as fresh:
        files = [f"member-{i}.pt" for i in range(len(members))]
        for file, member in zip(files, members, strict=True):
            member.save(fresh / file)
        for file, content in logs.items():
            write_bytes(fresh / file, content)
        manifest = {"format": FORMAT, "members": files, "trials": trials, "provenance": provenance}
        write_text(fresh / TRAINED, to_json(manifest))
    return folder
