"""Manifests against the schemas of KubeRay, and Dockerfiles against the checkout."""

import gzip
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from finpod.deploy.jobs import dockerfile, installed
from finpod.deploy.kuberay import Claim, Cluster, Workers, ray_cluster, ray_job
from finpod.errors import InputError

ROOT = Path(__file__).parents[1]
CPU = Workers(name="cpu", least=1, most=4)
GPU = Workers(name="gpu", most=8, cpus=8, memory="64Gi", gpus=2)
TRAIN = ("finpod", "train", "stocks", "--ray", "--storage", "s3://bucket/run?region=x&scheme=y", "--out", "/runs/first")


def cluster(**changes):
    return Cluster(**{"image": "me/finpod:1", "workers": (CPU, GPU), "ray": "2.60.0"} | changes)


RUNS = cluster(claims=(Claim(claim="runs", mount="/runs"),))
FULL = cluster(
    claims=(Claim(claim="runs", mount="/runs"), Claim(claim="prices", mount="/data/prices")),
    env={"A": "1e3", "B": ""},
    secret=("s3",),
    pull_secret=("registry",),
)
MANIFESTS = {
    "job": ray_job("first", RUNS, TRAIN),
    "full_job": ray_job("first", FULL, TRAIN, retries=2),
    "fixed_cluster": ray_cluster("second", cluster(workers=(Workers(name="cpu", least=2, most=2),))),
}


def read(text):
    return pytest.importorskip("yaml").safe_load(text)


# --- manifests


def unknown(value, schema, path=""):
    """Paths of the fields that a schema does not name, however deep they lie."""
    if isinstance(value, list):
        return [p for n, item in enumerate(value) for p in unknown(item, schema.get("items", {}), f"{path}[{n}]")]
    if not isinstance(value, dict):
        return []
    found = []
    for name, item in value.items():
        known = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
        here = f"{path}.{name}"
        found += [here] if known is None else unknown(item, known, here)
    return found


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_that_of_the_golden_file_and_every_field_one_of_kuberays(name, golden, shared):
    """The metadata, which KubeRay's schemas leave open, are checked as those of a pod."""
    assert MANIFESTS[name] == golden(f"kuberay_{name}.yaml", MANIFESTS[name])
    jsonschema, manifest = pytest.importorskip("jsonschema"), read(MANIFESTS[name])
    file = shared / "kuberay" / f"{manifest['kind'].lower()}s.v1.schema.json.gz"
    schema = json.loads(gzip.decompress(file.read_bytes()))
    spec = schema["properties"]["spec"]["properties"]
    spec = spec["rayClusterSpec"]["properties"] if manifest["kind"] == "RayJob" else spec
    schema["properties"]["metadata"] = spec["headGroupSpec"]["properties"]["template"]["properties"]["metadata"]
    jsonschema.Draft202012Validator(schema).validate(manifest)
    assert unknown(manifest, schema) == []
    assert unknown({"spec": {"hedGroupSpec": {}}}, schema) == [".spec.hedGroupSpec"]


