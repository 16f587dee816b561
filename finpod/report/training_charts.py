"""Charts of a training report: scores as they came, the tree of descent, and which pod worked when."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from finpod.measures import Array
from finpod.report.svg import PALETTE, WIDE_TEXT, Chart, Shown, Spec, new_figure, short_amount, to_svg
from finpod.tournament.history import History
from finpod.tournament.leaderboard import Trial, ranked
from finpod.tournament.ranking import Branch, SelectionBias, lineage, luck
from finpod.workers.executor import Placement

MOST_DOTS = 2_000
"""Dots in a chart of scores; of more trials every k-th is drawn."""
TREE, BEST = 200, 100
"""Trials of which the whole tree is drawn; of a larger one this many of the best, with their ancestors."""
ROWS, PODS = 45, 40
"""Agents in one drawing of the tree, so that it fits on a page, and pods on the time line."""
CARD = "#fefefe"
"""Stands for the colour of the card in a drawing, so that no line shines through a pale dot."""
PALE = 0.25
"""Opacity of the lowest score and of the first level."""

Key = tuple[int, int]
"""Seed of the tournament, and number of a trial in it."""


class WorkingTime(NamedTuple):
    """Wall time without the pauses in which no pod worked: a run may be resumed days later."""

    moments: Array  # [2 B] Unix times at which stretches of work begin and end, in turn
    work: Array  # [2 B] seconds of work until then

    @property
    def total(self) -> float:
        """Seconds of work."""
        return float(self.work[-1])

    @property
    def paused(self) -> float:
        """Seconds of pauses."""
        return float(self.moments[-1] - self.moments[0]) - self.total

    def at(self, times: Array) -> Array:
        """Seconds of work until Unix times [n]."""
        return np.interp(times, self.moments, self.work)


def working_time(places: Sequence[Placement]) -> WorkingTime:
    """Stretches of work with pauses of a minute or more, and of a twentieth of the work, taken out."""
    if not places:
        return WorkingTime(np.zeros(2), np.zeros(2))
    starts, ends = np.array(sorted((place.started, place.ended) for place in places)).T
    reached = np.maximum.accumulate(ends)
    gaps = starts[1:] - reached[:-1]
    work = reached[-1] - starts[0] - gaps[gaps > 60].sum()
    pauses = np.flatnonzero(gaps > max(60.0, 0.05 * work))
    between = np.column_stack([reached[pauses], starts[pauses + 1]]).ravel()
    moments = np.concatenate([starts[:1], between, reached[-1:]])
    lengths = np.diff(moments, prepend=moments[0])
    lengths[2::2] = 0.0
    return WorkingTime(moments, np.cumsum(lengths))


class Training:
    """A run, with values that several parts of its page need."""

    def __init__(self, history: History) -> None:
        self.history, self.trials, self.ranked = history, history.trials, ranked(history.trials)

    @cached_property
    def luck(self) -> SelectionBias:
        """The scores that luck alone would show."""
        return luck(self.trials)

    @cached_property
    def clock(self) -> WorkingTime:
        """When pods were at work."""
        return working_time([place for trial in self.trials for place in trial.places])

    def agents(self, *, untrained: bool = False) -> int:
        """How many there are, or how many of them began untrained."""
        return len({(trial.run, trial.agent) for trial in self.trials if not (untrained and trial.parent)})

    @property
    def notes(self) -> list[str]:
        """What the reader of the logs has to say of them."""
        return [*self.history.notes, *(note for log in self.history.logs for note in log.notes)]

    @property
    def order(self) -> list[Trial]:
        """Trials that have ended, the best first."""
        return [trial for trial in self.ranked if trial.state == "ended"]

    @property
    def troubled(self) -> list[Trial]:
        """Trials that failed or lost a pod."""
        return [trial for trial in self.trials if trial.state == "failed" or trial.lost]

    @property
    def losses(self) -> Array:
        """Unix times [n] at which pods were lost; where a log does not say, when the trial was begun again."""
        pairs = [(loss.at, [place.started for place in one.places][-1:]) for one in self.trials for loss in one.lost]
        moments = [again if math.isnan(at) else [at] for at, again in pairs]
        return np.array([moment for known in moments for moment in known])

    @property
    def unit(self) -> tuple[str, float]:
        """A unit of time for an axis of the working time, and its seconds."""
        total = self.clock.total
        return ("seconds", 1.0) if total < 180 else ("minutes", 60.0) if total < 10_800 else ("hours", 3600.0)

    @cached_property
    def slices(self) -> pd.DataFrame:
        """Slices of training in the order in which they began: pod (node and process), level, and Unix times."""
        rows = [
            (f"{place.node} {place.pid}", trial.level, place.started, place.ended)
            for trial in self.trials
            for place in trial.places
        ]
        frame = pd.DataFrame(rows, columns=["pod", "level", "started", "ended"])
        return frame.sort_values("started", kind="stable")

    @cached_property
    def drawn(self) -> list[Trial]:
        """Trials in the tree: all, or of more than `TREE` the best and their ancestors, `BEST` in all."""
        if len(self.trials) <= TREE:
            return list(self.trials)
        sources: dict[Any, Any] = {_key(trial): (trial.run, trial.source) for trial in self.trials}
        chosen: set[Any] = set()
        for key in map(_key, self.ranked):
            line = set(chosen)
            while key in sources:
                line.add(key)
                key = sources[key]
            if len(line) > BEST:
                break
            chosen = line
        return [trial for trial in self.trials if _key(trial) in chosen]


def _key(trial: Trial) -> Key:
    return trial.run, trial.number


def _scores(run: Training, *, by_steps: bool = False) -> Shown | str:
    """Scores over time, or over environment steps, with the best so far of each tournament."""
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

    alt = f"Each dot is a trial; the line is the best so far. The best of all is {run.luck.best:.2f}."
    legend = ("strategy", "benchmark", "equal-weight")
    return Shown(alt, paint=paint, legend=legend, note="" if by_steps else f" ({unit} of work)")


def _tree(run: Training) -> Chart:
    """The tree of descent: an agent a row, levels along the x axis, from each copy a line to the trial it began with.

    Rows are ordered so that no line crosses a dot or a name: the copies made last stand next to their parent.
    """
    branches = lineage(run.drawn, highest_first=True)
    begins = [row for row, branch in enumerate(branches) if branch.depth == 0] + [len(branches)]
    groups: list[list[Branch]] = [[]]
    for first, end in itertools.pairwise(begins):  # an untrained agent and all that descends from it
        for start in range(first, end, ROWS):
            piece = branches[start : min(start + ROWS, end)]
            if len(groups[-1]) + len(piece) > ROWS:
                groups.append([])
            groups[-1].extend(piece)
    order = [_key(one) for one in reversed(ranked(run.drawn))]
    strength = dict(zip(order, np.linspace(PALE, 1, len(order)), strict=True))
    levels = max(trial.level for trial in run.drawn)
    parts = f", part {{}} of {len(groups)}" if len(groups) > 1 else ""
    charts = [_piece(group, place, strength, levels, parts.format(place + 1)) for place, group in enumerate(groups)]
    return charts[0]._replace(more=tuple(charts[1:]))


def _piece(rows: Sequence[Branch], place: int, strength: Mapping[Key, float], levels: int, part: str) -> Chart:
    figure, axes = _rows_figure(len(rows), 0.17)
    spots = {_key(one): (one.level, row) for row, branch in enumerate(rows) for one in branch.trials}
    lines: list[list[Key]] = []
    for row, branch in enumerate(rows):
        first, last = branch.trials[0], branch.trials[-1]
        lines.append([(first.level, row), (last.level, row)])
        if first.copied and (above := spots.get((first.run, first.source or 0))):
            lines.append([above, (above[0], row), (first.level, row)])
        end, beside = (last.level, row), (7, 0)  # in points
        axes.annotate(_name(branch), end, beside, textcoords="offset points", va="center", fontsize=WIDE_TEXT)
    axes.add_collection(LineCollection(lines, colors=PALETTE["muted"], linewidths=0.8, zorder=1))
    _dots(axes, [one for branch in rows for one in branch.trials], spots, strength)
    axes.set_xlim(0.85, levels + max(levels - 1, 1) * 0.22 + 0.15)
    axes.set_xticks(range(1, levels + 1), [f"level {level}" for level in range(1, levels + 1)] if levels < 9 else None)
    axes.set_yticks([])
    alt = f"{len(rows)} agents by the level of experience of their trials; the same tree stands below as text."
    svg = to_svg(figure, f"tree{place}").replace(CARD, "var(--card)")
    return Chart(f"Tree of agents{part}", alt, svg, wide=True)


def _name(branch: Branch) -> str:
    """An agent with its best score, or with its state."""
    scores = [trial.score for trial in branch.trials if not math.isnan(trial.score)]
    kept = ", kept" if any(trial.kept for trial in branch.trials) else ""
    return f"{branch.agent}  {max(scores):.3f}{kept}" if scores else f"{branch.agent}  {branch.trials[-1].state}"


def _dots(axes: Axes, trials: Sequence[Trial], spots: Mapping[Key, Key], strength: Mapping[Key, float]) -> None:
    """Trials in the tree: the higher the score, the darker; a thick ring if kept, a cross if failed, empty if open."""
    live, failed = ([one for one in trials if (one.state == "failed") == is_failed] for is_failed in (False, True))
    fills, edges = [], []
    for one in live:
        has_score = not math.isnan(one.score)
        fills.append((PALETTE["strategy"], strength[_key(one)] if has_score else 0.0))
        edges.append(PALETTE["ink" if one.kept else "strategy" if has_score else "muted"])
    widths = [1.6 if one.kept else 0.8 for one in live]
    (x, y), crosses = (np.reshape([spots[_key(one)] for one in group], (-1, 2)).T for group in (live, failed))
    axes.scatter(x, y, s=36, color=CARD, zorder=2)
    axes.scatter(x, y, s=36, facecolors=fills, edgecolors=edges, linewidths=widths, zorder=2)
    axes.scatter(crosses[0], crosses[1], s=25, marker="x", color=PALETTE["danger"], linewidths=1.4, zorder=2)


def _pods(run: Training) -> Chart | str:
    """Which pod worked when: a pod a row, its slices coloured by level; losses are crosses in a row of their own."""
    (unit, length), clock, total = run.unit, run.clock, run.clock.total / run.unit[1]
    if run.slices.empty:
        return "No slice of training has ended yet."
    pods = run.slices["pod"].unique()
    shown = pods[:PODS]
    lost = run.losses
    figure, axes = _rows_figure(len(shown) + bool(len(lost)), 0.2, left=1.15)
    levels, blue = max(trial.level for trial in run.trials), PALETTE["strategy"]
    for (pod, level), part in run.slices[run.slices["pod"].isin(shown)].groupby(["pod", "level"]):
        left, right = clock.at(part[["started", "ended"]].to_numpy().T) / length
        width = np.maximum(right - left - 0.002 * total, 0.001 * total)  # a thin gap
        colour, row = (blue, PALE + (1 - PALE) * (level - 1) / max(levels - 1, 1)), list(shown).index(pod)
        bars = list(zip(left, width, strict=True))
        axes.broken_barh(bars, (row - 0.36, 0.72), facecolor=colour, edgecolor=blue, linewidth=0.6)
    names = [pod if len(pod) <= 20 else f"…{pod[-19:]}" for pod in shown]
    if len(lost):
        x = clock.at(lost) / length
        axes.plot(x, np.full(len(x), len(shown)), "x", color=PALETTE["danger"], markersize=5, markeredgewidth=1.4)
        names.append("lost")
    for pause in clock.work[2::2] / length:
        axes.axvline(pause, color=PALETTE["muted"], linewidth=0.8, linestyle=(0, (3, 2)))
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0, max(total, 1e-9))
    more = f" {len(pods) - len(shown)} more pods are left out." if len(pods) > len(shown) else ""
    alt = f"Slices of training of {len(shown)} pods over {total:.1f} {unit}; {len(lost)} were lost.{more}"
    return Chart(f"Pods at work ({unit} of work)", alt, to_svg(figure, "pods"), wide=True)


def _rows_figure(rows: int, inches: float, left: float = 0.2) -> tuple[Figure, Axes]:
    """A wide figure with a row for each of so many things, the first on top, and nothing but a scale along x."""
    height = inches * max(rows, 1) + 0.42
    figure, axes = new_figure(wide=True, height=height)
    axes.set_position((left / 8, 0.3 / height, 1 - (left + 0.1) / 8, 1 - 0.34 / height))
    axes.set_ylim(max(rows, 1) - 0.4, -0.6)
    axes.grid(False)
    axes.grid(True, axis="x")
    return figure, axes


CHARTS = (
    Spec("time", "Score over time", _scores, "plain"),
    Spec("steps", "Score over environment steps", lambda run: _scores(run, by_steps=True), "plain"),
    Spec("pods", "Pods at work", _pods, wide=True),
    Spec("tree", "Tree of agents", _tree, wide=True),
)
"""The charts of a training."""
