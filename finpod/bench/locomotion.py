"""`run`: speed of a locomotion task, with a policy and in training, next to other packages if they are installed."""

from __future__ import annotations

import importlib
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, chdir, contextmanager, nullcontext
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import torch

from finpod.bench.machine import Timing, Work, acting, circumstances, lines_of, measure, training
from finpod.devices import pick_device, usable_cores
from finpod.envs.locomotion.environment import LocomotionEnv, make_locomotion
from finpod.envs.locomotion.specs import Spec
from finpod.errors import InputError, first_line
from finpod.locomotion import LocomotionTask
from finpod.measures import Array
from finpod.rl.ppo import PPO, PPOConfig
from finpod.tournament.pod import torch_threads

ENVS = 512
"""Default number of worlds."""
ACTIONS = 16
"""Number of random actions of each world, drawn beforehand and used in turn."""
FEW = 8
"""Number of environments in a small SyncVectorEnv, whose models fit in the processor's caches; another one has all of them."""
TURNS = 3
"""Number of turns into which the time of each contender is divided."""


class Contender(NamedTuple):
    """Environments whose speed is compared."""

    name: str
    """Name of the lines. Of several contenders with one name the fastest counts."""
    envs: int
    """Number of environments."""
    open: Callable[[], AbstractContextManager[Work]]
    """Context manager that makes the environments, yields the work to measure, and closes them."""
    of: str = "environments"
    """Description of the environments in the output."""


def run(
    task: str, *, device: str = "cpu", envs: int = ENVS, seconds: float = 3.0, variant: str = "standard"
) -> dict[str, Any]:
    """Return the speed on a locomotion task, one line for each figure, with sizes, hardware and versions.

    Steps a second are of all worlds together. A step is one decision, `frame_skip` steps of the physics. Each line is measured
    for about `seconds`: the physics alone, with fixed controls and without new episodes; the environment with random
    actions; the vector environments of Gymnasium with random actions on the CPU; the environment with an untrained policy;
    and PPO from end to end on the settings of the task.

    Raises InputError for an unknown task or variant, invalid sizes, a missing device, and without MuJoCo.
    """
    if envs < 1 or not 0 < seconds < math.inf:
        raise InputError(f"envs {envs}, seconds {seconds}: envs must be at least 1 and seconds above 0")
    task_of_name, place = LocomotionTask(name=task, variant=variant), pick_device(device)
    spec = task_of_name.definition

    def environment() -> LocomotionEnv:
        return make_locomotion(task, envs, device=place, variant=variant)

    def measured(name: str, work: Work) -> dict[str, Any]:
        return lines_of(name, work, measure(work.call, seconds, place), envs, "worlds")

    with torch_threads(1):  # as agents train
        ours = Contender("env", envs, lambda: nullcontext(stepping(environment())), "worlds")
        others = [] if variant == "fast" else peers(spec, envs)
        lines = measured("physics", physics(environment()))
        lines |= side_by_side([ours, *others], seconds, place)
        lines["env / gymnasium"] = _ratio(lines) if others else "n/a: Gymnasium has no fast variant"
        lines |= measured("env with policy", acting(env := environment(), _learner(env, task_of_name)))
        lines |= measured("train PPO", training(env := environment(), _learner(env, task_of_name)))
        return lines | _circumstances(spec, place)


def physics(env: LocomotionEnv) -> Work:
    """Return the work of the physics alone."""
    env.physics.state["ctrl"].copy_(torch.from_numpy(random_actions(env.spec, env.num_envs)[0]))
    return Work(env.physics.step, 1)


def stepping(env: LocomotionEnv) -> Work:
    """Return the work of the environment under random actions: observation, reward and new episodes included."""
    actions = cycle(torch.from_numpy(random_actions(env.spec, env.num_envs)).to(env.device))
    return Work(lambda: env.step(next(actions)), 1)


def random_actions(spec: Spec, envs: int) -> Array:
    """Return actions [ACTIONS, envs, A] float32, uniform in the action space."""
    size = ACTIONS, envs, spec.num_actions
    return np.random.default_rng(0).uniform(-spec.action_limit, spec.action_limit, size).astype(np.float32)