def test_only_the_head_has_claims_and_secrets_and_no_pod_can_gain_rights():
    spec = read(MANIFESTS["full_job"])["spec"]["rayClusterSpec"]
    head, *workers = [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"  # it trains nothing
    assert spec["authOptions"] == {"mode": "token"}
    assert ("volumes" in head, "envFrom" in head["containers"][0]) == (True, True)
    for pod in (head, *workers):
        (container,) = pod["containers"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        if pod is not head:
            assert pod["automountServiceAccountToken"] is False
            assert ("volumes" in pod, "envFrom" in container) == (False, False)


def environment(text):
    (container,) = read(text)["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    return {one["name"]: one["value"] for one in container["env"]}


def test_texts_that_a_reader_could_take_for_something_else_are_quoted():
    texts = ["1e3", "0o7", "0x1F", "y", "N", "on", "null", "~", "1_000", "12:30:45", "2.60", "", 'a"b\\c', "é: #x"]
    env = {f"A{number}": text for number, text in enumerate(texts)}
    manifest = ray_cluster("second", cluster(env=env))
    assert all(f"value: {json.dumps(text, ensure_ascii=False)}}}\n" in manifest for text in texts)
    assert environment(manifest) == {"RAY_USAGE_STATS_ENABLED": "0"} | env


def job(*words, **terms):
    return ray_job("first", RUNS, words or TRAIN, **terms)


def claims(*pairs):
    return cluster(claims=tuple(Claim(claim=claim, mount=mount) for claim, mount in pairs))


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda: ray_job("First", RUNS, TRAIN), "'First'"),
        (lambda: ray_job("a" * 48, RUNS, TRAIN), "at most 47"),
        (lambda: ray_job("first", RUNS, ()), "no command"),
        (lambda: ray_job("first", cluster(), TRAIN), "--out /runs/first"),
        (lambda: job("finpod", "train", "--out", "strategies/first"), "--out strategies/first"),
        (lambda: job("finpod", "train", "--out=/runs/../tmp/x"), "--out /tmp/x"),
        (lambda: job("echo", "$(HOME)"), "$(HOME)"),
        (lambda: job(*TRAIN, "--storage=s3://id:word@bucket/run"), "s3://...@bucket/run"),
        (lambda: job(retries=-1), "retries is -1"),
        (lambda: Workers(name="gpu", least=5, most=2), "5:2"),
        (lambda: Workers(name="a_b"), "'a_b'"),
        (lambda: Workers(name="cpu", memory="0Gi"), "'0Gi'"),
        (lambda: cluster(image="my image"), "'my image'"),
        (lambda: cluster(workers=()), "no workers"),
        (lambda: cluster(workers=(CPU, CPU)), "cpu is given twice"),
        (lambda: cluster(ray="2.51.0"), "2.51.0"),
        (lambda: cluster(env={"A B": "1"}), "'A B'"),
        (lambda: cluster(env={"AWS_SECRET_ACCESS_KEY": "abc"}), "AWS_SECRET_ACCESS_KEY"),
        (lambda: cluster(env={"A": "$(B)"}), "A=$(B)"),
        (lambda: cluster(secret=("s3", "s3")), "s3 is given twice"),
        (lambda: cluster(pull_secret=("S3",)), "'S3'"),
        (lambda: claims(("a", "/a"), ("a", "/b")), "a is given twice"),
        (lambda: claims(("a", "/a"), ("b", "/a")), "/a is given twice"),
        (lambda: claims(("runs", "/runs/../etc")), "'/runs/../etc'"),
        (lambda: installed("no-such-package"), "no-such-package"),
        (lambda: dockerfile(copies=["../private"]), "'../private'"),
        (lambda: dockerfile(copies=["."]), "'.'"),
        (lambda: dockerfile(copies=["nope"]), "'nope'"),
    ],
)
def test_what_cannot_be_is_named_in_one_line(make, value):
    with pytest.raises(InputError, match=re.escape(value)) as raised:
        make()
    assert "\n" not in str(raised.value)
    assert "word@" not in str(raised.value)


def test_harmless_variables_and_commands_are_let_through():
    env = {"TOKENIZERS_PARALLELISM": "0", "MONKEY": "1", "OMP_NUM_THREADS": "4"}
    assert environment(ray_cluster("second", cluster(env=env))) == {"RAY_USAGE_STATS_ENABLED": "0"} | env
    assert shlex.split(read(MANIFESTS["job"])["spec"]["entrypoint"]) == list(TRAIN)
    assert read(ray_job("first", cluster(), ("finpod", "bench")))["spec"]["entrypoint"] == "finpod bench"
    job("finpod", "train", "--out", "/runs/../runs/x")


# --- images


def instructions(text):
    """A Dockerfile as [instruction, arguments], continued lines joined; it may hold nothing else."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [line.split(maxsplit=1) for line in joined]


@pytest.mark.parametrize("cuda", [False, True])
def test_a_dockerfile_is_well_formed_and_its_sources_are_in_the_checkout(cuda):
    found = instructions(dockerfile(cuda=cuda, copies=["data/README.md"]))
    assert {word for word, _ in found} == {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "CMD"}
    declared = {rest.partition("=")[0] for word, rest in found if word == "ARG"}
    used = set(re.findall(r"\$\{(\w+)\}", "\n".join(rest for _, rest in found)))
    assert declared == used == {"PYTHON_VERSION", "TORCH_VERSION", "TORCH_INDEX", "RAY_VERSION"}
    for word, rest in found:
        if word == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)
        if word == "COPY" and "--from" not in rest:
            *sources, _ = [part for part in rest.split() if not part.startswith("--")]
            assert all((ROOT / source).exists() for source in sources), sources
    words = [word for word, _ in found]
    user = words.index("USER")
    assert found[user][1] == "1000"  # by number, or Kubernetes cannot tell that it is not root
    assert "RUN" not in words[user:]


def test_versions_are_those_of_this_machine(golden):
    text = dockerfile(cuda=True)
    assert "ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu\n" in dockerfile()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name, version in {"PYTHON": python, "TORCH": installed("torch"), "RAY": installed("ray")}.items():
        assert f"ARG {name}_VERSION={version}\n" in text
        text = text.replace(f"{name}_VERSION={version}\n", f"{name}_VERSION=...\n")
    assert "+" not in installed("torch")
    assert text == golden("dockerfile.txt", text)
