"""Analytic policy gradient (APG): the exact gradient of an objective after costs, through a differentiable environment.

K steps are taken and differentiated together (truncated back-propagation through time; Wiedemann et al. 2023). The next
update continues with the same accounts; its gradients do not reach earlier steps. The policy is deterministic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from finpod.envs.step import Returns
from finpod.errors import InputError, require_choice, require_number
from finpod.rl.policy import MOST_KEPT, AccountPolicy, AccountSpec, Code, Policy, linear, mean_among
from finpod.rl.rollout import encode_rows, of_groups
from finpod.rl.task import Table

TAIL = 0.1
"""Fraction of the environments that form the tail in the objective 'cvar'."""
LEAST = 1e-12
"""Lower bound of 1 + return in a logarithm, so that the logarithm of a total loss is finite."""
PERCENT = 100.0
"""Factor on the objective, which is optimised in percent."""
ADAM = {"linear": (0.1, 0.1), "mlp": (0.01, 1e-8)}
"""Network -> (step size, epsilon) of Adam. The large epsilon of 'linear' keeps weights with small gradients small."""


@dataclass(frozen=True, kw_only=True)
class ScorerSpec(AccountSpec):
    """Sizes and kinds of a `ScorerPolicy`. `action` must be 'tilt' or 'softmax'."""

    network: str = "linear"
    """Kind of network: 'linear', or 'mlp' with two layers. The second layer also sees the mean over the assets."""


class ScorerPolicy(AccountPolicy):
    """Policy without exploration or value function. Its action is (1 - keep) * score + keep * h.

    The network scores the assets. h is the action that keeps the present holdings. keep is `MOST_KEPT` * sigmoid(y),
    where y is linear in the mean features of the assets. With 'mlp', the outputs of the encoder replace the features.
    An untrained policy trades towards the anchor ('tilt') or equal weights of all assets and cash ('softmax'). Each
    decision moves the mix of the assets about halfway to this target, and the fraction of cash almost all the way.
    """

    spec: ScorerSpec
    kind = "scorer"

    def __init__(self, spec: ScorerSpec, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.spec = spec
        width = spec.hidden if spec.network == "mlp" else spec.features
        if spec.network == "mlp":
            self._add_encoder(spec.features, width, generator)
        self.out, self.day = linear(width, 1, bias=False), linear(width, 2)
        self.log_std = nn.Parameter(torch.tensor(-torch.inf), requires_grad=False)

    def encode(self, values: Tensor, among: Tensor, anchor: Tensor | None = None) -> Code:
        """Return the encoder output of the features `values` [..., N, F]. `among` [..., N]: assets that may be held."""
        if self.spec.network == "mlp":
            values = self._encoded(values, among)
        average = mean_among(values, among)
        score = self.out(values - average.unsqueeze(-2)).squeeze(-1)
        keep, cash = self.day(average).split(1, -1)
        return Code(score, MOST_KEPT * keep.sigmoid(), cash, torch.zeros_like(cash), among, anchor)

    def forward(self, code: Code, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions [..., M, A] and zero values [..., M] for states [..., M, N + 1], with M accounts per row."""
        keep = code.inertia.unsqueeze(-2)
        action = (1 - keep) * code.score.unsqueeze(-2) + keep * self._holding(code, state)
        return self._with_cash(action, code), torch.zeros_like(state[..., 0])


def active(returns: Returns) -> Tensor:
    """Return the active log returns [K, E] of K steps of E environments: a = ln(1 + net) - ln(1 + baseline)."""
    return (1 + returns.net).clamp(min=LEAST).log() - (1 + returns.baseline).clamp(min=LEAST).log()


def objective_of(name: str, returns: Returns, penalty: float) -> Tensor:
    """Return the objective `name` of returns [K, E] in K steps of E environments. Training maximises it.

    a is active(returns). The objectives are:

    'log'            mean ln(1 + net), the growth rate of wealth; it has no penalty
    'active'         mean(a) - penalty / 2 * var(a): active return against squared tracking error
    'mean-variance'  mean(net) - penalty / 2 * var(net) of the total (not the active) return (Markowitz 1952)
    'cvar'           mean(a) - penalty / K * CVaR, the conditional value at risk (Rockafellar and Uryasev 2000). For
                     each environment, a is summed over the K steps; CVaR is minus the mean of the lowest tenth of sums
    'drawdown'       mean(a) - penalty / K * (mean over E of the maximum drawdown of the running sum of a)
    'turnover'       mean(a) - penalty * mean(turnover). The penalty comes in addition to costs, which a contains
    """
    over, net, steps = active(returns), returns.net, len(returns.net)
    if name == "log":
        return (1 + net).clamp(min=LEAST).log().mean()
    if name == "active":
        return over.mean() - penalty / 2 * over.var(correction=0)
    if name == "mean-variance":
        return net.mean() - penalty / 2 * net.var(correction=0)
    if name == "cvar":
        worst = over.sum(0).topk(math.ceil(TAIL * over.shape[1]), largest=False).values
        return over.mean() + penalty / steps * worst.mean()
    if name == "drawdown":
        path = torch.cat([torch.zeros_like(over[:1]), over.cumsum(0)])
        return over.mean() - penalty / steps * (path.cummax(0).values - path).amax(0).mean()
    return over.mean() - penalty * returns.turnover.mean()


