"""Charts of a training report: scores, and the pods over time. Here, a pod is a process that trains agents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from finpod.figures import short_amount
from finpod.measures import Array
from finpod.report.svg import PALETTE, Chart, Shown, Spec, new_figure, to_svg
from finpod.tournament.analysis import SelectionBias, luck
from finpod.tournament.history import History
from finpod.tournament.leaderboard import ranked
from finpod.workers.executor import Placement

MOST_DOTS = 2_000
"""Largest number of dots in a chart of scores. If there are more trials, every k-th trial is drawn."""
PODS = 40
"""Largest number of pods in the chart of pods."""
PALE = 0.25
"""Opacity of the first round in the chart of pods."""
PAUSE = 600
"""Longest interruption, in seconds, that still counts as working time."""


class WorkingTime:
    """Wall time without pauses. A pause is more than `PAUSE` seconds without a working pod, such as before a resume."""

    def __init__(self, places: Sequence[Placement]) -> None:
        starts, ends = np.array(sorted((place.started, place.ended) for place in places) or [(0.0, 0.0)]).T
        reached = np.maximum.accumulate(ends)
        pauses = np.flatnonzero(starts[1:] - reached[:-1] > PAUSE)
        between = np.column_stack([reached[pauses], starts[pauses + 1]]).ravel()
        self.moments = np.concatenate([starts[:1], between, reached[-1:]])
        """[2 B] Unix times: start and end of each of the B periods of work."""
        lengths = np.diff(self.moments, prepend=self.moments[0])
        lengths[2::2] = 0.0
        self.work = np.cumsum(lengths)
        """[2 B] seconds of work up to each of the `moments`."""
        self.total = float(self.work[-1])
        """Seconds of work."""

    def at(self, times: Array) -> Array:
        """Return the seconds of work up to Unix times [n]."""
        return np.interp(times, self.moments, self.work)


class Training:
    """A training run, with values that several sections and charts of the training page use."""

    def __init__(self, history: History) -> None:
        self.history, self.trials, self.ranked = history, history.trials, ranked(history.trials)
        self.order = [trial for trial in self.ranked if trial.state == "ended"]
        self.troubled = [trial for trial in self.trials if trial.state == "failed" or trial.lost]
        self.clock = WorkingTime([place for trial in self.trials for place in trial.places])

    @cached_property
    def luck(self) -> SelectionBias:
        """Selection bias of the best score."""
        return luck(self.trials)

    @property
    def unit(self) -> tuple[str, float]:
        """Unit of working time on the axes, and its length in seconds."""
        total = self.clock.total
        return ("seconds", 1.0) if total < 180 else ("minutes", 60.0) if total < 10_800 else ("hours", 3600.0)

    @cached_property
    def slices(self) -> pd.DataFrame:
        """Table with a row for each slice: pod (node and process), round, start and end (Unix times).

        A slice is the training of one agent from one checkpoint to the next.
        """
        rows = [
            (f"{place.node} {place.pid}", trial.level, place.started, place.ended)
            for trial in self.trials
            for place in trial.places
        ]
        return pd.DataFrame(rows, columns=["pod", "round", "started", "ended"]).sort_values("started", kind="stable")


def _scores(run: Training, *, by_steps: bool = False) -> Shown | str:
    """Return a chart of the scores and the best score so far, over working time or (`by_steps`) environment steps."""
    unit, length = run.unit
    rows = [(one.run, one.places[-1].ended, one.spent, one.score) for one in run.trials if one.places]
    frame = pd.DataFrame(rows, columns=["run", "ended", "spent", "score"]).dropna().sort_values("ended", kind="stable")
    if frame.empty:
        return "No trial has a score yet."
    spent = frame.groupby("run")["spent"].cumsum()
    frame["x"] = spent if by_steps else run.clock.at(frame["ended"].to_numpy()) / length
    thin = math.ceil(len(frame) / MOST_DOTS)

    def paint(axes: Axes) -> None:
        for _, one in frame.groupby("run"):
            x, scores = one["x"], one["score"]
            dots: dict[str, Any] = {"color": PALETTE["strategy"], "markersize": 4, "markeredgewidth": 0, "alpha": 0.7}
            axes.plot(x[::thin], scores[::thin], "o", **dots)
            axes.plot(x, scores.cummax(), drawstyle="steps-post", color=PALETTE["benchmark"], zorder=4)
        if not math.isnan(run.luck.alike):
            axes.axhline(run.luck.alike, color=PALETTE["equal-weight"], linewidth=1.0, linestyle=(0, (4, 2)))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        if by_steps:
            axes.xaxis.set_major_formatter(lambda value, _: short_amount(value) if value > 0 else "0")

    alt = f"Each dot is a trial, and the line is the best score so far. The best of all is {run.luck.best:.2f}."
    legend = ("strategy", "benchmark", "equal-weight")
    return Shown(alt, paint=paint, legend=legend, note="" if by_steps else f" ({unit} of work)")


def _pods(run: Training) -> Chart | str:
    """Return a chart with one row per pod: its slices over time, coloured by round. A last row marks lost pods."""
    (unit, length), clock, total = run.unit, run.clock, run.clock.total / run.unit[1]
    if run.slices.empty:
        return "No part of the training has ended yet."
    pods = run.slices["pod"].unique()
    shown = list(pods[:PODS])
    times = np.array([loss.at for trial in run.trials for loss in trial.lost])
    lost = clock.at(times[np.isfinite(times)]) / length
    rows = len(shown) + bool(len(lost))
    height = 0.2 * rows + 0.42
    figure, axes = new_figure(wide=True, height=height)
    axes.set_position((1.15 / 8, 0.3 / height, 1 - 1.25 / 8, 1 - 0.34 / height))  # room for the names on the left
    axes.set_ylim(rows - 0.4, -0.6)
    axes.grid(False, axis="y")
    levels, blue = max(trial.level for trial in run.trials), PALETTE["strategy"]
    for (pod, level), part in run.slices[run.slices["pod"].isin(shown)].groupby(["pod", "round"]):
        left, right = clock.at(part[["started", "ended"]].to_numpy().T) / length
        width = np.maximum(right - left - 0.002 * total, 0.001 * total)  # leaves a thin gap
        colour, row = (blue, PALE + (1 - PALE) * (level - 1) / max(levels - 1, 1)), shown.index(pod)
        bars = list(zip(left, width, strict=True))
        axes.broken_barh(bars, (row - 0.36, 0.72), facecolor=colour, edgecolor=blue, linewidth=0.6)
    names = [pod if len(pod) <= 20 else f"…{pod[-19:]}" for pod in shown]
    if len(lost):
        row_of_lost = np.full(len(lost), len(shown))
        axes.plot(lost, row_of_lost, "x", color=PALETTE["danger"], markersize=5, markeredgewidth=1.4)
        names.append("lost")
    for pause in clock.work[2::2] / length:
        axes.axvline(pause, color=PALETTE["muted"], linewidth=0.8, linestyle=(0, (3, 2)))
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0, max(total, 1e-9))
    more = f" {len(pods) - len(shown)} more pods are not drawn." if len(pods) > len(shown) else ""
    alt = f"Slices of training of {len(shown)} pods over {total:.1f} {unit}. Pods lost: {len(lost)}.{more}"
    return Chart(f"Pods at work ({unit} of work)", alt, to_svg(figure, "pods"), wide=True)


CHARTS = (
    Spec("time", "Score over time", _scores, "plain"),
    Spec("steps", "Score over environment steps", lambda run: _scores(run, by_steps=True), "plain"),
    Spec("pods", "Pods at work", _pods, wide=True),
)
"""The charts of the page on a training."""
