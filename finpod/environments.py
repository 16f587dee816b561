"""`make_env`: creates the environments of a task, given by its name, as a gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from finpod.devices import pick_device
from finpod.envs.locomotion import NAMES
from finpod.errors import InputError, did_you_mean, require_choice

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

    from finpod.features.panel import Features
    from finpod.market.data import DateLike, MarketData
    from finpod.trading.ledger import Costs

STOCKS = "stocks"
"""Name of the task that trades a market."""
TASKS = (STOCKS, *NAMES)
"""Names of the built-in tasks."""


def require_settings(task: str, settings: Iterable[str], known: Sequence[str]) -> None:
    """Raise InputError if a name in `settings` is not among `known`, the names of the settings that `task` has."""
    for name in settings:
        if name not in known:
            hint = did_you_mean(name, known, f"choose from {', '.join(known)}")
            raise InputError(f"task {task!r} has no setting {name!r}; {hint}", argument=name)


def make_env(
    task: str,
    *,
    market: MarketData | None = None,
    num_envs: int = 1024,
    device: str = "cpu",
    start: DateLike | None = None,
    end: DateLike | None = None,
    features: Features = None,
    costs: Costs | None = None,
    fill: str | None = None,
    seed: int = 0,
    numpy: bool = False,
    **settings: Any,
) -> VectorEnv[Any, Any, Any]:
    """Return `num_envs` parallel environments of a task as a gymnasium vector environment.

    Observations and rewards are tensors on `device`. With `numpy=True` they are numpy arrays with one row for each
    environment. Vector wrappers of gymnasium need these arrays, and must accept `AutoresetMode.SAME_STEP`.

    The task "stocks" trades `market` from `start` to `end`. Its `settings` are fields of `TradingConfig`, such as
    hold=1, action="softmax" or start_groups=64. The setting `anchor` may also be an array of weights [T, N]. The
    arguments `features`, `costs` and `fill` are those of `train`.

    "hopper", "halfcheetah", "walker2d", "swimmer", "ant" and "humanoid" are the locomotion tasks of Gymnasium v5. Their
    `settings` are variant="standard", "full" or "fast" (see `finpod.envs.locomotion.specs`), `threads` (number of
    threads of the physics engine) and `max_failures` (number of failed simulations that are tolerated).

    `seed` is a whole number from 0 to 2**64 - 1. Raises InputError for an unknown task or setting, a missing market, an
    invalid seed, an unavailable device, and a locomotion task with an argument that only "stocks" takes.
    """
    require_choice("task", task, TASKS)
    window: dict[str, Any] = {"start": start, "end": end, "features": features, "fill": fill}
    options: dict[str, Any] = {"seed": seed, "device": pick_device(device)}
    if task == STOCKS:
        from finpod.envs.actions import SETTINGS, TradingConfig
        from finpod.envs.gym import TradingEnv
        from finpod.trading.anchors import EQUAL, with_anchor
        from finpod.trading.ledger import Costs

        require_settings(STOCKS, settings, SETTINGS)
        market, settings["anchor"] = with_anchor(market, settings.get("anchor", EQUAL))
        config = TradingConfig(num_envs=num_envs, costs=Costs() if costs is None else costs, **settings)
        return TradingEnv(market, config=config, numpy=numpy, **window, **options)
    from finpod.envs.gym import LocomotionVectorEnv
    from finpod.envs.locomotion.environment import make_locomotion

    for name, value in {"market": market, "costs": costs, **window}.items():
        if value is not None:
            raise InputError(f"task {task!r} does not trade a market; omit the argument {name}", argument=name)
    require_settings(task, settings, ("variant", "threads", "max_failures"))
    return LocomotionVectorEnv(make_locomotion(task, num_envs, **options, **settings), numpy=numpy)
