"""The live view of a tournament on a terminal: leaderboard, busy pods, speed, time left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from finpod.cli.events import speed

if TYPE_CHECKING:
    from finpod.tournament.leaderboard import Trial
    from finpod.tournament.scheduler import Status

TOP = 10
"""Largest number of agents, and of pods, shown."""
LOOK = 0.25
"""Seconds between two updates."""


class View:
    """Live view, drawn by rich. `progress` and `watch` are arguments for `finpod.train`; `now` returns the time.

    A thread draws the view while the tournament runs, so `watch` copies what it needs.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._began, self._looked = now(), -math.inf
        self._doing, self._remark, self._share = "", "", 0.0
        self._shares: list[tuple[float, float]] = []  # (time, share done) at the first call and at the last change
        self._board: list[tuple[str, ...]] = []  # cells of the best trials
        self._pods: list[tuple[str, str, str, float]] = []  # trial, agent, round, start; the longest running first
        self._done, self._failed, self._total, self._working = -1, 0, 0, 0
        self._where, self._rate, self._until = "", math.nan, math.inf

    def progress(self, doing: str, share: float) -> None:
        """Set the description of the current step, and the share of the work that is done."""
        self._doing, self._share = doing, share
        if self._shares and share > self._shares[-1][1]:
            self._shares = [*self._shares[:1], (self._now(), share)]

    def watch(self, status: Status) -> None:
        """Copy the state of the tournament."""
        now, trials, rounds = self._now(), status.board.log, status.plan.rounds
        self._shares = self._shares or [(now, self._share)]
        self._remark = status.remark or self._remark
        if len(trials) == self._done and now - self._looked < LOOK:
            return
        self._looked, self._where, self._rate = now, status.where, speed(status, now)
        self._done, self._total, self._working = len(trials), status.plan.most_trials, len(status.running)
        self._failed = sum(trial.state == "failed" for trial in trials)
        self._until = math.inf if status.plan.stop.seconds is None else status.began + status.plan.stop.seconds
        best = enumerate(status.board.ranked()[:TOP], start=1)
        self._board = [_cells(rank, trial, rounds) for rank, trial in best]
        busy = sorted(status.running.values(), key=lambda at_work: at_work[1])[:TOP]
        self._pods = [(str(one.number), one.agent, f"{one.level}/{rounds}", started) for one, started in busy]

    def left(self) -> float:
        """Return the estimated seconds to the end, by the speed so far or a stop rule; NaN if not known yet."""
        now = self._now()
        left = self._until - now
        if len(self._shares) > 1:
            (first, before), (last, share) = self._shares
            left = min(left, (last - first) * (1 - share) / (share - before) - (now - last))
        return max(left, 0.0) if left < math.inf else math.nan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        elapsed, left = timedelta(seconds=int(self._now() - self._began)), self.left()
        if self._done < 0:
            yield Text(f"{self._doing or 'beginning'}  {elapsed}")
            return
        done = f"{self._done} of {self._total} trials" + (f", {self._failed} failed" if self._failed else "")
        bar = Table.grid(padding=(0, 2))
        width = max(options.max_width // 3, 10)
        bar.add_row(Text(done), ProgressBar(self._total, min(self._done, self._total), width=width))
        rate = "" if math.isnan(self._rate) else f"{self._rate:,.0f} steps/s, "
        ends = "time left not known yet" if math.isnan(left) else f"{timedelta(seconds=int(left))} to go"
        state = f"{rate}{elapsed} so far, {ends}, on {self._where}, {self._working} busy"
        rows = max(min(TOP, (console.size.height - 8) // 2), 1)
        yield Text(self._doing, style="bold", no_wrap=True, overflow="ellipsis")
        yield bar
        yield Text(state, no_wrap=True, overflow="ellipsis")
        yield _table(("", "agent", "parent", "round", "score", "steps"), self._board[:rows])
        pods = [(*one, f"{max(self._now() - started, 0):.0f}") for *one, started in self._pods[:rows]]
        yield _table(("trial", "agent", "round", "seconds"), pods)
        if self._remark:
            yield Text(self._remark, style="yellow", no_wrap=True, overflow="ellipsis")


def _cells(rank: int, trial: Trial, rounds: int) -> tuple[str, ...]:
    score = "failed" if trial.state == "failed" else "n/a" if math.isnan(trial.score) else f"{trial.score:.3f}"
    return str(rank), trial.agent, trial.parent or "-", f"{trial.level}/{rounds}", score, f"{trial.steps:,}"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        table.add_column(head, justify="left" if head in ("agent", "parent") else "right", no_wrap=True)
    for cells in rows:
        table.add_row(*map(Text, cells))
    return table
