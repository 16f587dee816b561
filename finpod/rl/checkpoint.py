"""`Checkpoint`: a trained agent on disk, as tensors and plain values only."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping, Sequence
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
"""Kind -> (class of the policy, class of its sizes). Policies of these kinds can be built without their task."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An agent: everything needed to act like it and to continue its training exactly."""

    policy_spec: dict[str, Any]
    """Sizes of the policy, see `spec_of`."""
    weights: dict[str, Tensor]
    """Parameters and observation statistics of the policy."""
    task_spec: dict[str, Any]
    """Name of the task and its `Task.spec`, as plain values."""
    learner: dict[str, Any]
    """State of the learner."""
    env: dict[str, Any]
    """State of the environment; empty for selected agents and for mutated copies, which begin in a new environment."""
    config: dict[str, Any]
    """Settings of the learner."""
    seed: int
    steps: int
    """Number of environment steps of training, including those of the agent's ancestors."""
    versions: dict[str, str]
    """Versions of finpod and torch."""

    def policy(self, device: str | torch.device = "cpu", untrained: Policy | None = None) -> Policy:
        """Return the policy, ready to act. The weights are loaded into `untrained`, or into a new policy on `device`.

        Raises CheckpointError if the weights do not fit, or if `untrained` is None and only the task can build the
        policy.
        """
        sizes = dict(self.policy_spec)
        kind = sizes.pop("kind", "market")
        if untrained is None and kind not in POLICIES:
            raise CheckpointError("this policy can be built only by its task; pass the task: TrainedRun(folder, task)")
        try:
            if untrained is None:
                make, spec = POLICIES[kind]
                untrained = make(spec(**sizes), torch.Generator()).to(device)
            untrained.load_state_dict(self.weights)
        except (RuntimeError, TypeError, AttributeError, ValueError) as error:
            reason = str(error).strip().splitlines()[-1].strip()  # torch lists one difference per line
            text = (
                f"the weights, stored by {self.versions}, do not fit this policy ({reason}); "
                "use the task and the package versions of the training that stored them, or train again"
            )
            raise CheckpointError(text) from error
        return untrained.requires_grad_(False)

    def to_bytes(self) -> bytes:
        """Return the checkpoint as the content of a file. Raises InputError for a value of an unsupported type."""
        buffer = io.BytesIO()
        torch.save({"format": FORMAT, **{f.name: _plain(getattr(self, f.name)) for f in fields(self)}}, buffer)
        return buffer.getvalue()

    def save(self, path: Path) -> None:
        """Write the checkpoint to a file atomically."""
        files.write_bytes(path, self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Return the checkpoint in a file, and run no code in it. Raises CheckpointError for a missing or bad file."""
        try:
            stored = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror}); check it, or train again") from error
        return cls.from_bytes(stored, str(path))

    @classmethod
    def from_bytes(cls, stored: bytes, path: str = "the checkpoint") -> Checkpoint:
        """Return the checkpoint that `to_bytes` stored. Raises CheckpointError about `path` for other content."""
        try:
            content = torch.load(io.BytesIO(stored), map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged pickle can fail in any way
            raise CheckpointError(f"{path} is not a finpod checkpoint, or it is damaged; train again") from error
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise CheckpointError(f"{path} is not a checkpoint of this version of finpod ({FORMAT}); train again")
        try:
            return cls(**content)
        except TypeError as error:
            raise CheckpointError(f"{path} does not have the fields of a checkpoint; train again") from error


def save_agents(
    folder: Path, marker: str, members: Sequence[Checkpoint], content: Mapping[str, Any], beside: Mapping[str, bytes],
    *, overwrite: bool,
) -> None:  # fmt: skip
    """Write a folder with one file per agent. If the folder cannot be written completely, nothing is written.

    The JSON file `marker` holds `content` and the names of the agents' files. `beside` has other files: name -> bytes.
    """
    with files.new_folder(folder, overwrite=overwrite) as fresh:
        names = [f"member-{i}.pt" for i in range(len(members))]
        for name, member in zip(names, members, strict=True):
            member.save(fresh / name)
        for name, stored in beside.items():
            files.write_bytes(fresh / name, stored)
        files.write_text(fresh / marker, files.to_json({"members": names, **content}))


def read_marker(folder: Path, marker: str, form: str) -> dict[str, Any]:
    """Return the content of `marker`, the JSON file in a folder of trained agents. `form` is the format to expect.

    Raises CheckpointError, which names the file, if the file cannot be read, is damaged or has another format.
    """
    try:
        content: Any = json.loads((folder / marker).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} has no readable {marker}; pass another folder, or train again") from error
    if not isinstance(content, dict) or content.get("format") != form:
        raise CheckpointError(f"{folder / marker} does not have the format {form}; train again with this version")
    return content


def spec_of(policy: Policy) -> dict[str, Any]:
    """Return the sizes and the kind of a policy. A policy of kind 'own' has no sizes. The kind 'market' is left out."""
    if policy.kind not in POLICIES:
        return {"kind": "own"}
    return asdict(policy.spec) | ({} if policy.kind == "market" else {"kind": policy.kind})


def versions() -> dict[str, str]:
    """Return the versions of the packages on which training results depend."""
    return files.versions("finpod", "numpy", "python", "torch")


def _plain(value: Any) -> Any:
    """Return `value` with Python numbers in place of numpy scalars. Equal strings become one object, so that equal
    agents give equal files. Raises InputError for a type that a checkpoint cannot store."""
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
        f"a checkpoint cannot store a {type(value).__name__}; "
        "return tensors, numbers and text from state_dict() and spec()"
    )
