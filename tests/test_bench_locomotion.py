"""`finpod bench ant` and the other locomotion tasks: what is measured, beside whom, and what is said; never how fast."""

import json
import os
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv

from finpod import InputError
from finpod.bench import locomotion as bench
from finpod.bench.machine import Work
from finpod.cli import main
from finpod.envs.locomotion.specs import SPECS, spec_of

pytest.importorskip("mujoco")

MEASURED = ("physics", "env", "env with policy", "train PPO", "gymnasium sync", "gymnasium async")
CIRCUMSTANCES = ("task", "engine", "integrator", "solver", "device", "hardware", "threads", "versions")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder of its own, one core and no EnvPool."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "usable_cores", lambda: 1)
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    return tmp_path


@pytest.fixture
def no_peers(monkeypatch):
    @contextmanager
    def missing(spec, count, parallel=False):
        raise RuntimeError("no gymnasium here\nand much more")
        yield

    monkeypatch.setattr(bench, "gymnasium_work", missing)


def test_every_line_is_there_and_nothing_else_is_printed_or_written(here, capfd):
    """HalfCheetah: of its model MuJoCo prints a warning and writes a log."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", "halfcheetah", "--envs", "2", "--seconds", "0.01", "--device", "cpu", "--json"])
    out, err = capfd.readouterr()
    lines = json.loads(out)
    assert (ended.value.code, err, list(here.iterdir())) == (0, "", [])
    assert set(lines) == {
        *(f"{n} {end}" for n in MEASURED for end in ("steps/s", "batch")),
        *CIRCUMSTANCES,
        "env / gymnasium",
    }
    assert all(lines[f"{name} steps/s"] > 0 for name in MEASURED)
    best = max(lines["gymnasium sync steps/s"], lines["gymnasium async steps/s"])
    assert lines["env / gymnasium"] == pytest.approx(lines["env steps/s"] / best)
    assert lines["train PPO batch"].startswith("2 worlds x 32 steps in ")
    assert lines["gymnasium async batch"].endswith("; best of 1 and 2")
    assert lines["task"] == "HalfCheetah-v5, standard variant: 17 inputs, 6 actions"
    assert (lines["integrator"], lines["solver"]) == ("EULER", "NEWTON")
    assert lines["threads"].endswith(" of the physics, 1 of torch")


@pytest.mark.parametrize(
    ("name", "variant"), [*((name, "standard") for name in SPECS), ("ant", "full"), ("ant", "fast")]
)
def test_all_tasks_and_variants_are_measured(name, variant, no_peers):
    lines = bench.run(name, envs=2, seconds=0.001, variant=variant)
    assert all(lines[f"{line} steps/s"] > 0 for line in MEASURED[:4])
    assert lines["task"] == spec_of(name, variant).title
    reason = "Gymnasium has no fast variant" if variant == "fast" else "no gymnasium here"
    assert lines["env / gymnasium"] == f"n/a: {reason}"
    assert ("gymnasium sync steps/s" in lines) == (variant != "fast")


def test_a_peer_has_the_same_task_and_all_its_environments_are_closed(monkeypatch):
    closed = []
    whole = AsyncVectorEnv.close
    monkeypatch.setattr(AsyncVectorEnv, "close", lambda env, **how: whole(env, **how) or closed.append(env))

    def step(spec, parallel):
        with bench.gymnasium_work(spec, 2, parallel) as work:
            obs, reward, *_ = work.call()
        return obs, reward

    (obs, reward), (same_obs, same_reward) = (step(spec_of("ant"), parallel) for parallel in (False, True))
    assert obs.shape == (2, 27)
    np.testing.assert_array_equal(obs, same_obs)
    np.testing.assert_array_equal(reward, same_reward)
    with pytest.raises(KeyboardInterrupt), bench.gymnasium_work(spec_of("hopper"), 1, parallel=True):
        raise KeyboardInterrupt
    assert len(closed) == 2
    assert not any(process.is_alive() for env in closed for process in env.processes)
    with bench.gymnasium_work(spec_of("ant", "full"), 1) as work:
        assert work.call()[0].shape == (1, 105)


def test_contenders_take_turns_and_the_best_of_a_name_counts(monkeypatch):
    now, order = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def contender(name, count, seconds):
        @contextmanager
        def opened():
            order.append(f"open {count}")
            yield Work(lambda: order.append(count) or now.__setitem__(0, now[0] + seconds), 1)
            order.append(f"close {count}")

        return bench.Contender(name, count, opened)

    rivals = [contender("ours", 9, 1.0), contender("x", 2, 0.5), contender("x", 4, 2.0)]
    lines = bench.side_by_side(rivals, 3.0, torch.device("cpu"))
    assert lines == {
        "ours steps/s": 9.0,
        "ours batch": "9 environments x 3 steps in 3.000 s",
        "x steps/s": 4.0,
        "x batch": "2 environments x 6 steps in 3.000 s; best of 2 and 4",
    }
    turns = [9] * 3 + [2] * 4 + [4] * 3
    assert [entry for entry in order if isinstance(entry, int)] == turns * bench.TURNS
    assert order[-3:] == ["close 4", "close 2", "close 9"]


def test_a_peer_that_fails_says_why_and_ours_may_not():
    def failing():
        raise ValueError("broken\nand much more")

    @contextmanager
    def sound():
        yield Work(lambda: None, 1)

    place = torch.device("cpu")
    ours, peer = bench.Contender("env", 1, sound), bench.Contender("x", 1, failing)
    lines = bench.side_by_side([ours, peer], 0.001, place)
    assert lines["env steps/s"] > 0
    assert lines["x steps/s"] == "n/a: broken"
    with pytest.raises(ValueError, match="broken"):
        bench.side_by_side([peer, ours], 0.001, place)


def test_envpool_is_measured_where_it_is_installed(monkeypatch, no_peers):
    made = {}

    def make_gymnasium(task, **options):
        made.update(options, task=task)
        return SimpleNamespace(
            reset=lambda: None, step=lambda action: made.update(shape=action.shape), close=made.clear
        )

    monkeypatch.setattr(bench, "find_spec", lambda name: name == "envpool")
    monkeypatch.setitem(sys.modules, "envpool", SimpleNamespace(make_gymnasium=make_gymnasium))
    with bench.envpool_work(spec_of("ant"), 3) as work:
        work.call()
        assert made["shape"] == (3, 8)
        assert (made["task"], made["num_envs"], made["use_contact_force"]) == ("Ant-v5", 3, False)
    assert not made
    lines = bench.run("hopper", envs=3, seconds=0.001)
    assert lines["envpool steps/s"] > 0
    assert lines["envpool batch"].startswith("3 environments x ")


def test_stderr_is_restored_after_an_error(capfd):
    with bench.silent():
        os.write(2, b"dropped")
    with pytest.raises(KeyboardInterrupt), bench.silent():
        raise KeyboardInterrupt
    os.write(2, b"kept")
    assert capfd.readouterr().err == "kept"


def test_random_actions_fill_the_action_space():
    actions = bench.random_actions(spec_of("humanoid"), 50)
    assert actions.shape == (bench.ACTIONS, 50, 17)
    assert 0.39 < np.abs(actions).max() <= 0.4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("hopper --names 3", ("--names means nothing to task 'hopper'",)),
        ("hopper --variant full", ("hopper has no variant 'full'", "standard, fast")),
        ("hopper --envs 0", ("envs 0", "one world")),
        ("hopper --seconds 0", ("seconds 0.0", "some time")),
        ("env --variant fast", ("--variant means nothing to stocks",)),
        ("tournament --envs 4", ("--envs means nothing to a tournament",)),
        ("hoper", ("no line has 'hoper'", "hopper, halfcheetah")),
    ],
)
def test_errors_are_one_line(options, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", *options.split(), "--device", "cpu"])
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert all(word in err for word in words)


def test_without_mujoco_a_line_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(InputError, match=r"not installed; pip install 'finpod\[locomotion\]'"):
        bench.run("ant", envs=2, seconds=0.001)


def test_the_threads_of_torch_are_left_as_they_were(no_peers):
    before = torch.get_num_threads()
    bench.run("swimmer", envs=2, seconds=0.001)
    assert torch.get_num_threads() == before
