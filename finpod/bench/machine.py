"""`run`: speed of the market environment, of training, features, backtests and reports."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from finpod.bench import backtests
from finpod.devices import pick_device, usable_cores
from finpod.envs.actions import TradingConfig
from finpod.envs.locomotion import NAMES
from finpod.envs.market_env import MarketEnv
from finpod.errors import InputError, first_line
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
"""Number of start groups: accounts of a group have the same days. Reduced to a divisor of the number of accounts."""
PANEL_NAMES, PANEL_DAYS = 200, 3400
"""Assets and sessions of the market on which features are timed."""
ENVIRONMENT = ("env", "env compiled", "env with policy", "train PPO")
"""Names of the measurements of steps per second."""
WARM_UP = 2
"""Number of warm-up calls. The first one compiles and allocates memory."""


class Work(NamedTuple):
    """A piece of work to measure."""

    call: Callable[[], object]
    """Function that does the work once."""
    steps: int
    """Number of steps of each account in one call."""


def run(
    *, device: str = "cpu", envs: int = 4096, names: int = 100, seconds: float = 3.0, what: str | None = None
) -> dict[str, Any]:
    """Return the speed of this machine, one line per figure, with hardware and versions.

    `what` selects the measurements whose name contains this word: those of `ENVIRONMENT`, panel, backtest, bootstrap and report.
    Steps per second are summed over `envs` accounts in a simulated market of `names` stocks. A step is one decision of
    one account, with the task's default settings except the start groups. Each line is measured for about `seconds`: the
    environment only, compiled by torch.compile, with a policy acting in it, and PPO from end to end. Other lines are the time
    to build a large panel of features, and those of `finpod.bench.backtests`.
    Raises InputError for invalid sizes, a missing device and an unknown `what`.
    """
    if envs < 1 or names < 2 or not 0 < seconds < math.inf:
        raise InputError(
            f"envs {envs}, names {names}, seconds {seconds}: envs must be at least 1, names at least 2 and seconds above 0"
        )
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
        raise InputError(f"there is no measurement {what!r}; choose from {', '.join(parts)}, {', '.join(NAMES)}")
    lines = {name: line for measured in chosen for name, line in measured().items()}
    title = f"{names} simulated stocks, action {config.action}, hold {config.hold}, horizon {config.horizon}"
    task = {"task": f"{title}, {config.groups} start groups"}
    return lines | circumstances(task, place, str(torch.get_num_threads()), "torch")


def _selects(what: str | None, measurement: str) -> bool:
    return what is None or what in measurement


def measure(
    call: Callable[[], object], seconds: float, device: torch.device, warm_up: int = WARM_UP
) -> tuple[int, float]:
    """Return the number of calls in about `seconds`, and the exact seconds, after `warm_up` calls that are not measured.

    The device is synchronized before the clock is read.
    """
    for _ in range(warm_up):
        call()
    _synchronise(device)
    start, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - start < seconds:
        call()
        calls += 1
    _synchronise(device)
    return calls, time.perf_counter() - start


def lines_of(name: str, work: Work, calls: int, seconds: float, envs: int, of: str = "accounts") -> dict[str, Any]:
    """Return two lines: steps per second, and the number of environments, steps and seconds."""
    steps = calls * work.steps
    return {
        f"{name} steps/s": steps * envs / seconds,
        f"{name} batch": f"{envs:,} {of} x {steps:,} steps in {seconds:.3f} s",
    }


def acting(env: Any, learner: Any) -> Work:
    """Return the work of collecting one rollout with the policy, without an update."""
    return Work(lambda: learner.collect(env), learner.config.num_steps)


def training(env: Any, learner: Any) -> Work:
    """Return the work of collecting a rollout and updating the policy."""
    return Work(lambda: learner.update(learner.collect(env)), learner.config.num_steps)


WITH_POLICY: dict[str, Callable[[Any, Any], Work]] = {"env with policy": acting, "train PPO": training}


def _environment_lines(
    name: str, config: TradingConfig, names: int, seconds: float, device: torch.device
) -> dict[str, Any]:
    market = simulate_market(names=names, days=DAYS)
    try:
        env = MarketEnv(build_execution(market, device=device), 0, DAYS - 1, config, compile=name == "env compiled")
        if (act := WITH_POLICY.get(name)) is not None:
            panel = build_panel(market, fit=(0, DAYS), device=device)
            table = Table(panel.features, panel.member & panel.tradable)
            policy = MarketPolicy(PolicySpec(features=len(panel.names)), torch.Generator().manual_seed(0)).to(device)
            learner = PPO(policy, table, env.groups, PPOConfig(), torch.Generator(device=device).manual_seed(0))
            work = act(env, learner)
        else:
            action = torch.randn(env.num_envs, env.num_actions, generator=torch.Generator().manual_seed(0)).to(device)
            work = Work(lambda: env.step(action), 1)
        return lines_of(name, work, *measure(work.call, seconds, device), config.num_envs)
    except RuntimeError as error:  # of torch's compiler, usually for want of a C++ compiler
        if name != "env compiled":
            raise
        return {f"{name} steps/s": f"n/a: {first_line(error)}"}


def _panel_lines(device: torch.device) -> dict[str, Any]:
    """Return lines on the time from a market to the scaled tensor of its default features, including turbulence."""
    market = simulate_market(names=PANEL_NAMES, days=PANEL_DAYS)
    _, seconds = measure(lambda: build_panel(market, fit=(0, PANEL_DAYS), device=device), 0.001, device, warm_up=0)
    return {
        "panel seconds": seconds,
        "panel batch": f"{PANEL_NAMES} assets x {PANEL_DAYS:,} days, default features",
    }


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def circumstances(task: Mapping[str, str], device: torch.device, threads: str, *packages: str) -> dict[str, str]:
    """Return lines on sizes, hardware, and versions of finpod, the packages and Python."""
    return {
        **task,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "hardware": f"{processor()}, {usable_cores()} cores",
        "threads": threads,
        "versions": ", ".join(" ".join(pair) for pair in versions("finpod", *packages, "python").items()),
    }


def processor() -> str:
    """Return the name of the CPU."""
    about = Path("/proc/cpuinfo")
    if about.exists():
        for line in about.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown processor"
