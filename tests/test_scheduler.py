"""The scheduler: stop rules, crashes, and failures of pods, disks and files."""

import errno
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from made_tournaments import (
    UPDATE,
    Made,
    agent_file,
    check_log,
    driver_of,
    lines,
    made_up,
    plan_of,
    play,
    records_of,
)

from finpod.errors import CheckpointError, DataError, InputError
from finpod.rl.checkpoint import Checkpoint
from finpod.storage import Store
from finpod.tournament import leaderboard, scheduler
from finpod.tournament.evolution import EvolutionConfig
from finpod.tournament.setup import Plan, Stop
from finpod.workers.executor import Failed

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Lines that reach the disk some time later."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "run")


def scripted(scores):
    """A fate that gives trial number i the i-th score, and those without one nothing of their own."""

    def fate(key, piece):
        trial = int(key.split("/")[0])
        if trial >= len(scores) or not piece.last:
            return None
        made = made_up(piece)
        return made._replace(score=scores[trial], metrics={**made.metrics, "sharpe": scores[trial]})

    return fate


def shuffled(slots, seed=0, **changes):
    """An engine whose pods end in any order."""
    random = np.random.default_rng(seed)
    return Made(slots, lambda running: int(random.integers(running)), **changes)


def trials(board):
    return [entry.number for entry in board.log]


def ended(store):
    """Why it ended."""
    return records_of(store)[-1]["reason"]


# --- when it stops


@pytest.mark.parametrize("slots", [1, 3, 9])
@pytest.mark.parametrize("mode", ["rounds", "async"])
@pytest.mark.parametrize("count", [1, 2, 4, 6, 11, 12])
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


@pytest.mark.parametrize("mode", ["rounds", "async"])
@pytest.mark.parametrize("slots", [1, 3, 9])
def test_it_stops_after_so_many_steps_at_the_same_trial_wherever_the_pods_run(store, mode, slots):
    limit = 13 * UPDATE  # trials of two updates each in the first round
    board = play(store, plan_of(mode=mode, search=EvolutionConfig(fresh=0), stop=Stop(steps=limit)), shuffled(slots))
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


def test_it_stops_at_a_score_in_rounds_after_the_round(tmp_path):
    scores = [0.1, 2.5, 0.3, 0.2, 0.5]
    for mode, slots, expected in (("rounds", 1, 4), ("rounds", 3, 4), ("async", 1, 2), ("async", 2, 3)):
        store = Store(tmp_path / f"{mode}-{slots}")
        board = play(store, plan_of(mode=mode, stop=Stop(score=2.5)), Made(slots, fate=scripted(scores)))
        assert trials(board) == list(range(expected))
        assert ended(store) == "a score of 2.5"
    board = play(Store(tmp_path / "far"), plan_of(stop=Stop(score=99.0)), Made())
    assert len(board.log) == 12


@pytest.mark.parametrize(
    ("scores", "patience", "expected"),
    [
        ([1.0, 2.0, 1.5, 1.5, 1.5], 3, 5),
        ([1.0, 2.0, 1.5, 2.0, 1.5], 3, 5),  # as good is not better
        ([1.0, 2.0, 1.5, 1.5, 2.1, 1.0, 1.0, 1.0], 3, 8),
        ([None, None, 0.1, None, None], 2, 5),  # the first score is better than none
        ([None, None, None], 2, 3),
        ([-1.0, -2.0, -3.0], 2, 3),
        ([1.0, 0.0], 1, 2),
    ],
)
def test_it_stops_once_no_better_score_comes(store, scores, patience, expected):
    board = play(store, plan_of(mode="async", stop=Stop(patience=patience)), Made(fate=scripted(scores)))
    assert len(board.log) == expected
    assert ended(store) == f"no better score in {patience} trials"


