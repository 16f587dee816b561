"""`finpod train`: options, --check, stop rules, and resuming by name."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from made_commands import ENVIRONMENT, run, started
from made_tournaments import hash_of, wait_until

import finpod
from finpod.errors import InputError
from finpod.market.snapshots import save_snapshot
from finpod.storage import Store
from finpod.tournament.evolution import EvolutionConfig
from finpod.tournament.run_folder import lock
from finpod.tournament.setup import Stop
from finpod.tournament.training import Pods
from finpod.tournament.verify import verify_log

WINDOWS = "--market sim --train 2010-02-01:2010-06-30 --validation 2010-07-01:2010-09-30"
LINE = f"train stocks {WINDOWS} --out strategies/tiny"
SIZE = "--agents 3 --rounds 2 --keep 2 --steps 32768 --features return_5 --device cpu --rebalance-every 2"
CHECKPOINTS = "--checkpoint-steps 8192"
RESUME = "train --resume strategies/tiny"


@pytest.fixture(scope="module")
def simulated():
    return finpod.simulate_market(names=4, days=300, signal=0.1, seed=1)


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch, simulated):
    """A working folder with the snapshot data/sim."""
    monkeypatch.chdir(tmp_path)
    save_snapshot(simulated, tmp_path / "data" / "sim")
    return tmp_path


@pytest.fixture(scope="module")
def whole(simulated, tmp_path_factory):
    """The hash of the ensemble that a run makes that nobody interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    save_snapshot(simulated, folder / "data" / "sim")
    with started(LINE, SIZE, cwd=folder) as child:
        assert child.wait(120) == 0
    return hash_of(folder / "strategies" / "tiny")


@pytest.fixture
def leave(monkeypatch):
    """Interrupt training, as Ctrl-C does, once some slices have been trained; None to let it be."""
    from finpod.tournament import training

    run_slice, limit, pieces = training.run_slice, [None], []

    def slices(setup, piece):
        if limit[0] is not None and len(pieces) >= limit[0]:
            raise KeyboardInterrupt
        pieces.append(piece)
        return run_slice(setup, piece)

    monkeypatch.setattr(training, "run_slice", slices)

    def after(count):
        pieces.clear()
        limit[0] = count
        return pieces

    return after


# --- options


def test_every_option_reaches_the_tournament(work, monkeypatch):
    asked = {}

    def train(task, **settings):
        asked.update(settings)
        raise InputError("enough")

    monkeypatch.setattr(finpod, "train", train)
    more = (
        "--mode async --choice recent --max-correlation 0.5 --restart-rate 0.4 --checkpoint-steps 99 --stop-trials 40"
        " --stop-steps 5000 --stop-minutes 1.5 --stop-score 0.7 --patience 6 --pods 3 --pod-cpus 0.5 --timeout 60 --ray"
        " --seeds 2 --storage s3://bucket/run"
    )
    assert run(LINE, SIZE, more).error == "enough"
    plan = asked["plan"]
    assert (plan.mode, plan.choice, plan.alike, plan.checkpoint_steps) == ("async", "recent", 0.5, 99)
    assert plan.search == EvolutionConfig(fresh=0.4)
    assert plan.stop == Stop(trials=40, steps=5000, seconds=90.0, score=0.7, patience=6)
    assert (plan.agents, plan.rounds, plan.keep, plan.steps, plan.seed) == (3, 2, 2, 32768, 0)
    assert asked["pods"] == Pods(ray=True, count=3, cpus=0.5, timeout=60.0)
    assert (asked["seeds"], asked["storage"], asked["resume"], asked["fork"]) == (2, "s3://bucket/run", False, None)
    assert run(LINE).error == "enough"
    assert asked["pods"] == Pods()
    assert asked["plan"].stop == Stop()
    assert run(LINE, "--address 10.0.0.1:6379 --pod-gpus 0.25").error == "enough"
    assert asked["pods"] == Pods(ray=True, gpus=0.25, address="10.0.0.1:6379")


CHECKED = f"{LINE} --device cpu --features return_5 --check"


