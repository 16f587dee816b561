"""`finpod compare` and `finpod export`: what they print, what they write, and how they fail."""

import json
import shutil
from types import SimpleNamespace

import pandas as pd
import pytest
from made_results import make_result

from finpod.backtesting import comparison_figures
from finpod.backtesting.comparison import compare
from finpod.backtesting.result_io import load_result
from finpod.cli import main


@pytest.fixture
def run(capsys):
    """Run one command line, given in pieces; what it printed and its exit code."""

    def call(*pieces):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([word for piece in pieces for word in piece.split()])
        printed = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code, out=printed.out, err=printed.err)

    return call


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A working folder with the runs one, two and three, of which the first two have the same strategy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparison_figures, "RESAMPLES", 200)
    for seed, (name, strategy) in enumerate([("one", "first"), ("two", "first"), ("three", "other")]):
        make_result(days=60, names=3, seed=seed, strategy=strategy).save(tmp_path / "backtests" / name)
    return tmp_path


def assert_one_line(ended, *fragments):
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    for fragment in fragments:
        assert fragment in ended.err


def test_compare_prints_the_table_and_writes_the_page(work, run):
    ended = run("compare backtests/one two", "three")
    assert (ended.code, ended.err) == (0, "")
    expected = compare(
        [load_result(work / "backtests" / name) for name in ("one", "two", "three")], names=["one", "two", "three"]
    )
    assert ended.out == f"{expected}\n\nreports/compare.html\n"
    assert list(expected.runs) == ["one", "two", "other"]
    assert "<h1>3 runs compared</h1>" in (work / "reports" / "compare.html").read_text()


def test_compare_json_is_that_of_the_comparison(work, run):
    ended = run("compare one three --json --name pair")
    stored = json.loads(ended.out)
    assert ended.out == compare([load_result(work / "backtests" / name) for name in ("one", "three")]).to_json()
    assert set(stored["runs"]) == {"first", "other"}
    assert ended.err == "reports/pair.html\n"
    assert "<h1>pair</h1>" in (work / "reports" / "pair.html").read_text()


def test_compare_writes_where_it_is_told_or_nothing(work, run):
    assert run("compare one two --out pages/a.html").out.endswith("\npages/a.html\n")
    assert (work / "pages" / "a.html").is_file()
    assert run("compare one two --no-report").code == 0
    assert not (work / "reports").exists()


def test_compare_replaces_a_page_on_request_only(work, run):
    assert run("compare one two").code == 0
    page = work / "reports" / "compare.html"
    before = page.read_bytes()
    assert_one_line(run("compare one three"), "reports/compare.html exists already", "--overwrite")
    assert page.read_bytes() == before
    assert run("compare one three --overwrite").code == 0
    assert page.read_bytes() != before


def test_folders_of_the_same_name_are_told_apart_by_their_paths(work, run):
    shutil.copytree(work / "backtests" / "two", work / "elsewhere" / "one")
    stored = json.loads(run("compare one elsewhere/one --json").out)
    assert list(stored["runs"]) == ["backtests/one", "elsewhere/one"]


@pytest.mark.parametrize(
    ("line", "fragments"),
    [
        ("compare", ["RUN", "finpod compare --help"]),
        ("compare one", ["one run cannot be compared", "two or more"]),
        ("compare one nosuch", ["backtests/nosuch", "holds no backtest result"]),
        ("compare one backtests/one", ["one is given twice"]),
        ("compare one two --name a/b", ["'a/b'", "plain word"]),
        ("compare one two --out backtests", ["backtests is a folder"]),
        ("compare one two --out /proc/nowhere/a.html", ["/proc/nowhere"]),
        ("export", ["RUN", "finpod export --help"]),
        ("export nosuch", ["backtests/nosuch", "holds no backtest result"]),
        ("export one --format xls", ["'xls'", "csv", "parquet"]),
        ("export one --out backtests", ["backtests exists already", "--overwrite"]),
        (
            "export one --out backtests/two --overwrite",
            ["backtests/two is not an export", "--overwrite does not replace it"],
        ),
        ("export one --out .", ["is the current folder"]),
        ("export one --out /proc/nowhere/x", ["/proc/nowhere"]),
    ],
)
def test_e08_mistakes_are_one_line(work, run, line, fragments):
    before = sorted(work.rglob("*"))
    assert_one_line(run(line), *fragments)
    assert sorted(work.rglob("*")) == before


def test_intraday_among_daily_is_one_line(work, run):
    make_result(days=60, periods_per_year=252 * 6).save(work / "backtests" / "fast")
    assert_one_line(run("compare one fast"), "252 sessions a year", "1,512", "compare daily runs with daily ones")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_export_writes_what_its_lines_read(work, run, monkeypatch, form):
    ended = run(f"export one --format {form}")
    assert (ended.code, ended.err) == (0, "")
    folder = work / "backtests" / "one-export"
    monkeypatch.chdir(folder)
    for line in ended.out.splitlines():
        file, reading = line.split(maxsplit=1)
        table = eval(reading, {"pd": pd})
        assert str(table.index.tz) == "UTC"
        assert (work / file).parent == folder
    assert len(ended.out.splitlines()) == 5


def test_export_to_another_folder_in_json(work, run):
    ended = run("export backtests/one --out out/x --json")
    told = json.loads(ended.out)
    assert told["folder"] == "out/x"
    assert set(told["files"]) == {path.name for path in (work / "out" / "x").iterdir()} - {"export.json"}
    assert told["notes"] == []


def test_export_says_what_it_leaves_out(work, run):
    idle = make_result([1000.0] * 30, strategy="idle")
    idle = make_result([1000.0] * 30, strategy="idle", weights=idle.weights * 0, trades=idle.trades[:0])
    idle.save(work / "backtests" / "idle")
    ended = run("export idle")
    assert "note: no positions: nothing was held at any close" in ended.out
    assert "note: no transactions: nothing was traded" in ended.out
    assert not (work / "backtests" / "idle-export" / "positions.csv").exists()


def test_export_replaces_an_export_on_request_only(work, run):
    assert run("export one").code == 0
    assert_one_line(run("export one"), "backtests/one-export exists already", "--overwrite")
    assert run("export two --out backtests/one-export --overwrite --format parquet").code == 0
    assert sorted(path.suffix for path in (work / "backtests" / "one-export").iterdir()) == [".json", *[".parquet"] * 5]


def test_a_run_can_be_made_again_beside_its_export(work, run):
    assert run("export one").code == 0
    make_result(days=30).save(work / "backtests" / "one", overwrite=True)
    assert len(load_result(work / "backtests" / "one").returns) == 30
