"""Output of the commands: tables and JSON on stdout, progress and remarks on stderr."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import count
from pathlib import Path
from typing import Any

from finpod.errors import FinpodError, ReportWarning, did_you_mean
from finpod.figures import in_columns
from finpod.files import Progress, to_json

RENAMED = {"--hold": "--rebalance-every", "--alike": "--max-correlation", "--fresh": "--restart-rate"}
"""Old name of an option -> its new name."""
FIELDS = {
    "features": "features_from",
    "stop.seconds": "stop_minutes",
    "hold": "rebalance_every",
    "alike": "max_correlation",
    "num_envs": "envs",
    "pods.count": "pods",
    "pods.cpus": "pod_cpus",
    "pods.gpus": "pod_gpus",
    "ray": "ray_version",
}
"""Name of a field or argument -> its option, if the names differ."""
SECTIONS = ("plan", "pods", "stop", "task")
"""Prefixes of the names of settings in messages, such as plan in plan.agents. Options are named without them."""


def show_json(value: Any) -> None:
    """Print a value as JSON; NaN and infinities become null."""
    print(to_json(value), end="")


def show_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values in two columns; a list takes one line per item."""
    width = max(map(len, facts), default=0)
    for name, fact in facts.items():
        lines = list(fact) if isinstance(fact, (list, tuple)) else [fact]
        for number, line in enumerate(lines or [""]):
            print(f"{name if number == 0 else '':<{width}}  {'none' if line == '' else _text(line)}")


def show(facts: Mapping[str, Any], as_json: bool) -> None:
    """Print names and values, as JSON or in two columns."""
    show_json(facts) if as_json else show_facts(facts)


def show_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows with equal keys as a table. The keys are the headings; numbers are aligned right."""
    if not rows:
        return
    lines = [list(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
    print("\n".join(in_columns(lines, [isinstance(value, (int, float)) for value in rows[0].values()])))


def remark(text: str) -> None:
    """Print one line on stderr."""
    print(text, file=sys.stderr)


def explain(error: BaseException, command: Any) -> tuple[str, int]:
    """Return (text of an error, exit code). In the text, names of arguments are replaced by options of the command."""
    if isinstance(error, FinpodError):
        return _with_options(error, command), 2
    if isinstance(error, SystemExit):
        return f"the strategy or a feature ended the program (SystemExit: {error.code}); remove its call of exit()", 2
    if isinstance(error, OSError):
        return f"{error.filename or 'the system'}: {error.strerror or error}; --debug shows where", 2
    if not hasattr(error, "format_message"):
        return f"unexpected {type(error).__name__}: {error}; --debug shows where", 1
    # A usage error of typer. Its class and wording differ between versions.
    context = getattr(error, "ctx", None)
    see = f"see {context.command_path if context else 'finpod'} --help"
    typed = getattr(error, "option_name", None)
    known = [spelling for one in command.params for spelling in one.opts if spelling.startswith("--")]
    if typed and typed not in known:
        if (new := RENAMED.get(typed)) in known:
            return f"{typed} is now {new}", 2
        return f"no such option: {typed}; {did_you_mean(typed, known, see)}", 2
    faults: list[Any] = getattr(error.__cause__, "errors", list)()  # of pydantic, whose texts mostly omit the value
    text = error.format_message().rstrip(".")
    rejected = f", not {faults[0]['input']!r}" if faults and faults[0]["type"] != "value_error" else ""
    return f"{text.replace('Value error, ', '', 1)}{rejected} ({see})", 2


def _with_options(error: FinpodError, command: Any) -> str:
    """Return the text of an error with the names of arguments replaced by options of the command.

    `fee_bps` becomes --fee-bps, `overwrite=True` --overwrite and `fill='close'` --fill close. If the text does not name
    the argument of the error, it is prefixed with the option.
    """
    by_name = {one.name: one for one in command.params if one.opts[0].startswith("--")}
    argument = error.argument or ""

    def option_of(name: str) -> Any:
        section, _, rest = name.partition(".")
        field = rest.rpartition(".")[2] if section in SECTIONS else ""
        tried = (name, FIELDS.get(name), f"{section}_{field}", field, FIELDS.get(field))
        return next((by_name[one] for one in tried if one in by_name), None)

    def spelled(place: int, word: str) -> str:
        core = word.rstrip(",.;:)")
        name, equals, value = core.partition("=")
        option = option_of(name)
        if option is None or not (equals or "_" in name or "." in name or (place == 0 and name == argument)):
            return word
        spellings = option.secondary_opts if value == "False" else option.opts
        value = "none" if value == "None" else value.strip("'")
        if value.startswith("{"):  # {'FB':'META'}: the option takes a file
            value = f"FILE, a CSV of the lines old,new and {value.strip('{}').replace(':', ',')}".replace("'", "")
        shown = "" if value in ("", "True", "False") else f" {value}"
        return f"{spellings[0]}{shown}{word.removeprefix(core)}" if spellings else word

    text, about = " ".join(map(spelled, count(), str(error).split())), option_of(argument)
    if about is None or about.opts[0] in text or argument.replace("_", " ") in text:
        return text
    return f"{about.opts[0]}: {text}"


def say_device(name: str) -> None:
    """If `name` is 'auto', print which device it selects. Raises InputError if `name` is 'cuda' and there is no GPU."""
    from finpod.devices import pick_device

    device = pick_device(name).type
    if name == "auto":
        remark("no GPU found: computing on the CPU" if device == "cpu" else "computing on the GPU")


def show_paths(paths: Iterable[Path], as_json: bool) -> None:
    """Print the written paths, on stderr if stdout has JSON."""
    for path in paths:
        print(path, file=sys.stderr if as_json else sys.stdout)


def show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Print a ReportWarning as one line on stderr, other warnings as Python does."""
    if issubclass(category, ReportWarning):
        remark(f"warning: {message}")
    else:
        print(warnings.formatwarning(message, category, filename, lineno), end="", file=sys.stderr)


@contextmanager
def progress(text: str) -> Iterator[Progress]:
    """Show a progress bar on stderr while the block runs, and yield the function that updates it.

    Without a terminal, a line is printed at each tenth of the work. What the block prints (for example, from a user's
    strategy) goes to stderr, so stdout has only the output of the command.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    with redirect_stdout(sys.stderr):
        if not console.is_terminal:
            yield lines()
            return
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(text, total=1.0)
            yield lambda doing, share: bar.update(task, description=doing, completed=share)


def lines() -> Progress:
    """Return a function that prints the current step on stderr at each tenth of the work."""
    passed = -1

    def report(doing: str, share: float) -> None:
        nonlocal passed
        if int(share * 10) > passed:
            passed = int(share * 10)
            remark(f"{doing} ({share:.0%})")

    return report


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
