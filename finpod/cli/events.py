"""`EventFiles`: TensorBoard event files of a tournament, written while it runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from finpod.errors import InputError
from finpod.files import require_free_file
from finpod.tournament.leaderboard import Leaderboard, Trial
from finpod.tournament.scheduler import Scheduler


def speed(status: Scheduler, now: float) -> float:
    """Return the environment steps per second since the scheduler began; NaN before the first trial has ended."""
    return status.steps / (now - status.began) if status.steps and now > status.began else math.nan


class EventFiles:
    """Writes event files into a folder. An instance can be the argument `watch` of `finpod.train`.

    `seed-S` plots a tournament against the number of finished trials: score, best score, validation metrics, losses of the
    last update and environment steps per second. Raises InputError if tensorboardX is not installed or the folder cannot be
    written. If a later write fails, the tournament continues without event files and `say` receives a message.
    """

    def __init__(self, folder: str | Path, say: Callable[[str], None] = lambda text: None) -> None:
        try:
            from tensorboardX.event_file_writer import EventsWriter
        except ImportError as error:
            raise InputError(
                "tensorboardX is not installed; pip install tensorboardX, or write no event files",
                argument="tensorboard",
            ) from error
        self._folder, self._say = Path(folder), say
        require_free_file(self._folder / "events", True)
        self._writer = EventsWriter  # SummaryWriter's thread would wait for ever if the disk is full
        self._board: Leaderboard | None = None
        self._file: Any = None

    def __call__(self, status: Scheduler, now: float | None = None) -> None:
        """Write the trials that ended since the last call; `now` is Unix time."""
        try:
            if status.board is not self._board:
                self._begin(status)
            ended = [trial for trial in status.board.log if trial.number not in self._seen]
            if self._file is None or not ended:
                return
            for trial in ended:
                self._write(trial, status, time.time() if now is None else now)
            self._file.flush()
        except OSError as error:
            self.close()
            self._say(f"cannot write {self._folder}: {error.strerror or error}; continuing without event files")

    def _begin(self, status: Scheduler) -> None:
        """Open the file of one tournament and close that of the previous one."""
        self.close()
        self._board = status.board
        self._seen = {trial.number for trial in status.board.log}  # an earlier process wrote these
        folder = self._folder / f"seed-{status.plan.seed}"
        folder.mkdir(parents=True, exist_ok=True)
        # tensorboardX names files by whole seconds, so two files of one second would have one name
        self._file = self._writer(str(folder / "events"), f".{time.time_ns()}")

    def _write(self, trial: Trial, status: Scheduler, now: float) -> None:
        """Write the finite values of a trial as one event."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        self._seen.add(trial.number)
        scores = [one.score for one in status.board.log if one.number in self._seen]
        values = {
            "score/trial": trial.score,
            "score/best": float(np.fmax.reduce(scores)),  # ignores NaN
            "pace/steps_per_second": speed(status, now),
            **{f"validation/{name}": value for name, value in trial.metrics.items()},
            **{f"loss/{name}": value for name, value in status.losses.items() if trial is status.latest},
        }
        known = [Summary.Value(tag=name, simple_value=value) for name, value in values.items() if math.isfinite(value)]
        self._file.write_event(Event(wall_time=now, step=len(self._seen), summary=Summary(value=known)))

    def close(self) -> None:
        """Close the files."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()
