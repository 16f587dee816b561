"""`Scaling` of raw features to observations, fitted on training rows and stored with the agent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from finpod.errors import CheckpointError, InputError
from finpod.features.library import Kind

CLIP: dict[str, float] = {"cross": 3.0, "pooled": 5.0}
"""Bound of observations in standard deviations."""
_CONSTANT = 1e-6
"""A standard deviation below this share of the mean is a rounding error of a constant float32 feature."""


@dataclass(frozen=True)
class Scaling:
    """Scaling of F features, with statistics of the training rows only.

    "pooled": (x - mean) / sd with the statistics below, clipped at 5. "cross": the z-score of x across the day's members
    that have a value, clipped at 3; assets that are not members use the members' mean and deviation. Undefined values, and
    features that were constant or never defined on the training rows, become 0.
    """

    names: tuple[str, ...]
    """[F] features, in column order."""
    kinds: tuple[Kind, ...]
    """[F] "cross" or "pooled"."""
    mean: tuple[float, ...]
    """[F] over the members and training rows with a value; 0 where there is none."""
    sd: tuple[float, ...]
    """[F] standard deviation (ddof 0) of the same values; 0 for a constant feature."""

    @classmethod
    def fit(
        cls, raw: Tensor, member: Tensor, first: int, stop: int, *, names: Sequence[str], kinds: Sequence[Kind]
    ) -> Scaling:
        """Fit on the rows [first, stop) of raw [T, N, F] and member [T, N]. Raises InputError for rows out of range."""
        if not 0 <= first < stop <= len(raw):
            raise InputError(f"training rows {first}:{stop} are not within 0:{len(raw)}")
        figures = [_mean_and_sd(column, member[first:stop]) for column in raw[first:stop].unbind(-1)]
        mean, sd = torch.stack([torch.stack(pair) for pair in figures], dim=1).tolist()
        return cls(tuple(names), tuple(kinds), tuple(mean), tuple(sd))

    def select(self, columns: Sequence[int]) -> Scaling:
        """Return the scaling of some of the features, by their columns."""
        return Scaling(*(tuple(values[i] for i in columns) for values in asdict(self).values()))

    def apply(self, raw: Tensor, member: Tensor) -> Tensor:
        """Return finite observations [T, N, F] float32 of raw features [T, N, F], NaN where undefined, and member [T, N].

        Raises CheckpointError when the number of features is not that of the scaling.
        """
        if raw.shape[-1] != len(self.names):
            raise CheckpointError(f"the scaling is of {len(self.names)} features, the data have {raw.shape[-1]}")
        scaled = torch.zeros_like(raw, dtype=torch.float32)
        for column, (kind, mean, sd) in enumerate(zip(self.kinds, self.mean, self.sd, strict=True)):
            if sd == 0:
                continue
            values = raw[..., column].double()
            score = _cross_score(values, member) if kind == "cross" else (values - mean) / sd
            scaled[..., column] = score.nan_to_num(nan=0.0).clamp(-CLIP[kind], CLIP[kind])
        return scaled

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which `from_dict` reads."""
        return {name: list(values) for name, values in asdict(self).items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Scaling:
        """Return the scaling from the result of `to_dict`. Raises CheckpointError for anything else."""
        try:
            columns = {name: tuple(stored[name]) for name in ("names", "kinds", "mean", "sd")}
            figures = [float(value) for name in ("mean", "sd") for value in columns[name]]
            known = set(columns["kinds"]) <= set(CLIP)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the stored scaling cannot be read: {error!r}; train the agent again") from error
        alike = len({len(values) for values in columns.values()}) == 1
        if not (alike and known and all(map(math.isfinite, figures))):
            raise CheckpointError("the stored scaling is damaged: its columns disagree; train the agent again")
        return cls(**columns)

    def require(self, names: Iterable[str]) -> None:
        """Raise CheckpointError, naming the difference, unless `names` equal the features of the scaling, in order."""
        requested = tuple(names)
        if requested == self.names:
            return
        missing = ", ".join(name for name in self.names if name not in requested)
        extra = ", ".join(name for name in requested if name not in self.names)
        differences = [
            text for text in (missing and f"missing {missing}", extra and f"not known to it: {extra}") if text
        ]
        raise CheckpointError(
            "the features are not those the agent was trained on: "
            + ("; ".join(differences) or f"their order must be {', '.join(self.names)}")
        )


def _mean_and_sd(values: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and sd of the members' values [T, N] as float64 scalars; (0, 0) if there are none, sd 0 if constant."""
    known = member & values.isfinite()
    count = known.sum().clamp(min=1)
    values = values.double()
    mean = values.where(known, 0.0).sum() / count
    sd = ((values - mean).where(known, 0.0).square().sum() / count).sqrt()
    return mean, sd.where(sd > _CONSTANT * mean.abs(), 0.0)


def _cross_score(values: Tensor, member: Tensor) -> Tensor:
    """Return z-scores [T, N] across each day's members; NaN on days on which all members are equal."""
    known = member & values.isfinite()
    count = known.sum(dim=1, keepdim=True).clamp(min=1)
    mean = values.where(known, 0.0).sum(dim=1, keepdim=True) / count
    sd = ((values - mean).where(known, 0.0).square().sum(dim=1, keepdim=True) / count).sqrt()
    return (values - mean) / sd.where(sd > _CONSTANT * mean.abs(), math.nan)
