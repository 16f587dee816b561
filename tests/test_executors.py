"""Executors: in this process, and on Ray, where processes die, hang and are stopped."""

import gc
import json
import math
import os
import signal
import sys
import threading
import time
import warnings
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from made_tournaments import QUIET, hash_of, lines, process, records_of, wait_until

from finpod.errors import CheckpointError, EngineError, InputError
from finpod.tournament.verify import verify_log
from finpod.workers import ray_executor
from finpod.workers.executor import Completed, Failed, InlineExecutor, with_kind
from finpod.workers.ray_executor import RayExecutor, check_pods

SLOTS = 4


@pytest.fixture(scope="module")
def ray():
    """Ray with four CPUs for all tests of this module, whose engines join it."""
    found = pytest.importorskip("ray")
    before = dict(os.environ)
    os.environ.update(QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.init(
            address="local", num_cpus=SLOTS, include_dashboard=False, log_to_driver=False, configure_logging=False,
            object_store_memory=400 * 2**20, _system_config={"kill_worker_timeout_milliseconds": 300},
        )  # fmt: skip
        found._private.worker._worker_logs_enabled = False
        yield found
        found.shutdown()
        gc.collect()  # sockets that Ray leaves to the collector, while their warnings are ignored
    found._private.worker._worker_logs_enabled = True
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def engine(ray, monkeypatch):
    """Make an engine on that Ray; closed at the end."""
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))  # noqa: PTH120
    made = []

    def make(work, context=None, **changes):
        made.append(RayExecutor(work, context, **{"timeout": 60.0, **changes}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def drain(engine, count, seconds=60.0):
    """What so many pieces came to, by key."""
    ended = {}
    end = time.monotonic() + seconds
    while len(ended) < count:
        assert time.monotonic() < end, f"only {sorted(ended)} ended"
        ended |= {one.key: one for one in engine.wait(0.2)}
    return ended


# --- the work of made-up pods; workers import it by name


def echo(context, piece):
    return context, piece


def tries(context, piece):
    """Fail as the piece says."""
    if piece == "input":
        raise InputError("no such data")
    if piece == "checkpoint":
        raise CheckpointError("not a checkpoint\nat all")
    if piece == "division":
        raise ZeroDivisionError("division by zero")
    if piece == "empty":
        raise RuntimeError
    if piece == "thread":
        raise Unpicklable
    if piece == "exit":
        os._exit(7)
    if piece == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if piece == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if isinstance(piece, float):
        time.sleep(piece)
    return piece


class Unpicklable(Exception):
    def __init__(self):
        super().__init__("cannot travel")
        self.lock = threading.Lock()


def total(context, piece):
    """Read all of the shared data."""
    time.sleep(0.2)  # so that every process has a piece
    assert not context["data"].flags.writeable
    return float(context["data"].sum()), os.getpid()


def restored(shared):
    """What `restore` makes of the context, once in each process."""
    return {"made": shared * 2, "pid": os.getpid(), "at": time.monotonic_ns()}


# --- in this process


def test_here_one_piece_runs_at_a_time_when_it_is_waited_for():
    engine = InlineExecutor(echo, "context")
    assert engine.capacity() == 1
    engine.start("a", 1)
    engine.start("b", 2)
    (first,), (second,) = engine.wait(0), engine.wait(0)
    assert (first.key, first.result, second.key, second.result) == ("a", ("context", 1), "b", ("context", 2))
    assert first.place.pid == os.getpid()
    assert 0 <= first.place.ended - first.place.started < 60
    assert engine.wait(0) == []
    engine.start("c", 3)
    engine.close()
    assert engine.wait(0) == []
    assert engine.describe() == "this process"


def test_here_what_fails_is_lost_for_good_and_the_next_piece_runs():
    engine = InlineExecutor(tries, None)
    engine.start("a", "division")
    engine.start("b", "b")
    (lost,) = engine.wait(0)
    assert (lost.key, lost.reason, lost.fatal) == ("a", "ZeroDivisionError: division by zero", True)
    assert isinstance(lost.error, ZeroDivisionError)
    assert engine.wait(0)[0].result == "b"


def test_what_an_error_says_in_one_line():
    assert with_kind(InputError("one\ntwo")) == "one"
    assert with_kind(ValueError("\n one \n two")) == "ValueError: one"
    assert with_kind(KeyError()) == "KeyError"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"pods": 0}, "pods.count is 0"),
        ({"pods": -1}, "pods.count is -1"),
        ({"pods": "many"}, "pods.count is 'many'"),
        ({"pods": 1.5}, "pods.count is 1.5"),
        ({"cpus": 0.0}, "pods.cpus is 0;"),
        ({"cpus": float("nan")}, "pods.cpus is nan;"),
        ({"gpus": -1.0}, "pods.gpus is -1;"),
        ({"gpus": 1.5}, "pods.gpus is 1.5; above 1 it must be a whole number"),
        ({"timeout": 0.0}, "timeout is 0.0"),
        ({"timeout": float("inf")}, "timeout is inf"),
    ],
)
def test_pods_that_cannot_be_are_refused_before_ray_is_started(changes, told):
    with pytest.raises(InputError) as raised:
        check_pods(**{"pods": 1, "cpus": 1.0, "gpus": 0.0, **changes})
    assert told in str(raised.value)
    with pytest.raises(InputError):
        RayExecutor(echo, None, **changes)
    check_pods("auto", 0.25, 0.25)
    check_pods(3, 2.0, 2.0, 60.0)


