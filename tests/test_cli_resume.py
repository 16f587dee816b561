"""`finpod train --resume` and `--fork`: by name, from the log, with all options given, and from storage."""

import itertools
import json
import os
import shutil
import signal
from contextlib import chdir, suppress

import numpy as np
import pytest
from made_commands import SIMULATED, run
from made_tournaments import hash_of, leaving

import finpod
from finpod.market.load import save_snapshot
from finpod.rl.ppo import PPOConfig
from finpod.tournament import run_folder, scheduler
from finpod.tournament.setup import Plan

DAYS = {"train": ("2010-02-01", "2010-06-30"), "validation": ("2010-07-01", "2010-09-30")}
WINDOWS = " ".join(f"--{name} {':'.join(days)}" for name, days in DAYS.items())
LINE = f"train stocks --market sim {WINDOWS} --out strategies/tiny"
SIZE = "--agents 3 --rounds 2 --keep 2 --steps 32768 --features return_5 --device cpu --rebalance-every 2"
RESUME = "train --resume strategies/tiny"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The hash of the ensemble that a run makes that nobody interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    save_snapshot(SIMULATED, folder / "data" / "sim")
    with chdir(folder):
        assert run(LINE, SIZE).code == 0
    return hash_of(folder / "strategies" / "tiny")


@pytest.fixture
def leave(monkeypatch):
    """Interrupt training, as Ctrl-C does, after so many more slices; None to let it be."""
    run_slice = scheduler.run_slice

    def after(count):
        left = itertools.repeat(0, *[] if count is None else [count])

        def slices(setup, piece):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return run_slice(setup, piece)

        monkeypatch.setattr(scheduler, "run_slice", slices)

    return after


def test_a_cluster_that_ends_the_command_interrupts_it(work, whole, monkeypatch):
    look = scheduler.Scheduler._look

    def ended(self):
        look(self)
        if len(self.board.log) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as cluster:
        cluster.setattr(scheduler.Scheduler, "_look", ended)
        stopped = run(LINE, SIZE)
    assert (stopped.code, stopped.err.splitlines()[-1]) == (130, "error: interrupted")
    assert run(RESUME).code == 0
    assert hash_of(work / "strategies" / "tiny") == whole


def test_an_interrupted_run_is_gone_on_with_under_settings_that_no_agent_depends_on(work, leave, whole):
    leave(3)
    assert run(LINE, SIZE, "--checkpoint-steps 8192").code == 130
    assert json.loads(run(RESUME, "--check --json").out)["trials"] == 6
    for line, told in (
        (f"{LINE} {SIZE} --check", "strategies/tiny.unfinished"),
        (f"{RESUME}.unfinished --rebalance-every 3", "--rebalance-every was 2 and is 3"),
        (f"{RESUME} --features volatility_21", "--features was ['return_5'] and is ['volatility_21']"),
        (f"{RESUME} --timeout 5", "--timeout needs --ray"),
        (f"{RESUME} --learner apg --check", "--learner was 'ppo' and is 'apg', so"),
        ("train --fork strategies/tiny --out strategies/x --learner apg --check", "--learner was 'ppo'"),
    ):
        assert told in run(line).error
    leave(1)
    assert run(RESUME, "--checkpoint-steps 16384").code == 130
    leave(None)
    assert run("train --resume strategies/tiny.unfinished").code == 0
    assert hash_of(work / "strategies" / "tiny") == whole


OPTIONS = f"{WINDOWS} --out strategies/python --fee-bps 5"


