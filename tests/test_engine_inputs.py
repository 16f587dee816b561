"""What `backtest` takes: ready weights, decisions of all kinds, windows, and arguments that it refuses."""

import numpy as np
import pandas as pd
import pytest
from made_errors import refused
from made_markets import NAN, flat_market, intraday_market, make_market, random_market, random_weights
from made_strategies import does, strategy_of

from finpod import Costs, Strategy, StrategyError
from finpod.backtesting.engine import backtest
from finpod.rules import EqualWeight
from finpod.strategy import FeatureTable

pytestmark = pytest.mark.usefixtures("unaudited")


def test_ready_weights_are_the_strategy_that_returns_them(fill):
    market = random_market(days=30)
    weights = random_weights(market)
    ready = backtest(weights, market, start=market.dates[3], fill=fill)
    decided = backtest(strategy_of(weights, market), market, start=market.dates[3], fill=fill)
    assert ready.equity.tolist() == decided.equity.tolist()
    assert ready.weights.equals(decided.weights)
    assert ready.trades.equals(decided.trades)
    assert ready.turnover.equals(decided.turnover)
    assert ready.strategy == "weights"
    assert backtest(weights, market, name="mine").strategy == "mine"


def test_a_decision_may_be_an_array_a_series_a_dict_or_nothing():
    market = flat_market(10, 10, 10)
    for decision in (np.array([0.5, 0, 0.25]), [0.5, 0, 0.25], pd.Series({"C": 0.25, "A": 0.5}), {"A": 0.5, "C": 0.25}):
        result = backtest(does(lambda view, d=decision: d), market, costs=Costs(fee_bps=0))
        assert result.weights.iloc[-1].tolist() == pytest.approx([0.5, 0, 0.25])
    assert backtest(does(lambda view: None), market).trades.empty
    masked = does(lambda view: np.ma.masked_array([0.5, 0, 0], [True, False, False]))
    refused("nan for A", backtest, masked, market, error=StrategyError)


@pytest.mark.parametrize("zone", ["America/New_York", "UTC"])
def test_a25_ready_weights_may_have_a_clock(zone):
    market = random_market(days=20)
    table = pd.DataFrame(np.full(market.shape, 1 / market.shape[1]), market.dates, list(market.tickers))
    plain = backtest(table, market)
    for moved in (table.index.tz_localize(zone), (table.index + pd.Timedelta("16h")).tz_localize(zone)):
        assert backtest(table.set_axis(moved)[table.columns[::-1]], market).equity.equals(plain.equity)
    hourly = intraday_market(5)
    table = pd.DataFrame(np.full(hourly.shape, 1 / 3), hourly.dates, list(hourly.tickers))
    aware = table.tz_localize("UTC").tz_convert(zone)
    assert backtest(aware, hourly).equity.equals(backtest(table, hourly).equity)


def test_a_strategy_trained_with_other_fills_or_bars_is_warned_of():
    who = does(lambda view: None)
    who.provenance = {"fill": "open", "periods_per_year": 52, "trading": {"costs": {"fee_bps": 100.0, "impact": 0.0}}}
    warned = {one.code: one.data for one in backtest(who, random_market(days=30), fill="close").warnings}
    assert {"other_fill", "other_frequency", "other_costs"} <= set(warned)
    assert warned["other_costs"] == {"trained": ["fee_bps = 100"]}


def test_features_that_agents_lack_are_warned_of_and_validation_has_the_bars_per_year_of_training():
    who, market = does(lambda view: None), random_market(days=60, gaps=0)
    who.features, who.tried = ("return_5", "volatility_21"), [np.random.default_rng(0).normal(0, 0.01, (50, 4))]
    who.provenance = {"task": "stocks", "undefined": {"return_5": 0.2}, "periods_per_year": 52}
    result = backtest(who, market, start=market.dates[5])
    data = next(one.data for one in result.warnings if one.code == "undefined_features")
    undefined = np.isnan(FeatureTable(market).get(("volatility_21",))[1][5:59, :, 0])
    share = undefined[(market.member & market.has_bar)[5:59]].mean()
    assert data == {"count": 1, "worst": "volatility_21", "share": pytest.approx(share)}
    sharpe = np.sqrt(52) * who.tried[0].mean(0) / who.tried[0].std(0, ddof=1)
    assert result.search["sharpe_sd"] == pytest.approx(sharpe.std(ddof=1))
    late = backtest(who, market, start=market.dates[30])
    assert "undefined_features" not in {one.code for one in late.warnings}


def test_a_baseline_of_the_name_of_the_strategy_is_left_out():
    first = does(lambda view: np.eye(len(view.tickers))[0])
    market = random_market(days=40)
    runs = [backtest(first, market, examine=True, name=name) for name in ("mine", "minimum-variance", "equal weight")]
    names = [set(run.cost_sweep[10.0]) for run in runs]
    assert names == [{"mine"} | names[1] | {"equal weight"}, names[0] - {"mine"}, names[0] - {"mine"}]
    assert "minimum-variance" not in runs[1].baselines
    assert not any("equal weight" in name for name in backtest(EqualWeight(), market, examine=True).cost_sweep[10.0])


