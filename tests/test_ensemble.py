import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from made_agents import STEPS_AN_UPDATE, VALIDATION, make_setup, settings, tiny_train, train_slice, validate
from made_errors import refusal, refused
from made_markets import random_market

import finpod
from finpod import CheckpointError, MarketView
from finpod.ensemble import Ensemble, load_ensemble

pytestmark = pytest.mark.usefixtures("unaudited")
START = VALIDATION[1] + 1


@pytest.fixture(scope="module")
def folder(market, tmp_path_factory):
    folder = tmp_path_factory.mktemp("strategies") / "tiny"
    tiny_train(market, folder)
    return folder


@pytest.fixture(scope="module")
def ensemble(folder):
    return load_ensemble(folder)


def centred_log_price(market):
    """A feature of a user's own."""
    return np.log(market.close) - np.nanmean(np.log(market.close), axis=1, keepdims=True)


def run(strategy, market, **terms):
    return finpod.backtest(strategy, market, start=market.dates[START], **{"examine": False, **terms})


def weights_by_day(strategy, market):
    account = {"held": np.full(len(market.tickers), 0.1), "cash": 0.4}
    return np.array([strategy.decide(MarketView(market, row, **account)) for row in range(START, START + 10)])


unreadable = partial(refusal, load_ensemble, error=CheckpointError)


def test_a_folder_gives_the_same_decisions_back(market, tmp_path):
    trained = tiny_train(market, tmp_path / "again")
    loaded = load_ensemble(tmp_path / "again")
    np.testing.assert_array_equal(weights_by_day(loaded, market), weights_by_day(trained, market))
    assert len(np.unique(weights_by_day(loaded, market))) > 20  # they say something
    for name in ("name", "trials", "trained_until", "windows", "every", "features", "provenance", "runs"):
        assert getattr(loaded, name) == getattr(trained, name), name
    assert finpod.load_strategy(tmp_path / "again").name == "again"
    saved = loaded.save(str(tmp_path / "third"))
    assert (saved / "ensemble.json").read_bytes() == (tmp_path / "again" / "ensemble.json").read_bytes()
    assert sorted(file.name for file in saved.iterdir()) == ["ensemble.json", "member-0.pt", "member-1.pt"]


def test_it_holds_the_mean_of_its_members(market, ensemble):
    parts = [Ensemble([member], name="part", trials=1, provenance={}) for member in ensemble.members]
    mean = np.mean([weights_by_day(part, market) for part in parts], axis=0)
    np.testing.assert_allclose(weights_by_day(ensemble, market), mean, rtol=1e-12)
    assert np.abs(weights_by_day(parts[0], market) - weights_by_day(parts[1], market)).max() > 1e-6
    other = replace(parts[0].members[0], task_spec=parts[0].members[0].task_spec | {"trained_until": "2001-01-02"})
    mix = partial(Ensemble, name="mix", trials=1, provenance={})
    refused("different tasks", mix, [ensemble.members[1], other], error=CheckpointError)


@pytest.mark.parametrize("action", ["tilt", "softmax", "shares"])
@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_validation_is_the_backtest_of_the_one_agent(action, fill, gaps):
    market = random_market(110, 5, gaps=gaps, seed=4)
    setup = make_setup(market, action=action, fill=fill, hold=2, hmax=20_000)
    agent = train_slice(setup, settings(seed=6), None, 2 * STEPS_AN_UPDATE, 128)
    agent.weights["out.weight"] += 2 * torch.randn(2, 32, generator=torch.Generator().manual_seed(2))
    agent.weights["out.bias"][0] -= 0.1  # buys some, sells others, also those without a bar on the day
    found, returns = validate(setup, agent)
    alone = Ensemble([agent], name="alone", trials=1, provenance={})
    days = market.dates[list(VALIDATION)]
    result = finpod.backtest(alone, market, start=days[0], end=days[1], fill=fill, costs=setup.task.trading.costs,
                             allow_in_sample=True, examine=False)  # fmt: skip
    np.testing.assert_allclose(result.equity, 1e6 * np.cumprod([1, *(1 + returns)]), rtol=1e-6)
    assert result.metrics.sharpe == pytest.approx(found.sharpe, rel=1e-6)
    assert len(result.trades) > 5
    assert result.equity.nunique() > 10


