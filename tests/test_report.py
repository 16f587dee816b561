"""The HTML report: whole, offline, searchable, and made from whatever a backtest can bring."""

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

from finpod.backtesting.result_io import load_result
from finpod.backtesting.text import headline
from finpod.errors import InputError
from finpod.figures import percent, ratio
from finpod.records import Event, ResultWarning
from finpod.report import render, write_report
from finpod.report.charts import CHARTS
from finpod.report.pages import Draft
from finpod.report.provenance import provenance
from finpod.report.sections import MONTHS, notes, timeline, window_legend

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Text and attributes of a page; checks that every element is closed."""

    def __init__(self, html):
        super().__init__()
        self.attributes, self.open, self.texts, self.tags, self.hidden = [], [], [], set(), False
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.texts))


@pytest.fixture(scope="module", autouse=True)
def few_resamples():
    """The intervals of the verdicts have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("finpod.evidence.skill.RESAMPLES", 100)
        yield


def draw(result):
    """All charts by name."""
    return Draft("a page").charts(CHARTS, result)


@pytest.fixture(scope="module")
def result():
    return trained()


@pytest.fixture(scope="module")
def html(result):
    return render(result)


def test_e01_figures_are_text(result, html):
    text = Page(html).text
    assert ratio(result.metrics.sharpe) in text
    for label, cells in headline(result):
        assert label in text
        assert all(cell in text for cell in cells)
    assert percent(result.relative.excess) in text


def test_a30_report_table_and_json_agree(result, html):
    stored = json.loads(result.to_json())["table"]
    cells = re.search(r'<th scope="row">Sharpe</th>(.*?)</tr>', html)[1]
    shown = re.findall(r"<td>(.*?)</td>", cells)
    assert shown == [ratio(stored[column]["sharpe"]) for column in ("strategy", "benchmark", "equal_weight")]


def test_e02_one_file_without_network_or_script(html):
    page = Page(html)
    assert "script" not in page.tags
    for name, value in page.attributes:
        if name in ("src", "href", "xlink:href"):
            assert value.startswith(("#", "data:"))
        assert not name.startswith("on")
    assert re.findall(r"url\((?!#)", html) == []
    assert "@import" not in html
    assert len(html.encode()) < 3_000_000


def test_e02_a_decade_of_everything_stays_small_and_whole():
    html = render(examined(days=2520, names=100, randoms=200))
    page = Page(html)
    assert len(html.encode()) < 1_500_000
    assert "script" not in page.tags
    assert all(value.startswith(("#", "data:")) for name, value in page.attributes if name in ("src", "href"))
    assert re.findall(r"url\((?!#)", html) == []


def test_e03_container_without_display_home_or_arial(tmp_path):
    environment = {
        key: value for key, value in os.environ.items() if key not in ("DISPLAY", "WAYLAND_DISPLAY", "MPLCONFIGDIR")
    }
    environment |= {
        "MPLBACKEND": "TkAgg",
        "HOME": "/proc/nowhere",
        "XDG_CACHE_HOME": "",
        "XDG_CONFIG_HOME": "",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])]),
    }
    code = (
        "import sys, made_results, matplotlib.pyplot as plt\n"
        "made_results.trained(300).report(sys.argv[1])\n"
        "assert plt.get_fignums() == []"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "made.html"],
        env=environment,
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "findfont" not in done.stderr + done.stdout
    assert "Warning" not in done.stderr
    Page((tmp_path / "made.html").read_text())


SHAPES = {
    "one day": [1e6, 1.01e6],
    "six flat days": [1000.0] * 6,
    "only gains": 1000 * 1.001 ** np.arange(300),
    "two drawdowns": [100, 110, 99, 104.5, 110, 121, 115],
    "one month": 1e6 * (1 + 0.01 * np.sin(np.arange(22))),
    "ruin": [100, 110, 0, 0, 0],
    "first day loss": [100, 90, 95, 80],
    "gains before ruin": [*(1000 * 1.001 ** np.arange(300) * (1 + 0.01 * (np.arange(300) % 2))), *[0.0] * 200],
}


