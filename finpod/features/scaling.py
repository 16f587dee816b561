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
"""Kind of scaling -> bound of the observations, in standard deviations."""
_CONSTANT = 1e-6
"""A standard deviation below this share of the mean is a rounding error of a constant float32 feature."""


@dataclass(frozen=True)
class Scaling:
    """Scaling of F features, with statistics of the training rows only.

    "pooled": (x - mean) / sd with the statistics below, clipped at 5. "cross": the z-score of x across the day's members
    that have a value, clipped at 3; assets that are not members use the members' mean and deviation. Undefined values become
    0, as do features that were constant or never defined on the training rows.
    """

    names: tuple[str, ...]
    """[F] names of the features, in column order."""
    kinds: tuple[Kind, ...]
    """[F] kinds of scaling, "cross" or "pooled"."""
    mean: tuple[float, ...]
    """[F] means over the members and training rows with a value; 0 where there is none."""
    sd: tuple[float, ...]
    """[F] standard deviations (ddof 0) of the same values; 0 for a constant feature."""

    @classmethod
    def fit(
        cls, raw: Tensor, member: Tensor, first: int, stop: int, *, names: Sequence[str], kinds: Sequence[Kind]
    ) -> Scaling:
        """Return the scaling fitted on rows [first, stop) of `raw` [T, N, F]. Raises InputError if no such rows exist."""
        if not 0 <= first < stop <= len(raw):
            raise InputError(f"training rows {first}:{stop} are empty or out of range; pass rows within 0:{len(raw)}")
        figures = [_mean_and_sd(column, member[first:stop]) for column in raw[first:stop].unbind(-1)]
        mean, sd = (tuple(torch.stack(values).tolist()) for values in zip(*figures, strict=True))
        return cls(tuple(names), tuple(kinds), mean, sd)

    def select(self, columns: Sequence[int]) -> Scaling:
        """Return the scaling of the features with these column numbers."""
        return Scaling(*(tuple(values[i] for i in columns) for values in asdict(self).values()))

    def apply(self, raw: Tensor, member: Tensor) -> Tensor:
        """Return finite observations [T, N, F] float32 of `raw` [T, N, F], NaN where undefined. `member` is a mask [T, N]."""
        scaled = torch.zeros_like(raw, dtype=torch.float32)
        for column, (kind, mean, sd) in enumerate(zip(self.kinds, self.mean, self.sd, strict=True)):
            if sd == 0:
                continue
            values = raw[..., column].double()
            centre, spread = _mean_and_sd(values, member, dim=1) if kind == "cross" else (mean, values.new_tensor(sd))
            score = (values - centre) / spread.where(spread > 0, math.nan)  # all members may be equal on a day
            scaled[..., column] = score.nan_to_num(nan=0.0).clamp(-CLIP[kind], CLIP[kind])
        return scaled

    def to_dict(self) -> dict[str, Any]:
        """Return the scaling as plain values, which `from_dict` reads."""
        return {name: list(values) for name, values in asdict(self).items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Scaling:
        """Return the scaling from the result of `to_dict`. Raises CheckpointError for anything else."""
        try:
            columns = {name: tuple(stored[name]) for name in ("names", "kinds", "mean", "sd")}
            rows = list(zip(*columns.values(), strict=True))
            if not all(kind in CLIP and math.isfinite(mean) and math.isfinite(sd) for _, kind, mean, sd in rows):
                raise ValueError("a kind or a number is invalid")
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the stored scaling is damaged ({error!r}); train the agent again") from error
        return cls(**columns)

    def require(self, names: Iterable[str]) -> None:
        """Raise CheckpointError, naming the difference, unless `names` equal the features of the scaling, in order."""
        given = tuple(names)
        if given != self.names:
            differing = ", ".join(sorted({*given} ^ {*self.names})) or "their order"
            raise CheckpointError(
                f"the features are not those the agent was trained on; they differ in {differing}; pass, in this order, "
                f"{', '.join(self.names)}"
            )


def _mean_and_sd(values: Tensor, member: Tensor, dim: int | None = None) -> tuple[Tensor, Tensor]:
    """Return (mean, sd) of the members' `values` [T, N], over all or along `dim`; 0 without values. sd is 0 if constant."""
    known = member & values.isfinite()
    count = known.sum(dim=dim, keepdim=dim is not None).clamp(min=1)
    values = values.double()
    mean = values.where(known, 0.0).sum(dim=dim, keepdim=dim is not None) / count
    sd = ((values - mean).where(known, 0.0).square().sum(dim=dim, keepdim=dim is not None) / count).sqrt()
    return mean, sd.where(sd > _CONSTANT * mean.abs(), 0.0)
