"""KubeRay manifests: `ray.io/v1` RayCluster and RayJob as plain dictionaries, and as YAML that `kubectl apply -f` reads.

The head runs no training (num-cpus 0), so losing a worker costs only the slices it was training. Only the head mounts the
volume claims and secrets, because only the driver reads data and keeps state. Ray clients need a token, which the
operator creates and passes to the pods.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from finpod.deploy.jobs import USER, command_line, installed, require_variable
from finpod.errors import InputError

API = "ray.io/v1"
LONGEST_JOB, LONGEST_CLUSTER = 47, 53
"""Most characters of a name: the operator adds a suffix, and Kubernetes allows 63."""
LABELS = {"app.kubernetes.io/part-of": "finpod"}
ENV = {"RAY_USAGE_STATS_ENABLED": "0"}
PORTS = {"gcs-server": 6379, "dashboard": 8265}
AUTH_SINCE = (2, 52)
"""First version of Ray with token authentication, which the manifests use."""

LABEL = {"form": r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "hint": "at most 63 small letters, digits and dashes"}
"""Pattern of a DNS label (RFC 1123), required for most names in Kubernetes."""
MEMORY = {"form": r"[1-9]\d*(\.\d+)?(Mi|Gi|Ti)", "hint": "a size such as 512Mi, 8Gi or 1Ti"}
IMAGE = {"form": r"[A-Za-z0-9][\w.:/@-]*", "hint": "the image that was pushed, such as me/finpod:1"}
MOUNT = {"form": r"(/(?!\.{1,2}(/|$))[^/\s:]+)+", "hint": "an absolute path, such as runs:/runs"}


def _checked(record: Any) -> None:
    """Raise InputError for a field that violates its metadata: `form` (explained by `hint`) for text, `least` for numbers."""
    for entry in fields(record):
        value, rule = getattr(record, entry.name), entry.metadata
        if "least" in rule:
            _require_number(entry.name, value, rule["least"])
        texts = value if isinstance(value, tuple) else (value,)
        for text in texts if "form" in rule else ():
            if not re.fullmatch(rule["form"], text):
                raise InputError(f"{entry.name} {text[:80]!r} cannot be used; give {rule['hint']}", argument=entry.name)
        if "form" in rule:
            _require_once(entry.name, texts)


def _require_number(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise InputError(f"{name} is {value}; give {least} or more", argument=name)


def _require_once(name: str, texts: Sequence[str]) -> None:
    if twice := next((text for text in texts if texts.count(text) > 1), None):
        raise InputError(f"{name} {twice} is given twice; give it once", argument=name)


@dataclass(frozen=True, kw_only=True)
class Workers:
    """A group of equal worker pods, which Ray's autoscaler grows and shrinks."""

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
        _checked(self)
        if self.least > self.most:
            raise InputError(f"{self.name} workers are {self.least}:{self.most}; give LEAST:MOST, such as 0:8")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A persistent volume claim, mounted in the head pod."""

    claim: str = field(metadata=LABEL)
    """Name of an existing claim."""
    mount: str = field(metadata=MOUNT)
    """Absolute path in the pod."""

    def __post_init__(self) -> None:
        _checked(self)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """One head, which runs the driver but no training, and groups of workers."""

    image: str = field(metadata=IMAGE)
    """Image with finpod and ray[default], for head and workers."""
    workers: tuple[Workers, ...]
    """At least one group, each with its own name."""
    ray: str = ""
    """Version of Ray in the image; that of this machine if empty."""
    head_cpus: int = field(default=2, metadata={"least": 1})
    """Cores of the head."""
    head_memory: str = field(default="8Gi", metadata=MEMORY)
    """Memory of the head, which holds the market, its features and the leaderboard."""
    idle: int = field(default=300, metadata={"least": 1})
    """Seconds without work after which the autoscaler removes a worker."""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Environment variables of every pod; not for secrets."""
    secret: tuple[str, ...] = field(default=(), metadata=LABEL)
    """Secrets whose keys become environment variables of the head, which reads and writes storage."""
    pull_secret: tuple[str, ...] = field(default=(), metadata=LABEL)
    """Secrets for pulling the image."""
    claims: tuple[Claim, ...] = ()
    """Volumes of the head."""

    def __post_init__(self) -> None:
        _checked(self)
        if not self.workers:
            raise InputError("there are no workers, and the head runs no training; give CPU or GPU workers")
        object.__setattr__(self, "ray", self.ray or installed("ray"))
        release = re.fullmatch(r"(\d+)\.(\d+)(\.\w+)?", self.ray)
        if release is None or (int(release[1]), int(release[2])) < AUTH_SINCE:
            fault = "is not a version" if release is None else "has no token authentication"
            raise InputError(f"Ray {self.ray[:80]!r} {fault}; give 2.52.0 or later", argument="ray_version")
        for name, value in self.env.items():
            require_variable(name, value)
        _require_once("workers", [group.name for group in self.workers])
        _require_once("claim", [one.claim for one in self.claims])
        _require_once("mount", [one.mount for one in self.claims])


def ray_cluster(name: str, cluster: Cluster) -> dict[str, Any]:
    """Return a RayCluster, which stays until it is deleted; InputError for a name that Kubernetes rejects."""
    return _resource("RayCluster", name, LONGEST_CLUSTER, _cluster_spec(cluster))


