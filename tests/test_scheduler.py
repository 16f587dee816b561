"""The scheduler: slices and checkpoints, crashes, failures of pods and files, stop rules."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from made_errors import refused
from made_tournaments import UPDATE, Made, agent_file, check_log, driver_of, lines, plan_of, play, records_of, shuffled

from finpod.errors import CheckpointError, DataError
from finpod.storage import Store
from finpod.tournament import leaderboard, scheduler
from finpod.tournament.setup import Plan, Stop
from finpod.workers.executor import Failed

MODES = pytest.mark.parametrize("mode", ["rounds", "async"])


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Lines reach the disk some time later."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "run")


def failed(board):
    return [entry for entry in board.log if entry.state == "failed"]


def of_kind(store, kind):
    return [record for record in records_of(store) if record["kind"] == kind]


# --- slices and checkpoints


@MODES
def test_a_trial_goes_from_checkpoint_to_checkpoint(store, mode):
    engine = Made()
    board = play(store, plan_of(mode=mode, checkpoint_steps=UPDATE, restart_rate=0), engine)
    assert [key for key in engine.started if key.startswith("0/")] == ["0/32/0", "0/64/0"]
    for first, second in zip(engine.pieces[::2], engine.pieces[1::2], strict=True):
        assert (first.last, second.last) == (False, True)
        assert first.settings == second.settings
        assert second.until - first.until == UPDATE
        assert (second.start, second.copied) == (agent_file(), False)  # it continues as itself
    begun = [piece for piece in engine.pieces[::2] if piece.start is not None]
    assert sorted(piece.copied for piece in begun) == sorted([True, False] * (len(begun) // 2))
    assert store.names("checkpoints") == []
    assert len(of_kind(store, "checkpoint")) == len(board.log)


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("every", [1, 2 * UPDATE, 3 * UPDATE])
def test_checkpoints_change_nothing_in_rounds(tmp_path, slots, every):
    plain = play(Store(tmp_path / "plain"), plan_of(steps=12 * UPDATE), Made())
    board = play(Store(tmp_path / "cut"), plan_of(steps=12 * UPDATE, checkpoint_steps=every), shuffled(slots))
    assert lines(board) == lines(plain)


@MODES
def test_files_of_agents_that_nobody_needs_are_removed(store, monkeypatch, mode):
    monkeypatch.setattr(scheduler, "BOARD", 5)
    monkeypatch.setattr(leaderboard, "BOARD", 5)
    plan = plan_of(mode=mode, agents=8, rounds=8, steps=8 * UPDATE)
    board = play(store, plan, shuffled(3))
    assert len(board.log) == 64
    assert all(entry.state == "ended" for entry in board.log)  # nothing that was needed was missing
    kept = {int(name.split("/")[1].removesuffix(".pt")) for name in store.names("agents")}
    assert {entry.number for entry in leaderboard.ranked(board.trials)[:5]} <= kept
    assert len(kept) <= (5 + 2 * 8 if mode == "rounds" else 40)  # the best, and those of the last two rounds


# --- pods that are lost, and agents that fail


@MODES
def test_d05_a_pod_that_is_lost_starts_again_from_its_last_checkpoint(tmp_path, mode):
    gone = []

    def fate(key, piece):
        if key in ("1/64/0", "5/96/0", "5/96/1"):
            gone.append(piece)
            return Failed(key, "NodeDiedError: made up", False)
        return None

    plan = plan_of(mode=mode, checkpoint_steps=UPDATE)
    store, engine, said = Store(tmp_path / "lost"), Made(fate=fate), []
    board = play(store, plan, engine, said.append)
    assert lines(board) == lines(play(Store(tmp_path / "whole"), plan, Made()))
    assert [key for key in engine.started if key.startswith("1/")] == ["1/32/0", "1/64/0", "1/64/1"]
    again = engine.pieces[engine.started.index("1/64/1")]
    assert again == gone[0]
    assert again.start is not None
    told = [(record["trial"], record["attempt"]) for record in of_kind(store, "lost")]
    assert told == [(1, 1), (5, 1), (5, 2)]
    assert "agent 5-1" in said[0]
    check_log(store, board)


@pytest.mark.parametrize("retries", [0, 2])
def test_d05_an_agent_whose_pod_is_lost_too_often_is_listed_as_failed_and_the_rest_finish(store, retries):
    engine = Made(2, fate=lambda key, piece: Failed(key, "no result after 5 s", False) if key[:4] == "2/64" else None)
    said: list[str] = []
    board = play(store, plan_of(retries=retries, checkpoint_steps=UPDATE), engine, said.append)
    assert len(board.log) == 12
    assert [entry.number for entry in failed(board)] == [2]
    assert [key for key in engine.started if key.startswith("2/64")] == [f"2/64/{i}" for i in range(retries + 1)]
    assert store.names("checkpoints") == []
    (record,) = of_kind(store, "failed")
    assert f"{retries + 1} times, the last time: no result after 5 s" in record["reason"]
    assert any("agent 5-2" in text and record["reason"] in text for text in said)


def test_a_slice_that_ended_clears_the_count_of_lost_pods(store):
    def fate(key, piece):
        return Failed(key, "its node left", False) if key.endswith("/0") else None  # every slice is lost once

    board = play(store, plan_of(retries=1, steps=24 * UPDATE, checkpoint_steps=UPDATE), Made(fate=fate))
    assert all(entry.state == "ended" for entry in board.log)
    assert len(of_kind(store, "lost")) > 50


def test_a_task_that_is_wrong_for_every_agent_ends_it(store):
    error = DataError("no such data")
    engine = Made(fate=lambda key, piece: Failed(key, str(error), True, error))
    refused("no such data", play, store, plan_of(), engine, error=DataError)


# --- files and disks


def test_a_checkpoint_inside_a_round_that_is_missing_costs_that_round(tmp_path):
    plan, store, said = plan_of(checkpoint_steps=UPDATE), Store(tmp_path / "hurt"), []

    def fate(key, piece):
        path = store.folder / "checkpoints" / "1.pt"
        if key != "1/64/0" or not path.exists() or said:
            return None
        path.unlink()
        return Failed(key, "its node died", False)

    engine = Made(fate=fate)
    board = play(store, plan, engine, said.append)
    assert lines(board) == lines(play(Store(tmp_path / "whole"), plan, Made()))
    assert [key for key in engine.started if key.startswith("1/")] == ["1/32/0", "1/64/0", "1/32/1", "1/64/0"]
    assert "agent 5-1 starts its round again" in said[-1]
    check_log(store, board)


def test_an_agent_whose_checkpoint_cannot_be_read_is_out_and_the_others_go_on(store):
    plan, said = plan_of(restart_rate=0), []
    play(store, replace(plan, stop=Stop(trials=4)), Made())
    best = max(of_kind(store, "submit"), key=lambda record: record["score"])["trial"]
    (store.folder / "agents" / f"{best}.pt").unlink()
    board = play(store, plan, Made(), said.append)
    assert len(board.log) == 12
    first, second = failed(board)  # the agent itself, and its copy
    assert (first.level, second.level) == (2, 2)
    assert first.agent == second.parent == board.log[best].agent
    assert f"agents/{best}.pt is missing" in said[1]
    check_log(store, board)


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_an_agent_that_cannot_be_read_at_the_end_is_told_and_gives_way_to_the_next(store, how):
    board, said = play(store, plan_of(), Made()), []
    first, second, third, fourth = board.best(4)
    for entry in board.log:
        if entry.agent in (first.agent, third.agent):
            path = store.folder / "agents" / f"{entry.number}.pt"
            path.unlink() if how == "missing" else path.write_bytes(b"damaged")
    chosen = driver_of(store, plan_of(keep=2, alike=1.0), Made(), said.append).choose(None)
    assert [entry.number for entry, _ in chosen] == [second.number, fourth.number]
    assert [agent.env for _, agent in chosen] == [{}, {}]  # without its accounts
    assert {text.split()[1] for text in said if text.startswith("agent ")} == {first.agent, third.agent}


def test_a_place_whose_agents_are_all_gone_ends_it_and_the_log_stays(store):
    plan = plan_of(stop=Stop(trials=4))
    play(store, plan, Made())
    store.remove_folder("agents")
    refused(r"\.pt is missing", play, store, replace(plan, stop=Stop()), Made(), error=CheckpointError)
    assert of_kind(store, "failed") == []


# --- a driver that is killed


class Killed(BaseException):
    """Ends a driver between two of its acts."""


def killed(log, after, written):
    """End the driver at a line of the log, before or after it is on the disk."""
    append = log.append

    def kill(kind, **values):
        if log.count >= after and not written:
            raise Killed
        record = append(kind, **values)
        if log.count > after:
            raise Killed
        return record

    log.append = kill


@MODES
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("written", [False, True])
def test_d06_a_driver_killed_at_any_line_goes_on_and_nothing_is_done_twice(tmp_path, mode, slots, written):
    plan = plan_of(mode=mode, agents=3, rounds=2, steps=4 * UPDATE, checkpoint_steps=UPDATE)
    whole = Store(tmp_path / "whole")
    expected = lines(play(whole, plan, Made()))
    for at in range(1, len(records_of(whole))):
        store, first, second = Store(tmp_path / str(at)), Made(slots), Made(slots)
        made = driver_of(store, plan, first)
        killed(made.log, at, written)
        with pytest.raises(Killed):
            made.run()
        known = records_of(store)
        board = play(store, plan, second)
        if mode == "rounds" or slots == 1:
            assert lines(board) == expected
        check_log(store, board)
        logged = {f"{one['trial']}/{one['steps']}/0" for one in known if one["kind"] in ("submit", "checkpoint")}
        assert not logged & set(second.started)
        assert len(board.log) == 6
        assert len(set(first.started) & set(second.started)) <= slots  # what ran when it was killed


# --- stop rules


def end_of(store):
    """The stop rule that ended a tournament."""
    return records_of(store)[-1]["reason"]


@MODES
@pytest.mark.parametrize("slots", [1, 9])
@pytest.mark.parametrize("count", [1, 6, 12])
def test_it_stops_after_so_many_trials(store, mode, slots, count):
    board = play(store, plan_of(mode=mode, stop=Stop(trials=count)), shuffled(slots))
    assert [entry.number for entry in board.log] == list(range(count))
    assert end_of(store) == f"{count} trials"


def test_rounds_end_with_the_last_and_an_asynchronous_tournament_where_it_is_told(tmp_path):
    rounds, onward = plan_of(stop=Stop(trials=30)), plan_of(mode="async", stop=Stop(trials=30))
    assert (rounds.most_trials, onward.most_trials, plan_of(mode="async").most_trials) == (12, 30, 12)
    assert len(play(Store(tmp_path / "rounds"), rounds, Made()).log) == 12
    assert end_of(Store(tmp_path / "rounds")) == "all trials done"
    assert len(play(Store(tmp_path / "async"), onward, Made()).log) == 30


@MODES
@pytest.mark.parametrize("slots", [1, 9])
def test_it_stops_after_so_many_steps_at_the_same_trial_wherever_the_pods_run(store, mode, slots):
    limit = 13 * UPDATE  # trials of two updates each in the first round
    board = play(store, plan_of(mode=mode, restart_rate=0, stop=Stop(steps=limit)), shuffled(slots))
    assert [entry.number for entry in board.log] == list(range(7))
    assert end_of(store) == f"{limit:,} environment steps"


def test_it_stops_after_so_many_seconds_and_what_runs_is_finished(store, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(time=lambda: clock[0]))

    def fate(key, piece):
        clock[0] += 10

    board = play(store, plan_of(mode="async", stop=Stop(seconds=35)), Made(3, fate=fate))
    assert len(board.log) == 6  # at 0, 10, 20 and 30 s one began; two were under way
    assert end_of(store) == "35 seconds"


def test_every_level_learns_however_few_the_steps():
    assert [Plan(rounds=4, steps=1).goal(level, 10) for level in (1, 2, 3, 4)] == [10, 20, 30, 40]
    assert [Plan(rounds=3, steps=100).goal(level, 10) for level in (1, 2, 3)] == [40, 70, 100]


@MODES
def test_a_wider_rule_goes_on_to_the_board_that_was_never_stopped(tmp_path, mode):
    whole = play(Store(tmp_path / "whole"), plan_of(mode=mode), Made())
    store = Store(tmp_path / "parts")
    for stop in (Stop(trials=3), Stop(trials=6), Stop()):
        board = play(store, plan_of(mode=mode, stop=stop), Made())
    assert lines(board) == lines(whole)
    check_log(store, board)
