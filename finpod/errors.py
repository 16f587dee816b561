"""What finpod raises.

FinpodError             one line: the value that is wrong and the way out; the command line exits with 2
├── InputError          an argument, a date, a path or an option that cannot be used (also a ValueError)
├── DataError           a price file, a frame or a snapshot that cannot be used (also a ValueError)
├── StrategyError       a strategy that cannot be loaded, or that decided something impossible
├── CheckpointError     a trained folder that is foreign, damaged or does not fit the market
└── EngineError         the engine that runs pods has ended; the run can be resumed

ReportWarning           a part of a report that could not be made and was left out; the command line prints it and goes on
"""

import difflib
from collections.abc import Iterable, Mapping


def first_line(error: BaseException) -> str:
    """First line of the text of an error; the name of its class if it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip()


class FinpodError(Exception):
    """Base of everything finpod raises on purpose; its text is one line fit for a user.

    `argument` is the name of the argument or setting that the error is about, None if it is about no single one. Texts name
    arguments as Python does, `fee_bps` or `overwrite=True`; the command line writes them as its options.
    """

    def __init__(self, text: str = "", argument: str | None = None) -> None:
        super().__init__(text)
        self.argument = argument


class InputError(FinpodError, ValueError):
    """An argument, a date, a path or an option that cannot be used."""


class DataError(FinpodError, ValueError):
    """A price file, a frame or a snapshot that cannot be used."""


class StrategyError(FinpodError):
    """A strategy that cannot be loaded, or that decided something impossible."""


class CheckpointError(FinpodError):
    """A trained folder that is foreign, damaged or does not fit the market it is used on."""


class EngineError(FinpodError):
    """The engine that runs pods has ended, such as Ray; what was finished is stored, so that the run can be resumed.

    `what` says which one and why, without the advice that the text adds.
    """

    def __init__(self, what: str, advice: str = "go on with resume=True") -> None:
        super().__init__(f"{what}; {advice}", argument="resume")
        self.what = what


class ReportWarning(UserWarning):
    """A part of a report that could not be made and was left out."""


def did_you_mean(word: str, choices: Iterable[str] | Mapping[str, str], otherwise: str) -> str:
    """Return "did you mean X?" for the choice that is spelled most like the word, or `otherwise` if none is close.

    A mapping goes from a spelling to the X that it stands for.
    """
    spellings = choices if isinstance(choices, Mapping) else {choice: choice for choice in choices}
    closest = difflib.get_close_matches(word, list(spellings), n=1)
    return f"did you mean {spellings[closest[0]]}?" if closest else otherwise
