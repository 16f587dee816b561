"""Stop rules of a tournament."""

from types import SimpleNamespace

import pytest
from made_tournaments import UPDATE, Made, check_log, lines, plan_of, play, records_of, shuffled

from finpod.storage import Store
from finpod.tournament import scheduler
from finpod.tournament.setup import Plan, Stop

MODES = pytest.mark.parametrize("mode", ["rounds", "async"])


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "run")


def trials(board):
    return [entry.number for entry in board.log]


def ended(store):
    return records_of(store)[-1]["reason"]


@MODES
@pytest.mark.parametrize("slots", [1, 9])
@pytest.mark.parametrize("count", [1, 6, 12])
def test_it_stops_after_so_many_trials(store, mode, slots, count):
    board = play(store, plan_of(mode=mode, stop=Stop(trials=count)), shuffled(slots))
    assert trials(board) == list(range(count))
    assert ended(store) == f"{count} trials"


def test_rounds_end_with_the_last_and_an_asynchronous_tournament_where_it_is_told(tmp_path):
    rounds, onward = plan_of(stop=Stop(trials=30)), plan_of(mode="async", stop=Stop(trials=30))
    assert (rounds.most_trials, onward.most_trials, plan_of(mode="async").most_trials) == (12, 30, 12)
    assert len(play(Store(tmp_path / "rounds"), rounds, Made()).log) == 12
    assert ended(Store(tmp_path / "rounds")) == "all trials done"
    assert len(play(Store(tmp_path / "async"), onward, Made()).log) == 30


@MODES
@pytest.mark.parametrize("slots", [1, 9])
def test_it_stops_after_so_many_steps_at_the_same_trial_wherever_the_pods_run(store, mode, slots):
    limit = 13 * UPDATE  # trials of two updates each in the first round
    board = play(store, plan_of(mode=mode, restart_rate=0, stop=Stop(steps=limit)), shuffled(slots))
    assert trials(board) == list(range(7))
    assert ended(store) == f"{limit:,} environment steps"


def test_it_stops_after_so_many_seconds_and_what_runs_is_finished(store, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(time=lambda: clock[0]))

    def fate(key, piece):
        clock[0] += 10

    board = play(store, plan_of(mode="async", stop=Stop(seconds=35)), Made(3, fate=fate))
    assert trials(board) == [0, 1, 2, 3, 4, 5]  # at 0, 10, 20 and 30 s one began; two were under way
    assert ended(store) == "35 seconds"


def test_every_level_learns_however_few_the_steps():
    plan = Plan(rounds=4, steps=1)
    assert [plan.goal(level, 10) for level in (1, 2, 3, 4)] == [10, 20, 30, 40]
    assert [Plan(rounds=3, steps=100).goal(level, 10) for level in (1, 2, 3)] == [40, 70, 100]


@MODES
def test_a_wider_rule_goes_on_to_the_board_that_was_never_stopped(tmp_path, mode):
    whole = play(Store(tmp_path / "whole"), plan_of(mode=mode), Made())
    store = Store(tmp_path / "parts")
    for stop in (Stop(trials=3), Stop(trials=6), Stop()):
        board = play(store, plan_of(mode=mode, stop=stop), Made())
    assert lines(board) == lines(whole)
    check_log(store, board)
