import pytest
import torch

from finpod.devices import pick_device
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
