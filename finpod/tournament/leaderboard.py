"""`Leaderboard`: every trial of a tournament, ranked on validation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from finpod.errors import FinpodError
from finpod.market.data import Array
from finpod.rl.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """One agent after one slice of training, as it did on the validation window."""

    trial: int
    """Number of the submission, from 0; breaks ties."""
    agent_id: str
    """The agent; a varied copy is another agent."""
    parent_id: str | None
    """The agent it was copied from; None for one that began untrained."""
    generation: int
    """Round of the tournament, from 0."""
    seed: int
    """Seed of the agent."""
    score: float
    """Validation score, NaN if undefined."""
    metrics: Mapping[str, float]
    """Validation metrics."""
    returns: Array
    """[n] validation returns, net of costs."""
    config: Mapping[str, Any]
    """Settings of the learner."""
    snapshot: Snapshot
    """The agent itself."""

    def summary(self) -> dict[str, Any]:
        """One line of the board as plain values."""
        return {
            "trial": self.trial,
            "agent": self.agent_id,
            "parent": self.parent_id,
            "generation": self.generation,
            "seed": self.seed,
            "score": self.score,
            "steps": self.snapshot.steps,
            "metrics": dict(self.metrics),
            "config": dict(self.config),
        }


@dataclass
class Leaderboard:
    """All entries in the order of their trials; the ranking is derived, so that nothing tried is forgotten."""

    log: list[Entry] = field(default_factory=list)

    def submit(self, entry: Entry) -> None:
        """Take an entry in."""
        self.log.append(entry)

    def ranked(self, entries: list[Entry] | None = None) -> list[Entry]:
        """Best first; NaN last; ties to the earlier trial."""
        return [(entries or self.log)[i] for i in rank([entry.score for entry in entries or self.log])]

    def best(self, count: int) -> list[Entry]:
        """The best entry of each agent, the best `count` of these. Raises FinpodError if no agent has a score."""
        chosen: dict[str, Entry] = {}
        for entry in self.ranked():
            if not math.isnan(entry.score):
                chosen.setdefault(entry.agent_id, entry)
        if not chosen:
            raise FinpodError("no agent has a validation score: all are undefined; train longer, or look at the data")
        return list(chosen.values())[:count]


def rank(scores: list[float]) -> list[int]:
    """Indices of scores, best first; NaN last; ties in order."""
    keys = np.array(scores, dtype=np.float64)
    return [int(i) for i in np.argsort(np.where(np.isnan(keys), np.inf, -keys), kind="stable")]
