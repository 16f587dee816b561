"""`verify_log`: a tournament recomputed from its log, line by line."""

from __future__ import annotations

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
from finpod.tournament.leaderboard import OF_TRIAL, Leaderboard, Settings
from finpod.tournament.log import TrialLog, differences, exists
from finpod.tournament.setup import Plan, completed


def verify_log(path: str | Path) -> Leaderboard:
    """Return the board of a log, with every draw recomputed from the lines before it and compared.

    `path` is the path or URL of a log in a trained folder or an unfinished run. A last line that is cut short is ignored, and
    agents are not read. Raises CheckpointError that names the first line that is damaged or does not follow, InputError if
    there is no log.
    """
    text = str(path)
    folder, name = text.rsplit("/", 1) if "://" in text else (Path(path).parent, Path(path).name)
    store = Store(folder)
    if not exists(store, name):
        raise InputError(f"there is no log at {path}; name a file such as OUT/log-0.jsonl", argument="path")
    return _Derived(store, name).board


class _Derived(TrialLog):
    """A log whose trials are recomputed from the lines before them."""

    plan, levels, measure = Plan(), list[int](), ""
    evolver: Evolver | None = None

    def _take(self, record: Mapping[str, Any]) -> None:
        if fault := self._fault(record):
            raise CheckpointError(f"line {self.count + 1} of {self.where} {fault}")
        if record["kind"] != "draw":  # its trials are on the board as they were recomputed
            super()._take(record)

    def _fault(self, record: Mapping[str, Any]) -> str:
        """What is wrong with the next line; empty if nothing is."""
        kind, ended = record["kind"], len(self.board.log)
        if kind == "begin":
            header = completed(record["header"])
            self.plan, learner, space = Plan.from_dict(header["plan"]), header["learner"], Space(**header["space"])
            self.levels, self.measure, self.board.run = header["levels"], header["measure"], self.plan.seed
            config = LEARNERS[learner].Config(**header["config"])
            search, seed = self.plan.search, self.plan.seed
            self.evolver = Evolver(seed=seed, config=config, space=space, search=search, learner=learner)
            return ""
        if self.evolver is None:
            return "comes before the line that says what the tournament is"
        if kind == "draw":
            return self._draw(self.evolver, record)
        if kind == "end":
            return (
                "" if record["trials"] == ended else f"says that {record['trials']} trials had ended, and {ended} had"
            )
        if kind not in OF_TRIAL:
            return f"is of a kind that this version of finpod does not know: {kind!r}"
        return self._of_trial(record)

    def _draw(self, evolver: Evolver, record: Mapping[str, Any]) -> str:
        board, plan, jobs = self.board, self.plan, record["jobs"]
        begun = len(board.trials)
        if record["seen"] != len(board.log):
            return f"was drawn after {record['seen']} trials had ended, and {len(board.log)} had"
        if plan.mode == "async":
            for _ in jobs:
                board.draw([evolver.draw(board, plan.agents, plan.rounds)])
        else:
            level = max((trial.level for trial in board.trials), default=0) + 1
            if any(trial.state == "open" for trial in board.trials):
                return f"begins round {level} before all trials of the one before have ended"
            board.draw(evolver.round(level, board, plan.agents))
        if len(board.trials) != begun + len(jobs):
            return f"draws {len(jobs)} agents for a round of {len(board.trials) - begun}"
        for trial, drawn in zip(board.trials[begun:], jobs, strict=True):
            # with settings of the learner that are newer than the log
            whole = {**drawn, "settings": Settings.from_dict(drawn["settings"]).to_dict()}
            for name, follows, stands in differences(
                *(json.loads(to_json_line(one)) for one in (trial.to_record(), whole))
            ):
                differs = f"{name} {stands!r:.100} where {follows!r:.100} follows"
                return f"does not follow from those before it: trial {trial.number} has {differs}"
        return ""

    def _of_trial(self, record: Mapping[str, Any]) -> str:
        kind, number, steps = record["kind"], record["trial"], record.get("steps")
        if not 0 <= number < len(self.board.trials):
            return f"is of trial {number}, which was never drawn"
        if self.board.trials[number].state != "open":
            return f"is of trial {number}, which had ended before"
        end = self.levels[self.board.trials[number].level - 1]
        if kind == "checkpoint" and not 0 < record["steps"] < end:
            return f"has trial {number} at {steps} steps, which is not inside its level"
        if kind == "submit" and steps != end:
            return f"has trial {number} at {steps} steps, and its level ends at {end}"
        if kind == "submit" and record["score"] != record["metrics"][self.measure]:
            return f"scores trial {number} at {record['score']}, and its metrics say otherwise"
        return ""
