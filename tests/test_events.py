"""Event files, read back record by record with the protocol that TensorBoard itself reads."""

import math
import struct
import sys
from collections import defaultdict
from contextlib import closing

import pytest
from made_errors import refused
from made_logs import Invented, play

from finpod.cli.live import EventFiles
from finpod.storage import Store
from finpod.tournament.setup import Plan

tensorboardX = pytest.importorskip("tensorboardX")
PLAN = Plan(agents=3, rounds=2, steps=600, seed=4)


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
                found[value.tag].append((event.step, pytest.approx(value.simple_value, rel=1e-6)))
            at += 12 + length + 4
        assert at == len(content)
    return dict(found)


def written(folder, executor, plan=PLAN):
    """The board of a tournament whose watch writes event files into `folder`/events; the clock adds 20 s a look."""
    with closing(EventFiles(folder / "events")) as files:

        def watch(status):
            files(status, status.began + 20 * len(status.board.log))

        return play(Store(folder / f"run-{plan.seed}"), plan, executor, watch)


def test_every_trial_is_written(tmp_path):
    board = written(tmp_path, Invented(pods=1))
    read = scalars(tmp_path / "events" / "seed-4")
    trials = list(enumerate(board.log, start=1))
    assert read["score/trial"] == [(step, trial.score) for step, trial in trials]
    assert read["score/best"] == [(step, max(one.score for one in board.log[:step])) for step, _ in trials]
    assert read["validation/max_drawdown"] == [(step, trial.metrics["max_drawdown"]) for step, trial in trials]
    assert read["loss/policy_loss"] == [(step, -0.01 * (step - 1)) for step, _ in trials]
    done = sum(trial.steps - trial.start for trial in board.log)
    assert read["pace/steps_per_second"][-1] == (6, done / (20 * 6))


def test_a_run_that_goes_on_writes_what_is_new_and_each_tournament_has_a_folder(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path, Invented(pods=1, die_after=2))
    board = written(tmp_path, Invented(pods=1, failed=[3]))
    read = scalars(tmp_path / "events" / "seed-4")
    assert [step for step, _ in read["score/trial"]] == [1, 2, 3, 5, 6]  # a trial that failed has no score
    assert read["score/best"][-1][1] == max(trial.score for trial in board.log if not math.isnan(trial.score))
    written(tmp_path, Invented(), Plan(agents=1, rounds=1, seed=5))
    assert len(scalars(tmp_path / "events" / "seed-5")["score/trial"]) == 1


def test_a_disk_that_is_full_ends_the_files_and_not_the_tournament(tmp_path, monkeypatch):
    writer, said = EventFiles(tmp_path)._writer, []
    write = writer.write_event

    def full(self, event):
        if event.step == 3:
            raise OSError(28, "No space left on device")
        write(self, event)

    monkeypatch.setattr(writer, "write_event", full)
    with closing(EventFiles(tmp_path / "events", said.append)) as files:
        board = play(Store(tmp_path / "run"), PLAN, Invented(pods=1), files)
    assert len(board.log) == 6
    assert said == [f"cannot write {tmp_path}/events: No space left on device; continuing without event files"]
    assert len(scalars(tmp_path / "events" / "seed-4")["score/trial"]) == 2


def test_what_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    refused("file is not a folder", EventFiles, tmp_path / "file" / "events")
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    refused("pip install tensorboardX", EventFiles, tmp_path / "events")
    assert not (tmp_path / "events").exists()
