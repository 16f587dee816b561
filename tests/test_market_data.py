"""`MarketData`, and its extra columns in views, features, slices, snapshots and agents."""

from dataclasses import replace
from datetime import date, datetime

import numpy as np
import pandas as pd
import pytest
from made_agents import tiny_train
from made_bars import refuses
from made_errors import refused
from made_markets import NAN, random_market
from numpy.testing import assert_array_equal

import finpod
from finpod import CheckpointError, DataError, InputError, MarketView
from finpod.features.panel import build_panel, compute, resolve
from finpod.lookahead.perturbation import with_noise_after
from finpod.market.data import MarketData, as_date
from finpod.market.extra import ExtraData
from finpod.market.load import load_snapshot, save_snapshot

pytestmark = pytest.mark.usefixtures("unaudited")
DATES = np.array(["2024-01-02", "2024-01-03", "2024-01-05", "2024-01-08"], dtype="datetime64[ns]")
CLOSE = np.array([[10.0, 20.0], [11.0, 21.0], [NAN, 22.0], [NAN, 23.0]])


def small(**changes):
    plain = {"dates": DATES, "tickers": ("A", "B"), "close": CLOSE, "benchmark_close": np.array([400.0, NAN, 402, 404])}
    return MarketData(**{**plain, **changes})


def test_b08_the_last_bar_is_that_of_the_snapshot_and_survives_slicing():
    whole = small()
    assert_array_equal(whole.last_bar, DATES[[1, 3]])
    assert_array_equal(whole.rows(0, 1).last_bar, DATES[[1, 3]])
    assert_array_equal(whole.select(["B", "A"]).last_bar, DATES[[3, 1]])
    gap = small(close=np.array([[1.0, np.nan], [np.nan, np.nan], [3.0, np.nan], [4.0, np.nan]]))
    assert gap.last_bar[0] == DATES[3]  # a missing bar before the last is no delisting
    assert np.isnat(gap.last_bar[1])


@pytest.mark.parametrize(("changes", "value"), [
    ({"dates": DATES[[0, 1, 1, 2]]}, "2024-01-03 .*2024-01-03"), ({"dates": DATES[::-1]}, "2024-01-08 .*2024-01-05"),
    ({"tickers": ("A", "A")}, "A appears twice"), ({"close": CLOSE[:, :1]}, r"close .*\(4, 1\).*\(4, 2\)"),
    ({"close": np.where(CLOSE == 21, 0.0, CLOSE)}, "close of B on 2024-01-03 is 0"),
    ({"low": np.where(CLOSE == 21, np.inf, CLOSE)}, "low of B on 2024-01-03 is inf"),
    ({"benchmark_close": np.ones(3)}, r"benchmark_close .*\(3,\)"), ({"dates": DATES[:0], "close": CLOSE[:0]}, "0 rows"),
    ({"benchmark_close": np.array([1.0, 0.0, 1.0, 1.0])}, "benchmark_close on 2024-01-03 is 0"),
    ({"close": np.full((4, 2), np.nan)}, "all closes of 2 assets"),
])  # fmt: skip
def test_impossible_markets(changes, value):
    refused(value, small, error=DataError, **changes)


def test_everything_is_read_only():
    for table in (small().close, small().member, small().dates, small().has_bar):
        with pytest.raises(ValueError, match="read-only"):
            table[0] = table[1]
    with pytest.raises(AttributeError):
        small().tickers = ("X", "Y")


def test_rows_and_windows_by_date():
    m = small()
    assert m.row_of("2024-01-04") == 2
    assert m.row_of("2024-01-04", side="right") == 1
    assert m.window("2024-01-03", "2024-01-06") == (1, 2)
    assert m.window(None, None) == (0, 3)
    for window, argument in (
        (("2024-01-06", "2024-01-07"), None),
        (("2024-01-08", "2024-01-02"), "end"),
        (("2024-01-09", None), "date"),
        (("2023-01-09", None), "start"),
        ((None, "2025-01-09"), "end"),
    ):
        refused(next(filter(None, window)), m.window, *window, about=argument)


