"""Manifests against the schemas of KubeRay, Dockerfiles against the checkout, and jobs against a client that is made up."""

import copy
import gzip
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest

from finpod.deploy import dockerfile as images
from finpod.deploy import jobs
from finpod.deploy.cluster import Claim, Cluster, Workers, installed
from finpod.deploy.entrypoint import entrypoint, require_placed, train_options
from finpod.deploy.kuberay import ray_cluster, ray_job, to_yaml
from finpod.errors import FinpodError, InputError

ROOT = Path(__file__).parents[1]
CPU = Workers(name="cpu", least=1, most=4)
GPU = Workers(name="gpu", most=8, cpus=8, memory="64Gi", gpus=2)
DAYS = ("--train", "2009-01-02:2018-12-31", "--validation", "2019-01-02:2019-12-31")
BEGUN = ("finpod", "train", "stocks", "--ray", *DAYS, "--storage", "s3://bucket/run?region=x&scheme=y")
TRAIN = (*BEGUN, "--out", "/runs/first")
PLAIN = ("finpod", "train", "--ray", *DAYS, "--out", "/runs/first")


def cluster(**changes):
    return Cluster(**{"image": "me/finpod:1", "workers": (CPU, GPU), "ray": "2.60.0"} | changes)


RUNS = cluster(claims=(Claim(name="runs", mount="/runs"),))
FULL = cluster(
    claims=(Claim(name="runs", mount="/runs"), Claim(name="prices", mount="/data/prices")),
    env={"A": "1e3", "B": ""},
    secrets=("s3",),
    pull_secrets=("registry",),
    namespace="quants",
    redis="redis:6379",
    redis_secret="redis",
)
MANIFESTS = {
    "job": lambda: ray_job("first", RUNS, TRAIN),
    "job with everything": lambda: ray_job(
        "first", FULL, (*TRAIN, "--overwrite"), keep=0, deadline=86_400, retries=2, working_dir="s3://bucket/own.zip"
    ),
    "cluster": lambda: ray_cluster("second", cluster()),
    "cluster with everything": lambda: ray_cluster("second", FULL),
    "cluster of a fixed size": lambda: ray_cluster("third", cluster(workers=(Workers(name="cpu", least=2, most=2),))),
}
every_manifest = pytest.mark.parametrize("manifest", [make() for make in MANIFESTS.values()], ids=list(MANIFESTS))


@pytest.fixture(scope="session")
def schemas(shared):
    """KubeRay's schemas by kind; the metadata, which they leave open, as they have it for a pod."""
    found = {}
    for kind in ("RayJob", "RayCluster"):
        schema = json.loads(gzip.decompress((shared / "kuberay" / f"{kind.lower()}s.v1.schema.json.gz").read_bytes()))
        spec = schema["properties"]["spec"]["properties"]
        spec = spec["rayClusterSpec"]["properties"] if kind == "RayJob" else spec
        pod = spec["headGroupSpec"]["properties"]["template"]["properties"]
        found[kind] = {**schema, "properties": schema["properties"] | {"metadata": pod["metadata"]}}
    return found


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


def fields(value, schema, path=()):
    """Every field of a manifest but the free names of maps, as the steps that lead to it."""
    if isinstance(value, list):
        return [p for n, item in enumerate(value) for p in fields(item, schema["items"], (*path, n))]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    deeper = [p for name, item in value.items() for p in fields(item, schema["properties"][name], (*path, name))]
    return [(*path, name) for name in value] + deeper


def renamed(manifest, steps):
    """The manifest with one field misspelt."""
    changed = copy.deepcopy(manifest)
    place = changed
    for step in steps[:-1]:
        place = place[step]
    place[f"{steps[-1]}x"] = place.pop(steps[-1])
    return changed


def validate(manifest, schemas):
    jsonschema = pytest.importorskip("jsonschema")
    schema = schemas[manifest["kind"]]
    jsonschema.Draft202012Validator(schema).validate(manifest)
    assert unknown(manifest, schema) == []


@every_manifest
def test_every_field_is_one_of_kuberays(manifest, schemas):
    validate(manifest, schemas)
    assert manifest["apiVersion"] == "ray.io/v1"


