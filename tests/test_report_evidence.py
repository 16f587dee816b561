"""The report's sections on skill: luck, simple rules, random portfolios, costs, size and the audit."""

import gc
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from made_results import examined, made_evidence, made_intervals, make_result, trained
from test_report import Page, few_resamples  # noqa: F401

from finpod.backtesting.result_io import load_result
from finpod.backtesting.sentences import luck_sentence
from finpod.evidence import skill
from finpod.evidence.attribution import attribute, flags
from finpod.evidence.skill import MEASURED
from finpod.figures import amount, money, percent, ratio
from finpod.measures import metrics, relative
from finpod.records import Audit, Finding, ResultWarning, Severity
from finpod.report import render
from finpod.report.charts import CHARTS
from finpod.report.rivals import BANDS, fan_chart, growth_chart
from finpod.report.sections import notes
from finpod.report.skill import audit_line, luck, mark, not_run, probabilities, rules, scale_of, sweep
from finpod.report.sources import facts, gains, worst_months
from finpod.report.svg import CURVES, report_style

NEW = {
    "luck": "Luck or skill?",
    "rules": "Against simple rules",
    "costs": "Costs and capacity",
    "sources": "Where it came from",
}
"""Sections that only examined results have: anchor and title."""


RIVALS = ("fan", "fees", "sizes")
"""Charts of what else could have been done."""


@pytest.fixture(scope="module")
def result():
    return examined(days=300, names=12, randoms=40)


@pytest.fixture(scope="module")
def html(result):
    return render(result)


def test_every_section_is_there_and_can_be_reached(html):
    for anchor, title in NEW.items():
        assert f'<h2 id="{anchor}">{title}</h2>' in html
        assert f'<a href="#{anchor}">{title}</a>' in html


def test_what_was_not_run_is_left_out_and_named():
    bare = make_result(days=40)
    html = render(bare)
    assert not any(f'id="{anchor}"' in html for anchor in ("rules", "costs"))
    said = "Not run for this result: look-ahead audit, simple rules, random portfolios, other fees, other sizes."
    assert said in Page(html).text
    assert not_run(examined(days=20, names=3, randoms=3)) == ""
    assert not_run(examined(days=20, names=3, randoms=3, capacity={})) == "Not run for this result: other sizes."
    assert not any(picture.needed(bare) for picture in CHARTS if picture.name in RIVALS)


def test_the_audit_is_a_line_if_passed_and_a_red_box_if_not(html):
    assert "Look-ahead audit: passed on 2 days; what it does not cover stands under Provenance." in Page(html).text
    assert "Not checked days that were not sampled Passed yes" in Page(html).text
    assert "Looks ahead" not in html
    changed = Finding(
        "cut",
        Severity.LOOKS_AHEAD,
        "decisions",
        "2024-01-05",
        "<b>",
        size=0.5,
        data={"largest_on": "2024-01-05", "days": 1, "checked": 1},
    )
    failed = render(make_result(days=30, audit=Audit(False, (changed,), ("2024-01-05",))))
    assert '<span class="badge red">Looks ahead</span>' in failed
    assert "<p>Look-ahead audit: failed on 1 day</p>" in failed
    assert "the weight of &lt;b&gt; on 2024-01-05 changes by 0.5" in failed
    assert audit_line(Audit(True, days=("a", "b", "c"))) == "Look-ahead audit: passed on 3 days"


def test_intervals_stand_in_a_table_with_their_drawing(result, html):
    text = Page(html).text
    found = luck(result, made_evidence())
    assert [title for title, _ in found["groups"]] == ["Sharpe ratio", "CAGR", "Max drawdown"]
    for title, spans in found["groups"]:
        assert [span.label for span in spans] == [
            "strategy",
            "minus equal weight every 21 sessions",
            "minus equal weight",
            "minus QQQ",
        ], title
        assert all(f"{span.estimate} {span.interval}" in text for span in spans)
    sharpe = found["groups"][0][1]
    assert [span.estimate for span in sharpe] == ["0.49", "+0.24", "+0.21", "+0.24"]
    assert [span.interval for span in sharpe] == [
        "-0.13 to 1.10",
        "-0.06 to +0.55",
        "-0.08 to +0.52",
        "+0.03 to +0.47",
    ]
    assert [span.said for span in sharpe] == ["covers zero", "covers zero", "covers zero", "above zero"]
    assert found["groups"][1][1][0].interval == "-3.6% to 19.0%"
    assert found["groups"][2][1][0].said == "below zero"
    assert html.split('class="spans"')[1].split("</table>")[0].count('<span class="track"') == 12
    assert luck_sentence(result) in text
    assert f"{skill.RESAMPLES:,} resamples" in text


