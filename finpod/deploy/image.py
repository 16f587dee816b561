"""`dockerfile`: the image of a cluster; `filled`: a template of this folder with its values."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

from finpod.errors import InputError

USER = 1000
"""User id in the image, and group id that may write to volume claims."""
INDEX = {False: "https://download.pytorch.org/whl/cpu", True: "https://pypi.org/simple"}
"""Package index for torch, without and with CUDA. Builds on PyPI include the libraries of CUDA."""


def installed(package: str) -> str:
    """Return the installed version of a package, without its build tag. Raises InputError if it is not installed."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError as error:
        raise InputError(f"{package} is not installed here; install it, or give its version") from error


def dockerfile(*, cuda: bool = False, copies: Sequence[str] = ()) -> str:
    """Return the text of a Dockerfile whose build context is the checkout.

    The versions of Python, torch and Ray are those of this machine; `docker build --build-arg` sets others. `copies` are files
    and folders of the checkout, such as data/nasdaq100, that are copied into the image under the same names. Raises InputError
    for a package that is not installed here, and a path that does not exist or is outside the current folder.
    """
    for path in copies:
        plain = PurePosixPath(path)
        if not re.fullmatch(r"[\w./-]+", path) or plain.is_absolute() or ".." in plain.parts or str(plain) == ".":
            raise InputError(f"{path!r} cannot be copied; give a path in the checkout", argument="copy")
        if not Path(path).exists():
            raise InputError(f"{path!r} does not exist here; run this in the checkout that has it", argument="copy")
    return filled(
        "Dockerfile.j2",
        kind="CUDA" if cuda else "CPU",
        index=INDEX[cuda],
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        torch=installed("torch"),
        ray=installed("ray"),
        copies=[PurePosixPath(path) for path in copies],
    )


def filled(template: str, **values: Any) -> str:
    """Return a template of this folder filled with values. The template's filter `text` quotes text for YAML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["text"] = partial(json.dumps, ensure_ascii=False)  # YAML reads quoted JSON
    return environment.get_template(template).render(values, user=USER)
