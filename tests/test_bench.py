"""`finpod bench`: the lines, the other packages and the output, but not the speed."""

import json
import multiprocessing
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_commands import run

from finpod.bench import backtests, locomotion, machine
from finpod.envs.locomotion.specs import spec_of
from finpod.synthetic import simulate_market


@pytest.fixture(autouse=True)
def small(monkeypatch, one_thread):
    """Small sizes, one core, and no peers."""
    sizes = {machine: {"PANEL_NAMES": 4, "PANEL_DAYS": 300},
             backtests: {"DAYS": 40, "STRATEGIES": 3, "RESAMPLES": 20}}  # fmt: skip
    for module, values in sizes.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "vectorbt", None)
    monkeypatch.setattr(locomotion, "cpu_count", lambda: 1)


@pytest.fixture
def clock(monkeypatch):
    """A clock that only `tick` moves, by so many seconds."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


# --- the clock


def test_d17_warm_up_is_left_out_the_device_has_finished_at_both_ends_and_all_accounts_count(clock, monkeypatch):
    events = []
    monkeypatch.setattr(machine, "_synchronise", lambda device: events.append("wait") or clock(3))

    def call():
        events.append("call")
        clock(50.0 if len(events) <= machine.WARM_UP else 0.25)

    lines = machine.measured("env", call, 1.0, torch.device("cpu"), 4096, steps=5)
    assert events == ["call"] * machine.WARM_UP + ["wait"] + ["call"] * 4 + ["wait"]
    assert lines == {  # 1 s, and 3 s of what the device still had to do
        "env steps/s": 20_480,
        "env batch": "4,096 accounts x 20 steps in 4.000 s",
    }


# --- stocks


def test_every_line_is_there(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda part, **_: part)
    lines = machine.run(envs=8, names=3, seconds=0.01)
    measured = [f"{name} steps/s" for name in machine.ENVIRONMENT]
    measured += ["panel seconds", "backtest bars/s", "bootstrap seconds", "report seconds"]
    assert all(lines[name] > 0 for name in measured)
    assert lines["backtest vectorbt bars/s"].startswith("n/a: ")
    assert lines["task"] == "3 simulated stocks, action tilt, hold 5, horizon 20, 8 start groups"
    assert f"torch {torch.__version__}" in lines["versions"]


def test_a_word_selects_and_a_machine_that_cannot_compile_says_so(monkeypatch):
    def refuse(part, **_):
        raise RuntimeError("no C++ compiler found\nand much more")

    monkeypatch.setattr(torch, "compile", refuse)
    lines = machine.run(envs=2, names=2, seconds=0.001, what="compiled")
    assert list(lines) == ["env compiled steps/s", "task", "device", "hardware", "threads", "versions"]
    assert lines["env compiled steps/s"] == "n/a: no C++ compiler found"


# --- backtests and reports


def test_vectorbt_gets_the_same_weights_prices_and_fees(monkeypatch):
    asked = []

    class Portfolio:
        orders = SimpleNamespace(records_readable="")

        @classmethod
        def from_orders(cls, close, **given):
            asked.append((close, given))
            return cls()

        def value(self):
            time.sleep(0.004)

        def asset_value(self, group_by):
            assert not group_by

    monkeypatch.setitem(sys.modules, "vectorbt", SimpleNamespace(Portfolio=Portfolio))
    lines = backtests.backtest_lines(4, 0.01)
    close, given = asked[0]
    market = simulate_market(names=4, days=41)
    np.testing.assert_array_equal(close, market.close)
    np.testing.assert_array_equal(given["size"], backtests.made_weights(3, market)[0])
    assert (given["fees"], given["size_type"], given["cash_sharing"]) == (0.001, "targetpercent", True)
    assert lines["backtest / vectorbt"] == lines["backtest bars/s"] / lines["backtest vectorbt bars/s"]
    assert lines["backtest vectorbt bars/s"] > 4 * 40 / 0.004 > lines["backtest vectorbt whole result bars/s"]


# --- locomotion

MEASURED = ("physics", "env", "env with policy", "train PPO", "gymnasium sync 2", "gymnasium async 1")
mujoco = pytest.mark.skipif(not find_spec("mujoco"), reason="needs MuJoCo")


def test_the_fastest_peer_counts_and_an_error_takes_the_place_of_a_figure(clock, monkeypatch):
    taken = {2: 0.5, 4: 2.0, 1: 0.125}

    @contextmanager
    def opened(spec, count, parallel):
        if parallel and broken:
            raise RuntimeError("no gymnasium here\nand much more")
        yield lambda: clock(taken[count])

    monkeypatch.setattr(locomotion, "FEW", 2)
    monkeypatch.setattr(locomotion, "gymnasium_step", opened)
    broken = False
    lines = locomotion.beside_gymnasium(None, 4, 4.0, 48.0)
    rates = {name: rate for name, rate in lines.items() if isinstance(rate, float)}
    assert rates == {
        "gymnasium sync 2 steps/s": 4, "gymnasium sync 4 steps/s": 2, "gymnasium async 1 steps/s": 8,
        "gymnasium async 2 steps/s": 4, "env / gymnasium": 6,
    }  # fmt: skip
    broken = True
    lines = locomotion.beside_gymnasium(None, 4, 4.0, 48.0)
    assert lines["gymnasium async 1 steps/s"] == "n/a: no gymnasium here"
    assert lines["env / gymnasium"] == 48 / 4


@mujoco
def test_every_line_of_a_task_is_there_and_nothing_else_is_printed_or_written(apart, capfd):
    """HalfCheetah: of its model MuJoCo prints a warning and writes a log."""
    ended = run("bench halfcheetah --envs 2 --seconds 0.01 --device cpu --json")
    lines = json.loads(ended.out)
    assert (ended.code, ended.err, capfd.readouterr().err, list(apart.iterdir())) == (0, "", "", [])
    assert {f"{n} {end}" for n in MEASURED for end in ("steps/s", "batch")} <= set(lines)
    best = max(rate for name, rate in lines.items() if name.startswith("gymnasium") and name.endswith("/s"))
    assert lines["env / gymnasium"] == pytest.approx(lines["env steps/s"] / best)
    assert lines["train PPO batch"].startswith("2 worlds x 32 steps in ")


@mujoco
def test_a_peer_has_the_same_task_and_its_processes_end():
    def stepped(parallel):
        with locomotion.gymnasium_step(spec_of("ant"), 2, parallel) as step:
            return step()[:2]

    for one, other in zip(stepped(False), stepped(True), strict=True):
        np.testing.assert_array_equal(one, other)
    assert multiprocessing.active_children() == []


# --- the command


@pytest.mark.parametrize(("options", "values"), [
    ("hopper", ["pip install 'finpod[locomotion]'"]), ("env --device cuda", ["--device is 'cuda'"]),
    ("hopper --names 3", ["--names", "hopper"]), ("hopper --envs 0", ["--envs is 0"]),
    ("env --variant fast", ["--variant"]), ("env --seconds nan", ["--seconds is nan"]),
    ("hoper", ["'hoper'", "env compiled", "hopper, halfcheetah"]),
])  # fmt: skip
def test_errors_are_one_line(monkeypatch, options, values):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    if options == "hopper":
        monkeypatch.setitem(sys.modules, "mujoco", None)
    error = run("bench --device cpu", options).error
    assert all(value in error for value in values)


def test_the_command_prints_its_lines(monkeypatch):
    asked = {}
    monkeypatch.setattr(machine, "run", lambda **sizes: asked.update(sizes) or {"env steps/s": 819200.0})
    assert run("bench env --device cpu --envs 8 --names 3 --seconds 0.1").out == "env steps/s  819,200\n"
    assert asked == {"device": "cpu", "what": "env", "envs": 8, "names": 3, "seconds": 0.1}
