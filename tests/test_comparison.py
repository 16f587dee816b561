"""Comparison of runs: common window, rescaling, intervals of the differences, and reasons for an unfair comparison."""

import json
import re
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_errors import refused
from made_markets import make_market
from made_pages import Page
from made_results import make_result, trained

import finpod
from finpod.backtesting import comparison
from finpod.backtesting.comparison import compare
from finpod.backtesting.comparison_text import contrast, figure_rows, headings, notes_of, selection
from finpod.measures import drawdowns, metrics, relative
from finpod.records import Audit, ResultWarning, Severity
from finpod.report.compare import render_comparison
from finpod.trading.ledger import Costs


def run(seed=0, *, days=100, strategy=None, **changes):
    """A made result; those of different seeds share their rivals, as runs on the same data do."""
    market = make_result(days=days)
    shared = {"benchmark_equity": market.benchmark_equity, "equal_weight_equity": market.equal_weight_equity}
    return make_result(days=days, seed=seed, **{"strategy": strategy or f"s{seed}", **shared, **changes})


def part(result, first, last):
    """The same account in a run over the closes [first, last]."""
    days = result.equity.index[first : last + 1]
    curves = {name: getattr(result, name).loc[days] for name in ("equity", "benchmark_equity", "equal_weight_equity")}
    fills, close = result.turnover.index, result.fill == "close"
    inside = (fills >= days[0]) & (fills < days[-1]) if close else (fills > days[0]) & (fills <= days[-1])
    trades = result.trades[result.trades["date"].isin(fills[inside])]
    return replace(result, **curves, weights=result.weights.loc[days], turnover=result.turnover[inside], trades=trades)


@pytest.fixture(scope="module", autouse=True)
def _few_resamples():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "RESAMPLES", 300)
        yield


@pytest.fixture(scope="module")
def three():
    return compare([run(1), run(2), run(3)])


def test_a_run_that_is_not_cut_keeps_its_own_figures(three):
    for name, own in three.runs.items():
        figures, table = three.figures[name], own.table["strategy"]
        expected = asdict(own.metrics) | {
            "excess": own.relative.excess,
            "excess_over_equal_weight": own.relative_to_equal_weight.excess,
            "information_ratio": own.relative_to_equal_weight.information_ratio,
            "turnover": table["turnover"],
            "yearly_turnover": table["yearly_turnover"],
            "costs": own.fees / own.equity.iloc[0],
        }
        assert figures == pytest.approx(expected, rel=1e-12)
    assert three.rival_figures["QQQ"]["sharpe"] == pytest.approx(own.benchmark_metrics.sharpe, rel=1e-9)
    assert (three.notes, notes_of(three)) == ((), [])


def test_a28_all_start_anew_at_the_first_common_close():
    long, short = run(1, days=100), run(2, days=100)
    found = compare([long, part(short, 30, 80)])
    assert len(found.equity) == 51
    assert list(found.equity.iloc[0]) == [1.0, 1.0]
    cut, bench = long.equity.to_numpy()[30:81], long.benchmark_equity.to_numpy()[30:81]
    figures = found.figures["s1"]
    assert figures["total_return"] == pytest.approx(cut[-1] / cut[0] - 1, rel=1e-12)
    assert figures["max_drawdown"] == drawdowns(cut).min()
    assert figures["sharpe"] == metrics(cut).sharpe
    assert figures["excess"] == relative(cut, bench).excess
    (note,) = found.notes
    assert (note.code, note.data["closes"]) == ("shortened", 51)
    assert note.data["runs"]["s1"][0] == 101


@given(first=st.integers(0, 8), last=st.integers(12, 20), fill=st.sampled_from(["open", "close"]))
@settings(max_examples=12, deadline=None)
def test_turnover_and_costs_are_those_between_the_first_and_the_last_close(first, last, fill):
    """A fill on every day; one at the close belongs to the next return."""
    made = run(1, days=20, fill=fill)
    fills, sizes = made.equity.index[:-1] if fill == "close" else made.equity.index[1:], np.arange(1.0, 21)
    trades = {"date": fills, "ticker": "N00", "shares": sizes, "price": 1.0, "notional": sizes, "cost": sizes}
    made = replace(made, turnover=pd.Series(sizes / 100, fills), trades=pd.DataFrame(trades).assign(kind="fill"))
    figures = compare([made, part(run(2, days=20, fill=fill), first, last)]).figures["s1"]
    steps = sizes[first:last]  # return k is that from close k to close k + 1
    assert figures["turnover"] == pytest.approx(steps.sum() / 100)
    assert figures["costs"] == pytest.approx(steps.sum() / made.equity.iloc[first])
    assert figures["days"] == last - first


