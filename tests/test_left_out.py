"""A chart or section that raises an error is left out: the run is saved, the rest of the page written, and one line printed."""

import re
from functools import partial
from types import SimpleNamespace

import pytest
from made_commands import run
from made_logs import write_run
from made_results import examined, make_result, trained
from markupsafe import Markup
from test_report import few_resamples  # noqa: F401

from finpod.backtesting.comparison import compare
from finpod.errors import ReportWarning
from finpod.report import compare as compare_page
from finpod.report import sections, training
from finpod.report.compare import render_comparison
from finpod.report.svg import Chart
from finpod.report.training import render_training_report

PAGES = {"backtest": sections, "compare": compare_page, "training": training}
"""Page -> the module with its layout."""
GROUPS = ("charts", "head", "lead", "sections")
EVERY_PART = [
    (page, group, one.name) for page, home in PAGES.items() for group in GROUPS for one in getattr(home.LAYOUT, group)
]
ERROR = "no such <figure>"


def fail(*_arguments, **_options):
    raise ValueError(f"{ERROR}\nsecond line")


@pytest.fixture(scope="module")
def pages(history):
    """Functions that make each page, with every chart and section that it can have."""
    runs = compare([make_result(seed=seed, days=60, names=5, strategy=f"strategy {seed}") for seed in range(2)])
    made = trained(days=60)
    agents = {"variants": made.variants, "agent": made.agent, "windows": made.windows, "trained_until": "2016-12-30"}
    result = examined(days=60, names=12, randoms=5, **agents)
    return {"backtest": partial(sections.render, result), "compare": partial(render_comparison, runs),
            "training": partial(render_training_report, history)}  # fmt: skip


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


@pytest.fixture(scope="module")
def wholes():
    """Pages with plain charts, by name; each is made when it is first needed."""
    return {}


@pytest.mark.parametrize(("page", "group", "name"), EVERY_PART)
def test_g12_every_part_may_fail(pages, wholes, plain, change, page, group, name):
    home, kind = PAGES[page], "chart" if group == "charts" else "section"
    plain(home)
    whole = wholes[page] = wholes.get(page) or pages[page]()  # a ReportWarning would be an error here
    change(home, group, name, **{"series" if kind == "chart" else "values": fail})
    with pytest.warns(ReportWarning, match=re.escape(ERROR)) as warned:
        html = pages[page]()
    assert len(warned) == 1
    assert html.count(f"This {kind} was left out (ValueError: no such &lt;figure&gt;).") == 1
    if kind == "chart":
        assert html.count("<svg") == whole.count("<svg") - 1
        assert len(headings(html)) == len(headings(whole))
    else:
        assert [heading for heading in headings(html) if heading in headings(whole)] == headings(html)
        assert {other.title for other in home.LAYOUT.sections} <= set(headings(html))


def test_g12_a_section_that_fails_while_it_is_printed_is_left_out_too(pages, plain, change):
    plain(sections)
    change(sections, "sections", "risk", values=lambda subject: {})
    with pytest.warns(ReportWarning, match="UndefinedError"):
        pages["backtest"]()


def test_g12_a_backtest_whose_chart_fails_ends_well(work, change):
    seen = []

    def look(result):
        seen.append((work / "backtests" / "equal-weight" / "result.json").is_file())  # saved before anything is drawn
        raise ValueError(ERROR)

    change(sections, "charts", "equity", series=look)
    code, out, err = run("backtest equal-weight --market sim --quick --debug")
    assert (code, seen) == (0, [True])
    assert f"left out (ValueError: {ERROR})" in err
    assert out.endswith("backtests/equal-weight\nreports/equal-weight.html\n")
    assert "This chart was left out" in (work / "reports" / "equal-weight.html").read_text()


def test_g12_commands_end_well_without_a_page(work, monkeypatch):
    def train(task, **settings):
        write_run(work / "strategies" / "first", agents=4)
        return SimpleNamespace(name="first", trials=1, provenance={"board": [], "failed": 0, "figures": []})

    for seed, name in enumerate(("one", "two")):
        make_result(days=60, seed=seed).save(work / "backtests" / name)
    monkeypatch.setattr("finpod.train", train)
    monkeypatch.setattr("finpod.report.compare.render_comparison", fail)
    monkeypatch.setattr("finpod.report.training.render_training_report", fail)
    windows = "--train 2010-02-01:2010-03-30 --validation 2010-04-01:2010-05-28"
    training = f"train stocks --market sim {windows} --out strategies/first --device cpu"
    for line, page in (("compare one two", "compare"), (training, "first-training")):
        code, _, err = run(line)
        assert code == 0, err
        assert f"reports/{page}.html was not written (ValueError: {ERROR})" in err
