"""Policies: `MarketPolicy` for tasks with a shared table of assets, `DensePolicy` for tasks without a table.

`MarketPolicy` encodes a table row once for all accounts. The holdings of an account enter after the encoder. All assets
pass through the same network, which also sees the mean over the assets of the row (Zaheer et al. 2017, "Deep Sets"). A
trained policy therefore fits any market with the same features, whatever the number and order of the assets.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

MOST_KEPT = 0.98
"""Largest |coefficient| of present holdings in a mean action. A `ScorerPolicy` with coefficient 1 ignores scores."""
SUMMARY = 3
"""Number of account features of the value head: cash, mean score of the holdings, and concentration."""


def linear(
    inputs: int, outputs: int, gain: float = 0.0, generator: torch.Generator | None = None, *, bias: bool = True
) -> nn.Linear:
    """Return a linear layer with zero biases and orthogonal weights from `generator`. With gain 0, weights are zero."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    if gain:
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
    return layer


class RunningStats(nn.Module):
    """Running mean and variance [S] of all batches of `update` (Chan et al. 1979). `forward` normalises by them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.zeros(size, dtype=torch.float64))
        self.var = nn.Buffer(torch.ones(size, dtype=torch.float64))
        self.count = nn.Buffer(torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, batch: Tensor) -> None:
        """Add observations [..., S]."""
        rows = batch.reshape(-1, batch.shape[-1]).double()
        total = self.count + rows.shape[0]
        delta = rows.mean(0) - self.mean
        spread = rows.var(0, correction=0) * rows.shape[0] + self.var * self.count
        self.var.copy_((spread + delta.square() * self.count * rows.shape[0] / total) / total)
        self.mean.add_(delta * rows.shape[0] / total)
        self.count.copy_(total)

    def forward(self, batch: Tensor) -> Tensor:
        """Return (x - mean) / sd [..., S], clipped at +-10; a constant observation becomes 0."""
        scaled = (batch - self.mean.float()) / (self.var.float() + 1e-8).sqrt()
        return scaled.clamp(-10, 10)


class Policy(nn.Module):
    """Gaussian policy with independent action dimensions, and a value function."""

    spec: Any
    """Dataclass of the sizes, from which the policy can be built again."""
    log_std: nn.Parameter
    """[] or [A] log standard deviation of the exploration noise."""
    kind = "own"
    """Name in `checkpoint.POLICIES`; 'own' for a policy that only its task can build."""
    acts_on_statistics = False
    """True if actions depend on the statistics that `observe` collects. PPO then calls `observe` after each update, and
    APG before each rollout, so an update uses constant statistics. If False, PPO calls `observe` before each update,
    and APG never calls it."""

    def encode(self, values: Tensor, among: Tensor) -> Any:
        """Return the encoder output of table rows with `values` [..., N, F]. `among` [..., N] marks usable entries."""
        raise NotImplementedError

    def forward(self, code: Any, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean actions [..., M, A] and values [..., M] for states [..., M, S] of the M environments on each
        table row. `code` is the result of `encode`, or None without a table."""
        raise NotImplementedError

    def acting(self, code: Any) -> Tensor:
        """Return a bool mask [..., 1, A] of action dimensions that have an effect. All M environments share it."""
        raise NotImplementedError

    def observe(self, code: Any, state: Tensor) -> None:
        """Add states [..., M, S] of a rollout to the policy's statistics, if it has any; see `acts_on_statistics`."""


@dataclass(frozen=True, kw_only=True)
class AccountSpec:
    """Sizes of an `AccountPolicy`, and kind of its action."""

    features: int
    """Number F of features of an asset."""
    hidden: int = 32
    """Width of both layers of the encoder."""
    action: str = "tilt"
    """Kind of action: 'tilt', 'softmax' or 'shares'."""
    tilt: float = 1.0
    """Factor k of the tilt, used to translate weights back to actions."""


@dataclass(frozen=True, kw_only=True)
class PolicySpec(AccountSpec):
    """Sizes of a `MarketPolicy`."""

    log_std_init: float = math.log(0.5)
    """Initial log standard deviation of the actions."""


