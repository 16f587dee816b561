"""`Pod`: environments and a learner on one device, and one slice of training.

A slice is a function of values: the arena, an agent's settings and its last snapshot in, the next snapshot out. Where it
runs makes no difference to it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

import finpod
from finpod.envs.market import MarketEnv, TradingConfig, account_state
from finpod.market.data import MarketData
from finpod.market.features import Features, Panel, build_panel
from finpod.market.ledger import value
from finpod.market.tape import Account, Tape, build_tape
from finpod.measures import Metrics, metrics
from finpod.rl.greedy import greedy_weights
from finpod.rl.policy import MarketPolicy, PolicySpec
from finpod.rl.ppo import PPO, PPOConfig
from finpod.rl.rollout import collect
from finpod.rl.snapshot import Snapshot
from finpod.simulation import Terms, simulate


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

    def task_spec(self) -> dict[str, Any]:
        """The task as plain values that travel with an agent."""
        day = [f"{date!s:.10}" for date in self.market.dates]
        return {
            "task": "stocks",
            "features": list(self.panel.names),
            "left_out": list(self.panel.left_out),
            "scaling": self.panel.scaling.to_dict(),
            "tickers": list(self.market.tickers),
            "trading": asdict(self.trading),
            "fill": self.tape.fill,
            "windows": {"train": [day[i] for i in self.train], "validation": [day[i] for i in self.validation]},
            "trained_until": day[self.validation[1]],
            "training_data_hash": self.market.content_hash,
            "data_title": self.market.title,
        }


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What makes an agent itself before it has learnt anything."""

    agent_id: str
    seed: int
    config: PPOConfig
    hidden: int = 32


class Pod:
    """One agent in training."""

    def __init__(self, arena: Arena, settings: Settings, snapshot: Snapshot | None = None) -> None:
        self.arena, self.settings = arena, settings
        weights, days, noise = (int(s) for s in np.random.SeedSequence(settings.seed).generate_state(3))
        generator = torch.Generator(device=arena.device).manual_seed(noise)
        spec = PolicySpec(
            features=len(arena.panel.names),
            hidden=settings.hidden,
            action=arena.trading.action,
            tilt=arena.trading.tilt,
        )
        self.policy = MarketPolicy(spec, torch.Generator().manual_seed(weights)).to(arena.device)
        self.env = MarketEnv(arena.tape, *arena.train, arena.trading, seed=days)
        self.learner = PPO(self.policy, arena.panel, arena.trading.groups, settings.config, generator)
        self.steps = 0
        if snapshot is not None:
            self.policy.load_state_dict(snapshot.weights)
            self.steps = snapshot.steps
            learner = copy.deepcopy(snapshot.learner)  # an optimiser changes the tensors it is given in place
            if snapshot.env:
                self.learner.load_state_dict(learner)
                self.env.load_state_dict(snapshot.env)
            else:  # a varied copy: the donor's optimiser, but its own randomness
                self.learner.load_state_dict(learner | {"generator": generator.get_state()})

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one rollout."""
        return self.arena.trading.num_envs * self.settings.config.num_steps

    def train(self, until: int, total: int) -> Iterator[dict[str, torch.Tensor]]:
        """Learn until `until` steps of the `total` that drive the schedules; yields each update's losses, unread."""
        while self.steps < until:
            rollout = collect(
                self.env,
                self.policy,
                self.arena.panel,
                self.settings.config.num_steps,
                self.learner.generator,
                self.learner.updates,
            )
            losses = self.learner.update(rollout, min(self.steps / total, 1.0))
            self.steps += self.steps_per_update
            yield losses | {"reward": rollout.reward.mean()}

    def snapshot(self) -> Snapshot:
        """The agent at this instant."""
        return Snapshot(
            policy_spec=asdict(self.policy.spec),
            weights={name: tensor.detach().cpu().clone() for name, tensor in self.policy.state_dict().items()},
            task_spec=self.arena.task_spec(),
            learner=copy.deepcopy(self.learner.state_dict()),
            env=self.env.state_dict(),
            config=asdict(self.settings.config),
            seed=self.settings.seed,
            steps=self.steps,
            versions={"finpod": finpod.__version__, "torch": str(torch.__version__)},
        )


def without_accounts(snapshot: Snapshot) -> Snapshot:
    """The agent without the accounts it was trading: what a child takes over from its parent, and what a board keeps."""
    return replace(snapshot, env={})


def train_slice(arena: Arena, settings: Settings, snapshot: Snapshot | None, until: int, total: int) -> Snapshot:
    """Train an agent on to `until` steps of experience."""
    with _threads(arena.threads):
        pod = Pod(arena, settings, snapshot)
        for _ in pod.train(until, total):
            pass
        return pod.snapshot()


def validate(arena: Arena, snapshot: Snapshot) -> tuple[Metrics, np.ndarray]:
    """Metrics and returns [n] of the deterministic policy on the validation window, net of the task's costs."""
    policy, trading, tape, panel = snapshot.policy(arena.device), arena.trading, arena.tape, arena.panel

    def decide(k: int, row: int, seen: Account) -> torch.Tensor | None:
        if k % trading.hold:
            return None
        mark = tape.mark[row]
        price = (mark if tape.factor is None else mark / tape.factor[row]) * panel.tradable[row]
        return greedy_weights(
            policy,
            trading,
            panel.features[row],
            panel.member[row] & panel.tradable[row],
            account_state(seen, mark),
            price,
            float(value(*seen, mark)),
        )

    terms = Terms(
        costs=trading.costs,
        cash=trading.cash,
        whole_shares=trading.whole_shares,
        delisting_return=trading.delisting_return,
    )
    equity = simulate(tape, *arena.validation, decide, terms).equity.cpu().numpy()
    return metrics(equity, periods_per_year=arena.market.periods_per_year), equity[1:] / equity[:-1] - 1


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