def ray_job(
    name: str,
    cluster: Cluster,
    command: Sequence[str],
    *,
    keep: int = 600,
    deadline: int | None = None,
    retries: int = 0,
) -> dict[str, Any]:
    """Return a RayJob: a cluster that is created for one command and deleted after it.

    The pods stay for `keep` seconds after the end, so that their logs can be read. After `deadline` seconds the job is
    stopped. `retries` is the number of restarts, each on a new cluster. Raises InputError for a name that Kubernetes rejects,
    numbers out of range, and a command whose `--out` would be lost with the pod.
    """
    for what, count, least in (("keep", keep, 0), ("retries", retries, 0), ("deadline", deadline, 1)):
        _require_number(what, count, least)
    line = command_line(command)
    if expanded := next((word for word in command if "$(" in word or "$$" in word), None):
        raise InputError(f"Kubernetes would expand the dollar sign in {expanded!r}; write the value itself")
    _require_kept(command, cluster.claims)
    spec: dict[str, Any] = {
        "entrypoint": line,
        "submissionMode": "K8sJobMode",
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": keep,
        "backoffLimit": retries,
        **({} if deadline is None else {"activeDeadlineSeconds": deadline}),
        "rayClusterSpec": _cluster_spec(cluster),
    }
    return _resource("RayJob", name, LONGEST_JOB, spec)


def _require_kept(command: Sequence[str], claims: Sequence[Claim]) -> None:
    """Raise InputError for an `--out` outside all claims, or equal to a mount path, which cannot be replaced."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        out = posixpath.normpath(value if equals else following)
        if option == "--out" and not any(out.startswith(f"{one.mount}/") for one in claims):
            raise InputError(
                f"--out {out} is lost when the pod exits; mount a volume, --claim NAME:/runs, and write there (--out /runs/...)"
            )


def to_yaml(manifest: Mapping[str, Any]) -> str:
    """Return a manifest as YAML.

    Text is quoted unless it is plainly a word: YAML readers differ in what they parse as a number or a boolean (`1e3`,
    `0o7`, `y`), and Kubernetes rejects a number in the place of a string. Raises InputError without PyYAML.
    """
    try:
        import yaml
    except ImportError as error:
        raise InputError("PyYAML is not installed here; pip install pyyaml, or use --json") from error

    class Quoting(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = None if re.fullmatch(r"[A-Za-z/][\w./-]+", value) else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Quoting.add_representer(str, text)
    return yaml.dump(dict(manifest), Dumper=Quoting, sort_keys=False, width=1_000_000, allow_unicode=True)


def _resource(kind: str, name: str, longest: int, spec: dict[str, Any]) -> dict[str, Any]:
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > longest:
        hint = f"at most {longest} small letters, digits and dashes, a letter first"
        raise InputError(f"name {name[:80]!r} cannot be used for a {kind}; give {hint}", argument="name")
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name, "labels": dict(LABELS)}, "spec": spec}


def _cluster_spec(cluster: Cluster) -> dict[str, Any]:
    """The RayClusterSpec of a RayCluster or a RayJob."""
    spec: dict[str, Any] = {"rayVersion": cluster.ray, "authOptions": {"mode": "token"}}
    if any(group.least < group.most for group in cluster.workers):
        spec["enableInTreeAutoscaling"] = True
        spec["autoscalerOptions"] = {
            "version": "v2",
            "upscalingMode": "Default",
            "idleTimeoutSeconds": cluster.idle,
            "securityContext": _unprivileged(),
        }
    spec["headGroupSpec"] = {
        "rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0"},
        "template": _head(cluster),
    }
    spec["workerGroupSpecs"] = [_group(cluster, group) for group in cluster.workers]
    return spec


def _head(cluster: Cluster) -> dict[str, Any]:
    template = _template("ray-head", cluster, {"cpu": str(cluster.head_cpus), "memory": cluster.head_memory})
    pod = template["spec"]
    (container,) = pod["containers"]
    container["ports"] = [{"name": name, "containerPort": port} for name, port in PORTS.items()]
    if cluster.secret:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in cluster.secret]
    if cluster.claims:
        container["volumeMounts"] = [{"name": one.claim, "mountPath": one.mount} for one in cluster.claims]
        pod["volumes"] = [
            {"name": one.claim, "persistentVolumeClaim": {"claimName": one.claim}} for one in cluster.claims
        ]
    return template


def _group(cluster: Cluster, group: Workers) -> dict[str, Any]:
    gpus = {"nvidia.com/gpu": str(group.gpus)} if group.gpus else {}
    template = _template("ray-worker", cluster, {"cpu": str(group.cpus), "memory": group.memory} | gpus)
    template["spec"]["automountServiceAccountToken"] = False
    if gpus:  # GPU nodes have this taint, which keeps other pods away
        template["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return {
        "groupName": group.name,
        "replicas": group.least,
        "minReplicas": group.least,
        "maxReplicas": group.most,
        "rayStartParams": {},
        "template": template,
    }


def _template(name: str, cluster: Cluster, size: dict[str, str]) -> dict[str, Any]:
    """A pod of one container. Requests equal limits, since Ray schedules by the limits."""
    user = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    container = {
        "name": name,
        "image": cluster.image,
        "env": [{"name": key, "value": value} for key, value in {**ENV, **cluster.env}.items()],
        "resources": {"requests": dict(size), "limits": dict(size)},
        "securityContext": _unprivileged(),
    }
    pod: dict[str, Any] = {
        "securityContext": user | {"fsGroupChangePolicy": "OnRootMismatch"},
        "containers": [container],
    }
    if cluster.pull_secret:
        pod["imagePullSecrets"] = [{"name": secret} for secret in cluster.pull_secret]
    return {"metadata": {"labels": dict(LABELS)}, "spec": pod}


def _unprivileged() -> dict[str, Any]:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
