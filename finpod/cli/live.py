"""The live view of a tournament on a terminal: leaderboard, busy pods, speed, time left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from finpod.tournament.scheduler import Status

TOP = 10
"""Most agents and pods shown."""
LOOK = 0.25
"""Seconds between two readings of the tournament."""


class Scene(NamedTuple):
    """Values to draw. They are copies, because a thread draws them while the tournament runs."""

    board: list[tuple[str, ...]]
    """Cells of the best trials: rank, agent, parent, round, score, steps."""
    pods: list[tuple[str, str, str, float]]
    """Trial, agent, round and start (Unix time) of each busy pod, the longest running first."""
    working: int
    """Number of busy pods, shown or not."""
    done: int
    """Number of finished trials."""
    failed: int
    """Number of finished trials that failed."""
    total: int
    """Most trials that the tournament runs."""
    where: str
    """Executor of the run."""
    rate: float
    """Environment steps a second; NaN if not known yet."""
    until: float
    """Unix time at which a stop rule ends the tournament; infinite without one."""


class View:
    """Live view, drawn by rich. `progress` and `watch` are arguments of `finpod.train`; `now` is the clock."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._began = now()
        self._doing, self._remark, self._share = "", "", 0.0
        self._scene: Scene | None = None
        self._looked = -math.inf
        self._shares: list[tuple[float, float]] = []  # (time, share done) at the first call and at the last change

    def progress(self, doing: str, share: float) -> None:
        """Record the current step and the share that is done."""
        self._doing, self._share = doing, share
        if self._shares and share > self._shares[-1][1]:
            self._shares = [*self._shares[:1], (self._now(), share)]

    def watch(self, status: Status) -> None:
        """Record the state of the tournament."""
        now = self._now()
        self._shares = self._shares or [(now, self._share)]
        self._remark = status.remark or self._remark
        if self._scene is None or len(status.board.log) != self._scene.done or now - self._looked >= LOOK:
            self._looked, self._scene = now, _scene(status, now)

    def left(self) -> float:
        """Return the seconds to the end, from the speed of the trials so far or a stop rule; NaN if not known yet."""
        now = self._now()
        left = math.inf if self._scene is None else self._scene.until - now
        if len(self._shares) > 1:
            (first, before), (last, share) = self._shares
            left = min(left, (last - first) * (1 - share) / (share - before) - (now - last))
        return max(left, 0.0) if left < math.inf else math.nan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        scene, elapsed, left = self._scene, timedelta(seconds=int(self._now() - self._began)), self.left()
        if scene is None:
            yield Text(f"{self._doing or 'beginning'}  {elapsed}")
            return
        done = f"{scene.done} of {scene.total} trials" + (f", {scene.failed} failed" if scene.failed else "")
        bar = Table.grid(padding=(0, 2))
        width = max(options.max_width // 3, 10)
        bar.add_row(Text(done), ProgressBar(scene.total, min(scene.done, scene.total), width=width))
        rate = "" if math.isnan(scene.rate) else f"{scene.rate:,.0f} steps/s, "
        ends = "time left not known yet" if math.isnan(left) else f"{timedelta(seconds=int(left))} to go"
        rows = max(min(TOP, (console.size.height - 8) // 2), 1)
        yield Text(self._doing, style="bold", no_wrap=True, overflow="ellipsis")
        yield bar
        yield Text(
            f"{rate}{elapsed} so far, {ends}, on {scene.where}, {scene.working} busy", no_wrap=True, overflow="ellipsis"
        )
        yield _table(("", "agent", "parent", "round", "score", "steps"), scene.board[:rows])
        pods = [(*one, f"{max(self._now() - started, 0):.0f}") for *one, started in scene.pods[:rows]]
        yield _table(("trial", "agent", "round", "seconds"), pods)
        if self._remark:
            yield Text(self._remark, style="yellow", no_wrap=True, overflow="ellipsis")


def _scene(status: Status, now: float) -> Scene:
    """Return the state of a tournament as plain values."""
    from finpod.cli.events import speed

    levels, stop, log = status.plan.rounds, status.plan.stop.seconds, status.board.log
    return Scene(
        board=[
            (
                str(place),
                trial.agent,
                trial.parent or "-",
                f"{trial.level}/{levels}",
                "failed" if trial.state == "failed" else "n/a" if math.isnan(trial.score) else f"{trial.score:.3f}",
                f"{trial.steps:,}",
            )
            for place, trial in enumerate(status.board.ranked()[:TOP], start=1)
        ],
        pods=[
            (str(trial.number), trial.agent, f"{trial.level}/{levels}", started)
            for trial, started in sorted(status.running.values(), key=lambda at_work: at_work[1])[:TOP]
        ],
        working=len(status.running),
        done=len(log),
        failed=sum(trial.state == "failed" for trial in log),
        total=status.plan.most_trials,
        where=status.where,
        rate=speed(status, now),
        until=math.inf if stop is None else status.began + stop,
    )


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        table.add_column(head, justify="left" if head in ("agent", "parent") else "right", no_wrap=True)
    for cells in rows:
        table.add_row(*map(Text, cells))
    return table
