"""The training report: what it says of a run, that it fits on any page, and that it needs nothing but itself."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from made_logs import BEGAN, write_run
from test_accessibility import Outline, axe

from finpod.errors import InputError
from finpod.report import training_charts
from finpod.report.svg import report_style
from finpod.report.training import duration, provenance, render_training_report, tiles, write_training_report
from finpod.report.training_charts import chosen_for_tree, pods_of, unit_of, working_time
from finpod.report.training_tables import best, settings, trouble, used, won
from finpod.tournament.history import History, Log, Loss, Trial, read_history
from finpod.tournament.ranking import differing, lineage, luck, ranked
from finpod.workers.executor import Placement


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Two seeds of six agents in three rounds, a pod lost and an agent failed in each."""
    return read_history(write_run(tmp_path_factory.mktemp("runs") / "six", seeds=2, agents=6, lost=[2], failed=[5]))


@pytest.fixture(scope="module")
def html(history):
    return render_training_report(history)


def trial(number, score=0.0, *, start=0.0, pod=1, level=1, run=0, **values):
    """A trial that took ten seconds of its pod, from `start` seconds after the beginning on."""
    plain = {"agent": f"{run}-{number}", "parent": None, "source": None, "copied": False, "state": "ended",
             "settings": {}, "steps": 100 * level, "spent": 100,
             "places": (Placement("node", pod, BEGAN + start, BEGAN + start + 10),)}  # fmt: skip
    return Trial(run=run, number=number, level=level, score=score, **{**plain, **values})


def made(trials, **header):
    """A history of one tournament."""
    log = Log(seed=0, header={"plan": {"rounds": 3}, **header}, trials=tuple(trials), end="", notes=())
    return History(name="made", where="nowhere", finished=False, logs=(log,))


def clock_of(history):
    return working_time([place for one in history.trials for place in one.places])


