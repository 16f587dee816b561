"""A chart or a section that raises an error is left out: the run is saved, the rest of the page is made, and one line says so."""

import json
import re
import sys
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from made_logs import write_run
from made_results import examined, make_result, trained
from test_report import few_resamples  # noqa: F401

from finpod.backtesting.comparison import compare
from finpod.cli import main
from finpod.errors import ReportWarning
from finpod.market.snapshots import save_snapshot
from finpod.report import charts, clip, render, sections, training, training_charts
from finpod.report import compare as compare_page
from finpod.report.compare import render_comparison
from finpod.report.pages import Picture, Section
from finpod.report.svg import Chart
from finpod.report.training import render_training_report
from finpod.synthetic import simulate_market
from finpod.tournament.history import read_history

PAGES = {
    "backtest": (charts, sections),
    "compare": (compare_page, compare_page),
    "training": (training_charts, training),
}
"""Page -> the modules of its charts and of its sections."""
PARTS = ("HEAD", "LEAD", "SECTIONS")
EVERY_CHART = [(page, picture.name) for page, (home, _) in PAGES.items() for picture in home.CHARTS]
EVERY_SECTION = [
    (page, part, section.name) for page, (_, home) in PAGES.items() for part in PARTS for section in getattr(home, part)
]
WORDS = "no such <figure>"


def fail(*_arguments, **_options):
    raise ValueError(f"{WORDS}\nsecond line")


def page_of(name, folder):
    """A function that makes the page, with every chart and section that it can have."""
    if name == "training":
        run = read_history(write_run(folder / "run", seeds=2, lost=[2], failed=[5]))
        return partial(render_training_report, run)
    if name == "compare":
        return partial(
            render_comparison,
            compare([make_result(seed=seed, days=60, names=5, strategy=f"strategy {seed}") for seed in range(2)]),
        )
    made = trained(days=60)
    agents = {"variants": made.variants, "agent": made.agent, "windows": made.windows, "trained_until": "2016-12-30"}
    return partial(render, examined(days=60, names=12, randoms=5, **agents))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clip, "section", lambda training: {"lacking": "there is one of locomotion alone"})
        yield {name: page_of(name, tmp_path_factory.mktemp(name)) for name in PAGES}


@pytest.fixture
def plain(monkeypatch):
    """Charts that are drawn at once, so that a page takes no time."""

    def replace(home):
        def drawn(picture):
            return picture._replace(
                draw=lambda subject: Chart(picture.title, "a chart", "<svg></svg>", wide=picture.wide)
            )

        monkeypatch.setattr(home, "CHARTS", tuple(map(drawn, home.CHARTS)))
        if home is training_charts:
            monkeypatch.setattr(
                home, "tree_charts", lambda trials: [Chart("Tree", "a chart", "<svg></svg>", wide=True)]
            )

    return replace


def headings(html):
    return [" ".join(text.split()) for text in re.findall(r"<h[123][^>]*>(.*?)</h[123]>", html, re.DOTALL)]


def test_every_page_is_whole_if_nothing_fails(pages, plain):
    for name, (home, parts) in PAGES.items():
        plain(home)
        html = pages[name]()  # a ReportWarning would be an error here
        assert "left out" not in html
        shown = headings(html)
        for section in parts.SECTIONS:
            assert section.title in shown, (name, section.name)


@pytest.mark.parametrize(("page", "name"), EVERY_CHART)
def test_g12_every_chart_may_fail(pages, plain, monkeypatch, page, name):
    home, _ = PAGES[page]
    plain(home)
    whole = pages[page]()
    (picture,) = (picture for picture in home.CHARTS if picture.name == name)
    broken = tuple(other._replace(draw=fail) if other is picture else other for other in home.CHARTS)
    monkeypatch.setattr(home, "CHARTS", broken)
    with pytest.warns(ReportWarning) as warned:
        html = pages[page]()
    assert [str(one.message).partition(": ")[2] for one in warned] == [
        f"the chart {picture.title!r} was left out (ValueError: {WORDS})"
    ]
    assert html.count("<svg") == whole.count("<svg") - 1
    assert html.count("This chart was left out (ValueError: no such &lt;figure&gt;).") == 1
    assert headings(html) == headings(whole)


@pytest.mark.parametrize(("page", "part", "name"), EVERY_SECTION)
def test_g12_every_section_may_fail(pages, plain, monkeypatch, page, part, name):
    pictures, home = PAGES[page]
    plain(pictures)
    whole = pages[page]()
    (section,) = (section for section in getattr(home, part) if section.name == name)
    broken = tuple(other._replace(content=fail) if other is section else other for other in getattr(home, part))
    monkeypatch.setattr(home, part, broken)
    with pytest.warns(ReportWarning) as warned:
        html = pages[page]()
    assert [str(one.message).partition(": ")[2] for one in warned] == [
        f"the section {section.title!r} was left out (ValueError: {WORDS})"
    ]
    assert html.count("This section was left out (ValueError: no such &lt;figure&gt;).") == 1
    kept, before = headings(html), headings(whole)
    assert [heading for heading in kept if heading in before] == kept  # nothing new, and in the same order
    assert part != "SECTIONS" or f'<h2 id="{name}">{section.title}</h2>' in html
    for other in home.SECTIONS:
        assert other.title in kept


