"""Event files, read back record by record with the protocol that TensorBoard itself reads."""

import math
import struct
import sys
from collections import defaultdict

import pytest
from made_logs import Invented, play

from finpod.cli import events
from finpod.cli.events import EventFiles, Pace
from finpod.errors import InputError
from finpod.storage import Store
from finpod.tournament.setup import Plan

tensorboardX = pytest.importorskip("tensorboardX")


def scalars(folder):
    """What the event files of one run hold: tag -> [(step, value)], in the order in which they were written.

    A record of a TFRecord file: its length as 8 bytes, 4 of checksum, the record, 4 of checksum.
    """
    from tensorboardX.proto.event_pb2 import Event

    found = defaultdict(list)
    for path in sorted(folder.glob("events.out.tfevents.*")):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            event = Event.FromString(content[at + 12 : at + 12 + length])
            for value in event.summary.value:
                found[value.tag].append((event.step, value.simple_value))
            at += 12 + length + 4
        assert at == len(content)
    return dict(found)


class Watched:
    """A watch that also notes the losses seen with each trial, on a clock that adds 20 s a look."""

    def __init__(self, files):
        self.files, self.now, self.losses, self.pace = files, 1000.0, {}, Pace()

    def __call__(self, status):
        self.now += 20
        if status.latest is not None:
            self.losses[status.latest.number] = dict(status.losses)
        self.pace.note(self.now, status.steps)
        self.files(status, self.now)


@pytest.fixture
def plan():
    return Plan(agents=3, rounds=2, steps=600, seed=4)


def test_every_trial_is_written(tmp_path, plan):
    with EventFiles(tmp_path / "events") as files:
        watch = Watched(files)
        board = play(Store(tmp_path / "run"), plan, Invented(pods=1), watch)
    read = scalars(tmp_path / "events" / "seed-4")
    scores = [entry.score for entry in board.log]
    assert [step for step, _ in read["score/trial"]] == [1, 2, 3, 4, 5, 6]
    assert [value for _, value in read["score/trial"]] == pytest.approx(scores, rel=1e-6)
    assert [value for _, value in read["score/best"]] == pytest.approx(
        [max(scores[: i + 1]) for i in range(6)], rel=1e-6
    )
    assert [value for _, value in read["validation/max_drawdown"]] == pytest.approx(
        [entry.metrics["max_drawdown"] for entry in board.log], rel=1e-6
    )
    assert read["pace/steps_per_second"][-1][1] == pytest.approx(watch.pace.rate)


def test_losses_are_those_of_the_trial(tmp_path, plan):
    with EventFiles(tmp_path / "events") as files:
        watch = Watched(files)
        play(Store(tmp_path / "run"), plan, Invented(pods=1), watch)
    read = scalars(tmp_path / "events" / "seed-4")
    assert read["loss/policy_loss"] == [(i + 1, pytest.approx(-0.01 * i)) for i in range(6)]
    assert watch.losses[2] == {"policy_loss": -0.02, "value_loss": 1.0}


def test_each_agent_has_a_run_by_its_own_steps(tmp_path, plan):
    with EventFiles(tmp_path / "events") as files:
        board = play(Store(tmp_path / "run"), plan, Invented(pods=2), Watched(files))
    agents = {entry.agent for entry in board.log}
    assert {path.name for path in (tmp_path / "events" / "seed-4").iterdir() if path.is_dir()} == agents
    for agent in agents:
        own = [(entry.steps, pytest.approx(entry.score, rel=1e-6)) for entry in board.log if entry.agent == agent]
        assert scalars(tmp_path / "events" / "seed-4" / agent) == {"score/trial": own}


