"""`finpod train`: a tournament, begun or gone on with, here or on Ray."""

from __future__ import annotations

import math
import signal
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from finpod import runs
from finpod.cli import console, options
from finpod.cli.leaderboard import TOP
from finpod.cli.recorded import OF_COSTS, OF_PLAN, OF_TRADING, recorded_options
from finpod.environments import STOCKS, TASKS, require_task_name
from finpod.envs.locomotion import NAMES
from finpod.errors import InputError
from finpod.files import ENSEMBLE, TRAINED, require_free
from finpod.runs import plain_word
from finpod.trading.ledger import Costs

if TYPE_CHECKING:
    from finpod.ensemble import Ensemble
    from finpod.tournament.recorded import Recorded
    from finpod.tournament.setup import Plan
    from finpod.tournament.trained_run import TrainedRun

NEEDED = ("train", "validation", "out")
"""Options that a new run on stocks must be given; one on another task needs the last alone."""
SIZE = ("agents", "rounds", "keep", "steps", "seed")
"""Options that say how large a tournament is."""
OF_LOAD = ("market", "members", "benchmark", "calendar", "periods_per_year", "ticker_column", "renames", "extra")
"""Options that say what the market is."""
OF_STOCKS = (*OF_LOAD, "train", "validation", "features", *OF_COSTS, "fill", *OF_TRADING)
"""Options that mean something to stocks alone."""
OF_PODS = ("pods", "pod_cpus", "pod_gpus", "timeout")
"""Options that mean something on Ray alone."""


