"""The live view of a tournament on a terminal: progress, speed, busy pods and leaderboard."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from finpod.cli.events import speed
from finpod.tournament.leaderboard import ranked

if TYPE_CHECKING:
    from finpod.tournament.leaderboard import Trial
    from finpod.tournament.scheduler import Scheduler

TOP = 10
"""Largest number of agents shown."""
LOOK = 0.25
"""Seconds between two updates."""


class View:
    """Live view, drawn by rich. `progress` and `watch` are arguments for `finpod.train`; `now` returns the time.

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
        """Set the description of the current step, and the share of the work that is done."""
        self._bar.update(self._task, description=doing, completed=share)

    def watch(self, status: Scheduler) -> None:
        """Copy the state of the tournament."""
        now, trials = self._now(), status.board.log
        self._remark = status.remark or self._remark
        if len(trials) == self._done and now - self._looked < LOOK:
            return
        self._looked, self._done, rate = now, len(trials), speed(status, now)
        failed = sum(trial.state == "failed" for trial in trials)
        self._state = f"{len(trials)} of {status.plan.most_trials} trials" + (f", {failed} failed" if failed else "")
        self._state += "" if math.isnan(rate) else f", {rate:,.0f} steps/s"
        self._state += f" on {status.where}, {len(status.running)} busy"
        best = enumerate(ranked(status.board.trials)[:TOP], start=1)
        self._board = [_cells(rank, trial, status.plan.rounds) for rank, trial in best]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self._bar
        if not self._state:
            return
        yield Text(self._state, no_wrap=True, overflow="ellipsis")
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for head in ("", "agent", "parent", "round", "score", "steps"):
            table.add_column(head, justify="left" if head in ("agent", "parent") else "right", no_wrap=True)
        for cells in self._board[: max(console.size.height - 5, 1)]:
            table.add_row(*map(Text, cells))
        yield table
        if self._remark:
            yield Text(self._remark, style="yellow", no_wrap=True, overflow="ellipsis")


def _cells(rank: int, trial: Trial, rounds: int) -> tuple[str, ...]:
    score = "failed" if trial.state == "failed" else "n/a" if math.isnan(trial.score) else f"{trial.score:.3f}"
    return str(rank), trial.agent, trial.parent or "-", f"{trial.level}/{rounds}", score, f"{trial.steps:,}"
