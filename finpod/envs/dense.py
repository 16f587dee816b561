"""`DenseVectorEnv`: environments whose observation is a row of numbers, as a gymnasium vector environment."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from finpod.envs.step import Observation, Step
from finpod.errors import InputError
from finpod.seeds import require_seed


class Dense(Protocol):
    """Environments without a shared table."""

    num_envs: int
    device: torch.device

    def reset(self, seed: int | None = None) -> Observation:
        """Begin all episodes."""

    def step(self, action: Tensor) -> Step:
        """Apply actions [E, A]."""

    def check(self) -> None:
        """Raise an error for what went wrong since the last check."""


class DenseVectorEnv(VectorEnv[Any, Any, Any]):
    """E environments; observations [E, S] float32 and rewards [E] are tensors on `device`, or arrays with `numpy`.

    An episode that ends begins again within the same step: `info["final_obs"]` [E, S] is what the step led to, and the
    mask `info["_final_obs"]` [E] says whose episode ended. An action that is not finite is refused before anything moves.
    `env` is the environment on tensors.
    """

    def __init__(self, env: Dense, num_inputs: int, num_actions: int, limit: float, *, numpy: bool = False) -> None:
        self.env, self.num_envs, self.numpy = env, env.num_envs, numpy
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []} | (
            {} if numpy else {"torch": True}
        )
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (num_inputs,), np.float32)
        self.single_action_space = spaces.Box(-limit, limit, (num_actions,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin all episodes. A seed makes these and all later ones repeatable; of `options` none is used.

        Raises InputError for a seed that is not a whole number from 0 to 2**64 - 1, and for `options["reset_mask"]`.
        """
        if options is not None and "reset_mask" in options:
            raise InputError("options has a reset_mask; all episodes begin together, and by themselves when they end")
        super().reset(seed=None if seed is None else require_seed(seed))
        return self._out(self.env.reset(seed).state), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Apply actions [E, A]. Raises InputError naming the environment of an action that is not finite."""
        action = torch.as_tensor(actions, dtype=torch.float32, device=self.env.device)
        if action.shape != self.action_space.shape:
            raise InputError(
                f"actions have shape {tuple(action.shape)}; this environment takes {self.action_space.shape}"
            )
        if not action.isfinite().all():
            place = (~action.isfinite()).nonzero()[0].tolist()
            raise InputError(
                f"the action of environment {place[0]} is {action[tuple(place)].item()} in column {place[1]}; give finite "
                "numbers"
            )
        step = self.env.step(action)
        self.env.check()
        ended = self._out(step.terminated | step.truncated)
        info = {"final_obs": self._out(step.final_obs.state), "_final_obs": ended}
        if self.numpy:
            info |= {"final_info": {}, "_final_info": ended}
        reward = step.reward.double() if self.numpy else step.reward
        return self._out(step.obs.state), *map(self._out, (reward, step.terminated, step.truncated)), info

    def _out(self, values: Tensor) -> Any:
        return values.cpu().numpy() if self.numpy else values
