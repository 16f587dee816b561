"""`run`: speed of the market environment, of training, features, backtests and reports."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from joblib import cpu_count

from finpod.bench import backtests
from finpod.devices import pick_device
from finpod.envs.actions import TradingConfig
from finpod.envs.locomotion import NAMES
from finpod.envs.market_env import MarketEnv
from finpod.errors import InputError, first_line, require_number
from finpod.features.panel import build_panel
from finpod.files import versions
from finpod.rl.policy import MarketPolicy, PolicySpec
from finpod.rl.ppo import PPO, PPOConfig
from finpod.rl.task import Table
from finpod.synthetic import simulate_market
from finpod.trading.execution import build_execution

DAYS = 1000
"""Sessions of the simulated market."""
GROUPS = 64
"""Largest number of groups of accounts. The accounts of a group trade the same days. All groups have equal size."""
PANEL_NAMES, PANEL_DAYS = 200, 3400
"""Assets and sessions of the market on which features are timed."""
LEARNING = {"env with policy": False, "train PPO": True}
"""Name of a speed measurement that uses a policy -> True if it also updates the policy."""
ENVIRONMENT = ("env", "env compiled", *LEARNING)
"""Names of the speed measurements in environment steps per second."""
WARM_UP = 2
"""Number of warm-up calls. The first one compiles and allocates memory."""


def run(
    *, device: str = "cpu", envs: int = 4096, names: int = 100, seconds: float = 3.0, what: str | None = None
) -> dict[str, Any]:
    """Return the speed of this machine, one line per figure, with hardware and versions.

    If `what` is given, only the measurements with this word in their names are made. The names are those of
    `ENVIRONMENT`, panel, backtest, bootstrap and report. Steps per second are summed over `envs` accounts in a
    simulated market of `names` stocks. A step is one decision of one account. The task has its default settings, except
    for the start groups (accounts that trade the same days). Four speeds are measured, each for about `seconds`: the
    environment alone, the environment compiled by torch.compile, the environment with a policy, PPO from end to end.
    The time to compute a large table of features is measured once. `finpod.bench.backtests` makes the other lines.
    Raises InputError for invalid sizes, a missing device and an unknown `what`.
    """
    require_number("envs", envs, 1, whole=True)
    require_number("names", names, 2, whole=True)
    require_number("seconds", seconds, 1e-12)
    place = pick_device(device)
    config = TradingConfig(num_envs=envs, start_groups=math.gcd(envs, GROUPS))
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        **{name: partial(_environment_lines, name, config, names, seconds, place) for name in ENVIRONMENT},
        "panel": partial(_panel_lines, place),
        "backtest": partial(backtests.backtest_lines, names, seconds),
        "bootstrap": partial(backtests.bootstrap_lines, seconds),
        "report": partial(backtests.report_lines, names, seconds),
    }
    chosen = [measured for name, measured in parts.items() if _selects(what, name)]
    if not chosen:
        raise InputError(
            f"there is no measurement {what!r}; choose from {', '.join(parts)}, or run the command finpod bench, which "
            f"also measures the tasks {', '.join(NAMES)}"
        )
    lines = {name: line for measured in chosen for name, line in measured().items()}
    title = f"{names} simulated stocks, action {config.action}, hold {config.hold}, horizon {config.horizon}"
    task = {"task": f"{title}, {config.groups} start groups"}
    return lines | circumstances(task, place, str(torch.get_num_threads()), "torch")


def _selects(what: str | None, measurement: str) -> bool:
    return what is None or what in measurement


def measured(
    name: str,
    call: Callable[[], object],
    seconds: float,
    device: torch.device,
    envs: int,
    *,
    steps: int = 1,
    of: str = "accounts",
) -> dict[str, Any]:
    """Measure the speed of a function. Return two lines: steps/s of all environments, and the sizes of the measurement.

    One `call` makes `steps` steps in each of `envs` environments. It is repeated for about `seconds`, after `WARM_UP`
    calls that are not measured. The device is synchronized before the clock is read.
    """
    for _ in range(WARM_UP):
        call()
    _synchronise(device)
    start, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - start < seconds:
        call()
        calls += 1
    _synchronise(device)
    taken, made = time.perf_counter() - start, calls * steps
    return {f"{name} steps/s": made * envs / taken, f"{name} batch": f"{envs:,} {of} x {made:,} steps in {taken:.3f} s"}


def learning_lines(
    name: str, env: Any, learner: Any, seconds: float, device: torch.device, of: str = "accounts"
) -> dict[str, Any]:
    """Measure the steps per second of a learner. `name` is a key of `LEARNING`. Return the lines (name -> value)."""

    def call() -> None:
        rollout = learner.collect(env)
        if LEARNING[name]:
            learner.update(rollout)

    return measured(name, call, seconds, device, env.num_envs, steps=learner.config.num_steps, of=of)


def _environment_lines(
    name: str, config: TradingConfig, names: int, seconds: float, device: torch.device
) -> dict[str, Any]:
    market = simulate_market(names=names, days=DAYS)
    try:
        env = MarketEnv(build_execution(market, device=device), 0, DAYS - 1, config, compile=name == "env compiled")
        if LEARNING.get(name) is not None:
            panel = build_panel(market, fit=(0, DAYS), device=device)
            table = Table(panel.features, panel.among)
            policy = MarketPolicy(PolicySpec(features=len(panel.names)), torch.Generator().manual_seed(0)).to(device)
            learner = PPO(policy, table, env.groups, PPOConfig(), torch.Generator(device=device).manual_seed(0))
            return learning_lines(name, env, learner, seconds, device)
        action = torch.randn(env.num_envs, env.num_actions, generator=torch.Generator().manual_seed(0)).to(device)
        return measured(name, lambda: env.step(action), seconds, device, env.num_envs)
    except RuntimeError as error:  # from torch.compile, usually because there is no C++ compiler
        if name != "env compiled":
            raise
        return {f"{name} steps/s": f"n/a: {first_line(error)}"}


def _panel_lines(device: torch.device) -> dict[str, Any]:
    """Return lines on the time from a market to the scaled tensor of its default features, including turbulence."""
    market = simulate_market(names=PANEL_NAMES, days=PANEL_DAYS)
    start = time.perf_counter()
    build_panel(market, fit=(0, PANEL_DAYS), device=device)
    _synchronise(device)
    return {
        "panel seconds": time.perf_counter() - start,
        "panel batch": f"{PANEL_NAMES} assets x {PANEL_DAYS:,} days, default features",
    }


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def circumstances(task: Mapping[str, str], device: torch.device, threads: str, *packages: str) -> dict[str, str]:
    """Return lines on sizes, hardware, and versions of finpod, the `packages` and Python."""
    return {
        **task,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "hardware": hardware(),
        "threads": threads,
        "versions": ", ".join(" ".join(pair) for pair in versions("finpod", *packages, "python").items()),
    }


def hardware() -> str:
    """Return the name of the CPU, and the number of cores that the process may use."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8", errors="replace").splitlines() if about.exists() else []
    known = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{known or platform.processor() or platform.machine() or 'unknown processor'}, {cpu_count()} cores"
