"""Writes KubeRay manifests (RayCluster or RayJob, `ray.io/v1`) as YAML for `kubectl apply -f`, and a Dockerfile.

The head runs no training. If a worker is lost, only the training in progress on this worker is lost. Only the head has
the volume claims and secrets, because only `finpod train`, which runs on the head, reads data and keeps state.
Ray clients need a token, which the operator of KubeRay creates and passes to the pods.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from finpod.errors import InputError, require_number

USER = 1000
"""User id in the image, and group id that may write to volume claims."""
INDEX = {False: "https://download.pytorch.org/whl/cpu", True: "https://pypi.org/simple"}
"""Package index for torch, without CUDA (False) and with CUDA (True). The builds on PyPI include CUDA's libraries."""
LONGEST = {"RayJob": 47, "RayCluster": 53}
"""Kind of manifest -> largest number of characters in a name. Kubernetes allows 63, and KubeRay adds a suffix."""
AUTH_SINCE = (2, 52)
"""First version of Ray that has token authentication, which the manifests use."""
LOGIN = re.compile(r"://[^/\s]*:[^/\s]*@")
"""Pattern of a URL with a user and a password."""
LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
"""Pattern of a DNS label (RFC 1123), required for most names in Kubernetes."""
SECRET = LABEL, "at most 63 lower-case letters, digits and dashes, with no dash at an end"
MEMORY = r"[1-9]\d*(\.\d+)?(Mi|Gi|Ti)", "a size such as 512Mi, 8Gi or 1Ti"
SPAN = r"\d{1,6}:0*[1-9]\d{0,5}", "LEAST:MOST with MOST from 1 to 999999, such as 0:8"
FORMS = {
    "image": (r"[A-Za-z0-9][\w.:/@-]*", "the image that was pushed, such as me/finpod:1"),
    "cpu_workers": SPAN,
    "gpu_workers": SPAN,
    "claim": (
        rf"{LABEL}:(/(?!\.{{1,2}}(/|$))[^/\s:]+)+",
        "NAME:/PATH, such as runs:/runs (NAME: a-z, digits, dashes between them; PATH: no space, colon, .. or final /)",
    ),
    "head_memory": MEMORY,
    "memory": MEMORY,
    "secret": SECRET,
    "pull_secret": SECRET,
}
"""Setting of a cluster -> the pattern of its values, and a description of the pattern for error messages."""


def _installed(package: str) -> str:
    """Return the installed version of a package, without its build tag. Raises InputError if it is not installed."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError as error:
        raise InputError(f"{package} is not installed here; pip install {package}") from error


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Ray cluster: a head, which runs the command but no training, and CPU or GPU workers of equal cores and memory.

    Raises InputError for a setting that is out of range or does not match its pattern in `FORMS`.
    """

    image: str
    """Image with finpod and ray[default]; see finpod deploy dockerfile."""
    cpu_workers: str | None = None
    """Fewest and most CPU workers, such as 0:8; by default 0:4, or none with --gpu-workers."""
    gpu_workers: str | None = None
    """Fewest and most GPU workers, such as 0:8; by default none."""
    claim: tuple[str, ...] = ()
    """Volume claim to mount in the head, for data and results; may be repeated."""
    ray: str = ""
    """Version of Ray in the image; by default the version installed here."""
    head_cpus: int = 2
    """Cores of the head."""
    head_memory: str = "8Gi"
    """Memory of the head, for the market, its features and the leaderboard."""
    secret: tuple[str, ...] = ()
    """Secrets whose keys become environment variables of the head, such as credentials of the storage."""
    pull_secret: tuple[str, ...] = ()
    """Secrets for pulling the image from a private registry."""
    cpus: int = 4
    """Cores of a worker pod."""
    memory: str = "8Gi"
    """Memory of a worker pod, in Mi, Gi or Ti."""
    gpus: int = 1
    """GPUs of a GPU worker pod, requested as nvidia.com/gpu."""

    def __post_init__(self) -> None:
        for name, least in {"head_cpus": 1, "cpus": 1, "gpus": 0}.items():
            require_number(name, getattr(self, name), least, whole=True)
        for name, (form, hint) in FORMS.items():
            value = getattr(self, name)
            for text in [value] if isinstance(value, str) else value or ():
                if not re.fullmatch(form, text):
                    raise InputError(f"{name} is {text[:80]!r}; give {hint}", argument=name)
        parts = [part for claim in self.claim for part in claim.split(":")]
        if twice := next((part for part in parts if parts.count(part) > 1), None):
            raise InputError(f"claim has {twice} twice; give each claim once, with its own path", argument="claim")
        for name, least, most, _ in self.workers:
            if least > most:
                raise InputError(
                    f"{name} is {least}:{most}, so the minimum exceeds the maximum; give LEAST:MOST", argument=name
                )
        object.__setattr__(self, "ray", self.ray or _installed("ray"))
        release = re.fullmatch(r"(\d+)\.(\d+)(\.\w+)?", self.ray)
        if release is None or (int(release[1]), int(release[2])) < AUTH_SINCE:
            fault = "is not a release" if release is None else "has no token authentication"
            raise InputError(f"Ray {self.ray[:80]!r} {fault}; give 2.52.0 or later", argument="ray_version")

    @property
    def workers(self) -> list[tuple[str, int, int, int]]:
        """Groups of workers: name of the setting, minimum and maximum number of pods, and GPUs of a pod."""
        cpu = "0:4" if self.cpu_workers is None and self.gpu_workers is None else self.cpu_workers
        spans = (("cpu_workers", cpu, 0), ("gpu_workers", self.gpu_workers, self.gpus))
        given = [(name, span.split(":"), gpus) for name, span, gpus in spans if span is not None]
        return [(name, int(least), int(most), gpus) for name, (least, most), gpus in given]


