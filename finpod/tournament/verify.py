"""`verify_log`: recompute the draws of a tournament from its log, line by line, and compare them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finpod.errors import CheckpointError, InputError
from finpod.files import to_json_line
from finpod.rl import LEARNERS
from finpod.rl.task import Space
from finpod.storage import Store
from finpod.tournament.evolution import Evolver
from finpod.tournament.leaderboard import OF_TRIAL, Leaderboard
from finpod.tournament.log import TrialLog, differences, exists
from finpod.tournament.setup import FORMAT, Plan


def verify_log(path: str | Path) -> Leaderboard:
    """Check the log of a run and return its leaderboard. Each random draw is recomputed from the lines before it.

    `path` is the path or URL of a log, of a finished or unfinished run. An incomplete last line is ignored. Checkpoints
    are not read. Raises CheckpointError for the first line that is damaged or does not follow from the lines before it,
    and InputError if there is no log.
    """
    text = str(path)
    folder, name = text.rsplit("/", 1) if "://" in text else (Path(path).parent, Path(path).name)
    store = Store(folder)
    if not exists(store, name):
        raise InputError(f"there is no log at {path}; pass a file such as OUT/log-0.jsonl", argument="path")
    return _Derived(store, name).board


class _Derived(TrialLog):
    """A log that is checked while it is read: each draw is recomputed from the lines before it."""

    plan: Plan
    evolver: Evolver | None = None

    def _take(self, record: Mapping[str, Any]) -> None:
        kind, ended = record["kind"], len(self.board.log)
        if kind == "begin":
            header, form = record["header"], record["header"]["format"]
            self._require(form == FORMAT, f"has the format {form!r}; only {FORMAT!r} can be verified")
            plan, learner, space = Plan.from_dict(header["plan"]), header["learner"], Space(**header["space"])
            config, rate = LEARNERS[learner].Config(**header["config"]), plan.restart_rate
            self.evolver = Evolver(seed=plan.seed, config=config, space=space, restart_rate=rate, learner=learner)
            self.plan, self.board.run = plan, plan.seed
        elif self.evolver is None:
            self._require(False, "comes before the line with the settings of the tournament")
        elif kind == "draw":
            return self._draw(self.evolver, record)  # adds the recomputed trials
        elif kind == "end":
            stated = record["trials"]
            self._require(stated == ended, f"states that {stated} trials had ended, but {ended} had")
        else:
            self._require(kind in OF_TRIAL, f"has the kind {kind!r}, which this version of finpod does not know")
            self._check_trial(record)
        super()._take(record)

    def _require(self, holds: bool, fault: str) -> None:
        """Raise CheckpointError, with the number of the line and the `fault`, unless `holds` is True."""
        if not holds:
            raise CheckpointError(f"line {self.count + 1} of {self.where} {fault}")

    def _draw(self, evolver: Evolver, record: Mapping[str, Any]) -> None:
        board, plan, jobs, seen = self.board, self.plan, record["jobs"], record["seen"]
        begun, ended = len(board.trials), len(board.log)
        self._require(seen == ended, f"states that {seen} trials had ended, but {ended} had")
        if plan.mode == "async":
            for _ in jobs:
                board.trials.append(evolver.draw(board, plan.agents, plan.rounds))
        else:
            level = max((trial.level for trial in board.trials), default=0) + 1
            self._require(begun == ended, f"starts round {level} before all trials of the previous round have ended")
            board.trials.extend(evolver.round(level, board, plan.agents))
        made = len(board.trials) - begun
        self._require(made == len(jobs), f"draws {len(jobs)} trials for a round of {made}")
        for trial, drawn in zip(board.trials[begun:], jobs, strict=True):
            follows = json.loads(to_json_line(trial.to_record()))
            for name, one, other in differences(follows, drawn):
                differs = f"{name} of trial {trial.number} is {other!r:.100}, but should be {one!r:.100}"
                self._require(False, f"does not follow from the lines before it: {differs}")

    def _check_trial(self, record: Mapping[str, Any]) -> None:
        kind, number, steps = record["kind"], record["trial"], record.get("steps")
        self._require(0 <= number < len(self.board.trials), f"is about trial {number}, which was never drawn")
        trial = self.board.trials[number]
        self._require(trial.state == "open", f"is about trial {number}, which had ended before")
        end, at = self.header["levels"][trial.level - 1], f"reports trial {number} at {steps} steps"
        if kind == "checkpoint":
            self._require(0 < record["steps"] < end, f"{at}, which is not inside its round")
        elif kind == "submit":
            self._require(steps == end, f"{at}, but its round ends at {end}")
            same = record["score"] == record["metrics"][self.header["measure"]]
            self._require(same, f"has score {record['score']} for trial {number}, but another one in its metrics")
