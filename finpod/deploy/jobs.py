"""`dockerfile`: the image of a cluster; `submit`: run a command as a job of a running Ray cluster and follow it."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from finpod.errors import FinpodError, InputError, first_line

USER = 1000
"""User id in the image, and group id that may write to volume claims."""
SECRET = re.compile(r"(^|_)(api_?key|key|token|secret|passw(or)?d|pwd|credential)s?(_|$)", re.IGNORECASE)
"""Pattern of variable names that suggest a secret, which must not be written to a file."""
LOGIN = re.compile(r"://[^/\s]*:[^/\s]*@")
"""Pattern of a URL with a user and a password."""
INDEX = {False: "https://download.pytorch.org/whl/cpu", True: "https://pypi.org/simple"}
"""Package index for torch, without and with CUDA. Builds on PyPI include the libraries of CUDA."""
ADDRESS = "http://127.0.0.1:8265"
"""Address of Ray's dashboard, on this machine or forwarded to it."""
INSTEAD = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Environment variables that Ray uses instead of the given address."""
POLL = 0.5
"""Seconds between two queries of the status after the output has ended."""


def require_variable(name: str, value: str) -> None:
    """Raise InputError for an invalid variable name, and for a name that suggests a secret."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise InputError(f"{name!r} is not a valid name of a variable; give NAME=VALUE", argument="env")
    if SECRET.search(name):
        raise InputError(
            f"{name} may be a secret, which would be in plain text; put it into a Secret and name that", argument="env"
        )
    if "$(" in value:
        raise InputError(f"Kubernetes would expand $(...) in {name}={value}; write the value instead", argument="env")


def installed(package: str) -> str:
    """Return the installed version of a package, without its build tag. Raises InputError if it is not installed."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError as error:
        raise InputError(f"{package} is not installed here; install it, or give its version") from error


def command_line(command: Sequence[str]) -> str:
    """Return the words of a command as one line for a shell.

    Raises InputError for an empty command, and for a URL with a password, which would be stored as plain text.
    """
    if not command:
        raise InputError("there is no command; give one, such as: finpod deploy submit -- finpod train stocks --ray")
    for word in command:
        if LOGIN.search(word):
            shown = LOGIN.sub("://...@", word)
            raise InputError(f"{shown} has a password, which would be stored as plain text; put it into a Secret")
    return shlex.join(command)


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


class Job(NamedTuple):
    """State of a job."""

    id: str
    """Id of the job on the cluster."""
    status: str
    """Status of the job: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    exit_code: int
    """Exit code of the command: 0 for success, 128 + n after signal n, 1 for a failure without a code."""


def submit(
    command: Sequence[str],
    *,
    address: str = ADDRESS,
    working_dir: str | None = None,
    env: Mapping[str, str] | None = None,
    wait: bool = True,
    show: Callable[[str], object] = lambda text: None,
    say: Callable[[str], object] = lambda text: None,
) -> Job:
    """Run a command on the head of the cluster at `address`; `show` receives its output, `say` receives remarks.

    The command runs in `working_dir`: a folder, which is uploaded without the files that its .gitignore lists, or the URL of
    a .zip. Without `wait`, returns when the cluster has accepted the job. Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN for a
    cluster with a token. Raises InputError for an invalid command or folder and an unreachable cluster, and FinpodError if
    the connection is lost; the job then continues.
    """
    line = command_line(command)
    for name, value in (env or {}).items():
        require_variable(name, value)
    if working_dir is not None and "://" not in working_dir and not Path(working_dir).is_dir():
        raise InputError(f"{working_dir} is not a folder; give the working folder of the command")
    runtime = {"env_vars": dict(env or {}), "working_dir": working_dir}
    _require_address(address)
    try:
        from ray.job_submission import JobSubmissionClient

        client = JobSubmissionClient(address)
        job = client.submit_job(entrypoint=line, runtime_env={name: value for name, value in runtime.items() if value})
    except ImportError as error:
        raise InputError("Ray is not installed here; pip install 'ray[default]'") from error
    except Exception as error:  # Ray raises errors of many classes
        raise InputError(
            f"cannot submit to {address}: {first_line(error)}; forward it with kubectl port-forward service/NAME-head-svc 8265, "
            "or give --address; if it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        ) from error
    say(f"job {job} at {address}")
    if not wait:
        return Job(job, "PENDING", 0)
    later = f"see ray job logs --follow --address {address} {job}"
    try:
        return _follow(client, job, show)
    except KeyboardInterrupt:
        say(f"{job} continues; {later}")
        raise
    except Exception as error:  # aiohttp, requests and Ray raise errors of many classes
        raise FinpodError(f"lost {address}: {first_line(error)}; {job} may continue, {later}") from error


def _require_address(address: str) -> None:
    """Raise InputError if the address is not a URL, or Ray would use another address instead."""
    if not re.match(r"https?://\S+$", address):
        raise InputError(
            f"address {address!r} is not that of a dashboard; give one such as {ADDRESS}", argument="address"
        )
    for name in INSTEAD:
        if os.environ.get(name, address) != address:
            raise InputError(f"{name} is {os.environ[name]}, which Ray would use instead of {address}; unset it")


def _follow(client: Any, job: str, show: Callable[[str], object]) -> Job:
    """Show the output until it ends, then wait for the final status."""
    import asyncio

    async def tail() -> None:
        async for text in client.tail_job_logs(job):
            show(text)

    asyncio.run(tail())
    while not (status := client.get_job_status(job)).is_terminal():
        time.sleep(POLL)
    word = str(status.value)
    code = client.get_job_info(job).driver_exit_code if word == "FAILED" else int(word == "STOPPED")
    return Job(job, word, 1 if code is None else 128 - code if code < 0 else code)
