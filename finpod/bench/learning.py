"""How well the locomotion tasks are learnt: `python -m finpod.bench.learning [TASK ...]`.

Trains each task on several seeds, with the settings that the first agent of `finpod train TASK` has and without a
tournament. Judges the agent at the end of its training, not the best on the way, by 20 deterministic episodes in
Gymnasium's own environment. Each seed is a row, a file of its own. Rows that are there are not trained again, so that the
command can be stopped and repeated.
"""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import chdir
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from finpod.bench.command import Parser, whole
from finpod.bench.locomotion import silent
from finpod.bench.machine import processor
from finpod.devices import usable_cores
from finpod.envs.locomotion import NAMES
from finpod.envs.locomotion.mujoco import threads_of
from finpod.envs.locomotion.specs import Spec
from finpod.errors import InputError
from finpod.files import to_json, versions, write_text
from finpod.locomotion import EPISODES, LocomotionTask
from finpod.rl.evaluate import mean_action
from finpod.rl.policy import Policy
from finpod.rl.ppo import PPOConfig
from finpod.rl.task import Observation
from finpod.tournament.leaderboard import Settings
from finpod.tournament.pod import Pod
from finpod.tournament.setup import TournamentSetup

FOLDER = Path("backtests") / "locomotion"
"""Where rows are kept, relative to the current folder."""
SEEDS = range(100, 105)
POINTS = 10
"""Evaluations of a curve."""
GOALS = {"halfcheetah": 6000, "walker2d": 4000, "hopper": 3000, "ant": 4100, "humanoid": 1400}
"""Median scores to reach, above the PPO figures published for as many steps."""


HEAD = "| task | steps | mean return of each seed (sd over 20 episodes) | median | goal | seconds |"


def gymnasium_returns(spec: Spec, policy: Policy, seed: int = 0) -> tuple[list[float], list[int]]:
    """Return the returns and lengths of 20 episodes in Gymnasium's environment of a task, under the mean action."""
    import gymnasium

    with tempfile.TemporaryDirectory() as folder, chdir(folder), silent(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs = [gymnasium.make(spec.gym_id, **spec.gym_options) for _ in range(EPISODES)]
    seen = np.stack([env.reset(seed=seed + number)[0] for number, env in enumerate(envs)])
    returns, lengths = np.zeros(EPISODES), np.zeros(EPISODES, dtype=np.int64)
    running = list(range(EPISODES))
    while running:
        action = mean_action(policy, Observation(torch.as_tensor(seen[running], dtype=torch.float32))).double().numpy()
        for number, own in zip(tuple(running), spec.action_limit * action, strict=True):
            seen[number], reward, terminated, truncated, _ = envs[number].step(own)
            returns[number] += reward
            lengths[number] += 1
            if terminated or truncated:
                running.remove(number)
    return returns.tolist(), lengths.tolist()


def learn(name: str, seed: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Train one agent from end to end and return its row."""
    task = LocomotionTask(name=name)
    config = PPOConfig(**task.defaults("ppo"))
    setup = TournamentSetup(task=task, num_envs=task.num_envs, config=config)
    pod = Pod(setup, Settings(agent_id=f"{seed}-0", seed=seed, config=config, task=dict(task.space().start)))
    curve: list[tuple[int, float]] = []
    spent = 0.0
    for point in range(POINTS):
        start = time.perf_counter()
        for _ in pod.train(round(task.steps * (point + 1) / POINTS), task.steps):
            pass
        spent += time.perf_counter() - start
        score = task.score(pod.policy).metrics["mean_return"]
        curve.append((pod.steps, score))
        say(f"{name}, seed {seed}: {pod.steps:,} steps in {spent:.0f} s, mean return {score:.0f}")
    returns, lengths = gymnasium_returns(task.definition, pod.policy)
    return {
        "task": task.spec(), "seed": seed, "steps": pod.steps, "seconds": spent, "curve": curve, "returns": returns,
        "lengths": lengths, "config": vars(config), "settings": dict(task.space().start), "envs": task.num_envs,
        "threads": {"physics": threads_of(None), "torch": torch.get_num_threads()},
        "hardware": f"{processor()}, {usable_cores()} cores",
        "versions": versions("finpod", "gymnasium", "mujoco", "numpy", "torch"),
    }  # fmt: skip


def run(names: Sequence[str], seeds: Sequence[int], folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Train what is not there yet; return all rows, task by task. Raises InputError for an unknown task."""
    for name in names:
        if name not in NAMES:
            raise InputError(f"unknown task {name!r}; choose from {', '.join(NAMES)}", argument="task")
    torch.set_num_threads(1)
    rows = []
    for name in names:
        for seed in seeds:
            file = folder / f"{name}-{seed}.json"
            if not file.exists():
                folder.mkdir(parents=True, exist_ok=True)
                write_text(file, to_json(learn(name, seed)))
            rows.append(json.loads(file.read_text()))
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table: the mean return of each seed, the lowest first, and their median."""
    lines = [
        "| task | steps | mean return of each seed (sd over 20 episodes) | median | goal | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["task"]["task"] for row in rows):
        own = sorted((row for row in rows if row["task"]["task"] == name), key=lambda row: np.mean(row["returns"]))
        scores = [float(np.mean(row["returns"])) for row in own]
        each = ", ".join(
            f"{score:.0f} ({np.std(row['returns'], ddof=1):.0f})" for score, row in zip(scores, own, strict=True)
        )
        spent = sorted(row["seconds"] for row in own)
        lines.append(
            f"| {own[0]['task']['title']} | {own[0]['steps']:,} | {each} | {median(scores):.0f} | {GOALS.get(name, 'none')} | "
            f"{spent[0]:.0f} to {spent[-1]:.0f} |"
        )
    return "\n".join(lines)


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the mean return of each seed over its steps, a panel a task, three beside each other, as an SVG."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["task"]["task"] for row in rows))
    columns = min(len(names), 3)
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.6 * lines), layout="constrained")
    for number, name in enumerate(names, start=1):
        axes = figure.add_subplot(lines, columns, number)
        for row in rows:
            if row["task"]["task"] == name:
                steps, scores = zip(*row["curve"], strict=True)
                axes.plot(np.array(steps) / 1e6, scores, linewidth=1.2)
        axes.set(title=name, xlabel="million steps", ylabel="mean return", xlim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, format="svg", metadata={"Date": None})


def main() -> None:
    """Parse the arguments, train what is missing, print the table and draw the curves."""
    parser = Parser(prog="python -m finpod.bench.learning", description=__doc__)
    parser.add_argument("tasks", nargs="*", default=list(GOALS), help=f"tasks to learn (default: {' '.join(GOALS)})")
    parser.add_argument(
        "-s",
        dest="seeds",
        metavar="SEED",
        type=whole(0),
        nargs="+",
        default=list(SEEDS),
        help=f"seeds of each task (default: {' '.join(map(str, SEEDS))})",
    )
    parser.add_folder(FOLDER, "rows and curves")
    parser.run(print_table)


def print_table(given: Namespace) -> None:
    """Train what is missing, print the table and draw the curves."""
    rows = run(given.tasks, given.seeds, given.folder)
    print(table(rows))
    draw(rows, given.folder / "curves.svg")


if __name__ == "__main__":
    main()
