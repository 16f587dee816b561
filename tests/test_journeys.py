"""End-to-end journeys beside those of the README, each command in a process of its own; `make check` runs them."""

import json
from pathlib import Path

import pandas as pd
import pytest
from made_bars import frame
from made_commands import started

pytestmark = pytest.mark.journey

TRAIN = "--train 2019-01-02:2020-06-30 --validation 2020-07-01:2020-12-31"
SIZE = "--agents 2 --rounds 2 --keep 1 --steps 8192 --features return_5 --device cpu"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with bars.csv: three names and a benchmark over four years."""
    folder = tmp_path_factory.mktemp("journey")
    days = pd.bdate_range("2018-01-02", "2021-12-31")
    frame(tickers=("AAA", "BBB", "CCC", "QQQ"), days=days).to_csv(folder / "bars.csv", index=False)
    return folder


def done(folder, *pieces, code=0):
    """Run a command to its end; what it printed."""
    with started(*pieces, cwd=folder) as child:
        out, err = child.communicate(timeout=300)
    assert child.returncode == code, err
    return out


def test_a_file_becomes_a_snapshot(folder):
    facts = json.loads(done(folder, "data import bars.csv --name prices --json"))
    assert (facts["assets"], facts["path"]) == (3, "data/prices")
    assert facts["hash"] in done(folder, "data check prices")
    assert "AAA" in done(folder, "data show prices")


def test_training_is_checked_interrupted_and_resumed(folder):
    line = f"train stocks --market prices {TRAIN} {SIZE} --out strategies/first"
    assert "passed; nothing was trained" in done(folder, line, "--check")
    assert not (folder / "strategies").exists()
    with started(line, "--checkpoint-steps 2048", cwd=folder) as child:
        log = folder / "strategies" / "first.unfinished" / "seed-0" / "log.jsonl"
        while child.poll() is None and not (log.exists() and b'"kind":"submit"' in log.read_bytes()):
            pass
        child.kill()
        child.wait(60)
    shown = done(folder, "train --resume strategies/first")
    assert shown.splitlines()[-2:] == ["strategies/first", "reports/first-training.html"]
    assert "4 trials" in done(folder, "leaderboard first --verify")


def test_a_trained_agent_is_judged_audited_and_exported(folder):
    line = "backtest strategies/first --market prices --start 2021-01-04"
    assert done(folder, line).splitlines()[-2:] == ["backtests/first", "reports/first.html"]
    assert "no look-ahead found" in done(folder, "audit strategies/first --market prices --start 2021-01-04 --days 3")
    done(folder, "export first --format parquet")
    assert len(pd.read_parquet(folder / "backtests" / "first-export" / "returns.parquet")) > 200


def test_a_strategy_that_looks_ahead_is_caught(folder):
    Path(folder / "seer.py").write_text(
        "import finpod\n\n\nclass Seer(finpod.Strategy):\n    def decide(self, view):\n"
        "        return {'AAA': float(view._market.close[-1, 0] > view.closes(1)[-1, 0])}\n"
    )
    done(folder, "audit seer.py --market prices --start 2021-01-04 --days 3", code=1)
