"""Shared parts of the experiments: rows kept in files, checkpoints, tables and errors.

Each row of results is kept in its own file. Existing rows are kept, so a command can be stopped and repeated.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import torch
import typer
from typer.main import get_command

from finpod.bench.machine import hardware
from finpod.errors import FinpodError, require_number
from finpod.files import to_json, versions, write_text
from finpod.rl import LEARNERS
from finpod.rl.policy import Policy
from finpod.tournament.leaderboard import Settings
from finpod.tournament.pod import Pod
from finpod.tournament.setup import TournamentSetup

Folder = Annotated[Path, typer.Option("-o", help="Folder of the rows.")]


def keep_rows(folder: Path, makers: Mapping[str, Callable[[], dict[str, Any]]], jobs: int = 1) -> list[dict[str, Any]]:
    """Compute the rows that have no file yet, in `jobs` processes, and return all rows in the order of `makers`.

    `makers` maps the name of a row to the function that computes it. With several jobs, the functions are pickled.
    """
    require_number("jobs", jobs, 1, whole=True)
    folder.mkdir(parents=True, exist_ok=True)
    files = {folder / f"{name}.json": make for name, make in makers.items()}
    missing = [(file, make) for file, make in files.items() if not file.exists()]
    if jobs == 1 or len(missing) < 2:
        for piece in missing:
            _keep(*piece)
    else:  # Ctrl-C interrupts this process, which ends its children
        ignore = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
        with get_context("spawn").Pool(min(jobs, len(missing)), ignore) as pool:
            pool.starmap(_keep, missing, chunksize=1)
    return [json.loads(file.read_text()) for file in files]


def _keep(file: Path, make: Callable[[], dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    packages = versions("finpod", "gymnasium", "mujoco", "numpy", "torch")
    write_text(file, to_json(make() | {"hardware": hardware(), "versions": packages}))


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows as a Markdown table. The keys of the first row are the headings; missing cells are empty."""
    heads = list(rows[0])
    lines = [heads, ["---"] * len(heads), *([row.get(head, "") for head in heads] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Trained(NamedTuple):
    """An agent at a checkpoint."""

    policy: Policy
    """Policy of the learner. It changes when the training continues."""
    steps: int
    """Number of environment steps so far."""
    metrics: dict[str, Any]
    """Metrics of the agent on validation."""
    seconds: float
    """Wall time of the training so far."""
    cpu_seconds: float
    """CPU time of the training so far."""


def checkpoints(
    task: Any, learner: str, seed: int, points: int, steps: int, name: str = "agent", **changed: Any
) -> Iterator[Trained]:
    """Train one agent, without a tournament, and yield `points` checkpoints, evenly spaced over `steps`.

    The agent's settings are the defaults of the task, except for the fields in `changed`.
    """
    config = LEARNERS[learner].Config(**{**task.defaults(learner), **changed})
    setup = TournamentSetup(task=task, num_envs=task.num_envs, config=config, learner=learner)
    start = dict(task.space().start)
    pod = Pod(setup, Settings(agent_id=name, seed=seed, config=config, learner=learner, task=start))
    wall = cpu = 0.0
    for point in range(1, points + 1):
        began, began_cpu = time.perf_counter(), time.process_time()
        for _ in pod.train(steps * point // points, steps):
            pass
        wall, cpu = wall + time.perf_counter() - began, cpu + time.process_time() - began_cpu
        yield Trained(pod.policy, pod.steps, task.score(pod.policy).metrics, wall, cpu)


def run_command(function: Callable[..., None]) -> NoReturn:
    """Run a function as a command, with the docstring of its module as --help, and end the process.

    A FinpodError or OSError is printed as one line on stderr, with exit code 2.
    """
    app, module = typer.Typer(add_completion=False, rich_markup_mode=None), sys.modules[function.__module__]
    app.command(help=module.__doc__)(function)
    try:
        get_command(app)(prog_name=f"python {sys.argv[0]}")
    except (FinpodError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)
