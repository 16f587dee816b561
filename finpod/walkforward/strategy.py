"""`WalkForward`: the ensembles of all segments as one Strategy, saved as a folder; performance of each segment.

Each ensemble takes over the positions and cash of the previous ensemble. Nothing is sold between segments, and no
return counts twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finpod.active import ratio_and_error
from finpod.ensemble import load_ensemble
from finpod.errors import CheckpointError, StrategyError
from finpod.files import WALK_FORWARD, to_json, write_text
from finpod.market.data import MarketData, as_date
from finpod.measures import Array, simple_returns
from finpod.result import BacktestResult
from finpod.rl.checkpoint import read_marker
from finpod.strategy import Decision, MarketView, Strategy
from finpod.walkforward.schedule import Segment

FORMAT = "finpod walk-forward 1"
WINDOWS = ("train", "validation", "test")
SHARED = ("task", "learner", "device", "threads", "seeds", "plan", "score", "features", "left_out", "trading", "fill",
          "periods_per_year", "sessions_per_year", "versions")  # fmt: skip
"""Entries of the ensembles' provenance shown once for all segments. If 'features' differ, they are left out."""


class WalkForward(Strategy):
    """Strategy that trades one account with the agents of all segments. Each agent decides in its own segment.

    The first agent also decides before the first segment. Each of the `variants` uses one seed, or one member
    number, in all segments. Raises StrategyError if an agent was trained or selected on or after the first day of its
    test, or if the segments are not in order.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        agents: Sequence[Strategy],
        *,
        name: str,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.segments, self.agents, self.name = tuple(segments), tuple(agents), name
        self.settings = dict(settings or {})
        self._from = np.array([one.decides_from for one in segments], dtype="datetime64[ns]")
        self.begins = np.array([one.test[0] for one in segments], dtype="datetime64[ns]")
        self._check()
        self.trained_until = agents[0].trained_until
        self.trials = sum(agent.trials for agent in agents)
        self.tried = [table for agent in agents for table in agent.tried]  # each retraining is a separate selection
        self.tried_over = [base for agent in agents for base in agent.tried_over]
        for trait in ("every", "max_weight", "max_turnover", "anchor", "variant_kind"):
            setattr(self, trait, getattr(agents[0], trait))
        self.features = getattr(agents[0], "features", None)
        self.windows = {
            f"{what} {i + 1:0{len(str(len(segments)))}}": getattr(segment, what)
            for i, segment in enumerate(segments)
            for what in ("train", "validation")
        }
        self.provenance = _provenance(self.segments, self.agents, self.settings)

    def _check(self) -> None:
        if (np.diff(self.begins) <= np.timedelta64(0)).any() or (np.diff(self._from) <= np.timedelta64(0)).any():
            raise StrategyError(f"the segments of {self.name} are not in order; sort them by date")
        for segment, agent in zip(self.segments, self.agents, strict=True):
            known = agent.trained_until, segment.train[1], segment.validation[1]
            until = max(as_date(day) for day in known if day is not None)
            if until >= as_date(segment.test[0]) or until > as_date(segment.decides_from):
                raise StrategyError(
                    f"the agent of {self.name} for the test from {segment.test[0]} was trained or selected on days up "
                    f"to {until!s:.10}; train it on earlier days"
                )

    @property
    def variants(self) -> Sequence[Strategy]:  # type: ignore[override]
        """One walk-forward for each variant name that all agents have."""
        by_name = [{variant.name: variant for variant in agent.variants} for agent in self.agents]
        return [
            WalkForward(self.segments, [variants[name] for variants in by_name], name=name)
            for name in by_name[0]
            if all(name in variants for variants in by_name)
        ]

    def decide(self, view: MarketView) -> Decision:
        """Return the decision of the last agent with `decides_from` <= `view.date`. If no agent has such a date, return
        the decision of the first agent."""
        return self.agents[max(int(np.searchsorted(self._from, view.date, side="right")) - 1, 0)].decide(view)


def _provenance(segments: Sequence[Segment], agents: Sequence[Strategy], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance of a walk-forward. It has the entries that all agents share. 'segments' has a row for each
    segment, with its windows, selected agents and mean validation score."""
    lines = []
    for segment, agent in zip(segments, agents, strict=True):
        chosen = agent.provenance.get("members", [])
        scores = [one["score"] for one in chosen if one.get("score") is not None]
        line = {
            "agent": segment.folder,
            **{what: " to ".join(getattr(segment, what)) for what in WINDOWS},
            "chosen": ", ".join(str(one.get("agent")) for one in chosen) or agent.name,
            "trials": agent.trials,
            "validation_score": float(np.mean(scores)) if scores else math.nan,
        }
        dropped = agent.provenance.get("dropped")
        lines.append(line | ({"dropped": ", ".join(dropped)} if dropped else {}))
    shared = agents[0].provenance
    # segments may drop different features
    differ = any(agent.provenance.get("features") != shared.get("features") for agent in agents)
    return {
        **{name: shared[name] for name in SHARED if name in shared and not (differ and name == "features")},
        "segments": lines,
        "walk_forward": {"segments": len(segments)}
        | {name: settings[name] for name in ("expanding", "purge", "embargo") if name in settings},
    }


