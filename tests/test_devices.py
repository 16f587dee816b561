import builtins
import io
import os
import subprocess
import sys

import pytest
import torch

from finpod.devices import pick_device, usable_cores
from finpod.errors import InputError


@pytest.fixture
def gpus(monkeypatch):
    """Make torch see some number of GPUs."""

    def see(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return see


def test_d14_auto_is_the_cpu_without_a_gpu_and_the_gpu_with_one(gpus):
    gpus(0)
    assert pick_device("auto") == torch.device("cpu")
    gpus(1)
    assert pick_device("auto").type == "cuda"
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("cuda").type == "cuda"


def test_d14_a_gpu_that_is_not_there_is_an_error(gpus):
    gpus(0)
    with pytest.raises(InputError, match=r"cuda.*GPU.*choose.*auto.*cpu") as raised:
        pick_device("cuda")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "CPU", "mps"])
def test_an_unknown_device_is_named(gpus, name):
    gpus(1)
    with pytest.raises(InputError, match=r"choose .*auto, cpu") as raised:
        pick_device(name)
    assert repr(name) in str(raised.value)


@pytest.fixture
def computer(monkeypatch):
    """Make this computer one of `cores` cores of which the process may use `allowed`, with the cgroup files `quota`."""

    def limit(cores, allowed, quota):
        opened, there = builtins.open, os.path.exists
        monkeypatch.delenv("LOKY_MAX_CPU_COUNT", raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)), raising=False)
        files = {f"/sys/fs/cgroup/{name}": text for name, text in quota.items()}

        def is_there(path):
            return path in files if str(path).startswith("/sys/fs/cgroup/") else there(path)

        def read(path, *args, **kwargs):
            return io.StringIO(files[path]) if path in files else opened(path, *args, **kwargs)

        monkeypatch.setattr(os.path, "exists", is_there)
        monkeypatch.setattr(builtins, "open", read)

    return limit


V1 = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")


@pytest.mark.parametrize(
    ("cores", "allowed", "quota", "usable"),
    [
        (8, 8, {}, 8),
        (8, 1, {}, 1),
        (8, 3, {"cpu.max": "max 100000\n"}, 3),
        (8, 8, {"cpu.max": "200000 100000\n"}, 2),
        (8, 1, {"cpu.max": "200000 100000\n"}, 1),
        (8, 8, {"cpu.max": "50000 100000\n"}, 1),
        (8, 8, dict(zip(V1, ("400000\n", "100000\n"), strict=True)), 4),
        (8, 8, dict(zip(V1, ("-1\n", "100000\n"), strict=True)), 8),
    ],
)
def test_g17_cores_are_those_that_the_process_may_use(computer, cores, allowed, quota, usable):
    computer(cores, allowed, quota)
    assert usable_cores() == usable


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_g17_affinity_of_a_process():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    code += "from finpod.devices import usable_cores; print(usable_cores())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
