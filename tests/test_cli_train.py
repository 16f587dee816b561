"""`finpod train | walkforward`: options, --check, stop rules, failures and Ray. Resuming is in test_cli_resume.py."""

import json
import os
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from made_commands import run, started
from made_tournaments import wait_until

import finpod
from finpod import training
from finpod.errors import InputError
from finpod.tournament import scheduler
from finpod.tournament.setup import Stop
from finpod.walkforward import retraining
from finpod.workers.executor import Pods

WINDOWS = "--market sim --train 2010-02-01:2010-06-30 --validation 2010-07-01:2010-09-30"
LINE = f"train stocks {WINDOWS} --out strategies/tiny"
SIZE = "--agents 3 --rounds 2 --keep 2 --steps 8192 --features return_5 --device cpu --rebalance-every 2"
CHECKED = f"{LINE} --device cpu --features return_5 --check"


# --- options


def test_every_option_reaches_the_tournament(work, monkeypatch):
    asked = {}

    def train(task, **settings):
        asked.update(settings)
        raise InputError("enough")

    monkeypatch.setattr(finpod, "train", train)
    more = "--ray --pods 3 --mode async --max-correlation 0.5 --restart-rate 0.4 --checkpoint-steps 99 --stop-trials 40"
    pods = "--stop-steps 5000 --stop-minutes 1.5 --pod-cpus 0.5 --timeout 60 --seeds 2 --storage s3://bucket/run"
    assert run(LINE, SIZE, more, pods).error == "enough"
    plan = asked["plan"]
    assert (plan.mode, plan.alike, plan.restart_rate, plan.checkpoint_steps) == ("async", 0.5, 0.4, 99)
    assert plan.stop == Stop(trials=40, steps=5000, seconds=90.0)
    assert (plan.agents, plan.rounds, plan.keep, plan.steps, plan.seed) == (3, 2, 2, 8192, 0)
    assert asked["pods"] == Pods(ray=True, count=3, cpus=0.5, timeout=60.0)
    assert (asked["seeds"], asked["storage"], asked["resume"], asked["fork"]) == (2, "s3://bucket/run", False, None)
    assert run(LINE).error == "enough"
    assert (asked["pods"], asked["plan"].stop) == (Pods(), Stop())
    assert run(LINE, "--address 10.0.0.1:6379 --pod-gpus 0.25").error == "enough"
    assert asked["pods"] == Pods(ray=True, gpus=0.25, address="10.0.0.1:6379")


@pytest.mark.parametrize("line", [CHECKED, "train hopper --out strategies/tiny --device cpu --check"])
def test_a_check_of_a_run_that_would_begin_trains_nothing(work, monkeypatch, line):
    monkeypatch.setattr(scheduler, "run_slice", lambda *_: pytest.fail("trained"))
    ended = run(line)
    assert (ended.code, "passed; nothing was trained" in ended.out) == (0, True)
    assert sorted(path.name for path in work.iterdir()) == ["data"]
    assert json.loads(run(line, "--json").out)["trials"] == 8


@pytest.mark.parametrize(("options", "value"), [
    ("--max-weight 3", "--max-weight is 3.0"),
    ("--device cuda --market nosuch", "--device is 'cuda'"),
    ("--validation 2010-06-01:2010-09-30", "--validation starts on 2010-06-01"),
    ("--address 127.0.0.1:1", "127.0.0.1:1"),
    ("--features retrun_5", "retrun_5"), ("--storage /proc/runs", "/proc/runs"),
    ("--ray --pod-cpus 1000", "1000 CPU"),
    ("--tensorboard data/sim/manifest.json/x", "data/sim/manifest.json is not a folder"),
    ("--learner apg --action shares", "action 'shares'"),
    (
        "--market sample --train 1991-01-02:2000-12-29 --validation 2001-01-02:2002-12-31 --impact 1",
        "--impact is 1",
    ),
])  # fmt: skip
def test_a_check_names_what_would_fail(work, monkeypatch, options, value):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert value in run(CHECKED, options).error
    assert sorted(path.name for path in work.iterdir()) == ["data"]


# --- what ends a run


@pytest.mark.parametrize("options", ["--check", "--check --ray", "--ray"])
def test_a_cluster_that_ends_a_command_before_it_trains_interrupts_it(work, monkeypatch, options):

    def ends(*_args, **_options):
        sys.exit(signal.SIGTERM) if "--ray" in options else os.kill(os.getpid(), signal.SIGTERM)

    where = pytest.importorskip("ray") if "--ray" in options else training
    monkeypatch.setattr(where, "init" if "--ray" in options else "open_executor", ends)
    stopped = run(LINE, SIZE, options)
    assert (stopped.code, stopped.err.splitlines()[-1]) == (130, "error: interrupted")


def test_d05_agents_that_fail_are_listed_last_and_the_rest_are_chosen(work, monkeypatch):
    run_slice = scheduler.run_slice

    def fails(setup, piece):
        if piece.settings.agent_id == "0-1":
            raise ValueError("not finite")
        return run_slice(setup, piece)

    monkeypatch.setattr(scheduler, "run_slice", fails)
    ended = run(LINE, SIZE)
    assert (ended.code, "agent 0-1 has failed: ValueError: not finite" in ended.err) == (0, True)
    _, failed = ended.out.split("trials that failed, or restarted")
    assert [line.split()[:4] for line in failed.splitlines()[2:3]] == [["1", "0-1", "1", "failed"]]
    provenance = json.loads((work / "strategies" / "tiny" / "ensemble.json").read_text())["provenance"]
    assert (provenance["failed"], "0-1" in {member["agent"] for member in provenance["members"]}) == (1, False)


