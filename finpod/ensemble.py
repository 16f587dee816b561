"""`Ensemble`: a Strategy that averages the weights of the best agents of a training run. It is saved as a folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from finpod.envs.actions import greedy_weights
from finpod.envs.market_env import TradingConfig
from finpod.errors import CheckpointError, InputError
from finpod.features.panel import FEATURES, Scaling, column_of, name_of
from finpod.files import ENSEMBLE
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.rl.checkpoint import Checkpoint, read_marker, save_agents
from finpod.strategy import Decision, MarketView, Strategy
from finpod.trading.anchors import anchor_of_view
from finpod.trading.ledger import Costs

FORMAT = "finpod ensemble 2"


class Ensemble(Strategy):
    """A strategy whose target weights are the mean of the weights of its members, the selected agents.

    A member decides with the mean action of its policy. All members were trained on one task. They can trade any market
    that has the features. `scores` and `runs` have, for each member, its validation score and the seed of its
    tournament. `log` has a row for each trial (one agent after one round of training) with validation returns.
    `baseline` [n] has the validation returns of an account that holds the anchor, the portfolio to beat.
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
        scores: Sequence[float] = (),
        baseline: Sequence[float] = (),
    ) -> None:
        if not members:
            raise CheckpointError("the ensemble has no members; pass at least one")
        task = members[0].task_spec
        tasks = [[one.task_spec.get(key) for key in ("trading", "fill", "windows", "trained_until")] for one in members]
        if any(one != tasks[0] for one in tasks):
            raise CheckpointError(f"{name} has agents of different tasks; pass agents of one training run")
        self.members, self.name, self.trials, self.provenance = tuple(members), name, trials, provenance
        self.log, self.baseline, self.scores = tuple(log), tuple(baseline), tuple(scores)
        known = [(line.get("run", 0), line["returns"]) for line in log if line["returns"]]
        self.tried = [np.array([tried for one, tried in known if one == run], float).T for run in dict(known)]
        self.tried_over = [np.array(baseline)] * len(self.tried) if len(baseline) else []
        self.runs = tuple(runs) or (0,) * len(members)
        self.variant_kind = "member" if len(set(self.runs)) == 1 else "seed"
        self.trained_until = task["trained_until"]
        self.windows = {key: (first, last) for key, (first, last) in task["windows"].items()}
        self.trading = TradingConfig(**{**task["trading"], "costs": Costs(**task["trading"]["costs"])})
        self.every, self.anchor = self.trading.hold, self.trading.anchor
        self.max_weight, self.max_turnover = self.trading.max_weight, self.trading.max_turnover
        functions = {name_of(feature): feature for feature in own_features}
        observed = list(dict.fromkeys(name for member in members for name in member.task_spec["features"]))
        self.features: tuple[Any, ...] = tuple(functions.get(feature, feature) for feature in observed)
        self._extra = {name: column for name in observed if (column := column_of(name)) is not None}
        if foreign := [name for name in observed if name not in {*FEATURES, *self._extra, *functions}]:
            raise CheckpointError(
                f"{name} was trained on {', '.join(foreign)}, which finpod does not define; "
                "pass the functions with these names as features=",
                argument="features",
            )
        self._columns = [[observed.index(name) for name in member.task_spec["features"]] for member in members]
        self._policies = [member.policy() for member in self.members]
        self._scalings = [Scaling.from_dict(member.task_spec["scaling"]) for member in self.members]

    @property
    def variants(self) -> Sequence[Strategy]:  # type: ignore[override]
        """One ensemble per tournament; after a single tournament, one per member. Empty if there is only one member."""
        keys = range(len(self.members)) if self.variant_kind == "member" else self.runs
        if len(self.members) == 1:
            return ()
        parts = {key: [i for i, other in enumerate(keys) if other == key] for key in keys}
        return [self._part(chosen, f"{self.variant_kind} {key}") for key, chosen in parts.items()]

    @property
    def alone(self) -> Sequence[Strategy]:  # type: ignore[override]
        """Each member as a separate strategy, the best on validation first. Empty for one member or without scores."""
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
            scores=[self.scores[i] for i in chosen] if self.scores else (),
        )

    def decide(self, view: MarketView) -> Decision:
        """Return the mean of the agents' weights [N]. Raises CheckpointError if the market lacks data for them."""
        if absent := [name for name, column in self._extra.items() if column not in view.extra_names]:
            text = f"{self.name} needs the columns {', '.join(absent)}; load the market with a table of these as extra="
            raise CheckpointError(text, argument="extra")
        what = "features"
        try:
            raw = torch.tensor(view.features(self.features))
            what = "an anchor"
            anchor = anchor_of_view(view, self.anchor) if self.trading.around else None
        except InputError as error:
            raise CheckpointError(f"{self.name} was trained with {what} that this market lacks: {error}") from error
        if raw.shape[-1] != len(self.features):
            lacking = ", ".join(view.left_out(self.features))
            raise CheckpointError(
                f"{self.name} needs features that it cannot compute here: {lacking}; load open, high, low and volume"
            )
        among = torch.tensor(view.member & view.tradable)
        state = torch.tensor(np.append(view.held, view.cash / max(view.equity, 1e-9)), dtype=torch.float32)
        price = torch.tensor(np.nan_to_num(view.closes(1)[0] / view.factor))
        weights = []
        for policy, scaling, columns in zip(self._policies, self._scalings, self._columns, strict=True):
            seen = scaling.apply(raw[None][..., columns], torch.tensor(view.member)[None])[0]
            weights.append(greedy_weights(policy, self.trading, seen, among, state, price, view.equity, anchor))
        return torch.stack(weights).numpy().mean(0)

    def save(
        self, folder: str | Path, *, overwrite: bool = False, beside: Mapping[str, bytes] = MappingProxyType({})
    ) -> Path:
        """Write the ensemble to a folder atomically. `beside` has further files for the folder: name -> content."""
        names = ("runs", "trials", "provenance", "log", "scores", "baseline")
        content = {"format": FORMAT, **{name: getattr(self, name) for name in names}}
        save_agents(Path(folder), ENSEMBLE, self.members, content, beside, overwrite=overwrite)
        return Path(folder)


def load_ensemble(folder: Path, features: Sequence[Callable[[MarketData], Array]] = ()) -> Ensemble:
    """Load an ensemble from a folder. `features` are the user's feature functions on which the agents were trained.

    Raises CheckpointError for a damaged folder, another format, and feature functions that are missing in `features`.
    """
    content = read_marker(folder, ENSEMBLE, FORMAT)
    if (choice := content.get("choice", "mean")) != "mean":
        raise CheckpointError(f"{folder} has choice={choice!r}, but only 'mean' is supported; train again")
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
            scores=[math.nan if score is None else float(score) for score in content["scores"]],
            baseline=content.get("baseline", ()),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder} is damaged ({error!r}); train again") from error