def test_a30_text_json_and_page_show_the_same_figures(three):
    stored, html, text = json.loads(three.to_json()), render_comparison(three), str(three)
    page = Page(html).text
    assert selection(three) in page
    assert selection(three) in text
    for name, own in stored["runs"].items():
        assert own["figures"] == json.loads(json.dumps(three.figures[name]))
    for label, cells in figure_rows(three):
        row = re.search(rf'<th scope="row">{re.escape(label)}</th>(.*?)</tr>', html)[1]
        assert [cell for cell in re.findall(r"<td>(.*?)</td>", row) if cell] == [cell for cell in cells if cell]


def test_e07_undefined_figures_are_null_and_n_a():
    found = compare([run(1, strategy="idle", equity=np.full(101, 1000.0)), run(2)])
    stored = json.loads(found.to_json(), parse_constant=lambda word: pytest.fail(word))
    assert stored["runs"]["idle"]["figures"]["sharpe"] is stored["pairs"][0]["sharpe"]["low"] is None
    for shown in (str(found), Page(render_comparison(found)).text):
        assert "n/a" in shown
        assert not re.search(r"\b(nan|inf)\b|-0\.00%|[+-]0\.00\b", shown)


def test_pairs_are_differences_of_the_figures_whatever_runs_stand_beside_them(three):
    assert [(pair.first, pair.second) for pair in three.pairs] == [("s1", "s2"), ("s1", "s3"), ("s2", "s3")]
    turned = {(pair.second, pair.first): pair for pair in compare([run(3), run(2), run(1)]).pairs}
    for pair in three.pairs:
        for key in ("cagr", "sharpe"):
            interval, other = getattr(pair, key), getattr(turned[pair.first, pair.second], key)
            gap = three.figures[pair.first][key] - three.figures[pair.second][key]
            assert interval.estimate == pytest.approx(gap, abs=1e-9)
            assert interval.low < interval.estimate < interval.high
            assert interval[:3] == pytest.approx((-other.high, -other.estimate, -other.low), abs=1e-9)
    assert compare([run(1), run(3)]).pairs[0].cagr == pytest.approx(three.pairs[1].cagr, abs=1e-12)


@pytest.mark.parametrize(("one", "two", "reason"), [
    (run(1), run(1, strategy="poor", equity=run(1).equity.to_numpy() / 1e3), "same"),
    (run(1, days=12), run(2, days=12), "short"),
    (run(1), run(2, equity=np.append(run(2).equity[:60], np.zeros(41))), "ruined"),
])  # fmt: skip
def test_a13_pairs_without_an_interval_say_why(one, two, reason):
    found = compare([one, two])
    pair = found.pairs[0]
    assert (pair.cagr, pair.sharpe, pair.reason) == (None, None, reason)
    assert contrast(pair)[1:5] == ("", "", "", "")
    assert found.is_short == (reason == "short")
    if reason == "ruined":  # shown to the end
        assert (found.figures["s2"]["total_return"], found.figures["s2"]["max_drawdown"]) == (-1, -1)


def test_rivals_are_shown_once_or_named_after_their_runs(three):
    assert list(three.rivals) == ["QQQ", "equal weight"]
    active = [own.returns.to_numpy() - own.equal_weight_equity.pct_change().dropna() for own in three.runs.values()]
    np.testing.assert_allclose(three.correlation, np.corrcoef(active), atol=1e-12)
    bigger, other = run(2), make_result(days=100, seed=9).equal_weight_equity
    curves = {name: getattr(bigger, name) * 7 for name in ("equity", "benchmark_equity", "equal_weight_equity")}
    equal = replace(run(1), strategy="equal", equity=run(1).equal_weight_equity)
    found = compare([equal, replace(bigger, **curves)])
    assert list(found.rivals) == ["QQQ", "equal weight"]
    assert found.correlation.isna().to_numpy().tolist() == [[True, True], [True, False]]
    found = compare([run(1), run(2), replace(run(3), benchmark="SPY", equal_weight_equity=other)])
    assert list(found.rivals) == ["QQQ (s1, s2)", "SPY (s3)", "equal weight (s1, s2)", "equal weight (s3)"]
    assert [note.code for note in found.notes] == ["several_rivals"]
    without = [replace(run(seed), benchmark_equity=run(1).benchmark_equity * np.nan) for seed in (1, 2)]
    assert list(compare(without).rivals) == ["equal weight"]


