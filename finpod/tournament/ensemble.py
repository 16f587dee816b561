"""`Ensemble`: the best few agents of a tournament as one Strategy, and as a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from finpod.atomic import new_folder, write_text
from finpod.envs.market import TradingConfig
from finpod.errors import CheckpointError, InputError
from finpod.jsonable import to_json
from finpod.market.data import Array, MarketData
from finpod.market.features import FEATURES, name_of
from finpod.market.ledger import Costs
from finpod.market.scaling import Scaling
from finpod.rl.greedy import greedy_weights
from finpod.rl.snapshot import Snapshot
from finpod.strategy import MarketView, Strategy

if TYPE_CHECKING:
    from finpod.strategy import Decision

FORMAT = "finpod ensemble 1"
MANIFEST = "ensemble.json"


class Ensemble(Strategy):
    """Holds the mean of its members' target weights, each decided by the mean action; reads only the view.

    `runs` [members] are the seeds of the tournaments they come from; as `variants` each run stands alone, or each member
    where there was one run. The members share one task. They fit any market that can give their features, whatever its
    names. `log` keeps every trial of the tournament with its validation returns, chosen or not.
    """

    def __init__(
        self,
        members: Sequence[Snapshot],
        *,
        name: str,
        trials: int,
        provenance: dict[str, Any],
        runs: Sequence[int] = (),
        log: Sequence[dict[str, Any]] = (),
        own_features: Sequence[Callable[[MarketData], Array]] = (),
    ) -> None:
        if not members:
            raise CheckpointError("an ensemble needs at least one member")
        task = members[0].task_spec
        self.members = tuple(members)
        self.name, self.trials, self.provenance = name, trials, provenance
        self.log = tuple(log)
        self.runs = tuple(runs) or (0,) * len(members)
        self.trained_until = task["trained_until"]
        self.windows = {key: (first, last) for key, (first, last) in task["windows"].items()}
        self.trading = trading_config(task["trading"])
        self.every = self.trading.hold
        own = {name_of(feature): feature for feature in own_features}
        self.features: tuple[Any, ...] = tuple(own.get(feature, feature) for feature in task["features"])
        if foreign := [feature for feature in self.features if isinstance(feature, str) and feature not in FEATURES]:
            raise CheckpointError(
                f"{name} was trained on {', '.join(foreign)}, no feature of finpod; "
                "pass the functions to load_strategy(folder, features=[...])"
            )
        self._policies = [member.policy() for member in self.members]
        self._scalings = [Scaling.from_dict(member.task_spec["scaling"]) for member in self.members]

    @property
    def variants(self) -> Sequence[Strategy]:  # type: ignore[override]
        """Each tournament's own ensemble, or, of a single tournament, each member alone."""
        single = len(set(self.runs)) == 1
        if single and len(self.members) == 1:
            return ()
        keys = [f"member {i}" for i in range(len(self.members))] if single else [f"seed {run}" for run in self.runs]
        return [self._part([i for i, own in enumerate(keys) if own == key], key) for key in dict.fromkeys(keys)]

    def _part(self, chosen: list[int], name: str) -> Ensemble:
        return Ensemble(
            [self.members[i] for i in chosen],
            runs=[self.runs[i] for i in chosen],
            name=name,
            trials=self.trials,
            provenance={},
            own_features=[feature for feature in self.features if callable(feature)],
        )

    def decide(self, view: MarketView) -> Decision:
        """Mean target weights [N] of the members. Raises CheckpointError if the market lacks a feature they read."""
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
        weights = [
            greedy_weights(
                policy,
                self.trading,
                scaling.apply(raw[None], torch.tensor(view.member)[None])[0],
                among,
                state,
                price,
                view.equity,
            )
            for policy, scaling in zip(self._policies, self._scalings, strict=True)
        ]
        return torch.stack(weights).mean(0).numpy()

    def save(self, folder: Path, *, overwrite: bool = False) -> Path:
        """Write `ensemble.json` and one snapshot a member; all or nothing."""
        with new_folder(folder, overwrite=overwrite) as fresh:
            files = [f"member-{i}.pt" for i in range(len(self.members))]
            for file, member in zip(files, self.members, strict=True):
                member.save(fresh / file)
            content = {
                "format": FORMAT,
                "members": files,
                "runs": self.runs,
                "trials": self.trials,
                "provenance": self.provenance,
                "log": self.log,
            }
            write_text(fresh / MANIFEST, to_json(content))
        return folder


def load_ensemble(folder: Path, features: Sequence[Callable[[MarketData], Array]] = ()) -> Ensemble:
    """Read a folder that `Ensemble.save` wrote; `features` are the functions among the features it was trained on.

    Raises CheckpointError, naming the file, for a foreign, older or damaged folder.
    """
    try:
        content = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} is not a trained folder: cannot read {MANIFEST}; train again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{folder / MANIFEST} is not of this version of finpod ({FORMAT}); train again")
    try:
        members = [Snapshot.load(folder / Path(str(file)).name) for file in content["members"]]
        return Ensemble(
            members,
            name=folder.resolve().name,
            trials=int(content["trials"]),
            provenance=content["provenance"],
            runs=content["runs"],
            log=content["log"],
            own_features=features,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder} lacks {error}; it is not whole, train again") from error


def trading_config(values: dict[str, Any]) -> TradingConfig:
    """The task out of its plain values."""
    return TradingConfig(**{**values, "costs": Costs(**values["costs"])})
