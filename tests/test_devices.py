"""Choice of the device, and the number of cores that the process may use."""

import os
import subprocess
import sys

import pytest
import torch
from made_errors import refused

from finpod.devices import pick_device


@pytest.mark.parametrize(
    ("name", "gpus", "device"),
    [("auto", 0, "cpu"), ("auto", 1, "cuda"), ("cpu", 1, "cpu"), ("cuda", 1, "cuda"), ("cuda:0", 1, "cuda:0"),
     ("cuda", 0, None), ("cuda:1", 1, None), ("gpu", 1, None), ("", 1, None), ("cuda:x", 1, None), ("cpu:", 1, None)],
)  # fmt: skip
def test_d14_a_device_that_is_not_there_is_an_error_and_auto_is_the_cpu_without_a_gpu(monkeypatch, name, gpus, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if device:
        assert pick_device(name) == torch.device(device)
        return
    refused(repr(name), pick_device, name, about="device")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_g17_cores_are_those_that_the_process_may_use():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    code += "from joblib import cpu_count; print(cpu_count())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"