def test_without_ray_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="pip install ray") as raised:
        RayExecutor(echo, None)
    assert "\n" not in str(raised.value)


# --- on Ray


def test_pieces_run_in_other_processes_and_say_where(engine):
    pods = engine(echo, {"shared": np.arange(3)}, pods=2)
    for i in range(5):
        pods.start(str(i), {"piece": i})
    ended = drain(pods, 5)
    for i in range(5):
        context, piece = ended[str(i)].result
        assert piece == {"piece": i}
        np.testing.assert_array_equal(context["shared"], np.arange(3))
        assert ended[str(i)].place.pid != os.getpid()
        assert len(ended[str(i)].place.node) == 8
        assert ended[str(i)].place.started <= ended[str(i)].place.ended
    assert pods.wait(0.1) == []


def test_a_process_restores_its_context_once(engine):
    pods = engine(echo, 21, pods=1, restore=restored)
    for i in range(6):
        pods.start(str(i), i)
    made = {(one.result[0]["pid"], one.result[0]["at"]) for one in drain(pods, 6).values()}
    assert len(made) == len({pid for pid, _ in made})
    other = engine(echo, 4, pods=1, restore=restored)
    other.start("x", 0)
    assert drain(other, 1)["x"].result[0]["made"] == 8


def test_work_that_fails_is_lost_for_good_with_its_error(engine):
    pods = engine(tries)
    for piece in ("input", "checkpoint", "division", "empty", "fine"):
        pods.start(piece, piece)
    ended = drain(pods, 5)
    assert ended["fine"].result == "fine"
    assert all(ended[key].fatal for key in ("input", "checkpoint", "division", "empty"))
    assert isinstance(ended["input"].error, InputError)
    assert isinstance(ended["checkpoint"].error, CheckpointError)
    assert ended["input"].reason == "no such data"
    assert ended["checkpoint"].reason == "not a checkpoint"
    assert ended["division"].reason == "ZeroDivisionError: division by zero"
    assert "RuntimeError" in ended["empty"].reason


def test_an_error_that_cannot_travel_is_told_all_the_same(engine):
    pods = engine(tries)
    pods.start("a", "thread")
    lost = drain(pods, 1)["a"]
    assert isinstance(lost, Failed)
    assert lost.fatal
    assert "\n" not in lost.reason


