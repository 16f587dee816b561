"""`StockTask`: the task of trading a market, with a training window and a later validation window."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finpod.active import BOUND, active_figures
from finpod.environments import STOCKS, require_settings
from finpod.envs.actions import SETTINGS, TradingConfig, account_state, greedy_weights
from finpod.envs.market_env import MarketEnv
from finpod.errors import InputError
from finpod.features.panel import Features, Panel, build_panel
from finpod.market.data import DateLike, MarketData
from finpod.measures import Array, metrics, simple_returns
from finpod.rl.apg import ScorerPolicy, ScorerSpec
from finpod.rl.policy import MarketPolicy, Policy, PolicySpec
from finpod.rl.task import Score, Space, Table, Task
from finpod.trading.anchors import anchor_weights
from finpod.trading.execution import Account, Execution, build_execution
from finpod.trading.ledger import value
from finpod.trading.simulate import Path, simulate

VARIED_COSTS = ("fee_bps", "slippage_bps", "per_share")
"""Names of the costs that the setting 'cost_factor' of an agent scales in training."""
COST_FACTOR = (0.5, 2.0)
"""Bounds of the setting 'cost_factor'. In training, the costs `VARIED_COSTS` are multiplied by this factor."""
DISCOUNT = 0.87
"""Discount of PPO per bar; about 0.5 per decision at hold=5. Later rewards are mostly noise from other decisions."""
PPO = {"learning_rate": 5e-4, "gae_lambda": 0.5}
"""Settings of PPO that scored best on the validation days of simulated markets, see backtests/LOG.md."""
PPO_BOUNDS = {"gamma": (0.1, 0.99), "gae_lambda": (0.1, 0.99)}
"""PPO setting -> bounds of a tournament's choice. These bounds replace those in `finpod.rl.PPO.bounds`."""
HIDDEN = (16, 32, 64)
"""Network widths among which a tournament chooses."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StockTask(Task):
    """Task of trading a market, with training and validation windows. It contains no row of the test window."""

    market: MarketData  # up to the end of validation
    trading: TradingConfig  # accounts, actions, rewards and costs
    fill: str | None  # 'open' or 'close'. None: 'open' if the data have opens, else 'close'
    features: Features  # names or functions of the features that agents may observe
    train: tuple[int, int]  # first and last row
    validation: tuple[int, int]  # first and last row
    device: str = "cpu"  # device that holds the features and masks
    observed: tuple[str, ...] | None = None  # features that this agent observes. None: all
    practice: TradingConfig | None = None  # for training: `trading` with this agent's reward and costs. None: `trading`
    name: str = field(init=False, default="stocks")
    measure: str = field(init=False, default=BOUND)
    num_inputs: int = field(init=False)
    num_actions: int = field(init=False)
    num_envs: int = field(init=False)

    def __post_init__(self) -> None:
        names = len(self.market.tickers)
        actions = names + (self.trading.action == "softmax")
        vars(self).update(num_inputs=names + 1, num_actions=actions, num_envs=self.trading.num_envs)

    @cached_property
    def execution(self) -> Execution:
        """The fill prices, marks (closes at which shares are valued) and masks of the market."""
        return build_execution(self.market, self.fill, self.device)

    @cached_property
    def anchor(self) -> Tensor:
        """[T, N] float64 weights of the anchor, the portfolio that actions tilt and that agents must beat."""
        first = max(self.train[0] - self.execution.lag, 0)
        return anchor_weights(self.execution, self.trading.anchor, self.market, slice(first, self.validation[1] + 1))

    @cached_property
    def panel(self) -> Panel:
        """All features, scaled by statistics of the training rows."""
        return build_panel(self.market, self.features, fit=(self.train[0], self.train[1] + 1), device=self.device)

    @cached_property
    def own_panel(self) -> Panel:
        """The features of `panel` that this agent observes (`observed`; None: all), in the order of `panel`."""
        panel = self.panel
        if self.observed is None or self.observed == panel.names:
            return panel
        columns = [column for column, name in enumerate(panel.names) if name in self.observed]
        scaling = panel.scaling.select(columns)
        return replace(panel, features=panel.features[..., columns], names=scaling.names, scaling=scaling)

    def table(self, device: torch.device) -> Table:
        """Return features [T, N, F], the mask [T, N] of members with a bar, and the anchor [T, N] (None if unused)."""
        panel = self.own_panel
        anchor = self.anchor.float().to(device) if self.trading.around else None
        return Table(panel.features.to(device), panel.among.to(device), anchor)

    def env(self, num_envs: int, seed: int, device: torch.device) -> MarketEnv:
        """Return `num_envs` accounts that trade the training window with the settings `practice`."""
        trading = self.practice or self.trading
        if num_envs != trading.num_envs:
            trading = replace(trading, num_envs=num_envs, start_groups=math.gcd(num_envs, trading.groups))
        return MarketEnv(self.execution, *self.train, trading, seed=seed, anchor=self.anchor)

    def policy(
        self, settings: Mapping[str, Any], generator: torch.Generator | None = None
    ) -> MarketPolicy | ScorerPolicy:
        """Return an untrained policy for the observed features; a `ScorerPolicy` if `settings` has 'network'."""
        hidden, trading = settings.get("hidden", PolicySpec.hidden), self.trading
        sizes: dict[str, Any] = {"hidden": hidden, "action": trading.action, "tilt": trading.tilt}
        sizes["features"] = len(self.own_panel.names)
        if "network" in settings:
            return ScorerPolicy(ScorerSpec(network=settings["network"], **sizes), generator)
        return MarketPolicy(PolicySpec(**sizes), generator)

    @property
    def undifferentiable(self) -> str | None:  # type: ignore[override]  # a property here, an attribute in Task
        """Trading setting that makes rewards non-differentiable; None if there is no such setting."""
        return self.trading.undifferentiable

    def for_agent(self, settings: Mapping[str, Any]) -> StockTask:
        """Return the task with the features, the reward and the costs in the `settings` of an agent."""
        features, trading = settings.get("features"), self.trading
        reward, scale = settings.get("reward") or trading.reward, trading.reward_scale
        if reward != trading.reward:
            scale *= 1 / trading.cash if reward == "value" else trading.cash
        factor = settings.get("cost_factor", 1.0)
        costs = replace(trading.costs, **{name: getattr(trading.costs, name) * factor for name in VARIED_COSTS})
        practice = replace(trading, reward=reward, reward_scale=scale, costs=costs)
        task = replace(self, observed=None if features is None else tuple(features), practice=practice)
        # these are computed once for all agents
        vars(task).update(execution=self.execution, panel=self.panel, _baselines=self._baselines)
        return task

    def space(self) -> Space:
        """Return the search space of settings: network width, features, reward, cost factor, and bounds for PPO."""
        return Space(
            start={"hidden": PolicySpec.hidden, "features": None, "reward": None, "cost_factor": 1.0},
            ranges={"cost_factor": COST_FACTOR},
            subsets={"features": self.panel.names},
            choices={"hidden": HIDDEN, "reward": ("log", "value")},
            learner=PPO_BOUNDS,
        )

    def defaults(self, learner: str) -> dict[str, Any]:
        """Return the PPO settings of the first agent; empty for other learners. `gamma` is `DISCOUNT` ** hold."""
        return {**PPO, "gamma": DISCOUNT**self.trading.hold} if learner == "ppo" else {}

    def score(self, policy: Policy) -> Score:
        """Return the score of a policy's mean actions in validation: metrics and returns [n], net of all costs."""
        return self.score_of(self.play(policy, self.validation), self.validation)

    def play(self, policy: Policy, window: tuple[int, int]) -> Path:
        """Return the path of an account that follows a policy's mean actions in a window (first row, last row)."""
        execution, panel, trading = self.execution, self.own_panel, self.trading

        def decide(k: int, row: int, seen: Account) -> Tensor | None:
            if k % trading.hold:
                return None
            mark = execution.mark[row]
            price = (mark if execution.factor is None else mark / execution.factor[row]) * execution.has_bar[row]
            state, equity = account_state(seen, mark), float(value(*seen, mark))
            anchor = self.anchor[row] if trading.around else None
            return greedy_weights(policy, trading, panel.features[row], panel.among[row], state, price, equity, anchor)

        return Path(*map(Tensor.cpu, simulate(execution, *window, decide, trading)))

    def score_of(self, path: Path, window: tuple[int, int]) -> Score:
        """Return the score of an account's path in a window (first row, last row): metrics, active metrics, returns."""
        equity, periods = path.equity.numpy(), self.market.periods_per_year
        active = active_figures(path, self.baseline_path(window), self.execution, window[0], periods)
        return Score(asdict(metrics(equity, periods_per_year=periods)) | active, simple_returns(equity))

    def baseline_path(self, window: tuple[int, int]) -> Path:
        """Return the path of an account that holds the anchor. It trades when agents do, at equal costs, uncapped."""
        if window not in self._baselines:

            def decide(k: int, row: int, _seen: Account) -> Tensor | None:
                return None if k % self.trading.hold else self.anchor[row]

            path = simulate(self.execution, *window, decide, self.trading.uncapped)
            self._baselines[window] = Path(*map(Tensor.cpu, path))
        return self._baselines[window]

    @cached_property
    def _baselines(self) -> dict[tuple[int, int], Path]:
        return {}

    def baseline(self) -> Array:
        """Return the validation returns [n] of the account that holds the anchor."""
        return simple_returns(self.baseline_path(self.validation).equity.numpy())

    def spec(self) -> dict[str, Any]:
        """Return the data on the task that an ensemble needs: features, scaling, trading settings, windows, ..."""
        day, panel = [f"{date!s:.10}" for date in self.market.dates], self.own_panel
        return {
            "task": self.name,
            "features": list(panel.names),
            "left_out": list(panel.left_out),
            "scaling": panel.scaling.to_dict(),
            "tickers": list(self.market.tickers),
            "trading": asdict(self.trading),
            "fill": self.execution.fill,
            "windows": {"train": [day[i] for i in self.train], "validation": [day[i] for i in self.validation]},
            "trained_until": day[self.validation[1]],
            "training_data_hash": self.market.content_hash,
            "data_title": self.market.title,
        }

    def header(self) -> dict[str, Any]:
        """Return entries for the log: 'task', which must not change on resuming the run; 'undefined', the features
        with missing values; 'data_title'; and 'baseline', the validation returns of an account with the anchor."""
        spec, fixed = self.spec(), ("features", "trading", "fill", "windows", "training_data_hash")
        return {
            "task": {name: spec[name] for name in fixed} | self.market.frequency,
            "undefined": {**self.panel.dropped, **self.panel.undefined},
            "data_title": spec["data_title"],
            "baseline": self.baseline().tolist(),
        }

    def to_shared(self) -> dict[str, Any]:
        """Return the task, and the arrays of its panel and execution, as values to send to other processes."""

        def arrays(part: Any) -> dict[str, Any]:
            values = {one.name: getattr(part, one.name) for one in fields(part)}
            return {name: x.cpu().numpy() if isinstance(x, Tensor) else x for name, x in values.items()}

        task = replace(self, features=self.panel.names)
        return {"task": task, "panel": arrays(self.panel), "execution": arrays(self.execution)}

    @classmethod
    def from_shared(cls, shared: Mapping[str, Any], device: torch.device) -> StockTask:
        """Return the task from the result of `to_shared`. On the CPU, its tensors share the memory of the arrays."""

        def tensors(part: Mapping[str, Any]) -> dict[str, Any]:
            ready = {name: torch.from_numpy(x).to(device) for name, x in part.items() if isinstance(x, np.ndarray)}
            return {**part, **ready}

        task = replace(shared["task"], device=str(device))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the arrays are read-only, and nothing writes to them
            vars(task)["panel"] = Panel(**tensors(shared["panel"]))
            vars(task)["execution"] = Execution(**tensors(shared["execution"]))
        return task


