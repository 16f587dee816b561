"""Where the outputs of a run go, both or neither."""

from pathlib import Path

import pytest
from made_markets import random_market

from finpod import runs
from finpod.backtester import backtest
from finpod.errors import InputError
from finpod.strategy import EqualWeight


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


@pytest.mark.parametrize("failing", ["report", "save"])
@pytest.mark.parametrize("earlier", [False, True])
def test_if_one_fails_neither_changes(work, result, monkeypatch, failing, earlier):
    if earlier:
        runs.write_outputs(result, runs.plan_outputs("x"), {})
    before = everything(work)
    outputs = runs.plan_outputs("x", overwrite=earlier)

    def fail(*_args, **_options):
        raise InputError("no ink; buy some")

    monkeypatch.setattr(type(result), failing, fail)
    with pytest.raises(InputError, match="no ink"):
        runs.write_outputs(result, outputs, {"again": True}, overwrite=earlier)
    assert everything(work) == before


def test_a_folder_that_came_into_the_way_fails_both(work, result):
    outputs = runs.plan_outputs("x")
    (work / "reports" / "x.html").mkdir(parents=True)
    before = everything(work)
    with pytest.raises(InputError, match="is a folder"):
        runs.write_outputs(result, outputs, {})
    assert everything(work) == before
