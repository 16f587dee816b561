"""Stores: whole files in a folder or at a URL, and appended lines."""

import errno
from pathlib import Path
from unittest.mock import Mock

import pytest

from finpod.errors import InputError
from finpod.storage import Store


@pytest.fixture(params=["{}/place", "file://{}/place", "memory:/{}/place", "local://{}/place"])
def store(request, tmp_path):
    """A path, a file URL, an object store without appending, and a file system by fsspec."""
    return Store(request.param.format(tmp_path))


FULL = OSError(errno.ENOSPC, "No space left on device")
CALLS = ("create_dir", "open_output_stream", "open_input_stream", "get_file_info", "delete_dir")
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
    for url in ("file://runs/one", "nosuch://bucket/run"):
        with pytest.raises(InputError, match=f"{url}[^\n]*$"):
            Store(url)


def test_a_full_disk_is_an_error_that_names_the_file_and_changes_nothing(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.write("agents/1.pt", b"old")
    store.append("log", b"line\n")
    monkeypatch.setattr("os.fsync", Mock(side_effect=FULL))
    monkeypatch.setattr(Path, "replace", Mock(side_effect=FULL))
    with pytest.raises(InputError, match=r"agents/1\.pt: No space left on device"):
        store.write("agents/1.pt", b"new")
    with pytest.raises(InputError, match=r"log: No space left on device; free some space and resume"):
        store.append("log", b"another\n")
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
        with pytest.raises(InputError, match=r"memory://.*No space left"):
            call(*arguments)
    monkeypatch.undo()
    store.append("log", b"more\n")
    assert store.read("log") == b"line\nmore\n"  # what failed left no gap
