"""The page that tells how a run of `finpod train` went: the look of a report, one file, no script."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from finpod.features.panel import MOST_UNDEFINED
from finpod.figures import ratio
from finpod.files import refuse_existing, write_text
from finpod.periods import aside
from finpod.report import clip
from finpod.report.pages import Draft, Section
from finpod.report.provenance import Table
from finpod.report.training_tables import best, settings, trouble, used, won, words
from finpod.tournament.history import History
from finpod.tournament.ranking import (
    SCORES,
    SelectionBias,
    differing,
    near_baseline,
    of_agents,
    ranked,
    sentences,
    tree,
)

if TYPE_CHECKING:
    from finpod.report.training_charts import Training, WorkingTime

SHOWN = 20
"""Ranks in the tables."""
TROUBLES = 50
"""Trials that did not go smoothly that are listed."""
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
    from finpod.report.svg import Chart, report_style
    from finpod.report.training_charts import CHARTS, TREE_TITLE, Training, tree_charts

    training, template, draft = Training(history), "_training.html.j2", Draft(f"training of {history.name}")
    with report_style():
        trees = draft.make(
            "chart",
            TREE_TITLE,
            lambda: tree_charts(training.trials),
            lambda line: [Chart(TREE_TITLE, line, "", wide=True)],
        )
    charts = draft.charts(CHARTS, training)
    drawn = [chart._replace(svg=Markup(chart.svg)) for chart in trees]
    shared = {"charts": charts, "legend": LEGEND, "trees": drawn}
    return draft.page(
        "training.html.j2",
        name=history.name,
        finished=history.finished,
        head={part.name: part.html for part in draft.sections(template, HEAD, training, **shared)},
        lead=draft.sections(template, LEAD, training, **shared),
        sections=draft.sections(template, SECTIONS, training, **shared),
    )


def _span(clock: WorkingTime) -> str:
    """From when to when pods were at work."""
    if not clock.total:
        return "no slice of training has ended yet"
    first, last = (f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M}" for when in (clock.starts[0], clock.ends[-1]))
    return f"from {first} to {last} UTC"


def _summary(history: History) -> str:
    """The run in one or two sentences."""
    trials, plan = history.trials, history.logs[-1].plan
    task = history.logs[-1].header.get("task", {})
    still = sum(trial.state == "open" for trial in trials)
    agents = len({(trial.run, trial.agent) for trial in trials})
    several = f" in {len(history.logs)} tournaments" if len(history.logs) > 1 else ""
    how = (
        "that never wait for each other"
        if plan.get("mode") == "async"
        else f"in {_count(plan.get('rounds', 0), 'round')}"
    )
    said = f"{_count(len(trials), 'trial')} of {_count(agents, 'agent')}{several}, {how}: {_learnt(task)}."
    ends = sorted({log.end for log in history.logs if log.end})
    if still:
        return f"{said} {_count(still, 'trial')} had not ended when the log was read."
    said += f" It ended after: {', '.join(ends)}." if ends else ""
    lacking = "There is no ensemble yet" if history.is_of_stocks else "It is not finished"
    return said if history.finished else f"{said} {lacking}."


def _learnt(task: Mapping[str, Any]) -> str:
    """What agents learnt, and what they are ranked on."""
    if "windows" not in task:
        name = task.get("title", task.get("task", "of an unknown name"))
        return f"trained on the task {name}, ranked by its score"
    (first, last), (begin, end) = task["windows"]["train"], task["windows"]["validation"]
    return f"trained on {first} to {last}, ranked on {begin} to {end}"


def tiles(history: History, clock: WorkingTime, found: SelectionBias) -> list[tuple[str, str, str]]:
    """The figures at the head: label, figure, what stands beside it."""
    from finpod.report.svg import short_amount
    from finpod.report.training_charts import pods_of

    trials = history.trials
    agents, spent = {(trial.run, trial.agent) for trial in trials}, sum(trial.spent for trial in trials)
    kept = [trial for trial in ranked(trials) if trial.kept]
    best = next((trial for trial in ranked(trials) if not math.isnan(trial.score)), None)
    failed, lost = sum(trial.state == "failed" for trial in trials), sum(len(trial.lost) for trial in trials)
    pods, stretches = len(pods_of(trials)), len(clock.starts)
    fresh = len({(trial.run, trial.agent) for trial in trials if trial.parent is None})
    rate = spent / clock.total if clock.total else math.nan
    return [
        ("Trials", f"{len(trials):,}", f"of {_count(len(agents), 'agent')}, {fresh:,} begun untrained"),
        ("Best score", ratio(found.best), "none yet" if best is None else f"agent {best.agent}, level {best.level}"),
        ("By luck alone", ratio(found.alike), f"expected best of {found.trials:,} equally good"),
        (
            "Ensemble" if history.is_of_stocks else "Kept",
            f"{len(kept)}" if kept else "n/a",
            ", ".join(trial.agent for trial in kept[:6]) + ("…" if len(kept) > 6 else "")
            if kept
            else "not written yet",
        ),
        ("Environment steps", short_amount(spent) if spent else "0", "of all agents together"),
        ("Time at work", duration(clock.total), f"{_count(pods, 'pod')}" + f", {stretches} sittings" * (stretches > 1)),
        ("Throughput", "n/a" if math.isnan(rate) else short_amount(rate), "environment steps a second"),
        ("Failed", f"{failed:,}", f"{_count(lost, 'pod')} lost and begun again"),
    ]


def provenance(history: History) -> list[tuple[str, list[tuple[str, str]]]]:
    """Plan, task and versions as label and text, as the last tournament had them."""
    header = history.logs[-1].header
    task, data = dict(header.get("task", {})), header.get("data_title", "")
    seeds = ("Seeds", ", ".join(str(log.seed) for log in history.logs))
    own = [("Data", str(data))] if data else []
    groups = [
        (
            "Tournament",
            [seeds, *_pairs({name: value for name, value in history.logs[-1].plan.items() if name != "seed"})],
        ),
        ("Task", [*own, *_pairs(task)]),
        ("Features by the share of training rows on which they are undefined", _shares(header.get("undefined", {}))),
        ("Learner of the first agent", _pairs(header.get("config", {}))),
        ("Versions", _pairs(header.get("versions", {}))),
    ]
    return [(title, rows) for title, rows in groups if rows]


def _shares(undefined: Mapping[str, float]) -> list[tuple[str, str]]:
    """Features with the share of training rows without a value, the largest first, and whether they were dropped."""
    falling = sorted(undefined.items(), key=lambda item: -item[1])
    return [(name, f"{share:.1%}" + ", dropped" * (share > MOST_UNDEFINED)) for name, share in falling]


def _pairs(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested values as label and text; what was not asked for is left out."""
    rows: list[tuple[str, str]] = []
    for key, value in sorted(values.items()):
        label = words(f"{prefix}{key}")
        if isinstance(value, Mapping):
            rows += _pairs(value, f"{prefix}{key}: ")
        elif isinstance(value, (list, tuple)):
            rows.append((label, ", ".join(map(str, value))))
        elif value is not None:
            rows.append((label, f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)))
    return rows


