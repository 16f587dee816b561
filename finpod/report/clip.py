"""`record`: a clip of an episode of a locomotion agent."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

from finpod.envs.locomotion import NAMES
from finpod.envs.locomotion.render import SECONDS, Episode, Film, draw, play
from finpod.errors import InputError
from finpod.locomotion import LocomotionTask, task_of
from finpod.rl.evaluate import mean_action
from finpod.tournament.trained_run import TrainedRun


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


def record(run: TrainedRun, n: int = 0, *, seconds: float = SECONDS, seed: int = 0) -> Clip:
    """Return a clip of one episode of the n-th best agent of a locomotion run. Its first `seconds` are drawn.

    Raises InputError if the run has another task, the agent was not kept, `seconds` is not positive, or MuJoCo is not
    installed or cannot draw.
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
    film = draw(task.definition, episode, seconds)
    return Clip(task, str(run.provenance["members"][n]["agent"]), episode, film)
