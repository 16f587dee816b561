"""The report's sections on skill: significance, baselines, random portfolios, costs, size, attribution and the audit."""

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from made_results import examined, made_intervals, make_result, trained
from test_report import Page, chart, few_resamples  # noqa: F401

from finpod.backtesting.result_io import load_result
from finpod.evidence.attribution import flags
from finpod.figures import percent, ratio
from finpod.measures import metrics, relative
from finpod.records import Audit, Finding, ResultWarning, Severity
from finpod.report.charts import BANDS
from finpod.report.sections import places, ranked, render, warnings_of

SMALL = {"days": 60, "names": 4, "randoms": 5}


@pytest.fixture(scope="module")
def result():
    return examined(days=300, names=12, randoms=40)


@pytest.fixture(scope="module")
def html(result):
    return render(result)


def answers(html):
    """Question -> figure of the cards of answers."""
    return dict(re.findall(r'<dt>([^<]*)</dt><dd class="big">([^<]*)</dd>', html))


def test_what_was_not_run_is_left_out_and_named(html):
    bare, partial = render(make_result(days=40)), render(examined(**SMALL, capacity={}))
    absent = {anchor for anchor in ("baselines", "costs") if f'<h2 id="{anchor}">' not in bare}
    assert absent == {"baselines", "costs"}
    assert [page.count("Not computed for this result") for page in (html, partial, bare)] == [0, 1, 1]
    assert "Not computed for this result: other sizes." in " ".join(partial.split())
    assert not any(chart(make_result(days=40), name) for name in ("fan", "fees", "sizes"))


def test_the_audit_is_a_line_if_passed_and_a_red_box_if_not(html):
    assert "Looks ahead" not in html
    days = {"largest_on": "2024-01-05", "days": 1, "checked": 1}
    changed = Finding("cut", Severity.LOOKS_AHEAD, "decisions", "2024-01-05", "<b>", size=0.5, data=days)
    outcomes = {
        '<span class="badge red">Looks ahead</span>.*<div class="failed">.*&lt;b&gt; on 2024-01-05 changes by 0.5': Audit(
            False, (changed,), ("2024-01-05",)
        ),
        '<span class="badge">Not audited</span>.*<div class="doubtful">.*it hung': Audit(None, reason="failed", note="it hung"),
    }  # fmt: skip
    for pattern, audit in outcomes.items():
        assert re.search(pattern, render(make_result(days=30, audit=audit)), re.DOTALL), pattern


def test_intervals_are_drawn_on_one_scale_a_measure(html):
    table = html.split('class="spans"')[1].split("</table>")[0]
    drawn = re.findall(
        r'left:([\d.]+)%;width:([\d.]+)%"></i><i class="zero" style="left:([\d.]+)%".*?left:([\d.]+)%', table
    )
    left, width, zero, dot = np.array(drawn, dtype=float).T.reshape(4, 3, 4)  # of four intervals of three measures
    assert (np.ptp(zero, axis=1) == 0).all()
    assert ((left >= 0) & (left <= dot) & (dot <= left + width) & (left + width <= 100)).all()


def test_places_are_percent_of_a_line_that_holds_zero():
    at = places(pd.DataFrame({"low": [-2.0, math.nan], "estimate": [0.5, 1.0], "high": [8.0, math.inf]}))
    np.testing.assert_array_equal(at, [[5.4, 27.7, 94.6, 23.2], [math.nan, 32.1, math.nan, 23.2]])
    assert places(pd.DataFrame({"low": [0.0], "high": [0.0]})).to_numpy().tolist() == [[50.0] * 3]


def test_rules_are_ranked_by_sharpe_and_the_strategy_stands_out(result, html):
    rows = {row["name"]: row for row in ranked(result)}
    curves = {"first": result.equity, "QQQ": result.benchmark_equity, "equal weight": result.equal_weight_equity}
    curves |= result.baselines
    own = {name: metrics(curve.to_numpy()) for name, curve in curves.items()}
    assert [*rows] == sorted(own, key=lambda name: own[name].sharpe, reverse=True)
    assert all(rows[name]["metrics"] == own[name] for name in own)
    for name, curve in curves.items():
        assert rows[name]["excess"] == relative(curve.to_numpy(), result.benchmark_equity.to_numpy()).excess
    row = re.search(r'<tr class="own"><th scope="row">first</th>(.*?)</tr>', html)[1]
    assert f"<td>{ratio(result.metrics.sharpe)}</td>" in row  # A30: the same figure everywhere
    assert f"<td>{percent(result.relative.excess)}</td>" in row
    assert "equal weight" not in {each["name"] for each in ranked(replace(result, equal_weight_equity=result.equity))}
    assert ranked(replace(result, baselines={})) == []


