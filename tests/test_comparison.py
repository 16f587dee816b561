"""Runs side by side: one window, one start, intervals of the differences, and what makes a comparison unfair."""

import json
import math
import re
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_results import make_result, trained
from test_report import Page

import finpod
from finpod.comparison import contrasts
from finpod.comparison.comparison import (
    LESS,
    MORE,
    figure_rows,
    format_comparison,
    headings,
    rank_rows,
    selection,
)
from finpod.comparison.notes import note_sentence, unfair_sentence
from finpod.comparison.runs import compare
from finpod.errors import InputError
from finpod.figures import percent, ratio
from finpod.market.data import MarketData
from finpod.measures import drawdowns, metrics, relative
from finpod.records import Audit, Finding, ResultWarning, Severity
from finpod.report.compare import COLOURS, render_comparison, write_comparison
from finpod.significance import expected_best
from finpod.strategy import EqualWeight
from finpod.trading.ledger import Costs


def run(seed=0, *, days=100, strategy=None, **changes):
    """A made result; those of different seeds share their rivals, as runs on the same data do."""
    market = make_result(days=days)
    shared = {"benchmark_equity": market.benchmark_equity, "equal_weight_equity": market.equal_weight_equity}
    return make_result(days=days, seed=seed, **{"strategy": strategy or f"s{seed}", **shared, **changes})


def part(result, first, last):
    """The same account, as a run that knows only the closes [first, last]."""
    days = result.equity.index[first : last + 1]
    curves = {name: getattr(result, name).loc[days] for name in ("equity", "benchmark_equity", "equal_weight_equity")}
    fills = result.turnover.index
    inside = (
        (fills >= days[0]) & (fills < days[-1]) if result.fill == "close" else (fills > days[0]) & (fills <= days[-1])
    )
    trades = result.trades[result.trades["date"].isin(fills[inside])]
    return replace(result, **curves, weights=result.weights.loc[days], turnover=result.turnover[inside], trades=trades)


@pytest.fixture(scope="module", autouse=True)
def _few_resamples():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contrasts, "RESAMPLES", 1000)
        yield


SURVIVORS = ResultWarning("survivorship", {"membership": "x"})


@pytest.fixture(scope="module")
def three():
    return compare([run(1), run(2), run(3)])


def test_a_run_that_is_not_cut_keeps_its_own_figures(three):
    for name, own in three.runs.items():
        found = three.figures[name]
        assert {key: found[key] for key in asdict(own.metrics)} == asdict(own.metrics)
        assert found["excess"] == own.relative.excess
        assert found["excess_over_equal_weight"] == own.relative_to_equal_weight.excess
        assert found["information_ratio"] == own.relative_to_equal_weight.information_ratio
        assert found["turnover"] == own.table["strategy"]["turnover"]
        assert found["yearly_turnover"] == pytest.approx(own.table["strategy"]["yearly_turnover"], rel=1e-12)
        assert found["costs"] == own.fees / own.equity.iloc[0]
    assert three.rival_figures["QQQ"]["sharpe"] == pytest.approx(own.benchmark_metrics.sharpe, rel=1e-9)
    assert three.rival_figures["equal weight"]["cagr"] == pytest.approx(own.equal_weight_metrics.cagr, rel=1e-9)
    assert three.notes == ()
    assert three.unfair == ()


def test_a28_all_start_anew_at_the_first_common_close():
    long, short = run(1, days=100), run(2, days=100)
    found = compare([long, part(short, 30, 80)])
    assert len(found.equity) == 51
    assert list(found.equity.iloc[0]) == [1.0, 1.0]
    cut = long.equity.to_numpy()[30:81]
    assert found.figures["s1"]["total_return"] == pytest.approx(cut[-1] / cut[0] - 1, rel=1e-12)
    assert found.figures["s1"]["max_drawdown"] == drawdowns(cut).min()
    assert found.figures["s1"]["sharpe"] == metrics(cut).sharpe
    bench = long.benchmark_equity.to_numpy()[30:81]
    assert found.figures["s1"]["excess"] == relative(cut, bench).excess
    assert any(
        "shortened to the 51 closes" in text and "s1 has 101" in text for text in map(note_sentence, found.notes)
    )
    assert any("began earlier, s1," in note_sentence(note) for note in found.notes)
    assert found.figures["s2"]["total_return"] == pytest.approx(
        compare([part(short, 30, 80), part(long, 30, 80)]).figures["s2"]["total_return"], rel=1e-12
    )


