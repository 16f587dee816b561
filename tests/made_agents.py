"""Tiny tasks, agents and tournaments for tests of training."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from finpod.ensemble import Ensemble
from finpod.envs.market_env import MarketEnv, TradingConfig
from finpod.market.data import MarketData
from finpod.measures import Metrics
from finpod.rl.checkpoint import Checkpoint
from finpod.rl.policy import Code, MarketPolicy
from finpod.rl.ppo import PPOConfig
from finpod.rl.task import Space, Table
from finpod.tasks import COST_FACTOR, HIDDEN, StockTask
from finpod.tournament.leaderboard import Settings
from finpod.tournament.pod import Pod, judge, torch_threads
from finpod.tournament.setup import TournamentSetup
from finpod.trading.ledger import Costs
from finpod.training import train

FEATURES = ("return_5", "volatility_21")
TRAIN, VALIDATION = (25, 80), (81, 100)
"""Rows of a tiny market: 25 to warm up, and some behind the validation window."""
SMALL: dict[str, Any] = {"num_envs": 8, "start_groups": 4, "horizon": 5}
CONFIG = PPOConfig(num_steps=4, num_minibatches=2, update_epochs=2)
STEPS_AN_UPDATE = 32


def space_of(features: Sequence[str]) -> Space:
    """What may vary of stock agents with these features."""
    return Space(
        start={"hidden": 32, "features": None, "reward": None, "cost_factor": 1.0},
        ranges={"cost_factor": COST_FACTOR},
        subsets={"features": tuple(features)},
        choices={"hidden": HIDDEN, "reward": ("log", "value")},
    )


def make_setup(
    market: MarketData, *, features: Any = FEATURES, fill: str | None = None, **trading: Any
) -> TournamentSetup:
    """Trading with 8 accounts in 4 groups."""
    trading = {"hold": 1, "costs": Costs(), **SMALL, **trading}
    task = StockTask(market=market.rows(0, VALIDATION[1] + 1), trading=TradingConfig(**trading), fill=fill,
                     features=features, train=TRAIN, validation=VALIDATION)  # fmt: skip
    return TournamentSetup(task=task, num_envs=task.num_envs, config=CONFIG)


def settings(seed: int = 1, config: PPOConfig = CONFIG) -> Settings:
    return Settings(agent_id=f"agent {seed}", seed=seed, config=config)


def make_pod(market: MarketData, *, seed: int = 1, config: PPOConfig = CONFIG, **task: Any) -> Pod:
    return Pod(make_setup(market, **task), settings(seed, config))


def train_slice(
    setup: TournamentSetup, settings: Settings, checkpoint: Checkpoint | None, until: int, total: int
) -> Checkpoint:
    """Train an agent up to `until` steps."""
    with torch_threads(setup.threads):
        pod = Pod(setup, settings, checkpoint)
        list(pod.train(until, total))
        return pod.checkpoint()


def validate(setup: TournamentSetup, checkpoint: Checkpoint) -> tuple[Metrics, Any]:
    """Metrics and returns of an agent on the validation window."""
    own = Settings(agent_id="judged", seed=0, config=CONFIG, task={"features": checkpoint.task_spec["features"],
                                                                   "hidden": checkpoint.policy_spec["hidden"]})  # fmt: skip
    score = judge(setup, own, checkpoint)
    return Metrics(**{field.name: score.metrics[field.name] for field in fields(Metrics)}), score.returns


def tiny_train(market: MarketData, out: Any, **changes: Any) -> Ensemble:
    """Two agents, two rounds of two updates."""
    days = market.dates
    plain = {"train": tuple(days[list(TRAIN)]), "validation": tuple(days[list(VALIDATION)]), "agents": 2, "keep": 2,
             "steps": 4 * STEPS_AN_UPDATE, "hold": 2, "features": FEATURES, "config": CONFIG}  # fmt: skip
    return train(market=market, out=out, **{**plain, **SMALL, **changes})


def weights_of(env: MarketEnv, action: torch.Tensor) -> torch.Tensor:
    """Target weights [E, N] of actions [E, A] as `step` would use them, within the caps."""
    return env._weights(action.unflatten(0, env._shape), env._rows, env.account).flatten(0, 1)


class Counter(MarketPolicy):
    """Values a state by its row, and notes nothing of the account: data that can be told apart."""

    def encode(self, values: torch.Tensor, among: torch.Tensor) -> Code:
        code = super().encode(values, among)
        return code._replace(value=values[..., 0, :1].expand_as(code.value))

    def forward(self, code: Code, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, _ = super().forward(code, state)
        return mean, code.value[..., :1].expand(mean.shape[:-1])


def row_table(market: MarketData) -> Table:
    """A table whose one feature is the number of the row."""
    values = torch.arange(len(market.dates), dtype=torch.float32)[:, None, None].repeat(1, len(market.tickers), 1)
    return Table(values, torch.tensor(np.array(market.has_bar & market.member)))


def alike(one: Any, other: Any) -> bool:
    """True if two states are equal to the last bit."""
    same = [torch.equal(torch.as_tensor(one[key]), torch.as_tensor(other[key])) for key in one]
    return one.keys() == other.keys() and all(same)


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def actions(env, steps, seed=0):
    """Random actions [steps, W, A] of a locomotion task, within its action space."""
    drawn = torch.rand(steps, env.num_envs, env.num_actions, generator=noise(seed))
    return ((2 * drawn - 1) * env.spec.action_limit).to(env.device)
