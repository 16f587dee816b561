"""The agents of a walk-forward in one account: seams between segments, and days on which an agent may decide."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from made_agents import VALIDATION, tiny_train
from made_markets import intraday_market, make_market, random_market

import finpod
from finpod.errors import StrategyError
from finpod.strategy import Strategy
from finpod.trading.ledger import Costs
from finpod.walkforward.schedule import Segment, schedule
from finpod.walkforward.strategy import WalkForward, with_segments

LENGTHS = {"train": 60, "validation": 30, "test": 40}
FIRST = 130
FILLS = pytest.mark.parametrize("fill", ["open", "close"])
backtest = partial(finpod.backtest, examine=False)


@pytest.fixture(scope="module")
def market():
    return random_market(260, 6, gaps=0.02, seed=5)


class Holds(Strategy):
    """Everything in one name; notes the days on which it decides."""

    def __init__(self, ticker="A", *, until=None, every=1, name="holds", trials=1):
        self.ticker, self.trained_until, self.every, self.name, self.trials = ticker, until, every, name, trials
        self.asked = []

    def decide(self, view):
        self.asked.append(view.date)
        return {self.ticker: 1.0}


def segments_of(market, *firsts, lag=0):
    """Segments whose tests begin on these rows, trained on the first two rows."""
    day = [f"{date!s:.10}" for date in market.dates]
    stops = [*(first - 1 for first in firsts[1:]), len(day) - 1]
    return [
        Segment(train=(day[0], day[1]), validation=(day[0], day[1]), test=(day[first], day[stop]),
                decides_from=day[first - lag])
        for first, stop in zip(firsts, stops, strict=True)
    ]  # fmt: skip


def two_windows(fill):
    """A earns 5 % in the first window and B loses 2 % in the second; what the other does would show."""
    close = np.array(
        [[100, 50], [100, 50], [100, 50], [102, 150], [101, 10], [105, 40], [300, 41], [20, 39], [60, 39.2]]
    )
    return make_market(close, open=np.vstack([close[:1], close[:-1]]) if fill == "open" else None)


@FILLS
def test_c24_no_jump_and_no_double_day_at_the_seam(fill):
    market = two_windows(fill)
    segments = segments_of(market, 2, 5, lag=int(fill == "close"))
    strategy = WalkForward(segments, [Holds("A"), Holds("B")], name="wf")
    free = {"costs": Costs(fee_bps=0)}
    result = backtest(strategy, market, start=market.dates[2], **free)
    assert result.metrics.total_return == pytest.approx(1.05 * 0.98 - 1, rel=1e-12)
    np.testing.assert_array_equal(result.equity.index, market.dates[2:])
    shares = 1e6 / 100  # of A, at the close of the seam still held, or sold at that very price
    assert result.equity.iloc[3] == pytest.approx(shares * 105, rel=1e-12)
    lines = with_segments(result, strategy).agent["segments"]
    assert [line["total_return"] for line in lines] == [pytest.approx(0.05), pytest.approx(-0.02)]
    alone = [
        backtest(Holds(name), market, start=market.dates[a], end=market.dates[b], **free).equity
        for name, a, b in (("A", 2, 5), ("B", 5, 8))
    ]
    chained = np.r_[alone[0], alone[1].to_numpy()[1:] / 1e6 * alone[0].iloc[-1]]
    np.testing.assert_allclose(result.equity, chained, rtol=1e-12)
    kept = backtest(WalkForward(segments, [Holds("A"), Holds("A")], name="wf"), market, start=market.dates[2])
    assert len(kept.trades) == 1  # holdings are carried over
    assert kept.turnover.iloc[1:].sum() == 0


def test_c24_the_same_agent_in_both_segments_is_the_plain_backtest(market, tmp_path):
    agent = tiny_train(market, tmp_path / "tiny", agents=1, rounds=1, keep=1)
    start = VALIDATION[1] + 1
    strategy = WalkForward(segments_of(market, start, start + 40), [agent, agent], name="wf")
    own, single = (backtest(one, market, start=market.dates[start]) for one in (strategy, agent))
    pd.testing.assert_series_equal(own.equity, single.equity, check_exact=True)
    pd.testing.assert_frame_equal(own.trades, single.trades)
    assert len(own.trades) > 50


@FILLS
@pytest.mark.parametrize("hold", [1, 5])
def test_each_agent_decides_from_its_first_day_on_and_the_cadence_never_changes(market, fill, hold):
    segments = schedule(market, start=market.dates[FIRST], **{**LENGTHS, "hold": hold}, fill=fill)
    agents = [Holds(name, every=hold) for name in "ABCD"]
    backtest(WalkForward(segments, agents, name="wf"), market, start=segments[0].test[0], fill=fill)
    lag = int(fill == "close")
    decided = np.concatenate([agent.asked for agent in agents])
    np.testing.assert_array_equal(decided, market.dates[FIRST - lag : -1 - lag : hold])
    for agent, segment in zip(agents, segments, strict=True):
        assert f"{agent.asked[0]!s:.10}" == segment.decides_from
        assert agent.asked[0] == market.dates[market.row_of(segment.test[0]) - lag]
        assert agent.asked[-1] <= market.dates[market.row_of(segment.test[1]) - lag]


@pytest.mark.parametrize(("until", "sees", "fits"), [(20, 20, False), (45, 20, False), (19, 18, False), (19, 20, True)])
def test_an_agent_never_decides_on_days_it_was_made_on(market, until, sees, fits):
    first, second = segments_of(market, 10, 20)
    second = replace(second, decides_from=f"{market.dates[sees]!s:.10}")
    agents = [Holds(), Holds(until=f"{market.dates[until]!s:.10}")]
    if fits:
        assert WalkForward([first, second], agents, name="wf").trained_until is None
        return
    with pytest.raises(StrategyError, match=f"{market.dates[20]!s:.10}.*{market.dates[until]!s:.10}"):
        WalkForward([first, second], agents, name="wf")
    with pytest.raises(StrategyError, match="wf"):  # segments that do not follow each other
        WalkForward([segments_of(market, 20)[0], first], [Holds(), Holds()], name="wf")


def test_intraday_agents_take_over_at_a_bar():
    market = intraday_market(60)
    segments = schedule(market, start=market.dates[160], train=20, validation=10, test=6, hold=5)
    assert segments[1].decides_from == segments[1].test[0]
    assert segments[1].test[0][10:] > segments[0].test[0][10:]  # at a later bar of its session
    agents = [Holds(name, every=5) for name in "ABAB"[: len(segments)]]
    strategy = WalkForward(segments, agents, name="wf")
    result = backtest(strategy, market, start=segments[0].test[0])
    np.testing.assert_array_equal(np.concatenate([agent.asked for agent in agents]), market.dates[160:-1:5])
    lines = with_segments(result, strategy).agent["segments"]
    assert np.prod([1 + line["total_return"] for line in lines]) == pytest.approx(1 + result.metrics.total_return)
