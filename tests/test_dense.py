"""PPO and rollouts of a task without a shared table: no encoder, minibatches of single steps, statistics after the update."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from made_tasks import Reach

from finpod.errors import InputError
from finpod.rl.policy import DensePolicy, DenseSpec
from finpod.rl.ppo import PPO, PPOConfig
from finpod.rl.rollout import collect, gae
from finpod.rl.task import Observation, Step

CONFIG = PPOConfig(num_steps=8, num_minibatches=4, gamma=0.9, factored=False, anneal_lr=False, learning_rate=3e-3)


def policy_of(inputs=2, actions=1, seed=0):
    return DensePolicy(DenseSpec(inputs=inputs, actions=actions, hidden=32), torch.Generator().manual_seed(seed))


def learner_of(config=CONFIG, policy=None):
    return PPO(policy or policy_of(), None, 1, config, torch.Generator().manual_seed(1))


def noise(seed=0):
    return torch.Generator().manual_seed(seed)


def mean_reward(policy, env):
    """Of the mean action over one episode of each."""
    obs, total = env.reset(seed=9), 0.0
    for _ in range(8):
        with torch.no_grad():
            step = env.step(policy(None, obs.state[:, None])[0][:, 0])
        total += float(step.reward.mean())
        obs = step.obs
    return total


class Replaced(Reach):
    """An environment whose k-th step returns something else."""

    def __init__(self, at, change, **size):
        self.at, self.change, self.count = at, change, 0
        super().__init__(**size)

    def step(self, action):
        step = super().step(action)
        self.count += 1
        return self.change(step) if self.count > self.at else step


def test_minibatches_are_single_steps_and_cover_the_rollout_once_an_epoch(monkeypatch):
    learner = learner_of(PPOConfig(num_steps=7, num_minibatches=4, update_epochs=2))
    seen, loss = [], learner.loss
    monkeypatch.setattr(learner, "loss", lambda **part: seen.append(part) or loss(**part))
    rollout = learner.collect(Reach(5))
    learner.update(rollout)
    assert [part["state"].shape for part in seen] == 2 * [(1, 9, 1, 2), (1, 9, 1, 2), (1, 9, 1, 2), (1, 8, 1, 2)]
    assert all(part["row"] is None for part in seen)
    targets = (gae_of(rollout, learner.config) + rollout.value).flatten().sort().values
    for epoch in (seen[:4], seen[4:]):
        assert torch.equal(torch.cat([part["target"] for part in epoch], 1).flatten().sort().values, targets)
    together = [np.sort(np.concatenate([part["state"].flatten() for part in epoch])) for epoch in (seen[:4], seen[4:])]
    np.testing.assert_array_equal(*together)


def gae_of(rollout, config):
    return gae(rollout, config.gamma, config.gae_lambda)


def test_the_loss_is_that_of_the_paper():
    learner = learner_of(PPOConfig(factored=False, clip_coef=0.2, vf_coef=0.5))
    batch = learner.batch(learner.collect(Reach(6)))
    shift = torch.linspace(-0.5, 0.5, 6 * 16).view_as(batch["old_log_prob"])
    loss, terms = learner.loss(**{**batch, "old_log_prob": batch["old_log_prob"] - shift}, ent_coef=0.1)
    ratio, gain = shift.squeeze(-1).exp(), batch["advantage"]
    policy_loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    value = learner.policy(None, batch["state"])[1]
    value_loss = (value - batch["target"]).square().mean()
    torch.testing.assert_close(terms["policy_loss"], policy_loss)
    torch.testing.assert_close(terms["value_loss"], value_loss)
    entropy = learner.policy.log_std.mean() + 0.5 * math.log(2 * math.pi * math.e)
    torch.testing.assert_close(loss, policy_loss + 0.5 * value_loss - 0.1 * entropy)


def test_statistics_of_observations_move_after_the_update_so_that_ratios_begin_at_one():
    learner = learner_of()
    for _ in range(3):
        rollout = learner.collect(Reach(6, inputs=2))
        before = learner.policy.statistics.count.clone()
        with torch.no_grad():
            _, terms = learner.loss(**learner.batch(rollout), ent_coef=0.0)
        assert terms["kl"].abs() < 1e-6
        learner.update(rollout)
        assert learner.policy.statistics.count == before + 48
    states = learner.collect(Reach(6)).state
    learner = learner_of()
    learner.update(collect(Reach(6), learner.policy, None, 8, noise(1)))
    assert states.isfinite().all()
    assert float(learner.policy.statistics.mean[1]) == 0


def test_it_learns_to_reach_the_goal():
    learner, env = learner_of(), Reach(32)
    before = mean_reward(learner.policy, Reach(200))
    for _ in range(60):
        learner.update(learner.collect(env))
    after = mean_reward(learner.policy, Reach(200))
    assert before < -14  # distances of 2 on average, eight times
    assert after > -5  # the way there costs about 3.3


# --- an environment that breaks its contract ---------------------------------------------------------------------------


def grown(step):
    return step._replace(obs=Observation(torch.cat([step.obs.state, step.obs.state], 1)))


BROKEN = {
    "shape": (grown, r"observation at step 3 has shape \(6, 4\), and the first had \(6, 2\)"),
    "final shape": (
        lambda step: step._replace(final_obs=Observation(step.final_obs.state[:3])),
        r"observation at step 2 has shape \(3, 2\)",
    ),
    "NaN reward": (
        lambda step: step._replace(reward=torch.where(torch.arange(6) == 4, math.nan, step.reward)),
        "reward of environment 4 at step 2 of a rollout is nan",
    ),
    "infinite observation": (
        lambda step: step._replace(obs=Observation(step.obs.state.masked_fill(torch.eye(6, 2) > 0, math.inf))),
        "observation of environment 0 at step 3 of a rollout is inf",
    ),
    "reward column": (lambda step: step._replace(reward=step.reward[:, None]), r"reward has shape \(6, 1\)"),
    "one truncation": (lambda step: step._replace(truncated=step.truncated[0]), r"truncated has shape \(\)"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_an_environment_must_not_return_is_named(what):
    change, told = BROKEN[what]
    with pytest.raises(InputError, match=told) as raised:
        collect(Replaced(2, change, num_envs=6), policy_of(), None, 5, noise())
    assert "\n" not in str(raised.value)


def test_a_row_is_required_where_there_is_a_table():
    from made_agents import make_pod
    from made_markets import random_market

    pod = make_pod(random_market(120, 5, gaps=0))
    step = pod.env.step

    def without_row(action):
        taken = step(action)
        return Step(Observation(taken.obs.state), *taken[1:])

    pod.env.step = without_row
    with pytest.raises(InputError, match="step 1 has no row"):
        pod.learner.collect(pod.env)


def test_rewards_are_scaled_by_the_spread_of_the_discounted_return():
    """Against loops, over two rollouts whose episodes end in different steps."""
    learner = learner_of(dataclasses.replace(CONFIG, scale_reward=True))
    seen, totals = [], np.zeros(3)
    for seed in range(2):
        env = Reach(3)
        env.reset(seed=seed)
        rollout = collect(env, learner.policy, None, 11, noise(seed))
        rollout = rollout._replace(reward=1 + 100 * rollout.reward)
        for t in range(11):
            for e in range(3):
                totals[e] = 0.9 * totals[e] + float(rollout.reward[t, e])
                seen.append(totals[e])
                if rollout.terminated[t, e] or rollout.truncated[t, e]:
                    totals[e] = 0.0
        expected = (rollout.reward.numpy() / np.sqrt(np.var(seen) + 1e-8)).clip(-10, 10)
        np.testing.assert_allclose(learner._scaled(rollout).numpy(), expected, rtol=1e-5)


def test_the_scale_of_the_rewards_is_part_of_a_checkpoint():
    config = dataclasses.replace(CONFIG, scale_reward=True)
    env, learner = Reach(4), learner_of(config)
    learner.update(learner.collect(env))
    rollout = learner.collect(env)
    twin = learner_of(config, policy_of(seed=3))
    twin.policy.load_state_dict(learner.policy.state_dict())
    twin.load_state_dict(copy.deepcopy(learner.state_dict()))
    for one in (learner, twin):
        one.update(rollout)
    for name, tensor in learner.policy.state_dict().items():
        assert torch.equal(tensor, twin.policy.state_dict()[name]), name
