"""Many strategies on ready weights at once: equal to single runs, and a table that corrects the best for selection."""

import numpy as np
import pytest
import torch
from made_markets import NAN, make_market, random_market

from finpod.backtesting.batch import Backtests
from finpod.backtesting.engine import backtest
from finpod.errors import InputError, StrategyError
from finpod.rules import EqualWeight
from finpod.significance import expected_best
from finpod.trading.execution import build_execution
from finpod.trading.ledger import Costs
from finpod.trading.simulate import Terms, Window, simulate, simulate_totals
from finpod.weights import PrecomputedWeights

BOTH = pytest.mark.parametrize("fill", ["open", "close"])


def random_weights(market, count, seed=0, dtype=np.float64):
    """[S, T, N] that leave something in cash, with zeros, and days on which some or all of the strategies do nothing."""
    random = np.random.default_rng(seed)
    raw = random.random((count, *market.shape)) * (random.random((count, *market.shape)) < 0.7)
    weights = (
        raw / np.maximum(raw.sum(axis=-1, keepdims=True), 1e-9) * random.uniform(0.3, 0.99, (count, len(raw[0]), 1))
    )
    weights[random.random(weights.shape[:2]) < 0.2] = NAN
    weights[:, 5] = NAN
    return weights.astype(dtype)


@pytest.fixture
def ten():
    market = random_market(days=60)
    return backtest(random_weights(market, 10), market, start=market.dates[2])


# --- the accounts ---------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("whole_shares", [False, True])
def test_each_account_is_that_of_a_run_of_its_own(fill, whole_shares):
    market = random_market(days=40)
    many = random_weights(market, 4)
    terms = {"start": market.dates[2], "fill": fill, "costs": Costs(per_share=0.01), "whole_shares": whole_shares}
    together = backtest(many, market, delisting_return=-0.2, cash=5e4, **terms)
    for s, weights in enumerate(many):
        alone = backtest(weights, market, delisting_return=-0.2, cash=5e4, **terms)
        name = f"weights {s}"
        assert together.equity[name].tolist() == alone.equity.tolist()
        assert together.turnover[name].tolist() == alone.turnover.tolist()
        assert together.costs_paid[name].sum() == pytest.approx(alone.fees, rel=1e-12)
        assert together.delisted[name] == (alone.trades["kind"] == "delisted").sum()
        assert together.metrics.sharpe[s] == pytest.approx(alone.metrics.sharpe, rel=1e-12)
        by_day = alone.trades[alone.trades["kind"] == "fill"].groupby("date")["cost"].sum()
        paid = together.costs_paid[name]
        np.testing.assert_allclose(paid[paid > 0], by_day, rtol=1e-12)
        assert paid[paid > 0].index.equals(by_day.index)
    assert together.delisted.any()


@BOTH
@pytest.mark.parametrize(
    "terms", [Terms(), Terms(whole_shares=True, cash=300.0), Terms(costs=Costs(impact=0.5))], ids=str
)
def test_totals_are_the_sums_of_the_path(fill, terms):
    """Also on days on which every name can be dealt in, where unfilled orders are not looked for."""
    market = random_market(days=40, volume=np.full((40, 5), 1e4), member=np.arange(40)[:, None] % 4 > 0 + np.zeros(5))
    execution, weights = (
        build_execution(market, fill),
        torch.from_numpy(random_weights(market, 3).swapaxes(0, 1).copy()),
    )
    given = (execution, 0, 39, lambda _step, row, _seen: weights[row], terms, (3,))
    path, totals = simulate(*given), simulate_totals(*given)
    assert torch.equal(totals.equity, path.equity)
    assert torch.equal(totals.turnover, path.turnover)
    torch.testing.assert_close(totals.cost, path.cost.sum(-1), rtol=1e-12, atol=1e-12)
    assert totals.unfilled.tolist() == path.unfilled.sum((0, 2)).tolist()
    assert totals.delisted.tolist() == (path.delisted != 0).sum((0, 2)).tolist()
    assert totals.unfilled.any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_are_not_copied_and_may_be_read_only(dtype, tmp_path):
    market = random_market(days=30)
    many = random_weights(market, 3, dtype=dtype)
    np.save(tmp_path / "weights.npy", many)
    mapped = np.load(tmp_path / "weights.npy", mmap_mode="r")
    window = Window(market=market, execution=build_execution(market), first=1, last=29)
    assert np.shares_memory(PrecomputedWeights(many, "w", window)._table, many)
    np.testing.assert_array_equal(backtest(mapped, market).equity, backtest(many, market).equity)
    backwards = np.ascontiguousarray(many[:, ::-1])[:, ::-1]
    np.testing.assert_array_equal(backtest(backwards, market).equity, backtest(many, market).equity)


# --- what they hold -------------------------------------------------------------------------------------------------


def test_a_place_gives_the_whole_result(ten):
    assert isinstance(ten, Backtests)
    assert len(ten) == 10
    third, last = ten[2], ten[-1]
    assert third.strategy == "weights 2"
    assert third.equity.tolist() == ten.equity["weights 2"].tolist()
    assert last.strategy == "weights 9"
    assert [result.strategy for result in ten] == list(ten.equity.columns)
    assert third.weights.shape == (58, 5)
    assert third.trials == 10
    assert any(warning.code == "many_trials" and warning.data["trials"] == 10 for warning in third.warnings)


