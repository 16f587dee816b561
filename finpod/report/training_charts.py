"""Charts of a training report: scores as they came, the tree of descent, and who was at work when."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import FuncFormatter, MaxNLocator

from finpod.measures import Array
from finpod.report.pages import Picture
from finpod.report.svg import PALETTE, WIDE_TEXT, Chart, new_figure, short_amount, to_svg
from finpod.tournament.history import History, Log, Trial
from finpod.tournament.ranking import Branch, SelectionBias, lineage, luck, ranked
from finpod.workers.executor import Placement

MOST_DOTS = 2_000
"""Trials that are drawn as dots; of more than these, every so-manieth."""
TREE, BEST = 200, 100
"""Trials of which the whole tree is drawn; of a larger one the best, with their ancestors."""
ROWS = 45
"""Agents in one drawing of the tree, so that it fits on a page."""
PODS = 40
"""Pods on the time line."""
TREE_TITLE = "Who was copied from whom"
"""Heading of the tree."""
CARD = "#fefefe"
"""Stands for the colour of the card in a drawing, so that no line shines through a pale dot."""
SHADES = 16
"""Shades of the scores in the tree."""
PALE = 0.25
"""Opacity of the lowest score and of the first level."""


class WorkingTime(NamedTuple):
    """Wall time without the pauses in which no pod worked: a run may be gone on with days later."""

    starts: Array
    """[B] Unix times at which stretches of work begin."""
    ends: Array
    """[B] Unix times at which they end."""
    offsets: Array
    """[B] seconds of work before each."""

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
    """A run, with what several parts of its page need."""

    def __init__(self, history: History) -> None:
        self.history, self.trials = history, history.trials

    @cached_property
    def clock(self) -> WorkingTime:
        """When pods were at work."""
        return working_time([place for trial in self.trials for place in trial.places])

    @cached_property
    def luck(self) -> SelectionBias:
        """What luck alone would show."""
        return luck(self.trials)

    @cached_property
    def order(self) -> list[Trial]:
        """Trials that have ended, the best first."""
        return [trial for trial in ranked(self.trials) if trial.state == "ended"]


def unit_of(seconds: float) -> tuple[str, float]:
    """A unit of time for an axis of that length, and its seconds."""
    return ("seconds", 1.0) if seconds < 180 else ("minutes", 60.0) if seconds < 10_800 else ("hours", 3600.0)


def time_chart(logs: Sequence[Log], clock: WorkingTime, found: SelectionBias) -> Chart:
    """Scores over time, with the best so far of each tournament."""
    unit, length = unit_of(clock.total)
    series = [
        (clock.at(np.array([trial.places[-1].ended for trial in ended])) / length, ended)
        for log in logs
        if (ended := _in_order(log))
    ]
    return _scores(series, "time", f"Score over time ({unit} of work)", found)


def steps_chart(logs: Sequence[Log], found: SelectionBias) -> Chart:
    """The same over environment steps."""
    series = [(np.cumsum([float(trial.spent) for trial in ended]), ended) for log in logs if (ended := _in_order(log))]
    return _scores(series, "steps", "Score over environment steps", found, amounts=True)


def _in_order(log: Log) -> list[Trial]:
    """Trials of a tournament that have a score, as they ended."""
    scored = [trial for trial in log.trials if trial.places and not math.isnan(trial.score)]
    return sorted(scored, key=lambda trial: trial.places[-1].ended)


def _scores(
    series: Sequence[tuple[Array, list[Trial]]], name: str, title: str, found: SelectionBias, *, amounts: bool = False
) -> Chart:
    if not series:
        return Chart(title, "No trial has a score yet.", "")
    figure, axes = new_figure()
    thin = math.ceil(sum(len(ended) for _, ended in series) / MOST_DOTS)
    for x, ended in series:
        scores = np.array([trial.score for trial in ended])
        axes.plot(x[::thin], scores[::thin], "o", color=PALETTE["strategy"], markersize=4, markeredgewidth=0, alpha=0.7)
        axes.plot(x, np.maximum.accumulate(scores), drawstyle="steps-post", color=PALETTE["benchmark"], zorder=4)
    if not math.isnan(found.alike):
        axes.axhline(found.alike, color=PALETTE["equal-weight"], linewidth=1.0, linestyle=(0, (4, 2)))
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    if amounts:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_amount(value) if value > 0 else "0"))
    said = f"Each dot is a trial; the line is the best so far. The best of all is {found.best:.2f}."
    return Chart(title, said, to_svg(figure, name), ("strategy", "benchmark", "equal-weight"))


def tree_charts(trials: Sequence[Trial]) -> list[Chart]:
    """The tree of descent: an agent a row, levels along the x axis, from each copy a line to what it began with.

    Rows are ordered so that no line crosses a dot or a name: the copies made last stand next to their parent.
    """
    shown = chosen_for_tree(trials)
    whole: list[list[Branch]] = []  # every untrained agent with all that descends from it
    for branch in lineage(shown, highest_first=True):
        if branch.depth == 0:
            whole.append([])
        whole[-1].append(branch)
    groups: list[list[Branch]] = [[]]
    for tree in whole:
        for piece in (tree[i : i + ROWS] for i in range(0, len(tree), ROWS)):
            if len(groups[-1]) + len(piece) > ROWS:
                groups.append([])
            groups[-1].extend(piece)
    places = {(one.run, one.number): place for place, one in enumerate(reversed(ranked(shown)))}
    strength = {key: PALE + (1 - PALE) * place / max(len(places) - 1, 1) for key, place in places.items()}
    levels = max((trial.level for trial in shown), default=1)
    part = (lambda i: f", part {i + 1} of {len(groups)}") if len(groups) > 1 else lambda i: ""
    return [_tree(group, f"tree{i}", part(i), strength, levels) for i, group in enumerate(groups)]


def chosen_for_tree(trials: Sequence[Trial]) -> list[Trial]:
    """All trials, or of more than `TREE` the best and their ancestors, `BEST` in all."""
    if len(trials) <= TREE:
        return list(trials)
    known = {(trial.run, trial.number): trial for trial in trials}
    chosen: set[tuple[int, int]] = set()
    for best in ranked(trials):
        line: list[tuple[int, int]] = []
        ancestor: Trial | None = best
        while ancestor is not None:
            line.append((ancestor.run, ancestor.number))
            ancestor = None if ancestor.source is None else known[ancestor.run, ancestor.source]
        if len(chosen | set(line)) > BEST:
            break
        chosen |= set(line)
    return [trial for key, trial in known.items() if key in chosen]


def _tree(rows: Sequence[Branch], name: str, part: str, strength: dict[tuple[int, int], float], levels: int) -> Chart:
    figure, axes = _rows_figure(len(rows), 0.17)
    spots = {(one.run, one.number): (one.level, row) for row, branch in enumerate(rows) for one in branch.trials}
    lines: list[list[tuple[int, int]]] = []
    for row, branch in enumerate(rows):
        first, last = branch.trials[0], branch.trials[-1]
        lines.append([(first.level, row), (last.level, row)])
        if first.copied and (above := spots.get((first.run, first.source or 0))):
            lines.append([above, (above[0], row), (first.level, row)])
        axes.annotate(
            _name(branch), (last.level, row), xytext=(7, 0), textcoords="offset points", va="center", fontsize=WIDE_TEXT
        )
    axes.add_collection(LineCollection(lines, colors=PALETTE["muted"], linewidths=0.8, zorder=1))
    _dots(axes, [one for branch in rows for one in branch.trials], spots, strength)
    axes.set_xlim(0.85, levels + max(levels - 1, 1) * 0.22 + 0.15)
    axes.set_xticks(range(1, levels + 1), [f"level {level}" for level in range(1, levels + 1)] if levels < 9 else None)
    axes.set_yticks([])
    alt = f"{len(rows)} agents by the level of experience of their trials; the same tree stands below as text."
    svg = to_svg(figure, name).replace(CARD, "var(--card)")
    return Chart(f"{TREE_TITLE}{part}", alt, svg, wide=True)


def _name(branch: Branch) -> str:
    """An agent with its best score, or with what became of it."""
    scores = [trial.score for trial in branch.trials if not math.isnan(trial.score)]
    kept = ", kept" if any(trial.kept for trial in branch.trials) else ""
    return f"{branch.agent}  {max(scores):.3f}{kept}" if scores else f"{branch.agent}  {branch.trials[-1].state}"


def _dots(
    axes: Axes,
    trials: Sequence[Trial],
    spots: Mapping[tuple[int, int], tuple[int, int]],
    strength: Mapping[tuple[int, int], float],
) -> None:
    """Trials in the tree: the higher the score, the darker; a thick ring if kept, a cross if failed, empty if open."""

    def draw(chosen: Sequence[Trial], marker: str = "o", **style: Any) -> None:
        if chosen:
            x, y = zip(*(spots[one.run, one.number] for one in chosen), strict=True)
            axes.plot(x, y, marker, **{"markersize": 6, "markeredgewidth": 0.8, **style})

    blue = PALETTE["strategy"]
    scored = [trial for trial in trials if not math.isnan(trial.score)]
    draw([one for one in trials if one.state != "failed"], color=CARD, markeredgecolor=PALETTE["muted"])
    shades: dict[float, list[Trial]] = {}
    for one in scored:
        shades.setdefault(round(SHADES * strength[one.run, one.number]) / SHADES, []).append(one)
    for shade, own in shades.items():
        draw(own, color=blue, alpha=shade, markeredgewidth=0)
    draw([one for one in scored if not one.kept], markerfacecolor="none", markeredgecolor=blue)
    kept = [one for one in scored if one.kept]
    draw(kept, markerfacecolor="none", markeredgecolor=PALETTE["ink"], markeredgewidth=1.6)
    failed = [one for one in trials if one.state == "failed"]
    draw(failed, "x", color=PALETTE["danger"], markersize=5, markeredgewidth=1.4)


def pods_of(trials: Sequence[Trial]) -> dict[tuple[str, int], list[tuple[Placement, int]]]:
    """Node and process -> the slices it worked at, with their levels; in the order in which they began."""
    slices = sorted(
        ((place, trial.level) for trial in trials for place in trial.places), key=lambda one: one[0].started
    )
    pods: dict[tuple[str, int], list[tuple[Placement, int]]] = {}
    for place, level in slices:
        pods.setdefault((place.node, place.pid), []).append((place, level))
    return pods


def pod_chart(trials: Sequence[Trial], clock: WorkingTime) -> Chart:
    """Who was at work when: a pod a row, its slices coloured by level; what was lost is a cross in a row of its own."""
    pods, (unit, length) = pods_of(trials), unit_of(clock.total)
    title = f"Pods at work ({unit} of work)"
    if not pods:
        return Chart(title, "No slice of training has ended yet.", "")
    rows = list(pods.items())[:PODS]
    lost = [moment for trial in trials for moment in _lost_at(trial)]
    figure, axes = _rows_figure(len(rows) + bool(lost), 0.2, left=1.15)
    levels = max(trial.level for trial in trials)
    for level in range(1, levels + 1):
        spans = [
            (row, place.started, place.ended)
            for row, (_, slices) in enumerate(rows)
            for place, own in slices
            if own == level
        ]
        if spans:
            strength = PALE + (1 - PALE) * (level - 1) / max(levels - 1, 1)
            axes.add_patch(_blocks(np.array(spans), clock, length, strength))
    if lost:
        x = clock.at(np.array(lost)) / length
        axes.plot(x, np.full(len(x), len(rows)), "x", color=PALETTE["danger"], markersize=5, markeredgewidth=1.4)
    for pause in clock.offsets[1:] / length:
        axes.axvline(pause, color=PALETTE["muted"], linewidth=0.8, linestyle=(0, (3, 2)))
    names = [f"{node} {pid}" for (node, pid), _ in rows] + ["lost"] * bool(lost)
    axes.set_yticks(range(len(names)), [name if len(name) <= 20 else f"…{name[-19:]}" for name in names])
    axes.set_xlim(0, max(clock.total / length, 1e-9))
    more = f" {len(pods) - len(rows)} more pods are left out." if len(pods) > len(rows) else ""
    alt = f"Slices of training of {len(rows)} pods over {clock.total / length:.1f} {unit}; {len(lost)} were lost.{more}"
    return Chart(title, alt, to_svg(figure, "pods"), wide=True)


def _lost_at(trial: Trial) -> list[float]:
    """When pods were lost; where the log does not say, when the trial was begun again."""
    again = trial.places[-1].started if trial.places else math.nan
    moments = [again if math.isnan(loss.at) else loss.at for loss in trial.lost]
    return [moment for moment in moments if not math.isnan(moment)]


def _blocks(spans: Array, clock: WorkingTime, length: float, strength: float) -> PathPatch:
    """Bars of one level as a single path; spans [n, 3]: row, start, end."""
    row, left, right = spans[:, 0], *(clock.at(spans[:, i]) / length for i in (1, 2))
    right = np.maximum(right - 0.002 * clock.total / length, left + 0.001 * clock.total / length)  # a thin gap
    low, high = row - 0.36, row + 0.36
    corners = np.stack([left, low, right, low, right, high, left, high, left, low], axis=1).reshape(-1, 2)
    codes = np.tile([Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY], len(spans))
    blue = PALETTE["strategy"]
    return PathPatch(Outline(corners, codes), facecolor=(blue, strength), edgecolor=blue, linewidth=0.6)


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
    Picture("time", "Score over time", lambda run: time_chart(run.history.logs, run.clock, run.luck)),
    Picture("steps", "Score over environment steps", lambda run: steps_chart(run.history.logs, run.luck)),
    Picture("pods", "Pods at work", lambda run: pod_chart(run.trials, run.clock), wide=True),
)
"""The charts of a training, but for the tree, which may be several."""
