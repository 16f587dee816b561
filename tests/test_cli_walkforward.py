"""`finpod walkforward`: output, files and resuming."""

import json
from pathlib import Path

import pytest
from made_commands import run

import finpod
from finpod.errors import InputError
from finpod.walkforward import retraining

LINE = "walkforward stocks --market sim --train 120 --validation 40 --test 60 --out strategies/wf --start 2010-09-15"
SIZE = "--agents 1 --rounds 1 --keep 1 --steps 1 --features return_5"


pytestmark = pytest.mark.usefixtures("work")


def test_one_run_leads_to_the_agents_the_backtest_and_the_report():
    ended = run(LINE, SIZE)
    lines = ended.out.splitlines()
    assert lines[0].split()[:3] == ["test", "train", "validation"]
    assert [line[:10] for line in lines[1:3]] == ["2010-09-15", "2010-12-08"]
    assert lines[-3:] == ["strategies/wf", "backtests/wf", "reports/wf.html"]
    result = finpod.load_result("backtests/wf")
    again = run("backtest strategies/wf --market sim --start 2010-09-15 --no-report --name again --json")
    assert json.loads(again.out)["metrics"] == json.loads(result.to_json())["metrics"]
    judged = run(LINE, SIZE, "--resume --overwrite --no-report --json")
    assert judged.out == Path("backtests/wf/result.json").read_text()
    assert json.loads(judged.out)["agent"] == json.loads(result.to_json())["agent"]
    assert judged.err.splitlines()[-2:] == ["strategies/wf", "backtests/wf"]


def test_options_reach_the_training(monkeypatch):
    asked = {}

    def walk_forward(task, **settings):
        asked.update(settings, task=task)
        raise InputError("that is all")

    monkeypatch.setattr(retraining, "walk_forward", walk_forward)
    more = "--expanding --purge 7 --embargo 3 --seeds 2 --seed 5 --rebalance-every 4 --action softmax --fill close"
    more += " --fee-bps 3 --impact 0.1 --ray --anchor dollar-volume --max-weight 0.3 --max-turnover 0.4"
    assert "that is all" in run(LINE, SIZE, more, "--end 2010-12-31 --features default --device cpu").error
    assert asked.pop("market").shape == (300, 4)
    assert callable(asked.pop("progress"))
    assert asked.pop("pods").ray
    assert asked == {
        "task": "stocks", "start": "2010-09-15", "end": "2010-12-31", "out": Path("strategies/wf"), "train": "120",
        "validation": "40", "test": "60", "expanding": True, "purge": 7, "embargo": 3, "hold": 4, "fill": "close",
        "overwrite": False, "resume": False, "learner": "ppo", "features": None, "costs": finpod.Costs(fee_bps=3, impact=0.1),
        "agents": 1, "rounds": 1, "keep": 1, "steps": 1, "action": "softmax", "seed": 5, "anchor": "dollar-volume",
        "max_weight": 0.3, "max_turnover": 0.4, "seeds": 2, "device": "cpu",
    }  # fmt: skip


def test_a_check_trains_nothing(monkeypatch):
    monkeypatch.setattr(retraining, "train_ensemble", lambda **_: pytest.fail("trained"))
    ended = run(LINE, SIZE, "--check --json --embargo 5")
    assert (ended.code, json.loads(ended.out)["segments"], Path("strategies").exists()) == (0, 2, False)
    short = run(LINE.replace("--test 60", "--test 5"), SIZE, "--check")
    assert (short.code, "5y" in short.err) == (0, True)
