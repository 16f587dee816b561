import gc
import itertools
from dataclasses import replace

import pytest
import torch
from made_agents import CONFIG, make_pod
from made_markets import random_market

from finpod.rl.policy import MarketPolicy, PolicySpec, log_prob
from finpod.rl.ppo import PPO, PPOConfig
from finpod.rl.rollout import Rollout, encode_rows
from finpod.rl.task import Table

DAYS, NAMES = 12, 3


def bandit(config=CONFIG, *, groups=4, trained=True):
    """A learner over 12 days and three names, of which one is no member; policy and features are arbitrary."""
    torch.manual_seed(0)
    member = torch.tensor([[True, True, False]]).expand(DAYS, NAMES)
    features = torch.randn(DAYS, NAMES, 2)
    policy = MarketPolicy(PolicySpec(features=2, hidden=4), torch.Generator().manual_seed(0))
    if trained:
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.2)
    return PPO(policy, Table(features, member), groups, config, torch.Generator().manual_seed(1))


def experience(learner, *, accounts=3, steps=4):
    """What `loss` takes: days, states, actions of the present policy, its densities, advantages and value targets."""
    row = torch.randint(0, DAYS, (steps, learner.groups))
    state = torch.rand(steps, learner.groups, accounts, NAMES + 1).softmax(-1)
    with torch.no_grad():
        code = encode_rows(learner.policy, learner.table, row)
        mean, value = learner.policy(code, state)
        action = mean + learner.policy.log_std.exp() * torch.randn(mean.shape)
        chance = log_prob(action, mean, learner.policy.log_std)
    return {"row": row, "state": state, "action": action, "old_log_prob": chance, "advantage": torch.randn(value.shape),
            "target": value + torch.randn(value.shape)}  # fmt: skip


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


def spy_on_steps(learner, monkeypatch, read):
    """Note `read()` whenever the optimiser is about to take a step, and after it."""
    notes, step = [], learner.optimizer.step

    def noted():
        before = read()
        step()
        notes.append((before, read()))

    monkeypatch.setattr(learner.optimizer, "step", noted)
    return notes


def weights_of(policy):
    return torch.cat([parameter.detach().flatten().clone() for parameter in policy.parameters()])


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


def test_the_loss_is_put_together_from_its_parts():
    learner = bandit(replace(CONFIG, vf_coef=0.7))
    data = experience(learner)
    loss, terms = learner.loss(**data, ent_coef=0.3)
    expected = terms["policy_loss"] + 0.7 * terms["value_loss"] - 0.3 * terms["entropy"]
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(terms["policy_loss"], -2 * data["advantage"].mean())  # two members, ratios of one
    assert terms["kl"].abs() < 1e-6
    moved = dict(data, old_log_prob=data["old_log_prob"] + 0.5)
    expected_kl = torch.tensor(-0.5).exp() - 1 + 0.5
    torch.testing.assert_close(learner.loss(**moved, ent_coef=0.0)[1]["kl"], expected_kl)


def test_the_kl_brake_lets_the_rest_of_an_update_stand_still(monkeypatch):
    config = PPOConfig(learning_rate=0.1, target_kl=1e-5, update_epochs=3, num_minibatches=2, gamma=0.0)
    learner = bandit(config)
    data = experience(learner)
    notes = spy_on_steps(learner, monkeypatch, lambda: weights_of(learner.policy))
    losses = learner.update(rollout_of(data, learner))
    assert len(notes) == 6
    moved = [not torch.equal(before, after) for before, after in notes]
    assert moved == [True] + 5 * [False]
    assert losses["moving"] == pytest.approx(1 / 6)
    learner.config = replace(config, target_kl=100.0)
    notes.clear()
    assert learner.update(rollout_of(data, learner))["moving"] == 1
    assert all(not torch.equal(before, after) for before, after in notes)


