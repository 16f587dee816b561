"""`Checkpoint`: a trained agent on disk, as tensors and plain values only."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finpod import files
from finpod.errors import CheckpointError, InputError
from finpod.rl.apg import ScorerPolicy, ScorerSpec
from finpod.rl.policy import DensePolicy, DenseSpec, MarketPolicy, Policy, PolicySpec

FORMAT = "finpod snapshot 1"
POLICIES: dict[str, tuple[type[Policy], type[Any]]] = {
    "market": (MarketPolicy, PolicySpec),
    "dense": (DensePolicy, DenseSpec),
    "scorer": (ScorerPolicy, ScorerSpec),
}
"""Kind -> policy and its sizes: the policies that a checkpoint can build by itself."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An agent: enough to act as it does, and to continue its training exactly."""

    policy_spec: dict[str, Any]
    """Sizes of the policy, see `spec_of`."""
    weights: dict[str, Tensor]
    """Parameters and observation statistics of the policy."""
    task_spec: dict[str, Any]
    """Name of the task and its `Task.spec`, as plain values."""
    learner: dict[str, Any]
    """State of the learner."""
    env: dict[str, Any]
    """State of the environment; empty for a copy, which begins in a new one."""
    config: dict[str, Any]
    """Settings of the learner."""
    seed: int
    """Seed of the agent."""
    steps: int
    """Environment steps of training, those of its ancestors included."""
    versions: dict[str, str]
    """Versions of finpod and torch."""

    def policy(self, device: str | torch.device = "cpu") -> Policy:
        """Return the policy, ready to act. Raises CheckpointError if weights and sizes do not agree.

        A policy that only its task can build is refused; `restore` loads the weights into one that the task has built.
        """
        sizes = dict(self.policy_spec)
        kind = sizes.pop("kind", "market")
        if kind not in POLICIES:
            raise CheckpointError("the policy is the task's own; load the agent with its task")
        with self._fitting():
            make, spec = POLICIES[kind]
            policy: Policy = make(spec(**sizes), torch.Generator()).to(device)
        return self.restore(policy)

    def restore(self, policy: Policy) -> Policy:
        """Return the policy with the agent's weights, ready to act. Raises CheckpointError if they do not fit."""
        with self._fitting():
            policy.load_state_dict(self.weights)
        return policy.requires_grad_(False)

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, TypeError, AttributeError, ValueError) as error:
            reason = str(error).strip().splitlines()[-1].strip()  # torch lists what does not fit, line by line
            raise CheckpointError(
                f"the weights do not fit this finpod's policy ({reason}); train again, it was made by {self.versions}"
            ) from error

    def to_bytes(self) -> bytes:
        """Return the content of a file."""
        buffer = io.BytesIO()
        torch.save({"format": FORMAT, **{f.name: _plain(getattr(self, f.name)) for f in fields(self)}}, buffer)
        return buffer.getvalue()

    def save(self, path: Path) -> None:
        """Write a file, whole or not at all."""
        files.write_bytes(path, self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read a file that `save` wrote; no code in it is run. Raises CheckpointError for anything else."""
        try:
            stored = path.read_bytes()
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} is missing; the folder is not whole, train again") from error
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror}); train again") from error
        return cls.from_bytes(stored, str(path))

    @classmethod
    def from_bytes(cls, stored: bytes, path: str = "the checkpoint") -> Checkpoint:
        """Read what `to_bytes` returned. Raises CheckpointError that names `path` for anything else."""
        try:
            content = torch.load(io.BytesIO(stored), map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged pickle can fail in any way
            raise CheckpointError(f"{path} is not a finpod checkpoint, or it is damaged; train again") from error
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise CheckpointError(f"{path} is not a checkpoint of this version of finpod ({FORMAT}); train again")
        try:
            return cls(**content)
        except TypeError as error:
            raise CheckpointError(f"{path} lacks parts of a checkpoint; train again") from error


def spec_of(policy: Policy) -> dict[str, Any]:
    """Return the sizes of a policy, and its kind unless that is 'market'; only the kind if its task must build it."""
    if policy.kind not in POLICIES:
        return {"kind": "own"}
    return asdict(policy.spec) | ({} if policy.kind == "market" else {"kind": policy.kind})


def versions() -> dict[str, str]:
    """Return versions of the packages that the figures of a training depend on."""
    return files.versions("finpod", "numpy", "python", "torch")


def _plain(value: Any) -> Any:
    """Return a value without numpy scalars, which `weights_only` refuses to read.

    Equal strings become one object, so that equal agents are equal files. Raises InputError for what could not be read back.
    """
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value)
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, bytes, Tensor)):
        return value
    raise InputError(
        f"a checkpoint cannot hold a {type(value).__name__}; give tensors, numbers and text in state_dict() and spec()"
    )
