"""Walk-forward: causal windows, one account through all segments, and resuming."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_agents import CONFIG, FEATURES, SMALL, VALIDATION, tiny_train
from made_markets import make_market, random_market

import finpod
from finpod.backtesting.result_io import load_result
from finpod.errors import CheckpointError, InputError, StrategyError
from finpod.lookahead.audit import audit, with_noise_after
from finpod.market.data import MarketData
from finpod.report.provenance import members, provenance
from finpod.report.sections import timeline
from finpod.significance import sharpe_error
from finpod.strategy import Strategy
from finpod.tournament import training
from finpod.trading.ledger import Costs
from finpod.walkforward import retraining
from finpod.walkforward.retraining import walk_forward
from finpod.walkforward.schedule import Segment, schedule
from finpod.walkforward.strategy import WalkForward, load_walkforward, rank_correlation, with_segments

FREE = Costs(fee_bps=0)
LENGTHS = {"train": 60, "validation": 30, "test": 40, "hold": 2}
TINY = {**LENGTHS, **SMALL, "features": FEATURES, "config": CONFIG, "agents": 1, "rounds": 1, "keep": 1, "steps": 1}
FIRST = 130


class Holds(Strategy):
    """Everything in one name; notes the days on which it decides."""

    def __init__(self, ticker="A", *, until=None, every=1, name="holds", trials=1):
        self.ticker, self.trained_until, self.every, self.name, self.trials = ticker, until, every, name, trials
        self.asked = []

    def decide(self, view):
        self.asked.append(view.date)
        return {self.ticker: 1.0}


@pytest.fixture(scope="module")
def market():
    return random_market(260, 6, gaps=0.02, seed=5)


@pytest.fixture(scope="module")
def done(market, tmp_path_factory):
    """A walk-forward of four segments and two seeds: its folder and its result."""
    out = tmp_path_factory.mktemp("strategies") / "wf"
    return SimpleNamespace(out=out, result=run(market, out, seeds=2))


@pytest.fixture
def out(tmp_path):
    return tmp_path / "wf"


@pytest.fixture
def copied(done, out):
    return shutil.copytree(done.out, out)


@pytest.fixture
def trained(monkeypatch):
    """Note the first training day of every ensemble that is trained."""
    noted, train = [], retraining.train_ensemble

    def spy(**arguments):
        noted.append(arguments["train"][0])
        return train(**arguments)

    spy.__signature__ = retraining.inspect.signature(train)
    monkeypatch.setattr(retraining, "train_ensemble", spy)
    return noted


def run(market, out, **changes):
    return walk_forward(market=market, out=out, **{"start": market.dates[FIRST], **TINY, **changes})


def fail_at(monkeypatch, number, error):
    """Let the training of that segment fail, counted from 0."""
    train, calls = retraining.train_ensemble, []

    def failing(**arguments):
        calls.append(arguments)
        if len(calls) == number + 1:
            raise error
        return train(**arguments)

    failing.__signature__ = retraining.inspect.signature(train)
    monkeypatch.setattr(retraining, "train_ensemble", failing)


def segments_of(market, *firsts, last=None, lag=0):
    """Segments whose tests begin on these rows, learnt and chosen on the first two rows."""
    day = [f"{date!s:.10}" for date in market.dates]
    stops = [*(first - 1 for first in firsts[1:]), len(day) - 1 if last is None else last]
    before = (day[0], day[1])
    return [
        Segment(train=before, validation=before, test=(day[first], day[stop]), decides_from=day[first - lag])
        for first, stop in zip(firsts, stops, strict=True)
    ]


def refusal(kind, call, *arguments, **named):
    with pytest.raises(kind) as raised:
        call(*arguments, **named)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def two_windows(fill):
    """A earns 5 % in the first window and B loses 2 % in the second; what the other does would show."""
    close = np.array(
        [[100, 50], [100, 50], [100, 50], [102, 150], [101, 10], [105, 40], [300, 41], [20, 39], [60, 39.2]]
    )
    return make_market(close, open=np.vstack([close[:1], close[:-1]]) if fill == "open" else None)


@pytest.mark.parametrize("fill", ["open", "close"])
def test_c24_no_jump_and_no_double_day_at_the_seam(fill):
    market = two_windows(fill)
    segments = segments_of(market, 2, 5, lag=int(fill == "close"))
    strategy = WalkForward(segments, [Holds("A"), Holds("B")], name="wf")
    result = finpod.backtest(strategy, market, start=market.dates[2], costs=FREE)
    assert result.metrics.total_return == pytest.approx(1.05 * 0.98 - 1, rel=1e-12)
    assert result.equity.index.is_monotonic_increasing
    assert result.equity.index.is_unique
    np.testing.assert_array_equal(result.equity.index, market.dates[2:])
    shares = 1e6 / 100  # of A, at the close of the seam still held, or sold at that very price
    assert result.equity.iloc[3] == pytest.approx(shares * 105, rel=1e-12)
    lines = with_segments(result, strategy).agent["segments"]
    assert [line["total_return"] for line in lines] == [pytest.approx(0.05), pytest.approx(-0.02)]
    alone = [
        finpod.backtest(Holds(name), market, start=market.dates[a], end=market.dates[b], costs=FREE).equity
        for name, a, b in (("A", 2, 5), ("B", 5, 8))
    ]
    chained = np.r_[alone[0], alone[1].to_numpy()[1:] / 1e6 * alone[0].iloc[-1]]
    np.testing.assert_allclose(result.equity, chained, rtol=1e-12)


@pytest.mark.parametrize("fill", ["open", "close"])
def test_c24_holdings_are_carried_over_and_not_traded(fill):
    market = two_windows(fill)
    segments = segments_of(market, 2, 5, lag=int(fill == "close"))
    result = finpod.backtest(WalkForward(segments, [Holds("A"), Holds("A")], name="wf"), market, start=market.dates[2])
    assert len(result.trades) == 1
    assert result.turnover.iloc[1:].sum() == 0
    assert (result.weights["A"].iloc[2:] > 0.999).all()


def test_c24_the_same_agent_in_both_segments_is_the_plain_backtest(market, tmp_path):
    agent = tiny_train(market, tmp_path / "tiny", agents=1, rounds=1, keep=1)
    start = VALIDATION[1] + 1
    strategy = WalkForward(segments_of(market, start, start + 40), [agent, agent], name="wf")
    own, plain = (finpod.backtest(one, market, start=market.dates[start]) for one in (strategy, agent))
    pd.testing.assert_series_equal(own.equity, plain.equity, check_exact=True)
    pd.testing.assert_frame_equal(own.trades, plain.trades)
    assert len(own.trades) > 50


@pytest.mark.parametrize("fill", ["open", "close"])
@pytest.mark.parametrize("hold", [1, 3, 5])
def test_each_agent_decides_from_its_first_day_on_and_the_cadence_never_changes(market, fill, hold):
    segments = schedule(market, start=market.dates[FIRST], **{**LENGTHS, "hold": hold}, fill=fill)
    agents = [Holds(name, every=hold) for name in "ABCD"]
    finpod.backtest(WalkForward(segments, agents, name="wf"), market, start=segments[0].test[0], fill=fill)
    lag = int(fill == "close")
    decided = np.concatenate([agent.asked for agent in agents])
    np.testing.assert_array_equal(decided, market.dates[FIRST - lag : -1 - lag : hold])
    for agent, segment in zip(agents, segments, strict=True):
        assert f"{agent.asked[0]!s:.10}" == segment.decides_from
        first = market.row_of(segment.test[0])
        assert agent.asked[0] == market.dates[first - lag]
        assert agent.asked[-1] <= market.dates[market.row_of(segment.test[1]) - lag]


def test_a_run_may_begin_anywhere_and_the_agent_of_the_day_decides(market):
    segments = segments_of(market, 20, 40)
    agents = [Holds("A", every=7), Holds("B", every=7)]
    finpod.backtest(WalkForward(segments, agents, name="wf"), market, start=market.dates[30])
    assert agents[0].asked == list(market.dates[[30, 37]])
    assert agents[1].asked[0] == market.dates[44]


@pytest.mark.parametrize(
    ("until", "told"),
    [(20, "on days up to"), (21, "on days up to"), (45, "on days up to"), (19, None), (0, None)],
)
def test_an_agent_never_decides_on_days_it_was_made_on(market, until, told):
    segments = segments_of(market, 10, 20)
    agents = [Holds(), Holds(until=f"{market.dates[until]!s:.10}")]
    if told is None:
        assert WalkForward(segments, agents, name="wf").trained_until is None
        return
    text = refusal(StrategyError, WalkForward, segments, agents, name="wf")
    assert f"wf that decides from {market.dates[20]!s:.10}" in text
    assert f"{told} {market.dates[until]!s:.10}" in text


def test_a_decision_that_sees_less_than_the_agent_was_chosen_on_is_refused(market):
    first, second = segments_of(market, 10, 20)
    early = replace(second, decides_from=f"{market.dates[18]!s:.10}")
    agents = [Holds(), Holds(until=f"{market.dates[19]!s:.10}")]
    assert "on days up to" in refusal(StrategyError, WalkForward, [first, early], agents, name="wf")


def test_the_backtest_refuses_days_before_the_first_segment(market, done):
    strategy = finpod.load_strategy(done.out)
    assert strategy.trained_until == strategy.segments[0].validation[1]
    assert "trained or chosen on" in refusal(
        InputError, finpod.backtest, strategy, market, start=strategy.segments[0].validation[1]
    )
    gap = market.row_of(strategy.trained_until) + 1
    assert not finpod.backtest(strategy, market, start=market.dates[gap]).in_sample
    seen = finpod.backtest(strategy, market, start=market.dates[gap - 5], allow_in_sample=True)
    assert seen.in_sample


@pytest.mark.parametrize(
    ("segments", "agents", "told"),
    [
        ([], [], "0 segments and 0 agents"),
        ([10, 20], [Holds()], "2 segments and 1 agents"),
        ([20, 10], [Holds(), Holds()], "do not follow each other"),
        ([10, 10], [Holds(), Holds()], "do not follow each other"),
        ([10, 20], [Holds(every=5), Holds(every=2)], r"every [2, 5] sessions"),
    ],
)
def test_segments_and_agents_that_do_not_fit_are_refused(market, segments, agents, told):
    made = [segments_of(market, first)[0] for first in segments]
    assert told in refusal(StrategyError, WalkForward, made, agents, name="wf")


def test_d12_what_comes_after_a_validation_changes_no_agent_chosen_on_it(market, tmp_path):
    segments = schedule(market, start=market.dates[FIRST], **LENGTHS)[:2]
    later = with_noise_after(market, market.row_of(segments[1].validation[1]))
    for name, one in (("first", market), ("later", later)):
        run(one, tmp_path / name / "wf", end=segments[1].test[1])
    for segment in segments:
        texts = [(tmp_path / name / "wf" / segment.folder / "ensemble.json").read_text() for name in ("first", "later")]
        assert texts[0] == texts[1]


def test_d12_the_strategy_passes_the_audit(market, done):
    found = audit(finpod.load_strategy(done.out), market, start=market.dates[FIRST], days=4)
    assert found.passed, str(found)


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


def test_purge_and_embargo_are_as_long_as_a_decision_is_held_unless_told(market):
    plain = schedule(market, start=market.dates[FIRST], **LENGTHS)
    told = schedule(market, start=market.dates[FIRST], **LENGTHS, purge=2, embargo=2)
    assert plain == told
    row = market.row_of
    assert row(plain[0].validation[0]) - row(plain[0].train[1]) == 3
    assert FIRST - row(plain[0].validation[1]) == 3


def test_a_rest_too_short_to_trade_belongs_to_the_segment_before(market):
    ends = {
        end: len(schedule(market, start=market.dates[FIRST], end=market.dates[end], **{**LENGTHS, "hold": 5}))
        for end in (FIRST + 39, FIRST + 44, FIRST + 45)
    }
    assert list(ends.values()) == [1, 1, 2]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"start": "2024-03-01"}, "too late for 60 sessions of training and 30 sessions of validation"),
        ({"start": "2024-03-01"}, "start on 2024-05-06 or later"),
        ({"train": "4y"}, "the data begin on 2024-01-01: too late for 4 years of training"),
        ({"start": "2031-01-01"}, "lies outside the data"),
        ({"end": "2024-07-01", "start": "2024-08-01"}, "before it starts"),
        ({"start": "yesterday"}, "is not a date"),
        ({"train": "long"}, "train is 'long'; write 4y for years"),
        ({"validation": 0}, "validation is 0"),
        ({"test": 1.5}, "test is 1.5"),
        ({"test": -3}, "test is -3"),
        ({"hold": 0}, "hold is 0"),
        ({"hold": 2.5}, "hold is 2.5"),
        ({"test": 3, "hold": 8}, "test is 3 sessions, shorter than hold=8"),
        ({"validation": 12, "hold": 8}, "the validation window before 2024-07-01 has 3 sessions to trade"),
        ({"train": 10, "hold": 8}, "the training window before 2024-07-01 has 1 sessions to trade"),
        ({"purge": 60}, "the training window before 2024-07-01 has 0 sessions to trade"),
        ({"embargo": 30}, "the validation window before 2024-07-01 has 0 sessions to trade"),
        ({"purge": 1}, "purge is 1 sessions; it must be 2 or more, for a decision is held for 2"),
        ({"embargo": -1}, "embargo is -1 sessions; it must be 0 or more"),
        ({"end": "2024-07-02"}, "from 2024-07-01 on there are 1 sessions to trade, fewer than hold=2"),
        ({"fill": "noon"}, "fill is 'noon'"),
        ({"task": "bonds"}, "unknown task 'bonds'"),
        ({"learner": "sac9"}, "unknown learner 'sac9'"),
        ({"features": ["retrun_5"]}, "unknown feature 'retrun_5'"),
        ({"colour": "red"}, "no setting 'colour'"),
        ({"agents": 0}, "agents is 0"),
        ({"device": "abacus"}, "'abacus'"),
        ({"resume": True}, "there is no unfinished walk-forward"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_leaves_nothing(market, tmp_path, changes, told):
    assert told in refusal(InputError, run, market, tmp_path / "strategies" / "wf", **changes)
    assert list(tmp_path.iterdir()) == []


def test_intraday_agents_take_over_at_a_bar():
    days = pd.bdate_range("2024-01-01", periods=60)
    dates = np.concatenate(
        [day + pd.Timedelta("10h") + pd.timedelta_range("0min", periods=4, freq="60min") for day in days]
    )
    close = 50 * np.cumprod(1 + np.random.default_rng(0).normal(0, 0.01, (240, 2)), axis=0)
    market = MarketData(dates=dates, tickers=("A", "B"), close=close, open=close, benchmark_close=close[:, 0])
    segments = schedule(market, start=days[40], train=20, validation=10, test=6, hold=5)
    assert [one.test[0] for one in segments][:2] == ["2024-02-26T10:00", "2024-03-05T11:00"]
    assert segments[1].decides_from == segments[1].test[0]
    assert (segments[1].train[1], segments[1].validation[1]) == ("2024-02-15", "2024-02-29")
    agents = [Holds(name, every=5) for name in "ABAB"[: len(segments)]]
    result = finpod.backtest(WalkForward(segments, agents, name="wf"), market, start=segments[0].test[0])
    np.testing.assert_array_equal(np.concatenate([agent.asked for agent in agents]), dates[160:-1:5])
    lines = with_segments(result, WalkForward(segments, agents, name="wf")).agent["segments"]
    assert np.prod([1 + line["total_return"] for line in lines]) == pytest.approx(1 + result.metrics.total_return)


def test_the_result_tells_what_each_segment_earned(market, done):
    result = done.result
    lines = result.agent["segments"]
    assert len(lines) == 4
    assert np.prod([1 + line["total_return"] for line in lines]) == pytest.approx(
        result.equity.iloc[-1] / 1e6, rel=1e-12
    )
    for kind, curve in (("benchmark", result.benchmark_equity), ("equal_weight", result.equal_weight_equity)):
        assert np.prod([1 + line[kind] for line in lines]) == pytest.approx(curve.iloc[-1] / curve.iloc[0], rel=1e-9)
    second = market.window(*lines[1]["test"].split(" to "))
    part = slice(second[0] - FIRST, second[1] - FIRST + 2)
    over = np.subtract(
        *(curve.iloc[part].pct_change().dropna() for curve in (result.equity, result.equal_weight_equity))
    )
    ratio = finpod.metrics(returns=over, periods_per_year=result.periods_per_year).sharpe
    error = sharpe_error(over.to_numpy(), periods_per_year=result.periods_per_year)
    assert lines[1]["out_of_sample_score"] == pytest.approx(ratio - error, rel=1e-9)
    assert lines[1]["over_equal_weight"] == lines[1]["total_return"] - lines[1]["equal_weight"]
    ensemble = json.loads((done.out / lines[1]["agent"] / "ensemble.json").read_text())
    scores = [one["score"] for one in ensemble["provenance"]["members"]]
    assert lines[1]["validation_score"] == pytest.approx(np.mean(scores))
    walk = result.agent["walk_forward"]
    assert (walk["segments"], walk["purge"], walk["embargo"], walk["expanding"]) == (4, 2, 2, False)
    assert walk["rank_correlation"] == rank_correlation(
        *([line[f"{kind}_score"] for line in lines] for kind in ("validation", "out_of_sample"))
    )
    assert result.agent["fill"] == result.fill == "open"


def test_rank_correlation():
    assert rank_correlation([1, 2, 3, 9], [10, 20, 30, 31]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(0.6)
    assert rank_correlation([1, 2, 3, np.nan], [1, 2, 3, -9]) == pytest.approx(1)
    for one, other in (([1, 2], [1, 2]), ([1, 1, 1], [1, 2, 3]), ([1, 2, np.nan], [1, 2, 3])):
        assert np.isnan(rank_correlation(one, other))


def test_d12_all_trials_are_counted(done):
    assert done.result.trials == 8
    assert "8 trials" in str(done.result)
    assert [line["trials"] for line in done.result.agent["segments"]] == [2] * 4


def test_d24_each_seed_is_followed_through_all_segments(market, done, tmp_path):
    assert list(done.result.variants) == ["seed 0", "seed 1"]
    alone = run(market, tmp_path / "alone", seed=1)
    np.testing.assert_array_equal(done.result.variants["seed 1"], alone.equity)
    assert alone.variants == {}
    assert done.result.spread["count"]["sharpe"] == 2


def test_the_report_shows_the_segments_and_all_their_windows(done, tmp_path):
    assert list(done.result.windows) == [f"{what} {i}" for i in range(1, 5) for what in ("train", "validation")]
    done.result.save(tmp_path / "run")
    again = load_result(tmp_path / "run")
    for result in (done.result, again):
        table = dict(members(result))["Segments"]
        assert [row[0] for row in table.rows] == [line["agent"] for line in done.result.agent["segments"]]
        assert {"Validation score", "Out of sample score", "Over equal weight", "Total return"} <= set(table.head)
        assert [name for row in timeline(result) for name in (bar["name"] for bar in row)].count("validation 4") == 1
        agent = dict(dict(provenance(result))["Agent"])
        assert agent["Walk forward: Segments"] == "4"
        assert agent["Walk forward: Rank correlation"]


def test_c25_the_folder_is_the_strategy_again(market, done):
    strategy = finpod.load_strategy(done.out)
    assert (strategy.name, strategy.every, strategy.trials) == ("wf", 2, 8)
    again = finpod.backtest(strategy, market, start=market.dates[FIRST])
    np.testing.assert_array_equal(again.equity, done.result.equity)
    assert with_segments(again, strategy).to_json() == done.result.to_json()
    names = [segment.folder for segment in strategy.segments]
    assert sorted(path.name for path in done.out.iterdir()) == [*names, "walkforward.json"]
    assert [path.name for path in done.out.parent.iterdir()] == ["wf"]


def test_d01_two_runs_are_identical(market, done, tmp_path):
    assert run(market, tmp_path / "wf", seeds=2).to_json() == done.result.to_json()


def test_own_features_are_given_back_on_loading(market, out):
    def log_price(market):
        return np.log(market.close)

    run(market, out, features=["return_5", log_price], end=market.dates[FIRST + 20])
    assert "log_price" in refusal(CheckpointError, finpod.load_strategy, out)
    strategy = finpod.load_strategy(out, [log_price])
    assert finpod.backtest(strategy, market, start=market.dates[FIRST]).metrics.days > 20


def test_finished_segments_are_kept_and_gone_on_with(market, done, out, monkeypatch, trained):
    with monkeypatch.context() as patch:
        fail_at(patch, 2, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            run(market, out, seeds=2)
    kept = out.with_name("wf.unfinished")
    assert [path.name for path in out.parent.iterdir()] == [kept.name]
    assert len(list(kept.glob("segment-*"))) == 2
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    assert "go on with it with resume=True" in refusal(InputError, run, market, out, seeds=2)
    assert "hold was 2 and is 3" in refusal(InputError, run, market, out, seeds=2, hold=3, resume=True)
    assert "seeds was 2 and is 1" in refusal(InputError, run, market, out, resume=True)
    other = with_noise_after(market, 250)
    assert "data was" in refusal(InputError, run, other, out, seeds=2, resume=True)
    assert {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()} == before
    (kept / ".half").mkdir()  # of a process that was killed
    trained.clear()
    result = run(market, out, seeds=2, resume=True)
    assert len(trained) == 2
    assert result.to_json() == done.result.to_json()
    assert [path.name for path in out.parent.iterdir()] == ["wf"]
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in done.out.iterdir())


def test_a_finished_walk_forward_is_judged_again_without_training(market, done, copied, trained):
    assert run(market, copied, seeds=2, resume=True).to_json() == done.result.to_json()
    assert trained == []
    assert "seeds was 2 and is 3" in refusal(InputError, run, market, copied, seeds=3, resume=True)


def test_a_failure_before_the_first_segment_is_done_leaves_nothing(market, tmp_path, monkeypatch):
    fail_at(monkeypatch, 0, InputError("no ink; buy some"))
    assert "no ink" in refusal(InputError, run, market, tmp_path / "strategies" / "wf")
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_walk_forward_is_replaced_when_allowed_and_only_when_all_is_done(market, copied, monkeypatch):
    before = (copied / "walkforward.json").read_bytes()
    assert "exists already" in refusal(InputError, run, market, copied)
    with monkeypatch.context() as patch:
        fail_at(patch, 1, InputError("no ink; buy some"))
        assert "no ink" in refusal(InputError, run, market, copied, overwrite=True)
    assert (copied / "walkforward.json").read_bytes() == before
    assert copied.with_name("wf.unfinished").exists()
    run(market, copied, overwrite=True, end=market.dates[FIRST + 50])
    assert (copied / "walkforward.json").read_bytes() != before
    assert len(list(copied.glob("segment-*"))) == 2
    assert [path.name for path in copied.parent.iterdir()] == ["wf"]


@pytest.mark.parametrize("place", [".", "segment-2024-07-01"])
def test_overwrite_leaves_foreign_files_alone(market, copied, trained, place):
    (copied / place / "notes.txt").write_text("keep me")
    assert "notes.txt" in refusal(InputError, run, market, copied, overwrite=True)
    assert (copied / place / "notes.txt").read_text() == "keep me"
    assert trained == []


def test_overwrite_replaces_no_other_kind_of_folder(market, done, out, trained, monkeypatch):
    shutil.copytree(next(done.out.glob("segment-*")), out)
    assert "no part of a walk-forward" in refusal(InputError, run, market, out, overwrite=True)
    monkeypatch.chdir(out)
    assert "current folder" in refusal(InputError, run, market, out.parent, overwrite=True)
    (out.parent / "file").write_text("text")
    assert "not a folder" in refusal(InputError, run, market, out.parent / "file", overwrite=True)
    assert trained == []


def test_a_folder_that_is_not_whole_is_refused(copied):
    manifest = copied / "walkforward.json"
    content = json.loads(manifest.read_text())
    segment = copied / content["segments"][1]["test"][0].join(["segment-", ""])

    def told(text):
        manifest.write_text(text)
        return refusal(CheckpointError, finpod.load_strategy, copied)

    assert "cannot read walkforward.json" in told("{")
    assert "not of this version" in told(json.dumps({**content, "format": "finpod walk-forward 0"}))
    assert "not of this version" in told("[]")
    assert "is damaged" in told(json.dumps({**content, "segments": [{"test": ["2024-07-01"]}]}))
    assert "is damaged" in told(json.dumps({**content, "segments": [{**content["segments"][0], "decides_from": "x"}]}))
    assert "is damaged" in told(json.dumps({key: content[key] for key in ("format", "segments")}))
    manifest.write_text(json.dumps(content))
    segment.rename(copied / "elsewhere")
    assert "cannot read ensemble.json" in refusal(CheckpointError, load_walkforward, copied)


def test_segments_that_were_swapped_by_hand_are_refused(copied):
    first, second = sorted(copied.glob("segment-*"))[:2]
    first.rename(copied / "aside")
    second.rename(first)
    (copied / "aside").rename(second)
    assert "on days up to" in refusal(StrategyError, finpod.load_strategy, copied)


def test_a_segment_that_had_begun_is_gone_on_with_too(market, out, monkeypatch):
    size = {"rounds": 2, "end": market.dates[FIRST + 50]}
    whole = run(market, out.with_name("whole") / "wf", **size)
    slices, run_slice = [], training.run_slice

    def interrupted(*arguments, **named):
        slices.append(arguments)
        if len(slices) == 4:  # the second of the second segment
            raise KeyboardInterrupt
        return run_slice(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(training, "run_slice", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(market, out, **size)
        assert run(market, out, **size, resume=True).to_json() == whole.to_json()
    assert len(slices) == 5
    assert not out.with_name("wf.unfinished").exists()