def test_it_trades_a_market_with_other_names_and_another_number_of_them(ensemble):
    other = random_market(130, 9, gaps=0, seed=9, tickers=tuple(f"X{i}" for i in range(9)))
    for market in (other, other.select(["X2", "X5"]), other.select(["X7"])):
        result = run(ensemble, market)
        assert result.equity.iloc[-1] > 0
        assert set(result.trades["ticker"]) <= set(market.tickers)
        assert len(result.trades)


def test_the_order_of_the_names_does_not_matter(market, ensemble):
    backwards = market.select(market.tickers[::-1])
    np.testing.assert_allclose(run(ensemble, backwards).equity, run(ensemble, market).equity, rtol=1e-6)


@pytest.mark.parametrize("features", [("return_5", "volume_shock_5"), ("volume_shock_5",)])
def test_a_feature_that_the_data_cannot_give_is_named(features):
    market = finpod.simulate_market(names=4, days=130, seed=1)
    setup = make_setup(market, features=features)
    setup = replace(setup, task=replace(setup.task, train=(70, 90), validation=(91, 100)))
    agent = train_slice(setup, settings(), None, STEPS_AN_UPDATE, STEPS_AN_UPDATE)
    ensemble = Ensemble([agent], name="by volume", trials=1, provenance={})
    assert len(run(ensemble, market).trades)
    closes = replace(market, open=None, high=None, low=None, volume=None)
    refused(r"by volume (was trained|needs) .*volume_shock_5", run, ensemble, closes, error=CheckpointError)


def test_own_features_are_given_back_when_it_is_loaded(market, tmp_path):
    trained = tiny_train(market, tmp_path / "own", features=["return_5", centred_log_price], agents=1, keep=1)
    loaded = load_ensemble(tmp_path / "own", features=[centred_log_price])
    np.testing.assert_array_equal(weights_by_day(loaded, market), weights_by_day(trained, market))
    assert run(loaded, market).to_json() == run(trained, market).to_json()
    assert loaded.provenance["features"] == ["return_5", "centred_log_price"]
    assert "own was trained on centred_log_price," in unreadable(tmp_path / "own")


def test_variants_are_the_runs_or_the_members_of_one(ensemble):
    assert [variant.name for variant in ensemble.variants] == ["member 0", "member 1"]
    one, two = ensemble.members
    several = Ensemble([one, two, two], runs=[7, 8, 8], name="several", trials=6, provenance={})
    assert [(variant.name, len(variant.members)) for variant in several.variants] == [("seed 7", 1), ("seed 8", 2)]
    assert [variant.trials for variant in several.variants] == [6, 6]
    assert Ensemble([one], name="alone", trials=1, provenance={}).variants == ()
    log = [{"run": run, "returns": [run, trial]} for run in (7, 8) for trial in (1, 2, 3)] + [{"run": 8, "returns": []}]
    searched = Ensemble([one, two], runs=[7, 8], name="both", trials=7, provenance={}, log=log, baseline=[0.0, 0.0])
    assert [table.tolist() for table in searched.tried] == [[[7, 7, 7], [1, 2, 3]], [[8, 8, 8], [1, 2, 3]]]
    assert len(searched.tried_over) == 2


def test_d19_a_foreign_or_damaged_folder_gives_one_line(folder, tmp_path, ensemble):
    copied = shutil.copytree(folder, tmp_path / "copy")
    manifest, member = copied / "ensemble.json", copied / "member-1.pt"
    whole, agent = manifest.read_text(), member.read_bytes()
    member.unlink()
    assert "member-1.pt" in unreadable(copied)
    member.write_bytes(b"")
    assert "member-1.pt" in unreadable(copied)
    member.write_bytes(agent)
    content = json.loads(whole)
    others = [{**content, **other} for other in ({"trials": None}, {"members": []}, {"choice": "recent"})]
    for text in ("{", *map(json.dumps, [*others, {"format": "finpod ensemble 0"}])):
        manifest.write_text(text)
        unreadable(copied)
    content["members"][0] = "../outside.pt"  # members are looked for in the folder alone
    manifest.write_text(json.dumps(content))
    (copied / "member-0.pt").rename(copied.parent / "outside.pt")
    assert "outside.pt" in unreadable(copied)
    manifest.write_text(whole)
    for change in ({"task_spec": {}}, {"policy_spec": {}}, {"weights": {}}):
        replace(ensemble.members[0], **change).save(copied / "member-0.pt")
        unreadable(copied)
