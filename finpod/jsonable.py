"""Strict, deterministic JSON: keys sorted, numbers that JSON cannot hold as null, dates and paths as text."""

import json
import math
from collections.abc import Mapping
from datetime import date
from pathlib import PurePath
from typing import Any

import numpy as np


def to_json(value: Any) -> str:
    """Mappings, sequences, numpy scalars and plain values as text that ends in a newline. Raises TypeError for others."""
    return json.dumps(_plain(value), indent=1, sort_keys=True, allow_nan=False) + "\n"


def to_json_line(value: Any) -> str:
    """The same on a single line, without the newline."""
    return json.dumps(_plain(value), sort_keys=True, allow_nan=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if type(value) is float:  # most of what logs are made of
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value if isinstance(value, np.datetime64) else value.item()
    if isinstance(value, (PurePath, date, np.datetime64)):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
