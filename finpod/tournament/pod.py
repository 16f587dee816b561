"""`Pod`: environments and a learner on one device, and one slice of training.

A slice is a function of values: the arena, an agent's settings and its last checkpoint in, the next checkpoint out. Where it
runs makes no difference to it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

import finpod
from finpod.envs.market import MarketEnv, account_state
from finpod.market.ledger import value
from finpod.market.tape import Account
from finpod.measures import Metrics, metrics
from finpod.rl.checkpoint import Checkpoint
from finpod.rl.greedy import greedy_weights
from finpod.rl.policy import MarketPolicy, PolicySpec
from finpod.rl.ppo import PPO, PPOConfig
from finpod.rl.task import Table
from finpod.simulation import Terms, simulate
from finpod.tasks import Arena


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What makes an agent itself before it has learnt anything."""

    agent_id: str
    """Its name in the tournament."""
    seed: int
    """Seed of its weights, its days and its exploration."""
    config: PPOConfig
    """Settings of the learner."""
    hidden: int = 32
    """Width of its network."""
    features: tuple[str, ...] | None = None
    """Features it observes; None for all of the arena."""
    reward: str | None = None
    """'log' or 'value' to train on; None for the task's own. Validation is the same for all."""
    cost_factor: float = 1.0
    """Times the true costs that it trains with; it is validated at the true ones."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"features": None if self.features is None else list(self.features)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """What `to_dict` wrote."""
        features = values["features"]
        chosen = None if features is None else tuple(features)
        return cls(**{**values, "config": PPOConfig(**values["config"]), "features": chosen})


class Slice(NamedTuple):
    """A piece of work: train an agent on to a number of steps, and perhaps validate it there."""

    settings: Settings
    """The agent."""
    start: bytes | None
    """The checkpoint it begins with; None for an untrained one."""
    copied: bool
    """Whether that is another agent's, of which a varied copy begins."""
    until: int
    """Steps of experience at the end of the slice."""
    total: int
    """Steps that drive the schedules."""
    last: bool
    """Whether the trial ends with this slice, and the agent is validated."""


class Trained(NamedTuple):
    """What a slice leaves."""

    checkpoint: bytes
    """The agent, with its accounts."""
    steps: int
    """Its experience."""
    losses: dict[str, float]
    """Of the last update."""
    metrics: dict[str, float] | None
    """Validation metrics, if this was the last slice."""
    returns: np.ndarray | None
    """[n] validation returns, if this was the last slice."""


class Pod:
    """One agent in training."""

    def __init__(self, arena: Arena, settings: Settings, checkpoint: Checkpoint | None = None) -> None:
        self.arena, self.settings = arena, settings
        self.panel, trading = arena.panel_of(settings.features), arena.trading_of(settings)
        weights, days, noise = (int(s) for s in np.random.SeedSequence(settings.seed).generate_state(3))
        generator = torch.Generator(device=arena.device).manual_seed(noise)
        spec = PolicySpec(
            features=len(self.panel.names),
            hidden=settings.hidden,
            action=trading.action,
            tilt=trading.tilt,
        )
        self.policy = MarketPolicy(spec, torch.Generator().manual_seed(weights)).to(arena.device)
        self.env = MarketEnv(arena.tape, *arena.train, trading, seed=days)
        table = Table(self.panel.features, self.panel.member & self.panel.tradable)
        self.learner = PPO(self.policy, table, trading.groups, settings.config, generator)
        self.steps = 0
        if checkpoint is not None:
            self.policy.load_state_dict(checkpoint.weights)
            self.steps = checkpoint.steps
            learner = copy.deepcopy(checkpoint.learner)  # an optimiser changes the tensors it is given in place
            if checkpoint.env:
                self.learner.load_state_dict(learner)
                self.env.load_state_dict(checkpoint.env)
            else:  # a varied copy: the donor's optimiser, but its own randomness
                self.learner.load_state_dict(learner | {"generator": generator.get_state()})

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one rollout."""
        return self.arena.trading.num_envs * self.settings.config.num_steps

    def train(self, until: int, total: int) -> Iterator[dict[str, torch.Tensor]]:
        """Learn until `until` steps of the `total` that drive the schedules; yields each update's losses, unread."""
        while self.steps < until:
            rollout = self.learner.collect(self.env)
            losses = self.learner.update(rollout, min(self.steps / total, 1.0))
            self.steps += self.steps_per_update
            yield losses | {"reward": rollout.reward.mean()}

    def checkpoint(self) -> Checkpoint:
        """The agent at this instant."""
        return Checkpoint(
            policy_spec=asdict(self.policy.spec),
            weights={name: tensor.detach().cpu().clone() for name, tensor in self.policy.state_dict().items()},
            task_spec=self.arena.task_spec(self.settings.features),
            learner=copy.deepcopy(self.learner.state_dict()),
            env=self.env.state_dict(),
            config=asdict(self.settings.config),
            seed=self.settings.seed,
            steps=self.steps,
            versions={"finpod": finpod.__version__, "torch": str(torch.__version__)},
        )


def without_accounts(checkpoint: Checkpoint) -> Checkpoint:
    """The agent without the accounts it was trading: what a child takes over from its parent, and what a board keeps."""
    return replace(checkpoint, env={})


def train_slice(arena: Arena, settings: Settings, checkpoint: Checkpoint | None, until: int, total: int) -> Checkpoint:
    """Train an agent on to `until` steps of experience."""
    return _trained(arena, settings, checkpoint, until, total)[0]


def _trained(
    arena: Arena, settings: Settings, checkpoint: Checkpoint | None, until: int, total: int
) -> tuple[Checkpoint, dict[str, float]]:
    """The agent after the slice, and the losses of its last update."""
    with _threads(arena.threads):
        pod, losses = Pod(arena, settings, checkpoint), {}
        for losses in pod.train(until, total):  # noqa: B007
            pass
        return pod.checkpoint(), {name: float(value) for name, value in losses.items()}


def run_slice(arena: Arena, piece: Slice) -> Trained:
    """The work of a pod, wherever it runs."""
    start = (
        None
        if piece.start is None
        else Checkpoint.from_bytes(piece.start, f"the checkpoint of {piece.settings.agent_id}")
    )
    if start is not None and piece.copied:
        start = without_accounts(start)
    checkpoint, losses = _trained(arena, piece.settings, start, piece.until, piece.total)
    if not piece.last:
        return Trained(checkpoint.to_bytes(), checkpoint.steps, losses, None, None)
    with _threads(arena.threads):
        found, returns = validate(arena, checkpoint)
    return Trained(checkpoint.to_bytes(), checkpoint.steps, losses, asdict(found), returns)


def validate(arena: Arena, checkpoint: Checkpoint) -> tuple[Metrics, np.ndarray]:
    """Metrics and returns [n] of the deterministic policy on the validation window, net of the task's costs."""
    policy, trading, tape = checkpoint.policy(arena.device), arena.trading, arena.tape
    panel = arena.panel_of(checkpoint.task_spec["features"])

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
