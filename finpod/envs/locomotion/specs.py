"""The six tasks, defined as in Gymnasium's v5 environments: pure functions of the physics state, and constants.

A state maps MuJoCo's field names (qpos, qvel, ctrl and `Spec.reads`) to tensors [W, ...] of W worlds. Only body_mass
[bodies] has no dimension W. As in Gymnasium, derived fields such as xpos are one substep older than qpos.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from finpod.errors import InputError, require_choice

State = Mapping[str, Tensor]
TIME_LIMIT = 1000
"""Number of steps after which an episode is truncated."""


def forward(state: State) -> Tensor:
    """Return the forward coordinate [W] of the first joint."""
    return state["qpos"][:, 0]


def torso(state: State) -> Tensor:
    """Return the forward coordinate [W] of the first body."""
    return state["xpos"][:, 1, 0]


def mass_centre(state: State) -> Tensor:
    """Return the forward coordinate [W] of the centre of mass of all bodies."""
    mass = state["body_mass"]
    return (state["xipos"][..., 0] * mass).sum(-1) / mass.sum()


def joints(skip: int, limit: float = torch.inf) -> Callable[[State], Tensor]:
    """Return a function of states: joint positions without the first `skip`, then velocities clipped at +-`limit`."""

    def observe(state: State) -> Tensor:
        return torch.cat([state["qpos"][:, skip:], state["qvel"].clamp(-limit, limit)], -1)

    return observe


def with_forces(observe: Callable[[State], Tensor], limit: float) -> Callable[[State], Tensor]:
    """Return a function of states: `observe(state)`, then forces on bodies (not the world), clipped at +-`limit`."""

    def observe_forces(state: State) -> Tensor:
        return torch.cat([observe(state), state["cfrc_ext"][:, 1:].flatten(1).clamp(-limit, limit)], -1)

    return observe_forces


def humanoid(state: State) -> Tensor:
    """Return the observation [W, S]: joint positions and velocities, body inertias and velocities, and motor forces."""
    bodies = [state[name][:, 1:].flatten(1) for name in ("cinert", "cvel")]
    return torch.cat([joints(2)(state), *bodies, state["qfrc_actuator"][:, 6:]], -1)


def always(state: State) -> Tensor:
    """Return True for all worlds [W]."""
    return torch.ones_like(state["qpos"][:, 0], dtype=torch.bool)


def upright(low: float, high: float) -> Callable[[State], Tensor]:
    """Return a function from states to bool masks [W]: the height of the torso is from `low` to `high` metres."""

    def healthy(state: State) -> Tensor:
        return (state["qpos"][:, 2] >= low) & (state["qpos"][:, 2] <= high)

    return healthy


def hopper_healthy(state: State) -> Tensor:
    """Return a bool mask [W]: torso above 0.7 m, tilt below 0.2 rad, and all angles and velocities within +-100."""
    height, angle = state["qpos"][:, 1], state["qpos"][:, 2]
    bounded = (state["qpos"][:, 2:].abs().amax(-1) < 100) & (state["qvel"].abs().amax(-1) < 100)
    return (height > 0.7) & (angle.abs() < 0.2) & bounded


def walker_healthy(state: State) -> Tensor:
    """Return a bool mask [W] of the worlds whose torso is 0.8 m to 2 m high and tilted by less than 1 rad."""
    height, angle = state["qpos"][:, 1], state["qpos"][:, 2]
    return (height > 0.8) & (height < 2.0) & (angle.abs() < 1.0)


def ant_contact(state: State) -> Tensor:
    """Return the cost [W] of external forces on the Ant."""
    return 5e-4 * state["cfrc_ext"].clamp(-1, 1).square().sum((-2, -1))


def humanoid_contact(state: State) -> Tensor:
    """Return the cost [W] of external forces on the Humanoid, at most 10."""
    return (5e-7 * state["cfrc_ext"].square().sum((-2, -1))).clamp(max=10)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Definition of one task: its model, observation, reward, and how episodes begin and end.

    reward = forward_weight * speed - control_weight * |action|^2 + healthy * healthy_reward - contact cost
    """

    gym_id: str
    """Name of Gymnasium's environment with this definition."""
    gym_options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `gymnasium.make` for this definition."""
    variant: str = "standard"
    """'standard'; 'full', with external contact forces; or 'fast', with an integrator four times faster."""
    model: str
    """File of the model among Gymnasium's assets."""
    frame_skip: int
    """Number of physics steps per environment step."""
    num_inputs: int
    """Size S of an observation."""
    num_actions: int
    """Number A of motors."""
    action_limit: float = 1.0
    """Bound of the action space. MuJoCo clips larger actions, but their cost is computed before the clipping."""
    reads: tuple[str, ...] = ()
    """Derived fields and model constants that the functions of this task read."""
    observe: Callable[[State], Tensor]
    """State -> observation [W, S]."""
    position: Callable[[State], Tensor] = forward
    """State -> coordinate [W] in metres. Its change per second is the speed in the reward."""
    healthy: Callable[[State], Tensor] = always
    """State -> bool mask [W] of healthy worlds. An episode terminates when its world is not healthy."""
    contact_cost: Callable[[State], Tensor] | None = None
    """State -> cost [W] of external forces."""
    forward_weight: float = 1.0
    control_weight: float
    healthy_reward: float = 0.0
    qpos_noise: float
    """Bound of the uniform noise on the positions of a new episode."""
    qvel_noise: float
    """Bound of the uniform noise on the velocities of a new episode. If `qvel_normal` is True, the noise is
    normal with this standard deviation."""
    qvel_normal: bool = False
    steps: int = 1_000_000
    """Default number of environment steps that an agent trains for."""
    ppo: Mapping[str, Any] = field(default_factory=dict)
    """Settings of PPO for this task. They replace those in `finpod.locomotion.PPO`."""
    contacts: tuple[int, int]
    """Largest number of contacts and largest number of constraints that a world had under random actions."""

    def reward(self, state: State, action: Tensor, speed: Tensor, healthy: Tensor) -> Tensor:
        """Return the rewards [W] for unclipped actions [W, A] and forward speeds [W] in m/s."""
        reward = self.forward_weight * speed - self.control_weight * action.square().sum(-1)
        reward = reward + self.healthy_reward * healthy
        return reward if self.contact_cost is None else reward - self.contact_cost(state)

    @property
    def title(self) -> str:
        """Task, variant and sizes in words, such as "Ant-v5, standard variant: 27 inputs, 8 actions"."""
        return f"{self.gym_id}, {self.variant} variant: {self.num_inputs} inputs, {self.num_actions} actions"