@pytest.mark.parametrize(("until", "within"), [("2024-01-03", True), ("2024-01-08", True), ("2024-01-02", False)])
def test_a_window_within_training_is_refused_or_marked(until, within):
    trained = does(lambda view: np.ones(1), trained_until=until, trials=12)
    market = make_market([10] * 10)
    if within:
        refused(f"2024-01-03.*{until}", backtest, trained, market, start="2024-01-03", about="start")
    result = backtest(trained, market, start="2024-01-03", allow_in_sample=True)
    assert result.in_sample == within
    assert (result.warnings[0].code == "in_sample") == within
    assert any(warning.code == "many_trials" and warning.data["trials"] == 12 for warning in result.warnings)


def raises(error):
    def rule(view):
        raise error

    return does(rule)


def gives(decision):
    return does(lambda view: decision)


@pytest.mark.parametrize(("strategy", "message"), [
    (gives([0.5, np.inf]), "does on 2024-01-01 .* inf for B"), (gives([0.5, 0.6]), "does on 2024-01-01 .* 1.100000"),
    (gives([0.5]), r"does on 2024-01-01 .* \(1,\)"), (gives({"A": 0.5, "ZZZ": 0.1}), "does on 2024-01-01 .*ZZZ"),
    (gives("all of it"), "does on 2024-01-01 .*str"), (gives({"A": "half"}), "does on 2024-01-01 .*dict"),
    (gives(pd.Series([0.1, 0.2], index=["A", "A"])), "does on 2024-01-01 .*A twice"),
    (raises(KeyError("A\nB")), r"does failed on 2024-01-01: KeyError: 'A\\nB'$"),
    (raises(SystemExit(0)), "does failed on 2024-01-01: SystemExit"),
    (does(lambda view: view.volumes(3)), r"does failed on 2024-01-01: volumes\(3\)"),
    (Strategy(), "failed on 2024-01-01: NotImplementedError"),
    *((does(None, trained_until=day), f"its trained_until .*{day}") for day in ("20181231", "2018", 2018, "soon")),
    (does(None, every=0), "every=0"), (does(None, trials=2.5), "trials=2.5"),
])  # fmt: skip
def test_a_decision_that_cannot_be_names_strategy_and_day(strategy, message):
    refused(message, backtest, strategy, flat_market(10, 10), error=StrategyError)


def test_c20_a_short_position_is_refused_as_long_only():
    for strategy in (gives(np.array([-0.5, 0.5])), np.tile([-0.5, 0.5], (4, 1))):
        refused(
            "on 2024-01-01 returned -0.5 for A.*long only", backtest, strategy, flat_market(10, 10), error=StrategyError
        )


HALVES = np.ones((4, 2)) / 2


@pytest.mark.parametrize(("wrong", "value"), [
    (HALVES[:3], r"\(3, 2\)"), (np.ones((0, 4, 2)), r"\(0, 4, 2\)"),
    (pd.DataFrame(HALVES, pd.date_range("2024-01-03", periods=4), ["A", "B"]), "2024-01-"),
    (pd.DataFrame(HALVES, columns=["A", "B"]), "index"), (EqualWeight, "EqualWeight"), ("momentum", "'momentum'"),
])  # fmt: skip
def test_what_is_no_strategy_is_refused(wrong, value):
    refused(value, backtest, wrong, make_market(np.full((4, 2), 10.0)), about="strategy")


@pytest.mark.parametrize(("options", "argument", "value"), [
    ({"start": "2024-01-03", "end": "2024-01-03"}, "end", "2024-01-03"),
    ({"start": "2024-01-04", "end": "2024-01-02"}, "end", "2024-01-02"),
    ({"start": "2030-01-01"}, "start", "2030-01-01"), ({"start": "soon"}, "start", "soon"),
    ({"cash": NAN}, "cash", "nan"), ({"delisting_return": "x"}, "delisting_return", "x"),
    ({"fill": "noon"}, "fill", "noon"), ({"risk_free": 5}, "risk_free", "5"), ({"costs": 10}, "costs", "10"),
    ({"name": 5}, "name", "5"), ({"name": ""}, "name", "''"), ({"opened": 0}, "opened", "0"), ({"fast": True}, "fast", "True"),
    ({"market": "sample"}, "market", "str"), ({"whole_shares": "no"}, "whole_shares", "no"),
])  # fmt: skip
def test_arguments_that_cannot_be_are_named_before_anything_is_run(options, argument, value):
    never = does(lambda view: pytest.fail("it was asked"))
    refused(value, backtest, never, about=argument, **{"market": make_market([10] * 6), **options})


def test_b27_both_ends_are_included():
    result = backtest(EqualWeight(), make_market([10] * 10), start="2024-01-06", end="2024-01-10")
    assert [f"{day:%d}" for day in result.equity.index] == ["08", "09", "10"]
