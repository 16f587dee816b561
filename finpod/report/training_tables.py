"""Tables of a training report: the best trials, and their settings beside those of all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from finpod.active import BOUND
from finpod.figures import percent, ratio
from finpod.report.provenance import Table
from finpod.tournament.history import History, Trial
from finpod.tournament.ranking import SCORES, differing, inputs

OF_STOCKS = (("excess", percent), ("information_ratio", ratio), ("sharpe", ratio), ("max_drawdown", percent))
"""Metrics beside the score of agents that trade, as far as a log has them, and how they are written."""
OTHERS = 3
"""How many metrics are beside the score of any other agents."""


def words(name: str) -> str:
    """Return a name as a label."""
    text = name.replace("_", " ")
    return text[:1].upper() + text[1:]


def best(order: Sequence[Trial], measure: str = BOUND) -> Table:
    """The best trials, with the figures of their scores beside that which they are ranked by."""
    several = len({trial.run for trial in order}) > 1
    names = dict.fromkeys(name for trial in order for name in trial.metrics if name != measure)
    of_stocks = [(name, show) for name, show in OF_STOCKS if name in names]
    figures = of_stocks if measure in SCORES else [(name, ratio) for name in [*names][:OTHERS]]
    head = ("Rank", *(["Seed"] if several else []), "Agent", "Parent", "Level", "Score", "Steps",
            *(words(name) for name, _ in figures), "Kept")  # fmt: skip
    return Table(
        head,
        [
            (
                str(rank),
                *([str(trial.run)] if several else []),
                trial.agent,
                trial.parent or "-",
                str(trial.level),
                ratio(trial.score, 3),
                f"{trial.steps:,}",
                *(show(trial.metrics.get(name)) for name, show in figures),
                "yes" if trial.kept else "",
            )
            for rank, trial in enumerate(order, start=1)
        ],
    )


def settings(order: Sequence[Trial], names: Sequence[str]) -> Table:
    """The settings of the best trials in which trials differ."""
    rows = [
        (str(rank), trial.agent, *(_setting(trial, name) for name in names))
        for rank, trial in enumerate(order, start=1)
    ]
    return Table(("Rank", "Agent", *map(words, names)), rows if names else [])


def won(order: Sequence[Trial]) -> Table:
    """Each setting that differs: in the best quarter of the trials, and in all."""
    quarter = order[: math.ceil(len(order) / 4)]
    names = [name for name in differing(order) if name != "features"] if len(order) >= 4 else []
    rows = [(words(name), _range(quarter, name), _range(order, name)) for name in names]
    return Table(("", f"Best {len(quarter)}", f"All {len(order)}"), rows)


def used(history: History, order: Sequence[Trial]) -> Table:
    """How often each feature was observed, in the best quarter of the trials and in all; those of the best first."""
    known = history.logs[-1].header.get("task", {}).get("features", [])
    quarter = order[: math.ceil(len(order) / 4)]
    if len(order) < 4 or "features" not in differing(order):
        return Table(("", "", ""), [])
    shares = {name: (_share(quarter, name), _share(order, name)) for name in map(str, known)}
    names = sorted(shares, key=lambda name: (-shares[name][0], -shares[name][1], name))
    rows = [(name.replace("_", " "), *(percent(share, 0) for share in shares[name])) for name in names]
    return Table(("", f"Best {len(quarter)}", f"All {len(order)}"), rows)


def _share(trials: Sequence[Trial], feature: str) -> float:
    own = [trial.settings.get("features") for trial in trials]
    return sum(features is None or feature in features for features in own) / len(trials)


def _range(trials: Sequence[Trial], name: str) -> str:
    """Median, lowest and highest of a setting that is a fraction; how often each value of another."""
    values = [trial.settings.get(name) for trial in trials]
    if all(isinstance(value, float) for value in values):
        low, middle, high = np.quantile(np.array(values, dtype=float), (0, 0.5, 1))
        return f"{middle:.3g} ({low:.3g} to {high:.3g})"
    texts = [_setting(trial, name) for trial in trials]
    counts = {text: texts.count(text) for text in sorted(set(texts), key=lambda text: (-texts.count(text), text))}
    return ", ".join(f"{text}: {count}" for text, count in counts.items())


def _setting(trial: Trial, name: str) -> str:
    if name == "features":
        return inputs(trial)
    value = trial.settings.get(name)
    return "as asked" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def trouble(troubled: Sequence[Trial]) -> Table:
    """Trials that failed, or were begun again."""
    rows = [
        (
            f"{trial.agent}, level {trial.level}",
            "failed" if trial.state == "failed" else "begun again" if trial.state == "ended" else "open",
            str(len(trial.lost)),
            trial.reason or (trial.lost[-1].reason if trial.lost else ""),
        )
        for trial in troubled
    ]
    return Table(("Agent", "What became of it", "Pods lost", "Why"), rows)
