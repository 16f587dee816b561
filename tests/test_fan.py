"""The fan of random portfolios: as much turnover, as large bets and as much cash as the account they stand beside."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_markets import make_market, random_market

import finpod.evidence.fan as fans
from finpod.errors import InputError
from finpod.evidence.fan import fan, habits_of, turned
from finpod.strategy import BuyAndHold, EqualWeight, Strategy, equal_parts
from finpod.trading.execution import build_execution
from finpod.trading.simulate import Terms, Window, simulate
from finpod.weights import decisions_of


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


class Hopping(Strategy):
    """All in one name, another each day."""

    def decide(self, view):
        return np.eye(len(view.tickers))[view.step % len(view.tickers)]


class Idle(Strategy):
    """Nothing at all."""

    def decide(self, view):
        return np.zeros(len(view.tickers))


def window_of(market, fill=None, first=0, last=None):
    return Window(
        market=market, execution=build_execution(market, fill), first=first, last=last or len(market.dates) - 1
    )


def run(strategy, market, fill=None, terms=None, **options):
    """Path, window and fan of a strategy over a whole market."""
    window, terms = window_of(market, fill), terms or Terms()
    path = simulate(window.execution, window.first, window.last, decisions_of(strategy, "one", window), terms)
    return path, window, fan(path, window, terms, **options)


@pytest.fixture(scope="module")
def market():
    """Eighty sessions of twenty members whose prices wander."""
    random = np.random.default_rng(1)
    close = 50 * np.cumprod(1 + random.normal(0.0003, 0.02, (80, 20)), axis=0)
    return make_market(close, open=close * np.exp(random.normal(0, 0.003, close.shape)))


STYLES = {
    "daily": Wandering(),
    "slow": Wandering(0.5, 0.05),
    "monthly": Wandering(0.8, 0.5, every=21),
    "concentrated": Wandering(4.0, 0.3),
    "half in cash": Wandering(1.0, 0.3, invested=0.5),
    "equal weight": EqualWeight(),
}


@pytest.mark.parametrize("fill", ["open", "close"])
@pytest.mark.parametrize("style", STYLES)
def test_turnover_size_of_bets_and_cash_are_those_of_the_account(market, style, fill):
    path, window, found = run(STYLES[style], market, fill, count=30)
    habits = habits_of(path, window)
    assert found.equity.shape == (80, 30)
    np.testing.assert_allclose(found.turnover, habits.turnover.mean(), rtol=0.01)
    assert found.effective_names.mean() == pytest.approx(np.nanmean(habits.effective), rel=0.1)


@pytest.mark.parametrize("invested", [1.0, 0.5])
def test_where_all_names_move_alike_everybody_makes_the_same(invested):
    """As much in cash, and as much lost to costs."""
    rise = 10 * np.cumprod(1 + np.random.default_rng(0).normal(0.01, 0.01, 60))
    market = make_market(rise[:, None] * np.ones(12), open=rise[:, None] * np.ones(12))
    path, _, found = run(Wandering(1.0, 0.3, invested=invested), market, count=20)
    assert path.equity[-1] > 1.2e6
    np.testing.assert_allclose(found.equity.to_numpy(), path.equity.numpy()[:, None].repeat(20, 1), rtol=0.01)


def test_each_portfolio_goes_its_own_way_unless_there_is_no_choice(market):
    ends = run(Wandering(2.0), market, count=30)[2].equity.iloc[-1]
    assert ends.nunique() == 30
    assert ends.std() > 0.02 * ends.mean()
    path, _, alike = run(EqualWeight(), market, count=30)
    np.testing.assert_allclose(alike.equity.iloc[-1], path.equity[-1], rtol=0.01)


def test_most_of_an_account_that_hops_is_matched_too(market):
    path, _, found = run(Hopping(), market, count=40)
    assert path.turnover.mean() > 1.9
    np.testing.assert_allclose(found.turnover, path.turnover.mean(), rtol=0.02)
    assert found.effective_names.mean() < 1.2


def test_they_trade_on_the_days_on_which_the_account_traded(market):
    window, terms = window_of(market), Terms()
    path = simulate(window.execution, 0, 79, decisions_of(Wandering(every=7), "one", window), terms)
    portfolios = fans._Portfolios(
        habits_of(path, window), fans._spread_table(20, 0), window, 5, np.random.default_rng(0)
    )
    theirs = simulate(window.execution, 0, 79, portfolios, terms, (5,))
    np.testing.assert_array_equal(theirs.turnover.numpy() > 0, np.tile(path.turnover.numpy()[:, None] > 0, 5))


def test_buy_and_hold_is_met_by_portfolios_that_buy_once(market):
    path, _, found = run(BuyAndHold(), market, count=10)
    assert (path.turnover > 0).sum() == 1
    np.testing.assert_allclose(found.turnover * 79, path.turnover.sum(), rtol=1e-9)


@pytest.mark.parametrize("fill", ["open", "close"])
def test_only_members_are_bought_on_ragged_data_and_all_stays_finite(fill):
    ragged = random_market(60, 8, gaps=0.1)
    window, terms = window_of(ragged, fill), Terms()
    path = simulate(window.execution, 0, 59, decisions_of(Wandering(), "one", window), terms)
    portfolios = fans._Portfolios(
        habits_of(path, window), fans._spread_table(6, 0), window, 7, np.random.default_rng(0)
    )
    theirs = simulate(window.execution, 0, 59, portfolios, terms, (7,))
    rows = window.decision_rows[:, None]
    bought = (theirs.traded > 0).any(1).numpy()
    assert not bought[~window.execution.member.numpy()[rows.clip(min=0)[:, 0]]].any()
    assert torch.isfinite(theirs.equity).all()
    np.testing.assert_allclose(theirs.turnover.mean(0), float(path.turnover.mean()), rtol=0.05)


def test_the_same_seed_gives_the_same_fan(market):
    path, window, first = run(Wandering(), market, count=20)
    again, other = fan(path, window, Terms(), count=20), fan(path, window, Terms(), count=20, seed=1)
    np.testing.assert_array_equal(first.equity.to_numpy(), again.equity.to_numpy())
    assert not np.array_equal(first.equity.to_numpy(), other.equity.to_numpy())


def test_a_large_fan_is_run_a_few_at_a_time(market, monkeypatch):
    monkeypatch.setattr(fans, "HELD_AT_ONCE", 3 * 80 * 20)
    path, _, found = run(Wandering(), market, count=8)
    assert list(found.equity.columns) == [f"random {r}" for r in range(1, 9)]
    assert found.equity.iloc[-1].nunique() == 8
    assert len(found.turnover) == len(found.effective_names) == 8
    np.testing.assert_allclose(found.turnover, float(path.turnover.mean()), rtol=0.01)


def test_the_dates_are_those_of_the_window(market):
    window, terms = window_of(market, first=10, last=30), Terms(cash=500.0)
    path = simulate(window.execution, 10, 30, decisions_of(EqualWeight(), "one", window), terms)
    equity = fan(path, window, terms, count=2).equity
    np.testing.assert_array_equal(equity.index.to_numpy(), window.dates)
    assert equity.index.name == "date"
    assert equity.iloc[0].tolist() == [500, 500]


# --- where there is little to go by -------------------------------------------------------------------------------


def test_an_account_that_never_traded_has_no_fan(market):
    found = run(Idle(), market)[2]
    assert found.equity.empty
    assert found.reason == "never_traded"


def test_a_market_of_one_name_has_no_fan():
    found = run(EqualWeight(), make_market([10.0, 11, 12, 11]))[2]
    assert found.equity.empty
    assert found.reason == "one_asset"


def test_intraday_data_have_no_fan(market):
    dates = market.dates[0] + np.timedelta64(9, "h") + np.timedelta64(10, "m") * np.arange(6)
    found = run(EqualWeight(), replace(market.rows(0, 6), dates=dates, last_bar=None))[2]
    assert found.equity.empty
    assert found.reason == "intraday"


def test_one_day(market):
    path, _, found = run(Wandering(), market.rows(0, 2), count=9)
    assert found.equity.shape == (2, 9)
    np.testing.assert_allclose(found.turnover, float(path.turnover[0]), rtol=0.01)


def test_a14_ruin_ends_no_fan():
    """All three names leave and are worth nothing: everybody is ruined, and nothing is NaN."""
    close = np.full((8, 3), 10.0)
    close[4:] = np.nan
    close = np.hstack([close, np.full((8, 1), 10.0)])
    market = make_market(close, member=np.tile([True, True, True, False], (8, 1)))

    class Members(Strategy):
        def decide(self, view):
            return equal_parts(view.member)

    path, _, found = run(Members(), market, terms=Terms(delisting_return=-1.0), count=5)
    assert path.equity[-1] == pytest.approx(0, abs=1e-6)
    assert (found.equity.iloc[-1] < 1e-6).all()
    assert np.isfinite(found.equity.to_numpy()).all()


def test_a_fan_needs_a_portfolio(market):
    path, window, _ = run(EqualWeight(), market.rows(0, 5), count=1)
    with pytest.raises(InputError, match="count is 0; it must be a whole number from 1 on"):
        fan(path, window, Terms(), count=0)


# --- one trade ----------------------------------------------------------------------------------------------------


def trade(held, budget, *, invested=1.0, spread=1.0, beside=0.0):
    random = np.random.default_rng(0)
    held = np.asarray(held, dtype=float)
    z, noise = random.standard_normal((2, *held.shape))
    state = np.full(len(held), beside), np.full(len(held), budget)
    return z, turned(z, noise, held, *state, invested, spread)


def test_the_trade_is_as_large_as_the_budget():
    held = np.random.default_rng(1).dirichlet(np.ones(30), 50) * 0.9
    held = trade(held, 9.9)[1][0]  # weights that such a z can give
    _, (target, part, _) = trade(held, 0.3, invested=0.9)
    reached = part[:, None] * (target - held)
    np.testing.assert_allclose(np.abs(reached).sum(axis=1), 0.3, atol=0.02)
    np.testing.assert_allclose(target.sum(axis=1), 0.9)


def test_a_budget_below_the_way_back_goes_a_part_of_it():
    """From cash to equal parts of all is a way of one; with a budget of a quarter, a quarter is bought and z stays."""
    z, (target, part, latent) = trade(np.zeros((2, 4)), 0.25, spread=0.0)
    np.testing.assert_allclose(target, 0.25)
    np.testing.assert_allclose(part, 0.25)
    np.testing.assert_array_equal(latent, z)


def test_what_is_sold_of_other_names_counts():
    """Half the account in names that are no members any more: selling them and buying equal parts is a way of one."""
    _, (_, part, _) = trade(np.full((1, 2), 0.25), 0.5, spread=0.0, beside=0.5)
    np.testing.assert_allclose(part, [0.5])


def test_a_budget_that_cannot_be_spent_is_not_an_error():
    _, (target, part, _) = trade(np.full((3, 5), 0.2), 7.0)
    assert part.tolist() == [1, 1, 1]
    np.testing.assert_allclose(target.sum(axis=1), 1)


def test_the_effective_number_of_log_normal_weights():
    """exp(-s^2) of the names for a small s and many names."""
    table = fans._spread_table(500, 0)
    assert table[0] == pytest.approx(1)
    assert (np.diff(table) < 0).all()
    assert np.interp(0.5, fans._SPREADS, table) == pytest.approx(np.exp(-0.25), rel=0.05)
    assert table[-1] == pytest.approx(1 / 500, rel=0.1)


@pytest.mark.shared
def test_the_fan_of_momentum_on_the_nasdaq_100(shared):
    """On the real window: turnover to one percent, ten names, and most of the fan near equal weight."""
    from finpod import load_market
    from finpod.rules import TwelveOneMomentum

    folder = shared / "data"
    market = load_market(folder / "nasdaq100_daily.parquet", members=folder / "nasdaq100_members.csv")
    first, last = market.window("2020-01-02", "2020-12-31")
    window, terms = window_of(market, "open", first, last), Terms()
    path = simulate(window.execution, first, last, decisions_of(TwelveOneMomentum(), "momentum", window), terms)
    found = fan(path, window, terms, count=30)
    np.testing.assert_allclose(found.turnover, float(path.turnover.mean()), rtol=0.01)
    assert found.effective_names.mean() == pytest.approx(10, rel=0.1)
    totals = found.equity.iloc[-1] / terms.cash - 1
    assert 0.2 < totals.median() < 0.7
    assert path.equity[-1] / terms.cash - 1 > totals.quantile(0.75)