def test_a_mark_lies_where_its_figures_do():
    drawn = mark(-1.0, 3.0, (-2.0, 8.0), dot=0.5)
    assert drawn == (10.0, 40.0, 20.0, 25.0, "")
    assert mark(1.0, 3.0, (-2.0, 8.0)).tone == "gain"
    assert mark(-1.5, -0.5, (-2.0, 8.0)).tone == "loss"
    assert mark(math.nan, 1.0, (0.0, 1.0)) is None
    low, high = scale_of([0.5, math.nan, 1.0])
    assert (low, high) == pytest.approx((-0.06, 1.06))
    assert scale_of([]) == pytest.approx((-0.06, 0.06))


def test_all_bars_of_a_measure_share_one_scale(result):
    for _, spans in luck(result, made_evidence())["groups"]:
        assert len({span.mark.zero for span in spans}) == 1
        for span in spans:
            assert 0 <= span.mark.left <= span.mark.dot <= span.mark.left + span.mark.width <= 100


def test_undefined_figures_of_luck_are_not_drawn():
    nothing = {"low": None, "estimate": math.nan, "high": None}
    undefined = {
        "intervals": {"strategy": {"sharpe": nothing}},
        "probabilistic_sharpe": None,
        "overfitting": math.nan,
    }
    shown = luck(make_result(days=60), made_evidence() | undefined)
    ((_, (span,)),) = shown["groups"]
    assert (span.estimate, span.interval, span.said, span.mark) == ("n/a", "n/a to n/a", "undefined", None)
    asked = [question for question, _, _ in shown["answers"]]
    assert "Chance that the true Sharpe ratio is above zero" not in asked
    assert "Chance that the choice was overfitted" not in asked
    assert "Random portfolios beaten" in asked


def test_each_probability_is_said_in_words(result):
    answers = {question: (shown, meaning) for question, shown, meaning in luck(result, made_evidence())["answers"]}
    assert answers["Chance that the true Sharpe ratio is above zero"][0] == "93.2%"
    assert answers["Chance that the true Sharpe ratio of the excess is above zero"] == (
        "40.2%",
        "of the returns less those of equal weight every 21 sessions, which tell of skill where the whole market rises",
    )
    assert answers["Years needed"][0] == "11.2"
    assert "passes 97.5 %; this record has 1.2" in answers["Years needed"][1]
    assert answers["Years needed for the excess"][0] == "no number is enough"
    overfitted, meaning = answers["Chance that the choice among 16 trials was overfitted"]
    assert overfitted == "38.0%"
    assert "by luck alone the best would stand 0.38 above their mean ratio" in meaning
    assert answers["Random portfolios beaten"] == (
        "87.0%",
        "by Sharpe ratio, of 200 with random weights that trade as much at the same costs",
    )


def test_only_what_was_chosen_on_the_window_is_deflated(result):
    """In-sample the trials are candidates."""
    chosen = made_evidence() | {
        "deflated_sharpe": 0.614,
        "expected_best": 0.376,
        "trial_sd": 0.21,
        "trial_sd_source": MEASURED,
    }
    before, here = (
        {question: (shown, meaning) for question, shown, meaning in probabilities(one, chosen)}
        for one in (result, replace(result, in_sample=True))
    )
    asked = "Chance that it is above the best of 16 without skill"
    assert asked not in before
    assert here[asked][0] == "61.4%"
    assert "luck alone would show 0.38" in here[asked][1]
    assert "deviate by 0.21 (measured in the search)" in here[asked][1]
    assert "Chance that the best of 16 without skill would show a lower Sharpe ratio of the excess" in here


def test_what_the_result_finds_itself_can_be_shown():
    result = examined(days=300, names=12, randoms=40)
    del skill._CACHE[result]
    found, text = luck(result, skill.evidence(result)), Page(render(result)).text
    assert len(found["groups"]) == 3
    shown = {question: answer for question, answer, _ in found["answers"]}
    assert shown["Random portfolios beaten"] == percent(skill.evidence(result)["fan_beaten"], 1)
    assert all(answer in text for answer in shown.values())
    estimate = found["groups"][1][1][0].estimate
    assert estimate == percent(result.metrics.cagr)  # the headline table says the same


