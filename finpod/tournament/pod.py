"""`Pod`: environments and a learner on one device, and one slice of training.

A slice is a function of values: the setup of the tournament, an agent's settings and its last checkpoint in, the next
checkpoint out. Where it runs makes no difference to it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import NamedTuple

import numpy as np
import torch

from finpod.errors import InputError
from finpod.measures import Array
from finpod.rl import LEARNERS
from finpod.rl.checkpoint import Checkpoint, spec_of, versions
from finpod.rl.task import Environment, Score, Task
from finpod.tournament.leaderboard import Settings
from finpod.tournament.setup import TournamentSetup


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
    """The agent, with its environments."""
    steps: int
    """Its experience."""
    losses: dict[str, float]
    """Of the last update."""
    score: float | None = None
    """What the agent is ranked by; None unless this was the last slice."""
    metrics: Mapping[str, float] | None = None
    """All figures of that score."""
    returns: Array | None = None
    """[n] returns behind it, if there are some."""


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
        require_inputs(self.task, self.env)
        groups = self.env.num_envs if table is None else self.env.groups
        self.learner = LEARNERS[settings.learner](self.policy, table, groups, settings.config, generator)
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
        return self.setup.num_envs * int(self.settings.config.num_steps)

    def train(self, until: int, total: int) -> Iterator[dict[str, torch.Tensor]]:
        """Learn until `until` steps of the `total` that drive the schedules; yields what each update returns, unread."""
        while self.steps < until:
            losses = self.learner.update(self.learner.collect(self.env), min(self.steps / total, 1.0))
            self.steps += self.steps_per_update
            yield losses

    def checkpoint(self) -> Checkpoint:
        """Return the agent at this instant."""
        made_with = versions()
        return Checkpoint(
            policy_spec=spec_of(self.policy),
            weights={name: tensor.detach().cpu().clone() for name, tensor in self.policy.state_dict().items()},
            task_spec={"task": self.task.name, **self.task.spec()},
            learner=copy.deepcopy(self.learner.state_dict()),
            env=self.env.state_dict(),
            config=asdict(self.settings.config),
            seed=self.settings.seed,
            steps=self.steps,
            versions={name: made_with[name] for name in ("finpod", "torch")},
        )


def require_inputs(task: Task, env: Environment) -> None:
    """Raise InputError if observations are not of the size that the task says."""
    state = env.observe().state
    if state.ndim != 2 or state.shape[1] != task.num_inputs:
        raise InputError(
            f"observations of task {task.name} have shape {tuple(state.shape)}, and num_inputs is {task.num_inputs}; they must "
            "have one row of so many numbers for each environment"
        )


def without_env(checkpoint: Checkpoint) -> Checkpoint:
    """Return the agent without its environments: what a child takes over from its parent, and what a board keeps."""
    return replace(checkpoint, env={})


def train_slice(
    setup: TournamentSetup, settings: Settings, checkpoint: Checkpoint | None, until: int, total: int
) -> Checkpoint:
    """Train an agent on to `until` steps of experience."""
    return _trained(setup, settings, checkpoint, until, total)[0]


def _trained(
    setup: TournamentSetup, settings: Settings, checkpoint: Checkpoint | None, until: int, total: int
) -> tuple[Checkpoint, dict[str, float]]:
    """The agent after the slice, and the losses of its last update."""
    with torch_threads(setup.threads):
        pod, losses = Pod(setup, settings, checkpoint), {}
        for losses in pod.train(until, total):  # noqa: B007
            pass
        return pod.checkpoint(), {name: float(value) for name, value in losses.items()}


def run_slice(setup: TournamentSetup, piece: Slice) -> Trained:
    """Do the work of a pod, wherever it runs."""
    name = f"the checkpoint of {piece.settings.agent_id}"
    start = None if piece.start is None else Checkpoint.from_bytes(piece.start, name)
    if start is not None and piece.copied:
        start = without_env(start)
    checkpoint, losses = _trained(setup, piece.settings, start, piece.until, piece.total)
    trained = Trained(checkpoint.to_bytes(), checkpoint.steps, losses)
    if not piece.last:
        return trained
    with torch_threads(setup.threads):
        score = judge(setup, piece.settings, checkpoint)
    return trained._replace(score=score.metrics[setup.task.measure], metrics=score.metrics, returns=score.returns)


def judge(setup: TournamentSetup, settings: Settings, checkpoint: Checkpoint) -> Score:
    """Return the score of an agent. Raises InputError for one without the figure that agents are ranked by."""
    task = setup.task.for_agent(settings.task)
    policy = checkpoint.restore(task.policy(settings.of_policy, torch.Generator()).to(setup.device))
    score = task.score(policy)
    if task.measure not in getattr(score, "metrics", {}):
        raise InputError(
            f"the score of task {task.name} has no {task.measure}; return Score(metrics) with the metric that `measure` names"
        )
    metrics = {name: value if isinstance(value, int) else float(value) for name, value in score.metrics.items()}
    return Score(metrics, score.returns)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch compute on so many threads while the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
