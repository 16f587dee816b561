"""`build_panel`: the features of all assets of a `MarketData` as finite observations on a device, and their `Scaling`.

Unscaled values of row t are computed from rows <= t, so later rows do not change a single bit of them. A scaling is
fitted on the training rows. A feature is left out if the market lacks a table for it, such as volumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finpod.errors import CheckpointError, DataError, InputError, did_you_mean, with_kind
from finpod.features.library import FEATURES, SETS, Bars, Definition, Kind
from finpod.market.data import MarketData
from finpod.market.extra import column_of
from finpod.measures import Array

Feature = str | Callable[[MarketData], "Array | Tensor"]
"""A name in `FEATURES`, `extra:NAME` for a user's column, or a function that returns [T, N] for a MarketData."""
Features = Feature | Sequence[Feature] | None
"""A feature, the name of a set in `SETS`, or a sequence of features and sets. None means the default set."""

MOST_UNDEFINED = 0.5
"""A feature is dropped if it is undefined on more than this fraction of the members' bars in the training rows. Agents
observe undefined values as 0, and would hardly learn what the defined values of such a feature mean."""
CLIP: dict[str, float] = {"cross": 3.0, "pooled": 5.0}
"""Kind of scaling -> largest absolute value of an observation, in standard deviations."""
_CONSTANT = 1e-6
"""A standard deviation up to this fraction of the mean counts as 0: the float32 values differ only by rounding."""


