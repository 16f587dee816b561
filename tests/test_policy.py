"""Policies: permutations, members, statistics, and actions as weights."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_agents import noise

from finpod.envs.actions import greedy_weights
from finpod.envs.market_env import TradingConfig, target_weights
from finpod.rl.policy import MarketPolicy, PolicySpec, RunningStats, entropy, log_prob

NAMES, FEATURES = 6, 3
AMONG = torch.tensor([True, True, False, True, True, True])
ALL = torch.ones(NAMES, dtype=torch.bool)


def made(action="tilt", *, trained=True, seed=0):
    """A policy; `trained` moves it away from the zeros it starts with."""
    policy = MarketPolicy(PolicySpec(features=FEATURES, action=action), noise(seed))
    if trained:
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=noise(seed + 1)) * 0.3)
        policy.summary.update(torch.randn(50, 3, generator=noise(2)))
    return policy


FIGURES = torch.randn(2, NAMES, FEATURES, generator=noise(3))
"""Features of two days."""
STATE = torch.rand(2, 5, NAMES + 1, generator=noise(4)).softmax(-1)
"""States of five accounts on each of the days."""


def act(policy, features=FIGURES, state=STATE, among=AMONG):
    return policy(policy.encode(features, among.expand(features.shape[:-1])), state)


@pytest.mark.parametrize(("order", "held", "expected"), [
    # half of hmax = 50 shares of each: 500 and 1500 of an account of 1000 share its cash; 1000 of no member do not
    (0.5, [0.0, 0.0, 0.0, 0.0], [0.25, 0.0, 0.75, 0.0]),
    (0.1, [0.0, 0.0, 0.0, 0.0], [0.1, 0.0, 0.3, 0.0]),
    # selling is free for all that have a price, and ends at nothing
    (-0.1, [0.3, 0.3, 0.2, 0.2], [0.2, 0.1, 0.0, 0.2]),
])  # fmt: skip
def test_share_orders_become_the_weights_they_lead_to(order, held, expected):
    policy = MarketPolicy(PolicySpec(features=FEATURES, action="shares"))
    with torch.no_grad():
        policy.out.bias[0] = order  # for every name alike
    among, price = torch.tensor([True, False, True, False]), torch.tensor([10.0, 20.0, 30.0, 0.0])
    state = torch.tensor([*held, 1 - sum(held)])
    shares = TradingConfig(action="shares")
    weights = greedy_weights(policy, shares, torch.zeros(4, FEATURES), among, state, price, 1000.0)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("action", ["tilt", "softmax"])
def test_what_is_known_of_a_name_that_is_no_member_changes_no_members_action(action):
    policy = made(action)
    mean, _ = act(policy)
    changed, _ = act(policy, FIGURES.where(AMONG[:, None], 5.0))
    members = torch.cat([AMONG, ALL[:1]])[: mean.shape[-1]]
    assert torch.equal(changed[..., members], mean[..., members])
    assert not torch.equal(changed[..., 2], mean[..., 2])
    for kind in (mean, changed):
        assert (target_weights(kind, AMONG, action)[..., 2] == 0).all()


@pytest.mark.parametrize("anchor", [None, [0.3, 0.1, 0.2, 0.25, 0.15]])
def test_what_is_held_is_read_as_the_tilt_that_leads_to_it(anchor):
    anchor = None if anchor is None else torch.tensor([anchor])
    code, policy = SimpleNamespace(among=ALL[None, :5], anchor=anchor), MarketPolicy(PolicySpec(features=1, tilt=2.0))

    def read(weights):
        return policy._holding(code, torch.cat([weights, torch.zeros(len(weights), 1)], -1)[None])[0]

    action = torch.tensor([[0.2, -0.1, 0.0, 0.1, -0.2]])
    weights = target_weights(action, code.among, "tilt", 2.0, anchor).float()
    torch.testing.assert_close(read(weights), action, rtol=0.1, atol=0.015)
    assert anchor is not None or torch.equal(read(torch.zeros(1, 5)), torch.zeros(1, 5))
    assert read(torch.eye(5)).abs().max() <= math.atanh(0.99) + 1e-6


def test_log_prob_and_entropy_are_those_of_a_normal_distribution():
    action, mean = torch.randn(2, 7, 3, dtype=torch.float64, generator=noise())
    log_std = torch.tensor(-0.4, dtype=torch.float64)
    normal = torch.distributions.Normal(mean, log_std.exp())
    torch.testing.assert_close(log_prob(action, mean, log_std), normal.log_prob(action))
    torch.testing.assert_close(entropy(log_std), normal.entropy()[0, 0])


def test_the_dimensions_that_act():
    for action, expected in (("tilt", AMONG), ("softmax", torch.cat([AMONG, ALL[:1]])), ("shares", ALL)):
        policy = made(action)
        assert torch.equal(policy.acting(policy.encode(FIGURES[0], AMONG))[0], expected)
    anchored = made("tilt").encode(FIGURES[0], AMONG, torch.arange(6.0))  # the anchor has no share in the first asset
    assert torch.equal(made("tilt").acting(anchored)[0], AMONG & (torch.arange(6) > 0))


def test_running_statistics_are_numpys():
    random = np.random.default_rng(0)
    batches = [random.normal(3, 2, (n, 2, 4)) * [1, 10, 1e3, 1e-2] for n in (1, 5, 40)]
    stats = RunningStats(4)
    for batch in batches:
        stats.update(torch.tensor(batch))
    everything = np.concatenate(batches).reshape(-1, 4)
    np.testing.assert_allclose(stats.mean, everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(stats.var, everything.var(0), rtol=1e-12)
    assert stats.count == len(everything)
    scaled = (everything - everything.mean(0)) / np.sqrt(everything.var(0) + 1e-8)
    given = torch.tensor(everything, dtype=torch.float32)
    np.testing.assert_allclose(stats(given), scaled.clip(-10, 10), rtol=1e-4, atol=1e-4)


def test_the_value_trains_its_own_layer_and_not_the_encoder():
    policy = made()
    act(policy)[1].sum().backward()
    assert policy.day.weight.grad[1:].abs().sum() > 0
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in policy.mixed.parameters())


def test_what_is_held_is_never_kept_whole():
    """Else an account would run away from the scores: z = score + inertia * z has no end for an inertia from 1 on."""
    policy = made()
    with torch.no_grad():
        policy.out.bias.copy_(torch.tensor([0.1, 50.0]))
    code = policy.encode(FIGURES[0], AMONG)
    assert (code.inertia.abs() <= 0.98).all()
    assert (code.inertia > 0.9).all()
