"""What finpod raises.

FinpodError             one line: the value that is wrong and the way out; the command line exits with 2
├── InputError          an argument, a date, a path or an option that cannot be used (also a ValueError)
├── DataError           a price file, a frame or a snapshot that cannot be used (also a ValueError)
├── StrategyError       a strategy that cannot be loaded, or that decided something impossible
└── CheckpointError     a trained folder that is foreign, damaged or does not fit the market
"""


class FinpodError(Exception):
    """Base of everything finpod raises on purpose; its text is one line fit for a user."""


class InputError(FinpodError, ValueError):
    """An argument, a date, a path or an option that cannot be used."""


class DataError(FinpodError, ValueError):
    """A price file, a frame or a snapshot that cannot be used."""


class StrategyError(FinpodError):
    """A strategy that cannot be loaded, or that decided something impossible."""


class CheckpointError(FinpodError):
    """A trained folder that is foreign, damaged or does not fit the market it is used on."""