@pytest.mark.parametrize(("anneal", "factor"), [(True, 0.25), (False, 1.0)])
def test_schedules_fall_linearly_to_zero(monkeypatch, anneal, factor):
    config = replace(CONFIG, ent_coef=0.02, learning_rate=8e-4, anneal_lr=anneal, anneal_ent=anneal, target_kl=9.0)
    learner = bandit(config)
    bonuses, loss = [], learner.loss
    monkeypatch.setattr(learner, "loss", lambda **part: bonuses.append(part["ent_coef"]) or loss(**part))
    rates = spy_on_steps(learner, monkeypatch, lambda: float(learner.optimizer.param_groups[0]["lr"]))
    rollout = rollout_of(experience(learner), learner)
    learner.update(rollout, progress=0.75)
    assert [after for _, after in rates] == pytest.approx([8e-4 * factor] * 4)
    assert bonuses == pytest.approx([0.02 * factor] * 4)
    rates.clear()
    before = weights_of(learner.policy)
    learner.update(rollout, progress=1.0)
    assert torch.equal(weights_of(learner.policy), before) == anneal


def test_gradients_are_clipped(monkeypatch):
    config = replace(CONFIG, max_grad_norm=0.01, gamma=0.0)
    learner = bandit(config)
    data = experience(learner)

    def norm():
        return float(torch.cat([p.grad.flatten() for p in learner.policy.parameters() if p.grad is not None]).norm())

    notes = spy_on_steps(learner, monkeypatch, norm)
    losses = learner.update(rollout_of(data, learner))
    assert losses["grad_norm"] > 0.1  # told as it was before the clip
    assert all(before == pytest.approx(0.01, rel=1e-3) for before, _ in notes)


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


def test_centred_days_keep_the_direction_of_the_expected_gradient():
    """Two accounts a day, both equally likely deviations of each action: the expectation is a sum over 4 x 4 cases."""
    moves = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=2)))  # of two members, mean 0 and variance 1
    pairs = torch.tensor(list(itertools.product(range(4), repeat=2)))  # of two accounts
    shocks = torch.tensor([-3.0, 0.5, 7.0])  # what the market did to both accounts alike
    groups = len(shocks) * len(pairs)
    learner = bandit(groups=groups)
    row, state = torch.zeros(1, groups, dtype=torch.int64), torch.full((1, groups, 2, NAMES + 1), 0.25)
    with torch.no_grad():
        mean, value = learner.policy(encode_rows(learner.policy, learner.table, row), state)
        std = learner.policy.log_std.exp()
        deviation = torch.cat([moves, torch.zeros(4, 1)], -1)[pairs].repeat(len(shocks), 1, 1)[None]
        action = mean + std * deviation
        chance = log_prob(action, mean, learner.policy.log_std)
    own = deviation[..., 0] - 0.5 * deviation[..., 1]  # the action that pays: more of the first, less of the second
    shock = shocks.repeat_interleave(len(pairs))[None, :, None]
    data = {"row": row, "state": state, "action": action, "old_log_prob": chance, "target": value}

    def direction(advantage, centred):
        learner.config = replace(CONFIG, center_days=centred)
        gradient = policy_gradient(learner, dict(data, advantage=learner.standardise(advantage)))
        vector = torch.cat([gradient["out.weight"].flatten(), gradient["names.weight"].flatten()])
        return vector / vector.norm()

    plain, centred = direction(own + shock, centred=False), direction(own + shock, centred=True)
    torch.testing.assert_close(centred, plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(direction(own, centred=True), centred)
    # days that did not draw all cases: what the market did still moves the plain estimate, and not the centred one
    few = {name: value[:, 5:19] for name, value in data.items()}

    def of_few(advantage, centred):
        learner.config = replace(CONFIG, center_days=centred)
        return as_vector(policy_gradient(learner, dict(few, advantage=learner.standardise(advantage[:, 5:19]))))

    torch.testing.assert_close(of_few(own + shock, True), of_few(own, True), rtol=1e-3, atol=1e-5)
    assert not torch.allclose(of_few(own + shock, False), of_few(own, False), rtol=0.1)


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