@given(first=st.integers(0, 8), last=st.integers(12, 20), fill=st.sampled_from(["open", "close"]))
@settings(max_examples=20, deadline=None)
def test_turnover_and_costs_are_those_between_the_first_and_the_last_close(first, last, fill):
    """Buys and sells of two names on every day; a fill at the close belongs to the next return."""
    made = run(1, days=20, fill=fill)
    days = made.equity.index
    fills = days[:-1] if fill == "close" else days[1:]
    sizes = np.arange(1.0, 21)
    trades = pd.DataFrame(
        {"date": fills, "ticker": "N00", "shares": sizes, "price": 1.0, "notional": sizes, "cost": sizes}
    )
    made = replace(made, turnover=pd.Series(sizes / 100, fills), trades=trades.assign(kind="fill"))
    found = compare([made, part(run(2, days=20, fill=fill), first, last)])
    steps = sizes[first:last]  # return k is that from close k to close k + 1
    assert found.figures["s1"]["turnover"] == pytest.approx(steps.sum() / 100)
    assert found.figures["s1"]["costs"] == pytest.approx(steps.sum() / made.equity.iloc[first])
    assert found.figures["s1"]["days"] == last - first


def test_sessions_that_one_run_lacks_are_left_out_for_all():
    whole, gappy = run(1, days=30), run(2, days=30)
    holes = gappy.equity.index.delete([7, 8, 20])
    gappy = replace(
        gappy,
        equity=gappy.equity[holes],
        benchmark_equity=gappy.benchmark_equity[holes],
        equal_weight_equity=gappy.equal_weight_equity[holes],
        weights=gappy.weights.loc[holes],
    )
    found = compare([whole, gappy])
    assert list(found.equity.index) == list(holes)
    assert found.figures["s1"]["total_return"] == pytest.approx(whole.metrics.total_return, rel=1e-12)
    assert found.figures["s1"]["days"] == 27
    assert "s1 has 31" in note_sentence(found.notes[0])
    assert "began earlier" not in note_sentence(found.notes[0])


def test_a30_text_json_and_page_show_the_same_figures(three):
    stored, html, text = json.loads(three.to_json()), render_comparison(three), str(three)
    page = Page(html).text
    for name, own in stored["runs"].items():
        for shown in (percent(own["figures"]["total_return"]), ratio(own["figures"]["sharpe"])):
            assert shown in page
            assert shown in text
        gap = own["figures"]["total_return"] - stored["rivals"]["QQQ"]["total_return"]
        assert own["figures"]["excess"] == pytest.approx(gap, abs=1e-9)
        assert own["figures"] == json.loads(json.dumps(three.figures[name]))
    for label, cells in [*figure_rows(three), *rank_rows(three)]:
        row = re.search(rf'<th scope="row">{re.escape(label)}</th>(.*?)</tr>', html)[1]
        assert [cell for cell in re.findall(r"<td>(.*?)</td>", row) if cell] == [cell for cell in cells if cell]
    assert selection(three) in page
    assert selection(three) in text


def test_e07_undefined_figures_are_null_and_n_a():
    flat = run(1, strategy="idle", equity=np.full(101, 1000.0))
    found = compare([flat, run(2)])
    stored = json.loads(found.to_json(), parse_constant=lambda word: pytest.fail(word))
    assert stored["runs"]["idle"]["figures"]["sharpe"] is None
    assert stored["runs"]["idle"]["ranks"]["sharpe"] is None
    assert stored["pairs"][0]["sharpe"]["low"] is None
    for shown in (str(found), Page(render_comparison(found)).text):
        assert "n/a" in shown
        assert not re.search(r"\b(nan|inf)\b|-0\.00%|[+-]0\.00\b", shown)


def test_pairs_are_differences_of_the_figures(three):
    assert [(pair.first, pair.second) for pair in three.pairs] == [("s1", "s2"), ("s1", "s3"), ("s2", "s3")]
    for pair in three.pairs:
        for key in ("cagr", "sharpe"):
            found = getattr(pair, key)
            gap = three.figures[pair.first][key] - three.figures[pair.second][key]
            assert found.estimate == pytest.approx(gap, abs=1e-9)
            assert found.low < found.estimate < found.high
            assert found.level == 0.95


