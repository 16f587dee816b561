"""Charts of a training report: scores as they came, the tree of descent, and which pod worked when."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
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

    starts: Array  # [B] Unix times at which stretches of work begin
    ends: Array  # [B] Unix times at which they end
    offsets: Array  # [B] seconds of work before each

    @property
    def total(self) -> float:
        """Seconds of work."""
        return float((self.ends - self.starts).sum())

    def at(self, times: Array) -> Array:
        """Seconds of work until Unix times [n]."""
        stretch = np.clip(np.searchsorted(self.starts, times, side="right") - 1, 0, None)
        return self.offsets[stretch] + np.clip(times - self.starts[stretch], 0, (self.ends - self.starts)[stretch])


def working_time(places: Sequence[Placement]) -> WorkingTime:
    """Stretches of work with pauses of a minute or more, and of a twentieth of the work, taken out."""
    order = sorted(places, key=lambda place: place.started)
    starts, ends = (np.array([getattr(place, name) for place in order]) for name in ("started", "ended"))
    if not len(order):
        return WorkingTime(np.zeros(1), np.zeros(1), np.zeros(1))
    reached = np.maximum.accumulate(ends)
    gaps = starts[1:] - reached[:-1]
    work = reached[-1] - starts[0] - gaps[gaps > 60].sum()
    begins = np.flatnonzero(np.append(True, gaps > max(60.0, 0.05 * work)))
    first, last = starts[begins], reached[np.append(begins[1:] - 1, len(order) - 1)]
    return WorkingTime(first, last, np.append(0.0, np.cumsum(last - first)[:-1]))


class Training:
    """A run, with values that several parts of its page need."""

    def __init__(self, history: History) -> None:
        self.history, self.trials = history, history.trials

    @cached_property
    def clock(self) -> WorkingTime:
        """When pods were at work."""
        return working_time([place for trial in self.trials for place in trial.places])

    @cached_property
    def unit(self) -> tuple[str, float]:
        """A unit of time for an axis of the working time, and its seconds."""
        total = self.clock.total
        return ("seconds", 1.0) if total < 180 else ("minutes", 60.0) if total < 10_800 else ("hours", 3600.0)

    @cached_property
    def luck(self) -> SelectionBias:
        """The scores that luck alone would show."""
        return luck(self.trials)

    @cached_property
    def order(self) -> list[Trial]:
        """Trials that have ended, the best first."""
        return [trial for trial in ranked(self.trials) if trial.state == "ended"]

    @cached_property
    def pods(self) -> dict[tuple[str, int], list[tuple[Placement, int]]]:
        """Node and process -> the slices it worked at, with their levels; in the order in which they began."""
        slices = [(place, trial.level) for trial in self.trials for place in trial.places]
        pods: dict[tuple[str, int], list[tuple[Placement, int]]] = {}
        for place, level in sorted(slices, key=lambda one: one[0].started):
            pods.setdefault((place.node, place.pid), []).append((place, level))
        return pods


def _scores(run: Training, *, by_steps: bool = False) -> Shown | str:
    """Scores over time, or over environment steps, with the best so far of each tournament."""
    unit, length = run.unit
    series: list[tuple[Array, Array]] = []
    for log in run.history.logs:
        scored = [trial for trial in log.trials if trial.places and not math.isnan(trial.score)]
        scored.sort(key=lambda trial: trial.places[-1].ended)
        if not scored:
            continue
        spent, ends = ([trial.spent for trial in scored], [trial.places[-1].ended for trial in scored])
        x = np.cumsum(np.array(spent, dtype=float)) if by_steps else run.clock.at(np.array(ends)) / length
        series.append((x, np.array([trial.score for trial in scored])))
    if not series:
        return "No trial has a score yet."
    thin = math.ceil(sum(len(x) for x, _ in series) / MOST_DOTS)

    def paint(axes: Axes) -> None:
        for x, scores in series:
            axes.plot(
                x[::thin], scores[::thin], "o", color=PALETTE["strategy"], markersize=4, markeredgewidth=0, alpha=0.7
            )
            axes.plot(x, np.maximum.accumulate(scores), drawstyle="steps-post", color=PALETTE["benchmark"], zorder=4)
        if not math.isnan(run.luck.alike):
            axes.axhline(run.luck.alike, color=PALETTE["equal-weight"], linewidth=1.0, linestyle=(0, (4, 2)))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        if by_steps:
            axes.xaxis.set_major_formatter(lambda value, _: short_amount(value) if value > 0 else "0")

    alt = f"Each dot is a trial; the line is the best so far. The best of all is {run.luck.best:.2f}."
    legend = ("strategy", "benchmark", "equal-weight")
    return Shown(alt, paint=paint, legend=legend, note="" if by_steps else f" ({unit} of work)")


def chosen_for_tree(trials: Sequence[Trial]) -> list[Trial]:
    """All trials, or of more than `TREE` the best and their ancestors, `BEST` in all."""
    if len(trials) <= TREE:
        return list(trials)
    known = {(trial.run, trial.number): trial for trial in trials}
    chosen: set[Key] = set()
    for best in ranked(trials):
        line: set[Key] = set()
        ancestor: Trial | None = best
        while ancestor is not None:
            line.add((ancestor.run, ancestor.number))
            ancestor = None if ancestor.source is None else known[ancestor.run, ancestor.source]
        if len(chosen | line) > BEST:
            break
        chosen |= line
    return [trial for key, trial in known.items() if key in chosen]


def _tree(run: Training) -> Chart:
    """The tree of descent: an agent a row, levels along the x axis, from each copy a line to the trial it began with.

    Rows are ordered so that no line crosses a dot or a name: the copies made last stand next to their parent.
    """
    shown = chosen_for_tree(run.trials)
    whole: list[list[Branch]] = []  # every untrained agent with all that descends from it
    for branch in lineage(shown, highest_first=True):
        if branch.depth == 0:
            whole.append([])
        whole[-1].append(branch)
    groups: list[list[Branch]] = [[]]
    for piece in (tree[start : start + ROWS] for tree in whole for start in range(0, len(tree), ROWS)):
        if len(groups[-1]) + len(piece) > ROWS:
            groups.append([])
        groups[-1].extend(piece)
    order = [(one.run, one.number) for one in reversed(ranked(shown))]
    strength = {key: PALE + (1 - PALE) * place / max(len(order) - 1, 1) for place, key in enumerate(order)}
    levels = max((trial.level for trial in shown), default=1)
    charts = [_piece(group, f"tree{place}", strength, levels) for place, group in enumerate(groups)]
    if len(charts) > 1:
        parts = enumerate(charts, start=1)
        charts = [chart._replace(title=f"{chart.title}, part {place} of {len(charts)}") for place, chart in parts]
    return charts[0]._replace(more=tuple(charts[1:]))


def _piece(rows: Sequence[Branch], name: str, strength: Mapping[Key, float], levels: int) -> Chart:
    figure, axes = _rows_figure(len(rows), 0.17)
    spots = {(one.run, one.number): (one.level, row) for row, branch in enumerate(rows) for one in branch.trials}
    lines: list[list[Key]] = []
    for row, branch in enumerate(rows):
        first, last = branch.trials[0], branch.trials[-1]
        lines.append([(first.level, row), (last.level, row)])
        if first.copied and (above := spots.get((first.run, first.source or 0))):
            lines.append([above, (above[0], row), (first.level, row)])
        offset: dict[str, Any] = {
            "xytext": (7, 0),
            "textcoords": "offset points",
            "va": "center",
            "fontsize": WIDE_TEXT,
        }
        axes.annotate(_name(branch), (last.level, row), **offset)
    axes.add_collection(LineCollection(lines, colors=PALETTE["muted"], linewidths=0.8, zorder=1))
    _dots(axes, [one for branch in rows for one in branch.trials], spots, strength)
    axes.set_xlim(0.85, levels + max(levels - 1, 1) * 0.22 + 0.15)
    axes.set_xticks(range(1, levels + 1), [f"level {level}" for level in range(1, levels + 1)] if levels < 9 else None)
    axes.set_yticks([])
    alt = f"{len(rows)} agents by the level of experience of their trials; the same tree stands below as text."
    svg = to_svg(figure, name).replace(CARD, "var(--card)")
    return Chart("Tree of agents", alt, svg, wide=True)


def _name(branch: Branch) -> str:
    """An agent with its best score, or with its state."""
    scores = [trial.score for trial in branch.trials if not math.isnan(trial.score)]
    kept = ", kept" if any(trial.kept for trial in branch.trials) else ""
    return f"{branch.agent}  {max(scores):.3f}{kept}" if scores else f"{branch.agent}  {branch.trials[-1].state}"


def _dots(axes: Axes, trials: Sequence[Trial], spots: Mapping[Key, Key], strength: Mapping[Key, float]) -> None:
    """Trials in the tree: the higher the score, the darker; a thick ring if kept, a cross if failed, empty if open."""

    def dots(chosen: Sequence[Trial], marker: str = "o", **style: Any) -> None:
        if chosen:
            x, y = zip(*(spots[one.run, one.number] for one in chosen), strict=True)
            axes.scatter(x, y, **{"s": 36, "marker": marker, "linewidths": 0.8, "zorder": 2, **style})

    blue = PALETTE["strategy"]
    scored = [trial for trial in trials if not math.isnan(trial.score)]
    dots([one for one in trials if one.state != "failed"], color=CARD, edgecolors=PALETTE["muted"])
    dots(scored, color=blue, alpha=[strength[one.run, one.number] for one in scored], linewidths=0)
    dots([one for one in scored if not one.kept], facecolors="none", edgecolors=blue)
    kept, failed = [one for one in scored if one.kept], [one for one in trials if one.state == "failed"]
    dots(kept, facecolors="none", edgecolors=PALETTE["ink"], linewidths=1.6)
    dots(failed, "x", s=25, color=PALETTE["danger"], linewidths=1.4)


def _pods(run: Training) -> Chart | str:
    """Which pod worked when: a pod a row, its slices coloured by level; losses are crosses in a row of their own."""
    (unit, length), clock = run.unit, run.clock
    if not run.pods:
        return "No slice of training has ended yet."
    rows = list(run.pods.items())[:PODS]
    lost = [moment for trial in run.trials for moment in _lost_at(trial)]
    figure, axes = _rows_figure(len(rows) + bool(lost), 0.2, left=1.15)
    spans: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for row, (_, slices) in enumerate(rows):
        for place, level in slices:
            spans.setdefault((row, level), []).append((place.started, place.ended))
    levels, blue = max(trial.level for trial in run.trials), PALETTE["strategy"]
    for (row, level), times in spans.items():
        left, right = clock.at(np.array(times).T) / length
        width = np.maximum(right - left - 0.002 * clock.total / length, 0.001 * clock.total / length)  # a thin gap
        strength = PALE + (1 - PALE) * (level - 1) / max(levels - 1, 1)
        bars, height = list(zip(left, width, strict=True)), (row - 0.36, 0.72)
        axes.broken_barh(bars, height, facecolor=(blue, strength), edgecolor=blue, linewidth=0.6)
    if lost:
        x = clock.at(np.array(lost)) / length
        axes.plot(x, np.full(len(x), len(rows)), "x", color=PALETTE["danger"], markersize=5, markeredgewidth=1.4)
    for pause in clock.offsets[1:] / length:
        axes.axvline(pause, color=PALETTE["muted"], linewidth=0.8, linestyle=(0, (3, 2)))
    names = [f"{node} {pid}" for (node, pid), _ in rows] + ["lost"] * bool(lost)
    axes.set_yticks(range(len(names)), [name if len(name) <= 20 else f"…{name[-19:]}" for name in names])
    axes.set_xlim(0, max(clock.total / length, 1e-9))
    more = f" {len(run.pods) - len(rows)} more pods are left out." if len(run.pods) > len(rows) else ""
    alt = f"Slices of training of {len(rows)} pods over {clock.total / length:.1f} {unit}; {len(lost)} were lost.{more}"
    return Chart(f"Pods at work ({unit} of work)", alt, to_svg(figure, "pods"), wide=True)


def _lost_at(trial: Trial) -> list[float]:
    """When pods were lost; where the log does not say, when the trial was begun again."""
    again = trial.places[-1].started if trial.places else math.nan
    moments = [again if math.isnan(loss.at) else loss.at for loss in trial.lost]
    return [moment for moment in moments if not math.isnan(moment)]


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
