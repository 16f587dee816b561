"""`Cluster`: what a cluster is asked to be, checked as far as it can be without one."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from finpod.errors import InputError

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
"""A DNS label (RFC 1123), which Kubernetes asks of most names."""
IMAGE = re.compile(r"[A-Za-z0-9][\w.:/@-]*")
QUANTITY = re.compile(r"([0-9]+(\.[0-9]+)?)(Mi|Gi|Ti)")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET = re.compile(r"(^|_)(api_?key|key|token|secret|passw(or)?d|pwd|credential)s?(_|$)", re.IGNORECASE)
"""Names of variables whose values do not belong in a file."""
LONGEST_LABEL = 63
MOST = 2**31 - 1
"""Kubernetes counts in int32."""
LAST_PORT = 2**16 - 1
AUTH_SINCE = (2, 52)
"""The first Ray that knows tokens, which the manifests ask for."""
TAKEN = ("/tmp", "/dev", "/proc", "/sys", "/etc", "/usr", "/bin", "/lib", "/var")
"""Where nothing is mounted: the system and Ray's own files lie there."""


@dataclass(frozen=True, kw_only=True)
class Workers:
    """A group of like worker pods, which Ray's autoscaler grows and shrinks."""

    name: str
    """'cpu' or 'gpu'; any DNS label."""
    least: int = 0
    """Pods that are always there."""
    most: int = 4
    """Pods that there may be."""
    cpus: int = 4
    """Cores of a pod."""
    memory: str = "8Gi"
    """Memory of a pod, in Mi, Gi or Ti."""
    gpus: int = 0
    """GPUs of a pod, as nvidia.com/gpu."""

    def __post_init__(self) -> None:
        require_label(self.name, "the group")
        if not 0 <= self.least <= self.most <= MOST:
            raise InputError(f"{self.name} workers {self.least}:{self.most} cannot be; give LEAST:MOST, such as 0:8")
        if self.most == 0:
            raise InputError(f"{self.name} workers 0:0 are none; leave the group out, or allow some")
        require_size(self.cpus, self.memory, f"a {self.name} worker")
        if self.gpus < 0:
            raise InputError(f"a {self.name} worker with {self.gpus} GPUs cannot be; give 0 or more")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A persistent volume claim, mounted in the head pod: the driver alone reads data and writes results."""

    name: str
    """Of the claim, which exists."""
    mount: str
    """Absolute path in the pod."""

    def __post_init__(self) -> None:
        require_label(self.name, "the claim")
        path = self.mount
        plain = path.startswith("/") and posixpath.normpath(path) == path and not re.search(r"[\s:]", path)
        if not plain or path == "/" or any(f"{path}/".startswith(f"{own}/") for own in TAKEN):
            raise InputError(f"{path!r} cannot be mounted at; give a path of its own, such as {self.name}:/runs")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """One head, on which the driver runs and no pod is trained, and groups of workers."""

    image: str
    """Holds finpod and ray[default]; the same for head and workers."""
    workers: tuple[Workers, ...]
    """At least one group, each under a name of its own."""
    ray: str = ""
    """Version of Ray in the image; that of this machine if empty."""
    head_cpus: int = 2
    """Cores of the head."""
    head_memory: str = "8Gi"
    """Memory of the head: the market, its features and the leaderboard."""
    idle: int = 300
    """Seconds without work after which the autoscaler takes a worker away."""
    namespace: str | None = None
    """Of Kubernetes; that of kubectl's context if None."""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Variables of every pod; no secrets."""
    secrets: tuple[str, ...] = ()
    """Secrets whose keys become variables of the head, where storage is read and written."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets with which the image is pulled."""
    claims: tuple[Claim, ...] = ()
    """Volumes of the head."""
    redis: str | None = None
    """HOST:PORT of a Redis that keeps the state of the head; without one a new head begins anew."""
    redis_secret: str | None = None
    """Secret with the key `password`, for that Redis."""

    def __post_init__(self) -> None:
        if not IMAGE.fullmatch(self.image):
            raise InputError(f"image {self.image!r} cannot be; give the one that was pushed, such as me/finpod:1")
        if not self.workers:
            raise InputError("a cluster without workers trains nothing; ask for CPU or GPU workers")
        require_once([group.name for group in self.workers], "the group")
        object.__setattr__(self, "ray", self.ray or installed("ray"))
        if not re.fullmatch(r"\d+\.\d+(\.\w+)?", self.ray) or _release(self.ray) < AUTH_SINCE:
            raise InputError(f"Ray {self.ray} cannot be asked for a token; give a version from 2.52.0 on")
        require_size(self.head_cpus, self.head_memory, "the head")
        if not 1 <= self.idle <= MOST:
            raise InputError(f"idle is {self.idle}; give seconds from 1 to {MOST}", argument="idle")
        if self.namespace is not None:
            require_label(self.namespace, "the namespace")
        for name, value in self.env.items():
            require_variable(name, value)
        for names in (self.secrets, self.pull_secrets, tuple(filter(None, [self.redis_secret]))):
            require_once(names, "the secret")
            for name in names:
                require_label(name, "the secret")
        require_once([claim.name for claim in self.claims], "the claim")
        require_once([claim.mount for claim in self.claims], "the mount")
        if self.redis is not None and not _is_address(self.redis):
            raise InputError(
                f"redis {self.redis!r} cannot be; give HOST:PORT with a port from 1 to {LAST_PORT}, such as redis:6379"
            )
        if self.redis_secret and not self.redis:
            raise InputError(f"{self.redis_secret!r} is a secret for no Redis; give its HOST:PORT too")


def require_label(name: str, what: str, longest: int = LONGEST_LABEL) -> str:
    """The name unchanged. Raises InputError unless it is a DNS label of at most `longest` letters."""
    if not LABEL.fullmatch(name) or len(name) > longest:
        raise InputError(
            f"{what} {name[:80]!r} cannot be called so; give at most {longest} small letters, digits and dashes"
        )
    return name


def require_size(cpus: int, memory: str, what: str) -> None:
    """Raise InputError unless a pod of that size can be."""
    if cpus < 1:
        raise InputError(f"{what} with {cpus} CPUs cannot be; give 1 or more")
    given = QUANTITY.fullmatch(memory)
    if given is None or float(given[1]) == 0:
        raise InputError(f"{what} with {memory!r} of memory cannot be; give it as 512Mi, 8Gi or 1Ti")


def require_once(names: tuple[str, ...] | list[str], what: str) -> None:
    """Raise InputError for a name that is given twice."""
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{what} {twice} is given twice; give it once")


def require_variable(name: str, value: str) -> None:
    """Raise InputError for what cannot be a variable's name, and for one that sounds like a secret."""
    if not VARIABLE.fullmatch(name):
        raise InputError(f"{name!r} cannot be the name of a variable; give NAME=VALUE")
    if SECRET.search(name):
        raise InputError(
            f"{name} sounds like a secret, and would stand in plain text; put it into a Secret and name that"
        )
    if "$(" in value:
        raise InputError(f"Kubernetes would read $(...) in {name}={value}; write the value out")


def installed(package: str) -> str:
    """Version of a package on this machine, without its build; nothing is imported. Raises InputError if there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError as error:
        raise InputError(f"{package} is not installed here; say which version the image has") from error


def _is_address(text: str) -> bool:
    """Whether it is HOST:PORT."""
    given = re.fullmatch(r"[\w.-]+:([0-9]{1,5})", text)
    return given is not None and 1 <= int(given[1]) <= LAST_PORT


def _release(text: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(part) for part in text.split(".")[:2])
