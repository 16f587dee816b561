"""The live view of a tournament on a terminal: leaderboard, busy pods, speed, time left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from finpod.files import UNFINISHED

if TYPE_CHECKING:
    from finpod.tournament.scheduler import Status

TOP = 10
"""Most agents and pods shown."""
BESIDE = 96
"""Width of the terminal, in columns, from which pods are shown beside the leaderboard instead of below it."""
REFRESHES = 2
"""Redraws a second."""
LOOK = 0.25
"""Seconds between two readings of the tournament."""


class Scene(NamedTuple):
    """The values to draw: copies, since drawing runs in a thread beside the tournament."""

    board: list[tuple[str, ...]]
    """Cells of the best trials: rank, agent, parent, round, score, steps."""
    pods: list[tuple[str, str, str, float]]
    """Trial, agent, round and start in Unix time; the longest running first."""
    working: int
    """Number of busy pods, shown or not."""
    done: int
    """Number of finished trials."""
    failed: int
    """Number of these that failed."""
    total: int
    """Number of trials at which the tournament ends at the latest."""
    where: str
    """Executor of the run."""
    rate: float
    """Environment steps a second; NaN if not known yet."""
    until: float
    """Unix time at which a stop rule ends the tournament; infinite without one."""


class View:
    """The view for rich. `progress` and `watch` are arguments of `finpod.train`; `now` is the clock."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._began = now()
        self._doing, self._remark, self._share = "", "", 0.0
        self._scene: Scene | None = None
        self._status: Status | None = None
        self._looked, self._working = -math.inf, set[int]()
        self._shares: list[tuple[float, float]] = []  # (time, share done) at the first call and at the last change

    def progress(self, doing: str, share: float) -> None:
        """Record the current step and the share that is done."""
        self._doing, self._share = doing, share
        if self._shares and share > self._shares[-1][1]:
            self._shares = [*self._shares[:1], (self._now(), share)]

    def watch(self, status: Status) -> None:
        """Record the state of the tournament."""
        from finpod.cli.events import Pace

        now = self._now()
        if status is not self._status:
            self._status, self._pace, self._looked = status, Pace(), -math.inf
        self._pace.note(now, status.steps)
        self._shares = self._shares or [(now, self._share)]
        self._remark = status.remark or self._remark
        ended = self._scene is None or len(status.board.log) != self._scene.done
        if ended or set(status.running) != self._working or now - self._looked >= LOOK:
            self._looked, self._working = now, set(status.running)
            self._scene = _scene(status, self._pace.rate, None if ended else self._scene)

    def left(self) -> float:
        """Seconds to the end, from the speed of the trials so far or a stop rule; NaN if not known yet."""
        now = self._now()
        left = math.inf if self._scene is None else self._scene.until - now
        if len(self._shares) > 1:
            (first, before), (last, share) = self._shares
            left = min(left, (last - first) * (1 - share) / (share - before) - (now - last))
        return max(left, 0.0) if left < math.inf else math.nan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        scene, elapsed = self._scene, clock(self._now() - self._began)
        if scene is None:
            yield Text(f"{self._doing or 'beginning'}  {elapsed}")
            return
        left = self.left()
        yield _heading(
            scene,
            self._doing,
            elapsed,
            "time left not known yet" if math.isnan(left) else f"{clock(left)} to go",
            options,
        )
        beside = options.max_width >= BESIDE
        height = console.size.height - 8
        rows = max(min(TOP, height if beside else height // 2), 1)
        board, pods = _board(scene, rows), _pods(scene, rows, self._now())
        if beside:
            both = Table.grid(padding=(0, 4))
            both.add_row(board, pods)
            yield both
        else:
            yield Group(board, pods)
        if self._remark:
            yield Text(self._remark, style="yellow", no_wrap=True, overflow="ellipsis")


def _scene(status: Status, rate: float, before: Scene | None) -> Scene:
    """The state of a tournament as plain values; `before` is the previous scene, reused if the leaderboard is unchanged."""
    levels, stop = status.plan.rounds, status.plan.stop.seconds
    if before is None:
        board: list[tuple[str, ...]] = [
            (
                str(place),
                trial.agent,
                trial.parent or "-",
                f"{trial.level}/{levels}",
                "failed" if trial.state == "failed" else "n/a" if math.isnan(trial.score) else f"{trial.score:.3f}",
                f"{trial.steps:,}",
            )
            for place, trial in enumerate(status.board.ranked()[:TOP], start=1)
        ]
        failed = sum(trial.state == "failed" for trial in status.board.log)
    else:
        board, failed = before.board, before.failed
    pods = [
        (str(trial.number), trial.agent, f"{trial.level}/{levels}", started)
        for trial, started in sorted(status.running.values(), key=lambda at_work: at_work[1])[:TOP]
    ]
    until = math.inf if stop is None else status.began + stop
    return Scene(
        board, pods, len(status.running), len(status.board.log), failed, status.plan.most_trials, status.where, rate, until
    )  # fmt: skip


def _heading(scene: Scene, doing: str, elapsed: str, left: str, options: ConsoleOptions) -> RenderableType:
    """Three lines: current step, progress and speed."""
    done = f"{scene.done} of {scene.total} trials" + (f", {scene.failed} failed" if scene.failed else "")
    bar = Table.grid(padding=(0, 2))
    bar.add_row(
        Text(done), ProgressBar(scene.total, min(scene.done, scene.total), width=max(options.max_width // 3, 10))
    )
    rate = "" if math.isnan(scene.rate) else f"{scene.rate:,.0f} steps/s, "
    return Group(
        Text(doing, style="bold", no_wrap=True, overflow="ellipsis"),
        bar,
        Text(f"{rate}{elapsed} so far, {left}, on {scene.where}", no_wrap=True, overflow="ellipsis"),
    )


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        table.add_column(head, justify="left" if head in ("agent", "parent") else "right", no_wrap=True)
    return table


def _board(scene: Scene, rows: int) -> Table:
    """Table of the best trials so far."""
    table = _table("", "agent", "parent", "round", "score", "steps")
    for place, cells in enumerate(scene.board[:rows]):
        table.add_row(*(Text(cell) for cell in cells), style="bold" if place == 0 else "")
    return table


def _pods(scene: Scene, rows: int, now: float) -> Table:
    """Table of the trials in training."""
    table = _table("trial", "agent", "round", "seconds")
    shown = scene.pods[: rows if scene.working <= rows else rows - 1]
    for trial, agent, at, started in shown:
        table.add_row(trial, Text(agent), at, f"{max(now - started, 0):.0f}")
    if more := scene.working - len(shown):
        table.add_row("", f"and {more} more")
    return table


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: 0:42, 1:02:03."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


@contextmanager
def shown(console: Console) -> Iterator[View]:
    """Show the view on a terminal while the block runs; restore the terminal afterwards."""
    view = View()
    with Live(view, console=console, refresh_per_second=REFRESHES, transient=True):
        yield view


def unfinished(run: Path) -> bool:
    """True if an interrupted run can be resumed."""
    return run.with_name(run.name + UNFINISHED).is_dir()