@pytest.mark.parametrize("line", [CHECKED, "train hopper --out strategies/tiny --device cpu --check"])
def test_a_check_of_a_run_that_would_begin_trains_nothing(work, monkeypatch, line):
    monkeypatch.setattr(finpod, "train", lambda *a, **k: pytest.fail("trained"))
    ended = run(line)
    assert (ended.code, "nothing would fail" in ended.out) == (0, True)
    assert sorted(path.name for path in work.iterdir()) == ["data"]
    assert json.loads(run(line, "--json").out)["trials"] == 8


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ("--market nosuch --max-weight 3 --device cuda", ["--max-weight is 3.0", "--device is 'cuda'", "data/nosuch"]),
        ("--out data/sim --validation 2010-06-01:2010-09-30", ["data/sim", "--validation starts on 2010-06-01"]),
        ("--address 127.0.0.1:1 --features retrun_5", ["127.0.0.1:1", "retrun_5"]),
        ("--ray --pod-cpus 1000", ["1000 CPU"]),
        ("--learner apg --action shares", ["action 'shares'"]),
        ("--learner ppx", ["'ppx'"]),
        ("--agents 0", ["--agents is 0"]),
    ],
)
def test_a_check_names_each_thing_that_would_fail(work, monkeypatch, options, values):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    ended = run(CHECKED, options)
    lines = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert (ended.code, ended.out, len(lines)) == (2, "", len(values))
    assert all(value in line for value, line in zip(values, lines, strict=True)), lines
    assert sorted(path.name for path in work.iterdir()) == ["data"]


def test_a_check_of_a_run_to_be_resumed_has_its_options_from_the_log(leave):
    leave(3)
    assert run(LINE, SIZE).code == 130
    assert json.loads(run(RESUME, "--check --json").out)["trials"] == 6
    assert "strategies/tiny.unfinished" in run(LINE, SIZE, "--check").err