def python(folder, source, until=np.inf):
    """Train in a folder, interrupted after some trials; the market is loaded from a file or lies in memory."""
    save_snapshot(SIMULATED, folder / "data" / "sim")
    with chdir(folder), suppress(KeyboardInterrupt):
        finpod.train(
            market=finpod.load_market("data/sim") if source == "file" else SIMULATED, **DAYS, out="strategies/python",
            agents=3, rounds=2, keep=2, steps=8192, features=["return_5"], device="cpu", hold=2, watch=leaving(until),
            config=PPOConfig(gamma=0.9), costs=finpod.Costs(fee_bps=5.0, per_share=0.01), tilt=2.0, num_envs=64,
            plan=Plan(checkpoint_steps=2048, retries=1, restart_rate=0.5),
        )  # fmt: skip
    return folder / "strategies"


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Folders of unfinished runs from Python, by where their market came from."""
    return {name: python(tmp_path_factory.mktemp(name), name, 2) / "python.unfinished" for name in ("file", "memory")}


@pytest.mark.parametrize(("source", "options"), [("file", ""), ("memory", f"--market sim {OPTIONS}")])
def test_g18_a_run_begun_from_python_is_resumed(work, killed, tmp_path_factory, source, options):
    shutil.copytree(killed[source], work / "strategies" / "python.unfinished")
    if not options:
        shutil.rmtree(work / "data")  # the log knows where the market is
    assert run("train --resume strategies/python", options).code == 0
    undisturbed = python(tmp_path_factory.mktemp("undisturbed"), source)
    assert hash_of(work / "strategies" / "python") == hash_of(undisturbed / "python")


def test_g18_a_run_begun_from_python_is_forked(work, killed):
    shutil.copytree(killed["memory"], work / "strategies" / "python.unfinished")
    assert "--out is missing" in run("train --fork strategies/python --market sim").error
    assert "--fee-bps was 5.0" in run("train --fork strategies/python --market sim --out x --fee-bps 4 --check").error
    line = "train --fork strategies/python --market sim --out strategies/other --agents 4 --keep 1 --json"
    made = json.loads(run(line).out)
    assert (made["plan"]["agents"], made["plan"]["keep"], len(made["members"])) == (4, 1, 1)
    assert made["trading"]["costs"] | {"fee_bps": 5.0, "per_share": 0.01} == made["trading"]["costs"]
    assert (made["trading"]["tilt"], made["trading"]["num_envs"]) == (2.0, 64)


def test_g18_market_and_options_are_held_against_the_log(work, killed):
    for name in ("file", "memory"):
        shutil.copytree(killed[name], work / "strategies" / f"{name}.unfinished")
    save_snapshot(finpod.simulate_market(names=4, days=300, signal=0.1, seed=2), work / "data" / "other")
    resume = "train --resume strategies/file"
    for line, told in (
        ("train --resume strategies/memory", "needs a market made in memory (simulated market: 4 names"),
        ("train --fork strategies/memory --out strategies/other", "--market"),
        ("train --resume strategies/memory --market other", "task.training_data_hash was "),
        (f"{resume} {OPTIONS.replace('python', 'file')} --agents 4", "agents was 3 and is 4"),
    ):
        assert told in run(line).error


def test_g18_functions_are_no_part_of_a_log(work):
    def age(market):
        return np.arange(market.shape[0])[:, None] + np.zeros(market.shape[1])

    with pytest.raises(KeyboardInterrupt):
        finpod.train(market=SIMULATED, **DAYS, out="strategies/own", features=["return_5", age], watch=leaving())
    assert "own.unfinished uses the feature function age" in run("train --resume strategies/own --market sim").error


@pytest.mark.parametrize(("options", "place", "here", "named", "goal"), [
    ("", "other/copy.unfinished", ".", "other/copy", "other/copy"),
    ("", "tiny", ".", "./tiny --out strategies/tiny", "strategies/tiny"),
    ("--storage logs/run", "logs/run", "elsewhere", "strategies/tiny --storage ../logs/run", "strategies/tiny"),
])  # fmt: skip
def test_a_run_is_resumed_where_its_name_says(work, leave, whole, monkeypatch, options, place, here, named, goal):
    leave(3)
    assert run(LINE, SIZE, options).code == 130
    for folder in (here, str((work / place).parent)):
        (work / folder).mkdir(exist_ok=True)
    if not options:
        (work / "strategies" / "tiny.unfinished").rename(work / place)
        assert "there is no unfinished run at strategies/tiny.unfinished" in run(RESUME).error or place == "tiny"
    monkeypatch.chdir(work / here)
    leave(1)
    assert run(f"train --resume {named}").code == 130
    leave(None)
    assert run(f"train --resume {named}").code == 0
    assert (hash_of(work / goal), (work / place).exists()) == (whole, place == goal)


def test_a_driver_that_dies_as_it_clears_leaves_a_run_that_is_finished(work, whole, monkeypatch):
    with monkeypatch.context() as dying:
        dying.setattr(run_folder.RunFolder, "clear", lambda folder: os.kill(os.getpid(), signal.SIGTERM))
        assert run(LINE, SIZE).code == 130
    for line in (RESUME, f"{LINE} {SIZE} --resume strategies/tiny"):
        assert "strategies/tiny exists" in run(line).error
    assert hash_of(work / "strategies" / "tiny") == whole


def test_a_run_that_is_to_replace_another_is_not_taken_for_its_leftover(work, leave):
    assert run(LINE, SIZE).code == 0
    leave(1)
    assert run(LINE, SIZE, "--seed 1 --overwrite").code == 130
    leave(None)
    assert "strategies/tiny exists" in run(RESUME).error
    ended = run(RESUME, "--overwrite --json")
    assert (ended.code, json.loads(ended.out)["seeds"]) == (0, [1])


def test_a_run_that_is_not_there_is_not_gone_on_with(work):
    assert "there is no unfinished run" in run(RESUME).error
    assert "strategies/tinny.unfinished" in run(LINE, SIZE, "--resume strategies/tinny").error
    (work / "strategies" / "tiny.unfinished" / "seed-0").mkdir(parents=True)
    (work / "strategies" / "tiny.unfinished" / "seed-0" / "log.jsonl").write_bytes(b"")
    assert "--train, --validation and --out" in run(RESUME).error
    assert run(RESUME, LINE.removeprefix("train stocks"), SIZE).code == 0
