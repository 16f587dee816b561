"""KubeRay manifests: `ray.io/v1` RayCluster and RayJob as YAML that `kubectl apply -f` reads.

The head runs no training, so losing a worker costs only the slices it was training. Only the head mounts the volume claims
and secrets, because only the driver reads data and keeps state. Ray clients need a token, which the operator creates and
passes to the pods.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from finpod.deploy.image import filled, installed
from finpod.errors import InputError

LONGEST = {"RayJob": 47, "RayCluster": 53}
"""Largest number of characters in a name. Kubernetes allows 63, and the operator adds a suffix."""
AUTH_SINCE = (2, 52)
"""First version of Ray that has token authentication, which the manifests use."""
LOGIN = re.compile(r"://[^/\s]*:[^/\s]*@")
"""Pattern of a URL with a user and a password."""
LABEL = {"form": r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "hint": "at most 63 lower-case letters, digits and dashes"}
"""Pattern of a DNS label (RFC 1123), required for most names in Kubernetes."""
MEMORY = {"form": r"[1-9]\d*(\.\d+)?(Mi|Gi|Ti)", "hint": "a size such as 512Mi, 8Gi or 1Ti"}
IMAGE = {"form": r"[A-Za-z0-9][\w.:/@-]*", "hint": "the image that was pushed, such as me/finpod:1"}
MOUNT = {"form": r"(/(?!\.{1,2}(/|$))[^/\s:]+)+", "hint": "an absolute path, such as runs:/runs"}


class Checked:
    """Base class of settings. Raises InputError for a field outside its metadata: the pattern `form`, or the minimum `least`."""

    def __post_init__(self) -> None:
        for entry in fields(self):  # type: ignore[arg-type]
            value, rule = getattr(self, entry.name), entry.metadata
            if "least" in rule and value < rule["least"]:
                raise InputError(f"{entry.name} is {value}; give {rule['least']} or more", argument=entry.name)
            for text in (value if isinstance(value, tuple) else (value,)) if "form" in rule else ():
                if not re.fullmatch(rule["form"], text):
                    raise InputError(f"{entry.name} is {text[:80]!r}; give {rule['hint']}", argument=entry.name)


@dataclass(frozen=True, kw_only=True)
class Workers(Checked):
    """A group of equal worker pods. Ray's autoscaler sets their number between `least` and `most`."""

    name: str = field(metadata=LABEL)
    """'cpu' or 'gpu'; any DNS label."""
    least: int = field(default=0, metadata={"least": 0})
    """Minimum number of pods."""
    most: int = field(default=4, metadata={"least": 1})
    """Maximum number of pods."""
    cpus: int = field(default=4, metadata={"least": 1})
    """Cores of a pod."""
    memory: str = field(default="8Gi", metadata=MEMORY)
    """Memory of a pod, in Mi, Gi or Ti."""
    gpus: int = field(default=0, metadata={"least": 0})
    """GPUs of a pod, as nvidia.com/gpu."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least > self.most:
            raise InputError(f"{self.name} workers are {self.least}:{self.most}; give LEAST:MOST, such as 0:8")


@dataclass(frozen=True, kw_only=True)
class Claim(Checked):
    """A persistent volume claim, mounted in the head pod."""

    claim: str = field(metadata=LABEL)
    """Name of an existing claim."""
    mount: str = field(metadata=MOUNT)
    """Absolute path in the pod."""


@dataclass(frozen=True, kw_only=True)
class Cluster(Checked):
    """A Ray cluster: a head, which runs the command but no training, and groups of workers."""

    image: str = field(metadata=IMAGE)
    """Image with finpod and ray[default], for head and workers."""
    workers: tuple[Workers, ...]
    """At least one group, each with its own name."""
    ray: str = ""
    """Version of Ray in the image; that of this machine if empty."""
    head_cpus: int = field(default=2, metadata={"least": 1})
    """Cores of the head."""
    head_memory: str = field(default="8Gi", metadata=MEMORY)
    """Memory of the head, for the market, its features and the leaderboard."""
    secret: tuple[str, ...] = field(default=(), metadata=LABEL)
    """Secrets whose keys become environment variables of the head, such as credentials of the storage."""
    pull_secret: tuple[str, ...] = field(default=(), metadata=LABEL)
    """Secrets with which the image is pulled."""
    claims: tuple[Claim, ...] = ()
    """Volume claims mounted in the head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "ray", self.ray or installed("ray"))
        release = re.fullmatch(r"(\d+)\.(\d+)(\.\w+)?", self.ray)
        if release is None or (int(release[1]), int(release[2])) < AUTH_SINCE:
            fault = "is not a version" if release is None else "has no token authentication"
            raise InputError(f"Ray {self.ray[:80]!r} {fault}; give 2.52.0 or later", argument="ray_version")


def command_line(command: Sequence[str]) -> str:
    """Return the words of a command as one line for a shell.

    Raises InputError for an empty command, and for a URL with a password, which would be stored as plain text.
    """
    if not command:
        raise InputError("there is no command; give one, such as: -- finpod train stocks --ray --out /runs/first")
    for word in command:
        if LOGIN.search(word):
            shown = LOGIN.sub("://...@", word)
            raise InputError(f"{shown} has a password, which would be stored as plain text; put it into a Secret")
    return shlex.join(command)


def ray_cluster(name: str, cluster: Cluster) -> str:
    """Return the manifest of a RayCluster, which runs until it is deleted. Raises InputError for an invalid name."""
    return _manifest("RayCluster", name, cluster)


def ray_job(name: str, cluster: Cluster, command: Sequence[str]) -> str:
    """Return the manifest of a RayJob: a cluster that runs one command and is deleted ten minutes after its end.

    Raises InputError for an invalid name, and for a command that is empty, has a password, or whose `--out` is not on a mounted
    volume.
    """
    line = command_line(command)
    if expanded := next((word for word in command if "$(" in word or "$$" in word), None):
        raise InputError(f"Kubernetes would expand the dollar sign in {expanded!r}; write the value instead")
    for word, following in zip(command, [*command[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        out = posixpath.normpath(value if equals else following)
        # a folder below the mount path: the mount path itself cannot be replaced
        if option == "--out" and not any(out.startswith(f"{one.mount}/") for one in cluster.claims):
            raise InputError(
                f"--out {out} is lost when the pod exits; mount a volume, --claim NAME:/runs, and write there (--out /runs/...)"
            )
    return _manifest("RayJob", name, cluster, entrypoint=line)


def _manifest(kind: str, name: str, cluster: Cluster, **settings: Any) -> str:
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > LONGEST[kind]:
        hint = f"at most {LONGEST[kind]} lower-case letters, digits and dashes, beginning with a letter"
        raise InputError(f"name {name[:80]!r} cannot be used for a {kind}; give {hint}", argument="name")
    scales = any(group.least < group.most for group in cluster.workers)
    return filled("kuberay.yaml.j2", kind=kind, name=name, cluster=cluster, scales=scales, **settings)