def duration(seconds: float) -> str:
    """Time in a form that is easily read: 42 s, 3 min 20 s, 5 h 12 min, 3 d 4 h."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    for unit, length, below, part in (("min", 60, "s", 1), ("h", 3600, "min", 60), ("d", 86_400, "h", 3600)):
        if seconds < 60 * length or unit == "d":
            whole = int(seconds // length)
            return f"{whole} {unit} {int(seconds - whole * length) // part} {below}"
    raise AssertionError("the last unit takes everything")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _score(history: History) -> str:
    """The metric that agents are ranked by, and how many returns a year it counts."""
    return SCORES.get(history.measure, history.measure) + aside(history.frequency)


def _notes(training: Training) -> dict[str, Any] | None:
    lines = [*training.history.notes, *(note for log in training.history.logs for note in log.notes)]
    return {"notes": lines} if lines else None


def _best(training: Training) -> dict[str, Any]:
    shown = training.order[:SHOWN]
    measure = training.history.measure
    return {"best": best(shown, measure), "settings": settings(shown, differing(training.order))}


def _figures(training: Training) -> dict[str, Any] | None:
    rows = of_agents(training.history.figures)
    if not rows:
        return None
    table = Table(tuple(map(words, rows[0])), [tuple(row.values()) for row in rows])
    return {"figures": table, "near": near_baseline(training.history.figures)}


def _won(training: Training) -> dict[str, Any]:
    order = training.order
    return {"won": won(order), "used": used(training.history, order), "many": len(order) >= 4}


def _lineage(training: Training) -> dict[str, Any]:
    from finpod.report.training_charts import chosen_for_tree

    trials, drawn = training.trials, chosen_for_tree(training.trials)
    left_out = f"Of {len(trials):,} trials the best and their ancestors are drawn." if len(drawn) < len(trials) else ""
    kept = "member of the ensemble" if training.history.is_of_stocks else "kept"
    return {"tree": "\n".join(tree(drawn)), "left_out": left_out, "kept": kept}


def _pods(training: Training) -> dict[str, Any]:
    troubled = [trial for trial in training.trials if trial.state == "failed" or trial.lost]
    pause = float(training.clock.starts[1:].sum() - training.clock.ends[:-1].sum())
    return {
        "troubled": trouble(troubled[:TROUBLES]),
        "more_trouble": max(len(troubled) - TROUBLES, 0),
        "pauses": duration(pause) if pause else "",
    }


HEAD = (Section("span", "Time", lambda training: {"sub": _span(training.clock)}),)
LEAD = (
    Section("summary", "Summary", lambda training: {"summary": _summary(training.history)}),
    Section("luck", "Luck", lambda training: {"luck": sentences(training.luck)}),
    Section("notes", "Notes", _notes),
    Section("tiles", "Key figures", lambda it: {"tiles": tiles(it.history, it.clock, it.luck)}),
)
SECTIONS = (
    Section("scores", "Scores", lambda it: {"score": _score(it.history)}),
    Section("clip", "The best agent", lambda training: clip.section(training)),
    Section("best", "Best trials", _best),
    Section("figures", "Training and validation", _figures),
    Section("won", "Settings that won", _won),
    Section("lineage", "Lineage", _lineage),
    Section("pods", "Pods", _pods),
    Section("provenance", "Provenance", lambda training: {"groups": provenance(training.history)}),
)
"""The parts of the page, in their order."""
