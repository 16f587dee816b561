"""The log of a tournament: what a crash may do to it, and that all of a tournament follows from it."""

import json
import zlib

import numpy as np
import pytest
from made_tournaments import UPDATE, Made, check_log, lines, plan_of, play, records_of

from finpod.errors import CheckpointError, FinpodError, InputError
from finpod.storage import Store
from finpod.tournament.log import NAME, TrialLog, parse_log
from finpod.tournament.replay import verify_log
from finpod.tournament.setup import Stop
from finpod.workers.executor import Failed


@pytest.fixture(params=["folder", "url"])
def store(request, tmp_path):
    """A store here, and one whose files cannot be appended to."""
    return Store(tmp_path) if request.param == "folder" else Store(f"memory://{tmp_path.name}/{request.param}")


def written(store, count=4):
    journal = TrialLog(store)
    for i in range(count):
        journal.append("note", value=i, text="ä\n" * i, none=float("nan"))
    return store.read(NAME)


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
    """The log of a whole asynchronous tournament with checkpoints inside its trials and a pod that was lost."""
    lost = []

    def fate(key, piece):
        if key.startswith("4/") and not lost:
            lost.append(key)
            return Failed(key, "its node died", False)
        return None

    kept = Store(tmp_path / "log")
    random = np.random.default_rng(0)
    plan = plan_of(mode="async", checkpoint_steps=UPDATE)
    play(kept, plan, Made(3, lambda running: int(random.integers(running)), fate))
    return kept


def refusal(store):
    with pytest.raises(CheckpointError) as raised:
        verify_log(f"{store.where}/{NAME}")
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_was_appended_is_read_back_in_order(store):
    content = written(store)
    assert content.count(b"\n") == 4
    records = TrialLog(store).records
    assert [(record["n"], record["kind"], record["value"]) for record in records] == [(i, "note", i) for i in range(4)]
    assert [record["text"] for record in records] == ["ä\n" * i for i in range(4)]
    assert records[0]["none"] is None
    assert TrialLog(store).of("other") == []
    again = TrialLog(store)
    again.append("note", value=4)
    assert [record["n"] for record in TrialLog(store).records] == [0, 1, 2, 3, 4]


def test_a_log_that_is_not_there_is_empty(store):
    assert TrialLog(store).records == []
    store.write(NAME, b"")
    assert TrialLog(store).count == 0


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_last_line_that_a_crash_cut_short_is_dropped_with_a_remark(tmp_path, cut):
    store, said = Store(tmp_path), []
    content = written(store)
    damage(store, content[:-cut])
    journal = TrialLog(store, said.append)
    assert [record["value"] for record in journal.records] == [0, 1, 2]
    assert said == [f"the last line of {tmp_path}/{NAME} was cut short by a crash and is dropped"]
    journal.append("note", value="new")
    assert [record["value"] for record in TrialLog(store, said.append).records] == [0, 1, 2, "new"]
    assert len(said) == 1


def test_a_damaged_last_part_at_a_url_is_dropped(tmp_path):
    store, said = Store(f"memory://{tmp_path.name}"), []
    written(store)
    store.write(f"{NAME}.parts/000000003", b"half a li")
    assert len(TrialLog(store, said.append).records) == 3
    assert len(said) == 1
    again = TrialLog(Store(f"memory://{tmp_path.name}"), said.append)
    again.append("note", value="new")
    assert [record["value"] for record in TrialLog(store).records] == [0, 1, 2, "new"]


@pytest.mark.parametrize(
    "hurt",
    [
        lambda lines: [*lines[:1], lines[1].replace(b"note", b"nite"), *lines[2:]],
        lambda lines: lines[:1] + lines[2:],  # a line that is missing
        lambda lines: [lines[0], lines[2], lines[1], lines[3]],
        lambda lines: [*lines[:1], b"\xff\xfe\n", *lines[2:]],
        lambda lines: [*lines[:1], b"\n", *lines[2:]],
        lambda lines: [*lines[:1], line_of({"kind": "note"}), *lines[2:]],
        lambda lines: [*lines[:1], line_of([1, 2]), *lines[2:]],
    ],
)
def test_damage_before_the_last_line_is_an_error_that_names_the_line(store, hurt):
    content = written(store)
    damage(store, b"".join(hurt(content.splitlines(keepends=True))))
    before = store.read(NAME)
    with pytest.raises(CheckpointError, match=f"line 2 of .*{NAME} is damaged, and there are lines after it"):
        TrialLog(store)
    assert store.read(NAME) == before


def test_what_is_sound_of_a_log():
    first, second = line_of({"n": 0, "kind": "a"}), line_of({"n": 1, "kind": "b"})
    assert parse_log(first + second, "x") == ([{"n": 0, "kind": "a"}, {"n": 1, "kind": "b"}], len(first + second))
    assert parse_log(first + second[:-1], "x") == ([{"n": 0, "kind": "a"}], len(first))
    assert parse_log(b"", "x") == ([], 0)


def test_a_full_disk_is_told_and_leaves_no_half_line(tmp_path, monkeypatch):
    store = Store(tmp_path)
    content = written(store)
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(InputError, match="No space left on device; free some space and resume"):
        TrialLog(store).append("note", value=4)
    monkeypatch.undo()
    assert store.read(NAME) == content
    assert TrialLog(store).count == 4


