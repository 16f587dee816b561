"""What a strategy reads besides its view must be seen, and what Python and packages do for themselves must not."""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from finpod.loading import load_strategy
from finpod.lookahead.watching import Watch, homes_of, whose
from finpod.rules import Momentum


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with the same two numbers in many formats."""
    folder = tmp_path_factory.mktemp("files")
    frame = pd.DataFrame({"close": [1.0, 2.0]})
    frame.to_csv(folder / "x.csv")
    frame.to_parquet(folder / "x.parquet")
    np.save(folder / "x.npy", frame.to_numpy())
    torch.save(torch.ones(2), folder / "x.pt")
    (folder / "link").symlink_to(folder / "x.csv")
    return folder


def seen(act):
    """What was seen of one function, without the places."""
    with Watch() as watch:
        act()
    return [sight.what for sight in watch.sights]


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("x.csv", lambda path: path.read_text()),
        ("x.csv", lambda path: open(path).close()),  # noqa: PTH123
        ("x.csv", lambda path: os.close(os.open(path, os.O_RDONLY))),
        ("x.csv", pd.read_csv),
        ("x.npy", np.load),
        ("x.npy", lambda path: np.memmap(path, mode="r")),
        ("x.npy", np.fromfile),
        ("x.pt", torch.load),
        ("x.db", lambda path: sqlite3.connect(path).close()),
    ],
)
def test_a_file_that_is_read_is_named(files, name, read):
    assert seen(lambda: read(files / name)) == [f"reads the file {files / name}"]


def test_files_that_native_code_reads_are_seen_where_they_are_handed_over(files):
    import pyarrow.parquet

    for read in (pd.read_parquet, pyarrow.parquet.read_table):
        assert seen(lambda read=read: read(files / "x.parquet"))[-1] == "reads a file (pyarrow.parquet.read_table)"
    assert "reads a file (pyarrow.parquet.ParquetFile)" in seen(
        lambda: pyarrow.parquet.ParquetFile(files / "x.parquet")
    )


def test_native_readers_that_python_does_not_tell_of_go_by_their_names(files):
    import pyarrow.csv
    import pyarrow.csv as aliased
    from pyarrow import memory_map
    from pyarrow.csv import open_csv

    def imports_inside():
        import pyarrow.csv as inside

        inside.read_csv(files / "x.csv")

    assert seen(imports_inside)[-1:] == ["reads a file (pyarrow.csv.read_csv)"]
    assert seen(lambda: pyarrow.csv.read_csv(files / "x.csv"))[-1:] == ["reads a file (pyarrow.csv.read_csv)"]
    assert seen(lambda: aliased.read_csv(files / "x.csv"))[-1:] == ["reads a file (pyarrow.csv.read_csv)"]
    assert seen(lambda: open_csv(files / "x.csv"))[-1:] == ["reads a file (pyarrow.csv.open_csv)"]
    assert seen(lambda: memory_map(str(files / "x.npy")).close())[-1:] == ["reads a file (pyarrow.memory_map)"]
    assert seen(lambda: pyarrow.csv.ReadOptions()) == []


def test_readers_of_polars_are_seen():
    """A stand-in: polars is no dependency."""
    code = "\n".join(f"def {name}(given):\n    return given" for name in ("read_csv", "scan_csv", "col"))
    names = {"__name__": "polars.io.csv.functions"}
    exec(compile(code, "/x/site-packages/polars/io/csv/functions.py", "exec"), names)
    assert seen(lambda: names["read_csv"]("x.csv")) == ["reads a file (polars.read_csv)"]
    assert seen(lambda: names["scan_csv"]("x.csv")) == ["reads a file (polars.scan_csv)"]
    assert seen(lambda: names["col"]("x")) == []


def test_folders_that_are_listed_are_named(files):
    assert seen(lambda: list(files.iterdir())) == [f"lists the folder {files}"]
    assert seen(lambda: list(files.glob("*.csv"))) == [f"lists the folder {files}"]


@pytest.mark.parametrize(
    "ask",
    [
        os.path.exists,
        os.path.isfile,
        os.path.getmtime,
        os.path.getsize,
        lambda path: path.exists(),
        lambda path: path.is_file(),
        lambda path: path.stat(),
        lambda path: path.lstat(),
    ],
)
def test_a_file_that_is_asked_for_is_named(files, ask):
    assert seen(lambda: ask(files / "x.csv")) == [f"asks for the file {files / 'x.csv'}"]


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("stat", lambda path: os.stat(path)),  # noqa: PTH116
        ("lstat", lambda path: os.lstat(path)),
        ("access", lambda path: os.access(path, os.R_OK)),
        ("readlink", lambda path: os.readlink(path.with_name("link"))),  # noqa: PTH115
    ],
)
def test_the_system_that_is_asked_for_a_file_is_named(files, name, ask):
    assert seen(lambda: ask(files / "x.csv")) == [f"asks for a file (os.{name})"]


def test_a_link_that_is_read_is_named(files):
    assert seen(lambda: (files / "link").readlink()) == [f"asks for the file {files / 'link'}"]
    assert seen(lambda: (files / "link").resolve()) == []


@pytest.mark.parametrize("ask", [os.path.exists, os.path.isdir, os.path.isfile, Path.exists, Path.is_dir])
@pytest.mark.parametrize("name", [".", "none", "n" * 999])
def test_a_folder_for_output_is_not_asked_for(files, ask, name):
    def act():
        try:
            ask(files / name)
        except OSError:
            assert len(name) == 999  # pathlib's own answer to a name that is too long

    assert seen(act) == []


def test_how_old_a_folder_is_is_named(files):
    assert seen(lambda: os.path.getmtime(files)) == [f"asks for the file {files}"]  # noqa: PTH204


def test_what_packages_and_the_library_ask_for_is_left_alone(files):
    def innocent():
        import linecache
        import tempfile

        linecache.checkcache()
        tempfile.gettempdir()
        Path(__file__).resolve(), os.path.join(files, "x.csv")  # noqa: PTH118
        os.path.exists("/proc/cpuinfo"), Path(np.__file__).exists()  # noqa: PTH110
        (files / "made" / "here").mkdir(parents=True, exist_ok=True)
        torch.zeros(3).sum(), pd.DataFrame({"a": [1.0]}).describe()

    assert seen(innocent) == []


@pytest.mark.parametrize(
    ("what", "read"),
    [
        (" variable MINE", lambda: os.environ["MINE"]),
        (" variable MINE", lambda: os.environ.get("MINE")),
        (" variable MINE", lambda: os.getenv("MINE")),
        (" variable MINE", lambda: "MINE" in os.environ),
        (" variable MINE", lambda: os.environ.setdefault("MINE", "1")),
        (" variable MINE", lambda: os.path.expandvars("$MINE/x.csv")),
        ("", lambda: list(os.environ)),
    ],
)
def test_the_environment_is_seen(monkeypatch, what, read):
    monkeypatch.setenv("MINE", "prices")
    assert seen(read)[0] == f"reads the environment{what}"


@pytest.mark.parametrize(
    "read",
    [
        lambda: os.environ.copy(),
        lambda: dict(os.environ),
        lambda: list(os.environ.items()),
        lambda: {name: os.environ[name] for name in os.environ},
    ],
)
def test_the_whole_environment_is_one_sight_without_names(read):
    assert seen(read) == ["reads the environment"]


def test_a_loop_over_the_environment_is_one_sight():
    def loop():
        for name in os.environ:
            value = os.environ[name]
        return value

    assert seen(loop) == ["reads the environment"]


def test_a_variable_that_is_set_is_not_read(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def sets():
        os.environ.setdefault("OMP_NUM_THREADS", "2")
        os.environ["OMP_NUM_THREADS"] = "1"
        os.environ.update(OMP_NUM_THREADS="1")

    assert seen(sets) == []


def test_the_environment_of_packages_and_the_library_is_their_own_business():
    assert seen(lambda: (Path.home(), os.path.expanduser("~"), {"__getitem__": 1}["__getitem__"])) == []  # noqa: PTH111


def test_a_file_that_is_written_tells_nothing(tmp_path):
    def log():
        (tmp_path / "log.txt").write_text("one")
        with (tmp_path / "log.txt").open("a") as file:
            file.write("two")

    assert seen(log) == []
    assert seen(lambda: (tmp_path / "log.txt").open("r+").close()) == [f"reads the file {tmp_path / 'log.txt'}"]


def test_a_file_that_is_new_tells_nothing(tmp_path):
    def made():
        tempfile.NamedTemporaryFile("w").close()
        tempfile.NamedTemporaryFile("r+").close()
        tempfile.TemporaryFile().close()
        (tmp_path / "new.txt").open("x+").close()

    assert seen(made) == []


def test_a_folder_that_is_removed_is_not_read(tmp_path):
    def made():
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "inner").mkdir()
            Path(folder, "inner", "x.csv").write_text("1")
        (tmp_path / "gone").mkdir()
        shutil.rmtree(tmp_path / "gone")

    assert seen(made) == []


def test_a_file_that_is_copied_is_read(files, tmp_path):
    assert f"reads the file {files / 'x.csv'}" in seen(lambda: shutil.copy(files / "x.csv", tmp_path))


def test_a_database_in_memory_is_no_file():
    def connect():
        for name in (":memory:", ""):
            sqlite3.connect(name).close()
        sqlite3.connect("file::memory:?cache=shared", uri=True).close()

    assert seen(connect) == []


def test_of_what_ships_with_a_package_only_prices_are_seen(tmp_path):
    folder = tmp_path / "site-packages" / "package"
    folder.mkdir(parents=True)
    for name in ("prices.csv", "settings.toml"):
        (folder / name).write_text("")
    assert seen(lambda: (folder / "prices.csv").read_text()) == [f"reads the file {folder / 'prices.csv'}"]
    assert seen(lambda: (folder / "settings.toml").read_text()) == []


def test_importing_reads_no_file(tmp_path, monkeypatch):
    (tmp_path / "lazily_imported.py").write_text("import xml.dom.minidom\nVALUE = 1\n")
    (tmp_path / "reads_while_imported.py").write_text(
        "import pathlib\nTEXT = pathlib.Path(__file__ + '.txt').read_text()\n"
    )
    (tmp_path / "reads_while_imported.py.txt").write_text("prices")
    monkeypatch.syspath_prepend(tmp_path)

    def lazy():
        import wave

        import lazily_imported

        return lazily_imported.VALUE, wave

    def reads():
        import reads_while_imported  # noqa: F401

    assert seen(lazy) == []
    assert seen(reads) == [f"reads the file {tmp_path / 'reads_while_imported.py.txt'}"]


def test_what_python_and_the_system_keep_is_left_alone():
    def innocent():
        import traceback

        try:
            raise ValueError("shown with the line of this file")
        except ValueError:
            traceback.format_exc()
        pd.Timestamp("2020-01-02", tz="America/New_York")
        Path(os.devnull).read_text()
        Path("/proc/cpuinfo").exists() and Path("/proc/cpuinfo").read_text()

    assert seen(innocent) == []


# --- processes and the network --------------------------------------------------------------------------------------


def test_processes_are_seen():
    assert seen(lambda: subprocess.run([sys.executable, "-c", ""], check=True)) == ["starts a process"]
    assert seen(lambda: os.system("true")) == ["starts a process"]


def test_the_network_is_seen():
    def connect():
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", 9), timeout=1)

    def ask():
        from urllib.request import urlopen

        with pytest.raises(OSError):
            urlopen("http://127.0.0.1:9/prices", timeout=1)

    assert seen(connect) == seen(ask) == ["reaches for the network"]


# --- the clock ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clock", "read"),
    [
        ("time.time", lambda: time.time()),
        ("time.time_ns", lambda: time.time_ns()),
        ("datetime.now", lambda: datetime.now()),
        ("datetime.now", lambda: datetime.now(UTC)),
        ("datetime.today", lambda: datetime.today()),
        ("date.today", lambda: date.today()),
        ("time.localtime", lambda: time.localtime()),
        ("time.strftime", lambda: time.strftime("%Y")),
        ("Timestamp.now", lambda: pd.Timestamp.now()),
        ("Timestamp('today')", lambda: pd.Timestamp("today")),
        ("to_datetime('now')", lambda: pd.to_datetime("now", utc=True)),
        ("datetime64('now')", lambda: np.datetime64("now")),
    ],
)
def test_a_clock_that_is_read_is_named(clock, read):
    assert seen(read) == [f"reads the clock ({clock})"]


NOW, MOMENT, MODULE, WHEN, DAY = pd.Timestamp.now, pd.Timestamp, pd, pd.to_datetime, np.datetime64


def imports_a_clock():
    from pandas import Timestamp as Inside

    return Inside.today()


@pytest.mark.parametrize(
    ("clock", "read"),
    [
        ("Timestamp.now", lambda: NOW()),
        ("Timestamp.utcnow", lambda: MOMENT.utcnow()),
        ("Timestamp.now", lambda: MODULE.Timestamp.now()),
        ("Timestamp('today')", lambda: MOMENT("today")),
        ("to_datetime('now')", lambda: WHEN("now", utc=True)),
        ("datetime64('now')", lambda: DAY("now")),
        ("Timestamp.today", imports_a_clock),
    ],
)
@pytest.mark.filterwarnings("ignore:Timestamp.utcnow:FutureWarning", "ignore:.*utcnow is deprecated")
def test_a_clock_by_another_name_is_named(clock, read):
    assert set(seen(read)) == {f"reads the clock ({clock})"}


def test_a_class_of_times_that_is_only_used_is_no_clock():
    def innocent():
        return MOMENT("2020-01-02"), MOMENT.fromisoformat("2020-01-02"), WHEN("2020-01-02"), DAY("2020-01-02")

    assert seen(innocent) == []


def test_what_only_converts_or_measures_time_reads_no_clock():
    class Today:
        now = "2020-01-02"

    def innocent():
        moment = time.gmtime(0)
        time.strftime("%Y", moment), time.localtime(0), time.perf_counter(), time.monotonic()
        pd.Timestamp(Today.now), np.datetime64("2020-01-02"), date(2020, 1, 2), datetime.fromtimestamp(0)

    assert seen(innocent) == []


def test_the_clock_of_a_package_is_its_own_business():
    import logging

    assert seen(lambda: logging.getLogger("finpod.test").debug("x") or logging.makeLogRecord({})) == []
    assert seen(lambda: pd.Series([1.0, 2.0]).rolling(2).mean()) == []


# --- the watch itself -----------------------------------------------------------------------------------------------


def test_a_sight_says_where(files):
    class Reader:
        def decide(self):
            (files / "x.csv").read_text()

    with Watch() as watch:
        Reader().decide()
        Reader().decide()
    line = Reader.decide.__code__.co_firstlineno + 1
    assert [sight.where for sight in watch.sights] == [f"Reader.decide (test_watching.py, line {line})"]


def test_a_place_that_reads_many_files_is_one_sight(tmp_path):
    names = [tmp_path / f"{i}.csv" for i in range(9)]
    for name in names:
        name.write_text("1")

    def loop():
        for name in names:
            name.stat(), name.read_text()
        names[1].read_text(), names[2].read_text()

    assert seen(loop) == [
        f"asks for the file {names[0]}",
        f"reads the file {names[0]}",
        f"reads the file {names[1]}",
    ]


def test_it_sees_nothing_before_and_after(files):
    def read():
        (files / "x.csv").read_text(), time.time()

    watch = Watch()
    read()
    with watch:
        pass
    read()
    assert watch.sights == []


def test_an_earlier_profile_function_comes_back_even_after_an_error():
    def earlier(frame, event, arg):
        return None

    before = sys.getprofile()
    sys.setprofile(earlier)
    try:
        with pytest.raises(ZeroDivisionError), Watch():
            1 / 0  # noqa: B018
        assert sys.getprofile() is earlier
    finally:
        sys.setprofile(before)


def test_watches_nest(files):
    with Watch() as outer:
        with Watch() as inner:
            (lambda: time.time())()
        (lambda: (files / "x.csv").read_text())()
    assert [sight.what for sight in inner.sights] == ["reads the clock (time.time)"]
    assert [sight.what for sight in outer.sights] == [f"reads the file {files / 'x.csv'}"]


def test_other_threads_are_not_watched(files):
    def other():
        thread = threading.Thread(target=(files / "x.csv").read_text)
        thread.start()
        thread.join()

    assert seen(other) == []


def test_code_has_an_owner():
    import json

    assert whose(__file__) == whose("<stdin>") == whose("strategies/momentum.py") == "user"
    assert whose(json.__file__) == whose("<frozen os>") == "library"
    assert whose(np.__file__) == whose(homes_of.__code__.co_filename) == "package"
    assert whose("<frozen importlib._bootstrap>") == "import"
    assert whose(np.__file__, (str(Path(np.__file__).parent),)) == "user"


def test_a_strategy_has_a_home(tmp_path):
    (tmp_path / "mine.py").write_text("import finpod\nclass Mine(finpod.Momentum if 0 else finpod.Strategy): pass\n")
    mine = load_strategy(tmp_path / "mine.py")
    assert homes_of(mine) == (str(tmp_path / "mine.py"),)
    assert homes_of(Momentum()) == ()
