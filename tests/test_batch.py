"""Many strategies on ready weights at once: equal to single runs, and a table that corrects the best for selection."""

from dataclasses import replace

import numpy as np
import pytest
from made_errors import refused
from made_markets import NAN, make_market, random_market

from finpod import Costs, StrategyError
from finpod.backtesting.batch import Backtests
from finpod.backtesting.engine import backtest
from finpod.significance import expected_best
from finpod.trading.execution import build_execution
from finpod.trading.simulate import Window
from finpod.weights import PrecomputedWeights


def random_weights(market, count):
    """[S, T, N] that leave something in cash, with zeros, and days on which some or all of the strategies do nothing."""
    random = np.random.default_rng(0)
    raw = random.random((count, *market.shape)) * (random.random((count, *market.shape)) < 0.7)
    raw *= random.uniform(0.3, 0.99, (count, len(raw[0]), 1)) / np.maximum(raw.sum(axis=-1, keepdims=True), 1e-9)
    raw[random.random(raw.shape[:2]) < 0.2] = NAN
    raw[:, 5] = NAN
    return raw


@pytest.fixture
def ten():
    market = random_market(days=60)
    return backtest(random_weights(market, 10), market, start=market.dates[2])


@pytest.mark.parametrize("whole_shares", [False, True])
def test_each_account_is_that_of_a_run_of_its_own(fill, whole_shares):
    market = random_market(days=40)
    many, costs = random_weights(market, 3), Costs(per_share=0.01)
    terms = {"start": market.dates[2], "fill": fill, "costs": costs, "whole_shares": whole_shares, "cash": 5e4}
    together = backtest(many, market, delisting_return=-0.2, **terms)
    for s, weights in enumerate(many):
        alone, name = backtest(weights, market, delisting_return=-0.2, **terms), f"weights {s}"
        assert together.equity[name].tolist() == alone.equity.tolist()
        assert together.turnover[name].tolist() == alone.turnover.tolist()
        assert together.metrics.sharpe[s] == pytest.approx(alone.metrics.sharpe, rel=1e-12)
        by_day = alone.trades[alone.trades["kind"] == "fill"].groupby("date")["cost"].sum()
        paid = together.costs_paid[name]
        np.testing.assert_allclose(paid[paid > 0], by_day, rtol=1e-12)
        assert paid[paid > 0].index.equals(by_day.index)
    assert (alone.trades["kind"] == "delisted").any()


def test_weights_are_not_copied_and_may_be_read_only():
    market = random_market(days=30)
    many = random_weights(market, 3)
    window = Window(market=market, execution=build_execution(market), first=1, last=29)
    assert np.shares_memory(PrecomputedWeights(many, "w", window)._table, many)
    many.flags.writeable = False
    assert np.isfinite(backtest(many, market).equity).all(axis=None)


def test_a_place_gives_the_whole_result(ten):
    assert isinstance(ten, Backtests)
    third = ten[2]
    assert third.equity.tolist() == ten.equity["weights 2"].tolist()
    assert [result.strategy for result in ten] == list(ten.equity.columns)
    assert (ten[-1].strategy, third.weights.shape, third.trials) == ("weights 9", (58, 5), 10)
    with pytest.raises(IndexError):
        _ = ten[10]


def test_the_best_is_compared_with_the_best_of_luck(ten):
    ratios = ten.metrics.sharpe
    line = next(line for line in str(ten).splitlines() if line.startswith(f"weights {ratios.argmax()} "))
    assert f" {ratios.mean() + expected_best(10, ratios.std(ddof=1)):.2f}." in line
    assert "Sharpe" not in str(backtest(np.full((3, 30, 2), NAN), make_market(np.full((30, 2), 10.0))))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("wrong", "message"), [([0.5, NAN], "nan for B"), ([0.75, 0.5], "1.250000")])
def test_the_first_wrong_day_is_named(dtype, wrong, message):
    market = make_market(np.full((30, 2), 10.0), open=np.full((30, 2), 10.0))
    many = np.full((5, 30, 2), 0.5, dtype=dtype)
    many[1, 20], many[3, 20], many[2, 25] = wrong, [1, 1], [1, 1]
    many[:, 7], many[4, 8] = NAN, NAN  # that is nothing to trade, and not wrong
    told = f"^strategy weights 1 on {market.dates[20]!s:.10} .*{message}"
    refused(told, backtest, many, market, error=StrategyError)


@pytest.mark.parametrize("first", [0, 3])
def test_fast_is_the_same_to_rounding(fill, first):
    market = random_market(days=80)
    many, start = random_weights(market, 2), market.dates[first]
    slow, quick = (backtest(many[0], market, start=start, fill=fill, fast=fast) for fast in (False, True))
    for name in ("equity", "equal_weight_equity", "turnover"):
        np.testing.assert_allclose(getattr(quick, name), getattr(slow, name), rtol=1e-11, err_msg=name)
    np.testing.assert_allclose(quick.weights, slow.weights, atol=1e-11)
    assert quick.trades[["date", "ticker", "kind"]].equals(slow.trades[["date", "ticker", "kind"]])
    assert [replace(event, shares=0) for event in quick.events] == [replace(event, shares=0) for event in slow.events]
    together = backtest(many, market, start=start, fill=fill, fast=True)
    np.testing.assert_allclose(together[1].equity, together.equity["weights 1"], rtol=1e-11)