@pytest.mark.parametrize(("changes", "what", "shown"), [
    ({"data_hash": "aa" * 32}, "data", "aaaaaaaaaaaa (s2)"), ({"costs": Costs(fee_bps=20)}, "terms", "20 bps"),
    ({"equity": run(2).equity.to_numpy() / 10}, "cash", "100,000 (s2)"),
    ({"risk_free": 0.02}, "risk_free", "2 % (s2)"), ({"delisting_return": -0.3}, "terms", "-30% on delisting"),
])  # fmt: skip
def test_terms_that_differ_make_it_unfair(changes, what, shown):
    found = compare([run(1), run(2, **changes)])
    ((names, text, grave),) = notes_of(found)
    assert (names, grave, shown in text) == ("", True, True)
    assert json.loads(found.to_json())["unfair"] == [{"what": what, "runs": [["s1"], ["s2"]]}]


def test_a10_one_risk_free_rate_serves_all_and_two_serve_none():
    same = compare([run(1, risk_free=0.02), run(2, risk_free=0.02)])
    assert (same.risk_free, same.figures["s1"]["sharpe"]) == (0.02, run(1, risk_free=0.02).metrics.sharpe)
    assert compare([run(1, risk_free=0.02), run(2)]).risk_free == 0


def test_warnings_are_carried_with_the_runs_that_have_them_and_grave_ones_mark_the_column():
    survivors = ResultWarning("survivorship", {"membership": "x"})
    trained_on = ResultWarning("in_sample", {"trained_until": "2018-01-02"})
    ahead = ResultWarning("look_ahead", {"severity": Severity.LOOKS_AHEAD})
    cheat = run(1, in_sample=True, warnings=(survivors, trained_on, ahead), audit=Audit(False))
    found = compare([run(2, warnings=(survivors,)), run(3, in_sample=True, costs=Costs(fee_bps=3)), cheat])
    codes = [(warning.code, names) for warning, names in found.warnings]
    assert codes == [("look_ahead", ("s1",)), ("in_sample", ("s1",)), ("survivorship", ("s2", "s1"))]
    assert headings(found) == ["s2", "s3 (in-sample)", "s1 (LOOKS AHEAD)"]
    notes = [(names, grave) for names, _, grave in notes_of(found)]
    assert notes == [("s1", True), ("s1", True), ("", True), ("s2, s1", False)]  # the third: the terms differ
    assert '<li class="red">s1: LOOKS AHEAD' in render_comparison(found)


def test_d12_the_luck_of_choosing_counts_all_the_candidates():
    found = compare([run(1), run(2)])
    assert (found.candidates, list(found.chance)) == (2, [2])
    assert compare([trained(100, opened=5), run(1)]).candidates == 6
    search = [trained(100, opened=count, strategy=f"{count}") for count in (4, 3)]  # of one search, which counts once
    assert compare([*search, run(1)]).candidates == 5
    assert 0 < min(found.chance.values()) < compare([*search, run(1)]).chance[5]


@pytest.mark.parametrize(("strategies", "names", "labels"), [
    ("aab", ["x", "y", "z"], ["x", "y", "b"]), ("aba", ["b", "y", "z"], ["b (1)", "b (2)", "z"]),
    ("aa", None, ["a (1)", "a (2)"]),
])  # fmt: skip
def test_every_run_has_a_name_of_its_own(strategies, names, labels):
    found = compare([run(seed, days=30, strategy=name) for seed, name in enumerate(strategies)], names=names)
    assert list(found.runs) == labels


@pytest.mark.parametrize(("runs", "options", "value"), [
    ([part(run(1), 0, 50), part(run(1), 50, 100)], {}, "fewer than two sessions"),
    ([run(1), run(2, periods_per_year=252 * 6)], {}, "s2 has several returns"),
    ([run(1), run(2)], {"names": ["a", "b", "c"]}, "3 names for 2 runs"),
    ([part(run(1), 30, 80), run(2, equity=np.append(run(2).equity[:10], np.zeros(91)))], {}, "s2 fell to 0"),
])  # fmt: skip
def test_what_cannot_be_compared_is_refused_in_one_line(runs, options, value):
    refused(value, compare, runs, **options)


def test_figures_are_yearly_for_the_sessions_that_runs_have_in_common():
    market = make_market(
        np.exp(np.random.default_rng(0).normal(0, 0.01, (500, 4)).cumsum(0)),
        benchmark=np.where(np.arange(500) % 2, np.nan, np.linspace(100, 150, 500)),
    )
    hold, whole = finpod.backtest("benchmark-hold", market), finpod.backtest("buy-and-hold", market)
    assert hold.benchmark_metrics.cagr == pytest.approx(whole.benchmark_metrics.cagr)
    assert hold.equal_weight_metrics.cagr == pytest.approx(whole.equal_weight_metrics.cagr, abs=0.005)
    years = (len(hold.equity) - 1) * 2 / 252
    growth = (whole.equity.loc[hold.equity.index[-1]] / whole.equity.iloc[0]) ** (1 / years) - 1
    assert compare([hold, whole]).figures["buy-and-hold"]["cagr"] == pytest.approx(growth)