class Code(NamedTuple):
    """Output of the encoder for D table rows. D may stand for several dimensions."""

    score: Tensor
    """[D, N] score of each asset: the mean action of a `MarketPolicy` for an account without positions."""
    inertia: Tensor
    """[D, N] or [D, 1] coefficient of the present holdings in the mean action, from -`MOST_KEPT` to `MOST_KEPT`."""
    cash: Tensor
    """[D, 1] logit of cash."""
    value: Tensor
    """[D, 1 + SUMMARY] value of the row, then coefficients of the account features. The value loss does not train the
    encoder, because this loss has several times the gradient of the policy loss. Unused by a `ScorerPolicy`."""
    among: Tensor
    """[D, N] bool mask of the assets that may be held."""
    anchor: Tensor | None = None
    """[D, N] weights of the anchor. None: equal weight."""


class AccountPolicy(Policy):
    """Policy that reads the assets of a table and the weights of an account. `encode` returns a `Code`."""

    spec: AccountSpec

    def _add_encoder(self, features: int, hidden: int, generator: torch.Generator | None) -> None:
        """Add two layers. The first sees each asset alone; the second also sees the mean over the assets."""
        self.names = linear(features, hidden, math.sqrt(2), generator)
        self.mixed = linear(2 * hidden, hidden, math.sqrt(2), generator)

    def _encoded(self, values: Tensor, among: Tensor) -> Tensor:
        """Return the encoder's output [..., N, hidden] for features [..., N, F]."""
        hidden = nn.functional.relu(self.names(values))
        mean = mean_among(hidden, among).unsqueeze(-2)
        return nn.functional.relu(self.mixed(torch.cat([hidden, mean.expand_as(hidden)], -1)))

    def acting(self, code: Any) -> Tensor:
        """Return a bool mask [..., 1, A] of the action dimensions in use: the assets that may be held and have a weight
        in the anchor. With 'softmax', the dimension of cash is also in use. With 'shares', all dimensions are."""
        among: Tensor = code.among if code.anchor is None else code.among & (code.anchor > 0)
        if self.spec.action == "shares":
            return torch.ones_like(among).unsqueeze(-2)
        if self.spec.action == "softmax":
            among = torch.cat([among, torch.ones_like(among[..., :1])], -1)
        return among.unsqueeze(-2)

    def _holding(self, code: Any, state: Tensor) -> Tensor:
        """Return the action [..., M, N] that roughly keeps the holdings in states [..., M, N + 1] (not for 'shares').

        The logit of an asset with a share a > 0 of the anchor is log(weight / a + 0.1), minus the mean of these logs.
        Other assets have logit 0. With 'softmax', the action is the logits. Otherwise, the action is the z with
        k * tanh(z) = logit, where k is `spec.tilt`, and |tanh z| is limited to 0.99.
        """
        among, anchor = code.among.unsqueeze(-2), code.anchor
        if anchor is not None:
            anchor = anchor.unsqueeze(-2)
            among = among & (anchor > 0)
        count = among.sum(-1, keepdim=True).clamp(min=1)
        parts = count if anchor is None else anchor.sum(-1, keepdim=True) / anchor.where(among, 1.0)
        logs = (state[..., :-1] * parts + 0.1).log() * among
        logs = (logs - logs.sum(-1, keepdim=True) / count) * among
        return logs if self.spec.action == "softmax" else (logs / self.spec.tilt).clamp(-0.99, 0.99).atanh()

    def _with_cash(self, action: Tensor, code: Any) -> Tensor:
        """Return the action [..., M, N]. With 'softmax', the logit of cash is appended as the last column."""
        if self.spec.action != "softmax":
            return action
        return torch.cat([action, code.cash.unsqueeze(-2).expand_as(action[..., :1])], -1)


def mean_among(values: Tensor, among: Tensor) -> Tensor:
    """Return the mean [..., H] of `values` [..., N, H] over the assets in `among` [..., N]; 0 if there are none."""
    share = among / among.sum(-1, keepdim=True).clamp(min=1).float()
    return torch.einsum("...nh,...n->...h", values, share)


