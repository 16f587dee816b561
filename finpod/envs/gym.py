"""Gymnasium environments. `TradingEnv` and `DenseTradingEnv` (one account) trade, `LocomotionVectorEnv` moves bodies.

When an episode of a vector environment ends, the next episode begins in the same step. `info["final_obs"]` then has the
last observation of the ended episode, and the mask `info["_final_obs"]` [E] marks ended episodes. An account's episode
is truncated at the horizon or the end of the window, and terminated at zero equity. All actions must be finite.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from finpod.envs.actions import TradingConfig
from finpod.envs.market_env import MarketEnv
from finpod.envs.step import Observation
from finpod.errors import InputError, require_seed
from finpod.features.panel import CLIP, Features, Scaling, build_panel
from finpod.market.data import DateLike, MarketData
from finpod.measures import Array
from finpod.trading.anchors import anchor_weights
from finpod.trading.execution import build_execution

if TYPE_CHECKING:
    from finpod.envs.locomotion.environment import LocomotionEnv

REACH = 3.0
"""Array actions in [-1, 1] times this factor are logits, or the z of a tilt, with |tanh z| at most 0.995."""


class _Vector(VectorEnv[Any, Any, Any]):
    """Gymnasium vector environment around `env`. It returns NumPy arrays if `numpy` is True, otherwise tensors."""

    def __init__(self, env: Any, observation: spaces.Space[Any], action: spaces.Space[Any], *, numpy: bool) -> None:
        self.env, self.numpy, self.num_envs = env, numpy, env.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": [], "torch": not numpy}
        self.single_observation_space, self.single_action_space = observation, action
        self.observation_space, self.action_space = (batch_space(one, env.num_envs) for one in (observation, action))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin all episodes. A seed makes these and all later episodes reproducible; `options` are not used.

        Raises InputError if the seed is not a whole number from 0 to 2**64 - 1 or `options` has a "reset_mask".
        """
        if options is not None and "reset_mask" in options:
            raise InputError("options has 'reset_mask'; omit it, because ended episodes are reset automatically")
        super().reset(seed=None if seed is None else require_seed(seed))
        return self._seen(self.env.reset(seed)), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Apply actions [E, A] to E environments. Raises InputError for a wrong shape or a value that is not finite."""
        step = self.env.step(self._action(actions))
        self.env.check()
        ended = step.terminated | step.truncated
        obs = self._seen(step.obs)
        final = obs if self.numpy and not ended.any() else self._seen(step.final_obs)
        info = {"final_obs": final, "_final_obs": self._out(ended)}
        if self.numpy:
            info |= {"final_info": {}, "_final_info": self._out(ended)}
        reward = step.reward.double() if self.numpy else step.reward
        return obs, self._out(reward), self._out(step.terminated), self._out(step.truncated), info

    def _action(self, actions: Any) -> Tensor:
        """Return actions as a float32 tensor. Raises InputError for a wrong shape or a value that is not finite."""
        action = torch.as_tensor(actions, dtype=torch.float32, device=self.env.device)
        if action.shape != (shape := self.action_space.shape):
            raise InputError(f"actions have shape {tuple(action.shape)}; this environment needs shape {shape}")
        if not action.isfinite().all():
            env, column = (~action.isfinite()).nonzero()[0].tolist()
            value = action[env, column].item()
            raise InputError(f"the action of environment {env} is {value} in column {column}; pass finite numbers")
        return action

    def _out(self, values: Tensor) -> Any:
        return values.cpu().numpy() if self.numpy else values

    def _seen(self, obs: Observation) -> Any:
        """Return observations as elements of the observation space."""
        return self._out(obs.state)


class TradingEnv(_Vector):
    """Gymnasium vector environment of E accounts in one market. Values are tensors on `device`, or NumPy arrays.

    With tensors, an observation is {"row": [E] int64, "state": [E, N + 1] float32}. `row` is the number of a row in the
    table `panel.features` [T bars, N assets, F features], which all accounts share. `state` has the weights of the
    assets at the close of that row, then the weight of cash. Actions [E, A] depend on `TradingConfig.action`: z [E, N]
    of a tilt, logits [E, N + 1] of assets and cash, or orders [E, N] from -1 to 1. Rewards are float32 [E].

    With `numpy`, an observation is [E, N * F + N + 1] float32: the scaled features asset by asset, then the weights of
    assets and cash. Actions [E, A] are clipped to [-1, 1]; z and logits are then multiplied by `REACH`. Rewards are
    float64 [E]. Gymnasium's RecordEpisodeStatistics can wrap the environment. Gymnasium's observation wrappers cannot,
    because episodes are reset within a step.

    `start` and `end` are the first and last date to trade. `scaling` is the `panel.scaling` of another environment; if
    it is None, the scaling is fitted on the sessions traded. The attribute `env` is the `MarketEnv`.
    """

    def __init__(
        self, market: MarketData, *, start: DateLike | None = None, end: DateLike | None = None,
        features: Features = None, scaling: Scaling | None = None, config: TradingConfig | None = None,
        fill: str | None = None, seed: int = 0, device: str | torch.device = "cpu", numpy: bool = False,
    ) -> None:  # fmt: skip
        first, last = market.window(start, end)
        self.config = config or TradingConfig()
        execution = build_execution(market, fill, device)
        used = slice(max(first - execution.lag, 0), last + 1)
        anchor = anchor_weights(execution, self.config.anchor, market, used)
        env = MarketEnv(execution, first, last, self.config, seed, anchor=anchor)
        self.panel = build_panel(market, features, scaling=scaling, fit=(first, last + 1), device=device)
        orders = self.config.action == "shares"
        self._scale = 1.0 if orders else REACH
        bound = 1.0 if orders or numpy else np.inf
        action = spaces.Box(-bound, bound, (env.num_actions,), np.float32)
        weights = np.ones(len(market.tickers) + 1, np.float32)
        if numpy:
            features_high = np.full(self.panel.features[0].numel(), max(CLIP.values()), np.float32)
            low, high = np.append(-features_high, 0 * weights), np.append(features_high, weights)
            observation: spaces.Space[Any] = spaces.Box(low, high, dtype=np.float32)
        else:
            row = spaces.Box(0, len(market.dates) - 1, (), np.int64)
            observation = spaces.Dict({"row": row, "state": spaces.Box(0 * weights, weights, dtype=np.float32)})
        super().__init__(env, observation, action, numpy=numpy)

    def _action(self, actions: Any) -> Tensor:
        if not self.numpy:
            return super()._action(actions)
        action = np.asarray(actions, dtype=np.float32)
        return super()._action(self._scale * np.where(np.isfinite(action), action.clip(-1, 1), action))

    def _seen(self, obs: Observation) -> Any:
        if not self.numpy:
            return {"row": obs.row, "state": obs.state}
        return self._out(torch.cat([self.panel.features[obs.row].flatten(1), obs.state], -1))


class DenseTradingEnv(gymnasium.Env[Array, Array]):
    """One account as an ordinary gymnasium environment. The caller resets the environment after an episode.

    The attribute `many` is a `TradingEnv` with one account and NumPy arrays. It defines the spaces and the rewards.
    `options` are other arguments of `TradingEnv`. The fields num_envs and start_groups of `config` are ignored.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium declares it so)

    def __init__(self, market: MarketData, *, config: TradingConfig | None = None, **options: Any) -> None:
        one = replace(config or TradingConfig(), num_envs=1, start_groups=None)
        self.many = TradingEnv(market, config=one, numpy=True, **options)
        self.action_space, self.observation_space = self.many.single_action_space, self.many.single_observation_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin an episode. A seed makes this and all later episodes reproducible. `options` are not used."""
        super().reset(seed=None if seed is None else require_seed(seed))
        obs, _ = self.many.reset(seed=seed)
        return obs[0], {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Trade on an action [A]. Raises InputError if the action is not finite or has a wrong shape."""
        _, reward, terminated, truncated, info = self.many.step(np.asarray(action)[None])
        return info["final_obs"][0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}


class LocomotionVectorEnv(_Vector):
    """A locomotion task as a gymnasium vector environment of E worlds.

    Observations and rewards are float32 tensors on the device of `env`. With `numpy=True`, both are NumPy arrays, and
    rewards are float64. The action bound is `env.spec.action_limit`. `step` also raises errors of `env.check`.
    """

    def __init__(self, env: LocomotionEnv, *, numpy: bool = False) -> None:
        limit = env.spec.action_limit
        observation = spaces.Box(-np.inf, np.inf, (env.spec.num_inputs,), np.float32)
        super().__init__(env, observation, spaces.Box(-limit, limit, (env.spec.num_actions,), np.float32), numpy=numpy)
