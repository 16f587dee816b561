"""Features against independent slow formulas, and their causality, gaps and constant inputs."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_errors import refused

from finpod import CheckpointError, DataError, InputError, MarketData
from finpod.features.panel import FEATURES, SETS, Scaling, build_panel, compute, resolve
from finpod.features.rolling import rolling_max, rolling_mean, rolling_moments

DAYS, NAMES = 300, 6
EVERYTHING = ("default", "published")
TABLES = ("open", "high", "low", "close", "volume")


def make_market(seed=0, **changes) -> MarketData:
    """A random market with bars everywhere; `changes` replace tables, None leaves one out."""
    random = np.random.default_rng(seed)
    close = 50 * np.exp(np.cumsum(random.normal(0, 0.01, (DAYS, 1)) + random.normal(0, 0.02, (DAYS, NAMES)), axis=0))
    opened = close * np.exp(random.normal(0, 0.01, close.shape))
    tables = {
        "close": close,
        "open": opened,
        "high": np.maximum(opened, close) * np.exp(random.exponential(0.01, close.shape)),
        "low": np.minimum(opened, close) * np.exp(-random.exponential(0.01, close.shape)),
        "volume": np.exp(random.normal(13, 0.5, close.shape)),
        "member": random.random(close.shape) < 0.9,
    } | changes
    return MarketData(
        dates=np.datetime64("2015-01-01") + np.arange(len(tables["close"])),
        tickers=tuple("ABCDEFGHIJKLMNOP"[: tables["close"].shape[1]]),
        benchmark_close=tables["close"].mean(axis=1),
        **tables,
    )


def with_gaps(market: MarketData, gaps) -> MarketData:
    """The market without the bars at `gaps`, a mask [T, N]."""
    tables = {name: np.where(gaps, np.nan, getattr(market, name)) for name in TABLES}
    return make_market(**tables, member=market.member)


@pytest.fixture(scope="module")
def market() -> MarketData:
    return make_market()


def value(market: MarketData, name: str) -> np.ndarray:
    """[T, N] one feature as float64."""
    return compute(market, name)[..., 0].double().numpy()


def price(market: MarketData) -> np.ndarray:
    return market.close


# --- each feature by its formula ---------------------------------------------------------------------------------------


def written_in_pandas(market):
    """Name -> (expected values, row of the first); the published indicators as stockstats writes them."""
    opened, high, low, close, volume = (pd.DataFrame(getattr(market, name)) for name in TABLES)
    logs, change, before, dollars = np.log(close), close.diff(), close.shift(), close * volume
    returns = close.pct_change(fill_method=None)
    rise, fall = ((change + sign * change.abs()) / 2 for sign in (1, -1))
    strength = rise.ewm(alpha=1 / 30).mean() / -fall.ewm(alpha=1 / 30).mean()
    typical = (high + low + close) / 3
    spread = typical.rolling(30).apply(lambda x: np.abs(x - x.mean()).mean(), raw=True)
    up, down = high.diff().clip(lower=0), (-low.diff()).clip(lower=0)
    true_range = np.maximum(high - low, np.maximum((high - before).abs(), (low - before).abs()))
    average = true_range.ewm(alpha=1 / 30).mean()
    plus = 100 * up.where(up > down, 0).ewm(span=30).mean() / average
    minus = 100 * down.where(down > up, 0).ewm(span=30).mean() / average
    return {
        **{f"return_{n}": (logs - logs.shift(n), n) for n in (5, 63, 126, 252)},
        "momentum_12_1": (logs.shift(21) - logs.shift(252), 252),
        "high_252_distance": (np.log(close / close.rolling(252).max()), 251),
        "volatility_21": (returns.rolling(21).std(), 21),
        "volatility_63": (returns.rolling(63).std(), 63),
        "log_dollar_volume_63": (np.log(dollars.rolling(63).mean()), 62),
        "amihud_63": (np.log((returns.abs() / dollars).rolling(63).mean()), 63),
        "volume_shock_5": (np.log(dollars.rolling(5).mean() / dollars.rolling(63).mean()), 62),
        "intraday_return_21": (np.log(close / opened).rolling(21).mean(), 20),
        "macd": (close.ewm(span=12, adjust=True).mean() - close.ewm(span=26, adjust=True).mean(), 25),
        "boll_ub": (close.rolling(20).mean() + 2 * close.rolling(20).std(), 19),
        "boll_lb": (close.rolling(20).mean() - 2 * close.rolling(20).std(), 19),
        "rsi_30": (100 - 100 / (1 + strength), 30),
        "cci_30": ((typical - typical.rolling(30).mean()) / (0.015 * spread), 29),
        "dx_30": (100 * (plus - minus).abs() / (plus + minus), 30),
        "close_30_sma": (close.rolling(30).mean(), 29),
        "close_60_sma": (close.rolling(60).mean(), 59),
    }


def test_features_equal_their_formulas_in_pandas(market):
    for name, (expected, since) in written_in_pandas(market).items():
        got = value(market, name)
        assert np.isnan(got[:since]).all(), name
        np.testing.assert_allclose(got[since:], expected.to_numpy()[since:], rtol=2e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("name", "window", "per_asset"), [("turbulence", 252, False), ("turbulence_63", 63, True)])
def test_turbulence_is_the_ledoit_wolf_mahalanobis_distance_of_the_members(market, name, window, per_asset):
    from sklearn.covariance import ledoit_wolf

    returns = pd.DataFrame(market.close).pct_change(fill_method=None)
    got = value(market, name)
    assert np.isnan(got[: window + 1]).all()
    for day in range(window + 1, DAYS, 7):
        chosen = np.flatnonzero(market.member[day])
        history = returns.iloc[day - window : day, chosen]
        standardised = (history - history.mean()) / history.std(ddof=0)
        correlation, _ = ledoit_wolf(standardised.to_numpy(), assume_centered=True)
        today = ((returns.iloc[day, chosen] - history.mean()) / history.std(ddof=0)).to_numpy()
        expected = today @ np.linalg.inv(correlation) @ today / (len(chosen) if per_asset else 1)
        np.testing.assert_allclose(got[day], expected, rtol=2e-6)


@pytest.mark.parametrize(("day", "asset"), [(252, 0), (299, 5)])
def test_regressions_on_time_and_on_the_members_equal_weight_return(market, day, asset):
    returns = pd.DataFrame(market.close).pct_change(fill_method=None)
    benchmark = returns.where(market.member).mean(axis=1).to_numpy()

    def regress(first, stop):
        x, y = benchmark[first:stop], returns[asset].to_numpy()[first:stop]
        beta, alpha = np.polyfit(x, y, 1)
        return alpha, beta, np.sqrt(np.square(y - alpha - beta * x).sum() / (len(x) - 2)), len(x)

    alpha, _, noise, count = regress(day - 251, day - 20)
    beta = regress(day - 251, day + 1)[1]
    window = np.log(market.close)[day - 125 : day + 1, asset]
    slope = np.polyfit(np.arange(126), window, 1)[0]
    expected = {
        "residual_momentum_12_1": alpha / noise * count**0.5,
        "beta_252": beta,
        "residual_return_21": (returns[asset] - beta * benchmark)[day - 20 : day + 1].sum(),
        "idiosyncratic_volatility_63": regress(day - 62, day + 1)[2],
        "smooth_momentum_126": 252 * slope * np.corrcoef(np.arange(126), window)[0, 1] ** 2,
    }
    assert {name: value(market, name)[day, asset] for name in expected} == pytest.approx(expected, rel=1e-4)


def test_no_price_level_in_the_default_set(market):
    """A split or dividend of later years multiplies all adjusted prices of an asset: no observation may show it."""
    factor = np.array([0.01, 0.5, 1, 2, 30, 100])
    prices = {name: getattr(market, name) * factor for name in ("open", "high", "low", "close")}
    moved = make_market(**prices, volume=market.volume / factor, member=market.member)
    np.testing.assert_allclose(compute(moved), compute(market), rtol=1e-4, atol=1e-6)


# --- time --------------------------------------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None)
@given(day=st.integers(0, DAYS - 2), seed=st.integers(0, 2**32 - 1))
def test_rows_do_not_change_by_a_bit_when_every_later_row_becomes_noise(day, seed):
    random = np.random.default_rng(seed)
    market = with_gaps(make_market(seed=seed), random.random((DAYS, NAMES)) < 0.02)
    noise = {}
    for name in (*TABLES, "member"):
        table = np.array(getattr(market, name), dtype=np.float64)
        after = np.exp(random.normal(0, 5, table[day + 1 :].shape))
        after[random.random(after.shape) < 0.2] = np.nan
        table[day + 1 :] = after
        noise[name] = np.nan_to_num(table) > 0.5 if name == "member" else table
    before, now = (compute(data, EVERYTHING)[: day + 1].view(torch.int32) for data in (market, make_market(**noise)))
    assert torch.equal(before, now)


# --- gaps, listings, constants -----------------------------------------------------------------------------------------


def test_gaps_leave_the_day_undefined_and_the_window_to_the_bars_that_exist(market):
    gaps = np.zeros((DAYS, NAMES), dtype=bool)
    gaps[260:263, 1] = True
    halted = with_gaps(market, gaps)
    assert compute(halted, EVERYTHING)[260:263, 1].isnan().all()
    returns = pd.DataFrame(halted.close).pct_change(fill_method=None)[1]
    assert value(halted, "volatility_21")[264, 1] == pytest.approx(returns[244:265].std(), rel=1e-5)
    week = np.log(halted.close[266, 1] / halted.close[259, 1])
    assert value(halted, "return_5")[266, 1] == pytest.approx(week, rel=1e-5)
    gaps[258:263, 1] = True
    assert np.isnan(value(with_gaps(market, gaps), "volatility_21")[264, 1]), "15 of 21 returns are too few"


@pytest.mark.parametrize("window", [1, 5, 63, 400])
def test_windows_of_any_length(window):
    table = np.random.default_rng(1).normal(5, 1, (DAYS, 2))
    table[40:45, 1] = np.nan
    rolling = pd.DataFrame(table).rolling(window, min_periods=int(np.ceil(0.8 * window)))
    np.testing.assert_allclose(rolling_mean(torch.tensor(table), window), rolling.mean(), rtol=1e-12)
    np.testing.assert_allclose(rolling_max(torch.tensor(table), window), rolling.max(), rtol=1e-12)
    rows, _, deviation = rolling_moments(torch.tensor(table)[None], window)
    np.testing.assert_allclose(deviation[0, 0] / rows, rolling.var(ddof=0), atol=1e-12)


def test_b10_a_new_listing_keeps_its_place_and_waits_for_its_own_warm_up(market):
    gaps = np.zeros((DAYS, NAMES), dtype=bool)
    gaps[:100, 4] = True
    listed = with_gaps(market, gaps)
    for name, definition in FEATURES.items():
        since = max(definition.warm_up + (0 if definition.market_wide else 100), 100)
        values = value(listed, name)[:, 4]
        assert np.isnan(values[:since]).all(), name
        assert np.isfinite(values[since:]).all(), name
    panel = build_panel(listed, price, fit=(0, 200))
    np.testing.assert_array_equal(panel.among[:, 4], market.member[:, 4] & (np.arange(DAYS) >= 100))
    assert panel.features[:100, 4].abs().max() == 0


@pytest.mark.parametrize("names", [1, NAMES])
def test_b33_constant_prices_are_never_infinite(names):
    flat = np.full((DAYS, names), 0.1)
    prices = dict.fromkeys(("open", "high", "low", "close"), flat)
    values = compute(make_market(**prices, volume=flat * 1e7, member=flat > 0), EVERYTHING)
    assert not values.isinf().any()
    member = torch.ones(DAYS, names, dtype=torch.bool)
    scaling = Scaling.fit(values, member, 0, DAYS, names=list(FEATURES), kinds=[one.kind for one in FEATURES.values()])
    assert scaling.apply(values, member).eq(0).all()
    assert not compute(make_market(volume=np.zeros((DAYS, NAMES))), EVERYTHING).isinf().any()


def test_a_close_only_market_leaves_features_out_by_name():
    market = make_market(**dict.fromkeys(("open", "high", "low", "volume", "member")))
    kept, left_out = resolve(market)
    assert left_out == ("log_dollar_volume_63", "amihud_63", "intraday_return_21", "volume_shock_5")
    assert set(kept) | set(left_out) == set(SETS["default"])
    assert resolve(market, "published")[1] == ("cci_30", "dx_30")
    refused("amihud_63", resolve, market, "amihud_63")


def test_sets_names_and_functions_mix(market):
    def range_today(market):
        return torch.tensor(market.high / market.low)

    kept, _ = resolve(market, ["return_5", "published", range_today, "return_5"])
    assert kept == ("return_5", *SETS["published"], range_today)
    np.testing.assert_allclose(value(market, range_today), market.high / market.low, rtol=1e-6)


def feature(name, function):
    function.__name__ = name
    return function


def infinite(market):
    return np.where((np.arange(DAYS)[:, None] == 7) & (np.arange(NAMES) == 2), np.inf, market.close)


@pytest.mark.parametrize(("features", "kind", "value"), [
    ("momentum_12_l", InputError, "did you mean momentum_12_1"), ([3], InputError, "3"), ([], InputError, "empty"),
    (lambda market: market.close, InputError, "<lambda>"),
    (feature("wrong", lambda market: market.close[0]), InputError, r"wrong .*\(6,\)"),
    ([feature("twin", lambda market: market.close) for _ in range(2)], InputError, "twin"),
    (feature("mine", lambda market: 1 / 0), InputError, "mine .*ZeroDivisionError"),
    (feature("text", lambda market: np.full(market.shape, "high")), InputError, "text .*ValueError"),
    (feature("broken", infinite), DataError, "broken of C on 2015-01-08"),
    ("beta_252", InputError, r"beta_252 .*100\.0%"),
    (feature("flat", lambda market: market.close * 0 + 1), InputError, "flat"),
])  # fmt: skip
def test_features_that_cannot_be_used(market, features, kind, value):
    caught = refused(value, build_panel, market, features, fit=(0, 100), error=kind)
    assert kind is DataError or caught.argument == "features"
    for options, word in (({}, "fit="), ({"fit": (0, 400)}, "0:400")):
        refused(word, build_panel, market, price, **options)


def test_a_panel_is_finite_and_on_its_device(market):
    gaps = np.random.default_rng(3).random((DAYS, NAMES)) < [0, 0, 0, 0.05, 0.05, 0.05]
    panel = build_panel(with_gaps(market, gaps), EVERYTHING, fit=(252, 280))
    assert panel.features.isfinite().all()
    assert (panel.features.abs() <= 5).all()
    np.testing.assert_array_equal(panel.among, market.member & ~gaps)
    assert panel.features[270:].ne(0).any(dim=1).any(dim=0).all(), "every feature tells something"


def test_a_given_scaling_is_used_unchanged_and_travels_as_json(market):
    trained = build_panel(market.rows(0, 280), fit=(0, 280)).scaling
    assert Scaling.from_dict(json.loads(json.dumps(trained.to_dict()))) == trained
    panel = build_panel(market, scaling=trained)
    assert panel.scaling is trained
    np.testing.assert_allclose(panel.features, build_panel(market, fit=(0, 280)).features, atol=1e-4)


@pytest.mark.parametrize(("trained", "features", "value"), [
    (["return_5", "return_63"], ["return_5", "beta_252"], "beta_252, return_63"),
    (["return_5", "return_63"], ["return_63", "return_5"], "return_5, return_63"), (price, None, "price"),
])  # fmt: skip
def test_a_scaling_of_other_features_is_refused(market, trained, features, value):
    scaling = build_panel(market, trained, fit=(0, 200)).scaling
    refused(value, build_panel, market, features, scaling=scaling, error=CheckpointError)


# --- scaling -----------------------------------------------------------------------------------------------------------


def test_b02_scaling_is_fitted_on_training_rows_only():
    raw, member = torch.tensor([1.0, 2, 3, 4, 100, 200])[:, None, None], torch.ones(6, 1, dtype=torch.bool)
    scaling = Scaling.fit(raw, member, 0, 4, names=["x"], kinds=["pooled"])
    assert scaling.mean[0] == 2.5
    assert scaling.sd[0] == pytest.approx(1.118033989, abs=1e-9)
    expected = [-1.341641, -0.447214, 0.447214, 1.341641, 5, 5]
    np.testing.assert_allclose(scaling.apply(raw, member)[:, 0, 0], expected, atol=1e-6)
    assert scaling == Scaling.fit(raw[:4], member[:4], 0, 4, names=["x"], kinds=["pooled"])


def test_cross_scaling_is_by_the_days_members():
    raw = torch.tensor([[1.0, 2, 3, 10, 1000, np.nan]])[..., None]
    member = torch.tensor([[True, True, True, False, False, True]])
    scaling = Scaling.fit(raw, member, 0, 1, names=["x"], kinds=["cross"])
    z = 1 / np.sqrt(2 / 3)
    np.testing.assert_allclose(scaling.apply(raw, member)[0, :, 0], [-z, 0, z, 3, 3, 0], atol=1e-6)
    assert (scaling.mean, scaling.sd) == ((2.0,), (pytest.approx(np.sqrt(2 / 3)),))


@pytest.mark.parametrize("damage", [{"names": ["a", "b"]}, {"mean": None}, {"sd": [float("nan")]}, {"kinds": ["rank"]}])
def test_a_damaged_scaling_is_refused(damage):
    stored = {"names": ["x"], "kinds": ["cross"], "mean": [0.0], "sd": [1.0]}
    refused("", Scaling.from_dict, stored | damage, error=CheckpointError)
