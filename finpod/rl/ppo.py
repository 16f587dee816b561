"""PPO (Schulman et al. 2017) on compact observations: minibatches are whole groups of accounts, which share their days."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from finpod.errors import CheckpointError, InputError
from finpod.market.features import Panel
from finpod.rl.policy import MarketPolicy, entropy, log_prob
from finpod.rl.returns import gae
from finpod.rl.rollout import Rollout, encode_rows


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Settings of the learner, with the names that are usual in the field."""

    learning_rate: float = 1e-3
    """Step size of Adam at the start."""
    anneal_lr: bool = True
    """Let the step size fall linearly to zero."""
    gamma: float = 0.9
    """Discount a decision."""
    gae_lambda: float = 0.9
    """Lambda of the advantage estimate."""
    clip_coef: float = 0.2
    """Bound on the change of the probability ratio."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus at the start."""
    anneal_ent: bool = True
    """Let the entropy bonus fall linearly to zero."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    update_epochs: int = 4
    """Passes over a rollout."""
    num_minibatches: int = 4
    """Minibatches, and so optimiser steps, of a pass over the rollout; at most one a group of accounts. Each holds whole
    groups, and their sizes differ by at most one group."""
    max_grad_norm: float = 0.5
    """Bound on the norm of the gradient."""
    target_kl: float = 0.05
    """Approximate KL divergence (of a name, if factored) beyond which a step of an update stands still."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    num_steps: int = 16
    """H, steps of a rollout."""
    factored: bool = True
    """Clip the ratio of each name on its own, not that of the whole action: the gradient at the old policy is the same, and
    the trust region does not shrink with the number of names."""
    center_days: bool = True
    """Subtract from each advantage the mean over the accounts of its day: what the market did to all of them alike is not
    their doing. Up to a constant factor, the baseline of an account is the mean of the others, which its action does not
    touch. It needs several accounts a day."""

    def __post_init__(self) -> None:
        for name in (
            "learning_rate",
            "clip_coef",
            "max_grad_norm",
            "target_kl",
            "update_epochs",
            "num_minibatches",
            "num_steps",
        ):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be positive")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must lie from 0 to 1")


BOUNDS: dict[str, tuple[float, float]] = {
    "learning_rate": (1e-4, 3e-3),
    "gamma": (0.5, 0.99),
    "gae_lambda": (0.5, 0.99),
    "clip_coef": (0.1, 0.4),
}
"""Settings that a search may vary, and how far."""


