"""Analysis of trials: `luck`, selection bias of the best score; `lineage`, the tree of agents; `differing` settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from finpod.active import BOUND
from finpod.significance import expected_best, overfitting
from finpod.tournament.leaderboard import Trial

SCORES = {
    "sharpe": "Sharpe ratio on the validation days, net of costs",
    BOUND: "information ratio over the baseline on the validation window, net of costs, less its standard error",
}
"""Metric by which agents are ranked -> description of the metric. Other metrics are described by their name."""
FEW = 4
"""Smallest number of trials for which the probability of overfitting is computed."""
ROOM = 2.5e8
"""Largest memory, in bytes, for computing the probability of overfitting. The computation cuts the returns into blocks.
Each way to choose half of the blocks needs about 50 bytes per trial."""


class SelectionBias(NamedTuple):
    """Expected effect of selecting the best trial. Undefined figures are NaN.

    `trials` is the number N of trials with a score. `best`, `mean` and `sd` (ddof 1) describe the N scores. `expected`
    is the expected best score of N trials without skill; NaN if no trial has returns. `alike` is the expected best
    score of N trials that all have the skill `mean`. `overfitting` is a probability: the best trial on one half of the
    periods is below the median of all trials on the other half.
    """

    trials: int
    best: float
    mean: float
    sd: float
    expected: float
    alike: float
    overfitting: float


def luck(trials: Sequence[Trial]) -> SelectionBias:
    """Return the selection bias of the best score."""
    scored = [trial for trial in trials if not math.isnan(trial.score)]
    scores = np.array([trial.score for trial in scored])
    if not len(scores):
        return SelectionBias(0, *(math.nan,) * 6)
    mean, sd = float(scores.mean()), float(scores.std(ddof=1)) if len(scores) > 1 else math.nan
    expected = math.nan if math.isnan(sd) else expected_best(len(scores), sd)
    # without skill, the mean score is 0; if scores are ratios minus standard errors, it is minus the mean error
    errors = [trial.metrics["information_ratio"] - trial.score for trial in scored if BOUND in trial.metrics]
    has_returns = any(len(trial.returns) for trial in scored)
    unskilled = expected - float(np.mean(errors or [0.0])) if has_returns else math.nan
    return SelectionBias(len(scores), float(scores.max()), mean, sd, unskilled, mean + expected, _overfitting(scored))


def _overfitting(trials: Sequence[Trial]) -> float:
    """Return the probability of overfitting, with as many blocks of returns as fit in `ROOM`; NaN if undefined."""
    lengths = {len(trial.returns) for trial in trials}
    if len(lengths) == 1 and len(trials) >= FEW:
        for splits in (16, 12, 8, 4):
            if max(lengths) >= 2 * splits and math.comb(splits, splits // 2) * len(trials) * 50 <= ROOM:
                return overfitting(np.stack([trial.returns for trial in trials], axis=1), splits=splits)
    return math.nan


class Branch(NamedTuple):
    """An agent in the lineage: number of its ancestors (`depth`), name, and its trials sorted by round."""

    depth: int
    agent: str
    trials: tuple[Trial, ...]


def differing(trials: Sequence[Trial]) -> list[str]:
    """Return the names of the settings in which trials differ, in the order of `Trial.settings`."""
    settings = [trial.settings for trial in trials]
    names = dict.fromkeys(name for one in settings for name in one)
    return [name for name in names if any(one.get(name) != settings[0].get(name) for one in settings)]


def lineage(trials: Sequence[Trial]) -> list[Branch]:
    """Return all agents, each after its parent. Agents whose parent is not among `trials` have depth 0.

    Copies of one agent are sorted by their first round, the latest first.
    """
    agents: dict[tuple[int, str | None], list[Trial]] = {}
    for trial in trials:
        agents.setdefault((trial.run, trial.agent), []).append(trial)
    children: dict[Any, list[Any]] = {}
    for key, own in agents.items():
        parent = (key[0], own[0].parent)
        children.setdefault(parent if parent in agents else None, []).append(key)
    branches, pending = list[Branch](), [(0, key) for key in reversed(children.get(None, []))]
    while pending:
        depth, key = pending.pop()
        branches.append(Branch(depth, key[1], tuple(sorted(agents[key], key=lambda trial: trial.level))))
        copies = sorted(children.get(key, []), key=lambda copy: -agents[copy][0].level)
        pending += [(depth + 1, copy) for copy in reversed(copies)]
    return branches
