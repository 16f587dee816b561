"""The command line that a cluster runs, and what would go wrong with it there.

Commands of finpod's are read by its own parser and held against what `finpod train` checks before it begins, so that no
machine is paid for to say so; other commands are left alone.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from finpod.deploy.cluster import Workers
from finpod.errors import InputError

LOGIN = re.compile(r"://[^/\s]*:[^/\s]*@")
"""A URL with a user and a password in it."""
FILE = "file://"


def entrypoint(command: Sequence[str]) -> str:
    """The words of a command as one line for a shell.

    Raises InputError for no words, for a password in a URL, which would stand in plain text, for a command of finpod's that
    would end at once, and for a `finpod train` that does not ask for Ray.
    """
    if not command:
        raise InputError("there is no command; give it after --, such as -- finpod train stocks ... --ray")
    for word in command:
        if LOGIN.search(word):
            shown = LOGIN.sub("://...@", word)
            raise InputError(f"{shown} holds a password, which would stand in plain text; put it into a Secret")
    given = train_options(command)
    if given is not None:
        if not given["ray"] and given["address"] is None:
            raise InputError("finpod train would leave the workers idle; add --ray to it")
        _require_whole(given)
        _require_sound(given)
    return shlex.join(command)


def require_placed(command: Sequence[str], workers: Sequence[Workers]) -> None:
    """Raise InputError for a `finpod train` whose pods fit on no worker, or that leaves GPUs unused that it pays for."""
    given = train_options(command)
    if given is None:
        return
    cpus, gpus = given["pod_cpus"], given["pod_gpus"]
    most = max(group.gpus for group in workers)
    paid = [group for group in workers if group.gpus and (group.least or all(other.gpus for other in workers))]
    if not gpus and paid:
        raise InputError(
            f"the {paid[0].name} workers have GPUs and finpod train would use none; add --pod-gpus 1 to it, or a fraction"
        )
    if gpus and not most:
        raise InputError(f"--pod-gpus {gpus:g} fits on no worker, for none has a GPU; add GPU workers, or leave it out")
    if gpus > most:
        raise InputError(f"--pod-gpus {gpus:g} fits on no worker, for none has more than {most}; ask for less")
    room = max(group.cpus for group in workers if group.gpus >= gpus)
    if cpus > room:
        kind = "worker with such GPUs" if gpus else "worker"
        raise InputError(f"--pod-cpus {cpus:g} fits on no {kind}, for none has more than {room}; ask for less")


def require_kept(command: Sequence[str], mounts: Sequence[str]) -> None:
    """Raise InputError for a `finpod train` whose ensemble, log or checkpoints would vanish with the pod: off every mount.

    An ensemble is made beside its place and moved into it, so that it cannot be a mount itself.
    """
    given = train_options(command)
    if given is None:
        return
    out, storage, resume = (None if given[name] is None else str(given[name]) for name in ("out", "storage", "resume"))
    if out is not None and (not _lies_on(out, mounts) or posixpath.normpath(out) in mounts):
        raise InputError(
            f"--out {out} would be lost with the head pod; mount a claim (NAME:/runs) and train into it (--out /runs/...)"
        )
    if storage is not None and not _lies_on(storage, mounts):
        raise InputError(
            f"--storage {storage} would be lost with the head pod; give a URL such as s3://bucket/run, a folder on a claim, or "
            "leave it out"
        )
    if resume is not None and storage is None and not _lies_on(resume, mounts):
        raise InputError(
            f"--resume {resume} is not in the head pod; mount the claim it lies on (NAME:/runs) and name it there "
            "(--resume /runs/...)"
        )


def require_repeatable(command: Sequence[str]) -> None:
    """Raise InputError for a `finpod train` that would find the unfinished run of its first attempt, and stop at it."""
    given = train_options(command)
    if given is not None and not given["resume"] and not given["overwrite"]:
        raise InputError(
            "a second attempt would stop at the unfinished run of the first; leave retries at 0 and make a job that goes on "
            "with it (finpod train --resume), or add --overwrite to begin anew"
        )


def require_plain(command: Sequence[str]) -> None:
    """Raise InputError for a word in which Kubernetes would put a variable of its own."""
    for word in command:
        if "$(" in word or "$$" in word:
            raise InputError(f"Kubernetes would read the dollar sign in {word!r}; write the word out")


def train_options(command: Sequence[str]) -> dict[str, Any] | None:
    """What a `finpod train` is given, by the names of its parameters; None for any other command.

    Raises InputError, in the words of finpod's own parser, for a command of finpod's that it does not take.
    """
    from finpod.cli import explain

    words = [word for word in command[1:] if word != "--debug"]  # which may stand anywhere
    if Path(command[0]).name != "finpod" or "--help" in words or words[:1] == ["--version"]:
        return None
    parser, name, rest, context = _parser(), "finpod", words, None
    try:
        while True:
            context = parser.make_context(name, list(rest), parent=context)
            if not hasattr(parser, "commands"):
                break
            if not rest:
                raise InputError(f"{context.command_path} names no command; see {context.command_path} --help")
            name, parser, rest = parser.resolve_command(context, rest)
    except Exception as error:  # the class of a usage error differs between the versions of typer
        if not hasattr(error, "format_message"):
            raise
        raise InputError(_would_fail(explain(error, words)[0])) from error
    return dict(context.params) if context.command_path == "finpod train" else None


@cache
def _parser() -> Any:
    """That of finpod's command line."""
    from typer.main import get_command

    from finpod.cli import app

    return get_command(app)


def _require_whole(given: Mapping[str, Any]) -> None:
    """Raise InputError for a new run without the options that it needs; a fork takes the days from what it copies."""
    from finpod.cli.train import check_task, needed

    try:
        check_task(given["task"])
    except InputError as error:
        raise InputError(_would_fail(str(error))) from error
    if given["resume"]:
        return
    missing = [f"--{name}" for name in (("out",) if given["fork"] else needed(given)) if given[name] is None]
    if missing:
        raise InputError(
            f"finpod train would end at once without {', '.join(missing)}; add that, or --resume with the name of a run"
        )


def _require_sound(given: Mapping[str, Any]) -> None:
    """Raise InputError for values that the parser takes and `finpod train` does not."""
    from finpod.cli import explain
    from finpod.cli.train import checked
    from finpod.runs import plain_word

    try:
        if given["out"] is not None:
            plain_word(PurePosixPath(posixpath.normpath(given["out"])).name)
        checked(given)
    except InputError as error:
        raise InputError(_would_fail(explain(error, ["train"])[0])) from error


def _lies_on(place: str, mounts: Sequence[str]) -> bool:
    """Whether a place outlives the pod: a URL, or a path on one of the mounts."""
    if "://" in place and not place.startswith(FILE):
        return True
    path = PurePosixPath(posixpath.normpath(place.removeprefix(FILE)))
    return any(path.is_relative_to(mount) for mount in mounts)


def _would_fail(why: str) -> str:
    return f"the command would fail: {' '.join(why.split())}"
