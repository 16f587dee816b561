"""An ensemble and an unfinished run written by commit 4182994 are still read; its result is refused (`made_saved.py`)."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from made_agents import tiny_train
from made_commands import run
from made_errors import refused
from made_saved import SAVED, VALIDATED, saved_market

import finpod
from finpod.errors import CheckpointError
from finpod.tournament.setup import FORMAT
from finpod.tournament.verify import verify_log


@pytest.fixture
def saved(tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(SAVED, tmp_path / "saved")


def test_a_trained_folder_loads_and_decides():
    ensemble = finpod.load_strategy(SAVED / "ensemble")
    market = saved_market()
    result = finpod.backtest(ensemble, market, start=market.dates[VALIDATED], examine=False)
    assert (len(ensemble.alone), ensemble.trials) == (2, 4)
    before = pd.read_csv(SAVED / "result" / "returns.csv", index_col=0)["equity"]
    np.testing.assert_allclose(result.equity.to_numpy(), before.to_numpy(), rtol=1e-6)


def test_an_unfinished_run_of_an_earlier_version_is_refused_by_name(saved):
    for line in (["--resume", str(saved / "run")], ["--fork", str(saved / "run"), "--out", str(saved / "other")]):
        error = run("train", *line).error
        assert all(told in error for told in (f"{saved / 'run.unfinished'} has", "tournament 1'", f"{FORMAT!r}"))
    for changes in ({"resume": True}, {"fork": saved / "run", "out": saved / "other"}):
        options = {"out": saved / "run", "seed": 7, **changes}
        refused("format was 'finpod tournament 1'", tiny_train, saved_market(), **options)
    assert (saved / "run.unfinished").exists()


@pytest.mark.parametrize(("name", "count"), [("ensemble", 4), ("run.unfinished", 2)])
def test_the_leaderboard_reads_a_run(saved, name, count):
    board = json.loads(run("leaderboard", str(saved / name), "--json").out)["board"]
    assert [trial["state"] for trial in board] == ["ended"] * count


def test_a_log_of_an_earlier_version_is_not_verified(saved):
    told = r"line 1 of .*log-7.*'finpod tournament 1'"
    refused(told, verify_log, saved / "ensemble" / "log-7.jsonl", error=CheckpointError)