@pytest.mark.parametrize("name", SHAPES)
def test_e05_every_shape_of_history_renders(name):
    result = make_result(SHAPES[name])
    html = render(result)
    text = Page(html).text
    assert percent(result.metrics.total_return) in text
    assert not re.search(r"(?<![\w.])nan(?!\w)", html)  # in what is read out instead of a chart, neither
    for absurd in ("inf", "nan", "-0.00%", "e+1"):
        assert not re.search(rf"(?<![\w.]){re.escape(absurd)}(?!\w)", text), absurd
    assert ("None: the account never fell below a peak." in text) == (result.metrics.max_drawdown == 0)
    assert ("* scaled to a year from only" in text) == (result.metrics.days < 20)
    assert ("Luck or skill?" in text) == (result.metrics.days >= 20 and result.metrics.volatility > 0)
    assert "Where it came from" in text


@pytest.mark.parametrize("missing", [[0, 3, 4, 5, -1], slice(None)])
def test_e05_missing_benchmark_days_render(missing):
    result = make_result(days=130)
    benchmark = result.benchmark_equity.copy()
    benchmark.iloc[missing] = np.nan
    text = Page(render(make_result(days=130, benchmark_equity=benchmark))).text
    assert percent(result.metrics.total_return) in text


def test_weeks_begin_on_monday():
    """Sixteen weeks of 1 % and 3 % a day in turn: the middle of the two, which no other cut gives."""
    daily = np.tile(np.repeat([1.01, 1.03], 5), 8)
    result = make_result(100 * np.cumprod(np.append(1, daily)), start="2016-12-30")
    weekly = (1.01**5 + 1.03**5) / 2 - 1
    assert f"the medians are 2.00%, {percent(weekly)}, " in draw(result)["quantiles"].alt


def test_an_account_that_never_traded_renders():
    result = make_result([1000.0] * 30)
    idle = make_result(
        [1000.0] * 30, weights=result.weights * 0, trades=result.trades.iloc[:0], turnover=result.turnover * 0
    )
    text = Page(render(idle)).text
    assert "No name was ever held." in text
    assert "100.00%" in text


def test_e07_undefined_figures_print_na():
    text = Page(render(make_result([1000.0, 1000.0 - 1e-6, 1000.0 - 1e-6]))).text
    assert "n/a" in text
    assert "0.00%" in text
    assert "-0.00" not in text


def test_names_are_escaped_everywhere():
    evil = "<script>alert('x')</script>$x_$"
    base = make_result(days=40)
    html = render(
        make_result(
            days=40,
            strategy=evil,
            benchmark=evil,
            warnings=(ResultWarning("note", {"text": evil}),),
            events=(Event("2017-02-01", "no_price", evil),),
            agent={evil: evil, "list": [{evil: 1}, {evil: 2}]},
            manifest={"title": evil, evil: [evil]},
            windows={evil: ("2016-01-04", "2016-12-30")},
            weights=base.weights.rename(columns={"N00": evil}),
            trained_until="2016-12-30",
        )
    )
    assert "<script" not in html
    assert "script" not in Page(html).tags
    assert evil in Page(html).text


def test_windows_are_marked(html):
    text = Page(html).text
    assert "train window, 2009-01-02 to 2015-12-31" in text
    assert "validation window, 2016-01-04 to 2016-12-30" in text
    assert "test window, 2017-01-03 to" in text
    assert "in-sample" not in text.lower().replace("in-sample no", "")


def test_windows_that_overlap_stand_on_rows_of_their_own():
    windows = {"train": ("2016-01-04", "2016-12-30"), "validation": ("2017-01-03", "2017-02-01")}
    rows = timeline(trained(days=60, in_sample=True, trained_until="2017-02-01", windows=windows))
    assert [[bar["name"] for bar in row] for row in rows] == [["train", "validation"], ["backtest"]]
    apart = timeline(trained(days=60))
    assert [[bar["name"] for bar in row] for row in apart] == [["train", "validation", "test"]]
    assert all(0 <= bar["left"] <= 99.5 for bar in timeline(trained(days=1))[0])