def test_slices_and_columns():
    m = small(open=CLOSE * 0.9)
    part = m.rows(1, 3)
    assert_array_equal(part.open, CLOSE[1:3] * 0.9)
    assert_array_equal(part.benchmark_close, [np.nan, 402.0])
    assert_array_equal(m.select(["B"]).close, CLOSE[:, 1:])
    refused("C;", m.select, ["A", "C"])
    refused("0:4", m.rows, 2, 5)


def test_the_benchmark_as_a_market_leaves_its_gaps_out():
    own = small().benchmark_market()
    assert own.tickers == ("QQQ",)
    assert_array_equal(own.dates, DATES[[0, 2, 3]])
    assert_array_equal(own.close[:, 0], [400.0, 402.0, 404.0])
    assert own.member.all()
    refused("QQQ", small(benchmark_close=np.full(4, np.nan)).benchmark_market, error=DataError)


def test_the_hash_is_one_of_content():
    assert small().content_hash == small(manifest={"source": "elsewhere"}).content_hash
    assert small(close=np.where(np.isnan(CLOSE), -np.nan, CLOSE)).content_hash == small().content_hash
    different = [
        {"close": CLOSE * (1 + 1e-15)}, {"benchmark": "SPY"}, {"tickers": ("A", "C")}, {"open": CLOSE},
        {"member": np.zeros((4, 2), dtype=bool)}, {"dates": DATES + np.timedelta64(1, "D")},
    ]  # fmt: skip
    assert len({small(**changes).content_hash for changes in (*different, {})}) == 7


@pytest.mark.parametrize("text", ["soon", None, "20200102", "2020-07", 20200102, True, "2020-13-01", "9999-01-01"])
def test_only_whole_days_are_dates(text):
    """numpy takes 20200102 for a year, and counts it past what nanoseconds hold."""
    refused(repr(text), as_date, text, "start", about="start")


@pytest.mark.parametrize("day", ["2020-01-02", " 2020-01-02 ", "2020-01-02T15:59", "2020-01-02 10:00:00+00:00",
                                 np.datetime64("2020-01-02T23:59"), date(2020, 1, 2), datetime(2020, 1, 2, 9),
                                 pd.Timestamp("2020-01-02 23:00", tz="America/New_York")])  # fmt: skip
def test_days_are_read_in_every_usual_form(day):
    assert as_date(day) == np.datetime64("2020-01-02", "ns")


FEATURES = ["return_5", "extra:score", "extra:rate"]


@pytest.fixture
def market():
    """Five tickers over 130 rows with a column per ticker, NaN at first, and one value for all."""
    random = np.random.default_rng(0)
    score, rate = random.normal(size=(130, 5)), random.normal(size=130)
    score[:10], rate[:3] = NAN, NAN
    return replace(random_market(days=130, gaps=0.05), extra=ExtraData({"score": score, "rate": rate}, 5))


def test_a_view_shows_the_last_rows_and_no_more(market):
    view = MarketView(market, 20)
    assert view.extra_names == ("score", "rate")
    assert_array_equal(view.extra("score", 4), market.extra["score"][17:21])
    assert_array_equal(view.extra("rate", 2), np.repeat(market.extra["rate"][19:21, :1], 5, axis=1))
    early = MarketView(market, 1).extra("score", 4)
    assert early.shape == (4, 5)
    assert np.isnan(early).all()
    for column in ("score", "rate"):
        with pytest.raises(ValueError, match="read-only"):
            view.extra(column, 2)[0] = 1.0
    refuses(lambda: view.extra("scores", 1), "'scores'", "score", error=InputError)
    refuses(lambda: MarketView(random_market(), 3).extra("score", 1), error=InputError, argument="extra")
    refused("", view.extra, "score", 0)