class PPO:
    """The learner: `update(rollout, progress)` changes the policy and tells how it went."""

    def __init__(
        self, policy: MarketPolicy, panel: Panel, groups: int, config: PPOConfig, generator: torch.Generator
    ) -> None:
        self.policy, self.panel, self.groups, self.config = policy, panel, groups, config
        self.generator = generator
        self.updates = 0
        device = panel.features.device
        # a tensor, so that schedules and the KL brake need no look at the device
        rate = torch.tensor(config.learning_rate, device=device)
        self.optimizer = torch.optim.AdamW(
            policy.parameters(),
            lr=rate,
            eps=1e-5,
            weight_decay=config.weight_decay,
            foreach=False,
            capturable=device.type == "cuda",
        )

    def update(self, rollout: Rollout, progress: float = 0.0) -> dict[str, Tensor]:
        """One update on a rollout; `progress` in [0, 1] drives the schedules. Returns losses as tensors, not yet read."""
        config, groups = self.config, self.groups
        left = 1 - progress
        rate = config.learning_rate * (left if config.anneal_lr else 1.0)
        ent_coef = config.ent_coef * (left if config.anneal_ent else 1.0)
        advantage = gae(
            rollout.reward,
            rollout.value,
            rollout.next_value,
            rollout.terminated,
            rollout.truncated,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )
        target = (advantage + rollout.value).unflatten(1, (groups, -1))
        advantage = self.standardise(advantage.unflatten(1, (groups, -1)))
        batch = {
            "row": rollout.row.unflatten(1, (groups, -1))[:, :, 0],
            "state": rollout.state.unflatten(1, (groups, -1)),
            "action": rollout.action.unflatten(1, (groups, -1)),
            "old_log_prob": rollout.log_prob.unflatten(1, (groups, -1)),
            "advantage": advantage,
            "target": target,
        }
        with torch.no_grad():
            code = encode_rows(self.policy, self.panel, batch["row"])
            self.policy.summary.update(self.policy.summarise(code, batch["state"]))
        moving = torch.ones((), device=target.device)
        log: list[dict[str, Tensor]] = []
        for _ in range(config.update_epochs):
            order = torch.randperm(groups, generator=self.generator, device=self.generator.device).to(target.device)
            for chosen in order.tensor_split(min(config.num_minibatches, groups)):
                part = {name: value[:, chosen] for name, value in batch.items()}
                loss, terms = self.loss(**part, ent_coef=ent_coef)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                terms["grad_norm"] = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), config.max_grad_norm)
                moving = moving * (terms["kl"] < config.target_kl)
                self.optimizer.param_groups[0]["lr"].copy_(rate * moving)
                self.optimizer.step()
                log.append(terms | {"moving": moving})
        self.updates += 1
        return {name: torch.stack([terms[name].detach() for terms in log]).mean() for name in log[0]}

    def standardise(self, advantage: Tensor) -> Tensor:
        """Return advantages [H, G, M] with mean 0 and standard deviation 1.

        With `center_days` the mean is that of the accounts of a day, where a day has several. A single advantage has
        neither mean nor spread to be measured by and is returned as it is.
        """
        if advantage.numel() == 1:
            return advantage
        if self.config.center_days and advantage.shape[-1] > 1:
            advantage = advantage - advantage.mean(-1, keepdim=True)
        else:
            advantage = advantage - advantage.mean()
        return advantage / (advantage.std() + 1e-8)

    def loss(
        self,
        row: Tensor,
        state: Tensor,
        action: Tensor,
        old_log_prob: Tensor,
        advantage: Tensor,
        target: Tensor,
        ent_coef: float,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Clipped objective, value loss and entropy bonus over days `row` [H, g] and their accounts [H, g, M]."""
        code = encode_rows(self.policy, self.panel, row)
        mean, value = self.policy(code, state)
        acting = self.policy.acting(code.among)
        log_ratio = (log_prob(action, mean, self.policy.log_std) - old_log_prob) * acting
        share = acting / acting.sum(-1, keepdim=True).clamp(min=1)
        if not self.config.factored:
            log_ratio, share = log_ratio.sum(-1, keepdim=True), torch.ones_like(share[..., :1])
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - self.config.clip_coef, 1 + self.config.clip_coef)
        gain = advantage.unsqueeze(-1)
        weight = acting if self.config.factored else 1.0
        policy_loss = -(torch.min(ratio * gain, clipped * gain) * weight).sum(-1).mean()
        value_loss = (value - target).square().mean()
        bonus = entropy(self.policy.log_std)
        loss = policy_loss + self.config.vf_coef * value_loss - ent_coef * bonus
        kl = (((ratio - 1) - log_ratio) * share).sum(-1).mean()  # Schulman's unbiased, always positive estimate
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": bonus, "kl": kl.detach()}

    def state_dict(self) -> dict[str, Any]:
        """Optimiser and randomness, for a checkpoint."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; the step size stays this learner's own, not the donor's."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.param_groups[0].update(
            lr=torch.tensor(self.config.learning_rate, device=self.panel.features.device),
            weight_decay=self.config.weight_decay,
            capturable=self.panel.features.device.type == "cuda",
        )
        try:
            self.generator.set_state(state["generator"])
        except RuntimeError as error:
            raise CheckpointError(
                f"the checkpoint was made on another kind of device than {self.generator.device}; go on where it was made"
            ) from error
        self.updates = int(state["updates"])