@every_manifest
def test_the_check_catches_every_single_field_if_it_is_misspelt(manifest, schemas):
    schema = schemas[manifest["kind"]]
    paths = fields(manifest, schema)
    assert len(paths) > 50
    for steps in paths:
        assert len(unknown(renamed(manifest, steps), schema)) == 1, steps


@pytest.mark.parametrize(
    ("steps", "value"),
    [
        (("backoffLimit",), "2"),
        (("rayClusterSpec", "authOptions", "mode"), "password"),
        (("rayClusterSpec", "workerGroupSpecs", 0, "minReplicas"), 0.5),
        (("rayClusterSpec", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
        (("rayClusterSpec", "headGroupSpec", "template", "spec", "containers", 0, "resources", "limits", "cpu"), "two"),
    ],
)
def test_the_check_catches_a_value_of_the_wrong_kind(steps, value, schemas):
    jsonschema = pytest.importorskip("jsonschema")
    manifest = ray_job("first", RUNS, TRAIN)
    place = manifest["spec"]
    for step in steps[:-1]:
        place = place[step]
    assert steps[-1] in place
    place[steps[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        validate(manifest, schemas)


@every_manifest
def test_yaml_reads_back_as_the_manifest_and_never_changes(manifest):
    yaml = pytest.importorskip("yaml")
    text = to_yaml(manifest)
    assert yaml.safe_load(text) == manifest
    assert text == to_yaml(copy.deepcopy(manifest))
    assert "&" not in text.replace("&scheme", "")  # no anchors: kubectl reads them, people do not


@pytest.mark.parametrize("text", ["1e3", "0o7", "0x1F", "y", "N", "on", "null", "~", "1_000", "12:30:45", "2.60", ""])
def test_texts_that_a_reader_could_take_for_something_else_are_quoted(text):
    pytest.importorskip("yaml")
    manifest = ray_cluster("second", cluster(env={"A": text}))
    assert re.search(f"""value: (['"]){re.escape(text)}\\1\n""", to_yaml(manifest))


def test_the_head_trains_nothing_and_alone_has_claims_secrets_and_the_service_account():
    spec = ray_cluster("second", FULL)["spec"]
    head = spec["headGroupSpec"]["template"]["spec"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert [one["persistentVolumeClaim"]["claimName"] for one in head["volumes"]] == ["runs", "prices"]
    assert [one["mountPath"] for one in head["containers"][0]["volumeMounts"]] == ["/runs", "/data/prices"]
    assert head["containers"][0]["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert "automountServiceAccountToken" not in head  # the autoscaler beside it needs one
    for group in spec["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        assert "volumes" not in pod
        assert "envFrom" not in pod["containers"][0]
        assert pod["automountServiceAccountToken"] is False


@every_manifest
def test_pods_ask_for_what_they_may_use_and_cannot_gain_rights(manifest):
    spec = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["image"] == "me/finpod:1"
    assert spec["authOptions"] == {"mode": "token"}


def test_gpus_are_asked_for_by_the_gpu_group_alone_and_its_taint_tolerated():
    cpu, gpu = ray_cluster("second", cluster())["spec"]["workerGroupSpecs"]
    assert "nvidia.com/gpu" not in cpu["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert "tolerations" not in cpu["template"]["spec"]
    assert gpu["template"]["spec"]["containers"][0]["resources"]["limits"] == {
        "cpu": "8",
        "memory": "64Gi",
        "nvidia.com/gpu": "2",
    }
    assert gpu["template"]["spec"]["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert (gpu["minReplicas"], gpu["replicas"], gpu["maxReplicas"]) == (0, 0, 8)


def test_autoscaling_is_on_where_a_group_may_grow_and_off_where_none_may():
    spec = ray_cluster("second", cluster())["spec"]
    assert spec["enableInTreeAutoscaling"] is True
    assert (spec["autoscalerOptions"]["version"], spec["autoscalerOptions"]["idleTimeoutSeconds"]) == ("v2", 300)
    fixed = MANIFESTS["cluster of a fixed size"]()["spec"]
    assert "enableInTreeAutoscaling" not in fixed
    assert "autoscalerOptions" not in fixed


def test_what_was_not_asked_for_is_left_out():
    job = ray_job("first", RUNS, TRAIN)["spec"]
    assert not {"activeDeadlineSeconds", "runtimeEnvYAML"} & set(job)
    assert "gcsFaultToleranceOptions" not in job["rayClusterSpec"]
    assert "namespace" not in ray_cluster("second", cluster())["metadata"]
    full = MANIFESTS["job with everything"]()["spec"]
    assert full["runtimeEnvYAML"] == "working_dir: s3://bucket/own.zip\n"
    assert full["rayClusterSpec"]["gcsFaultToleranceOptions"]["redisPassword"]["valueFrom"]["secretKeyRef"] == {
        "name": "redis",
        "key": "password",
    }


def test_a_job_goes_with_its_cluster():
    job = ray_job("first", RUNS, TRAIN, keep=60, deadline=7_200)["spec"]
    assert job["shutdownAfterJobFinishes"] is True
    assert (job["ttlSecondsAfterFinished"], job["activeDeadlineSeconds"], job["backoffLimit"]) == (60, 7_200, 0)
    assert shlex.split(job["entrypoint"]) == list(TRAIN)


@pytest.mark.parametrize("words", [TRAIN, ("echo", "a  b", "it's", '"q"', "$HOME", "a;b", "*", "", "back\\slash", "é")])
def test_the_words_of_a_command_pass_two_shells_unharmed(words):
    """The operator puts the line into a shell, and ray job submit makes a line for another shell of what it gets."""
    show = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]
    again = [sys.executable, "-c", "import shlex, sys; print(shlex.join(sys.argv[1:]))"]
    line = f"{shlex.join(again)} {shlex.join(show)} {entrypoint(words)}"
    second = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout
    third = subprocess.run(["sh", "-c", second], capture_output=True, text=True, check=True).stdout
    assert json.loads(third) == list(words)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ray_job("First", RUNS, TRAIN), "'First'"),
        (lambda: ray_job("1st", RUNS, TRAIN), "'1st'"),
        (lambda: ray_job("", RUNS, TRAIN), "''"),
        (lambda: ray_job("a" * 48, RUNS, TRAIN), "at most 47"),
        (lambda: ray_cluster("a" * 54, RUNS), "at most 53"),
        (lambda: ray_job("first", RUNS, ()), "no command"),
        (lambda: ray_job("first", RUNS, ("finpod", "train", "stocks")), "add --ray"),
        (lambda: ray_job("first", cluster(), TRAIN), "--out /runs/first would be lost"),
        (lambda: ray_job("first", RUNS, (*BEGUN, "--out", "strategies/first")), "--out strategies/first would be lost"),
        (lambda: ray_job("first", RUNS, (*BEGUN, "--out=/runsx/first")), "--out /runsx/first would be lost"),
        (lambda: ray_job("first", RUNS, (*BEGUN, "--out=/runs/../tmp/x")), "--out /runs/../tmp/x would be lost"),
        (lambda: ray_job("first", RUNS, (*BEGUN, "--out", "/runs/")), "--out /runs would be lost"),
        (lambda: ray_job("first", RUNS, (*PLAIN, "--storage", "/tmp/x")), "--storage /tmp/x would be lost"),
        (lambda: ray_job("first", RUNS, (*PLAIN, "--storage=file:///tmp/x")), "--storage file:///tmp/x would be lost"),
        (lambda: ray_job("first", RUNS, (*PLAIN, "--storage", "/runs/../x")), "--storage /runs/../x would be lost"),
        (lambda: ray_job("first", RUNS, BEGUN), "would end at once without --out;"),
        (lambda: ray_job("first", RUNS, (*BEGUN, "--fork", "/runs/old")), "would end at once without --out;"),
        (lambda: ray_job("first", RUNS, (*PLAIN[:3], "--out=/runs/x")), "without --train, --validation;"),
        (
            lambda: ray_job("first", RUNS, ("finpod", "train", "--ray", "--resume", "first")),
            "--resume first is not in the head pod",
        ),
        (lambda: ray_job("first", RUNS, (*PLAIN, "--resume", "/tmp/x")), "--resume /tmp/x is not in the head pod"),
        (lambda: ray_job("first", RUNS, ("echo", "$(HOME)")), "dollar"),
        (lambda: ray_job("first", RUNS, (*TRAIN, "--storage=s3://id:word@bucket/run")), "s3://...@bucket/run holds"),
        (lambda: ray_job("first", RUNS, TRAIN, retries=1), "would stop at the unfinished run of the first"),
        (lambda: ray_job("first", RUNS, TRAIN, keep=-1), "keep is -1"),
        (lambda: ray_job("first", RUNS, TRAIN, retries=2**31), "retries is 2147483648"),
        (lambda: ray_job("first", RUNS, TRAIN, deadline=0), "deadline is 0"),
        (lambda: ray_job("first", RUNS, TRAIN, working_dir="."), "cannot be fetched"),
        (lambda: Workers(name="gpu", least=5, most=2), "gpu workers 5:2"),
        (lambda: Workers(name="gpu", least=-1, most=2), "-1:2"),
        (lambda: Workers(name="gpu", least=0, most=0), "are none"),
        (lambda: Workers(name="a_b"), "'a_b'"),
        (lambda: Workers(name="cpu", cpus=0), "0 CPUs"),
        (lambda: Workers(name="cpu", memory="8"), "'8' of memory"),
        (lambda: Workers(name="cpu", memory="0Gi"), "'0Gi' of memory"),
        (lambda: Workers(name="gpu", gpus=-1), "-1 GPUs"),
        (lambda: cluster(image="my image"), "'my image'"),
        (lambda: cluster(image=""), "image ''"),
        (lambda: cluster(workers=()), "without workers"),
        (lambda: cluster(workers=(CPU, CPU)), "cpu is given twice"),
        (lambda: cluster(ray="2.51.0"), "2.52.0"),
        (lambda: cluster(ray="latest"), "Ray latest"),
        (lambda: cluster(head_memory="lots"), "'lots'"),
        (lambda: cluster(idle=0), "idle is 0"),
        (lambda: cluster(namespace="My"), "'My'"),
        (lambda: cluster(env={"A B": "1"}), "'A B'"),
        (lambda: cluster(env={"AWS_SECRET_ACCESS_KEY": "abc"}), "AWS_SECRET_ACCESS_KEY sounds like a secret"),
        (lambda: cluster(env={"A": "$(B)"}), r"A=\$\(B\)"),
        (lambda: cluster(secrets=("s3", "s3")), "s3 is given twice"),
        (lambda: cluster(pull_secrets=("S3",)), "'S3'"),
        (
            lambda: cluster(claims=(Claim(name="runs", mount="/a"), Claim(name="runs", mount="/b"))),
            "runs is given twice",
        ),
        (lambda: cluster(claims=(Claim(name="a", mount="/a"), Claim(name="b", mount="/a"))), "/a is given twice"),
        (lambda: cluster(redis="redis"), "HOST:PORT"),
        (lambda: cluster(redis="redis:99999"), "'redis:99999' cannot be; give HOST:PORT with a port from 1 to 65535"),
        (lambda: cluster(redis="redis:0"), "'redis:0'"),
        (lambda: cluster(redis_secret="redis"), "no Redis"),
        (lambda: Claim(name="runs", mount="runs"), "'runs'"),
        (lambda: Claim(name="runs", mount="/"), "'/'"),
        (lambda: Claim(name="runs", mount="/runs/../etc"), "'/runs/../etc'"),
        (lambda: Claim(name="runs", mount="/tmp/ray"), "'/tmp/ray'"),
        (lambda: installed("no-such-package"), "is not installed"),
        (lambda: images.dockerfile(python="three"), "'three'"),
        (lambda: images.dockerfile(torch="2.13.0; rm -rf /"), "no version"),
        (lambda: images.dockerfile(copies=["../private"]), "'../private'"),
        (lambda: images.dockerfile(copies=["/etc"]), "'/etc'"),
        (lambda: images.dockerfile(copies=["a b"]), "'a b'"),
        (lambda: images.dockerfile(copies=["."]), "'.'"),
        (lambda: images.dockerfile(copies=["nope"]), "'nope' cannot be copied, for it is not here"),
    ],
)
def test_what_cannot_be_is_named_in_one_line(make, told):
    with pytest.raises(InputError, match=told if "\\" in told else re.escape(told)) as raised:
        make()
    assert "\n" not in str(raised.value)
    assert "word@" not in str(raised.value)


def test_harmless_variables_and_commands_are_let_through():
    env = {"TOKENIZERS_PARALLELISM": "0", "MONKEY": "1", "OMP_NUM_THREADS": "4"}
    found = ray_cluster("second", cluster(env=env))["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
    assert {one["name"]: one["value"] for one in found} == {"RAY_USAGE_STATS_ENABLED": "0"} | env
    assert ray_job("first", cluster(), ("finpod", "bench"))["spec"]["entrypoint"] == "finpod bench"
    resumed = ("finpod", "train", "--resume", "/runs/first", "--address", "auto")
    assert shlex.split(ray_job("first", RUNS, resumed, retries=2)["spec"]["entrypoint"]) == list(resumed)
    cluster(redis="redis:1")
    cluster(redis="10.0.0.1:65535")


@pytest.mark.parametrize(
    "more",
    [
        ("--storage", "/runs/logs"),
        ("--storage", "file:///runs/logs"),
        ("--storage", "gs://bucket/run"),
        ("--out", "/runs/../runs/x"),
        ("--resume", "/runs/first"),
        ("--resume", "first", "--storage", "gs://bucket/run"),
    ],
)
def test_what_lies_on_a_claim_or_at_a_url_is_kept(more):
    assert ray_job("first", RUNS, (*PLAIN, *more))["spec"]["entrypoint"] == shlex.join((*PLAIN, *more))


def test_reading_a_command(capsys):
    given = train_options(("/usr/local/bin/finpod", "--debug", "train", "--out", "b", "--pods=3", "--out=c"))
    assert (str(given["out"]), given["pods"], given["pod_cpus"], given["ray"]) == ("c", "3", 1.0, False)
    for words in ("finpod backtest train", "finpod --version", "finpod train --help", "echo finpod train", "train"):
        assert train_options(words.split()) is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("finpod", "finpod names no command"),
        ("finpod data", "finpod data names no command"),
        ("finpod tarin stocks --ray", "No such command 'tarin'"),
        ("finpod data fetsh", "No such command 'fetsh'"),
        ("finpod train stocks --ray --nonsense", "No such option: --nonsense"),
        ("finpod --debug train bonds --ray", "'bonds'"),
        ("finpod train stocks --ray --steps many", "'--steps'"),
        ("finpod train stocks --ray --mode sometimes", "'sometimes'"),
        ("finpod train stocks --ray --out", "--out"),
        ("finpod backtest", "Missing argument"),
        (f"{shlex.join(PLAIN)} --pods 0", "the command would fail: --pods is 0"),
        (f"{shlex.join(PLAIN)} --pods few", "--pods is 'few'"),
        (f"{shlex.join(PLAIN)} --pod-cpus 0", "--pod-cpus is 0"),
        (f"{shlex.join(PLAIN)} --pod-gpus 1.5", "--pod-gpus is 1.5"),
        (f"{shlex.join(PLAIN)} --timeout 0", "--timeout is 0.0"),
        (f"{shlex.join(PLAIN)} --steps 0", "the command would fail: --steps is 0"),
        (f"{shlex.join(PLAIN)} --agents 0", "--agents is 0"),
        (f"{shlex.join(PLAIN)} --keep 1000", "--keep is 1000"),
        (f"{shlex.join(PLAIN)} --fresh 2", "--fresh is 2"),
        (f"{shlex.join(PLAIN)} --seeds 0", "--seeds is 0"),
        (f"{shlex.join(PLAIN)} --stop-trials 0", "is 0; it must be"),
        (f"{shlex.join(PLAIN)} --stop-minutes 0", "give a positive number"),
        (f"{shlex.join(PLAIN)} --hold 0", "hold"),
        (f"{shlex.join(PLAIN)} --fee-bps -1", "--fee-bps"),
        (f"{shlex.join(PLAIN)} --train 2009", "--train is '2009'"),
        (f"{shlex.join(PLAIN)} --validation 2019-12-31:2019-01-02", "before it starts"),
    ],
)
def test_a_command_that_finpod_would_refuse_is_refused_in_its_own_words(line, told):
    with pytest.raises(InputError, match=re.escape(told)) as raised:
        entrypoint(shlex.split(line))
    assert "\n" not in str(raised.value)


WIDE = Workers(name="wide", cpus=64)


@pytest.mark.parametrize(
    ("workers", "options", "told"),
    [
        ([GPU], "", "the gpu workers have GPUs and finpod train would use none; add --pod-gpus 1 to it, or a fraction"),
        ([CPU, Workers(name="gpu", least=1, gpus=1)], "", "the gpu workers have GPUs"),
        ([CPU], "--pod-gpus 0.25", "--pod-gpus 0.25 fits on no worker, for none has a GPU"),
        ([CPU, GPU], "--pod-gpus=4", "--pod-gpus 4 fits on no worker, for none has more than 2"),
        ([CPU], "--pod-cpus 8", "--pod-cpus 8 fits on no worker, for none has more than 4"),
        ([CPU, GPU], "--pod-cpus 8.5", "--pod-cpus 8.5 fits on no worker, for none has more than 8"),
        (
            [WIDE, GPU],
            "--pod-cpus 9 --pod-gpus 1",
            "--pod-cpus 9 fits on no worker with such GPUs, for none has more than 8",
        ),
        ([GPU], "--resume /runs/first", "the gpu workers have GPUs"),
    ],
)
def test_pods_that_fit_on_no_worker_and_gpus_that_none_would_use_are_refused(workers, options, told):
    with pytest.raises(InputError, match=re.escape(told)):
        ray_job("first", cluster(workers=tuple(workers), claims=RUNS.claims), (*PLAIN, *options.split()))


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        ([CPU], "--pod-cpus 4"),
        ([CPU, GPU], ""),
        ([GPU], "--pod-gpus 0.25"),
        ([GPU], "--pod-gpus 2 --pod-cpus 8"),
        ([WIDE, GPU], "--pod-cpus 64"),
    ],
)
def test_pods_that_fit_are_let_through(workers, options):
    require_placed((*PLAIN, *options.split()), workers)


def test_other_commands_are_held_against_no_worker():
    require_placed(("finpod", "bench"), [GPU])
    require_placed(("nvidia-smi",), [GPU])


KNOWN = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "CMD"}


def instructions(text):
    """A Dockerfile as [instruction, arguments], continued lines joined; it may hold nothing else."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [line.split(maxsplit=1) for line in joined]


@pytest.mark.parametrize("cuda", [False, True])
def test_a_dockerfile_is_well_formed_and_its_sources_are_in_the_checkout(cuda):
    found = instructions(
        images.dockerfile(cuda=cuda, python="3.12", torch="2.13.0", ray="2.60.0", copies=["data/README.md"])
    )
    assert {word for word, _ in found} == KNOWN
    stages = [n for n, (word, _) in enumerate(found) if word == "FROM"]
    assert [found[n][1] for n in stages] == ["python:${PYTHON_VERSION}-slim AS wheel", "python:${PYTHON_VERSION}-slim"]
    declared = {rest.partition("=")[0] for word, rest in found if word == "ARG"}
    used = set(re.findall(r"\$\{(\w+)\}", "\n".join(rest for _, rest in found)))
    assert declared == used == {"PYTHON_VERSION", "TORCH_VERSION", "TORCH_INDEX", "RAY_VERSION"}
    for word, rest in found:
        if word == "COPY" and "--from" not in rest:
            *sources, target = [part for part in rest.split() if not part.startswith("--")]
            assert target
            assert all((ROOT / source).exists() for source in sources), sources
    users = [rest for word, rest in found if word == "USER"]
    assert users == ["1000"]  # by number, or Kubernetes cannot tell that it is not root
    assert not [rest for word, rest in found[[w for w, _ in found].index("USER") :] if word == "RUN"]


def test_the_shell_of_a_dockerfile_parses():
    for word, rest in instructions(images.dockerfile(cuda=True)):
        if word == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)


def test_cpu_and_cuda_differ_in_where_torch_comes_from():
    cpu, cuda = (images.dockerfile(cuda=cuda) for cuda in (False, True))
    assert "ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu\n" in cpu
    assert "ARG TORCH_INDEX=https://pypi.org/simple\n" in cuda
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in cuda
    assert "NVIDIA" not in cpu
    assert "ray[default]" in cpu  # the dashboard and the jobs need more than ray alone


def test_the_versions_are_those_of_this_machine_unless_given():
    here = images.dockerfile()
    assert f"ARG PYTHON_VERSION={sys.version_info.major}.{sys.version_info.minor}\n" in here
    assert f"ARG TORCH_VERSION={installed('torch')}\n" in here
    assert "+" not in installed("torch")
    assert "ARG RAY_VERSION=2.59.1\n" in images.dockerfile(ray="2.59.1")
    pinned = (ROOT / "constraints.txt").read_text()
    assert re.search(r"^torch==", pinned, re.MULTILINE)
    assert re.search(r"^ray==", pinned, re.MULTILINE)


class Client:
    """A cluster that is made up: it says what `says` holds, and ends a job as `ends` has it."""

    says = ("one\n", "two\n")
    ends = ("SUCCEEDED", 0)
    fails = MappingProxyType({})

    def __init__(self, address):
        self._fail("connect")
        self.address, self.looks = address, 0
        Client.last = self

    def _fail(self, when):
        if when in self.fails:
            raise self.fails[when]

    def submit_job(self, *, entrypoint, runtime_env):
        self._fail("submit")
        self.entrypoint, self.runtime_env = entrypoint, runtime_env
        return "raysubmit_1"

    async def tail_job_logs(self, job):
        assert job == "raysubmit_1"
        for text in self.says:
            yield text
        self._fail("tail")

    def get_job_status(self, job):
        self.looks += 1
        status = "RUNNING" if self.looks < 3 else self.ends[0]
        return SimpleNamespace(value=status, is_terminal=lambda: status != "RUNNING")

    def get_job_info(self, job):
        return SimpleNamespace(driver_exit_code=self.ends[1])


@pytest.fixture
def client(monkeypatch):
    """Ray with that client in the place of its own."""
    module = SimpleNamespace(JobSubmissionClient=Client)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(job_submission=module))
    monkeypatch.setitem(sys.modules, "ray.job_submission", module)
    monkeypatch.setattr(jobs, "POLL", 0.0)
    for name in jobs.INSTEAD:
        monkeypatch.delenv(name, raising=False)
    return Client


def submit(*words, **options):
    """A job with all that it showed and said."""
    shown, said = [], []
    job = jobs.submit(words, show=shown.append, say=said.append, **options)
    return job, "".join(shown), said


def test_a_job_is_followed_to_its_end(client, tmp_path):
    job, shown, said = submit("echo", "bench", "a b", working_dir=str(tmp_path), env={"A": "1"})
    assert job == ("raysubmit_1", "SUCCEEDED", 0)
    assert shown == "one\ntwo\n"
    assert said == [f"job raysubmit_1 at {jobs.ADDRESS}"]
    assert client.last.address == jobs.ADDRESS
    assert client.last.entrypoint == "echo bench 'a b'"
    assert client.last.runtime_env == {"env_vars": {"A": "1"}, "working_dir": str(tmp_path)}
    assert client.last.looks == 3


@pytest.mark.parametrize(
    ("ends", "code"),
    [(("FAILED", 3), 3), (("FAILED", None), 1), (("FAILED", -9), 137), (("STOPPED", None), 1), (("SUCCEEDED", 0), 0)],
)
def test_the_exit_code_is_that_of_the_command(client, monkeypatch, ends, code):
    monkeypatch.setattr(client, "ends", ends)
    job, _, _ = submit("false")
    assert (job.status, job.exit_code) == (ends[0], code)


def test_without_waiting_nothing_is_followed(client):
    job, shown, _ = submit("finpod", "bench", wait=False)
    assert (job, shown) == (("raysubmit_1", "PENDING", 0), "")
    assert client.last.looks == 0


@pytest.mark.parametrize(
    ("when", "error", "told"),
    [
        ("connect", ConnectionError("refused"), "does not answer; forward it"),
        (
            "connect",
            RuntimeError("\nneeds ray[default]\nmore"),
            "cannot submit to http://127.0.0.1:8265: needs ray[default]",
        ),
        (
            "connect",
            RuntimeError("Authentication required: Unauthorized"),
            "it asks for its token; set RAY_AUTH_MODE=token",
        ),
        ("submit", RuntimeError("401 Unauthorized"), "did not take the job: 401 Unauthorized"),
        ("submit", ValueError(), "did not take the job: ValueError"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_named(client, monkeypatch, when, error, told):
    monkeypatch.setattr(client, "fails", {when: error})
    with pytest.raises(InputError, match=re.escape(told)):
        submit("finpod", "bench")


def test_a_lost_connection_does_not_pass_for_the_end_of_the_job(client, monkeypatch):
    monkeypatch.setattr(client, "fails", {"tail": RuntimeError("closed")})
    with pytest.raises(FinpodError, match="closed; raysubmit_1 may go on, see ray job logs --follow") as raised:
        submit("finpod", "bench")
    assert not isinstance(raised.value, InputError)


def test_an_interrupted_follower_says_that_the_job_goes_on(client, monkeypatch):
    monkeypatch.setattr(client, "fails", {"tail": KeyboardInterrupt()})
    said = []
    with pytest.raises(KeyboardInterrupt):
        jobs.submit(["finpod", "bench"], say=said.append)
    assert said[-1].startswith("raysubmit_1 goes on; see ray job logs --follow")


@pytest.mark.parametrize(
    ("words", "options", "told"),
    [
        ((), {}, "no command"),
        (("finpod", "train", "stocks"), {}, "add --ray"),
        (("finpod", "train", "stocks", "--ray", *DAYS), {}, "without --out;"),
        (("finpod", "tarin"), {}, "No such command 'tarin'"),
        ((*PLAIN, "--pods", "0"), {}, "--pods is 0"),
        (("ls",), {"address": "127.0.0.1:8265"}, "'127.0.0.1:8265' is no address"),
        (("ls",), {"working_dir": "no/such/folder"}, "no/such/folder is not a folder"),
        (("ls",), {"env": {"MY_TOKEN": "abc"}}, "MY_TOKEN sounds like a secret"),
    ],
)
def test_what_cannot_be_submitted_never_reaches_the_cluster(client, words, options, told):
    client.last = None
    with pytest.raises(InputError, match=re.escape(told)):
        submit(*words, **options)
    assert client.last is None


def test_a_variable_that_ray_would_heed_instead_is_named(client, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere:8265")
    with pytest.raises(InputError, match="RAY_ADDRESS is http://elsewhere:8265"):
        submit("ls")
    assert submit("ls", address="http://elsewhere:8265")[0].status == "SUCCEEDED"


def test_without_ray_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.job_submission", None)
    for name in jobs.INSTEAD:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match=r"pip install 'ray\[default\]'"):
        submit("ls")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # ray's own, about its settings and its open files
def test_a_real_ray_runs_a_job_and_hands_back_its_output_and_its_code(monkeypatch):
    pytest.importorskip("aiohttp", reason="the dashboard needs ray[default]")
    for name, value in {
        "ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "AUTH_MODE": "disabled",
        "USAGE_STATS_ENABLED": "0",
    }.items():
        monkeypatch.setenv(f"RAY_{name}", value)
    ray = pytest.importorskip("ray")
    local = {"dashboard_host": "127.0.0.1", "dashboard_port": 0, "log_to_driver": False, "num_cpus": 1}
    address = f"http://{ray.init(include_dashboard=True, object_store_memory=100 * 2**20, **local).dashboard_url}"
    try:
        code = "import os, sys; print('in the cluster:', 'RAY_ADDRESS' in os.environ, *sys.argv[1:]); sys.exit(3)"
        job, shown, _ = submit(sys.executable, "-c", code, "a  b", "$x", address=address)
    finally:
        ray.shutdown()
    assert (job.status, job.exit_code) == ("FAILED", 3)
    assert "in the cluster: True a  b $x" in shown
