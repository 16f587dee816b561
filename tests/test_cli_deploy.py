"""`finpod deploy kuberay | dockerfile | submit`: what it prints, what it writes, and how it fails."""

import json
import shlex

import pytest

from finpod.cli import main
from finpod.deploy import jobs
from finpod.deploy.cluster import Claim, Cluster, Workers
from finpod.deploy.dockerfile import dockerfile
from finpod.deploy.kuberay import ray_cluster, ray_job, to_yaml
from finpod.errors import InputError

DAYS = "--train 2009-01-02:2018-12-31 --validation 2019-01-02:2019-12-31"
TRAIN = f"finpod train stocks --ray {DAYS} --out /runs/first"
KUBERAY = "deploy kuberay --image me/finpod:1 --ray-version 2.60.0"
ON_CLAIM = f"{KUBERAY} --claim runs:/runs"


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command line in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(line):
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(line))
        text = capsys.readouterr()
        return ended.value.code, text.out, text.err

    return call


def test_a_job_is_what_the_library_makes_of_it(run):
    pytest.importorskip("yaml")
    options = "--name first --gpu-workers 0:8 --cpu-workers 1:4 --cpus 8 --memory 32Gi --gpus 2 --claim runs:/runs"
    more = (
        "--secret s3 --pull-secret registry --env A=b=c --namespace quants --idle 60 --head-cpus 4 --head-memory 16Gi"
    )
    rest = "--keep 0 --deadline 7200 --retries 1 --redis redis:6379 --redis-secret redis"
    code, out, err = run(f"{KUBERAY} {options} {more} {rest} -- {TRAIN} --overwrite")
    size = {"cpus": 8, "memory": "32Gi"}
    cluster = Cluster(
        image="me/finpod:1",
        workers=(Workers(name="cpu", least=1, most=4, **size), Workers(name="gpu", least=0, most=8, gpus=2, **size)),
        ray="2.60.0",
        head_cpus=4,
        head_memory="16Gi",
        idle=60,
        namespace="quants",
        env={"A": "b=c"},
        secrets=("s3",),
        pull_secrets=("registry",),
        claims=(Claim(name="runs", mount="/runs"),),
        redis="redis:6379",
        redis_secret="redis",
    )
    job = ray_job("first", cluster, [*TRAIN.split(), "--overwrite"], keep=0, deadline=7200, retries=1)
    assert (code, out, err) == (0, to_yaml(job), "")


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ("", [("cpu", 0, 4)]),
        ("--gpu-workers 1:2", [("gpu", 1, 2)]),
        ("--gpu-workers 1:2 --cpu-workers 3:3", [("cpu", 3, 3), ("gpu", 1, 2)]),
    ],
)
def test_groups_are_those_asked_for_and_four_cpu_workers_otherwise(run, options, groups):
    code, out, _ = run(f"{KUBERAY} --kind cluster --json {options}")
    manifest = json.loads(out)
    assert (code, manifest["kind"], manifest["metadata"]["name"]) == (0, "RayCluster", "finpod")
    found = manifest["spec"]["workerGroupSpecs"]
    assert [(one["groupName"], one["minReplicas"], one["maxReplicas"]) for one in found] == groups


def test_json_is_the_same_manifest_as_yaml(run):
    yaml = pytest.importorskip("yaml")
    line = f"{KUBERAY} --claim runs:/runs"
    assert json.loads(run(f"{line} --json -- {TRAIN}")[1]) == yaml.safe_load(run(f"{line} -- {TRAIN}")[1])


def test_a_file_is_written_whole_and_replaced_only_when_told(run, tmp_path):
    line = f"{KUBERAY} --kind cluster --json --out made/cluster.json"
    code, out, _ = run(line)
    written = json.loads((tmp_path / "made" / "cluster.json").read_text())
    assert (code, out) == (0, "made/cluster.json\n")
    assert written == ray_cluster("finpod", Cluster(image="me/finpod:1", workers=(Workers(name="cpu"),), ray="2.60.0"))
    code, out, err = run(f"{line} --gpu-workers 0:1")
    assert (code, out) == (2, "")
    assert "made/cluster.json exists already" in err
    assert json.loads((tmp_path / "made" / "cluster.json").read_text()) == written
    assert run(f"{line} --gpu-workers 0:1 --overwrite")[0] == 0
    assert json.loads((tmp_path / "made" / "cluster.json").read_text()) != written


@pytest.mark.parametrize("cuda", [False, True])
def test_a_dockerfile_is_what_the_library_makes_of_it(run, cuda):
    flag = "--cuda" if cuda else ""
    code, out, _ = run(f"deploy dockerfile {flag} --python-version 3.12 --torch-version 2.13.0 --ray-version 2.60.0")
    assert (code, out) == (0, dockerfile(cuda=cuda, python="3.12", torch="2.13.0", ray="2.60.0"))