def test_d05_a_process_that_dies_loses_its_piece_alone(engine):
    pods = engine(tries, pods=4)
    for key, piece in (("exit", "exit"), ("kill", "kill"), ("fine", 0.5)):
        pods.start(key, piece)
    ended = drain(pods, 3)
    assert ended["fine"].result == 0.5
    for key in ("exit", "kill"):
        assert isinstance(ended[key], Failed)
        assert not ended[key].fatal
        assert ended[key].reason.startswith("WorkerCrashedError: ")
    pods.start("again", "again")
    assert drain(pods, 1)["again"].result == "again"


@pytest.mark.parametrize("piece", [600.0, "stop"])
def test_a_piece_that_never_returns_is_given_up_and_its_place_is_free_again(engine, monkeypatch, piece):
    """One that sleeps, and one whose process is stopped."""
    monkeypatch.setattr(ray_executor, "GRACE", 0.0)
    pods = engine(tries, timeout=2.0, cpus=float(SLOTS))  # one at a time
    pods.start("warm", "up")
    drain(pods, 1)
    assert pods.slots() == 1
    pods.start("never", piece)
    pods.start("waits", "fine")
    (first,) = wait_until(lambda: pods.wait(0.2))
    assert first == Failed("never", "no result after 2 s", False)
    monkeypatch.setattr(ray_executor, "GRACE", 60.0)  # a new process begins
    assert drain(pods, 1)["waits"].result == "fine"


def test_pieces_that_wait_for_room_are_not_late(engine, monkeypatch):
    monkeypatch.setattr(ray_executor, "GRACE", 0.0)
    pods = engine(tries, pods=9, timeout=1.0, cpus=float(SLOTS))
    pods.start("warm", "up")
    drain(pods, 1)
    for i in range(9):
        pods.start(str(i), 0.3)  # together more than twice the time of one
    ended = drain(pods, 9)
    assert all(isinstance(one, Completed) for one in ended.values())


def test_capacity_follows_the_room_and_a_few_wait_for_it(engine, monkeypatch):
    assert engine(echo, pods=3).capacity() == 3
    assert engine(echo).capacity() == SLOTS + 1
    assert engine(echo, cpus=0.25).capacity() == 4 * SLOTS + 2
    assert engine(echo, cpus=0.25).describe() == f"Ray, 1 node, room for {4 * SLOTS} pods"
    with_gpu = engine(echo, gpus=0.5)
    assert (with_gpu.slots(), with_gpu.capacity()) == (0, 1)  # so that an autoscaler sees that a place is wanted
    assert with_gpu.describe() == "Ray, 1 node, no room yet for a pod of 1 CPUs"
    monkeypatch.setattr(ray_executor, "POLL", 0.0)
    pods = engine(echo)
    two = [{"Alive": True, "Resources": {"CPU": 3.0}}, {"Alive": False, "Resources": {"CPU": 9.0}},
           {"Alive": True, "Resources": {}}]  # fmt: skip
    monkeypatch.setattr(pods._ray, "nodes", lambda: two)
    assert pods.slots() == 3
    assert pods.describe() == "Ray, 2 nodes, room for 3 pods"


def test_a_cluster_that_no_longer_answers_ends_in_one_line(engine, monkeypatch):
    monkeypatch.setattr(ray_executor, "POLL", 0.0)
    monkeypatch.setattr(ray_executor, "SILENCE", 0.2)
    pods = engine(echo)
    monkeypatch.setattr(pods._ray, "nodes", lambda: time.sleep(5))
    with pytest.raises(EngineError, match="the Ray cluster has not answered for 0 s;"):
        pods.slots()


# --- when Ray itself ends


@pytest.fixture
def ended(monkeypatch):
    """An engine, without a Ray, of which some processes have ended."""
    exceptions = pytest.importorskip("ray.exceptions")

    def make(*processes, alone=True, nodes=list):
        node = SimpleNamespace(dead_processes=lambda: [(name, None) for name in processes])
        worker = SimpleNamespace(_global_node=node)
        engine = object.__new__(RayExecutor)
        engine._ray = SimpleNamespace(
            _private=SimpleNamespace(worker=worker), exceptions=exceptions, nodes=nodes, wait=None, is_initialized=bool
        )
        engine._pods, engine._cpus, engine._gpus = "auto", 1.0, 0.0
        engine._alone, engine._looked, engine._nodes, engine._running = alone, -math.inf, [], {"reference": "key"}
        return engine

    return make