def test_rules_are_ranked_by_sharpe_and_the_strategy_stands_out(result, html):
    table = rules(result)
    curves = {"first": result.equity, "QQQ": result.benchmark_equity, "equal weight": result.equal_weight_equity}
    curves |= result.baselines
    sharpe = {name: metrics(curve.to_numpy()).sharpe for name, curve in curves.items()}
    assert [row[0] for row in table.rows] == sorted(sharpe, key=sharpe.__getitem__, reverse=True)
    assert [row[1] for row in table.rows] == [str(place) for place in range(1, 8)]
    for name, _, cagr, _, shown, fall, _, excess in table.rows:
        own = metrics(curves[name].to_numpy())
        assert (cagr, shown, fall) == (percent(own.cagr), ratio(own.sharpe), percent(own.max_drawdown))
        assert excess == percent(relative(curves[name].to_numpy(), curves["QQQ"].to_numpy()).excess)
    row = re.search(r'<tr class="own"><th scope="row">first</th>(.*?)</tr>', html)[1]
    assert f"<td>{ratio(result.metrics.sharpe)}</td>" in row  # A30: the same figure everywhere
    assert f"<td>{percent(result.relative.excess)}</td>" in row


def test_rules_that_miss_days_or_all_of_them_are_ranked_too():
    base = examined(days=100, names=6, randoms=3)
    late = base.baselines["minimum variance"].iloc[20:]
    table = rules(examined(days=100, names=6, randoms=3, baselines={"late": late, "none": late.iloc[:1]}))
    shown = {row[0]: row for row in table.rows}
    assert shown["late"][2] == percent(metrics(late.to_numpy()).cagr)
    assert shown["none"][2:] == ("n/a",) * 6
    assert table.rows[-1][0] == "none"


def test_a_rule_named_like_the_strategy_does_not_take_its_place():
    base = examined(days=100, names=6, randoms=3)
    other = base.baselines["minimum variance"]
    table = rules(examined(days=100, names=6, randoms=3, baselines={"first": other}))
    assert [row[0] for row in table.rows].count("first") == 1
    assert next(row for row in table.rows if row[0] == "first")[4] == ratio(base.metrics.sharpe)


def steps_of(result):
    """The cost sweep and the capacity as the report labels them."""
    fees = {f"{fee:g} bps": figures for fee, figures in result.cost_sweep.items()}
    return fees, {amount(size): figures for size, figures in result.capacity.items()}


def test_sweeps_show_sharpe_and_rank(result, html):
    fees, sizes = steps_of(result)
    table = sweep(result, fees)
    assert table.head == ("", "0 bps", "5 bps", "10 bps", "20 bps", "50 bps")
    assert table.rows[0] == ("first", "0.70 (1)", "0.64 (1)", "0.58 (3)", "0.52 (5)", "0.46 (6)")
    assert [row[1][-2] for row in table.rows] == list("123456")
    assert (table.own, table.foot) == ("first", [])
    assert sweep(result, sizes).foot == [("costs a year of first", "0.40%", "0.80%", "1.60%", "3.20%")]
    assert "0.46 (6)" in html
    assert sweep(result, {}) is None


def test_sweeps_read_back_from_disk_may_hold_nulls():
    found = {
        "0 bps": {"first": {"cagr": None, "sharpe": None, "rank": None}},
        "5 bps": {"other": {"cagr": 0.1, "sharpe": 1.0, "rank": 1}},
    }
    table = sweep(trained(days=20), found)
    assert table.rows == [("first", "n/a", "n/a"), ("other", "n/a", "1.00 (1)")]
    assert growth_chart(trained(days=20), found, "CAGR", "fees").svg == ""


