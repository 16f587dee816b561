"""`verify_log`: a tournament derived anew from its log, line by line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from finpod.errors import CheckpointError, FinpodError, InputError
from finpod.files import to_json_line
from finpod.rl import LEARNERS
from finpod.rl.checkpoint import Checkpoint
from finpod.storage import Store
from finpod.tournament.evolution import Drawn, Evolver, Job
from finpod.tournament.leaderboard import Leaderboard
from finpod.tournament.log import parse_log
from finpod.tournament.setup import Plan, completed, space_of


def verify_log(path: str | Path) -> Leaderboard:
    """The board that a log leads to, with every draw derived from the lines before it and held against what was drawn.

    `path` is that of a log in a trained folder, in `OUT.unfinished/seed-N`, or at a URL. A last line that was cut short
    is left out. Raises CheckpointError naming the first line that is damaged or does not follow, InputError if there is
    no log; the agents themselves are not in it.
    """
    text = str(path)
    folder, name = text.rsplit("/", 1) if "://" in text else (Path(path).parent, Path(path).name)
    try:
        content = Store(folder).read(name)
    except FileNotFoundError as error:
        raise InputError(f"there is no log at {path}; name a file such as OUT/log-0.jsonl", argument="path") from error
    records, _ = parse_log(content, text)
    replay = _Replay(text)
    for record in records:
        replay.line += 1
        try:
            replay.take(record)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            replay.refuse(f"is not of this version of finpod: {type(error).__name__} {error}")
    return replay.board


class _Replay:
    """A tournament as far as its log has been read."""

    def __init__(self, where: str) -> None:
        self.where, self.line = where, 0
        self.board, self.drawn = Leaderboard(), Drawn()
        self.done: set[int] = set()
        self.plan, self.levels, self.measure = Plan(), list[int](), ""
        self.generator: Evolver | None = None

    def refuse(self, what: str) -> NoReturn:
        """Raise CheckpointError that names the line."""
        raise CheckpointError(f"line {self.line} of {self.where} {what}")

    def take(self, record: Mapping[str, Any]) -> None:
        """One more line."""
        kinds: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "begin": self._begin,
            "draw": self._draw,
            "checkpoint": self._checkpoint,
            "lost": self._open,
            "submit": self._submit,
            "failed": self._fail,
            "end": self._end,
        }
        kind = record["kind"]
        if kind not in kinds:
            self.refuse(f"is of a kind that this version of finpod does not know: {kind!r}")
        if self.generator is None and kind != "begin":
            self.refuse("comes before the line that says what the tournament is")
        kinds[kind](record)

    def _begin(self, record: Mapping[str, Any]) -> None:
        """A driver began, the first or one that went on, perhaps with other settings."""
        header = completed(record["header"])
        self.plan, learner = Plan.from_dict(header["plan"]), header["learner"]
        self.levels, self.measure = header["levels"], header["measure"]
        self.generator = Evolver(
            seed=self.plan.seed,
            config=LEARNERS[learner].Config(**header["config"]),
            space=space_of(header),
            search=self.plan.search,
            learner=learner,
        )

    def _draw(self, record: Mapping[str, Any]) -> None:
        if record["seen"] != len(self.board.log):
            self.refuse(f"was drawn after {record['seen']} trials had ended, and {len(self.board.log)} had")
        for job, found in zip(self._derived(len(record["jobs"])), record["jobs"], strict=True):
            if differs := _difference(json.loads(to_json_line(job.to_dict())), _completed(job, found)):
                self.refuse(f"does not follow from those before it: trial {job.trial} has {differs}")

    def _derived(self, count: int) -> list[Job]:
        """What the generator draws here; taken over as drawn."""
        assert self.generator is not None
        if self.plan.mode == "async":
            begun = len(self.drawn)
            for _ in range(count):
                self.drawn.add([self.generator.draw(self.board, self.drawn, self.plan.agents, self.plan.rounds)])
            return self.drawn[begun:]
        generations = {job.generation for job in self.drawn}
        number = next(i for i in range(len(generations) + 1) if i not in generations)
        if len(self.done) < len(self.drawn):
            self.refuse(f"begins round {number + 1} before all trials of the one before have ended")
        jobs = self.generator.round(number, self.board, self.drawn, self.plan.agents)
        if len(jobs) != count:
            self.refuse(f"draws {count} agents for a round of {len(jobs)}")
        self.drawn.add(jobs)
        return jobs

    def _open(self, record: Mapping[str, Any]) -> Job:
        """The job of a trial that was drawn and has not ended."""
        trial = record["trial"]
        if not 0 <= trial < len(self.drawn):
            self.refuse(f"is of trial {trial}, which was never drawn")
        if trial in self.done:
            self.refuse(f"is of trial {trial}, which had ended before")
        return self.drawn[trial]

    def _checkpoint(self, record: Mapping[str, Any]) -> None:
        job = self._open(record)
        if not 0 < record["steps"] < self.levels[job.generation]:
            self.refuse(f"has trial {job.trial} at {record['steps']} steps, which is not inside its level")

    def _submit(self, record: Mapping[str, Any]) -> None:
        job = self._open(record)
        if record["steps"] != self.levels[job.generation]:
            ends = self.levels[job.generation]
            self.refuse(f"has trial {job.trial} at {record['steps']} steps, and its level ends at {ends}")
        if record["score"] != record["metrics"][self.measure]:
            self.refuse(f"scores trial {job.trial} at {record['score']}, and its metrics say otherwise")
        self.done.add(job.trial)
        self.board.submit(job.entry(record["score"], record["metrics"], record["returns"], record["steps"], _absent))

    def _fail(self, record: Mapping[str, Any]) -> None:
        job = self._open(record)
        self.done.add(job.trial)
        self.board.submit(job.failed())

    def _end(self, record: Mapping[str, Any]) -> None:
        if record["trials"] != len(self.board.log):
            self.refuse(f"says that {record['trials']} trials had ended, and {len(self.board.log)} had")


def _absent() -> Checkpoint:
    raise FinpodError("a log holds no agents, only what was drawn and how it did")


def _completed(job: Job, found: Mapping[str, Any]) -> dict[str, Any]:
    """The job of a log with the settings of the learner that are newer than the log."""
    settings, newer = found.get("settings", {}), asdict(LEARNERS[job.settings.learner].Config())
    return {**found, "settings": {**settings, "config": {**newer, **settings.get("config", {})}}}


def _difference(derived: Mapping[str, Any], found: Mapping[str, Any], name: str = "") -> str:
    """What the log has where something else follows; empty if they agree."""
    for key in sorted({*derived, *found}):
        one, other = derived.get(key), found.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            if differs := _difference(one, other, f"{name}{key}."):
                return differs
        elif one != other:
            return f"{name}{key} {other!r:.100} where {one!r:.100} follows"
    return ""
