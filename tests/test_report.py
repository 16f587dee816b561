"""The HTML report: complete, offline, searchable, for any result of a backtest."""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_errors import refused
from made_markets import intraday_market
from made_pages import Page
from made_results import examined, made_intervals, make_result, trained

from finpod.backtesting.engine import backtest
from finpod.backtesting.result_io import load_result
from finpod.backtesting.text import headline
from finpod.figures import percent, ratio
from finpod.measures import metrics, relative
from finpod.records import Audit, Event, Finding, ResultWarning, Severity
from finpod.report.charts import BANDS, CHARTS
from finpod.report.pages import write_page
from finpod.report.sections import calendar_returns, places, ranked, render
from finpod.report.svg import draw
from finpod.rules import EqualWeight


@pytest.fixture(scope="module", autouse=True)
def few_resamples():
    """The intervals of the verdicts have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("finpod.evidence.skill.RESAMPLES", 100)
        yield


SMALL = {"days": 60, "names": 4, "randoms": 5}


@pytest.fixture(scope="module")
def result():
    return examined(days=300, names=12, randoms=40)


@pytest.fixture(scope="module")
def html(result):
    return render(result)


def chart(result, name):
    return draw(next(spec for spec in CHARTS if spec.name == name), result)


def test_e01_a30_figures_are_text_and_agree_with_table_and_json(result, html):
    text, stored = Page(html).text, json.loads(result.to_json())["table"]
    for label, cells in headline(result):
        assert label in text
        assert all(cell in text for cell in cells)
    cells = re.findall(r"<td>(.*?)</td>", re.search(r'<th scope="row">Sharpe</th>(.*?)</tr>', html)[1])
    assert cells == [ratio(stored[column]["sharpe"]) for column in ("strategy", "benchmark", "equal_weight")]
    assert percent(result.relative.excess) in text
    assert percent(result.equity[:"2017"].iloc[-1] / result.equity.iloc[0] - 1) in text
    january = result.equity[:"2017-01"].iloc[-1] / result.equity.iloc[0] - 1
    month = re.search(r'<td role="cell" data-month="(\w+)"[^>]*>([^<]*)</td>', html)
    assert month.groups() == ("Jan", percent(january, 1))


@pytest.mark.parametrize(("size", "most"), [({"days": 60}, 1_000_000), ({"days": 2520, "randoms": 200}, 1_500_000)])
def test_e02_one_small_file_without_network_or_script(size, most):
    html = render(examined(names=100, **size))
    page = Page(html)
    assert len(html.encode()) < most
    assert "script" not in dict(page.elements)
    attributes = [pair for _, attributes in page.elements for pair in attributes.items()]
    assert not any(name.startswith("on") for name, _ in attributes)
    links = [value for name, value in attributes if name in ("src", "href", "xlink:href")]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    assert not re.search(r"url\((?!#)|@import", html)


def test_e03_container_without_display_home_or_arial(tmp_path):
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "MPLCONFIGDIR")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment |= {"MPLBACKEND": "TkAgg", "HOME": "/proc/nowhere", "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    code = (
        "import sys, made_results, matplotlib.pyplot as plt\n"
        "made_results.trained(300).report(sys.argv[1])\n"
        "assert plt.get_fignums() == []"
    )
    line, target = [sys.executable, "-c", code], tmp_path / "made.html"
    done = subprocess.run([*line, target], env=environment, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not re.search("findfont|Warning", done.stderr + done.stdout)
    Page(target.read_text())


SHAPES = {
    "one day": [1e6, 1.01e6],
    "six flat days": [1000.0] * 6,
    "only gains": 1000 * 1.001 ** np.arange(300),
    "two drawdowns": [100, 110, 99, 104.5, 110, 121, 115],
    "one month": 1e6 * (1 + 0.01 * np.sin(np.arange(22))),
    "rounding dust": [1000.0, 1000.0 - 1e-6, 1000.0 - 1e-6],
    "gains before ruin": [*(1000 * 1.001 ** np.arange(300) * (1 + 0.01 * (np.arange(300) % 2))), *[0.0] * 200],
}


@pytest.mark.parametrize("name", SHAPES)
def test_e05_e07_every_shape_of_history_renders(name):
    result = make_result(SHAPES[name])
    html = render(result)
    text = Page(html).text
    assert percent(result.metrics.total_return) in text
    assert not re.search(r"(?<![\w.])nan(?!\w)", html)  # in what is read out instead of a chart, neither
    for absurd in ("inf", "nan", "-0.00%", "e+1"):
        assert not re.search(rf"(?<![\w.]){re.escape(absurd)}(?!\w)", text), absurd
    assert ('id="significance"' in html) == (result.metrics.days >= 20 and result.metrics.volatility > 0)
    assert ("<td>n/a</td>" in html) or len(result.returns) > 20
    final = result.equity.iloc[-1] / result.equal_weight_equity.iloc[-1] - 1
    assert f"{percent(final)} at the end" in chart(result, "relative").alt


@pytest.mark.parametrize("missing", [[0, 3, 4, 5, -1], slice(0, None, 9), slice(None)])
def test_e05_a23_missing_benchmark_days_render(missing):
    benchmark = make_result(days=130).benchmark_equity.copy()
    benchmark.iloc[missing] = np.nan
    result = make_result(days=130, benchmark="QQQ" if benchmark.notna().any() else "none", benchmark_equity=benchmark)
    html = render(result)
    assert percent(result.metrics.total_return) in html
    assert ('<th scope="col">no benchmark</th>' in html) == (not result.has_benchmark)
    assert not re.search("<t[hd][^>]*>none<|none (had|returned)", html)
    over = calendar_returns(result)["years"]["over_benchmark"]  # 130 days are in one year
    assert list(over) == pytest.approx([result.relative.excess], nan_ok=True)
    bare = replace(result, benchmark_equity=benchmark * np.nan)
    assert (chart(result, "sharpe").svg != chart(bare, "sharpe").svg) == result.has_benchmark
    assert chart(replace(result, equal_weight_equity=result.equity * np.nan), "relative").svg == ""


def test_names_are_escaped_everywhere():
    evil = "<script>alert('x')</script>$x_$"
    base = examined(days=60, names=4, randoms=4)
    figures = {step: {evil: at["first"]} for step, at in base.cost_sweep.items()}
    finding = Finding("held", Severity.CAN_LOOK_AHEAD, "decisions", "2024-01-05", evil, note=evil)
    names = {
        "strategy": evil,
        "benchmark": evil,
        "warnings": (ResultWarning("note", {"text": evil}),),
        "events": (Event("2017-02-01", "no_price", evil),),
        "agent": {evil: evil, "list": [{evil: 1}, {evil: 2}]},
        "manifest": {"title": evil, evil: [evil]},
        "windows": {evil: ("2016-01-04", "2016-12-30")},
        "baselines": {evil + "2": base.baselines["minimum variance"]},
        "variants": {evil: base.equity, "b": base.equity},
        "weights": base.weights.rename(columns={"N00": evil}),
        "trades": base.trades.replace({"ticker": {"N00": evil}}),
    }
    audit = Audit(False, (finding,))
    html = render(examined(days=60, names=4, randoms=4, audit=audit, cost_sweep=figures, capacity=figures, **names))
    assert "<script" not in html
    assert Page(html).text.count(evil) > 25


def test_windows_inside_the_backtest_are_bounded_on_the_chart():
    windows = {"train": ("2017-01-03", "2017-02-01"), "validation": ("2017-02-02", "2017-02-20")}
    equity = chart(trained(days=60, in_sample=True, trained_until="2017-02-20", windows=windows), "equity").svg
    assert re.findall(r"(\w+) window</text>", equity) == ["train", "validation", "test"]
    assert "stroke-dasharray" not in chart(trained(days=60), "equity").svg


def test_in_sample_is_said_in_red_once():
    warning = ResultWarning("in_sample", {"trained_until": "2017-02-01"})
    result = trained(days=60, in_sample=True, warnings=(warning,), manifest={"source": "simulated"})
    html = render(result)
    assert re.search('<li class="red">In-sample: .* 2017-02-01', html)
    assert re.findall('<span class="badge[^>]*>([^<]*)</span>', html) == ["In-sample", "Simulated data"]


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    path = make_result(days=30).report(tmp_path / "new" / "made.html")
    assert path.read_text().startswith("<!doctype html>")
    refused(r"made\.html", write_page, lambda: "", path, overwrite=False)
    refused("cannot write", write_page, lambda: "", path / "made.html")
    assert [item.name for item in path.parent.iterdir()] == ["made.html"]


def test_what_was_not_run_is_left_out_and_named(html):
    bare, partial = render(make_result(days=40)), render(examined(**SMALL, capacity={}))
    absent = {anchor for anchor in ("baselines", "costs") if f'<h2 id="{anchor}">' not in bare}
    assert absent == {"baselines", "costs"}
    assert [page.count("Not computed for this result") for page in (html, partial, bare)] == [0, 1, 1]
    assert chart(make_result(days=40), "fan") is None


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
    assert "<td>n/a</td><td>1.00 (1)</td>" in render(trained(days=20, cost_sweep=sweep))


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
    facts = re.findall(r'<dt>([^<]*)</dt><dd class="big">', html.split('class="answers facts"')[1])
    assert facts == ["Beta with QQQ", "Beta with equal weight", "Invested"]
    assert html.count("No asset was ever held.") == 2


def test_equal_results_give_equal_bytes_through_disk(result, html, tmp_path):
    result.save(tmp_path / "run")
    again = load_result(tmp_path / "run")
    vars(again)["_intervals"] = made_intervals()
    assert render(again) == html


def test_intraday_results_are_drawn_by_session():
    result = backtest(EqualWeight(), intraday_market())
    html = render(result)
    assert percent(result.metrics.total_return) in html
    assert all(f">{label}<" in html for label in ("Bars", "Bars held", "Bars with a fill"))
    assert all(chart(result.by_session(), name).svg in html for name in ("equity", "turnover"))
