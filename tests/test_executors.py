"""Executors: in this process, and on Ray, where processes die, hang and are stopped.

Workers import this module, so that it loads nothing heavy.
"""

import gc
import math
import os
import signal
import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from made_errors import refused
from made_tournaments import ray_of, wait_until

from finpod.errors import CheckpointError, EngineError
from finpod.workers import ray_executor
from finpod.workers.executor import Completed, Failed, InlineExecutor, Pods
from finpod.workers.ray_executor import RayExecutor

SLOTS = 4


@pytest.fixture(scope="module")
def ray():
    """Ray with four CPUs for all tests of this module, whose engines join it."""
    with ray_of(SLOTS, _system_config={"kill_worker_timeout_milliseconds": 300}) as found:
        yield found


@pytest.fixture
def engine(ray, monkeypatch):
    """Make an engine on that Ray; closed at the end."""
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))  # noqa: PTH120
    made = []

    def make(work, context=None, restore=None, **changes):
        made.append(RayExecutor(work, context, Pods(**{"ray": True, "timeout": 60.0, **changes}), restore))
        return made[-1]

    yield make
    for one in made:
        one.close()


def play(engine, pieces, seconds=60.0):
    """Start pieces by key; return what each of them came to."""
    for key, piece in pieces.items():
        engine.start(key, piece)
    ended, end = {}, time.monotonic() + seconds
    while ended.keys() != pieces.keys():
        assert time.monotonic() < end, f"only {sorted(ended)} ended"
        ended |= {one.key: one for one in engine.wait(0.2)}
    return ended


# --- the work of made-up pods


def echo(context, piece):
    return context, piece


class Unpicklable(Exception):
    def __init__(self):
        super().__init__("cannot travel")
        self.lock = threading.Lock()


