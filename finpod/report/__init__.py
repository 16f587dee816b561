"""One self-contained HTML file per backtest: no script, no network, every figure as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from finpod.files import refuse_existing, write_text

if TYPE_CHECKING:
    from finpod.result import BacktestResult


def write_report(result: BacktestResult, path: str | Path, overwrite: bool = True) -> Path:
    """Write the report of `result` to `path`, whole or not at all, and return the path.

    Equal results give equal bytes. Raises InputError if the file exists and `overwrite` is false, or cannot be written.
    """
    target = Path(path)
    refuse_existing(target, overwrite)
    write_text(target, render(result))
    return target


def render(result: BacktestResult) -> str:
    """The report as HTML."""
    from finpod.report.charts import draw
    from finpod.report.pages import fill
    from finpod.report.sections import contents

    return fill("page.html.j2", draw(result.by_session()), **contents(result))
