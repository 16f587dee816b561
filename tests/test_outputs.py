"""The outputs of a run: the run is saved first, then its report."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from made_errors import refused
from made_markets import random_market
from made_tournaments import content

from finpod.backtesting.engine import backtest
from finpod.cli.outputs import name_of, plan_outputs, write_outputs
from finpod.errors import InputError, ReportWarning
from finpod.rules import EqualWeight

pytestmark = pytest.mark.usefixtures("apart")
STARTED = datetime(2024, 1, 2, tzinfo=UTC)
SAVED, PAGE = Path("backtests/x"), Path("reports/x.html")


@pytest.fixture(scope="module")
def result():
    return backtest(EqualWeight(), random_market(days=40))


def fail(*_args, **_options):
    raise InputError("no ink; buy some")


def test_a_run_is_named_after_its_strategy():
    names = ("equal-weight", "strategies/momentum.py", "strategies/momentum.py:Slow", "strategies/v1.5/")
    assert [name_of(name) for name in names] == ["equal-weight", "momentum", "momentum-Slow", "v1.5"]


@pytest.mark.parametrize("name", ["", " a", "..", "a/b", "a\nb", "x" * 300])
def test_names_of_no_file_are_refused(apart, name):
    assert len(str(refused(r"cannot (be the name of a file|write)", plan_outputs, name))) < 200
    assert content(apart) == {}


def test_outputs_that_stand_in_the_way_are_refused_before_the_work(monkeypatch):
    PAGE.mkdir(parents=True)
    refused(str(PAGE), plan_outputs, "x", overwrite=True)
    assert plan_outputs("x", report=False) == (SAVED, None)
    monkeypatch.chdir("/proc")
    refused("cannot write backtests/x", plan_outputs, "x")


@pytest.mark.parametrize("earlier", [False, True])
def test_g12_what_fails_leaves_the_run_and_what_was_there_before(apart, result, monkeypatch, earlier):
    def write():
        return write_outputs(result, plan_outputs("x", overwrite=earlier), "again", STARTED, overwrite=earlier)

    if earlier:
        assert write_outputs(result, plan_outputs("x"), "first", STARTED) == [SAVED, PAGE]
    before, page = content(apart), PAGE.read_bytes() if earlier else None
    with monkeypatch.context() as patch:
        patch.setattr(type(result), "save", fail)
        refused("no ink", write)
    assert content(apart) == before
    with monkeypatch.context() as patch:
        patch.setattr("finpod.report.pages.write_text", fail)
        with pytest.warns(ReportWarning, match=r"reports/x.html .*no ink.* backtests/x"):
            assert write() == [SAVED]
    assert json.loads((SAVED / "run.json").read_text())["command"] == "again"
    assert (PAGE.read_bytes() if PAGE.exists() else None) == page
