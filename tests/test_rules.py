"""The baselines: hand-worked weights, who qualifies, what happens when a solver or a package fails."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from made_markets import NAN, make_market, random_market

from finpod.backtesting.engine import backtest
from finpod.backtesting.sentences import warning_sentence
from finpod.errors import StrategyError
from finpod.lookahead.audit import audit
from finpod.market.data import MarketData
from finpod.records import ResultWarning
from finpod.rules import (
    BASELINES,
    LEAST,
    MONTH,
    YEAR,
    Baseline,
    DollarVolume,
    HierarchicalRiskParity,
    InverseVolatility,
    MinimumVariance,
    TwelveOneMomentum,
    available,
    baselines_for,
    common_span,
    inverse_volatility,
    returns_of,
)
from finpod.strategy import MarketView

DAILY = np.tile([1.0, -1.0], YEAR // 2)
"""A return that changes its sign each day."""
PAIRS = np.tile([1.0, 1.0, -1.0, -1.0], YEAR // 4)
"""One that changes its sign every other day; over a year it has no correlation with the first."""


VOLUME = np.random.default_rng(6).lognormal(10, 1, (340, 12))
"""Volumes for markets of 12 names."""


def prices(*steps):
    """Closes [253, N] from 100 with the given returns [252]."""
    return 100 * np.cumprod(np.vstack([np.zeros(len(steps)), np.column_stack(steps)]) + 1, axis=0)


def at_the_end(market, **account):
    return MarketView(market, len(market.dates) - 1, **account)


@pytest.fixture(scope="module")
def noise():
    """Two years of eight names with a common factor, all members, without gaps."""
    random = np.random.default_rng(5)
    steps = random.normal(0, 0.01, (500, 1)) + random.normal(0, 1, (500, 8)) * np.linspace(0.005, 0.03, 8)
    close = 50 * np.cumprod(1 + steps, axis=0)
    opened = close * np.exp(random.normal(0, 0.002, close.shape))
    return make_market(close, open=opened, volume=random.lognormal(10, 1, close.shape))


def intraday():
    days = pd.bdate_range("2024-01-01", periods=60)
    dates = np.concatenate([day + pd.timedelta_range("9h30min", periods=6, freq="1h") for day in days])
    close = 50 * np.cumprod(1 + np.random.default_rng(0).normal(0, 0.002, (len(dates), 3)), axis=0)
    return MarketData(dates=dates, tickers=tuple("ABC"), close=close, benchmark_close=close.mean(axis=1))


# --- weights ------------------------------------------------------------------------------------------------------


def test_inverse_volatility_by_hand():
    """Deviations of 1 and 2 percent: two thirds and one third."""
    market = make_market(prices(0.01 * DAILY, 0.02 * PAIRS))
    np.testing.assert_allclose(InverseVolatility().decide(at_the_end(market)), [2 / 3, 1 / 3], rtol=1e-9)


def test_hierarchical_risk_parity_of_two_names_by_hand():
    """Two clusters of one name share by variance, 1 to 4: four fifths and one fifth."""
    market = make_market(prices(0.01 * DAILY, 0.02 * PAIRS))
    np.testing.assert_allclose(HierarchicalRiskParity().decide(at_the_end(market)), [0.8, 0.2], rtol=1e-9)


def test_minimum_variance_of_two_names_by_hand():
    """Without correlation the weights go by one over the variance, which the shrinkage draws toward the mean variance."""
    from sklearn.covariance import ledoit_wolf

    steps = np.column_stack([0.01 * DAILY, 0.02 * PAIRS])
    shrunk, amount = ledoit_wolf(steps)
    inverse = 1 / np.diag(shrunk)
    weights = MinimumVariance().decide(at_the_end(make_market(prices(*steps.T))))
    assert 0 < amount < 0.1
    np.testing.assert_allclose(weights, inverse / inverse.sum(), atol=1e-5)
    assert 0.75 < weights[0] < 0.8


def test_minimum_variance_beats_every_other_portfolio_of_its_covariance(noise):
    from sklearn.covariance import ledoit_wolf

    weights = MinimumVariance().decide(at_the_end(noise))
    shrunk, _ = ledoit_wolf(returns_of(at_the_end(noise)))
    others = np.vstack([np.eye(8), np.random.default_rng(0).dirichlet(np.ones(8), 500), np.full(8, 1 / 8)])
    assert weights @ shrunk @ weights <= np.einsum("ri,ij,rj->r", others, shrunk, others).min() + 1e-12
    assert weights.min() >= 0


def test_inverse_volatility_is_that_of_skfolio(noise):
    from skfolio.optimization import InverseVolatility as Model

    steps = returns_of(at_the_end(noise))
    np.testing.assert_allclose(inverse_volatility(steps), Model().fit(steps).weights_, rtol=1e-12)


def test_momentum_takes_the_strongest_tenth_of_the_year_without_its_last_month():
    """20 names with a year: two are held. The price of 252 sessions ago is row 0 of 253, that of 21 sessions ago row 231."""
    close = np.full((YEAR + 1, 21), 100.0)
    close[YEAR - MONTH, [3, 7, 11]] = [150, 140, 130]
    close[-1, 5] = 900  # this month does not count
    close[0, 9] = NAN  # not there a year ago
    held = TwelveOneMomentum().decide(at_the_end(make_market(close)))
    assert held.tolist() == [0.5 if column in (3, 7) else 0 for column in range(21)]
    member = np.ones(close.shape, dtype=bool)
    member[-1, 3] = False
    assert TwelveOneMomentum().decide(at_the_end(make_market(close, member=member))).nonzero()[0].tolist() == [
        7
    ]  # 19 are left


def test_momentum_prices_a_missing_bar_at_the_last_one_before_it():
    close = np.full((YEAR + 3, 20), 100.0)
    close[-1 - MONTH, 4], close[-2 - MONTH, 4] = NAN, 200
    assert TwelveOneMomentum().decide(at_the_end(make_market(close))).nonzero()[0].tolist() == [
        0,
        4,
    ]  # a tie goes by column


# --- who qualifies ------------------------------------------------------------------------------------------------


def test_returns_span_gaps_and_begin_after_the_first_bar():
    """B24: 100, nothing, 110 is no return, then ten percent."""
    close = np.full((YEAR + 1, 2), 100.0)
    close[:10, 1], close[20, 1], close[21:, 1] = NAN, NAN, 110
    steps = returns_of(at_the_end(make_market(close)))
    assert np.isnan(steps[:10, 1]).all()
    assert steps[10:22, 1] == pytest.approx([0] * 10 + [0.1, 0])
    assert common_span(steps).shape == (YEAR - 10, 2)


@pytest.mark.parametrize("kind", [InverseVolatility, MinimumVariance, HierarchicalRiskParity])
def test_names_that_are_new_flat_missing_or_no_members_get_nothing(noise, kind):
    close, member = np.array(noise.close), np.ones(noise.shape, dtype=bool)
    close[: -LEAST - 1, 0] = NAN  # 126 returns: enough
    close[:-LEAST, 1] = NAN  # 125: one too few
    close[:, 2] = 7.0  # never moved
    close[-1, 3] = NAN  # no bar today
    member[-1, 4] = False
    weights = kind().decide(at_the_end(make_market(close, member=member)))
    assert (weights[[0, 5, 6, 7]] > 0).all()
    assert weights[[1, 2, 3, 4]].tolist() == [0, 0, 0, 0]
    assert weights.sum() == pytest.approx(1, abs=1e-12)


def test_a_name_with_few_bars_over_a_long_time_is_new_too(noise):
    close = np.array(noise.close)
    close[-YEAR:-1, 0][np.arange(YEAR - 1) % 2 == 0] = NAN
    close[-3, 0] = NAN  # 125 bars are left, and every return is known
    assert InverseVolatility().decide(at_the_end(make_market(close)))[0] == 0


@pytest.mark.parametrize("kind", [kind for kind in BASELINES.values() if kind is not DollarVolume])
def test_with_fewer_than_two_names_that_qualify_the_members_are_held_in_equal_parts(noise, kind):
    early = noise.rows(0, 100)
    np.testing.assert_array_equal(kind().decide(at_the_end(early)), np.full(8, 1 / 8))
    nobody = make_market(early.close, member=np.zeros(early.shape, dtype=bool))
    assert kind().decide(at_the_end(nobody)).tolist() == [0] * 8
    close = np.array(noise.close)
    close[:-50, 1:] = NAN
    np.testing.assert_array_equal(kind().decide(at_the_end(make_market(close))), np.full(8, 1 / 8))


# --- running ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("fill", ["open", "close"])
def test_every_baseline_runs_on_ragged_data_and_repeats_itself(name, fill):
    market = random_market(days=340, names=12, gaps=0.02, volume=VOLUME[:340])
    results = [backtest(BASELINES[name](), market, start=market.dates[260], fill=fill) for _ in range(2)]
    assert results[0].strategy == name
    often = 80 // BASELINES[name].every  # monthly on days 0, 21, 42, 63 of 80, weekly on 16
    assert often <= (results[0].turnover > 0).sum() <= often + 1
    assert np.isfinite(results[0].equity).all()
    np.testing.assert_array_equal(results[0].equity.to_numpy(), results[1].equity.to_numpy())


@pytest.mark.parametrize("name", BASELINES)
def test_no_baseline_looks_ahead(name):
    market = random_market(days=320, names=12, gaps=0.02, volume=VOLUME[:320])
    assert audit(BASELINES[name](), market, start=market.dates[255], days=3).passed


class Broken(Baseline):
    """Finds no weights: raises, or returns what it is given."""

    name = "broken"

    def __init__(self, found=None):
        super().__init__()
        self.found = found

    def weigh(self, steps):
        if self.found is None:
            raise ArithmeticError("no solution")
        return np.broadcast_to(self.found, steps.shape[1:])


@pytest.mark.parametrize("found", [None, NAN, np.inf, 0.0, -1.0])
def test_a_failed_solver_is_counted_and_inverse_volatility_held(noise, found):
    broken, view = Broken(found), at_the_end(noise, step=21)
    np.testing.assert_array_equal(broken.decide(view), InverseVolatility().decide(view))
    broken.decide(view)
    assert broken.failures == 2
    broken.decide(at_the_end(noise, step=0))
    assert broken.failures == 1


def test_weights_are_made_to_sum_to_one_without_negative_dust(noise):
    found = np.array([-1e-9, 2, 1, 1, 0, 0, 0, 0])
    assert Broken(found).decide(at_the_end(noise)).tolist() == [0, 0.5, 0.25, 0.25, 0, 0, 0, 0]


def test_d22_without_the_package_one_line_says_so(noise, monkeypatch):
    monkeypatch.setitem(sys.modules, "skfolio", None)
    for name in list(sys.modules):
        if name.startswith("skfolio."):
            monkeypatch.setitem(sys.modules, name, None)
    for kind in (MinimumVariance, HierarchicalRiskParity):
        with pytest.raises(
            StrategyError, match=rf"{kind.name} needs the package skfolio, .*; pip install skfolio"
        ) as raised:
            backtest(kind(), noise, start=noise.dates[300])
        assert "\n" not in str(raised.value)
    assert available() == ("inverse-volatility", "momentum-12-1", "dollar-volume")
    kept, why = baselines_for(noise)
    assert [strategy.name for strategy in kept] == list(available())
    missing = {"rules": ["minimum-variance", "hierarchical-risk-parity"], "package": "skfolio"}
    assert why == [ResultWarning("rules_missing", missing)]


def test_all_are_available_for_daily_data(noise):
    kept, why = baselines_for(noise)
    assert ([strategy.name for strategy in kept], why) == (list(BASELINES), [])
    assert available() == tuple(BASELINES)


def test_without_volumes_the_rule_that_needs_them_is_left_out_with_a_warning(noise):
    bare = make_market(noise.close, open=noise.open)
    kept, why = baselines_for(bare)
    assert [strategy.name for strategy in kept] == list(BASELINES)[:-1]
    assert why == [ResultWarning("rules_without_volumes", {"rules": ["dollar-volume"]})]
    assert warning_sentence(why[0]) == "dollar-volume is left out: the data have no volumes"
    with pytest.raises(StrategyError, match=r"dollar-volume failed on .*: anchor 'dollar-volume' needs volumes"):
        backtest(DollarVolume(), bare)


def test_none_for_intraday_data():
    market = intraday()
    kept, why = baselines_for(market)
    assert kept == []
    assert why[0].code == "rules_daily_only"
    assert "momentum-12-1" in why[0].data["rules"]
    with pytest.raises(StrategyError, match="inverse-volatility is a rule for daily bars, and these are intraday"):
        backtest(InverseVolatility(), market)


def test_the_module_loads_no_torch_and_no_skfolio():
    heavy = {"torch", "pandas", "skfolio", "scipy", "sklearn"}
    check = f"import sys, finpod.rules; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.shared
def test_on_the_nasdaq_100_point_in_time(shared):
    """Only members of the day are held, no solver fails, and less variance is what minimum variance has."""
    from finpod import load_market

    folder = shared / "data"
    market = load_market(folder / "nasdaq100_daily.parquet", members=folder / "nasdaq100_members.csv")
    volatility = {}
    for name, kind in BASELINES.items():
        strategy = kind()
        result = backtest(strategy, market, start="2020-01-02", end="2020-06-30")
        member = market.member[market.row_of("2020-01-02")]
        assert set(result.weights.columns[result.weights.iloc[1] > 1e-9]) <= set(np.array(market.tickers)[member])
        assert getattr(strategy, "failures", 0) == 0
        volatility[name] = result.metrics.volatility
    assert result.strategy == "dollar-volume"
    assert min(volatility, key=volatility.__getitem__) == "minimum-variance"
    assert volatility["minimum-variance"] < 0.95 * result.equal_weight_metrics.volatility
