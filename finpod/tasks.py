"""`Arena`: what all agents of a tournament share, and how pods on other machines get it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import torch

from finpod.envs.market import TradingConfig
from finpod.errors import InputError
from finpod.market.data import DateLike, MarketData
from finpod.market.features import Features, Panel, build_panel
from finpod.market.tape import Tape, build_tape

VARIED_COSTS = ("fee_bps", "slippage_bps", "per_share")
"""Costs that an agent may train with more or less of."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Arena:
    """What all agents of a tournament share: data, task and windows. The test window is not in it."""

    market: MarketData
    """Rows up to the end of validation and no further."""
    trading: TradingConfig
    """The task."""
    fill: str | None
    """'open', 'close' or None for open where the data have opens."""
    features: Features
    """Features that agents observe."""
    train: tuple[int, int]
    """First and last training row."""
    validation: tuple[int, int]
    """First and last validation row."""
    device: str = "cpu"
    """Where tensors live."""
    threads: int = 1
    """CPU threads of a slice; sums differ between thread counts, so it is part of the result."""

    @cached_property
    def tape(self) -> Tape:
        """The market as the ledger reads it."""
        return build_tape(self.market, self.fill, self.device)

    @cached_property
    def panel(self) -> Panel:
        """The market as agents see it, scaled on training rows."""
        first, last = self.train
        return build_panel(self.market, self.features, fit=(first, last + 1), device=self.device)

    def panel_of(self, names: Sequence[str] | None) -> Panel:
        """The panel with the features `names` alone, in the panel's order; all of them for None."""
        panel = self.panel
        if names is None or tuple(names) == panel.names:
            return panel
        columns = [panel.names.index(name) for name in panel.names if name in names]
        scaling = panel.scaling.select(columns)
        return replace(panel, features=panel.features[..., columns], names=scaling.names, scaling=scaling)

    def trading_of(self, settings: Any) -> TradingConfig:
        """The task as an agent trains on it: with the reward and the share of the costs that its settings choose."""
        scale = self.trading.reward_scale
        if settings.reward not in (None, self.trading.reward):
            scale *= 1 / self.trading.cash if settings.reward == "value" else self.trading.cash
        costs = self.trading.costs
        costs = replace(costs, **{name: getattr(costs, name) * settings.cost_factor for name in VARIED_COSTS})
        return replace(self.trading, reward=settings.reward or self.trading.reward, reward_scale=scale, costs=costs)

    def task_spec(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """The task as plain values that travel with an agent that observes the features `names`, or all."""
        day = [f"{date!s:.10}" for date in self.market.dates]
        panel = self.panel_of(names)
        return {
            "task": "stocks",
            "features": list(panel.names),
            "left_out": list(panel.left_out),
            "dropped": dict(panel.dropped),
            "undefined": dict(panel.undefined),
            "scaling": panel.scaling.to_dict(),
            "tickers": list(self.market.tickers),
            "trading": asdict(self.trading),
            "fill": self.tape.fill,
            "windows": {"train": [day[i] for i in self.train], "validation": [day[i] for i in self.validation]},
            "trained_until": day[self.validation[1]],
            "training_data_hash": self.market.content_hash,
            "data_title": self.market.title,
        }


def share(arena: Arena) -> dict[str, Any]:
    """An arena as plain values and arrays, computed once: what pods on other machines get, and read without a copy."""
    panel, tape = arena.panel, arena.tape
    tables = {
        name: {
            key: value.cpu().numpy() if isinstance(value, torch.Tensor) else value for key, value in vars(part).items()
        }
        for name, part in (("panel", panel), ("tape", tape))
    }
    return {"arena": replace(arena, features=panel.names), **tables}


def from_share(shared: dict[str, Any], device: str = "cpu") -> Arena:
    """The arena that `share` took apart, on a device; on the CPU it reads the shared arrays, which nothing writes to."""
    arena: Arena = replace(shared["arena"], device=device)
    kinds: dict[str, type] = {"panel": Panel, "tape": Tape}
    for name, kind in kinds.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the arrays are read-only, and stay so
            parts = {
                key: torch.from_numpy(value).to(arena.device) if isinstance(value, np.ndarray) else value
                for key, value in shared[name].items()
            }
        vars(arena)[name] = kind(**parts)
    return arena


def trading_of(**settings: Any) -> TradingConfig:
    """The task with finpod's defaults for training. Raises InputError for an unknown setting."""
    unknown = [name for name in settings if name not in TradingConfig.__dataclass_fields__]
    if unknown:
        raise InputError(
            f"unknown setting {unknown[0]!r}; the task has {', '.join(TradingConfig.__dataclass_fields__)}"
        )
    envs = settings.get("num_envs", 512)
    cash = settings.get("cash", TradingConfig.cash) if settings.get("reward") == "value" else 1.0
    defaults: dict[str, Any] = {
        "num_envs": envs,
        "start_groups": math.gcd(envs, 32) if isinstance(envs, Integral) else None,
        "reward_scale": 100.0 / cash if cash > 0 else 1.0,  # rewards in percent, whichever way they are counted
    }
    return TradingConfig(**{**defaults, **settings})


def make_arena(
    market: MarketData,
    train: tuple[DateLike, DateLike],
    validation: tuple[DateLike, DateLike],
    trading: TradingConfig,
    fill: str | None,
    features: Features,
    device: str,
    threads: int,
) -> Arena:
    """Windows as rows, data cut behind the validation window. Raises InputError for windows that overlap or are too short."""
    train_rows, validation_rows = market.window(*train), market.window(*validation)
    if validation_rows[0] <= train_rows[1]:
        raise InputError(
            f"validation starts on {market.dates[validation_rows[0]]!s:.10}, before training ends on "
            f"{market.dates[train_rows[1]]!s:.10}; let it start later"
        )
    for name, (first, last) in (("training", train_rows), ("validation", validation_rows)):
        if last - first < trading.hold:
            raise InputError(
                f"the {name} window has {last - first} sessions to trade, fewer than hold = {trading.hold}; take a longer "
                "window or a shorter hold"
            )
    known = market.rows(0, validation_rows[1] + 1)
    # which names leave the exchange later, and when, is not known yet, and must not change even the hash of the data
    known = replace(known, last_bar=np.minimum(known.last_bar, known.dates[-1]))
    seen = np.any(known.member & known.has_bar, axis=0)  # before training too: they are part of the market's return
    names = [known.tickers[column] for column in np.flatnonzero(seen)]
    if not names:
        raise InputError("no name is both a member and priced up to the end of validation")
    return Arena(
        market=known.select(names),
        trading=trading,
        fill=fill,
        features=features,
        train=train_rows,
        validation=validation_rows,
        device=device,
        threads=threads,
    )
