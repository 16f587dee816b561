"""`run`: speed of the market environment, with a policy and in training, and of features, backtests and reports."""

from __future__ import annotations

import importlib
import math
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from finpod.devices import usable_cores
from finpod.envs.locomotion import NAMES
from finpod.errors import InputError, first_line

if TYPE_CHECKING:
    import torch

    from finpod.envs.market_env import MarketEnv, TradingConfig
    from finpod.features.panel import Panel

DAYS = 1000
"""Sessions of the simulated market."""
GROUPS = 64
"""Groups of accounts that share their days; fewer if the number of accounts is not divisible by it."""

PANEL_NAMES, PANEL_DAYS = 200, 3400
"""Size of the market for timing features."""
ENDS = ("steps/s", "batch")
ENVIRONMENT = tuple(f"{name} {end}" for name in ("env", "env compiled", "env with policy", "train PPO") for end in ENDS)
PANEL = ("panel seconds", "panel batch")
"""Names of lines."""
WARM_UP = 2
"""Warm-up calls: the first one compiles and allocates memory."""


class Work(NamedTuple):
    """A piece of work to measure."""

    call: Callable[[], object]
    """Runs it once."""
    steps: int
    """Steps of each account in one call."""


class Timing(NamedTuple):
    """Result of a measurement."""

    calls: int
    """Calls made."""
    seconds: float
    """Total time in seconds."""


def run(
    *, device: str = "cpu", envs: int = 4096, names: int = 100, seconds: float = 3.0, what: str | None = None
) -> dict[str, Any]:
    """Return the speed of this machine, one line for each figure, with hardware and versions; `what` selects lines by name.

    Environment steps a second of `envs` accounts in a simulated market of `names` stocks: a step is one decision of one
    account, with the task's default settings except the start groups. Each line is measured for about `seconds`: the
    environment alone, the same compiled by torch.compile, with the policy acting in it, and PPO from end to end. Then the
    time to build a large panel of features, and the lines of `finpod.bench.backtests`.
    Raises InputError for invalid sizes, a missing device and a word that is in no line.
    """
    import torch

    from finpod.bench import backtests
    from finpod.devices import pick_device
    from finpod.envs.market_env import TradingConfig

    if envs < 1 or names < 2 or not 0 < seconds < math.inf:
        raise InputError(
            f"envs {envs}, names {names}, seconds {seconds}: envs must be at least 1, names at least 2 and seconds above 0"
        )
    place = pick_device(device)
    config = TradingConfig(num_envs=envs, start_groups=math.gcd(envs, GROUPS))
    groups: tuple[tuple[tuple[str, ...], Callable[[], dict[str, Any]]], ...] = (
        (ENVIRONMENT, lambda: _environment_lines(config, names, seconds, place, what)),
        (PANEL, lambda: _panel_lines(place)),
        (backtests.BACKTEST, lambda: backtests.backtest_lines(names, seconds)),
        (backtests.BOOTSTRAP, lambda: backtests.bootstrap_lines(seconds)),
        (backtests.AUDIT, lambda: backtests.audit_lines(names, seconds)),
        (backtests.REPORT, lambda: backtests.report_lines(names, seconds)),
    )
    title = f"{names} simulated stocks, action {config.action}, hold {config.hold}, horizon {config.horizon}"
    task = {"task": f"{title}, {config.groups} start groups"}
    about = circumstances(task, place, str(torch.get_num_threads()), "torch")
    known = [name for lines, _ in groups for name in lines] + list(about)
    if not any(matches(what, name) for name in known):
        raise InputError(
            f"no line has {what!r} in its name; there are {', '.join(known)}; with lines of their own: {', '.join(NAMES)}"
        )
    lines: dict[str, Any] = {}
    for these, measured in groups:
        if any(matches(what, name) for name in these):
            lines |= measured()
    return {name: line for name, line in (lines | about).items() if matches(what, name)}


def matches(what: str | None, line: str) -> bool:
    """True if `what` is a part of the line's name, or None."""
    return what is None or what in line


def rate(count: int, seconds: float) -> float:
    """Steps a second, of `count` steps in all."""
    return count / seconds


