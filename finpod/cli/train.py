"""`finpod train`: starts or resumes a training, in this process or on Ray."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from finpod.cli import console, options, outputs, settings
from finpod.cli.leaderboard import TOP, show_trials
from finpod.cli.settings import PODS, needed, refuse_others, spelled
from finpod.environments import STOCKS, TASKS
from finpod.errors import InputError, require_choice
from finpod.files import ENSEMBLE, TRAINED, require_free

if TYPE_CHECKING:
    from finpod.ensemble import Ensemble
    from finpod.figures import Kind
    from finpod.tournament.run_folder import Recorded
    from finpod.tournament.trained_run import TrainedRun

FIGURES: dict[str, Kind] = {
    "excess": "percent",
    "information_ratio": "ratio",
    "tracking_error": "percent",
    "effective_names": "ratio",
    "rank_correlation": "ratio",
    "turnover": "times",
}
"""Figures printed for an agent in one window -> their formats."""


@options.with_options(settings.ALL, first=settings.FIRST)
def train(
    context: typer.Context,
    task: Annotated[str, Argument(help=f"Task: {', '.join(TASKS)}, or FILE.py:CLASS.")] = STOCKS,
    check: Annotated[bool, Option("--check", help="Check options, data and devices, and train nothing.")] = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    **values: Any,
) -> None:
    """Train agents and save the best. Stock agents with the best validation scores form an ensemble for `finpod backtest`."""
    import finpod
    from finpod.cli.live import EventFiles, watched

    values |= {"task": task, "overwrite": overwrite, "as_json": as_json}
    typed = {name for name in values if str(context.get_parameter_source(name)).endswith("COMMANDLINE")}
    idle = [name for name in PODS if name in typed and name not in ("ray", "address")]
    if idle and not (values["ray"] or values["address"] is not None):
        raise InputError(f"{spelled(idle[0])} needs --ray; add --ray, or omit {spelled(idle[0])}")
    values, recorded, resume = _settled(values, typed)
    out, events = Path(values["out"]), values["tensorboard"]
    require_free(out, overwrite, ENSEMBLE if values["task"] == STOCKS else TRAINED)
    outputs.plain_word(out.resolve().name)
    if events and events.absolute().is_relative_to(out.absolute()):
        raise InputError(f"--tensorboard {events} is in --out {out}, which is for agents; give a folder outside it")
    given = settings.arguments(values, recorded) | {"resume": resume}
    if not given["pods"].gpus:
        console.say_device(values["device"])
    given["metadata"] = {"tensorboard": str(events.absolute())} if events else {}
    if values["task"] == STOCKS:
        given["market"] = options.load(values, **values.get("load", {}))
    # clusters stop a process by SIGTERM; treat it like Ctrl-C, so that the run can be resumed
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if check:
        if events:
            EventFiles(events)  # raises if event files cannot be written
        with console.progress("features") as progress:
            finpod.train(values["task"], **given, progress=progress, check=True)
        facts = {"task": values["task"], "trials": given["plan"].most_trials * values["seeds"], "output": str(out)}
        console.show(facts | {"check": "passed; nothing was trained"}, as_json)
        return
    with watched(events, out, values["storage"]) as (progress, watch):
        trained = finpod.train(values["task"], **given, progress=progress, watch=watch)
    _show(trained, values, out)


def _settled(values: dict[str, Any], typed: set[str]) -> tuple[dict[str, Any], Recorded | None, bool]:
    """Return (options, recorded settings, True if a run is resumed).

    The recorded settings are in the log of the run that is resumed or forked. Options that were not typed have the
    values in this log. A new run has no log, so its recorded settings are None.
    """
    from finpod.tournament.run_folder import driven, may_begin, recorded_of

    resume, fork, out, storage = (values[name] for name in ("resume", "fork", "out", "storage"))
    recorded = None
    if resume and fork:
        raise InputError("--resume continues a run, --fork starts from a copy of a run; give only one of them")
    if ".py" not in values["task"]:
        require_choice("task", values["task"], TASKS, ", or give FILE.py:CLASS")
    whole = all(values[name] is not None for name in needed(values))
    again = bool(resume) and not (whole and may_begin(str(resume), out, storage))
    if again or fork:
        where, recorded = recorded_of(str(resume or fork), storage if again else None)
        if recorded is not None:
            values |= settings.recorded_options(recorded, typed, fork=bool(fork))
        elif not whole:
            raise InputError(f"{where} has an empty log; give {spelled(*needed(values))} as well")
        if resume and not storage:
            values |= driven(resume, recorded.storage if recorded else None, out)
    refuse_others(values["task"], typed)
    if lacking := [name for name in needed(values) if values[name] is None]:
        raise InputError(f"{spelled(lacking[0])} is missing; a new run needs {spelled(*lacking)}")
    if resume and not again:
        console.remark(f"there is no unfinished run {resume}; starting a new one")
    return values, recorded, again


def _show(trained: Ensemble | TrainedRun, values: Mapping[str, Any], out: Path) -> None:
    """Write the report of the training and print its figures."""
    from finpod.active import SMALL, near_baseline
    from finpod.figures import figure
    from finpod.tournament.history import read_history
    from finpod.tournament.trained_run import TrainedRun

    history = read_history(out)
    written = outputs.write_training_page(history, saved=out, overwrite=True)
    if values["as_json"]:
        console.show_json({**trained.provenance, "path": str(out)})
        console.show_paths(written, as_json=True)
        return
    provenance = trained.provenance
    if isinstance(trained, TrainedRun):
        members, score = provenance["members"], provenance["score"]
        print(f"{trained.name}: the best {len(members)} of {trained.trials} trials")
        print(provenance.get("title", provenance["task"]))
        best = "not finite" if members[0]["score"] is None else f"{members[0]['score']:.4g}"
        print(f"{score}: {best} by agent {members[0]['agent']}")
    else:
        lines = provenance["figures"]
        anchor = provenance.get("trading", {}).get("anchor", "equal-weight")
        print(f"{trained.name}: chosen among {trained.trials} trials on {values['validation']}")
        print(f"score: {provenance.get('score')}\nbaseline: {anchor}, rebalanced at the decisions of the agents\n")
        rows = []
        for line in lines:
            shown = {name.replace("_", " "): figure(line[name], kind) for name, kind in FIGURES.items()}
            rows.append({"agent": line["agent"], "window": line["window"], **shown})
        console.show_table(rows)
        if near := ", ".join(near_baseline(lines)):
            print(f"\nAlmost equal to the baseline on validation (yearly tracking error below {SMALL:.0%}): {near}.")
        print()
    show_trials(history, TOP, f"finpod leaderboard {out} ")
    print()
    console.show_paths([out, *written], as_json=False)