def test_pairs_turn_round_with_the_order(three):
    turned = {(pair.second, pair.first): pair for pair in compare([run(3), run(2), run(1)]).pairs}
    for pair in three.pairs:
        other = turned[pair.first, pair.second]
        for key in ("cagr", "sharpe"):
            low, estimate, high, _ = getattr(other, key)
            assert getattr(pair, key)[:3] == pytest.approx((-high, -estimate, -low), abs=1e-9)


def test_a_pair_does_not_depend_on_the_runs_beside_it(three):
    alone = compare([run(1), run(3)])
    assert alone.pairs[0].cagr == pytest.approx(three.pairs[1].cagr, abs=1e-12)
    assert alone.figures["s1"] == three.figures["s1"]


def test_what_is_better_every_day_is_better_than_luck_explains():
    steady = run(1)
    steps = steady.equity.pct_change().fillna(0) + 0.002
    steps.iloc[0] = 0
    better = replace(steady, strategy="better", equity=(1 + steps).cumprod() * 1e6)
    found = compare([better, steady])
    assert found.pairs[0].cagr.low > 0
    assert "better over s1: CAGR +" in str(found)
    assert "better than luck explains" in str(found)
    assert "1 differs in growth" in render_comparison(found)
    assert "worse than luck explains" in str(compare([steady, better]))


def test_noise_seldom_differs_from_noise(monkeypatch):
    """The negative control: of 30 pairs of skill-less runs, a 95 % interval parts but a few."""
    monkeypatch.setattr(contrasts, "RESAMPLES", 300)
    random = np.random.default_rng(5)
    apart = 0
    for _ in range(30):
        curves = 1e6 * np.cumprod(1 + np.vstack([np.zeros(2), random.normal(0, 0.01, (250, 2))]), axis=0)
        one, two = (run(1, days=250, equity=curve, strategy=name) for name, curve in zip("ab", curves.T, strict=True))
        apart += not compare([one, two]).pairs[0].cagr.covers_zero
    assert apart <= 5


@pytest.mark.parametrize(
    ("one", "two", "reason"),
    [
        (run(1), run(1, strategy="same"), "same"),
        (run(1), run(1, strategy="poor", equity=run(1).equity.to_numpy() / 1e3), "same"),
        (run(1, days=12), run(2, days=12), "short"),
        (run(1), run(2, equity=np.append(run(2).equity[:60], np.zeros(41))), "ruined"),
    ],
)
def test_pairs_without_an_interval_say_why(one, two, reason):
    found = compare([one, two])
    pair = found.pairs[0]
    assert (pair.cagr, pair.sharpe, pair.reason) == (None, None, reason)
    assert "no interval: " in str(found)
    assert "no interval: " in Page(render_comparison(found)).text
    assert json.loads(found.to_json())["pairs"][0]["cagr"] is None


def test_a14_a_ruined_account_is_shown_to_the_end():
    lost = run(2, equity=np.append(run(2).equity[:60], np.zeros(41)))
    found = compare([run(1), lost])
    assert found.figures["s2"]["total_return"] == -1
    assert found.figures["s2"]["max_drawdown"] == -1
    assert found.ranks["s2"]["cagr"] == 2


def test_a13_a_short_history_is_starred():
    found = compare([run(1, days=5), run(2, days=5)])
    assert "CAGR *" in str(found)
    assert "from only 5 returns" in str(found)
    assert "from only 5 returns" in render_comparison(found)
    assert "information ratio" not in selection(found)
    single = compare([run(1, days=1), run(2, days=1)])
    assert "from only 1 return:" in str(single)
    assert ", 1 return that all runs have" in render_comparison(single)


def test_ranks_put_the_best_first_and_let_equals_share(three):
    ranks = compare([run(1), run(1, strategy="twin"), run(2)]).ranks
    assert ranks["s1"] == ranks["twin"]
    for key in (*MORE, *LESS):
        figures = {name: three.figures[name][key] for name in three.runs}
        order = sorted(figures, key=figures.get, reverse=key in MORE)
        if len(set(figures.values())) == 3:
            assert [three.ranks[name][key] for name in order] == [1, 2, 3]
    assert {row[0] for row in rank_rows(three)} == {
        "Rank by Sharpe",
        "Rank by CAGR",
        "Rank by drawdown",
        "Rank by information ratio",
    }


