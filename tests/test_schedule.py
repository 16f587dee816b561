"""Windows of a walk-forward, in order, with tests that tile the span; its agents in one account, without seams."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_agents import VALIDATION, tiny_train
from made_errors import refusal, refused
from made_markets import intraday_market, make_market, random_market

import finpod
from finpod import Costs, Strategy, StrategyError
from finpod.walkforward.schedule import Segment, schedule
from finpod.walkforward.strategy import WalkForward, rank_correlation, with_segments

pytestmark = pytest.mark.usefixtures("unaudited")
LENGTHS = {"train": 60, "validation": 30, "test": 40, "hold": 2}
FIRST = 130


@given(
    spans=st.tuples(st.integers(8, 80), st.integers(8, 40), st.integers(6, 60)),
    hold=st.integers(1, 6),
    purge=st.integers(0, 4),
    embargo=st.integers(0, 4),
    start=st.integers(130, 200),
    end=st.integers(210, 259),
    expanding=st.booleans(),
    close=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_windows_are_in_order_and_tests_tile_the_span(spans, hold, purge, embargo, start, end, expanding, close):
    market = make_market(np.full((260, 1), 10.0), open=np.full((260, 1), 10.0))
    train, validation, test = spans
    terms = {"purge": hold + purge, "embargo": embargo, "hold": hold, "fill": "close" if close else "open"}
    if train <= terms["purge"] + hold or validation <= embargo + hold:
        return
    found = schedule(market, start=market.dates[start], end=market.dates[end], train=train, validation=validation,
                     test=test, expanding=expanding, **terms)  # fmt: skip
    row = {f"{date!s:.10}": i for i, date in enumerate(market.dates)}
    assert row[found[0].test[0]] == start
    assert row[found[-1].test[1]] == end
    for before, after in pairwise(found):
        assert row[after.test[0]] == row[before.test[1]] + 1
    for i, one in enumerate(found):
        first = row[one.test[0]]
        assert (first - start) % hold == 0
        assert 0 <= first - (start + i * test) < hold
        assert row[one.decides_from] == first - close
        assert (row[one.validation[0]], row[one.validation[1]]) == (first - validation, first - 1 - embargo)
        assert row[one.train[1]] == first - validation - 1 - terms["purge"]
        assert row[one.train[0]] == (row[found[0].train[0]] if expanding else first - validation - train)
        assert row[one.test[1]] - first >= hold - 1


def test_years_and_months_go_by_the_calendar():
    market = make_market(np.full((2600, 1), 10.0), start="2008-01-02")
    found = schedule(market, start="2013-01-02", end="2016-03-31", hold=1)
    assert [one.test[0] for one in found] == ["2013-01-02", "2014-01-02", "2015-01-02", "2016-01-04"]
    assert found[0].train == ("2008-01-02", "2011-12-29")
    assert found[0].validation == ("2012-01-02", "2012-12-31")
    assert found[3].validation == ("2015-01-05", "2015-12-31")
    half = schedule(market, start="2013-08-30", end="2014-12-31", hold=1, train="2y", validation="6m", test="6m")
    assert [one.test[0] for one in half] == ["2013-08-30", "2014-02-28", "2014-09-01"]
    assert half[1].validation[0] == "2013-08-28"


def test_purge_and_embargo_are_the_hold_and_a_short_rest_belongs_to_the_segment_before():
    market = make_market(np.full((260, 1), 10.0))
    terms = {"start": market.dates[130], **LENGTHS}
    assert schedule(market, **terms) == schedule(market, **terms, purge=2, embargo=2)
    ends = [schedule(market, **terms | {"hold": 5}, end=market.dates[130 + last]) for last in (39, 44, 45)]
    assert [len(one) for one in ends] == [1, 1, 2]


@pytest.mark.parametrize(("changes", "told"), [
    ({"start": "2024-03-01"}, "train=60 and validation=30 before the start on 2024-03-01"),
    ({"train": "4y"}, "train=4y"), ({"train": "long"}, "train is 'long'"), ({"validation": 0}, "validation is 0"),
    ({"test": 1.5}, "test is 1.5"), ({"hold": 0}, "hold is 0"), ({"test": 3, "hold": 8}, "test=3"),
    ({"validation": 12, "hold": 8}, "validation window before 2024-07-01 has 3 bars"),
    ({"train": 10, "hold": 8}, "training window before 2024-07-01 has 1 bars"),
    ({"purge": 60}, "training window before 2024-07-01 has 0 bars"),
    ({"purge": 1}, "purge is 1"), ({"end": "2024-07-02"}, "from 2024-07-01 on have 1 bars"),
])  # fmt: skip
def test_windows_that_are_invalid_are_refused_in_one_line(changes, told):
    market = make_market(np.full((260, 1), 10.0), start="2024-01-01")
    assert told in refusal(schedule, market, **{"start": market.dates[FIRST], **LENGTHS, **changes})


def test_rank_correlation():
    assert rank_correlation([1, 2, 3, 9], [10, 20, 30, 31]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(0.6)
    assert rank_correlation([1, 2, 3, np.nan], [1, 2, 3, -9]) == pytest.approx(1)
    for one, other in (([1, 2], [1, 2]), ([1, 1, 1], [1, 2, 3]), ([1, 2, np.nan], [1, 2, 3])):
        assert np.isnan(rank_correlation(one, other))


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
    first, second = [100, 100, 100, 102, 101, 105, 300, 20, 60], [50, 50, 50, 150, 10, 40, 41, 39, 39.2]
    close = np.column_stack([first, second])
    return make_market(close, open=np.vstack([close[:1], close[:-1]]) if fill == "open" else None)


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
    told, options = f"{market.dates[20]!s:.10}.*{market.dates[until]!s:.10}", {"name": "wf", "error": StrategyError}
    refused(told, WalkForward, [first, second], agents, **options)
    refused("wf", WalkForward, [segments_of(market, 20)[0], first], [Holds(), Holds()], **options)  # not in order


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