def with_segments(result: BacktestResult, strategy: WalkForward) -> BacktestResult:
    """Return the result with figures of each segment in `agent["segments"]`, and a summary in `agent["walk_forward"]`.

    'out_of_sample_score' is the information ratio over the anchor, less its standard error. 'total_return', 'benchmark'
    and 'equal_weight' are the total returns of the strategy, the benchmark and equal weight. 'over_equal_weight' is
    total_return - equal_weight. Undefined figures are NaN. A segment ends at the first close of the next test.
    'rank_correlation' in the summary is Spearman's correlation of the validation scores with the out-of-sample scores.
    """
    edges = [*np.searchsorted(result.equity.index.to_numpy(), strategy.begins), len(result.equity) - 1]
    lines = [
        {**line, **_figures(result, slice(first, last + 1))}
        for line, (first, last) in zip(strategy.provenance["segments"], pairwise(edges), strict=True)
    ]
    scores = np.array([[line[f"{when}_score"] for line in lines] for when in ("validation", "out_of_sample")])
    walk = {**strategy.provenance["walk_forward"], "rank_correlation": rank_correlation(*scores)}
    return replace(result, agent={**result.agent, "segments": lines, "walk_forward": walk})


def _figures(result: BacktestResult, part: slice) -> dict[str, float]:
    whole = (result.equity, result.benchmark_equity, result.equal_weight_equity, result.anchor_equity)
    curves = [curve.iloc[part].dropna().to_numpy() for curve in whole]
    strategy, benchmark, equal, _ = (float(v[-1] / v[0] - 1) if len(v) and v[0] > 0 else math.nan for v in curves)
    score = math.nan
    if len(curves[0]) > 1 and curves[0][0] > 0 and curves[3][0] > 0:
        active = simple_returns(curves[0]) - simple_returns(curves[3])
        score = float(np.subtract(*ratio_and_error(active, result.periods_per_year)))
    return {
        "out_of_sample_score": score,
        "total_return": strategy,
        "benchmark": benchmark,
        "equal_weight": equal,
        "over_equal_weight": strategy - equal,
    }


def rank_correlation(one: Array, other: Array) -> float:
    """Return Spearman's correlation of the pairs without NaN; NaN for fewer than three pairs or a constant series."""
    pairs = pd.DataFrame({"one": one, "other": other}, dtype=float)
    return float(pairs.corr("spearman", min_periods=3).loc["one", "other"])


def write_manifest(folder: Path, segments: Sequence[Segment], settings: Mapping[str, Any]) -> None:
    """Write the file that lists the segments in `folder`."""
    content = {"format": FORMAT, "segments": [asdict(segment) for segment in segments], "settings": settings}
    write_text(folder / WALK_FORWARD, to_json(content))


def read_manifest(folder: Path) -> tuple[list[Segment], dict[str, Any]]:
    """Return (segments, settings) of the walk-forward in a folder. Raises CheckpointError for a bad or missing file."""
    content = read_marker(folder, WALK_FORWARD, FORMAT)
    try:
        segments = [
            Segment(decides_from=one["decides_from"], **{what: (one[what][0], one[what][1]) for what in WINDOWS})
            for one in content["segments"]
        ]
        _ = [
            np.datetime64(day) for one in segments for day in (one.decides_from, *one.train, *one.validation, *one.test)
        ]
        return segments, dict(content["settings"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"{folder / WALK_FORWARD} is damaged ({error!r}); train again") from error


def load_walkforward(folder: Path, features: Sequence[Callable[[MarketData], Array]] = ()) -> WalkForward:
    """Return the walk-forward saved in a folder. `features` are the user's own feature functions, as in training.

    Raises CheckpointError for a folder that is damaged or has another format, and StrategyError for an agent that would
    decide on days it was trained or selected on.
    """
    segments, settings = read_manifest(folder)
    agents = [load_ensemble(folder / segment.folder, features) for segment in segments]
    return WalkForward(segments, agents, name=folder.resolve().name, settings=settings)
