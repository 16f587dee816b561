"""The HTML report: complete, offline, searchable, for any result of a backtest."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_results import examined, make_result, trained

from finpod.backtesting.text import headline
from finpod.errors import InputError
from finpod.figures import percent, ratio
from finpod.records import Audit, Event, Finding, ResultWarning, Severity
from finpod.report.charts import CHARTS
from finpod.report.pages import write_page
from finpod.report.provenance import provenance
from finpod.report.sections import render, timeline, warnings_of
from finpod.report.svg import draw

VOID = {"meta", "link", "br", "img", "hr", "input", "source"}


class Page(HTMLParser):
    """Text and elements of a page; checks that every element is closed."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.feed(html)
        assert self.open == []
        self.text = re.sub(r"\s+", " ", " ".join(self.texts))

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.open += [tag] * (tag not in VOID)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts += [data] * ("style" not in self.open)


@pytest.fixture(scope="module", autouse=True)
def few_resamples():
    """The intervals of the verdicts have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("finpod.evidence.skill.RESAMPLES", 100)
        yield


@pytest.fixture(scope="module")
def result():
    return trained()


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
    "ruin": [100, 110, 0, 0, 0],
    "first day loss": [100, 90, 95, 80],
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
    assert ("never fell below its peak" in text) == (result.metrics.max_drawdown == 0)
    assert ('id="significance"' in html) == (result.metrics.days >= 20 and result.metrics.volatility > 0)
    assert ("<td>n/a</td>" in html) or len(result.returns) > 20
    final = result.equity.iloc[-1] / result.equal_weight_equity.iloc[-1] - 1
    assert f"{percent(final)} at the end" in chart(result, "relative").alt


@pytest.mark.parametrize("missing", [[0, 3, 4, 5, -1], slice(None)])
def test_e05_a23_missing_benchmark_days_render(missing):
    benchmark = make_result(days=130).benchmark_equity.copy()
    benchmark.iloc[missing] = np.nan
    result = make_result(days=130, benchmark="QQQ" if benchmark.notna().any() else "none", benchmark_equity=benchmark)
    html = render(result)
    assert percent(result.metrics.total_return) in html
    assert ("on the days on which the benchmark has bars" in html) == result.has_benchmark
    assert ('<th scope="col">no benchmark</th>' in html) == (not result.has_benchmark)
    assert not re.search("<t[hd][^>]*>none<|none (had|returned)", html)
    assert chart(replace(result, equal_weight_equity=result.equity * np.nan), "relative").svg == ""


def test_weeks_begin_on_monday():
    """Sixteen weeks of 1 % and 3 % a day in turn: the middle of the two, which no other cut gives."""
    daily = np.tile(np.repeat([1.01, 1.03], 5), 8)
    result = make_result(100 * np.cumprod(np.append(1, daily)), start="2016-12-30")
    weekly = (1.01**5 + 1.03**5) / 2 - 1
    assert f" 2.00%, {percent(weekly)}, " in chart(result, "quantiles").alt


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


def test_windows_are_bars_in_rows_in_which_none_hides_another():
    windows = {"train": ("2016-01-04", "2016-12-30"), "validation": ("2017-01-03", "2017-02-01")}
    inside = trained(days=60, in_sample=True, trained_until="2017-02-01", windows=windows)
    names = [[[bar["name"] for bar in row] for row in timeline(each)] for each in (inside, trained(days=60))]
    assert names == [[["train", "validation"], ["backtest"]], [["train", "validation", "test"]]]
    assert all(0 <= bar["left"] <= 99.5 for bar in timeline(trained(days=1))[0])
    spans = {f"{kind} {i}": (f"201{i}-01-01", f"201{i}-06-30") for i in range(1, 6) for kind in ("train", "validation")}
    legend = re.findall(r"([\w ]*train windows?), (\S+) to", render(trained(days=60, windows=spans)))
    assert legend == [("5 train windows", "2011-01-01")]


def test_windows_inside_the_backtest_are_bounded_on_the_chart():
    windows = {"train": ("2017-01-03", "2017-02-01"), "validation": ("2017-02-02", "2017-02-20")}
    equity = chart(trained(days=60, in_sample=True, trained_until="2017-02-20", windows=windows), "equity").svg
    assert re.findall(r"(\w+) window</text>", equity) == ["train", "validation", "test"]
    edges = [float(x) for x in re.findall(r'd="M (\S+) [^"]*"[^>]*stroke-dasharray', equity)]
    assert len(edges) == 4  # the ends of train and validation, the starts of validation and test
    assert edges == sorted(edges)  # equal results give equal bytes
    assert "stroke-dasharray" not in chart(trained(days=60), "equity").svg


def test_in_sample_is_said_in_red_once():
    result = trained(days=60, in_sample=True, trained_until="2017-02-01", manifest={"source": "simulated"})
    html = render(result)
    assert re.search('<li class="red">In-sample: .* 2017-02-01', html)
    assert re.findall('<span class="badge[^>]*>([^<]*)</span>', html) == ["In-sample", "Simulated data"]
    assert len(warnings_of(replace(result, warnings=(ResultWarning("in_sample"),)))) == 1


def test_provenance_writes_values_in_words():
    coverage = {str(year): 0.5 for year in range(2000, 2010)}
    manifest = {"survivorship": True, "versions": {"numpy": "2", "finpod": "1"}, "coverage": coverage, "missing": []}
    agent = {"seeds": [0, 1, 2], "cash": 1e6, "rate": 3e-4, "of": {"a": 1, "b": "x" * 500}, "note": ""}
    groups = {title: dict(rows) for title, rows in provenance(make_result(days=20, manifest=manifest, agent=agent))}
    data, texts = groups["Data"], groups["Agent"]
    assert data["Coverage"].startswith("2000: 0.5, 2001: 0.5")
    assert data["Made with"] == "finpod 1, numpy 2"
    assert (len(data), "yes" in data.values()) == (5, True)
    assert texts.pop("Of: B").endswith("x… (500 characters)")
    assert texts == {"Cash": "1,000,000", "Of: A": "1", "Rate": "0.0003", "Seeds": "0, 1, 2"}


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    path = make_result(days=30).report(tmp_path / "new" / "made.html")
    assert path.read_text().startswith("<!doctype html>")
    with pytest.raises(InputError, match=r"made\.html"):
        write_page(lambda: "", path, overwrite=False)
    with pytest.raises(InputError, match="cannot write"):
        write_page(lambda: "", path / "made.html")
    assert [item.name for item in path.parent.iterdir()] == ["made.html"]