def test_sweeps_read_back_from_disk_may_hold_nulls():
    nothing = {"cagr": None, "sharpe": None, "rank": None}
    sweep = {0.0: {"first": nothing}, 5.0: {"other": {"cagr": None, "sharpe": 1.0, "rank": 1}}}
    result = trained(days=20, cost_sweep=sweep)
    assert "<td>n/a</td><td>1.00 (1)</td>" in render(result)
    assert chart(result, "fees").svg == ""


def test_random_portfolios_say_where_the_strategy_ends(result, html):
    drawn = chart(result, "fan")
    ends = np.quantile(result.fan.iloc[-1] / result.equity.iloc[0] - 1, BANDS)
    figures = [percent(value) for value in (result.metrics.total_return, ends[1], ends[3], ends[0], ends[4])]
    assert re.findall(r"-?[\d.]+%", drawn.alt) == figures
    assert drawn.alt in html
    assert "40 random portfolios: median, bands of 50 % and 90 %" in Page(html).text
    ruined = examined(**SMALL).fan.copy()
    ruined.iloc[30:, 0], ruined.iloc[10:, 1] = 0.0, np.nan
    assert "Of 3 random" in chart(examined(**SMALL, fan=ruined), "fan").alt
    assert chart(examined(**SMALL, fan=ruined.iloc[:, :2]), "fan").svg == ""


def test_an_account_that_never_traded_has_few_facts():
    base = make_result([1000.0] * 30)
    idle = replace(base, weights=base.weights * 0, trades=base.trades.iloc[:0], turnover=base.turnover * 0)
    html = render(idle)
    assert [*answers(html.split('class="answers facts"')[1])] == ["Beta with QQQ", "Beta with equal weight", "Invested"]
    assert html.count("No asset was ever held.") == 2
    assert ResultWarning("never_traded") in warnings_of(idle)
    assert warnings_of(replace(idle, warnings=flags(idle))) == warnings_of(idle)


def test_contributions_at_both_ends_and_the_rest_make_the_whole(html):
    table = html.split('aria-label="Contribution by asset"')[1].split("</table>")[0]
    gains = [float(gain.replace(",", "")) for gain in re.findall(r"</th><td>(-?[\d,.]+)</td>", table)]
    assert len(gains) == 12  # five at each end, the others and all
    assert sum(gains[:11]) == pytest.approx(gains[11], abs=11)


def test_equal_results_give_equal_bytes_through_disk(result, html, tmp_path):
    result.save(tmp_path / "run")
    again = load_result(tmp_path / "run")
    vars(again)["_intervals"] = made_intervals()
    assert render(again) == html


def test_intraday_results_are_drawn_by_session():
    days = pd.bdate_range("2020-01-02", periods=40)
    bars = [day + pd.Timedelta(hours=hour) for day in days for hour in (10, 12, 15)]
    index = pd.DatetimeIndex(bars, name="date").as_unit("ns")
    base = examined(days=119, names=4, randoms=5)
    curves = ("equity", "benchmark_equity", "equal_weight_equity", "anchor_equity", "weights", "fan")
    result = replace(
        base,
        periods_per_year=756,
        turnover=base.turnover.set_axis(index[1:]),
        trades=base.trades.assign(date=index[-1]),
        baselines={name: curve.set_axis(index) for name, curve in base.baselines.items()},
        variants={},
        **{name: getattr(base, name).set_axis(index) for name in curves},
    )
    html = render(result)
    assert percent(result.metrics.total_return) in html
    assert all(chart(result.by_session(), name).svg in html for name in ("equity", "turnover", "fan"))
    curves = (result.equity, result.benchmark_equity, result.equal_weight_equity, *result.baselines.values())
    sharpes = [metrics(curve.to_numpy(), periods_per_year=756).sharpe for curve in curves]
    assert ranked(result)[0]["metrics"].sharpe == max(sharpes)
