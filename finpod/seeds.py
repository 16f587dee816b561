"""Seeds: the one check of every function that takes one, and how a torch generator uses all of its bits."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from finpod.errors import InputError

LIMIT = 2**64
"""Seeds lie below this number."""


def require_seed(seed: Any, name: str = "seed") -> int:
    """`seed` as an int. Raises InputError unless it is a whole number from 0 to 2**64 - 1."""
    if isinstance(seed, Integral) and not isinstance(seed, bool):
        seed = int(seed)
        if 0 <= seed < LIMIT:
            return seed
    raise InputError(f"{name} is {seed!r}; it must be a whole number from 0 to 2**64 - 1, such as 0", argument=name)


def torch_seed(seed: int) -> int:
    """32 bits for `torch.Generator.manual_seed`, which on the CPU drops all higher bits.

    Seeds below 2**32 are returned as they are. All bits of a larger seed are hashed into 32, so that 7 and 7 + 2**32 give
    different streams.
    """
    return seed if seed < 2**32 else int(np.random.SeedSequence(seed).generate_state(1)[0])
