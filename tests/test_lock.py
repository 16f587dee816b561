"""The place of an unfinished run is for one driver at a time."""

import errno
import os
import time

import pytest
from made_tournaments import names, wait_until

from finpod.errors import InputError
from finpod.storage import Store
from finpod.tournament import run_folder
from finpod.tournament.run_folder import lock, recorded_of


def refusal(place):
    with pytest.raises(InputError) as raised, lock(place):
        pass
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("with_locks", [True, False])
def test_a_folder_is_for_one_driver_and_its_mark_is_gone_with_it(tmp_path, monkeypatch, with_locks):
    import fcntl

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
