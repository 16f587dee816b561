"""The two outputs of a backtest, `backtests/NAME/` and `reports/NAME.html`: planned before the work, written both or none."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from finpod.errors import InputError
from finpod.files import BACKTESTS, parents_of, require_free, require_free_file, versions, write_bytes

if TYPE_CHECKING:
    from finpod.result import BacktestResult

REPORTS = Path("reports")
"""Where reports go, relative to the current folder."""
LONGEST = 200
"""Bytes of a name; file systems take 255, and a temporary name is longer than the name."""


class Outputs(NamedTuple):
    """Where one run goes."""

    folder: Path
    """`backtests/NAME`."""
    report: Path | None
    """`reports/NAME.html`, or None if no report is wanted."""


def name_of(strategy: str | Path) -> str:
    """The name a run takes from its strategy: a built-in name, the stem of a .py file or the name of a folder."""
    file, _, chosen = str(strategy).rpartition(":")  # file.py:ClassName
    if file.endswith(".py"):
        return f"{Path(file).stem}-{chosen}"
    path = Path(strategy)
    return path.stem if path.suffix == ".py" else path.resolve().name


def plan_outputs(name: str, *, report: bool = True, overwrite: bool = False) -> Outputs:
    """Where the run `name` goes, to be asked for before anything long is computed.

    Raises InputError for a name that is no file name, and for outputs that exist (unless `overwrite`) or could not be
    written.
    """
    word = plain_word(name)
    outputs = Outputs(BACKTESTS / word, REPORTS / f"{word}.html" if report else None)
    require_free(outputs.folder, overwrite, "result.json")
    if outputs.report is not None:
        require_free_file(outputs.report, overwrite)
    return outputs


def plain_word(name: str) -> str:
    """The name unchanged. Raises InputError if it could not be the name of one file or folder."""
    if name in ("", ".", "..") or Path(name).name != name or not name.isprintable() or name != name.strip():
        raise InputError(f"{name!r} cannot be a name; give a plain word, without a slash")
    if len(name.encode()) > LONGEST:
        raise InputError(f"{name[:20]!r}... cannot be a name, for it has {len(name)} letters; give a shorter one")
    return name


def is_report_of(result: BacktestResult, path: Path) -> bool:
    """Whether a file is the report of that strategy over that window, by its title: one that may be drawn again."""
    from markupsafe import escape

    days = result.equity.index
    title = f"<title>{escape(result.strategy)}, {days[0]:%Y-%m-%d} to {days[-1]:%Y-%m-%d}</title>"
    try:
        with path.open("rb") as file:
            head = file.read(len(title.encode()) + 2_000)
    except OSError:
        return False
    return head.startswith(b"<!doctype html>") and title.encode() in head


def write_outputs(result: BacktestResult, outputs: Outputs, run: dict[str, Any], *, overwrite: bool = False) -> None:
    """Write the folder and the report; if one of them fails, neither appears and earlier ones stay as they were.

    Raises InputError for what cannot be written.
    """
    if outputs.report is None:
        result.save(outputs.folder, overwrite=overwrite, run=run)
        return
    require_free_file(outputs.report, overwrite)
    with parents_of(outputs.report):
        earlier = outputs.report.read_bytes() if outputs.report.is_file() else None
        with tempfile.TemporaryDirectory(dir=outputs.report.parent, prefix=".") as drafts:
            draft = Path(drafts) / outputs.report.name
            result.report(draft)
            draft.replace(outputs.report)
        try:
            result.save(outputs.folder, overwrite=overwrite, run=run)
        except BaseException:
            outputs.report.unlink() if earlier is None else write_bytes(outputs.report, earlier)
            raise


def describe_run(command: str, started: datetime) -> dict[str, Any]:
    """Content of run.json: what differs from run to run, and is therefore kept out of result.json."""
    finished = datetime.now(UTC)
    return {
        "command": command,
        "started": f"{started.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "finished": f"{finished:%Y-%m-%dT%H:%M:%SZ}",
        "seconds": round((finished - started).total_seconds(), 3),
        "versions": versions("python", "finpod", "numpy", "pandas", "pyarrow", "torch"),
    }