PENALTIES = {"log": 0.0, "active": 10.0, "mean-variance": 2.0, "cvar": 0.2, "drawdown": 0.2, "turnover": 0.001}
"""Name of an objective -> its default penalty, which is multiplied by `APGConfig.penalty`."""


@dataclass(frozen=True, kw_only=True)
class APGConfig:
    """Settings of APG."""

    objective: str = "active"
    """Name of the objective, see `objective_of`. 'cvar' and 'drawdown' measure losses within `num_steps` steps."""
    penalty: float = 1.0
    """Factor on the default penalty of the objective."""
    network: str = "linear"
    """Network of a `ScorerPolicy`: 'linear' or 'mlp'."""
    num_steps: int = 4
    """Number K of steps per update; gradients pass through all K steps. A larger K means fewer updates per training."""
    learning_rate: float | None = None
    """Initial step size of Adam. None: the default of the network (`ADAM`)."""
    anneal_lr: bool = True
    """True to anneal the step size linearly to zero."""
    weight_decay: float = 0.0
    """Coefficient of decoupled weight decay."""
    smooth: float = 1e-4
    """Costs of trades below this fraction of equity are smoothed in training (see `ledger.settle`). 0: no smoothing."""

    def __post_init__(self) -> None:
        require_choice("objective", self.objective, tuple(PENALTIES))
        require_choice("network", self.network, tuple(ADAM))
        if self.learning_rate is None:
            object.__setattr__(self, "learning_rate", ADAM[self.network][0])
        require_number("num_steps", self.num_steps, 1, whole=True)
        require_number("learning_rate", self.learning_rate, 1e-12)
        for name in ("penalty", "weight_decay", "smooth"):
            require_number(name, getattr(self, name), 0)


class APG:
    """Learner whose `update` takes one gradient step on the `Returns` that `collect` returned."""

    Config = APGConfig
    bounds: ClassVar = {"learning_rate": (0.002, 0.3), "penalty": (0.3, 3.0)}
    needs_gradient = True

    def __init__(
        self, policy: Policy, table: Table | None, groups: int, config: APGConfig, generator: torch.Generator
    ) -> None:
        self.policy, self.table, self.groups, self.config = policy, table, groups, config
        self.updates = 0
        trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        self.rate = float(config.learning_rate or 0)  # never None in a config
        self.optimizer = torch.optim.AdamW(
            trained, lr=self.rate, eps=ADAM[config.network][1], weight_decay=config.weight_decay
        )

    def collect(self, env: Any) -> Returns:
        """Take K steps with the policy's mean actions, and return their `Returns` with the gradient graph.

        Raises InputError for an environment that is not differentiable and for an action that is not finite.
        """
        if not env.differentiable:
            raise InputError(
                f"apg needs a differentiable environment, but this {type(env).__name__} is not; use learner 'ppo'"
            )
        obs, parts = env.observe(), list[Returns]()
        with torch.enable_grad():
            for _ in range(self.config.num_steps):
                code = encode_rows(self.policy, self.table, of_groups(obs.row, self.groups))
                state = obs.state.unflatten(0, (self.groups, -1))
                if self.policy.acts_on_statistics and not parts:  # not later: the graph needs constant statistics
                    self.policy.observe(code, state)
                action, _ = self.policy(code, state)
                step, returns = env.step(action.flatten(0, 1), grad=True, smooth=self.config.smooth)
                parts.append(returns)
                obs = step.obs
            env.detach()
            env.check()
            return Returns(*map(torch.stack, zip(*parts, strict=True)))

    def update(self, returns: Returns, progress: float = 0.0) -> dict[str, Tensor]:
        """Take a gradient step, and return statistics of the returns as tensors on the device.

        `progress` is the finished fraction of the training. With `anneal_lr`, the step size falls to 0 at `progress` 1.
        If the norm of the gradient is not finite, the gradient is set to zero.
        """
        config = self.config
        value = PERCENT * objective_of(config.objective, returns, config.penalty * PENALTIES[config.objective])
        self.optimizer.zero_grad(set_to_none=True)
        (-value).backward()
        grads = [p.grad for p in self.policy.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        for grad in grads:
            grad.copy_(grad.where(norm.isfinite(), 0.0))
        self.optimizer.param_groups[0]["lr"] = self.rate * (1 - progress if config.anneal_lr else 1.0)
        self.optimizer.step()
        self.updates += 1
        over = active(returns).detach()
        return {
            "objective": value.detach(),
            "reward": PERCENT * returns.net.detach().mean(),
            "active": PERCENT * over.mean(),
            "tracking": PERCENT * over.std(correction=0),
            "turnover": returns.turnover.detach().mean(),
            "grad_norm": norm,
            "moving": norm.isfinite().float(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimiser and the number of updates for a checkpoint."""
        return {"optimizer": self.optimizer.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint. Step size and weight decay are those of this learner's settings."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.param_groups[0]["weight_decay"] = self.config.weight_decay
        self.updates = int(state["updates"])
