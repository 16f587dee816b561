from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_agents import CONFIG, STEPS_AN_UPDATE, TRAIN, VALIDATION, make_setup, settings, train_slice, validate

from finpod.rl.ppo import PPO
from finpod.tournament.evolution import PERTURB, vary
from finpod.tournament.pod import Pod


@pytest.fixture(scope="module")
def setup(market):
    return make_setup(market, hold=2)


@pytest.fixture(scope="module")
def donor(setup):
    return train_slice(setup, settings(config=replace(CONFIG, learning_rate=1e-3)), None, 3 * STEPS_AN_UPDATE, 200)


def trained_weights(checkpoint):
    return torch.cat([tensor.flatten().double() for tensor in checkpoint.weights.values()])


@pytest.mark.parametrize("anneal", [False, True])
def test_d08_a_copy_learns_by_its_own_settings_not_the_donors(setup, donor, anneal):
    always = SimpleNamespace(choice=lambda factors: {PERTURB: 0.8}[tuple(factors)])
    config = vary(replace(CONFIG, learning_rate=1e-3, clip_coef=0.2, anneal_lr=anneal), PPO.bounds, always)
    assert config.learning_rate == pytest.approx(8e-4)
    assert config.clip_coef == pytest.approx(0.16)
    child = Pod(setup, settings(seed=5, config=config), replace(donor, env={}))
    assert float(child.learner.optimizer.param_groups[0]["lr"]) == pytest.approx(8e-4)
    assert child.learner.optimizer.param_groups[0]["weight_decay"] == config.weight_decay
    assert child.learner.config == config  # whose clip the loss uses
    list(child.train(donor.steps + STEPS_AN_UPDATE, 2 * donor.steps))
    assert float(child.learner.optimizer.param_groups[0]["lr"]) == pytest.approx(8e-4 * (0.5 if anneal else 1))


def test_a_copy_takes_over_what_was_learnt_and_starts_its_own_accounts(setup, donor):
    child = Pod(setup, settings(seed=5), replace(donor, env={}))
    assert child.steps == donor.steps
    for name, tensor in child.policy.state_dict().items():
        assert torch.equal(tensor, donor.weights[name])
    moments = child.learner.optimizer.state_dict()["state"]
    for index, state in donor.learner["optimizer"]["state"].items():
        assert torch.equal(moments[index]["exp_avg"], state["exp_avg"])
        assert moments[index]["step"] == 12
    assert torch.equal(child.env.equity, torch.full((4, 2), 1e6, dtype=torch.float64))
    assert not torch.equal(child.learner.generator.get_state(), donor.learner["generator"])
    assert torch.equal(child.learner.generator.get_state(), Pod(setup, settings(seed=5)).learner.generator.get_state())


def test_c25_d21_validation_is_deterministic_and_leaves_the_agent_and_its_statistics_alone(setup, donor):
    weights = trained_weights(donor)
    assert donor.weights["summary.count"] == donor.steps
    (first, returns), (again, same) = validate(setup, donor), validate(setup, donor)
    assert first == again
    np.testing.assert_array_equal(returns, same)
    assert len(returns) == VALIDATION[1] - VALIDATION[0] == first.days
    assert torch.equal(trained_weights(donor), weights)
    assert np.prod(1 + returns) - 1 == pytest.approx(first.total_return)


def test_scaling_is_fitted_on_training_rows_alone(market, setup):
    changed = market.close.copy()
    changed[TRAIN[1] + 1 :] *= 3
    other = make_setup(replace(market, close=changed), hold=2)
    assert other.task.panel.scaling == setup.task.panel.scaling
    assert torch.equal(other.task.panel.features[: TRAIN[1] + 1], setup.task.panel.features[: TRAIN[1] + 1])


def test_threads_are_those_of_the_setup_during_a_slice_and_what_they_were_after_it(market, monkeypatch):
    seen, before = [], torch.get_num_threads()
    setup = replace(make_setup(market), threads=before + 1)
    monkeypatch.setattr(Pod, "train", lambda self, until, total: seen.append(torch.get_num_threads()) or iter(()))
    train_slice(setup, settings(), None, 32, 32)
    assert seen == [before + 1]
    assert torch.get_num_threads() == before