def test_features_are_the_columns_where_there_is_a_bar(market):
    values = compute(market, ["extra:score", "extra:rate"]).numpy()
    for i, column in enumerate(("score", "rate")):
        assert_array_equal(values[..., i], np.where(market.has_bar, market.extra[column], NAN).astype(np.float32))
    panel = build_panel(market, FEATURES, fit=(20, 80))
    assert (panel.names, panel.scaling.kinds) == (tuple(FEATURES), ("cross", "cross", "pooled"))
    again = build_panel(market, scaling=panel.scaling)
    assert_array_equal(again.features, panel.features)
    refuses(lambda: resolve(market, ["extra:scor"]), "mean score", error=InputError)
    refuses(lambda: build_panel(random_market(days=130), scaling=panel.scaling), error=InputError, argument="extra")


def test_columns_are_cut_with_the_rows_and_tickers_of_their_market(market):
    rows = market.rows(5, 50)
    assert_array_equal(rows.extra["score"], market.extra["score"][5:50])
    assert_array_equal(rows.extra["rate"], market.extra["rate"][5:50])
    two = market.select(["D", "A"])
    assert_array_equal(two.extra["score"], market.extra["score"][:, [3, 0]])
    assert_array_equal(two.extra["rate"], market.extra["rate"][:, :2])
    holes = replace(market, benchmark_close=np.where(np.arange(130) == 7, NAN, market.benchmark_close))
    alone = holes.benchmark_market()
    assert alone.extra.names == ("score", "rate")
    assert_array_equal(alone.extra["rate"][:, 0], np.delete(market.extra["rate"][:, 0], 7))
    assert np.isnan(alone.extra["score"]).all()


def test_columns_of_another_shape_are_refused(market):
    for extra in (ExtraData({"score": np.zeros((130, 4))}, 4), ExtraData({"rate": np.zeros(129)}, 5)):
        refuses(lambda extra=extra: replace(market, extra=extra), "130 rows and 5 tickers")


def test_the_hash_covers_the_columns_and_is_unchanged_without_them(market):
    assert small().content_hash.startswith("bcac9250d2d04ba7")  # on record: saved results name it
    score, rate = market.extra["score"], market.extra["rate"][:, 0]
    changed = [{"score": score}, {"other": score, "rate": rate}, {"score": score + 1, "rate": rate}]
    changed.append({"score": score, "rate": market.extra["rate"]})
    hashes = {replace(market, extra=ExtraData(tables, 5)).content_hash for tables in changed}
    assert len(hashes | {market.content_hash}) == 5
    swapped = ExtraData({"rate": rate, "score": score}, 5)
    assert replace(market, extra=swapped).content_hash == market.content_hash


def test_a_snapshot_keeps_the_columns(market, tmp_path):
    again = load_snapshot(save_snapshot(market, tmp_path / "snapshot"))
    assert again.content_hash == market.content_hash
    assert [again.extra.is_shared(name) for name in again.extra.names] == [False, True]
    more = finpod.load_market(str(tmp_path / "snapshot"), extra=pd.DataFrame({"date": [again.dates[4]], "vix": [20.0]}))
    assert more.extra.names == ("score", "rate", "vix")
    assert_array_equal(more.extra["vix"][:, 0], [NAN] * 4 + [20.0] * 126)


def test_an_agent_trains_on_the_columns_and_trades_where_they_are(market, tmp_path):
    tiny_train(market, tmp_path / "agent", features=FEATURES)
    agent = finpod.load_strategy(tmp_path / "agent")
    assert agent.features == tuple(FEATURES)
    start = str(market.dates[105])[:10]
    result = finpod.backtest(agent, market, start=start, examine=False)
    assert result.metrics.days > 10
    other = replace(market, extra=ExtraData({"score": -market.extra["score"], "rate": market.extra["rate"][:, 0]}, 5))
    assert not np.allclose(finpod.backtest(agent, other, start=start, examine=False).equity, result.equity)
    bare = random_market(days=130, gaps=0.05)
    refused("extra:score, extra:rate", finpod.backtest, agent, bare, start=start, error=CheckpointError)


def test_noise_after_a_row_leaves_what_was_known(market):
    other = with_noise_after(market, 60)
    for name in market.extra.names:
        assert_array_equal(other.extra[name][:61], market.extra[name][:61])
        assert not np.array_equal(other.extra[name][61:], market.extra[name][61:], equal_nan=True)
