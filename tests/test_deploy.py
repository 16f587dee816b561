"""Manifests against the schemas of KubeRay, Dockerfiles against the checkout, jobs against a fake client."""

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
from made_commands import run

from finpod.deploy import jobs
from finpod.deploy.jobs import command_line, dockerfile, installed
from finpod.deploy.kuberay import Claim, Cluster, Workers, ray_cluster, ray_job, to_yaml
from finpod.errors import FinpodError, InputError

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
    namespace="quants",
    redis="redis:6379",
    redis_secret="redis",
)
MANIFESTS = {
    "job": lambda: ray_job("first", RUNS, TRAIN),
    "job with everything": lambda: ray_job(
        "first", FULL, TRAIN, keep=0, deadline=86_400, retries=2, working_dir="s3://bucket/own.zip"
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


def validate(manifest, schemas):
    jsonschema = pytest.importorskip("jsonschema")
    schema = schemas[manifest["kind"]]
    jsonschema.Draft202012Validator(schema).validate(manifest)
    assert unknown(manifest, schema) == []


@every_manifest
def test_every_field_is_one_of_kuberays(manifest, schemas):
    validate(manifest, schemas)
    assert manifest["apiVersion"] == "ray.io/v1"


def test_the_validation_catches_a_misspelt_field_and_a_value_of_the_wrong_kind(schemas):
    jsonschema = pytest.importorskip("jsonschema")
    manifest = ray_job("first", RUNS, TRAIN)
    manifest["spec"]["rayClusterSpec"]["headGroupSpec"]["templates"] = {}
    assert unknown(manifest, schemas["RayJob"]) == [".spec.rayClusterSpec.headGroupSpec.templates"]
    manifest["spec"]["backoffLimit"] = "2"
    with pytest.raises(jsonschema.ValidationError):
        validate(manifest, schemas)


@every_manifest
def test_yaml_reads_back_as_the_manifest(manifest):
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
    assert spec["authOptions"] == {"mode": "token"}


def test_groups_have_their_gpus_and_grow_where_they_may():
    spec = ray_cluster("second", cluster())["spec"]
    cpu, gpu = spec["workerGroupSpecs"]
    assert "nvidia.com/gpu" not in cpu["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert "tolerations" not in cpu["template"]["spec"]
    limits = gpu["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"}
    assert gpu["template"]["spec"]["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert (gpu["minReplicas"], gpu["replicas"], gpu["maxReplicas"]) == (0, 0, 8)
    assert (spec["enableInTreeAutoscaling"], spec["autoscalerOptions"]["idleTimeoutSeconds"]) == (True, 300)
    fixed = MANIFESTS["cluster of a fixed size"]()["spec"]
    assert not {"enableInTreeAutoscaling", "autoscalerOptions"} & set(fixed)


def test_a_job_ends_with_its_cluster_and_what_was_not_asked_for_is_left_out():
    job = ray_job("first", RUNS, TRAIN)["spec"]
    assert job["shutdownAfterJobFinishes"] is True
    assert shlex.split(job["entrypoint"]) == list(TRAIN)
    assert not {"activeDeadlineSeconds", "runtimeEnvYAML"} & set(job)
    assert "gcsFaultToleranceOptions" not in job["rayClusterSpec"]
    full = MANIFESTS["job with everything"]()
    assert full["metadata"]["namespace"] == "quants"
    values = [full["spec"][name] for name in ("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit")]
    assert values == [0, 86_400, 2]
    assert full["spec"]["runtimeEnvYAML"] == "working_dir: s3://bucket/own.zip\n"
    password = full["spec"]["rayClusterSpec"]["gcsFaultToleranceOptions"]["redisPassword"]
    assert password["valueFrom"]["secretKeyRef"] == {"name": "redis", "key": "password"}


@pytest.mark.parametrize("words", [TRAIN, ("echo", "a  b", "it's", '"q"', "$HOME", "a;b", "*", "", "back\\slash", "é")])
def test_the_words_of_a_command_pass_two_shells_unharmed(words):
    """The operator puts the line into a shell, and ray job submit makes a line for another shell of what it gets."""
    show = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]
    again = [sys.executable, "-c", "import shlex, sys; print(shlex.join(sys.argv[1:]))"]
    line = f"{shlex.join(again)} {shlex.join(show)} {command_line(words)}"
    second = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout
    third = subprocess.run(["sh", "-c", second], capture_output=True, text=True, check=True).stdout
    assert json.loads(third) == list(words)


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda: ray_job("First", RUNS, TRAIN), "'First'"),
        (lambda: ray_job("1st", RUNS, TRAIN), "'1st'"),
        (lambda: ray_job("a" * 48, RUNS, TRAIN), "at most 47"),
        (lambda: ray_cluster("a" * 54, RUNS), "at most 53"),
        (lambda: ray_job("first", RUNS, ()), "no command"),
        (lambda: ray_job("first", cluster(), TRAIN), "--out /runs/first"),
        (lambda: ray_job("first", RUNS, ("finpod", "train", "--out", "strategies/first")), "--out strategies/first"),
        (lambda: ray_job("first", RUNS, ("finpod", "train", "--out=/runsx/first")), "--out /runsx/first"),
        (lambda: ray_job("first", RUNS, ("finpod", "train", "--out=/runs/../tmp/x")), "--out /tmp/x"),
        (lambda: ray_job("first", RUNS, ("finpod", "train", "--out", "/runs/")), "--out /runs"),
        (lambda: ray_job("first", RUNS, ("echo", "$(HOME)")), "$(HOME)"),
        (lambda: ray_job("first", RUNS, (*TRAIN, "--storage=s3://id:word@bucket/run")), "s3://...@bucket/run"),
        (lambda: ray_job("first", RUNS, TRAIN, keep=-1), "keep is -1"),
        (lambda: ray_job("first", RUNS, TRAIN, retries=2**31), "retries is 2147483648"),
        (lambda: ray_job("first", RUNS, TRAIN, deadline=0), "deadline is 0"),
        (lambda: ray_job("first", RUNS, TRAIN, working_dir="."), ". cannot be fetched"),
        (lambda: Workers(name="gpu", least=5, most=2), "5:2"),
        (lambda: Workers(name="gpu", least=-1), "least is -1"),
        (lambda: Workers(name="gpu", most=0), "most is 0"),
        (lambda: Workers(name="a_b"), "'a_b'"),
        (lambda: Workers(name="cpu", cpus=0), "cpus is 0"),
        (lambda: Workers(name="cpu", memory="8"), "'8'"),
        (lambda: Workers(name="cpu", memory="0Gi"), "'0Gi'"),
        (lambda: Workers(name="gpu", gpus=-1), "gpus is -1"),
        (lambda: cluster(image="my image"), "'my image'"),
        (lambda: cluster(workers=()), "no workers"),
        (lambda: cluster(workers=(CPU, CPU)), "cpu is given twice"),
        (lambda: cluster(ray="2.51.0"), "2.51.0"),
        (lambda: cluster(ray="latest"), "latest"),
        (lambda: cluster(head_memory="lots"), "'lots'"),
        (lambda: cluster(idle=0), "idle is 0"),
        (lambda: cluster(namespace="My"), "'My'"),
        (lambda: cluster(env={"A B": "1"}), "'A B'"),
        (lambda: cluster(env={"AWS_SECRET_ACCESS_KEY": "abc"}), "AWS_SECRET_ACCESS_KEY"),
        (lambda: cluster(env={"A": "$(B)"}), "A=$(B)"),
        (lambda: cluster(secret=("s3", "s3")), "s3 is given twice"),
        (lambda: cluster(pull_secret=("S3",)), "'S3'"),
        (lambda: cluster(claims=(Claim(claim="a", mount="/a"), Claim(claim="a", mount="/b"))), "a is given twice"),
        (lambda: cluster(claims=(Claim(claim="a", mount="/a"), Claim(claim="b", mount="/a"))), "/a is given twice"),
        (lambda: cluster(redis="redis"), "'redis'"),
        (lambda: cluster(redis="redis:65536"), "'redis:65536'"),
        (lambda: cluster(redis="redis:0"), "'redis:0'"),
        (lambda: cluster(redis_secret="redis"), "'redis'"),
        (lambda: Claim(claim="runs", mount="runs"), "'runs'"),
        (lambda: Claim(claim="runs", mount="/"), "'/'"),
        (lambda: Claim(claim="runs", mount="/runs/../etc"), "'/runs/../etc'"),
        (lambda: Claim(claim="runs", mount="/tmp/ray"), "'/tmp/ray'"),
        (lambda: installed("no-such-package"), "no-such-package"),
        (lambda: dockerfile(python="three"), "'three'"),
        (lambda: dockerfile(torch="2.13.0; rm -rf /"), "'2.13.0; rm -rf /'"),
        (lambda: dockerfile(copies=["../private"]), "'../private'"),
        (lambda: dockerfile(copies=["/etc"]), "'/etc'"),
        (lambda: dockerfile(copies=["a b"]), "'a b'"),
        (lambda: dockerfile(copies=["."]), "'.'"),
        (lambda: dockerfile(copies=["nope"]), "'nope'"),
    ],
)
def test_what_cannot_be_is_named_in_one_line(make, value):
    with pytest.raises(InputError, match=re.escape(value)) as raised:
        make()
    assert "\n" not in str(raised.value)
    assert "word@" not in str(raised.value)


