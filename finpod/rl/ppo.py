"""Proximal policy optimisation (PPO, Schulman et al. 2017), for tasks with and without a shared table."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from finpod.errors import CheckpointError, InputError, require_number
from finpod.rl.policy import Policy, RunningStats, entropy, log_prob
from finpod.rl.rollout import Rollout, collect, encode_rows, gae, of_groups
from finpod.rl.task import Environment, Table


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Settings of PPO under their usual names."""

    learning_rate: float = 1e-3
    """Initial step size of Adam."""
    anneal_lr: bool = True
    """True to anneal the step size linearly to zero."""
    gamma: float = 0.9
    """Discount factor per decision."""
    gae_lambda: float = 0.9
    """Lambda of the advantage estimate."""
    clip_coef: float = 0.2
    """Distance from 1 at which the probability ratio is clipped."""
    ent_coef: float = 0.0
    """Initial weight of the entropy bonus."""
    anneal_ent: bool = True
    """True to anneal the entropy bonus linearly to zero."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    update_epochs: int = 4
    """Number of passes over a rollout."""
    num_minibatches: int = 4
    """Number of minibatches per pass, each with one optimiser step. With a table, a minibatch has all steps of some
    groups, so there are at most as many minibatches as groups. Without a table, a minibatch has single steps."""
    max_grad_norm: float = 0.5
    """Bound on the norm of the gradient."""
    target_kl: float = 0.05
    """Approximate KL divergence at which an update stops changing weights, per action dimension if `factored`."""
    weight_decay: float = 0.0
    """Coefficient of decoupled weight decay."""
    num_steps: int = 16
    """Number H of steps of a rollout."""
    factored: bool = True
    """True to clip the probability ratio of each action dimension, not of the whole action, so that the trust region
    does not shrink with the number of assets. At the old policy, both kinds of clipping give the same gradient."""
    scale_reward: bool = False
    """True to divide rewards by the running standard deviation of the discounted return, and to clip them at +-10."""
    center_days: bool = True
    """True to subtract from each advantage the group's mean advantage at that step. A group shares a table row, so the
    subtraction removes the move of the whole market. With one environment per group, the setting has no effect."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip_coef", "max_grad_norm", "target_kl"):
            require_number(name, getattr(self, name), 1e-12)
        for name in ("update_epochs", "num_minibatches", "num_steps"):
            require_number(name, getattr(self, name), 1, whole=True)
        for name in ("gamma", "gae_lambda"):
            require_number(name, getattr(self, name), 0, 1)
        for name in ("ent_coef", "vf_coef", "weight_decay"):
            require_number(name, getattr(self, name), 0)
        for name in ("anneal_lr", "anneal_ent", "factored", "scale_reward", "center_days"):
            if not isinstance(value := getattr(self, name), bool):
                raise InputError(f"{name} is {value!r:.60}; pass True or False", argument=name)


