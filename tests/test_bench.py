"""`finpod bench`: what it counts and what it says; never how fast this machine is."""

import subprocess
import sys
import time

import pytest
import torch

from finpod import InputError
from finpod.bench import backtests
from finpod.bench import machine as bench


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(bench, "PANEL_NAMES", 4)
    monkeypatch.setattr(bench, "PANEL_DAYS", 300)
    for name, value in (("DAYS", 40), ("STRATEGIES", 3), ("RESAMPLES", 20)):
        monkeypatch.setattr(backtests, name, value)
    for peer in ("vectorbt", "quantstats", "pyfolio"):
        monkeypatch.setitem(sys.modules, peer, None)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def uncompiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda part, **_: part)


def test_d17_steps_of_all_accounts_are_counted():
    assert bench.rate(4096 * 100, 0.5) == 819_200


def test_d17_warm_up_is_left_out_and_the_device_has_finished_at_both_ends(monkeypatch):
    now, events = [100.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(bench, "_synchronise", lambda device: events.append("wait") or now.__setitem__(0, now[0] + 3))

    def call():
        events.append("call")
        now[0] += 50.0 if len(events) <= bench.WARM_UP else 0.25

    timing = bench.measure(call, 1.0, torch.device("cpu"))
    assert events == ["call"] * bench.WARM_UP + ["wait"] + ["call"] * 4 + ["wait"]
    assert timing == (4, 1.0 + 3.0), "what the device still had to do counts"
    assert bench.measure(call, 1e-9, torch.device("cpu")).calls == 1


@pytest.mark.filterwarnings(
    "ignore::finpod.errors.ReportWarning"
)  # the report leaves out what needs the absent pyfolio
def test_every_line_is_there(uncompiled):
    lines = bench.run(envs=8, names=3, seconds=0.01)
    for name in ("env", "env compiled", "env with policy", "train PPO"):
        assert lines[f"{name} steps/s"] > 0
        assert lines[f"{name} batch"].startswith("8 accounts x ")
    assert lines["panel seconds"] > 0
    assert lines["backtest bars/s"] > 0
    assert lines["bootstrap seconds"] > 0
    assert lines["report seconds"] > 0
    assert lines["task"] == "3 simulated stocks, action tilt, hold 5, horizon 20, 8 start groups"
    assert lines["device"] == "cpu"
    assert "cores" in lines["hardware"]
    assert lines["threads"] == "1"
    assert f"torch {torch.__version__}" in lines["versions"]
    announced = [*bench.ENVIRONMENT, *bench.PANEL, *backtests.BACKTEST, *backtests.BOOTSTRAP]
    assert list(lines)[:-5] == [*announced, *backtests.REPORT]


@pytest.mark.parametrize(
    ("what", "wanted"),
    [
        ("panel", bench.PANEL),
        ("train", ("train PPO steps/s", "train PPO batch")),
        ("env compiled", ("env compiled steps/s", "env compiled batch")),
        ("bootstrap", backtests.BOOTSTRAP),
        ("hardware", ("hardware",)),
    ],
)
def test_only_what_is_asked_for_is_measured(what, wanted, uncompiled, monkeypatch):
    measured = []
    for module, name in (
        (bench, "timed"),
        (bench, "_panel_lines"),
        (backtests, "backtest_lines"),
        (backtests, "bootstrap_lines"),
        (backtests, "report_lines"),
    ):
        whole = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, whole=whole: measured.append(whole.__name__) or whole(*a))
    assert tuple(bench.run(envs=4, names=3, seconds=0.01, what=what)) == tuple(wanted)
    assert len(measured) == (what != "hardware")


def test_a_word_that_is_in_no_line():
    lines, tasks = r"env steps/s, .*versions", "tournament, hopper, .*humanoid"
    with pytest.raises(InputError, match=f"no line has 'tempo' in its name; there are {lines}; with .*: {tasks}$"):
        bench.run(what="tempo")


def test_steps_and_time_make_the_rate(uncompiled):
    for name in ("env", "train PPO"):
        lines = bench.run(envs=4, names=2, seconds=0.01, what=name)
        words = lines[f"{name} batch"].replace(",", "").split()
        envs, steps, seconds = int(words[0]), int(words[3]), float(words[6])
        assert envs == 4
        assert lines[f"{name} steps/s"] == pytest.approx(envs * steps / seconds, rel=0.2)
        assert name == "env" or steps % 16 == 0


def test_a_machine_that_cannot_compile_says_so(monkeypatch):
    def refuse(part, **_):
        raise RuntimeError("no C++ compiler found\nand much more")

    monkeypatch.setattr(torch, "compile", refuse)
    lines = bench.run(envs=2, names=2, seconds=0.001, what="steps/s")
    assert lines["env compiled steps/s"] == "n/a: no C++ compiler found"
    assert lines["train PPO steps/s"] > 0


@pytest.mark.parametrize("sizes", [{"envs": 0}, {"names": 1}, {"seconds": 0}, {"seconds": float("nan")}])
def test_sizes_that_cannot_be_measured(sizes):
    with pytest.raises(InputError, match="a measurement needs"):
        bench.run(**sizes)


def test_d14_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match="choose auto or cpu"):
        bench.run(device="cuda")


def test_importing_it_costs_nothing():
    subprocess.run(
        [sys.executable, "-c", "import sys, finpod.bench.machine; sys.exit('torch' in sys.modules)"], check=True
    )
