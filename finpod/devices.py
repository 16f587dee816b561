"""The device for computing, GPU or CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finpod.errors import InputError

if TYPE_CHECKING:
    import torch


def pick_device(name: str = "auto") -> torch.device:
    """Return the torch device `name`, such as 'cpu' or 'cuda:1'. 'auto' returns the GPU if there is one, else the CPU.

    Raises InputError for an unknown name, and for a GPU that does not exist.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, colon, index = name.partition(":")
    if kind not in ("cpu", "cuda") or bool(colon) != index.isdigit():
        raise InputError(f"unknown device {name!r}; choose auto, cpu, cuda or cuda:N", argument="device")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise InputError(f"device is {name!r}, but torch finds no such GPU here; choose auto or cpu", argument="device")
    return torch.device(name)
