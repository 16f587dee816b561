"""`submit`: a command as a job of a Ray cluster that is running, its output here, its exit code the command's own."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from finpod.deploy.cluster import require_variable
from finpod.deploy.entrypoint import entrypoint
from finpod.errors import FinpodError, InputError, first_line

ADDRESS = "http://127.0.0.1:8265"
"""Of the dashboard, on this machine or forwarded to it."""
INSTEAD = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Variables that Ray heeds before any address it is given."""
LOUD = ("ray.dashboard.modules.job.sdk", "ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging")
"""Loggers of Ray's client that tell what a user need not know."""
POLL = 0.5
"""Seconds between two looks at a job whose output has ended."""


class Job(NamedTuple):
    """A job, as far as it is known."""

    id: str
    """Its name at the cluster."""
    status: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    exit_code: int
    """Of the command; 0 as long as it has not failed, 1 where it failed without one."""


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
    """Run a command on the head of the cluster at `address`; `show` gets its output as it comes, `say` what happens.

    `working_dir` is a folder that is sent along, without what its .gitignore names, or the URL of a .zip; the command runs
    in it. Without `wait` it returns when the cluster has the job. The token that the cluster asks for is Ray's affair
    (RAY_AUTH_MODE=token, RAY_AUTH_TOKEN). Raises InputError for a command or a folder that cannot be, and for a cluster
    that cannot be reached; FinpodError where the connection is lost, for the job goes on without it.
    """
    line = entrypoint(command)
    environment = _runtime_env(working_dir, env or {})
    client = _client(address)
    try:
        job = client.submit_job(entrypoint=line, runtime_env=environment)
    except (RuntimeError, ValueError, OSError) as error:
        raise InputError(f"{address} did not take the job: {first_line(error)}") from error
    say(f"job {job} at {address}")
    if not wait:
        return Job(job, "PENDING", 0)
    try:
        return _follow(client, job, show)
    except KeyboardInterrupt:
        say(f"{job} goes on; {_later(job, address)}")
        raise
    except Exception as error:  # aiohttp, requests and Ray raise many kinds
        raise FinpodError(f"lost {address}: {first_line(error)}; {job} may go on, {_later(job, address)}") from error


def _client(address: str) -> Any:
    """Ray's client. Raises InputError where Ray has none, and for a cluster that does not answer."""
    if not re.match(r"https?://\S+$", address):
        raise InputError(f"{address!r} is no address of a dashboard; give it as {ADDRESS}")
    for name in INSTEAD:
        if os.environ.get(name, address) != address:
            raise InputError(f"{name} is {os.environ[name]}, which Ray would take instead of {address}; unset it")
    try:
        from ray.job_submission import JobSubmissionClient

        client = JobSubmissionClient(address)
    except ImportError as error:
        raise InputError("Ray is not installed here; pip install 'ray[default]'") from error
    except OSError as error:  # ConnectionError is one
        raise InputError(
            f"{address} does not answer; forward it with kubectl port-forward service/NAME-head-svc 8265, or give --address"
        ) from error
    except Exception as error:  # no ray[default], a wrong token, another version: Ray raises many kinds
        refusal = first_line(error)
        token = re.search(r"authenticat", refusal, re.IGNORECASE)
        cause = "it asks for its token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" if token else refusal
        raise InputError(f"cannot submit to {address}: {cause}") from error
    for name in LOUD:
        logging.getLogger(name).setLevel(logging.WARNING)
    return client


def _runtime_env(working_dir: str | None, env: Mapping[str, str]) -> dict[str, Any]:
    for name, value in env.items():
        require_variable(name, value)
    found: dict[str, Any] = {"env_vars": dict(env)} if env else {}
    if working_dir is not None:
        if "://" not in working_dir and not Path(working_dir).is_dir():
            raise InputError(f"{working_dir} is not a folder; give the one that the command is to run in")
        found["working_dir"] = working_dir
    return found


def _follow(client: Any, job: str, show: Callable[[str], object]) -> Job:
    """Show the output until it ends, then wait for how it ended."""
    import asyncio

    async def tail() -> None:
        async for text in client.tail_job_logs(job):
            show(text)

    asyncio.run(tail())
    while not (status := client.get_job_status(job)).is_terminal():
        time.sleep(POLL)
    word = str(status.value)
    code = client.get_job_info(job).driver_exit_code if word == "FAILED" else int(word == "STOPPED")
    return Job(job, word, _exit_code(code))


def _exit_code(code: int | None) -> int:
    """As a shell has it: 128 and more for a signal, 1 for a failure that left no code."""
    return 1 if code is None else 128 - code if code < 0 else code


def _later(job: str, address: str) -> str:
    return f"see ray job logs --follow --address {address} {job}"
