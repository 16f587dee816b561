"""Scores of PPO on the locomotion tasks: `python backtests/experiments/learning.py [TASK ...]`.

For each task and seed, trains an agent without a tournament, with the settings of the first agent of `finpod train`.
The final agent, not its best checkpoint, is tested on 20 episodes in Gymnasium's own environment, with mean actions.
Each seed has its own file of results. Existing files are kept, so the command can be stopped and repeated.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from contextlib import chdir
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer

from finpod.bench.locomotion import silent
from finpod.envs.locomotion import NAMES
from finpod.envs.locomotion.mujoco import threads_of
from finpod.envs.locomotion.specs import Spec
from finpod.errors import require_choice
from finpod.locomotion import EPISODES, LocomotionTask
from finpod.rl.evaluate import mean_action
from finpod.rl.policy import Policy
from finpod.rl.ppo import PPOConfig
from finpod.rl.task import Observation
from rows import Folder, checkpoints, keep_rows, markdown, run_command

FOLDER = Path("backtests") / "locomotion"
"""Folder of the files of results, one for each row, relative to the current folder."""
SEEDS = range(100, 105)
POINTS = 10
"""Number of points of a learning curve."""
GOALS = {"halfcheetah": 6000, "walker2d": 4000, "hopper": 3000, "ant": 4100, "humanoid": 1400}
"""Target median scores. Published scores of PPO after the same number of steps are lower."""


def gymnasium_returns(spec: Spec, policy: Policy, seed: int = 0) -> tuple[list[float], list[int]]:
    """Return the returns and lengths of 20 episodes in Gymnasium's own environment, with the policy's mean actions."""
    import gymnasium

    with tempfile.TemporaryDirectory() as folder, chdir(folder), silent(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs = [gymnasium.make(spec.gym_id, **spec.gym_options) for _ in range(EPISODES)]
    seen = np.stack([env.reset(seed=seed + number)[0] for number, env in enumerate(envs)])
    returns, lengths = np.zeros(EPISODES), np.zeros(EPISODES, dtype=np.int64)
    running = list(range(EPISODES))
    while running:
        action = mean_action(policy, Observation(torch.as_tensor(seen[running], dtype=torch.float32))).double().numpy()
        for number, controls in zip(tuple(running), spec.action_limit * action, strict=True):
            seen[number], reward, terminated, truncated, _ = envs[number].step(controls)
            returns[number] += reward
            lengths[number] += 1
            if terminated or truncated:
                running.remove(number)
    return returns.tolist(), lengths.tolist()


def learn(name: str, seed: int) -> dict[str, Any]:
    """Train one agent with the settings of `finpod train`. Return the row: learning curve, test returns, settings."""
    task = LocomotionTask(name=name)
    curve = []
    for point in checkpoints(task, "ppo", seed, POINTS, task.steps, name=f"{seed}-0"):
        curve.append((point.steps, score := point.metrics["mean_return"]))
        print(
            f"{name}, seed {seed}: {point.steps:,} steps in {point.seconds:.0f} s, mean return {score:.0f}", flush=True
        )
    returns, lengths = gymnasium_returns(task.definition, point.policy)
    return {
        "task": task.spec(), "seed": seed, "steps": point.steps, "seconds": point.seconds, "curve": curve,
        "returns": returns, "lengths": lengths, "config": vars(PPOConfig(**task.defaults("ppo"))),
        "settings": dict(task.space().start), "envs": task.num_envs,
        "threads": {"physics": threads_of(None), "torch": torch.get_num_threads()},
    }  # fmt: skip


def run(names: Sequence[str], seeds: Sequence[int], folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Compute the rows that have no file. Return all rows, task by task. Raises InputError for an unknown task."""
    for name in names:
        require_choice("task", name, NAMES)
    return keep_rows(folder, {f"{name}-{seed}": partial(learn, name, seed) for name in names for seed in seeds})


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table: the mean return of each seed, in ascending order, and their median."""
    lines = []
    for name in dict.fromkeys(row["task"]["task"] for row in rows):
        seeds = sorted((row for row in rows if row["task"]["task"] == name), key=lambda row: np.mean(row["returns"]))
        scores, spent = [np.mean(row["returns"]) for row in seeds], [row["seconds"] for row in seeds]
        each = [f"{np.mean(row['returns']):.0f} ({np.std(row['returns'], ddof=1):.0f})" for row in seeds]
        lines.append(
            {
                "task": seeds[0]["task"]["title"],
                "steps": f"{seeds[0]['steps']:,}",
                "mean return of each seed (sd over 20 episodes)": ", ".join(each),
                "median": f"{median(scores):.0f}",
                "target": str(GOALS.get(name, "none")),
                "training seconds": f"{min(spent):.0f} to {max(spent):.0f}",
            }
        )
    return markdown(lines)


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw learning curves as an SVG: the mean return of each seed over its steps, one panel per task."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["task"]["task"] for row in rows))
    columns, lines = min(len(names), 3), -(-len(names) // 3)
    figure = Figure(figsize=(3.2 * columns, 2.6 * lines), layout="constrained")
    for number, name in enumerate(names, start=1):
        axes = figure.add_subplot(lines, columns, number)
        for row in rows:
            if row["task"]["task"] == name:
                steps, scores = np.array(row["curve"]).T
                axes.plot(steps / 1e6, scores, linewidth=1.2)
        axes.set(title=name, xlabel="million steps", ylabel="mean return", xlim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, format="svg", metadata={"Date": None})


def main(
    tasks: Annotated[list[str] | None, typer.Argument(help=f"Tasks; by default {', '.join(GOALS)}.")] = None,
    seeds: Annotated[
        list[int] | None,
        typer.Option("-s", min=0, help=f"Seed, may be repeated; by default {SEEDS[0]} to {SEEDS[-1]}."),
    ] = None,
    folder: Folder = FOLDER,
) -> None:
    """Compute the rows that are not yet in the folder, print the table and draw the curves."""
    rows = run(tasks or list(GOALS), seeds or SEEDS, folder)
    print(table(rows))
    draw(rows, folder / "curves.svg")


if __name__ == "__main__":
    run_command(main)
