"""The log of a tournament: recovery after a crash, and recomputation of the tournament from it."""

import json
import zlib

import pytest
from made_errors import refused
from made_tournaments import UPDATE, Made, check_log, plan_of, play, records_of, shuffled

from finpod.errors import CheckpointError
from finpod.storage import Store
from finpod.tournament.log import NAME, TrialLog
from finpod.tournament.verify import verify_log
from finpod.workers.executor import Failed


@pytest.fixture(params=["folder", "url"])
def store(request, tmp_path):
    """A store here, and one whose files cannot be appended to."""
    return Store(tmp_path) if request.param == "folder" else Store(f"memory://{tmp_path.name}/{request.param}")


def written(store, count=4):
    log = TrialLog(store)
    for i in range(count):
        log.append("note", value=i, text="ä\n" * i, none=float("nan"))
    return store.read(NAME)


def values(store):
    return [record["value"] for record in records_of(store)]


def damage(store, content):
    """Put other content in the place of a log."""
    store.remove(NAME)
    store.write(NAME, content)


def line_of(record):
    """A line with a checksum that is right."""
    text = json.dumps(record, separators=(",", ":"), sort_keys=True)
    return f"{zlib.crc32(text.encode()):08x} {text}\n".encode()


def rewritten(store, change):
    """A log after `change` to the list of its records, with numbers and checksums that are right again."""
    records = records_of(store)
    change(records)
    damage(store, b"".join(line_of({**record, "n": n}) for n, record in enumerate(records)))


@pytest.fixture
def log(tmp_path):
    """The log of a whole asynchronous tournament with checkpoints inside its trials, a pod lost and an agent failed."""
    lost = []

    def fate(key, piece):
        if key.startswith("4/") and not lost:
            lost.append(key)
            return Failed(key, "its node died", False)
        return Failed(key, "it fails", True, ValueError("it fails")) if key[0] == "7" else None

    kept = Store(tmp_path / "log")
    play(kept, plan_of(mode="async", checkpoint_steps=UPDATE), shuffled(3, fate=fate))
    return kept


def refusal(store):
    return str(refused("", verify_log, f"{store.where}/{NAME}", error=CheckpointError))


def test_what_was_appended_is_read_back_in_order(store):
    assert TrialLog(store).count == 0
    assert written(store).count(b"\n") == 4
    records = records_of(store)
    held = [(one["n"], one["kind"], one["value"], one["text"]) for one in records]
    assert held == [(i, "note", i, "ä\n" * i) for i in range(4)]
    assert records[0]["none"] is None
    again = TrialLog(store)
    again.append("note", value=4)
    assert (again.count, values(store)) == (5, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_last_line_that_a_crash_cut_short_is_written_over(store, cut):
    content = written(store)
    if store.folder is not None:
        damage(store, content[:-cut])
    else:
        store.write(f"{NAME}.parts/000000003", b"half a li")
    log = TrialLog(Store(store.where))
    assert (log.torn, log.count) == (True, 3)
    assert store.read(NAME) != content  # reading changes nothing
    log.append("note", value="new")
    assert values(store) == [0, 1, 2, "new"]
    assert not TrialLog(store).torn


@pytest.mark.parametrize("hurt", [
    lambda lines: [*lines[:1], lines[1].replace(b"note", b"nite"), *lines[2:]],
    lambda lines: lines[:1] + lines[2:],  # a line that is missing
    lambda lines: [*lines[:1], b"\xff\xfe\n", *lines[2:]],
    lambda lines: [*lines[:1], line_of([1, 2]), *lines[2:]],
])  # fmt: skip
def test_damage_before_the_last_line_is_an_error_that_names_the_line(store, hurt):
    damage(store, b"".join(hurt(written(store).splitlines(keepends=True))))
    before = store.read(NAME)
    refused(f"line 2 of .*{NAME}", TrialLog, store, error=CheckpointError)
    assert store.read(NAME) == before


@pytest.mark.parametrize("record", [{"kind": "draw", "jobs": [{}]}, {"kind": "begin", "header": {"format": "other 9"}}])
def test_a_foreign_log_is_named(store, record):
    store.append(NAME, line_of({"n": 0, **record}))
    refused(f"line 1 of .*{NAME} is of another finpod version", TrialLog, store, error=CheckpointError)


def test_the_whole_of_a_tournament_follows_from_its_log(log):
    board = verify_log(f"{log.where}/{NAME}")
    kinds = {"begin", "draw", "checkpoint", "lost", "failed", "submit", "end"}
    assert {one["kind"] for one in records_of(log)} == kinds
    assert len(board.log) == 12
    check_log(log, board)


def position(records, kind, number=0):
    return [n for n, record in enumerate(records) if record["kind"] == kind][number]


def of_kind(records, kind, number=0):
    return records[position(records, kind, number)]


@pytest.mark.parametrize(("kind", "number", "change", "told"), [
    ("draw", 2, lambda one: one["jobs"][0]["settings"]["config"].update(gamma=0.9), "config.gamma of trial"),
    ("draw", 1, lambda one: one.update(seen=9), "9 trials had ended"),
    ("draw", 1, lambda one: one["jobs"].append({}), "copied of trial 2"),
    ("submit", 2, lambda one: one.update(steps=UPDATE), "its round ends at"),
    ("submit", 2, lambda one: one.update(score=99.0), "99.0"),
    ("submit", 2, lambda one: one.update(trial=-1), "trial -1"),
    ("checkpoint", 1, lambda one: one.update(steps=10**6), "1000000 steps"),
    ("end", 0, lambda one: one.update(trials=3), "3 trials"),
    ("end", 0, lambda one: one.update(kind="ended"), "'ended'"),
])  # fmt: skip
def test_the_first_line_that_does_not_follow_is_named(log, kind, number, change, told):
    line = position(records_of(log), kind, number)
    rewritten(log, lambda records: change(of_kind(records, kind, number)))
    fault = refusal(log)
    assert fault.startswith(f"line {line + 1} of {log.where}/{NAME} ")
    assert told in fault


def test_a_changed_score_is_found_in_what_was_drawn_after_it(log):
    """Checksums and metrics agree, and yet the draws that came of it do not follow."""

    def change(records):
        for number in (0, 1, 2, 3):
            one = of_kind(records, "submit", number)
            one["score"] = one["metrics"]["sharpe"] = -one["score"]

    rewritten(log, change)
    assert "does not follow from the lines before it" in refusal(log)


def test_what_comes_before_the_first_line_is_refused(log):
    rewritten(log, lambda records: records.pop(0))
    assert "line 1" in refusal(log)
    rewritten(log, lambda records: records.clear())
    assert verify_log(f"{log.where}/{NAME}").log == []


def test_a_round_that_begins_too_early_is_named(tmp_path):
    store = Store(tmp_path)
    play(store, plan_of(), Made())
    number = position(records_of(store), "draw", 1)

    def change(records):
        records[number - 1], records[number] = {**records[number], "seen": 3}, records[number - 1]

    rewritten(store, change)
    fault = refusal(store)
    assert fault.startswith(f"line {number} ")
    assert "starts round 2 before" in fault
    rewritten(store, lambda records: records[1]["jobs"].pop())
    assert "draws 3 trials for a round of 4" in refusal(store)


def test_no_log_is_an_input_error(tmp_path):
    for path in (tmp_path / "log-0.jsonl", "memory://nowhere/log-0.jsonl"):
        refused(r"log-0\.jsonl", verify_log, path)
