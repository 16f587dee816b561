"""`ExtraData` in a market: views, features, slices, snapshots, pods, agents and noise."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from made_agents import tiny_train
from made_bars import refuses
from made_markets import random_market
from numpy.testing import assert_array_equal

import finpod
from finpod.errors import CheckpointError, InputError
from finpod.features.panel import build_panel, compute, resolve
from finpod.lookahead.perturbation import with_noise_after
from finpod.market.extra import ExtraData
from finpod.market.load import load_snapshot, save_snapshot
from finpod.strategy import MarketView

NAN = float("nan")
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
    with pytest.raises(InputError):
        view.extra("score", 0)


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
    plain = finpod.simulate_market(names=4, days=100)
    assert plain.content_hash.startswith("1082c82ba10df40e")  # on record: saved results name it
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
    with pytest.raises(CheckpointError, match="extra:score, extra:rate"):
        finpod.backtest(agent, random_market(days=130, gaps=0.05), start=start)


def test_noise_after_a_row_leaves_what_was_known(market):
    other = with_noise_after(market, 60)
    for name in market.extra.names:
        assert_array_equal(other.extra[name][:61], market.extra[name][:61])
        assert not np.array_equal(other.extra[name][61:], market.extra[name][61:], equal_nan=True)
