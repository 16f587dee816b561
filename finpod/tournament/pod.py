"""`Pod`: an agent in training, with its environments, on one device; `run_slice`: one slice of training.

A slice trains an agent from its last checkpoint to the next one. The next checkpoint depends only on the setup of the
tournament, the settings of the agent and the last checkpoint. On the same machine, a repeated slice is identical.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from finpod.errors import InputError
from finpod.rl import LEARNERS
from finpod.rl.checkpoint import Checkpoint, spec_of, versions
from finpod.rl.task import Score
from finpod.tournament.leaderboard import Settings
from finpod.tournament.setup import TournamentSetup


class Slice(NamedTuple):
    """Training of an agent from the checkpoint `start` (None: untrained) up to `until` environment steps.

    `copied` is True if the agent is a mutated copy and `start` is the checkpoint of its parent. `last` is True if the
    trial ends with this slice; the agent is then validated.
    """

    settings: Settings
    start: bytes | None
    copied: bool
    until: int
    last: bool


class Trained(NamedTuple):
    """Result of a slice: checkpoint of the agent, its environment steps, and the losses of its last update.

    The last slice of a trial also has the validation `score`.
    """

    checkpoint: bytes
    steps: int
    losses: dict[str, float]
    score: Score | None = None


class Pod:
    """One agent in training."""

    def __init__(self, setup: TournamentSetup, settings: Settings, checkpoint: Checkpoint | None = None) -> None:
        self.setup, self.settings = setup, settings
        self.task = setup.task.for_agent(settings.task)
        weights, episodes, noise = (int(s) for s in np.random.SeedSequence(settings.seed).generate_state(3))
        device = torch.device(setup.device)
        generator = torch.Generator(device=device).manual_seed(noise)
        self.policy = self.task.policy(settings.of_policy, torch.Generator().manual_seed(weights)).to(device)
        self.env, table = self.task.env(setup.num_envs, episodes, device), self.task.table(device)
        state = self.env.observe().state
        if state.ndim != 2 or state.shape[1] != self.task.num_inputs:
            raise InputError(
                f"observations of task {self.task.name} have shape {tuple(state.shape)}, but num_inputs is "
                f"{self.task.num_inputs}; return observations of shape [num_envs, num_inputs]"
            )
        groups = self.env.num_envs if table is None else self.env.groups
        self.learner: Any = LEARNERS[settings.learner](self.policy, table, groups, settings.config, generator)
        self.steps = 0
        if checkpoint is not None:
            self.policy.load_state_dict(checkpoint.weights)
            self.steps = checkpoint.steps
            learner = copy.deepcopy(checkpoint.learner)  # an optimiser changes the tensors of its state in place
            if checkpoint.env:
                self.learner.load_state_dict(learner)
                self.env.load_state_dict(checkpoint.env)
            else:  # a mutated copy has the parent's optimiser, but its own random numbers
                self.learner.load_state_dict(learner | {"generator": generator.get_state()})

    def train(self, until: int, total: int) -> Iterator[dict[str, torch.Tensor]]:
        """Train up to `until` environment steps; yield the losses of each update. Annealing ends at `total` steps."""
        while self.steps < until:
            losses = self.learner.update(self.learner.collect(self.env), min(self.steps / total, 1.0))
            self.steps += self.setup.num_envs * int(self.settings.config.num_steps)
            yield losses

    def checkpoint(self) -> Checkpoint:
        """Return a checkpoint of the agent and its environments in their present state."""
        return Checkpoint(
            policy_spec=spec_of(self.policy),
            weights={name: tensor.detach().cpu().clone() for name, tensor in self.policy.state_dict().items()},
            task_spec={"task": self.task.name, **self.task.spec()},
            learner=copy.deepcopy(self.learner.state_dict()),
            env=self.env.state_dict(),
            config=asdict(self.settings.config),
            seed=self.settings.seed,
            steps=self.steps,
            versions={name: version for name, version in versions().items() if name in ("finpod", "torch")},
        )


def run_slice(setup: TournamentSetup, piece: Slice) -> Trained:
    """Train the agent of a slice, and return the result. If the slice is the last of its trial, validate the agent."""
    start = None
    if piece.start is not None:
        start = Checkpoint.from_bytes(piece.start, f"the checkpoint of {piece.settings.agent_id}")
        start = replace(start, env={}) if piece.copied else start
    with torch_threads(setup.threads):
        pod, losses = Pod(setup, piece.settings, start), {}
        for losses in pod.train(piece.until, setup.plan.goal(setup.plan.rounds, setup.update)):  # noqa: B007
            pass
        checkpoint = pod.checkpoint()
        read = {name: float(value) for name, value in losses.items()}
        score = judge(setup, piece.settings, checkpoint) if piece.last else None
        return Trained(checkpoint.to_bytes(), checkpoint.steps, read, score)


def judge(setup: TournamentSetup, settings: Settings, checkpoint: Checkpoint) -> Score:
    """Return the validation score of an agent. Raises InputError if the score lacks the metric that ranks agents."""
    task = setup.task.for_agent(settings.task)
    policy = checkpoint.policy(untrained=task.policy(settings.of_policy, torch.Generator()).to(setup.device))
    score = task.score(policy)
    if task.measure not in getattr(score, "metrics", {}):
        raise InputError(
            f"Task.measure of {task.name} is {task.measure!r}, but the score lacks it; return it in Score.metrics"
        )
    metrics = {name: value if isinstance(value, int) else float(value) for name, value in score.metrics.items()}
    return Score(metrics, score.returns)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Context manager in which torch uses `count` CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
