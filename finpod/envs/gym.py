"""Gymnasium environments: `TradingEnv` on tensors, `NumpyTradingEnv` on arrays, `DenseTradingEnv` with one account, and
`LocomotionVectorEnv` for locomotion.

When an episode ends, the next one begins in the same step: `info["final_obs"]` is the last observation of the old episode,
and the mask `info["_final_obs"]` [E] marks the environments whose episode ended. The end of the data and the horizon
truncate, ruin terminates. An action that is not finite raises an error before anything is traded or moved.
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
from finpod.errors import InputError
from finpod.features.panel import Features, build_panel
from finpod.features.scaling import CLIP, Scaling
from finpod.market.data import DateLike, MarketData
from finpod.measures import Array
from finpod.seeds import require_seed
from finpod.trading.anchors import anchor_weights
from finpod.trading.execution import build_execution

if TYPE_CHECKING:
    from finpod.envs.locomotion.environment import LocomotionEnv

REACH = 3.0
"""Value z of a tilt or softmax action for an array action of 1, the bound of its space: tanh 3 = 0.995."""
METADATA: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}


class _Vector(VectorEnv[Any, Any, Any]):
    """A vector environment of E copies of a single observation and action space."""

    def __init__(
        self, num_envs: int, observation: spaces.Space[Any], action: spaces.Space[Any], *, tensors: bool
    ) -> None:
        self.num_envs, self.metadata = num_envs, METADATA | ({"torch": True} if tensors else {})
        self.single_observation_space, self.single_action_space = observation, action
        self.observation_space, self.action_space = (batch_space(space, num_envs) for space in (observation, action))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin all episodes. A seed makes these and all later episodes reproducible; `options` are not used.

        Raises InputError if the seed is not a whole number from 0 to 2**64 - 1 or `options` has a "reset_mask".
        """
        if options is not None and "reset_mask" in options:
            raise InputError("options has a reset_mask; leave it out, as an episode that ends is reset automatically")
        super().reset(seed=None if seed is None else require_seed(seed))
        return self._reset(seed), {}

    def _reset(self, seed: int | None) -> Any:
        """Begin all episodes and return their first observations."""
        raise NotImplementedError