@dataclass(frozen=True)
class Scaling:
    """Scaling of F features to finite observations, fitted on the training rows.

    A "pooled" value x becomes (x - mean) / sd, clipped at 5, with the fitted statistics below. A "cross" value becomes
    its z-score among the values of the day's members, clipped at 3, also if the asset itself is not a member.
    Undefined values become 0, and so does a feature that was constant or never defined on the training rows.
    """

    names: tuple[str, ...]
    """[F] names of the features, in column order."""
    kinds: tuple[Kind, ...]
    """[F] kinds of scaling, "cross" or "pooled"."""
    mean: tuple[float, ...]
    """[F] means of the members' values in the training rows; 0 for a feature without a value."""
    sd: tuple[float, ...]
    """[F] standard deviations (ddof 0) of the members' values in the training rows; 0 for a constant feature."""

    @classmethod
    def fit(
        cls, raw: Tensor, member: Tensor, first: int, stop: int, *, names: Sequence[str], kinds: Sequence[Kind]
    ) -> Scaling:
        """Return the scaling fitted on rows [first, stop) of `raw` [T, N, F]. Raises InputError for invalid rows."""
        if not 0 <= first < stop <= len(raw):
            raise InputError(f"training rows {first}:{stop} are empty or out of range; pass rows within 0:{len(raw)}")
        figures = [_mean_and_sd(column, member[first:stop]) for column in raw[first:stop].unbind(-1)]
        mean, sd = (tuple(torch.stack(values).tolist()) for values in zip(*figures, strict=True))
        return cls(tuple(names), tuple(kinds), mean, sd)

    def select(self, columns: Sequence[int]) -> Scaling:
        """Return the scaling of the features with these column numbers."""
        return Scaling(*(tuple(values[i] for i in columns) for values in asdict(self).values()))

    def apply(self, raw: Tensor, member: Tensor) -> Tensor:
        """Return observations [T, N, F] float32; 0 where `raw` [T, N, F] is NaN. `member` is a mask [T, N]."""
        scaled = torch.zeros_like(raw, dtype=torch.float32)
        for column, (kind, mean, sd) in enumerate(zip(self.kinds, self.mean, self.sd, strict=True)):
            if sd == 0:
                continue
            values = raw[..., column].double()
            centre, spread = _mean_and_sd(values, member, dim=1) if kind == "cross" else (mean, values.new_tensor(sd))
            score = (values - centre) / spread.where(spread > 0, math.nan)  # 0 if members have equal values
            scaled[..., column] = score.nan_to_num(nan=0.0).clamp(-CLIP[kind], CLIP[kind])
        return scaled

    def to_dict(self) -> dict[str, Any]:
        """Return the scaling as a dict of lists, which `from_dict` reads."""
        return {name: list(values) for name, values in asdict(self).items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Scaling:
        """Return the scaling that `to_dict` wrote. Raises CheckpointError if `stored` is anything else."""
        try:
            columns = {name: tuple(stored[name]) for name in ("names", "kinds", "mean", "sd")}
            rows = list(zip(*columns.values(), strict=True))
            if not all(kind in CLIP and math.isfinite(mean) and math.isfinite(sd) for _, kind, mean, sd in rows):
                raise ValueError("a kind of scaling is unknown, or a mean or sd is not finite")
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the stored scaling is damaged ({error!r}); train the agent again") from error
        return cls(**columns)

    def require(self, names: tuple[str, ...]) -> None:
        """Raise CheckpointError, which names the difference, unless `names` are those of the scaling, in order."""
        if names != self.names:
            differing = ", ".join(sorted({*names} ^ {*self.names})) or "their order"
            raise CheckpointError(
                f"the features are not those the agent was trained on; they differ in {differing}; pass, in this "
                f"order, {', '.join(self.names)}"
            )


@dataclass(frozen=True, eq=False)
class Panel:
    """Observations of T rows and N assets of a market, on one device, with how they were scaled."""

    features: Tensor
    """[T, N, F] float32, scaled, finite; 0 where undefined."""
    among: Tensor
    """[T, N] bool mask of the assets that a decision in the row may hold: members with a bar."""
    names: tuple[str, ...]
    """[F] names of the features, in column order."""
    left_out: tuple[str, ...]
    """Names of requested features that were left out, because the market lacks tables that they need."""
    scaling: Scaling
    """Scaling of the features. It is stored with the agents that are trained on them."""
    undefined: Mapping[str, float] = field(default_factory=dict)
    """Kept feature -> fraction of the members' bars in the training rows on which it has no value, if above 0.
    Empty if the scaling of a trained agent is used."""
    dropped: Mapping[str, float] = field(default_factory=dict)
    """Dropped feature -> fraction of the members' bars in the training rows without a value, above `MOST_UNDEFINED`."""


def name_of(feature: Feature) -> str:
    """Return the name of a feature. That of a function is its `__name__`."""
    return feature if isinstance(feature, str) else getattr(feature, "__name__", type(feature).__name__)


def resolve(market: MarketData, features: Features = None) -> tuple[tuple[Feature, ...], tuple[str, ...]]:
    """Return the requested features that `market` supports, and the names of those whose tables the market lacks.

    The name of a set in `SETS` means all its features. Raises InputError for an unknown name or user column, a lambda,
    and a function with the name of a built-in or of another requested feature. Also raises it if no feature is left.
    """
    features = "default" if features is None else features
    available: dict[str, Feature] = {}
    left_out: list[str] = []
    for one in [features] if isinstance(features, str) or callable(features) else features:
        for feature in SETS.get(one, (one,)) if isinstance(one, str) else (one,):
            name, definition = name_of(feature), _definition(feature, market)
            if name in available and available[name] != feature:
                raise InputError(f"two features are called {name}; rename one", argument="features")
            if any(getattr(market, table) is None for table in definition.tables):
                left_out.append(name)
            else:
                available[name] = feature
    if not available:
        text = "features is empty; give a feature, or omit the argument features= for the default set"
        if left_out:
            lacking = ", ".join(left_out)
            text = f"no feature is left: this market lacks columns that {lacking} need; choose other features"
        raise InputError(text, argument="features")
    return tuple(available.values()), tuple(dict.fromkeys(left_out))


def compute(market: MarketData, features: Features = None, device: str | torch.device = "cpu") -> Tensor:
    """Return the unscaled values [T, N, F] float32 of the features that `resolve` selects; NaN where undefined.

    Raises InputError as `resolve` does, and for a function that fails or whose result is not [T, N].
    """
    available, _ = resolve(market, features)
    bars = Bars(market, device)
    values = torch.empty((*market.shape, len(available)), dtype=torch.float32, device=bars.device)
    for number, feature in enumerate(available):
        definition = _definition(feature, market)
        age = bars.row if definition.market_wide else bars.age
        values[..., number] = definition.function(bars).where(bars.has_bar & (age >= definition.warm_up), math.nan)
    return values


def build_panel(
    market: MarketData,
    features: Features = None,
    *,
    scaling: Scaling | None = None,
    fit: tuple[int, int] | None = None,
    device: str | torch.device = "cpu",
) -> Panel:
    """Return the observations of `market`: its features, computed, scaled and checked.

    If `scaling` is None, a new one is fitted on the training rows `fit`, (first, stop). Features that are undefined on
    more than half of the members' bars of these rows are then dropped (see `Panel.dropped`). A given `scaling`, that of
    a trained agent, is used unchanged. It also determines the features if `features` is None.

    Raises InputError if neither `scaling` nor `fit` is given, and if all features are dropped or constant on `fit`;
    CheckpointError if the features are not those of the scaling; DataError if a value is infinite.
    """
    if scaling is not None and features is None:
        if foreign := [name for name in scaling.names if name not in FEATURES and column_of(name) is None]:
            raise CheckpointError(
                f"the agent was trained on {', '.join(foreign)}, which is not built in; pass the function in features="
            )
        features = scaling.names
    available, left_out = resolve(market, features)
    names = tuple(map(name_of, available))
    if scaling is not None:
        scaling.require(names)
    raw = compute(market, available, device)
    if (infinite := raw.isinf()).any():
        row, column, feature = infinite.nonzero()[0].tolist()
        raise DataError(
            f"{names[feature]} of {market.tickers[column]} on {market.dates[row]!s:.10} is infinite; "
            "give NaN where a feature is undefined"
        )
    masks = (market.member, market.member & market.has_bar)
    member, among = (torch.tensor(np.array(mask), device=raw.device) for mask in masks)
    shares: dict[str, float] = {}
    if scaling is None:
        if fit is None:
            raise InputError("fit and scaling are both missing; pass scaling, or fit=(first, stop) with training rows")
        kinds = [_definition(feature, market).kind for feature in available]
        scaling = Scaling.fit(raw, member, *fit, names=names, kinds=kinds)
        bars = among[slice(*fit)]
        counts = (raw[slice(*fit)].isnan() & bars.unsqueeze(-1)).sum((0, 1))
        shares = dict(zip(names, (counts / bars.sum().clamp(min=1)).tolist(), strict=True))
        columns = [column for column, name in enumerate(names) if shares[name] <= MOST_UNDEFINED]
        scaling, raw = scaling.select(columns), raw[..., columns] if len(columns) < len(names) else raw
        if not any(scaling.sd):
            best = min(names, key=shares.__getitem__)
            raise InputError(
                f"in training rows {fit[0]}:{fit[1]}, each feature is constant, or undefined on most bars (fewest: "
                f"{best} with {shares[best]:.1%}); load earlier sessions, train later or choose other features",
                argument="features",
            )
    undefined = {name: share for name, share in shares.items() if 0 < share <= MOST_UNDEFINED}
    dropped = {name: share for name, share in shares.items() if share > MOST_UNDEFINED}
    return Panel(scaling.apply(raw, member), among, scaling.names, left_out, scaling, undefined, dropped)


def _definition(feature: Feature, market: MarketData) -> Definition:
    """Return the definition of a built-in feature, or that of a user's column or function, which has no warm-up."""
    name = name_of(feature)
    if callable(feature):
        if name in {*FEATURES, *SETS, "<lambda>"}:
            text = f"a feature function cannot have the name {name}; define it under another name"
            raise InputError(text, argument="features")
        return Definition(lambda bars: _of_user(market, feature).to(bars.device, torch.float64), 0)
    if (column := column_of(feature)) is not None:
        # a column with one value for all tickers cannot be scaled across tickers
        kind: Kind = "pooled" if market.extra.is_shared(column) else "cross"
        return Definition(lambda bars: torch.tensor(np.array(market.extra[column]), device=bars.device), 0, kind)
    if feature not in FEATURES:
        hint = did_you_mean(str(feature), [*FEATURES, *SETS], f"choose from {', '.join([*SETS, *FEATURES])}")
        raise InputError(f"unknown feature {feature!r}; {hint}", argument="features")
    return FEATURES[feature]


def _of_user(market: MarketData, feature: Callable[[MarketData], Array | Tensor]) -> Tensor:
    """Return the values [T, N] of a user's function. Raises InputError if it fails, or for another shape."""
    name = name_of(feature)
    try:
        values = feature(market)
        values = values if isinstance(values, Tensor) else torch.tensor(np.array(values, dtype=np.float64))
    except Exception as error:
        raise InputError(f"feature {name} failed: {with_kind(error)}", "features") from error
    if tuple(values.shape) != market.shape:
        text = f"feature {name} has shape {tuple(values.shape)}; return [T, N] = {market.shape}, rows by assets"
        raise InputError(text, argument="features")
    return values


def _mean_and_sd(values: Tensor, member: Tensor, dim: int | None = None) -> tuple[Tensor, Tensor]:
    """Return (mean, sd) of members' values [T, N], over `dim` or all; (0, 0) without values. Constants have sd 0."""
    known = member & values.isfinite()
    count = known.sum(dim=dim, keepdim=dim is not None).clamp(min=1)
    values = values.double()
    mean = values.where(known, 0.0).sum(dim=dim, keepdim=dim is not None) / count
    sd = ((values - mean).where(known, 0.0).square().sum(dim=dim, keepdim=dim is not None) / count).sqrt()
    return mean, sd.where(sd > _CONSTANT * mean.abs(), 0.0)