class MarketPolicy(AccountPolicy):
    """Gaussian policy with a value function.

    The mean action is score + inertia * h (see `Code`). h is the action that keeps the holdings. With 'shares', h only
    grows with the holdings. The mean actions of an untrained policy are zero. They give the anchor ('tilt'), equal
    weights of assets and cash ('softmax'), or no trade ('shares').
    """

    spec: PolicySpec
    kind = "market"

    def __init__(self, spec: PolicySpec, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.spec = spec
        self._add_encoder(spec.features, spec.hidden, generator)
        self.out, self.day = linear(spec.hidden, 2), linear(spec.hidden, 2 + SUMMARY)
        self.log_std = nn.Parameter(torch.tensor(spec.log_std_init))
        self.summary = RunningStats(SUMMARY)

    def encode(self, values: Tensor, among: Tensor, anchor: Tensor | None = None) -> Code:
        """Return the encoder output of the features `values` [..., N, F]. `among` [..., N]: assets that may be held."""
        hidden = self._encoded(values, among)
        score, inertia = self.out(hidden).unbind(-1)
        day = mean_among(hidden, among)
        cash, value = self.day(day)[..., :1], self.day(day.detach())[..., 1:]
        return Code(score, MOST_KEPT * inertia.tanh(), cash, value, among, anchor)

    def forward(self, code: Code, state: Tensor) -> tuple[Tensor, Tensor]:
        mean = code.score.unsqueeze(-2) + code.inertia.unsqueeze(-2) * self._holding(code, state)
        account = self.summary(self._summarised(code, state))
        value = code.value[..., None, 0] + (code.value[..., None, 1:] * account).sum(-1)
        return self._with_cash(mean, code), value

    def _summarised(self, code: Code, state: Tensor) -> Tensor:
        """Return the account features [..., M, SUMMARY] of the value head, without gradients of the scores."""
        weights, cash, score = state[..., :-1], state[..., -1:], code.score.detach().unsqueeze(-2)
        parts = [cash, (weights * score).sum(-1, keepdim=True), weights.square().sum(-1, keepdim=True)]
        return torch.cat(parts, -1)

    @torch.no_grad()
    def observe(self, code: Code, state: Tensor) -> None:
        """Update the statistics of the account features. Only the value head reads them."""
        self.summary.update(self._summarised(code, state))


@dataclass(frozen=True, kw_only=True)
class DenseSpec:
    """Sizes of a `DensePolicy`."""

    inputs: int
    """Size S of an observation."""
    actions: int
    """Size A of an action."""
    hidden: int = 64
    """Width of the two hidden layers of policy and value."""
    log_std_init: float = 0.0
    """Initial log standard deviation of the actions."""


class DensePolicy(Policy):
    """Gaussian policy and value function. Each has its own network, with two tanh layers on the normalised observation.
    The mean actions of an untrained policy are near zero."""

    spec: DenseSpec
    kind = "dense"
    acts_on_statistics = True

    def __init__(self, spec: DenseSpec, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.spec, width = spec, spec.hidden
        self.statistics = RunningStats(spec.inputs)
        self.log_std = nn.Parameter(torch.full((spec.actions,), spec.log_std_init))

        def network(outputs: int, gain: float) -> nn.Sequential:
            sizes = (spec.inputs, width, math.sqrt(2)), (width, width, math.sqrt(2)), (width, outputs, gain)
            first, second, last = (linear(*size, generator) for size in sizes)
            return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)

        self.mean, self.value = network(spec.actions, 0.01), network(1, 1.0)

    def forward(self, code: None, state: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.statistics(state)
        return self.mean(seen), self.value(seen).squeeze(-1)

    def acting(self, code: None) -> Tensor:
        """Return a bool mask [1, A] of the action dimensions in use: all of them."""
        return torch.ones_like(self.log_std, dtype=torch.bool).unsqueeze(0)

    def observe(self, code: None, state: Tensor) -> None:
        self.statistics.update(state)


def log_prob(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the log density [..., A] of each dimension of a Gaussian with independent dimensions."""
    scaled = (action - mean) / log_std.exp()
    return -0.5 * scaled.square() - log_std - 0.5 * math.log(2 * math.pi)


def entropy(log_std: Tensor) -> Tensor:
    """Return the entropy per action dimension of a Gaussian. `log_std` and the entropy have shape [] or [A]."""
    return log_std + 0.5 * math.log(2 * math.pi * math.e)
