"""APG, analytic policy gradient: the exact gradient of an objective, net of costs, through an environment that has one.

K steps are played and differentiated at once (truncated back-propagation through time; Wiedemann et al. 2023). What the
environments carry on, such as accounts, is carried over from update to update, but no gradient reaches back before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from finpod.errors import InputError
from finpod.rl.policy import Policy
from finpod.rl.rollout import encode_rows, of_groups
from finpod.rl.scorers import NETWORKS
from finpod.rl.task import DifferentiableEnvironment, Table

TAIL = 0.1
"""Share of windows that are the worst for the objective 'cvar'."""
LEAST = 1e-12
"""What is taken to be left of an account that lost everything, where a log is asked for."""
PERCENT = 100.0
"""Factor on the objective."""
ADAM = {"linear": (0.1, 0.1), "mlp": (0.01, 1e-8)}
"""Network -> step size and epsilon of Adam. That of 'linear' is as large as gradients are, so that weights of features
without merit, whose gradients are small, grow slowly."""


class Play(NamedTuple):
    """What K steps earned, each [K, E] float64. Gradients pass through the first and the last."""

    net: Tensor
    """Simple returns, net of costs."""
    baseline: Tensor
    """Those of the baseline of the task."""
    turnover: Tensor
    """What was traded, as shares of the account."""


def active(play: Play) -> Tensor:
    """Return the log returns [K, E] over the baseline: a = ln(1 + net) - ln(1 + baseline)."""
    return (1 + play.net).clamp(min=LEAST).log() - (1 + play.baseline).clamp(min=LEAST).log()


def log_objective(play: Play, penalty: float) -> Tensor:
    """Return mean ln(1 + net), the growth of wealth. The penalty is not used."""
    return (1 + play.net).clamp(min=LEAST).log().mean()


def active_objective(play: Play, penalty: float) -> Tensor:
    """Return mean(a) - penalty / 2 * var(a): active return less the square of the tracking error."""
    over = active(play)
    return over.mean() - penalty / 2 * over.var(correction=0)


def mean_variance_objective(play: Play, penalty: float) -> Tensor:
    """Return mean(net) - penalty / 2 * var(net), of the whole return and not of the active one (Markowitz 1952)."""
    return play.net.mean() - penalty / 2 * play.net.var(correction=0)


def cvar_objective(play: Play, penalty: float) -> Tensor:
    """Return mean(a) + penalty / K * (mean of the worst tenth of the sums of a over the K steps).

    The last mean is the conditional value at risk (Rockafellar and Uryasev 2000) with its sign reversed.
    """
    over = active(play)
    worst = over.sum(0).topk(math.ceil(TAIL * over.shape[1]), largest=False).values
    return over.mean() + penalty / len(over) * worst.mean()


def drawdown_objective(play: Play, penalty: float) -> Tensor:
    """Return mean(a) - penalty / K * (mean over E of the deepest fall of the running sum of a below its highest so far)."""
    over = active(play)
    path = torch.cat([torch.zeros_like(over[:1]), over.cumsum(0)])
    deepest = (path.cummax(0).values - path).amax(0)
    return over.mean() - penalty / len(over) * deepest.mean()


def turnover_objective(play: Play, penalty: float) -> Tensor:
    """Return mean(a) - penalty * mean(turnover): beside its costs, which are in a, each unit traded costs the penalty."""
    return active(play).mean() - penalty * play.turnover.mean()


OBJECTIVES: dict[str, tuple[Callable[[Play, float], Tensor], float]] = {
    "log": (log_objective, 0.0),
    "active": (active_objective, 10.0),
    "mean-variance": (mean_variance_objective, 2.0),
    "cvar": (cvar_objective, 0.2),
    "drawdown": (drawdown_objective, 0.2),
    "turnover": (turnover_objective, 0.001),
}
"""Name -> what is maximised, and its usual penalty, which `APGConfig.penalty` multiplies."""


@dataclass(frozen=True, kw_only=True)
class APGConfig:
    """Settings of the learner."""

    objective: str = "active"
    """Name in `OBJECTIVES` of what is maximised."""
    penalty: float = 1.0
    """Factor on the usual penalty of the objective; 0 leaves it out."""
    network: str = "linear"
    """'linear' or 'mlp': the scorer of a task that scores assets."""
    num_steps: int = 16
    """K, steps through which gradients pass."""
    learning_rate: float | None = None
    """Step size of Adam at the start; None is replaced by that of the network in `ADAM`."""
    anneal_lr: bool = True
    """Let the step size fall linearly to zero."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    smooth: float = 1e-4
    """Size of a trade, as a share of the account, below which its cost is smooth in training. 0 trains on the exact cost,
    which has a kink where nothing is traded."""

    def __post_init__(self) -> None:
        for name, choices in (("objective", tuple(OBJECTIVES)), ("network", NETWORKS)):
            if getattr(self, name) not in choices:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}", argument=name
                )
        if isinstance(self.num_steps, bool) or not (isinstance(self.num_steps, Integral) and self.num_steps >= 1):
            raise InputError(
                f"num_steps is {self.num_steps!r}; it must be a whole number from 1 on", argument="num_steps"
            )
        if self.learning_rate is None:
            object.__setattr__(self, "learning_rate", ADAM[self.network][0])
        for name, least in (("learning_rate", 1e-12), ("penalty", 0), ("weight_decay", 0), ("smooth", 0)):
            value = getattr(self, name)
            if not (isinstance(value, Real) and least <= value < math.inf):
                sign = "a positive, finite number" if least else "a finite number from 0 on"
                raise InputError(f"{name} is {value!r}; it must be {sign}", argument=name)


