"""Clips of locomotion agents. `record` makes one, and the training report shows that of the best agent."""

from __future__ import annotations

import math
from base64 import b64encode
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from finpod.envs.locomotion import NAMES
from finpod.envs.locomotion.render import HEIGHT, SECONDS, WIDTH, Episode, Film, draw, gif, play, png
from finpod.errors import FinpodError, InputError
from finpod.locomotion import LocomotionTask, task_of
from finpod.rl.evaluate import mean_action
from finpod.tournament.history import History
from finpod.tournament.trained_run import TrainedRun

SHOWN, PATIENCE = 5.0, 20.0
"""Most simulated seconds that a report shows, and most seconds of drawing. If drawing takes longer, there is no clip."""


class Clip(NamedTuple):
    """One episode of one agent under its mean actions, with its frames."""

    task: LocomotionTask
    agent: str
    """Name of the agent in the tournament."""
    episode: Episode
    film: Film

    @property
    def shown(self) -> float:
        """Simulated seconds that the frames cover."""
        return min(len(self.film.frames) * self.film.interval, self.episode.seconds)

    def __str__(self) -> str:
        """Return text: the return and length of the episode, and how much of it is shown."""
        episode = self.episode
        length = f"{episode.steps:,} steps ({episode.seconds:.1f} s)"
        told = f"return {episode.total:,.1f} in {length}{', ended by a fall' if episode.fell else ''}"
        return told if self.shown >= episode.seconds else f"{told}; the first {self.shown:.1f} s are shown"


def record(
    run: TrainedRun, n: int = 0, *, seconds: float = SECONDS, seed: int = 0, patience: float | None = None
) -> Clip:
    """Return a clip of one episode of the n-th best agent of a locomotion run. Its first `seconds` are drawn.

    Raises InputError if the run has another task, the agent was not kept, `seconds` is not positive, or MuJoCo is not
    installed or cannot draw. Drawing may take at most `patience` seconds.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"seconds is {seconds}; it must be a positive number", argument="seconds")
    spec = run.checkpoint(n).task_spec
    if not (spec.get("task") in NAMES and "variant" in spec):
        raise InputError(f"{run.name} has the task {spec.get('task')}; only {', '.join(NAMES)} can be rendered")
    task = task_of(spec, threads=1)
    policy = run.load(n)
    env = task.env(1, seed, policy.log_std.device)
    episode = play(env, partial(mean_action, policy))
    film = draw(task.definition, episode, seconds, patience)
    return Clip(task, str(run.provenance["members"][n]["agent"]), episode, film)


def section(history: History) -> dict[str, Any] | None:
    """Return the clip of the best agent, or the reason why there is none; None for unfinished runs and other tasks."""
    task = history.logs[-1].header.get("task", {})
    kept = {trial.agent for trial in history.trials if trial.kept}
    if not (kept and history.finished and task.get("task") in NAMES and Path(history.where).is_dir()):
        return None
    run = TrainedRun(history.where)
    try:
        best = next(n for n, member in enumerate(run.provenance["members"]) if member["agent"] in kept)
        clip = record(run, best, seconds=SHOWN, patience=PATIENCE)
    except FinpodError as error:
        return {"lacking": str(error)}
    return {
        "lacking": "",
        "title": clip.task.definition.title,
        "body": clip.task.definition.gym_id,
        "agent": clip.agent,
        "played": str(clip),
        "moving": b64encode(gif(clip.film)).decode(),
        "still": b64encode(png(clip.film)).decode(),
        "size": (WIDTH, HEIGHT),
    }
