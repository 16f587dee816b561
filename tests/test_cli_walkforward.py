"""`finpod walkforward`: what it prints, what it writes, and how it fails."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import finpod
from finpod.cli import main
from finpod.errors import InputError
from finpod.market.snapshots import save_snapshot
from finpod.walkforward import retraining

LINE = "walkforward stocks --market sim --train 120 --validation 40 --test 60 --out strategies/wf"
SPAN = "--start 2010-09-15"
SIZE = "--agents 1 --rounds 1 --keep 1 --steps 1 --features return_5"


@pytest.fixture(scope="module")
def simulated():
    return finpod.simulate_market(names=4, days=280, seed=1)


@pytest.fixture
def work(tmp_path, monkeypatch, simulated):
    """A working folder with the snapshot data/sim."""
    monkeypatch.chdir(tmp_path)
    save_snapshot(simulated, tmp_path / "data" / "sim")
    return tmp_path


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


def refused(ended, *fragments):
    assert (ended.code, ended.out) == (2, "")
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    for fragment in fragments:
        assert fragment in errors[0]


def test_one_run_leads_to_the_agents_the_backtest_and_the_report(work, run):
    ended = run(LINE, SPAN, SIZE)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0].split()[:3] == ["test", "train", "validation"]
    assert [line[:10] for line in lines[1:3]] == ["2010-09-15", "2010-12-08"]
    assert lines[3] == ""
    assert lines[4].startswith("wf, 2010-09-15 .. ")
    assert lines[-3:] == ["strategies/wf", "backtests/wf", "reports/wf.html"]
    assert sorted(path.name for path in Path("strategies/wf").iterdir()) == [
        "segment-2010-09-15",
        "segment-2010-12-08",
        "walkforward.json",
    ]
    result = finpod.load_result("backtests/wf")
    assert result.equity.index.is_unique
    assert result.trials == 2
    page = Path("reports/wf.html").read_text()
    for word in ("segment-2010-12-08", "2 validation windows", "Rank correlation", "Out of sample score"):
        assert word in page
    facts = json.loads(Path("backtests/wf/run.json").read_text())
    assert facts["command"].startswith("finpod walkforward stocks --market sim")
    again = run("backtest strategies/wf --market sim --start 2010-09-15 --no-report --name again --json")
    assert json.loads(again.out)["metrics"] == json.loads(result.to_json())["metrics"]
    assert run("audit strategies/wf --market sim --start 2010-09-15 --days 2").code == 0
    judged = run(LINE, SPAN, SIZE, "--resume --overwrite --no-report --json")
    assert judged.code == 0, judged.err
    assert judged.out == Path("backtests/wf/result.json").read_text()
    assert json.loads(judged.out)["agent"] == json.loads(result.to_json())["agent"]
    assert judged.err.splitlines()[-2:] == ["strategies/wf", "backtests/wf"]


def test_options_reach_the_training(work, run, monkeypatch):
    asked = {}

    def walk_forward(task, **settings):
        asked.update(settings, task=task)
        raise InputError("that is all")

    monkeypatch.setattr(retraining, "walk_forward", walk_forward)
    more = "--expanding --purge 7 --embargo 3 --seeds 2 --seed 5 --rebalance-every 4 --action softmax --fill close"
    more += " --fee-bps 3 --impact 0.1 --ray --anchor dollar-volume --max-weight 0.3 --max-turnover 0.4"
    refused(run(LINE, SPAN, SIZE, more, "--end 2010-12-31 --features default --device cpu"), "that is all")
    assert asked.pop("market").shape == (280, 4)
    assert callable(asked.pop("progress"))
    assert asked.pop("pods").ray
    assert asked == {
        "task": "stocks", "start": "2010-09-15", "end": "2010-12-31", "out": Path("strategies/wf"), "train": "120",
        "validation": "40", "test": "60", "expanding": True, "purge": 7, "embargo": 3, "hold": 4, "fill": "close",
        "overwrite": False, "resume": False, "learner": "ppo", "features": None, "costs": finpod.Costs(fee_bps=3, impact=0.1),
        "agents": 1, "rounds": 1, "keep": 1, "steps": 1, "action": "softmax", "seed": 5, "anchor": "dollar-volume",
        "max_weight": 0.3, "max_turnover": 0.4, "seeds": 2, "device": "cpu",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "fragments"),
    [
        ("", ["start"]),
        ("--start 2010-02-01", ["--start is 2010-02-01", "too late for 120 sessions", "start on 20"]),
        ("--start 2010-09-15 --train 4y", ["too late for 4 years of training"]),
        ("--start 2010-09-15 --end 2010-06-01", ["2010-06-01", "before it starts"]),
        ("--start soon", ["'soon'", "YYYY-MM-DD"]),
        ("--start 2010-09-15 --train 4x", ["--train is '4x'", "4y for years"]),
        ("--start 2010-09-15 --test 2 --rebalance-every 5", ["--test is 2 sessions, shorter than hold = 5"]),
        ("--start 2010-09-15 --validation 8 --embargo 5", ["the validation window before 2010-09-15 has 2 sessions"]),
        ("--start 2010-09-15 --purge 1", ["--purge is 1 sessions; it must be 5 or more"]),
        ("--start 2010-09-15 --embargo -1", ["--embargo is -1 sessions"]),
        ("--start 2010-09-15 --end 2010-09-16", ["fewer than hold = 5; let it end later"]),
        ("--start 2010-09-15 --agents 0", ["--agents is 0"]),
        ("--start 2010-09-15 --seeds 0", ["--seeds is 0"]),
        ("--start 2010-09-15 --fee-bps -1", ["--fee-bps is -1"]),
        ("--start 2010-09-15 --features retrun_5", ["retrun_5", "return_5"]),
        ("--start 2010-09-15 --learner sac9", ["'sac9'"]),
        ("--start 2010-09-15 --action guess", ["'guess'"]),
        ("--start 2010-09-15 --market nosuch", ["data/nosuch"]),
        ("--start 2010-09-15 --name a/b", ["'a/b'", "plain word"]),
        ("--start 2010-09-15 --resume", ["no unfinished walk-forward at strategies/wf.unfinished"]),
        ("--start 2010-09-15 --out data/sim --overwrite", ["data/sim holds", "no part of a walk-forward"]),
        ("--start 2010-09-15 --out .", ["current folder"]),
    ],
)
def test_e08_typing_errors_end_in_one_line_and_leave_nothing(work, run, more, fragments):
    refused(run(LINE, more), *fragments)
    assert sorted(path.name for path in work.iterdir()) == ["data"]


def test_an_unknown_task_is_refused(work, run):
    refused(run(LINE.replace("stocks", "bonds"), SPAN), "'bonds'", "stocks")


@pytest.mark.parametrize("occupied", ["strategies", "backtests", "reports"])
def test_e08_unwritable_outputs_are_known_before_anything_is_read(work, run, monkeypatch, occupied):
    (work / occupied).write_text("a file where the folder should be")
    monkeypatch.setattr(finpod, "load_market", lambda *a, **k: pytest.fail("read before the outputs were checked"))
    refused(run(LINE, SPAN), occupied, "not a folder")
    assert sorted(path.name for path in work.iterdir()) == sorted(["data", occupied])


def test_an_interrupted_run_is_gone_on_with(work, run, monkeypatch):
    from finpod.walkforward import retraining

    train, calls = retraining.train_ensemble, []

    def interrupted(**arguments):
        calls.append(arguments["out"].name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(**arguments)

    interrupted.__signature__ = retraining.inspect.signature(train)
    with monkeypatch.context() as patch:
        patch.setattr(retraining, "train_ensemble", interrupted)
        assert run(LINE, SPAN, SIZE, "--no-report").code == 130
    assert [path.name for path in Path("strategies").iterdir()] == ["wf.unfinished"]
    assert not Path("backtests").exists()
    refused(run(LINE, SPAN, SIZE, "--no-report"), "strategies/wf.unfinished", "--resume", "--overwrite")
    refused(run(LINE, SPAN, SIZE, "--no-report --resume --rebalance-every 4"), "hold was 5 and is 4")
    monkeypatch.setattr(retraining, "train_ensemble", interrupted)
    assert run(LINE, SPAN, SIZE, "--no-report --resume").code == 0
    assert calls == ["segment-2010-09-15", "segment-2010-12-08", "segment-2010-12-08"]
