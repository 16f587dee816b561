"""An ensemble and an unfinished run written by commit 4182994 are still read; its result is refused (`made_saved.py`)."""

import json
import shutil
import zlib

import numpy as np
import pandas as pd
import pytest
from made_agents import STEPS_AN_UPDATE, tiny_train
from made_saved import SAVED, VALIDATED, saved_market
from typer.testing import CliRunner

import finpod
from finpod.cli import app
from finpod.errors import CheckpointError, InputError
from finpod.tournament.setup import EvolutionConfig, Plan


@pytest.fixture
def saved(tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(SAVED, tmp_path / "saved")


def test_a_trained_folder_loads_and_decides():
    ensemble = finpod.load_strategy(SAVED / "ensemble")
    market = saved_market()
    result = finpod.backtest(ensemble, market, start=market.dates[VALIDATED], examine=False)
    assert len(ensemble.alone) == 2
    assert ensemble.trials == 4
    assert result.equity.iloc[0] == 1e6
    assert (result.trades["kind"] == "fill").sum() > 10
    before = pd.read_csv(SAVED / "result" / "returns.csv", index_col=0)["equity"]
    np.testing.assert_allclose(result.equity.to_numpy(), before.to_numpy(), rtol=1e-6)


def test_an_unfinished_run_whose_agents_were_ranked_by_another_figure_is_refused_by_name(saved):
    plan = Plan(checkpoint_steps=STEPS_AN_UPDATE, search=EvolutionConfig(structure=False))
    with pytest.raises(InputError, match="measure was 'sharpe' and is 'ratio_less_error'"):
        tiny_train(saved_market(), saved / "run", seed=7, plan=plan, resume=True)
    assert (saved / "run.unfinished").exists()


def test_the_command_resumes_no_run_of_an_earlier_version(saved):
    for line in (["--resume", str(saved / "run")], ["--fork", str(saved / "run"), "--out", str(saved / "other")]):
        ended = CliRunner().invoke(app, ["train", *line])
        assert isinstance(ended.exception, InputError)
        assert str(saved / "run.unfinished") in str(ended.exception)
    assert (saved / "run.unfinished").exists()


@pytest.mark.parametrize(("name", "count"), [("ensemble", 4), ("run.unfinished", 2)])
def test_the_leaderboard_reads_a_run(saved, name, count):
    ended = CliRunner().invoke(app, ["leaderboard", str(saved / name), "--json"])
    assert ended.exit_code == 0, ended.output
    assert [trial["state"] for trial in json.loads(ended.stdout)["board"]] == ["ended"] * count


def test_the_command_verifies_a_log_and_names_the_line_of_a_score_that_was_changed(saved):
    line = ["leaderboard", str(saved / "ensemble"), "--verify"]
    ended = CliRunner().invoke(app, line)
    assert ended.exit_code == 0, ended.output
    assert "The log was verified" in ended.stdout
    log = saved / "ensemble" / "log-7.jsonl"
    records = log.read_text().splitlines(keepends=True)
    number = next(i for i, record in enumerate(records) if '"submit"' in record)
    text = json.dumps(json.loads(records[number].split(" ", 1)[1]) | {"score": 99.0})
    records[number] = f"{zlib.crc32(text.encode()):08x} {text}\n"
    log.write_text("".join(records))
    assert CliRunner().invoke(app, line[:-1]).exit_code == 0
    with pytest.raises(CheckpointError, match=rf"line {number + 1} of .*99\.0"):
        CliRunner().invoke(app, line, catch_exceptions=False)
