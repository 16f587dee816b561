"""The clip of an agent of a locomotion run: `record` makes it, and the training report shows that of the best."""

from __future__ import annotations

import math
from base64 import b64encode
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from finpod.envs.locomotion import NAMES
from finpod.envs.locomotion.render import HEIGHT, SECONDS, WIDTH, Episode, Film, draw, encode, play
from finpod.errors import CheckpointError, FinpodError, InputError
from finpod.locomotion import LocomotionTask, task_of
from finpod.rl.evaluate import mean_action
from finpod.tournament.trained_run import TrainedRun

if TYPE_CHECKING:
    from finpod.tournament.history import History

SHOWN, PATIENCE = 5.0, 20.0
"""Seconds of the episode that a report shows at most, and seconds after which it goes without."""


class Clip(NamedTuple):
    """One episode of one agent under its mean actions, and its frames."""

    task: LocomotionTask
    agent: str
    """Its name in the tournament."""
    seed: int
    """Seed of the first state."""
    episode: Episode
    film: Film

    @property
    def shown(self) -> float:
        """Simulated seconds that the frames show."""
        return min(len(self.film.frames) * self.film.interval, self.episode.seconds)

    def __str__(self) -> str:
        """Return, length, and how much of it is shown."""
        episode = self.episode
        length = f"{episode.steps:,} steps ({episode.seconds:.1f} s)"
        told = f"return {episode.total:,.1f} in {length}{', ended by a fall' if episode.fell else ''}"
        return told if self.shown >= episode.seconds else f"{told}; the first {self.shown:.1f} s are shown"


def record(
    run: TrainedRun, n: int = 0, *, seconds: float = SECONDS, seed: int = 0, patience: float | None = None
) -> Clip:
    """Play a whole episode with the n-th best agent of a locomotion run, and draw its first `seconds`.

    Raises InputError for a run of another task, an agent that was not kept, a time that is not positive, and where MuJoCo
    is not installed or cannot draw.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"seconds is {seconds}; it must be a positive number", argument="seconds")
    spec = run.checkpoint(n).task_spec
    if not (spec.get("task") in NAMES and "variant" in spec):
        raise InputError(f"{run.name} learnt the task {spec.get('task')}, which has no physics to render")
    task = task_of(spec, threads=1)
    policy = run.load(n)
    if policy.spec.inputs != task.num_inputs:
        raise CheckpointError(
            f"agent {n} of {run.name} has {policy.spec.inputs} inputs and {task.definition.title}; it is damaged, train again"
        )
    env = task.env(1, seed, policy.log_std.device)
    episode = play(env, partial(mean_action, policy))
    film = draw(task.definition, episode, seconds, patience)
    return Clip(task, str(run.provenance["members"][n]["agent"]), seed, episode, film)


def section(history: History) -> dict[str, Any] | None:
    """What the report shows of the best agent: a clip, or why there is none; None for an unfinished run or other tasks."""
    n = _best(history)
    if n is None:
        return None
    try:
        clip = record(TrainedRun(history.where), n, seconds=SHOWN, patience=PATIENCE)
    except FinpodError as error:
        return {"lacking": str(error)}
    return {
        "lacking": "",
        "title": clip.task.definition.title,
        "body": clip.task.definition.gym_id,
        "agent": clip.agent,
        "played": str(clip),
        "moving": _data_url("gif", encode(clip.film, ".gif")),
        "still": _data_url("png", encode(clip.film, ".png")),
        "size": (WIDTH, HEIGHT),
    }


def _best(history: History) -> int | None:
    """The best agent that was kept of the history's tournaments; None if there is nothing to be shown."""
    if not (history.finished and history.logs[-1].header.get("task", {}).get("task") in NAMES):
        return None
    if not Path(history.where).is_dir():
        return None
    agents = {trial.agent for trial in history.trials if trial.kept}
    members = TrainedRun(history.where).provenance["members"]
    return next((n for n, member in enumerate(members) if member["agent"] in agents), None)


def _data_url(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{b64encode(content).decode()}"
