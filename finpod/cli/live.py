"""A tournament while it runs: the live view on a terminal, and TensorBoard event files."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from finpod.cli.console import lines, remark
from finpod.errors import EngineError, InputError
from finpod.figures import ratio
from finpod.files import UNFINISHED, require_free_file
from finpod.tournament.leaderboard import Leaderboard, Trial, ranked
from finpod.tournament.scheduler import Scheduler

TOP = 10
"""Largest number of trials shown."""
LOOK = 0.25
"""Smallest number of seconds between two updates, unless a trial has ended."""


@contextmanager
def watched(
    events: Path | None, run: Path, storage: str | None = None
) -> Iterator[tuple[Any, Callable[[Scheduler], None]]]:
    """Show a live view of a tournament on stderr and write TensorBoard files to `events` while the block runs.

    Yields the arguments `progress` and `watch` of `finpod.train`. Without a terminal, progress is printed line by line.
    After an interruption, the command that resumes `run` is printed. The text of an EngineError contains this command.
    """
    terminal, watchers = Console(stderr=True), list[Callable[[Scheduler], None]]()
    view = View() if terminal.is_terminal and not terminal.is_dumb_terminal else None
    try:
        with ExitStack() as stack:
            if events is not None:
                watchers.append(stack.enter_context(closing(EventFiles(events, remark))))
            stack.enter_context(redirect_stdout(sys.stderr))
            if view is not None:
                watchers.append(view.watch)
                stack.enter_context(Live(view, console=terminal, refresh_per_second=2, transient=True))

            def watch(status: Scheduler) -> None:
                if status.remark:
                    remark(status.remark)
                for watcher in watchers:
                    watcher(status)

            yield lines() if view is None else view.progress, watch
    except EngineError as error:
        raise EngineError(error.what, f"continue with `finpod train --resume {_again(run, storage)}`") from error
    except KeyboardInterrupt:
        if storage or run.with_name(run.name + UNFINISHED).is_dir():
            remark(f"continue with: finpod train --resume {_again(run, storage)}")
        raise


def _again(run: Path, storage: str | None) -> str:
    """Return the value of --resume for a run, and the other options that the command needs."""
    if not storage:
        return str(run)
    return f"{run} --storage {storage}" if "://" in storage else f"{storage} --out {run}"


def speed(status: Scheduler, now: float) -> float:
    """Return the environment steps per second since the scheduler began; NaN before the first checkpoint."""
    return status.steps / (now - status.began) if status.steps and now > status.began else math.nan


class View:
    """Live view, drawn by rich. Its `progress` and `watch` are arguments for `finpod.train`; `now` returns the time.

    A thread draws the view while the tournament runs, so `watch` copies what it needs.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        columns = BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("so far,"), TimeRemainingColumn()
        doing = TextColumn("{task.description}", markup=False)
        self._bar = Progress(doing, *columns, TextColumn("to go"), get_time=now, speed_estimate_period=math.inf)
        self._task = self._bar.add_task("beginning", total=1.0)
        self._looked, self._done, self._state, self._remark = -math.inf, -1, "", ""
        self._board: list[tuple[str, ...]] = []  # cells of the best trials

    def progress(self, doing: str, share: float) -> None:
        """Set the description of the current step, and the fraction of the work that is done."""
        self._bar.update(self._task, description=doing, completed=share)

    def watch(self, status: Scheduler) -> None:
        """Copy the state of the tournament."""
        now, trials = self._now(), status.board.log
        self._remark = status.remark or self._remark
        if len(trials) == self._done and now - self._looked < LOOK:
            return
        self._looked, self._done, rate = now, len(trials), speed(status, now)
        failed = sum(trial.state == "failed" for trial in trials)
        state = f"{len(trials)} of {status.plan.most_trials} trials" + (f", {failed} failed" if failed else "")
        state += "" if math.isnan(rate) else f", {rate:,.0f} steps/s"
        self._state = f"{state} on {status.where}, {len(status.running)} busy"
        self._board = []
        for rank, trial in enumerate(ranked(status.board.trials)[:TOP], start=1):
            score = "failed" if trial.state == "failed" else ratio(trial.score, 3)
            level = f"{trial.level}/{status.plan.rounds}"
            self._board.append((str(rank), trial.agent, trial.parent or "-", level, score, f"{trial.steps:,}"))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self._bar
        if self._state:
            yield Text(self._state, no_wrap=True, overflow="ellipsis")
            table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
            for head in ("", "agent", "parent", "round", "score", "steps"):
                table.add_column(head, justify="left" if head in ("agent", "parent") else "right", no_wrap=True)
            for cells in self._board[: max(console.size.height - 5, 1)]:  # leaves a line for the remark
                table.add_row(*map(Text, cells))
            yield table
        if self._remark:
            yield Text(self._remark, style="yellow", no_wrap=True, overflow="ellipsis")


class EventFiles:
    """Writes event files into a folder. An instance can be the argument `watch` of `finpod.train`.

    The folder `seed-S` has the curves of the tournament with seed S over its finished trials: score, best score,
    validation metrics, losses of the last update, and environment steps per second. Raises InputError if tensorboardX
    is not installed or the folder cannot be written. If a later write fails, `say` is called with the reason, and the
    run continues without event files.
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
        self._writer = EventsWriter  # the thread of a SummaryWriter waits for ever if the disk is full
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
        # tensorboardX names files by whole seconds; the suffix separates two files of one second
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
        """Close the open file, if there is one."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()
