"""Fixtures shared by all tests, and the closing count of what was skipped for want of the shared data."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("MPLBACKEND", "Agg")

NO_SHARED = "shared data absent: set FINPOD_SHARED to the folder that holds data/"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the real data, `$FINPOD_SHARED` or `../shared`; skips where it is absent."""
    folder = Path(os.environ.get("FINPOD_SHARED") or Path(__file__).parents[2] / "shared")
    if not (folder / "data").is_dir():
        pytest.skip(NO_SHARED)
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = sum(NO_SHARED in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    terminalreporter.write_line(f"skipped for want of the shared data: {skipped}")