RAISED = {
    "checkpoint": (CheckpointError("not a checkpoint\nat all"), "not a checkpoint"),
    "division": (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    "empty": (RuntimeError(), "RuntimeError"),
    "unpicklable": (Unpicklable, "Unpicklable"),
}


def tries(context, piece):
    if piece in RAISED:
        raise RAISED[piece][0]
    if piece == "exit":
        os._exit(7)
    if piece in ("kill", "stop"):
        os.kill(os.getpid(), signal.SIGKILL if piece == "kill" else signal.SIGSTOP)
    if isinstance(piece, float):
        time.sleep(piece)
    return piece


def total(context, piece):
    time.sleep(0.2)  # so that every process has a piece
    assert not context["data"].flags.writeable
    return float(context["data"].sum()), os.getpid()


def restored(shared):
    """What `restore` makes of the context, once in each process."""
    return {"made": shared * 2, "pid": os.getpid(), "at": time.monotonic_ns()}


# --- in this process and on Ray


def test_pieces_run_in_other_processes_that_restore_their_context_once(engine):
    ended = play(engine(echo, 21, count=1, restore=restored), {str(i): i for i in range(6)})
    assert all(one.result[1] == int(key) for key, one in ended.items())
    made = {(one.result[0]["pid"], one.result[0]["at"]) for one in ended.values()}
    assert len(made) == len({pid for pid, _ in made})
    for one in ended.values():
        assert one.place.pid == one.result[0]["pid"] != os.getpid()
        assert len(one.place.node) == 8
        assert one.place.started <= one.place.ended
    assert play(engine(echo, 4, count=1, restore=restored), {"x": 0})["x"].result[0]["made"] == 8


@pytest.mark.parametrize("here", [True, False])
def test_work_that_fails_is_lost_for_good_with_its_error_and_the_rest_runs(engine, here):
    ended = play(InlineExecutor(tries, None) if here else engine(tries), {key: key for key in (*RAISED, "fine")})
    assert ended["fine"].result == "fine"
    for key, (error, reason) in RAISED.items():
        assert ended[key].fatal
        assert "\n" not in ended[key].reason
        assert reason in ended[key].reason
        assert here or key == "unpicklable" or isinstance(ended[key].error, type(error))


def test_d05_a_process_that_dies_loses_its_piece_alone(engine):
    pods = engine(tries, count=4)
    ended = play(pods, {"exit": "exit", "kill": "kill", "fine": 0.5})
    assert ended["fine"].result == 0.5
    for key in ("exit", "kill"):
        assert isinstance(ended[key], Failed)
        assert not ended[key].fatal
        assert ended[key].reason.startswith("WorkerCrashedError: ")
    assert play(pods, {"again": "again"})["again"].result == "again"


@pytest.mark.parametrize("piece", [600.0, "stop"])
def test_a_piece_that_never_returns_is_given_up_and_its_place_is_free_again(engine, monkeypatch, piece):
    monkeypatch.setattr(ray_executor, "GRACE", 0.0)
    pods = engine(tries, timeout=2.0, cpus=float(SLOTS))  # one at a time
    play(pods, {"warm": "up"})
    pods.start("never", piece)
    pods.start("waits", "fine")
    (first,) = wait_until(lambda: pods.wait(0.2))
    assert first == Failed("never", "no result after 2 s", False)
    monkeypatch.setattr(ray_executor, "GRACE", 60.0)  # a new process begins
    assert wait_until(lambda: pods.wait(0.2))[0].result == "fine"


def test_pieces_that_wait_for_room_are_not_late(engine, monkeypatch):
    monkeypatch.setattr(ray_executor, "GRACE", 0.0)
    pods = engine(tries, count=9, timeout=1.0, cpus=float(SLOTS))
    play(pods, {"warm": "up"})
    ended = play(pods, {str(i): 0.3 for i in range(9)})  # together more than twice the time of one
    assert all(isinstance(one, Completed) for one in ended.values())


def test_capacity_follows_the_room_and_a_few_wait_for_it(engine, monkeypatch):
    assert engine(echo, count=3).capacity() == 3
    for changes, slots, capacity in (({}, SLOTS, SLOTS + 1), ({"cpus": 0.25}, 4 * SLOTS, 4 * SLOTS + 2)):
        pods = engine(echo, **changes)
        assert (pods.slots(), pods.capacity()) == (slots, capacity)
    pods = engine(echo, gpus=0.5)  # one is queued, for an autoscaler to see
    assert (pods.capacity(), pods.describe()) == (1, "Ray, 1 node, room for 0 pods")
    monkeypatch.setattr(ray_executor, "POLL", 0.0)
    pods = engine(echo)
    two = [{"Alive": True, "Resources": {"CPU": 3.0}}, {"Alive": False, "Resources": {"CPU": 9.0}},
           {"Alive": True, "Resources": {}}]  # fmt: skip
    monkeypatch.setattr(pods._ray, "nodes", lambda: two)
    assert pods.describe() == "Ray, 2 nodes, room for 3 pods"


def test_a_query_without_an_answer_does_not_keep_the_executor(engine, monkeypatch):
    """If a thread frees the context while Ray shuts down, Ray ends the process."""
    pods, answer = RayExecutor(echo, None, Pods(ray=True)), threading.Event()
    monkeypatch.setattr(ray_executor, "SILENCE", 0.1)
    monkeypatch.setattr(pods._ray, "nodes", answer.wait)
    refused("has not answered", pods.slots, error=EngineError)
    gone = weakref.ref(pods)
    del pods
    gc.collect()
    assert gone() is None
    answer.set()


def test_closing_gives_up_what_runs_and_leaves_a_ray_of_others_alone(engine, ray):
    pods = engine(tries, cpus=float(SLOTS))
    pods.start("a", 600.0)
    wait_until(lambda: ray.available_resources().get("CPU", 0.0) == 0.0)
    pods.close()
    assert pods.wait(0) == []
    wait_until(lambda: ray.available_resources().get("CPU") == SLOTS)
    assert ray.is_initialized()


# --- when Ray itself ends


@pytest.fixture
def ended():
    """An engine, without a Ray, of which some processes have ended."""
    exceptions = pytest.importorskip("ray.exceptions")

    def make(*processes, alone=True, nodes=list):
        node = SimpleNamespace(dead_processes=lambda: [(name, None) for name in processes])
        private = SimpleNamespace(worker=SimpleNamespace(_global_node=node))
        engine = object.__new__(RayExecutor)
        engine._ray = SimpleNamespace(_private=private, exceptions=exceptions, nodes=nodes, wait=nodes)
        engine._pods = Pods(ray=True)
        engine._alone, engine._looked, engine._nodes, engine._running = alone, -math.inf, [], {"reference": "key"}
        return engine

    return make


@pytest.mark.parametrize("process", ["raylet", "gcs_server"])
def test_g19_a_vital_process_that_has_ended_is_named_in_one_line(ended, process):
    engine = ended("log_monitor", process, nodes=lambda: time.sleep(5))
    for act in (engine.capacity, lambda: engine.wait(0.1), lambda: engine.start("key", None)):
        raised = refused("", act, error=EngineError)
        assert str(raised) == f"Ray on this machine has ended ({process} exited); continue with resume=True"
        assert raised.argument == "resume"
    assert ended("log_monitor", "dashboard", "monitor")._alive() == []
    assert ended(process, alone=False)._alive() == []  # of a cluster that others have started


@pytest.mark.parametrize("alone", [True, False])
def test_g19_errors_of_ray_itself_are_told_in_one_line_and_others_are_raised(ended, alone):
    failure = pytest.importorskip("ray.exceptions").RaySystemError("lost\nthe connection")

    def fails(*arguments, **options):
        raise failure

    engine = ended(alone=alone, nodes=fails)
    for act in (engine.slots, lambda: engine.wait(0.1)):
        raised = refused(r"^[^\n]*RaySystemError[^\n]*$", act, error=EngineError)
        assert raised.__cause__ is failure
    with pytest.raises(ZeroDivisionError):
        ended(nodes=lambda: 1 / 0).slots()


# --- data


def memory():
    """The proportional set size of this process and its children, in bytes."""
    size, me = 0, psutil.Process()
    for one in [me, *me.children(recursive=True)]:
        try:
            size += one.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has just ended
            continue
    return size


def test_d13_data_are_shared_once_a_node(engine):
    data = np.arange(60 * 2**17, dtype=np.float64)

    def pids(pods, expected):
        results = [one.result for one in play(pods, {str(i): i for i in range(SLOTS)}).values()]
        assert {result for result, _ in results} == {expected}
        return {pid for _, pid in results}

    warm = engine(total, {"data": np.zeros(10)})
    wait_until(lambda: len(pids(warm, 0.0)) == SLOTS)
    before, grown = memory(), []
    pods = engine(total, {"data": data})
    for _ in range(5):
        pids(pods, float(data.sum()))
        grown.append(memory() - before)
    assert max(grown[1], grown[-1]) < 1.75 * data.nbytes
    assert grown[-1] - grown[1] < 0.5 * data.nbytes  # no copy in any round
