"""`run`: speed of a locomotion task, compared with Gymnasium's own environments if they are installed."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from joblib import cpu_count

from finpod.bench.backtests import beside
from finpod.bench.machine import LEARNING, circumstances, learning_lines, measured
from finpod.devices import pick_device
from finpod.envs.locomotion.environment import LocomotionEnv, make_locomotion
from finpod.envs.locomotion.specs import Spec
from finpod.errors import require_number
from finpod.locomotion import LocomotionTask
from finpod.measures import Array
from finpod.rl.ppo import PPO, PPOConfig
from finpod.tournament.pod import torch_threads

ENVS = 512
"""Default number of worlds (environments that are simulated in parallel)."""
ACTIONS = 16
"""Number of random actions of each world, which are drawn in advance and repeated."""
FEW = 8
"""Number of environments in the small SyncVectorEnv, whose models fit in the processor's caches."""


def run(
    *, what: str, device: str = "cpu", envs: int = ENVS, seconds: float = 3.0, variant: str = "standard"
) -> dict[str, Any]:
    """Return the speed on the locomotion task `what`, one line per figure, with sizes, hardware and versions.

    Steps per second are summed over all worlds. A step is one decision: `frame_skip` steps of the physics. Each
    of the following is measured for about `seconds`: the physics only, with fixed controls and without new episodes;
    the environment with random actions; Gymnasium's vector environments with random actions on the CPU; the
    environment with an untrained policy; and PPO from end to end with the settings of the task.

    Raises InputError for an unknown task or variant, invalid sizes, a missing device, and if MuJoCo is missing.
    """
    require_number("envs", envs, 1, whole=True)
    require_number("seconds", seconds, 1e-12)
    task, place = LocomotionTask(name=what, variant=variant), pick_device(device)
    spec = task.definition

    def environment() -> LocomotionEnv:
        return make_locomotion(what, envs, device=place, variant=variant)

    # one thread, as in training; a temporary folder, because MuJoCo may write a log into the current folder
    with torch_threads(1), tempfile.TemporaryDirectory() as folder, chdir(folder):
        env = environment()
        env.physics.state["ctrl"].copy_(torch.from_numpy(random_actions(spec, envs)[0]))
        lines = measured("physics", env.physics.step, seconds, place, envs, of="worlds")
        env, actions = environment(), cycle(torch.from_numpy(random_actions(spec, envs)).to(place))
        lines |= measured("env", lambda: env.step(next(actions)), seconds, place, envs, of="worlds")
        if variant == "fast":
            lines["env / gymnasium"] = "n/a: Gymnasium has no fast variant"
        else:
            lines |= beside_gymnasium(spec, envs, seconds, lines["env steps/s"])
        for name in LEARNING:
            env = environment()
            lines |= learning_lines(name, env, _learner(env, task), seconds, place, "worlds")
        return lines | _circumstances(spec, place)


def random_actions(spec: Spec, envs: int) -> Array:
    """Return random actions [ACTIONS, envs, A] float32, uniform in the action space. A is the number of controls."""
    size = ACTIONS, envs, spec.num_actions
    return np.random.default_rng(0).uniform(-spec.action_limit, spec.action_limit, size).astype(np.float32)


def beside_gymnasium(spec: Spec, envs: int, seconds: float, own: float) -> dict[str, Any]:
    """Return lines on Gymnasium's vector environments, and the ratio of `own`, finpod's steps/s, to the fastest.

    SyncVectorEnv is measured with `FEW` and with `envs` environments, AsyncVectorEnv with one and with two processes
    per core. If Gymnasium fails, its error replaces the figure.
    """
    cores, lines = cpu_count(), dict[str, Any]()
    for kind, wanted in (("sync", FEW), ("sync", envs), ("async", cores), ("async", 2 * cores)):
        count = min(wanted, envs)
        name = f"gymnasium {kind} {count}"
        peer = beside("gymnasium", partial(_gymnasium_lines, name, spec, count, kind == "async", seconds))
        lines |= peer if isinstance(peer, dict) else {f"{name} steps/s": peer}
    rates = [rate for rate in lines.values() if isinstance(rate, float)]
    return lines | {"env / gymnasium": own / max(rates) if rates else next(iter(lines.values()))}


def _gymnasium_lines(name: str, spec: Spec, count: int, parallel: bool, seconds: float, _: Any) -> dict[str, Any]:
    with gymnasium_step(spec, count, parallel) as step:
        return measured(name, step, seconds, torch.device("cpu"), count, of="environments")


@contextmanager
def gymnasium_step(spec: Spec, count: int, parallel: bool = False) -> Iterator[Callable[[], Any]]:
    """Yield a function that makes a random step in `count` Gymnasium environments, each in a process if `parallel`."""
    import gymnasium
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

    makers = [partial(gymnasium.make, spec.gym_id, disable_env_checker=True, **spec.gym_options)] * count
    options: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}
    with ExitStack() as stack:
        with silent():  # spawn, because this process has threads; the children inherit the silenced stderr
            make: Any = partial(AsyncVectorEnv, context="spawn") if parallel else SyncVectorEnv
            env = make(makers, **options)
            stack.callback(env.close, terminate=True)
            env.reset(seed=0)
        actions = cycle(random_actions(spec, count))
        yield lambda: env.step(next(actions))


@contextmanager
def silent() -> Iterator[None]:
    """Discard stderr of this process and its children, including output of C code, while the block runs."""
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def _learner(env: LocomotionEnv, task: LocomotionTask) -> Any:
    config = PPOConfig(**task.defaults("ppo"))
    policy = task.policy(task.space().start, torch.Generator().manual_seed(0)).to(env.device)
    return PPO(policy, None, env.num_envs, config, torch.Generator(device=env.device).manual_seed(0))


def _circumstances(spec: Spec, device: torch.device) -> dict[str, str]:
    from finpod.envs.locomotion.mujoco import threads_of

    on_gpu = device.type == "cuda"
    engine: Any = importlib.import_module(f"finpod.envs.locomotion.{'warp' if on_gpu else 'mujoco'}")
    threads = ("" if on_gpu else f"{threads_of(None)} of the physics, ") + f"{torch.get_num_threads()} of torch"
    return circumstances({"task": spec.title, **engine.describe(spec)}, device, threads, "mujoco", "gymnasium", "torch")