def peers(spec: Spec, envs: int) -> list[Contender]:
    """Return Gymnasium's vector environments, each with the numbers of environments to try.

    AsyncVectorEnv has one process for each environment: as many as cores, or twice as many.
    """
    cores = usable_cores()
    counts = {"sync": {min(FEW, envs), envs}, "async": {min(cores, envs), min(2 * cores, envs)}}
    return [
        Contender(f"gymnasium {kind}", count, partial(gymnasium_work, spec, count, kind == "async"))
        for kind in counts
        for count in sorted(counts[kind])
    ]


def side_by_side(contenders: Sequence[Contender], seconds: float, device: torch.device) -> dict[str, Any]:
    """Return the lines of all contenders, measured in turns, so that other load on the machine affects all of them alike.

    The first is finpod. If another package fails, its line has the error. MuJoCo's log and warnings are silenced.
    """
    works: dict[Contender, Work] = {}
    timings: dict[Contender, list[Timing]] = {contender: [] for contender in contenders}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, chdir(folder), ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for contender in TURNS * list(contenders):
            if contender.name in failures:
                continue
            try:
                if contender not in works:
                    works[contender] = stack.enter_context(contender.open())
                timings[contender].append(measure(works[contender].call, seconds / TURNS, device))
            except Exception as error:  # other packages may raise anything
                if contender is contenders[0]:
                    raise
                failures[contender.name] = first_line(error)
    lines: dict[str, Any] = {}
    for contender in contenders:
        name = f"{contender.name} steps/s"
        if contender.name in failures:
            lines[name] = f"n/a: {failures[contender.name]}"
            continue
        total = Timing(*map(sum, zip(*timings[contender], strict=True)))
        own = lines_of(contender.name, works[contender], total, contender.envs, contender.of)
        if own[name] > lines.get(name, 0.0):
            lines |= own
    return lines


@contextmanager
def gymnasium_work(spec: Spec, count: int, parallel: bool = False) -> Iterator[Work]:
    """Yield the work of `count` environments of Gymnasium, in this process or in processes of their own."""
    import gymnasium
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

    makers = [partial(gymnasium.make, spec.gym_id, disable_env_checker=True, **spec.gym_options)] * count
    options: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}
    with ExitStack() as stack:
        with silent():  # spawned, since this process has threads; the children keep their stderr
            env: Any = (
                AsyncVectorEnv(makers, context="spawn", **options) if parallel else SyncVectorEnv(makers, **options)
            )
            stack.callback(env.close, terminate=True)
            env.reset(seed=0)
        actions = cycle(random_actions(spec, count))
        yield Work(lambda: env.step(next(actions)), 1)


@contextmanager
def silent() -> Iterator[None]:
    """Discard stderr of this process and its children while the block runs, C code included."""
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def _ratio(lines: dict[str, Any]) -> float | str:
    """Return steps a second of the environment over those of the best vector environment of Gymnasium."""
    rates = [lines[f"gymnasium {kind} steps/s"] for kind in ("sync", "async")]
    measured = [rate for rate in rates if isinstance(rate, float)]
    return lines["env steps/s"] / max(measured) if measured else rates[0]


def _learner(env: LocomotionEnv, task: LocomotionTask) -> Any:
    """Return a PPO learner on the settings of the task."""
    config = PPOConfig(**task.defaults("ppo"))
    policy = task.policy(task.space().start, torch.Generator().manual_seed(0)).to(env.device)
    return PPO(policy, None, env.num_envs, config, torch.Generator(device=env.device).manual_seed(0))


def _circumstances(spec: Spec, device: torch.device) -> dict[str, str]:
    """Return lines on sizes, hardware and versions."""
    from finpod.envs.locomotion.mujoco import threads_of

    on_gpu = device.type == "cuda"
    engine: Any = importlib.import_module(f"finpod.envs.locomotion.{'warp' if on_gpu else 'mujoco'}")
    threads = ("" if on_gpu else f"{threads_of(None)} of the physics, ") + f"{torch.get_num_threads()} of torch"
    task = {"task": spec.title, **engine.describe(spec)}
    return circumstances(task, device, threads, "mujoco", "gymnasium", "torch")
