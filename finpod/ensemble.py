"""`Ensemble`: the best few agents of a tournament as one Strategy, and as a folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from finpod.envs.actions import greedy_weights
from finpod.envs.market_env import TradingConfig
from finpod.errors import CheckpointError, InputError
from finpod.features.panel import FEATURES, column_of, name_of
from finpod.features.scaling import Scaling
from finpod.files import ENSEMBLE
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.rl.checkpoint import Checkpoint, read_marker, save_agents
from finpod.strategy import MarketView, Strategy
from finpod.trading.anchors import anchor_of_view
from finpod.trading.ledger import Costs

if TYPE_CHECKING:
    from finpod.strategy import Decision

FORMAT = "finpod ensemble 2"
RECENT = 63
"""Sessions over which the 'recent' choice compares its members, as in Yang et al. 2020; and how long it keeps to one."""


class Ensemble(Strategy):
    """Holds the mean of its members' target weights, each decided by the mean action; reads only the view.

    With `choice` 'score' members weigh by their validation `scores` [members], as far as these lie above zero; with
    'recent' it follows, 63 sessions at a time, the member whose own decisions had the best Sharpe ratio over the 63
    sessions before, gross of costs: the published rolling choice. Until there are so many it holds the mean.
    `runs` [members] are the seeds of the tournaments they come from; as `variants` each run stands alone, or each member
    where there was one run. The members share one task. They fit any market that can give their features, whatever its
    names. `log` keeps every trial of the tournament with its validation returns, chosen or not; `baseline` [n] are the returns
    over which they were ranked.
    """

    def __init__(
        self,
        members: Sequence[Checkpoint],
        *,
        name: str,
        trials: int,
        provenance: dict[str, Any],
        runs: Sequence[int] = (),
        log: Sequence[dict[str, Any]] = (),
        own_features: Sequence[Callable[[MarketData], Array]] = (),
        choice: str = "mean",
        scores: Sequence[float] = (),
        baseline: Sequence[float] = (),
    ) -> None:
        if not members:
            raise CheckpointError("an ensemble needs at least one member")
        task = members[0].task_spec
        self.members = tuple(members)
        self.name, self.trials, self.provenance = name, trials, provenance
        self.log, self.baseline = tuple(log), tuple(baseline)
        self.runs = tuple(runs) or (0,) * len(members)
        self.trained_until = task["trained_until"]
        self.windows = {key: (first, last) for key, (first, last) in task["windows"].items()}
        self.trading = trading_config(task["trading"])
        self.every = self.trading.hold
        self.max_weight, self.max_turnover = self.trading.max_weight, self.trading.max_turnover
        self.anchor = self.trading.anchor
        self.choice, self.scores = choice, tuple(scores)
        functions = {name_of(feature): feature for feature in own_features}
        observed = dict.fromkeys(name for member in members for name in member.task_spec["features"])
        self.features: tuple[Any, ...] = tuple(functions.get(feature, feature) for feature in observed)
        self._columns = [[list(observed).index(name) for name in member.task_spec["features"]] for member in members]
        self._shares = shares(self.scores or [0.0] * len(members))
        self._past: list[Array] = []
        self._held: Array | None = None
        self._leader = -1
        self._extra = {name: column for name in observed if (column := column_of(name)) is not None}
        known = {*FEATURES, *self._extra}
        if foreign := [feature for feature in self.features if isinstance(feature, str) and feature not in known]:
            raise CheckpointError(
                f"{name} was trained on {', '.join(foreign)}, no feature of finpod; "
                "pass the functions it was trained on with features=",
                argument="features",
            )
        self._policies = [member.policy() for member in self.members]
        self._scalings = [Scaling.from_dict(member.task_spec["scaling"]) for member in self.members]

    @property
    def tried(self) -> Sequence[Array]:  # type: ignore[override]
        """[n, trials] validation returns of all trials that have some; those of all seeds are one choice."""
        known = [line["returns"] for line in self.log if line["returns"]]
        return [np.array(known, dtype=np.float64).T] if known else []

    @property
    def tried_over(self) -> Sequence[Array]:  # type: ignore[override]
        """The `baseline`, where there are trials and it is known."""
        return [np.array(self.baseline)] if self.baseline and self.tried else []

    @property
    def variant_kind(self) -> str:  # type: ignore[override]
        """ "member" for the agents of a single tournament, "seed" for several tournaments."""
        return "member" if len(set(self.runs)) == 1 else "seed"

    @property
    def variants(self) -> Sequence[Strategy]:  # type: ignore[override]
        """Each tournament's own ensemble, or, of a single tournament, each member alone."""
        single = self.variant_kind == "member"
        if single and len(self.members) == 1:
            return ()
        keys = [f"member {i}" for i in range(len(self.members))] if single else [f"seed {run}" for run in self.runs]
        return [self._part([i for i, other in enumerate(keys) if other == key], key) for key in dict.fromkeys(keys)]

    @property
    def alone(self) -> Sequence[Strategy]:  # type: ignore[override]
        """Each member alone, the best on validation first; none where there is one member, or no scores are known."""
        if len(self.members) < 2 or not self.scores:
            return ()
        order = np.argsort(-np.nan_to_num(np.array(self.scores), nan=-np.inf), kind="stable")
        return [self._part([int(i)], f"agent {place + 1}") for place, i in enumerate(order)]

    def _part(self, chosen: list[int], name: str) -> Ensemble:
        return Ensemble(
            [self.members[i] for i in chosen],
            runs=[self.runs[i] for i in chosen],
            name=name,
            trials=self.trials,
            provenance={},
            own_features=[feature for feature in self.features if callable(feature)],
            choice=self.choice,
            scores=[self.scores[i] for i in chosen] if self.scores else (),
        )

    def decide(self, view: MarketView) -> Decision:
        """Target weights [N] of the members together. Raises CheckpointError if the market lacks a feature they read."""
        if absent := [name for name, column in self._extra.items() if column not in view.extra_names]:
            text = f"{self.name} was trained on {', '.join(absent)}; give the table with extra="
            raise CheckpointError(text, argument="extra")
        try:
            raw = torch.tensor(view.features(self.features))
        except InputError as error:
            raise CheckpointError(f"{self.name} was trained on features that it cannot have here: {error}") from error
        if raw.shape[-1] != len(self.features):
            lacking = ", ".join(view.left_out(self.features))
            raise CheckpointError(
                f"{self.name} was trained on {lacking}, which these data cannot give; use data with all tables"
            )
        among = torch.tensor(view.member & view.tradable)
        state = torch.tensor(np.append(view.held, view.cash / max(view.equity, 1e-9)), dtype=torch.float32)
        price = torch.tensor(np.nan_to_num(view.closes(1)[0] / view.factor))
        anchor = self._around(view)
        weights = [
            greedy_weights(
                policy,
                self.trading,
                scaling.apply(raw[None][..., columns], torch.tensor(view.member)[None])[0],
                among,
                state,
                price,
                view.equity,
                anchor,
            )
            for policy, scaling, columns in zip(self._policies, self._scalings, self._columns, strict=True)
        ]
        decided = torch.stack(weights).numpy()
        if self.choice == "recent":
            return self._led(view, decided)
        return decided.mean(0) if self.choice == "mean" else self._shares @ decided

    def _around(self, view: MarketView) -> Tensor | None:
        """[N] the anchor of the decision day; None for equal weight. Raises CheckpointError for one without volumes."""
        try:
            return anchor_of_view(view, self.anchor) if self.trading.around else None
        except InputError as error:
            raise CheckpointError(
                f"{self.name} was trained around an anchor that it cannot have here: {error}"
            ) from error

    def _led(self, view: MarketView, decided: Array) -> Array:
        """Weights of the member that leads; also follows what the decisions [members, N] of each would have earned."""
        if view.step == 0:
            self._past, self._held, self._leader = [], None, -1
        if self._held is not None:
            closes = view.closes(self.every + 1)
            earned = (
                np.nan_to_num(closes[1:] / closes[:-1] - 1) @ self._held.T
            )  # [hold, members], to the weights' own days
            self._past = [*self._past, *earned][-RECENT:]
        self._held = decided
        if view.step and view.step % (-(-RECENT // self.every) * self.every) == 0 and len(self._past) >= RECENT:
            past = np.array(self._past)
            self._leader = int(np.argmax(past.mean(0) / np.maximum(past.std(0, ddof=1), 1e-12)))
        return decided.mean(0) if self._leader < 0 else decided[self._leader]

    def save(
        self, folder: Path, *, overwrite: bool = False, beside: Mapping[str, bytes] = MappingProxyType({})
    ) -> Path:
        """Write `ensemble.json`, one checkpoint a member and what goes `beside` them, by name; all or nothing."""
        names = ("runs", "trials", "provenance", "log", "choice", "scores", "baseline")
        content = {"format": FORMAT, **{name: getattr(self, name) for name in names}}
        save_agents(folder, ENSEMBLE, self.members, content, beside, overwrite=overwrite)
        return folder


def load_ensemble(folder: Path, features: Sequence[Callable[[MarketData], Array]] = ()) -> Ensemble:
    """Read a folder that `Ensemble.save` wrote; `features` are the functions among the features it was trained on.

    Raises CheckpointError, naming the file, for a foreign, older or damaged folder.
    """
    content = read_marker(folder, ENSEMBLE, FORMAT)
    try:
        members = [Checkpoint.load(folder / Path(str(file)).name) for file in content["members"]]
        return Ensemble(
            members,
            name=folder.resolve().name,
            trials=int(content["trials"]),
            provenance=content["provenance"],
            runs=content["runs"],
            log=content["log"],
            own_features=features,
            choice=str(content["choice"]),
            scores=[math.nan if score is None else float(score) for score in content["scores"]],
            baseline=content.get("baseline", ()),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder} lacks {error}; it is not whole, train again") from error


def shares(scores: Sequence[float]) -> Array:
    """[members] parts of one, by how far each validation score lies above zero; equal where none does."""
    above = np.clip(np.nan_to_num(np.array(scores, dtype=np.float64)), 0, None)
    return above / above.sum() if above.sum() > 0 else np.full(len(above), 1 / len(above))


def trading_config(values: dict[str, Any]) -> TradingConfig:
    """The task out of its plain values."""
    return TradingConfig(**{**values, "costs": Costs(**values["costs"])})