def test_harmless_variables_commands_and_addresses_are_let_through():
    env = {"TOKENIZERS_PARALLELISM": "0", "MONKEY": "1", "OMP_NUM_THREADS": "4"}
    container = ray_cluster("second", cluster(env=env))["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert {one["name"]: one["value"] for one in container["env"]} == {"RAY_USAGE_STATS_ENABLED": "0"} | env
    assert ray_job("first", cluster(), ("finpod", "bench"))["spec"]["entrypoint"] == "finpod bench"
    ray_job("first", RUNS, ("finpod", "train", "--out", "/runs/../runs/x"))
    for address in ("redis:1", "10.0.0.1:65535"):
        cluster(redis=address)
    for mount in ("/runs", "/tmpx", "/data/.hidden"):
        Claim(claim="a", mount=mount)


KNOWN = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "CMD"}


def instructions(text):
    """A Dockerfile as [instruction, arguments], continued lines joined; it may hold nothing else."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [line.split(maxsplit=1) for line in joined]


@pytest.mark.parametrize("cuda", [False, True])
def test_a_dockerfile_is_well_formed_and_its_sources_are_in_the_checkout(cuda):
    found = instructions(dockerfile(cuda=cuda, python="3.12", torch="2.13.0", ray="2.60.0", copies=["data/README.md"]))
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
    for word, rest in instructions(dockerfile(cuda=True)):
        if word == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)


def test_cpu_and_cuda_differ_in_where_torch_comes_from_and_versions_are_those_of_this_machine():
    cpu, cuda = (dockerfile(cuda=cuda, ray="2.59.1") for cuda in (False, True))
    assert "ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu\n" in cpu
    assert "ARG TORCH_INDEX=https://pypi.org/simple\n" in cuda
    assert ("NVIDIA" in cpu, "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in cuda) == (False, True)
    assert f"ARG PYTHON_VERSION={sys.version_info.major}.{sys.version_info.minor}\n" in cpu
    assert f"ARG TORCH_VERSION={installed('torch')}\n" in cpu
    assert ("+" in installed("torch"), "ARG RAY_VERSION=2.59.1\n" in cpu) == (False, True)
    assert set(re.findall(r"^(torch|ray)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)) == {"torch", "ray"}


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
        ("connect", RuntimeError("Authentication required: Unauthorized"), "set RAY_AUTH_MODE=token"),
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
    ("words", "options", "value"),
    [
        ((), {}, "no command"),
        (("ls",), {"address": "127.0.0.1:8265"}, "'127.0.0.1:8265'"),
        (("ls",), {"working_dir": "no/such/folder"}, "no/such/folder"),
        (("ls",), {"env": {"MY_TOKEN": "abc"}}, "MY_TOKEN"),
    ],
)
def test_what_cannot_be_submitted_never_reaches_the_cluster(client, words, options, value):
    client.last = None
    with pytest.raises(InputError, match=re.escape(value)):
        submit(*words, **options)
    assert client.last is None


def test_a_variable_that_ray_would_obey_instead_is_named(client, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere:8265")
    with pytest.raises(InputError, match="RAY_ADDRESS is http://elsewhere:8265"):
        submit("ls")
    assert submit("ls", address="http://elsewhere:8265")[0].status == "SUCCEEDED"


def test_without_ray_one_line_says_how_to_get_it(client, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.job_submission", None)
    with pytest.raises(InputError, match=r"pip install 'ray\[default\]'"):
        submit("ls")


# --- the commands

KUBERAY = "deploy kuberay --image me/finpod:1 --ray-version 2.60.0"
LINE = shlex.join(TRAIN)


def test_the_command_prints_what_the_library_makes_of_its_options():
    yaml = pytest.importorskip("yaml")
    size, more = "--cpus 8 --memory 32Gi --gpus 2", "--head-cpus 4 --head-memory 16Gi --idle 60 --namespace quants"
    names = "--secret s3 --pull-secret registry --env A=b=c --redis redis:6379 --redis-secret redis --claim runs:/runs"
    rest = "--name first --gpu-workers 0:8 --cpu-workers 1:4 --keep 0 --deadline 7200 --retries 1"
    made = Cluster(
        image="me/finpod:1",
        workers=(
            Workers(name="cpu", least=1, most=4, cpus=8, memory="32Gi"),
            Workers(name="gpu", least=0, most=8, cpus=8, memory="32Gi", gpus=2),
        ),
        ray="2.60.0", head_cpus=4, head_memory="16Gi", idle=60, namespace="quants", env={"A": "b=c"}, secret=("s3",),
        pull_secret=("registry",), claims=(Claim(claim="runs", mount="/runs"),), redis="redis:6379", redis_secret="redis",
    )  # fmt: skip
    job = ray_job("first", made, TRAIN, keep=0, deadline=7200, retries=1)
    assert run(KUBERAY, size, more, names, rest, "--", LINE) == (0, to_yaml(job), "")
    assert json.loads(run(KUBERAY, size, more, names, rest, "--json --", LINE).out) == yaml.safe_load(to_yaml(job))


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ("", [("cpu", 0, 4)]),
        ("--gpu-workers 1:2", [("gpu", 1, 2)]),
        ("--gpu-workers 1:2 --cpu-workers 3:3", [("cpu", 3, 3), ("gpu", 1, 2)]),
    ],
)
def test_the_command_takes_groups_and_four_cpu_workers_otherwise(options, groups):
    manifest = json.loads(run(KUBERAY, "--kind cluster --json", options).out)
    assert (manifest["kind"], manifest["metadata"]["name"]) == ("RayCluster", "finpod")
    found = manifest["spec"]["workerGroupSpecs"]
    assert [(one["groupName"], one["minReplicas"], one["maxReplicas"]) for one in found] == groups


def test_the_command_replaces_a_file_only_when_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = f"{KUBERAY} --kind cluster --json --out made/cluster.json"
    assert run(line) == (0, "made/cluster.json\n", "")
    written = json.loads((tmp_path / "made" / "cluster.json").read_text())
    assert written == ray_cluster("finpod", Cluster(image="me/finpod:1", workers=(Workers(name="cpu"),), ray="2.60.0"))
    assert "made/cluster.json" in run(line, "--gpu-workers 0:1").error
    assert json.loads((tmp_path / "made" / "cluster.json").read_text()) == written
    assert run(line, "--gpu-workers 0:1 --overwrite").code == 0
    (tmp_path / "data").mkdir()
    assert run("deploy dockerfile --copy data --cuda --out Dockerfile").out == "Dockerfile\n"
    assert (tmp_path / "Dockerfile").read_text() == dockerfile(copies=["data"], cuda=True)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (KUBERAY, "no command"),
        (f"deploy kuberay -- {LINE}", "--image"),
        (f"{KUBERAY} --gpu-workers 5:2 --claim runs:/runs -- {LINE}", "5:2"),
        (f"{KUBERAY} --gpu-workers 8 -- {LINE}", "--gpu-workers is '8'"),
        (f"{KUBERAY} --name No_Name --claim runs:/runs -- {LINE}", "--name 'No_Name'"),
        (f"{KUBERAY} -- {LINE}", "--out /runs/first"),
        (f"{KUBERAY} --kind cluster -- {LINE}", "finpod deploy submit"),
        (f"{KUBERAY} --claim runs -- {LINE}", "''"),
        (f"{KUBERAY} --env A -- {LINE}", "--env 'A'"),
        (f"{KUBERAY} --idle 0 -- {LINE}", "--idle is 0"),
        (f"{KUBERAY} --memory 8 -- {LINE}", "--memory '8'"),
        (f"{KUBERAY} --kind cluster --out /proc/none/here.yaml", "/proc/none/here.yaml"),
        ("deploy dockerfile --copy nope", "'nope'"),
        ("deploy submit", "no command"),
        ("deploy submit --working-dir nowhere -- ls", "nowhere"),
    ],
)
def test_the_command_ends_a_mistake_in_one_line(tmp_path, monkeypatch, line, value):
    monkeypatch.chdir(tmp_path)
    assert value in run(line).error
    assert list(tmp_path.iterdir()) == []


def test_the_command_shows_the_output_of_a_job_and_ends_with_its_code(client, monkeypatch):
    monkeypatch.setattr(client, "ends", ("FAILED", 3))
    ended = run("deploy submit --working-dir . --env A=1 -- finpod bench --json")
    assert (ended.code, ended.out) == (3, "one\ntwo\n")
    assert ended.err.splitlines() == [f"job raysubmit_1 at {jobs.ADDRESS}", "raysubmit_1: failed"]
    assert client.last.runtime_env == {"env_vars": {"A": "1"}, "working_dir": "."}
    assert run("deploy submit --no-wait -- finpod bench").err.endswith("raysubmit_1: pending\n")


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
