"""Features against independent slow formulas, and their causality, gaps and constant inputs."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finpod.errors import CheckpointError, DataError, InputError
from finpod.features.panel import FEATURES, SETS, Scaling, build_panel, compute, resolve
from finpod.features.rolling import rolling_max, rolling_mean, rolling_moments
from finpod.market.data import MarketData, forward_fill
from finpod.synthetic import simulate_market

DAYS, NAMES = 300, 6
EVERYTHING = ("default", "published")


def make_market(days=DAYS, names=NAMES, seed=0, close_only=False, **changes) -> MarketData:
    """A random market with bars everywhere; `changes` replace tables."""
    random = np.random.default_rng(seed)
    close = 50 * np.exp(np.cumsum(random.normal(0, 0.01, (days, 1)) + random.normal(0, 0.02, (days, names)), axis=0))
    opened = close * np.exp(random.normal(0, 0.01, close.shape))
    tables = {
        "close": close,
        "open": opened,
        "high": np.maximum(opened, close) * np.exp(random.exponential(0.01, close.shape)),
        "low": np.minimum(opened, close) * np.exp(-random.exponential(0.01, close.shape)),
        "volume": np.exp(random.normal(13, 0.5, close.shape)),
        "member": random.random(close.shape) < 0.9,
    } | changes
    if close_only:
        tables = {"close": tables["close"]}
    return MarketData(
        dates=np.datetime64("2015-01-01") + np.arange(len(tables["close"])),
        tickers=tuple("ABCDEFGHIJKLMNOP"[: tables["close"].shape[1]]),
        benchmark_close=tables["close"].mean(axis=1),
        **tables,
    )


def with_gaps(market: MarketData, gaps) -> MarketData:
    """The market without the bars at `gaps`, an index of [T, N]."""
    tables = {name: np.array(getattr(market, name)) for name in ("open", "high", "low", "close", "volume")}
    for table in tables.values():
        table[gaps] = np.nan
    return make_market(**tables, member=market.member)


@pytest.fixture(scope="module")
def market() -> MarketData:
    return make_market()


def value(market: MarketData, name: str) -> np.ndarray:
    """[T, N] one feature as float64."""
    return compute(market, name)[..., 0].double().numpy()


def frame(market: MarketData, table: str) -> pd.DataFrame:
    return pd.DataFrame(getattr(market, table))


def market_returns(market: MarketData) -> tuple[pd.DataFrame, np.ndarray]:
    returns = frame(market, "close").pct_change(fill_method=None)
    return returns, returns.where(market.member).mean(axis=1).to_numpy()


def assert_close(got: np.ndarray, expected, *, since: int) -> None:
    """Equal to float32 precision from row `since` on, undefined before it."""
    expected = np.asarray(expected, dtype=np.float64)
    assert np.isnan(got[:since]).all()
    assert np.isfinite(expected[since:]).all()
    np.testing.assert_allclose(got[since:], expected[since:], rtol=2e-6, atol=2e-7)


# --- published indicators, as stockstats writes them in pandas ---------------------------------------------------------


def test_macd_and_moving_averages(market):
    close = frame(market, "close")
    slow, fast = close.ewm(span=26, adjust=True).mean(), close.ewm(span=12, adjust=True).mean()
    np.testing.assert_allclose(value(market, "macd")[25:], (fast - slow)[25:], atol=1e-6)
    assert_close(value(market, "close_30_sma"), close.rolling(30).mean(), since=29)
    assert_close(value(market, "close_60_sma"), close.rolling(60).mean(), since=59)
    assert_close(value(market, "boll_ub"), close.rolling(20).mean() + 2 * close.rolling(20).std(), since=19)
    assert_close(value(market, "boll_lb"), close.rolling(20).mean() - 2 * close.rolling(20).std(), since=19)


def test_rsi(market):
    change = frame(market, "close").diff()
    up, down = ((change + sign * change.abs()) / 2 for sign in (1, -1))
    strength = up.ewm(alpha=1 / 30).mean() / -down.ewm(alpha=1 / 30).mean()
    assert_close(value(market, "rsi_30"), 100 - 100 / (1 + strength), since=30)


def test_cci(market):
    typical = (frame(market, "high") + frame(market, "low") + frame(market, "close")) / 3
    rolling = typical.rolling(30)
    spread = rolling.apply(lambda x: np.abs(x - x.mean()).mean(), raw=True)
    assert_close(value(market, "cci_30"), (typical - rolling.mean()) / (0.015 * spread), since=29)


def test_dx_with_the_average_true_range_written_out(market):
    high, low, before = frame(market, "high"), frame(market, "low"), frame(market, "close").shift()
    up, down = high.diff().clip(lower=0), (-low.diff()).clip(lower=0)
    true_range = np.maximum(high - low, np.maximum((high - before).abs(), (low - before).abs()))
    average = true_range.ewm(alpha=1 / 30).mean()
    plus = 100 * up.where(up > down, 0).ewm(span=30).mean() / average
    minus = 100 * down.where(down > up, 0).ewm(span=30).mean() / average
    assert_close(value(market, "dx_30"), 100 * (plus - minus).abs() / (plus + minus), since=30)


@pytest.mark.parametrize(("name", "window", "per_name"), [("turbulence", 252, False), ("turbulence_63", 63, True)])
def test_turbulence_is_the_ledoit_wolf_mahalanobis_distance_of_the_members(market, name, window, per_name):
    from sklearn.covariance import ledoit_wolf

    returns, _ = market_returns(market)
    expected = np.full(DAYS, np.nan)
    for day in range(window + 1, DAYS):
        chosen = np.flatnonzero(market.member[day])
        history = returns.iloc[day - window : day, chosen]
        standardised = (history - history.mean()) / history.std(ddof=0)
        correlation, _ = ledoit_wolf(standardised.to_numpy(), assume_centered=True)
        today = ((returns.iloc[day, chosen] - history.mean()) / history.std(ddof=0)).to_numpy()
        expected[day] = today @ np.linalg.inv(correlation) @ today / (len(chosen) if per_name else 1)
    assert_close(value(market, name), np.repeat(expected[:, None], NAMES, axis=1), since=window + 1)


# --- default set -------------------------------------------------------------------------------------------------------


def test_momentum_and_distances_to_earlier_closes(market):
    close = frame(market, "close")
    for sessions in (5, 63, 126, 252):
        assert_close(value(market, f"return_{sessions}"), np.log(close / close.shift(sessions)), since=sessions)
    assert_close(value(market, "momentum_12_1"), np.log(close.shift(21) / close.shift(252)), since=252)
    assert_close(value(market, "high_252_distance"), np.log(close / close.rolling(252).max()), since=251)


def test_regressions_on_the_members_equal_weight_return(market):
    returns, benchmark = market_returns(market)
    for day, name in [(252, 0), (270, 3), (299, 5)]:

        def regress(first, stop, name=name):
            x, y = benchmark[first:stop], returns[name].to_numpy()[first:stop]
            beta, alpha = np.polyfit(x, y, 1)
            return alpha, beta, np.sqrt(np.square(y - alpha - beta * x).sum() / (len(x) - 2)), len(x)

        alpha, _, noise, count = regress(day - 251, day - 20)
        assert value(market, "residual_momentum_12_1")[day, name] == pytest.approx(alpha / noise * count**0.5, rel=1e-5)
        _, beta, _, _ = regress(day - 251, day + 1)
        assert value(market, "beta_252")[day, name] == pytest.approx(beta, rel=1e-5)
        recent = (returns[name] - beta * benchmark)[day - 20 : day + 1].sum()
        assert value(market, "residual_return_21")[day, name] == pytest.approx(recent, rel=1e-4)
        assert value(market, "idiosyncratic_volatility_63")[day, name] == pytest.approx(
            regress(day - 62, day + 1)[2], rel=1e-5
        )


def test_smooth_momentum(market):
    logs = np.log(market.close)
    for day, name in [(125, 0), (200, 2), (299, 4)]:
        window = logs[day - 125 : day + 1, name]
        slope = np.polyfit(np.arange(126), window, 1)[0]
        straight = np.corrcoef(np.arange(126), window)[0, 1] ** 2
        assert value(market, "smooth_momentum_126")[day, name] == pytest.approx(252 * slope * straight, rel=1e-5)
    assert np.isnan(value(market, "smooth_momentum_126")[:125]).all()


def test_volatility_volume_and_intraday(market):
    returns = frame(market, "close").pct_change(fill_method=None)
    dollars = frame(market, "close") * frame(market, "volume")
    assert_close(value(market, "volatility_21"), returns.rolling(21).std(), since=21)
    assert_close(value(market, "volatility_63"), returns.rolling(63).std(), since=63)
    assert_close(value(market, "log_dollar_volume_63"), np.log(dollars.rolling(63).mean()), since=62)
    assert_close(value(market, "amihud_63"), np.log((returns.abs() / dollars).rolling(63).mean()), since=63)
    assert_close(
        value(market, "volume_shock_5"), np.log(dollars.rolling(5).mean() / dollars.rolling(63).mean()), since=62
    )
    assert_close(
        value(market, "intraday_return_21"),
        np.log(frame(market, "close") / frame(market, "open")).rolling(21).mean(),
        since=20,
    )


def test_no_price_level_in_the_default_set(market):
    """A split or dividend of later years multiplies all adjusted prices of a name: no observation may show it."""
    factor = np.array([0.01, 0.5, 1, 2, 30, 100])
    moved = make_market(
        **{name: getattr(market, name) * factor for name in ("open", "high", "low", "close")},
        volume=market.volume / factor,
        member=market.member,
    )
    np.testing.assert_allclose(compute(moved), compute(market), rtol=1e-4, atol=1e-6)


# --- time --------------------------------------------------------------------------------------------------------------


def rows_seen_change(market: MarketData, features, day: int, seed: int) -> bool:
    """Whether replacing every row after `day` by noise changes a bit of the rows up to it."""
    random = np.random.default_rng(seed)
    noise = {}
    for name in ("open", "high", "low", "close", "volume", "member"):
        table = np.array(getattr(market, name), dtype=np.float64)
        after = np.exp(random.normal(0, 5, table[day + 1 :].shape))
        after[random.random(after.shape) < 0.2] = np.nan
        table[day + 1 :] = after
        noise[name] = np.nan_to_num(table) > 1 if name == "member" else table
    noise["member"][: day + 1] = market.member[: day + 1]
    before, now = compute(market, features)[: day + 1], compute(make_market(**noise), features)[: day + 1]
    return not torch.equal(before.view(torch.int32), now.view(torch.int32))


@settings(max_examples=12, deadline=None)
@given(day=st.integers(0, DAYS - 2), seed=st.integers(0, 2**32 - 1))
def test_rows_do_not_change_by_a_bit_when_the_future_does(day, seed):
    gaps = np.random.default_rng(seed).random((DAYS, NAMES)) < 0.02
    assert not rows_seen_change(with_gaps(make_market(seed=seed), gaps), EVERYTHING, day, seed)


def test_a_feature_that_peeks_is_told_apart(market):
    def tomorrow(market):
        return np.vstack([market.close[1:], market.close[-1:]])

    assert rows_seen_change(market, tomorrow, 200, 0)


# --- gaps, listings, constants -----------------------------------------------------------------------------------------


def test_gaps_leave_the_day_undefined_and_the_window_to_the_bars_that_exist(market):
    gaps = np.zeros((DAYS, NAMES), dtype=bool)
    gaps[260:263, 1] = True
    halted = with_gaps(market, gaps)
    values = compute(halted, EVERYTHING)
    assert values[260:263, 1].isnan().all()
    returns = frame(halted, "close").pct_change(fill_method=None)[1]
    assert value(halted, "volatility_21")[264, 1] == pytest.approx(returns[244:265].std(), rel=1e-5)
    assert value(halted, "return_5")[266, 1] == pytest.approx(
        np.log(halted.close[266, 1] / halted.close[259, 1]), rel=1e-5
    )
    gaps[258:263, 1] = True
    assert np.isnan(value(with_gaps(market, gaps), "volatility_21")[264, 1]), "15 of 21 returns are too few"


@pytest.mark.parametrize("window", [1, 2, 5, 63, 252, 400])
def test_windows_of_any_length(window):
    table = np.random.default_rng(1).normal(5, 1, (DAYS, 2))
    table[40:45, 1] = np.nan
    rolling = pd.DataFrame(table).rolling(window, min_periods=int(np.ceil(0.8 * window)))
    np.testing.assert_allclose(rolling_mean(torch.tensor(table), window), rolling.mean(), rtol=1e-12)
    np.testing.assert_allclose(rolling_max(torch.tensor(table), window), rolling.max(), rtol=1e-12)
    rows, _, deviation = rolling_moments(torch.tensor(table)[None], window)
    np.testing.assert_allclose(deviation[0, 0] / rows, rolling.var(ddof=0), atol=1e-12)


def test_a_new_listing_waits_for_its_own_warm_up(market):
    gaps = np.zeros((DAYS, NAMES), dtype=bool)
    gaps[:100, 4] = True
    listed = with_gaps(market, gaps)
    for name, definition in FEATURES.items():
        since = definition.warm_up + (0 if definition.market_wide else 100)
        since = max(since, 100)
        values = value(listed, name)[:, 4]
        assert np.isnan(values[:since]).all(), name
        assert np.isfinite(values[since:]).all(), name


def test_b01_prices_never_appear_before_the_listing():
    closes = torch.tensor([[np.nan], [np.nan], [10], [11], [np.nan], [12]], dtype=torch.float64)
    assert forward_fill(closes.numpy())[:, 0].tolist()[2:] == [10, 11, 11, 12]
    assert np.isnan(forward_fill(closes.numpy())[:2]).all()


def test_b10_ragged_names_keep_their_place():
    close = np.array([[10, np.nan], [11, np.nan], [12, np.nan], [13, 20], [14, 21]])

    def price(market):
        return market.close

    panel = build_panel(make_market(close=close, close_only=True), price, fit=(0, 5))
    assert panel.features.shape == (5, 2, 1)
    assert panel.tradable[:, 1].tolist() == [False, False, False, True, True]
    assert panel.features[:3, 1].abs().max() == 0


@pytest.mark.parametrize("names", [1, NAMES])
def test_b33_constant_prices_are_never_infinite(names):
    flat = np.full((DAYS, names), 0.1)
    market = make_market(
        close=flat,
        open=flat,
        high=flat,
        low=flat,
        volume=np.full_like(flat, 1e6),
        member=np.ones_like(flat, dtype=bool),
    )
    values = compute(market, EVERYTHING)
    assert not values.isinf().any()
    scaled = Scaling.fit(
        values,
        torch.ones(DAYS, names, dtype=torch.bool),
        0,
        DAYS,
        names=[*SETS["default"], *SETS["published"]],
        kinds=[FEATURES[name].kind for name in [*SETS["default"], *SETS["published"]]],
    )
    assert scaled.apply(values, torch.ones(DAYS, names, dtype=torch.bool)).eq(0).all()
    assert not compute(make_market(volume=np.zeros((DAYS, NAMES))), EVERYTHING).isinf().any()


def test_b33_an_infinite_value_is_named(market):
    def broken(market):
        return np.where((np.arange(DAYS)[:, None] == 7) & (np.arange(NAMES) == 2), np.inf, market.close)

    with pytest.raises(DataError, match="broken of C on 2015-01-08"):
        build_panel(market, broken, fit=(0, 200))


# --- what is asked for -------------------------------------------------------------------------------------------------


def test_a_close_only_market_leaves_out_by_name():
    market = make_market(close_only=True)
    kept, left_out = resolve(market)
    assert left_out == ("log_dollar_volume_63", "amihud_63", "intraday_return_21", "volume_shock_5")
    assert set(kept) | set(left_out) == set(SETS["default"])
    assert resolve(market, "published")[1] == ("cci_30", "dx_30")
    panel = build_panel(market, fit=(252, 280))
    assert (panel.names, panel.left_out) == (kept, left_out)
    assert panel.features.shape == (DAYS, NAMES, len(kept))
    with pytest.raises(InputError, match="amihud_63"):
        resolve(market, "amihud_63")


def test_sets_names_and_functions_mix(market):
    def range_today(market):
        return torch.tensor(market.high / market.low)

    kept, _ = resolve(market, ["return_5", "published", range_today, "return_5"])
    assert kept == ("return_5", *SETS["published"], range_today)
    np.testing.assert_allclose(value(market, range_today), market.high / market.low, rtol=1e-6)
    assert build_panel(market, [range_today], fit=(0, 200)).scaling.kinds == ("cross",)


@pytest.mark.parametrize(
    ("features", "told"),
    [
        ("momentum_12_l", "did you mean momentum_12_1"),
        (["default", "defualt"], "did you mean default"),
        (["zzz"], "choose from default"),
        ([], "features is empty"),
        (lambda market: market.close, "<lambda>"),
        (3, "unknown feature 3"),
    ],
)
def test_what_cannot_be_asked_for(market, features, told):
    with pytest.raises(InputError, match=told):
        resolve(market, [features] if features == 3 else features)


def test_functions_must_fit(market):
    def wrong(market):
        return market.close[0]

    with pytest.raises(InputError, match="wrong has shape"):
        compute(market, wrong)

    def return_5(market):
        return market.close

    with pytest.raises(InputError, match="return_5"):
        compute(market, return_5)
    other = type("Other", (), {"__call__": lambda self, market: market.close, "__name__": "wrong"})()
    with pytest.raises(InputError, match="two features"):
        resolve(market, [wrong, other])


# --- scaling and panel -------------------------------------------------------------------------------------------------


def column(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


def test_b02_scaling_is_fitted_on_training_rows_only():
    raw, member = column([1, 2, 3, 4, 100, 200]), torch.ones(6, 1, dtype=torch.bool)
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


def test_scaling_travels_as_json(market):
    scaling = build_panel(market, fit=(0, 280)).scaling
    assert Scaling.from_dict(json.loads(json.dumps(scaling.to_dict()))) == scaling


@pytest.mark.parametrize(
    "damage", [{"names": ["a"]}, {"mean": None}, {"sd": [float("nan")]}, {"kinds": ["rank"]}, {"kinds": [[]]}]
)
def test_a_damaged_scaling_is_refused(damage):
    stored = {"names": ["x", "y"][:1], "kinds": ["cross"], "mean": [0.0], "sd": [1.0]}
    if damage == {"names": ["a"]}:
        damage = {"names": ["a", "b"]}
    with pytest.raises(CheckpointError):
        Scaling.from_dict(stored | damage)


def test_a_panel_is_finite_and_on_its_device(market):
    gaps = np.random.default_rng(3).random((DAYS, NAMES)) < [0, 0, 0, 0.05, 0.05, 0.05]
    panel = build_panel(with_gaps(market, gaps), EVERYTHING, fit=(252, 280), device="cpu")
    assert panel.features.dtype == torch.float32
    assert panel.features.device == torch.device("cpu")
    assert panel.features.isfinite().all()
    assert (panel.features[..., 0].abs() <= 3).all()
    assert (panel.features.abs() <= 5).all()
    assert set(panel.names) | panel.dropped.keys() == {*SETS["default"], *SETS["published"]}
    np.testing.assert_array_equal(panel.tradable, ~gaps)
    np.testing.assert_array_equal(panel.member, market.member)
    assert panel.features[270:].ne(0).any(dim=1).any(dim=0).all(), "every feature tells something"


def test_a_given_scaling_is_used_as_it_is(market):
    trained = build_panel(market.rows(0, 280), fit=(0, 280)).scaling
    panel = build_panel(market, scaling=trained)
    assert panel.scaling is trained
    again = build_panel(market, fit=(0, 280))
    np.testing.assert_allclose(panel.features, again.features, atol=1e-4)


def test_a_scaling_of_other_features_is_refused(market):
    trained = build_panel(market, ["return_5", "return_63"], fit=(0, 200)).scaling
    with pytest.raises(CheckpointError, match=r"missing return_63.*beta_252"):
        build_panel(market, ["return_5", "beta_252"], scaling=trained)
    with pytest.raises(CheckpointError, match="order"):
        build_panel(market, ["return_63", "return_5"], scaling=trained)
    volume = build_panel(market, ["return_5", "amihud_63"], fit=(0, 200)).scaling
    with pytest.raises(CheckpointError, match="amihud_63"):
        build_panel(make_market(close_only=True), scaling=volume)

    def mine(market):
        return market.close

    with pytest.raises(CheckpointError, match="mine"):
        build_panel(market, scaling=build_panel(market, mine, fit=(0, 200)).scaling)


def test_training_rows_are_required(market):
    with pytest.raises(InputError, match="fit="):
        build_panel(market)
    with pytest.raises(InputError, match="0:400"):
        build_panel(market, fit=(0, 400))
    with pytest.raises(InputError, match="warm up"):
        build_panel(market, "beta_252", fit=(0, 100))


def test_a_function_that_fails_is_named():
    def mine(market):
        raise ValueError("boom")

    with pytest.raises(InputError, match="feature mine failed: ValueError: boom"):
        compute(simulate_market(names=3, days=30), mine)
