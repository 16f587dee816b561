"""PPO: its loss and the steps of an update, with a shared table and without one."""

import gc
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_agents import CONFIG, make_pod, noise
from made_errors import refused
from made_markets import random_market
from torch.nn.utils import parameters_to_vector

from finpod.errors import CheckpointError
from finpod.rl.policy import DensePolicy, DenseSpec, MarketPolicy, PolicySpec, log_prob
from finpod.rl.ppo import PPO, PPOConfig
from finpod.rl.rollout import Rollout, collect, encode_rows, gae
from finpod.rl.task import Observation, Table

DENSE = PPOConfig(num_steps=8, num_minibatches=4, gamma=0.9, factored=False, anneal_lr=False, learning_rate=3e-3)
DAYS, NAMES = 12, 3


def bandit(config=CONFIG, *, groups=4, trained=True):
    """A learner over 12 days and three names, of which one is no member; policy and features are arbitrary."""
    generator = torch.Generator().manual_seed(0)
    member = torch.tensor([[True, True, False]]).expand(DAYS, NAMES)
    features = torch.randn(DAYS, NAMES, 2, generator=generator)
    policy = MarketPolicy(PolicySpec(features=2, hidden=4), generator)
    if trained:
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return PPO(policy, Table(features, member), groups, config, torch.Generator().manual_seed(1))


def test_a_state_with_random_numbers_of_another_device_is_refused():
    learner = bandit()
    state = learner.state_dict() | {"generator": torch.zeros(16, dtype=torch.uint8)}  # the size on CUDA
    refused("not made on cpu", learner.load_state_dict, state, error=CheckpointError)


def experience(learner, *, accounts=3, steps=4):
    """What `loss` takes: days, states, actions of the present policy, its densities, advantages and value targets."""
    generator = torch.Generator().manual_seed(2)
    row = torch.randint(0, DAYS, (steps, learner.groups), generator=generator)
    state = torch.rand(steps, learner.groups, accounts, NAMES + 1, generator=generator).softmax(-1)
    with torch.no_grad():
        mean, value = learner.policy(encode_rows(learner.policy, learner.table, row), state)
        action = mean + learner.policy.log_std.exp() * torch.randn(mean.shape, generator=generator)
        chance = log_prob(action, mean, learner.policy.log_std)
    advantage, error = torch.randn(2, *value.shape, generator=generator)
    names = ("row", "state", "action", "old_log_prob", "advantage", "target")
    return dict(zip(names, (row, state, action, chance, advantage, value + error), strict=True))


