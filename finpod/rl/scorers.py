"""Scorers: deterministic policies that give each asset a score, and say how much of the present holding to keep.

They have no value and explore nothing: they are for learners that have the exact gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from finpod.rl.policy import MOST_KEPT, AccountPolicy, PolicySpec

NETWORKS = ("linear", "mlp")


@dataclass(frozen=True, kw_only=True)
class ScorerSpec:
    """Sizes; with the weights, all that is needed to build the policy again."""

    features: int
    """F, features of a name."""
    network: str = "linear"
    """'linear', or 'mlp' for two layers that also see the mean over the assets."""
    hidden: int = PolicySpec.hidden
    """Width of both layers of 'mlp'."""
    action: str = "tilt"
    """Kind of action: 'tilt' or 'softmax'."""
    tilt: float = PolicySpec.tilt
    """k of the tilt, by which held weights are translated back to actions."""


class Scores(NamedTuple):
    """What the network says of D days."""

    score: Tensor
    """[D, N] the action it would take with nothing kept; mean 0 over the names that may be held."""
    keep: Tensor
    """[D, 1] share of the present holding, as an action, to keep; from 0 to `MOST_KEPT`."""
    cash: Tensor
    """[D, 1] logit of cash."""
    among: Tensor
    """[D, N] bool: names that a decision of the day may hold."""
    anchor: Tensor | None = None
    """[D, N] what a tilt is taken around; None for equal weight."""


class ScorerPolicy(AccountPolicy):
    """Action z = (1 - keep) * score + keep * (what is held, as an action), keep being a sigmoid of the day's mean features.

    The output layers are zero at the start: an untrained policy goes half the way to the anchor (softmax: to equal
    parts of all names and cash) at every decision.
    """

    spec: ScorerSpec
    kind = "scorer"

    def __init__(self, spec: ScorerSpec, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.spec = spec
        linear = partial(nn.utils.skip_init, nn.Linear)  # which draws nothing from the global generator
        width = spec.features
        if spec.network == "mlp":
            width = spec.hidden
            self.names, self.mixed = linear(spec.features, width), linear(2 * width, width)
            for layer in (self.names, self.mixed):
                nn.init.orthogonal_(layer.weight, 2**0.5, generator=generator)
                nn.init.zeros_(layer.bias)
        self.out, self.day = linear(width, 1, bias=False), linear(width, 2)
        self.log_std = nn.Parameter(torch.tensor(-torch.inf), requires_grad=False)
        for parameter in (*self.out.parameters(), *self.day.parameters()):
            nn.init.zeros_(parameter)

    def encode(self, values: Tensor, among: Tensor, anchor: Tensor | None = None) -> Scores:
        """Return the scores of days: features [..., N, F] float32, the names that may be held and the anchor [..., N]."""
        share = among / among.sum(-1, keepdim=True).clamp(min=1).float()

        def mean(table: Tensor) -> Tensor:
            return torch.einsum("...nh,...n->...h", table, share)

        if self.spec.network == "mlp":
            hidden = nn.functional.relu(self.names(values))
            both = torch.cat([hidden, mean(hidden).unsqueeze(-2).expand_as(hidden)], -1)
            values = nn.functional.relu(self.mixed(both))
        average = mean(values)
        score = self.out(values - average.unsqueeze(-2)).squeeze(-1)
        keep, cash = self.day(average).split(1, -1)
        return Scores(score, MOST_KEPT * keep.sigmoid(), cash, among, anchor)

    def forward(self, code: Scores, state: Tensor) -> tuple[Tensor, Tensor]:
        """Action [..., M, A] of M accounts a day, out of a code [..., N] and states [..., M, N + 1]; and zeros [..., M]."""
        held, cash, keep = state[..., :-1], state[..., -1:], code.keep.unsqueeze(-2)
        anchor = None if code.anchor is None else code.anchor.unsqueeze(-2)
        kept = self._as_action(held, code.among.unsqueeze(-2), anchor)
        action = (1 - keep) * code.score.unsqueeze(-2) + keep * kept
        if self.spec.action == "softmax":
            action = torch.cat([action, code.cash.unsqueeze(-2).expand_as(cash)], -1)
        return action, torch.zeros_like(state[..., 0])

    def observe(self, code: Scores, state: Tensor) -> None:
        """Do nothing: there are no statistics."""
