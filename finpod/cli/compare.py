"""`finpod compare | export`: several runs in one table, and a run for other tools."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from finpod import runs
from finpod.cli import console, options
from finpod.errors import InputError
from finpod.files import EXPORT, require_free, require_free_file

Runs = Annotated[
    list[str], typer.Argument(metavar="RUN...", help="Two runs or more: folders, or names under backtests/.")
]
Name = Annotated[str, typer.Option(help="Heading of the page, and its file reports/NAME.html.")]


def compare(
    folders: Runs,
    out: Annotated[Path | None, typer.Option(help="The HTML file; reports/NAME.html if left out.")] = None,
    name: Name = "compare",
    overwrite: options.Overwrite = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no HTML page.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Set saved runs side by side on their common days; write one page and print the table."""
    import finpod
    from finpod.backtesting.comparison import compare as compared
    from finpod.backtesting.result_io import names_of, run_folder

    places = [run_folder(folder) for folder in folders]
    whole = [place.resolve() for place in places]
    if twice := next((place for place in whole if whole.count(place) > 1), None):
        raise InputError(f"{runs.name_of(twice)} is given twice; give each run once")
    target = None if no_report else out or runs.REPORTS / f"{runs.plain_word(name)}.html"
    with console.progress("reading") as report:
        results = [finpod.load_result(place) for place in places]
        if target is not None:
            require_free_file(target, overwrite)
        report("comparing", 0.3)
        found = compared(results, names=names_of(places))
        report("drawing", 0.8)
        written = runs.Written(())
        if target is not None:
            title = "" if name == "compare" else name
            written = runs.write_page(target, partial(found.report, title=title), overwrite=overwrite)
    print(found.to_json(), end="") if as_json else print(f"{found}\n")
    console.show_written(written, as_json)


def export(
    folder: Annotated[str, typer.Argument(metavar="RUN", help="A run: its folder, or its name under backtests/.")],
    out: Annotated[Path | None, typer.Option(help="The new folder; backtests/NAME-export if left out.")] = None,
    form: Annotated[Literal["csv", "parquet"], typer.Option("--format", help="Kind of the files.")] = "csv",
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a saved run as pyfolio, empyrical and quantstats read it: returns, positions, transactions, benchmark."""
    import finpod
    from finpod.backtesting.export import export as exported
    from finpod.backtesting.export import how_to_read
    from finpod.backtesting.result_io import run_folder

    place = run_folder(folder)
    target = out or runs.BACKTESTS / f"{runs.plain_word(runs.name_of(place))}-export"
    require_free(target, overwrite, EXPORT)
    with console.progress("writing"):
        notes = exported(finpod.load_result(place), target, format=form, overwrite=overwrite)
    files = sorted(path.name for path in target.iterdir() if path.name != EXPORT)
    if as_json:
        console.show_json({"folder": target, "files": {file: how_to_read(file) for file in files}, "notes": notes})
        return
    console.show_facts({str(target / file): how_to_read(file) for file in files})
    for note in notes:
        print(f"note: {note}")