def test_correlation_is_that_of_the_active_returns(three):
    def active(name):
        own = three.runs[name]
        return own.returns.to_numpy() - own.equal_weight_equity.pct_change().dropna().to_numpy()

    expected = np.corrcoef([active(name) for name in three.runs])
    np.testing.assert_allclose(three.correlation, expected, atol=1e-12)
    equal = run(1)
    equal = replace(equal, strategy="equal", equity=equal.equal_weight_equity)
    table = compare([equal, run(2)]).correlation
    assert table.loc["equal"].isna().all()
    assert table.loc["s2", "s2"] == pytest.approx(1)


def test_rivals_that_all_runs_share_are_shown_once(three):
    assert list(three.rivals) == ["QQQ", "equal weight"]
    assert all(rival.runs == ("s1", "s2", "s3") for rival in three.rivals.values())
    assert all(rival.curve.iloc[0] == 1 for rival in three.rivals.values())
    bigger = run(2)
    curves = {name: getattr(bigger, name) * 7 for name in ("equity", "benchmark_equity", "equal_weight_equity")}
    assert list(compare([run(1), replace(bigger, **curves)]).rivals) == ["QQQ", "equal weight"]


def test_rivals_that_differ_are_named_after_their_runs():
    other = run(3)
    other = replace(other, benchmark="SPY", equal_weight_equity=make_result(days=100, seed=9).equal_weight_equity)
    found = compare([run(1), run(2), other])
    assert list(found.rivals) == ["QQQ (s1, s2)", "SPY (s3)", "equal weight (s1, s2)", "equal weight (s3)"]
    assert any("each is shown" in note_sentence(note) for note in found.notes)
    text = Page(render_comparison(found)).text
    assert "benchmark of each run" in text
    assert "equal weight (s1, s2)" in text


def test_a23_a_benchmark_with_gaps_counts_on_its_own_days():
    gappy = run(1)
    bars = gappy.benchmark_equity.copy()
    bars.iloc[[0, 5, 6]] = np.nan
    gappy = replace(gappy, benchmark_equity=bars)
    found = compare([gappy, replace(run(2), benchmark_equity=bars)])
    assert list(found.rivals) == ["QQQ", "equal weight"]
    assert found.figures["s1"]["excess"] == gappy.relative.excess
    assert found.rival_figures["QQQ"]["days"] == 97
    none = replace(gappy, benchmark_equity=bars * np.nan)
    assert math.isnan(compare([none, run(2)]).figures["s1"]["excess"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"data_hash": "aa" * 32},
            "the data differ: a made market, 3f3f3f3f3f3f (s1); a made market, aaaaaaaaaaaa (s2)",
        ),
        ({"costs": Costs(fee_bps=20)}, "20 bps fee a side"),
        ({"fill": "close"}, "filled at the close"),
        ({"whole_shares": True}, "whole shares"),
        ({"equity": run(2).equity.to_numpy() / 10}, "the starting cash differs"),
        ({"risk_free": 0.02}, "0.00% (s1); 2.00% (s2), so Sharpe ratios here are against 0 %"),
    ],
)
def test_terms_that_differ_make_it_unfair(changes, said):
    found = compare([run(1), run(2, **changes)])
    assert len(found.unfair) == 1
    sentence = unfair_sentence(found.unfair[0])
    assert said in sentence
    assert sentence in str(found)
    assert re.search(r'<li class="red">No fair comparison: ', render_comparison(found))
    assert json.loads(found.to_json())["unfair"] == [{"what": found.unfair[0].what, "runs": [["s1"], ["s2"]]}]


def test_a10_one_risk_free_rate_serves_all_and_two_serve_none():
    same = compare([run(1, risk_free=0.02), run(2, risk_free=0.02)])
    assert same.risk_free == 0.02
    assert same.figures["s1"]["sharpe"] == run(1, risk_free=0.02).metrics.sharpe
    assert same.pairs[0].sharpe.estimate == pytest.approx(same.figures["s1"]["sharpe"] - same.figures["s2"]["sharpe"])
    mixed = compare([run(1, risk_free=0.02), run(2)])
    assert mixed.figures["s1"]["sharpe"] == run(1).metrics.sharpe


