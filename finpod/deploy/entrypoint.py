"""The command line that a cluster runs, and what would go wrong with it there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath

from finpod.errors import InputError

LOGIN = re.compile(r"://[^/\s]*:[^/\s]*@")
"""A URL with a user and a password in it."""


def entrypoint(command: Sequence[str]) -> str:
    """The words of a command as one line for a shell.

    Raises InputError for no words, for a password in a URL, which would stand in plain text, and for a `finpod train` that
    does not ask for Ray.
    """
    if not command:
        raise InputError("there is no command; give it after --, such as -- finpod train stocks ... --ray")
    for word in command:
        if LOGIN.search(word):
            shown = LOGIN.sub("://...@", word)
            raise InputError(f"{shown} holds a password, which would stand in plain text; put it into a Secret")
    if is_train(command) and "--ray" not in command and not values(command, "--address"):
        raise InputError("finpod train would leave the workers idle; add --ray to it")
    return shlex.join(command)


def require_kept(command: Sequence[str], mounts: Sequence[str]) -> None:
    """Raise InputError for a `finpod train` whose ensemble would vanish with the pod: its --out lies on no mount."""
    if not is_train(command):
        return
    for out in values(command, "--out"):
        if not any(PurePosixPath(out).is_relative_to(mount) for mount in mounts):
            raise InputError(
                f"--out {out} would be lost with the head pod; mount a claim (NAME:/runs) and train into it (--out /runs/...)"
            )


def require_repeatable(command: Sequence[str]) -> None:
    """Raise InputError for a `finpod train` that would find the unfinished run of its first attempt, and stop at it."""
    if is_train(command) and not values(command, "--resume") and "--overwrite" not in command:
        raise InputError(
            "a second attempt would stop at the unfinished run of the first; leave retries at 0 and make a job that goes on "
            "with it (finpod train --resume), or add --overwrite to begin anew"
        )


def require_plain(command: Sequence[str]) -> None:
    """Raise InputError for a word in which Kubernetes would put a variable of its own."""
    for word in command:
        if "$(" in word or "$$" in word:
            raise InputError(f"Kubernetes would read the dollar sign in {word!r}; write the word out")


def is_train(command: Sequence[str]) -> bool:
    """Whether it is `finpod train`, by whatever path."""
    return len(command) > 1 and Path(command[0]).name == "finpod" and command[1] == "train"


def values(command: Sequence[str], option: str) -> list[str]:
    """What a command gives an option, as `--option VALUE` or `--option=VALUE`."""
    following = [after for word, after in pairwise(command) if word == option]
    return following + [word.partition("=")[2] for word in command if word.startswith(f"{option}=")]
