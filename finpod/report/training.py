"""The page about a run of `finpod train`: the look of a report, one file, no script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from finpod.features.panel import MOST_UNDEFINED
from finpod.files import refuse_existing, write_text
from finpod.periods import aside
from finpod.report import clip
from finpod.report.pages import Layout, Section, render_page, words
from finpod.report.training_charts import CHARTS, Training, chosen_for_tree
from finpod.tournament.history import History
from finpod.tournament.leaderboard import Trial, ranked
from finpod.tournament.ranking import SCORES, differing, inputs, near_baseline, of_agents, sentences, tree

SHOWN, TROUBLES = 20, 50
"""Ranks in the tables, and trials listed that did not go smoothly."""
OF_STOCKS = {"excess": "percent", "information_ratio": "ratio", "sharpe": "ratio", "max_drawdown": "percent"}
"""Metrics beside the score of agents that trade, as far as a log has them, and how they are written."""
OTHERS = 3
"""How many metrics are beside the score of any other agents."""
FEWEST = 4
"""Trials below which their best quarter says nothing."""
LEGEND = {"strategy": "a trial", "benchmark": "best so far", "equal-weight": "expected best by luck alone"}
"""Keys of `PALETTE` as the charts of scores use them."""


def write_training_report(history: History, path: str | Path, *, overwrite: bool = True) -> Path:
    """Write the page of `history` to `path`, whole or not at all, and return the path.

    Equal logs give equal bytes. A chart or a section that raises an error is left out, with one line in its place and a
    ReportWarning. Raises InputError if the file exists and `overwrite` is false, or cannot be written.
    """
    target = Path(path)
    refuse_existing(target, overwrite)
    write_text(target, render_training_report(history))
    return target


def render_training_report(history: History) -> str:
    """The page as HTML; warns of each part that was left out."""
    shared = {"history": history, "legend": LEGEND, "is_of_stocks": history.is_of_stocks}
    return render_page(LAYOUT, Training(history), f"training of {history.name}", **shared)


def _span(training: Training) -> dict[str, Any]:
    clock = training.clock
    first, last = (f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M}" for when in (clock.starts[0], clock.ends[-1]))
    return {"first": first, "last": last, "worked": clock.total > 0}


def _agents(trials: Sequence[Trial]) -> int:
    return len({(trial.run, trial.agent) for trial in trials})


def _summary(training: Training) -> dict[str, Any]:
    log, trials = training.history.logs[-1], training.trials
    return {
        "trials": len(trials),
        "agents": _agents(trials),
        "plan": {"mode": "", "rounds": 0, **log.plan},
        "task": {"windows": None, "title": "", "task": "of an unknown name", **log.header.get("task", {})},
        "still": sum(trial.state == "open" for trial in trials),
        "ends": sorted({log.end for log in training.history.logs if log.end}),
    }


def _notes(training: Training) -> dict[str, Any] | None:
    lines = [*training.history.notes, *(note for log in training.history.logs for note in log.notes)]
    return {"lines": lines} if lines else None


def _tiles(training: Training) -> dict[str, Any]:
    trials, clock = training.trials, training.clock
    spent, order = sum(trial.spent for trial in trials), ranked(trials)
    return {
        "trials": len(trials),
        "agents": _agents(trials),
        "untrained": _agents([trial for trial in trials if trial.parent is None]),
        "bias": training.luck,
        "top": next((trial for trial in order if not math.isnan(trial.score)), None),
        "kept": [trial.agent for trial in order if trial.kept],
        "spent": spent,
        "clock": clock,
        "num_pods": len(training.pods),
        "rate": spent / clock.total if clock.total else math.nan,
        "failed": sum(trial.state == "failed" for trial in trials),
        "lost": sum(len(trial.lost) for trial in trials),
    }


def _score(training: Training) -> dict[str, Any]:
    """The metric that agents are ranked by, and how many returns a year it counts."""
    history = training.history
    return {"score": SCORES.get(history.measure, history.measure) + aside(history.frequency)}


def _best(training: Training) -> dict[str, Any]:
    """The best trials, the metrics of their scores beside the measure, and the settings in which trials differ."""
    shown, measure = training.order[:SHOWN], training.history.measure
    known = dict.fromkeys(name for trial in shown for name in trial.metrics if name != measure)
    stocks = [(name, kind) for name, kind in OF_STOCKS.items() if name in known]
    names = differing(training.order)
    return {
        "shown": shown,
        "several": len({trial.run for trial in shown}) > 1,
        "metrics": stocks if measure in SCORES else [(name, "ratio") for name in [*known][:OTHERS]],
        "setting_names": [words(name) for name in names],
        "settings": [(trial.agent, [setting(trial, name) for name in names]) for trial in shown if names],
    }


def setting(trial: Trial, name: str) -> str:
    """A setting of a trial as text; of the features their number."""
    if name == "features":
        return inputs(trial)
    value = trial.settings.get(name)
    return "as asked" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _figures(training: Training) -> dict[str, Any] | None:
    rows = of_agents(training.history.figures)
    return {"rows": rows, "near": near_baseline(training.history.figures)} if rows else None


def _won(training: Training) -> dict[str, Any]:
    """Settings, and how often features were observed, in the best quarter of the trials and in all."""
    order = training.order
    quarter, names = order[: math.ceil(len(order) / 4)], differing(order) if len(order) >= FEWEST else []
    features = training.history.logs[-1].header.get("task", {}).get("features", []) if "features" in names else []
    used = [(name, observed(quarter, name), observed(order, name)) for name in map(str, features)]
    return {
        "head": [f"Best {len(quarter)}", f"All {len(order)}"],
        "settings": [(name, of_all(quarter, name), of_all(order, name)) for name in names if name != "features"],
        "used": sorted(used, key=lambda row: (-row[1], -row[2], row[0])),
        "many": len(order) >= FEWEST,
    }


def observed(trials: Sequence[Trial], feature: str) -> float:
    """Share of the trials that observe a feature."""
    chosen = [trial.settings.get("features") for trial in trials]
    return sum(features is None or feature in features for features in chosen) / len(trials)


def of_all(trials: Sequence[Trial], name: str) -> str:
    """Median, lowest and highest of a setting that is a fraction; how often each value of another."""
    values = [trial.settings.get(name) for trial in trials]
    if all(isinstance(value, float) for value in values):
        low, middle, high = np.quantile(np.array(values, dtype=float), (0, 0.5, 1))
        return f"{middle:.3g} ({low:.3g} to {high:.3g})"
    texts = [setting(trial, name) for trial in trials]
    counts = {text: texts.count(text) for text in sorted(set(texts), key=lambda text: (-texts.count(text), text))}
    return ", ".join(f"{text}: {count}" for text, count in counts.items())


def _lineage(training: Training) -> dict[str, Any]:
    drawn = chosen_for_tree(training.trials)
    return {"lines": tree(drawn), "trials": len(training.trials), "is_cut": len(drawn) < len(training.trials)}


def _pods(training: Training) -> dict[str, Any]:
    """Trials that failed or were begun again, with the reason, and the seconds of pauses."""
    troubled = [trial for trial in training.trials if trial.state == "failed" or trial.lost]
    causes = [trial.reason or (trial.lost[-1].reason if trial.lost else "") for trial in troubled]
    pause = float(training.clock.starts[1:].sum() - training.clock.ends[:-1].sum())
    rows = list(zip(troubled, causes, strict=True))
    return {"troubled": rows[:TROUBLES], "more": len(rows[TROUBLES:]), "pause": pause}


def provenance(history: History) -> list[tuple[str, list[tuple[str, str]]]]:
    """Plan, task and versions as label and text, as the last tournament had them; empty groups are left out."""
    header, plan = history.logs[-1].header, dict(history.logs[-1].plan)
    plan.pop("seed", None)
    data, undefined = (
        header.get("data_title", ""),
        sorted(header.get("undefined", {}).items(), key=lambda item: -item[1]),
    )
    shares = [(name, f"{share:.1%}" + ", dropped" * (share > MOST_UNDEFINED)) for name, share in undefined]
    groups = [
        ("Tournament", [("Seeds", ", ".join(str(log.seed) for log in history.logs)), *_flat(plan)]),
        ("Task", [*([("Data", str(data))] if data else []), *_flat(header.get("task", {}))]),
        ("Features by the share of training rows on which they are undefined", shares),
        ("Learner of the first agent", _flat(header.get("config", {}))),
        ("Versions", _flat(header.get("versions", {}))),
    ]
    return [(title, rows) for title, rows in groups if rows]


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested values as label and text; None is left out."""
    rows: list[tuple[str, str]] = []
    for key, value in sorted(values.items()):
        label = words(f"{prefix}{key}")
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{key}: ")
        elif isinstance(value, (list, tuple)):
            rows.append((label, ", ".join(map(str, value))))
        elif value is not None:
            rows.append((label, f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)))
    return rows


LAYOUT = Layout(
    "training",
    CHARTS,
    head=(Section("span", "Time", _span),),
    lead=(
        Section("summary", "Summary", _summary),
        Section("luck", "Luck", lambda training: {"lines": sentences(training.luck)}),
        Section("notes", "Notes", _notes),
        Section("tiles", "Key figures", _tiles),
    ),
    sections=(
        Section("scores", "Scores", _score),
        Section("clip", "The best agent", lambda training: clip.section(training.history)),
        Section("best", "Best trials", _best),
        Section("figures", "Training and validation", _figures),
        Section("won", "Winning settings", _won),
        Section("lineage", "Lineage", _lineage),
        Section("pods", "Pods", _pods),
        Section("provenance", "Provenance", lambda training: {"groups_of_run": provenance(training.history)}),
    ),
)
"""The parts of the page, in their order."""
