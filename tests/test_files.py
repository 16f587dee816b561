"""Files and folders that finpod writes and replaces, locks, versions, and JSON."""

import json
import platform
from pathlib import Path

import numpy as np
import pytest

from finpod.errors import InputError
from finpod.files import locked, new_folder, require_free, require_free_file, to_json, versions, write_text


def make(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(name)
    return folder


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refused(path, match, marker=None):
    """Both before the work and when the folder is to be made, in one line, and nothing changes."""
    before = everything(path.parent)
    with pytest.raises(InputError, match=match) as raised:
        require_free(path, True, marker)
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match=match), new_folder(path, overwrite=True) as fresh:
        write_text(fresh / (marker or "result.json"), "new")
    assert everything(path.parent) == before


def test_an_output_of_finpod_is_replaced(tmp_path):
    target = make(tmp_path / "run", "result.json", "run.json", "returns.csv", "weights.parquet", "SHA256SUMS")
    require_free(target, True, "result.json")
    with new_folder(target, overwrite=True) as fresh:
        write_text(fresh / "result.json", "new")
    assert everything(tmp_path) == ["run", "run/result.json"]
    assert (target / "result.json").read_text() == "new"


def test_what_is_not_finpods_is_left_alone(tmp_path):
    refused(make(tmp_path / "photos", "a.jpg"), r"photos is not .*'a.jpg'")
    refused(make(tmp_path / "first", "ensemble.json", "member-0.pt"), r"'ensemble.json'", "result.json")
    (tmp_path / "run").write_text("mine")
    refused(tmp_path / "run", "run is not a folder")
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
        with pytest.raises(InputError, match="exists already"):
            require_free(target, False)
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


@pytest.mark.parametrize(
    ("raised", "seen"), [(RuntimeError(), RuntimeError), (OSError(28, "No space left"), InputError)]
)
def test_a_failure_leaves_no_folder(tmp_path, raised, seen):
    with pytest.raises(seen), new_folder(tmp_path / "run"):
        raise raised
    assert everything(tmp_path) == []


@pytest.mark.parametrize("name", ["/proc/finpod/deep/run", "x" * 300 + "/run", "file/run"])
def test_what_cannot_be_made_is_known_before_the_work(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    for require in (require_free, require_free_file):
        with pytest.raises(InputError, match="cannot write") as raised:
            require(Path(name), False)
        assert len(str(raised.value)) < 400
    assert everything(tmp_path) == ["file"]


def test_only_files_are_replaced_by_files(tmp_path):
    page = tmp_path / "page.html"
    require_free_file(page, False)
    page.write_text("old")
    with pytest.raises(InputError, match="exists already"):
        require_free_file(page, False)
    require_free_file(page, True)
    page.unlink()
    page.mkdir()
    with pytest.raises(InputError, match=r"page\.html is a folder"):
        require_free_file(page, True)
    with pytest.raises(InputError, match="cannot write"):
        write_text(page, "new")
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