def test_warnings_are_carried_with_the_runs_that_have_them():
    one = run(1, warnings=(SURVIVORS, ResultWarning("never_traded")), in_sample=True)
    two = run(2, warnings=(SURVIVORS,))
    found = compare([two, one])
    assert [(warned.warning.code, warned.runs, warned.warning.grave) for warned in found.warnings] == [
        ("in_sample", ("s1",), True),
        ("survivorship", ("s2", "s1"), False),
        ("never_traded", ("s1",), False),
    ]
    assert "warning (s1): in-sample" in str(found)
    assert "warning: survivorship: x" in str(found)
    assert re.search(r'<li class="red">s1: in-sample', render_comparison(found))


def test_a_run_that_only_holds_later_rows_can_look_ahead():
    audit = Audit(False, (Finding("held", Severity.CAN_LOOK_AHEAD, "decisions", "2024-01-05", "self.market"),))
    compared = compare([run(2), run(1, in_sample=True, audit=audit)])
    assert headings(compared) == ["s2", "s1 (CAN LOOK AHEAD)"]
    assert compared.warnings[0].warning == ResultWarning("look_ahead", {"severity": Severity.CAN_LOOK_AHEAD})


def test_a_run_that_looks_ahead_is_marked_and_its_warning_is_the_first():
    cheat = run(1, in_sample=True, warnings=(SURVIVORS,), audit=Audit(False))
    compared = compare([run(2), run(3, costs=Costs(fee_bps=3)), cheat])
    assert compared.unfair
    assert [warned.warning.code for warned in compared.warnings][:2] == ["look_ahead", "in_sample"]
    assert headings(compared) == ["s2", "s3", "s1 (LOOKS AHEAD)"]
    text = str(compared)
    assert "LOOKS AHEAD)" in text.split("Total return")[0]
    assert text.index("warning (s1): LOOKS AHEAD") < text.index("no fair comparison")
    page = render_comparison(compared)
    assert re.search(r'<li class="red">s1: LOOKS AHEAD', page)
    assert page.index("s1: LOOKS AHEAD") < page.index("No fair comparison")
    assert ">s1 (LOOKS AHEAD)<" in page
    assert headings(compare([run(2), run(1, in_sample=True)])) == ["s2", "s1 (in-sample)"]


def test_what_is_said_already_is_not_said_twice():
    warnings = (
        ResultWarning("look_ahead", {"severity": "looks_ahead"}),
        ResultWarning("in_sample", {"trained_until": "2020-01-01"}),
    )
    sound = compare([run(2), run(1, in_sample=True, audit=Audit(False), warnings=warnings)])
    assert tuple(warned.warning for warned in sound.warnings) == warnings
    assert compare([run(2, audit=Audit(True)), run(1)]).warnings == ()


def test_without_a_benchmark_there_is_no_column_of_one():
    none = {"benchmark": "none", "benchmark_equity": run().benchmark_equity * math.nan}
    found = compare([run(1, **none), run(2, **none)])
    assert list(found.rivals) == ["equal weight"]
    assert math.isnan(found.figures["s1"]["excess"])
    assert "none" not in str(found).split("Sharpe")[0]
    page = render_comparison(found)
    assert "benchmark of each run" not in page
    assert not re.search(r"<th[^>]*>none<", page)
    assert list(compare([run(1, **none), run(2)]).rivals) == ["QQQ", "equal weight"]


def test_d12_the_best_of_all_trials_is_held_against_luck():
    found = compare([run(1, days=1008), run(2, days=1008, trials=9)])
    assert found.candidates == 10
    assert found.chance[10] == pytest.approx(0.787299, abs=1e-6)
    assert found.chance[2] == expected_best(2, 0.5)
    assert "0.79 for the best of 10" in selection(found)
    assert "behind these 2 runs" in selection(found)