@pytest.mark.parametrize("process", ["raylet", "gcs_server"])
def test_g19_a_vital_process_that_has_ended_is_named_in_one_line(ended, process):
    engine = ended("log_monitor", process, nodes=lambda: time.sleep(5))
    for act in (engine.slots, engine.capacity, lambda: engine.wait(0.1), lambda: engine.start("key", None)):
        with pytest.raises(EngineError) as raised:
            act()
        assert str(raised.value) == f"Ray on this machine has ended ({process} exited); go on with resume=True"
        assert raised.value.argument == "resume"


def test_g19_other_processes_may_end(ended):
    assert ended("log_monitor", "dashboard", "monitor")._alive() == []
    assert ended("raylet", alone=False)._alive() == []  # of a cluster that others have started


@pytest.mark.parametrize("name", ["RaySystemError", "RayError", "LocalRayletDiedError"])
@pytest.mark.parametrize("alone", [True, False])
def test_g19_errors_of_ray_itself_are_told_in_one_line(ended, name, alone):
    import ray.exceptions

    error = getattr(ray.exceptions, name)
    failure = error("lost\nthe connection") if name == "RaySystemError" else error()

    def fails(*arguments, **options):
        raise failure

    engine = ended(alone=alone, nodes=fails)
    engine._ray.wait = fails
    for act in (engine.slots, lambda: engine.wait(0.1)):
        with pytest.raises(EngineError) as raised:
            act()
        where = "Ray on this machine" if alone else "the Ray cluster"
        assert str(raised.value).startswith(f"{where} no longer works ({name}")
        assert "\n" not in str(raised.value)
        assert raised.value.__cause__ is failure


def test_g19_faults_of_finpod_are_not_taken_for_faults_of_ray(ended):
    def fails():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ended(nodes=fails).slots()


def test_closing_gives_up_what_runs_and_leaves_a_ray_of_others_alone(engine, ray):
    pods = engine(tries, cpus=float(SLOTS))
    pods.start("a", 600.0)
    wait_until(lambda: ray.available_resources().get("CPU", 0.0) == 0.0)
    pods.close()
    assert pods.wait(0) == []
    wait_until(lambda: ray.available_resources().get("CPU") == SLOTS)
    assert ray.is_initialized()


def shared_memory(ray, data, slots, rounds, engine):
    """Bytes by which the proportional set sizes of all processes grew, after the first and after the last round."""

    def size():
        me = psutil.Process()
        found = 0
        for one in [me, *me.children(recursive=True)]:
            try:
                found += one.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has just ended
                continue
        return found

    def play(pods):
        for i in range(slots):
            pods.start(str(i), i)
        ended = drain(pods, slots, 120)
        assert {one.result[0] for one in ended.values()} == {expected}
        return {one.result[1] for one in ended.values()}

    expected = 0.0
    warm = engine(total, {"data": np.zeros(10)}, cpus=SLOTS / slots)
    wait_until(lambda: len(play(warm)) == slots, 120)
    expected, before = float(data.sum()), size()
    pods = engine(total, {"data": data}, cpus=SLOTS / slots)
    pids, grown = set(), []
    for number in range(rounds):
        pids |= play(pods)
        if number in (1, rounds - 1):
            grown.append(size() - before)
    assert len(pids) >= slots
    return grown


