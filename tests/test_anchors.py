"""Anchors: the weights that a tilt starts from and that agents have to beat."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from made_agents import VALIDATION, make_pod, make_setup, tiny_train, weights_of
from made_errors import refused
from made_markets import make_market, random_market
from made_saved import SAVED

import finpod
from finpod import CheckpointError, MarketView
from finpod.envs.actions import target_weights
from finpod.tasks import make_stock_task, trading_of
from finpod.tournament.pod import Pod, judge
from finpod.trading.anchors import anchor_of_view, anchor_weights, with_anchor
from finpod.trading.execution import build_execution
from finpod.trading.simulate import simulate

pytestmark = pytest.mark.usefixtures("unaudited")
AROUND = "dollar-volume"


@pytest.fixture(scope="module")
def market():
    """A random market with volumes, some of them missing."""
    market, random = random_market(110), np.random.default_rng(0)
    volume = random.lognormal(10, 1, market.shape[1]) * random.lognormal(0, 0.3, market.shape)
    volume[random.random(market.shape) < 0.05] = np.nan
    return replace(market, volume=np.where(market.has_bar, volume, np.nan))


def test_dollar_volume_is_the_root_of_the_mean_over_63_sessions():
    """B deals in 4 times the dollars of A: 2/3 of the weight. C has no known volume and counts as A does."""
    close = np.full((70, 3), 10.0)
    volume = np.tile([100.0, 400.0, np.nan], (70, 1))
    volume[:3, :2] = 1e9  # before the 63 sessions that end at row 65
    weights = anchor_weights(build_execution(make_market(close, volume=volume)), AROUND)
    assert weights[65].tolist() == pytest.approx([0.25, 0.5, 0.25])
    assert weights[0].tolist() == pytest.approx([1 / 3] * 3)
    assert weights.sum(-1).tolist() == pytest.approx([1] * 70)


def test_an_anchor_knows_nothing_of_later_rows_and_holds_members_with_a_bar_alone(market):
    whole = anchor_weights(build_execution(market), AROUND)
    assert not whole[torch.tensor(~(market.member & market.has_bar))].any()
    for stop in (3, 50, 90):
        cut = anchor_weights(build_execution(market.rows(0, stop)), AROUND)
        assert torch.equal(cut, whole[:stop])
        view = MarketView(market, stop)
        assert torch.equal(anchor_of_view(view, AROUND), whole[stop])
        assert torch.equal(anchor_of_view(view, "equal-weight"), anchor_weights(build_execution(market))[stop])


def test_bad_anchors_are_refused_by_name(market):
    bare, unknown = replace(market, volume=None), replace(market, volume=np.full(market.shape, np.nan))
    windows = (bare.dates[[25, 80]], bare.dates[[81, 100]])
    for name, act in (
        (AROUND, lambda: anchor_weights(build_execution(unknown), AROUND)),
        (AROUND, lambda: make_stock_task(bare, *windows, trading_of(anchor=AROUND))),
        ("dollar-volum", lambda: anchor_weights(build_execution(bare), "dollar-volum")),
        ("extra:", lambda: trading_of(anchor="extra:")),
    ):
        refused(f"'?{name}'?", act, about="anchor")


def test_a_tilt_is_taken_around_the_anchor_and_keeps_its_sum():
    among = torch.tensor([True, True, True, False])
    anchor = torch.tensor([0.1, 0.2, 0.5, 0.0], dtype=torch.float64)
    assert torch.equal(target_weights(torch.zeros(4), among, "tilt", 2.0, anchor), anchor)
    tilted = target_weights(torch.tensor([1e9, 0.0, -1e9, 1e9]), among, "tilt", 2.0, anchor)
    assert float(tilted.sum()) == pytest.approx(0.8)
    assert (tilted[0] / tilted[1]).item() == pytest.approx(0.5 * np.exp(2), rel=1e-6)
    action, equal = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)), among / among.sum().double()
    around = target_weights(action, among, "tilt", 1.0, equal)
    torch.testing.assert_close(around, target_weights(action, among, "tilt"), rtol=0, atol=1e-12)


def test_an_untrained_agent_is_the_anchor_and_so_is_its_baseline(market, fill):
    setup = make_setup(market, hold=3, fill=fill, anchor=AROUND)
    task, pod = setup.task, Pod(setup, make_pod(market).settings)
    score = judge(setup, pod.settings, pod.checkpoint())
    np.testing.assert_allclose(score.returns, task.baseline(), rtol=0, atol=1e-12)
    equity = anchor_path(task.execution, anchor_weights(task.execution, AROUND), 3, task.trading).equity.numpy()
    np.testing.assert_allclose(task.baseline(), equity[1:] / equity[:-1] - 1, rtol=0, atol=1e-14)


def anchor_path(execution, weights, every, terms):
    """The path of an anchor that is rebalanced every so many sessions of the validation window."""
    return simulate(execution, *VALIDATION, lambda step, row, _: None if step % every else weights[row], terms)


@pytest.mark.parametrize("ready", [False, True])
def test_an_ensemble_keeps_its_anchor_and_decides_as_on_validation(market, tmp_path, ready):
    given, own = {"anchor": AROUND}, market
    if ready:
        weights = random_anchor(market)
        given = {"anchor": weights, "learner": "apg", "config": None, "start_groups": None}
        own, _ = with_anchor(market, weights)
    tiny_train(market, tmp_path / "agent", features=("return_5",), keep=1, agents=1, **given)
    agent = finpod.load_strategy(tmp_path / "agent")
    assert agent.anchor == agent.trading.anchor == ("extra:anchor" if ready else AROUND)
    days = market.dates[list(VALIDATION)]
    result = finpod.backtest(agent, own, start=days[0], end=days[1], allow_in_sample=True, examine=False)
    chosen = next(line for line in agent.log if line["score"] == agent.scores[0])
    np.testing.assert_allclose(result.returns, chosen["returns"], rtol=0, atol=1e-9)
    assert result.anchor == agent.anchor
    execution = build_execution(own)
    path = anchor_path(execution, anchor_weights(execution, agent.anchor, own), agent.every, agent.trading)
    np.testing.assert_allclose(result.anchor_equity / 1e6, path.equity / path.equity[0], rtol=1e-12)
    told, bare = ("'anchor'", market) if ready else ("'dollar-volume'", replace(market, volume=None))
    refused(told, finpod.backtest, agent, bare, start=market.dates[101], error=CheckpointError)


def test_agents_without_an_anchor_are_of_equal_weight():
    assert finpod.load_strategy(SAVED / "ensemble").anchor == finpod.Strategy.anchor == "equal-weight"


def random_anchor(market, seed=7):
    """Ready weights [T, N] with sums of 0.6 over all names."""
    raw = np.random.default_rng(seed).lognormal(0, 1, market.shape)
    return 0.6 * raw / raw.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("bad", [np.nan, -0.1, 2.0, 0.0])
def test_the_environment_takes_ready_weights_but_for_those_that_cannot_be(market, bad):
    given = random_anchor(market)
    given[60] = bad
    options = {"market": market, "num_envs": 2, "anchor": given}
    refused(f"{market.dates[60]!s:.10}", finpod.make_env, "stocks", about="anchor", **options)
    env = finpod.make_env("stocks", random_start=False, end=market.dates[55], **options)
    row = int(env.env.observe().row[0])
    weights = weights_of(env.env, torch.zeros(2, 5))[0].numpy()
    np.testing.assert_allclose(weights, given[row] * (market.member & market.has_bar)[row], rtol=0, atol=1e-15)


def test_an_anchor_that_is_not_of_this_market_or_no_numbers_is_refused(market):
    given, days = random_anchor(market), pd.DatetimeIndex(market.dates)
    frame = pd.DataFrame(given, days, list(market.tickers))
    np.testing.assert_array_equal(with_anchor(market, frame[frame.columns[::-1]])[0].extra["anchor"], frame)
    shifted, renamed = days[:50].append(days[50:] + pd.Timedelta(days=1)), {market.tickers[2]: "other"}
    for wrong, told in (
        (frame.set_axis(shifted), rf"{days[50]:%Y-%m-%d} is only in the market, .*reindex\(index"),
        (frame.reset_index(drop=True), "the index of the anchor"),
        (frame.rename(columns=renamed), rf"{market.tickers[2]} is only in the market, .*reindex\(columns"),
        (frame.assign(other=0.0), "other is only in the anchor, not in the market; reindex"),
        (given[:-1], r"has shape \(109, 5\)"),
        (np.full(market.shape, object()), "not numbers"),
    ):
        refused(told, with_anchor, market, wrong, about="anchor")
