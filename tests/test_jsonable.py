"""JSON that any parser reads, the same for the same values."""

import json
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from finpod.files import to_json


def test_what_json_cannot_hold_becomes_null_and_keys_are_sorted():
    text = to_json({"b": [np.nan, np.float64("inf"), 1.5], "a": (np.int64(3), True, None)})
    assert text.index('"a"') < text.index('"b"')
    assert json.loads(text) == {"a": [3, True, None], "b": [None, None, 1.5]}


def test_dates_and_paths_are_text():
    value = {"day": date(2024, 1, 2), "session": np.datetime64("2024-01-02"), "path": Path("data/x"), 7: "seven"}
    assert json.loads(to_json(value)) == {"day": "2024-01-02", "session": "2024-01-02", "path": "data/x", "7": "seven"}


def test_an_object_is_refused():
    with pytest.raises(TypeError):
        to_json({"thing": object()})
