"""Outputs of a run: `backtests/NAME/`, then `reports/NAME.html`. Their paths are checked before the run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from finpod.errors import InputError, ReportWarning, with_kind
from finpod.files import BACKTESTS, RESULT, require_free, require_free_file, versions, write_text

if TYPE_CHECKING:
    from finpod.result import BacktestResult
    from finpod.tournament.history import History

REPORTS = Path("reports")
"""Folder of reports, relative to the current folder."""


class Outputs(NamedTuple):
    """Output paths of one run."""

    folder: Path
    """Folder of the result, `backtests/NAME`."""
    report: Path | None
    """Page of the run, `reports/NAME.html`; None if no report is wanted."""


def name_of(strategy: str | Path) -> str:
    """Return the default name of a run: FILE for FILE.py, FILE-CLASS for FILE.py:CLASS, or the last part of a path."""
    file, _, chosen = str(strategy).rpartition(":")  # file.py:ClassName
    if file.endswith(".py"):
        return f"{Path(file).stem}-{chosen}"
    path = Path(strategy)
    return path.stem if path.suffix == ".py" else path.resolve().name


def plan_outputs(name: str, *, report: bool = True, overwrite: bool = False) -> Outputs:
    """Return the output paths of the run `name`. Call this before a long computation.

    Raises InputError for an invalid file name, for outputs that exist (unless `overwrite`) or cannot be written.
    """
    word = plain_word(name)
    outputs = Outputs(BACKTESTS / word, REPORTS / f"{word}.html" if report else None)
    require_free(outputs.folder, overwrite, RESULT)
    if outputs.report is not None:
        require_free_file(outputs.report, overwrite)
    return outputs


def plain_word(name: str) -> str:
    """Return the name unchanged. Raises InputError if it cannot be the name of a file or folder."""
    if name in ("", ".", "..") or Path(name).name != name or not name.isprintable() or name != name.strip():
        raise InputError(
            f"{name!r} cannot be the name of a file; give a name without slashes, and without spaces at its ends",
            argument="name",
        )
    return name


def write_outputs(
    result: BacktestResult, outputs: Outputs, command: str, started: datetime, *, overwrite: bool = False
) -> list[Path]:
    """Save the run, then write its report (see `write_page`), and return the paths that were written.

    run.json has what result.json omits: the command, its times and the versions of packages. Raises InputError, and
    writes no report, if the run cannot be saved.
    """
    finished = datetime.now(UTC)
    run = {
        "command": command,
        "started": f"{started.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "finished": f"{finished:%Y-%m-%dT%H:%M:%SZ}",
        "seconds": round((finished - started).total_seconds(), 3),
        "versions": versions("python", "finpod", "numpy", "pandas", "pyarrow", "torch"),
    }
    saved = result.save(outputs.folder, overwrite=overwrite, run=run)
    if outputs.report is None:
        return [saved]
    return [saved, *write_page(outputs.report, result.report, saved=saved, overwrite=overwrite)]


def training_page(name: str) -> Path:
    """Return the path of the page of a training, `reports/NAME-training.html`."""
    return REPORTS / f"{plain_word(name)}-training.html"


def write_training_page(history: History, *, saved: Path | None = None, overwrite: bool) -> list[Path]:
    """Write the page of a training. `saved`, `overwrite` and the returned paths are those of `write_page`."""
    from finpod.report.training import render_training_report

    def write(page: Path) -> None:
        write_text(page, render_training_report(history))

    return write_page(training_page(history.name), write, saved=saved, overwrite=overwrite)


def write_page(
    page: Path, write: Callable[[Path], object], *, saved: Path | None = None, overwrite: bool
) -> list[Path]:
    """Write a page with `write`. Return a list with the path of the page; an empty list after an error.

    An error is issued as a ReportWarning, because the run itself is already saved (in `saved`, if given).
    """
    try:
        require_free_file(page, overwrite)
        write(page)
    except Exception as error:
        kept = "" if saved is None else f"; the run is saved in {saved}"
        earlier = f"; {page} is from an earlier run" if page.is_file() else ""
        warnings.warn(f"{page} was not written ({with_kind(error)}){kept}{earlier}", ReportWarning, stacklevel=2)
        return []
    return [page]