@pytest.mark.parametrize(
    ("megabytes", "slots", "rounds"), [(60, 4, 5), pytest.param(200, 8, 20, marks=pytest.mark.slow)]
)
def test_d13_data_are_shared_once_a_node(engine, ray, megabytes, slots, rounds):
    data = np.arange(megabytes * 2**17, dtype=np.float64)
    first, last = shared_memory(ray, data, slots, rounds, engine)
    assert first < 1.5 * data.nbytes
    assert last < 1.5 * data.nbytes
    assert last - first < 0.1 * data.nbytes


def test_d13_what_pods_read_of_a_task_are_the_shared_arrays_themselves():
    from made_agents import make_setup
    from made_markets import random_market

    from finpod.tournament.setup import from_shared

    shared = make_setup(random_market(110, 4, seed=1)).to_shared()
    task = from_shared(shared, device="cpu").task
    for part in ("panel", "execution"):
        arrays = {key: value for key, value in shared["task"][part].items() if isinstance(value, np.ndarray)}
        assert len(arrays) >= 3
        for key, value in arrays.items():
            assert getattr(vars(task)[part], key).data_ptr() == value.__array_interface__["data"][0]


# --- tournaments of real agents


@pytest.fixture(scope="module")
def market():
    from made_markets import random_market

    return random_market(130, 6, gaps=0.02, seed=5)


def train(market, out, plan, pods=None, **changes):
    """Four agents in two rounds of two updates; the hash of the ensemble."""
    from made_agents import tiny_train

    tiny_train(market, out, agents=4, seed=2, plan=plan, pods=pods, **changes)
    return hash_of(out)


@pytest.mark.usefixtures("engine")
def test_in_rounds_the_ensemble_is_the_same_wherever_the_pods_run(market, tmp_path):
    from made_agents import STEPS_AN_UPDATE

    from finpod.tournament.setup import Plan
    from finpod.tournament.training import Pods

    expected = train(market, tmp_path / "here" / "tiny", Plan())
    board = lines(verify_log(tmp_path / "here" / "tiny" / "log-2.jsonl"))
    for count, steps in ((1, None), (2, STEPS_AN_UPDATE), (4, STEPS_AN_UPDATE)):
        out = tmp_path / str(count) / "tiny"
        assert train(market, out, Plan(checkpoint_steps=steps), Pods(ray=True, count=count)) == expected
        assert lines(verify_log(out / "log-2.jsonl")) == board
        places = {record["place"]["pid"] for record in records_of(out / "log-2.jsonl") if record["kind"] == "submit"}
        assert os.getpid() not in places
        assert len(places) <= count


@pytest.mark.usefixtures("engine")
def test_d06_a_run_that_began_here_is_gone_on_with_on_ray_and_the_other_way_round(market, tmp_path):
    from finpod.tournament.setup import Plan
    from finpod.tournament.training import Pods

    def leave(status):
        if len(status.board.log) >= 3:
            raise KeyboardInterrupt

    expected = train(market, tmp_path / "whole" / "tiny", Plan())
    here, there = None, Pods(ray=True, count=2)
    for first, second in ((here, there), (there, here)):
        out = tmp_path / ("here" if first is here else "there") / "tiny"
        with pytest.raises(KeyboardInterrupt):
            train(market, out, Plan(), first, watch=leave)
        assert train(market, out, Plan(), second, resume=True) == expected


@pytest.mark.usefixtures("engine")
def test_without_rounds_the_log_of_a_run_on_ray_replays_to_its_board(market, tmp_path):
    from finpod.ensemble import load_ensemble
    from finpod.tournament.setup import Plan
    from finpod.tournament.training import Pods

    train(market, tmp_path / "tiny", Plan(mode="async"), Pods(ray=True, count=3), rounds=3)
    board, ensemble = verify_log(tmp_path / "tiny" / "log-2.jsonl"), load_ensemble(tmp_path / "tiny")
    assert [entry.score for entry in board.log] == [line["score"] for line in ensemble.log]
    assert [entry.agent for entry in board.log] == [line["agent"] for line in ensemble.log]
    assert len(board.log) == 12


# --- a Ray of its own


