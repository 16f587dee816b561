"""Replays at other costs and account sizes, and random portfolios with the turnover of the account."""

import numpy as np
import pytest
import torch
from made_markets import NAN, intraday_market, make_market, random_market
from made_strategies import does

import finpod.evidence.replays as module
from finpod.backtesting.engine import backtest
from finpod.evidence.replays import capacity, concentration, cost_sweep, drawn, random_portfolios, replay
from finpod.loading import load_strategy
from finpod.strategy import Strategy, equal_parts
from finpod.trading.execution import build_execution
from finpod.trading.ledger import Costs, value
from finpod.trading.simulate import Terms, Window, simulate
from finpod.weights import decisions_of


def window_of(market, fill=None, first=0, last=None) -> Window:
    last = len(market.dates) - 1 if last is None else last
    return Window(market=market, execution=build_execution(market, fill), first=first, last=last)


def path_of(window, decide, terms=None, accounts=()):
    decide = decisions_of(decide, "one", window) if isinstance(decide, Strategy) else decide
    return simulate(window.execution, window.first, window.last, decide, terms or Terms(), accounts)


def moody(window: Window, seed: int = 0):
    """Decisions that heed the account, are left out on some days and keep some cash."""
    draws = np.random.default_rng(seed).dirichlet(np.ones(len(window.market.tickers) + 1), len(window.market.dates))

    def decide(step, row, seen):
        if step % 3 == 1:
            return None
        held = seen.shares * window.execution.mark[row] / value(seen.cash, seen.shares, window.execution.mark[row])
        return 0.5 * held.clamp(max=0.5) + 0.5 * torch.from_numpy(draws[row, 1:])

    return decide


def flat_window(days=12, dollars=5e7):
    """One name at 100 of which `dollars` are dealt in a day; its volatility in the first session counts as 3%."""
    return window_of(make_market([100.0] * days, open=[100.0] * days, volume=np.full((days, 1), dollars / 100)))


def bought_once(window: Window, weight: float) -> torch.Tensor:
    targets = torch.full((window.last - window.first, len(window.market.tickers)), NAN, dtype=torch.float64)
    targets[0] = weight
    return targets


@pytest.mark.parametrize(
    "terms",
    [
        Terms(),
        Terms(cash=5_000, whole_shares=True, costs=Costs(fee_bps=3, slippage_bps=4, per_share=0.02)),
        Terms(cash=1e7, delisting_return=-0.5, costs=Costs(fee_bps=0, impact=1.0)),
    ],
    ids=["plain", "whole", "impact"],
)
@pytest.mark.parametrize(("fill", "first"), [("open", 4), ("close", 0)])
def test_the_same_decisions_on_the_same_terms_are_the_same_path(fill, first, terms):
    volume = np.random.default_rng(0).lognormal(9, 1, (60, 6))
    window = window_of(random_market(60, 6, volume=volume), fill, first, 55)
    alone = [path_of(window, moody(window, seed), terms) for seed in range(2)]
    again = replay({f"{seed}": path.targets for seed, path in enumerate(alone)}, window, terms)
    for seed, path in enumerate(alone):
        for own, other in zip(path, again, strict=True):
            assert torch.equal(own.nan_to_num(nan=-1), other[:, seed].nan_to_num(nan=-1))


def test_the_sweep_charges_each_fee_beside_the_other_costs():
    """Half of the cash bought once in a flat market: fee and slippage of that half are the whole loss."""
    window = flat_window()
    targets = {"one": bought_once(window, 0.5), "none": bought_once(window, NAN)}
    swept = cost_sweep(targets, window, Terms(costs=Costs(fee_bps=99, slippage_bps=2)))
    assert list(swept) == [0, 5, 10, 20, 50, 99]
    lost = [swept[fee]["one"]["total_return"] for fee in swept]
    assert lost == pytest.approx([-0.5 * bps / 10_000 for bps in (2, 7, 12, 22, 52, 101)], rel=1e-9)
    assert set(swept[5]["one"]) == {"total_return", "cagr", "sharpe", "rank"}
    assert np.isnan(swept[10]["none"]["sharpe"])
    assert [swept[10][name]["rank"] for name in targets] == [1, 2]  # what is undefined comes last


def test_a_fee_turns_the_ranks_around_and_equals_share_one():
    """Out of a rising name on every day it falls: the better for it until each way out and in costs half a percent."""
    steps = np.where(np.arange(40) % 2, 0.01, -0.001)
    window = window_of(make_market(100 * np.cumprod(1 + steps)), "close", 1)
    timing, holding = torch.tensor(steps[2:, None] > 0, dtype=torch.float64), bought_once(window, 1.0)
    swept = cost_sweep({"timing": timing, "holding": holding, "twin": holding}, window, Terms())
    assert [[at["rank"] for at in swept[fee].values()] for fee in (0, 50)] == [[1, 2, 2], [3, 1, 1]]


def test_capacity_is_worked_by_hand_and_needs_volumes():
    """Half a million is a hundredth of the day's volume: 3% sqrt(1/100) = 30 bps of it; a hundred times that, ten times."""
    window = flat_window()
    for impact, factor in ((0.0, 1.0), (0.5, 0.5)):  # that of the terms goes before the usual one
        found = capacity({"one": bought_once(window, 0.5)}, window, Terms(costs=Costs(fee_bps=0, impact=impact)))
        assert list(found) == [1e6, 1e7, 1e8, 1e9]
        lost = [factor * 0.5 * 0.03 * 0.1 * 10 ** (k / 2) for k in range(4)]
        assert [found[size]["one"]["total_return"] for size in found] == pytest.approx([-x for x in lost], rel=1e-9)
        assert [found[size]["one"]["costs"] for size in found] == pytest.approx([x * 252 / 11 for x in lost], rel=1e-9)
    window = window_of(random_market())
    assert capacity({"one": bought_once(window, 0.5)}, window, Terms()) == {}


