"""The public functions accept a name, a file or a folder in place of a Strategy or a run."""

import inspect
from pathlib import Path

import numpy as np
import pytest
from made_agents import tiny_train
from made_errors import refused
from made_markets import random_market
from made_results import make_result

import finpod
from finpod.backtesting import engine
from finpod.errors import InputError, StrategyError
from finpod.rules import RULES

MINE = """
import finpod

class First(finpod.Strategy):
    def decide(self, view):
        return {view.tickers[0]: 1.0}

class Second(finpod.Strategy):
    def decide(self, view):
        return {view.tickers[1]: 1.0}
"""


@pytest.fixture(scope="module")
def market():
    return random_market(days=330, gaps=0, volume=np.full((330, 5), 1e6))


@pytest.fixture
def work(apart):
    (apart / "strategies").mkdir()
    (apart / "strategies" / "mine.py").write_text(MINE)
    return apart


def test_g22_backtest_takes_the_name_of_a_strategy(market):
    start = market.dates[300]
    result = finpod.backtest("dollar-volume", market, start=start)
    assert result.to_json() == finpod.backtest(finpod.load_strategy("dollar-volume"), market, start=start).to_json()


@pytest.mark.parametrize("path", [str, Path])
def test_g22_backtest_and_audit_take_a_file(work, market, path):
    start = market.dates[300]
    result = finpod.backtest(path("strategies/mine.py:Second"), market, start=start, costs=finpod.Costs(fee_bps=0))
    assert result.weights.iloc[-1, 1] == pytest.approx(1.0)
    verdict = finpod.audit(path("strategies/mine.py:Second"), market, days=2, start=start)
    assert verdict.passed
    assert verdict.subject == "strategy Second"


def test_g22_backtest_and_audit_take_a_trained_folder(work, market):
    ensemble = tiny_train(market, work / "strategies" / "first")
    options = {"start": market.dates[200], "end": market.dates[220], "examine": False}
    by_folder = finpod.backtest("strategies/first", market, **options)
    assert by_folder.trained_until == ensemble.trained_until
    np.testing.assert_array_equal(by_folder.equity, finpod.backtest(ensemble, market, **options).equity)
    window = {"start": market.dates[200], "end": market.dates[205]}
    assert finpod.audit(work / "strategies" / "first", market, days=1, **window).passed


def test_g22_compare_and_load_result_take_names_and_folders(work):
    for seed, name in enumerate(("one", "two")):
        make_result(days=60, seed=seed).save(work / "backtests" / name)
    one, two = (finpod.load_result(work / "backtests" / name) for name in ("one", "two"))
    assert finpod.load_result("one").to_json() == one.to_json()
    expected = finpod.compare([one, two], names=["one", "two"]).to_json()
    assert finpod.compare(["one", Path("backtests/two")]).to_json() == expected
    assert finpod.compare([one, "two"], names=["one", "two"]).to_json() == expected
    refused(r"backtests/onee does not exist; did you mean one\?", finpod.compare, ["onee", two])
    assert finpod.compare(iter([one, "two"]), names=["one", "two"]).to_json() == expected


@pytest.mark.parametrize(("results", "value"), [("one", "1"), (None, "None"), (3, "3"), ([None, 3], "None"), ([], "0")])
def test_what_is_no_list_of_runs_is_one_line(work, results, value):
    make_result(days=60).save(work / "backtests" / "one")
    refused(f"{value}.*; pass", finpod.compare, results)
    refused("run is", finpod.load_result, results if results != "one" else 5)


@pytest.mark.parametrize(("spec", "error", "message"), [
    ("momentum-12", InputError, "there is no strategy 'momentum-12'; did you mean momentum-12-1?"),
    ("zzz", InputError, "there is no strategy 'zzz'; give a .py file, the folder of a trained ensemble or one of benchmark-hold"),
    ("gone/one.py:Half", InputError, "there is no strategy 'gone/one.py:Half'; "),
    ("mine.py", InputError, "there is no strategy 'mine.py'; did you mean strategies/mine.py?"),
    ("strategies/mein", InputError, "there is no strategy 'strategies/mein'; did you mean strategies/mine.py?"),
    ("strategies", StrategyError, "strategies has no agents trained on a market"),
    ("notes.txt", StrategyError, "notes.txt is not a strategy; give a .py file, the folder of a trained ensemble or one of "),
    (engine.Strategy, InputError, "<class 'finpod.strategy.Strategy'> is not a strategy; give an instance"),
])  # fmt: skip
def test_g22_what_is_no_strategy_is_one_line(work, market, spec, error, message):
    (work / "notes.txt").write_text("x")
    for call in (finpod.load_strategy, lambda spec: finpod.audit(spec, market)):
        assert str(refused("", call, spec, error=error)).startswith(message)


def test_strategies_and_weights_are_passed_on_and_the_signature_is_the_engines(market):
    strategy = RULES["momentum"]()
    assert finpod.load_strategy(strategy) is strategy
    assert inspect.signature(finpod.backtest) == inspect.signature(engine.backtest)
    refused("the weights have shape", finpod.backtest, [1.0], market)