def test_without_ray_one_line_says_so_and_nothing_is_left(work, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install ray" in run(LINE, SIZE, "--ray").error
    assert not list(work.glob("strategies/*"))


def test_where_no_ray_answers_one_line_says_so(work):
    pytest.importorskip("ray")
    assert "cannot reach Ray at 127.0.0.1:1: ConnectionRefusedError" in run(LINE, SIZE, "--address 127.0.0.1:1").error
    assert not list(work.glob("strategies/*"))


# --- what stops a run, and how it is resumed


def test_d06_a_command_that_was_killed_goes_on_by_its_name_alone(work, leave, whole):
    """In the midst of its work; meanwhile no second driver comes in."""
    place = work / "strategies" / "tiny.unfinished"
    with started(LINE, SIZE, CHECKPOINTS) as child:
        log = place / "seed-0" / "log.jsonl"
        wait_until(lambda: log.exists() and log.read_bytes().count(b'"kind":"submit"') >= 2)
        assert f"is being driven by process {child.pid}" in run(RESUME).error
        child.kill()
        child.wait(60)
    assert not (work / "strategies" / "tiny").exists()
    known = len(verify_log(log).log)
    pieces = leave(None)
    ended = run(RESUME)
    assert ended.code == 0, ended.err
    assert "tiny: chosen among 6 trials on 2010-07-01:2010-09-30" in ended.out
    assert len(pieces) <= 2 * (6 - known)
    assert hash_of(work / "strategies" / "tiny") == whole
    assert sorted(path.name for path in (work / "strategies").iterdir()) == ["tiny"]


@contextmanager
def ray_killed(process, *pieces):
    """A command on Ray one of whose processes is killed as soon as a pod works; its exit code and what it printed."""
    with started(*pieces) as child:
        me = psutil.Process(child.pid)

        def processes():
            return {one.name().removeprefix("./"): one for one in me.children(recursive=True)}

        wait_until(lambda: any(name.startswith("ray::finpod-pod") for name in processes()), 120)
        family = me.children(recursive=True)
        next(one for name, one in processes().items() if name.startswith(process)).kill()
        out, err = child.communicate(timeout=60)
        yield SimpleNamespace(code=child.returncode, out=out, err=err)
        psutil.wait_procs(family, timeout=90)
        assert not [one for one in family if one.is_running()]


@pytest.mark.slow
@pytest.mark.parametrize("process", ["raylet", "gcs_server"])
def test_g19_a_ray_that_has_ended_is_told_with_the_way_to_go_on(work, whole, process):
    pytest.importorskip("ray")
    with ray_killed(process, LINE, SIZE, CHECKPOINTS, "--ray") as ended:
        assert ended.code == 2
        assert ended.err.splitlines()[-1] == (
            f"error: Ray on this machine has ended ({process} exited); `finpod train --resume strategies/tiny` goes on"
        )
        assert "Traceback" not in ended.err
        assert sum("error" in line for line in ended.err.lower().splitlines()) == 1
    assert run(RESUME).code == 0
    assert hash_of(work / "strategies" / "tiny") == whole


@pytest.mark.slow
def test_g19_a_walk_forward_whose_ray_has_ended_can_be_resumed(work):
    pytest.importorskip("ray")
    line = (
        "walkforward stocks --market sim --start 2010-09-01 --end 2010-12-31 --train 80 --validation 20 --test 40 "
        "--out strategies/wf --agents 2 --rounds 1 --keep 1 --steps 16384 --features return_5 --device cpu --no-report"
    )
    with ray_killed("raylet", line, "--ray") as ended:
        assert ended.code == 2
        assert ended.err.splitlines()[-1] == (
            "error: Ray on this machine has ended (raylet exited); go on with --resume"
        )
    assert run(line, "--resume").code == 0


def test_a_cluster_that_ends_the_command_interrupts_it(work, leave, whole, monkeypatch):
    from finpod.tournament import scheduler

    look = scheduler.Scheduler._look

    def ended(self):
        look(self)
        if len(self.board.log) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(scheduler.Scheduler, "_look", ended)
    stopped = run(LINE, SIZE)
    assert (stopped.code, stopped.err.splitlines()[-1]) == (130, "error: interrupted")
    monkeypatch.undo()
    monkeypatch.chdir(work)
    assert run(RESUME).code == 0
    assert hash_of(work / "strategies" / "tiny") == whole


def test_an_interrupted_run_is_gone_on_with_under_settings_that_no_agent_depends_on(work, leave, whole):
    leave(3)
    assert run(LINE, SIZE, CHECKPOINTS).code == 130
    assert "is an unfinished run; go on with it with --resume" in run(LINE, SIZE).error
    assert "--agents was 3 and is 5" in run(RESUME, "--agents 5").error
    assert (
        "--rebalance-every was 2 and is 3" in run("train --resume strategies/tiny.unfinished --rebalance-every 3").error
    )
    assert "--features was ['return_5'] and is ['volatility_21']" in run(RESUME, "--features volatility_21").error
    leave(1)
    assert run(RESUME, "--checkpoint-steps 16384").code == 130
    assert "--timeout needs --ray" in run(RESUME, "--timeout 5").error
    leave(None)
    ended = run("train --resume strategies/tiny.unfinished --json")
    assert ended.code == 0
    assert len(json.loads(ended.out)["board"]) == 6
    assert hash_of(work / "strategies" / "tiny") == whole


# --- a run that was begun from Python, or by an earlier version


PYTHON = """
import sys
import finpod
from finpod.rl.ppo import PPOConfig
from finpod.tournament.setup import Plan
from finpod.tournament.evolution import EvolutionConfig

market = finpod.load_market("data/sim") if sys.argv[1] == "file" else finpod.simulate_market(
    names=4, days=300, signal=0.1, seed=1)
finpod.train(market=market, train=("2010-02-01", "2010-06-30"), validation=("2010-07-01", "2010-09-30"),
             out="strategies/python", agents=3, rounds=2, keep=2, steps=8192, features=["return_5"], device="cpu", hold=2,
             config=PPOConfig(gamma=0.9), plan=Plan(checkpoint_steps=2048, retries=1, search=EvolutionConfig(fresh=0.5)),
             costs=finpod.Costs(fee_bps=5.0, per_share=0.01), tilt=2.0, num_envs=64)
"""
"""A run with settings that the command line has no option for."""
OPTIONS = "--train 2010-02-01:2010-06-30 --validation 2010-07-01:2010-09-30 --out strategies/python --fee-bps 5"


@contextmanager
def python(folder, simulated, source):
    """That run in a folder."""
    save_snapshot(simulated, folder / "data" / "sim")
    with subprocess.Popen([sys.executable, "-c", PYTHON, source], cwd=folder, env=ENVIRONMENT) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.fixture(scope="module")
def killed(simulated, tmp_path_factory):
    """Folders of unfinished runs from Python, by where their market came from."""
    folders = {}
    for source in ("file", "memory"):
        folder = tmp_path_factory.mktemp(source)
        folders[source] = folder / "strategies" / "python.unfinished"
        log = folders[source] / "seed-0" / "log.jsonl"
        with python(folder, simulated, source):
            wait_until(lambda log=log: log.exists() and log.read_bytes().count(b'"kind":"submit"') >= 2)
    return folders


@pytest.fixture(scope="module")
def whole_python(simulated, tmp_path_factory):
    """The hash of the ensemble of that run when nobody ends it."""
    folder = tmp_path_factory.mktemp("whole-python")
    with python(folder, simulated, "file") as child:
        assert child.wait(120) == 0
    return hash_of(folder / "strategies" / "python")


@pytest.mark.parametrize("options", ["", OPTIONS], ids=["by its name", "with all options"])
@pytest.mark.parametrize(("source", "market"), [("file", ""), ("memory", "--market sim")])
def test_g18_a_run_begun_from_python_is_resumed(work, killed, whole_python, source, market, options):
    shutil.copytree(killed[source], work / "strategies" / "python.unfinished")
    if not market:
        shutil.rmtree(work / "data")  # the log knows where the market is
    known = len(verify_log(work / "strategies" / "python.unfinished" / "seed-0" / "log.jsonl").log)
    ended = run("train --resume strategies/python", market, options)
    assert ended.code == 0, ended.err
    assert hash_of(work / "strategies" / "python") == whole_python
    assert len(verify_log(work / "strategies" / "python" / "log-0.jsonl").log) == 6 > known >= 2


def test_g18_a_run_begun_from_python_is_forked(work, killed):
    shutil.copytree(killed["memory"], work / "strategies" / "python.unfinished")
    assert "--out is missing" in run("train --fork strategies/python --market sim").error
    ended = run("train --fork strategies/python --market sim --out strategies/other --agents 4 --keep 1 --json")
    assert ended.code == 0, ended.err
    made = json.loads(ended.out)
    assert (made["plan"]["agents"], made["plan"]["keep"], len(made["members"])) == (4, 1, 1)
    assert made["trading"]["costs"] | {"fee_bps": 5.0, "per_share": 0.01} == made["trading"]["costs"]
    assert (made["trading"]["tilt"], made["trading"]["num_envs"]) == (2.0, 64)
    assert (work / "strategies" / "python.unfinished").exists()


def test_g18_the_market_of_a_run_is_asked_for_and_held_against_the_log(work, killed):
    shutil.copytree(killed["memory"], work / "strategies" / "python.unfinished")
    for command in ("train --resume strategies/python", "train --fork strategies/python --out strategies/other"):
        assert "python.unfinished was begun with a market from memory (simulated market: 4 names" in run(command).error
        assert run(command).error.endswith("give it with --market")
    save_snapshot(finpod.simulate_market(names=4, days=300, signal=0.1, seed=2), work / "data" / "other")
    refused = run("train --resume strategies/python --market other").error
    assert "python.unfinished/seed-0 was begun with other data: task.training_data_hash was " in refused
    assert refused.endswith("give the market it was begun with")
    assert run("train --resume strategies/python --market sim").code == 0


def test_g18_all_options_are_held_against_the_log(work, killed):
    shutil.copytree(killed["file"], work / "strategies" / "python.unfinished")
    refused = run("train --resume strategies/python", OPTIONS, "--agents 4").error
    assert "agents was 3 and is 4" in refused
    assert "was 5.0 and is 7.0" in run("train --resume strategies/python", OPTIONS.replace("bps 5", "bps 7")).error
    refused = run("train --resume strategies/python --train 2010-03-01:2010-06-30").error
    assert "and is ['2010-03-01', '2010-06-30']" in refused


def test_g18_functions_are_no_part_of_a_log(work, simulated):
    def stop(status):
        raise KeyboardInterrupt

    def age(market):
        return np.arange(market.shape[0])[:, None] + np.zeros(market.shape[1])

    with pytest.raises(KeyboardInterrupt):
        finpod.train(
            market=simulated, train=("2010-02-01", "2010-06-30"), validation=("2010-07-01", "2010-09-30"),
            out="strategies/own", features=["return_5", age], steps=16384, watch=stop, device="cpu",
        )  # fmt: skip
    refused = run("train --resume strategies/own --market sim").error
    assert "own.unfinished uses the feature function age, which a log cannot hold; continue from Python" in refused


def test_a_fork_goes_on_elsewhere(work, leave, whole):
    leave(8)
    assert run(LINE, SIZE, CHECKPOINTS).code == 130
    leave(None)
    ended = run("train --fork strategies/tiny --out strategies/other --keep 1")
    assert ended.code == 0, ended.err
    assert "other: chosen among 6 trials" in ended.out
    assert "--out is missing" in run("train --fork strategies/tiny").error
    assert "there is no unfinished run" in run("train --fork strategies/nothing --out strategies/more").error
    assert run(RESUME).code == 0
    assert hash_of(work / "strategies" / "tiny") == whole


@pytest.mark.parametrize(
    ("place", "here", "named", "goal"),
    [
        ("other/copy.unfinished", ".", "other/copy", "other/copy"),
        ("other/copy.unfinished", ".", "other/copy.unfinished", "other/copy"),
        ("tiny.unfinished", "elsewhere", "../tiny", "tiny"),
        ("tiny", ".", "./tiny --out strategies/tiny", "strategies/tiny"),
    ],
)
def test_a_run_that_was_moved_is_resumed_where_its_name_says(work, leave, whole, monkeypatch, place, here, named, goal):
    leave(3)
    assert run(LINE, SIZE).code == 130
    for folder in (here, str((work / place).parent)):
        (work / folder).mkdir(exist_ok=True)
    (work / "strategies" / "tiny.unfinished").rename(work / place)
    assert "there is no unfinished run at strategies/tiny.unfinished" in run(RESUME).error or place == "tiny"
    monkeypatch.chdir(work / here)
    leave(1)
    assert run(f"train --resume {named}").code == 130
    leave(None)
    ended = run(f"train --resume {named}")
    assert ended.code == 0, ended.err
    assert hash_of(work / goal) == whole
    assert not (work / place).exists() or place == goal


def test_a_run_whose_name_does_not_tell_its_output_or_that_holds_this_folder_is_refused(work, leave, monkeypatch):
    leave(1)
    assert run(LINE, SIZE).code == 130
    place = work / "strategies" / "tiny.unfinished"
    shutil.copytree(place, work / "tiny")
    assert "tiny does not end in .unfinished" in run("train --resume ./tiny").error
    for inside, named in ((".", "."), ("seed-0", place)):
        monkeypatch.chdir(place / inside)
        assert "is the current folder or one above it" in run(f"train --resume {named}").error


@pytest.mark.parametrize("named", ["--resume strategies/tiny --storage ../logs/run", "--resume ../logs/run"])
def test_a_run_with_a_storage_of_its_own_goes_where_it_was_asked_to_go(work, leave, whole, monkeypatch, named):
    leave(5)
    assert run(LINE, SIZE, "--storage logs/run").code == 130
    leave(None)
    (work / "elsewhere").mkdir()
    monkeypatch.chdir(work / "elsewhere")
    assert run("train", named).code == 0
    assert hash_of(work / "strategies" / "tiny") == whole
    assert not (work / "logs" / "run").exists()


def test_a_market_that_has_gone_is_told_with_its_option(work, leave):
    (work / "bars").symlink_to(work / "data" / "sim")
    leave(1)
    assert run(LINE.replace("--market sim", "--market ./bars"), SIZE).code == 130
    (work / "bars").unlink()
    assert f"there is no market {work}/bars" in run(RESUME).error


def test_a_run_at_a_url_is_gone_on_with_there(work, leave, whole, monkeypatch):
    leave(3)
    url = f"memory://{work.name}/run"
    assert run(LINE, SIZE, f"--storage {url}").code == 130
    assert not list(work.glob("strategies/*"))
    leave(1)
    assert run(f"train --resume {url}").code == 130
    leave(None)
    (work / "elsewhere").mkdir()
    monkeypatch.chdir(work / "elsewhere")
    assert run(RESUME, f"--storage {url} --market {work}/data/sim").code == 0
    assert hash_of(work / "strategies" / "tiny") == whole
    assert (
        "tiny is finished: there is nothing to go on with"
        in run(f"train --resume {work}/strategies/tiny --storage {url}").error
    )
    assert f"there is no unfinished run at {url}" in run(f"train --resume tiny --storage {url}").error


def test_a_driver_that_dies_as_it_clears_leaves_a_run_that_is_finished(work, leave, whole, monkeypatch):
    from finpod.tournament import run_folder

    with monkeypatch.context() as dying:
        dying.setattr(run_folder.RunFolder, "clear", lambda folder: os.kill(os.getpid(), signal.SIGTERM))
        assert run(LINE, SIZE).code == 130
    for line in (RESUME, f"{LINE} {SIZE} --resume strategies/tiny"):
        assert run(line).error == (
            "strategies/tiny is finished; strategies/tiny.unfinished is a leftover of it, and may be removed"
        )
    shutil.rmtree(work / "strategies" / "tiny.unfinished")
    for line in (RESUME, f"{LINE} {SIZE} --resume strategies/tiny"):
        assert run(line).error == "strategies/tiny is finished: there is nothing to go on with"
    assert hash_of(work / "strategies" / "tiny") == whole


def test_a_run_that_is_to_replace_another_is_not_taken_for_its_leftover(work, leave):
    assert run(LINE, SIZE).code == 0
    leave(1)
    assert run(LINE, SIZE, "--seed 1 --overwrite").code == 130
    leave(None)
    assert (
        "strategies/tiny is finished, and strategies/tiny.unfinished is another run; give that another --out"
        in run(RESUME).error
    )
    ended = run(RESUME, "--overwrite --json")
    assert ended.code == 0
    assert json.loads(ended.out)["seeds"] == [1]


def test_a_run_that_is_not_there_is_not_gone_on_with(work):
    assert "there is no unfinished run" in run(RESUME).error
    (work / "strategies" / "tiny.unfinished" / "seed-0").mkdir(parents=True)
    (work / "strategies" / "tiny.unfinished" / "seed-0" / "log.jsonl").write_bytes(b"")
    assert "ended before anything was logged; give --train, --validation and --out too" in run(RESUME).error
    place = Store(work / "strategies" / "tiny.unfinished")
    with lock(place):
        assert "is being driven by process" in run(LINE, SIZE, "--overwrite").error
    assert run(RESUME, LINE.removeprefix("train stocks"), SIZE).code == 0


def test_d05_agents_that_fail_are_listed_last_and_the_rest_are_chosen(work, monkeypatch):
    from finpod.tournament import training

    run_slice = training.run_slice

    def fails(setup, piece):
        if piece.settings.agent_id == "0-1":
            raise ValueError("not finite")
        return run_slice(setup, piece)

    monkeypatch.setattr(training, "run_slice", fails)
    ended = run(LINE, SIZE)
    assert ended.code == 0
    assert "agent 0-1 is out: ValueError: not finite" in ended.err
    _, failed = ended.out.split("failed, or begun again")
    assert [line.split()[:4] for line in failed.splitlines()[2:3]] == [["1", "0-1", "1", "failed"]]
    content = json.loads((work / "strategies" / "tiny" / "ensemble.json").read_text())
    assert content["provenance"]["failed"] == 1
    assert "0-1" not in {member["agent"] for member in content["provenance"]["members"]}
    assert [line["trial"] for line in content["log"] if line["score"] is None] == [1]


def test_the_board_is_that_of_the_leaderboard(work, monkeypatch):
    """Of several seeds the best, with the same levels; and the command for the rest."""
    monkeypatch.setattr("finpod.cli.train.TOP", 4)
    ended = run(LINE, SIZE, "--seeds 2 --stop-trials 3")
    assert "and 2 more; finpod leaderboard strategies/tiny --top 6 shows all" in ended.out.splitlines()
    board = run("leaderboard strategies/tiny --top 4").out.splitlines()
    start = next(at for at, line in enumerate(board) if line.split()[:4] == ["rank", "seed", "agent", "parent"])
    assert "\n".join(board[start : start + 5]) in ended.out


def test_where_every_agent_fails_one_line_says_why_and_nothing_is_left(work, monkeypatch):
    from finpod.tournament import training

    def fails(setup, piece):
        raise ValueError("not finite")

    monkeypatch.setattr(training, "run_slice", fails)
    assert "every agent failed, the last of them thus: ValueError: not finite" in run(LINE, SIZE).error
    assert not list(work.glob("strategies/*"))


def test_stop_rules_are_told_in_the_log_and_the_board_is_what_there_is(work):
    ended = run(LINE, SIZE, "--stop-trials 2")
    assert "chosen among 2 trials" in ended.out
    board = verify_log(work / "strategies" / "tiny" / "log-0.jsonl")
    assert [trial.number for trial in board.log] == [0, 1]
    assert not math.isnan(board.log[0].score)
    assert np.isfinite(board.log[0].returns).all()
    last = (work / "strategies" / "tiny" / "log-0.jsonl").read_text().splitlines()[-1]
    assert '"reason":"2 trials"' in last