def test_the_lines_over_fees_take_the_colours_of_the_curves(result):
    with report_style():
        chart = growth_chart(result, steps_of(result)[0], "CAGR by fee a side", "fees")
    assert chart.curves == ("strategy", "equal-weight", "random")
    assert "from 10.50% to 6.90%" in chart.alt
    assert all(f"var(--{key})" in chart.svg for key in chart.curves)
    assert "50 bps</text>" in chart.svg
    named = {
        step: {name.replace(" ", "-"): at for name, at in found.items()} for step, found in result.capacity.items()
    }
    assert growth_chart(result, named, "CAGR by size", "sizes").curves == chart.curves
    few = dict(list(steps_of(result)[0].items())[:2])
    assert growth_chart(result, few, "CAGR by fee a side", "fees") == (
        "CAGR by fee a side",
        "Fewer than 3 steps: see the table.",
        "",
        (),
        False,
    )


def test_the_fan_says_where_the_strategy_ends(result, html):
    chart = fan_chart(result)
    ends = np.quantile(result.fan.iloc[-1] / result.equity.iloc[0] - 1, BANDS)
    assert f"the strategy stands at {percent(result.metrics.total_return)}" in chart.alt
    assert f"half of the 40 random portfolios stand between {percent(ends[1])} and {percent(ends[3])}" in chart.alt
    assert f"nine in ten between {percent(ends[0])} and {percent(ends[4])}" in chart.alt
    assert chart.alt in html.replace("&#39;", "'")
    assert "40 random portfolios: median, middle half, nine in ten" in Page(html).text


def test_portfolios_that_were_ruined_have_no_place_in_the_fan():
    base = examined(days=50, names=4, randoms=6)
    fan = base.fan.copy()
    fan.iloc[30:, 0], fan.iloc[10:, 1] = 0.0, np.nan
    assert "half of the 4 random" in fan_chart(examined(days=50, names=4, fan=fan)).alt
    gone = fan_chart(examined(days=50, names=4, fan=fan.iloc[:, :2]))
    assert (gone.svg, gone.alt) == ("", "No random portfolio kept a value.")


def test_facts_on_exposure_are_those_of_the_attribution(result, html):
    found, text = attribute(result), Page(html).text
    shown = {what: (figure, meaning) for what, figure, meaning in facts(result, found)}
    assert shown["Beta with QQQ"] == (
        ratio(result.relative.beta),
        f"which explains {percent(found.explained, 0)} of the variance",
    )
    assert shown["Effective number of names"][0] == ratio(found.effective_names, 1)
    assert shown["Largest position"][1].endswith(f"{percent(found.largest, 1)} at the most, in {found.largest_name}")
    assert shown["Days with a gain"][0] == percent(found.rising_days, 1)
    assert all(f"{what} {figure} {meaning}" in text for what, (figure, meaning) in shown.items())
    assert len(shown) == 9


def test_an_account_that_never_traded_has_few_facts():
    base = make_result([1000.0] * 30)
    idle = replace(base, weights=base.weights * 0, trades=base.trades.iloc[:0], turnover=base.turnover * 0)
    assert [what for what, *_ in facts(idle, attribute(idle))] == [
        "Beta with QQQ",
        "Beta with equal weight",
        "Invested",
    ]
    assert "Nothing was ever held." in Page(render(idle)).text
    assert ResultWarning("never_traded") in flags(idle)
    assert ("Degenerate policy: it never traded", False) in notes(idle)
    assert notes(replace(idle, warnings=flags(idle))) == notes(idle)


def test_names_at_both_ends_and_the_rest_make_the_whole():
    by_name = pd.Series({f"N{place:02}": 600.0 - 100 * place for place in range(14)})
    rows, rest = gains(by_name, 1000.0)
    assert [row.name for row in rows] == [f"N{place:02}" for place in (0, 1, 2, 3, 4, 9, 10, 11, 12, 13)]
    assert [row[0] for row in rest] == ["the other 4 names", "all names"]
    assert rest[0][1:] == ("-200", "-20.00%")  # 100, 0, -100, -200
    assert rest[1][1:] == (money(by_name.sum()), percent(by_name.sum() / 1000))
    assert [row.said for row in rows[:5]] == ["gain"] * 5
    assert all(row.mark.left == row.mark.zero for row in rows[:5])
    assert all(row.mark.left + row.mark.width == pytest.approx(row.mark.zero) for row in rows[5:])
    widths = [row.mark.width for row in rows]
    assert widths[0] / widths[4] == pytest.approx(3, rel=0.02)  # 600 against 200


