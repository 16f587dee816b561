"""Lineage of the agents of a run, settings in which they differ, and the selection bias of the best score."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from finpod.active import BOUND, SMALL
from finpod.significance import expected_best, overfitting
from finpod.tournament.leaderboard import Trial

SCORES = {
    "sharpe": "Sharpe ratio on the validation days, net of costs",
    BOUND: "information ratio over the baseline on the validation days, net of costs, less its standard error",
}
"""Metric by which agents are ranked -> its description; others are called by their name."""
FEW = 4
"""Smallest number of trials for a probability of overfitting."""
ROOM = 2.5e8
"""Largest number of bytes for the probability of overfitting, which takes about 50 a combination and trial."""


class SelectionBias(NamedTuple):
    """Expected effect of selecting the best trial; NaN where undefined.

    `best`, `mean` and `sd` (ddof 1) are those of the scores of all `trials` that have one. `expected` is the expected best
    score of so many trials without skill (NaN for scores that are not of returns), `alike` that of so many equally good ones.
    `overfitting` is the probability that the best on one half of the validation days is below the median on the other half.
    """

    trials: int
    best: float
    mean: float
    sd: float
    expected: float
    alike: float
    overfitting: float


class Branch(NamedTuple):
    """One agent in the lineage: the copies between it and an untrained agent, its name, and its trials by level."""

    depth: int
    agent: str
    trials: tuple[Trial, ...]


def differing(trials: Sequence[Trial]) -> list[str]:
    """Return the names of settings in which trials differ, in the order of the log."""
    settings = [trial.settings for trial in trials]
    names = dict.fromkeys(name for one in settings for name in one)
    return [name for name in names if any(one.get(name) != settings[0].get(name) for one in settings)]


def luck(trials: Sequence[Trial]) -> SelectionBias:
    """Return the selection bias of the best score."""
    scored = [trial for trial in trials if not math.isnan(trial.score)]
    scores = np.array([trial.score for trial in scored])
    if not len(scores):
        return SelectionBias(0, *(math.nan,) * 6)
    mean, sd = float(scores.mean()), float(scores.std(ddof=1)) if len(scores) > 1 else math.nan
    expected = math.nan if math.isnan(sd) else expected_best(len(scores), sd)
    # without skill, the mean of a ratio of returns is 0, less the mean standard error if that is part of the score
    errors = [trial.metrics["information_ratio"] - trial.score for trial in scored if BOUND in trial.metrics]
    has_returns = any(len(trial.returns) for trial in scored)
    unskilled = expected - float(np.mean(errors or [0.0])) if has_returns else math.nan
    return SelectionBias(len(scores), float(scores.max()), mean, sd, unskilled, mean + expected, _overfitting(scored))


def _overfitting(trials: Sequence[Trial]) -> float:
    """The probability of overfitting, with as many blocks of days as `ROOM` allows; NaN if the returns differ in length."""
    lengths = {len(trial.returns) for trial in trials}
    if len(lengths) == 1 and len(trials) >= FEW:
        for splits in (16, 12, 8, 4):
            if max(lengths) >= 2 * splits and math.comb(splits, splits // 2) * len(trials) * 50 <= ROOM:
                return overfitting(np.stack([trial.returns for trial in trials], axis=1), splits=splits)
    return math.nan


def near_baseline(figures: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the agents of `History.figures` that almost held the baseline on validation."""
    lines = (line for line in figures if line["window"] == "validation")
    return [line["agent"] for line in lines if (line["tracking_error"] or 0.0) < SMALL]


def lineage(trials: Sequence[Trial], *, highest_first: bool = False) -> list[Branch]:
    """Return every agent after the one it was copied from, or as untrained if that is not among the trials.

    Copies are in order of creation, or with `highest_first` by level, so that lines from parents to copies do not cross.
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
