"""The command line: parsing and printing only. Errors end in one line on stderr and exit code 2."""

from __future__ import annotations

import os
import select
import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.main import get_command

from finpod import __version__
from finpod.cli import backtest, bench, console, data, deploy, leaderboard, render, train, walkforward
from finpod.errors import ReportWarning

INTERRUPTED = 130
UNREAD = 141
"""As a shell has it of a process that SIGPIPE ended."""

app = typer.Typer(
    name="finpod",
    help="Train stock-trading agents with deep reinforcement learning, and find out honestly whether they are any good.",
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
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (anywhere on the line).")
    ] = False,
) -> None:
    """The options before the command; `main` has read `--debug` already."""


def main(args: Sequence[str] | None = None) -> None:
    """Run one command line and end the process.

    Exit codes: 0; 2 for a wrong option or a FinpodError, which one line names; 130 when interrupted; 141, in silence, when
    nobody reads the output any more (`| head`); 1 for a fault of finpod's own. `--debug` adds the traceback.
    """
    given = list(sys.argv[1:] if args is None else args)
    words = [word for word in given if word != "--debug"]
    sys.exit(_run(words or ["--help"], shlex.join(["finpod", *given]), debug=len(words) < len(given)))


def _run(words: list[str], line: str, *, debug: bool) -> int:
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.simplefilter("ignore")  # they are for developers; what users must know is in the results
            warnings.filterwarnings("always", category=ReportWarning)
            warnings.showwarning = console.show_warning
            code = get_command(app).main(words, prog_name="finpod", standalone_mode=False, obj=line)
            if sys.stdout is not None:
                sys.stdout.flush()  # what cannot be written is known now, not as the interpreter ends
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (Exception, SystemExit) as caught:  # a SystemExit is that of a user's file: the command did not end
        error = _cause(caught)
        if isinstance(error, BrokenPipeError) and _is_unread():
            _drop_output()
            return UNREAD
        if debug:
            traceback.print_exc()
        return console.show_error(error, _command(words), words)
    if code == INTERRUPTED:
        print("error: interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _cause(caught: BaseException) -> BaseException:
    """The error itself: of a pipe that broke typer makes a SystemExit."""
    within = caught.__context__
    return within if isinstance(caught, SystemExit) and isinstance(within, BrokenPipeError) else caught


def _is_unread() -> bool:
    """Whether whoever read stdout has gone; pipes to pods break, too."""
    if sys.__stdout__ is None or not hasattr(select, "poll"):
        return False
    with suppress(OSError, ValueError):  # stdout is no file of the system
        output = select.poll()
        output.register(sys.__stdout__.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))
    return False


def _drop_output() -> None:
    """Keep the interpreter from a last try, as it ends, at what nobody reads."""
    if sys.__stdout__ is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.__stdout__.fileno())
        os.close(nowhere)


def _command(words: Sequence[str]) -> Any:
    """The command that a command line is for, as far as it names one."""
    command: Any = get_command(app)
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return command
