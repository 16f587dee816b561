"""The live view: what it shows of a tournament, and that the terminal is whole afterwards."""

import io
import math
import re
import sys

import pytest
from made_logs import Invented, play, write_run
from rich.console import Console

from finpod.cli import console, live
from finpod.cli.live import View, clock
from finpod.files import UNFINISHED
from finpod.storage import Store
from finpod.tournament.setup import Plan, Stop


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def sit_at_a_terminal(monkeypatch):
    """A terminal in the place of stderr; not a fixture, for pytest takes stderr back between setup and test."""
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def drawn(view, width=120, height=40):
    """The view as text, a line each."""
    target = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
    target.print(view)
    return target.file.getvalue().splitlines()


def looking(view, time, seconds=10.0, until=math.inf):
    """A watch that lets the clock run on at each look, as `train` calls it; it stops the tournament after `until` trials."""

    def watch(status):
        done = len(status.board.log)
        view.progress(f"trial {done + 1}", done / status.plan.most_trials)
        view.watch(status)
        if done >= until:
            raise KeyboardInterrupt
        time.now += seconds

    return watch


def seen(tmp_path, plan, engine, until=math.inf, **values):
    """A view of a tournament that stands after `until` trials, and its clock."""
    time = Clock()
    view = View(time)
    if until < math.inf:
        with pytest.raises(KeyboardInterrupt):
            play(Store(tmp_path), plan, engine, looking(view, time, until=until, **values))
    else:
        play(Store(tmp_path), plan, engine, looking(view, time, **values))
    return view, time


def test_before_the_first_trial_it_says_what_is_done():
    time = Clock()
    view = View(time)
    assert drawn(view) == ["beginning  0:00"]
    view.progress("features", 0.0)
    time.now += 5
    assert drawn(view) == ["features  0:05"]
    assert math.isnan(view.left())


def test_it_shows_board_pods_pace_and_time_left(tmp_path):
    view, _ = seen(tmp_path, Plan(agents=4, rounds=3, steps=900), Invented(pods=2), until=4)
    lines = drawn(view)
    assert lines[0].strip() == "trial 5"
    assert re.match(r"4 of 12 trials  ━+", lines[1])
    assert re.match(r"30 steps/s, 0:40 so far, 1:20 to go, on 2 invented pods", lines[2])
    assert lines[3].split() == ["agent", "parent", "level", "score", "steps", "trial", "agent", "level", "seconds"]
    scores = [float(line.split()[4]) for line in lines[4:8]]
    assert scores == sorted(scores, reverse=True)
    assert all(line.split()[3] == "1/3" and line.split()[5] == "300" for line in lines[4:8])
    assert {line.split()[1] for line in lines[4:8]} == {"0-0", "0-1", "0-2", "0-3"}


def test_pods_at_work_grow_older(tmp_path):
    time = Clock()
    view, plan = View(time), Plan(agents=3, rounds=1)
    with pytest.raises(KeyboardInterrupt):
        play(Store(tmp_path), plan, Invented(pods=2, die_after=0), looking(view, time, 42.0), time)
    lines = drawn(view)
    assert [line.split() for line in lines[4:6]] == [["0", "0-0", "1/1", "42"], ["1", "0-1", "1/1", "42"]]
    time.now += 3
    assert drawn(view)[4].split()[-1] == "45"


def test_a_pod_that_begins_at_once_is_seen(tmp_path):
    time = Clock()
    view, engine = View(time), Invented(pods=1, die_after=2)
    with pytest.raises(KeyboardInterrupt):
        play(Store(tmp_path), Plan(agents=2, rounds=2, steps=200), engine, looking(view, time, 0.0))
    best = drawn(view)[4].split()[1]  # goes on into the second round
    assert drawn(view)[4].split()[-4:-1] == ["2", best, "2/2"]


def test_more_pods_than_fit_are_counted(tmp_path):
    view, _ = seen(tmp_path, Plan(agents=40, rounds=1), Invented(pods=30), until=0)
    lines = drawn(view)
    assert lines[-1].split() == ["and", "21", "more"]
    assert len(lines) == 4 + 10


def test_a_narrow_terminal_has_the_pods_under_the_board(tmp_path):
    view, _ = seen(tmp_path, Plan(agents=12, rounds=2, steps=200), Invented(pods=12), until=5)
    lines = drawn(view, width=60, height=20)
    assert len(lines) < 20
    assert all(len(line.rstrip()) <= 60 for line in lines)
    heads = [i for i, line in enumerate(lines) if "agent" in line and "level" in line]
    assert len(heads) == 2
    assert "seconds" in lines[heads[1]]
    assert "score" in lines[heads[0]]


@pytest.mark.parametrize("size", [(10, 5), (20, 1), (300, 100)])
def test_any_terminal_will_do(tmp_path, size):
    view, _ = seen(tmp_path, Plan(agents=12, rounds=2, steps=200), Invented(pods=3), until=5)
    lines = drawn(view, *size)
    assert lines
    assert max(len(line) for line in lines) <= size[0]


def test_the_top_ten_are_shown_in_order_and_failures_counted(tmp_path):
    view, _ = seen(tmp_path, Plan(agents=14, rounds=1), Invented(pods=1, failed=[3]))
    lines = drawn(view)
    assert lines[1].startswith("14 of 14 trials, 1 failed")
    assert [line.split()[0] for line in lines[4:14]] == [str(i) for i in range(1, 11)]
    scores = [float(line.split()[4]) for line in lines[4:14]]
    assert scores == sorted(scores, reverse=True)


def test_a_failed_trial_on_the_board_says_so(tmp_path):
    view, _ = seen(tmp_path, Plan(agents=3, rounds=1), Invented(pods=1, failed=[1]))
    assert drawn(view)[6].split()[4] == "failed"


