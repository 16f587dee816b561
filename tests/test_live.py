"""The live view: its content, and the terminal restored afterwards."""

import io
import math
import re
import sys

import pytest
from made_logs import Invented, play
from rich.console import Console

from finpod.cli.live import View, watched
from finpod.files import UNFINISHED
from finpod.storage import Store
from finpod.tournament.setup import Plan


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def sit_at_a_terminal(monkeypatch):
    """A terminal in the place of stderr; not a fixture, for pytest takes stderr back between setup and test."""
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def drawn(view, width=120, height=40):
    """The view as text, a line each."""
    target = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
    target.print(view)
    return target.file.getvalue().splitlines()


def seen(tmp_path, plan, engine, until=math.inf, view=None, time=None):
    """A view of a tournament that is interrupted after `until` trials, on a clock that adds 10 s a look; and its clock."""
    time = time or Clock()
    view = view or View(time)

    def watch(status):
        done = len(status.board.log)
        view.progress(f"trial {done + 1}", done / status.plan.most_trials)
        view.watch(status)
        if done >= until:
            raise KeyboardInterrupt
        time.now += 10

    try:
        play(Store(tmp_path), plan, engine, watch, time)
    except KeyboardInterrupt:
        assert until < math.inf or engine.left < 0
    return view, time


def test_it_shows_speed_time_left_and_board_of_each_tournament(tmp_path):
    time = Clock()
    view = View(time)
    assert [line.split()[0] for line in drawn(view)] == ["beginning"]
    for seed in (0, 1):
        plan = Plan(agents=4, rounds=3, steps=900, seed=seed)
        began = time.now
        seen(tmp_path / str(seed), plan, Invented(pods=2), 4, view, time)
        lines = drawn(view)
        assert lines[0].startswith("trial 5 ")
        assert seed or re.search("33% 0:00:40 so far, 0:01:2[01] to go", lines[0])
        assert lines[1].startswith("4 of 12 trials, 30 steps/s on 2 made-up pods, ")
        assert time.now == began + 40
        assert lines[2].split() == ["agent", "parent", "round", "score", "steps"]
        scores = [float(line.split()[4]) for line in lines[3:7]]
        assert scores == sorted(scores, reverse=True)
        agents = {(f"{seed}-{number}", "1/3", "300") for number in range(4)}
        assert {tuple(line.split()[1:6:2]) for line in lines[3:7]} == agents
    view._remark = "[bold]x[/] [red"  # is no markup
    view.progress("[red", 0.5)
    assert (drawn(view)[0][:4], drawn(view)[-1].strip()) == ("[red", "[bold]x[/] [red")


def test_the_top_ten_are_shown_in_order_and_failures_counted(tmp_path):
    view, _ = seen(tmp_path / "many", Plan(agents=14, rounds=1), Invented(pods=1, failed=[3]))
    lines = drawn(view)
    assert lines[1].startswith("14 of 14 trials, 1 failed")
    assert [line.split()[0] for line in lines[3:13]] == [str(i) for i in range(1, 11)]
    assert lines[13].startswith("agent 0-3 has failed")
    low = drawn(view, height=8)  # shows fewer agents, and still the remark
    assert ([line.split()[0] for line in low[3:6]], low[6:]) == (["1", "2", "3"], lines[13:])
    view, _ = seen(tmp_path / "few", Plan(agents=3, rounds=1), Invented(pods=1, failed=[1]))
    assert drawn(view)[5].split()[4] == "failed"
    view, _ = seen(tmp_path / "busy", Plan(agents=40, rounds=1), Invented(pods=30), until=0)
    assert "30 busy" in drawn(view)[1]


def screen(text):
    """What a terminal shows without its control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_on_a_terminal_there_is_the_view_and_an_interruption_says_how_to_go_on(monkeypatch, tmp_path):
    out, terminal = tmp_path / "runs" / "cut", sit_at_a_terminal(monkeypatch)
    store = Store(out.with_name("cut" + UNFINISHED) / "seed-0")
    with pytest.raises(KeyboardInterrupt), watched(None, out) as (_, watch):
        play(store, Plan(), Invented(lost=[1], die_after=4), lambda status: print("from a strategy") or watch(status))
    shown, _, after = terminal.getvalue().partition("\x1b[?25h")  # the cursor is back
    assert all(part in screen(shown) for part in (" trials", "from a strategy", "agent 0-1 was lost"))
    seen_once = shown.count("\x1b[?25l"), "\x1b[?25h" in after, "\x1b[2K" in after
    assert seen_once == (1, False, True)  # the view is wiped away
    assert screen(after).strip() == f"continue with: finpod train --resume {out}"
    for storage, told in ((None, ""), ("memory://runs/far", "--storage memory://runs/far")):
        terminal = sit_at_a_terminal(monkeypatch)
        with pytest.raises(KeyboardInterrupt), watched(None, tmp_path / "far", storage):
            raise KeyboardInterrupt
        assert (told in terminal.getvalue(), "resume" in terminal.getvalue()) == (True, storage is not None)


def test_without_a_terminal_there_are_lines_and_event_files_beside_them(monkeypatch, tmp_path, capsys):
    pytest.importorskip("tensorboardX")
    with watched(tmp_path / "events", tmp_path / "run") as (progress, watch):
        print("from a strategy")
        progress("training", 0.0)
        play(Store(tmp_path / "run"), Plan(agents=4, rounds=1, steps=100), Invented(pods=1, lost=[1]), watch)
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert (printed.out, lines[:2]) == ("", ["from a strategy", "training (0%)"])
    assert "agent 0-1 was lost" in lines[2]
    assert list((tmp_path / "events" / "seed-0").glob("events.out.tfevents.*"))
    terminal = sit_at_a_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    with watched(None, tmp_path) as (progress, _):
        progress("training", 0.5)
    assert terminal.getvalue() == "training (50%)\n"