@pytest.mark.parametrize(("page", "name"), [("backtest", "risk"), ("compare", "figures"), ("training", "best")])
def test_g12_what_fails_while_it_is_printed_is_left_out_too(pages, plain, monkeypatch, page, name):
    pictures, home = PAGES[page]
    plain(pictures)
    broken = tuple(
        other._replace(content=lambda subject: {}) if other.name == name else other for other in home.SECTIONS
    )
    monkeypatch.setattr(home, "SECTIONS", broken)
    with pytest.warns(ReportWarning, match=r"was left out \(UndefinedError: "):
        html = pages[page]()
    assert html.count("This section was left out (UndefinedError") == 1


def test_g12_a_tree_of_descent_that_fails_is_left_out(pages, plain, monkeypatch):
    plain(training_charts)
    monkeypatch.setattr(training_charts, "tree_charts", fail)
    with pytest.warns(ReportWarning, match="the chart 'Who was copied from whom' was left out"):
        html = pages["training"]()
    assert "<summary>The same as text</summary>" in html


def test_g12_everything_may_fail_at_once(pages, monkeypatch):
    monkeypatch.setattr(charts, "CHARTS", tuple(picture._replace(draw=fail) for picture in charts.CHARTS))
    for part in PARTS:
        monkeypatch.setattr(sections, part, tuple(one._replace(content=fail) for one in getattr(sections, part)))
    with pytest.warns(ReportWarning) as warned:
        html = pages["backtest"]()
    assert len(warned) == len(charts.CHARTS) + sum(len(getattr(sections, part)) for part in PARTS)
    assert "<h1>first</h1>" in html


def test_g12_without_pyfolio_its_histogram_alone_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyfolio.plotting", None)
    with pytest.warns(ReportWarning, match="'Distribution of monthly returns' was left out .*pyfolio") as warned:
        html = render(make_result(days=130))
    assert len(warned) == 1
    assert html.count("This chart was left out (ModuleNotFoundError: ") == 1


def test_an_interruption_is_no_error_of_a_part(pages, plain, monkeypatch):
    def interrupt(_subject):
        raise KeyboardInterrupt

    plain(charts)
    monkeypatch.setattr(sections, "SECTIONS", (Section("risk", "Risk", interrupt),))
    with pytest.raises(KeyboardInterrupt):
        pages["backtest"]()


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_snapshot(simulate_market(names=4, days=120, seed=1), tmp_path / "data" / "sim")
    return tmp_path


@pytest.fixture
def run(capsys):
    """Run one command line; what it printed and its exit code."""

    def call(line):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        printed = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code, out=printed.out, err=printed.err)

    return call


LINE = "backtest equal-weight --market sim --quick"


def test_g12_the_run_is_saved_before_anything_is_drawn(work, run, monkeypatch):
    seen = []

    def look(result):
        seen.append((work / "backtests" / "equal-weight" / "result.json").is_file())
        return Chart("A chart", "nothing", "")

    monkeypatch.setattr(charts, "CHARTS", tuple(picture._replace(draw=look) for picture in charts.CHARTS))
    assert run(LINE).code == 0
    assert set(seen) == {True}


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_g12_a_backtest_whose_chart_fails_ends_well(work, run, monkeypatch, debug):
    whole = run(LINE)
    monkeypatch.setattr(charts, "CHARTS", (charts.CHARTS[0]._replace(draw=fail), *charts.CHARTS[1:]))
    ended = run(" ".join([LINE, "--overwrite", *debug]))
    assert (ended.code, ended.out) == (0, whole.out)
    told = [line for line in ended.err.splitlines() if "left out" in line]
    title = charts.CHARTS[0].title
    assert told == [f"warning: report of equal-weight: the chart {title!r} was left out (ValueError: {WORDS})"]
    assert ended.out.endswith("backtests/equal-weight\nreports/equal-weight.html\n")
    assert "This chart was left out" in (work / "reports" / "equal-weight.html").read_text()
    again = run("report equal-weight")
    assert (again.code, again.out) == (0, "reports/equal-weight.html\n")
    assert told == [line for line in again.err.splitlines() if "left out" in line]


def test_g12_a_page_that_cannot_be_made_costs_nothing_else(work, run, monkeypatch):
    monkeypatch.setattr("finpod.report.render", fail)
    ended = run(f"{LINE} --json")
    assert ended.code == 0
    assert json.loads(ended.out)["strategy"] == "equal-weight"
    assert ended.err.splitlines()[-2:] == [
        f"warning: reports/equal-weight.html was not written (ValueError: {WORDS}); the run is saved in backtests/equal-weight",
        "backtests/equal-weight",
    ]
    assert not (work / "reports").exists()


