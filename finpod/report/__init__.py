"""One self-contained HTML file per backtest: no script, no network, every figure as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from finpod.result import BacktestResult


def write_report(result: BacktestResult, path: str | Path, overwrite: bool = True) -> Path:
    """Write the report of `result` to `path`, whole or not at all, and return the path.

    Equal results give equal bytes. A chart or a section that raises an error is left out, with one line in its place and a
    ReportWarning. Raises InputError if the file exists and `overwrite` is false, or cannot be written.
    """
    from finpod.report.pages import write_page

    return write_page(lambda: render(result), path, overwrite)


def render(result: BacktestResult) -> str:
    """The report as HTML; warns of each part that was left out."""
    from finpod.backtesting.text import columns
    from finpod.report.pages import render_page
    from finpod.report.sections import LAYOUT

    names = columns(result)
    legend = {key.replace("_", "-"): name for key, name in names.items()} | {"random": "random portfolios"}
    start, end = (f"{result.equity.index[row]:%Y-%m-%d}" for row in (0, -1))
    shared = {"result": result, "names": list(names.values()), "legend": legend, "start": start, "end": end}
    return render_page(LAYOUT, result, f"report of {result.strategy}", drawn=result.by_session(), **shared)
