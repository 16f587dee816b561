import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_bars import DAYS, alone, built, frame, repairs
from numpy.testing import assert_allclose, assert_array_equal

from finpod.errors import DataError, InputError
from finpod.market.load import load_market
from finpod.trading.execution import build_execution


def test_b01_a_series_is_never_filled_from_its_future():
    """NaN, NaN, 10, 11, NaN, 12: no bar before the listing; the mark carries the 11 on, and only bars can be traded."""
    days = pd.bdate_range("2024-01-02", periods=6)
    bars = frame(tickers=("AAA", "QQQ"), days=days)[["date", "ticker", "close"]]
    bars.loc[bars["ticker"] == "AAA", "close"] = [np.nan, np.nan, 10, 11, np.nan, 12]
    market = built(bars)
    assert_array_equal(market.close[:, 0], [np.nan, np.nan, 10, 11, np.nan, 12])
    execution = build_execution(market, "close")
    assert_array_equal(execution.tradable[:, 0], [False, False, True, True, False, True])
    assert_array_equal(execution.mark[2:, 0], [10, 11, 11, 12])
    assert not (execution.mark[:2, 0] == 10).any()
    assert not (execution.price[:2, 0] == 10).any()


def test_b10_ragged_panel():
    bars = pd.concat([frame(tickers=("AAA", "QQQ")), frame(tickers=("BBB",), days=DAYS[-2:])])
    market = built(bars)
    assert market.shape == (5, 2)
    assert_array_equal(market.has_bar[:, market.tickers.index("BBB")], [False, False, False, True, True])
    assert market.has_bar[:, market.tickers.index("AAA")].all()
    assert np.isnan(market.open[:3, 1]).all()


def test_b17_adjusted_close_adjusts_every_price():
    market = built(frame(open=99.0, close=100.0, high=101.0, low=98.0, volume=49.0).assign(**{"Adj Close": 98.0}))
    assert_allclose(market.open, 97.02, rtol=1e-14)
    assert_array_equal(market.close, np.full((5, 2), 98.0))
    assert_allclose(market.high, 101 * 0.98, rtol=1e-14)
    assert_allclose(market.low, 98 * 0.98, rtol=1e-14)
    assert_allclose(market.factor, 0.98, rtol=1e-14)
    assert_allclose(market.close * market.volume, 100.0 * 49.0, rtol=1e-14)
    assert_array_equal(market.benchmark_close, np.full(5, 98.0))
    assert_allclose(market.benchmark_open, 97.02, rtol=1e-14)


def test_b17_without_adjusted_close_prices_are_left_alone_and_the_reader_told():
    market = built(frame(open=99.0, close=100.0, high=101.0, low=98.0))
    assert (market.open == 99).all()
    assert (market.close == 100).all()
    assert market.factor is None
    assert len(market.manifest["notes"]) == 1


def test_b23_newest_first_is_sorted():
    bars = frame(tickers=("AAA", "QQQ"), days=DAYS[:3])[["date", "ticker", "close"]]
    bars["close"] = [80.0, 80.0, 88.0, 88.0, 96.8, 96.8]
    market = built(bars[::-1])
    assert market.close[-1, 0] / market.close[0, 0] - 1 == pytest.approx(0.21, rel=1e-12)
    assert repairs(market) == {}


def test_b24_missing_price_is_no_bar():
    bars = frame(tickers=("AAA", "QQQ"), days=DAYS[:3])
    bars = bars.assign(close=[100.0, 100, np.nan, 100, 110, 100], open=np.nan, high=np.nan, low=np.nan)
    market = built(bars)
    assert_array_equal(market.has_bar[:, 0], [True, False, True])
    for table in (market.open, market.high, market.low, market.close, market.volume):
        assert np.isnan(table[1, 0])
    assert market.manifest["repairs"] == []
    mark = build_execution(market, "close").mark[:, 0].numpy()
    assert_array_equal(mark, [100, 100, 110])
    assert mark[2] / mark[1] - 1 == pytest.approx(0.1)


def test_a_benchmark_must_exist_and_not_be_alone_or_may_be_none():
    with pytest.raises(InputError, match="SPY") as caught:
        built(frame(), benchmark="SPY")
    assert caught.value.argument == "benchmark"
    with pytest.raises(DataError, match="QQQ"):
        built(frame(tickers=("QQQ",)))
    market = built(frame(), benchmark=None)
    assert market.tickers == ("AAA", "BBB", "QQQ")
    assert market.benchmark == market.manifest["benchmark_kind"] == "none"
    assert np.isnan(market.benchmark_close).all()


@settings(max_examples=10, deadline=None)
@given(
    rows=st.permutations(range(15)),
    columns=st.permutations(["date", "ticker", "open", "high", "low", "close", "volume"]),
)
def test_order_of_rows_and_columns_changes_nothing(rows, columns):
    assert built(frame().iloc[rows][columns]).content_hash == built(frame()).content_hash


@settings(max_examples=15, deadline=None)
@given(day=st.integers(5, 58), seed=st.integers(0, 99))
def test_later_bars_never_change_an_earlier_return(day, seed):
    """Repairs of single bars look at that bar and at those before it; only listed actions rescale the past."""
    random = np.random.default_rng(seed)
    bars = frame(days=pd.bdate_range("2024-01-02", periods=60), adj_close=lambda bars: bars["close"] * 0.9)
    later = bars["date"] > bars["date"].unique()[day]
    changed = bars.copy()
    numbers = ["open", "high", "low", "close", "adj_close"]
    changed.loc[later, numbers] = bars.loc[later, numbers].mul(random.lognormal(0, 0.3, later.sum()), axis=0)
    one, other = built(bars).tables, built(changed[~later | (random.random(len(bars)) > 0.1)]).tables
    assert one.keys() == other.keys()
    for name, table in one.items():
        assert_array_equal(table[: day + 1], other[name][: day + 1])


def test_a_file_without_a_usable_bar_is_refused_with_every_reason():
    days = pd.bdate_range("2024-01-12", periods=3)  # the second is a holiday
    with pytest.raises(DataError, match=r"not a session: 1.*not positive: 2"):
        load_market(pd.DataFrame({"date": days, "ticker": "A", "close": -1.0}), benchmark=None)
    with pytest.raises(DataError, match="close is missing"):
        load_market(pd.DataFrame({"date": days[[0, 2]], "ticker": "A", "close": np.nan}), benchmark=None)


def test_tickers_without_a_bar_are_left_out():
    bars = pd.DataFrame({"date": DAYS, "ticker": pd.Categorical(["A"] * 5, categories=["A", "GHOST"]), "close": 10.0})
    assert alone(bars).tickers == ("A",)
    blank = pd.concat([bars.astype({"ticker": str}), pd.DataFrame({"date": DAYS, "ticker": "B", "close": np.nan})])
    market = alone(blank)
    assert market.tickers == ("A",)
    assert market.manifest["missing"] == ["B"]