OWN = """
import json, os, sys, time
from pathlib import Path
import psutil
from finpod.errors import InputError
from finpod.workers.ray_executor import RayExecutor
from made_tournaments import Piece, noted, wait_until

folder, me = Path(sys.argv[1]), psutil.Process()
try:
    engine = RayExecutor(noted, str(folder), **json.loads(sys.argv[2]))
except InputError as error:
    print(json.dumps({"error": str(error), "left": [one.name() for one in me.children(recursive=True)]}))
    sys.exit()
engine.start("fine", Piece(1, 2, 0.0))
(ended,) = wait_until(lambda: engine.wait(0.1))
engine.start("killed", Piece(2, 2, 600.0))
wait_until((folder / "2").exists)
children = me.children(recursive=True)
os.kill(int((folder / "2").read_text()), 9)
(lost,) = wait_until(lambda: engine.wait(0.1))
where = engine.describe()
addresses = set()
for one in children:
    try:
        addresses |= {kind.laddr.ip for kind in one.net_connections() if kind.status == "LISTEN"}
    except psutil.Error:  # it has ended in the meantime
        continue
engine.start("cancelled", Piece(3, 2, 600.0))
wait_until((folder / "3").exists)
children += me.children(recursive=True)
engine.close()
left = wait_until(lambda: [one for one in children if not one.is_running()] == children or None)
print(json.dumps({"result": ended.result, "lost": lost.reason, "where": where, "addresses": sorted(addresses),
                  "children": len(children)}))
"""


def own(folder, **arguments):
    """What an engine that starts Ray itself comes to, in a process of its own, and all that was printed."""
    with process(OWN, folder, json.dumps(arguments), RAY_ADDRESS="") as child:
        printed, noise = child.communicate(timeout=120)
    assert child.returncode == 0, noise
    return json.loads(printed), noise


def test_a_ray_of_its_own_is_silent_listens_here_alone_and_leaves_no_process(tmp_path):
    pytest.importorskip("ray")
    found, noise = own(tmp_path, timeout=600)
    assert found["result"] == [1, 2]
    assert found["lost"].startswith("WorkerCrashedError")
    assert found["where"].startswith("Ray, 1 node, room for ")
    assert set(found["addresses"]) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert found["children"] > 5  # all of which it has seen end
    assert noise == ""


PINNED = """
import json, os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from finpod.workers.ray_executor import RayExecutor
from made_tournaments import Piece, nap

engine = RayExecutor(nap, None, timeout=60)
engine.start("a", Piece(1, 2, 0.5))
engine.start("b", Piece(2, 2, 0.5))
ended = []
while len(ended) < 2:
    ended += engine.wait(0.1)
places = sorted((one.place.started, one.place.ended) for one in ended)
print(json.dumps({"slots": engine.slots(), "where": engine.describe(), "places": places}))
engine.close()
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_g17_pods_on_ray_are_as_many_as_the_cores_that_the_process_may_use():
    pytest.importorskip("ray")
    with process(PINNED, RAY_ADDRESS="") as child:
        printed, noise = child.communicate(timeout=120)
    assert child.returncode == 0, noise
    found = json.loads(printed)
    assert (found["slots"], found["where"]) == (1, "Ray, 1 node, room for 1 pod")
    (_, first_ended), (second_started, _) = found["places"]
    assert second_started >= first_ended


@pytest.mark.slow
def test_a_start_that_fails_half_way_leaves_no_process(tmp_path):
    pytest.importorskip("ray")
    found, noise = own(tmp_path, cpus=100_000)
    assert found["error"].startswith("a pod needs 100000 CPU and this machine has ")
    assert found["left"] == []
    assert noise == ""


def test_an_address_where_nothing_answers_is_refused_soon(tmp_path):
    pytest.importorskip("ray")
    for address, told in (("127.0.0.1:1", "ConnectionRefusedError"), ("nonsense:port", "ValueError")):
        found, _ = own(tmp_path, address=address)
        assert found["error"].startswith(f"cannot reach Ray at {address}: {told}")
        assert found["left"] == []