def trading_of(**settings: Any) -> TradingConfig:
    """Return a `TradingConfig` with the defaults of training. Raises InputError for an unknown setting."""
    require_settings(STOCKS, settings, SETTINGS)
    trading = TradingConfig(**{"num_envs": 512, **settings})
    unit = float(trading.cash) if trading.reward == "value" else 1.0
    defaults = {"start_groups": math.gcd(trading.num_envs, 32), "reward_scale": 100.0 / unit}  # rewards are in percent
    return replace(trading, **{**defaults, **settings})


def make_stock_task(
    market: MarketData,
    train: tuple[DateLike, DateLike],
    validation: tuple[DateLike, DateLike],
    trading: TradingConfig,
    fill: str | None = None,
    features: Features = None,
    device: str = "cpu",
) -> StockTask:
    """Return the task for a training window and a validation window. The task has the data up to the end of validation.

    Raises InputError for windows too short or out of order, a market without members, a bad anchor or missing volumes.
    """
    rows = {}
    for name, window in (("train", train), ("validation", validation)):
        if isinstance(window, str) or not np.iterable(window) or len(list(window)) != 2:
            raise InputError(f"{name} is {window!r:.60}; pass the first and the last day, (start, end)", argument=name)
        first, last = rows[name] = market.window(*window)
        if last - first < trading.hold:
            text = f"{name} has {last - first} bars to trade, fewer than hold={trading.hold}"
            raise InputError(f"{text}; choose a longer window, or decide more often", argument=name)
    if rows["validation"][0] <= rows["train"][1]:
        begin, end = (f"{market.dates[row]!s:.10}" for row in (rows["validation"][0], rows["train"][1]))
        text = f"validation starts on {begin}, but training ends only on {end}; start validation later"
        raise InputError(text, argument="validation")
    known = market.rows(0, rows["validation"][1] + 1)
    # delistings after validation are unknown and must not change the hash of the data
    known = replace(known, last_bar=np.minimum(known.last_bar, known.dates[-1]))
    seen = (known.member & known.has_bar).any(axis=0)  # also members before training: the market return includes them
    if not seen.any():
        raise InputError("no member has a price by the end of validation; choose later dates")
    task = StockTask(
        market=known.select([known.tickers[column] for column in np.flatnonzero(seen)]), trading=trading, fill=fill,
        features=features, train=rows["train"], validation=rows["validation"], device=device,
    )  # fmt: skip
    _ = task.anchor, task.execution.impact_for(trading.costs)  # raises errors before anything is trained
    return task
