"""`LocomotionTask`: learn to run, with the definitions of Gymnasium v5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from finpod.envs.locomotion.environment import LocomotionEnv, describe, make_locomotion
from finpod.envs.locomotion.specs import Spec, spec_of
from finpod.rl.evaluate import episodes
from finpod.rl.policy import Policy
from finpod.rl.task import Score, Space, Task

EPISODES = 20
"""Episodes of an evaluation."""
EVALUATION_SEED = 2**32 - 1
"""Seed of their first states; agents train on others."""
PPO = {
    "learning_rate": 1e-3, "gamma": 0.99, "gae_lambda": 0.95, "num_steps": 32, "update_epochs": 10, "num_minibatches": 8,
    "target_kl": 1000.0, "factored": False, "center_days": False, "scale_reward": True,
}  # fmt: skip
"""Settings of PPO of all locomotion tasks: rollouts of 2,048 steps in minibatches of 256, and no brake on the divergence."""
BOUNDS = {"learning_rate": (1e-4, 2e-3), "gamma": (0.95, 0.999), "gae_lambda": (0.9, 0.99), "clip_coef": (0.1, 0.3)}
"""How far a search may move them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LocomotionTask(Task):
    """One of the six tasks in one of its variants. Agents are ranked by the mean return of 20 deterministic episodes."""

    name: str
    """One of `NAMES`."""
    variant: str = "standard"
    """'standard'; 'full', with external contact forces; or 'fast', with a cheaper integrator. Their scores do not compare."""
    threads: int | None = None
    """Threads of the physics, which change no result; None for all cores that the process may use."""
    device: str = "cpu"
    """Where agents train: 'cpu', with MuJoCo, or 'cuda', with MuJoCo Warp; `train` sets it."""
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
        """Observation, reward and end of an episode."""
        return spec_of(self.name, self.variant)

    def env(self, num_envs: int, seed: int, device: torch.device) -> LocomotionEnv:
        """Return worlds to train in. An action of 1 is the bound of the action space, so that all tasks explore alike."""
        options: dict[str, Any] = {"variant": self.variant, "threads": self.threads}
        return make_locomotion(
            self.name, num_envs, seed=seed, device=device, action_scale=self.definition.action_limit, **options
        )

    def score(self, policy: Policy) -> Score:
        """Return mean, standard deviation and lowest return of 20 deterministic episodes, and their mean length in steps."""
        env = self.env(EPISODES, EVALUATION_SEED, policy.log_std.device)
        returns, lengths = episodes(env, policy)
        return Score(
            {
                "mean_return": returns.mean().item(),
                "sd_return": returns.std().item(),
                "worst_return": returns.min().item(),
                "mean_length": lengths.double().mean().item(),
            }
        )

    def space(self) -> Space:
        """Return the width of the networks, the noise at the start, and bounds of the learner that suit long episodes."""
        start = {"hidden": 64, "log_std_init": -0.5}
        return Space(start=start, choices={"hidden": (64, 128)}, learner=BOUNDS)

    def defaults(self, learner: str) -> dict[str, Any]:
        """Return settings of PPO with which the task was learnt on five seeds, see backtests/README.md."""
        return {**PPO, **self.definition.ppo} if learner == "ppo" else {}

    def header(self) -> dict[str, Any]:
        """Return what must be equal for a run to be resumed, and the engine with its version."""
        spec = self.spec()
        return {"versions": {"engine": spec.pop("engine")}, "task": spec}

    def spec(self) -> dict[str, Any]:
        """Return all that scores depend on: variant, sizes, integrator, solver and version of the engine."""
        spec = self.definition
        return {"task": self.name, "variant": self.variant, "title": spec.title, **describe(spec, self.device)}


def task_of(spec: Mapping[str, Any], threads: int | None = None) -> LocomotionTask:
    """Return the task of the plain values that travel with its agents."""
    return LocomotionTask(name=str(spec["task"]), variant=str(spec["variant"]), threads=threads)