class Wandering(Strategy):
    """Softmax of scores that wander."""

    def __init__(self, sharpness=1.0, speed=0.3, every=1, invested=1.0):
        self.sharpness, self.speed, self.every, self.invested = sharpness, speed, every, invested

    def decide(self, view):
        if view.step == 0:
            self.random = np.random.default_rng(3)
            self.score = self.random.normal(size=len(view.tickers))
        noise = self.random.normal(size=len(self.score))
        self.score = np.sqrt(1 - self.speed**2) * self.score + self.speed * noise
        raw = np.exp(self.sharpness * self.score) * (view.member & view.tradable)
        return self.invested * raw / max(raw.sum(), 1e-9)


EQUAL = load_strategy("equal-weight")


def run(strategy, market, fill=None, terms=None, **options):
    """Path and window of a strategy over a whole market, and what `random_portfolios` returns."""
    window, terms = window_of(market, fill), terms or Terms()
    path = path_of(window, strategy, terms)
    return path, window, *random_portfolios(path, window, terms, **options)


@pytest.fixture(scope="module")
def market():
    """Eighty sessions of twenty members whose prices wander."""
    random = np.random.default_rng(1)
    close = 50 * np.cumprod(1 + random.normal(0.0003, 0.02, (80, 20)), axis=0)
    return make_market(close, open=close * np.exp(random.normal(0, 0.003, close.shape)))


STYLES = {
    "daily": Wandering(),
    "monthly": Wandering(0.8, 0.5, every=21),
    "concentrated": Wandering(4.0, 0.3),
    "half in cash": Wandering(1.0, 0.3, invested=0.5),
    "equal weight": EQUAL,
}


@pytest.mark.parametrize("style", STYLES)
def test_turnover_size_of_bets_and_cash_are_those_of_the_account(market, style, fill):
    window = window_of(market, fill)
    path = path_of(window, STYLES[style])
    theirs = drawn(path, window, Terms(), 30, 0)
    np.testing.assert_allclose(theirs.turnover.mean(0), float(path.turnover.mean()), rtol=0.01)
    assert random_portfolios(path, window, Terms(), count=4)[2] == pytest.approx(1, abs=0.01)
    names, own = (np.nanmean(concentration(one, window)[1]) for one in (theirs, path))
    assert names == pytest.approx(own, rel=0.1)


def test_where_all_names_move_alike_everybody_makes_the_same():
    """As much in cash, and as much lost to costs."""
    rise = 10 * np.cumprod(1 + np.random.default_rng(0).normal(0.01, 0.01, 60))[:, None] * np.ones(12)
    path, _, found, *_ = run(Wandering(1.0, 0.3, invested=0.5), make_market(rise, open=rise), count=20)
    np.testing.assert_allclose(found.to_numpy(), path.equity.numpy()[:, None].repeat(20, 1), rtol=0.01)


def test_they_trade_when_the_account_does_and_only_members_on_ragged_data(fill):
    window = window_of(random_market(60, 8, gaps=0.1), fill)
    path = path_of(window, Wandering(every=2))
    theirs = drawn(path, window, Terms(), 7, 0)
    np.testing.assert_array_equal(theirs.turnover.numpy().any(1) > 0, path.turnover.numpy() > 0)
    bought = (theirs.traded > 0).any(1).numpy()
    assert not bought[~window.execution.member.numpy()[window.decision_rows.clip(min=0)]].any()
    assert torch.isfinite(theirs.equity).all()
    np.testing.assert_allclose(theirs.turnover.mean(0), float(path.turnover.mean()), rtol=0.05)


def test_portfolios_are_drawn_in_groups_that_fit_into_memory(market, monkeypatch):
    monkeypatch.setattr(module, "HELD_AT_ONCE", 3 * 80 * 20)
    found = run(Wandering(2.0), market, count=8)[2]
    assert list(found.columns) == [f"random {r}" for r in range(1, 9)]
    assert found.iloc[-1].nunique() == 8


def test_a_strategy_that_replaces_all_its_assets_at_once_is_told_that_they_trade_less(market):
    members = np.arange(20) % 2
    swaps = does(lambda view: equal_parts(members == view.step % 2))
    notes = {note.code: note.data for note in backtest(swaps, market, examine=True).warnings}
    assert 0.4 < notes["random_turnover"]["share"] < 0.9


@pytest.mark.parametrize(("strategy", "market", "reason"), [
    (Wandering(invested=0.0), random_market(gaps=0), "never_traded"),
    (EQUAL, make_market([10.0, 11, 12, 11]), "one_asset"), (EQUAL, intraday_market(), "intraday"),
])  # fmt: skip
def test_where_there_are_none_the_reason_is_told(strategy, market, reason):
    _, _, found, code, _ = run(strategy, market)
    assert (found.empty, code) == (True, reason)


def test_a14_ruin_ends_no_portfolio():
    """All three names leave and are worth nothing: everybody is ruined, and nothing is NaN."""
    close = np.full((8, 4), 10.0)
    close[4:, :3] = NAN
    market = make_market(close, member=np.tile([True, True, True, False], (8, 1)))
    members = does(lambda view: equal_parts(view.member))
    path, _, found, *_ = run(members, market, terms=Terms(delisting_return=-1.0), count=5)
    assert path.equity[-1] == pytest.approx(0, abs=1e-6)
    assert (found.iloc[-1] < 1e-6).all()
    assert np.isfinite(found.to_numpy()).all()
