"""Where the outputs of a run go: the run first, and its report if it can be made."""

import json
from pathlib import Path

import pytest
from made_markets import random_market

from finpod import runs
from finpod.backtesting.engine import backtest
from finpod.errors import InputError, ReportWarning
from finpod.rules import EqualWeight


@pytest.fixture(scope="module")
def result():
    return backtest(EqualWeight(), random_market(days=40))


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def everything(folder):
    """Paths below a folder, with the content of files."""
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def test_run_names():
    assert runs.name_of("equal-weight") == "equal-weight"
    assert runs.name_of("strategies/momentum.py") == "momentum"
    assert runs.name_of("strategies/momentum.py:Slow") == "momentum-Slow"
    assert runs.name_of("strategies/v1.5/") == "v1.5"


@pytest.mark.parametrize("name", ["", " ", "\t", " a", "a ", ".", "..", "a/b", "a\nb", "x" * 300, "ü" * 101])
def test_names_of_no_file_are_refused(work, name):
    with pytest.raises(InputError, match="cannot be a name") as raised:
        runs.plan_outputs(name)
    assert len(str(raised.value)) < 120
    assert everything(work) == {}


def test_outputs_that_stand_in_the_way_are_refused_before_the_work(work):
    (work / "reports" / "x.html").mkdir(parents=True)
    for overwrite in (False, True):
        with pytest.raises(InputError, match=r"reports/x.html is a folder, not a file"):
            runs.plan_outputs("x", overwrite=overwrite)
    (work / "backtests" / "y").mkdir(parents=True)
    (work / "backtests" / "y" / "ensemble.json").write_text("{}")
    with pytest.raises(InputError, match=r"backtests/y is not a backtest"):
        runs.plan_outputs("y", overwrite=True)
    assert runs.plan_outputs("x", report=False) == (Path("backtests/x"), None)


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(monkeypatch):
    monkeypatch.chdir("/proc")
    with pytest.raises(InputError, match="cannot write backtests/x"):
        runs.plan_outputs("x")


def test_both_are_written(work, result):
    runs.write_outputs(result, runs.plan_outputs("x"), {})
    assert sorted(path.name for path in work.iterdir()) == ["backtests", "reports"]
    assert [path.name for path in (work / "reports").iterdir()] == ["x.html"]
    assert (work / "backtests" / "x" / "result.json").is_file()


@pytest.mark.parametrize("earlier", [False, True])
def test_a_run_that_cannot_be_saved_leaves_all_as_it_was(work, result, monkeypatch, earlier):
    if earlier:
        runs.write_outputs(result, runs.plan_outputs("x"), {})
    before = everything(work)
    outputs = runs.plan_outputs("x", overwrite=earlier)

    def fail(*_args, **_options):
        raise InputError("no ink; buy some")

    monkeypatch.setattr(type(result), "save", fail)
    with pytest.raises(InputError, match="no ink"):
        runs.write_outputs(result, outputs, {"again": True}, overwrite=earlier)
    assert everything(work) == before


@pytest.mark.parametrize("earlier", [False, True])
def test_g12_a_report_that_cannot_be_written_leaves_the_run(work, result, monkeypatch, earlier):
    if earlier:
        runs.write_outputs(result, runs.plan_outputs("x"), {})
        before = (work / "reports" / "x.html").read_bytes()
    outputs = runs.plan_outputs("x", overwrite=earlier)

    def fail(*_args, **_options):
        raise InputError("no ink; buy some")

    monkeypatch.setattr("finpod.report.write_text", fail)
    written = runs.write_outputs(result, outputs, {"again": True}, overwrite=earlier)
    assert str(written.failure) == "no ink; buy some; the run is saved in backtests/x"
    assert written.paths == (Path("backtests/x"),)
    assert json.loads((work / "backtests" / "x" / "run.json").read_text()) == {"again": True}
    assert not earlier or (work / "reports" / "x.html").read_bytes() == before
    assert earlier or not (work / "reports").exists()


def test_g12_a_folder_that_came_into_the_way_of_the_report_leaves_the_run(work, result):
    outputs = runs.plan_outputs("x")
    (work / "reports" / "x.html").mkdir(parents=True)
    written = runs.write_outputs(result, outputs, {})
    assert "reports/x.html is a folder" in str(written.failure)
    assert (work / "backtests" / "x" / "result.json").is_file()
    assert list((work / "reports" / "x.html").iterdir()) == []


@pytest.mark.parametrize("earlier", [False, True])
def test_g12_a_page_that_cannot_be_made_leaves_the_run(work, result, monkeypatch, earlier):
    if earlier:
        runs.write_outputs(result, runs.plan_outputs("x"), {})
    outputs = runs.plan_outputs("x", overwrite=earlier)
    monkeypatch.setattr("finpod.report.render", lambda result: 1 / 0)
    message = r"reports/x.html was not written \(ZeroDivisionError: division by zero\); the run is saved in backtests/x"
    message += "; reports/x.html is that of an earlier run$" if earlier else "$"
    with pytest.warns(ReportWarning, match=message):
        written = runs.write_outputs(result, outputs, {"again": True}, overwrite=earlier)
    assert written == ((Path("backtests/x"),), None)
    assert json.loads((work / "backtests" / "x" / "run.json").read_text()) == {"again": True}