def train(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help=f"What to learn: {', '.join(TASKS)}, or FILE.py:CLASS.")] = STOCKS,
    train: Annotated[str | None, typer.Option(help="Training days, FIRST:LAST.")] = None,
    validation: Annotated[str | None, typer.Option(help="Days on which agents are chosen, FIRST:LAST.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the best agents, such as strategies/first.")] = None,
    market: options.Market = "sample",
    members: options.Members = None,
    ticker_column: options.TickerColumn = None,
    renames: options.Renames = None,
    extra: options.Extra = None,
    benchmark: options.Benchmark = "auto",
    calendar: options.Calendar = "auto",
    periods_per_year: options.PeriodsPerYear = None,
    learner: Annotated[str, typer.Option(help="Learning algorithm.")] = "ppo",
    features: Annotated[str, typer.Option(help="'default', 'published', or names separated by commas.")] = "default",
    fee_bps: options.Fee = Costs.fee_bps,
    slippage_bps: options.Slippage = Costs.slippage_bps,
    impact: options.Impact = Costs.impact,
    fill: options.FillPrice = None,
    agents: Annotated[int, typer.Option(help="Agents trained side by side.")] = 4,
    rounds: Annotated[int, typer.Option(help="Rounds, after each of which the weaker follow the stronger.")] = 2,
    keep: Annotated[int, typer.Option(help="Agents kept in the ensemble.")] = 3,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Environment steps an agent over all rounds; if left out those of the task, 600,000 of stocks."
        ),
    ] = None,
    envs: Annotated[
        int | None, typer.Option(help="Environments of each agent; if left out those of the task, 512 of stocks.")
    ] = None,
    variant: Annotated[
        Literal["standard", "full", "fast"],
        typer.Option(help="Of a locomotion task: with contact forces (full), or a cheaper integrator (fast)."),
    ] = "standard",
    hold: Annotated[int, typer.Option(help="Sessions between decisions.")] = 5,
    action: Annotated[Literal["tilt", "softmax", "shares"], typer.Option(help="What an action means.")] = "tilt",
    anchor: options.Anchor = "equal-weight",
    max_weight: options.MaxWeight = None,
    max_turnover: options.MaxTurnover = None,
    seed: Annotated[int, typer.Option(help="The one seed that all randomness comes from.")] = 0,
    seeds: Annotated[
        int, typer.Option(help="Runs of the whole tournament, from seed, seed + 1, ...; all are kept.")
    ] = 1,
    mode: Annotated[
        Literal["rounds", "async"], typer.Option(help="Meet after each round, or never wait for a slow pod.")
    ] = "rounds",
    choice: Annotated[
        Literal["mean", "score", "recent"], typer.Option(help="How the kept agents decide together.")
    ] = "mean",
    alike: Annotated[
        float, typer.Option(help="Largest correlation of active validation returns between two agents kept.")
    ] = 0.95,
    fresh: Annotated[
        float, typer.Option(help="Share of new agents that begin untrained, all settings drawn anew.")
    ] = 0.25,
    checkpoint_steps: Annotated[
        int | None, typer.Option(help="Steps between checkpoints inside a round; none if left out.")
    ] = None,
    stop_trials: Annotated[int | None, typer.Option(help="Stop after so many trials, of each seed.")] = None,
    stop_steps: Annotated[
        int | None, typer.Option(help="Stop after so many environment steps of all agents, of each seed.")
    ] = None,
    stop_minutes: Annotated[
        float | None, typer.Option(help="Stop after so many minutes, of each seed; begun anew by --resume.")
    ] = None,
    stop_score: Annotated[float | None, typer.Option(help="Stop at such a validation score, of each seed.")] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many trials without a better score, of each seed.")
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Train on Ray: all cores of this machine, or a cluster.")] = False,
    address: Annotated[
        str | None, typer.Option(help="Of a running Ray cluster ('auto' inside one); implies --ray.")
    ] = None,
    pods: Annotated[str, typer.Option(help="Pods at a time; 'auto' follows the cluster.")] = "auto",
    pod_cpus: Annotated[float, typer.Option(help="CPUs of a pod.")] = 1.0,
    pod_gpus: Annotated[float, typer.Option(help="GPUs of a pod; 0.25 puts four on one.")] = 0.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a slice of training counts as lost.")] = 3600.0,
    storage: Annotated[
        str | None, typer.Option(help="URL for log and checkpoints, such as s3://bucket/run; beside --out if left out.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Go on with an unfinished run under the settings of its log; begin it if all is given."
        ),
    ] = None,
    fork: Annotated[
        str | None, typer.Option(metavar="NAME", help="Begin with a copy of an unfinished run; settings may change.")
    ] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard event files.")] = None,
    device: options.Device = "auto",
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Train agents and keep the best: of stocks, chosen on validation days, as an ensemble that `finpod backtest` takes."""
    from finpod.tournament.run_folder import driven, is_unfinished, recorded_of, refuse_finished

    given, recorded = dict(context.params), None
    typed = {name for name in given if str(context.get_parameter_source(name)).endswith("COMMANDLINE")}
    if idle := [name for name in OF_PODS if name in typed and not (ray or address is not None)]:
        raise InputError(f"--{idle[0].replace('_', '-')} needs --ray; add it, or train in this process without pods")
    if resume and fork:
        raise InputError("--resume goes on with a run and --fork with a copy of one; give one of them")
    check_task(task)
    if "task" in typed or not (resume or fork):  # else the log says which task it is
        _refuse_others(task, typed)
    again = bool(resume) and not (_complete(given) and not is_unfinished(str(resume), storage))
    if again or fork:
        where, recorded = recorded_of(str(resume or fork), storage if again else None)
        if recorded is not None:
            given |= recorded_options(recorded, typed, fork=bool(fork))
        elif not _complete(given):
            raise InputError(f"{where} ended before anything was logged; give {_listed(given)} too")
        if resume and not storage:
            given |= driven(resume, recorded.storage if recorded else None, out)
    _refuse_others(given["task"], typed)
    for name in needed(given):
        if given[name] is None:
            raise InputError(f"--{name} is missing; a new run needs {_listed(given)}")
    if resume and not overwrite:
        refuse_finished(Path(given["out"]), given["storage"])
    if resume and not again:
        console.remark(f"there is no unfinished run {resume}: beginning it")
    _train(given, recorded, resume=again)


def _train(given: dict[str, Any], recorded: Recorded | None, *, resume: bool) -> None:
    """Check what can be checked before anything is loaded, train, and show the board."""
    import finpod
    from finpod.tournament.training import Pods

    out, is_stocks = Path(given["out"]), given["task"] == STOCKS
    require_free(out, given["overwrite"], ENSEMBLE if is_stocks else TRAINED)
    plain_word(out.resolve().name)
    plan, costs, count = checked(given, recorded)
    where = Pods(ray=given["ray"] or given["address"] is not None, count=count, cpus=given["pod_cpus"],
                 gpus=given["pod_gpus"], timeout=given["timeout"], address=given["address"])  # fmt: skip
    if not where.gpus:
        console.say_device(given["device"])
    of_task: dict[str, Any] = {} if given["envs"] is None else {"num_envs": given["envs"]}
    if is_stocks or given["task"] in NAMES:
        of_task |= _of_stocks(given, costs) if is_stocks else {"variant": given["variant"]}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a cluster ends a driver so, and it can be gone on with
    with console.watched(given["tensorboard"], out, given["storage"]) as (progress, watch):
        made: Ensemble | TrainedRun = finpod.train(
            given["task"],
            out=out,
            **of_task,
            **{name: given[name] for name in SIZE},
            **{name: given[name] for name in ("learner", "seeds", "device", "overwrite", "storage", "fork")},
            **_beyond(recorded),
            resume=resume,
            progress=progress,
            watch=watch,
            plan=plan,
            pods=where,
            asked={"tensorboard": str(given["tensorboard"].absolute())} if given["tensorboard"] else {},
        )
    _show(made, given, out)


def _of_stocks(given: Mapping[str, Any], costs: Costs) -> dict[str, Any]:
    """The arguments of `finpod.train` that are of stocks."""
    return {
        "train": options.window(given["train"], "--train"),
        "validation": options.window(given["validation"], "--validation"),
        "market": options.load(**{name: given[name] for name in OF_LOAD}, **given.get("load", {})),
        "features": None if given["features"] == "default" else options.words(given["features"]),
        "costs": costs,
        **{name: given[name] for name in (*OF_TRADING, "fill")},
    }


def _show(made: Ensemble | TrainedRun, given: Mapping[str, Any], out: Path) -> None:
    """Write the report of the training and print its figures."""
    from finpod.report.training import write_training_report
    from finpod.tournament.history import read_history
    from finpod.tournament.ranking import near_baseline, of_agents
    from finpod.tournament.trained_run import TrainedRun

    page = runs.REPORTS / f"{made.name}-training.html"
    written = runs.write_page(
        page, lambda path: write_training_report(read_history(out), path), saved=out, overwrite=True
    )
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
    if failed := made.provenance["failed"]:
        print(f"{failed} of them failed or were lost, and rank last; `finpod leaderboard {out}` says why")
    _show_board(made.provenance["board"], out)
    print()
    console.show_written(written, as_json=False)


def _beyond(recorded: Recorded | None) -> dict[str, Any]:
    """Arguments of `finpod.train` that have no option, as the run has recorded them."""
    if recorded is None:
        return {}
    trading = recorded.task.get("trading", {}).items()
    rest = {name: value for name, value in trading if name not in ("costs", *OF_TRADING)}
    return {**rest, "config": recorded.config, "threads": recorded.threads}


def checked(given: Mapping[str, Any], recorded: Recorded | None = None) -> tuple[Plan, Costs, int | str]:
    """The tournament, the costs and the number of pods; what has no option is as `recorded`, or the default.

    Raises InputError for options with which no run could begin, whatever lies on the disks.
    """
    from finpod.tasks import trading_of
    from finpod.tournament.setup import Plan, Stop, require_count
    from finpod.workers.ray_executor import check_pods

    for name in ("train", "validation"):
        if given[name] is not None:
            options.check_dates(*options.window(given[name], f"--{name}"))
    require_count("seeds", given["seeds"])
    minutes = given["stop_minutes"]
    if minutes is not None and not 0 < minutes < math.inf:
        raise InputError(f"stop_minutes is {minutes}; give a positive number, or leave it out", argument="stop_minutes")
    stop = Stop(seconds=None if minutes is None else 60 * minutes, patience=given["patience"],
                **{rule: given[f"stop_{rule}"] for rule in ("trials", "steps", "score")})  # fmt: skip
    base = recorded.plan if recorded else Plan()
    sizes = {name: given[name] for name in OF_PLAN} | ({"steps": Plan.steps} if given["steps"] is None else {})
    plan = replace(base, search=replace(base.search, fresh=given["fresh"]), stop=stop, **sizes)
    known = recorded.task.get("trading", {}).get("costs", {}) if recorded else {}
    costs = replace(Costs(**known), **{name: given[name] for name in OF_COSTS})
    trading_of(costs=costs, **{name: given[name] for name in OF_TRADING})
    count = given["pods"] if given["pods"] == "auto" else _whole(given["pods"])
    check_pods(count, given["pod_cpus"], given["pod_gpus"], given["timeout"])
    return plan, costs, count


KEPT = ("agent", "parent", "level", "score", "steps")
"""Columns of the board that are printed even where they are the same for all."""


def _show_board(board: list[dict[str, Any]], out: Path) -> None:
    """The best trials of all seeds, their levels as `finpod leaderboard` counts them."""
    best = sorted(board, key=lambda line: -math.inf if math.isnan(line["score"]) else line["score"], reverse=True)
    rows = [_row(line) for line in best[:TOP]]
    same = {name for name in (rows or [{}])[0] if name not in KEPT and len({str(row[name]) for row in rows}) == 1}
    console.show_table([{name: value for name, value in row.items() if name not in same} for row in rows])
    if len(board) > TOP:
        print(f"and {len(board) - TOP} more; `finpod leaderboard {out} --top {len(board)}` shows all")


def _row(line: dict[str, Any]) -> dict[str, Any]:
    first = {"agent": line["agent"], "parent": line["parent"], "level": line["generation"] + 1}
    return first | {name: value for name, value in line.items() if name not in (*first, "generation")}


def needed(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Options that a new run must be given."""
    return NEEDED if given["task"] == STOCKS else NEEDED[-1:]


def _complete(given: Mapping[str, Any]) -> bool:
    """Whether a new run could begin with what was given."""
    return all(given[name] is not None for name in needed(given))


def _listed(given: Mapping[str, Any]) -> str:
    *others, last = (f"--{name}" for name in needed(given))
    return f"{', '.join(others)} and {last}" if others else last


def check_task(task: str) -> None:
    """Raise InputError for what is neither the name of a task nor a file."""
    if ".py" not in task:
        require_task_name(task, ", or give FILE.py:CLASS")


def _refuse_others(task: str, typed: Collection[str]) -> None:
    """Raise InputError for an option of stocks with another task, and for a variant of what has none."""
    if "variant" in typed and task not in NAMES:
        raise InputError(f"--variant is for locomotion, and the task {task} has none; leave it out")
    if task != STOCKS and (idle := [name for name in OF_STOCKS if name in typed]):
        raise InputError(
            f"--{idle[0].replace('_', '-')} is for stocks, and the task {task} has no market; leave it out"
        )


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InputError(f"pods is {text!r}; it must be 'auto' or a whole number from 1 on", argument="pods") from error