def test_few_names_are_all_shown():
    rows, rest = gains(pd.Series({"A": 5.0, "B": 0.0, "C": -2.0}), 100.0)
    assert [(row.name, row.amount, row.share, row.said) for row in rows] == [
        ("A", "5.00", "5.00%", "gain"),
        ("B", "0", "0.00%", "nothing"),
        ("C", "-2.00", "-2.00%", "loss"),
    ]
    assert rest == [("all names", "3.00", "3.00%")]
    assert gains(pd.Series(dtype=float), 100.0) == ([], [("all names", "0", "0.00%")])


def test_the_worst_months_stand_beside_those_of_the_strategy(result, html):
    found = attribute(result)
    table = worst_months(result, found)
    assert table.head == ("Month", "QQQ", "first", "equal weight")
    worst = found.worst_months[0]
    assert table.rows[0] == (worst.month, *map(percent, (worst.benchmark, worst.strategy, worst.equal_weight)))
    assert f'<th scope="row">{worst.month}</th><td>{table.rows[0][1]}</td>' in html


def test_names_are_escaped_in_the_new_sections():
    evil = "<script>alert(1)</script>"
    base = examined(days=60, names=4, randoms=4)
    figures = {step: {evil: at["first"]} for step, at in base.cost_sweep.items()}
    result = examined(
        days=60,
        names=4,
        randoms=4,
        strategy=evil,
        benchmark=evil,
        baselines={evil + "2": base.baselines["minimum variance"]},
        cost_sweep=figures,
        capacity=figures,
        audit=Audit(False, (Finding("held", Severity.CAN_LOOK_AHEAD, "decisions", "2024-01-05", evil, note=evil),)),
        variants={evil: base.equity, "b": base.equity},
        weights=base.weights.rename(columns={"N00": evil}),
        trades=base.trades.replace({"ticker": {"N00": evil}}),
    )
    html = render(result)
    assert "<script" not in html
    assert Page(html).text.count(evil) > 10


def test_equal_results_give_equal_bytes_through_disk(result, html, tmp_path):
    result.save(tmp_path / "run")
    again = load_result(tmp_path / "run")
    skill._CACHE[again] = {None: made_intervals()}
    assert render(again) == html


def test_reports_leave_nothing_open():
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    result = examined(days=6, names=2, randoms=2)
    first = render(result)
    assert all(render(result) == first for _ in range(2))
    gc.collect()
    assert not [thing for thing in gc.get_objects() if issubclass(type(thing), Figure)]
    assert plt.get_fignums() == []


def test_intraday_results_are_drawn_by_session():
    index = pd.DatetimeIndex(
        [day + pd.Timedelta(hours=hour) for day in pd.bdate_range("2020-01-02", periods=40) for hour in (10, 12, 15)],
        name="date",
    ).as_unit("ns")
    base = examined(days=119, names=4, randoms=5)
    moved = {
        name: getattr(base, name).set_axis(index)
        for name in ("equity", "benchmark_equity", "equal_weight_equity", "anchor_equity", "weights", "fan")
    }
    result = replace(
        base,
        periods_per_year=756,
        turnover=base.turnover.set_axis(index[1:]),
        trades=base.trades.assign(date=index[-1]),
        baselines={name: curve.set_axis(index) for name, curve in base.baselines.items()},
        variants={},
        **moved,
    )
    text = Page(render(result)).text
    assert percent(result.metrics.total_return) in text
    assert rules(result).rows[0][4] == ratio(
        max(
            metrics(curve.to_numpy(), periods_per_year=756).sharpe
            for curve in (
                result.equity,
                result.benchmark_equity,
                result.equal_weight_equity,
                *result.baselines.values(),
            )
        )
    )


def test_a_benchmark_with_gaps_still_ranks():
    benchmark = examined(days=130, names=4, randoms=5).benchmark_equity.copy()
    benchmark.iloc[[0, 3, 4, -1]] = np.nan
    result = examined(days=130, names=4, randoms=5, benchmark_equity=benchmark)
    shown = {row[0]: row for row in rules(result).rows}
    assert shown["first"][-1] == percent(result.relative.excess)
    assert shown["QQQ"][2] == percent(result.benchmark_metrics.cagr)
    Page(render(result))


def test_curves_keep_the_order_of_the_legend(result):
    with report_style():
        drawn = [picture.draw(result) for picture in CHARTS if picture.name in RIVALS]
    for chart in drawn:
        assert list(chart.curves) == [key for key in (*CURVES, "random") if key in chart.curves]