def test_one_search_counts_once():
    agent = trained(100, in_sample=True)
    runs = [replace(agent, strategy="cheap"), replace(agent, strategy="dear", costs=Costs(fee_bps=50)), run(1)]
    assert compare(runs).candidates == 17
    other = replace(agent, agent={**agent.agent, "seed": 5})
    assert compare([agent, other]).candidates == 32


def test_trials_on_other_days_are_no_candidates():
    runs = [trained(100), run(1), run(2)]
    assert compare(runs).candidates == 3
    assert list(compare(runs).chance) == [3]
    assert compare([trained(100, opened=5), run(1)]).candidates == 6


@pytest.mark.parametrize(
    ("strategies", "names", "labels"),
    [
        ("ab", None, ["a", "b"]),
        ("aa", None, ["a (1)", "a (2)"]),
        ("aab", ["x", "y", "z"], ["x", "y", "b"]),
        ("aba", ["b", "y", "z"], ["b (1)", "b (2)", "z"]),
        ("aa", ["x", "x"], ["x (1)", "x (2)"]),
        (["a", "a", "a (2)"], None, ["a (1) (1)", "a (2) (2)", "a (2) (3)"]),
    ],
)
def test_every_run_has_a_name_of_its_own(strategies, names, labels):
    runs = [run(seed, days=30, strategy=name) for seed, name in enumerate(strategies)]
    found = compare(runs, names=names)
    assert list(found.runs) == labels
    assert [own.strategy for own in found.runs.values()] == list(strategies)


def test_what_cannot_be_compared_is_refused_in_one_line():
    made = run(1)
    later = run(2, start="2030-01-01")
    later = replace(
        later,
        benchmark_equity=later.equity,
        equal_weight_equity=later.equity,
    )
    for given_runs, said in (
        ([], "no run cannot be compared; give two or more"),
        ([made], "one run cannot be compared; give two or more"),
        ([made, None], "None is no result"),
        ([made, "backtests/first"], "'backtests/first' is no result"),
        ([made, later], r"no two sessions in common \(s1 2017-01-03 to .*, s2 2030-01-01 to .*\)"),
        (
            [made, replace(run(2), periods_per_year=252 * 6)],
            r"s1 has 252 sessions a year and s2 1,512 bars a year \(252",
        ),
        ([made, replace(run(2), periods_per_year=52)], "s2 52 bars a year; compare daily runs with daily ones"),
    ):
        with pytest.raises(InputError, match=said) as raised:
            compare(given_runs)
        assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match="3 names for 2 runs"):
        compare([made, run(2)], names=["a", "b", "c"])


def test_one_common_session_is_not_enough():
    whole = run(1)
    with pytest.raises(InputError, match="no two sessions in common"):
        compare([part(whole, 0, 50), part(whole, 50, 100)])
    assert len(compare([part(whole, 0, 51), part(whole, 50, 100)]).equity) == 2


def test_an_account_ruined_before_the_window_is_refused():
    lost = run(2, equity=np.append(run(2).equity[:10], np.zeros(91)))
    with pytest.raises(InputError, match=r"s2 was ruined before 2017-\d\d-\d\d, .*leave it out"):
        compare([part(run(1), 30, 80), lost])


def test_intraday_runs_go_session_by_session():
    days = pd.bdate_range("2024-01-01", periods=30)
    dates = np.concatenate(
        [day + pd.Timedelta("9h30min") + pd.timedelta_range("0min", periods=4, freq="1h") for day in days]
    )
    close = 50 * np.cumprod(1 + np.random.default_rng(0).normal(0, 0.002, (len(dates), 3)), axis=0)
    market = MarketData(
        dates=dates, tickers=("A", "B", "C"), close=close, benchmark="B", benchmark_close=close[:, 1], manifest={}
    )

    class First(finpod.Strategy):
        def decide(self, view):
            return np.array([1.0, 0, 0])

    found = compare([finpod.backtest(EqualWeight(), market), finpod.backtest(First(), market)])
    assert list(found.equity.index[1:]) == list(days)
    assert found.figures["First"]["days"] == 30
    assert any("session by session, from the first bar on" in note_sentence(note) for note in found.notes)
    for name, whole in (
        ("First", finpod.backtest(First(), market)),
        ("equal-weight", finpod.backtest(EqualWeight(), market)),
    ):
        assert found.figures[name]["total_return"] == pytest.approx(whole.metrics.total_return, rel=1e-12)
        assert found.figures[name]["turnover"] == pytest.approx(whole.table["strategy"]["turnover"])
    later = compare([finpod.backtest(EqualWeight(), market), finpod.backtest(First(), market, start=days[10])])
    assert list(later.equity.index) == list(days[10:])  # V_0 of the second is no close of the first
    assert any("session by session, from the close of the first one" in note_sentence(note) for note in later.notes)
    last = np.append(close[0, 0], close[3::4, 0])
    assert found.figures["First"]["volatility"] == pytest.approx(metrics(last).volatility, rel=1e-3)


