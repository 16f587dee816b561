"""Functions that choose the torch device (GPU or CPU) and the seeds of torch generators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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


def torch_seed(seed: int) -> int:
    """Return a seed of 32 bits for `torch.Generator.manual_seed`, which ignores higher bits on the CPU.

    Seeds below 2**32 are returned unchanged. Larger seeds are hashed, so 7 and 7 + 2**32 give different random numbers.
    """
    return seed if seed < 2**32 else int(np.random.SeedSequence(seed).generate_state(1)[0])
