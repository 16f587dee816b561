"""`finpod deploy kuberay | dockerfile | submit`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from finpod.cli import options
from finpod.errors import InputError, first_line
from finpod.files import require_free_file, write_text

app = typer.Typer(rich_markup_mode=None)

CLUSTER = options.fields_of(
    "deploy.kuberay",
    "Cluster",
    "cpu_workers gpu_workers claim image ray_version=ray head_cpus head_memory secret pull_secret cpus memory gpus",
)
"""Options that are fields of a cluster."""

Command = Annotated[
    list[str] | None, Argument(metavar="-- COMMAND...", help="Command to run, such as finpod train stocks ... --ray.")
]
Out = Annotated[Path | None, Option(help="File to write; by default stdout.")]


@app.command()
@options.with_options(CLUSTER)
def kuberay(
    command: Command = None,
    name: Annotated[str, Option(help="Name of the job or the cluster.")] = "finpod",
    kind: Annotated[
        Literal["job", "cluster"], Option(help="A job runs one command; a cluster runs until you delete it.")
    ] = "job",
    out: Out = None,
    overwrite: options.Overwrite = False,
    **values: Any,
) -> None:
    """Print the manifest of a RayJob that runs COMMAND, or of a RayCluster, for kubectl apply -f."""
    from finpod.deploy.kuberay import Cluster, ray_cluster, ray_job

    settings = {name: value for name, value in options.values_of(CLUSTER, values).items() if value is not None}
    cluster = Cluster(**settings)
    if kind == "cluster" and command:
        raise InputError(
            "--kind cluster takes no command; create the cluster, then run finpod deploy submit -- COMMAND"
        )
    text = ray_cluster(name, cluster) if kind == "cluster" else ray_job(name, cluster, command or [])
    _give(text, out, overwrite)


@app.command()
def dockerfile(
    cuda: Annotated[bool, Option("--cuda", help="Build for NVIDIA GPUs.")] = False,
    copy: Annotated[
        list[str] | None, Option(metavar="PATH", help="Path to copy into the image; may be repeated.")
    ] = None,
    out: Out = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Print a Dockerfile for an image of the checkout, with this machine's versions of Python, torch and Ray."""
    from finpod.deploy.kuberay import dockerfile as text

    _give(text(cuda=cuda, copies=copy or ()), out, overwrite)


@app.command()
def submit(
    command: Command = None,
    address: Annotated[str, Option(help="Address of the dashboard of the Ray cluster.")] = "http://127.0.0.1:8265",
    working_dir: Annotated[
        str | None, Option(help="Folder to upload as the working folder, without the files that git ignores.")
    ] = None,
) -> None:
    """Run COMMAND as a job of a running Ray cluster and follow it (`ray job submit`). Exit code 1: the job failed."""
    from finpod.deploy.kuberay import command_line

    command_line(command or [])
    try:
        from ray.job_submission import JobSubmissionClient

        JobSubmissionClient(address)  # checks the packages and the connection
    except Exception as error:  # Ray raises errors of many classes
        text = f"cannot submit to {address}: {first_line(error)}; install ray[default], run kubectl port-forward, or"
        raise InputError(
            f"{text} change --address; if the cluster requires a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        ) from error
    folder = [] if working_dir is None else ["--working-dir", working_dir]
    ray = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", address, *folder, "--"]
    raise typer.Exit(subprocess.run([*ray, *(command or [])], check=False).returncode)


def _give(text: str, out: Path | None, overwrite: bool) -> None:
    if out is None:
        print(text, end="")
        return
    require_free_file(out, overwrite)
    write_text(out, text)
    print(out)
