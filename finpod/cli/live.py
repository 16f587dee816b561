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
from finpod.figures import ratio
from finpod.tournament.leaderboard import ranked

if TYPE_CHECKING:
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
        self._looked, self._done, self._remark = -math.inf, -1, ""
        self._shown: list[RenderableType] = []  # below the bar: a line on the tournament, and its best trials

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
        state = f"{len(trials)} of {status.plan.most_trials} trials" + (f", {failed} failed" if failed else "")
        state += "" if math.isnan(rate) else f", {rate:,.0f} steps/s"
        state += f" on {status.where}, {len(status.running)} busy"
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for head in ("", "agent", "parent", "round", "score", "steps"):
            table.add_column(head, justify="left" if head in ("agent", "parent") else "right", no_wrap=True)
        for rank, trial in enumerate(ranked(status.board.trials)[:TOP], start=1):
            score = "failed" if trial.state == "failed" else ratio(trial.score, 3)
            level = f"{trial.level}/{status.plan.rounds}"
            table.add_row(*map(Text, (str(rank), trial.agent, trial.parent or "-", level, score, f"{trial.steps:,}")))
        self._shown = [Text(state, no_wrap=True, overflow="ellipsis"), table]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self._bar
        yield from self._shown
        if self._remark:
            yield Text(self._remark, style="yellow", no_wrap=True, overflow="ellipsis")
