"""`MarketPolicy`: an encoder that reads a day once for all accounts, and a head that reads the account.

The encoder is equivariant (Zaheer et al. 2017, Deep Sets): every name goes through the same network, which also sees the
mean over the names of the day, so that the order and the number of names are free and a trained policy fits any market
with the same features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

SUMMARY = 3
"""Account figures that the value head reads: cash, mean score of what is held, concentration."""


class RunningStats(nn.Module):
    """Mean and variance [S] of all that `update` has seen (Chan et al. 1979); `forward` normalises and learns nothing."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, batch: Tensor) -> None:
        """Take in observations [..., S]."""
        rows = batch.reshape(-1, batch.shape[-1]).double()
        total = self.count + rows.shape[0]
        delta = rows.mean(0) - self.mean
        spread = rows.var(0, correction=0) * rows.shape[0] + self.var * self.count
        self.var.copy_((spread + delta.square() * self.count * rows.shape[0] / total) / total)
        self.mean.add_(delta * rows.shape[0] / total)
        self.count.copy_(total)

    def forward(self, batch: Tensor) -> Tensor:
        """Observations [..., S] in standard units, clipped at 10; a constant one becomes 0."""
        scaled = (batch - self.mean.float()) / (self.var.float() + 1e-8).sqrt()
        return scaled.clamp(-10, 10)


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """Sizes; with the weights, all that is needed to build the policy again."""

    features: int
    """F, features of a name."""
    hidden: int = 32
    """Width of both layers of the encoder."""
    action: str = "tilt"
    """Kind of action: 'tilt', 'softmax' or 'shares'."""
    tilt: float = 1.0
    """k of the tilt, by which held weights are translated back to actions."""
    log_std_init: float = math.log(0.5)
    """Log of the exploration noise at the start."""


class Code(NamedTuple):
    """What the encoder says of D days."""

    score: Tensor
    """[D, N] the action it would take with an empty account."""
    inertia: Tensor
    """[D, N] how much of the present holding to keep."""
    cash: Tensor
    """[D, 1] logit of cash."""
    value: Tensor
    """[D, 1 + SUMMARY] value of the day, and coefficients of the account's figures."""
    among: Tensor
    """[D, N] bool: names that a decision of the day may hold."""


class MarketPolicy(nn.Module):
    """Gaussian policy over actions z, with mean score + inertia * (what is held, as an action), and a value.

    The output layer is zero at the start, so that an untrained policy is equal weight (tilt), equal parts of all names
    and cash (softmax), or does nothing (shares).
    """

    def __init__(self, spec: PolicySpec, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.spec = spec
        linear = partial(nn.utils.skip_init, nn.Linear)  # which draws nothing from the global generator
        self.names = linear(spec.features, spec.hidden)
        self.mixed = linear(2 * spec.hidden, spec.hidden)
        self.out = linear(spec.hidden, 2)
        self.day = linear(spec.hidden, 2 + SUMMARY)
        self.log_std = nn.Parameter(torch.tensor(spec.log_std_init))
        self.summary = RunningStats(SUMMARY)
        for layer in (self.names, self.mixed):
            nn.init.orthogonal_(layer.weight, math.sqrt(2), generator=generator)
            nn.init.zeros_(layer.bias)
        for parameter in (*self.out.parameters(), *self.day.parameters()):
            nn.init.zeros_(parameter)

    def encode(self, features: Tensor, among: Tensor) -> Code:
        """Read days: features [..., N, F] float32 and the names that may be held [..., N]."""
        share = among / among.sum(-1, keepdim=True).clamp(min=1).float()
        hidden = nn.functional.relu(self.names(features))
        mean = torch.einsum("...nh,...n->...h", hidden, share).unsqueeze(-2)
        hidden = nn.functional.relu(self.mixed(torch.cat([hidden, mean.expand_as(hidden)], -1)))
        score, inertia = self.out(hidden).unbind(-1)
        day = self.day(torch.einsum("...nh,...n->...h", hidden, share))
        return Code(score, inertia, day[..., :1], day[..., 1:], among)

    def forward(self, code: Code, state: Tensor) -> tuple[Tensor, Tensor]:
        """Mean action [..., M, A] and value [..., M] of M accounts a day, out of a code [..., N] and states [..., M, N + 1]."""
        held, cash = state[..., :-1], state[..., -1:]
        among = code.among.unsqueeze(-2)
        mean = code.score.unsqueeze(-2) + code.inertia.unsqueeze(-2) * self._as_action(held, among)
        if self.spec.action == "softmax":
            mean = torch.cat([mean, code.cash.unsqueeze(-2).expand_as(cash)], -1)
        account = self.summary(self.summarise(code, state))
        value = code.value[..., None, 0] + (code.value[..., None, 1:] * account).sum(-1)
        return mean, value

    def summarise(self, code: Code, state: Tensor) -> Tensor:
        """Account figures [..., M, SUMMARY]; the scores are read, not trained, by the value."""
        held, cash = state[..., :-1], state[..., -1:]
        liked = (held * code.score.detach().unsqueeze(-2)).sum(-1, keepdim=True)
        return torch.cat([cash, liked, held.square().sum(-1, keepdim=True)], -1)

    def acting(self, among: Tensor) -> Tensor:
        """[..., 1, A] bool: the dimensions of the action that matter on a day with the names `among` [..., N]."""
        if self.spec.action == "shares":
            return torch.ones_like(among).unsqueeze(-2)
        if self.spec.action == "softmax":
            among = torch.cat([among, torch.ones_like(among[..., :1])], -1)
        return among.unsqueeze(-2)

    def _as_action(self, held: Tensor, among: Tensor) -> Tensor:
        """The action [..., M, N] that holds what is held: log weights about their mean over the day's names, 0 without any.

        For a tilt these are taken back through w ~ exp(k tanh z), as far as |tanh z| < 0.99; weights below a tenth of
        equal weight count as that.
        """
        count = among.sum(-1, keepdim=True).clamp(min=1)
        logs = (held * count + 0.1).log() * among
        logs = (logs - logs.sum(-1, keepdim=True) / count) * among
        if self.spec.action == "softmax":
            return logs
        return (logs / self.spec.tilt).clamp(-0.99, 0.99).atanh()


def log_prob(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log density [..., A] of each dimension of a Gaussian with independent dimensions."""
    scaled = (action - mean) / log_std.exp()
    return -0.5 * scaled.square() - log_std - 0.5 * math.log(2 * math.pi)


def entropy(log_std: Tensor) -> Tensor:
    """Entropy of one dimension of the action; all have the same."""
    return log_std + 0.5 * math.log(2 * math.pi * math.e)
