"""`finpod deploy`: manifests against the schemas of KubeRay, Dockerfiles against the checkout, and the commands."""

import gzip
import json
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from made_commands import run

from finpod.deploy.kuberay import Cluster, dockerfile, ray_cluster, ray_job

ROOT = Path(__file__).parents[1]
TRAIN = ("finpod", "train", "stocks", "--ray", "--storage", "s3://bucket/run?region=x&scheme=y", "--out", "/runs/first")
KUBERAY = "deploy kuberay --image me/finpod:1 --ray-version 2.60.0"
LINE = "finpod train stocks --ray --out /runs/first"


def cluster(**changes):
    return Cluster(**{"image": "me/finpod:1", "ray": "2.60.0", "cpu_workers": "1:4"} | changes)


GPUS = {"gpu_workers": "0:8", "cpus": 8, "memory": "64Gi", "gpus": 2}
RUNS = cluster(claim=("runs:/runs",), **GPUS)
FULL = cluster(claim=(*RUNS.claim, "prices:/data/prices"), secret=("s3",), pull_secret=("registry",), **GPUS)
MANIFESTS = {
    "job": ray_job("first", RUNS, TRAIN),
    "full_job": ray_job("first", FULL, TRAIN),
    "fixed_cluster": ray_cluster("second", cluster(cpu_workers="2:2")),
}


def read(text):
    return pytest.importorskip("yaml").safe_load(text)


def unknown(value, schema, path=""):
    """Paths of the fields that a schema does not name, however deep they are."""
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


def test_texts_that_a_reader_could_take_for_something_else_are_quoted():
    assert shlex.split(read(MANIFESTS["job"])["spec"]["entrypoint"]) == list(TRAIN)
    for name in ("1e3", "0o7", "y", "null", "2.60"):
        spec = read(ray_cluster("second", cluster(image=name)))["spec"]["headGroupSpec"]["template"]["spec"]
        assert spec["containers"][0]["image"] == name


def test_a_dockerfile_has_the_versions_of_this_machine_and_its_sources_are_in_the_checkout(golden):
    text = dockerfile(cuda=True, copies=["data/README.md"])
    lines = [line.split(maxsplit=1) for line in text.replace("\\\n", " ").splitlines() if line and line[0] != "#"]
    for word, rest in lines:
        if word == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)
        if word == "COPY" and "--from" not in rest:
            *sources, _ = [part for part in rest.split() if not part.startswith("--")]
            assert all((ROOT / source).exists() for source in sources), sources
    text = dockerfile(cuda=True)
    assert "ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu\n" in dockerfile()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name, present in {"PYTHON": python, "TORCH": version("torch").partition("+")[0], "RAY": version("ray")}.items():
        assert f"ARG {name}_VERSION={present}\n" in text
        text = text.replace(f"{name}_VERSION={present}\n", f"{name}_VERSION=...\n")
    assert text == golden("dockerfile.txt", text)


def test_the_command_prints_what_the_library_makes_of_its_options(apart):
    options = (
        "--cpus 8 --memory 32Gi --gpus 2 --head-cpus 4 --head-memory 16Gi --secret s3 --pull-secret registry "
        "--claim runs:/runs --name first --gpu-workers 0:8 --cpu-workers 1:4"
    )
    made = cluster(
        cpu_workers="1:4", gpu_workers="0:8", cpus=8, memory="32Gi", gpus=2, head_cpus=4, head_memory="16Gi",
        secret=("s3",), pull_secret=("registry",), claim=RUNS.claim,
    )  # fmt: skip
    assert run(KUBERAY, options, "--", LINE) == (0, ray_job("first", made, LINE.split()), "")
    gpus = Cluster(image="me/finpod:1", gpu_workers="1:2", ray="2.60.0")
    line = f"{KUBERAY} --kind cluster --gpu-workers 1:2 --out made/cluster.yaml"  # no CPU workers
    assert run(line) == (0, "made/cluster.yaml\n", "")
    assert Path("made/cluster.yaml").read_text() == ray_cluster("finpod", gpus)
    assert "made/cluster.yaml" in run(line).error
    (apart / "data").mkdir()
    assert run("deploy dockerfile --copy data --cuda").out == dockerfile(copies=["data"], cuda=True)


@pytest.mark.parametrize(("line", "value"), [
    (KUBERAY, "no command"), (f"deploy kuberay -- {LINE}", "--image"), (f"{KUBERAY} -- {LINE}", "--out /runs/first"),
    (f"{KUBERAY} --claim runs:/runs -- finpod train --out=/runs/../tmp/x", "--out /tmp/x"),
    (f"{KUBERAY} -- echo '$(HOME)'", "$(HOME)"), (f"{KUBERAY} -- ls s3://id:word@bucket/run", "s3://...@bucket/run"),
    (f"{KUBERAY} --gpu-workers 8 -- {LINE}", "--gpu-workers is '8'"),
    (f"{KUBERAY} --gpu-workers 5:2 -- {LINE}", "--gpu-workers is 5:2"),
    (f"{KUBERAY} --gpu-workers 8:0 -- {LINE}", "--gpu-workers is '8:0'"),
    (f"{KUBERAY} --memory 0Gi -- {LINE}", "--memory is '0Gi'"), (f"{KUBERAY} --ray-version 2.51.0 -- {LINE}", "2.51.0"),
    (f"{KUBERAY} --name {'a' * 48} -- ls", "at most 47"),
    (f"{KUBERAY} --kind cluster -- {LINE}", "finpod deploy submit"),
    (f"{KUBERAY} --claim runs -- {LINE}", "--claim is 'runs'"),
    (f"{KUBERAY} --claim runs:/runs/../etc -- {LINE}", "'runs:/runs/../etc'"),
    (f"{KUBERAY} --claim runs:/runs --claim data:/runs -- {LINE}", "--claim has /runs twice"),
    (f"{KUBERAY} --claim runs:/runs --claim runs:/data -- {LINE}", "--claim has runs twice"),
    (f"{KUBERAY} --head-cpus 0 -- {LINE}", "--head-cpus is 0"), ("deploy dockerfile --copy nope", "'nope'"),
    ("deploy dockerfile --copy ../data", "'../data' is not an existing path below"), ("deploy submit", "no command"),
    ("deploy submit --address http://127.0.0.1:9 -- ls", "127.0.0.1:9"),
])  # fmt: skip
def test_the_command_ends_a_mistake_in_one_line(apart, line, value):
    error = run(line).error
    assert (value in error, "word@" in error) == (True, False)
    assert list(apart.iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's, about its settings and its open files
def test_a_real_ray_runs_a_job_and_its_output_and_failure_come_back(monkeypatch, capfd):
    pytest.importorskip("aiohttp", reason="the dashboard needs ray[default]")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    for name in ("ENABLE_WINDOWS_OR_OSX_CLUSTER", "USAGE_STATS_ENABLED"):
        monkeypatch.setenv(f"RAY_{name}", "0")
    ray = pytest.importorskip("ray")
    local = {"dashboard_host": "127.0.0.1", "dashboard_port": 0, "log_to_driver": False, "num_cpus": 1}
    address = f"http://{ray.init(include_dashboard=True, object_store_memory=100 * 2**20, **local).dashboard_url}"
    try:
        code = "import sys; print(sys.argv[1:]); sys.exit(3)"
        ended = run(f"deploy submit --address {address} --", shlex.join([sys.executable, "-c", code, "a  b", "$x"]))
    finally:
        ray.shutdown()
    assert (ended.code, "['a  b', '$x']" in capfd.readouterr().out) == (1, True)
