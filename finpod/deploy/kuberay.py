"""KubeRay's `ray.io/v1` RayCluster and RayJob as plain dictionaries, and as text that `kubectl apply -f` reads.

The head trains nothing (num-cpus 0), so that losing a worker costs the slices it was at and no more; claims and secrets
are the head's alone, for the driver alone reads data and keeps state. Whoever speaks to Ray needs a token, which the
operator makes and hands to the pods.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from finpod.deploy.cluster import MOST, Claim, Cluster, Workers, require_label
from finpod.deploy.entrypoint import entrypoint, require_kept, require_placed, require_plain, require_repeatable
from finpod.errors import InputError

API = "ray.io/v1"
LONGEST_JOB, LONGEST_CLUSTER = 47, 53
"""Letters of a name, for the operator adds some of its own up to the 63 of Kubernetes."""
LABELS = {"app.kubernetes.io/part-of": "finpod"}
USER = 1000
"""Whom the image runs as; the claims are made writable for that group."""
ENV = {"RAY_USAGE_STATS_ENABLED": "0"}
PORTS = {"gcs-server": 6379, "dashboard": 8265}
REMOTE = re.compile(r"(https|s3|gs|azure|abfss)://\S+\.zip")
"""Working folders that Ray fetches by itself."""


def ray_cluster(name: str, cluster: Cluster) -> dict[str, Any]:
    """A RayCluster that stays until it is deleted; jobs come by `finpod deploy submit`.

    Raises InputError for a name that Kubernetes does not take.
    """
    return _resource("RayCluster", name, LONGEST_CLUSTER, cluster, _cluster_spec(cluster))


def ray_job(
    name: str,
    cluster: Cluster,
    command: Sequence[str],
    *,
    keep: int = 600,
    deadline: int | None = None,
    retries: int = 0,
    working_dir: str | None = None,
) -> dict[str, Any]:
    """A RayJob: a cluster that comes for one command and goes with it.

    `keep` are the seconds that the pods stay after the end, for a look at their logs; `deadline` those after which the job
    is given up, `retries` how often it is begun again on a new cluster. `working_dir` is the URL of a .zip that Ray
    unpacks for the command to run in. Raises InputError for a name that Kubernetes does not take, numbers that cannot be,
    and a command that could not do its work there (see `finpod.deploy.entrypoint`).
    """
    for what, count, least in (("keep", keep, 0), ("retries", retries, 0), ("deadline", deadline, 1)):
        if count is not None and not least <= count <= MOST:
            raise InputError(f"{what} is {count}; give a number from {least} to {MOST}", argument=what)
    if working_dir is not None and not REMOTE.fullmatch(working_dir):
        raise InputError(f"{working_dir} cannot be fetched by the cluster; give the https, s3 or gs URL of a .zip")
    line = entrypoint(command)
    require_plain(command)
    require_placed(command, cluster.workers)
    require_kept(command, [claim.mount for claim in cluster.claims])
    if retries:
        require_repeatable(command)
    spec: dict[str, Any] = {
        "entrypoint": line,
        "submissionMode": "K8sJobMode",
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": keep,
        "backoffLimit": retries,
    }
    if deadline is not None:
        spec["activeDeadlineSeconds"] = deadline
    if working_dir is not None:
        spec["runtimeEnvYAML"] = f"working_dir: {working_dir}\n"
    return _resource("RayJob", name, LONGEST_JOB, cluster, spec | {"rayClusterSpec": _cluster_spec(cluster)})


def to_yaml(manifest: Mapping[str, Any]) -> str:
    """A manifest as YAML, the same text for the same manifest.

    Every text that is not plainly a word is quoted: readers differ in what they take for a number or a truth value
    (`1e3`, `0o7`, `y`), and Kubernetes refuses a number where a text belongs. Raises InputError without PyYAML.
    """
    try:
        import yaml
    except ImportError as error:
        raise InputError("PyYAML is not installed here; pip install pyyaml, or ask for --json") from error

    class Quoting(yaml.SafeDumper):
        """Quotes what is not plainly a word."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        plain = re.fullmatch(r"[A-Za-z/][\w./-]+", value)
        style = "|" if value.endswith("\n") else None if plain else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Quoting.add_representer(str, text)
    return yaml.dump(dict(manifest), Dumper=Quoting, sort_keys=False, width=1_000_000, allow_unicode=True)


