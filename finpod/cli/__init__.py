"""The command line: parses options and prints results. An error prints one line on stderr (exit codes: see `main`)."""

from __future__ import annotations

import os
import select
import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer import Option
from typer.main import get_command

from finpod import __version__
from finpod.cli import backtest, bench, console, data, deploy, leaderboard, render, train, walkforward
from finpod.errors import ReportWarning

INTERRUPTED = 130
UNREAD = 141
"""Exit code of a process ended by SIGPIPE, as shells report it."""

app = typer.Typer(
    name="finpod",
    help="Train stock-trading agents with deep reinforcement learning, and test whether they are any good.",
    add_completion=False,
    rich_markup_mode=None,
)
app.add_typer(data.app, name="data", help="Fetch, import and inspect market data.")
app.add_typer(deploy.app, name="deploy", help="Images, cluster manifests and jobs for Ray.")
for command in (
    bench.demo,
    train.train,
    walkforward.walkforward,
    backtest.backtest,
    backtest.audit,
    backtest.report,
    backtest.compare,
    backtest.export,
    leaderboard.leaderboard,
    render.render,
    bench.bench,
):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"finpod {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, Option("--debug", help="Show the traceback of an error. May be anywhere on the line.")
    ] = False,
) -> None:
    """Options before the command. `--debug` is declared only so that --help lists it; `main` reads and removes it."""


def main(args: Sequence[str] | None = None) -> None:
    """Run one command line and end the process. `audit` and `submit` have their own exit codes, listed in their help.

    Codes of other commands: 0: success; 1: bug; 2: usage error, FinpodError or OSError; 130: interruption; 141: the
    reader of stdout, such as `| head`, has closed it. With codes 1, 2 and 130, a line is printed on stderr. With codes
    1 and 2, `--debug` also prints the traceback.
    """
    arguments = list(sys.argv[1:] if args is None else args)
    words = [word for word in arguments if word != "--debug"]
    sys.exit(_run(words or ["--help"], shlex.join(["finpod", *arguments]), debug=len(words) < len(arguments)))


def _run(words: list[str], line: str, *, debug: bool) -> int:
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.simplefilter("ignore")  # these are for developers; warnings for users are in the results
            warnings.filterwarnings("always", category=ReportWarning)
            warnings.showwarning = console.show_warning
            code = get_command(app).main(words, prog_name="finpod", standalone_mode=False, obj=line)
            if sys.stdout is not None:
                sys.stdout.flush()  # to raise the error of a failed write here
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (Exception, SystemExit) as caught:  # SystemExit: raised by a user's file
        error: BaseException = caught
        # typer replaces a BrokenPipeError by a SystemExit
        if isinstance(caught, SystemExit) and isinstance(caught.__context__, BrokenPipeError):
            error = caught.__context__
        if isinstance(error, BrokenPipeError) and _is_unread():
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards output that Python would write at exit
            return UNREAD
        if debug:
            traceback.print_exc()
        text, code = console.explain(error, _command(words))
        console.remark(f"error: {' '.join(text.split())}")
        return code
    if code == INTERRUPTED:
        print("error: interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _is_unread() -> bool:
    """Return True if the reader of stdout has closed it. A BrokenPipeError may also come from a worker process."""
    if not hasattr(select, "poll"):
        return False
    output = select.poll()
    output.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))


def _command(words: Sequence[str]) -> Any:
    """Return the command that the words name, or the group of commands (such as `data`) if they name only a group."""
    command: Any = get_command(app)
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return command
