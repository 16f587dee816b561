"""`finpod deploy kuberay | dockerfile | submit`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from finpod.cli import console, options
from finpod.deploy.jobs import ADDRESS
from finpod.errors import InputError
from finpod.files import require_free_file, write_text

app = typer.Typer(rich_markup_mode=None)

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND...", help="What to run, such as finpod train stocks ... --ray."),
]
Out = Annotated[Path | None, typer.Option(help="The file to write; printed if left out.")]
Env = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable of the pods, no secret; repeat.")]


@app.command()
def kuberay(
    image: Annotated[str, typer.Option(help="With finpod and ray[default]; see finpod deploy dockerfile.")],
    command: Command = None,
    name: Annotated[str, typer.Option(help="Of the job or the cluster.")] = "finpod",
    kind: Annotated[Literal["job", "cluster"], typer.Option(help="For one command, or until it is deleted.")] = "job",
    cpu_workers: Annotated[
        str | None, typer.Option(metavar="LEAST:MOST", help="CPU workers; 0:4 if there are no GPU workers either.")
    ] = None,
    gpu_workers: Annotated[str | None, typer.Option(metavar="LEAST:MOST", help="GPU workers.")] = None,
    cpus: Annotated[int, typer.Option(help="Cores of a worker.")] = 4,
    memory: Annotated[str, typer.Option(help="Memory of a worker.")] = "8Gi",
    gpus: Annotated[int, typer.Option(help="GPUs of a GPU worker.")] = 1,
    head_cpus: Annotated[int, typer.Option(help="Cores of the head, which trains nothing.")] = 2,
    head_memory: Annotated[str, typer.Option(help="Memory of the head.")] = "8Gi",
    idle: Annotated[int, typer.Option(help="Seconds after which an idle worker goes.")] = 300,
    ray_version: Annotated[str, typer.Option(help="Ray in the image; that of this machine if left out.")] = "",
    claim: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:/MOUNT", help="A volume of the head, for data and results; repeat."),
    ] = None,
    secret: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A Secret whose keys the head has as variables; repeat.")
    ] = None,
    pull_secret: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A Secret to pull the image with; repeat.")
    ] = None,
    env: Env = None,
    namespace: Annotated[str | None, typer.Option(help="Of Kubernetes.")] = None,
    redis: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Keeps the state of the head.")] = None,
    redis_secret: Annotated[
        str | None, typer.Option(metavar="NAME", help="A Secret with the key password, for that Redis.")
    ] = None,
    working_dir: Annotated[str | None, typer.Option(metavar="URL", help="A .zip that the job runs in.")] = None,
    keep: Annotated[int, typer.Option(help="Seconds that the pods stay after the end of the job.")] = 600,
    deadline: Annotated[int | None, typer.Option(help="Seconds after which the job is given up.")] = None,
    retries: Annotated[int, typer.Option(help="How often the job is begun again on a new cluster.")] = 0,
    out: Out = None,
    overwrite: options.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, which kubectl reads too, instead of YAML.")] = False,
) -> None:
    """Print the manifest of a RayJob that runs COMMAND, or of a RayCluster; kubectl apply -f takes it."""
    from finpod.deploy.cluster import Claim, Cluster, Workers
    from finpod.deploy.kuberay import ray_cluster, ray_job, to_yaml
    from finpod.files import to_json

    _require_free(out, overwrite)
    if cpu_workers is None and gpu_workers is None:
        cpu_workers = "0:4"
    groups = [("cpu", cpu_workers, 0), ("gpu", gpu_workers, gpus)]
    cluster = Cluster(
        image=image,
        workers=tuple(
            Workers(name=group, **_span(text, f"--{group}-workers"), cpus=cpus, memory=memory, gpus=count)
            for group, text, count in groups
            if text is not None
        ),
        ray=ray_version,
        head_cpus=head_cpus,
        head_memory=head_memory,
        idle=idle,
        namespace=namespace,
        env=_pairs(env),
        secrets=tuple(secret or ()),
        pull_secrets=tuple(pull_secret or ()),
        claims=tuple(Claim(name=text.partition(":")[0], mount=text.partition(":")[2]) for text in claim or ()),
        redis=redis,
        redis_secret=redis_secret,
    )
    if kind == "cluster":
        if command:
            raise InputError("a cluster runs no command of its own; make it, then finpod deploy submit -- COMMAND")
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
    from finpod.deploy.dockerfile import dockerfile as text

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


def _span(text: str, option: str) -> dict[str, int]:
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