def measure(call: Callable[[], object], seconds: float, device: torch.device, warm_up: int = WARM_UP) -> Timing:
    """Call until `seconds` have passed, after `warm_up` calls that are not measured.

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
    return Timing(calls, time.perf_counter() - start)


def timed(
    name: str, work: Work, envs: int, seconds: float, device: torch.device, of: str = "accounts"
) -> dict[str, Any]:
    """Measure for about `seconds`, see `lines_of`."""
    return lines_of(name, work, measure(work.call, seconds, device), envs, of)


def lines_of(name: str, work: Work, timing: Timing, envs: int, of: str) -> dict[str, Any]:
    """The lines of this name: steps a second, and the number of environments, steps and seconds."""
    steps = timing.calls * work.steps
    return {
        f"{name} steps/s": rate(steps * envs, timing.seconds),
        f"{name} batch": f"{envs:,} {of} x {steps:,} steps in {timing.seconds:.3f} s",
    }


def stepping(env: MarketEnv) -> Work:
    """The environment alone, with actions drawn beforehand."""
    import torch

    action = torch.randn(env.num_envs, env.num_actions, generator=torch.Generator().manual_seed(0)).to(env.device)
    return Work(lambda: env.step(action), 1)


def acting(env: Any, learner: Any) -> Work:
    """The environment with a policy, as in a rollout."""
    return Work(lambda: learner.collect(env), learner.config.num_steps)


def training(env: Any, learner: Any) -> Work:
    """Rollouts and updates."""
    return Work(lambda: learner.update(learner.collect(env)), learner.config.num_steps)


def _learner(env: MarketEnv, panel: Panel) -> Any:
    """A PPO learner on its default settings."""
    import torch

    from finpod.rl.policy import MarketPolicy, PolicySpec
    from finpod.rl.ppo import PPO, PPOConfig
    from finpod.rl.task import Table

    table = Table(panel.features, panel.member & panel.tradable)
    policy = MarketPolicy(PolicySpec(features=len(panel.names)), torch.Generator().manual_seed(0)).to(env.device)
    return PPO(policy, table, env.groups, PPOConfig(), torch.Generator(device=env.device).manual_seed(0))


def _environment_lines(
    config: TradingConfig, names: int, seconds: float, device: torch.device, what: str | None
) -> dict[str, Any]:
    """The selected lines on steps a second of the environment."""
    from finpod.envs.market_env import MarketEnv
    from finpod.features.panel import build_panel
    from finpod.synthetic import simulate_market
    from finpod.trading.execution import build_execution

    market, envs = simulate_market(names=names, days=DAYS), config.num_envs
    execution, panel = build_execution(market, device=device), build_panel(market, fit=(0, DAYS), device=device)

    def environment(compile: bool = False) -> MarketEnv:
        return MarketEnv(execution, 0, DAYS - 1, config, compile=compile)

    makers: dict[str, Callable[[], Work]] = {
        "env": lambda: stepping(environment()),
        "env compiled": lambda: stepping(environment(compile=True)),
        "env with policy": lambda: acting(env := environment(), _learner(env, panel)),
        "train PPO": lambda: training(env := environment(), _learner(env, panel)),
    }
    lines: dict[str, Any] = {}
    for name, make in makers.items():
        if any(matches(what, f"{name} {end}") for end in ENDS):
            try:
                lines |= timed(name, make(), envs, seconds, device)
            except RuntimeError as error:  # from torch's compiler, usually because there is no C++ compiler
                if name != "env compiled":
                    raise
                lines[f"{name} steps/s"] = f"n/a: {first_line(error)}"
    return lines


def _panel_lines(device: torch.device) -> dict[str, Any]:
    """Seconds from a market to the scaled tensor of its default features, turbulence included."""
    from finpod.features.panel import build_panel
    from finpod.synthetic import simulate_market

    market = simulate_market(names=PANEL_NAMES, days=PANEL_DAYS)
    timing = measure(lambda: build_panel(market, fit=(0, PANEL_DAYS), device=device), 0.001, device, warm_up=0)
    return {
        "panel seconds": timing.seconds,
        "panel batch": f"{PANEL_NAMES} names x {PANEL_DAYS:,} days, default features",
    }


def _synchronise(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def circumstances(task: Mapping[str, str], device: torch.device, threads: str, *packages: str) -> dict[str, str]:
    """Lines on sizes, hardware, and versions of finpod, the packages and Python."""
    import torch

    modules = {name: importlib.import_module(name) for name in ("finpod", *packages)}
    versions = [
        *(f"{name} {module.__version__}" for name, module in modules.items()),
        f"Python {platform.python_version()}",
    ]
    return {
        **task,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "hardware": f"{processor()}, {usable_cores()} cores",
        "threads": threads,
        "versions": ", ".join(versions),
    }


def processor() -> str:
    """The name of the CPU."""
    about = Path("/proc/cpuinfo")
    if about.exists():
        for line in about.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown processor"
