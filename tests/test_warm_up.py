"""Features that are undefined on most training rows are dropped and named; learning from a single step; minibatch sizes."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_agents import CONFIG, SMALL, tiny_train
from made_markets import make_market, random_market
from test_ppo import bandit, experience, rollout_of

import finpod
from finpod.features.panel import FEATURES, SETS, build_panel
from finpod.report.provenance import provenance
from finpod.report.training import render_training_report
from finpod.rl.ppo import PPOConfig
from finpod.tournament.history import read_history
from finpod.walkforward.retraining import walk_forward
from finpod.walkforward.strategy import load_walkforward

pytestmark = pytest.mark.usefixtures("unaudited")
DAYS = 420
AVAILABLE = tuple(name for name in SETS["default"] if not FEATURES[name].tables)
"""Features that need closes alone."""
LONG = {name for name in AVAILABLE if FEATURES[name].warm_up > 200}


@pytest.fixture(scope="module")
def market():
    return replace(random_market(DAYS, 5, gaps=0, seed=2), open=None, member=np.ones((DAYS, 5), dtype=bool))


def late(first):
    """A feature that is the close from row `first` on and NaN before."""

    def late_close(market):
        return np.where(np.arange(len(market.dates))[:, None] < first, math.nan, market.close)

    return late_close


def test_g13_features_that_do_not_warm_up_before_training_are_dropped_and_reported(market, tmp_path):
    """Default features, trained on the first year of the data and validated on the next half-year."""
    days = market.dates
    with pytest.warns(UserWarning, match=r"momentum_12_1 99\.6%"):
        trained = tiny_train(market, tmp_path / "year", features=None, agents=2, rounds=1,
                             train=(days[0], days[252]), validation=(days[253], days[380]))  # fmt: skip
    for member in trained.members:
        assert not LONG & set(member.task_spec["features"])
    dropped, undefined = (trained.provenance[name] for name in ("dropped", "undefined"))
    assert dropped.keys() == LONG
    assert dropped["momentum_12_1"] == pytest.approx(252 / 253)
    assert undefined["return_63"] == pytest.approx(63 / 253)
    assert set(trained.provenance["features"]) == set(AVAILABLE) - LONG
    rows = provenance(finpod.backtest(trained, market, start=days[381]))
    label = (
        "Features dropped, and the fraction of the members' training bars on which they are undefined: Momentum 12 1"
    )
    assert (label, "0.99605") in dict(rows)["Agent"]
    history = read_history(tmp_path / "year")
    assert history.logs[0].header["undefined"]["high_252_distance"] == pytest.approx(251 / 253)
    assert "99.6%, dropped" in render_training_report(history)


@pytest.mark.parametrize(("first", "kept"), [(0, True), (28, True), (29, False)])
def test_g13_at_least_half_of_the_training_rows_must_have_a_value(market, first, kept):
    """28 of the rows 25 to 80 are half of them."""
    panel = build_panel(market, ["return_5", late(25 + first)], fit=(25, 81))
    share = first / 56
    assert panel.names == (("return_5", "late_close") if kept else ("return_5",))
    assert panel.dropped == ({} if kept else {"late_close": pytest.approx(share)})
    assert panel.undefined == ({"late_close": pytest.approx(share)} if kept and first else {})


def test_g13_only_bars_of_members_count():
    """An asset that lists late, or is not a member, takes no feature away from the others."""
    close = np.random.default_rng(1).uniform(10, 20, (60, 4))
    close[:55, 3] = np.nan
    member = np.tile([True, True, False, True], (60, 1))

    def mine(market):
        return np.where(np.arange(4) == 2, math.nan, market.close)

    panel = build_panel(make_market(close, member=member), ["return_5", mine], fit=(10, 60))
    assert (panel.dropped, panel.undefined) == ({}, {"return_5": pytest.approx(5 / 105)})


def test_g13_an_environment_drops_them_too_and_a_trained_scaling_never(market):
    env = finpod.make_env("stocks", market=market, num_envs=2, end=market.dates[252])
    assert set(env.panel.dropped) == LONG
    assert env.panel.features.shape[-1] == len(env.panel.names) == len(AVAILABLE) - len(LONG)
    scaling = build_panel(market, fit=(253, 400)).scaling
    assert build_panel(market.rows(0, 260), scaling=scaling).names == AVAILABLE


def test_g13_segments_of_a_walk_forward_tell_what_each_dropped(tmp_path):
    market = replace(random_market(200, 5, gaps=0, seed=5), member=np.ones((200, 5), dtype=bool))
    features = ["return_5", late(90)]
    result = walk_forward(market=market, start=market.dates[130], out=tmp_path / "wf", train=60, validation=30, test=60, hold=2,
                          **SMALL, features=features, config=CONFIG, agents=1, rounds=1, keep=1, steps=1,
                          progress=lambda doing, share: None)  # fmt: skip
    assert [line.get("dropped", "") for line in result.agent["segments"]] == ["late_close", ""]
    assert "features" not in load_walkforward(tmp_path / "wf", [features[1]]).provenance


def test_g14_one_account_and_one_step_learn(market, tmp_path):
    config = PPOConfig(num_steps=1, num_minibatches=1)
    ensemble = tiny_train(market, tmp_path / "one", num_envs=1, start_groups=1, config=config, agents=1, keep=1,
                          rounds=1, steps=40)  # fmt: skip
    weights = ensemble.members[0].weights
    assert all(tensor.isfinite().all() for tensor in weights.values())
    assert weights["out.weight"].abs().max() > 0, "the policy has moved from where it began"
    assert weights["day.weight"].abs().max() > 0


@given(groups=st.integers(1, 40), minibatches=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_g15_every_pass_takes_as_many_steps_as_asked_for(groups, minibatches):
    learner = bandit(replace(CONFIG, update_epochs=2, num_minibatches=minibatches), groups=groups, trained=False)
    sizes, loss = [], learner.loss
    learner.loss = lambda row, **part: sizes.append(row.shape[1]) or loss(row, **part)
    learner.update(rollout_of(experience(learner, accounts=1, steps=1), learner))
    steps = min(groups, minibatches)
    assert len(sizes) == 2 * steps
    for one_pass in (sizes[:steps], sizes[steps:]):
        assert sum(one_pass) == groups
        assert max(one_pass) - min(one_pass) <= 1
