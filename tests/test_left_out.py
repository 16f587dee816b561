"""A chart or a section that raises an error is left out: the run is saved, the rest of the page is made, and one line says so."""

import json
import re
import sys
import warnings
from functools import partial
from types import SimpleNamespace

import pytest
from made_logs import write_run
from made_results import examined, make_result, trained
from markupsafe import Markup
from test_report import few_resamples  # noqa: F401

from finpod.backtesting.comparison import compare
from finpod.cli import main
from finpod.errors import ReportWarning
from finpod.market.snapshots import save_snapshot
from finpod.report import clip, render, sections, training
from finpod.report import compare as compare_page
from finpod.report.compare import render_comparison
from finpod.report.svg import Chart
from finpod.report.training import render_training_report
from finpod.synthetic import simulate_market
from finpod.tournament.history import read_history

PAGES = {"backtest": sections, "compare": compare_page, "training": training}
"""Page -> the module with its layout."""
PARTS = ("head", "lead", "sections")
EVERY_CHART = [(page, spec.name) for page, home in PAGES.items() for spec in home.LAYOUT.charts]
EVERY_SECTION = [
    (page, part, one.name) for page, home in PAGES.items() for part in PARTS for one in getattr(home.LAYOUT, part)
]
ERROR = "no such <figure>"


def fail(*_arguments, **_options):
    raise ValueError(f"{ERROR}\nsecond line")


def page_of(name, folder):
    """A function that makes the page, with every chart and section that it can have."""
    if name == "training":
        return partial(render_training_report, read_history(write_run(folder / "run", seeds=2, lost=[2], failed=[5])))
    if name == "compare":
        runs = [make_result(seed=seed, days=60, names=5, strategy=f"strategy {seed}") for seed in range(2)]
        return partial(render_comparison, compare(runs))
    made = trained(days=60)
    agents = {"variants": made.variants, "agent": made.agent, "windows": made.windows, "trained_until": "2016-12-30"}
    return partial(render, examined(days=60, names=12, randoms=5, **agents))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clip, "section", lambda history: {"lacking": "there is one of locomotion alone"})
        yield {name: page_of(name, tmp_path_factory.mktemp(name)) for name in PAGES}


@pytest.fixture
def change(monkeypatch):
    """Change the parts of a page: the group of parts, the name of a part or None for all, and its new fields."""

    def call(home, group, name, **fields):
        parts = getattr(home.LAYOUT, group)
        new = tuple(part._replace(**fields) if name in (part.name, None) else part for part in parts)
        monkeypatch.setattr(home, "LAYOUT", home.LAYOUT._replace(**{group: new}))

    return call


@pytest.fixture
def plain(change):
    """Replace the charts of a page, so that it takes no time."""
    return lambda home: change(home, "charts", None, series=lambda it: Chart("A chart", "alt", Markup("<svg></svg>")))


def headings(html):
    return [" ".join(text.split()) for text in re.findall(r"<h[123][^>]*>(.*?)</h[123]>", html, re.DOTALL)]


def test_every_page_is_whole_if_nothing_fails(pages, plain):
    for name, home in PAGES.items():
        plain(home)
        html = pages[name]()  # a ReportWarning would be an error here
        assert "left out" not in html
        assert {section.title for section in home.LAYOUT.sections} <= set(headings(html))
        names = [part.name for part in home.LAYOUT.charts]
        anchors = [section.name for part in PARTS for section in getattr(home.LAYOUT, part)]
        assert (len(set(names)), len(set(anchors))) == (len(names), len(anchors))


@pytest.mark.parametrize(("page", "name"), EVERY_CHART)
def test_g12_every_chart_may_fail(pages, plain, change, page, name):
    home = PAGES[page]
    plain(home)
    whole = pages[page]()
    change(home, "charts", name, series=fail)
    with pytest.warns(ReportWarning) as warned:
        html = pages[page]()
    assert [f"left out (ValueError: {ERROR})" in str(one.message) for one in warned] == [True]
    assert html.count("<svg") == whole.count("<svg") - 1
    assert html.count("This chart was left out (ValueError: no such &lt;figure&gt;).") == 1
    assert len(headings(html)) == len(headings(whole))


@pytest.mark.parametrize(("page", "part", "name"), EVERY_SECTION)
def test_g12_every_section_may_fail(pages, plain, change, page, part, name):
    home = PAGES[page]
    plain(home)
    whole = headings(pages[page]())
    change(home, part, name, values=fail)
    with pytest.warns(ReportWarning) as warned:
        html = pages[page]()
    assert [f"left out (ValueError: {ERROR})" in str(one.message) for one in warned] == [True]
    assert html.count("This section was left out (ValueError: no such &lt;figure&gt;).") == 1
    kept = headings(html)
    assert [heading for heading in kept if heading in whole] == kept  # nothing new, and in the same order
    assert {other.title for other in home.LAYOUT.sections} <= set(kept)


@pytest.mark.parametrize(("page", "name"), [("backtest", "risk"), ("compare", "figures"), ("training", "best")])
def test_g12_a_section_that_fails_while_it_is_printed_is_left_out_too(pages, plain, change, page, name):
    plain(PAGES[page])
    change(PAGES[page], "sections", name, values=lambda subject: {})
    with pytest.warns(ReportWarning, match=r"was left out \(UndefinedError: "):
        html = pages[page]()
    assert html.count("This section was left out (UndefinedError") == 1


