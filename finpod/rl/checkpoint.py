"""`Checkpoint`: a trained agent at one instant, on disk as tensors and plain values only."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finpod.errors import CheckpointError
from finpod.files import write_bytes
from finpod.rl.policy import MarketPolicy, PolicySpec

FORMAT = "finpod snapshot 1"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """All that is needed to act as the agent, and to train it further to the same weights."""

    policy_spec: dict[str, Any]
    """Sizes, see `PolicySpec`."""
    weights: dict[str, Tensor]
    """Parameters and observation statistics of the policy."""
    task_spec: dict[str, Any]
    """What it was trained on: features, scaling, tickers, the trading task, windows, data hash."""
    learner: dict[str, Any]
    """State of the learner: optimiser and randomness."""
    env: dict[str, Any]
    """State of the environment; empty for a copy that begins in a fresh one."""
    config: dict[str, Any]
    """Settings of the learner, see `PPOConfig`."""
    seed: int
    """Seed of the agent."""
    steps: int
    """Environment steps of experience, its ancestors' included."""
    versions: dict[str, str]
    """Versions of finpod and torch."""

    def policy(self, device: str | torch.device = "cpu") -> MarketPolicy:
        """The policy, ready to act. Raises CheckpointError if weights and sizes do not agree."""
        try:
            policy = MarketPolicy(PolicySpec(**self.policy_spec), torch.Generator()).to(device)
            policy.load_state_dict(self.weights)
        except (RuntimeError, TypeError, AttributeError, ValueError) as error:
            reason = str(error).strip().splitlines()[-1].strip()  # torch lists what does not fit, line by line
            raise CheckpointError(
                f"the weights do not fit this finpod's policy ({reason}); train again, it was made by {self.versions}"
            ) from error
        return policy.requires_grad_(False)

    def to_bytes(self) -> bytes:
        """The content of a file."""
        buffer = io.BytesIO()
        torch.save({"format": FORMAT, **{f.name: _plain(getattr(self, f.name)) for f in fields(self)}}, buffer)
        return buffer.getvalue()

    def save(self, path: Path) -> None:
        """Write the file whole or not at all."""
        write_bytes(path, self.to_bytes())

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
        """What `to_bytes` gave, from `path`. Raises CheckpointError, naming it, for anything else."""
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


def _plain(value: Any) -> Any:
    """Without numpy's scalars, which `weights_only` refuses to read; equal text is one object, so that equal agents are
    equal files wherever they were made."""
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value
