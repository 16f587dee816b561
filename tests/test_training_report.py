"""The training report: figures of a run, layout, and no external files."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from made_logs import BEGAN, trial, write_run
from test_accessibility import assert_order, axe

from finpod.report import training_charts
from finpod.report.pages import duration
from finpod.report.svg import draw
from finpod.report.training import render_training_report
from finpod.report.training_charts import CHARTS, Training, WorkingTime
from finpod.storage import Store
from finpod.tournament.history import History, read_history
from finpod.tournament.leaderboard import Loss
from finpod.tournament.log import TrialLog
from finpod.workers.executor import Placement


@pytest.fixture(scope="module")
def html(history):
    return render_training_report(history)


def made(trials, **header):
    """A history of one tournament."""
    log = TrialLog(Store("nowhere"))
    log.header, log.board.trials = {"plan": {"rounds": 3}, **header}, list(trials)
    return History(name="made", where="nowhere", finished=False, logs=(log,))


def chart(trials, name):
    return draw(next(spec for spec in CHARTS if spec.name == name), Training(made(trials)))


def text_of(html):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.split("</style>", 1)[1]))


def rows(html, label):
    """Cells of the body of the table of that label, as text."""
    table = html.split(f'aria-label="{label}"')[1].split("</table>")[0].split("<tbody>")[1]
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)]


def test_equal_logs_give_equal_bytes_that_stand_alone(history, html, tmp_path):
    again = write_run(tmp_path / "six", seeds=2, agents=6, lost=[2], failed=[5])
    assert render_training_report(read_history(history.where)) == render_training_report(read_history(again)) == html
    assert not re.search(r'<script|(src|href)="(?!#|data:,)|url\(http|@import', html)


def test_settings_that_won_are_those_of_the_best_quarter_beside_all():
    rates, widths = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], [16, 16, 32, 32, 64, 64, 64, 64]
    chosen = [["c"], ["c"], ["a"], ["c"], None, ["b"], ["a", "b"], ["a", "b"]]
    settings = [
        {"rate": rate, "hidden": width, "reward": None if i else "log", "features": chosen[i]}
        for i, (rate, width) in enumerate(zip(rates, widths, strict=True))
    ]
    trials = [trial(i, float(i), settings=one) for i, one in enumerate(settings)]
    html = render_training_report(made(trials, task={"features": ["a", "b", "c", "d"]}))
    assert rows(html, "Settings of the best 25 % of the trials, and of all") == [
        ["Rate", "0.75 (0.7 to 0.8)", "0.45 (0.1 to 0.8)"],
        ["Hidden", "64: 2", "64: 4, 16: 2, 32: 2"],
        ["Reward", "default: 2", "default: 7, log: 1"],
    ]
    shares = [["a", "100%", "50%"], ["b", "100%", "50%"], ["c", "0%", "50%"], ["d", "0%", "12%"]]
    assert rows(html, "How often features were observed") == shares
    assert "ranges" not in re.findall(r'<table class="([^"]*)"', render_training_report(made(trials[:3])))


def test_an_unfinished_run_says_so(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_run(tmp_path / "cut", finished=False, agents=6, mode="async", die_after=9, pods=3)
    run = read_history(tmp_path / "cut")
    still = sum(one.state == "open" for one in run.trials)
    page = render_training_report(run)
    assert '<span class="badge">Unfinished</span>' in page
    assert f"{still} trials" in text_of(page)
    assert re.search('<dt>Ensemble</dt><dd class="big">n/a</dd>', page)


NONE_YET = {"places": (), "score": math.nan}


@pytest.mark.parametrize("trials", [
    [trial(0, state="open", **NONE_YET)], [trial(0, math.nan)],
    [trial(i, state="failed", **NONE_YET) for i in range(3)], [trial(0, 1.0, places=())],
    [trial(i, 1.0) for i in range(8)],
])  # fmt: skip
def test_a_page_is_drawn_of_whatever_there_is(trials):
    seen = text_of(render_training_report(made(trials)))
    assert "Training of made" in seen
    assert not re.search(r" nan|None|left out", seen)


def test_a_page_is_escaped_and_many_failures_are_cut(history):
    page = render_training_report(replace(history, logs=history.logs[:1], name="<b>&x", notes=("<i>note",)))
    assert ("<b>" in page, "&lt;b&gt;&amp;x" in page, "&lt;i&gt;note" in page) == (False, True, True)
    trials = [trial(i, math.nan, state="failed", reason=f"reason {i}", places=()) for i in range(60)]
    seen = text_of(render_training_report(made(trials)))
    assert ("reason 49" in seen, "reason 50" in seen) == (True, False)


def test_time_at_work_leaves_out_pauses():
    times = [(0.0, 100.0), (50.0, 130.0), (231.0, 300.0), (5000.0, 5100.0)]
    clock = WorkingTime([Placement("a", 1, *each) for each in times[::-1]])
    assert (clock.total, clock.moments.tolist()) == (400.0, [0.0, 300.0, 5000.0, 5100.0])
    moments, work = [-5.0, 0.0, 150.0, 300.0, 1000.0, 5000.0, 5050.0, 9999.0], [0, 0, 150, 300, 300, 300, 350, 400]
    assert clock.at(np.array(moments)).tolist() == work
    seen = text_of(render_training_report(made([trial(0, 1.0), trial(1, 2.0, start=7210.0)])))
    assert "2 h 0 min" in seen  # the pause


def test_every_pod_has_a_row_with_its_slices_and_losses(monkeypatch):
    lost = [trial(0, pod=7, lost=(Loss("gone", BEGAN + 4),)), trial(1, pod=3, lost=(Loss("gone", math.nan),))]
    drawn = chart(lost, "pods")  # nobody knows when the second was lost
    assert all(name in drawn.svg for name in (">node 7<", ">node 3<", ">lost<"))
    assert "lost: 1" in drawn.alt
    assert ">lost<" not in chart([trial(0)], "pods").svg
    monkeypatch.setattr(training_charts, "PODS", 3)
    many = chart([trial(i, pod=i) for i in range(5)], "pods")
    assert ("2 more pods" in many.alt, ">node 3<" in many.svg) == (True, False)


def test_an_axis_has_a_fitting_unit():
    for seconds, unit in ((10, "seconds"), (600, "minutes"), (20_000, "hours")):
        place = Placement("node", 1, BEGAN, BEGAN + seconds)
        assert unit in chart([trial(0, places=(place,))], "time").title


def test_durations():
    assert [duration(s) for s in (42.4, 200, 18_720, 9e6)] == ["42 s", "3 min 20 s", "5 h 12 min", "104 d 4 h"]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 500)])
def test_axe_finds_nothing(html, tmp_path, scheme, width):
    assert_order(html, scopes={"col", "row"})
    assert axe(html, tmp_path, width, scheme)["violations"] == []