class PPO:
    """Learner whose `update` trains the policy on the rollout that `collect` returned."""

    Config = PPOConfig
    bounds: ClassVar = {
        "learning_rate": (1e-4, 3e-3),
        "gamma": (0.5, 0.99),
        "gae_lambda": (0.5, 0.99),
        "clip_coef": (0.1, 0.4),
    }
    needs_gradient = False

    def __init__(
        self, policy: Policy, table: Table | None, groups: int, config: PPOConfig, generator: torch.Generator
    ) -> None:
        self.policy, self.table, self.groups, self.config = policy, table, groups, config
        self.generator, self.updates = generator, 0
        self.device = policy.log_std.device
        self.return_stats = RunningStats(1).to(self.device)
        self._return = torch.zeros((), device=self.device)
        # the step size is a tensor, so that schedules and the KL limit need no read from the device
        rate = torch.tensor(config.learning_rate, device=self.device)
        self.optimizer = torch.optim.AdamW(
            policy.parameters(), lr=rate, eps=1e-5, weight_decay=config.weight_decay, fused=True,
            capturable=self.device.type == "cuda",
        )  # fmt: skip

    def collect(self, env: Environment) -> Rollout:
        """Return the rollout for the next update."""
        return collect(env, self.policy, self.table, self.config.num_steps, self.generator)

    def update(self, rollout: Rollout, progress: float = 0.0) -> dict[str, Tensor]:
        """Train the policy on a rollout, and return losses and mean reward as tensors on the device. `progress` is the
        finished fraction of the training; annealed settings are 0 at `progress` 1."""
        config = self.config
        remaining = 1 - progress
        rate = config.learning_rate * (remaining if config.anneal_lr else 1.0)
        ent_coef = config.ent_coef * (remaining if config.anneal_ent else 1.0)
        batch = self.batch(rollout)
        if not self.policy.acts_on_statistics:
            self._observe(batch)
        count = batch["target"].shape[1]
        moving = torch.ones((), device=self.device)
        log: list[dict[str, Tensor]] = []
        for _ in range(config.update_epochs):
            order = torch.randperm(count, generator=self.generator, device=self.generator.device).to(self.device)
            for chosen in order.tensor_split(min(config.num_minibatches, count)):
                part: dict[str, Any] = {name: x if x is None else x[:, chosen] for name, x in batch.items()}
                loss, terms = self.loss(**part, ent_coef=ent_coef)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                terms["grad_norm"] = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), config.max_grad_norm)
                moving = moving * (terms["kl"] < config.target_kl)
                self.optimizer.param_groups[0]["lr"].copy_(rate * moving)
                self.optimizer.step()
                log.append(terms | {"moving": moving})
        if self.policy.acts_on_statistics:
            self._observe(batch)
        self.updates += 1
        losses = {name: torch.stack([terms[name].detach() for terms in log]).mean() for name in log[0]}
        return losses | {"reward": rollout.reward.mean()}

    def batch(self, rollout: Rollout) -> dict[str, Any]:
        """Return the arguments of `loss` except ent_coef, for H steps of G groups of M environments. 'row' has shape
        [H, G], the others [H, G, M, ...]. Without a table, shapes are [1, H * E, 1, ...] for E environments."""
        scaled = rollout._replace(reward=self._scaled(rollout)) if self.config.scale_reward else rollout
        advantage = gae(scaled, self.config.gamma, self.config.gae_lambda)

        def arranged(values: Tensor) -> Tensor:
            if self.table is None:
                return values.flatten(0, 1)[None, :, None]
            return values.unflatten(1, (self.groups, -1))

        return {
            "row": None if self.table is None else of_groups(rollout.row, self.groups),
            "state": arranged(rollout.state),
            "action": arranged(rollout.action),
            "old_log_prob": arranged(rollout.log_prob),
            "advantage": self.standardise(arranged(advantage)),
            "target": arranged(advantage + rollout.value),
        }

    @torch.no_grad()
    def _observe(self, batch: dict[str, Any]) -> None:
        """Update the policy's statistics of observations."""
        self.policy.observe(encode_rows(self.policy, self.table, batch["row"]), batch["state"])

    def _scaled(self, rollout: Rollout) -> Tensor:
        """Return rewards [H, E] in standard deviations of all discounted returns so far, clipped at +-10."""
        total, totals = self._return.expand(rollout.reward.shape[1:]), []
        for reward, ended in zip(rollout.reward, rollout.terminated | rollout.truncated, strict=True):
            total = self.config.gamma * total + reward
            totals.append(total)
            total = total * ~ended
        self._return = total
        self.return_stats.update(torch.stack(totals).unsqueeze(-1))
        return (rollout.reward / (self.return_stats.var.float() + 1e-8).sqrt()).clamp(-10, 10)

    def standardise(self, advantage: Tensor) -> Tensor:
        """Return advantages [H, G, M] with mean 0 and standard deviation 1. A single advantage is not changed. With
        `center_days` and M > 1, the mean is 0 in each group at each step."""
        if advantage.numel() == 1:
            return advantage
        centred = self.config.center_days and advantage.shape[-1] > 1
        advantage = advantage - (advantage.mean(-1, keepdim=True) if centred else advantage.mean())
        return advantage / (advantage.std() + 1e-8)

    def loss(
        self, row: Tensor | None, state: Tensor, action: Tensor, old_log_prob: Tensor, advantage: Tensor,
        target: Tensor, ent_coef: float,
    ) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
        """Return (loss, its terms) for a minibatch of g groups: table rows [H, g], other arguments [H, g, M, ...].

        loss = -mean(sum(min(ratio * A, clip(ratio) * A))) + vf_coef * mean((V - target)^2) - ent_coef * mean(entropy)
        A is `advantage`, and V is the critic's value. ratio is the new density of an action divided by the old one. If
        `factored`, each action dimension has its own ratio, and the sum is over dimensions. Otherwise, the whole action
        has one ratio.
        """
        code = encode_rows(self.policy, self.table, row)
        mean, value = self.policy(code, state)
        acting = self.policy.acting(code)
        log_ratio = (log_prob(action, mean, self.policy.log_std) - old_log_prob) * acting
        if not self.config.factored:
            log_ratio, acting = log_ratio.sum(-1, keepdim=True), torch.ones_like(acting[..., :1])
        share = acting / acting.sum(-1, keepdim=True).clamp(min=1)
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - self.config.clip_coef, 1 + self.config.clip_coef)
        gain = advantage.unsqueeze(-1)
        policy_loss = -(torch.min(ratio * gain, clipped * gain) * acting).sum(-1).mean()
        value_loss = (value - target).square().mean()
        bonus = entropy(self.policy.log_std).mean()
        loss = policy_loss + self.config.vf_coef * value_loss - ent_coef * bonus
        kl = (((ratio - 1) - log_ratio) * share).sum(-1).mean()  # unbiased and never negative (Schulman 2020)
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": bonus, "kl": kl.detach()}

    def state_dict(self) -> dict[str, Any]:
        """Return, for a checkpoint, the states of the optimiser, the random generator and the reward scaling."""
        state: dict[str, Any] = {"optimizer": self.optimizer.state_dict(), "updates": self.updates}
        state["generator"] = self.generator.get_state()
        if self.config.scale_reward:
            state["returns"] = {**self.return_stats.state_dict(), "running": self._return}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, but with the learning rate and weight decay of `config`. Raises CheckpointError if the
        state was stored on another kind of device."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.param_groups[0].update(
            lr=torch.tensor(self.config.learning_rate, device=self.device),
            weight_decay=self.config.weight_decay,
            capturable=self.device.type == "cuda",
        )
        try:
            self.generator.set_state(state["generator"])
        except RuntimeError as error:
            where = self.generator.device
            text = f"the checkpoint was not made on {where}; continue on the kind of device that made it"
            raise CheckpointError(text) from error
        self.updates = int(state["updates"])
        if self.config.scale_reward:
            returns = dict(state["returns"])
            self._return = returns.pop("running").to(self.device)
            self.return_stats.load_state_dict(returns)