class TradingEnv(_Vector):
    """E accounts in one market as a gymnasium vector environment whose arrays are torch tensors on `device`.

    An observation is {"row": [E] int64, "state": [E, N + 1] float32}: a row of the table `panel.features` [T, N, F], which
    all accounts share, and the weights at its close, cash last. `TradingConfig.action` determines the actions [E, A]:
    z [E, N] of a tilt around the anchor, logits [E, N + 1] of assets and cash, or orders [E, N] from -1 to 1. Rewards are
    float32 [E]. `info["episode"]` has the sum of rewards "r" [E] and the number of steps "l" [E] of the episodes that
    ended, zero elsewhere. gymnasium's RecordEpisodeStatistics reports the same, but accepts arrays only.

    `start` and `end` bound the sessions traded. The features are scaled by `scaling`, taken from a trained agent; if it is
    None, by statistics of the sessions from `start` to `end`.
    """

    def __init__(
        self,
        market: MarketData,
        *,
        start: DateLike | None = None,
        end: DateLike | None = None,
        features: Features = None,
        scaling: Scaling | None = None,
        config: TradingConfig | None = None,
        fill: str | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        first, last = market.window(start, end)
        self.config = config or TradingConfig()
        self.tickers, self.dates = market.tickers, market.dates
        self.execution = build_execution(market, fill, device)
        used = slice(max(first - self.execution.lag, 0), last + 1)
        anchor = anchor_weights(self.execution, self.config.anchor, market, used)
        self.market_env = MarketEnv(self.execution, first, last, self.config, seed, anchor=anchor)
        self.panel = build_panel(market, features, scaling=scaling, fit=(first, last + 1), device=device)
        self._return = torch.zeros(self.config.num_envs, device=self.market_env.device)
        self._length = torch.zeros_like(self._return, dtype=torch.int64)
        bound = 1.0 if self.config.action == "shares" else np.inf
        row = spaces.Box(0, len(market.dates) - 1, (), np.int64)
        state = spaces.Box(0.0, 1.0, (len(market.tickers) + 1,), np.float32)
        action = spaces.Box(-bound, bound, (self.market_env.num_actions,), np.float32)
        super().__init__(self.config.num_envs, spaces.Dict({"row": row, "state": state}), action, tensors=True)

    def _reset(self, seed: int | None) -> dict[str, Tensor]:
        self._return, self._length = torch.zeros_like(self._return), torch.zeros_like(self._length)
        return _as_dict(self.market_env.reset(seed))

    def step(self, actions: Tensor | Array) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Trade on actions [E, A]. Raises InputError that names the environment of an action that is not finite."""
        step = self.market_env.step(_finite(actions, self.action_space.shape, self.market_env.device))
        ended = step.terminated | step.truncated
        self._return, self._length = self._return + step.reward, self._length + 1
        info = {
            "final_obs": _as_dict(step.final_obs),
            "_final_obs": ended,
            "_episode": ended,
            "episode": {"r": self._return * ended, "l": self._length * ended},
        }
        self._return, self._length = self._return * ~ended, self._length * ~ended
        return _as_dict(step.obs), step.reward, step.terminated, step.truncated, info


class NumpyTradingEnv(_Vector):
    """A `TradingEnv` on numpy arrays, for gymnasium's vector wrappers and for learners that use arrays.

    An observation is [E, N * F + N + 1] float32: the features of the row, asset by asset, then the weights, cash last.
    Actions [E, A] are clipped to [-1, 1]. Those of a tilt or of logits are multiplied by `REACH`; orders are not. Rewards
    are float64 [E]. `info["final_info"]` is empty; use gymnasium's RecordEpisodeStatistics for episode statistics.
    Gymnasium's vector wrappers of observations do not support environments that reset within a step; the features are
    already scaled. `many` is the environment on tensors.
    """

    def __init__(self, env: TradingEnv) -> None:
        self.many, self.table = env, env.panel.features.flatten(1)
        self.reach = 1.0 if env.config.action == "shares" else REACH
        count, weights = self.table.shape[1], len(env.tickers) + 1
        high = np.repeat(np.array([max(CLIP.values()), 1.0], np.float32), [count, weights])
        low = np.where(np.arange(count + weights) < count, -high, np.float32(0.0))
        action = spaces.Box(-1.0, 1.0, env.single_action_space.shape, np.float32)
        super().__init__(env.num_envs, spaces.Box(low, high, dtype=np.float32), action, tensors=False)

    def _reset(self, seed: int | None) -> Array:
        return self._dense(self.many.reset(seed=seed)[0])

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Trade on actions [E, A]. Raises InputError that names the environment of an action that is not finite."""
        action = np.asarray(actions, dtype=np.float32)
        scaled = self.reach * np.where(np.isfinite(action), action.clip(-1, 1), action)
        obs, reward, terminated, truncated, step_info = self.many.step(scaled)
        dense, ended = self._dense(obs), step_info["_final_obs"].cpu().numpy()
        final = self._dense(step_info["final_obs"]) if ended.any() else dense
        info = {"final_obs": final, "_final_obs": ended, "final_info": {}, "_final_info": ended}
        return dense, reward.double().cpu().numpy(), terminated.cpu().numpy(), truncated.cpu().numpy(), info

    def _dense(self, obs: dict[str, Tensor]) -> Array:
        return torch.cat([self.table[obs["row"]], obs["state"]], -1).cpu().numpy()


class DenseTradingEnv(gymnasium.Env[Array, Array]):
    """One account as an ordinary gymnasium environment, which the caller resets.

    Spaces and rewards are those of a `NumpyTradingEnv` of one account. `options` are the other arguments of `TradingEnv`;
    num_envs and start_groups of `config` are ignored.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium declares it so)

    def __init__(self, market: MarketData, *, config: TradingConfig | None = None, **options: Any) -> None:
        one = replace(config or TradingConfig(), num_envs=1, start_groups=None)
        self.many = TradingEnv(market, config=one, **options)
        self._rows = NumpyTradingEnv(self.many)
        self.action_space = self._rows.single_action_space
        self.observation_space = self._rows.single_observation_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin an episode. A seed makes this and all later start days reproducible; see `TradingEnv.reset`."""
        super().reset(seed=None if seed is None else require_seed(seed))
        obs, _ = self._rows.reset(seed=seed)
        return obs[0], {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Trade on an action [A]. Raises InputError if it is not finite."""
        _, reward, terminated, truncated, info = self._rows.step(np.asarray(action)[None])
        return info["final_obs"][0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}


class LocomotionVectorEnv(_Vector):
    """A locomotion task as a gymnasium vector environment of E worlds.

    Observations [E, S] float32 and rewards [E] are tensors on `device`, or arrays with `numpy=True`. Actions [E, A] lie
    within the task's `action_limit`. `env` is the environment on tensors.
    """

    def __init__(self, env: LocomotionEnv, *, numpy: bool = False) -> None:
        self.env, self.numpy, limit = env, numpy, env.spec.action_limit
        observation = spaces.Box(-np.inf, np.inf, (env.spec.num_inputs,), np.float32)
        action = spaces.Box(-limit, limit, (env.spec.num_actions,), np.float32)
        super().__init__(env.num_envs, observation, action, tensors=not numpy)

    def _reset(self, seed: int | None) -> Any:
        return self._out(self.env.reset(seed).state)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Apply actions [E, A]. Raises InputError that names the environment of an action that is not finite."""
        step = self.env.step(_finite(actions, self.action_space.shape, self.env.device))
        self.env.check()
        ended = self._out(step.terminated | step.truncated)
        info = {"final_obs": self._out(step.final_obs.state), "_final_obs": ended}
        if self.numpy:
            info |= {"final_info": {}, "_final_info": ended}
        reward = step.reward.double() if self.numpy else step.reward
        return self._out(step.obs.state), *map(self._out, (reward, step.terminated, step.truncated)), info

    def _out(self, values: Tensor) -> Any:
        return values.cpu().numpy() if self.numpy else values


def _finite(actions: Any, shape: tuple[int, ...] | None, device: torch.device) -> Tensor:
    """Return actions as a float32 tensor. Raises InputError for a wrong shape and for an action that is not finite."""
    action = torch.as_tensor(actions, dtype=torch.float32, device=device)
    if action.shape != shape:
        raise InputError(f"actions have shape {tuple(action.shape)}; this environment takes {shape}")
    if not action.isfinite().all():
        env, column = (~action.isfinite()).nonzero()[0].tolist()
        value = action[env, column].item()
        raise InputError(f"the action of environment {env} is {value} in column {column}; give finite numbers")
    return action


def _as_dict(obs: Observation) -> dict[str, Tensor]:
    assert obs.row is not None, "observations of a market have a row"
    return {"row": obs.row, "state": obs.state}