@pytest.mark.parametrize("slots", [1, 3])
def test_in_rounds_patience_is_asked_after_each(store, slots):
    scores = [3.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    board = play(store, plan_of(stop=Stop(patience=4)), shuffled(slots, fate=scripted(scores)))
    assert len(board.log) == 8


@pytest.mark.parametrize(
    "rule",
    [{"trials": 0}, {"trials": 1.5}, {"steps": -1}, {"seconds": 0}, {"seconds": math.inf}, {"seconds": "5"},
     {"score": math.nan}, {"patience": 0}, {"patience": 2.5}],
)  # fmt: skip
def test_a_rule_that_cannot_be_is_refused(rule):
    name, value = next(iter(rule.items()))
    with pytest.raises(InputError) as raised:
        Stop(**rule)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(f"stop.{name} is {value!r}; ")
    assert raised.value.argument == f"stop.{name}"


@pytest.mark.parametrize(
    "change",
    [{"mode": "turns"}, {"alike": 1.1}, {"retries": -1}, {"checkpoint_steps": 0}, {"keep": 65},
     {"agents": 0}, {"seed": -1}],
)  # fmt: skip
def test_a_plan_that_cannot_be_is_refused(change):
    with pytest.raises(InputError, match=str(next(iter(change)))):
        plan_of(**change)


def test_every_level_learns_however_few_the_steps():
    plan = Plan(rounds=4, steps=1)
    assert [plan.goal(level, 10) for level in (1, 2, 3, 4)] == [10, 20, 30, 40]
    assert [Plan(rounds=3, steps=100).goal(level, 10) for level in (1, 2, 3)] == [40, 70, 100]


@pytest.mark.parametrize("mode", ["rounds", "async"])
def test_a_wider_rule_goes_on_to_the_board_that_was_never_stopped(tmp_path, mode):
    whole = play(Store(tmp_path / "whole"), plan_of(mode=mode), Made())
    store = Store(tmp_path / "parts")
    for stop in (Stop(trials=3), Stop(trials=6), Stop()):
        board = play(store, plan_of(mode=mode, stop=stop), Made())
    assert lines(board) == lines(whole)
    check_log(store, board)


# --- how it goes about it


@pytest.mark.parametrize("mode", ["rounds", "async"])
def test_a_trial_goes_from_checkpoint_to_checkpoint(store, mode):
    engine = Made()
    board = play(store, plan_of(mode=mode, checkpoint_steps=UPDATE, search=EvolutionConfig(fresh=0)), engine)
    assert [key for key in engine.started if key.startswith("0/")] == ["0/32/0", "0/64/0"]
    for first, second in zip(engine.pieces[::2], engine.pieces[1::2], strict=True):
        assert (first.last, second.last) == (False, True)
        assert first.settings == second.settings
        assert second.until - first.until == UPDATE
        assert (second.start, second.copied) == (agent_file(), False)  # it goes on as itself
        assert first.total == second.total == 6 * UPDATE
    begun = [piece for piece in engine.pieces[::2] if piece.start is not None]
    assert sorted(piece.copied for piece in begun) == sorted([True, False] * (len(begun) // 2))
    assert store.names("checkpoints") == []
    assert len([record for record in records_of(store) if record["kind"] == "checkpoint"]) == len(board.log)


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("every", [None, 1, UPDATE, 2 * UPDATE, 3 * UPDATE])
def test_checkpoints_change_nothing_in_rounds(tmp_path, slots, every):
    plain = play(Store(tmp_path / "plain"), plan_of(steps=12 * UPDATE), Made())
    board = play(Store(tmp_path / "cut"), plan_of(steps=12 * UPDATE, checkpoint_steps=every), shuffled(slots))
    assert lines(board) == lines(plain)


def test_those_who_watch_see_how_it_stands(store):
    seen, began = [], []

    def watch(status):
        began.append(status.began)
        seen.append((len(status.board.log), sorted(status.running), status.latest and status.latest.number, status.where,
                     status.steps, dict(status.losses)))  # fmt: skip

    play(store, plan_of(agents=2, rounds=1, steps=UPDATE), Made(2), watch=watch)
    assert seen == [
        (0, [0, 1], None, "2 made-up pods", 0, {}),
        (1, [1], 0, "2 made-up pods", UPDATE, {"value_loss": 1.0}),
        (2, [], 1, "2 made-up pods", 2 * UPDATE, {"value_loss": 1.0}),
        (2, [], None, "2 made-up pods", 2 * UPDATE, {"value_loss": 1.0}),
    ]
    assert len(set(began)) == 1


@pytest.mark.parametrize("mode", ["rounds", "async"])
def test_pods_that_join_are_used_at_once_and_those_that_leave_are_not_missed(store, mode):
    engine, busy = Made(1), []

    def watch(status):
        busy.append(len(status.running))
        engine.slots = {2: 5, 6: 1}.get(len(status.board.log), engine.slots)

    board = play(store, plan_of(mode=mode, agents=12, rounds=1), engine, watch=watch)
    assert len(board.log) == 12
    assert busy[:4] == [1, 1, 1, 5]
    assert busy[-4:] == [1, 1, 0, 0]
    check_log(store, board)


def test_files_of_agents_that_nobody_needs_are_removed(store, monkeypatch):
    monkeypatch.setattr(scheduler, "BOARD", 5)
    monkeypatch.setattr(leaderboard, "BOARD", 5)
    for mode in ("rounds", "async"):
        place = Store(store.folder / mode)
        board = play(place, plan_of(mode=mode, agents=8, rounds=8, steps=8 * UPDATE), shuffled(3))
        assert len(board.log) == 64
        assert all(entry.state == "ended" for entry in board.log)  # nothing that was to go on was missing
        kept = {int(name.split("/")[1].removesuffix(".pt")) for name in place.names("agents")}
        assert {entry.number for entry in board.top(5)} <= kept
        assert len(kept) <= (5 + 2 * 8 if mode == "rounds" else 40)  # the best, and those of the last two rounds
        assert all(f"agents/{entry.number}.pt" in place.names("agents") for entry in board.best(20))
        resumed = play(place, plan_of(mode=mode, agents=8, rounds=8, steps=8 * UPDATE), Made())
        assert [entry.number for entry in resumed.best(20)] == [entry.number for entry in board.best(20)]


# --- pods that are lost, and agents that fail


@pytest.mark.parametrize("mode", ["rounds", "async"])
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
    lost = [record for record in records_of(store) if record["kind"] == "lost"]
    assert [(record["trial"], record["attempt"], record["reason"]) for record in lost] == [
        (1, 1, "NodeDiedError: made up"),
        (5, 1, "NodeDiedError: made up"),
        (5, 2, "NodeDiedError: made up"),
    ]
    assert next(text for text in said if "lost" in text) == (
        "the pod of agent 5-1 was lost (NodeDiedError: made up); it starts again"
    )
    check_log(store, board)


@pytest.mark.parametrize("retries", [0, 2])
def test_d05_an_agent_whose_pod_is_lost_too_often_is_listed_as_failed_and_the_rest_finish(store, retries):
    engine = Made(2, fate=lambda key, piece: Failed(key, "no result after 5 s", False) if key[0] == "2" else None)
    said: list[str] = []
    board = play(store, plan_of(retries=retries), engine, said.append)
    assert len(board.log) == 12
    assert [entry.number for entry in board.log if entry.state == "failed"] == [2]
    assert [key for key in engine.started if key.startswith("2/")] == [f"2/64/{i}" for i in range(retries + 1)]
    times = retries + 1
    assert f"agent 5-2 is out: its pod was lost {times} times, last: no result after 5 s" in said
    assert [record["reason"] for record in records_of(store) if record["kind"] == "failed"] == [
        f"its pod was lost {times} times, last: no result after 5 s"
    ]


def test_a_slice_that_ended_clears_the_count_of_lost_pods(store):
    def fate(key, piece):
        return Failed(key, "its node left", False) if key.endswith("/0") else None  # every slice is lost once

    board = play(store, plan_of(retries=1, steps=24 * UPDATE, checkpoint_steps=UPDATE), Made(fate=fate))
    assert all(entry.state == "ended" for entry in board.log)
    assert len([record for record in records_of(store) if record["kind"] == "lost"]) > 50


def test_an_agent_that_fails_by_itself_is_out_at_once(store):
    def fate(key, piece):
        return Failed(key, "ValueError: not finite", True, ValueError("not finite")) if key[0] == "3" else None

    engine, said = Made(fate=fate), []
    board = play(store, plan_of(checkpoint_steps=UPDATE), engine, said.append)
    assert [key for key in engine.started if key.startswith("3/")] == ["3/32/0"]
    assert "agent 5-3 is out: ValueError: not finite" in said
    assert board.ranked()[-1].number == 3
    check_log(store, board)


@pytest.mark.parametrize("kind", [InputError, DataError])
def test_a_task_that_is_wrong_for_every_agent_ends_it(store, kind):
    with pytest.raises(kind, match="no such data"):
        play(store, plan_of(), Made(fate=lambda key, piece: Failed(key, "no such data", True, kind("no such data"))))


# --- files that cannot be read


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_checkpoint_inside_a_round_that_cannot_be_read_costs_that_round(tmp_path, how):
    plan = plan_of(checkpoint_steps=UPDATE)
    store, said, hurt = Store(tmp_path / "hurt"), [], []

    def fate(key, piece):
        if piece.start == b"damaged":
            return Failed(key, "not a checkpoint", True, CheckpointError("not a checkpoint"))
        if key != "1/64/0" or hurt:
            return None
        hurt.append(key)
        path = store.folder / "checkpoints" / "1.pt"
        path.unlink() if how == "missing" else path.write_bytes(b"damaged")
        return Failed(key, "its node died", False)

    engine = Made(fate=fate)
    board = play(store, plan, engine, said.append)
    assert lines(board) == lines(play(Store(tmp_path / "whole"), plan, Made()))
    again = ["1/64/1"] if how == "damaged" else []
    started = [key for key in engine.started if key.startswith("1/")]
    assert started == ["1/32/0", "1/64/0", *again, "1/32/1", "1/64/0"]
    assert any(text.startswith("agent 5-1 begins its round again: ") for text in said)
    check_log(store, board)


def test_an_agent_whose_parent_cannot_be_read_is_out_and_the_others_go_on(store):
    plan, said = plan_of(search=EvolutionConfig(fresh=0)), []
    play(store, replace(plan, stop=Stop(trials=4)), Made())
    best = max(records_of(store)[2:6], key=lambda record: record["score"])["trial"]
    (store.folder / "agents" / f"{best}.pt").unlink()
    board = play(store, plan, Made(), said.append)
    assert len(board.log) == 12
    out = [entry for entry in board.log if entry.state == "failed"]
    assert [entry.level for entry in out] == [2, 2]  # the agent itself, and its copy
    assert out[0].agent == board.log[best].agent
    assert out[1].parent == board.log[best].agent
    assert said[1].startswith(f"agent {out[0].agent} is out: the agent it begins with cannot be read: ")
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
    made = driver_of(store, plan_of(keep=2, alike=1.0), Made(), said.append)  # as a new driver finds it
    chosen = made.choose(None)
    assert [entry.number for entry, _ in chosen] == [second.number, fourth.number]
    told = [text.split()[1] for text in said if "cannot be kept" in text]
    assert told[0] == first.agent
    assert set(told) == {first.agent, third.agent}
    assert len(told) == len(made.board.unread)
    assert made.board.top(1)[0].score == first.score  # its line stays


def test_what_is_kept_is_the_agent_without_its_accounts(store):
    play(store, plan_of(), Made())
    assert Checkpoint.from_bytes(store.read("agents/0.pt")).env
    assert all(agent.env == {} for _, agent in driver_of(store, plan_of(), Made()).choose(None))


# --- disks that are full


class Limited(Store):
    """A disk that refuses checkpoints while it is `full`, and lines of the log while it is `stuck`."""

    full = stuck = False
    refused = ()

    def write(self, name, content):
        if self.full or name in self.refused:
            raise InputError(f"cannot write {name}: No space left on device; free some space")
        super().write(name, content)

    def append(self, name, content):
        if self.stuck:
            raise InputError(f"cannot write {name}: No space left on device; free some space and resume")
        super().append(name, content)


@pytest.mark.parametrize("every", [None, UPDATE])
def test_a_full_disk_is_told_and_the_tournament_goes_on_in_memory(tmp_path, every):
    store, said, plan = Limited(tmp_path / "full"), [], plan_of(checkpoint_steps=every)
    store.full = True
    made = driver_of(store, plan, Made(2), said.append)
    board = made.run()
    assert lines(board) == lines(play(Store(tmp_path / "whole"), plan, Made()))
    assert store.names("agents") == []
    assert all("checkpoint" in text and "in memory only: cannot write" in text for text in said)
    assert len(made.files.held) == 12
    assert made.choose(None)[0][1].steps == UPDATE
    assert "checkpoint" not in {
        record["kind"] for record in records_of(store)
    }  # only what is on the disk is in the log


def test_what_a_full_disk_refused_is_written_once_there_is_room(store, tmp_path):
    limited, said = Limited(store.folder), []

    def watch(status):
        limited.full = 2 <= len(status.board.log) < 5

    made = driver_of(limited, plan_of(), Made(), said.append, watch)
    made.run()
    assert [text.split(":")[0] for text in said] == [
        "1 checkpoint in memory only",
        "2 checkpoints in memory only",
        "3 checkpoints in memory only",
    ]
    assert made.files.held == {}
    assert len(limited.names("agents")) == 12


@pytest.mark.parametrize("mode", ["rounds", "async"])
def test_an_agent_that_was_in_memory_only_counts_and_nothing_goes_on_from_it(tmp_path, mode):
    plan = plan_of(mode=mode, search=EvolutionConfig(fresh=0), stop=Stop(trials=4))
    scores = {entry.number: entry.score for entry in play(Store(tmp_path / "whole"), plan, Made()).log}
    best = max(scores, key=scores.get)
    store = Limited(tmp_path / "full")
    store.refused = (f"agents/{best}.pt",)
    play(store, plan, Made())
    assert [one["trial"] for one in records_of(store) if one.get("written") is False] == [best]
    said = []
    made = driver_of(Store(store.folder), replace(plan, stop=Stop()), Made(), said.append)
    made.run()
    name = made.board.log[best].agent
    assert said[1] == f"in memory only when the last driver ended, and gone: agent {name}"
    out = [entry for entry in made.board.log if entry.state == "failed"]
    assert len(out) == 2
    assert {entry.agent for entry in out if not entry.parent} == {name}
    assert {entry.parent for entry in out} == {None, name}
    failed = [one["reason"] for one in records_of(store) if one["kind"] == "failed"]
    assert all(f"agents/{best}.pt was in memory only when its driver ended" in reason for reason in failed)
    assert made.board.log[best].score == scores[best]
    check_log(store, made.board)
    assert name not in {entry.agent for entry, _ in driver_of(store, replace(plan, keep=12), Made()).choose(None)}


def test_where_all_agents_were_in_memory_only_that_is_said_and_the_log_stays(tmp_path):
    store, plan = Limited(tmp_path / "full"), plan_of(stop=Stop(trials=4))
    store.full = True
    play(store, plan, Made())
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"\.pt was in memory only when its driver ended; train again"):
            play(Store(store.folder), replace(plan, stop=Stop()), Made())
    assert "failed" not in {record["kind"] for record in records_of(store)}


def test_d06_a_log_that_cannot_be_written_ends_it_and_resuming_goes_on(tmp_path):
    plan = plan_of(checkpoint_steps=UPDATE)
    whole = play(Store(tmp_path / "whole"), plan, Made())
    store = Limited(tmp_path / "stuck")

    def watch(status):
        store.stuck = len(status.board.log) == 5

    with pytest.raises(InputError, match="free some space and resume") as raised:
        play(store, plan, Made(2), watch=watch)
    assert "\n" not in str(raised.value)
    board = play(Store(store.folder), plan, Made(2))
    assert lines(board) == lines(whole)
    check_log(store, board)


# --- a driver that is killed


class Killed(BaseException):
    """What ends a driver between two of its acts."""


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


@pytest.mark.parametrize("mode", ["rounds", "async"])
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
        try:
            made.run()
        except Killed:
            pass
        else:  # several draws in a line make fewer lines
            assert at > 12
            break
        known = records_of(store)
        board = play(store, plan, second)
        if mode == "rounds" or slots == 1:
            assert lines(board) == expected
        check_log(store, board)
        logged = {f"{one['trial']}/{one['steps']}/0" for one in known if one["kind"] in ("submit", "checkpoint")}
        assert not logged & set(second.started)
        assert len(board.log) == 6
        begun_twice = set(first.started) & set(second.started)
        assert len(begun_twice) <= slots  # what ran when it was killed