def test_g12_a_report_that_cannot_be_written_is_an_error_that_names_the_run(work, run):
    """A file takes the place of the folder for reports while the strategy runs."""
    (work / "mine.py").write_text(
        "import finpod, pathlib\n"
        "class Mine(finpod.Strategy):\n"
        "    def decide(self, view):\n"
        "        pathlib.Path('reports').write_text('x')\n"
        "        return {view.tickers[0]: 1.0}\n"
    )
    ended = run("backtest mine.py --market sim --quick")
    assert ended.code == 2
    assert "Total return" in ended.out
    assert ended.out.endswith("\nbacktests/mine\n")
    (error,) = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: cannot write reports/mine.html: ")
    assert error.endswith("; the run is saved in backtests/mine")
    assert (work / "backtests" / "mine" / "result.json").is_file()


def test_g12_comparisons_and_trainings_go_on_without_a_part(work, run, monkeypatch):
    for seed, name in enumerate(("one", "two")):
        make_result(days=60, seed=seed).save(work / "backtests" / name)
    monkeypatch.setattr(compare_page, "CHARTS", (compare_page.CHARTS[0]._replace(draw=fail), compare_page.CHARTS[1]))
    ended = run("compare one two")
    assert ended.code == 0
    assert "2 runs compared: the chart" in ended.err
    assert "This chart was left out" in (work / "reports" / "compare.html").read_text()

    write_run(work / "strategies" / "one", agents=4)
    monkeypatch.setattr(training, "SECTIONS", (training.SECTIONS[0]._replace(content=fail), *training.SECTIONS[1:]))
    ended = run("leaderboard one --report")
    assert ended.code == 0
    assert "training of one: the section 'Scores' was left out" in ended.err
    assert ended.out.endswith("\n\nreports/one-training.html\n")


def test_g12_comparisons_and_trainings_are_printed_without_a_page(work, run, monkeypatch):
    for seed, name in enumerate(("one", "two")):
        make_result(days=60, seed=seed).save(work / "backtests" / name)
    write_run(work / "strategies" / "one", agents=4)
    monkeypatch.setattr("finpod.report.compare.render_comparison", fail)
    monkeypatch.setattr("finpod.report.training.render_training_report", fail)
    for line, page, shown in (
        ("compare one two", "reports/compare.html", "Total return"),
        ("leaderboard one --report", "reports/one-training.html", "rank"),
    ):
        ended = run(line)
        assert ended.code == 0
        assert shown in ended.out
        assert page not in ended.out
        assert f"warning: {page} was not written (ValueError: {WORDS})" in ended.err


def test_g12_a_walk_forward_and_a_training_keep_what_they_made(work, run, monkeypatch):
    segment = dict.fromkeys(("test", "train", "validation"), "x")
    segment |= dict.fromkeys(
        ("validation_score", "out_of_sample_score", "total_return", "benchmark", "equal_weight"), 0.1
    )
    result = make_result(days=60, agent={"segments": [segment]})
    monkeypatch.setattr("finpod.walkforward.walk_forward", lambda task, **settings: result)
    monkeypatch.setattr(sections, "SECTIONS", (Section("risk", "Risk", fail), *sections.SECTIONS[1:]))
    ended = run("walkforward stocks --market sim --start 2010-05-03 --out strategies/wf --device cpu")
    assert ended.code == 0
    assert "the section 'Risk' was left out" in ended.err
    assert ended.out.endswith("\nstrategies/wf\nbacktests/wf\nreports/wf.html\n")

    provenance = {"board": [], "failed": 0, "figures": []}
    trained = SimpleNamespace(name="first", trials=1, provenance=provenance)
    monkeypatch.setattr("finpod.train", lambda task, **settings: trained)
    monkeypatch.setattr("finpod.tournament.history.read_history", lambda folder: folder)
    monkeypatch.setattr("finpod.report.training.write_training_report", fail)
    line = "train stocks --market sim --train 2010-02-01:2010-03-30 --validation 2010-04-01:2010-05-28 --out strategies/first"
    for more in ("", " --json"):
        ended = run(f"{line} --device cpu{more}")
        assert ended.code == 0
        assert "reports/first-training.html was not written" in ended.err
        assert "the run is saved in strategies/first" in ended.err
        assert "first-training.html" not in ended.out


def test_other_warnings_stay_silent_unless_asked_for(work, run, monkeypatch):
    def warn(subject):
        warnings.warn("an old way of doing it", DeprecationWarning, stacklevel=1)
        return Chart("A chart", "nothing", "")

    monkeypatch.setattr(charts, "CHARTS", tuple(picture._replace(draw=warn) for picture in charts.CHARTS))
    assert "an old way" not in run(LINE).err


def test_the_tables_of_charts_and_sections_have_each_name_once():
    for home, parts in PAGES.values():
        names = [picture.name for picture in home.CHARTS]
        assert len(names) == len(set(names))
        assert all(isinstance(picture, Picture) for picture in home.CHARTS)
        anchors = [section.name for part in PARTS for section in getattr(parts, part)]
        assert len(anchors) == len(set(anchors))


def test_the_results_of_these_tests_have_every_chart():
    subject = examined(days=60, names=12, randoms=5)
    assert all(picture.needed(subject) for picture in charts.CHARTS)
    assert np.isfinite(subject.equity).all()
    assert Path(charts.__file__).is_file()