def test_equal_runs_give_equal_json_and_pages():
    one, two = (compare([run(1), run(2)]) for _ in range(2))
    assert one.to_json() == two.to_json()
    assert render_comparison(one) == render_comparison(two)


# The page


def test_e02_one_file_without_network_or_script(three):
    html = render_comparison(three)
    page = Page(html)
    assert "script" not in page.tags
    for name, value in page.attributes:
        if name in ("src", "href", "xlink:href"):
            assert value.startswith(("#", "data:"))
        assert not name.startswith("on")
    assert re.findall(r"url\((?!#)", html) == []
    assert len(html.encode()) < 1_000_000


def test_names_are_text_and_not_markup():
    html = render_comparison(
        compare([run(1, strategy="<script>alert(1)</script>"), run(2, strategy='" onload="x')]), "<b>"
    )
    page = Page(html)
    assert "script" not in page.tags
    assert not any(name == "onload" for name, _ in page.attributes)
    assert "<script>alert(1)</script>" in page.text


def test_the_page_is_accessible(three):
    html = render_comparison(three, "Three")
    assert "<title>Three, 2017-01-03 to 2017-05-23</title>" in html
    assert html.count('role="img" aria-label=') == 2
    assert "<h1>Three</h1>" in html
    assert re.findall(r"<h(\d)", html)[0] == "1"
    assert not re.search(r"<th(?!ead| scope)", html)
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("count", [2, 6, 8])
def test_every_run_has_a_line_and_a_legend(count, monkeypatch):
    monkeypatch.setattr(contrasts, "RESAMPLES", 50)
    found = compare([run(seed, days=60) for seed in range(1, count + 1)])
    html = render_comparison(found)
    legend = re.search(r'<ul class="legend">(.*?)</ul>', html, re.DOTALL)[1]
    assert [name for name in found.runs if f"</span>{name}</li>" in legend] == list(found.runs)
    assert "QQQ" in legend
    for place in range(1, min(count, len(COLOURS)) + 1):
        assert f"stroke: var(--run-{place})" in html
    assert all(f"--run-{place}:" in html for place in range(1, count + 1))
    assert not any(light in html.split("</style>")[-1] for light, _ in COLOURS.values())
    assert ("many" in re.findall(r'<table class="(.*?)"', html)) is (count > 5)


@pytest.mark.parametrize(
    "curves",
    [
        ([1000, 1010], [1000, 990]),
        ([1000] * 6, [1000] * 6),
        ([100, 101, 103], [100, 110, 0]),
        ([1000, *np.linspace(1000, 2000, 40)], [1000, *np.linspace(1000, 500, 40)]),
    ],
)
def test_e05_the_page_is_made_whatever_the_curves(curves):
    runs = []
    for place, curve in enumerate(curves):
        made = make_result(curve, strategy=f"s{place}")
        runs.append(replace(made, benchmark_equity=made.benchmark_equity * np.nan if place else made.benchmark_equity))
    found = compare(runs)
    assert "How the figures are defined" in Page(render_comparison(found)).text
    assert json.loads(found.to_json())["returns"] == len(curves[0]) - 1
    assert format_comparison(found).splitlines()[0].startswith("2 runs, ")


def test_the_page_is_written_whole_and_only_over_what_it_may(three, tmp_path):
    path = three.report(tmp_path / "pages" / "three.html", title="Three")
    assert path.read_text() == render_comparison(three, "Three")
    with pytest.raises(InputError, match=r"three\.html exists already"):
        write_comparison(three, path, overwrite=False)
    assert [one.name for one in path.parent.iterdir()] == ["three.html"]
