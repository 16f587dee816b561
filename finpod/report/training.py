"""The HTML page about a run of `finpod train`, in the style of a report. `training_charts` draws the charts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from finpod.active import SMALL, near_baseline
from finpod.features.panel import MOST_UNDEFINED
from finpod.periods import describe
from finpod.report.pages import Layout, Section, render_page, words
from finpod.report.provenance import flat
from finpod.report.training_charts import CHARTS, Training
from finpod.tournament.analysis import FEW, SCORES, differing, lineage
from finpod.tournament.history import History
from finpod.tournament.leaderboard import Trial

SHOWN = 20
"""Largest number of rows in the tables of trials."""
OF_STOCKS = {"excess": "percent", "information_ratio": "ratio", "sharpe": "ratio", "max_drawdown": "percent"}
"""Metric shown next to the score of trading agents -> format. A log may lack some of these metrics."""


def render_training_report(history: History) -> str:
    """Return the page as HTML. Issues a ReportWarning for each part that failed."""
    run, header = Training(history), history.logs[-1].header
    shared = {"history": history, "run": run, "plan": header["plan"], "task": header.get("task", {})}
    return render_page(LAYOUT, run, f"training of {history.name}", is_of_stocks=history.is_of_stocks, **shared)


def _score(run: Training) -> dict[str, Any]:
    frequency = run.history.frequency
    bars = f" ({describe(**frequency)})" if frequency else ""
    return {"score": SCORES.get(run.history.measure, run.history.measure) + bars}


def _best(run: Training) -> dict[str, Any]:
    """Return a dict with the best trials, the metrics beside their scores, and the settings in which trials differ."""
    shown, measure = run.order[:SHOWN], run.history.measure
    known = dict.fromkeys(name for trial in shown for name in trial.metrics if name != measure)
    stocks = [(name, kind) for name, kind in OF_STOCKS.items() if name in known]
    names = differing(run.order)
    return {
        "shown": shown,
        "several": len({trial.run for trial in shown}) > 1,
        "metrics": stocks if measure in SCORES else [(name, "ratio") for name in [*known][:3]],
        "setting_names": [words(name) for name in names],
        "settings": [(trial.agent, [_setting(trial, name) for name in names]) for trial in shown if names],
    }


def _figures(run: Training) -> dict[str, Any] | None:
    rows = run.history.figures
    return {"rows": rows, "near": near_baseline(rows), "small": SMALL} if rows else None


def _won(run: Training) -> dict[str, Any]:
    """Return a dict that compares the best 25 % of the trials, by score, with all trials.

    The dict has the settings of both groups. For each feature, it has the fraction of each group that observes it.
    """
    order = run.order
    both = (order[: math.ceil(len(order) / 4)], order)
    names = differing(order) if len(order) >= FEW else []
    task = run.history.logs[-1].header.get("task", {})
    features = map(str, task.get("features", []) if "features" in names else [])
    used = [(name, *(_observed(trials, name) for trials in both)) for name in features]
    return {
        "head": [f"Best {len(both[0])}", f"All {len(order)}"],
        "settings": [(name, [_range(trials, name) for trials in both]) for name in names if name != "features"],
        "used": sorted(used, key=lambda row: (-row[1], -row[2], row[0])),
        "many": len(order) >= FEW,
    }


def _setting(trial: Trial, name: str) -> str:
    """Return a setting of a trial as text; for features, their number."""
    value = trial.settings.get(name)
    if name == "features":
        return "all" if value is None else str(len(value))
    return "default" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _observed(trials: Sequence[Trial], feature: str) -> float:
    """Return the fraction of the trials that observe a feature."""
    chosen = [trial.settings.get("features") for trial in trials]
    return sum(features is None or feature in features for features in chosen) / len(trials)


def _range(trials: Sequence[Trial], name: str) -> str:
    """Return the values of a setting as text: median, minimum, maximum of floats, otherwise the count of each value."""
    values = [trial.settings.get(name) for trial in trials]
    if all(isinstance(value, float) for value in values):
        low, middle, high = np.quantile(np.array(values, dtype=float), (0, 0.5, 1))
        return f"{middle:.3g} ({low:.3g} to {high:.3g})"
    counts = Counter(sorted(_setting(trial, name) for trial in trials))
    return ", ".join(f"{text}: {number}" for text, number in counts.most_common())


def provenance(history: History) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return (title, list of (label, text)) on plan, task, features, learner, versions; empty groups are left out."""
    header, plan = history.logs[-1].header, dict(history.logs[-1].header["plan"])
    plan.pop("seed", None)
    undefined = sorted(header.get("undefined", {}).items(), key=lambda item: -item[1])
    groups = [
        ("Tournament", [("Seeds", ", ".join(str(log.board.run) for log in history.logs)), *flat(plan)]),
        ("Task", [*flat({"data": header.get("data_title", "")}), *flat(header.get("task", {}))]),
        (
            "Features, and the fraction of the members' training bars on which they are undefined",
            [(name, f"{share:.1%}" + ", dropped" * (share > MOST_UNDEFINED)) for name, share in undefined],
        ),
        ("Learner of the first agent", flat(header.get("config", {}))),
        ("Versions", flat(header.get("versions", {}))),
    ]
    return [(title, rows) for title, rows in groups if rows]


LAYOUT = Layout(
    "training",
    CHARTS,
    head=(Section("span", "Time"),),
    lead=(
        Section("summary", "Summary"),
        Section("luck", "Luck"),
        Section("notes", "Notes", lambda run: {"lines": run.history.notes}),
        Section("tiles", "Key figures"),
    ),
    sections=(
        Section("scores", "Scores", _score),
        Section("best", "Best trials", _best),
        Section("figures", "Training and validation", _figures),
        Section("won", "Winning settings", _won),
        Section("lineage", "Lineage", lambda run: {"branches": lineage(run.trials)}),
        Section("pods", "Pods"),
        Section("provenance", "Provenance", lambda run: {"groups_of_run": provenance(run.history)}),
    ),
)
"""The parts of the page, in order."""
