"""Jobs against a fake client of Ray, and the commands of `finpod deploy`."""

import re
import sys
from types import MappingProxyType, SimpleNamespace

import pytest
from made_commands import run

from finpod.deploy import jobs
from finpod.deploy.jobs import dockerfile
from finpod.deploy.kuberay import Claim, Cluster, Workers, ray_cluster, ray_job
from finpod.errors import FinpodError, InputError

KUBERAY = "deploy kuberay --image me/finpod:1 --ray-version 2.60.0"
LINE = "finpod train stocks --ray --out /runs/first"


class Client:
    """A made-up cluster: it says what `says` holds, and ends a job as `ends` has it."""

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
    monkeypatch.setattr(Client, "last", None, raising=False)
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
    assert (shown, said) == ("one\ntwo\n", [f"job raysubmit_1 at {jobs.ADDRESS}"])
    assert (client.last.address, client.last.entrypoint) == (jobs.ADDRESS, "echo bench 'a b'")
    assert client.last.runtime_env == {"env_vars": {"A": "1"}, "working_dir": str(tmp_path)}
    assert client.last.looks == 3


@pytest.mark.parametrize(
    ("ends", "code"),
    [(("FAILED", 3), 3), (("FAILED", None), 1), (("FAILED", -9), 137), (("STOPPED", None), 1)],
)
def test_the_exit_code_is_that_of_the_command(client, monkeypatch, ends, code):
    monkeypatch.setattr(client, "ends", ends)
    assert submit("false")[0][1:] == (ends[0], code)


@pytest.mark.parametrize(
    ("when", "error", "told"),
    [
        ("connect", ConnectionError("refused"), "127.0.0.1:8265: refused"),
        ("connect", RuntimeError("\nneeds ray[default]\nmore"), "127.0.0.1:8265: needs ray[default]"),
        ("submit", RuntimeError("401 Unauthorized"), "401 Unauthorized"),
        ("submit", ValueError(), "ValueError"),
        ("tail", RuntimeError("closed"), "closed; raysubmit_1 may continue"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_named(client, monkeypatch, when, error, told):
    monkeypatch.setattr(client, "fails", {"tail": KeyboardInterrupt()})
    said = []
    with pytest.raises(KeyboardInterrupt):
        jobs.submit(["finpod", "bench"], say=said.append)
    assert "raysubmit_1 continues" in said[-1]
    monkeypatch.setattr(client, "fails", {when: error})
    with pytest.raises(FinpodError, match=re.escape(told)) as raised:
        submit("finpod", "bench")
    assert isinstance(raised.value, InputError) == (when != "tail")  # a job that was lost sight of did not fail


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ("", "no command"),
        ("--address 127.0.0.1:8265 -- ls", "'127.0.0.1:8265'"),
        ("--working-dir no/such/folder -- ls", "no/such/folder"),
        ("--env MY_TOKEN=abc -- ls", "MY_TOKEN"),
    ],
)
def test_what_cannot_be_submitted_never_reaches_the_cluster(client, options, value):
    assert value in run("deploy submit", options).error
    assert client.last is None


def test_what_would_send_a_job_elsewhere_is_named(client, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere:8265")
    with pytest.raises(InputError, match="RAY_ADDRESS is http://elsewhere:8265"):
        submit("ls")
    assert submit("ls", address="http://elsewhere:8265")[0].status == "SUCCEEDED"
    monkeypatch.setitem(sys.modules, "ray.job_submission", None)
    with pytest.raises(InputError, match=r"pip install 'ray\[default\]'"):
        submit("ls", address="http://elsewhere:8265")


# --- the commands


def test_the_command_prints_what_the_library_makes_of_its_options():
    options = (
        "--cpus 8 --memory 32Gi --gpus 2 --head-cpus 4 --head-memory 16Gi --secret s3 --pull-secret registry "
        "--env A=b=c --claim runs:/runs --name first --gpu-workers 0:8 --cpu-workers 1:4 --retries 1"
    )
    made = Cluster(
        image="me/finpod:1",
        workers=(
            Workers(name="cpu", least=1, most=4, cpus=8, memory="32Gi"),
            Workers(name="gpu", least=0, most=8, cpus=8, memory="32Gi", gpus=2),
        ),
        ray="2.60.0", head_cpus=4, head_memory="16Gi", env={"A": "b=c"}, secret=("s3",), pull_secret=("registry",),
        claims=(Claim(claim="runs", mount="/runs"),),
    )  # fmt: skip
    assert run(KUBERAY, options, "--", LINE) == (0, ray_job("first", made, LINE.split(), retries=1), "")
    gpus = Cluster(image="me/finpod:1", workers=(Workers(name="gpu", least=1, most=2, gpus=1),), ray="2.60.0")
    assert run(KUBERAY, "--kind cluster --gpu-workers 1:2").out == ray_cluster("finpod", gpus)  # no CPU workers


def test_the_command_replaces_a_file_only_when_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line, file = f"{KUBERAY} --kind cluster --out made/cluster.yaml", tmp_path / "made" / "cluster.yaml"
    assert run(line) == (0, "made/cluster.yaml\n", "")
    written = file.read_text()
    assert written == ray_cluster("finpod", Cluster(image="me/finpod:1", workers=(Workers(name="cpu"),), ray="2.60.0"))
    assert "made/cluster.yaml" in run(line, "--gpu-workers 0:1").error
    assert file.read_text() == written
    assert run(line, "--gpu-workers 0:1 --overwrite").code == 0
    (tmp_path / "data").mkdir()
    assert run("deploy dockerfile --copy data --cuda --out Dockerfile").out == "Dockerfile\n"
    assert (tmp_path / "Dockerfile").read_text() == dockerfile(copies=["data"], cuda=True)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (KUBERAY, "no command"),
        (f"deploy kuberay -- {LINE}", "--image"),
        (f"{KUBERAY} --gpu-workers 8 -- {LINE}", "--gpu-workers is '8'"),
        (f"{KUBERAY} --name No_Name --claim runs:/runs -- {LINE}", "--name 'No_Name'"),
        (f"{KUBERAY} --kind cluster -- {LINE}", "finpod deploy submit"),
        (f"{KUBERAY} --claim runs -- {LINE}", "''"),
        (f"{KUBERAY} --env A -- {LINE}", "--env 'A'"),
        (f"{KUBERAY} --head-cpus 0 -- {LINE}", "--head-cpus is 0"),
        (f"{KUBERAY} --kind cluster --out /proc/none/here.yaml", "/proc/none/here.yaml"),
        ("deploy dockerfile --copy nope", "'nope'"),
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
    ended = run("deploy submit --no-wait -- finpod bench")
    assert (ended.out, client.last.looks, ended.err.splitlines()[-1]) == ("", 0, "raysubmit_1: pending")


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
