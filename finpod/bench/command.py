"""What the commands `python -m finpod.bench.NAME` share: errors end in one line on stderr and exit code 2."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from finpod.errors import FinpodError


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """End the process."""
        self.exit(2, f"error: {' '.join(message.split())}\n")

    def add_folder(self, default: Path, what: str = "rows") -> None:
        """Add `-o`, the folder where rows are kept."""
        self.add_argument(
            "-o", dest="folder", metavar="FOLDER", type=Path, default=default,
            help=f"where {what} are kept (default: %(default)s)",
        )  # fmt: skip

    def run(self, command: Callable[[argparse.Namespace], None]) -> None:
        """Run a command with what was given; a FinpodError, or one of the file system, ends the process."""
        given = self.parse_args()
        try:
            command(given)
        except FinpodError as error:
            self.error(str(error))
        except OSError as error:
            self.error(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def whole(least: int) -> Callable[[str], int]:
    """Return what reads a whole number from `least` on."""

    def read(text: str) -> int:
        if text.isdecimal() and int(text) >= least:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")

    return read