def test_stop_rules_are_told_in_the_log_and_the_board_is_that_of_the_leaderboard(work, monkeypatch):
    monkeypatch.setattr("finpod.cli.train.TOP", 3)
    ended = run(LINE, SIZE, "--seeds 2 --stop-trials 2")
    assert "chosen among 4 trials" in ended.out
    assert "and 1 more; finpod leaderboard strategies/tiny --top 4 shows all" in ended.out.splitlines()
    shown = run("leaderboard strategies/tiny --top 3").out
    assert shown[shown.index("rank") :].partition("\n\n")[0].partition("\nand 1 more")[0] in ended.out
    assert '"reason":"2 trials"' in (work / "strategies" / "tiny" / "log-0.jsonl").read_text().splitlines()[-1]


# --- a walk-forward

YEARS = "walkforward stocks --market sim --train 120 --validation 40 --test 60 --out strategies/wf --start 2010-09-15"
FEW = "--agents 1 --rounds 1 --keep 1 --steps 1 --features return_5"


@pytest.mark.journey
def test_one_run_leads_to_the_agents_the_backtest_and_the_report(work):
    lines = run(YEARS, FEW).out.splitlines()
    assert lines[0].split()[:3] == ["test", "train", "validation"]
    assert [line[:10] for line in lines[1:3]] == ["2010-09-15", "2010-12-08"]
    assert lines[-3:] == ["strategies/wf", "backtests/wf", "reports/wf.html"]
    result = finpod.load_result("backtests/wf")
    again = run("backtest strategies/wf --market sim --start 2010-09-15 --no-report --name again --json")
    assert json.loads(again.out)["metrics"] == json.loads(result.to_json())["metrics"]
    judged = run(YEARS, FEW, "--resume --overwrite --no-report --json")
    assert judged.out == Path("backtests/wf/result.json").read_text()
    assert json.loads(judged.out)["agent"] == json.loads(result.to_json())["agent"]
    assert judged.err.splitlines()[-2:] == ["strategies/wf", "backtests/wf"]


def test_options_of_a_walk_forward_reach_the_training(work, monkeypatch):
    asked = {}

    def walk_forward(task, **settings):
        asked.update(settings, task=task)
        raise InputError("that is all")

    monkeypatch.setattr(retraining, "walk_forward", walk_forward)
    more = "--expanding --purge 7 --embargo 3 --seeds 2 --seed 5 --rebalance-every 4 --action softmax --fill close"
    more += " --fee-bps 3 --impact 0.1 --ray --anchor dollar-volume --max-weight 0.3 --max-turnover 0.4"
    assert "that is all" in run(YEARS, FEW, more, "--end 2010-12-31 --features default --device cpu").error
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


def test_a_check_of_a_walk_forward_trains_nothing(work, monkeypatch):
    monkeypatch.setattr(retraining, "train_ensemble", lambda **_: pytest.fail("trained"))
    ended = run(YEARS, FEW, "--check --json --embargo 5")
    assert (ended.code, json.loads(ended.out)["segments"], Path("strategies").exists()) == (0, 2, False)
    short = run(YEARS.replace("--test 60", "--test 5"), FEW, "--check")
    assert (short.code, "5y" in short.err) == (0, True)


# --- a Ray that ends


@contextmanager
def ray_killed(process, *pieces):
    """A command on Ray one of whose processes is killed as soon as a pod works; its exit code and stderr."""
    with started(*pieces) as child:
        me = psutil.Process(child.pid)

        def processes():
            found = {}
            for one in me.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    found[one.name().removeprefix("./")] = one
            return found

        wait_until(lambda: any(name.startswith("ray::finpod-pod") for name in processes()), 120)
        family = me.children(recursive=True)
        next(one for name, one in processes().items() if name.startswith(process)).kill()
        _, err = child.communicate(timeout=120)
        yield child.returncode, err
        psutil.wait_procs(family, timeout=90)
        assert not [one for one in family if one.is_running()]


WALK = "walkforward stocks --market sim --start 2010-09-01 --end 2010-12-31 --train 80 --validation 20 --test 40"
LONG = "--features return_5 --device cpu --steps 32768 --checkpoint-steps 8192 --agents 3 --rounds 2 --keep 2"
SHORT = "--out strategies/wf --agents 2 --rounds 1 --keep 1 --steps 16384 --features return_5 --device cpu --no-report"


@pytest.mark.slow
@pytest.mark.parametrize(("process", "line", "resume", "told"), [
    ("raylet", f"{LINE} {LONG}", "train --resume strategies/tiny", "`finpod train --resume strategies/tiny`"),
    ("gcs_server", f"{LINE} {LONG}", "train --resume strategies/tiny", "`finpod train --resume strategies/tiny`"),
    ("raylet", f"{WALK} {SHORT}", f"{WALK} {SHORT} --resume", "--resume"),
])  # fmt: skip
def test_g19_a_ray_that_has_ended_is_told_with_the_way_to_go_on(work, process, line, resume, told):
    pytest.importorskip("ray")
    with ray_killed(process, line, "--ray") as (code, err):
        ending = f"error: Ray on this machine has ended ({process} exited); continue with {told}"
        assert (code, err.splitlines()[-1]) == (2, ending)
        assert sum("error" in line for line in err.lower().splitlines()) == 1
    assert run(resume).code == 0
