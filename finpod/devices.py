"""Which device tensors live on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finpod.errors import InputError

if TYPE_CHECKING:
    import torch


def pick_device(name: str = "auto") -> torch.device:
    """'auto' is the GPU where there is one, else the CPU; 'cpu', 'cuda' and 'cuda:1' are meant as they stand.

    Raises InputError for an unknown name, and for a GPU that is not there.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or not (index == "" or index.isdigit()):
        raise InputError(f"unknown device {name!r}; choose auto, cpu or cuda")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device {name!r} was asked for, but torch finds no GPU of that number here; choose auto or cpu"
        )
    return torch.device(name)