def field(count, levels=4):
    """A large tournament: a third of its trials go on, a third are copies, a third begin untrained."""
    random = np.random.default_rng(3)
    trials = []
    for number in range(count):
        before = [one for one in trials if one.level < levels]
        kind = random.integers(3) if before else 0
        score, start = float(random.normal()), 10.0 * (number // 8)
        if kind == 0:
            trials.append(trial(number, score, start=start, pod=number % 8))
            continue
        source = before[int(random.integers(len(before)))]
        onward = kind == 1 and not any(one.agent == source.agent and one.level > source.level for one in trials)
        own = {"agent": source.agent, "parent": source.parent} if onward else {"parent": source.agent, "copied": True}
        trials.append(
            trial(number, score, start=start, pod=number % 8, level=source.level + 1, source=source.number, **own)
        )
    return trials


def trees(trials):
    """The drawings of the tree, in the style of the page."""
    with report_style():
        return training_charts.tree_charts(trials)


def pod_chart(trials):
    """The time line, in the style of the page."""
    with report_style():
        return training_charts.pod_chart(trials, clock_of(made(trials)))


def text_of(html):
    """What a reader sees, tags left out."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.split("</style>", 1)[1]))


def test_the_page_stands_alone(html):
    assert "<script" not in html
    assert not re.search(r'(src|href)="(?!#|data:,)', html)
    assert "url(http" not in html
    assert "@import" not in html
    assert len(html.encode()) < 3e6
    assert "prefers-color-scheme: dark" in html
    assert "@page { size: A4" in html


def test_equal_logs_give_equal_bytes(history, html, tmp_path):
    assert render_training_report(read_history(history.where)) == html
    again = write_run(tmp_path / "six", seeds=2, agents=6, lost=[2], failed=[5])
    assert render_training_report(read_history(again)) == html


def test_the_head_tells_what_was_done(history, html):
    seen = text_of(html)
    assert "<h1>Training of six</h1>" in html
    agents = len({one.agent for one in history.trials})
    assert (
        f"36 trials of {agents} agents in 2 tournaments, in 3 rounds: trained on 2009-01-02 to 2015-12-31, "
        "ranked on 2016-01-04 to 2016-12-30. It ended after: all trials done." in seen
    )
    assert "from 2023-11-14 22:13 to 2023-11-14" in seen
    assert "Unfinished" not in seen
    assert "The best of 34 trials scored" in seen
    assert "the probability of overfitting" in seen


def test_the_tiles_are_the_figures_of_the_run(history):
    clock, found = clock_of(history), luck(history.trials)
    told = {label: (shown, beside) for label, shown, beside in tiles(history, clock, found)}
    spent = sum(one.spent for one in history.trials)
    top = ranked(history.trials)[0]
    assert told["Trials"][0] == "36"
    assert told["Best score"] == (f"{top.score:.2f}", f"agent {top.agent}, level {top.level}")
    assert told["By luck alone"] == (f"{found.alike:.2f}", "expected best of 34 equally good")
    assert told["Ensemble"][0] == "4"
    assert set(told["Ensemble"][1].split(", ")) == {one.agent for one in history.trials if one.kept}
    assert told["Environment steps"][0] == f"{spent / 1000:.3g}k"
    assert told["Time at work"][0] == duration(clock.total)
    assert told["Throughput"][0] == f"{spent / clock.total:.3g}"
    assert told["Failed"] == ("2", "2 pods lost and begun again")


def test_the_best_are_listed_in_order(history, html):
    order = [one for one in ranked(history.trials) if one.state == "ended"]
    table = best(order[:20])
    assert [row[0] for row in table.rows] == [str(i) for i in range(1, 21)]
    assert table.head[1] == "Seed"
    assert [row[2] for row in table.rows] == [one.agent for one in order[:20]]
    assert [row[5] for row in table.rows] == [f"{one.score:.3f}" for one in order[:20]]
    assert {row[-1] for row in table.rows} <= {"yes", ""}
    assert sum(row[-1] == "yes" for row in table.rows) == 4
    assert all(f"<td>{row[2]}</td>" in html for row in table.rows)
    assert best([one for one in order if one.run == 0]).head[1] == "Agent"


def test_settings_are_those_that_differ(history):
    order = [one for one in ranked(history.trials) if one.state == "ended"]
    names = differing(order)
    table = settings(order[:20], names)
    assert "Learning rate" in table.head
    assert "Num steps" not in table.head
    assert table.rows[0][table.head.index("Learning rate")] == f"{order[0].settings['learning_rate']:.4g}"
    assert settings(order[:1], []).rows == []


def test_what_won_is_the_best_quarter_beside_all():
    rates, widths = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], [16, 16, 32, 32, 64, 64, 64, 64]
    trials = [
        trial(i, score=float(i), settings={"rate": rate, "hidden": width, "reward": None if i else "log"})
        for i, (rate, width) in enumerate(zip(rates, widths, strict=True))
    ]
    table = won(ranked(trials))
    assert table.head == ("", "Best 2", "All 8")
    assert table.rows == [
        ("Rate", "0.75 (0.7 to 0.8)", "0.45 (0.1 to 0.8)"),
        ("Hidden", "64: 2", "64: 4, 16: 2, 32: 2"),
        ("Reward", "as asked: 2", "as asked: 7, log: 1"),
    ]
    assert won(ranked(trials)[:3]).rows == []


def test_features_are_counted_by_how_often_they_were_observed():
    chosen = [["a", "b"], ["a", "b"], ["b"], None, ["c"], ["a"], ["c"], ["c"]]
    trials = [trial(i, score=-float(i), settings={"features": names}) for i, names in enumerate(chosen)]
    told = made(trials, task={"features": ["a", "b", "c", "d"]})
    table = used(told, ranked(trials))
    assert table.head == ("", "Best 2", "All 8")
    assert table.rows == [("a", "100%", "50%"), ("b", "100%", "50%"), ("c", "0%", "50%"), ("d", "0%", "12%")]
    alike = [replace(one, settings={"features": None}) for one in trials]
    assert used(made(alike), alike).rows == []


def test_what_went_wrong_is_listed(history, html):
    table = trouble([one for one in history.trials if one.lost or one.state == "failed"])
    assert ("0-2, level 1", "begun again", "1", "WorkerCrashedError: made up") in table.rows
    assert ("0-5, level 1", "failed", "0", "ValueError: trial 5 made up a failure") in table.rows
    assert "ValueError: trial 5 made up a failure" in html
    calm = render_training_report(made([trial(i, float(i)) for i in range(5)]))
    assert "Nothing: no pod was lost, and no agent failed." in calm


def test_a_long_list_of_failures_is_cut(history):
    trials = [trial(i, math.nan, state="failed", reason=f"reason {i}", places=()) for i in range(60)]
    seen = text_of(render_training_report(made(trials)))
    assert "reason 49" in seen
    assert "reason 50" not in seen
    assert "and 10 more" in seen


def test_provenance_holds_plan_task_and_versions(history):
    groups = dict(provenance(history))
    assert ("Seeds", "0, 1") in groups["Tournament"]
    assert ("Agents", "6") in groups["Tournament"]
    assert ("Search: fresh", "0.25") in groups["Tournament"]
    assert ("Data", "made-up prices") in groups["Task"]
    assert ("Windows: validation", "2016-01-04, 2016-12-30") in groups["Task"]
    assert ("Finpod", "0.1.0") in groups["Versions"]


def test_an_unfinished_run_says_so(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_run(tmp_path / "cut", finished=False, agents=6, mode="async", die_after=9, pods=3)
    told = read_history(tmp_path / "cut")
    page = render_training_report(told)
    still = sum(one.state == "open" for one in told.trials)
    assert '<span class="badge">Unfinished</span>' in page
    assert f"{still} trials had not ended when the log was read." in page
    assert "that never wait for each other" in page
    assert "not written yet" in page


def test_trials_that_are_done_are_no_ensemble(history):
    seen = text_of(render_training_report(replace(history, finished=False)))
    assert "It ended after: all trials done. There is no ensemble yet." in seen
    assert "Unfinished" in seen


@pytest.mark.parametrize(
    "trials",
    [
        [trial(0, math.nan, state="open", places=())],
        [trial(0, 1.0)],
        [trial(0, math.nan)],
        [trial(i, math.nan, state="failed", places=()) for i in range(3)],
        [trial(0, 1.0, places=())],
        [trial(i, 1.0) for i in range(8)],
    ],
    ids=["drawn", "one", "undefined", "failed", "no place", "alike"],
)
def test_a_page_is_drawn_of_whatever_there_is(trials):
    page = render_training_report(made(trials))
    assert "<h1>Training of made</h1>" in page
    seen = text_of(page)
    assert " nan" not in seen
    assert "None" not in seen


def test_names_are_escaped(history):
    odd = replace(history, name="<b>&x", notes=("<i>note",))
    page = render_training_report(odd)
    assert "<b>" not in page
    assert "Training of &lt;b&gt;&amp;x" in page
    assert "&lt;i&gt;note" in page


def test_a_page_is_replaced_on_request_only(history, html, tmp_path):
    target = write_training_report(history, tmp_path / "new" / "page.html")
    assert target.read_text() == html
    with pytest.raises(InputError, match=r"page\.html exists already"):
        write_training_report(history, target, overwrite=False)
    write_training_report(history.of(0), target)
    assert target.read_text() != html


def test_a_large_tournament_is_drawn_small():
    page = render_training_report(made(field(3_000)))
    assert len(page.encode()) < 3e6
    assert "Of 3,000 trials the best and their ancestors are drawn." in page
    assert text_of(page).count("Who was copied from whom") <= 5


def test_a_tree_that_is_too_large_keeps_the_best_with_their_ancestors():
    trials = field(500)
    chosen = chosen_for_tree(trials)
    numbers = {one.number for one in chosen}
    assert 80 < len(chosen) <= 100
    assert all(one.source in numbers for one in chosen if one.source is not None)
    assert {one.number for one in ranked(trials)[:20]} <= numbers
    assert chosen_for_tree(trials[:200]) == trials[:200]


def test_lines_of_the_tree_cross_no_dot_and_no_name():
    rows = lineage(field(200), highest_first=True)
    spot = {one.number: row for row, branch in enumerate(rows) for one in branch.trials}
    for row, branch in enumerate(rows):
        first = branch.trials[0]
        if not first.copied:
            continue
        above = spot[first.source]
        assert above < row
        begins = [between.trials[0].level for between in rows[above + 1 : row]]
        assert all(level >= first.level for level in begins)  # the line goes down at the level before


def test_the_tree_is_drawn_in_pieces_that_fit_on_a_page():
    trials = field(150)
    charts, agents = trees(trials), len({one.agent for one in trials})
    assert [chart.title for chart in charts] == [
        f"Who was copied from whom, part {i + 1} of {len(charts)}" for i in range(len(charts))
    ]
    counts = [int(chart.alt.split()[0]) for chart in charts]
    assert sum(counts) == agents
    assert max(counts) <= training_charts.ROWS
    assert len(charts) <= 2 * math.ceil(agents / training_charts.ROWS)
    heights = [float(re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', chart.svg)[2]) for chart in charts]
    assert max(heights) <= 8 * 72 * 1.4  # as high as A4 is, at its width


def test_kept_failed_and_open_trials_look_different():
    def marks(one):
        return trees([one])[0].svg

    plain = marks(trial(0, 1.0))
    kept, failed, still = (
        marks(trial(0, *values, **more))
        for values, more in [
            ([1.0], {"kept": True}),
            ([math.nan], {"state": "failed"}),
            ([math.nan], {"state": "open"}),
        ]
    )
    assert len({plain, kept, failed, still}) == 4
    assert ">0-0  1.000, kept<" in kept
    assert "var(--danger)" in failed
    assert "0-0  failed" in failed
    assert "0-0  open" in still


def test_time_at_work_leaves_out_pauses():
    places = [
        Placement("a", 1, 0.0, 100.0),
        Placement("b", 2, 50.0, 130.0),
        Placement("a", 1, 131.0, 200.0),  # a breath, no pause
        Placement("a", 1, 5000.0, 5100.0),
    ]
    clock = working_time(places[::-1])
    assert clock.total == 300.0
    assert clock.starts.tolist() == [0.0, 5000.0]
    assert clock.ends.tolist() == [200.0, 5100.0]
    assert clock.at(np.array([-5.0, 0.0, 150.0, 200.0, 1000.0, 5000.0, 5050.0, 9999.0])).tolist() == [
        0.0,
        0.0,
        150.0,
        200.0,
        200.0,
        200.0,
        250.0,
        300.0,
    ]
    assert working_time([]).total == 0.0


def test_short_waits_in_a_long_run_are_no_pauses():
    places = [Placement("a", 1, start, start + 10_000.0) for start in (0.0, 10_100.0, 20_300.0)]
    assert len(working_time(places).starts) == 1


def test_pauses_are_told():
    trials = [trial(0, 1.0), trial(1, 2.0, start=7210.0)]
    seen = text_of(render_training_report(made(trials)))
    assert "pauses in which nothing ran, 2 h 0 min in all, left out" in seen
    assert "1 pod, 2 sittings" in seen
    assert "pauses in which nothing ran" not in text_of(render_training_report(made(trials[:1])))


def test_every_pod_has_a_row_with_its_slices():
    trials = [trial(0, pod=7), trial(1, pod=3, start=1), trial(2, pod=7, start=10, level=2)]
    pods = pods_of(trials)
    assert list(pods) == [("node", 7), ("node", 3)]
    assert [(place.started - BEGAN, level) for place, level in pods["node", 7]] == [(0, 1), (10, 2)]
    svg = pod_chart(trials).svg
    assert ">node 7<" in svg
    assert ">node 3<" in svg
    assert ">lost<" not in svg


def test_lost_pods_are_marked_when_they_were_lost():
    trials = [
        trial(0, lost=(Loss("gone", BEGAN + 4),)),
        trial(1, pod=2, start=3, lost=(Loss("gone", math.nan),)),  # when it was begun again
        trial(2, math.nan, state="failed", places=(), lost=(Loss("gone", math.nan),)),  # nobody knows
    ]
    assert [training_charts._lost_at(one) for one in trials] == [[BEGAN + 4], [BEGAN + 3], []]
    chart = pod_chart(trials)
    assert ">lost<" in chart.svg
    assert "var(--danger)" in chart.svg
    assert "2 were lost" in chart.alt


def test_more_pods_than_fit_are_counted(monkeypatch):
    monkeypatch.setattr(training_charts, "PODS", 3)
    trials = [trial(i, pod=i) for i in range(5)]
    chart = pod_chart(trials)
    assert "3 pods" in chart.alt
    assert "2 more pods are left out" in chart.alt
    assert ">node 3<" not in chart.svg


@pytest.mark.parametrize(("seconds", "unit"), [(10, ("seconds", 1)), (600, ("minutes", 60)), (20_000, ("hours", 3600))])
def test_an_axis_has_a_fitting_unit(seconds, unit):
    assert unit_of(seconds) == unit


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (42.4, "42 s"), (200, "3 min 20 s"), (18_720, "5 h 12 min"), (273_600, "3 d 4 h"), (9e6, "104 d 4 h")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 500)])
def test_axe_finds_nothing(html, tmp_path, scheme, width):
    dark = "@media screen and (prefers-color-scheme: dark)"
    page = html.replace(dark, "@media screen") if scheme == "dark" else html
    assert axe(page, tmp_path, width)["violations"] == []


def test_the_page_has_an_order_that_can_be_heard(html):
    page = Outline(html)
    assert page.levels[0] == 1
    assert page.levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in zip(page.levels, page.levels[1:], strict=False))
    assert (page.tags.count("main"), page.tags.count("header")) == (1, 1)
    assert set(page.cells) <= {"col", "row"}
    labels = [label for _, label in page.regions]
    assert len(labels) == len(set(labels))
    assert all(tab == "0" and label for tab, label in page.regions)
    assert len(page.ids) == len(set(page.ids))
    assert len(re.findall(r'role="img" aria-label="[^"]{30,}"><svg [^>]*aria-hidden', html)) == html.count("<svg")


def test_the_tree_is_there_as_text(history, html):
    listed = re.search(r'<pre class="tree">(.*?)</pre>', html, re.DOTALL)[1].splitlines()
    assert len(listed) == len({(one.run, one.agent) for one in history.trials})
    top = next(one for one in ranked(history.trials) if one.kept)
    assert any(re.fullmatch(rf" *{top.agent}  .*{top.level}: {top.score:.3f} kept.*", line) for line in listed)
