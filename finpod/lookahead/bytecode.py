"""What a function is about to do, or has done, by the text of its code: clocks that it reads, and native functions it names."""

from __future__ import annotations

import dis
import time
from datetime import date
from functools import lru_cache
from itertools import pairwise
from types import CodeType, FrameType, ModuleType
from typing import Any

UNTOLD = {
    ("pyarrow._csv", "read_csv"): "reads a file (pyarrow.csv.read_csv)",
    ("pyarrow._csv", "open_csv"): "reads a file (pyarrow.csv.open_csv)",
    ("pyarrow._json", "read_json"): "reads a file (pyarrow.json.read_json)",
    ("pyarrow._json", "open_json"): "reads a file (pyarrow.json.open_json)",
    ("pyarrow.lib", "memory_map"): "reads a file (pyarrow.memory_map)",
    ("pyarrow.lib", "OSFile"): "reads a file (pyarrow.OSFile)",
}
"""Native functions whose calls Python does not tell of either: a function of the user's that names one is taken to call it."""

CLOCKS = {"time", "time_ns", "clock_gettime", "clock_gettime_ns"}
CLOCKS_WITHOUT = {"localtime": 0, "gmtime": 0, "ctime": 0, "asctime": 0, "strftime": 1}
"""Functions of `time` that read the clock when they are given no more than so many arguments."""
CLOCKS_OF_DATES = {"now", "utcnow", "today"}
CLOCKS_BY_WORD = {"datetime64", "Timestamp", "to_datetime"}
"""What reads the clock when it is given 'now' or 'today'."""
ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD"}
CLOCK_NAMES = CLOCKS | set(CLOCKS_WITHOUT) | CLOCKS_OF_DATES


def clock_of(function: Any, name: str, frame: FrameType) -> str | None:
    """The clock that a builtin function reads, given how it is called."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, ModuleType):
        if owner is not time or name in CLOCKS_OF_DATES:
            return None
        given = _arguments(frame)
        asks = name in CLOCKS or (given is not None and given <= CLOCKS_WITHOUT[name])
        return f"time.{name}" if asks else None
    if isinstance(owner, type) and issubclass(owner, date) and name in CLOCKS_OF_DATES:
        return f"{owner.__name__}.{name}"
    return None


def _arguments(frame: FrameType) -> int | None:
    """Number of arguments of the call that a frame is making; None where it is not written down."""
    for at in dis.get_instructions(frame.f_code):
        if at.offset == frame.f_lasti:
            return at.arg if at.opname == "CALL" else None
    return None


def is_dropped(frame: FrameType) -> bool:
    """Whether a frame makes nothing of what the call that it is making gives back."""
    after = (at for at in dis.get_instructions(frame.f_code) if at.offset > frame.f_lasti)
    return next((at.opname == "POP_TOP" for at in after), False)


@lru_cache(maxsize=4096)
def clock_in(code: CodeType) -> str | None:
    """A clock of pandas' or numpy's that the text of a function reads."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "PUSH_NULL"]
    for one, following in pairwise(steps):
        if one.argval == "Timestamp" and following.opname in ATTRIBUTE and following.argval in CLOCKS_OF_DATES:
            return f"Timestamp.{following.argval}"
        if one.argval in CLOCKS_BY_WORD and following.opname == "LOAD_CONST" and following.argval in ("now", "today"):
            return f"{one.argval}('{following.argval}')"
    return None


def named_in(frame: FrameType) -> list[tuple[str, str]]:
    """Kind and text of the clocks and native readers that a function which returns has called, by what its names stand for."""
    steps = [step for step in dis.get_instructions(frame.f_code) if step.opname not in {"PUSH_NULL", "PRECALL"}]
    found = []
    for i, step in enumerate(steps):
        if not step.opname.startswith("LOAD_") or step.opname in ATTRIBUTE or not isinstance(step.argval, str):
            continue
        value, owner, end = _value_of(step, frame), None, i + 1
        while end < len(steps) and steps[end].opname in ATTRIBUTE and isinstance(value, (ModuleType, type)):
            owner, value = value, _attribute(value, steps[end].argval)
            end += 1
        given = steps[end].argval if end < len(steps) and steps[end].opname == "LOAD_CONST" else None
        found.append(_deed_of(value, owner, given))
    return [deed for deed in dict.fromkeys(found) if deed]


def _value_of(step: dis.Instruction, frame: FrameType) -> Any:
    if step.opname in {"LOAD_GLOBAL", "LOAD_NAME"}:
        return frame.f_globals.get(step.argval)
    return frame.f_locals.get(step.argval) if step.opname != "LOAD_CONST" else None


def _attribute(owner: Any, name: str) -> Any:
    """That of a module or class, without waking a module that loads its parts when asked."""
    return vars(owner).get(name) if isinstance(owner, ModuleType) else getattr(owner, name, None)


def _deed_of(value: Any, owner: Any, given: Any) -> tuple[str, str] | None:
    name = getattr(value, "__name__", None)
    if not isinstance(name, str):
        return None
    bound = getattr(value, "__self__", owner)
    if isinstance(bound, type) and bound.__module__.startswith("pandas") and issubclass(bound, date):
        return ("clock", f"reads the clock ({bound.__name__}.{name})") if name in CLOCKS_OF_DATES else None
    module = getattr(value, "__module__", None) or ""
    if name in CLOCKS_BY_WORD and given in ("now", "today") and module.partition(".")[0] in {"pandas", "numpy"}:
        return "clock", f"reads the clock ({name}('{given}'))"
    deed = UNTOLD.get((module, name))
    return ("file", deed) if deed else None