NO_FORCES = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0}
SPECS: dict[str, Spec] = {
    "hopper": Spec(
        gym_id="Hopper-v5", model="hopper.xml", frame_skip=4, num_inputs=11, num_actions=3,
        observe=joints(1, 10), healthy=hopper_healthy, control_weight=1e-3, healthy_reward=1.0,
        qpos_noise=5e-3, qvel_noise=5e-3, contacts=(5, 18), ppo={"num_steps": 64, "num_minibatches": 16},
    ),
    "halfcheetah": Spec(
        gym_id="HalfCheetah-v5", model="half_cheetah.xml", frame_skip=5, num_inputs=17, num_actions=6,
        observe=joints(1), control_weight=0.1, qpos_noise=0.1, qvel_noise=0.1, qvel_normal=True, contacts=(4, 17),
    ),
    "walker2d": Spec(
        gym_id="Walker2d-v5", model="walker2d_v5.xml", frame_skip=4, num_inputs=17, num_actions=6,
        observe=joints(1, 10), healthy=walker_healthy, control_weight=1e-3, healthy_reward=1.0,
        qpos_noise=5e-3, qvel_noise=5e-3, contacts=(6, 26),
    ),
    "swimmer": Spec(
        gym_id="Swimmer-v5", model="swimmer.xml", frame_skip=4, num_inputs=8, num_actions=2,
        observe=joints(2), control_weight=1e-4, qpos_noise=0.1, qvel_noise=0.1, contacts=(0, 2),
        ppo={"gamma": 0.999},
    ),
    "ant": Spec(
        gym_id="Ant-v5", gym_options=NO_FORCES, model="ant.xml", frame_skip=5, num_inputs=27, num_actions=8,
        reads=("xpos",), observe=joints(2), position=torso, healthy=upright(0.2, 1.0),
        control_weight=0.5, healthy_reward=1.0, qpos_noise=0.1, qvel_noise=0.1, qvel_normal=True,
        steps=3_000_000, ppo={"learning_rate": 3e-4}, contacts=(5, 23),
    ),
    "humanoid": Spec(
        gym_id="Humanoid-v5", gym_options=NO_FORCES, model="humanoid.xml", frame_skip=5,
        num_inputs=270, num_actions=17, action_limit=0.4,
        reads=("cinert", "cvel", "qfrc_actuator", "xipos", "body_mass"),
        observe=humanoid, position=mass_centre, healthy=upright(1.0, 2.0),
        forward_weight=1.25, control_weight=0.1, healthy_reward=5.0, qpos_noise=0.01, qvel_noise=0.01,
        ppo={"learning_rate": 2e-4}, contacts=(9, 33),
    ),
}  # fmt: skip
"""Name -> task in its standard variant."""

FULL: dict[str, dict[str, Any]] = {
    "ant": {"num_inputs": 105, "observe": with_forces(joints(2), 1), "contact_cost": ant_contact},
    "humanoid": {"num_inputs": 348, "observe": with_forces(humanoid, torch.inf), "contact_cost": humanoid_contact},
}
"""Task -> fields of its `Spec` that differ in the full variant. `spec_of` also replaces `gym_options` and `reads`."""
EULER = ("halfcheetah",)
"""Tasks without a fast variant, because their model uses the Euler integrator, not RK4."""


def spec_of(name: str, variant: str = "standard") -> Spec:
    """Return a variant of a task. Raises InputError for an unknown name or a variant that the task does not have."""
    require_choice("task", name, tuple(SPECS))
    spec = SPECS[name]
    offered = ["standard"] + ["full"] * (name in FULL) + ["fast"] * (name not in EULER)
    if variant not in offered:
        raise InputError(f"{name} has no variant {variant!r}; choose one of {', '.join(offered)}", argument="variant")
    if variant == "full":
        return replace(spec, variant=variant, gym_options={}, reads=(*spec.reads, "cfrc_ext"), **FULL[name])
    return replace(spec, variant=variant)
