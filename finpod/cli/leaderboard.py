"""`finpod leaderboard`: the trials of a run, finished or not, ranked on validation."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from finpod.cli import console, options, outputs
from finpod.files import UNFINISHED, require_free_file

if TYPE_CHECKING:
    from finpod.tournament.analysis import SelectionBias
    from finpod.tournament.history import History
    from finpod.tournament.leaderboard import Trial

SHOWN = ("excess", "information_ratio", "sharpe")
"""Metrics of stock agents that are printed next to the score."""
TOP = 20
"""Default number of trials to print."""

ENTRY = ("run", "agent", "parent", "source", "level", "score", "steps", "state", "kept", "reason", "metrics",
         "settings")  # fmt: skip
"""Fields of a trial that --json prints."""
WIDTH = 110
"""Longest line of text, in characters."""


def leaderboard(
    run: Annotated[str, Argument(metavar="NAME", help="A run: its folder, its name in strategies/, or its --storage.")],
    top: Annotated[int, Option(min=1, help="Number of trials to print.")] = TOP,
    report: Annotated[bool, Option("--report", help="Write a page, reports/NAME-training.html.")] = False,
    verify: Annotated[bool, Option("--verify", help="Recompute every random draw; fail if the log differs.")] = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Show the trials of a finished or unfinished run of finpod train, ranked by score, and their selection bias."""
    from finpod.tournament.history import read_history
    from finpod.tournament.verify import verify_log

    with console.progress("reading"):
        history = read_history(run)
        if report:
            require_free_file(outputs.training_page(history.name), overwrite)
        for log in history.logs if verify else ():
            verify_log(log.where)
        written = outputs.write_training_page(history, overwrite=overwrite) if report else []
    if as_json:
        console.show_json(facts(history))
    else:
        _show(history, top)
        print("\nThe log was verified: every random draw follows from the lines before it.\n" if verify else "", end="")
        print(end="\n" * len(written))
    console.show_paths(written, as_json)


def facts(history: History) -> dict[str, Any]:
    """Return the content of --json: the leaderboard, the state of the run and its statistics."""
    from finpod.tournament.analysis import luck
    from finpod.tournament.leaderboard import ranked

    trials = history.trials
    return {
        "name": history.name,
        "where": history.where,
        "finished": history.finished,
        **{name: history.task[name] for name in ("title",) if name in history.task},
        **history.frequency,
        "trials": len(trials),
        "agents": len({(trial.run, trial.agent) for trial in trials}),
        "board": [
            {"rank": rank, "trial": trial.number, "lost": [loss.reason for loss in trial.lost]}
            | {name: getattr(trial, name) for name in ENTRY}
            for rank, trial in enumerate(ranked(trials), start=1)
        ],
        "open": [{"run": one.run, "trial": one.number, "agent": one.agent} for one in trials if one.state == "open"],
        "luck": luck(trials)._asdict(),
        "ended": {str(log.board.run): log.end or None for log in history.logs},
        "notes": history.notes,
    }


def _show(history: History, top: int) -> None:
    from finpod.periods import yearly_note
    from finpod.tournament.analysis import SCORES, luck

    print(_summary(history))
    print(f"{history.task['title']}\n" if "title" in history.task else "")
    show_trials(history, top)
    if any(trial.state == "ended" for trial in history.trials):
        print(f"\nscore: {SCORES.get(history.measure, history.measure)}")
    if history.frequency:
        print(yearly_note(**history.frequency))
    for note in [*_luck(luck(history.trials)), *history.notes]:
        print(f"\n{textwrap.fill(note, WIDTH)}")


def _luck(bias: SelectionBias) -> Iterator[str]:
    """Yield sentences on the selection bias; no sentence if the bias is undefined."""
    if not math.isnan(bias.alike):
        yield (
            f"The best of {bias.trials} trials scored {bias.best:.3f}. If all agents were equally good, the best of as "
            f"many trials would be expected to score {bias.alike:.3f}."
        )
    if not math.isnan(bias.overfitting):
        yield (
            f"In {bias.overfitting:.0%} of splits of the validation days into halves, the best trial of one half was "
            "below the median in the other half."
        )


def show_trials(history: History, top: int, command: str = "") -> None:
    """Print the best `top` trials, then failed or restarted ones. If more trials have scores, print how to show all."""
    from finpod.tournament.leaderboard import ranked

    scored = [trial for trial in ranked(history.trials) if trial.state == "ended"]
    console.show_table(rows(history, scored[:top], scored))
    if len(scored) > top:
        print(f"and {len(scored) - top} more; {command}--top {len(scored)} shows all")
    troubled = [trial for trial in history.trials if trial.state == "failed" or trial.lost]
    if troubled:
        print("\ntrials that failed, or restarted after a pod was lost")
        console.show_table(
            [
                {
                    "trial": trial.number,
                    "agent": trial.agent,
                    "round": trial.level,
                    "state": trial.state,
                    "pods lost": len(trial.lost),
                    "why": trial.reason or next((loss.reason for loss in reversed(trial.lost)), ""),
                }
                for trial in troubled
            ]
        )


def _summary(history: History) -> str:
    """Return a line with the size and state of a run. A run is finished when its best agents are saved."""
    from finpod.figures import plural

    logs, states = history.logs, Counter(trial.state for trial in history.trials)
    agents = len({(trial.run, trial.agent) for trial in history.trials})
    parts = [f"{plural(len(history.trials), 'trial')} of {plural(agents, 'agent')}"]
    parts += [f"{len(logs)} seeds"] if len(logs) > 1 else []
    parts += [f"{states[key]} {text}" for key, text in (("failed", "failed"), ("open", "not ended")) if states[key]]
    ends = ", ".join(sorted({log.end for log in logs}))
    if history.finished:
        state = f"finished, {ends}"
    elif all(log.end for log in logs):
        lacks = "no ensemble yet" if history.is_of_stocks else "not finished yet"
        state = f"{ends}, {lacks}; finpod train --resume {shlex.quote(history.where.removesuffix(UNFINISHED))}"
    else:
        state = "unfinished"
    return f"{history.name}: {', '.join(parts)}; {state}"


def rows(history: History, shown: Sequence[Trial], among: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return the trials `shown` as rows of a table, with the settings that differ between the trials `among`."""
    from finpod.figures import ratio
    from finpod.tournament.analysis import differing

    several, names = len(history.logs) > 1, differing(among)
    return [
        {
            "rank": rank,
            **({"seed": str(trial.run)} if several else {}),
            "agent": trial.agent,
            "parent": trial.parent or "-",
            "round": trial.level,
            "score": trial.score,
            **{name.replace("_", " "): ratio(trial.metrics[name], 3) for name in SHOWN if name in trial.metrics},
            "steps": trial.steps,
            **({"kept": "yes" if trial.kept else ""} if history.finished else {}),
            **{
                name: "default" if trial.settings.get(name) is None else trial.settings[name]
                for name in names
                if name != "features"
            },
            **({"inputs": str(len(trial.settings.get("features") or ()) or "all")} if "features" in names else {}),
        }
        for rank, trial in enumerate(shown, start=1)
    ]