def test_many_windows_of_a_kind_have_one_line_in_the_legend():
    windows = {
        f"{kind} {i}": (f"201{i}-01-01", f"201{i}-06-30") for i in range(1, 6) for kind in ("train", "validation")
    }
    said = dict(window_legend(trained(days=60, windows=windows)))
    assert said["train"].startswith("5 train windows, 2011-01-01 to 2015-06-30; ")
    assert set(said) == {"train", "validation", "test"}
    one = dict(window_legend(trained(days=60, windows={"train": ("2011-01-01", "2015-06-30")})))
    assert one["train"] == "train window, 2011-01-01 to 2015-06-30"


def test_windows_inside_the_backtest_are_bounded_on_the_chart():
    windows = {"train": ("2017-01-03", "2017-02-01"), "validation": ("2017-02-02", "2017-02-20")}
    html = render(trained(days=60, in_sample=True, trained_until="2017-02-20", windows=windows))
    for name in ("train", "validation", "test"):
        assert f" {name} window</text>" in html
    equity = html.split('id="equity-figure')[1].split("</svg>")[0]
    edges = [float(x) for x in re.findall(r'd="M (\S+) [^"]*"[^>]*stroke-dasharray', equity)]
    assert len(edges) == 4  # the ends of train and validation, the starts of validation and test
    assert edges == sorted(edges)  # equal results give equal bytes
    assert "stroke-dasharray" not in render(trained(days=60)).split('id="equity-figure')[1].split("</svg>")[0]


@pytest.mark.parametrize("name", ["one day", "six flat days", "ruin"])
def test_the_strategy_is_drawn_relative_to_equal_weight(name):
    result = make_result(SHAPES[name])
    final = result.equity.iloc[-1] / result.equal_weight_equity.iloc[-1] - 1
    assert (
        f"Relative to equal weight. Value of the account over that of equal weight, less 1; at the end {percent(final)}"
        in (render(result))
    )


def test_no_equal_weight_is_nothing_to_be_relative_to():
    base = make_result(days=30)
    alone = make_result(days=30, equal_weight_equity=base.equal_weight_equity * np.nan)
    chart = draw(alone)["relative"]
    assert (chart.svg, chart.alt) == ("", "There is no equal weight to set it against.")


def test_a23_the_excess_says_on_which_days_it_is():
    benchmark = make_result(days=130).benchmark_equity.copy()
    benchmark.iloc[100:] = np.nan
    text = Page(render(make_result(days=130, benchmark_equity=benchmark))).text
    assert "total return less the benchmark's on the days the benchmark has" in text
    assert "Over the days it has QQQ returned" in text
    assert "on the days the benchmark has" not in Page(render(make_result(days=30))).text


def test_in_sample_is_said_in_red():
    windows = {"train": ("2016-01-04", "2017-02-01")}
    html = render(trained(days=60, in_sample=True, trained_until="2017-02-01", windows=windows))
    assert '<li class="red">In-sample: the window starts on or before 2017-02-01' in html
    assert '<span class="badge red">In-sample</span>' in html
    assert "train window</text>" in html
    warned = (ResultWarning("in_sample", {"trained_until": "2017-02-01"}),)
    assert len(notes(trained(days=60, in_sample=True, warnings=warned))) == 1


def test_simulated_prices_are_labelled():
    html = render(make_result(days=30, manifest={"source": "simulated", "title": "simulated market"}))
    assert '<span class="badge">Simulated data</span>' in html


def test_provenance_and_spread_are_shown(result, html):
    text = Page(html).text
    for shown in (
        result.data_hash,
        "2.13.0",
        "Trials (agents by rounds) 16",
        "cpu",
        "10 bps fee a side; filled at the open",
        "a made market",
        "momentum_12_1, volatility_63",
        "Chosen among 16 trials",
    ):
        assert shown in text
    scores = [member["validation_score"] for member in result.agent["members"]]
    assert f"mean {np.mean(scores):.5g}" in text
    assert f"standard deviation {np.std(scores, ddof=1):.5g}" in text
    assert "count 4" in text


def test_provenance_is_said_in_words():
    manifest = {"survivorship": True, "benchmark_kind": "none", "versions": {"numpy": "2.4.6", "finpod": "0.1.0"}}
    groups = dict(provenance(make_result(days=30, manifest=manifest)))
    assert ("Names chosen with hindsight (survivorship)", "yes") in groups["Data"]
    assert ("Made with", "finpod 0.1.0, numpy 2.4.6") in groups["Data"]
    assert "True" not in str(groups)
    assert "Versions" not in str(groups)


