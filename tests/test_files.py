"""Files and folders that finpod writes and replaces, versions, JSON, stores, and locks of a run."""

import errno
import fcntl
import json
import os
import platform
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from made_errors import refused
from made_tournaments import names, wait_until

from finpod.errors import InputError
from finpod.files import locked, new_folder, require_free, require_free_file, to_json, versions, write_text
from finpod.storage import Store
from finpod.tournament import run_folder
from finpod.tournament.run_folder import lock, recorded_of


def make(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(name)
    return folder


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def left_alone(path, match, marker=None):
    """Both before the work and when the folder is to be made, in one line, and nothing changes."""
    before = everything(path.parent)
    refused(match, require_free, path, True, marker)
    with pytest.raises(InputError, match=match), new_folder(path, overwrite=True) as fresh:
        write_text(fresh / (marker or "result.json"), "new")
    assert everything(path.parent) == before


def test_an_output_of_finpod_is_replaced(tmp_path):
    target = make(tmp_path / "run", "result.json", "run.json", "returns.csv", "weights.parquet", "SHA256SUMS")
    (tmp_path / "empty").mkdir()
    for folder in (target, tmp_path / "empty"):
        require_free(folder, True, "result.json")
    (tmp_path / "empty").rmdir()
    with new_folder(target, overwrite=True) as fresh:
        write_text(fresh / "result.json", "new")
    assert everything(tmp_path) == ["run", "run/result.json"]
    assert (target / "result.json").read_text() == "new"


def test_what_is_not_finpods_is_left_alone(tmp_path):
    left_alone(make(tmp_path / "photos", "a.jpg"), r"photos is not .*'a.jpg'")
    left_alone(make(tmp_path / "first", "ensemble.json", "member-0.pt"), r"'ensemble.json'", "result.json")
    (tmp_path / "run").write_text("mine")
    left_alone(tmp_path / "run", "run is not a folder")
    assert (tmp_path / "run").read_text() == "mine"


@pytest.mark.parametrize("path", ["..", "sub/.."])
def test_the_current_folder_and_those_above_it_are_refused(tmp_path, monkeypatch, path):
    here = make(tmp_path / "here", "result.json")
    make(here / "sub")
    monkeypatch.chdir(here)
    with (
        pytest.raises(InputError, match="is the current folder or one above it"),
        new_folder(Path(path), overwrite=True),
    ):
        pytest.fail("got a folder")
    assert (here / "result.json").is_file()


def test_without_leave_nothing_is_replaced(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for target in (make(tmp_path / "run", "result.json"), tmp_path / "link"):
        refused("exists already", require_free, target, False)
    late = tmp_path / "late"
    with pytest.raises(InputError, match="exists already"), new_folder(late):
        make(late, "made during the work")
    assert everything(late) == ["made during the work"]


def test_a_link_to_an_output_is_replaced_and_its_target_kept(tmp_path):
    elsewhere = make(tmp_path / "elsewhere", "result.json")
    (tmp_path / "run").symlink_to(elsewhere)
    with new_folder(tmp_path / "run", overwrite=True) as fresh:
        write_text(fresh / "result.json", "new")
    assert (elsewhere / "result.json").read_text() == "result.json"
    assert (tmp_path / "run" / "result.json").read_text() == "new"


@pytest.mark.parametrize(("raised", "seen"), [(RuntimeError(), RuntimeError), (OSError(28, "No space"), InputError)])
def test_a_failure_leaves_no_folder(tmp_path, raised, seen):
    with pytest.raises(seen), new_folder(tmp_path / "run"):
        raise raised
    assert everything(tmp_path) == []


@pytest.mark.parametrize("name", ["/proc/finpod/deep/run", "x" * 300 + "/run", "file/run"])
def test_what_cannot_be_made_is_known_before_the_work(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    for require in (require_free, require_free_file):
        assert len(str(refused("cannot write", require, Path(name), False))) < 400
    assert everything(tmp_path) == ["file"]


def test_only_files_are_replaced_by_files(tmp_path):
    page = tmp_path / "page.html"
    require_free_file(page, False)
    page.write_text("old")
    refused("exists already", require_free_file, page, False)
    require_free_file(page, True)
    page.unlink()
    page.mkdir()
    refused(r"page\.html is a folder", require_free_file, page, True)
    refused("cannot write", write_text, page, "new")
    assert everything(tmp_path) == ["page.html"]


def test_one_process_alone_holds_an_exclusive_lock(tmp_path):
    for path in (tmp_path, tmp_path / "file"):
        with locked(path), pytest.raises(BlockingIOError), locked(path, wait=False):
            pass
        with locked(path, shared=True):
            with locked(path, shared=True, wait=False):
                pass
            with pytest.raises(BlockingIOError), locked(path, wait=False):
                pass


def test_what_json_cannot_hold_becomes_null_and_keys_are_sorted():
    text = to_json({"b": [np.nan, np.float64("inf"), 1.5], "a": (np.int64(3), True, None)})
    assert text.index('"a"') < text.index('"b"')
    assert json.loads(text) == {"a": [3, True, None], "b": [None, None, 1.5]}


def test_versions_of_packages_and_of_python():
    expected = {"numpy": np.__version__, "python": platform.python_version(), "no-such-package": "not installed"}
    assert versions(*expected) == expected


@pytest.fixture(params=["{}/place", "file://{}/place", "memory:/{}/place", "local://{}/place"])
def store(request, tmp_path):
    """A path, a file URL, an object store without appending, and a file system by fsspec."""
    return Store(request.param.format(tmp_path))


FULL = OSError(errno.ENOSPC, "No space left on device")
CALLS = ("open_output_stream", "open_input_stream", "get_file_info", "delete_dir")
"""The calls of a file system."""


def test_a_file_is_written_read_and_replaced(store):
    store.write("seed-0/agents/1.pt", b"first")
    store.write("seed-0/agents/1.pt", b"second\0")
    store.write("seed-0/agents/10.pt", b"")
    assert store.read("seed-0/agents/1.pt") == b"second\0"
    assert store.read("seed-0/agents/10.pt") == b""
    assert store.names("seed-0/agents") == ["seed-0/agents/1.pt", "seed-0/agents/10.pt"]
    assert store.names("seed-0") == store.names("seed-1") == store.names() == []


def test_lines_are_added_to_the_end_and_read_as_one_file(store):
    for i in range(12):
        store.append("seed-0/log.jsonl", b"line %d\n" % i)
    expected = b"".join(b"line %d\n" % i for i in range(12))
    assert store.read("seed-0/log.jsonl") == expected
    again = Store(store.where)
    again.append("seed-0/log.jsonl", b"more\n")
    assert again.read("seed-0/log.jsonl") == store.read("seed-0/log.jsonl") == expected + b"more\n"
    for name in ("seed-0/log.jsonl", "not there"):
        store.remove(name)
    with pytest.raises(FileNotFoundError):
        store.read("seed-0/log.jsonl")


def test_folders_are_listed_and_removed_with_what_is_in_them(store):
    for name in ("seed-1/log.jsonl", "seed-0/agents/3.pt", "seed-data/mine.txt", "other/seed-9", "top"):
        store.write(name, b"x")
    assert store.folders("seed-") == ["seed-0", "seed-1", "seed-data"]
    store.remove_folder("seed-0")
    assert store.folders("seed-") == ["seed-1", "seed-data"]
    with pytest.raises(FileNotFoundError):
        store.read("seed-0/agents/3.pt")
    store.write("seed-0/agents/4.pt", b"y")
    assert store.read("seed-0/agents/4.pt") == b"y"
    assert store.read("other/seed-9") == store.read("seed-data/mine.txt") == b"x"
    assert Store(f"{store.where}/nowhere").folders("seed-") == []


def test_a_file_url_is_the_folder_itself_and_unknown_urls_are_refused_in_one_line(tmp_path):
    Store(f"file://{tmp_path}/a%20b").write("x", b"1")
    assert (tmp_path / "a b" / "x").read_bytes() == b"1"
    assert (tmp_path / "a b" / "x") == Store(tmp_path / "a b").folder / "x"
    for url in ("file://runs/one", "nosuch://bucket/run", f"{tmp_path}/a b/x"):
        refused(f"{url}[^\n]*$", Store, url)


def test_a_full_disk_is_an_error_that_names_the_file_and_changes_nothing(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.write("agents/1.pt", b"old")
    store.append("log", b"line\n")
    monkeypatch.setattr("os.fsync", Mock(side_effect=FULL))
    monkeypatch.setattr(Path, "replace", Mock(side_effect=FULL))
    refused(r"agents/1\.pt: No space left on device", store.write, "agents/1.pt", b"new")
    refused(r"log: No space left on device; correct this and try again", store.append, "log", b"another\n")
    monkeypatch.undo()
    assert store.read("agents/1.pt") == b"old"
    assert store.read("log") == b"line\n"
    assert store.names("agents") == ["agents/1.pt"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["1.pt", "agents", "log"]


def test_a_url_that_cannot_be_written_or_read_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    store = Store(f"memory://{tmp_path.name}")
    store.append("log", b"line\n")
    monkeypatch.setattr(store, "system", Mock(**{f"{name}.side_effect": FULL for name in CALLS}))
    calls = [(store.write, "a", b"x"), (store.append, "log", b"x"), (store.names,), (store.folders, "seed-"),
             (store.read, "log"), (store.remove_folder, "seed-0")]  # fmt: skip
    for call, *arguments in calls:
        refused(r"memory://.*No space left", call, *arguments)
    monkeypatch.undo()
    store.append("log", b"more\n")
    assert store.read("log") == b"line\nmore\n"  # what failed left no gap


def refusal(place):
    with pytest.raises(InputError) as raised, lock(place):
        pass
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("with_locks", [True, False])
def test_a_folder_is_for_one_driver_and_its_mark_is_gone_with_it(tmp_path, monkeypatch, with_locks):
    def without(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    if not with_locks:
        monkeypatch.setattr(fcntl, "flock", without)
    place = Store(tmp_path / "run")
    with lock(place):
        assert f"process {os.getpid()} on" in refusal(place)
        assert (tmp_path / "run" / "lock").exists()  # the first driver's mark outlives the refusal
    assert names(tmp_path) == []
    with lock(place):
        place.write("notes.txt", b"")
    assert names(tmp_path / "run") == ["notes.txt"]


def test_a_url_is_for_one_driver_whose_mark_is_renewed_and_may_be_stale(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "LEASE", 1.0)
    place = Store(f"memory://{tmp_path.name}")
    with lock(place):
        first = place.read("lock")
        wait_until(lambda: place.read("lock") != first, 10)
        time.sleep(1.1)  # longer than a mark counts, were it not renewed
        assert f"process {os.getpid()} on" in refusal(place)
    assert place.names() == []
    place.write("lock", f"process 1 on another-machine|{time.time() - 2}".encode())
    with lock(place):
        assert place.read("lock").decode().startswith(f"process {os.getpid()} on ")


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot write" in refusal(Store(tmp_path / "file" / "run"))


def test_g18_a_log_without_a_header_records_nothing(tmp_path):
    place = Store(tmp_path / "tiny.unfinished")
    for text in (b"", b'1a2b3c4d {"n":0,"kind":"beg'):
        place.write("seed-0/log.jsonl", text)
        assert recorded_of(str(tmp_path / "tiny"), None) == (str(tmp_path / "tiny.unfinished"), None)
