"""PPO and rollouts of a task without a shared table: no encoder, minibatches of single steps, statistics after the update."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from made_agents import make_pod
from made_markets import random_market

from finpod.errors import InputError
from finpod.rl.policy import DensePolicy, DenseSpec
from finpod.rl.ppo import PPO, PPOConfig
from finpod.rl.rollout import collect, gae
from finpod.rl.task import Environment, Observation, Step

CONFIG = PPOConfig(num_steps=8, num_minibatches=4, gamma=0.9, factored=False, anneal_lr=False, learning_rate=3e-3)


def noise(seed=0):
    return torch.Generator().manual_seed(seed)


class Reach(Environment):
    """E numbers that actions move by at most 1; the reward is minus the distance from 0, an episode has 8 steps.

    Every tensor is used again, as by an environment that is written for speed.
    """

    def __init__(self, num_envs):
        self.num_envs, self.generator = num_envs, noise()
        self.state, self.seen = torch.zeros(2, num_envs, 2)
        self.time = torch.zeros(num_envs, dtype=torch.int64)
        self.reward, self.never = torch.zeros(num_envs), torch.zeros(num_envs, dtype=torch.bool)
        self.reset()

    def reset(self, seed=0):
        self.generator.manual_seed(seed)
        self.time.zero_()
        self.state[:, 0] = self.draw()
        return self.observe()

    def draw(self):
        return torch.rand(self.num_envs, generator=self.generator) * 8 - 4

    def observe(self):
        return Observation(self.state)

    def step(self, action):
        self.state[:, 0] += action[:, 0].clamp(-1, 1)
        self.time += 1
        self.reward.copy_(-self.state[:, 0].abs())
        self.seen.copy_(self.state)
        over = self.time >= 8
        self.state[:, 0] = torch.where(over, self.draw(), self.state[:, 0])
        self.time[over] = 0
        return Step(self.observe(), self.reward, self.never, over, Observation(self.seen))


def learner_of(seed=0, **changes):
    policy = DensePolicy(DenseSpec(inputs=2, actions=1, hidden=32), noise(seed))
    return PPO(policy, None, 1, dataclasses.replace(CONFIG, **changes), noise(1))


def test_minibatches_are_single_steps_and_cover_the_rollout_once_an_epoch(monkeypatch):
    learner = learner_of(num_steps=7, update_epochs=2)
    seen, loss = [], learner.loss
    monkeypatch.setattr(learner, "loss", lambda **part: seen.append(part) or loss(**part))
    rollout = learner.collect(Reach(5))
    learner.update(rollout)
    assert [part["state"].shape for part in seen] == 2 * [(1, 9, 1, 2), (1, 9, 1, 2), (1, 9, 1, 2), (1, 8, 1, 2)]
    assert all(part["row"] is None for part in seen)
    targets = gae(rollout, CONFIG.gamma, CONFIG.gae_lambda) + rollout.value
    for epoch in (seen[:4], seen[4:]):
        for name, whole in (("target", targets), ("state", rollout.state)):
            drawn = torch.cat([part[name].flatten() for part in epoch])
            assert torch.equal(drawn.sort().values, whole.flatten().sort().values)


def test_the_loss_is_that_of_the_paper():
    learner = learner_of(clip_coef=0.2, vf_coef=0.5)
    batch = learner.batch(learner.collect(Reach(12)))
    shift = torch.linspace(-0.5, 0.5, 12 * 8).view_as(batch["old_log_prob"])
    loss, terms = learner.loss(**{**batch, "old_log_prob": batch["old_log_prob"] - shift}, ent_coef=0.1)
    ratio, gain = shift.squeeze(-1).exp(), batch["advantage"]
    policy_loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    value_loss = (learner.policy(None, batch["state"])[1] - batch["target"]).square().mean()
    entropy = learner.policy.log_std.mean() + 0.5 * math.log(2 * math.pi * math.e)
    torch.testing.assert_close(terms["policy_loss"], policy_loss)
    torch.testing.assert_close(terms["value_loss"], value_loss)
    torch.testing.assert_close(loss, policy_loss + 0.5 * value_loss - 0.1 * entropy)


def test_statistics_of_observations_move_after_the_update_so_that_ratios_begin_at_one():
    learner = learner_of()
    for _ in range(3):
        rollout = learner.collect(Reach(6))
        before = learner.policy.statistics.count.clone()
        with torch.no_grad():
            _, terms = learner.loss(**learner.batch(rollout), ent_coef=0.0)
        assert terms["kl"].abs() < 1e-6
        learner.update(rollout)
        assert learner.policy.statistics.count == before + 48


# --- an environment that breaks its contract


def with_state(step, change):
    return step._replace(obs=Observation(change(step.obs.state)))


@pytest.mark.parametrize(("change", "told"), [
    (lambda step: with_state(step, lambda x: torch.cat([x, x], 1)), r"^obs of step 2 has shape \(6, 4\).* \(6, 2\)"),
    (lambda step: step._replace(final_obs=Observation(step.final_obs.state[:3])), r"final_obs of step 2 has shape \(3, 2\)"),
    (lambda step: step._replace(reward=torch.where(torch.arange(6) == 4, math.nan, step.reward)),
     "reward of environment 4 at step 2 of a rollout is nan"),
    (lambda step: with_state(step, lambda x: x.masked_fill(torch.eye(6, 2) > 0, math.inf)),
     "observation of environment 0 at step 3 of a rollout is inf"),
    (lambda step: step._replace(reward=step.reward[:, None]), r"reward .* has shape \(6, 1\)"),
    (lambda step: step._replace(truncated=step.truncated[0]), r"truncated .* has shape \(\)"),
], ids=["shape", "final shape", "NaN reward", "infinite observation", "reward column", "one truncation"])  # fmt: skip
def test_what_an_environment_must_not_return_is_named(change, told):
    env, taken = Reach(6), []
    step = env.step

    def changed(action):
        taken.append(action)
        return step(action) if len(taken) <= 2 else change(step(action))

    env.step = changed
    with pytest.raises(InputError, match=told):
        collect(env, learner_of().policy, None, 5, noise())


def test_a_row_is_required_where_there_is_a_table():
    pod = make_pod(random_market(120, 5, gaps=0))
    step = pod.env.step
    pod.env.step = lambda action: with_state(step(action), lambda x: x)
    with pytest.raises(InputError, match="no row"):
        pod.learner.collect(pod.env)


# --- scaled rewards


def test_rewards_are_scaled_by_the_spread_of_the_discounted_return():
    """Against loops, over two rollouts whose episodes end in different steps."""
    learner = learner_of(scale_reward=True)
    seen, totals = [], np.zeros(3)
    for seed in range(2):
        env = Reach(3)
        env.reset(seed=seed)
        rollout = collect(env, learner.policy, None, 11, noise(seed))
        rollout = rollout._replace(reward=1 + 100 * rollout.reward)
        for reward, ended in zip(rollout.reward.numpy(), rollout.truncated.numpy(), strict=True):
            totals = 0.9 * totals + reward
            seen += [*totals]
            totals = totals * ~ended
        expected = (rollout.reward.numpy() / np.sqrt(np.var(seen) + 1e-8)).clip(-10, 10)
        np.testing.assert_allclose(learner._scaled(rollout).numpy(), expected, rtol=1e-5)


def test_the_scale_of_the_rewards_is_part_of_a_checkpoint():
    env, learner, twin = Reach(4), learner_of(scale_reward=True), learner_of(seed=3, scale_reward=True)
    learner.update(learner.collect(env))
    rollout = learner.collect(env)
    twin.policy.load_state_dict(learner.policy.state_dict())
    twin.load_state_dict(copy.deepcopy(learner.state_dict()))
    for one in (learner, twin):
        one.update(rollout)
    for name, tensor in learner.policy.state_dict().items():
        assert torch.equal(tensor, twin.policy.state_dict()[name]), name
