"""`finpod train`: a tournament, begun or continued, here or on Ray."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finpod.cli import console, options, outputs, settings
from finpod.cli.leaderboard import TOP, show_trials
from finpod.cli.settings import CAPS, PODS, TRADING, needed, refuse_others, spelled
from finpod.devices import pick_device
from finpod.environments import STOCKS, TASKS, require_task_name
from finpod.envs.locomotion import NAMES
from finpod.errors import FinpodError, InputError
from finpod.files import ENSEMBLE, TRAINED, require_free

if TYPE_CHECKING:
    from finpod.ensemble import Ensemble
    from finpod.tournament.recorded import Recorded
    from finpod.tournament.trained_run import TrainedRun
    from finpod.tournament.training import Pods
    from finpod.trading.ledger import Costs


@options.with_options(*settings.FIRST, advanced=settings.ADVANCED)
def train(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help=f"What to learn: {', '.join(TASKS)}, or FILE.py:CLASS.")] = STOCKS,
    check: Annotated[bool, typer.Option("--check", help="Say what would fail, and train nothing.")] = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    **given: Any,
) -> None:
    """Train agents and keep the best: of stocks, chosen on validation days, as an ensemble that `finpod backtest` takes."""
    given |= {"task": task, "overwrite": overwrite, "as_json": as_json}
    typed = {name for name in given if str(context.get_parameter_source(name)).endswith("COMMANDLINE")}
    idle = [name for name in PODS.names if name in typed and name not in ("ray", "address")]
    if idle and not (given["ray"] or given["address"] is not None):
        raise InputError(f"{spelled(idle[0])} needs --ray; add it, or train in this process without pods")
    given, recorded, resume = _settled(given, typed)
    if check:
        _check(given, recorded, resume, context)
    else:
        _train(given, recorded, resume)


def _settled(given: dict[str, Any], typed: set[str]) -> tuple[dict[str, Any], Recorded | None, bool]:
    """The options, with those of the log of a run that is continued or forked; its record; and whether it is continued."""
    from finpod.tournament.recorded import driven, is_unfinished, recorded_of, refuse_finished

    resume, fork, out, storage = (given[name] for name in ("resume", "fork", "out", "storage"))
    recorded = None
    if resume and fork:
        raise InputError("--resume continues a run and --fork a copy of one; give one of them")
    if ".py" not in given["task"]:
        require_task_name(given["task"], ", or give FILE.py:CLASS")
    if "task" in typed or not (resume or fork):  # else the log says which task it is
        refuse_others(given["task"], typed)
    whole = all(given[name] is not None for name in needed(given))
    again = bool(resume) and (not whole or is_unfinished(str(resume), storage))
    if again or fork:
        where, recorded = recorded_of(str(resume or fork), storage if again else None)
        if recorded is not None:
            given |= settings.recorded_options(recorded, typed, fork=bool(fork))
        elif not whole:
            raise InputError(f"{where} ended before anything was logged; give {spelled(*needed(given))} too")
        if resume and not storage:
            given |= driven(resume, recorded.storage if recorded else None, out)
    refuse_others(given["task"], typed)
    if lacking := [name for name in needed(given) if given[name] is None]:
        raise InputError(f"{spelled(lacking[0])} is missing; a new run needs {spelled(*needed(given))}")
    if resume and not given["overwrite"]:
        refuse_finished(Path(given["out"]), given["storage"])
    if resume and not again:
        console.remark(f"there is no unfinished run {resume}: beginning it")
    return given, recorded, again


def _train(given: dict[str, Any], recorded: Recorded | None, resume: bool) -> None:
    """Check what can be checked before anything is loaded, train, and show the board."""
    import finpod

    out = Path(given["out"])
    _require_out(given)
    plan, costs, pods = settings.checked(given, recorded)
    if not pods.gpus:
        console.say_device(given["device"])
    arguments = _arguments(given, recorded, costs)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a cluster ends a driver so, and the run can be resumed
    with console.watched(given["tensorboard"], out, given["storage"]) as (progress, watch):
        made: Ensemble | TrainedRun = finpod.train(
            given["task"],
            out=out,
            **arguments,
            **{name: given[name] for name in ("seeds", "device", "overwrite", "storage", "fork")},
            resume=resume,
            progress=progress,
            watch=watch,
            plan=plan,
            pods=pods,
            asked={"tensorboard": str(given["tensorboard"].absolute())} if given["tensorboard"] else {},
        )
    _show(made, given, out)


def _show(made: Ensemble | TrainedRun, given: Mapping[str, Any], out: Path) -> None:
    """Write the report of the training and print its figures."""
    from finpod.report.training import write_training_report
    from finpod.tournament.history import read_history
    from finpod.tournament.ranking import near_baseline, of_agents
    from finpod.tournament.trained_run import TrainedRun

    page, history = outputs.REPORTS / f"{made.name}-training.html", read_history(out)
    written = outputs.write_page(page, partial(write_training_report, history), saved=out, overwrite=True)
    if given["as_json"]:
        console.show_json({**made.provenance, "path": str(out)})
        console.show_written(written._replace(paths=written.paths[1:]), as_json=True)
        return
    if isinstance(made, TrainedRun):
        best = made.provenance["members"][0]
        print(f"{made.name}: the best {len(made.provenance['members'])} of {made.trials} trials")
        print(made.provenance.get("title", made.provenance["task"]))
        metrics = made.leaderboard[0].metrics
        others = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if name != made.provenance["score"])
        print(f"{made.provenance['score']}: {best['score']:.4g} by agent {best['agent']}{others and f' ({others})'}")
    else:
        told, lines = made.provenance, made.provenance["figures"]
        anchor = told.get("trading", {}).get("anchor", "equal-weight")
        print(f"{made.name}: chosen among {made.trials} trials on {given['validation']}")
        print(f"score: {told.get('score')}\nbaseline: {anchor}, restored when the agents decide\n")
        console.show_table(of_agents(lines))
        print("\n".join(["", *near_baseline(lines), ""]))
    show_trials(history, TOP, f"finpod leaderboard {out} ")
    print()
    console.show_written(written, as_json=False)


def _require_out(given: Mapping[str, Any]) -> None:
    """Raise InputError for an output that cannot be made."""
    out = Path(given["out"])
    require_free(out, given["overwrite"], ENSEMBLE if given["task"] == STOCKS else TRAINED)
    outputs.plain_word(out.resolve().name)


def _arguments(given: Mapping[str, Any], recorded: Recorded | None, costs: Costs) -> dict[str, Any]:
    """The arguments of `finpod.train` that say what is learnt, and how; the market is loaded.

    What has no option is as the run has recorded it.
    """
    arguments = {name: given[name] for name in ("learner", "agents", "rounds", "keep", "steps", "seed")}
    if recorded is not None:
        known = {*TRADING.names.values(), *CAPS.names.values(), "costs"}
        trading = recorded.task.get("trading", {})
        arguments |= {name: value for name, value in trading.items() if name not in known}
        arguments |= {"config": recorded.config, "threads": recorded.threads}
    if given["envs"] is not None:
        arguments["num_envs"] = given["envs"]
    if given["task"] in NAMES:
        return arguments | {"variant": given["variant"]}
    return arguments | (_of_stocks(given, costs) if given["task"] == STOCKS else {})


def _of_stocks(given: Mapping[str, Any], costs: Costs) -> dict[str, Any]:
    return {
        "train": options.window(given["train"], "train"),
        "validation": options.window(given["validation"], "validation"),
        "market": options.load(given, **given.get("load", {})),
        "features": None if given["features"] == "default" else options.words(given["features"]),
        "costs": costs,
        "fill": given["fill"],
        **TRADING.values(given),
        **CAPS.values(given),
    }


def _check(given: Mapping[str, Any], recorded: Recorded | None, resume: bool, context: typer.Context) -> None:
    """Try all that comes before the training; print a line for each thing that would fail, and end with 0 or 2."""
    failures: list[FinpodError] = []

    def attempt(step: Callable[[], Any]) -> Any:
        try:
            return step()
        except FinpodError as error:
            failures.append(error)
            return None

    attempt(lambda: _require_out(given))
    attempt(lambda: _require_folder(given, resume))
    settled = attempt(lambda: settings.checked(given, recorded))
    gpus, pods = (settled[2].gpus, settled[2]) if settled else (0, None)
    attempt(lambda: None if gpus else pick_device(given["device"]))
    attempt(lambda: _require_ray(pods) if pods and pods.ray else None)
    if settled:
        with console.progress("loading", log=True):
            task = attempt(lambda: _task_of(given, _arguments(given, recorded, settled[1])))
    elif given["task"] == STOCKS:
        attempt(lambda: options.check_market(given))
    for failure in failures:
        console.show_error(failure, context.command)
    if failures:
        raise typer.Exit(2)
    plan = settled[0]
    facts = {"task": getattr(task, "title", given["task"]), "trials": plan.most_trials * given["seeds"]}
    facts |= {"output": str(given["out"]), "check": "nothing would fail"}
    console.show_json(facts) if given["as_json"] else console.show_facts(facts)


def _require_folder(given: Mapping[str, Any], resume: bool) -> None:
    """Raise InputError for an unfinished run in the place of this one."""
    from finpod.tournament.recorded import find
    from finpod.tournament.run_folder import RunFolder

    fork = None if given["fork"] is None else find(given["fork"])
    RunFolder.of(Path(given["out"]), given["storage"]).require(resume=resume, overwrite=given["overwrite"], fork=fork)


def _require_ray(pods: Pods) -> None:
    """Raise InputError for a Ray that cannot be reached, or has no room for a pod."""
    from finpod.workers.ray_executor import require_ray

    require_ray(pods.address or "", pods.cpus, pods.gpus)


def _task_of(given: Mapping[str, Any], arguments: dict[str, Any]) -> Any:
    """The task, its features computed; InputError for what `finpod.train` would refuse."""
    from finpod.loading import load_task
    from finpod.locomotion import LocomotionTask
    from finpod.training import learning_task, require_learner

    name, learner = given["task"], arguments["learner"]
    require_learner(learner, arguments.get("config"))
    task = name
    if name != STOCKS:
        task = LocomotionTask(name=name, variant=given["variant"]) if name in NAMES else load_task(name)
    names = ("market", "train", "validation", "features", "costs", "hold", "action", "fill")
    others: dict[str, Any] = {
        name: arguments[name] for name in ("num_envs", "anchor", "max_weight", "max_turnover") if name in arguments
    }
    learning = learning_task(task, "cpu", {name: arguments.get(name) for name in names}, others, learner)
    getattr(learning, "panel", None)  # computes the features of stocks
    return learning
