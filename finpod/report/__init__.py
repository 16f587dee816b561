"""One self-contained HTML file per backtest: no script, no network, every figure as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from finpod.files import refuse_existing, write_text

if TYPE_CHECKING:
    from finpod.result import BacktestResult


def write_report(result: BacktestResult, path: str | Path, overwrite: bool = True) -> Path:
    """Write the report of `result` to `path`, whole or not at all, and return the path.

    Equal results give equal bytes. A chart or a section that raises an error is left out, with one line in its place and a
    ReportWarning. Raises InputError if the file exists and `overwrite` is false, or cannot be written.
    """
    target = Path(path)
    refuse_existing(target, overwrite)
    write_text(target, render(result))
    return target


def render(result: BacktestResult) -> str:
    """The report as HTML; warns of each part that was left out."""
    from finpod.backtesting.text import columns
    from finpod.report.charts import CHARTS
    from finpod.report.pages import Draft
    from finpod.report.sections import HEAD, LEAD, SECTIONS

    draft, template = Draft(f"report of {result.strategy}"), "_sections.html.j2"
    legend = {key.replace("_", "-"): name for key, name in columns(result).items()} | {"random": "random portfolios"}
    shared = {"charts": draft.charts(CHARTS, result.by_session()), "legend": legend, "result": result}
    start, end = (f"{result.equity.index[row]:%Y-%m-%d}" for row in (0, -1))
    return draft.page(
        "page.html.j2",
        title=f"{result.strategy}, {start} to {end}",
        strategy=result.strategy,
        head={part.name: part.html for part in draft.sections(template, HEAD, result, **shared)},
        lead=draft.sections(template, LEAD, result, **shared),
        sections=draft.sections(template, SECTIONS, result, **shared),
    )