def rollout_of(data, learner):
    """The same as a rollout whose advantages are its rewards, for gamma 0."""
    flat = {name: data[name].flatten(1, 2) for name in ("state", "action", "old_log_prob", "advantage")}
    steps, accounts = flat["advantage"].shape
    row = data["row"].repeat_interleave(accounts // learner.groups, dim=1)
    nothing, never = torch.zeros(steps, accounts), torch.zeros(steps, accounts, dtype=torch.bool)
    parts = row, flat["state"], flat["action"], flat["old_log_prob"], nothing, flat["advantage"], nothing, never, never
    return Rollout(*parts)


def policy_gradient(learner, data, ent_coef=0.0):
    """{parameter: gradient of the policy loss}."""
    _, terms = learner.loss(**data, ent_coef=ent_coef)
    parameters = dict(learner.policy.named_parameters())
    grads = torch.autograd.grad(terms["policy_loss"], list(parameters.values()), allow_unused=True)
    return {name: grad for name, grad in zip(parameters, grads, strict=True) if grad is not None}


def as_vector(gradient):
    return torch.cat([gradient[name].flatten() for name in sorted(gradient)])


@pytest.mark.parametrize("factored", [True, False])
def test_the_gradient_at_the_old_policy_is_that_of_reinforce(factored):
    learner = bandit(replace(CONFIG, factored=factored))
    data = experience(learner)
    code = encode_rows(learner.policy, learner.table, data["row"])
    mean, _ = learner.policy(code, data["state"])
    chance = (log_prob(data["action"], mean, learner.policy.log_std) * code.among.unsqueeze(-2)).sum(-1)
    reinforce = torch.autograd.grad(-(chance * data["advantage"]).mean(), learner.policy.out.weight)[0]
    torch.testing.assert_close(policy_gradient(learner, data)["out.weight"], reinforce, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("factored", [True, False])
def test_the_clip_stops_what_has_gone_far_enough_and_only_that(factored):
    learner = bandit(replace(CONFIG, factored=factored, clip_coef=0.2))
    data = experience(learner)
    for shift, sign, moves in ((0.3, 1, False), (0.3, -1, True), (-0.3, -1, False), (-0.3, 1, True), (0.05, 1, True)):
        gone = dict(data, old_log_prob=data["old_log_prob"] - shift, advantage=sign * data["advantage"].abs())
        norm = as_vector(policy_gradient(learner, gone)).norm()
        assert (norm > 1e-3) == moves, (shift, sign)
    learner.config = replace(learner.config, clip_coef=3.0)
    far = dict(data, old_log_prob=data["old_log_prob"] - 0.3, advantage=data["advantage"].abs())
    assert as_vector(policy_gradient(learner, far)).norm() > 1e-3


def test_names_that_are_no_members_have_no_part_in_the_objective():
    learner = bandit()
    data = experience(learner)
    loss, _ = learner.loss(**data, ent_coef=0.1)
    other = dict(data, action=data["action"].clone())
    other["action"][..., 2] += 100.0
    assert learner.loss(**other, ent_coef=0.1)[0] == loss


def test_the_loss_and_the_divergence_of_factored_ratios():
    learner = bandit()
    data = experience(learner)
    _, terms = learner.loss(**data, ent_coef=0.3)
    torch.testing.assert_close(terms["policy_loss"], -2 * data["advantage"].mean())  # two members, ratios of one
    assert terms["kl"].abs() < 1e-6
    moved = dict(data, old_log_prob=data["old_log_prob"] + 0.5)
    expected_kl = torch.tensor(-0.5).exp() - 1 + 0.5
    torch.testing.assert_close(learner.loss(**moved, ent_coef=0.0)[1]["kl"], expected_kl)


def updated(monkeypatch, progress=0.0, **changes):
    """The steps of an update as (weights before, norm of the gradient, weights after, rate), its statistics, and its bonuses."""
    learner = bandit(replace(CONFIG, gamma=0.0, **changes))
    steps, bonuses, step, loss = [], [], learner.optimizer.step, learner.loss

    def noted():
        parameters = list(learner.policy.parameters())
        before, grads = parameters_to_vector(parameters), [p.grad for p in parameters if p.grad is not None]
        step()
        rate = float(learner.optimizer.param_groups[0]["lr"])
        steps.append((before, float(torch.nn.utils.get_total_norm(grads)), parameters_to_vector(parameters), rate))

    monkeypatch.setattr(learner.optimizer, "step", noted)
    monkeypatch.setattr(learner, "loss", lambda **part: bonuses.append(part["ent_coef"]) or loss(**part))
    return steps, learner.update(rollout_of(experience(learner), learner), progress), bonuses


@pytest.mark.parametrize(("target_kl", "moved"), [(1e-5, [True] + 5 * [False]), (100.0, 6 * [True])])
def test_the_kl_brake_lets_the_rest_of_an_update_stand_still(monkeypatch, target_kl, moved):
    settings = {"learning_rate": 0.1, "target_kl": target_kl, "update_epochs": 3, "num_minibatches": 2}
    steps, losses, _ = updated(monkeypatch, **settings)
    assert [not torch.equal(before, after) for before, _, after, _ in steps] == moved
    assert losses["moving"] == pytest.approx(sum(moved) / 6)


@pytest.mark.parametrize(("anneal", "factor"), [(True, 0.25), (False, 1.0)])
def test_schedules_fall_linearly_to_zero_and_gradients_are_clipped(monkeypatch, anneal, factor):
    anneals = {"anneal_lr": anneal, "anneal_ent": anneal}
    settings = {"ent_coef": 0.02, "learning_rate": 8e-4, "max_grad_norm": 0.01, "target_kl": 9.0, **anneals}
    steps, losses, bonuses = updated(monkeypatch, progress=0.75, **settings)
    assert [rate for *_, rate in steps] == pytest.approx([8e-4 * factor] * 4)
    assert bonuses == pytest.approx([0.02 * factor] * 4)
    assert [norm for _, norm, *_ in steps] == pytest.approx([0.01] * 4, rel=1e-3)
    assert losses["grad_norm"] > 0.1  # told as it was before the clip


def test_minibatches_are_whole_groups_and_cover_the_rollout_once_an_epoch(monkeypatch):
    learner = bandit(replace(CONFIG, update_epochs=2, num_minibatches=3), groups=7)
    seen, loss = [], learner.loss
    monkeypatch.setattr(learner, "loss", lambda row, **part: seen.append((row, part["state"])) or loss(row, **part))
    data = experience(learner)
    learner.update(rollout_of(data, learner))
    assert [row.shape[1] for row, _ in seen] == [3, 2, 2, 3, 2, 2]
    for epoch in (seen[:3], seen[3:]):
        states = torch.cat([state for _, state in epoch], dim=1)
        order = states[0, :, 0, 0].argsort()
        torch.testing.assert_close(states[:, order], data["state"][:, data["state"][0, :, 0, 0].argsort()])


@pytest.mark.parametrize("centred", [True, False])
def test_advantages_are_centred_by_day_and_divided_by_their_spread(centred):
    """Two accounts on each of two days: 3 is the market's move on the first, -1 on the second, and 1 that of each account."""
    learner = bandit(replace(CONFIG, center_days=centred), groups=2)
    advantage = torch.tensor([[[2.0, 4.0], [-2.0, 0.0]]])
    expected = torch.tensor([[[-1.0, 1.0], [-1.0, 1.0]]]) if centred else advantage - 1
    torch.testing.assert_close(learner.standardise(advantage), expected / expected.std())
    assert torch.equal(learner.standardise(advantage[:, :1, :1]), advantage[:, :1, :1])


def tensors_alive():
    gc.collect()
    alive = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    return len(alive), sum(tensor.numel() * tensor.element_size() for tensor in alive)


def test_d16_memory_does_not_grow_over_rollouts():
    pod = make_pod(random_market(120, 5, gaps=0))
    list(pod.train(2 * 32, 60 * 32))
    before = tensors_alive()
    list(pod.train(30 * 32, 60 * 32))
    assert tensors_alive() == before
    assert all(tensor.grad_fn is None for tensor in (pod.env.equity, *pod.env.account))


@pytest.fixture
def numbers(task):
    """A function (E, seed) -> environment of the task in strategies/README.md; each step overwrites the tensors of the last."""

    def made(num_envs, seed=0):
        env = task.env(num_envs, seed, torch.device("cpu"))
        step, last = env.step, []

        def overwriting(action):
            taken = step(action)
            for tensor in last:
                tensor.fill_(math.nan)
            last[:] = taken.obs.state, taken.reward, taken.final_obs.state
            return taken

        env.step = overwriting
        return env

    return made


def learner_of(seed=0, **changes):
    policy = DensePolicy(DenseSpec(inputs=1, actions=1, hidden=32), noise(seed))
    return PPO(policy, None, 1, replace(DENSE, **changes), noise(1))


def test_without_a_table_minibatches_are_single_steps(numbers, monkeypatch):
    learner, seen = learner_of(num_steps=7, update_epochs=2), []
    loss = learner.loss
    monkeypatch.setattr(learner, "loss", lambda **part: seen.append(part) or loss(**part))
    rollout = learner.collect(numbers(5))
    learner.update(rollout)
    assert [part["state"].shape for part in seen] == 2 * [(1, 9, 1, 1), (1, 9, 1, 1), (1, 9, 1, 1), (1, 8, 1, 1)]
    assert all(part["row"] is None for part in seen)
    targets = gae(rollout, DENSE.gamma, DENSE.gae_lambda) + rollout.value
    for epoch in (seen[:4], seen[4:]):
        drawn = torch.cat([part["target"].flatten() for part in epoch])
        assert torch.equal(drawn.sort().values, targets.flatten().sort().values)


def test_the_loss_is_that_of_the_paper(numbers):
    learner = learner_of(clip_coef=0.2, vf_coef=0.5)
    batch = learner.batch(learner.collect(numbers(12)))
    shift = torch.linspace(-0.5, 0.5, 12 * 8).view_as(batch["old_log_prob"])
    loss, terms = learner.loss(**{**batch, "old_log_prob": batch["old_log_prob"] - shift}, ent_coef=0.1)
    ratio, gain = shift.squeeze(-1).exp(), batch["advantage"]
    policy_loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    value_loss = (learner.policy(None, batch["state"])[1] - batch["target"]).square().mean()
    entropy = learner.policy.log_std.mean() + 0.5 * math.log(2 * math.pi * math.e)
    torch.testing.assert_close(terms["policy_loss"], policy_loss)
    torch.testing.assert_close(loss, policy_loss + 0.5 * value_loss - 0.1 * entropy)


def test_statistics_of_observations_move_after_the_update_so_that_ratios_begin_at_one(numbers):
    learner = learner_of()
    for _ in range(3):
        rollout = learner.collect(numbers(6))
        before = learner.policy.statistics.count.clone()
        with torch.no_grad():
            _, terms = learner.loss(**learner.batch(rollout), ent_coef=0.0)
        assert terms["kl"].abs() < 1e-6
        learner.update(rollout)
        assert learner.policy.statistics.count == before + 48


@pytest.mark.parametrize(("change", "told"), [
    (lambda step: step._replace(final_obs=Observation(step.final_obs.state[:3])), r"final_obs of step 2 has shape \(3, 1\)"),
    (lambda step: step._replace(obs=Observation(step.obs.state.masked_fill(torch.eye(6)[:, :1] > 0, math.inf))),
     "observation of environment 0 at step 3 of a rollout is inf"),
    (lambda step: step._replace(final_obs=Observation(step.final_obs.state * math.nan)),
     "final_obs of environment 0 at step 2 of a rollout is nan"),
])  # fmt: skip
def test_what_an_environment_must_not_return_is_named(numbers, change, told):
    env, taken = numbers(6), []
    step = env.step
    env.step = lambda action: taken.append(1) or (step(action) if len(taken) <= 2 else change(step(action)))
    refused(told, collect, env, learner_of().policy, None, 5, noise())


def test_a_row_is_required_where_there_is_a_table():
    pod = make_pod(random_market(120, 5, gaps=0))
    step = pod.env.step
    pod.env.step = lambda action: (taken := step(action))._replace(obs=Observation(taken.obs.state))
    refused("names no row", pod.learner.collect, pod.env)


def test_rewards_are_scaled_by_the_spread_of_the_discounted_return(numbers):
    """Against loops, over two rollouts whose episodes end in different steps."""
    learner = learner_of(scale_reward=True)
    seen, totals = [], np.zeros(3)
    for seed in range(2):
        rollout = collect(numbers(3, seed), learner.policy, None, 11, noise(seed))
        rollout = rollout._replace(reward=1 + 100 * rollout.reward)
        for reward, ended in zip(rollout.reward.numpy(), rollout.truncated.numpy(), strict=True):
            totals = 0.9 * totals + reward
            seen += [*totals]
            totals = totals * ~ended
        expected = (rollout.reward.numpy() / np.sqrt(np.var(seen) + 1e-8)).clip(-10, 10)
        np.testing.assert_allclose(learner._scaled(rollout).numpy(), expected, rtol=1e-5)
