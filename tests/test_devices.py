"""Choice of the device, and the number of cores that the process may use."""

import os
import subprocess
import sys

import pytest
import torch

from finpod.devices import pick_device
from finpod.errors import InputError


@pytest.mark.parametrize(
    ("name", "gpus", "device"), [("auto", 0, "cpu"), ("auto", 1, "cuda"), ("cpu", 1, "cpu"), ("cuda", 1, "cuda")]
)
def test_d14_auto_is_the_cpu_without_a_gpu_and_the_gpu_with_one(monkeypatch, name, gpus, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert pick_device(name).type == device


@pytest.mark.parametrize("name", ["cuda", "cuda:3", "gpu", "", "cuda:x", "CPU", "mps"])
def test_d14_a_device_that_is_not_there_is_named(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match=repr(name)) as raised:
        pick_device(name)
    assert raised.value.argument == "device"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_g17_cores_are_those_that_the_process_may_use():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    code += "from finpod.devices import usable_cores; print(usable_cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"