BOUNDS: dict[str, tuple[float, float]] = {"learning_rate": (0.002, 0.3), "penalty": (0.3, 3.0)}
"""Settings that a search may vary, and how far."""


class APG:
    """The learner: `update(play, progress)` takes one step along the exact gradient of what `collect` played."""

    Config = APGConfig
    bounds = BOUNDS
    needs_gradient = True
    """Whether it learns from environments with a gradient alone."""

    def __init__(
        self, policy: Policy, table: Table | None, groups: int, config: APGConfig, generator: torch.Generator
    ) -> None:
        self.policy, self.table, self.groups, self.config = policy, table, groups, config
        self.updates = 0
        self.learning_rate = float(config.learning_rate or ADAM[config.network][0])
        trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trained, lr=self.learning_rate, eps=ADAM[config.network][1], weight_decay=config.weight_decay
        )

    def collect(self, env: DifferentiableEnvironment) -> Play:
        """Take K steps on the policy's mean actions, and keep the graph.

        Raises InputError for an environment without a gradient and for an action that is not finite.
        """
        if not env.differentiable:
            raise InputError(f"{type(env).__name__} is not differentiable as it is set, and apg needs its gradient")
        obs, played = env.observe(), []
        with torch.enable_grad():
            for _ in range(self.config.num_steps):
                code = encode_rows(self.policy, self.table, of_groups(obs.row, self.groups))
                action, _ = self.policy(code, obs.state.unflatten(0, (self.groups, -1)))
                step, *earned = env.step(action.flatten(0, 1), grad=True, smooth=self.config.smooth)
                played.append(earned)
                obs = step.obs
            env.detach()
            env.check()
            return Play(*map(torch.stack, zip(*played, strict=True)))

    def update(self, play: Play, progress: float = 0.0) -> dict[str, Tensor]:
        """Take a step; return figures of the play as tensors that are not read yet.

        `progress` in [0, 1] drives the step size. A gradient that is not finite moves nothing.
        """
        config = self.config
        objective, usual = OBJECTIVES[config.objective]
        gained = PERCENT * objective(play, config.penalty * usual)
        self.optimizer.zero_grad(set_to_none=True)
        (-gained).backward()
        grads = [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        for grad in grads:
            grad.copy_(grad.where(norm.isfinite(), 0.0))
        self.optimizer.param_groups[0]["lr"] = self.learning_rate * (1 - progress if config.anneal_lr else 1.0)
        self.optimizer.step()
        self.updates += 1
        over = active(play).detach()
        return {
            "objective": gained.detach(),
            "reward": PERCENT * play.net.detach().mean(),
            "active": PERCENT * over.mean(),
            "tracking": PERCENT * over.std(correction=0),
            "turnover": play.turnover.detach().mean(),
            "grad_norm": norm,
            "moving": norm.isfinite().float(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Optimiser and number of updates, for a checkpoint; there is no randomness."""
        return {"optimizer": self.optimizer.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; the settings stay this learner's own, not the donor's."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.param_groups[0]["weight_decay"] = self.config.weight_decay
        self.updates = int(state["updates"])
