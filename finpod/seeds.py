"""Validation of seeds, and their conversion to seeds of torch generators."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from finpod.errors import InputError


def require_seed(seed: Any) -> int:
    """Return `seed` as an int. Raises InputError unless it is a whole number from 0 to 2**64 - 1."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= int(seed) < 2**64:
        raise InputError(f"seed is {seed!r}; it must be a whole number from 0 to 2**64 - 1, such as 0", argument="seed")
    return int(seed)


def torch_seed(seed: int) -> int:
    """Return a seed of 32 bits for `torch.Generator.manual_seed`, which ignores higher bits on the CPU.

    Seeds below 2**32 are returned unchanged. Larger seeds are hashed, so that 7 and 7 + 2**32 give different streams.
    """
    return seed if seed < 2**32 else int(np.random.SeedSequence(seed).generate_state(1)[0])