def test_a_part_is_a_group_of_its_own(ten):
    part = ten[2:9:3]
    assert list(part.equity.columns) == ["weights 2", "weights 5", "weights 8"]
    assert part[1].equity.tolist() == ten[5].equity.tolist()
    assert part[1:][0].strategy == "weights 5"
    assert part.metrics.sharpe.tolist() == ten.metrics.sharpe[2:9:3].tolist()
    assert part.unfilled.equals(ten.unfilled.iloc[2:9:3])
    ratios = part.metrics.sharpe  # luck is still that of all that were tried
    assert f"{ratios.mean() + expected_best(10, ratios.std(ddof=1)):.2f}" in str(part)
    for place, error in ((slice(10, 20), InputError), (10, IndexError), ("weights 1", InputError)):
        with pytest.raises(error, match=str(place).replace("(", r"\(").replace(")", r"\)")):
            _ = ten[place]


# --- the table ------------------------------------------------------------------------------------------------------


def test_the_table_sets_the_best_beside_the_best_of_luck(ten):
    lines = str(ten).splitlines()
    ratios = ten.metrics.sharpe
    assert lines[0] == "10 strategies, 2024-01-03 .. 2024-03-22"
    assert lines[1] == "10 bps fee a side; filled at the open; fractional shares"
    assert lines[3].split() == ["mean", "sd", "lowest", "median", "highest"]
    sharpe = next(line for line in lines if line.startswith("Sharpe")).split()[1:]
    wanted = [ratios.mean(), ratios.std(ddof=1), ratios.min(), np.median(ratios), ratios.max()]
    assert [float(cell) for cell in sharpe] == pytest.approx(wanted, abs=0.0051)
    luck = ratios.mean() + expected_best(10, ratios.std(ddof=1))
    assert lines[-3].startswith(f"weights {ratios.argmax()} has the highest Sharpe ratio, {ratios.max():.2f}.")
    assert "the 10 that were tried" in lines[-3]
    assert f" {luck:.2f}." in lines[-3]


def test_figures_that_are_undefined_are_left_out():
    market = make_market(np.full((30, 2), 10.0))
    idle = np.full((3, 30, 2), NAN)
    text = str(backtest(idle, market))
    assert next(line for line in text.splitlines() if line.startswith("Sharpe")).split()[1:] == ["n/a"] * 5
    assert "tried" not in text
    one = backtest(random_weights(random_market(), 1), random_market())
    assert "tried" not in str(one)
    assert str(one).startswith("1 strategy, ")


# --- what cannot be -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([0.5, NAN], "decided nan for B; weights must be finite"),
        ([-np.inf, 0.5], "decided -inf for A; weights must be finite"),
        ([np.inf, 0.5], "decided inf for A; weights must be finite"),
        ([np.inf, -np.inf], "decided inf for A; weights must be finite"),
        ([0.5, -0.25], "decided -0.25 for B; weights must not be negative"),
        ([0.75, 0.5], "decided weights that sum to 1.250000"),
    ],
)
def test_the_first_wrong_day_is_named(dtype, wrong, message):
    market = make_market(np.full((30, 2), 10.0), open=np.full((30, 2), 10.0))
    many = np.full((5, 30, 2), 0.5, dtype=dtype)
    many[1, 20], many[3, 20], many[2, 25] = wrong, [1, 1], [1, 1]
    many[:, 7], many[4, 8] = NAN, NAN  # that is nothing to trade, and not wrong
    with pytest.raises(StrategyError, match=f"^strategy weights 1 on {market.dates[20]!s:.10} {message}"):
        backtest(many, market)


def test_dust_below_zero_is_forgiven_however_often():
    market = make_market(np.full((10, 26), 10.0))
    dusty = np.full((2, 10, 26), -9e-7)
    dusty[:, :, 0] = 0.5
    np.testing.assert_array_equal(backtest(dusty, market).equity, backtest(dusty.clip(min=0), market).equity)
    dusty[1, 4, 7] = -1.1e-6
    with pytest.raises(StrategyError, match=r"strategy weights 1 on 2024-01-05 decided -1.1e-06 for H"):
        backtest(dusty, market)


# --- fast -----------------------------------------------------------------------------------------------------------


@BOTH
def test_fast_is_the_same_to_rounding(fill):
    market = random_market(days=80)
    many = random_weights(market, 2)
    for start in (None, market.dates[3]):
        slow, quick = (backtest(many[0], market, start=start, fill=fill, fast=fast) for fast in (False, True))
        for name in ("equity", "equal_weight_equity", "turnover"):
            np.testing.assert_allclose(getattr(quick, name), getattr(slow, name), rtol=1e-11, err_msg=name)
        np.testing.assert_allclose(quick.weights, slow.weights, atol=1e-11)
        assert quick.trades[["date", "ticker", "kind"]].equals(slow.trades[["date", "ticker", "kind"]])
        assert [(event.day, event.code, event.ticker) for event in quick.events] == [
            (event.day, event.code, event.ticker) for event in slow.events
        ]
        assert quick.metrics.sharpe == pytest.approx(slow.metrics.sharpe, rel=1e-9)
    together = backtest(many, market, fill=fill, fast=True)
    np.testing.assert_allclose(together[1].equity, together.equity["weights 1"], rtol=1e-11)


def test_a_strategy_cannot_be_run_fast():
    with pytest.raises(InputError, match="fast=True"):
        backtest(EqualWeight(), random_market(), fast=True)