def test_the_last_remark_stays(tmp_path):
    view, _ = seen(tmp_path, Plan(agents=4, rounds=1), Invented(pods=1, lost=[0]))
    assert drawn(view)[-1].startswith("the pod of agent 0-0 was lost (WorkerCrashedError: made up); it starts again")


def test_names_are_no_markup(tmp_path):
    view, _ = seen(tmp_path, Plan(agents=4, rounds=1), Invented(pods=1))
    view._remark = "[bold]x[/] [red"
    assert drawn(view)[-1] == "[bold]x[/] [red"


def test_a_rule_that_stops_by_the_clock_bounds_the_time_left(tmp_path):
    time = Clock()
    view, plan = View(time), Plan(agents=100, rounds=1, stop=Stop(seconds=600))
    left = []

    def watch(status):
        looking(view, time, until=3)(status)
        left.append(view.left())

    with pytest.raises(KeyboardInterrupt):
        play(Store(tmp_path), plan, Invented(pods=1), watch, time)
    assert left == [590, 580, 570]  # 10 s a trial would be a thousand


def test_the_time_left_runs_down_between_trials(tmp_path):
    view, time = seen(tmp_path, Plan(agents=10, rounds=1), Invented(pods=1), until=5)
    assert view.left() == pytest.approx(50)
    time.now += 20
    assert view.left() == pytest.approx(30)
    time.now += 100
    assert view.left() == 0


def test_a_run_that_goes_on_is_not_timed_by_what_was_done_before(tmp_path):
    plan = Plan(agents=10, rounds=1)
    seen(tmp_path, plan, Invented(pods=1), until=5)
    view, _ = seen(tmp_path, plan, Invented(pods=1), until=7, seconds=4.0)
    assert view.left() == pytest.approx(12)


def test_the_next_tournament_begins_with_a_new_pace(tmp_path):
    time = Clock()
    view = View(time)
    for seed in (0, 1):
        play(
            Store(tmp_path / str(seed)),
            Plan(agents=2, rounds=1, steps=200, seed=seed),
            Invented(),
            looking(view, time),
        )
        assert all(line.split()[1].startswith(f"{seed}-") for line in drawn(view)[4:6])


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3723, "1:02:03"), (90061, "25:01:01")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text


def screen(text):
    """What a terminal shows without its control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_on_a_terminal_there_is_the_view(monkeypatch, tmp_path):
    terminal = sit_at_a_terminal(monkeypatch)
    with console.watched() as (progress, watch):
        print("from a strategy")
        progress("training", 0.0)
        play(Store(tmp_path), Plan(agents=4, rounds=1), Invented(pods=1, lost=[1]), watch)
    text = terminal.getvalue()
    assert "4 of 4 trials" in screen(text)
    assert "from a strategy" in screen(text)
    assert "the pod of agent 0-1 was lost" in screen(text)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back
    assert text.rstrip("\r\n ").endswith("\x1b[2K")  # and the view is wiped away


def test_an_interruption_leaves_the_terminal_whole_and_says_how_to_go_on(monkeypatch, tmp_path):
    terminal = sit_at_a_terminal(monkeypatch)
    out = tmp_path / "runs" / "cut"
    with pytest.raises(KeyboardInterrupt), console.watched(run=out) as (_, watch):
        play(Store(out.with_name("cut" + UNFINISHED) / "seed-0"), Plan(), Invented(die_after=2), watch)
    text = terminal.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    assert screen(text.split("\x1b[?25h")[1]).strip() == f"go on with: finpod train --resume {out}"
    assert sys.stderr is terminal


def test_nothing_is_said_of_going_on_where_nothing_is_left(monkeypatch, tmp_path):
    terminal = sit_at_a_terminal(monkeypatch)
    with pytest.raises(KeyboardInterrupt), console.watched(run=tmp_path / "never"):
        raise KeyboardInterrupt
    assert "resume" not in terminal.getvalue()


def test_a_run_at_a_url_is_gone_on_with_there(monkeypatch, tmp_path):
    terminal = sit_at_a_terminal(monkeypatch)
    with pytest.raises(KeyboardInterrupt), console.watched(run=tmp_path / "far", storage="memory://runs/far"):
        raise KeyboardInterrupt
    assert terminal.getvalue().endswith(f"--resume {tmp_path / 'far'} --storage memory://runs/far\n")


def test_without_a_terminal_there_are_lines(tmp_path, capsys):
    with console.watched() as (progress, watch):
        print("from a strategy")
        progress("training", 0.0)
        play(Store(tmp_path), Plan(agents=4, rounds=1), Invented(pods=1, lost=[1]), watch)
        progress("choosing", 1.0)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "from a strategy",
        "training (0%)",
        "the pod of agent 0-1 was lost (WorkerCrashedError: made up); it starts again",
        "choosing (100%)",
    ]


def test_a_dumb_terminal_has_lines(monkeypatch):
    terminal = sit_at_a_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    with console.watched() as (progress, _):
        progress("training", 0.5)
    assert terminal.getvalue() == "training (50%)\n"


def test_event_files_are_written_beside_the_view(tmp_path, capsys):
    pytest.importorskip("tensorboardX")
    with console.watched(tmp_path / "events") as (_, watch):
        play(Store(tmp_path / "run"), Plan(agents=2, rounds=1, steps=100), Invented(), watch)
    assert list((tmp_path / "events" / "seed-0").glob("events.out.tfevents.*"))
    assert capsys.readouterr().err == ""


def test_an_unfinished_run_is_known_by_its_folder(tmp_path):
    write_run(tmp_path / "some", rounds=1, steps=100, finished=False)
    assert live.unfinished(tmp_path / "some")
    assert not live.unfinished(tmp_path / "other")
