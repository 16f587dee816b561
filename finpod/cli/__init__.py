"""The command line: parsing and printing only. Errors end in one line on stderr and exit code 2."""

from __future__ import annotations

import os
import re
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
from finpod.cli import compare, console, data, deploy, judge, leaderboard, learn, render, train, walkforward
from finpod.errors import FinpodError, ReportWarning

INTERRUPTED = 130
UNREAD = 141
"""As a shell has it of a process that SIGPIPE ended."""

ALIASES = {
    "features": "features_from",
    "pods.count": "pods",
    "pods.cpus": "pod_cpus",
    "pods.gpus": "pod_gpus",
    "stop.seconds": "stop_minutes",
}
"""Arguments of the library whose options have another name."""
ARGUMENT = re.compile(r"(?<![\w.'/-])([a-z][\w.]*\w)(?:=(True\b|False\b|'\w+'|[\w.'-]*))?(?![\w=])")
"""An argument in a text of the library: `fee_bps`, `overwrite=True`, `fill='close'`, `out=`."""

app = typer.Typer(
    name="finpod",
    help="Train stock-trading agents with deep reinforcement learning, and find out honestly whether they are any good.",
    add_completion=False,
    rich_markup_mode=None,
)
app.add_typer(data.app, name="data", help="Fetch, import and inspect market data.")
app.add_typer(deploy.app, name="deploy", help="Images, cluster manifests and jobs for Ray.")
for command in (
    train.train,
    judge.backtest,
    judge.report,
    judge.audit,
    compare.compare,
    compare.export,
    leaderboard.leaderboard,
    render.render,
    learn.bench,
    learn.demo,
    walkforward.walkforward,
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
        message, code = explain(error, words)
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
        return code
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


def explain(error: BaseException, words: list[str]) -> tuple[str, int]:
    """What to say of an error, and the exit code."""
    if isinstance(error, FinpodError):
        return _with_options(error, words), 2
    if isinstance(error, SystemExit):
        return f"the strategy or a feature ended the program (SystemExit: {error.code}); take exit() out of it", 2
    if isinstance(error, OSError):
        return f"{error.filename or 'the system'}: {error.strerror or error}; --debug shows where", 2
    if not hasattr(error, "format_message"):
        return f"unexpected {type(error).__name__}: {error}; --debug shows where", 1
    # A usage error of typer, whose class and wording differ between its versions.
    message = error.format_message().rstrip(".").replace("Value error, ", "")
    value = _typed(getattr(error, "param", None), words)
    given = f", not {value!r}" if value is not None and repr(value) not in message else ""
    context = getattr(error, "ctx", None)
    return f"{message}{given} (see {context.command_path if context else 'finpod'} --help)", 2


def _typed(parameter: object, words: list[str]) -> str | None:
    """What was typed for an option; None if it is not among the words."""
    for option in getattr(parameter, "opts", ()):
        for word, following in zip(words, [*words[1:], None], strict=True):
            if word == option:
                return following
            if word.startswith(f"{option}="):
                return word.partition("=")[2]
    return None


def _with_options(error: FinpodError, words: list[str]) -> str:
    """The text of an error with the options of the command in the place of the library's arguments.

    `fee_bps` becomes --fee-bps, `overwrite=True` --overwrite and `fill='close'` --fill close. Where the text does not name
    the argument that the error is about, its option comes first.
    """
    command: Any = get_command(app)
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    parameters = {one.name: one for one in command.params if one.opts[0].startswith("--")}

    def option_of(argument: str, value: str = "") -> str | None:
        """The option of an argument or of a field of a setting: that of `stop.trials` is --stop-trials."""
        names = ALIASES.get(argument), argument.replace(".", "_"), argument.rpartition(".")[2]
        parameter = next((parameters[name] for name in names if name in parameters), None)
        spellings = [] if parameter is None else parameter.secondary_opts if value == "False" else parameter.opts
        return spellings[0] if spellings else None

    def as_option(match: re.Match[str]) -> str:
        argument, value = match[1], match[2]
        is_about = match.start() == 0 and argument == error.argument
        is_named = is_about or value is not None or "_" in argument or "." in argument
        option = option_of(argument, value or "") if is_named else None
        if option is None:
            return match[0]
        return option if value in (None, "", "True", "False") else f"{option} {value.strip(chr(39))}"

    text = ARGUMENT.sub(as_option, str(error))
    option = option_of(error.argument or "")
    shown = option is None or any(name in text for name in (option, str(error.argument).replace("_", " ")))
    return text if shown else f"{option}: {text}"
