"""`finpod deploy kuberay | dockerfile | submit`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from finpod.cli import console, options
from finpod.deploy.jobs import ADDRESS
from finpod.errors import InputError
from finpod.files import require_free_file, write_text

app = typer.Typer(rich_markup_mode=None)

CLUSTER = options.Settings(
    "deploy.kuberay",
    "Cluster",
    "image ray_version=ray head_cpus head_memory idle secret pull_secret namespace redis redis_secret",
    image={"help": "Image with finpod and ray[default]; see finpod deploy dockerfile."},
)
"""Options that are fields of a cluster."""
WORKERS = options.Settings("deploy.kuberay", "Workers", "cpus memory gpus", gpus={"default": 1})

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND...", help="What to run, such as finpod train stocks ... --ray."),
]
Out = Annotated[Path | None, typer.Option(help="The file to write; printed if left out.")]
Env = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable of the pods, no secret; repeat.")]


@app.command()
@options.with_options(CLUSTER, WORKERS)
def kuberay(
    command: Command = None,
    name: Annotated[str, typer.Option(help="Name of the job or the cluster.")] = "finpod",
    kind: Annotated[Literal["job", "cluster"], typer.Option(help="For one command, or until it is deleted.")] = "job",
    cpu_workers: Annotated[
        str | None, typer.Option(metavar="LEAST:MOST", help="CPU workers; 0:4 if there are no GPU workers either.")
    ] = None,
    gpu_workers: Annotated[str | None, typer.Option(metavar="LEAST:MOST", help="GPU workers.")] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:/MOUNT", help="A volume of the head, for data and results; repeat."),
    ] = None,
    env: Env = None,
    working_dir: Annotated[str | None, typer.Option(metavar="URL", help="A .zip that the job runs in.")] = None,
    keep: Annotated[int, typer.Option(help="Seconds that the pods stay after the end of the job.")] = 600,
    deadline: Annotated[int | None, typer.Option(help="Seconds after which the job is given up.")] = None,
    retries: Annotated[int, typer.Option(help="How often the job starts again; give the command --resume.")] = 0,
    out: Out = None,
    overwrite: options.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, which kubectl reads too, instead of YAML.")] = False,
    **given: Any,
) -> None:
    """Print the manifest of a RayJob that runs COMMAND, or of a RayCluster; kubectl apply -f takes it."""
    from finpod.deploy.kuberay import Claim, Cluster, Workers, ray_cluster, ray_job, to_yaml
    from finpod.files import to_json

    _require_free(out, overwrite)
    size: dict[str, Any] = WORKERS.values(given)
    groups = {"cpu": cpu_workers or (None if gpu_workers else "0:4"), "gpu": gpu_workers}
    chosen: dict[str, Any] = {}
    for field, value in CLUSTER.values(given).items():
        if value is not None:
            chosen[field] = tuple(value) if isinstance(value, list) else value
    cluster = Cluster(
        **chosen,
        workers=tuple(
            Workers(name=group, **size | ({} if group == "gpu" else {"gpus": 0}), **_span(text, f"--{group}-workers"))
            for group, text in groups.items()
            if text is not None
        ),
        env=_pairs(env),
        claims=tuple(Claim(claim=text.partition(":")[0], mount=text.partition(":")[2]) for text in claim or ()),
    )
    if kind == "cluster":
        if command:
            raise InputError("a cluster runs no command of its own; create it, then finpod deploy submit -- COMMAND")
        manifest = ray_cluster(name, cluster)
    else:
        manifest = ray_job(
            name, cluster, command or [], keep=keep, deadline=deadline, retries=retries, working_dir=working_dir
        )
    _give(to_json(manifest) if as_json else to_yaml(manifest), out)


@app.command()
def dockerfile(
    cuda: Annotated[bool, typer.Option("--cuda", help="For NVIDIA GPUs.")] = False,
    copy: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Of the checkout, to lie in the image too; repeat.")
    ] = None,
    python_version: Annotated[str | None, typer.Option(help="That of this machine if left out.")] = None,
    torch_version: Annotated[str | None, typer.Option(help="That of this machine if left out.")] = None,
    ray_version: Annotated[str | None, typer.Option(help="That of this machine if left out.")] = None,
    out: Out = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Print a Dockerfile that builds an image for laptop and cluster from the checkout."""
    from finpod.deploy.jobs import dockerfile as text

    _require_free(out, overwrite)
    _give(text(cuda=cuda, python=python_version, torch=torch_version, ray=ray_version, copies=copy or ()), out)


@app.command()
def submit(
    command: Command = None,
    address: Annotated[str, typer.Option(help="Of the dashboard of a running Ray.")] = ADDRESS,
    working_dir: Annotated[
        str | None, typer.Option(help="A folder to send along and run in, but for what its .gitignore names.")
    ] = None,
    env: Env = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not follow the output.")] = False,
) -> None:
    """Run COMMAND as a job of a running Ray cluster and follow it; its exit code is the command's."""
    from finpod.deploy.jobs import submit as submitted

    job = submitted(
        command or [],
        address=address,
        working_dir=working_dir,
        env=_pairs(env),
        wait=not no_wait,
        show=lambda text: print(text, end="", flush=True),
        say=console.remark,
    )
    console.remark(f"{job.id}: {job.status.lower()}")
    raise typer.Exit(job.exit_code)


def _span(text: str, option: str) -> dict[str, Any]:
    """LEAST:MOST as the fields of a group."""
    given = re.fullmatch(r"(\d{1,6}):(\d{1,6})", text)
    if given is None:
        raise InputError(f"{option} is {text!r}; give LEAST:MOST, such as 0:8")
    return {"least": int(given[1]), "most": int(given[2])}


def _pairs(texts: list[str] | None) -> dict[str, str]:
    """NAME=VALUE, each name once."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or name in found:
            raise InputError(f"--env {text!r} cannot be; give NAME=VALUE, each name once")
        found[name] = value
    return found


def _require_free(out: Path | None, overwrite: bool) -> None:
    if out is not None:
        require_free_file(out, overwrite)


def _give(text: str, out: Path | None) -> None:
    """Print a text, or write it whole and say where."""
    if out is None:
        print(text, end="")
    else:
        write_text(out, text)
        print(out)
