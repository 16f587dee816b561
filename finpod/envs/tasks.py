"""`TASKS`, what can be trained on, and `make_env`, which makes the environment of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from finpod.devices import pick_device
from finpod.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from finpod.envs.trading import NumpyTradingEnv, TradingEnv
    from finpod.market.data import DateLike, MarketData
    from finpod.market.features import Features
    from finpod.market.ledger import Costs


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
) -> TradingEnv | NumpyTradingEnv:
    """The environment of a task, `num_envs` episodes in parallel, as a gymnasium vector environment.

    Observations and rewards are tensors on `device`. With `numpy` they are arrays, and observations are one row of numbers
    for each account; the vector wrappers of gymnasium work on such an environment.

    "stocks" trades `market` from `start` to `end`; `settings` are fields of `TradingConfig`, such as hold=1,
    action="softmax" or start_groups=64; `features`, `costs` and `fill` are those of training and backtest. `seed` is a
    whole number from 0 to 2**64 - 1. Raises InputError for an unknown task or setting, a missing market, another seed, and
    a device that is not there.
    """
    if task not in TASKS:
        raise InputError(f"unknown task {task!r}; {_suggestion(task, TASKS)}")
    env = TASKS[task](
        market=market,
        num_envs=num_envs,
        device=device,
        start=start,
        end=end,
        features=features,
        costs=costs,
        fill=fill,
        seed=seed,
        settings=settings,
    )
    if not numpy:
        return env
    from finpod.envs.trading import NumpyTradingEnv

    return NumpyTradingEnv(env)


def _stocks(
    *,
    market: MarketData | None,
    num_envs: int,
    device: str,
    start: DateLike | None,
    end: DateLike | None,
    features: Features,
    costs: Costs | None,
    fill: str | None,
    seed: int,
    settings: dict[str, Any],
) -> TradingEnv:
    from finpod.envs.market import TradingConfig
    from finpod.envs.trading import TradingEnv
    from finpod.market.ledger import Costs

    if market is None:
        raise InputError(
            "task 'stocks' trades a market and none was given; pass market=finpod.load_market(...) or another"
        )
    known = [field.name for field in fields(TradingConfig)]
    for name in settings:
        if name not in known:
            raise InputError(f"task 'stocks' has no setting {name!r}; {_suggestion(name, known)}")
    config = TradingConfig(num_envs=num_envs, costs=costs or Costs(), **settings)
    return TradingEnv(
        market, start=start, end=end, features=features, config=config, fill=fill, seed=seed, device=pick_device(device)
    )


def _suggestion(name: str, known: Iterable[str]) -> str:
    return did_you_mean(str(name), list(known), f"choose from {', '.join(known)}")


TASKS: dict[str, Callable[..., TradingEnv]] = {"stocks": _stocks}
"""Task name -> maker of its environment."""