def _resource(kind: str, name: str, longest: int, cluster: Cluster, spec: dict[str, Any]) -> dict[str, Any]:
    require_label(name, f"the {kind}", longest)
    if not name[0].isalpha():
        raise InputError(f"the {kind} {name!r} cannot be called so; let the name begin with a letter")
    metadata: dict[str, Any] = {"name": name, "labels": dict(LABELS)}
    if cluster.namespace is not None:
        metadata["namespace"] = cluster.namespace
    return {"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec}


def _cluster_spec(cluster: Cluster) -> dict[str, Any]:
    """The RayClusterSpec, of a RayCluster or within a RayJob."""
    spec: dict[str, Any] = {"rayVersion": cluster.ray, "authOptions": {"mode": "token"}}
    if any(group.least < group.most for group in cluster.workers):
        spec["enableInTreeAutoscaling"] = True
        spec["autoscalerOptions"] = {
            "version": "v2",
            "upscalingMode": "Default",
            "idleTimeoutSeconds": cluster.idle,
            "securityContext": _contained(),
        }
    if cluster.redis is not None:
        spec["gcsFaultToleranceOptions"] = {"redisAddress": cluster.redis}
        if cluster.redis_secret is not None:
            key = {"secretKeyRef": {"name": cluster.redis_secret, "key": "password"}}
            spec["gcsFaultToleranceOptions"]["redisPassword"] = {"valueFrom": key}
    spec["headGroupSpec"] = {
        "rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0"},
        "template": _head(cluster),
    }
    spec["workerGroupSpecs"] = [_group(cluster, group) for group in cluster.workers]
    return spec


def _head(cluster: Cluster) -> dict[str, Any]:
    container = _container("ray-head", cluster, {"cpu": str(cluster.head_cpus), "memory": cluster.head_memory})
    container["ports"] = [{"name": name, "containerPort": port} for name, port in PORTS.items()]
    if cluster.secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in cluster.secrets]
    pod = _pod(cluster, container)
    if cluster.claims:
        container["volumeMounts"] = [{"name": claim.name, "mountPath": claim.mount} for claim in cluster.claims]
        pod["volumes"] = [_volume(claim) for claim in cluster.claims]
    return {"metadata": {"labels": dict(LABELS)}, "spec": pod}


def _group(cluster: Cluster, group: Workers) -> dict[str, Any]:
    size = {"cpu": str(group.cpus), "memory": group.memory}
    if group.gpus:
        size["nvidia.com/gpu"] = str(group.gpus)
    pod = _pod(cluster, _container("ray-worker", cluster, size)) | {"automountServiceAccountToken": False}
    if group.gpus:  # nodes with GPUs are kept free of other pods by this taint
        pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return {
        "groupName": group.name,
        "replicas": group.least,
        "minReplicas": group.least,
        "maxReplicas": group.most,
        "rayStartParams": {},
        "template": {"metadata": {"labels": dict(LABELS)}, "spec": pod},
    }


def _pod(cluster: Cluster, container: dict[str, Any]) -> dict[str, Any]:
    who = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    pod: dict[str, Any] = {
        "securityContext": who | {"fsGroupChangePolicy": "OnRootMismatch"},
        "containers": [container],
    }
    if cluster.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in cluster.pull_secrets]
    return pod


def _container(name: str, cluster: Cluster, size: dict[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "image": cluster.image,
        "env": [{"name": key, "value": value} for key, value in {**ENV, **cluster.env}.items()],
        "resources": _resources(size),
        "securityContext": _contained(),
    }


def _resources(size: dict[str, str]) -> dict[str, Any]:
    """Requests equal to limits: Ray counts the limits as its own, so nothing may be promised twice."""
    return {"requests": dict(size), "limits": dict(size)}


def _contained() -> dict[str, Any]:
    """A container that cannot gain rights."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _volume(claim: Claim) -> dict[str, Any]:
    return {"name": claim.name, "persistentVolumeClaim": {"claimName": claim.name}}