def test_the_whole_of_a_tournament_follows_from_its_log(log):
    from finpod.tournament.scheduler import Scheduler

    board = verify_log(f"{log.where}/{NAME}")
    kinds = {record["kind"] for record in records_of(log)}
    assert kinds == {"begin", "draw", "checkpoint", "lost", "submit", "end"}
    assert len(board.log) == 12
    check_log(log, board)
    with pytest.raises(FinpodError, match="holds no agents"):
        _ = board.log[0].checkpoint
    assert Scheduler


@pytest.mark.parametrize("mode", ["rounds", "async"])
@pytest.mark.parametrize("slots", [1, 5])
def test_a_log_replays_to_the_board_it_was_written_by(store, mode, slots):
    random = np.random.default_rng(slots)
    engine = Made(slots, lambda running: int(random.integers(running)))
    board = play(store, plan_of(mode=mode, agents=5, stop=Stop(trials=13)), engine)
    assert len(board.log) == 13
    check_log(store, board, whole=mode == "async")  # a round is drawn as a whole


def test_a_log_that_is_still_being_written_is_verified_as_far_as_it_goes(log):
    lines_of_log = log.read(NAME).splitlines(keepends=True)
    whole = lines(verify_log(f"{log.where}/{NAME}"))
    for count in (1, 2, 9, len(lines_of_log) - 1):
        damage(log, b"".join(lines_of_log[:count]) + lines_of_log[count][:7])
        part = lines(verify_log(f"{log.where}/{NAME}"))
        assert part == [line for line in whole if line in part]
        assert len(part) == sum(b'"kind":"submit"' in line for line in lines_of_log[:count])
    assert log.read(NAME).endswith(lines_of_log[-1][:7])  # reading changes nothing


def of_kind(records, kind, number=0):
    return [record for record in records if record["kind"] == kind][number]


def position(records, kind, number=0):
    return [n for n, record in enumerate(records) if record["kind"] == kind][number]


@pytest.mark.parametrize(
    ("change", "line", "told"),
    [
        (
            lambda r: of_kind(r, "draw", 2)["jobs"][0]["settings"]["config"].update(gamma=0.9),
            ("draw", 2),
            "config.gamma 0.9",
        ),
        (lambda r: of_kind(r, "draw", 3)["jobs"][0]["settings"].update(seed=1), ("draw", 3), "settings.seed 1 where"),
        (lambda r: of_kind(r, "draw", 5)["jobs"][0].update(source=-5), ("draw", 5), "source -5 where"),
        (
            lambda r: of_kind(r, "draw", 1).update(seen=0) or of_kind(r, "draw", 1).update(seen=9),
            ("draw", 1),
            "after 9 trials",
        ),
        (lambda r: of_kind(r, "draw", 1)["jobs"].append({}), ("draw", 1), "does not follow"),
        (lambda r: of_kind(r, "submit", 2).update(steps=UPDATE), ("submit", 2), "its level ends at"),
        (lambda r: of_kind(r, "submit", 2).update(score=99.0), ("submit", 2), "its metrics say otherwise"),
        (lambda r: of_kind(r, "submit", 2).update(trial=11), ("submit", 2), "which was never drawn"),
        (lambda r: of_kind(r, "submit", 2).update(trial=-1), ("submit", 2), "which was never drawn"),
        (
            lambda r: of_kind(r, "submit", 1).update(trial=of_kind(r, "submit")["trial"]),
            ("submit", 1),
            "had ended before",
        ),
        (lambda r: of_kind(r, "checkpoint", 1).update(steps=10**6), ("checkpoint", 1), "not inside its level"),
        (lambda r: of_kind(r, "end").update(trials=3), ("end", 0), "says that 3 trials had ended"),
        (lambda r: of_kind(r, "end").update(kind="ended"), ("end", 0), "a kind that this version"),
        (lambda r: of_kind(r, "submit").pop("returns"), ("submit", 0), "not of this version of finpod: KeyError"),
    ],
)
def test_the_first_line_that_does_not_follow_is_named(log, change, line, told):
    number = position(records_of(log), *line)
    rewritten(log, change)
    found = refusal(log)
    assert found.startswith(f"line {number + 1} of {log.where}/{NAME} ")
    assert told in found


def test_a_changed_score_is_found_in_what_was_drawn_after_it(log):
    """Checksums and metrics agree, and yet the draws that came of it do not follow."""

    def change(records):
        for number in (0, 1, 2, 3):
            found = of_kind(records, "submit", number)
            found["score"] = found["metrics"]["sharpe"] = -found["score"]

    rewritten(log, change)
    assert "does not follow from those before it" in refusal(log)


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
    found = refusal(store)
    assert found.startswith(f"line {number} ")
    assert "begins round 2 before" in found
    rewritten(store, lambda records: records[1]["jobs"].pop())
    assert "draws 3 agents for a round of 4" in refusal(store)


def test_d05_failed_trials_replay_as_such(tmp_path):
    def fate(key, piece):
        return Failed(key, "it fails", True, ValueError("it fails")) if key[0] in "25" else None

    store = Store(tmp_path)
    board = play(store, plan_of(mode="async"), Made(2, fate=fate))
    assert {entry.trial for entry in board.log if entry.stored is None} >= {2, 5}
    check_log(store, board)


def test_no_log_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="there is no log at"):
        verify_log(tmp_path / "log-0.jsonl")
    with pytest.raises(InputError, match="there is no log at"):
        verify_log("memory://nowhere/log-0.jsonl")
