"""`LocomotionTask`: the locomotion tasks of Gymnasium v5 as tasks for `train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from finpod.envs.locomotion import mujoco, warp
from finpod.envs.locomotion.environment import LocomotionEnv, make_locomotion
from finpod.envs.locomotion.specs import Spec, spec_of
from finpod.rl.evaluate import episodes
from finpod.rl.policy import Policy
from finpod.rl.task import Score, Space, Task

EPISODES = 20
"""Number of episodes in which a policy is evaluated."""
EVALUATION_SEED = 2**32 - 1
"""Seed of the initial states of an evaluation. Training uses other seeds."""
PPO = {
    "learning_rate": 1e-3, "gamma": 0.99, "gae_lambda": 0.95, "num_steps": 32, "update_epochs": 10,
    "num_minibatches": 8, "target_kl": 1000.0, "factored": False, "center_days": False, "scale_reward": True,
}  # fmt: skip
"""PPO settings: rollouts of 2,048 steps, minibatches of 256 steps, and in effect no limit on the KL divergence. The
settings in a task's `Spec.ppo` override these PPO settings."""
BOUNDS = {"learning_rate": (1e-4, 2e-3), "gamma": (0.95, 0.999), "gae_lambda": (0.9, 0.99), "clip_coef": (0.1, 0.3)}
"""PPO setting -> bounds between which a tournament draws the value of the setting at random."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LocomotionTask(Task):
    """One of six locomotion tasks, in one variant. Agents are ranked by mean return in 20 deterministic episodes."""

    name: str
    variant: str = "standard"
    """'standard', 'full' (with contact forces) or 'fast' (cheaper integrator). Compare scores only within a variant."""
    threads: int | None = None
    """Number of physics threads; it does not affect results. None: OMP_NUM_THREADS if set, else all usable cores."""
    device: str = "cpu"
    """Device of the physics: 'cpu' for MuJoCo or 'cuda' for MuJoCo Warp. `train` sets it."""
    measure: str = field(init=False, default="mean_return")
    num_envs: int = field(init=False, default=64)
    num_inputs: int = field(init=False)
    num_actions: int = field(init=False)
    steps: int = field(init=False)

    def __post_init__(self) -> None:
        for what in ("num_inputs", "num_actions", "steps"):
            object.__setattr__(self, what, getattr(self.definition, what))

    @cached_property
    def definition(self) -> Spec:
        """Specification of the task: observation, reward and end of an episode."""
        return spec_of(self.name, self.variant)

    def env(self, num_envs: int, seed: int, device: torch.device) -> LocomotionEnv:
        """Return `num_envs` environments for training. Actions from -1 to 1 cover the range of the motors."""
        options: dict[str, Any] = {"variant": self.variant, "threads": self.threads, "seed": seed, "device": device}
        return make_locomotion(self.name, num_envs, action_scale=self.definition.action_limit, **options)

    def score(self, policy: Policy) -> Score:
        """Return the mean, deviation and minimum of the return, and the mean length, of 20 deterministic episodes."""
        returns, lengths = episodes(self.env(EPISODES, EVALUATION_SEED, policy.log_std.device), policy)
        figures = {"mean_return": returns.mean(), "sd_return": returns.std(), "worst_return": returns.min()}
        figures["mean_length"] = lengths.double().mean()
        return Score({name: value.item() for name, value in figures.items()})

    def space(self) -> Space:
        """Return the search space: network width and learner settings. All agents begin with the same action noise."""
        return Space(start={"hidden": 64, "log_std_init": -0.5}, choices={"hidden": (64, 128)}, learner=BOUNDS)

    def defaults(self, learner: str) -> dict[str, Any]:
        """Return the first agent's settings of PPO; empty for other learners. See backtests/README.md for results."""
        return {**PPO, **self.definition.ppo} if learner == "ppo" else {}

    def header(self) -> dict[str, Any]:
        """Return entries for the log: 'task', which must not change on resuming, and 'versions' (physics engine)."""
        spec = self.spec()
        return {"versions": {"engine": spec.pop("engine")}, "task": spec}

    def spec(self) -> dict[str, Any]:
        """Return the data on which scores depend: task, variant, and the engine's integrator, solver and version."""
        spec, engine = self.definition, mujoco if torch.device(self.device).type == "cpu" else warp
        return {"task": self.name, "variant": self.variant, "title": spec.title, **engine.describe(spec)}


def task_of(spec: Mapping[str, Any], threads: int | None = None) -> LocomotionTask:
    """Return the task of a saved agent. `spec` is the result of `LocomotionTask.spec` that was saved with the agent."""
    return LocomotionTask(name=str(spec["task"]), variant=str(spec["variant"]), threads=threads)