def test_g12_everything_may_fail_at_once(pages, change):
    change(sections, "charts", None, series=fail)
    for part in PARTS:
        change(sections, part, None, values=fail)
    with pytest.warns(ReportWarning) as warned:
        html = pages["backtest"]()
    assert len(warned) == sum(map(len, sections.LAYOUT[1:]))
    assert "<h1>first</h1>" in html


def test_g12_without_pyfolio_its_histogram_alone_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyfolio.plotting", None)
    with pytest.warns(ReportWarning, match="'Distribution of monthly returns .*' was left out .*pyfolio") as warned:
        html = render(make_result(days=130))
    assert len(warned) == 1
    assert html.count("This chart was left out (ModuleNotFoundError: ") == 1


def test_an_interruption_is_no_error_of_a_part(pages, plain, change):
    def interrupt(_subject):
        raise KeyboardInterrupt

    plain(sections)
    change(sections, "sections", "risk", values=interrupt)
    with pytest.raises(KeyboardInterrupt):
        pages["backtest"]()


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_snapshot(simulate_market(names=4, days=120, seed=1), tmp_path / "data" / "sim")
    return tmp_path


@pytest.fixture
def run(capsys):
    """Run one command line; its output and exit code."""

    def call(line):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        printed = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code, out=printed.out, err=printed.err)

    return call


LINE = "backtest equal-weight --market sim --quick"


@pytest.mark.parametrize("debug", ["", " --debug"])
def test_g12_a_backtest_whose_chart_fails_ends_well(work, run, change, debug):
    seen = []

    def look(result):
        seen.append((work / "backtests" / "equal-weight" / "result.json").is_file())  # saved before anything is drawn
        if not debug:  # then other warnings stay silent
            warnings.warn("an old way of doing it", DeprecationWarning, stacklevel=1)
        raise ValueError(ERROR)

    change(sections, "charts", "equity", series=look)
    ended = run(f"{LINE}{debug}")
    assert (ended.code, seen) == (0, [True])
    assert f"left out (ValueError: {ERROR})" in ended.err
    assert "an old way" not in ended.err
    assert ended.out.endswith("backtests/equal-weight\nreports/equal-weight.html\n")
    assert "This chart was left out" in (work / "reports" / "equal-weight.html").read_text()
    again = run("report equal-weight")
    assert (again.code, again.out) == (0, "reports/equal-weight.html\n")
    assert "left out" in again.err


def test_g12_a_page_that_cannot_be_made_costs_nothing_else(work, run, monkeypatch):
    monkeypatch.setattr("finpod.report.render", fail)
    ended = run(f"{LINE} --json")
    assert ended.code == 0
    assert json.loads(ended.out)["strategy"] == "equal-weight"
    assert f"reports/equal-weight.html was not written (ValueError: {ERROR})" in ended.err
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
    assert ended.out.endswith("\nbacktests/mine\n")
    (error,) = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert error.endswith("; the run is saved in backtests/mine")
    assert (work / "backtests" / "mine" / "result.json").is_file()


def test_g12_comparisons_and_trainings_go_on_without_a_part_or_a_page(work, run, change, monkeypatch):
    for seed, name in enumerate(("one", "two")):
        make_result(days=60, seed=seed).save(work / "backtests" / name)
    write_run(work / "strategies" / "one", agents=4)
    lines = {"compare one two": "reports/compare.html", "leaderboard one --report": "reports/one-training.html"}
    change(compare_page, "charts", "growth", series=fail)
    change(training, "sections", "scores", values=fail)
    for line, page in lines.items():
        ended = run(line)
        assert (ended.code, "was left out" in ended.err) == (0, True)
        assert "was left out" in (work / page).read_text()
    monkeypatch.setattr("finpod.report.compare.render_comparison", fail)
    monkeypatch.setattr("finpod.report.training.render_training_report", fail)
    for line, page in lines.items():
        (work / page).unlink()
        ended = run(line)
        assert (ended.code, page in ended.out) == (0, False)
        assert f"warning: {page} was not written (ValueError: {ERROR})" in ended.err


def test_g12_a_walk_forward_and_a_training_keep_their_outputs(work, run, change, monkeypatch):
    figures = ("validation_score", "out_of_sample_score", "total_return", "benchmark", "equal_weight")
    segment = dict.fromkeys(("test", "train", "validation"), "x") | dict.fromkeys(figures, 0.1)
    result = make_result(days=60, agent={"segments": [segment]})
    monkeypatch.setattr("finpod.walkforward.retraining.walk_forward", lambda task, **settings: result)
    change(sections, "sections", "risk", values=fail)
    ended = run("walkforward stocks --market sim --start 2010-05-03 --out strategies/wf --device cpu")
    assert (ended.code, "'Risk' was left out" in ended.err) == (0, True)
    assert ended.out.endswith("\nstrategies/wf\nbacktests/wf\nreports/wf.html\n")

    trained = SimpleNamespace(name="first", trials=1, provenance={"board": [], "failed": 0, "figures": []})
    monkeypatch.setattr("finpod.train", lambda task, **settings: trained)
    monkeypatch.setattr("finpod.tournament.history.read_history", lambda folder: folder)
    monkeypatch.setattr("finpod.report.training.write_training_report", fail)
    windows = "--train 2010-02-01:2010-03-30 --validation 2010-04-01:2010-05-28"
    for more in ("", " --json"):
        ended = run(f"train stocks --market sim {windows} --out strategies/first --device cpu{more}")
        assert ended.code == 0
        assert "reports/first-training.html was not written" in ended.err
        assert "the run is saved in strategies/first" in ended.err
