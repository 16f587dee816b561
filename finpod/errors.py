"""The exceptions of finpod, and checks of arguments."""

import difflib
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any


def first_line(error: BaseException) -> str:
    """Return the first line of the text of an error, or the name of its class if it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip()


def with_kind(error: BaseException) -> str:
    """Return the first line of an error's text. Unless the error is a FinpodError, put its class first."""
    line, kind = first_line(error), type(error).__name__
    return line if isinstance(error, FinpodError) or line == kind else f"{kind}: {line}"


class FinpodError(Exception):
    """Base class of the exceptions of finpod. The text is one line that names the bad value and says how to correct it.

    After such an error, a command exits with code 2. `argument` is the name of the bad argument or setting, or None.
    Texts use Python names such as `fee_bps` or `overwrite=True`. A command prints its options instead.
    """

    def __init__(self, text: str = "", argument: str | None = None) -> None:
        super().__init__(text)
        self.argument = argument


class InputError(FinpodError, ValueError):
    """Raised for an argument, a date, a path or an option that cannot be used."""


class DataError(FinpodError, ValueError):
    """Raised for a price file, a frame or a snapshot that cannot be used."""


class StrategyError(FinpodError):
    """Raised for a strategy that cannot be loaded, or whose decision is invalid."""


class CheckpointError(FinpodError):
    """Raised for a folder of trained agents that is damaged, was not written by finpod, or does not fit the market."""


class EngineError(FinpodError):
    """Raised if the executor that trains the agents, such as Ray, fails. The run can be resumed from the finished work.

    The text of the error is `what`, which names the executor and the cause, followed by `advice`.
    """

    def __init__(self, what: str, advice: str = "continue with resume=True") -> None:
        super().__init__(f"{what}; {advice}", argument="resume")
        self.what = what


class ReportWarning(UserWarning):
    """Warning that a report, or a part of it, was not written. The command line prints it and continues."""


def did_you_mean(word: str, choices: Iterable[str] | Mapping[str, str], otherwise: str) -> str:
    """Return "did you mean X?" for the choice X whose spelling is closest to `word`, or `otherwise` if none is close.

    If `choices` is a mapping, `word` is compared with its keys, and the value of the closest key is suggested.
    """
    spellings = choices if isinstance(choices, Mapping) else {choice: choice for choice in choices}
    closest = difflib.get_close_matches(word, list(spellings), n=1)
    return f"did you mean {spellings[closest[0]]}?" if closest else otherwise


def require_number(name: str, value: Any, low: float, high: float = math.inf, *, whole: bool = False) -> None:
    """Raise InputError unless `value` is a finite number from `low` to `high`. If `whole` is True, it must be whole."""
    number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not (number and low <= value <= min(high, sys.float_info.max)):
        least = "above 0" if low == 1e-12 else f"of at least {low:g}"  # 1e-12 stands for the least positive number
        bound, kind = least if high == math.inf else f"from {low:g} to {high:g}", "whole" if whole else "finite"
        raise InputError(f"{name} is {value!r}; it must be a {kind} number {bound}", argument=name)


def require_choice(name: str, value: Any, choices: Sequence[str], more: str = "") -> None:
    """Raise InputError unless `value` is one of `choices`. The text `more` tells the user what else can be passed."""
    if value not in choices:
        hint = did_you_mean(str(value), choices, f"choose one of {', '.join(choices)}{more}")
        raise InputError(f"{name} is {value!r}; {hint}", argument=name)


def require_seed(seed: Any) -> int:
    """Return `seed` as an int. Raises InputError unless it is a whole number from 0 to 2**64 - 1."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= int(seed) < 2**64:
        raise InputError(f"seed is {seed!r}; it must be a whole number from 0 to 2**64 - 1, such as 0", argument="seed")
    return int(seed)
