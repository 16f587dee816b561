"""Trials of a run by descent and by settings, and how much of the best score is selection bias."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from finpod.active import BOUND, SMALL
from finpod.figures import percent, ratio, times
from finpod.significance import expected_best, overfitting
from finpod.tournament.leaderboard import Trial

SCORES = {
    "sharpe": "Sharpe ratio on the validation days, net of costs",
    BOUND: "information ratio over the baseline on the validation days, net of costs, less its standard error",
}
"""Metric that agents are ranked by -> how a reader is told; others go by their own name."""
FEW = 4
"""Trials below which a probability of overfitting says nothing."""
ROOM = 2.5e8
"""Bytes that the probability of overfitting may take: about 50 a combination and trial."""


class SelectionBias(NamedTuple):
    """What choosing the best of so many trials shows by itself; NaN where undefined."""

    trials: int
    """Trials with a score."""
    best: float
    """The winner's score."""
    mean: float
    """Of all scores."""
    sd: float
    """Standard deviation of all scores (ddof 1)."""
    expected: float
    """Expected best of so many without skill: draws of that deviation and of the mean that no skill has: 0, or 0 less the mean
    standard error. NaN for scores that are not of returns."""
    alike: float
    """Expected best of so many that are equally good: draws of the mean and deviation of all."""
    overfitting: float
    """Probability that the best on one half of the validation days lies below the median on the other half."""


class Branch(NamedTuple):
    """One agent in the tree of descent."""

    depth: int
    """Copies between it and an agent that began untrained."""
    agent: str
    """Its name."""
    trials: tuple[Trial, ...]
    """Its trials, by level."""


def differing(trials: Sequence[Trial]) -> list[str]:
    """Names of the settings that are not the same for all, in the order of their log."""
    names = dict.fromkeys(name for trial in trials for name in trial.settings)
    return [name for name in names if len({_hashable(trial.settings.get(name)) for trial in trials}) > 1]


def luck(trials: Sequence[Trial]) -> SelectionBias:
    """How the winner's score stands beside what luck alone would have chosen."""
    scored = [trial for trial in trials if not math.isnan(trial.score)]
    scores = np.array([trial.score for trial in scored])
    if not len(scores):
        return SelectionBias(0, *(math.nan,) * 6)
    sd = float(scores.std(ddof=1)) if len(scores) > 1 else math.nan
    expected = math.nan if math.isnan(sd) else expected_best(len(scores), sd)
    mean = float(scores.mean())
    has_returns = any(
        len(trial.returns) for trial in scored
    )  # then the score is a ratio, and 0 before its error is no skill
    errors = [trial.metrics["information_ratio"] - trial.score for trial in scored if BOUND in trial.metrics]
    unskilled = expected - float(np.mean(errors or [0.0])) if has_returns else math.nan
    return SelectionBias(len(scores), float(scores.max()), mean, sd, unskilled, mean + expected, _overfitting(scored))


def _overfitting(trials: Sequence[Trial]) -> float:
    """Over the returns of all, in as many blocks of days as there is room for; NaN where their lengths differ."""
    lengths = {len(trial.returns) for trial in trials}
    if len(lengths) != 1 or len(trials) < FEW:
        return math.nan
    for splits in (16, 12, 8, 4):
        if max(lengths) >= 2 * splits and math.comb(splits, splits // 2) * len(trials) * 50 <= ROOM:
            return overfitting(np.stack([trial.returns for trial in trials], axis=1), splits=splits)
    return math.nan


def sentences(bias: SelectionBias) -> list[str]:
    """Return sentences on the selection bias, for a reader; none where it is undefined."""
    lines = []
    if not math.isnan(bias.alike):
        lines.append(
            f"The best of {bias.trials} trials scored {bias.best:.3f}. Had all been equally good, luck alone would have put "
            f"the best at about {bias.alike:.3f} (scores of mean {bias.mean:.3f} and standard deviation {bias.sd:.3f})"
            + ("." if math.isnan(bias.expected) else f"; without any skill, at {bias.expected:.3f}.")
        )
    if not math.isnan(bias.overfitting):
        lines.append(
            "The best on one half of the validation days lay below the median on the other half in "
            f"{100 * bias.overfitting:.0f} % of the ways to halve them: the probability of overfitting."
        )
    return lines


def of_agents(figures: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of the table of `History.figures`, its headings as keys."""
    return [
        {
            "agent": line["agent"],
            "window": line["window"],
            "excess": percent(line["excess"]),
            "information ratio": ratio(line["information_ratio"]),
            "tracking error": percent(line["tracking_error"]),
            "effective names": ratio(line["effective_names"], 1),
            "rank correlation": ratio(line["rank_correlation"], 3),
            "turnover a year": times(line["turnover"]),
        }
        for line in figures
    ]


def near_baseline(figures: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a sentence that names those of `History.figures` that held almost the baseline on validation; none if none did."""
    near = [
        line["agent"] for line in figures if line["window"] == "validation" and (line["tracking_error"] or 0.0) < SMALL
    ]
    line = f"Almost the baseline on validation, with less than {SMALL:.0%} tracking error a year: {', '.join(near)}."
    return [line] if near else []


def lineage(trials: Sequence[Trial], *, highest_first: bool = False) -> list[Branch]:
    """Every agent after the one it was copied from; copies in the order in which they were made, or those of the highest
    level first, so that lines from parents to copies can be drawn without a crossing.

    An agent whose parent is not among the trials stands as one that began untrained.
    """
    agents: dict[tuple[int, str], list[Trial]] = {}
    for trial in trials:
        agents.setdefault((trial.run, trial.agent), []).append(trial)
    children: dict[tuple[int, str | None], list[str]] = {}
    for (run, agent), own in agents.items():
        parent = own[0].parent if (run, own[0].parent) in agents else None
        children.setdefault((run, parent), []).append(agent)
    if highest_first:
        for (run, parent), copies in children.items():
            if parent is not None:
                copies.sort(key=lambda agent, run=run: -agents[run, agent][0].level)  # type: ignore[misc]
    branches: list[Branch] = []
    for run in dict.fromkeys(trial.run for trial in trials):
        pending = [(0, agent) for agent in reversed(children.get((run, None), []))]
        while pending:
            depth, agent = pending.pop()
            branches.append(Branch(depth, agent, tuple(sorted(agents[run, agent], key=lambda trial: trial.level))))
            pending += [(depth + 1, child) for child in reversed(children.get((run, agent), []))]
    return branches


def tree(trials: Sequence[Trial]) -> list[str]:
    """Agents, each below the one it was copied from, with the scores of their levels."""
    lines = []
    for depth, agent, own in lineage(trials):
        levels = ", ".join(f"{trial.level}: {_score(trial)}" for trial in own)
        lines.append(f"{'  ' * depth}{agent}  {levels}")
    return lines


def _score(trial: Trial) -> str:
    if trial.state != "ended":
        return trial.state
    return ("n/a" if math.isnan(trial.score) else f"{trial.score:.3f}") + " kept" * trial.kept


def inputs(trial: Trial) -> str:
    """How many features an agent observes."""
    features = trial.settings.get("features")
    return "all" if features is None else str(len(features))


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
