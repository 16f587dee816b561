"""`verify_log`: a tournament derived anew from its log, line by line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finpod.errors import CheckpointError, InputError
from finpod.files import to_json_line
from finpod.rl import LEARNERS
from finpod.storage import Store
from finpod.tournament.evolution import Evolver
from finpod.tournament.leaderboard import LEARNER, OF_TRIAL, Leaderboard
from finpod.tournament.log import TrialLog, differences, exists
from finpod.tournament.setup import Plan, completed, space_of


def verify_log(path: str | Path) -> Leaderboard:
    """Return the board that a log leads to, every draw derived from the lines before it and compared with what was drawn.

    `path` is that of a log in a trained folder, in `OUT.unfinished/seed-N`, or at a URL. A last line that was cut short
    is left out. Raises CheckpointError naming the first line that is damaged or does not follow, InputError if there is
    no log; the agents themselves are not in it.
    """
    text = str(path)
    folder, name = text.rsplit("/", 1) if "://" in text else (Path(path).parent, Path(path).name)
    store = Store(folder)
    if not exists(store, name):
        raise InputError(f"there is no log at {path}; name a file such as OUT/log-0.jsonl", argument="path")
    return _Derived(store, name).board


class _Derived(TrialLog):
    """A log whose trials are derived from the lines before them, as far as it has been read."""

    plan, levels, measure = Plan(), list[int](), ""
    evolver: Evolver | None = None

    def _take(self, record: Mapping[str, Any]) -> None:
        if fault := self._fault(record):
            raise CheckpointError(f"line {self.count + 1} of {self.where} {fault}")
        if record["kind"] != "draw":  # its trials are on the board as they were derived
            super()._take(record)

    def _fault(self, record: Mapping[str, Any]) -> str:
        """What is wrong with one more line, or nothing."""
        kind, over = record["kind"], len(self.board.log)
        if kind == "begin":
            self._begin(completed(record["header"]))
            return ""
        if self.evolver is None:
            return "comes before the line that says what the tournament is"
        if kind == "draw":
            return self._draw(self.evolver, record)
        if kind == "end":
            return "" if record["trials"] == over else f"says that {record['trials']} trials had ended, and {over} had"
        if kind not in OF_TRIAL:
            return f"is of a kind that this version of finpod does not know: {kind!r}"
        return self._of_trial(record)

    def _begin(self, header: Mapping[str, Any]) -> None:
        """A scheduler began, the first or one that went on, perhaps with other settings."""
        self.plan, learner = Plan.from_dict(header["plan"]), header["learner"]
        self.levels, self.measure, self.board.run = header["levels"], header["measure"], self.plan.seed
        config = LEARNERS[learner].Config(**header["config"])
        self.evolver = Evolver(
            seed=self.plan.seed, config=config, space=space_of(header), search=self.plan.search, learner=learner
        )

    def _draw(self, evolver: Evolver, record: Mapping[str, Any]) -> str:
        board, count = self.board, len(record["jobs"])
        begun = len(board.trials)
        if record["seen"] != len(board.log):
            return f"was drawn after {record['seen']} trials had ended, and {len(board.log)} had"
        if self.plan.mode == "async":
            for _ in range(count):
                board.draw([evolver.draw(board, self.plan.agents, self.plan.rounds)])
        else:
            levels = {trial.level for trial in board.trials}
            level = next(i for i in range(1, len(levels) + 2) if i not in levels)
            if any(trial.state == "open" for trial in board.trials):
                return f"begins round {level} before all trials of the one before have ended"
            board.draw(evolver.round(level, board, self.plan.agents))
        if len(board.trials) != begun + count:
            return f"draws {count} agents for a round of {len(board.trials) - begun}"
        for trial, drawn in zip(board.trials[begun:], record["jobs"], strict=True):
            derived = json.loads(to_json_line(trial.to_record()))
            for name, follows, stands in differences(_whole(derived), _whole(drawn)):
                differs = f"{name} {stands!r:.100} where {follows!r:.100} follows"
                return f"does not follow from those before it: trial {trial.number} has {differs}"
        return ""

    def _of_trial(self, record: Mapping[str, Any]) -> str:
        """What is wrong with a record of one trial."""
        number = record["trial"]
        if not 0 <= number < len(self.board.trials):
            return f"is of trial {number}, which was never drawn"
        if self.board.trials[number].state != "open":
            return f"is of trial {number}, which had ended before"
        steps, end = record.get("steps"), self.levels[self.board.trials[number].level - 1]
        if record["kind"] == "checkpoint" and not 0 < record["steps"] < end:
            return f"has trial {number} at {steps} steps, which is not inside its level"
        if record["kind"] == "submit" and record["steps"] != end:
            return f"has trial {number} at {steps} steps, and its level ends at {end}"
        if record["kind"] == "submit" and record["score"] != record["metrics"][self.measure]:
            return f"scores trial {number} at {record['score']}, and its metrics say otherwise"
        return ""


def _whole(drawn: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a draw with the settings of the learner that are newer than its log."""
    settings = drawn.get("settings", {})
    newer = asdict(LEARNERS[settings.get("learner", LEARNER)].Config())
    return {**drawn, "settings": {**settings, "config": {**newer, **settings.get("config", {})}}}
