"""`LocomotionEnv`: parallel worlds of one locomotion task, on MuJoCo (CPU) or MuJoCo Warp (GPU)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from finpod.devices import torch_seed
from finpod.envs.locomotion.mujoco import BatchPhysics, Physics
from finpod.envs.locomotion.specs import TIME_LIMIT, Spec, spec_of
from finpod.envs.locomotion.warp import WarpPhysics
from finpod.envs.step import Observation, Step
from finpod.errors import CheckpointError, FinpodError, InputError, require_number, require_seed

HUGE = 1e18
"""Actions of this size or more are treated like NaN, because their squares in the cost could overflow float32."""
MAX_FAILURES = 100
"""Default of `max_failures`: a `LocomotionEnv` tolerates this many failures (NaN, overflow) of its worlds."""


class LocomotionEnv:
    """W simulations ("worlds") of one task. If a world fails (NaN, overflow), its episode ends with reward 0.

    `check` raises an error after more than `max_failures` such failures. Actions are multiplied by `action_scale`. An
    action that is not finite, or whose size is `HUGE` or more, is replaced by 0, and the next `check` raises an error.
    """

    groups = 1
    differentiable = False

    def __init__(
        self, spec: Spec, physics: Physics, seed: int = 0, max_failures: int = MAX_FAILURES, action_scale: float = 1.0
    ) -> None:
        self.spec, self.physics, self.max_failures, self.action_scale = spec, physics, max_failures, action_scale
        self.device, self.num_envs = physics.device, len(physics.state["qpos"])
        self.num_actions = spec.num_actions
        self._generator = torch.Generator(device=self.device).manual_seed(torch_seed(require_seed(seed)))
        self._bad = torch.full((2,), -1, dtype=torch.int64, device=self.device)
        self.failures = torch.zeros((), dtype=torch.int64, device=self.device)
        """Number of failures so far. A world that fails twice is counted twice."""
        self._clock = 0
        self.reset()

    def reset(self, seed: int | None = None) -> Observation:
        """Begin all episodes and return the first observations [W, S]."""
        if seed is not None:
            self._generator.manual_seed(torch_seed(require_seed(seed)))
        everywhere = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self._time = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self._begin(everywhere)
        self._place, self._obs = self.spec.position(self.physics.state).clone(), self._seen()
        return self.observe()

    def observe(self) -> Observation:
        """Return the current observations [W, S] float32."""
        return Observation(self._obs)

    @torch.no_grad()
    def step(self, action: Tensor) -> Step:
        """Apply actions [W, A] to the motors for `frame_skip` physics steps, and return the step."""
        spec, state = self.spec, self.physics.state
        good = (action.abs() < HUGE).all(-1)
        self._record_bad(good)
        action = self.action_scale * action.to(state["ctrl"].dtype).where(good.unsqueeze(-1), 0.0)
        state["ctrl"].copy_(action)
        failed = self.physics.step()
        place, healthy = spec.position(state), spec.healthy(state)
        reward = spec.reward(state, action, (place - self._place) / self.physics.dt, healthy)
        reward = reward.where(~failed, 0.0).float()
        final = self._seen().where(~failed.unsqueeze(-1), self._obs)  # a failed world keeps its last valid observation
        self._time += 1
        terminated, truncated = failed | ~healthy, self._time >= TIME_LIMIT
        ended = terminated | truncated
        self.failures += failed.sum()
        self._begin(ended)
        self._time.masked_fill_(ended, 0)
        self._place = spec.position(state).clone()
        self._obs = self._seen().where(ended.unsqueeze(-1), final)
        self._clock += 1
        return Step(Observation(self._obs), reward, terminated, truncated, Observation(final))

    def check(self) -> None:
        """Raise InputError if an action had NaN or a size of at least `HUGE`, FinpodError after too many failures."""
        (env, step), failures = self._bad.tolist(), int(self.failures)
        self._bad.fill_(-1)
        if env >= 0:
            raise InputError(f"the action of environment {env} at step {step} must have a finite size below {HUGE:g}")
        if failures > self.max_failures:
            fault = f"{self.spec.gym_id}: worlds became NaN or overflowed {failures} times"
            limit = f"more than max_failures = {self.max_failures}; use smaller actions, or raise max_failures"
            raise FinpodError(f"{fault}, {limit}")

    def state_dict(self) -> dict[str, Any]:
        """Return a state from which `load_state_dict` continues exactly."""
        tensors = {"time": self._time, "place": self._place, "obs": self._obs, "failures": self.failures}
        return {
            **{name: value.clone() for name, value in tensors.items()},
            "physics": self.physics.save(),
            "clock": self._clock,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of `state_dict`. Raises CheckpointError if stored observations have another shape."""
        stored, expected = tuple(state["obs"].shape), tuple(self._obs.shape)
        if stored != expected:
            text = f"the stored observations have shape {stored}, but {self.spec.gym_id} needs {expected}"
            raise CheckpointError(f"{text}; use the task, variant and number of worlds of the stored run")
        self.physics.load(state["physics"])
        self._time, self._place, self._obs, self.failures = (
            state[name].to(self.device, copy=True) for name in ("time", "place", "obs", "failures")
        )
        self._clock = int(state["clock"])
        self._generator.set_state(state["generator"].cpu())

    def _seen(self) -> Tensor:
        return self.spec.observe(self.physics.state).float()

    def _begin(self, mask: Tensor) -> None:
        """Begin episodes in the worlds that `mask` [W] marks. Noise is drawn for all worlds."""
        spec, state = self.spec, self.physics.state

        def uniform(like: Tensor, bound: float) -> Tensor:
            return torch.empty_like(like).uniform_(-bound, bound, generator=self._generator)

        qpos = self.physics.initial_qpos + uniform(state["qpos"], spec.qpos_noise)
        if spec.qvel_normal:
            qvel = spec.qvel_noise * torch.empty_like(state["qvel"]).normal_(generator=self._generator)
        else:
            qvel = uniform(state["qvel"], spec.qvel_noise)
        self.physics.reset(mask, qpos, qvel)

    def _record_bad(self, good: Tensor) -> None:
        """Record environment and step of the first action that is not `good` [W]. The record stays on the device."""
        bad = torch.stack([(~good).to(torch.uint8).argmax(), torch.full_like(self._bad[1], self._clock)])
        self._bad = torch.where((self._bad[0] < 0) & ~good.all(), bad, self._bad)


def make_locomotion(
    name: str, num_envs: int, *, seed: int = 0, device: torch.device | str = "cpu", variant: str = "standard",
    threads: int | None = None, max_failures: int = MAX_FAILURES, action_scale: float = 1.0,
) -> LocomotionEnv:  # fmt: skip
    """Return the `LocomotionEnv` of a task with `num_envs` worlds. The physics run on MuJoCo's thread pool if `device`
    is the CPU, and on MuJoCo Warp otherwise.

    Raises InputError for an unknown task or variant, for an invalid number, or if the physics engine is not installed.
    """
    spec = spec_of(name, variant)
    require_number("num_envs", num_envs, 1, whole=True)
    require_number("threads", 1 if threads is None else threads, 1, whole=True)
    require_number("max_failures", max_failures, 0, whole=True)
    on_cpu = torch.device(device).type == "cpu"
    physics = BatchPhysics(spec, num_envs, threads) if on_cpu else WarpPhysics(spec, num_envs, device)
    return LocomotionEnv(spec, physics, seed, max_failures, action_scale)