def test_without_a_benchmark_the_page_says_so():
    made = make_result(days=400)
    html = render(replace(made, benchmark="none", benchmark_equity=made.benchmark_equity * np.nan))
    text = Page(html).text
    assert not re.search(r"<t[hd][^>]*>none<", html)
    assert "no benchmark" in text
    assert "Over the same days the equal weight of the names returned " in text
    assert "; equal weight had " in text
    assert "none returned" not in text
    assert "none had" not in text
    assert "Benchmark none" in text


def test_lists_of_scores_show_mean_and_spread():
    groups = dict(provenance(trained(days=60, agent={"scores": [1.0, 2.0, 3.0], "seeds": [0, 1, 2]})))
    assert groups["Agent"] == [("Scores", "1, 2, 3 (mean 2, standard deviation 1, count 3)"), ("Seeds", "0, 1, 2")]


def test_long_series_of_figures_stand_on_one_line():
    coverage = {str(year): 0.5 for year in range(2000, 2010)}
    groups = dict(provenance(make_result(days=20, manifest={"coverage": coverage, "of": {"a": 1, "b": "x"}})))
    rows = dict(groups["Data"])
    assert rows["Coverage"].startswith("2000: 0.5, 2001: 0.5")
    assert (rows["Of: A"], rows["Of: B"]) == ("1", "x")


def test_whole_figures_are_written_out_and_empty_ones_left_out():
    manifest = {"missing": [], "notes": "", "lot": 2.5}
    groups = dict(provenance(make_result(days=20, agent={"cash": 1e6, "rate": 3e-4}, manifest=manifest)))
    assert groups["Agent"] == [("Cash", "1,000,000"), ("Rate", "0.0003")]
    assert [label for label, _ in groups["Data"]] == ["Title", "Content hash (SHA-256)", "Lot"]


def test_an_agents_own_seed_is_called_so(html):
    assert '<th scope="col">Agent seed</th><th scope="col">Validation score</th>' in html


def test_members_of_one_seed_are_no_measure_of_luck():
    equity = make_result(days=60).equity
    html = render(make_result(days=60, variants={f"member {i}": equity for i in range(3)}, variant_kind="member"))
    assert "Each of 3 members of one seed on its own over this window" in html
    assert "their deviation understates luck" in html


def test_months_and_years_are_tables(result, html):
    text = Page(html).text
    last_of_2017 = result.equity[:"2017"].iloc[-1]
    assert percent(last_of_2017 / result.equity.iloc[0] - 1) in text
    january = result.equity[:"2017-01"].iloc[-1] / result.equity.iloc[0] - 1
    assert percent(january, 1) in text


def test_folded_months_keep_their_names(html):
    assert re.findall(r'data-month="(\w+)"', html)[:12] == list(MONTHS)


def test_every_chart_is_described(html):
    described = re.findall(r'<div role="img" aria-label="([^"]+)"><svg', html)
    assert len(described) == 10
    identifiers = re.findall(r' id="([^"]+)"', html)
    assert len(identifiers) == len(set(identifiers))
    assert not re.search(r"<(svg|path|text|g|use)[^>]*#[0-9a-f]{6}", html)


def test_equal_results_give_equal_bytes_through_disk(tmp_path):
    result = trained(days=150)
    result.save(tmp_path / "run")
    assert render(load_result(tmp_path / "run")) == render(result)


def test_write_report_is_whole_or_absent(tmp_path, monkeypatch):
    monkeypatch.setattr("finpod.report.render", lambda result: "<!doctype html>")
    result = make_result(days=30)
    path = write_report(result, tmp_path / "new" / "made.html")
    assert path.read_text().startswith("<!doctype html>")
    with pytest.raises(InputError, match="exists already"):
        write_report(result, path, overwrite=False)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot write"):
        write_report(result, tmp_path / "folder")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot write"):
        result.report(tmp_path / "file" / "made.html")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "folder", "new"]