def test_a_dockerfile_can_be_written_and_take_things_along(run, tmp_path):
    (tmp_path / "data" / "mine").mkdir(parents=True)
    (tmp_path / "strategies").mkdir()
    code, out, _ = run("deploy dockerfile --copy data/mine --copy strategies --out Dockerfile")
    assert (code, out) == (0, "Dockerfile\n")
    assert (tmp_path / "Dockerfile").read_text() == dockerfile(copies=["data/mine", "strategies"])


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"{KUBERAY}", "there is no command"),
        (f"deploy kuberay -- {TRAIN}", "--image"),
        (f"{KUBERAY} --gpu-workers 5:2 --claim runs:/runs -- {TRAIN}", "gpu workers 5:2"),
        (f"{KUBERAY} --gpu-workers 8 -- {TRAIN}", "--gpu-workers is '8'"),
        (f"{KUBERAY} --cpu-workers -1:2 -- {TRAIN}", "--cpu-workers is '-1:2'"),
        (f"{KUBERAY} --name No_Name --claim runs:/runs -- {TRAIN}", "'No_Name'"),
        (f"{KUBERAY} -- {TRAIN}", "--out /runs/first would be lost"),
        (f"{KUBERAY} --kind cluster -- {TRAIN}", "finpod deploy submit"),
        (f"{KUBERAY} --kind pod -- {TRAIN}", "--kind"),
        (f"{KUBERAY} --claim runs -- {TRAIN}", "'' cannot be mounted at"),
        (f"{KUBERAY} --env A -- {TRAIN}", "--env 'A'"),
        (f"{KUBERAY} --env A=1 --env A=2 -- {TRAIN}", "--env 'A=2'"),
        (f"{KUBERAY} --idle 0 -- {TRAIN}", "--idle is 0"),
        (f"{KUBERAY} --redis redis:99999 -- {TRAIN}", "redis 'redis:99999' cannot be"),
        (f"{ON_CLAIM} --gpu-workers 0:2 -- {TRAIN}", "add --pod-gpus 1"),
        (f"{ON_CLAIM} -- {TRAIN} --pod-gpus 1", "add GPU workers"),
        (f"{ON_CLAIM} --cpus 2 -- {TRAIN} --pod-cpus 3", "--pod-cpus 3 fits on no worker, for none has more than 2"),
        (f"{ON_CLAIM} -- {TRAIN} --out /runs/../tmp/x", "--out /runs/../tmp/x would be lost"),
        (f"{ON_CLAIM} -- {TRAIN} --storage /tmp/x", "--storage /tmp/x would be lost"),
        (f"{ON_CLAIM} -- finpod train stocks --ray {DAYS}", "without --out;"),
        (f"{ON_CLAIM} -- finpod tarin stocks --ray", "No such command 'tarin'"),
        (f"{ON_CLAIM} -- {TRAIN} --nonsense", "No such option: --nonsense"),
        (f"{ON_CLAIM} -- {TRAIN} --pods 0", "the command would fail: --pods is 0"),
        (f"{ON_CLAIM} -- {TRAIN} --steps 0", "the command would fail: --steps is 0"),
        (f"{ON_CLAIM} -- {TRAIN} --keep 0", "the command would fail: --keep is 0"),
        (f"{KUBERAY} --kind cluster --out .", "is a folder"),
        (f"{KUBERAY} --kind cluster --out /proc/none/here.yaml", "cannot write /proc/none/here.yaml"),
        ("deploy dockerfile --torch-version new", "'new' is no version"),
        ("deploy dockerfile --copy ../private", "'../private'"),
        ("deploy dockerfile --copy nope", "'nope' cannot be copied"),
        ("deploy dockerfile --out /proc/none/Dockerfile", "cannot write /proc/none/Dockerfile"),
        ("deploy submit", "there is no command"),
        ("deploy submit --address here -- ls", "'here' is no address"),
        ("deploy submit --working-dir nowhere -- ls", "nowhere is not a folder"),
        ("deploy submit -- finpod train stocks", "add --ray"),
        (f"deploy submit -- finpod train stocks --ray {DAYS}", "without --out;"),
        ("deploy submit -- finpod tarin", "No such command 'tarin'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(run, tmp_path, line, told):
    code, out, err = run(line)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert told in err
    assert list(tmp_path.iterdir()) == []


def test_submit_shows_the_output_and_ends_with_the_code_of_the_command(run, monkeypatch):
    given = {}

    def submitted(command, *, show, say, **options):
        given.update(options, command=command)
        say("job raysubmit_1 at here")
        show("one\n")
        show("two")
        return jobs.Job("raysubmit_1", "FAILED", 3)

    monkeypatch.setattr(jobs, "submit", submitted)
    code, out, err = run("deploy submit --address http://head:8265 --working-dir . --env A=1 -- finpod bench --json")
    assert (code, out) == (3, "one\ntwo")
    assert err == "job raysubmit_1 at here\nraysubmit_1: failed\n"
    assert given == {
        "command": ["finpod", "bench", "--json"],
        "address": "http://head:8265",
        "working_dir": ".",
        "env": {"A": "1"},
        "wait": True,
    }


def test_submit_need_not_wait(run, monkeypatch):
    seen = []
    monkeypatch.setattr(
        jobs, "submit", lambda command, *, wait, **options: seen.append(wait) or jobs.Job("raysubmit_1", "PENDING", 0)
    )
    code, out, err = run("deploy submit --no-wait -- finpod bench")
    assert (code, out, err, seen) == (0, "", "raysubmit_1: pending\n", [False])


def test_a_cluster_that_does_not_answer_is_one_line(run, monkeypatch):
    def refused(command, **options):
        raise InputError("http://127.0.0.1:8265 does not answer; forward it")

    monkeypatch.setattr(jobs, "submit", refused)
    assert run("deploy submit -- finpod bench") == (
        2,
        "",
        "error: http://127.0.0.1:8265 does not answer; forward it\n",
    )