def command_line(command: Sequence[str]) -> str:
    """Return the words of a command as one line for a shell.

    Raises InputError for an empty command, and for a URL with a password, which would be stored as plain text.
    """
    if not command:
        raise InputError("there is no command; give a command, such as: -- finpod train stocks --ray --out /runs/first")
    for word in command:
        if LOGIN.search(word):
            shown = LOGIN.sub("://...@", word)
            raise InputError(f"{shown} has a password that would be stored as plain text; put passwords into a Secret")
    return shlex.join(command)


def ray_cluster(name: str, cluster: Cluster) -> str:
    """Return the manifest of a RayCluster, which runs until it is deleted. Raises InputError for an invalid name."""
    return _manifest("RayCluster", name, cluster)


def ray_job(name: str, cluster: Cluster, command: Sequence[str]) -> str:
    """Return the manifest of a RayJob: a cluster that runs a command and is deleted ten minutes after the command ends.

    Raises InputError for an invalid name, and for a command that is empty, has a password or a dollar sign that
    Kubernetes would expand, or has an `--out` that is not below the mount path of a claim.
    """
    line = command_line(command)
    if expanded := next((word for word in command if "$(" in word or "$$" in word), None):
        raise InputError(f"Kubernetes would expand the dollar sign in {expanded!r}; write the value instead")
    for word, following in zip(command, [*command[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        out = posixpath.normpath(value if equals else following)
        # --out must be a folder below the mount path, because the mount path itself cannot be replaced
        if option == "--out" and not any(out.startswith(f"{claim.partition(':')[2]}/") for claim in cluster.claim):
            raise InputError(
                f"--out {out} is not below the path of a claim, and would be lost; pass --claim NAME:/runs --out /runs/first"
            )
    return _manifest("RayJob", name, cluster, entrypoint=line)


def _manifest(kind: str, name: str, cluster: Cluster, **settings: Any) -> str:
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > LONGEST[kind]:
        hint = f"use at most {LONGEST[kind]} lower-case letters, digits and dashes, a letter first and no dash last"
        raise InputError(f"name {name[:80]!r} cannot be used for a {kind}; {hint}", argument="name")
    scales = any(least < most for _, least, most, _ in cluster.workers)
    return _filled("kuberay.yaml.j2", kind=kind, name=name, cluster=cluster, scales=scales, **settings)


def dockerfile(*, cuda: bool = False, copies: Sequence[str] = ()) -> str:
    """Return the text of a Dockerfile whose build context is the folder with pyproject.toml.

    The versions of Python, torch and Ray are those of this machine; `docker build --build-arg` sets others. `copies`
    are the files and folders, such as data/nasdaq100, that are copied from the build context into the image. Their
    paths stay the same. Raises InputError for a package that is not installed, and for a missing or malformed path.
    """
    for path in copies:
        if not re.fullmatch(r"(?!/)(?!.*\.\.)[\w./-]+", path) or not Path(path).exists():
            raise InputError(f"{path!r} is not an existing path below this folder (letters, digits, _./- only)", "copy")
    return _filled(
        "Dockerfile.j2",
        kind="CUDA" if cuda else "CPU",
        index=INDEX[cuda],
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        torch=_installed("torch"),
        ray=_installed("ray"),
        copies=copies,
    )


def _filled(template: str, **values: Any) -> str:
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