def test_agents_beyond_the_limit_have_no_run_of_their_own(tmp_path, plan, monkeypatch):
    monkeypatch.setattr(events, "MOST_AGENTS", 1)
    with EventFiles(tmp_path / "events") as files:
        board = play(Store(tmp_path / "run"), plan, Invented(pods=1), Watched(files))
    assert [path.name for path in (tmp_path / "events" / "seed-4").iterdir() if path.is_dir()] == ["4-0"]
    own = [entry.steps for entry in board.log if entry.agent == "4-0"]
    assert [step for step, _ in scalars(tmp_path / "events" / "seed-4" / "4-0")["score/trial"]] == own
    assert len(scalars(tmp_path / "events" / "seed-4")["score/trial"]) == 6


def test_what_has_no_score_is_left_out(tmp_path, plan):
    with EventFiles(tmp_path / "events") as files:
        board = play(Store(tmp_path / "run"), plan, Invented(pods=1, failed=[0]), Watched(files))
    read = scalars(tmp_path / "events" / "seed-4")
    assert math.isnan(board.log[0].score)
    assert [step for step, _ in read["score/trial"]] == [2, 3, 4, 5, 6]
    assert all(math.isfinite(value) for written in read.values() for _, value in written)


def test_a_run_that_goes_on_writes_what_is_new(tmp_path, plan):
    with EventFiles(tmp_path / "events") as files, pytest.raises(KeyboardInterrupt):
        play(Store(tmp_path / "run"), plan, Invented(pods=1, die_after=2), Watched(files))
    with EventFiles(tmp_path / "events") as files:
        board = play(Store(tmp_path / "run"), plan, Invented(pods=1), Watched(files))
    read = scalars(tmp_path / "events" / "seed-4")
    assert [step for step, _ in read["score/trial"]] == [1, 2, 3, 4, 5, 6]
    assert read["score/best"][-1][1] == pytest.approx(max(entry.score for entry in board.log), rel=1e-6)


def test_each_tournament_has_a_folder(tmp_path, plan):
    with EventFiles(tmp_path / "events") as files:
        for seed in (4, 5):
            play(Store(tmp_path / f"run-{seed}"), Plan(agents=1, rounds=1, seed=seed), Invented(), Watched(files))
    assert sorted(path.name for path in (tmp_path / "events").iterdir()) == ["seed-4", "seed-5"]
    assert all(len(scalars(folder)["score/trial"]) == 1 for folder in (tmp_path / "events").iterdir())


def test_without_tensorboardx_there_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    with pytest.raises(InputError, match="pip install tensorboardX") as raised:
        EventFiles(tmp_path / "events")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "events").exists()


def test_a_disk_that_is_full_ends_the_files_and_not_the_tournament(tmp_path, plan, monkeypatch):
    said = []
    with EventFiles(tmp_path / "events", said.append) as files:
        written = files._writer.write_event

        def full(self, event):
            if event.step == 3:
                raise OSError(28, "No space left on device")
            written(self, event)

        monkeypatch.setattr(files._writer, "write_event", full)
        board = play(Store(tmp_path / "run"), plan, Invented(pods=1), Watched(files))
    assert len(board.log) == 6
    assert said == [f"no more event files: cannot write {tmp_path}/events: No space left on device"]
    assert len(scalars(tmp_path / "events" / "seed-4")["score/trial"]) == 2


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*file: "):
        EventFiles(tmp_path / "file")


def test_the_pace_is_that_of_the_last_minute():
    pace = Pace(span=60)
    pace.note(0.0, 0)
    assert math.isnan(pace.rate)
    pace.note(10.0, 1000)
    assert pace.rate == 100
    for second in range(20, 130, 10):
        pace.note(float(second), 1000 + 50 * (second - 10))
    assert pace.rate == pytest.approx(50)
    pace.note(500.0, 1000 + 50 * 110)  # nothing ended meanwhile: not a standstill, but not known yet
    assert pace.rate == pytest.approx(50)


def test_the_pace_of_slices_longer_than_a_minute_is_that_of_the_last_one():
    pace = Pace(span=60)
    for now, steps in [(0.0, 0), (300.0, 300), (500.0, 1300)]:
        pace.note(now, steps)
    assert pace.rate == 5
